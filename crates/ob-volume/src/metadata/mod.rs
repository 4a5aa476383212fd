//! What several machines must agree on: volumes, who owns which segment, which servers have which chunk.
//!
//! ```text
//!   TierCore ── submit(token, MetadataOp) ──▶ MetadataStore ── poll() ──▶ MetadataCompletion
//!                                             MemoryStore in tests, RedbStore on one machine, etcd where there are several
//! ```
//!
//! Transactions compare and swap, sessions end when nobody renews them, nobody watches. The contract is in
//! `docs/volumes-safety.md`; what values look like, in `ob_format::volume::metadata`.

mod etcd;
mod keys;
mod memory;
mod plant;
mod redb;

#[cfg(test)]
mod doc_tests;

use std::fmt;
use std::time::Duration;

use ob_core::{Instant, Refused, Revision, SessionId, Token};

pub use etcd::{
    EtcdOp, EtcdOutcome, EtcdRequest, EtcdSessions, EtcdStep, HttpAnswer, http_answer, http_post,
};
pub use keys::{Keys, KeysError, MetadataValue, Name, POOL_NAME_LEN_MAX};
pub use memory::MemoryStore;
pub use redb::{RedbError, RedbStore, Standing};

/// Most comparisons of a transaction, and most changes.
pub const TRANSACTION_MAX: usize = 64;
/// Bytes of the longest key.
pub const KEY_LEN_MAX: usize = 256;
/// Bytes of the longest value.
pub const VALUE_LEN_MAX: usize = 4096;
/// Most entries of a page; who asks for more gets so many.
pub const LIST_MAX: u32 = 1024;

/// What a value is found by: text, of 1 to [`KEY_LEN_MAX`] bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Box<str>);

/// What a key has: at most [`VALUE_LEN_MAX`] bytes.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Value(Box<[u8]>);

/// What a store is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetadataOp {
    /// A key's value: [`MetadataAnswer::Value`].
    Get {
        /// The key.
        key: Key,
    },
    /// Keys that begin alike, in their order: [`MetadataAnswer::Values`].
    List {
        /// What they begin with.
        prefix: Key,
        /// Behind which one to go on.
        after: Option<Key>,
        /// How many at most, and never more than [`LIST_MAX`].
        most: u32,
    },
    /// All changes, if all comparisons hold: [`MetadataAnswer::Committed`] or [`MetadataAnswer::Unmet`].
    Commit(Transaction),
    /// A session: [`MetadataAnswer::Session`].
    Grant {
        /// How long it lasts without a renewal.
        ttl: Duration,
    },
    /// That it goes on: [`MetadataAnswer::Renewed`].
    Renew {
        /// Which session.
        session: SessionId,
    },
    /// That it ends: [`MetadataAnswer::Revoked`].
    Revoke {
        /// Which session.
        session: SessionId,
    },
    /// That nobody asks any more what was before a revision: [`MetadataAnswer::Forgotten`]. A store that keeps no history does nothing.
    Forget {
        /// It is the first that is kept.
        before: Revision,
    },
}

/// Changes that happen all or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// What must hold.
    pub compare: Vec<(Key, Expect)>,
    /// What changes then.
    pub change: Vec<Change>,
}

/// What a comparison expects of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// That it is not there.
    Absent,
    /// That its last change had this revision.
    At(Revision),
}

/// A change of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It has this value.
    Put {
        /// The key.
        key: Key,
        /// The value.
        value: Value,
        /// With whose end it goes, if with any.
        session: Option<SessionId>,
    },
    /// It is not there.
    Delete {
        /// The key.
        key: Key,
    },
}

/// A key with its value and the revision of its last change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    /// The key.
    pub key: Key,
    /// The value.
    pub value: Value,
    /// When it last changed.
    pub revision: Revision,
}

