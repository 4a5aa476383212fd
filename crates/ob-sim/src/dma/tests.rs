//! The order that the contract promises is kept; what it does not promise is not to be had.

use std::sync::atomic::Ordering;

use ob_core::DmaAddress;
use ob_memory::{Pool, Slice};

use super::*;
use crate::SimClock;

const REGION: RegionId = RegionId(0);

struct Rig {
    dma: SimDma,
    clock: SimClock,
    region: Region,
    pool: Pool,
    next: u64,
}

impl Rig {
    fn new(seed: u64, plan: DmaPlan) -> Self {
        let clock = SimClock::new();
        let region = Region::on_heap(8192);
        let mut dma = SimDma::new(plan, Rng::new(seed), Trace::new(clock.clone()));
        dma.register(REGION, region.clone());
        Self { dma, clock, region, pool: Pool::new(4096, 64), next: 0 }
    }

    fn patient(seed: u64) -> Self {
        Self::new(seed, DmaPlan { busy: PerMillion::NEVER, ..DmaPlan::default() })
    }

    fn submit(&mut self, op: DmaOp) -> Token {
        self.next += 1;
        self.dma.submit(Token(self.next), op).unwrap();
        Token(self.next)
    }

    fn slice(&self, len: usize, byte: u8) -> Slice {
        let mut slice = self.pool.take().unwrap().split_to(len);
        slice.fill(byte);
        slice
    }

    fn write_word(&mut self, offset: u64, value: u64) -> Token {
        self.submit(DmaOp::WriteWord { to: at(offset), value })
    }

    /// Moves time on in small steps, calling `look` after each, until all is done; the completions.
    fn drain(&mut self, mut look: impl FnMut(&Region)) -> Vec<DmaCompletion> {
        let mut done = Vec::new();
        for _ in 0..100_000 {
            self.clock.advance_to(self.clock.now() + Duration::from_nanos(97));
            self.dma.advance(self.clock.now());
            look(&self.region);
            done.extend(std::iter::from_fn(|| self.dma.poll()));
            if self.dma.is_idle() {
                return done;
            }
        }
        panic!("transfers never end");
    }
}

fn at(offset: u64) -> DmaAddress {
    DmaAddress { region: REGION, offset }
}

fn words(completion: &DmaCompletion) -> [u64; 4] {
    match completion.op {
        DmaOp::ReadWords { words, .. } => words,
        _ => panic!("not an ordered read"),
    }
}

#[test]
fn writes_take_effect_in_order() {
    for seed in 0..200 {
        let mut rig = Rig::patient(seed);
        for value in 1..=5 {
            rig.write_word(0, value);
            let from = rig.slice(512, value as u8).into();
            rig.submit(DmaOp::Write { from, to: at(1024) });
            rig.write_word(8, value);
        }
        let mut last = 0;
        rig.drain(|region| {
            let (before, after) = (region.load(0, Ordering::Relaxed), region.load(8, Ordering::Relaxed));
            let mut bytes = [0; 512];
            region.copy_out(1024, &mut bytes);
            assert!(before >= last && after <= before && before <= after + 1);
            let range = after as u8..=before as u8;
            assert!(bytes.iter().all(|byte| range.contains(byte)), "bytes between the words around them");
            last = before;
        });
        assert_eq!(last, 5);
    }
}

#[test]
fn a_fenced_read_sees_earlier_writes_and_an_unfenced_one_need_not() {
    let (mut stale, mut fresh) = (0, 0);
    for seed in 0..300 {
        let mut rig = Rig::patient(seed);
        rig.write_word(0, 7);
        let unfenced = rig.submit(DmaOp::read_words(at(0), 64, 1, false));
        let fenced = rig.submit(DmaOp::read_words(at(0), 64, 1, true));
        for completion in rig.drain(|_| {}) {
            let seen = words_if(&completion, unfenced);
            stale += u32::from(seen == Some(0));
            fresh += u32::from(seen == Some(7));
            if completion.token == fenced {
                assert_eq!(words(&completion)[0], 7);
            }
        }
    }
    assert!(stale > 20 && fresh > 20, "{stale} stale, {fresh} fresh");
}

