//! Host threads and a card thread, for real: every message arrives once, whole, aligned, and in its producer's order.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]

mod rig;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use ob_ring::{
    Armed, Claimed, HostReceiver, HostSender, Message, PushError, Received, Reservation, ReserveError,
};
use ob_wire_link::ring::{PAYLOAD_HEADER_LEN, Placement, RingSpec, Shape, control};
use proptest::prelude::*;
use rig::{Card, Content, Group, Random, check_alignment, filler};

/// Bytes of the inline part that say which message it is: producer, number, alignment.
const NAME_LEN: usize = 12;

/// Who takes part in an exchange, and how they behave.
#[derive(Clone, Copy)]
struct Scene {
    producers: u32,
    consumers: u32,
    request: u32,
    response: u32,
    transfer_max: u32,
    messages: u32,
    /// Messages that the card goes on holding after it has answered them.
    held: usize,
    /// Whether threads sleep when they can do nothing, or ask again.
    sleeping: bool,
    /// How often the card lets others run before it looks again.
    card_pause: u32,
    consumer_pause: u32,
}

const SCENE: Scene = Scene {
    producers: 2,
    consumers: 2,
    request: 4096,
    response: 4096,
    transfer_max: 2 << 20,
    messages: if cfg!(miri) { 4 } else { 20_000 },
    held: 0,
    sleeping: false,
    card_pause: 0,
    consumer_pause: 0,
};

/// The largest payload that always fits a message, whatever the padding.
fn payload_max(message_max: u32, inline_len: usize, align: u32) -> u32 {
    (message_max & !7).saturating_sub((PAYLOAD_HEADER_LEN + inline_len) as u32 + align - 1) & !7
}

/// What producer `producer` sends as its message `number`: small ones, empty ones, aligned ones, the largest.
fn content(producer: u32, number: u32, message_max: u32) -> Content {
    let mut random = Random(u64::from(producer) << 32 | u64::from(number));
    if random.below(16) == 0 {
        return Content::default();
    }
    let align = [1, 8, 512, 4096][random.below(4) as usize];
    let seed = random.below(1 << 32);
    let mut inline: Vec<u8> = [producer, number, align].into_iter().flat_map(u32::to_le_bytes).collect();
    inline.extend(filler(seed, random.below(100) as usize));
    let limit = payload_max(message_max, inline.len(), align);
    let len = match random.below(8) {
        0 => 0,
        1 => limit,
        2 => align.min(limit),
        _ => random.below(u64::from(limit.min(9000)) + 1) as u32,
    };
    let with_payload = random.below(3) > 0 && len.saturating_add(align) <= message_max;
    Content { inline, payload: with_payload.then(|| (filler(!seed, len as usize), align)) }
}

fn name(inline: &[u8]) -> Option<(u32, u32)> {
    let word = |at: usize| Some(u32::from_le_bytes(inline.get(at..at + 4)?.try_into().ok()?));
    Some((word(0)?, word(4)?))
}

/// What all threads of an exchange know.
struct Exchange {
    scene: Scene,
    group: Group,
    message_max: u32,
    received: AtomicUsize,
    failed: AtomicBool,
}

/// Ends an exchange when one of its threads fails, so that the others do not wait for it.
struct EndOnPanic<'a>(&'a Exchange);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.failed.store(true, Ordering::Release);
            self.0.group.host_bell.raise();
            self.0.group.doorbell.raise();
        }
    }
}

impl Exchange {
    fn new(scene: Scene) -> Self {
        let group = Group::new(scene.request, scene.response, scene.transfer_max);
        let message_max = group.request.message_max().min(group.response.message_max());
        Self { scene, group, message_max, received: AtomicUsize::new(0), failed: AtomicBool::new(false) }
    }

    fn total(&self) -> usize {
        (self.scene.producers * self.scene.messages) as usize
    }

    fn is_over(&self) -> bool {
        self.received.load(Ordering::Acquire) == self.total() || self.failed.load(Ordering::Acquire)
    }

    fn produce(&self, producer: u32) {
        let _end = EndOnPanic(self);
        let sender = self.group.sender();
        for number in 0..self.scene.messages {
            self.send(&sender, &content(producer, number, self.message_max));
        }
    }

