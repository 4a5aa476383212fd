//! Records: the facts that frames carry.

use std::fmt;

use ob_core::{NodeId, NodeKind, check_name, layout};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::ROOT;
use crate::plant::{Bug, swapped_if};

/// Bytes of a `NODE` record before the name.
pub const NODE_LEN: usize = 32;
/// Bytes of a `MAP` record before its runs.
pub const MAP_LEN: usize = 24;
/// Bytes of a run.
pub const RUN_LEN: usize = 12;
/// Bytes of a `REMOVE` record.
pub const REMOVE_LEN: usize = 16;
/// Bytes of a `CUT` record.
pub const CUT_LEN: usize = 24;
/// Most runs of one part of a map.
pub const RUNS_MAX: usize = 32;

/// Records begin at multiples of this, so a frame's length is one too.
pub(super) const ALIGNMENT: usize = 8;

pub(super) mod kind {
    pub(in super::super) const NODE: u8 = 1;
    pub(in super::super) const MAP: u8 = 2;
    pub(in super::super) const REMOVE: u8 = 3;
    pub(in super::super) const CUT: u8 = 4;
}

layout!(NodeBody, NODE_LEN, {
    length: U16, kind: u8, node_kind: u8, name_len: u8, reserved: [u8; 3], id: U64, parent: U64, size: U64,
});
layout!(MapBody, MAP_LEN, {
    length: U16, kind: u8, reserved: u8, runs: U16, reserved_more: U16, file: U64, first: U32, reserved_end: U32,
});
layout!(RunBody, RUN_LEN, { logical: U32, physical: U32, count: U32 });
layout!(RemoveBody, REMOVE_LEN, { length: U16, kind: u8, reserved: [u8; 5], id: U64 });
layout!(CutBody, CUT_LEN, {
    length: U16, kind: u8, reserved: [u8; 5], file: U64, first: U32, reserved_end: U32,
});

/// Segments of a file that lie side by side on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first one's place in the file.
    pub logical: u32,
    /// The first one's place on the device.
    pub physical: u32,
    /// How many.
    pub count: u32,
}

/// What a file or directory is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeRecord<'a> {
    /// The node. The root has no record.
    pub id: NodeId,
    /// The directory it is in.
    pub parent: NodeId,
    /// What it is.
    pub kind: NodeKind,
    /// Bytes of a file; 0 for a directory.
    pub size: u64,
    /// Its name in the directory.
    pub name: &'a [u8],
}

/// One fact of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// A file or directory is now so.
    Node(NodeRecord<'a>),
    /// The part of the file's map that begins at `first`, and ends where its next part begins, is now so.
    Map {
        /// The file.
        file: NodeId,
        /// The first logical segment of the part.
        first: u32,
        /// Where its segments are; what no run names is a hole.
        runs: Runs<'a>,
    },
    /// The node is gone, with its map.
    Remove {
        /// The node.
        id: NodeId,
    },
    /// The file's map now ends before `first`.
    Cut {
        /// The file.
        file: NodeId,
        /// The first logical segment that is gone.
        first: u32,
    },
}

/// Runs that were checked: ascending, apart from each other, none empty, none beyond what can be counted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Runs<'a>(&'a [RunBody]);

/// A record that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the record at byte {offset} of the frame cannot be: {what}")]
pub struct RecordError {
    /// Where the record begins, in bytes from the frame's start.
    pub offset: usize,
    /// What is wrong with it.
    pub what: &'static str,
}

/// Bytes of a `NODE` record with a name of this length.
pub fn node_record_len(name_len: usize) -> usize {
    (NODE_LEN + name_len).next_multiple_of(ALIGNMENT)
}

/// Bytes of a `MAP` record with so many runs.
pub fn map_record_len(runs: usize) -> usize {
    (MAP_LEN + runs * RUN_LEN).next_multiple_of(ALIGNMENT)
}

impl Run {
    fn decode(body: &RunBody) -> Self {
        Self { logical: body.logical.get(), physical: body.physical.get(), count: body.count.get() }
    }

