use std::thread;

use ob_core::{GateId, Incarnation, LockId, TierId};

use super::*;
use crate::engine::Effort;
use crate::host::queues::{QueueCard, QueueEnds, QueueSizes, queues};
use crate::ledger::SLOT_LEN;
use crate::wire::{Definitions, Descriptor, Entry, FromHost, HostMessage, MessageBuilder, RefusedCode, kind};

const WELCOME: Welcome = Welcome {
    engines: 0,
    payload_max: 1 << 20,
    gate: GateId(9),
    handles_max: 1000,
    plans_max: 100,
    parked: 0,
    channels_max: 10,
    tier: TierId(1),
    lock: LockId([7; 16]),
};

/// A card that does what the test says.
struct Card {
    queue: QueueCard,
    definitions: Definitions,
    /// Entries of plans that were posted: which, argument, slot, handle, arguments.
    posted: VecDeque<(PlanId, u8, u16, Handle, Vec<u8>)>,
    asked: Vec<Channel>,
    returned: Vec<Handle>,
    credit: u32,
}

impl Card {
    fn hear(&mut self) {
        while let Some(bytes) = self.queue.take() {
            let FromHost { credit, message } = FromHost::decode(&bytes, &self.definitions).unwrap();
            self.credit = credit;
            let mut defined = None;
            match message {
                HostMessage::Hello(_) => {}
                HostMessage::Define(definition) => defined = Some(definition),
                HostMessage::Plans(plans) => self.posted.extend(plans.iter().map(|(plan, _)| {
                    (plan.plan, plan.argument, plan.slot.0, plan.handle, plan.arguments.to_vec())
                })),
                HostMessage::Channel(entries) => self.asked.extend(entries.iter()),
                HostMessage::Memory(entries) => {
                    self.returned.extend(entries.iter().map(|entry| entry.handle));
                }
                other => panic!("{other:?}"),
            }
            if let Some(definition) = defined {
                self.definitions.define(definition).unwrap();
            }
        }
    }

    fn send<E: Entry>(&self, kind: u8, entry: &E) {
        let mut builder = MessageBuilder::default();
        builder.begin(kind);
        assert!(builder.push(entry));
        assert!(self.queue.send(builder.finish(0, 0)));
    }

    fn done(&self, handle: Handle, status: CompletionStatus, word: u32) {
        self.done_with(&Done { completion: piece(handle, status, word), reply: None });
    }

    fn done_with(&self, done: &Done<'_>) {
        let mut builder = MessageBuilder::default();
        builder.begin(kind::DONE);
        assert!(builder.push_done(done));
        assert!(self.queue.send(builder.finish(0, 0)));
    }

    fn header(&self, handle: u32, from: u32, length: u32) {
        let descriptor =
            Descriptor { handle: Handle(handle), length, front: from, was_parked: false, was_sent: false };
        self.send(kind::HEADERS, &HeaderEntry::new([0xAB; HEADER_LEN], descriptor));
    }

    fn channel(&self, channel: u16, state: ChannelState, listener: u16) {
        let (channel, listener) = (ChannelId(channel), ChannelId(listener));
        self.send(
            kind::CHANNEL_IS,
            &ChannelIs { channel, state, port: 77, listener, incarnation: Incarnation(0) },
        );
    }

    fn grant(&self, handle: u32, length: u32) {
        self.send(kind::MEMORY, &Memory { handle: Handle(handle), length });
    }
}

fn piece(handle: Handle, status: CompletionStatus, word: u32) -> Piece {
    Piece { handle, status, has_more: false, bad_members: 0, units: 0, offset: 0, word }
}

fn card(queue: QueueCard) -> Card {
    Card {
        queue,
        definitions: Definitions::new(),
        posted: VecDeque::new(),
        asked: Vec::new(),
        returned: Vec::new(),
        credit: 0,
    }
}

fn open_with(sizes: QueueSizes) -> (Split<QueueEnds>, Card) {
    let (ends, queue) = queues(sizes);
    let mut builder = MessageBuilder::default();
    builder.welcome(&WELCOME, &[]);
    assert!(queue.send(builder.finish(0, 0)));
    let split = Split::open(ends, &PortOptions::default()).unwrap();
    let mut card = card(queue);
    card.hear();
    (split, card)
}

