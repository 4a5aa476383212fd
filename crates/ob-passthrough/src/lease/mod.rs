//! Read leases: while one is held nobody has the file open for writing, and who wants to waits until it is given up.
//!
//! ```text
//!   request:   begin ─▶ submit ─▶ completion ─▶ is_held? ── yes ─▶ the answer counts
//!                                                  └─ no ──▶ discard, read in the ordinary way
//!   writer:    open(O_RDWR) ······················ waits ······················ returns
//!   kernel:       └─ SIGURG to the keeper's thread                              ▲
//!   keeper:            version + 1 ─▶ on_break ─▶ requests in flight end ─▶ F_UNLCK
//!                                                 (or the grace is over)
//! ```
//!
//! **What holds**: before a writer's `open` or `truncate` returns, [`Lease::is_held`] is false, so whoever looks after his
//! completion and still finds it true has read what no writer had touched. That is because the keeper changes the version first
//! and gives the lease up last, and, should the keeper not run in time (the process was stopped for longer than
//! `/proc/sys/fs/lease-break-time`, after which the kernel takes the lease away by itself), because [`Lease::is_held`] also asks the kernel.
//!
//! **The grace** is not for the answers, which are discarded as soon as the version has changed, but for the blocks: once the lease
//! is given up they may become another file's, and a program that is still running on the card would see what is in it.
//!
//! **The signal** is the only way to hear of a break without asking all the time, and a library must not play with its
//! process' signals. So it goes to one thread of our own (`F_SETOWN_EX` before `F_SETLEASE`, which leaves an owner that is set), which
//! blocks it and reads it from a signalfd; no other thread need know. It is SIGURG: ignored where nobody asks for it, so that even
//! one that strays kills nobody, and never replaced by SIGIO, which would, as the kernel does with real-time signals when
//! their queue is full. It does not queue, and need not: the keeper asks the kernel (`F_GETLEASE`) about every lease when it comes.
//!
//! What leases do not cover is in `docs/leases.md`. After a `fork` the child must not use, nor drop, what the parent has here.

mod keeper;
mod kernel;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

pub use keeper::LeaseKeeper;
use keeper::{Inner, Shared};

/// How long requests in flight have to end, if nothing else is said.
pub const GRACE_DEFAULT: Duration = Duration::from_secs(2);

/// Called on the keeper's thread when a lease breaks, after its version has changed and before it is given up. It must not block;
/// what it starts (a map being withdrawn) may hold the request that it is given until it is done, for as long as the grace is.
pub type OnBreak = Box<dyn FnOnce(LeasedRequest) + Send>;

/// How a lease is to end.
pub struct LeaseOptions {
    /// How long requests in flight may hold up a writer. No longer than half of what the kernel waits.
    pub grace: Duration,
    /// What else is to be done first.
    pub on_break: Option<OnBreak>,
}

impl Default for LeaseOptions {
    fn default() -> Self {
        Self { grace: GRACE_DEFAULT, on_break: None }
    }
}

impl fmt::Debug for LeaseOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("LeaseOptions").field("grace", &self.grace).finish_non_exhaustive()
    }
}

/// Why there is no lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// Somebody has the file open for writing, has a writable mapping of it, or is about to.
    #[error("somebody has the file open for writing")]
    Busy,
    /// Only the file's owner may, or who has CAP_LEASE.
    #[error("only the owner of a file may have a lease on it, or who has CAP_LEASE")]
    NotOwner,
    /// No regular file, or a file system without leases.
    #[error("this is no regular file, or its file system has no leases")]
    Unsupported,
    /// The machine has leases switched off.
    #[error("leases are switched off: sysctl fs.leases-enable=1")]
    Disabled,
    /// Anything else.
    #[error("{call} failed: {errno}")]
    Os {
        /// Which call.
        call: &'static str,
        /// How.
        errno: Errno,
    },
}

/// A read lease. Dropping it gives it up, when the last request under it has ended.
pub struct Lease {
    inner: Arc<Inner>,
    shared: Arc<Shared>,
}

impl Lease {
    /// Whether nobody can have written since the lease was taken. Costs a call that looks at one lock: ask before a request if it
    /// should be sent at all, and after its completion if the answer counts.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.inner.is_held()
    }

    /// Changes when the lease breaks, and is unlike that of any other lease of this keeper.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.inner.version()
    }

    /// The version that the lease was granted with.
    #[must_use]
    pub fn granted_version(&self) -> u64 {
        self.inner.granted()
    }

    /// The file, to be read and mapped. (What its description is set to, signals above all, is the keeper's.)
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.inner.file.as_fd()
    }

    /// A request under this lease: none if it is no longer held. A break waits for it, up to the grace.
    #[must_use]
    pub fn begin(&self) -> Option<LeasedRequest> {
        let request = LeasedRequest::enter(&self.inner, &self.shared);
        request.is_valid().then_some(request)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.shared.withdraw(&self.inner);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Lease").field("version", &self.version()).finish_non_exhaustive()
    }
}

/// A request in flight. The file stays open as long as this lives, so that its blocks stay its own even when its name is removed.
pub struct LeasedRequest {
    inner: Arc<Inner>,
    shared: Arc<Shared>,
}

impl LeasedRequest {
    fn enter(inner: &Arc<Inner>, shared: &Arc<Shared>) -> Self {
        inner.enter();
        Self { inner: Arc::clone(inner), shared: Arc::clone(shared) }
    }

    /// Whether the lease still is what it was at the beginning: for after the completion.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.inner.is_held()
    }

    /// The version that the lease was granted with: what the request's map must have.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.inner.granted()
    }
}

impl Drop for LeasedRequest {
    fn drop(&mut self) {
        self.shared.leave(&self.inner);
    }
}

impl fmt::Debug for LeasedRequest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("LeasedRequest").field("version", &self.version()).finish_non_exhaustive()
    }
}

impl LeaseKeeper {
    /// Takes a lease on a file that was opened for reading, with what is usual.
    pub fn lease(&self, file: OwnedFd) -> Result<Lease, LeaseError> {
        self.lease_with(file, LeaseOptions::default())
    }
}
