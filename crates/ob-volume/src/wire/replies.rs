//! Replies.

use ob_core::{Incarnation, ServerId, Units};
use ob_format::volume::{CHUNK_UNITS_MAX, ENTRY_LEN, RECORDS_START};
use ob_split::wire::REPLY;

use super::header::{Fields, HEADER_LEN, READ_MAX, WireError};
use super::messages::{Kind, LIST_MAX, codes};
use super::payloads::WELCOME_LEN;

/// Bytes of the checksum behind payloads that are no records.
const CRC_LEN: u32 = 4;

codes!(
    /// How a server has a chunk.
    ReplicaState: u8 {
        /// It takes appends.
        Open = 1, "open";
        /// It takes none any more.
        Stopped = 2, "stopped";
        /// It stays as it is.
        Sealed = 3, "sealed";
        /// It takes fills.
        Filling = 4, "filling";
    }
);
codes!(
    /// What is known of a chunk's end.
    EndState: u32 {
        /// Nothing that was acknowledged is missing.
        Known = 0, "KNOWN";
        /// Scanned; nothing acknowledged can lie beyond.
        Clean = 1, "CLEAN";
        /// Scanned; something may.
        Doubtful = 2, "DOUBTFUL";
        /// A record within what was acknowledged is broken.
        Damaged = 3, "DAMAGED";
    }
);

/// The end of a chunk, as a server knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Where it is.
    pub end: Units,
    /// How far all members had the chunk, as far as this server knows.
    pub everywhere: Units,
    /// What is known of it.
    pub state: EndState,
    /// CRC32C of the records up to it.
    pub content_crc: u32,
}

/// What a server answers when it has done what was asked. Payloads are apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Who it is; payload [`WelcomePayload`](super::WelcomePayload).
    Hello {
        /// The server.
        server: ServerId,
        /// Which life of it.
        incarnation: Incarnation,
    },
    /// It is there.
    Ping {
        /// Its load, 255 at most.
        load: u8,
        /// Bytes that are free.
        free: u64,
        /// Bytes that are used.
        used: u64,
    },
    /// The chunk is made.
    Create {
        /// Bytes that are free.
        free: u64,
    },
    /// The records are durable.
    Append {
        /// How far the chunk is.
        durable: Units,
        /// Bytes that are free.
        free: u64,
    },
    /// The payload is the bytes.
    Read,
    /// The chunk is stopped.
    Stop(End),
    /// The records are durable.
    Fill {
        /// How far the chunk is.
        durable: Units,
    },
    /// The chunk is sealed.
    Seal,
    /// The chunk is gone.
    Delete,
    /// How the chunk is.
    Stat {
        /// Its end.
        end: End,
        /// How the server has it.
        state: ReplicaState,
    },
    /// The payload is records.
    List {
        /// Where to go on.
        next: Units,
    },
    /// The payload is chunks.
    Chunks {
        /// Whether there are more.
        has_more: bool,
    },
    /// Lower epochs are refused.
    Fence,
    /// The record is written.
    Repair,
    /// The records are whole.
    Check {
        /// Up to there, where the next one begins that was not looked at.
        sound: Units,
    },
}

/// What a server answers when it has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// A higher epoch is known here; of `HELLO`, a later session.
    Stale {
        /// Which.
        known: u64,
    },
    /// The chunk is not here.
    NoChunk,
    /// There is such a chunk.
    Exists,
    /// The chunk is stopped or sealed.
    Stopped,
    /// Something before it is missing.
    Gap {
        /// Where the chunk ends.
        end: Units,
    },
    /// There is no room.
    Full {
        /// Bytes that are free.
        free: u64,
    },
    /// The device could not.
    Medium,
    /// What is here is broken.
    Damaged,
    /// What was sent cannot be.
    Bad,
    /// What is here differs from what was sent.
    Conflict,
    /// A little later.
    Busy,
    /// Other versions are spoken here.
    Version {
        /// The least.
        least: u8,
        /// The most.
        most: u8,
    },
    /// It belongs to another pool.
    WrongPool,
    /// It is another server.
    WrongServer {
        /// Who it is.
        server: ServerId,
    },
    /// It does not know what is asked.
    UnknownKind,
    /// A block that a record has in common with another cannot be read: it is written when that is there as well.
    Beside {
        /// Where the other one begins.
        at: Units,
    },
}

/// What a server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was done.
    Good(Reply),
    /// It was not.
    Refused {
        /// What was asked, as its number: it may be one that nobody knows.
        kind: u8,
        /// Why not.
        refusal: Refusal,
    },
}

/// A reply with its request's tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyMessage {
    /// Its request's.
    pub tag: u64,
    /// Bytes that follow.
    pub payload_len: u32,
    /// What is answered.
    pub answer: Answer,
}

