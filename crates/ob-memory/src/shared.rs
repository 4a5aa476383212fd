//! Memory that many may read and nobody can write any more.

use std::fmt;
use std::ops::{Deref, Range};

use crate::arena::{ArenaSpan, Slice};

/// A run of registered memory that has as many readers as want it.
///
/// What goes to three peers, or is sent while somebody computes its checksum, is shared once it is complete. There is no way
/// back to a [`Slice`]: the memory goes home when the last part of its block is gone, shared or not, and only then can
/// somebody write there again. A clone costs two counts and no allocation.
///
/// ```
/// # use ob_memory::Pool;
/// let pool = Pool::new(4096, 1);
/// let mut block = pool.take().unwrap();
/// block[..5].copy_from_slice(b"three");
/// let for_all = block.share();
/// let peers = [for_all.clone(), for_all.clone(), for_all];
/// assert!(peers.iter().all(|bytes| bytes.starts_with(b"three")));
/// drop(peers);
/// assert_eq!(pool.blocks_out(), 0);
/// ```
pub struct Shared(Slice);

impl Slice {
    /// Gives up writing, so that others may read.
    pub fn share(self) -> Shared {
        Shared(self)
    }
}

impl Shared {
    /// A part of it for another reader; `None` where it does not reach so far.
    pub fn part(&self, range: Range<usize>) -> Option<Shared> {
        if range.start > range.end || range.end > self.len() {
            return None;
        }
        // SAFETY: these bytes were a slice's that was given up for `self`, which never writes and never becomes a slice
        // again, so that only readers cover them.
        Some(Shared(unsafe { self.0.alias(range) }))
    }

    /// Cuts off and returns the first `at` bytes; `self` keeps the rest.
    ///
    /// # Panics
    ///
    /// When `at` is beyond the end.
    pub fn split_to(&mut self, at: usize) -> Shared {
        Shared(self.0.split_to(at))
    }

    /// The arena that it lies in: which registered buffer a driver must name.
    pub fn arena(&self) -> ArenaSpan {
        self.0.arena()
    }

    /// Where in its arena it begins.
    pub fn start(&self) -> usize {
        self.0.start()
    }
}

impl Clone for Shared {
    fn clone(&self) -> Self {
        // SAFETY: as for a part.
        Self(unsafe { self.0.alias(0..self.len()) })
    }
}

impl Deref for Shared {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Shared({}..{})", self.start(), self.start() + self.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use proptest::prelude::*;

    use super::*;
    use crate::{Mirror, PAGE, Pool};

    #[test]
    fn a_shared_block_comes_back_with_its_last_reader_and_not_before() {
        let pool = Pool::new(PAGE, 1);
        let mut block = pool.take().unwrap();
        block.fill(7);
        let shared = block.share();
        let (second, part) = (shared.clone(), shared.part(10..20).unwrap());
        assert_eq!((second.as_ptr(), part.as_ptr()), (shared.as_ptr(), shared[10..].as_ptr()), "no copy");
        drop(shared);
        assert!(pool.take().is_none());
        drop(second);
        assert_eq!((pool.blocks_out(), &part[..]), (1, &[7; 10][..]));
        let last = part.part(9..10).unwrap();
        drop(part);
        assert_eq!((pool.take().is_none(), last[0], pool.returned()), (true, 7, 0));
        drop(last);
        assert!(pool.take().is_some());
        assert_eq!(pool.returned(), 2, "the one that was just taken came back too");
    }

    #[test]
    fn the_parts_that_were_not_shared_are_written_and_joined_meanwhile() {
        let pool = Pool::new(PAGE, 1);
        let mut front = pool.take().unwrap();
        let mut back = front.split_off(PAGE / 2);
        let mut middle = back.split_to(8);
        middle.fill(1);
        let shared = middle.share();
        let reader = &shared[..];
        front.fill(2);
        back.fill(3);
        let (front, back) = front.join(back).unwrap_err();
        let (first, second) = {
            let mut first = front;
            let second = first.split_off(100);
            (first, second)
        };
        let mut front = first.join(second).unwrap();
        front.truncate(64);
        front.fill(4);
        assert!(reader.iter().all(|byte| *byte == 1));
        drop((front, back));
        assert!(pool.take().is_none(), "a reader is left");
        assert!(reader.iter().all(|byte| *byte == 1));
        drop(shared);
        assert_eq!(pool.take().unwrap().len(), PAGE);
    }

