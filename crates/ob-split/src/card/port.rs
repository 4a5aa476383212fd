//! A port without its sockets: messages, plans and channels, and what they ask of each other.

use std::collections::VecDeque;
use std::io::IoSlice;

use ob_core::{ConnectionAction, ConnectionId, GateId, IdMap, Instant, StreamProtocol};
use ob_memory::Slice;
use ob_ring::Bulk;

use super::channel::{Awaiter, ChannelKey, Garbage, Wires};
use super::config::PortConfig;
use super::dialect::{Dialect, Reject};
use super::flight::{FlightKey, Flights};
use super::front::{Arrived, Front, FrontAnswer};
use super::gate::Gate;
use super::listen::Listeners;
use super::memory::CardMemory;
use super::messages::{Messages, Owner};
use super::outbox::{Answer, Bytes, Outbox};
use super::records::RecordMemory;
use super::slots::Slots;
use crate::engine::Engines;
use crate::plant::{Bug, is_planted};
use crate::wire::{
    Channel, ChannelId, ChannelIs, ChannelState, ChannelWhat, Definitions, FromHost, Hello, HostMessage,
    MessageError, Noted, PlanEntries, PlanId, RefusedCode, Welcome,
};

/// Bytes that a turn copies, or has engines in software do.
const BYTES_A_TURN: usize = 1 << 20;
/// Steps that a turn does.
const STEPS_A_TURN: usize = 4096;
/// How often in a turn steps are done, and what engines have done of them is looked at.
const ROUNDS_A_TURN: usize = 3;
/// Messages that a turn takes from the front.
const MESSAGES_A_TURN: usize = 256;

/// Why the host's group is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Hostile {
    /// It is no message.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// It says something before `HELLO`, or `HELLO` again.
    #[error("a host says HELLO, once and first")]
    Order,
    /// It grants more receives than it may have handles, or takes some back.
    #[error("it grants more than it may")]
    Credit,
    /// It names a message that is not there, or was answered.
    #[error("no message has the handle {0}")]
    Handle(u32),
    /// It says more and more, and does not hear what becomes of it.
    #[error("it does not hear what becomes of what it says")]
    Unheard,
    /// It posts a plan of a handle that another is under way with.
    #[error("a plan of the handle {0} is under way already")]
    Busy(u32),
    /// Its gate was closed at another port.
    #[error("its gate is closed: another port of it is over")]
    GateOver,
    /// It posts more than it may.
    #[error("it posts more plans than may be under way")]
    Plans,
    /// Its plan's arguments cannot be.
    #[error("the arguments of a plan cannot be")]
    Arguments,
    /// It names a slot that is not set, or sets one that is in use, or that there is not.
    #[error("slot {0} cannot be used so")]
    Slot(u16),
    /// It names a channel that is not there, or is in use, or is one too many.
    #[error("channel {0} cannot be used so")]
    Channel(u16),
}

/// What the port has done in a turn, and may do.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Budget {
    pub(super) steps: usize,
    pub(super) bytes: usize,
}

