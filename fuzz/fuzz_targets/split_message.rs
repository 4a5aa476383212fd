//! Any bytes as messages between the halves of a port, seen from either side: refused, or the same after a round trip. Plans that are
//! defined stay so for the messages that follow.

#![no_main]

use ob_split::wire::{
    CardMessage, Definitions, Entries, Entry, FromCard, FromHost, HEADER_LEN, Header, HostMessage, MessageBuilder, Plan,
    STEPS_MAX, kind,
};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let mut definitions = Definitions::new();
    let mut rest = input;
    // Messages, each behind the two bytes of its length.
    while let Some((length, behind)) = rest.split_first_chunk::<2>() {
        let length = usize::from(u16::from_le_bytes(*length)).min(behind.len());
        let (message, behind) = behind.split_at(length);
        rest = behind;
        check_card(message);
        if let Some(definition) = check_host(message, &definitions) {
            let _ = definitions.define(definition);
        }
        check_header(message);
    }
});

fn all<E: Entry>(builder: &mut MessageBuilder, kind: u8, entries: &Entries<'_, E>) {
    builder.begin(kind);
    assert!(entries.iter().all(|entry| builder.push(&entry)));
}

fn check_host(bytes: &[u8], definitions: &Definitions) -> Option<ob_split::wire::Definition> {
    let FromHost { credit, message } = FromHost::decode(bytes, definitions).ok()?;
    let mut builder = MessageBuilder::default();
    let mut defined = None;
    match message {
        HostMessage::Hello(hello) => {
            builder.begin(kind::HELLO);
            assert!(builder.push(&hello));
        }
        HostMessage::Plans(plans) => {
            builder.begin(kind::PLANS);
            assert!(plans.iter().all(|(plan, _)| builder.push_plan(&plan)));
        }
        HostMessage::Define(definition) => {
            builder.define(&definition);
            assert!(definition.plan().steps().len() <= STEPS_MAX);
            assert_eq!(Plan::new(definition.plan().steps().to_vec()).as_ref(), Ok(definition.plan()));
            defined = Some(definition);
        }
        HostMessage::Channel(entries) => all(&mut builder, kind::CHANNEL, &entries),
        HostMessage::Set(entries) => all(&mut builder, kind::SET, &entries),
        HostMessage::Gate(entries) => all(&mut builder, kind::GATE, &entries),
        HostMessage::Memory(entries) => all(&mut builder, kind::MEMORY, &entries),
    }
    assert_eq!(builder.finish(0, credit), bytes);
    defined
}

fn check_card(bytes: &[u8]) {
    let Ok(FromCard { load, credit, message }) = FromCard::decode(bytes) else { return };
    let mut builder = MessageBuilder::default();
    match message {
        CardMessage::Welcome(welcome, engines) => builder.welcome(&welcome, &engines.iter().collect::<Vec<_>>()),
        CardMessage::Refused(code) => {
            builder.begin(kind::REFUSED);
            assert!(builder.push(&code));
        }
        CardMessage::Headers(entries) => all(&mut builder, kind::HEADERS, &entries),
        CardMessage::Done(done) => {
            builder.begin(kind::DONE);
            assert!(done.iter().all(|done| builder.push_done(&done)));
        }
        CardMessage::ChannelIs(entries) => all(&mut builder, kind::CHANNEL_IS, &entries),
        CardMessage::GateNoted(entries) => all(&mut builder, kind::GATE_NOTED, &entries),
        CardMessage::Broken(entries) => all(&mut builder, kind::BROKEN, &entries),
        CardMessage::Memory(entries) => all(&mut builder, kind::MEMORY, &entries),
    }
    assert_eq!(builder.finish(load, credit), bytes);
}

fn check_header(bytes: &[u8]) {
    let Some(header) = bytes.get(..HEADER_LEN) else { return };
    if let Ok(header) = Header::decode(header, *b"OX") {
        assert_eq!(header.encode(), bytes[..HEADER_LEN]);
    }
}
