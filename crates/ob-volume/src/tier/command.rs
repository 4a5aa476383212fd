//! Commands: what a header asks for, and the next plan that it needs.

use std::collections::VecDeque;
use std::ops::Range;

use ob_core::{BlockLen, Instant, Lba, SegmentId, SegmentName, Sequence, Units, VolumeId};
use ob_format::volume::metadata::{Class, Volume};
use ob_format::volume::{EntryState, IndexEntry, TrimRange};
use ob_split::wire::{Handle, HeaderEntry, Slot};
use ob_wire_nvme::command::{Fuse, IoOpcode};
use ob_wire_nvme::io::BlockCommand;
use ob_wire_nvme::{NamespaceId, Status, SubmissionEntry};
use zerocopy::FromBytes;

use super::chunks::{Pinned, TierChunk};
use super::core::{Line, TierCore};
use super::given::Placement;
use super::index::{Index, Stretch};
use super::opening::OpenFor;
use super::plant::{Bug, is_planted};
use super::segments::Own;
use super::store::RETRY;
use super::{PortNumber, TierAction, TierError};
use crate::effort::{Latency, effort};
use crate::plans::{HOST_HANDLES, Part, PostedPlan, Run, piece_blocks, pieces};

/// Blocks of a command that one plan is about, and where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// Of the command.
    pub(super) part: Part,
    pub(super) segment: SegmentName,
    /// The first, within the segment.
    pub(super) lba: u32,
}

impl Span {
    pub(super) const fn blocks(&self) -> Range<u32> {
        self.lba..self.lba + self.part.blocks
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Read,
    Write,
    Trim,
    Flush,
}

/// The plan of a command that is under way.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Posted {
    Nothing,
    /// Records of a chunk, by its place among the segment's. Pieces that had no place are written anew.
    Write {
        span: Span,
        chunk: usize,
        sequence: Sequence,
        piece: u32,
        worst: Worst,
        /// Whether a piece had its place, and nobody knows who has it.
        is_unresolved: bool,
        is_last: bool,
    },
    Trim {
        span: Span,
        chunk: usize,
        sequence: Sequence,
        is_last: bool,
    },
    Read {
        part: Part,
        /// How many members its only record was asked of, if it has one, and these are all that there are.
        sole: Option<u32>,
        runs: Vec<Run>,
        is_last: bool,
    },
    /// The payload of a write goes to the host.
    Take,
    /// A piece of it is compressed by the card.
    Press {
        part: Part,
    },
    Answer,
}

/// What has become of a write's pieces, the worst of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Worst {
    Good,
    /// All is written, and nobody was answered.
    Withheld,
    Full,
    GivenUp,
    Internal,
    Broken,
}

/// A command, from its header to its answer.
#[derive(Debug)]
pub(super) struct Command {
    /// By which port it came, and as what that knows it.
    pub(super) port: PortNumber,
    pub(super) message: Handle,
    /// When it is answered, if it still waits for something then.
    pub(super) held_until: Instant,
    pub(super) what: What,
    pub(super) volume: VolumeId,
    pub(super) start: u64,
    pub(super) blocks: u32,
    pub(super) block_len: BlockLen,
    /// How long its initiator would wait.
    pub(super) latency: Latency,
    /// Blocks that are not done, in their order.
    pub(super) todo: VecDeque<Part>,
    /// The first thing that went wrong.
    pub(super) status: Status,
    pub(super) posted: Posted,
    /// Where its payload is, if the host has taken it.
    pub(super) taken: Option<u16>,
    /// Pieces of it that the card was asked to compress, and how many bytes each has now.
    pub(super) pressed: Vec<(Part, u32)>,
    /// Slots that the plan names.
    pub(super) pins: Vec<Slot>,
    /// Whether it stands in the way of others, or behind them.
    pub(super) is_change: bool,
    /// Whether it waits for others that it overlaps.
    pub(super) is_behind: bool,
    /// Its records of which nobody knows whether they count.
    pub(super) unresolved: u32,
    /// Whether it is read one record at a time, to know of which nobody has it.
    pub(super) is_careful: bool,
    /// How often it was read in vain.
    pub(super) tries: u8,
    /// What was read in vain the last time.
    pub(super) tried: Vec<Stretch>,
}

