//! Placement `host`: a write's payload goes to the host, which makes of it what is stored, and gives that back.
//!
//! ```text
//!   write ─ a slot of both areas ─▶ TAKE ─▶ the payload is the host's ─▶ as with `split`, but for its last step:
//!           its driver compresses the pieces out of one slot into the other ─▶ WRITE_GIVEN
//! ```
//!
//! What SmartDS compares itself with: the host's processor touches every byte, and every byte crosses the link. Reads are as with `split`.

use std::collections::VecDeque;

use ob_core::{Instant, Sequence};
use ob_split::wire::{Completion, CompletionStatus, Handle, Slot};
use ob_wire_nvme::Status;

use super::command::{Posted, Span};
use super::core::{Line, TierCore};
use super::{PortNumber, TierAction};
use crate::plans::{
    ArgumentsError, GivenPiece, PAYLOAD_MAX, PIECE_LEN, Part, PostedPlan, TAKE_BASE, TAKE_SLOT_LEN,
};

/// Where payloads of writes are made what is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// On the card: the host sees headers alone.
    #[default]
    Split,
    /// On the host, to which payloads go.
    Host,
}

impl Placement {
    /// All of them, as they are written.
    pub const NAMES: &'static [(&'static str, Self)] = &[("split", Self::Split), ("host", Self::Host)];
    /// Payloads of one slot that the host has at a time, and longer ones.
    pub const SLOTS: u16 = 128;
    const LONG: u16 = 8;

    /// Bytes of each area that payloads take, with what comes before them.
    #[must_use]
    pub const fn area_len(self) -> Option<u64> {
        match self {
            Self::Split => None,
            Self::Host => Some(slot_at(Self::SLOTS + Self::LONG * LONG_SLOTS)),
        }
    }
}

/// Slots that a payload has which is longer than one: as many as the longest needs, and all side by side.
const LONG_SLOTS: u16 = (PAYLOAD_MAX as u64 / TAKE_SLOT_LEN) as u16;

/// What is to be made of a payload before it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Press {
    /// How hard it is compressed; 0: it stays as it is.
    pub effort: u8,
    /// Where it lies in the card's area, piece by piece: where each begins, and how many bytes it has.
    pub pieces: Vec<(u64, u32)>,
    /// Where in the host's area there is room for what is made of it: as much as for the payload.
    pub into: u64,
    handle: Handle,
    slot: Slot,
    sequence: Sequence,
    part: Option<Part>,
}

impl Press {
    /// The plan that writes what was made of it.
    ///
    /// # Errors
    ///
    /// When these are not as many pieces.
    pub fn plan(&self, pieces: &[GivenPiece]) -> Result<PostedPlan, ArgumentsError> {
        PostedPlan::given(self.handle, self.slot, self.sequence, self.part, pieces)
    }
}

/// Slots of both areas that no command has. Those of longer payloads lie behind the others, and have a line of their own: nobody waits
/// for several.
#[derive(Debug, Default)]
pub(super) struct TakeSlots {
    short: Takes,
    long: Takes,
}

/// Places of one length.
#[derive(Debug, Default)]
struct Takes {
    /// By the number of their first slot.
    free: Vec<u16>,
    /// Commands that wait for one.
    waiting: VecDeque<Handle>,
}

impl TakeSlots {
    pub(super) fn new(placement: Placement) -> Self {
        if placement == Placement::Split {
            return Self::default();
        }
        let long = (0..Placement::LONG).map(|number| Placement::SLOTS + number * LONG_SLOTS);
        Self {
            short: Takes { free: (0..Placement::SLOTS).rev().collect(), waiting: VecDeque::new() },
            long: Takes { free: long.rev().collect(), waiting: VecDeque::new() },
        }
    }

    const fn of_payload(&mut self, len: u64) -> &mut Takes {
        if len > TAKE_SLOT_LEN { &mut self.long } else { &mut self.short }
    }

    const fn of_slot(&mut self, slot: u16) -> &mut Takes {
        if slot >= Placement::SLOTS { &mut self.long } else { &mut self.short }
    }

    /// Commands that wait for a place of such a length.
    pub(super) const fn waiting(&mut self, len: u64) -> &mut VecDeque<Handle> {
        &mut self.of_payload(len).waiting
    }
}

const fn slot_at(slot: u16) -> u64 {
    TAKE_BASE + slot as u64 * TAKE_SLOT_LEN
}

impl TierCore {
    /// Whether the payload of a write is where it is to be. If not, it is fetched, and the command goes on then.
    pub(super) fn has_payload(&mut self, handle: Handle) -> bool {
        let Some(command) = self.commands.get(&handle.0) else { return false };
        let len = u64::from(command.blocks) * u64::from(command.block_len.bytes());
        // No card gives a longer one than the longest.
        let stays = self.config.placement == Placement::Split || len > u64::from(PAYLOAD_MAX);
        if stays || command.taken.is_some() {
            return true;
        }
        let Some(slot) = self.takes.of_payload(len).free.pop() else {
            self.line_up(Line::Payloads { len }, handle);
            return false;
        };
        let Some(command) = self.commands.get_mut(&handle.0) else { return false };
        (command.taken, command.posted) = (Some(slot), Posted::Take);
        self.post(handle, PostedPlan::take(handle, Slot(slot), 0, len as u32));
        false
    }

    /// The payload of a write is in the host's memory, or will not come.
    pub(super) fn payload_taken(&mut self, _: Instant, handle: Handle, completion: &Completion) {
        let status = match completion.status {
            CompletionStatus::Good => Status::SUCCESS,
            CompletionStatus::GivenUp => Status::ABORT_REQUESTED,
            _ => Status::INTERNAL_ERROR,
        };
        if let Some(command) = self.commands.get_mut(&handle.0)
            && !status.is_success()
        {
            command.fail(status);
        }
        self.ready.push_back(handle);
    }

    /// Nothing more is read of a command's payload.
    pub(super) fn give_payload_back(&mut self, taken: Option<u16>) {
        if let Some(slot) = taken {
            let takes = self.takes.of_slot(slot);
            takes.free.push(slot);
            // Some were answered while they waited: the slot is for one that was not.
            while let Some(handle) = takes.waiting.pop_front() {
                let command = self.commands.get(&handle.0);
                if command.is_some_and(|command| command.posted == Posted::Nothing && command.taken.is_none())
                {
                    self.ready.push_back(handle);
                    break;
                }
            }
        }
    }

    /// The write of a span is posted, once its driver has made what is stored.
    pub(super) fn post_pressed(
        &mut self,
        (handle, taken): (Handle, u16),
        (slot, effort, sequence): (Slot, u8, Sequence),
        span: &Span,
        part: Option<Part>,
    ) {
        let Some(command) = self.commands.get(&handle.0) else { return };
        let block_len = u64::from(command.block_len.bytes());
        let (first, len) = (u64::from(span.part.first) * block_len, u64::from(span.part.blocks) * block_len);
        let (from, piece) = (slot_at(taken) + first, u64::from(PIECE_LEN));
        let pieces = (0..len.div_ceil(piece)).map(|number| {
            let at = number * piece;
            (from + at, (len - at).min(piece) as u32)
        });
        let press =
            Press { effort, pieces: pieces.collect(), into: slot_at(taken), handle, slot, sequence, part };
        let Some(port) = &mut self.port else { return };
        port.plans += 1;
        self.actions.push_back(TierAction::Press { port: PortNumber(0), press });
    }
}
