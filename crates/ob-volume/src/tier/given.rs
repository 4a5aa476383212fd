//! Placements `host` and `accelerator`: a write's payload goes to the host, which makes of it what is stored, or has the card make it, and
//! gives that back.
//!
//! ```text
//!   host:         write ─ a slot of both areas ─▶ TAKE ─▶ the payload is the host's ─▶ as with `split`, but for its last step:
//!                         its driver compresses the pieces out of one slot into the other ─▶ WRITE_GIVEN
//!   accelerator:  write ─ two slots of the card's area ─▶ TAKE ─▶ PRESS, of each piece: back to the card, and from there into the other
//!                         slot ─▶ as with `split`, but for its last step: WRITE_GIVEN, of what lies in the two
//! ```
//!
//! What SmartDS compares itself with: every byte crosses the link, and with `host` that half's processor touches every byte. With
//! `accelerator` it touches none: bytes come and go by the card's transfers alone. Reads are as with `split`.

use std::collections::VecDeque;

use ob_core::{BlockLen, Instant, Sequence};
use ob_format::volume::metadata::Class;
use ob_split::wire::{Completion, CompletionStatus, Handle, Slot};
use ob_wire_nvme::Status;

use super::command::{Command, Posted, Span};
use super::core::{Line, TierCore};
use super::{PortNumber, TierAction, TierError};
use crate::effort::effort;
use crate::plans::{
    ArgumentsError, CardPress, GivenPiece, PAYLOAD_MAX, PIECE_LEN, Part, PostedPlan, TAKE_BASE,
    TAKE_SLOT_LEN, piece_blocks,
};

/// Where payloads of writes are made what is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// On the card: the host sees headers alone.
    #[default]
    Split,
    /// On the host, to which payloads go.
    Host,
    /// On the card, to which the host gives payloads that have gone to it.
    Accelerator,
}

impl Placement {
    /// All of them, as they are written.
    pub const NAMES: &'static [(&'static str, Self)] =
        &[("split", Self::Split), ("host", Self::Host), ("accelerator", Self::Accelerator)];
    /// Payloads of one slot that the host has at a time, and longer ones.
    pub const SLOTS: u16 = 128;
    const LONG: u16 = 8;

    /// Bytes of the card's area, and of the host's, that payloads take, with what comes before them; 0 if they take none.
    #[must_use]
    pub const fn area_lens(self) -> (u64, u64) {
        match self {
            Self::Split => (0, 0),
            Self::Host => (slot_at(SLOTS_ALL), slot_at(SLOTS_ALL)),
            Self::Accelerator => (slot_at(2 * SLOTS_ALL), 0),
        }
    }

    /// The slot of the card's area into which a payload goes that has this room.
    const fn slot_of(self, taken: u16) -> u16 {
        // What becomes of it goes into those behind.
        if matches!(self, Self::Accelerator) { taken * 2 } else { taken }
    }
}

/// Slots that a payload has which is longer than one: as many as the longest needs, and all side by side.
const LONG_SLOTS: u16 = (PAYLOAD_MAX as u64 / TAKE_SLOT_LEN) as u16;
const SLOTS_ALL: u16 = Placement::SLOTS + Placement::LONG * LONG_SLOTS;

/// Whether the room that begins with a slot is that of a longer payload.
const fn is_long(slot: u16) -> bool {
    slot >= Placement::SLOTS
}

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
        if is_long(slot) { &mut self.long } else { &mut self.short }
    }

    /// Commands that wait for a place of such a length.
    pub(super) const fn waiting(&mut self, len: u64) -> &mut VecDeque<Handle> {
        &mut self.of_payload(len).waiting
    }
}

const fn slot_at(slot: u16) -> u64 {
    TAKE_BASE + slot as u64 * TAKE_SLOT_LEN
}

/// The pieces of a span, as they are stored: blocks of the command.
fn parts_of(span: &Span, block_len: BlockLen) -> impl Iterator<Item = Part> + use<> {
    let (Part { first, blocks }, most) = (span.part, piece_blocks(block_len));
    (0..blocks.div_ceil(most)).map(move |number| {
        let before = number * most;
        Part { first: first + before, blocks: (blocks - before).min(most) }
    })
}

impl Command {
    /// Where blocks of it begin in its payload, and how many bytes they have.
    const fn bytes_of(&self, part: &Part) -> (u64, u32) {
        let block_len = self.block_len.bytes();
        (part.first as u64 * block_len as u64, part.blocks * block_len)
    }

    /// Bytes that the card has made of a piece.
    fn stored_of(&self, part: &Part) -> Option<u32> {
        self.pressed.iter().find(|(of, _)| of == part).map(|(_, stored)| *stored)
    }