impl Command {
    pub(super) fn fail(&mut self, status: Status) {
        if self.status.is_success() {
            self.status = status;
        }
    }

    /// Whether these blocks are all of it.
    const fn is_all(&self, part: &Part) -> bool {
        part.first == 0 && part.blocks == self.blocks
    }
}

/// What a header asks for.
struct Asked {
    what: What,
    volume: VolumeId,
    start: u64,
    blocks: u32,
    block_len: BlockLen,
    latency: Latency,
}

/// Bytes of the card's memory that a plan reads into, about: as long as one waits for more, all that its port is to do waits behind it.
const READ_MEMORY_MAX: u64 = 2 << 20;

const INVALID_OPCODE: Status = Status::INVALID_OPCODE.with_do_not_retry();
const OUT_OF_RANGE: Status = Status::LBA_OUT_OF_RANGE.with_do_not_retry();
pub(super) const NO_NAMESPACE: Status = Status::INVALID_NAMESPACE.with_do_not_retry();

impl TierCore {
    /// A command has come.
    pub(super) fn header(
        &mut self,
        now: Instant,
        port: PortNumber,
        header: &HeaderEntry,
    ) -> Result<(), TierError> {
        let handle = header.descriptor().handle;
        let is_early = |(_, of, early): &(Instant, PortNumber, HeaderEntry)| {
            (*of, early.descriptor().handle) == (port, handle)
        };
        if handle.0 >= HOST_HANDLES
            || self.known_as(port, handle).is_some()
            || self.early.iter().any(is_early)
        {
            return Err(TierError::Handle(handle));
        }
        if self.commands_of(port) >= self.config.commands_max {
            return Err(TierError::Commands(self.config.commands_max));
        }
        self.counts.commands += 1;
        if self.is_listed {
            self.admit(now, port, header);
        } else {
            self.early.push_back((now + self.config.hold, port, *header));
        }
        Ok(())
    }

    /// It is known which volumes there are, or that none will be.
    pub(super) fn take_early(&mut self) {
        while let Some((_, port, header)) = self.early.pop_front() {
            self.admit(self.now, port, &header);
        }
    }

    /// A command begins.
    pub(super) fn admit(&mut self, now: Instant, port: PortNumber, header: &HeaderEntry) {
        let descriptor = header.descriptor();
        let handle = self.free_handle();
        let asked = match SubmissionEntry::ref_from_bytes(header.bytes()) {
            Ok(entry) => self.asked(entry, descriptor.length),
            Err(_) => Err(Status::INTERNAL_ERROR),
        };
        let (asked, status) = match asked {
            // I8: only the life that has sent something of it may execute it again.
            Ok(asked) if descriptor.was_sent && asked.what != What::Read && !is_planted(Bug::ParkedAgain) => {
                (asked, Status::NAMESPACE_NOT_READY)
            }
            Ok(asked) => (asked, Status::SUCCESS),
            Err(status) => (Asked::nothing(), status),
        };
        let is_change = matches!(asked.what, What::Write | What::Trim) && status.is_success();
        let blocks = asked.start..asked.start + u64::from(asked.blocks);
        let may_begin = !is_change || self.overlaps.entry(asked.volume).or_default().come(handle, blocks);
        let held_until = now + self.config.hold;
        let whole = Part { first: 0, blocks: asked.blocks };
        let command = Command {
            port,
            message: descriptor.handle,
            held_until,
            what: asked.what,
            volume: asked.volume,
            start: asked.start,
            blocks: asked.blocks,
            block_len: asked.block_len,
            latency: asked.latency,
            todo: (asked.blocks > 0).then_some(whole).into_iter().collect(),
            status,
            posted: Posted::Nothing,
            taken: None,
            pressed: Vec::new(),
            pins: Vec::new(),
            is_change,
            is_behind: !may_begin,
            unresolved: 0,
            is_careful: false,
            tries: 0,
            tried: Vec::new(),
        };
        self.commands.insert(handle.0, command);
        if let Some(port) = self.ports.get_mut(&port) {
            port.messages.insert(descriptor.handle.0, handle);
        }
        self.holds.insert((held_until, handle.0));
        if may_begin {
            self.ready.push_back(handle);
        }
    }

