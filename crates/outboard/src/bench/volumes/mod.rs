//! `outboard bench volumes`: a volume kept three times, in each placement, and what of it crosses the link.
//!
//! ```text
//!   this process, one core              other core                     chunk servers, where the client is
//!   ┌────────────────────────┐        ┌──────────────────────┐        ┌─────────────────────┐
//!   │ client: reads, writes, │ ◀─TCP─▶│ card ══ link ══ host │ ◀─TCP─▶│ three, each a device│
//!   │ five reads to a write  │        └──────────────────────┘        └─────────────────────┘
//!   └────────────────────────┘
//! ```
//!
//! The client polls its connection and checks everything that it reads. Blocks are those of a corpus, or shrink as they do. Pools take
//! turns: each is started, filled, put to every load and ended, round after round; the median round counts. Beside them stands the same
//! load on a namespace in the memory of a card, which is kept once and by nobody else: what three copies, a log of them and a host cost.

mod blocks;
mod engine;
mod pool;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use ob_nvme::initiator::Payload;

use super::cores::{Layout, pin};
use super::hog::{Hog, HogWork};
use super::load::{Direction, Load, Measured, Order, Role};
use super::nvme::client::{Client, Shape};
use super::nvme::target::{Backend, TargetProcess, Who};
use super::process::Place;
use super::turns::by_turns;
use super::{Bench, BenchFailure, Case, Report, Setting};
use pool::{Pool, Spent};
use rustix::thread::sched_setaffinity;

/// Placements that there are.
const PLACEMENTS: &[&str] = &["split", "host", "accelerator"];
/// A namespace in memory.
const ONCE: &str = "once";
/// Commands that are out at any time.
const DEPTH: usize = 16;
/// What crosses the link by what clients ask for: for their commands, which is what is promised; and with that of checkpoints and compaction,
/// of which a load of seconds has all or nothing.
const LINK_BYTES: &str = "link_bytes_per_payload_byte";
const LINK_BYTES_ALL: &str = "link_bytes_with_maintenance_per_payload_byte";
/// Beside what cases were measured: other work on the host's core that only uses memory's bandwidth, and other work that wants the core as well.
const HOG: &str = ".hog";
const RIVAL: &str = ".rival";
/// How long a volume may take until it can be used.
const SERVED_WITHIN: Duration = Duration::from_secs(30);

/// The benchmark.
#[derive(Debug)]
pub struct VolumesBench;

struct Plan {
    /// So many that hardly any chunk is overwritten to a half while a load lasts.
    bytes: u64,
    /// So few that writes overwrite them again and again.
    overwritten: u64,
    rounds: u64,
    time: Duration,
    /// Of the engine beside its library.
    turns: usize,
    /// Whether a server is lost, too, which takes its time.
    loses_server: bool,
}

const FULL: Plan = Plan {
    bytes: 512 << 20,
    overwritten: 64 << 20,
    rounds: 5,
    time: Duration::from_secs(2),
    turns: 2000,
    loses_server: true,
};
const QUICK: Plan = Plan {
    bytes: 8 << 20,
    overwritten: 1 << 20,
    rounds: 1,
    time: Duration::from_millis(200),
    turns: 10,
    loses_server: false,
};

impl Bench for VolumesBench {
    fn name(&self) -> &'static str {
        "volumes"
    }

    fn about(&self) -> &'static str {
        "a volume that chunk servers keep three times: link bytes, processor time of either half, throughput"
    }

    fn run(&self, setting: &Setting<'_>) -> Result<Report, BenchFailure> {
        let plan = if setting.quick { &QUICK } else { &FULL };
        let place = Place::new()?;
        let layout = Layout::together()?;
        let before = pin(layout.client)?;
        let outcome = measure(plan, setting, &place.0, layout);
        sched_setaffinity(None, &before)?;
        outcome
    }
}

/// What is asked of a volume.
#[derive(Clone, Copy)]
struct Job {
    load: Load,
    /// Five reads, then a write.
    is_mixed: bool,
    /// What another process does on the host's core meanwhile.
    beside: Option<HogWork>,
}

impl Job {
    fn all() -> Vec<Self> {
        let kinds = [(Direction::Write, false), (Direction::Read, false), (Direction::Read, true)];
        let job = |len, (direction, is_mixed)| {
            let load = Load { direction, len, depth: DEPTH, order: Order::Random };
            Self { load, is_mixed, beside: None }
        };
        [4 << 10, 64 << 10].into_iter().flat_map(|len| kinds.map(|kind| job(len, kind))).collect()
    }

