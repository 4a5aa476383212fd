//! A half's process, as its supervisor sees it: two pipes, a descriptor that tells of its end, and its number.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::halves::Role;

// Longer lines are cut: a half that forgets to end its lines must not fill its supervisor's memory.
const LINE_BYTES_MAX: usize = 16 << 10;

/// How to start a half.
#[derive(Clone, Debug)]
pub(super) struct Recipe {
    pub(super) executable: PathBuf,
    pub(super) config: Option<PathBuf>,
    pub(super) data: PathBuf,
    /// Whether volumes are served, whatever the configuration says.
    pub(super) volumes: bool,
    /// Where chunk servers listen, the first one first.
    pub(super) servers: Vec<SocketAddr>,
}

impl Recipe {
    fn command(&self, half: Role, format: bool) -> Command {
        let mut command = Command::new(&self.executable);
        command.arg(half.command()).arg("--json");
        command.arg("--supervisor").arg(std::process::id().to_string());
        match half {
            Role::Card | Role::Host => {
                command.arg("--data").arg(&self.data);
                if self.volumes {
                    command.arg("--volumes");
                }
            }
            Role::ChunkServer(number) => {
                // Each has a directory of its own, with its device in it.
                command.arg("--data").arg(self.data.join(half.to_string()));
                let index = usize::from(number).saturating_sub(1);
                if let Some(address) = self.servers.get(index) {
                    command.arg("--listen").arg(address.to_string());
                }
            }
        }
        if let Some(file) = &self.config {
            command.arg("--config").arg(file);
        }
        if format {
            command.arg("--format");
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A group of its own: Ctrl-C reaches only the supervisor, which then stops the halves in its own way.
        command.process_group(0);
        command
    }
}

/// A running half.
#[derive(Debug)]
pub(super) struct Child {
    pub(super) started: Instant,
    process: std::process::Child,
    // Names the process and no other, even when its number has been given away again.
    handle: OwnedFd,
    messages: Lines<ChildStdout>,
    log: Lines<ChildStderr>,
}

/// What a child has said since it was last asked.
#[derive(Debug, Default)]
pub(super) struct Output {
    /// Lines on standard output.
    pub(super) messages: Vec<String>,
    /// Lines on standard error.
    pub(super) log: Vec<String>,
}

impl Output {
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.log.is_empty()
    }
}

impl Child {
    /// Starts a half; a card may be told to format its device. Call it on the main thread: the half dies with the thread
    /// that started it.
    pub(super) fn start(recipe: &Recipe, half: Role, format: bool) -> io::Result<Self> {
        let mut process = recipe.command(half, format).spawn()?;
        let missing = || io::Error::other("the process has no pipes");
        let messages = Lines::new(process.stdout.take().ok_or_else(missing)?);
        let log = Lines::new(process.stderr.take().ok_or_else(missing)?);
        // Not yet waited for, so the number still is this process's.
        let handle = match open_handle(process.id()) {
            Ok(handle) => handle,
            Err(error) => {
                process.kill()?;
                process.wait()?;
                return Err(error);
            }
        };
        Ok(Self { started: Instant::now(), process, handle, messages, log })
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&self.handle, signal) {
            // It has ended already, which is what every signal that we send is for.
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// What to poll for input: its end, and its pipes while they are open.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let messages = self.messages.open.then(|| self.messages.pipe.as_fd());
        let log = self.log.open.then(|| self.log.pipe.as_fd());
        [Some(self.handle.as_fd()), messages, log].into_iter().flatten()
    }

    /// Takes what there is to read now, without waiting.
    pub(super) fn read(&mut self) -> io::Result<Output> {
        Ok(Output { messages: self.messages.take_ready()?, log: self.log.take_ready()? })
    }

    /// How it ended, if it has.
    pub(super) fn exit_status(&mut self) -> io::Result<Option<ExitStatus>> {
        self.process.try_wait()
    }
}

/// An end in words: `ended with exit code 2`, `was killed by signal 9 (SIGKILL)`.
pub(super) fn end_in_words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(signal)) => {
            let name = signal_hook::low_level::signal_name(signal).unwrap_or("unknown");
            format!("was killed by signal {signal} ({name})")
        }
        (None, None) => "ended in an unknown way".to_owned(),
    }
}

/// The binary that runs, to start the halves from.
pub(super) fn own_executable() -> io::Result<PathBuf> {
    std::env::current_exe().and_then(|path| if path.exists() { Ok(path) } else { Err(replaced(&path)) })
}

fn replaced(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{} has been removed", path.display()))
}

fn open_handle(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// Whole lines out of a pipe.
#[derive(Debug)]
struct Lines<Pipe> {
    pipe: Pipe,
    open: bool,
    partial: Vec<u8>,
}

impl<Pipe: Read + AsFd> Lines<Pipe> {
    fn new(pipe: Pipe) -> Self {
        Self { pipe, open: true, partial: Vec::new() }
    }

    /// The lines that are there now. Stops after some, so that one talkative half does not keep the other waiting.
    fn take_ready(&mut self) -> io::Result<Vec<String>> {
        let mut lines = Vec::new();
        for _ in 0..16 {
            if !self.open || !is_readable(&self.pipe)? {
                break;
            }
            let mut bytes = [0; 4096];
            let count = self.pipe.read(&mut bytes)?;
            self.open = count > 0;
            self.partial.extend_from_slice(&bytes[..count]);
            self.split(&mut lines);
        }
        Ok(lines)
    }

    fn split(&mut self, lines: &mut Vec<String>) {
        while let Some(end) = self.partial.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.partial.drain(..=end).collect();
            lines.push(String::from_utf8_lossy(&line[..end]).into_owned());
        }
        if self.partial.len() > LINE_BYTES_MAX || (!self.open && !self.partial.is_empty()) {
            let rest = std::mem::take(&mut self.partial);
            lines.push(String::from_utf8_lossy(&rest).into_owned());
        }
    }
}

fn is_readable(descriptor: &impl AsFd) -> io::Result<bool> {
    let mut descriptors = [PollFd::new(descriptor, PollFlags::IN)];
    match poll(&mut descriptors, Some(&timespec(Duration::ZERO))) {
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The kernel's form of a duration, which cannot be too long for it in practice.
pub(super) fn timespec(duration: Duration) -> Timespec {
    let tv_sec = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec, tv_nsec: duration.subsec_nanos().into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    #[test]
    fn lines_come_whole_and_long_ones_are_cut() {
        let (mut writer, reader) = UnixStream::pair().unwrap();
        let mut lines = Lines::new(reader);
        assert_eq!(lines.take_ready().unwrap(), [""; 0]);
        writer.write_all(b"one\ntwo\nthr").unwrap();
        assert_eq!(lines.take_ready().unwrap(), ["one", "two"]);
        writer.write_all(b"ee\n").unwrap();
        assert_eq!(lines.take_ready().unwrap(), ["three"]);
        writer.write_all(&vec![b'x'; LINE_BYTES_MAX + 1]).unwrap();
        writer.write_all(b"last").unwrap();
        drop(writer);
        let rest = lines.take_ready().unwrap();
        assert_eq!(rest.iter().map(String::len).sum::<usize>(), LINE_BYTES_MAX + 1 + 4);
        assert!(!lines.open);
    }

    #[test]
    fn ends_are_told_apart() {
        assert_eq!(end_in_words(ExitStatus::from_raw(2 << 8)), "ended with exit code 2");
        assert_eq!(end_in_words(ExitStatus::from_raw(9)), "was killed by signal 9 (SIGKILL)");
    }
}
