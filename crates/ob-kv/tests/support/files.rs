//! The log's files in memory: operations become complete in any order, and a loss of power takes what was not durable.

use std::collections::BTreeMap;

use ob_kv::store::{LogCompletion, LogFailure, LogOp};
use ob_sim::{PerMillion, Rng};

const BLOCK_LEN: usize = 4096;

#[derive(Clone, Debug)]
struct Written {
    part: u64,
    offset: u64,
    bytes: Vec<u8>,
}

/// The files.
#[derive(Debug, Default)]
pub(crate) struct Files {
    /// As a read sees them.
    current: BTreeMap<u64, Vec<u8>>,
    /// As they are after a loss of power, at least.
    durable: BTreeMap<u64, Vec<u8>>,
    /// How long files were made: beyond what was written to them there are zeros, which take no space. A loss of power may leave them
    /// shorter.
    lengths: BTreeMap<u64, u64>,
    /// Complete, and not durable.
    unflushed: Vec<Written>,
    /// Operations, with what a flush is for, or what a read has found.
    in_flight: Vec<(LogOp, usize, Vec<u8>)>,
    /// Everything fails from here on.
    pub(crate) failure: Option<LogFailure>,
    /// Places in parts that cannot be read.
    pub(crate) unreadable: Vec<(u64, std::ops::Range<u64>)>,
    /// Writes fail from here on.
    pub(crate) is_read_only: bool,
    /// How many bytes there are, if that is few, and how many of them somebody else has.
    pub(crate) capacity: Option<u64>,
    pub(crate) foreign: u64,
    /// Bytes that were written.
    pub(crate) written_len: u64,
    /// Writes for which there was no space.
    pub(crate) refusals: u64,
}

