//! `outboard sim nvme`: hosts share a namespace while connections are cut, hosts come back, and the card dies.
//!
//! ```text
//!   Session ── SimNet ──▶ TargetDriver ──▶ SimDisk        cuts, resets, delays; the card and its power lost,
//!   (host 1, 2, 3)             ▲                │         hosts that die and come back as themselves
//!      │                       └── next life ◀──┘
//!      └── every request and outcome ──▶ a model of each block
//! ```
//!
//! The initiator repeats what it does not know the end of. What was flushed, or written with FUA, is never lost; no write
//! that was answered, and none that its host has given up and come back from, lands on a newer one; a block is
//! never torn. A flush promises nothing about writes that an earlier life of the card has answered: a host learns of
//! that life's end as a lost association, and has to write again what it had not flushed.
//!
//! And somebody gets on all the time: in the end also those who are left when one host never comes back (`last`).

mod fate;
pub(crate) mod host;
mod last;
mod plan;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use ob_core::{Clock, Instant};
use ob_nvme::driver::TargetDriver;
use ob_nvme::initiator::{Data, Error, Options, Queue, Request};
use ob_nvme::target::Target;
use ob_nvme::target::control::{
    AddressFamily, BackendId, Control, ControlConfig, NamespaceSpec, PortKey, PortSpec, SubsystemSpec,
    TransportAddress,
};
use ob_sim::{
    Block, Discarding, Failure, Network, NodeId, PerMillion, Progress, Report, Rng, Scenario, SimDisk,
    SimNet, Trace,
};
use ob_wire_nvme::command::IoOpcode;
use ob_wire_nvme::io::{BlockCommand, BlockRange, DatasetManagement};
use ob_wire_nvme::pdu::Digests;
use ob_wire_nvme::text::Nqn;
use ob_wire_nvme::{CommandId, DataPointer, NamespaceId, SubmissionEntry};

use host::Host;
use plan::{Plan, Sort};

const BLOCK: usize = 512;
const CARD: NodeId = NodeId(0);
const PORT: u16 = 4420;
const NQN: &str = "nqn.2026-11.io.outboard:sim";
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// How long nobody may be answered while somebody waits. Hosts that find no card wait up to ten seconds before they try again, and
/// as long for an answer to that.
const STILL_MAX: Duration = Duration::from_secs(120);

/// A namespace that several hosts use.
#[derive(Clone, Debug, Default)]
pub struct NvmeScenario;

impl Scenario for NvmeScenario {
    fn name(&self) -> &'static str {
        "nvme"
    }

    fn run(&mut self, seed: u64, steps: u64, trace: &mut Trace) -> Result<Report, Failure> {
        Run::new(seed, trace.clone())?.play(steps)
    }
}

type Card = TargetDriver<SimNet, Rc<RefCell<SimDisk>>>;

#[derive(Clone, Debug)]
enum Kind {
    Read,
    Write {
        stamp: u64,
        is_durable: bool,
    },
    Discard,
    /// Which version of each block it covers, if power is not lost meanwhile.
    Flush(Vec<usize>),
}

#[derive(Clone, Debug)]
struct Op {
    host: usize,
    kind: Kind,
    block: usize,
    blocks: usize,
    /// Losses of power before it was asked for. An answer may be on its way when the next comes: then it tells of a life
    /// that is over.
    power_losses: u64,
}

struct Run {
    plan: Plan,
    rng: Rng,
    trace: Trace,
    network: Network,
    disk: Rc<RefCell<SimDisk>>,
    /// None while it is dead.
    card: Option<Card>,
    card_back_at: Instant,
    heal_at: Option<Instant>,
    /// Until when each node does nothing, by its number.
    paused_until: Vec<Instant>,
    /// How far time goes on at once at most: there is more to be asked, until there is not.
    stride: Duration,
    /// Nobody is turned away any more for no reason.
    is_lucky: bool,
    /// Associations that were lost.
    losses: u64,
    /// Operations that the disk has kept for ever so far, and when it is made to let go of them.
    stuck: u64,
    unstick_at: Option<Instant>,
    hosts: Vec<Host>,
    blocks: Vec<Block>,
    ops: BTreeMap<u64, Op>,
    /// Writes whose end nobody knows until their host has a new association.
    adrift: Vec<Op>,
    issued: u64,
    stamps: u64,
    lives: u64,
    power_losses: u64,
    /// A host that never comes back, and whether it is dead or only cut off.
    absent: Option<usize>,
    is_absent_dead: bool,
    progress: Progress,
    report: Report,
}

