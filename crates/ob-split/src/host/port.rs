//! The host's side of a port: what it says in messages of the ring, and what it believes of what the card says.

#[cfg(test)]
#[path = "port_tests.rs"]
mod tests;

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use ob_core::{GateId, Incarnation};
use ob_ring::{PushError, ReceiveError};

use super::channels::Channels;
use super::ends::{HostEnds, Ticket};
use super::handles::Handles;
use super::outbox::{Outbox, Unsaid};
use crate::wire::{
    Broken, CardMessage, Channel, ChannelId, ChannelIs, Completion, Definition, Definitions, Done,
    DoneEntries, Engine, Entry, FromCard, Gate, Handle, HeaderEntry, Hello, INLINE_MAX, MESSAGE_LEN, Memory,
    MessageBuilder, MessageError, Noted, PlanEntry, PlanError, PlanId, RefusedCode, Set, Slot, Step, Welcome,
    kind,
};

/// Preparations of the gate whose times the card has not noted yet.
const PREPARATIONS_MAX: usize = 8;
/// Messages without an entry that a card sends one behind the other.
const EMPTY_MAX: usize = 1024;
/// Bytes of what an entry of a plan begins with.
const PLAN_LEN: usize = crate::wire::ENTRY_LEN_MIN as usize;

/// How a host opens a port.
#[derive(Clone, Copy, Debug)]
pub struct PortOptions {
    /// Which life of the host this is.
    pub incarnation: Incarnation,
    /// The gate that another port has given it; nothing for a new one.
    pub gate: Option<GateId>,
    /// Messages that the card may send ahead, at most.
    pub receives_max: u32,
    /// Handles that the host keeps in mind, at most, whatever the card allows.
    pub handles_max: u32,
    /// Bytes of messages that wait while the ring is full; more is refused.
    pub waiting_max: usize,
}

impl Default for PortOptions {
    fn default() -> Self {
        Self {
            incarnation: Incarnation(0),
            gate: None,
            receives_max: 4096,
            handles_max: 1 << 16,
            waiting_max: 64 << 10,
        }
    }
}

/// What the card has said, an entry at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortEvent<'a> {
    /// The host is welcome: plans may be defined now. What engines there are says [`Port::engines`].
    Welcome(Welcome),
    /// It is not: the port says and takes nothing any more.
    Refused(RefusedCode),
    /// A message has come; one of the receives that were granted is used.
    Header(HeaderEntry),
    /// How a piece of a plan went. Of a plan with several, all but the last say that more follow.
    Done(Done<'a>),
    /// How a channel is.
    Channel(ChannelIs),
    /// The time of a preparation is noted.
    Noted(Noted),
    /// A chunk's writer has stopped. It may be what the slot had before it was set anew: the two may have crossed.
    Broken(Broken),
    /// Card memory is granted.
    Memory(Memory),
}

/// Why a port is over. Whoever is told so closes the group, and with it the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// The card has closed the group, or is gone.
    #[error("the card has closed the group, or is gone")]
    Closed,
    /// The request ring cannot be used.
    #[error("requests cannot be given to the card: {0}")]
    Push(PushError),
    /// The response ring cannot be used.
    #[error("what the card has sent cannot be taken: {0}")]
    Receive(ReceiveError),
    /// What the card has sent is no message.
    #[error("the card has sent what is no message: {0}")]
    Message(#[from] MessageError),
    /// It sends messages in which there is nothing, one behind the other.
    #[error("the card sends messages without end in which there is nothing")]
    Empty,
    /// Messages of this service have no payload in the ring.
    #[error("the card has sent a payload of {0} bytes by the ring")]
    Payload(usize),
    /// The card has answered the greeting otherwise than once, at first.
    #[error("the card has said a message of kind {0} when that could not be")]
    Order(u8),
    /// The gate is another than was asked for.
    #[error("gate {asked:?} was asked for, and {given:?} given")]
    Gate {
        /// What the host has said.
        asked: GateId,
        /// What the card has said.
        given: GateId,
    },
    /// A message for which no receive was granted.
    #[error("the card has sent a message for which it had no credit")]
    NoCredit,
    /// A message that is longer than there are.
    #[error("the card has a message of {0} bytes, and said there are none so long")]
    Oversize(u32),
    /// A handle that is in use, or is not the card's to give, or one more than there may be.
    #[error("the card cannot have given {0:?}")]
    Handle(Handle),
    /// A completion of nothing that was posted.
    #[error("no plan about {0:?} is under way")]
    NotPosted(Handle),
    /// A channel that is not, or cannot be so.
    #[error("{0:?} cannot be what the card says of it")]
    Channel(ChannelId),
    /// A preparation that the host did not ask for, or not next.
    #[error("preparation {0} of the gate was not asked for")]
    NotPrepared(u64),
    /// A slot that was never set.
    #[error("{0:?} was never set to a chunk")]
    Slot(Slot),
}