    /// What a host's other work does to writes: without it, with one that leaves it the core, and with one that does not.
    fn beside_hog() -> Vec<Self> {
        let load = Load { direction: Direction::Write, len: 4 << 10, depth: DEPTH, order: Order::Random };
        let beside = [None, Some(HogWork::MemoryAside), Some(HogWork::Memory)];
        beside.map(|beside| Self { load, is_mixed: false, beside }).into()
    }

    /// Writes, while replicas are made anew.
    fn beside_rebuild() -> Vec<Self> {
        Self::beside_hog().into_iter().filter(|job| job.beside.is_none()).collect()
    }

    /// Writes of a volume that is overwritten again and again.
    fn overwriting() -> Vec<Self> {
        Self::all().into_iter().filter(|job| job.load.direction == Direction::Write).collect()
    }

    /// Such as `mixed4k.d16`.
    fn name(self) -> String {
        let name = self.load.name();
        if self.is_mixed { name.replacen("read", "mixed", 1) } else { name }
    }
}

/// What a round measured, and what it cost beside.
struct Taken {
    measured: Measured,
    len: usize,
    before: Spent,
    after: Spent,
}

impl Taken {
    fn case(&self, name: &str) -> Case {
        let mut case = self.measured.case(name, Role::Client);
        let commands = self.after.commands.saturating_sub(self.before.commands);
        if commands == 0 {
            return case;
        }
        // Those included that were out when measuring began, and ended: whoever spent something for them is measured as long.
        let count = commands as f64;
        let each =
            |before: Duration, after: Duration| after.saturating_sub(before).as_secs_f64() * 1e6 / count;
        case.cpu.host_cpu_us = Some(each(self.before.host, self.after.host));
        let sleeps = self.after.host_sleeps.saturating_sub(self.before.host_sleeps) as f64;
        let link = self.after.link - self.before.link;
        let (all, maintenance) = (link.all() as f64, (link.checkpoints + link.compaction) as f64);
        let rebuilt = self.after.rebuilt.checked_sub(self.before.rebuilt).filter(|bytes| *bytes > 0);
        let figures = [
            ("servers_cpu_us", each(self.before.servers, self.after.servers)),
            ("host_sleeps", sleeps / count),
            ("link_bytes", all / count),
            ("link_word_bytes", link.words as f64 / count),
            ("link_checkpoint_bytes", link.checkpoints as f64 / count),
            ("link_compaction_bytes", link.compaction as f64 / count),
            (LINK_BYTES, (all - maintenance) / (count * self.len as f64)),
            (LINK_BYTES_ALL, all / (count * self.len as f64)),
        ];
        let rebuilt = rebuilt.map(|bytes| ("rebuilt_bytes", bytes as f64 / count));
        case.extra.extend(figures.into_iter().chain(rebuilt).map(|(name, figure)| (name.to_owned(), figure)));
        case
    }
}

/// The round in the middle.
fn median(name: &str, mut rounds: Vec<Taken>) -> Option<Case> {
    rounds.sort_by(|left, right| left.measured.rate().total_cmp(&right.measured.rate()));
    let middle = rounds.len() / 2;
    rounds.get(middle).map(|round| round.case(name))
}

