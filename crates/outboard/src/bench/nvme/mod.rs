//! `outboard bench nvme`: a namespace over NVMe/TCP, against SPDK's target where it is built.
//!
//! ```text
//!   this process: the client, one core              child process: the target, another core
//!   ┌──────────────────────────────────┐            ┌────────────────────────────────────────┐
//!   │ 1 or 4 queues, each kept at depth│ ◀── TCP ──▶│ card (or nvmf_tgt) ─▶ memory, file, disk│
//!   └──────────────────────────────────┘            └────────────────────────────────────────┘
//! ```
//!
//! The client polls its sockets, as SPDK's own tool does, and checks everything that it reads. Targets take turns: each is
//! started, filled, put to every load and ended, round after round, because SPDK's keeps its core busy as long as it
//! runs. The median round counts.

pub(in crate::bench) mod client;
pub(in crate::bench) mod path;
pub(in crate::bench) mod target;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ob_nvme::initiator::Payload;
use rustix::thread::sched_setaffinity;

use super::cores::{card_core, leave};
use super::load::{Direction, Load, Measured, Order, Role, median, stamp};
use super::process::Place;
use super::turns::by_turns;
use super::{Bench, BenchFailure, Case, Latencies, Report, Setting};
use crate::accounting;
use client::{Client, Crowd, Shape};
use target::{Backend, TargetProcess, Who, spdk_program};

/// A disk that may be overwritten.
const DISK_VARIABLE: &str = "OUTBOARD_BENCH_DISK";
/// Only cases whose names contain this are measured, for those who want to look closer.
const ONLY_VARIABLE: &str = "OUTBOARD_BENCH_ONLY";

/// The benchmark.
#[derive(Debug)]
pub struct NvmeBench;

/// How much is measured.
struct Plan {
    bytes: u64,
    rounds: u64,
    time: Duration,
    idle: Duration,
    depths: &'static [usize],
    /// Hosts of a crowd, and the I/O queues of each.
    crowd: (u16, u16),
}

const FULL: Plan = Plan {
    bytes: 256 << 20,
    rounds: 5,
    time: Duration::from_millis(700),
    idle: Duration::from_secs(3),
    depths: &[1, 32, 128],
    crowd: (58, 16),
};
const QUICK: Plan = Plan {
    bytes: 16 << 20,
    rounds: 1,
    time: Duration::from_millis(30),
    idle: Duration::from_millis(100),
    depths: &[32],
    crowd: (2, 4),
};

/// A load, and how the client is connected for it.
#[derive(Clone, Copy, Debug)]
struct Job {
    load: Load,
    shape: Shape,
    /// Whether many others are connected and ask for nothing.
    has_crowd: bool,
}

impl Job {
    /// Such as `read4k.d32.c4.digests`.
    fn name(self) -> String {
        let connections = match self.shape.connections {
            1 => String::new(),
            several => format!(".c{several}"),
        };
        let digests = if self.shape.digests { ".digests" } else { "" };
        let crowd = if self.has_crowd { ".crowd" } else { "" };
        format!("{}{connections}{digests}{crowd}", self.load.name())
    }
}

impl Plan {
    fn jobs(&self) -> Vec<Job> {
        let plain = Shape { connections: 1, digests: false };
        let job = |load, shape| Job { load, shape, has_crowd: false };
        let mut jobs = Vec::new();
        for direction in [Direction::Read, Direction::Write] {
            let small = |depth| Load { direction, len: 4 << 10, depth, order: Order::Random };
            jobs.extend(self.depths.iter().map(|depth| job(small(*depth), plain)));
            jobs.push(job(small(32), Shape { connections: 4, ..plain }));
            jobs.push(job(small(32), Shape { digests: true, ..plain }));
            let large = Load { direction, len: 128 << 10, depth: 32, order: Order::Sequential };
            jobs.push(job(large, plain));
            jobs.extend(
                (direction == Direction::Read).then(|| Job { has_crowd: true, ..job(small(32), plain) }),
            );
        }
        jobs
    }
}

