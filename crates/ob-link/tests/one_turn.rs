//! What one turn of an attachment does, above all on a link that completes what it is given at once.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test stops at the first thing that is not as it should be.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ob_core::{AttachmentId, Clock, GroupId, Incarnation, Instant};
use ob_io::MonotonicClock;
use ob_link::{
    CardAttachment, CardDma, CardEvent, CardService, Costs, GroupKey, GroupSizes, Identity, LinkKind,
    ModelDma,
};
use ob_memory::Region;
use ob_ring::{Armed, Batch, CardBell, CardSender, Closed, HostReceiver, HostSender, LocalDma, Outgoing};

/// Answers with what it was asked, at once or when it is allowed to.
#[derive(Default)]
struct Echo {
    waiting: VecDeque<Vec<u8>>,
    is_late: bool,
}

impl CardService for Echo {
    fn open(&mut self, _: GroupKey, _: u32) -> Result<(), String> {
        Ok(())
    }

    fn requests(&mut self, key: GroupKey, mut batch: Batch, responses: &mut CardSender) {
        while let Some(message) = batch.take_next() {
            self.waiting.push_back(message.inline.to_vec());
        }
        self.responses(key, responses);
    }

    fn responses(&mut self, _: GroupKey, responses: &mut CardSender) {
        while !self.is_late && self.waiting.front().is_some_and(|answer| responses.push(answer).is_ok()) {
            self.waiting.pop_front();
        }
    }

    fn closed(&mut self, _: GroupKey) {}

    fn channel(&mut self, _: AttachmentId, _: &[u8]) {}
}

#[derive(Default)]
struct Rung(AtomicUsize);

