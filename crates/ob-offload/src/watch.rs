//! Cache-on-write: records in what the host writes wait here until the log is settled behind them. And invalidate-on-read: what the
//! host reads to change it later is the host's from then on.
//!
//! ```text
//!   FilesService ─┬─ a write is taken ──▶ Watcher ── Application::cache ──▶ Watch ── SETTLED ──▶ table
//!                 └─ a read is taken ───▶ Watcher ── Application::invalidate ────────────────────▶ table
//! ```

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use ob_core::NodeId;
use ob_files_card::WriteObserver;

use ob_table::{Key, Stamp, TableWriter};

use crate::application::{Application, Candidate, Candidates, Changes};
use crate::plant::{Bug, is_planted};

/// Files whose writes are looked at, and what was found in them.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Whose files they are.
    store: [u8; 16],
    names: HashMap<NodeId, u32>,
    /// By where their groups end, and in the order in which they were taken: the same group may be written twice.
    waiting: BTreeMap<(u64, u64), Candidates>,
    /// How many have waited.
    taken: u64,
    /// Records in `waiting`.
    len: usize,
    len_max: usize,
    /// Lists to use again.
    spare: Vec<Candidates>,
    /// Records for which there was no room.
    dropped: u64,
    /// The greatest stamp that was given.
    last: Stamp,
    /// Keys of the read at hand.
    keys: Vec<Key>,
}

/// Lists that are kept for the next writes.
const SPARE_MAX: usize = 64;
/// Records for which such a list keeps its memory.
const KEPT_MAX: usize = 1024;

impl Watch {
    pub(crate) fn new(len_max: usize) -> Self {
        Self {
            store: [0; 16],
            names: HashMap::new(),
            waiting: BTreeMap::new(),
            taken: 0,
            len: 0,
            len_max,
            spare: Vec::new(),
            dropped: 0,
            last: Stamp::ZERO,
            keys: Vec::new(),
        }
    }

    /// A stamp was given, or is known to have been.
    pub(crate) fn given(&mut self, stamp: Stamp) {
        self.last = self.last.max(stamp);
    }

    /// Stamps begin anew.
    pub(crate) fn forget_stamps(&mut self) {
        self.last = Stamp::ZERO;
    }

    /// What outdates everything that is there, and nothing that comes of requests from now on.
    fn now(&self) -> Stamp {
        Stamp::new(self.last.number() + 1).unwrap_or(Stamp::MAX)
    }

    pub(crate) fn watch(&mut self, node: NodeId, name: u32) {
        self.names.insert(node, name);
    }

    pub(crate) fn unwatch(&mut self, node: NodeId) {
        self.names.remove(&node);
    }

    /// Forgets files and records, for those of a host that is gone mean nothing to the next one, which has this store.
    pub(crate) fn begin(&mut self, store: [u8; 16]) {
        self.store = store;
        self.names.clear();
        self.waiting.clear();
        self.len = 0;
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Forgets records, which were found by a function that is gone; what outdates them.
    pub(crate) fn forget_candidates(&mut self) -> Stamp {
        self.waiting.clear();
        self.len = 0;
        self.now()
    }

    /// Takes writes out behind which the log is settled, in the order of the log (they may be taken in another one), until there were so
    /// many records. How many there were, and whether there are more. No write is cut: the records of one stamp are in one, and if two
    /// are of one key, the first without the second is what its own request has replaced.
    pub(crate) fn settle(
        &mut self,
        address: u64,
        most: usize,
        mut admit: impl FnMut(&Candidate),
    ) -> (usize, bool) {
        let mut count = 0;
        while let Some(first) = self.waiting.first_entry().filter(|first| first.key().0 <= address) {
            if count >= most {
                return (count, true);
            }
            let candidates = first.remove();
            let left = if is_planted(Bug::WriteCut) { most - count } else { usize::MAX };
            candidates.list.iter().take(left).for_each(&mut admit);
            count += candidates.list.len();
            self.len -= candidates.list.len();
            self.keep(candidates);
        }
        (count, false)
    }

    fn keep(&mut self, mut candidates: Candidates) {
        if self.spare.len() < SPARE_MAX {
            candidates.list.clear();
            candidates.list.shrink_to(KEPT_MAX);
            candidates.end = 0;
            self.spare.push(candidates);
        }
    }
}

/// Shows writes and reads to an application, on behalf of its engine.
pub struct Watcher<A> {
    pub(crate) watch: Rc<RefCell<Watch>>,
    pub(crate) writer: Rc<RefCell<TableWriter>>,
    pub(crate) application: Rc<A>,
}

impl<A: Application> WriteObserver for Watcher<A> {
    fn write_taken(&mut self, file: NodeId, offset: u64, bytes: &[u8]) {
        let mut watch = self.watch.borrow_mut();
        let Some(name) = watch.names.get(&file).copied() else { return };
        let mut candidates = watch.spare.pop().unwrap_or_default();
        self.application.cache(&watch.store, name, offset, bytes, &mut candidates);
        let found = candidates.list.len();
        if found == 0 {
            watch.keep(candidates);
        } else if watch.len + found > watch.len_max {
            watch.dropped += found as u64;
            watch.keep(candidates);
        } else {
            watch.len += found;
            watch.taken += 1;
            let place = (candidates.end, watch.taken);
            watch.waiting.insert(place, candidates);
        }
    }

    fn read_taken(&mut self, file: NodeId, offset: u64, len: u64) {
        let mut watch = self.watch.borrow_mut();
        let Some(name) = watch.names.get(&file).copied() else { return };
        let mut keys = std::mem::take(&mut watch.keys);
        let changes = self.application.invalidate(name, offset, len, &mut keys);
        let mut writer = self.writer.borrow_mut();
        if changes == Changes::Everything {
            writer.clear(watch.now());
        }
        for key in keys.drain(..).filter(|_| !is_planted(Bug::ReadUnseen)) {
            writer.invalidate(&key, watch.now());
        }
        watch.keys = keys;
    }
}
