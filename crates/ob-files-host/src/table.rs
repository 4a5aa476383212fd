//! The operations that a group has out, in a fixed number of slots.
//!
//! ```text
//!   free ──▶ 5 ──▶ 2 ──▶ 9        a stack of slot numbers, last in, first out: what was used last is in the cache
//!   slots: [ lock, generation, operation ] …
//! ```
//!
//! Threads meet only at the head of the free list and, if the card answers before the sender is done, at the slot.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::request::{Operation, RequestId};

/// No slot.
const NONE: u32 = u32::MAX;
/// As many bits of a generation as a request's id holds.
const GENERATION_MASK: u64 = (1 << 40) - 1;

/// Slots for operations.
pub(crate) struct Table {
    slots: Box<[Slot]>,
    /// The first free slot, and in the upper half how often it changed: who compares both cannot be fooled by a slot that
    /// was taken and came back.
    free: AtomicU64,
}

// Two threads that work on neighbours must not share a cache line.
#[repr(align(128))]
struct Slot {
    state: Mutex<State>,
    next: AtomicU32,
}

struct State {
    generation: u64,
    operation: Option<Operation>,
}

/// A slot with an operation in it, locked.
pub(crate) struct Held<'a> {
    table: &'a Table,
    state: MutexGuard<'a, State>,
    index: u32,
}

impl Table {
    pub(crate) fn new(len: usize) -> Self {
        let len = u32::try_from(len).unwrap_or(NONE);
        let slot = |index: u32| Slot {
            state: Mutex::new(State { generation: 0, operation: None }),
            next: AtomicU32::new(if index + 1 < len { index + 1 } else { NONE }),
        };
        let first = if len == 0 { NONE } else { 0 };
        Self { slots: (0..len).map(slot).collect(), free: AtomicU64::new(u64::from(first)) }
    }

    /// Puts an operation into a free slot and leaves it locked; hands it back if there is none.
    pub(crate) fn insert(&self, operation: Operation) -> Result<Held<'_>, Operation> {
        let Some(index) = self.claim() else { return Err(operation) };
        let mut state = self.lock(index);
        state.operation = Some(operation);
        Ok(Held { table: self, state, index })
    }

    /// The operation that this id belongs to, if it is still out.
    pub(crate) fn find(&self, id: RequestId) -> Option<Held<'_>> {
        let index = id.slot();
        let slot = self.slots.get(index as usize)?;
        let state = slot.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_out = state.generation == id.generation() && state.operation.is_some();
        is_out.then_some(Held { table: self, state, index })
    }

    /// Takes out every operation, one after the other.
    pub(crate) fn take_all(&self, each: impl FnMut(Operation)) {
        self.take_those(|_| true, each);
    }

    /// Takes out the operations that are wanted, one after the other.
    pub(crate) fn take_those(&self, wanted: impl Fn(&Operation) -> bool, mut each: impl FnMut(Operation)) {
        for index in 0..self.slots.len() as u32 {
            let state = self.lock(index);
            if state.operation.as_ref().is_some_and(&wanted) {
                Held { table: self, state, index }.take().map(&mut each);
            }
        }
    }

    /// How many operations are out at this moment.
    pub(crate) fn count(&self) -> usize {
        (0..self.slots.len() as u32).filter(|index| self.lock(*index).operation.is_some()).count()
    }

    fn lock(&self, index: u32) -> MutexGuard<'_, State> {
        self.slots[index as usize].state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn claim(&self) -> Option<u32> {
        let mut head = self.free.load(Ordering::Acquire);
        loop {
            let index = head as u32;
            let slot = self.slots.get(index as usize)?;
            let next = slot.next.load(Ordering::Relaxed);
            let then = (head >> 32).wrapping_add(1) << 32 | u64::from(next);
            match self.free.compare_exchange_weak(head, then, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(index),
                Err(now) => head = now,
            }
        }
    }

    fn release(&self, index: u32) {
        let slot = &self.slots[index as usize];
        let mut head = self.free.load(Ordering::Relaxed);
        loop {
            slot.next.store(head as u32, Ordering::Relaxed);
            let then = (head >> 32).wrapping_add(1) << 32 | u64::from(index);
            match self.free.compare_exchange_weak(head, then, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}

impl Held<'_> {
    /// The id that requests of this operation carry.
    pub(crate) fn id(&self) -> RequestId {
        RequestId::new(self.index, self.state.generation)
    }

    /// The operation.
    pub(crate) fn operation(&mut self) -> Option<&mut Operation> {
        self.state.operation.as_mut()
    }

    /// Takes the operation out; ids that it had belong to nobody from now on.
    pub(crate) fn take(mut self) -> Option<Operation> {
        self.state.generation = (self.state.generation + 1) & GENERATION_MASK;
        let operation = self.state.operation.take();
        drop(self.state);
        self.table.release(self.index);
        operation
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Control;
    use crate::deliver::Deliver;

    fn operation(tag: u64) -> Operation {
        Operation::control(Control::flush(), Deliver::Tag(tag))
    }

    fn tag_of(operation: &Operation) -> u64 {
        match operation.deliver {
            Deliver::Tag(tag) => tag,
            _ => panic!("not a tag"),
        }
    }

    #[test]
    fn as_many_operations_as_slots_and_no_more() {
        let table = Table::new(3);
        let ids: Vec<RequestId> = (0..3).map(|tag| table.insert(operation(tag)).ok().unwrap().id()).collect();
        assert_eq!(table.insert(operation(9)).err().map(|refused| tag_of(&refused)), Some(9));
        assert_eq!(table.count(), 3);
        assert_eq!(tag_of(&table.find(ids[1]).unwrap().take().unwrap()), 1);
        assert!(table.find(ids[1]).is_none(), "it is gone");
        let again = table.insert(operation(4)).ok().unwrap().id();
        assert_eq!(again.slot(), ids[1].slot());
        assert!(table.find(ids[1]).is_none(), "the slot is another operation's now");
        assert_eq!(tag_of(&table.find(again).unwrap().take().unwrap()), 4);
        let mut left = Vec::new();
        table.take_all(|operation| left.push(tag_of(&operation)));
        left.sort_unstable();
        assert_eq!(left, [0, 2]);
        assert_eq!(table.count(), 0);
    }

    #[test]
    fn ids_that_nobody_gave_find_nothing() {
        let table = Table::new(2);
        let id = table.insert(operation(1)).ok().unwrap().id();
        for made_up in [u64::MAX, 1, 2, id.at(0) | 1 << 24, id.at(0) | 0xf_fff0] {
            assert!(table.find(RequestId::from_wire(made_up)).is_none(), "{made_up:#x}");
        }
        assert!(
            table.find(RequestId::from_wire(id.at(5))).is_some(),
            "the place is the operation's to judge"
        );
    }

    #[test]
    fn threads_never_share_a_slot() {
        let table = Table::new(8);
        let ours = |thread: u64| {
            for round in 0..5_000 {
                let tag = thread << 32 | round;
                let Ok(held) = table.insert(operation(tag)) else { continue };
                let id = held.id();
                drop(held);
                assert_eq!(tag_of(&table.find(id).unwrap().take().unwrap()), tag);
            }
        };
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || ours(thread));
            }
        });
        let again: Vec<_> =
            (0..8).map(|tag| table.insert(operation(tag)).ok().unwrap().id().slot()).collect();
        assert_eq!(again.iter().collect::<std::collections::BTreeSet<_>>().len(), 8, "every slot is back");
    }
}
