//! Parts of a history that have no key in common.

use std::collections::BTreeMap;

use super::{OperationOf, Specification};

/// Cuts a history into parts that can be looked at one by one, each a list of places in the history.
///
/// Linearizability is local (Herlihy and Wing): a history is linearizable if its parts are. What shares a key, also by way of
/// others (`MSET a b`, `MGET b c`), is one part.
pub(super) fn partition<S: Specification>(specification: &S, history: &[OperationOf<S>]) -> Vec<Vec<usize>> {
    let mut owners: BTreeMap<S::Key, usize> = BTreeMap::new();
    let mut groups = Groups { parents: (0..history.len()).collect() };
    for (index, operation) in history.iter().enumerate() {
        let keys = specification.keys(&operation.command);
        if keys.is_empty() {
            return vec![(0..history.len()).collect()];
        }
        for key in keys {
            let owner = *owners.entry(key).or_insert(index);
            groups.unite(owner, index);
        }
    }
    let mut parts: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for index in 0..history.len() {
        parts.entry(groups.leader(index)).or_default().push(index);
    }
    parts.into_values().collect()
}

/// Disjoint sets, each with a leader.
struct Groups {
    parents: Vec<usize>,
}

impl Groups {
    fn leader(&mut self, mut index: usize) -> usize {
        while self.parents[index] != index {
            // Halving the path keeps later ones short.
            self.parents[index] = self.parents[self.parents[index]];
            index = self.parents[index];
        }
        index
    }

    fn unite(&mut self, left: usize, right: usize) {
        let (left, right) = (self.leader(left), self.leader(right));
        self.parents[left.max(right)] = left.min(right);
    }
}
