//! Transactions of many megabytes from card to host, as a store of objects will post them: payload by bulk into staging
//! that is handed back in any order, acknowledged once each and in order. Over every kind of link, and over one whose
//! transfers fail.

#![allow(clippy::unwrap_used)] // A test stops at the first surprise.

use crate::common;
use crate::pair;
use crate::transactions_rig;

use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::Duration;

use common::{Dice, LONG, config, host_config};
use ob_core::{
    Bell, Dma, DmaCompletion, DmaCounts, DmaError, DmaOp, Doorbell, Instant, Refused, RegionId, Token,
};
use ob_io::{Config, Reactor};
use ob_link::{CardDma, CardEngine, CardLink, CardLoop, Costs, Endpoint, HostLink, LinkKind, Listen, Wake};
use ob_memory::Region;
use ob_ring::{BULK_MAX, LocalDma, Outgoing};
use pair::{KINDS, Pair};
use transactions_rig::{CHUNK, PINGS, POSTS, Poster, Progress, SIZES, Store};

/// From the smallest to the largest, and some of each in between.
const MIXED: &[usize] =
    &[16, 4096, 16 << 20, 1, 300_000, CHUNK, 3 << 20, 16, 5 << 20, CHUNK + 1, 100_000, 16];

fn parts(sizes: &[usize]) -> u64 {
    sizes.iter().map(|size| size.div_ceil(CHUNK) as u64).sum()
}

fn play(pair: &mut Pair<Poster>, dice: u64, mut between: impl FnMut(&mut Pair<Poster>, u64)) -> Store {
    let group = pair.open_group_of(POSTS, SIZES);
    let mut store = Store::new(Dice::new(dice));
    group.sender.push(Outgoing { inline: &transactions_rig::start(), payload: None }).unwrap();
    for turn in 0..100_000 {
        between(pair, turn);
        pair.turn();
        let moved = store.turn(&group.sender, &group.receiver, group.areas.as_ref().unwrap());
        if !moved && pair.service.is_done() {
            pair.run_until_asleep();
            assert!(pair.closed.is_empty(), "{:?}", pair.closed);
            return store;
        }
    }
    panic!("{} of the transactions were acknowledged", pair.service.acknowledged);
}

#[test]
fn transactions_of_all_sizes_arrive_whole_and_are_acknowledged_once_in_order() {
    for kind in KINDS {
        let mut pair = Pair::new(kind, Poster::new(MIXED));
        let store = play(&mut pair, 1, |_, _| {});
        assert_eq!(pair.service.acknowledged, MIXED.len() as u64, "{kind:?}");
        assert_eq!(pair.service.transferred, parts(MIXED), "each part crosses the link once");
        assert_eq!(pair.service.by_control, 0);
        assert!(store.returned_out_of_order > 0, "places came back in another order than they were given");
        assert!(pair.service.ahead_max > 1, "transactions are under way beside each other");
        // What crossed the link is the payload, and little else.
        let payload: u64 = MIXED.iter().map(|size| *size as u64).sum();
        let written = pair.card.counts().written_bytes;
        assert!(written - payload < 100 * parts(MIXED), "{written} bytes for {payload}");
    }
}

#[test]
fn cuts_neither_lose_nor_double_nor_spoil_anything() {
    for seed in 0..12 {
        let mut pair = Pair::new(LinkKind::Tcp, Poster::new(MIXED));
        let (mut dice, mut cuts) = (Dice::new(100 + seed), 0);
        play(&mut pair, seed, |pair, turn| {
            if turn > 1 && dice.below(2) == 0 {
                cuts += 1;
                pair.cut_after(dice.below(20) as usize);
            }
        });
        assert!(cuts > 5, "{cuts}");
        assert_eq!(pair.service.acknowledged, MIXED.len() as u64);
        assert_eq!(pair.service.transferred, parts(MIXED), "the link repeats, the service does not");
    }
}

/// An engine whose bulk fails at times, after moving some of its bytes.
struct Failing {
    inner: LocalDma,
    dice: Dice,
    one_in: u64,
}

impl Dma for Failing {
    fn largest_transfer(&self) -> usize {
        self.inner.largest_transfer()
    }

    fn submit(&mut self, token: Token, op: DmaOp) -> Result<(), Refused<DmaOp>> {
        self.inner.submit(token, op)
    }

    fn poll(&mut self) -> Option<DmaCompletion> {
        let mut completion = self.inner.poll()?;
        let is_bulk = completion.token.0 & 3 == 3;
        if is_bulk && self.dice.below(self.one_in) == 0 {
            completion.result = Err(DmaError::OutOfRegion);
        }
        Some(completion)
    }

    fn counts(&self) -> DmaCounts {
        self.inner.counts()
    }
}

impl Doorbell for Failing {
    fn ring(&mut self, bell: Bell) -> Result<(), DmaError> {
        self.inner.bump_bell(bell).map(drop)
    }
}

