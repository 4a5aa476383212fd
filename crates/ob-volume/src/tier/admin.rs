//! What administrators ask: volumes are made, shown, resized and removed.
//!
//! ```text
//!   Administer(ticket, request) ─▶ names/NAME ─▶ volumes/V, or the pool ─▶ commit ─ somebody was first ─▶ once more
//!                                                                            └─ durable ─▶ Serve ─▶ Tell(ticket, answer)
//! ```
//!
//! What is told to be done is in the store. A request whose tier ends is done or not, as a whole: each is one commit, which compares what
//! it was made of, so that of two administrators the second one sees what the first one has done.

use std::collections::BTreeMap;
use std::time::Duration;

use ob_core::{BlockLen, Epoch, Revision, SegmentId, SegmentName, TierId, VolumeId};
use ob_format::volume::metadata::{Class, Pool, SegmentState, Text, Volume, VolumeState};
use ob_format::volume::{PAGE_ENTRIES, PAGE_LEN, RECORDS_START};
use ob_wire_nvme::NamespaceId;

use super::chunks::ChunkIs;
use super::core::TierCore;
use super::segments::Standing;
use super::status::Trouble;
use super::store::{Phase, Purpose, Then};
use super::{TierAction, TierConfigError};
use crate::metadata::{Change, Expect, Key, LIST_MAX, MetadataAnswer, MetadataOp, MetadataValue, Name};

/// Requests at a time.
const JOBS_MAX: usize = 64;
/// How often somebody may be first before a request is given up.
const ATTEMPTS_MAX: u32 = 32;
/// Volumes of a pool: as many as initiators can tell apart on one connection.
pub const VOLUMES_MAX: usize = 1024;
/// Bytes of the longest volume.
pub const VOLUME_LEN_MAX: u64 = 1 << 60;
/// Bytes of the shortest chunks that are made for people: tests have shorter ones.
pub const NEW_CHUNK_LEN_MIN: u32 = 16 << 20;
/// Segments that are told of a volume.
const SEGMENTS_TOLD_MAX: usize = 16 << 10;

/// By which number who asks knows the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// What an administrator asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminRequest {
    /// All volumes.
    ListVolumes,
    /// One, and its segments.
    ShowVolume {
        /// What it is called.
        name: Text<64>,
    },
    /// Make one.
    CreateVolume(NewVolume),
    /// Make one larger or smaller.
    ResizeVolume {
        /// What it is called.
        name: Text<64>,
        /// Bytes that it is to have.
        size: u64,
        /// Whether it may be less than it has.
        may_shrink: bool,
    },
    /// Have it, and what it has, gone.
    RemoveVolume {
        /// What it is called.
        name: Text<64>,
    },
}

/// A volume that is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewVolume {
    /// What it is called.
    pub name: Text<64>,
    /// UUID and NGUID: drawn by who asks, and nobody else's.
    pub uuid: [u8; 16],
    /// Bytes.
    pub size: u64,
    /// Its blocks.
    pub block_len: BlockLen,
    /// How hard it is compressed.
    pub class: Class,
    /// Bytes of its segments.
    pub segment_len: u64,
    /// Bytes of its chunks.
    pub chunk_len: u32,
    /// Members that its chunks should have.
    pub replicas: u8,
    /// Members without which none is opened.
    pub replicas_min: u8,
}

/// What an administrator is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminAnswer {
    /// Volumes.
    Volumes(Vec<VolumeFacts>),
    /// One, and its segments that were ever written to.
    Volume(VolumeFacts, Vec<SegmentFacts>),
}

/// A volume, and what this tier knows of what it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeFacts {
    /// Its number.
    pub id: VolumeId,
    /// Its record.
    pub volume: Volume,
    /// Bytes of blocks that are mapped, in segments that this tier has.
    pub used: u64,
    /// Bytes of their chunks, of one replica each.
    pub stored: u64,
    /// How it is.
    pub health: VolumeHealth,
}

