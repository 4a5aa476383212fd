//! A device in memory that does what it is told, when it is told, and writes down what was done to it.

use std::collections::VecDeque;

use ob_core::{Device, DeviceCompletion, DeviceError, DeviceInfo, DeviceOp, Refused, RefusedReason, Token};
use ob_files_card::Drive;

use super::image::Image;
use super::journal::{Change, Event, Journal};

/// What a device has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) zeroes: u64,
    pub(crate) flushes: u64,
}

/// Gives any number below the one it is asked for.
pub(crate) type Chance = Box<dyn FnMut(u64) -> u64>;
/// Decides about an operation: whether it is held back, or which error it gets.
pub(crate) type Rule<T> = Box<dyn FnMut(&DeviceOp) -> T>;

/// A device in memory.
pub(crate) struct MemoryDevice {
    info: DeviceInfo,
    image: Image,
    queue: VecDeque<Queued>,
    next_id: u64,
    /// How many operations may complete; none: any number.
    pub(crate) credit: Option<u64>,
    /// Completes operations in any order.
    pub(crate) order: Option<Chance>,
    /// Refuses one operation in so many.
    pub(crate) refuses_one_in: Option<u64>,
    /// Most operations that it takes at once.
    pub(crate) depth: usize,
    pub(crate) holds: Option<Rule<bool>>,
    pub(crate) fails: Option<Rule<Option<DeviceError>>>,
    pub(crate) journal: Option<Journal>,
    pub(crate) done: Done,
}

struct Queued {
    id: u64,
    token: Token,
    op: DeviceOp,
}

impl MemoryDevice {
    /// An empty device.
    pub(crate) fn new(capacity: u64, block_len: u32) -> Self {
        Self::with(Image::new(capacity), block_len)
    }

    /// A device that holds these bytes.
    pub(crate) fn with(image: Image, block_len: u32) -> Self {
        Self {
            info: DeviceInfo {
                capacity: image.capacity(),
                block_len,
                volatile_cache: true,
                discard_unit: block_len,
            },
            image,
            queue: VecDeque::new(),
            next_id: 0,
            credit: None,
            order: None,
            refuses_one_in: None,
            depth: usize::MAX,
            holds: None,
            fails: None,
            journal: None,
            done: Done::default(),
        }
    }

    /// What would be read now.
    pub(crate) fn image(&self) -> &Image {
        &self.image
    }

    /// Operations under way.
    pub(crate) fn queued(&self) -> impl Iterator<Item = &DeviceOp> {
        self.queue.iter().map(|queued| &queued.op)
    }

    /// Lets one more operation complete, if they are counted.
    pub(crate) fn allow_one(&mut self) {
        if let Some(credit) = &mut self.credit {
            *credit += 1;
        }
    }

    fn note(&self, event: impl FnOnce() -> Event) {
        if let Some(journal) = &self.journal {
            journal.push(event());
        }
    }

    fn note_start(&self, id: u64, op: &DeviceOp) {
        self.note(|| match op {
            DeviceOp::Write { offset, from, durable } => Event::Started(Change {
                id,
                offset: *offset,
                len: from.len() as u64,
                bytes: Some(from.to_vec().into()),
                durable: *durable,
            }),
            DeviceOp::WriteZeroes { offset, len } | DeviceOp::Discard { offset, len } => {
                Event::Started(Change { id, offset: *offset, len: *len, bytes: None, durable: false })
            }
            DeviceOp::Flush => Event::FlushStarted(id),
            DeviceOp::Read { .. } => Event::Read,
        });
    }

    /// Which operation completes next.
    fn choose(&mut self) -> Option<usize> {
        let len = self.queue.len();
        let start = self.order.as_mut().map_or(0, |chance| chance(len as u64) as usize);
        let holds = &mut self.holds;
        let queue = &self.queue;
        (0..len)
            .map(|index| (start + index) % len)
            .find(|index| !holds.as_mut().is_some_and(|holds| holds(&queue[*index].op)))
    }

    fn perform(&mut self, op: &mut DeviceOp) -> Result<(), DeviceError> {
        self.info.check(op)?;
        if let Some(error) = self.fails.as_mut().and_then(|fails| fails(op)) {
            return Err(error);
        }
        match op {
            DeviceOp::Read { offset, into } => {
                self.image.read(*offset, into);
                self.done.reads += 1;
            }
            DeviceOp::Write { offset, from, .. } => {
                self.image.write(*offset, from);
                self.done.writes += 1;
                self.done.written_bytes += from.len() as u64;
            }
            DeviceOp::Flush => self.done.flushes += 1,
            DeviceOp::Discard { offset, len } | DeviceOp::WriteZeroes { offset, len } => {
                self.image.zero(*offset, *len);
                self.done.zeroes += 1;
            }
        }
        Ok(())
    }
}

impl Device for MemoryDevice {
    fn info(&self) -> DeviceInfo {
        self.info
    }

    fn submit(&mut self, token: Token, op: DeviceOp) -> Result<(), Refused<DeviceOp>> {
        let unlucky = match (self.refuses_one_in, self.order.as_mut()) {
            (Some(n), Some(chance)) => !self.queue.is_empty() && chance(n) == 0,
            _ => false,
        };
        if unlucky || self.queue.len() >= self.depth {
            return Err(Refused { op, reason: RefusedReason::Busy });
        }
        let id = self.next_id;
        self.next_id += 1;
        self.note_start(id, &op);
        self.queue.push_back(Queued { id, token, op });
        Ok(())
    }

    fn poll(&mut self) -> Option<DeviceCompletion> {
        if self.credit == Some(0) || self.queue.is_empty() {
            return None;
        }
        let index = self.choose()?;
        let Queued { id, token, mut op } = self.queue.remove(index)?;
        self.credit = self.credit.map(|credit| credit - 1);
        let result = self.perform(&mut op);
        self.note(|| Event::Finished(id));
        Some(DeviceCompletion { token, op, result })
    }
}

/// Waiting for it is letting it go on.
impl Drive for MemoryDevice {
    fn device(&mut self) -> &mut dyn Device {
        self
    }

    fn wait(&mut self) {
        self.allow_one();
    }
}
