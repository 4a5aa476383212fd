//! A store in memory: for one process, and for tests. It ends with its process.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::time::Duration;

use ob_core::{Instant, Refused, RefusedReason, Revision, SessionId, Token};

use super::{
    Change, Expect, Key, KeyValue, LIST_MAX, MetadataAnswer, MetadataCompletion, MetadataError, MetadataOp,
    MetadataStore, Transaction, Value,
};

/// Operations that it takes before it is polled.
const OPERATIONS_MAX: usize = 256;

/// A value and what belongs to it.
#[derive(Clone, Debug)]
struct Held {
    value: Value,
    revision: Revision,
    session: Option<SessionId>,
}

#[derive(Clone, Copy, Debug)]
struct Session {
    ttl: Duration,
    ends: Instant,
}

/// A store in memory. An operation takes effect when its answer is polled, in the order in which they were submitted; time goes
/// on as it is told.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    now: Instant,
    keys: BTreeMap<Key, Held>,
    sessions: BTreeMap<SessionId, Session>,
    /// Of the last change.
    revision: u64,
    /// The last session that was given.
    last_session: u64,
    submitted: VecDeque<(Token, MetadataOp)>,
}

impl MemoryStore {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Says what time it is. Sessions that nobody has renewed end.
    pub fn set_time(&mut self, now: Instant) {
        self.now = self.now.max(now);
        let over = self.sessions.iter().filter(|(_, session)| session.ends <= self.now);
        let over: Vec<SessionId> = over.map(|(id, _)| *id).collect();
        for session in over {
            self.end(session);
        }
    }

    /// How many sessions there are.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    fn execute(&mut self, op: MetadataOp) -> Result<MetadataAnswer, MetadataError> {
        match op {
            MetadataOp::Get { key } => {
                let held = self.keys.get(&key);
                Ok(MetadataAnswer::Value(held.map(|held| (held.value.clone(), held.revision))))
            }
            MetadataOp::List { prefix, after, most } => Ok(self.list(&prefix, after.as_ref(), most)),
            MetadataOp::Commit(transaction) => self.commit(transaction),
            MetadataOp::Grant { ttl } => {
                self.last_session += 1;
                let session = SessionId(self.last_session);
                self.sessions.insert(session, Session { ttl, ends: self.now + ttl });
                Ok(MetadataAnswer::Session(session))
            }
            MetadataOp::Renew { session } => {
                let session = self.sessions.get_mut(&session).ok_or(MetadataError::NoSession)?;
                session.ends = self.now + session.ttl;
                Ok(MetadataAnswer::Renewed)
            }
            MetadataOp::Revoke { session } => {
                if !self.sessions.contains_key(&session) {
                    return Err(MetadataError::NoSession);
                }
                self.end(session);
                Ok(MetadataAnswer::Revoked)
            }
            // It has no more than the last value of each key.
            MetadataOp::Forget { .. } => Ok(MetadataAnswer::Forgotten),
        }
    }

    fn list(&self, prefix: &Key, after: Option<&Key>, most: u32) -> MetadataAnswer {
        let first = after.filter(|after| *after >= prefix);
        let first = first.map_or(Bound::Included(prefix), Bound::Excluded);
        let found = self.keys.range((first, Bound::Unbounded));
        let mut found = found.take_while(|(key, _)| key.as_str().starts_with(prefix.as_str()));
        let entries = found.by_ref().take(most.min(LIST_MAX) as usize).map(|(key, held)| KeyValue {
            key: key.clone(),
            value: held.value.clone(),
            revision: held.revision,
        });
        let entries = entries.collect();
        MetadataAnswer::Values { entries, has_more: found.next().is_some() }
    }

    fn commit(&mut self, transaction: Transaction) -> Result<MetadataAnswer, MetadataError> {
        transaction.check()?;
        let holds = |(key, expect): &(Key, Expect)| match (expect, self.keys.get(key)) {
            (Expect::Absent, held) => held.is_none(),
            (Expect::At(revision), held) => held.is_some_and(|held| held.revision == *revision),
        };
        if let Some(unmet) = transaction.compare.iter().position(|comparison| !holds(comparison)) {
            return Ok(MetadataAnswer::Unmet(unmet));
        }
        let sessions = transaction.change.iter().filter_map(|change| match change {
            Change::Put { session, .. } => *session,
            Change::Delete { .. } => None,
        });
        if sessions.into_iter().any(|session| !self.sessions.contains_key(&session)) {
            return Err(MetadataError::NoSession);
        }
        if !transaction.change.is_empty() {
            self.revision += 1;
        }
        let revision = Revision(self.revision);
        for change in transaction.change {
            match change {
                Change::Put { key, value, session } => {
                    self.keys.insert(key, Held { value, revision, session });
                }
                Change::Delete { key } => {
                    self.keys.remove(&key);
                }
            }
        }
        Ok(MetadataAnswer::Committed(revision))
    }

    fn end(&mut self, session: SessionId) {
        self.sessions.remove(&session);
        let before = self.keys.len();
        self.keys.retain(|_, held| held.session != Some(session));
        if self.keys.len() != before {
            self.revision += 1;
        }
    }
}

impl MetadataStore for MemoryStore {
    fn submit(&mut self, token: Token, op: MetadataOp) -> Result<(), Refused<MetadataOp>> {
        if self.submitted.len() >= OPERATIONS_MAX {
            return Err(Refused { op, reason: RefusedReason::Busy });
        }
        self.submitted.push_back((token, op));
        Ok(())
    }

    fn poll(&mut self) -> Option<MetadataCompletion> {
        let (token, op) = self.submitted.pop_front()?;
        Some(MetadataCompletion { token, result: self.execute(op) })
    }

    fn next_due(&self) -> Option<Instant> {
        self.sessions.values().map(|session| session.ends).min()
    }
}