/// Why something is not said to the card. Nothing of it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The ring is full, and as much waits for it as may: take events, flush, and try again.
    #[error("the ring is full, and as much waits for it as may")]
    Full,
    /// As many of these are there as may be: try again when one is over.
    #[error("there are as many as may be")]
    TooMany,
    /// The card has not welcomed this host, or the port is over.
    #[error("the port is not open")]
    NotOpen,
    /// Nothing has this handle.
    #[error("nothing has {0:?}")]
    UnknownHandle(Handle),
    /// A plan is under way that this one cannot be beside.
    #[error("a plan about {0:?} is under way, beside which this cannot be")]
    Busy(Handle),
    /// There is such a channel already, or there is none.
    #[error("{0:?} cannot be told that")]
    Channel(ChannelId),
    /// A plan of this number was not defined.
    #[error("no plan {} was defined", .0.0)]
    UnknownPlan(PlanId),
    /// The entry is not as long as its plan says, or no message has room for it.
    #[error("an entry of plan {} cannot have {len} bytes", plan.0)]
    Length {
        /// Which plan.
        plan: PlanId,
        /// Bytes that the entry would have.
        len: usize,
    },
    /// The definition cannot be.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The card would refuse it, and close the group.
    #[error("the card would not take it: {0}")]
    Illegal(MessageError),
}

/// Where the greeting is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// `HELLO` was said.
    Greeting,
    Open,
    /// The card has refused the host.
    Refused,
    Over(PortError),
}

/// One port of a card, as its host sees it: entries in, events out. Nothing blocks but [`Port::sleep`].
///
/// What is posted is put together to as few messages as its order allows, and leaves with [`Port::flush`], or before when a message
/// is full. While the ring is full messages wait; when too many do, what is posted is refused, and nothing of it is lost that was
/// taken.
///
/// What the card sends is believed only as far as the host has asked for it. The first thing that cannot be ends the port: that error
/// is then the answer to everything.
pub struct Port<L> {
    ends: L,
    options: PortOptions,
    phase: Phase,
    welcome: Option<Welcome>,
    engines: Vec<Engine>,
    definitions: Definitions,
    outbox: Outbox,
    inbox: Inbox,
    handles: Handles,
    channels: Channels,
    /// A bit for each slot that was ever set.
    slots: Vec<u64>,
    /// Numbers of preparations whose times are not noted yet.
    prepared: VecDeque<u64>,
    /// Headers that came since the beginning, modulo 2³².
    received: u32,
    load: u8,
    granted_memory: u32,
}

/// A message of the card that is taken apart.
struct Inbox {
    bytes: Box<[u8; INLINE_MAX]>,
    kind: u8,
    /// Entries that are left, and where they are.
    left: u8,
    rest: Range<usize>,
}