impl Files {
    pub(crate) fn submit(&mut self, op: LogOp) {
        // A flush is for what was complete when it was asked for; and a read need not show what was not.
        let mut read = Vec::new();
        if let LogOp::Read { part, offset, len, .. } = &op {
            let file = self.current.get(part).expect("a part that is read is there");
            let file_len = self.len_of(*part) as usize;
            let (start, end) = ((*offset as usize).min(file_len), (*offset as usize + len).min(file_len));
            read = file[start.min(file.len())..end.min(file.len())].to_vec();
            read.resize(end - start, 0);
        }
        self.in_flight.push((op, self.unflushed.len(), read));
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// How many reads are under way.
    pub(crate) fn reads_in_flight(&self) -> usize {
        self.in_flight.iter().filter(|(op, ..)| matches!(op, LogOp::Read { .. })).count()
    }

    /// Whether a loss of power would take nothing.
    pub(crate) fn is_flushed(&self) -> bool {
        self.unflushed.is_empty()
    }

    /// The parts there are, with their lengths.
    pub(crate) fn parts(&self) -> Vec<(u64, u64)> {
        self.current.keys().map(|part| (*part, self.len_of(*part))).collect()
    }

    fn len_of(&self, part: u64) -> u64 {
        let written = self.current.get(&part).map_or(0, |bytes| bytes.len() as u64);
        self.lengths.get(&part).map_or(written, |len| written.max(*len))
    }

    /// Bytes of a part from an offset on, as the card would read them.
    pub(crate) fn bytes(&self, part: u64, offset: u64) -> &[u8] {
        self.current.get(&part).and_then(|bytes| bytes.get(offset as usize..)).unwrap_or_default()
    }

    /// Bytes that are left, if they are counted. What was never written takes none.
    pub(crate) fn left(&self) -> Option<u64> {
        let used: u64 = self.current.values().map(|bytes| bytes.len() as u64).sum();
        Some(self.capacity?.saturating_sub(self.foreign + used))
    }

    fn has_space(&self, part: u64, end: u64) -> bool {
        let len = self.current.get(&part).map_or(0, |bytes| bytes.len() as u64);
        self.left().is_none_or(|left| end.saturating_sub(len) <= left)
    }

    /// Changes the files behind the store's back. They are as long then as what is in them.
    pub(crate) fn edit(&mut self, edit: impl FnOnce(&mut BTreeMap<u64, Vec<u8>>)) {
        edit(&mut self.current);
        self.durable = self.current.clone();
        self.lengths.clear();
    }

    /// Completes any of the operations.
    pub(crate) fn complete(&mut self, rng: &mut Rng) -> Option<LogCompletion> {
        if self.in_flight.is_empty() {
            return None;
        }
        let (op, flushed, read) = self.in_flight.swap_remove(rng.index(self.in_flight.len()));
        let token = op.token();
        if let Some(failure) = self.failure {
            return Some(LogCompletion { token, result: Err(failure) });
        }
        if let LogOp::Read { part, offset, len, .. } = &op
            && self
                .unreadable
                .iter()
                .any(|(bad, range)| bad == part && range.start < offset + *len as u64 && *offset < range.end)
        {
            return Some(LogCompletion { token, result: Err(LogFailure::Device) });
        }
        if self.is_read_only && matches!(op, LogOp::Write { .. }) {
            return Some(LogCompletion { token, result: Err(LogFailure::Device) });
        }
        if let LogOp::Write { part, offset, bytes, .. } = &op
            && !self.has_space(*part, offset + bytes.len() as u64)
        {
            self.refusals += 1;
            return Some(LogCompletion { token, result: Err(LogFailure::Space) });
        }
        match op {
            LogOp::Create { part, len, .. } => {
                assert!(self.len_of(part) <= len, "part {part} is cut");
                self.create(part, len);
            }
            LogOp::Write { part, offset, bytes, is_durable, .. } => {
                assert!(self.current.contains_key(&part), "part {part} is not there");
                assert!((offset as usize).is_multiple_of(BLOCK_LEN) && bytes.len().is_multiple_of(BLOCK_LEN));
                let written = Written { part, offset, bytes: bytes.to_vec() };
                self.written_len += bytes.len() as u64;
                write(&mut self.current, &written);
                if is_durable { write(&mut self.durable, &written) } else { self.unflushed.push(written) }
            }
            LogOp::Flush { .. } => {
                for written in self.unflushed.drain(..flushed) {
                    write(&mut self.durable, &written);
                }
                for (_, other, _) in &mut self.in_flight {
                    *other = other.saturating_sub(flushed);
                }
            }
            LogOp::Read { part, .. } => {
                assert!(self.current.contains_key(&part), "a part is there while it is read");
            }
            LogOp::Remove { part, .. } => {
                assert!(self.current.remove(&part).is_some());
                self.durable.remove(&part);
                self.lengths.remove(&part);
                self.unflushed.iter_mut().filter(|written| written.part == part).for_each(|written| {
                    written.bytes.clear();
                });
            }
        }
        Some(LogCompletion { token, result: Ok(read) })
    }

    fn create(&mut self, part: u64, len: u64) {
        self.current.entry(part).or_default();
        self.durable.entry(part).or_default();
        self.lengths.insert(part, len);
    }

    /// What is there after the death of the process that wrote: what was on its way may have arrived, and what was not flushed is
    /// not yet durable.
    pub(crate) fn lose_process(mut self, rng: &mut Rng) -> Self {
        for (op, _, _) in std::mem::take(&mut self.in_flight) {
            match op {
                LogOp::Write { part, offset, bytes, .. } if rng.one_in(2) => {
                    let written = Written { part, offset, bytes: bytes.to_vec() };
                    write(&mut self.current, &written);
                    self.unflushed.push(written);
                }
                LogOp::Create { part, len, .. } if rng.one_in(2) => self.create(part, len),
                _ => {}
            }
        }
        self
    }

    /// What is left after a loss of power: what was durable, and anything of the rest.
    pub(crate) fn lose_power(self, rng: &mut Rng) -> Self {
        let Self { mut durable, mut lengths, unflushed, in_flight, capacity, foreign, .. } = self;
        lengths.retain(|_, _| !rng.one_in(4));
        let mut maybe = unflushed;
        for (op, _, _) in in_flight {
            match op {
                LogOp::Write { part, offset, bytes, .. } => {
                    maybe.push(Written { part, offset, bytes: bytes.to_vec() });
                }
                LogOp::Create { part, len, .. } if rng.chance(PerMillion::percent(50)) => {
                    durable.entry(part).or_default();
                    // It is made first, and then made longer.
                    if rng.one_in(2) {
                        lengths.insert(part, len);
                    }
                }
                LogOp::Remove { part, .. } if rng.chance(PerMillion::percent(50)) => {
                    durable.remove(&part);
                    lengths.remove(&part);
                }
                _ => {}
            }
        }
        for written in maybe {
            match rng.below(3) {
                0 => {}
                1 => write(&mut durable, &written),
                _ => tear(&mut durable, &written, rng),
            }
        }
        Self { current: durable.clone(), durable, lengths, capacity, foreign, ..Self::default() }
    }
}

/// Some blocks of a write, and of one of them only the begin.
fn tear(files: &mut BTreeMap<u64, Vec<u8>>, written: &Written, rng: &mut Rng) {
    for (at, block) in written.bytes.chunks(BLOCK_LEN).enumerate() {
        let len = match rng.below(3) {
            0 => 0,
            1 => block.len(),
            _ => 512 * rng.below(8) as usize,
        };
        let offset = written.offset + (at * BLOCK_LEN) as u64;
        write(files, &Written { part: written.part, offset, bytes: block[..len].to_vec() });
    }
}

fn write(files: &mut BTreeMap<u64, Vec<u8>>, written: &Written) {
    let Some(file) = files.get_mut(&written.part) else { return };
    let (start, end) = (written.offset as usize, written.offset as usize + written.bytes.len());
    if written.bytes.is_empty() {
        return;
    }
    if file.len() < end {
        file.resize(end.next_multiple_of(BLOCK_LEN), 0);
    }
    file[start..end].copy_from_slice(&written.bytes);
}
