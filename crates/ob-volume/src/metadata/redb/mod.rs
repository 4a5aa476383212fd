//! A store on a device: what one machine's tier has agreed on with itself, over lives of its host.
//!
//! ```text
//!   submit ─▶ line ─▶ a batch: one transaction of redb, in memory ─▶ epochs ─▶ device ─▶ durable: answers ─▶ poll
//! ```
//!
//! redb works on a [mirror] of its file, so nothing here waits: what it has written is given to the device in its order, and who
//! has asked is answered when all of it is durable. What waits together shares a batch, and so the flush.
//!
//! Each start takes the way that a loss of power takes: redb is never told that its file was closed well, and verifies every sum of what it
//! finds. The [device's driver](disk) knows which commit was the last, so a store never goes back to the one before. Then sessions of
//! earlier lives end, and their keys with them.
//!
//! After an error of the device nobody knows what it has: whoever waits is answered so, and the store opens anew.

mod disk;
mod mirror;
mod records;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use ob_core::{Device, DeviceError, Instant, Refused, RefusedReason, SessionId, Token};

use self::disk::{Disk, HEAD_LEN, Stamp};
use self::mirror::Mirror;
use self::records::{Fault, Records};
use super::plant::{Bug, is_planted};
use super::{Key, MetadataAnswer, MetadataCompletion, MetadataError, MetadataOp, MetadataStore};

/// Operations that it takes before it is polled.
const OPERATIONS_MAX: usize = 256;
/// Operations of one batch.
const BATCH_MAX: usize = 64;
/// Keys and values may take this part of the device: redb's file doubles when it grows, its pages need not be full, and what is written
/// over is there until it is durable elsewhere.
const USED_SHARE: u64 = 8;
/// How long after an error the device is asked again.
const REOPEN_AFTER: Duration = Duration::from_secs(1);
/// Sessions that one life gives: the others' numbers are of the next life.
const SESSIONS_A_LIFE: u64 = 1 << 32;

/// Why a store cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedbError {
    /// The device's blocks are too long.
    #[error("a metadata store needs blocks of at most 4096 bytes; the device has {block_len}")]
    Block {
        /// Bytes of them.
        block_len: u32,
    },
    /// It is no store, or what it has is not what was written.
    #[error("the metadata store is damaged: {0}")]
    Damaged(&'static str),
    /// Another build has made it.
    #[error("the metadata store has version {version}, which this build does not know")]
    Version {
        /// Which.
        version: u32,
    },
    /// There is no room for what was to be put.
    #[error("the device of the metadata store is too small: {needed} bytes are needed of {capacity}")]
    TooSmall {
        /// Bytes that would do.
        needed: u64,
        /// Bytes that it has.
        capacity: u64,
    },
    /// The device has failed.
    #[error("the device of the metadata store fails: {0}")]
    Device(#[from] DeviceError),
    /// redb refuses what should always work.
    #[error("the metadata store cannot be used: {0}")]
    Other(String),
}

/// How a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is being read, or made.
    Opening,
    /// It answers.
    Open,
    /// It does not, and tries again.
    Broken(RedbError),
    /// It never will: a person has to look.
    Failed(RedbError),
}

/// What it does now.
enum Phase {
    /// The device is read; whether its head was.
    Loading {
        has_head: bool,
    },
    /// The device takes what redb has written.
    Writing,
    /// Nothing is under way.
    Idle,
    /// Until then.
    Broken {
        again: Instant,
    },
    Failed,
}

#[derive(Clone, Copy)]
struct Session {
    ttl: Duration,
    ends: Instant,
}

/// A store on a device. It does what it can when it is polled, and waits for nothing; time goes on as it is told.
pub struct RedbStore<D> {
    disk: Disk<D>,
    phase: Phase,
    standing: Standing,
    now: Instant,
    records: Option<Records>,
    sessions: BTreeMap<SessionId, Session>,
    /// Sessions that are over, and whose keys are still there.
    over: BTreeSet<SessionId>,
    /// The last session that was given.
    last_session: u64,
    /// Who owns a key, of those that somebody's session owns.
    owners: BTreeMap<Key, SessionId>,
    submitted: VecDeque<(Token, MetadataOp)>,
    /// What is said when the device has all of it.
    answers: VecDeque<MetadataCompletion>,
    ready: VecDeque<MetadataCompletion>,
    /// Whether people know that it is nearly full.
    is_told: bool,
}

