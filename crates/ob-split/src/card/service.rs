//! The card's half of a port, with its sockets, behind the rings of its host.

use std::net::SocketAddr;
use std::time::Duration;

use ob_core::{AttachmentId, GateId, Instant, ListenerId, Net, Streams};
use ob_ring::{Batch, BulkDone, CardSender, CardService, GroupKey};

use super::channel::ChannelKey;
use super::config::PortConfig;
use super::dialect::Dialect;
use super::front::Front;
use super::gate::{Gate, SharedGate};
use super::port::{Hostile, Port};
use super::records::RetainedCounts;
use crate::engine::{EngineId, Engines};
use crate::wire::{ChannelState, Engine, PlanId, SPLIT_SERVICE};

/// Receives of one channel in a turn.
const RECEIVES_A_TURN: usize = 16;

/// For how long a host that sleeps does not hear of what went well, unless something else wakes it: whoever waits is answered by then, but
/// what it decides next may depend on it.
const QUIET_MAX: Duration = Duration::from_millis(1);

/// One port: messages of a [`Front`], plans of a host, channels to peers over a [`Net`].
///
/// The link drives it as a [`CardService`]; what the reactor has for its network goes to [`SplitCard::net_mut`] before
/// ([`CardService::poll`] then takes it). It may answer the front within any call of the link: whoever sleeps looks at the front after
/// the link.
pub struct SplitCard<N: Net, F, D, E> {
    streams: Streams<N, ChannelKey>,
    port: Port<F, D, E>,
    key: Option<GroupKey>,
    /// When something was first said quietly that the host may not have heard.
    quiet_since: Option<Instant>,
}

/// What a port has, and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounts {
    /// Messages that are not answered.
    pub messages: usize,
    /// Plans under way, those included of which the host has not taken the completions.
    pub plans: usize,
    /// Blocks of card memory that somebody has; without those of records.
    pub blocks_out: usize,
    /// What is retained, and the memory of records.
    pub retained: RetainedCounts,
}

impl<N: Net, F: Front, D: Dialect, E: Engines> SplitCard<N, F, D, E> {
    /// A port without a host.
    pub fn new(config: PortConfig, net: N, front: F, dialect: D, engines: E) -> Self {
        let port = Port::new(config, front, dialect, engines);
        Self { streams: Streams::new(net, RECEIVES_A_TURN), port, key: None, quiet_since: None }
    }

    /// The network, for a reactor's events.
    pub fn net_mut(&mut self) -> &mut N {
        self.streams.net_mut()
    }

    /// The network.
    pub fn net(&self) -> &N {
        self.streams.net()
    }

    /// Where messages come from.
    pub fn front_mut(&mut self) -> &mut F {
        &mut self.port.front
    }

    /// What knows their headers.
    pub fn dialect_mut(&mut self) -> &mut D {
        &mut self.port.dialect
    }

    /// Whether the host is told of no message for now, however many receives it grants: until it is known to serve what the messages are
    /// for. They wait as they would without a host.
    pub fn hold_back(&mut self, is_held_back: bool) {
        self.port.is_held_back = is_held_back;
    }

    /// Has the port's gate be that of other ports, too: before a host comes.
    pub fn share_gate(&mut self, gate: &SharedGate) {
        self.port.gate = Gate::of(gate.clone());
    }

    /// The gate of its host, if it has one.
    pub fn gate(&self) -> Option<GateId> {
        self.port.gate.id()
    }

    /// What it has at the moment.
    pub fn counts(&self) -> PortCounts {
        PortCounts {
            messages: self.port.messages.len(),
            plans: self.port.flights.len(),
            blocks_out: self.port.memory.blocks_out() + self.port.wires.intake_out(),
            retained: self.port.records.counts(),
        }
    }

    /// What is retained, and what came of it.
    pub fn retained(&self) -> RetainedCounts {
        self.port.records.counts()
    }

    /// Lets go of all that is retained.
    pub fn forget_retained(&mut self) {
        self.port.records.clear();
    }

