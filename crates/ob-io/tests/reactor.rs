//! The reactor as its users see it: watches, timers, wakers, and none of them burning a core.

#![allow(clippy::unwrap_used)] // A test stops at the first thing that is not as it should be.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ob_core::{Clock, Instant};
use ob_io::{Config, Event, Interest, MonotonicClock, Reactor, TimerId, Wait, WatchId};

/// With everything this kernel has, and as a kernel of 2021 would do it.
fn both_ways(test: impl Fn(Reactor, Config)) {
    for newest_features in [true, false] {
        let config = Config { newest_features, ..Config::default() };
        test(Reactor::new(&config).unwrap(), config);
    }
}

/// Turns until `wanted` has seen what it wants.
fn turn_until(reactor: &mut Reactor, mut wanted: impl FnMut(&Event) -> bool) {
    let mut events = Vec::new();
    loop {
        reactor.turn(Wait::Until(None), &mut events);
        if events.drain(..).any(|event| wanted(&event)) {
            return;
        }
    }
}

fn is_ready(event: &Event, wanted: WatchId) -> bool {
    matches!(event, Event::Ready { watch, .. } if *watch == wanted)
}

fn after(duration: Duration) -> Instant {
    MonotonicClock.now() + duration
}

#[test]
fn watches_tell_of_every_change() {
    both_ways(|mut reactor, _| {
        let handle = reactor.handle();
        let pairs: Vec<_> = (0..20).map(|_| UnixStream::pair().unwrap()).collect();
        let watches: Vec<_> =
            pairs.iter().map(|(ours, _)| handle.watch(ours, Interest::Readable).unwrap()).collect();
        for round in 0..3u8 {
            for index in [7, 0, 19] {
                let (mut ours, mut theirs) = (&pairs[index].0, &pairs[index].1);
                theirs.write_all(&[round]).unwrap();
                turn_until(&mut reactor, |event| is_ready(event, watches[index]));
                let mut byte = [0];
                ours.read_exact(&mut byte).unwrap();
                assert_eq!(byte, [round]);
            }
        }
    });
}

#[test]
fn what_is_ready_at_the_beginning_is_told() {
    both_ways(|mut reactor, _| {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"x").unwrap();
        let watch = reactor.handle().watch(&ours, Interest::Both).unwrap();
        turn_until(&mut reactor, |event| match event {
            Event::Ready { watch: told, readiness } => {
                *told == watch && readiness.is_readable() && readiness.is_writable()
            }
            _ => false,
        });
    });
}

#[test]
fn a_peer_that_goes_away_is_told() {
    both_ways(|mut reactor, _| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let watch = reactor.handle().watch(&ours, Interest::Readable).unwrap();
        drop(theirs);
        turn_until(&mut reactor, |event| match event {
            Event::Ready { watch: told, readiness } => *told == watch && readiness.is_hangup(),
            _ => false,
        });
    });
}

