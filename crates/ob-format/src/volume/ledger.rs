//! The ledger: what a chunk server must not forget.

use ob_core::{
    ChunkId, ChunkName, Epoch, SegmentId, SegmentName, ServerId, Units, VolumeId, checksum_of, layout,
};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::{CHUNK_UNITS_MAX, LayoutError, RECORDS_START, VERSION, check_chunk_name, epoch, must};

/// Bytes of an entry.
pub const LEDGER_ENTRY_LEN: usize = 64;

pub(super) const MAGIC: [u8; 4] = *b"OBCL";

layout!(LedgerBody, LEDGER_ENTRY_LEN, {
    magic: [u8; 4], crc: U32, number: U64, kind: u8, reserved: [u8; 3], epoch: U32, volume: U64, segment: U32,
    chunk: U32, length: U32, content_crc: U32, server: U64, durable: U64,
});

const CRC_AT: usize = std::mem::offset_of!(LedgerBody, crc);

pub(super) mod kind {
    pub(crate) const BEGIN: u8 = 1;
    pub(crate) const EPOCH: u8 = 2;
    pub(crate) const STOPPED: u8 = 3;
    pub(crate) const SEALED: u8 = 4;
    pub(crate) const FILLING: u8 = 5;
    pub(crate) const GONE: u8 = 6;
}

/// What an entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LedgerFact {
    /// The ledger begins.
    Begin,
    /// The highest epoch that the server has heard of a segment.
    Epoch {
        /// The segment.
        segment: SegmentName,
        /// The epoch.
        epoch: Epoch,
    },
    /// A chunk takes no appends.
    Stopped {
        /// The chunk.
        chunk: ChunkName,
        /// By whom it was stopped.
        epoch: Epoch,
    },
    /// A chunk is sealed.
    Sealed {
        /// The chunk.
        chunk: ChunkName,
        /// By whom it was sealed.
        epoch: Epoch,
        /// At which length.
        length: Units,
        /// The CRC32C of its records.
        content_crc: u32,
    },
    /// A chunk is filled.
    Filling {
        /// The chunk.
        chunk: ChunkName,
        /// By whom.
        epoch: Epoch,
        /// Up to which length.
        length: Units,
    },
    /// A segment was deleted with its volume, and needs no epoch any more.
    Gone {
        /// The segment.
        segment: SegmentName,
    },
}

/// An entry of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerEntry {
    /// Grows by one.
    pub number: u64,
    /// All entries up to this number were durable when this one was made.
    pub durable: u64,
    /// Which server wrote it.
    pub server: ServerId,
    /// What it says.
    pub fact: LedgerFact,
}

/// Why a ledger cannot be used; the server must not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// Its first entry is not the beginning of a ledger.
    #[error("the ledger has no beginning: {0}")]
    Beginning(LayoutError),
    /// An entry that was durable is broken.
    #[error("entry {number} of the ledger is broken, and later ones say that it was durable")]
    Hole {
        /// The broken entry.
        number: u64,
    },
}

/// The numbers of an entry that not every kind has; those that it has not are zero.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Fields {
    epoch: u32,
    chunk: ChunkName,
    length: u32,
    content_crc: u32,
}

impl LedgerFact {
    fn fields(&self) -> (u8, Fields) {
        let of_segment = |segment: SegmentName| ChunkName::new(segment, ChunkId::default());
        let none = Fields::default();
        match *self {
            Self::Begin => (kind::BEGIN, Fields { length: VERSION, ..none }),
            Self::Epoch { segment, epoch } => {
                (kind::EPOCH, Fields { chunk: of_segment(segment), epoch: epoch.number(), ..none })
            }
            Self::Stopped { chunk, epoch } => {
                (kind::STOPPED, Fields { chunk, epoch: epoch.number(), ..none })
            }
            Self::Sealed { chunk, epoch, length, content_crc } => {
                (kind::SEALED, Fields { chunk, epoch: epoch.number(), length: length.0, content_crc })
            }
            Self::Filling { chunk, epoch, length } => {
                (kind::FILLING, Fields { chunk, epoch: epoch.number(), length: length.0, content_crc: 0 })
            }
            Self::Gone { segment } => (kind::GONE, Fields { chunk: of_segment(segment), ..none }),
        }
    }

    fn of(kind: u8, fields: Fields) -> Result<Self, LayoutError> {
        let (chunk, segment) = (fields.chunk, fields.chunk.segment_name());
        let length = Units(fields.length);
        let fact = match kind {
            kind::BEGIN if fields.length != VERSION => return Err(LayoutError::Version(fields.length)),
            kind::BEGIN => Self::Begin,
            kind::EPOCH => Self::Epoch { segment, epoch: epoch(fields.epoch)? },
            kind::STOPPED => Self::Stopped { chunk, epoch: epoch(fields.epoch)? },
            kind::SEALED => {
                Self::Sealed { chunk, epoch: epoch(fields.epoch)?, length, content_crc: fields.content_crc }
            }
            kind::FILLING => Self::Filling { chunk, epoch: epoch(fields.epoch)?, length },
            kind::GONE => Self::Gone { segment },
            _ => return Err(LayoutError::Illegal("a kind that is not known")),
        };
        must(fact.fields() == (kind, fields), "numbers that this kind does not have")?;
        fact.check()?;
        Ok(fact)
    }

