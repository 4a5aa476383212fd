//! How connections become queues, and how they end.
//!
//! ```text
//!   Connect ─▶ Control ─▶ superseded, or an old connection of the queue? ─▶ their connections close ─▶ their writes are done ─▶ answer
//!   end ─▶ commands on devices and with services become orphans: nobody is answered, and who overlaps an orphaned write waits
//! ```

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ob_core::{ConnectionAction, Instant};
use ob_wire_nvme::{CommandId, QueueId, Status, SubmissionEntry};

use super::Target;
use super::connection::{ConnectionKey, Queue, Stall};
use super::control::{ControllerKey, NamespaceKey, QueueIdentity};
use super::flight::{FlightKey, State, Work};
use super::shares::network_of;
use crate::plant::{self, Bug};

/// A Connect that is good, and waits for what earlier associations of the host, or earlier connections of the queue, left
/// on devices.
pub(super) struct PendingConnect {
    connection: ConnectionKey,
    command: CommandId,
    result: u32,
    /// Whose writes are to be done.
    earlier: Vec<ControllerKey>,
}

/// An answer that waits for reservations to be saved, or for commands of preempted hosts.
pub(super) struct PendingAnswer {
    pub(super) connection: ConnectionKey,
    pub(super) command: CommandId,
    pub(super) namespace: NamespaceKey,
    /// Versions that are to be saved.
    pub(super) saved: Vec<(NamespaceKey, u64)>,
    pub(super) drain: Vec<ControllerKey>,
    /// Only those of their commands are waited for that came before this many: a host that goes on with reads, or has registered
    /// again, would hold the answer up for ever.
    pub(super) before: u64,
    /// What to send.
    pub(super) bytes: Vec<u8>,
    pub(super) result: u64,
    pub(super) status: Status,
}

impl PendingAnswer {
    /// Success, which waits for nothing yet.
    pub(super) fn new(connection: ConnectionKey, command: CommandId, namespace: NamespaceKey) -> Self {
        let (saved, drain, bytes) = (Vec::new(), Vec::new(), Vec::new());
        let (before, result, status) = (0, 0, Status::SUCCESS);
        Self { connection, command, namespace, saved, drain, before, bytes, result, status }
    }
}

impl Target {
    pub(super) fn connect(&mut self, now: Instant, key: ConnectionKey, entry: &SubmissionEntry, data: &[u8]) {
        // What was said before in the same round comes first: a queue that a reset ended still has its old connection here,
        // and must not have two.
        if !plant::is_planted(Bug::ResetHeardLate) {
            self.handle_events(now);
        }
        let command = entry.command();
        let Some(path) = self.connection(key).map(|connection| connection.path) else { return };
        let connected = match self.control.connect(now, path, entry, data) {
            Ok(connected) => connected,
            Err(error) => return self.answer(key, command, error.status, u64::from(error.result)),
        };
        let mut earlier = connected.superseded;
        if connected.replaces_connection {
            self.end_replaced(now, connected.identity);
            if !plant::is_planted(Bug::ReplacedNotAwaited) {
                earlier.push(connected.identity.controller);
            }
        }
        let capsule_data_max = self.control.config().in_capsule_len;
        let Some(connection) = self.connection_mut(key) else { return };
        connection.queue = Some(Queue {
            identity: connected.identity,
            size: connected.sq_size.max(1),
            head: 0,
            flow_control_off: connected.flow_control_off,
            may_transfer: false,
        });
        connection.advance_head();
        if connected.identity.queue != QueueId::ADMIN && !connected.authentication_required {
            connection.begin_transfers(capsule_data_max);
        }
        connection.is_connecting = true;
        for controller in earlier.iter().filter(|earlier| **earlier != connected.identity.controller) {
            self.end_controller(now, *controller);
        }
        let pending = PendingConnect { connection: key, command, result: connected.result, earlier };
        if self.must_wait(&pending) {
            self.counts.connects_delayed += 1;
            self.connects.push(pending);
        } else {
            self.answer_connect(&pending);
        }
    }