impl CardEngine for Failing {
    fn register(&mut self, id: RegionId, region: Region) {
        self.inner.register(id, region);
    }

    fn unregister(&mut self, id: RegionId) {
        self.inner.unregister(id);
    }

    fn shut_down(&mut self) {
        self.inner.shut_down();
    }

    fn is_waiting(&self) -> bool {
        false
    }

    fn next_wake(&mut self, _: Instant) -> Option<Wake> {
        None
    }
}

#[test]
fn a_transfer_that_fails_goes_by_the_control_path_and_nothing_is_done_twice() {
    for seed in 0..8 {
        let inner = LocalDma::new(1024, 2 << 20);
        let engine = Failing { inner, dice: Dice::new(seed), one_in: 8 };
        let mut pair = Pair::with_dma(LinkKind::Shm, CardDma::own(Box::new(engine)), Poster::new(MIXED));
        play(&mut pair, seed, |_, _| {});
        assert_eq!(pair.service.acknowledged, MIXED.len() as u64);
        assert!(pair.service.by_control > 3, "{}", pair.service.by_control);
        assert_eq!(pair.service.transferred + pair.service.by_control, parts(MIXED));
    }
}

#[test]
fn small_messages_of_another_group_wait_for_a_bounded_number_of_bytes() {
    // A request is found, fetched and answered: each of the three may have to let a turn's bulk of the other group go
    // first, and so may the card's look before.
    const HELD_UP_MAX: u64 = 4 * (BULK_MAX * CHUNK) as u64;
    let sizes = [16 << 20; 8];
    for kind in KINDS {
        let mut pair = Pair::new(kind, Poster::new(&sizes));
        let small = pair.open_group(PINGS, 4096, 4096);
        let (mut asked_at, mut answers, mut worst) = (None, 0, 0);
        play(&mut pair, 3, |pair, _| {
            let written = pair.card.counts().written_bytes;
            match asked_at {
                None => {
                    small.sender.push(Outgoing { inline: b"ping", payload: None }).unwrap();
                    asked_at = Some(written);
                }
                Some(asked) if small.receiver.receive().unwrap().is_some() => {
                    worst = worst.max(written - asked);
                    answers += 1;
                    asked_at = None;
                }
                Some(_) => {}
            }
        });
        assert!(answers > 10, "{kind:?}: {answers}");
        assert!(worst <= HELD_UP_MAX, "{kind:?}: {worst} bytes went before a small message");
    }
}

/// A card on a thread, with real sockets and memory.
fn over_a_real_link(costs: Option<Costs>, tcp: bool) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("link.sock");
    let listen = vec![Listen::Unix(socket.clone()), Listen::Tcp("127.0.0.1:0".parse().unwrap())];
    let progress = std::sync::Arc::new(Progress::default());
    let (ready, is_ready) = channel();
    let told = progress.clone();
    let card = std::thread::spawn(move || {
        let mut config = config(listen);
        config.costs = costs;
        let reactor = Reactor::new(&Config::default()).unwrap();
        let link = CardLink::new(&reactor.handle(), config).unwrap();
        ready.send((reactor.handle().waker(), link.tcp_address())).unwrap();
        let mut service = Poster::new(MIXED);
        service.progress = told.clone();
        let mut card = CardLoop::new(reactor, link, service, Duration::from_micros(50));
        let mut others = Vec::new();
        while !told.stop.load(Ordering::Acquire) {
            card.turn(None, &mut others);
            others.clear();
        }
        card.link.shut_down(&mut card.service);
    });
    let (waker, address) = is_ready.recv().unwrap();
    let endpoint = if tcp { Endpoint::Tcp(address.unwrap()) } else { Endpoint::Unix(socket) };
    let link = HostLink::attach(&host_config(endpoint)).unwrap();
    let group = link.open_group_of(POSTS, SIZES).unwrap();
    let mut store = Store::new(Dice::new(9));
    group.sender.push(Outgoing { inline: &transactions_rig::start(), payload: None }).unwrap();
    let areas = group.areas.as_ref().unwrap();
    while store.next < MIXED.len() as u64 {
        let turn = || store.turn(&group.sender, &group.receiver, areas).then_some(());
        group.wait_response(LONG, turn).unwrap();
    }
    // The last acknowledgement may still be on its way.
    while progress.acknowledged.load(Ordering::Acquire) < MIXED.len() as u64 {
        assert!(!group.is_closed());
        std::thread::yield_now();
    }
    drop(link);
    progress.stop.store(true, Ordering::Release);
    waker.wake();
    card.join().unwrap();
}

#[test]
fn over_shared_memory() {
    over_a_real_link(None, false);
}

#[test]
fn over_a_modelled_bus() {
    over_a_real_link(Some(Costs::PCIE4), false);
}

#[test]
fn over_tcp() {
    over_a_real_link(None, true);
}
