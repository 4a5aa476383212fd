//! What the card's files must be like, computed beside them from the requests and answers alone.
//!
//! ```text
//!   request sent ──▶ asked ──┐                  names     trees through time, requests on their way
//!                            ├─▶ Model ── files ┤ size      every order of what is on its way
//!   answer taken ──▶ answer ─┘    │             ├ bytes     what each byte may be
//!                                 │             └ segments  which it must have, which it may have
//!   card died ──▶ crashed ──▶ audit: what is there must have been possible at one moment since the last flush
//! ```
//!
//! Time is counted in ticks: every request sent and every answer taken is one.

mod answers;
mod audit;
mod bytes;
pub(crate) mod content;
mod names;
mod recent;
mod segments;
mod size;
mod tree;

use std::collections::{BTreeMap, BTreeSet};

use ob_core::NodeId;
use ob_format::files::{RUN_LEN, RUNS_MAX, map_record_len};
use ob_sim::Failure;
use ob_wire_link::files::{FileError, ROOT};

use self::bytes::{Bytes, Fate, Wrong};
use self::content::OpNumber;
use self::names::Names;
use self::recent::Recent;
use self::segments::Segments;
use self::size::{Change, Effect, Size};

pub(crate) use audit::{Observed, Seen};
pub(crate) use tree::{Key, NameOp, ROOT_KEY, Tree};
use tree::{NameChange, Verdict};

/// A moment, by the number of requests and answers before it.
pub(crate) type Tick = u64;
/// Not yet.
pub(crate) const NEVER: Tick = u64::MAX;

/// Requests that change one file's size and are on their way at once, at most: all their orders are followed.
const CHANGES_MAX: usize = 6;

/// How the card died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Crash {
    Process,
    Power,
}

/// What the model knows about the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) block_len: u64,
    pub(crate) segment_len: u64,
    pub(crate) segments: u64,
    /// Bytes of records in the log beyond which nothing may be added.
    pub(crate) log_live_max: u64,
}

/// A request on its way, as the model needs it to judge the answer.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) at: Tick,
    pub(crate) what: What,
}

/// What was asked for.
#[derive(Clone, Debug)]
pub(crate) enum What {
    Read {
        key: Key,
        offset: u64,
        len: u32,
    },
    Write {
        key: Key,
        op: OpNumber,
        offset: u64,
        len: u32,
        durable: bool,
        slot: Option<usize>,
    },
    Resize {
        key: Key,
        op: OpNumber,
        size: u64,
        slot: usize,
    },
    Zero {
        key: Key,
        op: OpNumber,
        range: (u64, u64),
    },
    Flush,
    /// `adds` if it may need room in the log.
    Name {
        number: u64,
        verdict: Verdict,
        adds: bool,
    },
    /// `STAT`, or `OPEN` without creating.
    Look {
        base: Key,
        path: Vec<u8>,
    },
    List {
        directory: Key,
        after: Vec<u8>,
        most: u32,
    },
    Space,
    /// Something that must be refused with one of these, and change nothing.
    Hostile {
        refusals: &'static [FileError],
    },
    /// Not the model's business.
    Nothing,
}

