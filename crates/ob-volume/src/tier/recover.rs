//! What is lost for good, as an administrator says: blocks of which nobody has anything any more answer so, and the segment is served again.
//!
//! ```text
//!   recover NAME ─ every member is out, everybody else is there and has told what it has ─▶ accepted ─┬─ Taking: without it ─▶ Owned ─┐
//!                                                                                                      └─ Owned ──────────────────────┴─▶ LOST
//!   answered ◀─ the chunks are dead, as any of which nothing counts ◀─ a head is past that ◀─ checkpoint ◀──────────────────────────────┘
//! ```
//!
//! Nothing of it is in the store before a head says which blocks are lost. A host that dies before that leaves the segment as it was.

use std::collections::BTreeMap;
use std::time::Duration;

use ob_core::{Instant, SegmentId, SegmentName, Sequence, ServerId, VolumeId};
use ob_format::volume::metadata::Text;
use ob_format::volume::{EntryState, IndexEntry, RECORDS_START};

use super::admin::{AdminAnswer, AdminError, Ticket};
use super::chunks::{ChunkIs, TierChunk};
use super::core::TierCore;
use super::index::chunk_of;
use super::plant::{Bug, is_planted};
use super::segments::Standing;
use super::servers::ServerCore;

/// How long it is waited for a head that says what is lost, before whoever asked is told that it goes on.
const SAID_WITHIN: Duration = Duration::from_secs(20);
/// How often it is looked how far it is.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What is lost of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossFacts {
    /// Chunks of which nobody has anything.
    pub chunks: u64,
    /// Those of them that no checkpoint was past: what they had nobody knows, and it reads as it was before.
    pub unknown: u64,
    /// Blocks that cannot be read.
    pub blocks: u64,
    /// Segments whose index is put together from what is left: what was trimmed may be there again.
    pub indexes: u64,
}

/// A request that is under way.
#[derive(Debug)]
pub(super) struct Recovery {
    volume: VolumeId,
    name: Text<64>,
    until: Instant,
    look_at: Instant,
    lost: LossFacts,
    /// Whoever asked was told that it takes longer. It goes on.
    is_told: bool,
}

/// By their tickets.
pub(super) type Recoveries = BTreeMap<Ticket, Recovery>;

impl TierCore {
    /// Whether every server that a chunk's record names is out.
    fn is_without_members(&self, chunk: &TierChunk) -> bool {
        let is_something = match chunk.is {
            ChunkIs::Open | ChunkIs::Closing(_) => true,
            ChunkIs::Sealed { .. } => chunk.length > RECORDS_START,
            ChunkIs::Dead(_) | ChunkIs::Gone => false,
        };
        is_something && !chunk.is_lost && chunk.members.iter().all(|server| self.is_out(*server))
    }

    /// Whether nobody has anything of a chunk any more: servers that are merely away may (R9).
    pub(super) fn is_gone(&self, name: SegmentName, chunk: &TierChunk) -> bool {
        self.is_gone_but_in_part(name, chunk) && chunk.strays.iter().all(|server| self.is_out(*server))
    }

    /// Whether nobody has all of a chunk any more. Somebody whom nobody names may have some of it, such as a replica that was being made.
    pub(super) fn is_gone_but_in_part(&self, name: SegmentName, chunk: &TierChunk) -> bool {
        let may_be_elsewhere = self.who_is_away().is_some() || !self.has_each_told(name);
        self.is_without_members(chunk) && !may_be_elsewhere
    }

    /// A server of the pool that is not there, and not out.
    fn who_is_away(&self) -> Option<ServerId> {
        if is_planted(Bug::RecoveredEarly) {
            return None;
        }
        let is_there = |id| self.servers.iter().any(|server| server.id == Some(id) && server.is_ready());
        self.pooled.living().map(|(id, _)| id).find(|id| !is_there(*id))
    }

    fn segments_of(&self, volume: VolumeId) -> Vec<SegmentName> {
        let first = SegmentName { volume, segment: SegmentId(0) };
        let last = SegmentName { volume, segment: SegmentId(u32::MAX) };
        let held = self.segments.range(first..=last).filter(|(_, segment)| segment.standing.is_held());
        held.map(|(name, _)| *name).collect()
    }

    /// What would be lost of a segment; nothing, if all of it is there.
    fn loss_of(&self, name: SegmentName) -> Option<LossFacts> {
        let segment = self.segments.get(&name)?;
        let is_taken = segment.taking.is_some();
        let (mut loss, mut is_head_lost) = (LossFacts::default(), false);
        for chunk in segment.chunks.iter().filter(|chunk| self.is_without_members(chunk)) {
            if !chunk.is_log() {
                // Whoever has the segment has all of the index in memory.
                (loss.indexes, is_head_lost) = (u64::from(is_taken), true);
                continue;
            }
            loss.chunks += 1;
            loss.blocks += chunk.live;
            let is_past =
                matches!(chunk.is, ChunkIs::Sealed { .. }) && chunk.last_sequence <= segment.head_sequence();
            loss.unknown += u64::from(is_taken && !is_past);
        }
        for chunk in segment.chunks.iter().filter(|chunk| chunk.is_log() && self.is_end_gone(chunk)) {
            loss.unknown += u64::from(!self.is_without_members(chunk));
        }
        (is_head_lost || loss != LossFacts::default()).then_some(loss)
    }

