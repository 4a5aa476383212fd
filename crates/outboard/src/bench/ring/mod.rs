//! `outboard bench ring`: 8-byte messages from many host threads to the card, through three rings (DDS §8.5, Figure 16).
//!
//! ```text
//!   this process: the card          child process: the host
//!   ┌──────────────────────┐        ┌──────────────────────────┐
//!   │ one thread, polling  │ ◀─DMA─ │ 1 to 64 producer threads │
//!   └──────────────────────┘        └──────────────────────────┘
//! ```
//!
//! The card polls for as long as a case runs. A producer that finds its ring full yields. Every 64th message carries the
//! time it was sent at. In the cases `aside` a core is set aside for the card, as a DPU's cores are, and the producers
//! share the others; on a machine of two cores they then never meet on the ring at the same instant. In the other
//! cases everybody runs everywhere. Between two batches the card rests for a microsecond, except with the FaRM ring, which
//! has no batches.

mod card;
mod doorbell;
mod producers;

use std::collections::BTreeMap;
use std::time::Duration;

use ob_link::Costs;

pub use doorbell::{DoorbellOptions, run_doorbell};
pub use producers::{ProducerOptions, run_producers};

use super::turns::by_turns;
use super::{Bench, BenchFailure, Case, CpuPerOperation, Report, Setting};
use card::Measured;

/// Bytes of the ring's data.
const CAPACITY: u32 = 1 << 16;

/// The benchmark.
#[derive(Debug)]
pub struct RingBench;

/// Which ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum RingKind {
    /// The progress ring of DDS §4.1.
    Progress,
    /// A lock a message.
    Lock,
    /// A flag a message, as in FaRM.
    Farm,
}

impl RingKind {
    const ALL: [Self; 3] = [Self::Progress, Self::Lock, Self::Farm];

    fn name(self) -> &'static str {
        match self {
            Self::Progress => "progress",
            Self::Lock => "lock",
            Self::Farm => "farm",
        }
    }
}

/// A link that is measured.
#[derive(Clone, Copy)]
struct LinkCase {
    name: &'static str,
    costs: Option<Costs>,
    /// Whether the card has a core of its own.
    aside: bool,
}

const LINKS: [LinkCase; 3] = [
    LinkCase { name: "shm", costs: None, aside: false },
    LinkCase { name: "pcie4", costs: Some(Costs::PCIE4), aside: false },
    LinkCase { name: "shm_aside", costs: None, aside: true },
];

/// How much is measured.
struct Plan {
    producers: &'static [usize],
    rounds: u64,
    time: Duration,
    round_trips: usize,
}

const FULL: Plan = Plan {
    producers: &[1, 2, 4, 8, 16, 32, 64],
    rounds: 5,
    time: Duration::from_millis(500),
    round_trips: 5_000,
};
const QUICK: Plan =
    Plan { producers: &[1, 4, 64], rounds: 2, time: Duration::from_millis(200), round_trips: 500 };

impl Bench for RingBench {
    fn name(&self) -> &'static str {
        "ring"
    }

    fn about(&self) -> &'static str {
        "8-byte messages from host threads to the card through three rings, and the doorbell's round trip"
    }

    fn run(&self, setting: &Setting<'_>) -> Result<Report, BenchFailure> {
        let plan = if setting.quick { &QUICK } else { &FULL };
        let runs = (LINKS.len() * plan.producers.len() * RingKind::ALL.len()) as u64 * plan.rounds;
        setting.progress.set_length(runs + 2);
        let mut cases = Vec::new();
        for link in LINKS {
            for producers in plan.producers {
                cases.extend(compare(link, *producers, plan, setting)?);
            }
        }
        let ratios = ratios(&cases);
        for (case, spin) in [("doorbell asleep", Duration::ZERO), ("doorbell awake", Duration::from_secs(1))]
        {
            setting.progress.set_message(case);
            cases.push(doorbell::round_trips(case, spin, plan.round_trips)?);
            setting.progress.inc(1);
        }
        Ok(Report { bench: "ring".to_owned(), cases, ratios })
    }
}

/// The three rings with the same link and as many producers, round by round in turn; the median round of each.
fn compare(
    link: LinkCase,
    producers: usize,
    plan: &Plan,
    setting: &Setting<'_>,
) -> Result<Vec<Case>, BenchFailure> {
    let mut rings = RingKind::ALL;
    let rounds = by_turns(plan.rounds, &mut rings, |ring, _| {
        setting.progress.set_message(format!("{} {} {producers}", ring.name(), link.name));
        let measured = card::measure(*ring, link, producers, plan.time)?;
        setting.progress.inc(1);
        Ok(Some(measured))
    })?;
    let cases = rings.iter().zip(rounds).filter_map(|(ring, mut rounds)| {
        rounds.sort_by(|left, right| left.rate().total_cmp(&right.rate()));
        let middle = rounds.get(rounds.len() / 2)?;
        Some(middle.case(&format!("{}.{}.p{producers}", ring.name(), link.name)))
    });
    Ok(cases.collect())
}

impl Measured {
    fn rate(&self) -> f64 {
        self.messages as f64 / self.seconds
    }

    fn case(&self, name: &str) -> Case {
        let each = |time: Duration| Some(time.as_secs_f64() * 1e6 / self.messages.max(1) as f64);
        let cpu = CpuPerOperation {
            client_cpu_us: None,
            card_cpu_us: each(self.card_cpu),
            host_cpu_us: each(self.host_cpu),
            machine_cpu_us: each(self.machine_busy),
        };
        let mut case = Case::new(name, self.seconds, &self.latencies, cpu);
        // Only some messages carry their time, so the histogram's count is not the number of messages.
        case.ops_per_s = self.rate();
        let per_message = |count: u64| count as f64 / self.messages.max(1) as f64;
        case.extra.insert("dma_per_message".to_owned(), per_message(self.transfers));
        case.extra.insert("retries_per_message".to_owned(), per_message(self.retries));
        case
    }
}

fn ratios(cases: &[Case]) -> BTreeMap<String, f64> {
    let find = |name: &str| cases.iter().find(|case| case.case == name);
    let rate = |name: &str| find(name).map_or(f64::NAN, |case| case.ops_per_s);
    let transfers = |name: &str| {
        find(name).and_then(|case| case.extra.get("dma_per_message").copied()).unwrap_or(f64::NAN)
    };
    let is_progress_on = |case: &&Case, link: &str| case.case.starts_with(&format!("progress.{link}."));
    let mut ratios = BTreeMap::new();
    let counts: Vec<&str> = cases.iter().filter_map(|case| case.case.strip_prefix("progress.shm.")).collect();
    for LinkCase { name: link, .. } in LINKS {
        for count in &counts {
            let progress = rate(&format!("progress.{link}.{count}"));
            ratios.insert(
                format!("progress_vs_farm.{link}.{count}"),
                progress / rate(&format!("farm.{link}.{count}")),
            );
            ratios.insert(
                format!("progress_vs_lock.{link}.{count}"),
                progress / rate(&format!("lock.{link}.{count}")),
            );
        }
    }
    let peak = cases
        .iter()
        .filter(|case| is_progress_on(case, "shm"))
        .map(|case| case.ops_per_s)
        .fold(0.0, f64::max);
    ratios.insert("progress_p64_vs_peak".to_owned(), rate("progress.shm.p64") / peak);
    ratios.insert("dma_per_message.pcie4.p64".to_owned(), transfers("progress.pcie4.p64"));
    ratios.insert("farm_dma_per_message.pcie4.p64".to_owned(), transfers("farm.pcie4.p64"));
    ratios
}