impl<D: Device> RedbStore<D> {
    /// Makes an empty store, whatever the device holds.
    ///
    /// # Errors
    ///
    /// When the device cannot have one.
    pub fn create(device: D) -> Result<Self, RedbError> {
        let mut store = Self::new(device)?;
        let mirror = Mirror::new(Vec::new(), store.disk.most());
        match Records::create(mirror.clone()) {
            Ok(records) => store.begin_life(records),
            Err(fault) => {
                let capacity = store.disk.capacity();
                return Err(fault.into_error(mirror.refused(), capacity));
            }
        }
        match store.standing {
            Standing::Failed(error) | Standing::Broken(error) => Err(error),
            Standing::Opening | Standing::Open => Ok(store),
        }
    }

    /// Opens one that was made.
    ///
    /// # Errors
    ///
    /// When the device cannot have one. What it holds is seen later, by [`RedbStore::standing`].
    pub fn open(device: D) -> Result<Self, RedbError> {
        let mut store = Self::new(device)?;
        store.disk.begin_load();
        Ok(store)
    }

    fn new(device: D) -> Result<Self, RedbError> {
        Ok(Self {
            disk: Disk::new(device)?,
            phase: Phase::Loading { has_head: false },
            standing: Standing::Opening,
            now: Instant::default(),
            records: None,
            sessions: BTreeMap::new(),
            over: BTreeSet::new(),
            last_session: 0,
            owners: BTreeMap::new(),
            submitted: VecDeque::new(),
            answers: VecDeque::new(),
            ready: VecDeque::new(),
            is_told: false,
        })
    }

    /// How it is.
    #[must_use]
    pub fn standing(&self) -> &Standing {
        &self.standing
    }

    /// The device, for whoever drives it.
    pub fn device_mut(&mut self) -> &mut D {
        self.disk.device_mut()
    }

    /// Says what time it is. Sessions that nobody has renewed end.
    pub fn set_time(&mut self, now: Instant) {
        self.now = self.now.max(now);
        let over = self.sessions.iter().filter(|(_, session)| session.ends <= self.now);
        let over: Vec<SessionId> = over.map(|(id, _)| *id).collect();
        for session in over {
            self.end(session);
        }
        self.advance();
    }

    /// Does what can be done now.
    fn advance(&mut self) {
        loop {
            let moved = match self.phase {
                Phase::Loading { has_head } => self.load(has_head),
                Phase::Writing => self.write(),
                Phase::Idle => self.begin_batch(),
                Phase::Broken { again } => self.reopen(again),
                Phase::Failed => self.answer_all(MetadataError::Damaged),
            };
            if !moved {
                break;
            }
        }
    }

    fn load(&mut self, has_head: bool) -> bool {
        match self.disk.drive() {
            Ok(false) => return false,
            Err(error) => self.break_down(error.into()),
            Ok(true) if !has_head => match self.disk.continue_load() {
                Ok(()) => self.phase = Phase::Loading { has_head: true },
                Err(error) => self.fail(error),
            },
            Ok(true) => match self.disk.take_image() {
                Ok((image, stamp)) => self.start(image, stamp),
                Err(error) => self.fail(error),
            },
        }
        true
    }

    /// All of the device was read.
    fn start(&mut self, image: Vec<u8>, stamp: Stamp) {
        let mirror = Mirror::new(image, self.disk.most());
        match Records::open(mirror.clone(), stamp) {
            Ok(records) => self.begin_life(records),
            Err(fault) => self.fail(fault.into_error(mirror.refused(), self.disk.capacity())),
        }
    }

