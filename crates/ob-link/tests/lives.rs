//! A host across a network that may be dead: nothing of it begins while that is not known, because its next life may be
//! here already.

#![allow(clippy::unwrap_used)] // A test stops at the first surprise.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use crate::common::raw::{Raw, hello};
use crate::common::watched::WatchedCard;
use crate::common::{ECHO, Echo, attach, config, observe, push, take};
use crate::pair::Pair;

use ob_core::{AttachmentId, Instant};
use ob_io::{Config, Reactor, Wait};
use ob_link::{CardLink, CardService, GroupKey, GroupSizes, LinkKind, Listen, Over};
use ob_ring::{Armed, Batch, CardSender, ReceiveError};
use ob_wire_link::frame::{FRAME_MAX, Frame, Hello, Resume, VERSION, Welcome};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};

/// Notes what it is told of the host.
#[derive(Default)]
struct Told(Vec<bool>);

impl CardService for Told {
    fn open(&mut self, _: GroupKey, _: u32) -> Result<(), String> {
        Ok(())
    }

    fn requests(&mut self, _: GroupKey, _: Batch, _: &mut CardSender) {}

    fn responses(&mut self, _: GroupKey, _: &mut CardSender) {}

    fn suspended(&mut self, attachment: AttachmentId, is_suspended: bool) {
        assert_eq!(attachment, AttachmentId(1));
        self.0.push(is_suspended);
    }

    fn closed(&mut self, _: GroupKey) {}

    fn channel(&mut self, _: AttachmentId, _: &[u8]) {}
}

/// What is no socket is somebody's file, though nobody answers there either.
#[test]
fn only_an_abandoned_socket_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let reactor = Reactor::new(&Config::default()).unwrap();
    let path = directory.path().join("link.sock");
    let abandoned = SocketAddrUnix::new(&path).unwrap();
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    rustix::net::bind(&socket, &abandoned).unwrap();
    drop(socket);
    drop(CardLink::new(&reactor.handle(), config(vec![Listen::Unix(path)])).unwrap());
    let file = directory.path().join("disk.img");
    std::fs::write(&file, b"data").unwrap();
    assert!(CardLink::new(&reactor.handle(), config(vec![Listen::Unix(file.clone())])).is_err());
    assert_eq!(std::fs::read(&file).unwrap(), b"data");
}

/// A host's thread that reads a response when the card ends the attachment finds out, however late it hears of the end.
#[test]
fn a_response_whose_memory_is_gone_is_none() {
    let card = WatchedCard::start(|_| {});
    let link = attach(card.unix());
    let group = link.open_group(ECHO, 4096, 4096).unwrap();
    push(&group, b"asked", Some(&[7; 512]));
    let claimed = observe("the answer", || group.receiver.receive().unwrap());
    assert_eq!(claimed.check(), Ok(()));
    drop(link);
    let mut payload = [7; 512];
    observe("the memory is taken back", || {
        claimed.payload(0, &mut payload);
        // As soon as any of it is gone.
        (payload != [7; 512]).then(|| assert_eq!(claimed.check(), Err(ReceiveError::Closed)))
    });
}

#[test]
fn a_host_that_lives_is_served_again_when_it_has_said_so() {
    let mut pair = Pair::new(LinkKind::Tcp, Told::default());
    let _group = pair.open_group(1, 4096, 4096);
    pair.card.doubt();
    // An answer to an older question says nothing about now.
    pair.card.handle(&Frame::Pong { nonce: 0 }, &mut pair.service).unwrap();
    let _ = pair.card.poll(&mut pair.service, &mut Vec::new());
    assert_eq!(pair.service.0, [true]);
    pair.run_until_asleep();
    assert_eq!(pair.service.0, [true, false]);
    pair.card.disconnected();
    let _ = pair.card.poll(&mut pair.service, &mut Vec::new());
    assert_eq!(pair.service.0, [true, false, true], "who is away may be dead");
    // Whoever comes back is asked too: that it would come back was said before, and perhaps long before.
    pair.host.disconnected();
    pair.host.reconnect();
    let hello = std::mem::take(pair.host.outgoing());
    let Frame::Hello(hello) = Frame::decode(&hello).unwrap() else { panic!("a host says hello first") };
    pair.card.resume(hello.resume.unwrap().received).unwrap();
    let _ = pair.card.poll(&mut pair.service, &mut Vec::new());
    assert_eq!(pair.service.0, [true, false, true]);
    pair.run_until_asleep();
    assert_eq!(pair.service.0, [true, false, true, false]);
    pair.card.disconnected();
    let _ = pair.card.poll(&mut pair.service, &mut Vec::new());
    pair.card.shut_down(&mut pair.service);
    assert_eq!(pair.service.0.last(), Some(&false), "nothing has to be remembered of who is gone");
}

