//! Blocks of keys and values: data, indexes, properties, tombstones of ranges all have this shape.
//!
//! ```text
//!   entry … entry │ restart (4) … restart (4) │ [bucket (1) … bucket (1) │ buckets (2)] │ footer (4)
//!                                                └ where the footer's highest bit is set
//!   entry: shared (varint) │ not shared (varint) │ value's length (varint) │ rest of the key │ value
//! ```
//!
//! A key shares its first bytes with the key before it, but at restarts, by which a search goes. Indexes may leave out the
//! values' lengths; there the value is a handle, or, where the key shares bytes, the difference to the handle before.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use crate::bytes::Input;
use crate::compression::BLOCK_LEN_MAX;
use crate::error::{Damage, ParseError, Unsupported};
use crate::footer::Handle;
use crate::keys;

/// How values of entries are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// With their lengths.
    Plain,
    /// Handles of consecutive blocks, without lengths, mostly as differences; behind each the first key of its block, if so.
    Differences {
        /// Whether the first keys are there.
        with_first_key: bool,
    },
}

/// What keys are, which decides their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// A user's key, a sequence number and a kind.
    Internal,
    /// Plain bytes: an index of user's keys, or names of properties.
    Bytes,
}

impl Keys {
    /// Compares a key of the block with an internal key that is looked for.
    fn compare(self, key: &[u8], target: &[u8]) -> Ordering {
        match self {
            Self::Internal => keys::compare(key, target),
            Self::Bytes => key.cmp(keys::user_part(target)),
        }
    }
}

/// A block whose frame has been checked. Entries are checked when they are read.
#[derive(Clone, Debug)]
pub struct Block {
    bytes: Arc<Vec<u8>>,
    entries_end: usize,
    restarts: usize,
}

const HASH_INDEX: u32 = 1 << 31;
const UNIFORM_KEYS: u32 = 1 << 29;
const RESTARTS: u32 = (1 << 28) - 1;
// Larger blocks never have buckets, so there the bit would be a restart.
const HASH_INDEX_LEN_MAX: usize = 1 << 16;

impl Block {
    /// Checks the frame of a block.
    ///
    /// # Errors
    /// When it does not fit, or has a later feature.
    pub fn parse(bytes: Arc<Vec<u8>>) -> Result<Self, ParseError> {
        let too_short = Damage::Truncated("a block");
        let (before, footer) = bytes.split_last_chunk::<4>().ok_or(too_short.clone())?;
        let footer = u32::from_le_bytes(*footer);
        let has_buckets = footer & HASH_INDEX != 0 && bytes.len() <= HASH_INDEX_LEN_MAX;
        if footer & !(RESTARTS | UNIFORM_KEYS | if has_buckets { HASH_INDEX } else { 0 }) != 0 {
            return Err(Unsupported::BlockFeature(footer).into());
        }
        let mut end = before.len();
        if has_buckets {
            let (before, buckets) = before.split_last_chunk::<2>().ok_or(too_short.clone())?;
            end = before
                .len()
                .checked_sub(usize::from(u16::from_le_bytes(*buckets)))
                .ok_or(too_short.clone())?;
        }
        let restarts = (footer & RESTARTS) as usize;
        let entries_end = end.checked_sub(4 * restarts).ok_or(too_short)?;
        if restarts == 0 && entries_end > 0 {
            return Err(Damage::Malformed("a block has entries and no restarts").into());
        }
        Ok(Self { bytes, entries_end, restarts })
    }

    fn restart(&self, index: usize) -> Result<usize, Damage> {
        let mut input = Input::new(&self.bytes[self.entries_end + 4 * index..], "a block's restarts");
        let at = input.fixed32()? as usize;
        if at > self.entries_end {
            return Err(Damage::Malformed("a restart is behind a block's entries"));
        }
        Ok(at)
    }
}

/// A place among a block's entries.
#[derive(Clone, Debug)]
pub struct BlockCursor {
    block: Block,
    keys: Keys,
    values: Values,
    // Where the entry that the cursor is at begins, and where the next one does.
    at: usize,
    next_at: usize,
    key: Vec<u8>,
    value: Range<usize>,
    handle: Handle,
    is_valid: bool,
}

impl BlockCursor {
    /// A cursor that is at no entry yet.
    #[must_use]
    pub const fn new(block: Block, keys: Keys, values: Values) -> Self {
        let handle = Handle { offset: 0, len: 0 };
        Self { block, keys, values, at: 0, next_at: 0, key: Vec::new(), value: 0..0, handle, is_valid: false }
    }

    /// Whether it is at an entry.
    #[must_use]
    pub const fn is_valid(&self) -> bool {
        self.is_valid
    }

