//! The device below a store: read whole when that opens, and given epochs from then on.
//!
//! ```text
//!   byte 0     head: how much of the device is used
//!   byte 4096  redb's file, its first page signed
//! ```
//!
//! redb's first page is all of its file that is written over in place. It is written when all other pages of its epoch are durable, so
//! that what it names is whole, and is signed: in bytes that redb leaves alone, in the same block as what they cover, are a sum and the
//! stamp of the last commit. So rot is not taken for a commit that was never finished, behind which redb would go back.
//!
//! Steps wait in one line. Those between two barriers are with the device together, in any order; a barrier is passed when all
//! before it have come to their end.

use std::collections::VecDeque;
use std::ops::Range;

use ob_core::{Device, DeviceError, DeviceOp, Instant, RefusedReason, Token, checksum_of, layout};
use ob_memory::Pool;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::RedbError;
use super::mirror::{Epoch, PAGE, RUN_LEN};

/// Bytes before redb's file.
pub(super) const HEAD_LEN: u64 = PAGE;
const MAGIC: [u8; 4] = *b"OBMR";
const VERSION: u32 = 1;
/// Operations with the device at a time.
const DEPTH: usize = 8;

layout!(HeadBody, 64, { magic: [u8; 4], version: U32, crc: U32, reserved: U32, length: U64, reserved_end: [u8; 40] });

/// Where the checksum stands in the head.
const CRC_AT: usize = 8;
/// In redb's first page: the stamp, and the sum of all before it.
const STAMP: Range<usize> = 488..504;
const FIRST_CRC: Range<usize> = 504..508;
/// What redb keeps there of how its last commit was made (its `docs/design.md`): with this bit it would believe pages without looking
/// at their sums.
const FLAGS_AT: usize = 9;
const TWO_PHASES: u8 = 4;

/// By what the last commit of a store is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) life: u64,
    pub(super) revision: u64,
}

enum Step {
    Read { at: u64, len: usize },
    Zeroes { at: u64, len: u64 },
    Write { at: u64, bytes: Vec<u8>, is_durable: bool },
    Flush,
    Barrier,
}

/// The device, and what it has to do.
pub(super) struct Disk<D> {
    device: D,
    pool: Pool,
    steps: VecDeque<Step>,
    /// Operations that the device has.
    out: usize,
    /// What was read of it.
    image: Vec<u8>,
    failed: Option<DeviceError>,
}

impl<D: Device> Disk<D> {
    pub(super) fn new(device: D) -> Result<Self, RedbError> {
        let info = device.info();
        if u64::from(info.block_len) > PAGE {
            return Err(RedbError::Block { block_len: info.block_len });
        }
        let steps = VecDeque::new();
        let pool = Pool::new(RUN_LEN, DEPTH);
        Ok(Self { device, pool, steps, out: 0, image: Vec::new(), failed: None })
    }

    pub(super) fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    pub(super) fn capacity(&self) -> u64 {
        self.device.info().capacity
    }

    /// Bytes that redb's file may have.
    pub(super) fn most(&self) -> u64 {
        let most = self.capacity().saturating_sub(HEAD_LEN);
        most - most % PAGE
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        if self.out > 0 { self.device.next_due() } else { None }
    }

    /// Reads the head.
    pub(super) fn begin_load(&mut self) {
        self.steps.clear();
        self.failed = None;
        self.image.clear();
        self.image.resize(HEAD_LEN as usize, 0);
        self.steps.push_back(Step::Read { at: 0, len: HEAD_LEN as usize });
    }

    /// The head was read: reads so much as it says. Whether it can be one.
    pub(super) fn continue_load(&mut self) -> Result<(), RedbError> {
        let wrong = RedbError::Damaged("its head cannot be read");
        let (head, _) = HeadBody::ref_from_prefix(&self.image).map_err(|_| wrong.clone())?;
        let bytes = head.as_bytes();
        if head.magic != MAGIC || checksum_of(bytes, CRC_AT) != head.crc.get() {
            return Err(wrong);
        }
        if head.version.get() != VERSION {
            return Err(RedbError::Version { version: head.version.get() });
        }
        let length = head.length.get();
        if length == 0 || length % PAGE != 0 || length > self.most() {
            return Err(RedbError::Damaged("its head names more than the device has"));
        }
        self.image.clear();
        self.image.resize(usize::try_from(length).map_err(|_| wrong)?, 0);
        let run = RUN_LEN as u64;
        self.steps.extend((0..length.div_ceil(run)).map(|number| {
            let at = number * run;
            Step::Read { at: HEAD_LEN + at, len: (length - at).min(run) as usize }
        }));
        Ok(())
    }

    /// What was read behind the head, and the stamp of its last commit.
    pub(super) fn take_image(&mut self) -> Result<(Vec<u8>, Stamp), RedbError> {
        let wrong = RedbError::Damaged("its first page is not as it was written");
        let mut image = std::mem::take(&mut self.image);
        let first = image.get_mut(..FIRST_CRC.end).ok_or_else(|| wrong.clone())?;
        let (covered, crc) = first.split_at_mut(FIRST_CRC.start);
        if crc32c::crc32c(covered).to_le_bytes() != crc {
            return Err(wrong);
        }
        let number = |at: usize| covered.get(at..).and_then(|bytes| bytes.first_chunk()).copied();
        let (Some(life), Some(revision)) = (number(STAMP.start), number(STAMP.start + 8)) else {
            return Err(wrong);
        };
        if let Some(flags) = covered.get_mut(FLAGS_AT) {
            *flags &= !TWO_PHASES;
        }
        Ok((image, Stamp { life: u64::from_le_bytes(life), revision: u64::from_le_bytes(revision) }))
    }

