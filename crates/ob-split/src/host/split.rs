//! Table 2 of SmartDS: messages received and sent without their payloads, tasks of engines, plans; each with an event.

#[cfg(test)]
#[path = "split_tests.rs"]
mod tests;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;

use ob_ring::AreaError;

use super::ends::HostEnds;
use super::events::{CardTask, Completion, Event, Incoming, NoMemory, SplitError, SplitFailure};
use super::memory::{CardMemory, CardRange, HostMemory, Returns};
use super::port::{Port, PortError, PortEvent, PortOptions, PostError};
use crate::ledger::Ledger;
use crate::wire::{
    ACCEPTED_FROM, Answers, CHECKSUM, COMPRESS, Channel, ChannelId, ChannelIs, ChannelState, ChannelWhat,
    Completion as Piece, CompletionStatus, DESCRIPTOR_AT, Definition, Done, ENTRY_LEN_MIN, HEADER_LEN,
    Handle, HeaderEntry, MEMBERS_MAX, Memory, OF_HOST, OWN_PLANS, Otherwise, PEERS_LEN, PLACE_LEN, Plan,
    PlanEntry, PlanError, PlanId, Register, SEND, SEND_HEADER, SEND_HEADER_LEN, SEND_LEN, Slot, Step,
    TASK_LEN, USER_LEN, Welcome,
};

/// Pieces that a plan has at most.
const PIECES_MAX: usize = 256;
/// Bytes of a descriptor.
const DESCRIPTOR_LEN: usize = 16;

/// A port with memory, channels and events: the card's half of messages by the host's software, as in SmartDS §4.1.
///
/// Each thing that is posted has an [`Event`] and one [`Completion`]. One thread has it; [`poll`](Self::poll) is its turn. When the
/// port is over, everything that was posted is completed with [`SplitFailure::Closed`].
pub struct Split<L> {
    port: Port<L>,
    over: Option<PortError>,
    next_event: u64,
    next_own: u32,
    next_plan: u8,
    /// Completions that nobody has taken, in the order of events.
    done: BTreeMap<Event, Completion>,
    /// Plans under way by what their completions name.
    plans: HashMap<Handle, Posted>,
    receives: VecDeque<Receive>,
    /// Messages that came while nobody awaited one of their sender.
    arrived: VecDeque<HeaderEntry>,
    channels: HashMap<ChannelId, Waiting>,
    accepts: VecDeque<(Event, ChannelId)>,
    /// Accepted channels that nobody has asked for, with their listeners.
    accepted: VecDeque<(ChannelId, ChannelId)>,
    ledger: Ledger,
    granted: Vec<Memory>,
    returns: Returns,
    /// Handles that are to be given back as soon as no plan is about them.
    returning: Vec<Handle>,
    /// Memory that tasks under way write, and that is not theirs by its handle.
    lent: Vec<Handle>,
    /// Accepted channels that are gone: their numbers are the card's again when they are closed.
    closing: Vec<ChannelId>,
}

struct Posted {
    event: Event,
    kind: Kind,
    /// To whom, if it sends.
    to: Option<ChannelId>,
    /// Other memory that it writes.
    into: Option<Handle>,
    pieces: Vec<Piece>,
    reply: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Send,
    Engine,
    Plan,
}

#[derive(Clone, Copy)]
struct Receive {
    event: Event,
    from: Incoming,
    payload_max: u32,
}

/// Who awaits news of a channel, and what is known of it.
#[derive(Clone, Copy)]
struct Waiting {
    event: Option<Event>,
    /// Nobody knows it who could await its messages: it was accepted, and nobody has asked for it, or it was closed.
    is_nobodys: bool,
    /// Its peer says no more.
    has_ended: bool,
}

impl Waiting {
    const fn new(event: Option<Event>, is_nobodys: bool) -> Self {
        Self { event, is_nobodys, has_ended: false }
    }
}

/// A place in card memory, as plans of this layer have it: offset and length.
#[must_use]
pub fn place(range: CardRange) -> [u8; PLACE_LEN] {
    let mut bytes = [0; PLACE_LEN];
    let (offset, len) = bytes.split_at_mut(4);
    offset.copy_from_slice(&range.offset.to_le_bytes());
    len.copy_from_slice(&range.len.to_le_bytes());
    bytes
}

