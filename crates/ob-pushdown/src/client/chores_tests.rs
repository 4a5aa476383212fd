use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use super::super::file::{FileMap, Kind, MapSource};
use super::super::maps::Chores;
use super::*;

/// How long a test waits for what it knows to come.
const PATIENCE: Duration = Duration::from_secs(30);

struct Unmapped;

impl MapSource for Unmapped {
    fn current(&self) -> Option<Arc<FileMap>> {
        None
    }
}

/// Counts what is dropped.
struct Counted(Arc<AtomicU64>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn file(chores: &Arc<Chores>) -> File {
    File::new(Kind::Mapped(Arc::new(Unmapped)), chores)
}

/// A file that the target knows, so that whoever drops the last handle has something to say.
fn opened_file(chores: &Arc<Chores>) -> File {
    let file = file(chores);
    *file.opened() = Some(super::super::file::Opened { number: 7, version: 1 });
    file
}

/// A hold with the last handle of a file: what a request under a lease may be that keeps its file.
fn hold_with_last_handle(chores: &Arc<Chores>) -> Hold {
    Hold::new(opened_file(chores))
}

#[test]
fn what_somebody_waits_for_comes_first_and_a_file_is_there_once() {
    let (chores, mut list) = (Arc::default(), ChoreList::default());
    let one = file(&chores);
    assert_eq!(list.map(&one), Left::NotKept);
    assert!(list.claim());
    assert!(!list.claim(), "there is one");
    assert_eq!(list.map(&one), Left::New);
    assert_eq!(list.map(&one), Left::Known);
    let gone = file(&chores);
    assert_eq!(list.map(&gone), Left::New);
    drop(gone);
    drop(list.tell(Function::Close(3), Hold::default()));
    assert!(matches!(list.next(), Next::Do(Chore::Tell(Function::Close(3), _))));
    assert!(matches!(list.next(), Next::Do(Chore::Map(_))));
    assert_eq!(list.map(&one), Left::New, "it may be too late for the map that is being made");
    list.leave();
    assert!(list.is_over());
    assert!(matches!(list.next(), Next::Over));
    list.unclaim().let_go();
    assert!(!list.is_over() && list.claim());
    assert!(matches!(list.next(), Next::Wait));
    assert_eq!(list.map(&one), Left::New, "it does not wait for the keeper that is gone");
}

#[test]
fn who_wants_to_write_waits_only_for_somebody_who_comes() {
    let (chores, mut list, dropped) = (Arc::default(), ChoreList::default(), Arc::default());
    let hold = || Hold::new(Counted(Arc::clone(&dropped)));
    let count = || dropped.load(Ordering::SeqCst);
    drop(list.tell(Function::Close(1), hold()));
    assert_eq!(count(), 1, "there is no keeper");
    assert!(list.next_told().is_some());
    assert!(list.claim());
    drop(list.tell(Function::Close(2), hold()));
    assert_eq!(count(), 1);
    let Next::Do(Chore::Tell(Function::Close(2), held)) = list.next() else {
        panic!("nothing is to be told")
    };
    assert_eq!(count(), 1, "the target does not know yet");
    drop(held);
    assert_eq!(count(), 2);
    let one = file(&chores);
    assert_eq!(list.map(&one), Left::New);
    assert!(matches!(list.next(), Next::Do(Chore::Map(_))));
    drop(list.tell(Function::Close(3), hold()));
    assert_eq!(count(), 3, "the keeper makes a map, which takes a while");
    let Next::Do(Chore::Tell(Function::Close(3), _)) = list.next() else { panic!("nothing is to be told") };
    drop(list.tell(Function::Close(4), hold()));
    let abandoned = list.unclaim();
    assert_eq!(count(), 3, "nothing is dropped within");
    abandoned.let_go();
    assert_eq!(count(), 4);
    assert!(list.next_told().is_some(), "the target is told all the same");
}

/// Does it in a thread of its own, which does not come back if a lock is taken twice.
fn in_time(work: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    let thread = thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    assert!(is_done.recv_timeout(PATIENCE) != Err(mpsc::RecvTimeoutError::Timeout), "it hangs");
    thread.join().unwrap();
}

#[test]
fn the_last_handle_of_a_file_may_go_wherever_a_hold_goes() {
    in_time(|| {
        let chores: Arc<Chores> = Arc::default();
        // Nobody keeps maps: it goes at once.
        chores.tell_holding(Function::Close(1), hold_with_last_handle(&chores));
        assert!(chores.claim());
        chores.tell_holding(Function::Close(2), hold_with_last_handle(&chores));
        // The keeper goes.
        chores.unclaim();
        let told = std::iter::from_fn(|| chores.next_told().map(|(function, _)| function));
        let told: Vec<Function> = told.collect();
        assert_eq!(told, [1, 7, 2, 7].map(Function::Close));
    });
}

#[test]
fn the_keeper_may_be_the_last_who_has_a_file() {
    in_time(|| {
        let chores: Arc<Chores> = Arc::default();
        assert!(chores.claim());
        let file = opened_file(&chores);
        assert!(chores.map(&file));
        let Some(Chore::Map(last)) = ob_nvme::initiator::block_on(chores.next()) else { panic!("no file") };
        drop(file);
        drop(last);
        assert_eq!(chores.next_told().map(|(function, _)| function), Some(Function::Close(7)));
    });
}
