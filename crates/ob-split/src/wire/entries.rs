//! What messages of the rings consist of: the beginning, messages, completions.

use ob_core::{GateId, Incarnation, LockId, TierId, layout};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::VERSION;
use super::header::HEADER_LEN;
use super::message::{Entry, MessageError, kind};

/// Where in a message's 64 bytes its descriptor is, once it is on the host.
pub const DESCRIPTOR_AT: usize = 24;

layout!(HelloBody, 24, { version: U16, reserved: U16, slots: U32, incarnation: U64, gate: U64 });
layout!(WelcomeBody, 56, {
    version: U16, engines: U16, payload_max: U32, gate: U64, handles_max: U32, plans_max: U32, parked: U32,
    channels_max: U16, reserved: U16, tier: U64, lock: [u8; 16],
});
layout!(EngineBody, 8, { kinds: u8, efforts: u8, depth: U16, task_max: U32 });
layout!(RefusedBody, 8, { code: U32, reserved: U32 });
layout!(DescriptorBody, 16, { handle: U32, length: U32, front: U32, flags: U32 });
layout!(CompletionBody, 16, { handle: U32, status: u8, flags: u8, units: U16, offset: U32, word: U32 });

/// Memory of the card, with a generation: one that was given back finds nothing. Or, with the highest bit, a number of the host's own,
/// under which it posts plans that are about no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Handle(pub u32);

/// The bit that handles have which are the host's own numbers, and those of the card have not.
pub const OF_HOST: u32 = 1 << 31;

impl Handle {
    /// A number of the host's own, below [`OF_HOST`], for a plan that is about no message.
    #[must_use]
    pub const fn of_host(number: u32) -> Self {
        Self(number | OF_HOST)
    }

    /// Whether it is that.
    #[must_use]
    pub const fn is_of_host(self) -> bool {
        self.0 & OF_HOST != 0
    }
}

/// Where the card has a chunk's members and end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Slot(pub u16);

/// The host's first words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Slots of 64 KiB in its area.
    pub slots: u32,
    /// Which life of the host.
    pub incarnation: Incarnation,
    /// The gate that another port has given it; nothing for a new one.
    pub gate: Option<GateId>,
}

/// The card's answer to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// How many engines' words follow.
    pub engines: u16,
    /// Bytes of the longest payload.
    pub payload_max: u32,
    /// The gate.
    pub gate: GateId,
    /// Handles that the host may have at a time.
    pub handles_max: u32,
    /// Plans that may be under way.
    pub plans_max: u32,
    /// Messages that were parked, and follow.
    pub parked: u32,
    /// Channels that there may be.
    pub channels_max: u16,
    /// Who the card is.
    pub tier: TierId,
    /// What keeps its lives apart.
    pub lock: LockId,
}

/// What an engine can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Engine {
    /// It compresses.
    pub compresses: bool,
    /// It decompresses.
    pub decompresses: bool,
    /// It computes CRC32C.
    pub sums: bool,
    /// Efforts of compression: 1 to so many.
    pub efforts: u8,
    /// Tasks that it takes at a time.
    pub depth: u16,
    /// Bytes of the longest task.
    pub task_max: u32,
}

/// A code of an entry, and what it means.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident: $ty:ty { $($(#[$variant_doc:meta])* $variant:ident = $code:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant,)* }

        impl $name {
            /// Every one, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

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

pub(super) use words;

words!(
    /// Why the card does not welcome a host.
    RefusedCode: u32 {
        /// It speaks another version.
        Version = 1,
        /// The port has a group of this service already.
        Taken = 2,
        /// The gate that it names is closed.
        GateClosed = 3,
    }
);
words!(
    /// How a plan ended.
    CompletionStatus: u8 {
        /// Well.
        Good = 0,
        /// The chunk has no room for it.
        ChunkFull = 1,
        /// A member of the chunk failed.
        Broken = 2,
        /// No member of the chunk gave it.
        NoMember = 3,
        /// No member gave what could be verified.
        NotVerified = 4,
        /// All was done, and the gate or its deadline did not let the answer out.
        Withheld = 5,
        /// Its peer has given the message up.
        GivenUp = 6,
        /// What it asks for cannot be.
        Refused = 7,
        /// An engine failed.
        Engine = 8,
    }
);

/// What becomes of a message's data pointer on its way to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Of the payload and the message.
    pub handle: Handle,
    /// Bytes of the payload.
    pub length: u32,
    /// Who sent it: queue or channel.
    pub front: u32,
    /// It was parked, and is offered again.
    pub was_parked: bool,
    /// Something of it was sent to a peer before.
    pub was_sent: bool,
}