    /// Bytes that have crossed the link for plans of this number, in any life of the host: their entries, what they have moved, and their
    /// completions. (Commands' headers, messages' own, and words are not of any.)
    pub fn crossed(&self, plan: PlanId) -> u64 {
        self.port.crossed.get(usize::from(plan.0)).copied().unwrap_or(0)
    }

    /// What the clock shows that leases are counted on, which may be another than the one of turns: the gate's deadline is of it.
    pub fn tell_lease_time(&mut self, now: Instant) {
        self.port.lease_now = Some(now);
    }

    /// Front, channels, engines, plans: as much as a turn may. Whether anything moved.
    pub fn turn(&mut self, now: Instant) -> bool {
        self.port.begin_turn(now);
        let mut events = 0;
        while let Some(arrival) = self.streams.take_events(now, &mut self.port, &mut events) {
            match self.port.arrived(&arrival) {
                Some(key) => self.streams.admit(arrival.connection, key),
                None => self.streams.net_mut().close(arrival.connection),
            }
        }
        let received = self.streams.receive(now, &mut self.port);
        let moved = self.port.turn();
        let connected = self.flush();
        moved || connected || received > 0 || events > 0
    }

    /// When it has something to do, if nothing wakes the card before.
    pub fn next_due(&self) -> Option<Instant> {
        if self.port.has_work() || self.streams.is_readable() {
            return Some(self.port.now);
        }
        let left = self.port.left_at.filter(|_| !self.port.is_welcome);
        let quiet = self.quiet_since.map(|since| since + QUIET_MAX);
        // Those that are to be told now wait for room in the ring.
        let gathered = self.port.tell_at().filter(|at| *at > self.port.now);
        let (wires, front, engines) =
            (self.port.wires.next_due(), self.port.front.next_due(), self.port.engines_due);
        let due = [wires, front, engines, left, quiet, gathered];
        due.into_iter().flatten().min()
    }

    /// Connects, sends and closes what is to be.
    fn flush(&mut self) -> bool {
        let mut moved = false;
        while let Some(key) = self.port.connects.pop_front() {
            moved = true;
            let Some(address) = self.port.wires.address(key) else { continue };
            match self.streams.connect(address, key) {
                Ok(connection) => self.port.wires.connecting(key, connection),
                Err(_) => self.port.end_channel(key.channel, ChannelState::Refused),
            }
        }
        moved |= self.listen();
        self.port.open_held_up();
        self.streams.send(self.port.now, &mut self.port);
        // What is sent has given memory back.
        self.port.open_held_up();
        self.streams.act(&mut self.port);
        moved
    }

    /// Listens where the host wants it. A network never ends a listener: who comes while no host listens is sent away.
    fn listen(&mut self) -> bool {
        let mut moved = false;
        while let Some((channel, address)) = self.port.listeners.next_wanted() {
            moved = true;
            let found = self.port.listeners.idle(address).or_else(|| self.listen_at(address));
            self.port.listens(channel, address, found);
        }
        moved
    }

    /// Has the network listen: who, and at which port.
    fn listen_at(&mut self, address: SocketAddr) -> Option<(ListenerId, u16)> {
        if !self.port.may_listen() {
            return None;
        }
        let net = self.streams.net_mut();
        match net.listen(address) {
            Ok(listener) => {
                Some((listener, net.listener_address(listener).map_or(address.port(), |at| at.port())))
            }
            Err(error) => {
                tracing::warn!("a host cannot listen: {error}");
                None
            }
        }
    }

    /// Gives the ring what waits for it, and the front the answers that may leave.
    fn pump(&mut self, ring: &mut CardSender) {
        if self.port.gate.has_ended() {
            self.port.hostile.get_or_insert(Hostile::GateOver);
        }
        self.port.transfer(ring);
        if let Some(hostile) = self.port.hostile.take() {
            tracing::warn!("the host of a port is sent away: {hostile}");
            return ring.refuse();
        }
        let load = self.port.load();
        let room = self.port.to_tell();
        let Port { outbox, messages, used, .. } = &mut self.port;
        *used = used.wrapping_add(outbox.pump(load, messages, room, ring));
        self.port.forget_over();
        self.port.answer(ring.delivered_bytes());
        self.end_quiet(ring);
    }

