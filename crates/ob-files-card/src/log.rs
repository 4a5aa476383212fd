//! The metadata log as it is written: frames that fill, sections that are cleaned.
//!
//! ```text
//!        tail                                    head
//!   ──────┬───────────┬───────────┬───────────────┬──────────────
//!         │ emptied   │ being     │ …             │ frame, frame, │ free
//!         │ (durable? │ cleaned   │               │ in flight     │
//!   ──────┴───────────┴───────────┴───────────────┴──────────────
//!                                            written ▲      ▲ open frames: what is pushed now
//! ```
//!
//! Pure bookkeeping: the engine writes the frames, flushes, writes superblocks, and tells the log. An object's *home* is
//! the sequence of the frame that holds its last record; a section knows the range of its sequences, so whether a
//! record still counts is one comparison.

use std::collections::VecDeque;

use ob_core::NodeId;
use ob_format::files::{
    CUT_LEN, FRAME_HEADER_LEN, FrameBuilder, FrameStamp, Geometry, LogStart, NodeRecord, REMOVE_LEN, Run,
    map_record_len, node_record_len,
};
use ob_memory::{Pool, Slice};

/// Sections that news must leave free, so that cleaning always has room to write to.
const SECTIONS_KEPT: u32 = 3;
/// Below so many free sections, frames are filled with cleaning to the brim.
const SECTIONS_LOW: u32 = 6;
/// Bytes of cleaning in a frame when there is no hurry.
const CLEANING_LEN: usize = 16 << 10;

/// Frames that are kept to be filled again.
const SPARE_MAX: usize = 4;

/// What a record is about, where an earlier record of the same is replaced by a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Object {
    Node(NodeId),
    Part(NodeId, u32),
}

/// One section of the circle.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    pub(crate) first_sequence: u64,
    pub(crate) last_sequence: u64,
    /// The checksum of the frame before its first.
    pub(crate) previous: u32,
    /// What its records are about. Some of them may have newer records elsewhere.
    pub(crate) objects: Vec<Object>,
}

impl Section {
    /// One without a frame, whose first will have this sequence.
    fn new(sequence: u64, previous: u32) -> Self {
        Self {
            first_sequence: sequence,
            last_sequence: sequence.saturating_sub(1),
            previous,
            objects: Vec::new(),
        }
    }
}

/// Where a log that was read ends, and what is in it.
#[derive(Clone, Debug)]
pub(crate) struct LogState {
    /// Those from the tail to the head, both included: how many there are on the device is for the device to say.
    pub(crate) sections: VecDeque<Section>,
    pub(crate) tail: u32,
    pub(crate) head: u32,
    /// Where in the head's section the next frame goes; none if it goes to the next section.
    pub(crate) head_at: Option<u32>,
    /// Of the next frame.
    pub(crate) sequence: u64,
    pub(crate) previous: u32,
    /// Of the last frame.
    pub(crate) epoch: u64,
    pub(crate) next_node: u64,
}

impl LogState {
    /// The log of a superblock, before a frame is read.
    pub(crate) fn new(tail: LogStart) -> Self {
        Self {
            sections: VecDeque::from([Section::new(tail.sequence, tail.previous)]),
            tail: tail.section,
            head: tail.section,
            head_at: Some(0),
            sequence: tail.sequence,
            previous: tail.previous,
            epoch: 0,
            next_node: ob_format::files::ROOT.0 + 1,
        }
    }

    /// Whether there is room to clean it, with so many bytes of records that count: a section to write to, and sections that
    /// come free in the end.
    pub(crate) fn can_be_cleaned(&self, geometry: &Geometry, live_bytes: u64) -> bool {
        let most =
            u64::from(geometry.log_sections.saturating_sub(SECTIONS_KEPT + 1)) * section_payload(geometry);
        self.used() < geometry.log_sections && live_bytes <= most
    }

    /// How many sections are in use.
    pub(crate) fn used(&self) -> u32 {
        self.sections.len() as u32
    }

    /// Moves the head to a place where a frame fits, and says where in its section that is; none if the circle is full.
    pub(crate) fn make_place(&mut self, geometry: &Geometry) -> Option<u32> {
        if let Some(at) = self.head_at {
            return Some(at);
        }
        let next = geometry.next_section(self.head);
        if next == self.tail {
            return None;
        }
        self.sections.push_back(Section::new(self.sequence, self.previous));
        self.head = next;
        self.head_at = Some(0);
        self.head_at
    }

