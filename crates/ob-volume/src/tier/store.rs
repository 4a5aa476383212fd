//! What the tier says to the metadata store: who it is, that it lives, and commits that are sent until they are answered (M1).
//!
//! ```text
//!   Closed ─ port opens ─▶ Granting ─▶ Pool ─▶ Tier ─▶ Volumes ─▶ Segments ─▶ Open ─┐
//!                              ▲                ▲ port opens anew                   │
//!                              └── the session is over ◀────────────────────────────┘
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use ob_core::{GateId, Incarnation, Instant, Revision, SegmentName, SessionId, TierId, Token, VolumeId};
use ob_format::volume::LayoutError;
use ob_format::volume::metadata::{Head, Pool, Segment, Tier};
use ob_split::wire::Gate;

use super::admin::{AdminError, Ticket};
use super::core::TierCore;
use super::plant::{Bug, is_planted};
use super::ports::MAIN;
use super::status::Trouble;
use super::volumes::WATCH_EVERY;
use super::{TierAction, TierError};
use crate::metadata::{
    Change, Expect, Key, LIST_MAX, MetadataAnswer, MetadataCompletion, MetadataError, MetadataOp,
    MetadataValue, Name, Transaction, Value,
};

/// How long after it was not answered something is asked again.
pub(super) const RETRY: Duration = Duration::from_millis(100);
/// What drift is counted in.
const PPM: u32 = 1_000_000;
/// How often the tier with the lowest number looks for segments that nobody has.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// No port is open, so nobody knows who this tier is.
    Closed,
    Granting,
    Pool,
    Tier,
    Volumes,
    Segments,
    Open,
    /// The store has something that cannot be served.
    Failed(Trouble),
}

/// What becomes of a commit.
#[derive(Clone, Copy, Debug)]
pub(super) enum Then {
    Pool,
    Tier(SessionId),
    /// A volume that was being removed is gone.
    VolumeEnded(VolumeId),
    /// A segment of such a volume is.
    SegmentEnded(SegmentName),
    /// A segment that nobody has written.
    Taken(SegmentName),
    /// One that somebody has, and how long the one before may still answer.
    Won {
        name: SegmentName,
        wait_ms: u32,
    },
    Adopted(SegmentName),
    Reserved(SegmentName),
    Opened(SegmentName),
    /// A chunk, by its place among its segment's.
    Sealed(SegmentName, usize),
    /// It has a member more.
    Repaired(SegmentName, usize),
    /// It has one less.
    Dropped(SegmentName, usize),
    /// The index has a head.
    Headed(SegmentName, Head),
    /// Chunks are dead.
    Buried(SegmentName),
    /// Chunks have no keys any more.
    Erased(SegmentName),
    /// That this tier wants a segment is in the store.
    Wished(SegmentName),
    /// A segment is nobody's.
    Released(SegmentName),
    /// One that this tier does not know to be its own, though the store says so.
    LeftReleased,
    /// Nothing of a volume is cut off any more.
    CutEnded(VolumeId),
    /// What an administrator has asked.
    Administered(Ticket),
    /// What it was for is forgotten.
    Nobody,
}

impl Then {
    /// Of which segment it is.
    const fn segment(&self) -> Option<SegmentName> {
        match *self {
            Self::Taken(name)
            | Self::Won { name, .. }
            | Self::Adopted(name)
            | Self::Reserved(name)
            | Self::Opened(name)
            | Self::Sealed(name, _)
            | Self::Repaired(name, _)
            | Self::Dropped(name, _)
            | Self::Headed(name, _)
            | Self::Buried(name)
            | Self::Erased(name)
            | Self::SegmentEnded(name)
            | Self::Released(name) => Some(name),
            // That a tier wants a segment is not changed by what it knows of it.
            Self::Pool
            | Self::Tier(_)
            | Self::VolumeEnded(_)
            | Self::Wished(_)
            | Self::CutEnded(_)
            | Self::Administered(_)
            | Self::LeftReleased
            | Self::Nobody => None,
        }
    }
}