    /// Another life begins: its number is durable before anything is answered, and sessions of the one before are over.
    fn begin_life(&mut self, mut records: Records) {
        // What opening has written is no commit of its own.
        self.disk.write(records.mirror().take_epochs(), records.stamp());
        match records.begin_life() {
            Ok(life) => {
                self.last_session = life * SESSIONS_A_LIFE;
                self.disk.write(records.mirror().take_epochs(), records.stamp());
                self.records = Some(records);
                self.phase = Phase::Writing;
            }
            Err(fault) => match fault.into_error(records.mirror().refused(), self.disk.capacity()) {
                error @ (RedbError::Damaged(_) | RedbError::Version { .. }) => self.fail(error),
                error => self.break_down(error),
            },
        }
    }

    fn write(&mut self) -> bool {
        match self.disk.drive() {
            Ok(false) if !is_planted(Bug::MetadataUnflushed) => return false,
            Ok(_) => {
                (self.phase, self.standing) = (Phase::Idle, Standing::Open);
                self.ready.append(&mut self.answers);
            }
            Err(error) => self.break_down(error.into()),
        }
        true
    }

    /// What waits together becomes one transaction of redb's.
    fn begin_batch(&mut self) -> bool {
        if self.submitted.is_empty() && self.over.is_empty() {
            return false;
        }
        let count = self.submitted.len().min(BATCH_MAX);
        let batch: Vec<(Token, MetadataOp)> = self.submitted.drain(..count).collect();
        let tokens: Vec<Token> = batch.iter().map(|(token, _)| *token).collect();
        let Some(mut records) = self.records.take() else { return false };
        match self.execute(&mut records, batch) {
            Ok(results) => {
                let answers = tokens.into_iter().zip(results);
                self.answers.extend(answers.map(|(token, result)| MetadataCompletion { token, result }));
                self.disk.write(records.mirror().take_epochs(), records.stamp());
                self.records = Some(records);
                self.phase = Phase::Writing;
            }
            Err(fault) => {
                // Nothing of it was given to the device.
                let error = fault.into_error(records.mirror().refused(), self.disk.capacity());
                let unreachable =
                    |token| MetadataCompletion { token, result: Err(MetadataError::Unreachable) };
                self.ready.extend(tokens.into_iter().map(unreachable));
                self.break_down(error);
            }
        }
        true
    }

    fn execute(
        &mut self,
        records: &mut Records,
        batch: Vec<(Token, MetadataOp)>,
    ) -> Result<Vec<Result<MetadataAnswer, MetadataError>>, Fault> {
        let over = std::mem::take(&mut self.over);
        let mut transaction = records.begin()?;
        transaction.delete(&self.disown(|session| over.contains(&session)))?;
        let mut results = Vec::with_capacity(batch.len());
        for (_, op) in batch {
            results.push(match op {
                MetadataOp::Get { key } => Ok(MetadataAnswer::Value(transaction.get(&key)?)),
                MetadataOp::List { prefix, after, most } => {
                    Ok(transaction.list(&prefix, after.as_ref(), most)?)
                }
                MetadataOp::Commit(commit) => {
                    let (sessions, used_max) = (&self.sessions, self.disk.most() / USED_SHARE);
                    let is_session = |session| sessions.contains_key(&session);
                    transaction.commit(&commit, used_max, is_session, &mut self.owners)?
                }
                MetadataOp::Grant { ttl } => {
                    self.last_session += 1;
                    let session = SessionId(self.last_session);
                    self.sessions.insert(session, Session { ttl, ends: self.now + ttl });
                    Ok(MetadataAnswer::Session(session))
                }
                MetadataOp::Renew { session } => match self.sessions.get_mut(&session) {
                    Some(session) => {
                        session.ends = self.now + session.ttl;
                        Ok(MetadataAnswer::Renewed)
                    }
                    None => Err(MetadataError::NoSession),
                },
                MetadataOp::Revoke { session } => match self.sessions.remove(&session) {
                    Some(_) => {
                        transaction.delete(&self.disown(|owner| owner == session))?;
                        Ok(MetadataAnswer::Revoked)
                    }
                    None => Err(MetadataError::NoSession),
                },
                MetadataOp::Forget { .. } => Ok(MetadataAnswer::Forgotten),
            });
        }
        records.commit(transaction)?;
        self.note_room(records.used());
        Ok(results)
    }

