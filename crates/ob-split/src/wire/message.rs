//! Messages of the rings: a few bytes, then entries of one kind.

use std::fmt;
use std::marker::PhantomData;

use ob_core::layout;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

use super::VERSION;
use super::control::{Broken, Channel, ChannelIs, Gate, Memory, Noted, Set};
use super::entries::{Completion, Engine, Handle, HeaderEntry, Hello, RefusedCode, Slot, Welcome};
use super::header::HEADER_LEN;
use super::plan::{DefineError, Definition, Definitions, ENTRY_LEN_MIN, PlanBody, PlanError, PlanId};

/// Bytes of a message before its entries.
pub const MESSAGE_LEN: usize = 8;
/// Bytes of the longest message.
pub const INLINE_MAX: usize = 4096;
/// Bytes of a reply's payload that a completion brings along.
pub const REPLY_PAYLOAD_MAX: usize = 1024;
/// Most engines of a port.
pub const ENGINES_MAX: u16 = 16;

layout!(MessageBody, MESSAGE_LEN, { kind: u8, count: u8, load: u8, reserved: u8, credit: U32 });

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $from:literal;)*) => {
        /// Numbers of the messages.
        pub mod kind {
            $($(#[$doc])* pub const $name: u8 = $code;)*

            /// Name, number and sender of each, in the order of their numbers.
            pub const ALL: &[(&str, u8, &str)] = &[$((stringify!($name), $code, $from)),*];
        }
    };
}

kinds! {
    /// A host is there.
    HELLO = 1, "host";
    /// It is welcome.
    WELCOME = 2, "card";
    /// It is not.
    REFUSED = 3, "card";
    /// Messages have come.
    HEADERS = 4, "card";
    /// What is to be done.
    PLANS = 5, "host";
    /// How it went.
    DONE = 6, "card";
    /// What a plan is.
    DEFINE = 7, "host";
    /// What a channel is to do.
    CHANNEL = 8, "host";
    /// How a channel is.
    CHANNEL_IS = 9, "card";
    /// What the card is to know of a chunk.
    SET = 10, "host";
    /// What the gate is to do.
    GATE = 11, "host";
    /// The time is noted.
    GATE_NOTED = 12, "card";
    /// A chunk's writer has stopped.
    BROKEN = 13, "card";
    /// Card memory is granted, or given back.
    MEMORY = 14, "both";
}

/// Why bytes are no message. Whoever sends such has its group closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// Too few bytes, or too many.
    #[error("a message of kind {kind} with {available} bytes cannot be")]
    Length {
        /// Its kind; 0 if it has not even one.
        kind: u8,
        /// Bytes of it, or of an entry.
        available: usize,
    },
    /// This half does not say that.
    #[error("there is no message of kind {0} from there")]
    Kind(u8),
    /// The other half speaks another version.
    #[error("the other half speaks version {0} of split messages, this one {VERSION}")]
    Version(u16),
    /// A field has a value that it cannot have.
    #[error("the {field} of a message of kind {kind} cannot be {value}")]
    Field {
        /// The message.
        kind: u8,
        /// The field.
        field: &'static str,
        /// What it has.
        value: u64,
    },
    /// A plan was posted that nobody has defined.
    #[error("no plan {0} was defined")]
    UnknownPlan(u8),
    /// What was defined is no plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// What a message consists of.
pub trait Entry: Copy {
    /// Bytes of it.
    const LEN: usize;

    /// Appends its bytes.
    fn encode_into(&self, into: &mut Vec<u8>);

    /// Checks bytes, exactly as many as it has.
    ///
    /// # Errors
    ///
    /// When they are not such an entry.
    fn decode(bytes: &[u8]) -> Result<Self, MessageError>;
}

/// The entries of a message, all of which are legal.
#[derive(Clone, Copy)]
pub struct Entries<'a, E> {
    bytes: &'a [u8],
    entry: PhantomData<E>,
}

