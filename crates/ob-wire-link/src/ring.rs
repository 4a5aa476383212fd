//! Layout of rings and of the messages in them (`docs/wire/ring.md`).

use ob_core::RegionId;

/// The control block of one ring: word offsets.
pub mod control {
    /// Sum of all claims that are settled.
    pub const PROGRESS: usize = 0;
    /// Sum of all claims of the many side.
    pub const CLAIM: usize = 64;
    /// How often a host thread registered to sleep.
    pub const SLEEPERS: usize = 128;
    /// How far the single side is.
    pub const BOUND: usize = 256;
    /// A ticket while the card sleeps.
    pub const CARD_ASLEEP: usize = 320;
    /// How often the card rang.
    pub const BELL: usize = 384;
    /// Distance between the words that one ordered read fetches.
    pub const STRIDE: u32 = 64;
}

/// Bytes of a control block.
pub const CONTROL_LEN: usize = 512;
/// Where the first ring's data begins in a group's region.
pub const DATA_START: usize = if cfg!(loom) { 1024 } else { 4096 };
/// Smallest capacity of a ring. (loom explores every interleaving, so there two small messages fill a ring.)
pub const CAPACITY_MIN: u32 = if cfg!(loom) { 32 } else { 4096 };
/// Largest capacity of a ring.
pub const CAPACITY_MAX: u32 = 1 << 30;
/// Messages and their spans are multiples of this.
pub const UNIT: u64 = 8;
/// Bytes of a message's header word.
pub const HEADER_LEN: usize = 8;
/// Header word and payload word together.
pub const PAYLOAD_HEADER_LEN: usize = 16;
/// Largest alignment that a payload can ask for.
pub const PAYLOAD_ALIGN_MAX: u32 = 4096;

/// Kind of a message without a payload.
pub const KIND_INLINE: u8 = 1;
/// Kind of a message with a payload.
pub const KIND_PAYLOAD: u8 = 2;
/// Kind of the filler before the end of the ring.
pub const KIND_SKIP: u8 = 3;

/// One ring as both halves know it. Can hold only legal values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSpec {
    /// The region it lies in.
    pub region: RegionId,
    control: u64,
    data: u64,
    capacity: u32,
    message_max: u32,
}

/// Why two numbers do not make a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingSpecError {
    /// Not a power of two between [`CAPACITY_MIN`] and [`CAPACITY_MAX`].
    #[error("a ring's capacity must be a power of two from {CAPACITY_MIN} to {CAPACITY_MAX} bytes, not {0}")]
    Capacity(u32),
    /// Not a multiple of [`crate::group::AREA_UNIT`], or more than [`crate::group::AREA_MAX`].
    #[error("an area must be a multiple of 4096 bytes and at most 64 GiB, not {0} bytes")]
    Area(u64),
    /// The parts overlap or leave the region.
    #[error("the ring's parts do not fit its region")]
    Placement,
}

impl RingSpec {
    /// A ring with its control block and data at these offsets of a region of `region_len` bytes. A message may
    /// span at most half the ring, and at most `transfer_max`.
    pub fn new(
        region: RegionId,
        region_len: u64,
        control: u64,
        data: u64,
        capacity: u32,
        transfer_max: u32,
    ) -> Result<Self, RingSpecError> {
        if !capacity.is_power_of_two() || !(CAPACITY_MIN..=CAPACITY_MAX).contains(&capacity) {
            return Err(RingSpecError::Capacity(capacity));
        }
        let control_end = control.checked_add(CONTROL_LEN as u64).filter(|end| *end <= data);
        let data_end = data.checked_add(u64::from(capacity)).filter(|end| *end <= region_len);
        let aligned =
            control.is_multiple_of(64) && data.is_multiple_of(u64::from(PAYLOAD_ALIGN_MAX.min(CAPACITY_MIN)));
        if control_end.is_none() || data_end.is_none() || !aligned {
            return Err(RingSpecError::Placement);
        }
        let message_max = (capacity / 2).min(transfer_max.max(64)) & !7;
        Ok(Self { region, control, data, capacity, message_max })
    }

