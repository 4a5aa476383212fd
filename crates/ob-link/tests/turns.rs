//! One turn of the card copies only so much, whoever has how much to send: others wait for it meanwhile.

#![allow(clippy::unwrap_used)] // A test stops at the first surprise.

use crate::pair;

use std::collections::BTreeMap;

use ob_core::AttachmentId;
use ob_link::{CardService, GroupKey, LinkKind};
use ob_ring::{Batch, CardSender, Outgoing, UNPOLLED_BYTES_MAX};
use ob_wire_link::ring::Shape;
use pair::Pair;

const LARGE: u32 = 1 << 20;

/// Answers each request with as many large responses as its first byte says, or with a small one if that is 0.
#[derive(Default)]
struct Flood {
    wanted: BTreeMap<GroupKey, u32>,
}

impl CardService for Flood {
    fn open(&mut self, _: GroupKey, _: u32) -> Result<(), String> {
        Ok(())
    }

    fn requests(&mut self, key: GroupKey, batch: Batch, responses: &mut CardSender) {
        for message in batch.iter() {
            match message.inline[0] {
                0 => responses.push(b"small").unwrap(),
                count => *self.wanted.entry(key).or_default() += u32::from(count),
            }
        }
    }

    fn responses(&mut self, key: GroupKey, responses: &mut CardSender) {
        let wanted = self.wanted.entry(key).or_default();
        while *wanted > 0 {
            let Ok(place) = responses.reserve(Shape { inline_len: 1, payload: Some((LARGE, 8)) }) else {
                return;
            };
            responses.commit(place, b"x", LARGE);
            *wanted -= 1;
        }
    }

    fn closed(&mut self, _: GroupKey) {}

    fn channel(&mut self, _: AttachmentId, _: &[u8]) {}
}

#[test]
fn a_turn_copies_only_so_much_and_all_of_it_arrives() {
    let mut pair = Pair::new(LinkKind::Shm, Flood::default());
    let group = pair.open_group(1, 4096, 32 << 20);
    pair.run_until_asleep();
    group.sender.push(Outgoing { inline: &[24], payload: None }).unwrap();
    pair.settle();
    let mut turns = 0;
    loop {
        let before = pair.card.counts().written_bytes;
        if !pair.turn() && pair.card.counts().written_bytes >= 24 * u64::from(LARGE) {
            break;
        }
        let copied = (pair.card.counts().written_bytes - before) as usize;
        // What was allowed, and the one transfer that passed the limit.
        assert!(copied <= UNPOLLED_BYTES_MAX + (2 << 20), "{copied} bytes in one turn");
        turns += 1;
        assert!(turns < 1000, "the card does not go on");
    }
    assert!(turns >= 8, "{turns}");
    pair.run_until_asleep();
    for _ in 0..24 {
        assert_eq!(group.receiver.receive().unwrap().unwrap().payload_len(), LARGE as usize);
    }
}

#[test]
fn a_card_pushed_back_by_its_own_link_does_not_sleep() {
    let mut pair = Pair::new(LinkKind::Shm, Flood::default());
    let group = pair.open_group(1, 4096, 32 << 20);
    pair.run_until_asleep();
    group.sender.push(Outgoing { inline: &[24], payload: None }).unwrap();
    // Asleep only when all is delivered, though nobody woke the card in between.
    pair.run_until_asleep();
    assert_eq!(pair.card.counts().written_bytes / u64::from(LARGE), 24);
}

#[test]
fn a_group_with_much_to_send_does_not_keep_others_from_their_turn() {
    let mut pair = Pair::new(LinkKind::Shm, Flood::default());
    let first = pair.open_group(1, 4096, 32 << 20);
    let second = pair.open_group(1, 4096, 4096);
    pair.run_until_asleep();
    first.sender.push(Outgoing { inline: &[24], payload: None }).unwrap();
    second.sender.push(Outgoing { inline: &[0], payload: None }).unwrap();
    pair.settle();
    let mut turns = 0;
    while second.receiver.receive().unwrap().is_none() {
        pair.turn();
        turns += 1;
        assert!(turns < 8, "a small answer waits for all the large ones");
    }
    assert!(pair.card.counts().written_bytes < 16 * u64::from(LARGE));
}
