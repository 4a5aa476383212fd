//! Who wants to see what hosts write (DDS §6.1, *cache-on-write*).

use ob_core::NodeId;

/// Sees the writes of hosts, and changes none of them.
pub trait WriteObserver {
    /// A write was taken: these bytes are going to be at this place of the file. It may still fail, and it is not complete
    /// before its host says so.
    fn write_taken(&mut self, file: NodeId, offset: u64, bytes: &[u8]);
}
