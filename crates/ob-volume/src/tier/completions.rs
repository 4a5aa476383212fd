//! What has become of plans: the index changes when a record is on all members, and not before (I1).

use std::ops::Range;

use ob_core::{Instant, Sequence, Units, VolumeId};
use ob_split::wire::{Broken, Completion, CompletionStatus, Handle};
use ob_wire_nvme::Status;

use super::chunks::Unresolved;
use super::command::{Command, Posted, Span, Worst, record_units};
use super::core::TierCore;
use super::index::Stretch;
use super::plant::{Bug, is_planted};
use super::store::RETRY;
use super::{PortNumber, TierError};
use crate::plans::{HOST_HANDLES, Part, piece_blocks, pieces};

/// How often blocks are looked up anew that nobody gave.
const TRIES_MAX: u8 = 3;

impl TierCore {
    /// A piece of a plan is over.
    pub(super) fn piece_over(
        &mut self,
        now: Instant,
        port: PortNumber,
        completion: &Completion,
        reply: Option<&[u8]>,
    ) -> Result<(), TierError> {
        let handle = completion.handle;
        let is_idle = |command: &Command| command.posted == Posted::Nothing;
        let Some(port) = self.ports.get_mut(&port) else { return Err(TierError::NotPosted(handle)) };
        if self.commands.get(&handle.0).is_some_and(is_idle) {
            return Err(TierError::NotPosted(handle));
        }
        if !completion.has_more {
            port.plans = port.plans.saturating_sub(1);
        }
        if handle.0 >= HOST_HANDLES {
            return self.call_over(now, completion, reply);
        }
        let Some(command) = self.commands.get_mut(&handle.0) else {
            return Err(TierError::NotPosted(handle));
        };
        match std::mem::replace(&mut command.posted, Posted::Nothing) {
            Posted::Write { .. } if completion.has_more && reply.is_some() => Err(no_reply(handle)),
            posted @ Posted::Write { .. } => self.piece_done(handle, &posted, completion),
            _ if completion.has_more || reply.is_some() => Err(no_reply(handle)),
            Posted::Trim { span, chunk, sequence, is_last } => {
                self.trim_done(now, handle, &span, chunk, sequence, is_last, completion)
            }
            Posted::Read { part, sole, runs, is_last } => {
                let port = command.port;
                self.note_rotten_run(now, port, &runs, completion);
                if !self.is_read_too_long(handle, part, runs.len(), completion) {
                    self.read_done(now, handle, part, sole, completion, is_last);
                }
                Ok(())
            }
            Posted::Take => {
                self.payload_taken(now, handle, completion);
                Ok(())
            }
            Posted::Press { part } => self.pressed(handle, part, completion),
            Posted::Answer => {
                self.answer_done(now, handle, completion.status);
                Ok(())
            }
            Posted::Nothing => Err(TierError::NotPosted(handle)),
        }
    }

    /// A trim is over: one record.
    #[expect(clippy::too_many_arguments, reason = "what was posted, and what became of it")]
    fn trim_done(
        &mut self,
        now: Instant,
        handle: Handle,
        span: &Span,
        chunk: usize,
        sequence: Sequence,
        is_last: bool,
        completion: &Completion,
    ) -> Result<(), TierError> {
        let wrong = TierError::Completion { handle, what: "no trim lies there" };
        let segment = self.segments.get_mut(&span.segment).ok_or(TierError::NotPosted(handle))?;
        let (offset, units) = (Units(completion.offset), Units(completion.units.into()));
        let is_good = is_done(completion);
        if is_good {
            if units != Units(1) || !segment.apply(span.blocks(), chunk, sequence, offset, units, true) {
                return Err(wrong);
            }
        } else if units != Units(0) {
            let blocks = span.blocks();
            let (part, owner) = (span.part, handle);
            let record = Unresolved { owner, part, blocks, sequence, offset, units, is_trim: true };
            self.check_record(chunk, span, &record).ok_or(wrong)?;
            self.leave_unresolved(span, chunk, record);
        } else if let Some(command) = self.commands.get_mut(&handle.0) {
            command.put_back(span.part);
        }
        self.end_change(span, chunk, sequence);
        let is_unresolved = !is_good && units != Units(0);
        self.note_members(now, span, chunk, completion);
        self.change_done(now, handle, span, chunk, worst_of(completion), is_unresolved, is_last);
        Ok(())
    }

    /// Whether a record can lie where the card says that it lies, though not all members have it.
    fn check_record(&self, chunk: usize, span: &Span, record: &Unresolved) -> Option<()> {
        let chunk = self.segments.get(&span.segment)?.chunks.get(chunk)?;
        let end = record.offset.checked_add(record.units)?;
        (record.offset >= ob_format::volume::RECORDS_START && end <= chunk.posted).then_some(())
    }