    fn asked(&self, entry: &SubmissionEntry, length: u32) -> Result<Asked, Status> {
        if entry.fuse() != Ok(Fuse::None) {
            return Err(INVALID_OPCODE);
        }
        let what = match IoOpcode::try_from(entry.opcode) {
            Ok(IoOpcode::Read) => What::Read,
            Ok(IoOpcode::Write) => What::Write,
            Ok(IoOpcode::WriteZeroes) => What::Trim,
            Ok(IoOpcode::Flush) if entry.namespace() == NamespaceId::ALL => {
                return Ok(Asked { what: What::Flush, ..Asked::nothing() });
            }
            Ok(IoOpcode::Flush) => What::Flush,
            // Its ranges are a hint, and stay on the card, which makes a Write Zeroes of each that it wants to be taken.
            Ok(IoOpcode::DatasetManagement) => What::Flush,
            _ => return Err(INVALID_OPCODE),
        };
        let volume = self.namespaces.get(&entry.namespace().0).copied().ok_or(self.no_namespace())?;
        let served = self.volumes.get(&volume).map(|served| served.volume).ok_or(NO_NAMESPACE)?;
        let block_len = served.block_len;
        if what == What::Flush {
            return Ok(Asked { what, volume, block_len, ..Asked::nothing() });
        }
        let command = BlockCommand::parse(entry)?;
        if command.end() > served.size / u64::from(block_len.bytes()) {
            return Err(OUT_OF_RANGE);
        }
        // The card has checked what came against what the command says.
        if what == What::Write
            && u64::from(length) != u64::from(command.blocks) * u64::from(block_len.bytes())
        {
            return Err(Status::INTERNAL_ERROR);
        }
        let latency = Latency::of(entry);
        Ok(Asked { what, volume, start: command.start, blocks: command.blocks, block_len, latency })
    }

    /// As long as volumes are not known, none is missing.
    const fn no_namespace(&self) -> Status {
        if self.is_listed && self.trouble().is_none() { NO_NAMESPACE } else { Status::NAMESPACE_NOT_READY }
    }

    /// The next thing that a command needs is done, or it waits in some line.
    pub(super) fn advance(&mut self, now: Instant, handle: Handle) {
        let Some(command) = self.commands.get(&handle.0) else { return };
        if command.posted != Posted::Nothing {
            return;
        }
        let (what, status, part) = (command.what, command.status, command.todo.front().copied());
        let command_volume = command.volume;
        if !status.is_success() {
            return self.answer(handle, status, false);
        }
        if command.is_behind {
            return;
        }
        if command.unresolved > 0 {
            // C3: nothing of it is done anew before it is known what of it is there.
            return;
        }
        if let Err(status) = self.status_of_volume(command_volume) {
            return self.refuse(handle, status);
        }
        // L2, of everything: unmapped blocks and flushes too.
        if !self.store.is_leased(now) && !self.goes_on_unleased(what, part, handle) {
            return self.line_up(Line::Unleased, handle);
        }
        match (what, part) {
            (What::Read, None) => self.answer(handle, Status::SUCCESS, true),
            (_, None) => self.answer(handle, Status::SUCCESS, false),
            (What::Read, Some(part)) => self.read(now, handle, part),
            (What::Write, Some(part)) => self.write(now, handle, part),
            (What::Trim, Some(part)) => self.trim(now, handle, part),
            (What::Flush, Some(_)) => self.answer(handle, Status::INTERNAL_ERROR, false),
        }
    }

    /// Whether a bug has it looked up though nobody may.
    fn goes_on_unleased(&self, what: What, part: Option<Part>, handle: Handle) -> bool {
        let is_unmapped = |part: Part| {
            let span = self.commands.get(&handle.0).and_then(|command| self.span(command, part));
            let segment = span.and_then(|span| self.segments.get(&span.segment).zip(Some(span)));
            segment.is_some_and(|(segment, span)| segment.index.is_unmapped(&span.blocks()))
        };
        is_planted(Bug::LeaseUnchecked)
            || (is_planted(Bug::UnmappedUnleased)
                && match what {
                    What::Read => part.is_some_and(is_unmapped),
                    What::Flush => true,
                    _ => false,
                })
    }

