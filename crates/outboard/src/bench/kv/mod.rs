//! `outboard bench kv`: the key-value store with the card against the same store wholly on the host, and Redis beside them.
//!
//! ```text
//!   this process: the client, one core          child processes: a server, another core
//!   ┌───────────────────────────────┐           ┌─────────────────────────────────────────────┐
//!   │ connections, each with several│ ◀─ RESP ─▶│ card ◀─ link ─▶ host   placement = "card"   │
//!   │ questions out; every answer is│           │ host                   placement = "host"   │
//!   │ checked                       │           │ redis-server, if there is one               │
//!   └───────────────────────────────┘           └─────────────────────────────────────────────┘
//! ```
//!
//! All servers are there at once and hold the same, more than the host's memory; one works while the others sleep, round
//! by round in turn. What a server must answer is in `ledger`, and where halves and client are in `Layout`.

pub(in crate::bench) mod client;
mod conversation;
pub(in crate::bench) mod keys;
pub(in crate::bench) mod ledger;
pub(in crate::bench) mod server;

use std::collections::BTreeMap;
use std::time::Duration;

use rustix::thread::sched_setaffinity;

use super::cores::{Layout, pin};
use super::process::Place;
use super::talk::{Pace, Span, case};
use super::turns::by_turns;
use super::{Bench, BenchFailure, Case, Report, Setting};
use crate::bench::hog::{Hog, HogWork};
use client::{Client, Job, What};
use keys::Distribution;
use ledger::Shape;
use server::{Answered, Memory, Server, Who, has_redis};

/// Only cases whose names contain this are measured, for those who want to look closer.
const ONLY_VARIABLE: &str = "OUTBOARD_BENCH_ONLY";
/// The length of values in the cases that ratios are named after without it, and that are measured at a given rate.
const MAIN_LEN: usize = 100;
/// Of what the slower of the two answers at most, what is asked for to see latencies.
const PACED_PART: f64 = 0.5;
/// The same where halves are apart, and the client may have to share its core with one.
const APART_PART: f64 = 0.25;
/// What is asked for where nobody knows how much that is.
const RATE_DEFAULT: f64 = 5000.0;

/// The benchmark.
#[derive(Debug)]
pub struct KvBench;

/// How much is measured.
struct Plan {
    shapes: &'static [Shape],
    memory: Memory,
    connections: usize,
    depth: usize,
    rounds: u64,
    span: Span,
}

const FULL: Plan = Plan {
    shapes: &[
        Shape { keys: 1_000_000, value_len: 8 },
        Shape { keys: 1_000_000, value_len: MAIN_LEN },
        Shape { keys: 300_000, value_len: 1024 },
        Shape { keys: 100_000, value_len: 4096 },
    ],
    // The index takes most of the host's: some 24 bytes a key.
    memory: Memory { host: 40 << 20, table: 128 << 20 },
    connections: 8,
    depth: 16,
    rounds: 5,
    span: Span { warm_up: Duration::from_millis(100), time: Duration::from_millis(1000) },
};
const QUICK: Plan = Plan {
    shapes: &[Shape { keys: 5000, value_len: MAIN_LEN }, Shape { keys: 5000, value_len: 4096 }],
    memory: Memory { host: 8 << 20, table: 4 << 20 },
    connections: 4,
    depth: 4,
    rounds: 1,
    span: Span { warm_up: Duration::from_millis(10), time: Duration::from_millis(60) },
};

/// How client and halves are arranged while something is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrangement {
    /// As much as can be had.
    Saturated,
    /// At a rate that every server can answer.
    Paced,
    /// At such a rate, card and host on different cores.
    Quiet,
    /// The same, and other work on the host's core.
    Busy,
}

/// What is measured of every server.
#[derive(Clone, Copy, Debug)]
struct Scene {
    shape: Shape,
    distribution: Distribution,
    /// Reads of a hundred.
    reads: u64,
    arrangement: Arrangement,
}

