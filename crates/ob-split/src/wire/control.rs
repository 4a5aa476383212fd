//! What else messages of the rings consist of: channels, chunks, the gate, card memory.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use ob_core::{ChunkId, ChunkName, Epoch, Incarnation, SegmentId, Units, VolumeId, layout};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

use super::entries::{Handle, Slot, body, words, wrong, zero};
use super::message::{Entry, MessageError, kind};

/// Most members of a chunk.
pub const MEMBERS_MAX: usize = 4;
/// Channels that the card has accepted have numbers from here on.
pub const ACCEPTED_FROM: u16 = 0x8000;

layout!(ChannelBody, 24, { channel: U16, what: U16, port: U16, reserved: U16, address: [u8; 16] });
layout!(ChannelIsBody, 16, { channel: U16, state: U16, port: U16, listener: U16, incarnation: U64 });
layout!(SetBody, 40, {
    slot: U16, members: u8, flags: u8, epoch: U32, volume: U64, segment: U32, chunk: U32, channels: [U16; MEMBERS_MAX],
    offset: U32, length: U32,
});
layout!(GateBody, 16, { what: U16, reserved: U16, milliseconds: U32, number: U64 });
layout!(NotedBody, 8, { number: U64 });
layout!(BrokenBody, 8, { slot: U16, channel: U16, offset: U32 });
layout!(MemoryBody, 8, { handle: U32, length: U32 });

words!(
    /// What a channel is to do.
    ChannelWhat: u16 {
        /// Connect.
        Connect = 1,
        /// Listen.
        Listen = 2,
        /// Close.
        Close = 3,
    }
);
words!(
    /// How a channel is.
    ChannelState: u16 {
        /// Connected.
        Up = 1,
        /// Over.
        Gone = 2,
        /// It could not be made.
        Refused = 3,
        /// It listens.
        Listening = 4,
        /// A peer has connected to a listener.
        Accepted = 5,
        /// One that was accepted says no more, and still hears what it is sent.
        Ended = 6,
    }
);
words!(
    /// What a slot is set to.
    SetWhat: u8 {
        /// A chunk that is appended to.
        Append = 1,
        /// A chunk that is read.
        ReadOnly = 2,
        /// Nothing any more.
        Forget = 4,
    }
);

/// A connection of a port, or its listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ChannelId(pub u16);

/// What a channel is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channel {
    /// Which.
    pub channel: ChannelId,
    /// What it is to do.
    pub what: ChannelWhat,
    /// Where, unless it is to close.
    pub address: Option<SocketAddr>,
}

/// How a channel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelIs {
    /// Which.
    pub channel: ChannelId,
    /// How it is.
    pub state: ChannelState,
    /// The port that it listens on, or its peer's.
    pub port: u16,
    /// Who has accepted it; 0 if nobody had to.
    pub listener: ChannelId,
    /// Which life of the peer, if it has told.
    pub incarnation: Incarnation,
}

/// What the card is to know of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Set {
    /// By which number plans name it.
    pub slot: Slot,
    /// What it is set to; all else is zero if nothing.
    pub what: SetWhat,
    /// The owner's epoch.
    pub epoch: Option<Epoch>,
    /// The chunk.
    pub chunk: ChunkName,
    /// Channels of its members; those behind `members` are 0.
    pub channels: [ChannelId; MEMBERS_MAX],
    /// How many members there are.
    pub members: u8,
    /// Where the next record goes.
    pub offset: Units,
    /// How long the chunk is.
    pub length: Units,
}

/// What the gate is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Note the time.
    Prepare {
        /// Which preparation it is.
        number: u64,
    },
    /// Stay open until so long after the noted time.
    Extend {
        /// The preparation whose time is meant.
        number: u64,
        /// How long.
        milliseconds: u32,
    },
}

/// The time of a preparation is noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noted {
    /// Which.
    pub number: u64,
}

/// A chunk's writer has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Of which chunk.
    pub slot: Slot,
    /// Because of which channel.
    pub channel: ChannelId,
    /// How far all members have it.
    pub offset: Units,
}

/// Card memory that is granted, or given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Which.
    pub handle: Handle,
    /// Bytes of it.
    pub length: u32,
}

/// The address of an entry: IPv4 ones are mapped to IPv6.
fn channel_address(ip: &[u8; 16], port: u16) -> SocketAddr {
    SocketAddr::new(Ipv6Addr::from(*ip).to_canonical(), port)
}

