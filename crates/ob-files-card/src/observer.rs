//! Who wants to see what hosts write and where they read (DDS §6.1, *cache-on-write* and *invalidate-on-read*).

use ob_core::NodeId;

/// Sees the writes and reads of hosts, and changes none of them.
pub trait WriteObserver {
    /// A write was taken: these bytes are going to be at this place of the file. It may still fail, and it is not complete
    /// before its host says so.
    fn write_taken(&mut self, file: NodeId, offset: u64, bytes: &[u8]);

    /// A read was taken: nothing of what lies there has reached the host for it yet.
    fn read_taken(&mut self, file: NodeId, offset: u64, len: u64) {
        let _ = (file, offset, len);
    }
}
