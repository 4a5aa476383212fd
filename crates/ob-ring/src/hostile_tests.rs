//! Random scripts for the hostile host, a look at the checker itself, and a hostile card as host threads see it.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use ob_core::RegionId;
use ob_memory::Region;
use ob_wire_link::ring::{Header, PayloadWord, RingSpec, control};
use proptest::prelude::*;

use super::check::{Fetched, Part};
use super::{NoBell, run};
use crate::{Closed, HostReceiver, HostSender, Outgoing, PushError, ReceiveError};

/// A script that leads somewhere: pushes, steps and completions, with an attack now and then.
fn biased_script() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        6 => any::<[u8; 2]>().prop_map(|[inline, payload]| vec![0, inline, payload, 0, 0]),
        4 => any::<[u8; 2]>().prop_map(|[inline, payload]| vec![0, inline, payload, 4, 0, 0]),
        1 => any::<[u8; 3]>().prop_map(|[inline, payload, how]| vec![0, inline, payload, 5, how, 0]),
        1 => Just(vec![0, 1, 1, 0, 77]),
        4 => Just(vec![1, 4, 1, 4]),
        2 => Just(vec![3, 4, 4, 4]),
        2 => any::<[u8; 4]>().prop_map(|[a, b, c, d]| vec![9, a, b % 4, c, d, 10, 0, d]),
        1 => Just(vec![11]),
        1 => Just(vec![7, 4, 4, 8]),
        2 => any::<u8>().prop_map(|index| vec![14, index, 14, 0]),
        3 => Just(vec![15, 0, 4, 4]),
        1 => any::<[u8; 5]>().prop_map(|[a, b, c, d, e]| vec![12, a, b, c, d % 11, e]),
        1 => any::<[u8; 9]>().prop_map(|bytes| [&[13][..], &bytes].concat()),
    ];
    (any::<u8>(), prop::collection::vec(piece, 1..if cfg!(miri) { 12 } else { 150 }))
        .prop_map(|(depth, pieces)| std::iter::once(depth).chain(pieces.into_iter().flatten()).collect())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 4000 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn no_random_script_harms_the_card(
        script in prop::collection::vec(any::<u8>(), 0..if cfg!(miri) { 100 } else { 600 }),
    ) {
        run(&script);
    }

    #[test]
    fn no_script_of_small_mutations_harms_the_card(script in biased_script()) {
        run(&script);
    }

    /// Response ring and bound hold anything: the host's threads get messages or a typed error, and come back.
    #[test]
    fn no_card_harms_its_host(
        bytes in prop::collection::vec(any::<u8>(), 64..512),
        headers in prop::collection::vec((0usize..64, 0u32..80, 0u16..80, 1u8..=3, 0u32..80, 0u32..80), 0..40),
        bound in prop_oneof![0u64..5000, any::<u64>(), Just(u64::MAX), Just(4096)],
    ) {
        let card = HostileCard::new();
        for chunk in 0..4096 / bytes.len() {
            card.region.copy_in(card.data() + chunk * bytes.len(), &bytes);
        }
        for (place, span, inline_len, kind, offset, len) in headers {
            let header = u64::from(span) | u64::from(inline_len) << 32 | u64::from(kind) << 48;
            let payload = PayloadWord { offset, len }.encode();
            card.region.copy_in(card.data() + place * 64, &header.to_le_bytes());
            card.region.copy_in(card.data() + place * 64 + 8, &payload.to_le_bytes());
        }
        card.store(control::BOUND, bound);
        card.receive_all();
    }
}

/// Every edge by hand, one after the other, so that none depends on luck.
#[test]
fn single_mutations_of_a_legal_ring() {
    for word in (0..8u8).step_by(if cfg!(miri) { 5 } else { 1 }) {
        for ring in 0..2u8 {
            for how in (0..11u8).step_by(if cfg!(miri) { 4 } else { 1 }) {
                for transfers in 0..if cfg!(miri) { 1 } else { 4u8 } {
                    let corrupt = [12, word * 2 + ring, transfers, 3, how];
                    let mut script = vec![8, 0, 6, 1, 0, 0, 0, 9, 2, 4, 0, 0, 9, 1, 8, 0, 40, 10, 0, 1];
                    script.extend([3, 4, 4, 1, 4]);
                    script.extend(corrupt);
                    script.extend([1, 4, 3, 4, 1, 4, 4, 7, 4, 4, 15, 0, 4, 1, 4, 4, 3, 4, 11, 3, 4, 14, 0]);
                    run(&script);
                }
            }
        }
    }
}

fn fetched(words: &[u64]) -> Fetched {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let settled = bytes.len() as u64;
    Fetched::new(512, bytes, settled)
}

/// The harness would notice a card without bounds checks: its checker refuses what such a card would hand out.
#[test]
fn the_checker_refuses_messages_that_lie_outside() {
    let legal = Header::Payload { span: 32, inline_len: 8 }.encode();
    let bytes = fetched(&[legal, PayloadWord { offset: 24, len: 8 }.encode(), 1, 2]);
    let parsed = bytes.parse(2048).unwrap();
    let part = |inline: (usize, u64), payload: (usize, u64)| Part {
        inline: (inline.0, inline.1.to_le_bytes().to_vec()),
        payload: Some((payload.0, payload.1.to_le_bytes().to_vec())),
    };
    let good = part((528, 1), (536, 2));
    assert_eq!(bytes.check(&parsed, std::slice::from_ref(&good)), Ok(()));
    for bad in [
        part((528, 1), (544, 2)),
        part((504, 1), (536, 2)),
        part((528, 1), (537, 2)),
        part((528, 9), (536, 2)),
        part((528, 1), (usize::MAX, 2)),
        Part { payload: None, ..good.clone() },
    ] {
        assert!(bytes.check(&parsed, std::slice::from_ref(&bad)).is_err(), "{bad:?}");
    }
    assert!(bytes.check(&parsed, &[]).is_err());
    assert!(bytes.check(&parsed, &[good.clone(), good]).is_err());
}