/// An event that refers to the inbox.
enum Found {
    Plain(PortEvent<'static>),
    Done(Completion, Option<Range<usize>>),
}

impl<L: HostEnds> Port<L> {
    /// Greets the card. Its answer is the first event.
    ///
    /// # Errors
    ///
    /// When the ring takes nothing.
    pub fn open(ends: L, options: &PortOptions) -> Result<Self, PortError> {
        let slots = ends.area_lens().1 / crate::ledger::SLOT_LEN;
        let mut port = Self {
            ends,
            options: *options,
            phase: Phase::Greeting,
            welcome: None,
            engines: Vec::new(),
            definitions: Definitions::new(),
            outbox: Outbox::new(options.waiting_max),
            inbox: Inbox { bytes: Box::new([0; INLINE_MAX]), kind: 0, left: 0, rest: 0..0 },
            handles: Handles::default(),
            channels: Channels::default(),
            slots: vec![0; (usize::from(u16::MAX) + 1) / 64],
            prepared: VecDeque::with_capacity(PREPARATIONS_MAX),
            received: 0,
            load: 0,
            granted_memory: 0,
        };
        let hello = Hello {
            slots: u32::try_from(slots).unwrap_or(u32::MAX),
            incarnation: options.incarnation,
            gate: options.gate,
        };
        let greeted = port.outbox.add(&mut port.ends, kind::HELLO, |builder| builder.push(&hello));
        port.said(greeted).map_err(|_| port.error())?;
        port.flush()?;
        Ok(port)
    }

    /// The card's limits, once it has welcomed the host.
    #[must_use]
    pub const fn limits(&self) -> Option<&Welcome> {
        self.welcome.as_ref()
    }

    /// What its engines can do.
    #[must_use]
    pub fn engines(&self) -> &[Engine] {
        &self.engines
    }

    /// Its engine's load, as it was told last: 0 idle, 255 as much waits as may.
    #[must_use]
    pub const fn load(&self) -> u8 {
        self.load
    }

    /// Pieces of card memory that it has granted since the beginning, or is about to, modulo 2³².
    #[must_use]
    pub const fn granted_memory(&self) -> u32 {
        self.granted_memory
    }

    /// How many plans are under way.
    #[must_use]
    pub const fn plans(&self) -> u32 {
        self.handles.plans()
    }

    /// Receives that were granted and are not used yet. Messages that were parked use them as others do.
    #[must_use]
    pub const fn granted(&self) -> u32 {
        self.outbox.credit().wrapping_sub(self.received)
    }

    /// Whether something waits for room in the ring: then a thread that sleeps wants to be woken by that too.
    #[must_use]
    pub fn wants_room(&self) -> bool {
        self.outbox.wants_room()
    }

    /// Bytes of messages that wait for room in the ring.
    #[must_use]
    pub const fn waiting_len(&self) -> usize {
        self.outbox.waiting_len()
    }

    /// The lowest number of a channel that is free.
    #[must_use]
    pub fn free_channel(&self) -> Option<ChannelId> {
        self.channels.free()
    }

    /// The group's ends: its areas, and what threads sleep on.
    #[must_use]
    pub const fn ends(&self) -> &L {
        &self.ends
    }

    /// Registers this thread as about to sleep. Whoever then looks for events once more, flushes, and finds nothing, may sleep.
    #[must_use]
    pub fn register(&mut self) -> Ticket {
        let wants_room = self.wants_room();
        self.ends.register(wants_room)
    }

    /// Sleeps until the card has said something, or made room that is wanted; at most so long.
    pub fn sleep(&mut self, ticket: Ticket, within: Option<Duration>) {
        self.ends.sleep(ticket, within);
    }

    /// What was said goes into the ring, as far as that has room.
    ///
    /// # Errors
    ///
    /// When the port is over.
    pub fn flush(&mut self) -> Result<(), PortError> {
        match self.phase {
            Phase::Over(error) => Err(error),
            Phase::Refused => Ok(()),
            Phase::Greeting | Phase::Open => match self.outbox.flush(&mut self.ends) {
                Ok(()) => Ok(()),
                Err(error) => Err(self.fail(push_error(error))),
            },
        }
    }

    /// Grants receives: so many messages more may come.
    ///
    /// # Errors
    ///
    /// When more would be granted and unused than [`PortOptions::receives_max`], or than there are handles.
    pub fn grant(&mut self, count: u32) -> Result<(), PostError> {
        self.check_open()?;
        let unused = self.granted();
        if count > self.options.receives_max.saturating_sub(unused) {
            return Err(PostError::TooMany);
        }
        self.outbox.grant(count);
        Ok(())
    }