impl What {
    /// A word for it, and its numbers, for traces.
    pub(crate) fn in_short(&self) -> (&'static str, [u64; 4]) {
        match self {
            Self::Read { key, offset, len } => ("read", [key.0.into(), *offset, u64::from(*len), 0]),
            Self::Write { key, op, offset, len, durable, .. } => {
                let name = if *durable { "durable write" } else { "write" };
                (name, [key.0.into(), *offset, u64::from(*len), u64::from(*op)])
            }
            Self::Resize { key, op, size, .. } => ("resize", [key.0.into(), *size, 0, u64::from(*op)]),
            Self::Zero { key, op, range: (start, end) } => {
                ("zero", [key.0.into(), *start, end - start, u64::from(*op)])
            }
            Self::Flush => ("flush", [0; 4]),
            Self::Name { verdict, .. } => match verdict {
                Verdict::Change(NameChange::Insert { key, .. }) => ("create", [key.0.into(), 0, 0, 0]),
                Verdict::Change(NameChange::Remove { key }) => ("remove", [key.0.into(), 0, 0, 0]),
                Verdict::Change(NameChange::Move { key, replaced, .. }) => {
                    ("rename", [key.0.into(), replaced.map_or(0, |key| key.0.into()), 0, 0])
                }
                Verdict::Found(key) => ("create what is there", [key.0.into(), 0, 0, 0]),
                Verdict::Unchanged => ("rename to itself", [0; 4]),
                Verdict::Refused(error) => ("change names in vain", [u64::from(error.code()), 0, 0, 0]),
            },
            Self::Look { base, .. } => ("look", [base.0.into(), 0, 0, 0]),
            Self::List { directory, .. } => ("list", [directory.0.into(), 0, 0, 0]),
            Self::Space => ("space", [0; 4]),
            Self::Hostile { .. } => ("hostile request", [0; 4]),
            Self::Nothing => ("ask", [0; 4]),
        }
    }
}

/// An answer as it came.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: Result<(), FileError>,
    pub(crate) length: u32,
    pub(crate) value: u64,
    pub(crate) more: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

/// A file.
#[derive(Debug)]
struct File {
    size: Size,
    bytes: Bytes,
    segments: Segments,
    recent: Recent,
    /// When its removal was asked for and answered.
    removal: Option<(Tick, Tick)>,
    /// Requests at its data.
    in_flight: u32,
    /// A durable write was answered, so it must survive; its size is at least this while nothing made it smaller.
    durable: Option<u64>,
}

impl File {
    fn new(now: Tick) -> Self {
        Self {
            size: Size::new(0, now),
            bytes: Bytes::new(now),
            segments: Segments::default(),
            recent: Recent::default(),
            removal: None,
            in_flight: 0,
            durable: None,
        }
    }
}

/// Most bytes of records that hold the maps of so many files with so many segments: every run may have one segment, and
/// every part half its runs.
fn map_bytes(files: u64, segments: u64) -> u64 {
    let parts = files + segments.div_ceil(RUNS_MAX as u64 / 2);
    parts * map_record_len(1) as u64 + segments * RUN_LEN as u64
}

/// The model.
pub(crate) struct Model {
    shape: Shape,
    /// Whether the device may fail.
    pub(crate) errors: bool,
    tick: Tick,
    names: Names,
    files: BTreeMap<Key, File>,
    ids: BTreeMap<Key, NodeId>,
    keys: BTreeMap<NodeId, Key>,
    /// All that were ever made.
    directories: BTreeSet<Key>,
    next_key: u32,
    ops: Vec<(Key, u64, u64)>,
    /// When each request on its way was sent.
    outstanding: BTreeSet<Tick>,
    /// What was answered before this is durable.
    durable_before: Tick,
    /// Most segments that may have been in use or promised, and most bytes of records in the log, from when on.
    upper: Vec<(Tick, u64, u64)>,
    /// The card said that nothing can be changed any more.
    pub(crate) frozen: bool,
    /// The card died, and what is left was not looked at yet.
    crash: Option<Crash>,
    crashed_at: Tick,
}

impl Model {
    pub(crate) fn new(shape: Shape, errors: bool) -> Self {
        Self {
            shape,
            errors,
            tick: 0,
            names: Names::new(),
            files: BTreeMap::new(),
            ids: BTreeMap::from([(ROOT_KEY, ROOT)]),
            keys: BTreeMap::from([(ROOT, ROOT_KEY)]),
            directories: BTreeSet::new(),
            next_key: 1,
            ops: Vec::new(),
            outstanding: BTreeSet::new(),
            durable_before: 0,
            upper: vec![(0, 0, 0)],
            frozen: false,
            crash: None,
            crashed_at: 0,
        }
    }

    fn next_tick(&mut self) -> Tick {
        self.tick += 1;
        self.tick
    }

    /// The names with everything that was answered.
    pub(crate) fn tree(&self) -> &Tree {
        self.names.tree()
    }

    /// The id of a node, if it is known.
    pub(crate) fn id(&self, key: Key) -> Option<NodeId> {
        self.ids.get(&key).copied()
    }