impl Run {
    fn new(seed: u64, trace: Trace) -> Result<Self, Failure> {
        let rng = Rng::new(seed);
        let plan = Plan::draw(&mut rng.fork("plan"));
        let network = Network::new(plan.net.clone(), rng.fork("net"), trace.clone());
        let disk = SimDisk::new(plan.disk.clone(), rng.fork("disk"), trace.clone());
        let disk = Rc::new(RefCell::new(disk));
        let progress = Progress::new(trace.clock().clone(), STILL_MAX);
        let mut run = Self {
            rng: rng.fork("run"),
            trace,
            network,
            disk,
            card: None,
            card_back_at: Instant::default(),
            heal_at: None,
            hosts: Vec::new(),
            blocks: vec![Block::default(); plan.blocks],
            ops: BTreeMap::new(),
            adrift: Vec::new(),
            issued: 0,
            stamps: 0,
            lives: 0,
            power_losses: 0,
            absent: None,
            is_absent_dead: false,
            progress,
            paused_until: vec![Instant::default(); 1 + plan.hosts],
            stride: Duration::from_millis(5),
            is_lucky: false,
            losses: 0,
            stuck: 0,
            unstick_at: None,
            plan,
            report: Report::default(),
        };
        run.card = Some(run.new_card()?);
        for number in 0..run.plan.hosts {
            let host = run.new_host(number)?;
            run.hosts.push(host);
        }
        Ok(run)
    }

    fn now(&self) -> Instant {
        self.trace.clock().now()
    }

    fn new_card(&self) -> Result<Card, Failure> {
        let failed = |what: &str| Failure::new(format!("the card does not begin: {what}"));
        let mut control = Control::new(ControlConfig::default());
        let address =
            TransportAddress { family: AddressFamily::Ipv4, address: "10.0.0.0".to_owned(), service: PORT };
        control
            .add_port(PortSpec { port: PortKey(1), address, discovery_only: false })
            .map_err(|error| failed(&error.to_string()))?;
        let nqn = Nqn::new(NQN).map_err(|error| failed(&error.to_string()))?;
        let subsystem = control
            .add_subsystem(SubsystemSpec::open(nqn, "SIM"))
            .map_err(|error| failed(&error.to_string()))?;
        let namespace = NamespaceSpec {
            nsid: Some(1),
            backing: BackendId(0).into(),
            blocks: self.plan.blocks as u64,
            block_len: BLOCK as u32,
            uuid: [7; 16],
            nguid: [0; 16],
            volatile_cache: self.plan.disk.volatile_cache,
            deallocated_reads_zero: self.plan.disk.discard != Discarding::Either,
            deallocate_len: 0,
            ana_group: 1,
            read_only: false,
        };
        control.add_namespace(subsystem, &namespace).map_err(|error| failed(&error.to_string()))?;
        let target = Target::new(self.plan.target.clone(), control);
        let mut card = TargetDriver::new(self.network.attach(CARD), Rc::clone(&self.disk), target);
        card.listen(Network::address(CARD, PORT), PortKey(1)).map_err(|error| failed(&error.to_string()))?;
        Ok(card)
    }