#[test]
fn an_ended_watch_says_nothing_and_lets_go_of_the_file() {
    both_ways(|mut reactor, _| {
        let handle = reactor.handle();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let watch = handle.watch(&ours, Interest::Readable).unwrap();
        reactor.turn(Wait::Poll, &mut Vec::new());
        theirs.write_all(b"x").unwrap();
        handle.unwatch(watch);
        handle.unwatch(watch);
        drop(ours);
        let mut events = Vec::new();
        // The kernel held the file for the watch; only when it lets go does the peer see the end.
        theirs.set_nonblocking(true).unwrap();
        while matches!(theirs.read(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock) {
            reactor.turn(Wait::Poll, &mut events);
        }
        assert_eq!(events, []);
    });
}

#[test]
fn thousands_of_watches_come_and_go() {
    let config = Config { watches_max: 500, submissions_max: 8, ..Config::default() };
    let mut reactor = Reactor::new(&config).unwrap();
    let handle = reactor.handle();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(b"x").unwrap();
    for _ in 0..10 {
        let watches: Vec<_> = (0..500)
            .map(|_| {
                loop {
                    // Slots of the last round come free as the kernel lets go of them.
                    match handle.watch(&ours, Interest::Readable) {
                        Ok(watch) => break watch,
                        Err(_) => drop(reactor.turn(Wait::Poll, &mut Vec::new())),
                    }
                }
            })
            .collect();
        let mut told = std::collections::HashSet::new();
        turn_until(&mut reactor, |event| {
            if let Event::Ready { watch, .. } = event {
                told.insert(*watch);
            }
            told.len() == watches.len()
        });
        watches.iter().for_each(|watch| handle.unwatch(*watch));
    }
}

#[test]
fn tables_are_bounded() {
    let config = Config { watches_max: 2, timers_max: 2, ..Config::default() };
    let reactor = Reactor::new(&config).unwrap();
    let handle = reactor.handle();
    let (ours, _theirs) = UnixStream::pair().unwrap();
    for _ in 0..2 {
        handle.watch(&ours, Interest::Readable).unwrap();
        handle.set_timer(after(Duration::from_secs(1000))).unwrap();
    }
    assert!(handle.watch(&ours, Interest::Readable).is_err());
    assert!(handle.set_timer(after(Duration::ZERO)).is_err());
    drop(reactor);
    assert!(handle.watch(&ours, Interest::Readable).is_err(), "the reactor is gone");
    assert!(handle.set_timer(after(Duration::ZERO)).is_err());
}

#[test]
fn completions_that_overflow_the_queue_are_not_lost() {
    both_ways(|_, config| {
        // The completion queue is clamped to twice the submission queue at least; many more watches than that
        // fire in one enter.
        let config = Config { operations_max: 1, watches_max: 1000, submissions_max: 1024, ..config };
        let mut reactor = Reactor::new(&config).unwrap();
        let handle = reactor.handle();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let watches: Vec<_> = (0..1000).map(|_| handle.watch(&ours, Interest::Readable).unwrap()).collect();
        reactor.turn(Wait::Poll, &mut Vec::new());
        // Every byte fires every watch, and nobody reaps.
        for _ in 0..10 {
            theirs.write_all(b"x").unwrap();
        }
        let mut told = std::collections::HashSet::new();
        turn_until(&mut reactor, |event| {
            if let Event::Ready { watch, .. } = event {
                told.insert(*watch);
            }
            told.len() == watches.len()
        });
        // And every watch still lives.
        theirs.write_all(b"y").unwrap();
        told.clear();
        turn_until(&mut reactor, |event| {
            if let Event::Ready { watch, .. } = event {
                told.insert(*watch);
            }
            told.len() == watches.len()
        });
    });
}

#[test]
fn thousands_of_timers_fire_in_order_and_cancelled_ones_never() {
    both_ways(|mut reactor, config| {
        let handle = reactor.handle();
        let start = handle.now();
        let mut expected: Vec<(Instant, TimerId)> = Vec::new();
        for number in 0..u64::from(config.timers_max) {
            let at = start + Duration::from_micros(number * 7919 % 20_000);
            let timer = handle.set_timer(at).unwrap();
            if number % 3 == 0 {
                assert!(handle.cancel_timer(timer));
                assert!(!handle.cancel_timer(timer));
            } else {
                expected.push((at, timer));
            }
        }
        let mut fired: Vec<TimerId> = Vec::new();
        let mut events = Vec::with_capacity(config.events_max());
        while let Some(next) = handle.next_timer() {
            reactor.turn(Wait::Until(None), &mut events);
            for event in events.drain(..) {
                let Event::Timer(timer) = event else { panic!("{event:?}") };
                fired.push(timer);
            }
            assert!(handle.next_timer().is_none_or(|later| later >= next));
        }
        let due: std::collections::HashMap<_, _> = expected.iter().map(|(at, timer)| (*timer, *at)).collect();
        assert_eq!(fired.len(), expected.len());
        assert!(fired.is_sorted_by_key(|timer| due[timer]));
        assert!(handle.now() >= expected.iter().map(|(at, _)| *at).max().unwrap(), "none fires early");
    });
}

#[test]
fn wakers_of_many_threads_are_never_missed() {
    both_ways(|mut reactor, _| {
        let waker = reactor.handle().waker();
        let count = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (waker, count) = (waker.clone(), Arc::clone(&count));
                std::thread::spawn(move || {
                    for _ in 0..2000 {
                        count.fetch_add(1, Ordering::Relaxed);
                        waker.wake();
                    }
                })
            })
            .collect();
        // A missed wake would leave this asleep for ever.
        while count.load(Ordering::Acquire) < 6000 {
            turn_until(&mut reactor, |event| *event == Event::Woken);
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        drop(reactor);
        waker.wake();
    });
}

#[test]
fn every_single_wake_gets_through() {
    both_ways(|mut reactor, _| {
        let waker = reactor.handle().waker();
        let (asked, answered) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=2000 {
                    asked.store(round, Ordering::Relaxed);
                    waker.wake();
                    while answered.load(Ordering::Acquire) < round {
                        std::thread::yield_now();
                    }
                }
            });
            while answered.load(Ordering::Relaxed) < 2000 {
                turn_until(&mut reactor, |event| *event == Event::Woken);
                // The notice carries what was written before it.
                answered.store(asked.load(Ordering::Relaxed), Ordering::Release);
            }
        });
    });
}

#[test]
fn a_wake_before_the_turn_is_not_slept_over() {
    both_ways(|mut reactor, _| {
        reactor.handle().waker().wake();
        let mut events = Vec::new();
        assert_eq!(reactor.turn(Wait::Until(None), &mut events), 1);
        assert_eq!(events, [Event::Woken]);
        assert_eq!(reactor.turn(Wait::Poll, &mut events), 0, "told once");
    });
}

#[test]
fn sleeping_ends_at_the_given_instant() {
    both_ways(|mut reactor, _| {
        let until = after(Duration::from_millis(5));
        let mut events = Vec::new();
        while MonotonicClock.now() < until {
            reactor.turn(Wait::Until(Some(until)), &mut events);
        }
        assert_eq!(events, []);
    });
}

/// Processor time of this thread so far, in nanoseconds.
fn processor_time() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[test]
fn an_idle_reactor_uses_no_processor_time() {
    both_ways(|mut reactor, _| {
        let handle = reactor.handle();
        let (ours, _theirs) = UnixStream::pair().unwrap();
        handle.watch(&ours, Interest::Readable).unwrap();
        let timer = handle.set_timer(after(Duration::from_millis(300))).unwrap();
        let before = processor_time();
        turn_until(&mut reactor, |event| *event == Event::Timer(timer));
        let used = Duration::from_nanos(processor_time() - before);
        assert!(used < Duration::from_millis(3), "used {used:?} of 300 ms");
    });
}

#[test]
fn polling_an_idle_reactor_does_not_sleep() {
    both_ways(|mut reactor, _| {
        let handle = reactor.handle();
        handle.set_timer(after(Duration::from_secs(3600))).unwrap();
        let mut events = Vec::new();
        for _ in 0..1000 {
            assert_eq!(reactor.turn(Wait::Poll, &mut events), 0);
        }
    });
}
