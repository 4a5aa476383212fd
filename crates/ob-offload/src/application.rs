//! What a service tells the card about its requests: the functions of DDS Table 1, and what correctness needs beyond them.
//!
//! Each function gets bytes and small values, and gives lists back; none keeps a reference, and none has a state but the
//! cutter's. So a verified program can stand in for the four of DDS, and for [`Application::check`].

use std::ops::{Range, RangeInclusive};

use ob_table::{Hit, Item, Key, Stamp};

use crate::Reason;
use crate::reply::{ReadBytes, Reply};

/// What the host says of a connection: 0 if the card may answer nothing on it, else what the service's own functions have
/// to know (rule 7 of `docs/linearizable-offload.md`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing(pub u32);

impl Standing {
    /// The card may answer nothing.
    pub const NONE: Self = Self(0);

    /// Whether the card may answer.
    pub fn is_admitted(self) -> bool {
        self != Self::NONE
    }
}

/// Whether a client knows its replies by their order or by ids in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyOrder {
    /// Replies come in the order of their requests.
    AsAsked,
    /// Replies carry the ids of their requests, and come when they are there.
    ById,
}

/// What is at the front of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The begin of a message, of which at least so many bytes are missing.
    Part(usize),
    /// A message of so many bytes.
    Message(usize),
    /// So many bytes that ask for nothing.
    Nothing(usize),
    /// What cannot be cut. The client gets the reply that was written, and the connection ends.
    Wrong,
}

/// Who answers a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// The card, if the table has all of the request's keys.
    Card,
    /// The host.
    Host {
        /// Why.
        reason: Reason,
        /// What it may change: this is invalidated before it is forwarded.
        changes: Changes,
        /// Whether the connection's standing may be another one afterwards.
        may_change_standing: bool,
    },
}

impl Route {
    /// To the host, for a request that changes nothing.
    #[must_use]
    pub fn to_host(reason: Reason) -> Self {
        Self::Host { reason, changes: Changes::Nothing, may_change_standing: false }
    }
}

/// What a request may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changes {
    /// Nothing.
    Nothing,
    /// Its keys.
    Keys,
    /// Keys that are not in its bytes.
    Everything,
}

/// A request of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its bytes in the message: what the host gets, and what the other functions see.
    pub bytes: Range<usize>,
    /// What the client knows its reply by, if replies carry ids.
    pub id: u64,
    /// Who answers it.
    pub route: Route,
    /// Its keys in [`Requests::keys`].
    pub keys: Range<usize>,
}

/// Keys and requests for which a list keeps its memory.
const KEPT_MAX: usize = 1024;

/// The requests of a message. It is used again for the next one.
#[derive(Debug, Default)]
pub struct Requests {
    requests: Vec<Request>,
    keys: Vec<Key>,
}

impl Requests {
    /// Forgets what is there. The memory of an unusually long message goes back.
    pub fn clear(&mut self) {
        self.requests.clear();
        self.requests.shrink_to(KEPT_MAX);
        self.keys.clear();
        self.keys.shrink_to(KEPT_MAX);
    }

    /// Adds a key of the request that is pushed next.
    pub fn key(&mut self, key: Key) {
        self.keys.push(key);
    }

    /// Forgets the keys of the request that would have been pushed next, and their memory if they were many.
    pub fn forget_keys(&mut self) {
        let kept = self.requests.last().map_or(0, |request| request.keys.end);
        self.keys.truncate(kept);
        self.keys.shrink_to(KEPT_MAX);
    }

    /// Adds a request, with the keys that were added since the last one.
    pub fn push(&mut self, bytes: Range<usize>, id: u64, route: Route) {
        let start = self.requests.last().map_or(0, |request| request.keys.end);
        self.requests.push(Request { bytes, id, route, keys: start..self.keys.len() });
    }

    /// Which request begins where those end that were routed when the message was listed before, of so many bytes. A list that has none there
    /// was made by another function: what is left goes to the host as it is, which tells the client what is wrong with it.
    pub fn go_on_from(&mut self, routed_to: usize, len: usize) -> usize {
        if routed_to == 0 {
            return 0;
        }
        let next = self.requests.iter().position(|request| request.bytes.start >= routed_to);
        match next {
            Some(next) if self.get(next).is_some_and(|request| request.bytes.start == routed_to) => next,
            _ if routed_to >= len => self.len(),
            _ => {
                self.clear();
                let (reason, changes) = (Reason::Program, Changes::Everything);
                self.push(routed_to..len, 0, Route::Host { reason, changes, may_change_standing: true });
                0
            }
        }
    }

    /// Whether the memory that it takes is more than is kept for the next message.
    pub fn is_long(&self) -> bool {
        self.requests.len().max(self.keys.len()) > KEPT_MAX
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// One of them.
    pub fn get(&self, index: usize) -> Option<&Request> {
        self.requests.get(index)
    }

    /// The keys of a request.
    pub fn keys(&self, request: &Request) -> &[Key] {
        self.keys.get(request.keys.clone()).unwrap_or_default()
    }
}

/// Bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileRead {
    /// The name that the host has given the file.
    pub file: u32,
    /// Where in it.
    pub offset: u64,
    /// How many bytes.
    pub len: u32,
}