    fn new_host(&mut self, number: usize) -> Result<Host, Failure> {
        self.lives += 1;
        let node = NodeId(1 + number);
        let host_id = [1 + number as u8; 16];
        let options = Options::new(Network::address(CARD, PORT), NQN, host_id)
            .map_err(|error| Failure::new(format!("no such name: {error}")))?;
        let options = Options {
            queues: self.plan.queues,
            depth: self.plan.depth,
            digests: Digests::from_bits(self.rng.below(4) as u8),
            keep_alive: KEEP_ALIVE,
            command_timeout: Duration::from_secs(5),
            ..options
        };
        let rng = self.rng.fork_numbered("host", self.lives);
        Ok(Host::new(self.network.attach(node), options, rng, self.now()))
    }

    fn play(mut self, steps: u64) -> Result<Report, Failure> {
        while self.issued < steps {
            self.issue();
            self.disturb()?;
            self.turn()?;
        }
        self.finish()?;
        self.count_faults();
        self.report.count("requests", self.issued);
        Ok(self.report)
    }

    fn count_faults(&mut self) {
        let (net, disk) = (self.network.stats(), self.disk.borrow().stats());
        for (what, times) in [
            ("connections refused", net.refused),
            ("connections that found no memory", net.exhausted),
            ("connections reset", net.resets),
            ("connections timed out", net.timeouts),
            ("operations stuck", disk.stuck),
            ("operations without space", disk.no_space),
            ("operations slow", disk.slow),
        ] {
            self.report.count(what, times);
        }
    }

    /// Lets everybody do what can be done, and time go on to when something is due. Fails if nobody gets on.
    fn turn(&mut self) -> Result<(), Failure> {
        let now = self.now();
        if !self.is_waited_for() {
            self.progress.made();
        }
        self.end_bad_luck();
        let Self { progress, ops, adrift, hosts, card, .. } = self;
        progress.check(|| describe(ops, adrift, hosts, card.is_some()))?;
        if self.card.is_none() && self.card_back_at <= now {
            self.card = Some(self.new_card()?);
        }
        if self.heal_at.is_some_and(|at| at <= now) {
            self.heal_at = None;
            self.network.heal_all();
        }
        let is_card_paused = self.is_paused(CARD);
        let card = self.card.as_mut().filter(|_| !is_card_paused);
        let mut has_more = card.is_some_and(|card| card.turn(now).has_more);
        has_more |= !is_card_paused && self.network.has_events(CARD);
        for number in 0..self.hosts.len() {
            if !self.takes_turns(number) {
                continue;
            }
            self.losses += self.hosts[number].turn(now);
            while let Some((id, outcome)) = self.hosts[number].next_outcome() {
                let Some(op) = self.ops.remove(&id) else { continue };
                self.apply(op, &outcome.map(|answer| answer.data))?;
            }
            if let Some(error) = self.hosts[number].over() {
                let may_pass = match error {
                    Error::Unreachable(_) | Error::NotConnected(_) => true,
                    Error::Refused { status, .. } => !status.do_not_retry(),
                    _ => false,
                };
                if !may_pass {
                    return Err(Failure::new(format!("host {number} gave up: {error}")));
                }
                // Whose first attempt fails is told so, and tries again as another life.
                self.report.count("hosts turned away", 1);
                self.hosts[number] = self.new_host(number)?;
                let begin = self.rng.skewed(Duration::from_millis(1)..Duration::from_millis(200));
                self.paused_until[1 + number] = now + begin;
            }
            if self.hosts[number].is_ready() {
                self.come_ashore(number);
            }
            has_more |= self.network.has_events(NodeId(1 + number));
        }
        if has_more {
            return Ok(());
        }
        let card_due = match &self.card {
            Some(_) if is_card_paused => None,
            Some(card) => card.next_due(),
            None => Some(self.card_back_at),
        };
        let living = self.hosts.iter().enumerate();
        let living = living.filter(|(number, _)| self.takes_turns(*number));
        let hosts_due = living.filter_map(|(_, host)| host.next_due()).min();
        let goes_on = self.paused_until.iter().copied().filter(|at| *at > now).min();
        let others = [self.heal_at, self.unstick_at, goes_on];
        let due = [self.network.next_due(), card_due, hosts_due].into_iter().chain(others).flatten().min();
        let at = due.unwrap_or(now + Duration::from_millis(1)).max(now);
        // A little beyond, so that time goes on whatever is due now; and never far, since there is more to be asked.
        self.trace.clock().advance_to(at.min(now + self.stride) + Duration::from_nanos(1));
        Ok(())
    }

