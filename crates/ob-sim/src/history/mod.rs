//! Whether what clients saw can be explained by one store that does one thing at a time.
//!
//! ```text
//!   clients ──▶ [Operation]: command, called, returned ──▶ partition by keys ──▶ search, one part after the other
//!                                                                                  │
//!   Specification: what a store does with a command ───────────────────────────────┤
//!                                                                                  ▼
//!                             Verdict: Linearizable │ Violated: the shortest prefix that fails │ GaveUp
//! ```
//!
//! A history is *linearizable* if every operation can be given an instant between its call and its return, such that the
//! commands, executed in the order of those instants, give the replies that were seen. An operation that never returned may
//! have taken effect at any time after its call, or not at all.
//!
//! The search is that of Wing and Gong ("Testing and verifying concurrent objects", 1993), with Lowe's memory of what was tried
//! ("Testing for linearizability", 2017): a set of operations together with the state that they lead to is not tried twice. Two
//! observations keep it short. Parts of a history that share no key are independent. And a read that fits the present state
//! and may come next can come next: whatever else explains the history still does with the read moved forward.
//!
//! Time counts besides order where keys expire. What the search knows of the instant of an operation is a [`Window`]; a
//! specification that depends on time says so, and gets it.

mod explain;
mod kv;
mod partition;
mod search;
#[cfg(test)]
mod tests;

use std::fmt;
use std::hash::Hash;

pub use explain::Violation;
pub use kv::{Command, Expiry, KvSpec, KvState, Reply};

/// What one client asked, and what it was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation<C, R> {
    /// Who asked. A client may have several operations under way.
    pub client: u32,
    /// What it was asked in: operations of one session that take effect do so in the order of their calls, also where
    /// several are under way. (What is lost may have taken no effect though a later one did.)
    pub session: Option<u64>,
    /// What was asked.
    pub command: C,
    /// When it was asked, in nanoseconds of a clock that is the same for all.
    pub called: u64,
    /// What came back; nothing if nobody knows whether the command was executed.
    pub returned: Option<Returned<R>>,
    /// Where nothing came back: the instant after which it was not executed any more, for example because what it was sent to
    /// was dead and empty by then. Without one it may be executed at any later time.
    pub gone_by: Option<u64>,
}

/// The end of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Returned<R> {
    /// When the reply was there.
    pub at: u64,
    /// The reply.
    pub reply: R,
}

/// An operation of a specification's commands and replies.
pub type OperationOf<S> = Operation<<S as Specification>::Command, <S as Specification>::Reply>;

/// What is known of the instant at which an operation takes effect: it is not before `earliest` and not after `latest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The operations before it in the order, and the operation itself, were called by then.
    pub earliest: u64,
    /// The first of those that are still to come, the operation itself among them, has returned by then.
    pub latest: u64,
}

/// What a store that does one thing at a time would do.
pub trait Specification {
    /// What it is asked.
    type Command: fmt::Display;
    /// What it answers.
    type Reply: fmt::Display;
    /// What commands name. Those that name different keys have nothing to do with each other.
    type Key: Ord;
    /// All that it remembers.
    type State: Clone + Eq + Hash;

    /// What it remembers at first.
    fn initial(&self) -> Self::State;

    /// The keys that a command names. None at all: it may concern any key.
    fn keys(&self, command: &Self::Command) -> Vec<Self::Key>;

    /// Whether a command never changes what is remembered.
    fn is_read(&self, command: &Self::Command) -> bool;

    /// Whether what a command does depends on the time, or makes later ones depend on it.
    fn is_timed(&self, command: &Self::Command) -> bool {
        let _ = command;
        false
    }

    /// Adds the states that there can be after the command took effect within the window and gave the reply; with no
    /// reply, whatever it gave. None is added if it cannot have given it.
    fn apply(
        &self,
        state: &Self::State,
        command: &Self::Command,
        reply: Option<&Self::Reply>,
        window: Window,
        successors: &mut Vec<Self::State>,
    );
}

/// How much the search may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Operations that are tried at some place of an order, for each part of the history.
    pub steps_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { steps_max: 5_000_000 }
    }
}

/// What was found out about a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is an order that explains it.
    Linearizable,
    /// There is none.
    Violated(Box<Violation>),
    /// There may be one: none was found within the limits.
    GaveUp {
        /// How many operations were tried at some place.
        steps: u64,
    },
    /// An operation returned before it was called: whoever wrote this down made a mistake.
    Malformed {
        /// The operation, by its place in the history.
        operation: usize,
    },
}

impl Verdict {
    /// Whether there is an order that explains the history.
    #[must_use]
    pub fn is_linearizable(&self) -> bool {
        *self == Self::Linearizable
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Linearizable => write!(formatter, "linearizable"),
            Self::Violated(violation) => violation.fmt(formatter),
            Self::GaveUp { steps } => write!(formatter, "gave up after {steps} steps"),
            Self::Malformed { operation } => {
                write!(formatter, "operation {operation} returned before it was called")
            }
        }
    }
}

/// Finds out whether a history is linearizable. The operations may be in any order.
#[must_use]
pub fn check<S: Specification>(specification: &S, history: &[OperationOf<S>], limits: Limits) -> Verdict {
    let is_malformed =
        |operation: &OperationOf<S>| operation.returned.as_ref().is_some_and(|end| end.at < operation.called);
    if let Some(operation) = history.iter().position(is_malformed) {
        return Verdict::Malformed { operation };
    }
    let mut gave_up = None;
    for part in partition::partition(specification, history) {
        match explain::check_part(specification, history, part, limits) {
            Verdict::Linearizable => {}
            // Another part may be known to be wrong, which says more.
            Verdict::GaveUp { steps } => gave_up = Some(Verdict::GaveUp { steps }),
            verdict => return verdict,
        }
    }
    gave_up.unwrap_or(Verdict::Linearizable)
}
