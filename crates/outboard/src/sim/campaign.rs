//! Many seeds, on several threads, until one fails or all were run.

use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::seeds::Seeds;
use super::{FailedRun, Scenario, SimFailure, SimOptions, SimReport};
use crate::terminal::{counted, say, warn};

/// How often a run that nobody watches on a terminal says how far it is.
const SAID_EVERY: Duration = Duration::from_secs(30);
/// Failures of which the last events are kept; of the others their seed tells as much.
const TRACES_MAX: usize = 20;

/// What many seeds came to.
pub(super) struct Outcome {
    /// Seeds that were run.
    pub(super) ran: u64,
    /// What happened how often in those that passed.
    pub(super) totals: BTreeMap<String, u64>,
    /// The digest of the last that passed.
    pub(super) digest: u64,
    /// Those that failed, by seed.
    pub(super) failed: Vec<FailedRun>,
}

/// Runs all seeds, or all up to the first that fails.
pub(super) fn run(
    scenario: &dyn Scenario,
    seeds: &Seeds,
    steps: u64,
    options: &SimOptions,
) -> io::Result<Outcome> {
    let campaign = Campaign {
        scenario,
        seeds,
        steps,
        options,
        next: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
        state: Mutex::new(State {
            outcome: Outcome { ran: 0, totals: BTreeMap::new(), digest: 0, failed: Vec::new() },
            said_at: Instant::now(),
            output: Ok(()),
        }),
        progress: progress_bar(scenario.name(), seeds.count),
    };
    let jobs = u64::from(options.jobs.get()).min(seeds.count);
    thread::scope(|scope| {
        for _ in 1..jobs {
            scope.spawn(|| campaign.work());
        }
        campaign.work();
    });
    campaign.progress.finish_and_clear();
    let state = campaign.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    state.output?;
    let mut outcome = state.outcome;
    outcome.failed.sort_by_key(|failed| failed.seed);
    Ok(outcome)
}

struct Campaign<'a> {
    scenario: &'a dyn Scenario,
    seeds: &'a Seeds,
    steps: u64,
    options: &'a SimOptions,
    /// The seed that is to be run next, counted from the first.
    next: AtomicU64,
    is_over: AtomicBool,
    state: Mutex<State>,
    progress: ProgressBar,
}

struct State {
    outcome: Outcome,
    said_at: Instant,
    output: io::Result<()>,
}

impl Campaign<'_> {
    /// Runs seeds as long as there are any.
    fn work(&self) {
        while !self.is_over.load(Ordering::Relaxed) {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= self.seeds.count {
                return;
            }
            let seed = self.seeds.first.saturating_add(index);
            let result = self.run_one(seed);
            self.note(seed, result);
        }
    }

    fn run_one(&self, seed: u64) -> Result<SimReport, Box<FailedRun>> {
        let lines = self.options.trace as usize;
        let outcome = catch_unwind(AssertUnwindSafe(|| self.scenario.run(seed, self.steps, lines)));
        let failure = match outcome {
            Ok(Ok(report)) => return Ok(report),
            Ok(Err(failure)) => failure,
            Err(panic) => {
                SimFailure { step: None, message: panic_message(panic.as_ref()), trace: Vec::new() }
            }
        };
        let (scenario, steps) = (self.scenario.name().to_owned(), self.steps);
        let repeat = format!("outboard sim {scenario} --seed {seed} --steps {steps}");
        let commit = self.seeds.commit.clone();
        Err(Box::new(FailedRun { scenario, commit, seed, steps, failure, repeat }))
    }

    fn note(&self, seed: u64, result: Result<SimReport, Box<FailedRun>>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.outcome.ran += 1;
        if self.options.json {
            let said = self.line(seed, &result).map_or(Ok(()), |line| self.progress.suspend(|| say(&line)));
            self.is_over.fetch_or(said.is_err(), Ordering::Relaxed);
            state.output = std::mem::replace(&mut state.output, Ok(())).and(said);
        }
        match result {
            Ok(report) => {
                state.outcome.digest = report.digest;
                for (name, count) in report.counts {
                    *state.outcome.totals.entry(name).or_default() += count;
                }
            }
            Err(mut failed) => {
                self.is_over.fetch_or(!self.options.keep_going, Ordering::Relaxed);
                if state.outcome.failed.len() >= TRACES_MAX {
                    failed.failure.trace = Vec::new();
                }
                state.outcome.failed.push(*failed);
            }
        }
        self.progress.inc(1);
        self.say_how_far(&mut state);
    }

    /// What a seed came to, for programs. A campaign that keeps going tells of what failed alone.
    fn line(&self, seed: u64, result: &Result<SimReport, Box<FailedRun>>) -> Option<String> {
        match result {
            Ok(_) if self.options.keep_going => None,
            Ok(report) => {
                let line = serde_json::json!({
                    "scenario": self.scenario.name(), "seed": seed, "steps": self.steps, "report": report,
                });
                Some(line.to_string())
            }
            Err(failed) => serde_json::to_string(failed).ok(),
        }
    }

    /// Where there is no terminal, a line now and then tells that the run goes on.
    fn say_how_far(&self, state: &mut State) {
        if self.progress.is_hidden() && state.said_at.elapsed() >= SAID_EVERY {
            state.said_at = Instant::now();
            let (ran, failed) = (state.outcome.ran, state.outcome.failed.len());
            let (name, all) = (self.scenario.name(), counted(self.seeds.count, "seed", "seeds"));
            warn(&format!("{name}: {ran} of {all} run, {failed} failed"));
        }
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
    format!("panic: {}", text.unwrap_or("without a message"))
}

fn progress_bar(name: &'static str, seeds: u64) -> ProgressBar {
    let bar = ProgressBar::new(seeds).with_message(name);
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} seeds {eta}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
