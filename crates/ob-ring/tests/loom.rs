//! Every interleaving of small scenes, under loom: `cargo xtask loom`.
//!
//! The rings are the real ones; only [`ob_memory::Region`] is loom's. A message is two words, and a ring holds two
//! messages, so that full rings, wrap-around and reuse of space are among the scenes.

#![cfg(loom)]

use std::sync::Arc;

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use ob_core::{Dma, RegionId, Token};
use ob_memory::Region;
use ob_ring::{
    Armed, CardBell, CardReceiver, CardSender, Closed, HostReceiver, HostSender, LocalDma, Outgoing,
    PushError, Received,
};
use ob_wire_link::ring::RingSpec;

const REQUEST: u64 = 0;
const RESPONSE: u64 = 4;
const REGION: RegionId = RegionId(0);

/// The doorbell of the card: a count that its thread watches while it sleeps.
#[derive(Default)]
struct Doorbell(AtomicU64);

impl CardBell for Doorbell {
    fn ring(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

struct Scene {
    region: Region,
    request: RingSpec,
    response: RingSpec,
    doorbell: Arc<Doorbell>,
}

impl Scene {
    fn new() -> Self {
        let (request, response, len) = RingSpec::group(REGION, 32, 32, 64).unwrap();
        Self { region: Region::on_heap(len as usize), request, response, doorbell: Arc::default() }
    }

    fn sender(&self) -> HostSender {
        HostSender::new(self.region.clone(), self.request, Closed::default(), self.doorbell.clone())
    }

    fn receiver(&self) -> HostReceiver {
        HostReceiver::new(self.region.clone(), self.response, Closed::default(), self.doorbell.clone())
    }

    fn card(&self) -> Card {
        let mut dma = LocalDma::new(16, 4096);
        dma.register(REGION, self.region.clone());
        Card {
            dma,
            receiver: CardReceiver::new(self.request, Token(REQUEST)),
            sender: CardSender::new(self.response, Token(RESPONSE)),
            doorbell: self.doorbell.clone(),
            got: Vec::new(),
        }
    }
}

/// The card's thread.
struct Card {
    dma: LocalDma,
    receiver: CardReceiver,
    sender: CardSender,
    doorbell: Arc<Doorbell>,
    got: Vec<u64>,
}

impl Card {
    /// Handles every completion that is there.
    fn drain(&mut self) {
        while let Some(completion) = self.dma.poll() {
            if completion.token.0 & !3 == REQUEST {
                if let Received::Batch(batch) = self.receiver.complete(&mut self.dma, completion).unwrap() {
                    self.got.extend(batch.iter().map(|m| u64::from_le_bytes(m.inline.try_into().unwrap())));
                }
            } else {
                self.sender.complete(completion).unwrap();
            }
            for bell in [self.receiver.bell_due(), self.sender.bell_due()].into_iter().flatten() {
                self.dma.bump_bell(bell).unwrap();
            }
        }
    }

    /// Looks at the request ring once, through to the data if there is any.
    fn look(&mut self) {
        self.receiver.step(&mut self.dma).unwrap();
        self.drain();
        self.receiver.step(&mut self.dma).unwrap();
        self.drain();
    }

    /// Polls until `count` requests came.
    fn receive_polling(&mut self, count: usize) {
        while self.got.len() < count {
            self.look();
            if self.got.len() < count {
                thread::yield_now();
            }
        }
    }

    /// Sleeps whenever there is nothing to do, until `count` requests came.
    fn receive_sleeping(&mut self, count: usize) {
        let mut rung = 0;
        while self.got.len() < count {
            let armed = self.receiver.arm(&mut self.dma).unwrap();
            self.drain();
            if armed == Armed::Yes {
                // A doorbell that never comes leaves this loop spinning for ever, which loom reports.
                while self.doorbell.0.load(Ordering::Acquire) == rung {
                    thread::yield_now();
                }
                rung = self.doorbell.0.load(Ordering::Acquire);
                self.receiver.wake();
            }
            self.look();
        }
    }

    fn send(&mut self, value: u64) {
        while self.sender.push(&value.to_le_bytes()).is_err() {
            self.sender.step(&mut self.dma).unwrap();
            self.drain();
            self.sender.wake();
            thread::yield_now();
        }
        while self.sender.step(&mut self.dma).unwrap() {
            self.drain();
        }
    }
}

fn push(sender: &HostSender, value: u64) -> Result<(), PushError> {
    sender.push(Outgoing { inline: &value.to_le_bytes(), payload: None })
}

fn push_polling(sender: &HostSender, value: u64) {
    while push(sender, value).is_err() {
        thread::yield_now();
    }
}

/// Waits asleep for room: registers, tries again, then waits for the bell.
fn push_sleeping(sender: &HostSender, value: u64) {
    while push(sender, value).is_err() {
        let ticket = sender.register_sleeper();
        if push(sender, value).is_ok() {
            return;
        }
        while sender.bell_now() == ticket.bell {
            thread::yield_now();
        }
    }
}

fn take(receiver: &HostReceiver) -> Option<u64> {
    receiver.receive().unwrap().map(|claimed| {
        let mut value = [0; 8];
        assert_eq!(claimed.inline(&mut value), 8);
        u64::from_le_bytes(value)
    })
}

fn take_sleeping(receiver: &HostReceiver) -> u64 {
    loop {
        if let Some(value) = take(receiver) {
            return value;
        }
        let ticket = receiver.register_sleeper();
        if let Some(value) = take(receiver) {
            return value;
        }
        while receiver.bell_now() == ticket.bell {
            thread::yield_now();
        }
    }
}

fn explore(scene: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    if builder.preemption_bound.is_none() {
        builder.preemption_bound = Some(3);
    }
    builder.max_branches = 20_000;
    builder.check(scene);
}

#[test]
fn two_producers_deliver_each_message_once() {
    explore(|| {
        let scene = Scene::new();
        let mut card = scene.card();
        let threads: Vec<_> = [1, 2]
            .map(|value| {
                let sender = scene.sender();
                thread::spawn(move || push_polling(&sender, value))
            })
            .into();
        card.receive_polling(2);
        for thread in threads {
            thread.join().unwrap();
        }
        card.got.sort_unstable();
        assert_eq!(card.got, [1, 2]);
    });
}

#[test]
fn three_producers_fill_the_ring_and_reuse_its_space() {
    explore(|| {
        let scene = Scene::new();
        let mut card = scene.card();
        // The third message fits only where an earlier one was: space freed too early would be written over.
        let sender = scene.sender();
        push_polling(&sender, 1);
        let threads: Vec<_> = [2, 3]
            .map(|value| {
                let sender = scene.sender();
                thread::spawn(move || push_polling(&sender, value))
            })
            .into();
        card.receive_polling(3);
        for thread in threads {
            thread.join().unwrap();
        }
        card.got.sort_unstable();
        assert_eq!(card.got, [1, 2, 3]);
    });
}

#[test]
fn one_producer_keeps_its_order_round_the_ring() {
    explore(|| {
        let scene = Scene::new();
        let mut card = scene.card();
        let sender = scene.sender();
        let thread = thread::spawn(move || (1..=4).for_each(|value| push_polling(&sender, value)));
        card.receive_polling(4);
        thread.join().unwrap();
        assert_eq!(card.got, [1, 2, 3, 4]);
    });
}

#[test]
fn a_sleeping_card_is_woken() {
    explore(|| {
        let scene = Scene::new();
        let mut card = scene.card();
        let sender = scene.sender();
        let thread = thread::spawn(move || {
            push_polling(&sender, 1);
            push_polling(&sender, 2);
        });
        card.receive_sleeping(2);
        thread.join().unwrap();
        assert_eq!(card.got, [1, 2]);
    });
}

#[test]
fn a_card_that_sleeps_is_woken_by_either_of_two_producers() {
    explore(|| {
        let scene = Scene::new();
        let mut card = scene.card();
        let threads: Vec<_> = [1, 2]
            .map(|value| {
                let sender = scene.sender();
                thread::spawn(move || push_polling(&sender, value))
            })
            .into();
        card.receive_sleeping(2);
        for thread in threads {
            thread.join().unwrap();
        }
        card.got.sort_unstable();
        assert_eq!(card.got, [1, 2]);
    });
}

#[test]
fn a_producer_that_sleeps_for_room_is_woken() {
    explore(|| {
        let scene = Scene::new();
        let mut card = scene.card();
        let sender = scene.sender();
        push_polling(&sender, 1);
        push_polling(&sender, 2);
        let thread = thread::spawn(move || push_sleeping(&sender, 3));
        card.receive_sleeping(3);
        thread.join().unwrap();
        assert_eq!(card.got, [1, 2, 3]);
    });
}

#[test]
fn two_consumers_share_the_responses() {
    explore(|| {
        let scene = Scene::new();
        let mut card = scene.card();
        card.send(1);
        let threads: Vec<_> = [(), ()]
            .map(|()| {
                let receiver = scene.receiver();
                thread::spawn(move || take(&receiver))
            })
            .into();
        card.send(2);
        let mut got: Vec<u64> = threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect();
        got.extend(std::iter::from_fn(|| take(&scene.receiver())));
        got.sort_unstable();
        assert_eq!(got, [1, 2]);
    });
}

#[test]
fn a_sleeping_consumer_is_woken_and_space_comes_back() {
    explore(|| {
        let scene = Scene::new();
        let mut card = scene.card();
        let receiver = scene.receiver();
        let thread = thread::spawn(move || (0..3).map(|_| take_sleeping(&receiver)).collect::<Vec<_>>());
        for value in 1..=3 {
            card.send(value);
        }
        assert_eq!(thread.join().unwrap(), [1, 2, 3]);
    });
}
