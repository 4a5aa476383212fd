//! What happens to hosts, card, network and disk while requests are under way.

use std::time::Duration;

use ob_core::Instant;
use ob_nvme::initiator::Error;
use ob_sim::{Block, Death, Failure, NodeId};

use super::plan::Fault;
use super::{CARD, Kind, Op, Run};

/// Nothing more goes wrong when nobody has got on for so long, or it would not be the services' fault: a host that finds no card waits up to
/// ten seconds, in which a card may die several times.
const FAULTS_UNTIL: Duration = Duration::from_secs(30);

impl Run {
    /// Now and then something goes wrong, and what went wrong before is over.
    pub(super) fn disturb(&mut self) -> Result<(), Failure> {
        self.unstick_disk();
        if !self.rng.one_in(self.plan.fault_one_in) || self.progress.still() > FAULTS_UNTIL {
            return Ok(());
        }
        let number = self.rng.index(self.hosts.len());
        match self.plan.fault(&mut self.rng) {
            Some(Fault::Reset) => {
                self.report.count("resets", 1);
                self.network.reset_between(NodeId(1 + number), CARD);
            }
            Some(Fault::Cut) => self.cut(number, true, true),
            Some(Fault::CutOneWay) => {
                let is_to_card = self.rng.one_in(2);
                self.cut(number, is_to_card, !is_to_card);
            }
            Some(Fault::HostDies) => {
                let writer = self.longest_writer().filter(|_| self.rng.one_in(2));
                self.kill_host(writer.unwrap_or(number))?;
            }
            Some(Fault::CardDies) => self.kill_card(Death::Process),
            Some(Fault::PowerFails) => self.kill_card(Death::Power),
            Some(Fault::Pause) => {
                let node = NodeId(self.rng.index(self.hosts.len() + 1));
                let pause = self.rng.skewed(Duration::from_millis(1)..Duration::from_secs(8));
                self.pause(node, pause);
            }
            None => {}
        }
        Ok(())
    }

    /// A host, or the card, does nothing for a while: its sockets fill, and then it goes on as if nothing had been.
    pub(super) fn pause(&mut self, node: NodeId, pause: Duration) {
        self.report.count(if node == CARD { "card paused" } else { "hosts paused" }, 1);
        self.trace.note("pause", &[node.0 as u64, pause.as_nanos() as u64]);
        self.paused_until[node.0] = self.now() + pause;
    }

    /// Whether a node is stopped now.
    pub(super) fn is_paused(&self, node: NodeId) -> bool {
        self.now() < self.paused_until[node.0]
    }

    fn cut(&mut self, number: usize, is_to_card: bool, is_to_host: bool) {
        if self.heal_at.is_some() {
            return;
        }
        let node = NodeId(1 + number);
        self.report.count(if is_to_card && is_to_host { "cuts" } else { "cuts of one way" }, 1);
        if is_to_card {
            self.network.cut(node, CARD);
        }
        if is_to_host {
            self.network.cut(CARD, node);
        }
        self.heal_at = Some(self.now() + Duration::from_millis(self.rng.range(1..4000)));
    }

    /// A disk that has something for ever is reset after a while.
    fn unstick_disk(&mut self) {
        let stuck = self.disk.borrow().stats().stuck;
        let now = self.now();
        if stuck > self.stuck && self.unstick_at.is_none() {
            self.unstick_at = Some(now + self.rng.skewed(Duration::from_millis(1)..Duration::from_secs(8)));
        }
        self.stuck = stuck;
        if self.unstick_at.is_some_and(|at| at <= now) {
            self.unstick_at = None;
            self.disk.borrow_mut().unstick();
        }
    }

    /// Whose write has been under way for longest: most likely it is on a slow device, and is there still when its host is back.
    fn longest_writer(&self) -> Option<usize> {
        let is_write = |op: &&Op| matches!(op.kind, Kind::Write { .. } | Kind::Discard);
        self.ops.values().find(is_write).map(|op| op.host)
    }

    /// A host dies and begins anew, as itself. The card may not hear of it.
    fn kill_host(&mut self, number: usize) -> Result<(), Failure> {
        self.report.count("hosts killed", 1);
        let how = if self.rng.one_in(2) { Death::Process } else { Death::Power };
        self.network.kill(NodeId(1 + number), how);
        self.forget_requests(number, &Error::Closed)?;
        self.hosts[number] = self.new_host(number)?;
        self.paused_until[1 + number] = Instant::default();
        Ok(())
    }

    /// Nobody waits for what a host has asked any more.
    pub(super) fn forget_requests(&mut self, number: usize, why: &Error) -> Result<(), Failure> {
        let of_host = self.ops.extract_if(.., |_, op| op.host == number);
        let of_host: Vec<Op> = of_host.map(|(_, op)| op).collect();
        of_host.into_iter().try_for_each(|op| self.apply(op, &Err(why.clone())))
    }

    fn kill_card(&mut self, how: Death) {
        if self.card.take().is_none() {
            return;
        }
        self.network.kill(CARD, how);
        match how {
            Death::Process => {
                self.report.count("cards killed", 1);
                self.disk.borrow_mut().lose_process();
            }
            Death::Power => {
                self.report.count("power lost", 1);
                self.power_losses += 1;
                self.disk.borrow_mut().lose_power();
                self.blocks.iter_mut().for_each(Block::lose_power);
            }
        }
        self.paused_until[CARD.0] = Instant::default();
        let pause = self.rng.range(1..2000);
        self.card_back_at = self.now() + Duration::from_millis(pause);
    }
}
