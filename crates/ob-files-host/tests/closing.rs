//! Groups and sessions that end, threads that meet there, and what nobody takes.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test stops at the first surprise.

use crate::common;

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::{Act, FakeCard, LONG, collect};
use ob_files_host::{Driver, Error, Fault, GroupOptions, Session};
use ob_wire_link::files::Operation;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketType};

#[test]
fn every_callback_is_called_once_when_its_group_is_closed() {
    let card = FakeCard::start();
    let session = card.session();
    let file = session.create("/f").wait().unwrap();
    for (round, driver) in [Driver::Thread, Driver::Caller].into_iter().cycle().take(20).enumerate() {
        let group = session.group(GroupOptions { driver, ..GroupOptions::default() }).unwrap();
        let file = group.add(&file);
        // Some rounds have answers on their way when the group is closed, others have none.
        card.rule_for(Operation::Read, move |_| if round % 4 < 2 { Act::Hold } else { Act::Answer });
        let (told, tell) = channel();
        for index in 0..100 {
            let told = told.clone();
            let then = move |result, _: Vec<u8>| told.send((index, result)).unwrap();
            file.read_then(vec![0; 1], 0, then).unwrap();
        }
        drop(told);
        group.close();
        let mut called = Vec::new();
        while let Ok((index, result)) = tell.recv_timeout(LONG) {
            assert!(matches!(result, Ok(0) | Err(Error::Closed)), "{result:?}");
            called.push(index);
        }
        called.sort_unstable();
        assert_eq!(called, (0..100).collect::<Vec<_>>(), "round {round}");
        let refused = file.read_then(Vec::new(), 0, |_, _: Vec<u8>| panic!("nothing began")).unwrap_err();
        assert_eq!(refused.reason, Error::Closed);
    }
}

#[test]
fn nobody_waits_for_a_group_that_is_closed() {
    let card = FakeCard::start();
    let session = card.session();
    let file = session.create("/f").wait().unwrap();
    card.rule_for(Operation::Read, |_| Act::Hold);
    let group = session.group(GroupOptions::polled()).unwrap();
    group.add(&file).submit_read(vec![0; 1], 0, 7).unwrap();
    let began = Instant::now();
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let mut tags = Vec::new();
            while group.wait(LONG, |completion| tags.push((completion.tag, completion.result))) > 0 {}
            tags
        });
        card.wait_held(1);
        group.close();
        assert_eq!(sleeper.join().unwrap(), [(7, Err(Error::Closed))]);
    });
    assert_eq!(group.wait(LONG, |_| panic!("all is taken")), 0);
    assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
}

#[test]
fn a_callback_may_wait_for_another_operation() {
    let card = FakeCard::start();
    let session = Session::open(card.options()).unwrap();
    let file = session.create("/f").wait().unwrap();
    let again = file.clone();
    let (told, tell) = channel();
    let then = move |_, buffer: Vec<u8>| {
        let (first, second) = (again.write_at(buffer, 0), again.stat());
        let written = first.wait_for(LONG / 4).map(|(written, _)| written);
        told.send((written.ok(), second.wait_for(LONG / 4).is_ok())).unwrap();
    };
    file.read_then(vec![0; 10], 0, then).unwrap();
    assert_eq!(tell.recv_timeout(LONG).unwrap(), (Some(Ok(10)), true));
}

#[test]
fn completions_that_nobody_takes_are_bounded() {
    const OUTSTANDING: usize = 8;
    let card = FakeCard::start();
    let session = card.session();
    let group = session.group(GroupOptions::default().outstanding(OUTSTANDING)).unwrap();
    let file = group.add(&session.create("/f").wait().unwrap());
    // From here on, the group's thread takes answers out of the rings.
    let (told, tell) = channel();
    file.read_then(vec![0; 1], 0, move |_, _: Vec<u8>| told.send(()).unwrap()).unwrap();
    tell.recv_timeout(LONG).unwrap();
    for len in [0, 1] {
        let mut started = 0;
        let refused = loop {
            match file.submit_read(vec![0; len], 0, started as u64) {
                Ok(()) => started += 1,
                Err(refused) => break refused.reason,
            }
            assert!(started <= 2 * OUTSTANDING, "{started} operations of {len} bytes");
            while group.outstanding() > 0 {
                std::thread::yield_now();
            }
        };
        assert_eq!(refused, Error::TooManyOutstanding);
        assert_eq!(file.read_at(vec![0; 1], 0).wait().0, Ok(0), "futures do not depend on who polls");
        collect(&group, started);
    }
}

#[test]
fn a_session_ends_while_it_attaches() {
    let mut card = FakeCard::start();
    let session = card.session();
    card.vanish();
    // Somebody takes the card's place, and never says a word.
    let _ = std::fs::remove_file(&card.socket);
    let listener = net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    net::bind(&listener, &SocketAddrUnix::new(&card.socket).unwrap()).unwrap();
    net::listen(&listener, 1).unwrap();
    let silent = net::accept(&listener).unwrap();
    let began = Instant::now();
    drop(session);
    assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
    drop(silent);
}

#[test]
fn a_card_that_dies_at_once_is_met_at_a_measured_pace() {
    let mut card = FakeCard::start();
    let session = card.session();
    let began = Instant::now();
    for life in 2..=6 {
        card.vanish();
        card.revive();
        assert!(session.wait_attached(life, LONG));
    }
    assert!(began.elapsed() >= Duration::from_millis(20 + 40 + 80 + 160 + 250), "{:?}", began.elapsed());
}

#[test]
fn rings_that_are_garbled_at_once_are_opened_at_a_measured_pace() {
    let card = FakeCard::start();
    let options = card.options().group(GroupOptions::polled()).patience(LONG);
    let session = Session::open(options).unwrap();
    let file = session.create("/f").wait().unwrap();
    card.rule_for(Operation::Read, |_| Act::Raw(vec![1, 2, 3], None));
    let began = Instant::now();
    for _ in 0..5 {
        assert_eq!(file.read_at(vec![0; 1], 0).wait().0, Err(Error::Protocol(Fault::Answer)));
    }
    assert!(began.elapsed() >= Duration::from_millis(20 + 40 + 80 + 160), "{:?}", began.elapsed());
}
