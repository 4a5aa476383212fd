//! `outboard sim`: seeded simulation. The same seed and steps do the same, whatever the machine does.
//!
//! A new scenario is a value that implements [`Scenario`], and a line in [`SCENARIOS`].
//!
//! A seed is a number, or a commit that stands for one: so a campaign on a commit runs seeds that none has run before, and its
//! failures can be repeated by anybody.

mod campaign;
mod seeds;

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroU32;

use serde::Serialize;

use crate::spelling::nearest;
use campaign::Outcome;
pub use seeds::Seeds;
use seeds::{parse_seed, parse_seeds};

use crate::terminal::{GOOD, say, styled, table};

/// All scenarios, in the order in which they are listed.
pub const SCENARIOS: &[&dyn Scenario] = &[
    &Simulated {
        name: "ring",
        about: "host threads and a card pass messages through a group until one of them dies, again and again",
        steps: 5_000,
        make: || Box::new(ob_sim::ring::RingScenario),
    },
    &Simulated {
        name: "link",
        about: "hosts on links that are cut, while hosts and card die and come back",
        steps: 5_000,
        make: || Box::new(ob_sim::link::LinkScenario),
    },
    &Simulated {
        name: "files",
        about: "hosts read, write, rename and remove files while the card dies and power is lost, beside a model",
        steps: 1_000,
        make: || Box::new(ob_scenarios::files::FilesScenario),
    },
    &Simulated {
        name: "nvme",
        about: "hosts share a namespace while connections are cut, hosts come back and the card dies, beside a model",
        steps: 1_500,
        make: || Box::new(ob_scenarios::nvme::NvmeScenario),
    },
    &Simulated {
        name: "kv",
        about: "clients use a store cut between card and host while both die; their histories must be linearizable",
        steps: 150,
        make: || Box::new(ob_scenarios::kv::KvScenario),
    },
];

/// A scenario of the simulator.
struct Simulated {
    name: &'static str,
    about: &'static str,
    steps: u64,
    make: fn() -> Box<dyn ob_sim::Scenario>,
}

impl Scenario for Simulated {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn steps_default(&self) -> u64 {
        self.steps
    }

    fn run(&self, seed: u64, steps: u64, lines: usize) -> Result<SimReport, SimFailure> {
        let mut trace = ob_sim::Trace::new(ob_sim::SimClock::new());
        trace.keep_lines(lines);
        match ob_sim::run_traced((self.make)().as_mut(), seed, steps, &mut trace) {
            Ok(passed) => {
                let counts = passed.report.counts.into_iter().map(|(name, count)| (name.to_owned(), count));
                Ok(SimReport { digest: passed.hash, counts: counts.collect() })
            }
            Err(failed) => Err(SimFailure { step: None, message: failed.failure.what, trace: failed.lines }),
        }
    }
}

/// One scenario: a system, a load and faults, all drawn from a seed.
pub trait Scenario: Sync {
    /// What to type.
    fn name(&self) -> &'static str;

    /// What is simulated, in one line.
    fn about(&self) -> &'static str;

    /// How many steps make a run worth its while.
    fn steps_default(&self) -> u64;

    /// Runs one seed. It may panic to fail: that is reported like a failure, and can be repeated like one. Of the last events a
    /// failure tells so many `lines` at most.
    fn run(&self, seed: u64, steps: u64, lines: usize) -> Result<SimReport, SimFailure>;
}

/// What a run did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SimReport {
    /// A digest of everything that happened: equal for equal seeds, or the simulation is not deterministic.
    pub digest: u64,
    /// How often what happened, by name: faults injected, operations done.
    pub counts: BTreeMap<String, u64>,
}

/// What went wrong in a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{message}")]
pub struct SimFailure {
    /// At which step, if it is known.
    pub step: Option<u64>,
    /// What was expected, and what was seen.
    pub message: String,
    /// The last things that happened before, oldest first.
    pub trace: Vec<String>,
}

