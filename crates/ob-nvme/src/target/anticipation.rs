//! Where the data of the next capsules will lie, if they are like the last ones.
//!
//! ```text
//!   receive:  │ direct │ gap │ block 0 │ gap │ block 1 │ … │ scratch │
//!                        └─ what ends the PDU before, and the next header
//! ```
//!
//! Hosts that write small blocks send a header, some data, a header, as much data, and so on. One receive takes many of
//! them, and then the data is to be copied to where it belongs. But it can be received there at once when the pattern
//! has held for a while: the receive is offered blocks at the places where data is due. If a header turns out as
//! expected, its command trades the block that it was given for the one that has its data already; if not, the bytes go
//! the usual way, one piece after the other.

use std::io::IoSliceMut;

use ob_memory::Slice;

use super::buffers::Buffers;

/// Capsules that one receive looks ahead. It is what a queue of the usual depth brings, and a system call takes as many
/// pieces without noticing.
pub(super) const AHEAD_MAX: usize = 32;
/// Bytes between the data of two capsules at most: a digest, a header with its own, and padding.
const GAP_MAX: usize = 4 + 255 + 4;
/// Capsules of one kind after which more of them are expected.
const RUN_MIN: u8 = 4;

/// What capsules with data looked like lately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Run {
    /// Where the data begins in its PDU.
    pub(super) data_at: u16,
    /// Its bytes.
    pub(super) data_len: u32,
    /// Bytes behind it.
    pub(super) tail_len: u8,
    /// How many there were.
    count: u8,
}

impl Run {
    /// One more, which may begin a new run.
    pub(super) fn add(&mut self, (data_at, data_len, tail_len): (usize, usize, usize)) {
        let one = Self {
            data_at: data_at as u16,
            data_len: data_len as u32,
            tail_len: tail_len as u8,
            count: self.count,
        };
        *self = if *self == one {
            Self { count: self.count.saturating_add(1), ..one }
        } else {
            Self { count: 1, ..one }
        };
    }

    /// Something else came.
    pub(super) fn end(&mut self) {
        self.count = 0;
    }

    /// How many more are expected.
    fn ahead(&self) -> usize {
        if self.count < RUN_MIN || self.data_len == 0 { 0 } else { usize::from(self.count).min(AHEAD_MAX) }
    }
}

/// Blocks for data that is expected, and the room between them.
#[derive(Default)]
pub(super) struct Anticipation {
    blocks: Vec<Slice>,
    gaps: Vec<[u8; GAP_MAX]>,
    /// Of the receive under way: bytes of the first gap, of the others, and how many of each there are.
    first: usize,
    others: usize,
    ahead: usize,
}

impl Anticipation {
    /// Prepares for one receive of a connection whose next data comes after `first` bytes.
    pub(super) fn prepare(&mut self, buffers: &Buffers, run: Run, first: Option<usize>) {
        self.ahead = 0;
        let others = usize::from(run.tail_len) + usize::from(run.data_at);
        let Some(first) = first.filter(|first| *first <= GAP_MAX && others <= GAP_MAX) else { return };
        (self.first, self.others) = (first, others);
        let len = run.data_len as usize;
        for index in 0..run.ahead() {
            if self.gaps.len() <= index {
                self.gaps.push([0; GAP_MAX]);
            }
            match self.blocks.get_mut(index) {
                Some(block) if block.len() == len => {}
                Some(_) => {
                    // Its own block has to be back before there is another for sure.
                    drop(self.blocks.swap_remove(index));
                    let Some(block) = buffers.for_anticipation(len) else { return };
                    self.blocks.push(block);
                    let last = self.blocks.len() - 1;
                    self.blocks.swap(index, last);
                }
                None => {
                    let Some(block) = buffers.for_anticipation(len) else { return };
                    self.blocks.push(block);
                }
            }
            self.ahead = index + 1;
        }
    }

    /// Nothing is expected.
    pub(super) fn clear(&mut self) {
        self.ahead = 0;
    }

    /// How many blocks it keeps, whether they are used or not.
    pub(super) fn kept(&self) -> usize {
        self.blocks.len()
    }

    /// Offers gaps and blocks to a receive; how many pieces.
    pub(super) fn offer<'a>(&'a mut self, into: &mut [IoSliceMut<'a>]) -> usize {
        let (first, others) = (self.first, self.others);
        let pairs = self.gaps.iter_mut().zip(&mut self.blocks).take(self.ahead);
        let mut count = 0;
        for ((index, (gap, block)), places) in pairs.enumerate().zip(into.chunks_exact_mut(2)) {
            let [gap_place, block_place] = places else { break };
            let gap_len = if index == 0 { first } else { others };
            *gap_place = IoSliceMut::new(gap.get_mut(..gap_len).unwrap_or_default());
            *block_place = IoSliceMut::new(block);
            count += 2;
        }
        count
    }

    /// The gaps and blocks that one receive was offered, in the order of its bytes.
    pub(super) fn pieces(&mut self) -> impl Iterator<Item = (&[u8], &mut Slice)> {
        let (first, others) = (self.first, self.others);
        let pairs = self.gaps.iter().zip(&mut self.blocks).take(self.ahead).enumerate();
        pairs.map(move |(index, (gap, block))| {
            let len = if index == 0 { first } else { others };
            (gap.get(..len).unwrap_or_default(), block)
        })
    }
}