impl Scene {
    /// Such as `uniform_read.v100`, `zipfian_95_5.v8`, `uniform_read_busy.v100.paced`.
    fn name(&self) -> String {
        let mix = if self.reads == 100 {
            "read".to_owned()
        } else {
            format!("{}_{}", self.reads, 100 - self.reads)
        };
        let (state, paced) = match self.arrangement {
            Arrangement::Saturated => ("", ""),
            Arrangement::Paced => ("", ".paced"),
            Arrangement::Quiet => ("_quiet", ".paced"),
            Arrangement::Busy => ("_busy", ".paced"),
        };
        format!("{}_{mix}{state}.v{}{paced}", self.distribution.name(), self.shape.value_len)
    }

    /// What is measured of servers that hold this: reads first, because writes bring records back into memory.
    fn all(shape: Shape) -> Vec<Self> {
        let scene = |distribution, reads, arrangement| Self { shape, distribution, reads, arrangement };
        let mut scenes = vec![scene(Distribution::Uniform, 100, Arrangement::Saturated)];
        if shape.value_len == MAIN_LEN {
            let paced = [Arrangement::Paced, Arrangement::Quiet, Arrangement::Busy];
            scenes.extend(paced.map(|arrangement| scene(Distribution::Uniform, 100, arrangement)));
        }
        scenes.push(scene(Distribution::Zipfian, 100, Arrangement::Saturated));
        for reads in [95, 50] {
            for distribution in [Distribution::Uniform, Distribution::Zipfian] {
                scenes.push(scene(distribution, reads, Arrangement::Saturated));
            }
        }
        scenes
    }
}

impl Bench for KvBench {
    fn name(&self) -> &'static str {
        "kv"
    }

    fn about(&self) -> &'static str {
        "the key-value store with the card against the same store wholly on the host, and Redis if it is installed"
    }

    fn run(&self, setting: &Setting<'_>) -> Result<Report, BenchFailure> {
        let plan = if setting.quick { &QUICK } else { &FULL };
        let layouts = Layouts { together: Layout::together()?, apart: Layout::apart()? };
        let place = Place::new()?;
        let only = std::env::var(ONLY_VARIABLE).ok();
        let mut contenders = vec![Who::Host, Who::Card];
        contenders.extend(has_redis().then_some(Who::Redis));
        let measuring = Measuring { plan, setting, layouts, place, only, contenders, cases: Vec::new() };
        let before = pin(layouts.together.client)?;
        let outcome = measuring.run();
        sched_setaffinity(None, &before)?;
        outcome
    }
}

#[derive(Clone, Copy)]
struct Layouts {
    together: Layout,
    apart: Layout,
}

impl Layouts {
    fn of(&self, arrangement: Arrangement) -> Layout {
        match arrangement {
            Arrangement::Saturated | Arrangement::Paced => self.together,
            Arrangement::Quiet | Arrangement::Busy => self.apart,
        }
    }
}

/// A server with everything in it, and the client that knows what.
struct Contender {
    who: Who,
    server: Server,
    client: Client,
}

struct Measuring<'run> {
    plan: &'run Plan,
    setting: &'run Setting<'run>,
    layouts: Layouts,
    place: Place,
    only: Option<String>,
    contenders: Vec<Who>,
    cases: Vec<Case>,
}

