//! Frames of the link (`docs/wire/link.md`).
//!
//! [`Frame::decode`] is the line behind which nothing is checked again: it takes any bytes, and what it returns
//! holds only legal values.

use ob_core::{AttachmentId, GroupId, Incarnation, RegionId};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::group::GroupSizes;

/// Version of the protocol.
pub const VERSION: u16 = 2;
/// Begins every `HELLO`.
pub const MAGIC: [u8; 8] = *b"OUTBOARD";
/// Bytes before a frame's body.
pub const FRAME_HEADER_LEN: usize = 8;
/// Largest frame on a stream.
pub const FRAME_MAX: usize = (1 << 20) + (1 << 16);
/// Largest transfer in one frame.
pub const FRAME_TRANSFER_MAX: usize = 1 << 20;
/// Largest frame on a packet socket.
pub const PACKET_MAX: usize = 8192;
/// Largest message of the channel.
pub const CHANNEL_MAX: usize = 4096;
/// Longest name of a host.
pub const NAME_MAX: usize = 64;
/// Longest text for people.
pub const TEXT_MAX: usize = 512;

macro_rules! types {
    ($($name:ident = $value:literal),* $(,)?) => {
        $(pub(crate) const $name: u8 = $value;)*
        /// Every frame type, for the test that reads the document.
        #[cfg(test)]
        pub(crate) const ALL: &[(&str, u8)] = &[$((stringify!($name), $value)),*];
    };
}

pub(crate) mod kind {
    types! {
        HELLO = 1, WELCOME = 2, REFUSED = 3, OPEN_GROUP = 4, GROUP_OPENED = 5, GROUP_REFUSED = 6, CLOSE_GROUP = 7,
        GROUP_CLOSED = 8, CHANNEL = 9, ACK = 10, DOORBELL = 11, PING = 12, PONG = 13, GOODBYE = 14, DMA_READ = 16,
        DMA_WRITE = 17, DMA_READ_WORDS = 18, DMA_WRITE_WORD = 19, RING_BELL = 20, DMA_DONE = 21,
    }
}

macro_rules! body {
    ($(#[$doc:meta])* $name:ident, $len:literal { $($field:ident: $ty:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
        #[repr(C)]
        struct $name { $($field: $ty),* }
        const _: () = assert!(size_of::<$name>() == $len);
    };
}

body!(HeaderBody, 8 { len: U32, kind: u8, reserved: [u8; 3] });
body!(HelloBody, 64 {
    magic: [u8; 8], version: U16, pollers: U16, name_len: U32, host_incarnation: U64, resume_attachment: U64,
    resume_secret: U64, resume_received: U64, resume_incarnation: U64, reserved: U64,
});
body!(WelcomeBody, 56 {
    version: U16, pollers: U16, resumed: U32, card_incarnation: U64, attachment: U64, resume_secret: U64,
    resume_received: U64, transfer_max: U64, kind: U32, reserved: U32,
});
body!(OpenGroupBody, 32 {
    request: U32, service: U32, request_capacity: U32, response_capacity: U32, card_area: U64, host_area: U64,
});
body!(GroupOpenedBody, 48 {
    request: U32, group: U32, region: U32, request_capacity: U32, response_capacity: U32, service: U32,
    region_len: U64, card_area: U64, host_area: U64,
});
body!(DmaReadBody, 24 { tag: U64, region: U32, len: U32, offset: U64 });
body!(DmaReadWordsBody, 32 { tag: U64, region: U32, count: U32, offset: U64, stride: U32, reserved: U32 });
body!(DmaWriteWordBody, 32 { tag: U64, region: U32, reserved: U32, offset: U64, value: U64 });
body!(RingBellBody, 16 { region: U32, reserved: U32, offset: U64 });
body!(DmaDoneBody, 16 { tag: U64, status: U32, reserved: U32 });

/// Why a card refused a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum RefusedCode {
    /// Another protocol version.
    Version = 1,
    /// User, address, or too many hosts.
    NotAllowed = 2,
    /// There is no such attachment to resume.
    NoSuchAttachment = 3,
    /// The host's frames make no sense.
    Malformed = 4,
}

