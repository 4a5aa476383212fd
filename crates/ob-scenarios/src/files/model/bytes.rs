//! What each byte of a file may be.
//!
//! ```text
//!   cell: a range of bytes ── candidates ── each a write (or zeros) with the time it was asked for and answered,
//!                                           whether it is durable, and whether something newer was seen
//! ```
//!
//! A byte is a register that is read and written by many at once. A read may return a write unless another one is known to
//! have come after it, and was answered before the read was sent. After a loss of power it may hold any write unless
//! a durable one is known to have come after it.

use std::collections::BTreeMap;

use super::content::{self, OpNumber};
use super::{NEVER, Tick};

/// What a byte was before anything was written.
const NOTHING_WRITTEN: OpNumber = 0;

/// One thing that bytes may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Candidate {
    op: OpNumber,
    /// It is zeros: nothing was written, or the file was cut here.
    zeros: bool,
    asked: Tick,
    answered: Tick,
    /// A read that ended then proved that something newer is there.
    stale: Tick,
    durable: bool,
    /// It may not have happened at all, so it replaces nothing.
    uncertain: bool,
    /// The device was mounted since: of all such candidates exactly one is there, for good.
    fixed: bool,
    /// How often the file may have ended in front of these bytes while it was on its way. Zeros, and what is left of a write that failed,
    /// go no further than that end, so what lies in front of one and what lies behind it need not be there together.
    ends: u32,
}

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Done {
        durable: bool,
    },
    /// Parts of it may be there.
    Uncertain,
    /// It changed nothing.
    Refused,
}

/// Bytes that cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    pub(crate) offset: u64,
    pub(crate) found: Vec<u8>,
    /// The writes that it could have been; 0 for zeros.
    pub(crate) allowed: Vec<OpNumber>,
    pub(crate) what: &'static str,
}

/// All bytes of a file, those beyond its end too.
#[derive(Clone, Debug)]
pub(crate) struct Bytes {
    /// By where they begin; each ends where the next begins.
    cells: BTreeMap<u64, Vec<Candidate>>,
}

impl Candidate {
    fn zeros(now: Tick) -> Self {
        Self {
            op: NOTHING_WRITTEN,
            zeros: true,
            asked: now,
            answered: now,
            stale: NEVER,
            durable: true,
            uncertain: true,
            fixed: true,
            ends: 0,
        }
    }

    fn matches(&self, offset: u64, bytes: &[u8]) -> bool {
        if self.zeros { bytes.iter().all(|byte| *byte == 0) } else { content::is(self.op, offset, bytes) }
    }
}

/// Whether `old` is known to have been replaced by something that was answered before `limit`.
fn is_replaced(old: &Candidate, cell: &[Candidate], limit: Tick) -> bool {
    cell.iter().any(|new| !new.uncertain && new.answered < limit && old.answered < new.asked)
}

fn is_replaced_durably(old: &Candidate, cell: &[Candidate], limit: Tick) -> bool {
    let replaces =
        |new: &Candidate| new.durable && !new.uncertain && new.answered < limit && old.answered < new.asked;
    cell.iter().any(replaces)
}

impl Bytes {
    /// Nothing but zeros.
    pub(crate) fn new(now: Tick) -> Self {
        Self { cells: BTreeMap::from([(0, vec![Candidate::zeros(now)])]) }
    }

    fn split(&mut self, at: u64) {
        if self.cells.contains_key(&at) {
            return;
        }
        if let Some((_, cell)) = self.cells.range(..at).next_back() {
            let copy = cell.clone();
            self.cells.insert(at, copy);
        }
    }

    fn cells_mut(&mut self, start: u64, end: u64) -> impl Iterator<Item = &mut Vec<Candidate>> {
        self.split(start);
        if end < NEVER {
            self.split(end);
        }
        self.cells.range_mut(start..end).map(|(_, cell)| cell)
    }

    /// A write is sent; `zeros` for a cut, which goes on without end.
    pub(crate) fn asked(&mut self, op: OpNumber, range: (u64, u64), zeros: bool, now: Tick) {
        let candidate = Candidate {
            op,
            zeros,
            asked: now,
            answered: NEVER,
            stale: NEVER,
            durable: false,
            uncertain: false,
            fixed: false,
            ends: 0,
        };
        self.cells_mut(range.0, range.1).for_each(|cell| cell.push(candidate));
    }