fn measure(plan: &Plan, setting: &Setting<'_>, place: &Path, layout: Layout) -> Result<Report, BenchFailure> {
    let image = blocks::image(usize::try_from(plan.bytes)?)?;
    let engine = engine::measure(&image, plan.turns)?;
    let overwritten: Payload = image.get(..usize::try_from(plan.overwritten)?).unwrap_or(&image).into();
    let image: Payload = image.into();
    let mut contenders = contenders(layout, plan.loses_server)?;
    let turns: usize = contenders.iter().map(|contender| contender.jobs.len()).sum();
    setting.progress.set_length(plan.rounds * turns as u64);
    let mut rounds: BTreeMap<String, Vec<Taken>> = BTreeMap::new();
    let names: Vec<String> = contenders.iter().flat_map(Contender::cases).collect();
    by_turns(plan.rounds, &mut contenders, |contender, round| {
        let own = place.join(format!("{}-{round}", contender.name));
        let mut served = Served::start(contender, &own, plan)?;
        let mut client = served.client(if contender.is_overwritten { &overwritten } else { &image })?;
        client.fill()?;
        if contender.loses_server {
            served.lose_server(|| client.ping())?;
        }
        for job in &contender.jobs {
            let name = contender.case(*job);
            setting.progress.set_message(name.clone());
            let work = job.beside.map(|work| Hog::start(contender.layout.host, work));
            let _hog = work.transpose()?;
            let before = served.spent_before()?;
            let other_each = if job.is_mixed { 6 } else { u64::MAX };
            let measured = client.run_mixed(job.load, other_each, round, plan.time, served.card());
            let measured = measured.map_err(|error| -> BenchFailure { format!("{name}: {error}").into() })?;
            let after = served.spent_after(&before)?;
            setting.progress.inc(1);
            rounds.entry(name).or_default().push(Taken { measured, len: job.load.len, before, after });
        }
        Ok(Some(()))
    })?;
    let cases: Vec<Case> = names.iter().filter_map(|name| median(name, rounds.remove(name)?)).collect();
    let mut ratios = ratios(&cases);
    ratios.extend(engine);
    Ok(Report { bench: "volumes".to_owned(), cases, ratios })
}

/// Who takes turns.
struct Contender {
    name: String,
    placement: &'static str,
    layout: Layout,
    /// Whether chunks are compacted all the while.
    is_overwritten: bool,
    /// Whether what a server had is made anew meanwhile.
    loses_server: bool,
    jobs: Vec<Job>,
}

impl Contender {
    fn case(&self, job: Job) -> String {
        let beside = match job.beside {
            None => "",
            Some(HogWork::MemoryAside) => HOG,
            Some(HogWork::Memory | HogWork::Count) => RIVAL,
        };
        format!("{}{beside}.{}", self.name, job.name())
    }

    fn cases(&self) -> Vec<String> {
        self.jobs.iter().map(|job| self.case(*job)).collect()
    }
}

/// Each placement with card and host on one core; a volume that is overwritten again and again; one of which replicas are made anew; and
/// each placement with its halves apart, where the host's core has other work besides.
fn contenders(layout: Layout, loses_server: bool) -> Result<Vec<Contender>, BenchFailure> {
    let apart = Layout::apart()?;
    let of = |placement: &'static str, jobs| Contender {
        name: placement.to_owned(),
        placement,
        layout,
        is_overwritten: false,
        loses_server: false,
        jobs,
    };
    let together = [ONCE].iter().chain(PLACEMENTS).map(|placement| of(placement, Job::all()));
    let overwritten = Contender {
        name: "split.overwritten".to_owned(),
        is_overwritten: true,
        ..of("split", Job::overwriting())
    };
    let rebuilt = loses_server.then(|| Contender {
        name: "split.rebuilding".to_owned(),
        loses_server: true,
        ..of("split", Job::beside_rebuild())
    });
    let apart = PLACEMENTS.iter().map(|placement| Contender {
        name: format!("{placement}.apart"),
        layout: apart,
        ..of(placement, Job::beside_hog())
    });
    Ok(together.chain([overwritten]).chain(rebuilt).chain(apart).collect())
}

/// Who serves.
enum Served {
    Once(TargetProcess),
    Pool(Box<Pool>),
}

impl Served {
    fn start(contender: &Contender, place: &Path, plan: &Plan) -> Result<Self, BenchFailure> {
        let layout = contender.layout;
        if contender.placement == ONCE {
            let target = TargetProcess::start(Who::Card, &Backend::Memory(plan.bytes), place, layout.card)?;
            return Ok(Self::Once(target));
        }
        let pool = Pool::start(contender.placement, place, layout, contender.loses_server)?;
        Ok(Self::Pool(Box::new(pool)))
    }

    fn lose_server(
        &mut self,
        meanwhile: impl FnMut() -> Result<(), BenchFailure>,
    ) -> Result<(), BenchFailure> {
        match self {
            Self::Once(_) => Ok(()),
            Self::Pool(pool) => pool.lose_server(meanwhile),
        }
    }

    fn address(&self) -> SocketAddr {
        match self {
            Self::Once(target) => target.address(),
            Self::Pool(pool) => pool.address,
        }
    }

    fn card(&self) -> u32 {
        match self {
            Self::Once(target) => target.pid(),
            Self::Pool(pool) => pool.card(),
        }
    }

