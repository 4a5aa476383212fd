//! Transfers over TCP: the card's end turns them into frames, the host's agent executes them.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use ob_core::{
    Bell, Dma, DmaAddress, DmaCompletion, DmaCounts, DmaError, DmaOp, Doorbell, Refused, RefusedReason,
    RegionId, Token,
};
use ob_memory::Region;
use ob_ring::LocalDma;
use ob_wire_link::frame::{FRAME_TRANSFER_MAX, Frame, lengthen};

use crate::ProtocolError;

/// Bytes of transfers that may be unanswered before more are pushed back: so much is held for a host that does not
/// read, and sent again after a cut.
const UNANSWERED_MAX: u64 = 8 << 20;

/// The card's end: a [`Dma`] whose transfers are frames.
///
/// The agent answers in order, so the oldest unanswered transfer is the one that an answer belongs to. After a cut
/// all unanswered ones are sent again (why that is safe: `docs/wire/link.md`).
pub struct FrameDma {
    unanswered: VecDeque<Transfer>,
    done: VecDeque<DmaCompletion>,
    depth: usize,
    next_tag: u64,
    unanswered_bytes: u64,
    /// Frames to be sent.
    out: Vec<u8>,
    counts: DmaCounts,
    down: bool,
}

struct Transfer {
    tag: u64,
    token: Token,
    op: DmaOp,
}

impl FrameDma {
    /// An engine with at most `depth` transfers unanswered.
    pub fn new(depth: usize) -> Self {
        Self {
            unanswered: VecDeque::with_capacity(depth),
            done: VecDeque::with_capacity(depth),
            depth,
            next_tag: 1,
            unanswered_bytes: 0,
            out: Vec::new(),
            counts: DmaCounts::default(),
            down: false,
        }
    }

    /// Whether the agent owes answers, and none waits to be polled.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.unanswered.is_empty() && self.done.is_empty()
    }

    /// Moves the frames that are to be sent to the end of `into`.
    pub(crate) fn take_frames(&mut self, into: &mut Vec<u8>) {
        into.append(&mut self.out);
    }

    /// Takes an answer of the agent.
    pub(crate) fn answered(&mut self, tag: u64, status: u32, bytes: &[u8]) -> Result<(), ProtocolError> {
        let Some(mut transfer) = self.unanswered.pop_front_if(|transfer| transfer.tag == tag) else {
            return Err(ProtocolError::Answer);
        };
        self.unanswered_bytes -= transfer.op.extent().1;
        let result = status_to_result(status)?;
        if result.is_ok() {
            match &mut transfer.op {
                DmaOp::Read { into, .. } if into.len() == bytes.len() => into.copy_from_slice(bytes),
                DmaOp::ReadWords { count, words, .. } if usize::from(*count) * 8 == bytes.len() => {
                    for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
                        *word = chunk.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
                    }
                }
                DmaOp::Write { .. } | DmaOp::WriteWord { .. } if bytes.is_empty() => {}
                _ => return Err(ProtocolError::Answer),
            }
        }
        self.done.push_back(DmaCompletion { token: transfer.token, op: transfer.op, result });
        Ok(())
    }

    /// The connection broke and is back: everything unanswered goes out again.
    pub(crate) fn replay(&mut self) {
        self.out.clear();
        for transfer in &self.unanswered {
            encode(transfer.tag, &transfer.op, &mut self.out);
        }
    }

    /// The attachment is over: everything in flight fails.
    pub(crate) fn shut_down(&mut self) {
        self.down = true;
        self.out.clear();
        self.unanswered_bytes = 0;
        for Transfer { token, op, .. } in self.unanswered.drain(..) {
            self.done.push_back(DmaCompletion { token, op, result: Err(DmaError::LinkDown) });
        }
    }
}

impl Dma for FrameDma {
    fn largest_transfer(&self) -> usize {
        FRAME_TRANSFER_MAX
    }

    fn submit(&mut self, token: Token, op: DmaOp) -> Result<(), Refused<DmaOp>> {
        if self.down {
            return Err(Refused { op, reason: RefusedReason::Gone });
        }
        // Pointers always go through: without them what was sent already would wait for room that it made itself.
        let bulk = matches!(op, DmaOp::Read { .. } | DmaOp::Write { .. });
        let too_much = bulk && self.unanswered_bytes > UNANSWERED_MAX;
        if self.unanswered.len() + self.done.len() >= self.depth || too_much {
            return Err(Refused { op, reason: RefusedReason::Busy });
        }
        self.counts.count(&op);
        let too_large = op.extent().1 > FRAME_TRANSFER_MAX as u64;
        if let Err(error) = op.check_shape().and(if too_large { Err(DmaError::TooLarge) } else { Ok(()) }) {
            self.done.push_back(DmaCompletion { token, op, result: Err(error) });
            return Ok(());
        }
        let tag = self.next_tag;
        self.next_tag += 1;
        encode(tag, &op, &mut self.out);
        self.unanswered_bytes += op.extent().1;
        self.unanswered.push_back(Transfer { tag, token, op });
        Ok(())
    }

    fn poll(&mut self) -> Option<DmaCompletion> {
        self.done.pop_front()
    }

    fn counts(&self) -> DmaCounts {
        self.counts
    }
}

impl Doorbell for FrameDma {
    fn ring(&mut self, bell: Bell) -> Result<(), DmaError> {
        if self.down {
            return Err(DmaError::LinkDown);
        }
        Frame::RingBell { region: bell.address.region, offset: bell.address.offset }.encode(&mut self.out);
        Ok(())
    }
}

