//! What the director does because time has passed.

use ob_core::Instant;
use ob_offload::Application;

use crate::connection::{Connection, ConnectionKey, Ending};
use crate::director::Director;

/// In how many times `long_stall_max` a client must send as many bytes as it has memory, while others wait for that.
const PERIODS_MAX: usize = 16;

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
        self.watch_hunger(now);
        self.end_gathering(now);
    }

    /// Sends the replies that have waited long enough for others.
    fn end_gathering(&mut self, now: Instant) {
        while let Some((until, key)) = self.gathering.front().copied() {
            if until > now {
                break;
            }
            self.gathering.pop_front();
            let Some(connection) = self.find(key) else { continue };
            connection.flags.is_gathering = false;
            if connection.is_to_be_sent() {
                connection.flags.is_dirty = true;
                self.dirty.push_back(key);
            }
        }
    }

    /// As long as somebody waits for memory for a long message, those that have it must get on.
    fn watch_hunger(&mut self, now: Instant) {
        // Nobody is looked at unless all of it was taken.
        let may_starve = self.budget.left() == 0 || self.hungry_since.is_some();
        let wanted: usize = match may_starve {
            true => self.connections.iter().flatten().map(|connection| connection.starves_for()).sum(),
            false => 0,
        };
        match self.hungry_since {
            _ if wanted == 0 => self.hungry_since = None,
            None => self.begin_hunger(now),
            Some(since) if now.since(since) >= self.config.long_stall_max => {
                self.end_slowest(wanted);
                self.begin_hunger(now);
            }
            Some(_) => {}
        }
    }

    /// From now on it counts what each of those that have memory receives, and takes of its replies.
    fn begin_hunger(&mut self, now: Instant) {
        self.hungry_since = Some(now);
        for connection in self.connections.iter_mut().flatten() {
            connection.progress_from = connection.input.is_charged().then_some(connection.progress);
        }
    }

    /// Closes those that were too slow, the slowest first, until the others have what they want.
    fn end_slowest(&mut self, wanted: usize) {
        let long = self.connections.iter().flatten().filter(|found| found.input.charged() > 0);
        let mut slow: Vec<(u64, ConnectionKey)> =
            long.clone().filter_map(|found| Some((self.too_slow(found)?, found.key))).collect();
        slow.sort_unstable_by_key(|(progress, _)| *progress);
        if slow.is_empty() && long.clone().all(|found| found.starves_for() > 0) {
            // All of them wait for each other. Who has most stands in the way of most.
            let largest = long.max_by_key(|found| found.input.charged());
            slow.extend(largest.map(|found| (found.progress, found.key)));
        }
        let mut freed = 0;
        for (_, key) in slow {
            if freed >= wanted {
                break;
            }
            if let Some(connection) = self.take(key) {
                freed += connection.input.charged();
                self.counts.starved += 1;
                self.forget(connection, true);
            }
        }
        if freed > 0 {
            self.feed();
        }
    }

    /// How little a connection has got on since this is looked at, if that is too little and its client is to blame: the rest of a
    /// message does not come, or the client does not take the replies that have to leave before. What waits for the host, or for
    /// memory itself, is nobody's fault. A byte now and then is not enough: the more memory a message has, the faster it must go.
    fn too_slow(&self, connection: &Connection<A::Cutter>) -> Option<u64> {
        let progress = connection.progress - connection.progress_from?;
        let sends_nothing =
            connection.underway.len == 0 && !self.is_clogged(connection) && connection.starves_for() == 0;
        let takes_nothing = connection.flags.is_clogged && !connection.flags.awaits_stream;
        let least = self.config.long_progress_min.max(connection.input.charged() / PERIODS_MAX);
        ((sends_nothing || takes_nothing) && progress < least as u64).then_some(progress)
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
