//! Reading the log: from a superblock to the tree and the free space, with everything that is wrong on the way.
//!
//! ```text
//!   sections ──▶ frames that continue the log ──▶ Replay::apply ──▶ Replay::finish ──▶ Tree, Space, findings
//! ```
//!
//! Mounting and checking are the same reader; mounting refuses what checking tells.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use ob_core::{DeviceError, DeviceOp, NodeId, NodeKind, Token};
use ob_format::files::{Frame, Geometry, NodeRecord, ROOT, Record, Superblock};
use ob_memory::{Pool, Slice};

use crate::drive::{self, Drive};
use crate::log::{LogState, Object};
use crate::map::{MapError, Part, Parts, Stretch};
use crate::space::{NotFree, Space};
use crate::tree::{Body, ById, File, Node, Tree};

/// Sections that are read ahead.
const READ_AHEAD: usize = 4;

/// Something that is wrong with what a device holds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Finding {
    /// A frame is missing that was promised to last.
    #[error(
        "the log is damaged: frame {sequence}, expected at byte {offset}, was durable and is not there any more"
    )]
    LogDamaged {
        /// Its sequence.
        sequence: u64,
        /// Where it should be on the device.
        offset: u64,
    },
    /// A frame with a right checksum holds what cannot be.
    #[error("frame {sequence}, at byte {offset}, holds a record that cannot be: {what}")]
    BadRecord {
        /// The frame.
        sequence: u64,
        /// Where it is on the device.
        offset: u64,
        /// What is wrong.
        what: String,
    },
    /// A node has an id that was never given.
    #[error("{node} has an id that was never given (the next one is {next})")]
    IdNotGiven {
        /// The node.
        node: NodeId,
        /// The first id that was never given.
        next: u64,
    },
    /// A node is in no directory.
    #[error("{node}, `{name}`, says that it is in {parent}, which is no directory")]
    Orphan {
        /// The node.
        node: NodeId,
        /// Its name.
        name: String,
        /// Where it says it is.
        parent: NodeId,
    },
    /// Two nodes of one directory have the same name.
    #[error("two nodes in {directory} have the name `{name}`")]
    TwoOfOneName {
        /// The directory.
        directory: NodeId,
        /// The name.
        name: String,
    },
    /// Directories that contain each other.
    #[error("{node}, `{name}`, cannot be reached from the root")]
    Unreachable {
        /// The node.
        node: NodeId,
        /// Its name.
        name: String,
    },
    /// A map without a file.
    #[error("{node} has a map but is no file")]
    MapWithoutFile {
        /// The node.
        node: NodeId,
    },
    /// A map that cannot be.
    #[error("{node}: {error}")]
    BadMap {
        /// The file.
        node: NodeId,
        /// What is wrong.
        error: MapError,
    },
    /// A log that nobody could clean, and so nobody could write to. No card leaves one.
    #[error(
        "the log cannot be cleaned: {used} of its {sections} sections are in use, with {live} bytes that count"
    )]
    LogFull {
        /// Sections in use.
        used: u32,
        /// Sections that there are.
        sections: u32,
        /// Bytes of records that count.
        live: u64,
    },
    /// A segment that is not there, or belongs to another file too.
    #[error("{node} has segment {segment}, which another file has too, or which does not exist")]
    SegmentTaken {
        /// The file.
        node: NodeId,
        /// The segment.
        segment: u32,
    },
}

/// What the records of a log say so far.
#[derive(Default)]
pub(crate) struct Replay {
    nodes: ById<Node>,
    maps: ById<Parts>,
    pub(crate) frames: u64,
    pub(crate) records: u64,
}

/// Called with sections read, and sections there are at most.
pub(crate) type Progress<'a> = &'a mut dyn FnMut(u64, u64);

