//! The store's log in files of the card, through the library that applications use.
//!
//! ```text
//!   LogOp ─▶ submit ─▶ tagged read or write, or a request about names ─▶ card
//!               │                                                        │
//!               ├─ no room, or no card ─▶ waiting ─▶ submitted again     │
//!               └────────────────────── LogCompletion ◀──────────────────┘
//! ```
//!
//! A card that dies and comes back has every file still, so what was out then is asked for again: writing the same bytes to the
//! same place twice is as good as once, a part that exists is what making it should bring, and one that is missing is removed. To give a
//! part its length again changes nothing either: nothing of the log lies behind it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ob_core::{IdMap, NodeId, Token};
use ob_files_host::{Completion, Error, File, Group, NodeInfo, Pending, SpaceInfo};
use ob_format::kv::part_name;
use ob_kv::store::{LogCompletion, LogFailure, LogOp};

/// The directory of the parts.
pub(super) const DIRECTORY: &str = "/kv";

/// The log's parts on a card.
pub(super) struct CardLog {
    /// None while there is no card.
    group: Option<Group>,
    parts: BTreeMap<u64, File>,
    /// Reads and writes that are out, by their tokens.
    out: IdMap<u64, LogOp>,
    /// Everything else that is out.
    asked: Vec<(LogOp, Asked)>,
    /// What could not be sent, or was lost with a card.
    waiting: VecDeque<LogOp>,
    /// Nothing that waits is sent: it is not known yet whose log it is.
    is_held: bool,
    done: VecDeque<LogCompletion>,
    /// What comes out of the rings; empty but while it is looked at.
    completions: Vec<Completion>,
    /// Parts that were made and not told of yet.
    made: Vec<(u64, NodeId)>,
    /// A question for what the device has left, and what came of the last one.
    measuring: Option<Pending<ob_files_host::Result<SpaceInfo>>>,
    measured: Option<Option<u64>>,
}

enum Asked {
    Create(Pending<ob_files_host::Result<File>>),
    /// A part that is there now gets its length.
    Lengthen(File, Pending<ob_files_host::Result<NodeInfo>>),
    Other(Pending<ob_files_host::Result<()>>),
}

impl CardLog {
    /// The parts that there are, each with its file.
    pub(super) fn new(group: Group, parts: impl IntoIterator<Item = (u64, NodeId)>) -> Self {
        let mut log = Self {
            group: None,
            parts: BTreeMap::new(),
            out: IdMap::default(),
            asked: Vec::new(),
            waiting: VecDeque::new(),
            is_held: false,
            done: VecDeque::new(),
            completions: Vec::new(),
            made: Vec::new(),
            measuring: None,
            measured: None,
        };
        log.join(group, parts);
        log
    }

    /// The card is gone, or the stream to it. Nothing is asked for any more, not even what the library has kept for the next card:
    /// everything that was not done waits for [`CardLog::join`], and then for [`CardLog::go_on`].
    pub(super) fn leave(&mut self) {
        self.is_held = true;
        // What the card has said before it went counts.
        self.poll();
        let mut unfinished: Vec<LogOp> = self.out.drain().map(|(_, op)| op).collect();
        unfinished.sort_unstable_by_key(|op| op.token().0);
        unfinished.extend(self.asked.drain(..).map(|(op, _)| op));
        for op in unfinished.into_iter().rev() {
            self.waiting.push_front(op);
        }
        if self.measuring.take().is_some() {
            self.measured = Some(None);
        }
        self.parts.clear();
        self.group = None;
    }

    /// A card has these parts, and is asked through this group. What waits is held back.
    pub(super) fn join(&mut self, group: Group, parts: impl IntoIterator<Item = (u64, NodeId)>) {
        self.parts = parts.into_iter().map(|(part, node)| (part, group.file(node))).collect();
        self.group = Some(group);
    }

    /// What waits is sent.
    pub(super) fn go_on(&mut self) {
        self.is_held = false;
    }

