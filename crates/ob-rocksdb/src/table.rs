//! A block-based table: what is read when it is first used, and how a key is found in it.
//!
//! ```text
//!   footer ─▶ metaindex ─┬▶ properties, tombstones of ranges          read once: Table
//!                        ├▶ filter (or the index of filters)  ┐
//!                        └▶ index (or the index of indexes)   ├ blocks, through the cache: probe
//!                                └▶ data blocks               ┘
//! ```

use std::sync::Arc;

use crate::block::{Block, BlockCursor, Keys, Values, entries};
use crate::cache::Class;
use crate::checksum::{ChecksumKind, context};
use crate::compression::{BLOCK_LEN_MAX, Compression};
use crate::error::{Damage, ParseError, Unsupported};
use crate::filter;
use crate::footer::{Footer, Handle, TRAILER_LEN};
use crate::keys::{self, InternalKey, Kind, Sequence};
use crate::lookup::{Entry, Finding};
use crate::plant::{Bug, is_planted};
use crate::properties::{IndexKind, Properties, check_comparator};
use crate::tombstones::{Tombstone, Tombstones};

/// What is wrong in a table, and at which block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableError {
    /// Where the block begins.
    pub offset: u64,
    /// What is wrong.
    pub error: ParseError,
}

fn at<E: Into<ParseError>>(handle: Handle) -> impl Fn(E) -> TableError {
    move |error| TableError { offset: handle.offset, error: error.into() }
}

/// The bytes of a block and its trailer in the file.
///
/// # Errors
/// When the block is not within the table, or larger than any.
pub fn extent(handle: Handle, table_len: u64) -> Result<usize, Damage> {
    let too_large = Damage::TooLarge { what: "a block", len: handle.len, len_max: BLOCK_LEN_MAX as u64 };
    if handle.end()? > table_len {
        return Err(Damage::Malformed("a block ends behind its table"));
    }
    if handle.len > BLOCK_LEN_MAX as u64 {
        return Err(too_large);
    }
    usize::try_from(handle.len + TRAILER_LEN).map_err(|_| too_large)
}

/// The content of a block from its bytes and trailer.
///
/// # Errors
/// When it is damaged, or compressed in a way that is not read.
pub fn open_block(
    mut raw: Vec<u8>,
    handle: Handle,
    footer: &Footer,
    has_dictionary: bool,
) -> Result<Vec<u8>, ParseError> {
    let cut = Damage::Truncated("a block");
    let (checked, stored) = raw.split_last_chunk::<4>().ok_or(cut.clone())?;
    let (number, content) = checked.split_last().ok_or(cut)?;
    if footer.checksum != ChecksumKind::None {
        let expected = footer.checksum.of(checked).wrapping_add(context(footer.context_base, handle.offset));
        if u32::from_le_bytes(*stored) != expected {
            return Err(Damage::Checksum("a block").into());
        }
    }
    let compression = Compression::from_number(*number)?;
    if has_dictionary && compression != Compression::None {
        return Err(Unsupported::CompressionDictionary.into());
    }
    if compression == Compression::None {
        let len = content.len();
        raw.truncate(len);
        return Ok(raw);
    }
    compression.decompress(content, footer.format_version)
}

/// Where a table's filter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterPlace {
    /// The filter, or the index of filters.
    pub handle: Handle,
    /// Whether it is an index of filters.
    pub is_partitioned: bool,
}

/// What a metaindex says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetaIndex {
    /// The properties.
    pub properties: Option<Handle>,
    /// The tombstones of ranges.
    pub tombstones: Option<Handle>,
    /// The index, from format version 6 on.
    pub index: Option<Handle>,
    /// The filter.
    pub filter: Option<FilterPlace>,
    /// Whether data blocks are compressed with a dictionary.
    pub has_dictionary: bool,
}

const FILTER: &str = "fullfilter.rocksdb.BuiltinBloomFilter";
const PARTITIONED_FILTER: &str = "partitionedfilter.rocksdb.BuiltinBloomFilter";

