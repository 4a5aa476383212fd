//! A B+tree in a file, in the format of BPF-KV, to be looked up where it lies.
//!
//! ```text
//!   file    nodes of 512 bytes, level by level, the root first │ values of 64 bytes
//!   node    u64 next, u64 type (0 inner, 1 leaf), u64 key[31], u64 pointer[31]
//! ```
//!
//! Keys ascend in a node, and behind the last one there are zeros. A pointer has bit 63 set; the rest is where in the file its child, or its
//! value, begins. `next` is where the level's next node begins, 0 in the last one.

mod load;
mod named;
mod node;
mod ordinary;
mod store;

pub use load::{BulkLoad, LoadError, Shape};
pub use named::NamedPages;
pub use node::{BadNode, ENTRIES_MAX, Followed, NODE_LEN, Node, POINTER_MARK, VALUE_LEN};
pub use ordinary::{NamespacePages, Pages};
pub use store::{Aggregate, BTree, BTreeError, BTreeOptions, Filter, Path, StoreCounts};