/// How a volume is, as far as the tier that is asked knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeHealth {
    /// Nothing is missing.
    Good,
    /// So many of its chunks have too few replicas.
    Degraded(usize),
    /// So many wait for a chunk server.
    Waiting(usize),
    /// Some of it is not served.
    Unserved(Trouble),
    /// It is trimmed beyond its new end.
    Shrinking,
    /// It is being removed.
    Removing,
}

/// A segment of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentFacts {
    /// Which.
    pub segment: SegmentId,
    /// Who has it; nothing if nobody does.
    pub owner: Option<TierId>,
    /// How often it has changed hands.
    pub epoch: Epoch,
    /// What the tier that is asked knows, if it has it.
    pub own: Option<OwnSegmentFacts>,
}

/// A segment that the tier has which is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnSegmentFacts {
    /// What is left of the lease.
    pub lease_left: Duration,
    /// Why it is not served, if it is not.
    pub trouble: Option<Trouble>,
    /// Chunks that are written to, or being sealed.
    pub open: usize,
    /// Those that stay as they are.
    pub sealed: usize,
    /// Those that are being deleted.
    pub dead: usize,
    /// Chunks with too few replicas.
    pub degraded: usize,
    /// Blocks that were logged since the last checkpoint.
    pub logged: u64,
    /// Blocks that are mapped.
    pub mapped: u64,
}

/// Why nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdminError {
    /// The tier does not know yet what there is.
    #[error("the tier is not ready: it has not read yet which volumes there are")]
    NotReady,
    /// It never will.
    #[error("the tier does not serve: {0}")]
    Trouble(Trouble),
    /// So many ask.
    #[error("too many requests of administrators wait for the metadata store")]
    Busy,
    /// Others were first, again and again.
    #[error("others change the same again and again")]
    Contended,
    /// No volume can be called so.
    #[error(
        "a volume cannot be called so: a name has 1 to 64 letters, digits, `-`, `_` and `.`, and begins with a letter or digit"
    )]
    Name,
    /// There is no such volume.
    #[error("there is no volume `{0}`")]
    UnknownVolume(Text<64>),
    /// There is one.
    #[error("there is a volume `{0}` already")]
    NameTaken(Text<64>),
    /// There was one, and something of it is left.
    #[error("the volume `{0}` is being removed")]
    Removing(Text<64>),
    /// There are as many as there can be.
    #[error("there are {VOLUMES_MAX} volumes, and no more can be told apart")]
    TooMany,
    /// A size that no volume has.
    #[error("a volume has at least one block, whole blocks of {0} bytes only, and at most 1 EiB")]
    Size(u32),
    /// It would be smaller, and nobody has said that this is meant.
    #[error("the volume would become smaller, which destroys what lies beyond its new end")]
    WouldShrink,
    /// What was cut off is not trimmed yet.
    #[error("what was cut off from the volume is not trimmed yet: it cannot grow before that")]
    StillShrinking,
    /// Its segments, chunks or replicas are such as there are not.
    #[error("there can be no such volume: {0}")]
    Shape(&'static str),
}

/// A request that is under way.
#[derive(Debug)]
pub(super) struct Job {
    request: AdminRequest,
    attempts: u32,
    step: Step,
    /// What is being committed.
    wanted: Option<(VolumeId, Volume)>,
    segments: Vec<SegmentFacts>,
}

/// What of a request is asked of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Whose the name is.
    Name,
    /// What is called so: whether it was made by this very request.
    Whose(VolumeId),
    /// Which number is the next.
    Pool,
    Volume(VolumeId),
    Segments(VolumeId),
    Committing,
}

impl AdminRequest {
    /// Which volume it is about.
    const fn name(&self) -> Option<Text<64>> {
        match self {
            Self::ListVolumes => None,
            Self::CreateVolume(volume) => Some(volume.name),
            Self::ShowVolume { name } | Self::ResizeVolume { name, .. } | Self::RemoveVolume { name } => {
                Some(*name)
            }
        }
    }
}

