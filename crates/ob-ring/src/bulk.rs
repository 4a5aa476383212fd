//! Transfers beside the rings: bytes that go straight between card memory and a group's areas.

use std::collections::VecDeque;

use ob_core::{Dma, DmaAddress, DmaCompletion, DmaError, DmaOp, Refused, RefusedReason, RegionId, Token};
use ob_memory::{Slice, Source};
use ob_wire_link::group::{AreaSpec, GroupSpec};

use crate::RingError;
use crate::plant::{self, Bug};

/// Transfers of one group that may wait or be under way: so that the transfers a link can hold are nobody's alone.
pub const BULK_MAX: usize = 8;

/// Where a transfer's place among those under way stands in its token: above what names the group and the ring.
const SLOT_SHIFT: u32 = 35;

/// One transfer between card memory and an area.
#[derive(Debug)]
pub enum Bulk {
    /// Into the area that the card writes.
    Write {
        /// The bytes, which others may read meanwhile if they are shared.
        from: Source,
        /// Where in the area they go.
        at: u64,
    },
    /// Out of the area that the host writes, as many bytes as `into` has.
    Read {
        /// Where in the area the bytes are.
        at: u64,
        /// Where they go.
        into: Slice,
    },
    /// Back out of the area that the card writes: what was put there, unless its host has written over it.
    ReadBack {
        /// Where in that area the bytes are.
        at: u64,
        /// Where they go.
        into: Slice,
    },
}

impl Bulk {
    /// Place and length, in the area that the transfer is for.
    pub fn extent(&self) -> (u64, u64) {
        match self {
            Self::Write { from, at } => (*at, from.len() as u64),
            Self::Read { at, into } | Self::ReadBack { at, into } => (*at, into.len() as u64),
        }
    }

    /// What it writes in the card's area: nothing, if it reads.
    fn writes(&self) -> (u64, u64) {
        match self {
            Self::Write { .. } => self.extent(),
            Self::Read { .. } | Self::ReadBack { .. } => (0, 0),
        }
    }
}

/// A finished transfer, with its buffer handed back.
#[derive(Debug)]
pub struct BulkDone {
    /// As given at submission.
    pub tag: u64,
    /// As given, with `into` filled in.
    pub bulk: Bulk,
    /// How it went. After an error the bytes at both ends mean nothing; nothing else was touched, and the group goes on.
    pub result: Result<(), DmaError>,
}

/// A transfer that was not taken.
#[derive(Debug)]
pub struct RefusedBulk {
    /// As given.
    pub bulk: Bulk,
    /// Why.
    pub reason: BulkRefusal,
}

/// Why a transfer is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BulkRefusal {
    /// Not now: [`BULK_MAX`] of them wait or are under way.
    #[error("{BULK_MAX} transfers of the group are under way")]
    Full,
    /// Not now: an earlier write there is not over. Over `tcp` it could be repeated after a cut, when the host reads what
    /// came after it.
    #[error("an earlier write to that place is not over")]
    Overlapping,
    /// Not ever: the bytes would leave the area, or there is none.
    #[error("the transfer leaves its area")]
    OutOfArea,
    /// Not ever.
    #[error("the transfer is larger than the link's limit of {limit} bytes")]
    TooLarge {
        /// The most bytes of one transfer.
        limit: u32,
    },
}

/// The transfers of one group.
pub(crate) struct BulkQueue {
    region: RegionId,
    card_area: AreaSpec,
    host_area: AreaSpec,
    transfer_max: u32,
    /// Not submitted yet, in the order in which they were given.
    queued: VecDeque<Queued>,
    /// Those under way.
    slots: [Option<UnderWay>; BULK_MAX],
    /// How many were submitted, ever.
    started: u64,
}

#[derive(Clone, Copy)]
struct UnderWay {
    tag: u64,
    /// What it writes in the card's area: place and length.
    writes: (u64, u64),
    /// Whether it reads there.
    is_back: bool,
}

struct Queued {
    tag: u64,
    bulk: Bulk,
    /// Where in the region its place is.
    offset: u64,
    /// Messages that were committed before it; all others must not be submitted before it.
    messages: u64,
}

impl BulkQueue {
    /// A group without areas: nothing can be transferred.
    pub(crate) fn none(region: RegionId) -> Self {
        Self {
            region,
            card_area: AreaSpec::default(),
            host_area: AreaSpec::default(),
            transfer_max: 0,
            queued: VecDeque::new(),
            slots: [None; BULK_MAX],
            started: 0,
        }
    }

    pub(crate) fn new(spec: &GroupSpec) -> Self {
        Self {
            card_area: spec.card_area,
            host_area: spec.host_area,
            transfer_max: spec.transfer_max,
            ..Self::none(spec.region())
        }
    }

