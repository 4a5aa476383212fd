//! Small rings, large transfers, many threads.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test stops at the first surprise.

use crate::common;

use std::sync::atomic::{AtomicU64, Ordering};

use common::{Act, FakeCard, LONG, collect, pattern};
use ob_files_host::{Error, Group, GroupOptions, RingSizes, Session};
use ob_wire_link::files::{FileError, Operation};

fn small_group(session: &Session, ring: u32, outstanding: usize) -> Group {
    let sizes = RingSizes::both(ring);
    session.group(GroupOptions::polled().small(sizes).bulk(sizes).outstanding(outstanding)).unwrap()
}

#[test]
fn one_huge_transfer_goes_through_a_small_ring() {
    let card = FakeCard::start();
    let session = card.session();
    let file = session.create("/f").wait().unwrap();
    let bytes = pattern((8 << 20) + 12_345, 1);
    for (ring, outstanding, offset) in [(1 << 16, 1, 0), (1 << 16, 100, 777), (1 << 20, 2, 4096)] {
        let group = small_group(&session, ring, outstanding);
        let file = group.add(&file);
        let (written, _) = file.write_at(bytes.clone(), offset).wait();
        assert_eq!(written, Ok(bytes.len()));
        assert!(card.content("/f")[offset as usize..] == bytes);
        let pieces: Vec<Vec<u8>> = (0..bytes.len().div_ceil(100_003)).map(|_| vec![0; 100_003]).collect();
        let (read, pieces) = file.read_at(pieces, offset).wait();
        assert_eq!(read, Ok(bytes.len()));
        assert!(pieces.concat()[..bytes.len()] == bytes);
        file.resize(0).wait().unwrap();
    }
    assert_eq!(card.misaligned(), 0);
    for write in card.requests_of(Operation::Write) {
        let whole = u64::from(write.length) % 4096 == 0 && write.offset % 4096 == 0;
        let edge = write.offset == 777 || write.offset + u64::from(write.length) >= bytes.len() as u64;
        assert!(whole || edge, "parts begin and end at blocks: {write:?}");
    }
}

