//! What has to happen in time: silent and slow peers are given up.

use std::time::Duration;

use ob_core::Instant;

use super::connection::{Connection, ConnectionKey, FirstHalf};
use super::flight::{Flights, State};
use super::{Target, TargetConfig};

/// How often connections are looked at while any of them has a time to keep.
const SWEEP: Duration = Duration::from_millis(500);

impl Target {
    /// Does what is due. Call it when [`Target::next_due`] says so, or more often.
    pub fn tick(&mut self, now: Instant) {
        self.latest = now;
        self.control.tick(now);
        if self.sweep_at.is_some_and(|at| at <= now) {
            self.sweep_at = None;
            self.sweep(now);
        }
        self.pump(now);
    }

    /// When [`Target::tick`] is due next.
    pub fn next_due(&self) -> Option<Instant> {
        [self.sweep_at, self.control.next_due()].into_iter().flatten().min()
    }

    /// Notes that some connection has a time to keep.
    pub(super) fn arm(&mut self, now: Instant) {
        if self.sweep_at.is_none() {
            self.sweep_at = Some(now + SWEEP);
        }
    }

    fn sweep(&mut self, now: Instant) {
        let (mut late, mut halves) = (Vec::new(), Vec::new());
        let mut is_any_armed = false;
        for (index, slot) in self.slots.iter().enumerate() {
            let Some(connection) = slot.connection.as_deref() else { continue };
            if let Some(FirstHalf::Waiting(_, since)) = connection.fused {
                is_any_armed = true;
                if since + self.config.fused_timeout <= now {
                    halves.push(ConnectionKey { index: index as u32, generation: slot.generation });
                }
            }
            match deadline(connection, &self.flights, &self.config) {
                Some(at) if at <= now => {
                    late.push(ConnectionKey { index: index as u32, generation: slot.generation });
                }
                Some(_) => is_any_armed = true,
                None => {}
            }
        }
        for key in halves {
            self.abandon_fused(key);
        }
        for key in late {
            self.counts.timeouts += 1;
            self.end(now, key);
        }
        if is_any_armed {
            self.arm(now);
        }
    }
}

/// By when a peer has to have done what it owes, if it owes anything.
fn deadline(connection: &Connection, flights: &Flights, config: &TargetConfig) -> Option<Instant> {
    if let Some(since) = connection.closing {
        return Some(since + config.close_timeout);
    }
    let opening = (!connection.stream.is_open()).then(|| connection.accepted + config.open_timeout);
    let connecting = connection.queue.is_none().then(|| connection.accepted + config.connect_timeout);
    let within = connection.within_since.map(|since| since + config.pdu_timeout);
    let unsent = connection.unsent_since.map(|since| since + config.send_timeout);
    let drain = connection.drain.map(|drain| drain.since + config.drain_timeout);
    let data = connection.soliciting().filter_map(|key| match flights.get(key)?.state {
        State::Data(since) => Some(since + config.data_timeout),
        _ => None,
    });
    [opening, connecting, within, unsent, drain, data.min()].into_iter().flatten().min()
}
