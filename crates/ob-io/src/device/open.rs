//! Opening what backs a device: locked, direct, and with the geometry that `O_DIRECT` demands.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use ob_core::DeviceInfo;
use rustix::fs::{
    Advice, AtFlags, FallocateFlags, FileType, FlockOperation, Mode, OFlags, StatxFlags, fadvise, fallocate,
    fdatasync, flock, fstat, fstatvfs, fsync, ftruncate, ioctl_blksszget, major, minor, open, statx,
};
use rustix::io::Errno;
use rustix::ioctl;

/// The block of a device that does not say: what every disk and file system of today can do.
const BLOCK_DEFAULT: u32 = 4096;

/// Why a device cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process (or another part of this one) has it open.
    #[error("{} is in use by another process; stop it, or give this one a device of its own", .0.display())]
    InUse(PathBuf),
    /// There is nothing there.
    #[error("{} does not exist; create it, or correct the path", .0.display())]
    Missing(PathBuf),
    /// There is something there already.
    #[error("{} exists already; open it, or remove it if what it holds is not needed", .0.display())]
    Exists(PathBuf),
    /// Neither a file nor a block device.
    #[error("{} is neither a file nor a block device", .0.display())]
    WrongKind(PathBuf),
    /// Not even one block.
    #[error("{} has {len} bytes, and a device needs at least one block of {block_len}", .path.display())]
    TooSmall {
        /// What was to be opened.
        path: PathBuf,
        /// Its length in bytes.
        len: u64,
        /// The block it would have.
        block_len: u32,
    },
    /// The file system has no room for it.
    #[error("the file system of {} has no room for {len} bytes", .path.display())]
    NoSpace {
        /// What was to be created.
        path: PathBuf,
        /// How large.
        len: u64,
    },
    /// The reactor takes no more devices, or has shut down.
    #[error("{}: {reason}", .path.display())]
    Reactor {
        /// What was to be opened.
        path: PathBuf,
        /// What the reactor said.
        reason: crate::ReactorError,
    },
    /// The system refused.
    #[error("cannot {what} {}: {errno}", .path.display())]
    System {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        errno: Errno,
    },
}

/// How a new file gets its space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// As it is written; the file system may run out of it later.
    Sparse,
    /// All at once.
    Preallocated,
}

/// What may be done with a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Everything; nobody else may have it open.
    ReadWrite,
    /// Only reads; others may read too, and nobody may write.
    ReadOnly,
}

impl Access {
    fn flags(self) -> OFlags {
        match self {
            Self::ReadWrite => OFlags::RDWR,
            Self::ReadOnly => OFlags::RDONLY,
        }
    }

    fn lock(self) -> FlockOperation {
        match self {
            Self::ReadWrite => FlockOperation::NonBlockingLockExclusive,
            Self::ReadOnly => FlockOperation::NonBlockingLockShared,
        }
    }
}

/// An open device, before a reactor has it.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) file: OwnedFd,
    pub(super) info: DeviceInfo,
    pub(super) memory_align: usize,
    pub(super) direct: bool,
    pub(super) access: Access,
}

/// Opens an existing file or block device.
pub(super) fn open_existing(path: &Path, access: Access) -> Result<Opened, OpenError> {
    let kind = rustix::fs::stat(path).map_err(|errno| explain(path, "look at", errno))?.st_mode;
    let exclusive = match FileType::from_raw_mode(kind) {
        FileType::RegularFile => OFlags::empty(),
        // O_EXCL keeps others, mounts included, away for as long as it is open: readers too, who keep nobody away.
        FileType::BlockDevice if access == Access::ReadWrite => OFlags::EXCL,
        FileType::BlockDevice => OFlags::empty(),
        _ => return Err(OpenError::WrongKind(path.into())),
    };
    let (file, direct) = open_direct(path, access.flags() | exclusive)?;
    take_over(path, file, direct, access)
}

/// Makes a file ours, with nothing in the kernel's memory that the disk may not have.
fn take_over(path: &Path, file: OwnedFd, direct: bool, access: Access) -> Result<Opened, OpenError> {
    lock(path, &file, access)?;
    let opened = measure(path, file, direct, access)?;
    if !opened.direct {
        forget_cached(path, &opened.file, access)?;
    }
    Ok(opened)
}

