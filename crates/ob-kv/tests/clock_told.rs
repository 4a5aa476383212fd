//! A card that answers for keys that expire knows the host's clock: no reply leaves that was made much later than what it was told.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

use crate::support;

use std::net::SocketAddr;

use ob_core::{ConnectionId, NodeId};
use ob_kv::host::{HostLimits, HostStream};
use ob_kv::store::{Config, Durability, LogOp, Store};
use ob_sim::Rng;
use ob_wire_link::stream::{Fragment, FromCard, FromHost};
use support::files::Files;
use support::{at, encoded};

const CLIENT: ConnectionId = ConnectionId(1);
/// What `docs/linearizable-offload.md` promises.
const MARGIN_MS: u64 = 100;
const SEEDS: u64 = 20;
const TURNS: u64 = 2000;

/// What the card has heard in this life.
#[derive(Default)]
struct Card {
    /// What time it is for the host, and which request it had received when it looked.
    told: Option<(u64, u64)>,
    is_met: bool,
    sent: u64,
    replies: u64,
    /// How often it was told.
    clocks: u64,
}

impl Card {
    fn hears(&mut self, seed: u64, now_ms: u64, frame: &FromHost<'_>) {
        match frame {
            FromHost::Meet { .. } => self.is_met = true,
            FromHost::Clock { stamp, unix_ms } => {
                assert!(*unix_ms == now_ms && *stamp <= self.sent, "seed {seed}: it cannot know {frame:?}");
                self.told = Some((*unix_ms, *stamp));
                self.clocks += 1;
            }
            FromHost::Reply(_) => {
                let (told_ms, _) = self.told.expect("a reply left before the card was told any time");
                let late = now_ms - told_ms;
                assert!(late < MARGIN_MS, "seed {seed}: a reply left {late} ms after the card was told");
                self.replies += 1;
            }
            _ => {}
        }
    }
}

fn some_request(rng: &mut Rng) -> Vec<u8> {
    let key = format!("key{}", rng.below(20));
    match rng.below(4) {
        0 => encoded(&["set", &key, "value", "px", &rng.range(1..2000).to_string()]),
        1 => encoded(&["ttl", &key]),
        _ => encoded(&["get", &key]),
    }
}

/// One life of a host whose clock goes on by any steps, and whose device takes its time.
fn live(seed: u64) -> Card {
    let mut rng = Rng::new(seed);
    let durability = [Durability::Always, Durability::No][rng.index(2)];
    let mut store = Store::create(Config { durability, part_len: 32 << 10, ..Config::default() });
    store.mark_life();
    let (mut stream, mut files) = (HostStream::new(store, HostLimits::default()), Files::default());
    let (mut card, mut now_ms) = (Card::default(), 1_000_000);
    for _ in 0..TURNS {
        now_ms += if rng.one_in(5) { rng.below(300) } else { rng.below(10) };
        if std::mem::take(&mut card.is_met) {
            card.sent = 1;
            stream.received(at(now_ms), &FromCard::Begin { stamp: card.sent }).unwrap();
            let address = SocketAddr::from(([127, 0, 0, 1], 1));
            stream.received(at(now_ms), &FromCard::Opened { connection: CLIENT, address }).unwrap();
        }
        if stream.is_running() && rng.one_in(3) {
            let bytes = some_request(&mut rng);
            card.sent += 1;
            let (stamp, length) = (card.sent, bytes.len() as u32);
            let request = Fragment { connection: CLIENT, stamp, length, offset: 0, bytes: &bytes };
            stream.received(at(now_ms), &FromCard::Request(request)).unwrap();
            stream.received(at(now_ms), &FromCard::Credit { connection: CLIENT, length: 1000 }).unwrap();
        }
        stream.service_mut().tick(at(now_ms));
        while let Some(op) = stream.service_mut().next_op() {
            if let LogOp::Create { part, .. } = &op {
                stream.name_file(*part as u32, NodeId(*part));
            }
            files.submit(op);
        }
        if rng.one_in(2)
            && let Some(done) = files.complete(&mut rng)
        {
            stream.service_mut().completed(done);
        }
        stream.set_clock(now_ms);
        // The ring takes any number of frames at a time.
        let mut room = rng.below(4);
        stream.send(&mut |frame| {
            if room == 0 {
                return false;
            }
            room -= 1;
            card.hears(seed, now_ms, frame);
            true
        });
    }
    card
}

#[test]
fn no_reply_leaves_much_later_than_what_the_card_was_told() {
    for seed in 0..SEEDS {
        let card = live(seed);
        assert!(card.replies > 100 && card.clocks > 20, "seed {seed}: {}", card.replies);
    }
}