#[test]
fn the_checker_refuses_what_the_document_forbids() {
    let header = |span: u64, inline_len: u64, kind: u64| span | inline_len << 32 | kind << 48;
    let payload = |offset: u64, len: u64| offset | len << 32;
    for words in [
        [0, 0],
        [header(12, 0, 1), 0],
        [header(24, 0, 1), 0],
        [header(8, 0, 0), 0],
        [header(8, 0, 4), 0],
        [header(16, 0, 0x101), 0],
        [header(16, 9, 1), 0],
        [header(8, 0, 2), 0],
        [header(16, 0, 2), payload(8, 0)],
        [header(16, 0, 2), payload(16, 1)],
        [header(16, 0, 2), payload(0xffff_fff8, 0xffff_ffff)],
    ] {
        assert!(fetched(&words).parse(2048).is_err(), "{words:x?}");
    }
    assert!(fetched(&[header(16, 8, 1), 0]).parse(8).is_err(), "longer than a message may be");
    assert_eq!(fetched(&[header(16, 0, 3), 0]).parse(2048).unwrap().whole, 16);
}

/// A response ring that a card may write as it likes, and the host's end of it.
struct HostileCard {
    region: Region,
    spec: RingSpec,
    receiver: HostReceiver,
}

impl HostileCard {
    fn new() -> Self {
        let (_, spec, len) = RingSpec::group(RegionId(0), 4096, 4096, 4096).unwrap();
        let region = Region::on_heap(len as usize);
        let receiver = HostReceiver::new(region.clone(), spec, Closed::default(), Arc::new(NoBell));
        Self { region, spec, receiver }
    }

    fn data(&self) -> usize {
        self.spec.at(0) as usize
    }

    fn store(&self, word: usize, value: u64) {
        self.region.store(self.spec.word(word) as usize, value, Ordering::Release);
    }

    fn load(&self, word: usize) -> u64 {
        self.region.load(self.spec.word(word) as usize, Ordering::Acquire)
    }

    /// Receives until nothing is left, something is wrong, or a lap of the ring is over.
    fn receive_all(&self) {
        let (mut inline, mut payload) = ([0; 128], [0; 128]);
        for _ in 0..1024 {
            match self.receiver.receive() {
                Ok(None) => return,
                Err(error) => {
                    assert!(matches!(error, ReceiveError::Corrupt(_) | ReceiveError::Pointers { .. }));
                    return;
                }
                Ok(Some(claimed)) => {
                    assert!(claimed.inline(&mut inline) <= claimed.inline_len());
                    assert!(claimed.payload(0, &mut payload) <= claimed.payload_len());
                }
            }
        }
    }
}

/// A ring full of skips and a bound far away: one call must not follow them round and round.
#[test]
fn a_card_that_only_skips_does_not_keep_a_host_thread() {
    let card = HostileCard::new();
    let skip = Header::Skip { span: 2048 }.encode().to_le_bytes();
    card.region.copy_in(card.data(), &skip);
    card.region.copy_in(card.data() + 2048, &skip);
    card.store(control::BOUND, u64::MAX);
    thread::scope(|scope| {
        let receiving = scope.spawn(|| card.receiver.receive().map(|claimed| claimed.is_some()));
        while !receiving.is_finished() && card.load(control::CLAIM) < 100 * 4096 {
            thread::yield_now();
        }
        let laps = card.load(control::CLAIM) / 4096;
        // Lets the thread out if it is still at it.
        card.store(control::BOUND, 0);
        assert!(laps < 100, "one call went round the ring {laps} times");
        assert!(matches!(
            receiving.join().unwrap(),
            Err(ReceiveError::Corrupt(_) | ReceiveError::Pointers { .. }) | Ok(false)
        ));
    });
}

/// A claim between two units: nothing can begin there.
#[test]
fn a_request_ring_whose_claim_is_no_whole_unit_is_refused() {
    let (spec, _, len) = RingSpec::group(RegionId(0), 4096, 4096, 4096).unwrap();
    let region = Region::on_heap(len as usize);
    let sender = HostSender::new(region.clone(), spec, Closed::default(), Arc::new(NoBell));
    for claim in [1, 7, 4095] {
        region.store(spec.word(control::CLAIM) as usize, claim, Ordering::Release);
        let pushed = sender.push(Outgoing { inline: b"request", payload: None });
        assert_eq!(pushed, Err(PushError::Corrupt { claim, bound: 0 }));
    }
}

/// A request ring whose bound lies beyond every claim: a push gives up, as its promise never to wait says.
#[test]
fn a_card_whose_bound_is_ahead_does_not_keep_a_host_thread() {
    let (spec, _, len) = RingSpec::group(RegionId(0), 4096, 4096, 4096).unwrap();
    let region = Region::on_heap(len as usize);
    let sender = HostSender::new(region.clone(), spec, Closed::default(), Arc::new(NoBell));
    let bound = spec.word(control::BOUND) as usize;
    region.store(bound, u64::MAX - 7, Ordering::Release);
    thread::scope(|scope| {
        let pushing = scope.spawn(|| sender.push(Outgoing { inline: b"request", payload: None }));
        let mut patience = if cfg!(miri) { 100u32 } else { 100_000 };
        while !pushing.is_finished() && patience > 0 {
            patience -= 1;
            thread::yield_now();
        }
        // Lets the thread out if it is still at it.
        region.store(bound, 0, Ordering::Release);
        assert!(patience > 0, "a push waits for ever");
        assert!(pushing.join().unwrap().is_err());
    });
}