    fn encode(self) -> RunBody {
        RunBody { logical: self.logical.into(), physical: self.physical.into(), count: self.count.into() }
    }
}

impl<'a> Runs<'a> {
    /// The runs in ascending order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Run> + Clone + use<'a> {
        self.0.iter().map(Run::decode)
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the part is one hole.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Runs<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.iter()).finish()
    }
}

impl<'a> Record<'a> {
    /// Takes the first record of `bytes`; gives it, and what comes after it.
    pub(super) fn decode(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), &'static str> {
        let &[low, high, kind, ..] = bytes else { return Err("it is cut off") };
        let length = usize::from(u16::from_le_bytes([low, high]));
        let (record, rest) = bytes.split_at_checked(length).ok_or("it is longer than the frame")?;
        let record = match kind {
            kind::NODE => Self::Node(decode_node(record)?),
            kind::MAP => decode_map(record)?,
            kind::REMOVE => decode_remove(record)?,
            kind::CUT => decode_cut(record)?,
            _ => return Err("its kind is not known"),
        };
        Ok((record, rest))
    }
}

fn decode_node(bytes: &[u8]) -> Result<NodeRecord<'_>, &'static str> {
    let (body, rest) = NodeBody::ref_from_prefix(bytes).map_err(|_| TOO_SHORT)?;
    let name_len = usize::from(body.name_len);
    if bytes.len() != node_record_len(name_len) {
        return Err(WRONG_LENGTH);
    }
    let (name, filling) = rest.split_at_checked(name_len).ok_or(WRONG_LENGTH)?;
    if body.reserved != [0; 3] || !is_zero(filling) {
        return Err(NOT_ZERO);
    }
    let (parent, size) = swapped_if(Bug::NodeFieldsSwapped, (body.parent.get(), body.size.get()));
    let node = NodeRecord {
        id: NodeId(body.id.get()),
        parent: NodeId(parent),
        kind: NodeKind::from_code(body.node_kind).ok_or("it is neither a directory nor a file")?,
        size,
        name,
    };
    check_node(&node)?;
    Ok(node)
}

fn decode_map(bytes: &[u8]) -> Result<Record<'_>, &'static str> {
    let (body, rest) = MapBody::ref_from_prefix(bytes).map_err(|_| TOO_SHORT)?;
    let count = usize::from(body.runs.get());
    if bytes.len() != map_record_len(count) {
        return Err(WRONG_LENGTH);
    }
    let (runs, filling) = <[RunBody]>::ref_from_prefix_with_elems(rest, count).map_err(|_| WRONG_LENGTH)?;
    let reserved = [u32::from(body.reserved), body.reserved_more.get().into(), body.reserved_end.get()];
    if reserved != [0; 3] || !is_zero(filling) {
        return Err(NOT_ZERO);
    }
    let (file, first) = (NodeId(body.file.get()), body.first.get());
    check_map(file, first, runs.iter().map(Run::decode))?;
    Ok(Record::Map { file, first, runs: Runs(runs) })
}

fn decode_remove(bytes: &[u8]) -> Result<Record<'_>, &'static str> {
    let body = RemoveBody::ref_from_bytes(bytes).map_err(|_| WRONG_LENGTH)?;
    let id = NodeId(body.id.get());
    if body.reserved != [0; 5] {
        return Err(NOT_ZERO);
    }
    check_id(id)?;
    Ok(Record::Remove { id })
}

fn decode_cut(bytes: &[u8]) -> Result<Record<'_>, &'static str> {
    let body = CutBody::ref_from_bytes(bytes).map_err(|_| WRONG_LENGTH)?;
    let file = NodeId(body.file.get());
    if body.reserved != [0; 5] || body.reserved_end != 0 {
        return Err(NOT_ZERO);
    }
    check_id(file)?;
    Ok(Record::Cut { file, first: body.first.get() })
}