    fn spent_before(&self) -> Result<Spent, BenchFailure> {
        match self {
            Self::Once(_) => Ok(Spent::default()),
            Self::Pool(pool) => pool.spent_before(),
        }
    }

    fn spent_after(&self, before: &Spent) -> Result<Spent, BenchFailure> {
        match self {
            Self::Once(_) => Ok(Spent::default()),
            Self::Pool(pool) => pool.spent_after(before),
        }
    }

    /// A client, as soon as there is something to be used: a host may have to say first what it serves.
    fn client(&self, image: &Payload) -> Result<Client, BenchFailure> {
        let shape = Shape { connections: 1, digests: false };
        let deadline = Instant::now() + SERVED_WITHIN;
        loop {
            match Client::connect(self.address(), shape, DEPTH, image) {
                Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
                outcome => return outcome,
            }
        }
    }
}

/// What crosses the link, and every placement against the namespace that is kept once.
fn ratios(cases: &[Case]) -> BTreeMap<String, f64> {
    let mut ratios = BTreeMap::new();
    for case in cases {
        let Some((who, load)) = case.case.split_once('.') else { continue };
        for bytes in [LINK_BYTES, LINK_BYTES_ALL] {
            let Some(each) = case.extra.get(bytes) else { continue };
            let load = load.strip_suffix(&format!(".d{DEPTH}")).unwrap_or(load);
            let len = load.strip_prefix("write");
            // Of writes it is what is promised, and named after the length alone.
            let name = len.map_or_else(|| format!("{who}.{load}"), |len| format!("{who}.{len}"));
            ratios.insert(format!("{bytes}.{name}"), *each);
        }
        let once = format!("{ONCE}.{load}");
        if who != ONCE
            && let Some(once) = cases.iter().find(|case| case.case == once)
        {
            ratios.insert(format!("throughput_vs_once.{who}.{load}"), case.ops_per_s / once.ops_per_s);
        }
    }
    ratios.extend(against_host(cases));
    ratios
}

/// Placement `split` against `host`.
fn against_host(cases: &[Case]) -> Vec<(String, f64)> {
    let find = |name: String| cases.iter().find(|case| case.case == name);
    let mut ratios = Vec::new();
    for case in cases {
        let Some(load) = case.case.strip_prefix("split.") else { continue };
        let Some(host) = find(format!("host.{load}")) else { continue };
        let load = load.strip_suffix(&format!(".d{DEPTH}")).unwrap_or(load);
        ratios.push((format!("throughput_vs_host.{load}"), case.ops_per_s / host.ops_per_s));
        if let (Some(own), Some(other)) = (case.cpu.host_cpu_us, host.cpu.host_cpu_us) {
            ratios.push((format!("host_cpu_vs_host.{load}"), own / other));
        }
    }
    for (beside, name) in [(HOG, "p99_inflation"), (RIVAL, "p99_inflation_rival")] {
        let inflation = |who: &str| {
            let of =
                |beside: &str| find(format!("{who}.apart{beside}.write4k.d{DEPTH}")).map(|case| case.p99_us);
            Some(of(beside)? / of("")?)
        };
        if let (Some(split), Some(host)) = (inflation("split"), inflation("host")) {
            ratios.push((format!("{name}.split"), split));
            ratios.push((format!("{name}.host"), host));
            ratios.push((format!("{name}_split_vs_host"), split / host));
        }
    }
    ratios
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{CpuPerOperation, Latencies};

    #[test]
    fn ratios_are_named_as_they_are_expected() {
        let case = |name: &str, ops_per_s: f64, link: Option<f64>| {
            let cpu = CpuPerOperation::default();
            let mut case = Case { ops_per_s, ..Case::new(name, 1.0, &Latencies::new(), cpu) };
            case.extra.extend(link.map(|link| ("link_bytes_per_payload_byte".to_owned(), link)));
            case
        };
        let cases = [
            case("once.write4k.d16", 100.0, None),
            case("split.write4k.d16", 25.0, Some(0.03)),
            case("split.read64k.d16", 10.0, Some(0.002)),
        ];
        let expected = [
            ("link_bytes_per_payload_byte.split.4k", 0.03),
            ("link_bytes_per_payload_byte.split.read64k", 0.002),
            ("throughput_vs_once.split.write4k.d16", 0.25),
        ];
        let expected = expected.map(|(name, ratio)| (name.to_owned(), ratio)).into();
        assert_eq!(ratios(&cases), expected);
    }
}
