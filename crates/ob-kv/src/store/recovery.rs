//! Recovery: reads the log from its begin to its end, and makes a store of it.
//!
//! ```text
//!   parts there are ─▶ Groups: index, one by one ─▶ no good one ─▶ Behind: does a later one prove damage? ─▶ Flush ─▶ finish(): Store
//! ```
//!
//! Where no good group comes, the log ends, or is damaged. A group behind that place that says that the log was durable
//! beyond it proves the latter (`docs/format/kv-log.md`).
//!
//! What was found may never have been flushed, if only the process had died that wrote it. Everything that the new life does rests on
//! it, so it is made durable first.

use std::collections::BTreeMap;

use ob_core::Token;
use ob_format::kv::{BLOCK_LEN, GroupHeader, LogError, Origin, Record};

use super::expiry::Expiry;
use super::index::{Index, KeyHash, Place, rounded_len};
use super::log::Log;
use super::ops::{LogCompletion, LogFailure, LogOp};
use super::revisit::Known;
use super::{Config, Store};
use crate::plant::{Bug, is_planted};

/// Bytes of a read.
const READ_LEN: usize = 1 << 20;
/// Tokens of a comparison are greater: the store's own operations wait meanwhile, and must not be taken for it.
const KNOWN_TOKENS: u64 = 1 << 62;
/// Blocks behind the log's last group that may be unreadable: a device that is broken altogether has more.
const UNREADABLE_MAX: u32 = 256;

/// Why a log cannot be recovered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecoveryError {
    /// A part is not there.
    #[error("part {part} of the log is missing: it has been removed, or is on another device")]
    Missing {
        /// The part.
        part: u64,
    },
    /// The log cannot be read.
    #[error("part {part} of the log cannot be read: {failure}")]
    Unreadable {
        /// The part.
        part: u64,
        /// Why.
        failure: LogFailure,
    },
    /// What was durable is not what was written.
    #[error(
        "the log is damaged: what was written to part {part} at byte {offset} was durable, and is not there any more"
    )]
    Damaged {
        /// The part.
        part: u64,
        /// Where in the part the log cannot be read on.
        offset: u64,
    },
    /// What was found cannot be made durable.
    #[error("the log cannot be made durable: {failure}")]
    Unflushed {
        /// Why.
        failure: LogFailure,
    },
    /// Another build has written it.
    #[error("part {part} of the log: {error}")]
    Version {
        /// The part.
        part: u64,
        /// What is known of the version.
        error: LogError,
    },
}

/// How far recovery has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryProgress {
    /// Bytes of the log that were read.
    pub read: u64,
    /// Bytes of all files of the log.
    pub total: u64,
    /// Keys that were found so far.
    pub keys: u64,
}

/// Bytes of values in a part, as the index rounds them.
#[derive(Clone, Copy, Debug, Default)]
struct Kept {
    all: u64,
    live: u64,
}

/// A log that is being recovered.
pub struct Recovery {
    config: Config,
    /// The files there are, with their lengths.
    parts: BTreeMap<u64, u64>,
    /// Where the parts that were read end.
    ends: Vec<(u64, u64)>,
    index: Index,
    expiry: Expiry,
    /// Bytes of the values in each part, and of those that are current.
    kept: BTreeMap<u64, Kept>,
    stamp_max: u64,
    /// The last good group: where it begins, and who wrote it.
    last: Option<(u64, Origin)>,
    /// Where to go on.
    part: u64,
    offset: u64,
    wanted: usize,
    /// Blocks behind the last group that could not be read.
    unreadable: u32,
    /// The read that is on its way, and how many bytes it wants.
    reading: Option<(Token, usize)>,
    next_token: u64,
    /// What a store has in memory of the log, if that is all that is asked for.
    known: Option<Known>,
    stage: Stage,
}

/// What recovery is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Taking one good group after the other.
    Groups,
    /// Looking for a group that proves that the log has not ended there: a part, and an offset.
    Behind {
        part: u64,
        offset: u64,
    },
    /// Making durable what was found.
    Flush,
    Done,
}