/// Events that can be asked for: what most runs have altogether, and some hundred megabytes at most. A campaign would keep them for
/// each seed that fails, so only one seed can be asked for them.
const TRACE_MAX: i64 = 1_000_000;

/// The command line of `outboard sim`.
#[derive(Clone, Debug, clap::Args)]
pub struct SimOptions {
    /// Which scenario; without it, they are listed
    #[arg(value_name = "NAME")]
    pub what: Option<String>,
    /// The seed: the same seed does the same again. A commit (40 hexadecimal digits) stands for one
    #[arg(long, value_name = "N|COMMIT", value_parser = parse_seed, conflicts_with = "seeds")]
    pub seed: Option<Seeds>,
    /// Many seeds: from A up to but without B, or N of them from a number or commit on
    #[arg(long, value_name = "A..B|COMMIT+N", value_parser = parse_seeds)]
    pub seeds: Option<Seeds>,
    /// Run all seeds, also after one has failed, and list those that failed at the end
    #[arg(long)]
    pub keep_going: bool,
    /// Run so many seeds at once, each on a thread of its own
    #[arg(long, value_name = "N", default_value = "1")]
    pub jobs: NonZeroU32,
    /// How many steps to run; each scenario has a default
    #[arg(long, value_name = "N")]
    pub steps: Option<u64>,
    /// Show so many of the last events if the seed fails
    #[arg(long, value_name = "N", default_value_t = ob_sim::Trace::LINES_KEPT, conflicts_with = "seeds")]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=TRACE_MAX))]
    pub trace: u32,
    /// Report as JSON, a line a seed; with --keep-going only those that failed
    #[arg(long)]
    pub json: bool,
}

/// Why a simulation did not end well.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// No scenario of that name.
    #[error("there is no scenario `{name}`\nhint: {hint}")]
    Unknown {
        /// What was typed.
        name: String,
        /// What could have been.
        hint: String,
    },
    /// The command line lacks a seed.
    #[error("a simulation needs a seed\nhint: add --seed N, or --seeds A..B for many")]
    NoSeed,
    /// A run failed. The text has everything that is needed to repeat it.
    #[error("{0}")]
    Failed(Box<FailedRun>),
    /// Some runs failed of a campaign that went on.
    #[error("{0}")]
    Several(Box<FailedRuns>),
    /// Standard output is gone.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
}

/// A run that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FailedRun {
    /// The scenario.
    pub scenario: String,
    /// The commit that the first seed was drawn from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The seed.
    pub seed: u64,
    /// The steps asked for.
    pub steps: u64,
    /// What went wrong.
    pub failure: SimFailure,
    /// What to type to see it again.
    pub repeat: String,
}

impl std::fmt::Display for FailedRun {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "the scenario `{}` failed with seed {}", self.scenario, self.seed)?;
        if let Some(commit) = &self.commit {
            write!(formatter, ", drawn from commit {commit},")?;
        }
        if let Some(step) = self.failure.step {
            write!(formatter, " at step {step}")?;
        }
        write!(formatter, ": {}", self.failure.message)?;
        for line in &self.failure.trace {
            write!(formatter, "\n  {line}")?;
        }
        write!(formatter, "\nrepeat it with: {}", self.repeat)
    }
}

/// What failed in a campaign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedRuns {
    /// Seeds that were run.
    pub ran: u64,
    /// Those that failed, in order: one at least.
    pub failed: Vec<FailedRun>,
}

