//! `outboard sim pushdown`: hosts have chains run on the card over files that change all the while.
//!
//! ```text
//!   tasks: ask, move a file,           Session ── SimNet ──▶ Target + Functions ─┬─▶ SimDisk (namespace: the hosts' files, by maps)
//!   withdraw a map, load, abort …  ──▶ (initiator)                               └─▶ LocalFiles ─▶ FilesService ─▶ SimDisk
//!      │                                                                                ▲
//!      └── every answer ──▶ model ◀── every state of every file ◀── writers ────────────┘
//! ```
//!
//! Every word of a file says whose it is and of when. A chain notes what it read, so an answer tells whether it is of one version of each
//! file, and whether these were there at one moment of the request. Of a client's own files it must be what is there when the client
//! believes it: blocks are another's as soon as a file has moved. Connections are lost, hosts die and come back, programs are replaced.
//! In the end everything is answered, nothing of the target's memory is lent, and of controllers that ended nothing is left.

mod asks;
mod crowd;
mod keepers;
mod leased;
mod mapped;
mod named;
mod node;
mod plan;
mod port;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use ob_core::{Clock, Device, Instant};
use ob_files_card::FilesService;
use ob_nvme::driver::TargetDriver;
use ob_nvme::initiator::{Error, Options, RetryPolicy};
use ob_nvme::target::Target;
use ob_nvme::target::control::{
    AddressFamily, BackendId, Control, ControlConfig, NamespaceSpec, PortKey, PortSpec, SubsystemSpec,
    TransportAddress,
};
use ob_pushdown::target::{FunctionLimits, Functions, Loader, NamedFiles, Shelf};
use ob_ring::CardService;
use ob_sim::{
    Death, Failure, Network, NodeId, PerMillion, Progress, Report, Rng, Scenario, SimDisk, SimNet, Trace,
};
use ob_wire_nvme::NamespaceId;
use ob_wire_nvme::pdu::Digests;
use ob_wire_nvme::text::Nqn;

use crate::files::SimDrive;
use crate::nvme::host::Host;
use asks::{Client, QUERIES_MAX, Shared};
use crowd::{Crowd, Role};
use keepers::Keepers;
use mapped::Space;
use named::{FOLDER, Named};
use node::NODE;
use plan::{Fault, Plan, Sort};
use port::Port;

const CARD: NodeId = NodeId(0);
const PORT: u16 = 4420;
const NQN: &str = "nqn.2026-11.io.outboard:sim";
const NAMESPACE: NamespaceId = NamespaceId(1);
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// Longer than the card gives a request.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(15);
/// How long nobody may be answered while somebody waits.
const STILL_MAX: Duration = Duration::from_secs(120);
/// By then everything of a host that is gone must be gone, too.
const GONE_AFTER: Duration = Duration::from_secs(60);
/// A run begins nothing more after so many turns for each of its steps: where hosts are cut off most of the time hardly anybody gets on, and more
/// of the same shows nothing new.
const TURNS_PER_STEP: u64 = 300;
/// Turns in which everything comes to rest, far more than that takes.
const LAST_TURNS_MAX: u64 = 1_000_000;

/// Storage functions, with all who use them.
#[derive(Clone, Debug, Default)]
pub struct PushdownScenario;

impl Scenario for PushdownScenario {
    fn name(&self) -> &'static str {
        "pushdown"
    }

    fn run(&mut self, seed: u64, steps: u64, trace: &mut Trace) -> Result<Report, Failure> {
        Run::new(seed, trace.clone())?.play(steps)
    }
}

/// The order in which things happen.
#[derive(Clone, Debug, Default)]
struct Ticks(Rc<Cell<u64>>);

impl Ticks {
    /// A number greater than all before.
    fn next(&self) -> u64 {
        self.0.set(self.0.get() + 1);
        self.0.get()
    }
}

type Card = TargetDriver<SimNet, Rc<RefCell<SimDisk>>, Functions>;

