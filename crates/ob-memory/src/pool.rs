//! Blocks of equal size, taken and given back from any thread without waiting.

use std::sync::Arc;

use crate::PAGE;
use crate::arena::{Arena, ArenaSpan, Slice};

/// A fixed number of equal, page-aligned blocks of registered memory.
///
/// The pool is the bound: when it is empty, [`Pool::take`] says so and the caller pushes back.
#[derive(Clone)]
pub struct Pool {
    arena: Arc<Arena>,
    block_len: usize,
    blocks: usize,
}

impl Pool {
    /// Allocates `blocks` blocks of at least `block_len` bytes each (rounded up to whole pages).
    pub fn new(block_len: usize, blocks: usize) -> Self {
        let block_len = block_len.max(1).next_multiple_of(PAGE);
        Self { arena: Arena::new(block_len * blocks, blocks, true), block_len, blocks }
    }

    /// The same, or `None` if the system refuses the memory.
    pub fn try_new(block_len: usize, blocks: usize) -> Option<Self> {
        let block_len = block_len.max(1).next_multiple_of(PAGE);
        Some(Self { arena: Arena::try_new(block_len * blocks, blocks, true)?, block_len, blocks })
    }

    /// A free block, or `None` when all are out.
    pub fn take(&self) -> Option<Slice> {
        let lot = self.arena.pop()?;
        // SAFETY: the lot was on the free stack, so no slice of it exists, and lots do not overlap.
        Some(unsafe { self.arena.slice(lot, lot as usize * self.block_len, self.block_len) })
    }

    /// Bytes in a block.
    pub fn block_len(&self) -> usize {
        self.block_len
    }

    /// How many blocks there are, free or out.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// How many blocks are out: some part of each is in somebody's hands. It looks at every block.
    pub fn blocks_out(&self) -> usize {
        (0..self.blocks).filter(|lot| !self.arena.is_idle(*lot as u32)).count()
    }

    /// How many blocks have come back, in 32 bits. Who was told that there is none need not ask again before this changes: look
    /// at it first, then take. What sleeps meanwhile has to be woken by whoever gives back from another thread.
    pub fn returned(&self) -> u32 {
        self.arena.returned()
    }

    /// Where the pool's memory lies, for registration.
    pub fn arena(&self) -> ArenaSpan {
        self.arena.span()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore)] // Miri ends where a system refuses.
    fn memory_that_the_system_refuses_makes_no_pool() {
        assert!(Pool::try_new(1 << 62, 1).is_none());
        assert!(Pool::try_new(PAGE, 1).is_some());
    }

    #[test]
    fn takes_every_block_once_and_again_after_it_came_back() {
        let pool = Pool::new(100, 3);
        assert_eq!(pool.block_len(), PAGE);
        let mut taken: Vec<Slice> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(taken.len(), 3);
        for (index, slice) in taken.iter_mut().enumerate() {
            slice.fill(index as u8 + 1);
        }
        for (index, slice) in taken.iter().enumerate() {
            assert!(slice.iter().all(|byte| *byte == index as u8 + 1), "blocks do not overlap");
        }
        assert!(pool.take().is_none());
        taken.pop();
        assert!(pool.take().is_some());
    }

    #[test]
    fn what_is_let_go_in_front_is_nobodys_until_the_whole_comes_back() {
        let pool = Pool::new(PAGE, 1);
        let mut slice = pool.take().unwrap();
        for (at, byte) in slice.iter_mut().enumerate() {
            *byte = at as u8;
        }
        slice.advance(0);
        slice.advance(10);
        assert_eq!((slice.start(), slice.len(), slice[0]), (10, PAGE - 10, 10));
        let rest = slice.split_off(20);
        slice.truncate(5);
        slice.advance(5);
        assert!(slice.is_empty());
        assert_eq!((rest[0], rest.len(), pool.blocks_out()), (30, PAGE - 30, 1));
        drop(rest);
        assert!(pool.take().is_none(), "an empty part is one, too");
        drop(slice);
        assert!(pool.take().is_some());
    }

    #[test]
    #[should_panic(expected = "advance by 11 of 10")]
    fn no_slice_lets_go_of_more_than_it_has() {
        let mut slice = Pool::new(10, 1).take().unwrap();
        slice.truncate(10);
        slice.advance(11);
    }

    #[test]
    fn a_block_comes_back_only_with_its_last_part() {
        let pool = Pool::new(PAGE, 1);
        let mut whole = pool.take().unwrap();
        let mut front = whole.split_to(10);
        front[0] = 7;
        whole[0] = 8;
        drop(whole);
        assert!(pool.take().is_none());
        assert_eq!((front[0], pool.blocks_out()), (7, 1));
        drop(front);
        assert_eq!(pool.blocks_out(), 0);
        assert!(pool.take().is_some());
    }

    #[test]
    fn a_block_that_was_cut_short_is_whole_again_when_it_comes_back() {
        let pool = Pool::new(PAGE, 1);
        let mut short = pool.take().unwrap();
        short.truncate(10);
        short.truncate(20);
        assert_eq!((short.len(), pool.blocks_out()), (10, 1));
        let rest = short.split_off(4);
        assert_eq!(short.join(rest).unwrap().len(), 10);
        assert_eq!(pool.take().unwrap().len(), PAGE);
    }

    #[test]
    fn parts_join_only_side_by_side() {
        let pool = Pool::new(PAGE, 2);
        let mut first = pool.take().unwrap();
        let other = pool.take().unwrap();
        let back = first.split_off(64);
        assert_eq!((first.len(), back.len()), (64, PAGE - 64));
        let (back, first) = back.join(first).unwrap_err();
        let whole = first.join(back).unwrap();
        assert_eq!(whole.len(), PAGE);
        assert!(whole.join(other).is_err(), "two lots never join, even side by side");
    }

    #[test]
    fn threads_share_a_pool_without_sharing_a_block() {
        let pool = Pool::new(PAGE, 4);
        let rounds = if cfg!(miri) { 50 } else { 20_000 };
        std::thread::scope(|scope| {
            for id in 1..=3u8 {
                let pool = &pool;
                scope.spawn(move || {
                    for _ in 0..rounds {
                        let Some(mut slice) = pool.take() else { continue };
                        slice[..8].fill(id);
                        std::hint::spin_loop();
                        assert!(slice[..8].iter().all(|byte| *byte == id));
                    }
                });
            }
        });
        assert_eq!(std::iter::from_fn(|| pool.take()).collect::<Vec<_>>().len(), 4);
    }
}
