//! Both halves of a port, over real rings: the host's says what the card's takes, and believes what that says.

#![allow(clippy::unwrap_used)] // A test stops at the first surprise.

mod card_rig;

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use card_rig::{ANSWER, CALL, PACK, Rig, Said, WRITE, address, ask, config, definitions, request, set};
use ob_split::host::{HostEnds, Port, PortEvent, PortOptions, PostError, RingEnds};
use ob_split::wire::{
    Channel, ChannelId, ChannelState, ChannelWhat, CompletionStatus, HEADER_LEN, Handle, PlanEntry, PlanId,
    SetWhat, Slot,
};

/// What the host was told, in a form that lasts.
#[derive(Debug, PartialEq)]
enum Told {
    Header(Handle, bool),
    Done(Handle, CompletionStatus, usize),
    Channel(ChannelId, ChannelState),
    Broken(Slot, ChannelId),
}

/// Opens a port at the rig's card; how many messages were parked.
fn open(rig: &mut Rig) -> (Port<impl HostEnds + use<>>, u32) {
    rig.open(64 << 10);
    let (sender, receiver) = rig.ends();
    let sleeper = |_: &[(&AtomicU64, u32)], _: Option<Duration>| {};
    let mut port =
        Port::open(RingEnds::new(sender, receiver, None, sleeper), &PortOptions::default()).unwrap();
    rig.run();
    let Some(PortEvent::Welcome(welcome)) = port.next_event().unwrap() else { panic!() };
    assert_eq!((welcome.handles_max, welcome.plans_max), (config().handles_max, config().plans_max));
    assert_eq!(port.engines().len(), 1);
    for definition in definitions() {
        port.define(&definition).unwrap();
    }
    (port, welcome.parked)
}

fn told(rig: &mut Rig, port: &mut Port<impl HostEnds>) -> Vec<Told> {
    let mut all = Vec::new();
    for _ in 0..4 {
        port.flush().unwrap();
        rig.run();
        assert_eq!(rig.closed, None);
        while let Some(event) = port.next_event().unwrap() {
            all.push(match event {
                PortEvent::Header(header) => {
                    Told::Header(header.descriptor().handle, header.descriptor().was_parked)
                }
                PortEvent::Done(done) => {
                    let completion = done.completion;
                    Told::Done(completion.handle, completion.status, done.reply.map_or(0, <[u8]>::len))
                }
                PortEvent::Channel(is) => Told::Channel(is.channel, is.state),
                PortEvent::Broken(broken) => Told::Broken(broken.slot, broken.channel),
                other => panic!("{other:?}"),
            });
        }
    }
    all
}

fn channel(number: u16, what: ChannelWhat) -> Channel {
    let at = (what != ChannelWhat::Close).then(|| address(number));
    Channel { channel: ChannelId(number), what, address: at }
}

/// Connects channels 1 to 3, and makes them the members of the chunk in slot 1.
fn connect(rig: &mut Rig, port: &mut Port<impl HostEnds>) {
    for number in 1..=3 {
        port.channel(&channel(number, ChannelWhat::Connect)).unwrap();
    }
    port.set(&set(1, SetWhat::Append, &[1, 2, 3])).unwrap();
    let up = (1..=3).map(|number| Told::Channel(ChannelId(number), ChannelState::Up)).collect::<Vec<_>>();
    assert_eq!(told(rig, port), up);
}

fn post(port: &mut Port<impl HostEnds>, plan: PlanId, handle: Handle) -> Result<(), PostError> {
    let (argument, arguments) = if plan == ANSWER { (0, &[][..]) } else { (1, &[0; 8][..]) };
    port.post(&PlanEntry { plan, argument, slot: Slot(u16::from(plan != ANSWER)), handle, arguments })
}

