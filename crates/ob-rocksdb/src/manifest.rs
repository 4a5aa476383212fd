//! Records of the manifest: what changed about the set of files.
//!
//! A record is a list of fields, each behind its number. Fields with bit 13 set that are not known may be left out, and are; others
//! may not.

use crate::bytes::Input;
use crate::error::{Damage, ParseError, Unsupported};
use crate::keys::{InternalKey, Sequence};

/// A table as the manifest has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableFacts {
    /// The number in its name.
    pub number: u64,
    /// Its bytes.
    pub len: u64,
    /// Its first internal key, or where its first tombstone begins.
    pub smallest: Vec<u8>,
    /// Its last internal key, or where its last tombstone ends.
    pub largest: Vec<u8>,
    /// The oldest of its entries.
    pub smallest_sequence: Sequence,
    /// The newest of its entries.
    pub largest_sequence: Sequence,
    /// Which of two tables at level 0 is newer, since RocksDB 7.9; 0 if not known.
    pub epoch: u64,
}

/// What one record changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edit {
    /// The column family; 0 is the default one.
    pub family: u32,
    /// The name, if the record adds the column family.
    pub added_family: Option<String>,
    /// Whether it drops the column family.
    pub drops_family: bool,
    /// The comparator's name.
    pub comparator: Option<String>,
    /// Logs before this one are not needed for the column family.
    pub log_number: Option<u64>,
    /// Logs before this one are not needed at all.
    pub min_log_number_to_keep: Option<u64>,
    /// The newest write.
    pub last_sequence: Option<Sequence>,
    /// The largest number that a column family has had.
    pub max_family: Option<u32>,
    /// Tables that are gone: level and number.
    pub deleted: Vec<(u32, u64)>,
    /// Tables that came, with their levels.
    pub added: Vec<(u32, TableFacts)>,
    /// Logs that came, or were synced up to a length.
    pub added_logs: Vec<(u64, Option<u64>)>,
    /// Logs before this one are gone.
    pub deleted_logs: Option<u64>,
    /// How many records of its group follow this one, if it belongs to one: all of them change things at once.
    pub group_remaining: Option<u32>,
}

mod field {
    pub(super) const COMPARATOR: u32 = 1;
    pub(super) const LOG_NUMBER: u32 = 2;
    pub(super) const NEXT_FILE_NUMBER: u32 = 3;
    pub(super) const LAST_SEQUENCE: u32 = 4;
    pub(super) const COMPACT_CURSOR: u32 = 5;
    pub(super) const DELETED_FILE: u32 = 6;
    pub(super) const NEW_FILE: u32 = 7;
    pub(super) const PREVIOUS_LOG_NUMBER: u32 = 9;
    pub(super) const MIN_LOG_NUMBER_TO_KEEP: u32 = 10;
    pub(super) const NEW_FILE_2: u32 = 100;
    pub(super) const NEW_FILE_3: u32 = 102;
    pub(super) const NEW_FILE_4: u32 = 103;
    pub(super) const FAMILY: u32 = 200;
    pub(super) const FAMILY_ADD: u32 = 201;
    pub(super) const FAMILY_DROP: u32 = 202;
    pub(super) const MAX_FAMILY: u32 = 203;
    pub(super) const IN_ATOMIC_GROUP: u32 = 300;
    pub(super) const BLOB_FILE: u32 = 400;
    pub(super) const BLOB_GARBAGE: u32 = 401;
    pub(super) const IGNORABLE: u32 = 1 << 13;
    pub(super) const BLOB_FILE_OLD: u32 = IGNORABLE + 2;
    pub(super) const BLOB_GARBAGE_OLD: u32 = IGNORABLE + 3;
    pub(super) const LOG_ADDITION_OLD: u32 = IGNORABLE + 4;
    pub(super) const LOG_DELETION_OLD: u32 = IGNORABLE + 5;
    pub(super) const LOG_ADDITION: u32 = IGNORABLE + 7;
    pub(super) const LOG_DELETION: u32 = IGNORABLE + 8;
}

/// The fields behind a new table, each with its length.
mod table_field {
    pub(super) const END: u32 = 1;
    pub(super) const MIN_LOG_NUMBER_TO_KEEP: u32 = 3;
    pub(super) const MIN_TIMESTAMP: u32 = 10;
    pub(super) const MAX_TIMESTAMP: u32 = 11;
    pub(super) const EPOCH: u32 = 13;
    pub(super) const NOT_IGNORABLE: u32 = 1 << 6;
    pub(super) const PATH: u32 = NOT_IGNORABLE + 1;
}

/// Levels that are believed; RocksDB has seven, unless told otherwise.
pub const LEVELS_MAX: u32 = 64;

