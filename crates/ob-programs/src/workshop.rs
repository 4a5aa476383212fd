//! The thread on which programs are verified and compiled, so that no reactor waits for it.

use std::io;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread;

/// Jobs that wait.
const WAITING_MAX: usize = 8;
/// How much the thread gives way to others: it is in nobody's path.
const NICENESS: i32 = 10;

/// Why a job is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkshopError {
    /// Others wait already.
    #[error("{WAITING_MAX} programs wait to be compiled already\nhint: try again in a moment")]
    Busy,
    /// The thread is gone, and so will the card be.
    #[error("the card is shutting down")]
    Ended,
}

type Job = Box<dyn FnOnce() + Send>;

/// A thread that does one job after the other. It ends when the last handle is gone.
#[derive(Clone, Debug)]
pub struct Workshop {
    jobs: SyncSender<Job>,
}

impl Workshop {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// When the system gives no thread.
    pub fn start() -> io::Result<Self> {
        let (jobs, waiting) = sync_channel::<Job>(WAITING_MAX);
        thread::Builder::new().name("programs".to_owned()).spawn(move || {
            // Where this is not allowed, it competes with the reactor for a moment.
            let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICENESS);
            waiting.into_iter().for_each(|job| job());
        })?;
        Ok(Self { jobs })
    }

    /// Has a job done, some time.
    ///
    /// # Errors
    ///
    /// When too many wait.
    pub fn submit(&self, job: impl FnOnce() + Send + 'static) -> Result<(), WorkshopError> {
        self.jobs.try_send(Box::new(job)).map_err(|error| match error {
            TrySendError::Full(_) => WorkshopError::Busy,
            TrySendError::Disconnected(_) => WorkshopError::Ended,
        })
    }

    /// Has a job done, and waits for what comes of it.
    ///
    /// # Errors
    ///
    /// When too many wait.
    pub fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, WorkshopError> {
        let (done, result) = sync_channel(1);
        self.submit(move || _ = done.send(job()))?;
        result.recv().map_err(|_| WorkshopError::Ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_done_on_another_thread_and_refused_when_many_wait() {
        let workshop = Workshop::start().unwrap();
        let (here, there) = (thread::current().id(), workshop.run(|| thread::current().id()).unwrap());
        assert_ne!(here, there);
        let (release, held) = sync_channel::<()>(0);
        let (began, begun) = sync_channel(1);
        workshop
            .submit(move || {
                began.send(()).unwrap();
                _ = held.recv();
            })
            .unwrap();
        begun.recv().unwrap();
        let (done, last) = sync_channel(WAITING_MAX);
        for _ in 0..WAITING_MAX {
            let done = done.clone();
            workshop.submit(move || _ = done.send(())).unwrap();
        }
        assert_eq!(workshop.submit(|| {}), Err(WorkshopError::Busy));
        release.send(()).unwrap();
        (0..WAITING_MAX).for_each(|_| last.recv().unwrap());
        assert_eq!(workshop.run(|| 7), Ok(7));
    }
}
