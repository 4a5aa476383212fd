//! Notification groups: many operations at once.

use std::ffi::{c_int, c_void};
use std::time::{Duration, Instant};

use ob_files_host::{Completion, Error, Group, GroupOptions, RingSizes};

use crate::buffer::{Lent, Piece};
use crate::error::code_of;
use crate::file::ObFile;
use crate::session::ObSession;
use crate::{Count, call_int, free, handle, store, store_handle, timeout};

/// Flags of writes.
const DURABLE: c_int = 1;

/// `ob_group`.
pub struct ObGroup {
    group: Group,
}

/// `ob_group_options`.
#[repr(C)]
pub struct ObGroupOptions {
    outstanding: u32,
    small_ring_bytes: u32,
    bulk_ring_bytes: u32,
    spin_us: u32,
}

impl Default for ObGroupOptions {
    fn default() -> Self {
        let defaults = GroupOptions::polled();
        Self {
            outstanding: defaults.outstanding as u32,
            small_ring_bytes: defaults.small.requests,
            bulk_ring_bytes: defaults.bulk.requests,
            spin_us: 0,
        }
    }
}

/// `ob_completion`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ObCompletion {
    tag: u64,
    result: i64,
}

impl From<Completion> for ObCompletion {
    fn from(completion: Completion) -> Self {
        let result = completion.result.map_or_else(
            |error| i64::from(code_of(&error)),
            |bytes| i64::try_from(bytes).unwrap_or(i64::MAX),
        );
        Self { tag: completion.tag, result }
    }
}

impl ObGroup {
    /// Takes completions into `into`, as many as fit; how many that were.
    fn take(&self, into: &mut Places, within: Option<Duration>) -> usize {
        let deadline = within.map(|within| Instant::now().checked_add(within));
        loop {
            let room = into.capacity - into.count;
            let on_completion = |completion: Completion| into.push(completion.into());
            let left = match deadline {
                None => None,
                Some(None) => Some(Duration::MAX),
                Some(Some(deadline)) => Some(deadline.saturating_duration_since(Instant::now())),
            };
            let completed = match left {
                None => self.group.poll_some(room, on_completion),
                Some(left) => self.group.wait_some(room, left, on_completion),
            };
            // What others wait for may have been completed too, and is not for this caller.
            if into.count > 0 || completed == 0 || left.is_none() {
                return into.count;
            }
        }
    }
}

/// Where a caller wants completions.
struct Places {
    first: *mut ObCompletion,
    capacity: usize,
    count: usize,
}

impl Places {
    /// # Safety
    ///
    /// A pointer that is not NULL is valid for writes of `capacity` completions while this lives.
    unsafe fn new(first: *mut ObCompletion, capacity: c_int) -> Result<Self, Error> {
        let capacity = usize::try_from(capacity).ok().filter(|capacity| *capacity > 0);
        let capacity = capacity.filter(|_| !first.is_null()).ok_or(Error::Invalid)?;
        Ok(Self { first, capacity, count: 0 })
    }

    fn push(&mut self, completion: ObCompletion) {
        assert!(self.count < self.capacity);
        // SAFETY: within what the caller of `new` promised, as there is room.
        unsafe { self.first.add(self.count).write(completion) };
        self.count += 1;
    }
}

/// # Safety
///
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ob_group_options_init(options: *mut ObGroupOptions) {
    // SAFETY: the header asks for it.
    let _ = unsafe { store(options, ObGroupOptions::default()) };
}

/// # Safety
///
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ob_group_create(
    session: *mut ObSession,
    options: *const ObGroupOptions,
    group: *mut *mut ObGroup,
) -> c_int {
    call_int(|| {
        if group.is_null() {
            return Err(Error::Invalid);
        }
        // SAFETY: the header asks for a session.
        let session = unsafe { handle(session) }?;
        let mut wanted = GroupOptions::polled();
        // SAFETY: the header asks for options that were initialised, or NULL.
        if let Some(options) = unsafe { options.as_ref() } {
            wanted.outstanding = options.outstanding as usize;
            wanted.small = RingSizes::both(options.small_ring_bytes);
            wanted.bulk = RingSizes::both(options.bulk_ring_bytes);
            wanted.spin = Duration::from_micros(u64::from(options.spin_us));
        }
        let opened = session.session.group(wanted)?;
        let opened = ObGroup { group: opened };
        // SAFETY: the header asks for a place to put it.
        unsafe { store_handle(group, opened) }.map(|()| 0)
    })
}

/// # Safety
///
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ob_group_destroy(group: *mut ObGroup) {
    // Files of the group may live on; the memory of what is out must not be touched from here on all the same.
    // SAFETY: the header asks for a group.
    if let Ok(group) = unsafe { handle(group) } {
        group.group.close();
    }
    // SAFETY: the header asks that nobody uses it any more.
    unsafe { free(group) };
}