    /// An id that was never given.
    pub(crate) fn unknown_id(&self) -> NodeId {
        NodeId(self.keys.keys().last().map_or(1 << 40, |last| last.0 + (1 << 40)))
    }

    /// All nodes that ever had an id, those that are gone too.
    pub(crate) fn known(&self) -> impl Iterator<Item = (Key, NodeId)> + '_ {
        self.ids.iter().map(|(key, id)| (*key, *id))
    }

    /// Files that are there, as far as was answered.
    pub(crate) fn live_files(&self) -> Vec<Key> {
        let is_file = |key: &Key| self.ids.contains_key(key) && self.names.tree().contains(*key);
        self.files.keys().copied().filter(is_file).collect()
    }

    /// Files whose data requests are at.
    pub(crate) fn busy_files(&self) -> impl Iterator<Item = Key> + '_ {
        let busy = self.files.iter().filter(|(_, file)| file.in_flight > 0 && file.removal.is_none());
        busy.map(|(key, _)| *key)
    }

    /// Whether a node, which may be gone, was a directory.
    pub(crate) fn was_directory(&self, key: Key) -> bool {
        key == ROOT_KEY || self.directories.contains(&key)
    }

    /// The largest size that a file may have now.
    pub(crate) fn largest_size(&self, key: Key) -> u64 {
        self.files.get(&key).map_or(0, |file| file.size.largest())
    }

    /// Requests about names on their way.
    pub(crate) fn names_pending(&self) -> usize {
        self.names.pending()
    }

    /// Whether one more write or resize of this file can be followed.
    pub(crate) fn may_change(&self, key: Key, resize: bool) -> bool {
        self.files.get(&key).is_none_or(|file| {
            file.size.changing() < CHANGES_MAX && !(resize && file.segments.resizing_since().is_some())
        })
    }

    /// Ranges of a file that were written, below its end.
    pub(crate) fn written_ranges(&self, key: Key, end: u64) -> Vec<(u64, u64)> {
        self.files.get(&key).map_or_else(Vec::new, |file| file.bytes.written_ranges(end))
    }

    fn new_op(&mut self, key: Key, offset: u64, len: u64) -> OpNumber {
        self.ops.push((key, offset, len));
        self.ops.len() as OpNumber
    }

    /// The number that the next write will have.
    pub(crate) fn next_op(&self) -> OpNumber {
        self.ops.len() as OpNumber + 1
    }

    fn sent(&mut self, what: What) -> Asked {
        let at = self.tick;
        self.outstanding.insert(at);
        Asked { at, what }
    }

    /// A read is sent.
    pub(crate) fn ask_read(&mut self, key: Key, offset: u64, len: u32) -> Asked {
        self.next_tick();
        if let Some(file) = self.files.get_mut(&key) {
            file.in_flight += 1;
        }
        self.sent(What::Read { key, offset, len })
    }

    /// A write is sent.
    pub(crate) fn ask_write(&mut self, key: Key, offset: u64, len: u32, durable: bool) -> Asked {
        let now = self.next_tick();
        let op = self.new_op(key, offset, u64::from(len));
        let segment_len = self.shape.segment_len;
        let end = offset + u64::from(len);
        let mut slot = None;
        if let Some(file) = self.files.get_mut(&key) {
            file.in_flight += 1;
            if len > 0 {
                slot = Some(file.size.asked(Change::Reach(end), now));
                file.bytes.asked(op, (offset, end), false, now);
                file.bytes.may_end(end);
                file.recent.asked(op, Change::Reach(end), now);
                file.segments.write_asked(op, offset / segment_len, (end - 1) / segment_len, now);
            }
        }
        self.count_segments();
        self.sent(What::Write { key, op, offset, len, durable, slot })
    }

    /// A resize is sent.
    pub(crate) fn ask_resize(&mut self, key: Key, size: u64) -> Asked {
        let now = self.next_tick();
        let op = self.new_op(key, size, 0);
        let mut slot = usize::MAX;
        if let Some(file) = self.files.get_mut(&key) {
            file.in_flight += 1;
            let idle = file.size.changing() > 0 || file.size.now().contains(&size);
            slot = file.size.asked(Change::Set(size), now);
            file.bytes.may_end(size);
            file.bytes.asked(op, (size, NEVER), true, now);
            file.recent.asked(op, Change::Set(size), now);
            file.segments.resize_asked(op, size.div_ceil(self.shape.segment_len), idle, now);
            file.durable = file.durable.map(|_| 0);
        }
        self.sent(What::Resize { key, op, size, slot })
    }

    /// A range is to become zeros.
    pub(crate) fn ask_zero(&mut self, key: Key, offset: u64, len: u32) -> Asked {
        let now = self.next_tick();
        let op = self.new_op(key, offset, u64::from(len));
        let range = (offset, offset.saturating_add(u64::from(len)));
        let segment_len = self.shape.segment_len;
        if let Some(file) = self.files.get_mut(&key) {
            file.in_flight += 1;
            if range.0 < range.1 {
                file.bytes.asked(op, range, true, now);
                file.size.now().into_iter().for_each(|size| file.bytes.may_end(size));
            }
            // The segment that the file ends in may go with a range that ends within it.
            file.segments.zero_asked(op, range.0.div_ceil(segment_len)..range.1.div_ceil(segment_len));
        }
        self.sent(What::Zero { key, op, range })
    }

    /// Anything that changes nothing is sent.
    pub(crate) fn ask(&mut self, what: What) -> Asked {
        self.next_tick();
        self.sent(what)
    }

    /// A request about names is to be sent, if nothing is on its way that it could depend on.
    pub(crate) fn ask_name(&mut self, op: &NameOp) -> Option<Asked> {
        let (verdict, locks) = self.names.judge(op, Key(self.next_key))?;
        let now = self.next_tick();
        if let Verdict::Change(change) = &verdict {
            if matches!(change, NameChange::Insert { .. }) {
                self.next_key += 1;
            }
            if let Some(file) = change.removes().and_then(|key| self.files.get_mut(&key)) {
                file.removal = Some((now, NEVER));
                file.durable = None;
            }
        }
        let number = self.names.asked(verdict.clone(), locks, now);
        let adds = !matches!(op, NameOp::Remove { .. });
        Some(self.sent(What::Name { number, verdict, adds }))
    }

    /// Whether a request about names can be sent: nothing is on its way that it could depend on.
    pub(crate) fn may_ask_name(&self, op: &NameOp) -> bool {
        !self.frozen && self.names.judge(op, Key(self.next_key)).is_some()
    }

    /// Notes how many segments may be in use now.
    fn count_segments(&mut self) {
        let is_gone = |file: &File| file.removal.is_some_and(|(_, answered)| answered < NEVER);
        let segments = self.files.values().map(|file| file.segments.upper(is_gone(file))).sum();
        let records = self.names.record_bytes() + map_bytes(self.files.len() as u64, segments);
        if self.upper.last().is_none_or(|(_, last, bytes)| (*last, *bytes) != (segments, records)) {
            self.upper.push((self.tick, segments, records));
        }
    }

    /// Whether there may have been no room, in the data or in the log, at some moment since.
    fn may_be_full_since(&self, tick: Tick, data: bool) -> bool {
        let index = self.upper.partition_point(|(from, ..)| *from <= tick).saturating_sub(1);
        self.upper[index..].iter().any(|(_, segments, records)| {
            (data && *segments > self.shape.segments) || *records > self.shape.log_live_max
        })
    }

    /// Everything that was answered before a flush that was sent at `asked` is durable.
    fn flushed(&mut self, asked: Tick) {
        self.durable_before = self.durable_before.max(asked);
        for file in self.files.values_mut() {
            file.bytes.flushed(asked);
            file.segments.flushed(asked);
        }
        self.prune();
    }

    /// Forgets what can neither be seen by a request on its way nor come back after a loss of power.
    fn prune(&mut self) {
        let oldest = self.outstanding.first().copied().unwrap_or(self.tick);
        let horizon = oldest.min(self.durable_before);
        for file in self.files.values_mut() {
            file.bytes.prune(oldest);
            file.size.prune(horizon);
            file.recent.prune(self.durable_before);
        }
        self.names.prune(horizon);
        let index = self.upper.partition_point(|(from, ..)| *from <= oldest).saturating_sub(1);
        self.upper.drain(..index);
        let gone =
            |file: &File| file.in_flight == 0 && file.removal.is_some_and(|(_, answered)| answered < horizon);
        self.files.retain(|_, file| !gone(file));
    }

    /// The card is back after it died; how, is the worst of what happened until it was mounted.
    pub(crate) fn crashed(&mut self, crash: Crash) {
        let now = self.next_tick();
        for file in self.files.values_mut() {
            file.bytes.crashed(crash == Crash::Power, now);
            file.segments.crashed(crash == Crash::Power);
            file.in_flight = 0;
        }
        self.outstanding.clear();
        self.frozen = false;
        if self.crash.is_none() {
            self.crashed_at = now;
        }
        // Mounting made durable what the first crash left, so a second one changes nothing.
        self.crash = self.crash.or(Some(crash));
    }

    /// A request whose group was closed will not be answered, and is over by now: whether it happened is not known.
    pub(crate) fn orphaned(&mut self, asked: &Asked) {
        let now = self.next_tick();
        self.outstanding.remove(&asked.at);
        match asked.what {
            What::Read { key, .. } => {
                if let Some(file) = self.files.get_mut(&key) {
                    file.in_flight -= 1;
                }
            }
            What::Write { key, op, offset, len, slot, .. } => {
                let Some(file) = self.files.get_mut(&key) else { return };
                file.in_flight -= 1;
                if let Some(slot) = slot {
                    file.size.answered(slot, Effect::Unknown, now);
                    file.bytes.answered(op, (offset, offset + u64::from(len)), Fate::Uncertain, now);
                    file.bytes.left_up_to(op, file.size.since(asked.at));
                    file.segments.write_answered(op, false, true);
                }
            }
            What::Resize { key, op, size, slot } => {
                let Some(file) = self.files.get_mut(&key) else { return };
                file.in_flight -= 1;
                file.size.answered(slot, Effect::Unknown, now);
                file.bytes.answered(op, (size, NEVER), Fate::Uncertain, now);
                file.segments.resize_uncertain(op, now);
            }
            What::Zero { key, op, range } => {
                let Some(file) = self.files.get_mut(&key) else { return };
                file.in_flight -= 1;
                file.bytes.answered(op, range, Fate::Uncertain, now);
                file.segments.zero_answered(op, now);
            }
            _ => {}
        }
        self.count_segments();
    }

    /// In words, what is wrong with bytes that a read found.
    fn describe(&self, key: Key, wrong: &Wrong) -> Failure {
        let whose = |op: OpNumber| match self.ops.get((op as usize).wrapping_sub(1)) {
            Some((key, offset, len)) => format!("op {op} (file {}, {len} bytes at {offset})", key.0),
            None if op == 0 => "zeros".to_owned(),
            None => format!("no write ({op})"),
        };
        let skip = (wrong.offset.next_multiple_of(8) - wrong.offset) as usize;
        let words = wrong.found.get(skip..).unwrap_or_default().as_chunks::<8>().0;
        let told = words.iter().map(|word| u64::from_le_bytes(*word)).find(|word| *word != 0);
        let found = match told {
            Some(word) => {
                let (op, place) = content::origin(word);
                format!("bytes of {}, from place {}", whose(op), u64::from(place) * 8)
            }
            None if wrong.found.len() < 16 => format!("{:?}", wrong.found),
            None => "zeros".to_owned(),
        };
        let allowed: Vec<String> = wrong.allowed.iter().map(|op| whose(*op)).collect();
        Failure::new(format!(
            "{}: file {} (id {:?}) at byte {}, {} bytes: found {found}; allowed: {}",
            wrong.what,
            key.0,
            self.id(key),
            wrong.offset,
            wrong.found.len(),
            allowed.join(", ")
        ))
    }
}
