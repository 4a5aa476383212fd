//! Directories and names.

use std::ffi::{CString, c_char, c_int};

use ob_files_host::{Error, NodeInfo};

use crate::session::ObSession;
use crate::{call_int, free, handle, store, store_handle, text, wait};

/// `ob_info`.
#[repr(C)]
pub struct ObInfo {
    node: u64,
    size: u64,
    allocated: u64,
    parent: u64,
    kind: i32,
    reserved: i32,
}

impl From<NodeInfo> for ObInfo {
    fn from(info: NodeInfo) -> Self {
        Self {
            node: info.id.0,
            size: info.size,
            allocated: info.allocated,
            parent: info.parent.map_or(0, |parent| parent.0),
            kind: i32::from(info.kind.code()),
            reserved: 0,
        }
    }
}

/// `ob_space`.
#[repr(C)]
pub struct ObSpace {
    total: u64,
    free: u64,
    files: u64,
    directories: u64,
}

/// `ob_entry`.
#[repr(C)]
pub struct ObEntry {
    name: *const c_char,
    node: u64,
    size: u64,
    kind: i32,
    reserved: i32,
}

/// `ob_directory`.
pub struct ObDirectory {
    entries: Vec<Listed>,
}

struct Listed {
    name: CString,
    node: u64,
    size: u64,
    kind: i32,
}

/// # Safety
///
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ob_make_directory(
    session: *mut ObSession,
    path: *const c_char,
    timeout_ms: i64,
) -> c_int {
    call_int(|| {
        // SAFETY: the header asks for a session and a string.
        let (session, path) = unsafe { (handle(session)?, text(path)?) };
        wait(session.session.make_directory(path), timeout_ms).map(|_| 0)
    })
}

/// # Safety
///
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ob_remove_file(
    session: *mut ObSession,
    path: *const c_char,
    timeout_ms: i64,
) -> c_int {
    call_int(|| {
        // SAFETY: the header asks for a session and a string.
        let (session, path) = unsafe { (handle(session)?, text(path)?) };
        wait(session.session.remove_file(path), timeout_ms).map(|()| 0)
    })
}

/// # Safety
///
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ob_remove_directory(
    session: *mut ObSession,
    path: *const c_char,
    timeout_ms: i64,
) -> c_int {
    call_int(|| {
        // SAFETY: the header asks for a session and a string.
        let (session, path) = unsafe { (handle(session)?, text(path)?) };
        wait(session.session.remove_directory(path), timeout_ms).map(|()| 0)
    })
}

/// # Safety
///
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ob_rename(
    session: *mut ObSession,
    from: *const c_char,
    to: *const c_char,
    only_new: c_int,
    timeout_ms: i64,
) -> c_int {
    call_int(|| {
        // SAFETY: the header asks for a session and strings.
        let (session, from, to) = unsafe { (handle(session)?, text(from)?, text(to)?) };
        let session = &session.session;
        let pending = if only_new == 0 { session.rename(from, to) } else { session.rename_new(from, to) };
        wait(pending, timeout_ms).map(|()| 0)
    })
}

/// # Safety
///
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ob_stat(
    session: *mut ObSession,
    path: *const c_char,
    info: *mut ObInfo,
    timeout_ms: i64,
) -> c_int {
    call_int(|| {
        // SAFETY: the header asks for a session and a string.
        let (session, path) = unsafe { (handle(session)?, text(path)?) };
        let found = wait(session.session.stat(path), timeout_ms)?;
        // SAFETY: the header asks for a place to put it.
        unsafe { store(info, found.into()) }.map(|()| 0)
    })
}

/// # Safety
///
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ob_space_info(
    session: *mut ObSession,
    space: *mut ObSpace,
    timeout_ms: i64,
) -> c_int {
    call_int(|| {
        // SAFETY: the header asks for a session.
        let session = unsafe { handle(session) }?;
        let found = wait(session.session.space(), timeout_ms)?;
        let found = ObSpace {
            total: found.total,
            free: found.free,
            files: found.files,
            directories: found.directories,
        };
        // SAFETY: the header asks for a place to put it.
        unsafe { store(space, found) }.map(|()| 0)
    })
}

/// # Safety
///
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ob_flush(session: *mut ObSession, timeout_ms: i64) -> c_int {
    // SAFETY: the header asks for a session.
    call_int(|| wait(unsafe { handle(session) }?.session.flush(), timeout_ms).map(|()| 0))
}

/// # Safety
///
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ob_list(
    session: *mut ObSession,
    path: *const c_char,
    directory: *mut *mut ObDirectory,
    timeout_ms: i64,
) -> c_int {
    call_int(|| {
        // SAFETY: the header asks for a session and a string.
        let (session, path) = unsafe { (handle(session)?, text(path)?) };
        let entries = wait(session.session.list(path), timeout_ms)?;
        let listed = |entry: ob_files_host::DirectoryEntry| {
            // The library gives no name with a zero byte in it.
            let name = CString::new(entry.name).map_err(|_| Error::BadName)?;
            let kind = i32::from(entry.kind.code());
            Ok(Listed { name, node: entry.node.0, size: entry.size, kind })
        };
        let entries = entries.into_iter().map(listed).collect::<Result<Vec<_>, Error>>()?;
        // SAFETY: the header asks for a place to put it.
        unsafe { store_handle(directory, ObDirectory { entries }) }.map(|()| 0)
    })
}

/// # Safety
///
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ob_directory_count(directory: *const ObDirectory) -> usize {
    // SAFETY: the header asks for a list.
    unsafe { handle(directory) }.map_or(0, |directory| directory.entries.len())
}

/// # Safety
///
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ob_directory_entry(
    directory: *const ObDirectory,
    index: usize,
    entry: *mut ObEntry,
) -> c_int {
    call_int(|| {
        // SAFETY: the header asks for a list.
        let directory = unsafe { handle(directory) }?;
        let Listed { name, node, size, kind } = directory.entries.get(index).ok_or(Error::Invalid)?;
        let found = ObEntry { name: name.as_ptr(), node: *node, size: *size, kind: *kind, reserved: 0 };
        // SAFETY: the header asks for a place to put it.
        unsafe { store(entry, found) }.map(|()| 0)
    })
}

/// # Safety
///
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ob_directory_free(directory: *mut ObDirectory) {
    // SAFETY: the header asks that nobody uses it any more.
    unsafe { free(directory) };
}
