//! What a seed chooses for a run of the link.

use std::ops::Range;
use std::time::Duration;

use crate::Rng;

/// What holds for a whole run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// How long until fate does its next deed, and until the dead come back.
    pub(super) between_deeds: Range<Duration>,
    /// How long bytes travel.
    pub(super) delay: Range<Duration>,
    /// Messages of a producer for one attachment.
    pub(super) quota_max: u64,
    weights: [u64; DEEDS.len()],
}

/// What fate can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    Cut,
    KillCard,
    KillHost,
    /// Somebody stops for a while.
    Pause,
}

/// All deeds, and how often they are done unless the seed prefers some.
const DEEDS: [(Deed, u64); 4] = [(Deed::Cut, 8), (Deed::KillCard, 1), (Deed::KillHost, 1), (Deed::Pause, 2)];

impl Plan {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        let pick = |rng: &mut Rng, items: &[u64]| items.get(rng.index(items.len())).copied().unwrap_or(1);
        let most_ms = pick(rng, &[50, 50, 5, 400]);
        let delay_us = pick(rng, &[400, 400, 5, 2_000]);
        Self {
            between_deeds: Duration::from_micros(100)..Duration::from_millis(most_ms),
            delay: Duration::from_micros(1)..Duration::from_micros(delay_us),
            quota_max: pick(rng, &[60, 60, 5, 100]),
            weights: DEEDS.map(|(_, weight)| weight * pick(rng, &[1, 1, 4, 0])),
        }
    }

    /// What fate does next; nothing, in a seed that has left everything out.
    pub(super) fn deed(&self, rng: &mut Rng) -> Option<Deed> {
        let mut drawn = rng.below(self.weights.iter().sum());
        DEEDS.iter().zip(self.weights).find_map(|((deed, _), weight)| {
            let is_it = drawn < weight;
            drawn = drawn.saturating_sub(weight);
            is_it.then_some(*deed)
        })
    }
}