/// All of a port but its sockets.
pub(super) struct Port<F, D, E> {
    pub(super) config: PortConfig,
    pub(super) now: Instant,
    pub(super) front: F,
    pub(super) dialect: D,
    pub(super) engines: E,
    pub(super) memory: CardMemory,
    pub(super) records: RecordMemory,
    pub(super) messages: Messages,
    pub(super) flights: Flights,
    pub(super) wires: Wires,
    pub(super) slots: Slots,
    pub(super) gate: Gate,
    /// What the clock shows that leases are counted on, if it is another.
    pub(super) lease_now: Option<Instant>,
    pub(super) outbox: Outbox,
    pub(super) definitions: Definitions,
    /// Numbers of the host's own that plans are under way with.
    pub(super) own: IdMap<u32, ()>,
    /// Pieces that can go on.
    pub(super) ready: VecDeque<(FlightKey, u16)>,
    /// Plans that wait for memory, in one line.
    pub(super) line: VecDeque<FlightKey>,
    /// Pieces that wait for an engine.
    pub(super) engine_line: VecDeque<(FlightKey, u16)>,
    /// Pieces that wait for memory to decompress into.
    pub(super) scratch_line: VecDeque<(FlightKey, u16)>,
    /// Pieces that wait for memory for a record.
    pub(super) record_line: VecDeque<(FlightKey, u16)>,
    /// Pieces that wait until less is under way to their chunks, and whether something has come to its end since they were looked at.
    pub(super) room_line: VecDeque<(FlightKey, u16)>,
    pub(super) has_ended: bool,
    /// What the link is to move.
    pub(super) transfers: VecDeque<(FlightKey, u16, Bulk)>,
    /// Tasks that engines have.
    pub(super) tasks: usize,
    /// When an engine that has tasks is to be asked again.
    pub(super) engines_due: Option<Instant>,
    /// What had come back when the first of the line asked last.
    pub(super) returned: u64,
    pub(super) budget: Budget,
    /// Channels that are to be connected.
    pub(super) connects: VecDeque<ChannelKey>,
    pub(super) listeners: Listeners,
    /// Peers that are gone, and of which the host has yet to be told something.
    pub(super) leaving: Vec<ChannelKey>,
    failed: Vec<(Awaiter, Option<Slice>)>,
    /// The host's group is there, and it was welcomed.
    pub(super) is_open: bool,
    pub(super) is_welcome: bool,
    pub(super) hostile: Option<Hostile>,
    /// Whoever has the port waits until it knows what its host serves: it is told of no message.
    pub(super) is_held_back: bool,
    /// While there is no host: when it is to be looked for messages that nobody else answers.
    pub(super) left_at: Option<Instant>,
    /// Receives that were granted since the beginning, and messages of which the host was told, modulo 2³².
    granted: u32,
    pub(super) used: u32,
    /// Bytes that have crossed for plans of each number: their entries, what they have moved, and their completions.
    pub(super) crossed: Box<[u64; 256]>,
}

impl<F: Front, D: Dialect, E: Engines> Port<F, D, E> {
    pub(super) fn new(config: PortConfig, front: F, dialect: D, engines: E) -> Self {
        Self {
            now: Instant::default(),
            memory: CardMemory::new(&config),
            records: RecordMemory::new(&config),
            messages: Messages::new(config.handles_max),
            flights: Flights::new(config.plans_max),
            wires: Wires::new(&config, dialect.magic()),
            slots: Slots::new(config.slots_max),
            gate: Gate::default(),
            lease_now: None,
            outbox: Outbox::default(),
            definitions: Definitions::new(),
            own: IdMap::with_capacity_and_hasher(config.plans_max as usize, Default::default()),
            ready: VecDeque::new(),
            line: VecDeque::new(),
            engine_line: VecDeque::new(),
            scratch_line: VecDeque::new(),
            record_line: VecDeque::new(),
            room_line: VecDeque::new(),
            has_ended: false,
            transfers: VecDeque::new(),
            tasks: 0,
            engines_due: None,
            returned: 0,
            budget: Budget::default(),
            connects: VecDeque::new(),
            listeners: Listeners::default(),
            leaving: Vec::new(),
            failed: Vec::new(),
            is_open: false,
            is_welcome: false,
            hostile: None,
            is_held_back: false,
            left_at: None,
            granted: 0,
            used: 0,
            crossed: Box::new([0; 256]),
            config,
            front,
            dialect,
            engines,
        }
    }

    /// A turn begins: work may be done again.
    pub(super) fn begin_turn(&mut self, now: Instant) {
        self.now = now;
        self.budget = Budget { steps: STEPS_A_TURN, bytes: BYTES_A_TURN };
    }

    /// Front, waits that have been too long, memory, engines, steps; whether anything moved.
    pub(super) fn turn(&mut self) -> bool {
        let mut moved = self.expire();
        moved |= self.end_left();
        moved |= self.take_messages();
        moved |= self.answer_left();
        moved | self.work()
    }