const TOO_SHORT: &str = "it is too short for its kind";
const WRONG_LENGTH: &str = "its length is not that of its contents";
const NOT_ZERO: &str = "reserved bytes are not zero";

pub(super) fn encode_node(node: &NodeRecord<'_>, into: &mut Vec<u8>) -> Result<(), &'static str> {
    check_node(node)?;
    let length = node_record_len(node.name.len());
    let (parent, size) = swapped_if(Bug::NodeFieldsSwapped, (node.parent.0, node.size));
    let body = NodeBody {
        length: (length as u16).into(),
        kind: kind::NODE,
        node_kind: node.kind.code(),
        name_len: node.name.len() as u8,
        reserved: [0; 3],
        id: node.id.0.into(),
        parent: parent.into(),
        size: size.into(),
    };
    into.extend_from_slice(body.as_bytes());
    into.extend_from_slice(node.name);
    fill(into);
    Ok(())
}

pub(super) fn encode_map(
    file: NodeId,
    first: u32,
    runs: &[Run],
    into: &mut Vec<u8>,
) -> Result<(), &'static str> {
    check_map(file, first, runs.iter().copied())?;
    let body = MapBody {
        length: (map_record_len(runs.len()) as u16).into(),
        kind: kind::MAP,
        reserved: 0,
        runs: (runs.len() as u16).into(),
        reserved_more: 0.into(),
        file: file.0.into(),
        first: first.into(),
        reserved_end: 0.into(),
    };
    into.extend_from_slice(body.as_bytes());
    for run in runs {
        into.extend_from_slice(run.encode().as_bytes());
    }
    fill(into);
    Ok(())
}

pub(super) fn encode_remove(id: NodeId, into: &mut Vec<u8>) -> Result<(), &'static str> {
    check_id(id)?;
    let length = (REMOVE_LEN as u16).into();
    into.extend_from_slice(
        RemoveBody { length, kind: kind::REMOVE, reserved: [0; 5], id: id.0.into() }.as_bytes(),
    );
    Ok(())
}

pub(super) fn encode_cut(file: NodeId, first: u32, into: &mut Vec<u8>) -> Result<(), &'static str> {
    check_id(file)?;
    let body = CutBody {
        length: (CUT_LEN as u16).into(),
        kind: kind::CUT,
        reserved: [0; 5],
        file: file.0.into(),
        first: first.into(),
        reserved_end: 0.into(),
    };
    into.extend_from_slice(body.as_bytes());
    Ok(())
}

/// Frames begin with a header of whole alignments, so the filling is the same in the frame as in the record.
fn fill(into: &mut Vec<u8>) {
    into.resize(into.len().next_multiple_of(ALIGNMENT), 0);
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

fn check_id(id: NodeId) -> Result<(), &'static str> {
    if id > ROOT { Ok(()) } else { Err("no record is about such an id") }
}

fn check_node(node: &NodeRecord<'_>) -> Result<(), &'static str> {
    check_id(node.id)?;
    check_name(node.name).map_err(|_| "its name cannot be")?;
    if node.parent < ROOT {
        return Err("it is in no directory");
    }
    match node.kind {
        NodeKind::Directory if node.size != 0 => Err("a directory has no bytes"),
        NodeKind::File if i64::try_from(node.size).is_err() => Err("the file is larger than files can be"),
        NodeKind::Directory | NodeKind::File => Ok(()),
    }
}

fn check_map(file: NodeId, first: u32, runs: impl ExactSizeIterator<Item = Run>) -> Result<(), &'static str> {
    check_id(file)?;
    if runs.len() > RUNS_MAX {
        return Err("it has too many runs");
    }
    let mut end = first;
    for run in runs {
        if run.count == 0 {
            return Err("a run is empty");
        }
        if run.logical < end {
            return Err("the runs are not ascending from the start of the part");
        }
        end = run.logical.checked_add(run.count).ok_or("a run ends beyond the largest file")?;
        run.physical.checked_add(run.count).ok_or("a run ends beyond the largest device")?;
    }
    Ok(())
}
