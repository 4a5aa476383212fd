#![allow(clippy::unwrap_used, clippy::expect_used)] // A test stops at the first thing that is not as it should be.

// The same card that the file library is tested with.
#[path = "../../../ob-files-host/tests/common/mod.rs"]
mod common;

use std::time::Instant;

use common::{Act, FakeCard, LONG, pattern};
use ob_core::Token;
use ob_files_host::{GroupOptions, Session};
use ob_wire_link::files::{FileError, Operation};

use super::*;

const PART_LEN: u64 = 64 << 10;

/// A log of one part, and its card.
fn bench() -> (FakeCard, Session, CardLog) {
    let card = FakeCard::start();
    let session = card.session();
    session.make_directory(DIRECTORY).wait().unwrap();
    let mut log = CardLog::new(session.own_group().clone(), []);
    log.submit(create(1, 0));
    assert_eq!(finish(&mut log, 1)[&1], Ok(Vec::new()));
    assert_eq!(log.next_made().map(|(part, _)| part), Some(0));
    (card, session, log)
}

/// What becomes of so many operations, by their tokens.
fn finish(log: &mut CardLog, count: usize) -> BTreeMap<u64, Result<Vec<u8>, LogFailure>> {
    let (mut done, deadline) = (BTreeMap::new(), Instant::now() + LONG);
    while done.len() < count {
        assert!(Instant::now() < deadline, "{} of {count} are done", done.len());
        log.wait(Duration::from_millis(5));
        while let Some(LogCompletion { token, result }) = log.next_done() {
            assert!(done.insert(token.0, result).is_none(), "{token:?} is done twice");
        }
    }
    done
}

fn create(token: u64, part: u64) -> LogOp {
    LogOp::Create { token: Token(token), part, len: PART_LEN }
}

fn write(token: u64, offset: u64, bytes: &[u8]) -> LogOp {
    LogOp::Write {
        token: Token(token),
        part: 0,
        offset,
        bytes: bytes.to_vec().into(),
        is_durable: token.is_multiple_of(2),
    }
}

fn read(token: u64, offset: u64, len: usize) -> LogOp {
    LogOp::Read { token: Token(token), part: 0, offset, len }
}

fn content(card: &FakeCard) -> Vec<u8> {
    card.content(&format!("{DIRECTORY}/{}", part_name(0)))
}

#[test]
fn what_a_busy_card_refuses_is_asked_for_again() {
    let (card, _session, mut log) = bench();
    let mut left = 40;
    card.rule(move |_| {
        left -= i32::from(left > 0);
        if left > 0 { Act::Fail(FileError::Busy) } else { Act::Answer }
    });
    let bytes = pattern(64 << 10, 1);
    for (number, block) in bytes.chunks(4096).enumerate() {
        log.submit(write(number as u64 + 1, number as u64 * 4096, block));
    }
    assert!(finish(&mut log, 16).values().all(Result::is_ok));
    log.submit(LogOp::Flush { token: Token(1) });
    assert!(finish(&mut log, 1)[&1].is_ok());
    assert_eq!(content(&card), bytes);
}

#[test]
fn a_card_without_space_is_told_apart_from_one_that_fails() {
    let (card, _session, mut log) = bench();
    for (error, failure) in [(FileError::NoSpace, LogFailure::Space), (FileError::Io, LogFailure::Device)] {
        card.rule(move |_| Act::Fail(error));
        log.submit(write(1, 0, &[1; 4096]));
        log.submit(write(2, 4096, &[1; 4096]));
        log.submit(create(3, 1));
        log.submit(LogOp::Flush { token: Token(4) });
        log.submit(LogOp::Remove { token: Token(5), part: 0 });
        assert!(finish(&mut log, 5).values().all(|result| *result == Err(failure)), "{error:?}");
    }
    // Whatever failed can be asked for again.
    card.obey();
    log.submit(write(1, 0, &[2; 4096]));
    log.submit(create(3, 1));
    assert!(finish(&mut log, 2).values().all(Result::is_ok));
    assert_eq!(content(&card)[..4096], [2; 4096]);
}

#[test]
fn what_was_out_when_the_card_died_is_done_by_the_next_one() {
    for says_goodbye in [false, true] {
        let (mut card, _session, mut log) = bench();
        log.submit(write(1, 0, &[1; 8192]));
        finish(&mut log, 1);
        card.rule(|_| Act::Hold);
        log.submit(write(1, 8192, &[2; 4096]));
        log.submit(write(2, 12_288, &[3; 4096]));
        log.submit(read(3, 0, 4096));
        log.submit(create(4, 1));
        log.submit(LogOp::Flush { token: Token(5) });
        card.wait_held(5);
        if says_goodbye {
            card.leave();
        } else {
            card.vanish();
        }
        // What comes while there is no card waits too.
        log.submit(read(6, 4096, 4096));
        log.wait(Duration::from_millis(5));
        card.obey();
        card.revive();
        let done = finish(&mut log, 6);
        assert!(done.values().all(Result::is_ok), "{done:?}");
        assert_eq!((&done[&3], &done[&6]), (&Ok(vec![1; 4096]), &Ok(vec![1; 4096])));
        assert_eq!(content(&card)[8192..][..8192], [[2; 4096], [3; 4096]].concat());
        assert_eq!(log.parts().map(|(part, _)| part).collect::<Vec<_>>(), [0, 1]);
    }
}