/// What an operation is for.
#[derive(Clone, Debug)]
pub(super) enum Purpose {
    Grant,
    Renew {
        session: SessionId,
        sent: Instant,
        /// The preparation of the gate that came before it; nothing if there was none.
        gate: Option<u64>,
    },
    Pool,
    Volumes(Listing),
    /// What a volume is now.
    Volume(VolumeId),
    /// Whether the name of a volume is still its own, which is all that is left of it.
    NameOf(VolumeId),
    /// Whether a volume is gone of which a server tells; and whether there ever was one.
    Gone(VolumeId),
    GonePool(VolumeId),
    /// What an administrator's request needs.
    Admin(Ticket),
    Segments(VolumeId, Listing),
    Segment(SegmentName),
    /// Who wants a segment that nobody has.
    Wanter {
        name: SegmentName,
        found: Box<Segment>,
        revision: Revision,
    },
    /// Which segments tiers want.
    Wanted,
    /// A segment that another wants, and that this tier does not know to be its own.
    Left(SegmentName),
    /// Which tiers there are.
    Tiers,
    /// Whether the owner that a segment's record names is there.
    Owner {
        name: SegmentName,
        found: Box<Segment>,
        revision: Revision,
    },
    /// For which attempt to take a segment.
    Chunks(SegmentName, u64),
    /// An earlier life of this tier ends.
    Revoke,
    /// This one does.
    Leave,
    /// What was before a revision is forgotten. If it is not, there is a next time.
    Forget,
    /// What it was for is forgotten.
    Nobody,
    Commit {
        key: Key,
        /// What it puts there, or that it takes it away.
        value: Option<Value>,
        then: Then,
    },
    /// A commit was not met: what the key has may be its own doing.
    ReadBack {
        value: Option<Value>,
        then: Then,
    },
}

/// Why segments, or volumes, are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listing {
    /// The tier begins.
    Begins,
    /// To find those that nobody has; or volumes that are another than they were.
    Looks,
    /// To find those that are left of a volume which is being removed.
    Removes,
    /// To find those of which something is cut off.
    Cuts,
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
    pub(super) session: Option<SessionId>,
    /// Of `tiers/T`.
    pub(super) tier_revision: Option<Revision>,
    lease_until: Option<Instant>,
    renew_at: Option<Instant>,
    /// The last preparation of the gate, and whether the card is still to note its time before the session is renewed.
    last_preparation: u64,
    is_preparing: bool,
    /// When `tiers/T`, which somebody else has, is looked at again.
    tier_at: Option<Instant>,
    /// Whether it is being asked which segments tiers want.
    pub(super) is_asking_wanted: bool,
    /// When it is looked next for segments that nobody has; nothing while that goes on.
    pub(super) look_at: Option<Instant>,
    /// When it is looked next whether volumes are as they were; nothing while that goes on.
    pub(super) watch_at: Option<Instant>,
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
            last_preparation: 0,
            is_preparing: false,
            tier_at: None,
            watch_at: None,
            is_asking_wanted: false,
            look_at: None,
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
        again.chain(self.renew_at).chain(self.tier_at).chain(self.look_at).chain(self.watch_at).min()
    }
}

impl TierCore {
    pub(super) fn submit(&mut self, purpose: Purpose, op: MetadataOp) {
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
        self.submit(Purpose::Commit { key, value: Some(value), then }, op);
    }

    /// Changes several keys at once. The first change tells whether it was this commit that has changed them.
    pub(super) fn commit_changes(&mut self, compare: Vec<(Key, Expect)>, change: Vec<Change>, then: Then) {
        let Some(first) = change.first() else { return };
        let (key, value) = match first {
            Change::Put { key, value, .. } => (key.clone(), Some(value.clone())),
            Change::Delete { key } => (key.clone(), None),
        };
        let op = MetadataOp::Commit(Transaction { compare, change });
        self.submit(Purpose::Commit { key, value, then }, op);
    }

    /// The chunks of a segment that is being taken, a page of them.
    pub(super) fn list_chunks(&mut self, name: SegmentName, attempt: u64, after: Option<Key>) {
        let prefix = self.config.keys.chunks(name);
        self.submit(Purpose::Chunks(name, attempt), MetadataOp::List { prefix, after, most: LIST_MAX });
    }

    /// Whether the owner of a segment is there.
    pub(super) fn read_owner(&mut self, name: SegmentName, found: Segment, revision: Revision) {
        let key = self.config.keys.key(Name::Tier(found.owner));
        let found = Box::new(found);
        self.submit(Purpose::Owner { name, found, revision }, MetadataOp::Get { key });
    }

