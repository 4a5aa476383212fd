//! What the director does because time has passed.

use ob_core::Instant;
use ob_offload::Application;

use crate::connection::{Connection, ConnectionKey, Ending};
use crate::director::Director;

impl<A: Application> Director<A> {
    pub(crate) fn watch_time(&mut self) {
        let now = self.now.instant;
        while let Some(key) = self.lingering.front().copied() {
            let ending = self.peek(key).map(|connection| connection.ending);
            if let Some(Ending::Finished { until }) = ending
                && until > now
            {
                break;
            }
            self.lingering.pop_front();
            if let Some(connection) = self.take(key) {
                self.forget(connection, true);
            }
        }
        if self.is_starved()
            && let Some((key, since)) = self.oldest_long()
            && now.since(since) >= self.config.long_stall_max
            && let Some(connection) = self.take(key)
        {
            self.counts.starved += 1;
            self.forget(connection, true);
            self.feed();
        }
    }

    /// Whether a message waits for memory that others have.
    pub(crate) fn is_starved(&self) -> bool {
        // Nobody is looked at unless all of it is taken.
        self.budget.left() == 0
            && self.connections.iter().flatten().any(|found| found.input.is_starved(&self.budget))
    }

    /// The long message that has made no progress for longest, of those whose clients are to blame.
    pub(crate) fn oldest_long(&self) -> Option<(ConnectionKey, Instant)> {
        if self.budget.left() > 0 {
            return None;
        }
        let long = self.connections.iter().flatten().filter(|found| found.input.is_charged());
        let stalled = long.filter_map(|found| Some((found.key, self.stalled_since(found)?)));
        stalled.min_by_key(|(_, since)| *since)
    }

    /// Since when a client has kept its message from going on, if it has: the rest of it does not come, or the client does not
    /// take the replies that have to leave before. What waits for the host is nobody's fault.
    fn stalled_since(&self, connection: &Connection<A::Cutter>) -> Option<Instant> {
        if connection.underway.len == 0 && !self.is_clogged(connection) {
            return Some(connection.received_at);
        }
        let takes_nothing = connection.flags.is_clogged && !connection.flags.awaits_stream;
        takes_nothing.then(|| connection.received_at.max(connection.sent_at))
    }

    /// There is memory for long messages again: whoever waits may go on.
    pub(crate) fn feed(&mut self) {
        for index in 0..self.connections.len() {
            let held_up = self.connections.get(index).and_then(Option::as_ref);
            if let Some(key) = held_up.filter(|found| found.flags.is_held_up).map(|found| found.key) {
                self.make_ready(key);
            }
        }
    }
}