/// # Safety
///
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ob_group_add(
    group: *mut ObGroup,
    file: *const ObFile,
    added: *mut *mut ObFile,
) -> c_int {
    call_int(|| {
        // SAFETY: the header asks for a group and a file.
        let (group, file) = unsafe { (handle(group)?, handle(file)?) };
        let file = ObFile { file: group.group.add(&file.file), in_group: true };
        // SAFETY: the header asks for a place to put it.
        unsafe { store_handle(added, file) }.map(|()| 0)
    })
}

/// # Safety
///
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ob_submit_read(
    file: *mut ObFile,
    memory: *mut c_void,
    len: usize,
    offset: u64,
    tag: u64,
) -> c_int {
    // SAFETY: the header asks for a file, and for memory that stays until the completion is taken.
    call_int(|| unsafe { (in_group(file)?, Lent::one(memory, len)?) }.submit_read(offset, tag))
}

/// # Safety
///
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ob_submit_readv(
    file: *mut ObFile,
    pieces: *const Piece,
    count: usize,
    offset: u64,
    tag: u64,
) -> c_int {
    // SAFETY: the header asks for a file, and for memory that stays until the completion is taken.
    call_int(|| unsafe { (in_group(file)?, Lent::many(pieces, count)?) }.submit_read(offset, tag))
}

/// # Safety
///
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ob_submit_write(
    file: *mut ObFile,
    memory: *const c_void,
    len: usize,
    offset: u64,
    flags: c_int,
    tag: u64,
) -> c_int {
    call_int(|| {
        // SAFETY: the header asks for a file, and for memory that stays until the completion is taken; a write does not
        // change it.
        unsafe { (in_group(file)?, Lent::one(memory.cast_mut(), len)?) }.submit_write(offset, flags, tag)
    })
}

/// # Safety
///
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ob_submit_writev(
    file: *mut ObFile,
    pieces: *const Piece,
    count: usize,
    offset: u64,
    flags: c_int,
    tag: u64,
) -> c_int {
    // SAFETY: the header asks for a file, and for memory that stays until the completion is taken.
    call_int(|| unsafe { (in_group(file)?, Lent::many(pieces, count)?) }.submit_write(offset, flags, tag))
}

/// # Safety
///
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ob_submit_flush(group: *mut ObGroup, tag: u64) -> c_int {
    call_int(|| {
        // SAFETY: the header asks for a group.
        let group = unsafe { handle(group) }?;
        group.group.submit_flush(tag).map(|()| 0).map_err(Error::from)
    })
}

/// # Safety
///
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ob_poll(
    group: *mut ObGroup,
    completions: *mut ObCompletion,
    capacity: c_int,
) -> c_int {
    // SAFETY: the header asks for a group, and for room for so many completions.
    call_int(|| unsafe { taken(group, completions, capacity, None) })
}

/// # Safety
///
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ob_wait(
    group: *mut ObGroup,
    completions: *mut ObCompletion,
    capacity: c_int,
    timeout_ms: i64,
) -> c_int {
    let within = timeout(timeout_ms).unwrap_or(Duration::MAX);
    // SAFETY: the header asks for a group, and for room for so many completions.
    call_int(|| unsafe { taken(group, completions, capacity, Some(within)) })
}

/// # Safety
///
/// As for [`handle`] and [`Places::new`].
unsafe fn taken(
    group: *const ObGroup,
    completions: *mut ObCompletion,
    capacity: c_int,
    within: Option<Duration>,
) -> Count {
    // SAFETY: the caller's, as above.
    let (group, mut places) = unsafe { (handle(group)?, Places::new(completions, capacity)?) };
    Ok(group.take(&mut places, within) as i64)
}

/// A file whose completions somebody can take.
///
/// # Safety
///
/// As for [`handle`].
unsafe fn in_group<'a>(file: *const ObFile) -> Result<&'a ObFile, Error> {
    // SAFETY: the caller's, as above.
    unsafe { handle(file) }.and_then(|file| if file.in_group { Ok(file) } else { Err(Error::Invalid) })
}

/// A transfer that can be started.
trait Submit {
    fn submit_read(self, offset: u64, tag: u64) -> Count;
    fn submit_write(self, offset: u64, flags: c_int, tag: u64) -> Count;
}

impl Submit for (&ObFile, Box<Lent>) {
    fn submit_read(self, offset: u64, tag: u64) -> Count {
        self.0.file.submit_read(self.1, offset, tag).map(|()| 0).map_err(Error::from)
    }

    fn submit_write(self, offset: u64, flags: c_int, tag: u64) -> Count {
        let (ObFile { file, .. }, lent) = self;
        let started = match flags {
            0 => file.submit_write(lent, offset, tag),
            DURABLE => file.submit_write_durable(lent, offset, tag),
            _ => return Err(Error::Invalid),
        };
        started.map(|()| 0).map_err(Error::from)
    }
}