    /// The two rings of a group, and the length of the region they need.
    pub fn group(
        region: RegionId,
        request: u32,
        response: u32,
        transfer_max: u32,
    ) -> Result<(Self, Self, u64), RingSpecError> {
        let response_data = DATA_START as u64 + u64::from(request);
        let len = response_data + u64::from(response);
        let request = Self::new(region, len, 0, DATA_START as u64, request, transfer_max)?;
        let response = Self::new(region, len, CONTROL_LEN as u64, response_data, response, transfer_max)?;
        Ok((request, response, len))
    }

    /// Offset in the region of one word of the control block.
    #[inline]
    pub fn word(&self, word: usize) -> u64 {
        self.control + word as u64
    }

    /// Offset in the region of a ring position.
    #[inline]
    pub fn at(&self, position: u64) -> u64 {
        self.data + (position & u64::from(self.capacity - 1))
    }

    /// Bytes from a position to the end of the ring's data.
    #[inline]
    pub fn to_wrap(&self, position: u64) -> u64 {
        u64::from(self.capacity) - (position & u64::from(self.capacity - 1))
    }

    /// Bytes of data: the most that may be claimed beyond what the other side has taken (M in DDS, Figure 8).
    #[inline]
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The largest span of one message.
    #[inline]
    pub fn message_max(&self) -> u32 {
        self.message_max
    }
}

/// Sizes of a message that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of the inline part.
    pub inline_len: u16,
    /// Length and alignment (a power of two up to [`PAYLOAD_ALIGN_MAX`]) of the payload.
    pub payload: Option<(u32, u32)>,
}

/// Where a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Bytes to skip before it, up to the end of the ring; 0 where it fits as it is.
    pub skip: u32,
    /// From the message's start to its payload; the end of the inline part if it has none.
    pub payload_offset: u32,
    /// Bytes of the message, padding included.
    pub span: u32,
}

impl Placement {
    /// Places a message at ring position `tail`, or says that it is too large for this ring wherever it goes.
    #[inline]
    pub fn of(shape: Shape, tail: u64, spec: &RingSpec) -> Option<Self> {
        // Most messages are small and go where the tail is; they need none of the rest.
        let end = HEADER_LEN as u64 + u64::from(shape.inline_len);
        let span = (end + UNIT - 1) & !(UNIT - 1);
        if shape.payload.is_none() && span <= spec.to_wrap(tail) && span <= u64::from(spec.message_max) {
            return Some(Self { skip: 0, payload_offset: end as u32, span: span as u32 });
        }
        Self::of_any(shape, tail, spec)
    }

    fn of_any(shape: Shape, tail: u64, spec: &RingSpec) -> Option<Self> {
        let inline = u64::from(shape.inline_len);
        let (head, len, align) = match shape.payload {
            None => (HEADER_LEN as u64, 0, 1),
            Some((len, align)) => {
                let align = u64::from(align.clamp(1, PAYLOAD_ALIGN_MAX).next_power_of_two());
                (PAYLOAD_HEADER_LEN as u64, u64::from(len), align)
            }
        };
        // The worst padding decides, so that a message's size alone says whether it is too large, not where the
        // tail happens to be.
        if (head + inline + align - 1 + len).next_multiple_of(UNIT) > u64::from(spec.message_max) {
            return None;
        }
        let place = |start: u64| {
            let payload_offset = (spec.at(start) + head + inline).next_multiple_of(align) - spec.at(start);
            (payload_offset, (payload_offset + len).next_multiple_of(UNIT))
        };
        let (mut skip, (mut payload_offset, mut span)) = (0, place(tail));
        if span > spec.to_wrap(tail) {
            skip = spec.to_wrap(tail);
            (payload_offset, span) = place(tail + skip);
        }
        // Each fits in 32 bits: none is larger than the capacity.
        Some(Self { skip: skip as u32, payload_offset: payload_offset as u32, span: span as u32 })
    }

