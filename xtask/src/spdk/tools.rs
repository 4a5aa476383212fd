//! SPDK's programs: where they are, how they are started, and how long they may take.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::command;

const POLL_PAUSE: Duration = Duration::from_millis(20);

// Tests must run beside others, on machines that were set up for nothing: no huge pages, and little memory.
const MEMORY_MIB: &str = "512";

/// A program of SPDK that a step needs. Each of them leaves the machine's PCI devices alone, by itself or because it can be
/// told to; `reconnect`, which does not, is not among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Prints what controllers, namespaces and discovery tell.
    Identify,
    /// Reads and writes through SPDK's driver alone.
    Perf,
    /// Reads and writes through SPDK's block layer; it can check what it reads.
    Bdevperf,
    /// Reads and writes, and aborts some of it.
    Abort,
    /// SPDK's own target.
    Target,
}

impl Program {
    const ALL: [Self; 5] = [Self::Identify, Self::Perf, Self::Bdevperf, Self::Abort, Self::Target];

    fn path(self) -> &'static str {
        match self {
            Self::Identify => "build/bin/spdk_nvme_identify",
            Self::Perf => "build/bin/spdk_nvme_perf",
            Self::Bdevperf => "build/examples/bdevperf",
            Self::Abort => "build/examples/abort",
            Self::Target => "build/bin/nvmf_tgt",
        }
    }
}

/// SPDK as somebody built it.
#[derive(Clone, Debug)]
pub struct Tools {
    folder: PathBuf,
}

impl Tools {
    /// The build in this folder, the one that `configure` is in.
    ///
    /// # Errors
    /// When a program is missing; the text names it.
    pub fn find(folder: &Path) -> Result<Self> {
        for program in Program::ALL {
            let path = folder.join(program.path());
            if !path.is_file() {
                bail!("{} is missing", path.display());
            }
        }
        Ok(Self { folder: folder.to_owned() })
    }

    /// A program with these arguments, for a machine without huge pages.
    #[must_use]
    pub fn command(&self, program: Program, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.folder.join(program.path()));
        command.args(["--no-huge", "-s", MEMORY_MIB]).args(arguments);
        // A build with shared libraries finds them here, and needs no installation.
        command.env("LD_LIBRARY_PATH", self.folder.join("build/lib"));
        command
    }
}

/// A program under way, whose output goes to a file.
pub struct Running {
    child: Child,
    log: PathBuf,
    shown: String,
}

/// How a program ended.
#[derive(Debug)]
pub struct Finished {
    /// Its exit status.
    pub status: ExitStatus,
    /// All that it printed.
    pub text: String,
    /// The command, as one would type it.
    pub shown: String,
}

impl Running {
    /// Starts it.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(mut command: Command, log: &Path) -> Result<Self> {
        let shown = command::shown(&command);
        println!("$ {shown}");
        let output = File::create(log)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot start `{shown}`"))?;
        Ok(Self { child, log: log.to_owned(), shown })
    }

    /// Waits until something is true that the program, or what it talks to, must bring about.
    ///
    /// # Errors
    /// When the program ends before, or the time is over.
    pub fn wait_until(&mut self, what: &str, limit: Duration, mut holds: impl FnMut() -> bool) -> Result<()> {
        let deadline = Instant::now() + limit;
        while !holds() {
            if let Some(status) = self.child.try_wait()? {
                bail!("`{}` ended with {status} before {what}:\n{}", self.shown, self.said());
            }
            if Instant::now() > deadline {
                bail!("{what} did not happen within {} s:\n{}", limit.as_secs(), self.said());
            }
            thread::sleep(POLL_PAUSE);
        }
        Ok(())
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When it does not end in time; it is ended then.
    pub fn finish(mut self, limit: Duration) -> Result<Finished> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Finished { status, text: self.said(), shown: self.shown.clone() });
            }
            if Instant::now() > deadline {
                bail!("`{}` hangs: its {} s are over:\n{}", self.shown, limit.as_secs(), self.said());
            }
            thread::sleep(POLL_PAUSE);
        }
    }

    /// Asks a program that would go on for ever to end, so that it can tidy up.
    ///
    /// # Errors
    /// When it does not end in time.
    pub fn end(self, limit: Duration) -> Result<Finished> {
        let number = self.child.id().to_string();
        // One that has ended meanwhile is found by `finish`.
        let _ = Command::new("kill").args(["-TERM", &number]).stderr(Stdio::null()).status();
        self.finish(limit)
    }

    /// What it has printed so far. Programs that print to a file do so in large pieces, so lines may be missing.
    #[must_use]
    pub fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("xtask-spdk-{name}-{}", std::process::id()))
    }

    fn shell(line: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", line]);
        command
    }

    #[test]
    fn a_folder_without_the_programs_is_refused_by_name() {
        let error = Tools::find(Path::new("/nonexistent")).unwrap_err().to_string();
        assert!(error.contains("spdk_nvme_identify is missing"), "{error}");
    }

    #[test]
    fn what_a_program_said_and_how_it_ended_is_known() {
        let log = log("said");
        let running = Running::start(shell("echo out; echo err >&2; exit 3"), &log).unwrap();
        let finished = running.finish(Duration::from_secs(60)).unwrap();
        assert_eq!((finished.status.code(), finished.text.as_str()), (Some(3), "out\nerr\n"));
        fs::remove_file(log).unwrap();
    }

    #[test]
    fn a_program_that_hangs_is_ended_and_told() {
        let log = log("hangs");
        let running = Running::start(shell("echo begun; exec sleep 600"), &log).unwrap();
        let number = running.child.id();
        let error = running.finish(Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains("hangs"), "{error}");
        assert!(!Path::new(&format!("/proc/{number}")).exists(), "process {number} is still there");
        fs::remove_file(log).unwrap();
    }

    #[test]
    fn waiting_ends_when_the_program_does() {
        let log = log("ends");
        let mut running = Running::start(shell("exit 1"), &log).unwrap();
        let error =
            running.wait_until("the moon", Duration::from_secs(60), || false).unwrap_err().to_string();
        assert!(error.contains("before the moon"), "{error}");
        drop(running);
        fs::remove_file(log).unwrap();
    }
}
