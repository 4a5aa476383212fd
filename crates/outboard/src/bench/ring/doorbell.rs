//! The round trip of one request and its response: with both halves asleep, and with both polling.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ob_core::Incarnation;
use ob_io::{Config, Reactor};
use ob_link::{CardLink, CardLinkConfig, CardLoop, Endpoint, HostGroup, HostLink, HostLinkConfig, Listen};
use ob_ring::Outgoing;

use super::BenchFailure;
use crate::bench::{Case, CpuMeter, Latencies};
use crate::probe::{PROBE_SERVICE, ProbeService};

/// The command line of the host's half, which the benchmark starts by itself.
#[derive(Clone, Debug, clap::Args)]
pub struct DoorbellOptions {
    /// The card's socket
    #[arg(long)]
    pub socket: PathBuf,
    /// How many round trips
    #[arg(long)]
    pub count: usize,
    /// Whether to poll instead of sleeping
    #[arg(long)]
    pub awake: bool,
}

/// Measures round trips with a card that polls for `spin` after its last event.
pub(super) fn round_trips(case: &str, spin: Duration, count: usize) -> Result<Case, BenchFailure> {
    let directory = std::env::temp_dir().join(format!("outboard-bench-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let outcome = serve(case, spin, count, &directory.join("link.sock"));
    std::fs::remove_dir_all(&directory)?;
    outcome
}

fn serve(case: &str, spin: Duration, count: usize, socket: &PathBuf) -> Result<Case, BenchFailure> {
    let reactor = Reactor::new(&Config::default())?;
    let waker = reactor.handle().waker();
    let config = CardLinkConfig {
        incarnation: Incarnation(1),
        listen: vec![Listen::Unix(socket.clone())],
        costs: None,
        pollers: 1,
        dead_after: Duration::from_secs(10),
        memory_max: 1 << 20,
        host_memory_max: 1 << 20,
        hosts_max: 1,
        allow_users: Vec::new(),
        allow_addresses: Vec::new(),
    };
    let link = CardLink::new(&reactor.handle(), config)?;
    let mut card = CardLoop::new(reactor, link, ProbeService::default(), spin);
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("bench-ring-doorbell").arg("--socket").arg(socket).args(["--count", &count.to_string()]);
    if !spin.is_zero() {
        command.arg("--awake");
    }
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let meter = CpuMeter::start(Some(std::process::id()), Some(child.id()))?;
    let mut output = BufReader::new(child.stdout.take().ok_or("the child has no output")?);
    let done = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&done);
    let reader = std::thread::spawn(move || {
        let mut line = String::new();
        let read = output.read_line(&mut line);
        flag.store(true, Ordering::Release);
        waker.wake();
        read.map(|_| line)
    });
    let mut others = Vec::new();
    while !done.load(Ordering::Acquire) {
        card.turn(None, &mut others);
        others.clear();
    }
    let cpu = meter.finish(count as u64)?;
    card.link.shut_down(&mut card.service);
    let line = reader.join().map_err(|_| "the reader of the child's report failed")??;
    child.wait()?;
    let nanoseconds: Vec<u64> = serde_json::from_str(&line)?;
    let mut latencies = Latencies::new();
    nanoseconds.iter().for_each(|time| latencies.record(Duration::from_nanos(*time)));
    let total = Duration::from_nanos(nanoseconds.iter().sum());
    Ok(Case::new(case, total.as_secs_f64(), &latencies, cpu))
}

/// Runs the host's half and reports its round trips in nanoseconds.
pub fn run_doorbell(options: &DoorbellOptions) -> Result<(), BenchFailure> {
    let link = HostLink::attach(&HostLinkConfig {
        endpoint: Endpoint::Unix(options.socket.clone()),
        name: "bench".to_owned(),
        incarnation: Incarnation(1),
        pollers: u16::from(options.awake),
        attach_within: Duration::from_secs(10),
        dead_after: Duration::from_secs(10),
    })?;
    let group = link.open_group(PROBE_SERVICE, 4096, 4096)?;
    let mut times = Vec::with_capacity(options.count);
    for number in 0..options.count as u64 {
        if !options.awake {
            // Long enough for a card that does not poll to be asleep again.
            std::thread::sleep(Duration::from_micros(100));
        }
        let started = Instant::now();
        round_trip(&group, number, options.awake)?;
        times.push(u64::try_from(started.elapsed().as_nanos())?);
    }
    println!("{}", serde_json::to_string(&times)?);
    Ok(())
}

fn round_trip(group: &HostGroup, number: u64, awake: bool) -> Result<(), BenchFailure> {
    group.sender.push(Outgoing { inline: &number.to_le_bytes(), payload: None })?;
    let receive = || match group.receiver.receive() {
        Ok(None) => None,
        Ok(Some(response)) => {
            let mut echo = [0; 8];
            response.inline(&mut echo);
            Some(Ok(u64::from_le_bytes(echo)))
        }
        Err(error) => Some(Err(error)),
    };
    let echo = if awake {
        loop {
            if let Some(echo) = receive() {
                break echo;
            }
            std::hint::spin_loop();
        }
    } else {
        group.wait_response(Duration::from_secs(10), receive)?
    };
    if echo? == number { Ok(()) } else { Err("a response to another request came back".into()) }
}
