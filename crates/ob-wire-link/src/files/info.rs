//! What answers tell of the card, of a node, and of the device's space.

use ob_core::{NodeId, NodeKind, layout};
use zerocopy::FromBytes;
use zerocopy::little_endian::{U32, U64};

/// Bytes of a [`CardInfo`].
pub const CARD_INFO_LEN: usize = 56;
/// Bytes of a [`NodeInfo`].
pub const NODE_INFO_LEN: usize = 40;
/// Bytes of a [`SpaceInfo`].
pub const SPACE_INFO_LEN: usize = 48;

layout!(CardInfoBody, CARD_INFO_LEN, {
    version: U32, block_len: U32, transfer_max: U32, reserved: U32, segment_len: U64, epoch: U64, uuid: [u8; 16],
    file_len_max: U64,
});
layout!(NodeInfoBody, NODE_INFO_LEN, {
    id: U64, kind: U32, reserved: U32, size: U64, allocated: U64, parent: U64,
});
layout!(SpaceInfoBody, SPACE_INFO_LEN, {
    total: U64, free: U64, files: U64, directories: U64, log_total: U64, log_live: U64,
});

/// What the card is: the answer to `HELLO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardInfo {
    /// What the card speaks.
    pub version: u32,
    /// The device's block: a power of two.
    pub block_len: u32,
    /// Most bytes of one read or write; never 0.
    pub transfer_max: u32,
    /// Bytes of a segment: a power of two.
    pub segment_len: u64,
    /// Mounts so far.
    pub epoch: u64,
    /// Of the device's format.
    pub uuid: [u8; 16],
    /// Largest size of a file.
    pub file_len_max: u64,
}

/// What a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// The node.
    pub id: NodeId,
    /// What it is.
    pub kind: NodeKind,
    /// Bytes of a file; entries of a directory.
    pub size: u64,
    /// Bytes of the segments it has.
    pub allocated: u64,
    /// The directory it is in; none for the root.
    pub parent: Option<NodeId>,
}

/// What of the device is used and free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceInfo {
    /// Bytes of all segments.
    pub total: u64,
    /// Bytes of segments that no file has.
    pub free: u64,
    /// Files.
    pub files: u64,
    /// Directories, the root included.
    pub directories: u64,
    /// Bytes of the log.
    pub log_total: u64,
    /// Bytes of it that count.
    pub log_live: u64,
}

impl CardInfo {
    /// The bytes behind the response's header.
    pub fn encode(&self) -> [u8; CARD_INFO_LEN] {
        let body = CardInfoBody {
            version: self.version.into(),
            block_len: self.block_len.into(),
            transfer_max: self.transfer_max.into(),
            reserved: 0.into(),
            segment_len: self.segment_len.into(),
            epoch: self.epoch.into(),
            uuid: self.uuid,
            file_len_max: self.file_len_max.into(),
        };
        zerocopy::transmute!(body)
    }

    /// Checks the bytes behind the response's header; none, if no card can be so.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let body = CardInfoBody::ref_from_bytes(bytes).ok()?;
        let info = Self {
            version: body.version.get(),
            block_len: body.block_len.get(),
            transfer_max: body.transfer_max.get(),
            segment_len: body.segment_len.get(),
            epoch: body.epoch.get(),
            uuid: body.uuid,
            file_len_max: body.file_len_max.get(),
        };
        let legal = info.block_len.is_power_of_two()
            && info.segment_len.is_power_of_two()
            && info.transfer_max > 0
            && i64::try_from(info.file_len_max).is_ok();
        (legal && body.reserved == 0).then_some(info)
    }
}

impl NodeInfo {
    /// The bytes behind the response's header.
    pub fn encode(&self) -> [u8; NODE_INFO_LEN] {
        let body = NodeInfoBody {
            id: self.id.0.into(),
            kind: u32::from(self.kind.code()).into(),
            reserved: 0.into(),
            size: self.size.into(),
            allocated: self.allocated.into(),
            parent: self.parent.map_or(0, |parent| parent.0).into(),
        };
        zerocopy::transmute!(body)
    }

    /// Checks the bytes behind the response's header; none, if no node can be so.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let body = NodeInfoBody::ref_from_bytes(bytes).ok()?;
        let parent = body.parent.get();
        let info = Self {
            id: NodeId(body.id.get()),
            kind: u8::try_from(body.kind.get()).ok().and_then(NodeKind::from_code)?,
            size: body.size.get(),
            allocated: body.allocated.get(),
            parent: (parent != 0).then_some(NodeId(parent)),
        };
        (info.id != NodeId(0) && body.reserved == 0).then_some(info)
    }
}

impl SpaceInfo {
    /// The bytes behind the response's header.
    pub fn encode(&self) -> [u8; SPACE_INFO_LEN] {
        let body = SpaceInfoBody {
            total: self.total.into(),
            free: self.free.into(),
            files: self.files.into(),
            directories: self.directories.into(),
            log_total: self.log_total.into(),
            log_live: self.log_live.into(),
        };
        zerocopy::transmute!(body)
    }

    /// The bytes behind the response's header; none, if they are not as many.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let body = SpaceInfoBody::ref_from_bytes(bytes).ok()?;
        Some(Self {
            total: body.total.get(),
            free: body.free.get(),
            files: body.files.get(),
            directories: body.directories.get(),
            log_total: body.log_total.get(),
            log_live: body.log_live.get(),
        })
    }
}
