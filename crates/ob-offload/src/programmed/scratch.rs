//! What lies in the scratches of the hooks, as `ob_ebpf::hooks::offload` has it.

use std::ops::Range;

use ob_ebpf::hooks::offload::{
    CACHE_SCRATCH, CANDIDATE, CHECK_SCRATCH, FUNCTION_SCRATCH, HIT, INVALIDATE_SCRATCH, KEY,
    PREDICATE_SCRATCH, RANGE, READ,
};
use ob_table::{Hit, Item, Key, Stamp};
use zerocopy::IntoBytes;

use crate::application::{Candidate, FileRead};

/// The scratch of a hook: words, so that it is aligned for programs.
#[derive(Debug)]
pub(super) struct Scratch(Vec<u64>);

impl Scratch {
    pub(super) fn new(len: u32) -> Self {
        Self(vec![0; (len as usize).div_ceil(size_of::<u64>())])
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.as_mut_bytes()
    }

    fn bytes(&self, at: usize, len: usize) -> &[u8] {
        self.0.as_bytes().get(at..at + len).unwrap_or_default()
    }

    fn u32(&self, at: usize) -> u32 {
        self.bytes(at, 4).first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }

    fn u64(&self, at: usize) -> u64 {
        self.bytes(at, 8).first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(place) = self.0.as_mut_bytes().get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }

    /// What the table has, or zeroes.
    fn put_hit(&mut self, at: usize, hit: Option<&Hit>) {
        let mut bytes = [0; HIT.len()];
        let Some(hit) = hit else { return self.put(at, &bytes) };
        let item = hit.item.bytes();
        bytes[HIT.offset_of("stamp")..][..8].copy_from_slice(&hit.stamp.number().to_le_bytes());
        bytes[HIT.offset_of("item_len")..][..4].copy_from_slice(&(item.len() as u32).to_le_bytes());
        bytes[HIT.offset_of("item")..][..item.len()].copy_from_slice(item);
        self.put(at, &bytes);
    }

    /// A range that a predicate has listed.
    pub(super) fn range(&self, number: usize) -> Option<Range<usize>> {
        let at = const { PREDICATE_SCRATCH.offset_of("keys") } + number * RANGE.len();
        let start = self.u32(at + const { RANGE.offset_of("offset") }) as usize;
        let len = self.u32(at + const { RANGE.offset_of("len") }) as usize;
        Some(start..start.checked_add(len)?)
    }

    /// Shows a function what the table has.
    pub(super) fn put_function_hit(&mut self, number: usize, hit: &Hit) {
        self.put_hit(const { FUNCTION_SCRATCH.offset_of("hits") } + number * HIT.len(), Some(hit));
    }

    /// A read that a function has listed.
    pub(super) fn read(&self, number: usize) -> FileRead {
        let at = const { FUNCTION_SCRATCH.offset_of("reads") } + number * READ.len();
        FileRead {
            file: self.u32(at + const { READ.offset_of("file") }),
            offset: self.u64(at + const { READ.offset_of("offset") }),
            len: self.u32(at + const { READ.offset_of("len") }),
        }
    }

    /// The reply of a function.
    pub(super) fn function_reply(&self, len: usize) -> &[u8] {
        self.bytes(const { FUNCTION_SCRATCH.offset_of("reply") }, len)
    }

    /// Shows a check what the table had, and the request.
    pub(super) fn put_check(&mut self, hit: Option<&Hit>, request: &[u8]) {
        self.put_hit(const { CHECK_SCRATCH.offset_of("hit") }, hit);
        self.put(const { CHECK_SCRATCH.offset_of("request") }, request);
    }

    /// What a check puts before what was read.
    pub(super) fn check_head(&self, len: usize) -> &[u8] {
        self.bytes(const { CHECK_SCRATCH.offset_of("head") }, len)
    }

    /// What a check puts behind what was read.
    pub(super) fn check_tail(&self, len: usize) -> &[u8] {
        self.bytes(const { CHECK_SCRATCH.offset_of("tail") }, len)
    }

    /// A record that a cache function has listed, if it can be one.
    pub(super) fn candidate(&self, number: usize) -> Option<Candidate> {
        let at = const { CACHE_SCRATCH.offset_of("candidates") } + number * CANDIDATE.len();
        let item_len = self.u32(at + const { CANDIDATE.offset_of("item_len") }) as usize;
        let item = self.0.as_bytes().get(at + const { CANDIDATE.offset_of("item") }..)?.get(..item_len)?;
        Some(Candidate {
            key: self.key_of(
                at + const { CANDIDATE.offset_of("key_len") },
                at + const { CANDIDATE.offset_of("key") },
            )?,
            item: Item::new(item).ok()?,
            stamp: Stamp::new(self.u64(at + const { CANDIDATE.offset_of("stamp") })).ok()?,
        })
    }

    /// A key that an invalidate function has listed, if it can be one.
    pub(super) fn key(&self, number: usize) -> Option<Key> {
        let at = const { INVALIDATE_SCRATCH.offset_of("keys") } + number * KEY.len();
        self.key_of(at + const { KEY.offset_of("len") }, at + const { KEY.offset_of("bytes") })
    }

    /// Longer keys than a record has room for are none, so what is behind it is not looked at.
    fn key_of(&self, len_at: usize, at: usize) -> Option<Key> {
        let len = self.u32(len_at) as usize;
        Key::new(self.0.as_bytes().get(at..at.checked_add(len)?)?).ok()
    }
}

/// A store's id as two numbers.
pub(super) fn halves(store: &[u8; 16]) -> [u64; 2] {
    let half = |at: usize| {
        store.get(at..at + 8).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u64::from_le_bytes(*bytes))
    };
    [half(0), half(8)]
}
