//! Memory that tier and card share: where what servers tell at length comes, and from where the index goes.
//!
//! ```text
//!   look ─ a slot of the card's area ─▶ LOOK ─▶ its driver copies the bytes out ─▶ looked
//!   index_record ─ a slot of the host's area ─▶ Upload, then INDEX ─▶ record_written
//! ```
//!
//! Slots of both areas are given out here. Who wants to look and finds none waits in line; the line is as long as its callers let it be.

use std::collections::{BTreeMap, VecDeque};

use ob_core::{ChunkName, Instant, SegmentName, Sequence, Units};
use ob_split::ledger::{Ledger, Place};
use ob_split::wire::{Completion, CompletionStatus, Slot};

use super::core::TierCore;
use super::ports::MAIN;
use super::servers::{Call, CallFor, Errand, channel_of};
use super::slots::ChunkPlace;
use super::{TierAction, TierError};
use crate::plans::{Index, IndexPart, LOOK_BYTES_MAX, Look, PostedPlan};
use crate::wire::{Refusal, Request};

/// What a server refuses with that knows a later epoch.
const STALE: u16 = Refusal::Stale { known: 0 }.status();

/// For what a server is asked at length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LookFor {
    /// The records of a chunk that is compacted.
    Compaction { attempt: u64 },
    /// The records of a chunk that is replayed.
    List(Errand),
    /// What a server has, in which round of sweeps.
    Sweep(u64),
    /// The records of a replica that nobody names, before it goes.
    Stray(Stray),
    /// A page that a head names, or the next part of its root.
    Head { segment: SegmentName, attempt: u64, page: u32 },
}

/// A sealed replica that nobody names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stray {
    pub(super) chunk: ChunkName,
    pub(super) end: Units,
    pub(super) is_sealed: bool,
}

/// What came of it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Looked<'a> {
    Brought {
        bytes: &'a [u8],
        /// How long the record is, if it is one.
        units: u32,
        /// Of lists where they go on, or whether there are more.
        word: u32,
    },
    /// The server knows a later epoch: somebody else has the segment.
    Stale,
    /// It has refused it for another reason, or did not answer.
    Failed,
}

/// For which page, or part of a root, a record is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordFor {
    pub(super) chunk: ChunkPlace,
    pub(super) part: IndexPart,
    pub(super) sequence: Sequence,
    /// Units that were reserved.
    pub(super) units: u32,
    pub(super) slot: Slot,
    pub(super) attempt: u64,
}

#[derive(Debug)]
struct Waiting {
    server: usize,
    of: LookFor,
    request: Request,
}

/// The slots of both areas.
#[derive(Debug)]
pub(super) struct Areas {
    card: Ledger,
    host: Ledger,
    /// By the call that has them.
    looks: BTreeMap<u32, Place>,
    uploads: BTreeMap<u32, Place>,
    waiting: VecDeque<Waiting>,
}

impl Areas {
    /// Nothing is taken.
    pub(super) fn new(card: u64, host: u64) -> Self {
        Self {
            card: Ledger::new(card),
            host: Ledger::new(host),
            looks: BTreeMap::new(),
            uploads: BTreeMap::new(),
            waiting: VecDeque::new(),
        }
    }

    /// Whether another record of the index can be sent.
    pub(super) const fn has_upload(&self) -> bool {
        self.host.free_slots() > 0
    }
}

impl TierCore {
    /// The port is closed: nothing of what was asked comes.
    pub(super) fn forget_areas(&mut self) {
        self.areas = Areas::new(self.config.card_area, self.config.host_area);
    }

    /// Where the bytes lie that a completion tells of: its driver copies them out of the card's area, and gives them along as the reply.
    #[must_use]
    pub fn brought(&self, completion: &Completion) -> Option<(u64, usize)> {
        let place = self.areas.looks.get(&completion.handle.0)?;
        let len = u64::from(completion.offset);
        let is_there = completion.status == CompletionStatus::Good && len <= place.space();
        is_there.then_some((place.offset(), completion.offset as usize))
    }

