//! Upper levels that a client keeps of a file that becomes another one at any moment.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ob_nvme::initiator::block_on;
use ob_pushdown::btree::{BTree, BTreeOptions, BulkLoad, Filter, Pages, Shape, VALUE_LEN};
use ob_pushdown::client::{FileMap, MapSource, Session};
use ob_wire_nvme::NamespaceId;

use crate::lab::remote::Nobody;

const ALL: Filter = Filter { field: 0, low: 0, high: u64::MAX };

/// A file that becomes another one before a read.
struct Moving {
    /// The bytes that it has, and its version.
    now: Mutex<(Vec<u8>, u64)>,
    next: Vec<u8>,
    /// Reads until then.
    left: AtomicU64,
}

impl MapSource for Moving {
    fn current(&self) -> Option<Arc<FileMap>> {
        let (len, version) = {
            let now = self.now.lock().unwrap();
            (now.0.len() as u64, now.1)
        };
        Some(Arc::new(FileMap { namespace: NamespaceId(1), version, identity: 1, len, extents: Vec::new() }))
    }
}

impl Pages for Moving {
    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, String> {
        let mut now = self.now.lock().unwrap();
        if self.left.fetch_sub(1, Ordering::Relaxed) == 0 {
            *now = (self.next.clone(), 2);
        }
        let rest = now.0.get(offset as usize..).unwrap_or_default();
        Ok(rest[..len.min(rest.len())].to_vec())
    }
}

/// A tree of so many keys that are multiples of this.
fn tree(keys: u64, fanout: usize, step: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let load = BulkLoad::new(
        Shape::new(keys, fanout).unwrap(),
        |number| number * step,
        |number| value(number * step),
    );
    load.write(&mut bytes).unwrap();
    bytes
}

fn value(key: u64) -> [u8; VALUE_LEN] {
    let mut value = [9; VALUE_LEN];
    value[..8].copy_from_slice(&key.to_le_bytes());
    value
}

/// Asks when the file is about to change, after so many reads of the question; says whether it has.
async fn asked_while_it_changes(reads: u64) -> bool {
    let (before, after) = (tree(900, 5, 2), tree(300, 3, 3));
    // A range that is read in ordinary ways ends or goes on where the file is another: what it begins with is looked at.
    for question in 0..3 {
        let moving = Moving {
            now: Mutex::new((before.clone(), 1)),
            next: after.clone(),
            left: AtomicU64::new(u64::MAX),
        };
        let moving = Arc::new(moving);
        let session = Session::begin(Nobody, NamespaceId(1)).await.unwrap();
        let options = BTreeOptions { cached_levels: 3, ..BTreeOptions::default() };
        let tree =
            BTree::open(&session, session.mapped(moving.clone()), moving.clone(), options).await.unwrap();
        assert_eq!(tree.cached_nodes(), 1 + 2 + 8);
        moving.left.store(reads, Ordering::Relaxed);
        let said = match question {
            0 => tree.get(606).await.map(|(found, _)| found == Some(value(606))),
            1 => tree.range(600, 606, 3).await.map(|found| {
                let keys: Vec<u64> = found.iter().map(|(key, _)| *key).collect();
                assert!(found.iter().all(|(key, found)| *found == value(*key)), "{keys:?}");
                keys == [600, 602, 604] || keys == [600, 603, 606]
            }),
            _ => tree.aggregate(600, 606, ALL).await.map(|found| [4, 3].contains(&found.count)),
        };
        assert_eq!(said, Ok(true), "question {question}, changed before read {reads}");
        if moving.now.lock().unwrap().1 == 1 {
            return false;
        }
    }
    true
}

#[test]
fn a_file_that_changes_is_not_called_damaged_for_what_was_kept_of_it() {
    block_on(async {
        let mut reads = 0;
        while asked_while_it_changes(reads).await {
            reads += 1;
        }
        assert!(reads >= 3, "a leaf, its values, and what is behind are read; {reads} reads");
    });
}