    /// Where on the device the next frame goes; nowhere if the circle is full.
    pub(crate) fn next_frame_at(&self, geometry: &Geometry) -> Option<u64> {
        match self.head_at {
            Some(at) => Some(geometry.section_offset(self.head) + u64::from(at)),
            None => Some(geometry.next_section(self.head))
                .filter(|next| *next != self.tail)
                .map(|next| geometry.section_offset(next)),
        }
    }

    /// A frame of `length` bytes stands at the head.
    pub(crate) fn passed(&mut self, geometry: &Geometry, length: usize, checksum: u32) {
        let at = self.head_at.unwrap_or(0);
        if let Some(section) = self.sections.back_mut() {
            section.last_sequence = self.sequence;
        }
        self.head_at = geometry.next_in_section(at + geometry.padded(length) as u32);
        self.sequence += 1;
        self.previous = checksum;
    }
}

/// What a section holds at least, when its frames are full.
fn section_payload(geometry: &Geometry) -> u64 {
    u64::from(geometry.section_len) / 4 * 3
}

/// What comes next in cleaning.
pub(crate) enum Cleaning {
    /// An object that had a record in the section with these sequences.
    Object(Object, std::ops::RangeInclusive<u64>),
    /// A section has nothing left that counts.
    Emptied,
    /// Only the section that is being written is left.
    AtHead,
}

struct OpenFrame {
    builder: FrameBuilder,
    objects: Vec<Object>,
}

/// A frame on its way to the device.
pub(crate) struct SealedFrame {
    pub(crate) sequence: u64,
    pub(crate) offset: u64,
    pub(crate) bytes: Slice,
}

/// The log of a mounted device.
pub(crate) struct Log {
    geometry: Geometry,
    format: u64,
    epoch: u64,
    state: LogState,
    /// Frames that are filled; the first one is sealed next, with `state.sequence`.
    open: VecDeque<OpenFrame>,
    spare: Vec<OpenFrame>,
    pool: Pool,
    in_flight: bool,
    written: u64,
    durable: u64,
    /// Sections at the tail that hold nothing that counts any more: the frame after which that is so.
    emptied: VecDeque<u64>,
    moving_tail: bool,
    /// Bytes kept for changes that are under way.
    promised: u64,
}

impl Log {
    pub(crate) fn new(geometry: Geometry, format: u64, epoch: u64, state: LogState) -> Self {
        // Mounting flushed what it read.
        let written = state.sequence - 1;
        Self {
            geometry,
            format,
            epoch,
            state,
            open: VecDeque::new(),
            spare: Vec::new(),
            pool: Pool::new(geometry.frame_max(), 1),
            in_flight: false,
            written,
            durable: written,
            emptied: VecDeque::new(),
            moving_tail: false,
            promised: 0,
        }
    }

    /// A new id, never given before.
    pub(crate) fn new_node(&mut self) -> NodeId {
        let id = self.state.next_node;
        self.state.next_node += 1;
        NodeId(id)
    }

    /// The last frame that is written or will be: what is in memory now is on the device when that one is written.
    pub(crate) fn pending(&self) -> u64 {
        self.state.sequence - 1 + self.open.len() as u64
    }

    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    pub(crate) fn durable(&self) -> u64 {
        self.durable
    }

    fn free_sections(&self) -> u32 {
        self.geometry.log_sections - self.state.used()
    }

    /// Whether there is room for news, or cleaning must come first.
    pub(crate) fn has_room(&self) -> bool {
        self.has_room_for(0)
    }

    /// The same for what makes the log shorter in the end, which may use a part of what is kept for cleaning.
    pub(crate) fn has_room_to_remove(&self) -> bool {
        self.has_room() || (self.free_sections() >= SECTIONS_KEPT && self.open.len() <= 1)
    }

    /// Frames that are open and bytes that are promised will need places too: only what is left beyond them, and beyond
    /// what cleaning needs, is there to be given.
    fn has_room_for(&self, len: u64) -> bool {
        let open = self.open.len() as u64 * self.geometry.frame_max() as u64;
        let kept = u64::from(SECTIONS_KEPT) * u64::from(self.geometry.section_len);
        u64::from(self.free_sections()) * self.section_payload()
            >= (kept / 4 * 3) + open + self.promised + len
    }