#[test]
fn messages_are_written_to_peers_and_answered() {
    let mut rig = Rig::new(config());
    let (mut port, parked) = open(&mut rig);
    assert_eq!(parked, 0);
    connect(&mut rig, &mut port);
    let keys = [WRITE, PACK].map(|_| rig.arrive(&[5; 4096], 0));
    assert_eq!(told(&mut rig, &mut port), [], "nothing was granted");
    port.grant(1).unwrap();
    let headers = told(&mut rig, &mut port);
    let [Told::Header(first, false)] = headers[..] else { panic!("{headers:?}") };
    port.grant(10).unwrap();
    let headers = told(&mut rig, &mut port);
    let [Told::Header(second, false)] = headers[..] else { panic!("{headers:?}") };
    post(&mut port, WRITE, first).unwrap();
    post(&mut port, PACK, second).unwrap();
    assert_eq!(told(&mut rig, &mut port), []);
    rig.all_say(0);
    let good = |handle| Told::Done(handle, CompletionStatus::Good, 0);
    assert_eq!(told(&mut rig, &mut port), [good(first), good(second)]);
    assert_eq!(rig.answers(), keys.map(|key| (key, Said::Status(0))));
    assert_eq!(post(&mut port, ANSWER, first), Err(PostError::UnknownHandle(first)));
    rig.assert_empty();
}

#[test]
fn calls_bring_their_replies() {
    let mut rig = Rig::new(config());
    let (mut port, _) = open(&mut rig);
    connect(&mut rig, &mut port);
    let own = Handle::of_host(7);
    let arguments = request(ask::HELLO).encode();
    port.post(&PlanEntry { plan: CALL, argument: 0, slot: Slot(2), handle: own, arguments: &arguments })
        .unwrap();
    assert_eq!(told(&mut rig, &mut port), []);
    assert_eq!(rig.peer_says(2, 0), 1);
    assert_eq!(told(&mut rig, &mut port), [Told::Done(own, CompletionStatus::Good, HEADER_LEN)]);
}

#[test]
fn the_next_host_is_offered_what_was_parked() {
    let mut rig = Rig::new(config());
    let (mut port, _) = open(&mut rig);
    port.grant(2).unwrap();
    let keys = [1, 2].map(|_| rig.arrive(&[5; 512], 0));
    assert_eq!(told(&mut rig, &mut port).len(), 2);
    rig.detach();
    drop(port);
    let (mut port, parked) = open(&mut rig);
    assert_eq!(parked, 2);
    let (third, _) = (rig.arrive(&[5; 512], 0), rig.arrive(&[5; 512], 0));
    assert_eq!(told(&mut rig, &mut port), [], "those that were parked wait for credit as others do");
    port.grant(3).unwrap();
    let headers = told(&mut rig, &mut port);
    let [Told::Header(first, true), Told::Header(second, true), Told::Header(new, false)] = headers[..]
    else {
        panic!("{headers:?}")
    };
    for handle in [first, second, new] {
        post(&mut port, ANSWER, handle).unwrap();
    }
    assert_eq!(told(&mut rig, &mut port).len(), 3);
    assert_eq!(rig.answers(), [keys[0], keys[1], third].map(|key| (key, Said::Status(0))));
}

#[test]
fn channels_end_once_and_their_numbers_come_back() {
    let mut rig = Rig::new(config());
    let (mut port, _) = open(&mut rig);
    connect(&mut rig, &mut port);
    rig.card.net_mut().cut(2);
    let gone = |number| Told::Channel(ChannelId(number), ChannelState::Gone);
    assert!(told(&mut rig, &mut port).contains(&gone(2)));
    port.channel(&channel(2, ChannelWhat::Close)).unwrap();
    port.channel(&channel(3, ChannelWhat::Close)).unwrap();
    assert!(told(&mut rig, &mut port).contains(&gone(3)));
    for number in [2, 3, 4] {
        port.channel(&channel(number, ChannelWhat::Connect)).unwrap();
    }
    assert_eq!(port.channel(&channel(5, ChannelWhat::Connect)), Err(PostError::TooMany));
    let told = told(&mut rig, &mut port);
    assert!(
        [2, 3].iter().all(|number| told.contains(&Told::Channel(ChannelId(*number), ChannelState::Up))),
        "{told:?}"
    );
}
