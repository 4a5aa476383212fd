//! A frame of the stack, which remembers of every byte what it is.

use super::value::{Pointer, Value};
use crate::call::{FaultKind, Violation};
use crate::isa::{Register, Size};
use crate::program::FRAME_LEN;
use crate::world::Region;

/// Bytes of a slot, which can hold a pointer.
const SLOT_LEN: usize = Size::B8.bytes();
const SLOTS: usize = FRAME_LEN / SLOT_LEN;
/// Registers that outlast calls.
pub(super) const KEPT: [Register; 4] = [Register::R6, Register::R7, Register::R8, Register::R9];

/// A function's memory, and what it goes on with when the function that it called returns.
pub(super) struct Frame {
    bytes: [u8; FRAME_LEN],
    /// A bit for each byte of a slot that is a number's. A slot that holds a pointer has none.
    numbers: [u8; SLOTS],
    /// A bit for each slot that holds a pointer.
    has_pointer: u64,
    pointers: [Pointer; SLOTS],
    /// Where its caller goes on.
    pub(super) return_to: usize,
    /// What its caller finds there again.
    pub(super) kept: [Value; KEPT.len()],
}

impl Frame {
    pub(super) fn new() -> Self {
        Self {
            bytes: [0; FRAME_LEN],
            numbers: [0; SLOTS],
            has_pointer: 0,
            pointers: [Pointer::to(Region::Stack); SLOTS],
            return_to: 0,
            kept: [Value::Uninitialised; KEPT.len()],
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.numbers = [0; SLOTS];
        self.has_pointer = 0;
    }

    /// The pointer that is in the slot which begins there.
    pub(super) fn pointer(&self, begin: usize) -> Option<Pointer> {
        let slot = begin / SLOT_LEN;
        if begin.is_multiple_of(SLOT_LEN) && self.has_pointer & bit(slot) != 0 {
            self.pointers.get(slot).copied()
        } else {
            None
        }
    }

    /// Bytes that are numbers.
    pub(super) fn read(&self, begin: usize, len: usize) -> Result<&[u8], FaultKind> {
        for (slot, known) in
            self.numbers.iter().enumerate().take(slots_end(begin, len)).skip(begin / SLOT_LEN)
        {
            let mask = mask(slot, begin, len);
            if known & mask != mask {
                let at = slot * SLOT_LEN + (mask & !known).trailing_zeros() as usize;
                let offset = at as i64 - FRAME_LEN as i64;
                return Err(FaultKind::Unproven(if self.has_pointer & bit(slot) == 0 {
                    Violation::UninitialisedStack { offset }
                } else {
                    Violation::PointerBytes { offset }
                }));
            }
        }
        // Bounds were looked at before; the slice is never shorter.
        Ok(self.bytes.get(begin..begin + len).unwrap_or_default())
    }

    /// Bytes that become numbers, all of them. Of a pointer that is overwritten in part nothing remains.
    pub(super) fn write(&mut self, begin: usize, len: usize) -> &mut [u8] {
        let range = begin / SLOT_LEN..slots_end(begin, len);
        for (slot, known) in self.numbers.iter_mut().enumerate().take(range.end).skip(range.start) {
            *known |= mask(slot, begin, len);
            self.has_pointer &= !bit(slot);
        }
        self.bytes.get_mut(begin..begin + len).unwrap_or_default()
    }

    /// Puts a pointer into the slot that begins there, if one does.
    pub(super) fn put_pointer(&mut self, begin: usize, pointer: Pointer) -> Result<(), FaultKind> {
        let slot = begin / SLOT_LEN;
        match (self.pointers.get_mut(slot), self.numbers.get_mut(slot)) {
            (Some(held), Some(known)) if begin.is_multiple_of(SLOT_LEN) => {
                *held = pointer;
                *known = 0;
                self.has_pointer |= bit(slot);
                Ok(())
            }
            _ => Err(FaultKind::Unproven(Violation::PointerStored)),
        }
    }
}

fn bit(slot: usize) -> u64 {
    1 << (slot % SLOTS)
}

/// Behind the last slot that bytes are in.
fn slots_end(begin: usize, len: usize) -> usize {
    if len == 0 { begin / SLOT_LEN } else { (begin + len).div_ceil(SLOT_LEN) }
}

/// The bits of a slot's bytes that are among these.
fn mask(slot: usize, begin: usize, len: usize) -> u8 {
    let first = slot * SLOT_LEN;
    let from = begin.saturating_sub(first);
    let to = (begin + len - first).min(SLOT_LEN);
    (0xffu16 >> (SLOT_LEN - to)) as u8 & (0xffu16 << from) as u8
}
