//! The log of the key-value store (`docs/format/kv-log.md`).
//!
//! ```text
//!   GroupWriter: push(record) … finish ──▶ whole blocks ──▶ a part's file
//!   Group::decode ──▶ records()                    RecordView::decode: one record by itself, as the card reads it
//! ```

use std::ops::Range;

use ob_core::{checksum_of, layout};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::plant::{Bug, swapped_if};

/// Groups begin at multiples of this.
pub const BLOCK_LEN: usize = 4096;
/// Bytes of a group's header.
pub const GROUP_HEADER_LEN: usize = 72;
/// Bytes of a record's header.
pub const RECORD_HEADER_LEN: usize = 32;
/// Records begin at multiples of this in their group.
pub const RECORD_ALIGNMENT: usize = 8;
/// Bytes of an item of the card's table.
pub const ITEM_LEN: usize = 24;
/// Bytes of the longest key.
pub const KEY_LEN_MAX: usize = u16::MAX as usize;

const MAGIC: [u8; 4] = *b"OBKG";
const VERSION: u32 = 3;
/// Whose groups have their length where `contents` is, and nothing that covers their records together.
const WITHOUT_CONTENTS: u32 = 2;
/// Stamps are below this.
const STAMP_END: u64 = 1 << 63;

layout!(GroupBody, GROUP_HEADER_LEN, {
    magic: [u8; 4], version: U32, checksum: U32, life: U32, store: [u8; 16], address: U64, contents: U32, used: U32,
    records: U32, part_blocks: U32, previous: U64, durable: U64,
});

layout!(RecordBody, RECORD_HEADER_LEN, {
    checksum: U32, key_length: U16, kind: u8, reserved: u8, value_length: U32, reserved_too: U32, stamp: U64,
    expires: U64,
});

layout!(ItemBody, ITEM_LEN, { part: U32, offset: U32, value_length: U32, stamp: U32, expires: U64 });

const CHECKSUM_AT: usize = std::mem::offset_of!(GroupBody, checksum);
/// A record's checksum covers what is behind it.
const COVERED_FROM: usize = 4;

mod kind {
    pub(super) const VALUE: u8 = 1;
    pub(super) const REMOVED: u8 = 2;
    pub(super) const FLUSHED: u8 = 3;
}

/// The name of a part's file.
#[must_use]
pub fn part_name(part: u64) -> String {
    format!("{PART_PREFIX}{part:016x}")
}

/// The part whose file has this name.
#[must_use]
pub fn part_number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PART_PREFIX)?;
    let part = u64::from_str_radix(digits, 16).ok()?;
    (part_name(part) == name).then_some(part)
}

const PART_PREFIX: &str = "part-";

/// Why bytes are not a group, or not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// They do not begin like one.
    #[error("there is none")]
    Missing,
    /// They are of a version that this build does not know.
    #[error("the format's version is {0}, and this outboard knows versions {WITHOUT_CONTENTS} and {VERSION}")]
    Version(u32),
    /// They are damaged.
    #[error("the checksum is wrong")]
    Checksum,
    /// The checksum is right, and something cannot be.
    #[error("it cannot be right: {0}")]
    Illegal(&'static str),
}

/// What a key was made; or, without a key, that all keys were removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its key; empty where all keys were removed.
    pub key: &'a [u8],
    /// What it has been since, or nothing if it was removed.
    pub value: Option<&'a [u8]>,
    /// The stamp of the request that did it.
    pub stamp: u64,
    /// Milliseconds since 1970 at which the key is gone, if ever.
    pub expires: Option<u64>,
}

