//! Memory that the host is granted ahead, and what comes back of it: that, and messages that nobody answers.

use super::dialect::Dialect;
use super::flight::{Flight, OUTER};
use super::front::{Front, FrontAnswer};
use super::memory::Need;
use super::messages::Owner;
use super::port::{Hostile, Port};
use crate::engine::Engines;
use crate::plant::{Bug, is_planted};
use crate::wire::{Handle, Memory, Register, Step};

impl<F: Front, D: Dialect, E: Engines> Port<F, D, E> {
    /// A host that is welcome is granted memory.
    pub(super) fn grant_ahead(&mut self) {
        // What is written there is a record, and keeps its block for as long as the host likes: the others are for who waits for one.
        let mut left = self.records.blocks() / 2;
        for at in 0..self.config.granted.len() {
            let Some((len, count)) = self.config.granted.get(at).copied() else { break };
            let count = count.min(left);
            left -= count;
            (0..count).for_each(|_| self.grant_memory(len));
        }
    }

    fn grant_memory(&mut self, length: u32) {
        if let Some(handle) = self.messages.grant(self.now, length) {
            self.outbox.memory.push_back(Memory { handle, length });
            self.outbox.granted = self.outbox.granted.wrapping_add(1);
        }
    }

    /// The host gives memory back, which it is granted anew, or a message, which nobody answers.
    pub(super) fn given_back(&mut self, memory: &Memory) -> Result<(), Hostile> {
        let wrong = Hostile::Handle(memory.handle.0);
        let held = self.messages.of_plan(memory.handle).ok_or(wrong)?;
        if held.plans > 0 {
            return Err(Hostile::Busy(memory.handle.0));
        }
        if held.len() != memory.length {
            return Err(wrong);
        }
        match self.messages.remove(memory.handle).map(|held| held.owner) {
            Some(Owner::Front(key)) => self.front.answer(key, FrontAnswer::Nobody),
            Some(Owner::Host(length)) => self.grant_memory(length),
            Some(Owner::Peer(key)) => {
                self.wires.idles(key, false);
                self.wires.let_go(key);
            }
            None => {}
        }
        Ok(())
    }

    /// Whose memory register 1 of a plan is, if it is not its message's: it is written by nothing else meanwhile.
    pub(super) fn lend(&mut self, flight: &mut Flight) -> Result<(), Hostile> {
        flight.lent = None;
        let Some(handle) = self.dialect.answer(&flight.entry.posted()) else { return Ok(()) };
        let is_other = handle != flight.entry.handle;
        let held =
            self.messages.of_plan(handle).filter(|held| is_other && matches!(held.owner, Owner::Host(_)));
        let held = held.ok_or(Hostile::Handle(handle.0))?;
        if held.plans > 0 {
            return Err(Hostile::Busy(handle.0));
        }
        flight.lent = Some((handle, held.len()));
        Ok(())
    }

    /// What was written for it is its content from now on. Who still reads what was there before reads that.
    pub(super) fn give_back_lent(&mut self, flight: &mut Flight) {
        let Some((handle, _)) = flight.lent.take() else { return };
        let mut written = flight.piece(OUTER).written(Register::ANSWER).cloned();
        if is_planted(Bug::MemoryShown) {
            written = written.or_else(|| self.memory.take(Need::Bytes(1)).map(ob_memory::Slice::share));
        }
        let Some(held) = self.messages.get_mut(handle) else { return };
        held.plans = held.plans.saturating_sub(1);
        if let Some(written) = written {
            (held.payload_len, held.payload) = (written.len() as u32, Some(written));
        }
    }

    /// Whether a plan may be about what has this handle: memory is not answered.
    pub(super) fn check_answers(&mut self, handle: Handle, steps: &[Step]) -> Result<(), Hostile> {
        let is_memory = self.messages.get_mut(handle).is_none_or(|held| matches!(held.owner, Owner::Host(_)));
        let is_answer = |step: &Step| matches!(step, Step::Answer { .. });
        if is_memory && steps.iter().any(is_answer) { Err(Hostile::Handle(handle.0)) } else { Ok(()) }
    }
}
