//! Requests.

use ob_core::{BlockLen, ChunkId, ChunkName, Epoch, SegmentName, TierId, Units};
use ob_format::volume::{CHUNK_UNITS_MAX, ChunkKind, RECORD_UNITS_MAX, RECORDS_START};
use ob_split::wire::REPLY;

use super::header::{Fields, HEADER_LEN, READ_MAX, RECORDS_MAX, WireError};
use super::payloads::HELLO_LEN;

/// Most entries of a list, or of chunks.
pub const LIST_MAX: u32 = 32_768;

/// Numbers and what they mean.
macro_rules! codes {
    ($(#[$doc:meta])* $name:ident: $ty:ty { $($(#[$variant_doc:meta])* $variant:ident = $code:literal, $word:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant,)* }

        impl $name {
            /// Every one with its name in the document, in the order of their numbers.
            pub const ALL: &[(&str, Self)] = &[$(($word, Self::$variant)),*];

            /// Its number.
            #[must_use]
            pub const fn code(self) -> $ty {
                match self { $(Self::$variant => $code,)* }
            }

            /// What this number means.
            #[must_use]
            pub const fn from_code(code: $ty) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)* _ => None }
            }
        }
    };
}
pub(super) use codes;

codes!(
    /// What is asked.
    Kind: u8 {
        /// Who is there.
        Hello = 1, "HELLO";
        /// Whether anybody is there.
        Ping = 2, "PING";
        /// Make a chunk.
        Create = 3, "CREATE";
        /// Write records at its end.
        Append = 4, "APPEND";
        /// Give bytes.
        Read = 5, "READ";
        /// Take no appends any more.
        Stop = 6, "STOP";
        /// Write records that are missing.
        Fill = 7, "FILL";
        /// Stay as it is.
        Seal = 8, "SEAL";
        /// Be gone.
        Delete = 9, "DELETE";
        /// Tell the end.
        Stat = 10, "STAT";
        /// Tell the records.
        List = 11, "LIST";
        /// Tell the chunks.
        Chunks = 12, "CHUNKS";
        /// Refuse lower epochs.
        Fence = 13, "FENCE";
        /// Write a record that is broken.
        Repair = 14, "REPAIR";
        /// Look whether records are whole.
        Check = 15, "CHECK";
    }
);
codes!(
    /// How a new chunk gets its records.
    CreateState: u32 {
        /// By appends.
        Open = 1, "open";
        /// By fills.
        Filling = 2, "filling";
    }
);