impl Record<'_> {
    /// Bytes that it takes.
    #[must_use]
    pub fn len(&self) -> usize {
        RECORD_HEADER_LEN + self.key.len() + self.value.map_or(0, <[u8]>::len)
    }

    /// Never: a record has a header.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Appends its bytes; `false`, and nothing, if it cannot be kept.
    pub fn encode(&self, into: &mut Vec<u8>) -> bool {
        let Some(body) = self.body() else { return false };
        let at = into.len();
        into.extend_from_slice(body.as_bytes());
        into.extend_from_slice(self.key);
        into.extend_from_slice(self.value.unwrap_or_default());
        into.get_mut(at..).is_some_and(seal)
    }

    /// The header without its checksum, if the record can be kept.
    fn body(&self) -> Option<RecordBody> {
        let value_length = u32::try_from(self.value.map_or(0, <[u8]>::len)).ok()?;
        let key_length = u16::try_from(self.key.len()).ok()?;
        let kind = match (key_length, self.value) {
            (0, Some(_)) => return None,
            (0, None) => kind::FLUSHED,
            (_, Some(_)) => kind::VALUE,
            (_, None) => kind::REMOVED,
        };
        let is_legal = self.stamp < STAMP_END && self.expires != Some(0);
        let (stamp, expires) = swapped_if(Bug::RecordFieldsSwapped, (self.stamp, self.expires.unwrap_or(0)));
        is_legal.then(|| RecordBody {
            checksum: 0.into(),
            key_length: key_length.into(),
            kind,
            reserved: 0,
            value_length: value_length.into(),
            reserved_too: 0.into(),
            stamp: stamp.into(),
            expires: expires.into(),
        })
    }
}

impl RecordBody {
    /// Stamp and expiry.
    fn times(&self) -> (u64, Option<u64>) {
        let (stamp, expires) = swapped_if(Bug::RecordFieldsSwapped, (self.stamp.get(), self.expires.get()));
        (stamp, Some(expires).filter(|expires| *expires > 0))
    }
}

/// Puts the checksum into the bytes of a record.
fn seal(record: &mut [u8]) -> bool {
    let Some((checksum, covered)) = record.split_at_mut_checked(COVERED_FROM) else { return false };
    checksum.copy_from_slice(&crc32c::crc32c(covered).to_le_bytes());
    true
}

/// A record in the bytes that were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordPlace {
    /// Where the key is.
    pub key: Range<usize>,
    /// Where the value is, if there is one.
    pub value: Option<Range<usize>>,
    /// The stamp of the request that made it.
    pub stamp: u64,
    /// When its key is gone, if ever.
    pub expires: Option<u64>,
    /// Bytes of all of it.
    pub len: usize,
}

impl RecordPlace {
    /// Checks the record that begins where the bytes do; there may be more of them.
    ///
    /// # Errors
    ///
    /// When it is not whole, or says what cannot be.
    pub fn decode(bytes: &[u8]) -> Result<Self, LogError> {
        let (body, _) = RecordBody::ref_from_prefix(bytes).map_err(|_| LogError::Missing)?;
        let place = Self::trusted(bytes)?;
        let covered = bytes.get(COVERED_FROM..place.len).ok_or(LogError::Missing)?;
        if crc32c::crc32c(covered) == body.checksum.get() { Ok(place) } else { Err(LogError::Checksum) }
    }

    /// The same, without a look at the checksum: for bytes that never left the memory they were written in.
    ///
    /// # Errors
    ///
    /// When it says what cannot be.
    pub fn trusted(bytes: &[u8]) -> Result<Self, LogError> {
        let (body, _) = RecordBody::ref_from_prefix(bytes).map_err(|_| LogError::Missing)?;
        let key = RECORD_HEADER_LEN..RECORD_HEADER_LEN + usize::from(body.key_length.get());
        let value = key.end..key.end + body.value_length.get() as usize;
        let len = value.end;
        if bytes.len() < len {
            return Err(LogError::Missing);
        }
        let (stamp, expires) = body.times();
        if stamp >= STAMP_END {
            return Err(LogError::Illegal("a stamp beyond all stamps"));
        }
        let value = match (body.kind, key.is_empty()) {
            (kind::VALUE, false) => Some(value),
            (kind::REMOVED, false) | (kind::FLUSHED, true) if value.is_empty() => None,
            (kind::REMOVED, false) | (kind::FLUSHED, true) => {
                return Err(LogError::Illegal("a removed key with a value"));
            }
            (kind::VALUE | kind::REMOVED, true) => return Err(LogError::Illegal("a record without a key")),
            (kind::FLUSHED, false) => return Err(LogError::Illegal("a key where all were removed")),
            _ => return Err(LogError::Illegal("a kind that is not known")),
        };
        Ok(Self { key, value, stamp, expires, len })
    }

