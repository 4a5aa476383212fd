//! Other work on the host's core.

use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, getppid};
use rustix::thread::sched_setaffinity;

use crate::bench::BenchFailure;
use crate::bench::cores::pin;

/// Turns of a loop between looks at whether the benchmark is still there.
const TURNS: u32 = 10_000_000;

/// The command line of the hog, which the benchmark starts by itself.
#[derive(Clone, Debug, clap::Args)]
pub struct HogOptions {
    /// Who started it; it ends when that has
    #[arg(long)]
    pub supervisor: i32,
}

/// Keeps a core busy as long as the benchmark is there.
pub fn run_hog(options: &HogOptions) -> Result<(), BenchFailure> {
    while getppid().map(Pid::as_raw_pid) == Some(options.supervisor) {
        for turn in 0..TURNS {
            std::hint::black_box(turn);
        }
    }
    Ok(())
}

/// A process that keeps a core busy until it is dropped.
pub(super) struct Hog(Child);

impl Hog {
    pub(super) fn start(core: Option<usize>) -> Result<Self, BenchFailure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("bench-hog").arg("--supervisor").arg(std::process::id().to_string());
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