impl Recovery {
    /// Begins with the parts whose files are there, and the lengths of the files.
    ///
    /// # Errors
    ///
    /// When one is missing between others.
    pub fn new(config: Config, parts: impl IntoIterator<Item = (u64, u64)>) -> Result<Self, RecoveryError> {
        let parts: BTreeMap<u64, u64> = parts.into_iter().collect();
        let first = parts.keys().next().copied().unwrap_or(0);
        if let Some(part) =
            (first..).zip(parts.keys()).find_map(|(part, found)| (part != *found).then_some(part))
        {
            return Err(RecoveryError::Missing { part });
        }
        Ok(Self {
            stage: if parts.is_empty() { Stage::Done } else { Stage::Groups },
            known: None,
            expiry: Expiry::new(config.expiry_len_max()),
            config,
            parts,
            ends: Vec::new(),
            index: Index::new(),
            kept: BTreeMap::new(),
            stamp_max: 0,
            last: None,
            part: first,
            offset: 0,
            wanted: READ_LEN,
            unreadable: 0,
            reading: None,
            next_token: 0,
        })
    }

    /// Goes through the log from the last group on that a store knows to be durable, and compares.
    pub(super) fn of_known(
        config: Config,
        parts: impl IntoIterator<Item = (u64, u64)>,
        known: Known,
    ) -> Result<Self, RecoveryError> {
        let mut recovery = Self::new(config, parts)?;
        if let Some(group) = known.durable_group {
            recovery.part = group / recovery.config.part_len;
            recovery.offset = group % recovery.config.part_len;
        }
        recovery.known = Some(known);
        recovery.next_token = KNOWN_TOKENS;
        Ok(recovery)
    }

    /// What a comparison has found, when it is over.
    pub(super) fn known(&self) -> Option<&Known> {
        self.known.as_ref().filter(|_| self.stage == Stage::Done)
    }

    /// The next operation. There is one at a time.
    pub fn next_op(&mut self) -> Option<LogOp> {
        if self.stage == Stage::Done || self.reading.is_some() {
            return None;
        }
        self.next_token += 1;
        let token = Token(self.next_token);
        if self.stage == Stage::Flush {
            self.reading = Some((token, 0));
            return Some(LogOp::Flush { token });
        }
        let left = self.len_of_part().saturating_sub(self.offset);
        let len = self.wanted.min(usize::try_from(left).unwrap_or(usize::MAX));
        self.reading = Some((token, len));
        Some(LogOp::Read { token, part: self.part, offset: self.offset, len })
    }

    /// Takes what came of it.
    ///
    /// # Errors
    ///
    /// When the log cannot be recovered.
    pub fn completed(&mut self, completion: LogCompletion) -> Result<(), RecoveryError> {
        let Some((_, asked)) = self.reading.take_if(|(token, _)| *token == completion.token) else {
            return Ok(());
        };
        match (self.stage, completion.result) {
            (Stage::Groups, Ok(bytes)) => self.groups(&bytes, asked),
            (Stage::Groups, Err(failure)) => Err(RecoveryError::Unreadable { part: self.part, failure }),
            (Stage::Behind { part, offset }, Ok(bytes)) => self.behind(part, offset, &bytes, asked),
            (Stage::Behind { .. }, Err(failure)) => self.behind_unreadable(failure, asked),
            (Stage::Flush, Ok(_)) => {
                self.stage = Stage::Done;
                Ok(())
            }
            (Stage::Flush, Err(failure)) => Err(RecoveryError::Unflushed { failure }),
            (Stage::Done, _) => Ok(()),
        }
    }

    /// Takes the groups that were read.
    fn groups(&mut self, bytes: &[u8], asked: usize) -> Result<(), RecoveryError> {
        let mut at = 0;
        loop {
            let rest = bytes.get(at..).unwrap_or_default();
            let group = self.group(rest);
            // A file may be shorter than it was said to be.
            let is_all = bytes.len() < asked || self.offset + rest.len() as u64 >= self.len_of_part();
            match group {
                Ok(len) => {
                    at += len;
                    self.offset += len as u64;
                    self.wanted = READ_LEN;
                }
                Err(Bad::Short(len)) if !is_all && len > rest.len() => {
                    self.wanted = READ_LEN.max(len);
                    return Ok(());
                }
                Err(Bad::Version(error)) => {
                    return Err(RecoveryError::Version { part: self.part, error });
                }
                Err(Bad::Short(_) | Bad::Other) => return self.end_of_part(),
            }
        }
    }

    /// How far it has come.
    #[must_use]
    pub fn progress(&self) -> RecoveryProgress {
        let before: u64 = self.parts.range(..self.part).map(|(_, len)| len).sum();
        let total = self.parts.values().sum();
        RecoveryProgress { read: before + self.offset, total, keys: self.index.len() }
    }

