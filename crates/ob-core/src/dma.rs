//! Transfers across the link, and the bell that wakes the other half.

use ob_memory::{Slice, Source};

use crate::{Instant, Refused, RegionId, Token};

/// The most words one ordered read fetches.
pub const WORDS_MAX: usize = 4;

/// A place in the host's registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaAddress {
    /// Which region.
    pub region: RegionId,
    /// Byte offset in it.
    pub offset: u64,
}

/// One transfer, as the card submits it.
#[derive(Debug)]
pub enum DmaOp {
    /// Host memory to card memory, as many bytes as `into` has.
    Read {
        /// Where the bytes are.
        from: DmaAddress,
        /// Where they go.
        into: Slice,
    },
    /// Card memory to host memory.
    Write {
        /// The bytes, which others may read meanwhile if they are shared.
        from: Source,
        /// Where they go.
        to: DmaAddress,
    },
    /// `words.len()` 8-byte words, `stride` bytes apart, **read in ascending order**: a word is read no earlier
    /// than the one before it. This is one transfer.
    ReadWords {
        /// Address of the first word, a multiple of 8.
        from: DmaAddress,
        /// Distance from one word to the next, a multiple of 8.
        stride: u32,
        /// How many, at most [`WORDS_MAX`].
        count: u8,
        /// Read only after every write submitted to this region before has taken effect (the full fence that sleeping
        /// and waking needs).
        fence: bool,
        /// Filled in by the driver.
        words: [u64; WORDS_MAX],
    },
    /// One 8-byte word into host memory; it is never seen half written.
    WriteWord {
        /// Where, a multiple of 8.
        to: DmaAddress,
        /// What.
        value: u64,
    },
}

impl DmaOp {
    /// An ordered read of `count` words.
    pub fn read_words(from: DmaAddress, stride: u32, count: u8, fence: bool) -> Self {
        Self::ReadWords { from, stride, count, fence, words: [0; WORDS_MAX] }
    }

    /// Where in host memory the transfer touches, and how many bytes it spans there.
    pub fn extent(&self) -> (DmaAddress, u64) {
        match self {
            Self::Read { from, into } => (*from, into.len() as u64),
            Self::Write { from, to } => (*to, from.len() as u64),
            Self::ReadWords { from, stride, count, .. } => {
                (*from, u64::from(*stride) * u64::from(count.saturating_sub(1)) + 8)
            }
            Self::WriteWord { to, .. } => (*to, 8),
        }
    }

    /// Whether the transfer changes host memory.
    pub fn is_write(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::WriteWord { .. })
    }

    /// Checks what every driver must refuse: words off their alignment, too many of them, a stride of nothing.
    pub fn check_shape(&self) -> Result<(), DmaError> {
        let aligned = match self {
            Self::Read { .. } | Self::Write { .. } => true,
            Self::ReadWords { from, stride, count, .. } => {
                from.offset.is_multiple_of(8)
                    && stride.is_multiple_of(8)
                    && *stride > 0
                    && (1..=WORDS_MAX).contains(&usize::from(*count))
            }
            Self::WriteWord { to, .. } => to.offset.is_multiple_of(8),
        };
        if aligned { Ok(()) } else { Err(DmaError::Misaligned) }
    }
}

/// A finished transfer, with the operation and its buffer handed back.
#[derive(Debug)]
pub struct DmaCompletion {
    /// As given at submission.
    pub token: Token,
    /// As given, with `into` and `words` filled in.
    pub op: DmaOp,
    /// How it went. After an error the contents of `into` and `words` mean nothing.
    pub result: Result<(), DmaError>,
}

/// Why a transfer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DmaError {
    /// The host is gone, or the link to it; no transfer of this attachment will succeed again.
    #[error("the link to the host is down")]
    LinkDown,
    /// The region is not (or no longer) registered.
    #[error("no such region")]
    UnknownRegion,
    /// The transfer would leave the region.
    #[error("the transfer leaves its region")]
    OutOfRegion,
    /// More bytes than [`Dma::largest_transfer`].
    #[error("the transfer is larger than the link allows")]
    TooLarge,
    /// A word is not 8-byte aligned, or an ordered read asks for too many.
    #[error("the transfer is misaligned")]
    Misaligned,
}