fn words_if(completion: &DmaCompletion, token: Token) -> Option<u64> {
    (completion.token == token).then(|| words(completion)[0])
}

#[test]
fn words_are_read_in_ascending_order_but_not_in_one_moment() {
    let mut apart = 0;
    for seed in 0..300 {
        let mut rig = Rig::patient(seed);
        rig.submit(DmaOp::read_words(at(0), 64, 3, false));
        // The host counts all words up, the last word first: a word read later is never the smaller one.
        let mut count = 0;
        let done = rig.drain(|region| {
            count += 1;
            for offset in [128, 64, 0] {
                region.store(offset, count, Ordering::Relaxed);
            }
        });
        let [first, second, third, _] = words(&done[0]);
        assert!(first <= second && second <= third);
        apart += u32::from(first != third);
    }
    assert!(apart > 20, "{apart}");
}

#[test]
fn a_read_is_no_snapshot() {
    let mut torn = 0;
    for seed in 0..300 {
        let mut rig = Rig::patient(seed);
        let into = rig.slice(512, 0);
        rig.submit(DmaOp::Read { from: at(1024), into });
        let mut byte = 0;
        let done = rig.drain(|region| {
            byte = (byte + 1) % 251;
            region.copy_in(1024, &[byte; 512]);
        });
        let DmaOp::Read { into, .. } = &done[0].op else { panic!("a read") };
        torn += u32::from(into.iter().any(|byte| *byte != into[0]));
    }
    assert!(torn > 20, "{torn}");
}

#[test]
fn a_bell_comes_after_the_writes_before_it() {
    for seed in 0..200 {
        let mut rig = Rig::patient(seed);
        rig.write_word(0, 1);
        rig.dma.ring(Bell { address: at(64) }).unwrap();
        rig.write_word(0, 2);
        let (moment, bell) = rig.dma.take_bells()[0];
        assert_eq!(bell.address, at(64));
        rig.drain(|region| {
            assert!(region.load(64, Ordering::Relaxed) == 0 || region.load(0, Ordering::Relaxed) >= 1);
        });
        rig.clock.advance_to(moment);
        rig.dma.advance(moment);
        assert_eq!(rig.region.load(64, Ordering::Relaxed), 1);
    }
}

#[test]
fn writes_bells_and_fences_of_one_region_do_not_wait_for_another() {
    let other = RegionId(1);
    let elsewhere = |offset| DmaAddress { region: other, offset };
    let (mut writes, mut bells, mut fences) = (0, 0, 0);
    for seed in 0..300 {
        let mut rig = Rig::patient(seed);
        let second = Region::on_heap(4096);
        rig.dma.register(other, second.clone());
        for _ in 0..4 {
            let from = rig.slice(512, 1).into();
            rig.submit(DmaOp::Write { from, to: at(1024) });
        }
        rig.write_word(0, 1);
        rig.submit(DmaOp::WriteWord { to: elsewhere(0), value: 2 });
        rig.dma.ring(Bell { address: elsewhere(64) }).unwrap();
        let fenced = rig.submit(DmaOp::read_words(elsewhere(0), 8, 1, true));
        let done = rig.drain(|region| {
            let first = region.load(0, Ordering::Relaxed);
            let (word, bell) = (second.load(0, Ordering::Relaxed), second.load(64, Ordering::Relaxed));
            writes += u32::from(word == 2 && first == 0);
            bells += u32::from(bell == 1 && first == 0);
            assert!(bell == 0 || word == 2, "in its own region a bell is after the writes");
        });
        let order: Vec<Token> = done.iter().map(|completion| completion.token).collect();
        fences += u32::from(order.last() != Some(&fenced));
        let completion = done.iter().find(|completion| completion.token == fenced).unwrap();
        assert_eq!(words(completion)[0], 2);
    }
    assert!(writes > 20 && bells > 20 && fences > 20, "{writes} {bells} {fences}");
}

