//! The end of a run: everything is mended, and then all must be as it was promised.

use std::collections::BTreeMap;
use std::time::Duration;

use ob_core::SegmentName;
use ob_format::volume::metadata::Chunk;
use ob_sim::{Failure, Progress};

use super::card::Card;
use super::client::Client;
use super::host::Host;
use super::operator::Operator;
use super::plan::Sort;
use super::tier::Tier;
use super::{Run, SECOND, STILL_MAX, describe};

/// How often all is read to find what has rotted.
const ROUNDS_MAX: usize = 12;
/// How long owners take to find what nobody names.
const SWEPT_WITHIN: Duration = Duration::from_secs(1500);
/// How long something may be on its way to the store.
const LATE_WITHIN: Duration = Duration::from_secs(5);
/// Attempts to read a block, or to write one.
const ATTEMPTS_MAX: usize = 20;
/// One block in so many is written in the end.
const WRITTEN_ONE_IN: usize = 5;

impl Run {
    /// Everything comes to rest, every block is read twice, and replicas are compared.
    pub(super) fn finish(&mut self) -> Result<(), Failure> {
        self.trace.note("the end begins", &[]);
        self.mend();
        self.progress = Progress::new(self.trace.clock().clone(), STILL_MAX);
        self.stride = Duration::from_millis(100);
        self.settle()?;
        self.end_operator()?;
        self.rest()?;
        // Whoever takes the segments now finds what nobody names, and sees the blocks as the one before.
        let mapped = self.mapped();
        let now = self.now();
        for tier in &mut self.tiers {
            tier.lose_host(now);
        }
        self.settle()?;
        self.rest()?;
        self.compare_mapped(&mapped)?;
        self.write_again()?;
        for round in 0..2 {
            if self.tiers.len() > 1 {
                // Through each of them.
                for number in 0..self.clients.len() {
                    self.move_client(number, (number + round) % self.tiers.len())?;
                }
                self.settle()?;
            }
            for at in self.blocks_there() {
                self.look(at)?;
            }
        }
        self.read_from_all()?;
        self.rest()?;
        self.sweep()?;
        let Self { clients, history, operator, .. } = self;
        clients.iter_mut().for_each(|client| client.close(history));
        operator.iter_mut().for_each(|operator| operator.close(history));
        let is_judged = self.history.judge()?;
        self.report.count(if is_judged { "histories judged" } else { "histories too long" }, 1);
        self.let_go()?;
        self.audit()
    }

    /// How many blocks are mapped of each segment, as its owner knows it.
    fn mapped(&self) -> BTreeMap<SegmentName, u64> {
        let segments = self.tiers.iter().filter_map(Tier::host).flat_map(|host| host.status().segments);
        let owned = segments.filter(|segment| segment.epoch.is_some());
        owned.map(|segment| (segment.name, segment.mapped)).collect()
    }

    /// An index that was replayed is the one that its owner had.
    fn compare_mapped(&mut self, before: &BTreeMap<SegmentName, u64>) -> Result<(), Failure> {
        for (name, mapped) in self.mapped() {
            let Some(had) = before.get(&name) else { continue };
            self.report.count("indexes compared", 1);
            if *had != mapped {
                let text =
                    format!("{name:?} had {had} mapped blocks, and has {mapped} when it is taken anew");
                return Err(Failure::new(text));
            }
        }
        Ok(())
    }

    /// Blocks that clients use and can read.
    fn blocks_there(&self) -> Vec<u64> {
        let first = (0..self.plan.blocks).step_by(self.looked_at_once() as usize);
        let has_second = self.operator.as_ref().is_some_and(|operator| !operator.may_be_gone());
        first.clone().chain(first.filter(|_| has_second).map(|at| SECOND | at)).collect()
    }

    /// How many of them are read at once: where there are many, all of that takes long.
    fn looked_at_once(&self) -> u64 {
        if self.plan.has_long() { 8 } else { 1 }
    }

    /// The operator asks for nothing any more but that the second disk has all its blocks again, when nothing that he has asked before can
    /// still be done.
    fn end_operator(&mut self) -> Result<(), Failure> {
        let until = self.now() + LATE_WITHIN;
        let Some(operator) = &mut self.operator else { return Ok(()) };
        operator.calm_down();
        let mut progress = Progress::new(self.trace.clock().clone(), STILL_MAX * 2);
        while self.now() < until {
            self.turn()?;
        }
        self.operator.iter_mut().for_each(Operator::insist);
        while !self.operator.as_ref().is_none_or(Operator::is_over) {
            progress.check(|| "the second disk is never whole again".to_owned())?;
            self.turn()?;
        }
        Ok(())
    }

    /// Each block is read as often as there are servers, one after the other, until nothing more is found that has rotted: what is read in
    /// the end nobody has otherwise than it should be.
    fn read_from_all(&mut self) -> Result<(), Failure> {
        let found = |run: &Self| {
            let hosts = run.tiers.iter().filter_map(Tier::host);
            hosts.map(|host| host.status().rotten_found).sum::<u64>()
        };
        for _ in 0..ROUNDS_MAX {
            let before = found(self);
            if !self.rot.is_any() {
                return Ok(());
            }
            for at in self.blocks_there() {
                for _ in 0..self.servers.len() {
                    self.look(at)?;
                }
            }
            self.rest()?;
            if found(self) == before {
                return Ok(());
            }
        }
        Err(Failure::new("what has rotted is found again and again"))
    }

