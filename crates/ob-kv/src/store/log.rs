//! The log: where records are appended, kept in memory for a while, and written to parts.
//!
//! ```text
//!            ┌─ parts on the device ──────────────┬─ pages: groups in memory ────────────────────┐
//!   begin ──▶│ … │ oldest part … │ …              │ complete │ being written │ waiting │ open group │◀── append
//!            └────────────────────────────────────┴──────────▲───────────────────────────────────┘
//!                                                         settled: the end of the complete prefix
//! ```
//!
//! Groups are sealed in order, written side by side, and *settled* in order again: a group is settled when it and everything
//! before it is complete and, where answers promise to be durable, durable. The first group of a life is written alone
//! (see `docs/format/kv-log.md`).
//!
//! A part's file has the length of a part before anything is written to it: a write that makes its file longer is three
//! operations of the card's device, one after the other, and one within the file is one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use ob_core::{Instant, Token};
use ob_format::kv::{BLOCK_LEN, GROUP_HEADER_LEN, GroupWriter, Origin, RECORD_ALIGNMENT, Record};

use super::ops::{LogFailure, LogOp};
use super::revisit::Known;
use crate::plant::{Bug, is_planted};

/// How the log is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogConfig {
    pub(crate) part_len: u64,
    pub(crate) group_len: usize,
    pub(crate) memory_len: usize,
    pub(crate) writes_max: usize,
    /// Whether every write is made durable.
    pub(crate) is_durable: bool,
}

/// Records that do not fit into a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLong;

/// A part that recovery would look at.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) number: u64,
    /// Bytes of records in it that are current, as the index rounds them.
    pub(crate) live: u64,
    /// The same of all values in it, whether they are current or not.
    kept: u64,
    /// Where its last group ends.
    pub(crate) used: u64,
    /// Reads that are on their way.
    reads: u32,
    /// Whether its file is there and, if it is written to, as long as a part.
    is_made: bool,
}

/// What a file operation that is on its way is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileChange {
    Create { token: Token, part: u64 },
    RemoveOldest { token: Token },
}

/// What the device has refused for want of space, and what is asked for again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Refused {
    Create,
    Remove,
    Flush,
    /// The group at an address.
    Write(u64),
}

struct Open {
    writer: GroupWriter,
    since: Instant,
}

