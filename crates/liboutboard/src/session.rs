//! Sessions.

use std::ffi::{OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use ob_files_host::{Endpoint, Error, GroupOptions, Session, SessionOptions};

use crate::{call_int, free, handle, store, store_handle, text, timeout};

/// `ob_session`.
pub struct ObSession {
    pub(crate) session: Session,
}

/// `ob_session_options`.
#[repr(C)]
pub struct ObSessionOptions {
    name: *const c_char,
    attach_within_ms: i64,
    dead_after_ms: i64,
    patience_ms: i64,
}

impl Default for ObSessionOptions {
    fn default() -> Self {
        let defaults = SessionOptions::unix("");
        let milliseconds = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        Self {
            name: std::ptr::null(),
            attach_within_ms: milliseconds(defaults.attach_within),
            dead_after_ms: milliseconds(defaults.dead_after),
            patience_ms: milliseconds(defaults.patience),
        }
    }
}

/// A TCP address, or else the path of a Unix socket.
fn endpoint(bytes: &[u8]) -> Endpoint {
    let address = std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
    address.map_or_else(|| Endpoint::Unix(PathBuf::from(OsStr::from_bytes(bytes))), Endpoint::Tcp)
}

/// A time without an end is a hundred years.
fn time(milliseconds: i64) -> Duration {
    timeout(milliseconds).unwrap_or(Duration::from_secs(100 * 365 * 24 * 3600))
}

/// # Safety
///
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ob_session_options_init(options: *mut ObSessionOptions) {
    // SAFETY: the header asks for it.
    let _ = unsafe { store(options, ObSessionOptions::default()) };
}

/// # Safety
///
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ob_session_open(
    address: *const c_char,
    options: *const ObSessionOptions,
    session: *mut *mut ObSession,
) -> c_int {
    call_int(|| {
        if session.is_null() {
            return Err(Error::Invalid);
        }
        // SAFETY: the header asks for a string.
        let mut wanted = SessionOptions::new(endpoint(unsafe { text(address) }?));
        wanted.group = GroupOptions::polled();
        // SAFETY: the header asks for options that were initialised, or NULL.
        if let Some(options) = unsafe { options.as_ref() } {
            wanted.attach_within = time(options.attach_within_ms);
            wanted.dead_after = time(options.dead_after_ms);
            wanted.patience = time(options.patience_ms);
            if !options.name.is_null() {
                // SAFETY: the header asks for a string.
                wanted.name = String::from_utf8_lossy(unsafe { text(options.name) }?).into_owned();
            }
        }
        let opened = Session::open(wanted)?;
        // SAFETY: the header asks for a place to put it.
        unsafe { store_handle(session, ObSession { session: opened }) }.map(|()| 0)
    })
}

/// # Safety
///
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ob_session_close(session: *mut ObSession) {
    // SAFETY: the header asks that nobody uses it any more.
    unsafe { free(session) };
}

/// # Safety
///
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ob_session_is_attached(session: *const ObSession) -> c_int {
    // SAFETY: the header asks for a session.
    call_int(|| Ok(i64::from(unsafe { handle(session) }?.session.is_attached())))
}

/// # Safety
///
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ob_session_attachments(session: *const ObSession) -> u64 {
    // SAFETY: the header asks for a session.
    unsafe { handle(session) }.map_or(0, |session| session.session.attachments())
}

/// # Safety
///
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ob_session_wait_attached(
    session: *const ObSession,
    attachment: u64,
    timeout_ms: i64,
) -> c_int {
    call_int(|| {
        // SAFETY: the header asks for a session.
        let session = unsafe { handle(session) }?;
        let attached = session.session.wait_attached(attachment, time(timeout_ms));
        if attached { Ok(0) } else { Err(Error::TimedOut) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_paths_are_told_apart() {
        assert_eq!(endpoint(b"127.0.0.1:4422"), Endpoint::Tcp("127.0.0.1:4422".parse().unwrap()));
        assert_eq!(endpoint(b"[::1]:1"), Endpoint::Tcp("[::1]:1".parse().unwrap()));
        for path in ["/run/link.sock", "link.sock", "127.0.0.1"] {
            assert_eq!(endpoint(path.as_bytes()), Endpoint::Unix(path.into()));
        }
    }

    #[test]
    fn a_negative_time_does_not_end_soon() {
        assert_eq!(time(1500), Duration::from_millis(1500));
        assert!(time(-1) > Duration::from_secs(1_000_000));
    }
}
