//! `outboard bench director`: what the way over the card adds to a request that is the host's.
//!
//! ```text
//!   placement = "host"   client ◀────────────────────────▶ host
//!   placement = "card"   client ◀──▶ director ◀── link ──▶ host
//! ```
//!
//! One connection with one request out, so that nothing but the way is measured: a PING, and a read by a command that the card
//! does not answer, of a value that the host has in memory. Both placements take turns. The client has a core of its own; card
//! and host share another, or (`.apart`) the host has that one, and the card one more or, if there is none, the client's.

use std::collections::BTreeMap;
use std::time::Duration;

use rustix::thread::sched_setaffinity;

use super::cores::{Layout, pin};
use super::kv::client::{Client, Job, What};
use super::kv::ledger::Shape;
use super::kv::server::{Memory, Server, Who};
use super::process::Place;
use super::talk::{Measured, Pace, Span, case};
use super::{Bench, BenchFailure, Case, Report, Setting};

/// The benchmark.
#[derive(Debug)]
pub struct DirectorBench;

/// How much is measured.
struct Plan {
    rounds: u64,
    span: Span,
}

const FULL: Plan =
    Plan { rounds: 9, span: Span { warm_up: Duration::from_millis(100), time: Duration::from_millis(1000) } };
const QUICK: Plan =
    Plan { rounds: 1, span: Span { warm_up: Duration::from_millis(10), time: Duration::from_millis(50) } };

/// So little that the host keeps all of it in memory.
const SHAPE: Shape = Shape { keys: 1000, value_len: 100 };
const MEMORY: Memory = Memory { host: 64 << 20, table: 4 << 20 };
/// What is asked for, and what that is called. The first is what the ratio without a name is about.
const JOBS: [(&str, What); 2] = [("read", What::HostRead), ("ping", What::Ping)];
const PACE: Pace = Pace::Closed(1);

impl Bench for DirectorBench {
    fn name(&self) -> &'static str {
        "director"
    }

    fn about(&self) -> &'static str {
        "what the way over the card adds to a request that the host answers"
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
    setting.progress.set_length(2 * (layouts.len() * JOBS.len()) as u64 * plan.rounds);
    let mut cases = Vec::new();
    for (suffix, layout) in layouts {
        // Started where they stay: a half that has a core to itself may wait in another way than one that shares it.
        let mut contenders = Vec::new();
        for who in [Who::Host, Who::Card] {
            let directory = place.0.join(format!("{}{suffix}", who.name()));
            let server = Server::start(who, MEMORY, &directory, *layout)?;
            let mut client = Client::connect(server.address, 1, SHAPE)?;
            client.fill()?;
            contenders.push((who, server, client));
        }
        for (job, what) in JOBS {
            let mut rounds: [Vec<Measured>; 2] = [Vec::new(), Vec::new()];
            for round in 0..plan.rounds {
                for ((who, server, client), rounds) in contenders.iter_mut().zip(&mut rounds) {
                    setting.progress.inc(1);
                    setting.progress.set_message(format!("{}.{job}{suffix}", who.name()));
                    let job = Job { what, pace: PACE };
                    rounds.push(client.run(job, round, plan.span, server.processes())?);
                }
            }
            let names = contenders.iter().map(|(who, ..)| format!("{}.{job}{suffix}", who.name()));
            cases.extend(names.zip(rounds).filter_map(|(name, rounds)| case(&name, PACE, rounds)));
        }
    }
    let ratios = ratios(&cases);
    Ok(Report { bench: "director".to_owned(), cases, ratios })
}

/// Not ratios but differences, in microseconds.
fn ratios(cases: &[Case]) -> BTreeMap<String, f64> {
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
        assert_eq!(ratios(&cases), expected);
    }
}
