use proptest::prelude::*;

use super::*;
use crate::wire::REPLY_PAYLOAD_MAX;

#[derive(Clone, Debug)]
enum Say {
    Read(u8),
    Part,
    Set(u16),
    Extend,
    Flush,
    Drain,
}

fn say() -> impl Strategy<Value = Say> {
    prop_oneof![
        4 => (0u8..=254).prop_map(Say::Read),
        8 => Just(Say::Part),
        3 => any::<u16>().prop_map(Say::Set),
        2 => Just(Say::Extend),
        2 => Just(Say::Flush),
        1 => Just(Say::Drain),
    ]
}

proptest! {
    #[test]
    fn messages_have_room_for_what_is_in_them_and_nothing_is_lost(
        steps in prop::collection::vec(say(), 1..300),
        requests in 1usize..8,
        waiting_max in 0usize..30_000,
    ) {
        let sizes = QueueSizes { requests, ..QueueSizes::default() };
        let options = PortOptions { waiting_max, ..OPTIONS };
        let (mut port, card) = open_with(sizes, &options);
        let (mut definitions, mut expected, mut all) = (Definitions::new(), Vec::new(), Vec::new());
        for id in [READ, PART] {
            port.define(&definition(id)).unwrap();
            port.flush().unwrap();
            all.extend(heard(&card, &mut definitions).0);
            expected.push(format!("{id:?}"));
        }
        let mut own = OF_HOST;
        for step in steps {
            let arguments = vec![7; 16 * 254];
            let (said, text) = match step {
                Say::Flush => { port.flush().unwrap(); continue; }
                Say::Drain => {
                    all.extend(heard(&card, &mut definitions).0);
                    // Its plans are over, too.
                    for handle in OF_HOST..own {
                        prop_assert!(card.send(&good(handle)));
                        prop_assert!(port.next_event().unwrap().is_some());
                    }
                    own = OF_HOST;
                    continue;
                }
                Say::Read(runs) => {
                    let entry = plan(READ, runs, own, &arguments[..16 * usize::from(runs)]);
                    (port.post(&entry), format!("{entry:?}"))
                }
                Say::Part => {
                    let entry = plan(PART, 0, own, &arguments[..16]);
                    (port.post(&entry), format!("{entry:?}"))
                }
                Say::Set(slot) => (port.set(&set(slot)), format!("{:?}", set(slot))),
                Say::Extend => {
                    let gate = Gate::Extend { number: 1, milliseconds: 2 };
                    (port.gate(&gate), format!("{gate:?}"))
                }
            };
            prop_assert!(port.waiting_len() <= waiting_max.max(INLINE_MAX));
            match said {
                Ok(()) => {
                    own += u32::from(matches!(step, Say::Read(_) | Say::Part));
                    expected.push(text);
                }
                Err(error) => prop_assert!(matches!(error, PostError::Full | PostError::TooMany)),
            }
        }
        while { port.flush().unwrap(); port.wants_room() } {
            all.extend(heard(&card, &mut definitions).0);
        }
        all.extend(heard(&card, &mut definitions).0);
        prop_assert_eq!(all, expected);
    }

    #[test]
    fn as_many_messages_come_as_were_granted_and_not_one_more(
        first in prop_oneof![Just(0u32), Just(u32::MAX - 5), any::<u32>()],
        steps in prop::collection::vec((0u32..70, 0u32..20), 1..40),
    ) {
        let (mut port, card) = open();
        port.outbox.count_from(first);
        port.received = first;
        let (mut credit, mut handle, mut unused) = (first, 0, 0);
        for (grant, headers) in steps {
            let granted = port.grant(grant);
            prop_assert_eq!(granted.is_ok(), unused + grant <= OPTIONS.receives_max);
            if granted.is_ok() {
                unused += grant;
                port.flush().unwrap();
                if let Some(bytes) = card.take() {
                    let told = FromHost::decode(&bytes, &Definitions::new()).unwrap().credit;
                    prop_assert!(told.wrapping_sub(credit) == grant && grant > 0);
                    credit = told;
                }
            }
            for _ in 0..headers {
                handle += 1;
                let told = told(&mut port, &card, &[message(kind::HEADERS, &[header(handle, 0)])]);
                if unused == 0 {
                    prop_assert_eq!(told, Err(PortError::NoCredit));
                    return Ok(());
                }
                prop_assert_eq!(told, Ok(1));
                unused -= 1;
                prop_assert_eq!(port.granted(), unused);
                port.give_back(Handle(handle)).unwrap();
                port.flush().unwrap();
                prop_assert!(card.take().is_some());
            }
        }
    }

    #[test]
    fn any_bytes_of_the_card_are_an_error_or_legal_events(
        messages in prop::collection::vec(hostile(), 1..40),
        is_greeted in any::<bool>(),
    ) {
        let (mut port, card) = if is_greeted {
            let (mut port, card) = open();
            port.grant(20).unwrap();
            port.set(&set(1)).unwrap();
            port.gate(&Gate::Prepare { number: 1 }).unwrap();
            port.channel(&channel(1, ChannelWhat::Connect)).unwrap();
            port.channel(&channel(2, ChannelWhat::Listen)).unwrap();
            for number in 0..4 {
                port.post(&plan(PART, 0, OF_HOST + number, &[0; 16])).unwrap();
            }
            port.flush().unwrap();
            while card.take().is_some() {}
            (port, card)
        } else {
            let (ends, card) = queues(QueueSizes::default());
            (Port::open(ends, &OPTIONS).unwrap(), card)
        };
        let mut is_open = is_greeted;
        let (mut headers, mut ends, mut handles) = (0, 0, std::collections::HashSet::new());
        for bytes in messages {
            prop_assert!(card.send(&bytes));
            loop {
                let event = match port.next_event() {
                    Ok(Some(event)) => event,
                    Ok(None) => break,
                    Err(error) => {
                        prop_assert_eq!(port.next_event(), Err(error));
                        prop_assert_eq!(port.flush(), Err(error));
                        prop_assert_eq!(port.set(&set(1)), Err(PostError::NotOpen));
                        return Ok(());
                    }
                };
                let is_answer = matches!(event, PortEvent::Welcome(_) | PortEvent::Refused(_));
                prop_assert_ne!(is_answer, is_open);
                match event {
                    PortEvent::Welcome(_) | PortEvent::Refused(_) => is_open = true,
                    PortEvent::Header(header) => {
                        headers += 1;
                        prop_assert!(headers <= 20);
                        prop_assert!(header.descriptor().length <= WELCOME.payload_max);
                        prop_assert!(handles.insert(header.descriptor().handle));
                    }
                    PortEvent::Memory(memory) => {
                        prop_assert!(handles.insert(memory.handle) && !memory.handle.is_of_host());
                    }
                    PortEvent::Done(done) => {
                        ends += u32::from(!done.completion.has_more);
                        prop_assert!(ends <= 4);
                        prop_assert!((OF_HOST..OF_HOST + 4).contains(&done.completion.handle.0));
                        let reply = done.reply.map_or(0, <[u8]>::len);
                        prop_assert!(reply <= HEADER_LEN + REPLY_PAYLOAD_MAX);
                    }
                    PortEvent::Broken(broken) => prop_assert_eq!(broken.slot, Slot(1)),
                    PortEvent::Noted(noted) => prop_assert_eq!(noted.number, 1),
                    PortEvent::Channel(_) => {}
                }
                prop_assert!(handles.len() <= 80);
            }
        }
    }
}