impl std::fmt::Display for FailedRuns {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // What fails often is told by its first seeds.
        const SHOWN_MAX: usize = 50;
        let Some(first) = self.failed.first() else { return Ok(()) };
        let (count, ran) = (self.failed.len(), self.ran);
        write!(formatter, "the scenario `{}` failed with {count} of {ran} seeds", first.scenario)?;
        if let Some(commit) = &first.commit {
            write!(formatter, ", drawn from commit {commit}")?;
        }
        for failed in self.failed.iter().take(SHOWN_MAX) {
            let message = failed.failure.message.lines().next().unwrap_or_default();
            write!(formatter, "\n  seed {}: {message}", failed.seed)?;
        }
        if count > SHOWN_MAX {
            write!(formatter, "\n  and {} more", count - SHOWN_MAX)?;
        }
        write!(formatter, "\nrepeat the first with: {}", first.repeat)
    }
}

/// Runs what the options ask for, out of the given scenarios. Stops at the first seed that fails, unless it is to keep going.
pub fn run(scenarios: &[&dyn Scenario], options: &SimOptions) -> Result<(), SimError> {
    let Some(name) = &options.what else {
        return list(scenarios).map_err(SimError::Output);
    };
    let Some(scenario) = scenarios.iter().find(|scenario| scenario.name() == name) else {
        return Err(SimError::Unknown { name: name.clone(), hint: hint(scenarios, name) });
    };
    let seeds = options.seed.as_ref().or(options.seeds.as_ref()).ok_or(SimError::NoSeed)?;
    let steps = options.steps.unwrap_or_else(|| scenario.steps_default());
    let outcome = campaign::run(*scenario, seeds, steps, options)?;
    finish(*scenario, seeds, steps, options, outcome)
}

fn finish(
    scenario: &dyn Scenario,
    seeds: &Seeds,
    steps: u64,
    options: &SimOptions,
    outcome: Outcome,
) -> Result<(), SimError> {
    let Outcome { ran, totals, digest, failed } = outcome;
    if !failed.is_empty() && options.keep_going {
        return Err(SimError::Several(Box::new(FailedRuns { ran, failed })));
    }
    if let Some(first) = failed.into_iter().next() {
        return Err(SimError::Failed(Box::new(first)));
    }
    if options.json {
        return Ok(());
    }
    let (first, last) = (seeds.first, seeds.last());
    let hash = if first == last { format!("\ntrace hash {digest:016x}") } else { String::new() };
    Ok(say(&(summary(scenario, first, last, steps, &totals) + &hash))?)
}

fn summary(
    scenario: &dyn Scenario,
    first: u64,
    last: u64,
    steps: u64,
    totals: &BTreeMap<String, u64>,
) -> String {
    let seeds = if first == last { format!("seed {first}") } else { format!("seeds {first} to {last}") };
    let each = if first == last { "" } else { " each" };
    let head = format!("{}: {}, {steps} steps{each}: {}", scenario.name(), seeds, styled(GOOD, "ok"));
    if totals.is_empty() {
        return head;
    }
    let rows: Vec<_> = totals.iter().map(|(name, count)| vec![name.clone(), count.to_string()]).collect();
    format!("{head}\n{}", table(&["what happened", "times"], &rows))
}

fn list(scenarios: &[&dyn Scenario]) -> io::Result<()> {
    if scenarios.is_empty() {
        return say("There are no scenarios yet.");
    }
    let rows: Vec<_> = scenarios
        .iter()
        .map(|scenario| vec![scenario.name().to_owned(), scenario.about().to_owned()])
        .collect();
    say(&table(&["scenario", "simulates"], &rows))
}

