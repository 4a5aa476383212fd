//! Records that have rotted at a member: another's is written over them; or, if that cannot be, the member has its replica no more.
//!
//! ```text
//!   a read, a move, a copy: a member gave what is wrong ─▶ waiting ─ its chunk is sealed ─▶ Asking: MEND from one who has it ─▶ mended
//!                                                            │ it is open: it is closed        │ that one has not: another is asked
//!                                                                                              └ it is not taken ─▶ Committing without it
//! ```
//!
//! Records do not end where blocks do. Where a block cannot be read that one has in common with another, that other one is sent first (R6), from
//! whoever has it, and then it is asked for the first one again.
//!
//! One is mended at a time. What has no room in the line is found again when it is next read. Whoever is dropped from a chunk's record has
//! its replica made anew (`repair`).

use std::collections::VecDeque;
use std::time::Duration;

use ob_core::{ChunkId, ChunkName, Instant, Revision, SegmentName, Units};
use ob_split::wire::{Completion, CompletionStatus, Slot};

use super::chunks::{ChunkIs, TierChunk};
use super::core::TierCore;
use super::plant::{Bug, is_planted};
use super::ports::retire_chunk;
use super::segments::Standing;
use super::servers::{CallFor, Outcome, ServerCore, channel_of};
use super::slots::ChunkPlace;
use super::store::Then;
use super::{PortNumber, TierAction, TierNews};
use crate::metadata::{Expect, MetadataValue, Name};
use crate::plans::{COPY_FETCH_STEP, Copy, Run};
use crate::wire::{Answer, Refusal, Reply};

/// Records that wait to be mended.
const WAITING_MAX: usize = 64;
/// How often a server may not answer before it is left alone: it is given up elsewhere.
const FAILURES_MAX: u8 = 3;
/// When it is looked again whether those that wait can be mended.
const AGAIN: Duration = Duration::from_secs(1);

/// A record that a server does not have as it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rotten {
    chunk: ChunkPlace,
    /// The place may be another's by now.
    number: ChunkId,
    at: Units,
    server: usize,
}

/// One that is mended.
#[derive(Debug)]
struct Mend {
    rotten: Rotten,
    /// Answers to an earlier one are not heard.
    attempt: u64,
    phase: Phase,
    failures: u8,
    /// Those that could not give it.
    asked: Vec<usize>,
    /// What is sent first; and the last that the server has named, each of which lies behind the one before.
    beside: Option<Beside>,
    named: Units,
}

/// A record that lies beside the one that is mended.
#[derive(Debug)]
struct Beside {
    at: Units,
    /// Those that could not give it.
    asked: Vec<usize>,
}

