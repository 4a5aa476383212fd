//! Connections, sessions, and answers on their way to them.

use std::collections::{BTreeMap, VecDeque};

use ob_core::{ConnectionAction, ConnectionId, Instant, PoolId, TierId};

use super::config::{ChunkServerConfig, ChunkServerCounts};
use super::connection::{Connection, ConnectionKey, Payload};
use super::memory::Class;
use crate::wire::{Answer, HEADER_LEN, Refusal, Reply, ReplyMessage};

/// How often connections are looked at while any of them has a time to keep.
const SWEEP: std::time::Duration = std::time::Duration::from_millis(500);

/// Who gets an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplyTo {
    pub(super) connection: ConnectionKey,
    pub(super) tag: u64,
    pub(super) kind: u8,
    /// Bytes of the request's payload, which count until it is answered.
    pub(super) payload_len: u32,
    pub(super) share: Share,
}

/// What a request takes of what all connections share.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Share {
    /// Bytes that its answer may have, but for what is read.
    pub(super) answer: u32,
    /// Which buffer its answer is read into.
    pub(super) read: Option<Class>,
    /// Its payload came into one of the longer buffers.
    pub(super) is_long: bool,
}

#[derive(Default)]
struct Slot {
    generation: u32,
    connection: Option<Box<Connection>>,
}

/// The last connection of a tier's port.
#[derive(Clone, Copy)]
struct Session {
    number: u64,
    connection: ConnectionKey,
    /// Grows with each session that begins.
    age: u64,
}

/// All connections.
#[derive(Default)]
pub(super) struct Peers {
    slots: Vec<Slot>,
    free: Vec<u32>,
    open: usize,
    sessions: BTreeMap<(TierId, u32), Session>,
    dirty: VecDeque<ConnectionKey>,
    actions: VecDeque<ConnectionAction>,
    /// Connections that wait for memory of each class, in the order in which they began to.
    pub(super) starving: [VecDeque<ConnectionKey>; 2],
    age: u64,
    /// Connections that are over.
    over: usize,
    sweep_at: Option<Instant>,
    pub(super) counts: ChunkServerCounts,
}