struct Page {
    address: u64,
    bytes: Arc<Vec<u8>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WriteState {
    Waiting,
    InFlight(Token),
    Complete,
}

struct GroupWrite {
    address: u64,
    bytes: Arc<Vec<u8>>,
    state: WriteState,
}

impl FileChange {
    fn token(self) -> Token {
        match self {
            Self::Create { token, .. } | Self::RemoveOldest { token } => token,
        }
    }
}

/// The log.
pub(crate) struct Log {
    config: LogConfig,
    origin: Origin,
    parts: VecDeque<Part>,
    live: u64,
    kept: u64,
    used: u64,
    creating: Option<FileChange>,
    removing: Option<FileChange>,
    /// Parts that recovery has found, from the log's end on, whose files are as long as parts.
    left_over: BTreeSet<u64>,
    open: Option<Open>,
    /// Where the next group begins, or the open one does.
    tail: u64,
    /// Where the last sealed group begins.
    previous: u64,
    /// Where the last record ends.
    appended: u64,
    /// Where the last one ended when something was changed last; what was appended since are copies.
    changed: u64,
    pages: VecDeque<Page>,
    pages_len: usize,
    writes: VecDeque<GroupWrite>,
    unwritten_len: usize,
    writes_in_flight: usize,
    /// Bytes of all groups that were sealed in this life, and of those that are complete.
    sealed_len: u64,
    completed_len: u64,
    /// Whether the first group of this life is durable.
    is_life_begun: bool,
    /// Whether nobody is to be served before it is.
    is_marking: bool,
    complete: u64,
    durable: u64,
    /// Where the last groups begin that end there.
    complete_group: u64,
    durable_group: u64,
    /// A flush that is on its way: what was complete when it was asked for, and the last group of that.
    flushing: Option<(Token, u64, u64)>,
    ops: VecDeque<LogOp>,
    next_token: u64,
    refused: BTreeSet<Refused>,
    /// Nothing is asked of a device without space until somebody says that it is time.
    is_held: bool,
    failure: Option<LogFailure>,
}

impl Log {
    /// A log that goes on where recovery found its end. `parts` are those up to the end, with where their groups end; `files` are
    /// all that there are, with their lengths.
    pub(crate) fn new(
        config: LogConfig,
        origin: Origin,
        parts: &[(u64, u64)],
        files: &BTreeMap<u64, u64>,
        previous: u64,
    ) -> Self {
        let last = parts.last().map_or(0, |(number, _)| *number);
        // One that is shorter is made longer before it is written to: earlier builds left such, and power may be lost while one is made.
        // Those behind it are asked for after it, whether they are there or not.
        let whole = files.range(last..).take_while(|(_, len)| **len >= config.part_len);
        let whole: BTreeSet<u64> = whole.map(|(number, _)| *number).collect();
        let part = |&(number, used): &(u64, u64)| {
            let is_made = number < last || whole.contains(&number);
            Part { number, live: 0, kept: 0, used, reads: 0, is_made }
        };
        let end = parts.last().map_or(0, |(number, used)| number * config.part_len + used);
        Self {
            config,
            origin,
            parts: parts.iter().map(part).collect(),
            live: 0,
            kept: 0,
            used: parts.iter().map(|(_, used)| used).sum(),
            creating: None,
            removing: None,
            left_over: whole,
            open: None,
            tail: end,
            previous,
            appended: end,
            changed: end,
            pages: VecDeque::new(),
            pages_len: 0,
            writes: VecDeque::new(),
            unwritten_len: 0,
            writes_in_flight: 0,
            sealed_len: 0,
            completed_len: 0,
            is_life_begun: false,
            is_marking: false,
            complete: end,
            durable: end,
            complete_group: previous,
            durable_group: previous,
            flushing: None,
            ops: VecDeque::new(),
            next_token: 0,
            refused: BTreeSet::new(),
            is_held: false,
            failure: None,
        }
    }

    /// Where the oldest part begins.
    pub(crate) fn begin(&self) -> u64 {
        self.parts.front().map_or(self.tail, |part| part.number * self.config.part_len)
    }

    /// Where the oldest part begins that is not being removed.
    pub(crate) fn begin_to_stay(&self) -> u64 {
        self.begin() + if self.removing.is_some() { self.config.part_len } else { 0 }
    }

    /// Where the last record ends.
    pub(crate) fn appended(&self) -> u64 {
        self.appended
    }

    /// Where the last record ended when something was changed last.
    pub(crate) fn changed(&self) -> u64 {
        self.changed
    }

    /// What was appended just now has changed something.
    pub(crate) fn note_change(&mut self) {
        self.changed = self.appended;
    }

    /// Whether the open group has more than copies.
    pub(crate) fn has_open_changes(&self) -> bool {
        self.open.is_some() && self.changed > self.tail
    }

    /// Up to where recovery would find the log.
    pub(crate) fn settled(&self) -> u64 {
        if self.config.is_durable { self.durable } else { self.complete }
    }

    /// Up to where recovery would find the log after a loss of power.
    pub(crate) fn durable(&self) -> u64 {
        self.durable
    }

    /// What it has written, or is about to, for a comparison with what is on the device.
    pub(crate) fn known(&self) -> Known {
        let durable_group = (self.durable > 0).then_some(self.durable_group);
        let mut known = Known::new(self.origin, durable_group, self.durable, self.complete);
        known.groups.extend(self.writes.iter().map(|write| (write.address, Arc::clone(&write.bytes))));
        known
    }

    /// The parts whose files are there and stay.
    pub(crate) fn parts_to_stay(&self) -> impl Iterator<Item = u64> + '_ {
        let first = usize::from(self.removing.is_some());
        self.parts.iter().skip(first).filter(|part| part.is_made).map(|part| part.number)
    }