/// However often there is a reason to doubt a host, it has one question to answer, and another one if that came too early.
#[test]
fn a_question_is_not_asked_again_before_it_is_answered() {
    let mut pair = Pair::new(LinkKind::Tcp, Told::default());
    let _group = pair.open_group(1, 4096, 4096);
    pair.card.doubt();
    let first = pair.card.asked().unwrap();
    pair.card.doubt();
    pair.card.doubt();
    assert_eq!(pair.card.asked(), Some(first));
    pair.card.handle(&Frame::Pong { nonce: first }, &mut pair.service).unwrap();
    let second = pair.card.asked().unwrap();
    assert_ne!(second, first, "it may have died since it was asked");
    pair.card.handle(&Frame::Pong { nonce: first }, &mut pair.service).unwrap();
    assert_eq!(pair.card.asked(), Some(second));
    pair.card.handle(&Frame::Pong { nonce: second }, &mut pair.service).unwrap();
    assert_eq!(pair.card.asked(), None);
}

/// A card that is moved on by hand, at times of the test's own.
struct Stepped {
    reactor: Reactor,
    link: CardLink,
    service: Echo,
    now: Instant,
}

impl Stepped {
    fn turn(&mut self) {
        let mut events = Vec::new();
        self.reactor.turn(Wait::Poll, &mut events);
        for event in &events {
            self.link.handle(event);
        }
        let _ = self.link.poll(self.now, &mut self.service);
    }

    /// Turns until so many hosts are attached, and then some more: no others are.
    fn turn_until_attached(&mut self, count: usize) {
        observe("a host attached", || {
            self.turn();
            (self.link.host_count() >= count).then_some(())
        });
        (0..20).for_each(|_| self.turn());
        assert_eq!(self.link.host_count(), count);
    }

    /// A host answers what it was asked.
    fn answer(&mut self, host: &mut Raw) {
        let nonce = self.hear(host, |frame| match frame {
            Frame::Ping { nonce } => Some(*nonce),
            _ => None,
        });
        host.send(&Frame::Pong { nonce }).unwrap();
    }

