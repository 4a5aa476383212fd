//! Files in memory, which a test can damage.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use ob_rocksdb::{Files, ReadError};

#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryFiles {
    pub(crate) files: BTreeMap<String, Arc<Vec<u8>>>,
}

impl MemoryFiles {
    pub(crate) fn load(directory: &Path) -> Self {
        let entries = std::fs::read_dir(directory).unwrap().map(Result::unwrap);
        let files = entries.map(|entry| {
            let content = std::fs::read(entry.path()).unwrap();
            (entry.file_name().to_string_lossy().into_owned(), Arc::new(content))
        });
        Self { files: files.collect() }
    }

    /// The same, with one file changed.
    pub(crate) fn with(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) -> Self {
        let mut changed = self.clone();
        change(Arc::make_mut(changed.files.get_mut(name).unwrap()));
        changed
    }
}

impl Files for MemoryFiles {
    type File = (String, Arc<Vec<u8>>);

    async fn list(&self) -> Result<Vec<(String, u64)>, ReadError> {
        Ok(self.files.iter().map(|(name, content)| (name.clone(), content.len() as u64)).collect())
    }

    async fn open(&self, name: &str) -> Result<Self::File, ReadError> {
        let content = self.files.get(name).ok_or_else(|| ReadError::NotFound(name.to_owned()))?;
        Ok((name.to_owned(), content.clone()))
    }

    async fn len(&self, file: &Self::File) -> Result<u64, ReadError> {
        Ok(file.1.len() as u64)
    }

    async fn read(&self, file: &Self::File, offset: u64, len: usize) -> Result<Vec<u8>, ReadError> {
        let start = usize::try_from(offset).unwrap();
        let content = start.checked_add(len).and_then(|end| file.1.get(start..end));
        let past_end = || ReadError::PastEnd { file: file.0.clone(), end: offset.saturating_add(len as u64) };
        content.map(<[u8]>::to_vec).ok_or_else(past_end)
    }
}
