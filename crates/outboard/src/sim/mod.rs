//! `outboard sim`: seeded simulation. The same seed and steps do the same, whatever the machine does.
//!
//! A new scenario is a value that implements [`Scenario`], and a line in [`SCENARIOS`].

use std::collections::BTreeMap;
use std::io;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::spelling::nearest;
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
        steps: 400,
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

    fn run(&self, seed: u64, steps: u64) -> Result<SimReport, SimFailure> {
        match ob_sim::run_seed((self.make)().as_mut(), seed, steps) {
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

    /// Runs one seed. It may panic to fail: that is reported like a failure, and can be repeated like one.
    fn run(&self, seed: u64, steps: u64) -> Result<SimReport, SimFailure>;
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

/// The command line of `outboard sim`.
#[derive(Clone, Debug, clap::Args)]
pub struct SimOptions {
    /// Which scenario; without it, they are listed
    #[arg(value_name = "NAME")]
    pub what: Option<String>,
    /// The seed: the same seed does the same again
    #[arg(long, value_name = "N", conflicts_with = "seeds")]
    pub seed: Option<u64>,
    /// Many seeds, from A up to but without B
    #[arg(long, value_name = "A..B", value_parser = parse_seeds)]
    pub seeds: Option<RangeInclusive<u64>>,
    /// How many steps to run; each scenario has a default
    #[arg(long, value_name = "N")]
    pub steps: Option<u64>,
    /// Report as JSON
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
    /// Standard output is gone.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
}

/// A run that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FailedRun {
    /// The scenario.
    pub scenario: String,
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

/// Runs what the options ask for, out of the given scenarios. Stops at the first seed that fails.
pub fn run(scenarios: &[&dyn Scenario], options: &SimOptions) -> Result<(), SimError> {
    let Some(name) = &options.what else {
        return list(scenarios).map_err(SimError::Output);
    };
    let Some(scenario) = scenarios.iter().find(|scenario| scenario.name() == name) else {
        return Err(SimError::Unknown { name: name.clone(), hint: hint(scenarios, name) });
    };
    let seeds = match (options.seed, &options.seeds) {
        (Some(seed), _) => seed..=seed,
        (None, Some(seeds)) => seeds.clone(),
        (None, None) => return Err(SimError::NoSeed),
    };
    run_seeds(*scenario, seeds, options)
}

fn run_seeds(
    scenario: &dyn Scenario,
    seeds: RangeInclusive<u64>,
    options: &SimOptions,
) -> Result<(), SimError> {
    let steps = options.steps.unwrap_or_else(|| scenario.steps_default());
    let (first, last) = (*seeds.start(), *seeds.end());
    let progress = progress_bar(scenario.name(), (last - first).saturating_add(1));
    let mut totals: BTreeMap<String, u64> = BTreeMap::new();
    let mut digest = 0;
    for seed in seeds {
        let report = match run_one(scenario, seed, steps) {
            Ok(report) => report,
            Err(failed) => {
                progress.finish_and_clear();
                if options.json {
                    say(&serde_json::to_string(&failed).map_err(io::Error::from)?)?;
                }
                return Err(SimError::Failed(failed));
            }
        };
        if options.json {
            let line = serde_json::json!({
                "scenario": scenario.name(), "seed": seed, "steps": steps, "report": report,
            });
            progress.suspend(|| say(&line.to_string()))?;
        }
        digest = report.digest;
        for (name, count) in report.counts {
            *totals.entry(name).or_default() += count;
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    if options.json {
        return Ok(());
    }
    let hash = if first == last { format!("\ntrace hash {digest:016x}") } else { String::new() };
    Ok(say(&(summary(scenario, first, last, steps, &totals) + &hash))?)
}

fn run_one(scenario: &dyn Scenario, seed: u64, steps: u64) -> Result<SimReport, Box<FailedRun>> {
    let outcome = catch_unwind(AssertUnwindSafe(|| scenario.run(seed, steps)));
    let failure = match outcome {
        Ok(Ok(report)) => return Ok(report),
        Ok(Err(failure)) => failure,
        Err(panic) => SimFailure { step: None, message: panic_message(panic.as_ref()), trace: Vec::new() },
    };
    let repeat = format!("outboard sim {} --seed {seed} --steps {steps}", scenario.name());
    Err(Box::new(FailedRun { scenario: scenario.name().to_owned(), seed, steps, failure, repeat }))
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
    format!("panic: {}", text.unwrap_or("without a message"))
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

/// Reads `A..B`, which must not be empty.
fn parse_seeds(text: &str) -> Result<RangeInclusive<u64>, String> {
    let form = "write two numbers with two dots between them, such as 0..1000";
    let (first, end) = text.split_once("..").ok_or(form)?;
    let first: u64 = first.parse().map_err(|_| form)?;
    let end: u64 = end.parse().map_err(|_| form)?;
    if end <= first {
        return Err(format!("{first}..{end} holds no seed: the first number must be the smaller"));
    }
    Ok(first..=end - 1)
}

fn progress_bar(name: &'static str, seeds: u64) -> ProgressBar {
    let bar = ProgressBar::new(seeds).with_message(name);
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} seeds {eta}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
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

        fn run(&self, seed: u64, steps: u64) -> Result<SimReport, SimFailure> {
            assert!(steps != 13, "unlucky");
            if seed < self.0 {
                return Ok(SimReport { digest: seed, counts: BTreeMap::from([("runs".to_owned(), 1)]) });
            }
            let trace = vec!["the host died".to_owned()];
            Err(SimFailure { step: Some(3), message: "lost a write".to_owned(), trace })
        }
    }

    fn options(seed: Option<u64>, seeds: Option<&str>, steps: Option<u64>) -> SimOptions {
        let seeds = seeds.map(|text| parse_seeds(text).unwrap());
        SimOptions { what: Some("fails".to_owned()), seed, seeds, steps, json: false }
    }

    #[test]
    fn a_failure_tells_how_to_repeat_it() {
        run(&[&FailsFrom(5)], &options(Some(4), None, None)).unwrap();
        run(&[&FailsFrom(5)], &options(None, Some("0..5"), None)).unwrap();
        let error = run(&[&FailsFrom(5)], &options(None, Some("0..100"), Some(20))).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the scenario `fails` failed with seed 5 at step 3: lost a write\n  the host died\n\
             repeat it with: outboard sim fails --seed 5 --steps 20"
        );
    }

    #[test]
    fn a_panic_is_a_failure_like_any_other() {
        let error = run(&[&FailsFrom(5)], &options(Some(1), None, Some(13))).unwrap_err();
        assert!(error.to_string().contains("panic: unlucky"), "{error}");
        assert!(error.to_string().ends_with("outboard sim fails --seed 1 --steps 13"), "{error}");
    }

    #[test]
    fn a_seed_is_needed_and_ranges_are_checked() {
        assert!(matches!(run(&[&FailsFrom(5)], &options(None, None, None)), Err(SimError::NoSeed)));
        assert_eq!(parse_seeds("3..5"), Ok(3..=4));
        for text in ["", "5", "5..5", "6..5", "a..b", "1...3", "..", "-1..4"] {
            assert!(parse_seeds(text).is_err(), "{text}");
        }
    }
}