    /// Turns until a host has heard what is wanted of it.
    fn hear<T>(&mut self, host: &mut Raw, wanted: impl Fn(&Frame<'_>) -> Option<T>) -> T {
        observe("a frame", || {
            self.turn();
            heard(host, &wanted)
        })
    }
}

/// What is wanted of the frames that have come; others are passed over.
fn heard<T>(host: &mut Raw, wanted: &impl Fn(&Frame<'_>) -> Option<T>) -> Option<T> {
    let Raw::Tcp(stream, input) = host else { panic!("nobody else is asked") };
    let mut bytes = [0; 4096];
    stream.set_nonblocking(true).unwrap();
    let len = stream.read(&mut bytes).unwrap_or(0);
    stream.set_nonblocking(false).unwrap();
    input.extend_from_slice(&bytes[..len]);
    while let Some(len) = Frame::length(input, FRAME_MAX).unwrap().filter(|len| input.len() >= *len) {
        let frame: Vec<u8> = input.drain(..len).collect();
        let found = wanted(&Frame::decode(&frame).unwrap());
        if found.is_some() {
            return found;
        }
    }
    None
}

/// Hosts of this machine that say hello.
fn arrive(directory: &Path, count: usize) -> Vec<Raw> {
    let arrive = |_| {
        let mut newcomer = Raw::unix(&directory.join("link.sock"));
        newcomer.send(&Frame::Hello(hello(VERSION))).unwrap();
        newcomer
    };
    (0..count).map(arrive).collect()
}

/// A card that waits for hosts, one that is attached and has a group, and where others can attach.
fn stepped(directory: &Path) -> (Stepped, Raw, Welcome) {
    let reactor = Reactor::new(&Config::default()).unwrap();
    let unix = Listen::Unix(directory.join("link.sock"));
    let listen = vec![unix, Listen::Tcp("127.0.0.1:0".parse().unwrap())];
    let link = CardLink::new(&reactor.handle(), config(listen)).unwrap();
    let (tcp, now) = (link.tcp_address().unwrap(), reactor.handle().now());
    let mut card = Stepped { reactor, link, service: Echo::default(), now };
    let mut old = Raw::tcp(tcp);
    old.send(&Frame::Hello(hello(VERSION))).unwrap();
    let welcome = card.hear(&mut old, |frame| match frame {
        Frame::Welcome(welcome) => Some(*welcome),
        _ => None,
    });
    let sizes = GroupSizes::rings(4096, 4096);
    old.send(&Frame::OpenGroup { request: 1, service: ECHO, sizes }).unwrap();
    card.hear(&mut old, |frame| matches!(frame, Frame::GroupOpened(_)).then_some(()));
    (card, old, welcome)
}

/// Who comes back again and again, and answers nothing, does not keep others from attaching.
#[test]
fn nobody_waits_for_a_host_that_comes_back() {
    let directory = tempfile::tempdir().unwrap();
    let (mut card, old, welcome) = stepped(directory.path());
    let tcp = card.link.tcp_address().unwrap();
    let resume = Resume {
        attachment: welcome.attachment,
        secret: welcome.resume_secret,
        received: 0,
        card_incarnation: welcome.card_incarnation,
    };
    let (mut lives, mut newcomers) = (vec![old], Vec::new());
    for attached in 2..5 {
        let mut again = Raw::tcp(tcp);
        again.send(&Frame::Hello(Hello { resume: Some(resume), ..hello(VERSION) })).unwrap();
        card.hear(&mut again, |frame| matches!(frame, Frame::Ping { .. }).then_some(()));
        lives.push(again);
        let mut newcomer = Raw::tcp(tcp);
        newcomer.send(&Frame::Hello(hello(VERSION))).unwrap();
        newcomers.push(newcomer);
        card.turn_until_attached(attached);
    }
}

/// Who attaches again and again, faster than an answer comes, does not keep others from being served.
#[test]
fn between_two_newcomers_every_host_that_lives_is_served() {
    let directory = tempfile::tempdir().unwrap();
    let (mut card, mut old, _) = stepped(directory.path());
    let (socket, tcp) = (directory.path().join("link.sock"), card.link.tcp_address().unwrap());
    let mut newcomers: Vec<Raw> =
        (0..6).map(|index| if index % 2 == 0 { Raw::tcp(tcp) } else { Raw::unix(&socket) }).collect();
    for newcomer in &mut newcomers {
        newcomer.send(&Frame::Hello(hello(VERSION))).unwrap();
    }
    for attached in 2..5 {
        card.turn_until_attached(attached);
        assert_eq!(card.service.suspended.len(), 1, "it may be the last life of the newcomer");
        let due = card.link.next_due().unwrap();
        assert!(
            due > card.now && due <= card.now + Duration::from_millis(100),
            "others wait, but not for ever"
        );
        card.answer(&mut old);
        observe("it is served", || {
            card.turn();
            card.service.suspended.is_empty().then_some(())
        });
        assert_eq!(card.link.host_count(), attached, "nobody came before that");
        let armed = card.link.arm(card.now, &mut card.service);
        assert_eq!(armed, Armed::NotYet, "now the next one can");
    }
    card.turn_until_attached(5);
    // Who says nothing keeps others waiting once.
    card.now = card.now + Duration::from_millis(100);
    card.turn_until_attached(7);
    // What it says in the end is older than those, so it is asked again.
    card.answer(&mut old);
    (0..20).for_each(|_| card.turn());
    assert_eq!(card.service.suspended.len(), 1);
    card.answer(&mut old);
    observe("it is served", || {
        card.turn();
        card.service.suspended.is_empty().then_some(())
    });
}

/// A host that is far away is served too, however many attach: others wait for as long as it takes to answer.
#[test]
fn a_host_that_takes_long_to_answer_is_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let (mut card, mut old, _) = stepped(directory.path());
    let (trip, step) = (Duration::from_millis(150), Duration::from_millis(100));
    let mut newcomers = arrive(directory.path(), 1);
    card.turn_until_attached(2);
    // How long it takes is not known yet.
    card.now = card.now + step;
    newcomers.extend(arrive(directory.path(), 1));
    card.turn_until_attached(3);
    card.now = card.now + (trip - step);
    card.answer(&mut old);
    for attached in 3..6 {
        // It is asked again: somebody has attached since it was asked.
        let nonce = card.hear(&mut old, |frame| match frame {
            Frame::Ping { nonce } => Some(*nonce),
            _ => None,
        });
        newcomers.extend(arrive(directory.path(), 1));
        card.now = card.now + trip;
        (0..20).for_each(|_| card.turn());
        assert_eq!(card.link.host_count(), attached, "it is waited for");
        old.send(&Frame::Pong { nonce }).unwrap();
        observe("it is served", || {
            card.turn();
            card.service.suspended.is_empty().then_some(())
        });
        card.turn_until_attached(attached + 1);
    }
    // And not for ever, if it says nothing.
    newcomers.extend(arrive(directory.path(), 1));
    (0..20).for_each(|_| card.turn());
    assert_eq!(card.link.next_due(), Some(card.now + 2 * trip));
    card.now = card.now + 2 * trip;
    card.turn_until_attached(7);
}

/// Who has said hello and waits for the card is not taken for one that says nothing, however crowded it is.
#[test]
fn who_has_said_hello_keeps_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let (mut card, mut old, _) = stepped(directory.path());
    let slow = Duration::from_millis(400);
    // A host that answers, and slowly.
    let mut hosts = arrive(directory.path(), 1);
    card.turn_until_attached(2);
    card.now = card.now + slow;
    card.answer(&mut old);
    observe("it is served", || {
        card.turn();
        card.service.suspended.is_empty().then_some(())
    });
    hosts.extend(arrive(directory.path(), 1));
    card.turn_until_attached(3);
    let mut crowd = Vec::new();
    for _ in 0..70 {
        // As many as have a place, and some for whom there is none.
        crowd.extend(arrive(directory.path(), 1));
        card.turn();
    }
    card.now = card.now + slow;
    (0..20).for_each(|_| card.turn());
    assert_eq!(card.link.host_count(), 3, "they wait for its answer");
    let armed = card.link.arm(card.now, &mut card.service);
    assert_eq!(armed, Armed::Yes, "there is nothing to do until it comes");
    card.answer(&mut old);
    card.turn_until_attached(4);
    assert!(matches!(crowd[0].receive().unwrap().frame(), Frame::Welcome(_)), "who came first is first");
}

