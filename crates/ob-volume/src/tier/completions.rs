//! What has become of plans: the index changes when a record is on all members, and not before (I1).

use ob_core::{Instant, Units};
use ob_split::wire::{Broken, Completion, CompletionStatus, Handle};
use ob_wire_nvme::Status;

use super::TierError;
use super::command::{Posted, Span, What, Worst};
use super::core::TierCore;
use super::index::Stretch;
use super::plant::{Bug, is_planted};
use super::store::RETRY;
use crate::plans::{HOST_HANDLES, Part, piece_blocks, pieces};

/// How often blocks are looked up anew that nobody gave.
const TRIES_MAX: u8 = 3;

impl TierCore {
    /// A piece of a plan is over.
    pub(super) fn done(
        &mut self,
        now: Instant,
        completion: &Completion,
        reply: Option<&[u8]>,
    ) -> Result<(), TierError> {
        let handle = completion.handle;
        let is_known = match self.commands.get(&handle.0) {
            Some(command) => command.posted != Posted::Nothing,
            None => self.calls.contains_key(&handle.0),
        };
        let Some(port) = self.port.as_mut().filter(|_| is_known) else {
            return Err(TierError::NotPosted(handle));
        };
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
            posted @ Posted::Write { .. } => self.piece_done(handle, posted, completion),
            _ if completion.has_more || reply.is_some() => Err(no_reply(handle)),
            Posted::Trim { span, chunk, sequence, is_last } => {
                let segment = self.segments.get_mut(&span.segment).ok_or(TierError::NotPosted(handle))?;
                if is_done(completion.status) {
                    let (offset, units) = (Units(completion.offset), Units(completion.units.into()));
                    if units != Units(1)
                        || !segment.apply(span.blocks(), chunk, sequence, offset, units, true)
                    {
                        return Err(TierError::Completion { handle, what: "no trim lies there" });
                    }
                }
                segment.end_change(chunk);
                self.change_done(now, handle, &span, chunk, worst_of(completion.status), is_last);
                Ok(())
            }
            Posted::Read { part, is_last } => {
                self.read_done(now, handle, part, completion, is_last);
                Ok(())
            }
            Posted::Answer => {
                self.answer_done(now, handle, completion.status);
                Ok(())
            }
            Posted::Nothing => Err(TierError::NotPosted(handle)),
        }
    }

    /// A piece of a write. Pieces come in their order; the last has no more behind it.
    fn piece_done(
        &mut self,
        handle: Handle,
        posted: Posted,
        completion: &Completion,
    ) -> Result<(), TierError> {
        let Posted::Write { span, chunk, sequence, piece, mut failed, worst, is_last } = posted else {
            return Err(TierError::NotPosted(handle));
        };
        let wrong = |what| TierError::Completion { handle, what };
        let command = self.commands.get(&handle.0).ok_or(TierError::NotPosted(handle))?;
        let (block_len, now) = (command.block_len, self.now);
        let count = pieces(span.part.blocks, block_len);
        if piece >= count {
            return Err(wrong("a write has fewer pieces"));
        }
        let segment = self.segments.get_mut(&span.segment).ok_or(TierError::NotPosted(handle))?;
        if is_done(completion.status) {
            let first = span.lba + piece * piece_blocks(block_len);
            let blocks = first..(first + piece_blocks(block_len)).min(span.blocks().end);
            let (offset, units) = (Units(completion.offset), Units(completion.units.into()));
            let sequence = ob_core::Sequence(sequence.0 + u64::from(piece));
            if !segment.apply(blocks, chunk, sequence, offset, units, false) {
                return Err(wrong("no record lies there"));
            }
        } else {
            failed.push(piece);
        }
        let is_forgotten = piece > 0 && is_planted(Bug::PieceForgotten);
        let worst = if is_forgotten { worst } else { worst.max(worst_of(completion.status)) };
        let piece = piece + 1;
        if completion.has_more {
            if let Some(command) = self.commands.get_mut(&handle.0) {
                command.posted = Posted::Write { span, chunk, sequence, piece, failed, worst, is_last };
            }
            return Ok(());
        }
        if piece < count && is_done(completion.status) {
            return Err(wrong("a write has more pieces"));
        }
        // A plan that did not begin says so once.
        failed.extend(piece..count);
        segment.end_change(chunk);
        if worst == Worst::Full
            && let Some(command) = self.commands.get_mut(&handle.0)
        {
            put_back(command, &span, &failed, piece_blocks(block_len));
        }
        self.change_done(now, handle, &span, chunk, worst, is_last);
        Ok(())
    }

    /// A plan that changes blocks is over.
    fn change_done(
        &mut self,
        now: Instant,
        handle: Handle,
        span: &Span,
        chunk: usize,
        worst: Worst,
        is_last: bool,
    ) {
        self.unpin(handle);
        match worst {
            Worst::Good if is_last => return self.forget(handle),
            Worst::Good => {}
            // All is done, and its initiator does not know.
            Worst::Withheld => {
                self.counts.withheld += 1;
                return self.again_at(now + RETRY, handle);
            }
            Worst::Full => {
                if let Some(segment) =
                    self.segments.get_mut(&span.segment).filter(|segment| segment.open == Some(chunk))
                {
                    segment.open = None;
                }
                // Of a trim all is to be done again.
                self.trim_again(handle, span);
            }
            Worst::GivenUp => self.fail_command(handle, Status::ABORT_REQUESTED),
            Worst::Internal => self.fail_command(handle, Status::INTERNAL_ERROR),
            Worst::Broken => {
                self.break_segment(span.segment);
                self.fail_command(handle, Status::NAMESPACE_NOT_READY);
            }
        }
        self.ready.push_back(handle);
    }

    fn trim_again(&mut self, handle: Handle, span: &Span) {
        if let Some(command) = self.commands.get_mut(&handle.0).filter(|command| command.what == What::Trim) {
            command.todo.push_front(span.part);
        }
    }

    fn fail_command(&mut self, handle: Handle, status: Status) {
        if let Some(command) = self.commands.get_mut(&handle.0) {
            command.fail(status);
        }
    }

    fn read_done(
        &mut self,
        now: Instant,
        handle: Handle,
        part: Part,
        completion: &Completion,
        is_last: bool,
    ) {
        self.counts.bad_members += u64::from(completion.bad_members.count_ones());
        if completion.status == CompletionStatus::NoMember {
            self.forget_slots(handle);
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
                if completion.status == CompletionStatus::NoMember {
                    Status::NAMESPACE_NOT_READY
                } else {
                    Status::UNRECOVERED_READ_ERROR.with_do_not_retry()
                }
            }
            CompletionStatus::GivenUp => Status::ABORT_REQUESTED,
            _ => Status::INTERNAL_ERROR,
        };
        self.fail_command(handle, status);
        self.ready.push_back(handle);
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
        command.todo.push_front(part);
        true
    }

    /// Nobody whom they are set to is there: they are set anew when they are next needed.
    fn forget_slots(&mut self, handle: Handle) {
        let Some(command) = self.commands.get_mut(&handle.0) else { return };
        let pins = std::mem::take(&mut command.pins);
        for slot in pins {
            self.slots.unpin(slot);
            self.slots.forget_idle(slot);
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
        }
    }

    /// A change does not stand in the way of others any more.
    pub(super) fn change_over(&mut self, handle: Handle) {
        let Some(command) = self.commands.get_mut(&handle.0).filter(|command| command.is_change) else {
            return;
        };
        command.is_change = false;
        command.is_behind = false;
        let volume = command.volume;
        let Some(overlaps) = self.overlaps.get_mut(&volume) else { return };
        let (commands, ready) = (&mut self.commands, &mut self.ready);
        overlaps.over(handle, |next| {
            if let Some(command) = commands.get_mut(&next.0) {
                command.is_behind = false;
                ready.push_back(next);
            }
        });
    }

    /// A chunk's writer has stopped.
    pub(super) fn writer_stopped(&mut self, broken: &Broken) -> Result<(), TierError> {
        if !self.slots.has(broken.slot) {
            return Err(TierError::Slot(broken.slot));
        }
        // It may be what the slot had before it was set anew.
        let Some((name, place)) = self.slots.chunk(broken.slot) else { return Ok(()) };
        let is_open = self.segments.get(&name).is_some_and(|segment| segment.open == Some(place));
        if is_open {
            self.break_segment(name);
        }
        Ok(())
    }
}

