//! Fused Compare and Write: atomic against everybody else on the range (NVM §2.1.2, Base §3.4.2).
//!
//! ```text
//!   Compare (first) ─▶ waits ─┐
//!   Write (second)  ─▶ waits ─┴─▶ both have their data ─▶ range held ─▶ those before are done ─▶ read, compare ─▶ write
//! ```

use ob_core::Instant;
use ob_wire_nvme::command::{Fuse, IoOpcode};
use ob_wire_nvme::{Status, SubmissionEntry};

use super::super::Target;
use super::super::connection::{ConnectionKey, FirstHalf};
use super::super::dispatch::Arrival;
use super::super::flight::{Flight, FlightKey, State, Work};
use super::{Io, IoKind};
use crate::plant::{self, Bug};

impl Target {
    /// Looks at the fused bits of a command that arrives: the first half that it completes, if it is a second.
    pub(in crate::target) fn take_fused(
        &mut self,
        arrival: &Arrival<'_>,
    ) -> Result<Option<FlightKey>, Status> {
        let fuse = arrival.entry.fuse();
        if fuse != Ok(Fuse::Second) {
            self.abandon_fused(arrival.key);
        }
        let opcode = IoOpcode::try_from(arrival.entry.opcode);
        match fuse? {
            Fuse::None => Ok(None),
            Fuse::First if opcode == Ok(IoOpcode::Compare) => Ok(None),
            Fuse::First => Err(Status::INVALID_FIELD.with_do_not_retry()),
            Fuse::Second => {
                let first = self.connection_mut(arrival.key).and_then(|connection| connection.fused.take());
                match first {
                    // It may have been answered meanwhile: then it failed.
                    Some(FirstHalf::Waiting(first, _)) if self.io(first).is_some() => Ok(Some(first)),
                    Some(_) => Err(Status::ABORTED_FAILED_FUSED),
                    None => Err(Status::ABORTED_MISSING_FUSED),
                }
            }
        }
    }

    /// The command after the first half of a pair is not its second: the first fails.
    pub(in crate::target) fn abandon_fused(&mut self, key: ConnectionKey) {
        let first = self.connection_mut(key).and_then(|connection| connection.fused.take());
        if let Some(FirstHalf::Waiting(first, _)) = first {
            self.finish(first, Err(Status::ABORTED_MISSING_FUSED));
        }
    }

    /// Enters a command that may be a half of a pair.
    pub(in crate::target) fn enter_fused(
        &mut self,
        now: Instant,
        mut flight: Flight,
        entry: &SubmissionEntry,
        first: Option<FlightKey>,
    ) -> Result<FlightKey, Status> {
        let connection = flight.connection;
        let is_first = entry.fuse() == Ok(Fuse::First);
        let Work::Io(io) = &mut flight.work else { return Ok(self.enter(flight)) };
        io.is_fused = is_first || first.is_some();
        io.partner = first;
        if let Some(first) = first
            && !self.io(first).is_some_and(|first| are_a_pair(first, io))
        {
            return Err(Status::INVALID_FIELD.with_do_not_retry());
        }
        let key = self.enter(flight);
        if is_first && let Some(connection) = self.connection_mut(connection) {
            connection.fused = Some(FirstHalf::Waiting(key, now));
            self.arm(now);
        }
        if let Some(first) = first.and_then(|first| self.io_mut(first)) {
            first.partner = Some(key);
        }
        Ok(key)
    }

    /// Starts a command that has its data; a half of a pair starts with the other.
    pub(in crate::target) fn begin(&mut self, key: FlightKey) {
        let Some(flight) = self.flights.get_mut(key) else { return };
        let Work::Io(io) = &flight.work else { return };
        if !io.is_fused {
            return self.step(key);
        }
        let (partner, is_first) = (io.partner, io.kind == IoKind::Compare);
        flight.state = State::Partner;
        let Some(partner) = partner else { return };
        if self.flights.get(partner).is_some_and(|partner| partner.state == State::Partner) {
            self.begin_pair(if is_first { key } else { partner });
        }
    }

