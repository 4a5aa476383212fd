//! Files that are replaced whole: whoever reads after a crash finds the old one or the new one, and the new one once the call has
//! returned.
//!
//! ```text
//!   stage: write `beside` ─▶ sync it        put: rename it ─▶ sync the folder
//! ```

use std::fs::File;
use std::io;
use std::path::Path;

/// Writes bytes beside a file, durably, to take its place with [`put`].
pub(crate) fn stage(beside: &Path, bytes: &[u8]) -> io::Result<()> {
    stage_on(&mut RealDisk, beside, bytes)
}

/// Gives what was staged its name.
pub(crate) fn put(beside: &Path, path: &Path) -> io::Result<()> {
    put_on(&mut RealDisk, beside, path)
}

/// Replaces a file; `beside` is in the same folder, and nobody else's.
pub(crate) fn replace(beside: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    stage(beside, bytes)?;
    put(beside, path)
}

/// What it takes, so that a test can see in which order it is done.
trait Disk {
    fn write(&mut self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()>;
    /// Returns when what a file holds, or which files a folder has, is durable.
    fn sync(&mut self, path: &Path) -> io::Result<()>;
}

struct RealDisk;

impl Disk for RealDisk {
    fn write(&mut self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        std::fs::write(path, bytes)
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn sync(&mut self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }
}

fn stage_on(disk: &mut impl Disk, beside: &Path, bytes: &[u8]) -> io::Result<()> {
    disk.write(beside, bytes)?;
    disk.sync(beside)
}

fn put_on(disk: &mut impl Disk, beside: &Path, path: &Path) -> io::Result<()> {
    disk.rename(beside, path)?;
    match path.parent() {
        // A name alone lies in the folder that this runs in.
        Some(folder) if folder.as_os_str().is_empty() => disk.sync(Path::new(".")),
        Some(folder) => disk.sync(folder),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes what is done, and fails at one of the steps.
    #[derive(Default)]
    struct Notes {
        steps: Vec<String>,
        fails_at: Option<usize>,
    }

    impl Notes {
        fn note(&mut self, step: String) -> io::Result<()> {
            if self.fails_at == Some(self.steps.len()) {
                return Err(io::Error::other("no"));
            }
            self.steps.push(step);
            Ok(())
        }

        fn replace(&mut self, path: &str) -> io::Result<()> {
            let (beside, path) = (format!("{path}.new"), Path::new(path));
            stage_on(self, Path::new(&beside), b"7")?;
            put_on(self, Path::new(&beside), path)
        }
    }

    impl Disk for Notes {
        fn write(&mut self, path: &Path, bytes: &[u8]) -> io::Result<()> {
            self.note(format!("write {} {}", path.display(), String::from_utf8_lossy(bytes)))
        }

        fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
            self.note(format!("rename {} {}", from.display(), to.display()))
        }

        fn sync(&mut self, path: &Path) -> io::Result<()> {
            self.note(format!("sync {}", path.display()))
        }
    }

    #[test]
    fn the_bytes_are_durable_before_their_name_and_the_name_before_the_call_returns() {
        let order = ["write d/n.new 7", "sync d/n.new", "rename d/n.new d/n", "sync d"];
        let mut notes = Notes::default();
        notes.replace("d/n").unwrap();
        assert_eq!(notes.steps, order);
        for step in 0..order.len() {
            let mut notes = Notes { fails_at: Some(step), ..Notes::default() };
            assert!(notes.replace("d/n").is_err());
            assert_eq!(notes.steps, order[..step], "nothing follows what has failed");
        }
        let mut notes = Notes::default();
        notes.replace("n").unwrap();
        assert_eq!(notes.steps.last().map(String::as_str), Some("sync ."));
    }

    #[test]
    fn a_file_is_replaced_whatever_a_crash_has_left_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let (beside, path) = (folder.path().join("n.new"), folder.path().join("n"));
        std::fs::write(&beside, "what a crash has left, and longer").unwrap();
        replace(&beside, &path, b"first").unwrap();
        replace(&beside, &path, b"second").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"second");
        assert!(!beside.exists());
    }
}
