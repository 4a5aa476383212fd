//! A card with nothing to do sleeps, and always wakes.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test stops at the first thing that is not as it should be.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::raw::{Raw, hello};
use common::watched::WatchedCard;
use common::{Dice, ECHO, Echo, LONG, attach, config, host_config, observe, push, take};
use ob_core::{AttachmentId, Clock};
use ob_io::{Config, MonotonicClock, Reactor, available_cores};
use ob_link::{
    CardLink, CardLoop, CardService, Costs, Endpoint, GroupKey, HostGroup, HostLink, HostLinkConfig, Listen,
    Turn,
};
use ob_ring::{Batch, CardSender};
use ob_wire_link::frame::{Frame, Hello, VERSION};

const WINDOW: Duration = Duration::from_millis(1500);

/// One test at a time: they look at threads of this process.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open(endpoint: Endpoint) -> (HostLink, Vec<HostGroup>) {
    let link = attach(endpoint);
    let groups: Vec<_> = (0..4).map(|_| link.open_group(ECHO, 1 << 14, 1 << 14).unwrap()).collect();
    for group in &groups {
        push(group, b"once", None);
        take(group);
    }
    (link, groups)
}

/// The share of one core that a card takes when it has gone idle.
fn idle_share(card: &WatchedCard) -> f64 {
    // Going idle takes what it takes; that it does is what is asked for.
    let quiet = (0..100).any(|_| {
        let before = card.processor_time();
        std::thread::sleep(Duration::from_millis(50));
        card.processor_time() - before < 500_000
    });
    if !quiet {
        println!("the card does not go idle");
    }
    let (before, start) = (card.processor_time(), Instant::now());
    std::thread::sleep(WINDOW);
    let used = (card.processor_time() - before) as f64 / 1e9;
    used / start.elapsed().as_secs_f64()
}

/// Hosts with open groups and a thread each that waits for responses must not keep a card awake.
fn card_goes_idle(card: &WatchedCard, endpoints: &[Endpoint]) {
    let hosts: Vec<_> = endpoints.iter().cloned().map(open).collect();
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for (_, groups) in &hosts {
            let done = &done;
            scope.spawn(move || {
                let attempt = || (done.load(Ordering::Acquire) > 0).then_some(());
                groups[0].wait_response(LONG, attempt).unwrap();
            });
        }
        let share = idle_share(card);
        println!("an idle card takes {:.3} % of a core", share * 100.0);
        done.store(1, Ordering::Release);
        // An answer wakes the sleepers, who then see that they are done.
        for (_, groups) in &hosts {
            push(&groups[0], b"wake", None);
        }
        assert!(share < 0.01, "{:.2} % of a core", share * 100.0);
    });
}

#[test]
fn an_idle_card_takes_less_than_a_hundredth_of_a_core_shm() {
    let _alone = alone();
    let card = WatchedCard::start(|_| {});
    card_goes_idle(&card, &[card.unix(), card.unix()]);
}

#[test]
fn an_idle_card_takes_less_than_a_hundredth_of_a_core_tcp() {
    let _alone = alone();
    let card = WatchedCard::start(|_| {});
    card_goes_idle(&card, &[card.tcp(), card.unix(), card.tcp()]);
}

#[test]
fn an_idle_card_takes_less_than_a_hundredth_of_a_core_model() {
    let _alone = alone();
    let card = WatchedCard::start(|config| config.costs = Some(Costs::PCIE4));
    card_goes_idle(&card, &[card.unix(), card.tcp()]);
}

/// Requests at every distance from the moment when the card falls asleep.
fn wake_rounds(card: &WatchedCard, endpoint: Endpoint, rounds: u64) {
    let link = attach(endpoint);
    let group = link.open_group(ECHO, 4096, 4096).unwrap();
    let mut dice = Dice::new(rounds);
    let mut longest = Duration::ZERO;
    for round in 0..rounds {
        let pause = match dice.below(8) {
            0 => Duration::ZERO,
            1 => Duration::from_micros(500),
            _ => Duration::from_micros(dice.below(200)),
        };
        let until = Instant::now() + pause;
        while Instant::now() < until {
            std::thread::yield_now();
        }
        let start = Instant::now();
        push(&group, &round.to_le_bytes(), None);
        assert_eq!(take(&group).0, round.to_le_bytes());
        longest = longest.max(start.elapsed());
    }
    println!("{rounds} rounds over {:?}: the longest took {longest:?}", link.welcome().kind);
    assert!(longest < common::watched::BEARABLE);
    drop((group, link));
    card.wait_hosts(0);
}

