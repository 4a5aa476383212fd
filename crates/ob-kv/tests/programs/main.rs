//! The store's GET as programs (`examples/programs/kv_get.c`) beside the store's own functions: where the programs answer, they say the
//! same, and they do answer what clients usually ask. Each case is run by the interpreter and by compiled code.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod records;
mod requests;
mod rig;

use rig::Rig;

thread_local! {
    /// Verified and compiled once a test.
    static RIG: Rig = Rig::new();
}

/// An array of strings, as clients send it.
fn array(strings: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", strings.len()).into_bytes();
    for string in strings {
        bytes.extend(format!("${}\r\n", string.len()).into_bytes());
        bytes.extend_from_slice(string);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// A GET as clients send it.
fn get(key: &[u8]) -> Vec<u8> {
    array(&[b"GET", key])
}