    /// Whether those that have something of a chunk that is sealed have told all that they can, and that is not enough.
    fn is_end_gone(&self, chunk: &TierChunk) -> bool {
        let is_ready = |place: &usize| self.servers.get(*place).is_some_and(ServerCore::is_ready);
        let is_stuck = matches!(&chunk.is, ChunkIs::Closing(seal) if seal.is_stuck());
        let has_any = chunk.members.iter().any(is_ready);
        let is_known = chunk.members.iter().all(|member| is_ready(member) || self.is_out(*member));
        is_stuck && has_any && is_known && chunk.is_inherited
    }

    pub(super) fn recover(&mut self, ticket: Ticket, name: Text<64>, accept_loss: bool) {
        let of = self.volumes.iter().find(|(_, served)| served.volume.name == name).map(|(id, _)| *id);
        let Some(volume) = of else { return self.tell(ticket, Err(AdminError::UnknownVolume(name))) };
        let segments = self.segments_of(volume);
        let mut lost = LossFacts::default();
        let mut wanting = Vec::new();
        for segment in segments {
            if let Some(loss) = self.loss_of(segment) {
                wanting.push(segment);
                lost.add(loss);
            }
        }
        if wanting.is_empty() {
            return self.tell(ticket, Ok(AdminAnswer::Recovered(lost)));
        }
        if let Some(away) = self.who_is_away() {
            return self.tell(ticket, Err(AdminError::MayBeElsewhere(away)));
        }
        if !accept_loss {
            return self.tell(ticket, Err(AdminError::WouldLoseBlocks(lost)));
        }
        for segment in wanting {
            self.accept_loss(segment);
        }
        let now = self.now;
        // What is lost is counted when it is marked.
        let lost = LossFacts { blocks: 0, ..lost };
        let until = now + SAID_WITHIN;
        let recovery = Recovery { volume, name, until, look_at: now, lost, is_told: false };
        self.recoveries.insert(ticket, recovery);
        self.recoveries_due(now);
    }

    fn accept_loss(&mut self, name: SegmentName) {
        // What servers have told before, they may have told when the segment was somebody else's.
        self.sweep_soon(self.now, name);
        self.ask_untold();
        if let Some(segment) = self.segments.get_mut(&name) {
            segment.accepts_loss = true;
        }
    }

    pub(super) fn recoveries_next_due(&self) -> Option<Instant> {
        self.recoveries.values().map(|recovery| recovery.look_at).min()
    }

    /// Those go on that can, and those who have asked are told what came of it.
    pub(super) fn recoveries_due(&mut self, now: Instant) {
        let due = self.recoveries.iter_mut().filter(|(_, recovery)| recovery.look_at <= now);
        let due: Vec<(Ticket, VolumeId)> = due
            .map(|(ticket, recovery)| {
                recovery.look_at = now + LOOK_EVERY;
                (*ticket, recovery.volume)
            })
            .collect();
        for (ticket, volume) in due {
            let segments = self.segments_of(volume);
            for name in &segments {
                self.continue_recovery(now, *name);
            }
            let is_under_way =
                |name: &SegmentName| self.segments.get(name).is_some_and(|segment| segment.accepts_loss);
            let is_over = !segments.iter().any(is_under_way);
            let Some(recovery) = self.recoveries.get_mut(&ticket) else { continue };
            let (lost, name, is_late) = (recovery.lost, recovery.name, recovery.until <= now);
            let is_told = recovery.is_told;
            recovery.is_told |= is_late;
            if is_over {
                self.recoveries.remove(&ticket);
            }
            if !is_told && (is_over || is_late) {
                let told = is_over.then_some(AdminAnswer::Recovered(lost));
                self.tell(ticket, told.ok_or(AdminError::StillRecovering(name)));
            }
        }
    }

    /// Those who have asked, and were not told anything.
    pub(super) fn end_recoveries(&mut self) -> Vec<Ticket> {
        let all = std::mem::take(&mut self.recoveries).into_iter();
        all.filter(|(_, recovery)| !recovery.is_told).map(|(ticket, _)| ticket).collect()
    }

