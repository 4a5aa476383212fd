//! What the card's director and the host's half of a service say to each other (`docs/wire/stream.md`).
//!
//! ```text
//!   director ── FromCard: who is there, requests in the order of stamps ──▶ host
//!   director ◀── FromHost: replies, standings, what the table may hold ─── host
//! ```
//!
//! Both sides distrust the other: `decode` takes any bytes, and what it returns holds only legal values. What depends on
//! what was said before (is there such a connection, does a fragment follow the last one) is left to who receives it.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use ob_core::{ConnectionId, NodeId, layout};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

#[cfg(test)]
mod tests;

/// The service of the key-value store.
pub const KV_SERVICE: u32 = 3;
/// Version of the frames.
pub const VERSION: u32 = 2;
/// Bytes of a frame before its payload.
pub const HEADER_LEN: usize = 32;
/// Bytes of a request or reply that one frame carries at most.
pub const FRAGMENT_LEN: usize = 65_536;
/// Bytes of replies that a host may send a connection before it gets more credit.
pub const CREDIT_LEN: u32 = 262_144;
/// Bytes of a client's address.
pub const ADDRESS_LEN: usize = 18;
/// Bytes of [`Recovered`].
pub const RECOVERED_LEN: usize = 24;
/// Bytes of a number that is a payload.
pub const NUMBER_LEN: usize = 8;
/// Bytes of an entry before its key and item.
pub const ENTRY_LEN: usize = 2;
/// Stamps lie below this.
pub const STAMP_END: u64 = 1 << 63;
/// What a host has seen when it comes lies below this: so many requests there never were, and as many can follow.
pub const SEEN_END: u64 = 1 << 62;

layout!(HeaderBody, HEADER_LEN, {
    kind: U16, reserved: U16, offset: U32, connection: U64, stamp: U64, length: U32, word: U32,
});
layout!(AddressBody, ADDRESS_LEN, { ip: [u8; 16], port: U16 });
layout!(RecoveredBody, RECOVERED_LEN, { store: [u8; 16], end: U64 });
layout!(NumberBody, NUMBER_LEN, { number: U64 });
layout!(EntryBody, ENTRY_LEN, { key_length: u8, item_length: u8 });

/// Every layout, in the order of the document's tables.
#[cfg(test)]
pub(crate) const LAYOUTS: [&[(&str, usize, usize)]; 5] =
    [HeaderBody::FIELDS, AddressBody::FIELDS, RecoveredBody::FIELDS, NumberBody::FIELDS, EntryBody::FIELDS];

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $from:literal;)*) => {
        /// Numbers of the frames.
        pub mod kind {
            $($(#[$doc])* pub const $name: u16 = $code;)*

            /// Name, number and sender of each, in the order of their numbers.
            pub const ALL: &[(&str, u16, &str)] = &[$((stringify!($name), $code, $from)),*];
        }
    };
}

kinds! {
    /// A life begins.
    BEGIN = 1, "card";
    /// A client is there.
    OPENED = 2, "card";
    /// Bytes of a request.
    REQUEST = 3, "card";
    /// The client is gone.
    CLOSED = 4, "card";
    /// More bytes of replies may be sent.
    CREDIT = 5, "card";
    /// Files are known by their names.
    NAMED = 6, "card";
    /// A host is there.
    MEET = 16, "host";
    /// Bytes of a reply.
    REPLY = 17, "host";
    /// What the service says of a connection.
    STANDING = 18, "host";
    /// A connection is to end.
    CLOSE = 19, "host";
    /// What is current as of a stamp.
    ATTEST = 20, "host";
    /// A file gets a name.
    FILE = 21, "host";
    /// A file is about to go.
    FILE_GONE = 22, "host";
    /// How far the log is complete.
    SETTLED = 23, "host";
    /// What time it is.
    CLOCK = 24, "host";
}

/// Some bytes of a request or reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment<'a> {
    /// Of which client.
    pub connection: ConnectionId,
    /// The request's stamp. A fragment of a request that is not its last has none, and 0 stands for that.
    pub stamp: u64,
    /// Bytes of the whole.
    pub length: u32,
    /// Where these belong.
    pub offset: u32,
    /// The bytes, at least one.
    pub bytes: &'a [u8],
}

impl Fragment<'_> {
    /// Whether nothing of the whole follows.
    pub fn is_last(&self) -> bool {
        self.offset as usize + self.bytes.len() == self.length as usize
    }
}

/// What a host has recovered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// Which store it is.
    pub store: [u8; 16],
    /// Where its log ends.
    pub end: u64,
}

