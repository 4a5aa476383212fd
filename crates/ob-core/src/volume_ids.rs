//! The numbers of volumes: what formats, protocols and tiers say to each other about blocks, chunks and owners.

use std::fmt;

use crate::ids::id;

id!(
    /// A volume; never used twice in a pool, and never 0.
    VolumeId(u64),
    "volume "
);
id!(
    /// A segment of a volume: the unit of ownership. (Not a segment of the card's files.)
    SegmentId(u32),
    "segment "
);
id!(
    /// A chunk's number in its segment; never used twice there, and never 0.
    ChunkId(u32),
    "chunk "
);
id!(
    /// A chunk server; drawn once, and never 0.
    ServerId(u64),
    "server "
);
id!(
    /// A tier: a card with its host; drawn once, and never 0.
    TierId(u64),
    "tier "
);
id!(
    /// One life of a tier's host on its card: the card's incarnation in the upper half, a count in the lower.
    GateId(u64),
    "gate "
);
id!(
    /// A block, counted from the beginning of its segment.
    Lba(u32),
    "block "
);
id!(
    /// A length or place within a chunk, in units of [`Units::LEN`] bytes.
    Units(u32),
    "unit "
);
id!(
    /// A session of the metadata store, as the store names it.
    SessionId(u64),
    "session "
);
id!(
    /// A change of the metadata store. Grows, and is never used again.
    Revision(u64),
    "revision "
);

/// Which pool; zeros are no pool.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PoolId(pub [u8; 16]);

/// What a file lock keeps apart: the machine's boot and the locked file (docs/volumes-safety.md, the gate).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct LockId(pub [u8; 16]);

/// A segment of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SegmentName {
    /// The volume.
    pub volume: VolumeId,
    /// The segment of it.
    pub segment: SegmentId,
}

/// A chunk of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ChunkName {
    /// The volume.
    pub volume: VolumeId,
    /// The segment of it.
    pub segment: SegmentId,
    /// The chunk of that.
    pub chunk: ChunkId,
}

/// How often a segment has changed hands: 1 with its first owner, below 2²⁸.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(u32);

/// The order of records in a segment: the epoch in the upper 28 bits, a count in the lower 36. As a *version* it is the one under
/// which bytes were first written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Sequence(pub u64);

/// Bytes of a volume's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlockLen {
    /// 512.
    Small,
    /// 4096.
    Large,
}

impl ChunkName {
    /// Of a chunk of a segment.
    #[must_use]
    pub const fn new(of: SegmentName, chunk: ChunkId) -> Self {
        Self { volume: of.volume, segment: of.segment, chunk }
    }

    /// Its segment.
    #[must_use]
    pub const fn segment_name(self) -> SegmentName {
        SegmentName { volume: self.volume, segment: self.segment }
    }
}

impl Units {
    /// Bytes of a unit.
    pub const LEN: u32 = 64;

    /// As many as so many bytes take, the last one filled up.
    #[must_use]
    pub const fn of_bytes(bytes: u32) -> Self {
        Self(bytes.div_ceil(Self::LEN))
    }

    /// How many bytes they are.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        // No product of 32 and 6 bits is too large.
        self.0 as u64 * Self::LEN as u64
    }

    /// So many more, unless that is beyond all numbers.
    #[must_use]
    pub const fn checked_add(self, more: Self) -> Option<Self> {
        match self.0.checked_add(more.0) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }
}

impl Epoch {
    /// Of a segment's first owner.
    pub const FIRST: Self = Self(1);
    /// Epochs are below this.
    pub const END: u32 = 1 << 28;

    /// From its number, if there is such an epoch.
    #[must_use]
    pub const fn new(number: u32) -> Option<Self> {
        if number >= 1 && number < Self::END { Some(Self(number)) } else { None }
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The next owner's, if there can be one.
    #[must_use]
    pub const fn next(self) -> Option<Self> {
        Self::new(self.0 + 1)
    }
}

impl Sequence {
    /// Counts are below this.
    pub const COUNT_END: u64 = 1 << 36;

    /// The count-th of an epoch, if there are so many.
    #[must_use]
    pub const fn new(epoch: Epoch, count: u64) -> Option<Self> {
        if count < Self::COUNT_END { Some(Self((epoch.0 as u64) << 36 | count)) } else { None }
    }

    /// In which epoch it was given; there is none in what is no record's sequence.
    #[must_use]
    pub const fn epoch(self) -> Option<Epoch> {
        Epoch::new((self.0 >> 36) as u32)
    }

    /// The how manieth of its epoch.
    #[must_use]
    pub const fn count(self) -> u64 {
        self.0 % Self::COUNT_END
    }
}

impl BlockLen {
    /// So many bytes, if a block can have so many.
    #[must_use]
    pub const fn from_bytes(bytes: u32) -> Option<Self> {
        match bytes {
            512 => Some(Self::Small),
            4096 => Some(Self::Large),
            _ => None,
        }
    }

    /// How many bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::Small => 512,
            Self::Large => 4096,
        }
    }
}

impl fmt::Debug for Epoch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "epoch {}", self.0)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, formatter)
    }
}

impl fmt::Debug for Sequence {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "sequence {}.{}", self.0 >> 36, self.count())
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, formatter)
    }
}

fn write_digits(bytes: &[u8; 16], formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
}

impl fmt::Debug for PoolId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("pool ")?;
        write_digits(&self.0, formatter)
    }
}

impl fmt::Debug for LockId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("lock ")?;
        write_digits(&self.0, formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_of_an_epoch_are_above_all_of_earlier_ones() {
        let last = Sequence::new(Epoch::FIRST, Sequence::COUNT_END - 1).unwrap();
        let next = Sequence::new(Epoch::FIRST.next().unwrap(), 0).unwrap();
        assert!(next > last);
        assert_eq!(next.epoch().map(Epoch::number), Some(2));
        assert_eq!((last.epoch(), last.count()), (Some(Epoch::FIRST), Sequence::COUNT_END - 1));
        assert_eq!(Sequence::new(Epoch::FIRST, Sequence::COUNT_END), None);
        assert_eq!(Sequence(7).epoch(), None);
    }

    #[test]
    fn epochs_end() {
        assert_eq!(Epoch::new(0), None);
        assert_eq!(Epoch::new(Epoch::END), None);
        assert_eq!(Epoch::new(Epoch::END - 1).unwrap().next(), None);
        let all = Sequence::new(Epoch::new(Epoch::END - 1).unwrap(), Sequence::COUNT_END - 1);
        assert_eq!(all, Some(Sequence(u64::MAX)));
    }

    #[test]
    fn bytes_are_filled_up_to_units() {
        let units = [0, 1, 64, 65, 65536, u32::MAX].map(|bytes| Units::of_bytes(bytes).0);
        assert_eq!(units, [0, 1, 1, 2, 1024, 1 << 26]);
        assert_eq!(Units(u32::MAX).bytes(), u64::from(u32::MAX) * 64);
    }
}
