//! `outboard bench remote`: a file that is read and written over the network (DDS §8.1 to §8.3).
//!
//! ```text
//!   os        client ◀─ TCP ─▶ host ─▶ file of the operating system
//!   library   client ◀─ TCP ─▶ host ─▶ library ◀─ link ─▶ card ─▶ file
//!   card      client ◀─ TCP ─▶ card ─▶ file          reads
//!             client ◀─ TCP ─▶ card ◀─ link ─▶ host ◀─ link ─▶ card ─▶ file     writes
//! ```
//!
//! Requests of 1 KiB come in messages of several, at rising load: more and more messages are out at once. The client has a core
//! of its own; host and card share another, so that a server has one core however its work is divided. All are there at once,
//! and one works while the others sleep, round by round in turn. Everything that is read is checked.

mod backend;
mod card;
mod client;
mod host;
mod plain;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ob_sim::Rng;
use rustix::thread::sched_setaffinity;

pub use card::{RemoteCardOptions, run_remote_card};
pub use host::{RemoteHostKind, RemoteHostOptions, run_remote_host};

use super::cores::{Layout, pin};
use super::load::Direction;
use super::process::{Place, ServerProcess};
use super::talk::{Measured, Pace, Processes, Span, Talk, case};
use super::turns::by_turns;
use super::{Bench, BenchFailure, Case, Report, Setting};
use client::{Message, RemoteDialogue};
use host::READY;
use plain::LISTENING;

/// Only cases whose names contain this are measured, for those who want to look closer.
const ONLY_VARIABLE: &str = "OUTBOARD_BENCH_ONLY";
/// Bytes of a request.
const REQUEST_LEN: usize = 1 << 10;
/// Requests of a message.
const BATCH: usize = 8;
const CONNECTIONS: usize = 4;
/// How long servers poll after an event: not at all, for those of one server share a core, and who polls keeps the other from
/// what it waits for.
const SPIN: Duration = Duration::ZERO;

/// The benchmark.
#[derive(Debug)]
pub struct RemoteBench;

/// How much is measured.
struct Plan {
    bytes: u64,
    /// Messages that each connection has out; ratios are of the last.
    depths: &'static [usize],
    rounds: u64,
    span: Span,
}

const FULL: Plan = Plan {
    bytes: 512 << 20,
    depths: &[1, 4, 16],
    rounds: 5,
    span: Span { warm_up: Duration::from_millis(100), time: Duration::from_millis(1000) },
};
const QUICK: Plan = Plan {
    bytes: 8 << 20,
    depths: &[1, 4],
    rounds: 1,
    span: Span { warm_up: Duration::from_millis(10), time: Duration::from_millis(50) },
};

const KINDS: [RemoteHostKind; 3] = [RemoteHostKind::Os, RemoteHostKind::Library, RemoteHostKind::Offloaded];

fn name(kind: RemoteHostKind) -> &'static str {
    match kind {
        RemoteHostKind::Os => "os",
        RemoteHostKind::Library => "library",
        RemoteHostKind::Offloaded => "card",
    }
}

impl Bench for RemoteBench {
    fn name(&self) -> &'static str {
        "remote"
    }

    fn about(&self) -> &'static str {
        "a file over the network: on the host's own file, through the library, and answered by the card"
    }

    fn run(&self, setting: &Setting<'_>) -> Result<Report, BenchFailure> {
        let plan = if setting.quick { &QUICK } else { &FULL };
        let layout = Layout::together()?;
        let place = Place::new()?;
        let before = pin(layout.client)?;
        let outcome = measure(plan, setting, &place, layout);
        sched_setaffinity(None, &before)?;
        outcome
    }
}

/// A server, and the client that talks to it.
pub(super) struct Contender {
    kind: RemoteHostKind,
    // The client goes first, then the host, then the card that it is attached to.
    talk: Talk<RemoteDialogue>,
    host: ServerProcess,
    card: Option<ServerProcess>,
}

/// What a server is to be like.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) kind: RemoteHostKind,
    /// Bytes of its file.
    pub(super) bytes: u64,
    /// Its card copies what was read before it is sent.
    pub(super) copies: bool,
}

