//! What both kinds of host threads do: claim, settle, wake the card, go to sleep.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ob_memory::{Region, full_fence_after_rmw};
use ob_wire_link::ring::{RingSpec, control};

use crate::plant::{self, Bug};

/// The card's doorbell: wakes the sleeping card; the link knows how. (The other direction is [`ob_core::Doorbell`].)
pub trait CardBell: Send + Sync {
    /// Rings. Must not block; ringing once too often does no harm.
    fn ring(&self);
}

/// Set when the attachment is over: host threads stop using its rings.
#[derive(Clone, Default)]
pub struct Closed(Arc<AtomicBool>);

impl Closed {
    /// Closes for good.
    pub fn close(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether it is closed.
    pub fn is_closed(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A host thread's registration to sleep: look at the ring once more, then sleep while the bell still shows this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SleepTicket {
    /// Low half of the bell word at registration.
    pub bell: u32,
}

/// The many side of one ring.
#[derive(Clone)]
pub(crate) struct Many {
    pub(crate) region: Region,
    pub(crate) spec: RingSpec,
    pub(crate) closed: Closed,
    card: Arc<dyn CardBell>,
}

impl Many {
    pub(crate) fn new(region: Region, spec: RingSpec, closed: Closed, card: Arc<dyn CardBell>) -> Self {
        Self { region, spec, closed, card }
    }

    /// Offset of a control word.
    pub(crate) fn offset(&self, word: usize) -> usize {
        self.spec.word(word) as usize
    }

    /// Offset of a ring position's bytes.
    pub(crate) fn at(&self, position: u64) -> usize {
        self.spec.at(position) as usize
    }

    /// Both pointers are written in a moment, and both are likely to be in the card's cache; fetching one while the other
    /// is waited for halves the wait.
    #[inline]
    pub(crate) fn prefetch_pointers(&self) {
        self.region.prefetch_for_write(self.offset(control::CLAIM));
        self.region.prefetch_for_write(self.offset(control::PROGRESS));
    }

    pub(crate) fn claim(&self) -> u64 {
        self.region.load(self.offset(control::CLAIM), Ordering::Relaxed)
    }

    pub(crate) fn bound(&self) -> u64 {
        self.region.load(self.offset(control::BOUND), Ordering::Acquire)
    }

    /// Moves the claim from `seen` on by `bytes`; the claim as it is now if another thread was first.
    pub(crate) fn try_claim(&self, seen: u64, bytes: u64) -> Result<(), u64> {
        let offset = self.offset(control::CLAIM);
        let exchanged =
            self.region.compare_exchange(offset, seen, seen + bytes, Ordering::Relaxed, Ordering::Relaxed);
        exchanged.map(|_| ())
    }

    /// Tells the card that `bytes` of what was claimed are done with, and wakes it if it sleeps.
    pub(crate) fn settle(&self, bytes: u64) {
        // All settlements form one release sequence: the card, reading the last, sees what each of them did.
        let order =
            if plant::is_planted(Bug::RelaxedPublish) { Ordering::Relaxed } else { Ordering::Release };
        self.region.fetch_add(self.offset(control::PROGRESS), bytes, order);
        self.wake_card_if_asleep();
    }

    fn wake_card_if_asleep(&self) {
        if !plant::is_planted(Bug::DroppedFence) {
            full_fence_after_rmw();
        }
        let asleep = self.offset(control::CARD_ASLEEP);
        let ticket = self.region.load(asleep, Ordering::Relaxed);
        if ticket != 0 {
            self.wake_card(asleep, ticket);
        }
    }

    #[cold]
    fn wake_card(&self, asleep: usize, mut ticket: u64) {
        // Whoever takes the ticket rings. The exchange may fail for no reason; it is over when the ticket is
        // another one (the card woke and sleeps again: that one is taken) or gone.
        while ticket != 0 {
            match self.region.compare_exchange(asleep, ticket, 0, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => {
                    if !plant::is_planted(Bug::LostDoorbell) {
                        self.card.ring();
                    }
                    return;
                }
                Err(now) => ticket = now,
            }
        }
    }

    /// The word that host threads sleep on.
    #[cfg(not(loom))]
    pub(crate) fn bell(&self) -> &std::sync::atomic::AtomicU64 {
        self.region.word(self.offset(control::BELL))
    }

    /// The bell's low half as it is now.
    pub(crate) fn bell_now(&self) -> u32 {
        self.region.load(self.offset(control::BELL), Ordering::Acquire) as u32
    }

    /// Registers this thread as about to sleep.
    pub(crate) fn register_sleeper(&self) -> SleepTicket {
        let bell = self.bell_now();
        self.region.fetch_add(self.offset(control::SLEEPERS), 1, Ordering::AcqRel);
        full_fence_after_rmw();
        SleepTicket { bell }
    }
}
