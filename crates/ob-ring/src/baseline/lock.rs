//! Host threads take a lock before they write a message.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use ob_memory::{Region, full_fence};
use ob_wire_link::ring::{HEADER_LEN, Header, Placement, RingSpec, Shape, control};

use crate::host_send::PushError;
use crate::many::CardBell;

/// The producing end of a lock-based request ring.
///
/// `progress` and `claim` move together under the lock, so the card reads this ring as it reads a progress ring.
#[derive(Clone)]
pub struct LockSender {
    region: Region,
    spec: RingSpec,
    /// The tail; whoever holds the lock may move it.
    tail: Arc<Mutex<u64>>,
    card: Arc<dyn CardBell>,
}

impl LockSender {
    /// The sending end of the ring `spec` in `region`. All threads must hold clones of one sender.
    pub fn new(region: Region, spec: RingSpec, card: Arc<dyn CardBell>) -> Self {
        Self { region, spec, tail: Arc::default(), card }
    }

    /// Sends one message, or says why not.
    pub fn push(&self, inline: &[u8]) -> Result<(), PushError> {
        let too_large = PushError::TooLarge { limit: self.spec.message_max() };
        let inline_len = u16::try_from(inline.len()).map_err(|_| too_large)?;
        // As the progress ring does.
        self.region.prefetch_for_write(self.word(control::CLAIM));
        self.region.prefetch_for_write(self.word(control::PROGRESS));
        {
            let mut tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
            let shape = Shape { inline_len, payload: None };
            let Some(placement) = Placement::of(shape, *tail, &self.spec) else { return Err(too_large) };
            let head = self.region.load(self.word(control::BOUND), Ordering::Acquire);
            if tail.saturating_sub(head) + placement.total() > u64::from(self.spec.capacity()) {
                return Err(PushError::Retry);
            }
            if placement.skip > 0 {
                let skip = Header::Skip { span: placement.skip }.encode();
                self.region.copy_in(self.spec.at(*tail) as usize, &skip.to_le_bytes());
            }
            let start = self.spec.at(*tail + u64::from(placement.skip)) as usize;
            let header = Header::Inline { span: placement.span, inline_len }.encode();
            self.region.store(start, header.to_le(), Ordering::Relaxed);
            self.region.copy_in(start + HEADER_LEN, inline);
            *tail += placement.total();
            // The card reads progress first: the claim must never lag behind it.
            self.region.store(self.word(control::CLAIM), *tail, Ordering::Relaxed);
            self.region.store(self.word(control::PROGRESS), *tail, Ordering::Release);
        }
        self.wake_card_if_asleep();
        Ok(())
    }

    fn word(&self, word: usize) -> usize {
        self.spec.word(word) as usize
    }

    fn wake_card_if_asleep(&self) {
        full_fence();
        let asleep = self.word(control::CARD_ASLEEP);
        let mut ticket = self.region.load(asleep, Ordering::Relaxed);
        while ticket != 0 {
            match self.region.compare_exchange(asleep, ticket, 0, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return self.card.ring(),
                Err(now) => ticket = now,
            }
        }
    }
}
