//! Requests on their way: looked up, locked, read, applied.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::answers::{ATTESTED_KEY_LEN_MAX, Answer, Attestation};
use super::errors::{self, Refusal};
use super::index::KeyHash;
use super::ops::LogFailure;
use super::reads::{Missing, Reads};
use super::run::{self, Change, Changes, Circumstances, Needed};
use super::scan::Scan;
use super::slots::{Look, Sight, Slot};
use super::{Durability, Store};
use crate::command::{Command, Effect, Outline};
use crate::plant::{Bug, is_planted};
use crate::resp::{Replies, Request, Version};

/// A request may read this many times the longest value, and at least the other number of bytes.
const READ_VALUES_MAX: usize = 4;
const READ_LEN_MAX_LEAST: usize = 1 << 20;

/// Bytes that a key is counted as which a request locks or waits for.
const LOCK_LEN: usize = 2 * size_of::<KeyHash>() + size_of::<VecDeque<u64>>() + 4 * size_of::<u64>();
/// Keys for which memory is kept between requests.
const KEYS_KEPT: usize = 1024;

/// Who wants an answer, and in which version.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) connection: u64,
    pub(crate) stamp: u64,
    pub(crate) version: Version,
}

impl Job {
    pub(crate) fn answer(self, bytes: Vec<u8>, attestation: Option<Attestation>, is_last: bool) -> Answer {
        Answer { connection: self.connection, stamp: self.stamp, bytes, attestation, is_last }
    }
}

/// What a read of the log is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReadUse {
    /// A key of a task.
    Slot { task: u64, slot: usize, address: u64 },
    /// A key that may be over.
    Overdue { hash: KeyHash, address: u64 },
    /// A walk through the log.
    Sweep { address: u64, sweep: SweepUse },
}

/// What a walk through the log is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SweepUse {
    Compaction,
    Refill,
}

/// The instant at which a request has taken its keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instant {
    pub(crate) now_ms: u64,
    /// What has to be settled before the answer shows what was there.
    pub(crate) needs: u64,
}

#[derive(Debug)]
pub(crate) enum Kind {
    /// It names its keys.
    Named,
    /// `SCAN`.
    Scan(Scan),
}

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Task {
    job: Job,
    kind: Kind,
    request: Vec<u8>,
    /// The keys that it locks or waits for, each once.
    keys: Vec<KeyHash>,
    /// How many of them it does not have yet.
    keys_missing: usize,
    slots: Vec<Slot>,
    pub(super) reads: Reads,
    /// Bytes of memory that it takes, with what is read for it.
    len: usize,
    instant: Instant,
}

impl Task {
    /// One that waits for reads. `copied` bytes were copied out of the log's memory for it.
    pub(crate) fn reading(
        job: Job,
        kind: Kind,
        request: &[u8],
        keys: Vec<KeyHash>,
        (slots, copied): (Vec<Slot>, usize),
        reads: Reads,
        instant: Instant,
    ) -> Self {
        // What was copied counts like what is read, and so does what is known of each key: few bytes of a request can name much
        // of it.
        let known = slots.len() * size_of::<Slot>() + keys.len() * LOCK_LEN;
        let len = request.len() + known + copied + reads.memory_len();
        Self { job, kind, request: request.to_vec(), keys, keys_missing: 0, slots, reads, len, instant }
    }
}

impl Store {
    /// Takes a request that has to do with keys.
    pub(super) fn submit(&mut self, job: Job, request: &Request<'_>, outline: &Outline<'_>) {
        if !self.held.is_empty() || (is_unnamed(outline) && !self.locks.is_empty()) {
            self.tasks_len += request.bytes().len();
            self.held.push_back((job, request.bytes().to_vec()));
            self.stats.requests_queued += 1;
        } else {
            self.start(job, request.bytes(), outline);
        }
    }

