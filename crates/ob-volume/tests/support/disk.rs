//! A disk in memory with a volatile cache, which does what it is told when it is let.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use ob_core::{Device, DeviceCompletion, DeviceError, DeviceInfo, DeviceOp, Refused, Token};
use ob_files_card::Drive;

const BLOCK_LEN: u32 = 4096;

/// Decides about an operation.
pub(crate) type Rule<T> = Box<dyn FnMut(&DeviceOp) -> T>;

pub(crate) struct Disk {
    /// As a read sees it, and as it is after a loss of power.
    bytes: Vec<u8>,
    durable: Vec<u8>,
    unflushed: Vec<(usize, usize)>,
    queue: VecDeque<(Token, DeviceOp)>,
    /// Operations that are kept until they are let go.
    pub(crate) holds: Option<Rule<bool>>,
    pub(crate) fails: Option<Rule<Option<DeviceError>>>,
    /// Writes that fail when their bytes are in the cache.
    pub(crate) half_done: Option<Rule<bool>>,
    /// Blocks that cannot be read before they are written anew, by where they begin.
    unreadable: BTreeSet<usize>,
    pub(crate) writes: u64,
    /// Bytes that were read.
    pub(crate) read_bytes: u64,
}

#[derive(Clone)]
pub(crate) struct SharedDisk(pub(crate) Rc<RefCell<Disk>>);

impl SharedDisk {
    pub(crate) fn new(capacity: usize) -> Self {
        Self(Rc::new(RefCell::new(Disk {
            bytes: vec![0; capacity],
            durable: vec![0; capacity],
            unflushed: Vec::new(),
            queue: VecDeque::new(),
            holds: None,
            fails: None,
            half_done: None,
            unreadable: BTreeSet::new(),
            writes: 0,
            read_bytes: 0,
        })))
    }

    pub(crate) fn hold(&self, rule: impl FnMut(&DeviceOp) -> bool + 'static) {
        self.0.borrow_mut().holds = Some(Box::new(rule));
    }

    pub(crate) fn hold_writes(&self) {
        self.hold(|op| matches!(op, DeviceOp::Write { .. } | DeviceOp::Flush | DeviceOp::WriteZeroes { .. }));
    }

    pub(crate) fn release(&self) {
        self.0.borrow_mut().holds = None;
    }

    pub(crate) fn fail(&self, rule: impl FnMut(&DeviceOp) -> Option<DeviceError> + 'static) {
        self.0.borrow_mut().fails = Some(Box::new(rule));
    }

    /// Fails nothing any more.
    pub(crate) fn heal(&self) {
        let mut disk = self.0.borrow_mut();
        (disk.fails, disk.half_done) = (None, None);
    }

    pub(crate) fn fail_half_done(&self, rule: impl FnMut(&DeviceOp) -> bool + 'static) {
        self.0.borrow_mut().half_done = Some(Box::new(rule));
    }

    /// Fails reads of the block that has this byte.
    pub(crate) fn fail_reads_at(&self, at: usize) {
        self.fail(move |op| match op {
            DeviceOp::Read { offset, into } => {
                let (start, end) = (*offset as usize, *offset as usize + into.len());
                (start <= at && at < end).then_some(DeviceError::Io)
            }
            _ => None,
        });
    }

    /// The block that has this byte cannot be read before it is written anew.
    pub(crate) fn break_block(&self, at: usize) {
        self.0.borrow_mut().unreadable.insert(at - at % BLOCK_LEN as usize);
    }

    /// How many blocks cannot be read.
    pub(crate) fn broken_blocks(&self) -> usize {
        self.0.borrow().unreadable.len()
    }

    /// Where these bytes lie.
    pub(crate) fn find(&self, wanted: &[u8]) -> Option<usize> {
        let disk = self.0.borrow();
        let found = disk.bytes.chunks_exact(64).position(|unit| wanted.starts_with(unit))?;
        // Nothing else looks like it.
        Some(found * 64)
    }

