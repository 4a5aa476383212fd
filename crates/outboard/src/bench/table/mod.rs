//! `outboard bench table`: lookups in the card's cache table, against maps that one would otherwise take (DDS §8.5).
//!
//! ```text
//!   1 to 8 reader threads ── lookup, one key or 16 ──▶ table, dashmap, papaya, RwLock<HashMap> ◀── one writer thread
//! ```
//!
//! Every map holds the same keys of 16 bytes and items of 24, and the same readers look up keys that are there, at random,
//! while a writer replaces items at a rate that is the same for all. The other maps are given the same hash, store keys and items
//! without the room for longer ones that the table has, and a batch of 16 costs them one lock or one guard.

mod contenders;
mod load;

use std::collections::BTreeMap;
use std::time::Duration;

use super::turns::by_turns;
use super::{Bench, BenchFailure, Case, Report, Setting};
pub(super) use contenders::mix;
use contenders::{CardTable, Concurrent, Contender, Locked, Sharded};
use load::{BATCH, Load, Measured, measure};

/// The benchmark.
#[derive(Debug)]
pub struct TableBench;

/// A number of items, and what it is called.
#[derive(Clone, Copy)]
struct Size {
    name: &'static str,
    items: u64,
}

struct Plan {
    sizes: [Size; 2],
    readers: &'static [usize],
    rounds: u64,
    time: Duration,
}

const FULL: Plan = Plan {
    sizes: [Size { name: "1m", items: 1_000_000 }, Size { name: "30m", items: 30_000_000 }],
    readers: &[1, 2, 4, 8],
    rounds: 5,
    time: Duration::from_millis(300),
};
const QUICK: Plan = Plan {
    sizes: [Size { name: "1m", items: 20_000 }, Size { name: "30m", items: 100_000 }],
    readers: &[1, 2],
    rounds: 1,
    time: Duration::from_millis(50),
};

/// What all maps together take for an item, at most; measured with 30 million.
const BYTES_AN_ITEM: u64 = 450;

impl Bench for TableBench {
    fn name(&self) -> &'static str {
        "table"
    }

    fn about(&self) -> &'static str {
        "lookups in the card's cache table, one by one and in batches, against other maps, with a writer active"
    }

    fn run(&self, setting: &Setting<'_>) -> Result<Report, BenchFailure> {
        let plan = if setting.quick { &QUICK } else { &FULL };
        let contenders = 4;
        let runs_a_size = (plan.readers.len() * 2) as u64 * plan.rounds + 1;
        setting.progress.set_length(runs_a_size * (plan.sizes.len() * contenders) as u64);
        let mut cases = Vec::new();
        for size in plan.sizes {
            cases.extend(compare(size, plan, setting)?);
        }
        let ratios = ratios(&cases, plan);
        Ok(Report { bench: "table".to_owned(), cases, ratios })
    }
}

/// A map that is filled, and how a load on it is measured.
type Map<'a> = (&'static str, &'a dyn Fn(&Load) -> Result<Measured, BenchFailure>);

/// All maps with as many items, round by round in turn; the median round of each.
fn compare(size: Size, plan: &Plan, setting: &Setting<'_>) -> Result<Vec<Case>, BenchFailure> {
    require_memory(size)?;
    let table: CardTable = filled(size, setting)?;
    let sharded: Sharded = filled(size, setting)?;
    let concurrent: Concurrent = filled(size, setting)?;
    let locked: Locked = filled(size, setting)?;
    let mut maps: [Map<'_>; 4] = [
        (CardTable::NAME, &|load| measure(&table, load)),
        (Sharded::NAME, &|load| measure(&sharded, load)),
        (Concurrent::NAME, &|load| measure(&concurrent, load)),
        (Locked::NAME, &|load| measure(&locked, load)),
    ];
    let mut rounds: BTreeMap<String, Vec<Measured>> = BTreeMap::new();
    for readers in plan.readers {
        for is_batched in [false, true] {
            let load = Load { items: size.items, readers: *readers, is_batched, time: plan.time };
            let case = |name: &str| case_name(name, size, *readers, is_batched);
            let measured = by_turns(plan.rounds, &mut maps, |(name, measure), _| {
                setting.progress.set_message(case(name));
                setting.progress.inc(1);
                measure(&load).map(Some)
            })?;
            rounds.extend(maps.iter().map(|(name, _)| case(name)).zip(measured));
        }
    }
    let medians = rounds.into_iter().filter_map(|(name, mut rounds)| {
        rounds.sort_by(|left, right| left.rate().total_cmp(&right.rate()));
        let (slowest, fastest) = (rounds.first()?.rate(), rounds.last()?.rate());
        let middle = rounds.len() / 2;
        let mut case = rounds.swap_remove(middle).case(&name);
        case.extra.insert("spread".to_owned(), fastest / slowest);
        Some(case)
    });
    Ok(medians.collect())
}

fn filled<C: Contender>(size: Size, setting: &Setting<'_>) -> Result<C, BenchFailure> {
    setting.progress.set_message(format!("filling {} {}", C::NAME, size.name));
    let contender = C::filled(size.items)?;
    setting.progress.inc(1);
    Ok(contender)
}

fn case_name(contender: &str, size: Size, readers: usize, is_batched: bool) -> String {
    let batch = if is_batched { format!(".batch{BATCH}") } else { String::new() };
    format!("{contender}.{}.r{readers}{batch}", size.name)
}

/// All maps are there at once, so that they can be measured in turn: that takes memory.
fn require_memory(size: Size) -> Result<(), BenchFailure> {
    let meminfo = std::fs::read_to_string("/proc/meminfo")?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let available = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    let needed = size.items * BYTES_AN_ITEM;
    match available.map(|kilobytes| kilobytes * 1024) {
        Some(available) if available < needed => Err(format!(
            "{} items in four maps take some {} GB of memory, and {} GB are available; `--quick` needs little",
            size.items,
            needed / 1_000_000_000,
            available / 1_000_000_000
        )
        .into()),
        _ => Ok(()),
    }
}

/// The table by the best of the others: for each number of readers, and the geometric mean of those.
fn ratios(cases: &[Case], plan: &Plan) -> BTreeMap<String, f64> {
    let rate =
        |name: &str| cases.iter().find(|case| case.case == name).map_or(f64::NAN, |case| case.ops_per_s);
    let others = [Sharded::NAME, Concurrent::NAME, Locked::NAME];
    let mut ratios = BTreeMap::new();
    for size in plan.sizes {
        for (what, is_batched) in [("lookup", false), ("batch16", true)] {
            let mut logarithms = 0.0;
            for readers in plan.readers {
                let of = |name: &str| rate(&case_name(name, size, *readers, is_batched));
                let ratio = of(CardTable::NAME) / others.map(of).into_iter().fold(0.0, f64::max);
                logarithms += ratio.ln();
                ratios.insert(format!("{what}_vs_best.{}.r{readers}", size.name), ratio);
            }
            let mean = (logarithms / plan.readers.len() as f64).exp();
            ratios.insert(format!("{what}_vs_best.{}", size.name), mean);
        }
    }
    ratios
}