/// Whether people may call a volume so: what can be typed without quotes, and is no option.
fn is_name(name: &str) -> bool {
    let is_part = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
    name.starts_with(|first: char| first.is_ascii_alphanumeric()) && name.chars().all(is_part)
}

/// Whether a volume can have so many bytes.
fn check_size(size: u64, block_len: BlockLen) -> Result<(), AdminError> {
    let is_legal = (1..=VOLUME_LEN_MAX).contains(&size) && size.is_multiple_of(block_len.bytes().into());
    if is_legal { Ok(()) } else { Err(AdminError::Size(block_len.bytes())) }
}

impl NewVolume {
    /// Whether there can be such a volume.
    ///
    /// # Errors
    ///
    /// Why not.
    pub fn check(&self) -> Result<(), AdminError> {
        check_size(self.size, self.block_len)?;
        if self.chunk_len < NEW_CHUNK_LEN_MIN {
            return Err(AdminError::Shape("chunks have at least 16 MiB"));
        }
        let volume = self.volume(VolumeId(1), NamespaceId(1));
        volume.encode().map_err(|error| match error {
            ob_format::volume::LayoutError::Illegal(what) => AdminError::Shape(what),
            _ => AdminError::Shape("its record cannot be written"),
        })?;
        // G6: the index of a segment, and its root, have room in two chunks.
        let pages = volume.segment_blocks().div_ceil(PAGE_ENTRIES as u64);
        let record = (PAGE_LEN as u64 + 64).next_multiple_of(64) + 64;
        let room = u64::from(self.chunk_len) - RECORDS_START.bytes();
        if pages * record + (1 << 20) > room * 2 {
            return Err(AdminError::Shape("the index of a segment needs more than two chunks"));
        }
        Ok(())
    }

    fn volume(&self, _: VolumeId, namespace: NamespaceId) -> Volume {
        Volume {
            state: VolumeState::Serving,
            class: self.class,
            replicas: self.replicas,
            replicas_min: self.replicas_min,
            uuid: self.uuid,
            size: self.size,
            cut_from: None,
            segment_len: self.segment_len,
            chunk_len: self.chunk_len,
            block_len: self.block_len,
            namespace,
            generation: 1,
            name: self.name,
        }
    }
}

impl From<TierConfigError> for AdminError {
    fn from(_: TierConfigError) -> Self {
        Self::Shape("it cannot be served")
    }
}

impl TierCore {
    /// An administrator asks.
    pub(super) fn administer(&mut self, ticket: Ticket, request: AdminRequest) {
        match self.check_request(&request) {
            // It is asked as soon as it is known which volumes there are.
            Err(AdminError::NotReady) if self.early_jobs.len() < JOBS_MAX => {
                return self.early_jobs.push_back((ticket, request));
            }
            Err(error) => return self.tell(ticket, Err(error)),
            Ok(()) => {}
        }
        if request == AdminRequest::ListVolumes {
            let all = self.volumes.keys().filter_map(|id| self.facts_of(*id)).collect();
            return self.tell(ticket, Ok(AdminAnswer::Volumes(all)));
        }
        let job = Job { request, attempts: 0, step: Step::Name, wanted: None, segments: Vec::new() };
        self.jobs.insert(ticket, job);
        self.begin_job(ticket);
    }

    fn check_request(&self, request: &AdminRequest) -> Result<(), AdminError> {
        match (self.trouble(), self.store.phase) {
            (Some(trouble), _) => return Err(AdminError::Trouble(trouble)),
            (None, Phase::Open) => {}
            (None, _) => return Err(AdminError::NotReady),
        }
        if self.jobs.len() >= JOBS_MAX {
            return Err(AdminError::Busy);
        }
        if let AdminRequest::CreateVolume(volume) = request {
            if !is_name(volume.name.as_str()) {
                return Err(AdminError::Name);
            }
            volume.check()?;
        }
        // What others have made may be called otherwise.
        match request.name() {
            Some(name) if ob_core::check_name(name.as_str().as_bytes()).is_err() => Err(AdminError::Name),
            _ => Ok(()),
        }
    }

