use ob_core::{ChunkId, ChunkName, Epoch, GateId, Incarnation, LockId, SegmentId, TierId, Units, VolumeId};
use proptest::prelude::*;

use super::*;

fn register(number: u8) -> Register {
    Register::new(number).unwrap()
}

/// The plans of `docs/split.md`, by the short words that are used there.
fn plan(text: &str) -> Result<Plan, PlanError> {
    let digit = |text: &str| register(text.parse().unwrap());
    let pair = |text: &str| text.split_once('>').map(|(from, into)| (digit(from), digit(into))).unwrap();
    let steps = text.split(' ').map(|word| match word.split_once(':').unwrap_or((word, "")) {
        ("each", _) => Step::Each,
        ("end", _) => Step::EndEach,
        ("compress", of) => Step::Compress { from: pair(of).0, into: pair(of).1, otherwise: Otherwise::Copy },
        ("copy", of) => Step::Copy { from: pair(of).0, into: pair(of).1 },
        ("checksum", of) => Step::Checksum { of: digit(of) },
        ("send", "") => Step::Send { payload: None },
        ("send", of) => Step::Send { payload: Some(digit(of)) },
        ("merge", "first") => Step::Merge { answers: Answers::First },
        ("merge", _) => Step::Merge { answers: Answers::All },
        ("fetch", of) => Step::Fetch { into: digit(of) },
        ("decode", of) => Step::Decode { from: pair(of).0, into: pair(of).1 },
        ("zero", of) => Step::Zero { into: digit(of) },
        ("to_host", of) => Step::ToHost { from: digit(of) },
        ("from_host", of) => Step::FromHost { into: digit(of) },
        ("keep", of) => Step::Keep { what: digit(of) },
        ("answer", "") => Step::Answer { payload: None },
        ("answer", of) => Step::Answer { payload: Some(digit(of)) },
        (other, _) => panic!("{other}"),
    });
    Plan::new(steps.collect())
}

const PLANS: &[&str] = &[
    "each compress:0>2 checksum:2 send:2 keep:2 merge end answer",
    "each copy:0>2 checksum:2 send:2 keep:2 merge end answer",
    "each fetch:2 decode:2>1 end answer:1",
    "each fetch:2 decode:2>1 end",
    "send merge answer",
    "answer",
    "answer:1",
    "fetch:2 checksum:2 send:2 keep:2 merge",
    "fetch:2 decode:2>3 compress:3>4 checksum:4 send:4 keep:4 merge",
    "send merge:first",
    "fetch:2 send:2 merge",
    "from_host:2 compress:2>3 checksum:3 send:3 merge",
    "fetch:2 decode:2>3 to_host:3",
    "fetch:2 to_host:2",
    "to_host:0",
    "from_host:2 checksum:2 send:2 merge answer",
    "from_host:2 compress:2>3 to_host:3",
    "zero:1 answer:1",
];