/// Reads the content of a metaindex.
///
/// # Errors
/// When it is damaged.
pub fn parse_metaindex(content: Vec<u8>) -> Result<MetaIndex, ParseError> {
    let mut found = MetaIndex::default();
    for (name, value) in entries(content)? {
        let handle = Handle::parse(&mut crate::bytes::Input::new(&value, "a handle"))?;
        let name = String::from_utf8_lossy(&name);
        match &*name {
            "rocksdb.properties" => found.properties = Some(handle),
            "rocksdb.range_del" => found.tombstones = Some(handle),
            "rocksdb.index" => found.index = Some(handle),
            "rocksdb.compression_dict" => found.has_dictionary = true,
            FILTER | PARTITIONED_FILTER => {
                let is_partitioned = name == PARTITIONED_FILTER;
                found.filter = Some(FilterPlace { handle, is_partitioned });
            }
            _ => {}
        }
    }
    Ok(found)
}

/// A table, but for its index, filter and data.
#[derive(Clone, Debug)]
pub struct Table {
    /// Its footer.
    pub footer: Footer,
    /// The index, or the index of indexes.
    pub index: Handle,
    /// How many levels the index has.
    pub index_levels: u8,
    /// Its filter, if it says anything of whole keys.
    pub filter: Option<FilterPlace>,
    /// Its tombstones of ranges.
    pub tombstones: Tombstones,
    /// What all its entries were written as, if they do not say themselves.
    pub global_sequence: Option<Sequence>,
    /// Whether data blocks are compressed with a dictionary.
    pub has_dictionary: bool,
    /// What it says about itself.
    pub properties: Properties,
}

impl Table {
    /// Puts together what was read. `largest_sequence` is what the manifest says of the table.
    ///
    /// # Errors
    /// When the parts do not fit each other.
    pub fn new(
        footer: Footer,
        metaindex: MetaIndex,
        properties: Properties,
        tombstones: Option<Vec<u8>>,
        largest_sequence: Sequence,
    ) -> Result<Self, ParseError> {
        if let Some(comparator) = &properties.comparator {
            check_comparator(comparator)?;
        }
        let index = footer.index.or(metaindex.index).ok_or(Damage::Malformed("a table has no index"))?;
        let global_sequence = properties.external.map(|external| match external.sequence {
            Sequence(0) => Ok(largest_sequence),
            own if own == largest_sequence => Ok(own),
            _ => Err(Damage::Malformed(
                "a table that was taken in has another sequence number than the manifest says",
            )),
        });
        let global_sequence = global_sequence.transpose()?;
        let tombstones = tombstones.map(|content| parse_tombstones(content, global_sequence)).transpose()?;
        if tombstones.is_none() && properties.range_deletions > 0 {
            return Err(Damage::Malformed("a table has tombstones of ranges, and no block of them").into());
        }
        Ok(Self {
            footer,
            index,
            index_levels: if properties.index == IndexKind::TwoLevel { 2 } else { 1 },
            filter: metaindex.filter.filter(|_| properties.filters_whole_keys),
            tombstones: tombstones.unwrap_or_default(),
            global_sequence,
            has_dictionary: metaindex.has_dictionary,
            properties,
        })
    }

    /// A cursor over a block of the index, or of the index of filters.
    ///
    /// # Errors
    /// When its frame is damaged.
    pub fn index_cursor(&self, content: Arc<Vec<u8>>) -> Result<BlockCursor, ParseError> {
        let keys = if self.properties.index_has_user_keys { Keys::Bytes } else { Keys::Internal };
        let with_first_key = self.properties.index == IndexKind::SingleWithFirstKeys;
        let values = match self.properties.index_has_differences {
            true => Values::Differences { with_first_key },
            false => Values::Plain,
        };
        Ok(BlockCursor::new(Block::parse(content)?, keys, values))
    }

    /// A cursor over a data block.
    ///
    /// # Errors
    /// When its frame is damaged.
    pub fn data_cursor(&self, content: Arc<Vec<u8>>) -> Result<BlockCursor, ParseError> {
        Ok(BlockCursor::new(Block::parse(content)?, Keys::Internal, Values::Plain))
    }

    /// An entry's key, with the sequence number that it has.
    ///
    /// # Errors
    /// When it is none.
    pub fn internal_key<'a>(&self, key: &'a [u8]) -> Result<InternalKey<'a>, ParseError> {
        let key = InternalKey::parse(key)?;
        Ok(InternalKey { sequence: self.global_sequence.unwrap_or(key.sequence), ..key })
    }

    /// Whether an index's key says that what comes behind its block has other users' keys than `user`.
    fn is_last_block_of(&self, index_key: &[u8], user: &[u8]) -> bool {
        self.properties.index_has_user_keys || keys::user_part(index_key) > user
    }
}