    /// Bytes to claim.
    #[inline]
    pub fn total(&self) -> u64 {
        u64::from(self.skip) + u64::from(self.span)
    }
}

/// A message's header, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// Inline part only.
    Inline {
        /// To the next message.
        span: u32,
        /// Bytes of the inline part.
        inline_len: u16,
    },
    /// Inline part and payload; the payload's place is in the word that follows.
    Payload {
        /// To the next message.
        span: u32,
        /// Bytes of the inline part.
        inline_len: u16,
    },
    /// Nothing until the end of the ring.
    Skip {
        /// To the next message.
        span: u32,
    },
}

/// What is wrong with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The span is zero, odd, or goes beyond what is settled or the end of the ring.
    #[error("span {span} where {available} bytes are settled")]
    Span {
        /// As found.
        span: u32,
        /// What it may be at most.
        available: u64,
    },
    /// There is no such kind.
    #[error("kind {0}")]
    Kind(u8),
    /// Inline part or payload leave the span.
    #[error("parts leave the span of {0} bytes")]
    Parts(u32),
}

impl Header {
    /// The header word of a message.
    #[inline]
    pub fn encode(self) -> u64 {
        let (span, inline_len, kind) = match self {
            Self::Inline { span, inline_len } => (span, inline_len, KIND_INLINE),
            Self::Payload { span, inline_len } => (span, inline_len, KIND_PAYLOAD),
            Self::Skip { span } => (span, 0, KIND_SKIP),
        };
        u64::from(span) | u64::from(inline_len) << 32 | u64::from(kind) << 48
    }

    /// Checks a header word against the bytes that are there.
    #[inline]
    pub fn decode(word: u64, available: u64) -> Result<Self, MessageError> {
        let (span, inline_len, kind) = (word as u32, (word >> 32) as u16, (word >> 48) as u8);
        if span == 0 || !u64::from(span).is_multiple_of(UNIT) || u64::from(span) > available {
            return Err(MessageError::Span { span, available });
        }
        if word >> 56 != 0 {
            return Err(MessageError::Kind(kind));
        }
        let parts = |head: usize| {
            if head as u64 + u64::from(inline_len) > u64::from(span) {
                return Err(MessageError::Parts(span));
            }
            Ok(())
        };
        match kind {
            KIND_INLINE => parts(HEADER_LEN).map(|()| Self::Inline { span, inline_len }),
            KIND_PAYLOAD => parts(PAYLOAD_HEADER_LEN).map(|()| Self::Payload { span, inline_len }),
            KIND_SKIP => Ok(Self::Skip { span }),
            _ => Err(MessageError::Kind(kind)),
        }
    }

    /// To the next message.
    #[inline]
    pub fn span(self) -> u32 {
        match self {
            Self::Inline { span, .. } | Self::Payload { span, .. } | Self::Skip { span } => span,
        }
    }
}

/// The word that says where a payload lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadWord {
    /// From the message's start.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
}

impl PayloadWord {
    /// The word as it stands in the ring.
    pub fn encode(self) -> u64 {
        u64::from(self.offset) | u64::from(self.len) << 32
    }

