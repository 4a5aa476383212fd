//! A namespace: numbered blocks.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use ob_wire_nvme::command::IoOpcode;
use ob_wire_nvme::identify::{Geometry, Namespace as NamespaceLayout, NamespaceIds};
use ob_wire_nvme::io::{BlockCommand, BlockRange, DatasetManagement};
use ob_wire_nvme::{CommandId, DataPointer, NamespaceId, Status, SubmissionEntry};
use zerocopy::IntoBytes;

use super::connection::Data;
use super::error::Error;
use super::handle::Initiator;
use super::payload::Payload;
use super::session::{Facts, Queue, Request};

/// Most blocks of one command: NLB has sixteen bits.
const BLOCKS_MAX: u64 = 1 << 16;

/// A namespace as it was when it was asked for. It may grow, shrink or go away:
/// [`Event::NamespacesChanged`](super::Event::NamespacesChanged) tells, and asking again gives the new state.
///
/// What is larger than the controller takes at once is split, and only the parts are as atomic as the controller's
/// commands are. A future that is dropped takes nothing back: what was sent is executed.
#[derive(Clone, Debug)]
pub struct Namespace {
    initiator: Initiator,
    id: NamespaceId,
    geometry: Geometry,
    used: u64,
    zeroes_can_deallocate: bool,
    ids: NamespaceIds,
    facts: Facts,
    told: Told,
}

/// Of how many losses of unflushed changes a handle was told. A clone goes on from there by itself: it may be somebody
/// else's, who has to be told too.
#[derive(Debug)]
struct Told(AtomicU64);

impl Told {
    fn losses(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn tell(&self, losses: u64) {
        self.0.fetch_max(losses, Ordering::Relaxed);
    }
}

impl Clone for Told {
    fn clone(&self) -> Self {
        Self(AtomicU64::new(self.losses()))
    }
}

impl Namespace {
    pub(super) fn new(
        initiator: Initiator,
        id: NamespaceId,
        layout: &NamespaceLayout,
        ids: NamespaceIds,
    ) -> Result<Self, Error> {
        let geometry = layout.geometry().ok_or(Error::NoSuchNamespace(id))?;
        let zeroes_can_deallocate = layout.zeroes_can_deallocate();
        let facts = initiator.facts().ok_or(Error::Closed)?;
        if facts.transfer_max < geometry.block_len() {
            return Err(Error::NoSuchNamespace(id));
        }
        let used = layout.used.get().min(geometry.blocks);
        let told = Told(AtomicU64::new(initiator.shared().losses(id)));
        Ok(Self { initiator, id, geometry, used, zeroes_can_deallocate, ids, facts, told })
    }

    /// NSID.
    #[must_use]
    pub fn id(&self) -> NamespaceId {
        self.id
    }

    /// Blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.geometry.blocks
    }

