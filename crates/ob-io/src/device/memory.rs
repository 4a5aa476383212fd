//! A device in this process's own memory: for tests, and where losing everything is fine.

use std::collections::VecDeque;

use ob_core::{
    Device, DeviceCompletion, DeviceError, DeviceInfo, DeviceOp, Instant, Refused, RefusedReason, Token,
};
use rustix::mm::{Advice, madvise};
use rustix::param::page_size;

/// RAM that behaves like a disk. Every operation takes effect at submission and is complete at the next poll.
pub struct MemoryDevice {
    memory: Vec<u8>,
    /// Where the device begins in it.
    start: usize,
    info: DeviceInfo,
    depth: usize,
    queue: VecDeque<DeviceCompletion>,
}

impl MemoryDevice {
    /// A zeroed device of `capacity` bytes, rounded down to whole blocks.
    ///
    /// # Panics
    ///
    /// When `block_len` is not a power of two: a mistake in the program, not in its input.
    pub fn new(capacity: usize, block_len: u32) -> Self {
        assert!(block_len.is_power_of_two(), "a block of {block_len} bytes");
        let capacity = capacity - capacity % block_len as usize;
        let (memory, start) = aligned(capacity);
        Self {
            memory,
            start,
            info: DeviceInfo {
                capacity: capacity as u64,
                block_len,
                volatile_cache: false,
                discard_unit: block_len.max(u32::try_from(page_size()).unwrap_or(block_len)),
            },
            depth: 256,
            queue: VecDeque::with_capacity(256),
        }
    }

    /// The same, with room for `depth` operations that are submitted and not yet polled.
    pub fn with_depth(mut self, depth: usize) -> Self {
        self.depth = depth.max(1);
        self.queue.reserve(self.depth);
        self
    }

    /// What it holds, for tests.
    pub fn bytes(&self) -> &[u8] {
        self.memory.get(self.start..).unwrap_or_default()
    }

    fn apply(&mut self, op: &mut DeviceOp) -> Result<(), DeviceError> {
        self.info.check(op)?;
        let Some((offset, len)) = op.extent() else { return Ok(()) };
        // In range, because `check` said so.
        let range = &mut self.memory[self.start + offset as usize..][..len as usize];
        match op {
            DeviceOp::Read { into, .. } => into.copy_from_slice(range),
            DeviceOp::Write { from, .. } => range.copy_from_slice(from),
            DeviceOp::Discard { .. } | DeviceOp::WriteZeroes { .. } => clear(range),
            DeviceOp::Flush => {}
        }
        Ok(())
    }
}

/// Zeros, and where `len` of them begin on the boundary of a page, to the end: blocks that straddle cache lines take half
/// as long again to copy.
fn aligned(len: usize) -> (Vec<u8>, usize) {
    let page = page_size();
    let mut memory = vec![0; len + page];
    let start = memory.as_ptr().align_offset(page).min(page);
    memory.truncate(start + len);
    (memory, start)
}

/// Makes bytes zero, and gives the pages that they fill back to the system: a device of memory takes no more of it than
/// what was written and not discarded, whatever size it says.
fn clear(bytes: &mut [u8]) {
    // The system's own: it takes whole pages, and of the last one also what was not named.
    let page = page_size();
    let head_len = bytes.as_ptr().align_offset(page).min(bytes.len());
    let (head, rest) = bytes.split_at_mut(head_len);
    let (pages, tail) = rest.split_at_mut(rest.len() - rest.len() % page);
    head.fill(0);
    tail.fill(0);
    if !pages.is_empty() && !give_back(pages) {
        pages.fill(0);
    }
}

/// Gives whole pages back; `false` if that is not possible, and then nothing has changed.
fn give_back(pages: &mut [u8]) -> bool {
    // SAFETY: the bytes are ours alone for as long as the call takes, and may have any value afterwards; they are whole
    // pages, so nothing else is in them. They were allocated, so they lie in private anonymous memory, which reads as
    // zeros from then on.
    unsafe { madvise(pages.as_mut_ptr().cast(), pages.len(), Advice::LinuxDontNeed) }.is_ok()
}

impl Device for MemoryDevice {
    fn info(&self) -> DeviceInfo {
        self.info
    }

    fn submit(&mut self, token: Token, mut op: DeviceOp) -> Result<(), Refused<DeviceOp>> {
        if self.queue.len() >= self.depth {
            return Err(Refused { op, reason: RefusedReason::Busy });
        }
        let result = self.apply(&mut op);
        self.queue.push_back(DeviceCompletion { token, op, result });
        Ok(())
    }

    fn poll(&mut self) -> Option<DeviceCompletion> {
        self.queue.pop_front()
    }

    fn next_due(&self) -> Option<Instant> {
        // No kernel wakes anybody for this device, so a completion that waits is due already.
        (!self.queue.is_empty()).then(|| Instant::from_nanoseconds(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ob_memory::Pool;

    /// Bytes of memory that this process has touched.
    fn resident() -> usize {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        text.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * page_size()
    }

    #[test]
    fn what_is_discarded_reads_as_zeros_and_takes_no_memory() {
        const LEN: u64 = 256 << 20;
        let mut device = MemoryDevice::new(2 << 30, 512);
        let discard = |device: &mut MemoryDevice, offset, len| {
            device.submit(Token(1), DeviceOp::Discard { offset, len }).unwrap();
            assert_eq!(device.poll().unwrap().result, Ok(()));
        };
        let before = resident();
        discard(&mut device, 0, 2 << 30);
        assert!(resident() < before + (1 << 30), "what was never written is not touched");
        let start = device.start;
        device.memory[start..][..LEN as usize].fill(7);
        let full = resident();
        discard(&mut device, 512, LEN - 1024);
        assert!(resident() + (LEN as usize / 2) < full);
        let bytes = device.bytes();
        assert!(bytes[..512].iter().chain(&bytes[LEN as usize - 512..LEN as usize]).all(|byte| *byte == 7));
        assert!(bytes[512..LEN as usize - 512].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn reads_what_was_written_and_bounds_everything() {
        let pool = Pool::new(4096, 4);
        let mut device = MemoryDevice::new(10_000, 512).with_depth(2);
        assert_eq!(device.info().capacity, 9728);
        let mut from = pool.take().unwrap();
        from.fill(7);
        device.submit(Token(1), DeviceOp::Write { offset: 512, from: from.into(), durable: false }).unwrap();
        device.submit(Token(2), DeviceOp::Read { offset: 0, into: pool.take().unwrap() }).unwrap();
        let refused = device.submit(Token(3), DeviceOp::Flush).unwrap_err();
        assert_eq!(refused.reason, RefusedReason::Busy);
        assert!(device.next_due().is_some());
        assert_eq!(device.poll().unwrap().token, Token(1));
        let DeviceOp::Read { into, .. } = device.poll().unwrap().op else { panic!("not the read") };
        assert!(into[..512].iter().all(|byte| *byte == 0) && into[512..].iter().all(|byte| *byte == 7));
        assert!(device.poll().is_none() && device.next_due().is_none());
        device.submit(Token(4), DeviceOp::Discard { offset: 9728, len: 512 }).unwrap();
        assert_eq!(device.poll().unwrap().result, Err(DeviceError::OutOfRange));
    }
}
