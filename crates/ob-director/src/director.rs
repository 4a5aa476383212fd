//! The director: one owner of all connections, of the stream's order, and of the engine.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use ob_core::{ConnectionAction, ConnectionId, Instant, Now};
use ob_offload::{Application, Engine, Files, Requests};

use crate::connection::{CONNECTIONS_END, Connection, ConnectionKey, Ending, Underway};
use crate::counts::DirectorCounts;
use crate::host::{HostEvent, HostPort};
use crate::input::Budget;
use crate::stream::Stream;

/// Frames of the host that one turn takes.
const FRAMES_A_TURN: usize = 256;
/// Entries that are as much work as a frame is.
const ENTRIES_A_FRAME: usize = 16;
/// Records that one turn admits to the table, of those that the log is settled behind; with all of the last write's.
const ADMITTED_A_TURN: usize = 4096;

/// How large a director is.
#[derive(Clone, Copy, Debug)]
pub struct DirectorConfig {
    /// Connections at once.
    pub connections_max: usize,
    /// Requests of one connection without a complete reply.
    pub pending_max: usize,
    /// Bytes of replies that wait for a client; with more, nothing it sends is looked at.
    pub output_len_max: usize,
    /// Bytes of replies that wait for clients, all together; with more, the client that has most to take is closed.
    pub outputs_len_max: usize,
    /// Bytes of the engine's buffers that requests of one connection may have, each of them rounded up to 4 KiB.
    pub held_len_max: usize,
    /// Bytes of messages that do not fit into a connection's own buffer, of all connections.
    pub long_len_max: usize,
    /// Files of the host that have names at once.
    pub files_max: usize,
    /// How long a long message may make too little progress while others wait for its memory.
    pub long_stall_max: Duration,
    /// Bytes that have to come, or to be taken, in that time; and at least a sixteenth of the memory that the message has.
    pub long_progress_min: usize,
    /// How long a client whose connection was ended may take to end its side.
    pub linger: Duration,
    /// How long a reply may wait for others of its connection whose reads are under way, to leave with them.
    pub gather: Duration,
    /// Bytes of replies that do not wait for others.
    pub gather_len_max: usize,
}

impl Default for DirectorConfig {
    fn default() -> Self {
        Self {
            connections_max: 10_000,
            pending_max: 1024,
            output_len_max: 256 << 10,
            outputs_len_max: 256 << 20,
            held_len_max: 1 << 20,
            long_len_max: 128 << 20,
            files_max: 1 << 20,
            long_stall_max: Duration::from_secs(5),
            long_progress_min: 64 << 10,
            linger: Duration::from_secs(1),
            gather: Duration::from_micros(50),
            gather_len_max: 16 << 10,
        }
    }
}

/// Splits clients' connections between card and host.
pub struct Director<A: Application> {
    pub(crate) application: Rc<A>,
    pub(crate) engine: Engine<A>,
    pub(crate) config: DirectorConfig,
    /// Each in a box, so that taking one out to work on it moves a pointer.
    pub(crate) connections: Vec<Option<Box<Connection<A::Cutter>>>>,
    free: Vec<usize>,
    next_serial: u64,
    pub(crate) budget: Budget,
    /// Bytes of replies that wait for clients.
    pub(crate) unread: usize,
    pub(crate) stream: Stream,
    /// Connections with something to do.
    pub(crate) ready: VecDeque<ConnectionKey>,
    /// Connections with something to send.
    pub(crate) dirty: VecDeque<ConnectionKey>,
    /// Connections whose replies wait for others, each with the time up to which they do; the first to be sent first.
    pub(crate) gathering: VecDeque<(Instant, ConnectionKey)>,
    /// Connections of which the host has to be told something.
    pub(crate) control: VecDeque<ConnectionKey>,
    /// Connections with a request for which there was no room.
    pub(crate) awaiting_stream: VecDeque<ConnectionKey>,
    pub(crate) actions: VecDeque<ConnectionAction>,
    /// Lists to use again, for the requests of messages to come.
    pub(crate) spare_requests: Vec<Requests>,
    /// Bytes of replies of the director's own.
    pub(crate) scratch: Vec<u8>,
    pub(crate) now: Now,
    /// When the clock of what expires was last looked at and not behind.
    clock_since: Now,
    pub(crate) counts: DirectorCounts,
    /// Somebody waits for memory for a long message.
    pub(crate) is_hungry: bool,
    /// Since when somebody does, or since when it was last looked at who gets on.
    pub(crate) hungry_since: Option<Instant>,
    /// Connections that were ended and whose clients have not ended theirs.
    pub(crate) lingering: VecDeque<ConnectionKey>,
}