    /// The buffers of a host that has proved who it is are its own affair, not that of its address. What it holds already
    /// stays counted where it was taken. An I/O queue gets what it needs for payload only now.
    pub(super) fn notice_proof(&mut self, key: ConnectionKey, queue: QueueIdentity) {
        if self.connection(key).is_none_or(|connection| connection.holder.is_proved()) {
            return;
        }
        let Some(host) = self.control.proved_host(queue) else { return };
        let holder = self.buffers.connection_of(host);
        let capsule_data_max = self.control.config().in_capsule_len;
        if let Some(connection) = self.connection_mut(key) {
            connection.holder = holder;
            if queue.queue != QueueId::ADMIN {
                connection.begin_transfers(capsule_data_max);
            }
        }
    }

    fn must_wait(&self, pending: &PendingConnect) -> bool {
        pending.earlier.iter().any(|controller| self.orphans.contains_key(controller))
    }

    /// Whether a host has come back, and waits for what an ended controller of it left on devices.
    pub(super) fn is_awaited(&self, controller: Option<ControllerKey>) -> bool {
        controller.is_some_and(|one| self.connects.iter().any(|pending| pending.earlier.contains(&one)))
    }

    fn answer_connect(&mut self, pending: &PendingConnect) {
        let key = pending.connection;
        let Some(connection) = self.connection_mut(key) else { return };
        connection.is_connecting = false;
        if connection.stall == Some(Stall::Connecting) {
            self.relieved.push(key);
        }
        self.note_answer(key);
        self.answer(key, pending.command, Status::SUCCESS, u64::from(pending.result));
    }

    /// One write less of an ended controller is on a device.
    pub(super) fn orphan_ended(&mut self, controller: ControllerKey) {
        if let Some(count) = self.orphans.get_mut(&controller) {
            *count -= 1;
            if *count == 0 {
                self.orphans.remove(&controller);
                self.control.forget_ended(controller);
            }
        }
    }

    /// Forgets a controller that has ended, unless devices still have something of it, or a connection of it has something
    /// that will be left behind.
    fn forget_if_drained(&mut self, controller: ControllerKey) {
        let is_connected = !self.find_connections(|identity| identity.controller == controller).is_empty();
        if is_connected {
            return;
        }
        self.foreign.controller_ended(controller);
        if !self.orphans.contains_key(&controller) {
            self.control.forget_ended(controller);
        }
    }

    pub(super) fn answer_later(&mut self, mut pending: PendingAnswer) {
        pending.before = self.flights.inserted();
        if let Some(connection) = self.connection_mut(pending.connection) {
            connection.remove_command(pending.command);
            connection.add_command(pending.command, None);
            connection.owed += pending.bytes.len();
        }
        self.answers.push(pending);
        self.are_answers_due = true;
    }

    /// A namespace's reservations are saved, up to this version.
    pub fn reservations_saved(&mut self, namespace: NamespaceKey, version: u64) {
        self.control.reservations_saved(namespace, version);
        for pending in &mut self.answers {
            pending.saved.retain(|(wanted, from)| *wanted != namespace || *from > version);
        }
        self.are_answers_due = true;
    }

    /// Answers what has waited long enough.
    pub(super) fn settle_pending(&mut self) {
        if !self.connects.is_empty() {
            for pending in std::mem::take(&mut self.connects) {
                if self.must_wait(&pending) {
                    self.connects.push(pending);
                } else {
                    self.answer_connect(&pending);
                }
            }
        }
        if std::mem::take(&mut self.are_answers_due) | self.flights.have_drained() {
            self.settle_answers();
        }
        self.settle_shutdowns();
    }