impl Contender {
    pub(super) fn start(wanted: Wanted, place: &Path, layout: Layout) -> Result<Self, BenchFailure> {
        let Wanted { kind, bytes, .. } = wanted;
        std::fs::create_dir_all(place)?;
        let socket = place.join("link.sock");
        let mut card = match kind {
            RemoteHostKind::Os => None,
            RemoteHostKind::Library | RemoteHostKind::Offloaded => {
                let mut command = card_command(&socket, &place.join("device"), wanted)?;
                let mut card = ServerProcess::start(&mut command, &place.join("card.log"), layout.card)?;
                // Its socket is there a moment before it listens.
                card.wait_until_said("open its socket", |line| line == READY)?;
                Some(card)
            }
        };
        let path = if card.is_some() { socket } else { place.join("file") };
        let mut command = host_command(kind, &path, bytes)?;
        let mut host = ServerProcess::start(&mut command, &place.join("host.log"), layout.host)?;
        let listen = match &mut card {
            Some(card) if kind == RemoteHostKind::Offloaded => {
                host.wait_until_said("meet its card", |line| line == READY)?;
                listening(card)?
            }
            Some(_) | None => listening(&mut host)?,
        };
        let talk = Talk::connect(listen, CONNECTIONS, RemoteDialogue::default, ())?;
        Ok(Self { kind, talk, host, card })
    }

    /// Reads pieces of one length for some time, one a message.
    pub(super) fn read(
        &mut self,
        len: usize,
        file_len: u64,
        pace: Pace,
        round: u64,
        span: Span,
    ) -> Result<Measured, BenchFailure> {
        let rng = Rng::new(1).fork_numbered("pieces", round);
        let (mut places, count) = (rng.clone(), file_len / len as u64);
        let asks = move || {
            let offsets = vec![places.below(count) * len as u64];
            Message { direction: Direction::Read, len, offsets }
        };
        let processes = self.processes();
        self.talk.measure(pace, rng, asks, span, processes)
    }

    fn processes(&self) -> Processes {
        Processes { card: self.card.as_ref().map(ServerProcess::pid), host: Some(self.host.pid()) }
    }
}

/// Waits until a process says where it serves clients.
fn listening(process: &mut ServerProcess) -> Result<SocketAddr, BenchFailure> {
    let mut address = None;
    process.wait_until_said("listen", |line| {
        address = line.strip_prefix(LISTENING).and_then(|text| text.parse().ok());
        address.is_some()
    })?;
    address.ok_or_else(|| "nobody listens".into())
}

fn card_command(socket: &Path, device: &Path, wanted: Wanted) -> Result<Command, BenchFailure> {
    let mut command = Command::new(std::env::current_exe()?);
    // Room for what a file system needs besides.
    let bytes = wanted.bytes + wanted.bytes / 4 + (64 << 20);
    command.arg("bench-remote-card").arg("--socket").arg(socket).arg("--device").arg(device);
    command.args(["--bytes", &bytes.to_string()]);
    command.args((wanted.kind == RemoteHostKind::Offloaded).then_some("--serve"));
    command.args(wanted.copies.then_some("--copy"));
    Ok(command)
}

fn host_command(kind: RemoteHostKind, path: &Path, bytes: u64) -> Result<Command, BenchFailure> {
    let kind = match kind {
        RemoteHostKind::Os => "os",
        RemoteHostKind::Library => "library",
        RemoteHostKind::Offloaded => "offloaded",
    };
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["bench-remote-host", "--kind", kind]);
    command.arg("--path").arg(path).args(["--bytes", &bytes.to_string()]);
    Ok(command)
}

fn measure(
    plan: &Plan,
    setting: &Setting<'_>,
    place: &Place,
    layout: Layout,
) -> Result<Report, BenchFailure> {
    let only = std::env::var(ONLY_VARIABLE).ok();
    let jobs: Vec<(Direction, usize)> = [Direction::Read, Direction::Write]
        .into_iter()
        .flat_map(|direction| plan.depths.iter().map(move |depth| (direction, *depth)))
        .collect();
    setting.progress.set_length((jobs.len() * KINDS.len()) as u64 * plan.rounds);
    let start = |kind| {
        let wanted = Wanted { kind, bytes: plan.bytes, copies: false };
        Contender::start(wanted, &place.0.join(name(kind)), layout)
    };
    let mut contenders: Vec<Contender> = KINDS.into_iter().map(start).collect::<Result<_, _>>()?;
    let mut cases = Vec::new();
    for (direction, depth) in jobs {
        let rounds = by_turns(plan.rounds, &mut contenders, |contender, round| {
            setting.progress.inc(1);
            let name = case_name(contender.kind, direction, depth);
            if only.as_ref().is_some_and(|only| !name.contains(only)) {
                return Ok(None);
            }
            setting.progress.set_message(name.clone());
            let rng = Rng::new(1).fork_numbered(direction_name(direction), round);
            let asks = messages(direction, plan.bytes, rng.clone());
            let processes = contender.processes();
            let measured = contender.talk.measure(Pace::Closed(depth), rng, asks, plan.span, processes);
            Ok(Some(measured.map_err(|error| format!("{name}: {error}"))?))
        })?;
        let names = contenders.iter().map(|contender| case_name(contender.kind, direction, depth));
        cases.extend(
            names
                .zip(rounds)
                .filter_map(|(name, rounds)| case(&name, Pace::Closed(depth), rounds).map(of_requests)),
        );
    }
    let ratios = ratios(&cases, plan.depths);
    Ok(Report { bench: "remote".to_owned(), cases, ratios })
}