    /// What a host has left behind is answered here, if nobody waits for it any more, or has waited for as long as one may.
    fn answer_left(&mut self) -> bool {
        if self.is_welcome || self.left_at.is_none_or(|at| self.now < at) {
            return false;
        }
        let (front, mut moved) = (&mut self.front, false);
        self.left_at = self.messages.leave(self.now, self.config.hold, |owner| {
            // Nothing else stays without a host.
            if let Owner::Front(key) = owner {
                front.answer(key, FrontAnswer::Nobody);
            }
            moved = true;
        });
        moved
    }

    /// Does steps of plans, and what they ask of engines, as much as the turn has left.
    pub(super) fn work(&mut self) -> bool {
        let mut moved = false;
        for _ in 0..ROUNDS_A_TURN {
            moved |= self.take_memory();
            moved |= self.take_record_room();
            moved |= self.take_room();
            moved |= self.run_ready();
            moved |= self.poll_engines();
        }
        self.note_engines_due();
        moved
    }

    fn take_messages(&mut self) -> bool {
        let mut moved = false;
        while let Some(key) = self.front.gone() {
            moved = true;
            if let Some(held) = self.messages.find(key) {
                held.is_gone = true;
                self.left_at = Some(self.now);
            }
        }
        for _ in 0..MESSAGES_A_TURN {
            let is_awaited = self.messages.untold() < self.room() as usize || is_planted(Bug::ReadUnawaited);
            let may_take = is_awaited && self.messages.has_room();
            let Some((owner, arrived)) = (if may_take { self.next_message() } else { None }) else { break };
            // There was room for it.
            if self.messages.insert(owner, arrived).is_some()
                && let Owner::Peer(key) = owner
            {
                self.wires.held(key);
            }
            moved = true;
        }
        moved
    }

    /// What peers of our own ask goes first: there is one of each.
    fn next_message(&mut self) -> Option<(Owner, Arrived)> {
        if let Some(message) = self.next_request() {
            return Some(message);
        }
        let arrived = self.front.next(self.now)?;
        Some((Owner::Front(arrived.key), arrived))
    }

    /// When it is, for the gate.
    pub(super) fn lease_now(&self) -> Instant {
        self.lease_now.unwrap_or(self.now)
    }

    /// Takes a message of the host.
    pub(super) fn told(&mut self, bytes: &[u8]) -> Result<(), Hostile> {
        let definitions = std::mem::take(&mut self.definitions);
        let result = match FromHost::decode(bytes, &definitions) {
            Ok(message) => self.do_as_told(message),
            Err(MessageError::Version(_)) if !self.is_welcome => {
                self.outbox.refused = Some(RefusedCode::Version);
                Ok(None)
            }
            Err(error) => Err(error.into()),
        };
        self.definitions = definitions;
        if let Some(definition) = result? {
            self.definitions.define(definition).map_err(MessageError::from)?;
        }
        if self.outbox.is_unheard(self.config.slots_max) {
            return Err(Hostile::Unheard);
        }
        self.hostile.take().map_or(Ok(()), Err)
    }

    fn do_as_told(&mut self, message: FromHost<'_>) -> Result<Option<crate::wire::Definition>, Hostile> {
        if let HostMessage::Hello(hello) = &message.message {
            self.greet(hello)?;
        } else if !self.is_welcome {
            return Err(Hostile::Order);
        }
        self.grant(message.credit)?;
        match message.message {
            HostMessage::Hello(_) => {}
            HostMessage::Plans(plans) => self.post_all(&plans)?,
            HostMessage::Define(definition) => return Ok(Some(definition)),
            HostMessage::Channel(channels) => {
                channels.iter().try_for_each(|channel| self.channel(&channel))?;
            }
            HostMessage::Set(sets) => sets.iter().try_for_each(|set| self.set(&set))?,
            HostMessage::Gate(gates) => {
                let now = self.lease_now();
                let noted = gates.iter().filter_map(|gate| self.gate.told(now, gate));
                self.outbox.noted.extend(noted.map(|number| Noted { number }));
            }
            HostMessage::Memory(pieces) => {
                pieces.iter().try_for_each(|memory| self.given_back(&memory))?;
            }
        }
        Ok(None)
    }