struct Run {
    plan: Plan,
    rng: Rng,
    trace: Trace,
    network: Network,
    card: Card,
    /// The namespace's.
    disk: Rc<RefCell<SimDisk>>,
    files: FilesService<SimDisk>,
    hosts: Vec<Host>,
    shared: Rc<Shared>,
    crowd: Rc<Crowd>,
    lives: u64,
    heal_at: Option<Instant>,
    paused_until: Vec<Instant>,
    begun: u64,
    turns: u64,
    /// No run has more.
    turns_max: u64,
    /// Who has moved in the last turn.
    moved: Vec<&'static str>,
    /// Nobody comes back any more.
    is_over: bool,
    progress: Progress,
}

impl Drop for Run {
    fn drop(&mut self) {
        self.crowd.scatter();
    }
}

impl Run {
    fn new(seed: u64, trace: Trace) -> Result<Self, Failure> {
        let rng = Rng::new(seed);
        let plan = Plan::draw(&mut rng.fork("plan"));
        let network = Network::new(plan.net.clone(), rng.fork("net"), trace.clone());
        let mut files_disk = SimDisk::new(plan.files_disk.clone(), rng.fork("files disk"), trace.clone());
        let files = mount(&plan, &mut files_disk, &trace)?;
        let files = FilesService::new(files, files_disk);
        let ticks = Ticks::default();
        let named = Named::new(files.local(), plan.names, ticks.clone());
        let clients = (0..plan.hosts).map(|number| {
            let from = number as u64 * plan.region;
            let exchange_max = plan.exchanges.then_some(8192);
            let port = Port::new(32 << 10, exchange_max);
            Client::new(port, plan.files, Space::new(from..from + plan.region))
        });
        let shared = Rc::new(Shared {
            named: RefCell::new(named),
            report: RefCell::default(),
            ticks,
            hosts: clients.collect(),
            queues: plan.queues,
            leasing: plan.leasing,
            abandon_one_in: plan.abandon_one_in,
        });
        let disk = SimDisk::new(plan.disk.clone(), rng.fork("disk"), trace.clone());
        let disk = Rc::new(RefCell::new(disk));
        let card = new_card(&plan, &network, &files, &disk, rng.fork("numbers"))?;
        let (clock, turns) = (trace.clock().clone(), rng.fork("turns"));
        let crowd = Crowd::gather(turns, clock, plan.seam_one_in, plan.keeper_one_in);
        let progress = Progress::new(trace.clock().clone(), STILL_MAX);
        let mut run = Self {
            rng: rng.fork("run"),
            trace,
            network,
            card,
            disk,
            files,
            hosts: Vec::new(),
            shared,
            crowd,
            lives: 0,
            heal_at: None,
            paused_until: vec![Instant::default(); 1 + plan.hosts],
            begun: 0,
            turns: 0,
            turns_max: u64::MAX,
            moved: Vec::new(),
            is_over: false,
            progress,
            plan,
        };
        for number in 0..run.plan.hosts {
            let host = run.new_host(number)?;
            run.hosts.push(host);
            let (shared, crowd) = (Rc::clone(&run.shared), Rc::clone(&run.crowd));
            let is_kept = run.plan.keepers == Keepers::Always;
            let session = async move {
                Rc::clone(&shared).begin_session(number).await?;
                if is_kept { shared.start_keeper(&crowd, number).await } else { Ok(()) }
            };
            run.crowd.join(number, Role::Task, Box::pin(session));
        }
        Ok(run)
    }

    fn now(&self) -> Instant {
        self.trace.clock().now()
    }

    fn new_host(&mut self, number: usize) -> Result<Host, Failure> {
        self.lives += 1;
        // The last one is another controller of the first host.
        let who = if number + 1 == self.plan.hosts && number > 1 { 0 } else { number };
        let options = Options::new(Network::address(CARD, PORT), NQN, [1 + who as u8; 16])
            .map_err(|error| Failure::new(format!("no such name: {error}")))?;
        let options = Options {
            queues: self.plan.queues,
            depth: self.plan.depth,
            digests: Digests::from_bits(self.rng.below(4) as u8),
            keep_alive: KEEP_ALIVE,
            command_timeout: COMMAND_TIMEOUT,
            retry: RetryPolicy { attempts_max: self.plan.attempts_max, ..RetryPolicy::default() },
            ..options
        };
        let rng = self.rng.fork_numbered("host", self.lives);
        Ok(Host::new(self.network.attach(NodeId(1 + number)), options, rng, self.now()))
    }

