//! The io_uring itself: set-up with whatever the kernel offers, entering it, and its tables of registered files
//! and buffers.
//!
//! Everything `unsafe` about the ring is here, except that building an operation's entry (`operations`) needs the
//! addresses of the buffers it owns.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{Builder, EnterFlags, IoUring, cqueue, squeue};
use ob_memory::ArenaSpan;
use rustix::io::Errno;

use super::{Config, ReactorError};

/// The kernel takes at most this much in one registered buffer; larger arenas take several entries.
const BUFFER_LEN_MAX: usize = 1 << 30;

/// What entering the kernel came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entered {
    /// Went in and out; there may be completions.
    Yes,
    /// The kernel will take no submissions before completions are reaped.
    ReapFirst,
}

pub(super) struct Ring {
    uring: IoUring,
    /// Free places in the table of registered files; empty where the kernel gave no table.
    files_free: Vec<u32>,
    /// Which buffer of the kernel's table is taken, entry by entry; empty where there is no table.
    buffers_taken: Vec<bool>,
    /// Registered arenas, sorted by address.
    arenas: Vec<RegisteredArena>,
    enter_flags: EnterFlags,
}

#[derive(Clone, Copy)]
struct RegisteredArena {
    span: ArenaSpan,
    /// First of its consecutive entries in the kernel's table.
    first: u16,
}

impl RegisteredArena {
    fn entries(&self) -> usize {
        self.span.len.div_ceil(BUFFER_LEN_MAX)
    }
}

impl Ring {
    pub(super) fn new(config: &Config) -> Result<Self, ReactorError> {
        // Room for every operation and one report of every watch, twice over; the kernel wants no fewer
        // completions than submissions.
        let submissions = config.submissions_max.max(1);
        let things = config.operations_max.saturating_add(config.watches_max).max(submissions);
        let uring = build(submissions, things.saturating_mul(2), config.newest_features)?;
        let parameters = uring.params();
        if !parameters.is_feature_nodrop() {
            return Err(ReactorError::Unsupported("completions that are never dropped"));
        }
        if !parameters.is_feature_ext_arg() {
            return Err(ReactorError::Unsupported("waiting with a timeout"));
        }
        let mut enter_flags = EnterFlags::GETEVENTS;
        if parameters.is_feature_no_iowait() {
            // A sleeping reactor is idle, not waiting for a disk.
            enter_flags |= EnterFlags::NO_IOWAIT;
        }
        let mut ring = Self {
            uring,
            files_free: Vec::new(),
            buffers_taken: Vec::new(),
            arenas: Vec::with_capacity(config.buffers_max as usize),
            enter_flags,
        };
        ring.make_tables(config);
        Ok(ring)
    }

    /// Asks for empty tables of files and buffers. Both only make things faster, so a kernel that has none is
    /// fine.
    fn make_tables(&mut self, config: &Config) {
        let submitter = self.uring.submitter();
        let files = config.devices_max;
        let sparse_files = config.newest_features && submitter.register_files_sparse(files).is_ok();
        if sparse_files || submitter.register_files(&vec![-1; files as usize]).is_ok() {
            self.files_free = (0..files).rev().collect();
        }
        let buffers = u32::from(config.buffers_max);
        if config.newest_features && submitter.register_buffers_sparse(buffers).is_ok() {
            self.buffers_taken = vec![false; buffers as usize];
            return;
        }
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let (empty, tags) = (vec![none; buffers as usize], vec![0; buffers as usize]);
        // SAFETY: entries of no length at no address name no memory at all.
        if unsafe { submitter.register_buffers2(&empty, &tags) }.is_ok() {
            self.buffers_taken = vec![false; buffers as usize];
        }
    }

    /// Queues an entry, entering the kernel when the queue is full. `false`: still full, try after reaping.
    ///
    /// # Safety
    ///
    /// Whatever memory the entry names must stay valid, and (where the kernel writes it) untouched, until its
    /// completion has been reaped.
    pub(super) unsafe fn push(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: passed on to the caller.
        if unsafe { self.uring.submission().push(entry) }.is_ok() {
            return true;
        }
        self.enter(false, None);
        // SAFETY: as above; the first attempt queued nothing.
        unsafe { self.uring.submission().push(entry) }.is_ok()
    }

