//! A directory of a RocksDB database in a mounted file system: its tables are mapped, and all else the kernel reads.

use std::path::PathBuf;
use std::sync::Arc;

use ob_passthrough::System;
use ob_passthrough::lease::LeaseKeeper;
use ob_rocksdb::{Files, LocalDirectory, LocalFile, ReadError};
use ob_wire_nvme::NamespaceId;

use super::file::{MountedFile, OpenError};
use crate::client::{File, FileCounts, Session};
use crate::rocksdb::PushedFile;

/// Beyond so many bytes it is looked whether they are there before memory is taken: a length comes from bytes that may lie.
const TAKEN_UNSEEN: usize = 1 << 20;

/// Files of a directory of a file system on a namespace. Requests can read its tables (`*.sst`) while nobody writes them, which RocksDB does only
/// before it names them in its manifest; those that cannot be mapped, now or ever, are read the ordinary way like all others. What was opened can
/// be read until it is dropped, removed or not.
pub struct MountedDirectory<'session, T> {
    local: LocalDirectory,
    path: PathBuf,
    session: &'session Session<T>,
    namespace: NamespaceId,
    /// What the kernel calls it.
    device: String,
    system: System,
    keeper: Arc<LeaseKeeper>,
}

/// An open file of a [`MountedDirectory`].
#[derive(Clone)]
pub struct DirectoryFile {
    kind: Kind,
}

#[derive(Clone)]
enum Kind {
    Local(LocalFile),
    // Opened once for both ways: a name may be another file's the next time.
    Table { name: Arc<str>, mounted: Arc<MountedFile>, pushed: File },
}

impl DirectoryFile {
    /// What became of its maps, if it is a table.
    #[must_use]
    pub fn counts(&self) -> Option<FileCounts> {
        match &self.kind {
            Kind::Local(_) => None,
            Kind::Table { mounted, .. } => Some(mounted.counts()),
        }
    }
}

impl PushedFile for DirectoryFile {
    fn pushed(&self) -> Option<&File> {
        match &self.kind {
            Kind::Local(_) => None,
            Kind::Table { pushed, .. } => Some(pushed),
        }
    }
}

impl<'session, T> MountedDirectory<'session, T> {
    /// The directory at a path, in the file system on a namespace, which the kernel calls so and whose card the session is with.
    pub fn new(
        path: impl Into<PathBuf>,
        session: &'session Session<T>,
        (namespace, device): (NamespaceId, &str),
        system: &System,
        keeper: &Arc<LeaseKeeper>,
    ) -> Self {
        let path = path.into();
        Self {
            local: LocalDirectory::new(&path),
            path,
            session,
            namespace,
            device: device.to_owned(),
            system: system.clone(),
            keeper: Arc::clone(keeper),
        }
    }
}

fn refused(name: &str, error: &std::io::Error) -> ReadError {
    match error.kind() {
        std::io::ErrorKind::NotFound => ReadError::NotFound(name.to_owned()),
        _ => ReadError::Refused { file: name.to_owned(), reason: error.to_string() },
    }
}

impl<T: crate::client::Transport> Files for MountedDirectory<'_, T> {
    type File = DirectoryFile;

    async fn list(&self) -> Result<Vec<(String, u64)>, ReadError> {
        self.local.list().await
    }

    async fn open(&self, name: &str) -> Result<DirectoryFile, ReadError> {
        if !name.ends_with(".sst") {
            return Ok(DirectoryFile { kind: Kind::Local(self.local.open(name).await?) });
        }
        let place = (self.namespace, self.device.as_str());
        let opened = MountedFile::open(&self.path.join(name), place, &self.system, &self.keeper);
        let mounted = Arc::new(opened.map_err(|error| match error {
            OpenError::Open { source, .. } => refused(name, &source),
            OpenError::Lease(error) => {
                ReadError::Refused { file: name.to_owned(), reason: error.to_string() }
            }
        })?);
        let pushed = self.session.mapped(mounted.clone());
        // A table is opened because it is about to be asked for.
        self.session.expect(&pushed);
        Ok(DirectoryFile { kind: Kind::Table { name: name.into(), mounted, pushed } })
    }

    async fn len(&self, file: &DirectoryFile) -> Result<u64, ReadError> {
        match &file.kind {
            Kind::Local(local) => self.local.len(local).await,
            Kind::Table { name, mounted, .. } => mounted.file_len().map_err(|error| refused(name, &error)),
        }
    }

    async fn read(&self, file: &DirectoryFile, offset: u64, len: usize) -> Result<Vec<u8>, ReadError> {
        let (name, mounted) = match &file.kind {
            Kind::Local(local) => return self.local.read(local, offset, len).await,
            Kind::Table { name, mounted, .. } => (name, mounted),
        };
        let end = offset.saturating_add(len as u64);
        let past_end = || ReadError::PastEnd { file: name.to_string(), end };
        if len > TAKEN_UNSEEN && end > self.len(file).await? {
            return Err(past_end());
        }
        let bytes = mounted.read_at(offset, len).map_err(|error| refused(name, &error))?;
        if bytes.len() == len { Ok(bytes) } else { Err(past_end()) }
    }
}