/// What a request takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The reads that were listed; [`Application::check`] makes the reply.
    Read,
    /// No read: the reply was written.
    Answer,
    /// The host.
    Host(Reason),
}

/// A record that may be admitted to the table when the log is settled behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its key.
    pub key: Key,
    /// What the table is to hold.
    pub item: Item,
    /// The stamp of the request that made it.
    pub stamp: Stamp,
}

/// What a write to a file brings.
#[derive(Debug, Default)]
pub struct Candidates {
    pub(crate) list: Vec<Candidate>,
    pub(crate) end: u64,
}

impl Candidates {
    /// Adds a record.
    pub fn push(&mut self, candidate: Candidate) {
        self.list.push(candidate);
    }

    /// Says that what was added may be admitted when the log is settled up to this address.
    pub fn ends_at(&mut self, address: u64) {
        self.end = self.end.max(address);
    }

    /// What was added.
    pub fn list(&self) -> &[Candidate] {
        &self.list
    }

    /// From which address on it may be admitted.
    pub fn end(&self) -> u64 {
        self.end
    }
}

/// Cuts messages that begin with their length, in four bytes, the lowest first; these four count too.
#[must_use]
pub fn cut_by_length(bytes: &[u8], lengths: RangeInclusive<usize>) -> Cut {
    match bytes.first_chunk().map(|head| u32::from_le_bytes(*head) as usize) {
        None => Cut::Part(4 - bytes.len().min(3)),
        Some(length) if length < 4 || !lengths.contains(&length) => Cut::Wrong,
        Some(length) if length > bytes.len() => Cut::Part(length - bytes.len()),
        Some(length) => Cut::Message(length),
    }
}

/// What both halves of a service have to have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// A number that the service gives a meaning.
    pub number: u32,
    /// What people are told where the halves have different ones.
    pub difference: &'static str,
}

/// A service, as the card sees it (DDS Table 1).
pub trait Application {
    /// How far a connection's stream was looked at.
    type Cutter: Default;

    /// How clients know their replies.
    const REPLIES: ReplyOrder;

    /// Looks at what is at the front of a connection's stream. Called again with the same bytes and more behind them after
    /// [`Cut::Part`]. For [`Cut::Wrong`] it writes what the client is told.
    fn cut(&self, cutter: &mut Self::Cutter, bytes: &[u8], standing: Standing, reply: &mut Vec<u8>) -> Cut;

    /// Guesses a key that the message at the front of some bytes asks for, while the one before it is worked on: the memory is
    /// asked for what the table has of it. The bytes may be anything, and nothing depends on the guess.
    fn glance(&self, bytes: &[u8]) -> Option<Key> {
        let _ = bytes;
        None
    }

    /// Lists the requests of a message, each with who answers it (the paper's *OffPred*).
    fn predicate(&self, message: &[u8], standing: Standing, requests: &mut Requests);

    /// Says what a request takes whose keys are all in the table, with what the table has for them (the paper's *OffFunc*).
    /// `now` are milliseconds since 1970.
    fn function(
        &self,
        request: &[u8],
        hits: &[Hit],
        now: u64,
        reads: &mut Vec<FileRead>,
        reply: &mut Reply,
    ) -> Verdict;

    /// Checks what was read, and makes the reply of it; `false` sends the request to the host. What was read is what the
    /// table meant only if this says so: the right key, the right request's, whole.
    fn check(&self, request: &[u8], hits: &[Hit], read: &ReadBytes<'_>, reply: &mut Reply) -> bool;

    /// Lists the records in what the host writes to a file (the paper's *Cache*). `store` is the host's, as it said when it
    /// met the card: no client knows it, so bytes of a client that look like the store's own are told from them by it. A service that
    /// finds things without the table needs none.
    fn cache(&self, store: &[u8; 16], file: u32, offset: u64, bytes: &[u8], candidates: &mut Candidates) {
        let _ = (store, file, offset, bytes, candidates);
    }

    /// Lists the keys in what the host is about to read from a file, to change it later (the paper's *Invalidate*). The table
    /// forgets them before anything of it reaches the host, and takes only what was written, or is attested, as of a request that is
    /// forwarded afterwards; or it forgets everything, where the keys cannot be told. A service whose every change is a request needs none.
    fn invalidate(&self, file: u32, offset: u64, len: u64, keys: &mut Vec<Key>) -> Changes {
        let _ = (file, offset, len, keys);
        Changes::Nothing
    }

    /// Whether the table holds what the service's own functions understand, and the host's. Where it does not, what the host attests is
    /// not for it.
    fn has_own_items(&self) -> bool {
        true
    }

    /// Whether [`Self::cache`] has become another function since this was last asked: what the table holds means nothing then.
    fn is_renewed(&self) -> bool {
        false
    }

    /// What the host has to have in common with this half to serve clients together. One that says otherwise when it meets the card is sent
    /// away.
    fn terms(&self) -> Terms {
        Terms::default()
    }

    /// Writes what a client is told whose request only the host can answer, while it is away. If it was forwarded, the host may
    /// have applied it or not, and the client must not be told that it was not.
    fn unavailable(&self, id: u64, was_forwarded: bool, reply: &mut Vec<u8>);

    /// Writes what a client is told for whose connection there is no room, before it is closed.
    fn full(&self, reply: &mut Vec<u8>) {
        let _ = reply;
    }
}