    fn note_pressed(&mut self, part: Part, stored: u32) {
        // What was made of others of its blocks is overwritten.
        let is_apart = |of: &Part| of.first + of.blocks <= part.first || part.first + part.blocks <= of.first;
        self.pressed.retain(|(of, _)| is_apart(of));
        self.pressed.push((part, stored));
    }
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
        let Some(slot) = self.port_of(handle).and_then(|port| port.takes.of_payload(len).free.pop()) else {
            self.line_up(Line::Payloads { len }, handle);
            return false;
        };
        let Some(command) = self.commands.get_mut(&handle.0) else { return false };
        (command.taken, command.posted) = (Some(slot), Posted::Take);
        let into = Slot(self.config.placement.slot_of(slot));
        self.post(handle, PostedPlan::take(handle, into, 0, len as u32));
        false
    }

    /// Whether the card has compressed all pieces of a span, as far as it is to. If not, it does the next one, and the command goes on
    /// then.
    pub(super) fn is_pressed(&mut self, handle: Handle, span: &Span) -> bool {
        let Some(command) = self.commands.get(&handle.0) else { return false };
        let Some(taken) = command.taken.filter(|_| self.config.placement == Placement::Accelerator) else {
            return true;
        };
        let class = self.volumes.get(&command.volume).map_or(Class::Plain, |served| served.volume.class);
        let load = self.ports.get(&command.port).map_or(0, |port| port.load);
        let effort = effort(class, command.latency, load);
        let is_new = |piece: &Part| command.stored_of(piece).is_none();
        let Some(part) = parts_of(span, command.block_len).find(is_new).filter(|_| effort > 0) else {
            return true;
        };
        let (first, length) = command.bytes_of(&part);
        let (at, into) = self.slots_at(taken);
        let press = CardPress { effort, at: at + first, into: into + first, length };
        let Some(command) = self.commands.get_mut(&handle.0) else { return false };
        command.posted = Posted::Press { part };
        self.post(handle, PostedPlan::press(handle, &press));
        false
    }

    /// Where the payload of a command begins in the card's area, and what becomes of it.
    const fn slots_at(&self, taken: u16) -> (u64, u64) {
        let slot = self.config.placement.slot_of(taken);
        (slot_at(slot), slot_at(slot + if is_long(taken) { LONG_SLOTS } else { 1 }))
    }

    /// The card has compressed a piece, or has not.
    pub(super) fn pressed(
        &mut self,
        handle: Handle,
        part: Part,
        completion: &Completion,
    ) -> Result<(), TierError> {
        let command = self.commands.get_mut(&handle.0).ok_or(TierError::NotPosted(handle))?;
        let (_, length) = command.bytes_of(&part);
        match completion.status {
            CompletionStatus::Good if (1..length).contains(&completion.offset) => {
                command.note_pressed(part, completion.offset);
            }
            CompletionStatus::Good => {
                return Err(TierError::Completion { handle, what: "what is compressed is shorter" });
            }
            // It does not shrink, or no engine wants it: then it is stored as it is.
            CompletionStatus::Engine => command.note_pressed(part, length),
            CompletionStatus::GivenUp => command.fail(Status::ABORT_REQUESTED),
            _ => command.fail(Status::INTERNAL_ERROR),
        }
        self.ready.push_back(handle);
        Ok(())
    }

    /// The write of a span is posted, of what the card has put where its payload lies, or behind.
    pub(super) fn post_given(
        &mut self,
        (handle, taken): (Handle, u16),
        (slot, sequence): (Slot, Sequence),
        span: &Span,
        part: Option<Part>,
    ) {
        let Some(command) = self.commands.get(&handle.0) else { return };
        let (plain, packed) = self.slots_at(taken);
        let pieces: Vec<GivenPiece> = parts_of(span, command.block_len)
            .map(|part| {
                let (first, length) = command.bytes_of(&part);
                let stored = command.stored_of(&part).unwrap_or(length);
                let is_lz4 = stored < length;
                let at = if is_lz4 { packed } else { plain } + first;
                GivenPiece { at, stored, is_lz4, is_back: true }
            })
            .collect();
        self.post(handle, PostedPlan::given(handle, slot, sequence, part, &pieces));
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

    /// Nothing more is read of a payload that came by a port.
    pub(super) fn give_payload_back(&mut self, port: PortNumber, taken: Option<u16>) {
        if let (Some(slot), Some(port)) = (taken, self.ports.get_mut(&port)) {
            let takes = port.takes.of_slot(slot);
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
        let (number, handle) = (command.port, command.message);
        let press =
            Press { effort, pieces: pieces.collect(), into: slot_at(taken), handle, slot, sequence, part };
        let Some(port) = self.ports.get_mut(&number) else { return };
        port.plans += 1;
        self.actions.push_back(TierAction::Press { port: number, press });
    }
}