    /// The blocks at the beginning of a part that are in one segment.
    fn span(&self, command: &Command, part: Part) -> Option<Span> {
        let segment_blocks = self.volumes.get(&command.volume)?.volume.segment_blocks();
        let block = command.start + u64::from(part.first);
        let lba = block % segment_blocks;
        let blocks = (segment_blocks - lba).min(u64::from(part.blocks)) as u32;
        let segment =
            SegmentName { volume: command.volume, segment: SegmentId((block / segment_blocks) as u32) };
        Some(Span { part: Part { first: part.first, blocks }, segment, lba: lba as u32 })
    }

    /// The span that a change begins with, if its segment is this tier's and may be written to; else the command waits, or has failed.
    fn span_to_change(&mut self, handle: Handle, part: Part) -> Option<Span> {
        let span = self.span(self.commands.get(&handle.0)?, part)?;
        match self.own(span.segment, handle) {
            Own::Wait => return None,
            Own::No(status) => {
                self.refuse(handle, status);
                return None;
            }
            Own::Yes => {}
        }
        if self.segments.get(&span.segment).is_none_or(|segment| segment.is_exhausted) {
            self.refuse(handle, Status::NAMESPACE_NOT_READY);
            return None;
        }
        Some(span)
    }

    pub(super) fn refuse(&mut self, handle: Handle, status: Status) {
        if let Some(command) = self.commands.get_mut(&handle.0) {
            command.fail(status);
            self.ready.push_back(handle);
        }
    }

    /// Memory for a segment's index, all of it, when it is first written to.
    pub(super) fn reserve_index(&mut self, name: SegmentName) -> bool {
        let memory = self.index_memory_of(name);
        // What was taken must have room to be replayed by the next life, one segment at a time.
        let beside = self.replay_memory_of(name).max(self.replay_most);
        let Some(segment) = self.segments.get_mut(&name) else { return false };
        // A volume that has grown has more of its last segment.
        let more = memory.saturating_sub(segment.reserved.unwrap_or(0));
        if segment.reserved.is_some() && more == 0 {
            return true;
        }
        let has_room = self.index_reserved + more + beside <= self.config.index_memory;
        if has_room {
            segment.reserved = Some(segment.reserved.unwrap_or(0) + more);
            (self.index_reserved, self.replay_most) = (self.index_reserved + more, beside);
        } else {
            self.counts.index_full += 1;
        }
        has_room
    }

    /// How much memory the index of a segment may need.
    pub(super) fn index_memory_of(&self, name: SegmentName) -> u64 {
        let volume = self.volumes.get(&name.volume).map(|served| served.volume);
        volume.map_or(0, |volume| Index::memory_of(blocks_of(&volume, name)))
    }

    /// A segment's index is not needed.
    pub(super) fn give_index_back(&mut self, name: SegmentName) {
        let reserved = self.segments.get_mut(&name).and_then(|segment| segment.reserved.take());
        self.index_reserved = self.index_reserved.saturating_sub(reserved.unwrap_or(0));
    }

    /// The chunk that a command's port appends to, with room for so many units at least. If there is none, one is made, and the command
    /// waits.
    fn chunk_with_room(
        &mut self,
        now: Instant,
        name: SegmentName,
        units: u32,
        handle: Handle,
    ) -> Option<usize> {
        self.close_if_memberless(now, name);
        let port = self.commands.get(&handle.0)?.port;
        let segment = self.segments.get_mut(&name)?;
        let open = segment.open.get(&port).copied();
        let has_room = |place: &usize| segment.chunks.get(*place).is_some_and(|chunk| chunk.room() >= units);
        if let Some(place) = open.filter(has_room) {
            return Some(place);
        }
        if let Some(place) = open {
            self.close_chunk(now, name, place);
        }
        self.line_up(Line::Segment(name), handle);
        self.open_chunk(now, name, OpenFor::Client(port));
        None
    }

    /// The same for a trim: when there is no space for clients, the chunk that maintenance fills takes it (G6).
    fn chunk_for_trim(&mut self, now: Instant, name: SegmentName, handle: Handle) -> Option<usize> {
        let port = self.commands.get(&handle.0)?.port;
        let segment = self.segments.get(&name)?;
        if segment.open.contains_key(&port) || !segment.space.is_full {
            return self.chunk_with_room(now, name, 1, handle);
        }
        // It waits before one is looked for: if there is no room for any, those that wait hear of it.
        self.line_up(Line::Segment(name), handle);
        let place = self.maintenance_chunk(now, name, port, 1)?;
        if let Some(segment) = self.segments.get_mut(&name) {
            segment.waiting.pop_back_if(|last| *last == handle);
        }
        Some(place)
    }