    /// Goes on with what waited for what has just happened.
    pub(super) fn go_on(&mut self) {
        loop {
            if let Some(id) = self.runnable.pop_front() {
                if let Some(task) = self.take_task(id) {
                    self.run_unblocked(id, task);
                }
                continue;
            }
            let is_locked = !self.locks.is_empty();
            let may_start = |bytes: &[u8]| {
                Outline::of(&Request::new(bytes)).is_ok_and(|outline| !(is_locked && is_unnamed(&outline)))
            };
            let Some((job, bytes)) = self.held.pop_front_if(|(_, bytes)| may_start(bytes)) else { return };
            self.tasks_len -= bytes.len();
            if let Ok(outline) = Outline::of(&Request::new(&bytes)) {
                self.start(job, &bytes, &outline);
            }
        }
    }

    /// A read has brought bytes, or has failed.
    pub(super) fn read_completed(&mut self, read: ReadUse, result: Result<Vec<u8>, LogFailure>) {
        let (id, slot, address) = match read {
            ReadUse::Slot { task, slot, address } => (task, slot, address),
            ReadUse::Overdue { hash, address } => {
                self.log.read_done(address);
                return self.overdue_read(hash, address, result);
            }
            ReadUse::Sweep { address, sweep } => {
                self.log.read_done(address);
                return match sweep {
                    SweepUse::Compaction => self.swept(address, result),
                    SweepUse::Refill => self.refill(address, result),
                };
            }
        };
        self.log.read_done(address);
        let Some(task) = self.tasks.get_mut(&id) else { return };
        if let Some(slot) = task.slots.get_mut(slot) {
            *slot = match result {
                Ok(bytes) => Slot::Raw { address, bytes: Arc::new(bytes) },
                Err(failure) => Slot::Failed(failure),
            };
        }
        if !task.reads.done() {
            return self.read_more(id);
        }
        if let Some(task) = self.take_task(id) {
            self.finish(id, task);
        }
    }

    fn start(&mut self, job: Job, request: &[u8], outline: &Outline<'_>) {
        match outline.command {
            Command::Scan => return self.scan(job, request, outline),
            Command::Dbsize => {
                let count = self.index.len() as i64;
                return self.answer(job, self.instant(), |replies| replies.integer(count));
            }
            Command::Flushall | Command::Flushdb => return self.remove_all(job, outline),
            _ => {}
        }
        let mut hashes = std::mem::take(&mut self.hashes);
        hashes.clear();
        hashes.extend(outline.keys().map(|key| KeyHash::of(&self.config.secret, key)));
        let is_locked = !self.locks.is_empty() && hashes.iter().any(|hash| self.locks.contains_key(hash));
        if is_locked {
            self.wait_behind(job, request, &hashes);
        } else {
            self.attempt(job, request, outline, &hashes, None);
        }
        hashes.clear();
        hashes.shrink_to(KEYS_KEPT);
        self.hashes = hashes;
    }

    /// Queues a request behind those that have its keys.
    fn wait_behind(&mut self, job: Job, request: &[u8], hashes: &[KeyHash]) {
        self.stats.requests_queued += 1;
        let id = self.new_task_id();
        let keys = each_once(hashes);
        let mut keys_missing = 0;
        for key in &keys {
            let queue = self.locks.entry(*key).or_default();
            keys_missing += usize::from(!queue.is_empty());
            queue.push_back(id);
        }
        let instant = self.instant();
        let len = request.len() + keys.len() * LOCK_LEN;
        let task = Task {
            job,
            kind: Kind::Named,
            request: request.to_vec(),
            keys,
            keys_missing,
            slots: Vec::new(),
            reads: Reads::default(),
            len,
            instant,
        };
        self.insert_task(id, task);
    }

    /// All keys of a request have come to it.
    fn run_unblocked(&mut self, id: u64, task: Task) {
        let request = Request::new(&task.request);
        let Ok(outline) = Outline::of(&request) else { return };
        let hashes: Vec<KeyHash> = outline.keys().map(|key| KeyHash::of(&self.config.secret, key)).collect();
        self.attempt(task.job, &task.request, &outline, &hashes, Some((id, task.keys)));
    }