    /// The parts and their files.
    pub(super) fn parts(&self) -> impl Iterator<Item = (u64, NodeId)> + '_ {
        self.parts.iter().map(|(part, file)| (*part, file.node()))
    }

    /// A part that was made since the last call.
    pub(super) fn next_made(&mut self) -> Option<(u64, NodeId)> {
        self.made.pop()
    }

    /// Asks how many bytes the device has left; [`CardLog::next_measured`] tells.
    pub(super) fn measure(&mut self) {
        match &self.group {
            Some(group) => self.measuring = Some(group.space()),
            None => self.measured = Some(None),
        }
    }

    /// What the device has left, if that was asked for and is known now; nothing within, if it could not be found out.
    pub(super) fn next_measured(&mut self) -> Option<Option<u64>> {
        self.measured.take()
    }

    /// Begins an operation.
    pub(super) fn submit(&mut self, op: LogOp) {
        if self.waiting.is_empty() || self.is_held {
            self.send(op);
        } else {
            self.waiting.push_back(op);
        }
    }

    /// Begins an operation again that found no room, though others are held back.
    pub(super) fn begin_again(&mut self, token: Token) {
        let place = self.waiting.iter().position(|op| op.token() == token);
        if self.is_held
            && let Some(op) = place.and_then(|place| self.waiting.remove(place))
        {
            self.send(op);
        }
    }

    fn send(&mut self, op: LogOp) {
        let token = op.token().0;
        let Some(group) = &self.group else { return self.waiting.push_back(op) };
        let refused = match &op {
            LogOp::Create { part, .. } => {
                let path = format!("{DIRECTORY}/{}", part_name(*part));
                self.asked.push((op, Asked::Create(group.create(path.as_str()))));
                return;
            }
            LogOp::Remove { part, .. } => {
                let path = format!("{DIRECTORY}/{}", part_name(*part));
                self.asked.push((op, Asked::Other(group.remove_file(path.as_str()))));
                return;
            }
            LogOp::Flush { .. } => {
                self.asked.push((op, Asked::Other(group.flush())));
                return;
            }
            LogOp::Write { part, offset, bytes, is_durable, .. } => {
                let Some(file) = self.parts.get(part) else { return self.fail(&op, LogFailure::Device) };
                let bytes = Arc::clone(bytes);
                let sent = match is_durable {
                    true => file.submit_write_durable(bytes, *offset, token),
                    false => file.submit_write(bytes, *offset, token),
                };
                sent.err().map(|refused| refused.reason)
            }
            LogOp::Read { part, offset, len, .. } => {
                let Some(file) = self.parts.get(part) else { return self.fail(&op, LogFailure::Device) };
                file.submit_read(vec![0; *len], *offset, token).err().map(|refused| refused.reason)
            }
        };
        match refused {
            None => {
                self.out.insert(token, op);
            }
            Some(error) => self.failed(op, &error),
        }
    }

    /// Takes what is done out of the rings; whether anything was.
    pub(super) fn poll(&mut self) -> bool {
        let before = self.done.len();
        self.take(|group, completions| group.poll_into(completions));
        for (op, asked) in std::mem::take(&mut self.asked) {
            self.look(op, asked);
        }
        match self.measuring.take().map(Pending::try_wait) {
            Some(Ok(space)) => {
                // A file takes whole segments: what the log appends next may take one at a stroke.
                let server = self.group.as_ref().and_then(Group::card);
                let segment_len = server.map_or(0, |server| server.segment_len);
                self.measured = Some(space.ok().map(|space| space.free.saturating_sub(segment_len)));
            }
            Some(Err(pending)) => self.measuring = Some(pending),
            None => {}
        }
        // What waits is sent in its order; what still finds no room goes to the front again.
        let sent_max = if self.is_held { 0 } else { self.waiting.len() };
        for _ in 0..sent_max {
            let Some(op) = self.waiting.pop_front() else { break };
            let waiting = self.waiting.len();
            self.send(op);
            if self.waiting.len() > waiting {
                self.waiting.rotate_right(1);
                break;
            }
        }
        self.done.len() > before
    }

    /// Sleeps until something is done, or for so long, and takes it out of the rings.
    pub(super) fn wait(&mut self, within: Duration) {
        self.take(|group, completions| group.wait_into(completions, within));
        self.poll();
    }

    /// Takes what is done out of the rings as `take` does it: at once, or asleep until there is something.
    pub(super) fn take(&mut self, take: impl FnOnce(&Group, &mut Vec<Completion>) -> usize) {
        let Some(group) = &self.group else { return };
        take(group, &mut self.completions);
        let mut completions = std::mem::take(&mut self.completions);
        completions.drain(..).for_each(|completion| self.complete(completion));
        self.completions = completions;
    }

    fn complete(&mut self, completion: Completion) {
        let Completion { tag, result, buffer } = completion;
        let Some(op) = self.out.remove(&tag) else { return };
        match (&op, result) {
            (LogOp::Write { bytes, .. }, Ok(len)) if len < bytes.len() => self.fail(&op, LogFailure::Device),
            (LogOp::Read { .. }, Ok(len)) => {
                let mut bytes = buffer.into_bytes();
                bytes.truncate(len);
                self.done.push_back(LogCompletion { token: op.token(), result: Ok(bytes) });
            }
            (_, Ok(_)) => self.succeed(&op),
            (_, Err(error)) => self.failed(op, &error),
        }
    }

    fn look(&mut self, op: LogOp, asked: Asked) {
        match asked {
            Asked::Create(pending) => match pending.try_wait() {
                Err(pending) => self.asked.push((op, Asked::Create(pending))),
                Ok(Ok(file)) => {
                    let LogOp::Create { len, .. } = op else { return };
                    let pending = file.resize(len);
                    self.asked.push((op, Asked::Lengthen(file, pending)));
                }
                Ok(Err(error)) => self.failed(op, &error),
            },
            Asked::Lengthen(file, pending) => match pending.try_wait() {
                Err(pending) => self.asked.push((op, Asked::Lengthen(file, pending))),
                Ok(Ok(_)) => {
                    if let LogOp::Create { part, .. } = op {
                        self.made.push((part, file.node()));
                        self.parts.insert(part, file);
                    }
                    self.succeed(&op);
                }
                Ok(Err(error)) => self.failed(op, &error),
            },
            Asked::Other(pending) => match pending.try_wait() {
                Err(pending) => self.asked.push((op, Asked::Other(pending))),
                Ok(Ok(())) => self.succeed(&op),
                // A card that died may have removed it before.
                Ok(Err(Error::NotFound)) if matches!(op, LogOp::Remove { .. }) => self.succeed(&op),
                Ok(Err(error)) => self.failed(op, &error),
            },
        }
    }

    fn succeed(&mut self, op: &LogOp) {
        if let LogOp::Remove { part, .. } = op {
            self.parts.remove(part);
        }
        self.done.push_back(LogCompletion { token: op.token(), result: Ok(Vec::new()) });
    }

    fn fail(&mut self, op: &LogOp, failure: LogFailure) {
        self.done.push_back(LogCompletion { token: op.token(), result: Err(failure) });
    }

    fn failed(&mut self, op: LogOp, error: &Error) {
        match error {
            Error::CardGone
            | Error::Detached
            | Error::RingFull
            | Error::TooManyOutstanding
            | Error::Busy
            | Error::TimedOut => self.waiting.push_back(op),
            Error::NoSpace => self.fail(&op, LogFailure::Space),
            other => {
                tracing::error!("the log of the key-value store: {other}");
                self.fail(&op, LogFailure::Device);
            }
        }
    }

    /// The next operation that is done.
    pub(super) fn next_done(&mut self) -> Option<LogCompletion> {
        self.done.pop_front()
    }
}

#[cfg(test)]
#[path = "card_log_tests.rs"]
mod tests;