/// Reads a record.
///
/// # Errors
/// When it is damaged, or has what is not known.
pub fn parse(record: &[u8]) -> Result<Edit, ParseError> {
    let mut input = Input::new(record, "a record of the manifest");
    let mut edit = Edit::default();
    while !input.is_empty() {
        let tag = input.varint32()?;
        parse_field(&mut input, tag, &mut edit)?;
    }
    Ok(edit)
}

fn parse_field(input: &mut Input<'_>, tag: u32, edit: &mut Edit) -> Result<(), ParseError> {
    match tag {
        field::COMPARATOR => edit.comparator = Some(text(input.prefixed()?)),
        field::LOG_NUMBER => edit.log_number = Some(input.varint64()?),
        field::NEXT_FILE_NUMBER | field::PREVIOUS_LOG_NUMBER => {
            input.varint64()?;
        }
        field::LAST_SEQUENCE => edit.last_sequence = Some(Sequence(input.varint64()?)),
        field::MIN_LOG_NUMBER_TO_KEEP => edit.min_log_number_to_keep = Some(input.varint64()?),
        field::COMPACT_CURSOR => {
            input.varint32()?;
            input.prefixed()?;
        }
        field::DELETED_FILE => edit.deleted.push((level(input)?, input.varint64()?)),
        field::NEW_FILE..=field::NEW_FILE_4 if is_new_file(tag) => parse_table(input, tag, edit)?,
        field::FAMILY => edit.family = input.varint32()?,
        field::FAMILY_ADD => edit.added_family = Some(text(input.prefixed()?)),
        field::FAMILY_DROP => edit.drops_family = true,
        field::MAX_FAMILY => edit.max_family = Some(input.varint32()?),
        field::IN_ATOMIC_GROUP => edit.group_remaining = Some(input.varint32()?),
        // Blob files are not followed: an entry that points into one is refused when it is read.
        field::BLOB_FILE | field::BLOB_FILE_OLD => skip_blob(input, 3, true)?,
        field::BLOB_GARBAGE | field::BLOB_GARBAGE_OLD => skip_blob(input, 3, false)?,
        field::LOG_ADDITION_OLD => edit.added_logs.push(log_addition(input)?),
        field::LOG_ADDITION => {
            let mut inner = Input::new(input.prefixed()?, "a log's record in the manifest");
            edit.added_logs.push(log_addition(&mut inner)?);
        }
        field::LOG_DELETION_OLD => edit.deleted_logs = Some(input.varint64()?),
        field::LOG_DELETION => {
            let mut inner = Input::new(input.prefixed()?, "a log's record in the manifest");
            edit.deleted_logs = Some(inner.varint64()?);
        }
        other if other & field::IGNORABLE != 0 => {
            input.prefixed()?;
        }
        other => return Err(Unsupported::ManifestField(other).into()),
    }
    Ok(())
}