    fn play(mut self, steps: u64) -> Result<Report, Failure> {
        let turns_max = steps.saturating_mul(TURNS_PER_STEP);
        self.turns_max = turns_max.saturating_add(LAST_TURNS_MAX);
        while self.begun < steps && self.turns < turns_max {
            self.begin_something();
            self.disturb()?;
            self.turn()?;
        }
        self.finish()?;
        let counts = self.card.service().counts();
        let stats = self.network.stats();
        let mut report = self.shared.report.borrow().clone();
        for (what, times) in [
            ("reads", counts.reads),
            ("requests that ended as changed", counts.changed),
            ("requests of hosts that were gone", counts.gone),
            ("connections reset", stats.resets),
            ("waits for buffers", self.card.target().counts().waits_for_buffer),
        ] {
            report.count(what, times);
        }
        report.count("tasks", self.begun);
        report.count("turns", self.turns);
        report.count("runs that hardly got on", u64::from(self.begun < steps));
        Ok(report)
    }

    /// Has a host do something, and the card's files changed.
    fn begin_something(&mut self) {
        if self.rng.one_in(self.plan.change_one_in) {
            let mut report = self.shared.report.borrow_mut();
            self.shared.named.borrow_mut().change(&mut self.rng, &mut report);
        }
        let number = self.rng.index(self.hosts.len());
        if self.crowd.busy().iter().filter(|of| **of == number).count() >= self.plan.window {
            return;
        }
        self.begun += 1;
        let (shared, rng) = (Rc::clone(&self.shared), self.rng.fork_numbered("task", self.begun));
        let sort = self.plan.sort(&mut self.rng);
        self.trace.note("task", &[self.begun, number as u64, sort as u64]);
        let other = self.rng.index(self.hosts.len());
        let crowd = Rc::clone(&self.crowd);
        let role = if sort == Sort::Rewrite { Role::Writer } else { Role::Task };
        let task: crowd::Task = match sort {
            Sort::Ask => Box::pin(async move { shared.ask(number, rng).await.map(|_| ()) }),
            Sort::Rewrite => Box::pin(shared.rewrite(number, other, rng)),
            Sort::Withdraw => Box::pin(shared.withdraw(number, other, rng)),
            Sort::Administer => Box::pin(shared.administer(number, rng)),
            Sort::Nonsense => Box::pin(shared.say_nonsense(number, rng)),
            Sort::Abort => Box::pin(shared.abort(number, rng)),
            Sort::ChangeKeeper if self.plan.keepers != Keepers::Sometimes => return,
            Sort::ChangeKeeper => Box::pin(shared.change_keeper(crowd, number, rng)),
            Sort::EndSession => Box::pin(shared.end_session(crowd, number, rng)),
        };
        self.crowd.join(number, role, task);
    }

    /// Now and then something goes wrong, and what went wrong before is over.
    fn disturb(&mut self) -> Result<(), Failure> {
        if !self.rng.one_in(self.plan.fault_one_in) || self.progress.still() > Duration::from_secs(30) {
            return Ok(());
        }
        let number = self.rng.index(self.hosts.len());
        let node = NodeId(1 + number);
        match self.plan.fault(&mut self.rng) {
            Some(Fault::Reset) => {
                self.shared.count("resets");
                self.network.reset_between(node, CARD);
            }
            Some(Fault::Cut) if self.heal_at.is_none() => {
                self.shared.count("cuts");
                self.network.cut_both(node, CARD);
                self.heal_at = Some(self.now() + Duration::from_millis(self.rng.range(1..4000)));
            }
            Some(Fault::HostDies) => {
                self.shared.count("hosts killed");
                let how = if self.rng.one_in(2) { Death::Process } else { Death::Power };
                self.network.kill(node, how);
                self.shared.hosts[number].port.broken();
                self.hosts[number] = self.new_host(number)?;
            }
            Some(Fault::Pause) => {
                let node = self.rng.index(self.hosts.len() + 1);
                let pause = self.rng.skewed(Duration::from_millis(1)..Duration::from_secs(3));
                self.shared.count("pauses");
                self.paused_until[node] = self.now() + pause;
            }
            Some(Fault::CardDies) => self.kill_card()?,
            Some(Fault::Cut) | None => {}
        }
        Ok(())
    }