impl CardBell for Rung {
    fn ring(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A clock that stands still unless it is moved.
#[derive(Clone, Default)]
struct Hand(Rc<Cell<u64>>);

impl Clock for Hand {
    fn now(&self) -> Instant {
        Instant::from_nanoseconds(self.0.get())
    }
}

/// An attachment with one group, and the host's ends of it.
struct Rig<C: Clock = MonotonicClock> {
    card: CardAttachment<C>,
    group: GroupId,
    service: Echo,
    events: Vec<CardEvent>,
    sender: HostSender,
    receiver: HostReceiver,
    rung: Arc<Rung>,
}

impl Rig {
    /// Over a link that completes what it is given at once.
    fn new() -> Self {
        Self::over(CardDma::local(LocalDma::new(64, 1 << 20)))
    }
}

impl<C: Clock> Rig<C> {
    fn over(dma: CardDma<C>) -> Self {
        let identity = Identity {
            attachment: AttachmentId(1),
            secret: 1,
            card_incarnation: Incarnation(1),
            host_incarnation: Incarnation(1),
            name: "host".to_owned(),
            kind: LinkKind::Shm,
            card_pollers: 1,
            host_pollers: 0,
        };
        let mut card = CardAttachment::new(identity, dma);
        let spec = card.plan_group(GroupSizes::rings(4096, 4096)).unwrap();
        let region = Region::on_heap(spec.region_len as usize);
        let mut service = Echo::default();
        let group = card.open_group(1, 7, &spec, Some(region.clone()), &mut service).unwrap();
        let rung = Arc::new(Rung::default());
        let bell: Arc<dyn CardBell> = Arc::clone(&rung) as Arc<dyn CardBell>;
        let sender = HostSender::new(region.clone(), spec.request, Closed::default(), Arc::clone(&bell));
        let receiver = HostReceiver::new(region, spec.response, Closed::default(), bell);
        Self { card, group, service, events: Vec::new(), sender, receiver, rung }
    }

    fn push(&self, inline: &[u8]) {
        self.sender.push(Outgoing { inline, payload: None }).unwrap();
    }

    fn received(&self) -> Option<Vec<u8>> {
        let claimed = self.receiver.receive().unwrap()?;
        let mut inline = [0; 512];
        let len = claimed.inline(&mut inline);
        Some(inline[..len].to_vec())
    }

    fn deliver(&mut self) -> bool {
        self.card.deliver(self.group, &mut self.service, &mut self.events)
    }

    fn poll(&mut self) -> bool {
        self.card.poll(&mut self.service, &mut self.events)
    }

    fn arm(&mut self) -> Armed {
        self.card.arm(&mut self.service, &mut self.events)
    }

    /// Turns until the card may sleep.
    fn fall_asleep(&mut self) {
        let may_sleep = (0..64).any(|_| {
            self.poll();
            self.arm() == Armed::Yes
        });
        assert!(may_sleep, "the card does not go to sleep");
    }

    fn wakes(&mut self) -> usize {
        self.card.take_wakes(MonotonicClock.now()).count()
    }
}

#[test]
fn a_request_is_found_answered_and_rung_for_in_one_turn() {
    let mut rig = Rig::new();
    rig.receiver.register_sleeper();
    rig.push(b"hello");
    assert!(rig.poll());
    assert_eq!(rig.received(), Some(b"hello".to_vec()));
    assert_eq!(rig.wakes(), 1, "who sleeps is woken in the same turn");
    assert!(!rig.poll());
    assert_eq!(rig.wakes(), 0, "and once");
}

#[test]
fn what_comes_to_the_service_from_elsewhere_is_delivered_and_rung_for_without_a_turn() {
    let mut rig = Rig::new();
    rig.service.is_late = true;
    rig.push(b"hello");
    assert!(rig.poll());
    assert!(!rig.deliver(), "there is nothing yet");
    rig.receiver.register_sleeper();
    rig.service.is_late = false;
    assert!(rig.deliver());
    assert_eq!(rig.received(), Some(b"hello".to_vec()));
    assert_eq!(rig.wakes(), 1);
    assert!(!rig.card.deliver(GroupId(99), &mut rig.service, &mut rig.events), "nobody has that group");
}

/// The card may have been about to sleep until just that end.
#[test]
fn a_transfer_that_ends_while_something_is_sent_is_told_of() {
    let hand = Hand::default();
    let model = ModelDma::new(LocalDma::new(64, 1 << 20), hand.clone(), Costs::PCIE4, 64);
    let mut rig = Rig::over(CardDma::model(model));
    rig.poll();
    assert!(!rig.deliver(), "a look is under way");
    hand.0.set(1_000_000);
    assert!(rig.deliver(), "and has ended");
    assert!(!rig.deliver());
}

#[test]
fn rings_are_got_ready_at_once_and_whoever_comes_later_rings() {
    let mut rig = Rig::new();
    rig.poll();
    assert_eq!(rig.arm(), Armed::Yes);
    assert_eq!(rig.rung.0.load(Ordering::Relaxed), 0);
    rig.push(b"hello");
    assert_eq!(rig.rung.0.load(Ordering::Relaxed), 1, "the card sleeps, as far as the host knows");
    rig.card.wake();
    assert_eq!(rig.arm(), Armed::NotYet, "it was rung for");
    assert!(rig.poll());
    assert_eq!(rig.received(), Some(b"hello".to_vec()));
}

#[test]
fn a_request_that_comes_before_the_ticket_is_not_slept_over() {
    let mut rig = Rig::new();
    rig.poll();
    rig.push(b"hello");
    // Nobody has rung: there was no ticket to take. The look behind the ticket finds it.
    assert_eq!(rig.arm(), Armed::NotYet);
    assert_eq!(rig.rung.0.load(Ordering::Relaxed), 0);
    rig.poll();
    assert_eq!(rig.received(), Some(b"hello".to_vec()));
    assert_eq!(rig.arm(), Armed::Yes);
}

/// A ring that is full when a response is ready: the room for it may come in the turn that was to be the last.
#[test]
fn a_response_that_waited_for_room_is_not_slept_over() {
    let mut rig = Rig::new();
    let mut taken = 0;
    for round in 0..40 {
        // More answers than the response ring holds; the host takes one at some distance from the card's sleep.
        while rig.sender.push(Outgoing { inline: &[7; 400], payload: None }).is_ok() {}
        rig.card.wake();
        for turn in 0..round % 4 {
            rig.poll();
            taken += u32::from(turn == 2 && rig.received().is_some());
        }
        rig.fall_asleep();
        // It takes the rest. When it rings no more and finds nothing more, it sleeps, and nothing may wait for it.
        while rig.received().is_some() {
            taken += 1;
            if rig.rung.0.swap(0, Ordering::Relaxed) > 0 {
                rig.card.wake();
                rig.fall_asleep();
            }
        }
        assert_eq!(rig.service.waiting.len(), 0, "in round {round} the card sleeps over answers");
    }
    assert!(taken > 80, "the ring was never full");
}
