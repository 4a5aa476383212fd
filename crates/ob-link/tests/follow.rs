//! What comes from within the card, behind a turn of its loop, reaches a host although nothing else happens.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test stops at the first thing that is not as it should be.

mod common;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use common::{Dice, ECHO, attach, config, push, take};
use ob_core::{AttachmentId, Clock, Instant};
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
            let mut card = CardLoop::new(reactor, link, Mailbox::default(), spin);
            let (mut due, mut others): (Option<Instant>, _) = (None, Vec::new());
            while !stopped.load(Ordering::Acquire) {
                card.turn(due, &mut others);
                others.clear();
                let now = MonotonicClock.now();
                let Mailbox { asked, answers, .. } = &mut card.service;
                if due.is_some_and(|due| due <= now) {
                    // Nothing is due from now on, so that nothing but the loop itself sends what is left here.
                    due = None;
                    answers.extend(asked.pop_front().into_iter().flat_map(|request| answers_to(&request)));
                } else if due.is_none() && !asked.is_empty() {
                    due = Some(now + THINKING);
                }
                card.follow(now);
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