    pub(super) fn tell(&mut self, ticket: Ticket, answer: Result<AdminAnswer, AdminError>) {
        self.actions.push_back(TierAction::Tell { ticket, answer });
    }

    /// It is known which volumes there are.
    pub(super) fn take_early_jobs(&mut self) {
        for (ticket, request) in std::mem::take(&mut self.early_jobs) {
            self.administer(ticket, request);
        }
    }

    /// All that ask are told the same.
    pub(super) fn end_jobs(&mut self, error: AdminError) {
        let early = std::mem::take(&mut self.early_jobs).into_iter().map(|(ticket, _)| ticket);
        for ticket in std::mem::take(&mut self.jobs).into_keys().chain(early) {
            self.tell(ticket, Err(error));
        }
    }

    fn end_job(&mut self, ticket: Ticket, answer: Result<AdminAnswer, AdminError>) {
        if self.jobs.remove(&ticket).is_some() {
            self.tell(ticket, answer);
        }
    }

    fn ask_for_job(&mut self, ticket: Ticket, step: Step, key: Key) {
        if let Some(job) = self.jobs.get_mut(&ticket) {
            job.step = step;
            self.submit(Purpose::Admin(ticket), MetadataOp::Get { key });
        }
    }

    fn begin_job(&mut self, ticket: Ticket) {
        let name = self.jobs.get(&ticket).and_then(|job| job.request.name());
        if let Some(name) = name {
            self.ask_for_job(ticket, Step::Name, self.config.keys.key(Name::VolumeName(name)));
        }
    }

    /// The store has told what a request needs.
    pub(super) fn job_read(&mut self, ticket: Ticket, answer: MetadataAnswer) {
        let Some(job) = self.jobs.get(&ticket) else { return };
        let (step, request) = (job.step, job.request.clone());
        let next = match (step, answer, request.name()) {
            (Step::Name, MetadataAnswer::Value(found), Some(name)) => {
                let found =
                    found.map(|(value, _)| MetadataValue::decode(&Name::VolumeName(name), value.bytes()));
                let id = match found {
                    None => None,
                    Some(Ok(MetadataValue::VolumeName(id))) => Some(id),
                    Some(_) => return self.end_job(ticket, Err(AdminError::Trouble(Trouble::Value))),
                };
                self.job_named(ticket, &request, name, id)
            }
            (Step::Pool, MetadataAnswer::Value(found), _) => {
                let pool = found
                    .map(|(value, revision)| (MetadataValue::decode(&Name::Pool, value.bytes()), revision));
                match (pool, &request) {
                    (Some((Ok(MetadataValue::Pool(pool)), revision)), AdminRequest::CreateVolume(new)) => {
                        self.make_volume(ticket, new, &pool, revision)
                    }
                    _ => Err(AdminError::Trouble(Trouble::Value)),
                }
            }
            (Step::Volume(id) | Step::Whose(id), MetadataAnswer::Value(found), Some(name)) => {
                let found = found.map(|(value, revision)| {
                    (MetadataValue::decode(&Name::Volume(id), value.bytes()), revision)
                });
                match found {
                    Some((Ok(MetadataValue::Volume(volume)), revision)) => {
                        self.job_volume(ticket, &request, (id, volume, revision))
                    }
                    // Between the two looks it was removed.
                    None => Err(AdminError::UnknownVolume(name)),
                    Some(_) => Err(AdminError::Trouble(Trouble::Value)),
                }
            }
            (Step::Segments(id), MetadataAnswer::Values { entries, has_more }, _) => {
                self.job_segments(ticket, id, &entries, has_more);
                Ok(())
            }
            _ => Err(AdminError::Trouble(Trouble::Store)),
        };
        if let Err(error) = next {
            self.end_job(ticket, Err(error));
        }
    }