    /// Submits what is queued and, if told to, waits for one completion, at the longest for `timeout`.
    pub(super) fn enter(&mut self, wait: bool, timeout: Option<Duration>) -> Entered {
        let queued = self.uring.submission().len() as u32;
        let want = u32::from(wait);
        let submitter = self.uring.submitter();
        let result = match timeout {
            Some(timeout) => {
                let timespec = Timespec::new().sec(timeout.as_secs()).nsec(timeout.subsec_nanos());
                let arguments = SubmitArgs::new().timespec(&timespec);
                let flags = (self.enter_flags | EnterFlags::EXT_ARG).bits();
                // SAFETY: with EXT_ARG the kernel reads a `getevents_arg`, which `SubmitArgs` is, of the size
                // that is passed; it and its timespec live on this stack until the call returns.
                unsafe { submitter.enter(queued, want, flags, Some(&arguments)) }
            }
            // SAFETY: without an argument there is nothing for the kernel to read; the type only gives a size.
            None => unsafe { submitter.enter::<libc::sigset_t>(queued, want, self.enter_flags.bits(), None) },
        };
        match result.map_err(|error| Errno::from_io_error(&error)) {
            Ok(_) | Err(Some(Errno::TIME | Errno::INTR)) => Entered::Yes,
            Err(Some(Errno::BUSY | Errno::AGAIN)) => Entered::ReapFirst,
            Err(errno) => {
                tracing::error!(?errno, "the kernel refused to enter the io_uring");
                // Whatever it is (out of memory, most likely), it must not become a loop that burns a core.
                std::thread::sleep(Duration::from_millis(1));
                Entered::ReapFirst
            }
        }
    }

    /// Whether only entering the kernel can make progress: something to submit, deferred work, or completions
    /// that did not fit the queue.
    pub(super) fn needs_enter(&mut self) -> bool {
        let submission = self.uring.submission();
        !submission.is_empty() || submission.taskrun() || submission.cq_overflow()
    }

    pub(super) fn has_completions(&mut self) -> bool {
        !self.uring.completion().is_empty()
    }

    pub(super) fn next_completion(&mut self) -> Option<cqueue::Entry> {
        self.uring.completion().next()
    }

    /// Puts a file into the table; `None` when there is no table, or no room.
    pub(super) fn register_file(&mut self, file: BorrowedFd<'_>) -> Option<u32> {
        let place = self.files_free.pop()?;
        match self.uring.submitter().register_files_update(place, &[file.as_raw_fd()]) {
            Ok(_) => Some(place),
            Err(_) => {
                self.files_free.push(place);
                None
            }
        }
    }

    pub(super) fn unregister_file(&mut self, place: u32) {
        // Operations in flight keep the file; the place itself is free at once.
        if self.uring.submitter().register_files_update(place, &[-1]).is_ok() {
            self.files_free.push(place);
        }
    }

    /// Registers an arena; one that overlaps an earlier registration replaces it, because then the earlier arena
    /// is gone and its pages are no longer what lies at those addresses.
    pub(super) fn register_arena(&mut self, span: ArenaSpan) -> Result<(), ReactorError> {
        let overlaps = |other: &ArenaSpan| {
            span.base < other.base.saturating_add(other.len)
                && other.base < span.base.saturating_add(span.len)
        };
        while let Some(old) = self.arenas.iter().map(|arena| arena.span).find(overlaps) {
            self.unregister_arena(old);
        }
        let arena = RegisteredArena { span, first: 0 };
        let first = self.find_free_buffers(arena.entries()).ok_or(ReactorError::Full("registered buffer"))?;
        let arena = RegisteredArena { first, ..arena };
        for entry in 0..arena.entries() {
            let offset = entry * BUFFER_LEN_MAX;
            let len = BUFFER_LEN_MAX.min(span.len - offset);
            if let Err(error) =
                self.update_buffer(first as usize + entry, span.base.wrapping_add(offset), len)
            {
                for done in 0..entry {
                    let _ = self.update_buffer(first as usize + done, 0, 0);
                }
                return Err(ReactorError::Register(error));
            }
        }
        self.buffers_taken[first as usize..][..arena.entries()].fill(true);
        let place = self.arenas.partition_point(|other| other.span.base < span.base);
        self.arenas.insert(place, arena);
        Ok(())
    }

    pub(super) fn unregister_arena(&mut self, span: ArenaSpan) {
        let Ok(place) = self.arenas.binary_search_by_key(&span.base, |arena| arena.span.base) else { return };
        // Entries still in the queue name the buffer by its number; the kernel must have seen them first.
        self.enter(false, None);
        let arena = self.arenas.remove(place);
        for entry in 0..arena.entries() {
            if self.update_buffer(arena.first as usize + entry, 0, 0).is_ok() {
                self.buffers_taken[arena.first as usize + entry] = false;
            }
        }
    }

    /// Which registered buffer holds `len` bytes of an arena from `start` on.
    pub(super) fn buffer_of(&self, span: ArenaSpan, start: usize, len: usize) -> Option<u16> {
        let place = self.arenas.binary_search_by_key(&span.base, |arena| arena.span.base).ok()?;
        let arena = self.arenas[place];
        let entry = start / BUFFER_LEN_MAX;
        let whole = len > 0 && (start + len - 1) / BUFFER_LEN_MAX == entry;
        (arena.span == span && whole).then(|| arena.first + entry as u16)
    }