    #[test]
    fn parts_beyond_the_end_are_refused() {
        let pool = Pool::new(PAGE, 1);
        let mut block = pool.take().unwrap();
        block.truncate(100);
        let shared = block.share();
        assert_eq!(shared.part(0..100).unwrap().len(), 100);
        assert!(shared.part(100..100).unwrap().is_empty());
        #[expect(clippy::reversed_empty_ranges, reason = "it must be refused")]
        let backwards = [101..100, 60..50, usize::MAX..0];
        for wrong in [0..101, 101..101, 0..usize::MAX].into_iter().chain(backwards) {
            assert!(shared.part(wrong).is_none());
        }
        assert!(shared.part(50..60).unwrap().part(0..11).is_none(), "a part does not reach beyond itself");
    }

    #[test]
    fn a_mirror_waits_for_readers_too() {
        let mut mirror = Mirror::new(4096, 4);
        let mut batch = mirror.take(0, 4000).unwrap();
        let rest = batch.split_off(3900);
        batch.fill(5);
        let shared = batch.share();
        mirror.give_back(rest);
        let next = mirror.take(3900, 196).unwrap();
        assert!(mirror.take(4096, 1).is_none(), "it lies where a reader is");
        let part = shared.part(3800..3900).unwrap();
        drop((shared, next));
        assert!(mirror.take(4096, 1).is_none());
        assert!(part.iter().all(|byte| *byte == 5));
        drop(part);
        assert!(mirror.take(4096, 3000).is_some());
    }

    #[test]
    fn readers_on_other_threads_see_what_was_written_and_give_it_back() {
        let pool = Pool::new(PAGE, 2);
        let rounds = if cfg!(miri) { 20 } else { 5_000 };
        std::thread::scope(|scope| {
            let readers: Vec<mpsc::Sender<Shared>> = (0..3)
                .map(|_| {
                    let (sender, receiver) = mpsc::channel::<Shared>();
                    scope.spawn(move || {
                        for shared in receiver {
                            let copy = shared.part(0..8).unwrap();
                            drop(shared);
                            assert!(copy.iter().all(|byte| *byte == copy[0]));
                        }
                    });
                    sender
                })
                .collect();
            for round in 0..rounds {
                let mut block = loop {
                    let seen = pool.returned();
                    match pool.take() {
                        Some(block) => break block,
                        // What comes back after the look changes the count: nobody waits in vain.
                        None => {
                            while pool.returned() == seen {
                                std::thread::yield_now();
                            }
                        }
                    }
                };
                block[..64].fill(round as u8);
                let shared = block.share();
                for reader in &readers {
                    reader.send(shared.clone()).unwrap();
                }
            }
        });
        assert_eq!((pool.blocks_out(), pool.returned()), (0, rounds));
    }

    const STEPS_MAX: usize = if cfg!(miri) { 12 } else { 60 };

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 256 }))]
        /// Whatever is taken, cut, shared, cloned and dropped: a reader's bytes stay what they were when they were shared.
        #[test]
        fn what_is_shared_never_changes(steps in prop::collection::vec((0u8..5, any::<u8>(), any::<u16>()), 1..STEPS_MAX)) {
            let pool = Pool::new(PAGE, 3);
            let mut owned: Vec<Slice> = Vec::new();
            let mut shared: Vec<(u8, Shared)> = Vec::new();
            for (action, mark, number) in steps {
                let number = usize::from(number);
                match action {
                    0 => owned.extend(pool.take()),
                    1 if !owned.is_empty() => {
                        let index = number % owned.len();
                        let at = number % (owned[index].len() + 1);
                        let back = owned[index].split_off(at);
                        owned[index].fill(mark);
                        owned.push(back);
                    }
                    2 if !owned.is_empty() => {
                        let mut slice = owned.swap_remove(number % owned.len());
                        slice.fill(mark);
                        shared.push((mark, slice.share()));
                    }
                    3 if !shared.is_empty() => {
                        let (mark, of) = &shared[number % shared.len()];
                        let start = number % (of.len() + 1);
                        let part = of.part(start..of.len()).unwrap();
                        shared.push((*mark, part));
                    }
                    _ if !shared.is_empty() => drop(shared.swap_remove(number % shared.len())),
                    _ => {}
                }
                for slice in &mut owned {
                    slice.fill(0xEE);
                }
                for (mark, slice) in &shared {
                    prop_assert!(slice.iter().all(|byte| byte == mark));
                }
            }
            drop((owned, shared));
            prop_assert_eq!(pool.blocks_out(), 0);
        }
    }
}