    /// Whether these bytes lie there.
    pub(crate) fn is_at(&self, at: usize, wanted: &[u8]) -> bool {
        self.0.borrow().bytes.get(at..at + wanted.len()) == Some(wanted)
    }

    /// Changes bytes behind everybody's back.
    pub(crate) fn flip(&self, at: usize) {
        let mut disk = self.0.borrow_mut();
        disk.bytes[at] ^= 0xff;
        disk.durable[at] ^= 0xff;
    }

    /// Clears bytes behind everybody's back.
    pub(crate) fn clear(&self, at: usize, len: usize) {
        let mut disk = self.0.borrow_mut();
        disk.bytes[at..at + len].fill(0);
        disk.durable[at..at + len].fill(0);
    }
}

impl Disk {
    pub(crate) fn lose_queue(&mut self) {
        self.queue.clear();
        (self.holds, self.fails, self.half_done) = (None, None, None);
    }

    pub(crate) fn lose_power(&mut self) {
        self.lose_queue();
        self.unflushed.clear();
        self.bytes = self.durable.clone();
    }

    fn perform(&mut self, op: &mut DeviceOp) -> Result<(), DeviceError> {
        if let Some(error) = self.fails.as_mut().and_then(|fails| fails(op)) {
            return Err(error);
        }
        let is_half_done = self.half_done.as_mut().is_some_and(|half_done| half_done(op));
        let (offset, len) = op.extent().unwrap_or((0, 0));
        let (start, end) = (offset as usize, (offset + len) as usize);
        let range = self.bytes.get_mut(start..end).ok_or(DeviceError::OutOfRange)?;
        match op {
            DeviceOp::Read { .. } if self.unreadable.range(start..end).next().is_some() => {
                return Err(DeviceError::Io);
            }
            DeviceOp::Read { .. } | DeviceOp::Flush => {}
            _ => self.unreadable.retain(|at| !(start..end).contains(at)),
        }
        match op {
            DeviceOp::Read { into, .. } => {
                self.read_bytes += into.len() as u64;
                into.copy_from_slice(range);
            }
            DeviceOp::Write { from, durable, .. } => {
                self.writes += 1;
                range.copy_from_slice(from);
                if is_half_done {
                    self.unflushed.push((start, end));
                    return Err(DeviceError::Io);
                }
                if *durable {
                    self.durable[start..end].copy_from_slice(from);
                } else {
                    self.unflushed.push((start, end));
                }
            }
            DeviceOp::Flush => {
                for (start, end) in std::mem::take(&mut self.unflushed) {
                    self.durable[start..end].copy_from_slice(&self.bytes[start..end]);
                }
            }
            DeviceOp::Discard { .. } | DeviceOp::WriteZeroes { .. } => {
                range.fill(0);
                self.unflushed.push((start, end));
            }
        }
        Ok(())
    }
}

impl Device for SharedDisk {
    fn info(&self) -> DeviceInfo {
        let capacity = self.0.borrow().bytes.len() as u64;
        DeviceInfo { capacity, block_len: BLOCK_LEN, volatile_cache: true, discard_unit: BLOCK_LEN }
    }

    fn submit(&mut self, token: Token, op: DeviceOp) -> Result<(), Refused<DeviceOp>> {
        self.0.borrow_mut().queue.push_back((token, op));
        Ok(())
    }

    fn poll(&mut self) -> Option<DeviceCompletion> {
        let mut disk = self.0.borrow_mut();
        let Disk { queue, holds, .. } = &mut *disk;
        let index = queue.iter().position(|(_, op)| !holds.as_mut().is_some_and(|holds| holds(op)))?;
        let (token, mut op) = queue.remove(index)?;
        let result = disk.perform(&mut op);
        Some(DeviceCompletion { token, op, result })
    }
}

impl super::TestDisk for SharedDisk {}

impl Drive for SharedDisk {
    fn device(&mut self) -> &mut dyn Device {
        self
    }

    fn wait(&mut self) {}
}
