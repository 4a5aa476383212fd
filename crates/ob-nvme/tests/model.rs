//! Random commands from several queues, over a network and a disk that are simulated, beside a model of each block.
//!
//! The card is killed, loses its power, or loses its connections, again and again. After each of it the host comes back
//! and reads everything: what was flushed, or written with FUA, is there; a block is old or new and never torn; and what
//! was read once stays so until it is written again.

// A test that cannot go on should say where.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::host;
use crate::support;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use host::{Event, Session};
use ob_core::Clock;
use ob_nvme::driver::TargetDriver;
use ob_nvme::target::control::{NamespaceSpec, PortKey};
use ob_nvme::target::{Target, TargetConfig};
use ob_sim::{
    Block, Death, Discarding, DiskPlan, NetPlan, Network, NodeId, PerMillion, Rng, SimClock, SimDisk, SimNet,
    Trace,
};
use ob_wire_nvme::Status;
use ob_wire_nvme::command::IoOpcode;

const BLOCK: usize = support::BLOCK;
const BLOCKS: usize = 96;
const CARD: NodeId = NodeId(0);
const HOST: NodeId = NodeId(1);
const PORT: u16 = 4420;
const QUEUES: u16 = 3;

type Card = TargetDriver<SimNet, Rc<RefCell<SimDisk>>>;

#[derive(Clone, Debug)]
enum Kind {
    Read {
        is_durable: bool,
    },
    Write {
        stamp: u64,
        is_durable: bool,
    },
    Discard,
    /// Which version of each block it covers.
    Flush(Vec<usize>),
    Compare {
        is_right: bool,
    },
    Verify,
    /// The comparison of a fused pair; the write is a command of its own.
    PairCompare {
        is_right: bool,
    },
    PairWrite {
        stamp: u64,
        is_right: bool,
    },
}

#[derive(Clone, Debug)]
struct Op {
    kind: Kind,
    block: usize,
    blocks: usize,
}

struct World {
    seed: u64,
    rng: Rng,
    clock: SimClock,
    network: Network,
    disk: Rc<RefCell<SimDisk>>,
    discard: Discarding,
    card: Card,
    session: Session<Op>,
    blocks: Vec<Block>,
    stamps: u64,
    answered: u64,
    failed: u64,
}

fn card(network: &Network, disk: &Rc<RefCell<SimDisk>>, discard: Discarding) -> Card {
    let (mut control, subsystem) = support::control();
    // Where deallocated blocks do not read as zeros, those of Write Zeroes are written though it may deallocate.
    let deallocated_reads_zero = discard != Discarding::Either;
    control.remove_namespace(subsystem, 1).unwrap();
    let namespace = NamespaceSpec { deallocated_reads_zero, ..support::namespace(1, 7) };
    control.add_namespace(subsystem, &namespace).unwrap();
    control.resize_namespace(subsystem, 1, BLOCKS as u64).unwrap();
    // Little of everything, so that running out of it is part of every run.
    let config = TargetConfig {
        capsule_buffers: 4,
        transfer_memory: 2 << 20,
        connection_transfer_max: 32 << 10,
        transfers_max: 2,
        unsent_max: 4096,
        receive_len: 8 << 10,
        compares_max: 2,
        // Write Zeroes and deallocation take several operations.
        zeroes_at_once: 8 * BLOCK as u64,
        ..TargetConfig::default()
    };
    let target = Target::new(config, control);
    let mut card = TargetDriver::new(network.attach(CARD), Rc::clone(disk), target);
    card.listen(Network::address(CARD, PORT), PortKey(1)).unwrap();
    card
}