    /// The file may end here while what is on its way is done.
    pub(crate) fn may_end(&mut self, size: u64) {
        let is_out = |one: &Candidate| one.zeros && one.answered == NEVER;
        if self.cells.values().flatten().any(is_out) {
            self.cells_mut(size, NEVER).flatten().filter(|one| is_out(one)).for_each(|one| one.ends += 1);
        }
    }

    /// A write that has failed may have left something, as far as the file goes: these are its possible ends.
    pub(crate) fn left_up_to(&mut self, op: OpNumber, sizes: impl IntoIterator<Item = u64>) {
        for size in sizes {
            let cells = self.cells_mut(size, NEVER).flatten();
            cells.filter(|one| one.op == op).for_each(|one| one.ends += 1);
        }
    }

    /// It was answered.
    pub(crate) fn answered(&mut self, op: OpNumber, range: (u64, u64), fate: Fate, now: Tick) {
        for cell in self.cells_mut(range.0, range.1) {
            if fate == Fate::Refused {
                cell.retain(|candidate| candidate.op != op);
                continue;
            }
            for candidate in cell.iter_mut().filter(|candidate| candidate.op == op) {
                candidate.answered = now;
                candidate.uncertain = fate == Fate::Uncertain;
                candidate.durable = fate == Fate::Done { durable: true };
            }
        }
    }

    /// A flush that was sent at `asked` is done.
    pub(crate) fn flushed(&mut self, asked: Tick) {
        for candidate in self.cells.values_mut().flatten() {
            candidate.durable |= candidate.answered < asked;
        }
    }

    /// Forgets what nobody can see any more; `horizon` is when the oldest request on its way was sent.
    pub(crate) fn prune(&mut self, horizon: Tick) {
        for cell in self.cells.values_mut() {
            if cell.len() > 1 {
                let all = cell.clone();
                cell.retain(|old| !is_replaced_durably(old, &all, horizon));
            }
        }
        let mut before: Option<Vec<Candidate>> = None;
        self.cells.retain(|_, cell| {
            let same = before.as_ref() == Some(cell);
            if !same {
                before = Some(cell.clone());
            }
            !same
        });
    }

    /// The card died: whatever may be there is there for good. `power` if that was lost too.
    pub(crate) fn crashed(&mut self, power: bool, now: Tick) {
        for cell in self.cells.values_mut() {
            let all = std::mem::take(cell);
            let remains = |one: &&Candidate| {
                if power {
                    !is_replaced_durably(one, &all, NEVER)
                } else {
                    one.stale == NEVER && !is_replaced(one, &all, NEVER)
                }
            };
            let fix = |one: &Candidate| Candidate {
                asked: now,
                answered: now,
                stale: NEVER,
                durable: true,
                uncertain: true,
                fixed: true,
                ..*one
            };
            *cell = all.iter().filter(remains).map(fix).collect();
        }
        self.prune(NEVER);
    }

    /// A crash took a cut back: its zeros are nowhere.
    pub(crate) fn taken_back(&mut self, op: OpNumber) {
        self.cells.values_mut().for_each(|cell| cell.retain(|candidate| candidate.op != op));
    }

    /// After a crash the file ends here: beyond are zeros when it grows.
    pub(crate) fn ends_at(&mut self, size: u64, now: Tick) {
        self.split(size);
        self.cells.retain(|start, _| *start <= size);
        self.cells.insert(size, vec![Candidate::zeros(now)]);
    }

    /// Ranges below `end` where something other than zeros may be.
    pub(crate) fn written_ranges(&self, end: u64) -> Vec<(u64, u64)> {
        let ends = self.cells.keys().skip(1).copied().chain([end]);
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for ((start, cell), stop) in self.cells.iter().zip(ends) {
            let stop = stop.min(end);
            if *start >= stop || cell.iter().all(|one| one.zeros) {
                continue;
            }
            match ranges.last_mut() {
                Some(last) if last.1 == *start => last.1 = stop,
                _ => ranges.push((*start, stop)),
            }
        }
        ranges
    }

    /// Checks what a read that was sent at `asked` found at `offset`, and learns from it.
    pub(crate) fn check(
        &mut self,
        offset: u64,
        bytes: &[u8],
        block_len: u64,
        asked: Tick,
        now: Tick,
    ) -> Result<(), Wrong> {
        let end = offset + bytes.len() as u64;
        let mut at = offset;
        while at < end {
            let stop = ((at / block_len + 1) * block_len).min(end);
            let block = &bytes[(at - offset) as usize..(stop - offset) as usize];
            self.check_block(at, block, block_len, asked, now)?;
            at = stop;
        }
        Ok(())
    }

