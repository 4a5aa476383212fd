//! Who uses the card's files from within the card: namespaces that lie on some of them, and the engine that reads the key-value
//! store's log.
//!
//! ```text
//!   LocalFiles ── requests ──▶ Hub ──▶ FilesService ──▶ CardFiles
//!        ▲                      │          │
//!        └────── answers ◀──────┘◀─────────┘
//! ```
//!
//! Both ends live in one thread, and neither calls the other: the service looks into the hub when it is polled. Buffers
//! go through as they are.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ob_core::Token;
use ob_wire_link::files::CardInfo;

use crate::engine::{Completion, Op};

/// Requests of one user on their way at once.
const REQUESTS_MAX: usize = 1024;

/// A user's end.
pub struct LocalFiles {
    hub: Rc<RefCell<Hub>>,
    user: u64,
    card: CardInfo,
}

/// What is between the users and the service.
#[derive(Default)]
pub(crate) struct Hub {
    requests: VecDeque<Request>,
    users: BTreeMap<u64, User>,
    next_user: u64,
}

/// A request, and who it is from.
pub(crate) struct Request {
    pub(crate) user: u64,
    pub(crate) token: Token,
    pub(crate) op: Op,
}

#[derive(Default)]
struct User {
    answers: VecDeque<Completion>,
    in_flight: usize,
    allocated: Arc<AtomicU64>,
}

impl LocalFiles {
    pub(crate) fn new(hub: &Rc<RefCell<Hub>>, card: CardInfo) -> Self {
        let mut inner = hub.borrow_mut();
        let user = inner.next_user;
        inner.next_user += 1;
        inner.users.insert(user, User::default());
        Self { hub: Rc::clone(hub), user, card }
    }

    /// One more end, with answers of its own.
    #[must_use]
    pub fn another(&self) -> Self {
        Self::new(&self.hub, self.card)
    }

    /// What the files are like.
    pub fn card_info(&self) -> CardInfo {
        self.card
    }

    /// Bytes of the device that the file has which this end changed or held last, as of its last answer. Whoever has this
    /// sees the number change.
    pub fn allocated(&self) -> Arc<AtomicU64> {
        self.hub.borrow().users.get(&self.user).map(|user| Arc::clone(&user.allocated)).unwrap_or_default()
    }

    /// Whether one more request is taken.
    pub fn has_room(&self) -> bool {
        self.hub.borrow().users.get(&self.user).is_some_and(|user| user.in_flight < REQUESTS_MAX)
    }

    /// Whether requests of this end are on their way.
    pub fn has_requests(&self) -> bool {
        self.hub.borrow().users.get(&self.user).is_some_and(|user| user.in_flight > 0)
    }

    /// Sends a request, or hands it back if too many are on their way.
    pub fn submit(&mut self, token: Token, op: Op) -> Result<(), Op> {
        let mut hub = self.hub.borrow_mut();
        match hub.users.get_mut(&self.user).filter(|user| user.in_flight < REQUESTS_MAX) {
            Some(user) => user.in_flight += 1,
            None => return Err(op),
        }
        hub.requests.push_back(Request { user: self.user, token, op });
        Ok(())
    }

    /// The next answer.
    pub fn poll(&mut self) -> Option<Completion> {
        self.hub.borrow_mut().users.get_mut(&self.user)?.answers.pop_front()
    }

    /// Sends a request whose answer nobody waits for.
    pub fn send_and_forget(&mut self, op: Op) {
        self.hub.borrow_mut().requests.push_back(Request { user: u64::MAX, token: Token(0), op });
    }
}

impl Drop for LocalFiles {
    fn drop(&mut self) {
        self.hub.borrow_mut().users.remove(&self.user);
    }
}

impl Hub {
    pub(crate) fn take(&mut self) -> Option<Request> {
        self.requests.pop_front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// What the file of a user has now.
    pub(crate) fn set_allocated(&mut self, user: u64, bytes: u64) {
        if let Some(user) = self.users.get(&user) {
            user.allocated.store(bytes, Ordering::Relaxed);
        }
    }

    /// Who is gone wants no answer.
    pub(crate) fn answer(&mut self, user: u64, completion: Completion) {
        if let Some(user) = self.users.get_mut(&user) {
            user.in_flight -= 1;
            user.answers.push_back(completion);
        }
    }
}
