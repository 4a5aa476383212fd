//! Transfers across a link that takes its time, and promises nothing that [`Dma`] does not.
//!
//! ```text
//!   submit ──▶ pieces, each with a moment ──▶ advance(now): host memory read or written ──▶ poll
//!
//!   write 1   ├─piece─piece──┤
//!   write 2                  ├──piece─┤          in order, each in pieces, pieces in any order
//!   read      ├piece────────────────────piece┤   any moments from submission to completion
//!   words             (fence) ├─w0──w1────w2─┤   ascending; with a fence after all earlier writes
//!   bell                      ├───────────────▶  after all earlier writes, maybe after later ones
//! ```
//!
//! All of this holds for one region. What happens in another region is before, after or in the midst of it.
//!
//! Completions come in any order. A protocol that relies on more than the contract (that a read is a snapshot of
//! one moment, that a read sees an earlier write, that completions are in order) fails here.

mod engine;

use std::ops::Range;
use std::time::Duration;

use ob_core::{
    Bell, Clock, Dma, DmaCompletion, DmaCounts, DmaError, DmaOp, Doorbell, Instant, Refused, RefusedReason,
    RegionId, Token,
};
use ob_link::{CardEngine, Wake};
use ob_memory::Region;

use crate::{PerMillion, Rng, Trace};
use engine::Engine;

/// How a link behaves.
#[derive(Clone, Debug)]
pub struct DmaPlan {
    /// Transfers and completions held at once.
    pub depth: usize,
    /// The most bytes of one transfer.
    pub largest_transfer: usize,
    /// How long a transfer takes.
    pub latency: Range<Duration>,
    /// How long a bell takes after the writes before it.
    pub bell_latency: Range<Duration>,
    /// How often a transfer is refused as if the queue were full. (Only while another is in flight, so that a
    /// caller who waits for a completion does not wait for ever.)
    pub busy: PerMillion,
    /// How often a transfer is cut into pieces with a moment each.
    pub pieces: PerMillion,
    /// How often bulk (what is read or written at or beyond [`DmaPlan::bulk_from`]) fails alone, perhaps after some of its
    /// bytes were moved.
    pub transfer_errors: PerMillion,
    /// Where in a region bulk begins. Rings before it never fail alone: that closes their group, which is no story.
    pub bulk_from: u64,
}

impl Default for DmaPlan {
    fn default() -> Self {
        let microseconds = Duration::from_micros;
        Self {
            depth: 64,
            largest_transfer: 1 << 20,
            latency: Duration::from_nanos(200)..microseconds(20),
            bell_latency: Duration::from_nanos(100)..microseconds(20),
            busy: PerMillion::percent(1),
            pieces: PerMillion::percent(50),
            transfer_errors: PerMillion::NEVER,
            bulk_from: u64::MAX,
        }
    }
}

/// What a link did, so that a test can see that a fault was reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DmaStats {
    /// Transfers refused because the queue was full, or seemed so.
    pub busy: u64,
    /// Reads whose pieces have different moments.
    pub torn_reads: u64,
    /// Ordered reads whose words have different moments.
    pub torn_words: u64,
    /// Writes whose pieces have different moments.
    pub torn_writes: u64,
    /// Reads that looked at the memory before an earlier write took effect.
    pub reads_before_writes: u64,
    /// Completions that came before that of an earlier transfer.
    pub overtaken: u64,
    /// Writes that took effect before an earlier write to another region.
    pub writes_overtaken: u64,
    /// Bulk that failed alone.
    pub transfer_errors: u64,
    /// Bells that took effect.
    pub bells: u64,
    /// Writes that had taken effect in part when the link failed.
    pub writes_cut: u64,
    /// Writes that had not begun to take effect when the link failed.
    pub writes_lost: u64,
}

/// The card's way into one host's memory, in virtual time.
pub struct SimDma {
    engine: Engine,
}