impl Peers {
    pub(super) fn accept(&mut self, now: Instant, net: ConnectionId, most: usize) -> Option<ConnectionKey> {
        // Those that are being finished count as well, up to as many again.
        if self.open >= most || self.slots.len() - self.free.len() >= 2 * most {
            return None;
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.slots.push(Slot::default());
                self.slots.len() as u32 - 1
            }
        };
        let slot = self.slots.get_mut(index as usize)?;
        slot.connection = Some(Box::new(Connection::new(now, net)));
        let generation = slot.generation;
        self.open += 1;
        self.arm(now);
        Some(ConnectionKey { index, generation })
    }

    pub(super) fn get(&self, key: ConnectionKey) -> Option<&Connection> {
        let slot = self.slots.get(key.index as usize)?;
        slot.connection.as_deref().filter(|_| slot.generation == key.generation)
    }

    pub(super) fn get_mut(&mut self, key: ConnectionKey) -> Option<&mut Connection> {
        let slot = self.slots.get_mut(key.index as usize)?;
        slot.connection.as_deref_mut().filter(|_| slot.generation == key.generation)
    }

    pub(super) fn open(&self) -> usize {
        self.open
    }

    fn keys(&self) -> Vec<ConnectionKey> {
        let slots = self.slots.iter().enumerate().filter(|(_, slot)| slot.connection.is_some());
        slots
            .map(|(index, slot)| ConnectionKey { index: index as u32, generation: slot.generation })
            .collect()
    }

    /// Whether requests of a connection may still be executed.
    pub(super) fn is_alive(&self, key: ConnectionKey) -> bool {
        self.get(key).is_some_and(|connection| !connection.is_ended)
    }

    /// Counts a request that is to be answered.
    pub(super) fn begin(&mut self, to: ReplyTo) {
        if let Some(connection) = self.get_mut(to.connection) {
            connection.begin(&to);
        }
    }

    /// Whether one more request is within what the other side may send.
    pub(super) fn may_begin(&self, key: ConnectionKey, payload_len: u32) -> bool {
        self.get(key).is_some_and(|connection| connection.may_begin(payload_len))
    }

    /// A request is over, answered or not.
    fn finish(&mut self, to: ReplyTo, is_buffer_kept: bool) {
        let Some(connection) = self.get_mut(to.connection) else { return };
        let is_last = connection.finish(&to, is_buffer_kept);
        if connection.is_ended && is_last {
            self.free_slot(to.connection);
        }
    }

    /// A request is not executed, and nobody is told.
    pub(super) fn drop_request(&mut self, to: ReplyTo) {
        self.finish(to, false);
    }

    /// Answers that something was done.
    pub(super) fn answer(&mut self, now: Instant, to: ReplyTo, reply: Reply, payload: Payload) {
        self.counts.requests += 1;
        let class = to.share.read.filter(|_| matches!(payload, Payload::Slice(_)));
        self.push(now, to.connection, to.tag, Answer::Good(reply), (payload, class));
        self.finish(to, class.is_some());
    }

    /// Answers that it was not.
    pub(super) fn refuse(&mut self, now: Instant, to: ReplyTo, refusal: Refusal) {
        self.refuse_at_once(now, to.connection, (to.kind, to.tag), refusal);
        self.finish(to, false);
    }

    /// The same, of a request that was not counted.
    pub(super) fn refuse_at_once(
        &mut self,
        now: Instant,
        key: ConnectionKey,
        (kind, tag): (u8, u64),
        refusal: Refusal,
    ) {
        self.counts.requests += 1;
        self.counts.refusals += 1;
        self.push(now, key, tag, Answer::Refused { kind, refusal }, (Payload::None, None));
    }

    fn push(
        &mut self,
        now: Instant,
        key: ConnectionKey,
        tag: u64,
        answer: Answer,
        (payload, class): (Payload, Option<Class>),
    ) {
        let payload_len = payload.bytes().len() as u32;
        let header: Result<[u8; HEADER_LEN], _> = ReplyMessage { tag, payload_len, answer }.encode();
        let Some(connection) = self.get_mut(key).filter(|connection| !connection.is_ended) else { return };
        match header {
            Ok(header) => {
                connection.push(now, header, payload, class);
                self.touch(key);
                self.arm(now);
            }
            Err(error) => {
                // Nobody would understand it: the other side asks again over another connection.
                tracing::error!(%error, "an answer cannot be said");
                self.cut_off(key);
            }
        }
    }

    /// Something is to be sent.
    pub(super) fn touch(&mut self, key: ConnectionKey) {
        if let Some(connection) = self.get_mut(key)
            && !connection.is_dirty
            && connection.has_output()
        {
            connection.is_dirty = true;
            self.dirty.push_back(key);
        }
    }

    pub(super) fn next_dirty(&mut self) -> Option<(ConnectionKey, ConnectionId)> {
        while let Some(key) = self.dirty.pop_front() {
            if let Some(connection) = self.get_mut(key).filter(|connection| !connection.is_ended) {
                connection.is_dirty = false;
                return Some((key, connection.net));
            }
        }
        None
    }

    pub(super) fn next_action(&mut self) -> Option<ConnectionAction> {
        self.actions.pop_front()
    }

    /// Receives of a connection again.
    pub(super) fn resume(&mut self, key: ConnectionKey) {
        if let Some(connection) = self.get(key).filter(|connection| !connection.is_ended) {
            self.actions.push_back(ConnectionAction::Resume(connection.net));
        }
    }

    /// All connections are received from again: the server serves from now on.
    pub(super) fn resume_all(&mut self, now: Instant) {
        for key in self.keys() {
            if let Some(connection) = self.get_mut(key) {
                connection.since = now;
            }
            self.resume(key);
        }
    }

    /// Ends a connection that cannot go on.
    pub(super) fn cut_off(&mut self, key: ConnectionKey) {
        if self.is_alive(key) {
            self.counts.cut_off += 1;
            self.end(key);
        }
    }

    /// Ends a connection. What has begun is finished; the server drops the rest.
    pub(super) fn end(&mut self, key: ConnectionKey) {
        let Some(connection) = self.get_mut(key).filter(|connection| !connection.is_ended) else { return };
        let (net, is_over) = (connection.net, connection.forget_greeting());
        connection.end();
        self.open -= 1;
        self.over += 1;
        self.actions.push_back(ConnectionAction::Close(net));
        if is_over {
            self.free_slot(key);
        }
    }

    /// All connections.
    pub(super) fn all(&self) -> Vec<ConnectionKey> {
        self.keys()
    }

    /// Those that have said that they are of another pool.
    pub(super) fn strangers(&self, pool: PoolId) -> Vec<ConnectionKey> {
        let is_stranger = |connection: &Connection| {
            !connection.is_ended && connection.pool != PoolId::default() && connection.pool != pool
        };
        self.keys().into_iter().filter(|key| self.get(*key).is_some_and(is_stranger)).collect()
    }

    fn free_slot(&mut self, key: ConnectionKey) {
        let Some(slot) = self.slots.get_mut(key.index as usize) else { return };
        if slot.generation == key.generation && slot.connection.take().is_some() {
            slot.generation = slot.generation.wrapping_add(1);
            self.free.push(key.index);
            self.over += 1;
        }
    }

    /// Whether connections have ended of which nobody has asked.
    pub(super) fn has_over(&self) -> bool {
        self.over > 0
    }

    /// A hello may be one that waits for nothing.
    pub(super) fn poke(&mut self) {
        self.over += 1;
    }

    /// Whether connections have ended since this was asked last.
    pub(super) fn take_over(&mut self) -> bool {
        std::mem::take(&mut self.over) > 0
    }

    /// The next connection whose hello can be answered now.
    pub(super) fn next_greeting(&mut self) -> Option<(ConnectionKey, ReplyTo)> {
        let is_over = |after: Option<ConnectionKey>| after.is_none_or(|after| self.get(after).is_none());
        let key = self.keys().into_iter().find(|key| {
            let greeting = self.get(*key).and_then(|connection| connection.greeting.as_ref());
            greeting.is_some_and(|greeting| is_over(greeting.after))
        })?;
        let connection = self.get_mut(key)?;
        let greeting = connection.greeting.take()?;
        connection.is_greeted = true;
        Some((key, greeting.to))
    }

    /// A session begins: which connection was the one before. A later one is known: its number.
    pub(super) fn begin_session(
        &mut self,
        who: (TierId, u32),
        number: u64,
        connection: ConnectionKey,
        most: usize,
    ) -> Result<Option<ConnectionKey>, Refusal> {
        let before = self.sessions.get(&who).copied();
        match before {
            Some(before) if before.number >= number => return Err(Refusal::Stale { known: before.number }),
            None if self.sessions.len() >= most => self.forget_sessions(most),
            _ => {}
        }
        if before.is_none() && self.sessions.len() >= most {
            return Err(Refusal::Busy);
        }
        self.age += 1;
        self.sessions.insert(who, Session { number, connection, age: self.age });
        Ok(before.map(|before| before.connection).filter(|before| self.get(*before).is_some()))
    }

    /// Forgets the older half of the sessions whose connection is over: nobody has so many ports at once.
    fn forget_sessions(&mut self, most: usize) {
        let over = self.sessions.values().filter(|session| self.get(session.connection).is_none());
        let mut ages: Vec<u64> = over.map(|session| session.age).collect();
        ages.sort_unstable();
        let Some(last) = ages.get((most / 2).min(ages.len().saturating_sub(1))).copied() else { return };
        let mut sessions = std::mem::take(&mut self.sessions);
        sessions.retain(|_, session| session.age > last || self.get(session.connection).is_some());
        self.sessions = sessions;
    }

    /// Notes that some connection has a time to keep.
    pub(super) fn arm(&mut self, now: Instant) {
        self.sweep_at.get_or_insert(now + SWEEP);
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.sweep_at
    }

    /// Which connections are too late with something.
    pub(super) fn sweep(
        &mut self,
        now: Instant,
        config: &ChunkServerConfig,
        is_serving: bool,
    ) -> Vec<ConnectionKey> {
        if self.sweep_at.is_none_or(|at| at > now) {
            return Vec::new();
        }
        self.sweep_at = None;
        let (mut late, mut is_any_armed) = (Vec::new(), false);
        for key in self.keys() {
            let Some(connection) = self.get(key).filter(|connection| !connection.is_ended) else { continue };
            let is_silent = is_serving && !connection.is_greeted && connection.greeting.is_none();
            let hello = is_silent.then(|| connection.since + config.hello_timeout);
            let within = connection.within_since.map(|since| since + config.message_timeout);
            let unsent = connection.unsent_since.map(|since| since + config.send_timeout);
            match [hello, within, unsent].into_iter().flatten().min() {
                Some(at) if at <= now => late.push(key),
                Some(_) => is_any_armed = true,
                None => {}
            }
        }
        if is_any_armed {
            self.arm(now);
        }
        late
    }
}
