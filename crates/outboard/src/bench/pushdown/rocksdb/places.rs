//! Which places of the namespace are free.

use std::collections::BTreeMap;

/// Places are whole multiples of this, which every block of a namespace divides.
pub(super) const GRAIN: u64 = 4096;
/// What lies together at most: tables are cut, so that reads cross from one extent to the next as they do on a file system.
const PIECE_LEN: u64 = 256 << 10;

/// The free places: lengths by offset, none of them beside another.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Places {
    free: BTreeMap<u64, u64>,
}

impl Places {
    /// A namespace of so many bytes with nothing in it.
    pub(super) fn new(len: u64) -> Self {
        let len = len / GRAIN * GRAIN;
        Self { free: (len > 0).then_some((0, len)).into_iter().collect() }
    }

    /// Takes places for so many bytes, each an offset and a length of whole grains; nothing if there is no room. They come from both ends in turn, so that no two of a table lie together.
    pub(super) fn take(&mut self, len: u64) -> Option<Vec<(u64, u64)>> {
        let mut left = len.next_multiple_of(GRAIN);
        let mut taken = Vec::new();
        while left > 0 {
            let is_low = taken.len() % 2 == 0;
            let place = if is_low { self.free.first_key_value() } else { self.free.last_key_value() };
            let Some((offset, free)) = place.map(|(offset, free)| (*offset, *free)) else {
                self.give_back(&taken);
                return None;
            };
            let piece = left.min(PIECE_LEN).min(free);
            self.free.remove(&offset);
            let (rest, at) = if is_low { (offset + piece, offset) } else { (offset, offset + free - piece) };
            if free > piece {
                self.free.insert(rest, free - piece);
            }
            taken.push((at, piece));
            left -= piece;
        }
        Some(taken)
    }

    /// Takes places back.
    pub(super) fn give_back(&mut self, places: &[(u64, u64)]) {
        for (offset, len) in places {
            let (mut offset, mut len) = (*offset, *len);
            if let Some((before, before_len)) =
                self.free.range(..offset).next_back().map(|(at, len)| (*at, *len))
                && before + before_len == offset
            {
                self.free.remove(&before);
                (offset, len) = (before, before_len + len);
            }
            if let Some(behind_len) = self.free.remove(&(offset + len)) {
                len += behind_len;
            }
            self.free.insert(offset, len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_place_is_given_twice_and_all_come_back() {
        let len = 64 * PIECE_LEN;
        let mut places = Places::new(len + 100);
        let mut rng = ob_sim::Rng::new(3);
        let mut held: Vec<Vec<(u64, u64)>> = Vec::new();
        for _ in 0..2000 {
            if rng.below(2) == 0 || held.is_empty() {
                let wanted = 1 + rng.below(6 * PIECE_LEN);
                let Some(taken) = places.take(wanted) else { continue };
                assert_eq!(taken.iter().map(|(_, len)| len).sum::<u64>(), wanted.next_multiple_of(GRAIN));
                held.push(taken);
            } else {
                let table = held.swap_remove(rng.index(held.len()));
                places.give_back(&table);
            }
            let mut all: Vec<(u64, u64)> = held.iter().flatten().copied().collect();
            all.extend(places.free.iter().map(|(offset, len)| (*offset, *len)));
            all.sort_unstable();
            let end = all.iter().try_fold(0, |end, (offset, len)| (*offset == end).then_some(offset + len));
            assert_eq!(end, Some(len), "places overlap, or some are lost");
        }
        held.iter().for_each(|table| places.give_back(table));
        assert_eq!(places, Places::new(len));
    }

    #[test]
    fn what_does_not_fit_leaves_all_as_it_was() {
        let mut places = Places::new(10 * GRAIN);
        let some = places.take(4 * GRAIN).unwrap();
        assert_eq!(places.take(7 * GRAIN), None);
        places.give_back(&some);
        assert_eq!(places, Places::new(10 * GRAIN));
        assert_eq!(places.take(0), Some(Vec::new()));
    }
}
