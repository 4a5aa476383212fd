//! What the metadata store had before: nobody here reads the past, and etcd keeps all of it until it is told not to.
//!
//! The tier of the lowest number that lives has it forgotten, every ten minutes, up to a revision that it has known for as long: whoever
//! reads does so at a later one by then. (Two that both believe to be the lowest do no harm.)

use std::time::Duration;

use ob_core::{Instant, Revision};

use super::core::TierCore;
use super::store::Purpose;
use crate::metadata::{MetadataAnswer, MetadataOp};

/// How often, and for how long a revision is known before what was before it is forgotten.
const FORGET_EVERY: Duration = Duration::from_secs(600);

/// What is known of the store's revisions.
#[derive(Debug, Default)]
pub(super) struct History {
    latest: Revision,
    /// One that is known since then.
    known: Option<(Instant, Revision)>,
}

impl TierCore {
    /// The store has answered with revisions, perhaps.
    pub(super) fn note_revisions(&mut self, answer: &MetadataAnswer) {
        let told = match answer {
            MetadataAnswer::Committed(revision) | MetadataAnswer::Value(Some((_, revision))) => {
                Some(*revision)
            }
            MetadataAnswer::Values { entries, .. } => entries.iter().map(|entry| entry.revision).max(),
            _ => None,
        };
        self.history.latest = self.history.latest.max(told.unwrap_or_default());
    }

    /// This is the tier that has the past forgotten.
    pub(super) fn forget_history(&mut self, now: Instant) {
        if self.config.keeps_history {
            return;
        }
        let latest = self.history.latest;
        match self.history.known {
            Some((since, _)) if now.since(since) < FORGET_EVERY => return,
            // Where nothing has changed there is nothing to forget.
            Some((_, before)) if before < latest => {
                self.submit(Purpose::Forget, MetadataOp::Forget { before });
            }
            _ => {}
        }
        self.history.known = Some((now, latest));
    }
}
