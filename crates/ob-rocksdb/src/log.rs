//! The log format of manifests and write-ahead logs: records in frames, frames in blocks of 32 KiB.
//!
//! ```text
//!   frame: checksum (4) │ length (2) │ kind (1) │ [number of the log (4)] │ payload
//! ```
//!
//! A record that does not fit into its block is cut: a first frame, middle ones, a last one. The kinds with the log's number are
//! for logs that are written over older ones: there the rest of the file is an older log's.
//!
//! **The end.** A log that is being written ends anywhere, and so does one whose writer died. So bytes that are the beginning of a
//! frame are no error if nothing whole stands behind them ([`Scan::end`]); everything else that does not fit is.

use crate::bytes::Input;
use crate::checksum::mask;
use crate::error::{Damage, ParseError, Unsupported};

/// Bytes of a block.
pub(crate) const BLOCK_LEN: u64 = 32 << 10;
const HEADER_LEN: usize = 7;
const RECYCLED_HEADER_LEN: usize = 11;

/// What is kept between two scans of a growing log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Where the first record that has not been read begins.
    pub offset: u64,
    /// Whether the file was another log before: then its end is followed by older bytes.
    pub is_recycled: bool,
}

/// How bytes end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With a whole record, or with zeros.
    Clean,
    /// Within a record, or where an older log goes on.
    Torn,
}

/// Why a scan stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The bytes end, with a frame or within one: more of them may say more.
    Bytes,
    /// Nothing but zeros follows in these bytes.
    Zeros,
    /// What follows is none of this log's frames, whatever stands behind it.
    Older,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// Whole records, in order, each with where it begins.
    pub records: Vec<(u64, Vec<u8>)>,
    /// Where to go on.
    pub position: Position,
    /// What stands there.
    pub end: End,
    /// Why it goes no further.
    pub stop: Stop,
    /// The frame at which it stops: behind `position` if that one is of a record which began before.
    pub stop_offset: u64,
}

/// What is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanError {
    /// Where.
    pub offset: u64,
    /// What.
    pub error: ParseError,
}

enum Frame<'a> {
    Whole { kind: u8, payload: &'a [u8], len: usize },
    Padding { len: usize },
    // All that remains is zero.
    Zeros,
    Cut,
    Older,
}

/// Reads the records of `bytes`, which begin at `position` of a log. `number` is the log's.
///
/// # Errors
/// When a frame is damaged that is not the last one.
pub fn scan(bytes: &[u8], mut position: Position, number: u32) -> Result<Scan, ScanError> {
    let start = position.offset;
    let mut at = 0_usize;
    let mut records = Vec::new();
    let mut partial: Option<(u64, Vec<u8>)> = None;
    let stop = loop {
        let rest = &bytes[at..];
        let offset = start + at as u64;
        if rest.is_empty() {
            break Stop::Bytes;
        }
        let fail = |error: ParseError| ScanError { offset, error };
        let frame = match parse_frame(rest, offset, number, position.is_recycled) {
            Err(_) if position.is_recycled => break Stop::Older,
            frame => frame.map_err(|damage| fail(damage.into()))?,
        };
        let (kind, payload, len) = match frame {
            Frame::Whole { kind, payload, len } => (kind, payload, len),
            Frame::Padding { len } => {
                at += len;
                if partial.is_none() {
                    position.offset = start + at as u64;
                }
                continue;
            }
            Frame::Zeros => break Stop::Zeros,
            Frame::Cut => break Stop::Bytes,
            Frame::Older => break Stop::Older,
        };
        if offset == 0 && (5..=8).contains(&kind) {
            position.is_recycled = true;
        }
        let out_of_order = || fail(Damage::Malformed("the frames of a record are out of order").into());
        match (kind, partial.take()) {
            (1 | 5, None) => records.push((offset, payload.to_vec())),
            (2 | 6, None) => partial = Some((offset, payload.to_vec())),
            (3 | 7, Some((first, mut record))) => {
                record.extend_from_slice(payload);
                partial = Some((first, record));
            }
            (4 | 8, Some((first, mut record))) => {
                record.extend_from_slice(payload);
                records.push((first, record));
            }
            (9, None) => check_compression(payload).map_err(fail)?,
            (10 | 11, None) => return Err(fail(Unsupported::Timestamps.into())),
            // Kinds of later versions with the highest bit set may be left out.
            (128.., before) => partial = before,
            (1..=8, _) => return Err(out_of_order()),
            _ => return Err(fail(Damage::Malformed("a frame has an unknown kind").into())),
        }
        at += len;
        if partial.is_none() {
            position.offset = start + at as u64;
        }
    };
    let is_clean = partial.is_none() && (at == bytes.len() || stop == Stop::Zeros);
    let end = if is_clean { End::Clean } else { End::Torn };
    Ok(Scan { records, position, end, stop, stop_offset: start + at as u64 })
}