#[test]
fn a_full_ring_hands_everything_back() {
    let card = FakeCard::start();
    let session = card.session();
    let file = session.create("/f").wait().unwrap();
    let group = small_group(&session, 1 << 16, 1000);
    let file = group.add(&file);
    card.rule(|_| Act::Hold);
    let mut accepted = 0;
    let refused = loop {
        match file.submit_write(vec![accepted as u8; 8192], accepted * 8192, accepted) {
            Ok(()) => accepted += 1,
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused.reason, Error::RingFull);
    assert_eq!(refused.buffer, vec![accepted as u8; 8192]);
    assert!(accepted >= 4, "{accepted}");
    card.wait_held(1);
    card.release();
    collect(&group, accepted as usize);
    file.submit_write(refused.buffer, accepted * 8192, accepted).unwrap();
    collect(&group, 1);
    assert_eq!(card.content("/f").len() as u64, (accepted + 1) * 8192);
}

#[test]
fn no_more_operations_are_out_than_there_are_slots() {
    let card = FakeCard::start();
    let session = card.session();
    let file = session.create("/f").wait().unwrap();
    file.write_at(b"abc".to_vec(), 0).wait().0.unwrap();
    let group = small_group(&session, 1 << 16, 3);
    let file = group.add(&file);
    card.rule(|_| Act::Hold);
    for tag in 0..3 {
        file.submit_read(vec![0; 3], 0, tag).unwrap();
    }
    let refused = file.submit_read(vec![1; 3], 0, 3).unwrap_err();
    assert_eq!((refused.reason, refused.buffer), (Error::TooManyOutstanding, vec![1; 3]));
    // Futures wait by themselves.
    let reads: Vec<_> = (0..20).map(|_| file.read_at(vec![0; 3], 0)).collect();
    assert_eq!(group.outstanding(), 3);
    card.wait_held(3);
    card.release();
    for read in reads {
        assert_eq!(read.wait(), (Ok(3), b"abc".to_vec()));
    }
    collect(&group, 3);
}

#[test]
fn futures_wait_for_room_in_the_ring() {
    let card = FakeCard::start();
    let session = card.session();
    let group = small_group(&session, 1 << 16, 1000);
    let file = group.add(&session.create("/f").wait().unwrap());
    let bytes = pattern(4 << 20, 5);
    let writes: Vec<_> = bytes
        .chunks(10_000)
        .enumerate()
        .map(|(index, chunk)| file.write_at(chunk.to_vec(), index as u64 * 10_000))
        .collect();
    for write in writes {
        write.wait().0.unwrap();
    }
    assert!(card.content("/f") == bytes);
}

#[test]
fn a_transfer_in_parts_moves_what_lies_before_the_first_short_one() {
    let card = FakeCard::start();
    let session = card.session();
    let file = session.create("/f").wait().unwrap();
    let bytes = pattern(3 << 20, 6);
    file.write_at(bytes.clone(), 0).wait().0.unwrap();
    let (read, buffer) = file.read_at(vec![0; 8 << 20], 1 << 20).wait();
    assert_eq!(read, Ok(2 << 20));
    assert!(buffer[..2 << 20] == bytes[1 << 20..]);
    // A part in the middle is short, though the file goes on.
    card.shared.reversed.store(true, Ordering::Relaxed);
    card.rule_for(Operation::Read, |header| {
        if header.offset == 0 { Act::Answer } else { Act::Change(|response| response.length = 0) }
    });
    let failed = file.read_at(vec![0; 3 << 20], 0).wait().0;
    assert!(
        matches!(failed, Err(Error::Protocol(_))),
        "a length of 0 with bytes is no short read: {failed:?}"
    );
    card.rule_for(Operation::Write, |header| {
        if header.offset == 0 { Act::Answer } else { Act::Change(|response| response.length = 5) }
    });
    let (written, _) = file.write_at(bytes.clone(), 0).wait();
    let first = card.requests_of(Operation::Write).last().unwrap().length as usize;
    assert!(written.unwrap() < bytes.len() && first > 5);
}

#[test]
fn the_first_part_that_fails_says_why() {
    let card = FakeCard::start();
    let session = card.session();
    let file = session.create("/f").wait().unwrap();
    card.shared.reversed.store(true, Ordering::Relaxed);
    card.rule_for(Operation::Write, |header| match header.offset {
        0 => Act::Answer,
        offset if offset < 2 << 20 => Act::Fail(FileError::NoSpace),
        _ => Act::Fail(FileError::Io),
    });
    let (written, buffer) = file.write_at(vec![1; 6 << 20], 0).wait();
    assert_eq!((written, buffer.len()), (Err(Error::NoSpace), 6 << 20));
    card.obey();
    assert_eq!(file.write_at(buffer, 0).wait().0, Ok(6 << 20), "nothing is left behind");
    assert_eq!(session.own_group().outstanding(), 0);
}

#[test]
fn a_card_with_small_transfers_is_respected() {
    let card = FakeCard::start();
    card.shared.transfer_max.store(1000, Ordering::Relaxed);
    let session = card.session();
    let file = session.create("/f").wait().unwrap();
    let bytes = pattern(100_000, 7);
    assert_eq!(file.write_at(bytes.clone(), 5).wait().0, Ok(100_000));
    let (read, buffer) = file.read_at(vec![0; 100_000], 5).wait();
    assert_eq!(read, Ok(100_000));
    assert!(buffer == bytes);
    let refused = file.read_with(1001, 0, |_| panic!("it is too large")).unwrap_err();
    assert_eq!(refused.reason, Error::TooLarge);
}

#[test]
fn many_threads_share_a_group() {
    const THREADS: u64 = 8;
    const ROUNDS: u64 = 300;
    let card = FakeCard::start();
    let session = card.session();
    let group = small_group(&session, 1 << 17, 64);
    let file = group.add(&session.create("/f").wait().unwrap());
    let completed: Vec<AtomicU64> = (0..THREADS * ROUNDS).map(|_| AtomicU64::new(0)).collect();
    let seen = AtomicU64::new(0);
    let take = |completion: ob_files_host::Completion| {
        assert_eq!(completion.result, Ok(512));
        let expected = pattern(512, completion.tag);
        assert_eq!(completion.buffer.into_bytes(), expected);
        completed[completion.tag as usize].fetch_add(1, Ordering::Relaxed);
        seen.fetch_add(1, Ordering::SeqCst);
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (group, file, take) = (&group, &file, &take);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let tag = thread * ROUNDS + round;
                    let mut buffer = pattern(512, tag);
                    // A few wait for their own between those that poll for everybody.
                    if round % 50 == 7 {
                        let (written, own) = file.write_at(buffer, tag * 512).wait();
                        assert_eq!(written, Ok(512));
                        buffer = own;
                    }
                    while let Err(refused) = file.submit_write(buffer, tag * 512, tag) {
                        assert!(refused.reason.is_passing(), "{}", refused.reason);
                        buffer = refused.buffer;
                        group.wait(std::time::Duration::from_millis(1), take);
                    }
                }
            });
        }
    });
    while seen.load(Ordering::SeqCst) < THREADS * ROUNDS {
        assert!(group.wait(LONG, take) > 0);
    }
    assert!(completed.iter().all(|count| count.load(Ordering::Relaxed) == 1), "each exactly once");
    let content = card.content("/f");
    for tag in 0..THREADS * ROUNDS {
        assert!(content[tag as usize * 512..][..512] == pattern(512, tag));
    }
}

#[test]
fn several_groups_and_sessions_share_a_card() {
    let card = FakeCard::start();
    let sessions = [card.session(), card.session()];
    let file = sessions[0].create("/f").wait().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let group = sessions[thread as usize % 2].group(GroupOptions::polled()).unwrap();
            let file = group.file(file.node());
            scope.spawn(move || {
                for round in 0..50 {
                    let bytes = pattern(3000, thread << 32 | round);
                    assert_eq!(file.write_at(bytes.clone(), thread * 3000).wait().0, Ok(3000));
                    let (read, buffer) = file.read_at(vec![0; 3000], thread * 3000).wait();
                    assert_eq!((read, buffer), (Ok(3000), bytes));
                }
            });
        }
    });
}