    /// Defines a plan, which is then named by its number.
    ///
    /// # Errors
    ///
    /// When there is one of this number, or there is no room.
    pub fn define(&mut self, definition: &Definition) -> Result<(), PostError> {
        self.check_open()?;
        if self.definitions.get(definition.id()).is_some() {
            return Err(PlanError::Defined(definition.id()).into());
        }
        let said = self.outbox.define(&mut self.ends, definition);
        self.said(said)?;
        Ok(self.definitions.define(definition.clone())?)
    }

    /// Posts a plan about a message or card memory, or, under a [number of the host's own](Handle::of_host), about neither. Its
    /// completion names the handle. There is one about a handle at a time; a message is over when one has answered it and went well.
    ///
    /// # Errors
    ///
    /// When the card would refuse it, or there is no room.
    pub fn post(&mut self, plan: &PlanEntry<'_>) -> Result<(), PostError> {
        self.check_open()?;
        let definition = self.definitions.get(plan.plan).ok_or(PostError::UnknownPlan(plan.plan))?;
        let len = PLAN_LEN + plan.arguments.len();
        if len != definition.entry_len(plan.argument) || len > INLINE_MAX - MESSAGE_LEN {
            return Err(PostError::Length { plan: plan.plan, len });
        }
        let is_answering = matches!(definition.plan().steps().last(), Some(Step::Answer { .. }));
        self.handles.check_post(plan.handle)?;
        let said = self.outbox.add(&mut self.ends, kind::PLANS, |builder| builder.push_plan(plan));
        self.said(said)?;
        self.handles.posted(plan.handle, is_answering);
        Ok(())
    }

    /// Tells the card of a chunk. Its channels may be over, but not closed.
    ///
    /// # Errors
    ///
    /// When it cannot be, or there is no room.
    pub fn set(&mut self, set: &Set) -> Result<(), PostError> {
        let named = set.channels.get(..usize::from(set.members)).unwrap_or_default();
        if let Some(unknown) = named.iter().find(|channel| !self.channels.is_known(**channel)) {
            return Err(PostError::Channel(*unknown));
        }
        self.say(kind::SET, set)?;
        if let Some(word) = self.slots.get_mut(usize::from(set.slot.0 / 64)) {
            *word |= 1 << (set.slot.0 % 64);
        }
        Ok(())
    }

    /// Has a channel connect, listen or close. The card says once that one is over; closing one that is over gives its number back, of
    /// which there are only so many, and connecting uses it anew.
    ///
    /// # Errors
    ///
    /// When it cannot, or there is no room.
    pub fn channel(&mut self, channel: &Channel) -> Result<(), PostError> {
        self.check_open()?;
        self.channels.ask(channel, false)?;
        self.say(kind::CHANNEL, channel)?;
        self.channels.ask(channel, true)
    }

    /// Has the gate note the time, or stay open.
    ///
    /// # Errors
    ///
    /// When too many preparations are not noted yet, or there is no room.
    pub fn gate(&mut self, gate: &Gate) -> Result<(), PostError> {
        self.check_open()?;
        if let Gate::Prepare { .. } = gate
            && self.prepared.len() >= PREPARATIONS_MAX
        {
            return Err(PostError::TooMany);
        }
        self.say(kind::GATE, gate)?;
        if let Gate::Prepare { number } = gate {
            self.prepared.push_back(*number);
        }
        Ok(())
    }

    /// Gives card memory back, that was granted or came with a message. Nothing is answered to the message's peer.
    ///
    /// # Errors
    ///
    /// When there is none, plans about it are under way, or there is no room.
    pub fn give_back(&mut self, handle: Handle) -> Result<(), PostError> {
        self.check_open()?;
        let length = self.handles.check_give_back(handle)?;
        self.say(kind::MEMORY, &Memory { handle, length })?;
        self.handles.given_back(handle);
        Ok(())
    }