    /// Has the host woken for what was said quietly, if nothing else has for long.
    fn end_quiet(&mut self, ring: &mut CardSender) {
        let said = std::mem::take(&mut self.port.outbox.was_quiet).then_some(self.port.now);
        if self.is_quiet_too_long() {
            ring.rouse();
            // What was said just now is not out yet.
            self.quiet_since = said;
        } else {
            self.quiet_since = self.quiet_since.or(said);
        }
    }

    fn is_quiet_too_long(&self) -> bool {
        self.quiet_since.is_some_and(|since| self.port.now >= since + QUIET_MAX)
    }
}

impl<F: Front, D: Dialect, E: Engines> Port<F, D, E> {
    /// The load of the busiest engine.
    fn load(&mut self) -> u8 {
        let count = self.engines.list().len();
        // What waits for memory is what they have to do, too.
        let waiting = self.record_line.len();
        let load = |id| {
            let depth = self.engines.list().get(id).map_or(1, |engine: &Engine| engine.depth.max(1));
            let of_line = (waiting * usize::from(u8::MAX) / usize::from(depth)).min(u8::MAX.into()) as u8;
            self.engines.engine(EngineId(id as u8)).map_or(0, |engine| engine.load().saturating_add(of_line))
        };
        (0..count).map(load).max().unwrap_or(0)
    }
}

impl<N: Net, F: Front, D: Dialect, E: Engines> CardService for SplitCard<N, F, D, E> {
    fn open(&mut self, key: GroupKey, service: u32) -> Result<(), String> {
        if service != SPLIT_SERVICE {
            return Err(format!(
                "this is a port of split messages (service {SPLIT_SERVICE}), not service {service}"
            ));
        }
        if self.key.is_some() {
            return Err("this port has a host already; it may come back when that is gone".to_owned());
        }
        self.key = Some(key);
        self.port.is_open = true;
        Ok(())
    }

    fn requests(&mut self, key: GroupKey, batch: Batch, responses: &mut CardSender) {
        if self.key != Some(key) {
            return;
        }
        for message in batch.iter() {
            if let Err(hostile) = self.port.told(message.inline) {
                self.port.hostile = Some(hostile);
                break;
            }
        }
        // What it sets off is not kept until the next turn, and does no more than this turn has left.
        self.port.work();
        self.flush();
        self.pump(responses);
    }

    fn responses(&mut self, key: GroupKey, responses: &mut CardSender) {
        if self.key == Some(key) {
            self.pump(responses);
        }
    }

    fn transferred(&mut self, key: GroupKey, done: BulkDone, responses: &mut CardSender) {
        if self.key == Some(key) {
            self.port.transferred(done);
            self.port.work();
            self.flush();
            self.pump(responses);
        }
    }

    fn closed(&mut self, key: GroupKey) {
        if self.key == Some(key) {
            (self.key, self.quiet_since) = (None, None);
            self.port.close();
            self.flush();
        }
    }

    fn poll(&mut self, now: Instant) -> bool {
        self.turn(now)
    }

    fn next_due(&self) -> Option<Instant> {
        self.next_due()
    }

    fn waiting(&self, groups: &mut Vec<GroupKey>) {
        let port = &self.port;
        let waits = !port.transfers.is_empty()
            || port.outbox.has_some()
            || port.outbox.has_answers()
            || port.hostile.is_some()
            || port.gate.has_ended()
            || self.is_quiet_too_long();
        let has_headers = port.to_tell() > 0 && port.messages.has_untold();
        groups.extend(self.key.filter(|_| waits || has_headers));
    }

    fn channel(&mut self, _: AttachmentId, _: &[u8]) {}
}
