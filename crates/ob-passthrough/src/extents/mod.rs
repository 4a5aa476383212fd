//! Where a file's bytes lie on its namespace.
//!
//! ```text
//!   file ──statx──▶ mount (mountinfo) ──▶ ext4 or xfs, and how its data is journaled
//!     │      └────▶ device (sysfs) ─────▶ a namespace, or a partition of one
//!     └──fsync, FIEMAP──▶ extents + the partition's start ──▶ Extents
//! ```
//!
//! A map is true when it is made and for as long as nobody changes the file: make it under a [lease](crate::lease), and see
//! [`Extents::can_be_remapped`]. Whatever makes it wrong to read a file past its file system is an error that says so; such files
//! are read in the ordinary way.

mod device;
mod fiemap;
mod mounts;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use rustix::fs::{AtFlags, FileType, Statx, StatxAttributes, StatxFlags};
use rustix::io::Errno;

pub use device::{AllowedDevices, BlockDevice};

use crate::System;
use crate::plant::{Bug, is_planted};

/// As many extents as a map may have, if nothing else is said.
pub const EXTENTS_MAX_DEFAULT: usize = 65_536;

/// A file's bytes and where they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extents {
    /// The file's number in its file system.
    pub inode_id: u64,
    /// Tells files apart that have had one number after another, where the file system keeps it.
    pub generation: Option<u32>,
    /// The file's length. The last extent may be longer: it ends with a block of the file system.
    pub len: u64,
    /// Bytes of a block of the file system.
    pub block_len: u64,
    /// The whole device that offsets are on, a namespace unless something else was allowed.
    pub device: BlockDevice,
    /// Whether extents can move although nobody has the file open for writing: xfs lets the owner deduplicate a file that he
    /// has open for reading. Then [`Extents::is_current`] must be asked after each request too.
    pub can_be_remapped: bool,
    /// In the order of the file, none overlapping, adjacent ones joined. What lies between reads as zeros.
    pub list: Vec<Extent>,
}

/// Bytes of a file that lie in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where they begin in the file.
    pub file_offset: u64,
    /// Where they begin on the whole device, in bytes.
    pub device_offset: u64,
    /// How many they are.
    pub len: u64,
}

/// What is at some offset of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Located {
    /// So many bytes, from there on the device.
    At {
        /// In bytes, on the whole device.
        device_offset: u64,
        /// Up to the extent's or the file's end.
        len: u64,
    },
    /// So many zeros, which are nowhere.
    Hole {
        /// Up to the next extent or the file's end.
        len: u64,
    },
    /// Nothing: the file ends before.
    End,
}

/// What a map may be of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentsOptions {
    /// A file in more pieces is refused.
    pub extents_max: usize,
    /// Which devices file systems may be on.
    pub devices: AllowedDevices,
}

impl Default for ExtentsOptions {
    fn default() -> Self {
        Self { extents_max: EXTENTS_MAX_DEFAULT, devices: AllowedDevices::Namespaces }
    }
}

/// Why a file must be read by its file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsuitable {
    /// FIEMAP_EXTENT_UNKNOWN.
    #[error("the file system does not say where its data is")]
    Unknown,
    /// FIEMAP_EXTENT_DELALLOC, after a sync: somebody writes.
    #[error("data is still without a place: somebody writes to it")]
    DelayedAllocation,
    /// FIEMAP_EXTENT_ENCODED, or the attribute: compressed, most likely.
    #[error("its data is encoded")]
    Encoded,
    /// FIEMAP_EXTENT_DATA_ENCRYPTED, or the attribute.
    #[error("its data is encrypted by the file system")]
    Encrypted,
    /// FIEMAP_EXTENT_NOT_ALIGNED.
    #[error("its data does not begin with a block")]
    NotAligned,
    /// FIEMAP_EXTENT_DATA_INLINE: it lies among metadata, which goes through the journal.
    #[error("its data lies among the file system's metadata")]
    Inline,
    /// FIEMAP_EXTENT_DATA_TAIL.
    #[error("its last block is shared with other files' ends")]
    Tail,
    /// FIEMAP_EXTENT_UNWRITTEN before the file's end: it reads as zeros, and the device has something else there.
    #[error("it has space that was reserved and never written")]
    Unwritten,
    /// Data goes through ext4's journal, by mount or by file: what was synced may be in the journal alone.
    #[error("its data goes through the journal (data=journal, or chattr +j)")]
    Journaled,
    /// It is on the realtime device of an xfs, which is another one; on a zoned one data also moves by itself.
    #[error("it is on the realtime device of its file system")]
    Realtime,
    /// Stores reach the medium without the block layer. (No NVMe/TCP namespace can do that: this is for devices of tests.)
    #[error("it is mapped directly (DAX)")]
    Dax,
    /// The kernel checks what it reads of such a file, and nobody would.
    #[error("the kernel verifies its data (fs-verity)")]
    Verity,
    /// Its length changed while it was looked at.
    #[error("it is being changed")]
    Changing,
}

impl Unsuitable {
    /// Whether it is so because somebody writes the file now.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::DelayedAllocation | Self::Changing)
    }
}

