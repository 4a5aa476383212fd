//! The inside of a notification group: operations go out through the lanes, answers come back and complete them.
//!
//! ```text
//!   start ──▶ slot ──▶ request ring ──▶ card ──▶ response ring ──▶ pump ──▶ slot ──▶ tag, callback or future
//!     └─ no room ─▶ queue ──── room ───▲                             │
//!                                      └────── serve queues ─────────┘
//! ```
//!
//! Every thread of the application may do all of this at the same time. Locks are taken in this order: the change of
//! lanes, a queue, the lanes, a slot; none is held while code of the application runs. What starts the library's thread holds one alone.

mod answers;
mod driver;
mod queues;
mod ready;
mod sleep;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::thread::ThreadId;
use std::time::Duration;

use ob_wire_link::files::CardInfo;

use crate::bell::Bell;
use crate::error::Error;
use crate::lane::Life;
use crate::options::GroupOptions;
use crate::pace::Pace;
use crate::table::Table;

use queues::Queue;
use ready::Ready;

pub(crate) use answers::Pumped;
pub(crate) use ready::{Give, Keep, Sink, WaitFor};
pub(crate) use sleep::{BESIDE, Look};

/// What a group needs of its session.
pub(crate) trait Keeper: Send + Sync {
    /// The group lost its lanes, or an operation waits for a card: look after it.
    fn notice(&self);

    /// How long operations wait for a card to come back.
    fn patience(&self) -> Duration;
}

/// The inside of a notification group.
pub(crate) struct GroupCore {
    pub(crate) options: GroupOptions,
    keeper: Arc<dyn Keeper>,
    table: Table,
    life: RwLock<Option<Arc<Life>>>,
    /// Held while lanes end or begin: nothing that was sent on the old ones is left when there are new ones.
    changing: Mutex<()>,
    pace: Mutex<Pace>,
    queues: [Queue; 2],
    ready: Ready,
    bell: Bell,
    strays: AtomicU64,
    /// Held while the thread of the library is started.
    starting: Mutex<()>,
    is_driven: AtomicBool,
    /// The thread of the library that takes the answers.
    driver: OnceLock<ThreadId>,
    /// Nothing begins any more.
    stopped: AtomicBool,
    /// Everything that was out has been completed.
    ended: AtomicBool,
}

impl GroupCore {
    pub(crate) fn new(options: GroupOptions, keeper: Arc<dyn Keeper>) -> Self {
        Self {
            table: Table::new(options.outstanding),
            options,
            keeper,
            life: RwLock::new(None),
            changing: Mutex::new(()),
            pace: Mutex::default(),
            queues: Default::default(),
            ready: Ready::default(),
            bell: Bell::default(),
            strays: AtomicU64::new(0),
            starting: Mutex::new(()),
            is_driven: AtomicBool::new(false),
            driver: OnceLock::new(),
            stopped: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        }
    }

    /// The lanes as they are now.
    pub(crate) fn current(&self) -> Option<Arc<Life>> {
        self.lanes().clone()
    }

    /// The lanes as they are now, and they stay so as long as this is held.
    fn lanes(&self) -> RwLockReadGuard<'_, Option<Arc<Life>>> {
        self.life.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn card(&self) -> Option<CardInfo> {
        self.current().map(|life| life.card)
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.table.count()
    }

    /// Answers that nobody asked for, so far.
    pub(crate) fn strays(&self) -> u64 {
        self.strays.load(Ordering::Relaxed)
    }

    /// Goes on with these lanes.
    pub(crate) fn install(&self, life: Life) {
        {
            let _changing = self.changing();
            let mut current = self.life.write().unwrap_or_else(PoisonError::into_inner);
            if self.is_stopped() {
                return;
            }
            *current = Some(Arc::new(life));
        }
        self.serve_queues();
        self.bell.ring();
    }

    fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often new lanes are tried.
    pub(crate) fn pace(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the group: its lanes are closed, what is out fails, and its thread ends once it has told everybody.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        // Whoever ends lanes has taken operations out of the table, and completions by tag are told before it is done.
        let changing = self.changing();
        let life = self.life.write().unwrap_or_else(PoisonError::into_inner).take();
        drop((life, changing));
        self.table.take_all(|operation| self.finish(operation, Err(Error::Closed)));
        self.serve_queues();
        self.ended.store(true, Ordering::SeqCst);
        self.bell.ring();
        if !self.is_driven() {
            self.run_calls();
        }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Whether nothing comes any more that is not there already.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// What a group without lanes says.
    fn without_lanes(&self) -> Error {
        if self.is_stopped() { Error::Closed } else { Error::Detached }
    }
}

#[cfg(test)]
#[path = "core_tests.rs"]
mod tests;
