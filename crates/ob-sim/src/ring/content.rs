//! What the messages of the ring scenario say: their name, and bytes that follow from it.

use std::fmt;

use crate::Rng;

/// Bytes of a name in a message.
pub(super) const NAME_LEN: usize = 24;
/// Bytes of a response's inline part.
pub(super) const RESPONSE_LEN: usize = 8 + NAME_LEN;

/// Which request a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) life: u64,
    pub(super) producer: u64,
    pub(super) number: u64,
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { life, producer, number } = self;
        write!(formatter, "request {number} of producer {producer} in life {life}")
    }
}

impl Name {
    pub(super) fn encode(self) -> [u8; NAME_LEN] {
        let mut bytes = [0; NAME_LEN];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip([self.life, self.producer, self.number]) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        Some(Self { life: word(0)?, producer: word(8)?, number: word(16)? })
    }
}

/// Which response a message is, and to what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Response {
    pub(super) number: u64,
    pub(super) name: Name,
}

impl Response {
    pub(super) fn encode(self) -> [u8; RESPONSE_LEN] {
        let mut bytes = [0; RESPONSE_LEN];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..].copy_from_slice(&self.name.encode());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let number = u64::from_le_bytes(*bytes.first_chunk()?);
        Some(Self { number, name: Name::decode(bytes.get(8..)?)? })
    }
}

/// The bytes of one request. Its response carries the same payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) inline: Vec<u8>,
    /// Bytes and alignment.
    pub(super) payload: Option<(Vec<u8>, u32)>,
}

impl Content {
    /// The bytes of a message, small enough for a ring whose messages span at most `message_max`.
    pub(super) fn of(name: Name, message_max: u32) -> Self {
        let key = name.life << 40 ^ name.producer << 32 ^ name.number;
        let mut rng = Rng::new(key);
        let mut inline = name.encode().to_vec();
        let extra = rng.below(40) as usize;
        inline.extend((0..extra).map(|_| rng.word() as u8));
        // Header words, the larger of the two inline parts, and the padding before the payload.
        let align = [1, 8, 64, 512][rng.index(4)];
        let limit = u64::from(message_max).saturating_sub(16 + 64 + u64::from(align) + 8);
        let len = match rng.below(8) {
            0 => 0,
            1 => limit,
            _ => rng.below(limit.min(900) + 1),
        };
        let payload = rng.one_in(2).then(|| {
            let mut bytes = vec![0; len as usize];
            rng.fill(&mut bytes);
            (bytes, align)
        });
        Self { inline, payload }
    }

    pub(super) fn payload_bytes(&self) -> Option<&[u8]> {
        self.payload.as_ref().map(|(bytes, _)| bytes.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ob_core::RegionId;
    use ob_wire_link::ring::{Placement, RingSpec, Shape};

    #[test]
    fn names_and_responses_come_back() {
        let name = Name { life: 1, producer: 2, number: u64::MAX };
        assert_eq!(Name::decode(&name.encode()), Some(name));
        let response = Response { number: 3, name };
        assert_eq!(Response::decode(&response.encode()), Some(response));
        assert_eq!(Response::decode(&[0; RESPONSE_LEN - 1]), None);
    }

    #[test]
    fn every_message_fits_the_smallest_ring() {
        let (request, _, _) = RingSpec::group(RegionId(0), 4096, 4096, 1024).unwrap();
        for number in 0..500 {
            let content = Content::of(Name { life: 1, producer: 0, number }, request.message_max());
            let payload = content.payload.map(|(bytes, align)| (bytes.len() as u32, align));
            for inline_len in [content.inline.len(), RESPONSE_LEN] {
                let shape = Shape { inline_len: inline_len as u16, payload };
                assert!(Placement::of(shape, 8, &request).is_some(), "{shape:?}");
            }
        }
    }
}
