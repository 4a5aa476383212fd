//! A flag a message, polled and cleared by DMA: the FaRM-style ring as DDS §8.5 describes it.
//!
//! The ring's data is cut into slots of two words, flag and message. A host thread claims the next slot if its flag
//! is clear, writes the message and sets the flag; the card reads the slot at its head (flag and message in one
//! ordered read), takes the message if the flag is set, and clears the flag with a write of its own. There is no way
//! to fetch two messages at once, and every look costs a transfer.
//!
//! A plain flag would let a thread one lap ahead claim a slot whose owner is still writing, so flags count laps:
//! `2 * lap` is clear for that lap, `2 * lap + 1` is set.

use std::sync::atomic::Ordering;

use ob_core::{Dma, DmaAddress, DmaCompletion, DmaOp, Refused, RefusedReason, Token};
use ob_memory::Region;
use ob_wire_link::ring::{RingSpec, control};

use crate::RingError;
use crate::host_send::PushError;
use crate::single::words_of;

const SLOT_LEN: u64 = 16;

/// The flag of slot number `index` before its message is there.
fn clear_flag(spec: &RingSpec, index: u64) -> u64 {
    index * SLOT_LEN / u64::from(spec.capacity()) * 2
}

/// The producing end.
#[derive(Clone)]
pub struct FarmSender {
    region: Region,
    spec: RingSpec,
}

impl FarmSender {
    /// The sending end of the ring `spec` in `region`.
    pub fn new(region: Region, spec: RingSpec) -> Self {
        Self { region, spec }
    }

    /// Sends an 8-byte message, or says that the ring is full.
    pub fn push(&self, message: u64) -> Result<(), PushError> {
        let claim = self.spec.word(control::CLAIM) as usize;
        let mut tail = self.region.load(claim, Ordering::Relaxed);
        let slot = loop {
            let slot = self.spec.at(tail * SLOT_LEN) as usize;
            if self.region.load(slot, Ordering::Acquire) != clear_flag(&self.spec, tail) {
                // Either full, or another thread has claimed and filled this slot since we read the tail.
                let now = self.region.load(claim, Ordering::Relaxed);
                if now == tail {
                    return Err(PushError::Retry);
                }
                tail = now;
                continue;
            }
            match self.region.compare_exchange(claim, tail, tail + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => break slot,
                Err(now) => tail = now,
            }
        };
        self.region.store(slot + 8, message, Ordering::Relaxed);
        self.region.store(slot, clear_flag(&self.spec, tail) + 1, Ordering::Release);
        Ok(())
    }
}

/// The card's end.
pub struct FarmReceiver {
    spec: RingSpec,
    base: u64,
    head: u64,
    reading: bool,
    clear_wanted: Option<u64>,
}

impl FarmReceiver {
    /// The card's end of the ring `spec`; its transfers carry tokens `base..base + 4`.
    pub fn new(spec: RingSpec, base: Token) -> Self {
        Self { spec, base: base.0 & !3, head: 0, reading: false, clear_wanted: None }
    }

    /// Submits the next transfer, if there is one to submit now.
    pub fn step(&mut self, dma: &mut dyn Dma) -> Result<bool, RingError> {
        if let Some(slot) = self.clear_wanted {
            let (to, value) = (self.slot(slot), clear_flag(&self.spec, slot) + 2);
            if !self.submit(dma, 1, DmaOp::WriteWord { to, value })? {
                return Ok(false);
            }
            self.clear_wanted = None;
        }
        if !self.reading {
            let from = self.slot(self.head);
            self.reading = self.submit(dma, 0, DmaOp::read_words(from, 8, 2, false))?;
            return Ok(self.reading);
        }
        Ok(false)
    }

    /// Takes a finished transfer of this end: the message it brought, if any.
    pub fn complete(
        &mut self,
        dma: &mut dyn Dma,
        completion: &DmaCompletion,
    ) -> Result<Option<u64>, RingError> {
        completion.result.map_err(RingError::Dma)?;
        let Some([flag, message, ..]) = words_of(completion) else { return Ok(None) };
        self.reading = false;
        if flag != clear_flag(&self.spec, self.head) + 1 {
            return Ok(None);
        }
        self.clear_wanted = Some(self.head);
        self.head += 1;
        self.step(dma)?;
        Ok(Some(message))
    }

    fn slot(&self, index: u64) -> DmaAddress {
        DmaAddress { region: self.spec.region, offset: self.spec.at(index * SLOT_LEN) }
    }

    fn submit(&self, dma: &mut dyn Dma, which: u64, op: DmaOp) -> Result<bool, RingError> {
        match dma.submit(Token(self.base | which), op) {
            Ok(()) => Ok(true),
            Err(Refused { reason: RefusedReason::Busy, .. }) => Ok(false),
            Err(Refused { reason: RefusedReason::Gone, .. }) => {
                Err(RingError::Dma(ob_core::DmaError::LinkDown))
            }
        }
    }
}
