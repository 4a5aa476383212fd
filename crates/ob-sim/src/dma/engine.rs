//! Moments and pieces: what a [`super::SimDma`] does inside.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use ob_core::{
    Bell, Clock, DmaAddress, DmaCompletion, DmaCounts, DmaError, DmaOp, Instant, RefusedReason, RegionId,
    Token,
};
use ob_ring::LocalDma;

use super::{DmaPlan, DmaStats};
use crate::{Rng, Trace};

/// Bytes are cut at multiples of this: the host never sees less than a cache line half written.
const LINE: usize = 64;
/// Pieces of one transfer.
const PIECES_MAX: u64 = 4;

/// Number of a transfer, growing with each submission.
type Number = u64;

pub(super) struct Engine {
    /// Knows the regions; never executes a transfer by itself.
    pub(super) local: LocalDma,
    pub(super) plan: DmaPlan,
    pub(super) trace: Trace,
    pub(super) done: VecDeque<DmaCompletion>,
    pub(super) counts: DmaCounts,
    pub(super) stats: DmaStats,
    pub(super) bells_rung: Vec<(Instant, Bell)>,
    rng: Rng,
    flights: BTreeMap<Number, Flight>,
    /// What is to be done to host memory or told to the card, by moment, then in the order it was planned.
    actions: BTreeMap<(Instant, u64), Action>,
    /// The keys of those actions that complete a transfer.
    completions: BTreeSet<(Instant, u64)>,
    planned: u64,
    submitted: Number,
    /// When the last write to a region has taken effect as a whole.
    written: BTreeMap<RegionId, Instant>,
    down: bool,
}

struct Flight {
    token: Token,
    op: DmaOp,
    result: Result<(), DmaError>,
    pieces_left: usize,
    pieces: usize,
}

enum Action {
    /// Bytes of a read or a write.
    Bytes {
        number: Number,
        from: usize,
        to: usize,
    },
    /// One word of an ordered read, or the word of a word write.
    Word {
        number: Number,
        index: usize,
    },
    Bell(Bell),
    Complete(Number),
}

impl Engine {
    pub(super) fn new(plan: DmaPlan, rng: Rng, trace: Trace) -> Self {
        Self {
            local: LocalDma::new(0, plan.largest_transfer),
            plan,
            trace,
            done: VecDeque::new(),
            counts: DmaCounts::default(),
            stats: DmaStats::default(),
            bells_rung: Vec::new(),
            rng,
            flights: BTreeMap::new(),
            actions: BTreeMap::new(),
            completions: BTreeSet::new(),
            planned: 0,
            submitted: 0,
            written: BTreeMap::new(),
            down: false,
        }
    }

    fn now(&self) -> Instant {
        self.trace.clock().now()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.flights.len() + self.done.len()
    }

    pub(super) fn next_completion(&self) -> Option<Instant> {
        self.completions.first().map(|(at, _)| *at)
    }

    pub(super) fn catch_up(&mut self) {
        self.advance(self.now());
    }

    pub(super) fn refuses(&mut self) -> Option<RefusedReason> {
        if self.down {
            return Some(RefusedReason::Gone);
        }
        let full = self.in_flight() >= self.plan.depth;
        let busy = full || (self.in_flight() > 0 && self.rng.chance(self.plan.busy));
        busy.then_some(RefusedReason::Busy)
    }

    pub(super) fn submit(&mut self, token: Token, op: DmaOp) {
        let number = self.submitted;
        self.submitted += 1;
        self.counts.count(&op);
        let (address, len) = op.extent();
        self.trace.note("dma submit", &[token.0, number, u64::from(op.is_write()), address.offset, len]);
        let mut result = self.check(&op);
        let before = self.planned;
        let ended = if result.is_err() { self.now() } else { self.plan_pieces(number, &op) };
        let is_bulk =
            matches!(op, DmaOp::Read { .. } | DmaOp::Write { .. }) && address.offset >= self.plan.bulk_from;
        if is_bulk && result.is_ok() && self.rng.chance(self.plan.transfer_errors) {
            // Its bytes are moved or not; nobody may rely on either.
            self.stats.transfer_errors += 1;
            result = Err(DmaError::OutOfRegion);
        }
        let pieces = (self.planned - before) as usize;
        self.flights.insert(number, Flight { token, op, result, pieces_left: pieces, pieces });
        let tail = self.rng.skewed(Duration::ZERO..self.plan.latency.end);
        let complete = ended + if self.rng.one_in(3) { Duration::ZERO } else { tail };
        let key = self.plan_action(complete, Action::Complete(number));
        self.completions.insert(key);
    }

