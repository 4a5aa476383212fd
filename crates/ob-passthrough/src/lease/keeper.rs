//! The thread that hears of breaks and gives leases up.

use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use super::{Lease, LeaseError, LeaseOptions, LeasedRequest, OnBreak, kernel};
use crate::plant::{Bug, is_planted};
use crate::system::{read_number, read_text};

/// No writer waits longer, whatever is said.
const GRACE_MAX: Duration = Duration::from_secs(3600);

/// Keeps leases, with one thread. Leases outlive it: the thread ends with the last of them.
#[derive(Debug)]
pub struct LeaseKeeper {
    shared: Arc<Shared>,
}

/// What the thread, the keeper and its leases have in common.
#[derive(Debug)]
pub(super) struct Shared {
    registry: Mutex<Registry>,
    bell: OwnedFd,
    thread: libc::pid_t,
    /// Leases count by two: granted with an even version, broken with the odd one behind it.
    next_version: AtomicU64,
    grace_max: Duration,
}

#[derive(Debug, Default)]
struct Registry {
    leases: Vec<Arc<Inner>>,
    has_ended: bool,
}

/// One lease.
pub(super) struct Inner {
    pub(super) file: OwnedFd,
    granted: u64,
    version: AtomicU64,
    in_flight: AtomicUsize,
    grace: Duration,
    ending: Mutex<Ending>,
}

/// How far a lease's end has come. Only the keeper's thread gives up a lease that has broken.
#[derive(Default)]
struct Ending {
    on_break: Option<OnBreak>,
    /// Set when a writer waits.
    deadline: Option<Instant>,
    is_released: bool,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Inner").field("granted", &self.granted).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Callers' code runs under none of these, and their contents are whole at any time.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LeaseKeeper {
    /// Starts the thread.
    pub fn start() -> Result<Self, LeaseError> {
        let os = |call| move |errno| LeaseError::Os { call, errno };
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(os("eventfd"))?;
        let own_bell = bell
            .try_clone()
            .map_err(|error| os("dup")(Errno::from_io_error(&error).unwrap_or(Errno::MFILE)))?;
        let (to_starter, from_thread) = mpsc::sync_channel(1);
        let (to_thread, from_starter) = mpsc::sync_channel::<Arc<Shared>>(1);
        let thread = std::thread::Builder::new().name("ob-lease-keeper".to_owned());
        let spawned = thread.spawn(move || {
            let signals = kernel::receive_breaks();
            let is_ready = signals.as_ref().map(|_| kernel::thread_id()).map_err(|errno| *errno);
            let _ = to_starter.send(is_ready);
            if let (Ok(signals), Ok(shared)) = (signals, from_starter.recv()) {
                keep(&shared, &signals, &own_bell);
            }
        });
        spawned.map_err(|error| os("clone")(Errno::from_io_error(&error).unwrap_or(Errno::AGAIN)))?;
        let thread = from_thread.recv().unwrap_or(Err(Errno::SRCH)).map_err(os("signalfd"))?;
        // The kernel must not be what ends a grace. Zero: it waits for ever, and then there is a bound all the same.
        let break_time = read_number(Path::new("/proc/sys/fs/lease-break-time")).ok();
        let half = break_time.filter(|seconds| *seconds > 0).map(|seconds| seconds.saturating_mul(500));
        let grace_max = half.map_or(GRACE_MAX, Duration::from_millis).min(GRACE_MAX);
        let registry = Mutex::default();
        let shared = Arc::new(Shared { registry, bell, thread, next_version: AtomicU64::new(2), grace_max });
        let _ = to_thread.send(Arc::clone(&shared));
        Ok(Self { shared })
    }

    /// Takes a lease on a file that was opened for reading. The description must be nobody else's: no duplicate of the
    /// descriptor, no child process that has inherited it.
    pub fn lease_with(&self, file: OwnedFd, options: LeaseOptions) -> Result<Lease, LeaseError> {
        let shared = &self.shared;
        kernel::direct_breaks_to(file.as_fd(), shared.thread)
            .map_err(|errno| LeaseError::Os { call: "F_SETOWN_EX", errno })?;
        let granted = shared.next_version.fetch_add(2, Ordering::Relaxed);
        let inner = Arc::new(Inner {
            file,
            granted,
            version: AtomicU64::new(granted),
            in_flight: AtomicUsize::new(0),
            grace: options.grace.min(shared.grace_max),
            ending: Mutex::new(Ending { on_break: options.on_break, ..Ending::default() }),
        });
        // The thread looks at leases under this lock, so that it meets none that the kernel does not have yet; and the signal of a
        // break that comes at once has it look again.
        let mut registry = lock(&shared.registry);
        kernel::take(inner.file.as_fd()).map_err(refusal)?;
        registry.leases.push(Arc::clone(&inner));
        drop(registry);
        Ok(Lease { inner, shared: Arc::clone(shared) })
    }
}

fn refusal(errno: Errno) -> LeaseError {
    match errno {
        Errno::AGAIN => LeaseError::Busy,
        Errno::ACCESS | Errno::PERM => LeaseError::NotOwner,
        Errno::INVAL | Errno::OPNOTSUPP | Errno::NOTTY | Errno::BADF => {
            match read_text(Path::new("/proc/sys/fs/leases-enable")).as_deref() {
                Ok("0") => LeaseError::Disabled,
                _ => LeaseError::Unsupported,
            }
        }
        errno => LeaseError::Os { call: "F_SETLEASE", errno },
    }
}

