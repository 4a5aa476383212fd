//! A message and its answer have the card's link allocate nothing. Alone in its process: it counts what the allocator does.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test that cannot go on has failed.

#[path = "../../ob-io/tests/counting/mod.rs"]
mod counting;
mod pair;

use counting::allocations;
use ob_core::AttachmentId;
use ob_link::{CardService, GroupKey, LinkKind};
use ob_ring::{Batch, CardSender, Outgoing};
use pair::Pair;

const TOGETHER: u64 = 4;
const WARM: u64 = 50;
const ROUNDS: u64 = 500;

/// Answers each message with its own bytes.
struct Echo;

impl CardService for Echo {
    fn open(&mut self, _: GroupKey, _: u32) -> Result<(), String> {
        Ok(())
    }

    fn requests(&mut self, _: GroupKey, batch: Batch, responses: &mut CardSender) {
        for message in batch.iter() {
            responses.push(message.inline).unwrap();
        }
    }

    fn responses(&mut self, _: GroupKey, _: &mut CardSender) {}

    fn closed(&mut self, _: GroupKey) {}

    fn channel(&mut self, _: AttachmentId, _: &[u8]) {}
}

#[test]
fn a_message_and_its_answer_allocate_nothing() {
    let mut pair = Pair::new(LinkKind::Shm, Echo);
    let group = pair.open_group(1, 4096, 4096);
    let (mut events, mut answers, mut counted) = (Vec::new(), 0, 0);
    for round in 0..WARM + ROUNDS {
        for _ in 0..TOGETHER {
            group.sender.push(Outgoing { inline: b"a message", payload: None }).unwrap();
        }
        let before = allocations();
        for _ in 0..8 {
            pair.card.poll(&mut pair.service, &mut events);
        }
        if round >= WARM {
            counted += allocations() - before;
        }
        while group.receiver.receive().unwrap().is_some() {
            answers += 1;
        }
    }
    assert_eq!((events.len(), answers), (0, (WARM + ROUNDS) * TOGETHER));
    assert_eq!(counted, 0, "in {} messages", ROUNDS * TOGETHER);
}