/// What a card may send: now and then legal, often nearly.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let status = prop_oneof![Just(CompletionStatus::Good), Just(CompletionStatus::GivenUp)];
    let of_done = (0u32..6, status, any::<bool>(), prop::option::of(0usize..40));
    let of_done = of_done.prop_map(|(number, status, has_more, reply)| {
        let reply = reply.map(|len| vec![1; HEADER_LEN + len]);
        let offset = reply.as_ref().map_or(0, |reply| (reply.len() - HEADER_LEN) as u32);
        let completion = Completion { has_more, offset, ..completion(OF_HOST + number, status) };
        done(&[(completion, reply.as_deref())])
    });
    let state = prop::sample::select(ChannelState::ALL.to_vec());
    let of_channel = (1u16..4, state).prop_map(|(number, state)| {
        let is_of_accepted = matches!(state, ChannelState::Accepted | ChannelState::Ended);
        let number = if is_of_accepted { number + crate::wire::ACCEPTED_FROM } else { number };
        channel_is(number, state)
    });
    let legal = prop_oneof![
        prop::collection::vec((0u32..30, 0u32..1 << 20), 0..5).prop_map(|headers| {
            message(
                kind::HEADERS,
                &headers.iter().map(|(handle, len)| header(*handle, *len)).collect::<Vec<_>>(),
            )
        }),
        (0u32..60).prop_map(|handle| message(kind::MEMORY, &[Memory { handle: Handle(handle), length: 1 }])),
        of_done,
        of_channel,
        (0u64..3).prop_map(|number| message(kind::GATE_NOTED, &[Noted { number }])),
        (0u16..3).prop_map(|slot| {
            message(kind::BROKEN, &[Broken { slot: Slot(slot), channel: ChannelId(1), offset: Units(0) }])
        }),
        Just(welcome(&WELCOME, &[])),
        Just(message(kind::REFUSED, &[RefusedCode::Taken])),
    ];
    let damaged = (legal, prop::option::weighted(0.2, (any::<prop::sample::Index>(), any::<u8>())));
    let damaged = damaged.prop_map(|(mut bytes, damage)| {
        if let Some((at, byte)) = damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes
    });
    prop_oneof![9 => damaged, 1 => prop::collection::vec(any::<u8>(), 0..100)]
}
