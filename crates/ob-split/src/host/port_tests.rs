use super::*;
use crate::host::queues::{QueueCard, QueueEnds, QueueSizes, queues};
use crate::wire::{
    Answers, ChannelState, ChannelWhat, CompletionStatus, Descriptor, FromHost, HEADER_LEN, HostMessage,
    Plan, SetWhat,
};
use ob_core::{ChunkId, ChunkName, Epoch, LockId, SegmentId, TierId, Units, VolumeId};

#[path = "port_properties.rs"]
mod properties;

const OPTIONS: PortOptions = PortOptions {
    incarnation: Incarnation(3),
    gate: None,
    receives_max: 64,
    handles_max: 100,
    waiting_max: 16 << 10,
};

/// 8 bytes, and 16 a run; it answers.
const READ: PlanId = PlanId(1);
/// 24 bytes; it does not answer.
const PART: PlanId = PlanId(2);

/// 16 bytes, and 16 a run; it answers.
const LONG: PlanId = PlanId(3);

fn definition(id: PlanId) -> Definition {
    let (steps, entry_len, each_len) = match id {
        READ => (vec![Step::Answer { payload: None }], 8, 16),
        LONG => (vec![Step::Answer { payload: None }], 16, 16),
        _ => (vec![Step::Send { payload: None }, Step::Merge { answers: Answers::All }], 24, 0),
    };
    Definition::new(id, Plan::new(steps).unwrap(), entry_len, each_len).unwrap()
}

const WELCOME: Welcome = Welcome {
    engines: 0,
    payload_max: 1 << 20,
    gate: GateId(9),
    handles_max: 80,
    plans_max: 40,
    parked: 0,
    channels_max: 4,
    tier: TierId(1),
    lock: LockId([7; 16]),
};

fn message<E: Entry>(kind: u8, entries: &[E]) -> Vec<u8> {
    let mut builder = MessageBuilder::default();
    builder.begin(kind);
    assert!(entries.iter().all(|entry| builder.push(entry)));
    builder.finish(0, 0).to_vec()
}

fn welcome(welcome: &Welcome, engines: &[Engine]) -> Vec<u8> {
    let mut builder = MessageBuilder::default();
    builder.welcome(welcome, engines);
    builder.finish(11, 0).to_vec()
}

fn header(handle: u32, length: u32) -> HeaderEntry {
    let descriptor =
        Descriptor { handle: Handle(handle), length, front: 5, was_parked: false, was_sent: false };
    HeaderEntry::new([handle as u8; HEADER_LEN], descriptor)
}

fn completion(handle: u32, status: CompletionStatus) -> Completion {
    Completion {
        handle: Handle(handle),
        status,
        has_more: false,
        bad_members: 0,
        units: 1,
        offset: 2,
        word: 3,
    }
}

fn done(completions: &[(Completion, Option<&[u8]>)]) -> Vec<u8> {
    let mut builder = MessageBuilder::default();
    builder.begin(kind::DONE);
    for (completion, reply) in completions {
        assert!(builder.push_done(&Done { completion: *completion, reply: *reply }));
    }
    builder.finish(0, 0).to_vec()
}

fn good(handle: u32) -> Vec<u8> {
    done(&[(completion(handle, CompletionStatus::Good), None)])
}

fn channel(number: u16, what: ChannelWhat) -> Channel {
    let address = (what != ChannelWhat::Close).then(|| "127.0.0.1:4440".parse().unwrap());
    Channel { channel: ChannelId(number), what, address }
}

fn channel_is(number: u16, state: ChannelState) -> Vec<u8> {
    let listener = ChannelId(if state == ChannelState::Accepted { 2 } else { 0 });
    let is = ChannelIs { channel: ChannelId(number), state, port: 1, listener, incarnation: Incarnation(0) };
    message(kind::CHANNEL_IS, &[is])
}

/// A chunk of a member behind this channel.
fn append(slot: u16, channel: u16) -> Set {
    Set {
        slot: Slot(slot),
        what: SetWhat::Append,
        epoch: Epoch::new(1),
        chunk: ChunkName { volume: VolumeId(1), segment: SegmentId(0), chunk: ChunkId(1) },
        channels: [ChannelId(channel), ChannelId(0), ChannelId(0), ChannelId(0)],
        members: 1,
        offset: Units(0),
        length: Units(100),
    }
}

