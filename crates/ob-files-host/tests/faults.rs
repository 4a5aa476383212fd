//! A card that is slow, confused, hostile or dead.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test stops at the first surprise.

use crate::common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use common::{Act, FakeCard, LONG, collect, pattern};
use ob_core::{NodeId, NodeKind};
use ob_files_host::{Error, Fault, File, GroupOptions, Session};
use ob_wire_link::files::{Entry, FileError, NodeInfo, Operation, RequestHeader, ResponseHeader, push_entry};

fn file_of(session: &Session, content: &[u8]) -> File {
    let file = session.create("/f").wait().unwrap();
    assert_eq!(file.write_at(content.to_vec(), 0).wait().0.unwrap(), content.len());
    file
}

#[test]
fn answers_in_another_order_find_their_operations() {
    let card = FakeCard::start();
    let session = card.session();
    let bytes = pattern(64 << 10, 1);
    let file = file_of(&session, &bytes);
    card.shared.reversed.store(true, Ordering::Relaxed);
    card.rule_for(Operation::Read, |_| Act::Hold);
    for tag in 0..32 {
        file.submit_read(vec![0; 1000], tag * 2000, tag).unwrap();
    }
    card.wait_held(32);
    assert_eq!(session.own_group().poll(|_| panic!("nothing is answered")), 0);
    card.release();
    let completions = collect(session.own_group(), 32);
    assert_eq!(completions.first().map(|first| first.tag), Some(31), "the last one was answered first");
    for completion in completions {
        let at = completion.tag as usize * 2000;
        assert_eq!(completion.result, Ok(1000));
        assert_eq!(completion.buffer.into_bytes(), bytes[at..at + 1000]);
    }
}

#[test]
fn a_wait_ends_with_its_time_and_the_operation_goes_on() {
    let card = FakeCard::start();
    let session = card.session();
    let file = file_of(&session, b"late");
    card.rule_for(Operation::Read, |_| Act::Hold);
    let pending = file.read_at(vec![0; 4], 0);
    let pending = pending.wait_for(Duration::from_millis(1)).unwrap_err();
    assert!(!pending.is_done());
    assert_eq!(session.own_group().wait(Duration::from_millis(1), |_| panic!("nothing is due")), 0);
    let pending = pending.try_wait().unwrap_err();
    card.wait_held(1);
    card.release();
    let (read, buffer) = pending.wait();
    assert_eq!((read.unwrap(), buffer.as_slice()), (4, &b"late"[..]));
}

#[test]
fn a_slow_operation_holds_up_nobody() {
    let card = FakeCard::start();
    let session = card.session();
    let file = file_of(&session, &pattern(1 << 20, 2));
    card.rule(|header| {
        let slow = header.operation == Operation::Flush.code() || header.length > 128 << 10;
        if slow { Act::Hold } else { Act::Answer }
    });
    let flush = session.flush();
    let large = file.read_at(vec![0; 1 << 19], 0);
    for _ in 0..100 {
        assert_eq!(file.read_at(vec![0; 4096], 0).wait().0.unwrap(), 4096);
    }
    assert!(!flush.is_done() && !large.is_done());
    card.wait_held(2);
    card.release();
    flush.wait().unwrap();
    assert_eq!(large.wait().0.unwrap(), 1 << 19);
}

#[test]
fn what_is_out_when_the_card_dies_says_so_and_the_session_attaches_again() {
    for says_goodbye in [false, true] {
        let mut card = FakeCard::start();
        let session = card.session();
        let file = file_of(&session, b"before");
        card.rule(|_| Act::Hold);
        let (told, tell) = channel();
        let told_too = told.clone();
        file.submit_write(vec![1; 10], 0, 5).unwrap();
        file.write_then(vec![2; 10], 0, move |result, buffer| told.send((result, buffer.len())).unwrap())
            .unwrap();
        file.read_with(5, 0, move |read| told_too.send((read.map(|_| 0), 0)).unwrap()).unwrap();
        let pending = file.write_at(vec![3; 10], 0);
        let huge = file.write_at(vec![4; 40 << 20], 0);
        let list = session.list("/");
        card.wait_held(5);
        if says_goodbye {
            card.leave();
        } else {
            card.vanish();
        }
        assert_eq!(pending.wait(), (Err(Error::CardGone), vec![3; 10]));
        assert_eq!(list.wait().unwrap_err(), Error::CardGone);
        let (result, buffer) = huge.wait();
        assert_eq!((result, buffer.len()), (Err(Error::CardGone), 40 << 20));
        let completion = collect(session.own_group(), 1).remove(0);
        assert_eq!((completion.tag, completion.result), (5, Err(Error::CardGone)));
        assert_eq!(completion.buffer.into_bytes(), vec![1; 10]);
        assert_eq!(tell.recv_timeout(LONG).unwrap(), (Err(Error::CardGone), 10));
        assert_eq!(tell.recv_timeout(LONG).unwrap().0, Err(Error::CardGone));
        assert_eq!(session.own_group().outstanding(), 0);

        let refused = file.submit_read(vec![0; 6], 0, 1).unwrap_err();
        assert_eq!((refused.reason, refused.buffer.len()), (Error::Detached, 6));
        assert_eq!(file.read_at(vec![0; 6], 0).wait(), (Err(Error::Detached), vec![0; 6]));

        card.obey();
        card.revive();
        assert!(session.wait_attached(2, LONG));
        let (read, buffer) = file.read_at(vec![0; 6], 0).wait();
        assert_eq!((read, buffer.as_slice()), (Ok(6), &b"before"[..]), "held writes never happened");
        assert!(session.last_failure().is_some());
    }
}

