//! What `btree_search.c` does, in Rust: looks a key up in a B+tree of nodes of 4 KiB, by binary search within each.
//!
//! ```text
//!   node     u64 type (0 inner, 1 leaf), u64 count, u64 key[255], u64 value[255]
//!   scratch  u64 key; out: u64 is_found, u64 value
//! ```
//!
//! Keys ascend. The value of an inner node's entry is the offset of the child that has the keys from this one on. The request begins
//! with a read of the root, wherever that is.

#![no_std]

use outboard_program::StorageContext;
use outboard_program::numbers::{read_u64, write_u64};

const NODE_LEN: usize = 4096;
const ENTRIES: usize = 255;
const LEAF: u64 = 1;

const KEYS: usize = 16;
const VALUES: usize = KEYS + 8 * ENTRIES;

const OK: u64 = 0;
const CORRUPT: u64 = 1;

outboard_program::data_min!(NODE_LEN as u32);

/// One step of a lookup.
#[unsafe(link_section = "storage")]
#[unsafe(no_mangle)]
pub extern "C" fn btree_search_rust(context: &mut StorageContext<'_>) -> u64 {
    step(context).map_or(CORRUPT, |()| OK)
}

/// None if the node is corrupt.
#[inline(always)]
fn step(context: &mut StorageContext<'_>) -> Option<()> {
    let node: &[u8; NODE_LEN] = context.data().first_chunk()?;
    let key = read_u64(context.scratch(), 0)?;
    let entry = match entries_up_to(node, key)? {
        0 => {
            context.done = 1;
            return Some(());
        }
        entries => entries - 1,
    };
    let value = read_u64(node, VALUES + 8 * entry)?;
    if read_u64(node, 0)? == LEAF {
        let is_found = read_u64(node, KEYS + 8 * entry)? == key;
        write_u64(context.scratch(), 8, is_found.into())?;
        write_u64(context.scratch(), 16, if is_found { value } else { 0 })?;
        context.done = 1;
    } else {
        context.next_file = context.file();
        context.next_offset = value;
        context.next_len = NODE_LEN as u64;
    }
    Some(())
}

/// How many entries have keys up to this one; none if the node says that it has more than it can.
#[inline(always)]
fn entries_up_to(node: &[u8; NODE_LEN], key: u64) -> Option<usize> {
    let count = usize::try_from(read_u64(node, 8)?).ok().filter(|count| *count <= ENTRIES)?;
    // All entries before left have keys up to the one that is wanted, and all from right on have greater ones.
    let (mut left, mut right) = (0, count);
    while left < right {
        let middle = usize::midpoint(left, right);
        if read_u64(node, KEYS + 8 * middle)? <= key { left = middle + 1 } else { right = middle }
    }
    Some(left)
}

#[cfg(test)]
mod tests {
    use outboard_program::STORAGE_SCRATCH_LEN;

    use super::*;

    /// A node with the keys 10 and 20, which have the values 1000 and 2000.
    fn node(kind: u64, count: u64) -> [u8; NODE_LEN] {
        let mut node = [0; NODE_LEN];
        for (at, word) in
            [(0, kind), (8, count), (KEYS, 10), (KEYS + 8, 20), (VALUES, 1000), (VALUES + 8, 2000)]
        {
            assert_eq!(write_u64(&mut node, at, word), Some(()));
        }
        node
    }

    fn scratch(key: u64) -> [u8; STORAGE_SCRATCH_LEN] {
        let mut scratch = [0; STORAGE_SCRATCH_LEN];
        assert_eq!(write_u64(&mut scratch, 0, key), Some(()));
        scratch
    }

    #[test]
    fn a_leaf_has_the_key_or_not() {
        for (key, is_found, value) in [(20, 1, 2000), (10, 1, 1000), (15, 0, 0), (9, 0, 0), (99, 0, 0)] {
            let (node, mut scratch) = (node(LEAF, 2), scratch(key));
            let mut context = StorageContext::new(&node, &mut scratch);
            assert_eq!((btree_search_rust(&mut context), context.done), (OK, 1));
            assert_eq!(
                (read_u64(&scratch, 8), read_u64(&scratch, 16)),
                (Some(is_found), Some(value)),
                "{key}"
            );
        }
    }

    #[test]
    fn an_inner_node_says_where_to_go_on() {
        let (node, mut scratch) = (node(0, 2), scratch(15));
        let mut context = StorageContext::new(&node, &mut scratch).with_file(3);
        assert_eq!((btree_search_rust(&mut context), context.done), (OK, 0));
        assert_eq!((context.next_file, context.next_offset, context.next_len), (3, 1000, 4096));
    }

    #[test]
    fn a_node_of_too_many_entries_is_corrupt() {
        let (node, mut scratch) = (node(LEAF, 256), scratch(15));
        assert_eq!(btree_search_rust(&mut StorageContext::new(&node, &mut scratch)), CORRUPT);
    }
}