    fn greet(&mut self, hello: &Hello) -> Result<(), Hostile> {
        if self.is_welcome {
            return Err(Hostile::Order);
        }
        let gate = match hello.gate {
            // Another port has given it.
            Some(gate) if self.gate.join(gate) => gate,
            Some(_) => {
                self.outbox.refused = Some(RefusedCode::GateClosed);
                return Ok(());
            }
            None => self.gate.open(self.config.incarnation),
        };
        self.is_welcome = true;
        self.grant_ahead();
        self.outbox.welcome = Some((self.welcome(gate), self.engines.list().to_vec()));
        Ok(())
    }

    fn welcome(&self, gate: GateId) -> Welcome {
        let config = &self.config;
        Welcome {
            engines: 0,
            payload_max: config.payload_max,
            gate,
            handles_max: config.handles_max,
            plans_max: config.plans_max,
            parked: self.messages.untold() as u32,
            channels_max: config.channels_max,
            tier: config.tier,
            lock: config.lock,
        }
    }

    fn grant(&mut self, credit: u32) -> Result<(), Hostile> {
        let more = credit.wrapping_sub(self.granted);
        if !self.is_welcome {
            return Ok(());
        }
        // What is granted and not used is at most what it may have.
        if more > u32::MAX / 2 || credit.wrapping_sub(self.used) > self.config.handles_max {
            return Err(Hostile::Credit);
        }
        self.granted = credit;
        Ok(())
    }

    /// How many messages the host may be told of.
    pub(super) fn room(&self) -> u32 {
        if self.is_welcome && !self.is_held_back { self.granted.wrapping_sub(self.used) } else { 0 }
    }

    /// When the host is to be told of messages, if there are some of which it may be.
    pub(super) fn tell_at(&self) -> Option<Instant> {
        if self.room() == 0 {
            return None;
        }
        self.messages.tell_at(self.config.gather)
    }

    /// How many messages the host is to be told of now.
    pub(super) fn to_tell(&self) -> u32 {
        if self.tell_at().is_some_and(|at| at <= self.now) { self.room() } else { 0 }
    }

    fn post_all(&mut self, plans: &PlanEntries<'_>) -> Result<(), Hostile> {
        plans.iter().try_for_each(|(entry, definition)| self.post(&entry, definition))
    }

    fn channel(&mut self, channel: &Channel) -> Result<(), Hostile> {
        let number = channel.channel;
        let wrong = Hostile::Channel(number.0);
        match (channel.what, channel.address) {
            (ChannelWhat::Connect, Some(address)) => {
                if self.listeners.has(number) {
                    return Err(wrong);
                }
                self.listeners.forget(number);
                let key = self.wires.insert(number, address, self.listeners.len()).ok_or(wrong)?;
                self.connects.push_back(key);
                Ok(())
            }
            (ChannelWhat::Listen, Some(address)) => self.listen(number, address).ok_or(wrong),
            (ChannelWhat::Close, _) if self.listeners.has(number) => {
                self.end_listener(number, ChannelState::Gone);
                Ok(())
            }
            (ChannelWhat::Close, _) if self.listeners.forget(number) => Ok(()),
            (ChannelWhat::Close, _) => {
                if !self.wires.has(number) {
                    return Err(wrong);
                }
                self.end_channel(number, ChannelState::Gone);
                self.wires.forget(number);
                Ok(())
            }
            (ChannelWhat::Connect | ChannelWhat::Listen, None) => Err(wrong),
        }
    }

    fn set(&mut self, set: &crate::wire::Set) -> Result<(), Hostile> {
        let wrong = Hostile::Slot(set.slot.0);
        let named = set.channels.get(..usize::from(set.members)).unwrap_or_default();
        if let Some(unknown) = named.iter().find(|channel| !self.wires.has(**channel)) {
            return Err(Hostile::Channel(unknown.0));
        }
        if !self.slots.set(set) {
            return Err(wrong);
        }
        self.has_ended = true;
        match self.dialect.set(set) {
            Ok(()) => Ok(()),
            Err(Reject::Hostile | Reject::Ends(_)) => Err(wrong),
        }
    }