/// A host whose connection was cut has until it is given up to come back, and no crowd of others may take that from it.
#[test]
fn who_comes_back_is_heard_though_a_crowd_waits_to_attach() {
    let directory = tempfile::tempdir().unwrap();
    let (mut card, _old, _) = stepped(directory.path());
    let tcp = card.link.tcp_address().unwrap();
    let mut cut = Raw::tcp(tcp);
    cut.send(&Frame::Hello(hello(VERSION))).unwrap();
    let welcome = card.hear(&mut cut, |frame| match frame {
        Frame::Welcome(welcome) => Some(*welcome),
        _ => None,
    });
    // The first host is asked because of it, and does not answer: all others wait.
    let mut crowd = Vec::new();
    for _ in 0..100 {
        crowd.extend(arrive(directory.path(), 1));
        card.turn();
    }
    assert_eq!(card.link.host_count(), 2);
    drop(cut);
    let resume = Resume {
        attachment: welcome.attachment,
        secret: welcome.resume_secret,
        received: 0,
        card_incarnation: welcome.card_incarnation,
    };
    let mut again = Raw::tcp(tcp);
    again.send(&Frame::Hello(Hello { resume: Some(resume), ..hello(VERSION) })).unwrap();
    card.hear(&mut again, |frame| (!matches!(frame, Frame::Refused { .. })).then_some(()));
    let refused = crowd.last_mut().unwrap().receive().unwrap();
    assert!(matches!(refused.frame(), Frame::Refused { .. }), "no more wait than can be let in");
}

