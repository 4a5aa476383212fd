//! What the store's tests share: files with faults, and a store that is a plain map.

#![allow(dead_code, reason = "no test uses all of it")]

pub(crate) mod client;
pub(crate) mod files;
pub(crate) mod reference;

use ob_core::{Instant, Now};
use ob_kv::resp::Request;

/// So many milliseconds by both clocks, of which nobody has set either.
pub(crate) fn at(ms: u64) -> Now {
    Now { instant: Instant::from_nanoseconds(ms * 1_000_000), unix_ms: ms }
}

/// The milliseconds that [`at`] has been given.
pub(crate) fn ms(instant: Instant) -> u64 {
    instant.nanoseconds().div_ceil(1_000_000)
}

/// A request of these strings.
pub(crate) fn encoded<S: AsRef<[u8]>>(strings: &[S]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", strings.len()).into_bytes();
    for string in strings {
        let string = string.as_ref();
        bytes.extend_from_slice(format!("${}\r\n", string.len()).as_bytes());
        bytes.extend_from_slice(string);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// The strings of a request.
pub(crate) fn decoded(bytes: &[u8]) -> Vec<Vec<u8>> {
    Request::new(bytes).arguments().map(<[u8]>::to_vec).collect()
}