impl Bench for NvmeBench {
    fn name(&self) -> &'static str {
        "nvme"
    }

    fn about(&self) -> &'static str {
        "reads and writes of a namespace over NVMe/TCP, against SPDK's target if SPDK_DIR names it"
    }

    fn run(&self, setting: &Setting<'_>) -> Result<Report, BenchFailure> {
        let plan = if setting.quick { &QUICK } else { &FULL };
        let place = Place::new()?;
        let core = card_core()?;
        let before = leave(core)?;
        let outcome = Measuring::new(plan, setting, core, &place).and_then(Measuring::run);
        sched_setaffinity(None, &before)?;
        outcome
    }
}

struct Measuring<'run> {
    plan: &'run Plan,
    setting: &'run Setting<'run>,
    core: Option<usize>,
    place: &'run Place,
    only: Option<String>,
    image: Payload,
    rounds: BTreeMap<String, Vec<Measured>>,
    idle: BTreeMap<String, f64>,
}

impl<'run> Measuring<'run> {
    fn new(
        plan: &'run Plan,
        setting: &'run Setting<'run>,
        core: Option<usize>,
        place: &'run Place,
    ) -> Result<Self, BenchFailure> {
        let mut image = vec![0; usize::try_from(plan.bytes)?];
        stamp(&mut image, 0);
        let only = std::env::var(ONLY_VARIABLE).ok();
        let (rounds, idle) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { plan, setting, core, place, only, image: image.into(), rounds, idle })
    }

    fn run(mut self) -> Result<Report, BenchFailure> {
        let mut contenders = vec![(Who::Card, "memory", Backend::Memory(self.plan.bytes))];
        if spdk_program().is_some() {
            contenders.insert(0, (Who::Spdk, "memory", Backend::Memory(self.plan.bytes)));
        }
        contenders.push((Who::Card, "file", Backend::File(self.place.0.join("file"), self.plan.bytes)));
        if let Some(disk) = std::env::var_os(DISK_VARIABLE) {
            contenders.push((Who::Card, "disk", Backend::Disk(disk.into())));
        }
        let jobs = self.plan.jobs();
        self.setting.progress.set_length(self.plan.rounds * (contenders.len() * (jobs.len() + 1)) as u64);
        by_turns(self.plan.rounds, &mut contenders, |(who, device, backend), round| {
            self.round(*who, device, backend, &jobs, round).map(Some)
        })?;
        let names = contenders.iter().flat_map(|(who, device, _)| {
            jobs.iter().map(move |job| format!("{}.{device}.{}", who.name(), job.name()))
        });
        let mut cases: Vec<Case> =
            names.filter_map(|name| median(&name, Role::Client, self.rounds.remove(&name)?)).collect();
        let ratios = ratios(&cases);
        cases.extend(self.idle.iter().map(|(name, percent)| idle_case(name, *percent)));
        Ok(Report { bench: "nvme".to_owned(), cases, ratios })
    }

    /// One target, from its start to its end.
    fn round(
        &mut self,
        who: Who,
        device: &str,
        backend: &Backend,
        jobs: &[Job],
        round: u64,
    ) -> Result<(), BenchFailure> {
        let wanted = |name: &String| self.only.as_ref().is_none_or(|only| name.contains(only));
        let jobs: Vec<(Job, String)> = jobs
            .iter()
            .map(|job| (*job, format!("{}.{device}.{}", who.name(), job.name())))
            // Others need not be made for so many.
            .filter(|(job, name)| wanted(name) && (who == Who::Card || !job.has_crowd))
            .collect();
        let idle = format!("{}.{device}.idle", who.name());
        if jobs.is_empty() && !wanted(&idle) {
            return Ok(());
        }
        self.setting.progress.set_message(format!("{}.{device}", who.name()));
        let directory = self.place.0.join(format!("{}-{device}-{round}", who.name()));
        let target = TargetProcess::start(who, backend, &directory, self.core)?;
        let plain = Shape { connections: 1, digests: false };
        let mut client = Client::connect(target.address(), plain, 32, &self.image)?;
        client.fill()?;
        client.flush()?;
        drop(client);
        for (job, name) in &jobs {
            self.setting.progress.inc(1);
            self.setting.progress.set_message(name.clone());
            let failed = |error: BenchFailure| -> BenchFailure { format!("{name}: {error}").into() };
            let (hosts, queues) = self.plan.crowd;
            let connect = || Crowd::connect(target.address(), hosts, queues);
            let _crowd = job.has_crowd.then(connect).transpose().map_err(failed)?;
            let mut client = Client::connect(target.address(), job.shape, job.load.depth, &self.image)?;
            let measured = client.run(job.load, round, self.plan.time, target.pid()).map_err(failed)?;
            self.rounds.entry(name.clone()).or_default().push(measured);
        }
        self.setting.progress.inc(1);
        if wanted(&idle) {
            let percent = self.idle_percent(&target)?;
            let least = self.idle.entry(idle).or_insert(percent);
            *least = least.min(percent);
        }
        if let Backend::File(path, _) = backend {
            drop(target);
            std::fs::remove_file(path)?;
        }
        Ok(())
    }

    /// Of a core, what a target uses while a client with four queues asks for nothing.
    fn idle_percent(&self, target: &TargetProcess) -> Result<f64, BenchFailure> {
        let shape = Shape { connections: 4, digests: false };
        let mut client = Client::connect(target.address(), shape, 32, &self.image)?;
        let (before, started) = (accounting::process_cpu(target.pid())?, Instant::now());
        std::thread::sleep(self.plan.idle);
        let used = accounting::process_cpu(target.pid())?.saturating_sub(before);
        let percent = 100.0 * used.as_secs_f64() / started.elapsed().as_secs_f64();
        client.ping()?;
        Ok(percent)
    }
}

