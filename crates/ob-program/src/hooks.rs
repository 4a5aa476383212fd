//! The contexts of hooks. Made from the tables of `ob-ebpf`; `OB_BLESS=1 cargo test -p ob-program --test tables` makes it anew.

use core::marker::PhantomData;
use core::mem::offset_of;
use core::slice;

/// Bytes of the scratch of the hook `storage`.
pub const STORAGE_SCRATCH_LEN: usize = 4096;
/// Bytes of data in a call of the hook `storage`, at most.
pub const STORAGE_DATA_LEN_MAX: usize = 131072;

/// The context of the hook `storage`.
#[repr(C)]
pub struct StorageContext<'call> {
    data: *const u8,
    data_len: u64,
    scratch: *mut u8,
    #[allow(dead_code, reason = "the same in every call, and known from the scratch's type")]
    scratch_len: u64,
    file: u64,
    offset: u64,
    reads: u64,
    /// Not 0: the request is done, and the scratch is its answer.
    pub done: u64,
    /// Which of the request's files to read next.
    pub next_file: u64,
    /// Where in that file.
    pub next_offset: u64,
    /// How many bytes of it.
    pub next_len: u64,
    memory: PhantomData<&'call mut [u8]>,
}

const _: () = assert!(offset_of!(StorageContext<'_>, data) == 0);
const _: () = assert!(offset_of!(StorageContext<'_>, data_len) == 8);
const _: () = assert!(offset_of!(StorageContext<'_>, scratch) == 16);
const _: () = assert!(offset_of!(StorageContext<'_>, scratch_len) == 24);
const _: () = assert!(offset_of!(StorageContext<'_>, file) == 32);
const _: () = assert!(offset_of!(StorageContext<'_>, offset) == 40);
const _: () = assert!(offset_of!(StorageContext<'_>, reads) == 48);
const _: () = assert!(offset_of!(StorageContext<'_>, done) == 56);
const _: () = assert!(offset_of!(StorageContext<'_>, next_file) == 64);
const _: () = assert!(offset_of!(StorageContext<'_>, next_offset) == 72);
const _: () = assert!(offset_of!(StorageContext<'_>, next_len) == 80);

impl<'call> StorageContext<'call> {
    /// What was read.
    #[inline(always)]
    #[must_use]
    pub fn data(&self) -> &'call [u8] {
        // SAFETY: whoever made the context has borrowed so many bytes for as long as the call lasts, and nobody writes them.
        unsafe { slice::from_raw_parts(self.data, self.data_len as usize) }
    }

    /// The query, and the answer; what is written here stays until the request ends.
    #[inline(always)]
    #[must_use]
    pub fn scratch(&mut self) -> &mut [u8; STORAGE_SCRATCH_LEN] {
        // SAFETY: whoever made the context has borrowed so many bytes for as long as the call lasts, to nobody else; and the
        // context is borrowed for as long as they are.
        unsafe { &mut *self.scratch.cast() }
    }

    /// Which of the request's files was read, counted from 0.
    #[inline(always)]
    #[must_use]
    pub const fn file(&self) -> u64 {
        self.file
    }

    /// Where in the file the data begins.
    #[inline(always)]
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// How many reads the request has made, this one included.
    #[inline(always)]
    #[must_use]
    pub const fn reads(&self) -> u64 {
        self.reads
    }
}

/// For tests of programs; on the card it is the card that makes contexts.
#[cfg(not(target_arch = "bpf"))]
impl<'call> StorageContext<'call> {
    /// A context of zeroes, and this memory.
    #[must_use]
    pub fn new(data: &'call [u8], scratch: &'call mut [u8; STORAGE_SCRATCH_LEN]) -> Self {
        Self {
            data: data.as_ptr(),
            data_len: data.len() as u64,
            scratch: scratch.as_mut_ptr(),
            scratch_len: STORAGE_SCRATCH_LEN as u64,
            file: 0,
            offset: 0,
            reads: 0,
            done: 0,
            next_file: 0,
            next_offset: 0,
            next_len: 0,
            memory: PhantomData,
        }
    }

    /// Changes what the program sees as [`Self::file`].
    #[must_use]
    pub const fn with_file(mut self, file: u64) -> Self {
        self.file = file;
        self
    }

    /// Changes what the program sees as [`Self::offset`].
    #[must_use]
    pub const fn with_offset(mut self, offset: u64) -> Self {
        self.offset = offset;
        self
    }

    /// Changes what the program sees as [`Self::reads`].
    #[must_use]
    pub const fn with_reads(mut self, reads: u64) -> Self {
        self.reads = reads;
        self
    }
}
