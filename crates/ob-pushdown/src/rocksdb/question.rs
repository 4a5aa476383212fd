//! A question for the program `rocksdb_get`, and its answer: the scratch, as `examples/programs/rocksdb_get.c` lays it out.

use ob_rocksdb::checksum::ChecksumKind;
use ob_rocksdb::footer::{Handle, TRAILER_LEN};
use ob_rocksdb::properties::{IndexKind, Properties};
use ob_rocksdb::{Entrance, Entry, Finding, GetPlan, Kind, Sequence, Step, Table};
use ob_wire_nvme::pushdown::{FILES_MAX, SCRATCH_LEN};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::PushedFile;
use crate::client::{File, Read};
use crate::plant::{Bug, is_planted};

/// Bytes of the longest key.
const KEY_MAX: usize = 192;
/// Bytes of the longest value.
const VALUE_MAX: usize = SCRATCH_LEN - HEAD_LEN - 2 * (KEY_MAX + 8);
/// Bytes of the longest block: as many as a helper takes, with the byte behind it that is checked, too.
const BLOCK_LEN_MAX: u64 = (64 << 10) - 1;
/// Bytes before the key, and before the value.
const HEAD_LEN: usize = size_of::<Head>();

const INDEX_OF_USER_KEYS: u8 = 1;
const INDEX_OF_DELTAS: u8 = 2;
const INDEX_WITH_FIRST_KEYS: u8 = 4;

const ABSENT: u32 = 0;
const FOUND: u32 = 1;
const DELETED: u32 = 2;

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Head {
    sequence: U64,
    key_len: U16,
    steps: U16,
    /// In which step it is.
    step: U16,
    /// Levels of index that follow, with the block that is read.
    levels: U16,
    /// Bytes of the block that is read.
    block_len: U32,
    status: U32,
    value_len: U32,
    reserved: U32,
    /// What stands behind a key: the sequence number and, in the lowest byte, the kind.
    trailer: U64,
    reserved2: [u8; 24],
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Place {
    offset: U64,
    len: U32,
    /// What makes checksums depend on the block's place.
    base: U32,
    file: u8,
    levels: u8,
    index_format: u8,
    checksum: u8,
    reserved: U32,
}

const _: () = assert!(HEAD_LEN == 64 && size_of::<Place>() == 24);

/// Why a lookup is not asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotPushed {
    /// The key is too long.
    #[error("the key has more than {KEY_MAX} bytes")]
    Key,
    /// There are too many tables.
    #[error("more than {FILES_MAX} tables are left to look into")]
    Tables,
    /// A table has not been opened.
    #[error("a table has not been opened")]
    Unopened,
    /// The card cannot read a table.
    #[error("the card cannot read a table")]
    File,
    /// Blocks are compressed.
    #[error("a table is compressed")]
    Compressed,
    /// Blocks are checked in a way that the program does not know.
    #[error("a table has checksums of another kind")]
    Checksum,
    /// A block is too long.
    #[error("a block has more than {BLOCK_LEN_MAX} bytes")]
    Block,
    /// A table was taken in after the snapshot.
    #[error("a table was taken in after the snapshot")]
    Later,
}

/// What is left of a lookup, as a request.
pub struct Question {
    /// The tables.
    pub files: Vec<File>,
    /// The first read.
    pub first: Read,
    /// What the scratch begins with.
    pub input: Vec<u8>,
    /// Bytes of the longest read that is known of.
    pub read_len: u32,
    /// Reads that it takes at most.
    pub reads_max: u16,
    // Of each step: the tombstone that spans the key, and what all entries were written as if they do not say.
    known: Vec<(Sequence, Option<Sequence>)>,
}