impl SimDma {
    /// A link that behaves as planned, in the time of the trace's clock.
    pub fn new(plan: DmaPlan, rng: Rng, trace: Trace) -> Self {
        Self { engine: Engine::new(plan, rng, trace) }
    }

    /// Makes a region reachable.
    pub fn register(&mut self, id: RegionId, region: Region) {
        self.engine.catch_up();
        self.engine.local.register(id, region);
    }

    /// Makes a region unreachable: what is not done on it yet fails.
    pub fn unregister(&mut self, id: RegionId) {
        self.engine.catch_up();
        self.engine.local.unregister(id);
    }

    /// Does everything to host memory that is due by `now`. Call this before anyone else looks at that memory.
    pub fn advance(&mut self, now: Instant) {
        self.engine.advance(now);
    }

    /// The link fails. Some writes more, in their order, may just have made it; nothing takes effect after that,
    /// and every transfer in flight completes with [`DmaError::LinkDown`].
    pub fn fail(&mut self) {
        self.engine.fail();
    }

    /// Whether transfers are in flight or wait to be polled.
    pub fn is_idle(&self) -> bool {
        self.engine.in_flight() == 0
    }

    /// The bells rung since the last call, each with the moment its word will change: whoever plays the host
    /// wakes the sleepers of that bell then or later.
    pub fn take_bells(&mut self) -> Vec<(Instant, Bell)> {
        std::mem::take(&mut self.engine.bells_rung)
    }

    /// What it did so far.
    pub fn stats(&self) -> DmaStats {
        self.engine.stats
    }
}

impl Dma for SimDma {
    fn largest_transfer(&self) -> usize {
        self.engine.plan.largest_transfer
    }

    fn submit(&mut self, token: Token, op: DmaOp) -> Result<(), Refused<DmaOp>> {
        self.engine.catch_up();
        match self.engine.refuses() {
            Some(reason) => {
                self.engine.stats.busy += u64::from(reason == RefusedReason::Busy);
                self.engine.trace.note("dma refused", &[token.0]);
                Err(Refused { op, reason })
            }
            None => {
                self.engine.submit(token, op);
                Ok(())
            }
        }
    }

    fn poll(&mut self) -> Option<DmaCompletion> {
        self.engine.catch_up();
        let completion = self.engine.done.pop_front()?;
        self.engine.trace.note("dma done", &[completion.token.0, u64::from(completion.result.is_err())]);
        Some(completion)
    }

    fn next_due(&self) -> Option<Instant> {
        if !self.engine.done.is_empty() {
            return Some(self.engine.trace.clock().now());
        }
        let bell = self.engine.bells_rung.iter().map(|(at, _)| *at).min();
        [self.engine.next_completion(), bell].into_iter().flatten().min()
    }

    fn counts(&self) -> DmaCounts {
        self.engine.counts
    }
}

impl Doorbell for SimDma {
    fn ring(&mut self, bell: Bell) -> Result<(), DmaError> {
        self.engine.catch_up();
        self.engine.ring(bell)
    }
}

impl CardEngine for SimDma {
    fn register(&mut self, id: RegionId, region: Region) {
        Self::register(self, id, region);
    }

    fn unregister(&mut self, id: RegionId) {
        Self::unregister(self, id);
    }

    fn shut_down(&mut self) {
        self.fail();
    }

    fn is_waiting(&self) -> bool {
        !self.is_idle()
    }

    fn next_wake(&mut self, now: Instant) -> Option<Wake> {
        self.engine.catch_up();
        while let Some(index) = self.engine.bells_rung.iter().position(|(at, _)| *at <= now) {
            let (_, bell) = self.engine.bells_rung.swap_remove(index);
            // A bell in a region that was closed meanwhile wakes nobody.
            if let Ok((region, offset)) = self.engine.local.resolve(bell.address, 8) {
                return Some(Wake { region: region.clone(), offset });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;
