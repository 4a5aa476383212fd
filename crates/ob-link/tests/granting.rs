//! How much memory of groups a card grants to its hosts, and how much of its time that may take.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test stops at the first surprise.

use crate::common;

use std::path::Path;

use common::raw::{Raw, hello};
use common::watched::WatchedCard;
use common::{ECHO, Echo, LONG, attach, observe};
use ob_core::{Clock, GroupId, Instant};
use ob_io::{Config, Event, MonotonicClock, Reactor, Wait};
use ob_link::{CardLink, GroupRefusal, HostGroup, HostLink, Listen, OpenGroupError};
use ob_wire_link::frame::{Frame, VERSION};
use ob_wire_link::group::GroupSizes;

/// The groups of two MiB that a host opens until it is refused, and what it is told then.
fn open_until_refused(link: &HostLink) -> (Vec<HostGroup>, String) {
    let mut groups = Vec::new();
    loop {
        match link.open_group(ECHO, 1 << 20, 1 << 20) {
            Ok(group) => groups.push(group),
            Err(OpenGroupError::Refused(GroupRefusal::Budget(text))) => return (groups, text),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn memory_has_a_bound_for_each_host_and_one_for_all() {
    let card = WatchedCard::start(|config| (config.host_memory_max, config.memory_max) = (8 << 20, 12 << 20));
    for endpoint in [card.unix(), card.tcp()] {
        let (first, second) = (attach(endpoint.clone()), attach(endpoint));
        // A region is a little longer than its rings.
        let (of_first, told) = open_until_refused(&first);
        assert_eq!(of_first.len(), 3);
        assert!(told.contains("[link] memory_per_host "), "{told}");
        let (of_second, told) = open_until_refused(&second);
        assert_eq!(of_second.len(), 2, "what the first has, the second cannot have");
        assert!(told.contains("[link] memory "), "{told}");
        drop(of_first);
        let third = observe("what the first gave back", || second.open_group(ECHO, 1 << 20, 1 << 20).ok());
        assert!(open_until_refused(&second).1.contains("[link] memory_per_host "));
        drop((third, of_second, first, second));
        card.wait_hosts(0);
    }
}

/// A card that makes its turns when the test says, as if at the time that it says.
struct SteppedCard {
    reactor: Reactor,
    link: CardLink,
    service: Echo,
    events: Vec<Event>,
}

impl SteppedCard {
    fn new(socket: &Path) -> Self {
        let reactor = Reactor::new(&Config::default()).unwrap();
        let config = common::config(vec![Listen::Unix(socket.to_owned())]);
        let link = CardLink::new(&reactor.handle(), config).unwrap();
        Self { reactor, link, service: Echo::default(), events: Vec::new() }
    }

    fn turn(&mut self, now: Instant) {
        self.reactor.turn(Wait::Poll, &mut self.events);
        for event in self.events.drain(..) {
            self.link.handle(&event);
        }
        self.link.poll(now, &mut self.service);
    }

    /// Turns until its only host has so many groups.
    fn turn_until(&mut self, now: Instant, groups: usize) {
        let deadline = MonotonicClock.now() + LONG;
        while self.groups() != Some(groups) {
            assert!(MonotonicClock.now() < deadline, "{:?} groups, and not {groups}", self.groups());
            self.turn(now);
        }
    }

    fn groups(&self) -> Option<usize> {
        self.link.hosts().first().map(|host| host.groups)
    }

    /// When the next group may be opened, where a host waits for one: nothing else is due on this card.
    fn granted_at(&self) -> Instant {
        self.link.next_due().expect("a host waits for a group")
    }
}

fn wish(host: &mut Raw, request: u32) {
    let sizes = GroupSizes::rings(1 << 20, 1 << 20);
    host.send(&Frame::OpenGroup { request, service: ECHO, sizes }).unwrap();
}

/// The group that the card has opened.
fn granted(host: &mut Raw) -> GroupId {
    let letter = host.receive_until(|frame| matches!(frame, Frame::GroupOpened(_)));
    let Frame::GroupOpened(opened) = letter.frame() else { unreachable!() };
    opened.group
}

#[test]
fn making_memory_and_giving_it_back_is_paid_for_before_more_is_made() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("link.sock");
    let mut card = SteppedCard::new(&socket);
    let mut host = Raw::unix(&socket);
    host.send(&Frame::Hello(hello(VERSION))).unwrap();
    // The card's time stands still from here on, unless it is told another.
    let now = MonotonicClock.now();
    card.turn_until(now, 0);
    // Both lie in the socket before the card looks, so it knows of both when it has granted one.
    wish(&mut host, 1);
    wish(&mut host, 2);
    card.turn_until(now, 1);
    let first = granted(&mut host);
    let next = card.granted_at();
    assert!(next > now, "what the first took is not charged");
    for early in [now, Instant::from_nanoseconds(next.nanoseconds() - 1)] {
        card.turn(early);
        assert_eq!(card.groups(), Some(1), "another is made before its time");
    }
    card.turn(next);
    assert_eq!(card.groups(), Some(2));
    // A third has to wait for longer when memory is given back meanwhile.
    wish(&mut host, 3);
    let deadline = MonotonicClock.now() + LONG;
    while card.link.next_due().is_none() {
        assert!(MonotonicClock.now() < deadline, "the third wish is not heard");
        card.turn(now);
    }
    let before = card.granted_at();
    assert!(before > next, "what the second took is not charged");
    host.send(&Frame::CloseGroup { group: first }).unwrap();
    card.turn_until(now, 1);
    assert!(card.granted_at() > before, "what giving back took is not charged");
}
