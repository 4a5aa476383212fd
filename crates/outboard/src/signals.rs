//! Signals as something to read and to poll, instead of something that interrupts.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Becomes readable when somebody asks this process to stop: SIGTERM, SIGINT (Ctrl-C) or SIGHUP. The last two are left alone where
/// whoever started the process has it ignore them: `nohup` does, and a shell for what a script puts in the background.
///
/// A reactor watches its descriptor; who has nothing else to do calls [`StopSignal::wait`].
#[derive(Debug)]
pub struct StopSignal {
    requests: UnixStream,
}

impl StopSignal {
    /// From now on these signals no longer end the process by themselves.
    pub fn install() -> io::Result<Self> {
        let (requests, sender) = UnixStream::pair()?;
        requests.set_nonblocking(true)?;
        let ignored = ignored(&std::fs::read_to_string("/proc/self/status")?);
        let is_caught = |signal: &i32| *signal == SIGTERM || ignored & 1 << (signal - 1) == 0;
        for signal in [SIGTERM, SIGINT, SIGHUP].into_iter().filter(is_caught) {
            signal_hook::low_level::pipe::register(signal, sender.try_clone()?)?;
        }
        Ok(Self { requests })
    }

    /// Sleeps until the first request, or returns at once if it has come already.
    pub fn wait(&self) -> io::Result<()> {
        while !self.take()? {
            let mut descriptors = [PollFd::new(&self.requests, PollFlags::IN)];
            match poll(&mut descriptors, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Takes what has come so far: whether there was a request. Never waits.
    pub fn take(&self) -> io::Result<bool> {
        let mut bytes = [0; 16];
        match (&self.requests).read(&mut bytes) {
            Ok(count) => Ok(count > 0),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// The signals that a process ignores, the first in the lowest bit, as the kernel tells its state.
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

impl AsFd for StopSignal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.requests.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_is_read_as_the_kernel_writes_it() {
        let status = "Name:\tcard\nSigBlk:\t0000000000000003\nSigIgn:\t0000000000001001\nSigCgt:\t0\n";
        assert_eq!(ignored(status), 1 << (SIGHUP - 1) | 1 << 12);
        assert_eq!(ignored("Name:\tcard\n"), 0);
    }
}
