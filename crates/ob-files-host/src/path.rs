//! Paths as applications write them, made into paths as the card takes them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ob_core::{NameError, check_name};
use ob_wire_link::files::PATH_LEN_MAX;

/// Why bytes are no path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// One of its names cannot be.
    #[error("{0}")]
    Name(NameError),
    /// It is longer than the card takes.
    #[error("a path of {length} bytes is too long, the longest has {PATH_LEN_MAX}")]
    TooLong {
        /// How many bytes.
        length: usize,
    },
    /// It is the root, where something within it is needed.
    #[error("this is the root directory, and something within it is needed")]
    Root,
}

/// What can stand for a path: names with `/` between them. Slashes at the ends and doubled ones do not count; `.` and
/// `..` are no names.
pub trait AsPath {
    /// Its bytes.
    fn path_bytes(&self) -> &[u8];
}

impl AsPath for str {
    fn path_bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl AsPath for String {
    fn path_bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl AsPath for [u8] {
    fn path_bytes(&self) -> &[u8] {
        self
    }
}

impl<const LEN: usize> AsPath for [u8; LEN] {
    fn path_bytes(&self) -> &[u8] {
        self
    }
}

impl AsPath for Vec<u8> {
    fn path_bytes(&self) -> &[u8] {
        self
    }
}

impl AsPath for OsStr {
    fn path_bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl AsPath for Path {
    fn path_bytes(&self) -> &[u8] {
        self.as_os_str().as_bytes()
    }
}

impl AsPath for PathBuf {
    fn path_bytes(&self) -> &[u8] {
        self.as_os_str().as_bytes()
    }
}

impl<T: AsPath + ?Sized> AsPath for &T {
    fn path_bytes(&self) -> &[u8] {
        (**self).path_bytes()
    }
}

/// Appends the path as the card takes it: names with one `/` between them. The root is no bytes at all.
pub(crate) fn append(path: &(impl AsPath + ?Sized), into: &mut Vec<u8>) -> Result<(), PathError> {
    let start = into.len();
    let bytes = path.path_bytes();
    // Slashes that do not count could make a path long for nothing; names are checked one by one, so that whatever
    // was given, no more than the limit is copied.
    for name in bytes.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        check_name(name).map_err(PathError::Name)?;
        if into.len() > start {
            into.push(b'/');
        }
        into.extend_from_slice(name);
        if into.len() - start > PATH_LEN_MAX {
            return Err(PathError::TooLong { length: bytes.len() });
        }
    }
    Ok(())
}

/// As [`append`], for what cannot be the root.
pub(crate) fn append_below_root(path: &(impl AsPath + ?Sized), into: &mut Vec<u8>) -> Result<(), PathError> {
    let start = into.len();
    append(path, into)?;
    if into.len() == start { Err(PathError::Root) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normal(path: impl AsPath) -> Result<Vec<u8>, PathError> {
        let mut bytes = Vec::new();
        append(&path, &mut bytes).map(|()| bytes)
    }

    #[test]
    fn slashes_that_say_nothing_do_not_count() {
        for path in ["a/b", "/a/b", "//a///b/", "a//b//"] {
            assert_eq!(normal(path).unwrap(), b"a/b", "{path}");
        }
        for root in ["", "/", "///"] {
            assert_eq!(normal(root).unwrap(), b"", "{root:?}");
            assert_eq!(append_below_root(root, &mut Vec::new()), Err(PathError::Root));
        }
        assert_eq!(normal(Path::new("/x/y")).unwrap(), b"x/y");
        assert_eq!(normal(&b"\xff/\xfe"[..]).unwrap(), b"\xff/\xfe");
    }

    #[test]
    fn names_that_cannot_be_are_refused() {
        for dots in [".", "..", "/a/./b", "a/..", "../a"] {
            assert_eq!(normal(dots), Err(PathError::Name(NameError::Dots)), "{dots}");
        }
        assert_eq!(normal("a\0b"), Err(PathError::Name(NameError::Zero)));
        assert_eq!(normal("x".repeat(256)), Err(PathError::Name(NameError::TooLong { length: 256 })));
    }

    #[test]
    fn the_longest_path_is_as_long_as_it_may_be() {
        let longest = ["x".repeat(255).as_str(); 16].join("/");
        assert_eq!(longest.len(), 4095);
        assert!(normal(format!("///{longest}//")).is_ok());
        assert!(matches!(normal(format!("{longest}/y")), Err(PathError::TooLong { .. })));
    }
}