    /// Applies a request if everything that it needs is in memory, and else asks for that. `locked` are the task and its
    /// keys, if it has them already.
    fn attempt(
        &mut self,
        job: Job,
        request: &[u8],
        outline: &Outline<'_>,
        hashes: &[KeyHash],
        locked: Option<(u64, Vec<KeyHash>)>,
    ) {
        let mut slots = std::mem::take(&mut self.slots);
        slots.clear();
        let instant = self.instant();
        let (missing, result) = match self.look_up(outline, hashes, &mut slots) {
            Ok(missing) => (missing, Ok(())),
            Err(refusal) => (Vec::new(), Err(refusal)),
        };
        if missing.is_empty() {
            let result = result.and_then(|()| self.look_at(outline, &mut slots, instant));
            self.apply_now(job, outline, &slots, instant, result);
            slots.clear();
            slots.shrink_to(KEYS_KEPT);
            self.slots = slots;
            if let Some((id, keys)) = locked {
                self.unlock(id, &keys);
            }
            return;
        }
        // What is in memory now may have been forgotten when the reads are done.
        let copied = self.copy_out(&mut slots);
        let (id, keys) = match locked {
            Some((id, keys)) if outline.effect == Effect::Writes => (id, keys),
            Some((id, keys)) => {
                self.unlock(id, &keys);
                (self.new_task_id(), Vec::new())
            }
            None => {
                let id = self.new_task_id();
                let is_locking = outline.effect == Effect::Writes && !is_planted(Bug::UnlockedChange);
                (id, if is_locking { self.lock(id, hashes) } else { Vec::new() })
            }
        };
        let task =
            Task::reading(job, Kind::Named, request, keys, (slots, copied), Reads::of(missing), instant);
        self.begin_reading(id, task);
    }

    /// Takes a task that has something to read, and asks for that.
    pub(super) fn begin_reading(&mut self, id: u64, task: Task) {
        self.insert_task(id, task);
        self.read_more(id);
    }

    fn insert_task(&mut self, id: u64, task: Task) {
        self.tasks_len += task.len;
        self.tasks.insert(id, task);
    }

    fn take_task(&mut self, id: u64) -> Option<Task> {
        let task = self.tasks.remove(&id)?;
        self.tasks_len -= task.len;
        Some(task)
    }

    /// Finds where the keys are; gives which have to be read. A request that would read too
    /// much is refused: its keys may be few, and named a million times.
    fn look_up(
        &mut self,
        outline: &Outline<'_>,
        hashes: &[KeyHash],
        slots: &mut Vec<Slot>,
    ) -> Result<Vec<Missing>, Refusal> {
        let needed = run::needed(outline);
        let mut missing = Vec::new();
        if needed == Needed::Nothing {
            return Ok(missing);
        }
        let mut len_left = (READ_VALUES_MAX * self.config.value_len_max).max(READ_LEN_MAX_LEAST);
        for (at, hash) in hashes.iter().enumerate() {
            let place = match self.find(*hash) {
                None => {
                    slots.push(Slot::Absent);
                    continue;
                }
                Some(place) if needed == Needed::Existence && !place.expires => {
                    slots.push(Slot::Present);
                    continue;
                }
                Some(place) => place,
            };
            len_left = len_left.checked_sub(place.len_max).ok_or(errors::REPLY_TOO_LONG)?;
            let in_memory = self.log.in_memory(place.address);
            slots.push(match in_memory.map(|bytes| Slot::in_memory(place.address, bytes)) {
                Some(Ok(slot)) => slot,
                // What is in memory was written by this process: this cannot be, and the device may know better.
                Some(Err(_)) | None => {
                    missing.push(Missing { slot: at, address: place.address, len: place.len_max });
                    Slot::Reading
                }
            });
        }
        Ok(missing)
    }