impl Refusal {
    /// Every refusal with its status, in the order of the document, whatever comes along.
    pub const STATUSES: &[(&str, u16)] = &[
        ("STALE", 1),
        ("NO_CHUNK", 2),
        ("EXISTS", 3),
        ("STOPPED", 4),
        ("GAP", 5),
        ("FULL", 6),
        ("MEDIUM", 7),
        ("DAMAGED", 8),
        ("BAD", 9),
        ("CONFLICT", 10),
        ("BUSY", 11),
        ("VERSION", 12),
        ("WRONG_POOL", 13),
        ("WRONG_SERVER", 14),
        ("UNKNOWN_KIND", 15),
        ("BESIDE", 16),
    ];

    /// Its number.
    #[must_use]
    pub const fn status(self) -> u16 {
        self.words().0
    }

    /// Status, `a` and `b`.
    const fn words(self) -> (u16, u32, u64) {
        match self {
            Self::Stale { known } => (1, 0, known),
            Self::NoChunk => (2, 0, 0),
            Self::Exists => (3, 0, 0),
            Self::Stopped => (4, 0, 0),
            Self::Gap { end } => (5, end.0, 0),
            Self::Full { free } => (6, 0, free),
            Self::Medium => (7, 0, 0),
            Self::Damaged => (8, 0, 0),
            Self::Bad => (9, 0, 0),
            Self::Conflict => (10, 0, 0),
            Self::Busy => (11, 0, 0),
            Self::Version { least, most } => (12, least as u32, most as u64),
            Self::WrongPool => (13, 0, 0),
            Self::WrongServer { server } => (14, 0, server.0),
            Self::UnknownKind => (15, 0, 0),
            Self::Beside { at } => (16, at.0, 0),
        }
    }

    fn of(status: u16, a: u32, b: u64) -> Option<Self> {
        let refusal = match status {
            1 => Self::Stale { known: b },
            2 => Self::NoChunk,
            3 => Self::Exists,
            4 => Self::Stopped,
            5 => Self::Gap { end: Units(a) },
            6 => Self::Full { free: b },
            7 => Self::Medium,
            8 => Self::Damaged,
            9 => Self::Bad,
            10 => Self::Conflict,
            11 => Self::Busy,
            12 => Self::Version { least: u8::try_from(a).ok()?, most: u8::try_from(b).ok()? },
            13 => Self::WrongPool,
            14 => Self::WrongServer { server: ServerId(b) },
            15 => Self::UnknownKind,
            16 => Self::Beside { at: Units(a) },
            _ => return None,
        };
        Some(refusal)
    }
}