fn parse_tombstones(content: Vec<u8>, global: Option<Sequence>) -> Result<Tombstones, ParseError> {
    let mut all = Vec::new();
    for (start, end) in entries(content)? {
        let start = InternalKey::parse(&start)?;
        if start.kind != Kind::RangeDeletion {
            return Err(Damage::Malformed("an entry among the tombstones of ranges is none").into());
        }
        let sequence = global.unwrap_or(start.sequence);
        all.push(Tombstone { start: start.user.to_vec(), end, sequence });
    }
    Ok(Tombstones::new(all))
}

/// Where a lookup in a table has to go on by reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entrance {
    /// At its footer: nothing of the table is known.
    Footer,
    /// At a block of its index.
    Index {
        /// The block.
        handle: Handle,
        /// How many levels of index there are from here on: 1 if its entries are of data blocks.
        levels: u8,
    },
    /// At a data block.
    Data {
        /// The block.
        handle: Handle,
    },
}

/// What is known of a table's filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterSays {
    /// There is none that could say no.
    Nothing,
    /// The key may be there.
    Maybe,
    /// It was not in the cache.
    NotLookedAt,
}

/// What comes of looking into a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// All that it knows of the key.
    Done(Finding),
    /// A block is needed.
    Missing {
        /// The block.
        block: Handle,
        /// What it is.
        class: Class,
        /// Where somebody else can go on: at this block, or at the first data block that may have the key.
        entrance: Entrance,
        /// What the filter has said.
        filter: FilterSays,
    },
}

/// Gives blocks that are at hand.
pub type AtHand<'a> = dyn FnMut(Handle, Class) -> Option<Arc<Vec<u8>>> + 'a;

/// Looks for a user's key in a table as far as blocks are at hand. With `wants_filter` a filter that is not at hand is asked for
/// first; otherwise it is passed over.
///
/// # Errors
/// When a block is damaged.
pub fn probe(
    table: &Table,
    at_hand: &mut AtHand<'_>,
    user: &[u8],
    snapshot: Sequence,
    wants_filter: bool,
) -> Result<Probe, TableError> {
    let covering = table.tombstones.covering(user, snapshot);
    let nothing = Probe::Done(Finding { entries: Vec::new(), covering });
    let target = keys::encode_target(user, snapshot);
    let filter = match ask_filter(table, at_hand, user, &target)? {
        Asked::No => return Ok(nothing),
        Asked::Says(says) => says,
        Asked::Missing(block) if wants_filter => {
            let entrance = Entrance::Index { handle: table.index, levels: table.index_levels };
            return Ok(Probe::Missing {
                block,
                class: Class::Filter,
                entrance,
                filter: FilterSays::NotLookedAt,
            });
        }
        Asked::Missing(_) => FilterSays::NotLookedAt,
    };
    let missing = |block, class, entrance| Ok(Probe::Missing { block, class, entrance, filter });
    let mut path = match IndexPath::seek(table, at_hand, &target)? {
        Ok(path) => path,
        Err((handle, levels)) => return missing(handle, Class::Index, Entrance::Index { handle, levels }),
    };
    let mut finding = Finding { entries: Vec::new(), covering };
    let mut first: Option<Handle> = None;
    while path.leaf.is_valid() {
        let handle = path.leaf.handle().map_err(at(path.leaf_handle))?;
        let entrance = Entrance::Data { handle: *first.get_or_insert(handle) };
        let Some(content) = at_hand(handle, Class::Data) else {
            return missing(handle, Class::Data, entrance);
        };
        let ends =
            collect(table, content, user, snapshot, &target, &mut finding.entries).map_err(at(handle))?;
        if ends || table.is_last_block_of(path.leaf.key(), user) {
            break;
        }
        if let Err(handle) = path.advance(table, at_hand)? {
            // Whoever goes on elsewhere begins with the first data block again, and finds out itself.
            return missing(handle, Class::Index, entrance);
        }
    }
    Ok(Probe::Done(finding))
}