    /// Until servers have nothing that nobody names.
    fn sweep(&mut self) -> Result<(), Failure> {
        // With several tiers a segment has changed hands since: its owner looks every ten minutes.
        let within = if self.tiers.len() > 1 { SWEPT_WITHIN } else { STILL_MAX };
        let mut progress = Progress::new(self.trace.clock().clone(), within);
        while let Some(left) = self.leftovers()? {
            progress.check(|| format!("what nobody names is left on servers: {left}"))?;
            self.turn()?;
        }
        Ok(())
    }

    /// Until the card has nothing under way any more, or for good what nobody takes from it.
    fn let_go(&mut self) -> Result<(), Failure> {
        let mut progress = Progress::new(self.trace.clock().clone(), STILL_MAX);
        let sessions = |run: &Self| {
            let left = run.store.borrow().sessions().filter(|count| *count != run.tiers.len());
            left.map(|count| format!("{count} sessions of {} tiers", run.tiers.len()))
        };
        let cards = |run: &Self| run.tiers.iter().filter_map(Tier::card).find_map(Card::leftovers);
        while let Some(left) = cards(self).or_else(|| sessions(self)) {
            progress.check(|| format!("what is left over: {left}"))?;
            self.turn()?;
        }
        Ok(())
    }

    fn leftovers(&self) -> Result<Option<String>, Failure> {
        let chunks = self.chunks()?;
        for server in &self.servers {
            let (Some(id), Some(has)) = (server.id(), server.chunks()) else { continue };
            let named = chunks.iter().filter(|(_, chunk)| chunk.members.servers().contains(&id)).count();
            if has != named as u64 {
                return Ok(Some(format!("{id:?} has {has} chunks, and {named} name it")));
            }
        }
        Ok(None)
    }

    /// Until all that was asked is answered, and everybody is connected.
    fn settle(&mut self) -> Result<(), Failure> {
        self.progress.made();
        while !self.clients.iter().all(|client| client.is_ready() && client.ops.is_empty()) {
            self.turn()?;
        }
        Ok(())
    }

    /// Until the tier has nothing left to do: chunks are sealed, replicas are made.
    fn rest(&mut self) -> Result<(), Failure> {
        let mut progress = Progress::new(self.trace.clock().clone(), STILL_MAX * 2);
        while !self.is_at_rest() {
            let Self { clients, servers, tiers, .. } = self;
            progress.check(|| format!("it never comes to rest: {}", describe(clients, servers, tiers)))?;
            self.turn()?;
        }
        Ok(())
    }

    fn is_at_rest(&self) -> bool {
        self.clients.iter().all(Client::is_ready)
            && self.tiers.iter().all(|tier| self.is_tier_at_rest(tier))
            && self.is_all_owned()
    }

    /// Whether each segment that the store has is somebody's who knows it.
    fn is_all_owned(&self) -> bool {
        if self.tiers.len() == 1 {
            return true;
        }
        let owned = self.tiers.iter().filter_map(Tier::host).flat_map(|host| host.status().segments);
        let owned: Vec<_> = owned.filter(|segment| segment.epoch.is_some()).collect();
        let records = self.segments();
        records.iter().all(|(name, epoch)| {
            owned.iter().any(|segment| segment.name == *name && segment.epoch == Some(*epoch))
        })
    }

    fn is_tier_at_rest(&self, tier: &Tier) -> bool {
        let Some(host) = tier.host() else { return false };
        let status = host.status();
        status.is_open
            && status.commands == 0
            && status.mends_waiting == 0
            && status.servers.iter().all(|server| server.is_ready)
            && status.segments.iter().all(|segment| {
                segment.trouble.is_none()
                    && segment.epoch.is_some()
                    && segment.closing == 0
                    && segment.unresolved == 0
                    && (segment.degraded == 0 || !self.is_any_to_be_made(host, segment.name))
            })
    }

    /// Whether a chunk of a segment has fewer replicas than it should, and a server that has none has room for it. Others may be as full as they
    /// like.
    fn is_any_to_be_made(&self, host: &Host, segment: SegmentName) -> bool {
        let Ok(chunks) = self.chunks() else { return true };
        let mut of = chunks.iter().filter(|(name, _)| name.segment_name() == segment);
        let has_room = |chunk: &Chunk| self.plan.is_roomy || host.has_room_beside(chunk.members.servers());
        of.any(|(_, chunk)| self.is_short(chunk) && has_room(chunk))
    }

    /// Whatever has happened, disks are written to again: all but those of pools that are so small that they may be full.
    fn write_again(&mut self) -> Result<(), Failure> {
        if self.plan.is_roomy {
            for at in self.blocks_there().into_iter().step_by(WRITTEN_ONE_IN) {
                self.insist(Sort::Write, at)?;
                self.report.count("blocks written in the end", 1);
            }
        }
        self.rest()
    }

    /// Reads a block until it is answered.
    fn look(&mut self, at: u64) -> Result<(), Failure> {
        self.insist(Sort::Read, at)
    }

    /// Asks for a block until somebody has done it.
    fn insist(&mut self, sort: Sort, at: u64) -> Result<(), Failure> {
        for _ in 0..ATTEMPTS_MAX {
            let answered: u64 = self.clients.iter().map(|client| client.outcomes.answered).sum();
            let number = self.rng.index(self.clients.len());
            let left = self.plan.blocks - (at & (SECOND - 1));
            // What is written in the end is one block: others may be under way beside it.
            let most = if sort == Sort::Read { self.looked_at_once() } else { 1 };
            self.ask(number, sort, at, left.min(most));
            self.settle()?;
            if self.clients.iter().map(|client| client.outcomes.answered).sum::<u64>() > answered {
                return Ok(());
            }
        }
        let text = describe(&self.clients, &self.servers, &self.tiers);
        Err(Failure::new(format!("{sort:?} of block {at} is never done: {text}")))
    }
}
