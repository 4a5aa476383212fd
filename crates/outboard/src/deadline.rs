//! Conversations that end in time, however little is said at once: the kernel's own timeout begins anew with each call.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};

/// A socket that is read and written until a point in time.
pub(crate) struct Until<'a, S> {
    socket: &'a S,
    end: Instant,
}

impl<'a, S: AsFd> Until<'a, S> {
    /// Gives the conversation so much time from now on.
    pub(crate) fn new(socket: &'a S, patience: Duration) -> Self {
        Self { socket, end: Instant::now() + patience }
    }

    /// One call, which may take what is left.
    fn call(&self, kind: Timeout, call: impl FnOnce(&'a S) -> io::Result<usize>) -> io::Result<usize> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        set_socket_timeout(self.socket, kind, Some(left))?;
        call(self.socket).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
            _ => error,
        })
    }
}

impl<'a, S: AsFd> Read for Until<'a, S>
where
    &'a S: Read,
{
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.call(Timeout::Recv, |mut socket| socket.read(into))
    }
}

impl<'a, S: AsFd> Write for Until<'a, S>
where
    &'a S: Write,
{
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.call(Timeout::Send, |mut socket| socket.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const PATIENCE: Duration = Duration::from_millis(50);
    const SLOWLY: Duration = Duration::from_millis(1);

    #[test]
    fn a_peer_that_says_a_byte_at_a_time_is_not_heard_longer() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                while (&theirs).write_all(b"x").is_ok() {
                    std::thread::sleep(SLOWLY);
                }
            });
            // At that pace it would take more than a minute.
            let heard = Until::new(&ours, PATIENCE).read_exact(&mut [0; 1 << 16]);
            assert_eq!(heard.unwrap_err().kind(), io::ErrorKind::TimedOut);
            drop(ours);
        });
    }

    #[test]
    fn a_peer_that_reads_a_byte_at_a_time_is_not_told_longer() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let is_over = AtomicBool::new(false);
        let told = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) && (&theirs).read_exact(&mut [0]).is_ok() {
                    std::thread::sleep(SLOWLY);
                }
            });
            // Far more than the kernel holds.
            let told = Until::new(&ours, PATIENCE).write_all(&vec![0; 1 << 24]);
            is_over.store(true, Ordering::Relaxed);
            told
        });
        assert_eq!(told.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