/// Why there is no map.
#[derive(Debug, thiserror::Error)]
pub enum ExtentsError {
    /// A file to be read in the ordinary way.
    #[error("the file cannot be read past its file system: {0}")]
    Unsuitable(#[from] Unsuitable),
    /// A directory, a socket, a device.
    #[error("this is no regular file")]
    NotAFile,
    /// A file system that is not supported.
    #[error("files on {name} cannot be read past it: {hint}")]
    FileSystem {
        /// As the kernel calls it.
        name: String,
        /// What to do.
        hint: &'static str,
    },
    /// The device below the file system is none that can be addressed.
    #[error("the file system is on {name}, {kind}: {hint}")]
    Device {
        /// As in `/sys/block`.
        name: String,
        /// What it is.
        kind: &'static str,
        /// What to do.
        hint: &'static str,
    },
    /// The file is in too many pieces.
    #[error("the file is in more than {max} pieces: copy it, and it will be in fewer")]
    TooMany {
        /// As many as there may be.
        max: usize,
    },
    /// The file system says something that cannot be.
    #[error("the file system's map makes no sense: {0}")]
    Impossible(&'static str),
    /// The file is on no mount that this process sees.
    #[error("the file's mount is not among this process' own (mountinfo)")]
    NotMounted,
    /// What the kernel shows of itself could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A call failed.
    #[error("{call} failed: {errno}")]
    Os {
        /// Which.
        call: &'static str,
        /// How.
        errno: Errno,
    },
}

impl ExtentsError {
    fn os(call: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::Os { call, errno }
    }
}

impl Extents {
    /// Writes back what is dirty, and looks up where the file's bytes are.
    pub fn of(file: BorrowedFd<'_>, system: &System, options: &ExtentsOptions) -> Result<Self, ExtentsError> {
        let before = stat(file)?;
        if FileType::from_raw_mode(u32::from(before.stx_mode)) != FileType::RegularFile {
            return Err(ExtentsError::NotAFile);
        }
        let mount = mounts::Mount::of(system, &before)?;
        let file_system = mount.file_system()?;
        let device = BlockDevice::find(system, before.stx_dev_major, before.stx_dev_minor, options.devices)?;
        check_attributes(file, &before)?;
        match file_system {
            mounts::FileSystem::Ext4 if mount.journals_data(system, &device) => {
                return Err(Unsuitable::Journaled.into());
            }
            mounts::FileSystem::Ext4
                if fiemap::flags(file).is_some_and(|flags| flags & fiemap::JOURNAL_DATA != 0) =>
            {
                return Err(Unsuitable::Journaled.into());
            }
            mounts::FileSystem::Xfs
                if fiemap::is_realtime(file).map_err(ExtentsError::os("FS_IOC_FSGETXATTR"))? =>
            {
                return Err(Unsuitable::Realtime.into());
            }
            mounts::FileSystem::Ext4 | mounts::FileSystem::Xfs => {}
        }
        let synced = !is_planted(Bug::NotSynced);
        if synced {
            rustix::fs::fsync(file).map_err(ExtentsError::os("fsync"))?;
        }
        let after = stat(file)?;
        let blocks = rustix::fs::fstatfs(file).map_err(ExtentsError::os("fstatfs"))?;
        let mut extents = Self {
            inode_id: after.stx_ino,
            generation: fiemap::generation(file),
            len: after.stx_size,
            block_len: u64::try_from(blocks.f_bsize).unwrap_or(0).max(SECTOR_LEN),
            device,
            can_be_remapped: file_system == mounts::FileSystem::Xfs,
            list: Vec::new(),
        };
        extents.list = extents.look_up(file, synced, options.extents_max)?;
        if stat(file)?.stx_size != extents.len {
            return Err(Unsuitable::Changing.into());
        }
        Ok(extents)
    }

    /// Whether the file still has this length and lies where the map says. For after a request, on a file under a lease: nothing is
    /// written back.
    pub fn is_current(&self, file: BorrowedFd<'_>) -> Result<bool, ExtentsError> {
        let stat = stat(file)?;
        if (stat.stx_ino, stat.stx_size) != (self.inode_id, self.len) {
            return Ok(false);
        }
        match self.look_up(file, false, self.list.len()) {
            Ok(list) => Ok(list == self.list),
            Err(ExtentsError::TooMany { .. } | ExtentsError::Unsuitable(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// What is at an offset of the file.
    #[must_use]
    pub fn locate(&self, offset: u64) -> Located {
        if offset >= self.len {
            return Located::End;
        }
        let left = self.len - offset;
        let behind = self.list.partition_point(|extent| extent.file_offset <= offset);
        let within = behind.checked_sub(1).map(|index| self.list[index]);
        // Ends do not wrap: `join` has checked them.
        match within.filter(|extent| offset < extent.file_offset + extent.len) {
            Some(extent) => {
                let skip = offset - extent.file_offset;
                Located::At { device_offset: extent.device_offset + skip, len: left.min(extent.len - skip) }
            }
            None => {
                let next = self.list.get(behind).map_or(left, |next| next.file_offset - offset);
                Located::Hole { len: left.min(next) }
            }
        }
    }

    fn look_up(
        &self,
        file: BorrowedFd<'_>,
        sync: bool,
        extents_max: usize,
    ) -> Result<Vec<Extent>, ExtentsError> {
        let mut batch = fiemap::Batch::new();
        let mut joined = Joined::new(&self.device, (self.len, self.block_len), extents_max);
        let mut start = 0;
        while start < self.len {
            let found = batch.read(file, start, self.len - start, sync).map_err(|errno| match errno {
                // What FIEMAP with a sync says where there is none.
                Errno::BADR | Errno::OPNOTSUPP => {
                    ExtentsError::Os { call: "FIEMAP", errno: Errno::OPNOTSUPP }
                }
                errno => ExtentsError::Os { call: "FIEMAP", errno },
            })?;
            let Some(last) = found.last() else { break };
            for extent in found {
                joined.push(extent)?;
            }
            // `push` has checked that it is past `start`.
            start = joined.end;
            if last.flags & fiemap::LAST != 0 {
                break;
            }
        }
        Ok(joined.list)
    }
}

fn stat(file: BorrowedFd<'_>) -> Result<Statx, ExtentsError> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
    rustix::fs::statx(file.as_fd(), "", AtFlags::EMPTY_PATH, wanted).map_err(ExtentsError::os("statx"))
}

fn check_attributes(file: BorrowedFd<'_>, stat: &Statx) -> Result<(), ExtentsError> {
    let reasons = [
        (StatxAttributes::ENCRYPTED, Unsuitable::Encrypted),
        (StatxAttributes::COMPRESSED, Unsuitable::Encoded),
        (StatxAttributes::VERITY, Unsuitable::Verity),
        (StatxAttributes::DAX, Unsuitable::Dax),
    ];
    let found = reasons.iter().find(|(attribute, _)| stat.stx_attributes.contains(*attribute));
    if let Some((_, reason)) = found {
        return Err((*reason).into());
    }
    if fiemap::flags(file).is_some_and(|flags| flags & fiemap::INLINE_DATA != 0) {
        return Err(Unsuitable::Inline.into());
    }
    Ok(())
}

/// Extents as FIEMAP tells them, checked, moved by the partition's start and joined.
struct Joined<'map> {
    list: Vec<Extent>,
    device: &'map BlockDevice,
    file_len: u64,
    /// Where the file's last block ends. What is reserved behind it comes and goes without anybody writing.
    limit: u64,
    extents_max: usize,
    /// Where the last one ends in the file.
    end: u64,
}

impl<'map> Joined<'map> {
    fn new(device: &'map BlockDevice, (file_len, block_len): (u64, u64), extents_max: usize) -> Self {
        let limit = file_len.checked_next_multiple_of(block_len).unwrap_or(u64::MAX);
        Self { list: Vec::new(), device, file_len, limit, extents_max, end: 0 }
    }

    fn push(&mut self, found: &fiemap::FiemapExtent) -> Result<(), ExtentsError> {
        let file_end = found
            .logical
            .checked_add(found.len)
            .ok_or(ExtentsError::Impossible("an extent wraps in the file"))?;
        if found.len == 0 || found.logical < self.end {
            return Err(ExtentsError::Impossible("extents are empty, overlap or are out of order"));
        }
        self.end = file_end;
        // Space that was reserved beyond the end: nothing can be read of it.
        if found.logical >= self.file_len {
            return Ok(());
        }
        if let Some(reason) = fiemap::reason(found.flags) {
            let taken = reason == Unsuitable::Unwritten && is_planted(Bug::UnwrittenTaken);
            if !taken {
                return Err(reason.into());
            }
        }
        let len = found.len.min(self.limit - found.logical);
        let moved = if is_planted(Bug::PartitionForgotten) { 0 } else { self.device.partition_start };
        let device_offset = found.physical.checked_add(moved);
        let device_end = device_offset.and_then(|offset| offset.checked_add(len));
        let (Some(device_offset), Some(device_end)) = (device_offset, device_end) else {
            return Err(ExtentsError::Impossible("an extent wraps on the device"));
        };
        if device_end > self.device.len {
            return Err(ExtentsError::Impossible("an extent is past the device's end"));
        }
        if [device_offset, found.logical, len].iter().any(|number| !number.is_multiple_of(SECTOR_LEN)) {
            return Err(Unsuitable::NotAligned.into());
        }
        let extent = Extent { file_offset: found.logical, device_offset, len };
        if let Some(last) = self.list.last_mut()
            && is_continued_by(last, &extent)
        {
            last.len += extent.len;
        } else if self.list.len() < self.extents_max {
            self.list.push(extent);
        } else {
            return Err(ExtentsError::TooMany { max: self.extents_max });
        }
        Ok(())
    }
}

fn is_continued_by(extent: &Extent, next: &Extent) -> bool {
    let on_device = extent.device_offset + extent.len == next.device_offset || is_planted(Bug::JoinedApart);
    extent.file_offset + extent.len == next.file_offset && on_device
}

/// What sysfs counts in, whatever a device's own blocks are.
const SECTOR_LEN: u64 = 512;

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
