//! Transfers of a card that can reach the host's memory by itself.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use ob_core::{
    Bell, Dma, DmaAddress, DmaCompletion, DmaCounts, DmaError, DmaOp, Refused, RefusedReason, RegionId, Token,
};
use ob_memory::{Region, full_fence, release_fence};

/// Bytes that are copied before somebody polls. Copying is done by the thread that submits, while everybody else whom it
/// serves waits: a quarter of a millisecond or less at this size.
pub const UNPOLLED_BYTES_MAX: usize = 1 << 20;

/// Executes transfers at once, on regions mapped into this process; completions wait to be polled.
///
/// When what was copied and not polled yet exceeds [`UNPOLLED_BYTES_MAX`], more bytes are pushed back. Words always
/// pass, and so does any transfer after all others were polled, however large.
///
/// This is the engine of the `shm` link, and what `model` puts its costs on.
pub struct LocalDma {
    /// By id. Found by search, not by index: on a host it is the card, which is not trusted, that gives out the ids.
    regions: Vec<(RegionId, Region)>,
    done: VecDeque<DmaCompletion>,
    /// Bytes of reads and writes among `done`.
    unpolled_bytes: usize,
    depth: usize,
    largest_transfer: usize,
    counts: DmaCounts,
    down: bool,
}

impl LocalDma {
    /// An engine that holds at most `depth` completions.
    pub fn new(depth: usize, largest_transfer: usize) -> Self {
        let done = VecDeque::with_capacity(depth);
        let (regions, counts) = (Vec::new(), DmaCounts::default());
        Self { regions, done, unpolled_bytes: 0, depth, largest_transfer, counts, down: false }
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
        let bytes = payload_bytes(&op);
        if self.done.len() == self.depth || (bytes > 0 && self.unpolled_bytes > UNPOLLED_BYTES_MAX) {
            return Err(Refused { op, reason: RefusedReason::Busy });
        }
        self.counts.count(&op);
        self.unpolled_bytes += bytes;
        let result = self.execute(&mut op);
        self.done.push_back(DmaCompletion { token, op, result });
        Ok(())
    }

    fn poll(&mut self) -> Option<DmaCompletion> {
        let completion = self.done.pop_front()?;
        self.unpolled_bytes -= payload_bytes(&completion.op);
        Some(completion)
    }

    fn counts(&self) -> DmaCounts {
        self.counts
    }
}

/// Bytes that take time to copy: those of words do not.
fn payload_bytes(op: &DmaOp) -> usize {
    match op {
        DmaOp::Read { into, .. } => into.len(),
        DmaOp::Write { from, .. } => from.len(),
        DmaOp::ReadWords { .. } | DmaOp::WriteWord { .. } => 0,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use ob_memory::Pool;

    use super::*;

    const HERE: DmaAddress = DmaAddress { region: RegionId(0), offset: 0 };

    #[test]
    #[cfg_attr(
        miri,
        ignore = "Miri takes 20 minutes to copy 7 MiB; smaller transfers are copied by the tests of rings"
    )]
    fn one_step_copies_about_a_mebibyte_and_words_always_pass() {
        let mut dma = LocalDma::new(1024, 4 << 20);
        dma.register(RegionId(0), Region::on_heap(4 << 20));
        let pool = Pool::new(1 << 20, 4);
        let write = || DmaOp::Write { from: pool.take().unwrap().into(), to: HERE };
        dma.submit(Token(0), write()).unwrap();
        dma.submit(Token(1), write()).unwrap();
        let refused = dma.submit(Token(2), write()).unwrap_err();
        assert_eq!(refused.reason, RefusedReason::Busy);
        let read = DmaOp::Read { from: HERE, into: pool.take().unwrap() };
        assert_eq!(dma.submit(Token(2), read).unwrap_err().reason, RefusedReason::Busy);
        dma.submit(Token(3), DmaOp::WriteWord { to: HERE, value: 1 }).unwrap();
        dma.submit(Token(4), DmaOp::read_words(HERE, 8, 1, true)).unwrap();
        assert_eq!(dma.poll().unwrap().token, Token(0));
        dma.submit(Token(5), refused.op).unwrap();
        let rest: Vec<u64> = std::iter::from_fn(|| dma.poll()).map(|done| done.token.0).collect();
        assert_eq!(rest, [1, 3, 4, 5]);
        assert_eq!(dma.unpolled_bytes, 0);
        // However large, one always passes.
        let large = Pool::new(4 << 20, 1);
        dma.submit(Token(6), DmaOp::Write { from: large.take().unwrap().into(), to: HERE }).unwrap();
    }
}
