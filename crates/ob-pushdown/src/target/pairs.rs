//! Queries and answers that are two commands, because Linux moves data one way in each.

use ob_core::Instant;
use ob_nvme::target::ForeignKey;

/// Those of one client that wait for each other.
#[derive(Default)]
pub(super) struct Pairs {
    queries: Vec<Query>,
    answers: Vec<Asked>,
    /// Memory of queries that are over.
    spare: Vec<Vec<u8>>,
}

struct Query {
    token: u64,
    body: Vec<u8>,
    until: Instant,
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
}

impl Pairs {
    pub(super) fn is_empty(&self) -> bool {
        self.queries.is_empty() && self.answers.is_empty()
    }

    fn len(&self) -> usize {
        self.queries.len() + self.answers.len()
    }

    /// A query has come.
    pub(super) fn query(&mut self, token: u64, body: &[u8], until: Instant, max: usize) -> Arrived {
        if let Some(at) = self.answers.iter().position(|asked| asked.token == token) {
            return Arrived::Asked(self.answers.swap_remove(at));
        }
        if self.queries.iter().any(|query| query.token == token) {
            return Arrived::Taken;
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
        let late = self.answers.iter().filter(|asked| asked.until <= now).map(|asked| asked.key).collect();
        self.answers.retain(|asked| asked.until > now);
        late
    }
}
