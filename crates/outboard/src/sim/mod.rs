//! `outboard sim`: seeded simulation. The same seed and steps do the same, whatever the machine does.
//!
//! A new scenario is an [`ob_sim::Scenario`], and a line in [`SCENARIOS`].
//!
//! A seed is a number, or a commit that stands for one: so a campaign on a commit runs seeds that none has run before, and its
//! failures can be repeated by anybody.

mod campaign;
mod seeds;

use std::fmt;
use std::io;
use std::num::NonZeroU32;

use ob_sim::{Failed, Failure, Report};

use crate::spelling::nearest;
use campaign::Outcome;
pub use seeds::Seeds;
use seeds::{parse_seed, parse_seeds};

use crate::terminal::{GOOD, say, styled, table};

/// All scenarios, in the order in which they are listed.
pub const SCENARIOS: &[Simulated] = &[
    Simulated {
        name: "ring",
        about: "host threads and a card pass messages through a group until one of them dies, again and again",
        steps: 5_000,
        make: || Box::new(ob_sim::ring::RingScenario),
    },
    Simulated {
        name: "link",
        about: "hosts on links that are cut, while hosts and card die and come back",
        steps: 5_000,
        make: || Box::new(ob_sim::link::LinkScenario),
    },
    Simulated {
        name: "files",
        about: "hosts read, write, rename and remove files while the card dies and power is lost, beside a model",
        steps: 1_000,
        make: || Box::new(ob_scenarios::files::FilesScenario),
    },
    Simulated {
        name: "nvme",
        about: "hosts share a namespace while connections are cut, hosts come back and the card dies, beside a model",
        steps: 1_500,
        make: || Box::new(ob_scenarios::nvme::NvmeScenario),
    },
    Simulated {
        name: "kv",
        about: "clients use a store cut between card and host while both die; their histories must be linearizable",
        steps: 150,
        make: || Box::new(ob_scenarios::kv::KvScenario),
    },
    Simulated {
        name: "pushdown",
        about: "hosts have chains of reads run on the card while files move and connections are lost, beside a model",
        steps: 1_000,
        make: || Box::new(ob_scenarios::pushdown::PushdownScenario),
    },
    Simulated {
        name: "volumes",
        about: "clients share a disk kept on chunk servers while servers, connections and metadata fail, beside a model",
        steps: 200,
        make: || Box::new(ob_scenarios::volumes::VolumesScenario),
    },
];

/// A scenario of the simulator, as people ask for it.
#[derive(Debug)]
pub struct Simulated {
    /// What to type: the scenario's own name.
    name: &'static str,
    /// What is simulated, in one line.
    about: &'static str,
    /// How many steps make a run worth its while.
    steps: u64,
    make: fn() -> Box<dyn ob_sim::Scenario>,
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
    /// All passed, and have not shown what they should.
    #[error("the scenario `{name}` passed, and has shown too little: {failure}")]
    Blind {
        /// Which one.
        name: &'static str,
        /// What it lacks.
        failure: Failure,
    },
    /// Standard output is gone.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
}

/// A run that failed.
#[derive(Clone, Debug)]
pub struct FailedRun {
    /// The commit that the first seed was drawn from.
    pub commit: Option<String>,
    /// What the simulator says of it.
    pub failed: Failed,
}

impl fmt::Display for FailedRun {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failed { name, seed, failure, lines, .. } = &self.failed;
        write!(formatter, "the scenario `{name}` failed with seed {seed}")?;
        if let Some(commit) = &self.commit {
            write!(formatter, ", drawn from commit {commit}")?;
        }
        write!(formatter, ": {failure}")?;
        for line in lines {
            write!(formatter, "\n  {line}")?;
        }
        write!(formatter, "\nrepeat it with: {}", self.failed.command())
    }
}

/// What failed in a campaign.
#[derive(Clone, Debug)]
pub struct FailedRuns {
    /// Seeds that were run.
    pub ran: u64,
    /// Those that failed, in order: one at least.
    pub failed: Vec<FailedRun>,
}