impl Replay {
    fn apply(&mut self, record: &Record<'_>, sequence: u64) -> Option<Object> {
        self.records += 1;
        match record {
            Record::Node(node) => {
                self.nodes.insert(node.id, restored(node, sequence));
                Some(Object::Node(node.id))
            }
            Record::Map { file, first, runs } => {
                let runs = runs.iter().collect();
                self.maps.entry(*file).or_default().replay(Part { first: *first, runs, home: sequence });
                Some(Object::Part(*file, *first))
            }
            Record::Remove { id } => {
                self.nodes.remove(id);
                self.maps.remove(id);
                None
            }
            Record::Cut { file, first } => {
                if let Some(parts) = self.maps.get_mut(file) {
                    parts.replay_cut(*first);
                }
                None
            }
        }
    }

    /// Builds the tree and the free space, and tells what is wrong with them.
    pub(crate) fn finish(
        mut self,
        geometry: &Geometry,
        next_node: u64,
        findings: &mut Vec<Finding>,
    ) -> (Tree, Space) {
        let mut space = Space::new(geometry.data_segments);
        let mut children: ById<Vec<(Arc<[u8]>, NodeId)>> = HashMap::default();
        self.nodes.retain(|id, node| {
            if id.0 <= ROOT.0 || id.0 >= next_node {
                findings.push(Finding::IdNotGiven { node: *id, next: next_node });
                return false;
            }
            if let Body::File(file) = &mut node.body {
                if let Some(parts) = self.maps.remove(id) {
                    file.map = parts.into();
                }
                occupy(*id, file, geometry, &mut space, findings);
            }
            children.entry(node.parent).or_default().push((Arc::clone(&node.name), *id));
            true
        });
        let mut tree = Tree::of(self.nodes);
        findings.extend(self.maps.into_keys().map(|node| Finding::MapWithoutFile { node }));
        for (directory, mut entries) in children {
            entries.sort_unstable();
            for pair in entries.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
                findings.push(Finding::TwoOfOneName { directory, name: readable(&pair[0].0) });
            }
            let first = entries.first().cloned();
            if !tree.adopt(directory, entries)
                && let Some((name, node)) = first
                && tree.node(directory).is_none_or(|found| found.kind() == NodeKind::File)
            {
                findings.push(Finding::Orphan { node, name: readable(&name), parent: directory });
            }
        }
        find_unreachable(&tree, findings);
        (tree, space)
    }
}

fn restored(node: &NodeRecord<'_>, sequence: u64) -> Node {
    let body = match node.kind {
        NodeKind::Directory => Body::Directory(std::collections::BTreeMap::new()),
        // Nobody knows what a write that was never answered left beyond the end.
        NodeKind::File => {
            Body::File(File { size: node.size, visible: node.size, garbage: true, ..File::default() })
        }
    };
    Node { parent: node.parent, name: Arc::from(node.name), home: sequence, body }
}

fn occupy(id: NodeId, file: &mut File, geometry: &Geometry, space: &mut Space, findings: &mut Vec<Finding>) {
    if let Err(error) = file.map.settle() {
        findings.push(Finding::BadMap { node: id, error });
    }
    for run in file.map.runs() {
        if let Err(NotFree(segment)) = space.occupy(Stretch { start: run.physical, count: run.count }) {
            findings.push(Finding::SegmentTaken { node: id, segment });
        }
    }
    // Without remains there is nothing to tidy up before the file grows.
    file.garbage = has_remains(file, geometry.segment_len);
}

/// Whether the file has segments, or parts of one, beyond its size.
pub(crate) fn has_remains(file: &File, segment_len: u64) -> bool {
    let end = file.map.runs().last().map_or(0, |run| u64::from(run.logical) + u64::from(run.count));
    end * segment_len > file.size
}

/// Directories that contain each other hang in the air: from none of them one gets up to the root. Every node's parent
/// is known to be a directory, or is reported already, so looking at directories is enough.
fn find_unreachable(tree: &Tree, findings: &mut Vec<Finding>) {
    let mut reached: ById<bool> = HashMap::from_iter([(ROOT, true)]);
    let reported: ById<()> = findings
        .iter()
        .filter_map(|finding| match finding {
            Finding::Orphan { node, .. } => Some((*node, ())),
            _ => None,
        })
        .collect();
    let directories = tree.iter().filter(|(_, node)| node.kind() == NodeKind::Directory);
    for (directory, node) in directories {
        let (mut at, mut way) = (directory, Vec::new());
        let found = loop {
            if let Some(found) = reached.get(&at) {
                break *found;
            }
            // On this way already: until shown otherwise it leads nowhere.
            reached.insert(at, false);
            way.push(at);
            match tree.node(at) {
                Some(node) => at = node.parent,
                None => break false,
            }
        };
        for passed in way {
            reached.insert(passed, found);
        }
        if !found && !reported.contains_key(&directory) {
            findings.push(Finding::Unreachable { node: directory, name: readable(&node.name) });
        }
    }
}