    /// Whose the name is is known.
    fn job_named(
        &mut self,
        ticket: Ticket,
        request: &AdminRequest,
        name: Text<64>,
        id: Option<VolumeId>,
    ) -> Result<(), AdminError> {
        let is_making = matches!(request, AdminRequest::CreateVolume(_));
        // What was to go, and went before its commit was answered.
        let gone = self.jobs.get(&ticket).and_then(|job| job.wanted).filter(|(of, _)| Some(*of) != id);
        if let (AdminRequest::RemoveVolume { .. }, Some((of, volume))) = (request, gone) {
            let health = VolumeHealth::Removing;
            let facts = VolumeFacts { id: of, volume, used: 0, stored: 0, health };
            self.end_job(ticket, Ok(AdminAnswer::Volume(facts, Vec::new())));
            return Ok(());
        }
        let (step, name) = match (id, is_making) {
            (None, false) => return Err(AdminError::UnknownVolume(name)),
            (None, true) if self.volumes.len() >= VOLUMES_MAX => return Err(AdminError::TooMany),
            (None, true) => (Step::Pool, Name::Pool),
            (Some(id), true) => (Step::Whose(id), Name::Volume(id)),
            (Some(id), false) => (Step::Volume(id), Name::Volume(id)),
        };
        self.ask_for_job(ticket, step, self.config.keys.key(name));
        Ok(())
    }

    /// The number of the next volume is known: it is made, unless somebody else takes that first.
    fn make_volume(
        &mut self,
        ticket: Ticket,
        new: &NewVolume,
        pool: &Pool,
        revision: Revision,
    ) -> Result<(), AdminError> {
        let (id, namespace) = (VolumeId(pool.volume_next), NamespaceId(pool.namespace_next));
        let volume = new.volume(id, namespace);
        let next = (pool.volume_next.checked_add(1), pool.namespace_next.checked_add(1));
        let (Some(volume_next), Some(namespace_next)) = next else { return Err(AdminError::TooMany) };
        let next = Pool { volume_next, namespace_next, ..*pool };
        let changes = vec![
            (Name::Volume(id), Expect::Absent, MetadataValue::Volume(volume)),
            (Name::VolumeName(volume.name), Expect::Absent, MetadataValue::VolumeName(id)),
            (Name::Pool, Expect::At(revision), MetadataValue::Pool(next)),
        ];
        self.commit_job(ticket, (id, volume), changes)
    }

    fn commit_job(
        &mut self,
        ticket: Ticket,
        wanted: (VolumeId, Volume),
        changes: Vec<(Name, Expect, MetadataValue)>,
    ) -> Result<(), AdminError> {
        let (mut compare, mut change) = (Vec::new(), Vec::new());
        for (name, expect, value) in changes {
            let key = self.config.keys.key(name);
            let value = value.encode().map_err(|_| AdminError::Shape("its record cannot be written"))?;
            compare.push((key.clone(), expect));
            change.push(Change::Put { key, value, session: None });
        }
        if let Some(job) = self.jobs.get_mut(&ticket) {
            (job.step, job.wanted) = (Step::Committing, Some(wanted));
            self.commit_changes(compare, change, Then::Administered(ticket));
        }
        Ok(())
    }

