//! A message and its answer have the card's link allocate nothing, whatever kind it is of. Alone in its process: it counts what the
//! allocator does.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test that cannot go on has failed.

#[path = "../../ob-io/tests/counting/mod.rs"]
mod counting;
mod pair;

use counting::allocations;
use ob_core::AttachmentId;
use ob_link::{CardService, GroupKey};
use ob_ring::{Batch, CardSender, Outgoing};
use pair::{KINDS, Pair};

const TOGETHER: u64 = 4;
const WARM: u64 = 500;
const ROUNDS: u64 = 500;
/// More than a message and its answer take on the slowest link.
const TURNS: u64 = 16;

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
fn a_message_and_its_answer_allocate_nothing_on_any_link() {
    for kind in KINDS {
        let mut pair = Pair::new(kind, Echo);
        pair.meter = allocations;
        let group = pair.open_group(1, 4096, 4096);
        let mut answers = 0;
        for round in 0..WARM + ROUNDS {
            if round == WARM {
                // On `tcp`, buffers have by now grown for the most frames that there are at once: where messages and answers wrap.
                pair.cost = 0;
            }
            for _ in 0..TOGETHER {
                group.sender.push(Outgoing { inline: b"a message", payload: None }).unwrap();
            }
            for _ in 0..TURNS {
                pair.turn();
            }
            while group.receiver.receive().unwrap().is_some() {
                answers += 1;
            }
        }
        assert_eq!(answers, (WARM + ROUNDS) * TOGETHER, "{kind:?}: each is answered");
        assert_eq!(pair.cost, 0, "{kind:?}: in {} messages", ROUNDS * TOGETHER);
    }
}