const fn is_new_file(tag: u32) -> bool {
    matches!(tag, field::NEW_FILE | field::NEW_FILE_2 | field::NEW_FILE_3 | field::NEW_FILE_4)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn level(input: &mut Input<'_>) -> Result<u32, Damage> {
    let level = input.varint32()?;
    if level < LEVELS_MAX {
        Ok(level)
    } else {
        Err(Damage::Malformed("a table is at a level that is too deep"))
    }
}

fn internal_key(input: &mut Input<'_>) -> Result<Vec<u8>, ParseError> {
    let key = input.prefixed()?;
    InternalKey::parse(key)?;
    Ok(key.to_vec())
}

fn parse_table(input: &mut Input<'_>, tag: u32, edit: &mut Edit) -> Result<(), ParseError> {
    let level = level(input)?;
    let number = input.varint64()?;
    if tag == field::NEW_FILE_3 && input.varint32()? != 0 {
        return Err(Unsupported::OtherPath.into());
    }
    let len = input.varint64()?;
    let (smallest, largest) = (internal_key(input)?, internal_key(input)?);
    let (mut smallest_sequence, mut largest_sequence) = (Sequence(0), Sequence::MAX);
    if tag != field::NEW_FILE {
        (smallest_sequence, largest_sequence) = (Sequence(input.varint64()?), Sequence(input.varint64()?));
    }
    let mut facts =
        TableFacts { number, len, smallest, largest, smallest_sequence, largest_sequence, epoch: 0 };
    if tag == field::NEW_FILE_4 {
        parse_table_fields(input, edit, &mut facts)?;
    }
    edit.added.push((level, facts));
    Ok(())
}

fn parse_table_fields(
    input: &mut Input<'_>,
    edit: &mut Edit,
    facts: &mut TableFacts,
) -> Result<(), ParseError> {
    loop {
        let tag = input.varint32()?;
        if tag == table_field::END {
            return Ok(());
        }
        let mut value = Input::new(input.prefixed()?, "a table's field in the manifest");
        match tag {
            table_field::MIN_LOG_NUMBER_TO_KEEP => edit.min_log_number_to_keep = Some(value.fixed64()?),
            table_field::EPOCH => facts.epoch = value.varint64()?,
            table_field::PATH if value.rest() == [0] => {}
            table_field::PATH => return Err(Unsupported::OtherPath.into()),
            table_field::MIN_TIMESTAMP | table_field::MAX_TIMESTAMP if !value.is_empty() => {
                return Err(Unsupported::Timestamps.into());
            }
            other if other & table_field::NOT_IGNORABLE != 0 => {
                return Err(Unsupported::ManifestField(other).into());
            }
            _ => {}
        }
    }
}

fn skip_blob(input: &mut Input<'_>, numbers: usize, has_checksum: bool) -> Result<(), ParseError> {
    for _ in 0..numbers {
        input.varint64()?;
    }
    if has_checksum {
        input.prefixed()?;
        input.prefixed()?;
    }
    loop {
        match input.varint32()? {
            0 => return Ok(()),
            other if other & table_field::NOT_IGNORABLE != 0 => {
                return Err(Unsupported::ManifestField(other).into());
            }
            _ => input.prefixed()?,
        };
    }
}

fn log_addition(input: &mut Input<'_>) -> Result<(u64, Option<u64>), Damage> {
    const END: u32 = 1;
    const SYNCED_LEN: u32 = 2;
    let number = input.varint64()?;
    let mut synced = None;
    loop {
        match input.varint32()? {
            END => return Ok((number, synced)),
            SYNCED_LEN => synced = Some(input.varint64()?),
            _ => return Err(Damage::Malformed("a log's record in the manifest has an unknown field")),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::bytes::put_varint;
    use crate::keys::{Kind, encode};

    fn put_prefixed(out: &mut Vec<u8>, bytes: &[u8]) {
        put_varint(out, bytes.len() as u64);
        out.extend(bytes);
    }

    fn new_file_4(number: u64, fields: &[(u32, &[u8])]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for value in [103, 2, number, 4096] {
            put_varint(&mut bytes, value);
        }
        put_prefixed(&mut bytes, &encode(b"a", Sequence(5), Kind::Value));
        put_prefixed(&mut bytes, &encode(b"m", Sequence::MAX, Kind::RangeDeletion));
        put_varint(&mut bytes, 5);
        put_varint(&mut bytes, 9);
        for (tag, value) in fields {
            put_varint(&mut bytes, u64::from(*tag));
            put_prefixed(&mut bytes, value);
        }
        bytes.push(1);
        bytes
    }

    #[test]
    fn a_table_has_its_fields() {
        let mut bytes =
            new_file_4(77, &[(3, &300_u64.to_le_bytes()), (13, &[42]), (60, b"later"), (65, &[0])]);
        bytes.extend([2, 30, 4, 9, 200, 1, 3]);
        bytes.extend([6, 1, 12]);
        let edit = parse(&bytes).unwrap();
        assert_eq!((edit.family, edit.log_number, edit.last_sequence), (3, Some(30), Some(Sequence(9))));
        assert_eq!((edit.min_log_number_to_keep, edit.deleted), (Some(300), vec![(1, 12)]));
        let (level, table) = &edit.added[0];
        assert_eq!((*level, table.number, table.len, table.epoch), (2, 77, 4096, 42));
        assert_eq!(table.largest_sequence, Sequence(9));
    }

    #[test]
    fn what_may_not_be_ignored_is_named() {
        assert_eq!(parse(&new_file_4(1, &[(65, &[1])])), Err(Unsupported::OtherPath.into()));
        assert_eq!(parse(&new_file_4(1, &[(99, &[1])])), Err(Unsupported::ManifestField(99).into()));
        assert_eq!(parse(&[99]), Err(Unsupported::ManifestField(99).into()));
        let mut later = Vec::new();
        put_varint(&mut later, (1 << 13) + 500);
        put_prefixed(&mut later, b"something of the future");
        later.extend([2, 8]);
        assert_eq!(parse(&later).unwrap().log_number, Some(8));
    }

    #[test]
    fn logs_come_and_go() {
        let mut bytes = Vec::new();
        put_varint(&mut bytes, (1 << 13) + 7);
        put_prefixed(&mut bytes, &[12, 2, 100, 1]);
        put_varint(&mut bytes, (1 << 13) + 8);
        put_prefixed(&mut bytes, &[9]);
        let edit = parse(&bytes).unwrap();
        assert_eq!((edit.added_logs, edit.deleted_logs), (vec![(12, Some(100))], Some(9)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_edit_or_not(bytes: Vec<u8>) {
            let _ = parse(&bytes);
        }

        #[test]
        fn a_cut_record_is_refused(cut in 0..40_usize) {
            let bytes = new_file_4(77, &[(13, &[42])]);
            prop_assert!(cut == 0 || cut >= bytes.len() || parse(&bytes[..cut]).is_err());
        }
    }
}