impl fmt::Display for FailedRuns {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What fails often is told by its first seeds.
        const SHOWN_MAX: usize = 50;
        let Some(first) = self.failed.first() else { return Ok(()) };
        let (count, ran) = (self.failed.len(), self.ran);
        write!(formatter, "the scenario `{}` failed with {count} of {ran} seeds", first.failed.name)?;
        if let Some(commit) = &first.commit {
            write!(formatter, ", drawn from commit {commit}")?;
        }
        for FailedRun { failed, .. } in self.failed.iter().take(SHOWN_MAX) {
            let what = failed.failure.what.lines().next().unwrap_or_default();
            write!(formatter, "\n  seed {}: {what}", failed.seed)?;
        }
        if count > SHOWN_MAX {
            write!(formatter, "\n  and {} more", count - SHOWN_MAX)?;
        }
        write!(formatter, "\nrepeat the first with: {}", first.failed.command())
    }
}

/// Runs what the options ask for, out of the given scenarios. Stops at the first seed that fails, unless it is to keep going.
pub fn run(scenarios: &[Simulated], options: &SimOptions) -> Result<(), SimError> {
    let Some(name) = &options.what else {
        return list(scenarios).map_err(SimError::Output);
    };
    let Some(scenario) = scenarios.iter().find(|scenario| scenario.name == *name) else {
        return Err(SimError::Unknown { name: name.clone(), hint: hint(scenarios, name) });
    };
    let seeds = options.seed.as_ref().or(options.seeds.as_ref()).ok_or(SimError::NoSeed)?;
    let steps = options.steps.unwrap_or(scenario.steps);
    let outcome = campaign::run(scenario, seeds, steps, options)?;
    finish(scenario, seeds, steps, options, outcome)
}

fn finish(
    scenario: &Simulated,
    seeds: &Seeds,
    steps: u64,
    options: &SimOptions,
    outcome: Outcome,
) -> Result<(), SimError> {
    let Outcome { ran, totals, hash, failed } = outcome;
    if !failed.is_empty() && options.keep_going {
        return Err(SimError::Several(Box::new(FailedRuns { ran, failed })));
    }
    if let Some(first) = failed.into_iter().next() {
        return Err(SimError::Failed(Box::new(first)));
    }
    let (first, last) = (seeds.first, seeds.last());
    if !options.json {
        let hash = if first == last { format!("\ntrace hash {hash:016x}") } else { String::new() };
        say(&(summary(scenario, first, last, steps, &totals) + &hash))?;
    }
    if first == last {
        // One seed may be as blind as it likes: it is a campaign that must have seen something.
        return Ok(());
    }
    (scenario.make)().judge(&totals).map_err(|failure| SimError::Blind { name: scenario.name, failure })
}

fn summary(scenario: &Simulated, first: u64, last: u64, steps: u64, totals: &Report) -> String {
    let seeds = if first == last { format!("seed {first}") } else { format!("seeds {first} to {last}") };
    let each = if first == last { "" } else { " each" };
    let head = format!("{}: {}, {steps} steps{each}: {}", scenario.name, seeds, styled(GOOD, "ok"));
    if totals.counts.is_empty() {
        return head;
    }
    let counts = totals.counts.iter();
    let rows: Vec<_> = counts.map(|(name, count)| vec![(*name).to_owned(), count.to_string()]).collect();
    format!("{head}\n{}", table(&["what happened", "times"], &rows))
}

fn list(scenarios: &[Simulated]) -> io::Result<()> {
    let rows: Vec<_> =
        scenarios.iter().map(|scenario| vec![scenario.name.to_owned(), scenario.about.to_owned()]).collect();
    say(&table(&["scenario", "simulates"], &rows))
}

