//! Files, one call at a time.

use std::ffi::{c_char, c_int, c_void};

use ob_files_host::{Error, File, Moved, OpenOptions, Pending};

use crate::buffer::Lent;
use crate::names::ObInfo;
use crate::session::ObSession;
use crate::{Count, call, call_int, free, handle, store, store_handle, text, timeout, wait};

/// Flags of `ob_open`.
const CREATE: c_int = 1;
const CREATE_NEW: c_int = 2;
const TRUNCATE: c_int = 4;

/// `ob_file`.
pub struct ObFile {
    pub(crate) file: File,
    /// Whether somebody can take completions of it.
    pub(crate) in_group: bool,
}

/// # Safety
///
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ob_open(
    session: *mut ObSession,
    path: *const c_char,
    flags: c_int,
    file: *mut *mut ObFile,
    timeout_ms: i64,
) -> c_int {
    call_int(|| {
        // SAFETY: the header asks for a session and a string.
        let (session, path) = unsafe { (handle(session)?, text(path)?) };
        // Before anything is created or cut.
        if file.is_null() || flags & !(CREATE | CREATE_NEW | TRUNCATE) != 0 {
            return Err(Error::Invalid);
        }
        let options = OpenOptions::new()
            .create(flags & CREATE != 0)
            .create_new(flags & CREATE_NEW != 0)
            .truncate(flags & TRUNCATE != 0);
        let opened = wait(session.session.open_file(path, options), timeout_ms)?;
        // SAFETY: the header asks for a place to put it.
        unsafe { store_handle(file, ObFile { file: opened, in_group: false }) }.map(|()| 0)
    })
}

/// # Safety
///
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ob_close(file: *mut ObFile) {
    // SAFETY: the header asks that nobody uses it any more.
    unsafe { free(file) };
}

/// # Safety
///
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ob_file_node(file: *const ObFile) -> u64 {
    // SAFETY: the header asks for a file.
    unsafe { handle(file) }.map_or(0, |file| file.file.node().0)
}

/// # Safety
///
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ob_file_stat(file: *mut ObFile, info: *mut ObInfo, timeout_ms: i64) -> c_int {
    call_int(|| {
        // SAFETY: the header asks for a file.
        let found = wait(unsafe { handle(file) }?.file.stat(), timeout_ms)?;
        // SAFETY: the header asks for a place to put it.
        unsafe { store(info, found.into()) }.map(|()| 0)
    })
}

/// # Safety
///
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ob_resize(file: *mut ObFile, size: u64, timeout_ms: i64) -> c_int {
    // SAFETY: the header asks for a file.
    call_int(|| wait(unsafe { handle(file) }?.file.resize(size), timeout_ms).map(|_| 0))
}

/// # Safety
///
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ob_read(
    file: *mut ObFile,
    memory: *mut c_void,
    len: usize,
    offset: u64,
    timeout_ms: i64,
) -> i64 {
    call(|| {
        // SAFETY: the header asks for a file.
        let file = &unsafe { handle(file) }?.file;
        // SAFETY: the header asks for memory of this length; it is used only until this call returns.
        let mut lent = unsafe { Lent::one(memory, len) }?;
        if timeout(timeout_ms).is_none() {
            return to_its_end(|| moved(file.read_at(lent, offset), timeout_ms).map(|(count, _)| count));
        }
        // A call that times out leaves its operation behind, so that must not have the caller's memory.
        let mut own = own_memory(len)?;
        own.resize(len, 0);
        let (count, own) = moved(file.read_at(own, offset), timeout_ms)?;
        let read = usize::try_from(count).unwrap_or(0).min(len);
        if read > 0 {
            ob_files_host::ForeignBuffer::piece_mut(&mut *lent, 0)[..read].copy_from_slice(&own[..read]);
        }
        Ok(count)
    })
}

/// # Safety
///
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ob_write(
    file: *mut ObFile,
    memory: *const c_void,
    len: usize,
    offset: u64,
    timeout_ms: i64,
) -> i64 {
    call(|| {
        // SAFETY: the header asks for a file.
        let file = &unsafe { handle(file) }?.file;
        // SAFETY: the header asks for memory of this length; it is used only until this call returns, and a write does
        // not change it.
        let lent = unsafe { Lent::one(memory.cast_mut(), len) }?;
        if timeout(timeout_ms).is_none() {
            return to_its_end(|| moved(file.write_at(lent, offset), timeout_ms).map(|(count, _)| count));
        }
        // As for a read: what is left behind must not have the caller's memory.
        let mut own = own_memory(len)?;
        own.extend_from_slice(ob_files_host::ForeignBuffer::piece(&*lent, 0));
        moved(file.write_at(own, offset), timeout_ms).map(|(count, _)| count)
    })
}

fn own_memory(len: usize) -> Result<Vec<u8>, Error> {
    let mut own = Vec::new();
    own.try_reserve_exact(len).map_err(|_| Error::System)?;
    Ok(own)
}

/// Runs what has the caller's memory. A panic would leave an operation behind that goes on to use it, so it ends the process instead.
fn to_its_end(body: impl FnOnce() -> Count) -> Count {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            if std::thread::panicking() {
                std::process::abort();
            }
        }
    }
    let _bomb = Bomb;
    body()
}

/// Waits for a transfer as long as the caller wants to: the bytes that it moved, and its buffer.
fn moved<B>(pending: Pending<Moved<B>>, timeout_ms: i64) -> Result<(i64, B), Error> {
    let (result, buffer) = match timeout(timeout_ms) {
        None => pending.wait(),
        Some(within) => pending.wait_for(within).map_err(|_| Error::TimedOut)?,
    };
    count(result?).map(|count| (count, buffer))
}

fn count(bytes: usize) -> Count {
    i64::try_from(bytes).map_err(|_| Error::TooLarge)
}
