//! What both of the card's ends do: read the pointers, believe them or not, move the bound, ring, go to sleep.

use ob_core::{Bell, Dma, DmaAddress, DmaCompletion, DmaOp, Refused, RefusedReason, Token, WORDS_MAX};
use ob_wire_link::ring::{RingSpec, UNIT, control};

use crate::RingError;

/// Which transfer of a ring a completion belongs to: the low bits of its token.
pub(crate) const TOKEN_POINTERS: u64 = 0;
pub(crate) const TOKEN_DATA: u64 = 1;
pub(crate) const TOKEN_WORD: u64 = 2;
pub(crate) const TOKEN_BULK: u64 = 3;

/// Whether an end of a ring is ready for its reactor to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// There is or may be something to do first.
    NotYet,
    /// Any host thread that gives this end something to do from now on will ring.
    Yes,
}

/// Which end of the ring the single side is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Consumer,
    Producer,
}

/// The single side of one ring.
pub(crate) struct Single {
    pub(crate) spec: RingSpec,
    role: Role,
    /// Tokens of this end are `base..base + 4`.
    base: u64,
    /// As the host's memory shows it, or will when the writes submitted are done.
    pub(crate) bound: u64,
    /// The bound moved and the word is not submitted yet.
    bound_unwritten: bool,
    /// Last believed.
    progress: u64,
    pub(crate) claim: u64,
    sleepers: u64,
    rung_sleepers: u64,
    /// The bound at the last ring; none if that ring may not have been heard.
    rung_bound: Option<u64>,
    ticket: u64,
}

impl Single {
    pub(crate) fn new(spec: RingSpec, role: Role, base: Token) -> Self {
        Self {
            spec,
            role,
            base: base.0 & !3,
            bound: 0,
            bound_unwritten: false,
            progress: 0,
            claim: 0,
            sleepers: 0,
            rung_sleepers: 0,
            rung_bound: Some(0),
            ticket: 0,
        }
    }

    pub(crate) fn token(&self, which: u64) -> Token {
        Token(self.base | which)
    }

    pub(crate) fn address(&self, offset: u64) -> DmaAddress {
        DmaAddress { region: self.spec.region, offset }
    }

    /// Submits the ordered read of progress, claim and sleepers.
    pub(crate) fn read_pointers(&self, dma: &mut dyn Dma, fence: bool) -> Result<bool, RingError> {
        let from = self.address(self.spec.word(control::PROGRESS));
        submit(dma, self.token(TOKEN_POINTERS), DmaOp::read_words(from, control::STRIDE, 3, fence))
    }

    /// Checks what was read. `true` if everything claimed is settled.
    pub(crate) fn believe(&mut self, words: [u64; WORDS_MAX]) -> Result<bool, RingError> {
        let [progress, claim, sleepers, _] = words;
        let limit = match self.role {
            Role::Consumer => self.bound.saturating_add(u64::from(self.spec.capacity())),
            Role::Producer => self.bound,
        };
        let whole = progress.is_multiple_of(UNIT) && claim.is_multiple_of(UNIT);
        let forward = progress >= self.progress && claim >= self.claim;
        if !whole || !forward || progress > claim || claim > limit {
            return Err(RingError::Pointers { progress, claim, bound: self.bound });
        }
        (self.progress, self.claim, self.sleepers) = (progress, claim, sleepers);
        Ok(progress == claim)
    }

    /// Moves the bound; the word follows with [`Single::write_bound`].
    pub(crate) fn advance(&mut self, bound: u64) {
        self.bound_unwritten |= bound != self.bound;
        self.bound = bound;
    }

    /// Submits the bound if it moved. `false` if the link is busy.
    pub(crate) fn write_bound(&mut self, dma: &mut dyn Dma) -> Result<bool, RingError> {
        if self.bound_unwritten {
            self.bound_unwritten = !self.write_word(dma, control::BOUND, self.bound)?;
        }
        Ok(!self.bound_unwritten)
    }

    /// Whether the host's memory shows the bound, or will when the writes submitted are done.
    pub(crate) fn is_bound_written(&self) -> bool {
        !self.bound_unwritten
    }

    /// Submits a fresh ticket, so that the next host thread to settle something rings. `false` if the link is
    /// busy. An ordered read with a fence must follow.
    pub(crate) fn write_ticket(&mut self, dma: &mut dyn Dma) -> Result<bool, RingError> {
        self.ticket += 1;
        self.write_word(dma, control::CARD_ASLEEP, self.ticket)
    }

    /// The bell to ring, if host threads went to sleep since the last ring and there is something new for them.
    pub(crate) fn bell_due(&mut self) -> Option<Bell> {
        let due = !self.bound_unwritten
            && self.sleepers != self.rung_sleepers
            && Some(self.bound) != self.rung_bound;
        due.then(|| {
            (self.rung_sleepers, self.rung_bound) = (self.sleepers, Some(self.bound));
            Bell { address: self.address(self.spec.word(control::BELL)) }
        })
    }

    /// The link was cut and is back: a bell rung before may have been lost, or heard before the bound it was rung for
    /// was there.
    pub(crate) fn link_restored(&mut self) {
        self.rung_bound = None;
    }

    pub(crate) fn write_word(&self, dma: &mut dyn Dma, word: usize, value: u64) -> Result<bool, RingError> {
        self.write_at(dma, self.spec.word(word), value)
    }

    /// Submits a word at an offset of the region. `false` if the link is busy.
    pub(crate) fn write_at(&self, dma: &mut dyn Dma, offset: u64, value: u64) -> Result<bool, RingError> {
        let op = DmaOp::WriteWord { to: self.address(offset), value };
        submit(dma, self.token(TOKEN_WORD), op)
    }
}

/// Submits a transfer without a buffer. `false` if the link is busy.
fn submit(dma: &mut dyn Dma, token: Token, op: DmaOp) -> Result<bool, RingError> {
    match dma.submit(token, op) {
        Ok(()) => Ok(true),
        Err(Refused { reason: RefusedReason::Busy, .. }) => Ok(false),
        Err(Refused { reason: RefusedReason::Gone, .. }) => Err(RingError::Dma(ob_core::DmaError::LinkDown)),
    }
}

/// The words of a finished ordered read.
pub(crate) fn words_of(completion: &DmaCompletion) -> Option<[u64; WORDS_MAX]> {
    match completion.op {
        DmaOp::ReadWords { words, .. } => Some(words),
        _ => None,
    }
}