/// Has the next reads ask the disk. When a flush has failed, the kernel takes what it could not write for written, and shows it to
/// whoever reads: an earlier life's bytes that no later flush would make durable.
fn forget_cached(path: &Path, file: &OwnedFd, access: Access) -> Result<(), OpenError> {
    let synced = match fdatasync(file) {
        // Of a file system that nobody can write, such as an image of a medium.
        Err(Errno::INVAL | Errno::ROFS) if access == Access::ReadOnly => Ok(()),
        other => other,
    };
    let forgotten = synced.and_then(|()| fadvise(file, 0, None, Advice::DontNeed));
    forgotten.map_err(|errno| explain(path, "sync", errno))
}

/// Creates a file of `len` bytes and opens it. Durable, name and all, when this returns.
pub(super) fn create_new(path: &Path, len: u64, space: Space) -> Result<Opened, OpenError> {
    let access = Access::ReadWrite;
    // A name and a sync may need space too, and a file system can run out of places for files.
    let no_space = |error: OpenError| match error {
        OpenError::System { errno: Errno::NOSPC | Errno::DQUOT, .. } => {
            OpenError::NoSpace { path: path.into(), len }
        }
        other => other,
    };
    let (file, direct) =
        open_direct(path, access.flags() | OFlags::CREATE | OFlags::EXCL).map_err(no_space)?;
    let finish = || -> Result<(), OpenError> {
        lock(path, &file, access)?;
        let sized = match space {
            Space::Sparse => ftruncate(&file, len),
            Space::Preallocated => fallocate(&file, FallocateFlags::empty(), 0, len),
        };
        sized.map_err(|errno| match errno {
            Errno::FBIG => OpenError::NoSpace { path: path.into(), len },
            _ => explain(path, "set the size of", errno),
        })?;
        fsync(&file).map_err(|errno| explain(path, "sync", errno))?;
        sync_directory_of(path)
    };
    let opened = finish().and_then(|()| measure(path, file, direct, access));
    if opened.is_err() {
        // It did not exist before, so nothing is lost; half a device would only be in the way.
        let _ = rustix::fs::unlink(path);
    }
    opened.map_err(no_space)
}

fn sync_directory_of(path: &Path) -> Result<(), OpenError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or_else(|| Path::new("."));
    let directory = open(parent, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    directory.and_then(fsync).map_err(|errno| explain(parent, "sync the directory", errno))
}

/// Opens with `O_DIRECT`, or without where the file system refuses it.
fn open_direct(path: &Path, how: OFlags) -> Result<(OwnedFd, bool), OpenError> {
    let flags = how | OFlags::CLOEXEC | OFlags::NOCTTY;
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP;
    match open(path, flags | OFlags::DIRECT, mode) {
        Ok(file) => Ok((file, true)),
        // Some file systems refuse only after they have created the file: it is ours, so not exclusive again.
        Err(Errno::INVAL) => open(path, flags, mode)
            .or_else(|errno| match errno {
                Errno::EXIST => open(path, flags.difference(OFlags::EXCL | OFlags::CREATE), mode),
                _ => Err(errno),
            })
            .map(|file| (file, false))
            .map_err(|errno| explain(path, "open", errno)),
        Err(errno) => Err(explain(path, "open", errno)),
    }
}

/// Keeps every other process that opens devices away, or those that would write.
fn lock(path: &Path, file: &OwnedFd, access: Access) -> Result<(), OpenError> {
    flock(file, access.lock()).map_err(|errno| match errno {
        Errno::WOULDBLOCK => OpenError::InUse(path.into()),
        _ => explain(path, "lock", errno),
    })
}

/// Finds out size, block and alignment.
fn measure(path: &Path, file: OwnedFd, opened_direct: bool, access: Access) -> Result<Opened, OpenError> {
    let stat = fstat(&file).map_err(|errno| explain(path, "look at", errno))?;
    let is_disk = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => false,
        FileType::BlockDevice => true,
        _ => return Err(OpenError::WrongKind(path.into())),
    };
    let len = if is_disk {
        disk_len(&file).map_err(|errno| explain(path, "read the size of", errno))?
    } else {
        u64::try_from(stat.st_size).unwrap_or(0)
    };
    let (block_len, memory_align, direct) = geometry(&file, is_disk, opened_direct);
    if !direct {
        tracing::warn!(
            path = %path.display(),
            "this file system has no direct I/O: the kernel copies every byte through its page cache"
        );
    }
    let capacity = len - len % u64::from(block_len);
    if capacity == 0 {
        return Err(OpenError::TooSmall { path: path.into(), len, block_len });
    }
    let unit = if is_disk { disk_discard_unit(stat.st_rdev) } else { file_discard_unit(&file) };
    // One that is no multiple of the block, or none, says nothing that could be kept to.
    let discard_unit = unit.filter(|unit| unit.is_multiple_of(block_len)).unwrap_or(block_len).max(block_len);
    let info = DeviceInfo { capacity, block_len, volatile_cache: true, discard_unit };
    Ok(Opened { file, info, memory_align: memory_align as usize, direct, access })
}

