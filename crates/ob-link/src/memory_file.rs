//! Regions as files in memory, made by the card and handed to a host on the same machine.

use std::ffi::c_void;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use ob_memory::{PAGE, Region};
use ob_wire_link::ring::DATA_START;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// A mapping of a memory file; unmapped when the last region on it is gone.
struct Mapping {
    base: NonNull<c_void>,
    len: usize,
}

// SAFETY: the mapping belongs to no thread; it is only reached through `Region`'s atomics and copies.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length, and no `Region` on it is left. A failure leaves it mapped,
        // which harms nobody.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr(), self.len) };
    }
}

/// Makes a region that can neither shrink nor grow, and the descriptor to hand over.
///
/// Its memory is allocated here and now: a host that can make the card touch memory which is not there could
/// otherwise kill it.
pub fn create(len: u64) -> Result<(OwnedFd, Region), Errno> {
    let len = usize::try_from(len).map_err(|_| Errno::NOMEM)?.next_multiple_of(PAGE);
    let file = rustix::fs::memfd_create("outboard-region", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, len as u64)?;
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len as u64)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    let region = map(&file, len)?;
    Ok((file, region))
}

/// Gives a region's memory back, even if the other half keeps it mapped: what it reads there from now on are zeros, and
/// what it writes is on its own account. The rings' pointers go first: who finds them behind a copy of something else has copied
/// what was there.
pub(crate) fn release(file: &OwnedFd) {
    let len = rustix::fs::fstat(file).map_or(0, |stat| stat.st_size.unsigned_abs());
    // Where that fails the memory is free when the last mapping is gone.
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let _ = rustix::fs::fallocate(file, punch, 0, DATA_START as u64);
    let _ = rustix::fs::fallocate(file, punch, 0, len);
}

/// Maps a region that the card handed over, after checking that it can be relied on.
pub fn open(file: &OwnedFd) -> Result<Region, Errno> {
    let size = rustix::fs::fstat(file)?.st_size;
    if !rustix::fs::fcntl_get_seals(file)?.contains(SealFlags::SHRINK) {
        return Err(Errno::PERM);
    }
    let len = usize::try_from(size).map_err(|_| Errno::NOMEM)?;
    let region = map(file, len)?;
    Ok(region)
}

fn map(file: impl AsFd, len: usize) -> Result<Region, Errno> {
    if len == 0 {
        return Err(Errno::INVAL);
    }
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing that exists.
    let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, file, 0) }?;
    // A child that a host forks has no business in the rings.
    // SAFETY: the range is the mapping just made; the advice does not touch its contents.
    let _ = unsafe { rustix::mm::madvise(base, len, Advice::LinuxDontFork) };
    let base = NonNull::new(base).ok_or(Errno::NOMEM)?;
    let mapping = Arc::new(Mapping { base, len });
    // SAFETY: the mapping is readable, writable and page-aligned for `len` bytes, cannot shrink (sealed), lives as
    // long as its owner, and no reference into it is ever made.
    Ok(unsafe { Region::from_raw(base.cast(), len, mapping) })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn both_mappings_are_one_memory() {
        let (file, ours) = create(10_000).unwrap();
        let theirs = open(&file).unwrap();
        assert_eq!(theirs.len(), 12_288);
        theirs.store(8192, 7, Ordering::Release);
        assert_eq!(ours.load(8192, Ordering::Acquire), 7);
    }

    #[test]
    fn nobody_can_shrink_grow_or_unseal_it() {
        let (file, _region) = create(8192).unwrap();
        assert_eq!(rustix::fs::ftruncate(&file, 4096), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(&file, 1 << 20), Err(Errno::PERM));
        assert_eq!(rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE), Err(Errno::PERM));
    }

    #[test]
    fn released_memory_is_free_though_still_mapped() {
        let (file, _ours) = create(1 << 20).unwrap();
        let theirs = open(&file).unwrap();
        theirs.store(8192, 7, Ordering::Release);
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_blocks, 2048);
        release(&file);
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_blocks, 0);
        assert_eq!(theirs.load(8192, Ordering::Acquire), 0);
    }

    #[test]
    fn whoever_finds_the_pointers_has_read_what_was_there() {
        const DATA: usize = DATA_START + (1 << 20);
        for _ in 0..300 {
            let (file, ours) = create(2 << 20).unwrap();
            for offset in [64, DATA] {
                ours.store(offset, 1, Ordering::Release);
            }
            let theirs = open(&file).unwrap();
            let (looked, has_looked) = std::sync::mpsc::channel();
            let reader = std::thread::spawn(move || {
                loop {
                    let data = theirs.load(DATA, Ordering::Acquire);
                    let pointer = theirs.load(64, Ordering::Acquire);
                    match (data, pointer) {
                        (1, 1) => drop(looked.send(())),
                        (_, 0) => break true,
                        _ => break false,
                    }
                }
            });
            has_looked.recv().unwrap();
            release(&file);
            assert!(reader.join().unwrap(), "the data is gone, and the pointers are there");
        }
    }

    #[test]
    fn a_file_that_can_shrink_is_not_trusted() {
        let file = rustix::fs::memfd_create("x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        assert!(matches!(open(&file), Err(Errno::PERM)));
    }
}