impl Measuring<'_> {
    fn run(mut self) -> Result<Report, BenchFailure> {
        let scenes: Vec<Vec<Scene>> = self.plan.shapes.iter().map(|shape| Scene::all(*shape)).collect();
        let count: usize = scenes.iter().map(Vec::len).sum();
        let rounds = count * self.contenders.len() * self.plan.rounds as usize;
        self.setting.progress.set_length((rounds + scenes.len() * self.contenders.len()) as u64);
        for scenes in &scenes {
            self.shape(scenes)?;
        }
        let ratios = ratios(&self.cases);
        Ok(Report { bench: "kv".to_owned(), cases: self.cases, ratios })
    }

    fn is_wanted(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only))
    }

    /// Servers that hold the same, and everything that is measured of them.
    fn shape(&mut self, scenes: &[Scene]) -> Result<(), BenchFailure> {
        let mut contenders = Vec::new();
        for who in self.contenders.clone() {
            self.setting.progress.inc(1);
            if scenes.iter().any(|scene| self.is_wanted(&case_name(who, scene))) {
                contenders.push(self.filled(who, scenes)?);
            }
        }
        for scene in scenes {
            self.scene(scene, &mut contenders)?;
        }
        Ok(())
    }

    fn filled(&self, who: Who, scenes: &[Scene]) -> Result<Contender, BenchFailure> {
        let shape = scenes.first().ok_or("there is nothing to measure")?.shape;
        self.setting.progress.set_message(format!("filling {} v{}", who.name(), shape.value_len));
        let place = self.place.0.join(format!("{}-{}", who.name(), shape.value_len));
        let server = Server::start(who, self.plan.memory, &place, self.layouts.together)?;
        let failed =
            |error: BenchFailure| -> BenchFailure { format!("filling {}: {error}", who.name()).into() };
        let mut client = Client::connect(server.address, self.plan.connections, shape).map_err(failed)?;
        client.fill().map_err(failed)?;
        client.read_all().map_err(failed)?;
        Ok(Contender { who, server, client })
    }

    /// All servers by turns.
    fn scene(&mut self, scene: &Scene, contenders: &mut [Contender]) -> Result<(), BenchFailure> {
        let layout = self.layouts.of(scene.arrangement);
        for contender in contenders.iter() {
            contender.server.move_to(layout)?;
        }
        let pace = self.pace(scene);
        let job = Job { what: What::Mix(scene.distribution, scene.reads), pace };
        let _hog = (scene.arrangement == Arrangement::Busy)
            .then(|| Hog::start(layout.host, HogWork::Count))
            .transpose()?;
        let before: Vec<Answered> =
            contenders.iter().map(|contender| contender.server.answered()).collect::<Result<_, _>>()?;
        let rounds = by_turns(self.plan.rounds, contenders, |contender, round| {
            self.setting.progress.inc(1);
            let name = case_name(contender.who, scene);
            if !self.is_wanted(&name) {
                return Ok(None);
            }
            self.setting.progress.set_message(name.clone());
            let failed = |error: BenchFailure| -> BenchFailure { format!("{name}: {error}").into() };
            let processes = contender.server.processes();
            contender.client.run(job, round, self.plan.span, processes).map(Some).map_err(failed)
        })?;
        for ((contender, rounds), before) in contenders.iter().zip(rounds).zip(before) {
            // Nine of ten: what was answered while it got going and after its end is not among these.
            let least = rounds.iter().map(|round| round.latencies.count()).sum::<u64>() / 10 * 9;
            if let Some(mut case) = case(&case_name(contender.who, scene), pace, rounds) {
                let by_card = contender.server.answered()?.share_of_card(before, least);
                case.extra.extend(by_card.map(|share| ("by_card".to_owned(), share)));
                self.cases.push(case);
            }
        }
        Ok(())
    }

    /// Of what both placements were seen to answer at most, a part.
    fn pace(&self, scene: &Scene) -> Pace {
        let part = match scene.arrangement {
            Arrangement::Saturated => return Pace::Closed(self.plan.depth),
            Arrangement::Paced => PACED_PART,
            Arrangement::Quiet | Arrangement::Busy => APART_PART,
        };
        let saturated = Scene { arrangement: Arrangement::Saturated, ..*scene };
        let rate = |who| {
            let name = case_name(who, &saturated);
            self.cases.iter().find(|case| case.case == name).map(|case| case.ops_per_s)
        };
        let slower = [Who::Host, Who::Card].into_iter().filter_map(rate).reduce(f64::min);
        Pace::Open(slower.map_or(RATE_DEFAULT, |rate| rate * part))
    }
}

