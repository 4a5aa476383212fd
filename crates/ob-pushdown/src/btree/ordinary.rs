//! The ordinary path: pages of the file, read one by one.

use std::sync::Arc;

use ob_nvme::initiator::Namespace;

use crate::client::MapSource;
use crate::kernel::MountedFile;

/// Reads a file without storage functions.
pub trait Pages: Send + Sync {
    /// Bytes of the file; fewer where it ends. A text says what went wrong.
    fn read(&self, offset: u64, len: usize) -> impl Future<Output = Result<Vec<u8>, String>> + Send;

    /// Whether each read is a request that names the file: two of them may be of two files, if another takes its name meanwhile.
    fn are_requests(&self) -> bool {
        false
    }
}

/// By the file system of this machine.
impl Pages for MountedFile {
    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, String> {
        self.read_at(offset, len).map_err(|error| error.to_string())
    }
}

impl<P: Pages> Pages for Arc<P> {
    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, String> {
        (**self).read(offset, len).await
    }

    fn are_requests(&self) -> bool {
        (**self).are_requests()
    }
}

/// By ordinary reads of a namespace, as its map says.
pub struct NamespacePages {
    namespace: Namespace,
    source: Arc<dyn MapSource>,
}

impl NamespacePages {
    /// A file that lies in a namespace.
    #[must_use]
    pub fn new(namespace: Namespace, source: Arc<dyn MapSource>) -> Self {
        Self { namespace, source }
    }
}

impl Pages for NamespacePages {
    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, String> {
        const CHANGES: &str = "the file changes";
        const LESS: &str = "the namespace gives less than it is asked for";
        let map = self.source.current().ok_or(CHANGES)?;
        // Whoever is about to change the file waits, if he can be made to.
        let _hold = self.source.hold(map.version).ok_or(CHANGES)?;
        let block = u64::from(self.namespace.block_len());
        let end = offset.checked_add(len as u64).ok_or("no file is so long")?.min(map.len);
        let mut bytes = Vec::new();
        let mut at = offset;
        while at < end {
            let behind = map.extents.partition_point(|extent| extent.at <= at);
            let extent = behind.checked_sub(1).and_then(|index| map.extents.get(index));
            let extent =
                extent.filter(|extent| at - extent.at < extent.len).ok_or("the file has a hole there")?;
            let stop = end.min(extent.at + extent.len);
            let place = extent.offset + (at - extent.at);
            let (first, last) = (place / block, (place + (stop - at)).div_ceil(block));
            let read = self.namespace.read(first, last - first).await.map_err(|error| error.to_string())?;
            let lead = (place - first * block) as usize;
            bytes.extend_from_slice(read.get(lead..lead + (stop - at) as usize).ok_or(LESS)?);
            at = stop;
        }
        // Where he does not, the blocks may have been another file's by the time that they were read.
        if self.source.version() == Some(map.version) { Ok(bytes) } else { Err(CHANGES.to_owned()) }
    }
}
