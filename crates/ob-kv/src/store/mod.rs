//! The store on the host: a log, an index of it, and the commands; no files, sockets or clocks.
//!
//! ```text
//!   apply(now, stamp, connection, session, request)
//!      │  keys in memory, or not needed            ┌─────────────────────────────┐
//!      ├──────────────────────────────────────────▶│ run: the command, at one     │─▶ reply ─▶ next_answer()
//!      │  a record on the device                   │ instant ─▶ changes           │     once everything it may
//!      ├─▶ task: keys locked (if it writes) ─read─▶└──────────────┬──────────────┘     show is durable
//!      │  a key is locked                   ▲                     ▼
//!      └─▶ behind that task ────────────────┘      log: open group ─▶ next_op() ─▶ files; completed() ─▶ settled()
//! ```
//!
//! **Order.** Requests come in the order of their stamps. What can be applied at once is. A request that has to read the
//! device before it can *change* a key locks its keys, and later requests on these keys wait behind it, in order. A request
//! that only reads takes the addresses of its records at the instant at which it is applied; records never change, so it
//! may be answered whenever they have been read. Requests about keys that they do not name (`FLUSHALL`, `SCAN`, `DBSIZE`) wait
//! until nothing is locked, and everything behind them waits for them.
//!
//! **Expiry** is in the records; the index knows only whether a key expires. So whoever has to know reads the record.
//! Beside that a list of bounded length says which records are over when, for keys that nobody looks at; what finds no place
//! in it is found by a walk through the index.
//!
//! **Failure.** When the log cannot be written, the store takes no more changes, and answers that were waiting to become
//! durable become errors. Recovery is what brings it back. A device without space is no failure: see `room`.

mod answers;
mod arguments;
mod compaction;
mod errors;
mod expiry;
mod glob;
mod index;
mod log;
mod ops;
mod overdue;
mod reads;
mod recovery;
mod refill;
mod revisit;
mod room;
mod run;
mod scan;
mod session;
mod slots;
mod stats;
mod sweep;
mod tasks;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

pub use answers::{Answer, Attestation};
pub use compaction::Obstacle;
use ob_core::{Instant, Now, Token};
use ob_format::kv::{KEY_LEN_MAX, Origin, Record};
pub use ops::{LogCompletion, LogFailure, LogOp};
pub use recovery::{Recovery, RecoveryError, RecoveryProgress};
pub use revisit::{Revisit, Revisited};
pub use room::Space;
pub use session::Session;
pub use stats::Stats;

use self::answers::Answers;
use self::compaction::Compaction;
use self::errors::Refusal;
use self::expiry::Expiry;
use self::index::{Index, KeyHash, Place, rounded_len};
use self::log::{Log, LogConfig};
use self::overdue::Overdue;
use self::refill::Refill;
use self::room::{Growth, Room};
use self::run::{Change, Changes};
use self::session::After;
use self::slots::Slot;
use self::stats::Facts;
use self::tasks::{Job, ReadUse, Task};
use crate::command::{Effect, Outline, OutlineError};
use crate::plant::{Bug, is_planted};
use crate::resp::{Replies, Request};

/// When what was answered outlasts a loss of power. (The death of a process alone loses nothing that is complete.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Before the answer.
    Always,
    /// A second later at most, plus the time that a flush takes.
    EverySecond,
    /// When the device likes.
    No,
}

/// How a store is kept.
#[derive(Clone, Debug)]
pub struct Config {
    /// When what was answered outlasts a loss of power.
    pub durability: Durability,
    /// Bytes of a part, a multiple of 4096. The records of one request have to fit into a part.
    pub part_len: u64,
    /// How many parts there may be, at least 4.
    pub parts_max: usize,
    /// Bytes at which a group is full, unless the records of one request take more.
    pub group_len: usize,
    /// Bytes of groups to keep in memory after they were written.
    pub memory_len: usize,
    /// Bytes of memory that the index may take.
    pub index_len_max: usize,
    /// Bytes of the longest value.
    pub value_len_max: usize,
    /// How many groups may be written side by side.
    pub writes_max: usize,
    /// How many requests may wait: for reads, for others, or for their answers to become durable.
    pub waiting_max: usize,
    /// Bytes that they, what they read and their answers may take.
    pub waiting_len_max: usize,
    /// Milliseconds after which a group is written though it is not full, where answers do not wait for it.
    pub seal_after_ms: u64,
    /// Compaction begins when more than this part of the log, in percent, is outdated.
    pub garbage_percent: u64,
    /// The password that clients have to know, if any.
    pub password: Option<String>,
    /// Drawn at random: the name of the store, if it is a new one. Clients do not learn it, so it is the secret of the index too: keys that
    /// collide there can be found by those only who know it.
    pub name: [u8; 16],
}