    /// What a driver must refuse, whatever the numbers.
    fn check(&self, op: &DmaOp) -> Result<(), DmaError> {
        op.check_shape()?;
        let (address, len) = op.extent();
        if len > self.plan.largest_transfer as u64 {
            return Err(DmaError::TooLarge);
        }
        self.local.resolve(address, len).map(|_| ())
    }

    /// Gives each piece of a transfer its moment; the last of these moments.
    fn plan_pieces(&mut self, number: Number, op: &DmaOp) -> Instant {
        let now = self.now();
        let region = op.extent().0.region;
        let written = self.written(region);
        match op {
            DmaOp::Read { into, .. } => {
                let moments = self.moments(now, into.len());
                self.stats.torn_reads += u64::from(is_torn(&moments));
                self.stats.reads_before_writes +=
                    u64::from(moments.first().is_some_and(|(at, _, _)| *at < written));
                self.plan_bytes(number, now, moments)
            }
            DmaOp::Write { from, .. } => {
                let start = self.write_start(written);
                let moments = self.moments(start, from.len());
                self.stats.torn_writes += u64::from(is_torn(&moments));
                let ended = self.plan_bytes(number, start, moments);
                self.wrote(region, ended)
            }
            DmaOp::WriteWord { .. } => {
                let at = self.write_start(written);
                self.plan_action(at, Action::Word { number, index: 0 });
                self.wrote(region, at)
            }
            DmaOp::ReadWords { count, fence, .. } => {
                let earliest = if *fence { now.max(written) } else { now };
                let mut moments: Vec<Instant> = (0..*count).map(|_| self.moment(earliest)).collect();
                moments.sort_unstable();
                if !self.rng.chance(self.plan.pieces) {
                    let one = moments[0];
                    moments.fill(one);
                }
                self.stats.torn_words += u64::from(moments.first() != moments.last());
                self.stats.reads_before_writes += u64::from(moments[0] < written);
                for (index, at) in moments.iter().enumerate() {
                    self.plan_action(*at, Action::Word { number, index });
                }
                moments.last().copied().unwrap_or(now)
            }
        }
    }

    fn plan_bytes(
        &mut self,
        number: Number,
        start: Instant,
        moments: Vec<(Instant, usize, usize)>,
    ) -> Instant {
        let mut last = start;
        for (at, from, to) in moments {
            last = last.max(at);
            self.plan_action(at, Action::Bytes { number, from, to });
        }
        last
    }

    /// When everything submitted to a region so far has been written.
    fn written(&self, region: RegionId) -> Instant {
        self.written.get(&region).copied().unwrap_or_default()
    }

    fn wrote(&mut self, region: RegionId, ended: Instant) -> Instant {
        let elsewhere = self.written.iter().any(|(other, at)| *other != region && *at > ended);
        self.stats.writes_overtaken += u64::from(elsewhere);
        self.written.insert(region, ended);
        ended
    }

    /// The next write to a region begins after the last one there has ended.
    fn write_start(&mut self, written: Instant) -> Instant {
        let earliest = self.now().max(written);
        if self.rng.one_in(3) { earliest } else { self.moment(earliest) }
    }

    /// A moment for one piece: at once, at the end, or in between.
    fn moment(&mut self, earliest: Instant) -> Instant {
        match self.rng.below(3) {
            0 => earliest,
            1 => earliest + self.plan.latency.end,
            _ => earliest + self.rng.skewed(self.plan.latency.clone()),
        }
    }

    /// Cuts `len` bytes into pieces at cache lines, each with its moment, in no order.
    fn moments(&mut self, earliest: Instant, len: usize) -> Vec<(Instant, usize, usize)> {
        if len == 0 {
            return Vec::new();
        }
        let pieces = if self.rng.chance(self.plan.pieces) { self.rng.range(1..PIECES_MAX + 1) } else { 1 };
        let mut cuts = BTreeSet::from([0, len]);
        for _ in 1..pieces {
            cuts.insert((self.rng.index(len) / LINE) * LINE);
        }
        let cuts: Vec<usize> = cuts.into_iter().collect();
        cuts.windows(2).map(|cut| (self.moment(earliest), cut[0], cut[1])).collect()
    }

    fn plan_action(&mut self, at: Instant, action: Action) -> (Instant, u64) {
        let key = (at, self.planned);
        self.planned += 1;
        self.actions.insert(key, action);
        key
    }

