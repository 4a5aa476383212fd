//! What the tier says to the metadata store: who it is, that it lives, and commits that are sent until they are answered (M1).
//!
//! ```text
//!   Closed ─ port opens ─▶ Granting ─▶ Pool ─▶ Tier ─▶ Volumes ─▶ Open ─┐
//!                              ▲                ▲ port opens anew       │
//!                              └── the session is over ◀────────────────┘
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use ob_core::{GateId, Incarnation, Instant, Revision, SegmentName, SessionId, TierId, Token, VolumeId};
use ob_format::volume::LayoutError;
use ob_format::volume::metadata::{Pool, Tier, Volume};

use super::core::{ServedVolume, TierCore};
use super::status::Trouble;
use super::{TierAction, TierError};
use crate::metadata::{
    Change, Expect, Key, LIST_MAX, MetadataAnswer, MetadataCompletion, MetadataError, MetadataOp,
    MetadataValue, Name, Transaction, Value,
};

/// How long after it was not answered something is asked again.
pub(super) const RETRY: Duration = Duration::from_millis(100);
/// What drift is counted in.
const PPM: u32 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// No port is open, so nobody knows who this tier is.
    Closed,
    Granting,
    Pool,
    Tier,
    Volumes,
    Open,
    /// The store has something that cannot be served.
    Failed(Trouble),
}

/// What becomes of a commit.
#[derive(Clone, Copy, Debug)]
pub(super) enum Then {
    Pool,
    Tier(SessionId),
    Volume(VolumeId),
    Taken(SegmentName),
    Adopted(SegmentName),
    Reserved(SegmentName),
    Opened(SegmentName),
    /// A chunk, by its place among its segment's.
    Sealed(SegmentName, usize),
    /// It has a member more.
    Repaired(SegmentName, usize),
}

#[derive(Clone, Debug)]
enum Purpose {
    Grant {
        sent: Instant,
    },
    Renew {
        session: SessionId,
        sent: Instant,
    },
    Pool,
    Volumes,
    Segment(SegmentName),
    Commit {
        key: Key,
        value: Value,
        then: Then,
    },
    /// A commit was not met: what the key has may be its own doing.
    ReadBack {
        value: Value,
        then: Then,
    },
}

#[derive(Debug)]
struct Pending {
    purpose: Purpose,
    op: MetadataOp,
    /// When it is sent again, if nobody knows what became of it.
    again: Option<Instant>,
}

/// The tier's end of the store.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) phase: Phase,
    session: Option<SessionId>,
    /// Of `tiers/T`.
    pub(super) tier_revision: Option<Revision>,
    lease_until: Option<Instant>,
    renew_at: Option<Instant>,
    /// When `tiers/T`, which somebody else has, is looked at again.
    tier_at: Option<Instant>,
    pending: BTreeMap<Token, Pending>,
    last_token: u64,
}

impl Store {
    pub(super) const fn new() -> Self {
        Self {
            phase: Phase::Closed,
            session: None,
            tier_revision: None,
            lease_until: None,
            renew_at: None,
            tier_at: None,
            pending: BTreeMap::new(),
            last_token: 0,
        }
    }

    /// Whether anything may be answered now (L2).
    pub(super) fn is_leased(&self, now: Instant) -> bool {
        self.phase == Phase::Open && self.lease_until.is_some_and(|until| now < until)
    }

    /// How long the lease still lasts.
    pub(super) fn lease_left(&self, now: Instant) -> Duration {
        self.lease_until.map_or(Duration::ZERO, |until| until.since(now))
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        let again = self.pending.values().filter_map(|pending| pending.again);
        again.chain(self.renew_at).chain(self.tier_at).min()
    }
}

impl TierCore {
    fn submit(&mut self, purpose: Purpose, op: MetadataOp) {
        self.store.last_token += 1;
        let token = Token(self.store.last_token);
        self.store.pending.insert(token, Pending { purpose, op: op.clone(), again: None });
        self.actions.push_back(TierAction::Metadata(token, op));
    }

