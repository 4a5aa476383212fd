//! Names through time: what they are, what is on its way, and what they were since everything was last durable.

use std::collections::BTreeMap;
use std::rc::Rc;

use ob_format::files::node_record_len;

use super::Tick;
use super::tree::{Key, Locks, NameChange, NameOp, Tree, Verdict};

/// Changes on their way whose every subset is tried.
const DOUBTS_MAX: usize = 10;

/// From some moment on the tree was so, with these changes on their way.
#[derive(Clone, Debug)]
struct Moment {
    from: Tick,
    tree: Rc<Tree>,
    pending: Vec<NameChange>,
}

impl Moment {
    /// Every tree that there may have been, one after the other, until one suits.
    fn any(&self, suits: &mut dyn FnMut(&Tree) -> bool) -> bool {
        if self.pending.is_empty() {
            return suits(&self.tree);
        }
        let count = self.pending.len().min(DOUBTS_MAX);
        (0..1u32 << count).any(|subset| {
            let mut tree = (*self.tree).clone();
            for (bit, change) in self.pending.iter().take(count).enumerate() {
                if subset & 1 << bit != 0 {
                    tree.apply(change);
                }
            }
            suits(&tree)
        })
    }
}

/// All names, now and before.
#[derive(Debug)]
pub(crate) struct Names {
    tree: Rc<Tree>,
    pending: BTreeMap<u64, (Verdict, Locks)>,
    asked: u64,
    history: Vec<Moment>,
}

impl Names {
    pub(crate) fn new() -> Self {
        let tree = Rc::new(Tree::default());
        let history = vec![Moment { from: 0, tree: Rc::clone(&tree), pending: Vec::new() }];
        Self { tree, pending: BTreeMap::new(), asked: 0, history }
    }

    /// The tree with everything that was answered.
    pub(crate) fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Most bytes of records in the log that all names may have now.
    pub(crate) fn record_bytes(&self) -> u64 {
        let coming = self.pending.values().map(|(verdict, _)| match verdict {
            Verdict::Change(NameChange::Insert { place, .. }) => node_record_len(place.name.len()),
            Verdict::Change(NameChange::Move { name, .. }) => node_record_len(name.len()),
            _ => 0,
        });
        let there = self.tree.nodes().map(|(_, place)| node_record_len(place.name.len()));
        there.chain(coming).map(|len| len as u64).sum()
    }

    /// Requests on their way.
    pub(crate) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// What a request must come to; none while something else is on its way that it could depend on.
    pub(crate) fn judge(&self, op: &NameOp, new: Key) -> Option<(Verdict, Locks)> {
        let (verdict, locks) = self.tree.judge(op, new);
        let free = !self.pending.values().any(|(_, others)| others.conflicts(&locks));
        free.then_some((verdict, locks))
    }

    /// A request is sent; its number.
    pub(crate) fn asked(&mut self, verdict: Verdict, locks: Locks, now: Tick) -> u64 {
        self.asked += 1;
        self.pending.insert(self.asked, (verdict, locks));
        self.note(now);
        self.asked
    }

    /// It was answered as it should be.
    pub(crate) fn answered(&mut self, number: u64, now: Tick) {
        if let Some((Verdict::Change(change), _)) = self.pending.remove(&number) {
            let mut tree = (*self.tree).clone();
            tree.apply(&change);
            self.tree = Rc::new(tree);
        }
        self.note(now);
    }

    /// It was answered, and changed nothing.
    pub(crate) fn refused(&mut self, number: u64, now: Tick) {
        self.pending.remove(&number);
        self.note(now);
    }

    fn note(&mut self, now: Tick) {
        let changes = self.pending.values().filter_map(|(verdict, _)| match verdict {
            Verdict::Change(change) => Some(change.clone()),
            _ => None,
        });
        let moment = Moment { from: now, tree: Rc::clone(&self.tree), pending: changes.collect() };
        self.history.push(moment);
    }

    fn index_at(&self, tick: Tick) -> usize {
        self.history.partition_point(|moment| moment.from <= tick).saturating_sub(1)
    }

    /// Whether a tree that suits was possible at some moment since.
    pub(crate) fn any_since(&self, tick: Tick, mut suits: impl FnMut(&Tree) -> bool) -> bool {
        self.history[self.index_at(tick)..].iter().any(|moment| moment.any(&mut suits))
    }

    /// Every tree that was possible since, with the moments between which it was, until one suits.
    pub(crate) fn find_since(
        &self,
        tick: Tick,
        mut suits: impl FnMut(&Tree, Tick, Tick) -> bool,
    ) -> Option<Tree> {
        let first = self.index_at(tick);
        let mut found = None;
        for (index, moment) in self.history.iter().enumerate().skip(first) {
            let until = self.history.get(index + 1).map_or(Tick::MAX, |next| next.from);
            let suited = moment.any(&mut |tree| {
                let suited = suits(tree, moment.from.max(tick), until);
                if suited {
                    found = Some(tree.clone());
                }
                suited
            });
            if suited {
                break;
            }
        }
        found
    }

    /// Forgets what was before.
    pub(crate) fn prune(&mut self, horizon: Tick) {
        let index = self.index_at(horizon);
        self.history.drain(..index);
    }

    /// The names are known, and nothing is on its way; `durable` if nothing from before can come back.
    pub(crate) fn settle(&mut self, tree: Tree, durable: bool, now: Tick) {
        self.tree = Rc::new(tree);
        self.pending.clear();
        if durable {
            self.history.clear();
        }
        self.note(now);
    }
}