    /// The entry's key.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The entry's value.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        &self.block.bytes[self.value.clone()]
    }

    /// Where the value stands in the block.
    #[must_use]
    pub const fn value_range(&self) -> &Range<usize> {
        &self.value
    }

    /// The entry's value as a handle.
    ///
    /// # Errors
    /// When it is none.
    pub fn handle(&self) -> Result<Handle, Damage> {
        match self.values {
            Values::Plain => Handle::parse(&mut Input::new(self.value(), "a handle")),
            Values::Differences { .. } => Ok(self.handle),
        }
    }

    /// Goes to the first entry.
    ///
    /// # Errors
    /// When it is damaged.
    pub fn first(&mut self) -> Result<bool, ParseError> {
        self.go_to(0);
        self.advance()
    }

    /// Goes to the last entry.
    ///
    /// # Errors
    /// When entries on the way are damaged.
    pub fn last(&mut self) -> Result<bool, ParseError> {
        self.before(self.block.entries_end)
    }

    /// Goes to the next entry.
    ///
    /// # Errors
    /// When it is damaged.
    pub fn advance(&mut self) -> Result<bool, ParseError> {
        self.is_valid = false;
        if self.next_at >= self.block.entries_end {
            return Ok(false);
        }
        self.at = self.next_at;
        self.read_entry()?;
        self.is_valid = true;
        Ok(true)
    }

    /// Goes to the entry before.
    ///
    /// # Errors
    /// When entries on the way are damaged.
    pub fn back(&mut self) -> Result<bool, ParseError> {
        self.before(self.at)
    }

    /// Goes to the first entry that is not before an internal key.
    ///
    /// # Errors
    /// When entries on the way are damaged.
    pub fn seek(&mut self, target: &[u8]) -> Result<bool, ParseError> {
        // The last restart whose key is before the target, or the first one.
        let (mut low, mut high) = (0, self.block.restarts);
        while high - low > 1 {
            let middle = low.midpoint(high);
            self.go_to(self.block.restart(middle)?);
            if self.advance()? && self.keys.compare(&self.key, target).is_lt() {
                low = middle;
            } else {
                high = middle;
            }
        }
        self.go_to(if self.block.restarts == 0 { 0 } else { self.block.restart(low)? });
        while self.advance()? {
            if self.keys.compare(&self.key, target).is_ge() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn go_to(&mut self, at: usize) {
        self.next_at = at;
        self.key.clear();
        self.is_valid = false;
    }

    /// Goes to the last entry that begins before `end`: from the last restart before it, onwards.
    fn before(&mut self, end: usize) -> Result<bool, ParseError> {
        self.is_valid = false;
        let (mut low, mut high) = (0, self.block.restarts);
        while high - low > 1 {
            let middle = low.midpoint(high);
            if self.block.restart(middle)? < end {
                low = middle;
            } else {
                high = middle;
            }
        }
        let start = if self.block.restarts == 0 { 0 } else { self.block.restart(low)? };
        if start >= end {
            return Ok(false);
        }
        self.go_to(start);
        while self.advance()? {
            if self.next_at >= end {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn read_entry(&mut self) -> Result<(), ParseError> {
        let entries = &self.block.bytes[..self.block.entries_end];
        let mut input = Input::new(&entries[self.at..], "a block's entry");
        let shared = input.varint32()? as usize;
        let unshared = input.varint32()? as usize;
        let value_len = match self.values {
            Values::Plain => input.varint32()? as usize,
            Values::Differences { .. } => 0,
        };
        let rest = input.take(unshared)?;
        if shared > self.key.len() {
            return Err(Damage::Malformed("a key shares more bytes than the key before it has").into());
        }
        self.key.truncate(shared);
        self.key.extend_from_slice(rest);
        let value_at = self.block.entries_end - input.rest().len();
        match self.values {
            Values::Plain => {
                input.take(value_len)?;
            }
            Values::Differences { with_first_key } => {
                self.handle = if shared == 0 {
                    Handle::parse(&mut input)?
                } else {
                    let longer = input.signed_varint64()?;
                    let len = self.handle.len.checked_add_signed(longer);
                    let len = len.ok_or(Damage::Malformed("a block has a length below zero"))?;
                    Handle { offset: self.handle.end()?, len }
                };
                if with_first_key {
                    input.prefixed()?;
                }
            }
        }
        self.next_at = self.block.entries_end - input.rest().len();
        self.value = value_at..self.next_at;
        Ok(())
    }
}

/// A key and its value.
pub type Pair = (Vec<u8>, Vec<u8>);

/// All entries of a block of plain keys and values.
///
/// Keys share their first bytes and are whole in what comes of it, so that a small block can have very much: what it comes to is counted
/// before anything of it is kept.
///
/// # Errors
/// When it is damaged, or its entries come to more than a block may.
pub fn entries(bytes: Vec<u8>) -> Result<Vec<Pair>, ParseError> {
    let mut cursor = BlockCursor::new(Block::parse(Arc::new(bytes))?, Keys::Bytes, Values::Plain);
    let (mut count, mut len) = (0_usize, 0_u64);
    let mut is_there = cursor.first()?;
    while is_there {
        (count, len) =
            (count + 1, len + (size_of::<Pair>() + cursor.key().len() + cursor.value().len()) as u64);
        if len > BLOCK_LEN_MAX as u64 {
            let what = "the entries of a block, each with its whole key,";
            return Err(Damage::TooLarge { what, len, len_max: BLOCK_LEN_MAX as u64 }.into());
        }
        is_there = cursor.advance()?;
    }
    let mut entries = Vec::with_capacity(count);
    let mut is_there = cursor.first()?;
    while is_there {
        entries.push((cursor.key().to_vec(), cursor.value().to_vec()));
        is_there = cursor.advance()?;
    }
    Ok(entries)
}

#[cfg(test)]
#[path = "block_tests.rs"]
mod tests;