    /// The store, when there is nothing more to read.
    pub fn finish(self) -> Result<Store, Box<Self>> {
        if self.stage != Stage::Done {
            return Err(Box::new(self));
        }
        let Self { mut config, parts, ends, index, expiry, kept, stamp_max, last, .. } = self;
        let origin = match last {
            Some((_, origin)) => Origin { life: origin.life.saturating_add(1), ..origin },
            None => Origin { store: config.name, life: 1, part_len: config.part_len },
        };
        config.name = origin.store;
        let previous = last.map_or(0, |(address, _)| address);
        let mut log = Log::new(config.log(), origin, &ends, &parts, previous);
        for (part, Kept { all, live }) in kept {
            log.recover(part * config.part_len, all, live);
        }
        Ok(Store::with(config, index, expiry, log, stamp_max))
    }

    fn len_of_part(&self) -> u64 {
        let len = self.parts.get(&self.part).copied().unwrap_or(0);
        len.min(self.config.part_len) / BLOCK_LEN as u64 * BLOCK_LEN as u64
    }

    /// Takes the group that the bytes begin with; gives its length.
    fn group(&mut self, bytes: &[u8]) -> Result<usize, Bad> {
        if bytes.len() < BLOCK_LEN {
            return Err(Bad::Short(BLOCK_LEN));
        }
        let header = GroupHeader::decode(bytes).map_err(|error| match error {
            // Behind the first group there may be bytes of a client that an earlier life has left. No client knows the store's name.
            LogError::Version(_)
                if self.last.is_none_or(|(_, origin)| GroupHeader::is_of(bytes, origin.store)) =>
            {
                Bad::Version(error)
            }
            _ => Bad::Other,
        })?;
        if self.last.is_none() {
            // Places in the log are counted by the parts that it was made with.
            self.config.part_len = header.origin.part_len;
        }
        // A file's name says any number.
        let begin = self.part.checked_mul(self.config.part_len).ok_or(Bad::Other)?;
        let address = begin.checked_add(self.offset).ok_or(Bad::Other)?;
        let follows = self.last.is_none_or(|(previous, origin)| {
            header.previous == previous
                && header.origin.store == origin.store
                && header.origin.part_len == origin.part_len
                && header.origin.life >= origin.life
        });
        let fits = self.offset + header.length as u64 <= self.config.part_len;
        if header.address != address || !follows || !fits {
            return Err(Bad::Other);
        }
        let group = bytes.get(..header.length).ok_or(Bad::Short(header.length))?;
        let records = header.records(group).map_err(|_| Bad::Other)?;
        if let Some(known) = &mut self.known {
            known.meets(address, &header, group);
        } else {
            for (at, place) in records {
                let record = place.of(group.get(at..).unwrap_or_default());
                self.record(header.origin.store, address + at as u64, &record);
            }
        }
        self.last = Some((address, header.origin));
        let end = self.offset + header.length as u64;
        match self.ends.last_mut() {
            Some((part, used)) if *part == self.part => *used = end,
            _ => self.ends.push((self.part, end)),
        }
        Ok(header.length)
    }

    fn record(&mut self, store: [u8; 16], address: u64, record: &Record<'_>) {
        self.stamp_max = self.stamp_max.max(record.stamp);
        let begin = self.parts.keys().next().map_or(0, |part| part.saturating_mul(self.config.part_len));
        if record.key.is_empty() {
            self.index.clear();
            self.expiry.clear();
            self.kept.values_mut().for_each(|kept| kept.live = 0);
            return;
        }
        let hash = KeyHash::of(&store, record.key);
        let old = if record.value.is_some() {
            if is_planted(Bug::EarlierAddressWins) && self.index.find(hash, begin).is_some() {
                return;
            }
            let len_max = rounded_len(record.len());
            if let Some(expires) = record.expires {
                self.expiry.add(expires, hash, address);
            }
            let kept = self.kept.entry(address / self.config.part_len).or_default();
            kept.all += len_max as u64;
            kept.live += len_max as u64;
            self.index.insert(hash, Place { address, len_max, expires: record.expires.is_some() }, begin)
        } else {
            self.index.remove(hash, begin)
        };
        if let Some(old) = old
            && let Some(kept) = self.kept.get_mut(&(old.address / self.config.part_len))
        {
            kept.live = kept.live.saturating_sub(old.len_max as u64);
        }
    }