    /// Blocks that have content (NUSE); all of them, if the controller does not keep count.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_len(&self) -> u32 {
        self.geometry.block_len()
    }

    /// Bytes of the namespace.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.geometry.bytes()
    }

    /// Whether it has no bytes, which cannot be.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its unique ids, as far as the controller tells them.
    #[must_use]
    pub fn ids(&self) -> &NamespaceIds {
        &self.ids
    }

    /// The initiator that it belongs to.
    #[must_use]
    pub fn initiator(&self) -> &Initiator {
        &self.initiator
    }

    /// Reads blocks.
    pub async fn read(&self, start: u64, blocks: u64) -> Result<Vec<u8>, Error> {
        self.check(start, blocks)?;
        let mut bytes = Vec::new();
        let requests = split(start..start + blocks, self.transfer_blocks()).map(|part| {
            let len = self.bytes_of(part.end - part.start) as u32;
            self.request(IoOpcode::Read, &part, Data::ToHost(len), |command| command)
        });
        self.initiator
            .commands(requests, |answer| {
                if bytes.is_empty() {
                    bytes = answer.data;
                } else {
                    bytes.extend_from_slice(&answer.data);
                }
            })
            .await?;
        Ok(bytes)
    }

    /// Writes blocks. Durable after a [`Namespace::flush`].
    pub async fn write(&self, start: u64, data: impl Into<Payload>) -> Result<(), Error> {
        self.write_as(start, &data.into(), false).await
    }

    /// Writes blocks, and makes them durable (FUA).
    pub async fn write_durably(&self, start: u64, data: impl Into<Payload>) -> Result<(), Error> {
        self.write_as(start, &data.into(), true).await
    }

    async fn write_as(&self, start: u64, data: &Payload, is_durable: bool) -> Result<(), Error> {
        self.send_blocks(IoOpcode::Write, start, data, is_durable).await
    }

    /// Whether the blocks have exactly this content.
    pub async fn compare(&self, start: u64, data: impl Into<Payload>) -> Result<bool, Error> {
        match self.send_blocks(IoOpcode::Compare, start, &data.into(), false).await {
            Ok(()) => Ok(true),
            Err(Error::Command { status, .. }) if status.is(Status::COMPARE_FAILURE) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes everything durable that was completed before, through whichever handle. [`Error::Unflushed`] if the
    /// association was lost in between: the target may have lost what it had not made durable.
    ///
    /// That is told once to each handle that there was when somebody's flush found it: everybody who wrote has to know,
    /// not only who flushes first. So
    ///
    /// - flush through the handle that you wrote through, and keep it until then: a handle that
    ///   [`Initiator::namespace`] gives later is told only of what nobody was told of yet;
    /// - a clone knows what its original knew when it was made, and is told by itself from then on. If you clone a handle
    ///   for each flush, every clone hears what the original never did; those who are to be told once, together,
    ///   share one by reference.
    ///
    /// Changes that [`Initiator::io`] made count too; a flush that went that way is not known here.
    pub async fn flush(&self) -> Result<(), Error> {
        // Before the flush: of two at once through one handle each fails.
        let told = self.told.losses();
        let begun = self.initiator.shared().flush_begins();
        let entry = SubmissionEntry::new(IoOpcode::Flush.code(), CommandId(0), self.id);
        let request = Request {
            queue: Queue::Io,
            entry,
            data: Data::None,
            is_idempotent: true,
            may_be_short: false,
            expects: self.expected(),
        };
        let answer = self.initiator.command(request).await?;
        let losses = self.initiator.shared().flushed(self.id, begun, answer.association);
        self.told.tell(losses);
        if told < losses { Err(Error::Unflushed) } else { Ok(()) }
    }

    /// Fills blocks with zeros; with `may_deallocate` the space may be given back, if the controller can do that.
    pub async fn write_zeroes(&self, start: u64, blocks: u64, may_deallocate: bool) -> Result<(), Error> {
        self.check(start, blocks)?;
        let limit = match self.facts.write_zeroes_max {
            0 => BLOCKS_MAX,
            bytes => (bytes >> self.geometry.block_shift).clamp(1, BLOCKS_MAX),
        };
        let requests = split(start..start + blocks, limit).map(|part| {
            self.request(IoOpcode::WriteZeroes, &part, Data::None, |command| BlockCommand {
                deallocate: may_deallocate && self.zeroes_can_deallocate,
                ..command
            })
        });
        self.initiator.commands(requests, |_| {}).await
    }

    /// Says that the content of these blocks is not needed any more.
    pub async fn deallocate(&self, start: u64, blocks: u64) -> Result<(), Error> {
        self.check(start, blocks)?;
        self.deallocate_ranges(std::slice::from_ref(&(start..start + blocks))).await
    }

    /// The same for several ranges, with as few commands as the controller allows.
    pub async fn deallocate_ranges(&self, ranges: &[Range<u64>]) -> Result<(), Error> {
        for range in ranges {
            self.check(range.start, range.end.saturating_sub(range.start))?;
        }
        let range_max = u64::from(self.facts.deallocate_blocks_max);
        let parts: Vec<BlockRange> = ranges
            .iter()
            .flat_map(|range| split(range.clone(), range_max))
            // The limit makes it fit.
            .map(|part| BlockRange { start: part.start, blocks: (part.end - part.start) as u32 })
            .collect();
        let requests = parts.chunks(usize::from(self.facts.deallocate_ranges_max).max(1)).map(|chunk| {
            let bytes: Vec<u8> = chunk.iter().flat_map(|range| range.encode().as_bytes().to_vec()).collect();
            let command = DatasetManagement {
                namespace: self.id,
                ranges: chunk.len(),
                deallocate: true,
                integral_write: false,
                integral_read: false,
            };
            Request {
                queue: Queue::Io,
                entry: command.encode(CommandId(0), DataPointer::None),
                data: Data::ToController(bytes.into()),
                is_idempotent: true,
                may_be_short: false,
                expects: self.expected(),
            }
        });
        self.initiator.commands(requests, |_| {}).await
    }

    async fn send_blocks(
        &self,
        opcode: IoOpcode,
        start: u64,
        data: &Payload,
        is_durable: bool,
    ) -> Result<(), Error> {
        let block_len = self.block_len();
        if !data.len().is_multiple_of(block_len as usize) {
            return Err(Error::NotWholeBlocks { len: data.len(), block_len });
        }
        let blocks = data.len() as u64 >> self.geometry.block_shift;
        self.check(start, blocks)?;
        let requests = split(start..start + blocks, self.transfer_blocks()).map(|part| {
            // Parts lie within the data, whose length is one of memory.
            let bytes = self.bytes_of(part.start - start) as usize..self.bytes_of(part.end - start) as usize;
            self.request(opcode, &part, Data::ToController(data.part(bytes)), |command| BlockCommand {
                force_unit_access: is_durable,
                ..command
            })
        });
        self.initiator.commands(requests, |_| {}).await
    }

    fn request(
        &self,
        opcode: IoOpcode,
        part: &Range<u64>,
        data: Data,
        adjust: impl FnOnce(BlockCommand) -> BlockCommand,
    ) -> Request {
        let command = adjust(BlockCommand::new(self.id, part.start, (part.end - part.start) as u32));
        Request {
            queue: Queue::Io,
            entry: command.encode(opcode, CommandId(0), DataPointer::None),
            data,
            // A comparison changes nothing, and whichever answer comes was true meanwhile.
            is_idempotent: true,
            may_be_short: false,
            expects: self.expected(),
        }
    }

    /// What a request is meant for; nothing, if the controller gives its namespaces no ids.
    fn expected(&self) -> Option<NamespaceIds> {
        (self.ids != NamespaceIds::default()).then_some(self.ids)
    }

    fn transfer_blocks(&self) -> u64 {
        u64::from(self.facts.transfer_max >> self.geometry.block_shift).clamp(1, BLOCKS_MAX)
    }

    fn bytes_of(&self, blocks: u64) -> u64 {
        blocks << self.geometry.block_shift
    }

    fn check(&self, start: u64, blocks: u64) -> Result<(), Error> {
        let capacity = self.blocks();
        let fits = start.checked_add(blocks).is_some_and(|end| end <= capacity);
        if fits && blocks > 0 { Ok(()) } else { Err(Error::OutOfRange { start, blocks, capacity }) }
    }
}

/// Parts of at most `limit` blocks.
fn split(range: Range<u64>, limit: u64) -> impl Iterator<Item = Range<u64>> {
    let limit = limit.max(1);
    let mut at = range.start;
    std::iter::from_fn(move || {
        let end = range.end.min(at.saturating_add(limit));
        (at < end).then(|| std::mem::replace(&mut at, end)..end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_as_long_as_they_may_be_and_cover_all() {
        let parts = |range, limit| split(range, limit).collect::<Vec<_>>();
        assert_eq!(parts(3..10, 3), [3..6, 6..9, 9..10]);
        assert_eq!(parts(3..10, 6), [3..9, 9..10]);
        assert_eq!(parts(3..3, 1), []);
        assert_eq!(parts(0..2, 0), [0..1, 1..2]);
        assert_eq!(parts(u64::MAX - 1..u64::MAX, u64::MAX).len(), 1);
    }
}
