//! Whether a tier looks blocks up only within its lease, seen from outside: by when it has asked for what was answered, on its own clock
//! (`docs/volumes-safety.md`, L1 and L2); whether nobody does so for a segment for which a later owner has; and whether no earlier owner could
//! still, when a later one does (L3 to L6, L9, L11, L12): nobody has to ask both at the same moment for that. The card's gate and the servers' fences keep most of
//! what would come of it from clients, so that they seldom see it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use ob_core::{ChunkName, Epoch, Instant, SegmentId, SegmentName, ServerId, Token, VolumeId};
use ob_format::volume::metadata::ChunkState;
use ob_split::wire::{HeaderEntry, Slot};
use ob_volume::metadata::{Keys, MetadataAnswer, MetadataCompletion, MetadataOp, MetadataValue, Name};
use ob_volume::plans::{Run, VolumePlan};
use ob_volume::tier::{TierAction, TierConfig, TierStatus};

use super::boot::DriftClock;
use super::host::Over;
use super::sockets::Spoken;
use super::store::StoreEnd;

/// What is known of all tiers.
pub(super) type Owners = Rc<RefCell<Known>>;

#[derive(Debug, Default)]
pub(super) struct Known {
    /// The latest epoch in which somebody has looked blocks of a segment up.
    latest: BTreeMap<SegmentName, Epoch>,
    /// Of each tier whose host lives.
    holders: BTreeMap<usize, Holder>,
}

/// What a tier would look up, if it were asked.
#[derive(Debug, Default)]
struct Holder {
    /// In which epoch.
    answers: BTreeMap<SegmentName, Epoch>,
    /// As long as its lease lasts, in real time.
    until: Option<Instant>,
}

/// What is known of a tier's lease, and of what it was asked.
pub(super) struct Watch {
    store: StoreEnd,
    keys: Keys,
    clock: DriftClock,
    owners: Owners,
    told: Spoken,
    /// What slots of the card are set to.
    slots: BTreeMap<Slot, ChunkName>,
    /// Segments of commands that the tier has. Those of blocks of two are left out.
    asked_of: BTreeMap<u32, SegmentName>,
    /// How long it lasts.
    lease: Duration,
    /// Renewals that were asked for, by the tier's clock.
    asked: BTreeMap<Token, Instant>,
    until: Option<Instant>,
}

impl Watch {
    /// Of a host that begins.
    pub(super) fn new(
        config: &TierConfig,
        (store, clock): (StoreEnd, DriftClock),
        (owners, told): (Owners, Spoken),
    ) -> Self {
        let lease = config.lease * (1_000_000 - config.drift_ppm) / 1_000_000;
        owners.borrow_mut().holders.insert(store.caller, Holder::default());
        Self {
            store,
            keys: config.keys.clone(),
            clock,
            owners,
            told,
            slots: BTreeMap::new(),
            asked_of: BTreeMap::new(),
            lease,
            asked: BTreeMap::new(),
            until: None,
        }
    }

    /// The host is dead.
    pub(super) fn end(&self) {
        self.owners.borrow_mut().holders.remove(&self.store.caller);
    }

    /// What the tier has, when it has decided what to do. What a lost session had it has not, until it is open by another and has kept it.
    pub(super) fn note(&self, status: &TierStatus) {
        if let Some(holder) = self.owners.borrow_mut().holders.get_mut(&self.store.caller) {
            let answered = status.segments.iter().filter(|segment| status.is_open && segment.is_answered);
            holder.answers = answered.filter_map(|segment| Some((segment.name, segment.epoch?))).collect();
        }
    }

    /// A command has come.
    pub(super) fn asked(&mut self, header: &HeaderEntry, segment_blocks: u64) {
        let handle = header.descriptor().handle.0;
        match segment_of(header.bytes(), segment_blocks) {
            Some(segment) => self.asked_of.insert(handle, segment),
            None => self.asked_of.remove(&handle),
        };
    }

    /// The store has answered.
    pub(super) fn hear(&mut self, completion: &MetadataCompletion) {
        let asked = self.asked.remove(&completion.token);
        if let (Some(asked), Ok(MetadataAnswer::Renewed)) = (asked, &completion.result) {
            self.until = self.until.max(Some(asked + self.lease));
            if let Some(holder) = self.owners.borrow_mut().holders.get_mut(&self.store.caller) {
                holder.until = self.until.map(|until| self.clock.when(until));
            }
        }
    }

