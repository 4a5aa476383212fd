//! What comes from within the card, behind a turn of its loop, reaches a host although nothing else happens.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test stops at the first thing that is not as it should be.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::common::{Dice, ECHO, attach, config, push, take};
use ob_core::{AttachmentId, Clock};
use ob_io::{Config, MonotonicClock, Reactor, Waker};
use ob_link::{CardLink, CardLoop, CardService, Costs, Endpoint, GroupKey, Listen};
use ob_ring::{Batch, CardSender};

/// How long the part thinks about a request: longer than a card needs to fall asleep.
const THINKING: Duration = Duration::from_millis(1);

/// Takes requests, and has answers when somebody else on the card has left them here.
#[derive(Default)]
struct Mailbox {
    group: Option<GroupKey>,
    asked: VecDeque<Vec<u8>>,
    answers: VecDeque<Vec<u8>>,
}

impl CardService for Mailbox {
    fn open(&mut self, key: GroupKey, _: u32) -> Result<(), String> {
        self.group = Some(key);
        Ok(())
    }

    fn requests(&mut self, _: GroupKey, mut batch: Batch, _: &mut CardSender) {
        while let Some(message) = batch.take_next() {
            self.asked.push_back(message.inline.to_vec());
        }
    }

    fn responses(&mut self, _: GroupKey, responses: &mut CardSender) {
        while self.answers.front().is_some_and(|answer| responses.push(answer).is_ok()) {
            self.answers.pop_front();
        }
    }

    fn closed(&mut self, _: GroupKey) {
        self.group = None;
    }

    fn waiting(&self, groups: &mut Vec<GroupKey>) {
        groups.extend(self.group.filter(|_| !self.answers.is_empty()));
    }

    fn channel(&mut self, _: AttachmentId, _: &[u8]) {}
}

/// A card, and a part of it that answers after a while.
struct Card {
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
    unix: PathBuf,
    tcp: std::net::SocketAddr,
    _directory: tempfile::TempDir,
}

impl Card {
    fn start(spin: Duration, costs: Option<Costs>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let unix = directory.path().join("link.sock");
        let mut config =
            config(vec![Listen::Unix(unix.clone()), Listen::Tcp("127.0.0.1:0".parse().unwrap())]);
        config.costs = costs;
        let stop = Arc::new(AtomicBool::new(false));
        let (ready, is_ready) = channel();
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let reactor = Reactor::new(&Config::default()).unwrap();
            let link = CardLink::new(&reactor.handle(), config).unwrap();
            ready.send((reactor.handle().waker(), link.tcp_address().unwrap())).unwrap();
            let (requests, answers) = think(reactor.handle().waker());
            let mut card = CardLoop::new(reactor, link, Mailbox::default(), spin);
            let mut others = Vec::new();
            while !stopped.load(Ordering::Acquire) {
                card.turn(None, &mut others);
                others.clear();
                card.service.asked.drain(..).for_each(|request| requests.send(request).unwrap());
                // The turn has slept, and found nothing, and is ready to sleep again.
                card.service.answers.extend(answers.try_iter().flatten());
                card.follow(MonotonicClock.now());
            }
            card.link.shut_down(&mut card.service);
        });
        let (waker, tcp) = is_ready.recv().unwrap();
        Self { stop, waker, thread: Some(thread), unix, tcp, _directory: directory }
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        let joined = self.thread.take().unwrap().join();
        assert!(joined.is_ok() || std::thread::panicking(), "the card panicked");
    }
}

/// Somebody who thinks elsewhere. Nothing tells the card's loop of the answers, it is only woken.
fn think(waker: Waker) -> (Sender<Vec<u8>>, Receiver<Vec<Vec<u8>>>) {
    let (requests, to_think_about) = channel::<Vec<u8>>();
    let (answered, answers) = channel();
    std::thread::spawn(move || {
        for request in to_think_about {
            std::thread::sleep(THINKING);
            if answered.send(answers_to(&request)).is_err() {
                break;
            }
            waker.wake();
        }
    });
    (requests, answers)
}

/// As many as the request says.
fn answers_to(request: &[u8]) -> Vec<Vec<u8>> {
    let (count, rest) = request.split_first().unwrap();
    (0..*count).map(|number| [&[number], rest, &[0; 400]].concat()).collect()
}

fn rounds(endpoint: Endpoint, count: u64) {
    let link = attach(endpoint);
    let group = link.open_group(ECHO, 4096, 4096).unwrap();
    let mut dice = Dice::new(count);
    for round in 0..count {
        std::thread::sleep(Duration::from_micros(dice.below(400)));
        // Some have more answers than the ring holds: there is room for the others when the card sleeps already.
        let request = [&[1 + dice.below(24) as u8], round.to_le_bytes().as_slice()].concat();
        push(&group, &request, None);
        for expected in answers_to(&request) {
            // Fails after a long time if the card sleeps over what its part has left.
            assert_eq!(take(&group).0, expected);
        }
    }
}

#[test]
fn what_a_part_leaves_behind_a_turn_is_not_slept_over() {
    for spin in [Duration::ZERO, Duration::from_micros(50)] {
        let card = Card::start(spin, None);
        rounds(Endpoint::Unix(card.unix.clone()), 200);
        rounds(Endpoint::Tcp(card.tcp), 50);
        drop(card);
        let card = Card::start(spin, Some(Costs::PCIE4));
        rounds(Endpoint::Unix(card.unix.clone()), 50);
    }
}

#[test]
fn what_a_part_leaves_is_with_the_host_when_the_loop_has_followed() {
    let directory = tempfile::tempdir().unwrap();
    let unix = directory.path().join("link.sock");
    let reactor = Reactor::new(&Config::default()).unwrap();
    let link = CardLink::new(&reactor.handle(), config(vec![Listen::Unix(unix.clone())])).unwrap();
    let mut card = CardLoop::new(reactor, link, Mailbox::default(), Duration::ZERO);
    let (followed, is_followed) = channel();
    let (found, is_found) = channel();
    let host = std::thread::spawn(move || {
        let link = attach(Endpoint::Unix(unix));
        let group = link.open_group(ECHO, 4096, 4096).unwrap();
        push(&group, b"hello", None);
        is_followed.recv().unwrap();
        found.send(group.receiver.receive().unwrap().is_some()).unwrap();
    });
    let mut others = Vec::new();
    while card.service.asked.is_empty() {
        card.turn(None, &mut others);
        others.clear();
    }
    card.service.answers.extend(card.service.asked.drain(..));
    card.follow(MonotonicClock.now());
    followed.send(()).unwrap();
    // The card makes no turn before the host has looked.
    assert!(is_found.recv().unwrap(), "the answer waits for another turn");
    while !host.is_finished() {
        card.turn(Some(MonotonicClock.now() + THINKING), &mut others);
        others.clear();
    }
    host.join().unwrap();
}
