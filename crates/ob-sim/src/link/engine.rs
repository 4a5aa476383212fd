//! A card's own engine: the simulated one, which both the attachment and the scenario reach.

use std::cell::RefCell;
use std::rc::Rc;

use ob_core::{
    Bell, Dma, DmaCompletion, DmaCounts, DmaError, DmaOp, Doorbell, Instant, Refused, RegionId, Token,
};
use ob_link::{CardEngine, Wake};
use ob_memory::Region;

use super::host::RINGS_LEN;
use crate::{DmaPlan, PerMillion, Rng, SimDma, Trace};

/// One attachment's engine. Host memory changes in its own time, so the scenario must move it on.
#[derive(Clone)]
pub(super) struct SharedDma(Rc<RefCell<SimDma>>);

impl SharedDma {
    pub(super) fn new(rng: Rng, trace: Trace) -> Self {
        let plan =
            DmaPlan { transfer_errors: PerMillion::percent(5), bulk_from: RINGS_LEN, ..DmaPlan::default() };
        Self(Rc::new(RefCell::new(SimDma::new(plan, rng, trace))))
    }

    /// Does to host memory what is due by now.
    pub(super) fn advance(&self, now: Instant) {
        self.0.borrow_mut().advance(now);
    }

    /// The card is dead: some of what was under way may just have made it.
    pub(super) fn fail(&self) {
        self.0.borrow_mut().fail();
    }

    /// How many writes took effect before an earlier one of another region.
    pub(super) fn writes_overtaken(&self) -> u64 {
        self.0.borrow().stats().writes_overtaken
    }
}

impl Dma for SharedDma {
    fn largest_transfer(&self) -> usize {
        self.0.borrow().largest_transfer()
    }

    fn submit(&mut self, token: Token, op: DmaOp) -> Result<(), Refused<DmaOp>> {
        self.0.borrow_mut().submit(token, op)
    }

    fn poll(&mut self) -> Option<DmaCompletion> {
        self.0.borrow_mut().poll()
    }

    fn next_due(&self) -> Option<Instant> {
        self.0.borrow().next_due()
    }

    fn counts(&self) -> DmaCounts {
        self.0.borrow().counts()
    }
}

impl Doorbell for SharedDma {
    fn ring(&mut self, bell: Bell) -> Result<(), DmaError> {
        self.0.borrow_mut().ring(bell)
    }
}

impl CardEngine for SharedDma {
    fn register(&mut self, id: RegionId, region: Region) {
        self.0.borrow_mut().register(id, region);
    }

    fn unregister(&mut self, id: RegionId) {
        self.0.borrow_mut().unregister(id);
    }

    fn shut_down(&mut self) {
        self.fail();
    }

    fn is_waiting(&self) -> bool {
        !self.0.borrow().is_idle()
    }

    fn next_wake(&mut self, now: Instant) -> Option<Wake> {
        self.0.borrow_mut().next_wake(now)
    }
}