    fn check(&self) -> Result<(), LayoutError> {
        match *self {
            Self::Begin => Ok(()),
            Self::Epoch { segment, .. } | Self::Gone { segment } => {
                must(segment.volume.0 != 0, "a volume without a number")
            }
            Self::Stopped { chunk, .. } => check_chunk_name(chunk),
            Self::Sealed { chunk, length, .. } | Self::Filling { chunk, length, .. } => {
                check_chunk_name(chunk)?;
                must(length >= RECORDS_START && length <= CHUNK_UNITS_MAX, "a length that no chunk has")
            }
        }
    }
}

impl LedgerEntry {
    /// Its bytes.
    ///
    /// # Errors
    ///
    /// When there can be no such entry.
    pub fn encode(&self) -> Result<[u8; LEDGER_ENTRY_LEN], LayoutError> {
        self.check()?;
        self.fact.check()?;
        let (kind, fields) = self.fact.fields();
        let mut body = LedgerBody {
            magic: MAGIC,
            crc: 0.into(),
            number: self.number.into(),
            kind,
            reserved: [0; 3],
            epoch: fields.epoch.into(),
            volume: fields.chunk.volume.0.into(),
            segment: fields.chunk.segment.0.into(),
            chunk: fields.chunk.chunk.0.into(),
            length: fields.length.into(),
            content_crc: fields.content_crc.into(),
            server: self.server.0.into(),
            durable: self.durable.into(),
        };
        body.crc = checksum_of(body.as_bytes(), CRC_AT).into();
        Ok(zerocopy::transmute!(body))
    }

    /// Checks the entry that the bytes begin with.
    ///
    /// # Errors
    ///
    /// When there is none, or it says what cannot be.
    pub fn decode(bytes: &[u8]) -> Result<Self, LayoutError> {
        let (body, _) = LedgerBody::ref_from_prefix(bytes).map_err(|_| LayoutError::Missing)?;
        if body.magic != MAGIC {
            return Err(LayoutError::Missing);
        }
        if body.crc != checksum_of(body.as_bytes(), CRC_AT) {
            return Err(LayoutError::Checksum);
        }
        must(body.reserved == [0; 3], "reserved bytes are not zero")?;
        let fields = Fields {
            epoch: body.epoch.get(),
            chunk: ChunkName {
                volume: VolumeId(body.volume.get()),
                segment: SegmentId(body.segment.get()),
                chunk: ChunkId(body.chunk.get()),
            },
            length: body.length.get(),
            content_crc: body.content_crc.get(),
        };
        let entry = Self {
            number: body.number.get(),
            durable: body.durable.get(),
            server: ServerId(body.server.get()),
            fact: LedgerFact::of(body.kind, fields)?,
        };
        entry.check()?;
        Ok(entry)
    }

    fn check(&self) -> Result<(), LayoutError> {
        must(self.number > 0 && self.durable < self.number, "an entry that was durable before it was made")?;
        must(self.server.0 != 0, "a server without a number")
    }
}

/// The entries of a ledger's file, up to its end.
///
/// What is behind the first place that has none is looked at only to tell a torn end, of which nobody was told, from damage.
///
/// # Errors
///
/// When it does not begin like a ledger, or has lost what was durable.
pub fn read_ledger(bytes: &[u8]) -> Result<Vec<LedgerEntry>, LedgerError> {
    let mut places = bytes.chunks_exact(LEDGER_ENTRY_LEN);
    let begin = places
        .next()
        .map_or(Err(LayoutError::Missing), LedgerEntry::decode)
        .map_err(LedgerError::Beginning)?;
    if begin.fact != LedgerFact::Begin {
        return Err(LedgerError::Beginning(LayoutError::Illegal("another entry comes first")));
    }
    let mut entries = vec![begin];
    let mut expected = begin.number;
    let mut broken = None;
    for place in places {
        let Some(next) = expected.checked_add(1) else { break };
        expected = next;
        let entry = LedgerEntry::decode(place).ok();
        let entry = entry.filter(|entry| {
            entry.number == expected && entry.server == begin.server && entry.fact != LedgerFact::Begin
        });
        match (entry, broken) {
            (Some(entry), None) => entries.push(entry),
            (Some(entry), Some(number)) if entry.durable >= number => {
                return Err(LedgerError::Hole { number });
            }
            (Some(_), Some(_)) => {}
            (None, _) => broken = broken.or(Some(expected)),
        }
    }
    Ok(entries)
}
