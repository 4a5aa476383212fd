//! What is asked of the metadata store, and what becomes of the answers.

use ob_core::{Instant, Revision, SegmentName, ServerId, SessionId, VolumeId};
use ob_format::volume::metadata::{Head, Segment};

use crate::metadata::{Key, Value};
use crate::tier::admin::Ticket;

/// What becomes of a commit.
#[derive(Clone, Copy, Debug)]
pub(in crate::tier) enum Then {
    Pool,
    Tier(SessionId),
    /// A volume that was being removed is gone.
    VolumeEnded(VolumeId),
    /// A segment of such a volume is.
    SegmentEnded(SegmentName),
    /// A segment that nobody has written.
    Taken(SegmentName),
    /// One that somebody has, and how long the one before may still answer.
    Won {
        name: SegmentName,
        wait_ms: u32,
    },
    Adopted(SegmentName),
    Reserved(SegmentName),
    Opened(SegmentName),
    /// A chunk, by its place among its segment's.
    Sealed(SegmentName, usize),
    /// It has a member more.
    Repaired(SegmentName, usize),
    /// It has one less.
    Dropped(SegmentName, usize),
    /// The index has a head.
    Headed(SegmentName, Head),
    /// Chunks are dead.
    Buried(SegmentName),
    /// Chunks have no keys any more.
    Erased(SegmentName),
    /// That this tier wants a segment is in the store.
    Wished(SegmentName),
    /// A segment is nobody's.
    Released(SegmentName),
    /// One that this tier does not know to be its own, though the store says so.
    LeftReleased,
    /// Nothing of a volume is cut off any more.
    CutEnded(VolumeId),
    /// What an administrator has asked.
    Administered(Ticket),
    /// What one has asked of the pool's servers.
    Pooled(Ticket),
    /// A server that was found where it was configured is of the pool.
    Joined(ServerId),
    /// What it was for is forgotten.
    Nobody,
}

impl Then {
    /// Of which segment it is.
    pub(super) const fn segment(&self) -> Option<SegmentName> {
        match *self {
            Self::Taken(name)
            | Self::Won { name, .. }
            | Self::Adopted(name)
            | Self::Reserved(name)
            | Self::Opened(name)
            | Self::Sealed(name, _)
            | Self::Repaired(name, _)
            | Self::Dropped(name, _)
            | Self::Headed(name, _)
            | Self::Buried(name)
            | Self::Erased(name)
            | Self::SegmentEnded(name)
            | Self::Released(name) => Some(name),
            // That a tier wants a segment is not changed by what it knows of it.
            Self::Pool
            | Self::Tier(_)
            | Self::VolumeEnded(_)
            | Self::Wished(_)
            | Self::CutEnded(_)
            | Self::Administered(_)
            | Self::Pooled(_)
            | Self::Joined(_)
            | Self::LeftReleased
            | Self::Nobody => None,
        }
    }
}

/// What an operation is for.
#[derive(Clone, Debug)]
pub(in crate::tier) enum Purpose {
    Grant,
    Renew {
        session: SessionId,
        sent: Instant,
        /// The preparation of the gate that came before it; nothing if there was none.
        gate: Option<u64>,
    },
    Pool,
    /// The servers of the pool.
    Servers(Listing),
    Volumes(Listing),
    /// What a volume is now.
    Volume(VolumeId),
    /// Whether the name of a volume is still its own, which is all that is left of it.
    NameOf(VolumeId),
    /// Whether a volume is gone of which a server tells; and whether there ever was one.
    Gone(VolumeId),
    GonePool(VolumeId),
    /// What an administrator's request needs.
    Admin(Ticket),
    /// What one about the pool's servers does.
    PoolAdmin(Ticket),
    Segments(VolumeId, Listing),
    Segment(SegmentName),
    /// Who wants a segment that nobody has.
    Wanter {
        name: SegmentName,
        found: Box<Segment>,
        revision: Revision,
    },
    /// Which segments tiers want.
    Wanted,
    /// A segment that another wants, and that this tier does not know to be its own.
    Left(SegmentName),
    /// Which tiers there are.
    Tiers,
    /// Whether the owner that a segment's record names is there.
    Owner {
        name: SegmentName,
        found: Box<Segment>,
        revision: Revision,
    },
    /// For which attempt to take a segment.
    Chunks(SegmentName, u64),
    /// An earlier life of this tier ends.
    Revoke,
    /// This one does.
    Leave,
    /// What was before a revision is forgotten. If it is not, there is a next time.
    Forget,
    /// What it was for is forgotten.
    Nobody,
    Commit {
        key: Key,
        /// What it puts there, or that it takes it away.
        value: Option<Value>,
        then: Then,
    },
    /// A commit was not met: what the key has may be its own doing.
    ReadBack {
        value: Option<Value>,
        then: Then,
    },
}

/// Why segments, or volumes, are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tier) enum Listing {
    /// The tier begins.
    Begins,
    /// To find those that nobody has; or volumes, or servers, that are another than they were.
    Looks,
    /// To find those that are left of a volume which is being removed.
    Removes,
    /// To find those of which something is cut off.
    Cuts,
}