    /// The key of a record, and when it is gone, from bytes that need not reach further than the key. There is no telling
    /// from them whether they are right.
    #[must_use]
    pub fn key_alone(bytes: &[u8]) -> Option<(&[u8], Option<u64>)> {
        let (body, rest) = RecordBody::ref_from_prefix(bytes).ok()?;
        let key = rest.get(..usize::from(body.key_length.get()))?;
        Some((key, body.times().1))
    }

    /// The record itself.
    #[must_use]
    pub fn of<'a>(&self, bytes: &'a [u8]) -> Record<'a> {
        Record {
            key: bytes.get(self.key.clone()).unwrap_or_default(),
            value: self.value.clone().map(|value| bytes.get(value).unwrap_or_default()),
            stamp: self.stamp,
            expires: self.expires,
        }
    }
}

/// Where a record lies, as the card's table has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// The part.
    pub part: u32,
    /// Where in the part; a multiple of [`RECORD_ALIGNMENT`].
    pub offset: u64,
    /// Bytes of the value.
    pub value_length: u32,
    /// The lower half of the record's stamp.
    pub stamp: u32,
    /// When its key is gone, if ever.
    pub expires: Option<u64>,
}

impl Item {
    /// Of a record at a place; nothing, if it has no value, or the place is beyond what an item can say.
    #[must_use]
    pub fn new(part: u64, offset: u64, record: &Record<'_>) -> Option<Self> {
        let value_length = u32::try_from(record.value?.len()).ok()?;
        let item = Self {
            part: u32::try_from(part).ok()?,
            offset,
            value_length,
            stamp: record.stamp as u32,
            expires: record.expires,
        };
        let units = offset / RECORD_ALIGNMENT as u64;
        (offset.is_multiple_of(RECORD_ALIGNMENT as u64) && u32::try_from(units).is_ok()).then_some(item)
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; ITEM_LEN] {
        let body = ItemBody {
            part: self.part.into(),
            offset: ((self.offset / RECORD_ALIGNMENT as u64) as u32).into(),
            value_length: self.value_length.into(),
            stamp: self.stamp.into(),
            expires: self.expires.unwrap_or(0).into(),
        };
        zerocopy::transmute!(body)
    }

    /// What such bytes say.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let body = ItemBody::ref_from_bytes(bytes).ok()?;
        Some(Self {
            part: body.part.get(),
            offset: u64::from(body.offset.get()) * RECORD_ALIGNMENT as u64,
            value_length: body.value_length.get(),
            stamp: body.stamp.get(),
            expires: Some(body.expires.get()).filter(|expires| *expires > 0),
        })
    }

    /// Whether a record is the one that is meant, if it is this key's.
    #[must_use]
    pub fn means(&self, record: &Record<'_>) -> bool {
        let value_length = record.value.map(<[u8]>::len);
        value_length == Some(self.value_length as usize)
            && record.stamp as u32 == self.stamp
            && record.expires == self.expires
    }
}

/// Whose groups they are, and in which life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The store.
    pub store: [u8; 16],
    /// Its life.
    pub life: u32,
    /// Bytes of its parts, a multiple of [`BLOCK_LEN`].
    pub part_len: u64,
}

/// Collects records for one write.
#[derive(Debug)]
pub struct GroupWriter {
    bytes: Vec<u8>,
    records: u32,
    previous: u64,
    durable: u64,
}