impl Reply {
    /// What was asked.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Hello { .. } => Kind::Hello,
            Self::Ping { .. } => Kind::Ping,
            Self::Create { .. } => Kind::Create,
            Self::Append { .. } => Kind::Append,
            Self::Read => Kind::Read,
            Self::Stop(_) => Kind::Stop,
            Self::Fill { .. } => Kind::Fill,
            Self::Seal => Kind::Seal,
            Self::Delete => Kind::Delete,
            Self::Stat { .. } => Kind::Stat,
            Self::List { .. } => Kind::List,
            Self::Chunks { .. } => Kind::Chunks,
            Self::Fence => Kind::Fence,
            Self::Repair => Kind::Repair,
            Self::Check { .. } => Kind::Check,
        }
    }

    fn fields(&self) -> Fields {
        let none = Fields { kind: self.kind().code() | REPLY, ..Fields::default() };
        let of = |end: End| Fields {
            a: end.end.0,
            b: u64::from(end.everywhere.0) | u64::from(end.state.code()) << 32,
            c: end.content_crc.into(),
            ..none
        };
        match *self {
            Self::Hello { server, incarnation } => Fields { b: server.0, c: incarnation.0, ..none },
            Self::Ping { load, free, used } => Fields { a: load.into(), b: free, c: used, ..none },
            Self::Create { free } => Fields { b: free, ..none },
            Self::Append { durable, free } => Fields { a: durable.0, b: free, ..none },
            Self::Stop(end) => of(end),
            Self::Fill { durable } => Fields { a: durable.0, ..none },
            Self::Check { sound } => Fields { a: sound.0, ..none },
            Self::Stat { end, state } => Fields { flags: state.code().into(), ..of(end) },
            Self::List { next } => Fields { a: next.0, ..none },
            Self::Chunks { has_more } => Fields { a: has_more.into(), ..none },
            Self::Read | Self::Seal | Self::Delete | Self::Fence | Self::Repair => none,
        }
    }

    fn of(fields: &Fields, kind: Kind) -> Result<Self, WireError> {
        let units = fields.units();
        let reply = match kind {
            Kind::Hello => Self::Hello { server: ServerId(fields.b), incarnation: Incarnation(fields.c) },
            Kind::Ping => Self::Ping { load: fields.a as u8, free: fields.b, used: fields.c },
            Kind::Create => Self::Create { free: fields.b },
            Kind::Append => Self::Append { durable: units, free: fields.b },
            Kind::Read => Self::Read,
            Kind::Stop => Self::Stop(End::of(fields)?),
            Kind::Fill => Self::Fill { durable: units },
            Kind::Seal => Self::Seal,
            Kind::Delete => Self::Delete,
            Kind::Stat => {
                let state = u8::try_from(fields.flags).ok().and_then(ReplicaState::from_code);
                Self::Stat { end: End::of(fields)?, state: state.ok_or(fields.wrong("flags", fields.flags))? }
            }
            Kind::List => Self::List { next: units },
            Kind::Chunks => Self::Chunks { has_more: fields.a == 1 },
            Kind::Fence => Self::Fence,
            Kind::Repair => Self::Repair,
            Kind::Check => Self::Check { sound: units },
        };
        let plain = Fields { tag: fields.tag, payload_len: fields.payload_len, ..reply.fields() };
        fields.must(plain == *fields, "fields", 0u8)?;
        reply.check(fields)?;
        Ok(reply)
    }

    fn check(&self, fields: &Fields) -> Result<(), WireError> {
        let is_length = |units: Units| units >= RECORDS_START && units <= CHUNK_UNITS_MAX;
        match *self {
            Self::Hello { server, .. } => fields.must(server.0 != 0, "b", server.0)?,
            Self::Append { durable: units, .. }
            | Self::Fill { durable: units }
            | Self::Check { sound: units }
            | Self::List { next: units } => {
                fields.must(is_length(units), "a", units.0)?;
            }
            Self::Stop(end) | Self::Stat { end, .. } => {
                fields.must(is_length(end.end), "a", end.end.0)?;
                // A broken end may lie before what is known to have been everywhere.
                fields.must(is_length(end.everywhere), "b", end.everywhere.0)?;
            }
            _ => {}
        }
        let len = fields.payload_len;
        let is_list = len >= CRC_LEN
            && (len - CRC_LEN).is_multiple_of(ENTRY_LEN as u32)
            && (len - CRC_LEN) / ENTRY_LEN as u32 <= LIST_MAX;
        let is_legal = match self.kind() {
            Kind::Hello => len as usize == WELCOME_LEN,
            Kind::Read => len <= READ_MAX && len.is_multiple_of(Units::LEN),
            Kind::List | Kind::Chunks => is_list,
            _ => len == 0,
        };
        fields.must(is_legal, "payload_len", len)
    }
}

impl End {
    fn of(fields: &Fields) -> Result<Self, WireError> {
        let state = EndState::from_code((fields.b >> 32) as u32);
        Ok(Self {
            end: fields.units(),
            everywhere: Units(fields.b as u32),
            state: state.ok_or(fields.wrong("b", fields.b))?,
            content_crc: fields.word("c", fields.c)?,
        })
    }
}

impl ReplyMessage {
    /// The header's bytes.
    ///
    /// # Errors
    ///
    /// When no tier would take it.
    pub fn encode(&self) -> Result<[u8; HEADER_LEN], WireError> {
        let fields = match self.answer {
            Answer::Good(reply) => reply.fields(),
            Answer::Refused { kind, refusal } => {
                let (status, a, b) = refusal.words();
                Fields { kind: kind | REPLY, status, a, b, ..Fields::default() }
            }
        };
        let fields = Fields { tag: self.tag, payload_len: self.payload_len, ..fields };
        Self::of(&fields)?;
        Ok(fields.encode())
    }

    /// Checks a reply's header. Whether it is of what was asked is for who knows the tag.
    ///
    /// # Errors
    ///
    /// When it is none.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        Self::of(&Fields::decode(bytes)?)
    }

    fn of(fields: &Fields) -> Result<Self, WireError> {
        let (tag, payload_len) = (fields.tag, fields.payload_len);
        if fields.kind & REPLY == 0 {
            return Err(WireError::Direction(fields.kind));
        }
        let asked = fields.kind & !REPLY;
        let unknown = WireError::Kind { kind: fields.kind, tag, payload_len };
        if fields.status == 0 {
            let kind = Kind::from_code(asked).ok_or(unknown)?;
            return Ok(Self { tag, payload_len, answer: Answer::Good(Reply::of(fields, kind)?) });
        }
        let refusal = Refusal::of(fields.status, fields.a, fields.b);
        let refusal = refusal.ok_or(fields.wrong("status", fields.status))?;
        if Kind::from_code(asked).is_none() && refusal != Refusal::UnknownKind {
            return Err(unknown);
        }
        let (status, a, b) = refusal.words();
        let plain = Fields { kind: fields.kind, status, a, b, tag, ..Fields::default() };
        // It brings no payload either.
        fields.must(plain == *fields, "fields", 0u8)?;
        Ok(Self { tag, payload_len, answer: Answer::Refused { kind: asked, refusal } })
    }
}
