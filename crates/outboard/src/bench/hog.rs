//! Other work on the host's core.

use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, getppid, setpriority_process};
use rustix::thread::sched_setaffinity;

use crate::bench::BenchFailure;
use crate::bench::cores::pin;

/// Turns of a loop between looks at whether the benchmark is still there.
const TURNS: u32 = 10_000_000;
/// Bytes that a hog copies at a time.
const COPIED: usize = 64 << 20;

/// The command line of the hog, which the benchmark starts by itself.
#[derive(Clone, Debug, clap::Args)]
pub struct HogOptions {
    /// Who started it; it ends when that has
    #[arg(long)]
    pub supervisor: i32,
    /// Copy memory from one place to another, instead of counting
    #[arg(long)]
    pub memory: bool,
    /// Leave the core to whoever else wants it: at the lowest priority
    #[arg(long)]
    pub yields: bool,
}

/// The lowest priority that a process can have.
const LOWEST: i32 = 19;

/// Keeps a core busy as long as the benchmark is there.
pub fn run_hog(options: &HogOptions) -> Result<(), BenchFailure> {
    if options.yields {
        setpriority_process(None, LOWEST)?;
    }
    if options.memory {
        return copy(options);
    }
    while getppid().map(Pid::as_raw_pid) == Some(options.supervisor) {
        for turn in 0..TURNS {
            std::hint::black_box(turn);
        }
    }
    Ok(())
}

/// More than caches have goes to and fro.
fn copy(options: &HogOptions) -> Result<(), BenchFailure> {
    let (mut from, mut to) = (vec![1u8; COPIED], vec![0u8; COPIED]);
    while getppid().map(Pid::as_raw_pid) == Some(options.supervisor) {
        to.copy_from_slice(&from);
        std::hint::black_box(&mut to);
        std::mem::swap(&mut from, &mut to);
    }
    Ok(())
}

/// What a hog does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bench) enum HogWork {
    /// It counts.
    Count,
    /// It copies memory, and takes the core from others for that.
    Memory,
    /// It copies memory while nobody else wants the core: what others lose by it is memory's bandwidth and what caches hold, and no time
    /// of a processor.
    MemoryAside,
}

/// A process that keeps a core busy until it is dropped.
pub(in crate::bench) struct Hog(Child);

impl Hog {
    pub(in crate::bench) fn start(core: Option<usize>, work: HogWork) -> Result<Self, BenchFailure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("bench-hog").arg("--supervisor").arg(std::process::id().to_string());
        if work != HogWork::Count {
            command.arg("--memory");
        }
        if work == HogWork::MemoryAside {
            command.arg("--yields");
        }
        command.stdin(Stdio::null());
        let before = pin(core)?;
        let child = command.spawn();
        sched_setaffinity(None, &before)?;
        Ok(Self(child?))
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