    /// Whoever runs the store hears that it is nearly full, once.
    fn note_room(&mut self, used: u64) {
        let most = self.disk.most() / USED_SHARE;
        if used > most / 8 * 7 && !std::mem::replace(&mut self.is_told, true) {
            tracing::warn!(used, most, "the metadata store is nearly full: it takes no more than that");
        }
    }

    /// Keys of sessions that are over: nobody owns them any more.
    fn disown(&mut self, is_over: impl Fn(SessionId) -> bool) -> Vec<Key> {
        self.owners.extract_if(.., |_, owner| is_over(*owner)).map(|(key, _)| key).collect()
    }

    fn end(&mut self, session: SessionId) {
        if self.sessions.remove(&session).is_some() && self.owners.values().any(|owner| *owner == session) {
            self.over.insert(session);
        }
    }

    /// Nobody knows what the device has. It is read anew, later; sessions end, as with each opening.
    fn break_down(&mut self, error: RedbError) {
        tracing::error!("{error}; the store is opened again");
        let unknown = |completion: MetadataCompletion| MetadataCompletion {
            token: completion.token,
            result: Err(MetadataError::Unknown),
        };
        self.ready.extend(std::mem::take(&mut self.answers).into_iter().map(unknown));
        self.forget();
        self.phase = Phase::Broken { again: self.now + REOPEN_AFTER };
        self.standing = Standing::Broken(error);
    }

    fn fail(&mut self, error: RedbError) {
        tracing::error!("{error}");
        self.forget();
        self.phase = Phase::Failed;
        self.standing = Standing::Failed(error);
    }

    fn forget(&mut self) {
        self.records = None;
        self.sessions.clear();
        self.over.clear();
        self.owners.clear();
    }

    /// Opens it anew when it is time, and the device has nothing more of what it was given.
    fn reopen(&mut self, again: Instant) -> bool {
        let moved = self.answer_all(MetadataError::Unreachable);
        // Its error was told.
        let _ = self.disk.drive();
        if self.now < again || !self.disk.is_quiet() {
            return moved;
        }
        self.disk.begin_load();
        self.phase = Phase::Loading { has_head: false };
        true
    }

    fn answer_all(&mut self, error: MetadataError) -> bool {
        let moved = !self.submitted.is_empty();
        let answer = |(token, _)| MetadataCompletion { token, result: Err(error) };
        self.ready.extend(self.submitted.drain(..).map(answer));
        moved
    }
}

impl<D: Device> MetadataStore for RedbStore<D> {
    fn submit(&mut self, token: Token, op: MetadataOp) -> Result<(), Refused<MetadataOp>> {
        if self.submitted.len() >= OPERATIONS_MAX {
            return Err(Refused { op, reason: RefusedReason::Busy });
        }
        self.submitted.push_back((token, op));
        Ok(())
    }

    fn poll(&mut self) -> Option<MetadataCompletion> {
        self.advance();
        self.ready.pop_front()
    }

    fn next_due(&self) -> Option<Instant> {
        let sessions = self.sessions.values().map(|session| session.ends).min();
        // What the device has not answered yet, it wakes for.
        let again = match self.phase {
            Phase::Broken { again } if self.disk.is_quiet() => Some(again),
            _ => None,
        };
        sessions.into_iter().chain(again).chain(self.disk.next_due()).min()
    }
}

impl Fault {
    /// What a person is told. An error of redb's after it had no room is that.
    fn into_error(self, refused: Option<u64>, capacity: u64) -> RedbError {
        match (refused, self) {
            (Some(len), _) => RedbError::TooSmall { needed: HEAD_LEN + len, capacity },
            (None, Self::Damaged(what)) => RedbError::Damaged(what),
            (None, Self::Version(version)) => RedbError::Version { version },
            (None, Self::Other(what)) => RedbError::Other(what),
        }
    }
}
