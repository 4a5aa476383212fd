//! The card's half: one thread that polls.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ob_core::{Clock, Dma, RegionId, Token};
use ob_io::MonotonicClock;
use ob_link::ModelDma;
use ob_ring::baseline::farm::FarmReceiver;
use ob_ring::{CardReceiver, LocalDma, Received};
use rustix::thread::sched_setaffinity;

use super::producers::{Sent, spec};
use super::{BenchFailure, LinkCase, RingKind};
use crate::accounting;
use crate::bench::Latencies;
use crate::bench::cores::{card_core, pin};

/// How long a card that reaches host memory by itself leaves a ring alone after it has taken a batch: about as long as a
/// transfer over PCIe would take. Each look takes the pointers' cache lines away from the producers, and a card that
/// looks without pause gets batches of a few messages and halves the rate.
const REST_AFTER_BATCH: Duration = Duration::from_nanos(1_000);

/// What one round measured.
pub(super) struct Measured {
    pub(super) messages: u64,
    pub(super) seconds: f64,
    pub(super) latencies: Latencies,
    pub(super) transfers: u64,
    pub(super) retries: u64,
    pub(super) card_cpu: Duration,
    pub(super) host_cpu: Duration,
    pub(super) machine_busy: Duration,
}

/// Runs one round: a fresh ring, a fresh host process.
pub(super) fn measure(
    ring: RingKind,
    link: LinkCase,
    producers: usize,
    time: Duration,
) -> Result<Measured, BenchFailure> {
    let (spec, len) = spec()?;
    let (file, region) = ob_link::memory_file::create(len)?;
    let mut dma = LocalDma::new(64, 2 << 20);
    dma.register(RegionId(0), region);
    let dma: Box<dyn Dma> = match link.costs {
        None => Box::new(dma),
        Some(costs) => Box::new(ModelDma::new(dma, MonotonicClock, costs, 64)),
    };
    let end = match ring {
        RingKind::Farm => End::Farm(FarmReceiver::new(spec, Token(0))),
        RingKind::Progress | RingKind::Lock => End::Batched(CardReceiver::new(spec, Token(0))),
    };
    let core = if link.aside { card_core()? } else { None };
    let mut host = HostProcess::start(ring, file.as_raw_fd(), producers, time, core)?;
    let everywhere = pin(core)?;
    let rest = if link.costs.is_none() { REST_AFTER_BATCH } else { Duration::ZERO };
    let outcome = Card { dma, end, rest, messages: 0, latencies: Latencies::new() }.run(&mut host);
    sched_setaffinity(None, &everywhere)?;
    outcome
}

enum End {
    Batched(CardReceiver),
    Farm(FarmReceiver),
}

struct Card {
    dma: Box<dyn Dma>,
    end: End,
    rest: Duration,
    messages: u64,
    latencies: Latencies,
}

impl Card {
    fn run(mut self, host: &mut HostProcess) -> Result<Measured, BenchFailure> {
        let (cpu, busy) = (accounting::thread_cpu(), accounting::machine_busy()?);
        host.go()?;
        let started = Instant::now();
        while !host.reported() {
            for _ in 0..64 {
                self.turn()?;
            }
        }
        let seconds = started.elapsed().as_secs_f64();
        let card_cpu = accounting::thread_cpu().saturating_sub(cpu);
        let machine_busy = accounting::machine_busy()?.saturating_sub(busy);
        let (messages, transfers) = (self.messages, self.dma.counts().operations());
        let sent = host.finish()?;
        // The rest is not measured, but it must all be there: a ring that loses messages is not fast.
        let patience = Instant::now();
        while self.messages < sent.messages && patience.elapsed() < Duration::from_secs(10) {
            self.turn()?;
        }
        if self.messages != sent.messages {
            return Err(format!("{} messages were sent and {} arrived", sent.messages, self.messages).into());
        }
        Ok(Measured {
            messages,
            seconds,
            latencies: self.latencies,
            transfers,
            retries: sent.retries,
            card_cpu,
            host_cpu: Duration::from_nanos(sent.cpu_ns),
            machine_busy,
        })
    }

    fn turn(&mut self) -> Result<(), BenchFailure> {
        let dma = self.dma.as_mut();
        match &mut self.end {
            End::Batched(receiver) => {
                receiver.step(dma)?;
                let mut taken_at = None;
                while let Some(completion) = dma.poll() {
                    if let Received::Batch(batch) = receiver.complete(dma, completion)? {
                        let now = MonotonicClock.now().nanoseconds();
                        for message in batch.iter() {
                            self.messages += 1;
                            note(&mut self.latencies, message.inline.first_chunk(), now);
                        }
                        taken_at = Some(MonotonicClock.now());
                    }
                }
                if let Some(taken_at) = taken_at {
                    while MonotonicClock.now() - taken_at < self.rest {
                        std::hint::spin_loop();
                    }
                }
            }
            End::Farm(receiver) => {
                receiver.step(dma)?;
                while let Some(completion) = dma.poll() {
                    if let Some(message) = receiver.complete(dma, &completion)? {
                        self.messages += 1;
                        if message != 0 {
                            let now = MonotonicClock.now().nanoseconds();
                            note(&mut self.latencies, Some(&message.to_le_bytes()), now);
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

fn note(latencies: &mut Latencies, stamp: Option<&[u8; 8]>, now: u64) {
    match stamp.map(|stamp| u64::from_le_bytes(*stamp)) {
        None | Some(0) => {}
        Some(sent) => latencies.record(Duration::from_nanos(now.saturating_sub(sent))),
    }
}

/// The child with the producers. Ended when dropped.
struct HostProcess {
    child: Child,
    stdin: ChildStdin,
    reported: Arc<AtomicBool>,
    reader: Option<std::thread::JoinHandle<std::io::Result<String>>>,
}

impl HostProcess {
    fn start(
        ring: RingKind,
        region: i32,
        producers: usize,
        time: Duration,
        core: Option<usize>,
    ) -> Result<Self, BenchFailure> {
        let mut command = Command::new(std::env::current_exe()?);
        // A memory file has no name but this one.
        let region = format!("/proc/{}/fd/{region}", std::process::id());
        command.args(["bench-ring-producers", "--region", &region, "--ring", ring.name()]);
        command.args([
            "--producers",
            &producers.to_string(),
            "--milliseconds",
            &time.as_millis().to_string(),
        ]);
        if let Some(core) = core {
            command.args(["--card-core", &core.to_string()]);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdin = child.stdin.take().ok_or("the child has no input")?;
        let mut stdout = BufReader::new(child.stdout.take().ok_or("the child has no output")?);
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        if line.trim() != "ready" {
            return Err("the host's half of the benchmark did not start".into());
        }
        let reported = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&reported);
        let reader = std::thread::spawn(move || {
            let mut line = String::new();
            let read = stdout.read_line(&mut line);
            flag.store(true, Ordering::Release);
            read.map(|_| line)
        });
        Ok(Self { child, stdin, reported, reader: Some(reader) })
    }

    fn go(&mut self) -> std::io::Result<()> {
        self.stdin.write_all(b"go\n")?;
        self.stdin.flush()
    }

    fn reported(&self) -> bool {
        self.reported.load(Ordering::Acquire)
    }

    fn finish(&mut self) -> Result<Sent, BenchFailure> {
        let reader = self.reader.take().ok_or("the child has reported already")?;
        let line = reader.join().map_err(|_| "the reader of the child's report failed")??;
        self.child.wait()?;
        Ok(serde_json::from_str(&line)?)
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
