//! Which slots are set, and which of them plans under way name.

use ob_core::{ChunkName, Epoch};

use super::retained::Label;
use crate::plant::{Bug, is_planted};
use crate::wire::{Set, SetWhat, Slot};

/// The slots of a port. What they are set to is the dialect's to know.
pub(super) struct Slots {
    all: Vec<Option<Setting>>,
    slots_max: u16,
}

/// What a slot is set to.
#[derive(Clone, Copy, Debug)]
struct Setting {
    chunk: ChunkName,
    epoch: Option<Epoch>,
    /// Plans under way that name it.
    plans: u32,
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
        let plans = place.map_or(0, |before| before.plans);
        if plans > 0 && (is_forgotten || place.is_some_and(|before| before.chunk != set.chunk)) {
            return false;
        }
        *place = (!is_forgotten).then_some(Setting { chunk: set.chunk, epoch: set.epoch, plans });
        true
    }

    /// By what is retained what lies at a place of the chunk that a slot is set to: whatever else the slot may be set to later, and by
    /// whatever other slot the chunk is named then.
    pub(super) fn label(&self, slot: Slot, place: u32) -> Option<Label> {
        let Setting { chunk, epoch, .. } = self.all.get(usize::from(slot.0)).copied().flatten()?;
        if is_planted(Bug::RetainedBySlot) {
            return Some(Label {
                chunk: ChunkName::default(),
                epoch: None,
                place: place ^ u32::from(slot.0) << 24,
            });
        }
        Some(Label { chunk, epoch, place })
    }

    /// A plan names it; `false` if it is not set.
    pub(super) fn hold(&mut self, slot: Slot) -> bool {
        let place = self.all.get_mut(usize::from(slot.0)).and_then(Option::as_mut);
        place.map(|setting| setting.plans += 1).is_some()
    }

    /// That plan is over.
    pub(super) fn release(&mut self, slot: Slot) {
        if let Some(Some(setting)) = self.all.get_mut(usize::from(slot.0)) {
            setting.plans = setting.plans.saturating_sub(1);
        }
    }

    /// None is set any more.
    pub(super) fn clear(&mut self) {
        self.all.clear();
    }
}