impl Default for Config {
    fn default() -> Self {
        Self {
            durability: Durability::EverySecond,
            part_len: 256 << 20,
            parts_max: 1 << 20,
            group_len: 128 << 10,
            memory_len: 64 << 20,
            index_len_max: 256 << 20,
            value_len_max: 64 << 20,
            writes_max: 8,
            waiting_max: 16 << 10,
            waiting_len_max: 256 << 20,
            seal_after_ms: 5,
            garbage_percent: 50,
            password: None,
            name: [0; 16],
        }
    }
}

impl Config {
    fn expiry_len_max(&self) -> usize {
        self.index_len_max / EXPIRY_PART
    }

    fn log(&self) -> LogConfig {
        LogConfig {
            part_len: self.part_len,
            group_len: self.group_len,
            memory_len: self.memory_len,
            writes_max: self.writes_max,
            is_durable: self.durability == Durability::Always,
        }
    }
}

/// The list of what expires when may take this part of the memory of the index.
const EXPIRY_PART: usize = 4;
/// Keys that may be forgotten at once because they are over.
const EXPIRED_AT_ONCE_MAX: usize = 1000;
/// Bytes that may wait to be written before the store asks for patience.
const UNWRITTEN_GROUPS_MAX: usize = 32;
/// Groups that may be on their way before one that is not full waits for more, where answers wait for it.
const COMMITS_MAX: usize = 2;
const FLUSH_EVERY: Duration = Duration::from_secs(1);

/// The store.
pub struct Store {
    config: Config,
    index: Index,
    expiry: Expiry,
    log: Log,
    answers: Answers,
    tasks: BTreeMap<u64, Task>,
    /// Bytes of requests that wait, and of what they read.
    tasks_len: usize,
    next_task: u64,
    /// The tasks that have a key to themselves, first, or wait for it.
    locks: BTreeMap<KeyHash, VecDeque<u64>>,
    /// Tasks to which all their keys have come.
    runnable: VecDeque<u64>,
    /// Requests from the first on that waits until nothing is locked.
    held: VecDeque<(Job, Vec<u8>)>,
    reads: BTreeMap<Token, ReadUse>,
    compaction: Compaction,
    /// Whether compaction's last read failed.
    is_sweep_failing: bool,
    refill: Refill,
    room: Room,
    overdue: Overdue,
    started: Option<Instant>,
    /// What takes time goes by this clock, and what expires by the other one, which somebody may set.
    now: Instant,
    now_ms: u64,
    /// How far the other one is behind that, because somebody has set it back.
    behind_ms: u64,
    flushed: Instant,
    stamp_max: u64,
    /// Where recovery has ended, until a card has met this life.
    recovered_end: Option<u64>,
    stats: Stats,
    /// Empty between requests; kept for their memory.
    hashes: Vec<KeyHash>,
    slots: Vec<Slot>,
}

impl Store {
    /// A new store, without a part.
    #[must_use]
    pub fn create(config: Config) -> Self {
        let origin = Origin { store: config.name, life: 1, part_len: config.part_len };
        let log = Log::new(config.log(), origin, &[], &BTreeMap::new(), 0);
        let expiry = Expiry::new(config.expiry_len_max());
        Self::with(config, Index::new(), expiry, log, 0)
    }

    fn with(config: Config, index: Index, expiry: Expiry, log: Log, stamp_max: u64) -> Self {
        Self {
            recovered_end: Some(log.settled()),
            config,
            index,
            expiry,
            log,
            answers: Answers::default(),
            tasks: BTreeMap::new(),
            tasks_len: 0,
            next_task: 0,
            locks: BTreeMap::new(),
            runnable: VecDeque::new(),
            held: VecDeque::new(),
            reads: BTreeMap::new(),
            compaction: Compaction::default(),
            is_sweep_failing: false,
            refill: Refill::default(),
            room: Room::default(),
            overdue: Overdue::default(),
            started: None,
            now: Instant::default(),
            now_ms: 0,
            behind_ms: 0,
            flushed: Instant::default(),
            stamp_max,
            stats: Stats::default(),
            hashes: Vec::new(),
            slots: Vec::new(),
        }
    }

    /// A new client connection.
    #[must_use]
    pub fn open(&self, id: u64) -> Session {
        Session::new(id, self.needs_password())
    }

    /// Whether clients have to say who they are.
    #[must_use]
    pub fn needs_password(&self) -> bool {
        self.config.password.is_some()
    }