#[test]
fn nothing_is_asked_of_the_next_card_before_the_log_was_looked_at() {
    let (mut card, session, mut before) = bench();
    before.leave();
    let parts: Vec<_> = session.list(DIRECTORY).wait().unwrap().iter().map(|entry| (0, entry.node)).collect();
    let mut log = CardLog::new(session.group(GroupOptions::polled()).unwrap(), parts.clone());
    log.submit(write(1, 0, &[1; 4096]));
    finish(&mut log, 1);
    card.rule(|_| Act::Hold);
    log.submit(write(2, 4096, &[2; 4096]));
    log.submit(create(3, 1));
    card.wait_held(2);
    log.measure();
    card.vanish();
    // The library keeps this for the next card.
    log.submit(create(4, 2));
    log.leave();
    assert_eq!(log.next_measured(), Some(None));
    log.submit(LogOp::Flush { token: Token(5) });
    card.obey();
    card.revive();
    assert!(session.wait_attached(2, LONG));
    let asked = |card: &FakeCard| {
        [Operation::Write, Operation::Open, Operation::Flush].map(|kind| card.requests_of(kind).len())
    };
    let asked_before = asked(&card);
    log.join(session.group(GroupOptions::polled()).unwrap(), parts);
    log.submit(read(1 << 62, 0, 4096));
    assert_eq!(finish(&mut log, 1)[&(1 << 62)], Ok(vec![1; 4096]));
    assert_eq!(asked(&card), asked_before, "it is only looked at");
    log.go_on();
    assert!(finish(&mut log, 4).values().all(Result::is_ok));
    assert_eq!(content(&card)[4096..][..4096], [2; 4096]);
    assert_eq!(log.parts().map(|(part, _)| part).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn parts_are_made_and_removed_once_however_often_that_is_asked() {
    let (card, session, mut log) = bench();
    // A card that has died may have done it before it could say so.
    log.submit(create(1, 0));
    assert!(finish(&mut log, 1)[&1].is_ok());
    session.remove_file(format!("{DIRECTORY}/{}", part_name(0)).as_str()).wait().unwrap();
    log.submit(LogOp::Remove { token: Token(1), part: 0 });
    assert!(finish(&mut log, 1)[&1].is_ok());
    log.submit(read(1, 0, 10));
    assert_eq!(finish(&mut log, 1)[&1], Err(LogFailure::Device), "there is no such part");
    assert!(card.requests_of(Operation::Read).is_empty());
}

#[test]
fn a_part_is_made_when_it_has_its_length_whichever_card_gives_it() {
    let (mut card, _session, mut log) = bench();
    assert_eq!(content(&card), [0; PART_LEN as usize]);
    // One that is there, with something in it, and shorter than parts are: such are those that earlier builds have left.
    log.submit(write(1, 0, &[1; 4096]));
    finish(&mut log, 1);
    log.submit(LogOp::Create { token: Token(2), part: 0, len: 2 * PART_LEN });
    finish(&mut log, 1);
    assert_eq!(content(&card), [vec![1; 4096], vec![0; 2 * PART_LEN as usize - 4096]].concat());
    // A card that dies before it has said so leaves that to the next one.
    card.rule_for(Operation::Resize, |_| Act::Hold);
    log.submit(create(3, 1));
    while card.requests_of(Operation::Resize).len() < 3 {
        log.wait(Duration::from_millis(5));
    }
    card.wait_held(1);
    assert_eq!((log.next_done().is_none(), log.parts().count()), (true, 1), "it is not made yet");
    card.vanish();
    card.obey();
    card.revive();
    assert_eq!(finish(&mut log, 1)[&3], Ok(Vec::new()));
    assert_eq!(card.content(&format!("{DIRECTORY}/{}", part_name(1))), [0; PART_LEN as usize]);
    assert_eq!(log.parts().map(|(part, _)| part).collect::<Vec<_>>(), [0, 1]);
    card.rule_for(Operation::Resize, |_| Act::Fail(FileError::NoSpace));
    log.submit(create(4, 2));
    assert_eq!(finish(&mut log, 1)[&4], Err(LogFailure::Space));
    assert_eq!(log.parts().count(), 2);
}

#[test]
fn fewer_bytes_are_given_where_the_file_ends() {
    let (_card, _session, mut log) = bench();
    let (bytes, before) = (pattern(8192, 3), PART_LEN - 8192);
    log.submit(write(1, before, &bytes));
    finish(&mut log, 1);
    log.submit(read(1, before + 8000, 1000));
    log.submit(read(2, PART_LEN, 1000));
    log.submit(read(3, 0, 0));
    let done = finish(&mut log, 3);
    assert_eq!(done[&1].as_deref(), Ok(&bytes[8000..]));
    assert_eq!((done[&2].as_deref(), done[&3].as_deref()), (Ok(&[][..]), Ok(&[][..])));
}

#[test]
fn space_is_measured_and_a_card_that_does_not_say_is_no_full_one() {
    let (card, _session, mut log) = bench();
    let mut measured = |card: &FakeCard, act: fn() -> Act| {
        card.rule(move |_| act());
        log.measure();
        let deadline = Instant::now() + LONG;
        loop {
            assert!(Instant::now() < deadline);
            log.wait(Duration::from_millis(5));
            if let Some(left) = log.next_measured() {
                return left;
            }
        }
    };
    // What is free, without the segment of a mebibyte that the next write may take.
    assert_eq!(measured(&card, || Act::Answer), Some((1 << 29) - (1 << 20)));
    assert_eq!(measured(&card, || Act::Fail(FileError::Unsupported)), None);
}