impl World {
    fn new(seed: u64, flush_lies: PerMillion) -> Self {
        let rng = Rng::new(seed);
        let clock = SimClock::new();
        let trace = Trace::new(clock.clone());
        let network = Network::new(NetPlan::default(), rng.fork("net"), trace.clone());
        let plan = DiskPlan {
            capacity: (BLOCKS * BLOCK) as u64,
            depth: 6,
            busy: PerMillion::percent(5),
            read_error: PerMillion::percent(1),
            write_error: PerMillion::percent(2),
            flush_error: PerMillion::percent(5),
            flush_lies,
            // Some writes outlast the host's coming back.
            slow: PerMillion::percent(5),
            slow_factor: 2000,
            discard: [Discarding::Either, Discarding::Zeroes, Discarding::Unsupported][seed as usize % 3],
            ..DiskPlan::default()
        };
        let discard = plan.discard;
        let disk = Rc::new(RefCell::new(SimDisk::new(plan, rng.fork("disk"), trace)));
        let card = card(&network, &disk, discard);
        let session = Session::new(network.attach(HOST), Network::address(CARD, PORT), seed, QUEUES);
        Self {
            seed,
            rng: rng.fork("host"),
            clock,
            network,
            disk,
            discard,
            card,
            session,
            blocks: vec![Block::default(); BLOCKS],
            stamps: 0,
            answered: 0,
            failed: 0,
        }
    }

    /// Lets both sides do what they can, and time go on to when something is due.
    fn step(&mut self) {
        let now = self.clock.now();
        let turn = self.card.turn(now);
        self.session.turn();
        while let Some(event) = self.session.next_event() {
            self.apply(event);
        }
        if turn.has_more || self.network.has_events(HOST) || self.network.has_events(CARD) {
            return;
        }
        let due = [self.network.next_due(), self.card.next_due()].into_iter().flatten().min();
        let at = due.unwrap_or(now + Duration::from_millis(1)).max(now);
        // A little beyond, so that time goes on whatever is due now.
        self.clock.advance_to(at + Duration::from_nanos(1));
    }

    fn issue(&mut self, reads_only: bool) {
        let queue = self.rng.index(usize::from(QUEUES));
        if self.session.in_flight(queue) >= 8 || !self.session.is_ready() {
            return;
        }
        let block = self.rng.index(BLOCKS);
        let blocks = (1 + self.rng.index(24)).min(BLOCKS - block);
        let choice = if reads_only { 0 } else { self.rng.below(23) };
        let range = block..block + blocks;
        let is_free = !self.blocks[range.clone()].iter().any(|block| block.is_written);
        let is_known = self.blocks[range.clone()].iter().all(|block| block.known().is_some());
        let is_untouched = is_free && !self.blocks[range.clone()].iter().any(|block| block.readers > 0);
        match choice {
            0..=7 if is_free => {
                let is_durable = self.rng.one_in(8);
                self.begin(queue, Op { kind: Kind::Read { is_durable }, block, blocks });
            }
            8..=14 if is_untouched => {
                let is_zero = self.rng.one_in(4);
                self.stamps += 1;
                let stamp = if is_zero { 0 } else { self.stamps };
                let is_durable = self.rng.one_in(if is_zero { 2 } else { 4 });
                self.begin(queue, Op { kind: Kind::Write { stamp, is_durable }, block, blocks });
            }
            15 if is_untouched => self.begin(queue, Op { kind: Kind::Discard, block, blocks }),
            // Rarely: what one makes durable hides what others should have.
            16 => {
                let covers = self.blocks.iter().map(Block::completed).collect();
                self.begin(queue, Op { kind: Kind::Flush(covers), block: 0, blocks: 0 });
            }
            18 if is_free && is_known => {
                let is_right = self.rng.one_in(2);
                self.begin(queue, Op { kind: Kind::Compare { is_right }, block, blocks });
            }
            19 if is_free => self.begin(queue, Op { kind: Kind::Verify, block, blocks }),
            20..=22 if is_untouched && is_known => {
                let is_right = !self.rng.one_in(3);
                self.begin_pair(queue, block, blocks.min(16), is_right);
            }
            _ => {}
        }
    }

