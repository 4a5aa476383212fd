//! Which segments a file must have, and which it may have.

use std::collections::{BTreeMap, BTreeSet};

use super::content::OpNumber;
use super::{NEVER, Tick};

#[derive(Clone, Copy, Debug)]
struct Resize {
    asked: Tick,
    answered: Tick,
    /// The first segment that it cuts off.
    first_gone: u64,
    /// The file may have this size already; then what lies beyond its end stays where it is.
    idle: bool,
}

/// A range that becomes zeros: its segments may go, and until something is known of them nobody counts on them.
#[derive(Clone, Debug)]
struct Zero {
    answered: Tick,
    segments: std::ops::Range<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Write {
    asked: Tick,
    first: u64,
    last: u64,
}

/// The segments of one file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Segments {
    certain: BTreeSet<u64>,
    /// Holds `certain`.
    possible: BTreeSet<u64>,
    /// Cut off, but a loss of power could bring them back: since when.
    cut: Vec<(Tick, BTreeSet<u64>)>,
    writes: BTreeMap<OpNumber, Write>,
    /// Writes that were answered while a resize was on its way.
    beside_resize: BTreeSet<u64>,
    resizes: BTreeMap<OpNumber, Resize>,
    zeros: BTreeMap<OpNumber, Zero>,
}

impl Segments {
    /// Most segments that it may have now, and that are promised to writes: two that fill the same hole are each promised
    /// all of it. A file that is `gone` has none.
    pub(crate) fn upper(&self, gone: bool) -> u64 {
        // A resize that is on its way may have taken some already, and then writes beside it are promised them again.
        let pending = self.resizes.values().filter(|resize| resize.answered == NEVER);
        let kept = if gone { 0 } else { pending.map(|resize| resize.first_gone).min().unwrap_or(NEVER) };
        let has = |segment: &u64| *segment < kept && self.certain.contains(segment);
        let wanted = self.writes.values().flat_map(|write| write.first..=write.last);
        let promised = wanted.filter(|segment| !has(segment)).count();
        (if gone { 0 } else { self.possible.len() } + promised) as u64
    }

    pub(crate) fn write_asked(&mut self, op: OpNumber, first: u64, last: u64, now: Tick) {
        self.writes.insert(op, Write { asked: now, first, last });
    }

    /// A write was answered; `certain` if it went well, `possible` if it may have got its segments.
    pub(crate) fn write_answered(&mut self, op: OpNumber, certain: bool, possible: bool) {
        let Some(write) = self.writes.remove(&op) else { return };
        if !possible {
            return;
        }
        let beside = self.resizes.values().filter(|resize| resize.answered > write.asked);
        let limit = beside.map(|resize| resize.first_gone).min().unwrap_or(NEVER);
        for segment in write.first..=write.last {
            self.possible.insert(segment);
            let zeroed = |zero: &Zero| zero.answered > write.asked && zero.segments.contains(&segment);
            if certain && segment < limit && !self.zeros.values().any(zeroed) {
                self.certain.insert(segment);
            }
            if segment >= limit {
                self.beside_resize.insert(segment);
            }
        }
    }

    pub(crate) fn zero_asked(&mut self, op: OpNumber, segments: std::ops::Range<u64>) {
        self.certain.retain(|segment| !segments.contains(segment));
        self.zeros.insert(op, Zero { answered: NEVER, segments });
    }

    pub(crate) fn zero_answered(&mut self, op: OpNumber, now: Tick) {
        if let Some(zero) = self.zeros.get_mut(&op) {
            zero.answered = now;
        }
        // They matter only to writes that were on their way beside them.
        let oldest = self.writes.values().map(|write| write.asked).min().unwrap_or(NEVER);
        self.zeros.retain(|_, zero| zero.answered == NEVER || zero.answered > oldest);
    }

    pub(crate) fn resize_asked(&mut self, op: OpNumber, first_gone: u64, idle: bool, now: Tick) {
        self.resizes.insert(op, Resize { asked: now, answered: NEVER, first_gone, idle });
    }