fn set(slot: u16) -> Set {
    Set {
        slot: Slot(slot),
        what: SetWhat::Forget,
        epoch: None,
        chunk: ChunkName::default(),
        channels: [ChannelId(0); 4],
        members: 0,
        offset: Units(0),
        length: Units(0),
    }
}

fn plan(id: PlanId, argument: u8, handle: u32, arguments: &[u8]) -> PlanEntry<'_> {
    PlanEntry { plan: id, argument, slot: Slot(1), handle: Handle(handle), arguments }
}

type Opened = (Port<QueueEnds>, QueueCard);

fn open_with(sizes: QueueSizes, options: &PortOptions) -> Opened {
    let (ends, card) = queues(sizes);
    let mut port = Port::open(ends, options).unwrap();
    assert!(card.take().is_some());
    assert!(card.send(&welcome(&WELCOME, &[])));
    assert_eq!(port.next_event(), Ok(Some(PortEvent::Welcome(WELCOME))));
    (port, card)
}

/// An open port, whose plans are defined and told.
fn open() -> Opened {
    let (mut port, card) = open_with(QueueSizes::default(), &OPTIONS);
    for id in [READ, PART] {
        port.define(&definition(id)).unwrap();
    }
    port.flush().unwrap();
    while card.take().is_some() {}
    (port, card)
}

/// What the port says to these messages: its last words.
fn told(port: &mut Port<QueueEnds>, card: &QueueCard, messages: &[Vec<u8>]) -> Result<usize, PortError> {
    for message in messages {
        assert!(card.send(message));
    }
    let mut events = 0;
    while port.next_event()?.is_some() {
        events += 1;
    }
    Ok(events)
}

/// All that the card has been told, entry by entry, as text; and how many messages those were.
fn heard(card: &QueueCard, definitions: &mut Definitions) -> (Vec<String>, usize) {
    let (mut all, mut messages) = (Vec::new(), 0);
    while let Some(bytes) = card.take() {
        messages += 1;
        assert!(bytes.len() <= INLINE_MAX);
        let message = FromHost::decode(&bytes, definitions).unwrap().message;
        let defined = match message {
            HostMessage::Define(definition) => Some(definition),
            HostMessage::Plans(plans) => {
                all.extend(plans.iter().map(|(plan, _)| format!("{plan:?}")));
                None
            }
            HostMessage::Set(entries) => {
                all.extend(entries.iter().map(|entry| format!("{entry:?}")));
                None
            }
            HostMessage::Gate(entries) => {
                all.extend(entries.iter().map(|entry| format!("{entry:?}")));
                None
            }
            other => panic!("{other:?}"),
        };
        if let Some(definition) = defined {
            all.push(format!("{:?}", definition.id()));
            definitions.define(definition).unwrap();
        }
    }
    (all, messages)
}

#[test]
fn the_host_greets_and_says_nothing_before_it_is_welcome() {
    let (ends, card) = queues(QueueSizes { host_area: 3 << 16, ..QueueSizes::default() });
    let mut port = Port::open(ends, &OPTIONS).unwrap();
    let bytes = card.take().unwrap();
    let definitions = Definitions::new();
    let hello = Hello { slots: 3, incarnation: Incarnation(3), gate: None };
    assert_eq!(FromHost::decode(&bytes, &definitions).unwrap().message, HostMessage::Hello(hello));
    assert_eq!(port.define(&definition(READ)), Err(PostError::NotOpen));
    assert_eq!(port.grant(1), Err(PostError::NotOpen));
    assert_eq!(port.set(&set(1)), Err(PostError::NotOpen));
    assert_eq!(port.next_event(), Ok(None));
    let engine =
        Engine { compresses: true, decompresses: false, sums: true, efforts: 4, depth: 5, task_max: 6 };
    assert!(card.send(&welcome(&WELCOME, &[engine])));
    let welcome = Welcome { engines: 1, ..WELCOME };
    assert_eq!(port.next_event(), Ok(Some(PortEvent::Welcome(welcome))));
    assert_eq!((port.limits(), port.engines(), port.load()), (Some(&welcome), &[engine][..], 11));
    assert_eq!(port.define(&definition(READ)), Ok(()));
    assert_eq!(
        port.define(&definition(READ)),
        Err(PostError::Plan(PlanError::Defined(READ))),
        "once is enough"
    );
}

