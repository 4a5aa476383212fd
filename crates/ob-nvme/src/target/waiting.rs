//! What could not go on at once: for want of a buffer, of a range, or of an end of something else.

use ob_core::Instant;
use ob_wire_nvme::Status;

use super::Target;
use super::connection::{Connection, ConnectionKey};
use super::control::ControlEvent;
use super::flight::{Flight, FlightKey, State, Work};
use super::io::IoKind;
use super::shares::AccountId;

/// How many refusals are remembered while buffers are given out; those before them are found again.
const SPENT_KEPT: usize = 8;

/// Why a command has to wait.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NotNow {
    /// No buffer is left that it may have.
    Buffer,
    /// Its connection has as many transfers under way as it may.
    Transfer,
}

/// One buffer for a command, as an account is asked for it.
#[derive(Clone, Copy)]
struct Want {
    account: AccountId,
    is_compare: bool,
    len: usize,
}

/// What accounts did not get, the last of it.
#[derive(Default)]
struct Spent {
    refused: [Option<Want>; SPENT_KEPT],
    next: usize,
}

impl Spent {
    /// Whether this would not be had either: where there is no short buffer, there is no long one.
    fn has(&self, want: &Want) -> bool {
        let whose = |want: &Want| (want.account, want.is_compare);
        self.refused.iter().flatten().any(|refused| whose(refused) == whose(want) && refused.len <= want.len)
    }

    fn note(&mut self, want: Want) {
        if let Some(place) = self.refused.get_mut(self.next) {
            *place = Some(want);
            self.next = (self.next + 1) % SPENT_KEPT;
        }
    }
}

impl Target {
    /// Goes on with everything that may go on. To be called after each round of receiving, completing and sending, and
    /// after changes through [`Target::control_mut`].
    pub fn pump(&mut self, now: Instant) {
        self.latest = now;
        self.foreign.has_ended = false;
        loop {
            self.handle_events(now);
            self.settle_pending();
            if std::mem::take(&mut self.ranges_freed) {
                self.retry_blocked();
            }
            if !self.pairs.is_empty() {
                self.start_pairs();
            }
            while let Some(key) = self.relieved.pop() {
                self.resume(now, key);
            }
            let returned = self.buffers.returned();
            if self.fed_at != Some(returned) {
                self.fed_at = Some(returned);
                self.feed_hungry(now);
                self.feed_starving(now);
            }
            let is_fed = self.fed_at == Some(self.buffers.returned());
            if is_fed && !self.ranges_freed && self.relieved.is_empty() {
                return;
            }
        }
    }

    /// Whether there is more to do though nothing happens: hosts wait for [`Target::prove`], there is an operation for a
    /// device, a service has something to hear or has answered, or something that somebody waits for came free since
    /// [`Target::pump`] was called last.
    pub fn can_go_on(&self) -> bool {
        let is_wanted = !self.hungry.is_empty() || !self.starving.is_empty();
        let is_fed = is_wanted && self.fed_at != Some(self.buffers.returned());
        let has_room = !self.relieved.is_empty() || self.ranges_freed;
        let is_served = self.foreign.can_go_on() || !self.dirty.is_empty();
        !self.proofs.is_empty() || self.backlog.is_ready() || is_fed || has_room || is_served
    }

    /// Gets a command its buffer, or has it wait in the order of its connection.
    pub(super) fn wait_for_buffer(&mut self, now: Instant, key: ConnectionKey, flight: FlightKey) {
        let must_queue = self.connection(key).is_none_or(|connection| !connection.waiting.is_empty());
        if !must_queue {
            match self.acquire(now, flight) {
                Ok(()) => return,
                Err(NotNow::Buffer) => {
                    let len = self.flights.get(flight).map_or(0, Flight::buffer_len);
                    self.counts.buffers_exhausted += u64::from(self.buffers.are_scarce(len));
                }
                Err(NotNow::Transfer) => {}
            }
        }
        self.counts.waits_for_buffer += 1;
        let Some(connection) = self.connection_mut(key) else { return };
        connection.waiting.push_back(flight);
        if !connection.is_hungry {
            connection.is_hungry = true;
            self.hungry.push_back(key);
        }
    }

    /// Takes a buffer for a command, and asks for its data if the host has it.
    fn acquire(&mut self, now: Instant, key: FlightKey) -> Result<(), NotNow> {
        let Some(flight) = self.flights.get_mut(key) else { return Ok(()) };
        if flight.state == State::Service {
            return self.lend_wanted(key);
        }
        let len = flight.transfer_len as usize;
        let connection_key = flight.connection;
        let is_compare = flight.is_compare();
        let is_solicited = match &flight.work {
            Work::Control(_) | Work::Foreign(_) => true,
            Work::Io(io) => !matches!(io.kind, IoKind::Read | IoKind::Verify),
        };
        let command = flight.command;
        let Some(slot) = self.slots.get_mut(connection_key.index as usize) else { return Ok(()) };
        let Some(connection) = slot.connection.as_deref_mut() else { return Ok(()) };
        if is_solicited && !connection.has_room_for_transfer(self.config.transfers_max) {
            return Err(NotNow::Transfer);
        }
        let block = match is_compare {
            true => self.buffers.for_compare(&connection.holder, len),
            false => self.buffers.for_transfer(&connection.holder, len),
        };
        let block = block.ok_or(NotNow::Buffer)?;
        (flight.data, flight.lease) = (Some(block.slice), block.lease);
        if !is_solicited {
            self.data_ready(now, key);
            return Ok(());
        }
        if let Some(tag) = connection.begin_transfer(key, self.config.transfers_max) {
            flight.state = State::Data(now);
            connection.solicit(command, tag, len as u32);
            self.touch(connection_key);
            self.arm(now);
        }
        Ok(())
    }

