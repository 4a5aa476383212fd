//! What waits to be sent on one connection: small bytes in one buffer, payload where the device put it.
//!
//! ```text
//!   segments:  Small 24 │ Payload(Slice) │ Small 24+24 │ Payload(Slice) │ …      one vectored send takes them all
//!   small:     [ header │ response, header │ … ]
//! ```

use std::collections::VecDeque;
use std::io::IoSlice;

use ob_memory::{Shared, Slice};

use super::super::shares::Lease;

/// Consumed small bytes before the rest is moved to the front of its buffer.
const COMPACT_FROM: usize = 4096;
/// A buffer that grew beyond this is not kept while there is nothing to send: idle connections stay small. It is what a
/// full queue of reads needs.
const KEEP_MAX: usize = 16 << 10;
/// The same of the list of segments.
const KEEP_SEGMENTS: usize = 512;

/// The queue of bytes of one connection.
#[derive(Default)]
pub(in crate::target) struct Output {
    small: Vec<u8>,
    /// How many of `small` are sent.
    small_sent: usize,
    segments: VecDeque<Segment>,
    /// How many bytes of the first segment are sent.
    front_sent: usize,
    /// Bytes of segments that the answers own, sent or not.
    owned: usize,
    /// Bytes that are to be sent.
    len: usize,
}

enum Segment {
    Small(usize),
    /// With what says that its buffer is held.
    Payload(Slice, #[expect(dead_code, reason = "it ends with the slice")] Option<Lease>),
    Shared(Shared),
    Owned(Vec<u8>),
}

impl Segment {
    fn len(&self) -> usize {
        match self {
            Self::Small(len) => *len,
            Self::Payload(slice, _) => slice.len(),
            Self::Shared(shared) => shared.len(),
            Self::Owned(bytes) => bytes.len(),
        }
    }
}

impl Output {
    pub(in crate::target) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Bytes that are to be sent.
    pub(in crate::target) fn len(&self) -> usize {
        self.len
    }

    /// Bytes besides payload.
    pub(in crate::target) fn unsent(&self) -> usize {
        self.small.len() - self.small_sent + self.owned
    }

    pub(in crate::target) fn push(&mut self, bytes: &[u8]) {
        self.len += bytes.len();
        self.small.extend_from_slice(bytes);
        match self.segments.back_mut() {
            Some(Segment::Small(len)) => *len += bytes.len(),
            _ => self.segments.push_back(Segment::Small(bytes.len())),
        }
    }

    pub(in crate::target) fn push_payload(&mut self, payload: Slice, lease: Option<Lease>) {
        self.len += payload.len();
        self.segments.push_back(Segment::Payload(payload, lease));
    }

    pub(in crate::target) fn push_shared(&mut self, payload: Shared) {
        self.len += payload.len();
        self.segments.push_back(Segment::Shared(payload));
    }

    pub(in crate::target) fn push_owned(&mut self, bytes: Vec<u8>) {
        self.len += bytes.len();
        self.owned += bytes.len();
        self.segments.push_back(Segment::Owned(bytes));
    }

    /// Fills `into` with what is to be sent, as far as it reaches; says how many of them.
    pub(in crate::target) fn gather<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        let mut small_at = self.small_sent;
        let mut skip = self.front_sent;
        let mut count = 0;
        for (segment, slot) in self.segments.iter().zip(into) {
            let bytes = match segment {
                // What is sent of the first segment is counted in `small_sent` already.
                Segment::Small(len) => {
                    let start = small_at;
                    small_at += len - skip;
                    self.small.get(start..small_at).unwrap_or_default()
                }
                Segment::Payload(slice, _) => slice.get(skip..).unwrap_or_default(),
                Segment::Shared(shared) => shared.get(skip..).unwrap_or_default(),
                Segment::Owned(bytes) => bytes.get(skip..).unwrap_or_default(),
            };
            *slot = IoSlice::new(bytes);
            skip = 0;
            count += 1;
        }
        count
    }

    /// So many bytes are sent: buffers whose last byte is among them are free.
    pub(in crate::target) fn sent(&mut self, mut count: usize) {
        while let Some(front) = self.segments.front() {
            let left = front.len() - self.front_sent;
            let taken = left.min(count);
            count -= taken;
            self.len -= taken;
            if matches!(front, Segment::Small(_)) {
                self.small_sent += taken;
            }
            if taken < left {
                self.front_sent += taken;
                break;
            }
            self.front_sent = 0;
            if let Some(Segment::Owned(bytes)) = self.segments.pop_front() {
                self.owned -= bytes.len();
            }
        }
        self.compact();
    }

    fn compact(&mut self) {
        if self.small_sent == self.small.len() {
            self.small.clear();
            self.small_sent = 0;
            if self.small.capacity() > KEEP_MAX {
                self.small = Vec::new();
            }
            if self.segments.is_empty() && self.segments.capacity() > KEEP_SEGMENTS {
                self.segments = VecDeque::new();
            }
        } else if self.small_sent >= COMPACT_FROM && self.small_sent >= self.small.len() / 2 {
            self.small.drain(..self.small_sent);
            self.small_sent = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ob_memory::Pool;

    fn all(output: &Output) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); 16];
        let count = output.gather(&mut slices);
        slices[..count].iter().flat_map(|slice| slice.iter().copied()).collect()
    }

    #[test]
    fn what_a_burst_needed_is_not_kept() {
        let pool = Pool::new(4096, 1);
        let mut output = Output::default();
        for _ in 0..4 {
            for _ in 0..10_000 {
                output.push(&[1; 24]);
                output.push_owned(vec![2; 5]);
            }
            output.push_payload(pool.take().unwrap(), None);
            while !output.is_empty() {
                output.sent(1000);
            }
            let kept = output.small.capacity() + output.segments.capacity() * size_of::<Segment>();
            assert!(kept <= 40 << 10, "{kept} bytes");
            assert_eq!(pool.blocks_out(), 0);
        }
    }

    #[test]
    fn any_cut_of_what_is_sent_leaves_exactly_the_rest() {
        // No more than one round uses: each has to give its buffers back.
        let pool = Pool::new(4096, 4);
        for step in 1..40 {
            let mut output = Output::default();
            let mut expected = Vec::new();
            for round in 0..4u8 {
                let mut payload = pool.take().unwrap();
                drop(payload.split_off(10));
                payload.fill(round);
                expected.extend([round + 100; 3]);
                output.push(&[round + 100; 3]);
                expected.extend_from_slice(&payload);
                output.push_payload(payload, None);
                output.push(&[7; 2]);
                output.push_owned(vec![8; 5]);
                expected.extend([7, 7, 8, 8, 8, 8, 8]);
            }
            while !output.is_empty() {
                assert_eq!(all(&output), expected, "step {step}");
                assert_eq!(output.len(), expected.len());
                let taken = step.min(expected.len());
                output.sent(taken);
                expected.drain(..taken);
            }
            assert_eq!((expected.len(), output.unsent()), (0, 0));
        }
    }
}