    /// A host connects once for each of its queues, and begins anew when one of them is turned away. That nobody gets on must not be bad luck.
    fn end_bad_luck(&mut self) {
        if self.progress.still() > STILL_MAX / 2 && !self.is_lucky {
            self.is_lucky = true;
            self.report.count("bad luck ended", 1);
            self.network.change_plan(|plan| {
                (plan.refuse, plan.exhausted) = (PerMillion::NEVER, PerMillion::NEVER);
            });
        }
    }

    /// Whether a host is neither gone nor stopped.
    fn takes_turns(&self, number: usize) -> bool {
        let is_gone = self.is_absent_dead && self.absent == Some(number);
        !is_gone && !self.is_paused(NodeId(1 + number))
    }

    fn issue(&mut self) {
        let number = self.rng.index(self.hosts.len());
        let waiting = self.ops.values().filter(|op| op.host == number).count();
        if waiting >= self.plan.window || self.rng.one_in(3) {
            return;
        }
        let block = self.rng.index(self.blocks.len());
        let blocks = (1 + self.rng.index(self.plan.request_blocks)).min(self.blocks.len() - block);
        let range = &self.blocks[block..block + blocks];
        let is_free = !range.iter().any(|block| block.is_written);
        let is_untouched = is_free && !range.iter().any(|block| block.readers > 0);
        let kind = match self.plan.sort(&mut self.rng) {
            Sort::Read if is_free => Kind::Read,
            sort @ (Sort::Write | Sort::Zero) if is_untouched => {
                self.stamps += 1;
                let stamp = if sort == Sort::Zero { 0 } else { self.stamps };
                Kind::Write { stamp, is_durable: self.rng.one_in(self.plan.durable_one_in) }
            }
            Sort::Discard if is_untouched => Kind::Discard,
            Sort::Flush => Kind::Flush(self.blocks.iter().map(Block::completed).collect()),
            _ => return,
        };
        let (block, blocks) = if matches!(kind, Kind::Flush(_)) { (0, 0) } else { (block, blocks) };
        self.begin(number, kind, block, blocks);
    }

    fn begin(&mut self, host: usize, kind: Kind, block: usize, blocks: usize) {
        let op = Op { host, kind, block, blocks, power_losses: self.power_losses };
        for block in &mut self.blocks[op.block..op.block + op.blocks] {
            match op.kind {
                Kind::Read => block.readers += 1,
                Kind::Write { stamp, .. } => block.begin(stamp),
                Kind::Discard => block.begin(0),
                Kind::Flush(_) => {}
            }
        }
        self.issued += 1;
        let (id, now, request) = (self.issued, self.now(), request(&op));
        self.trace.note("request", &[id, op.host as u64, op.block as u64, op.blocks as u64]);
        self.hosts[op.host].submit(now, id, request);
        self.ops.insert(id, op);
    }

    fn apply(&mut self, op: Op, outcome: &Result<Vec<u8>, Error>) -> Result<(), Failure> {
        let is_known = matches!(outcome, Ok(_) | Err(Error::Command { .. }));
        if is_known {
            self.progress.made();
        }
        self.report.count(
            if outcome.is_ok() {
                "answered"
            } else if is_known {
                "refused"
            } else {
                "lost"
            },
            1,
        );
        let is_of_this_life = op.power_losses == self.power_losses;
        if let (Kind::Flush(covers), Ok(_), true) = (&op.kind, outcome, is_of_this_life) {
            self.blocks.iter_mut().zip(covers).for_each(|(block, covered)| block.settle(*covered));
        }
        if !is_known && !matches!(op.kind, Kind::Read | Kind::Flush(_)) {
            // It may still be executed, as long as the association may live that it was sent on.
            self.adrift.push(op);
            return Ok(());
        }
        for index in op.block..op.block + op.blocks {
            let block = &mut self.blocks[index];
            match (&op.kind, outcome) {
                (Kind::Read, outcome) => {
                    block.readers -= 1;
                    if let (Ok(data), true) = (outcome, is_of_this_life) {
                        let at = (index - op.block) * BLOCK;
                        block.found(index, data.get(at..at + BLOCK).unwrap_or_default(), false)?;
                    }
                }
                (Kind::Write { stamp, is_durable }, Ok(_)) if *is_durable || is_of_this_life => {
                    block.written(*stamp, *is_durable);
                }
                (Kind::Write { stamp, .. }, _) => block.give_up(*stamp),
                (Kind::Discard, _) => block.discarded(),
                (Kind::Flush(_), _) => {}
            }
        }
        Ok(())
    }