    /// The oldest part that there is.
    pub(crate) fn first_part(&self) -> Option<u64> {
        self.parts.front().map(|part| part.number)
    }

    /// Which store's it is.
    pub(crate) fn store(&self) -> [u8; 16] {
        self.origin.store
    }

    pub(crate) fn failure(&self) -> Option<LogFailure> {
        self.failure
    }

    pub(crate) fn parts(&self) -> impl ExactSizeIterator<Item = &Part> {
        self.parts.iter()
    }

    /// Where the groups end of the part that an address is in.
    pub(crate) fn end_of_part(&self, address: u64) -> Option<u64> {
        let number = address / self.config.part_len;
        let at = number.checked_sub(self.parts.front()?.number)?;
        let part = self.parts.get(usize::try_from(at).ok()?)?;
        Some(number * self.config.part_len + part.used)
    }

    /// Bytes of records that are current, as the index rounds them.
    pub(crate) fn live(&self) -> u64 {
        self.live
    }

    /// Bytes of all values in it, rounded in the same way. All that is more than what is current is outdated.
    pub(crate) fn kept(&self) -> u64 {
        self.kept
    }

    /// Bytes of groups that were sealed in this life, and of the open one.
    pub(crate) fn grown_len(&self) -> u64 {
        self.sealed_len + self.open.as_ref().map_or(0, |open| open.writer.len() as u64)
    }

    /// Bytes of groups of this life that the device has.
    pub(crate) fn completed_len(&self) -> u64 {
        self.completed_len
    }

    /// Whether the device has refused something for want of space that it has not taken since.
    pub(crate) fn is_out_of_space(&self) -> bool {
        !self.refused.is_empty()
    }

    /// Whether nothing is asked of the device until [`Log::try_again`].
    pub(crate) fn is_held(&self) -> bool {
        self.is_held
    }

    /// There may be space again.
    pub(crate) fn try_again(&mut self) {
        self.is_held = false;
    }

    /// Bytes of all groups.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// Bytes of groups in memory, those that are written included.
    pub(crate) fn memory_len(&self) -> usize {
        self.pages_len + self.open.as_ref().map_or(0, |open| open.writer.len())
    }

    /// Bytes that wait to be written, or are.
    pub(crate) fn unwritten_len(&self) -> usize {
        self.unwritten_len
    }

    /// Since when the open group has records.
    pub(crate) fn open_since(&self) -> Option<Instant> {
        self.open.as_ref().map(|open| open.since)
    }

    /// Whether no write is on its way, or waits to be.
    pub(crate) fn writes_in_flight(&self) -> usize {
        self.writes.len()
    }