    fn begin(&mut self, queue: usize, op: Op) {
        for block in &mut self.blocks[op.block..op.block + op.blocks] {
            match op.kind {
                Kind::Read { .. } | Kind::Compare { .. } | Kind::Verify => block.readers += 1,
                Kind::Write { stamp, .. } | Kind::PairWrite { stamp, .. } => block.begin(stamp),
                Kind::Discard => block.begin(0),
                Kind::PairCompare { .. } | Kind::Flush(_) => {}
            }
        }
        let solicited = self.rng.one_in(3);
        let (block, blocks) = (op.block as u64, op.blocks as u32);
        match op.kind.clone() {
            Kind::Read { is_durable } => self.session.read(queue, block, blocks, is_durable, op),
            Kind::Flush(_) => self.session.plain(queue, IoOpcode::Flush, 0, 1, false, op),
            Kind::Write { stamp: 0, is_durable } => {
                let may_deallocate = self.rng.one_in(2);
                self.session.zeroes(queue, (block, blocks), is_durable, may_deallocate, op);
            }
            Kind::Write { stamp, is_durable } => {
                let data = Block::content(stamp, op.block, op.blocks, BLOCK);
                self.session.write(queue, block, &data, is_durable, solicited, op);
            }
            Kind::Discard => {
                let first = 1 + self.rng.below(u64::from(blocks)) as u32;
                let ranges = [(block, first), (block + u64::from(first), blocks - first)];
                self.session.discard(queue, &ranges, op);
            }
            Kind::Verify => self.session.plain(queue, IoOpcode::Verify, block, blocks, false, op),
            Kind::Compare { is_right } => {
                let data = self.expected(op.block, op.blocks, is_right);
                self.session.compare(queue, block, &data, solicited, op);
            }
            // These begin together.
            Kind::PairCompare { .. } | Kind::PairWrite { .. } => {}
        }
    }

    /// Blocks get new contents in one, if they have what they should; or what they cannot have.
    fn begin_pair(&mut self, queue: usize, block: usize, blocks: usize, is_right: bool) {
        self.stamps += 1;
        let stamp = self.stamps;
        let kinds = [Kind::PairCompare { is_right }, Kind::PairWrite { stamp, is_right }];
        let ops = kinds.map(|kind| Op { kind, block, blocks });
        let old = self.expected(block, blocks, is_right);
        ops.iter().for_each(|op| self.begin(queue, op.clone()));
        self.session.pair(queue, block as u64, &old, &Block::content(stamp, block, blocks, BLOCK), ops);
    }

    /// What blocks hold, or the same with one of them wrong.
    fn expected(&mut self, block: usize, blocks: usize, is_right: bool) -> Vec<u8> {
        let wrong = (!is_right).then(|| block + self.rng.index(blocks));
        let held = |index: usize| {
            let stamp = self.blocks[index].known().unwrap();
            Block::content(if wrong == Some(index) { stamp + (1 << 40) } else { stamp }, index, 1, BLOCK)
        };
        (block..block + blocks).flat_map(held).collect()
    }

    fn apply(&mut self, event: Event<Op>) {
        let Event { op, status, data } = event;
        let (seed, is_good) = (self.seed, status.is_some_and(Status::is_success));
        self.answered += u64::from(status.is_some());
        self.failed += u64::from(status.is_some() && !is_good);
        if let Kind::Flush(covers) = &op.kind {
            for (block, covered) in self.blocks.iter_mut().zip(covers).filter(|_| is_good) {
                block.settle(*covered);
            }
            return;
        }
        for index in op.block..op.block + op.blocks {
            let block = &mut self.blocks[index];
            match &op.kind {
                Kind::Read { is_durable } => {
                    block.readers -= 1;
                    if is_good {
                        let bytes = &data[(index - op.block) * BLOCK..][..BLOCK];
                        let found = block.found(index, bytes, *is_durable);
                        found.unwrap_or_else(|failure| panic!("seed {seed}: {}", failure.what));
                    }
                }
                Kind::Write { stamp, is_durable } if is_good => block.written(*stamp, *is_durable),
                Kind::Write { stamp, .. } => block.give_up(*stamp),
                Kind::Discard => block.discarded(),
                Kind::Verify => block.readers -= 1,
                Kind::Compare { is_right } => {
                    block.readers -= 1;
                    compared(seed, index, status, *is_right);
                }
                Kind::PairCompare { is_right } => compared(seed, index, status, *is_right),
                // The comparison failed, or could not be made: then nothing was written.
                Kind::PairWrite { .. }
                    if status.is_some_and(|status| status.is(Status::ABORTED_FAILED_FUSED)) =>
                {
                    block.refused();
                }
                Kind::PairWrite { stamp, is_right } if is_good => {
                    assert!(*is_right, "seed {seed}: block {index} was written unlike it was");
                    block.written(*stamp, false);
                }
                Kind::PairWrite { stamp, .. } => block.give_up(*stamp),
                Kind::Flush(_) => {}
            }
        }
    }

