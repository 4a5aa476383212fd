//! A reply that is made on the card: bytes of its own around slices of what was read.

use std::ops::Range;

use ob_memory::{Pool, Slice};

/// A piece of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// So many of the reply's own bytes.
    Own(usize),
    /// Bytes of a read.
    Read { index: usize, bytes: Range<usize> },
}

/// A reply in the making.
#[derive(Debug, Default)]
pub struct Reply {
    pub(crate) own: Vec<u8>,
    pub(crate) parts: Vec<Part>,
    /// Whose function has planned the reads of it: 0 for the service's own, else that of programs.
    pub(crate) planned_by: u64,
}

impl Reply {
    /// Forgets what is there.
    pub fn clear(&mut self) {
        self.own.clear();
        self.parts.clear();
        self.planned_by = 0;
    }

    /// Appends bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.write(|own| own.extend_from_slice(bytes));
    }

    /// Appends what is written behind the bytes that are there.
    pub fn write(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let before = self.own.len();
        write(&mut self.own);
        let added = self.own.len().saturating_sub(before);
        match self.parts.last_mut() {
            Some(Part::Own(len)) => *len += added,
            _ => self.parts.push(Part::Own(added)),
        }
    }

    /// Appends bytes of a read, without copying them. Each read can be used once.
    pub fn read(&mut self, index: usize, bytes: Range<usize>) {
        self.parts.push(Part::Read { index, bytes });
    }

    /// What the client gets, in one piece; nothing, if the reply names bytes that were not read. For those who try the functions of a service
    /// without an engine.
    pub fn whole(&self, reads: &ReadBytes<'_>) -> Option<Vec<u8>> {
        if !self.is_sound(reads) {
            return None;
        }
        let (mut whole, mut own) = (Vec::new(), self.own.as_slice());
        for part in &self.parts {
            let bytes = match part {
                Part::Own(len) => own.split_off(..*len)?,
                Part::Read { index, bytes } => reads.get(*index)?.get(bytes.clone())?,
            };
            whole.extend_from_slice(bytes);
        }
        Some(whole)
    }

    /// Whether every part that it names is there, and is named once.
    pub(crate) fn is_sound(&self, reads: &ReadBytes<'_>) -> bool {
        let places = || {
            self.parts.iter().filter_map(|part| match part {
                Part::Read { index, bytes } => Some((*index, bytes)),
                Part::Own(_) => None,
            })
        };
        let is_there = |index: usize, bytes: &Range<usize>| {
            bytes.start <= bytes.end && reads.get(index).is_some_and(|read| bytes.end <= read.len())
        };
        places().enumerate().all(|(at, (index, bytes))| {
            is_there(index, bytes) && places().take(at).all(|(earlier, _)| earlier != index)
        })
    }
}

/// A read that is done: its blocks, and where in them the bytes are that were asked for.
#[derive(Debug)]
pub(crate) struct Filled {
    pub(crate) buffer: Slice,
    pub(crate) bytes: Range<usize>,
}

/// Reads that are done, for those who try the functions of a service without an engine.
#[derive(Debug)]
pub struct Reads(Vec<Option<Filled>>);

impl Reads {
    /// Reads that have brought these bytes, in their order.
    pub fn of<'a>(reads: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let filled = reads.into_iter().map(|bytes| {
            let mut buffer = Pool::new(bytes.len(), 1).take()?;
            buffer.get_mut(..bytes.len())?.copy_from_slice(bytes);
            Some(Filled { buffer, bytes: 0..bytes.len() })
        });
        Self(filled.collect())
    }

    /// What they have brought.
    pub fn bytes(&self) -> ReadBytes<'_> {
        ReadBytes { filled: &self.0 }
    }
}

/// What was read.
#[derive(Clone, Copy, Debug)]
pub struct ReadBytes<'a> {
    pub(crate) filled: &'a [Option<Filled>],
}

impl<'a> ReadBytes<'a> {
    /// How many reads there were.
    pub(crate) fn len(&self) -> usize {
        self.filled.len()
    }

    /// The bytes of a read, as many as were asked for.
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        let filled = self.filled.get(index)?.as_ref()?;
        filled.buffer.get(filled.bytes.clone())
    }
}

/// Takes a reply apart, in order.
pub trait ReplySink {
    /// Bytes to be copied.
    fn bytes(&mut self, bytes: &[u8]);

    /// Bytes to be sent from where they are.
    fn slice(&mut self, slice: Slice);
}