fn messages(direction: Direction, bytes: u64, mut rng: Rng) -> impl FnMut() -> Message {
    let places = bytes / REQUEST_LEN as u64;
    move || {
        let offsets = (0..BATCH).map(|_| rng.below(places) * REQUEST_LEN as u64).collect();
        Message { direction, len: REQUEST_LEN, offsets }
    }
}

fn direction_name(direction: Direction) -> &'static str {
    match direction {
        Direction::Read => "read",
        Direction::Write => "write",
    }
}

fn case_name(kind: RemoteHostKind, direction: Direction, depth: usize) -> String {
    format!("{}.{}.m{depth}", name(kind), direction_name(direction))
}

/// Latencies are those of messages; an operation is one request of theirs.
fn of_requests(mut case: Case) -> Case {
    case.ops_per_s *= BATCH as f64;
    let cpu = &mut case.cpu;
    for time in [&mut cpu.client_cpu_us, &mut cpu.card_cpu_us, &mut cpu.host_cpu_us, &mut cpu.machine_cpu_us]
    {
        *time = time.map(|time| time / BATCH as f64);
    }
    case
}

/// With the card against the operating system's file, at the same load; those of the highest load without its name.
fn ratios(cases: &[Case], depths: &[usize]) -> BTreeMap<String, f64> {
    let mut ratios = BTreeMap::new();
    let highest = depths.last().map(|depth| format!(".m{depth}")).unwrap_or_default();
    for case in cases {
        let Some((who, load)) = case.case.split_once('.') else { continue };
        let Some(os) = cases.iter().find(|other| other.case == format!("os.{load}")) else { continue };
        let suffix = match who {
            "os" => continue,
            "card" => String::new(),
            other => format!(".{other}"),
        };
        let load = load.strip_suffix(&highest).unwrap_or(load);
        let mut add = |what: &str, of: fn(&Case) -> Option<f64>| {
            if let (Some(case), Some(os)) = (of(case), of(os)) {
                ratios.insert(format!("{what}_vs_os.{load}{suffix}"), case / os);
            }
        };
        add("host_cpu", |case| case.cpu.host_cpu_us);
        add("total_cpu", |case| Some(case.cpu.card_cpu_us.unwrap_or(0.0) + case.cpu.host_cpu_us?));
        add("throughput", |case| Some(case.ops_per_s));
        add("p99", |case| Some(case.p99_us));
    }
    ratios
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{CpuPerOperation, Latencies};

    #[test]
    fn ratios_are_named_after_what_was_compared() {
        let case = |name: &str, ops_per_s, card, host| {
            let cpu = CpuPerOperation { card_cpu_us: card, host_cpu_us: Some(host), ..Default::default() };
            Case { ops_per_s, p99_us: 10.0, ..Case::new(name, 1.0, &Latencies::new(), cpu) }
        };
        let cases = [
            case("os.read.m16", 100.0, None, 8.0),
            case("library.read.m16", 50.0, Some(4.0), 8.0),
            case("card.read.m16", 200.0, Some(4.0), 0.0),
            case("card.read.m1", 200.0, Some(4.0), 0.0),
        ];
        let expected = [
            ("host_cpu_vs_os.read", 0.0),
            ("total_cpu_vs_os.read", 0.5),
            ("throughput_vs_os.read", 2.0),
            ("p99_vs_os.read", 1.0),
            ("host_cpu_vs_os.read.library", 1.0),
            ("total_cpu_vs_os.read.library", 1.5),
            ("throughput_vs_os.read.library", 0.5),
            ("p99_vs_os.read.library", 1.0),
        ];
        let expected = expected.into_iter().map(|(name, ratio)| (name.to_owned(), ratio)).collect();
        assert_eq!(ratios(&cases, &[1, 16]), expected);
    }

    #[test]
    fn an_operation_is_a_request() {
        let cpu = CpuPerOperation { host_cpu_us: Some(8.0), ..CpuPerOperation::default() };
        let case = of_requests(Case { ops_per_s: 1.0, ..Case::new("a", 1.0, &Latencies::new(), cpu) });
        assert!((case.ops_per_s - 8.0).abs() < 1e-9);
        assert!((case.cpu.host_cpu_us.unwrap() - 1.0).abs() < 1e-9);
        assert_eq!(case.cpu.card_cpu_us, None);
    }
}