    /// Copies every record out of the log's memory, once; gives how many bytes that were.
    fn copy_out(&self, slots: &mut [Slot]) -> usize {
        let mut copied = BTreeMap::new();
        for slot in slots {
            if let Slot::Seen(seen) = slot {
                let bytes = copied.entry(seen.address).or_insert_with(|| {
                    Arc::new(seen.bytes(&self.log).get(..seen.place.len).unwrap_or_default().to_vec())
                });
                *slot = Slot::Raw { address: seen.address, bytes: Arc::clone(bytes) };
            }
        }
        copied.values().map(|bytes| bytes.len()).sum()
    }

    /// Looks at what was read, and puts keys aside that are not there after all: expired, or another key's.
    fn look_at(
        &mut self,
        outline: &Outline<'_>,
        slots: &mut [Slot],
        instant: Instant,
    ) -> Result<(), Refusal> {
        for (slot, key) in slots.iter_mut().zip(outline.keys()) {
            match std::mem::replace(slot, Slot::Absent) {
                Slot::Raw { address, bytes } => {
                    *slot = Slot::of_read(address, bytes).map_err(errors::unreadable)?;
                }
                Slot::Failed(failure) => return Err(errors::unreadable(failure)),
                other => *slot = other,
            }
            match slot.look(key, instant.now_ms, &self.log) {
                Look::Right => continue,
                Look::Expired => self.expired(slot),
                Look::Other => self.stats.hash_collisions += 1,
            }
            *slot = Slot::Absent;
        }
        Ok(())
    }

    /// Forgets a key whose time is over, unless it has changed meanwhile. The record says by itself that it is over.
    fn expired(&mut self, slot: &Slot) {
        let Slot::Seen(seen) = slot else { return };
        let hash = KeyHash::of(&self.config.secret, seen.place.of(seen.bytes(&self.log)).key);
        if self.find(hash).is_some_and(|place| place.address == seen.address) {
            self.stats.keys_expired += 1;
            self.forget(hash);
        }
    }

    /// A task has everything that it waited for.
    fn finish(&mut self, id: u64, task: Task) {
        let Task { job, kind, request, keys, mut slots, reads, instant, .. } = task;
        reads.fill(&mut slots);
        if let Ok(outline) = Outline::of(&Request::new(&request)) {
            match kind {
                Kind::Named => {
                    let result = self.look_at(&outline, &mut slots, instant);
                    self.apply_now(job, &outline, &slots, instant, result);
                }
                Kind::Scan(scan) => self.answer_scan(job, &outline, scan, slots, instant),
            }
        }
        self.unlock(id, &keys);
    }

    /// Runs a command on keys of which everything needed is known, and makes its changes.
    fn apply_now(
        &mut self,
        job: Job,
        outline: &Outline<'_>,
        slots: &[Slot],
        instant: Instant,
        result: Result<(), Refusal>,
    ) {
        let mut bytes = self.answers.buffer();
        let circumstances =
            Circumstances { now_ms: instant.now_ms, value_len_max: self.config.value_len_max };
        let result = result
            .and_then(|()| {
                let sight = Sight { slots, log: &self.log };
                run::run(outline, circumstances, &sight, &mut Replies::new(&mut bytes, job.version))
            })
            .and_then(|changes| self.commit_if_any(job.stamp, &changes));
        match result {
            Ok(has_changed) => {
                let needs = if has_changed { self.instant().needs } else { instant.needs };
                let needs = if is_planted(Bug::ReadBeforeDurable) && !has_changed { 0 } else { needs };
                self.count(outline, slots);
                let attestation = self.attest(outline, slots);
                self.answers.push(needs, job.answer(bytes, attestation, false));
            }
            Err(refusal) => {
                self.answers.give_back(bytes);
                self.refuse_after(instant.needs, job, &refusal);
            }
        }
    }

