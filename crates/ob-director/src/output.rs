//! What a client is to get: bytes that were copied, and slices that go out from where they were read.

use std::collections::VecDeque;
use std::io::IoSlice;

use ob_memory::Slice;
use ob_offload::ReplySink;

#[derive(Debug)]
enum Run {
    /// So many of the copied bytes; those of the host are counted for its credit.
    Copied { len: usize, is_hosts: bool },
    /// A slice, and how much of it is gone.
    Read { slice: Slice, sent: usize },
}

/// A connection's output.
#[derive(Debug, Default)]
pub(crate) struct Output {
    copied: Vec<u8>,
    /// Bytes of `copied` that are gone.
    copied_sent: usize,
    runs: VecDeque<Run>,
    len: usize,
    /// Slices are copied, and given back at once.
    is_copying: bool,
}

impl Output {
    /// Bytes to send.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends bytes that the host has sent.
    pub(crate) fn push_hosts(&mut self, bytes: &[u8]) {
        self.push(bytes, true);
    }

    fn push(&mut self, bytes: &[u8], of_host: bool) {
        if bytes.is_empty() {
            return;
        }
        self.copied.extend_from_slice(bytes);
        self.len += bytes.len();
        match self.runs.back_mut() {
            Some(Run::Copied { len, is_hosts }) if *is_hosts == of_host => *len += bytes.len(),
            _ => self.runs.push_back(Run::Copied { len: bytes.len(), is_hosts: of_host }),
        }
    }

    /// From now on slices are copied and given back, those too that are here; or not any more.
    pub(crate) fn copy_all(&mut self, is_copying: bool) {
        self.is_copying = is_copying;
        if !is_copying || !self.runs.iter().any(|run| matches!(run, Run::Read { .. })) {
            return;
        }
        let runs = std::mem::take(&mut self.runs);
        let copied = std::mem::take(&mut self.copied);
        let mut rest = copied.get(std::mem::take(&mut self.copied_sent)..).unwrap_or_default();
        self.len = 0;
        for run in runs {
            match run {
                Run::Copied { len, is_hosts } => {
                    let (bytes, behind) = rest.split_at(len.min(rest.len()));
                    rest = behind;
                    self.push(bytes, is_hosts);
                }
                Run::Read { slice, sent } => self.push(slice.get(sent..).unwrap_or_default(), false),
            }
        }
    }

    /// Fills `into` from the front; how many of them.
    pub(crate) fn transmit<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        let mut copied = self.copied.get(self.copied_sent..).unwrap_or_default();
        let mut count = 0;
        for (run, place) in self.runs.iter().zip(into) {
            *place = match run {
                Run::Copied { len, .. } => {
                    let (bytes, rest) = copied.split_at((*len).min(copied.len()));
                    copied = rest;
                    IoSlice::new(bytes)
                }
                Run::Read { slice, sent } => IoSlice::new(slice.get(*sent..).unwrap_or_default()),
            };
            count += 1;
        }
        count
    }

    /// So many bytes from the front are gone; how many of them the host had sent.
    pub(crate) fn sent(&mut self, mut count: usize) -> u32 {
        let mut of_host = 0;
        while count > 0 {
            let taken = match self.runs.front_mut() {
                None => break,
                Some(Run::Copied { len, is_hosts }) => {
                    let taken = count.min(*len);
                    *len -= taken;
                    self.copied_sent += taken;
                    of_host += if *is_hosts { taken as u32 } else { 0 };
                    if *len == 0 {
                        self.runs.pop_front();
                    }
                    taken
                }
                Some(Run::Read { slice, sent }) => {
                    let taken = count.min(slice.len() - *sent);
                    *sent += taken;
                    if *sent == slice.len() {
                        self.runs.pop_front();
                    }
                    taken
                }
            };
            self.len -= taken;
            count -= taken;
        }
        self.tidy();
        of_host
    }

    fn tidy(&mut self) {
        if self.copied_sent == self.copied.len() {
            self.copied.clear();
            self.copied_sent = 0;
        } else if self.copied_sent > self.copied.len() / 2 {
            self.copied.drain(..self.copied_sent);
            self.copied_sent = 0;
        }
        // What one long reply needed is not kept by a connection that is quiet.
        if self.copied.is_empty() && self.copied.capacity() > 64 << 10 {
            self.copied = Vec::new();
        }
    }
}

impl ReplySink for Output {
    fn bytes(&mut self, bytes: &[u8]) {
        self.push(bytes, false);
    }

    fn slice(&mut self, slice: Slice) {
        if self.is_copying {
            self.push(&slice, false);
        } else if !slice.is_empty() {
            self.len += slice.len();
            self.runs.push_back(Run::Read { slice, sent: 0 });
        }
    }
}

#[cfg(test)]
mod tests {
    use ob_memory::Pool;

    use super::*;

    fn all(output: &Output) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); 16];
        let count = output.transmit(&mut slices);
        slices[..count].iter().flat_map(|slice| slice.iter().copied()).collect()
    }

    #[test]
    fn slices_can_be_copied_at_any_moment_and_nothing_changes() {
        let pool = Pool::new(4096, 2);
        let slice = |text: &[u8; 4]| {
            let mut slice = pool.take().unwrap();
            slice.truncate(4);
            slice.copy_from_slice(text);
            slice
        };
        for gone in 0..=12 {
            let mut output = Output::default();
            output.push_hosts(b"ab");
            output.slice(slice(b"cdef"));
            output.bytes(b"gh");
            output.slice(slice(b"ijkl"));
            let mut of_host = output.sent(gone);
            output.copy_all(true);
            assert_eq!((pool.blocks_out(), output.len()), (0, 12 - gone));
            output.slice(slice(b"mnop"));
            assert_eq!(pool.blocks_out(), 0);
            assert_eq!(all(&output), b"abcdefghijklmnop"[gone..]);
            of_host += output.sent(16 - gone);
            assert_eq!((of_host, output.is_empty()), (2, true));
        }
    }

    #[test]
    fn bytes_and_slices_leave_in_order_however_they_are_cut() {
        let pool = Pool::new(4096, 1);
        for step in 1..=12 {
            let mut output = Output::default();
            output.bytes(b"ab");
            output.push_hosts(b"cde");
            let mut slice = pool.take().unwrap();
            slice.truncate(4);
            slice.copy_from_slice(b"fghi");
            output.slice(slice);
            output.bytes(b"jk");
            output.push_hosts(b"l");
            assert_eq!((output.len(), all(&output)), (12, b"abcdefghijkl".to_vec()));
            let (mut gone, mut of_host) = (0, 0);
            while !output.is_empty() {
                let count = step.min(output.len());
                of_host += output.sent(count);
                gone += count;
                assert_eq!(all(&output), b"abcdefghijkl"[gone..]);
            }
            assert_eq!(of_host, 4);
            assert_eq!(pool.blocks_out(), 0, "the buffer is free when it is sent");
        }
    }
}