    pub(super) fn ring(&mut self, bell: Bell) -> Result<(), DmaError> {
        if self.down {
            return Err(DmaError::LinkDown);
        }
        if !bell.address.offset.is_multiple_of(8) {
            return Err(DmaError::Misaligned);
        }
        self.local.resolve(bell.address, 8)?;
        let after = self.now().max(self.written(bell.address.region));
        let at = after + self.rng.skewed(self.plan.bell_latency.clone());
        self.trace.note("ring bell", &[bell.address.offset, at.nanoseconds()]);
        self.bells_rung.push((at, bell));
        self.plan_action(at, Action::Bell(bell));
        Ok(())
    }

    pub(super) fn advance(&mut self, now: Instant) {
        while let Some(entry) = self.actions.first_entry()
            && entry.key().0 <= now
        {
            let (key, action) = entry.remove_entry();
            self.apply(key, &action);
        }
    }

    fn apply(&mut self, key: (Instant, u64), action: &Action) {
        match *action {
            Action::Bytes { number, from, to } => self.move_bytes(number, from, to),
            Action::Word { number, index } => self.move_word(number, index),
            Action::Bell(bell) => {
                // A region that went away since has nobody left to wake.
                self.stats.bells += u64::from(self.local.bump_bell(bell).is_ok());
            }
            Action::Complete(number) => {
                self.completions.remove(&key);
                self.complete(number);
            }
        }
    }

    fn complete(&mut self, number: Number) {
        self.stats.overtaken += u64::from(self.flights.range(..number).next().is_some());
        if let Some(Flight { token, op, result, .. }) = self.flights.remove(&number) {
            self.done.push_back(DmaCompletion { token, op, result });
        }
    }

    fn move_bytes(&mut self, number: Number, from: usize, to: usize) {
        let Some(flight) = self.flights.get_mut(&number) else { return };
        flight.pieces_left -= 1;
        let (address, _) = flight.op.extent();
        let address = DmaAddress { offset: address.offset + from as u64, ..address };
        match self.local.resolve(address, (to - from) as u64) {
            Err(error) => flight.result = Err(error),
            Ok((region, offset)) => match &mut flight.op {
                DmaOp::Read { into, .. } => region.copy_out(offset, &mut into[from..to]),
                DmaOp::Write { from: bytes, .. } => region.copy_in(offset, &bytes[from..to]),
                DmaOp::ReadWords { .. } | DmaOp::WriteWord { .. } => {}
            },
        }
    }

    fn move_word(&mut self, number: Number, index: usize) {
        let Some(flight) = self.flights.get_mut(&number) else { return };
        flight.pieces_left -= 1;
        let (address, _) = flight.op.extent();
        let moved = match &mut flight.op {
            DmaOp::ReadWords { stride, words, .. } => {
                let offset = address.offset + index as u64 * u64::from(*stride);
                let mut one = DmaOp::read_words(DmaAddress { offset, ..address }, 8, 1, false);
                let moved = self.local.execute(&mut one);
                if let DmaOp::ReadWords { words: [word, ..], .. } = one {
                    words[index] = word;
                }
                moved
            }
            op => self.local.execute(op),
        };
        if moved.is_err() {
            flight.result = moved;
        }
    }

    pub(super) fn fail(&mut self) {
        self.catch_up();
        self.let_some_writes_through();
        self.down = true;
        self.actions.clear();
        self.completions.clear();
        let flights = std::mem::take(&mut self.flights);
        self.trace.note("link down", &[flights.len() as u64]);
        for flight in flights.values().filter(|flight| flight.op.is_write() && flight.result.is_ok()) {
            let begun = flight.pieces_left < flight.pieces;
            self.stats.writes_cut += u64::from(begun && flight.pieces_left > 0);
            self.stats.writes_lost += u64::from(!begun);
        }
        let mut failed: Vec<Flight> = flights.into_values().collect();
        self.rng.shuffle(&mut failed);
        for Flight { token, op, .. } in failed {
            self.done.push_back(DmaCompletion { token, op, result: Err(DmaError::LinkDown) });
        }
        self.local.shut_down();
    }

    /// Some of what was on its way may have made it: the next pieces of the writes, in their order.
    fn let_some_writes_through(&mut self) {
        let mut more = if self.rng.one_in(2) { self.rng.below(6) } else { 0 };
        let actions = std::mem::take(&mut self.actions);
        for (key, action) in actions {
            let number = match action {
                Action::Bytes { number, .. } | Action::Word { number, .. } => number,
                Action::Bell(_) | Action::Complete(_) => continue,
            };
            let is_write = self.flights.get(&number).is_some_and(|flight| flight.op.is_write());
            if is_write && more > 0 {
                more -= 1;
                self.apply(key, &action);
            }
        }
    }
}

fn is_torn(moments: &[(Instant, usize, usize)]) -> bool {
    moments.windows(2).any(|pair| pair[0].0 != pair[1].0)
}
