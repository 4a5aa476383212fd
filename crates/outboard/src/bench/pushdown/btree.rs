//! Lookups and ranges in a tree of BPF-KV's format.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ob_nvme::initiator::{Payload, block_on};
use ob_pushdown::btree::{BTree, BTreeOptions, BulkLoad, Pages, Shape, VALUE_LEN};
use ob_pushdown::client::{FileMap, MapExtent, MapSource};

use super::link::{Link, median};
use super::polled::{NAMESPACE, Polled, PolledPages};
use super::{Arrangement, DELAY, connect};
use crate::bench::nvme::target::Backend;
use crate::bench::turns::by_turns;
use crate::bench::{BenchFailure, Case};

/// Values of a range.
const RANGE: u64 = 100;
/// How long a map has one version in `moving`.
const MOVES_AFTER: Duration = Duration::from_millis(2);
/// Levels that are kept by the client in `cached`.
const CACHED: usize = 4;

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

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    Get,
    /// With the upper levels kept by the client.
    Cached,
    Range,
    /// A lookup, in a file whose map has another version every [`MOVES_AFTER`].
    Moving,
}

impl Question {
    fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Cached => "cached",
            Self::Range => "range",
            Self::Moving => "moving",
        }
    }
}

/// Who asks how.
struct Contender<'run> {
    name: String,
    question: Question,
    tree: Tree<'run>,
    link: &'run Link<'run>,
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

/// The same, as if it were written again and again.
struct Moving {
    map: FileMap,
    begun: Instant,
}

impl MapSource for Moving {
    fn current(&self) -> Option<Arc<FileMap>> {
        self.version().map(|version| Arc::new(FileMap { version, ..self.map.clone() }))
    }

    fn version(&self) -> Option<u64> {
        Some(1 + (self.begun.elapsed().as_micros() / MOVES_AFTER.as_micros()) as u64)
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

/// Measures all of it: in memory near and far, and the lookups alone on a disk.
pub(super) fn measure(arrangement: &Arrangement<'_>) -> Result<Vec<Case>, BenchFailure> {
    let plan = if arrangement.setting.quick { &QUICK } else { &FULL };
    let image = Payload::from(image(plan)?);
    let local = arrangement.place.join("tree");
    std::fs::write(&local, &*image)?;
    let contenders = [2 * 4 * 2 + 2, 2];
    arrangement.setting.progress.inc_length(plan.rounds * contenders.iter().sum::<u64>());
    let field = Field { plan, arrangement, local: &local, len: image.len() as u64 };
    let mut cases = Vec::new();
    {
        let target = arrangement.start(&Backend::Memory(field.len))?;
        for (delay, suffix) in [(Duration::ZERO, ".loopback"), (DELAY, ".delay")] {
            let polled = connect(&target, delay, &image, delay.is_zero())?;
            cases.extend(field.measure(&Link::begin(&polled, target.pid())?, suffix)?);
        }
    }
    let target = arrangement.start(&Backend::File(arrangement.place.join("tree-disk"), field.len))?;
    let polled = connect(&target, Duration::ZERO, &image, true)?;
    cases.extend(field.measure(&Link::begin(&polled, target.pid())?, ".disk.loopback")?);
    Ok(cases)
}

/// What is measured over each connection.
struct Field<'run> {
    plan: &'run Plan,
    arrangement: &'run Arrangement<'run>,
    /// The tree in a file of this machine.
    local: &'run Path,
    len: u64,
}

impl Field<'_> {
    fn measure(&self, link: &Link<'_>, suffix: &str) -> Result<Vec<Case>, BenchFailure> {
        let session = &link.session;
        let extents = vec![MapExtent { at: 0, offset: 0, len: self.len }];
        let map = FileMap { namespace: NAMESPACE, version: 1, identity: 1, len: self.len, extents };
        let moving: Arc<dyn MapSource> = Arc::new(Moving { map: map.clone(), begun: Instant::now() });
        let whole: Arc<dyn MapSource> = Arc::new(Whole(Arc::new(map)));
        let mut contenders = Vec::new();
        for question in [Question::Get, Question::Cached, Question::Range, Question::Moving] {
            let source = if question == Question::Moving { &moving } else { &whole };
            if suffix.starts_with(".disk") && question != Question::Get {
                continue;
            }
            let cached_levels = if question == Question::Cached { CACHED } else { 0 };
            for (who, only_ordinary) in [("reads", true), ("pushed", false)] {
                let options = BTreeOptions { cached_levels, only_ordinary };
                let file = session.mapped(Arc::clone(source));
                let tree = block_on(BTree::open(session, file, PolledPages(link.polled), options))?;
                let name = format!("btree_{}.{who}{suffix}", question.name());
                contenders.push(Contender { name, question, tree: Tree::Network(tree), link });
            }
            if suffix == ".loopback" && matches!(question, Question::Get | Question::Range) {
                let options = BTreeOptions { cached_levels, only_ordinary: true };
                let pages = LocalPages(File::open(self.local)?);
                let file = session.mapped(Arc::clone(source));
                let tree = block_on(BTree::open(session, file, pages, options))?;
                let name = format!("btree_{}.here", question.name());
                contenders.push(Contender { name, question, tree: Tree::Here(tree), link });
            }
        }
        // What is loaded, mapped and prepared once is not measured.
        contenders.iter().try_for_each(|contender| contender.ask(self.plan, 0))?;
        let rounds = by_turns(self.plan.rounds, &mut contenders, |contender, round| {
            self.arrangement.show(&contender.name, || contender.round(self.plan, round))
        })?;
        Ok(rounds.into_iter().filter_map(median).collect())
    }
}

impl Contender<'_> {
    fn round(&self, plan: &Plan, round: u64) -> Result<Case, BenchFailure> {
        let mut draw = round.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        self.link.round(&self.name, None, plan.time, || {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            self.ask(plan, (draw >> 24) % plan.keys)
        })
    }

    /// One question, whose answer is checked.
    fn ask(&self, plan: &Plan, number: u64) -> Result<(), BenchFailure> {
        let is_right = match self.question {
            Question::Get | Question::Cached | Question::Moving => {
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