    fn find_free_buffers(&self, count: usize) -> Option<u16> {
        let free = |window: &[bool]| window.iter().all(|taken| !taken);
        let first = self.buffers_taken.windows(count.max(1)).position(free)?;
        u16::try_from(first).ok()
    }

    fn update_buffer(&self, place: usize, base: usize, len: usize) -> io::Result<()> {
        let buffer = libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(base), iov_len: len };
        // SAFETY: the kernel pins the pages behind the addresses at this moment and reaches them only for
        // operations that name the buffer. Those take their addresses from a slice whose arena has exactly this
        // span, and own it while in flight. A span that names no memory is refused; one that outlives its arena
        // keeps the old pages pinned, which wastes them and is why callers unregister first, but no freed page is
        // ever written.
        unsafe { self.uring.submitter().register_buffers_update(place as u32, &[buffer], Some(&[0])) }
    }
}

/// Sets up a ring with the best flags this kernel has.
fn build(submissions: u32, completions: u32, newest_features: bool) -> Result<IoUring, ReactorError> {
    // From the newest kernels down. Each needs all of what stands after it.
    let levels: [fn(&mut Builder) -> &mut Builder; 4] = [
        // 6.1: completions are only worked on when this thread asks, so nothing interrupts it.
        |builder| builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().setup_submit_all(),
        // 5.19
        |builder| builder.setup_coop_taskrun().setup_taskrun_flag().setup_submit_all(),
        // 5.18
        |builder| builder.setup_submit_all(),
        |builder| builder,
    ];
    let mut refused = None;
    for level in levels.iter().skip(if newest_features { 0 } else { 3 }) {
        let mut builder = IoUring::builder();
        builder.setup_clamp().setup_cqsize(completions).dontfork();
        match level(&mut builder).build(submissions) {
            Ok(uring) => return Ok(uring),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => refused = Some(error),
            Err(error) => return Err(ReactorError::Setup(error)),
        }
    }
    Err(ReactorError::Setup(refused.unwrap_or_else(|| io::Error::from(io::ErrorKind::Unsupported))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ob_memory::Pool;

    #[test]
    fn registered_memory_is_found_and_forgotten() {
        for newest_features in [true, false] {
            let config = Config { buffers_max: 2, newest_features, ..Config::default() };
            let mut ring = Ring::new(&config).unwrap();
            let pools = [0; 3].map(|_| Pool::new(8192, 2));
            ring.register_arena(pools[0].arena()).unwrap();
            ring.register_arena(pools[1].arena()).unwrap();
            ring.register_arena(pools[1].arena()).unwrap();
            let full = ring.register_arena(pools[2].arena());
            assert!(matches!(full, Err(ReactorError::Full(_))), "twice the same takes one place");
            let mut slices = [0, 1, 2].map(|pool| pools[pool].take().unwrap());
            drop(slices[0].split_to(100));
            let places = slices.each_ref().map(|slice| (slice.arena(), slice.start()));
            let found =
                |ring: &Ring, of: usize, skip, len| ring.buffer_of(places[of].0, places[of].1 + skip, len);
            assert_eq!(found(&ring, 0, 4, 4096), Some(0));
            assert_eq!(found(&ring, 1, 0, 8192), Some(1));
            assert_eq!(found(&ring, 2, 0, 8192), None);
            ring.unregister_arena(pools[0].arena());
            ring.unregister_arena(pools[0].arena());
            assert_eq!(found(&ring, 0, 0, 1), None);
            ring.register_arena(pools[2].arena()).unwrap();
            assert_eq!(found(&ring, 2, 0, 8192), Some(0));
        }
    }

    #[test]
    fn memory_that_is_not_there_is_not_registered() {
        let mut ring = Ring::new(&Config::default()).unwrap();
        // The first page of a process is never mapped.
        let nowhere = ArenaSpan { base: 4096, len: 4096 };
        assert!(matches!(ring.register_arena(nowhere), Err(ReactorError::Register(_))));
        let huge = ArenaSpan { base: 4096, len: usize::MAX - 8192 };
        assert!(ring.register_arena(huge).is_err());
    }

    #[test]
    fn a_large_arena_takes_an_entry_a_gibibyte() {
        let arena = |len| RegisteredArena { span: ArenaSpan { base: 4096, len }, first: 0 };
        assert_eq!(arena(BUFFER_LEN_MAX).entries(), 1);
        assert_eq!(arena(BUFFER_LEN_MAX + 4096).entries(), 2);
    }

    #[test]
    fn the_smallest_sizes_work() {
        let config = Config {
            submissions_max: 0,
            operations_max: 0,
            watches_max: 0,
            timers_max: 0,
            devices_max: 0,
            buffers_max: 0,
            newest_features: true,
        };
        assert!(Ring::new(&config).is_ok());
        assert!(Ring::new(&Config { submissions_max: 4096, ..config }).is_ok());
    }
}