fn hint(scenarios: &[Simulated], typed: &str) -> String {
    match nearest(typed, scenarios.iter().map(|scenario| scenario.name)) {
        Some(name) => format!("did you mean `{name}`?"),
        None => "`outboard sim` lists them".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use ob_sim::Trace;

    use super::*;

    /// What fails from some seed on, and whatever it is with 13 steps.
    struct FailsFrom(u64);

    impl ob_sim::Scenario for FailsFrom {
        fn name(&self) -> &'static str {
            "fails"
        }

        fn run(&mut self, seed: u64, steps: u64, trace: &mut Trace) -> Result<Report, Failure> {
            assert!(steps != 13, "unlucky");
            (0..3).for_each(|_| trace.note("the host died", &[]));
            let mut report = Report::default();
            report.count("runs", 1);
            if seed < self.0 { Ok(report) } else { Err(Failure::new("lost a write")) }
        }

        fn judge(&self, totals: &Report) -> Result<(), Failure> {
            if totals.get("runs") == 3 { Err(Failure::new("three are a crowd")) } else { Ok(()) }
        }
    }

    const FAILS: &[Simulated] = &[fails(|| Box::new(FailsFrom(5)))];

    const fn fails(make: fn() -> Box<dyn ob_sim::Scenario>) -> Simulated {
        Simulated { name: "fails", about: "a failure from some seed on", steps: 10, make }
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
    fn scenarios_are_asked_for_by_their_own_names() {
        for scenario in SCENARIOS {
            assert_eq!(scenario.name, (scenario.make)().name());
        }
    }

    #[test]
    fn a_failure_tells_how_to_repeat_it() {
        run(FAILS, &options(Some("4"), None, None)).unwrap();
        run(FAILS, &options(None, Some("0..5"), None)).unwrap();
        let error = run(FAILS, &options(None, Some("0..100"), Some(20))).unwrap_err().to_string();
        let (head, tail) = error.split_once("the host died").unwrap();
        assert!(head.starts_with("the scenario `fails` failed with seed 5: lost a write\n  "), "{error}");
        assert_eq!(tail.trim_start(), "repeat it with: outboard sim fails --seed 5 --steps 20");
    }

    #[test]
    fn as_many_events_are_shown_as_were_asked_for() {
        let shown = |trace: u32| {
            let options = SimOptions { trace, ..options(Some("6"), None, None) };
            run(FAILS, &options).unwrap_err().to_string().matches("the host died").count()
        };
        assert_eq!([shown(0), shown(1), shown(3)], [0, 1, 3]);
    }

    #[test]
    fn a_panic_is_a_failure_like_any_other() {
        let error = run(FAILS, &options(Some("1"), None, Some(13))).unwrap_err();
        assert!(error.to_string().contains("panic: unlucky"), "{error}");
        assert!(error.to_string().ends_with("outboard sim fails --seed 1 --steps 13"), "{error}");
    }

    #[test]
    fn a_seed_is_needed_and_ranges_are_checked() {
        assert!(matches!(run(FAILS, &options(None, None, None)), Err(SimError::NoSeed)));
    }

    #[test]
    fn a_failure_names_the_commit_that_its_seed_was_drawn_from() {
        let commit = "38d19e3c0ffee0000000000000000000deadbeef";
        let error = run(FAILS, &options(Some(commit), None, Some(20))).unwrap_err();
        let seed = 0x038d_19e3_c0ff_ee00_u64;
        assert!(error.to_string().contains(&format!("drawn from commit {commit}: lost a write")), "{error}");
        assert!(
            error.to_string().ends_with(&format!("outboard sim fails --seed {seed} --steps 20")),
            "{error}"
        );
    }

    #[test]
    fn a_campaign_that_keeps_going_lists_what_failed_in_order() {
        let mut options = options(None, Some("0..8"), Some(20));
        (options.keep_going, options.jobs) = (true, NonZeroU32::new(3).unwrap());
        let error = run(FAILS, &options).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the scenario `fails` failed with 3 of 8 seeds\n  seed 5: lost a write\n  seed 6: lost a write\n  \
             seed 7: lost a write\nrepeat the first with: outboard sim fails --seed 5 --steps 20"
        );
    }

    #[test]
    fn seeds_that_pass_are_judged_altogether() {
        let error = run(FAILS, &options(None, Some("0..3"), None)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the scenario `fails` passed, and has shown too little: three are a crowd"
        );
    }

    #[test]
    fn several_threads_run_every_seed_once() {
        let mut options = options(None, Some("0..1000"), None);
        options.jobs = NonZeroU32::new(4).unwrap();
        let seeds = options.seeds.clone().unwrap();
        let never = fails(|| Box::new(FailsFrom(2000)));
        let outcome = campaign::run(&never, &seeds, 10, &options).unwrap();
        assert_eq!((outcome.ran, outcome.totals.get("runs")), (1000, 1000));
        assert!(outcome.failed.is_empty());
    }
}
