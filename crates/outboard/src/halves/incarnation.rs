//! Counts the lives of a half, so that what an earlier life left behind is known for what it is.

use std::io;
use std::path::{Path, PathBuf};

use ob_core::Incarnation;

use crate::durable;

const FILE_NAME: &str = "incarnation";
const NEW_FILE_NAME: &str = "incarnation.new";

/// Why the number cannot be counted on. None of these is repaired by itself: a number that goes back would let an
/// earlier life's writes through.
#[derive(Debug, thiserror::Error)]
pub enum IncarnationError {
    /// The file holds something else.
    #[error(
        "{} should hold one decimal number, but holds {found:?}\n\
         hint: write a number into it that is larger than any it ever held, such as {example}",
        path.display()
    )]
    Garbage {
        /// The file.
        path: PathBuf,
        /// How it begins.
        found: String,
        /// A number that is surely larger.
        example: u64,
    },
    /// The number cannot grow any more.
    #[error("{} holds the largest number there is", path.display())]
    Exhausted {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be read or replaced.
    #[error("cannot count the incarnation in {}: {source}{}", path.display(), hint(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// What to do where there is no room for the files that a start writes.
pub(super) fn hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "\nhint: make room for one small file there; what the card or the store holds can be removed only once both run"
        }
        _ => "",
    }
}

/// Reads the number, adds one, and returns only when the new number is on the disk. The caller holds the lock of the
/// directory.
pub fn next_incarnation(directory: &Path) -> Result<Incarnation, IncarnationError> {
    let path = directory.join(FILE_NAME);
    let last = match std::fs::read(&path) {
        Ok(bytes) => parse(&path, &bytes)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(source) => return Err(IncarnationError::Io { path, source }),
    };
    let next = last.checked_add(1).ok_or_else(|| IncarnationError::Exhausted { path: path.clone() })?;
    let replaced = durable::replace(&directory.join(NEW_FILE_NAME), &path, format!("{next}\n").as_bytes());
    replaced.map_err(|source| IncarnationError::Io { path, source })?;
    Ok(Incarnation(next))
}

fn parse(path: &Path, bytes: &[u8]) -> Result<u64, IncarnationError> {
    let digits = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let number = std::str::from_utf8(digits)
        .ok()
        // The standard parser would take a sign, and we never write one.
        .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|text| text.parse().ok());
    number.ok_or_else(|| IncarnationError::Garbage {
        path: path.to_owned(),
        found: String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned(),
        example: std::time::UNIX_EPOCH.elapsed().map_or(1, |elapsed| elapsed.as_secs()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_start_counts_one() {
        let directory = tempfile::tempdir().unwrap();
        for expected in 1..=3 {
            assert_eq!(next_incarnation(directory.path()).unwrap(), Incarnation(expected));
        }
        assert_eq!(std::fs::read_to_string(directory.path().join(FILE_NAME)).unwrap(), "3\n");
    }

    #[test]
    fn what_a_crash_left_of_a_replacement_does_not_matter() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(FILE_NAME), "41").unwrap();
        std::fs::write(directory.path().join(NEW_FILE_NAME), "4").unwrap();
        assert_eq!(next_incarnation(directory.path()).unwrap(), Incarnation(42));
    }

    #[test]
    fn a_full_file_system_is_told_with_what_to_do() {
        let told = |kind: io::ErrorKind| {
            IncarnationError::Io { path: PathBuf::from("there"), source: io::Error::from(kind) }.to_string()
        };
        assert!(told(io::ErrorKind::StorageFull).contains("hint: make room"));
        assert!(!told(io::ErrorKind::PermissionDenied).contains("hint"));
    }

    #[test]
    fn garbage_is_an_error_and_stays_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE_NAME);
        for garbage in ["", "\n", "seven", "+7", "-1", "7 8", "99999999999999999999", "7\n\n", "\u{fffd}"] {
            std::fs::write(&path, garbage).unwrap();
            let error = next_incarnation(directory.path()).unwrap_err();
            assert!(matches!(error, IncarnationError::Garbage { .. }), "{garbage:?}: {error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), garbage);
        }
        std::fs::write(&path, u64::MAX.to_string()).unwrap();
        assert!(matches!(next_incarnation(directory.path()), Err(IncarnationError::Exhausted { .. })));
    }
}
