//! Many seeds, on several threads, until one fails or all were run.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use ob_sim::{Passed, Report, SimClock, Trace, run_traced};

use super::seeds::Seeds;
use super::{FailedRun, SimOptions, Simulated};
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
    pub(super) totals: Report,
    /// The hash of the last that passed.
    pub(super) hash: u64,
    /// Those that failed, by seed.
    pub(super) failed: Vec<FailedRun>,
}

/// Runs all seeds, or all up to the first that fails.
pub(super) fn run(
    scenario: &Simulated,
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
            outcome: Outcome { ran: 0, totals: Report::default(), hash: 0, failed: Vec::new() },
            said_at: Instant::now(),
            output: Ok(()),
        }),
        progress: progress_bar(scenario.name, seeds.count),
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
    outcome.failed.sort_by_key(|run| run.failed.seed);
    Ok(outcome)
}

struct Campaign<'a> {
    scenario: &'a Simulated,
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
            self.note(self.run_one(seed));
        }
    }

    fn run_one(&self, seed: u64) -> Result<Passed, Box<FailedRun>> {
        let mut trace = Trace::new(SimClock::new());
        trace.keep_lines(self.options.trace as usize);
        let result = run_traced((self.scenario.make)().as_mut(), seed, self.steps, &mut trace);
        result.map_err(|failed| Box::new(FailedRun { commit: self.seeds.commit.clone(), failed: *failed }))
    }

    fn note(&self, result: Result<Passed, Box<FailedRun>>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.outcome.ran += 1;
        if self.options.json {
            let said = self.line(&result).map_or(Ok(()), |line| self.progress.suspend(|| say(&line)));
            self.is_over.fetch_or(said.is_err(), Ordering::Relaxed);
            state.output = std::mem::replace(&mut state.output, Ok(())).and(said);
        }
        match result {
            Ok(passed) => {
                state.outcome.hash = passed.hash;
                state.outcome.totals.merge(&passed.report);
            }
            Err(mut run) => {
                self.is_over.fetch_or(!self.options.keep_going, Ordering::Relaxed);
                if state.outcome.failed.len() >= TRACES_MAX {
                    run.failed.lines = Vec::new();
                }
                state.outcome.failed.push(*run);
            }
        }
        self.progress.inc(1);
        self.say_how_far(&mut state);
    }

    /// What a seed came to, for programs. A campaign that keeps going tells of what failed alone.
    fn line(&self, result: &Result<Passed, Box<FailedRun>>) -> Option<String> {
        let (scenario, steps) = (self.scenario.name, self.steps);
        let line = match result {
            Ok(_) if self.options.keep_going => return None,
            Ok(Passed { seed, hash, report, .. }) => serde_json::json!({
                "scenario": scenario, "seed": seed, "steps": steps,
                "report": { "digest": hash, "counts": report.counts },
            }),
            Err(run) => serde_json::json!({
                "scenario": scenario, "commit": run.commit, "seed": run.failed.seed, "steps": steps,
                "failure": { "message": run.failed.failure.what, "trace": run.failed.lines },
                "repeat": run.failed.command(),
            }),
        };
        Some(line.to_string())
    }

    /// Where there is no terminal, a line now and then tells that the run goes on.
    fn say_how_far(&self, state: &mut State) {
        if self.progress.is_hidden() && state.said_at.elapsed() >= SAID_EVERY {
            state.said_at = Instant::now();
            let (ran, failed) = (state.outcome.ran, state.outcome.failed.len());
            let (name, all) = (self.scenario.name, counted(self.seeds.count, "seed", "seeds"));
            warn(&format!("{name}: {ran} of {all} run, {failed} failed"));
        }
    }
}

fn progress_bar(name: &'static str, seeds: u64) -> ProgressBar {
    let bar = ProgressBar::new(seeds).with_message(name);
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} seeds {eta}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
