//! `[files]`: the card's file system.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

use super::ByteSize;

/// What is written for a device in memory.
pub(super) const MEMORY: &str = "memory";
/// What is written for segments that suit the device.
pub(super) const SEGMENT_AUTO: &str = "auto";
/// The device where nothing else is said, in the data directory.
pub(super) const DEVICE_DEFAULT: &str = "card/files.img";
/// A file of this size takes as much of the disk as was written to it, and a little that is kept ready.
const SIZE_DEFAULT: ByteSize = ByteSize(16 << 30);
/// Memory is taken as it is written too, but it is scarcer.
pub(super) const MEMORY_SIZE_DEFAULT: ByteSize = ByteSize(256 << 20);

/// Where the card keeps files.
#[derive(Clone, Debug, Serialize)]
pub struct FilesConfig {
    /// The device.
    pub device: FilesDevice,
    /// How large a file or memory is made that is not there yet.
    pub size: ByteSize,
    /// How large the units of space are on a device that is formatted.
    pub segment: SegmentSize,
}

impl Default for FilesConfig {
    fn default() -> Self {
        let device = FilesDevice::Path(PathBuf::from(DEVICE_DEFAULT));
        Self { device, size: SIZE_DEFAULT, segment: SegmentSize::Auto }
    }
}

/// What the files lie on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilesDevice {
    /// A file or a block device. Relative to the data directory in a [`super::Config`], ready for use in a
    /// [`super::CardConfig`].
    Path(PathBuf),
    /// The card's memory: gone when the card ends.
    Memory,
}

impl FilesDevice {
    /// The same, with its path ready for use.
    #[must_use]
    pub fn below(&self, data: &Path) -> Self {
        match self {
            Self::Path(path) => Self::Path(data.join(path)),
            Self::Memory => Self::Memory,
        }
    }
}

impl fmt::Display for FilesDevice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(formatter, "{}", path.display()),
            Self::Memory => formatter.write_str(MEMORY),
        }
    }
}

impl Serialize for FilesDevice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Bytes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentSize {
    /// Chosen after the device's size.
    Auto,
    /// So many: a power of two.
    Bytes(ByteSize),
}

impl SegmentSize {
    /// The bytes, if they are not chosen after the device.
    #[must_use]
    pub fn bytes(self) -> Option<u64> {
        match self {
            Self::Auto => None,
            Self::Bytes(size) => Some(size.0),
        }
    }
}

impl Serialize for SegmentSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str(SEGMENT_AUTO),
            Self::Bytes(size) => size.serialize(serializer),
        }
    }
}