impl Question {
    /// What a plan leaves to do.
    ///
    /// # Errors
    ///
    /// When it is left to the ordinary path.
    pub fn new<H: PushedFile>(plan: &GetPlan<H>) -> Result<Self, NotPushed> {
        if plan.key().len() > KEY_MAX {
            return Err(NotPushed::Key);
        }
        let (mut files, mut places, mut known) = (Vec::new(), Vec::new(), Vec::new());
        for step in plan.steps() {
            let table = step.file.table().ok_or(NotPushed::Unopened)?;
            if table.global_sequence.is_some_and(|sequence| sequence > plan.snapshot()) {
                return Err(NotPushed::Later);
            }
            let number = u8::try_from(files.len()).ok().filter(|number| usize::from(*number) < FILES_MAX);
            places.push(place(step, table, number.ok_or(NotPushed::Tables)?)?);
            let covering = step.covering.filter(|_| !is_planted(Bug::TombstonesForgotten));
            known.push((covering.unwrap_or_default(), table.global_sequence));
            files.push(step.file.file.pushed().ok_or(NotPushed::File)?.clone());
        }
        let begin = places.first().ok_or(NotPushed::Tables)?;
        let snapshot = if is_planted(Bug::SnapshotForgotten) { Sequence::MAX } else { plan.snapshot() };
        let head = Head {
            sequence: snapshot.0.into(),
            // Shorter than what a u16 has room for, all of them.
            key_len: (plan.key().len() as u16).into(),
            steps: (places.len() as u16).into(),
            levels: u16::from(begin.levels).into(),
            block_len: begin.len,
            ..Head::default()
        };
        let mut key = [0; KEY_MAX];
        key.iter_mut().zip(plan.key()).for_each(|(to, from)| *to = *from);
        let read_len = |place: &Place| place.len.get() + TRAILER_LEN as u32;
        Ok(Self {
            files,
            first: Read { file: 0, offset: begin.offset.get(), len: read_len(begin) },
            input: [head.as_bytes(), &key, places.as_bytes()].concat(),
            read_len: places.iter().map(read_len).max().unwrap_or(0),
            reads_max: places.iter().map(|place| u16::from(place.levels) + 1).sum(),
            known,
        })
    }

    /// Bytes of the scratch that an answer of so many bytes of value has.
    #[must_use]
    pub fn answer_len(value_len: usize) -> u32 {
        (HEAD_LEN + value_len.min(VALUE_MAX)) as u32
    }

    /// What each step has found, up to the last that was looked into; nothing if the value was cut off, whose length is told.
    ///
    /// # Errors
    ///
    /// When it is no answer to this question.
    pub fn findings(&self, scratch: &[u8]) -> Result<Result<Vec<Finding>, usize>, &'static str> {
        let (head, rest) = Head::read_from_prefix(scratch).map_err(|_| "an answer is cut off")?;
        let last = usize::from(head.step.get());
        if last >= self.known.len() {
            return Err("an answer is of a step that was not asked for");
        }
        let empty = |(covering, _): &(Sequence, _)| Finding { entries: Vec::new(), covering: *covering };
        let mut findings: Vec<Finding> = self.known.iter().map(empty).collect();
        let status = head.status.get();
        if status == ABSENT {
            return if last + 1 == findings.len() {
                Ok(Ok(findings))
            } else {
                Err("an answer ends too early")
            };
        }
        let value_len = head.value_len.get() as usize;
        let Some(value) = rest.get(..value_len) else { return Ok(Err(value_len)) };
        let kind = Kind::from_number(head.trailer.get() as u8).map_err(|_| "an entry is of no kind")?;
        match (status, kind) {
            (FOUND, Kind::Value) | (DELETED, Kind::Deletion | Kind::SingleDeletion) => {}
            _ => return Err("an answer is of no kind"),
        }
        findings.truncate(last + 1);
        let global = self.known.get(last).and_then(|(_, global)| *global);
        let sequence = global.unwrap_or(Sequence(head.trailer.get() >> 8));
        if let Some(finding) = findings.last_mut() {
            finding.entries.push(Entry { sequence, kind, value: value.to_vec() });
        }
        Ok(Ok(findings))
    }
}

fn place<H>(step: &Step<H>, table: &Table, file: u8) -> Result<Place, NotPushed> {
    if table.properties.is_compressed {
        return Err(NotPushed::Compressed);
    }
    let (Handle { offset, len }, levels) = match step.from {
        Entrance::Footer => return Err(NotPushed::Unopened),
        Entrance::Index { handle, levels } => (handle, levels),
        Entrance::Data { handle } => (handle, 0),
    };
    let checksum = match table.footer.checksum {
        ChecksumKind::None => 0,
        ChecksumKind::Crc32c => 1,
        ChecksumKind::Xxh3 => 4,
        ChecksumKind::XxHash | ChecksumKind::XxHash64 => return Err(NotPushed::Checksum),
    };
    let len = u32::try_from(len).ok().filter(|_| len <= BLOCK_LEN_MAX).ok_or(NotPushed::Block)?;
    Ok(Place {
        offset: offset.into(),
        len: len.into(),
        base: table.footer.context_base.into(),
        file,
        levels,
        index_format: index_format(&table.properties),
        checksum,
        reserved: U32::ZERO,
    })
}

fn index_format(properties: &Properties) -> u8 {
    let with = |is_so: bool, flag: u8| if is_so { flag } else { 0 };
    with(properties.index_has_user_keys, INDEX_OF_USER_KEYS)
        | with(properties.index_has_differences, INDEX_OF_DELTAS)
        | with(properties.index == IndexKind::SingleWithFirstKeys, INDEX_WITH_FIRST_KEYS)
}