/// A plan that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanEntry<'a> {
    /// Which.
    pub plan: PlanId,
    /// The effort; or how many of something follow, if the definition says so.
    pub argument: u8,
    /// The chunk it is about.
    pub slot: Slot,
    /// The message it is about.
    pub handle: Handle,
    /// What the service knows to read.
    pub arguments: &'a [u8],
}

/// Plans that were posted: all of them are defined, and as long as their definitions say.
#[derive(Clone, Copy)]
pub struct PlanEntries<'a> {
    definitions: &'a Definitions,
    bytes: &'a [u8],
    count: u8,
}

/// How a piece of a plan went, and the reply that it brings along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done<'a> {
    /// How it went.
    pub completion: Completion,
    /// Header and payload of a peer's reply.
    pub reply: Option<&'a [u8]>,
}

/// Completions, all of which are legal.
#[derive(Clone, Copy)]
pub struct DoneEntries<'a> {
    bytes: &'a [u8],
    count: u8,
}

/// What the host says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FromHost<'a> {
    /// Receives granted since the beginning, modulo 2³².
    pub credit: u32,
    /// What it says.
    pub message: HostMessage<'a>,
}

/// The kinds of that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostMessage<'a> {
    /// It is there.
    Hello(Hello),
    /// What is to be done.
    Plans(PlanEntries<'a>),
    /// What a plan is.
    Define(Definition),
    /// What channels are to do.
    Channel(Entries<'a, Channel>),
    /// What the card is to know of chunks.
    Set(Entries<'a, Set>),
    /// What the gate is to do.
    Gate(Entries<'a, Gate>),
    /// Card memory that is given back.
    Memory(Entries<'a, Memory>),
}

/// What the card says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FromCard<'a> {
    /// Its engine's load.
    pub load: u8,
    /// Handles of free card memory that it may give out since the beginning, modulo 2³².
    pub credit: u32,
    /// What it says.
    pub message: CardMessage<'a>,
}

/// The kinds of that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CardMessage<'a> {
    /// The host is welcome, and these engines are there.
    Welcome(Welcome, Entries<'a, Engine>),
    /// It is not.
    Refused(RefusedCode),
    /// Messages have come.
    Headers(Entries<'a, HeaderEntry>),
    /// How plans went.
    Done(DoneEntries<'a>),
    /// How channels are.
    ChannelIs(Entries<'a, ChannelIs>),
    /// Times that are noted.
    GateNoted(Entries<'a, Noted>),
    /// Chunks whose writers have stopped.
    Broken(Entries<'a, Broken>),
    /// Card memory that is granted.
    Memory(Entries<'a, Memory>),
}

/// Puts a message together, in memory that it keeps.
#[derive(Debug)]
pub struct MessageBuilder {
    bytes: Vec<u8>,
    kind: u8,
    count: u8,
}

impl Default for MessageBuilder {
    fn default() -> Self {
        Self { bytes: Vec::with_capacity(INLINE_MAX), kind: 0, count: 0 }
    }
}

impl MessageBuilder {
    /// Begins a message of a kind; what was begun before is forgotten.
    pub fn begin(&mut self, kind: u8) {
        (self.kind, self.count) = (kind, 0);
        self.bytes.clear();
        self.bytes.resize(MESSAGE_LEN, 0);
    }

    /// Adds an entry of the message's kind; `false`, and nothing, if it has no room.
    #[must_use]
    pub fn push<E: Entry>(&mut self, entry: &E) -> bool {
        self.add(E::LEN, |bytes| entry.encode_into(bytes))
    }

    /// Adds a plan to a message of kind `PLANS`. Its bytes must be those that its definition says.
    #[must_use]
    pub fn push_plan(&mut self, plan: &PlanEntry<'_>) -> bool {
        let body = PlanBody {
            plan: plan.plan.0,
            argument: plan.argument,
            slot: plan.slot.0.into(),
            handle: plan.handle.0.into(),
        };
        self.add(usize::from(ENTRY_LEN_MIN) + plan.arguments.len(), |bytes| {
            bytes.extend_from_slice(body.as_bytes());
            bytes.extend_from_slice(plan.arguments);
        })
    }

    /// Adds a completion to a message of kind `DONE`. Of a reply the header goes along, and as much of its payload as the
    /// completion's `offset` says.
    #[must_use]
    pub fn push_done(&mut self, done: &Done<'_>) -> bool {
        let reply = done.reply.unwrap_or_default();
        let is_legal = done.reply.is_none() || reply_len(&done.completion) == Some(reply.len());
        is_legal
            && self.add(Completion::LEN + reply.len(), |bytes| {
                bytes.extend_from_slice(&done.completion.body(done.reply.is_some()));
                bytes.extend_from_slice(reply);
            })
    }

    /// Makes it the definition of a plan. It always has room.
    pub fn define(&mut self, definition: &Definition) {
        self.begin(kind::DEFINE);
        definition.encode_into(&mut self.bytes);
        self.count = 1;
    }

    /// Makes it the welcome of a host. It always has room for [`ENGINES_MAX`] engines, and more are left out.
    pub fn welcome(&mut self, welcome: &Welcome, engines: &[Engine]) {
        self.begin(kind::WELCOME);
        let engines = engines.get(..usize::from(ENGINES_MAX)).unwrap_or(engines);
        Welcome { engines: engines.len() as u16, ..*welcome }.encode_into(&mut self.bytes);
        for engine in engines {
            engine.encode_into(&mut self.bytes);
        }
        self.count = 1;
    }

    /// How many entries there are.
    #[must_use]
    pub const fn count(&self) -> u8 {
        self.count
    }

    /// The message, with what is told besides: from the host no load.
    pub fn finish(&mut self, load: u8, credit: u32) -> &[u8] {
        let body =
            MessageBody { kind: self.kind, count: self.count, load, reserved: 0, credit: credit.into() };
        if let Some(place) = self.bytes.get_mut(..MESSAGE_LEN) {
            place.copy_from_slice(body.as_bytes());
        }
        &self.bytes
    }

    fn add(&mut self, len: usize, encode: impl FnOnce(&mut Vec<u8>)) -> bool {
        let has_room = self.count < u8::MAX && self.bytes.len() + len <= INLINE_MAX;
        if has_room {
            encode(&mut self.bytes);
            self.count += 1;
        }
        has_room
    }
}

/// Bytes of the reply that follows a completion, if one so long can.
fn reply_len(completion: &Completion) -> Option<usize> {
    let payload = completion.offset as usize;
    (payload <= REPLY_PAYLOAD_MAX).then_some(HEADER_LEN + payload)
}

/// What a message begins with, and its entries.
struct Parts<'a> {
    kind: u8,
    count: u8,
    load: u8,
    credit: u32,
    entries: &'a [u8],
}

impl<'a> Parts<'a> {
    fn decode(bytes: &'a [u8]) -> Result<Self, MessageError> {
        let (body, entries) = MessageBody::ref_from_prefix(bytes)
            .map_err(|_| MessageError::Length { kind: 0, available: bytes.len() })?;
        let kind = body.kind;
        if bytes.len() > INLINE_MAX {
            return Err(MessageError::Length { kind, available: bytes.len() });
        }
        if body.reserved != 0 {
            return Err(MessageError::Field { kind, field: "reserved", value: body.reserved.into() });
        }
        Ok(Self { kind, count: body.count, load: body.load, credit: body.credit.get(), entries })
    }

    fn length(&self) -> MessageError {
        MessageError::Length { kind: self.kind, available: self.entries.len() }
    }

    /// The one entry of a message that has one, and what is behind it.
    fn single<E: Entry>(&self) -> Result<(E, &'a [u8]), MessageError> {
        self.once()?;
        let (entry, rest) = self.entries.split_at_checked(E::LEN).ok_or(self.length())?;
        Ok((E::decode(entry)?, rest))
    }

    fn once(&self) -> Result<(), MessageError> {
        let value = u64::from(self.count);
        if value == 1 { Ok(()) } else { Err(MessageError::Field { kind: self.kind, field: "count", value }) }
    }

    fn only<E: Entry>(&self) -> Result<E, MessageError> {
        let (entry, rest) = self.single()?;
        if rest.is_empty() { Ok(entry) } else { Err(self.length()) }
    }

    fn all<E: Entry>(&self) -> Result<Entries<'a, E>, MessageError> {
        if self.entries.len() != usize::from(self.count) * E::LEN {
            return Err(self.length());
        }
        Entries::new(self.entries)
    }
}

impl<'a, E: Entry> Entries<'a, E> {
    /// Checks each of them, once.
    fn new(bytes: &'a [u8]) -> Result<Self, MessageError> {
        for entry in bytes.chunks_exact(E::LEN) {
            E::decode(entry)?;
        }
        Ok(Self { bytes, entry: PhantomData })
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes.len() / E::LEN
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The entries in their order.
    pub fn iter(&self) -> impl Iterator<Item = E> + use<'a, E> {
        self.bytes.chunks_exact(E::LEN).filter_map(|entry| E::decode(entry).ok())
    }
}

impl<'a> PlanEntries<'a> {
    fn new(parts: &Parts<'a>, definitions: &'a Definitions) -> Result<Self, MessageError> {
        let mut rest = parts.entries;
        for _ in 0..parts.count {
            (_, rest) = Self::cut(rest, definitions)?;
        }
        if !rest.is_empty() {
            return Err(parts.length());
        }
        Ok(Self { definitions, bytes: parts.entries, count: parts.count })
    }

    fn cut(bytes: &'a [u8], definitions: &Definitions) -> Result<(PlanEntry<'a>, &'a [u8]), MessageError> {
        let length = MessageError::Length { kind: kind::PLANS, available: bytes.len() };
        let (body, _) = PlanBody::ref_from_prefix(bytes).map_err(|_| length)?;
        let plan = PlanId(body.plan);
        let definition = definitions.get(plan).ok_or(MessageError::UnknownPlan(body.plan))?;
        let (entry, rest) = bytes.split_at_checked(definition.entry_len(body.argument)).ok_or(length)?;
        let entry = PlanEntry {
            plan,
            argument: body.argument,
            slot: Slot(body.slot.get()),
            handle: Handle(body.handle.get()),
            arguments: entry.get(usize::from(ENTRY_LEN_MIN)..).ok_or(length)?,
        };
        Ok((entry, rest))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count.into()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The plans in their order, each with its definition.
    pub fn iter(&self) -> impl Iterator<Item = (PlanEntry<'a>, &'a Definition)> + use<'a> {
        let (mut rest, definitions) = (self.bytes, self.definitions);
        std::iter::from_fn(move || {
            let (entry, behind) = Self::cut(rest, definitions).ok()?;
            rest = behind;
            Some((entry, definitions.get(entry.plan)?))
        })
    }
}

impl<'a> DoneEntries<'a> {
    fn new(parts: &Parts<'a>) -> Result<Self, MessageError> {
        let mut rest = parts.entries;
        for _ in 0..parts.count {
            (_, rest) = Self::cut(rest)?;
        }
        if rest.is_empty() {
            Ok(Self { bytes: parts.entries, count: parts.count })
        } else {
            Err(parts.length())
        }
    }

    pub(crate) fn cut(bytes: &'a [u8]) -> Result<(Done<'a>, &'a [u8]), MessageError> {
        let length = MessageError::Length { kind: kind::DONE, available: bytes.len() };
        let (entry, rest) = bytes.split_at_checked(Completion::LEN).ok_or(length)?;
        let (completion, has_reply) = Completion::parse(entry)?;
        if !has_reply {
            return Ok((Done { completion, reply: None }, rest));
        }
        let (reply, rest) =
            reply_len(&completion).and_then(|len| rest.split_at_checked(len)).ok_or(length)?;
        Ok((Done { completion, reply: Some(reply) }, rest))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count.into()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The completions in their order.
    pub fn iter(&self) -> impl Iterator<Item = Done<'a>> + use<'a> {
        let mut rest = self.bytes;
        std::iter::from_fn(move || {
            let (done, behind) = Self::cut(rest).ok()?;
            rest = behind;
            Some(done)
        })
    }
}

impl<'a> FromHost<'a> {
    /// Checks a message of the host, whose plans are known by their definitions.
    ///
    /// # Errors
    ///
    /// When no host that keeps to the document says it.
    pub fn decode(bytes: &'a [u8], definitions: &'a Definitions) -> Result<Self, MessageError> {
        let parts = Parts::decode(bytes)?;
        if parts.load != 0 {
            return Err(MessageError::Field { kind: parts.kind, field: "load", value: parts.load.into() });
        }
        let message = match parts.kind {
            kind::HELLO => HostMessage::Hello(parts.only()?),
            kind::PLANS => HostMessage::Plans(PlanEntries::new(&parts, definitions)?),
            kind::DEFINE => {
                parts.once()?;
                HostMessage::Define(Definition::decode(parts.entries).map_err(|error| match error {
                    DefineError::Length => parts.length(),
                    DefineError::Reserved(value) => {
                        MessageError::Field { kind: kind::DEFINE, field: "reserved", value: value.into() }
                    }
                    DefineError::Plan(error) => error.into(),
                })?)
            }
            kind::CHANNEL => HostMessage::Channel(parts.all()?),
            kind::SET => HostMessage::Set(parts.all()?),
            kind::GATE => HostMessage::Gate(parts.all()?),
            kind::MEMORY => HostMessage::Memory(parts.all()?),
            other => return Err(MessageError::Kind(other)),
        };
        Ok(Self { credit: parts.credit, message })
    }
}

impl<'a> FromCard<'a> {
    /// Checks a message of the card.
    ///
    /// # Errors
    ///
    /// When no card that keeps to the document says it.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, MessageError> {
        let parts = Parts::decode(bytes)?;
        let message = match parts.kind {
            kind::WELCOME => {
                let (welcome, engines): (Welcome, _) = parts.single()?;
                let is_whole = engines.len() == usize::from(welcome.engines) * Engine::LEN;
                if welcome.engines > ENGINES_MAX || !is_whole {
                    return Err(parts.length());
                }
                CardMessage::Welcome(welcome, Entries::new(engines)?)
            }
            kind::REFUSED => CardMessage::Refused(parts.only()?),
            kind::HEADERS => CardMessage::Headers(parts.all()?),
            kind::DONE => CardMessage::Done(DoneEntries::new(&parts)?),
            kind::CHANNEL_IS => CardMessage::ChannelIs(parts.all()?),
            kind::GATE_NOTED => CardMessage::GateNoted(parts.all()?),
            kind::BROKEN => CardMessage::Broken(parts.all()?),
            kind::MEMORY => CardMessage::Memory(parts.all()?),
            other => return Err(MessageError::Kind(other)),
        };
        Ok(Self { load: parts.load, credit: parts.credit, message })
    }
}

impl<E: Entry + fmt::Debug> fmt::Debug for Entries<'_, E> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.iter()).finish()
    }
}

impl<E: Entry> PartialEq for Entries<'_, E> {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl<E: Entry> Eq for Entries<'_, E> {}

impl fmt::Debug for PlanEntries<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.iter().map(|(entry, _)| entry)).finish()
    }
}

impl PartialEq for PlanEntries<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for PlanEntries<'_> {}

impl fmt::Debug for DoneEntries<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.iter()).finish()
    }
}

impl PartialEq for DoneEntries<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for DoneEntries<'_> {}
