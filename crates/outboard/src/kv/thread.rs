//! A thread whose end others notice.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::thread::{Builder, JoinHandle};

/// A thread, and a descriptor that becomes readable when it ends, however that is: by itself, or because it panics.
pub(crate) struct WatchedThread {
    name: &'static str,
    thread: Option<JoinHandle<()>>,
    end: UnixStream,
}

impl WatchedThread {
    /// Starts the thread of a service.
    pub(crate) fn start(name: &'static str, run: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let (end, alive) = UnixStream::pair()?;
        let run = move || {
            // It is closed with the thread, whatever that comes of.
            let _alive = alive;
            run();
        };
        let thread = Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self { name, thread: Some(thread), end })
    }

    /// Waits for its end, and tells people if that was none that was meant.
    pub(crate) fn join(&mut self) {
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread {} has panicked", self.name);
        }
    }
}

impl AsFd for WatchedThread {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test stops at the first thing that is not as it should be.
mod tests {
    use std::sync::mpsc::channel;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_readable(thread: &WatchedThread, time: &Timespec) -> bool {
        poll(&mut [PollFd::new(thread, PollFlags::IN)], Some(time)).unwrap() > 0
    }

    #[test]
    fn whoever_watches_a_thread_notices_that_it_panics() {
        let (go, wait) = channel::<()>();
        let mut thread = WatchedThread::start("test", move || wait.recv().unwrap()).unwrap();
        assert!(!is_readable(&thread, &Timespec::default()));
        drop(go);
        assert!(is_readable(&thread, &Timespec { tv_sec: 600, tv_nsec: 0 }));
        thread.join();
    }
}