    /// The tier has decided something, which has segments in these epochs.
    pub(super) fn look(
        &mut self,
        now: Instant,
        action: &TierAction,
        epoch_of: impl Fn(SegmentName) -> Option<Epoch>,
    ) -> Result<(), Over> {
        match action {
            TierAction::Metadata(token, MetadataOp::Renew { .. }) => {
                self.asked.insert(*token, now);
            }
            TierAction::Set { set, .. } => {
                self.slots.insert(set.slot, set.chunk);
            }
            TierAction::Post { plan, .. } => {
                let handle = plan.handle.0;
                let plan =
                    VolumePlan::decode(&plan.entry()).map_err(|_| Over("a plan that is none".to_owned()))?;
                let is_leased = self.until.is_some_and(|until| now < until);
                if looks_up(&plan) && !is_leased {
                    let late = self.until.map(|until| now.since(until));
                    return Err(Over(format!("it looks blocks up without a lease, {late:?} late")));
                }
                if let VolumePlan::Read { runs, .. } = &plan {
                    runs.iter().try_for_each(|run| self.have_all(&run))?;
                }
                if looks_up(&plan)
                    && let Some(segment) = self.asked_of.get(&handle)
                    && let Some(epoch) = epoch_of(*segment)
                {
                    self.owners.borrow_mut().looked_up(self.clock.when(now), *segment, epoch)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl Watch {
    /// Whether all that the store names for a record have said that they have it (C1, C5, I1, R2).
    fn have_all(&self, run: &Run) -> Result<(), Over> {
        let Run::Record { slot, place, .. } = run else { return Ok(()) };
        let Some(chunk) = self.slots.get(slot) else { return Ok(()) };
        let name = Name::Chunk(*chunk);
        let op = MetadataOp::Get { key: self.keys.key(name) };
        let Ok(MetadataAnswer::Value(Some((value, _)))) = self.store.store.borrow_mut().look(op) else {
            return Ok(());
        };
        let Ok(MetadataValue::Chunk(record)) = MetadataValue::decode(&name, value.bytes()) else {
            return Ok(());
        };
        let told = self.told.borrow();
        let lacks = |server: &&ServerId| told.end_of(**server, *chunk) <= *place;
        match record.members.servers().iter().find(lacks) {
            Some(server) if record.state != ChunkState::Dead => Err(Over(format!(
                "it looks up {place:?} of {chunk:?}, which {server:?} has not said to have"
            ))),
            _ => Ok(()),
        }
    }
}

impl Known {
    /// Somebody looks blocks up.
    fn looked_up(&mut self, now: Instant, segment: SegmentName, epoch: Epoch) -> Result<(), Over> {
        let latest = self.latest.entry(segment).or_insert(epoch);
        if *latest > epoch {
            let text = format!("it looks up {segment:?} in {epoch:?}, and somebody has in {latest:?}");
            return Err(Over(text));
        }
        *latest = epoch;
        for (number, holder) in &self.holders {
            let is_earlier = holder.answers.get(&segment).is_some_and(|of| *of < epoch);
            if let Some(until) = holder.until.filter(|until| is_earlier && *until > now) {
                let left = until.since(now);
                let text = format!(
                    "it looks up {segment:?} in {epoch:?}, and tier {number} could still, for {left:?}"
                );
                return Err(Over(text));
            }
        }
        Ok(())
    }
}

/// Whether a plan says what blocks are, or changes them.
fn looks_up(plan: &VolumePlan<'_>) -> bool {
    match plan {
        VolumePlan::Read { .. }
        | VolumePlan::Write { .. }
        | VolumePlan::Trim { .. }
        | VolumePlan::Given(_) => true,
        VolumePlan::Answer { status, .. } => status.is_success(),
        _ => false,
    }
}

/// The segment of all blocks that a command is about.
fn segment_of(header: &[u8; 64], segment_blocks: u64) -> Option<SegmentName> {
    const READ: u8 = 2;
    const WRITE: u8 = 1;
    const ZEROES: u8 = 8;
    // Namespaces of these volumes have their numbers.
    let volume = VolumeId(u32::from_le_bytes(header.get(4..8)?.try_into().ok()?).into());
    let first = u64::from_le_bytes(header.get(40..48)?.try_into().ok()?);
    let more = u16::from_le_bytes(header.get(48..50)?.try_into().ok()?);
    let segment = first / segment_blocks;
    let is_about_blocks = matches!(header[0], READ | WRITE | ZEROES);
    let is_one = (first + u64::from(more)) / segment_blocks == segment;
    let segment = u32::try_from(segment).ok().filter(|_| is_about_blocks && is_one)?;
    Some(SegmentName { volume, segment: SegmentId(segment) })
}