    /// What the card has said next, if anything.
    ///
    /// # Errors
    ///
    /// When the port is over, because of this call or before.
    pub fn next_event(&mut self) -> Result<Option<PortEvent<'_>>, PortError> {
        if let Phase::Over(error) = self.phase {
            return Err(error);
        }
        match self.find() {
            Ok(None) => Ok(None),
            Ok(Some(Found::Plain(event))) => Ok(Some(event)),
            Ok(Some(Found::Done(completion, reply))) => {
                let reply = reply.and_then(|reply| self.inbox.bytes.get(reply));
                Ok(Some(PortEvent::Done(Done { completion, reply })))
            }
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Says an entry that could be any: what the card would refuse is not said.
    fn say<E: Entry>(&mut self, kind: u8, entry: &E) -> Result<(), PostError> {
        self.check_open()?;
        let mut bytes = Vec::with_capacity(E::LEN);
        entry.encode_into(&mut bytes);
        E::decode(&bytes).map_err(PostError::Illegal)?;
        let said = self.outbox.add(&mut self.ends, kind, |builder: &mut MessageBuilder| builder.push(entry));
        self.said(said)
    }

    fn said(&mut self, said: Result<(), Unsaid>) -> Result<(), PostError> {
        match said {
            Ok(()) => Ok(()),
            Err(Unsaid::Full | Unsaid::TooLong) => Err(PostError::Full),
            Err(Unsaid::Over(error)) => {
                self.fail(push_error(error));
                Err(PostError::NotOpen)
            }
        }
    }

    const fn check_open(&self) -> Result<(), PostError> {
        if matches!(self.phase, Phase::Open) { Ok(()) } else { Err(PostError::NotOpen) }
    }

    const fn fail(&mut self, error: PortError) -> PortError {
        self.phase = Phase::Over(error);
        error
    }

    const fn error(&self) -> PortError {
        if let Phase::Over(error) = self.phase { error } else { PortError::Closed }
    }

    fn find(&mut self) -> Result<Option<Found>, PortError> {
        let mut empty = 0;
        while self.inbox.left == 0 {
            // A card has a load to tell of now and then.
            empty += 1;
            if empty > EMPTY_MAX {
                return Err(PortError::Empty);
            }
            if !self.take_message()? {
                return Ok(None);
            }
        }
        self.inbox.left -= 1;
        self.entry().map(Some)
    }

    /// Takes the next message of the ring, all of which is legal by itself; `false` if there is none.
    fn take_message(&mut self) -> Result<bool, PortError> {
        let taken = match self.ends.receive(self.inbox.bytes.as_mut_slice()) {
            Ok(Some(taken)) => taken,
            Ok(None) => return Ok(false),
            Err(ReceiveError::Closed) => return Err(PortError::Closed),
            Err(error) => return Err(PortError::Receive(error)),
        };
        if taken.payload_len > 0 {
            return Err(PortError::Payload(taken.payload_len));
        }
        let too_long = MessageError::Length { kind: 0, available: taken.inline_len };
        let bytes = self.inbox.bytes.get(..taken.inline_len).ok_or(too_long)?;
        let from_card = FromCard::decode(bytes)?;
        let (kind, count) = (bytes.first().copied().unwrap_or(0), bytes.get(1).copied().unwrap_or(0));
        let is_answer = matches!(from_card.message, CardMessage::Welcome(..) | CardMessage::Refused(_));
        if is_answer != (self.phase == Phase::Greeting) {
            return Err(PortError::Order(kind));
        }
        if let CardMessage::Welcome(_, engines) = from_card.message {
            self.engines = engines.iter().collect();
        }
        (self.load, self.granted_memory) = (from_card.load, from_card.credit);
        (self.inbox.kind, self.inbox.left) = (kind, count);
        self.inbox.rest = MESSAGE_LEN..taken.inline_len;
        Ok(true)
    }

    fn entry(&mut self) -> Result<Found, PortError> {
        let event = match self.inbox.kind {
            kind::WELCOME => self.welcomed()?,
            kind::REFUSED => {
                self.phase = Phase::Refused;
                PortEvent::Refused(self.inbox.next()?)
            }
            kind::HEADERS => self.header()?,
            kind::DONE => {
                let (completion, reply) = self.inbox.next_done()?;
                self.handles.done(&completion).ok_or(PortError::NotPosted(completion.handle))?;
                return Ok(Found::Done(completion, reply));
            }
            kind::CHANNEL_IS => {
                let is: ChannelIs = self.inbox.next()?;
                self.channels.apply(&is).ok_or(PortError::Channel(is.channel))?;
                PortEvent::Channel(is)
            }
            kind::GATE_NOTED => {
                let noted: Noted = self.inbox.next()?;
                let is_next = self.prepared.pop_front() == Some(noted.number);
                is_next.then_some(()).ok_or(PortError::NotPrepared(noted.number))?;
                PortEvent::Noted(noted)
            }
            kind::BROKEN => {
                let broken: Broken = self.inbox.next()?;
                let word = self.slots.get(usize::from(broken.slot.0 / 64)).copied().unwrap_or(0);
                if word >> (broken.slot.0 % 64) & 1 == 0 {
                    return Err(PortError::Slot(broken.slot));
                }
                PortEvent::Broken(broken)
            }
            kind::MEMORY => {
                let memory: Memory = self.inbox.next()?;
                self.handles.given(memory.handle, memory.length).ok_or(PortError::Handle(memory.handle))?;
                PortEvent::Memory(memory)
            }
            other => return Err(PortError::Order(other)),
        };
        Ok(Found::Plain(event))
    }

    fn welcomed(&mut self) -> Result<PortEvent<'static>, PortError> {
        let welcome: Welcome = self.inbox.next()?;
        if let Some(asked) = self.options.gate.filter(|asked| *asked != welcome.gate) {
            return Err(PortError::Gate { asked, given: welcome.gate });
        }
        let handles_max = welcome.handles_max.min(self.options.handles_max);
        self.handles.limit(handles_max as usize, welcome.plans_max);
        self.channels.limit(welcome.channels_max);
        self.options.receives_max = self.options.receives_max.min(welcome.handles_max);
        self.welcome = Some(welcome);
        self.phase = Phase::Open;
        Ok(PortEvent::Welcome(welcome))
    }