    /// What the device is to take, each when all of the one before is durable; the last of them is the commit with this stamp.
    pub(super) fn write(&mut self, epochs: VecDeque<Epoch>, stamp: Stamp) {
        for epoch in epochs {
            if let Some(change) = epoch.len {
                if change.zero_from < change.len {
                    let (at, len) = (HEAD_LEN + change.zero_from, change.len - change.zero_from);
                    self.steps.extend([Step::Zeroes { at, len }, Step::Barrier]);
                }
                let bytes = head(change.len);
                self.steps.extend([Step::Write { at: 0, bytes, is_durable: true }, Step::Barrier]);
            }
            let write = |(at, bytes)| Step::Write { at: HEAD_LEN + at, bytes, is_durable: false };
            self.steps.extend(epoch.runs.into_iter().map(write));
            self.steps.extend([Step::Barrier, Step::Flush, Step::Barrier]);
            if let Some(mut bytes) = epoch.first {
                sign(&mut bytes, stamp);
                self.steps.extend([Step::Write { at: HEAD_LEN, bytes, is_durable: true }, Step::Barrier]);
            }
        }
    }

    /// Whether the device has nothing of ours any more: what it is late with would else take effect in a later life.
    pub(super) fn is_quiet(&self) -> bool {
        self.out == 0
    }

    /// Goes on, as far as the device lets it; whether all is done. After an error nothing more is begun.
    pub(super) fn drive(&mut self) -> Result<bool, DeviceError> {
        loop {
            let mut moved = self.submit();
            while let Some(completion) = self.device.poll() {
                moved = true;
                self.out = self.out.saturating_sub(1);
                if let (Ok(()), DeviceOp::Read { offset, into }) = (completion.result, &completion.op) {
                    self.take_read(*offset, into);
                }
                if let Err(error) = completion.result {
                    self.failed.get_or_insert(error);
                }
            }
            if let Some(error) = self.failed {
                self.steps.clear();
                return Err(error);
            }
            if !moved {
                return Ok(self.out == 0 && self.steps.is_empty());
            }
        }
    }

    fn take_read(&mut self, offset: u64, bytes: &[u8]) {
        let at = offset.saturating_sub(HEAD_LEN) as usize;
        if let Some(into) = self.image.get_mut(at..at + bytes.len()) {
            into.copy_from_slice(bytes);
        }
    }

    /// Submits what may begin now; whether there was anything.
    fn submit(&mut self) -> bool {
        let mut moved = false;
        while self.failed.is_none()
            && let Some(step) = self.steps.pop_front()
        {
            let op = match &step {
                Step::Barrier if self.out > 0 => None,
                Step::Barrier => {
                    moved = true;
                    continue;
                }
                _ if self.out >= DEPTH => None,
                step => self.operation(step),
            };
            let result = op.map(|op| self.device.submit(Token(0), op));
            match result {
                Some(Ok(())) => {
                    self.out += 1;
                    moved = true;
                }
                Some(Err(refused)) if refused.reason == RefusedReason::Gone => {
                    self.failed = Some(DeviceError::Gone);
                }
                Some(Err(_)) | None => {
                    self.steps.push_front(step);
                    break;
                }
            }
        }
        moved
    }

    /// A step with its memory, if there is some.
    fn operation(&self, step: &Step) -> Option<DeviceOp> {
        let take = |len| self.pool.take().map(|mut block| block.split_to(len));
        Some(match step {
            Step::Read { at, len } => DeviceOp::Read { offset: *at, into: take(*len)? },
            Step::Zeroes { at, len } => DeviceOp::WriteZeroes { offset: *at, len: *len },
            Step::Write { at, bytes, is_durable } => {
                let mut from = take(bytes.len())?;
                from.copy_from_slice(bytes);
                DeviceOp::Write { offset: *at, from: from.into(), durable: *is_durable }
            }
            Step::Flush => DeviceOp::Flush,
            Step::Barrier => return None,
        })
    }
}

/// redb's first page gets its stamp and its sum.
fn sign(first: &mut [u8], stamp: Stamp) {
    if let Some(field) = first.get_mut(STAMP) {
        field.copy_from_slice([stamp.life.to_le_bytes(), stamp.revision.to_le_bytes()].as_flattened());
    }
    let crc = crc32c::crc32c(first.get(..FIRST_CRC.start).unwrap_or_default());
    if let Some(field) = first.get_mut(FIRST_CRC) {
        field.copy_from_slice(&crc.to_le_bytes());
    }
}

/// The page in front of redb's file. One block of it is written whole or not at all, and has all that it says.
fn head(length: u64) -> Vec<u8> {
    let mut body = HeadBody {
        magic: MAGIC,
        version: VERSION.into(),
        crc: 0.into(),
        reserved: 0.into(),
        length: length.into(),
        reserved_end: [0; 40],
    };
    body.crc = checksum_of(body.as_bytes(), CRC_AT).into();
    let mut page = body.as_bytes().to_vec();
    page.resize(HEAD_LEN as usize, 0);
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_the_heads_table() {
        let text = include_str!("../../../../../docs/format/volume-store.md");
        for (name, at, len) in HeadBody::FIELDS {
            let row = format!("| `{name}` | {at} | {len} |");
            assert!(text.contains(&row), "{row}");
        }
        assert!(text.contains(std::str::from_utf8(&MAGIC).unwrap()));
    }
}