/// Which kind of link this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum LinkKind {
    /// One machine, shared memory.
    Shm = 1,
    /// Shared memory with the costs of PCIe added.
    Model = 2,
    /// Two machines.
    Tcp = 3,
}

/// What a host says first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The protocol it speaks.
    pub version: u16,
    /// Its polling threads.
    pub pollers: u16,
    /// Which life of the host this is.
    pub host_incarnation: Incarnation,
    /// What it wants to go on with.
    pub resume: Option<Resume>,
    /// Its name, for people.
    pub name: String,
}

/// An attachment to go on with after a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resume {
    /// Which.
    pub attachment: AttachmentId,
    /// What the card gave out for it.
    pub secret: u64,
    /// Sequenced frames that arrived at the host.
    pub received: u64,
    /// The card's incarnation it belongs to.
    pub card_incarnation: Incarnation,
}

/// What a card answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The card's polling threads.
    pub pollers: u16,
    /// Whether this goes on with the attachment that the host named.
    pub resumed: bool,
    /// Which life of the card this is.
    pub card_incarnation: Incarnation,
    /// The attachment.
    pub attachment: AttachmentId,
    /// To be shown when resuming.
    pub resume_secret: u64,
    /// Sequenced frames that arrived at the card.
    pub received: u64,
    /// The link's largest transfer.
    pub transfer_max: u64,
    /// The kind of link.
    pub kind: LinkKind,
}

/// A group that the card opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupOpened {
    /// From the question.
    pub request: u32,
    /// The group's id.
    pub group: GroupId,
    /// The region that rings and areas lie in.
    pub region: RegionId,
    /// Bytes of its parts.
    pub sizes: GroupSizes,
    /// What the group is for.
    pub service: u32,
    /// Bytes of the region.
    pub region_len: u64,
}