fn no_reply(handle: Handle) -> TierError {
    TierError::Completion { handle, what: "it has one piece, and brings no reply" }
}

/// Whether a record is on all members.
const fn is_done(status: CompletionStatus) -> bool {
    matches!(status, CompletionStatus::Good | CompletionStatus::Withheld)
}

const fn worst_of(status: CompletionStatus) -> Worst {
    match status {
        CompletionStatus::Good => Worst::Good,
        CompletionStatus::Withheld => Worst::Withheld,
        CompletionStatus::ChunkFull => Worst::Full,
        CompletionStatus::GivenUp => Worst::GivenUp,
        CompletionStatus::Refused | CompletionStatus::Engine => Worst::Internal,
        CompletionStatus::Broken | CompletionStatus::NoMember | CompletionStatus::NotVerified => {
            Worst::Broken
        }
    }
}

/// Pieces that had no room are to be done, before what is to be done behind them.
fn put_back(command: &mut super::command::Command, span: &Span, failed: &[u32], piece_blocks: u32) {
    for piece in failed.iter().rev() {
        let first = piece * piece_blocks;
        let blocks = (span.part.blocks - first).min(piece_blocks);
        let first = span.part.first + first;
        match command.todo.front_mut() {
            Some(front) if front.first == first + blocks => {
                *front = Part { first, blocks: front.blocks + blocks };
            }
            _ => command.todo.push_front(Part { first, blocks }),
        }
    }
}
