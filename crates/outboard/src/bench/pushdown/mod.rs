//! `outboard bench pushdown`: lookups in a tree by storage functions, against ordinary reads of the same client.
//!
//! ```text
//!   this process: the client, one core          child process: the card, another core
//!   ┌──────────────────────────────────┐        ┌──────────────────────────────────────┐
//!   │ reads:  node, node, …, value     │ ─ n ──▶│ namespace in memory, or on a disk    │
//!   │ pushed: one request              │ ─ 1 ──▶│   └ read, program, read, program, …  │
//!   └──────────────────────────────────┘        └──────────────────────────────────────┘
//! ```
//!
//! Both ways share one connection, which the client polls, and take turns; every answer is checked. `delay` adds 15 µs a direction: the
//! client waits for so much longer after each answer. `here` is the same lookup in a file of this machine, without a network.

mod polled;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ob_nvme::initiator::{Payload, block_on};
use ob_pushdown::btree::{BTree, BTreeOptions, BulkLoad, Pages, Shape, VALUE_LEN};
use ob_pushdown::client::{FileMap, MapExtent, MapSource, Session};
use rustix::thread::sched_setaffinity;

use super::cores::{card_core, leave};
use super::nvme::client::{Client, Shape as Connections};
use super::nvme::target::{Backend, TargetProcess, Who};
use super::process::Place;
use super::turns::by_turns;
use super::{Bench, BenchFailure, Case, CpuMeter, Latencies, Report, Setting};
use polled::{NAMESPACE, Polled, PolledPages};

/// What a way there and back takes longer with `delay`.
const DELAY: Duration = Duration::from_micros(30);
/// Values of a range.
const RANGE: u64 = 100;
/// Levels that are kept by the client in `cached`.
const CACHED: usize = 4;

/// The benchmark.
#[derive(Debug)]
pub struct PushdownBench;

struct Plan {
    /// Keys, and entries of a node.
    keys: u64,
    fanout: usize,
    rounds: u64,
    time: Duration,
}

/// Seven levels, and the value.
const FULL: Plan = Plan { keys: 279_936, fanout: 6, rounds: 7, time: Duration::from_millis(500) };
const QUICK: Plan = Plan { keys: 1_296, fanout: 6, rounds: 1, time: Duration::from_millis(20) };

impl Bench for PushdownBench {
    fn name(&self) -> &'static str {
        "pushdown"
    }

    fn about(&self) -> &'static str {
        "lookups and ranges of a tree by storage functions over NVMe/TCP, against ordinary reads"
    }

    fn run(&self, setting: &Setting<'_>) -> Result<Report, BenchFailure> {
        let plan = if setting.quick { &QUICK } else { &FULL };
        let place = Place::new()?;
        let core = card_core()?;
        let before = leave(core)?;
        let outcome = measure(plan, setting, &place, core);
        sched_setaffinity(None, &before)?;
        outcome
    }
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    Get,
    /// With the upper levels kept by the client.
    Cached,
    Range,
}

impl Question {
    fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Cached => "cached",
            Self::Range => "range",
        }
    }
}

/// Who asks how.
struct Contender<'run> {
    name: String,
    question: Question,
    tree: Tree<'run>,
    polled: &'run Polled,
    card: u32,
}

enum Tree<'run> {
    Network(BTree<'run, &'run Polled, PolledPages<'run>>),
    Here(BTree<'run, &'run Polled, LocalPages>),
}

/// A file of this machine.
struct LocalPages(File);

impl Pages for LocalPages {
    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; len];
        self.0.read_exact_at(&mut bytes, offset).map_err(|error| error.to_string())?;
        Ok(bytes)
    }
}

/// A file that never moves: it begins where the namespace begins.
struct Whole(Arc<FileMap>);

impl MapSource for Whole {
    fn current(&self) -> Option<Arc<FileMap>> {
        Some(Arc::clone(&self.0))
    }
}

fn key(number: u64) -> u64 {
    1 + 2 * number
}

fn value(number: u64) -> [u8; VALUE_LEN] {
    let mut value = [number as u8; VALUE_LEN];
    value[..8].copy_from_slice(&number.to_le_bytes());
    value
}

