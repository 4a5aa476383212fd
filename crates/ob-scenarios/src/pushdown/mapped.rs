//! Where files of a client's file system lie on a namespace: in blocks that were another's before, and soon are again.

use ob_nvme::initiator::{Data, Queue, Request};
use ob_pushdown::client::{FileMap, MapExtent, TransportError};
use ob_sim::Rng;
use ob_wire_nvme::command::IoOpcode;
use ob_wire_nvme::io::BlockCommand;
use ob_wire_nvme::{CommandId, DataPointer};

use super::NAMESPACE;
use super::node::{Content, NODE, NODES};
use super::port::Port;

/// Blocks that nobody has: a node is a block.
#[derive(Debug)]
pub(super) struct Space {
    free: Vec<u64>,
}

impl Space {
    pub(super) fn new(blocks: std::ops::Range<u64>) -> Self {
        Self { free: blocks.collect() }
    }

    /// Some blocks, in some order: many extents or few.
    pub(super) fn take(&mut self, rng: &mut Rng, count: u64) -> Option<Vec<u64>> {
        if (self.free.len() as u64) < count {
            return None;
        }
        match rng.below(3) {
            0 => rng.shuffle(&mut self.free),
            // The last that were given back are the first to be used again.
            1 => {}
            _ => self.free.sort_unstable_by(|one, other| other.cmp(one)),
        }
        let at = self.free.len() - count as usize;
        let mut taken = self.free.split_off(at);
        taken.reverse();
        Some(taken)
    }

    pub(super) fn give(&mut self, blocks: Vec<u64>) {
        self.free.extend(blocks);
    }
}

/// The map of a file that lies in blocks, a node in each.
pub(super) fn map_of(blocks: &[u64], version: u64, content: &Content) -> FileMap {
    let mut extents: Vec<MapExtent> = Vec::new();
    for (node, block) in blocks.iter().enumerate() {
        let (at, offset) = (node as u64 * NODE, block * NODE);
        match extents.last_mut() {
            Some(last) if last.offset + last.len == offset => last.len += NODE,
            _ => extents.push(MapExtent { at, offset, len: NODE }),
        }
    }
    FileMap { namespace: NAMESPACE, version, identity: content.owner, len: content.len, extents }
}

/// Writes a file's nodes to blocks. After a failure nobody knows what is there, and when.
pub(super) async fn write(port: &Port, blocks: &[u64], content: &Content) -> Result<(), TransportError> {
    let mut from = 0;
    while from < blocks.len() {
        let first = blocks.get(from).copied().unwrap_or_default();
        let follows = |(count, block): &(usize, &u64)| **block == first + *count as u64;
        let count = blocks.iter().skip(from).enumerate().take_while(follows).count();
        let bytes = content.bytes(from as u64, (from + count) as u64);
        let command = BlockCommand::new(NAMESPACE, first, count as u32);
        let request = Request {
            queue: Queue::Io,
            entry: command.encode(IoOpcode::Write, CommandId(0), DataPointer::None),
            data: Data::ToController(bytes.into()),
            is_idempotent: true,
            may_be_short: false,
            expects: None,
        };
        port.request(request).await?;
        from += count;
    }
    Ok(())
}

/// How many nodes a file has next.
pub(super) fn nodes(rng: &mut Rng) -> u64 {
    if rng.one_in(6) { 1 + rng.below(NODES) } else { NODES }
}
