//! `outboard bench director`: what the director costs, and what it saves.
//!
//! ```text
//!   placement = "host"   client ◀────────────────────────▶ host
//!   placement = "card"   client ◀──▶ director ◀── link ──▶ host     what the host has to answer
//!                        client ◀──▶ director                       what the card answers
//! ```
//!
//! One connection with one request out, so that nothing but the way is measured: a PING, and a read by a command that the card
//! does not answer, of a value that the host has in memory; and the length of a value, which the card answers from its table
//! without a read (the echo). Both placements take turns. The client has a core of its own; card and host share another, or
//! (`.apart`) the host has that one, and the card one more or, if there is none, the client's.
//!
//! Then long reads that the card answers, from the buffers that they were read into, and copied into another one first
//! (`copies.rs`).

mod copies;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::thread::sched_setaffinity;

use super::cores::{Layout, pin};
use super::kv::client::{Client, Job, What};
use super::kv::ledger::Shape;
use super::kv::server::{Answered, Memory, Server, Who};
use super::process::Place;
use super::talk::{Pace, Span, case};
use super::turns::by_turns;
use super::{Bench, BenchFailure, Case, Report, Setting};

/// The benchmark.
#[derive(Debug)]
pub struct DirectorBench;

/// How much is measured.
struct Plan {
    rounds: u64,
    span: Span,
    /// Bytes of the file that long reads are of.
    file_len: u64,
}

const FULL: Plan = Plan {
    rounds: 9,
    span: Span { warm_up: Duration::from_millis(100), time: Duration::from_millis(1000) },
    file_len: 256 << 20,
};
const QUICK: Plan = Plan {
    rounds: 1,
    span: Span { warm_up: Duration::from_millis(10), time: Duration::from_millis(50) },
    file_len: 8 << 20,
};

/// So little that the host keeps all of it in memory.
const SHAPE: Shape = Shape { keys: 1000, value_len: 100 };
const MEMORY: Memory = Memory { host: 64 << 20, table: 4 << 20 };
/// What is asked for, and what that is called. The first is what the ratio without a name is about.
const JOBS: [(&str, What); 3] = [("read", What::HostRead), ("ping", What::Ping), (ECHO, What::Length)];
/// The one that the card answers.
const ECHO: &str = "echo";
/// How much of what it is asked a card answers that has all keys in its table.
const CACHED_SHARE: f64 = 0.99;
/// How long that may take.
const CACHED_WITHIN: Duration = Duration::from_secs(20);
const PACE: Pace = Pace::Closed(1);

impl Bench for DirectorBench {
    fn name(&self) -> &'static str {
        "director"
    }

    fn about(&self) -> &'static str {
        "what the way over the card adds, what answers of the card save, and reads sent as they are against copies"
    }

    fn run(&self, setting: &Setting<'_>) -> Result<Report, BenchFailure> {
        let plan = if setting.quick { &QUICK } else { &FULL };
        let layouts = [("", Layout::together()?), (".apart", Layout::apart()?)];
        let place = Place::new()?;
        let before = pin(layouts[0].1.client)?;
        let outcome = measure(plan, setting, &place, &layouts);
        sched_setaffinity(None, &before)?;
        outcome
    }
}