impl<A: Application> Director<A> {
    /// A director without connections; the host is away.
    pub fn new(application: Rc<A>, engine: Engine<A>, config: DirectorConfig) -> Self {
        let connections_max = config.connections_max.clamp(1, CONNECTIONS_END - 1);
        Self {
            application,
            engine,
            config: DirectorConfig { connections_max, ..config },
            connections: Vec::new(),
            free: Vec::new(),
            next_serial: 1,
            budget: Budget::new(config.long_len_max),
            unread: 0,
            stream: Stream::default(),
            ready: VecDeque::new(),
            dirty: VecDeque::new(),
            gathering: VecDeque::new(),
            control: VecDeque::new(),
            awaiting_stream: VecDeque::new(),
            actions: VecDeque::new(),
            spare_requests: Vec::new(),
            scratch: Vec::new(),
            now: Now::default(),
            clock_since: Now::default(),
            counts: DirectorCounts::default(),
            is_hungry: false,
            hungry_since: None,
            lingering: VecDeque::new(),
        }
    }

    /// The engine, for its counts.
    pub fn engine(&self) -> &Engine<A> {
        &self.engine
    }

    /// What was done so far.
    pub fn counts(&self) -> DirectorCounts {
        let connections = self.connections.iter().flatten().filter(|found| found.ending != Ending::Gone);
        let lists = self.connections.iter().flatten().filter(|found| found.underway.requests.is_long());
        DirectorCounts {
            long_lists: lists.count() as u64,
            connections: connections.count() as u64,
            card: self.engine.counts().answered,
            unread: self.unread as u64,
            long_left: self.budget.left() as u64,
            ..self.counts
        }
    }

    /// Whether a host has met this card and is there.
    pub fn has_host(&self) -> bool {
        self.stream.is_here()
    }

    /// How many milliseconds the host's clock is before this card's at most, as far as is known; less than none if it is behind.
    pub fn host_ahead_ms(&self) -> Option<i64> {
        self.stream.clock().ahead_ms()
    }