    /// Checks bytes that lie in one block.
    fn check_block(
        &mut self,
        offset: u64,
        bytes: &[u8],
        block_len: u64,
        asked: Tick,
        now: Tick,
    ) -> Result<(), Wrong> {
        let end = offset + bytes.len() as u64;
        let block = (offset / block_len * block_len, (offset / block_len + 1) * block_len);
        let first = self.cells.range(..=offset).next_back().map_or(0, |(start, _)| *start);
        let starts: Vec<u64> = self.cells.range(first..end).map(|(start, _)| *start).collect();
        let mut whole: Option<OpNumber> = None;
        for (index, start) in starts.iter().enumerate() {
            let from = (*start).max(offset);
            let to = starts.get(index + 1).map_or(end, |next| (*next).min(end));
            let piece = &bytes[(from - offset) as usize..(to - offset) as usize];
            let found = self.check_piece((from, to), piece, asked, now)?;
            // One block is written as a whole: two writes that each cover all of it are not seen beside each other.
            if let Some(op) = found.filter(|op| piece.len() >= 8 && self.covers(*op, block)) {
                if whole.is_some_and(|other| other != op) {
                    let allowed = vec![op, whole.unwrap_or(0)];
                    return Err(Wrong { offset, found: bytes.to_vec(), allowed, what: "a block is torn" });
                }
                whole = Some(op);
            }
        }
        Ok(())
    }

    /// Whether a write reaches over the whole range, as far as it was not replaced there.
    fn covers(&self, op: OpNumber, (start, end): (u64, u64)) -> bool {
        let first = self.cells.range(..=start).next_back().map_or(0, |(start, _)| *start);
        self.cells.range(first..end).all(|(_, cell)| cell.iter().any(|one| one.op == op))
    }

    /// Checks bytes that lie in one block and one cell: they come from one write. Which one, if there is no doubt.
    fn check_piece(
        &mut self,
        (start, end): (u64, u64),
        bytes: &[u8],
        asked: Tick,
        now: Tick,
    ) -> Result<Option<OpNumber>, Wrong> {
        let Some((_, cell)) = self.cells.range(..=start).next_back() else { return Ok(None) };
        let allowed = |one: &&Candidate| one.stale >= asked && !is_replaced(one, cell, asked);
        let matching: Vec<Candidate> =
            cell.iter().filter(allowed).filter(|one| one.matches(start, bytes)).copied().collect();
        if matching.is_empty() {
            let allowed = cell.iter().filter(allowed).map(|one| if one.zeros { 0 } else { one.op }).collect();
            return Err(Wrong {
                offset: start,
                found: bytes.to_vec(),
                allowed,
                what: "bytes that cannot be",
            });
        }
        if cell.len() > matching.len() {
            self.learn((start, end), &matching, asked, now);
        }
        Ok((matching.len() == 1 && !matching[0].zeros).then(|| matching[0].op))
    }