/// What the card says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FromCard<'a> {
    /// A life begins.
    Begin {
        /// The first stamp of it.
        stamp: u64,
    },
    /// A client is there.
    Opened {
        /// Its connection.
        connection: ConnectionId,
        /// Its address.
        address: SocketAddr,
    },
    /// Bytes of a request.
    Request(Fragment<'a>),
    /// The client is gone.
    Closed {
        /// Its connection.
        connection: ConnectionId,
    },
    /// More bytes of replies may be sent.
    Credit {
        /// To which client.
        connection: ConnectionId,
        /// How many.
        length: u32,
    },
    /// Files are known by their names, and what is written to them from now on is shown to the service.
    Named {
        /// How many frames of this life have named a file so far; the number begins anew behind the greatest.
        count: u32,
    },
}

/// What the host says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FromHost<'a> {
    /// The host is there.
    Meet {
        /// The greatest stamp that it has seen, 0 for none.
        stamp: u64,
        /// What it has.
        recovered: Recovered,
        /// On which terms it serves clients, as the service numbers them: a card that serves on others sends it away.
        terms: u32,
    },
    /// Bytes of a reply.
    Reply(Fragment<'a>),
    /// What the service says of a connection, from the reply to `stamp` on.
    Standing {
        /// Which.
        connection: ConnectionId,
        /// The request that decided it.
        stamp: u64,
        /// 0 if the card may answer nothing.
        word: u32,
    },
    /// The connection ends after the reply to `stamp`.
    Close {
        /// Which.
        connection: ConnectionId,
        /// The last request that is answered; 0 to end at once.
        stamp: u64,
    },
    /// Entries that are current as of `stamp`.
    Attest {
        /// Everything below and with it was applied.
        stamp: u64,
        /// What is current.
        entries: Entries<'a>,
    },
    /// A file has this name from now on.
    File {
        /// The name.
        name: u32,
        /// The file.
        node: NodeId,
    },
    /// The file of this name is about to be removed.
    FileGone {
        /// The name.
        name: u32,
    },
    /// The log is complete up to here.
    Settled {
        /// The address.
        address: u64,
    },
    /// What time it is for the host.
    Clock {
        /// The last request that the host had received before it looked.
        stamp: u64,
        /// Milliseconds since 1970.
        unix_ms: u64,
    },
}

/// Why bytes are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// Too few bytes, or too many.
    #[error("a frame of {inline} and {payload} bytes cannot be")]
    Length {
        /// Bytes of the inline part.
        inline: usize,
        /// Bytes of the payload.
        payload: usize,
    },
    /// Nobody says that.
    #[error("there is no frame of kind {0}")]
    Kind(u16),
    /// The other side speaks another version.
    #[error("the other half speaks version {0} of the stream, this one {VERSION}")]
    Version(u32),
    /// A field has a value that it cannot have.
    #[error("the {field} of a frame of kind {kind} cannot be {value}")]
    Field {
        /// The frame.
        kind: u16,
        /// The field.
        field: &'static str,
        /// What it has.
        value: u64,
    },
}

/// The payload of a frame that is about to be sent.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Somebody's bytes.
    Bytes(&'a [u8]),
    /// A few bytes of the frame itself.
    Own([u8; RECOVERED_LEN], usize),
}

impl Payload<'_> {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Own(bytes, len) => bytes.get(..*len).unwrap_or_default(),
        }
    }

    fn own(bytes: &[u8]) -> Self {
        let mut all = [0; RECOVERED_LEN];
        let len = bytes.len().min(RECOVERED_LEN);
        all[..len].copy_from_slice(&bytes[..len]);
        Self::Own(all, len)
    }
}

/// The fields of a header, all zero unless said otherwise.
#[derive(Clone, Copy, Default)]
struct Header {
    kind: u16,
    offset: u32,
    connection: u64,
    stamp: u64,
    length: u32,
    word: u32,
}

impl Header {
    fn of(kind: u16, connection: ConnectionId) -> Self {
        Self { kind, connection: connection.0, ..Self::default() }
    }

    fn of_fragment(kind: u16, fragment: &Fragment<'_>) -> Self {
        let (offset, length) = (fragment.offset, fragment.length);
        Self { offset, length, stamp: fragment.stamp, ..Self::of(kind, fragment.connection) }
    }

    fn encode(self) -> [u8; HEADER_LEN] {
        let body = HeaderBody {
            kind: self.kind.into(),
            reserved: 0.into(),
            offset: self.offset.into(),
            connection: self.connection.into(),
            stamp: self.stamp.into(),
            length: self.length.into(),
            word: self.word.into(),
        };
        zerocopy::transmute!(body)
    }