    /// A channel could not be made, or is over: whoever awaits something of it is told.
    pub(super) fn end_channel(&mut self, channel: ChannelId, state: ChannelState) {
        let Some(key) = self.wires.key_of(channel) else { return };
        let mut failed = std::mem::take(&mut self.failed);
        if self.wires.end(key, &mut failed).is_some() && self.is_open {
            let gone = ChannelIs {
                channel,
                state,
                port: 0,
                listener: ChannelId(0),
                incarnation: ob_core::Incarnation(0),
            };
            self.outbox.channels.push_back(gone);
            self.dialect.channel_gone(channel);
            self.has_ended = true;
        }
        self.failed = failed;
        self.fail_awaiters();
    }

    fn fail_awaiters(&mut self) {
        let mut failed = std::mem::take(&mut self.failed);
        self.has_ended |= !failed.is_empty();
        for (awaiter, memory) in failed.drain(..) {
            self.not_replied(awaiter, memory);
        }
        self.failed = failed;
        self.tell_broken();
    }

    /// Chunks whose writers have stopped.
    pub(super) fn tell_broken(&mut self) {
        while let Some(broken) = self.dialect.next_broken() {
            self.outbox.broken.extend(Some(broken).filter(|_| self.is_open));
        }
    }

    fn expire(&mut self) -> bool {
        let mut failed = std::mem::take(&mut self.failed);
        let mut mute = Vec::new();
        self.wires.expire(self.now, &mut failed, &mut mute);
        let moved = !failed.is_empty();
        self.failed = failed;
        self.fail_awaiters();
        for key in mute {
            tracing::warn!(channel = key.channel.0, "a channel is ended: its peer answers nothing any more");
            self.part(key, ChannelState::Gone);
        }
        moved
    }

    /// Answers what may be answered: completions are delivered so far.
    pub(super) fn answer(&mut self, delivered: u64) -> bool {
        let mut moved = false;
        // A gate that is late keeps answers until it is extended, or its group ends; but for those that refuse.
        let (is_open, is_there) = (self.gate.is_open(self.lease_now()), self.gate.is_there());
        let may_leave = |answer: &Answer| is_open || (is_there && answer.is_refusal());
        while let Some(Answer { handle, status, with }) = self.outbox.next_answer(delivered, may_leave) {
            moved = true;
            let Some(held) = self.messages.remove(handle) else { continue };
            if let Owner::Peer(key) = held.owner {
                self.wires.let_go(key);
                self.answer_peer(key, &held.header, status, with);
                continue;
            }
            let answer = match with {
                Some(Bytes::Own(slice)) => FrontAnswer::Data(slice),
                Some(Bytes::Shared(shared)) => FrontAnswer::Shared(shared),
                None => FrontAnswer::Status(status),
            };
            // No plan answers memory.
            if let Owner::Front(key) = held.owner {
                self.front.answer(key, answer);
            }
        }
        moved
    }

    /// The host's group has ended: plans under way end, nobody is answered, and what has come stays.
    pub(super) fn close(&mut self) {
        self.gate.close();
        (self.is_open, self.is_welcome) = (false, false);
        (self.granted, self.used, self.hostile) = (0, 0, None);
        for key in self.flights.keys() {
            if let Some(flight) = self.flights.get_mut(key) {
                flight.is_orphan = true;
            }
        }
        self.dialect.ended();
        for key in self.wires.keys() {
            self.end_channel(key.channel, ChannelState::Gone);
            self.wires.forget(key.channel);
        }
        self.connects.clear();
        self.listeners.end();
        self.leaving.clear();
        self.end_orphans();
        self.park_answers();
        self.outbox.clear();
        self.forget_over();
        self.slots.clear();
        // The next host may mean something else by the same names.
        self.records.clear();
        self.own.clear();
        self.definitions = Definitions::new();
        self.messages.park();
        self.left_at = Some(self.now);
    }

