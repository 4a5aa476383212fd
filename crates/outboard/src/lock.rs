//! A file that one process at a time holds, with the holder's number in it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// Held until dropped, or until the process ends in whatever way: the kernel lets go of it.
///
/// The file itself stays. Removing it would let two processes hold locks on two files of one name.
#[derive(Debug)]
pub struct PidLock {
    _file: File,
}

/// Why the lock is not ours.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process holds it.
    #[error("{} is held by {}", path.display(), holder_in_words(*.pid))]
    Held {
        /// The lock's file.
        path: PathBuf,
        /// The holder, if it has already written its number.
        pid: Option<u32>,
    },
    /// The file cannot be used.
    #[error("cannot lock {}: {source}", path.display())]
    Io {
        /// The lock's file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// Names a process that may or may not be known.
#[must_use]
pub fn holder_in_words(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("the process {pid}"))
}

impl PidLock {
    /// Takes the lock at once or not at all.
    pub fn acquire(path: &Path) -> Result<Self, LockError> {
        let failed = |source| LockError::Io { path: path.to_owned(), source };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(LockError::Held { path: path.to_owned(), pid: written_pid(&mut file) });
            }
            Err(error) => return Err(failed(error.into())),
        }
        write_pid(&mut file).map_err(failed)?;
        Ok(Self { _file: file })
    }
}

fn write_pid(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

fn written_pid(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_taker_learns_who_holds_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        std::fs::write(&path, "4294967295 and garbage of an earlier life").unwrap();
        let held = PidLock::acquire(&path).unwrap();
        match PidLock::acquire(&path) {
            Err(LockError::Held { pid, .. }) => assert_eq!(pid, Some(std::process::id())),
            other => panic!("{other:?}"),
        }
        drop(held);
        PidLock::acquire(&path).unwrap();
    }
}