    fn decode(inline: &[u8], payload: &[u8]) -> Result<Self, StreamError> {
        let wrong = StreamError::Length { inline: inline.len(), payload: payload.len() };
        let body = HeaderBody::ref_from_bytes(inline).map_err(|_| wrong)?;
        if payload.len() > FRAGMENT_LEN {
            return Err(wrong);
        }
        let header = Self {
            kind: body.kind.get(),
            offset: body.offset.get(),
            connection: body.connection.get(),
            stamp: body.stamp.get(),
            length: body.length.get(),
            word: body.word.get(),
        };
        let reserved = u64::from(body.reserved.get());
        header.check("reserved", reserved, reserved == 0)?;
        header.check("stamp", header.stamp, header.stamp < STAMP_END)?;
        Ok(header)
    }

    fn check(&self, field: &'static str, value: u64, is_legal: bool) -> Result<(), StreamError> {
        if is_legal { Ok(()) } else { Err(StreamError::Field { kind: self.kind, field, value }) }
    }

    fn connection(&self) -> Result<ConnectionId, StreamError> {
        self.check("connection", self.connection, self.connection != 0)?;
        Ok(ConnectionId(self.connection))
    }

    /// The stamp of a request that there was.
    fn stamp(&self) -> Result<u64, StreamError> {
        self.check("stamp", self.stamp, self.stamp != 0)?;
        Ok(self.stamp)
    }

    fn version(&self) -> Result<(), StreamError> {
        if self.word == VERSION { Ok(()) } else { Err(StreamError::Version(self.word)) }
    }

    fn fragment<'a>(&self, bytes: &'a [u8]) -> Result<Fragment<'a>, StreamError> {
        let (length, offset) = (self.length, self.offset);
        let connection = self.connection()?;
        self.check("length", u64::from(length), !bytes.is_empty())?;
        let is_within = u64::from(offset) + bytes.len() as u64 <= u64::from(length);
        self.check("offset", u64::from(offset), is_within)?;
        Ok(Fragment { connection, stamp: self.stamp, length, offset, bytes })
    }

    fn payload<T: FromBytes + zerocopy::KnownLayout + zerocopy::Immutable>(
        payload: &[u8],
    ) -> Result<T, StreamError> {
        let wrong = StreamError::Length { inline: HEADER_LEN, payload: payload.len() };
        T::read_from_bytes(payload).map_err(|_| wrong)
    }
}

impl<'a> FromCard<'a> {
    /// The inline part, and the payload.
    pub fn encode(&self) -> ([u8; HEADER_LEN], Payload<'a>) {
        let none = Payload::Bytes(&[]);
        let (header, payload) = match self {
            Self::Begin { stamp } => {
                (Header { kind: kind::BEGIN, stamp: *stamp, word: VERSION, ..Header::default() }, none)
            }
            Self::Opened { connection, address } => {
                let ip = match address.ip() {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                    IpAddr::V6(ip) => ip,
                };
                let body = AddressBody { ip: ip.octets(), port: address.port().into() };
                (Header::of(kind::OPENED, *connection), Payload::own(body.as_bytes()))
            }
            Self::Request(fragment) => {
                (Header::of_fragment(kind::REQUEST, fragment), Payload::Bytes(fragment.bytes))
            }
            Self::Closed { connection } => (Header::of(kind::CLOSED, *connection), none),
            Self::Credit { connection, length } => {
                (Header { length: *length, ..Header::of(kind::CREDIT, *connection) }, none)
            }
            Self::Named { count } => (Header { kind: kind::NAMED, word: *count, ..Header::default() }, none),
        };
        (header.encode(), payload)
    }

    /// What a message of the response ring says.
    ///
    /// # Errors
    /// When it says nothing that a card may say.
    pub fn decode(inline: &[u8], payload: &'a [u8]) -> Result<Self, StreamError> {
        let header = Header::decode(inline, payload)?;
        if payload.is_empty() == matches!(header.kind, kind::OPENED | kind::REQUEST) {
            return Err(StreamError::Length { inline: inline.len(), payload: payload.len() });
        }
        Ok(match header.kind {
            kind::BEGIN => {
                header.version()?;
                Self::Begin { stamp: header.stamp()? }
            }
            kind::OPENED => {
                let body: AddressBody = Header::payload(payload)?;
                let address = SocketAddr::new(Ipv6Addr::from(body.ip).to_canonical(), body.port.get());
                Self::Opened { connection: header.connection()?, address }
            }
            kind::REQUEST => {
                let fragment = header.fragment(payload)?;
                header.check("stamp", header.stamp, fragment.is_last() == (header.stamp != 0))?;
                Self::Request(fragment)
            }
            kind::CLOSED => Self::Closed { connection: header.connection()? },
            kind::CREDIT => Self::Credit { connection: header.connection()?, length: header.length },
            kind::NAMED => Self::Named { count: header.word },
            other => return Err(StreamError::Kind(other)),
        })
    }
}

