//! Which bytes of an answer plans have written.

use std::ops::Range;

/// Stretches that are kept apart; what would be one more is taken for unwritten.
const STRETCHES_MAX: usize = 4096;

/// The bytes of an answer's memory that were written, whoever wrote them and how often: the others are somebody else's, of before.
#[derive(Debug, Default)]
pub(super) struct Coverage {
    /// In their order, and none touches the next.
    stretches: Vec<(usize, usize)>,
}

impl Coverage {
    /// Bytes were written.
    pub(super) fn add(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        // Those that it touches become one with it.
        let first = self.stretches.partition_point(|(_, end)| *end < range.start);
        let behind = self.stretches.partition_point(|(start, _)| *start <= range.end);
        let touched = self.stretches.get(first..behind).unwrap_or_default();
        let start = touched.first().map_or(range.start, |(start, _)| range.start.min(*start));
        let end = touched.last().map_or(range.end, |(_, end)| range.end.max(*end));
        if !touched.is_empty() {
            if let Some(place) = self.stretches.get_mut(first) {
                *place = (start, end);
            }
            self.stretches.drain(first + 1..behind);
        } else if self.stretches.len() < STRETCHES_MAX {
            self.stretches.insert(first, (start, end));
        }
    }

    /// Whether all of so many bytes were written.
    pub(super) fn is_whole(&self, len: usize) -> bool {
        len == 0 || self.stretches.first().is_some_and(|(start, end)| *start == 0 && *end >= len)
    }

    /// None was.
    pub(super) fn clear(&mut self) {
        self.stretches.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_knows_which_bytes_were_written_in_any_order_and_twice() {
        let mut state = 7u64;
        let mut below = |limit: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % limit
        };
        for _ in 0..200 {
            let (mut coverage, mut model) = (Coverage::default(), [false; 64]);
            for _ in 0..40 {
                let start = below(64);
                let range = start..(start + below(12)).min(64);
                coverage.add(range.clone());
                model[range].fill(true);
                let written = model.iter().take_while(|is_written| **is_written).count();
                for len in 0..=64 {
                    assert_eq!(coverage.is_whole(len), len <= written, "{coverage:?} {len}");
                }
                assert!(coverage.stretches.windows(2).all(|pair| pair[0].1 < pair[1].0), "{coverage:?}");
            }
            coverage.clear();
            assert!(!coverage.is_whole(1) && coverage.is_whole(0));
        }
    }

    #[test]
    fn what_lies_in_too_many_places_is_not_written() {
        let mut coverage = Coverage::default();
        for at in (0..4 * STRETCHES_MAX).step_by(2) {
            coverage.add(at..at + 1);
        }
        assert_eq!(coverage.stretches.len(), STRETCHES_MAX);
        coverage.add(0..4 * STRETCHES_MAX);
        assert!(coverage.is_whole(4 * STRETCHES_MAX), "in one piece it is");
    }
}