fn hint(scenarios: &[&dyn Scenario], typed: &str) -> String {
    match nearest(typed, scenarios.iter().map(|scenario| scenario.name())) {
        Some(name) => format!("did you mean `{name}`?"),
        None => "`outboard sim` lists them".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct FailsFrom(u64);

    impl Scenario for FailsFrom {
        fn name(&self) -> &'static str {
            "fails"
        }

        fn about(&self) -> &'static str {
            "a failure from some seed on"
        }

        fn steps_default(&self) -> u64 {
            10
        }

        fn run(&self, seed: u64, steps: u64, lines: usize) -> Result<SimReport, SimFailure> {
            assert!(steps != 13, "unlucky");
            if seed < self.0 {
                return Ok(SimReport { digest: seed, counts: BTreeMap::from([("runs".to_owned(), 1)]) });
            }
            let trace = vec!["the host died".to_owned(); lines];
            Err(SimFailure { step: Some(3), message: "lost a write".to_owned(), trace })
        }
    }

    fn options(seed: Option<&str>, seeds: Option<&str>, steps: Option<u64>) -> SimOptions {
        SimOptions {
            what: Some("fails".to_owned()),
            seed: seed.map(|text| parse_seed(text).unwrap()),
            seeds: seeds.map(|text| parse_seeds(text).unwrap()),
            keep_going: false,
            jobs: NonZeroU32::MIN,
            steps,
            trace: 1,
            json: false,
        }
    }

    #[test]
    fn a_failure_tells_how_to_repeat_it() {
        run(&[&FailsFrom(5)], &options(Some("4"), None, None)).unwrap();
        run(&[&FailsFrom(5)], &options(None, Some("0..5"), None)).unwrap();
        let error = run(&[&FailsFrom(5)], &options(None, Some("0..100"), Some(20))).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the scenario `fails` failed with seed 5 at step 3: lost a write\n  the host died\n\
             repeat it with: outboard sim fails --seed 5 --steps 20"
        );
    }

    #[test]
    fn as_many_events_are_shown_as_were_asked_for() {
        let shown = |trace: u32| {
            let options = SimOptions { trace, ..options(Some("6"), None, None) };
            run(&[&FailsFrom(5)], &options).unwrap_err().to_string().matches("the host died").count()
        };
        assert_eq!([shown(0), shown(1), shown(3)], [0, 1, 3]);
    }

    #[test]
    fn a_panic_is_a_failure_like_any_other() {
        let error = run(&[&FailsFrom(5)], &options(Some("1"), None, Some(13))).unwrap_err();
        assert!(error.to_string().contains("panic: unlucky"), "{error}");
        assert!(error.to_string().ends_with("outboard sim fails --seed 1 --steps 13"), "{error}");
    }

    #[test]
    fn a_seed_is_needed_and_ranges_are_checked() {
        assert!(matches!(run(&[&FailsFrom(5)], &options(None, None, None)), Err(SimError::NoSeed)));
    }

    #[test]
    fn a_failure_names_the_commit_that_its_seed_was_drawn_from() {
        let commit = "38d19e3c0ffee0000000000000000000deadbeef";
        let error = run(&[&FailsFrom(5)], &options(Some(commit), None, Some(20))).unwrap_err();
        let seed = 0x038d_19e3_c0ff_ee00_u64;
        assert!(error.to_string().contains(&format!("drawn from commit {commit}, at step 3")), "{error}");
        assert!(
            error.to_string().ends_with(&format!("outboard sim fails --seed {seed} --steps 20")),
            "{error}"
        );
    }

    #[test]
    fn a_campaign_that_keeps_going_lists_what_failed_in_order() {
        let mut options = options(None, Some("0..9"), Some(20));
        (options.keep_going, options.jobs) = (true, NonZeroU32::new(3).unwrap());
        let error = run(&[&FailsFrom(6)], &options).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the scenario `fails` failed with 3 of 9 seeds\n  seed 6: lost a write\n  seed 7: lost a write\n  \
             seed 8: lost a write\nrepeat the first with: outboard sim fails --seed 6 --steps 20"
        );
    }

    #[test]
    fn several_threads_run_every_seed_once() {
        let mut options = options(None, Some("0..1000"), None);
        options.jobs = NonZeroU32::new(4).unwrap();
        let seeds = options.seeds.clone().unwrap();
        let outcome = campaign::run(&FailsFrom(2000), &seeds, 10, &options).unwrap();
        assert_eq!((outcome.ran, outcome.totals.get("runs")), (1000, Some(&1000)));
        assert!(outcome.failed.is_empty());
    }
}
