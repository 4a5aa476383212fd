//! Chunks that are closed: where they end is agreed on, and then what lies before their ends is done, and the rest is done anew.
//!
//! ```text
//!   Draining ─ no plan is under way ─▶ Stopping ─ enough ends are known (C4) ─▶ Filling ─ all have as much ─▶ Sealing
//!                                        ▲  └ not enough: `grow`                                               │
//!      Waiting ── later, or a server ────┘            resolved: I9, and what lies behind is sent again ◀── Committing
//! ```
//!
//! Nothing is acknowledged on the strength of fewer members, nor sent again, before the store names length and members (C3). Writes of
//! other blocks go on meanwhile, in another chunk.

mod grow;

use std::time::Duration;

use ob_core::{ChunkName, Instant, Revision, SegmentName, Units};
use ob_format::volume::metadata::ChunkState;

use super::chunks::ChunkIs;
use super::core::TierCore;
use super::plant::{Bug, is_planted};
use super::ports::retire_chunk;
use super::servers::{CallFor, Errand, Outcome, ServerCore};
use super::store::Then;
use super::taking::ListSums;
use super::{TierAction, TierNews};
use crate::metadata::{Expect, MetadataValue, Name};
use crate::wire::{Answer, End, EndState, Refusal, Reply, Request};
use grow::Growth;

/// How long each member is waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long after it could not go on a seal is begun anew.
const AGAIN: Duration = Duration::from_secs(1);

/// A chunk that is being sealed.
#[derive(Debug)]
pub(super) struct Seal {
    phase: Phase,
    /// Answers to earlier attempts are not heard.
    attempt: u64,
    /// How often it was begun.
    attempts: u32,
    members: Vec<SealMember>,
    /// Where it is to end, and the CRC of what lies before.
    length: Units,
    content_crc: u32,
    /// Those that did not give what they alone have, in any attempt.
    ungiving: Vec<usize>,
    growth: Growth,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Plans are under way.
    Draining,
    Waiting {
        again: Instant,
    },
    Stopping {
        until: Instant,
    },
    /// A copy is under way, from one of the members to another.
    Filling {
        from: usize,
        to: usize,
    },
    /// The same, to find out how far they go together.
    Growing {
        from: usize,
        to: usize,
    },
    Sealing {
        until: Instant,
    },
    /// All that is missing is the store's word.
    Agreed,
    Committing,
}

#[derive(Clone, Copy, Debug)]
struct SealMember {
    server: usize,
    is: MemberIs,
    /// How often it could not give, or take, what was copied.
    failures: u8,
    /// Whether it was told that it is longer than it thinks.
    is_reopened: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemberIs {
    Asked,
    Ended(End),
    Sealed,
    /// It has nothing of the chunk any more.
    Lost,
    /// It is not there, or does not say.
    Out,
}

impl SealMember {
    const fn end(&self) -> Option<End> {
        match self.is {
            MemberIs::Ended(end) => Some(end),
            MemberIs::Asked | MemberIs::Sealed | MemberIs::Lost | MemberIs::Out => None,
        }
    }
}

impl Seal {
    fn new() -> Self {
        Self {
            phase: Phase::Draining,
            attempt: 0,
            attempts: 0,
            members: Vec::new(),
            length: Units(0),
            content_crc: 0,
            ungiving: Vec::new(),
            growth: Growth::default(),
        }
    }

    fn member_mut(&mut self, server: usize) -> Option<&mut SealMember> {
        self.members.iter_mut().find(|member| member.server == server)
    }

    fn is_asked(&self) -> bool {
        self.members.iter().any(|member| member.is == MemberIs::Asked)
    }

    /// Where it ends, once nothing about that is asked any more.
    pub(super) const fn length_to_list(&self) -> Option<Units> {
        match self.phase {
            Phase::Agreed => Some(self.length),
            _ => None,
        }
    }