fn readable(name: &[u8]) -> String {
    String::from_utf8_lossy(name).escape_debug().to_string()
}

/// Reads the whole log into `replay`. What is wrong with the log itself ends the reading and is in `findings`.
pub(crate) fn read_log(
    drive: &mut dyn Drive,
    superblock: &Superblock,
    replay: &mut Replay,
    findings: &mut Vec<Finding>,
    progress: Progress<'_>,
) -> Result<LogState, DeviceError> {
    let mut ahead = Ahead::new(&superblock.geometry, superblock.tail.section);
    let state = read_sections(drive, superblock, replay, findings, progress, &mut ahead);
    // Nothing of this stays at the device, however it ended.
    ahead.finish(drive);
    state
}

fn read_sections(
    drive: &mut dyn Drive,
    superblock: &Superblock,
    replay: &mut Replay,
    findings: &mut Vec<Finding>,
    progress: Progress<'_>,
    ahead: &mut Ahead,
) -> Result<LogState, DeviceError> {
    let geometry = &superblock.geometry;
    let mut state = LogState::new(superblock.tail);
    loop {
        let section = state.head;
        let bytes = ahead.next(drive)?;
        progress(u64::from(state.used()), u64::from(geometry.log_sections));
        while let Some(at) = state.head_at {
            let offset = geometry.section_offset(section) + u64::from(at);
            let frame = Frame::decode(&bytes[at as usize..], geometry.frame_max()).ok();
            let stamp = frame.as_ref().map(|frame| frame.stamp);
            let continues = stamp.is_some_and(|stamp| {
                stamp.format == superblock.format_tag()
                    && stamp.sequence == state.sequence
                    && stamp.previous == state.previous
                    && stamp.epoch >= state.epoch
                    && [stamp.epoch, stamp.next_node.0].iter().all(|count| *count < u64::MAX / 2)
            });
            let (Some(frame), true) = (frame, continues) else {
                let missing =
                    Missing { superblock, sequence: state.sequence, epoch: state.epoch, offset, section };
                findings.extend(missing.search(&bytes[at as usize..], ahead, drive)?);
                return Ok(state);
            };
            state.epoch = frame.stamp.epoch;
            state.next_node = state.next_node.max(frame.stamp.next_node.0);
            replay.frames += 1;
            for record in frame.records() {
                match record.map_err(|error| error.to_string()).and_then(|record| legal(record, geometry)) {
                    Ok(record) => {
                        let object = replay.apply(&record, frame.stamp.sequence);
                        if let Some(section) = state.sections.back_mut() {
                            section.objects.extend(object);
                        }
                    }
                    Err(what) => {
                        let sequence = frame.stamp.sequence;
                        findings.push(Finding::BadRecord { sequence, offset, what });
                        return Ok(state);
                    }
                }
            }
            state.passed(geometry, frame.length as usize, frame.checksum);
        }
        if state.make_place(geometry).is_none() {
            return Ok(state);
        }
    }
}

/// A record that can be on a device of this geometry.
fn legal<'a>(record: Record<'a>, geometry: &Geometry) -> Result<Record<'a>, String> {
    match &record {
        Record::Node(node) if node.size > geometry.file_len_max() => {
            Err(format!("{} has a size of {} bytes, beyond the largest file", node.id, node.size))
        }
        _ => Ok(record),
    }
}

/// The frame that should come next and does not.
struct Missing<'a> {
    superblock: &'a Superblock,
    sequence: u64,
    epoch: u64,
    offset: u64,
    section: u32,
}

