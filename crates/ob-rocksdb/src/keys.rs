//! Keys as tables and logs have them: a user's key, a sequence number, and the kind of the entry.

use std::cmp::Ordering;

use crate::error::{Damage, ParseError, Unsupported};

/// When an entry was written, in the order of all writes; 56 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(pub u64);

impl Sequence {
    /// The largest; everything is visible at it.
    pub const MAX: Self = Self((1 << 56) - 1);
}

/// What an entry says about its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// It is gone.
    Deletion,
    /// It has a value.
    Value,
    /// An operand is to be merged with what was there.
    Merge,
    /// It is gone, and was written only once before.
    SingleDeletion,
    /// It and its neighbours up to a key are gone.
    RangeDeletion,
    /// Its value is in a blob file.
    BlobIndex,
    /// It is gone, with a timestamp.
    DeletionWithTimestamp,
    /// It has several columns.
    WideColumns,
    /// It has a value that was written with a time.
    PreferredSequence,
}

impl Kind {
    /// The kind with this number.
    ///
    /// # Errors
    /// When it is not known.
    pub const fn from_number(number: u8) -> Result<Self, Unsupported> {
        Ok(match number {
            0x00 => Self::Deletion,
            0x01 => Self::Value,
            0x02 => Self::Merge,
            0x07 => Self::SingleDeletion,
            0x0f => Self::RangeDeletion,
            0x11 => Self::BlobIndex,
            0x14 => Self::DeletionWithTimestamp,
            0x16 => Self::WideColumns,
            0x18 => Self::PreferredSequence,
            other => return Err(Unsupported::EntryKind(other)),
        })
    }

    /// Its number in keys.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Deletion => 0x00,
            Self::Value => 0x01,
            Self::Merge => 0x02,
            Self::SingleDeletion => 0x07,
            Self::RangeDeletion => 0x0f,
            Self::BlobIndex => 0x11,
            Self::DeletionWithTimestamp => 0x14,
            Self::WideColumns => 0x16,
            Self::PreferredSequence => 0x18,
        }
    }
}

/// A key of a table: bytes of the user, then eight of sequence number and kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InternalKey<'a> {
    /// What the user calls it.
    pub user: &'a [u8],
    /// When it was written.
    pub sequence: Sequence,
    /// What it says.
    pub kind: Kind,
}

/// Bytes of sequence number and kind.
pub(crate) const TRAILER_LEN: usize = 8;

impl<'a> InternalKey<'a> {
    /// Takes a key apart.
    ///
    /// # Errors
    /// When it is too short or its kind is not known.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let (user, trailer) =
            bytes.split_last_chunk::<TRAILER_LEN>().ok_or(Damage::Truncated("an internal key"))?;
        let packed = u64::from_le_bytes(*trailer);
        Ok(Self { user, sequence: Sequence(packed >> 8), kind: Kind::from_number(trailer[0])? })
    }
}

/// The bytes of an internal key.
#[must_use]
pub fn encode(user: &[u8], sequence: Sequence, kind: Kind) -> Vec<u8> {
    encode_packed(user, sequence.0 << 8 | u64::from(kind.number()))
}

/// A position before every entry of `user` that is not newer than `sequence`, in tables of any version.
#[must_use]
pub fn encode_target(user: &[u8], sequence: Sequence) -> Vec<u8> {
    // 0xff is no kind, and larger than all: it stands before them.
    encode_packed(user, sequence.0 << 8 | 0xff)
}

fn encode_packed(user: &[u8], packed: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(user.len() + TRAILER_LEN);
    bytes.extend_from_slice(user);
    bytes.extend_from_slice(&packed.to_le_bytes());
    bytes
}

/// The user's part of an internal key, or nothing where there is no trailer.
#[must_use]
pub fn user_part(internal: &[u8]) -> &[u8] {
    internal.split_last_chunk::<TRAILER_LEN>().map_or(&[], |(user, _)| user)
}

/// The order of tables: by the user's key, newest first. Keys that are too short stand first; those who read them refuse them.
#[must_use]
pub fn compare(left: &[u8], right: &[u8]) -> Ordering {
    let split = |bytes| <[u8]>::split_last_chunk::<TRAILER_LEN>(bytes);
    match (split(left), split(right)) {
        (Some((left, left_trailer)), Some((right, right_trailer))) => left
            .cmp(right)
            .then_with(|| u64::from_le_bytes(*right_trailer).cmp(&u64::from_le_bytes(*left_trailer))),
        (left, right) => left.is_some().cmp(&right.is_some()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn keys_come_back(user: Vec<u8>, sequence in 0..=Sequence::MAX.0) {
            let bytes = encode(&user, Sequence(sequence), Kind::Merge);
            let key = InternalKey::parse(&bytes).unwrap();
            prop_assert_eq!(key, InternalKey { user: &user, sequence: Sequence(sequence), kind: Kind::Merge });
            prop_assert_eq!(user_part(&bytes), &user[..]);
        }

        #[test]
        fn newer_stands_first(user: Vec<u8>, left in 0..100_u64, right in 0..100_u64) {
            let of = |sequence| encode(&user, Sequence(sequence), Kind::Value);
            prop_assert_eq!(compare(&of(left), &of(right)), right.cmp(&left));
            let target = encode_target(&user, Sequence(left));
            prop_assert_eq!(compare(&target, &of(right)).is_lt(), right <= left);
        }
    }

    #[test]
    fn short_keys_are_refused() {
        assert!(InternalKey::parse(b"1234567").is_err());
        assert_eq!(
            InternalKey::parse(&[0xfe, 0, 0, 0, 0, 0, 0, 0]),
            Err(Unsupported::EntryKind(0xfe).into())
        );
    }
}