impl Drop for LeaseKeeper {
    fn drop(&mut self) {
        lock(&self.shared.registry).has_ended = true;
        self.shared.ring();
    }
}

impl Inner {
    pub(super) fn is_held(&self) -> bool {
        self.version() == self.granted && kernel::is_held(self.file.as_fd())
    }

    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::SeqCst)
    }

    pub(super) const fn granted(&self) -> u64 {
        self.granted
    }

    /// Counts a request, which must look at the version afterwards: the keeper changes the version and looks at the count
    /// afterwards, so that one of the two sees the other.
    pub(super) fn enter(&self) {
        self.in_flight.fetch_add(1, Ordering::SeqCst);
    }

    fn is_idle(&self) -> bool {
        self.in_flight.load(Ordering::SeqCst) == 0
    }

    /// Whether this was the first to end it.
    fn change_version(&self) -> bool {
        let next = self.granted + 1;
        self.version.compare_exchange(self.granted, next, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    fn release(&self) {
        let mut ending = lock(&self.ending);
        if !ending.is_released {
            kernel::release(self.file.as_fd());
            ending.is_released = true;
        }
    }
}

impl Shared {
    fn ring(&self) {
        // Full is as good as rung.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    fn forget(&self, inner: &Arc<Inner>) {
        let mut registry = lock(&self.registry);
        registry.leases.retain(|other| !Arc::ptr_eq(other, inner));
    }

    /// A request has ended. The keeper may wait for just that.
    pub(super) fn leave(&self, inner: &Inner) {
        let was_last = inner.in_flight.fetch_sub(1, Ordering::SeqCst) == 1;
        if was_last && inner.version() != inner.granted {
            self.ring();
        }
    }

    /// Nobody wants the lease any more: it is given up at once, or by the thread when the last request has ended.
    pub(super) fn withdraw(&self, inner: &Arc<Inner>) {
        let was_held = inner.change_version();
        // What was to be done at a break is not done: it refers to what the caller is done with.
        drop(lock(&inner.ending).on_break.take());
        if was_held && inner.is_idle() {
            inner.release();
            self.forget(inner);
        }
        self.ring();
    }
}

/// The thread.
fn keep(shared: &Arc<Shared>, signals: &OwnedFd, bell: &OwnedFd) {
    loop {
        // Before looking: what comes later wakes it again.
        kernel::drain(signals);
        let _ = rustix::io::read(bell, &mut [0; 8]);
        let (leases, has_ended) = {
            let registry = lock(&shared.registry);
            (registry.leases.clone(), registry.has_ended)
        };
        let now = Instant::now();
        let mut next: Option<Instant> = None;
        for inner in &leases {
            match step(inner, shared, now) {
                Step::Over => shared.forget(inner),
                Step::Until(deadline) => next = Some(next.map_or(deadline, |next| next.min(deadline))),
                Step::Held => {}
            }
        }
        if has_ended && lock(&shared.registry).leases.is_empty() {
            return;
        }
        let timeout = next.map(|next| next.saturating_duration_since(Instant::now()));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut descriptors = [PollFd::new(signals, PollFlags::IN), PollFd::new(bell, PollFlags::IN)];
        if let Err(errno) = poll(&mut descriptors, timeout.as_ref())
            && errno != Errno::INTR
        {
            tracing::error!(%errno, "the keeper of leases cannot wait");
            // It must not become a loop that burns a core.
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

enum Step {
    /// Nothing to do, until a signal or a bell.
    Held,
    /// Requests are in flight, for so long at most.
    Until(Instant),
    /// Given up.
    Over,
}

fn step(inner: &Arc<Inner>, shared: &Arc<Shared>, now: Instant) -> Step {
    if kernel::is_held(inner.file.as_fd()) {
        // Held, or withdrawn by its owner with requests in flight, whom nobody presses.
        let withdrawn = inner.version() != inner.granted;
        if withdrawn && inner.is_idle() {
            inner.release();
            return Step::Over;
        }
        return Step::Held;
    }
    if is_planted(Bug::ReleasedBeforeVersion) {
        inner.release();
        call_back(inner, shared);
    }
    if inner.change_version() {
        call_back(inner, shared);
    }
    let deadline = *lock(&inner.ending).deadline.get_or_insert_with(|| now + inner.grace);
    if inner.is_idle() || now >= deadline || is_planted(Bug::NoGrace) {
        if !inner.is_idle() {
            tracing::warn!("a lease is given up with requests in flight: the grace is over");
        }
        inner.release();
        return Step::Over;
    }
    Step::Until(deadline)
}

fn call_back(inner: &Arc<Inner>, shared: &Arc<Shared>) {
    let Some(on_break) = lock(&inner.ending).on_break.take() else { return };
    let request = LeasedRequest::enter(inner, shared);
    if catch_unwind(AssertUnwindSafe(|| on_break(request))).is_err() {
        tracing::error!(
            "what was to be done when a lease breaks panicked; the lease is given up all the same"
        );
    }
}