    /// A piece of a write. Pieces come in their order; the last has no more behind it.
    fn piece_done(
        &mut self,
        handle: Handle,
        posted: &Posted,
        completion: &Completion,
    ) -> Result<(), TierError> {
        let &Posted::Write { span, chunk, sequence, piece, worst, is_unresolved, is_last } = posted else {
            return Err(TierError::NotPosted(handle));
        };
        let wrong = |what| TierError::Completion { handle, what };
        let command = self.commands.get(&handle.0).ok_or(TierError::NotPosted(handle))?;
        let (block_len, now) = (command.block_len, self.now);
        let count = pieces(span.part.blocks, block_len);
        if piece >= count {
            return Err(wrong("a write has fewer pieces"));
        }
        let (offset, units) = (Units(completion.offset), Units(completion.units.into()));
        let (part, blocks) = piece_of(&span, piece, piece_blocks(block_len));
        let record_sequence = Sequence(sequence.0 + u64::from(piece));
        let is_good = is_done(completion);
        let is_placed = units != Units(0);
        if is_good {
            let segment = self.segments.get_mut(&span.segment).ok_or(TierError::NotPosted(handle))?;
            if !segment.apply(blocks, chunk, record_sequence, offset, units, false) {
                return Err(wrong("no record lies there"));
            }
        } else if is_placed {
            let (owner, sequence) = (handle, record_sequence);
            let record = Unresolved { owner, part, blocks, sequence, offset, units, is_trim: false };
            self.check_record(chunk, &span, &record).ok_or(wrong("no record lies there"))?;
            self.put_early(&span, chunk, &record);
            self.leave_unresolved(&span, chunk, record);
        } else if let Some(command) = self.commands.get_mut(&handle.0)
            && !is_planted(Bug::ResendLosesPiece)
        {
            command.put_back(part);
        }
        self.note_members(now, &span, chunk, completion);
        // What it was reserved and did not take others may have: blocks may be compressed, or have gone nowhere.
        let reserved = record_units(part.blocks, block_len);
        if let Some(segment) = self.segments.get_mut(&span.segment) {
            segment.give_back(chunk, reserved.saturating_sub(units.0));
        }
        let is_forgotten = piece > 0 && is_planted(Bug::PieceForgotten);
        let worst = if is_forgotten { worst } else { worst.max(worst_of(completion)) };
        let is_unresolved = is_unresolved || (!is_good && is_placed);
        let piece = piece + 1;
        if completion.has_more {
            if let Some(command) = self.commands.get_mut(&handle.0) {
                command.posted =
                    Posted::Write { span, chunk, sequence, piece, worst, is_unresolved, is_last };
            }
            return Ok(());
        }
        if piece < count && is_good {
            return Err(wrong("a write has more pieces"));
        }
        // A plan that did not begin says so once.
        if let Some(command) = self.commands.get_mut(&handle.0) {
            for rest in piece..count {
                command.put_back(piece_of(&span, rest, piece_blocks(block_len)).0);
            }
        }
        self.end_change(&span, chunk, sequence);
        self.change_done(now, handle, &span, chunk, worst, is_unresolved, is_last);
        Ok(())
    }

    /// A bug puts into the index what not all members have (I1).
    fn put_early(&mut self, span: &Span, chunk: usize, record: &Unresolved) {
        let segment = self.segments.get_mut(&span.segment);
        if let Some(segment) = segment.filter(|_| is_planted(Bug::IndexBeforeDurable)) {
            let (blocks, sequence) = (record.blocks.clone(), record.sequence);
            segment.apply(blocks, chunk, sequence, record.offset, record.units, false);
        }
    }

    /// A plan that wrote to a chunk is over.
    fn end_change(&mut self, span: &Span, chunk: usize, first: Sequence) {
        if let Some(segment) = self.segments.get_mut(&span.segment) {
            segment.end_change(chunk, first);
        }
    }

    /// Members that did not make a record durable in time come last from now on.
    fn note_members(&mut self, now: Instant, span: &Span, chunk: usize, completion: &Completion) {
        if completion.status != CompletionStatus::Broken {
            return;
        }
        let segment = self.segments.get(&span.segment);
        let Some(chunk) = segment.and_then(|segment| segment.chunks.get(chunk)) else { return };
        for (number, member) in chunk.members.iter().enumerate() {
            if completion.bad_members >> number & 1 == 1
                && let Some(server) = self.servers.get_mut(*member)
                && !server.has_failed(now)
            {
                server.fail(now);
            }
        }
    }