/// Whether a whole frame stands anywhere in `bytes`, which begin at `position` of a log and with a frame that looks cut off: then the log does
/// not end there but is damaged. Two blocks of bytes are enough. In a log that was another one before, only frames with its own number count.
#[must_use]
pub fn has_whole_frame(bytes: &[u8], position: Position, number: u32) -> bool {
    // The frame that is cut off cannot be longer than a block, and the next block begins with a frame.
    let len = usize::try_from(2 * BLOCK_LEN).map_or(bytes.len(), |len| len.min(bytes.len()));
    (1..len).any(|at| {
        let in_block = BLOCK_LEN - (position.offset + at as u64) % BLOCK_LEN;
        let block = &bytes[at..];
        let block = usize::try_from(in_block).map_or(block, |in_block| &block[..in_block.min(block.len())]);
        let Some(header) = block.first_chunk::<HEADER_LEN>() else { return false };
        let payload_len = usize::from(u16::from_le_bytes([header[4], header[5]]));
        let stored = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        let header_len = match header[6] {
            1..=4 if !position.is_recycled => HEADER_LEN,
            5..=8 if block.get(HEADER_LEN..RECYCLED_HEADER_LEN) == Some(&number.to_le_bytes()) => {
                RECYCLED_HEADER_LEN
            }
            _ => return false,
        };
        payload_len > 0 && is_sound(block, stored, header_len + payload_len)
    })
}

fn parse_frame(bytes: &[u8], offset: u64, number: u32, is_recycled: bool) -> Result<Frame<'_>, Damage> {
    let in_block = BLOCK_LEN - offset % BLOCK_LEN;
    let in_block = usize::try_from(in_block).map_err(|_| Damage::Malformed("a block is too large"))?;
    if in_block < HEADER_LEN {
        // Too little for a frame: zeros up to the next block.
        return Ok(if bytes.len() < in_block { Frame::Cut } else { Frame::Padding { len: in_block } });
    }
    let is_last_block = bytes.len() < in_block;
    let block = &bytes[..in_block.min(bytes.len())];
    let mut header = Input::new(block, "a frame");
    let (Ok(stored), Ok(len), Ok(kind)) = (header.fixed32(), header.take(2), header.byte()) else {
        return Ok(if block.iter().all(|byte| *byte == 0) { Frame::Zeros } else { Frame::Cut });
    };
    let payload_len = usize::from(u16::from_le_bytes([len[0], len[1]]));
    if kind == 0 && payload_len == 0 && stored == 0 {
        return zeros(bytes, block);
    }
    let mut header_len = HEADER_LEN;
    if matches!(kind, 5..=8 | 11 | 131) {
        header_len = RECYCLED_HEADER_LEN;
        let Ok(theirs) = header.fixed32() else {
            return if is_last_block {
                Ok(Frame::Cut)
            } else {
                Err(Damage::Malformed("a frame leaves its block"))
            };
        };
        if theirs != number
            && (is_recycled || offset == 0 || is_sound(block, stored, header_len + payload_len))
        {
            return Ok(Frame::Older);
        }
    }
    let end = header_len + payload_len;
    if end > block.len() {
        return if is_last_block {
            Ok(Frame::Cut)
        } else {
            Err(Damage::Malformed("a frame leaves its block"))
        };
    }
    if !is_sound(block, stored, end) {
        return Err(Damage::Checksum("a frame"));
    }
    Ok(Frame::Whole { kind, payload: &block[header_len..end], len: end })
}

fn is_sound(block: &[u8], stored: u32, end: usize) -> bool {
    block.get(6..end).is_some_and(|checked| mask(crc32c::crc32c(checked)) == stored)
}

/// Zeros where a frame should be: the rest of a block, or of a file that was made larger than what is in it.
fn zeros<'a>(bytes: &'a [u8], block: &[u8]) -> Result<Frame<'a>, Damage> {
    let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    if is_zero(bytes) {
        Ok(Frame::Zeros)
    } else if is_zero(block) {
        Ok(Frame::Padding { len: block.len() })
    } else {
        Err(Damage::Malformed("a frame has no kind"))
    }
}

fn check_compression(payload: &[u8]) -> Result<(), ParseError> {
    match Input::new(payload, "a log's compression").varint32()? {
        0 => Ok(()),
        _ => Err(Unsupported::CompressedLog.into()),
    }
}

#[cfg(test)]
#[path = "log_tests.rs"]
mod tests;
