//! Runs the real program and watches it: every wait has something to observe and a deadline.

#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) mod confinement;
pub(crate) mod etcd;
pub(crate) mod kv;
pub(crate) mod resp;

use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Longer than anything here takes on a busy machine; reached only when a test fails.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Cards of several tests run at once, and clients of most of them do not come over NVMe.
pub(crate) const FREE_NVME_PORTS: &str =
    "[nvme]\nlisten = \"127.0.0.1:0\"\ndiscovery = \"127.0.0.1:0\"\nsize = \"64MiB\"\n";

/// Tests of other services find no files and no hosts but their own.
const NO_KV: &str = "[kv]\nenabled = false\n";

/// A directory with a configuration whose ports are any that are free.
pub(crate) struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self::with_config("[status]\nlisten = \"127.0.0.1:0\"\n")
    }

    pub(crate) fn with_config(text: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut text = text.to_owned();
        for (section, free) in [("[nvme]", FREE_NVME_PORTS), ("[kv]", NO_KV)] {
            if !text.contains(section) {
                text.push_str(free);
            }
        }
        std::fs::write(directory.path().join("outboard.toml"), text).unwrap();
        Self { directory }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.path().join("data")
    }

    /// The program with these arguments, in this directory.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outboard"));
        command.args(arguments).current_dir(self.path()).env_remove("OUTBOARD_LOG");
        command.stdin(Stdio::null());
        command
    }

    /// Runs a command that ends by itself.
    pub(crate) fn output(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Starts a command that runs until it is stopped, with this place's configuration and data.
    pub(crate) fn start(&self, arguments: &[&str]) -> Program {
        self.start_with("outboard.toml", "data", arguments)
    }

    /// The same, with another configuration and other data.
    pub(crate) fn start_with(&self, config: &str, data: &str, arguments: &[&str]) -> Program {
        let mut command = self.command(arguments);
        command.args(["--config", config, "--data", data]);
        Program::start(command)
    }

    /// The same from a shell that lets a program have so many descriptors unless it asks for more.
    pub(crate) fn start_with_descriptors(&self, count: u32, arguments: &[&str]) -> Program {
        self.start_behind(&format!("ulimit -S -n {count}"), arguments)
    }

    /// The same from a shell that does something first, to itself: it becomes the program.
    pub(crate) fn start_behind(&self, first: &str, arguments: &[&str]) -> Program {
        let script = format!("{first} && exec \"$0\" \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_outboard")]).args(arguments);
        command.args(["--config", "outboard.toml", "--data", "data"]);
        command.current_dir(self.path()).env_remove("OUTBOARD_LOG").stdin(Stdio::null());
        Program::start(command)
    }

    /// A half's incarnation as its file has it.
    pub(crate) fn incarnation(&self, half: &str) -> u64 {
        let text = std::fs::read_to_string(self.data().join(half).join("incarnation")).unwrap();
        text.trim().parse().unwrap()
    }
}

/// A running program. Killed when dropped, and what it started dies with it.
pub(crate) struct Program {
    child: Child,
    handle: OwnedFd,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Program {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = channel();
        follow(child.stdout.take().unwrap(), sender.clone());
        follow(child.stderr.take().unwrap(), sender);
        let handle = handle(child.id());
        Self { child, handle, lines, seen: Vec::new() }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line, on either stream, that holds the text.
    pub(crate) fn wait_for(&mut self, text: &str) -> String {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    self.seen.push(line.clone());
                    if line.contains(text) {
                        return line;
                    }
                }
                Err(_) => panic!("`{text}` did not come; what came:\n{}", self.seen.join("\n")),
            }
        }
    }

    /// Every line that has been waited past so far.
    pub(crate) fn seen(&self) -> &[String] {
        &self.seen
    }

    pub(crate) fn signal(&self, signal: Signal) {
        pidfd_send_signal(&self.handle, signal).unwrap();
    }

    /// Waits for its end; the lines that came until then are in [`Program::seen`].
    pub(crate) fn wait(&mut self) -> ExitStatus {
        wait_for_end(&self.handle);
        let status = self.child.wait().unwrap();
        while let Ok(line) = self.lines.recv_timeout(DEADLINE) {
            self.seen.push(line);
        }
        status
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn follow(stream: impl Read + Send + 'static, sender: Sender<String>) {
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
}

/// A descriptor that names a process and no other.
pub(crate) fn handle(pid: u32) -> OwnedFd {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    pidfd_open(pid, PidfdFlags::empty()).unwrap()
}

/// Waits until a process has ended.
pub(crate) fn wait_for_end(handle: &OwnedFd) {
    let timeout = Timespec { tv_sec: DEADLINE.as_secs().try_into().unwrap(), tv_nsec: 0 };
    let mut descriptors = [PollFd::new(handle, PollFlags::IN)];
    assert_eq!(poll(&mut descriptors, Some(&timeout)), Ok(1), "the process has not ended in time");
}

/// The number after a word in a line: `number_after("card (pid 7, …", "card (pid ")` is 7.
pub(crate) fn number_after(line: &str, word: &str) -> u64 {
    let (_, rest) = line.split_once(word).unwrap_or_else(|| panic!("no `{word}` in `{line}`"));
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("no number after `{word}` in `{line}`"))
}

/// The same, for process numbers.
pub(crate) fn pid_after(line: &str, word: &str) -> u32 {
    number_after(line, word).try_into().unwrap()
}
