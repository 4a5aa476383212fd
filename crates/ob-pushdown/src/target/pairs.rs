//! Queries and answers that are two commands, because Linux moves data one way in each.

use std::collections::VecDeque;

use ob_core::Instant;
use ob_nvme::target::ForeignKey;

/// Those of one client that wait for each other.
#[derive(Default)]
pub(super) struct Pairs {
    queries: Vec<Query>,
    answers: Vec<Asked>,
    /// Halves to come whose others were refused.
    orphans: VecDeque<Orphan>,
    /// Memory of queries that are over.
    spare: Vec<Vec<u8>>,
}

struct Query {
    token: u64,
    body: Vec<u8>,
    until: Instant,
}

/// A half whose other one was refused: it is refused, too, instead of waiting for what never comes.
struct Orphan {
    token: u64,
    half: Half,
    until: Instant,
}

/// Which one of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    Query,
    Answer,
}

/// Who waits for a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    token: u64,
    pub(super) key: ForeignKey,
    pub(super) len: u32,
    until: Instant,
}

/// What becomes of a query.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrived {
    /// It is kept until it is asked for.
    Kept,
    /// Somebody waits for it.
    Asked(Asked),
    /// Another has its token.
    Taken,
    /// There are too many.
    Full,
    /// There were too many when its other half came.
    Orphan,
}

impl Pairs {
    pub(super) fn is_empty(&self) -> bool {
        self.queries.is_empty() && self.answers.is_empty() && self.orphans.is_empty()
    }

    fn len(&self) -> usize {
        self.queries.len() + self.answers.len()
    }

    /// A half is refused, the other of which is still to come, unless it waits already: then that ends, too. As many are remembered as may
    /// wait.
    pub(super) fn refuse(&mut self, token: u64, half: Half, until: Instant, max: usize) -> Option<Asked> {
        let other = match half {
            Half::Query => Half::Answer,
            Half::Answer => Half::Query,
        };
        if let Some(at) = self.answers.iter().position(|asked| asked.token == token && other == Half::Answer)
        {
            return Some(self.answers.swap_remove(at));
        }
        while self.orphans.len() >= max.max(1) {
            self.orphans.pop_front();
        }
        self.orphans.push_back(Orphan { token, half: other, until });
        None
    }

    /// Whether a half that has come is one whose other was refused. Who sends a refused one again begins anew.
    fn is_orphan(&mut self, token: u64, half: Half) -> bool {
        let Some(at) = self.orphans.iter().position(|orphan| orphan.token == token) else { return false };
        self.orphans.remove(at).is_some_and(|orphan| orphan.half == half)
    }

    /// A query has come.
    pub(super) fn query(&mut self, token: u64, body: &[u8], until: Instant, max: usize) -> Arrived {
        if let Some(at) = self.answers.iter().position(|asked| asked.token == token) {
            return Arrived::Asked(self.answers.swap_remove(at));
        }
        if self.queries.iter().any(|query| query.token == token) {
            return Arrived::Taken;
        }
        if self.is_orphan(token, Half::Query) {
            return Arrived::Orphan;
        }
        if self.len() >= max {
            return Arrived::Full;
        }
        let mut kept = self.spare.pop().unwrap_or_default();
        kept.clear();
        kept.extend_from_slice(body);
        self.queries.push(Query { token, body: kept, until });
        Arrived::Kept
    }

    /// A query is asked for: here it is, or whoever asks waits. An error if that cannot be.
    pub(super) fn answer(
        &mut self,
        (token, key, len): (u64, ForeignKey, u32),
        until: Instant,
        max: usize,
    ) -> Result<Option<Vec<u8>>, Arrived> {
        if let Some(at) = self.queries.iter().position(|query| query.token == token) {
            return Ok(Some(self.queries.swap_remove(at).body));
        }
        if self.answers.iter().any(|asked| asked.token == token) {
            return Err(Arrived::Taken);
        }
        if self.is_orphan(token, Half::Answer) {
            return Err(Arrived::Orphan);
        }
        if self.len() >= max {
            return Err(Arrived::Full);
        }
        self.answers.push(Asked { token, key, len, until });
        Ok(None)
    }

    /// A query's memory is not needed any more.
    pub(super) fn give_back(&mut self, body: Vec<u8>) {
        if self.spare.len() < 16 {
            self.spare.push(body);
        }
    }

    /// Who asks is gone.
    pub(super) fn forget(&mut self, key: ForeignKey) {
        self.answers.retain(|asked| asked.key != key);
    }

    /// Those who have waited for too long; queries that nobody asked for are dropped.
    pub(super) fn late(&mut self, now: Instant) -> Vec<ForeignKey> {
        self.queries.retain(|query| query.until > now);
        self.orphans.retain(|orphan| orphan.until > now);
        let late = self.answers.iter().filter(|asked| asked.until <= now).map(|asked| asked.key).collect();
        self.answers.retain(|asked| asked.until > now);
        late
    }
}