    fn header(&mut self) -> Result<PortEvent<'static>, PortError> {
        let header: HeaderEntry = self.inbox.next()?;
        let descriptor = header.descriptor();
        // What was granted and not told yet is nothing that the card can use.
        if self.outbox.told() == self.received {
            return Err(PortError::NoCredit);
        }
        self.received = self.received.wrapping_add(1);
        if self.welcome.is_none_or(|welcome| descriptor.length > welcome.payload_max) {
            return Err(PortError::Oversize(descriptor.length));
        }
        self.handles
            .given(descriptor.handle, descriptor.length)
            .ok_or(PortError::Handle(descriptor.handle))?;
        Ok(PortEvent::Header(header))
    }
}

impl Inbox {
    /// The next entry. All of the message was checked, so that there is one.
    fn next<E: Entry>(&mut self) -> Result<E, PortError> {
        let end = self.rest.start + E::LEN;
        let bytes = self.bytes.get(self.rest.start..end).unwrap_or_default();
        self.rest.start = end;
        Ok(E::decode(bytes)?)
    }

    /// The next completion, and where its reply is.
    fn next_done(&mut self) -> Result<(Completion, Option<Range<usize>>), PortError> {
        let bytes = self.bytes.get(self.rest.clone()).unwrap_or_default();
        let (Done { completion, reply }, rest) = DoneEntries::cut(bytes)?;
        let end = self.rest.end - rest.len();
        self.rest.start = end;
        Ok((completion, reply.map(|reply| end - reply.len()..end)))
    }
}

const fn push_error(error: PushError) -> PortError {
    if matches!(error, PushError::Closed) { PortError::Closed } else { PortError::Push(error) }
}