/// What a plan of the user's is posted with that sends: to these channels, at most four, a header each. (What the card puts in besides:
/// tag, length and checksum, [`PACKED`](crate::wire::PACKED), and in `status` of several pieces which it is.)
#[must_use]
pub fn arguments(to: &[ChannelId], header: &[u8; HEADER_LEN]) -> [u8; (USER_LEN - ENTRY_LEN_MIN) as usize] {
    let mut bytes = [0; (USER_LEN - ENTRY_LEN_MIN) as usize];
    let (channels, back) = bytes.split_at_mut(PEERS_LEN);
    for (place, channel) in channels.chunks_exact_mut(PEERS_LEN / MEMBERS_MAX).zip(to) {
        place.copy_from_slice(&channel.0.to_le_bytes());
    }
    back.copy_from_slice(header);
    bytes
}

/// Plans of this layer's own.
pub(super) fn own_plans() -> Result<[Definition; 4], PlanError> {
    let merge = Step::Merge { answers: Answers::All };
    let send = vec![Step::Send { payload: Some(Register::PAYLOAD) }, merge];
    let send_header = vec![Step::Send { payload: None }, merge];
    let into = Register::ANSWER;
    let compress = vec![Step::Compress { from: Register::PAYLOAD, into, otherwise: Otherwise::Fail }];
    let checksum = vec![Step::Checksum { of: Register::PAYLOAD }];
    Ok([
        Definition::new(SEND, Plan::new(send)?, SEND_LEN, 0)?,
        Definition::new(SEND_HEADER, Plan::new(send_header)?, SEND_HEADER_LEN, 0)?,
        Definition::new(COMPRESS, Plan::new(compress)?, TASK_LEN, 0)?,
        Definition::new(CHECKSUM, Plan::new(checksum)?, TASK_LEN, 0)?,
    ])
}

impl<L: HostEnds> Split<L> {
    /// Greets the card, and sleeps until it has answered.
    ///
    /// # Errors
    ///
    /// When the card does not welcome this host, or the port is over.
    pub fn open(ends: L, options: &PortOptions) -> Result<Self, SplitError> {
        let ledger = Ledger::new(ends.area_lens().1);
        let mut port = Port::open(ends, options)?;
        let mut granted = Vec::new();
        let mut is_welcome = false;
        // With its answer a card says how much memory it grants ahead, which follows.
        while !is_welcome || granted.len() < port.granted_memory() as usize {
            let ticket = port.register();
            match port.next_event()? {
                Some(PortEvent::Refused(code)) => return Err(SplitError::Refused(code)),
                Some(PortEvent::Welcome(_)) => is_welcome = true,
                Some(PortEvent::Memory(memory)) => granted.push(memory),
                Some(_) => {}
                None => port.sleep(ticket, None),
            }
        }
        for definition in own_plans().map_err(PostError::from)? {
            port.define(&definition)?;
        }
        port.flush()?;
        Ok(Self {
            port,
            over: None,
            next_event: 0,
            next_own: 0,
            next_plan: 1,
            done: BTreeMap::new(),
            plans: HashMap::new(),
            receives: VecDeque::new(),
            arrived: VecDeque::new(),
            channels: HashMap::new(),
            accepts: VecDeque::new(),
            accepted: VecDeque::new(),
            ledger,
            granted,
            returns: Returns::default(),
            returning: Vec::new(),
            lent: Vec::new(),
            closing: Vec::new(),
        })
    }

    /// What the card allows.
    #[must_use]
    pub const fn limits(&self) -> Option<&Welcome> {
        self.port.limits()
    }

    /// The port below: its engines, its load, its ends.
    #[must_use]
    pub const fn port(&self) -> &Port<L> {
        &self.port
    }

    /// Why the port is over, if it is.
    #[must_use]
    pub const fn over(&self) -> Option<PortError> {
        self.over
    }