    /// A slot of a chunk for a plan of a command.
    fn pin(&mut self, handle: Handle, name: SegmentName, chunk: usize) -> Pinned {
        let Some(port) = self.commands.get(&handle.0).map(|command| command.port) else {
            return Pinned::NoMember;
        };
        let pinned = self.pin_chunk(port, name, chunk);
        if let (Pinned::Yes(slot), Some(command)) = (pinned, self.commands.get_mut(&handle.0)) {
            command.pins.push(slot);
        }
        pinned
    }

    /// A slot of a chunk that is appended to. Without all of its members it can be no more.
    fn pin_to_change(&mut self, handle: Handle, span: &Span, chunk: usize) -> Option<Slot> {
        match self.pin(handle, span.segment, chunk) {
            Pinned::Yes(slot) => Some(slot),
            Pinned::NoSlot => {
                self.line_up(Line::Slotless, handle);
                None
            }
            Pinned::NoMember => {
                self.line_up(Line::Memberless, handle);
                None
            }
        }
    }

    fn write(&mut self, now: Instant, handle: Handle, part: Part) {
        let Some(mut span) = self.span_to_change(handle, part) else { return };
        if !self.reserve_index(span.segment) {
            if self.give_idle_back(span.segment) {
                return self.again_at(now + RETRY, handle);
            }
            return self.refuse(handle, Status::NAMESPACE_NOT_READY);
        }
        if !self.has_payload(handle) || !self.is_pressed(handle, &span) {
            return;
        }
        let Some(block_len) = self.commands.get(&handle.0).map(|command| command.block_len) else { return };
        let first = record_units(span.part.blocks.min(piece_blocks(block_len)), block_len);
        let Some(chunk) = self.chunk_with_room(now, span.segment, first, handle) else { return };
        let Some(slot) = self.pin_to_change(handle, &span, chunk) else { return };
        let Some(segment) = self.segments.get_mut(&span.segment) else { return };
        let room = segment.chunks.get(chunk).map_or(0, TierChunk::room);
        // As many pieces as have room.
        let (blocks, units) = fitting(span.part.blocks, block_len, room);
        span.part.blocks = blocks;
        let Some(sequence) = segment.begin_change(chunk, units, pieces(blocks, block_len)) else {
            self.unpin(handle);
            return self.refuse(handle, Status::NAMESPACE_NOT_READY);
        };
        self.end_epoch_in_time(now, span.segment);
        let Some(command) = self.commands.get_mut(&handle.0) else { return };
        take_blocks(&mut command.todo, blocks);
        let is_all = command.is_all(&span.part);
        let is_last = is_all;
        let class = self.volumes.get(&command.volume).map_or(Class::Plain, |served| served.volume.class);
        let load = self.ports.get(&command.port).map_or(0, |port| port.load);
        let effort = effort(class, command.latency, load);
        let (worst, is_unresolved, part) = (Worst::Good, false, (!is_all).then_some(span.part));
        command.posted = Posted::Write { span, chunk, sequence, piece: 0, worst, is_unresolved, is_last };
        match command.taken {
            Some(taken) if self.config.placement == Placement::Accelerator => {
                self.post_given((handle, taken), (slot, sequence), &span, part);
            }
            Some(taken) => self.post_pressed((handle, taken), (slot, effort, sequence), &span, part),
            None => self.post(handle, PostedPlan::write(handle, slot, effort, sequence, part)),
        }
    }