    /// A plan that changes blocks is over.
    #[expect(clippy::too_many_arguments, reason = "what was posted, and what became of it")]
    fn change_done(
        &mut self,
        now: Instant,
        handle: Handle,
        span: &Span,
        chunk: usize,
        worst: Worst,
        is_unresolved: bool,
        is_last: bool,
    ) {
        self.unpin(handle);
        if matches!(worst, Worst::Full | Worst::Broken) || is_unresolved {
            // It has no room; or something may be missing somewhere, whatever it is called, and nothing can come behind that.
            self.close_chunk(now, span.segment, chunk);
        }
        // It may have been the last one that a chunk which is closed has waited for.
        self.continue_seal(now, span.segment, chunk);
        match worst {
            Worst::Good if is_last => return self.forget(handle),
            Worst::Good => {}
            // All is done, and its initiator does not know.
            Worst::Withheld => {
                self.counts.withheld += 1;
                return self.again_at(now + RETRY, handle);
            }
            // What has gone nowhere goes to another chunk.
            Worst::Full | Worst::Broken => {}
            Worst::GivenUp => self.fail_command(handle, Status::ABORT_REQUESTED),
            Worst::Internal => self.fail_command(handle, Status::INTERNAL_ERROR),
        }
        self.ready.push_back(handle);
    }

    fn fail_command(&mut self, handle: Handle, status: Status) {
        if let Some(command) = self.commands.get_mut(&handle.0) {
            command.fail(status);
        }
    }

    /// Whether a read was of more records than the card ever has memory for: then it is done in parts, and so are those that follow.
    fn is_read_too_long(&mut self, handle: Handle, part: Part, runs: usize, completion: &Completion) -> bool {
        // Before the first step it is refused for nothing else.
        let is_refused = completion.status == CompletionStatus::Refused && completion.word == 0;
        let Some(port) = self.port_of(handle).filter(|_| is_refused && runs > 1) else { return false };
        port.runs_max = port.runs_max.min(runs / 2).max(1);
        self.unpin(handle);
        if let Some(command) = self.commands.get_mut(&handle.0) {
            command.put_back(part);
            self.ready.push_back(handle);
        }
        true
    }

    fn read_done(
        &mut self,
        now: Instant,
        handle: Handle,
        part: Part,
        sole: Option<u32>,
        completion: &Completion,
        is_last: bool,
    ) {
        self.counts.bad_members += u64::from(completion.bad_members.count_ones());
        // That nobody has it is known when all members have given what is wrong, of one record, and all servers have told what they have.
        let are_all_bad = completion.status == CompletionStatus::NotVerified
            && sole.is_some_and(|members| completion.bad_members.count_ones() >= members);
        let of = self.look_up(handle, part).filter(|_| are_all_bad);
        let is_certain = of.is_some_and(|(span, _)| self.have_told(span.segment));
        if are_all_bad && !is_certain {
            self.ask_untold();
        }
        if matches!(completion.status, CompletionStatus::NoMember | CompletionStatus::NotVerified) {
            self.forget_slots(handle, completion.status == CompletionStatus::NoMember);
        }
        self.unpin(handle);
        let status = match completion.status {
            CompletionStatus::Good if is_last => return self.forget(handle),
            CompletionStatus::Good => return self.ready.push_back(handle),
            CompletionStatus::Withheld => {
                self.counts.withheld += 1;
                return self.again_at(now + RETRY, handle);
            }
            CompletionStatus::NoMember | CompletionStatus::NotVerified => {
                if self.lies_elsewhere(handle, part) {
                    return self.ready.push_back(handle);
                }
                if !is_certain {
                    return self.read_later(now, handle, part);
                }
                Status::UNRECOVERED_READ_ERROR.with_do_not_retry()
            }
            CompletionStatus::GivenUp => Status::ABORT_REQUESTED,
            _ => Status::INTERNAL_ERROR,
        };
        self.fail_command(handle, status);
        self.ready.push_back(handle);
    }

    /// Not all that have the blocks have answered: they are read again, one record at a time, until the command has waited long enough.
    fn read_later(&mut self, now: Instant, handle: Handle, part: Part) {
        let Some(command) = self.commands.get_mut(&handle.0) else { return };
        command.is_careful = true;
        command.put_back(part);
        self.counts.reads_again += 1;
        self.again_at(now + RETRY, handle);
    }

    /// Whether blocks that nobody gave are to be read anew, because they are not where they were.
    fn lies_elsewhere(&mut self, handle: Handle, part: Part) -> bool {
        let mut now_there: Vec<Stretch> = Vec::new();
        let mut rest = part;
        while rest.blocks > 0 {
            let Some((_, stretch)) = self.look_up(handle, rest) else { return false };
            rest = Part { first: rest.first + stretch.blocks, blocks: rest.blocks - stretch.blocks };
            now_there.push(stretch);
        }
        let Some(command) = self.commands.get_mut(&handle.0) else { return false };
        if command.tries >= TRIES_MAX || (command.tries > 0 && command.tried == now_there) {
            return false;
        }
        command.tries += 1;
        command.tried = now_there;
        command.put_back(part);
        true
    }