#[test]
fn futures_and_waits_can_be_patient() {
    let mut card = FakeCard::start();
    let options = card.options().group(GroupOptions::polled()).patience(LONG);
    let session = Session::open(options).unwrap();
    let file = file_of(&session, b"patience");
    card.vanish();
    // Until the library has seen it, operations still fail as those that were out.
    while file.submit_read(vec![0; 1], 0, 0).is_ok() {
        collect(session.own_group(), 1);
    }
    let reads: Vec<_> = (0..10).map(|_| file.read_at(vec![0; 8], 0)).collect();
    let made = session.make_directory("/d");
    assert_eq!(file.submit_read(vec![0; 8], 0, 1).unwrap_err().reason, Error::Detached, "tags do not wait");
    card.revive();
    for read in reads {
        let (read, buffer) = read.wait();
        assert_eq!((read, buffer.as_slice()), (Ok(8), &b"patience"[..]));
    }
    made.wait().unwrap();
}

#[test]
fn patience_has_an_end() {
    let mut card = FakeCard::start();
    let options = card.options().group(GroupOptions::polled()).patience(Duration::from_millis(30));
    let session = Session::open(options).unwrap();
    let file = file_of(&session, b"x");
    card.vanish();
    while file.submit_read(vec![0; 1], 0, 0).is_ok() {
        collect(session.own_group(), 1);
    }
    assert_eq!(file.read_at(vec![0; 1], 0).wait().0, Err(Error::Detached));
    assert_eq!(session.group(GroupOptions::polled()).unwrap_err(), Error::Detached);
}

#[test]
fn a_card_that_dies_again_and_again_is_met_again_and_again() {
    let mut card = FakeCard::start();
    let session = card.session();
    let file = file_of(&session, b"still here");
    for life in 2..8 {
        card.rule_for(Operation::Read, |_| Act::Die);
        assert_eq!(file.read_at(vec![0; 10], 0).wait().0, Err(Error::CardGone));
        card.wait_dead();
        card.obey();
        card.revive();
        assert!(session.wait_attached(life, LONG));
        assert_eq!(file.read_at(vec![0; 10], 0).wait(), (Ok(10), b"still here".to_vec()));
    }
    assert_eq!(session.attachments(), 7);
}

#[test]
fn what_was_answered_before_the_card_died_counts() {
    let mut card = FakeCard::start();
    let session = card.session();
    let file = file_of(&session, b"last words");
    let answered = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&answered);
    card.rule(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        Act::Answer
    });
    file.submit_read(vec![0; 10], 0, 1).unwrap();
    // The ring has the answer when the card has taken a second request in a batch of its own.
    while answered.load(Ordering::SeqCst) < 1 {
        std::thread::yield_now();
    }
    let flush = session.group(GroupOptions::polled()).unwrap().flush();
    flush.wait().unwrap();
    card.leave();
    let completion = collect(session.own_group(), 1).remove(0);
    assert_eq!((completion.result, completion.buffer.into_bytes()), (Ok(10), b"last words".to_vec()));
}

#[test]
fn every_error_of_the_card_arrives_as_itself() {
    let card = FakeCard::start();
    let session = card.session();
    let file = file_of(&session, b"x");
    for error in FileError::ALL {
        let error = *error;
        card.rule(move |_| Act::Fail(error));
        let expected = Error::from(error);
        assert_eq!(file.read_at(vec![0; 10], 0).wait().0, Err(expected.clone()));
        assert_eq!(file.write_at(vec![0; 10], 0).wait().0, Err(expected.clone()));
        assert_eq!(session.list("/").wait(), Err(expected.clone()));
        assert_eq!(session.flush().wait(), Err(expected));
    }
}