    fn continue_recovery(&mut self, now: Instant, name: SegmentName) {
        let Some(segment) = self.segments.get(&name).filter(|segment| segment.accepts_loss) else { return };
        match segment.standing {
            Standing::Taking => {
                if self.is_head_gone(now, name) {
                    self.go_on_without_head(now, name);
                }
                for (place, is_gone) in self.untold(now, name) {
                    if is_gone {
                        self.lose_chunk(now, name, place);
                    }
                    self.go_on_without_list(name, place);
                }
                self.continue_taking(now, name);
            }
            Standing::Owned => {
                let Some(segment) = self.segments.get(&name) else { return };
                // What somebody has of one in part is moved first.
                let is_gone = |(place, chunk): &(usize, &TierChunk)| {
                    let is_tried = self.left_alone.contains_key(&(name, *place)) || !chunk.is_log();
                    self.is_gone(name, chunk) || (is_tried && self.is_gone_but_in_part(name, chunk))
                };
                let gone = segment.chunks.iter().enumerate().filter(is_gone);
                let gone: Vec<(usize, bool)> = gone.map(|(place, chunk)| (place, chunk.is_log())).collect();
                for (place, is_log) in gone {
                    match is_log {
                        true => self.lose_chunk(now, name, place),
                        // All of the index is in memory: another head is written.
                        false => self.lose_head(name),
                    }
                }
                self.mark_lost(now, name);
                let is_over = self.loss_of(name).is_none() && self.is_loss_said(name);
                if let Some(segment) = self.segments.get_mut(&name) {
                    segment.accepts_loss &= !is_over;
                }
            }
            _ => {}
        }
    }

    /// Whether the store has all of it: which blocks are lost, and that nobody looks for the chunks any more.
    fn is_loss_said(&self, name: SegmentName) -> bool {
        self.segments.get(&name).is_some_and(|segment| {
            let is_left = |chunk: &TierChunk| chunk.is_lost && matches!(chunk.is, ChunkIs::Sealed { .. });
            segment.space.lost_at.is_none() && !segment.chunks.iter().any(is_left)
        })
    }

    fn lose_head(&mut self, name: SegmentName) {
        if let Some(segment) = self.segments.get_mut(&name) {
            segment.space.is_loss_new |= segment.space.lost_at.is_none();
        }
    }

    fn lose_chunk(&mut self, now: Instant, name: SegmentName, place: usize) {
        let chunk = self.segments.get(&name).and_then(|segment| segment.chunks.get(place));
        let is_sealed = chunk.is_some_and(|chunk| matches!(chunk.is, ChunkIs::Sealed { .. }));
        if is_sealed || self.seal_as_lost(now, name, place) {
            let Some(segment) = self.segments.get_mut(&name) else { return };
            if let Some(chunk) = segment.chunks.get_mut(place) {
                (chunk.is_lost, segment.space.is_loss_new) = (true, true);
            }
        }
    }

    /// Blocks that lie in what is lost answer so; and a head is to say it, before the chunks go that they lay in.
    pub(super) fn mark_lost(&mut self, now: Instant, name: SegmentName) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        if !segment.accepts_loss || segment.standing != Standing::Owned {
            return;
        }
        let chunks = &segment.chunks;
        // Of one that ends before what was acknowledged the rest is lost.
        let is_lost = |entry: IndexEntry| {
            let chunk = chunk_of(entry).and_then(|place| chunks.get(place));
            let EntryState::Mapped { offset, .. } = entry.state() else { return false };
            let is_beyond =
                |chunk: &TierChunk| matches!(chunk.is, ChunkIs::Sealed { .. }) && offset >= chunk.length;
            chunk.is_some_and(|chunk| chunk.is_lost || is_beyond(chunk))
        };
        let mut from: BTreeMap<usize, u64> = BTreeMap::new();
        let blocks = segment.index.lose(|entry| {
            let is_lost = is_lost(entry);
            if let Some(place) = chunk_of(entry).filter(|_| is_lost) {
                *from.entry(place).or_default() += 1;
            }
            is_lost
        });
        if blocks == 0 && !segment.space.is_loss_new {
            return;
        }
        self.lose_blocks(now, name, &from);
        for recovery in self.recoveries.values_mut().filter(|recovery| recovery.volume == name.volume) {
            recovery.lost.blocks += blocks;
        }
    }

    fn lose_blocks(&mut self, now: Instant, name: SegmentName, from: &BTreeMap<usize, u64>) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let Some(at) = segment.take_sequence() else { return };
        for (place, chunk) in segment.chunks.iter_mut().enumerate() {
            chunk.live -= from.get(&place).copied().unwrap_or(0).min(chunk.live);
            if chunk.is_lost {
                // G2: no head that was begun before says what is lost.
                chunk.last_sequence = chunk.last_sequence.max(at);
            }
        }
        (segment.space.lost_at, segment.space.is_loss_new) = (Some(at), false);
        // What of it is written already says where the blocks were.
        self.give_checkpoint_up(name);
        self.space_at = Some(now);
        // They need nobody any more.
        self.ready.extend(self.memberless.drain(..));
    }

    /// A head is in the store.
    pub(super) fn note_loss_said(&mut self, name: SegmentName, head: Sequence) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        // If there is more that is lost, that is seen when it is looked the next time.
        segment.space.lost_at.take_if(|at| *at <= head);
    }
}

impl LossFacts {
    fn add(&mut self, other: Self) {
        self.chunks += other.chunks;
        self.unknown += other.unknown;
        self.blocks += other.blocks;
        self.indexes += other.indexes;
    }
}
