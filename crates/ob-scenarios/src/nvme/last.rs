//! The last part of a run: most of what is broken is mended, and some of it never is.
//!
//! First nothing goes wrong at all, but that somebody stops for less than half the keep-alive timeout: nobody may lose an association by that.
//! Then one host goes away for ever, or is cut off. What it leaves behind must be over when the card has given it up; everybody else must be
//! answered, and every block is looked at.

use std::ops::Range;
use std::time::Duration;

use ob_core::Instant;
use ob_nvme::initiator::Error;
use ob_sim::{Death, Failure, NodeId, PerMillion, Progress};

use super::host::Host;
use super::{CARD, KEEP_ALIVE, Kind, Run, STILL_MAX};

/// A silent host is given up by then: nothing but what devices have of it goes on, and who overlaps that waits for it.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(10);
/// What is left of half a keep-alive timeout for everything but pauses and ways.
const MARGIN: Duration = Duration::from_millis(60);
/// How often somebody asks for something while nothing goes wrong.
const ASKED_EVERY: Range<Duration> = Duration::from_millis(20)..Duration::from_millis(500);
/// Pauses of a run that must not be noticed.
const BRIEF_PAUSES: usize = 2;
/// Attempts to read a block whose device fails now and then.
const ATTEMPTS_MAX: u64 = 100;

impl Run {
    /// Everything comes to rest, and every block is looked at by who is left.
    pub(super) fn finish(&mut self) -> Result<(), Failure> {
        self.mend();
        self.progress = Progress::new(self.trace.clock().clone(), STILL_MAX);
        self.settle()?;
        self.pause_briefly()?;
        if let Some(number) = self.leave_for_ever()? {
            self.rest(GIVEN_UP_AFTER)?;
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

    /// Somebody does nothing for a while that is shorter than what a host or the card must bear: half a timeout passes between two
    /// Keep Alives, and the other half is for this pause and the way.
    fn pause_briefly(&mut self) -> Result<(), Failure> {
        self.calm_disk();
        self.stride = Duration::from_millis(50);
        self.wait_for_hosts()?;
        // A Keep Alive that a cut has held up is sent once more, and answered; until then its way is longer than it will be.
        self.rest(self.plan.net.retry + self.plan.net.latency.end * 2)?;
        for _ in 0..BRIEF_PAUSES {
            // At any moment between two Keep Alives.
            let before = self.rng.duration(Duration::ZERO..KEEP_ALIVE);
            self.rest(before)?;
            let node = NodeId(self.rng.index(self.hosts.len() + 1));
            // A Keep Alive that comes to a stopped card has its way and that of its answer before it.
            let ways = if node == CARD { 3 } else { 2 };
            let longest = (KEEP_ALIVE / 2).saturating_sub(self.plan.net.latency.end * ways + MARGIN);
            let pause = self.rng.duration(longest * 9 / 10..longest);
            let losses = self.losses;
            self.report.count("brief pauses", 1);
            self.pause(node, pause);
            self.rest(pause + KEEP_ALIVE + KEEP_ALIVE / 2)?;
            if self.losses != losses {
                let text = format!("an association is lost, since node {} stopped for {pause:?}", node.0);
                return Err(Failure::new(text));
            }
        }
        Ok(())
    }

    /// Lets time pass; now and then somebody asks for something.
    fn rest(&mut self, time: Duration) -> Result<(), Failure> {
        let until = self.now() + time;
        let mut ask_at = self.now();
        while self.now() < until {
            // Over a long way much that is asked at once takes longer than a command may, and the association is lost by that.
            let is_crowded = self.plan.is_far() && !self.ops.is_empty();
            if self.absent.is_none() && ask_at <= self.now() && !is_crowded {
                self.issue();
                ask_at = self.now() + self.rng.duration(ASKED_EVERY);
            }
            self.turn()?;
        }
        Ok(())
    }

    /// Until every host has its association.
    fn wait_for_hosts(&mut self) -> Result<(), Failure> {
        let mut progress = Progress::new(self.trace.clock().clone(), STILL_MAX);
        while !(self.card.is_some() && self.hosts.iter().all(Host::is_ready)) {
            let ready = || {
                format!("hosts are ready: {:?}", self.hosts.iter().map(Host::is_ready).collect::<Vec<_>>())
            };
            progress.check(ready)?;
            self.turn()?;
        }
        Ok(())
    }

    /// The disk does everything at once and well.
    fn calm_disk(&mut self) {
        self.disk.borrow_mut().change_plan(|plan| {
            (plan.slow, plan.read_error, plan.write_error, plan.flush_error) =
                (PerMillion::NEVER, PerMillion::NEVER, PerMillion::NEVER, PerMillion::NEVER);
        });
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
        self.paused_until.fill(Instant::default());
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