    /// What a volume is now is known: it is changed, or shown.
    fn job_volume(
        &mut self,
        ticket: Ticket,
        request: &AdminRequest,
        (id, volume, revision): (VolumeId, Volume, Revision),
    ) -> Result<(), AdminError> {
        let is_removing = volume.state == VolumeState::Removing;
        let changed = match *request {
            AdminRequest::CreateVolume(new) if volume.uuid == new.uuid => {
                // An earlier attempt was done after all.
                self.job_done(ticket, id, volume, revision);
                return Ok(());
            }
            AdminRequest::CreateVolume(_) if is_removing => return Err(AdminError::Removing(volume.name)),
            AdminRequest::CreateVolume(_) => return Err(AdminError::NameTaken(volume.name)),
            AdminRequest::ResizeVolume { .. } if is_removing => {
                return Err(AdminError::Removing(volume.name));
            }
            // Whether it was done, and changed by others since, nobody knows; to do it again could undo what they were told.
            AdminRequest::ResizeVolume { .. } if self.is_changed_since(ticket, &volume) => {
                return Err(AdminError::Contended);
            }
            AdminRequest::ResizeVolume { size, may_shrink, .. } => resized(&volume, size, may_shrink)?,
            AdminRequest::RemoveVolume { .. } if is_removing => None,
            AdminRequest::RemoveVolume { .. } => {
                let generation = volume.generation.saturating_add(1);
                Some(Volume { state: VolumeState::Removing, generation, ..volume })
            }
            AdminRequest::ShowVolume { .. } => {
                self.volume_known(self.now, id, volume, revision);
                self.list_for_job(ticket, id, None);
                return Ok(());
            }
            AdminRequest::ListVolumes => return Err(AdminError::Trouble(Trouble::Store)),
        };
        match changed {
            None => self.job_done(ticket, id, volume, revision),
            Some(changed) => {
                let change = (Name::Volume(id), Expect::At(revision), MetadataValue::Volume(changed));
                self.commit_job(ticket, (id, changed), vec![change])?;
            }
        }
        Ok(())
    }

    /// Whether others have changed a volume since a request tried to.
    fn is_changed_since(&self, ticket: Ticket, volume: &Volume) -> bool {
        let wanted = self.jobs.get(&ticket).and_then(|job| job.wanted);
        wanted.is_some_and(|(_, wanted)| volume.generation > wanted.generation)
    }

    fn list_for_job(&mut self, ticket: Ticket, id: VolumeId, after: Option<Key>) {
        if let Some(job) = self.jobs.get_mut(&ticket) {
            job.step = Step::Segments(id);
            let prefix = self.config.keys.segments(id);
            self.submit(Purpose::Admin(ticket), MetadataOp::List { prefix, after, most: LIST_MAX });
        }
    }

    fn job_segments(
        &mut self,
        ticket: Ticket,
        id: VolumeId,
        entries: &[crate::metadata::KeyValue],
        has_more: bool,
    ) {
        let facts: Vec<SegmentFacts> = entries
            .iter()
            .filter_map(|entry| {
                let name = self.config.keys.parse(&entry.key)?;
                match (name, MetadataValue::decode(&name, entry.value.bytes()).ok()?) {
                    (Name::Segment(name), MetadataValue::Segment(record)) => Some(SegmentFacts {
                        segment: name.segment,
                        owner: (record.state != SegmentState::Released).then_some(record.owner),
                        epoch: record.epoch,
                        own: self.own_segment_facts(name),
                    }),
                    _ => None,
                }
            })
            .collect();
        let Some(job) = self.jobs.get_mut(&ticket) else { return };
        job.segments.extend(facts);
        if let Some(last) = entries.last().filter(|_| has_more && job.segments.len() < SEGMENTS_TOLD_MAX) {
            return self.list_for_job(ticket, id, Some(last.key.clone()));
        }
        let segments = std::mem::take(&mut job.segments);
        let facts = self.facts_of(id).map(|facts| AdminAnswer::Volume(facts, segments));
        self.end_job(ticket, facts.ok_or(AdminError::NotReady));
    }

    /// The commit of a request is over.
    pub(super) fn job_committed(&mut self, ticket: Ticket, revision: Option<Revision>) {
        let Some(job) = self.jobs.get_mut(&ticket) else { return };
        match (revision, job.wanted) {
            (Some(revision), Some((id, volume))) => self.job_done(ticket, id, volume, revision),
            _ if job.attempts < ATTEMPTS_MAX => {
                job.attempts += 1;
                self.begin_job(ticket);
            }
            _ => self.end_job(ticket, Err(AdminError::Contended)),
        }
    }

