//! The contexts of hooks. Made from the tables of `ob-ebpf`; `OB_BLESS=1 cargo test -p outboard-program --test tables` makes it anew.

use core::marker::PhantomData;
use core::mem::offset_of;
#[cfg(not(target_arch = "bpf"))]
use core::ptr;
use core::slice;

use crate::records::{CacheScratch, CheckScratch, FunctionScratch, InvalidateScratch, PredicateScratch};

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
        // SAFETY: whoever made the context has borrowed so many bytes for as long as the call lasts, to nobody else, and aligned;
        // they are numbers, of any value; and the context is borrowed for as long as they are.
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
            scratch: ptr::from_mut(scratch).cast(),
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

/// Bytes of the scratch of the hook `predicate`.
pub const PREDICATE_SCRATCH_LEN: usize = 4096;
/// Bytes of data in a call of the hook `predicate`, at most.
pub const PREDICATE_DATA_LEN_MAX: usize = 1048576;

/// The context of the hook `predicate`.
#[repr(C)]
pub struct PredicateContext<'call> {
    data: *const u8,
    data_len: u64,
    scratch: *mut u8,
    #[allow(dead_code, reason = "the same in every call, and known from the scratch's type")]
    scratch_len: u64,
    standing: u64,
    at: u64,
    /// 0: the card answers if the table has all keys; 1: the host.
    pub route: u64,
    /// What a request for the host may change: 0 nothing, 1 its keys, 2 anything.
    pub changes: u64,
    /// Not 0: the standing may be another one after a request for the host.
    pub changes_standing: u64,
    /// What the client knows the reply by, if replies have ids.
    pub id: u64,
    /// How many keys are in the scratch.
    pub keys: u64,
    /// Bytes of the request; 0: all that follow.
    pub len: u64,
    /// Not 0: another request of the message begins behind it.
    pub more: u64,
    memory: PhantomData<&'call mut [u8]>,
}

