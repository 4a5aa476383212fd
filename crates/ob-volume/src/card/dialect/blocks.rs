//! Which blocks a plan is about: what its message's own header says, and whether the plan goes with that.

use ob_core::{BlockLen, Lba, SegmentId};
use ob_split::card::{Message, Posted, Reject};
use ob_wire_nvme::SubmissionEntry;
use ob_wire_nvme::io::BlockCommand;
use zerocopy::FromBytes;

use super::HOSTILE;
use crate::plans::{Given, Part, Runs};

/// The blocks of a message, as its plan has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocks {
    /// The first, of the volume.
    pub(super) start: u64,
    pub(super) count: u32,
    pub(super) block_len: BlockLen,
    /// Where its bytes begin in the message's payload or answer.
    pub(super) from: u32,
}

/// What the message's own header says of blocks.
pub(super) fn command_of(message: &Message<'_>) -> Result<BlockCommand, Reject> {
    let entry = SubmissionEntry::ref_from_bytes(message.header).map_err(|_| HOSTILE)?;
    BlockCommand::parse(entry).map_err(|_| HOSTILE)
}

/// Bytes of a block, of a command that moves so many bytes.
pub(super) fn block_len(len: u32, blocks: u32) -> Result<BlockLen, Reject> {
    let block_len = BlockLen::from_bytes(len / blocks.max(1)).ok_or(HOSTILE)?;
    if blocks.checked_mul(block_len.bytes()) == Some(len) { Ok(block_len) } else { Err(HOSTILE) }
}

pub(super) fn blocks_of_write(plan: &Posted<'_>, part: Option<Part>) -> Result<Blocks, Reject> {
    let message = plan.message.ok_or(HOSTILE)?;
    let command = command_of(&message)?;
    let block_len = block_len(message.payload_len, command.blocks)?;
    let Part { first, blocks: count } = part.unwrap_or(Part { first: 0, blocks: command.blocks });
    if first.checked_add(count).is_none_or(|end| end > command.blocks) || count == 0 {
        return Err(HOSTILE);
    }
    let start = command.start.checked_add(first.into()).ok_or(HOSTILE)?;
    Ok(Blocks { start, count, block_len, from: first * block_len.bytes() })
}

/// Which block of its segment is the first. Nobody needs to say how many blocks a segment has: a power of two, and of those one at most puts
/// a block into a segment that is not the first one.
pub(super) fn lba_of(blocks: &Blocks, segment: SegmentId) -> Result<Lba, Reject> {
    let number = u64::from(segment.0);
    let (lba, end) = match blocks.start.checked_div(number) {
        None => (blocks.start, u64::from(u32::MAX)),
        Some(most) => {
            let of_segment = 1u64 << most.checked_ilog2().ok_or(HOSTILE)?;
            if blocks.start / of_segment != number {
                return Err(HOSTILE);
            }
            (blocks.start % of_segment, of_segment.min(u32::MAX.into()))
        }
    };
    // A command that goes on in the next segment is cut.
    if lba.checked_add(blocks.count.into()).is_none_or(|behind| behind > end) {
        return Err(HOSTILE);
    }
    Ok(Lba(lba as u32))
}

pub(super) fn check_read(plan: &Posted<'_>, first: Option<u32>, runs: &Runs<'_>) -> Result<(), Reject> {
    let message = plan.message.ok_or(HOSTILE)?;
    let command = command_of(&message)?;
    block_len(message.answer_len, command.blocks)?;
    let (from, count) = (first.unwrap_or(0), runs.blocks());
    let end = from.checked_add(count).ok_or(HOSTILE)?;
    // A plan that answers has read all of it.
    let fits = if first.is_some() { end <= command.blocks } else { end == command.blocks };
    if fits { Ok(()) } else { Err(HOSTILE) }
}

/// Whether what is given can be the payload of a piece: all its bytes, or fewer that are compressed.
pub(super) fn piece_fits(given: &Given<'_>, blocks: &Blocks, piece: u16) -> bool {
    let piece_blocks = crate::plans::piece_blocks(blocks.block_len);
    let left = blocks.count.saturating_sub(u32::from(piece) * piece_blocks).min(piece_blocks);
    let all = left * blocks.block_len.bytes();
    given.piece(piece.into()).is_some_and(|of| if of.is_lz4 { of.stored < all } else { of.stored == all })
}

/// How long blocks of a read are, and where a run of it goes in the answer.
pub(super) fn place_of_run(plan: &Posted<'_>, first: Option<u32>, piece: u16) -> Option<(BlockLen, u32)> {
    let message = plan.message?;
    let command = command_of(&message).ok()?;
    let block_len = block_len(message.answer_len, command.blocks).ok()?;
    let before = plan.notes.get(usize::from(piece))?;
    Some((block_len, (first.unwrap_or(0) + before) * block_len.bytes()))
}

pub(super) fn pieces_of(blocks: &Blocks) -> Result<u16, Reject> {
    u16::try_from(crate::plans::pieces(blocks.count, blocks.block_len)).map_err(|_| HOSTILE)
}