    /// It is durable; whoever shows disks is told first.
    fn job_done(&mut self, ticket: Ticket, id: VolumeId, volume: Volume, revision: Revision) {
        self.volume_known(self.now, id, volume, revision);
        self.tell_volumes();
        let known = self.facts_of(id);
        // It may be gone by now.
        let health = VolumeHealth::Removing;
        let facts = known.unwrap_or(VolumeFacts { id, volume, used: 0, stored: 0, health });
        self.end_job(ticket, Ok(AdminAnswer::Volume(facts, Vec::new())));
    }

    /// A volume, and what is known of its segments here.
    pub(super) fn facts_of(&self, id: VolumeId) -> Option<VolumeFacts> {
        let volume = self.volumes.get(&id)?.volume;
        let first = SegmentName { volume: id, segment: SegmentId(0) };
        let last = SegmentName { volume: id, segment: SegmentId(u32::MAX) };
        let (mut mapped, mut stored, mut degraded, mut waiting, mut trouble) = (0, 0, 0, 0, None);
        for name in self.segments.range(first..=last).map(|(name, _)| *name) {
            let Some(segment) = self.segment_status(name) else { continue };
            mapped += segment.mapped;
            stored += segment.stored_units * 64;
            (degraded, waiting) = (degraded + segment.degraded, waiting + segment.waiting);
            trouble = trouble.or(segment.trouble.filter(|trouble| *trouble != Trouble::Taken));
        }
        let health = match trouble {
            _ if volume.state == VolumeState::Removing => VolumeHealth::Removing,
            Some(trouble) => VolumeHealth::Unserved(trouble),
            None if waiting > 0 => VolumeHealth::Waiting(waiting),
            None if degraded > 0 => VolumeHealth::Degraded(degraded),
            None if volume.cut_from.is_some() => VolumeHealth::Shrinking,
            None => VolumeHealth::Good,
        };
        let used = mapped * u64::from(volume.block_len.bytes());
        Some(VolumeFacts { id, volume, used, stored, health })
    }

    fn own_segment_facts(&self, name: SegmentName) -> Option<OwnSegmentFacts> {
        let segment = self.segments.get(&name)?;
        let trouble = match segment.standing {
            Standing::Owned | Standing::Taking | Standing::Emptying => None,
            Standing::Unserved(trouble) if trouble != Trouble::Taken => Some(trouble),
            _ => return None,
        };
        let count = |is: fn(&ChunkIs) -> bool| segment.chunks.iter().filter(|chunk| is(&chunk.is)).count();
        Some(OwnSegmentFacts {
            lease_left: self.store.lease_left(self.now),
            trouble,
            open: count(|is| matches!(is, ChunkIs::Open | ChunkIs::Closing(_))),
            sealed: count(|is| matches!(is, ChunkIs::Sealed { .. })),
            dead: count(|is| matches!(is, ChunkIs::Dead(_))),
            degraded: self.segment_status(name).map_or(0, |status| status.degraded),
            logged: segment.space.logged,
            mapped: segment.index.mapped(),
        })
    }
}

/// A volume with another size; nothing if it has that already.
fn resized(volume: &Volume, size: u64, may_shrink: bool) -> Result<Option<Volume>, AdminError> {
    check_size(size, volume.block_len)?;
    let generation = volume.generation.saturating_add(1);
    let cut_from = match size.cmp(&volume.size) {
        std::cmp::Ordering::Equal => return Ok(None),
        std::cmp::Ordering::Greater if volume.cut_from.is_some() => return Err(AdminError::StillShrinking),
        std::cmp::Ordering::Greater => None,
        std::cmp::Ordering::Less if !may_shrink => return Err(AdminError::WouldShrink),
        std::cmp::Ordering::Less => volume.cut_from.max(Some(volume.size)),
    };
    let resized = Volume { size, cut_from, generation, ..*volume };
    resized.encode().map_err(|_| AdminError::Shape("it would have more segments than there can be"))?;
    Ok(Some(resized))
}

/// By their tickets.
pub(super) type Jobs = BTreeMap<Ticket, Job>;
