//! `outboard bench bpf`: what calling a program costs, against the same search in other hands.
//!
//! ```text
//!   workload: data, 512 queries ──┬─▶ native_rust, compiled, compiled_checked, interpreter     in this process
//!                                 └─▶ native_c, rbpf, wasmtime, wasmtime_fuel                  --peers, in another one
//! ```
//!
//! All contenders give the same results, which is looked at first. Then they are measured in turn, round by round, on one core, in processor
//! time. What is outside of the product (a C compiler's work, other runtimes) is in `bench/programs`, which nothing else is built with.

mod contenders;
mod longest;
mod native;
mod peers;
mod workload;

use std::collections::BTreeMap;
use std::time::Duration;

use super::cores::{card_core, pin};
use super::turns::by_turns;
use super::{Bench, BenchFailure, Case, CpuPerOperation, Report, Setting};
use contenders::{Contenders, OWN};
use peers::{Peer, Peers};
use workload::{QUERIES, Workload};

/// The benchmark.
#[derive(Debug)]
pub struct BpfBench;

struct Plan {
    rounds: u64,
    /// How long a contender is at it in a round, about; one lap at least.
    time: Duration,
    /// Calls of each program that goes on until its fuel is spent.
    longest: usize,
}

const FULL: Plan = Plan { rounds: 41, time: Duration::from_millis(2), longest: 201 };
const QUICK: Plan = Plan { rounds: 3, time: Duration::from_micros(200), longest: 3 };

/// What `cargo xtask peers` calls the program.
const PROGRAM: &str = "program-peers";
/// What is said where peers are missing.
const HOW_TO_BUILD_PEERS: &str = "native_c, rbpf, wasmtime and wasmtime_fuel are not measured: build them with `cargo xtask peers`, and give its folder with --peers";

impl Bench for BpfBench {
    fn name(&self) -> &'static str {
        "bpf"
    }

    fn about(&self) -> &'static str {
        "calls of programs on the card, compiled and interpreted, against native code and other runtimes"
    }

    fn run(&self, setting: &Setting<'_>) -> Result<Report, BenchFailure> {
        let plan = if setting.quick { &QUICK } else { &FULL };
        let workloads = workload::all();
        setting.progress.set_length(workloads.len() as u64);
        let before = pin(card_core()?)?;
        let outcome = measure_all(&workloads, plan, setting);
        rustix::thread::sched_setaffinity(None, &before)?;
        outcome
    }
}

fn measure_all(workloads: &[Workload], plan: &Plan, setting: &Setting<'_>) -> Result<Report, BenchFailure> {
    let mut peers = setting.peer(PROGRAM).map(|program| Peers::start(&program)).transpose()?;
    if peers.is_none() {
        setting.progress.suspend(|| eprintln!("note: {HOW_TO_BUILD_PEERS}"));
    }
    let (mut cases, mut ratios) = (Vec::new(), BTreeMap::new());
    for workload in workloads {
        let contenders = Contenders::new(workload)?;
        let names = agreeing(workload, &contenders, peers.as_mut(), setting)?;
        let mut field = Field { workload, contenders: &contenders, peers: peers.as_mut() };
        cases.extend(field.compare(&names, plan, setting)?);
        if !workload.object.is_empty() {
            let share = contenders.checks_elided(workload);
            ratios.insert(format!("checks_elided_share.{}", workload.name), share);
        }
    }
    ratios.extend(ratios_of(&cases, workloads));
    let longest = longest::calls(plan.longest)?.into_iter();
    ratios.extend(longest.map(|(name, us)| (format!("longest_call_us.{name}"), us)));
    Ok(Report { bench: "bpf".to_owned(), cases, ratios })
}