    pub(crate) fn token(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token)
    }

    /// Bytes that records of these lengths take, one behind the other.
    pub(crate) fn aligned(len: usize) -> usize {
        len.next_multiple_of(RECORD_ALIGNMENT)
    }

    /// Makes room for records of `len` bytes in all, each rounded by [`Log::aligned`], in one group.
    pub(crate) fn reserve(&mut self, now: Instant, len: usize) -> Result<(), TooLong> {
        let alone = (GROUP_HEADER_LEN + len).next_multiple_of(BLOCK_LEN) as u64;
        if alone > self.config.part_len {
            return Err(TooLong);
        }
        if let Some(open) = &self.open {
            let used = Self::aligned(open.writer.bytes().len()) + len;
            let end = self.tail % self.config.part_len + used.next_multiple_of(BLOCK_LEN) as u64;
            if used <= self.config.group_len && end <= self.config.part_len {
                return Ok(());
            }
            self.seal();
        }
        if self.tail % self.config.part_len + alone > self.config.part_len {
            self.tail = self.tail.next_multiple_of(self.config.part_len);
        }
        self.enter_part(self.tail / self.config.part_len);
        // All of a group that is sealed behind this: with `always` and one client, that is each of them.
        let mut writer = GroupWriter::with_capacity(alone as usize);
        writer.follow(self.previous);
        self.open = Some(Open { writer, since: now });
        Ok(())
    }

    /// Appends a record for which there was made room; gives its address, or nothing if it cannot be kept.
    pub(crate) fn append(&mut self, record: &Record<'_>) -> Option<u64> {
        let open = self.open.as_mut()?;
        let at = open.writer.push(record)?;
        self.appended = self.tail + open.writer.bytes().len() as u64;
        Some(self.tail + at as u64)
    }

    /// Puts a record in the place of one that is in the open group, if it is of the same key and as long; whether it did.
    pub(crate) fn replace(&mut self, address: u64, record: &Record<'_>) -> bool {
        let (Some(open), Some(at)) = (self.open.as_mut(), address.checked_sub(self.tail)) else {
            return false;
        };
        usize::try_from(at).is_ok_and(|at| open.writer.replace(at, record))
    }

    /// Adds to the current bytes of the part that an address is in.
    pub(crate) fn keep(&mut self, address: u64, len: usize) {
        self.recover(address, len as u64, len as u64);
    }

    /// Says how many bytes of values there are in the part that an address is in, and how many of them are current.
    pub(crate) fn recover(&mut self, address: u64, kept: u64, live: u64) {
        if let Some(part) = self.part_of(address) {
            part.live += live;
            part.kept += kept;
            self.live += live;
            self.kept += kept;
        }
    }

    /// Takes from them.
    pub(crate) fn release(&mut self, address: u64, len: usize) {
        if let Some(part) = self.part_of(address) {
            part.live = part.live.saturating_sub(len as u64);
            self.live = self.live.saturating_sub(len as u64);
        }
    }

    /// Nothing in the log is current any more.
    pub(crate) fn release_all(&mut self) {
        self.live = 0;
        for part in &mut self.parts {
            part.live = 0;
        }
    }

    /// Ends the open group, which waits to be written from then on.
    pub(crate) fn seal(&mut self) {
        if let Some(open) = self.open.take_if(|open| !open.writer.is_empty()) {
            self.write_group(open.writer);
        }
    }

    /// Begins this life with a group that has no record: whoever comes next finds it, whether anything follows or not.
    pub(crate) fn mark_life(&mut self) {
        let is_first = !self.is_life_begun && self.writes.is_empty() && self.open.is_none();
        // A group without a record fits into any part.
        if is_first && self.reserve(Instant::default(), 0).is_ok() {
            self.is_marking = true;
            if let Some(open) = self.open.take() {
                self.write_group(open.writer);
            }
        }
    }

    /// Whether this life has begun in the log as far as it has to before anybody is served.
    pub(crate) fn is_marked(&self) -> bool {
        !self.is_marking || self.is_life_begun
    }

    fn write_group(&mut self, mut writer: GroupWriter) {
        let address = self.tail;
        // Recovery tells damage from the log's end by it.
        writer.attest_durable(if is_planted(Bug::DurableEarly) { address } else { self.durable });
        let bytes = Arc::new(writer.finish(self.origin, address));
        self.previous = address;
        self.tail += bytes.len() as u64;
        let end = address % self.config.part_len + bytes.len() as u64;
        if let Some(part) = self.part_of(address) {
            part.used = end;
        }
        self.used += bytes.len() as u64;
        self.sealed_len += bytes.len() as u64;
        self.unwritten_len += bytes.len();
        self.pages_len += bytes.len();
        self.pages.push_back(Page { address, bytes: Arc::clone(&bytes) });
        self.writes.push_back(GroupWrite { address, bytes, state: WriteState::Waiting });
    }

    /// The bytes from an address on, if they are in memory.
    pub(crate) fn in_memory(&self, address: u64) -> Option<&[u8]> {
        if let Some(open) = &self.open
            && address >= self.tail
        {
            return open.writer.bytes().get((address - self.tail) as usize..);
        }
        let at = self.pages.partition_point(|page| page.address <= address).checked_sub(1)?;
        let page = self.pages.get(at)?;
        page.bytes.get((address - page.address) as usize..)
    }

    /// Asks for bytes of the device, which may be fewer where the part ends. The part stays until [`Log::read_done`].
    pub(crate) fn read(&mut self, address: u64, len: usize) -> Token {
        let token = self.token();
        let (part, offset) = (address / self.config.part_len, address % self.config.part_len);
        let mut len = len;
        if let Some(part) = self.part_of(address) {
            part.reads += 1;
            len = len.min(part.used.saturating_sub(offset) as usize);
        }
        self.ops.push_back(LogOp::Read { token, part, offset, len });
        token
    }

    /// A read from this address is complete.
    pub(crate) fn read_done(&mut self, address: u64) {
        if let Some(part) = self.part_of(address) {
            part.reads = part.reads.saturating_sub(1);
        }
    }

    /// Asks for a flush of what is complete, if it is needed and none is on its way.
    pub(crate) fn flush(&mut self) {
        let is_needed = self.flushing.is_none() && self.durable < self.complete;
        if is_needed && !self.is_held && self.failure.is_none() {
            let token = self.token();
            self.flushing = Some((token, self.complete, self.complete_group));
            self.ops.push_back(LogOp::Flush { token });
        }
    }

    /// Asks for the oldest part to be removed, unless it is the last, or being read; whether it is removed.
    pub(crate) fn remove_oldest(&mut self) -> bool {
        let oldest = self.parts.front().filter(|part| part.reads == 0 && self.parts.len() > 1);
        let Some(part) = oldest.map(|part| part.number) else { return false };
        // It makes room, so a device without any is asked for it at once, and again when it is time.
        let waits = self.is_held && self.refused.contains(&Refused::Remove);
        if self.removing.is_none() && !waits {
            let token = self.token();
            self.removing = Some(FileChange::RemoveOldest { token });
            self.ops.push_back(LogOp::Remove { token, part });
        }
        true
    }

    /// The next operation.
    pub(crate) fn next_op(&mut self) -> Option<LogOp> {
        if self.failure.is_none() && !self.is_held {
            self.issue_create();
            self.issue_writes();
        }
        self.ops.pop_front()
    }

    /// Takes the completion of something other than a read; whether it was one of the log's.
    pub(crate) fn completed(&mut self, token: Token, result: Result<(), LogFailure>) -> bool {
        if !self.is_ours(token) {
            return false;
        }
        match result {
            Err(LogFailure::Space) => {
                self.refuse(token);
                return true;
            }
            Err(failure) => {
                self.failure.get_or_insert(failure);
                return true;
            }
            Ok(()) => {}
        }
        if let Some((_, up_to, group)) = self.flushing.take_if(|(flush, ..)| *flush == token) {
            if up_to > self.durable {
                (self.durable, self.durable_group) = (up_to, group);
            }
            self.refused.remove(&Refused::Flush);
        } else if self.removing.take_if(|change| change.token() == token).is_some() {
            if let Some(part) = self.parts.pop_front() {
                self.used -= part.used;
                self.kept -= part.kept;
            }
            self.refused.remove(&Refused::Remove);
            // What it had is for others now.
            self.is_held = false;
        } else if let Some(FileChange::Create { part, .. }) =
            self.creating.take_if(|change| change.token() == token)
        {
            if let Some(part) = self.part_of(part * self.config.part_len) {
                part.is_made = true;
            }
            self.refused.remove(&Refused::Create);
        } else {
            self.write_done(token);
        }
        true
    }

    /// The device has no space for an operation, which waits to be asked for again.
    fn refuse(&mut self, token: Token) {
        let is_it = |change: &mut FileChange| change.token() == token;
        let refused = if self.flushing.take_if(|(flush, ..)| *flush == token).is_some() {
            Refused::Flush
        } else if self.removing.take_if(is_it).is_some() {
            Refused::Remove
        } else if self.creating.take_if(is_it).is_some() {
            Refused::Create
        } else {
            let write = self.writes.iter_mut().find(|write| write.state == WriteState::InFlight(token));
            let Some(write) = write else { return };
            write.state = WriteState::Waiting;
            self.writes_in_flight -= 1;
            Refused::Write(write.address)
        };
        self.refused.insert(refused);
        self.is_held = true;
    }

    fn is_ours(&self, token: Token) -> bool {
        let changes = [self.creating, self.removing];
        self.flushing.is_some_and(|(flush, ..)| flush == token)
            || changes.iter().flatten().any(|change| change.token() == token)
            || self.writes.iter().any(|write| write.state == WriteState::InFlight(token))
    }

    fn write_done(&mut self, token: Token) {
        let write = self.writes.iter_mut().find(|write| write.state == WriteState::InFlight(token));
        let Some(write) = write else { return };
        write.state = WriteState::Complete;
        self.writes_in_flight -= 1;
        self.refused.remove(&Refused::Write(write.address));
        if is_planted(Bug::SettledWithGaps) {
            self.complete = self.complete.max(write.address + write.bytes.len() as u64);
            self.durable = if self.config.is_durable { self.complete } else { self.durable };
        }
        while let Some(write) = self.writes.pop_front_if(|write| write.state == WriteState::Complete) {
            self.complete = self.complete.max(write.address + write.bytes.len() as u64);
            self.complete_group = write.address;
            self.unwritten_len -= write.bytes.len();
            self.completed_len += write.bytes.len() as u64;
            // The first of a life is made durable in any case.
            if self.config.is_durable || !self.is_life_begun {
                (self.durable, self.durable_group) = (self.complete, self.complete_group);
            }
            self.is_life_begun = true;
        }
        self.forget_pages();
    }

    /// The device has everything up to where the log is complete. What was complete behind that is written again: if the device has
    /// lost its power, it may have lost that too.
    pub(crate) fn rejoined(&mut self) {
        for write in self.writes.iter_mut().filter(|write| write.state == WriteState::Complete) {
            write.state = WriteState::Waiting;
        }
    }

    fn forget_pages(&mut self) {
        while self.pages_len > self.config.memory_len
            && let Some(page) = self.pages.pop_front_if(|page| page.address < self.complete)
        {
            self.pages_len -= page.bytes.len();
        }
    }

    /// Files are made one behind the other, so that none is ever missing between others.
    fn issue_create(&mut self) {
        let unmade = self.parts.iter().rev().take_while(|part| !part.is_made).last();
        let (Some(part), None) = (unmade.map(|part| part.number), self.creating) else { return };
        let token = self.token();
        self.creating = Some(FileChange::Create { token, part });
        self.ops.push_back(LogOp::Create { token, part, len: self.config.part_len });
    }

    fn issue_writes(&mut self) {
        for at in 0..self.writes.len() {
            let is_alone = !self.is_life_begun && !is_planted(Bug::LifeWrittenAhead);
            let in_flight_max = if is_alone { 1 } else { self.config.writes_max };
            if self.writes_in_flight >= in_flight_max {
                return;
            }
            let write = &self.writes[at];
            if write.state != WriteState::Waiting {
                continue;
            }
            let address = write.address;
            let (part, offset) = (address / self.config.part_len, address % self.config.part_len);
            if self.part_of(address).is_none_or(|part| !part.is_made) {
                return;
            }
            let token = self.token();
            let is_durable = self.config.is_durable || !self.is_life_begun;
            let write = &mut self.writes[at];
            write.state = WriteState::InFlight(token);
            self.writes_in_flight += 1;
            let bytes = Arc::clone(&write.bytes);
            self.ops.push_back(LogOp::Write { token, part, offset, bytes, is_durable });
        }
    }

    fn enter_part(&mut self, number: u64) {
        if self.parts.back().is_some_and(|part| part.number == number) {
            return;
        }
        let is_made = self.left_over.remove(&number);
        self.parts.push_back(Part { number, live: 0, kept: 0, used: 0, reads: 0, is_made });
    }

    fn part_of(&mut self, address: u64) -> Option<&mut Part> {
        let first = self.parts.front()?.number;
        let at = (address / self.config.part_len).checked_sub(first)?;
        self.parts.get_mut(usize::try_from(at).ok()?)
    }
}
