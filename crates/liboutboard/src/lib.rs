//! The library that applications link, for programs in C: the calls of `include/outboard.h`.
//!
//! ```text
//!   C program ── outboard.h ──▶ this crate: pointers become references, once ──▶ ob-files-host
//!             ◀── ob_completion, ob_error ──┘
//! ```
//!
//! Nothing happens here but the crossing: arguments are checked for NULL, memory of the caller is wrapped as a buffer for
//! as long as the header says it stays, errors become numbers, and a panic becomes an error instead of leaving Rust.

// The header is the documentation of these functions, and their users are in another language.
#![allow(missing_docs, unreachable_pub)]

mod buffer;
mod error;
mod file;
mod group;
mod names;
mod session;

use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use ob_files_host::{Error, Pending};

/// What a call gives: a number of something, or an error.
type Count = Result<i64, Error>;

/// Runs a call: its number, or its error's.
fn call(body: impl FnOnce() -> Count) -> i64 {
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(Error::System));
    result.unwrap_or_else(|error| {
        error::remember(&error);
        i64::from(error::code_of(&error))
    })
}

/// As [`call`], where the number fits an `int`.
fn call_int(body: impl FnOnce() -> Count) -> i32 {
    i32::try_from(call(body)).unwrap_or(i32::MAX)
}

/// The object that a handle points to.
///
/// # Safety
///
/// A handle that is not NULL came from this library, as this type, and is not freed while the reference lives.
unsafe fn handle<'a, T>(pointer: *const T) -> Result<&'a T, Error> {
    // SAFETY: the caller's, as above.
    unsafe { pointer.as_ref() }.ok_or(Error::Invalid)
}

/// Where the caller wants a result.
///
/// # Safety
///
/// A pointer that is not NULL is valid for one write of `T`.
unsafe fn store<T>(pointer: *mut T, value: T) -> Result<(), Error> {
    if pointer.is_null() {
        return Err(Error::Invalid);
    }
    // SAFETY: not NULL, and valid for a write by the caller's word; what was there is not dropped.
    unsafe { pointer.write(value) };
    Ok(())
}

/// Hands an object out as a handle.
///
/// # Safety
///
/// As for [`store`].
unsafe fn store_handle<T>(pointer: *mut *mut T, value: T) -> Result<(), Error> {
    if pointer.is_null() {
        return Err(Error::Invalid);
    }
    // SAFETY: the caller's, as above.
    unsafe { store(pointer, Box::into_raw(Box::new(value))) }
}

/// Takes an object back that was handed out; NULL is nothing.
///
/// # Safety
///
/// As for [`handle`], and nobody uses the handle any more.
unsafe fn free<T>(pointer: *mut T) {
    if !pointer.is_null() {
        // SAFETY: it came from `store_handle`, and nobody else has it, by the caller's word.
        let object = unsafe { Box::from_raw(pointer) };
        // A panic must not leave Rust, not even here.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(object)));
    }
}

/// The bytes of a string.
///
/// # Safety
///
/// A string that is not NULL ends with a zero byte, and stays as it is while the reference lives.
unsafe fn text<'a>(pointer: *const c_char) -> Result<&'a [u8], Error> {
    if pointer.is_null() {
        return Err(Error::Invalid);
    }
    // SAFETY: the caller's, as above.
    Ok(unsafe { CStr::from_ptr(pointer) }.to_bytes())
}

/// A timeout of the header; `None` never ends.
fn timeout(milliseconds: i64) -> Option<Duration> {
    u64::try_from(milliseconds).ok().map(Duration::from_millis)
}

/// Waits as long as the caller wants to.
fn wait<T>(pending: Pending<Result<T, Error>>, timeout_ms: i64) -> Result<T, Error> {
    match timeout(timeout_ms) {
        None => pending.wait(),
        Some(within) => pending.wait_for(within).unwrap_or(Err(Error::TimedOut)),
    }
}