/// All contenders that can be measured, which give the same results.
fn agreeing(
    workload: &Workload,
    contenders: &Contenders,
    peers: Option<&mut Peers>,
    setting: &Setting<'_>,
) -> Result<Vec<String>, BenchFailure> {
    let own = OWN.map(|name| (name.to_owned(), contenders.digest(name, workload)));
    let mut all = own.to_vec();
    for peer in peers.map_or(Ok(Vec::new()), |peers| peers.take_up(workload))? {
        match peer {
            Peer::Ready { name, digest } => all.push((name, digest)),
            Peer::Absent { name, why } => {
                let text = format!("note: {name}.{} is not measured: {why}", workload.name);
                setting.progress.suspend(|| eprintln!("{text}"));
            }
        }
    }
    let expected = all.first().map(|(_, digest)| *digest);
    if let Some((name, _)) = all.iter().find(|(_, digest)| Some(*digest) != expected) {
        return Err(format!("{name} and {} differ in what they make of {}", OWN[0], workload.name).into());
    }
    Ok(all.into_iter().map(|(name, _)| name).collect())
}

/// Who is measured with a workload.
struct Field<'a> {
    workload: &'a Workload,
    contenders: &'a Contenders,
    peers: Option<&'a mut Peers>,
}

impl Field<'_> {
    fn measure(&mut self, name: &str, laps: u32) -> Result<Duration, BenchFailure> {
        match &mut self.peers {
            Some(peers) if !OWN.contains(&name) => peers.measure(name, laps),
            _ => Ok(self.contenders.measure(name, self.workload, laps)),
        }
    }

    /// All of them, round by round in turn.
    fn compare(
        &mut self,
        names: &[String],
        plan: &Plan,
        setting: &Setting<'_>,
    ) -> Result<Vec<Case>, BenchFailure> {
        setting.progress.set_message(self.workload.name);
        let mut contenders = Vec::with_capacity(names.len());
        for name in names {
            // The first lap is slow: nothing is in a cache.
            self.measure(name, 1)?;
            let one = self.measure(name, 1)?.max(Duration::from_nanos(1));
            let fitting = plan.time.as_nanos() / one.as_nanos();
            contenders.push((name, u32::try_from(fitting).unwrap_or(u32::MAX).max(1)));
        }
        let rounds = by_turns(plan.rounds, &mut contenders, |(name, laps), _| {
            let took = self.measure(name, *laps)?;
            Ok(Some(took.as_nanos() as f64 / (f64::from(*laps) * QUERIES as f64)))
        })?;
        setting.progress.inc(1);
        let cases = names.iter().zip(rounds);
        Ok(cases.map(|(name, rounds)| case(&case_name(name, self.workload.name), rounds)).collect())
    }
}

fn case_name(contender: &str, workload: &str) -> String {
    format!("{contender}.{workload}")
}

/// The figures of a contender: the best round, which the machine has disturbed least, and how the others were.
fn case(name: &str, mut nanoseconds: Vec<f64>) -> Case {
    nanoseconds.sort_by(f64::total_cmp);
    let at = |part: f64| {
        let place = (part * nanoseconds.len() as f64) as usize;
        nanoseconds.get(place.min(nanoseconds.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
    };
    let (best, median) = (at(0.0), at(0.5));
    Case {
        case: name.to_owned(),
        ops_per_s: 1e9 / best,
        p50_us: median / 1e3,
        p99_us: at(0.99) / 1e3,
        p999_us: at(0.999) / 1e3,
        cpu: CpuPerOperation { client_cpu_us: Some(best / 1e3), ..CpuPerOperation::default() },
        extra: BTreeMap::from([("best_ns".to_owned(), best), ("median_ns".to_owned(), median)]),
    }
}

/// Compiled code by each of the others, in time: below 1 it is faster.
fn ratios_of(cases: &[Case], workloads: &[Workload]) -> BTreeMap<String, f64> {
    let best = |contender: &str, workload: &Workload| {
        let name = case_name(contender, workload.name);
        cases.iter().find(|case| case.case == name).and_then(|case| case.extra.get("best_ns").copied())
    };
    let mut ratios = BTreeMap::new();
    for workload in workloads {
        let Some(compiled) = best("compiled", workload) else { continue };
        if workload.object.is_empty() {
            ratios.insert("entry_ns".to_owned(), compiled);
            continue;
        }
        for other in [
            "native_c",
            "native_rust",
            "compiled_checked",
            "interpreter",
            "rbpf",
            "wasmtime",
            "wasmtime_fuel",
        ] {
            if let Some(other_best) = best(other, workload) {
                ratios.insert(format!("compiled_vs_{other}.{}", workload.name), compiled / other_best);
            }
        }
    }
    ratios
}

#[cfg(test)]
mod tests;