    /// A piece of the host's area.
    ///
    /// # Errors
    ///
    /// When none so long is free.
    pub fn host_memory(&mut self, len: usize) -> Result<HostMemory, NoMemory> {
        self.returns.settle_places(&mut self.ledger);
        let place = self.ledger.take(len as u64).ok_or(NoMemory(len))?;
        Ok(self.returns.host_memory(place, len))
    }

    /// Fills a piece of the host's area, from its beginning on.
    ///
    /// # Errors
    ///
    /// When the bytes are more than it has, or the group is over.
    pub fn fill(&self, memory: &HostMemory, bytes: &[u8]) -> Result<(), AreaError> {
        if bytes.len() > memory.len() {
            return Err(AreaError::OutOfArea);
        }
        self.port.ends().copy_in(memory.offset(), bytes)
    }

    /// Card memory, out of what the card has granted ahead.
    ///
    /// # Errors
    ///
    /// When nothing so long was.
    pub fn card_memory(&mut self, len: u32) -> Result<CardMemory, NoMemory> {
        let memory = self.take_granted(len).or_else(|| {
            // What was dropped goes back, and is granted anew.
            self.turn();
            self.take_granted(len)
        });
        let memory = memory.ok_or(NoMemory(len as usize))?;
        Ok(self.returns.card_memory(memory.handle, memory.length))
    }

    fn take_granted(&mut self, len: u32) -> Option<Memory> {
        let fitting = self.granted.iter().enumerate().filter(|(_, memory)| memory.length >= len);
        let found = fitting.min_by_key(|(_, memory)| memory.length).map(|(at, _)| at);
        found.map(|at| self.granted.swap_remove(at))
    }

    /// Has the card listen: [`Completion::Listening`].
    ///
    /// # Errors
    ///
    /// When there are as many channels as may be.
    pub fn listen(&mut self, address: SocketAddr) -> Result<Event, PostError> {
        self.open_channel(ChannelWhat::Listen, address)
    }

    /// The next peer that connects to a listener: [`Completion::Connected`].
    pub fn accept(&mut self, listener: ChannelId) -> Event {
        let event = self.event();
        if !self.channels.contains_key(&listener) || self.over.is_some() {
            self.complete(event, Completion::Failed(SplitFailure::ChannelGone));
            return event;
        }
        self.accepts.push_back((event, listener));
        self.match_accepts();
        event
    }

    /// Connects: [`Completion::Connected`].
    ///
    /// # Errors
    ///
    /// When there are as many channels as may be.
    pub fn connect(&mut self, address: SocketAddr) -> Result<Event, PostError> {
        self.open_channel(ChannelWhat::Connect, address)
    }

    /// Connects, and sleeps until that is done.
    ///
    /// # Errors
    ///
    /// When it cannot.
    pub fn connect_and_wait(&mut self, address: SocketAddr) -> Result<ChannelId, SplitFailure> {
        let event = self.connect(address).map_err(|_| SplitFailure::ChannelGone)?;
        match self.wait(event) {
            Completion::Connected(channel) => Ok(channel),
            Completion::Failed(failure) => Err(failure),
            _ => Err(SplitFailure::ChannelGone),
        }
    }