/// A case of nothing but idling.
fn idle_case(name: &str, percent: f64) -> Case {
    let mut case = Case::new(name, 1.0, &Latencies::new(), super::CpuPerOperation::default());
    case.extra.insert("cpu_percent".to_owned(), percent);
    case
}

/// The card against SPDK, at the same load.
fn ratios(cases: &[Case]) -> BTreeMap<String, f64> {
    let mut ratios = BTreeMap::new();
    for case in cases {
        let Some(job) = case.case.strip_prefix("card.memory.") else { continue };
        let mut add =
            |what: &str, of: &str, ratio: f64| ratios.insert(format!("{what}_vs_{of}.{job}"), ratio);
        if let Some(spdk) = cases.iter().find(|other| other.case == format!("spdk.memory.{job}")) {
            add("throughput", "spdk", case.ops_per_s / spdk.ops_per_s);
            add("p50", "spdk", case.p50_us / spdk.p50_us);
            add("p99", "spdk", case.p99_us / spdk.p99_us);
        }
        // Without SPDK there is still something to compare: digests with none, four connections with one, a crowd with
        // nobody.
        let suffixes = [".digests", ".c4", ".crowd"];
        if let Some(plain) = suffixes.iter().find_map(|suffix| job.strip_suffix(suffix))
            && let Some(plain) = cases.iter().find(|other| other.case == format!("card.memory.{plain}"))
        {
            add("throughput", "plain", case.ops_per_s / plain.ops_per_s);
            add("p99", "plain", case.p99_us / plain.p99_us);
        }
    }
    ratios
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::CpuPerOperation;

    fn case(name: &str, ops_per_s: f64, p50_us: f64) -> Case {
        let cpu = CpuPerOperation::default();
        Case { ops_per_s, p50_us, p99_us: 2.0 * p50_us, ..Case::new(name, 1.0, &Latencies::new(), cpu) }
    }

    #[test]
    fn ratios_are_named_after_what_was_compared() {
        let cases = [
            case("spdk.memory.read4k.d32", 100.0, 50.0),
            case("card.memory.read4k.d32", 125.0, 40.0),
            case("card.memory.read4k.d32.digests", 100.0, 60.0),
            case("card.file.read4k.d32", 50.0, 90.0),
        ];
        let expected = [
            ("throughput_vs_spdk.read4k.d32", 1.25),
            ("p50_vs_spdk.read4k.d32", 0.8),
            ("p99_vs_spdk.read4k.d32", 0.8),
            ("throughput_vs_plain.read4k.d32.digests", 0.8),
            ("p99_vs_plain.read4k.d32.digests", 1.5),
        ];
        let expected = expected.into_iter().map(|(name, ratio)| (name.to_owned(), ratio)).collect();
        assert_eq!(ratios(&cases), expected);
    }

    #[test]
    fn jobs_have_names_of_their_own() {
        let names: Vec<String> = FULL.jobs().into_iter().map(Job::name).collect();
        let all: std::collections::BTreeSet<&String> = names.iter().collect();
        assert_eq!(all.len(), names.len());
        assert!(names.contains(&"write4k.d32.c4".to_owned()) && names.contains(&"read128k.d32".to_owned()));
    }
}