    fn trim(&mut self, now: Instant, handle: Handle, part: Part) {
        let Some(span) = self.span_to_change(handle, part) else { return };
        let Some(segment) = self.segments.get_mut(&span.segment) else { return };
        if segment.index.is_unmapped(&span.blocks()) {
            // Nothing is there, and no earlier change is under way, nor is there one of which nobody knows whether it counts: those keep
            // their blocks. The log says so already.
            if let Some(command) = self.commands.get_mut(&handle.0) {
                take_blocks(&mut command.todo, span.part.blocks);
            }
            return self.ready.push_back(handle);
        }
        if is_planted(Bug::TrimNotLogged) {
            segment.clear(span.blocks());
            return self.ready.push_back(handle);
        }
        let Some(chunk) = self.chunk_for_trim(now, span.segment, handle) else { return };
        let Some(slot) = self.pin_to_change(handle, &span, chunk) else { return };
        let Some(segment) = self.segments.get_mut(&span.segment) else { return };
        let Some(sequence) = segment.begin_change(chunk, 1, 1) else {
            self.unpin(handle);
            return self.refuse(handle, Status::NAMESPACE_NOT_READY);
        };
        self.end_epoch_in_time(now, span.segment);
        let Some(command) = self.commands.get_mut(&handle.0) else { return };
        take_blocks(&mut command.todo, span.part.blocks);
        let is_last = command.is_all(&span.part);
        let range = TrimRange { lba: Lba(span.lba), blocks: span.part.blocks };
        let plan = PostedPlan::trim(handle, slot, sequence, !is_last, &[range]);
        command.posted = Posted::Trim { span, chunk, sequence, is_last };
        self.post(handle, plan);
    }

    /// Looks up where blocks are, as far as their segments are this tier's.
    fn read(&mut self, now: Instant, handle: Handle, mut part: Part) {
        let mut rest = part;
        while rest.blocks > 0 {
            let Some(span) = self.commands.get(&handle.0).and_then(|command| self.span(command, rest)) else {
                return;
            };
            match self.own(span.segment, handle) {
                Own::Yes => rest = behind(rest, span.part.blocks),
                // As far as its segments are there: two tiers that each have one of them would both wait.
                Own::Wait if rest.first > part.first => {
                    part.blocks = rest.first - part.first;
                    break;
                }
                Own::Wait => return,
                Own::No(status) => return self.refuse(handle, status),
            }
        }
        let is_careful = self.commands.get(&handle.0).is_some_and(|command| command.is_careful);
        let runs_max = if is_careful { 1 } else { self.port_of(handle).map_or(1, |port| port.runs_max) };
        let (mut runs, mut memory) = (Vec::new(), 0);
        let mut rest = part;
        while rest.blocks > 0 && runs.len() < runs_max && memory < READ_MEMORY_MAX {
            let Some((span, stretch)) = self.look_up(handle, rest) else { return };
            if stretch.entry == IndexEntry::LOST {
                self.unpin(handle);
                return self.refuse(handle, Status::UNRECOVERED_READ_ERROR.with_do_not_retry());
            }
            match self.run_of(now, handle, &span, &stretch) {
                Ok(run) => {
                    memory += run.memory();
                    runs.push(run);
                }
                // As far as there are slots.
                Err(Pinned::NoSlot) if !runs.is_empty() => break,
                Err(Pinned::NoSlot) => return self.line_up(Line::Slotless, handle),
                // Until one of those that have it is there again, or the command has waited as long as it may.
                Err(_) => {
                    self.unpin(handle);
                    return self.line_up(Line::Memberless, handle);
                }
            }
            rest = behind(rest, stretch.blocks);
        }
        let Some(command) = self.commands.get_mut(&handle.0) else { return };
        let part = Part { first: part.first, blocks: part.blocks - rest.blocks };
        take_blocks(&mut command.todo, part.blocks);
        let is_last = command.is_all(&part);
        let plan = PostedPlan::read(handle, None, (!is_last).then_some(part.first), &runs);
        let sole = match (runs.as_slice(), command.pins.as_slice()) {
            ([_], [slot]) => {
                let port = self.ports.get(&command.port);
                port.and_then(|port| port.slots.all_members(*slot)).map(|members| members as u32)
            }
            _ => None,
        };
        command.posted = Posted::Read { part, sole, runs, is_last };
        self.post(handle, plan);
    }

    /// Where the first blocks of a part lie.
    pub(super) fn look_up(&self, handle: Handle, part: Part) -> Option<(Span, Stretch)> {
        let span = self.span(self.commands.get(&handle.0)?, part)?;
        let stretch = self.segments.get(&span.segment)?.index.stretch(&span.blocks());
        Some((span, stretch))
    }

