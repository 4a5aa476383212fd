//! The checker: what was sent and what arrived in each attachment, both through the rings and on the channel.

use std::collections::BTreeMap;

use ob_core::{AttachmentId, Incarnation};

use crate::Failure;

/// One attachment of one life of the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Life {
    pub(super) card: Incarnation,
    pub(super) attachment: AttachmentId,
}

/// What a message says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) life: Life,
    pub(super) producer: u64,
    pub(super) number: u64,
}

impl Name {
    pub(super) const LEN: usize = 32;

    pub(super) fn encode(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let words = [self.life.card.0, self.life.attachment.0, self.producer, self.number];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut words = bytes.chunks_exact(8).map(|chunk| {
            let mut word = [0; 8];
            word.copy_from_slice(chunk);
            u64::from_le_bytes(word)
        });
        let life = Life { card: Incarnation(words.next()?), attachment: AttachmentId(words.next()?) };
        Some(Self { life, producer: words.next()?, number: words.next()? })
    }

    /// The payload that goes with the name: anybody can tell whether it is the right one.
    pub(super) fn payload(self) -> Vec<u8> {
        let seed = self.number.wrapping_mul(31).wrapping_add(self.producer * 7 + self.life.attachment.0);
        (0..seed % 700).map(|index| (index.wrapping_mul(seed) >> 3) as u8).collect()
    }
}

/// Where a message is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Hop {
    /// Requests, host to card.
    Request,
    /// Responses, card to host.
    Response,
    /// The ordered channel, host to card.
    ChannelToCard,
    /// The ordered channel, card to host.
    ChannelToHost,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    sent: u64,
    arrived: u64,
}

/// Everything that was sent, by attachment, hop and producer.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    counts: BTreeMap<(Life, Hop, u64), Counts>,
    /// What went wrong first, where it could not be told at once.
    wrong: Option<Failure>,
    /// Bulk transfers that were over, and those of them that had failed.
    pub(super) transfers: u64,
    pub(super) failed_transfers: u64,
    /// Writes that took effect before an earlier one of another region.
    pub(super) overtaken: u64,
}

impl Ledger {
    /// The name of the next message to send.
    pub(super) fn next(&self, life: Life, hop: Hop, producer: u64) -> Name {
        let sent = self.counts.get(&(life, hop, producer)).map_or(0, |counts| counts.sent);
        Name { life, producer, number: sent }
    }

    /// A message was accepted for sending.
    pub(super) fn sent(&mut self, name: Name, hop: Hop) {
        self.counts.entry((name.life, hop, name.producer)).or_default().sent += 1;
    }

    /// A message arrived in the attachment `life`: it must belong there, and be its sender's next.
    pub(super) fn arrived(&mut self, life: Life, hop: Hop, bytes: &[u8], payload: &[u8]) {
        let outcome = self.check(life, hop, bytes, payload);
        if let Err(what) = outcome {
            self.wrong.get_or_insert_with(|| Failure::new(what));
        }
    }

    fn check(&mut self, life: Life, hop: Hop, bytes: &[u8], payload: &[u8]) -> Result<(), String> {
        let name =
            Name::decode(bytes).ok_or_else(|| format!("{hop:?}: {} bytes are no name", bytes.len()))?;
        if name.life != life {
            return Err(format!("{hop:?}: {name:?} appeared in {life:?}"));
        }
        let counts = self.counts.entry((life, hop, name.producer)).or_default();
        if name.number >= counts.sent {
            return Err(format!("{hop:?}: {name:?} arrived and was never sent"));
        }
        if name.number != counts.arrived {
            return Err(format!("{hop:?}: {name:?} arrived where number {} was next", counts.arrived));
        }
        counts.arrived += 1;
        if matches!(hop, Hop::Request | Hop::Response) && payload != name.payload() {
            return Err(format!("{hop:?}: {name:?} arrived with another payload"));
        }
        Ok(())
    }

    /// A bulk transfer is over.
    pub(super) fn transferred(&mut self, well: bool) {
        self.transfers += 1;
        self.failed_transfers += u64::from(!well);
    }

    /// Something went wrong.
    pub(super) fn complain(&mut self, what: String) {
        self.wrong.get_or_insert_with(|| Failure::new(what));
    }

    /// How many messages of a producer have arrived.
    pub(super) fn arrived_from(&self, life: Life, hop: Hop, producer: u64) -> u64 {
        self.counts.get(&(life, hop, producer)).map_or(0, |counts| counts.arrived)
    }

    /// The first thing that went wrong.
    pub(super) fn take_wrong(&mut self) -> Option<Failure> {
        self.wrong.take()
    }

    /// Checks an attachment that came to rest: nothing may be on its way any more.
    pub(super) fn check_rest(&self, life: Life) -> Result<(), Failure> {
        for ((of, hop, producer), counts) in &self.counts {
            if *of == life && counts.sent != counts.arrived {
                let Counts { sent, arrived } = counts;
                let text =
                    format!("{hop:?} of producer {producer} in {life:?}: {sent} sent, {arrived} arrived");
                return Err(Failure::new(format!("everything rests, but {text}")));
            }
        }
        Ok(())
    }

    /// Messages that arrived at a hop, in all lives.
    pub(super) fn arrivals(&self, at: Hop) -> u64 {
        self.counts.iter().filter(|((_, hop, _), _)| *hop == at).map(|(_, counts)| counts.arrived).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: Life = Life { card: Incarnation(3), attachment: AttachmentId(2) };

    fn ledger(sent: u64) -> Ledger {
        let mut ledger = Ledger::default();
        for _ in 0..sent {
            let name = ledger.next(LIFE, Hop::Request, 1);
            ledger.sent(name, Hop::Request);
        }
        ledger
    }

    fn arrive(ledger: &mut Ledger, name: Name) -> Option<String> {
        ledger.arrived(LIFE, Hop::Request, &name.encode(), &name.payload());
        ledger.take_wrong().map(|failure| failure.what)
    }

    #[test]
    fn names_survive_a_round_trip() {
        let name = Name { life: LIFE, producer: 1, number: 9 };
        assert_eq!(Name::decode(&name.encode()), Some(name));
        assert_eq!(Name::decode(&[0; 31]), None);
    }

    #[test]
    fn loss_doubling_reordering_and_earlier_lives_are_found() {
        let name = |number| Name { life: LIFE, producer: 1, number };
        let mut good = ledger(2);
        assert_eq!(arrive(&mut good, name(0)), None);
        assert!(good.check_rest(LIFE).is_err(), "one is lost");
        assert!(arrive(&mut good, name(0)).unwrap().contains("number 1 was next"), "doubled");
        assert_eq!(arrive(&mut good, name(1)), None);
        assert!(good.check_rest(LIFE).is_ok());
        assert!(arrive(&mut ledger(2), name(1)).unwrap().contains("number 0 was next"), "reordered");
        assert!(arrive(&mut ledger(1), name(1)).unwrap().contains("never sent"));
        let old = Name { life: Life { card: Incarnation(2), ..LIFE }, ..name(0) };
        assert!(arrive(&mut ledger(1), old).unwrap().contains("appeared in"));
        let mut other = ledger(1);
        other.arrived(LIFE, Hop::Request, &name(0).encode(), b"x");
        assert!(other.take_wrong().unwrap().what.contains("another payload"));
    }
}