#[test]
fn no_request_is_slept_through() {
    let _alone = alone();
    let card = WatchedCard::start(|_| {});
    wake_rounds(&card, card.unix(), 2000);
    wake_rounds(&card, card.tcp(), 300);
    drop(card);
    let card = WatchedCard::start(|config| config.costs = Some(Costs::PCIE4));
    wake_rounds(&card, card.unix(), 300);
}

/// A service that takes as long as a transfer to say what it has for a group.
struct Slow(Echo, Dice);

const LATENCY: Duration = Duration::from_micros(100);

/// None, or about as long as a transfer takes.
fn pause(dice: &mut Dice) {
    if dice.below(2) == 0 {
        let until = Instant::now() + Duration::from_micros(dice.below(200));
        while Instant::now() < until {
            std::thread::yield_now();
        }
    }
}

impl CardService for Slow {
    fn open(&mut self, key: GroupKey, service: u32) -> Result<(), String> {
        self.0.open(key, service)
    }

    fn requests(&mut self, key: GroupKey, batch: Batch, responses: &mut CardSender) {
        self.0.requests(key, batch, responses);
    }

    fn responses(&mut self, key: GroupKey, responses: &mut CardSender) {
        pause(&mut self.1);
        self.0.responses(key, responses);
    }

    fn closed(&mut self, key: GroupKey) {
        self.0.closed(key);
    }

    fn channel(&mut self, attachment: AttachmentId, message: &[u8]) {
        self.0.channel(attachment, message);
    }
}

/// A card is ready to sleep while a transfer is under way, which will wake it. The transfer ends before the card sleeps, and
/// the one that follows it ends in the same turn: nothing will wake the card, and the rings are not ready.
#[test]
fn transfers_that_end_before_the_card_sleeps_leave_nothing_unready() {
    const ASLEEP: Duration = Duration::from_secs(10);
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let unix = directory.path().join("link.sock");
    let reactor = Reactor::new(&Config::default()).unwrap();
    let mut config = config(vec![Listen::Unix(unix.clone())]);
    config.costs = Some(Costs { latency: LATENCY, ..Costs::PCIE4 });
    let link = CardLink::new(&reactor.handle(), config).unwrap();
    let (waker, is_done) = (reactor.handle().waker(), Arc::new(AtomicBool::new(false)));
    let done = Arc::clone(&is_done);
    let mut card = CardLoop::new(reactor, link, Slow(Echo::default(), Dice::new(1)), Duration::ZERO);
    let host = std::thread::spawn(move || {
        let link = attach(Endpoint::Unix(unix));
        let groups: Vec<_> = (0..2).map(|_| link.open_group(ECHO, 4096, 4096).unwrap()).collect();
        for round in 0..2000_usize {
            let (group, start) = (&groups[round % 2], Instant::now());
            push(group, &round.to_le_bytes(), None);
            assert_eq!(take(group).0, round.to_le_bytes());
            assert!(start.elapsed() < ASLEEP / 2, "round {round} was slept through");
        }
        done.store(true, Ordering::Release);
        waker.wake();
    });
    let (mut others, mut dice) = (Vec::new(), Dice::new(2));
    while !is_done.load(Ordering::Acquire) && !host.is_finished() {
        // What is under way is over when the turn begins, or not.
        pause(&mut dice);
        card.turn(Some(MonotonicClock.now() + ASLEEP), &mut others);
        others.clear();
    }
    drop(card);
    host.join().unwrap();
}

