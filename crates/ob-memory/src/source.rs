//! Memory that an operation reads, whoever else reads it.

use std::ops::Deref;

use crate::arena::{ArenaSpan, Slice};
use crate::shared::Shared;

/// Bytes that an operation only reads: of one owner, who gets them back with the completion, or of many.
///
/// A write takes this, so that one payload can be on its way to two devices and to the host at once, and a buffer that is filled
/// again and again costs no more than it did as a [`Slice`].
///
/// ```
/// # use ob_memory::{Pool, Source};
/// let pool = Pool::new(4096, 2);
/// let alone = Source::from(pool.take().unwrap());
/// assert!(alone.into_slice().is_some(), "it can be filled again");
///
/// let payload = pool.take().unwrap().share();
/// let writes = [Source::from(payload.clone()), Source::from(payload)];
/// assert_eq!(writes[0].as_ptr(), writes[1].as_ptr(), "no copy");
/// ```
#[derive(Debug)]
pub enum Source {
    /// Nobody else has these bytes.
    Owned(Slice),
    /// Others may be reading them.
    Shared(Shared),
}

impl Source {
    /// The slice, if the bytes have one owner.
    pub fn into_slice(self) -> Option<Slice> {
        match self {
            Self::Owned(slice) => Some(slice),
            Self::Shared(_) => None,
        }
    }

    /// The arena that they lie in: which registered buffer a driver must name.
    pub fn arena(&self) -> ArenaSpan {
        match self {
            Self::Owned(slice) => slice.arena(),
            Self::Shared(shared) => shared.arena(),
        }
    }

    /// Where in their arena they begin.
    pub fn start(&self) -> usize {
        match self {
            Self::Owned(slice) => slice.start(),
            Self::Shared(shared) => shared.start(),
        }
    }

    /// Cuts off and returns the first `at` bytes, owned or shared as they were; `self` keeps the rest.
    ///
    /// # Panics
    ///
    /// When `at` is beyond the end.
    pub fn split_to(&mut self, at: usize) -> Source {
        match self {
            Self::Owned(slice) => slice.split_to(at).into(),
            Self::Shared(shared) => shared.split_to(at).into(),
        }
    }
}

impl From<Slice> for Source {
    fn from(slice: Slice) -> Self {
        Self::Owned(slice)
    }
}

impl From<Shared> for Source {
    fn from(shared: Shared) -> Self {
        Self::Shared(shared)
    }
}

impl Deref for Source {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Owned(slice) => slice,
            Self::Shared(shared) => shared,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{PAGE, Pool};

    fn filled(pool: &Pool, byte: u8) -> Slice {
        let mut block = pool.take().unwrap();
        block.fill(byte);
        block
    }

    #[test]
    fn what_has_one_owner_comes_back_to_be_filled_again() {
        let pool = Pool::new(PAGE, 1);
        let block = filled(&pool, 1);
        let (place, start, arena) = (block.as_ptr(), block.start(), block.arena());
        let source = Source::from(block);
        assert_eq!((source.as_ptr(), source.start(), source.arena()), (place, start, arena));
        let mut block = source.into_slice().unwrap();
        block.fill(2);
        assert!(Source::from(block).iter().all(|byte| *byte == 2));
        assert_eq!(pool.blocks_out(), 0);
    }

    #[test]
    fn what_is_shared_lies_where_it_did_and_comes_back_to_nobody() {
        let pool = Pool::new(PAGE, 1);
        let payload = filled(&pool, 1).share();
        let part = Source::from(payload.part(100..200).unwrap());
        assert_eq!((part.as_ptr(), part.len()), (payload[100..].as_ptr(), 100));
        assert_eq!((part.arena(), part.start()), (payload.arena(), payload.start() + 100));
        assert!(part.into_slice().is_none());
        assert!(Source::from(payload.clone()).into_slice().is_none());
        drop(payload.clone());
        assert!(Source::from(payload).into_slice().is_none(), "not even to the last of its readers");
        assert_eq!(pool.blocks_out(), 0);
    }

    #[test]
    fn a_payload_is_cut_on_two_threads_and_read_on_a_third() {
        let pool = Pool::new(PAGE, 2);
        for round in 0..if cfg!(miri) { 3 } else { 500u16 } {
            let payload = filled(&pool, round as u8).share();
            std::thread::scope(|scope| {
                for step in [64, 100] {
                    let mut source = Source::from(payload.clone());
                    scope.spawn(move || {
                        while !source.is_empty() {
                            let piece = source.split_to(step.min(source.len()));
                            assert!(piece.iter().all(|byte| *byte == round as u8));
                        }
                    });
                }
                // What is beside it is written meanwhile.
                drop(filled(&pool, !(round as u8)));
                assert!(payload.iter().all(|byte| *byte == round as u8));
            });
            drop(payload);
            assert_eq!(pool.blocks_out(), 0);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 256 }))]
        /// However it is cut: the pieces are the whole, in its place, and each is as much somebody's own as the whole was.
        #[test]
        fn pieces_are_of_the_same_bytes_and_of_the_same_owners(
            cuts in prop::collection::vec(0usize..600, 0..12),
            is_shared: bool,
        ) {
            let pool = Pool::new(PAGE, 1);
            let mut block = pool.take().unwrap();
            block.iter_mut().zip(0u16..).for_each(|(byte, at)| *byte = (at % 251) as u8);
            let (place, expected) = (block.as_ptr().addr(), block.to_vec());
            let (mut rest, reader) = if is_shared {
                let payload = block.share();
                (Source::from(payload.clone()), Some(payload))
            } else {
                (Source::from(block), None)
            };
            let mut pieces: Vec<Source> =
                cuts.into_iter().map(|cut| rest.split_to(cut.min(rest.len()))).collect();
            pieces.push(rest);
            let mut at = 0;
            for piece in &pieces {
                prop_assert_eq!(&**piece, &expected[at..at + piece.len()]);
                prop_assert_eq!(piece.as_ptr().addr(), place + at);
                at += piece.len();
            }
            prop_assert_eq!(at, PAGE);
            let mut owned = pieces.into_iter().filter_map(Source::into_slice);
            let whole = owned.next().map(|first| owned.fold(first, |front, next| front.join(next).unwrap()));
            prop_assert_eq!(whole.map(|slice| slice.len()), (!is_shared).then_some(PAGE));
            prop_assert_eq!(pool.blocks_out(), usize::from(is_shared));
            drop(reader);
            prop_assert_eq!(pool.blocks_out(), 0);
        }
    }
}
