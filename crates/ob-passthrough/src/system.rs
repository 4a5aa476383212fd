//! Where the kernel shows its devices and mounts.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The roots of sysfs, procfs and the devices. Tests put trees of their own in their place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct System {
    /// Usually `/sys`.
    pub sys: PathBuf,
    /// Usually `/proc`.
    pub proc: PathBuf,
    /// Usually `/dev`.
    pub dev: PathBuf,
}

impl Default for System {
    fn default() -> Self {
        Self { sys: "/sys".into(), proc: "/proc".into(), dev: "/dev".into() }
    }
}

/// Attributes are a page at most, tables of mounts may be longer; nothing here is read without an end.
const TEXT_LEN_MAX: u64 = 16 << 20;

/// A small text file of the kernel's, without the line end.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    fs::File::open(path)?.take(TEXT_LEN_MAX).read_to_string(&mut text)?;
    text.truncate(text.trim_end().len());
    Ok(text)
}

/// A number in a small text file.
pub(crate) fn read_number(path: &Path) -> io::Result<u64> {
    let text = read_text(path)?;
    text.parse().map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("`{text}` is no number")))
}