    /// The card's target dies, and comes back without what it knew. (Its files go on; they have a scenario of their own.)
    fn kill_card(&mut self) -> Result<(), Failure> {
        self.shared.count("cards killed");
        self.lives += 1;
        self.network.kill(CARD, Death::Process);
        self.disk.borrow_mut().lose_process();
        let numbers = self.rng.fork_numbered("numbers", self.lives);
        self.card = new_card(&self.plan, &self.network, &self.files, &self.disk, numbers)?;
        self.paused_until[CARD.0] = self.now() + Duration::from_millis(self.rng.range(1..1000));
        Ok(())
    }

    fn is_paused(&self, node: NodeId) -> bool {
        self.now() < self.paused_until[node.0]
    }

    /// Lets everybody do what can be done, and time go on to when something is due. Fails if nobody gets on.
    fn turn(&mut self) -> Result<(), Failure> {
        let now = self.now();
        if self.heal_at.is_some_and(|at| at <= now) {
            self.heal_at = None;
            self.network.heal_all();
        }
        if !self.crowd.is_busy() {
            self.progress.made();
        }
        self.turns += 1;
        if self.turns > self.turns_max {
            let waiting = describe(&self.crowd.busy(), &self.hosts, &self.shared, &self.moved);
            return Err(Failure::new(format!(
                "it has not come to an end in {} turns; {waiting}",
                self.turns_max
            )));
        }
        let Self { progress, crowd, hosts, shared, moved, .. } = self;
        progress.check(|| describe(&crowd.busy(), hosts, shared, moved))?;
        let mut moved =
            [("tasks", self.turn_tasks()?), ("writers", self.shared.named.borrow_mut().turn()?)].to_vec();
        for number in 0..self.hosts.len() {
            moved.push(("a host", self.turn_host(number)?));
        }
        if !self.is_paused(CARD) {
            moved.push(("the files", self.files.poll(now)));
            moved.push(("the target", self.card.turn(now).has_more));
            moved.push(("the files", self.files.poll(now)));
            moved.push(("the card's network", self.network.has_events(CARD)));
        }
        self.moved = moved.into_iter().filter(|(_, moved)| *moved).map(|(who, _)| who).collect();
        if !self.moved.is_empty() {
            return Ok(());
        }
        let card_due = [self.card.next_due(), self.files.device().next_due()];
        let card_due = card_due.into_iter().flatten().min().filter(|_| !self.is_paused(CARD));
        let hosts_due =
            self.hosts.iter().enumerate().filter(|(number, _)| !self.is_paused(NodeId(1 + number)));
        let hosts_due = hosts_due.filter_map(|(_, host)| host.next_due()).min().filter(|_| !self.is_over);
        let goes_on = self.paused_until.iter().copied().filter(|at| *at > now).min();
        let due = [self.network.next_due(), card_due, hosts_due, self.heal_at, goes_on];
        // What is overdue nobody takes, because it is for somebody who is stopped: it says nothing about the others.
        let is_overdue = due.iter().flatten().any(|at| *at <= now);
        let stride = if is_overdue { Duration::from_micros(50) } else { Duration::from_millis(5) };
        let at = due.into_iter().flatten().filter(|at| *at > now).min().unwrap_or(now + stride);
        self.trace.clock().advance_to(at.min(now + stride) + Duration::from_nanos(1));
        Ok(())
    }

    /// Has tasks go on; whether any is over.
    fn turn_tasks(&mut self) -> Result<bool, Failure> {
        let over = self.crowd.turn()?;
        if over > 0 {
            self.progress.made();
        }
        Ok(over > 0)
    }