impl Default for GroupWriter {
    fn default() -> Self {
        Self::with_capacity(GROUP_HEADER_LEN)
    }
}

impl GroupWriter {
    /// A group whose memory does not grow before it has so many bytes.
    #[must_use]
    pub fn with_capacity(len: usize) -> Self {
        let mut bytes = Vec::with_capacity(len);
        bytes.resize(GROUP_HEADER_LEN, 0);
        Self { bytes, records: 0, previous: 0, durable: 0 }
    }

    /// Says at which address the group before it begins.
    pub fn follow(&mut self, previous: u64) {
        self.previous = previous;
    }

    /// Says up to where the log is known to be durable.
    pub fn attest_durable(&mut self, durable: u64) {
        self.durable = durable;
    }

    /// What is there so far; the header is not.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether there is nothing to write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Bytes that the group would have if it were finished now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len().next_multiple_of(BLOCK_LEN)
    }

    /// Adds a record; where it begins in the group, or nothing if it cannot be kept.
    pub fn push(&mut self, record: &Record<'_>) -> Option<usize> {
        let at = self.bytes.len().next_multiple_of(RECORD_ALIGNMENT);
        let records = self.records.checked_add(1)?;
        // The length is a number of 32 bits, of whole blocks.
        u32::try_from(at.checked_add(record.len())?.checked_next_multiple_of(BLOCK_LEN)?).ok()?;
        let before = self.bytes.len();
        self.bytes.resize(at, 0);
        if !record.encode(&mut self.bytes) {
            self.bytes.truncate(before);
            return None;
        }
        self.records = records;
        Some(at)
    }

    /// Puts a record in the place of the one that begins there, if that is of the same key and as long; whether it did.
    pub fn replace(&mut self, at: usize, record: &Record<'_>) -> bool {
        let Some(place) = self.bytes.get_mut(at..) else { return false };
        let old = RecordPlace::trusted(place);
        let is_alike = old.is_ok_and(|old| old.of(place).key == record.key && old.len == record.len());
        let (true, Some(body), Some(place)) = (is_alike, record.body(), place.get_mut(..record.len())) else {
            return false;
        };
        let (head, value) = place.split_at_mut(RECORD_HEADER_LEN + record.key.len());
        if let Some(head) = head.get_mut(..RECORD_HEADER_LEN) {
            head.copy_from_slice(body.as_bytes());
        }
        value.copy_from_slice(record.value.unwrap_or_default());
        seal(place)
    }

    /// The bytes to write at an address.
    #[must_use]
    pub fn finish(mut self, origin: Origin, address: u64) -> Vec<u8> {
        let used = self.bytes.len();
        self.bytes.resize(self.len(), 0);
        let mut body = GroupBody {
            magic: MAGIC,
            version: VERSION.into(),
            checksum: 0.into(),
            life: origin.life.into(),
            store: origin.store,
            address: address.into(),
            contents: contents_of(&self.bytes, used).into(),
            used: (used as u32).into(),
            records: self.records.into(),
            part_blocks: u32::try_from(origin.part_len / BLOCK_LEN as u64).unwrap_or(u32::MAX).into(),
            previous: self.previous.into(),
            durable: self.durable.into(),
        };
        body.checksum = checksum_of(body.as_bytes(), CHECKSUM_AT).into();
        if let Some(place) = self.bytes.get_mut(..GROUP_HEADER_LEN) {
            place.copy_from_slice(body.as_bytes());
        }
        self.bytes
    }
}

/// The header of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupHeader {
    /// Who wrote it.
    pub origin: Origin,
    /// Where it says that it is.
    pub address: u64,
    /// Bytes of all of it.
    pub length: usize,
    /// Where the group before it begins.
    pub previous: u64,
    /// Up to where the log was durable before it was written.
    pub durable: u64,
    /// Bytes of it that say something: up to the end of its last record.
    pub used: usize,
    records: u32,
    /// The checksum of all records together, if there is one.
    contents: Option<u32>,
}