/// The host's own agent sleeps too.
#[test]
fn an_idle_host_takes_less_than_a_hundredth_of_a_core() {
    let _alone = alone();
    let card = WatchedCard::start(|_| {});
    let hosts = [open(card.unix()), open(card.tcp())];
    let agents: Vec<String> = std::fs::read_dir("/proc/self/task")
        .unwrap()
        .map(|task| task.unwrap().path().display().to_string())
        .filter(|task| {
            std::fs::read_to_string(format!("{task}/comm")).is_ok_and(|name| name.trim() == "outboard-link")
        })
        .collect();
    assert_eq!(agents.len(), 2);
    let time = |task: &String| -> u64 {
        let statistics = std::fs::read_to_string(format!("{task}/schedstat")).unwrap();
        statistics.split(' ').next().unwrap().parse().unwrap()
    };
    observe("idle agents", || {
        let before: Vec<_> = agents.iter().map(time).collect();
        std::thread::sleep(Duration::from_millis(500));
        agents.iter().zip(&before).all(|(task, before)| time(task) - before < 5_000_000).then_some(())
    });
    drop(hosts);
}

/// More threads that poll than there are cores would only take time from each other, so the card knows how many there are.
#[test]
fn the_card_is_told_how_many_threads_poll() {
    let _alone = alone();
    let card = WatchedCard::start(|config| config.pollers = 3);
    let pollers = || card.ask(|card| card.link.pollers());
    assert_eq!(pollers(), 3);
    let attach = |endpoint: Endpoint, pollers: u16| {
        HostLink::attach(&HostLinkConfig { pollers, ..host_config(endpoint) }).unwrap()
    };
    let first = attach(card.unix(), 2);
    let second = attach(card.unix(), 5);
    let elsewhere = attach(card.tcp(), 7);
    card.wait_hosts(3);
    assert_eq!(pollers(), 10, "those of another machine have cores of their own");
    drop(first);
    card.wait_hosts(2);
    assert_eq!(pollers(), 8);
    drop((second, elsewhere));
    card.wait_hosts(0);
    assert_eq!(pollers(), 3);
}

/// Whether a card sleeps soon after a host has attached, though it would poll for an hour: the host says that so many of its threads
/// poll on the same cores.
fn sleeps_beside(host_pollers: usize) -> bool {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("link.sock");
    let reactor = Reactor::new(&Config::default()).unwrap();
    let link = CardLink::new(&reactor.handle(), config(vec![Listen::Unix(socket.clone())])).unwrap();
    let mut card = CardLoop::new(reactor, link, Echo::default(), Duration::from_secs(3600));
    let mut host = Raw::unix(&socket);
    host.send(&Frame::Hello(Hello { pollers: host_pollers as u16, ..hello(VERSION) })).unwrap();
    let mut others = Vec::new();
    let mut turn = || card.turn(Some(MonotonicClock.now() + Duration::from_millis(1)), &mut others);
    while turn() != Turn::Worked {}
    // Some turns move the greetings.
    (0..100).any(|_| turn() == Turn::Slept)
}

#[test]
fn a_card_that_would_take_a_core_from_others_does_not_poll() {
    let _alone = alone();
    assert!(sleeps_beside(available_cores()), "it and the host have more threads than cores");
    assert!(!sleeps_beside(0), "it has cores enough");
}

/// Requests that wait for something outside, such as a device that never answers, are not work.
#[test]
fn a_card_whose_device_hangs_sleeps() {
    let _alone = alone();
    let card = WatchedCard::start(|_| {});
    let (link, groups) = open(card.unix());
    card.ask(|card| card.service.is_held = true);
    for (number, group) in groups.iter().enumerate() {
        push(group, &[number as u8], None);
    }
    observe("the requests are with the service", || {
        (card.ask(|card| card.service.held()) == 4).then_some(())
    });
    let share = idle_share(&card);
    assert!(share < 0.01, "{:.2} % of a core while nothing can be done", share * 100.0);
    // When the device answers after all, so does the card.
    card.ask(|card| card.service.is_held = false);
    for (number, group) in groups.iter().enumerate() {
        push(group, b"one more", None);
        assert_eq!(take(group).0, [number as u8]);
        assert_eq!(take(group).0, b"one more");
    }
    drop((groups, link));
}