/// What a part of the log says about a frame that is missing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trace {
    /// No frame there was written later.
    Nothing,
    /// Some were, but none of them knew it to be durable.
    Later,
    /// It was durable.
    Durable,
}

impl Missing<'_> {
    /// Looks for a later frame of this log that knew the missing one to be durable: in the rest of its section, in the
    /// next one, and on as long as there are later frames at all.
    fn search(
        &self,
        rest: &[u8],
        ahead: &mut Ahead,
        drive: &mut dyn Drive,
    ) -> Result<Option<Finding>, DeviceError> {
        let geometry = &self.superblock.geometry;
        let finding = Finding::LogDamaged { sequence: self.sequence, offset: self.offset };
        let (mut section, mut trace) = (self.section, self.look(rest));
        while trace != Trace::Durable {
            section = geometry.next_section(section);
            if section == self.superblock.tail.section {
                return Ok(None);
            }
            trace = self.look(&ahead.next(drive)?);
            if trace == Trace::Nothing {
                return Ok(None);
            }
        }
        Ok(Some(finding))
    }

    fn look(&self, bytes: &[u8]) -> Trace {
        let geometry = &self.superblock.geometry;
        let starts = (0..bytes.len()).step_by(geometry.block_len as usize);
        let frames = starts.filter_map(|at| Frame::decode(&bytes[at..], geometry.frame_max()).ok());
        let later = frames.map(|frame| frame.stamp).filter(|stamp| {
            stamp.format == self.superblock.format_tag()
                && stamp.sequence >= self.sequence
                && stamp.epoch >= self.epoch
        });
        let mut trace = Trace::Nothing;
        for stamp in later {
            if stamp.durable >= self.sequence {
                return Trace::Durable;
            }
            trace = Trace::Later;
        }
        trace
    }
}

/// Reads sections in order, some of them ahead.
struct Ahead {
    geometry: Geometry,
    pool: Pool,
    /// The next section to submit.
    next: u32,
    /// Submitted and not yet handed out, in order.
    sections: VecDeque<(u32, Option<Result<Slice, DeviceError>>)>,
}

impl Ahead {
    fn new(geometry: &Geometry, first: u32) -> Self {
        let pool = Pool::new(geometry.section_len as usize, READ_AHEAD + 1);
        Self { geometry: *geometry, pool, next: first, sections: VecDeque::new() }
    }

    fn next(&mut self, drive: &mut dyn Drive) -> Result<Slice, DeviceError> {
        while self.sections.len() < READ_AHEAD
            && let Some(mut whole) = self.pool.take()
        {
            let offset = self.geometry.section_offset(self.next);
            let into = whole.split_to(self.geometry.section_len as usize);
            let mut op = DeviceOp::Read { offset, into };
            while let Some(back) = drive::submit(drive, Token(u64::from(self.next)), op)? {
                op = back;
                // A queue that is full stays so until its completions are taken.
                if self.sections.iter().any(|(_, result)| result.is_none()) {
                    self.take(drive::complete(drive));
                } else {
                    drive.wait();
                }
            }
            self.sections.push_back((self.next, None));
            self.next = self.geometry.next_section(self.next);
        }
        loop {
            match self.sections.pop_front() {
                None => return Err(DeviceError::Io),
                Some((_, Some(result))) => return result,
                Some(waiting) => self.sections.push_front(waiting),
            }
            self.take(drive::complete(drive));
        }
    }

    fn take(&mut self, completion: ob_core::DeviceCompletion) {
        let section = completion.token.0 as u32;
        let waits =
            |entry: &&mut (u32, Option<Result<Slice, DeviceError>>)| entry.0 == section && entry.1.is_none();
        let Some(entry) = self.sections.iter_mut().find(waits) else { return };
        let DeviceOp::Read { into, .. } = completion.op else { return };
        entry.1 = Some(completion.result.map(|()| into));
    }

    /// Takes back what is still under way.
    fn finish(&mut self, drive: &mut dyn Drive) {
        while self.sections.iter().any(|(_, result)| result.is_none()) {
            self.take(drive::complete(drive));
        }
    }
}