    /// Gives buffers to the connections that wait for them, one command each in turn. An account may have many connections, and what
    /// it cannot have is not asked for by each of them.
    fn feed_hungry(&mut self, now: Instant) {
        // What was admitted may not be any more, and is to hear of it whatever its account has.
        let is_changed = std::mem::take(&mut self.is_changed);
        let mut spent = Spent::default();
        let mut idle = 0;
        while idle < self.hungry.len()
            && let Some(key) = self.hungry.pop_front()
        {
            let Some(connection) = self.connection_mut(key) else { continue };
            let Some(flight) = connection.waiting.front().copied() else {
                connection.is_hungry = false;
                continue;
            };
            let account = connection.holder.account();
            // What a service wants may be several.
            let one = self.flights.get(flight).filter(|flight| flight.state != State::Service);
            let want = one.map(|one| Want { account, is_compare: one.is_compare(), len: one.buffer_len() });
            if !is_changed && want.is_some_and(|want| spent.has(&want)) {
                idle += 1;
                self.hungry.push_back(key);
                continue;
            }
            if let Err(status) = self.check_waiting(flight) {
                connection_pop(self.connection_mut(key));
                self.hungry.push_back(key);
                self.finish(flight, Err(status));
                continue;
            }
            match self.acquire(now, flight) {
                Ok(()) => {
                    idle = 0;
                    connection_pop(self.connection_mut(key));
                }
                Err(reason) => {
                    idle += 1;
                    self.counts.buffer_refusals += 1;
                    if let (NotNow::Buffer, Some(want), Some(connection)) =
                        (reason, want, self.connection(key))
                        && self.buffers.are_spent(&connection.holder, want.is_compare, want.len)
                    {
                        spent.note(want);
                    }
                }
            }
            self.hungry.push_back(key);
        }
    }

    /// Checks a command anew that waits for a buffer. What a service has was admitted, and its reads are when they are made.
    fn check_waiting(&self, key: FlightKey) -> Result<(), Status> {
        match self.flights.get(key) {
            Some(flight) if flight.state == State::Service => Ok(()),
            _ => self.check_again(key),
        }
    }

    /// Goes on with connections that wait for a buffer for a capsule's data.
    fn feed_starving(&mut self, now: Instant) {
        for _ in 0..self.starving.len() {
            let Some(key) = self.starving.pop_front() else { return };
            // One that gets none comes back as the last; those behind it may have a share left.
            self.resume(now, key);
        }
    }

    fn retry_blocked(&mut self) {
        for _ in 0..self.blocked.len() {
            let Some(key) = self.blocked.pop_front() else { return };
            let Some(flight) = self.flights.get(key) else { continue };
            let is_foreign = matches!(flight.work, Work::Foreign(_));
            let is_pair = flight.work.io().is_some_and(|io| io.is_fused && io.kind == IoKind::Compare);
            if let Err(status) = self.check_again(key) {
                self.finish(key, Err(status));
            } else if is_foreign {
                self.hand_out(key);
            } else if is_pair {
                self.begin_pair(key);
            } else {
                self.step(key);
            }
        }
    }

    pub(super) fn handle_events(&mut self, now: Instant) {
        while let Some(event) = self.control.events() {
            match event {
                ControlEvent::CompleteAsync { queue, command, result, status } => {
                    if let Some(key) = self.connection_of(queue) {
                        self.answer(key, command, status, u64::from(result));
                    }
                }
                ControlEvent::CloseQueue { queue, reason } => {
                    tracing::debug!(?queue, ?reason, "a queue is closed");
                    // The host may still have to hear why.
                    if let Some(key) = self.connection_of(queue) {
                        self.close_gently(now, key);
                    }
                }
                ControlEvent::CloseController { controller, reason, .. } => {
                    tracing::debug!(?controller, ?reason, "a controller is closed");
                    self.end_controller(now, controller);
                }
                ControlEvent::ShuttingDown { controller } => {
                    self.flights.await_end_of(controller);
                }
                ControlEvent::ReservationsChanged { subsystem, namespace, nsid } => {
                    self.changed_reservations.push_back(super::ReservationsChanged {
                        subsystem,
                        namespace,
                        nsid,
                    });
                }
            }
        }
    }
}

/// The command that waited longest waits no more.
fn connection_pop(connection: Option<&mut Connection>) {
    if let Some(connection) = connection {
        connection.waiting.pop_front();
    }
}
