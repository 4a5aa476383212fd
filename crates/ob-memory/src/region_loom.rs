//! [`Region`] under loom: every word is an atomic that loom schedules, and every copied byte is checked for races.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU64;

/// One 8-byte word: `atomic` for those who load and store it, `race` to notice a copy that overlaps another one
/// without an order between them.
struct Word {
    atomic: AtomicU64,
    race: UnsafeCell<()>,
}

/// Words below this are a ring's control words, one a cache line; the others in between would only slow loom down.
const CONTROL_END: usize = 1024;

/// Stands for the real region.
#[derive(Clone)]
pub struct Region {
    len: usize,
    words: Arc<HashMap<usize, Word>>,
}

#[allow(missing_docs)] // Documented on the real one.
impl Region {
    pub fn on_heap(len: usize) -> Self {
        let touched =
            (0..len).step_by(8).filter(|offset| offset.is_multiple_of(64) || *offset >= CONTROL_END);
        let fresh = |offset| (offset, Word { atomic: AtomicU64::new(0), race: UnsafeCell::new(()) });
        Self { len, words: Arc::new(touched.map(fresh).collect()) }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn contains(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.len as u64)
    }

    pub fn prefetch_for_write(&self, _offset: usize) {}

    pub fn load(&self, offset: usize, order: Ordering) -> u64 {
        self.word(offset).atomic.load(order)
    }

    pub fn store(&self, offset: usize, value: u64, order: Ordering) {
        self.word(offset).atomic.store(value, order);
    }

    pub fn fetch_add(&self, offset: usize, value: u64, order: Ordering) -> u64 {
        self.word(offset).atomic.fetch_add(value, order)
    }

    pub fn compare_exchange(
        &self,
        offset: usize,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.word(offset).atomic.compare_exchange(current, new, success, failure)
    }

    pub fn copy_out(&self, offset: usize, into: &mut [u8]) {
        assert!(offset.is_multiple_of(8) && into.len().is_multiple_of(8), "loom copies whole words");
        for (index, chunk) in into.chunks_exact_mut(8).enumerate() {
            let word = self.word(offset + index * 8);
            word.race.with(|_| ());
            chunk.copy_from_slice(&word.atomic.load(Ordering::Relaxed).to_le_bytes());
        }
    }

    pub fn copy_in(&self, offset: usize, from: &[u8]) {
        assert!(offset.is_multiple_of(8) && from.len().is_multiple_of(8), "loom copies whole words");
        for (index, chunk) in from.chunks_exact(8).enumerate() {
            let word = self.word(offset + index * 8);
            word.race.with_mut(|_| ());
            let mut value = [0; 8];
            value.copy_from_slice(chunk);
            word.atomic.store(u64::from_le_bytes(value), Ordering::Relaxed);
        }
    }

    fn word(&self, offset: usize) -> &Word {
        &self.words[&offset]
    }
}

// SAFETY: loom's cell is not `Sync` by itself; it is used here only to let loom see overlapping copies, and holds
// no data.
unsafe impl Sync for Word {}
// SAFETY: as above.
unsafe impl Send for Word {}