    /// Closes a channel or a listener, and with a listener the connections that nobody has accepted. Receives that were posted for it are
    /// completed when it is gone; messages of it that nobody has awaited are given back.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn close(&mut self, channel: ChannelId) -> Result<(), PostError> {
        self.port.channel(&Channel { channel, what: ChannelWhat::Close, address: None })?;
        if let Some(waiting) = self.channels.get_mut(&channel) {
            waiting.is_nobodys = true;
        }
        Ok(())
    }

    /// Awaits a message whose payload has at most so many bytes: [`Completion::Received`]. The payload is in memory of the card's
    /// pools, which comes with the message. While nothing is posted, the card reads nothing.
    ///
    /// # Errors
    ///
    /// When as many are posted as may be, or the port is over.
    pub fn mixed_recv(&mut self, from: Incoming, payload_max: u32) -> Result<Event, PostError> {
        let waits = self.arrived.iter().any(|header| is_of(header, from));
        // What a channel has said before it was gone stays.
        if let Incoming::Of(channel) = from
            && !waits
            && self.channels.get(&channel).is_none_or(|waiting| waiting.has_ended)
        {
            return Err(PostError::Channel(channel));
        }
        // Credit of a receive whose channel is gone is still there.
        let wanted = u32::try_from(self.receives.len() + 1).unwrap_or(u32::MAX);
        let more = wanted.saturating_sub(self.port.granted());
        if !waits && self.over.is_some() {
            return Err(PostError::NotOpen);
        }
        if !waits && more > 0 {
            self.port.grant(more)?;
        }
        let event = self.event();
        self.receives.push_back(Receive { event, from, payload_max });
        self.match_receives();
        Ok(event)
    }

    /// Sends a header, and behind it bytes of card memory: [`Completion::Sent`].
    ///
    /// # Errors
    ///
    /// When a plan about that memory is under way, or there is no room.
    pub fn mixed_send(
        &mut self,
        to: ChannelId,
        header: &[u8; HEADER_LEN],
        payload: Option<CardRange>,
    ) -> Result<Event, PostError> {
        let mut arguments = [0; 8 + HEADER_LEN];
        let (front, back) = arguments.split_at_mut(8);
        back.copy_from_slice(header);
        let (plan, handle, arguments) = match payload {
            Some(range) => {
                front.copy_from_slice(&place(range));
                (SEND, range.handle, &arguments[..])
            }
            None => (SEND_HEADER, self.own_handle(), &*back),
        };
        let entry = PlanEntry { plan, argument: 0, slot: Slot(to.0), handle, arguments };
        let event = self.start(&entry, Kind::Send)?;
        if let Some(posted) = self.plans.get_mut(&handle) {
            posted.to = Some(to);
        }
        Ok(event)
    }

    /// Has the card's engine do a task: [`Completion::Engine`].
    ///
    /// # Errors
    ///
    /// When a plan about that memory is under way, or there is no room.
    pub fn engine(&mut self, task: CardTask<'_>) -> Result<Event, PostError> {
        let (plan, argument, from, word, into) = match task {
            CardTask::Compress { effort, from, into } => {
                (COMPRESS, effort.number(), from, into.handle().0, Some(into.handle()))
            }
            CardTask::Checksum { from, seed } => (CHECKSUM, 0, from, seed, None),
        };
        // What is written is nobody else's meanwhile.
        let is_busy =
            |into: &Handle| *into == from.handle || self.plans.contains_key(into) || self.lent.contains(into);
        if let Some(into) = into.filter(is_busy) {
            return Err(PostError::Busy(into));
        }
        let mut arguments = [0; TASK_LEN as usize - 8];
        let (front, back) = arguments.split_at_mut(8);
        front.copy_from_slice(&place(from));
        for (byte, value) in back.iter_mut().zip(word.to_le_bytes()) {
            *byte = value;
        }
        let entry = PlanEntry { plan, argument, slot: Slot(0), handle: from.handle, arguments: &arguments };
        let event = self.start(&entry, Kind::Engine)?;
        if let (Some(into), Some(posted)) = (into, self.plans.get_mut(&from.handle)) {
            posted.into = Some(into);
            self.lent.push(into);
        }
        Ok(event)
    }

    /// Defines a plan of the user's. An entry that posts it has `entry_len` bytes, and `each_len` more for each that it counts.
    ///
    /// # Errors
    ///
    /// When there are as many as may be, or there is no room.
    pub fn define(&mut self, plan: &Plan, entry_len: u8, each_len: u8) -> Result<PlanId, PostError> {
        if self.next_plan >= OWN_PLANS {
            return Err(PostError::TooMany);
        }
        let id = PlanId(self.next_plan);
        self.port.define(&Definition::new(id, plan.clone(), entry_len, each_len)?)?;
        self.next_plan += 1;
        Ok(id)
    }

    /// Posts a plan of the user's: [`Completion::Plan`]. Without memory it is about no message.
    ///
    /// # Errors
    ///
    /// When the card would refuse it, or there is no room.
    pub fn post(
        &mut self,
        plan: PlanId,
        memory: Option<&CardMemory>,
        argument: u8,
        slot: Slot,
        arguments: &[u8],
    ) -> Result<Event, PostError> {
        let handle = memory.map(CardMemory::handle);
        let handle = handle.unwrap_or_else(|| self.own_handle());
        self.start(&PlanEntry { plan, argument, slot, handle, arguments }, Kind::Plan)
    }

    /// Any completion: a turn of whoever has the thread.
    pub fn poll(&mut self) -> Option<(Event, Completion)> {
        self.turn();
        self.done.pop_first()
    }

    /// The completion of this, if it is there.
    pub fn take(&mut self, event: Event) -> Option<Completion> {
        self.turn();
        self.done.remove(&event)
    }

    /// The completion of this; sleeps until it is there. Of what was taken before, or never posted, it is
    /// [`SplitFailure::Closed`].
    pub fn wait(&mut self, event: Event) -> Completion {
        loop {
            let ticket = self.port.register();
            if let Some(completion) = self.take(event) {
                return completion;
            }
            if self.over.is_some() || !self.is_posted(event) {
                return Completion::Failed(SplitFailure::Closed);
            }
            // Whoever wants room and has not registered for it, registers again.
            if !self.port.wants_room() || ticket.room.is_some() {
                self.port.sleep(ticket, None);
            }
        }
    }

    /// What was posted goes into the ring, in as few messages as may be. A turn does that too.
    pub fn flush(&mut self) {
        self.settle();
        if let Err(error) = self.port.flush() {
            self.end(error);
        }
    }

    fn event(&mut self) -> Event {
        self.next_event += 1;
        Event(self.next_event)
    }

    /// A number of the host's own that no plan is under way with.
    fn own_handle(&mut self) -> Handle {
        loop {
            let handle = Handle::of_host(self.next_own);
            self.next_own = self.next_own.wrapping_add(1) & (OF_HOST - 1);
            if !self.plans.contains_key(&handle) {
                return handle;
            }
        }
    }

    fn start(&mut self, entry: &PlanEntry<'_>, kind: Kind) -> Result<Event, PostError> {
        if self.lent.contains(&entry.handle) {
            return Err(PostError::Busy(entry.handle));
        }
        self.port.post(entry)?;
        let event = self.event();
        let posted = Posted { event, kind, to: None, into: None, pieces: Vec::new(), reply: Vec::new() };
        self.plans.insert(entry.handle, posted);
        Ok(event)
    }

    fn open_channel(&mut self, what: ChannelWhat, address: SocketAddr) -> Result<Event, PostError> {
        let channel = self.port.free_channel().ok_or(PostError::TooMany)?;
        self.port.channel(&Channel { channel, what, address: Some(address) })?;
        let event = self.event();
        self.channels.insert(channel, Waiting::new(Some(event), false));
        Ok(event)
    }

    fn is_posted(&self, event: Event) -> bool {
        self.plans.values().any(|posted| posted.event == event)
            || self.receives.iter().any(|receive| receive.event == event)
            || self.accepts.iter().any(|(accept, _)| *accept == event)
            || self.channels.values().any(|waiting| waiting.event == Some(event))
    }

    fn complete(&mut self, event: Event, completion: Completion) {
        self.done.insert(event, completion);
    }

    /// Says what is to be said, and takes all that has come.
    fn turn(&mut self) {
        self.flush();
        if self.over.is_some() {
            return;
        }
        loop {
            match self.port.next_event() {
                Ok(None) => break,
                Ok(Some(PortEvent::Done(Done { completion, reply }))) => {
                    let reply = reply.unwrap_or_default();
                    let Some(posted) = self.plans.get_mut(&completion.handle) else { continue };
                    // No plan has more; of a card that says so the last counts.
                    posted.pieces.truncate(PIECES_MAX - 1);
                    posted.pieces.push(completion);
                    posted.reply.clear();
                    posted.reply.extend_from_slice(reply);
                    if !completion.has_more {
                        self.plan_is_over(completion.handle);
                    }
                }
                Ok(Some(PortEvent::Header(header))) => {
                    self.arrived.push_back(header);
                    self.match_receives();
                }
                Ok(Some(PortEvent::Channel(is))) => self.channel_is(&is),
                Ok(Some(PortEvent::Memory(memory))) => self.granted.push(memory),
                // Chunks and gates are for services that have them, which use the port itself.
                Ok(Some(_)) => {}
                Err(error) => {
                    self.end(error);
                    break;
                }
            }
        }
        self.flush();
    }

    fn plan_is_over(&mut self, handle: Handle) {
        let Some(Posted { event, kind, to, into, pieces, reply }) = self.plans.remove(&handle) else {
            return;
        };
        // A card says that a channel is gone before it says what has failed of it.
        let is_gone = to.is_some_and(|channel| !self.channels.contains_key(&channel));
        self.lent.retain(|lent| Some(*lent) != into);
        let failed = pieces.iter().map(|piece| piece.status).find(|status| *status != CompletionStatus::Good);
        let completion = match (failed, kind) {
            (None, Kind::Send) => Completion::Sent,
            (None, Kind::Engine) => Completion::Engine(pieces.last().map_or(0, |piece| piece.word)),
            (None, Kind::Plan) => Completion::Plan { pieces, reply },
            (Some(CompletionStatus::Engine), _) => Completion::Failed(SplitFailure::Engine),
            (Some(CompletionStatus::NoMember | CompletionStatus::GivenUp), Kind::Send) => {
                Completion::Failed(SplitFailure::ChannelGone)
            }
            (Some(_), Kind::Send) if is_gone => Completion::Failed(SplitFailure::ChannelGone),
            (Some(status), _) => Completion::Failed(SplitFailure::Plan(status)),
        };
        self.complete(event, completion);
    }

    fn channel_is(&mut self, is: &ChannelIs) {
        let channel = is.channel;
        match is.state {
            ChannelState::Up | ChannelState::Listening => {
                let Some(event) = self.channels.get_mut(&channel).and_then(|waiting| waiting.event.take())
                else {
                    return;
                };
                let completion = if is.state == ChannelState::Up {
                    Completion::Connected(channel)
                } else {
                    Completion::Listening { listener: channel, port: is.port }
                };
                self.complete(event, completion);
            }
            ChannelState::Accepted => {
                self.channels.insert(channel, Waiting::new(None, true));
                self.accepted.push_back((channel, is.listener));
                self.match_accepts();
            }
            ChannelState::Ended => {
                if let Some(waiting) = self.channels.get_mut(&channel) {
                    waiting.has_ended = true;
                }
                self.nothing_more_comes(channel);
            }
            ChannelState::Gone | ChannelState::Refused => self.channel_is_gone(channel),
        }
    }

    /// Receives of a channel that says no more are completed. Messages of it that came before were matched before.
    fn nothing_more_comes(&mut self, channel: ChannelId) {
        while let Some(at) = self.receives.iter().position(|receive| receive.from == Incoming::Of(channel)) {
            let Some(receive) = self.receives.remove(at) else { break };
            self.complete(receive.event, Completion::Failed(SplitFailure::ChannelGone));
        }
    }

    /// Everything of it is completed. Messages of it that came before stay, if anybody knows of it who could ask for them.
    fn channel_is_gone(&mut self, channel: ChannelId) {
        let mut gone: Vec<Event> = Vec::new();
        let waiting = self.channels.remove(&channel);
        gone.extend(waiting.and_then(|waiting| waiting.event));
        if waiting.is_some_and(|waiting| waiting.is_nobodys) {
            self.give_back_arrived(channel);
        }
        self.closing.extend((channel.0 >= ACCEPTED_FROM).then_some(channel));
        let closing = &mut self.closing;
        self.accepted.retain(|(accepted, listener)| {
            // Nobody can ask for it any more.
            closing.extend(Some(*accepted).filter(|_| *listener == channel));
            *accepted != channel && *listener != channel
        });
        self.accepts.retain(|(event, listener)| {
            gone.extend(Some(*event).filter(|_| *listener == channel));
            *listener != channel
        });
        for event in gone {
            self.complete(event, Completion::Failed(SplitFailure::ChannelGone));
        }
        self.nothing_more_comes(channel);
    }

    /// Messages of a channel for which nobody will ask.
    fn give_back_arrived(&mut self, channel: ChannelId) {
        let returning = &mut self.returning;
        self.arrived.retain(|header| {
            let is_of_it = is_of(header, Incoming::Of(channel));
            returning.extend(Some(header.descriptor().handle).filter(|_| is_of_it));
            !is_of_it
        });
    }

    fn match_accepts(&mut self) {
        let mut at = 0;
        while let Some((event, listener)) = self.accepts.get(at).copied() {
            let found = self.accepted.iter().position(|(_, of)| *of == listener);
            match found.and_then(|found| self.accepted.remove(found)) {
                None => at += 1,
                Some((channel, _)) => {
                    self.accepts.remove(at);
                    if let Some(waiting) = self.channels.get_mut(&channel) {
                        waiting.is_nobodys = false;
                    }
                    self.complete(event, Completion::Connected(channel));
                }
            }
        }
    }

    /// Gives messages to who awaits them, in the order in which they were posted. A message that nobody awaits has used another's
    /// credit: who still waits gets new.
    fn match_receives(&mut self) {
        let mut at = 0;
        while let Some(receive) = self.receives.get(at).copied() {
            let found = self.arrived.iter().position(|header| is_of(header, receive.from));
            match found.and_then(|found| self.arrived.remove(found)) {
                None => at += 1,
                Some(header) => {
                    self.receives.remove(at);
                    self.received(&receive, &header);
                }
            }
        }
        let wanted = u32::try_from(self.receives.len()).unwrap_or(u32::MAX);
        // What cannot be granted now is, when the next one is posted.
        let _ = self.port.grant(wanted.saturating_sub(self.port.granted()));
    }

    fn received(&mut self, receive: &Receive, header: &HeaderEntry) {
        let descriptor = header.descriptor();
        let (len, payload) =
            (descriptor.length, self.returns.card_memory(descriptor.handle, descriptor.length));
        let (from, mut header) = (descriptor.front, *header.bytes());
        if let Some(place) = header.get_mut(DESCRIPTOR_AT..DESCRIPTOR_AT + DESCRIPTOR_LEN) {
            place.fill(0);
        }
        let completion = if len > receive.payload_max {
            Completion::Failed(SplitFailure::Oversize { from, header, len })
        } else {
            Completion::Received { from, header, payload, len }
        };
        self.complete(receive.event, completion);
    }

    /// Gives back what was dropped and no plan is about.
    fn settle(&mut self) {
        self.returns.settle_places(&mut self.ledger);
        self.returns.take_handles(&mut self.returning);
        let (port, lent) = (&mut self.port, &self.lent);
        self.closing.retain(|channel| {
            let closed =
                port.channel(&Channel { channel: *channel, what: ChannelWhat::Close, address: None });
            matches!(closed, Err(PostError::Full))
        });
        self.returning.retain(|handle| {
            if lent.contains(handle) {
                return true;
            }
            let given_back = port.give_back(*handle);
            matches!(given_back, Err(PostError::Busy(_) | PostError::Full))
        });
    }

    fn end(&mut self, error: PortError) {
        if self.over.is_some() {
            return;
        }
        self.over = Some(error);
        let plans = self.plans.drain().map(|(_, posted)| posted.event);
        let receives = self.receives.drain(..).map(|receive| receive.event);
        let accepts = self.accepts.drain(..).map(|(event, _)| event);
        let channels = self.channels.drain().filter_map(|(_, waiting)| waiting.event);
        for event in plans.chain(receives).chain(accepts).chain(channels).collect::<Vec<_>>() {
            self.complete(event, Completion::Failed(SplitFailure::Closed));
        }
    }
}

fn is_of(header: &HeaderEntry, from: Incoming) -> bool {
    match from {
        Incoming::Any => true,
        Incoming::Of(channel) => header.descriptor().front == u32::from(channel.0),
    }
}