    fn turn_host(&mut self, number: usize) -> Result<bool, Failure> {
        let (node, now) = (NodeId(1 + number), self.now());
        if self.is_paused(node) || self.is_over {
            return Ok(false);
        }
        let port = self.shared.hosts[number].port.clone();
        let mut did = false;
        while let Some((id, request)) = port.next_out() {
            did = true;
            self.hosts[number].submit(now, id, request);
        }
        self.hosts[number].turn(now);
        while let Some((id, outcome)) = self.hosts[number].next_outcome() {
            did = true;
            port.answered(id, outcome);
        }
        self.shared.judge_late(number)?;
        if let Some(error) = self.hosts[number].over() {
            let may_pass = match error {
                Error::Unreachable(_) | Error::NotConnected(_) => true,
                Error::Refused { status, .. } => !status.do_not_retry(),
                _ => false,
            };
            if !may_pass {
                return Err(Failure::new(format!("host {number} gave up: {error}")));
            }
            port.broken();
            self.hosts[number] = self.new_host(number)?;
            self.paused_until[node.0] =
                now + self.rng.skewed(Duration::from_millis(1)..Duration::from_millis(200));
        }
        Ok(did || self.network.has_events(node))
    }

    /// Everything comes to rest; then everybody is answered, and when all are gone nothing of them is left.
    fn finish(&mut self) -> Result<(), Failure> {
        self.network.heal_all();
        self.network.change_plan(|plan| {
            (plan.reset, plan.refuse, plan.exhausted) =
                (PerMillion::NEVER, PerMillion::NEVER, PerMillion::NEVER);
        });
        self.heal_at = None;
        self.paused_until.fill(Instant::default());
        self.shared.named.borrow_mut().mend();
        self.settle(|_| true)?;
        self.settle(|run| run.shared.named.borrow().is_quiet() && run.hosts.iter().all(Host::is_ready))?;
        for number in 0..self.hosts.len() {
            for which in 0..self.plan.files {
                let rewrite = Rc::clone(&self.shared).rewrite(number, which, self.rng.fork("last"));
                self.crowd.join(number, Role::Writer, Box::pin(rewrite));
                self.settle(|_| true)?;
            }
            let (shared, crowd, keepers) =
                (Rc::clone(&self.shared), Rc::clone(&self.crowd), self.plan.keepers);
            let last = async move {
                // Others than those that have left find what was left to them.
                if keepers == Keepers::Sometimes {
                    shared.start_keeper(&crowd, number).await?;
                }
                Rc::clone(&shared).ask_all(number).await?;
                shared.have_keeper_leave(number).await;
                Ok(())
            };
            self.crowd.join(number, Role::Task, Box::pin(last));
            self.settle(|_| true)?;
        }
        self.settle(|run| run.card.target().memory_used() == 0 && run.card.service().counts().running == 0)?;
        self.check_kept()?;
        for number in 0..self.hosts.len() {
            self.network.kill(NodeId(1 + number), Death::Process);
        }
        self.is_over = true;
        let until = self.now() + GONE_AFTER;
        while !self.is_nothing_left() {
            if self.now() >= until {
                let counts = self.card.service().counts();
                return Err(Failure::new(format!("all hosts are gone, and there is left: {counts:?}")));
            }
            self.turn()?;
        }
        Ok(())
    }

    /// Whether the card has nothing of any host.
    fn is_nothing_left(&self) -> bool {
        let (counts, target) = (self.card.service().counts(), self.card.target());
        let left = [counts.running, counts.files, counts.plans, target.memory_used() as u64];
        left == [0; 4] && target.control().controllers() == 0
    }

    /// Sessions have no more at the card than they still use, and what they are about to give back.
    fn check_kept(&self) -> Result<(), Failure> {
        let counts = self.card.service().counts();
        let hosts = self.hosts.len() as u64;
        let queries = QUERIES_MAX as u64 + (self.plan.names + self.plan.files) as u64;
        // Who gives a request up does not hear what it has opened. Who has been idle for long makes room for others.
        let given_up = self.shared.report.borrow().get("requests given up");
        let (files, plans) = (hosts * 3 * (queries + 2) + given_up, hosts * (queries + 2) + given_up);
        if counts.files > files || counts.plans > plans {
            return Err(Failure::new(format!("sessions leave behind what they do not use: {counts:?}")));
        }
        Ok(())
    }

