//! Whether a tier looks blocks up only within its lease, seen from outside: by when it has asked for what was answered, on its own clock
//! (`docs/volumes-safety.md`, L1 and L2); and whether nobody does so for a segment for which a later owner has (L3). The card's gate and the
//! servers' fences keep most of what would come of it from clients, so that they seldom see it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use ob_core::{Epoch, Instant, SegmentId, SegmentName, Token, VolumeId};
use ob_split::wire::HeaderEntry;
use ob_volume::metadata::{MetadataAnswer, MetadataCompletion, MetadataOp};
use ob_volume::plans::VolumePlan;
use ob_volume::tier::{TierAction, TierConfig};

use super::host::Over;

/// The latest epoch in which somebody has looked blocks of a segment up, of all tiers.
pub(super) type Owners = Rc<RefCell<BTreeMap<SegmentName, Epoch>>>;

/// What is known of a tier's lease, and of what it was asked.
#[derive(Debug)]
pub(super) struct Watch {
    owners: Owners,
    /// Segments of commands that the tier has. Those of blocks of two are left out.
    asked_of: BTreeMap<u32, SegmentName>,
    /// How long it lasts.
    lease: Duration,
    /// Renewals that were asked for, by the tier's clock.
    asked: BTreeMap<Token, Instant>,
    until: Option<Instant>,
}

impl Watch {
    pub(super) fn new(config: &TierConfig, owners: Owners) -> Self {
        let lease = config.lease * (1_000_000 - config.drift_ppm) / 1_000_000;
        Self { owners, asked_of: BTreeMap::new(), lease, asked: BTreeMap::new(), until: None }
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
            TierAction::Post { plan, .. } => {
                let handle = plan.handle.0;
                let plan =
                    VolumePlan::decode(&plan.entry()).map_err(|_| Over("a plan that is none".to_owned()))?;
                let is_leased = self.until.is_some_and(|until| now < until);
                if looks_up(&plan) && !is_leased {
                    let late = self.until.map(|until| now.since(until));
                    return Err(Over(format!("it looks blocks up without a lease, {late:?} late")));
                }
                if looks_up(&plan)
                    && let Some(segment) = self.asked_of.get(&handle)
                    && let Some(epoch) = epoch_of(*segment)
                {
                    let mut owners = self.owners.borrow_mut();
                    let latest = owners.entry(*segment).or_insert(epoch);
                    if *latest > epoch {
                        let text =
                            format!("it looks up {segment:?} in {epoch:?}, and somebody has in {latest:?}");
                        return Err(Over(text));
                    }
                    *latest = epoch;
                }
            }
            _ => {}
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
