//! Whether a tier looks blocks up only within its lease, seen from outside: by when it has asked for what was answered, on its own clock
//! (`docs/volumes-safety.md`, L1 and L2). The card's gate keeps most of what would come of it from clients, so that they seldom see it.

use std::collections::BTreeMap;
use std::time::Duration;

use ob_core::{Instant, Token};
use ob_volume::metadata::{MetadataAnswer, MetadataCompletion, MetadataOp};
use ob_volume::plans::VolumePlan;
use ob_volume::tier::{TierAction, TierConfig};

use super::host::Over;

/// What is known of a tier's lease.
#[derive(Debug)]
pub(super) struct Watch {
    /// How long it lasts.
    lease: Duration,
    /// Renewals that were asked for, by the tier's clock.
    asked: BTreeMap<Token, Instant>,
    until: Option<Instant>,
}

impl Watch {
    pub(super) fn new(config: &TierConfig) -> Self {
        let lease = config.lease * (1_000_000 - config.drift_ppm) / 1_000_000;
        Self { lease, asked: BTreeMap::new(), until: None }
    }

    /// The store has answered.
    pub(super) fn hear(&mut self, completion: &MetadataCompletion) {
        let asked = self.asked.remove(&completion.token);
        if let (Some(asked), Ok(MetadataAnswer::Renewed)) = (asked, &completion.result) {
            self.until = self.until.max(Some(asked + self.lease));
        }
    }

    /// The tier has decided something.
    pub(super) fn look(&mut self, now: Instant, action: &TierAction) -> Result<(), Over> {
        match action {
            TierAction::Metadata(token, MetadataOp::Renew { .. }) => {
                self.asked.insert(*token, now);
            }
            TierAction::Post { plan, .. } => {
                let plan =
                    VolumePlan::decode(&plan.entry()).map_err(|_| Over("a plan that is none".to_owned()))?;
                let is_leased = self.until.is_some_and(|until| now < until);
                if looks_up(&plan) && !is_leased {
                    let late = self.until.map(|until| now.since(until));
                    return Err(Over(format!("it looks blocks up without a lease, {late:?} late")));
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