fn case_name(who: Who, scene: &Scene) -> String {
    format!("{}.{}", who.name(), scene.name())
}

/// With the card against without, at the same load.
fn ratios(cases: &[Case]) -> BTreeMap<String, f64> {
    let mut ratios = BTreeMap::new();
    for card in cases {
        let Some(scene) = card.case.strip_prefix("card.") else { continue };
        let Some(host) = cases.iter().find(|other| other.case == format!("host.{scene}")) else { continue };
        let load = scene.strip_suffix(".paced");
        let is_paced = load.is_some();
        let load = load.unwrap_or(scene);
        let load = load.strip_suffix(&format!(".v{MAIN_LEN}")).unwrap_or(load);
        let mut add = |what: &str, of: fn(&Case) -> Option<f64>| {
            if let (Some(card), Some(host)) = (of(card), of(host)) {
                ratios.insert(format!("{what}_vs_host.{load}"), card / host);
            }
        };
        if is_paced {
            add("p50", |case| Some(case.p50_us));
            add("p99", |case| Some(case.p99_us));
        } else {
            add("throughput", |case| Some(case.ops_per_s));
            add("host_cpu", |case| case.cpu.host_cpu_us);
            add("total_cpu", |case| Some(case.cpu.card_cpu_us.unwrap_or(0.0) + case.cpu.host_cpu_us?));
            add("machine_cpu", |case| case.cpu.machine_cpu_us);
        }
    }
    ratios
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{CpuPerOperation, Latencies};

    #[test]
    fn ratios_are_named_after_what_was_compared() {
        let case = |name: &str, ops_per_s, p99_us, card, host| {
            let cpu =
                CpuPerOperation { card_cpu_us: Some(card), host_cpu_us: Some(host), ..Default::default() };
            Case { ops_per_s, p50_us: 1.0, p99_us, ..Case::new(name, 1.0, &Latencies::new(), cpu) }
        };
        let cases = [
            case("host.uniform_read.v100", 100.0, 50.0, 0.0, 8.0),
            case("card.uniform_read.v100", 200.0, 50.0, 4.0, 0.5),
            case("redis.uniform_read.v100", 300.0, 50.0, 0.0, 1.0),
            case("host.uniform_read_busy.v100.paced", 10.0, 90.0, 0.0, 8.0),
            case("card.uniform_read_busy.v100.paced", 10.0, 45.0, 4.0, 0.5),
            case("host.zipfian_50_50.v8", 10.0, 90.0, 0.0, 1.0),
            case("card.zipfian_50_50.v8", 10.0, 45.0, 1.0, 1.0),
        ];
        let expected = [
            ("throughput_vs_host.uniform_read", 2.0),
            ("host_cpu_vs_host.uniform_read", 0.0625),
            ("total_cpu_vs_host.uniform_read", 0.5625),
            ("p50_vs_host.uniform_read_busy", 1.0),
            ("p99_vs_host.uniform_read_busy", 0.5),
            ("throughput_vs_host.zipfian_50_50.v8", 1.0),
            ("host_cpu_vs_host.zipfian_50_50.v8", 1.0),
            ("total_cpu_vs_host.zipfian_50_50.v8", 2.0),
        ];
        let expected = expected.into_iter().map(|(name, ratio)| (name.to_owned(), ratio)).collect();
        assert_eq!(ratios(&cases), expected);
    }

    #[test]
    fn scenes_have_names_of_their_own() {
        let names: Vec<String> =
            FULL.shapes.iter().flat_map(|shape| Scene::all(*shape)).map(|scene| scene.name()).collect();
        let all: std::collections::BTreeSet<&String> = names.iter().collect();
        assert_eq!(all.len(), names.len());
        for name in [
            "uniform_read.v8",
            "uniform_read.v100.paced",
            "uniform_read_busy.v100.paced",
            "zipfian_50_50.v4096",
        ] {
            assert!(names.iter().any(|other| other == name), "{name} is not among {names:?}");
        }
    }
}
