//! Cache-on-write: records in what the host writes wait here until the log is settled behind them.
//!
//! ```text
//!   FilesService ── a write is taken ──▶ Watcher ── Application::cache ──▶ Watch ── SETTLED ──▶ table
//! ```

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use ob_core::NodeId;
use ob_files_card::WriteObserver;

use crate::application::{Application, Candidates};

/// Files whose writes are looked at, and what was found in them.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Whose files they are.
    store: [u8; 16],
    names: HashMap<NodeId, u32>,
    waiting: VecDeque<Candidates>,
    /// Records in `waiting`.
    len: usize,
    len_max: usize,
    /// Lists to use again.
    spare: Vec<Candidates>,
    /// Records for which there was no room.
    dropped: u64,
}

/// Lists that are kept for the next writes.
const SPARE_MAX: usize = 64;

impl Watch {
    pub(crate) fn new(len_max: usize) -> Self {
        let (names, waiting, spare) = (HashMap::new(), VecDeque::new(), Vec::new());
        Self { store: [0; 16], names, waiting, len: 0, len_max, spare, dropped: 0 }
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

    /// Takes records out behind which the log is settled. Writes may be taken out of order, so all are looked at.
    pub(crate) fn settle(&mut self, address: u64, mut admit: impl FnMut(&Candidates)) {
        for _ in 0..self.waiting.len() {
            let Some(candidates) = self.waiting.pop_front() else { break };
            if candidates.end > address {
                self.waiting.push_back(candidates);
                continue;
            }
            self.len -= candidates.list.len();
            admit(&candidates);
            self.keep(candidates);
        }
    }

    fn keep(&mut self, mut candidates: Candidates) {
        if self.spare.len() < SPARE_MAX {
            candidates.list.clear();
            candidates.end = 0;
            self.spare.push(candidates);
        }
    }
}

/// Shows writes to an application, on behalf of its engine.
pub struct Watcher<A> {
    pub(crate) watch: Rc<RefCell<Watch>>,
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
            watch.waiting.push_back(candidates);
        }
    }
}