    /// A client has connected. If its flow is not matched, the card looks for no answers to its requests. Without a key there is no
    /// room, and the connection is to be closed.
    pub fn accept(&mut self, net: ConnectionId, peer: SocketAddr, is_matched: bool) -> Option<ConnectionKey> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.connections.len() < self.config.connections_max => {
                self.connections.push(None);
                self.connections.len() - 1
            }
            None => {
                self.counts.refused += 1;
                return None;
            }
        };
        let key = ConnectionKey::new(self.next_serial, index);
        self.next_serial += 1;
        if let Some(place) = self.connections.get_mut(index) {
            let connection = Connection::new(key, net, peer);
            *place = Some(Box::new(Connection { is_matched, ..connection }));
        }
        self.counts.accepted += 1;
        self.tell_host(key);
        Some(key)
    }

    /// What a client is told that [`Director::accept`] has no room for.
    pub fn full(&mut self) -> &[u8] {
        self.scratch.clear();
        self.application.full(&mut self.scratch);
        &self.scratch
    }

    /// Room for what a client sends, or nothing if it is to wait: then [`ConnectionAction::Resume`] follows.
    pub fn receive_into(&mut self, key: ConnectionKey) -> Option<&mut [u8]> {
        let budget = &mut self.budget;
        let connection = self.connections.get_mut(key.index())?.as_mut().filter(|found| found.key == key)?;
        if connection.ending != Ending::Open {
            // What comes now is not looked at, but the client must be able to send it, or it would lose the last reply.
            connection.input.clear(budget);
        }
        let has_room = connection.input.room(budget).is_some();
        connection.flags.is_held_up = !has_room;
        connection.input.room(budget)
    }

    /// So many bytes came.
    pub fn received(&mut self, key: ConnectionKey, count: usize) {
        if let Some(connection) = self.find(key) {
            connection.input.received(count);
            connection.progress += count as u64;
            self.make_ready(key);
        }
    }

    /// The client has ended its side: what it has sent is answered.
    pub fn ended(&mut self, key: ConnectionKey) {
        if let Some(connection) = self.find(key) {
            connection.is_ended = true;
            self.make_ready(key);
        }
    }

    /// The connection is gone. The driver has forgotten it already.
    pub fn broken(&mut self, key: ConnectionKey) {
        if let Some(connection) = self.take(key) {
            self.forget(connection, false);
        }
    }

    /// Does what there is to do; `true` if anything was done.
    pub fn turn<P: HostPort>(&mut self, now: Now, port: &mut P, files: &mut impl Files) -> bool {
        self.set_clock(now);
        let mut moved = self.take_frames(port);
        self.engine.misbehave();
        moved |= self.engine.admit(self.stream.last(), ADMITTED_A_TURN);
        moved |= self.engine.poll(files);
        moved |= self.speak(port);
        for _ in 0..2 {
            while let Some((owner, _)) = self.engine.next_settled() {
                self.make_ready(ConnectionKey(owner));
            }
            moved |= self.process_all(port);
            self.close_greatest();
            // Reads that began go out now, and those that were done at once are answered.
            moved |= self.engine.poll(files);
        }
        self.watch_time();
        moved
    }

    /// Rule on expiry: neither half goes back in time. Nor does the card's stand still where somebody has set it back: the host's goes on
    /// meanwhile, and is told of with requests only.
    fn set_clock(&mut self, now: Now) {
        let passed = u64::try_from((now.instant - self.clock_since.instant).as_millis()).unwrap_or(u64::MAX);
        let gone_on = self.clock_since.unix_ms.saturating_add(passed);
        if now.unix_ms > gone_on {
            self.clock_since = now;
        }
        self.now = Now { unix_ms: now.unix_ms.max(gone_on), ..now };
    }

    /// Whether another turn would do something at once.
    pub fn can_go_on(&self) -> bool {
        let has_work = !self.ready.is_empty() || !self.dirty.is_empty() || !self.actions.is_empty();
        has_work || self.engine.can_admit()
    }

    /// Whether something waits for room in the stream to the host.
    pub fn awaits_room(&self) -> bool {
        self.stream.is_here()
            && (self.stream.has_news() || !self.control.is_empty() || !self.awaiting_stream.is_empty())
    }

    /// When the next turn is due although nothing happens.
    pub fn next_due(&self) -> Option<Instant> {
        if self.can_go_on() {
            return Some(Instant::default());
        }
        let linger = self.lingering.front().and_then(|key| match self.peek(*key)?.ending {
            Ending::Finished { until } => Some(until),
            _ => Some(Instant::default()),
        });
        let starved = self.hungry_since.map(|since| since + self.config.long_stall_max);
        let gathered = self.gathering.front().map(|(until, _)| *until);
        [linger, starved, gathered].into_iter().flatten().min()
    }

    /// The next connection that has something to send.
    pub fn next_dirty(&mut self) -> Option<(ConnectionKey, ConnectionId)> {
        loop {
            let key = self.dirty.pop_front()?;
            if let Some(connection) = self.find(key) {
                connection.flags.is_dirty = false;
                connection.gathered = 0;
                return Some((key, connection.net));
            }
        }
    }

    /// What is to be sent, from the front; how many of the slices were filled.
    pub fn transmit<'a>(&'a self, key: ConnectionKey, into: &mut [IoSlice<'a>]) -> usize {
        self.peek(key).map_or(0, |connection| connection.output.transmit(into))
    }

    /// So many of the bytes that were offered were sent; `true` if there are more and the network may take them. If it did not
    /// take all, [`Director::writable`] says when it will again.
    pub fn sent(&mut self, key: ConnectionKey, count: usize, offered: usize) -> bool {
        let Some(connection) = self.find(key) else { return false };
        connection.progress += count as u64;
        connection.flags.is_clogged = count < offered;
        let taken = count.min(connection.output.len());
        connection.unread -= taken;
        connection.credit_due = connection.credit_due.saturating_add(connection.output.sent(count));
        // A client that does not take its replies keeps no buffers that others could read into.
        connection.output.copy_all(connection.flags.is_clogged);
        if count == 0 {
            return false;
        }
        let has_more = !connection.output.is_empty() && !connection.flags.is_clogged;
        let awaits_output = connection.flags.awaits_output;
        let wants_credit = connection.wants_credit();
        self.unread -= taken;
        if wants_credit {
            self.tell_host(key);
        }
        // There may be room for more replies, or this was the last.
        if awaits_output {
            self.make_ready(key);
        }
        has_more
    }

    /// The network takes bytes again.
    pub fn writable(&mut self, key: ConnectionKey) {
        if let Some(connection) = self.find(key) {
            connection.flags.is_clogged = false;
            if !connection.flags.is_dirty {
                connection.flags.is_dirty = true;
                self.dirty.push_back(key);
            }
        }
    }

    /// What the driver has to do next.
    pub fn next_action(&mut self) -> Option<ConnectionAction> {
        self.actions.pop_front()
    }

    fn take_frames<P: HostPort>(&mut self, port: &mut P) -> bool {
        let mut left = FRAMES_A_TURN;
        while left > 0 {
            let Some(event) = port.poll() else { return left < FRAMES_A_TURN };
            left -= 1;
            match event {
                HostEvent::Arrived => self.host_arrived(),
                HostEvent::Gone => self.host_gone(),
                HostEvent::Frame(frame) => match self.host_says(&frame) {
                    Ok(entries) => left = left.saturating_sub(entries / ENTRIES_A_FRAME),
                    Err(violation) => {
                        self.counts.host_refused += 1;
                        port.close(&violation.to_string());
                    }
                },
            }
        }
        true
    }

    pub(crate) fn find(&mut self, key: ConnectionKey) -> Option<&mut Connection<A::Cutter>> {
        let found = self.connections.get_mut(key.index())?.as_deref_mut();
        found.filter(|found| found.key == key && found.ending != Ending::Gone)
    }

    pub(crate) fn peek(&self, key: ConnectionKey) -> Option<&Connection<A::Cutter>> {
        let found = self.connections.get(key.index())?.as_deref();
        found.filter(|found| found.key == key && found.ending != Ending::Gone)
    }

    /// Takes a connection out of its place, to work on it; [`Director::put_back`] or [`Director::forget`] follows.
    pub(crate) fn take(&mut self, key: ConnectionKey) -> Option<Box<Connection<A::Cutter>>> {
        self.find(key)?;
        self.connections.get_mut(key.index())?.take()
    }

    pub(crate) fn put_back(&mut self, connection: Box<Connection<A::Cutter>>) {
        let index = connection.key.index();
        if let Some(place) = self.connections.get_mut(index) {
            *place = Some(connection);
        }
    }

    /// The end of a connection. Its place is free when the host knows, or there is none that has to.
    pub(crate) fn forget(&mut self, mut connection: Box<Connection<A::Cutter>>, close: bool) {
        self.abandon(&mut connection, 0);
        connection.input.clear(&mut self.budget);
        connection.underway = Underway::default();
        connection.output = crate::output::Output::default();
        self.unread -= std::mem::take(&mut connection.unread);
        if close {
            self.actions.push_back(ConnectionAction::Close(connection.net));
        }
        let key = connection.key;
        if connection.is_announced && self.stream.is_here() {
            connection.ending = Ending::Gone;
            let is_told = connection.flags.is_in_control;
            connection.flags.is_in_control = true;
            self.put_back(connection);
            if !is_told {
                self.control.push_back(key);
            }
        } else {
            self.vacate(key);
        }
    }

    /// Closes those who have most to take, as long as all together have too much. Each alone is bounded, but not by what there is for all.
    fn close_greatest(&mut self) {
        while self.unread > self.config.outputs_len_max {
            let greatest = self.connections.iter().flatten().max_by_key(|found| found.unread);
            let Some(connection) = greatest.map(|found| found.key).and_then(|key| self.take(key)) else {
                return;
            };
            self.counts.closed_for_memory += 1;
            self.forget(connection, true);
        }
    }

    pub(crate) fn vacate(&mut self, key: ConnectionKey) {
        if let Some(place) = self.connections.get_mut(key.index()) {
            *place = None;
            self.free.push(key.index());
        }
    }

    pub(crate) fn make_ready(&mut self, key: ConnectionKey) {
        if let Some(connection) = self.find(key)
            && !connection.flags.is_ready
        {
            connection.flags.is_ready = true;
            self.ready.push_back(key);
        }
    }

    pub(crate) fn tell_host(&mut self, key: ConnectionKey) {
        let is_here = self.stream.is_here();
        if let Some(connection) = self.find(key)
            && !connection.flags.is_in_control
            && is_here
        {
            connection.flags.is_in_control = true;
            self.control.push_back(key);
        }
    }
}