fn open() -> (Split<QueueEnds>, Card) {
    open_with(QueueSizes { host_area: 4 << 16, ..QueueSizes::default() })
}

fn address() -> SocketAddr {
    "127.0.0.1:7000".parse().unwrap()
}

fn connected(split: &mut Split<QueueEnds>, card: &mut Card) -> ChannelId {
    let event = split.connect(address()).unwrap();
    assert_eq!(split.take(event), None);
    card.hear();
    let channel = card.asked.pop().unwrap();
    assert_eq!((channel.what, channel.address), (ChannelWhat::Connect, Some(address())));
    card.channel(channel.channel.0, ChannelState::Up, 0);
    assert_eq!(split.take(event), Some(Completion::Connected(channel.channel)));
    channel.channel
}

fn failed(failure: SplitFailure) -> Option<Completion> {
    Some(Completion::Failed(failure))
}

#[test]
fn the_layers_own_plans_are_plans() {
    let plans = own_plans().unwrap();
    assert_eq!(plans.map(|definition| definition.id().0), [252, 253, 254, 255]);
}

#[test]
fn a_host_that_is_not_welcome_is_told_why() {
    let (ends, queue) = queues(QueueSizes::default());
    let card = card(queue);
    card.send(kind::REFUSED, &RefusedCode::Taken);
    let (ends_of_closed, queue) = queues(QueueSizes::default());
    queue.close();
    assert_eq!(
        Split::open(ends, &PortOptions::default()).err(),
        Some(SplitError::Refused(RefusedCode::Taken))
    );
    assert_eq!(
        Split::open(ends_of_closed, &PortOptions::default()).err(),
        Some(SplitError::Port(PortError::Closed))
    );
}

#[test]
fn a_message_is_received_and_sent_on_without_its_payload() {
    let (mut split, mut card) = open();
    let channel = connected(&mut split, &mut card);
    let event = split.mixed_recv(Incoming::Any, 4096).unwrap();
    assert_eq!(split.take(event), None);
    card.hear();
    assert_eq!(card.credit, 1);
    card.header(5, 3, 4096);
    let Some(Completion::Received { from: 3, header, payload, len: 4096 }) = split.take(event) else {
        panic!()
    };
    assert_eq!(split.take(event), None, "one completion each");
    let mut expected = [0xAB; HEADER_LEN];
    expected[24..40].fill(0);
    assert_eq!(header, expected);
    assert_eq!((payload.handle(), payload.len()), (Handle(5), 4096));
    assert_eq!(payload.range(1..4097), None);
    let range = payload.range(16..32).unwrap();
    let event = split.mixed_send(channel, &[1; HEADER_LEN], Some(range)).unwrap();
    let busy = split.mixed_send(channel, &[1; HEADER_LEN], Some(range));
    assert_eq!(busy, Err(PostError::Busy(Handle(5))));
    drop(payload);
    split.flush();
    card.hear();
    let mut arguments = vec![16, 0, 0, 0, 16, 0, 0, 0];
    arguments.extend_from_slice(&[1; HEADER_LEN]);
    assert_eq!(card.posted.pop_front(), Some((SEND, 0, channel.0, Handle(5), arguments)));
    assert!(card.returned.is_empty(), "a plan is about it");
    card.done(Handle(5), CompletionStatus::Good, 0);
    assert_eq!(split.take(event), Some(Completion::Sent));
    card.hear();
    assert_eq!(card.returned, [Handle(5)]);
}

#[test]
fn headers_alone_go_side_by_side() {
    let (mut split, mut card) = open();
    let channel = connected(&mut split, &mut card);
    let events = [1, 2, 3].map(|byte| split.mixed_send(channel, &[byte; HEADER_LEN], None).unwrap());
    split.flush();
    card.hear();
    let handles: Vec<Handle> = card.posted.iter().map(|(_, _, _, handle, _)| *handle).collect();
    assert!(handles.iter().all(|handle| handle.is_of_host()));
    card.done(handles[1], CompletionStatus::NoMember, 0);
    card.done(handles[0], CompletionStatus::Good, 0);
    card.done(handles[2], CompletionStatus::Refused, 0);
    assert_eq!(split.poll(), Some((events[0], Completion::Sent)));
    assert_eq!(split.poll(), Some((events[1], Completion::Failed(SplitFailure::ChannelGone))));
    let refused = SplitFailure::Plan(CompletionStatus::Refused);
    assert_eq!(split.poll(), Some((events[2], Completion::Failed(refused))));
    assert_eq!(split.poll(), None);
}