const _: () = assert!(offset_of!(PredicateContext<'_>, data) == 0);
const _: () = assert!(offset_of!(PredicateContext<'_>, data_len) == 8);
const _: () = assert!(offset_of!(PredicateContext<'_>, scratch) == 16);
const _: () = assert!(offset_of!(PredicateContext<'_>, scratch_len) == 24);
const _: () = assert!(offset_of!(PredicateContext<'_>, standing) == 32);
const _: () = assert!(offset_of!(PredicateContext<'_>, at) == 40);
const _: () = assert!(offset_of!(PredicateContext<'_>, route) == 48);
const _: () = assert!(offset_of!(PredicateContext<'_>, changes) == 56);
const _: () = assert!(offset_of!(PredicateContext<'_>, changes_standing) == 64);
const _: () = assert!(offset_of!(PredicateContext<'_>, id) == 72);
const _: () = assert!(offset_of!(PredicateContext<'_>, keys) == 80);
const _: () = assert!(offset_of!(PredicateContext<'_>, len) == 88);
const _: () = assert!(offset_of!(PredicateContext<'_>, more) == 96);

impl<'call> PredicateContext<'call> {
    /// A message of a client.
    #[inline(always)]
    #[must_use]
    pub fn data(&self) -> &'call [u8] {
        // SAFETY: whoever made the context has borrowed so many bytes for as long as the call lasts, and nobody writes them.
        unsafe { slice::from_raw_parts(self.data, self.data_len as usize) }
    }

    /// The scratch.
    #[inline(always)]
    #[must_use]
    pub fn scratch(&mut self) -> &mut PredicateScratch {
        // SAFETY: whoever made the context has borrowed so many bytes for as long as the call lasts, to nobody else, and aligned;
        // they are numbers, of any value; and the context is borrowed for as long as they are.
        unsafe { &mut *self.scratch.cast() }
    }

    /// What the host says of the connection; 0: the card may answer nothing on it.
    #[inline(always)]
    #[must_use]
    pub const fn standing(&self) -> u64 {
        self.standing
    }

    /// Where in the message the request begins; 0 at first.
    #[inline(always)]
    #[must_use]
    pub const fn at(&self) -> u64 {
        self.at
    }
}

/// For tests of programs; on the card it is the card that makes contexts.
#[cfg(not(target_arch = "bpf"))]
impl<'call> PredicateContext<'call> {
    /// A context of zeroes, and this memory.
    #[must_use]
    pub fn new(data: &'call [u8], scratch: &'call mut PredicateScratch) -> Self {
        Self {
            data: data.as_ptr(),
            data_len: data.len() as u64,
            scratch: ptr::from_mut(scratch).cast(),
            scratch_len: PREDICATE_SCRATCH_LEN as u64,
            standing: 0,
            at: 0,
            route: 0,
            changes: 0,
            changes_standing: 0,
            id: 0,
            keys: 0,
            len: 0,
            more: 0,
            memory: PhantomData,
        }
    }

    /// Changes what the program sees as [`Self::standing`].
    #[must_use]
    pub const fn with_standing(mut self, standing: u64) -> Self {
        self.standing = standing;
        self
    }

    /// Changes what the program sees as [`Self::at`].
    #[must_use]
    pub const fn with_at(mut self, at: u64) -> Self {
        self.at = at;
        self
    }
}

/// Bytes of the scratch of the hook `function`.
pub const FUNCTION_SCRATCH_LEN: usize = 7680;
/// Bytes of data in a call of the hook `function`, at most.
pub const FUNCTION_DATA_LEN_MAX: usize = 1048576;

/// The context of the hook `function`.
#[repr(C)]
pub struct FunctionContext<'call> {
    data: *const u8,
    data_len: u64,
    scratch: *mut u8,
    #[allow(dead_code, reason = "the same in every call, and known from the scratch's type")]
    scratch_len: u64,
    now: u64,
    hits: u64,
    /// How many reads are in the scratch; 0: the reply is there.
    pub reads: u64,
    /// Bytes of the reply.
    pub reply_len: u64,
    /// Not 0: the host is to answer.
    pub to_host: u64,
    memory: PhantomData<&'call mut [u8]>,
}

const _: () = assert!(offset_of!(FunctionContext<'_>, data) == 0);
const _: () = assert!(offset_of!(FunctionContext<'_>, data_len) == 8);
const _: () = assert!(offset_of!(FunctionContext<'_>, scratch) == 16);
const _: () = assert!(offset_of!(FunctionContext<'_>, scratch_len) == 24);
const _: () = assert!(offset_of!(FunctionContext<'_>, now) == 32);
const _: () = assert!(offset_of!(FunctionContext<'_>, hits) == 40);
const _: () = assert!(offset_of!(FunctionContext<'_>, reads) == 48);
const _: () = assert!(offset_of!(FunctionContext<'_>, reply_len) == 56);
const _: () = assert!(offset_of!(FunctionContext<'_>, to_host) == 64);

impl<'call> FunctionContext<'call> {
    /// The request.
    #[inline(always)]
    #[must_use]
    pub fn data(&self) -> &'call [u8] {
        // SAFETY: whoever made the context has borrowed so many bytes for as long as the call lasts, and nobody writes them.
        unsafe { slice::from_raw_parts(self.data, self.data_len as usize) }
    }

    /// The scratch.
    #[inline(always)]
    #[must_use]
    pub fn scratch(&mut self) -> &mut FunctionScratch {
        // SAFETY: whoever made the context has borrowed so many bytes for as long as the call lasts, to nobody else, and aligned;
        // they are numbers, of any value; and the context is borrowed for as long as they are.
        unsafe { &mut *self.scratch.cast() }
    }

    /// Milliseconds since 1970.
    #[inline(always)]
    #[must_use]
    pub const fn now(&self) -> u64 {
        self.now
    }

    /// How many keys the request has, and hits the scratch.
    #[inline(always)]
    #[must_use]
    pub const fn hits(&self) -> u64 {
        self.hits
    }
}

/// For tests of programs; on the card it is the card that makes contexts.
#[cfg(not(target_arch = "bpf"))]
impl<'call> FunctionContext<'call> {
    /// A context of zeroes, and this memory.
    #[must_use]
    pub fn new(data: &'call [u8], scratch: &'call mut FunctionScratch) -> Self {
        Self {
            data: data.as_ptr(),
            data_len: data.len() as u64,
            scratch: ptr::from_mut(scratch).cast(),
            scratch_len: FUNCTION_SCRATCH_LEN as u64,
            now: 0,
            hits: 0,
            reads: 0,
            reply_len: 0,
            to_host: 0,
            memory: PhantomData,
        }
    }

    /// Changes what the program sees as [`Self::now`].
    #[must_use]
    pub const fn with_now(mut self, now: u64) -> Self {
        self.now = now;
        self
    }

    /// Changes what the program sees as [`Self::hits`].
    #[must_use]
    pub const fn with_hits(mut self, hits: u64) -> Self {
        self.hits = hits;
        self
    }
}

/// Bytes of the scratch of the hook `check`.
pub const CHECK_SCRATCH_LEN: usize = 6208;
/// Bytes of data in a call of the hook `check`, at most.
pub const CHECK_DATA_LEN_MAX: usize = 1048576;

/// The context of the hook `check`.
#[repr(C)]
pub struct CheckContext<'call> {
    data: *const u8,
    data_len: u64,
    scratch: *mut u8,
    #[allow(dead_code, reason = "the same in every call, and known from the scratch's type")]
    scratch_len: u64,
    request_len: u64,
    index: u64,
    reads: u64,
    /// Bytes of the head that the client gets first.
    pub head_len: u64,
    /// Where in the data what it gets then begins.
    pub value_offset: u64,
    /// How many bytes of it.
    pub value_len: u64,
    /// Bytes of the tail that it gets last.
    pub tail_len: u64,
    memory: PhantomData<&'call mut [u8]>,
}

const _: () = assert!(offset_of!(CheckContext<'_>, data) == 0);
const _: () = assert!(offset_of!(CheckContext<'_>, data_len) == 8);
const _: () = assert!(offset_of!(CheckContext<'_>, scratch) == 16);
const _: () = assert!(offset_of!(CheckContext<'_>, scratch_len) == 24);
const _: () = assert!(offset_of!(CheckContext<'_>, request_len) == 32);
const _: () = assert!(offset_of!(CheckContext<'_>, index) == 40);
const _: () = assert!(offset_of!(CheckContext<'_>, reads) == 48);
const _: () = assert!(offset_of!(CheckContext<'_>, head_len) == 56);
const _: () = assert!(offset_of!(CheckContext<'_>, value_offset) == 64);
const _: () = assert!(offset_of!(CheckContext<'_>, value_len) == 72);
const _: () = assert!(offset_of!(CheckContext<'_>, tail_len) == 80);

impl<'call> CheckContext<'call> {
    /// What was read.
    #[inline(always)]
    #[must_use]
    pub fn data(&self) -> &'call [u8] {
        // SAFETY: whoever made the context has borrowed so many bytes for as long as the call lasts, and nobody writes them.
        unsafe { slice::from_raw_parts(self.data, self.data_len as usize) }
    }

    /// The scratch.
    #[inline(always)]
    #[must_use]
    pub fn scratch(&mut self) -> &mut CheckScratch {
        // SAFETY: whoever made the context has borrowed so many bytes for as long as the call lasts, to nobody else, and aligned;
        // they are numbers, of any value; and the context is borrowed for as long as they are.
        unsafe { &mut *self.scratch.cast() }
    }

    /// Bytes of the request.
    #[inline(always)]
    #[must_use]
    pub const fn request_len(&self) -> u64 {
        self.request_len
    }

    /// Which read it is, counted from 0.
    #[inline(always)]
    #[must_use]
    pub const fn index(&self) -> u64 {
        self.index
    }

    /// How many reads the request has.
    #[inline(always)]
    #[must_use]
    pub const fn reads(&self) -> u64 {
        self.reads
    }
}

/// For tests of programs; on the card it is the card that makes contexts.
#[cfg(not(target_arch = "bpf"))]
impl<'call> CheckContext<'call> {
    /// A context of zeroes, and this memory.
    #[must_use]
    pub fn new(data: &'call [u8], scratch: &'call mut CheckScratch) -> Self {
        Self {
            data: data.as_ptr(),
            data_len: data.len() as u64,
            scratch: ptr::from_mut(scratch).cast(),
            scratch_len: CHECK_SCRATCH_LEN as u64,
            request_len: 0,
            index: 0,
            reads: 0,
            head_len: 0,
            value_offset: 0,
            value_len: 0,
            tail_len: 0,
            memory: PhantomData,
        }
    }

    /// Changes what the program sees as [`Self::request_len`].
    #[must_use]
    pub const fn with_request_len(mut self, request_len: u64) -> Self {
        self.request_len = request_len;
        self
    }

    /// Changes what the program sees as [`Self::index`].
    #[must_use]
    pub const fn with_index(mut self, index: u64) -> Self {
        self.index = index;
        self
    }

    /// Changes what the program sees as [`Self::reads`].
    #[must_use]
    pub const fn with_reads(mut self, reads: u64) -> Self {
        self.reads = reads;
        self
    }
}

/// Bytes of the scratch of the hook `cache`.
pub const CACHE_SCRATCH_LEN: usize = 7200;
/// Bytes of data in a call of the hook `cache`, at most.
pub const CACHE_DATA_LEN_MAX: usize = 16777216;

/// The context of the hook `cache`.
#[repr(C)]
pub struct CacheContext<'call> {
    data: *const u8,
    data_len: u64,
    scratch: *mut u8,
    #[allow(dead_code, reason = "the same in every call, and known from the scratch's type")]
    scratch_len: u64,
    store_low: u64,
    store_high: u64,
    file: u64,
    offset: u64,
    at: u64,
    /// How many there are in the scratch.
    pub candidates: u64,
    /// They may be admitted when the log is settled up to here.
    pub settled_at: u64,
    /// Where in the data to go on, beyond `at`; 0: nothing more.
    pub next: u64,
    memory: PhantomData<&'call mut [u8]>,
}

const _: () = assert!(offset_of!(CacheContext<'_>, data) == 0);
const _: () = assert!(offset_of!(CacheContext<'_>, data_len) == 8);
const _: () = assert!(offset_of!(CacheContext<'_>, scratch) == 16);
const _: () = assert!(offset_of!(CacheContext<'_>, scratch_len) == 24);
const _: () = assert!(offset_of!(CacheContext<'_>, store_low) == 32);
const _: () = assert!(offset_of!(CacheContext<'_>, store_high) == 40);
const _: () = assert!(offset_of!(CacheContext<'_>, file) == 48);
const _: () = assert!(offset_of!(CacheContext<'_>, offset) == 56);
const _: () = assert!(offset_of!(CacheContext<'_>, at) == 64);
const _: () = assert!(offset_of!(CacheContext<'_>, candidates) == 72);
const _: () = assert!(offset_of!(CacheContext<'_>, settled_at) == 80);
const _: () = assert!(offset_of!(CacheContext<'_>, next) == 88);

impl<'call> CacheContext<'call> {
    /// What is written.
    #[inline(always)]
    #[must_use]
    pub fn data(&self) -> &'call [u8] {
        // SAFETY: whoever made the context has borrowed so many bytes for as long as the call lasts, and nobody writes them.
        unsafe { slice::from_raw_parts(self.data, self.data_len as usize) }
    }

    /// The scratch.
    #[inline(always)]
    #[must_use]
    pub fn scratch(&mut self) -> &mut CacheScratch {
        // SAFETY: whoever made the context has borrowed so many bytes for as long as the call lasts, to nobody else, and aligned;
        // they are numbers, of any value; and the context is borrowed for as long as they are.
        unsafe { &mut *self.scratch.cast() }
    }

    /// The first eight bytes of the store's id, which no client knows.
    #[inline(always)]
    #[must_use]
    pub const fn store_low(&self) -> u64 {
        self.store_low
    }

    /// The last eight.
    #[inline(always)]
    #[must_use]
    pub const fn store_high(&self) -> u64 {
        self.store_high
    }

    /// The name that the host has given the file.
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

    /// Where in the data to go on; 0 at first.
    #[inline(always)]
    #[must_use]
    pub const fn at(&self) -> u64 {
        self.at
    }
}

/// For tests of programs; on the card it is the card that makes contexts.
#[cfg(not(target_arch = "bpf"))]
impl<'call> CacheContext<'call> {
    /// A context of zeroes, and this memory.
    #[must_use]
    pub fn new(data: &'call [u8], scratch: &'call mut CacheScratch) -> Self {
        Self {
            data: data.as_ptr(),
            data_len: data.len() as u64,
            scratch: ptr::from_mut(scratch).cast(),
            scratch_len: CACHE_SCRATCH_LEN as u64,
            store_low: 0,
            store_high: 0,
            file: 0,
            offset: 0,
            at: 0,
            candidates: 0,
            settled_at: 0,
            next: 0,
            memory: PhantomData,
        }
    }

    /// Changes what the program sees as [`Self::store_low`].
    #[must_use]
    pub const fn with_store_low(mut self, store_low: u64) -> Self {
        self.store_low = store_low;
        self
    }

    /// Changes what the program sees as [`Self::store_high`].
    #[must_use]
    pub const fn with_store_high(mut self, store_high: u64) -> Self {
        self.store_high = store_high;
        self
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

    /// Changes what the program sees as [`Self::at`].
    #[must_use]
    pub const fn with_at(mut self, at: u64) -> Self {
        self.at = at;
        self
    }
}

/// Bytes of the scratch of the hook `invalidate`.
pub const INVALIDATE_SCRATCH_LEN: usize = 4000;

/// The context of the hook `invalidate`.
#[repr(C)]
pub struct InvalidateContext<'call> {
    scratch: *mut u8,
    #[allow(dead_code, reason = "the same in every call, and known from the scratch's type")]
    scratch_len: u64,
    file: u64,
    offset: u64,
    len: u64,
    at: u64,
    /// How many keys are in the scratch.
    pub keys: u64,
    /// More than `at`: there is more; 0: nothing more.
    pub next: u64,
    memory: PhantomData<&'call mut [u8]>,
}

const _: () = assert!(offset_of!(InvalidateContext<'_>, scratch) == 0);
const _: () = assert!(offset_of!(InvalidateContext<'_>, scratch_len) == 8);
const _: () = assert!(offset_of!(InvalidateContext<'_>, file) == 16);
const _: () = assert!(offset_of!(InvalidateContext<'_>, offset) == 24);
const _: () = assert!(offset_of!(InvalidateContext<'_>, len) == 32);
const _: () = assert!(offset_of!(InvalidateContext<'_>, at) == 40);
const _: () = assert!(offset_of!(InvalidateContext<'_>, keys) == 48);
const _: () = assert!(offset_of!(InvalidateContext<'_>, next) == 56);

impl<'call> InvalidateContext<'call> {
    /// The scratch.
    #[inline(always)]
    #[must_use]
    pub fn scratch(&mut self) -> &mut InvalidateScratch {
        // SAFETY: whoever made the context has borrowed so many bytes for as long as the call lasts, to nobody else, and aligned;
        // they are numbers, of any value; and the context is borrowed for as long as they are.
        unsafe { &mut *self.scratch.cast() }
    }

    /// The name that the host has given the file.
    #[inline(always)]
    #[must_use]
    pub const fn file(&self) -> u64 {
        self.file
    }

    /// Where in the file the read begins.
    #[inline(always)]
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// How many bytes are read.
    #[inline(always)]
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// What `next` was; 0 at first.
    #[inline(always)]
    #[must_use]
    pub const fn at(&self) -> u64 {
        self.at
    }
}

/// For tests of programs; on the card it is the card that makes contexts.
#[cfg(not(target_arch = "bpf"))]
impl<'call> InvalidateContext<'call> {
    /// A context of zeroes, and this memory.
    #[must_use]
    pub fn new(scratch: &'call mut InvalidateScratch) -> Self {
        Self {
            scratch: ptr::from_mut(scratch).cast(),
            scratch_len: INVALIDATE_SCRATCH_LEN as u64,
            file: 0,
            offset: 0,
            len: 0,
            at: 0,
            keys: 0,
            next: 0,
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

    /// Changes what the program sees as [`Self::len`].
    #[must_use]
    pub const fn with_len(mut self, len: u64) -> Self {
        self.len = len;
        self
    }

    /// Changes what the program sees as [`Self::at`].
    #[must_use]
    pub const fn with_at(mut self, at: u64) -> Self {
        self.at = at;
        self
    }
}
