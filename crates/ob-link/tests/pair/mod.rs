//! A card and a host in one thread, without sockets: the real cores, joined by hand, in a time that stands still until
//! a test moves it. What is counted here is the same on every machine.

#![allow(dead_code, unreachable_pub)] // Each test target uses its own part.
#![allow(clippy::unwrap_used, clippy::expect_used)] // A test stops at the first surprise.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ob_core::{AttachmentId, Clock, Incarnation, Instant};
use ob_link::{
    CardAttachment, CardDma, CardEvent, CardService, Costs, FrameDma, GroupSizes, HostCore, HostEvent,
    Identity, LinkKind, ModelDma, OpenedGroup,
};
use ob_memory::Region;
use ob_ring::{Armed, CardBell, LocalDma};
use ob_wire_link::frame::{FRAME_MAX, Frame};

/// Every kind of link there is.
pub const KINDS: [LinkKind; 3] = [LinkKind::Shm, LinkKind::Model, LinkKind::Tcp];

#[derive(Clone, Default)]
pub struct TestClock(Rc<Cell<u64>>);

impl Clock for TestClock {
    fn now(&self) -> Instant {
        Instant::from_nanoseconds(self.0.get())
    }
}

#[derive(Default)]
struct Doorbell(AtomicBool);

impl CardBell for Doorbell {
    fn ring(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One host at one card.
pub struct Pair<S> {
    pub card: CardAttachment<TestClock>,
    pub host: HostCore,
    pub service: S,
    clock: TestClock,
    doorbell: Arc<Doorbell>,
    /// Memory that goes with the next grant.
    granted: Option<Region>,
    opened: Vec<OpenedGroup>,
    /// Groups that the card closed, and what it said.
    pub closed: Vec<String>,
    /// What a test counts while the card works, and how much that is so far.
    pub meter: fn() -> u64,
    pub cost: u64,
}

impl<S: CardService> Pair<S> {
    pub fn new(kind: LinkKind, service: S) -> Self {
        let clock = TestClock::default();
        let local = LocalDma::new(1024, 2 << 20);
        let dma = match kind {
            LinkKind::Shm => CardDma::local(local),
            LinkKind::Model => CardDma::model(ModelDma::new(local, clock.clone(), Costs::PCIE4, 1024)),
            LinkKind::Tcp => CardDma::frame(FrameDma::new(1024)),
        };
        Self::with(kind, dma, service, clock)
    }

    /// A pair over an engine of the test's own.
    pub fn with_dma(kind: LinkKind, dma: CardDma<TestClock>, service: S) -> Self {
        Self::with(kind, dma, service, TestClock::default())
    }

    fn with(kind: LinkKind, dma: CardDma<TestClock>, service: S, clock: TestClock) -> Self {
        let identity = Identity {
            attachment: AttachmentId(1),
            secret: 1,
            card_incarnation: Incarnation(1),
            host_incarnation: Incarnation(1),
            name: "pair".to_owned(),
            kind,
            card_pollers: 1,
            host_pollers: 0,
        };
        let doorbell = Arc::<Doorbell>::default();
        let mut host = HostCore::new("pair", Incarnation(1), 0, doorbell.clone());
        // The card is told by `new` that somebody said hello.
        host.outgoing().clear();
        let card = CardAttachment::new(identity, dma);
        let (granted, opened, closed) = (None, Vec::new(), Vec::new());
        let (meter, cost): (fn() -> u64, u64) = (|| 0, 0);
        let mut pair = Self { card, host, service, clock, doorbell, granted, opened, closed, meter, cost };
        pair.settle();
        pair
    }

    pub fn open_group(&mut self, service: u32, request: u32, response: u32) -> OpenedGroup {
        self.open_group_of(service, GroupSizes::rings(request, response))
    }

    pub fn open_group_of(&mut self, service: u32, sizes: GroupSizes) -> OpenedGroup {
        self.host.request_group(service, sizes).unwrap();
        for _ in 0..10 {
            self.settle();
            if let Some(group) = self.opened.pop() {
                return group;
            }
        }
        panic!("the group is not opened");
    }

    /// The connection is cut when the host has received so many frames more, and is there again at once. What the host
    /// said to them is lost.
    pub fn cut_after(&mut self, frames: usize) {
        let mut events = Vec::new();
        self.card.poll(&mut self.service, &mut events);
        self.act(events);
        self.deliver(frames);
        self.card.disconnected();
        self.host.disconnected();
        self.host.reconnect();
        let hello = std::mem::take(self.host.outgoing());
        let Frame::Hello(hello) = Frame::decode(&hello).unwrap() else { panic!("a host says hello first") };
        let resume = hello.resume.unwrap();
        assert!(self.card.may_resume(&resume));
        self.card.resume(resume.received).unwrap();
        self.settle();
    }

    /// Has the card do something, metered.
    fn metered<R>(&mut self, work: impl FnOnce(&mut CardAttachment<TestClock>, &mut S) -> R) -> R {
        let before = (self.meter)();
        let result = work(&mut self.card, &mut self.service);
        self.cost += (self.meter)() - before;
        result
    }

    /// One turn of the card, then everything that is under way comes to its end. `true` if something moved.
    pub fn turn(&mut self) -> bool {
        let mut events = Vec::new();
        let worked = self.metered(|card, service| card.poll(service, &mut events));
        self.act(events);
        self.settle();
        worked
    }

    /// Turns as the card's loop does, until the card would sleep.
    pub fn run_until_asleep(&mut self) {
        for _ in 0..100_000 {
            if self.turn() {
                continue;
            }
            let mut events = Vec::new();
            let armed = self.card.arm(&mut self.service, &mut events);
            self.act(events);
            self.settle();
            if armed == Armed::Yes {
                return;
            }
        }
        panic!("the card never comes to rest");
    }

    /// Lets all transfers under way complete, and all frames arrive; the card does not look at what they brought.
    pub fn settle(&mut self) {
        loop {
            let moved = self.carry_to_host() | self.carry_to_card();
            match self.card.next_due() {
                Some(due) => self.clock.0.set(due.nanoseconds().max(self.clock.0.get())),
                None if moved => {}
                None => break,
            }
            let now = self.clock.now();
            self.metered(|card, _| card.take_wakes(now).for_each(drop));
            if !moved {
                // What is due now is executed when the card polls.
                self.clock.0.set(self.clock.0.get() + Duration::from_millis(10).as_nanos() as u64);
                break;
            }
        }
    }

    fn carry_to_host(&mut self) -> bool {
        self.deliver(usize::MAX)
    }

    /// Hands at most so many frames to the host; the rest is lost.
    fn deliver(&mut self, frames: usize) -> bool {
        self.metered(|card, _| card.outgoing().map(|_| ())).unwrap();
        // As a driver does, which leaves the card its buffer.
        let out = self.card.outgoing().unwrap();
        let bytes = out.clone();
        out.clear();
        let mut rest = bytes.as_slice();
        for _ in 0..frames {
            let Some(len) = Frame::length(rest, FRAME_MAX).unwrap() else { break };
            let (frame, behind) = rest.split_at(len);
            let frame = Frame::decode(frame).unwrap();
            let region = if matches!(frame, Frame::GroupOpened(_)) { self.granted.take() } else { None };
            match self.host.handle(&frame, region).unwrap() {
                Some(HostEvent::GroupOpened(group)) => self.opened.push(*group),
                Some(HostEvent::GroupClosed { text, .. }) => self.closed.push(text),
                Some(HostEvent::GroupRefused { refusal, .. }) => panic!("{refusal}"),
                _ => {}
            }
            rest = behind;
        }
        self.host.take_bells().for_each(drop);
        !bytes.is_empty()
    }

    fn carry_to_card(&mut self) -> bool {
        if self.doorbell.0.swap(false, Ordering::Relaxed) {
            self.host.ring_card();
        }
        let bytes = std::mem::take(self.host.outgoing());
        let mut rest = bytes.as_slice();
        while let Some(len) = Frame::length(rest, FRAME_MAX).unwrap() {
            let (frame, behind) = rest.split_at(len);
            let frame = Frame::decode(frame).unwrap();
            let event = self.metered(|card, service| card.handle(&frame, service)).unwrap();
            self.act(event.into_iter().collect());
            rest = behind;
        }
        !bytes.is_empty()
    }

    fn act(&mut self, events: Vec<CardEvent>) {
        for event in events {
            let CardEvent::OpenGroup { request, service, sizes } = event else { continue };
            let plan = self.card.plan_group(sizes).unwrap();
            let local = self.card.identity().kind != LinkKind::Tcp;
            self.granted = local.then(|| Region::on_heap(plan.region_len as usize));
            self.card.open_group(request, service, &plan, self.granted.clone(), &mut self.service).unwrap();
        }
    }
}