fn image(plan: &Plan) -> Result<Vec<u8>, BenchFailure> {
    let mut bytes = Vec::new();
    BulkLoad::new(Shape::new(plan.keys, plan.fanout)?, key, value).write(&mut bytes)?;
    // Whole blocks, and what the target calls mebibytes.
    bytes.resize(bytes.len().next_multiple_of(1 << 20), 0);
    Ok(bytes)
}

fn measure(
    plan: &Plan,
    setting: &Setting<'_>,
    place: &Place,
    core: Option<usize>,
) -> Result<Report, BenchFailure> {
    let image = Payload::from(image(plan)?);
    let local = place.0.join("tree");
    std::fs::write(&local, &*image)?;
    let backends = [
        ("", Backend::Memory(image.len() as u64)),
        (".disk", Backend::File(place.0.join("disk"), image.len() as u64)),
    ];
    // On a disk the lookups alone, and as they are; in memory all of it.
    let contenders = [2 * 3 * 2 + 2, 2];
    setting.progress.set_length(plan.rounds * contenders.iter().sum::<u64>());
    let mut cases = Vec::new();
    for (suffix, backend) in &backends {
        let folder = place.0.join(format!("card{suffix}"));
        let target = TargetProcess::start(Who::Card, backend, &folder, core)?;
        let connect = |delay: Duration| -> Result<Polled, BenchFailure> {
            let shape = Connections { connections: 1, digests: false };
            let mut client = Client::connect(target.address(), shape, 32, &image)?;
            if delay.is_zero() {
                client.fill()?;
            }
            Ok(Polled::new(client, delay))
        };
        let near = connect(Duration::ZERO)?;
        cases.extend(measure_over(
            plan,
            setting,
            (&near, &format!("{suffix}.loopback")),
            target.pid(),
            &local,
            image.len(),
        )?);
        drop(near);
        if suffix.is_empty() {
            let far = connect(DELAY)?;
            cases.extend(measure_over(plan, setting, (&far, ".delay"), target.pid(), &local, image.len())?);
        }
    }
    let ratios = ratios(&cases);
    Ok(Report { bench: "pushdown".to_owned(), cases, ratios })
}

fn measure_over(
    plan: &Plan,
    setting: &Setting<'_>,
    (polled, suffix): (&Polled, &str),
    card: u32,
    local: &Path,
    len: usize,
) -> Result<Vec<Case>, BenchFailure> {
    let session = block_on(Session::begin(polled, NAMESPACE))?;
    if session.description().is_none() {
        return Err("the card has no storage functions".into());
    }
    let extents = vec![MapExtent { at: 0, offset: 0, len: len as u64 }];
    let map = FileMap { namespace: NAMESPACE, version: 1, identity: 1, len: len as u64, extents };
    let source: Arc<dyn MapSource> = Arc::new(Whole(Arc::new(map)));
    let is_disk = suffix.starts_with(".disk");
    let mut contenders = Vec::new();
    for question in [Question::Get, Question::Cached, Question::Range] {
        if is_disk && question != Question::Get {
            continue;
        }
        let cached_levels = if question == Question::Cached { CACHED } else { 0 };
        for (who, only_ordinary) in [("reads", true), ("pushed", false)] {
            let options = BTreeOptions { cached_levels, only_ordinary };
            let file = session.mapped(Arc::clone(&source));
            let tree = block_on(BTree::open(&session, file, PolledPages(polled), options))?;
            let name = format!("btree_{}.{who}{suffix}", question.name());
            contenders.push(Contender { name, question, tree: Tree::Network(tree), polled, card });
        }
        if suffix == ".loopback" && question != Question::Cached {
            let options = BTreeOptions { cached_levels, only_ordinary: true };
            let pages = LocalPages(File::open(local)?);
            let tree = block_on(BTree::open(&session, session.mapped(Arc::clone(&source)), pages, options))?;
            let name = format!("btree_{}.here", question.name());
            contenders.push(Contender { name, question, tree: Tree::Here(tree), polled, card });
        }
    }
    // What is loaded, mapped and prepared once is not measured.
    contenders.iter().try_for_each(|contender| contender.ask(plan, 0))?;
    let rounds = by_turns(plan.rounds, &mut contenders, |contender, round| {
        setting.progress.set_message(contender.name.clone());
        let case = contender.round(plan, round)?;
        setting.progress.inc(1);
        Ok(Some(case))
    })?;
    Ok(rounds.into_iter().filter_map(median).collect())
}