    /// Answers what waits neither for a save nor for a command any more. All commands are looked at once for all of them, and only when
    /// one that is waited for has ended: while a device hangs many can wait, and what others do must not become dearer.
    fn settle_answers(&mut self) {
        let saved = self.answers.iter().filter(|pending| pending.saved.is_empty());
        let drained: BTreeSet<_> = saved.flat_map(|pending| pending.drain.iter().copied()).collect();
        self.counts.awaited_looks += u64::from(!drained.is_empty());
        let busy = self.flights.drain(drained);
        for pending in std::mem::take(&mut self.answers) {
            let is_busy = |controller: &ControllerKey| {
                let first = busy.get(&(*controller, pending.namespace));
                first.is_some_and(|first| *first < pending.before)
            };
            if !pending.saved.is_empty() || pending.drain.iter().any(is_busy) {
                self.answers.push(pending);
                continue;
            }
            if let Some(controller) = self.controller_of(pending.connection) {
                self.flights.look_again_at(controller);
            }
            self.note_answer(pending.connection);
            let PendingAnswer { connection, command, bytes, result, status, .. } = pending;
            if let Some(connection) = self.connection_mut(connection) {
                connection.owed -= bytes.len();
            }
            if bytes.is_empty() {
                self.answer(connection, command, status, result);
            } else {
                self.answer_with(connection, command, bytes, result);
            }
        }
    }

    /// Notes the shutdowns that are complete: nothing of the controller is under way, and no reservation of it being saved.
    fn settle_shutdowns(&mut self) {
        let Some((mut idle, busy)) = self.flights.awaited() else { return };
        if plant::is_planted(Bug::ShutdownAtOnce) {
            idle.extend(&busy);
        }
        self.counts.awaited_looks += 1;
        let saving = self.answers.iter().filter_map(|pending| self.controller_of(pending.connection));
        let saving: BTreeSet<_> = saving.collect();
        for controller in idle.difference(&saving) {
            self.control.shutdown_over(*controller);
            self.flights.forget_awaited(*controller);
        }
        // A reset ends a shutdown too.
        for controller in busy.union(&saving).filter(|busy| !self.control.is_shutting_down(**busy)) {
            self.flights.forget_awaited(*controller);
        }
    }

    /// Whose queue a connection is.
    pub(super) fn controller_of(&self, key: ConnectionKey) -> Option<ControllerKey> {
        self.connection(key)?.queue.map(|queue| queue.identity.controller)
    }

    /// The connection that is this queue.
    pub(super) fn connection_of(&self, queue: QueueIdentity) -> Option<ConnectionKey> {
        self.find_connections(|identity| identity == queue).first().copied()
    }

    pub(super) fn find_connections(&self, is_wanted: impl Fn(QueueIdentity) -> bool) -> Vec<ConnectionKey> {
        let slots = self.slots.iter().enumerate();
        let found = slots.filter(|(_, slot)| {
            let queue = slot.connection.as_deref().and_then(|connection| connection.queue);
            queue.is_some_and(|queue| is_wanted(queue.identity))
        });
        found
            .map(|(index, slot)| ConnectionKey { index: index as u32, generation: slot.generation })
            .collect()
    }

    /// Ends all connections of a controller.
    pub(super) fn end_controller(&mut self, now: Instant, controller: ControllerKey) {
        for key in self.find_connections(|identity| identity.controller == controller) {
            self.end(now, key);
        }
        self.forget_if_drained(controller);
    }

    /// Ends the connection that a queue had before its new one. Control knows the queue as the new one's already.
    fn end_replaced(&mut self, now: Instant, queue: QueueIdentity) {
        let Some(key) = self.connection_of(queue) else { return };
        if let Some(connection) = self.connection_mut(key) {
            connection.queue = None;
        }
        self.end(now, key);
    }

    /// Forgets a connection, and has the driver close it.
    pub(super) fn end(&mut self, now: Instant, key: ConnectionKey) {
        self.detach(now, key);
        let Some(slot) = self.slots.get_mut(key.index as usize) else { return };
        if slot.generation != key.generation {
            return;
        }
        let Some(connection) = slot.connection.take() else { return };
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(key.index);
        self.actions.push_back(ConnectionAction::Close(connection.net));
    }