    /// Puts a value, if what is compared holds; the key's own comparison comes first.
    pub(super) fn commit(
        &mut self,
        name: Name,
        expect: Expect,
        others: Vec<(Key, Expect)>,
        value: Result<Value, LayoutError>,
        then: Then,
        session: Option<SessionId>,
    ) {
        // What this tier would put can always be: its configuration was checked.
        let Ok(value) = value else { return self.fail(Trouble::Value) };
        let key = self.config.keys.key(name);
        let mut compare = vec![(key.clone(), expect)];
        compare.extend(others);
        let change = vec![Change::Put { key: key.clone(), value: value.clone(), session }];
        let op = MetadataOp::Commit(Transaction { compare, change });
        self.submit(Purpose::Commit { key, value, then }, op);
    }

    pub(super) fn read_segment(&mut self, segment: SegmentName) {
        let key = self.config.keys.key(Name::Segment(segment));
        self.submit(Purpose::Segment(segment), MetadataOp::Get { key });
    }

    pub(super) fn fail(&mut self, trouble: Trouble) {
        self.store.phase = Phase::Failed(trouble);
        self.store.lease_until = None;
        self.is_listed = true;
        self.take_early();
    }

    /// A port is open: who the tier is is known.
    pub(super) fn begin_session(&mut self, now: Instant) {
        if matches!(self.store.phase, Phase::Failed(_)) {
            return;
        }
        if self.store.session.is_none() {
            self.store.phase = Phase::Granting;
            self.submit(Purpose::Grant { sent: now }, MetadataOp::Grant { ttl: self.config.lease });
        } else if self.store.phase == Phase::Closed {
            self.put_tier();
        }
    }

    /// The port is closed, and its gate: nothing is answered until another is open.
    pub(super) fn end_gate(&mut self) {
        if !matches!(self.store.phase, Phase::Failed(_)) {
            self.store.phase = Phase::Closed;
        }
    }

    fn read_pool(&mut self) {
        self.store.phase = Phase::Pool;
        let key = self.config.keys.key(Name::Pool);
        self.submit(Purpose::Pool, MetadataOp::Get { key });
    }

    fn pool_read(&mut self, value: Option<&Value>) {
        let Some(value) = value else {
            let last = self.config.volumes.iter().map(|(id, volume)| (id.0, volume.namespace.0));
            let (volume, namespace) = last.fold((0, 0), |most, one| (most.0.max(one.0), most.1.max(one.1)));
            let pool = Pool {
                drift_ppm: self.config.drift_ppm,
                pool: self.config.pool,
                volume_next: volume.saturating_add(1),
                namespace_next: namespace.saturating_add(1),
            };
            let value = MetadataValue::Pool(pool).encode();
            return self.commit(Name::Pool, Expect::Absent, Vec::new(), value, Then::Pool, None);
        };
        match MetadataValue::decode(&Name::Pool, value.bytes()) {
            Ok(MetadataValue::Pool(pool))
                if pool.pool == self.config.pool && pool.drift_ppm == self.config.drift_ppm =>
            {
                self.put_tier();
            }
            Ok(_) => self.fail(Trouble::OtherPool),
            Err(_) => self.fail(Trouble::Value),
        }
    }

    /// Who this tier is: its id, its gate, its lock.
    pub(super) fn identity(&self) -> (TierId, GateId, ob_core::LockId) {
        let welcome = self.port.as_ref().map(|port| port.welcome);
        welcome.map_or_else(Default::default, |welcome| (welcome.tier, welcome.gate, welcome.lock))
    }

    pub(super) fn lease_ms(&self) -> u32 {
        u32::try_from(self.config.lease.as_millis()).unwrap_or(u32::MAX)
    }

    fn put_tier(&mut self) {
        let (Some(session), Some(_)) = (self.store.session, &self.port) else { return };
        self.store.phase = Phase::Tier;
        self.store.tier_at = None;
        let (id, gate, lock) = self.identity();
        let tier = Tier {
            lease_ms: self.lease_ms(),
            session,
            gate,
            incarnation: Incarnation(gate.0 >> 32),
            lock,
            addresses: self.config.addresses,
        };
        let expect = self.store.tier_revision.map_or(Expect::Absent, Expect::At);
        let value = MetadataValue::Tier(tier).encode();
        self.commit(Name::Tier(id), expect, Vec::new(), value, Then::Tier(session), Some(session));
    }

    fn tier_put(&mut self, now: Instant, revision: Option<Revision>) {
        if self.store.phase != Phase::Tier {
            return;
        }
        let Some(revision) = revision else {
            // Another life of this tier still has it, by its session: that ends.
            self.store.tier_at = Some(now + RETRY);
            return;
        };
        self.store.tier_revision = Some(revision);
        self.renew(now);
        if self.volumes.is_empty() {
            self.list_volumes(None);
        } else {
            self.open();
        }
    }

