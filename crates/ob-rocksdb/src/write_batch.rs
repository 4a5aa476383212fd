//! Records of a write-ahead log: batches of writes.
//!
//! ```text
//!   sequence number of the first (8) │ how many (4) │ write … write
//!   write: kind (1) │ [column family (varint)] │ key │ [value], both behind their lengths
//! ```

use crate::bytes::Input;
use crate::error::{Damage, ParseError, Unsupported};
use crate::keys::{Kind, Sequence};

/// One write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write<'a> {
    /// The column family's number.
    pub family: u32,
    /// When it was made.
    pub sequence: Sequence,
    /// What it is.
    pub kind: Kind,
    /// The key, or the first of a range.
    pub key: &'a [u8],
    /// The value, the operand, or the key at which a range ends.
    pub value: &'a [u8],
}

/// The writes of a batch.
///
/// # Errors
/// When it is damaged, or has what is not supported.
pub fn parse(record: &[u8]) -> Result<Vec<Write<'_>>, ParseError> {
    let mut writes = Vec::new();
    for_each(record, |write| {
        writes.push(write);
        Ok(())
    })?;
    Ok(writes)
}

/// Hands on the writes of a batch, one by one: a write of two bytes takes more room than that.
///
/// # Errors
/// As [`parse`]; some were handed on then. And when `take` wants no more.
pub fn for_each<'a>(
    record: &'a [u8],
    mut take: impl FnMut(Write<'a>) -> Result<(), ParseError>,
) -> Result<(), ParseError> {
    let mut input = Input::new(record, "a batch of writes");
    let first = input.fixed64()?;
    let count = input.fixed32()?;
    let mut number = 0_u64;
    while !input.is_empty() {
        let tag = input.byte()?;
        let (kind, has_family, has_value) = match tag {
            0x00 => (Kind::Deletion, false, false),
            0x01 => (Kind::Value, false, true),
            0x02 => (Kind::Merge, false, true),
            0x04 => (Kind::Deletion, true, false),
            0x05 => (Kind::Value, true, true),
            0x06 => (Kind::Merge, true, true),
            0x07 => (Kind::SingleDeletion, false, false),
            0x08 => (Kind::SingleDeletion, true, false),
            0x0e => (Kind::RangeDeletion, true, true),
            0x0f => (Kind::RangeDeletion, false, true),
            // Data of the user's for the log alone, and nothing.
            0x03 => {
                input.prefixed()?;
                continue;
            }
            0x0d => continue,
            other => return Err(refusal(other).into()),
        };
        let family = if has_family { input.varint32()? } else { 0 };
        let key = input.prefixed()?;
        let value = if has_value { input.prefixed()? } else { &[] };
        let sequence = first.checked_add(number).filter(|number| *number <= Sequence::MAX.0);
        let sequence = Sequence(sequence.ok_or(Damage::Malformed("a sequence number is too large"))?);
        take(Write { family, sequence, kind, key, value })?;
        number += 1;
    }
    if number != u64::from(count) {
        return Err(Damage::Malformed("a batch does not have as many writes as it says").into());
    }
    Ok(())
}

const fn refusal(tag: u8) -> Unsupported {
    match tag {
        0x09 => Unsupported::TwoPhase("a prepared transaction begins"),
        0x0a => Unsupported::TwoPhase("a prepared transaction ends"),
        0x0b | 0x15 => Unsupported::TwoPhase("a commit"),
        0x0c => Unsupported::TwoPhase("a rollback"),
        0x12 => Unsupported::TwoPhase("a transaction that was prepared as it was written"),
        0x13 => Unsupported::TwoPhase("a transaction that was not prepared"),
        0x10 | 0x11 => Unsupported::Blob,
        0x16 | 0x17 => Unsupported::WideColumns,
        0x18 | 0x19 => Unsupported::PreferredSequence,
        other => Unsupported::EntryKind(other),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn batch(count: u32, body: &[u8]) -> Vec<u8> {
        [&100_u64.to_le_bytes()[..], &count.to_le_bytes(), body].concat()
    }

    #[test]
    fn writes_are_numbered() {
        let body = b"\x01\x01a\x01x\x03\x04blob\x0d\x04\x07\x01b\x0e\x02\x01c\x01d";
        let record = batch(3, body);
        let writes = parse(&record).unwrap();
        let seen: Vec<_> =
            writes.iter().map(|write| (write.family, write.sequence.0, write.kind, write.key)).collect();
        let expected = [
            (0, 100, Kind::Value, &b"a"[..]),
            (7, 101, Kind::Deletion, b"b"),
            (2, 102, Kind::RangeDeletion, b"c"),
        ];
        assert_eq!(seen, expected);
        assert_eq!((writes[0].value, writes[2].value), (&b"x"[..], &b"d"[..]));
        assert!(parse(&batch(2, body)).is_err(), "it says two and has three");
    }

    #[test]
    fn what_is_not_supported_is_named() {
        assert_eq!(parse(&batch(0, &[9])), Err(refusal(9).into()));
        assert_eq!(parse(&batch(1, &[0x16, 0, 0])), Err(Unsupported::WideColumns.into()));
        assert_eq!(parse(&batch(1, &[0x77])), Err(Unsupported::EntryKind(0x77).into()));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_batch_or_not(count in 0..4_u32, body: Vec<u8>) {
            let _ = parse(&body);
            let _ = parse(&batch(count, &body));
        }
    }
}
