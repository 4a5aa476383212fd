use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use ob_core::{DmaAddress, RegionId};
use ob_memory::{Pool, Region};

use super::*;

#[derive(Clone, Default)]
struct TestClock(Rc<Cell<u64>>);

impl Clock for TestClock {
    fn now(&self) -> Instant {
        Instant::from_nanoseconds(self.0.get())
    }
}

const HERE: DmaAddress = DmaAddress { region: RegionId(0), offset: 0 };

const ELSEWHERE: DmaAddress = DmaAddress { region: RegionId(1), offset: 0 };

fn model() -> (ModelDma<TestClock>, Region, TestClock) {
    let (clock, region) = (TestClock::default(), Region::on_heap(8 << 20));
    let mut local = LocalDma::new(16, 4 << 20);
    local.register(RegionId(0), region.clone());
    local.register(RegionId(1), Region::on_heap(4096));
    (ModelDma::new(local, clock.clone(), Costs::PCIE4, 4096), region, clock)
}

#[test]
fn a_transfer_takes_effect_when_it_is_due_and_not_before() {
    let (mut dma, region, clock) = model();
    dma.submit(Token(1), DmaOp::WriteWord { to: HERE, value: 7 }).unwrap();
    assert!(dma.poll().is_none());
    assert_eq!(region.load(0, Ordering::Relaxed), 0);
    let due = dma.next_due().unwrap();
    assert!((1_400..1_500).contains(&due.nanoseconds()), "{due:?}");
    clock.0.set(due.nanoseconds());
    assert_eq!(dma.poll().unwrap().token, Token(1));
    assert_eq!(region.load(0, Ordering::Relaxed), 7);
}

#[test]
fn a_saturated_link_is_as_slow_as_measured() {
    let (mut dma, _region, clock) = model();
    let mut slowest = 0;
    for round in 0..3_000 {
        dma.submit(Token(round), DmaOp::read_words(HERE, 64, 3, false)).unwrap();
        let due = dma.flight.back().unwrap().due;
        slowest = slowest.max(due.nanoseconds() - clock.now().nanoseconds());
        clock.0.set(clock.0.get() + 110);
        while dma.poll().is_some() {}
    }
    assert!((8_000..=12_500).contains(&slowest), "{slowest} ns");
}

#[test]
fn bandwidth_is_bounded() {
    let (mut dma, _region, clock) = model();
    let pool = Pool::new(1 << 20, 8);
    for token in 0..8 {
        let into = pool.take().unwrap();
        dma.submit(Token(token), DmaOp::Read { from: HERE, into }).unwrap();
    }
    let last = dma.flight.back().unwrap().due.since(clock.now());
    let ideal = Duration::from_secs_f64(f64::from(8 << 20) / 25e9);
    assert!(last > ideal && last < ideal * 2, "{last:?} against {ideal:?}");
}

#[test]
fn writes_keep_their_order_and_fenced_reads_stay_behind_them() {
    let (mut dma, _region, clock) = model();
    let mut big = Pool::new(2 << 20, 1).take().unwrap();
    big.fill(1);
    dma.submit(Token(0), DmaOp::Write { from: big.into(), to: HERE }).unwrap();
    dma.submit(Token(1), DmaOp::WriteWord { to: HERE, value: 9 }).unwrap();
    dma.submit(Token(2), DmaOp::read_words(HERE, 8, 1, true)).unwrap();
    clock.0.set(1_000_000_000);
    let order: Vec<u64> = std::iter::from_fn(|| dma.poll()).map(|done| done.token.0).collect();
    assert_eq!(order, [0, 1, 2]);
}

#[test]
fn what_is_slow_in_one_region_holds_up_nobody_in_another() {
    let (mut dma, _region, clock) = model();
    // So much load that a write's latency is far above that of an idle link.
    let pool = Pool::new(2 << 20, 4);
    for token in 0..4 {
        dma.submit(Token(token), DmaOp::Write { from: pool.take().unwrap().into(), to: HERE }).unwrap();
    }
    let settled = dma.settled_at(HERE.region);
    assert_eq!(dma.settled_at(ELSEWHERE.region), Instant::default());
    // The engine moves one transfer at a time, and a read of a word that is fenced by nothing in its region waits for
    // the engine only, not for the latency of the writes.
    dma.submit(Token(4), DmaOp::read_words(ELSEWHERE, 8, 1, true)).unwrap();
    dma.submit(Token(5), DmaOp::read_words(HERE, 8, 1, true)).unwrap();
    let due = |dma: &ModelDma<TestClock>, token| {
        dma.flight.iter().find(|flight| flight.token == Token(token)).unwrap().due
    };
    assert!(due(&dma, 5) >= settled);
    dma.submit(Token(6), DmaOp::WriteWord { to: ELSEWHERE, value: 1 }).unwrap();
    assert_eq!(dma.settled_at(ELSEWHERE.region), due(&dma, 6));
    assert_eq!(dma.settled_at(HERE.region), settled, "nothing was added there");
    // A write that is due but not executed still counts: a bell must not be heard before it.
    clock.0.set(1_000_000_000);
    assert_eq!(dma.settled_at(HERE.region), settled);
    while dma.poll().is_some() {}
    dma.submit(Token(7), DmaOp::WriteWord { to: ELSEWHERE, value: 2 }).unwrap();
    assert_eq!(dma.last_write_due.len(), 1, "what is over is forgotten");
}

#[test]
fn presets_have_names() {
    assert_eq!(Costs::preset("pcie4"), Some(Costs::PCIE4));
    assert_eq!(Costs::preset("pcie9"), None);
}