    fn list_volumes(&mut self, after: Option<Key>) {
        self.store.phase = Phase::Volumes;
        let prefix = self.config.keys.volumes();
        self.submit(Purpose::Volumes, MetadataOp::List { prefix, after, most: LIST_MAX });
    }

    fn volumes_listed(&mut self, entries: Vec<crate::metadata::KeyValue>, has_more: bool) {
        let last = entries.last().map(|entry| entry.key.clone());
        for entry in entries {
            let name = self.config.keys.parse(&entry.key);
            let value = name.map(|name| MetadataValue::decode(&name, entry.value.bytes()));
            match (name, value) {
                (Some(Name::Volume(id)), Some(Ok(MetadataValue::Volume(volume)))) => {
                    self.volume_known(id, volume, entry.revision);
                }
                _ => return self.fail(Trouble::Value),
            }
        }
        if has_more && last.is_some() {
            return self.list_volumes(last);
        }
        self.make_volumes();
    }

    /// Makes the next volume that is configured and not there; when all are, the tier is open.
    fn make_volumes(&mut self) {
        let missing = self.config.volumes.iter().find(|(id, _)| !self.volumes.contains_key(id));
        let Some((id, volume)) = missing.copied() else { return self.open() };
        let name = self.config.keys.key(Name::VolumeName(volume.name));
        let key = self.config.keys.key(Name::Volume(id));
        let values = (MetadataValue::Volume(volume).encode(), MetadataValue::VolumeName(id).encode());
        let (Ok(value), Ok(of_name)) = values else { return self.fail(Trouble::Value) };
        let compare = vec![(key.clone(), Expect::Absent), (name.clone(), Expect::Absent)];
        let change = vec![
            Change::Put { key: key.clone(), value: value.clone(), session: None },
            Change::Put { key: name, value: of_name, session: None },
        ];
        let op = MetadataOp::Commit(Transaction { compare, change });
        self.submit(Purpose::Commit { key, value, then: Then::Volume(id) }, op);
    }

    fn volume_made(&mut self, id: VolumeId, revision: Option<Revision>) {
        let configured = self.config.volumes.iter().find(|(other, _)| *other == id);
        match (configured.copied(), revision) {
            (Some((_, volume)), Some(revision)) => {
                self.volume_known(id, volume, revision);
                self.make_volumes();
            }
            _ => self.fail(Trouble::OtherVolume(id)),
        }
    }

    fn volume_known(&mut self, id: VolumeId, volume: Volume, revision: Revision) {
        self.namespaces.insert(volume.namespace.0, id);
        self.volumes.insert(id, ServedVolume { volume, revision });
        self.actions.push_back(TierAction::Serve(id, volume));
    }

    fn open(&mut self) {
        self.store.phase = Phase::Open;
        self.is_listed = true;
        self.take_early();
        self.adopt_segments();
        self.wake_leased();
    }

    fn renew(&mut self, now: Instant) {
        let Some(session) = self.store.session else { return };
        self.store.renew_at = None;
        self.submit(Purpose::Renew { session, sent: now }, MetadataOp::Renew { session });
    }

    /// L1: the lease counts from before the renewal was submitted, and ends early by what a clock may run wrong.
    fn renewed(&mut self, sent: Instant) {
        let lease = self.config.lease * (PPM - self.config.drift_ppm) / PPM;
        self.store.lease_until = self.store.lease_until.max(Some(sent + lease));
        self.store.renew_at = Some(sent + self.config.lease / 3);
        self.wake_leased();
    }

    /// The session is over, and `tiers/T` with it: another is asked for, and nothing is answered meanwhile.
    fn session_lost(&mut self, now: Instant) {
        self.store.session = None;
        (self.store.lease_until, self.store.renew_at, self.store.tier_revision) = (None, None, None);
        self.counts.sessions_lost += 1;
        if self.port.is_some() {
            self.begin_session(now);
        }
    }

    /// What is due by itself.
    pub(super) fn store_due(&mut self, now: Instant) {
        if self.store.renew_at.is_some_and(|at| at <= now) {
            self.renew(now);
        }
        if self.store.tier_at.is_some_and(|at| at <= now) {
            self.put_tier();
        }
        for (token, pending) in &mut self.store.pending {
            if pending.again.is_some_and(|again| again <= now) {
                pending.again = None;
                if let Purpose::Renew { sent, .. } | Purpose::Grant { sent } = &mut pending.purpose {
                    *sent = now;
                }
                self.actions.push_back(TierAction::Metadata(*token, pending.op.clone()));
            }
        }
    }

