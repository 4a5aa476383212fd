//! The store's GET as programs, on some cards from the begin, and on some while requests are under way.

use std::sync::{Arc, OnceLock};

use ob_offload::{ProgramCounts, ProgramSlot};
use ob_programs::{Library, Limits, Object};
use ob_sim::{Failure, Report, Rng};

const PROGRAMS: &[u8] = include_bytes!("../../../../examples/programs/kv_get.o");

/// What becomes of a run's programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    /// There are none.
    Absent,
    /// They are there from the begin of every life of the card.
    Loaded,
    /// They come, are replaced and go.
    Changing,
}

/// The programs of one run, which outlive the lives of its card.
pub(super) struct Programs {
    plan: Plan,
    rng: Rng,
}

impl Programs {
    pub(super) fn new(mut rng: Rng) -> Self {
        let plan = *rng.choose(&[Plan::Absent, Plan::Loaded, Plan::Changing]).unwrap_or(&Plan::Absent);
        Self { plan, rng }
    }

    /// Where a life of the card finds its programs.
    pub(super) fn slot(&mut self) -> Result<Arc<ProgramSlot>, Failure> {
        let slot = Arc::new(ProgramSlot::default());
        let is_loaded = match self.plan {
            Plan::Absent => false,
            Plan::Loaded => true,
            Plan::Changing => self.rng.one_in(2),
        };
        if is_loaded {
            put(&slot, true)?;
        }
        Ok(slot)
    }

    /// Now and then somebody loads or replaces them, or takes them out.
    pub(super) fn disturb(&mut self, slot: &ProgramSlot, report: &mut Report) -> Result<(), Failure> {
        if self.plan != Plan::Changing || !self.rng.one_in(60) {
            return Ok(());
        }
        let is_loaded = !self.rng.one_in(3);
        report.count(if is_loaded { "programs loaded" } else { "programs taken out" }, 1);
        put(slot, is_loaded)
    }
}

/// Counts what the programs of a life have done.
pub(super) fn count(counts: &ProgramCounts, report: &mut Report) {
    for (hook, counts) in &counts.hooks {
        report.count(FAILED, counts.faults + counts.wrong);
        match *hook {
            "predicate" => report.count("requests that programs left", counts.left),
            "function" => report.count("GETs that programs planned", counts.calls - counts.left),
            "check" => report.count("GETs that programs answered", counts.calls - counts.left),
            _ => {}
        }
    }
    report.count("outdated by other programs", counts.outdated);
}

/// The store's programs do nothing that they may not.
pub(super) fn judge(report: &Report) -> Result<(), Failure> {
    match report.get(FAILED) {
        0 => Ok(()),
        failed => Err(Failure::new(format!("{failed} calls of programs were stopped, or wrong"))),
    }
}

const FAILED: &str = "programs stopped, or wrong";

fn put(slot: &ProgramSlot, is_loaded: bool) -> Result<(), Failure> {
    let objects = if is_loaded { vec![object()?] } else { Vec::new() };
    slot.put(objects, Limits::default());
    Ok(())
}

/// The programs, verified and compiled once for all runs.
fn object() -> Result<Arc<Object>, Failure> {
    static OBJECT: OnceLock<Result<Arc<Object>, String>> = OnceLock::new();
    let load = || {
        let loaded = Library::default().load("kv", "kv_get", bytes(), ProgramSlot::HOOKS, &Limits::default());
        loaded.map_err(|refused| refused.to_string())
    };
    OBJECT
        .get_or_init(load)
        .clone()
        .map_err(|refused| Failure::new(format!("the programs are refused: {refused}")))
}

ob_plant::plants! {
    /// What can be wrong with the programs of this scenario.
    enum Bug {
        /// A program believes what was read, whatever its checksum.
        UncheckedProgram = "unchecked-program",
    }
}

fn bytes() -> &'static [u8] {
    if is_planted(Bug::UncheckedProgram) {
        include_bytes!("../../tests/programs/kv_get_unchecked.o")
    } else {
        PROGRAMS
    }
}
