//! The log's writes and the stream reach the card through different rings: nothing is written to a file that the card has not heard of.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

use crate::support;

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;

use ob_core::{ConnectionId, NodeId};
use ob_kv::host::{HostLimits, HostStream};
use ob_kv::store::{Config, Durability, LogOp, Store};
use ob_sim::Rng;
use ob_wire_link::stream::{Fragment, FromCard, FromHost};
use support::files::Files;
use support::{at, encoded};

const CLIENT: ConnectionId = ConnectionId(1);

/// A card that takes writes at once, and what the stream says a turn later.
#[derive(Default)]
struct Card {
    heard: BTreeSet<u64>,
    /// Names that were said, and what the card says of them; it is a turn late with both.
    files: VecDeque<u64>,
    named: Option<u32>,
    count: u32,
    replies: usize,
    unseen: usize,
    writes: usize,
}

impl Card {
    fn hears(&mut self, frame: &FromHost<'_>) {
        match frame {
            FromHost::File { name, .. } => self.files.push_back(u64::from(*name)),
            FromHost::Reply(_) => self.replies += 1,
            _ => {}
        }
    }

    fn turn(&mut self, stream: &mut HostStream<Store>) {
        if let Some(count) = self.named.take() {
            stream.received(at(0), &FromCard::Named { count }).unwrap();
        }
        for name in self.files.drain(..) {
            self.heard.insert(name);
            self.count += 1;
            self.named = Some(self.count);
        }
    }
}

fn filled(durability: Durability) -> Card {
    let config = Config { durability, part_len: 32 << 10, group_len: 8 << 10, ..Config::default() };
    let mut store = Store::create(config);
    store.mark_life();
    let (mut stream, mut files, mut rng) =
        (HostStream::new(store, HostLimits::default()), Files::default(), Rng::new(5));
    let (mut card, mut is_met, mut now) = (Card::default(), false, 1_000_000);
    for _ in 0..10_000 {
        now += 10;
        card.turn(&mut stream);
        if std::mem::take(&mut is_met) {
            // The card has had many requests waiting for its host.
            stream.received(at(now), &FromCard::Begin { stamp: 1 }).unwrap();
            let address = SocketAddr::from(([127, 0, 0, 1], 1));
            stream.received(at(now), &FromCard::Opened { connection: CLIENT, address }).unwrap();
            for stamp in 1..=1000 {
                let bytes = encoded(&["set", &format!("key{stamp}"), &format!("{stamp:0>100}")]);
                let length = bytes.len() as u32;
                let request = Fragment { connection: CLIENT, stamp, length, offset: 0, bytes: &bytes };
                stream.received(at(now), &FromCard::Request(request)).unwrap();
            }
        }
        stream.service_mut().tick(at(now));
        while stream.may_write()
            && let Some(op) = stream.service_mut().next_op()
        {
            if let LogOp::Create { part, .. } = &op {
                stream.name_file(*part as u32, NodeId(*part));
            }
            if let LogOp::Write { part, .. } = &op
                && stream.is_running()
            {
                card.writes += 1;
                card.unseen += usize::from(!card.heard.contains(part));
            }
            files.submit(op);
        }
        while let Some(done) = files.complete(&mut rng) {
            stream.service_mut().completed(done);
        }
        stream.send(&mut |frame| {
            is_met |= matches!(frame, FromHost::Meet { .. });
            card.hears(frame);
            true
        });
        if card.replies == 1000 && stream.service().settled() > 100_000 {
            return card;
        }
    }
    panic!("{} requests were answered in all that time", card.replies);
}

#[test]
fn whatever_a_new_store_is_filled_with_is_seen_by_the_card() {
    for durability in [Durability::Always, Durability::EverySecond, Durability::No] {
        let card = filled(durability);
        assert!(card.writes > 8 && card.heard.len() > 3, "there were several groups, and parts");
        assert_eq!(card.unseen, 0, "{durability:?}: of {} writes", card.writes);
    }
}
