//! Shared memory with the costs of PCIe added.
//!
//! ```text
//!   submit ──▶ engine (one at a time: gap + bytes / bandwidth) ──▶ flight (latency, grows with load) ──▶ takes
//!                                                                                     effect, is polled
//! ```
//!
//! A transfer takes effect at its due time, not before: a read sees memory as it is then. So programs on a modelled
//! link meet the delays that programs on a card would.

use std::collections::VecDeque;
use std::time::Duration;

use ob_core::{
    Clock, Dma, DmaCompletion, DmaCounts, DmaOp, Instant, Refused, RefusedReason, RegionId, Token,
};
use ob_ring::LocalDma;

/// What transfers cost on a modelled link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// From submission to effect when the link is idle.
    pub latency: Duration,
    /// A read's latency when the link is saturated.
    pub read_latency_loaded: Duration,
    /// A write's latency when the link is saturated.
    pub write_latency_loaded: Duration,
    /// How long the engine is busy with a transfer besides moving its bytes.
    pub gap: Duration,
    /// Bytes a second.
    pub bandwidth: u64,
    /// The most bytes of one transfer.
    pub largest_transfer: usize,
}

impl Costs {
    /// PCIe 4.0 x16 to a card: 1.4 µs a transfer when idle; 11.3 µs (read) and 6.6 µs (write) when saturated
    /// (SmartDS, Table 1); 25 GB/s; at most 2 MiB a transfer (CODA §IV). The engine takes 100 ns a transfer.
    pub const PCIE4: Self = Self {
        latency: Duration::from_nanos(1_400),
        read_latency_loaded: Duration::from_nanos(11_300),
        write_latency_loaded: Duration::from_nanos(6_600),
        gap: Duration::from_nanos(100),
        bandwidth: 25_000_000_000,
        largest_transfer: 2 << 20,
    };

    /// PCIe 3.0 x16: as [`Costs::PCIE4`] with half the bandwidth.
    pub const PCIE3: Self = Self { bandwidth: 12_500_000_000, ..Self::PCIE4 };

    /// The presets by name.
    pub const PRESETS: &[(&str, Self)] = &[("pcie4", Self::PCIE4), ("pcie3", Self::PCIE3)];

    /// A preset by name.
    pub fn preset(name: &str) -> Option<Self> {
        Self::PRESETS.iter().find(|(known, _)| *known == name).map(|(_, costs)| *costs)
    }
}

/// Load is measured over about so long.
const LOAD_WINDOW: Duration = Duration::from_micros(20);

/// A [`LocalDma`] whose transfers take their time.
pub struct ModelDma<C> {
    inner: LocalDma,
    clock: C,
    costs: Costs,
    /// Transfers under way, in the order they fall due.
    flight: VecDeque<Flight>,
    depth: usize,
    engine_free: Instant,
    /// When the last write to a region takes effect, for regions that have writes under way.
    last_write_due: Vec<(RegionId, Instant)>,
    /// Fraction of the recent past that the engine was busy, 0 to 1.
    load: f64,
    load_at: Instant,
    counts: DmaCounts,
}

struct Flight {
    due: Instant,
    token: Token,
    op: DmaOp,
}

impl<C: Clock> ModelDma<C> {
    /// Puts costs on the transfers of `inner`, at most `depth` of them in flight.
    pub fn new(inner: LocalDma, clock: C, costs: Costs, depth: usize) -> Self {
        let now = clock.now();
        Self {
            inner,
            clock,
            costs,
            flight: VecDeque::with_capacity(depth),
            depth,
            engine_free: now,
            last_write_due: Vec::new(),
            load: 0.0,
            load_at: now,
            counts: DmaCounts::default(),
        }
    }

    /// The engine without costs.
    pub fn inner_mut(&mut self) -> &mut LocalDma {
        &mut self.inner
    }

    /// When everything submitted to a region so far will have taken effect: a bell rung there now must not be heard
    /// before.
    pub fn settled_at(&self, region: RegionId) -> Instant {
        let last = self.last_write_due.iter().find(|(other, _)| *other == region);
        last.map_or(Instant::default(), |(_, due)| *due)
    }

    fn wrote(&mut self, region: RegionId, due: Instant) {
        // What was executed holds nobody up: only regions with writes under way are kept, so there are few. (Executed,
        // not only due: a bell must not be heard before.)
        let first = self.flight.front().map(|first| first.due);
        self.last_write_due
            .retain(|(other, last)| *other != region && first.is_some_and(|first| *last >= first));
        self.last_write_due.push((region, due));
    }

    fn due(&mut self, op: &DmaOp) -> Instant {
        let now = self.clock.now();
        let bytes = op.extent().1;
        let moving = Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / self.costs.bandwidth.max(1));
        let busy = self.costs.gap + moving;
        // Load is a moving average of the engine's busy time, aged by what passed since the last transfer.
        let elapsed = now.since(self.load_at).as_secs_f64() / LOAD_WINDOW.as_secs_f64();
        self.load = (self.load * (-elapsed).exp() + busy.as_secs_f64() / LOAD_WINDOW.as_secs_f64()).min(1.0);
        self.load_at = now;
        let loaded =
            if op.is_write() { self.costs.write_latency_loaded } else { self.costs.read_latency_loaded };
        // Queueing delay stays small until the link is nearly full, then rises steeply.
        let extra = loaded.saturating_sub(self.costs.latency).mul_f64(self.load.powi(4));
        let start = self.engine_free.max(now);
        self.engine_free = start + busy;
        let mut due = start + moving + self.costs.latency + extra;
        let region = op.extent().0.region;
        if op.is_write() || matches!(op, DmaOp::ReadWords { fence: true, .. }) {
            due = due.max(self.settled_at(region));
        }
        if op.is_write() {
            self.wrote(region, due);
        }
        due
    }
}

impl<C: Clock> Dma for ModelDma<C> {
    fn largest_transfer(&self) -> usize {
        self.costs.largest_transfer.min(self.inner.largest_transfer())
    }

    fn submit(&mut self, token: Token, op: DmaOp) -> Result<(), Refused<DmaOp>> {
        if self.flight.len() >= self.depth {
            return Err(Refused { op, reason: RefusedReason::Busy });
        }
        self.counts.count(&op);
        let due = self.due(&op);
        let behind = self.flight.iter().rev().take_while(|other| other.due > due).count();
        self.flight.insert(self.flight.len() - behind, Flight { due, token, op });
        Ok(())
    }

    fn poll(&mut self) -> Option<DmaCompletion> {
        let now = self.clock.now();
        let Flight { token, mut op, .. } = self.flight.pop_front_if(|first| first.due <= now)?;
        let result = self.inner.execute(&mut op);
        Some(DmaCompletion { token, op, result })
    }

    fn next_due(&self) -> Option<Instant> {
        self.flight.front().map(|first| first.due)
    }

    fn counts(&self) -> DmaCounts {
        self.counts
    }
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
