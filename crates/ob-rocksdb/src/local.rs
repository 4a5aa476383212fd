//! A database's files in a local directory.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::files::{Files, ReadError};

/// Files of a local directory. A file that was opened can be read until it is dropped, removed or not.
#[derive(Clone, Debug)]
pub struct LocalDirectory {
    path: PathBuf,
}

/// An open file of a [`LocalDirectory`].
#[derive(Clone, Debug)]
pub struct LocalFile {
    name: Arc<str>,
    file: Arc<File>,
}

impl LocalDirectory {
    /// The directory at a path.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }
}

fn refused(file: &str, error: &std::io::Error) -> ReadError {
    match error.kind() {
        ErrorKind::NotFound => ReadError::NotFound(file.to_owned()),
        _ => ReadError::Refused { file: file.to_owned(), reason: error.to_string() },
    }
}

impl Files for LocalDirectory {
    type File = LocalFile;

    async fn list(&self) -> Result<Vec<(String, u64)>, ReadError> {
        let path = self.path.display().to_string();
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(|error| refused(&path, &error))? {
            let entry = entry.map_err(|error| refused(&path, &error))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            match entry.metadata() {
                Ok(metadata) if metadata.is_file() => files.push((name, metadata.len())),
                Ok(_) => {}
                // Gone since the directory was read.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(refused(&name, &error)),
            }
        }
        Ok(files)
    }

    async fn open(&self, name: &str) -> Result<LocalFile, ReadError> {
        let file = File::open(self.path.join(name)).map_err(|error| refused(name, &error))?;
        Ok(LocalFile { name: name.into(), file: Arc::new(file) })
    }

    async fn len(&self, file: &LocalFile) -> Result<u64, ReadError> {
        Ok(file.file.metadata().map_err(|error| refused(&file.name, &error))?.len())
    }

    async fn read(&self, file: &LocalFile, offset: u64, len: usize) -> Result<Vec<u8>, ReadError> {
        let end = offset.saturating_add(len as u64);
        let past_end = || ReadError::PastEnd { file: file.name.to_string(), end };
        // Before much memory is taken: a length comes from bytes that may lie.
        if len > 1 << 20 && end > self.len(file).await? {
            return Err(past_end());
        }
        let mut bytes = vec![0; len];
        match file.file.read_exact_at(&mut bytes, offset) {
            Ok(()) => Ok(bytes),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err(past_end()),
            Err(error) => Err(refused(&file.name, &error)),
        }
    }
}