fn encode(tag: u64, op: &DmaOp, out: &mut Vec<u8>) {
    let (DmaAddress { region, offset }, len) = op.extent();
    match op {
        DmaOp::Read { .. } => Frame::DmaRead { tag, region, offset, len: len as u32 },
        DmaOp::Write { from, .. } => Frame::DmaWrite { tag, region, offset, bytes: from },
        DmaOp::ReadWords { stride, count, .. } => {
            Frame::DmaReadWords { tag, region, offset, stride: *stride, count: *count }
        }
        DmaOp::WriteWord { value, .. } => Frame::DmaWriteWord { tag, region, offset, value: *value },
    }
    .encode(out);
}

fn status_to_result(status: u32) -> Result<Result<(), DmaError>, ProtocolError> {
    Ok(match status {
        0 => Ok(()),
        1 => Err(DmaError::UnknownRegion),
        2 => Err(DmaError::OutOfRegion),
        3 => Err(DmaError::TooLarge),
        4 => Err(DmaError::Misaligned),
        _ => return Err(ProtocolError::Answer),
    })
}

fn error_to_status(error: DmaError) -> u32 {
    match error {
        DmaError::UnknownRegion | DmaError::LinkDown => 1,
        DmaError::OutOfRegion => 2,
        DmaError::TooLarge => 3,
        DmaError::Misaligned => 4,
    }
}

/// The host's end: executes transfers on its registered regions, in the order of their frames.
pub(crate) struct Agent {
    regions: LocalDma,
    bells: Vec<(Region, usize)>,
}

impl Agent {
    pub(crate) fn new() -> Self {
        Self { regions: LocalDma::new(0, FRAME_TRANSFER_MAX), bells: Vec::new() }
    }

    pub(crate) fn register(&mut self, id: RegionId, region: Region) {
        self.regions.register(id, region);
    }

    pub(crate) fn unregister(&mut self, id: RegionId) {
        self.regions.unregister(id);
    }

    /// Executes a transfer and appends its answer. `false` if the frame is not a transfer.
    pub(crate) fn execute(&mut self, frame: &Frame<'_>, out: &mut Vec<u8>) -> bool {
        let (tag, result) = match *frame {
            Frame::DmaRead { tag, region, offset, len } => (tag, self.read(tag, region, offset, len, out)),
            Frame::DmaWrite { tag, region, offset, bytes } => {
                let result = self.resolve(region, offset, bytes.len() as u64);
                let result = result.map(|(region, at)| region.copy_in(at, bytes));
                (tag, result.map(|()| Frame::DmaDone { tag, status: 0, bytes: &[] }.encode(out)))
            }
            Frame::DmaReadWords { tag, region, offset, stride, count } => {
                // The stream is in order, so everything the card wrote before has been done: fenced as it is.
                let mut op = DmaOp::read_words(DmaAddress { region, offset }, stride, count, true);
                let result = self.regions.execute(&mut op);
                (tag, result.map(|()| answer_words(tag, &op, out)))
            }
            Frame::DmaWriteWord { tag, region, offset, value } => {
                let mut op = DmaOp::WriteWord { to: DmaAddress { region, offset }, value };
                let result = self.regions.execute(&mut op);
                (tag, result.map(|()| Frame::DmaDone { tag, status: 0, bytes: &[] }.encode(out)))
            }
            Frame::RingBell { region, offset } => {
                self.ring(Bell { address: DmaAddress { region, offset } });
                return true;
            }
            _ => return false,
        };
        if let Err(error) = result {
            Frame::DmaDone { tag, status: error_to_status(error), bytes: &[] }.encode(out);
        }
        true
    }

    fn read(
        &self,
        tag: u64,
        region: RegionId,
        offset: u64,
        len: u32,
        out: &mut Vec<u8>,
    ) -> Result<(), DmaError> {
        let (region, at) = self.resolve(region, offset, u64::from(len))?;
        let start = out.len();
        Frame::DmaDone { tag, status: 0, bytes: &[] }.encode(out);
        region.copy_out(at, lengthen(out, start, len as usize));
        Ok(())
    }

    /// Rings a bell on behalf of the card, or because the connection is back and one may have been lost.
    pub(crate) fn ring(&mut self, bell: Bell) {
        if let Ok((region, offset)) = self.regions.bump_bell(bell) {
            self.bells.push((region.clone(), offset));
        }
    }

    /// Bells that were rung since the last call: whoever sleeps on them must be woken.
    pub(crate) fn take_bells(&mut self) -> impl Iterator<Item = (Region, usize)> {
        self.bells.drain(..)
    }

    fn resolve(&self, region: RegionId, offset: u64, len: u64) -> Result<(&Region, usize), DmaError> {
        if len > FRAME_TRANSFER_MAX as u64 {
            return Err(DmaError::TooLarge);
        }
        // Everything the card wrote before is visible before what it writes now, and what it reads now is no older.
        std::sync::atomic::fence(Ordering::SeqCst);
        self.regions.resolve(DmaAddress { region, offset }, len)
    }
}

fn answer_words(tag: u64, op: &DmaOp, out: &mut Vec<u8>) {
    if let DmaOp::ReadWords { words, count, .. } = op {
        let start = out.len();
        Frame::DmaDone { tag, status: 0, bytes: &[] }.encode(out);
        let words = words.iter().take(usize::from(*count));
        for (chunk, word) in lengthen(out, start, usize::from(*count) * 8).chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
    }
}
