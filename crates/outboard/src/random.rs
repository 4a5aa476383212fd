//! Numbers that nobody can guess, from the kernel.

use std::io;

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// Fills bytes with them.
pub(crate) fn fill(bytes: &mut [u8]) -> io::Result<()> {
    let mut at = 0;
    while let Some(rest) = bytes.get_mut(at..).filter(|rest| !rest.is_empty()) {
        match getrandom(rest, GetRandomFlags::empty()) {
            Ok(len) => at += len,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// So many of them.
pub(crate) fn bytes<const LEN: usize>() -> io::Result<[u8; LEN]> {
    let mut bytes = [0; LEN];
    fill(&mut bytes)?;
    Ok(bytes)
}

/// A random UUID, marked as one (RFC 9562 §5.4).
pub(crate) fn uuid() -> io::Result<[u8; 16]> {
    let mut bytes = bytes::<16>()?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Ok(bytes)
}