    fn run_of(
        &mut self,
        now: Instant,
        handle: Handle,
        span: &Span,
        stretch: &Stretch,
    ) -> Result<Run, Pinned> {
        // A chunk without all of its members is not written to, but it can be read.
        self.close_if_memberless(now, span.segment);
        let blocks = stretch.blocks;
        match stretch.entry.state() {
            EntryState::Unmapped | EntryState::Lost => Ok(Run::Zeros { blocks }),
            EntryState::Mapped { offset: place, units, slot: chunk } => {
                match self.pin(handle, span.segment, chunk as usize) {
                    Pinned::Yes(slot) => Ok(Run::Record { slot, place, units, lba: stretch.lba, blocks }),
                    other => Err(other),
                }
            }
        }
    }

    /// The plan of a command is over, or is not posted: its slots are free.
    pub(super) fn unpin(&mut self, handle: Handle) {
        let Some(command) = self.commands.get_mut(&handle.0) else { return };
        let pins = command.pins.drain(..);
        if let Some(port) = self.ports.get_mut(&command.port) {
            pins.for_each(|slot| port.slots.unpin(slot));
        }
        self.ready.extend(self.slotless.drain(..));
    }

    /// A command is answered by a plan that does nothing else.
    pub(super) fn answer(&mut self, handle: Handle, status: Status, has_bytes: bool) {
        let Some(command) = self.commands.get_mut(&handle.0) else { return };
        command.posted = Posted::Answer;
        self.counts.errors += u64::from(!status.is_success());
        // Nothing of it is under way, so nothing more of it will happen.
        self.change_over(handle);
        self.post(handle, Ok(PostedPlan::answer(handle, status, has_bytes)));
    }

    pub(super) fn post(&mut self, handle: Handle, plan: Result<PostedPlan, crate::plans::ArgumentsError>) {
        let Some((number, message)) =
            self.commands.get(&handle.0).map(|command| (command.port, command.message))
        else {
            return;
        };
        let Some(port) = self.ports.get_mut(&number) else { return };
        // Plans are made of what was checked. One that cannot be would leave its command without an answer.
        let plan = plan.unwrap_or_else(|_| {
            self.counts.mistakes += 1;
            PostedPlan::answer(handle, Status::INTERNAL_ERROR, false)
        });
        port.plans += 1;
        let plan = PostedPlan { handle: message, ..plan };
        self.actions.push_back(TierAction::Post { port: number, plan });
    }
}

impl Asked {
    /// A command that is about no blocks.
    const fn nothing() -> Self {
        let (volume, block_len, latency) = (VolumeId(0), BlockLen::Large, Latency::None);
        Self { what: What::Flush, volume, start: 0, blocks: 0, block_len, latency }
    }
}

/// Blocks that a segment of a volume has: its last one may have fewer.
pub(super) fn blocks_of(volume: &Volume, name: SegmentName) -> u64 {
    let all = volume.size / u64::from(volume.block_len.bytes());
    let before = volume.segment_blocks() * u64::from(name.segment.0);
    volume.segment_blocks().min(all.saturating_sub(before))
}

/// Units of a record of so many blocks that are stored as they are.
pub(super) const fn record_units(blocks: u32, block_len: BlockLen) -> u32 {
    1 + Units::of_bytes(blocks * block_len.bytes()).0
}

/// How many of these blocks have room, in whole pieces, and the units that they take. The first piece has.
fn fitting(blocks: u32, block_len: BlockLen, room: u32) -> (u32, u32) {
    let (mut fit, mut units) = (0, 0);
    while fit < blocks {
        let piece = (blocks - fit).min(piece_blocks(block_len));
        let with = units + record_units(piece, block_len);
        if with > room {
            break;
        }
        (fit, units) = (fit + piece, with);
    }
    (fit, units)
}

/// What is behind so many blocks.
const fn behind(part: Part, blocks: u32) -> Part {
    Part { first: part.first + blocks, blocks: part.blocks.saturating_sub(blocks) }
}

/// Takes blocks from the front of what is to do.
fn take_blocks(todo: &mut VecDeque<Part>, blocks: u32) {
    if let Some(front) = todo.front_mut() {
        *front = behind(*front, blocks);
        if front.blocks == 0 {
            todo.pop_front();
        }
    }
}
