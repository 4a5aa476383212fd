//! Bytes of a device, in chunks that copies share until one of them is written to.

use std::sync::Arc;

const CHUNK_LEN: usize = 16 << 10;

/// What a device holds. A copy costs a pointer a chunk; a chunk that is all zeros costs nothing.
#[derive(Clone)]
pub(crate) struct Image {
    chunks: Vec<Option<Arc<[u8; CHUNK_LEN]>>>,
    capacity: u64,
}

impl Image {
    pub(crate) fn new(capacity: u64) -> Self {
        Self { chunks: vec![None; capacity.div_ceil(CHUNK_LEN as u64) as usize], capacity }
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The same bytes with another end.
    pub(crate) fn with_capacity(mut self, capacity: u64) -> Self {
        self.chunks.resize(capacity.div_ceil(CHUNK_LEN as u64) as usize, None);
        self.capacity = capacity;
        self
    }

    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) {
        for (index, within, range) in pieces(offset, into.len()) {
            match &self.chunks[index] {
                Some(chunk) => {
                    let len = range.len();
                    into[range].copy_from_slice(&chunk[within..within + len]);
                }
                None => into[range].fill(0),
            }
        }
    }

    pub(crate) fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.read(offset, &mut bytes);
        bytes
    }

    pub(crate) fn write(&mut self, offset: u64, from: &[u8]) {
        for (index, within, range) in pieces(offset, from.len()) {
            let chunk = self.chunks[index].get_or_insert_with(|| Arc::new([0; CHUNK_LEN]));
            let len = range.len();
            Arc::make_mut(chunk)[within..within + len].copy_from_slice(&from[range]);
        }
    }

    pub(crate) fn zero(&mut self, offset: u64, len: u64) {
        for (index, within, range) in pieces(offset, len as usize) {
            let len = range.len();
            if len == CHUNK_LEN {
                self.chunks[index] = None;
            } else if let Some(chunk) = &mut self.chunks[index] {
                Arc::make_mut(chunk)[within..within + len].fill(0);
            }
        }
    }
}

/// A range of bytes, cut where chunks end: chunk, where in it, and which of the bytes.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (usize, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let (index, within) = ((at / CHUNK_LEN as u64) as usize, (at % CHUNK_LEN as u64) as usize);
        let count = (CHUNK_LEN - within).min(len - done);
        let range = done..done + count;
        done += count;
        (count > 0).then_some((index, within, range))
    })
}