/// By what a file system gives space back: it keeps account of space in units of this length.
fn file_discard_unit(file: &OwnedFd) -> Option<u32> {
    fstatvfs(file).ok().and_then(|found| u32::try_from(found.f_frsize).ok())
}

/// By what a disk gives space back, as its driver says. A partition's entry lies in that of its disk, which has the answer.
fn disk_discard_unit(number: u64) -> Option<u32> {
    let entry = format!("/sys/dev/block/{}:{}", major(number), minor(number));
    let of_disk = || std::fs::read_to_string(format!("{entry}/../queue/discard_granularity"));
    let said = std::fs::read_to_string(format!("{entry}/queue/discard_granularity")).or_else(|_| of_disk());
    said.ok()?.trim().parse().ok()
}

/// Block length, alignment of buffers, and whether I/O really is direct.
fn geometry(file: &OwnedFd, is_disk: bool, opened_direct: bool) -> (u32, u32, bool) {
    // Where the file cannot tell (kernels before 6.1): a disk knows its own block; a file is on an unknown one.
    let fallback = match ioctl_blksszget(file) {
        Ok(block) if is_disk && is_block(block) => block,
        _ => BLOCK_DEFAULT,
    };
    if !opened_direct {
        return (fallback, fallback, false);
    }
    match statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) {
        Ok(found) if found.stx_mask & StatxFlags::DIOALIGN.bits() != 0 => {
            let (block, memory) = (found.stx_dio_offset_align, found.stx_dio_mem_align);
            // Zeros say that this very file cannot do direct I/O (it is encrypted, say), open flag or not.
            if is_block(block) && memory.is_power_of_two() {
                (block.max(512), memory, true)
            } else {
                (fallback, fallback, false)
            }
        }
        _ => (fallback, fallback, true),
    }
}

fn is_block(len: u32) -> bool {
    len.is_power_of_two() && len <= 1 << 16
}

/// `BLKGETSIZE64`.
fn disk_len(file: &OwnedFd) -> rustix::io::Result<u64> {
    const BLKGETSIZE64: ioctl::Opcode = ioctl::opcode::read::<usize>(0x12, 114);
    // SAFETY: BLKGETSIZE64 stores one u64 at the address it is given (`size_t` in its number is history), and the
    // getter provides exactly that. On a descriptor of another kind the call fails.
    unsafe { ioctl::ioctl(file.as_fd(), ioctl::Getter::<BLKGETSIZE64, u64>::new()) }
}

fn explain(path: &Path, what: &'static str, errno: Errno) -> OpenError {
    match errno {
        Errno::NOENT => OpenError::Missing(path.into()),
        Errno::EXIST => OpenError::Exists(path.into()),
        Errno::BUSY => OpenError::InUse(path.into()),
        _ => OpenError::System { what, path: path.into(), errno },
    }
}

#[cfg(test)]
mod tests {
    use std::io::{IoSliceMut, Write};

    use rustix::io::{ReadWriteFlags, preadv2};

    use super::*;

    const TMPFS_MAGIC: i64 = 0x0102_1994;

    #[test]
    fn what_the_kernel_has_cached_is_not_believed() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[7; 1 << 20]).unwrap();
        let opened: OwnedFd = file.reopen().unwrap().into();
        let is_cached = || {
            let mut block = [0; 4096];
            preadv2(&opened, &mut [IoSliceMut::new(&mut block)], 1 << 19, ReadWriteFlags::NOWAIT)
        };
        let is_in_memory = rustix::fs::fstatfs(&opened).unwrap().f_type == TMPFS_MAGIC;
        if is_in_memory || is_cached() != Ok(4096) {
            ob_plant::not_tested("files here have no disk, or do not tell what is cached of it");
            return;
        }
        let again: OwnedFd = file.reopen().unwrap().into();
        take_over(file.path(), again, false, Access::ReadOnly).unwrap();
        assert_eq!(is_cached(), Err(Errno::AGAIN));
    }
}
