//! The words everybody here uses, and the traits that keep services apart from drivers.
//!
//! ```text
//!   services (pure cores)      know:  Clock  Device  Net  Dma  Doorbell
//!   ------------------------------------------------------------------
//!   drivers                    are:   ob-io (kernel), ob-link (card and host),
//!                                     ob-sim (seeded, with faults)
//! ```
//!
//! All I/O has one shape: *submit* an operation with a [`Token`] and everything it needs (buffers included, as
//! [`ob_memory::Slice`]s that the operation owns while it is in flight), later *poll* its completion and get the
//! buffers back. Nothing blocks, nothing is a plain pointer, and every queue is bounded: a driver that can take
//! no more refuses the operation and hands it back whole. That is also the shape of a DPU's own engines.

#![forbid(unsafe_code)]

mod address_range;
mod device;
mod dma;
#[cfg(any(test, feature = "testing"))]
pub mod document;
mod id_map;
mod ids;
mod layout;
mod names;
mod net;
mod node_kind;
mod plant;
mod streams;
mod time;
mod volume_ids;

pub use address_range::{AddressRange, address_bits};
pub use device::{Device, DeviceCompletion, DeviceError, DeviceInfo, DeviceOp};
pub use dma::{Bell, Dma, DmaAddress, DmaCompletion, DmaCounts, DmaError, DmaOp, Doorbell, WORDS_MAX};
pub use id_map::{IdHasher, IdMap};
pub use ids::{AttachmentId, ConnectionId, GroupId, Incarnation, ListenerId, NodeId, RegionId, Token};
pub use layout::checksum_of;
pub use names::{NAME_LEN_MAX, NameError, check_name};
pub use net::{Net, NetError, NetEvent, NetListenError, Received, Sent};
pub use node_kind::NodeKind;
pub use streams::{Arrival, ConnectionAction, StreamProtocol, Streams};
pub use time::{Clock, Instant, Now};
pub use volume_ids::{
    BlockLen, ChunkId, ChunkName, Epoch, GateId, Lba, LockId, PoolId, Revision, SegmentId, SegmentName,
    Sequence, ServerId, SessionId, TierId, Units, VolumeId,
};

/// An operation that a driver did not accept, handed back whole.
#[derive(Debug)]
pub struct Refused<Op> {
    /// The operation, with the buffers it came with.
    pub op: Op,
    /// Why it was not accepted.
    pub reason: RefusedReason,
}

/// Why a driver did not accept an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefusedReason {
    /// The driver's queue is full; submit again after a completion.
    #[error("the queue is full")]
    Busy,
    /// The driver's peer or device is gone; nothing will be accepted again.
    #[error("the other end is gone")]
    Gone,
}