    /// Checks that the payload lies behind the inline part and inside the span.
    pub fn decode(word: u64, span: u32, inline_len: u16) -> Result<Self, MessageError> {
        let (offset, len) = (word as u32, (word >> 32) as u32);
        let behind_inline = offset as usize >= PAYLOAD_HEADER_LEN + usize::from(inline_len);
        let end = u64::from(offset) + u64::from(len);
        if behind_inline && end <= u64::from(span) {
            Ok(Self { offset, len })
        } else {
            Err(MessageError::Parts(span))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spec(capacity: u32) -> RingSpec {
        RingSpec::group(RegionId(1), capacity, capacity, 2 << 20).unwrap().0
    }

    #[test]
    fn golden_bytes() {
        let inline = Header::Inline { span: 16, inline_len: 8 }.encode().to_le_bytes();
        assert_eq!(inline, [16, 0, 0, 0, 8, 0, 1, 0]);
        let payload = Header::Payload { span: 8192, inline_len: 40 }.encode().to_le_bytes();
        assert_eq!(payload, [0, 32, 0, 0, 40, 0, 2, 0]);
        assert_eq!(Header::Skip { span: 24 }.encode().to_le_bytes(), [24, 0, 0, 0, 0, 0, 3, 0]);
        assert_eq!(PayloadWord { offset: 4096, len: 512 }.encode().to_le_bytes(), [0, 16, 0, 0, 0, 2, 0, 0]);
    }

    #[test]
    fn rings_that_cannot_be_are_refused() {
        for capacity in [0, 1, 4095, 4097, u32::MAX, 1 << 31] {
            assert!(RingSpec::group(RegionId(0), capacity, 4096, 4096).is_err(), "{capacity}");
        }
        let placed = |control, data| RingSpec::new(RegionId(0), 16384, control, data, 4096, 4096);
        assert!(placed(0, 4096).is_ok());
        assert_eq!(placed(4096, 4096), Err(RingSpecError::Placement));
        assert_eq!(placed(0, 16384), Err(RingSpecError::Placement));
        assert_eq!(placed(u64::MAX - 7, 4096), Err(RingSpecError::Placement));
        assert_eq!(placed(0, u64::MAX - 4095), Err(RingSpecError::Placement));
    }

    proptest! {
        #[test]
        fn headers_survive_a_round_trip(span in 1u32..1 << 20, inline_len: u16, kind in 0..3) {
            let span = span * 8;
            let header = match kind {
                0 => Header::Inline { span, inline_len },
                1 => Header::Payload { span, inline_len },
                _ => Header::Skip { span },
            };
            let fits = usize::from(inline_len) + PAYLOAD_HEADER_LEN <= span as usize;
            prop_assume!(fits);
            prop_assert_eq!(Header::decode(header.encode(), u64::from(span)), Ok(header));
            prop_assert!(Header::decode(header.encode(), u64::from(span) - 1).is_err());
        }

        #[test]
        fn any_word_is_refused_or_lies_inside(word: u64, second: u64, available in 0u64..1 << 31) {
            match Header::decode(word, available) {
                Ok(Header::Payload { span, inline_len }) => {
                    prop_assert!(u64::from(span) <= available);
                    if let Ok(payload) = PayloadWord::decode(second, span, inline_len) {
                        prop_assert!(u64::from(payload.offset) + u64::from(payload.len) <= u64::from(span));
                    }
                }
                Ok(Header::Inline { span, inline_len }) =>
                    prop_assert!(8 + u64::from(inline_len) <= u64::from(span) && u64::from(span) <= available),
                Ok(Header::Skip { span }) => prop_assert!(span > 0 && u64::from(span) <= available),
                Err(_) => {}
            }
        }

        #[test]
        fn placements_are_whole_aligned_and_inside(
            tail in 0u64..1 << 40, inline_len in 0u16..3000, len in 0u32..40_000, shift in 0u32..=12, with: bool,
        ) {
            let (tail, spec) = (tail * 8, spec(1 << 16));
            let shape = Shape { inline_len, payload: with.then_some((len, 1 << shift)) };
            let Some(placed) = Placement::of(shape, tail, &spec) else {
                prop_assert!(u64::from(len) + 4096 + 16 + u64::from(inline_len) + 8 > u64::from(spec.message_max()));
                return Ok(());
            };
            let start = tail + u64::from(placed.skip);
            prop_assert!(u64::from(placed.span) <= spec.to_wrap(start), "does not cross the end");
            prop_assert!(placed.span % 8 == 0 && placed.span <= spec.message_max());
            prop_assert!(placed.total() <= u64::from(spec.capacity()), "always fits an empty ring");
            if with {
                prop_assert_eq!((spec.at(start) + u64::from(placed.payload_offset)) % (1 << shift), 0);
                prop_assert!(placed.payload_offset + len <= placed.span);
            }
        }
    }
}
