//! Transfers of a card that can reach the host's memory by itself.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use ob_core::{
    Bell, Dma, DmaAddress, DmaCompletion, DmaCounts, DmaError, DmaOp, Refused, RefusedReason, RegionId, Token,
};
use ob_memory::{Region, full_fence, release_fence};

/// Executes transfers at once, on regions mapped into this process; completions wait to be polled.
///
/// This is the engine of the `shm` link, and what `model` puts its costs on.
pub struct LocalDma {
    /// By id. Found by search, not by index: on a host it is the card, which is not trusted, that gives out the ids.
    regions: Vec<(RegionId, Region)>,
    done: VecDeque<DmaCompletion>,
    depth: usize,
    largest_transfer: usize,
    counts: DmaCounts,
    down: bool,
}

impl LocalDma {
    /// An engine that holds at most `depth` completions.
    pub fn new(depth: usize, largest_transfer: usize) -> Self {
        let done = VecDeque::with_capacity(depth);
        Self { regions: Vec::new(), done, depth, largest_transfer, counts: DmaCounts::default(), down: false }
    }

    /// Makes a region reachable.
    pub fn register(&mut self, id: RegionId, region: Region) {
        match self.find(id) {
            Ok(index) => self.regions[index].1 = region,
            Err(index) => self.regions.insert(index, (id, region)),
        }
    }

    /// Makes a region unreachable: transfers to it fail from now on.
    pub fn unregister(&mut self, id: RegionId) {
        if let Ok(index) = self.find(id) {
            self.regions.remove(index);
        }
    }

    fn find(&self, id: RegionId) -> Result<usize, usize> {
        self.regions.binary_search_by_key(&id.0, |(id, _)| id.0)
    }

    /// Ends the link: nothing is accepted any more.
    pub fn shut_down(&mut self) {
        self.down = true;
        self.regions.clear();
    }

    /// The region and the offset of an address, if `len` bytes from there lie inside.
    pub fn resolve(&self, address: DmaAddress, len: u64) -> Result<(&Region, usize), DmaError> {
        let index = self.find(address.region).map_err(|_| DmaError::UnknownRegion)?;
        let region = &self.regions[index].1;
        if !region.contains(address.offset, len) {
            return Err(DmaError::OutOfRegion);
        }
        // An offset inside a region fits the address space.
        Ok((region, address.offset as usize))
    }

    /// Adds one to a bell's word; the driver then wakes those who sleep on it.
    pub fn bump_bell(&self, bell: Bell) -> Result<(&Region, usize), DmaError> {
        if !bell.address.offset.is_multiple_of(8) {
            return Err(DmaError::Misaligned);
        }
        let (region, offset) = self.resolve(bell.address, 8)?;
        // Only the card writes bells, so load and store need not be one operation.
        region.store(offset, region.load(offset, Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        Ok((region, offset))
    }

    /// Executes one transfer now, with the orders that [`Dma`] promises.
    pub fn execute(&self, op: &mut DmaOp) -> Result<(), DmaError> {
        op.check_shape()?;
        let (address, len) = op.extent();
        if len > self.largest_transfer as u64 {
            return Err(DmaError::TooLarge);
        }
        let (region, offset) = self.resolve(address, len)?;
        match op {
            DmaOp::Read { into, .. } => region.copy_out(offset, into),
            DmaOp::Write { from, .. } => {
                // Writes take effect in order: not before the word that was stored before.
                release_fence();
                region.copy_in(offset, from);
            }
            DmaOp::ReadWords { stride, count, fence, words, .. } => {
                if *fence {
                    full_fence();
                }
                for (index, word) in words.iter_mut().take(usize::from(*count)).enumerate() {
                    *word = region.load(offset + index * *stride as usize, Ordering::Acquire);
                }
            }
            DmaOp::WriteWord { value, .. } => region.store(offset, *value, Ordering::Release),
        }
        Ok(())
    }
}

impl Dma for LocalDma {
    fn largest_transfer(&self) -> usize {
        self.largest_transfer
    }

    fn submit(&mut self, token: Token, mut op: DmaOp) -> Result<(), Refused<DmaOp>> {
        if self.down {
            return Err(Refused { op, reason: RefusedReason::Gone });
        }
        if self.done.len() == self.depth {
            return Err(Refused { op, reason: RefusedReason::Busy });
        }
        self.counts.count(&op);
        let result = self.execute(&mut op);
        self.done.push_back(DmaCompletion { token, op, result });
        Ok(())
    }

    fn poll(&mut self) -> Option<DmaCompletion> {
        self.done.pop_front()
    }

    fn counts(&self) -> DmaCounts {
        self.counts
    }
}