    /// Takes a transfer, to be submitted after the `messages` first messages and before all others.
    pub(crate) fn push(&mut self, tag: u64, bulk: Bulk, messages: u64) -> Result<(), RefusedBulk> {
        let (at, len) = bulk.extent();
        let reason = match self.area(&bulk).place(at, len) {
            None => BulkRefusal::OutOfArea,
            Some(_) if len > u64::from(self.transfer_max) => {
                BulkRefusal::TooLarge { limit: self.transfer_max }
            }
            Some(_) if self.room() == 0 => BulkRefusal::Full,
            Some(_) if self.overlaps(bulk.writes()) => BulkRefusal::Overlapping,
            Some(offset) => {
                self.queued.push_back(Queued { tag, bulk, offset, messages });
                return Ok(());
            }
        };
        Err(RefusedBulk { bulk, reason })
    }

    /// Whether an earlier write to some of these bytes is not over.
    fn overlaps(&self, (at, len): (u64, u64)) -> bool {
        let queued = self.queued.iter().map(|queued| queued.bulk.writes());
        let under_way = self.slots.iter().flatten().map(|under_way| under_way.writes);
        let mut earlier = queued.chain(under_way);
        // All of them lie inside the area, so that no sum overflows. Where one has no bytes, no byte is of both.
        earlier.any(|(start, length)| start.max(at) < (start + length).min(at + len))
    }

    /// How many more transfers would be taken.
    pub(crate) fn room(&self) -> usize {
        BULK_MAX - self.queued.len() - self.slots.iter().flatten().count()
    }

    pub(crate) fn has_queued(&self) -> bool {
        !self.queued.is_empty()
    }

    /// Whether nothing waits or is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.room() == BULK_MAX
    }

    pub(crate) fn started(&self) -> u64 {
        self.started
    }

    /// How many messages, counted from the first ever, may be submitted now: those before the first write that waits.
    /// Reads hold nothing back.
    pub(crate) fn messages_max(&self) -> u64 {
        if plant::is_planted(Bug::MessageBeforeBulk) {
            return u64::MAX;
        }
        let writes = self.queued.iter().filter(|queued| matches!(queued.bulk, Bulk::Write { .. }));
        writes.map(|queued| queued.messages).next().unwrap_or(u64::MAX)
    }

    /// Submits the next transfer. `false` if there is none or the link is busy.
    pub(crate) fn submit_next(&mut self, dma: &mut dyn Dma, base: Token) -> Result<bool, RingError> {
        let Some(slot) = self.slots.iter().position(Option::is_none) else { return Ok(false) };
        let Some(Queued { tag, bulk, offset, messages }) = self.queued.pop_front() else { return Ok(false) };
        let address = DmaAddress { region: self.region, offset };
        let writes = bulk.writes();
        let is_back = matches!(bulk, Bulk::ReadBack { .. });
        let op = match bulk {
            Bulk::Write { from, .. } => DmaOp::Write { from, to: address },
            Bulk::Read { into, .. } | Bulk::ReadBack { into, .. } => DmaOp::Read { from: address, into },
        };
        match dma.submit(Token(base.0 | (slot as u64) << SLOT_SHIFT), op) {
            Ok(()) => {
                self.slots[slot] = Some(UnderWay { tag, writes, is_back });
                self.started += 1;
                Ok(true)
            }
            Err(Refused { op, reason: RefusedReason::Busy }) => {
                let again = self.bulk_of(op, is_back).map(|bulk| Queued { tag, bulk, offset, messages });
                again.into_iter().for_each(|queued| self.queued.push_front(queued));
                Ok(false)
            }
            Err(Refused { reason: RefusedReason::Gone, .. }) => Err(RingError::Dma(DmaError::LinkDown)),
        }
    }

    /// A transfer is over.
    pub(crate) fn complete(&mut self, completion: DmaCompletion) -> Option<BulkDone> {
        let slot = usize::try_from(completion.token.0 >> SLOT_SHIFT).ok()?;
        let UnderWay { tag, is_back, .. } = self.slots.get_mut(slot)?.take()?;
        let bulk = self.bulk_of(completion.op, is_back)?;
        Some(BulkDone { tag, bulk, result: completion.result })
    }

    fn area(&self, bulk: &Bulk) -> &AreaSpec {
        match bulk {
            Bulk::Write { .. } | Bulk::ReadBack { .. } => &self.card_area,
            Bulk::Read { .. } => &self.host_area,
        }
    }

    fn bulk_of(&self, op: DmaOp, is_back: bool) -> Option<Bulk> {
        match op {
            DmaOp::Write { from, to } => Some(Bulk::Write { from, at: self.card_area.position(to.offset) }),
            DmaOp::Read { from, into } if is_back => {
                Some(Bulk::ReadBack { at: self.card_area.position(from.offset), into })
            }
            DmaOp::Read { from, into } => Some(Bulk::Read { at: self.host_area.position(from.offset), into }),
            DmaOp::ReadWords { .. } | DmaOp::WriteWord { .. } => None,
        }
    }
}