#[test]
fn a_host_that_is_refused_is_told_why_and_the_port_is_over() {
    let (ends, card) = queues(QueueSizes::default());
    let mut port = Port::open(ends, &OPTIONS).unwrap();
    assert!(card.send(&message(kind::REFUSED, &[RefusedCode::GateClosed])));
    assert_eq!(port.next_event(), Ok(Some(PortEvent::Refused(RefusedCode::GateClosed))));
    assert_eq!(port.next_event(), Ok(None));
    assert_eq!(port.set(&set(1)), Err(PostError::NotOpen));
    assert_eq!(port.flush(), Ok(()));
    assert!(card.send(&message(kind::REFUSED, &[RefusedCode::GateClosed])));
    assert_eq!(port.next_event(), Err(PortError::Order(kind::REFUSED)));
}

#[test]
fn a_gate_is_the_one_that_was_asked_for() {
    let (ends, card) = queues(QueueSizes::default());
    let mut port = Port::open(ends, &PortOptions { gate: Some(GateId(8)), ..OPTIONS }).unwrap();
    let error = PortError::Gate { asked: GateId(8), given: GateId(9) };
    assert_eq!(told(&mut port, &card, &[welcome(&WELCOME, &[])]), Err(error));
    assert_eq!(port.next_event(), Err(error), "it is over for good");
    assert_eq!(port.flush(), Err(error));
    assert_eq!(port.grant(1), Err(PostError::NotOpen));
}

#[test]
fn a_group_that_is_closed_is_an_error_when_all_was_taken() {
    let (mut port, card) = open();
    port.grant(1).unwrap();
    port.flush().unwrap();
    assert!(card.send(&message(kind::HEADERS, &[header(1, 0)])));
    card.close();
    assert_eq!(port.next_event(), Ok(Some(PortEvent::Header(header(1, 0)))));
    assert_eq!(port.next_event(), Err(PortError::Closed));
    let (mut port, card) = open();
    card.close();
    port.set(&set(1)).unwrap();
    assert_eq!(port.flush(), Err(PortError::Closed));
}

#[test]
fn entries_of_one_kind_go_in_one_message_and_all_keep_their_order() {
    let (mut port, card) = open_with(QueueSizes::default(), &OPTIONS);
    let mut definitions = Definitions::new();
    port.define(&definition(READ)).unwrap();
    port.define(&definition(PART)).unwrap();
    port.set(&set(1)).unwrap();
    port.set(&set(2)).unwrap();
    for number in 0..10 {
        port.post(&plan(PART, 0, OF_HOST + number, &[0; 16])).unwrap();
    }
    port.gate(&Gate::Prepare { number: 1 }).unwrap();
    port.set(&set(3)).unwrap();
    assert_eq!(heard(&card, &mut definitions).1, 5, "what is followed by another kind has gone");
    port.flush().unwrap();
    let (rest, messages) = heard(&card, &mut definitions);
    assert_eq!((rest.len(), messages), (1, 1));
    assert!(rest[0].contains("Slot(3)"));
    port.flush().unwrap();
    assert!(card.take().is_none(), "there is nothing to say");
}

const OF_HOST: u32 = crate::wire::OF_HOST;

#[test]
fn what_the_card_would_refuse_is_not_said() {
    let (mut port, card) = open();
    port.grant(2).unwrap();
    port.flush().unwrap();
    assert!(card.take().is_some());
    assert!(card.send(&message(kind::HEADERS, &[header(1, 0)])));
    assert!(port.next_event().unwrap().is_some());
    port.define(&definition(LONG)).unwrap();
    port.flush().unwrap();
    assert!(card.take().is_some());
    let long = [0; 8 + 16 * 255];
    for (entry, error) in [
        (plan(PlanId(4), 0, 1, &[]), PostError::UnknownPlan(PlanId(4))),
        (plan(PART, 0, 1, &[0; 15]), PostError::Length { plan: PART, len: 23 }),
        (plan(READ, 2, 1, &[0; 16]), PostError::Length { plan: READ, len: 24 }),
        (plan(LONG, 255, 1, &long), PostError::Length { plan: LONG, len: 8 + long.len() }),
        (plan(PART, 0, 2, &[0; 16]), PostError::UnknownHandle(Handle(2))),
    ] {
        assert_eq!(port.post(&entry), Err(error));
    }
    assert!(matches!(port.set(&Set { members: 0, ..append(1, 1) }), Err(PostError::Illegal(_))));
    assert_eq!(port.give_back(Handle(2)), Err(PostError::UnknownHandle(Handle(2))));
    port.flush().unwrap();
    assert!(card.take().is_none());
    assert_eq!(port.post(&plan(LONG, 254, 1, &long[16..])), Ok(()), "as long as may be");
    port.flush().unwrap();
    assert_eq!(card.take().unwrap().len(), 8 + 16 + 16 * 254);
}

