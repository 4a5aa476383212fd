//! Futures, on an executor written by hand and on one that people use.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test stops at the first surprise.

use crate::common;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use common::{Act, FakeCard, LONG, pattern};
use ob_files_host::{Error, GroupOptions, RingSizes, Session};
use ob_wire_link::files::Operation;

/// Polls one future on this thread, and sleeps until it is woken.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        std::thread::park();
    }
}

fn session(card: &FakeCard) -> Session {
    Session::open(card.options()).unwrap()
}

#[test]
fn calls_are_awaited_on_a_plain_executor() {
    let card = FakeCard::start();
    let session = session(&card);
    block_on(async {
        session.make_directory("/d").await.unwrap();
        let file = session.create("/d/f").await.unwrap();
        let bytes = pattern(5 << 20, 1);
        let (written, bytes) = file.write_at(bytes, 0).await;
        assert_eq!(written, Ok(5 << 20));
        let reads: Vec<_> = (0..100).map(|at| file.read_at(vec![0; 50_000], at * 50_000)).collect();
        for (at, read) in reads.into_iter().enumerate() {
            let (read, buffer) = read.await;
            assert_eq!(read, Ok(50_000));
            assert!(buffer == bytes[at * 50_000..][..50_000]);
        }
        session.flush().await.unwrap();
        assert_eq!(session.list("/d").await.unwrap().len(), 1);
        assert_eq!(session.list("/none").await.unwrap_err(), Error::NotFound);
    });
}

#[test]
fn tasks_share_a_group_on_tokio() {
    let card = FakeCard::start();
    let session = session(&card);
    let sizes = RingSizes::both(1 << 16);
    // Little room, so that most tasks have to wait for it.
    let group = session.group(GroupOptions::default().small(sizes).outstanding(8)).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(3).build().unwrap();
    runtime.block_on(async {
        let file = group.create("/f").await.unwrap();
        let tasks: Vec<_> = (0..64u64)
            .map(|task| {
                let file = file.clone();
                tokio::spawn(async move {
                    for round in 0..20 {
                        let bytes = pattern(4096, task << 32 | round);
                        let (written, bytes) = file.write_at(bytes, task * 4096).await;
                        assert_eq!(written, Ok(4096));
                        let (read, buffer) = file.read_at(vec![0; 4096], task * 4096).await;
                        assert_eq!(read, Ok(4096));
                        assert!(buffer == bytes);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
    assert_eq!(group.outstanding(), 0);
}

#[test]
fn the_death_of_the_card_wakes_every_task() {
    let mut card = FakeCard::start();
    let session = session(&card);
    let file = session.create("/f").wait().unwrap();
    card.rule_for(Operation::Read, |_| Act::Hold);
    let reads: Vec<_> = (0..50).map(|_| file.read_at(vec![0; 10], 0)).collect();
    let waiting = std::thread::spawn(move || {
        block_on(async {
            for read in reads {
                assert_eq!(read.await.0, Err(Error::CardGone));
            }
        });
    });
    card.wait_held(50);
    card.vanish();
    waiting.join().unwrap();
    card.obey();
    card.revive();
    assert!(session.wait_attached(2, LONG));
    assert_eq!(block_on(file.write_at(vec![1; 10], 0)).0, Ok(10));
}

#[test]
fn a_future_that_is_dropped_leaves_its_operation_to_itself() {
    let card = FakeCard::start();
    let session = session(&card);
    let file = session.create("/f").wait().unwrap();
    card.rule_for(Operation::Write, |_| Act::Hold);
    let mut write = file.write_at(vec![1; 1000], 0);
    let waker = Waker::noop();
    assert!(Pin::new(&mut write).poll(&mut Context::from_waker(waker)).is_pending());
    drop(write);
    card.wait_held(1);
    card.release();
    block_on(session.flush()).unwrap();
    block_on(async {
        while session.own_group().outstanding() > 0 {
            session.flush().await.unwrap();
        }
    });
    assert_eq!(card.content("/f"), vec![1; 1000]);
}

#[test]
fn a_group_without_a_thread_wakes_tasks_when_it_is_polled() {
    struct Flag(AtomicBool);
    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let card = FakeCard::start();
    let session = card.session();
    let file = session.create("/f").wait().unwrap();
    let mut write = file.write_at(vec![1; 1000], 0);
    let flag = Arc::new(Flag(AtomicBool::new(false)));
    let waker = Waker::from(Arc::clone(&flag));
    let mut context = Context::from_waker(&waker);
    assert!(Pin::new(&mut write).poll(&mut context).is_pending(), "nobody has looked yet");
    assert_eq!(session.own_group().wait(LONG, |_| panic!("no tags are out")), 1);
    assert!(flag.0.load(Ordering::SeqCst));
    assert!(Pin::new(&mut write).poll(&mut context).is_ready());
}

#[test]
fn threads_may_wait_beside_the_groups_own_thread() {
    let card = FakeCard::start();
    let session = session(&card);
    let file = session.create("/f").wait().unwrap();
    block_on(file.write_at(vec![5; 4096], 0)).0.unwrap();
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    assert_eq!(file.read_at(vec![0; 4096], 0).wait(), (Ok(4096), vec![5; 4096]));
                    done.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    assert_eq!(done.load(Ordering::SeqCst), 400);
    file.submit_read(vec![0; 4096], 0, 9).unwrap();
    let completion = common::collect(session.own_group(), 1).remove(0);
    assert_eq!((completion.tag, completion.result), (9, Ok(4096)));
}

#[test]
fn a_callback_that_panics_takes_nobody_with_it() {
    let card = FakeCard::start();
    let session = session(&card);
    let file = session.create("/f").wait().unwrap();
    file.write_then(vec![1; 10], 0, |_, _| panic!("on purpose")).unwrap();
    for _ in 0..10 {
        assert_eq!(block_on(file.read_at(vec![0; 10], 0)).0, Ok(10));
    }
}