/// Takes a user's key's entries from a data block; says whether the key ends in it.
fn collect(
    table: &Table,
    content: Arc<Vec<u8>>,
    user: &[u8],
    snapshot: Sequence,
    target: &[u8],
    entries: &mut Vec<Entry>,
) -> Result<bool, ParseError> {
    let mut cursor = table.data_cursor(content)?;
    let mut is_there = cursor.seek(target)?;
    while is_there {
        let key = table.internal_key(cursor.key())?;
        if key.user != user {
            return Ok(true);
        }
        if key.sequence <= snapshot || is_planted(Bug::SnapshotIgnored) {
            entries.push(Entry { sequence: key.sequence, kind: key.kind, value: cursor.value().to_vec() });
            if key.kind != Kind::Merge {
                return Ok(true);
            }
        }
        is_there = cursor.advance()?;
    }
    Ok(false)
}

enum Asked {
    No,
    Says(FilterSays),
    Missing(Handle),
}

fn ask_filter(
    table: &Table,
    at_hand: &mut AtHand<'_>,
    user: &[u8],
    target: &[u8],
) -> Result<Asked, TableError> {
    let Some(place) = table.filter else { return Ok(Asked::Says(FilterSays::Nothing)) };
    let Some(mut content) = at_hand(place.handle, Class::Filter) else {
        return Ok(Asked::Missing(place.handle));
    };
    if place.is_partitioned {
        let damaged = at::<ParseError>(place.handle);
        let mut cursor = table.index_cursor(content).map_err(&damaged)?;
        // A key behind all partitions belongs to the last one.
        let is_there = cursor.seek(target).map_err(&damaged)? || cursor.last().map_err(&damaged)?;
        if !is_there {
            return Ok(Asked::Says(FilterSays::Maybe));
        }
        let partition = cursor.handle().map_err(at(place.handle))?;
        let Some(filter) = at_hand(partition, Class::Filter) else { return Ok(Asked::Missing(partition)) };
        content = filter;
    }
    Ok(match filter::may_have(&content, user) {
        true => Asked::Says(FilterSays::Maybe),
        false => Asked::No,
    })
}

/// A place in an index of one level or two.
struct IndexPath {
    top: Option<BlockCursor>,
    leaf: BlockCursor,
    leaf_handle: Handle,
}

impl IndexPath {
    /// Goes to the first data block that may have the target; or says which block of the index is missing, and how many levels there are
    /// from it on.
    fn seek(
        table: &Table,
        at_hand: &mut AtHand<'_>,
        target: &[u8],
    ) -> Result<Result<Self, (Handle, u8)>, TableError> {
        let Some(content) = at_hand(table.index, Class::Index) else {
            return Ok(Err((table.index, table.index_levels)));
        };
        let damaged = at::<ParseError>(table.index);
        let mut cursor = table.index_cursor(content).map_err(&damaged)?;
        let is_there = cursor.seek(target).map_err(&damaged)?;
        if table.index_levels == 1 || !is_there {
            return Ok(Ok(Self { top: None, leaf: cursor, leaf_handle: table.index }));
        }
        let leaf_handle = cursor.handle().map_err(at(table.index))?;
        let Some(content) = at_hand(leaf_handle, Class::Index) else { return Ok(Err((leaf_handle, 1))) };
        let damaged = at::<ParseError>(leaf_handle);
        let mut leaf = table.index_cursor(content).map_err(&damaged)?;
        let is_there = leaf.seek(target).map_err(&damaged)?;
        let mut path = Self { top: Some(cursor), leaf, leaf_handle };
        if !is_there && let Err(handle) = path.advance(table, at_hand)? {
            return Ok(Err((handle, 1)));
        }
        Ok(Ok(path))
    }

    /// Goes to the next data block; or says which block of the index is missing.
    fn advance(&mut self, table: &Table, at_hand: &mut AtHand<'_>) -> Result<Result<(), Handle>, TableError> {
        if self.leaf.advance().map_err(at(self.leaf_handle))? {
            return Ok(Ok(()));
        }
        let Some(top) = &mut self.top else { return Ok(Ok(())) };
        while top.advance().map_err(at(table.index))? {
            let handle = top.handle().map_err(at(table.index))?;
            let Some(content) = at_hand(handle, Class::Index) else { return Ok(Err(handle)) };
            self.leaf = table.index_cursor(content).map_err(at(handle))?;
            self.leaf_handle = handle;
            if self.leaf.first().map_err(at(handle))? {
                break;
            }
        }
        Ok(Ok(()))
    }
}