    /// A read found one of these: what was answered before it was sent, and is none of them, is older.
    fn learn(&mut self, (start, end): (u64, u64), found: &[Candidate], asked: Tick, now: Tick) {
        let is_fixed = found.iter().all(|one| one.fixed);
        for cell in self.cells_mut(start, end) {
            if is_fixed {
                cell.retain(|one| !one.fixed || found.contains(one));
            }
            for one in cell.iter_mut().filter(|one| !found.contains(one) && one.answered < asked) {
                one.stale = one.stale.min(now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(op: OpNumber, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        content::fill(op, offset, &mut bytes);
        bytes
    }

    fn read(bytes: &mut Bytes, at: u64, found: &[u8], asked: Tick, now: Tick) -> bool {
        bytes.check(at, found, 512, asked, now).is_ok()
    }

    /// Writes 1 and 2 of one block, one after the other, both answered.
    fn twice() -> Bytes {
        let mut bytes = Bytes::new(0);
        for op in [1, 2] {
            bytes.asked(op, (0, 512), false, u64::from(op) * 10);
            bytes.answered(op, (0, 512), Fate::Done { durable: false }, u64::from(op) * 10 + 5);
        }
        bytes
    }

    #[test]
    fn an_answered_write_is_seen() {
        assert!(read(&mut twice(), 0, &written(2, 0, 512), 30, 31));
        assert!(!read(&mut twice(), 0, &written(1, 0, 512), 30, 31));
        assert!(!read(&mut twice(), 0, &[0; 512], 30, 31));
        assert!(read(&mut twice(), 0, &written(1, 0, 512), 22, 31), "the second was on its way");
        assert!(read(&mut twice(), 600, &[0; 100], 30, 31));
    }

    #[test]
    fn reads_do_not_go_back() {
        let mut bytes = twice();
        bytes.asked(3, (0, 512), false, 30);
        assert!(read(&mut bytes.clone(), 0, &written(2, 0, 512), 31, 32));
        assert!(read(&mut bytes, 0, &written(3, 0, 512), 31, 32), "on its way");
        assert!(!read(&mut bytes, 0, &written(2, 0, 512), 33, 34), "newer bytes were seen");
    }

    #[test]
    fn power_takes_what_was_not_flushed_and_nothing_else() {
        for (flushed, survives) in [(false, vec![0, 1, 2]), (true, vec![2])] {
            for found in 0..3 {
                let mut bytes = twice();
                if flushed {
                    bytes.flushed(30);
                }
                bytes.crashed(true, 40);
                let found_bytes = if found == 0 { vec![0; 512] } else { written(found, 0, 512) };
                assert_eq!(read(&mut bytes, 0, &found_bytes, 50, 51), survives.contains(&found));
            }
        }
        let mut bytes = twice();
        bytes.crashed(false, 40);
        assert!(!read(&mut bytes, 0, &written(1, 0, 512), 50, 51), "only the process died");
    }

    #[test]
    fn what_a_crash_left_does_not_change() {
        let mut bytes = twice();
        bytes.crashed(true, 40);
        assert!(read(&mut bytes, 0, &written(1, 0, 512), 50, 51));
        assert!(!read(&mut bytes, 0, &written(2, 0, 512), 52, 53));
    }

    #[test]
    fn a_block_is_not_torn() {
        let mut bytes = Bytes::new(0);
        bytes.asked(1, (0, 512), false, 1);
        bytes.asked(2, (0, 512), false, 2);
        bytes.asked(3, (200, 300), false, 3);
        let mut found = written(1, 0, 512);
        found[200..300].copy_from_slice(&written(3, 200, 100));
        assert!(read(&mut bytes.clone(), 0, &found, 4, 5));
        found[300..].copy_from_slice(&written(2, 300, 212));
        assert!(!read(&mut bytes, 0, &found, 4, 5));
    }

    #[test]
    fn a_cut_leaves_zeros() {
        let mut bytes = twice();
        bytes.asked(3, (100, NEVER), true, 30);
        bytes.answered(3, (100, NEVER), Fate::Done { durable: false }, 31);
        assert!(!read(&mut bytes.clone(), 0, &written(2, 0, 512), 40, 41));
        let mut found = written(2, 0, 512);
        found[100..].fill(0);
        assert!(read(&mut bytes, 0, &found, 40, 41));
    }

    /// A cut that power took back leaves what was there, and the zeros that ended where it had cut.
    #[test]
    fn zeros_end_where_the_file_does() {
        let mut bytes = Bytes::new(0);
        bytes.asked(1, (0, 512), false, 1);
        bytes.answered(1, (0, 512), Fate::Done { durable: true }, 2);
        bytes.asked(2, (300, NEVER), true, 3);
        bytes.answered(2, (300, NEVER), Fate::Done { durable: false }, 4);
        bytes.asked(3, (100, 4000), true, 5);
        bytes.may_end(300);
        bytes.answered(3, (100, 4000), Fate::Done { durable: false }, 6);
        bytes.crashed(true, 10);
        bytes.taken_back(2);
        bytes.prune(NEVER);
        let mut found = written(1, 0, 512);
        found[100..200].fill(0);
        assert!(!read(&mut bytes.clone(), 0, &found, 20, 21), "nothing ended there");
        found[200..300].fill(0);
        assert!(read(&mut bytes, 0, &found, 20, 21));
    }

    /// Of a write that has failed, what lies behind the file's end is gone when the file grows.
    #[test]
    fn what_a_failed_write_has_left_ends_where_the_file_does() {
        let mut bytes = Bytes::new(0);
        bytes.asked(1, (0, 2000), false, 1);
        bytes.answered(1, (0, 2000), Fate::Uncertain, 2);
        bytes.left_up_to(1, [700]);
        bytes.prune(NEVER);
        let mut found = written(1, 512, 512);
        found[188..].fill(0);
        assert!(read(&mut bytes.clone(), 512, &found, 5, 6));
        found[100..].fill(0);
        assert!(!read(&mut bytes, 512, &found, 5, 6), "nothing ended there");
    }
}