/// What a store answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetadataAnswer {
    /// The value, if there is one, and the revision of its last change.
    Value(Option<(Value, Revision)>),
    /// Keys and values, all of one moment.
    Values {
        /// They.
        entries: Vec<KeyValue>,
        /// Whether there are more.
        has_more: bool,
    },
    /// The changes were made, all with this revision.
    Committed(Revision),
    /// Nothing was changed, because this comparison did not hold: the first that did not.
    Unmet(usize),
    /// The session is there.
    Session(SessionId),
    /// The session was there at an instant after the call, and goes on.
    Renewed,
    /// The session is over, and its keys are gone.
    Revoked,
    /// What was before is forgotten.
    Forgotten,
}

/// Why a store has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    /// There is no such session; nothing was done.
    #[error("the session is over")]
    NoSession,
    /// The store was not reached; surely nothing was done.
    #[error("the metadata store cannot be reached")]
    Unreachable,
    /// It was, or was not, or will be done.
    #[error("the metadata store did not answer in time")]
    Unknown,
    /// More than a transaction may have; nothing was done.
    #[error("a transaction has at most {TRANSACTION_MAX} comparisons and changes")]
    TooLarge,
    /// A key is changed twice, or is not compared (rule M1); nothing was done.
    #[error("the transaction changes a key twice, or one that it does not compare")]
    Malformed,
    /// What the store has cannot be read.
    #[error("the metadata store is damaged")]
    Damaged,
}

/// What became of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataCompletion {
    /// As it was submitted.
    pub token: Token,
    /// What the store answers.
    pub result: Result<MetadataAnswer, MetadataError>,
}

/// What several machines must agree on. Submit and poll, as a [`ob_core::Device`]: drivers block, cores do not.
///
/// Gets, lists and commits take effect at one instant between call and answer. Revisions grow with every change of the store
/// and are never used again. A key that was put with a session is deleted when the session ends (revoked, or its `ttl` after its
/// last renewal by whatever clock the store has, sooner or later); sessions never come back.
pub trait MetadataStore {
    /// Takes an operation, or hands it back when too many are under way.
    ///
    /// # Errors
    ///
    /// When it was not taken: nothing of it will happen.
    fn submit(&mut self, token: Token, op: MetadataOp) -> Result<(), Refused<MetadataOp>>;

    /// The next answer, in any order.
    fn poll(&mut self) -> Option<MetadataCompletion>;

    /// When there is something to do without being asked, if ever.
    fn next_due(&self) -> Option<Instant> {
        None
    }
}

impl Key {
    /// Takes a text, if it can be a key.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let is_legal = (1..=KEY_LEN_MAX).contains(&text.len()) && !text.chars().any(char::is_control);
        is_legal.then(|| Self(text.into()))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Value {
    /// Takes bytes, if they are not too many.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        (bytes.len() <= VALUE_LEN_MAX).then(|| Self(bytes.into()))
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Change {
    /// What changes.
    #[must_use]
    pub const fn key(&self) -> &Key {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => key,
        }
    }
}

impl Transaction {
    /// Whether a store may take it: it is not too large, and compares each key that it changes, once (rule M1).
    ///
    /// # Errors
    ///
    /// Why not.
    pub fn check(&self) -> Result<(), MetadataError> {
        if self.compare.len() > TRANSACTION_MAX || self.change.len() > TRANSACTION_MAX {
            return Err(MetadataError::TooLarge);
        }
        // Both are short: no table is worth its making.
        let is_compared = |key: &Key| self.compare.iter().any(|(compared, _)| compared == key);
        for (number, change) in self.change.iter().enumerate() {
            let is_twice = self.change.iter().skip(number + 1).any(|other| other.key() == change.key());
            if is_twice || !is_compared(change.key()) {
                return Err(MetadataError::Malformed);
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, formatter)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} bytes", self.0.len())?;
        self.0.get(..4).map_or(Ok(()), |magic| write!(formatter, " ({})", magic.escape_ascii()))
    }
}
