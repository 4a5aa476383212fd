//! Where bytes come from and go to on this machine.

use std::fs::{File, FileType};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use super::error::InitiatorError;
use crate::files::{put_or_replace, unfinished_name};

/// Where bytes go.
pub(super) enum Output {
    /// To whoever reads this process's output.
    Standard,
    /// Into something that is no file, as it is: a pipe, a device.
    Through { file: File, path: PathBuf },
    /// To a file that has another name until it is whole.
    File { file: File, path: PathBuf, unfinished: PathBuf, force: bool },
}

impl Output {
    /// `is_terminal` says what standard output is.
    pub(super) fn open(path: &Path, force: bool, is_terminal: bool) -> Result<Self, InitiatorError> {
        if path.as_os_str() == "-" {
            if is_terminal {
                return Err(InitiatorError::Request {
                    problem: "blocks are not for a terminal".to_owned(),
                    hint: "name a file with --out FILE, or have another program read them: … | xxd",
                });
            }
            return Ok(Self::Standard);
        }
        let kind = path.metadata().ok().map(|metadata| metadata.file_type());
        match kind {
            Some(kind) if kind.is_dir() => {
                Err(because("write", path, "this is a directory", "give a file's name"))
            }
            Some(kind) if !kind.is_file() => {
                let file = File::options().write(true).open(path);
                let file = file.map_err(InitiatorError::local("write to", path, None))?;
                Ok(Self::Through { file, path: path.to_owned() })
            }
            Some(_) if !force => {
                Err(because("write", path, "the file is there already", "--force replaces it"))
            }
            _ => {
                let unfinished = path.with_file_name(unfinished_name("read")?);
                let file = File::options().write(true).create_new(true).open(&unfinished);
                let file = file.map_err(InitiatorError::local("write", path, None))?;
                Ok(Self::File { file, path: path.to_owned(), unfinished, force })
            }
        }
    }

    pub(super) fn is_standard(&self) -> bool {
        matches!(self, Self::Standard)
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), InitiatorError> {
        match self {
            Self::Standard => Ok(io::stdout().lock().write_all(bytes)?),
            Self::Through { file, path } | Self::File { file, path, .. } => {
                file.write_all(bytes).map_err(InitiatorError::local("write", &*path, None))
            }
        }
    }

    /// All is there.
    pub(super) fn finish(&mut self) -> Result<(), InitiatorError> {
        match self {
            Self::Standard => Ok(io::stdout().lock().flush()?),
            Self::Through { .. } => Ok(()),
            Self::File { file, path, unfinished, force } => file
                .sync_all()
                .and_then(|()| put_or_replace(unfinished, path, *force))
                .map_err(InitiatorError::local("write", &*path, None)),
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Self::File { unfinished, .. } = self {
            // Once the file has its own name, there is none of this one.
            let _ = std::fs::remove_file(unfinished);
        }
    }
}

/// Where bytes come from.
pub(super) struct Input {
    bytes: Box<dyn Read>,
    /// Bytes that are left, where that is known.
    pub(super) len: Option<u64>,
}

impl Input {
    /// `is_terminal` says what standard input is.
    pub(super) fn open(path: &Path, is_terminal: bool) -> Result<Self, InitiatorError> {
        if path.as_os_str() == "-" {
            if is_terminal {
                return Err(InitiatorError::Request {
                    problem: "there is nothing to write: standard input is a terminal".to_owned(),
                    hint: "name a file with --input FILE, or have another program write: … | outboard nvme write",
                });
            }
            return Ok(Self { bytes: Box::new(io::stdin()), len: None });
        }
        let file = File::open(path).map_err(InitiatorError::local("read", path, None))?;
        let metadata = file.metadata().map_err(InitiatorError::local("look at", path, None))?;
        if metadata.is_dir() {
            return Err(because("read", path, "this is a directory", "give a file's name"));
        }
        let len = Some(metadata.len()).filter(|_| FileType::is_file(&metadata.file_type()));
        Ok(Self { bytes: Box::new(file), len })
    }

    /// The next bytes: as many as asked for, or less at the end.
    pub(super) fn next(&mut self, count: usize, path: &Path) -> Result<Vec<u8>, InitiatorError> {
        let failed = || InitiatorError::local("read", path, None);
        let wanted = self.len.map_or(count as u64, |left| left.min(count as u64));
        let mut bytes = Vec::with_capacity(count);
        let read = self.bytes.as_mut().take(wanted).read_to_end(&mut bytes).map_err(failed())?;
        if let Some(left) = &mut self.len {
            if (read as u64) < wanted {
                let became_shorter = io::Error::other("the file became shorter while it was read");
                return Err(failed()(became_shorter));
            }
            *left -= wanted;
        }
        Ok(bytes)
    }
}

fn because(action: &'static str, path: &Path, why: &'static str, hint: &'static str) -> InitiatorError {
    InitiatorError::Local { action, path: path.to_owned(), source: io::Error::other(why), hint: Some(hint) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_no_blocks_and_gives_none() {
        let standard = Path::new("-");
        let refused = Output::open(standard, true, true).err().map(|error| error.to_string());
        assert!(refused.is_some_and(|text| text.contains("--out FILE")));
        let refused = Input::open(standard, true).err().map(|error| error.to_string());
        assert!(refused.is_some_and(|text| text.contains("--input FILE")));
        assert!(Output::open(standard, false, false).is_ok_and(|output| output.is_standard()));
        assert!(Input::open(standard, false).is_ok_and(|input| input.len.is_none()));
    }

    #[test]
    fn a_file_appears_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out");
        let names = || std::fs::read_dir(directory.path()).unwrap().count();
        let mut output = Output::open(&path, false, false).unwrap();
        output.write(b"half").unwrap();
        assert!(!path.exists());
        drop(output);
        assert_eq!(names(), 0, "nothing is left of what was not finished");
        let mut output = Output::open(&path, false, false).unwrap();
        output.write(b"whole").unwrap();
        output.finish().unwrap();
        drop(output);
        assert_eq!((std::fs::read(&path).unwrap(), names()), (b"whole".to_vec(), 1));
        assert!(Output::open(&path, false, false).is_err());
        let mut output = Output::open(&path, true, false).unwrap();
        output.write(b"other").unwrap();
        output.finish().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"other");
        assert!(Output::open(directory.path(), true, false).is_err());
    }

    #[test]
    fn a_file_that_becomes_shorter_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("in");
        std::fs::write(&path, [7; 1000]).unwrap();
        let mut input = Input::open(&path, false).unwrap();
        assert_eq!(input.next(600, &path).unwrap(), [7; 600]);
        File::options().write(true).open(&path).unwrap().set_len(700).unwrap();
        assert!(input.next(600, &path).is_err());
        let mut input = Input::open(&path, false).unwrap();
        assert_eq!(input.next(1000, &path).unwrap().len(), 700);
        assert!(input.next(1000, &path).unwrap().is_empty());
    }
}