#[test]
fn after_a_failure_nothing_takes_effect_and_everything_completes() {
    let mut reached = DmaStats::default();
    for seed in 0..300 {
        let mut rig = Rig::patient(seed);
        for value in 1..=4 {
            let from = rig.slice(512, value).into();
            rig.submit(DmaOp::Write { from, to: at(1024) });
            rig.write_word(0, u64::from(value));
        }
        let into = rig.slice(64, 0);
        rig.submit(DmaOp::Read { from: at(0), into });
        rig.clock.advance_to(Instant::from_nanoseconds(seed * 300));
        rig.dma.fail();
        let (mut bytes, value) = ([0; 512], rig.region.load(0, Ordering::Relaxed));
        rig.region.copy_out(1024, &mut bytes);
        let (low, high) = (value as u8, value as u8 + 1);
        assert!(bytes.iter().all(|byte| (low..=high).contains(byte)), "a prefix of the writes");
        let done = rig.drain(|region| assert_eq!(region.load(0, Ordering::Relaxed), value));
        assert_eq!(done.len(), 9);
        assert!(done.iter().all(|done| matches!(done.result, Ok(()) | Err(DmaError::LinkDown))));
        let refused = rig.dma.submit(Token(99), DmaOp::read_words(at(0), 8, 1, false)).unwrap_err();
        assert_eq!(refused.reason, RefusedReason::Gone);
        assert_eq!(rig.dma.ring(Bell { address: at(64) }), Err(DmaError::LinkDown));
        reached.writes_cut += rig.dma.stats().writes_cut;
        reached.writes_lost += rig.dma.stats().writes_lost;
    }
    assert!(reached.writes_cut > 10 && reached.writes_lost > 100, "{reached:?}");
}

#[test]
fn every_freedom_of_the_contract_is_taken() {
    let mut rig = Rig::new(5, DmaPlan { depth: 8, busy: PerMillion::percent(5), ..DmaPlan::default() });
    for round in 0..400 {
        let from = rig.slice(512, 1).into();
        let into = rig.slice(512, 2);
        for op in [
            DmaOp::Write { from, to: at(1024) },
            DmaOp::Read { from: at(1024), into },
            DmaOp::read_words(at(0), 64, 3, round % 2 == 0),
            DmaOp::WriteWord { to: at(0), value: round },
        ] {
            let _ = rig.dma.submit(Token(round), op);
        }
        if round % 3 == 0 {
            rig.drain(|_| {});
        }
    }
    let stats = rig.dma.stats();
    for (what, count) in [
        ("busy", stats.busy),
        ("torn reads", stats.torn_reads),
        ("torn words", stats.torn_words),
        ("torn writes", stats.torn_writes),
        ("reads before writes", stats.reads_before_writes),
        ("overtaken", stats.overtaken),
    ] {
        assert!(count > 10, "{what}: {count}");
    }
}

#[test]
fn illegal_transfers_complete_with_an_error() {
    let mut rig = Rig::patient(1);
    let into = rig.slice(64, 0);
    let elsewhere = DmaAddress { region: RegionId(9), offset: 0 };
    let cases = [
        (DmaOp::WriteWord { to: at(8192), value: 1 }, DmaError::OutOfRegion),
        (DmaOp::WriteWord { to: at(4), value: 1 }, DmaError::Misaligned),
        (DmaOp::read_words(at(0), 8, 5, false), DmaError::Misaligned),
        (DmaOp::Read { from: elsewhere, into }, DmaError::UnknownRegion),
    ];
    for (op, error) in cases {
        rig.submit(op);
        assert_eq!(rig.drain(|_| {})[0].result, Err(error));
    }
    rig.dma.engine.plan.largest_transfer = 32;
    let from = rig.slice(64, 0).into();
    rig.submit(DmaOp::Write { from, to: at(0) });
    assert_eq!(rig.drain(|_| {})[0].result, Err(DmaError::TooLarge));
}