#[test]
fn a_message_has_one_plan_at_a_time_and_is_over_when_it_is_answered() {
    let (mut port, card) = open();
    let arguments = [0; 16];
    port.grant(10).unwrap();
    port.flush().unwrap();
    assert_eq!(told(&mut port, &card, &[message(kind::HEADERS, &[header(1, 4096)])]), Ok(1));
    port.post(&plan(PART, 0, 1, &arguments)).unwrap();
    assert_eq!(port.post(&plan(READ, 0, 1, &[])), Err(PostError::Busy(Handle(1))));
    assert_eq!(port.give_back(Handle(1)), Err(PostError::Busy(Handle(1))));
    // Two pieces, of which the first says that another follows.
    let more = Completion { has_more: true, ..completion(1, CompletionStatus::Good) };
    assert_eq!(told(&mut port, &card, &[done(&[(more, None)])]), Ok(1));
    assert_eq!(port.plans(), 1);
    assert_eq!(told(&mut port, &card, &[good(1)]), Ok(1));
    assert_eq!(port.plans(), 0);
    for status in [CompletionStatus::Withheld, CompletionStatus::GivenUp, CompletionStatus::Broken] {
        port.post(&plan(READ, 0, 1, &[])).unwrap();
        assert_eq!(told(&mut port, &card, &[done(&[(completion(1, status), None)])]), Ok(1));
    }
    port.post(&plan(READ, 0, 1, &[])).unwrap();
    assert_eq!(told(&mut port, &card, &[good(1)]), Ok(1));
    assert_eq!(port.post(&plan(READ, 0, 1, &[])), Err(PostError::UnknownHandle(Handle(1))));
    // Its handle may now be another's.
    assert_eq!(told(&mut port, &card, &[message(kind::HEADERS, &[header(1, 0)])]), Ok(1));
    port.give_back(Handle(1)).unwrap();
    assert_eq!(told(&mut port, &card, &[message(kind::HEADERS, &[header(1, 0)])]), Ok(1));
    assert_eq!(
        told(&mut port, &card, &[message(kind::HEADERS, &[header(1, 0)])]),
        Err(PortError::Handle(Handle(1)))
    );
}

#[test]
fn numbers_of_the_hosts_own_are_free_when_their_plan_is_over() {
    let (mut port, card) = open();
    let own = OF_HOST + 5;
    let reply = [3; HEADER_LEN + 20];
    for _ in 0..3 {
        port.post(&plan(PART, 0, own, &[0; 16])).unwrap();
        assert_eq!(port.post(&plan(PART, 0, own, &[0; 16])), Err(PostError::Busy(Handle(own))));
        let completion = Completion { offset: 20, ..completion(own, CompletionStatus::Good) };
        assert!(card.send(&done(&[(completion, Some(&reply))])));
        let event = port.next_event().unwrap().unwrap();
        assert_eq!(event, PortEvent::Done(Done { completion, reply: Some(&reply) }));
    }
    assert_eq!(told(&mut port, &card, &[good(own)]), Err(PortError::NotPosted(Handle(own))));
}

#[test]
fn no_more_plans_are_under_way_than_the_card_allows() {
    let (mut port, card) = open();
    for number in 0..WELCOME.plans_max {
        port.post(&plan(PART, 0, OF_HOST + number, &[0; 16])).unwrap();
    }
    assert_eq!(port.post(&plan(PART, 0, OF_HOST + 1000, &[0; 16])), Err(PostError::TooMany));
    assert_eq!(told(&mut port, &card, &[good(OF_HOST + 7)]), Ok(1));
    port.post(&plan(PART, 0, OF_HOST + 1000, &[0; 16])).unwrap();
}