    /// Keeps room for a change that will be logged later, with a frame of its own if it comes to the worst. Gives back
    /// how much was kept; none if there is not so much, and cleaning must come first.
    pub(crate) fn promise(&mut self, records_len: usize) -> Option<u64> {
        // The worst is never all that bad: more than half a section is not kept for anybody, or a large write could not
        // begin in a small log.
        let records_len = records_len.min((self.section_payload() / 2) as usize);
        let len = self.geometry.padded(FRAME_HEADER_LEN + records_len) as u64;
        self.has_room_for(len).then(|| {
            self.promised += len;
            len
        })
    }

    /// Takes a promise back, because the change is logged now or never will be.
    pub(crate) fn forget_promise(&mut self, len: u64) {
        self.promised -= len;
    }

    /// The most bytes of records that may be alive.
    pub(crate) fn live_max(&self) -> u64 {
        u64::from((self.geometry.log_sections - SECTIONS_KEPT) / 2) * self.section_payload()
    }

    pub(crate) fn len(&self) -> u64 {
        u64::from(self.geometry.log_sections) * u64::from(self.geometry.section_len)
    }

    fn section_payload(&self) -> u64 {
        section_payload(&self.geometry)
    }

    /// Makes sure that records of so many bytes go into one frame, and says which.
    pub(crate) fn reserve(&mut self, len: usize) -> u64 {
        debug_assert!(len + FRAME_HEADER_LEN <= self.geometry.frame_max());
        if self.open.back().is_none_or(|frame| frame.builder.room() < len) {
            let frame = self.spare.pop().unwrap_or_else(|| OpenFrame {
                builder: FrameBuilder::new(self.geometry.frame_max()),
                objects: Vec::new(),
            });
            self.open.push_back(frame);
        }
        self.pending()
    }

    fn frame(&mut self, len: usize) -> Option<&mut OpenFrame> {
        self.reserve(len);
        self.open.back_mut()
    }

    pub(crate) fn push_node(&mut self, node: &NodeRecord<'_>) -> u64 {
        if let Some(frame) = self.frame(node_record_len(node.name.len())) {
            frame.builder.push_node(node);
            frame.objects.push(Object::Node(node.id));
        }
        self.pending()
    }

    pub(crate) fn push_map(&mut self, file: NodeId, first: u32, runs: &[Run]) -> u64 {
        if let Some(frame) = self.frame(map_record_len(runs.len())) {
            frame.builder.push_map(file, first, runs);
            frame.objects.push(Object::Part(file, first));
        }
        self.pending()
    }

    pub(crate) fn push_remove(&mut self, id: NodeId) -> u64 {
        if let Some(frame) = self.frame(REMOVE_LEN) {
            frame.builder.push_remove(id);
        }
        self.pending()
    }

    pub(crate) fn push_cut(&mut self, file: NodeId, first: u32) -> u64 {
        if let Some(frame) = self.frame(CUT_LEN) {
            frame.builder.push_cut(file, first);
        }
        self.pending()
    }

    /// Whether a frame waits to be written and none is on its way.
    pub(crate) fn is_frame_due(&self) -> bool {
        !self.in_flight && !self.open.is_empty()
    }

    /// Seals the next frame, if there is one, none is on its way, and there is a place for it.
    pub(crate) fn seal(&mut self) -> Option<SealedFrame> {
        if !self.is_frame_due() {
            return None;
        }
        let at = self.state.make_place(&self.geometry)?;
        let mut bytes = self.pool.take()?;
        let mut frame = self.open.pop_front()?;
        let sequence = self.state.sequence;
        let checksum = frame.builder.seal(&FrameStamp {
            sequence,
            epoch: self.epoch,
            durable: self.durable,
            next_node: NodeId(self.state.next_node),
            previous: self.state.previous,
            format: self.format,
        });
        let length = frame.builder.bytes().len();
        let mut bytes = bytes.split_to(self.geometry.padded(length));
        bytes[..length].copy_from_slice(frame.builder.bytes());
        bytes[length..].fill(0);
        let offset = self.geometry.section_offset(self.state.head) + u64::from(at);
        if let Some(section) = self.state.sections.back_mut() {
            section.objects.append(&mut frame.objects);
        }
        self.state.passed(&self.geometry, length, checksum);
        frame.builder.clear();
        if self.spare.len() < SPARE_MAX {
            self.spare.push(frame);
        }
        self.in_flight = true;
        Some(SealedFrame { sequence, offset, bytes })
    }