    /// A host has a new association: what it left in the one before is over.
    fn come_ashore(&mut self, number: usize) {
        for op in self.adrift.extract_if(.., |op| op.host == number) {
            for block in &mut self.blocks[op.block..op.block + op.blocks] {
                match op.kind {
                    Kind::Write { stamp, .. } => block.give_up(stamp),
                    _ => block.discarded(),
                }
            }
        }
    }

    /// Whether somebody waits for an answer, or has to come back before one knows what became of a request.
    fn is_waited_for(&self) -> bool {
        !self.ops.is_empty() || !self.adrift.is_empty()
    }
}

/// Who waits for what.
fn describe(ops: &BTreeMap<u64, Op>, adrift: &[Op], hosts: &[Host], is_card_alive: bool) -> String {
    let card = if is_card_alive { "alive" } else { "dead" };
    let ready: Vec<bool> = hosts.iter().map(Host::is_ready).collect();
    let waits: Vec<String> =
        ops.values().map(|op| format!("host {} {:?} {}+{}", op.host, op.kind, op.block, op.blocks)).collect();
    let adrift = adrift.len();
    format!(
        "the card is {card}, hosts are ready {ready:?}, {adrift} writes are adrift, and there wait: {}",
        waits.join(", ")
    )
}

fn request(op: &Op) -> Request {
    let (block, blocks) = (op.block as u64, op.blocks as u32);
    let fields = |is_durable: bool| BlockCommand {
        force_unit_access: is_durable,
        ..BlockCommand::new(NamespaceId(1), block, blocks)
    };
    let plain = |opcode: IoOpcode, is_durable: bool| {
        fields(is_durable).encode(opcode, CommandId(0), DataPointer::None)
    };
    let (entry, data) = match op.kind {
        Kind::Read => (plain(IoOpcode::Read, false), Data::ToHost(blocks * BLOCK as u32)),
        Kind::Write { stamp: 0, is_durable } => {
            // Every other one may give its blocks back.
            let fields = BlockCommand { deallocate: op.block.is_multiple_of(2), ..fields(is_durable) };
            (fields.encode(IoOpcode::WriteZeroes, CommandId(0), DataPointer::None), Data::None)
        }
        Kind::Write { stamp, is_durable } => {
            let bytes = Block::content(stamp, op.block, op.blocks, BLOCK);
            (plain(IoOpcode::Write, is_durable), Data::ToController(bytes.into()))
        }
        Kind::Discard => {
            let ranges = DatasetManagement {
                namespace: NamespaceId(1),
                ranges: 1,
                deallocate: true,
                integral_write: false,
                integral_read: false,
            };
            let range = BlockRange { start: block, blocks }.encode();
            let bytes = zerocopy::IntoBytes::as_bytes(&range).to_vec();
            (ranges.encode(CommandId(0), DataPointer::None), Data::ToController(bytes.into()))
        }
        Kind::Flush(_) => {
            (SubmissionEntry::new(IoOpcode::Flush.code(), CommandId(0), NamespaceId(1)), Data::None)
        }
    };
    Request { queue: Queue::Io, entry, data, is_idempotent: true, may_be_short: false, expects: None }
}
