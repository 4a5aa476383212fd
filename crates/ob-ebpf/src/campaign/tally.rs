//! What a campaign has seen, so that one that sees nothing is not taken for one that finds nothing.

use std::collections::BTreeMap;
use std::fmt;

use crate::call::{CallError, FaultKind, Outcome};
use crate::verdict::Bounds;
use crate::verifier::{Accepted, Why};
use crate::world::Region;

/// Counts.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Programs that were made.
    pub generated: u64,
    /// Those whose shape was not right, so that they are none.
    pub shapeless: u64,
    /// Those that the verifier accepted.
    pub accepted: u64,
    /// Those of them that were to have no check left.
    pub strict: u64,
    /// Those that were compiled.
    pub compiled: u64,
    /// Calls.
    pub runs: u64,
    /// Programs that were accepted, by the hook that they were made for.
    pub worlds: BTreeMap<&'static str, u64>,
    /// Programs that were refused, by the reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// How calls ended.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// Accesses, and ranges of helpers, of accepted programs: by their memory, and whether they are checked.
    pub accesses: BTreeMap<(&'static str, Region, bool), u64>,
}

impl Tally {
    /// Adds another's.
    pub fn add(&mut self, other: &Self) {
        self.generated += other.generated;
        self.shapeless += other.shapeless;
        self.accepted += other.accepted;
        self.strict += other.strict;
        self.compiled += other.compiled;
        self.runs += other.runs;
        for (own, other) in [
            (&mut self.worlds, &other.worlds),
            (&mut self.refused, &other.refused),
            (&mut self.outcomes, &other.outcomes),
        ] {
            for (name, count) in other {
                *own.entry(name).or_default() += count;
            }
        }
        for (kind, count) in &other.accesses {
            *self.accesses.entry(*kind).or_default() += count;
        }
    }

    pub(super) fn note_refused(&mut self, why: &Why) {
        *self.refused.entry(reason(why)).or_default() += 1;
    }

    pub(super) fn note_accepted(&mut self, accepted: &Accepted, is_strict: bool) {
        self.accepted += 1;
        self.strict += u64::from(is_strict);
        *self.worlds.entry(accepted.verified.world().name).or_default() += 1;
        for variant in accepted.verified.variants() {
            let accesses = variant.accesses.values().map(|access| ("access", access));
            let ranges = variant.ranges.values().map(|access| ("range", access));
            for (kind, access) in accesses.chain(ranges) {
                let is_checked = access.bounds == Bounds::Checked;
                *self.accesses.entry((kind, access.region, is_checked)).or_default() += 1;
            }
        }
    }

    pub(super) fn note_outcome(&mut self, outcome: Outcome) {
        let name = match outcome {
            Ok(_) => "result",
            Err(CallError::Refused(_)) => "not begun",
            Err(CallError::Fault(fault)) => match fault.what {
                FaultKind::OutOfFuel => "out of fuel",
                FaultKind::OutOfBounds { .. } => "out of bounds",
                FaultKind::Misaligned { .. } => "misaligned",
                FaultKind::RangeTooLong { .. } => "range too long",
                FaultKind::Unproven(_) => "violation",
                FaultKind::ProofBroken { .. } => "proof broken",
            },
        };
        *self.outcomes.entry(name).or_default() += 1;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = 100.0 * self.accepted as f64 / (self.generated.max(1)) as f64;
        writeln!(
            f,
            "generated {}, of no shape {}, accepted {} ({share:.1} %), strictly {}, compiled {}, runs {}",
            self.generated, self.shapeless, self.accepted, self.strict, self.compiled, self.runs
        )?;
        for (what, counts) in
            [("accepted for", &self.worlds), ("refused", &self.refused), ("ended", &self.outcomes)]
        {
            for (name, count) in counts {
                writeln!(f, "  {what}: {name}: {count}")?;
            }
        }
        for ((kind, region, is_checked), count) in &self.accesses {
            let bounds = if *is_checked { "checked" } else { "proven" };
            writeln!(f, "  {kind}, {}, {bounds}: {count}", region.name())?;
        }
        Ok(())
    }
}

/// A reason without what it is about.
fn reason(why: &Why) -> &'static str {
    match why {
        Why::Uninitialised(_) => "uninitialised",
        Why::NotAPointer(_) => "not a pointer",
        Why::NotANumber(_) => "not a number",
        Why::MayBeNull(_) => "may be null",
        Why::PointerArithmetic => "pointer arithmetic",
        Why::PointerComparison => "pointer comparison",
        Why::ComparisonUnclear => "comparison unclear",
        Why::PointerStored(_) => "pointer stored",
        Why::PointerReturned => "pointer returned",
        Why::StackUninitialised(_) => "stack uninitialised",
        Why::StackPointer(_) => "stack pointer",
        Why::StackBounds { .. } => "stack bounds",
        Why::FrameUnknown => "frame unknown",
        Why::StackOffset(_) => "stack offset",
        Why::ReadOnly(_) => "read-only",
        Why::Context { .. } => "context",
        Why::NoHelper(_) => "no helper",
        Why::HelperRegion { .. } => "helper region",
        Why::RegionUnclear(..) => "region unclear",
        Why::CallUnclear => "call unclear",
        Why::Unproven(_) => "unproven",
        Why::TooComplex(_) => "too complex",
        Why::TooMuchToCompare(_) => "too much to compare",
        Why::TooManyWays(_) => "too many ways",
    }
}