#[test]
fn engines_work_on_memory_that_was_granted() {
    let (mut split, mut card) = open();
    assert_eq!(split.card_memory(1).err(), Some(NoMemory(1)));
    for (handle, len) in [(1, 1 << 20), (2, 4096), (3, 8192)] {
        card.grant(handle, len);
    }
    assert_eq!(split.poll(), None);
    let (from, into) = (split.card_memory(5000).unwrap(), split.card_memory(4096).unwrap());
    assert_eq!((from.handle(), into.handle()), (Handle(3), Handle(2)), "the shortest that is long enough");
    let effort = Effort::new(3).unwrap();
    let task = CardTask::Compress { effort, from: from.range(8..4104).unwrap(), into: &into };
    let event = split.engine(task).unwrap();
    split.flush();
    card.hear();
    let arguments = [8u32, 4096, 2, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(card.posted.pop_front(), Some((COMPRESS, 3, 0, Handle(3), arguments)));
    card.done(Handle(3), CompletionStatus::Good, 1000);
    assert_eq!(split.take(event), Some(Completion::Engine(1000)));
    let task = CardTask::Checksum { from: into.all(), seed: 0x0102_0304 };
    let event = split.engine(task).unwrap();
    split.flush();
    card.hear();
    let arguments = [0u32, 4096, 0x0102_0304, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(card.posted.pop_front(), Some((CHECKSUM, 0, 0, Handle(2), arguments)));
    card.done(Handle(2), CompletionStatus::Engine, 0);
    assert_eq!(split.take(event), failed(SplitFailure::Engine));
    drop((from, into));
    split.flush();
    card.hear();
    assert_eq!(card.returned, [Handle(3), Handle(2)]);
}

#[test]
fn a_message_that_is_too_long_is_given_back() {
    let (mut split, mut card) = open();
    let event = split.mixed_recv(Incoming::Any, 100).unwrap();
    split.flush();
    card.header(5, 3, 101);
    let mut header = [0xAB; HEADER_LEN];
    header[24..40].fill(0);
    assert_eq!(split.take(event), failed(SplitFailure::Oversize { from: 3, header, len: 101 }));
    split.flush();
    card.hear();
    assert_eq!(card.returned, [Handle(5)]);
}

#[test]
fn messages_go_to_who_awaits_their_sender_and_credit_follows() {
    let (mut split, mut card) = open();
    let (one, two) = (connected(&mut split, &mut card), connected(&mut split, &mut card));
    assert_ne!(one, two);
    let of_one = split.mixed_recv(Incoming::Of(one), 100).unwrap();
    split.flush();
    card.hear();
    assert_eq!(card.credit, 1);
    card.header(1, two.0.into(), 0);
    assert_eq!(split.take(of_one), None);
    card.hear();
    assert_eq!(card.credit, 2, "another's message has used the first");
    let of_two = split.mixed_recv(Incoming::Of(two), 100).unwrap();
    assert!(matches!(split.take(of_two), Some(Completion::Received { .. })), "it had come before");
    card.hear();
    assert_eq!(card.credit, 2);
    card.header(2, one.0.into(), 0);
    assert!(matches!(split.take(of_one), Some(Completion::Received { .. })));
    assert_eq!(split.mixed_recv(Incoming::Of(ChannelId(9)), 1), Err(PostError::Channel(ChannelId(9))));
}

#[test]
fn listeners_accept_and_what_ends_completes_all_of_it() {
    let (mut split, card) = open();
    let listens = split.listen(address()).unwrap();
    split.flush();
    card.channel(1, ChannelState::Listening, 0);
    let listener = ChannelId(1);
    assert_eq!(split.take(listens), Some(Completion::Listening { listener, port: 77 }));
    let accepts = split.accept(listener);
    card.channel(0x8000, ChannelState::Accepted, 1);
    assert_eq!(split.take(accepts), Some(Completion::Connected(ChannelId(0x8000))));
    card.channel(0x8001, ChannelState::Accepted, 1);
    assert_eq!(split.poll(), None);
    let accepts = split.accept(listener);
    assert_eq!(split.take(accepts), Some(Completion::Connected(ChannelId(0x8001))), "it had come before");
    let receives = split.mixed_recv(Incoming::Of(ChannelId(0x8000)), 1).unwrap();
    let accepts = split.accept(listener);
    split.close(listener).unwrap();
    card.channel(0x8000, ChannelState::Gone, 0);
    card.channel(1, ChannelState::Gone, 0);
    assert_eq!(split.take(receives), failed(SplitFailure::ChannelGone));
    assert_eq!(split.take(accepts), failed(SplitFailure::ChannelGone));
    let late = split.accept(listener);
    assert_eq!(split.take(late), failed(SplitFailure::ChannelGone));
    let refused = split.connect(address()).unwrap();
    split.flush();
    card.channel(1, ChannelState::Refused, 0);
    assert_eq!(split.take(refused), failed(SplitFailure::ChannelGone));
}

/// A listener, and peers that have connected to it and that nobody has accepted.
fn with_peers(numbers: &[u16]) -> (Split<QueueEnds>, Card) {
    let (mut split, mut card) = open();
    let listens = split.listen(address()).unwrap();
    split.flush();
    card.channel(1, ChannelState::Listening, 0);
    assert!(split.take(listens).is_some());
    numbers.iter().for_each(|number| card.channel(*number, ChannelState::Accepted, 1));
    assert_eq!(split.poll(), None);
    card.hear();
    card.asked.clear();
    (split, card)
}

#[test]
fn messages_that_nobody_can_ask_for_are_given_back() {
    let (mut split, mut card) = with_peers(&[0x8000, 0x8001, 0x8002]);
    let events = [(); 2].map(|()| split.accept(ChannelId(1)));
    let [known, closed] = [ChannelId(0x8000), ChannelId(0x8001)];
    assert_eq!(split.take(events[0]), Some(Completion::Connected(known)));
    assert_eq!(split.take(events[1]), Some(Completion::Connected(closed)));
    let other = connected(&mut split, &mut card);
    let awaited = split.mixed_recv(Incoming::Of(other), 100).unwrap();
    for (handle, from) in [(1, 0x8000), (2, 0x8001), (3, 0x8002)] {
        split.flush();
        card.header(handle, from, 10);
        assert_eq!(split.take(awaited), None);
    }
    split.close(closed).unwrap();
    for number in [0x8000, 0x8001, 0x8002] {
        card.channel(number, ChannelState::Gone, 0);
    }
    assert_eq!(split.take(awaited), None);
    card.hear();
    assert_eq!(card.returned, [Handle(2), Handle(3)]);
    let event = split.mixed_recv(Incoming::Of(known), 100).unwrap();
    assert!(matches!(split.take(event), Some(Completion::Received { .. })), "who knows of it may ask for it");
    assert_eq!(split.over(), None);
}

#[test]
fn of_a_peer_that_has_said_all_nothing_more_is_awaited_and_it_is_there() {
    let (mut split, mut card) = with_peers(&[0x8000]);
    let accepts = split.accept(ChannelId(1));
    let peer = ChannelId(0x8000);
    assert_eq!(split.take(accepts), Some(Completion::Connected(peer)));
    let events = [(); 2].map(|()| split.mixed_recv(Incoming::Of(peer), 100).unwrap());
    split.flush();
    card.header(1, 0x8000, 10);
    card.channel(0x8000, ChannelState::Ended, 0);
    assert!(matches!(split.take(events[0]), Some(Completion::Received { .. })));
    assert_eq!(split.take(events[1]), failed(SplitFailure::ChannelGone));
    assert_eq!(split.mixed_recv(Incoming::Of(peer), 1), Err(PostError::Channel(peer)));
    let event = split.mixed_send(peer, &[1; HEADER_LEN], None).unwrap();
    split.flush();
    card.hear();
    card.done(card.posted[0].3, CompletionStatus::Good, 0);
    assert_eq!(split.take(event), Some(Completion::Sent));
    assert_eq!(card.asked, [], "it is not closed");
    card.channel(0x8000, ChannelState::Gone, 0);
    assert_eq!(split.poll(), None);
    split.flush();
    card.hear();
    assert_eq!(card.asked.pop().unwrap().what, ChannelWhat::Close);
    // Once is enough.
    card.channel(0x8000, ChannelState::Ended, 0);
    assert_eq!(split.poll(), None);
    assert_eq!(split.over(), Some(PortError::Channel(peer)));
}

#[test]
fn connections_that_nobody_has_accepted_end_with_their_listener() {
    let (mut split, mut card) = with_peers(&[0x8000, 0x8001]);
    let accepts = split.accept(ChannelId(1));
    assert!(split.take(accepts).is_some());
    split.close(ChannelId(1)).unwrap();
    split.flush();
    card.channel(1, ChannelState::Gone, 0);
    assert_eq!(split.poll(), None);
    card.hear();
    let closed: Vec<_> = card.asked.iter().map(|channel| (channel.channel.0, channel.what)).collect();
    assert_eq!(closed, [(1, ChannelWhat::Close), (0x8001, ChannelWhat::Close)]);
    card.channel(0x8001, ChannelState::Gone, 0);
    assert_eq!(split.poll(), None);
    assert_eq!(split.over(), None);
}

#[test]
fn credit_of_a_receive_whose_channel_is_gone_is_used_by_the_next() {
    let (mut split, mut card) = open();
    for _ in 0..5 {
        let channel = connected(&mut split, &mut card);
        let receives = split.mixed_recv(Incoming::Of(channel), 1).unwrap();
        split.flush();
        card.channel(channel.0, ChannelState::Gone, 0);
        assert_eq!(split.take(receives), failed(SplitFailure::ChannelGone));
    }
    split.mixed_recv(Incoming::Any, 1).unwrap();
    split.flush();
    card.hear();
    assert_eq!(card.credit, 1, "one is awaited");
}

#[test]
fn accepted_channels_that_are_gone_are_closed_so_that_more_can_come() {
    let (mut split, mut card) = open();
    let listens = split.listen(address()).unwrap();
    split.flush();
    card.channel(1, ChannelState::Listening, 0);
    assert!(split.take(listens).is_some());
    for number in 0..100 {
        let accepts = split.accept(ChannelId(1));
        let accepted = ACCEPTED_FROM + number;
        card.channel(accepted, ChannelState::Accepted, 1);
        assert_eq!(split.take(accepts), Some(Completion::Connected(ChannelId(accepted))));
        card.channel(accepted, ChannelState::Gone, 0);
        assert_eq!(split.poll(), None);
        split.flush();
        card.hear();
        let closed = card.asked.pop().unwrap();
        assert_eq!((closed.channel, closed.what), (ChannelId(accepted), ChannelWhat::Close));
    }
    assert_eq!(split.over(), None);
}

#[test]
fn memory_that_a_task_writes_is_busy_until_it_is_over() {
    let (mut split, mut card) = open();
    card.grant(3, 8192);
    card.grant(2, 4096);
    assert_eq!(split.poll(), None);
    let (from, into) = (split.card_memory(8192).unwrap(), split.card_memory(4096).unwrap());
    let task = || CardTask::Compress { effort: Effort::DEFAULT, from: from.all(), into: &into };
    let event = split.engine(task()).unwrap();
    let into_busy = Err(PostError::Busy(into.handle()));
    assert_eq!(split.engine(CardTask::Checksum { from: into.all(), seed: 0 }), into_busy);
    let itself = CardTask::Compress { effort: Effort::DEFAULT, from: into.all(), into: &into };
    assert_eq!(split.engine(itself), into_busy);
    let (from_handle, into_handle) = (from.handle(), into.handle());
    drop(into);
    split.flush();
    card.hear();
    assert_eq!(card.returned, []);
    card.done(from_handle, CompletionStatus::Good, 1000);
    assert_eq!(split.take(event), Some(Completion::Engine(1000)));
    split.flush();
    card.hear();
    assert_eq!(card.returned, [into_handle]);
}

#[test]
fn plans_of_users_have_all_their_pieces() {
    let (mut split, mut card) = open();
    let merge = Step::Merge { answers: Answers::First };
    let plan = Plan::new(vec![Step::Send { payload: None }, merge]).unwrap();
    let id = split.define(&plan, 10, 0).unwrap();
    assert!(id.0 < OWN_PLANS);
    let event = split.post(id, None, 3, Slot(4), &[8, 9]).unwrap();
    split.flush();
    card.hear();
    let (posted, argument, slot, handle, arguments) = card.posted.pop_front().unwrap();
    assert_eq!((posted, argument, slot, &arguments[..]), (id, 3, 4, &[8, 9][..]));
    let first = Piece { has_more: true, ..piece(handle, CompletionStatus::Good, 1) };
    card.done_with(&Done { completion: first, reply: None });
    assert_eq!(split.take(event), None);
    let last = Piece { offset: 2, ..piece(handle, CompletionStatus::Good, 2) };
    let reply = [6; HEADER_LEN + 2];
    card.done_with(&Done { completion: last, reply: Some(&reply) });
    let plan = Completion::Plan { pieces: vec![first, last], reply: reply.to_vec() };
    assert_eq!(split.take(event), Some(plan));
}

#[test]
fn host_memory_is_of_the_area_and_comes_back() {
    let (mut split, card) = open();
    let memory = split.host_memory(SLOT_LEN as usize + 1).unwrap();
    let other = split.host_memory(10).unwrap();
    assert_eq!((memory.offset(), other.offset(), other.len()), (0, 2 * SLOT_LEN, 10));
    split.fill(&other, b"0123456789").unwrap();
    assert_eq!(split.fill(&other, &[0; 11]), Err(AreaError::OutOfArea));
    let mut bytes = [0; 10];
    card.queue.read_area(2 * SLOT_LEN, &mut bytes).unwrap();
    assert_eq!(&bytes, b"0123456789");
    assert_eq!(split.host_memory(SLOT_LEN as usize * 2).err(), Some(NoMemory(SLOT_LEN as usize * 2)));
    drop(memory);
    assert_eq!(split.host_memory(SLOT_LEN as usize * 2).unwrap().offset(), 0);
}

#[test]
fn the_end_of_a_port_completes_everything() {
    let (mut split, mut card) = open();
    let channel = connected(&mut split, &mut card);
    let events = [
        split.mixed_recv(Incoming::Any, 1).unwrap(),
        split.mixed_send(channel, &[0; HEADER_LEN], None).unwrap(),
        split.connect(address()).unwrap(),
        split.listen(address()).unwrap(),
    ];
    split.flush();
    card.channel(4, ChannelState::Up, 0);
    for event in events {
        assert_eq!(split.wait(event), Completion::Failed(SplitFailure::Closed));
    }
    assert_eq!(split.over(), Some(PortError::Channel(ChannelId(4))));
    assert_eq!(split.mixed_recv(Incoming::Any, 1), Err(PostError::NotOpen));
    assert_eq!(split.wait(events[0]), Completion::Failed(SplitFailure::Closed));
}

#[test]
fn waiting_sleeps_until_the_card_has_answered() {
    let (mut split, mut card) = open();
    let channel = connected(&mut split, &mut card);
    let rounds = 100;
    let answering = thread::spawn(move || {
        let mut left = rounds;
        while left > 0 {
            card.hear();
            while let Some((_, _, _, handle, _)) = card.posted.pop_front() {
                card.done(handle, CompletionStatus::Good, 0);
                left -= 1;
            }
            thread::yield_now();
        }
        card
    });
    for _ in 0..rounds {
        let event = split.mixed_send(channel, &[0; HEADER_LEN], None).unwrap();
        assert_eq!(split.wait(event), Completion::Sent);
    }
    drop(answering.join().unwrap());
    let event = split.mixed_recv(Incoming::Any, 1).unwrap();
    assert_eq!(split.wait(event), Completion::Failed(SplitFailure::Closed), "the card is gone");
}