impl Mend {
    /// Where the record begins that is sent next, and who could not give it.
    fn next(&self) -> (Units, &[usize]) {
        match &self.beside {
            Some(beside) => (beside.at, &beside.asked),
            None => (self.rotten.at, &self.asked),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// From this one.
    Asking(usize),
    /// The next try is due with the others.
    Resting,
    /// Its replica cannot be mended: it is to be named no more.
    Dropping,
    Committing,
}

/// What is to be mended.
#[derive(Debug, Default)]
pub(super) struct Mending {
    waiting: VecDeque<Rotten>,
    current: Option<Mend>,
    again: Option<Instant>,
}

/// What can be done about a record.
enum Can {
    Mend,
    Wait,
    /// It is nobody's, or is found again when that is there.
    Forget,
}

impl TierCore {
    pub(super) const fn mends_next_due(&self) -> Option<Instant> {
        self.mending.again
    }

    /// Records that wait to be mended, and the one that is.
    pub(super) fn mends_waiting(&self) -> usize {
        self.mending.waiting.len() + usize::from(self.mending.current.is_some())
    }

    /// Whether a chunk has members of which a record is known to be wrong.
    pub(super) fn is_mended(&self, chunk: ChunkPlace) -> bool {
        let current = self.mending.current.as_ref().map(|mend| &mend.rotten);
        self.mending.waiting.iter().chain(current).any(|rotten| rotten.chunk == chunk)
    }

    /// The port is closed: what is still wrong is found again.
    pub(super) fn forget_mends(&mut self) {
        self.mending = Mending::default();
    }

    /// Nothing is known of a segment, or nobody needs a chunk any more.
    pub(super) fn forget_mends_of(&mut self, is_its: impl Fn(ChunkPlace) -> bool) {
        self.mending.waiting.retain(|rotten| !is_its(rotten.chunk));
        self.mending.current.take_if(|mend| is_its(mend.rotten.chunk));
    }

    /// Who was at a place is at another: what the one before has, others found.
    pub(super) fn rename_in_mends(&mut self, now: Instant, from: usize, to: usize) {
        let is_its = |server: usize| server == from || server == to;
        self.mending.waiting.retain(|rotten| !is_its(rotten.server));
        let Some(mend) = &mut self.mending.current else { return };
        if mend.phase == Phase::Committing {
            if mend.rotten.server == from {
                mend.rotten.server = to;
            }
            return;
        }
        let asked = matches!(mend.phase, Phase::Asking(giver) if is_its(giver));
        if asked || is_its(mend.rotten.server) {
            self.mending.current = None;
            self.mending.again = Some(now);
        }
    }

    /// A server does not have a record as it should.
    pub(super) fn note_rotten(&mut self, now: Instant, chunk: ChunkPlace, server: usize, at: Units) {
        let of = self.segments.get(&chunk.0).and_then(|segment| segment.chunks.get(chunk.1));
        let counts = |of: &&TierChunk| !matches!(of.is, ChunkIs::Dead(_) | ChunkIs::Gone);
        let of = of.filter(counts).filter(|of| of.members.contains(&server));
        let Some(number) = of.map(|of| of.number) else { return };
        let rotten = Rotten { chunk, number, at, server };
        let is_current = self.mending.current.as_ref().is_some_and(|mend| mend.rotten == rotten);
        if is_current || self.mending.waiting.contains(&rotten) || is_planted(Bug::MendForgotten) {
            return;
        }
        self.counts.rotten_found += 1;
        if self.mending.waiting.len() < WAITING_MAX {
            self.mending.waiting.push_back(rotten);
            self.mending.again = Some(now);
        }
    }

    /// Members that gave what is wrong, of a record that lies in a chunk which a slot is set to.
    pub(super) fn note_rotten_at(
        &mut self,
        now: Instant,
        (port, slot): (PortNumber, Slot),
        at: Units,
        bad_members: u8,
    ) {
        let Some(port) = self.ports.get(&port) else { return };
        let Some(chunk) = port.slots.chunk(slot) else { return };
        let servers = port.slots.servers(slot).iter().enumerate();
        let bad = servers.filter(|(number, _)| bad_members >> number & 1 == 1).map(|(_, server)| *server);
        for server in bad.collect::<Vec<_>>() {
            self.note_rotten(now, chunk, server, at);
        }
    }

    /// A read says that members gave what is wrong of one of its runs: of which, if it has several, the card tells from 1 on.
    pub(super) fn note_rotten_run(
        &mut self,
        now: Instant,
        port: PortNumber,
        runs: &[Run],
        completion: &Completion,
    ) {
        let of = usize::from(completion.units).checked_sub(1).or((runs.len() == 1).then_some(0));
        if let Some(Run::Record { slot, place, .. }) = of.and_then(|of| runs.get(of)) {
            self.note_rotten_at(now, (port, *slot), *place, completion.bad_members);
        }
    }

    /// What can be mended is.
    pub(super) fn mends_due(&mut self, now: Instant) {
        if self.mending.again.is_none_or(|again| again > now) {
            return;
        }
        self.mending.again = None;
        match self.mending.current.as_ref().map(|mend| mend.phase) {
            Some(Phase::Resting) => return self.ask_mend(now),
            Some(Phase::Dropping) => return self.drop_member(now),
            Some(Phase::Asking(_) | Phase::Committing) => return,
            None => {}
        }
        for _ in 0..self.mending.waiting.len() {
            let Some(rotten) = self.mending.waiting.pop_front() else { break };
            match self.can_mend(now, &rotten) {
                Can::Forget => {}
                Can::Wait => self.mending.waiting.push_back(rotten),
                Can::Mend => {
                    self.last_attempt += 1;
                    let (attempt, phase) = (self.last_attempt, Phase::Resting);
                    let (failures, asked, beside, named) = (0, Vec::new(), None, Units(0));
                    let mend = Mend { rotten, attempt, phase, failures, asked, beside, named };
                    self.mending.current = Some(mend);
                    return self.ask_mend(now);
                }
            }
        }
        self.mending.again = (!self.mending.waiting.is_empty()).then(|| now + AGAIN);
    }

    fn can_mend(&mut self, now: Instant, rotten: &Rotten) -> Can {
        let (name, place) = rotten.chunk;
        let Some(segment) = self.segments.get(&name) else { return Can::Forget };
        let is_owned = segment.standing == Standing::Owned;
        let Some(chunk) = segment.chunks.get(place).filter(|chunk| chunk.number == rotten.number) else {
            return Can::Forget;
        };
        let is_member = chunk.members.contains(&rotten.server) && self.is_there(rotten.server);
        match chunk.is {
            ChunkIs::Sealed { .. } if !is_member || rotten.at >= chunk.length => Can::Forget,
            ChunkIs::Sealed { .. } if is_owned => Can::Mend,
            // A record can be written over only where nothing else is written.
            ChunkIs::Open if is_owned => {
                self.close_chunk(now, name, place);
                Can::Wait
            }
            ChunkIs::Open | ChunkIs::Closing(_) | ChunkIs::Sealed { .. } => Can::Wait,
            ChunkIs::Dead(_) | ChunkIs::Gone => Can::Forget,
        }
    }

    fn is_there(&self, server: usize) -> bool {
        self.servers.get(server).is_some_and(ServerCore::is_ready)
    }

    /// The chunk of the one that is mended, as long as it can be.
    fn mended_chunk(&self) -> Option<(&Mend, &TierChunk)> {
        let mend = self.mending.current.as_ref()?;
        let (name, place) = mend.rotten.chunk;
        let segment = self.segments.get(&name).filter(|segment| segment.standing == Standing::Owned)?;
        let chunk = segment.chunks.get(place).filter(|chunk| chunk.number == mend.rotten.number)?;
        let is_sealed = matches!(chunk.is, ChunkIs::Sealed { .. });
        (is_sealed && chunk.members.contains(&mend.rotten.server)).then_some((mend, chunk))
    }

    /// The next one that may have it is asked for it.
    fn ask_mend(&mut self, now: Instant) {
        let Some((mend, chunk)) = self.mended_chunk() else { return self.end_mend(now) };
        let (rotten, (at, asked)) = (mend.rotten, mend.next());
        // A place means one record for ever: who is not named may have it, too (R5).
        let others = chunk.members.iter().chain(&chunk.strays).copied();
        let mut others =
            others.filter(|other| *other != rotten.server && self.is_there(*other) && !asked.contains(other));
        let giver = others.next().filter(|_| self.is_there(rotten.server));
        let epoch = self.segments.get(&rotten.chunk.0).and_then(|segment| segment.epoch());
        let (Some(giver), Some(epoch)) = (giver, epoch) else {
            // Nobody who is there gives it: whoever returns may have it, when it is next found.
            self.counts.mends_given_up += 1;
            return self.end_mend(now);
        };
        let copy = Copy {
            from: channel_of(giver),
            to: channel_of(rotten.server),
            chunk: ChunkName::new(rotten.chunk.0, rotten.number),
            epoch,
            at,
            end: chunk.length,
            is_mend: true,
        };
        let attempt = mend.attempt;
        if let Some(mend) = &mut self.mending.current {
            mend.phase = Phase::Asking(giver);
        }
        self.post_copy(rotten.server, CallFor::Mend(attempt), &copy);
    }

    fn end_mend(&mut self, now: Instant) {
        self.mending.current = None;
        self.mending.again = Some(now);
    }

    /// The record was written over what had rotted, or why it was not.
    pub(super) fn mend_over(&mut self, now: Instant, attempt: u64, outcome: &Outcome, of: &Completion) {
        let Some(mend) = self.mending.current.as_mut().filter(|mend| mend.attempt == attempt) else { return };
        let Phase::Asking(giver) = mend.phase else { return };
        let (rotten, (at, _)) = (mend.rotten, mend.next());
        mend.phase = Phase::Resting;
        self.mending.again = Some(now);
        match outcome {
            // What it was for may be taken now.
            Outcome::Answered(Answer::Good(Reply::Repair)) if mend.beside.is_some() => mend.beside = None,
            Outcome::Answered(Answer::Refused { refusal: Refusal::Beside { at }, .. }) => {
                self.mend_beside(now, *at);
            }
            Outcome::Answered(Answer::Good(Reply::Repair)) => {
                self.counts.mended += 1;
                let chunk = ChunkName::new(rotten.chunk.0, rotten.number);
                self.actions.push_back(TierAction::Report(TierNews::Mended { chunk, at: rotten.at }));
                self.end_mend(now);
            }
            Outcome::Failed if of.word == COPY_FETCH_STEP => {
                mend.beside.as_mut().map_or(&mut mend.asked, |beside| &mut beside.asked).push(giver);
                if of.status == CompletionStatus::NotVerified {
                    // That one has it no better.
                    self.note_rotten(now, rotten.chunk, giver, at);
                }
            }
            Outcome::Answered(Answer::Refused { refusal: Refusal::Stale { .. }, .. }) => self.end_mend(now),
            // What its device says once may be another's fault: that of its ledger, say, which ends the server.
            Outcome::Answered(Answer::Refused { refusal: Refusal::Medium, .. })
                if mend.failures < FAILURES_MAX =>
            {
                mend.failures += 1;
                self.mending.again = Some(now + AGAIN);
            }
            // It was asked behind something else, or did not say anything.
            Outcome::Answered(Answer::Refused { refusal: Refusal::Busy, .. }) | Outcome::Failed => {
                mend.failures += 1;
                self.mending.again = Some(now + AGAIN);
                if mend.failures > FAILURES_MAX {
                    self.counts.mends_given_up += 1;
                    self.end_mend(now);
                }
            }
            Outcome::Answered(_) => {
                mend.phase = Phase::Dropping;
                self.drop_member(now);
            }
        }
    }

    /// A block cannot be read that the record has in common with another, which is to be sent first.
    fn mend_beside(&mut self, now: Instant, at: Units) {
        let Some((_, chunk)) = self.mended_chunk() else { return self.end_mend(now) };
        let length = chunk.length;
        let Some(mend) = &mut self.mending.current else { return };
        if mend.beside.take().is_some() {
            // That one has another such block, which is not the first one's; or has not all of this one either.
            return;
        }
        // Who names one again has forgotten what it was sent.
        let can = mend.named < at && at != mend.rotten.at && at < length && !is_planted(Bug::BesideForgotten);
        if can {
            (mend.named, mend.beside) = (at, Some(Beside { at, asked: Vec::new() }));
        } else {
            mend.phase = Phase::Dropping;
            self.drop_member(now);
        }
    }

    /// Commits that a member which cannot be mended is none any more: the chunk has one replica less, and is made whole.
    fn drop_member(&mut self, now: Instant) {
        let Some((mend, chunk)) = self.mended_chunk() else { return self.end_mend(now) };
        let ((name, place), server) = (mend.rotten.chunk, mend.rotten.server);
        let kept: Vec<usize> = chunk.members.iter().copied().filter(|member| *member != server).collect();
        let are_there = !kept.is_empty() && kept.iter().all(|member| self.is_there(*member));
        // What it has is all but a record: it stays named while nobody else can be in its place.
        let can_be_replaced = self.place_for(now, chunk).is_some() || is_planted(Bug::DroppedWithoutAnother);
        let Some(segment) = self.segments.get(&name) else { return self.end_mend(now) };
        let record = self.sealed_record(chunk, &kept).filter(|_| are_there && can_be_replaced);
        let (Some(revision), Some(record)) = (segment.revision, record) else {
            // What it has beside that record may be the last there is.
            self.counts.mends_given_up += 1;
            return self.end_mend(now);
        };
        let (expect, number) = (Expect::At(chunk.revision), chunk.number);
        if segment.is_committing {
            self.mending.again = Some(now + AGAIN);
            return;
        }
        if let Some(segment) = self.segments.get_mut(&name) {
            segment.is_committing = true;
        }
        if let Some(mend) = &mut self.mending.current {
            mend.phase = Phase::Committing;
        }
        let others = vec![(self.config.keys.key(Name::Segment(name)), Expect::At(revision))];
        let value = MetadataValue::Chunk(record).encode();
        let key = Name::Chunk(ChunkName::new(name, number));
        self.commit(key, expect, others, value, Then::Dropped(name, place), None);
    }

    /// The store names the member no more, or will never say so.
    pub(super) fn member_dropped(
        &mut self,
        now: Instant,
        name: SegmentName,
        place: usize,
        revision: Option<Revision>,
    ) {
        let is_its = |mend: &mut Mend| mend.phase == Phase::Committing && mend.rotten.chunk == (name, place);
        let mend = self.mending.current.take_if(is_its);
        (self.mending.again, self.repair_at) = (Some(now), Some(now));
        let Some(segment) = self.segments.get_mut(&name) else { return };
        segment.is_committing = false;
        match (revision, segment.chunks.get_mut(place), mend) {
            (Some(revision), Some(chunk), Some(mend)) => {
                let server = mend.rotten.server;
                chunk.revision = revision;
                chunk.members.retain(|member| *member != server);
                chunk.strays.push(server);
                chunk.rotten.push(server);
                let (chunk, members) = (ChunkName::new(name, chunk.number), chunk.members.len());
                self.actions.push_back(TierAction::Report(TierNews::Dropped { chunk, members }));
                self.counts.members_dropped += 1;
                retire_chunk(&mut self.ports, (name, place));
            }
            (None, ..) => return self.segment_robbed(now, name),
            _ => {}
        }
        self.commit_over(now, name);
    }
}