/// The checksum of what a group holds. Each record has one of its own; together they are covered because of blocks that were lost with the
/// power, where records of an earlier life may lie.
fn contents_of(group: &[u8], used: usize) -> u32 {
    crc32c::crc32c(group.get(GROUP_HEADER_LEN..used).unwrap_or_default())
}

impl GroupHeader {
    /// Whether bytes begin like a group of this store, of whatever version: what says so is where it is in all of them.
    #[must_use]
    pub fn is_of(bytes: &[u8], store: [u8; 16]) -> bool {
        GroupBody::ref_from_prefix(bytes).is_ok_and(|(body, _)| body.magic == MAGIC && body.store == store)
    }

    /// Checks a header by itself; there may be more bytes.
    ///
    /// # Errors
    ///
    /// When it is not one of this version, whole and with legal numbers.
    pub fn decode(bytes: &[u8]) -> Result<Self, LogError> {
        let (body, _) = GroupBody::ref_from_prefix(bytes).map_err(|_| LogError::Missing)?;
        if body.magic != MAGIC {
            return Err(LogError::Missing);
        }
        // Before the checksum: another version may have it elsewhere.
        let version = body.version.get();
        if ![WITHOUT_CONTENTS, VERSION].contains(&version) {
            return Err(LogError::Version(version));
        }
        if body.checksum.get() != checksum_of(body.as_bytes(), CHECKSUM_AT) {
            return Err(LogError::Checksum);
        }
        let used = body.used.get() as usize;
        let length = used.next_multiple_of(BLOCK_LEN);
        let contents = Some(body.contents.get()).filter(|_| version == VERSION);
        let is_length_right = contents.is_some() || body.contents.get() as usize == length;
        if used < GROUP_HEADER_LEN || !is_length_right {
            return Err(LogError::Illegal("lengths that do not fit together"));
        }
        if body.address.get() % BLOCK_LEN as u64 != 0 {
            return Err(LogError::Illegal("an address within a block"));
        }
        if body.durable.get() > body.address.get() {
            return Err(LogError::Illegal("what comes later is durable before it was written"));
        }
        let part_len = u64::from(body.part_blocks.get()) * BLOCK_LEN as u64;
        if part_len == 0 {
            return Err(LogError::Illegal("parts without a block"));
        }
        let origin = Origin { store: body.store, life: body.life.get(), part_len };
        Ok(Self {
            origin,
            address: body.address.get(),
            length,
            previous: body.previous.get(),
            durable: body.durable.get(),
            used,
            records: body.records.get(),
            contents,
        })
    }

    /// Where the records of the group are in its bytes. All of them are checked before the first is given.
    ///
    /// # Errors
    ///
    /// When one of them is not whole, or they are not as many, or as long, as the header says.
    pub fn records<'a>(
        &self,
        group: &'a [u8],
    ) -> Result<impl Iterator<Item = (usize, RecordPlace)> + use<'a>, LogError> {
        let bytes = group.get(..self.used).ok_or(LogError::Missing)?;
        if self.contents.is_some_and(|contents| contents != contents_of(bytes, self.used)) {
            return Err(LogError::Checksum);
        }
        let mut end = GROUP_HEADER_LEN;
        for _ in 0..self.records {
            let at = end.next_multiple_of(RECORD_ALIGNMENT);
            end = at + RecordPlace::decode(bytes.get(at..).ok_or(LogError::Missing)?)?.len;
        }
        if end != self.used {
            return Err(LogError::Illegal("bytes behind the last record"));
        }
        let mut end = GROUP_HEADER_LEN;
        Ok((0..self.records).map_while(move |_| {
            let at = end.next_multiple_of(RECORD_ALIGNMENT);
            let place = RecordPlace::trusted(bytes.get(at..)?).ok()?;
            end = at + place.len;
            Some((at, place))
        }))
    }
}

#[cfg(test)]
#[path = "kv_tests.rs"]
mod tests;