    fn send(&self, sender: &HostSender, content: &Content) {
        while !self.failed.load(Ordering::Acquire) {
            match content.push(sender) {
                Ok(()) => return,
                Err(PushError::Retry) if self.scene.sleeping => {
                    let ticket = sender.register_sleeper();
                    if content.push(sender).is_ok() {
                        return;
                    }
                    self.group
                        .host_bell
                        .wait_while("producer", |_| sender.bell_now() == ticket.bell && !self.is_over());
                }
                Err(PushError::Retry) => thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Takes responses until all have come to one consumer or another; those that came here, in their order.
    fn consume(&self) -> Vec<Option<(u32, u32)>> {
        let _end = EndOnPanic(self);
        let receiver = self.group.receiver();
        let mut taken = Vec::new();
        while !self.is_over() {
            if let Some(claimed) = receiver.receive().unwrap() {
                taken.push(self.check_response(claimed));
                (0..self.scene.consumer_pause).for_each(|_| thread::yield_now());
            } else if self.scene.sleeping {
                let ticket = receiver.register_sleeper();
                match receiver.receive().unwrap() {
                    Some(claimed) => taken.push(self.check_response(claimed)),
                    None => {
                        let asleep = |_| receiver.bell_now() == ticket.bell && !self.is_over();
                        self.group.host_bell.wait_while("consumer", asleep);
                    }
                }
            } else {
                thread::yield_now();
            }
        }
        taken
    }

    fn check_response(&self, claimed: Claimed<'_>) -> Option<(u32, u32)> {
        let mut bytes = [0; NAME_LEN];
        claimed.inline(&mut bytes);
        let name = (claimed.inline_len() > 0).then(|| name(&bytes).unwrap());
        let expected = name
            .map_or_else(Content::default, |(producer, number)| content(producer, number, self.message_max));
        expected.check_claimed(&claimed);
        drop(claimed);
        if self.received.fetch_add(1, Ordering::AcqRel) + 1 == self.total() {
            // Nobody else has anything to wake for now.
            self.group.host_bell.raise();
            self.group.doorbell.raise();
        }
        name
    }

    /// Runs all threads to the end and compares what arrived with what was sent.
    fn run(self) {
        let taken = thread::scope(|scope| {
            for producer in 0..self.scene.producers {
                let exchange = &self;
                scope.spawn(move || exchange.produce(producer));
            }
            let consumers: Vec<_> =
                (0..self.scene.consumers).map(|_| scope.spawn(|| self.consume())).collect();
            let committed = Echo::new(&self).run();
            let taken = consumers.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>();
            if let [only] = taken.as_slice() {
                assert_eq!(*only, committed, "one consumer sees responses in the order of their commits");
            }
            taken
        });
        let mut arrived: Vec<_> = taken.into_iter().flatten().collect();
        let mut sent: Vec<_> = (0..self.scene.producers)
            .flat_map(|producer| (0..self.scene.messages).map(move |number| (producer, number)))
            .map(|(producer, number)| name(&content(producer, number, self.message_max).inline))
            .collect();
        arrived.sort_unstable();
        sent.sort_unstable();
        assert_eq!(arrived, sent, "every message once");
    }
}

/// The card's thread: answers each request with the same bytes.
struct Echo<'a> {
    exchange: &'a Exchange,
    card: Card,
    waiting: VecDeque<Message>,
    held: VecDeque<(Content, Message)>,
    open: Vec<(Reservation, Vec<u8>, u32)>,
    /// What was committed, in that order.
    committed: Vec<Option<(u32, u32)>>,
    last: Vec<Option<u32>>,
    random: Random,
}

impl<'a> Echo<'a> {
    fn new(exchange: &'a Exchange) -> Self {
        Self {
            exchange,
            card: exchange.group.card(256, exchange.scene.transfer_max),
            waiting: VecDeque::new(),
            held: VecDeque::new(),
            open: Vec::new(),
            committed: Vec::new(),
            last: vec![None; exchange.scene.producers as usize],
            random: Random(7),
        }
    }

    /// Serves until all is over; what was committed, in that order.
    fn run(mut self) -> Vec<Option<(u32, u32)>> {
        let _end = EndOnPanic(self.exchange);
        let mut rung = 0;
        while !self.exchange.is_over() {
            let count = self.exchange.group.doorbell.count();
            if count != rung {
                rung = count;
                self.wake();
            }
            if self.turn() {
                (0..self.exchange.scene.card_pause).for_each(|_| thread::yield_now());
            } else if self.release_everything() || !self.is_armed() {
                continue;
            } else if self.exchange.scene.sleeping {
                let asleep = |count| count == rung && !self.exchange.is_over();
                self.exchange.group.doorbell.wait_while("card", asleep);
            } else {
                self.wake();
                thread::yield_now();
            }
        }
        self.committed
    }

    fn wake(&mut self) {
        self.card.receiver.wake();
        self.card.sender.wake();
    }

    /// Looks at both rings once; whether there was anything to do.
    fn turn(&mut self) -> bool {
        let mut busy = false;
        for _ in 0..2 {
            self.card.receiver.step(&mut self.card.dma).unwrap();
            busy |= self.drain();
        }
        busy |= self.answer();
        busy |= self.commit_some();
        self.card.sender.step(&mut self.card.dma).unwrap();
        self.card.ring();
        self.drain() || busy
    }

    fn drain(&mut self) -> bool {
        let mut came = false;
        for mut batch in self.card.drain() {
            let looked_at: Vec<_> = batch.iter().map(|message| self.expected(message.inline)).collect();
            for (message, expected) in batch.iter().zip(&looked_at) {
                expected.check_ref(message);
            }
            for expected in looked_at {
                let message = batch.take_next().unwrap();
                expected.check_message(&message);
                self.check_order(&message.inline);
                self.waiting.push_back(message);
                came = true;
            }
            assert!(batch.take_next().is_none());
        }
        came
    }

    fn expected(&self, inline: &[u8]) -> Content {
        let named = name(inline);
        named.map_or_else(Content::default, |(producer, number)| {
            content(producer, number, self.exchange.message_max)
        })
    }

    fn check_order(&mut self, inline: &[u8]) {
        let Some((producer, number)) = name(inline) else { return };
        let last = &mut self.last[producer as usize];
        assert!(last.is_none_or(|last| last < number), "{number} of producer {producer} after {last:?}");
        *last = Some(number);
    }

    /// Reserves a response for each request that waits, with more payload than it will use if that fits.
    fn answer(&mut self) -> bool {
        let mut busy = false;
        while let Some(message) = self.waiting.front() {
            let expected = self.expected(&message.inline);
            let exact = expected.shape();
            let slack = self.random.below(40) as u32;
            let roomy = Shape { payload: exact.payload.map(|(len, align)| (len + slack, align)), ..exact };
            let shape = Placement::of(roomy, 0, &self.exchange.group.response).map_or(exact, |_| roomy);
            let Ok(mut reservation) = self.card.sender.reserve(shape) else { break };
            // The payload goes to a device and comes back.
            if let (Some(mut lent), Some((bytes, align))) = (reservation.payload.take(), &expected.payload) {
                check_alignment(&lent, *align);
                lent[..bytes.len()].copy_from_slice(bytes);
                reservation.payload = Some(lent);
            }
            let payload_len = exact.payload.map_or(0, |(len, _)| len);
            self.open.push((reservation, expected.inline.clone(), payload_len));
            self.held.extend(self.waiting.pop_front().map(|message| (expected, message)));
            busy = true;
        }
        while self.held.len() > self.exchange.scene.held {
            self.release_oldest();
        }
        busy
    }

    /// Held messages are as they came, however far the ring has moved on.
    fn release_oldest(&mut self) -> bool {
        let oldest = self.held.pop_front();
        oldest.inspect(|(expected, message)| expected.check_message(message)).is_some()
    }

    /// Commits some open reservations, in no order.
    fn commit_some(&mut self) -> bool {
        let keep = self.random.below(4) as usize;
        self.commit_down_to(keep)
    }

    fn commit_down_to(&mut self, keep: usize) -> bool {
        let before = self.open.len();
        while self.open.len() > keep {
            let index = self.random.below(self.open.len() as u64) as usize;
            let (reservation, inline, payload_len) = self.open.swap_remove(index);
            self.card.sender.commit(reservation, &inline, payload_len);
            self.committed.push(name(&inline));
        }
        before > keep
    }

    fn release_everything(&mut self) -> bool {
        self.commit_down_to(0) || self.release_oldest()
    }

    fn is_armed(&mut self) -> bool {
        let receiver = self.card.receiver.arm(&mut self.card.dma).unwrap();
        let came = self.drain();
        // Whoever waits for room asks again before it sleeps, so that the host knows to ring.
        let busy = self.answer();
        let sender = self.card.sender.arm();
        !came && !busy && (receiver, sender) == (Armed::Yes, Armed::Yes)
    }
}

/// The one that Miri watches for data races: both rings wrap several times.
#[test]
fn two_producers_and_two_consumers() {
    Exchange::new(SCENE).run();
}

#[test]
fn everybody_sleeps_when_there_is_nothing_to_do() {
    Exchange::new(Scene { sleeping: true, producers: 3, consumers: 2, ..SCENE }).run();
}

#[test]
fn eight_producers_fill_a_small_ring_faster_than_the_card_empties_it() {
    let messages = if cfg!(miri) { 2 } else { 4000 };
    Exchange::new(Scene { producers: 8, consumers: 1, card_pause: 3, messages, ..SCENE }).run();
}

#[test]
fn four_consumers_are_slower_than_the_card() {
    let messages = if cfg!(miri) { 3 } else { 20_000 };
    Exchange::new(Scene { producers: 1, consumers: 4, consumer_pause: 3, messages, ..SCENE }).run();
}

#[test]
fn one_of_each_keeps_the_order() {
    Exchange::new(Scene { producers: 1, consumers: 1, sleeping: true, ..SCENE }).run();
}

#[test]
fn held_messages_stall_the_mirror_and_stay_as_they_are() {
    let messages = if cfg!(miri) { 3 } else { 10_000 };
    Exchange::new(Scene { held: 40, request: 8192, messages, ..SCENE }).run();
    Exchange::new(Scene { held: 3, sleeping: true, messages, ..SCENE }).run();
}

#[test]
fn a_small_transfer_limit_cuts_batches_in_the_middle_of_messages() {
    let messages = if cfg!(miri) { 3 } else { 10_000 };
    let scene = Scene { request: 16384, response: 8192, transfer_max: 1000, messages, ..SCENE };
    Exchange::new(scene).run();
}

#[test]
#[cfg_attr(miri, ignore)] // Megabytes are too much for it; the small rings above take the same paths.
fn large_rings_and_large_messages() {
    for (request, response) in [(1 << 16, 1 << 17), (1 << 20, 1 << 18), (1 << 14, 1 << 20)] {
        for sleeping in [false, true] {
            let scene = Scene { request, response, sleeping, producers: 4, messages: 300, ..SCENE };
            Exchange::new(scene).run();
        }
    }
}

#[test]
fn a_message_of_the_limit_fits_and_a_larger_one_never_does() {
    let group = Group::new(4096, 4096, 2 << 20);
    let (sender, mut card) = (group.sender(), group.card(16, 2 << 20));
    let limit = group.request.message_max();
    assert_eq!(limit, 2048, "half the ring");
    let too_large = Err(PushError::TooLarge { limit });
    let inline = |len: u32| Content { inline: filler(1, len as usize), payload: None };
    let payload = |len: u32, align| Content { inline: vec![], payload: Some((vec![7; len as usize], align)) };
    for _ in 0..5 {
        assert_eq!(inline(limit - 8).push(&sender), Ok(()));
        assert_eq!(inline(limit - 7).push(&sender), too_large);
        assert_eq!(payload(limit - 16, 1).push(&sender), Ok(()));
        assert_eq!(payload(limit - 15, 1).push(&sender), too_large);
        assert_eq!(payload(1, 4096).push(&sender), too_large, "the worst padding decides");
        assert_eq!(Content::default().push(&sender), Err(PushError::Retry));
        assert_eq!(card.run_until_armed().len(), 1);
    }
    let shape = |len| Shape { inline_len: len as u16, payload: None };
    assert_eq!(card.sender.reserve(shape(limit - 7)).unwrap_err(), ReserveError::TooLarge { limit });
    assert!(card.sender.reserve(shape(limit - 8)).is_ok());
}

/// One step of the model test.
#[derive(Clone, Copy, Debug)]
enum Action {
    Push(u16, Option<(u32, u32)>),
    StepReceiver,
    StepSender,
    Complete,
    Reserve(u16, Option<(u32, u32)>),
    Commit(usize, u32),
    Receive,
    Settle(usize),
    DropMessage(usize),
    Arm,
    Wake,
}

fn action() -> impl Strategy<Value = Action> {
    let payload = || prop::option::of((0u32..1200, 0u32..=12));
    prop_oneof![
        4 => (0u16..300, payload()).prop_map(|(inline, payload)| Action::Push(inline, payload)),
        4 => Just(Action::StepReceiver),
        4 => Just(Action::StepSender),
        8 => Just(Action::Complete),
        4 => (0u16..300, payload()).prop_map(|(inline, payload)| Action::Reserve(inline, payload)),
        4 => (any::<usize>(), 0u32..1200).prop_map(|(index, len)| Action::Commit(index, len)),
        4 => Just(Action::Receive),
        3 => any::<usize>().prop_map(Action::Settle),
        2 => any::<usize>().prop_map(Action::DropMessage),
        1 => Just(Action::Arm),
        1 => Just(Action::Wake),
    ]
}

/// Both halves in one thread, and queues that say what they must do.
struct World<'a> {
    group: &'a Group,
    sender: HostSender,
    receiver: &'a HostReceiver,
    card: Card,
    requests: VecDeque<Content>,
    /// Committed, in that order.
    responses: VecDeque<Content>,
    open: Vec<Reservation>,
    claims: Vec<(Content, Claimed<'a>)>,
    messages: Vec<(Content, Message)>,
    seed: u64,
}

impl<'a> World<'a> {
    fn new(group: &'a Group, receiver: &'a HostReceiver, depth: usize, transfer_max: u32) -> Self {
        Self {
            group,
            sender: group.sender(),
            receiver,
            card: group.card(depth, transfer_max),
            requests: VecDeque::new(),
            responses: VecDeque::new(),
            open: Vec::new(),
            claims: Vec::new(),
            messages: Vec::new(),
            seed: 0,
        }
    }

    fn content(&mut self, inline: u16, payload: Option<(u32, u32)>) -> Content {
        self.seed += 1;
        let payload = payload.map(|(len, shift)| (filler(!self.seed, len as usize), 1u32 << shift));
        Content { inline: filler(self.seed, inline.into()), payload }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Push(inline, payload) => {
                let content = self.content(inline, payload);
                self.push(content);
            }
            Action::StepReceiver => _ = self.card.receiver.step(&mut self.card.dma).unwrap(),
            Action::StepSender => _ = self.card.sender.step(&mut self.card.dma).unwrap(),
            Action::Complete => _ = self.complete(),
            Action::Reserve(inline, payload) => {
                let payload = payload.map(|(len, shift)| (len, 1 << shift));
                self.reserve(Shape { inline_len: inline, payload });
            }
            Action::Commit(index, payload_len) => self.commit(index, payload_len),
            Action::Receive => _ = self.receive(),
            Action::Settle(index) if !self.claims.is_empty() => {
                let (content, claimed) = self.claims.swap_remove(index % self.claims.len());
                content.check_claimed(&claimed);
            }
            Action::DropMessage(index) if !self.messages.is_empty() => {
                let (content, message) = self.messages.swap_remove(index % self.messages.len());
                content.check_message(&message);
            }
            Action::Settle(_) | Action::DropMessage(_) => {}
            Action::Arm => {
                self.card.receiver.arm(&mut self.card.dma).unwrap();
                self.card.sender.arm();
            }
            Action::Wake => {
                self.card.receiver.wake();
                self.card.sender.wake();
            }
        }
    }

    /// The outcome of a push follows from the pointers in memory alone.
    fn push(&mut self, content: Content) -> bool {
        let word = |word| self.group.region.load(self.group.request.word(word) as usize, Ordering::Acquire);
        let (claim, bound) = (word(control::CLAIM), word(control::BOUND));
        let spec: &RingSpec = &self.group.request;
        let expected = match Placement::of(content.shape(), claim, spec) {
            None => Err(PushError::TooLarge { limit: spec.message_max() }),
            Some(placement) if claim - bound + placement.total() > u64::from(spec.capacity()) => {
                Err(PushError::Retry)
            }
            Some(_) => Ok(()),
        };
        assert_eq!(content.push(&self.sender), expected);
        if expected.is_ok() {
            self.requests.push_back(content);
        }
        expected.is_ok()
    }

    fn complete(&mut self) -> bool {
        let Some(received) = self.card.complete_one() else { return false };
        if let Received::Batch(mut batch) = received {
            while let Some(message) = batch.take_next() {
                let expected = self.requests.pop_front().unwrap();
                expected.check_message(&message);
                self.messages.push((expected, message));
            }
        }
        true
    }

    fn reserve(&mut self, shape: Shape) -> bool {
        let too_large = Placement::of(shape, 0, &self.group.response).is_none();
        match self.card.sender.reserve(shape) {
            Ok(reservation) => {
                if let (Some(payload), Some((len, align))) = (&reservation.payload, shape.payload) {
                    check_alignment(payload, align);
                    assert_eq!(payload.len(), len as usize);
                }
                self.open.push(reservation);
                true
            }
            Err(error) => {
                assert_eq!(matches!(error, ReserveError::TooLarge { .. }), too_large);
                false
            }
        }
    }

    fn commit(&mut self, index: usize, payload_len: u32) {
        if self.open.is_empty() {
            return;
        }
        let mut reservation = self.open.swap_remove(index % self.open.len());
        let reserved = reservation.payload.as_ref().map(|payload| payload.len() as u32);
        let payload = reserved.map(|reserved| (reserved.min(payload_len), 0));
        let content = self.content((payload_len % 5) as u16, payload);
        if let (Some(into), Some((bytes, _))) = (&mut reservation.payload, &content.payload) {
            into[..bytes.len()].copy_from_slice(bytes);
        }
        // An inline part longer than what was reserved is cut.
        let before = self.card.sender.has_ready();
        self.card.sender.commit(reservation, &content.inline, payload_len);
        assert!(self.card.sender.has_ready() || !before);
        self.responses.push_back(content);
    }

    fn receive(&mut self) -> bool {
        let Some(claimed) = self.receiver.receive().unwrap() else { return false };
        let mut content =
            self.responses.pop_front().unwrap_or_else(|| panic!("delivered before it was committed"));
        content.inline.truncate(claimed.inline_len());
        content.check_claimed(&claimed);
        self.claims.push((content, claimed));
        true
    }

    /// Everything under way comes to an end, and then both rings take their largest message again.
    fn finish(&mut self) {
        let limit = self.group.request.message_max() as u16 - 8;
        let largest = Content { inline: vec![3; limit.into()], payload: None };
        let response_limit = self.group.response.message_max() as u16 - 8;
        let (mut pushed, mut reserved) = (0, 0);
        for _ in 0..2000 {
            self.card.receiver.wake();
            self.card.sender.wake();
            for action in [Action::StepReceiver, Action::StepSender, Action::Commit(0, 9)] {
                self.act(action);
                // In between, since a link of depth 1 would else carry nothing but the first one's transfers.
                while self.complete() {}
            }
            self.messages.clear();
            while self.receive() {}
            self.claims.clear();
            pushed += u32::from(pushed < 4 && self.push(largest.clone()));
            let shape = Shape { inline_len: response_limit, payload: None };
            reserved += u32::from(reserved < 4 && self.reserve(shape));
            let idle = self.requests.is_empty() && self.responses.is_empty() && self.open.is_empty();
            if idle && pushed == 4 && reserved == 4 {
                return;
            }
        }
        panic!("{} requests, {} responses left", self.requests.len(), self.responses.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 1 } else { 600 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Whatever happens in whatever order, both rings are queues.
    #[test]
    fn a_group_behaves_like_two_queues(
        actions in prop::collection::vec(action(), 1..if cfg!(miri) { 40 } else { 400 }),
        depth in 2usize..12,
        shift in 0u32..3,
        transfer_max in prop_oneof![Just(600u32), Just(2048), Just(1 << 20)],
    ) {
        let group = Group::new(4096 << shift, 4096 << (2 - shift), transfer_max);
        let receiver = group.receiver();
        let mut world = World::new(&group, &receiver, depth, transfer_max);
        for action in actions {
            world.act(action);
        }
        world.finish();
    }
}
