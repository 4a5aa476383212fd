//! What was done to a device, in order, and what a loss of power at any moment could leave of it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use super::image::Image;

/// A change of a range; no bytes: zeros.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) id: u64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) bytes: Option<Arc<[u8]>>,
    pub(crate) durable: bool,
}

/// Something that happened.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    Started(Change),
    FlushStarted(u64),
    /// The operation of this number is done, whichever it was.
    Finished(u64),
    Read,
    /// Something that the test wants to remember at this place.
    Mark(u64),
}

impl Event {
    /// In a few words: whole changes are long.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Started(Change { id, offset, len, bytes, durable }) => {
                let what = if bytes.is_some() { "write" } else { "zeroes" };
                format!("{what} {id} at {offset}, {len} bytes, durable: {durable}")
            }
            other => format!("{other:?}"),
        }
    }
}

/// A list of events, shared by a device and its test.
#[derive(Clone, Default)]
pub(crate) struct Journal(Rc<RefCell<Vec<Event>>>);

impl Journal {
    pub(crate) fn push(&self, event: Event) {
        self.0.borrow_mut().push(event);
    }

    pub(crate) fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.0.borrow_mut())
    }
}

/// One block of a change that may be lost.
#[derive(Clone, Debug)]
struct Pending {
    change: Change,
    /// The event at which it was done.
    finished: Option<u64>,
}

/// What is on the medium for sure, and what may be.
pub(crate) struct Medium {
    block_len: u64,
    durable: Image,
    /// By block, then in the order they were started.
    pending: BTreeMap<u64, Vec<Pending>>,
    /// Changes with blocks in `pending`, and whether each is done.
    changes: BTreeMap<u64, (Change, Option<u64>)>,
    /// When each flush was started.
    flushes: BTreeMap<u64, u64>,
    now: u64,
}

/// Which block of which change: what a crash image is chosen by.
pub(crate) type BlockOfChange = (u64, u64);

impl Medium {
    pub(crate) fn new(durable: Image, block_len: u32) -> Self {
        Self {
            block_len: u64::from(block_len),
            durable,
            pending: BTreeMap::new(),
            changes: BTreeMap::new(),
            flushes: BTreeMap::new(),
            now: 0,
        }
    }

    pub(crate) fn apply(&mut self, event: &Event) {
        self.now += 1;
        match event {
            Event::Started(change) => {
                self.changes.insert(change.id, (change.clone(), None));
                for block in blocks(change, self.block_len) {
                    let pending = Pending { change: change.clone(), finished: None };
                    self.pending.entry(block).or_default().push(pending);
                }
            }
            Event::FlushStarted(id) => {
                self.flushes.insert(*id, self.now);
            }
            Event::Finished(id) => self.finished(*id),
            Event::Read | Event::Mark(_) => {}
        }
    }

    fn finished(&mut self, id: u64) {
        if let Some(start) = self.flushes.remove(&id) {
            let covered = |change: &Pending| change.finished.is_some_and(|finished| finished < start);
            let all: Vec<u64> = self.pending.keys().copied().collect();
            for block in all {
                self.settle(block, covered);
            }
            self.changes.retain(|_, (_, finished)| finished.is_none_or(|finished| finished >= start));
            return;
        }
        let Some((change, finished)) = self.changes.get_mut(&id) else { return };
        *finished = Some(self.now);
        let change = change.clone();
        for block in blocks(&change, self.block_len) {
            for pending in self.pending.entry(block).or_default() {
                if pending.change.id == id {
                    pending.finished = Some(self.now);
                }
            }
            if change.durable {
                self.settle(block, |pending| pending.change.id == id);
            }
        }
        if change.durable {
            self.changes.remove(&id);
        }
    }

    /// What is sure of a block is on the medium now, and what it replaced is gone.
    fn settle(&mut self, block: u64, sure: impl Fn(&Pending) -> bool) {
        let Some(pending) = self.pending.get_mut(&block) else { return };
        // A device takes overlapping writes in any order while both are under way. Whoever keeps files never has two
        // such writes that matter, so the order of completion is as good as any.
        pending.sort_by_key(|pending| pending.finished.unwrap_or(u64::MAX));
        let Some(last) = pending.iter().rposition(sure) else { return };
        let rest = pending.split_off(last + 1);
        let settled = std::mem::replace(pending, rest);
        if pending.is_empty() {
            self.pending.remove(&block);
        }
        if let Some(settled) = settled.last() {
            put(&mut self.durable, block, self.block_len, &settled.change);
        }
    }

    /// Every block that may be lost, in the order the changes were started.
    pub(crate) fn at_risk(&self) -> Vec<BlockOfChange> {
        let mut all: Vec<BlockOfChange> = self
            .pending
            .iter()
            .flat_map(|(block, pending)| pending.iter().map(|pending| (pending.change.id, *block)))
            .collect();
        all.sort_unstable();
        all
    }

    /// Those of them that the device has answered for: the death of a process does not undo them.
    pub(crate) fn answered_for(&self) -> BTreeSet<BlockOfChange> {
        let blocks = self.pending.iter().flat_map(|(block, pending)| {
            let finished = pending.iter().filter(|pending| pending.finished.is_some());
            finished.map(|pending| (pending.change.id, *block))
        });
        blocks.collect()
    }

    /// What is there after a loss of power that left only these blocks of what was at risk.
    pub(crate) fn image(&self, kept: &BTreeSet<BlockOfChange>) -> Image {
        let mut image = self.durable.clone();
        for (id, block) in kept {
            let pending = self.pending.get(block).into_iter().flatten();
            for found in pending.filter(|pending| pending.change.id == *id) {
                put(&mut image, *block, self.block_len, &found.change);
            }
        }
        image
    }
}

fn blocks(change: &Change, block_len: u64) -> std::ops::Range<u64> {
    change.offset / block_len..(change.offset + change.len) / block_len
}

fn put(image: &mut Image, block: u64, block_len: u64, change: &Change) {
    let offset = block * block_len;
    match &change.bytes {
        Some(bytes) => image.write(offset, &bytes[(offset - change.offset) as usize..][..block_len as usize]),
        None => image.zero(offset, block_len),
    }
}