    /// Takes the pair's range, as soon as nobody else has it.
    pub(in crate::target) fn begin_pair(&mut self, first: FlightKey) {
        let Some(io) = self.io(first).copied() else { return };
        let second = io.partner.unwrap_or(first);
        if let Some((half, status)) = self.refused_half(first, second) {
            return self.finish(half, Err(status));
        }
        if self.ranges.blocks(io.place, io.offset, io.len, &[first, second]) {
            if let Some(flight) = self.flights.get_mut(first) {
                self.counts.waits_for_range += u64::from(flight.state != State::Range);
                flight.state = State::Range;
            }
            return self.blocked.push_back(first);
        }
        if plant::is_planted(Bug::PairUnlocked) {
            return self.step(first);
        }
        self.ranges.hold(io.place, io.offset, io.len, first);
        if let Some(place) = self.first_on_range(first, 0) {
            let has_waited = self.flights.get(first).is_some_and(|flight| flight.state == State::Range);
            self.counts.waits_for_range += u64::from(!has_waited);
            self.pairs.push((first, place));
        } else {
            self.step(first);
        }
    }

    /// The half of a pair that what happened since it was admitted forbids, a reservation above all.
    fn refused_half(&self, first: FlightKey, second: FlightKey) -> Option<(FlightKey, Status)> {
        [first, second].into_iter().find_map(|half| Some((half, self.check_again(half).err()?)))
    }

    /// Starts the pairs whose range has become free.
    pub(in crate::target) fn start_pairs(&mut self) {
        for (first, place) in std::mem::take(&mut self.pairs) {
            let Some(io) = self.io(first) else { continue };
            let second = io.partner.unwrap_or(first);
            if let Some(place) = self.first_on_range(first, place) {
                self.pairs.push((first, place));
            } else if let Some((half, status)) = self.refused_half(first, second) {
                self.finish(half, Err(status));
            } else {
                self.step(first);
            }
        }
    }

    /// The place of a command, from this one on, that is on the range of a pair. Who is not there yet waits for the pair, so places
    /// that were looked at need not be looked at again: however often this is asked, a pair looks at each once.
    fn first_on_range(&mut self, first: FlightKey, from: usize) -> Option<usize> {
        let own = self.io(first)?;
        let (start, end) = (own.offset, own.offset.saturating_add(own.len));
        let (found, looks) = self.flights.first_on_devices(from, |key, io| {
            key != first
                && io.place == own.place
                && io.offset < end
                && start < io.offset.saturating_add(io.len)
        });
        self.counts.pair_looks += looks as u64;
        found
    }

    /// A comparison has read what is on the device.
    pub(super) fn compared(&mut self, key: FlightKey) {
        let Some(flight) = self.flights.get_mut(key) else { return };
        let Work::Io(io) = &flight.work else { return };
        let is_equal = flight.data.as_deref() == flight.other.as_deref();
        if !is_equal
            && plant::is_planted(Bug::PairWritesAnyway)
            && let Some(second) = io.partner
        {
            flight.state = State::Partner;
            return self.step(second);
        }
        if !is_equal && !plant::is_planted(Bug::CompareAlwaysEqual) {
            return self.finish(key, Err(Status::COMPARE_FAILURE.with_do_not_retry()));
        }
        match io.partner {
            Some(second) => {
                flight.state = State::Partner;
                self.step(second);
            }
            None => self.finish(key, Ok(())),
        }
    }

    /// A device failed; of a pair whose comparison went well, only the write fails.
    pub(super) fn device_failed(&mut self, key: FlightKey, status: Status) {
        self.finish_compared(key);
        self.finish(key, Err(status));
    }

    /// Answers the comparison whose write is done, if this is such a write.
    pub(super) fn finish_compared(&mut self, key: FlightKey) {
        if let Some(Io { kind: IoKind::Write, partner: Some(first), .. }) = self.io(key).copied() {
            self.finish(first, Ok(()));
        }
    }

    pub(in crate::target) fn io(&self, key: FlightKey) -> Option<&Io> {
        match &self.flights.get(key)?.work {
            Work::Io(io) => Some(io),
            Work::Control(_) | Work::Foreign(_) => None,
        }
    }

    fn io_mut(&mut self, key: FlightKey) -> Option<&mut Io> {
        match &mut self.flights.get_mut(key)?.work {
            Work::Io(io) => Some(io),
            Work::Control(_) | Work::Foreign(_) => None,
        }
    }
}

fn are_a_pair(first: &Io, second: &Io) -> bool {
    second.kind == IoKind::Write
        && (first.namespace, first.offset, first.len) == (second.namespace, second.offset, second.len)
}