fn measure(
    plan: &Plan,
    setting: &Setting<'_>,
    place: &Place,
    layouts: &[(&str, Layout)],
) -> Result<Report, BenchFailure> {
    let copied = copies::steps(plan);
    setting.progress.set_length(2 * (layouts.len() * JOBS.len()) as u64 * plan.rounds + copied);
    let mut cases = Vec::new();
    for (suffix, layout) in layouts {
        // Started where they stay: a half that has a core to itself may wait in another way than one that shares it.
        let mut contenders = Vec::new();
        for who in [Who::Host, Who::Card] {
            let directory = place.0.join(format!("{}{suffix}", who.name()));
            let server = Server::start(who, MEMORY, &directory, *layout)?;
            let mut client = Client::connect(server.address, 1, SHAPE)?;
            match who {
                Who::Card => fill(&server, &mut client)?,
                Who::Host | Who::Redis => client.fill()?,
            }
            contenders.push((who, server, client));
        }
        for (job, what) in JOBS {
            let before = contenders.iter().map(|(_, server, _)| server.answered());
            let before: Vec<Answered> = before.collect::<Result<_, _>>()?;
            let rounds = by_turns(plan.rounds, &mut contenders, |(who, server, client), round| {
                setting.progress.inc(1);
                setting.progress.set_message(format!("{}.{job}{suffix}", who.name()));
                let job = Job { what, pace: PACE };
                client.run(job, round, plan.span, server.processes()).map(Some)
            })?;
            for (((who, server, _), rounds), before) in contenders.iter().zip(rounds).zip(before) {
                let least = rounds.iter().map(|round| round.latencies.count()).sum::<u64>() / 10 * 9;
                if let Some(mut case) = case(&format!("{}.{job}{suffix}", who.name()), PACE, rounds) {
                    let by_card = server.answered()?.share_of_card(before, least);
                    case.extra.extend(by_card.map(|share| ("by_card".to_owned(), share)));
                    cases.push(case);
                }
            }
        }
    }
    cases.extend(copies::measure(plan, setting, &place.0, layouts[0].1)?);
    let ratios = ratios(&cases);
    Ok(Report { bench: "director".to_owned(), cases, ratios })
}

/// Writes all keys, and waits until the card answers for them: what was written has reached its table.
fn fill(server: &Server, client: &mut Client) -> Result<(), BenchFailure> {
    let deadline = Instant::now() + CACHED_WITHIN;
    let mut before = server.answered()?;
    while Instant::now() < deadline {
        client.fill()?;
        let filled = counted(server, before, deadline)?;
        client.measure_all()?;
        before = counted(server, filled, deadline)?;
        if before.share_of_card(filled, 1).is_some_and(|share| share > CACHED_SHARE) {
            return Ok(());
        }
        // The card may hear of a part's file only after the first records were written to it: they are written again.
    }
    Err("the card does not have the keys in its table".into())
}

/// Waits until the status knows of one more request for each key: it is a moment old.
fn counted(server: &Server, before: Answered, deadline: Instant) -> Result<Answered, BenchFailure> {
    loop {
        let now = server.answered()?;
        let count = now.by_card + now.by_host - before.by_card - before.by_host;
        if count >= u64::from(SHAPE.keys) || Instant::now() > deadline {
            return Ok(now);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Differences, in microseconds, for what goes over the card; ratios for the rest.
fn ratios(cases: &[Case]) -> BTreeMap<String, f64> {
    let mut ratios = added(cases);
    ratios.extend(copies::ratios(cases));
    ratios
}

fn added(cases: &[Case]) -> BTreeMap<String, f64> {
    let pairs = cases.iter().filter_map(|card| {
        let job = card.case.strip_prefix("card.")?;
        let host = cases.iter().find(|other| other.case.strip_prefix("host.") == Some(job))?;
        let name = match job.strip_prefix(JOBS[0].0) {
            Some(layout) => format!("added_us{layout}"),
            None => format!("added_us.{job}"),
        };
        Some((name, card.p50_us - host.p50_us))
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{CpuPerOperation, Latencies};

    #[test]
    fn what_is_added_is_named_after_the_job() {
        let case = |name: &str, p50_us| Case {
            p50_us,
            ..Case::new(name, 1.0, &Latencies::new(), CpuPerOperation::default())
        };
        let cases = [
            case("host.read", 20.0),
            case("card.read", 31.0),
            case("host.ping.apart", 10.0),
            case("card.ping.apart", 18.0),
            case("card.read.apart", 18.0),
        ];
        let expected = [("added_us", 11.0), ("added_us.ping.apart", 8.0)];
        let expected = expected.into_iter().map(|(name, added)| (name.to_owned(), added)).collect();
        assert_eq!(added(&cases), expected);
    }
}