    /// What was asked of a segment is forgotten, or of all of them. It is sent until it is answered all the same (M1): what is asked later
    /// compares what it would have changed.
    pub(super) fn forget_asked(&mut self, of: Option<SegmentName>) {
        let is_its = |name: SegmentName| of.is_none_or(|of| of == name);
        for pending in self.store.pending.values_mut() {
            match &mut pending.purpose {
                Purpose::Segment(name)
                | Purpose::Owner { name, .. }
                | Purpose::Wanter { name, .. }
                | Purpose::Chunks(name, _)
                    if is_its(*name) =>
                {
                    pending.purpose = Purpose::Nobody;
                }
                Purpose::Segments(_, Listing::Begins) if of.is_none() => pending.purpose = Purpose::Nobody,
                Purpose::Commit { then, .. } | Purpose::ReadBack { then, .. }
                    if then.segment().is_some_and(is_its) =>
                {
                    *then = Then::Nobody;
                }
                _ => {}
            }
        }
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
        self.end_jobs(AdminError::Trouble(trouble));
    }

    /// A port is open: who the tier is is known.
    pub(super) fn begin_session(&mut self) {
        if matches!(self.store.phase, Phase::Failed(_)) {
            return;
        }
        if self.store.session.is_none() {
            self.store.phase = Phase::Granting;
            self.submit(Purpose::Grant, MetadataOp::Grant { ttl: self.config.lease });
        } else if self.store.phase == Phase::Closed {
            self.put_tier();
        }
    }

    /// The port is closed, and its gate: nothing is answered until another is open.
    pub(super) fn end_gate(&mut self, now: Instant) {
        if std::mem::take(&mut self.store.is_preparing) {
            // Nobody notes its time any more, and the session goes on.
            self.store.renew_at = Some(now);
        }
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
        if self.store.phase != Phase::Pool {
            return;
        }
        let Some(value) = value else {
            let last = self.config.volumes.iter().map(|(id, volume)| (id.0, volume.namespace.0));
            let (volume, namespace) = last.fold((0, 0), |most, one| (most.0.max(one.0), most.1.max(one.1)));
            let pool = Pool {
                drift_ppm: self.config.drift_ppm,
                pool: self.config.pool,
                volume_next: volume.saturating_add(1),
                namespace_next: namespace.saturating_add(1),
            };
            let Ok(value) = MetadataValue::Pool(pool).encode() else { return self.fail(Trouble::Value) };
            let Some(volumes) = self.first_volumes() else { return self.fail(Trouble::Value) };
            // All at once: who finds a pool makes no volume, as one that it does not find was removed.
            let key = self.config.keys.key(Name::Pool);
            let mut compare = vec![(key.clone(), Expect::Absent)];
            compare.extend(volumes.compare);
            let mut change = vec![Change::Put { key, value, session: None }];
            change.extend(volumes.change);
            return self.commit_changes(compare, change, Then::Pool);
        };
        match MetadataValue::decode(&Name::Pool, value.bytes()) {
            Ok(MetadataValue::Pool(pool))
                if self.pool.is_none_or(|known| known == pool.pool)
                    && pool.drift_ppm == self.config.drift_ppm =>
            {
                // Whoever has made it: another tier may have begun at the same time.
                if self.pool.replace(pool.pool).is_none() {
                    self.connect_servers(self.now);
                }
                self.put_tier();
            }
            Ok(_) => self.fail(Trouble::OtherPool),
            Err(_) => self.fail(Trouble::Value),
        }
    }

    /// Who this tier is: its id, its gate, its lock.
    pub(super) fn identity(&self) -> (TierId, GateId, ob_core::LockId) {
        let welcome = self.ports.get(&MAIN).map(|port| port.welcome);
        welcome.map_or_else(Default::default, |welcome| (welcome.tier, welcome.gate, welcome.lock))
    }

    pub(super) fn lease_ms(&self) -> u32 {
        u32::try_from(self.config.lease.as_millis()).unwrap_or(u32::MAX)
    }