    /// The connections are gone; the card may be gone too.
    fn disturb(&mut self) {
        let mut has_power = true;
        match self.rng.below(3) {
            0 => self.network.reset_between(HOST, CARD),
            which => {
                let how = if which == 1 { Death::Process } else { Death::Power };
                // The peers are told in both cases: how they find out is not what this is about.
                self.network.kill(CARD, Death::Process);
                match how {
                    Death::Process => self.disk.borrow_mut().lose_process(),
                    Death::Power => {
                        self.disk.borrow_mut().lose_power();
                        has_power = false;
                    }
                }
                self.card = card(&self.network, &self.disk, self.discard);
            }
        }
        for op in self.session.restart() {
            self.apply(Event { op, status: None, data: Vec::new() });
        }
        if !has_power {
            // What was under way is over with it.
            self.blocks.iter_mut().for_each(Block::lose_power);
        }
    }

    /// Reads everything until each block has been seen.
    fn read_all(&mut self) {
        for index in 0..BLOCKS {
            let before = self.answered;
            let mut attempts = 0;
            loop {
                if self.session.is_idle() && self.session.is_ready() {
                    attempts += 1;
                    let failed = self.failed;
                    let kind = Kind::Read { is_durable: false };
                    self.begin(index % usize::from(QUEUES), Op { kind, block: index, blocks: 1 });
                    while !self.session.is_idle() {
                        self.step();
                    }
                    if self.failed == failed && self.answered > before {
                        break;
                    }
                }
                self.step();
                assert!(attempts < 100, "seed {}: block {index} cannot be read", self.seed);
            }
        }
    }
}

/// A comparison tells equal from different, if it tells anything.
fn compared(seed: u64, index: usize, status: Option<Status>, is_right: bool) {
    let is_good = status.is_some_and(Status::is_success);
    let failed_to_match = status.is_some_and(|status| status.is(Status::COMPARE_FAILURE));
    assert!(!failed_to_match || !is_right, "seed {seed}: block {index} did not match");
    assert!(!is_good || is_right, "seed {seed}: block {index} matched what it never had");
}

fn run(seed: u64, rounds: usize, flush_lies: PerMillion) -> (u64, u64) {
    let mut world = World::new(seed, flush_lies);
    for _ in 0..rounds {
        let steps = 50 + world.rng.below(500);
        for _ in 0..steps {
            world.issue(false);
            world.step();
        }
        world.disturb();
        world.read_all();
    }
    (world.answered, world.failed)
}

#[test]
fn what_was_promised_is_kept_through_losses_of_connections_processes_and_power() {
    let mut total = (0, 0);
    for seed in 0..100 {
        let (answered, failed) = run(seed, 24, PerMillion::NEVER);
        total = (total.0 + answered, total.1 + failed);
    }
    assert!(total.0 > 10_000, "{total:?}: the host got its answers");
    assert!(total.1 > 100, "{total:?}: the disk failed now and then");
}

#[test]
#[should_panic(expected = "not one of")]
fn a_disk_that_lies_about_flushes_is_found() {
    for seed in 0..100 {
        run(seed, 24, PerMillion::ALWAYS);
    }
}