fn ip_bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

impl Entry for Channel {
    const LEN: usize = size_of::<ChannelBody>();

    fn encode_into(&self, into: &mut Vec<u8>) {
        let address = self.address.filter(|_| self.what != ChannelWhat::Close);
        let body = ChannelBody {
            channel: self.channel.0.into(),
            what: self.what.code().into(),
            port: address.map_or(0, |address| address.port()).into(),
            reserved: 0.into(),
            address: address.map_or([0; 16], |address| ip_bytes(address.ip())),
        };
        into.extend_from_slice(body.as_bytes());
    }

    fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let body: &ChannelBody = body(kind::CHANNEL, bytes)?;
        zero(kind::CHANNEL, "reserved", body.reserved)?;
        let (channel, code, port) = (body.channel.get(), body.what.get(), body.port.get());
        let what = ChannelWhat::from_code(code).ok_or(wrong(kind::CHANNEL, "what", code.into()))?;
        let is_closing = what == ChannelWhat::Close;
        if is_closing && (port != 0 || body.address != [0; 16]) {
            return Err(wrong(kind::CHANNEL, "port", port.into()));
        }
        if what == ChannelWhat::Connect && port == 0 {
            return Err(wrong(kind::CHANNEL, "port", 0));
        }
        // Only what was accepted has such a number, and the card has given it.
        if channel == 0 || (!is_closing && channel >= ACCEPTED_FROM) {
            return Err(wrong(kind::CHANNEL, "channel", channel.into()));
        }
        let address = (!is_closing).then(|| channel_address(&body.address, port));
        // An address has one form only.
        if address.is_some_and(|address| ip_bytes(address.ip()) != body.address) {
            return Err(wrong(kind::CHANNEL, "address", 0));
        }
        Ok(Self { channel: ChannelId(channel), what, address })
    }
}

impl Entry for ChannelIs {
    const LEN: usize = size_of::<ChannelIsBody>();

    fn encode_into(&self, into: &mut Vec<u8>) {
        let body = ChannelIsBody {
            channel: self.channel.0.into(),
            state: self.state.code().into(),
            port: self.port.into(),
            listener: self.listener.0.into(),
            incarnation: self.incarnation.0.into(),
        };
        into.extend_from_slice(body.as_bytes());
    }

    fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let body: &ChannelIsBody = body(kind::CHANNEL_IS, bytes)?;
        let (channel, code, listener) = (body.channel.get(), body.state.get(), body.listener.get());
        let state = ChannelState::from_code(code).ok_or(wrong(kind::CHANNEL_IS, "state", code.into()))?;
        let is_accepted = state == ChannelState::Accepted;
        let is_gone = state == ChannelState::Gone;
        let is_of_accepted = is_accepted || state == ChannelState::Ended;
        if channel == 0 || (!is_gone && is_of_accepted != (channel >= ACCEPTED_FROM)) {
            return Err(wrong(kind::CHANNEL_IS, "channel", channel.into()));
        }
        if is_accepted == (listener == 0) {
            return Err(wrong(kind::CHANNEL_IS, "listener", listener.into()));
        }
        Ok(Self {
            channel: ChannelId(channel),
            state,
            port: body.port.get(),
            listener: ChannelId(listener),
            incarnation: Incarnation(body.incarnation.get()),
        })
    }
}

impl Entry for Set {
    const LEN: usize = size_of::<SetBody>();

    fn encode_into(&self, into: &mut Vec<u8>) {
        let body = SetBody {
            slot: self.slot.0.into(),
            members: self.members,
            flags: self.what.code(),
            epoch: self.epoch.map_or(0, Epoch::number).into(),
            volume: self.chunk.volume.0.into(),
            segment: self.chunk.segment.0.into(),
            chunk: self.chunk.chunk.0.into(),
            channels: self.channels.map(|channel| channel.0.into()),
            offset: self.offset.0.into(),
            length: self.length.0.into(),
        };
        into.extend_from_slice(body.as_bytes());
    }

    fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let body: &SetBody = body(kind::SET, bytes)?;
        let set = Self {
            slot: Slot(body.slot.get()),
            what: SetWhat::from_code(body.flags).ok_or(wrong(kind::SET, "flags", body.flags.into()))?,
            epoch: Epoch::new(body.epoch.get()),
            chunk: ChunkName {
                volume: VolumeId(body.volume.get()),
                segment: SegmentId(body.segment.get()),
                chunk: ChunkId(body.chunk.get()),
            },
            channels: body.channels.map(|channel| ChannelId(channel.get())),
            members: body.members,
            offset: Units(body.offset.get()),
            length: Units(body.length.get()),
        };
        let epoch = u64::from(body.epoch.get());
        if set.what == SetWhat::Forget {
            let nothing = Self {
                epoch: None,
                chunk: ChunkName::default(),
                channels: <[ChannelId; MEMBERS_MAX]>::default(),
                members: 0,
                offset: Units(0),
                length: Units(0),
                ..set
            };
            let is_nothing = set == nothing && epoch == 0;
            return if is_nothing {
                Ok(set)
            } else {
                Err(wrong(kind::SET, "chunk", set.chunk.chunk.0.into()))
            };
        }
        set.check(epoch)?;
        Ok(set)
    }
}

impl Set {
    fn check(&self, epoch: u64) -> Result<(), MessageError> {
        let chunk = self.chunk;
        if self.epoch.is_none() {
            return Err(wrong(kind::SET, "epoch", epoch));
        }
        if chunk.volume.0 == 0 || chunk.chunk.0 == 0 {
            return Err(wrong(kind::SET, "chunk", chunk.chunk.0.into()));
        }
        let members = usize::from(self.members);
        let Some((named, rest)) = self.channels.split_at_checked(members).filter(|_| members > 0) else {
            return Err(wrong(kind::SET, "members", self.members.into()));
        };
        let is_named =
            named.iter().all(|channel| channel.0 != 0) && rest.iter().all(|channel| channel.0 == 0);
        if !is_named {
            return Err(wrong(kind::SET, "channels", 0));
        }
        if self.offset > self.length {
            return Err(wrong(kind::SET, "offset", self.offset.0.into()));
        }
        Ok(())
    }
}

impl Entry for Gate {
    const LEN: usize = size_of::<GateBody>();

    fn encode_into(&self, into: &mut Vec<u8>) {
        let (what, milliseconds, number) = match *self {
            Self::Prepare { number } => (1u16, 0, number),
            Self::Extend { number, milliseconds } => (2, milliseconds, number),
        };
        let body = GateBody {
            what: what.into(),
            reserved: 0.into(),
            milliseconds: milliseconds.into(),
            number: number.into(),
        };
        into.extend_from_slice(body.as_bytes());
    }

    fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let body: &GateBody = body(kind::GATE, bytes)?;
        zero(kind::GATE, "reserved", body.reserved)?;
        let (number, milliseconds) = (body.number.get(), body.milliseconds.get());
        match body.what.get() {
            1 => zero(kind::GATE, "milliseconds", milliseconds).map(|()| Self::Prepare { number }),
            2 => Ok(Self::Extend { number, milliseconds }),
            other => Err(wrong(kind::GATE, "what", other.into())),
        }
    }
}

impl Entry for Noted {
    const LEN: usize = size_of::<NotedBody>();

    fn encode_into(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(NotedBody { number: self.number.into() }.as_bytes());
    }

    fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let body: &NotedBody = body(kind::GATE_NOTED, bytes)?;
        Ok(Self { number: body.number.get() })
    }
}

impl Entry for Broken {
    const LEN: usize = size_of::<BrokenBody>();

    fn encode_into(&self, into: &mut Vec<u8>) {
        let (slot, channel) = (self.slot.0.into(), self.channel.0.into());
        into.extend_from_slice(BrokenBody { slot, channel, offset: self.offset.0.into() }.as_bytes());
    }

    fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let body: &BrokenBody = body(kind::BROKEN, bytes)?;
        Ok(Self {
            slot: Slot(body.slot.get()),
            channel: ChannelId(body.channel.get()),
            offset: Units(body.offset.get()),
        })
    }
}

impl Entry for Memory {
    const LEN: usize = size_of::<MemoryBody>();

    fn encode_into(&self, into: &mut Vec<u8>) {
        let (handle, length) = (self.handle.0.into(), self.length.into());
        into.extend_from_slice(MemoryBody { handle, length }.as_bytes());
    }

    fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let body: &MemoryBody = body(kind::MEMORY, bytes)?;
        Ok(Self { handle: Handle(body.handle.get()), length: body.length.get() })
    }
}
