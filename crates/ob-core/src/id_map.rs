//! Tables by ids that are ours.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A table by id, for ids that this half gives out itself. Who may choose ids, the other half too, can choose such that all meet in
/// one place: what comes from outside does not belong here.
pub type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;

/// Ids count up: multiplying spreads them well enough.
#[derive(Debug, Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::{ConnectionId, NodeId};

    #[test]
    fn ids_that_count_up_are_spread_over_places_and_tags() {
        // A table takes the place from the low bits, and from the topmost seven a tag that spares it most comparisons.
        for shift in [0, 12, 32] {
            let hashes: Vec<u64> = (0..1024u64)
                .map(|id| {
                    let mut hasher = IdHasher::default();
                    hasher.write_u64(id << shift);
                    hasher.finish()
                })
                .collect();
            let places: HashSet<u64> = hashes.iter().map(|hash| hash % 2048).collect();
            let tags: HashSet<u64> = hashes.iter().map(|hash| hash >> 57).collect();
            assert!(places.len() > 512, "ids of steps of 1 << {shift} have {} places", places.len());
            assert!(tags.len() > 64, "ids of steps of 1 << {shift} have {} tags", tags.len());
        }
    }

    #[test]
    fn every_kind_of_id_finds_its_own() {
        let nodes: IdMap<NodeId, u64> = (0..100).map(|id| (NodeId(id), id)).collect();
        let connections: IdMap<ConnectionId, u64> = (0..100).map(|id| (ConnectionId(id << 32), id)).collect();
        let names: IdMap<u32, u64> = (0..100).map(|id| (id as u32, id)).collect();
        for id in 0..100 {
            assert_eq!(nodes.get(&NodeId(id)), Some(&id));
            assert_eq!(connections.get(&ConnectionId(id << 32)), Some(&id));
            assert_eq!(names.get(&(id as u32)), Some(&id));
        }
        assert!(!nodes.contains_key(&NodeId(100)));
    }
}
