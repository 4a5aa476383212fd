//! Entries of a list.

use ob_core::{NodeId, NodeKind, check_name, layout};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of an entry before its name.
pub const ENTRY_LEN: usize = 24;

const ALIGNMENT: usize = 8;

layout!(EntryBody, ENTRY_LEN, { id: U64, size: U64, kind: u8, name_len: u8, reserved: [u8; 6] });

/// One entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The node.
    pub id: NodeId,
    /// What it is.
    pub kind: NodeKind,
    /// Bytes of a file; entries of a directory.
    pub size: u64,
    /// Its name.
    pub name: &'a [u8],
}

/// Why bytes are not a list of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the entry at byte {offset} of the list cannot be: {what}")]
pub struct EntryError {
    /// Where the entry begins.
    pub offset: usize,
    /// What is wrong with it.
    pub what: &'static str,
}

/// Bytes of an entry whose name has this length.
pub fn entry_len(name_len: usize) -> usize {
    (ENTRY_LEN + name_len).next_multiple_of(ALIGNMENT)
}

/// Adds an entry to a list. Entries are added in the byte order of their names.
///
/// # Panics
///
/// When the name is one that no node can have.
pub fn push_entry(into: &mut Vec<u8>, entry: &Entry<'_>) {
    assert!(check_name(entry.name).is_ok(), "nodes have legal names");
    let body = EntryBody {
        id: entry.id.0.into(),
        size: entry.size.into(),
        kind: entry.kind.code(),
        name_len: entry.name.len() as u8,
        reserved: [0; 6],
    };
    let end = into.len() + entry_len(entry.name.len());
    into.extend_from_slice(body.as_bytes());
    into.extend_from_slice(entry.name);
    into.resize(end, 0);
}

/// The entries of a list, up to the first that cannot be.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    rest: &'a [u8],
    offset: usize,
    last_name: &'a [u8],
}

impl<'a> Entries<'a> {
    /// The entries in these bytes. Nothing is checked yet.
    pub fn new(bytes: &'a [u8]) -> Self {
        // The empty name is below every name that can be.
        Self { rest: bytes, offset: 0, last_name: &[] }
    }

    fn take_first(&mut self) -> Result<Entry<'a>, &'static str> {
        let (body, after) = EntryBody::ref_from_prefix(self.rest).map_err(|_| "it is cut off")?;
        let name_len = usize::from(body.name_len);
        let filled_len = entry_len(name_len) - ENTRY_LEN;
        let (filled_name, rest) = after.split_at_checked(filled_len).ok_or("its name is cut off")?;
        let (name, filling) = filled_name.split_at(name_len);
        check_name(name).map_err(|_| "its name cannot be")?;
        if body.reserved != [0; 6] || filling.iter().any(|byte| *byte != 0) {
            return Err("reserved bytes are not zero");
        }
        if name <= self.last_name {
            return Err("it is not in the order of names");
        }
        let kind = NodeKind::from_code(body.kind).ok_or("it is neither a directory nor a file")?;
        let id = NodeId(body.id.get());
        if id == NodeId(0) {
            return Err("there is no such node");
        }
        self.offset += ENTRY_LEN + filled_len;
        (self.rest, self.last_name) = (rest, name);
        Ok(Entry { id, kind, size: body.size.get(), name })
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>, EntryError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let offset = self.offset;
        let entry = self.take_first().map_err(|what| {
            self.rest = &[];
            EntryError { offset, what }
        });
        Some(entry)
    }
}

impl std::iter::FusedIterator for Entries<'_> {}
