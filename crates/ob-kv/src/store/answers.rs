//! Answers, and when they may leave.

use std::collections::{BTreeMap, VecDeque};

use super::errors;
use super::ops::LogFailure;
use crate::plant::{Bug, is_planted};
use crate::resp::{Replies, Version};

/// Buffers that are kept for the next answers, and how long they may be.
const BUFFERS_MAX: usize = 256;
const BUFFER_LEN_MAX: usize = 64 << 10;

/// Keys that the card's table can hold.
pub(crate) const ATTESTED_KEY_LEN_MAX: usize = 32;

/// Where a key's record lies that the card may serve: current as of the stamp of the answer that it comes with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attestation {
    /// The key, of at most 32 bytes.
    pub key: Vec<u8>,
    /// The part.
    pub part: u64,
    /// Where the record begins in the part, a multiple of 8.
    pub offset: u64,
    /// Bytes of the value.
    pub value_len: usize,
    /// The stamp that the record carries.
    pub stamp: u64,
    /// When the key is gone, in milliseconds since 1970, if ever.
    pub expires: Option<u64>,
}

/// The answer to a request.
#[derive(Debug)]
pub struct Answer {
    /// Whose it is: what the request came with.
    pub connection: u64,
    /// The request's stamp.
    pub stamp: u64,
    /// The reply, in the version of the protocol that the connection speaks.
    pub bytes: Vec<u8>,
    /// What the card may serve from then on.
    pub attestation: Option<Attestation>,
    /// Whether the connection is to be closed behind it.
    pub is_last: bool,
}

/// Answers that wait until the log is settled so far that they may leave.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// By the address that has to be settled, and in their order. Those that had to wait for the device need less than what was
    /// applied meanwhile.
    waiting: BTreeMap<(u64, u64), Answer>,
    /// How many have waited.
    pushed: u64,
    ready: VecDeque<Answer>,
    /// Bytes of all of them.
    len: usize,
    buffers: Vec<Vec<u8>>,
}

impl Answers {
    /// An empty buffer.
    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        self.buffers.pop().unwrap_or_default()
    }

    pub(crate) fn give_back(&mut self, mut buffer: Vec<u8>) {
        if self.buffers.len() < BUFFERS_MAX && buffer.capacity() <= BUFFER_LEN_MAX {
            buffer.clear();
            self.buffers.push(buffer);
        }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len() + self.ready.len()
    }

    /// Bytes of the answers that wait.
    pub(crate) fn waiting_len(&self) -> usize {
        self.len
    }

    /// Takes an answer that may leave when the log is settled up to `needs`.
    pub(crate) fn push(&mut self, needs: u64, answer: Answer) {
        self.len += answer.bytes.len();
        if needs == 0 || is_planted(Bug::AnswerBeforeDurable) {
            self.ready.push_back(answer);
            return;
        }
        self.pushed += 1;
        self.waiting.insert((needs, self.pushed), answer);
    }

    /// The next one that may leave. After a failure nothing becomes settled any more, and what waits for it gets an error.
    pub(crate) fn next(&mut self, settled: u64, failure: Option<LogFailure>) -> Option<Answer> {
        let ready = self.ready.pop_front();
        if let Some(answer) = ready {
            self.len -= answer.bytes.len();
            return Some(answer);
        }
        let first = self.waiting.first_entry()?;
        let is_settled = first.key().0 <= settled;
        if !is_settled && failure.is_none() {
            return None;
        }
        let mut answer = first.remove();
        self.len -= answer.bytes.len();
        let Some(failure) = failure.filter(|_| !is_settled) else { return Some(answer) };
        answer.bytes.clear();
        answer.attestation = None;
        // An error reads the same in both versions.
        Replies::new(&mut answer.bytes, Version::Resp2).error(&errors::read_only(failure).0);
        Some(answer)
    }
}
