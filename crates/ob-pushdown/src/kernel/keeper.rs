//! Maps off the requests' way.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use ob_nvme::initiator::block_on;

use crate::client::{AlreadyKept, Session, Transport};

/// A thread that makes and sends the maps of a session's files, until this is dropped: see [`Session::keep_maps`].
pub struct MapKeeper {
    leave: Box<dyn Fn() + Send + Sync>,
    thread: Option<JoinHandle<()>>,
}

impl MapKeeper {
    /// Starts it.
    ///
    /// # Errors
    ///
    /// When there is no thread to be had, or the session has one that does this ([`AlreadyKept`]).
    pub fn start<T: Transport + 'static>(session: &Arc<Session<T>>) -> io::Result<Self> {
        if !session.claim_maps() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, AlreadyKept));
        }
        let kept = Arc::clone(session);
        let keep = move || block_on(kept.keep_claimed());
        let thread = thread::Builder::new().name("map keeper".to_owned()).spawn(keep);
        let thread = thread.inspect_err(|_| session.unclaim_maps())?;
        let session = Arc::clone(session);
        Ok(Self { leave: Box::new(move || session.leave_maps()), thread: Some(thread) })
    }
}

impl Drop for MapKeeper {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // One that has ended by itself keeps nothing any more; maps may be kept by another since.
            if !thread.is_finished() {
                (self.leave)();
            }
            // It has nothing to say.
            let _ = thread.join();
        }
    }
}