fn median(mut rounds: Vec<Case>) -> Option<Case> {
    rounds.sort_by(|one, other| one.ops_per_s.total_cmp(&other.ops_per_s));
    let middle = rounds.len() / 2;
    (middle < rounds.len()).then(|| rounds.swap_remove(middle))
}

impl Contender<'_> {
    fn round(&mut self, plan: &Plan, round: u64) -> Result<Case, BenchFailure> {
        let mut draw = round.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut latencies = Latencies::new();
        let (trips, bytes) = self.polled.spent();
        let meter = CpuMeter::start(Some(self.card), None)?;
        let begun = Instant::now();
        while begun.elapsed() < plan.time {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let number = (draw >> 24) % plan.keys;
            let asked = Instant::now();
            self.ask(plan, number)?;
            latencies.record(asked.elapsed());
        }
        let seconds = begun.elapsed().as_secs_f64();
        let count = latencies.count();
        let mut case = Case::new(&self.name, seconds, &latencies, meter.finish(count)?);
        let (trips_now, bytes_now) = self.polled.spent();
        let each = |total: u64| total as f64 / count.max(1) as f64;
        case.extra.insert("round_trips".to_owned(), each(trips_now - trips));
        case.extra.insert("bytes".to_owned(), each(bytes_now - bytes));
        Ok(case)
    }

    /// One question, whose answer is checked.
    fn ask(&self, plan: &Plan, number: u64) -> Result<(), BenchFailure> {
        let is_right = match self.question {
            Question::Get | Question::Cached => {
                let found = match &self.tree {
                    Tree::Network(tree) => block_on(tree.get(key(number)))?,
                    Tree::Here(tree) => block_on(tree.get(key(number)))?,
                };
                found.0 == Some(value(number))
            }
            Question::Range => {
                let found = match &self.tree {
                    Tree::Network(tree) => block_on(tree.range(key(number), u64::MAX, RANGE as usize))?,
                    Tree::Here(tree) => block_on(tree.range(key(number), u64::MAX, RANGE as usize))?,
                };
                let expected = RANGE.min(plan.keys - number);
                let matches = |(at, one): (u64, &(u64, [u8; VALUE_LEN]))| {
                    *one == (key(number + at), value(number + at))
                };
                found.len() as u64 == expected && (0..).zip(&found).all(matches)
            }
        };
        if is_right { Ok(()) } else { Err(format!("{}: a wrong answer for key {number}", self.name).into()) }
    }
}

fn ratios(cases: &[Case]) -> BTreeMap<String, f64> {
    let case = |name: &str| cases.iter().find(|case| case.case == name);
    let mut ratios = BTreeMap::new();
    for (ratio, question, way) in [
        ("btree_get_vs_reads.loopback", "get", "loopback"),
        ("btree_get_vs_reads.delay", "get", "delay"),
        ("btree_get_vs_reads.disk", "get", "disk.loopback"),
        ("btree_cached_vs_reads.loopback", "cached", "loopback"),
        ("btree_cached_vs_reads.delay", "cached", "delay"),
        ("range_vs_reads.loopback", "range", "loopback"),
        ("range_vs_reads.delay", "range", "delay"),
    ] {
        let (reads, pushed) =
            (case(&format!("btree_{question}.reads.{way}")), case(&format!("btree_{question}.pushed.{way}")));
        if let Some((reads, pushed)) = reads.zip(pushed) {
            ratios.insert(ratio.to_owned(), pushed.ops_per_s / reads.ops_per_s);
        }
    }
    let total = |case: &Case| Some(case.cpu.client_cpu_us? + case.cpu.card_cpu_us?);
    let both = case("btree_get.reads.loopback").zip(case("btree_get.pushed.loopback"));
    if let Some((reads, pushed)) = both.and_then(|(reads, pushed)| total(reads).zip(total(pushed))) {
        ratios.insert("total_cpu_vs_reads.btree_get".to_owned(), pushed / reads);
    }
    ratios
}