    /// Closes a connection that anybody could have in favour of a new one: of the address that has most of them, the oldest.
    /// So one that is silent can keep nobody out, and addresses that have few are left alone. `false` if all are queues of
    /// hosts that may use a subsystem.
    pub(super) fn make_room(&mut self, now: Instant) -> bool {
        struct Strangers {
            count: u32,
            oldest: (u64, ConnectionKey),
        }
        let mut addresses: BTreeMap<IpAddr, Strangers> = BTreeMap::new();
        for (index, slot) in self.slots.iter().enumerate() {
            let Some(connection) = slot.connection.as_deref() else { continue };
            if connection.queue.is_some_and(|queue| !self.control.is_anybodys(queue.identity)) {
                continue;
            }
            let key = ConnectionKey { index: index as u32, generation: slot.generation };
            let this = (connection.number, key);
            let address = addresses.entry(network_of(connection.path.peer));
            let strangers = address.or_insert(Strangers { count: 0, oldest: this });
            strangers.count += 1;
            strangers.oldest = strangers.oldest.min(this);
        }
        let most = addresses.into_values().max_by_key(|one| (one.count, Reverse(one.oldest)));
        let Some(Strangers { oldest: (_, key), .. }) = most else { return false };
        self.end(now, key);
        true
    }

    /// Ends what a connection does, and lets it send what it has to say before it is closed.
    pub(super) fn close_gently(&mut self, now: Instant, key: ConnectionKey) {
        self.detach(now, key);
        if let Some(connection) = self.connection_mut(key) {
            connection.closing = Some(now);
            let was_held_up = connection.stall.take().is_some();
            connection.within_since = None;
            connection.held = Vec::new();
            connection.stream.abandon();
            let (net, is_all_sent) = (connection.net, connection.output.is_empty());
            if was_held_up {
                // What it sends until it ends too is taken, or the network would end it before it has read the last answer.
                self.actions.push_back(ConnectionAction::Resume(net));
            }
            if is_all_sent {
                self.all_sent(key);
            }
            self.touch(key);
            self.arm(now);
        }
    }

    /// Takes a connection's commands and its queue away from it.
    fn detach(&mut self, now: Instant, key: ConnectionKey) {
        let Some(connection) = self.connection_mut(key) else { return };
        let queue = connection.queue.take();
        connection.ids.clear();
        connection.waiting.clear();
        connection.fused = None;
        connection.owed = 0;
        let flights = std::mem::take(&mut connection.flights);
        // Hosts that come and go while a device hangs must not leave a line each in what waits for it.
        self.connects.retain(|pending| pending.connection != key);
        let waiting = self.answers.len();
        self.answers.retain(|pending| pending.connection != key);
        if let Some(queue) = queue
            && self.answers.len() < waiting
        {
            self.flights.look_again_at(queue.identity.controller);
        }
        self.proofs.forget(key);
        self.hungry.retain(|hungry| *hungry != key);
        self.starving.retain(|starving| *starving != key);
        let has_backlog = self.backlog.len() > 0;
        let mut has_foreign = false;
        for flight in flights.into_iter().flatten() {
            has_foreign |=
                self.flights.get(flight).is_some_and(|flight| matches!(flight.work, Work::Foreign(_)));
            self.orphan(flight);
        }
        if has_foreign {
            self.end_foreign(key);
        }
        if has_backlog {
            self.backlog.retain(|key| self.flights.get(key).is_some());
        }
        let Some(queue) = queue else { return };
        for other in self.control.disconnected(queue.identity) {
            if let Some(other) = self.connection_of(other) {
                self.end(now, other);
            }
        }
        self.forget_if_drained(queue.identity.controller);
    }

    /// A command's connection is gone.
    pub(super) fn orphan(&mut self, key: FlightKey) {
        let Some(flight) = self.flights.get_mut(key) else { return };
        let is_served = flight.state == State::Service;
        if flight.state != State::Device && !is_served {
            self.flights.remove(key);
            self.ranges_freed |= self.ranges.release(key);
            self.blocked.retain(|blocked| *blocked != key);
            self.pairs.retain(|(first, _)| *first != key);
            return;
        }
        flight.state = State::Orphan;
        if let (Some(io), Some(controller)) = (flight.work.io(), flight.controller)
            && io.changes_data()
            && !plant::is_planted(if is_served { Bug::ServiceForgotten } else { Bug::OrphansForgotten })
        {
            *self.orphans.entry(controller).or_default() += 1;
            let (offset, len) = if is_served { io.reach() } else { (io.offset, io.len) };
            self.ranges.hold(io.place, offset, len, key);
        }
        if is_served {
            self.foreign_ended(key);
        }
    }
}