#[test]
fn lengths_that_do_not_fit_are_an_error_and_never_a_copy() {
    let card = FakeCard::start();
    let session = card.session();
    let file = file_of(&session, &pattern(100, 1));
    let wrong: [fn(&RequestHeader) -> Act; 6] = [
        |header| long(header.id, 101, Some(101)),
        |header| long(header.id, 100, Some(10)),
        |header| long(header.id, 10, Some(100)),
        |header| long(header.id, u32::MAX, Some(10)),
        |header| long(header.id, 50, None),
        |header| {
            let mut bytes = ResponseHeader::done(header.id).encode().to_vec();
            bytes[8] = 200;
            Act::Raw(bytes, None)
        },
    ];
    for (index, rule) in wrong.into_iter().enumerate() {
        card.rule_for(Operation::Read, rule);
        let (result, buffer) = file.read_at(vec![7; 100], 0).wait();
        assert!(matches!(result, Err(Error::Protocol(Fault::Length | Fault::Status))), "{index}: {result:?}");
        assert_eq!(buffer, vec![7; 100], "{index}");
    }
    card.rule_for(Operation::Write, |header| long(header.id, 11, None));
    assert_eq!(file.write_at(vec![0; 10], 0).wait().0, Err(Error::Protocol(Fault::Length)));
    card.obey();
    assert_eq!(file.read_at(vec![7; 100], 0).wait().0, Ok(100), "and the group goes on");
}

fn long(id: u64, length: u32, payload: Option<usize>) -> Act {
    let response = ResponseHeader { length, ..ResponseHeader::done(id) };
    Act::Raw(response.encode().to_vec(), payload.map(|len| vec![1; len]))
}

#[test]
fn answers_that_nobody_asked_for_are_counted_and_passed_over() {
    let card = FakeCard::start();
    let session = card.session();
    let file = file_of(&session, &pattern(100, 1));
    card.rule_for(Operation::Read, |_| Act::Twice);
    for _ in 0..50 {
        assert_eq!(file.read_at(vec![0; 100], 0).wait().0, Ok(100));
    }
    card.obey();
    session.flush().wait().unwrap();
    assert_eq!(session.own_group().stray_answers(), 50);
    // An id that is made up, of a slot that is in use.
    card.rule_for(Operation::Read, |header| long(header.id ^ 1 << 40, 10, Some(10)));
    let pending = file.read_at(vec![3; 10], 0);
    while session.own_group().stray_answers() < 51 {
        session.own_group().poll(|_| panic!("nothing by tag is out"));
    }
    card.obey();
    assert!(pending.try_wait().is_err(), "the made-up answer was not taken for the real one");
}

#[test]
fn an_answer_without_a_header_ends_the_rings_and_new_ones_are_opened() {
    let card = FakeCard::start();
    let session = card.session();
    let file = file_of(&session, b"content");
    for garbage in [vec![], vec![1, 2, 3], vec![0xff; 24]] {
        let bytes = garbage.clone();
        card.rule_for(Operation::Read, move |_| Act::Raw(bytes.clone(), None));
        let other = session.flush();
        let (result, _) = file.read_at(vec![0; 7], 0).wait();
        assert_eq!(result, Err(Error::Protocol(Fault::Answer)), "{garbage:?}");
        drop(other);
        card.obey();
        assert!(session.wait_attached(1, LONG));
        assert_eq!(file.read_at(vec![0; 7], 0).wait(), (Ok(7), b"content".to_vec()));
    }
    assert_eq!(session.attachments(), 1, "the card itself was never lost");
}

#[test]
fn information_that_cannot_be_is_an_error() {
    let card = FakeCard::start();
    let session = card.session();
    let file = file_of(&session, b"content");
    let done = |header: &RequestHeader| ResponseHeader::done(header.id).encode().to_vec();
    card.rule(move |header| Act::Raw(done(header), None));
    assert_eq!(file.stat().wait(), Err(Error::Protocol(Fault::Answer)));
    assert_eq!(session.space().wait(), Err(Error::Protocol(Fault::Answer)));
    assert_eq!(session.create("/x").wait().unwrap_err(), Error::Protocol(Fault::Answer));
    card.rule(move |header| Act::Raw([done(header), vec![0xff; 200]].concat(), None));
    assert_eq!(file.stat().wait(), Err(Error::Protocol(Fault::Answer)));
    card.rule(move |header| {
        let kind = NodeKind::Directory;
        let info = NodeInfo { id: NodeId(9), kind, size: 0, allocated: 0, parent: None };
        Act::Raw([done(header), info.encode().to_vec()].concat(), None)
    });
    assert_eq!(session.create("/x").wait().unwrap_err(), Error::IsADirectory);
}

