//! The host's half: producer threads in a process of their own.

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use ob_core::{Clock, RegionId};
use ob_io::MonotonicClock;
use ob_memory::Region;
use ob_ring::baseline::farm::FarmSender;
use ob_ring::baseline::lock::LockSender;
use ob_ring::{CardBell, Closed, HostSender, Outgoing, PushError};
use ob_wire_link::ring::RingSpec;
use serde::{Deserialize, Serialize};

use super::{BenchFailure, CAPACITY, RingKind};
use crate::accounting;
use crate::bench::cores::leave;

/// One message in so many carries the time it was sent at.
pub(super) const STAMP_EVERY: u64 = 64;

/// The command line of the host's half, which the benchmark starts by itself.
#[derive(Clone, Debug, clap::Args)]
pub struct ProducerOptions {
    /// The memory that holds the ring
    #[arg(long)]
    pub region: PathBuf,
    /// Which ring
    #[arg(long)]
    pub ring: RingKind,
    /// How many threads
    #[arg(long)]
    pub producers: usize,
    /// How long they send
    #[arg(long)]
    pub milliseconds: u64,
    /// The core that they must leave to the card
    #[arg(long)]
    pub card_core: Option<usize>,
}

/// What the host's half reports when its time is up.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Sent {
    pub(super) messages: u64,
    pub(super) retries: u64,
    pub(super) cpu_ns: u64,
}

/// The ring that the benchmark is about, as both halves know it.
pub(super) fn spec() -> Result<(RingSpec, u64), BenchFailure> {
    let (request, _, len) = RingSpec::group(RegionId(0), CAPACITY, CAPACITY, 2 << 20)?;
    Ok((request, len))
}

/// The card polls without pause, so that nobody needs to wake it.
struct NoBell;

impl CardBell for NoBell {
    fn ring(&self) {}
}

enum Sender {
    Progress(HostSender),
    Lock(LockSender),
    Farm(FarmSender),
}

impl Sender {
    fn new(ring: RingKind, region: Region, spec: RingSpec) -> Self {
        match ring {
            RingKind::Progress => {
                Self::Progress(HostSender::new(region, spec, Closed::default(), Arc::new(NoBell)))
            }
            RingKind::Lock => Self::Lock(LockSender::new(region, spec, Arc::new(NoBell))),
            RingKind::Farm => Self::Farm(FarmSender::new(region, spec)),
        }
    }

    fn push(&self, message: u64) -> Result<(), PushError> {
        match self {
            Self::Progress(sender) => sender.push(Outgoing { inline: &message.to_le_bytes(), payload: None }),
            Self::Lock(sender) => sender.push(&message.to_le_bytes()),
            Self::Farm(sender) => sender.push(message),
        }
    }
}

/// Runs the host's half: says `ready`, waits for a line, sends for its time, reports.
pub fn run_producers(options: &ProducerOptions) -> Result<(), BenchFailure> {
    leave(options.card_core)?;
    let file = std::fs::File::options().read(true).write(true).open(&options.region)?;
    let (spec, _) = spec()?;
    let sender = Sender::new(options.ring, ob_link::memory_file::open(&file.into())?, spec);
    let (stop, go) = (AtomicBool::new(false), Barrier::new(options.producers + 1));
    let (messages, retries) = (AtomicU64::new(0), AtomicU64::new(0));
    let cpu = std::thread::scope(|scope| -> Result<Duration, BenchFailure> {
        for _ in 0..options.producers {
            scope.spawn(|| {
                go.wait();
                let (sent, refused) = produce(&sender, &stop);
                messages.fetch_add(sent, Ordering::Relaxed);
                retries.fetch_add(refused, Ordering::Relaxed);
            });
        }
        println!("ready");
        std::io::stdout().flush()?;
        std::io::stdin().lock().read_line(&mut String::new())?;
        let before = accounting::own_cpu();
        go.wait();
        let started = Instant::now();
        while started.elapsed() < Duration::from_millis(options.milliseconds) {
            std::thread::sleep(Duration::from_millis(options.milliseconds).saturating_sub(started.elapsed()));
        }
        stop.store(true, Ordering::Relaxed);
        Ok(before)
    })?;
    let report = Sent {
        messages: messages.load(Ordering::Relaxed),
        retries: retries.load(Ordering::Relaxed),
        cpu_ns: u64::try_from(accounting::own_cpu().saturating_sub(cpu).as_nanos())?,
    };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

fn produce(sender: &Sender, stop: &AtomicBool) -> (u64, u64) {
    let (mut sent, mut refused) = (0u64, 0u64);
    while !stop.load(Ordering::Relaxed) {
        let stamp = if sent.is_multiple_of(STAMP_EVERY) { MonotonicClock.now().nanoseconds() } else { 0 };
        while sender.push(stamp).is_err() {
            refused += 1;
            if stop.load(Ordering::Relaxed) {
                return (sent, refused);
            }
            std::thread::yield_now();
        }
        sent += 1;
    }
    (sent, refused)
}