    /// No good group comes here: the next one is at the begin of the next part, or nowhere.
    fn end_of_part(&mut self) -> Result<(), RecoveryError> {
        // Nothing is removed before what comes next is durable, so only a log that has not begun has no begin.
        if self.last.is_none() && self.part > 0 {
            return Err(RecoveryError::Damaged { part: self.part, offset: 0 });
        }
        // A comparison ends where the log does; whoever recovers it looks further.
        if self.known.is_some() && self.last.is_none() {
            self.stage = Stage::Done;
            return Ok(());
        }
        let has_begun = self.offset > 0;
        let has_next = has_next_of(&self.parts, self.part);
        if has_begun && has_next {
            (self.part, self.offset, self.wanted) = (self.part + 1, 0, READ_LEN);
            return Ok(());
        }
        if self.known.is_some() {
            self.stage = Stage::Done;
            return Ok(());
        }
        // It may be the part before that lacks its last group. Whatever is missing begins where the last good one ends.
        let (mut part, mut offset) = self.ends.last().copied().unwrap_or((self.part, 0));
        if offset >= self.config.part_len && has_next_of(&self.parts, part) {
            (part, offset) = (part + 1, 0);
        }
        (self.part, self.offset, self.wanted) = (part, offset, READ_LEN);
        self.stage = Stage::Behind { part, offset };
        if is_planted(Bug::DamageIsTheEnd) {
            self.end_is_found();
        }
        self.skip_ends();
        Ok(())
    }

    /// Looks for proof that the log had been durable beyond a place where no good group comes.
    fn behind(&mut self, part: u64, offset: u64, bytes: &[u8], asked: usize) -> Result<(), RecoveryError> {
        for block in bytes.chunks_exact(BLOCK_LEN) {
            if self.is_proof(part, offset, block) {
                return Err(RecoveryError::Damaged { part, offset });
            }
            self.offset += BLOCK_LEN as u64;
        }
        // A file may be shorter than it was said to be.
        if bytes.len() < asked {
            self.offset = self.len_of_part();
        }
        // After a block that could not be read, reads grow again.
        self.wanted = READ_LEN.min(self.wanted * 2);
        self.skip_ends();
        Ok(())
    }

    /// A block that cannot be read proves nothing, but those around it may.
    fn behind_unreadable(&mut self, failure: LogFailure, asked: usize) -> Result<(), RecoveryError> {
        if asked > BLOCK_LEN {
            self.wanted = BLOCK_LEN.max(asked / 2 / BLOCK_LEN * BLOCK_LEN);
            return Ok(());
        }
        self.unreadable += 1;
        if self.unreadable > UNREADABLE_MAX {
            return Err(RecoveryError::Unreadable { part: self.part, failure });
        }
        self.offset += BLOCK_LEN as u64;
        self.skip_ends();
        Ok(())
    }

    /// Goes on with the next part where this one has no more, and ends behind the last.
    fn skip_ends(&mut self) {
        while matches!(self.stage, Stage::Behind { .. }) && self.offset >= self.len_of_part() {
            match self.parts.range(self.part + 1..).next() {
                Some((part, _)) => (self.part, self.offset) = (*part, 0),
                None => self.end_is_found(),
            }
        }
    }

    /// Whether a group begins in a block that is read now, and says that the log was durable beyond a place.
    fn is_proof(&self, part: u64, offset: u64, block: &[u8]) -> bool {
        let Ok(header) = GroupHeader::decode(block) else { return false };
        let part_len = header.origin.part_len;
        let address = |part: u64, offset: u64| part.checked_mul(part_len)?.checked_add(offset);
        // Clients' bytes may look like anything but this store's own at this place.
        let is_own = self.last.is_none_or(|(_, origin)| {
            header.origin.store == origin.store && header.origin.part_len == origin.part_len
        });
        let is_here = address(self.part, self.offset) == Some(header.address);
        let is_beyond = match self.last {
            Some(_) => address(part, offset).is_some_and(|end| header.durable > end),
            // The first group of all was durable before another one was written.
            None => header.address > 0,
        };
        is_own && is_here && is_beyond
    }

    /// The log ends where no good group came.
    fn end_is_found(&mut self) {
        self.stage = if is_planted(Bug::RecoveredNotFlushed) { Stage::Done } else { Stage::Flush };
    }
}

fn has_next_of(parts: &BTreeMap<u64, u64>, part: u64) -> bool {
    parts.contains_key(&part.saturating_add(1))
}

/// Why there is no group.
enum Bad {
    /// It may be one, but so many bytes are needed to tell.
    Short(usize),
    Version(LogError),
    Other,
}
