//! What a table says about itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::block::{Block, BlockCursor, Keys, Values, entries};
use crate::bytes::Input;
use crate::checksum::context;
use crate::error::{Damage, ParseError, Unsupported};
use crate::footer::{Footer, Handle, TRAILER_LEN};
use crate::keys::Sequence;

/// How an index is made up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexKind {
    /// One block. A hash index is one too: its hashes are beside it, and not needed.
    Single,
    /// A block of handles of blocks.
    TwoLevel,
    /// One block, with the first key of each data block.
    SingleWithFirstKeys,
}

/// The properties that reading depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// How the index is made up.
    pub index: IndexKind,
    /// Whether its keys are users' keys, without sequence numbers.
    pub index_has_user_keys: bool,
    /// Whether its handles are written as differences.
    pub index_has_differences: bool,
    /// Whether a filter was made of whole keys; if not, it says nothing about them.
    pub filters_whole_keys: bool,
    /// The comparator's name, if the table has it.
    pub comparator: Option<String>,
    /// The column family that the table was written for.
    pub family: Option<u32>,
    /// How many tombstones of ranges it has.
    pub range_deletions: u64,
    /// Whether its blocks were to be compressed; those that would not have become shorter are not.
    pub is_compressed: bool,
    /// What the table says of sequence numbers, if it was written outside of a database.
    pub external: Option<External>,
}

/// A table that was made by somebody else and taken into a database: its entries have no sequence numbers of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct External {
    /// The one that all its entries have, if it was written into the table; 0 if not.
    pub sequence: Sequence,
}

const GLOBAL_SEQUENCE: &[u8] = b"rocksdb.external_sst_file.global_seqno";
const COMPARATOR: &str = "leveldb.BytewiseComparator";

/// Refuses comparators by which keys would be in another order.
///
/// # Errors
/// For all but the bytewise one.
pub fn check_comparator(name: &str) -> Result<(), Unsupported> {
    if name == COMPARATOR { Ok(()) } else { Err(Unsupported::Comparator(name.to_owned())) }
}

/// Reads the properties' block as it is in the file, with its trailer.
///
/// Taking a table into a database may write its sequence number into this block, over zeros, and leave the checksum as it was.
///
/// # Errors
/// When it is damaged, or the table is one that is not read.
pub fn parse(raw: &[u8], handle: Handle, footer: &Footer) -> Result<Properties, ParseError> {
    let damaged = Damage::Truncated("the properties");
    let trailer = usize::try_from(TRAILER_LEN).map_err(|_| damaged.clone())?;
    let len = raw.len().checked_sub(trailer).ok_or(damaged)?;
    let cursor = || -> Result<BlockCursor, ParseError> {
        Ok(BlockCursor::new(Block::parse(Arc::new(raw[..len].to_vec()))?, Keys::Bytes, Values::Plain))
    };
    if !is_sound(raw, handle, footer) {
        let mut zeroed = raw.to_vec();
        let mut cursor = cursor().map_err(|_| Damage::Checksum("the properties"))?;
        let mut is_there = cursor.first().map_err(|_| Damage::Checksum("the properties"))?;
        while is_there {
            if cursor.key() == GLOBAL_SEQUENCE && cursor.value().len() == 8 {
                zeroed[cursor.value_range().clone()].fill(0);
            }
            is_there = cursor.advance().map_err(|_| Damage::Checksum("the properties"))?;
        }
        if !is_sound(&zeroed, handle, footer) {
            return Err(Damage::Checksum("the properties").into());
        }
    }
    read(&entries(raw[..len].to_vec())?.into_iter().collect())
}

fn is_sound(raw: &[u8], handle: Handle, footer: &Footer) -> bool {
    let Some((checked, stored)) = raw.split_last_chunk::<4>() else { return false };
    let expected = footer.checksum.of(checked).wrapping_add(context(footer.context_base, handle.offset));
    footer.checksum == crate::checksum::ChecksumKind::None || u32::from_le_bytes(*stored) == expected
}

fn read(all: &BTreeMap<Vec<u8>, Vec<u8>>) -> Result<Properties, ParseError> {
    let input = |name: &str| all.get(name.as_bytes()).map(|value| Input::new(value, "a property"));
    let number = |name: &str| input(name).map_or(Ok(0), |mut value| value.varint64());
    let index =
        match input("rocksdb.block.based.table.index.type").map(|mut value| value.fixed32()).transpose()? {
            None | Some(0 | 1) => IndexKind::Single,
            Some(2) => IndexKind::TwoLevel,
            Some(3) => IndexKind::SingleWithFirstKeys,
            Some(other) => return Err(Unsupported::IndexKind(other).into()),
        };
    let version = input("rocksdb.external_sst_file.version").map(|mut value| value.fixed32()).transpose()?;
    let sequence =
        all.get(GLOBAL_SEQUENCE).map(|value| Input::new(value, "a property").fixed64()).transpose()?;
    let external = match (version, sequence) {
        (Some(2..), sequence) => Some(External { sequence: Sequence(sequence.unwrap_or(0)) }),
        (Some(1) | None, None) => None,
        _ => {
            return Err(Damage::Malformed("a table has a sequence number for all entries and may not").into());
        }
    };
    let comparator = all
        .get(&b"rocksdb.comparator"[..])
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .filter(|name| !name.is_empty());
    Ok(Properties {
        index,
        index_has_user_keys: number("rocksdb.index.key.is.user.key")? != 0,
        index_has_differences: number("rocksdb.index.value.is.delta.encoded")? != 0,
        filters_whole_keys: all
            .get(&b"rocksdb.block.based.table.whole.key.filtering"[..])
            .is_none_or(|value| value != b"0"),
        comparator,
        family: u32::try_from(number("rocksdb.column.family.id")?).ok(),
        range_deletions: number("rocksdb.num.range-deletions")?,
        is_compressed: all
            .get(&b"rocksdb.compression"[..])
            .is_some_and(|name| !name.is_empty() && name != b"NoCompression"),
        external,
    })
}