impl<'a> FromHost<'a> {
    /// The inline part, and the payload.
    pub fn encode(&self) -> ([u8; HEADER_LEN], Payload<'a>) {
        let none = Payload::Bytes(&[]);
        let number = |number: u64| Payload::own(NumberBody { number: number.into() }.as_bytes());
        let (header, payload) = match self {
            Self::Meet { stamp, recovered, terms } => {
                let body = RecoveredBody { store: recovered.store, end: recovered.end.into() };
                let head = Header { kind: kind::MEET, stamp: *stamp, ..Header::default() };
                let header = Header { length: *terms, word: VERSION, ..head };
                (header, Payload::own(body.as_bytes()))
            }
            Self::Reply(fragment) => {
                (Header::of_fragment(kind::REPLY, fragment), Payload::Bytes(fragment.bytes))
            }
            Self::Standing { connection, stamp, word } => {
                (Header { stamp: *stamp, word: *word, ..Header::of(kind::STANDING, *connection) }, none)
            }
            Self::Close { connection, stamp } => {
                (Header { stamp: *stamp, ..Header::of(kind::CLOSE, *connection) }, none)
            }
            Self::Attest { stamp, entries } => (
                Header { kind: kind::ATTEST, stamp: *stamp, ..Header::default() },
                Payload::Bytes(entries.bytes),
            ),
            Self::File { name, node } => {
                (Header { kind: kind::FILE, word: *name, ..Header::default() }, number(node.0))
            }
            Self::FileGone { name } => {
                (Header { kind: kind::FILE_GONE, word: *name, ..Header::default() }, none)
            }
            Self::Settled { address } => {
                (Header { kind: kind::SETTLED, ..Header::default() }, number(*address))
            }
            Self::Clock { stamp, unix_ms } => {
                (Header { kind: kind::CLOCK, stamp: *stamp, ..Header::default() }, number(*unix_ms))
            }
        };
        (header.encode(), payload)
    }

    /// What a message of the request ring says.
    ///
    /// # Errors
    /// When it says nothing that a host may say.
    pub fn decode(inline: &[u8], payload: &'a [u8]) -> Result<Self, StreamError> {
        let header = Header::decode(inline, payload)?;
        let brings_nothing = matches!(header.kind, kind::STANDING | kind::CLOSE | kind::FILE_GONE);
        if payload.is_empty() != brings_nothing {
            return Err(StreamError::Length { inline: inline.len(), payload: payload.len() });
        }
        let number = || Header::payload(payload).map(|body: NumberBody| body.number.get());
        Ok(match header.kind {
            kind::MEET => {
                header.version()?;
                header.check("stamp", header.stamp, header.stamp < SEEN_END)?;
                let body: RecoveredBody = Header::payload(payload)?;
                let recovered = Recovered { store: body.store, end: body.end.get() };
                Self::Meet { stamp: header.stamp, recovered, terms: header.length }
            }
            kind::REPLY => {
                header.stamp()?;
                Self::Reply(header.fragment(payload)?)
            }
            kind::STANDING => {
                let (connection, stamp) = (header.connection()?, header.stamp()?);
                Self::Standing { connection, stamp, word: header.word }
            }
            kind::CLOSE => Self::Close { connection: header.connection()?, stamp: header.stamp },
            kind::ATTEST => Self::Attest { stamp: header.stamp()?, entries: Entries { bytes: payload } },
            kind::FILE => Self::File { name: header.word, node: NodeId(number()?) },
            kind::FILE_GONE => Self::FileGone { name: header.word },
            kind::SETTLED => Self::Settled { address: number()? },
            kind::CLOCK => Self::Clock { stamp: header.stamp, unix_ms: number()? },
            other => return Err(StreamError::Kind(other)),
        })
    }
}

/// Entries of an `ATTEST`, one behind the other. Whoever goes through them stops at bytes that are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entries<'a> {
    bytes: &'a [u8],
}

impl<'a> Entries<'a> {
    /// Entries that [`push_entry`] has made.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (head, rest) = EntryBody::ref_from_prefix(self.bytes).ok()?;
        let (key, rest) = rest.split_at_checked(usize::from(head.key_length))?;
        let (item, rest) = rest.split_at_checked(usize::from(head.item_length))?;
        self.bytes = rest;
        (!key.is_empty()).then_some((key, item))
    }
}

/// Puts an entry behind others; `false`, and nothing is put, if its key or item is longer than an entry can say, or the
/// frame is full.
pub fn push_entry(into: &mut Vec<u8>, key: &[u8], item: &[u8]) -> bool {
    let lengths = (u8::try_from(key.len()), u8::try_from(item.len()));
    let (Ok(key_length), Ok(item_length)) = lengths else { return false };
    if key.is_empty() || into.len() + ENTRY_LEN + key.len() + item.len() > FRAGMENT_LEN {
        return false;
    }
    into.extend_from_slice(&[key_length, item_length]);
    into.extend_from_slice(key);
    into.extend_from_slice(item);
    true
}