    /// Slots that were set without some of the members are set anew when they are next needed; or all, if nobody whom they are set to is
    /// there.
    fn forget_slots(&mut self, handle: Handle, all: bool) {
        let Some(command) = self.commands.get(&handle.0) else { return };
        let Some(port) = self.ports.get_mut(&command.port) else { return };
        for slot in &command.pins {
            if all || port.slots.all_members(*slot).is_none() {
                port.slots.retire(*slot);
            }
        }
    }

    fn answer_done(&mut self, now: Instant, handle: Handle, status: CompletionStatus) {
        match status {
            CompletionStatus::Good => self.forget(handle),
            // The gate lets nothing out now; a message that its peer has given up is answered all the same.
            _ => {
                self.counts.withheld += 1;
                self.again_at(now + RETRY, handle);
            }
        }
    }

    /// A command is answered. Nothing more is heard of it.
    fn forget(&mut self, handle: Handle) {
        self.change_over(handle);
        if let Some(command) = self.commands.remove(&handle.0) {
            self.holds.remove(&(command.held_until, handle.0));
            if let Some(port) = self.ports.get_mut(&command.port) {
                port.messages.remove(&command.message.0);
            }
            self.give_payload_back(command.port, command.taken);
        }
    }

    /// A change does not stand in the way of others any more.
    pub(super) fn change_over(&mut self, handle: Handle) {
        let Some(command) = self.commands.get_mut(&handle.0).filter(|command| command.is_change) else {
            return;
        };
        if command.unresolved > 0 {
            return self.keep_blocks(handle);
        }
        (command.is_change, command.is_behind) = (false, false);
        let volume = command.volume;
        self.blocks_free(volume, handle);
    }

    /// Nobody keeps these blocks any more: those that wait for them may begin.
    pub(super) fn blocks_free(&mut self, volume: VolumeId, handle: Handle) {
        let Some(overlaps) = self.overlaps.get_mut(&volume) else { return };
        let (commands, ready, moves) = (&mut self.commands, &mut self.ready, &mut self.moves_ready);
        overlaps.over(handle, |next| match commands.get_mut(&next.0) {
            Some(command) => {
                command.is_behind = false;
                ready.push_back(next);
            }
            None => moves.push_back(next),
        });
    }

    /// A chunk's writer has stopped.
    pub(super) fn writer_stopped(
        &mut self,
        now: Instant,
        port: PortNumber,
        broken: &Broken,
    ) -> Result<(), TierError> {
        let slots = self.ports.get(&port).map(|port| &port.slots).filter(|slots| slots.has(broken.slot));
        let slots = slots.ok_or(TierError::Slot(broken.slot))?;
        // If it is what the slot had before it was set anew, another chunk is closed, which does no harm.
        let Some((name, place)) = slots.chunk(broken.slot) else { return Ok(()) };
        self.counts.chunks_broken += 1;
        self.close_chunk(now, name, place);
        Ok(())
    }
}

/// The blocks of a piece: of the command, and within the segment.
fn piece_of(span: &Span, piece: u32, piece_blocks: u32) -> (Part, Range<u32>) {
    let first = piece * piece_blocks;
    let blocks = span.part.blocks.saturating_sub(first).min(piece_blocks);
    let part = Part { first: span.part.first + first, blocks };
    (part, span.lba + first..span.lba + first + blocks)
}

fn no_reply(handle: Handle) -> TierError {
    TierError::Completion { handle, what: "it has one piece, and brings no reply" }
}

/// Whether a record is on all members.
fn is_done(completion: &Completion) -> bool {
    let is_nearly = completion.status == CompletionStatus::Broken && completion.bad_members.count_ones() == 1;
    matches!(completion.status, CompletionStatus::Good | CompletionStatus::Withheld)
        || (is_nearly && completion.units > 0 && is_planted(Bug::AckTwoOfThree))
}

fn worst_of(completion: &Completion) -> Worst {
    match completion.status {
        CompletionStatus::Good => Worst::Good,
        _ if is_done(completion) => Worst::Withheld,
        CompletionStatus::Withheld => Worst::Withheld,
        CompletionStatus::ChunkFull => Worst::Full,
        CompletionStatus::GivenUp => Worst::GivenUp,
        CompletionStatus::Refused | CompletionStatus::Engine => Worst::Internal,
        CompletionStatus::Broken | CompletionStatus::NoMember | CompletionStatus::NotVerified => {
            Worst::Broken
        }
    }
}