/// A frame, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The fields are the document's.
pub enum Frame<'a> {
    Hello(Hello),
    Welcome(Welcome),
    Refused { code: u32, text: &'a str },
    OpenGroup { request: u32, service: u32, sizes: GroupSizes },
    GroupOpened(GroupOpened),
    GroupRefused { request: u32, code: u32, text: &'a str },
    CloseGroup { group: GroupId },
    GroupClosed { group: GroupId, reason: u32, text: &'a str },
    Channel(&'a [u8]),
    Ack { count: u64 },
    Doorbell,
    Ping { nonce: u64 },
    Pong { nonce: u64 },
    Goodbye { code: u32, text: &'a str },
    DmaRead { tag: u64, region: RegionId, offset: u64, len: u32 },
    DmaWrite { tag: u64, region: RegionId, offset: u64, bytes: &'a [u8] },
    DmaReadWords { tag: u64, region: RegionId, offset: u64, stride: u32, count: u8 },
    DmaWriteWord { tag: u64, region: RegionId, offset: u64, value: u64 },
    RingBell { region: RegionId, offset: u64 },
    DmaDone { tag: u64, status: u32, bytes: &'a [u8] },
}

/// What is wrong with the bytes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The length field is impossible.
    #[error("a frame of {0} bytes")]
    Length(u32),
    /// No such type.
    #[error("frame type {0}")]
    Type(u8),
    /// The body is too short, too long, or holds an illegal value.
    #[error("malformed body of frame type {0}")]
    Body(u8),
    /// The peer is not an Outboard at all.
    #[error("the peer does not speak Outboard's link protocol")]
    Magic,
}

impl<'a> Frame<'a> {
    /// How long the frame is that begins with these bytes; `None` while there are too few to know.
    pub fn length(bytes: &[u8], max: usize) -> Result<Option<usize>, FrameError> {
        let Some(field) = bytes.first_chunk::<4>() else { return Ok(None) };
        let len = u32::from_le_bytes(*field);
        if (len as usize) < FRAME_HEADER_LEN || len as usize > max {
            return Err(FrameError::Length(len));
        }
        Ok(Some(len as usize))
    }

    /// Decodes exactly one frame.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, FrameError> {
        let (header, body) =
            HeaderBody::read_from_prefix(bytes).map_err(|_| FrameError::Length(bytes.len() as u32))?;
        if header.len.get() as usize != bytes.len() {
            return Err(FrameError::Length(header.len.get()));
        }
        if header.reserved != [0; 3] {
            return Err(FrameError::Body(header.kind));
        }
        match header.kind {
            kind::HELLO => decode_hello(body),
            kind::WELCOME => decode_welcome(body).ok_or(FrameError::Body(kind::WELCOME)),
            kind::DMA_READ..=kind::DMA_DONE => {
                decode_dma(header.kind, body).ok_or(FrameError::Body(header.kind))
            }
            kind::REFUSED..=kind::GOODBYE => {
                decode_control(header.kind, body).ok_or(FrameError::Body(header.kind))
            }
            other => Err(FrameError::Type(other)),
        }
    }

    /// Whether the frame is kept until acknowledged and sent again after a cut.
    pub fn is_sequenced(&self) -> bool {
        matches!(
            self,
            Self::OpenGroup { .. }
                | Self::GroupOpened(_)
                | Self::GroupRefused { .. }
                | Self::CloseGroup { .. }
                | Self::GroupClosed { .. }
                | Self::Channel(_)
        )
    }

    /// Appends the frame's bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; FRAME_HEADER_LEN]);
        let kind = self.encode_body(out);
        // A frame is never longer than a transfer's: our own senders keep to the limits.
        let len = U32::new((out.len() - start) as u32);
        let header = HeaderBody { len, kind, reserved: [0; 3] };
        out[start..start + FRAME_HEADER_LEN].copy_from_slice(header.as_bytes());
    }

    fn encode_body(&self, out: &mut Vec<u8>) -> u8 {
        match self {
            Self::Hello(hello) => encode_hello(hello, out),
            Self::Welcome(welcome) => encode_welcome(welcome, out),
            Self::Refused { code, text } => text_body(kind::REFUSED, &[*code], text, out),
            Self::OpenGroup { request, service, sizes } => {
                let body = OpenGroupBody {
                    request: (*request).into(),
                    service: (*service).into(),
                    request_capacity: sizes.request.into(),
                    response_capacity: sizes.response.into(),
                    card_area: sizes.card_area.into(),
                    host_area: sizes.host_area.into(),
                };
                raw(kind::OPEN_GROUP, body.as_bytes(), out)
            }
            Self::GroupOpened(opened) => encode_group_opened(opened, out),
            Self::GroupRefused { request, code, text } => {
                text_body(kind::GROUP_REFUSED, &[*request, *code], text, out)
            }
            Self::CloseGroup { group } => words(kind::CLOSE_GROUP, &[group.0], out),
            Self::GroupClosed { group, reason, text } => {
                text_body(kind::GROUP_CLOSED, &[group.0, *reason], text, out)
            }
            Self::Channel(bytes) => raw(kind::CHANNEL, bytes, out),
            Self::Ack { count } => raw(kind::ACK, &count.to_le_bytes(), out),
            Self::Doorbell => kind::DOORBELL,
            Self::Ping { nonce } => raw(kind::PING, &nonce.to_le_bytes(), out),
            Self::Pong { nonce } => raw(kind::PONG, &nonce.to_le_bytes(), out),
            Self::Goodbye { code, text } => text_body(kind::GOODBYE, &[*code], text, out),
            _ => self.encode_dma(out),
        }
    }

    fn encode_dma(&self, out: &mut Vec<u8>) -> u8 {
        let read_body = |tag: u64, region: RegionId, len: u32, offset: u64| DmaReadBody {
            tag: tag.into(),
            region: region.0.into(),
            len: len.into(),
            offset: offset.into(),
        };
        match *self {
            Self::DmaRead { tag, region, offset, len } => {
                raw(kind::DMA_READ, read_body(tag, region, len, offset).as_bytes(), out)
            }
            Self::DmaWrite { tag, region, offset, bytes } => {
                raw(kind::DMA_WRITE, read_body(tag, region, bytes.len() as u32, offset).as_bytes(), out);
                raw(kind::DMA_WRITE, bytes, out)
            }
            Self::DmaReadWords { tag, region, offset, stride, count } => {
                let body = DmaReadWordsBody {
                    tag: tag.into(),
                    region: region.0.into(),
                    count: u32::from(count).into(),
                    offset: offset.into(),
                    stride: stride.into(),
                    reserved: 0.into(),
                };
                raw(kind::DMA_READ_WORDS, body.as_bytes(), out)
            }
            Self::DmaWriteWord { tag, region, offset, value } => {
                let body = DmaWriteWordBody {
                    tag: tag.into(),
                    region: region.0.into(),
                    reserved: 0.into(),
                    offset: offset.into(),
                    value: value.into(),
                };
                raw(kind::DMA_WRITE_WORD, body.as_bytes(), out)
            }
            Self::RingBell { region, offset } => {
                let body =
                    RingBellBody { region: region.0.into(), reserved: 0.into(), offset: offset.into() };
                raw(kind::RING_BELL, body.as_bytes(), out)
            }
            Self::DmaDone { tag, status, bytes } => {
                let body = DmaDoneBody { tag: tag.into(), status: status.into(), reserved: 0.into() };
                raw(kind::DMA_DONE, body.as_bytes(), out);
                raw(kind::DMA_DONE, bytes, out)
            }
            _ => unreachable!("encode_body handles every other frame"),
        }
    }
}

/// Makes the last frame of `out`, which begins at `start`, longer by `extra` bytes, and lends those: so that a large
/// answer is read straight into the buffer that is sent.
pub fn lengthen(out: &mut Vec<u8>, start: usize, extra: usize) -> &mut [u8] {
    let end = out.len();
    out.resize(end + extra, 0);
    let len = U32::new((out.len() - start) as u32);
    out[start..start + size_of::<U32>()].copy_from_slice(len.as_bytes());
    &mut out[end..]
}

fn raw(kind: u8, bytes: &[u8], out: &mut Vec<u8>) -> u8 {
    out.extend_from_slice(bytes);
    kind
}

fn words(kind: u8, words: &[u32], out: &mut Vec<u8>) -> u8 {
    for word in words {
        out.extend_from_slice(&word.to_le_bytes());
    }
    kind
}

fn text_body(kind: u8, numbers: &[u32], text: &str, out: &mut Vec<u8>) -> u8 {
    words(kind, numbers, out);
    let mut end = text.len().min(TEXT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    raw(kind, &text.as_bytes()[..end], out)
}

fn encode_hello(hello: &Hello, out: &mut Vec<u8>) -> u8 {
    let resume = hello.resume.unwrap_or(Resume {
        attachment: AttachmentId(0),
        secret: 0,
        received: 0,
        card_incarnation: Incarnation(0),
    });
    let mut name_len = hello.name.len().min(NAME_MAX);
    while !hello.name.is_char_boundary(name_len) {
        name_len -= 1;
    }
    let body = HelloBody {
        magic: MAGIC,
        version: hello.version.into(),
        pollers: hello.pollers.into(),
        name_len: (name_len as u32).into(),
        host_incarnation: hello.host_incarnation.0.into(),
        resume_attachment: resume.attachment.0.into(),
        resume_secret: resume.secret.into(),
        resume_received: resume.received.into(),
        resume_incarnation: resume.card_incarnation.0.into(),
        reserved: 0.into(),
    };
    raw(kind::HELLO, body.as_bytes(), out);
    raw(kind::HELLO, &hello.name.as_bytes()[..name_len], out)
}

fn encode_welcome(welcome: &Welcome, out: &mut Vec<u8>) -> u8 {
    let body = WelcomeBody {
        version: VERSION.into(),
        pollers: welcome.pollers.into(),
        resumed: u32::from(welcome.resumed).into(),
        card_incarnation: welcome.card_incarnation.0.into(),
        attachment: welcome.attachment.0.into(),
        resume_secret: welcome.resume_secret.into(),
        resume_received: welcome.received.into(),
        transfer_max: welcome.transfer_max.into(),
        kind: (welcome.kind as u32).into(),
        reserved: 0.into(),
    };
    raw(kind::WELCOME, body.as_bytes(), out)
}

fn encode_group_opened(opened: &GroupOpened, out: &mut Vec<u8>) -> u8 {
    let body = GroupOpenedBody {
        request: opened.request.into(),
        group: opened.group.0.into(),
        region: opened.region.0.into(),
        request_capacity: opened.sizes.request.into(),
        response_capacity: opened.sizes.response.into(),
        service: opened.service.into(),
        region_len: opened.region_len.into(),
        card_area: opened.sizes.card_area.into(),
        host_area: opened.sizes.host_area.into(),
    };
    raw(kind::GROUP_OPENED, body.as_bytes(), out)
}

fn decode_hello(body: &[u8]) -> Result<Frame<'_>, FrameError> {
    // The magic and the version come first and are looked at first, so that a peer of any later version gets an
    // answer that says what is wrong.
    if body.first_chunk::<8>() != Some(&MAGIC) {
        return Err(FrameError::Magic);
    }
    let malformed = FrameError::Body(kind::HELLO);
    let (fixed, rest) = HelloBody::read_from_prefix(body).map_err(|_| malformed)?;
    let version = fixed.version.get();
    if version != VERSION {
        let name = String::new();
        let hello = Hello { version, pollers: 0, host_incarnation: Incarnation(0), resume: None, name };
        return Ok(Frame::Hello(hello));
    }
    if rest.len() != fixed.name_len.get() as usize
        || rest.len() > NAME_MAX
        || fixed.host_incarnation.get() == 0
    {
        return Err(malformed);
    }
    let name = std::str::from_utf8(rest).map_err(|_| malformed)?.to_owned();
    let resume = (fixed.resume_attachment.get() != 0).then(|| Resume {
        attachment: AttachmentId(fixed.resume_attachment.get()),
        secret: fixed.resume_secret.get(),
        received: fixed.resume_received.get(),
        card_incarnation: Incarnation(fixed.resume_incarnation.get()),
    });
    let host_incarnation = Incarnation(fixed.host_incarnation.get());
    Ok(Frame::Hello(Hello { version, pollers: fixed.pollers.get(), host_incarnation, resume, name }))
}

fn decode_welcome(body: &[u8]) -> Option<Frame<'_>> {
    let fixed = WelcomeBody::read_from_bytes(body).ok()?;
    let kind = match fixed.kind.get() {
        1 => LinkKind::Shm,
        2 => LinkKind::Model,
        3 => LinkKind::Tcp,
        _ => return None,
    };
    if fixed.attachment.get() == 0 || fixed.card_incarnation.get() == 0 || fixed.resumed.get() > 1 {
        return None;
    }
    if fixed.version.get() != VERSION {
        return None;
    }
    Some(Frame::Welcome(Welcome {
        pollers: fixed.pollers.get(),
        resumed: fixed.resumed.get() == 1,
        card_incarnation: Incarnation(fixed.card_incarnation.get()),
        attachment: AttachmentId(fixed.attachment.get()),
        resume_secret: fixed.resume_secret.get(),
        received: fixed.resume_received.get(),
        transfer_max: fixed.transfer_max.get(),
        kind,
    }))
}

fn decode_control(kind: u8, body: &[u8]) -> Option<Frame<'_>> {
    let word = |index: usize| {
        body.get(index * 4..).and_then(|rest| rest.first_chunk()).map(|c| u32::from_le_bytes(*c))
    };
    let nonce = || Some(u64::from_le_bytes(body.try_into().ok()?));
    let text = |from: usize| {
        let bytes = body.get(from..).filter(|bytes| bytes.len() <= TEXT_MAX)?;
        std::str::from_utf8(bytes).ok()
    };
    Some(match kind {
        kind::REFUSED => Frame::Refused { code: word(0)?, text: text(4)? },
        kind::OPEN_GROUP => {
            let fixed = OpenGroupBody::read_from_bytes(body).ok()?;
            Frame::OpenGroup {
                request: fixed.request.get(),
                service: fixed.service.get(),
                sizes: GroupSizes {
                    request: fixed.request_capacity.get(),
                    response: fixed.response_capacity.get(),
                    card_area: fixed.card_area.get(),
                    host_area: fixed.host_area.get(),
                },
            }
        }
        kind::GROUP_OPENED => {
            let fixed = GroupOpenedBody::read_from_bytes(body).ok()?;
            Frame::GroupOpened(GroupOpened {
                request: fixed.request.get(),
                group: GroupId(fixed.group.get()),
                region: RegionId(fixed.region.get()),
                sizes: GroupSizes {
                    request: fixed.request_capacity.get(),
                    response: fixed.response_capacity.get(),
                    card_area: fixed.card_area.get(),
                    host_area: fixed.host_area.get(),
                },
                service: fixed.service.get(),
                region_len: fixed.region_len.get(),
            })
        }
        kind::GROUP_REFUSED => Frame::GroupRefused { request: word(0)?, code: word(1)?, text: text(8)? },
        kind::CLOSE_GROUP if body.len() == 4 => Frame::CloseGroup { group: GroupId(word(0)?) },
        kind::GROUP_CLOSED => {
            Frame::GroupClosed { group: GroupId(word(0)?), reason: word(1)?, text: text(8)? }
        }
        kind::CHANNEL if body.len() <= CHANNEL_MAX => Frame::Channel(body),
        kind::ACK => Frame::Ack { count: nonce()? },
        kind::DOORBELL if body.is_empty() => Frame::Doorbell,
        kind::PING => Frame::Ping { nonce: nonce()? },
        kind::PONG => Frame::Pong { nonce: nonce()? },
        kind::GOODBYE => Frame::Goodbye { code: word(0)?, text: text(4)? },
        _ => return None,
    })
}

fn decode_dma(kind: u8, body: &[u8]) -> Option<Frame<'_>> {
    Some(match kind {
        kind::DMA_READ => {
            let fixed = DmaReadBody::read_from_bytes(body).ok()?;
            if fixed.len.get() as usize > FRAME_TRANSFER_MAX {
                return None;
            }
            let region = RegionId(fixed.region.get());
            Frame::DmaRead { tag: fixed.tag.get(), region, offset: fixed.offset.get(), len: fixed.len.get() }
        }
        kind::DMA_WRITE => {
            let (fixed, bytes) = DmaReadBody::read_from_prefix(body).ok()?;
            if fixed.len.get() as usize != bytes.len() || bytes.len() > FRAME_TRANSFER_MAX {
                return None;
            }
            let region = RegionId(fixed.region.get());
            Frame::DmaWrite { tag: fixed.tag.get(), region, offset: fixed.offset.get(), bytes }
        }
        kind::DMA_READ_WORDS => {
            let fixed = DmaReadWordsBody::read_from_bytes(body).ok()?;
            Frame::DmaReadWords {
                tag: fixed.tag.get(),
                region: RegionId(fixed.region.get()),
                offset: fixed.offset.get(),
                stride: fixed.stride.get(),
                count: u8::try_from(fixed.count.get()).ok()?,
            }
        }
        kind::DMA_WRITE_WORD => {
            let fixed = DmaWriteWordBody::read_from_bytes(body).ok()?;
            let region = RegionId(fixed.region.get());
            Frame::DmaWriteWord {
                tag: fixed.tag.get(),
                region,
                offset: fixed.offset.get(),
                value: fixed.value.get(),
            }
        }
        kind::RING_BELL => {
            let fixed = RingBellBody::read_from_bytes(body).ok()?;
            Frame::RingBell { region: RegionId(fixed.region.get()), offset: fixed.offset.get() }
        }
        kind::DMA_DONE => {
            let (fixed, bytes) = DmaDoneBody::read_from_prefix(body).ok()?;
            if bytes.len() > FRAME_TRANSFER_MAX {
                return None;
            }
            Frame::DmaDone { tag: fixed.tag.get(), status: fixed.status.get(), bytes }
        }
        _ => return None,
    })
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
