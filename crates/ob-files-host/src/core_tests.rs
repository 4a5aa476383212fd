//! A group's inside without a card.

use std::io;

use super::queues::Note;
use super::*;
use crate::control::Control;
use crate::deliver::{Cell, Deliver};
use crate::request::Operation;

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