    /// Until all tasks are over, and this holds.
    fn settle(&mut self, holds: impl Fn(&Self) -> bool) -> Result<(), Failure> {
        self.progress.made();
        let mut progress = Progress::new(self.trace.clock().clone(), STILL_MAX);
        while self.crowd.is_busy() || !holds(self) {
            let counts = self.card.service().counts();
            progress.check(|| format!("it does not come to rest: {counts:?}"))?;
            self.turn()?;
        }
        Ok(())
    }
}

fn describe(tasks: &[usize], hosts: &[Host], shared: &Shared, moved: &[&str]) -> String {
    let mut waiting: BTreeMap<usize, usize> = BTreeMap::new();
    for number in tasks {
        *waiting.entry(*number).or_default() += 1;
    }
    let ready: Vec<bool> = hosts.iter().map(Host::is_ready).collect();
    let commands: Vec<usize> = shared.hosts.iter().map(|host| host.port.waiting()).collect();
    format!(
        "tasks {waiting:?}, hosts are ready {ready:?}, and wait for {commands:?} commands; \
         those have moved: {moved:?}"
    )
}

fn mount(plan: &Plan, disk: &mut SimDisk, trace: &Trace) -> Result<ob_files_card::CardFiles, Failure> {
    let failed = |what: String| Failure::new(format!("the card's files: {what}"));
    let mut drive = SimDrive::new(disk, trace.clock().clone(), None);
    ob_files_card::format(&mut drive, &plan.format, [3; 16]).map_err(|error| failed(error.to_string()))?;
    ob_files_card::mount(&mut drive, &plan.options).map_err(|error| failed(error.to_string()))
}

fn new_card(
    plan: &Plan,
    network: &Network,
    files: &FilesService<SimDisk>,
    disk: &Rc<RefCell<SimDisk>>,
    mut random: Rng,
) -> Result<Card, Failure> {
    let failed = |what: &dyn std::fmt::Display| Failure::new(format!("the card does not begin: {what}"));
    let mut control = Control::new(ControlConfig::default());
    let address =
        TransportAddress { family: AddressFamily::Ipv4, address: "10.0.0.0".to_owned(), service: PORT };
    let port = PortSpec { port: PortKey(1), address, discovery_only: false };
    control.add_port(port).map_err(|error| failed(&error))?;
    let nqn = Nqn::new(NQN).map_err(|error| failed(&error))?;
    let subsystem = control.add_subsystem(SubsystemSpec::open(nqn, "SIM")).map_err(|error| failed(&error))?;
    let namespace = NamespaceSpec {
        nsid: Some(NAMESPACE.0),
        backing: BackendId(0).into(),
        blocks: plan.disk.capacity / NODE,
        block_len: NODE as u32,
        uuid: [7; 16],
        nguid: [0; 16],
        volatile_cache: plan.disk.volatile_cache,
        deallocated_reads_zero: false,
        deallocate_len: 0,
        ana_group: 1,
        read_only: false,
    };
    control.add_namespace(subsystem, &namespace).map_err(|error| failed(&error))?;
    let named = NamedFiles {
        files: files.local(),
        folders: [(subsystem, FOLDER.as_bytes().to_vec())].into_iter().collect(),
    };
    let functions = Functions::new(
        FunctionLimits::default(),
        Shelf::default(),
        Loader::Inline,
        Some(named),
        move |bytes| random.fill(bytes),
    );
    let target = Target::new(plan.target.clone(), control);
    let mut card = TargetDriver::with_service(network.attach(CARD), Rc::clone(disk), target, functions);
    card.listen(Network::address(CARD, PORT), PortKey(1)).map_err(|error| failed(&error))?;
    Ok(card)
}
