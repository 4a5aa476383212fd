//! Seeded runs: one seed, one story; a failure names the command that tells it again.
//!
//! ```text
//!   run_seeds ──▶ run_seed ──▶ Scenario::run(seed, steps, trace) ──▶ Report, or Failure
//!                                                                      │
//!                 "outboard sim NAME --seed N --steps M", hash, last lines of the trace
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use ob_core::{Clock, Instant};

use crate::{SimClock, Trace};

/// Something to simulate, with its checkers.
pub trait Scenario {
    /// What `outboard sim` calls it.
    fn name(&self) -> &'static str;

    /// Plays one seed for about so many steps. Everything that is random comes from the seed; everything that
    /// happens goes into the trace.
    fn run(&mut self, seed: u64, steps: u64, trace: &mut Trace) -> Result<Report, Failure>;

    /// Whether seeds that passed have shown what they should, altogether: one that could not be judged passes too.
    fn judge(&self, _totals: &Report) -> Result<(), Failure> {
        Ok(())
    }
}

/// What a run that found nothing wrong did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// How often each thing worth counting happened.
    pub counts: BTreeMap<&'static str, u64>,
}

impl Report {
    /// Counts something.
    pub fn count(&mut self, what: &'static str, times: u64) {
        *self.counts.entry(what).or_default() += times;
    }

    /// How often something happened.
    pub fn get(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or(0)
    }

    /// Adds another run's counts.
    pub fn merge(&mut self, other: &Self) {
        for (what, times) in &other.counts {
            self.count(what, *times);
        }
    }
}

/// What a run found wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Failure {
    /// In words.
    pub what: String,
}

impl Failure {
    /// A failure of this text.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into() }
    }
}

/// A run that found nothing wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    /// Its seed.
    pub seed: u64,
    /// The trace's hash: the same for every run of this seed, these steps and this build.
    pub hash: u64,
    /// Events in the trace.
    pub events: u64,
    /// Virtual time that passed.
    pub elapsed: Duration,
    /// What it did.
    pub report: Report,
}

/// A run that failed, and how to repeat it.
#[derive(Clone, Debug)]
pub struct Failed {
    /// The scenario.
    pub name: &'static str,
    /// The seed.
    pub seed: u64,
    /// The steps.
    pub steps: u64,
    /// The trace's hash up to the failure.
    pub hash: u64,
    /// What went wrong.
    pub failure: Failure,
    /// The last lines of the trace.
    pub lines: Vec<String>,
}

impl Failed {
    /// The command that repeats the run.
    pub fn command(&self) -> String {
        format!("outboard sim {} --seed {} --steps {}", self.name, self.seed, self.steps)
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{} failed at seed {}: {}", self.name, self.seed, self.failure)?;
        writeln!(formatter, "last of the trace (hash {:016x}):", self.hash)?;
        self.lines.iter().try_for_each(|line| writeln!(formatter, "  {line}"))?;
        write!(formatter, "repeat it with: {}", self.command())
    }
}

impl std::error::Error for Failed {}

/// Plays one seed. A panic in what is simulated is a failure like any other.
pub fn run_seed(scenario: &mut dyn Scenario, seed: u64, steps: u64) -> Result<Passed, Box<Failed>> {
    run_traced(scenario, seed, steps, &mut Trace::new(SimClock::new()))
}

/// Plays one seed into a trace of the caller's, who may want more lines of it.
pub fn run_traced(
    scenario: &mut dyn Scenario,
    seed: u64,
    steps: u64,
    trace: &mut Trace,
) -> Result<Passed, Box<Failed>> {
    trace.note("seed", &[seed, steps]);
    let name = scenario.name();
    let outcome = catch_unwind(AssertUnwindSafe(|| scenario.run(seed, steps, trace)))
        .unwrap_or_else(|panic| Err(Failure::new(format!("panic: {}", panic_text(panic.as_ref())))));
    let hash = trace.hash();
    match outcome {
        Ok(report) => {
            let elapsed = trace.clock().now().since(Instant::default());
            Ok(Passed { seed, hash, events: trace.events(), elapsed, report })
        }
        Err(failure) => Err(Box::new(Failed { name, seed, steps, hash, failure, lines: trace.last_lines() })),
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("(no text)")
}

/// Plays a range of seeds until one fails; the sum of what the runs did.
pub fn run_seeds(
    scenario: &mut dyn Scenario,
    seeds: Range<u64>,
    steps: u64,
    mut progress: impl FnMut(&Passed),
) -> Result<Report, Box<Failed>> {
    let mut sum = Report::default();
    for seed in seeds {
        let passed = run_seed(scenario, seed, steps)?;
        sum.merge(&passed.report);
        progress(&passed);
    }
    Ok(sum)
}

/// Plays one seed twice and fails if the two runs were not the same.
pub fn check_determinism(scenario: &mut dyn Scenario, seed: u64, steps: u64) -> Result<Passed, Box<Failed>> {
    let first = run_seed(scenario, seed, steps)?;
    let second = run_seed(scenario, seed, steps)?;
    if first == second {
        return Ok(first);
    }
    let text = format!("two runs of one seed differ: hashes {:016x} and {:016x}", first.hash, second.hash);
    let failure = Failure::new(text);
    Err(Box::new(Failed {
        name: scenario.name(),
        seed,
        steps,
        hash: second.hash,
        failure,
        lines: Vec::new(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails at seed 3, panics at seed 4, and at seed 5 depends on something that is not the seed.
    struct Troubled {
        runs: u64,
    }

    impl Scenario for Troubled {
        fn name(&self) -> &'static str {
            "troubled"
        }

        fn run(&mut self, seed: u64, steps: u64, trace: &mut Trace) -> Result<Report, Failure> {
            self.runs += 1;
            (0..steps).for_each(|step| trace.note("step", &[step]));
            match seed {
                3 => return Err(Failure::new("three is unlucky")),
                4 => panic!("four is worse"),
                5 => trace.note("run", &[self.runs]),
                _ => {}
            }
            let mut report = Report::default();
            report.count("steps", steps);
            Ok(report)
        }
    }

    #[test]
    fn a_failure_names_the_command_that_repeats_it() {
        let mut seen = Vec::new();
        let failed =
            run_seeds(&mut Troubled { runs: 0 }, 0..9, 7, |passed| seen.push(passed.seed)).unwrap_err();
        assert_eq!(seen, [0, 1, 2]);
        let text = failed.to_string();
        for part in ["three is unlucky", "outboard sim troubled --seed 3 --steps 7", "step 6"] {
            assert!(text.contains(part), "{part:?} in {text}");
        }
        assert!(text.contains(&format!("{:016x}", failed.hash)));
    }

    #[test]
    fn a_panic_is_a_failure_too() {
        let failed = run_seed(&mut Troubled { runs: 0 }, 4, 1).unwrap_err();
        assert!(failed.to_string().contains("panic: four is worse"));
    }

    #[test]
    fn runs_that_differ_are_found() {
        assert!(check_determinism(&mut Troubled { runs: 0 }, 1, 3).is_ok());
        let failed = check_determinism(&mut Troubled { runs: 0 }, 5, 3).unwrap_err();
        assert!(failed.failure.what.contains("two runs of one seed differ"));
    }

    #[test]
    fn counts_are_summed() {
        let report = run_seeds(&mut Troubled { runs: 0 }, 0..3, 10, |_| {}).unwrap();
        assert_eq!((report.get("steps"), report.get("nothing")), (30, 0));
    }
}