    fn commit_if_any(&mut self, stamp: u64, changes: &Changes<'_>) -> Result<bool, Refusal> {
        if changes.is_empty() {
            return Ok(false);
        }
        self.commit(stamp, changes).map(|()| true)
    }

    fn count(&mut self, outline: &Outline<'_>, slots: &[Slot]) {
        if outline.effect == Effect::Reads {
            let hits = slots.iter().filter(|slot| matches!(slot, Slot::Seen(_) | Slot::Present)).count();
            self.stats.hits += hits as u64;
            self.stats.misses += (slots.len() - hits) as u64;
        }
    }

    /// Says where the record that answers a `GET` is, if the card could serve it.
    fn attest(&self, outline: &Outline<'_>, slots: &[Slot]) -> Option<Attestation> {
        let (Command::Get, [Slot::Seen(seen)]) = (outline.command, slots) else { return None };
        let record = seen.place.of(seen.bytes(&self.log));
        let is_settled =
            seen.address + seen.place.len as u64 <= self.log.settled() || is_planted(Bug::AttestsUnsettled);
        (is_settled && record.key.len() <= ATTESTED_KEY_LEN_MAX).then(|| Attestation {
            key: record.key.to_vec(),
            part: seen.address / self.config.part_len,
            offset: seen.address % self.config.part_len,
            value_len: record.value.map_or(0, <[u8]>::len),
            stamp: record.stamp,
            expires: record.expires,
        })
    }

    fn remove_all(&mut self, job: Job, outline: &Outline<'_>) {
        let mut arguments = outline.arguments();
        let is_mode = |word: &[u8]| word.eq_ignore_ascii_case(b"sync") || word.eq_ignore_ascii_case(b"async");
        let is_right = arguments.next().is_none_or(is_mode) && arguments.next().is_none();
        let changes = Changes::of(Change::RemoveAll);
        let result = if is_right { self.commit(job.stamp, &changes) } else { Err(errors::SYNTAX) };
        match result {
            Ok(()) => self.answer(job, self.instant(), |replies| replies.simple("OK")),
            Err(refusal) => self.refuse(job, &refusal),
        }
    }

    pub(super) fn answer(&mut self, job: Job, instant: Instant, write: impl FnOnce(&mut Replies<'_>)) {
        let mut bytes = self.answers.buffer();
        write(&mut Replies::new(&mut bytes, job.version));
        self.answers.push(instant.needs, job.answer(bytes, None, false));
    }

    pub(super) fn instant(&self) -> Instant {
        let is_waiting = self.config.durability == Durability::Always;
        Instant { now_ms: self.now_ms, needs: if is_waiting { self.log.changed() } else { 0 } }
    }

    pub(super) fn new_task_id(&mut self) -> u64 {
        self.next_task += 1;
        self.next_task
    }

    /// Takes keys that nobody has.
    fn lock(&mut self, id: u64, hashes: &[KeyHash]) -> Vec<KeyHash> {
        let keys = each_once(hashes);
        for key in &keys {
            self.locks.entry(*key).or_default().push_back(id);
        }
        keys
    }

    /// Gives keys to those who wait for them.
    fn unlock(&mut self, id: u64, keys: &[KeyHash]) {
        for key in keys {
            let Some(queue) = self.locks.get_mut(key) else { continue };
            debug_assert_eq!(queue.front(), Some(&id));
            queue.pop_front();
            let Some(next) = queue.front() else {
                self.locks.remove(key);
                continue;
            };
            if let Some(task) = self.tasks.get_mut(next) {
                task.keys_missing -= 1;
                if task.keys_missing == 0 {
                    self.runnable.push_back(*next);
                }
            }
        }
    }
}

fn is_unnamed(outline: &Outline<'_>) -> bool {
    matches!(outline.effect, Effect::ReadsUnnamed | Effect::WritesUnnamed)
}

fn each_once(hashes: &[KeyHash]) -> Vec<KeyHash> {
    let mut keys = hashes.to_vec();
    keys.sort_unstable();
    keys.dedup();
    keys
}