    /// Whether it takes more requests now. One more is always taken; but whoever goes on has no bound to what waits.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.tasks.len() + self.held.len() + self.answers.waiting() < self.config.waiting_max
            && self.waiting_len() < self.config.waiting_len_max
            && (self.log.unwritten_len() <= UNWRITTEN_GROUPS_MAX * self.config.group_len
                || self.log.failure().is_some()
                || self.log.is_out_of_space())
            // Without a log there is no more compaction, and whoever asks has to be told.
            && (self.log.failure().is_some() || !self.is_ahead_of_compaction())
    }

    /// Takes a request. Requests come in the order of their stamps; each is answered once, in any order, with the
    /// connection's token and its stamp. The session is changed at once.
    pub fn apply(
        &mut self,
        now: Now,
        stamp: u64,
        connection: u64,
        session: &mut Session,
        request: &Request<'_>,
    ) {
        self.set_clock(now);
        self.stats.requests += 1;
        self.stamp_max = self.stamp_max.max(stamp);
        let job = Job { connection, stamp, version: session.version() };
        match Outline::of(request) {
            Err(OutlineError::Unknown) => self.refuse(job, &errors::unknown_command(request.arguments())),
            Err(OutlineError::Arity(command)) => {
                self.refuse(job, &errors::wrong_arity(command.traits().name));
            }
            Ok(outline) if !session.admits(outline.command) => self.refuse(job, &errors::NOT_AUTHENTICATED),
            Ok(outline) if session.queues(outline.command) => self.refuse(job, &errors::NO_TRANSACTIONS),
            Ok(outline) if outline.effect == Effect::Nothing => self.serve(job, session, &outline),
            Ok(outline) => self.submit(job, request, &outline),
        }
    }

    /// The next answer that may leave.
    pub fn next_answer(&mut self) -> Option<Answer> {
        self.answers.next(self.log.settled(), self.failure_of_waiting())
    }

    /// Takes the buffer of an answer back, so that the next one needs no new one.
    pub fn give_back(&mut self, buffer: Vec<u8>) {
        self.answers.give_back(buffer);
    }

    /// The next thing to do with the log's files. To be asked when all requests that are there have been applied: where
    /// answers wait for the log, what was applied until then is written together.
    pub fn next_op(&mut self) -> Option<LogOp> {
        let is_always = self.config.durability == Durability::Always;
        if is_always && self.log.writes_in_flight() < COMMITS_MAX && self.is_seal_wanted() {
            self.log.seal();
        }
        self.compact();
        self.step_refill();
        self.log.next_op()
    }

    /// Takes the completion of an operation.
    pub fn completed(&mut self, completion: LogCompletion) {
        let LogCompletion { token, result } = completion;
        match self.reads.remove(&token) {
            Some(read) => self.read_completed(read, result),
            None => {
                let was_held = self.log.is_held();
                self.log.completed(token, result.map(drop));
                self.watch_refusals(was_held);
            }
        }
        self.go_on();
    }

    /// Does what is due by the clock.
    pub fn tick(&mut self, now: Now) {
        self.set_clock(now);
        if self.seal_due().is_some_and(|due| due <= self.now) {
            self.log.seal();
        }
        self.forget_expired();
        self.walk_overdue();
        self.tick_room();
        if self.config.durability == Durability::EverySecond && self.flushed + FLUSH_EVERY <= self.now {
            self.flushed = self.now;
            self.log.flush();
        }
    }

    /// When [`Store::tick`] is due, if ever.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        let seal = self.seal_due();
        let is_dirty = self.log.durable() < self.log.appended();
        let flush = (self.config.durability == Durability::EverySecond && is_dirty)
            .then(|| self.flushed + FLUSH_EVERY);
        // If somebody sets the clock meanwhile, keys that nobody looks at are forgotten sooner or later than this.
        let expiry = self.expiry.next_due().map(|due_ms| self.now + self.time_left(due_ms));
        let others = [expiry, self.overdue_due(), self.room_due(), self.refill_due(), self.compaction_due()];
        seal.into_iter().chain(flush).chain(others.into_iter().flatten()).min()
    }

    /// How long it takes until it is that time. Where the clock was set back, it has to catch up first.
    fn time_left(&self, due_ms: u64) -> Duration {
        let left = due_ms.saturating_sub(self.now_ms);
        Duration::from_millis(if left > 0 { left.saturating_add(self.behind_ms) } else { 0 })
    }

    /// Whether the open group is to be written before it is full.
    fn is_seal_wanted(&self) -> bool {
        self.log.has_open_changes() || !self.is_copying() || is_planted(Bug::CopiesScattered)
    }

    fn seal_due(&self) -> Option<Instant> {
        let since = self.log.open_since().filter(|_| self.is_seal_wanted())?;
        Some(since + Duration::from_millis(self.config.seal_after_ms))
    }

    /// Up to which address recovery would find the log; with [`Durability::Always`], even after a loss of power.
    #[must_use]
    pub fn settled(&self) -> u64 {
        self.log.settled()
    }

    /// The greatest stamp of a request or a record that it has seen.
    #[must_use]
    pub fn stamp_max(&self) -> u64 {
        self.stamp_max
    }

    /// Which store this is: drawn when it was made.
    #[must_use]
    pub fn name(&self) -> [u8; 16] {
        self.log.store()
    }

    /// Has everything written, and made durable, that was applied; whether it is. To be asked again after completions.
    pub fn wind_down(&mut self) -> bool {
        self.log.seal();
        self.log.flush();
        self.log.failure().is_some() || self.log.durable() >= self.log.appended()
    }

    /// Why it takes no more changes, if it does not.
    #[must_use]
    pub fn failure(&self) -> Option<LogFailure> {
        self.log.failure()
    }

    /// Whether clients have changed something that recovery would not find yet.
    #[must_use]
    pub fn has_unsettled_changes(&self) -> bool {
        self.log.changed() > self.log.settled()
    }

    /// How it stands.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            keys: self.index.len(),
            keys_expiring: self.index.expiring(),
            index_len: self.index.memory_len() + self.expiry.memory_len(),
            log_memory_len: self.log.memory_len(),
            log_len: self.log.appended() - self.log.begin(),
            log_live_len: self.log.live(),
            log_room_len: self.room_left(),
            space: self.space(),
            log_unsettled_len: self.log.appended().saturating_sub(self.log.settled()),
            requests_waiting: self.tasks.len() + self.held.len(),
            waiting_len: self.waiting_len(),
            ..self.stats
        }
    }

    fn waiting_len(&self) -> usize {
        self.tasks_len + self.answers.waiting_len()
    }

    /// The clock of what expires never goes back, or a key that was gone could be there again.
    fn set_clock(&mut self, now: Now) {
        self.now_ms = self.now_ms.max(now.unix_ms);
        self.behind_ms = self.now_ms - now.unix_ms;
        self.now = self.now.max(now.instant);
        if self.started.is_none() {
            self.started = Some(self.now);
            self.flushed = self.now;
        }
    }

    fn serve(&mut self, job: Job, session: &mut Session, outline: &Outline<'_>) {
        let mut bytes = self.answers.buffer();
        let facts = Facts {
            password: self.config.password.as_deref(),
            durability: self.config.durability,
            index_len_max: self.config.index_len_max,
            value_len_max: self.config.value_len_max,
            stats: self.stats(),
            uptime: self.now - self.started.unwrap_or(self.now),
            is_read_only: self.log.failure().is_some() || self.log.is_out_of_space(),
        };
        let after = match session::run(session, outline, &facts, &mut bytes) {
            Ok(after) => after,
            Err(refusal) => {
                self.answers.give_back(bytes);
                return self.refuse(job, &refusal);
            }
        };
        if after == After::ResetStats {
            self.stats.reset();
        }
        // It shows nothing of any key, so it waits for nothing.
        self.answers.push(0, job.answer(bytes, None, after == After::Close));
    }

    /// Answers with an error that shows nothing of any key.
    fn refuse(&mut self, job: Job, refusal: &Refusal) {
        self.refuse_after(0, job, refusal);
    }

    /// Answers with an error that may leave when the log is settled up to `needs`: it can tell what a key is.
    fn refuse_after(&mut self, needs: u64, job: Job, refusal: &Refusal) {
        self.stats.errors += 1;
        let mut bytes = self.answers.buffer();
        Replies::new(&mut bytes, job.version).error(&refusal.0);
        self.answers.push(needs, job.answer(bytes, None, false));
    }

    /// Makes the changes of a request, all or none.
    fn commit(&mut self, stamp: u64, changes: &Changes<'_>) -> Result<(), Refusal> {
        let len = match self.check(changes) {
            Err(refusal) if refusal == errors::OUT_OF_SPACE || self.log.is_out_of_space() => {
                self.stats.refused_for_space += 1;
                self.room.changed(true);
                return Err(refusal);
            }
            checked => checked?,
        };
        self.log.reserve(self.now, len).map_err(|_| errors::REQUEST_TOO_LONG)?;
        for change in changes.iter() {
            if is_planted(Bug::StampInTwoGroups) {
                let _ = self.log.reserve(self.now, len);
            }
            match change {
                Change::Put { key, value, expires } => {
                    let record = Record { key, value: Some(value), stamp, expires: *expires };
                    self.put(self.hash(key), &record);
                }
                Change::Remove { key } => {
                    self.forget(self.hash(key));
                    if !is_planted(Bug::RemovedNotLogged) {
                        self.log.append(&Record { key, value: None, stamp, expires: None });
                    }
                }
                Change::RemoveAll => {
                    self.log.append(&Record { key: &[], value: None, stamp, expires: None });
                    self.index.clear();
                    self.expiry.clear();
                    self.log.release_all();
                }
            }
        }
        self.log.note_change();
        if changes.iter().any(|change| matches!(change, Change::Put { .. })) {
            self.room.changed(false);
        }
        Ok(())
    }

    /// Whether a key is new, and the index has no slot for it.
    fn needs_memory(&self, hash: KeyHash) -> bool {
        self.find(hash).is_none() && self.index.would_grow(hash)
    }

    /// Bytes that the changes take in the log, if they may be made.
    fn check(&self, changes: &Changes<'_>) -> Result<usize, Refusal> {
        if let Some(failure) = self.log.failure() {
            return Err(errors::read_only(failure));
        }
        // Compaction needs room for copies.
        let is_log_full = self.log.parts().len() + 2 > self.config.parts_max;
        let is_index_full = self.index.memory_len() >= self.config.index_len_max;
        let (mut len, mut growth) = (0, Growth::Removals);
        for change in changes.iter() {
            let (key, value): (&[u8], Option<&[u8]>) = match change {
                Change::Put { key, value, .. } => (key, Some(value)),
                Change::Remove { key } => (key, None),
                Change::RemoveAll => (b"", None),
            };
            match (value, change) {
                (Some(_), _) => growth = Growth::Values,
                (None, Change::RemoveAll) => growth = Growth::RemoveAll,
                (None, _) => {}
            }
            match value {
                Some(_) if key.is_empty() => return Err(errors::EMPTY_KEY),
                Some(_) if key.len() > KEY_LEN_MAX => return Err(errors::KEY_TOO_LONG),
                Some(value) if value.len() > self.config.value_len_max => return Err(errors::TOO_LONG),
                Some(_) if is_log_full => return Err(errors::OUT_OF_SPACE),
                Some(_) if is_index_full && self.needs_memory(self.hash(key)) => {
                    return Err(errors::OUT_OF_MEMORY);
                }
                _ => {}
            }
            len += Log::aligned(Record { key, value, stamp: 0, expires: None }.len());
        }
        self.check_room(growth, len)?;
        Ok(len)
    }

    /// In every life of the store the same: a cursor of `SCAN` is one.
    fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash::of(&self.config.name, key)
    }

    fn find(&self, hash: KeyHash) -> Option<Place> {
        self.index.find(hash, self.log.begin())
    }

    /// Appends a key's newest record, for which there was made room; or, if the one before has not begun its way to the
    /// device, puts it there.
    fn put(&mut self, hash: KeyHash, record: &Record<'_>) {
        // The list of what expires when takes a record at an address for what it was when it was listed.
        let old = self.find(hash).filter(|old| !old.expires && record.expires.is_none());
        if old.is_some_and(|old| self.log.replace(old.address, record)) {
            self.stats.records_replaced += 1;
            return;
        }
        let Some(address) = self.log.append(record) else { return };
        let len_max = rounded_len(record.len());
        let place = Place { address, len_max, expires: record.expires.is_some() };
        let old = self.index.insert(hash, place, self.log.begin());
        self.log.keep(address, len_max);
        if let Some(old) = old {
            self.log.release(old.address, old.len_max);
        }
        if let Some(expires) = record.expires
            && !self.expiry.add(expires, hash, address)
        {
            self.stats.expiries_unlisted += 1;
        }
    }

    /// Forgets keys whose time is over. Their records say so by themselves.
    fn forget_expired(&mut self) {
        for _ in 0..EXPIRED_AT_ONCE_MAX {
            let Some((hash, address)) = self.expiry.due(self.now_ms) else { return };
            if self.find(hash).is_some_and(|place| place.address == address) {
                self.stats.keys_expired += 1;
                self.forget(hash);
            }
        }
    }

    /// Forgets a key.
    fn forget(&mut self, hash: KeyHash) {
        if let Some(old) = self.index.remove(hash, self.log.begin()) {
            self.log.release(old.address, old.len_max);
        }
    }
}
