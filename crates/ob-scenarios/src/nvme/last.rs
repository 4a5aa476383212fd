//! The last part of a run: most of what is broken is mended, and some of it never is.
//!
//! One host goes away for ever, or is cut off. What it leaves behind must be over when the card has given it up; everybody else must be
//! answered, and every block is looked at.

use std::time::Duration;

use ob_nvme::initiator::Error;
use ob_sim::{Death, Failure, NodeId, PerMillion, Progress};

use super::{CARD, Kind, Run, STILL_MAX};

/// A silent host is given up by then: nothing but what devices have of it goes on, and who overlaps that waits for it.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(10);
/// Attempts to read a block whose device fails now and then.
const ATTEMPTS_MAX: u64 = 100;

impl Run {
    /// Everything comes to rest, and every block is looked at by who is left.
    pub(super) fn finish(&mut self) -> Result<(), Failure> {
        self.mend();
        self.progress = Progress::new(self.trace.clock().clone(), STILL_MAX);
        if let Some(number) = self.leave_for_ever()? {
            let until = self.now() + GIVEN_UP_AFTER;
            while self.now() < until {
                self.turn()?;
            }
            self.come_ashore(number);
        }
        self.settle()?;
        for block in 0..self.blocks.len() {
            if self.rng.one_in(4) {
                let host = self.present(block);
                self.stamps += 1;
                self.begin(host, Kind::Write { stamp: self.stamps, is_durable: false }, block, 1);
                self.settle()?;
            }
            self.look(block)?;
        }
        Ok(())
    }

    /// Nothing new goes wrong, but for what disks do all the time.
    fn mend(&mut self) {
        self.network.heal_all();
        self.network.change_plan(|plan| {
            (plan.reset, plan.refuse, plan.exhausted) =
                (PerMillion::NEVER, PerMillion::NEVER, PerMillion::NEVER);
        });
        let mut disk = self.disk.borrow_mut();
        disk.change_plan(|plan| plan.stuck = PerMillion::NEVER);
        disk.unstick();
        (self.heal_at, self.unstick_at) = (None, None);
    }

    /// A host that is there.
    fn present(&self, any: usize) -> usize {
        let number = any % self.hosts.len();
        if self.absent == Some(number) { (number + 1) % self.hosts.len() } else { number }
    }

    /// Reads a block until it is answered.
    fn look(&mut self, block: usize) -> Result<(), Failure> {
        for _ in 0..ATTEMPTS_MAX {
            let answered = self.report.get("answered");
            self.begin(self.present(block), Kind::Read, block, 1);
            self.settle()?;
            if self.report.get("answered") > answered {
                return Ok(());
            }
        }
        Err(Failure::new(format!("block {block} cannot be read")))
    }

    /// Until all that was asked is answered, and whoever is left has come back.
    fn settle(&mut self) -> Result<(), Failure> {
        self.progress.made();
        while self.is_waited_for() {
            self.turn()?;
        }
        Ok(())
    }

    /// Lets a host go, or never reach the card again. What it waits for is nobody's business any more.
    fn leave_for_ever(&mut self) -> Result<Option<usize>, Failure> {
        let number = self.rng.index(self.hosts.len());
        let node = NodeId(1 + number);
        let how = self.rng.below(7);
        if how < 2 || self.hosts.len() == 1 {
            return Ok(None);
        }
        self.trace.note("leaves for ever", &[number as u64, how]);
        match how {
            2 => self.network.kill(node, Death::Process),
            3 => self.network.kill(node, Death::Power),
            4 => self.network.cut(node, CARD),
            5 => self.network.cut(CARD, node),
            _ => self.network.cut_both(node, CARD),
        }
        self.report.count(if how < 4 { "hosts gone for ever" } else { "hosts cut off for ever" }, 1);
        (self.absent, self.is_absent_dead) = (Some(number), how < 4);
        self.forget_requests(number, &Error::Closed)?;
        Ok(Some(number))
    }
}
