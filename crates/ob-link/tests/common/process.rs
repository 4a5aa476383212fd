//! Other processes: the test binary once more, with a role.
//!
//! A target that uses this has a test named `child` which does nothing unless a role is given. A child says lines
//! that begin with `@`, hears lines on its standard input, and ends when that is closed.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use rustix::process::{Pid, Signal, kill_process};

use super::{LONG, observe};

const ROLE: &str = "OUTBOARD_TEST_ROLE";

/// A child process; killed when dropped.
pub struct Child {
    process: std::process::Child,
    lines: Receiver<String>,
}

/// What this process is to play, if it is a child.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// A setting that the parent gave.
pub fn setting(name: &str) -> String {
    std::env::var(format!("OUTBOARD_TEST_{name}")).unwrap_or_else(|_| panic!("no setting {name}"))
}

/// Says a line to the parent.
pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "@{line}");
    let _ = out.flush();
}

/// The lines that the parent says. The process ends with the last of them.
pub fn orders() -> Receiver<String> {
    let (tell, told) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let _ = tell.send(line);
        }
        std::process::exit(3);
    });
    told
}

impl Child {
    pub fn start(role: &str, settings: &[(&str, String)]) -> Self {
        Self::start_in(None, role, settings)
    }

    /// Starts a child, in a network namespace if one is named.
    pub fn start_in(namespace: Option<&str>, role: &str, settings: &[(&str, String)]) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut command = match namespace {
            None => Command::new(program),
            Some(name) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", name]).arg(program);
                command
            }
        };
        command.args(["--exact", "child", "--nocapture", "--test-threads=1"]).env(ROLE, role);
        // How much address space a child takes does not depend on which of its threads is first.
        command.env("MALLOC_ARENA_MAX", "1");
        for (name, value) in settings {
            command.env(format!("OUTBOARD_TEST_{name}"), value);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let out = process.stdout.take().unwrap();
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                // The harness's own words may stand before the first of ours.
                if let Some((_, line)) = line.split_once('@') {
                    let _ = tell.send(line.to_owned());
                }
            }
        });
        Self { process, lines }
    }

    pub fn pid(&self) -> i32 {
        self.process.id() as i32
    }

    /// Waits for a line that begins so, and gives the rest of it.
    pub fn expect(&self, beginning: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(LONG);
            let line = line.unwrap_or_else(|error| panic!("the child never said {beginning:?}: {error}"));
            if let Some(rest) = line.strip_prefix(beginning) {
                return rest.trim().to_owned();
            }
        }
    }

    pub fn tell(&mut self, line: &str) {
        writeln!(self.process.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    pub fn signal(&self, signal: Signal) {
        signal_process(self.pid(), signal);
    }

    /// Kills it and waits until it is gone.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Waits until it ends by itself, and well.
    pub fn finish(mut self) {
        let status = observe("the end of a child", || self.process.try_wait().unwrap());
        assert!(status.success(), "the child failed: {status}");
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends a signal to a process that the test started.
pub fn signal_process(pid: i32, signal: Signal) {
    let _ = kill_process(Pid::from_raw(pid).unwrap(), signal);
}
