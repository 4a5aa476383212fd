//! What a link says it has carried is exact, and the same on every kind of link: benchmarks divide by it.

#![allow(clippy::unwrap_used)] // A test stops at the first surprise.

use crate::pair;

use ob_core::{AttachmentId, DmaCounts};
use ob_link::{CardService, GroupKey, LinkKind};
use ob_ring::{Batch, CardSender, Outgoing};
use pair::{KINDS, Pair};

/// Answers each request with its inline part.
struct Answer;

impl CardService for Answer {
    fn open(&mut self, _: GroupKey, _: u32) -> Result<(), String> {
        Ok(())
    }

    fn requests(&mut self, _: GroupKey, batch: Batch, responses: &mut CardSender) {
        batch.iter().for_each(|message| responses.push(message.inline).unwrap());
    }

    fn responses(&mut self, _: GroupKey, _: &mut CardSender) {}

    fn closed(&mut self, _: GroupKey) {}

    fn channel(&mut self, _: AttachmentId, _: &[u8]) {}
}

fn difference(after: DmaCounts, before: DmaCounts) -> DmaCounts {
    DmaCounts {
        reads: after.reads - before.reads,
        writes: after.writes - before.writes,
        read_bytes: after.read_bytes - before.read_bytes,
        written_bytes: after.written_bytes - before.written_bytes,
        word_bytes: after.word_bytes - before.word_bytes,
    }
}

#[test]
fn one_message_and_its_answer_cost_what_they_must_on_every_link() {
    for kind in KINDS {
        let mut pair = Pair::new(kind, Answer);
        let group = pair.open_group(1, 4096, 4096);
        pair.run_until_asleep();
        let asleep = pair.card.counts();
        let payload = [7; 100];
        let pieces = [&payload[..]];
        // 16 bytes of header, 16 of inline part, 100 of payload, filled up to a multiple of 8.
        group.sender.push(Outgoing { inline: &[3; 16], payload: Some((&pieces, 8)) }).unwrap();
        pair.run_until_asleep();
        let counts = difference(pair.card.counts(), asleep);
        // At the pointers: the look that finds the request, those that look on while the answer goes out, the answer's own for
        // sleepers, and the one before the card sleeps. Where a transfer is over when it is submitted, one turn less looks on.
        let looks = if matches!(kind, LinkKind::Shm) { 4 } else { 5 };
        let expected = DmaCounts {
            // The request, and the looks.
            reads: 1 + looks,
            // The answer, both bounds, and the ticket before sleeping.
            writes: 1 + 2 + 1,
            read_bytes: 136,
            // 8 bytes of header and 16 of inline part.
            written_bytes: 24,
            word_bytes: looks * 24 + 3 * 8,
        };
        assert_eq!(counts, expected, "{kind:?}");
        assert!(group.receiver.receive().unwrap().is_some());
        assert!(group.receiver.receive().unwrap().is_none());
    }
}

#[test]
fn a_card_that_sleeps_transfers_nothing() {
    for kind in KINDS {
        let mut pair = Pair::new(kind, Answer);
        let _group = pair.open_group(1, 4096, 4096);
        pair.run_until_asleep();
        let asleep = pair.card.counts();
        for _ in 0..100 {
            pair.turn();
        }
        assert_eq!(pair.card.counts(), asleep, "{kind:?}");
    }
}