    /// Those that have all of it, and will be named.
    pub(super) fn sealed_members(&self) -> impl Iterator<Item = usize> + '_ {
        self.members.iter().filter(|member| member.is == MemberIs::Sealed).map(|member| member.server)
    }

    /// The longest end that is known to be enough (C4), if nobody knows better than `known` how far the chunk was acknowledged. What a
    /// member alone has and does not give is done without, if what others have is enough by itself.
    fn end(&self, known: Option<Units>) -> Option<End> {
        let gives = |member: &&SealMember| !self.ungiving.contains(&member.server);
        let ends = || self.members.iter().filter_map(SealMember::end);
        let given = || self.members.iter().filter(gives).filter_map(SealMember::end);
        let is_sure = |end: End| matches!(end.state, EndState::Known | EndState::Clean);
        let longest_given = given().max_by_key(|end| end.end).filter(|_| !self.ungiving.is_empty());
        let is_enough = |end: &End| match known {
            Some(known) => end.end >= known,
            None => self.is_enough_inherited() || is_planted(Bug::DoubtIgnored),
        };
        longest_given
            .filter(|end| match known {
                Some(known) => end.end >= known,
                None => given().any(is_sure),
            })
            .or_else(|| ends().max_by_key(|end| end.end).filter(is_enough))
    }

    /// Whether the ends that are known are enough, when nobody knows how far the chunk was acknowledged (C4): every member had what was,
    /// so one is enough that has everything it ever took; or all of them, if none of them has rotted.
    fn is_enough_inherited(&self) -> bool {
        let ends = || self.members.iter().filter_map(SealMember::end);
        let is_sure = |end: End| matches!(end.state, EndState::Known | EndState::Clean);
        let has_said = |member: &SealMember| matches!(member.is, MemberIs::Ended(_) | MemberIs::Lost);
        let is_rotten = |end: End| end.state == EndState::Damaged;
        ends().any(is_sure) || (self.members.iter().all(has_said) && !ends().any(is_rotten))
    }

    /// Answers that are still to come are not heard.
    const fn begin_anew(&mut self, again: Instant) {
        (self.phase, self.attempt) = (Phase::Waiting { again }, 0);
    }

    const fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Waiting { .. })
    }

    /// Whether it has not come on for want of servers (OB015).
    pub(super) const fn is_stuck(&self) -> bool {
        self.attempts > 2
    }

    const fn next_due(&self) -> Option<Instant> {
        match self.phase {
            Phase::Waiting { again } => Some(again),
            Phase::Stopping { until } | Phase::Sealing { until } => Some(until),
            Phase::Draining
            | Phase::Filling { .. }
            | Phase::Growing { .. }
            | Phase::Agreed
            | Phase::Committing => None,
        }
    }
}

