//! Which slots are set, and which of them plans under way name.

use ob_core::ChunkName;

use crate::wire::{Set, SetWhat, Slot};

/// The slots of a port. What they are set to is the dialect's to know.
pub(super) struct Slots {
    /// Of each that is set the chunk, and how many plans under way name it.
    all: Vec<Option<(ChunkName, u32)>>,
    slots_max: u16,
}

impl Slots {
    pub(super) fn new(slots_max: u16) -> Self {
        Self { all: Vec::new(), slots_max }
    }

    /// Sets one; `false` if there is no such, or plans name it with another chunk.
    pub(super) fn set(&mut self, set: &Set) -> bool {
        let index = usize::from(set.slot.0);
        if set.slot.0 >= self.slots_max {
            return false;
        }
        if self.all.len() <= index {
            self.all.resize(index + 1, None);
        }
        let Some(place) = self.all.get_mut(index) else { return false };
        let is_forgotten = set.what == SetWhat::Forget;
        let plans = place.map_or(0, |(_, plans)| plans);
        if plans > 0 && (is_forgotten || place.is_some_and(|(chunk, _)| chunk != set.chunk)) {
            return false;
        }
        *place = (!is_forgotten).then_some((set.chunk, plans));
        true
    }

    /// A plan names it; `false` if it is not set.
    pub(super) fn hold(&mut self, slot: Slot) -> bool {
        let place = self.all.get_mut(usize::from(slot.0)).and_then(Option::as_mut);
        place.map(|(_, plans)| *plans += 1).is_some()
    }

    /// That plan is over.
    pub(super) fn release(&mut self, slot: Slot) {
        if let Some(Some((_, plans))) = self.all.get_mut(usize::from(slot.0)) {
            *plans = plans.saturating_sub(1);
        }
    }

    /// None is set any more.
    pub(super) fn clear(&mut self) {
        self.all.clear();
    }
}