    /// Answers that were not given: their memory goes back to their messages.
    fn park_answers(&mut self) {
        for Answer { handle, with, .. } in self.outbox.take_answers() {
            if let (Some(held), Some(Bytes::Own(slice))) = (self.messages.get_mut(handle), with) {
                held.answer = Some(slice);
            }
        }
    }

    /// Plans of which the ring has the completions are under way no more.
    pub(super) fn forget_over(&mut self) {
        for key in self.outbox.over.drain(..) {
            self.flights.forget(key);
        }
    }

    /// Bytes go over the link for plans of this number.
    pub(super) fn cross(&mut self, plan: PlanId, bytes: usize) {
        if let Some(crossed) = self.crossed.get_mut(usize::from(plan.0)) {
            *crossed += bytes as u64;
        }
    }

    pub(super) fn has_work(&self) -> bool {
        let has_ended = self.leaving.iter().any(|key| self.is_to_leave(*key));
        let has_begun = !self.connects.is_empty() || self.listeners.has_wanted();
        // What is sent gives memory back, for which others may wait.
        let has_memory = (!self.line.is_empty() && self.memory.returned() != self.returned)
            || (!self.record_line.is_empty() && self.records.has_returned());
        has_ended || has_begun || has_memory || !self.ready.is_empty() || self.wires.has_work()
    }

    /// Takes what a peer has said that is there, whole.
    pub(super) fn take_input(&mut self, key: ChannelKey) {
        loop {
            match self.wires.next_reply(self.now, key) {
                Ok(Some(reply)) => self.replied(key, reply),
                Ok(None) => break,
                Err(why) => {
                    self.garbage(key, why);
                    break;
                }
            }
        }
        self.tell_broken();
    }

    fn garbage(&mut self, key: ChannelKey, why: Garbage) {
        tracing::warn!(channel = key.channel.0, "a channel is ended: {why}");
        self.part(key, ChannelState::Gone);
    }
}

impl<F: Front, D: Dialect, E: Engines> StreamProtocol for Port<F, D, E> {
    type Key = ChannelKey;
    type Now = Instant;

    fn receive_into(&mut self, key: ChannelKey) -> Option<[&mut [u8]; 2]> {
        self.wires.receive_into(key)
    }

    fn received(&mut self, _: Instant, key: ChannelKey, count: usize) {
        self.wires.received(self.now, key, count);
        self.take_input(key);
    }

    fn ended(&mut self, now: Instant, key: ChannelKey) {
        // Who has connected here may have said all that it asks.
        if self.wires.has_said_all(key) {
            self.leaving.push(key);
        } else {
            self.broken(now, key);
        }
    }

    fn broken(&mut self, _: Instant, key: ChannelKey) {
        if self.wires.address(key).is_some() {
            let state =
                if self.wires.is_up(key.channel) { ChannelState::Gone } else { ChannelState::Refused };
            self.part(key, state);
        }
    }

    fn connected(&mut self, _: Instant, key: ChannelKey) {
        if let Some(port) = self.wires.connected(key) {
            self.outbox.channels.push_back(ChannelIs {
                channel: key.channel,
                state: ChannelState::Up,
                port,
                listener: ChannelId(0),
                incarnation: ob_core::Incarnation(0),
            });
        }
    }

    fn writable(&mut self, key: ChannelKey) {
        self.wires.writable(key);
    }

    fn next_dirty(&mut self) -> Option<(ChannelKey, ConnectionId)> {
        self.wires.next_dirty()
    }

    fn transmit<'a>(&'a self, key: ChannelKey, into: &mut [IoSlice<'a>]) -> usize {
        self.wires.transmit(key, into)
    }

    fn sent(&mut self, _: Instant, key: ChannelKey, count: usize, offered: usize) -> bool {
        let has_more = self.wires.sent(self.now, key, count, offered);
        while let Some(awaiter) = self.wires.next_delivered() {
            self.delivered(awaiter);
        }
        has_more
    }

    fn next_action(&mut self) -> Option<ConnectionAction> {
        self.wires.next_action()
    }
}