#[test]
fn the_card_has_as_many_handles_out_as_it_said() {
    let (mut port, card) = open();
    let granted: Vec<Memory> =
        (0..WELCOME.handles_max).map(|number| Memory { handle: Handle(number), length: 4096 }).collect();
    assert_eq!(told(&mut port, &card, &[message(kind::MEMORY, &granted)]), Ok(80));
    port.give_back(Handle(3)).unwrap();
    let back = Memory { handle: Handle(3), length: 4096 };
    assert_eq!(told(&mut port, &card, &[message(kind::MEMORY, &[back])]), Ok(1));
    let more = Memory { handle: Handle(1000), length: 1 };
    assert_eq!(
        told(&mut port, &card, &[message(kind::MEMORY, &[more])]),
        Err(PortError::Handle(Handle(1000)))
    );
}

#[test]
fn credit_is_told_with_what_is_said_or_alone() {
    let (mut port, card) = open();
    let credit = |bytes: &[u8]| FromHost::decode(bytes, &Definitions::new()).unwrap().credit;
    port.grant(3).unwrap();
    assert_eq!(
        told(&mut port, &card, &[message::<Memory>(kind::MEMORY, &[])]),
        Ok(0),
        "a message without entries is none to act on"
    );
    port.flush().unwrap();
    assert_eq!(credit(&card.take().unwrap()), 3);
    port.grant(4).unwrap();
    port.set(&set(1)).unwrap();
    port.flush().unwrap();
    assert_eq!((credit(&card.take().unwrap()), card.take()), (7, None));
    assert_eq!((port.grant(57), port.grant(1)), (Ok(()), Err(PostError::TooMany)));
    assert_eq!(port.granted(), 64);
}

#[test]
fn the_card_cannot_use_credit_that_it_was_not_told() {
    let (mut port, card) = open();
    port.grant(1).unwrap();
    assert_eq!(told(&mut port, &card, &[message(kind::HEADERS, &[header(1, 0)])]), Err(PortError::NoCredit));
}

#[test]
fn payloads_are_no_longer_than_the_card_said() {
    let (mut port, card) = open();
    port.grant(2).unwrap();
    port.flush().unwrap();
    let max = WELCOME.payload_max;
    assert_eq!(told(&mut port, &card, &[message(kind::HEADERS, &[header(1, max)])]), Ok(1));
    let headers = message(kind::HEADERS, &[header(2, max + 1)]);
    assert_eq!(told(&mut port, &card, &[headers]), Err(PortError::Oversize(max + 1)));
}