/// What a tier asks for. Payloads are apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// The first message; payload [`HelloPayload`](super::HelloPayload).
    Hello {
        /// Which port of the tier.
        port: u32,
        /// The tier.
        tier: TierId,
        /// Grows with each connection.
        session: u64,
    },
    /// Whether anybody is there.
    Ping,
    /// Make a chunk.
    Create {
        /// Which.
        chunk: ChunkName,
        /// The owner's epoch.
        epoch: Epoch,
        /// How long.
        length: Units,
        /// The volume's blocks.
        block_len: BlockLen,
        /// How it gets its records.
        state: CreateState,
        /// What its records are.
        kind: ChunkKind,
        /// Whether it may use what is kept for maintenance.
        may_use_reserve: bool,
    },
    /// Write the payload's records at the end.
    Append {
        /// Which chunk.
        chunk: ChunkName,
        /// The owner's epoch.
        epoch: Epoch,
        /// Where they begin.
        offset: Units,
    },
    /// Give bytes.
    Read {
        /// Of which chunk.
        chunk: ChunkName,
        /// The owner's epoch.
        epoch: Epoch,
        /// Where they begin.
        offset: Units,
        /// How many.
        len: u32,
    },
    /// Take no appends any more.
    Stop {
        /// Which chunk.
        chunk: ChunkName,
        /// The owner's epoch.
        epoch: Epoch,
    },
    /// Write the payload's records where they are missing.
    Fill {
        /// In which chunk.
        chunk: ChunkName,
        /// The owner's epoch.
        epoch: Epoch,
        /// Where they begin.
        offset: Units,
    },
    /// Stay as it is.
    Seal {
        /// Which chunk.
        chunk: ChunkName,
        /// The owner's epoch.
        epoch: Epoch,
        /// At which length.
        length: Units,
        /// The CRC32C of the records up to there.
        content_crc: u32,
    },
    /// Be gone.
    Delete {
        /// Which chunk.
        chunk: ChunkName,
        /// The owner's epoch.
        epoch: Epoch,
    },
    /// Tell the end.
    Stat {
        /// Of which chunk.
        chunk: ChunkName,
        /// The owner's epoch.
        epoch: Epoch,
    },
    /// Tell the records.
    List {
        /// Of which chunk.
        chunk: ChunkName,
        /// The owner's epoch.
        epoch: Epoch,
        /// From where on.
        from: Units,
        /// Up to where.
        to: Units,
        /// How many at most.
        most: u32,
    },
    /// Tell the chunks.
    Chunks {
        /// Behind which; zeros to begin.
        after: ChunkName,
        /// Of its segment only.
        is_of_segment: bool,
        /// How many at most.
        most: u32,
    },
    /// Refuse lower epochs.
    Fence {
        /// Of which segment.
        segment: SegmentName,
        /// The owner's epoch.
        epoch: Epoch,
    },
    /// Write the payload's record, which is broken here.
    Repair {
        /// In which chunk.
        chunk: ChunkName,
        /// The owner's epoch.
        epoch: Epoch,
        /// Where.
        offset: Units,
    },
    /// Look whether the records are whole, as they lie on the device.
    Check {
        /// Of which chunk.
        chunk: ChunkName,
        /// The owner's epoch.
        epoch: Epoch,
        /// From which one on.
        offset: Units,
    },
}

/// A request with its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestMessage {
    /// What its reply has too.
    pub tag: u64,
    /// Bytes that follow.
    pub payload_len: u32,
    /// What is asked.
    pub request: Request,
}

/// The bit of `flags` in `CREATE` and `CHUNKS`.
const FLAG: u16 = 1;

