//! The thread of the library that takes the answers of a group, where futures or callbacks want one.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::{GroupCore, Keep, Look};
use crate::error::Error;
use crate::options::Driver;

impl GroupCore {
    /// Whether a thread of the library takes the answers.
    pub(super) fn is_driven(&self) -> bool {
        self.is_driven.load(Ordering::SeqCst)
    }

    /// Whether another thread than this one takes the answers, so that this one may sleep until it has.
    pub(crate) fn is_driven_elsewhere(&self) -> bool {
        self.is_driven() && self.driver.get() != Some(&std::thread::current().id())
    }

    /// Starts the thread that takes the answers, if this group is to have one.
    pub(crate) fn drive(self: &Arc<Self>) -> Result<(), Error> {
        let thread = || std::thread::Builder::new().name("outboard-group".to_owned());
        self.drive_by(|core| thread().spawn(move || core.run()).map(drop))
    }

    pub(super) fn drive_by(
        self: &Arc<Self>,
        start: impl FnOnce(Arc<Self>) -> io::Result<()>,
    ) -> Result<(), Error> {
        if self.options.driver == Driver::Caller || self.is_driven() {
            return Ok(());
        }
        let _starting = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_driven() {
            return Ok(());
        }
        start(Arc::clone(self)).map_err(|error| {
            tracing::error!("cannot start the thread of a group: {error}");
            Error::System
        })?;
        // Not before there is a thread: who is told that there is one sleeps until that wakes it.
        self.is_driven.store(true, Ordering::SeqCst);
        Ok(())
    }

    fn run(&self) {
        let _ = self.driver.set(std::thread::current().id());
        while !self.has_ended() {
            let turn = || {
                self.sleep_until(None, || {
                    let pumped = self.pump(&mut Keep);
                    Look::new((pumped.completed > 0 || self.has_ended()).then_some(()), pumped)
                });
            };
            // A callback that panics must not take every future of the group with it.
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(turn)).is_err() {
                tracing::error!("a completion callback panicked");
            }
        }
        self.run_calls();
    }
}
