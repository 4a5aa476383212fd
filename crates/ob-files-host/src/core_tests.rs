//! A group's inside, mostly without a card.

#[path = "../tests/common/mod.rs"]
mod common;

use std::io;

use ob_wire_link::files;

use super::answers::LaneOver;
use super::queues::Note;
use super::*;
use crate::Session;
use crate::control::Control;
use crate::deliver::{Cell, Deliver};
use crate::error::Fault;
use crate::request::{Operation, RequestId};
use common::{Act, FakeCard, LONG, collect};

struct Patient;

impl Keeper for Patient {
    fn notice(&self) {}

    fn patience(&self) -> Duration {
        Duration::from_secs(60)
    }
}

fn waiting(core: &GroupCore) -> Arc<Cell> {
    let cell = Arc::new(Cell::default());
    core.start_or_wait(Operation::control(Control::flush(), Deliver::Cell(Arc::clone(&cell))));
    assert!(!cell.is_done());
    cell
}

#[test]
fn an_operation_that_is_given_up_is_completed_and_no_other() {
    let core = GroupCore::new(GroupOptions::polled(), Arc::new(Patient));
    let (given_up, other) = (waiting(&core), waiting(&core));
    core.give_up(&given_up, &Error::System);
    assert_eq!(given_up.take().unwrap().result, Err(Error::System));
    assert!(!other.is_done());
    core.stop();
    assert_eq!(other.take().unwrap().result, Err(Error::Closed));
}

#[test]
fn what_is_queued_after_the_last_look_at_the_queues_is_completed() {
    let core = GroupCore::new(GroupOptions::polled(), Arc::new(Patient));
    core.stop();
    let cell = Arc::new(Cell::default());
    let operation = Operation::control(Control::flush(), Deliver::Cell(Arc::clone(&cell)));
    core.queue(0, Note::Start(Box::new(operation), None));
    assert_eq!(cell.take().unwrap().result, Err(Error::Closed));
}

#[test]
fn nobody_sleeps_for_a_thread_that_could_not_be_started() {
    let core = Arc::new(GroupCore::new(GroupOptions::default(), Arc::new(Patient)));
    let failed = core.drive_by(|core| {
        assert!(!core.is_driven_elsewhere(), "whoever waits now has to look for itself");
        Err(io::ErrorKind::WouldBlock.into())
    });
    assert_eq!(failed, Err(Error::System));
    assert!(!core.is_driven_elsewhere());
    assert_eq!(core.drive_by(|_| Ok(())), Ok(()));
    assert!(core.is_driven_elsewhere());
    assert_eq!(core.drive_by(|_| panic!("there is one already")), Ok(()));
}

/// A card that keeps the answer to a read, whose tag is 5, to itself.
fn held_read() -> (FakeCard, Session, crate::File) {
    let card = FakeCard::start();
    let session = card.session();
    let file = session.create("/f").wait().unwrap();
    file.write_at(b"answered".to_vec(), 0).wait().0.unwrap();
    card.rule_for(files::Operation::Read, |_| Act::Hold);
    file.submit_read(vec![0; 8], 0, 5).unwrap();
    card.wait_held(1);
    (card, session, file)
}

#[test]
fn an_answer_that_a_thread_has_just_taken_counts_when_the_card_dies() {
    let (card, session, _file) = held_read();
    let id = RequestId::from_wire(card.requests_of(files::Operation::Read)[0].id);
    let (group, core) = (session.own_group(), session.own_group().core());
    let life = core.current().unwrap();
    let receiver = &life.lanes[0].group.receiver;
    let completions = std::thread::scope(|scope| {
        // Whoever takes the answer does not get at its operation.
        let slot = core.table.find(id).unwrap();
        card.release();
        while receiver.is_empty() {
            std::thread::yield_now();
        }
        let taker = scope.spawn(|| collect(group, 1));
        while !receiver.is_empty() {
            std::thread::yield_now();
        }
        scope.spawn(|| core.life_over(&life, &Error::CardGone));
        // Nobody reads any more when somebody waits to write.
        while core.life.try_read().is_ok_and(|life| life.is_some()) {
            std::thread::yield_now();
        }
        assert!(core.life.try_read().is_err(), "the lanes end before the answer has found its operation");
        drop(slot);
        taker.join().unwrap()
    });
    assert_eq!((completions[0].tag, &completions[0].result), (5, &Ok(8)));
    assert_eq!(group.stray_answers(), 0);
}

#[test]
fn a_request_ring_that_is_garbled_ends_its_lanes_and_others_are_opened() {
    let card = FakeCard::start();
    let session = Session::open(card.options().patience(LONG)).unwrap();
    let file = session.create("/f").wait().unwrap();
    file.write_at(b"answered".to_vec(), 0).wait().0.unwrap();
    card.rule_for(files::Operation::Read, |_| Act::Hold);
    let out = file.read_at(vec![0; 8], 0);
    card.wait_held(1);
    session.own_group().core().current().unwrap().lanes[0].garble();
    assert_eq!(out.wait().0, Err(Error::Protocol(Fault::Ring)));
    card.obey();
    assert_eq!(file.read_at(vec![0; 8], 0).wait(), (Ok(8), b"answered".to_vec()));
}

/// The card takes its memory back while a thread has an answer in its hands.
#[test]
fn an_answer_whose_memory_is_gone_completes_nothing() {
    let (card, session, file) = held_read();
    let core = Arc::clone(session.own_group().core());
    let life = core.current().unwrap();
    let lane = &life.lanes[0];
    card.release();
    while lane.group.receiver.is_empty() {
        std::thread::yield_now();
    }
    let claimed = lane.group.receiver.receive().unwrap().unwrap();
    drop((file, session));
    while claimed.check().is_ok() {
        std::thread::yield_now();
    }
    assert!(matches!(core.settle(lane, &claimed), Err(LaneOver(Error::CardGone))));
}

/// Nothing is left of a group only when whoever ended its lanes has told of what was out.
#[test]
fn a_group_ends_behind_those_who_end_its_lanes() {
    let core = GroupCore::new(GroupOptions::polled(), Arc::new(Patient));
    let changing = core.changing();
    std::thread::scope(|scope| {
        scope.spawn(|| core.stop());
        while !core.is_stopped() {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(20));
        assert!(!core.has_ended());
        drop(changing);
    });
    assert!(core.has_ended());
}
