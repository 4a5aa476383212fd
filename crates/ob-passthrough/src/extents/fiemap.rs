//! The calls that tell of a file's extents and flags, and what their bits mean.

use std::ffi::c_void;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};

use super::Unsuitable;

/// FIEMAP_EXTENT_LAST.
pub(super) const LAST: u32 = 0x0001;
const UNKNOWN: u32 = 0x0002;
const DELAYED: u32 = 0x0004;
const ENCODED: u32 = 0x0008;
const ENCRYPTED: u32 = 0x0080;
const NOT_ALIGNED: u32 = 0x0100;
const INLINE: u32 = 0x0200;
const TAIL: u32 = 0x0400;
const UNWRITTEN: u32 = 0x0800;
/// The blocks are where it says; only the extent's bounds are not the file system's own.
const MERGED: u32 = 0x1000;
/// Other files have the same blocks. Whoever writes gets others, so these stay as they are.
const SHARED: u32 = 0x2000;

/// FIEMAP_FLAG_SYNC.
const SYNC: u32 = 1;

/// FS_JOURNAL_DATA_FL.
pub(super) const JOURNAL_DATA: u32 = 0x4000;
/// FS_INLINE_DATA_FL.
pub(super) const INLINE_DATA: u32 = 0x1000_0000;
/// FS_XFLAG_REALTIME.
const XFLAG_REALTIME: u32 = 1;

/// Why an extent with these flags cannot be read from the device. The most telling first: the kernel sets several together.
pub(super) fn reason(flags: u32) -> Option<Unsuitable> {
    let reasons = [
        (ENCRYPTED, Unsuitable::Encrypted),
        (ENCODED, Unsuitable::Encoded),
        (INLINE, Unsuitable::Inline),
        (TAIL, Unsuitable::Tail),
        (DELAYED, Unsuitable::DelayedAllocation),
        (NOT_ALIGNED, Unsuitable::NotAligned),
        (UNWRITTEN, Unsuitable::Unwritten),
        (UNKNOWN, Unsuitable::Unknown),
        // A bit that nobody has told us of may mean anything.
        (!(LAST | MERGED | SHARED), Unsuitable::Unknown),
    ];
    reasons.iter().find(|(bits, _)| flags & bits != 0).map(|(_, reason)| *reason)
}

/// `struct fiemap_extent` of linux/fiemap.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FiemapExtent {
    pub(super) logical: u64,
    pub(super) physical: u64,
    pub(super) len: u64,
    pub(super) reserved1: [u64; 2],
    pub(super) flags: u32,
    pub(super) reserved2: [u32; 3],
}

/// `struct fiemap` without its array.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct FiemapHeader {
    start: u64,
    len: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
}

const BATCH: usize = 256;

#[repr(C)]
struct Fiemap {
    header: FiemapHeader,
    extents: [FiemapExtent; BATCH],
}

/// FS_IOC_FIEMAP.
const FIEMAP: Opcode = opcode::read_write::<FiemapHeader>(b'f', 11);
/// FS_IOC_GETFLAGS: the number was made with the size of a long, and the kernel writes an int.
const GET_FLAGS: Opcode = opcode::read::<usize>(b'f', 1);
/// FS_IOC_GETVERSION, likewise.
const GET_VERSION: Opcode = opcode::read::<usize>(b'v', 1);
/// FS_IOC_FSGETXATTR.
const GET_XATTR: Opcode = opcode::read::<FileXattr>(b'X', 31);

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<FiemapExtent>() == 56 && offset_of!(FiemapExtent, flags) == 40);
    assert!(size_of::<FiemapHeader>() == 32 && offset_of!(FiemapHeader, mapped) == 20);
    assert!(offset_of!(Fiemap, extents) == 32);
    assert!(FIEMAP == 0xC020_660B && GET_XATTR == 0x801C_581F);
};

/// Room for some extents at a time.
pub(super) struct Batch(Box<Fiemap>);

impl Batch {
    pub(super) fn new() -> Self {
        Self(Box::new(Fiemap { header: FiemapHeader::default(), extents: [FiemapExtent::default(); BATCH] }))
    }

    /// The next extents of a file that touch a range of it, in order; none: there are no more.
    pub(super) fn read(
        &mut self,
        file: BorrowedFd<'_>,
        start: u64,
        len: u64,
        sync: bool,
    ) -> Result<&[FiemapExtent], Errno> {
        let flags = if sync { SYNC } else { 0 };
        self.0.header = FiemapHeader { start, len, flags, mapped: 0, count: BATCH as u32, reserved: 0 };
        // SAFETY: the opcode takes a `struct fiemap` whose array has `count` places: `Fiemap`, whose layout is asserted.
        unsafe { rustix::ioctl::ioctl(file, ReadFiemap(&mut self.0)) }?;
        Ok(&self.0.extents[..(self.0.header.mapped as usize).min(BATCH)])
    }
}

struct ReadFiemap<'call>(&'call mut Fiemap);

// SAFETY: the opcode reads a header, and writes it and up to as many extents behind it as it says: the pointer's type has both.
unsafe impl Ioctl for ReadFiemap<'_> {
    type Output = ();
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        FIEMAP
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self.0).cast()
    }

    /// # Safety
    ///
    /// As the trait asks; nothing is read through the pointer.
    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> Result<(), Errno> {
        Ok(())
    }
}

/// The file's flags (`chattr`); none where the file system keeps none.
pub(super) fn flags(file: BorrowedFd<'_>) -> Option<u32> {
    read_word::<GET_FLAGS>(file)
}

/// The file's generation; none where the file system keeps none.
pub(super) fn generation(file: BorrowedFd<'_>) -> Option<u32> {
    read_word::<GET_VERSION>(file)
}

fn read_word<const OPCODE: Opcode>(file: BorrowedFd<'_>) -> Option<u32> {
    // SAFETY: both opcodes write an int; the room is as large as a long, which their numbers say.
    let words: [u32; 2] =
        unsafe { rustix::ioctl::ioctl(file, rustix::ioctl::Getter::<OPCODE, [u32; 2]>::new()) }.ok()?;
    Some(words[0])
}

/// `struct fsxattr` of linux/fs.h.
#[repr(C)]
struct FileXattr {
    flags: u32,
    others: [u32; 4],
    padding: [u8; 8],
}

/// Whether the file is on an xfs' realtime device.
pub(super) fn is_realtime(file: BorrowedFd<'_>) -> Result<bool, Errno> {
    // SAFETY: the opcode writes a `struct fsxattr`, whose size is part of its number, which is asserted.
    let attributes =
        unsafe { rustix::ioctl::ioctl(file, rustix::ioctl::Getter::<GET_XATTR, FileXattr>::new()) }?;
    Ok(attributes.flags & XFLAG_REALTIME != 0)
}