impl TierCore {
    /// Nothing is written to a chunk any more.
    pub(super) fn close_chunk(&mut self, now: Instant, name: SegmentName, place: usize) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        for of in [&mut segment.open, &mut segment.space.maintenance] {
            of.retain(|_, open| *open != place);
        }
        let Some(chunk) = segment.chunks.get_mut(place).filter(|chunk| chunk.is_open()) else { return };
        chunk.is = ChunkIs::Closing(Seal::new());
        self.closing.insert((name, place));
        self.continue_seal(now, name, place);
    }

    fn seal_mut(&mut self, name: SegmentName, place: usize) -> Option<&mut Seal> {
        match &mut self.segments.get_mut(&name)?.chunks.get_mut(place)?.is {
            ChunkIs::Closing(seal) => Some(seal),
            _ => None,
        }
    }

    pub(super) fn seals_next_due(&self) -> Option<Instant> {
        let of = |(name, place): &(SegmentName, usize)| {
            // Those of others wait until the segment is held.
            let segment = self.segments.get(name).filter(|segment| segment.standing.is_held())?;
            match &segment.chunks.get(*place)?.is {
                ChunkIs::Closing(seal) => seal.next_due(),
                _ => None,
            }
        };
        self.closing.iter().filter_map(of).min()
    }

    /// Seals that wait go on when it is time.
    pub(super) fn seals_due(&mut self, now: Instant) {
        if self.seals_next_due().is_none_or(|due| due > now) {
            return;
        }
        for (name, place) in self.closing.clone() {
            let Some(seal) = self.seal_mut(name, place) else { continue };
            if seal.next_due().is_none_or(|due| due > now) {
                continue;
            }
            // Those that have not said anything are not waited for any longer.
            for member in seal.members.iter_mut().filter(|member| member.is == MemberIs::Asked) {
                member.is = MemberIs::Out;
            }
            match seal.phase {
                Phase::Stopping { .. } => self.judge(now, name, place, true),
                Phase::Sealing { .. } => self.all_sealed(now, name, place),
                _ => self.continue_seal(now, name, place),
            }
        }
    }

    /// Whether a chunk of an earlier life has been agreed on, and what it has was applied by its list: it ends there, for this owner too.
    fn is_applied(&self, name: SegmentName, place: usize) -> bool {
        let chunk = self.segments.get(&name).and_then(|segment| segment.chunks.get(place));
        let is_agreed = chunk.is_some_and(|chunk| {
            let is_agreed = matches!(&chunk.is, ChunkIs::Closing(seal) if seal.phase == Phase::Agreed);
            is_agreed && chunk.is_inherited && chunk.is_log()
        });
        is_agreed && !self.awaits_list(name, place)
    }

    /// Who was at a place is at another. What was agreed on is the store's already, or the index's; everything before that is asked anew.
    pub(super) fn rename_in_seals(&mut self, now: Instant, from: usize, to: usize) {
        for (name, place) in self.closing.clone() {
            let is_applied = self.is_applied(name, place);
            let Some(seal) = self.seal_mut(name, place) else { continue };
            let is_its = seal.members.iter().any(|member| member.server == from || member.server == to);
            seal.ungiving.clear();
            if seal.phase == Phase::Committing || is_applied {
                for member in seal.members.iter_mut().filter(|member| member.server == from) {
                    member.server = to;
                }
            } else if is_its && seal.phase != Phase::Draining {
                seal.begin_anew(now);
                self.forget_list(name, place);
            }
        }
    }

    /// Nobody who has all of a chunk tells what it has: perhaps others do.
    pub(super) fn reseal(&mut self, now: Instant, name: SegmentName, place: usize) {
        if let Some(seal) = self.seal_mut(name, place).filter(|seal| seal.phase == Phase::Agreed) {
            seal.begin_anew(now + AGAIN);
        }
    }

    /// A server is there again: those that wait for one look whether it is theirs.
    pub(super) fn retry_seals(&mut self, now: Instant) {
        for (name, place) in self.closing.clone() {
            if let Some(seal) = self.seal_mut(name, place).filter(|seal| seal.is_waiting()) {
                seal.phase = Phase::Waiting { again: now };
                self.continue_seal(now, name, place);
            }
        }
    }

    /// All seals of a segment go on that can.
    pub(super) fn continue_seals(&mut self, now: Instant, name: SegmentName) {
        let places: Vec<usize> =
            self.closing.iter().filter(|(of, _)| *of == name).map(|(_, place)| *place).collect();
        for place in places {
            self.continue_seal(now, name, place);
        }
    }

    pub(super) fn continue_seal(&mut self, now: Instant, name: SegmentName, place: usize) {
        let Some(segment) = self.segments.get(&name) else { return };
        let is_owned = segment.standing.is_held() && self.is_connected();
        let Some(chunk) = segment.chunks.get(place) else { return };
        let ChunkIs::Closing(seal) = &chunk.is else { return };
        if !is_owned || chunk.changes > 0 {
            return;
        }
        match seal.phase {
            Phase::Draining => self.stop_members(now, name, place),
            Phase::Waiting { again } if again <= now => self.stop_members(now, name, place),
            Phase::Agreed => self.commit_seal(now, name, place),
            _ => {}
        }
    }

    /// All members that are there are told to take nothing more, and tell their ends.
    fn stop_members(&mut self, now: Instant, name: SegmentName, place: usize) {
        self.last_attempt += 1;
        let attempt = self.last_attempt;
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let (Some(epoch), Some(chunk)) = (segment.epoch(), segment.chunks.get_mut(place)) else { return };
        let of = ChunkName::new(name, chunk.number);
        let is_ready = |server: &usize| self.servers.get(*server).is_some_and(ServerCore::is_ready);
        let (there, away): (Vec<usize>, Vec<usize>) =
            chunk.members.iter().partition(|server| is_ready(server));
        let ChunkIs::Closing(seal) = &mut chunk.is else { return };
        let member =
            |is| move |server: &usize| SealMember { server: *server, is, failures: 0, is_reopened: false };
        seal.attempt = attempt;
        seal.attempts = seal.attempts.saturating_add(1);
        seal.members = there.iter().map(member(MemberIs::Asked)).collect();
        seal.members.extend(away.iter().map(member(MemberIs::Out)));
        if there.is_empty() {
            seal.phase = Phase::Waiting { again: now + AGAIN };
            return;
        }
        seal.phase = Phase::Stopping { until: now + PATIENCE };
        for server in there {
            let errand = Errand { segment: name, place, attempt, is_repair: false };
            self.call(server, CallFor::Stop(errand), Request::Stop { chunk: of, epoch }, &[]);
        }
    }

    /// A seal that is under way, if the answer is to its last attempt.
    fn seal_of(&mut self, errand: Errand) -> Option<&mut Seal> {
        self.seal_mut(errand.segment, errand.place).filter(|seal| seal.attempt == errand.attempt)
    }

    /// A member has told its end, or has not.
    pub(super) fn member_stopped(&mut self, now: Instant, errand: Errand, server: usize, outcome: &Outcome) {
        let Some(seal) = self.seal_of(errand) else { return };
        let Some(member) = seal.member_mut(server).filter(|member| member.is == MemberIs::Asked) else {
            return;
        };
        member.is = match outcome {
            Outcome::Answered(Answer::Good(Reply::Stop(end))) => MemberIs::Ended(*end),
            Outcome::Answered(Answer::Refused { refusal: Refusal::NoChunk, .. }) => MemberIs::Lost,
            Outcome::Answered(_) | Outcome::Failed => MemberIs::Out,
        };
        if let Some(known) = outcome.stale() {
            return self.segment_stale(now, errand.segment, Some(known));
        }
        self.judge(now, errand.segment, errand.place, false);
    }

    /// Whether enough is known of the chunk's end, and where it is then (C4).
    fn judge(&mut self, now: Instant, name: SegmentName, place: usize, is_late: bool) {
        let Some(volume) = self.volumes.get(&name.volume).map(|served| served.volume) else { return };
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let Some(chunk) = segment.chunks.get_mut(place) else { return };
        let (known, is_inherited) = (chunk.end, chunk.is_inherited);
        let ChunkIs::Closing(seal) = &mut chunk.is else { return };
        if seal.is_asked() || !matches!(seal.phase, Phase::Stopping { .. }) {
            return;
        }
        let ends = || seal.members.iter().filter_map(SealMember::end);
        // One that is there again in a moment is worth waiting for, if without it there would be hardly any.
        if !is_late && ends().count() < usize::from(volume.replicas_min) {
            return;
        }
        let shortest = ends().min_by_key(|end| end.end).filter(|_| is_planted(Bug::SealShortest));
        // What was acknowledged is what all members had: one of them that still has that much is enough, and without one nobody guesses.
        let known = (!is_inherited).then_some(if is_planted(Bug::DoubtIgnored) { Units(0) } else { known });
        let Some(end) = shortest.or(seal.end(known)) else { return self.grow(now, name, place) };
        (seal.length, seal.content_crc) = (end.end, end.content_crc);
        if is_planted(Bug::AckBeforeRecord) {
            let members = seal.members.iter().filter(|member| member.end().is_some());
            let members = members.map(|member| member.server).collect();
            self.resolve(now, name, place, members);
        }
        self.fill_next(now, name, place);
    }

    /// The next member that has less gets what it lacks from one that has it (C5).
    fn fill_next(&mut self, now: Instant, name: SegmentName, place: usize) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let (Some(epoch), Some(chunk)) = (segment.epoch(), segment.chunks.get_mut(place)) else { return };
        let of = ChunkName::new(name, chunk.number);
        let ChunkIs::Closing(seal) = &mut chunk.is else { return };
        let (length, attempt) = (seal.length, seal.attempt);
        let lacks = seal.members.iter().find_map(|member| {
            member.end().filter(|end| end.end < length).map(|end| (member.server, end.end))
        });
        let Some((to, at)) = lacks.filter(|_| !is_planted(Bug::RecordBeforeCopy)) else {
            return self.seal_members(now, name, place);
        };
        let whole = seal.members.iter().filter(|member| member.end().is_some_and(|end| end.end >= length));
        let Some(from) = whole.min_by_key(|member| member.failures).map(|member| member.server) else {
            return;
        };
        seal.phase = Phase::Filling { from, to };
        let errand = Errand { segment: name, place, attempt, is_repair: false };
        self.copy(errand, (from, to), of, epoch, at, length);
    }

    /// A copy is over: how far the member is now, or which of the two has failed.
    pub(super) fn member_filled(&mut self, now: Instant, errand: Errand, copied: Copied) {
        let Some(seal) = self.seal_of(errand) else { return };
        if let Phase::Growing { from, to } = seal.phase {
            return self.member_grown(now, errand, (from, to), copied);
        }
        let Phase::Filling { from, to } = seal.phase else { return };
        let at = seal.member_mut(to).and_then(|member| member.end()).map_or(Units(0), |end| end.end);
        let failed = match copied {
            Copied::To(durable) if durable > at => {
                if let Some(SealMember { is: MemberIs::Ended(end), .. }) = seal.member_mut(to) {
                    end.end = durable;
                }
                None
            }
            Copied::To(_) | Copied::NotTaken => Some(to),
            Copied::NotGiven { .. } => Some(from),
        };
        if failed == Some(to) && seal.member_mut(to).is_some_and(|member| !member.is_reopened) {
            return self.reopen_member(errand, to);
        }
        if let Some(member) = failed.and_then(|server| seal.member_mut(server)) {
            member.failures += 1;
            if member.failures > 2 {
                member.is = MemberIs::Out;
                if failed == Some(from) && !seal.ungiving.contains(&from) {
                    seal.ungiving.push(from);
                }
            }
        }
        let length = seal.length;
        let is_whole = |member: &SealMember| member.end().is_some_and(|end| end.end >= length);
        if !seal.members.iter().any(is_whole) {
            // Nobody can give the rest any more.
            seal.phase = Phase::Waiting { again: now + AGAIN };
            return;
        }
        self.fill_next(now, errand.segment, errand.place);
    }

    /// A member takes nothing: an earlier life may have sealed it at a shorter length. It is told which is right, and is filled from then on.
    fn reopen_member(&mut self, errand: Errand, server: usize) {
        let Some(segment) = self.segments.get(&errand.segment) else { return };
        let (Some(epoch), Some(chunk)) = (segment.epoch(), segment.chunks.get(errand.place)) else { return };
        let chunk = ChunkName::new(errand.segment, chunk.number);
        let Some(seal) = self.seal_of(errand) else { return };
        let (length, content_crc) = (seal.length, seal.content_crc);
        if let Some(member) = seal.member_mut(server) {
            member.is_reopened = true;
        }
        self.call(server, CallFor::Reopen(errand), Request::Seal { chunk, epoch, length, content_crc }, &[]);
    }

    pub(super) fn member_reopened(&mut self, now: Instant, errand: Errand, server: usize, outcome: &Outcome) {
        let Some(seal) = self.seal_of(errand) else { return };
        let length = seal.length;
        let Some(member) = seal.member_mut(server) else { return };
        let at = match outcome {
            Outcome::Answered(Answer::Refused { refusal: Refusal::Gap { end }, .. }) => Some(*end),
            Outcome::Answered(Answer::Good(Reply::Seal)) => Some(length),
            Outcome::Answered(_) | Outcome::Failed => None,
        };
        if let (Some(at), MemberIs::Ended(end)) = (at, &mut member.is) {
            end.end = at.min(length);
        }
        self.fill_next(now, errand.segment, errand.place);
    }

    /// All that are there have as much: they are to stay so.
    fn seal_members(&mut self, now: Instant, name: SegmentName, place: usize) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let (Some(epoch), Some(chunk)) = (segment.epoch(), segment.chunks.get_mut(place)) else { return };
        let of = ChunkName::new(name, chunk.number);
        let ChunkIs::Closing(seal) = &mut chunk.is else { return };
        seal.phase = Phase::Sealing { until: now + PATIENCE };
        let (length, content_crc, attempt) = (seal.length, seal.content_crc, seal.attempt);
        let mut asked = Vec::new();
        for member in seal.members.iter_mut().filter(|member| member.end().is_some()) {
            member.is = MemberIs::Asked;
            asked.push(member.server);
        }
        let request = Request::Seal { chunk: of, epoch, length, content_crc };
        for server in asked {
            let errand = Errand { segment: name, place, attempt, is_repair: false };
            self.call(server, CallFor::Seal(errand), request, &[]);
        }
    }

    /// A member is sealed, or is not.
    pub(super) fn member_sealed(&mut self, now: Instant, errand: Errand, server: usize, outcome: &Outcome) {
        let Some(seal) = self.seal_of(errand) else { return };
        let Some(member) = seal.member_mut(server).filter(|member| member.is == MemberIs::Asked) else {
            return;
        };
        let is_planted = is_planted(Bug::RecordBeforeCopy)
            && matches!(outcome, Outcome::Answered(Answer::Refused { refusal: Refusal::Gap { .. }, .. }));
        member.is = match outcome {
            Outcome::Answered(Answer::Good(Reply::Seal)) => MemberIs::Sealed,
            _ if is_planted => MemberIs::Sealed,
            Outcome::Answered(_) | Outcome::Failed => MemberIs::Out,
        };
        if !seal.is_asked() {
            self.all_sealed(now, errand.segment, errand.place);
        }
    }

    /// Nobody is waited for any more: those that have said so are the members.
    fn all_sealed(&mut self, now: Instant, name: SegmentName, place: usize) {
        let Some(seal) = self.seal_mut(name, place) else { return };
        if !seal.members.iter().any(|member| member.is == MemberIs::Sealed) {
            seal.phase = Phase::Waiting { again: now + AGAIN };
            return;
        }
        seal.phase = Phase::Agreed;
        self.commit_seal(now, name, place);
    }

    fn commit_seal(&mut self, now: Instant, name: SegmentName, place: usize) {
        if self.awaits_list(name, place) {
            // Its record says what it has, and that nobody knows yet.
            return self.continue_lists(now, name);
        }
        let Some(segment) = self.segments.get_mut(&name) else { return };
        if segment.is_committing || !segment.standing.is_held() {
            return;
        }
        let Some(revision) = segment.revision else { return };
        let Some(chunk) = segment.chunks.get(place) else { return };
        let is_inherited = chunk.is_inherited && chunk.is_log();
        let ChunkIs::Closing(seal) = &chunk.is else { return };
        let sealed: Vec<usize> = seal.sealed_members().collect();
        let (ends, sums) = ((seal.length, seal.content_crc), chunk.sums_below(seal.length));
        let (expect, number) = (Expect::At(chunk.revision), chunk.number);
        let what = (ChunkState::Sealed, chunk.kind, chunk.epoch);
        let record = self.record_of(what, &sealed, ends, sums);
        if record.is_none() && is_inherited {
            // What it has was applied, and it could end elsewhere the next time.
            return self.take_anew(now, name);
        }
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let Some(ChunkIs::Closing(seal)) = segment.chunks.get_mut(place).map(|chunk| &mut chunk.is) else {
            return;
        };
        let Some(record) = record else { return seal.begin_anew(now + AGAIN) };
        seal.phase = Phase::Committing;
        segment.is_committing = true;
        let key = Name::Chunk(ChunkName::new(name, number));
        let others = vec![(self.config.keys.key(Name::Segment(name)), Expect::At(revision))];
        let value = MetadataValue::Chunk(record).encode();
        self.commit(key, expect, others, value, Then::Sealed(name, place), None);
    }

    /// The store has the chunk's length and members, or never will.
    pub(super) fn seal_committed(
        &mut self,
        now: Instant,
        name: SegmentName,
        place: usize,
        revision: Option<Revision>,
    ) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        segment.is_committing = false;
        let Some(revision) = revision else { return self.segment_robbed(now, name) };
        let Some(chunk) = segment.chunks.get_mut(place) else { return };
        chunk.revision = revision;
        if let ChunkIs::Closing(seal) = &chunk.is {
            let sealed = seal.members.iter().filter(|member| member.is == MemberIs::Sealed);
            let members = sealed.map(|member| member.server).collect();
            self.resolve(now, name, place, members);
        }
        self.commit_over(now, name);
    }

    /// From now on everybody agrees on what the chunk has. What lies in it is done (I9), and the rest is to be done anew.
    fn resolve(&mut self, now: Instant, name: SegmentName, place: usize, members: Vec<usize>) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let Some(chunk) = segment.chunks.get_mut(place) else { return };
        let ChunkIs::Closing(seal) = &chunk.is else { return };
        let (length, content_crc) = (seal.length, seal.content_crc);
        chunk.is = ChunkIs::Sealed { content_crc };
        chunk.strays = chunk.members.iter().copied().filter(|member| !members.contains(member)).collect();
        chunk.members = members;
        (chunk.length, chunk.end, chunk.posted) = (length, length, length);
        let mut unresolved = std::mem::take(&mut chunk.unresolved);
        unresolved.sort_by_key(|record| record.sequence);
        let news = TierNews::Sealed {
            chunk: ChunkName::new(name, chunk.number),
            length,
            members: chunk.members.len(),
            resolved: unresolved.len(),
        };
        self.actions.push_back(TierAction::Report(news));
        segment.space.sealed += 1;
        self.closing.remove(&(name, place));
        self.counts.chunks_sealed += 1;
        retire_chunk(&mut self.ports, (name, place));
        for record in unresolved {
            let end = Units(record.offset.0.saturating_add(record.units.0));
            let is_there = end <= length;
            if is_there
                && !is_planted(Bug::PrefixIgnored)
                && let Some(segment) = self.segments.get_mut(&name)
            {
                let blocks = record.blocks.clone();
                // What the card said of it was looked at when it said so.
                segment.apply(blocks, place, record.sequence, record.offset, record.units, record.is_trim);
            }
            self.record_resolved(record.owner, record.part, is_there);
        }
        self.repair_at = Some(now);
    }
}

/// What has come of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copied {
    /// The receiver has so much now.
    To(Units),
    /// The one that was to give has not: because it has nothing that is good there, or nobody knows.
    NotGiven { is_bad: bool },
    /// The one that was to take has not.
    NotTaken,
}

impl super::chunks::TierChunk {
    /// What its record is to say of what lies before its end.
    fn sums_below(&self, length: Units) -> ListSums {
        let mut sums = self.sums();
        for record in &self.unresolved {
            if record.offset.0.saturating_add(record.units.0) <= length.0 {
                sums.last_sequence = sums.last_sequence.max(record.sequence);
                sums.blocks +=
                    if record.is_trim { 0 } else { u64::from(record.blocks.end - record.blocks.start) };
                sums.records += 1;
            }
        }
        sums
    }
}