    /// The frame on its way has arrived.
    pub(crate) fn frame_written(&mut self, sequence: u64) {
        self.in_flight = false;
        self.written = sequence;
    }

    /// A flush made all frames up to this one durable.
    pub(crate) fn frames_durable(&mut self, sequence: u64) {
        self.durable = self.durable.max(sequence);
    }

    /// Bytes of cleaning that should go into the frame that is filled now; 0 if none.
    pub(crate) fn cleaning_due(&self, live_bytes: u64) -> usize {
        let emptied = self.emptied.len() as u32;
        let left = self.state.used() - emptied;
        let needed = live_bytes.div_ceil(self.section_payload()) as u32;
        let target = (2 * needed + 4).min(self.geometry.log_sections.saturating_sub(SECTIONS_KEPT + 1));
        // Where room is short, a section is given back before the next one is cleaned: cleaning needs room itself.
        let ahead = emptied > 0 && self.free_sections() < SECTIONS_LOW;
        if left <= target.max(1) || self.open.len() > 1 || ahead {
            return 0;
        }
        let frame_max = self.geometry.frame_max() - FRAME_HEADER_LEN;
        let filled = self.open.back().map_or(0, |frame| frame.builder.len().saturating_sub(FRAME_HEADER_LEN));
        let easy = CLEANING_LEN.max(2 * filled).min(frame_max);
        let wanted = if self.free_sections() < SECTIONS_LOW { frame_max } else { easy };
        wanted.saturating_sub(filled)
    }

    /// Whether a frame is on its way.
    pub(crate) fn is_busy(&self) -> bool {
        self.in_flight
    }

    /// The next object of the section that is cleaned.
    pub(crate) fn next_to_clean(&mut self) -> Cleaning {
        let cleaned = self.emptied.len();
        if cleaned + 1 >= self.state.sections.len() {
            return Cleaning::AtHead;
        }
        let section = &mut self.state.sections[cleaned];
        if let Some(object) = section.objects.pop() {
            return Cleaning::Object(object, section.first_sequence..=section.last_sequence);
        }
        section.objects = Vec::new();
        self.emptied.push_back(self.pending());
        Cleaning::Emptied
    }

    /// Whether sections could be given back if a flush came.
    pub(crate) fn wants_flush(&self) -> bool {
        self.emptied.front().is_some_and(|sequence| *sequence > self.durable && *sequence <= self.written)
    }

    /// Where the tail should be moved now, if it should; the caller writes a superblock and calls
    /// [`Log::tail_moved`].
    pub(crate) fn tail_due(&mut self) -> Option<LogStart> {
        let ready = self.emptied.iter().take_while(|sequence| **sequence <= self.durable).count();
        if ready == 0 || self.moving_tail {
            return None;
        }
        self.moving_tail = true;
        let section = (0..ready).fold(self.state.tail, |section, _| self.geometry.next_section(section));
        let start = &self.state.sections[ready];
        Some(LogStart { section, sequence: start.first_sequence, previous: start.previous })
    }

    /// A superblock with this tail is durable.
    pub(crate) fn tail_moved(&mut self, tail: LogStart) {
        self.moving_tail = false;
        while self.state.tail != tail.section {
            self.state.tail = self.geometry.next_section(self.state.tail);
            self.state.sections.pop_front();
            self.emptied.pop_front();
        }
    }

    /// Bytes of the sections that a mount would read.
    pub(crate) fn used_len(&self) -> u64 {
        u64::from(self.state.used()) * u64::from(self.geometry.section_len)
    }
}

#[cfg(test)]
mod tests {
    use ob_format::files::FormatOptions;

    use super::*;

    #[test]
    fn memory_is_for_sections_in_use_however_many_a_device_says_there_are() {
        let options = FormatOptions {
            segment_len: Some(1 << 30),
            section_len: Some(32 << 10),
            log_len: Some(u64::from(u32::MAX) * (32 << 10)),
        };
        let geometry = Geometry::plan(512, 1 << 60, &options).unwrap();
        assert_eq!(geometry.log_sections, u32::MAX);
        let tail = LogStart { section: u32::MAX - 1, sequence: 1, previous: 0 };
        let mut state = LogState::new(tail);
        state.head_at = None;
        assert_eq!(state.make_place(&geometry), Some(0));
        assert_eq!((state.head, state.used(), state.sections.len()), (0, 2, 2), "the log is a circle");
    }
}
