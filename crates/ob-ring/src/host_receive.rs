//! Host threads take responses out of the response ring.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ob_memory::{Region, acquire_fence};
use ob_wire_link::ring::{HEADER_LEN, Header, MessageError, PAYLOAD_HEADER_LEN, PayloadWord, RingSpec, UNIT};

use crate::many::{CardBell, Closed, Many, SleepTicket};

/// The consuming end of a response ring. Any number of threads may share it or hold clones; each message goes to
/// exactly one of them.
#[derive(Clone)]
pub struct HostReceiver {
    many: Many,
}

/// Why nothing was received and nothing will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    /// The card is gone, or closed the group.
    #[error("the ring is closed")]
    Closed,
    /// The card wrote something that cannot be; the group must be closed.
    #[error("the card wrote a message that cannot be: {0}")]
    Corrupt(MessageError),
    /// The ring's pointers cannot be; the group must be closed.
    #[error("claim {claim} and bound {bound} cannot be")]
    Pointers {
        /// How far host threads have claimed.
        claim: u64,
        /// How far the card says it has delivered.
        bound: u64,
    },
}

impl HostReceiver {
    /// The receiving end of the ring `spec` in `region`.
    pub fn new(region: Region, spec: RingSpec, closed: Closed, card: Arc<dyn CardBell>) -> Self {
        Self { many: Many::new(region, spec, closed, card) }
    }

    /// The next message, if there is one. Never waits. What the card delivered before the ring was closed is
    /// still received.
    pub fn receive(&self) -> Result<Option<Claimed<'_>>, ReceiveError> {
        let many = &self.many;
        loop {
            let head = many.claim();
            let tail = many.bound();
            if head >= tail {
                return if many.closed.is_closed() { Err(ReceiveError::Closed) } else { Ok(None) };
            }
            if tail - head > u64::from(many.spec.capacity()) || !head.is_multiple_of(UNIT) {
                // An old head explains any distance; one that still stands, none.
                if many.claim() != head {
                    continue;
                }
                return Err(self.fault(tail, ReceiveError::Pointers { claim: head, bound: tail }));
            }
            let word = u64::from_le(many.region.load(many.at(head), Ordering::Relaxed));
            // If the word was written after another thread claimed this message, that claim is seen below.
            acquire_fence();
            let available = (tail - head).min(many.spec.to_wrap(head));
            let header = match Header::decode(word, available) {
                Ok(header) => header,
                // Another thread may have claimed this message, and the card used the space again, since we read
                // the head; then the word meant nothing.
                Err(_) if many.claim() != head => continue,
                Err(error) => return Err(self.fault(tail, ReceiveError::Corrupt(error))),
            };
            if many.try_claim(head, u64::from(header.span())).is_err() {
                continue;
            }
            if let Header::Skip { span } = header {
                many.settle(u64::from(span));
                continue;
            }
            return self.claimed(head, tail, header).map(Some);
        }
    }

    /// Whether there was nothing to receive when this looked.
    pub fn is_empty(&self) -> bool {
        self.many.claim() >= self.many.bound()
    }

    /// Why something cannot be: memory that the card has taken back, whose bound was further on a moment ago, is no fault of it.
    fn fault(&self, tail: u64, error: ReceiveError) -> ReceiveError {
        acquire_fence();
        if self.many.bound() < tail { ReceiveError::Closed } else { error }
    }

    fn claimed(&self, head: u64, tail: u64, header: Header) -> Result<Claimed<'_>, ReceiveError> {
        let start = self.many.at(head);
        let (span, inline_len, payload) = match header {
            Header::Payload { span, inline_len } => {
                let word = u64::from_le(self.many.region.load(start + HEADER_LEN, Ordering::Relaxed));
                let payload = PayloadWord::decode(word, span, inline_len)
                    .map_err(|error| self.fault(tail, ReceiveError::Corrupt(error)))?;
                (span, inline_len, Some(payload))
            }
            Header::Inline { span, inline_len } => (span, inline_len, None),
            Header::Skip { span } => (span, 0, None),
        };
        Ok(Claimed { many: &self.many, head, start, span, inline_len, payload })
    }

    /// Registers this thread to sleep until the card delivers: receive once more, then sleep on the bell.
    pub fn register_sleeper(&self) -> SleepTicket {
        self.many.register_sleeper()
    }

    /// The word that host threads sleep on.
    #[cfg(not(loom))]
    pub fn bell(&self) -> &std::sync::atomic::AtomicU64 {
        self.many.bell()
    }

    /// The bell's low half as it is now.
    pub fn bell_now(&self) -> u32 {
        self.many.bell_now()
    }
}

/// A message that belongs to this thread until it is dropped; then its space goes back to the card.
#[must_use]
pub struct Claimed<'a> {
    many: &'a Many,
    head: u64,
    start: usize,
    span: u32,
    inline_len: u16,
    payload: Option<PayloadWord>,
}

impl Claimed<'_> {
    /// Bytes of the inline part.
    pub fn inline_len(&self) -> usize {
        usize::from(self.inline_len)
    }

    /// Whether what was copied out is what the card sent. A card that ends an attachment takes the pointers' memory back before
    /// that of messages, and its host hears of it later: so this is asked behind the copying, and before anything is believed.
    pub fn check(&self) -> Result<(), ReceiveError> {
        // Whoever copied zeros in the place of a message finds them in the place of the bound.
        acquire_fence();
        let is_there = self.many.bound() >= self.head + u64::from(self.span);
        if is_there { Ok(()) } else { Err(ReceiveError::Closed) }
    }

    /// Copies the first bytes of the inline part out; how many there were to copy. See [`Claimed::check`].
    pub fn inline(&self, into: &mut [u8]) -> usize {
        let head = if self.payload.is_some() { PAYLOAD_HEADER_LEN } else { HEADER_LEN };
        let len = into.len().min(self.inline_len());
        self.many.region.copy_out(self.start + head, &mut into[..len]);
        len
    }

    /// Bytes of the payload.
    pub fn payload_len(&self) -> usize {
        self.payload.map_or(0, |payload| payload.len as usize)
    }

    /// Copies payload bytes from `offset` on into the caller's buffer; how many there were to copy. See [`Claimed::check`].
    pub fn payload(&self, offset: usize, into: &mut [u8]) -> usize {
        let Some(payload) = self.payload else { return 0 };
        let len = into.len().min((payload.len as usize).saturating_sub(offset));
        if len == 0 {
            return 0;
        }
        self.many.region.copy_out(self.start + payload.offset as usize + offset, &mut into[..len]);
        len
    }
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        self.many.settle(u64::from(self.span));
    }
}