/// A dead process whose children hold its connection: nothing tells of its end but that it says nothing.
#[test]
fn the_death_of_a_tcp_host_is_noticed_though_its_children_hold_its_socket() {
    for has_group in [false, true] {
        let card = WatchedCard::start(|config| config.dead_after = Duration::from_millis(300));
        let mut old = Raw::tcp(card.tcp);
        old.attach();
        if has_group {
            let sizes = GroupSizes::rings(4096, 4096);
            old.send(&Frame::OpenGroup { request: 1, service: ECHO, sizes }).unwrap();
            old.receive_until(|frame| matches!(frame, Frame::GroupOpened(_)));
        }
        let Raw::Tcp(stream, _) = &old else { unreachable!() };
        let child = stream.try_clone().unwrap();
        drop(old);
        card.wait_hosts(0);
        drop(child);
    }
}

#[test]
fn a_host_that_has_nothing_to_say_stays_attached() {
    let card = WatchedCard::start(|config| config.dead_after = Duration::from_millis(500));
    let host = attach(card.tcp());
    let group = host.open_group(ECHO, 4096, 4096).unwrap();
    let attachment = |card: &WatchedCard| card.hosts()[0].identity.attachment;
    let before = attachment(&card);
    std::thread::sleep(Duration::from_secs(2));
    push(&group, b"still here", None);
    assert_eq!(take(&group).0, b"still here");
    assert_eq!(attachment(&card), before);
    assert_eq!(host.over(), None);
}

#[test]
fn nobody_is_doubted_whose_end_the_kernel_tells_or_who_has_asked_for_nothing() {
    for kind in [LinkKind::Shm, LinkKind::Model] {
        let mut pair = Pair::new(kind, Told::default());
        let _group = pair.open_group(1, 4096, 4096);
        pair.card.doubt();
        pair.run_until_asleep();
        assert_eq!(pair.service.0, []);
    }
    let mut pair = Pair::new(LinkKind::Tcp, Told::default());
    pair.card.doubt();
    pair.run_until_asleep();
    assert_eq!(pair.service.0, []);
}

#[test]
fn a_newcomer_makes_the_card_ask_whether_the_others_live() {
    for is_local in [false, true] {
        let card = WatchedCard::start(|_| {});
        let mut old = Raw::tcp(card.tcp);
        let attachment = old.attach().attachment;
        let sizes = GroupSizes::rings(4096, 4096);
        old.send(&Frame::OpenGroup { request: 1, service: ECHO, sizes }).unwrap();
        old.receive_until(|frame| matches!(frame, Frame::GroupOpened(_)));
        assert!(card.ask(|card| card.service.suspended.is_empty()));
        let mut newcomer = if is_local { Raw::unix(&card.socket) } else { Raw::tcp(card.tcp) };
        newcomer.attach();
        let asked = old.receive_until(|frame| matches!(frame, Frame::Ping { .. }));
        let suspended = card.ask(|card| card.service.suspended.clone());
        assert!(suspended.into_iter().eq([attachment]), "only the other, and until it answers");
        let Frame::Ping { nonce } = asked.frame() else { unreachable!() };
        old.send(&Frame::Pong { nonce }).unwrap();
        observe("it lives", || card.ask(|card| card.service.suspended.is_empty()).then_some(()));
        drop(old);
        observe("it is away", || (!card.ask(|card| card.service.suspended.is_empty())).then_some(()));
    }
}

/// As where a thread that looks after a link has it for a moment longer than its owner.
#[test]
fn a_link_can_be_left_though_others_have_it() {
    let card = WatchedCard::start(|_| {});
    for endpoint in [card.unix(), card.tcp()] {
        let link = attach(endpoint);
        link.leave();
        assert_eq!(link.over(), Some(Over::Ended("this host left".to_owned())));
        card.wait_hosts(0);
    }
}