#[test]
fn the_plans_of_volumes_are_plans() {
    for text in PLANS {
        plan(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let (defined, none) = (definition(9, text, 8, 0), Definitions::new());
        let mut builder = MessageBuilder::default();
        builder.define(&defined);
        let decoded = FromHost::decode(builder.finish(0, 0), &none).unwrap();
        assert_eq!(decoded.message, HostMessage::Define(defined), "{text}");
    }
}

#[test]
fn what_makes_no_sense_is_no_plan() {
    for (text, step, what) in [
        ("checksum:2", 0, "never written"),
        ("answer:2", 0, "never written"),
        ("to_host:1", 0, "only the answer does"),
        ("fetch:2 decode:2>1 checksum:1", 2, "only the answer does"),
        ("zero:1 copy:1>2", 1, "only the answer does"),
        ("zero:1 send:1 merge", 1, "only the answer does"),
        ("fetch:1", 0, "only what was verified"),
        ("from_host:1", 0, "only what was verified"),
        ("fetch:2 each decode:2>3 end", 2, "was not fetched"),
        ("copy:0>2 send:2 merge each keep:2 end", 4, "was not sent"),
        ("copy:0>0", 0, "writes what it reads"),
        ("zero:0", 0, "message's payload"),
        ("copy:0>2 send:2 zero:2 merge", 2, "may still read"),
        ("copy:0>2 send:2 keep:2 merge zero:2", 4, "may still read"),
        ("copy:0>2 decode:2>1", 1, "was not fetched"),
        ("fetch:2 zero:2 decode:2>1", 2, "was not fetched"),
        ("copy:0>2 keep:2", 1, "was not sent"),
        ("merge", 0, "nothing was sent"),
        ("send merge merge", 2, "nothing was sent"),
        ("end", 0, "no pieces"),
        ("each end", 1, "nothing is done"),
        ("each zero:2 end each zero:3 end", 3, "once"),
        ("each each", 1, "once"),
        ("zero:2 each checksum:2 copy:0>2 end", 3, "all pieces read"),
        ("each zero:2 end checksum:2", 3, "never written"),
        ("each send end", 2, "awaited before"),
        ("send each", 1, "awaited before"),
        ("each answer", 1, "still under way"),
        ("send answer", 1, "still under way"),
        ("answer answer", 1, "nothing follows"),
        ("compress:0>2 compress:0>3", 1, "second record"),
        ("compress:0>2 each compress:0>3 send:3 merge end send:2 merge", 2, "second record"),
        ("fetch:2 decode:2>3 send:3 keep:3 merge compress:0>4", 5, "second record"),
    ] {
        match plan(text) {
            Err(PlanError::Step { step: found, what: why }) => {
                assert_eq!(found, step, "{text}");
                assert!(why.contains(what), "{text}: {why}");
            }
            other => panic!("{text}: {other:?}"),
        }
    }
    assert!(matches!(plan("each zero:2"), Err(PlanError::End(_))));
    assert!(matches!(plan("send"), Err(PlanError::End(_))));
    assert_eq!(Plan::new(Vec::new()), Err(PlanError::Count(0)));
    assert_eq!(Plan::new(vec![Step::Send { payload: None }; 13]), Err(PlanError::Count(13)));
}

fn definition(id: u8, text: &str, entry_len: u8, each_len: u8) -> Definition {
    Definition::new(PlanId(id), plan(text).unwrap(), entry_len, each_len).unwrap()
}

fn definitions() -> Definitions {
    let mut all = Definitions::new();
    all.define(definition(1, PLANS[0], 16, 0)).unwrap();
    all.define(definition(2, PLANS[2], 8, 16)).unwrap();
    all
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

#[test]
fn a_definition_has_these_bytes() {
    let mut builder = MessageBuilder::default();
    builder.define(&definition(2, PLANS[2], 8, 16));
    let expected = hex(
        "07 01 00 00 09000000  02 05 08 10 00000000
         01 00 00 00 00000000  08 02 00 00 00000000  09 02 01 00 00000000  02 00 00 00 00000000  0e 01 00 00 00000000",
    );
    assert_eq!(builder.finish(0, 9), expected);
    let none = Definitions::new();
    let decoded = FromHost::decode(&expected, &none).unwrap();
    assert_eq!(decoded.message, HostMessage::Define(definition(2, PLANS[2], 8, 16)));
    assert_eq!(decoded.credit, 9);
}

#[test]
fn plans_have_these_bytes_and_are_as_long_as_defined() {
    let mut builder = MessageBuilder::default();
    builder.begin(kind::PLANS);
    let (slot, handle) = (Slot(0x0304), Handle(0x0506_0708));
    let write = PlanEntry { plan: PlanId(1), argument: 2, slot, handle, arguments: &[9; 8] };
    let read = PlanEntry { plan: PlanId(2), argument: 2, slot, handle, arguments: &[7; 32] };
    assert!(builder.push_plan(&write) && builder.push_plan(&read));
    let bytes = builder.finish(0, 1).to_vec();
    assert_eq!(bytes[..24], hex("05 02 00 00 01000000 01 02 0403 08070605 0909090909090909"));
    let definitions = definitions();
    let FromHost { message: HostMessage::Plans(plans), .. } = FromHost::decode(&bytes, &definitions).unwrap()
    else {
        panic!("no plans");
    };
    assert_eq!(plans.iter().map(|(entry, _)| entry).collect::<Vec<_>>(), [write, read]);
    assert_eq!(plans.iter().map(|(_, definition)| definition.id().0).collect::<Vec<_>>(), [1, 2]);
    // Shorter and longer ones cannot be, nor what nobody has defined.
    for end in 0..bytes.len() {
        assert!(FromHost::decode(&bytes[..end], &definitions).is_err(), "{end}");
    }
    assert!(FromHost::decode(&[&bytes[..], &[0]].concat(), &definitions).is_err());
    assert_eq!(FromHost::decode(&bytes, &Definitions::new()), Err(MessageError::UnknownPlan(1)));
}

#[test]
fn a_completion_brings_its_reply() {
    let completion = Completion {
        handle: Handle(5),
        status: CompletionStatus::NotVerified,
        has_more: true,
        bad_members: 0b1010,
        units: 7,
        offset: 3,
        word: 0xcafe_f00d,
    };
    let reply = [8; HEADER_LEN + 3];
    let (with, without) = (Done { completion, reply: Some(&reply) }, Done { completion, reply: None });
    let mut builder = MessageBuilder::default();
    builder.begin(kind::DONE);
    assert!(builder.push_done(&with) && builder.push_done(&without));
    // A reply is as long as the completion says.
    assert!(!builder.push_done(&Done { completion, reply: Some(&reply[1..]) }));
    let bytes = builder.finish(200, 4).to_vec();
    assert_eq!(bytes[..24], hex("06 02 c8 00 04000000 05000000 04 35 0700 03000000 0df0feca"));
    let FromCard { message: CardMessage::Done(done), load: 200, credit: 4 } =
        FromCard::decode(&bytes).unwrap()
    else {
        panic!("nothing is done");
    };
    assert_eq!(done.iter().collect::<Vec<_>>(), [with, without]);
    for end in 0..bytes.len() {
        assert!(FromCard::decode(&bytes[..end]).is_err(), "{end}");
    }
}

#[test]
fn a_header_has_these_bytes_and_notices_others() {
    let header = Header {
        magic: *b"OX",
        version: 1,
        kind: 0x83,
        status: 0x0504,
        flags: 0x0706,
        tag: 0x0f0e_0d0c_0b0a_0908,
        payload_len: 4096,
        rest: std::array::from_fn(|at| at as u8),
    };
    let bytes = header.encode();
    // The checksum was computed bit by bit elsewhere.
    assert_eq!(bytes[..24], hex("4f58 01 83 0405 0607 08090a0b0c0d0e0f 00100000 d5f42ade"));
    assert_eq!(bytes[24..], header.rest);
    assert_eq!(Header::decode(&bytes, *b"OX"), Ok(header));
    assert!(header.is_reply());
    for at in 0..HEADER_LEN {
        let mut broken = bytes;
        broken[at] ^= 0x10;
        assert!(Header::decode(&broken, *b"OX").is_err(), "{at}");
        assert_eq!(Header::decode(&bytes[..at], *b"OX"), Err(HeaderError::Cut(at)));
    }
    assert!(matches!(Header::decode(&bytes, *b"OC"), Err(HeaderError::Magic { .. })));
}

fn welcome() -> (Welcome, Engine) {
    let welcome = Welcome {
        engines: 1,
        payload_max: 1 << 20,
        gate: GateId(0x2_0000_0001),
        handles_max: 1000,
        plans_max: 256,
        parked: 3,
        channels_max: 64,
        tier: TierId(0x1122),
        lock: LockId([0xee; 16]),
    };
    let engine =
        Engine { compresses: true, decompresses: true, sums: false, efforts: 4, depth: 8, task_max: 65536 };
    (welcome, engine)
}

#[test]
fn a_welcome_has_these_bytes() {
    let (welcome, engine) = welcome();
    let mut builder = MessageBuilder::default();
    builder.welcome(&welcome, &[engine]);
    let bytes = builder.finish(0, 0).to_vec();
    let expected = hex(
        "02 01 00 00 00000000  0100 0100 00001000 0100000002000000 e8030000 00010000 03000000 4000 0000 2211000000000000
         eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee  03 04 0800 00000100",
    );
    assert_eq!(bytes, expected);
    let FromCard { message: CardMessage::Welcome(found, engines), .. } = FromCard::decode(&bytes).unwrap()
    else {
        panic!("not welcome");
    };
    assert_eq!((found, engines.iter().collect::<Vec<_>>()), (welcome, vec![engine]));
    let mut older = bytes.clone();
    older[8] = 2;
    assert_eq!(FromCard::decode(&older), Err(MessageError::Version(2)));
}

/// One message of each kind with entries of fixed length, from either side.
fn messages() -> Vec<Vec<u8>> {
    fn of<E: Entry>(kind: u8, load: u8, entries: &[E]) -> Vec<u8> {
        let mut builder = MessageBuilder::default();
        builder.begin(kind);
        assert!(entries.iter().all(|entry| builder.push(entry)));
        builder.finish(load, 77).to_vec()
    }
    let chunk = ChunkName { volume: VolumeId(1), segment: SegmentId(2), chunk: ChunkId(3) };
    let set = Set {
        slot: Slot(9),
        what: SetWhat::Append,
        epoch: Epoch::new(4),
        chunk,
        channels: [ChannelId(5), ChannelId(6), ChannelId(7), ChannelId(0)],
        members: 3,
        offset: Units(64),
        length: Units(1024),
    };
    let forget = Set {
        what: SetWhat::Forget,
        epoch: None,
        chunk: ChunkName::default(),
        channels: Default::default(),
        members: 0,
        offset: Units(0),
        length: Units(0),
        ..set
    };
    let address = |text: &str| Some(text.parse().unwrap());
    let connect =
        Channel { channel: ChannelId(1), what: ChannelWhat::Connect, address: address("10.0.0.1:4440") };
    let listen = Channel { channel: ChannelId(2), what: ChannelWhat::Listen, address: address("[::1]:0") };
    let close = Channel { channel: ChannelId(0x8001), what: ChannelWhat::Close, address: None };
    let up = ChannelIs {
        channel: ChannelId(1),
        state: ChannelState::Up,
        port: 4440,
        listener: ChannelId(0),
        incarnation: Incarnation(8),
    };
    let accepted =
        ChannelIs { channel: ChannelId(0x8001), state: ChannelState::Accepted, listener: ChannelId(2), ..up };
    let descriptor =
        Descriptor { handle: Handle(3), length: 4096, front: 1, was_parked: true, was_sent: false };
    let hello = Hello { slots: 16, incarnation: Incarnation(3), gate: Some(GateId(4)) };
    vec![
        of(kind::HELLO, 0, &[hello]),
        of(kind::SET, 0, &[set, forget]),
        of(kind::CHANNEL, 0, &[connect, listen, close]),
        of(kind::GATE, 0, &[Gate::Prepare { number: 1 }, Gate::Extend { number: 1, milliseconds: 2970 }]),
        of(kind::MEMORY, 0, &[Memory { handle: Handle(1), length: 65536 }]),
        of(kind::REFUSED, 1, &[RefusedCode::GateClosed]),
        of(kind::HEADERS, 1, &[HeaderEntry::new([0xaa; 64], descriptor)]),
        of(kind::CHANNEL_IS, 1, &[up, accepted]),
        of(kind::GATE_NOTED, 1, &[Noted { number: 1 }]),
        of(kind::BROKEN, 1, &[Broken { slot: Slot(9), channel: ChannelId(5), offset: Units(70) }]),
        of(kind::MEMORY, 1, &[Memory { handle: Handle(1), length: 65536 }]),
    ]
}

/// The message as whoever reads it would write it again.
fn again(bytes: &[u8], definitions: &Definitions) -> Option<Vec<u8>> {
    fn all<'a, E: Entry + 'a>(builder: &mut MessageBuilder, kind: u8, entries: Entries<'a, E>) {
        builder.begin(kind);
        assert!(entries.iter().all(|entry| builder.push(&entry)));
    }
    let mut builder = MessageBuilder::default();
    if let Ok(FromHost { credit, message }) = FromHost::decode(bytes, definitions) {
        match message {
            HostMessage::Hello(hello) => {
                builder.begin(kind::HELLO);
                assert!(builder.push(&hello));
            }
            HostMessage::Plans(plans) => {
                builder.begin(kind::PLANS);
                assert!(plans.iter().all(|(entry, _)| builder.push_plan(&entry)));
            }
            HostMessage::Define(definition) => builder.define(&definition),
            HostMessage::Channel(entries) => all(&mut builder, kind::CHANNEL, entries),
            HostMessage::Set(entries) => all(&mut builder, kind::SET, entries),
            HostMessage::Gate(entries) => all(&mut builder, kind::GATE, entries),
            HostMessage::Memory(entries) => all(&mut builder, kind::MEMORY, entries),
        }
        return Some(builder.finish(0, credit).to_vec());
    }
    let FromCard { load, credit, message } = FromCard::decode(bytes).ok()?;
    match message {
        CardMessage::Welcome(welcome, engines) => {
            builder.welcome(&welcome, &engines.iter().collect::<Vec<_>>());
        }
        CardMessage::Refused(code) => {
            builder.begin(kind::REFUSED);
            assert!(builder.push(&code));
        }
        CardMessage::Headers(entries) => all(&mut builder, kind::HEADERS, entries),
        CardMessage::Done(done) => {
            builder.begin(kind::DONE);
            assert!(done.iter().all(|done| builder.push_done(&done)));
        }
        CardMessage::ChannelIs(entries) => all(&mut builder, kind::CHANNEL_IS, entries),
        CardMessage::GateNoted(entries) => all(&mut builder, kind::GATE_NOTED, entries),
        CardMessage::Broken(entries) => all(&mut builder, kind::BROKEN, entries),
        CardMessage::Memory(entries) => all(&mut builder, kind::MEMORY, entries),
    }
    Some(builder.finish(load, credit).to_vec())
}

#[test]
fn messages_come_back_and_cut_ones_are_refused() {
    let definitions = definitions();
    for bytes in messages() {
        assert_eq!(again(&bytes, &definitions).as_ref(), Some(&bytes));
        for end in 0..bytes.len() {
            assert_eq!(again(&bytes[..end], &definitions), None, "{bytes:?} cut at {end}");
        }
        assert_eq!(again(&[&bytes[..], &[0]].concat(), &definitions), None, "{bytes:?}");
    }
}

#[test]
fn a_hello_a_slot_and_a_channel_have_these_bytes() {
    let messages = messages();
    assert_eq!(messages[0], hex("01 01 00 00 4d000000 0100 0000 10000000 0300000000000000 0400000000000000"));
    let set = "0900 03 01 04000000 0100000000000000 02000000 03000000 0500060007000000 40000000 00040000";
    assert_eq!(messages[1][8..48], hex(set));
    let connect = "0100 0100 5811 0000 00000000000000000000ffff0a000001";
    assert_eq!(messages[2][8..32], hex(connect));
    assert_eq!(messages[6][8 + 24..8 + 40], hex("03000000 00100000 01000000 01000000"));
}

#[test]
fn what_no_half_says_is_refused() {
    let definitions = definitions();
    let messages = messages();
    for (which, at, byte) in [
        (0, 3, 1),
        (0, 1, 2),
        (0, 2, 1),
        (0, 10, 1),
        (1, 8 + 2, 0),
        (1, 8 + 2, 5),
        (1, 8 + 2, 2),
        (1, 8 + 3, 3),
        (1, 8 + 4, 0),
        (1, 8 + 8, 0),
        (1, 8 + 20, 0),
        (1, 8 + 24, 0),
        (1, 8 + 34, 1),
        (1, 48 + 2, 1),
        (1, 48 + 4, 1),
        (1, 48 + 8, 1),
        (2, 8, 0),
        (2, 8 + 1, 0x80),
        (2, 8 + 2, 4),
        (2, 8 + 6, 1),
        (2, 56 + 4, 1),
        (2, 56 + 8, 1),
        (3, 8, 3),
        (3, 8 + 4, 1),
        (5, 8, 4),
        (6, 8 + 36, 4),
        (7, 8, 0),
        (7, 8 + 2, 6),
        (7, 8 + 6, 1),
        (7, 24 + 1, 0),
        (7, 24 + 6, 0),
    ] {
        let mut bytes = messages[which].clone();
        assert_ne!(bytes[at], byte, "message {which} at {at}");
        bytes[at] = byte;
        assert_eq!(again(&bytes, &definitions), None, "message {which} at {at}");
    }
    // What only the other half says.
    assert_eq!(
        FromHost::decode(&messages[8], &definitions)
            .err()
            .map(|error| matches!(error, MessageError::Field { .. })),
        Some(true)
    );
    assert_eq!(FromCard::decode(&messages[0]), Err(MessageError::Kind(kind::HELLO)));
    let long = [&[kind::MEMORY, 0, 0, 0, 0, 0, 0, 0][..], &[0; INLINE_MAX]].concat();
    assert!(matches!(FromCard::decode(&long), Err(MessageError::Length { .. })));
}

#[test]
fn hostile_definitions_are_refused_without_much_work() {
    let none = Definitions::new();
    let base = hex("07 01 00 00 00000000  02 01 08 00 00000000  0e ff 00 00 00000000");
    assert!(FromHost::decode(&base, &none).is_ok());
    for (at, byte) in
        [(9, 0), (9, 2), (9, 255), (10, 7), (12, 1), (16, 0), (16, 15), (17, 6), (18, 1), (19, 1), (20, 1)]
    {
        let mut bytes = base.clone();
        bytes[at] = byte;
        assert!(FromHost::decode(&bytes, &none).is_err(), "{byte} at {at}");
    }
    let mut all = definitions();
    let twice = definition(1, "answer", 8, 0);
    assert_eq!(all.define(twice), Err(PlanError::Defined(PlanId(1))));
    for id in 0..=255 {
        let _ = all.define(definition(id, "answer", 8, 0));
    }
    assert!((0..=255).all(|id| all.get(PlanId(id)).is_some()));
}

#[test]
fn a_message_that_is_full_takes_no_more() {
    let mut builder = MessageBuilder::default();
    builder.begin(kind::HEADERS);
    let descriptor = Descriptor { handle: Handle(3), length: 0, front: 1, was_parked: false, was_sent: true };
    let entry = HeaderEntry::new([0; 64], descriptor);
    while builder.push(&entry) {}
    assert_eq!(usize::from(builder.count()), (INLINE_MAX - MESSAGE_LEN) / 64);
    assert!(FromCard::decode(builder.finish(0, 0)).is_ok());
    builder.begin(kind::GATE_NOTED);
    while builder.push(&Noted { number: 1 }) {}
    assert_eq!(builder.count(), 255);
    assert!(FromCard::decode(builder.finish(0, 0)).is_ok());
}

fn steps() -> impl Strategy<Value = Step> {
    let registers = || (0..Register::END).prop_map(register);
    let optional = || proptest::option::of(registers());
    prop_oneof![
        Just(Step::Each),
        Just(Step::EndEach),
        (registers(), registers(), any::<bool>()).prop_map(|(from, into, copies)| {
            Step::Compress { from, into, otherwise: if copies { Otherwise::Copy } else { Otherwise::Fail } }
        }),
        (registers(), registers()).prop_map(|(from, into)| Step::Copy { from, into }),
        registers().prop_map(|of| Step::Checksum { of }),
        optional().prop_map(|payload| Step::Send { payload }),
        Just(Step::Merge { answers: Answers::All }),
        Just(Step::Merge { answers: Answers::First }),
        registers().prop_map(|into| Step::Fetch { into }),
        (registers(), registers()).prop_map(|(from, into)| Step::Decode { from, into }),
        registers().prop_map(|into| Step::Zero { into }),
        registers().prop_map(|from| Step::ToHost { from }),
        registers().prop_map(|into| Step::FromHost { into }),
        registers().prop_map(|what| Step::Keep { what }),
        optional().prop_map(|payload| Step::Answer { payload }),
    ]
}

proptest! {
    /// Plans that are plans come back, and no plan reads what nothing has written: judged by another reading of the steps.
    #[test]
    fn plans_come_back(steps in proptest::collection::vec(steps(), 1..14), entry_len: u8, each_len: u8) {
        let Ok(plan) = Plan::new(steps.clone()) else { return Ok(()) };
        let mut written = vec![0u8];
        for step in &steps {
            let (reads, writes) = match *step {
                Step::Compress { from, into, .. } | Step::Copy { from, into } | Step::Decode { from, into } => {
                    (Some(from), Some(into))
                }
                Step::Checksum { of } => (Some(of), None),
                Step::Send { payload } => (payload, None),
                Step::ToHost { from } => (Some(from), None),
                Step::Keep { what } => (Some(what), None),
                Step::Fetch { into } | Step::Zero { into } | Step::FromHost { into } => (None, Some(into)),
                Step::Answer { payload } => (payload.filter(|payload| payload.number() != 1), None),
                Step::Each | Step::EndEach | Step::Merge { .. } => (None, None),
            };
            prop_assert!(reads.is_none_or(|register| written.contains(&register.number())));
            written.extend(writes.map(Register::number));
        }
        let compressed = steps.iter().filter(|step| matches!(step, Step::Compress { .. })).count();
        prop_assert!(compressed <= 1);
        let sends = steps.iter().filter(|step| matches!(step, Step::Send { .. })).count();
        let merges = steps.iter().filter(|step| matches!(step, Step::Merge { .. })).count();
        prop_assert!(merges <= sends && (sends == 0 || merges > 0));
        let Ok(definition) = Definition::new(PlanId(3), plan, entry_len, each_len) else {
            prop_assert!(entry_len < 8);
            return Ok(());
        };
        let mut builder = MessageBuilder::default();
        builder.define(&definition);
        let definitions = Definitions::new();
        let bytes = builder.finish(0, 0);
        let decoded = FromHost::decode(bytes, &definitions).unwrap();
        prop_assert_eq!(decoded.message, HostMessage::Define(definition));
    }

    #[test]
    fn changed_messages_are_refused_or_come_back(
        which in 0..11usize,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = messages()[which].clone();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let definitions = definitions();
        if let Some(again) = again(&bytes, &definitions) {
            prop_assert_eq!(again, bytes);
        }
    }

    #[test]
    fn any_bytes_are_refused_or_come_back(kind in 0..16u8, count in 0..8u8, bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let definitions = definitions();
        let bytes = [&[kind, count, 0, 0, 1, 2, 3, 4], &bytes[..]].concat();
        if let Some(again) = again(&bytes, &definitions) {
            prop_assert_eq!(again, bytes);
        }
    }
}