    /// A server is asked for what is long.
    pub(super) fn look(&mut self, server: usize, of: LookFor, request: Request) {
        let Some(place) = self.areas.card.take(LOOK_BYTES_MAX.into()) else {
            self.areas.waiting.push_back(Waiting { server, of, request });
            return;
        };
        let handle = self.free_call_handle();
        let channel = channel_of(server);
        let look = Look { channel, request, at: place.offset(), room: LOOK_BYTES_MAX };
        let Ok(plan) = PostedPlan::look(handle, &look) else {
            self.counts.mistakes += 1;
            return self.areas.card.give_back(place);
        };
        self.areas.looks.insert(handle.0, place);
        self.calls.insert(handle.0, Call { port: MAIN, server, of: CallFor::Look(of) });
        self.post_call(plan);
    }

    /// A look is over; those that wait for its slot go on.
    pub(super) fn look_over(
        &mut self,
        now: Instant,
        server: usize,
        of: LookFor,
        completion: &Completion,
        reply: Option<&[u8]>,
    ) -> Result<(), TierError> {
        let handle = completion.handle;
        if let Some(place) = self.areas.looks.remove(&handle.0) {
            self.areas.card.give_back(place);
        }
        let looked = match (completion.status, reply) {
            (CompletionStatus::Good, Some(bytes)) if bytes.len() == completion.offset as usize => {
                Looked::Brought { bytes, units: completion.units.into(), word: completion.word }
            }
            (CompletionStatus::Good, _) => {
                return Err(TierError::Completion { handle, what: "a look that went well brings bytes" });
            }
            _ if completion.units == STALE => Looked::Stale,
            _ => Looked::Failed,
        };
        match of {
            LookFor::Compaction { attempt } => self.chunk_listed(now, attempt, looked),
            LookFor::List(errand) => self.listed(now, errand, looked),
            LookFor::Sweep(round) => self.replicas_told(now, (server, round), looked),
            LookFor::Stray(stray) => self.stray_told(server, stray, looked),
            LookFor::Head { segment, attempt, page } => {
                self.index_read(now, (segment, attempt, page), looked);
            }
        }
        if let Some(Waiting { server, of, request }) = self.areas.waiting.pop_front() {
            self.look(server, of, request);
        }
        Ok(())
    }

    /// A record of the index is written. There is a slot for it ([`Areas::has_upload`]).
    pub(super) fn index_record(&mut self, record: RecordFor, effort: u8, bytes: Vec<u8>) -> bool {
        let Some(place) = self.areas.host.take(bytes.len() as u64) else { return false };
        let handle = self.free_call_handle();
        let index = Index {
            slot: record.slot,
            effort,
            sequence: record.sequence,
            at: place.offset(),
            length: bytes.len() as u32,
            part: record.part,
        };
        let Ok(plan) = PostedPlan::index(handle, &index) else {
            self.counts.mistakes += 1;
            self.areas.host.give_back(place);
            return false;
        };
        self.actions.push_back(TierAction::Upload { port: MAIN, at: place.offset(), bytes });
        self.areas.uploads.insert(handle.0, place);
        let of = CallFor::Record(record);
        self.calls.insert(handle.0, Call { port: MAIN, server: usize::MAX, of });
        self.post_call(plan);
        true
    }

    /// A record of the index is on all members, or is not.
    pub(super) fn record_over(
        &mut self,
        now: Instant,
        record: RecordFor,
        completion: &Completion,
    ) -> Result<(), TierError> {
        let handle = completion.handle;
        if let Some(place) = self.areas.uploads.remove(&handle.0) {
            self.areas.host.give_back(place);
        }
        let is_good = completion.status == CompletionStatus::Good;
        let units = Units(completion.units.into());
        if is_good && (units < Units(2) || units.0 > record.units) {
            return Err(TierError::Completion { handle, what: "no record of the index lies there" });
        }
        self.index_written(now, record, completion);
        Ok(())
    }
}