    pub(crate) fn resize_answered(&mut self, op: OpNumber, done: bool, now: Tick) {
        let Some(resize) = self.resizes.get_mut(&op) else { return };
        let (first_gone, idle) = (resize.first_gone, resize.idle);
        if !done {
            self.resizes.remove(&op);
            return;
        }
        resize.answered = now;
        self.certain.retain(|segment| *segment < first_gone);
        let gone: BTreeSet<u64> = self
            .possible
            .range(first_gone..)
            .filter(|segment| !self.beside_resize.contains(segment))
            .copied()
            .collect();
        if !gone.is_empty() && !idle {
            self.possible.retain(|segment| !gone.contains(segment));
            self.cut.push((now, gone));
        }
        self.forget_resizes();
    }

    /// It is not known whether a resize took place; if so, it was beside the writes that are still on their way.
    pub(crate) fn resize_uncertain(&mut self, op: OpNumber, now: Tick) {
        let Some(resize) = self.resizes.get_mut(&op) else { return };
        resize.answered = now;
        let first_gone = resize.first_gone;
        self.certain.retain(|segment| *segment < first_gone);
        self.forget_resizes();
    }

    /// Resizes matter only to writes that were on their way beside them.
    fn forget_resizes(&mut self) {
        let oldest = self.writes.values().map(|write| write.asked).min().unwrap_or(NEVER);
        self.resizes.retain(|_, resize| resize.answered == NEVER || resize.answered > oldest);
        if self.resizes.is_empty() {
            self.beside_resize.clear();
        }
    }

    /// Everything that was answered before is durable.
    pub(crate) fn flushed(&mut self, asked: Tick) {
        self.cut.retain(|(answered, _)| *answered >= asked);
        self.forget_resizes();
    }

    pub(crate) fn crashed(&mut self, power: bool) {
        let coming: Vec<u64> = self.writes.values().flat_map(|write| write.first..=write.last).collect();
        self.possible.extend(coming);
        for resize in self.resizes.values().filter(|resize| resize.answered == NEVER) {
            self.certain.retain(|segment| *segment < resize.first_gone);
        }
        if power {
            self.certain.clear();
            for (_, gone) in std::mem::take(&mut self.cut) {
                self.possible.extend(gone);
            }
        }
        self.cut.clear();
        self.writes.clear();
        self.resizes.clear();
        self.zeros.clear();
        self.beside_resize.clear();
    }

    /// Bytes other than zero were seen in this segment.
    pub(crate) fn seen(&mut self, segment: u64) {
        if self.possible.contains(&segment) {
            self.certain.insert(segment);
        }
    }

    /// The card says how many there are, of a file that ends before the segment `end`: `false` if that cannot be.
    pub(crate) fn counted(&mut self, count: u64, end: u64, now: Tick) -> bool {
        if count == self.possible.len() as u64 {
            // What lies beyond the end goes when the file grows.
            self.certain = self.possible.range(..end).copied().collect();
        } else if count == self.certain.len() as u64 {
            let gone = self.possible.difference(&self.certain).copied().collect();
            self.cut.push((now, gone));
            self.possible = self.certain.clone();
        }
        (self.certain.len() as u64..=self.possible.len() as u64).contains(&count)
    }

    /// How many there must be at least, and may be at most.
    pub(crate) fn bounds(&self) -> (usize, usize) {
        (self.certain.len(), self.possible.len())
    }

    /// Whether a resize was on its way at some moment since.
    pub(crate) fn resized_since(&self, tick: Tick) -> bool {
        self.resizes.values().any(|resize| resize.answered > tick)
    }

    /// When the oldest resize was sent that is on its way.
    pub(crate) fn resizing_since(&self) -> Option<Tick> {
        let pending = self.resizes.values().filter(|resize| resize.answered == NEVER);
        pending.map(|resize| resize.asked).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_resize_may_have_cut_is_not_certain_by_a_write_beside_it() {
        let mut segments = Segments::default();
        segments.write_asked(1, 0, 3, 1);
        segments.resize_asked(2, 1, false, 2);
        segments.resize_uncertain(2, 3);
        segments.write_answered(1, true, true);
        assert_eq!(segments.bounds(), (1, 4));
        // One that comes behind both is.
        segments.write_asked(3, 0, 2, 4);
        segments.write_answered(3, true, true);
        assert_eq!(segments.bounds(), (3, 4));
    }
}
