//! Host threads put requests into the request ring.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ob_memory::Region;
use ob_wire_link::ring::{
    HEADER_LEN, Header, PAYLOAD_HEADER_LEN, PayloadWord, Placement, RingSpec, Shape, UNIT,
};

use crate::many::{CardBell, Closed, Many, SleepTicket};

/// The producing end of a request ring. Any number of threads may share it or hold clones.
#[derive(Clone)]
pub struct HostSender {
    many: Many,
}

/// A message to send: an inline part, and maybe a payload made of several pieces.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// At most 65535 bytes.
    pub inline: &'a [u8],
    /// Pieces of the payload, put side by side, and the alignment of the whole (a power of two up to 4096).
    pub payload: Option<(&'a [&'a [u8]], u32)>,
}

/// Why a message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// The ring is full; try again when the card has fetched some.
    #[error("the ring is full")]
    Retry,
    /// The message is larger than this ring takes, ever.
    #[error("the message is larger than the ring's limit of {limit} bytes")]
    TooLarge {
        /// The most bytes that a message may span, headers and padding included.
        limit: u32,
    },
    /// The card is gone, or closed the group.
    #[error("the ring is closed")]
    Closed,
    /// The ring's pointers cannot be; the group must be closed.
    #[error("claim {claim} and bound {bound} cannot be")]
    Corrupt {
        /// How far host threads have claimed.
        claim: u64,
        /// How far the card says it has fetched.
        bound: u64,
    },
}

impl HostSender {
    /// The sending end of the ring `spec` in `region`.
    pub fn new(region: Region, spec: RingSpec, closed: Closed, card: Arc<dyn CardBell>) -> Self {
        Self { many: Many::new(region, spec, closed, card) }
    }

    /// Sends one message, or says why not. Never waits.
    pub fn push(&self, message: Outgoing<'_>) -> Result<(), PushError> {
        let many = &self.many;
        if many.closed.is_closed() {
            return Err(PushError::Closed);
        }
        many.prefetch_pointers();
        let shape = self.shape(&message)?;
        let mut tail = many.claim();
        // DDS Figure 8a, with N recomputed for each tail: padding and the skip at the end depend on it.
        let placement = loop {
            let Some(placement) = Placement::of(shape, tail, &many.spec) else {
                return Err(self.too_large());
            };
            let head = many.bound();
            let Some(used) = tail.checked_sub(head).filter(|_| tail.is_multiple_of(UNIT)) else {
                // An old tail explains a head beyond it; one that still stands does not. Threads claim whole units.
                let now = many.claim();
                if now == tail {
                    return Err(PushError::Corrupt { claim: tail, bound: head });
                }
                tail = now;
                continue;
            };
            if used + placement.total() > u64::from(many.spec.capacity()) {
                return Err(PushError::Retry);
            }
            match many.try_claim(tail, placement.total()) {
                Ok(()) => break placement,
                Err(now) => tail = now,
            }
        };
        self.insert(tail, placement, shape, &message);
        many.settle(placement.total());
        Ok(())
    }

    /// Registers this thread to sleep until the card has made room: push once more, then sleep on the bell.
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

    /// The largest span of one message.
    pub fn message_max(&self) -> u32 {
        self.many.spec.message_max()
    }

    fn too_large(&self) -> PushError {
        PushError::TooLarge { limit: self.many.spec.message_max() }
    }

    fn shape(&self, message: &Outgoing<'_>) -> Result<Shape, PushError> {
        let inline_len = u16::try_from(message.inline.len()).map_err(|_| self.too_large())?;
        let payload = match message.payload {
            None => None,
            Some((pieces, align)) => {
                let mut len = 0u32;
                for piece in pieces {
                    let piece = u32::try_from(piece.len()).map_err(|_| self.too_large())?;
                    len = len.checked_add(piece).ok_or_else(|| self.too_large())?;
                }
                Some((len, align))
            }
        };
        Ok(Shape { inline_len, payload })
    }

    fn insert(&self, tail: u64, placement: Placement, shape: Shape, message: &Outgoing<'_>) {
        let many = &self.many;
        if placement.skip > 0 {
            let skip = Header::Skip { span: placement.skip }.encode();
            many.region.store(many.at(tail), skip.to_le(), Ordering::Relaxed);
        }
        let start = many.at(tail + u64::from(placement.skip));
        let (span, inline_len) = (placement.span, shape.inline_len);
        match (message.payload, shape.payload) {
            (Some((pieces, _)), Some((len, _))) => {
                let header = Header::Payload { span, inline_len }.encode();
                let word = PayloadWord { offset: placement.payload_offset, len }.encode();
                many.region.store(start, header.to_le(), Ordering::Relaxed);
                many.region.store(start + HEADER_LEN, word.to_le(), Ordering::Relaxed);
                many.region.copy_in(start + PAYLOAD_HEADER_LEN, message.inline);
                let mut at = start + placement.payload_offset as usize;
                for piece in pieces {
                    many.region.copy_in(at, piece);
                    at += piece.len();
                }
            }
            _ => {
                let header = Header::Inline { span, inline_len }.encode();
                many.region.store(start, header.to_le(), Ordering::Relaxed);
                many.region.copy_in(start + HEADER_LEN, message.inline);
            }
        }
    }
}
