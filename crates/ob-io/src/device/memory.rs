//! A device in this process's own memory: for tests, and where losing everything is fine.

use std::collections::VecDeque;

use ob_core::{
    Device, DeviceCompletion, DeviceError, DeviceInfo, DeviceOp, Instant, Refused, RefusedReason, Token,
};

/// RAM that behaves like a disk. Every operation takes effect at submission and is complete at the next poll.
pub struct MemoryDevice {
    bytes: Vec<u8>,
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
        Self {
            bytes: vec![0; capacity],
            info: DeviceInfo { capacity: capacity as u64, block_len, volatile_cache: false },
            depth: 256,
            queue: VecDeque::with_capacity(256),
        }
    }

    /// The same, saying that completed writes may be lost until a flush (it loses none; wrap it in a
    /// [`super::FaultyDevice`] for that).
    pub fn with_volatile_cache(mut self, volatile_cache: bool) -> Self {
        self.info.volatile_cache = volatile_cache;
        self
    }

    /// The same, with room for `depth` operations that are submitted and not yet polled.
    pub fn with_depth(mut self, depth: usize) -> Self {
        self.depth = depth.max(1);
        self.queue.reserve(self.depth);
        self
    }

    /// What it holds, for tests.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn apply(&mut self, op: &mut DeviceOp) -> Result<(), DeviceError> {
        self.info.check(op)?;
        let Some((offset, len)) = op.extent() else { return Ok(()) };
        // In range, because `check` said so.
        let range = &mut self.bytes[offset as usize..][..len as usize];
        match op {
            DeviceOp::Read { into, .. } => into.copy_from_slice(range),
            DeviceOp::Write { from, .. } => range.copy_from_slice(from),
            DeviceOp::Discard { .. } | DeviceOp::WriteZeroes { .. } => range.fill(0),
            DeviceOp::Flush => {}
        }
        Ok(())
    }
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

    #[test]
    fn reads_what_was_written_and_bounds_everything() {
        let pool = Pool::new(4096, 4);
        let mut device = MemoryDevice::new(10_000, 512).with_depth(2);
        assert_eq!(device.info().capacity, 9728);
        let mut from = pool.take().unwrap();
        from.fill(7);
        device.submit(Token(1), DeviceOp::Write { offset: 512, from, durable: false }).unwrap();
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
