//! Signals as something to read and to poll, instead of something that interrupts.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Becomes readable when somebody asks this process to stop: SIGTERM, SIGINT (Ctrl-C) or SIGHUP.
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
        for signal in [SIGTERM, SIGINT, SIGHUP] {
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

impl AsFd for StopSignal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.requests.as_fd()
    }
}