/// A message's header, with its descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderEntry {
    bytes: [u8; HEADER_LEN],
    descriptor: Descriptor,
}

/// How a piece of a plan went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// As it was posted.
    pub handle: Handle,
    /// How it ended.
    pub status: CompletionStatus,
    /// Whether another piece of the same plan follows.
    pub has_more: bool,
    /// Members that were bad: bit n of the nth.
    pub bad_members: u8,
    /// Units of a record.
    pub units: u16,
    /// Where it lies.
    pub offset: u32,
    /// By plan: CRC, length, or which step failed.
    pub word: u32,
}

impl Completion {
    /// Bytes of one, without a reply.
    pub const LEN: usize = size_of::<CompletionBody>();
}

pub(super) fn wrong(kind: u8, field: &'static str, value: u64) -> MessageError {
    MessageError::Field { kind, field, value }
}

pub(super) fn zero(kind: u8, field: &'static str, value: impl Into<u64>) -> Result<(), MessageError> {
    let value = value.into();
    if value == 0 { Ok(()) } else { Err(wrong(kind, field, value)) }
}

pub(super) fn body<T: FromBytes + zerocopy::KnownLayout + zerocopy::Immutable + zerocopy::Unaligned>(
    kind: u8,
    bytes: &[u8],
) -> Result<&T, MessageError> {
    T::ref_from_bytes(bytes).map_err(|_| MessageError::Length { kind, available: bytes.len() })
}

impl Entry for Hello {
    const LEN: usize = size_of::<HelloBody>();

    fn encode_into(&self, into: &mut Vec<u8>) {
        let body = HelloBody {
            version: VERSION.into(),
            reserved: 0.into(),
            slots: self.slots.into(),
            incarnation: self.incarnation.0.into(),
            gate: self.gate.unwrap_or_default().0.into(),
        };
        into.extend_from_slice(body.as_bytes());
    }

    fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let body: &HelloBody = body(kind::HELLO, bytes)?;
        if body.version != VERSION {
            return Err(MessageError::Version(body.version.get()));
        }
        zero(kind::HELLO, "reserved", body.reserved)?;
        Ok(Self {
            slots: body.slots.get(),
            incarnation: Incarnation(body.incarnation.get()),
            gate: Some(GateId(body.gate.get())).filter(|gate| gate.0 != 0),
        })
    }
}

impl Entry for Welcome {
    const LEN: usize = size_of::<WelcomeBody>();

    fn encode_into(&self, into: &mut Vec<u8>) {
        let body = WelcomeBody {
            version: VERSION.into(),
            engines: self.engines.into(),
            payload_max: self.payload_max.into(),
            gate: self.gate.0.into(),
            handles_max: self.handles_max.into(),
            plans_max: self.plans_max.into(),
            parked: self.parked.into(),
            channels_max: self.channels_max.into(),
            reserved: 0.into(),
            tier: self.tier.0.into(),
            lock: self.lock.0,
        };
        into.extend_from_slice(body.as_bytes());
    }

    fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let body: &WelcomeBody = body(kind::WELCOME, bytes)?;
        if body.version != VERSION {
            return Err(MessageError::Version(body.version.get()));
        }
        zero(kind::WELCOME, "reserved", body.reserved)?;
        if body.gate == 0 {
            return Err(wrong(kind::WELCOME, "gate", 0));
        }
        Ok(Self {
            engines: body.engines.get(),
            payload_max: body.payload_max.get(),
            gate: GateId(body.gate.get()),
            handles_max: body.handles_max.get(),
            plans_max: body.plans_max.get(),
            parked: body.parked.get(),
            channels_max: body.channels_max.get(),
            tier: TierId(body.tier.get()),
            lock: LockId(body.lock),
        })
    }
}

impl Entry for Engine {
    const LEN: usize = size_of::<EngineBody>();

    fn encode_into(&self, into: &mut Vec<u8>) {
        let kinds = u8::from(self.compresses) | u8::from(self.decompresses) << 1 | u8::from(self.sums) << 2;
        let (depth, task_max) = (self.depth.into(), self.task_max.into());
        into.extend_from_slice(EngineBody { kinds, efforts: self.efforts, depth, task_max }.as_bytes());
    }

    fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let body: &EngineBody = body(kind::WELCOME, bytes)?;
        if body.kinds > 7 {
            return Err(wrong(kind::WELCOME, "kinds", body.kinds.into()));
        }
        Ok(Self {
            compresses: body.kinds & 1 != 0,
            decompresses: body.kinds & 2 != 0,
            sums: body.kinds & 4 != 0,
            efforts: body.efforts,
            depth: body.depth.get(),
            task_max: body.task_max.get(),
        })
    }
}

impl Entry for RefusedCode {
    const LEN: usize = size_of::<RefusedBody>();

    fn encode_into(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(RefusedBody { code: self.code().into(), reserved: 0.into() }.as_bytes());
    }

    fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let body: &RefusedBody = body(kind::REFUSED, bytes)?;
        zero(kind::REFUSED, "reserved", body.reserved)?;
        let code = body.code.get();
        Self::from_code(code).ok_or(wrong(kind::REFUSED, "code", code.into()))
    }
}

impl HeaderEntry {
    /// A header whose bytes 24 to 39 say nothing on the host, with a descriptor there.
    #[must_use]
    pub fn new(mut bytes: [u8; HEADER_LEN], descriptor: Descriptor) -> Self {
        let flags = u32::from(descriptor.was_parked) | u32::from(descriptor.was_sent) << 1;
        let body = DescriptorBody {
            handle: descriptor.handle.0.into(),
            length: descriptor.length.into(),
            front: descriptor.front.into(),
            flags: flags.into(),
        };
        if let Some(place) = bytes.get_mut(DESCRIPTOR_AT..DESCRIPTOR_AT + size_of::<DescriptorBody>()) {
            place.copy_from_slice(body.as_bytes());
        }
        Self { bytes, descriptor }
    }

    /// All of it.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; HEADER_LEN] {
        &self.bytes
    }

    /// What stands for the payload.
    #[must_use]
    pub const fn descriptor(&self) -> Descriptor {
        self.descriptor
    }
}

impl Entry for HeaderEntry {
    const LEN: usize = HEADER_LEN;

    fn encode_into(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.bytes);
    }

    fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let bytes: &[u8; HEADER_LEN] = body(kind::HEADERS, bytes)?;
        let descriptor = bytes.get(DESCRIPTOR_AT..DESCRIPTOR_AT + size_of::<DescriptorBody>());
        let body: &DescriptorBody = body(kind::HEADERS, descriptor.unwrap_or_default())?;
        let flags = body.flags.get();
        if flags > 3 {
            return Err(wrong(kind::HEADERS, "flags", flags.into()));
        }
        let descriptor = Descriptor {
            handle: Handle(body.handle.get()),
            length: body.length.get(),
            front: body.front.get(),
            was_parked: flags & 1 != 0,
            was_sent: flags & 2 != 0,
        };
        Ok(Self { bytes: *bytes, descriptor })
    }
}

/// Bits of a completion's flags.
const HAS_MORE: u8 = 1;
const BAD_MEMBERS: u8 = 0b11110;
const HAS_REPLY: u8 = 0b10_0000;

impl Completion {
    pub(super) fn body(&self, has_reply: bool) -> [u8; 16] {
        let more = if self.has_more { HAS_MORE } else { 0 };
        let reply = if has_reply { HAS_REPLY } else { 0 };
        let body = CompletionBody {
            handle: self.handle.0.into(),
            status: self.status.code(),
            flags: more | reply | (self.bad_members << 1 & BAD_MEMBERS),
            units: self.units.into(),
            offset: self.offset.into(),
            word: self.word.into(),
        };
        zerocopy::transmute!(body)
    }

    /// The completion, and whether a reply follows it.
    pub(super) fn parse(bytes: &[u8]) -> Result<(Self, bool), MessageError> {
        let body: &CompletionBody = body(kind::DONE, bytes)?;
        let status = CompletionStatus::from_code(body.status);
        if body.flags & !(HAS_MORE | BAD_MEMBERS | HAS_REPLY) != 0 {
            return Err(wrong(kind::DONE, "flags", body.flags.into()));
        }
        let completion = Self {
            handle: Handle(body.handle.get()),
            status: status.ok_or(wrong(kind::DONE, "status", body.status.into()))?,
            has_more: body.flags & HAS_MORE != 0,
            bad_members: (body.flags & BAD_MEMBERS) >> 1,
            units: body.units.get(),
            offset: body.offset.get(),
            word: body.word.get(),
        };
        Ok((completion, body.flags & HAS_REPLY != 0))
    }
}
