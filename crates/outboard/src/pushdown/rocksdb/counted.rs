//! A directory whose reads are counted.

use std::sync::atomic::{AtomicU64, Ordering};

use ob_rocksdb::{Files, ReadError};

/// Files of another directory.
pub(super) struct Counted<F> {
    files: F,
    reads: AtomicU64,
}

impl<F> Counted<F> {
    pub(super) fn new(files: F) -> Self {
        Self { files, reads: AtomicU64::new(0) }
    }

    /// Ordinary reads so far, of whatever file.
    pub(super) fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }
}

impl<F: Files> Files for Counted<F> {
    type File = F::File;

    async fn list(&self) -> Result<Vec<(String, u64)>, ReadError> {
        self.files.list().await
    }

    async fn open(&self, name: &str) -> Result<F::File, ReadError> {
        self.files.open(name).await
    }

    async fn len(&self, file: &F::File) -> Result<u64, ReadError> {
        self.files.len(file).await
    }

    async fn read(&self, file: &F::File, offset: u64, len: usize) -> Result<Vec<u8>, ReadError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.files.read(file, offset, len).await
    }
}