/// What the card says of channels, and of which one it cannot.
type Way = (&'static [(u16, ChannelState)], Option<u16>);

#[test]
fn channels_go_the_ways_that_there_are() {
    use ChannelState::{Accepted, Gone, Listening, Refused, Up};
    use ChannelWhat::{Close, Connect, Listen};
    const FROM: u16 = crate::wire::ACCEPTED_FROM;
    let ways: &[Way] = &[
        (&[(1, Up), (1, Up), (1, Gone)], None),
        (&[(1, Refused)], None),
        (&[(1, Gone)], None),
        (&[(2, Listening), (FROM, Accepted), (FROM, Gone), (FROM, Accepted), (2, Gone)], None),
        (&[(2, Refused)], None),
        (&[(1, Refused), (1, Up)], Some(1)),
        (&[(1, Gone), (1, Gone)], Some(1)),
        (&[(1, Up), (1, Refused)], Some(1)),
        (&[(1, Listening)], Some(1)),
        (&[(2, Up)], Some(2)),
        (&[(2, Listening), (2, Listening)], Some(2)),
        (&[(FROM, Accepted)], Some(FROM)),
        (&[(2, Listening), (FROM, Accepted), (FROM, Accepted)], Some(FROM)),
        (&[(3, Up)], Some(3)),
        (&[(FROM, Gone)], Some(FROM)),
    ];
    for (states, wrong) in ways {
        for is_closing in [false, true] {
            let (mut port, card) = open();
            assert_eq!(port.free_channel(), Some(ChannelId(1)));
            port.channel(&channel(1, Connect)).unwrap();
            port.channel(&channel(2, Listen)).unwrap();
            assert_eq!(port.free_channel(), Some(ChannelId(3)));
            if is_closing {
                // What the card says may cross with this, and is as good.
                port.channel(&channel(1, Close)).unwrap();
                assert_eq!(port.channel(&channel(1, Close)), Err(PostError::Channel(ChannelId(1))));
            }
            let messages: Vec<_> = states.iter().map(|(number, state)| channel_is(*number, *state)).collect();
            let told = told(&mut port, &card, &messages);
            let error = wrong.map(|number| PortError::Channel(ChannelId(number)));
            assert_eq!(told.err(), error, "{states:?}");
        }
    }
}

#[test]
fn channels_are_asked_for_once_and_in_numbers() {
    let (mut port, card) = open();
    for number in 1..=4 {
        port.channel(&channel(number, ChannelWhat::Connect)).unwrap();
    }
    let again = port.channel(&channel(4, ChannelWhat::Connect));
    assert_eq!(again, Err(PostError::Channel(ChannelId(4))));
    assert_eq!(port.channel(&channel(5, ChannelWhat::Connect)), Err(PostError::TooMany));
    assert_eq!(port.channel(&channel(5, ChannelWhat::Close)), Err(PostError::Channel(ChannelId(5))));
    assert_eq!(told(&mut port, &card, &[channel_is(2, ChannelState::Refused)]), Ok(1));
    assert_eq!(port.free_channel(), Some(ChannelId(2)));
    port.channel(&channel(2, ChannelWhat::Connect)).unwrap();
}

#[test]
fn the_number_of_a_channel_that_is_over_counts_until_it_is_closed_or_used_anew() {
    let (mut port, card) = open();
    for number in 1..=4 {
        port.channel(&channel(number, ChannelWhat::Connect)).unwrap();
    }
    assert_eq!(told(&mut port, &card, &[channel_is(2, ChannelState::Gone)]), Ok(1));
    assert_eq!(port.channel(&channel(5, ChannelWhat::Connect)), Err(PostError::TooMany));
    assert_eq!(port.set(&append(1, 2)), Ok(()), "it may have crossed");
    port.channel(&channel(2, ChannelWhat::Close)).unwrap();
    assert_eq!(port.set(&append(1, 2)), Err(PostError::Channel(ChannelId(2))));
    assert_eq!(port.channel(&channel(2, ChannelWhat::Close)), Err(PostError::Channel(ChannelId(2))));
    port.channel(&channel(5, ChannelWhat::Connect)).unwrap();
    // One that is closed while it is up counts until the card has said that it is gone, which it may have before.
    port.channel(&channel(5, ChannelWhat::Close)).unwrap();
    assert_eq!(port.channel(&channel(6, ChannelWhat::Connect)), Err(PostError::TooMany));
    assert_eq!(port.channel(&channel(5, ChannelWhat::Connect)), Err(PostError::Channel(ChannelId(5))));
    assert_eq!(told(&mut port, &card, &[channel_is(5, ChannelState::Gone)]), Ok(1));
    port.channel(&channel(6, ChannelWhat::Connect)).unwrap();
    let gone = channel_is(5, ChannelState::Gone);
    assert_eq!(told(&mut port, &card, &[gone]), Err(PortError::Channel(ChannelId(5))));
}

#[test]
fn times_are_noted_in_the_order_in_which_that_was_asked_for() {
    let noted = |number| message(kind::GATE_NOTED, &[Noted { number }]);
    let (mut port, card) = open();
    for number in 1..=8 {
        port.gate(&Gate::Prepare { number }).unwrap();
    }
    assert_eq!(port.gate(&Gate::Prepare { number: 9 }), Err(PostError::TooMany));
    port.gate(&Gate::Extend { number: 1, milliseconds: 5 }).unwrap();
    assert_eq!(told(&mut port, &card, &[noted(1), noted(2)]), Ok(2));
    assert_eq!(told(&mut port, &card, &[noted(4)]), Err(PortError::NotPrepared(4)));
}

#[test]
fn only_what_was_set_can_break() {
    let broken =
        |slot| message(kind::BROKEN, &[Broken { slot: Slot(slot), channel: ChannelId(1), offset: Units(0) }]);
    let (mut port, card) = open();
    port.channel(&channel(1, ChannelWhat::Connect)).unwrap();
    port.set(&append(65, 1)).unwrap();
    assert_eq!(told(&mut port, &card, &[broken(65)]), Ok(1));
    assert_eq!(told(&mut port, &card, &[broken(64)]), Err(PortError::Slot(Slot(64))));
}

#[test]
fn what_is_no_message_ends_the_port() {
    let long = vec![0; INLINE_MAX + 1];
    for bytes in
        [&[][..], &[0; 8], &[kind::PLANS, 0, 0, 0, 0, 0, 0, 0], &[kind::DONE, 1, 0, 0, 0, 0, 0, 0], &long]
    {
        let (mut port, card) = open();
        let error = told(&mut port, &card, &[bytes.to_vec()]);
        assert!(matches!(error, Err(PortError::Message(_))), "{error:?}");
        assert_eq!(told(&mut port, &card, &[good(1)]), error, "the first error stays");
    }
    let (mut port, card) = open();
    let again = told(&mut port, &card, &[welcome(&WELCOME, &[])]);
    assert_eq!(again, Err(PortError::Order(kind::WELCOME)));
    let (ends, card) = queues(QueueSizes::default());
    let mut port = Port::open(ends, &OPTIONS).unwrap();
    assert_eq!(told(&mut port, &card, &[good(1)]), Err(PortError::Order(kind::DONE)));
}

#[test]
fn messages_without_end_in_which_there_is_nothing_end_the_port() {
    let sizes = QueueSizes { responses: 4096, ..QueueSizes::default() };
    let (mut port, card) = open_with(sizes, &OPTIONS);
    let nothing = message::<Noted>(kind::GATE_NOTED, &[]);
    // A card has a load to tell of now and then.
    (0..20).for_each(|_| assert!(card.send(&nothing)));
    assert_eq!(port.next_event(), Ok(None));
    (0..2000).for_each(|_| assert!(card.send(&nothing)));
    assert_eq!(port.next_event(), Err(PortError::Empty));
}

#[test]
fn a_full_ring_has_messages_wait_and_then_refuses() {
    let sizes = QueueSizes { requests: 2, ..QueueSizes::default() };
    let (mut port, card) = open_with(sizes, &OPTIONS);
    let mut definitions = Definitions::new();
    let mut said = 0u16;
    // Two of a kind in turn, so that each is a message.
    let say = |port: &mut Port<QueueEnds>, said: u16| {
        if said.is_multiple_of(2) {
            port.set(&set(said))
        } else {
            port.gate(&Gate::Extend { number: u64::from(said), milliseconds: 1 })
        }
    };
    while say(&mut port, said).is_ok() {
        said += 1;
        assert!(port.waiting_len() <= OPTIONS.waiting_max);
    }
    assert_eq!(say(&mut port, said), Err(PostError::Full));
    assert!(port.wants_room() && port.waiting_len() + INLINE_MAX > OPTIONS.waiting_max);
    let mut all = Vec::new();
    for _ in 0..1000 {
        port.flush().unwrap();
        let (entries, messages) = heard(&card, &mut definitions);
        assert!(messages <= 2);
        all.extend(entries);
        if messages == 0 {
            break;
        }
    }
    assert_eq!((all.len(), port.wants_room(), port.waiting_len()), (usize::from(said), false, 0));
    for (number, entry) in all.iter().enumerate() {
        let expected = if number % 2 == 0 { format!("Slot({number})") } else { format!("number: {number}") };
        assert!(entry.contains(&expected), "{entry} is not {expected}");
    }
    say(&mut port, said).unwrap();
}

#[test]
fn a_host_that_sleeps_is_woken_by_what_comes_and_by_room() {
    let sizes = QueueSizes { requests: 1, ..QueueSizes::default() };
    let (mut port, card) = open_with(sizes, &OPTIONS);
    let rounds = 200u16;
    let card = std::thread::spawn(move || {
        let mut taken = 0;
        while taken < rounds {
            if card.take().is_some() {
                taken += 1;
                while !card.send(&message::<Memory>(kind::MEMORY, &[])) {
                    std::thread::yield_now();
                }
            }
        }
        let gone = Memory { handle: Handle(1), length: 1 };
        assert!(card.send(&message(kind::MEMORY, &[gone])));
        card
    });
    let mut said = 0;
    loop {
        let ticket = port.register();
        while said < rounds && port.set(&set(said)).is_ok() {
            said += 1;
            port.flush().unwrap();
        }
        port.flush().unwrap();
        if let Some(event) = port.next_event().unwrap() {
            assert_eq!(event, PortEvent::Memory(Memory { handle: Handle(1), length: 1 }));
            break;
        }
        if port.wants_room() == ticket.room.is_some() {
            port.sleep(ticket, None);
        }
    }
    drop(card.join().unwrap());
}