#[test]
fn lists_that_cannot_be_or_do_not_get_on_are_an_error() {
    let card = FakeCard::start();
    let session = card.session();
    let entry = |name: &[u8]| {
        let mut bytes = Vec::new();
        push_entry(&mut bytes, &Entry { id: NodeId(5), kind: NodeKind::File, size: 0, name });
        bytes
    };
    let page = |value: u64, length: Option<u32>, payload: Vec<u8>| {
        move |header: &RequestHeader| {
            let length = length.unwrap_or(payload.len() as u32);
            let response = ResponseHeader { length, value, ..ResponseHeader::done(header.id) };
            Act::Raw(response.encode().to_vec(), Some(payload.clone()))
        }
    };
    let fault = |fault| Err(Error::Protocol(fault));
    card.rule(page(0, None, vec![1; 30]));
    assert_eq!(session.list("/").wait(), fault(Fault::List), "not entries");
    card.rule(page(1, None, Vec::new()));
    assert_eq!(session.list("/").wait(), fault(Fault::List), "more, but nothing");
    card.rule(page(2, None, entry(b"a")));
    assert_eq!(session.list("/").wait(), fault(Fault::List), "neither more nor not");
    card.rule(page(0, Some(8), entry(b"a")));
    assert_eq!(session.list("/").wait(), fault(Fault::Length), "another length than said");
    card.rule(page(1, None, entry(b"a")));
    assert_eq!(session.list("/").wait(), fault(Fault::List), "the same page again and again");
    card.rule(page(0, None, [entry(b"b"), entry(b"a")].concat()));
    assert_eq!(session.list("/").wait(), fault(Fault::List), "names that descend");
    card.rule(page(0, None, [entry(b"a"), entry(b"a")].concat()));
    assert_eq!(session.list("/").wait(), fault(Fault::List), "a name twice");
    card.rule(page(0, None, vec![0; 70_000]));
    assert_eq!(session.list("/").wait(), fault(Fault::Length), "more than was asked for");
}

#[test]
fn groups_are_given_back() {
    let card = FakeCard::start();
    let session = card.session();
    let file = file_of(&session, b"content");
    // Each takes 10 MiB of the host's 256: they would be used up soon.
    for round in 0..30 {
        let group = loop {
            match session.group(GroupOptions::polled()) {
                Ok(group) => break group,
                // The card has not heard of the last ones' end yet.
                Err(Error::Attach(_)) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        };
        assert_eq!(group.add(&file).read_at(vec![0; 7], 0).wait().0, Ok(7), "{round}");
    }
}

#[test]
fn a_group_that_is_closed_ends_what_is_out() {
    let card = FakeCard::start();
    let session = card.session();
    let group = session.group(GroupOptions::polled()).unwrap();
    let file = group.add(&file_of(&session, b"content"));
    card.rule_for(Operation::Read, |_| Act::Hold);
    let pending = file.read_at(vec![0; 7], 0);
    file.submit_read(vec![0; 7], 0, 3).unwrap();
    group.close();
    assert_eq!(pending.wait().0, Err(Error::Closed));
    assert_eq!(collect(&group, 1).remove(0).result, Err(Error::Closed));
    assert_eq!(file.submit_read(vec![0; 7], 0, 4).unwrap_err().reason, Error::Closed);
    assert_eq!(file.stat().wait().unwrap_err(), Error::Closed);
    card.obey();
    let again = session.own_group().add(&file);
    assert_eq!(again.read_at(vec![0; 7], 0).wait().0, Ok(7), "the session goes on");
}

#[test]
fn a_thread_may_wait_for_something_else_beside_a_group() {
    let card = FakeCard::start();
    let session = card.session();
    let file = file_of(&session, b"late");
    card.rule_for(Operation::Read, |_| Act::Hold);
    file.submit_read(vec![0; 4], 0, 7).unwrap();
    card.wait_held(1);
    let (word, has_come) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            has_come.store(true, Ordering::SeqCst);
            word.fetch_add(1, Ordering::SeqCst);
            ob_io::doorbell::futex_wake_all(&word);
        });
        let register = || [Some((&word, word.load(Ordering::SeqCst) as u32)), None, None];
        let is_there = || has_come.load(Ordering::SeqCst);
        let group = session.own_group();
        assert_eq!(group.wait_beside(LONG, |_| panic!("nothing is answered"), register, is_there), 0);
        card.release();
        let mut tags = Vec::new();
        group.wait_beside(LONG, |completion| tags.push(completion.tag), register, || false);
        assert_eq!(tags, [7]);
    });
}