    fn put_tier(&mut self) {
        self.store.tier_at = None;
        let (Some(session), true) = (self.store.session, self.is_connected()) else { return };
        self.store.phase = Phase::Tier;
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
            self.store.tier_at = Some(now + RETRY);
            return;
        };
        self.store.tier_revision = Some(revision);
        self.renew(now);
        self.list_volumes();
    }

    /// Somebody has put `tiers/T` before. If that was a life of this tier behind the same lock, it is over, and its session can end now.
    fn tier_found(&mut self, now: Instant, found: Option<&(Value, Revision)>) {
        let (id, _, lock) = self.identity();
        let found = found.map(|(value, _)| MetadataValue::decode(&Name::Tier(id), value.bytes()));
        match found {
            Some(Ok(MetadataValue::Tier(tier)))
                if (tier.lock == lock || is_planted(Bug::CopiedTier))
                    && Some(tier.session) != self.store.session =>
            {
                let session = tier.session;
                self.submit(Purpose::Revoke, MetadataOp::Revoke { session });
            }
            _ => self.store.tier_at = Some(now + RETRY),
        }
    }

    pub(super) fn open(&mut self) {
        self.store.phase = Phase::Open;
        self.store.look_at = Some(self.now + LOOK_EVERY);
        self.store.watch_at = Some(self.now + WATCH_EVERY);
        self.is_listed = true;
        self.take_early();
        self.adopt_segments();
        self.take_early_jobs();
        self.continue_removals(self.now);
        self.sweep_for_strays(self.now);
        self.wake_leased();
    }

    fn renew(&mut self, now: Instant) {
        if self.store.session.is_none() {
            return;
        }
        self.store.renew_at = None;
        if !self.is_connected() {
            return self.submit_renewal(now, None);
        }
        // The card's deadline counts from before the renewal, as this tier's does.
        self.store.last_preparation += 1;
        self.store.is_preparing = true;
        let gate = Gate::Prepare { number: self.store.last_preparation };
        self.actions.push_back(TierAction::Gate { port: MAIN, gate });
    }

    /// The card has noted the time: the session is renewed.
    pub(super) fn gate_noted(&mut self, now: Instant, number: u64) {
        if number == self.store.last_preparation && std::mem::take(&mut self.store.is_preparing) {
            self.submit_renewal(now, Some(number));
        }
    }

    fn submit_renewal(&mut self, now: Instant, gate: Option<u64>) {
        let Some(session) = self.store.session else { return };
        self.submit(Purpose::Renew { session, sent: now, gate }, MetadataOp::Renew { session });
    }

    /// L1: the lease counts from before the renewal was submitted, and ends early by what a clock may run wrong.
    fn renewed(&mut self, now: Instant, sent: Instant, gate: Option<u64>) {
        let sent = if is_planted(Bug::LeaseFromAnswer) { now } else { sent };
        let lease = self.config.lease * (PPM - self.config.drift_ppm) / PPM;
        if let (Some(number), true) = (gate, self.is_connected()) {
            let milliseconds = u32::try_from(lease.as_millis()).unwrap_or(u32::MAX);
            let gate = Gate::Extend { number, milliseconds };
            self.actions.push_back(TierAction::Gate { port: MAIN, gate });
        }
        self.store.lease_until = self.store.lease_until.max(Some(sent + lease));
        self.store.renew_at = Some(sent + self.config.lease / 3);
        self.wake_leased();
        self.ask_wanted();
    }

    /// Nothing is answered any more; the session, if there is one, is to end.
    pub(super) fn end_lease(&mut self) -> Option<SessionId> {
        (self.store.lease_until, self.store.renew_at, self.store.tier_at) = (None, None, None);
        self.store.session.take()
    }

    /// The session is over, and `tiers/T` with it: another is asked for, and nothing is answered meanwhile.
    fn session_lost(&mut self) {
        self.store.session = None;
        (self.store.lease_until, self.store.renew_at, self.store.tier_revision) = (None, None, None);
        self.store.is_preparing = false;
        self.counts.sessions_lost += 1;
        self.forget_wishes();
        if self.is_connected() {
            self.begin_session();
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
        if self.store.look_at.take_if(|at| *at <= now).is_some() {
            self.look_for_unowned(now);
        }
        if self.store.watch_at.take_if(|at| *at <= now).is_some() {
            self.continue_removals(now);
            self.continue_cuts(now);
            self.watch_volumes();
        }
        for (token, pending) in &mut self.store.pending {
            if pending.again.is_some_and(|again| again <= now) {
                pending.again = None;
                self.actions.push_back(TierAction::Metadata(*token, pending.op.clone()));
            }
        }
    }

    /// The store has answered.
    pub(super) fn answered(&mut self, now: Instant, completion: MetadataCompletion) -> Result<(), TierError> {
        let token = completion.token;
        let is_awaited = self.store.pending.get(&token).is_some_and(|pending| pending.again.is_none());
        let pending = is_awaited.then(|| self.store.pending.remove(&token)).flatten();
        let Some(pending) = pending else { return Err(TierError::Metadata(token)) };
        let answer = match completion.result {
            Ok(answer) => answer,
            Err(MetadataError::Unknown | MetadataError::Unreachable)
                if matches!(pending.purpose, Purpose::Renew { .. }) =>
            {
                // It changes nothing that anybody could miss: another one counts from a later time.
                if let Purpose::Renew { session, .. } = pending.purpose
                    && self.store.session == Some(session)
                {
                    self.store.renew_at = Some(now + RETRY);
                }
                return Ok(());
            }
            Err(_) if matches!(pending.purpose, Purpose::Forget) => return Ok(()),
            Err(error @ (MetadataError::Unknown | MetadataError::Unreachable)) => {
                self.submit_again(now, token, pending, error);
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
                    self.session_lost();
                }
                if matches!(pending.purpose, Purpose::Revoke) && self.store.phase == Phase::Tier {
                    // Its keys may go a little later.
                    self.store.tier_at = Some(now + RETRY);
                }
                match pending.purpose {
                    Purpose::Commit { then: Then::Wished(name), .. } => self.wished(name, None),
                    Purpose::Leave => self.left(),
                    _ => {}
                }
                return Ok(());
            }
            Err(MetadataError::TooLarge | MetadataError::Malformed | MetadataError::Damaged) => {
                self.fail(Trouble::Store);
                return Ok(());
            }
        };
        if let (MetadataAnswer::Unmet(place), MetadataOp::Commit(transaction)) = (&answer, &pending.op) {
            self.look_why_unmet(*place, transaction);
        }
        self.note_revisions(&answer);
        self.understood(now, pending.purpose, answer).ok_or(TierError::Metadata(token))
    }

    /// The same again, until somebody knows (M1).
    fn submit_again(&mut self, now: Instant, token: Token, mut pending: Pending, error: MetadataError) {
        if is_planted(Bug::UnknownReadOnly)
            && error == MetadataError::Unknown
            && let Purpose::Commit { key, value, then } = pending.purpose
        {
            return self.submit(Purpose::ReadBack { value, then }, MetadataOp::Get { key });
        }
        pending.again = Some(now + RETRY);
        self.store.pending.insert(token, pending);
    }

    fn understood(&mut self, now: Instant, purpose: Purpose, answer: MetadataAnswer) -> Option<()> {
        match (purpose, answer) {
            (Purpose::Grant, MetadataAnswer::Session(session)) => {
                self.store.session = Some(session);
                if self.is_connected() {
                    self.read_pool();
                } else {
                    self.store.phase = Phase::Closed;
                }
            }
            (Purpose::Renew { session, sent, gate }, MetadataAnswer::Renewed) => {
                if self.store.session == Some(session) {
                    self.renewed(now, sent, gate);
                }
            }
            (Purpose::Pool, MetadataAnswer::Value(value)) => {
                self.pool_read(value.as_ref().map(|(value, _)| value));
            }
            (Purpose::Volumes(listing), MetadataAnswer::Values { entries, has_more }) => {
                self.volumes_listed(now, listing, entries, has_more);
            }
            (Purpose::Revoke, MetadataAnswer::Revoked) => {
                if self.store.phase == Phase::Tier {
                    self.put_tier();
                }
            }
            (Purpose::Leave, MetadataAnswer::Revoked) => self.left(),
            (Purpose::Nobody, _) | (Purpose::Forget, MetadataAnswer::Forgotten) => {}
            (Purpose::Commit { then, .. }, MetadataAnswer::Committed(revision)) => {
                self.committed(now, then, Some(revision), None);
            }
            (Purpose::Commit { key, value, then }, MetadataAnswer::Unmet(_)) => {
                self.submit(Purpose::ReadBack { value, then }, MetadataOp::Get { key });
            }
            (Purpose::ReadBack { value, then: Then::Tier(session) }, MetadataAnswer::Value(found))
                if self.store.phase == Phase::Tier
                    && Some(session) == self.store.session
                    && found.as_ref().map(|(found, _)| found) != value.as_ref() =>
            {
                self.tier_found(now, found.as_ref());
            }
            (Purpose::ReadBack { value, then }, MetadataAnswer::Value(found)) => {
                let there = found.as_ref().map(|(_, revision)| *revision);
                let own = match (&value, found) {
                    (Some(value), Some((found, revision))) => (found == *value).then_some(revision),
                    // What was to go is gone.
                    (None, None) => Some(Revision(0)),
                    _ => None,
                };
                self.committed(now, then, own, there);
            }
            (purpose, answer) => return self.was_read(now, purpose, answer),
        }
        Some(())
    }

    /// What the store has was asked of segments, volumes, and other tiers.
    fn was_read(&mut self, now: Instant, purpose: Purpose, answer: MetadataAnswer) -> Option<()> {
        match (purpose, answer) {
            (Purpose::Volume(volume), MetadataAnswer::Value(value)) => {
                self.volume_read(now, volume, value.as_ref());
            }
            (Purpose::Admin(ticket), answer) => self.job_read(ticket, answer),
            (Purpose::NameOf(volume), MetadataAnswer::Value(value)) => self.name_read(volume, value.as_ref()),
            (Purpose::Gone(volume), MetadataAnswer::Value(value)) => {
                self.unknown_read(volume, value.as_ref());
            }
            (Purpose::GonePool(volume), MetadataAnswer::Value(value)) => {
                self.pool_of_unknown_read(now, volume, value.as_ref());
            }
            (Purpose::Segment(segment), MetadataAnswer::Value(value)) => {
                self.segment_read(now, segment, value.as_ref());
            }
            (Purpose::Segments(volume, listing), MetadataAnswer::Values { entries, has_more }) => {
                self.segments_listed(now, (volume, listing), &entries, has_more);
            }
            (Purpose::Wanter { name, found, revision }, MetadataAnswer::Value(wanter)) => {
                self.wanter_read(now, name, &found, revision, wanter.as_ref());
            }
            (Purpose::Wanted, MetadataAnswer::Values { entries, has_more }) => {
                self.wanted_listed(now, &entries, has_more);
            }
            (Purpose::Left(name), MetadataAnswer::Value(value)) => self.left_read(now, name, value.as_ref()),
            (Purpose::Tiers, MetadataAnswer::Values { entries, has_more }) => {
                self.tiers_listed(now, &entries, has_more);
            }
            (Purpose::Owner { name, found, revision }, MetadataAnswer::Value(owner)) => {
                self.owner_read(now, name, &found, revision, owner.map(|(_, revision)| revision));
            }
            (Purpose::Chunks(name, attempt), MetadataAnswer::Values { entries, has_more }) => {
                self.chunks_listed(now, (name, attempt), entries, has_more);
            }
            _ => return None,
        }
        Some(())
    }

    /// A volume that is not as it was known is read anew (S1).
    fn look_why_unmet(&mut self, place: usize, transaction: &Transaction) {
        let key = transaction.compare.get(place).map(|(key, _)| self.config.keys.parse(key));
        if let Some(Some(Name::Volume(id))) = key
            && self.volumes.contains_key(&id)
        {
            self.read_volume(id);
        }
    }

    /// A commit is over: with the revision that it has made, or it can have no effect any more, and this is what the key has.
    fn committed(&mut self, now: Instant, then: Then, revision: Option<Revision>, there: Option<Revision>) {
        match then {
            Then::Pool if self.store.phase != Phase::Pool => {}
            // It is read even by who has made it.
            Then::Pool => self.read_pool(),
            Then::Tier(session) if Some(session) == self.store.session => self.tier_put(now, revision),
            // An earlier session's, which has taken its key along.
            Then::Tier(_) => {}
            Then::VolumeEnded(volume) => self.volume_ended(now, volume, revision),
            Then::SegmentEnded(segment) => self.segment_ended(now, segment, revision),
            Then::Taken(segment) | Then::Adopted(segment) | Then::Reserved(segment) => {
                self.segment_put(now, segment, revision, there);
            }
            Then::Won { name, wait_ms } => self.segment_won(now, name, wait_ms, revision),
            Then::Wished(name) => self.wished(name, revision),
            Then::Released(name) => self.released(now, name),
            Then::CutEnded(volume) => self.cut_ended(volume, revision),
            Then::Administered(ticket) => self.job_committed(ticket, revision),
            Then::LeftReleased | Then::Nobody => {}
            Then::Opened(segment) => self.chunk_committed(now, segment, revision),
            Then::Sealed(segment, place) => self.seal_committed(now, segment, place, revision),
            Then::Repaired(segment, place) => self.repair_committed(now, segment, place, revision),
            Then::Dropped(segment, place) => self.member_dropped(now, segment, place, revision),
            Then::Headed(segment, head) => self.head_committed(now, segment, head, revision),
            Then::Buried(segment) => self.buried(now, segment, revision),
            Then::Erased(segment) => self.erased(now, segment, revision.is_some()),
        }
    }
}