/// What a link has carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DmaCounts {
    /// Transfers from host memory, ordered word reads included.
    pub reads: u64,
    /// Transfers to host memory, word writes included.
    pub writes: u64,
    /// Bytes of messages and bulk read; those of words are counted apart.
    pub read_bytes: u64,
    /// Bytes of messages and bulk written.
    pub written_bytes: u64,
    /// Bytes of words, read or written: pointers, bounds and tickets. They say how much a link talks about its work,
    /// not how much of it there is.
    pub word_bytes: u64,
}

impl DmaCounts {
    /// All transfers.
    pub fn operations(&self) -> u64 {
        self.reads + self.writes
    }

    /// Adds one transfer.
    pub fn count(&mut self, op: &DmaOp) {
        match op {
            DmaOp::Read { into, .. } => {
                self.reads += 1;
                self.read_bytes += into.len() as u64;
            }
            DmaOp::Write { from, .. } => {
                self.writes += 1;
                self.written_bytes += from.len() as u64;
            }
            DmaOp::ReadWords { count, .. } => {
                self.reads += 1;
                self.word_bytes += u64::from(*count) * 8;
            }
            DmaOp::WriteWord { .. } => {
                self.writes += 1;
                self.word_bytes += 8;
            }
        }
    }
}

impl std::ops::Add for DmaCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            reads: self.reads + other.reads,
            writes: self.writes + other.writes,
            read_bytes: self.read_bytes + other.read_bytes,
            written_bytes: self.written_bytes + other.written_bytes,
            word_bytes: self.word_bytes + other.word_bytes,
        }
    }
}

/// The card's way to the memory that one host registered with it.
///
/// Order, as on PCIe, but **within a region** only. A group is one region, so that the megabytes of one group need not
/// hold up the words of another:
/// 1. writes to one region take effect in the order they were submitted;
/// 2. an ordered word read reads its words in ascending order, and with `fence` only after all earlier writes to its
///    region;
/// 3. nothing else is ordered, neither reads nor what happens in different regions: wait for the completion of what must
///    come first.
///
/// What is kept over regions: a transfer to a region that was unregistered before it took effect fails and touches
/// nothing, and an id is never given to another region of the same attachment. So closing a group and giving its memory
/// back needs no order with what is under way there.
///
/// Transfers complete in any order. A driver checks shape and bounds itself and completes an illegal transfer
/// with an error; it never leaves the region.
///
/// The end: once an attachment has been shut down, or a region unregistered, nothing that was submitted before may still
/// touch that memory of the host, nor card memory whose operation was handed back. An engine that cannot recall a transfer
/// waits for it.
pub trait Dma {
    /// The most bytes one transfer may have.
    fn largest_transfer(&self) -> usize;

    /// Starts a transfer, or hands it back.
    fn submit(&mut self, token: Token, op: DmaOp) -> Result<(), Refused<DmaOp>>;

    /// The next finished transfer.
    fn poll(&mut self) -> Option<DmaCompletion>;

    /// When the next completion is due at the earliest, if that is known and nothing else will wake the caller.
    fn next_due(&self) -> Option<Instant> {
        None
    }

    /// What has been carried so far.
    fn counts(&self) -> DmaCounts;
}

/// A word in host memory on which host threads sleep. Ringing it adds one to the word and wakes them all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bell {
    /// Where the word is, a multiple of 8.
    pub address: DmaAddress,
}

/// Wakes sleepers on the host.
///
/// Ringing never blocks the card, whatever state the host is in, and takes effect after every write submitted to
/// the bell's own region before it. (The other direction, a host that wakes the card, is `ob_ring::CardBell`, and
/// reaches the card as an event of its reactor.)
pub trait Doorbell {
    /// Rings a bell.
    fn ring(&mut self, bell: Bell) -> Result<(), DmaError>;
}