impl Request {
    /// What is asked.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Hello { .. } => Kind::Hello,
            Self::Ping => Kind::Ping,
            Self::Create { .. } => Kind::Create,
            Self::Append { .. } => Kind::Append,
            Self::Read { .. } => Kind::Read,
            Self::Stop { .. } => Kind::Stop,
            Self::Fill { .. } => Kind::Fill,
            Self::Seal { .. } => Kind::Seal,
            Self::Delete { .. } => Kind::Delete,
            Self::Stat { .. } => Kind::Stat,
            Self::List { .. } => Kind::List,
            Self::Chunks { .. } => Kind::Chunks,
            Self::Fence { .. } => Kind::Fence,
            Self::Repair { .. } => Kind::Repair,
            Self::Check { .. } => Kind::Check,
        }
    }

    /// The segment it is about and the owner's epoch, which a server compares before anything else.
    #[must_use]
    pub const fn fence(&self) -> Option<(SegmentName, Epoch)> {
        match *self {
            Self::Hello { .. } | Self::Ping | Self::Chunks { .. } => None,
            Self::Fence { segment, epoch } => Some((segment, epoch)),
            Self::Create { chunk, epoch, .. }
            | Self::Append { chunk, epoch, .. }
            | Self::Read { chunk, epoch, .. }
            | Self::Stop { chunk, epoch }
            | Self::Fill { chunk, epoch, .. }
            | Self::Seal { chunk, epoch, .. }
            | Self::Delete { chunk, epoch }
            | Self::Stat { chunk, epoch }
            | Self::List { chunk, epoch, .. }
            | Self::Repair { chunk, epoch, .. }
            | Self::Check { chunk, epoch, .. } => Some((chunk.segment_name(), epoch)),
        }
    }

    fn fields(&self) -> Fields {
        let kind = self.kind().code();
        let none = Fields { kind, ..Fields::default() };
        let of = |chunk: ChunkName, epoch: Epoch| Fields { chunk, epoch: epoch.number(), ..none };
        match *self {
            Self::Hello { port, tier, session } => Fields { a: port, b: tier.0, c: session, ..none },
            Self::Ping => none,
            Self::Create { chunk, epoch, length, block_len, state, kind, may_use_reserve } => Fields {
                a: length.0,
                b: u64::from(block_len.bytes()) | u64::from(state.code()) << 32,
                c: kind.code().into(),
                flags: if may_use_reserve { FLAG } else { 0 },
                ..of(chunk, epoch)
            },
            Self::Append { chunk, epoch, offset }
            | Self::Fill { chunk, epoch, offset }
            | Self::Repair { chunk, epoch, offset }
            | Self::Check { chunk, epoch, offset } => Fields { a: offset.0, ..of(chunk, epoch) },
            Self::Read { chunk, epoch, offset, len } => {
                Fields { a: offset.0, b: len.into(), ..of(chunk, epoch) }
            }
            Self::Stop { chunk, epoch } | Self::Delete { chunk, epoch } | Self::Stat { chunk, epoch } => {
                of(chunk, epoch)
            }
            Self::Seal { chunk, epoch, length, content_crc } => {
                Fields { a: length.0, b: content_crc.into(), ..of(chunk, epoch) }
            }
            Self::List { chunk, epoch, from, to, most } => {
                Fields { a: from.0, b: to.0.into(), c: most.into(), ..of(chunk, epoch) }
            }
            Self::Chunks { after, is_of_segment, most } => {
                Fields { a: most, chunk: after, flags: if is_of_segment { FLAG } else { 0 }, ..none }
            }
            Self::Fence { segment, epoch } => of(ChunkName::new(segment, ChunkId::default()), epoch),
        }
    }

    fn of(fields: &Fields, kind: Kind) -> Result<Self, WireError> {
        let offset = fields.units();
        let request = match kind {
            Kind::Hello => Self::Hello { port: fields.a, tier: TierId(fields.b), session: fields.c },
            Kind::Ping => Self::Ping,
            Kind::Create => Self::create(fields)?,
            Kind::Chunks => {
                Self::Chunks { after: fields.chunk, is_of_segment: fields.flags == FLAG, most: fields.a }
            }
            Kind::Fence => {
                let (segment, epoch) = fields.of_segment()?;
                Self::Fence { segment, epoch }
            }
            _ => {
                let (chunk, epoch) = fields.of_chunk()?;
                match kind {
                    Kind::Append => Self::Append { chunk, epoch, offset },
                    Kind::Fill => Self::Fill { chunk, epoch, offset },
                    Kind::Repair => Self::Repair { chunk, epoch, offset },
                    Kind::Check => Self::Check { chunk, epoch, offset },
                    Kind::Read => Self::Read { chunk, epoch, offset, len: fields.word("b", fields.b)? },
                    Kind::Seal => {
                        let content_crc = fields.word("b", fields.b)?;
                        Self::Seal { chunk, epoch, length: offset, content_crc }
                    }
                    Kind::List => {
                        let (to, most) = (fields.word("b", fields.b)?, fields.word("c", fields.c)?);
                        Self::List { chunk, epoch, from: offset, to: Units(to), most }
                    }
                    Kind::Stop => Self::Stop { chunk, epoch },
                    Kind::Delete => Self::Delete { chunk, epoch },
                    _ => Self::Stat { chunk, epoch },
                }
            }
        };
        // What a kind does not name is zero, and each number has one form.
        let plain = Fields { tag: fields.tag, payload_len: fields.payload_len, ..request.fields() };
        fields.must(plain == *fields, "fields", 0u8)?;
        request.check(fields)?;
        Ok(request)
    }

    fn create(fields: &Fields) -> Result<Self, WireError> {
        let (chunk, epoch) = fields.of_chunk()?;
        let block_len = BlockLen::from_bytes(fields.b as u32).ok_or(fields.wrong("b", fields.b))?;
        let state = CreateState::from_code((fields.b >> 32) as u32).ok_or(fields.wrong("b", fields.b))?;
        let kind = u8::try_from(fields.c).ok().and_then(ChunkKind::from_code);
        Ok(Self::Create {
            chunk,
            epoch,
            length: fields.units(),
            block_len,
            state,
            kind: kind.ok_or(fields.wrong("c", fields.c))?,
            may_use_reserve: fields.flags == FLAG,
        })
    }

    fn check(&self, fields: &Fields) -> Result<(), WireError> {
        let is_place = |units: Units| units >= RECORDS_START && units < CHUNK_UNITS_MAX;
        let is_length = |units: Units| units >= RECORDS_START && units <= CHUNK_UNITS_MAX;
        match *self {
            Self::Hello { tier, .. } => fields.must(tier.0 != 0, "b", tier.0)?,
            Self::Create { length, .. } => {
                fields.must(is_length(length) && length > RECORDS_START, "a", length.0)?;
            }
            Self::Append { offset, .. }
            | Self::Fill { offset, .. }
            | Self::Repair { offset, .. }
            | Self::Check { offset, .. } => {
                fields.must(is_place(offset), "a", offset.0)?;
            }
            Self::Read { offset, len, .. } => {
                fields.must(offset < CHUNK_UNITS_MAX, "a", offset.0)?;
                let is_legal = len > 0 && len <= READ_MAX && len.is_multiple_of(Units::LEN);
                fields.must(is_legal, "b", len)?;
            }
            Self::Seal { length, .. } => fields.must(is_length(length), "a", length.0)?,
            Self::List { from, to, most, .. } => {
                fields.must(is_length(from) && is_length(to) && from <= to, "a", from.0)?;
                fields.must((1..=LIST_MAX).contains(&most), "c", most)?;
            }
            Self::Chunks { most, .. } => fields.must((1..=LIST_MAX).contains(&most), "a", most)?,
            Self::Ping | Self::Stop { .. } | Self::Delete { .. } | Self::Stat { .. } | Self::Fence { .. } => {
            }
        }
        let len = fields.payload_len;
        let are_records = |most: u32| len > 0 && len <= most && len.is_multiple_of(Units::LEN);
        let is_legal = match self.kind() {
            Kind::Hello => len as usize == HELLO_LEN,
            Kind::Append | Kind::Fill => are_records(RECORDS_MAX),
            Kind::Repair => are_records(RECORD_UNITS_MAX.0 * Units::LEN),
            _ => len == 0,
        };
        fields.must(is_legal, "payload_len", len)
    }
}

impl RequestMessage {
    /// The header's bytes.
    ///
    /// # Errors
    ///
    /// When no server would take it.
    pub fn encode(&self) -> Result<[u8; HEADER_LEN], WireError> {
        let fields = Fields { tag: self.tag, payload_len: self.payload_len, ..self.request.fields() };
        // What would not be understood is not sent.
        Request::of(&fields, self.request.kind())?;
        Ok(fields.encode())
    }

    /// Checks a request's header.
    ///
    /// # Errors
    ///
    /// When it is none: [`WireError::refusal`] says what is answered, if anything.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let fields = Fields::decode(bytes)?;
        if fields.kind & REPLY != 0 {
            return Err(WireError::Direction(fields.kind));
        }
        let (kind, tag, payload_len) = (fields.kind, fields.tag, fields.payload_len);
        let kind = Kind::from_code(kind).ok_or(WireError::Kind { kind, tag, payload_len })?;
        Ok(Self { tag, payload_len, request: Request::of(&fields, kind)? })
    }
}