    /// The store has answered.
    pub(super) fn answered(&mut self, now: Instant, completion: MetadataCompletion) -> Result<(), TierError> {
        let token = completion.token;
        let is_awaited = self.store.pending.get(&token).is_some_and(|pending| pending.again.is_none());
        let pending = is_awaited.then(|| self.store.pending.remove(&token)).flatten();
        let Some(mut pending) = pending else { return Err(TierError::Metadata(token)) };
        let answer = match completion.result {
            Ok(answer) => answer,
            Err(MetadataError::Unknown | MetadataError::Unreachable) => {
                // The same again, until somebody knows (M1).
                pending.again = Some(now + RETRY);
                self.store.pending.insert(token, pending);
                return Ok(());
            }
            Err(MetadataError::NoSession) => {
                let of = match pending.purpose {
                    Purpose::Commit { then: Then::Tier(session), .. } | Purpose::Renew { session, .. } => {
                        Some(session)
                    }
                    _ => None,
                };
                // What is said of an earlier session ends none but that.
                if of.is_some() && of == self.store.session {
                    self.session_lost(now);
                }
                return Ok(());
            }
            Err(MetadataError::TooLarge | MetadataError::Malformed | MetadataError::Damaged) => {
                self.fail(Trouble::Store);
                return Ok(());
            }
        };
        self.understood(now, pending.purpose, answer).ok_or(TierError::Metadata(token))
    }

    fn understood(&mut self, now: Instant, purpose: Purpose, answer: MetadataAnswer) -> Option<()> {
        match (purpose, answer) {
            (Purpose::Grant { .. }, MetadataAnswer::Session(session)) => {
                self.store.session = Some(session);
                if self.port.is_some() {
                    self.read_pool();
                } else {
                    self.store.phase = Phase::Closed;
                }
            }
            (Purpose::Renew { session, sent }, MetadataAnswer::Renewed) => {
                if self.store.session == Some(session) {
                    self.renewed(sent);
                }
            }
            (Purpose::Pool, MetadataAnswer::Value(value)) => {
                self.pool_read(value.as_ref().map(|(value, _)| value));
            }
            (Purpose::Volumes, MetadataAnswer::Values { entries, has_more }) => {
                self.volumes_listed(entries, has_more);
            }
            (Purpose::Segment(segment), MetadataAnswer::Value(value)) => {
                self.segment_read(segment, value.is_some());
            }
            (Purpose::Commit { then, .. }, MetadataAnswer::Committed(revision)) => {
                self.committed(now, then, Some(revision), None);
            }
            (Purpose::Commit { key, value, then }, MetadataAnswer::Unmet(_)) => {
                self.submit(Purpose::ReadBack { value, then }, MetadataOp::Get { key });
            }
            (Purpose::ReadBack { value, then }, MetadataAnswer::Value(found)) => {
                let there = found.as_ref().map(|(_, revision)| *revision);
                let own = found.filter(|(found, _)| *found == value).map(|(_, revision)| revision);
                self.committed(now, then, own, there);
            }
            _ => return None,
        }
        Some(())
    }

    /// A commit is over: with the revision that it has made, or it can have no effect any more, and this is what the key has.
    fn committed(&mut self, now: Instant, then: Then, revision: Option<Revision>, there: Option<Revision>) {
        match then {
            Then::Pool if revision.is_some() => self.put_tier(),
            Then::Pool => self.read_pool(),
            Then::Tier(session) if Some(session) == self.store.session => self.tier_put(now, revision),
            // An earlier session's, which has taken its key along.
            Then::Tier(_) => {}
            Then::Volume(volume) => self.volume_made(volume, revision),
            Then::Taken(segment) | Then::Adopted(segment) | Then::Reserved(segment) => {
                self.segment_put(now, segment, revision, there);
            }
            Then::Opened(segment) => self.chunk_committed(now, segment, revision),
            Then::Sealed(segment, place) => self.seal_committed(now, segment, place, revision),
            Then::Repaired(segment, place) => self.repair_committed(now, segment, place, revision),
        }
    }
}
