//! `outboard sim files`: hosts use the card's files until the card dies, again and again.
//!
//! ```text
//!   hosts ── rings ──▶ FilesService ──▶ SimDisk ──┐ power lost, or the process alone
//!     │                    ▲                      │
//!     ▼                    └── mount ◀── check ◀──┘
//!   model ◀───────── audit: names, sizes, space, every byte
//! ```
//!
//! A life of the card is: check the device (nothing may be wrong with it), mount it, look at everything and compare it with
//! what may be there, then serve requests of several hosts at once, and die in the midst of them. Between deaths
//! there are pauses in which nothing is on its way, and everything must be exactly as the model has it. Somebody within the
//! card reads all the while, and reads of one version of a file must agree with each other.

mod card;
mod chains;
mod generate;
mod host;
mod hostile;
mod inspect;
mod model;
mod plan;

use std::time::Duration;

use ob_core::{Clock, Device, DeviceError};
use ob_files_card::{CheckReport, FilesService, MountError};
use ob_sim::{Failure, Report, Rng, Scenario, SimDisk, Trace};
use ob_wire_link::files::{CardInfo, Operation, RequestHeader, VERSION};

use card::Card;
pub(crate) use card::SimDrive;
use generate::{Draft, Generator, Intent, Limits};
use host::{Host, Rings, Waiting, Wire, header};
use model::{Answer, Asked, Crash, Model, Shape, What};
use plan::Plan;

/// No request may take longer, in virtual time.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// Turns in which nothing moves, with requests on their way, before that is a failure.
const STANDSTILL_TURNS: u32 = 400;

/// Files on a card that dies.
#[derive(Clone, Debug, Default)]
pub struct FilesScenario;

impl Scenario for FilesScenario {
    fn name(&self) -> &'static str {
        "files"
    }

    fn run(&mut self, seed: u64, steps: u64, trace: &mut Trace) -> Result<Report, Failure> {
        Run::new(seed, steps, trace.clone()).play()
    }
}

/// What ended something early.
enum Stop {
    Failed(Failure),
    /// The card died, and the run has taken note.
    Died,
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

struct Run {
    steps: u64,
    /// Requests of the work, without those that look at what came of it.
    sent: u64,
    rng: Rng,
    trace: Trace,
    plan: Plan,
    /// Here while the card is dead.
    disk: Option<SimDisk>,
    card: Option<Card>,
    hosts: Vec<Host>,
    model: Model,
    /// The worst that happened since the card last lived.
    crash: Option<Crash>,
    /// What the check before this life said.
    checked: CheckReport,
    /// Turns in which nothing moved.
    still: u32,
    /// The card may die at any moment of this life: one chance in so many.
    dies_one_in: Option<u64>,
    /// It dies after so many turns: often soon after something that is not durable yet.
    dies_in: Option<u64>,
    /// The one answer that is waited for, by host and id, and the answer when it is there.
    wanted: Option<(usize, u64)>,
    wanted_answer: Option<Answer>,
    report: Report,
}

impl Run {
    fn new(seed: u64, steps: u64, trace: Trace) -> Self {
        let mut rng = Rng::new(seed);
        let plan = Plan::draw(&mut rng);
        let disk = SimDisk::new(plan.disk.clone(), rng.fork("disk"), trace.clone());
        let shape = Shape {
            block_len: u64::from(plan.disk.block_len),
            segment_len: plan.segment_len,
            segments: 0,
            log_live_max: 0,
        };
        Self {
            steps,
            sent: 0,
            rng: rng.fork("run"),
            trace,
            model: Model::new(shape, plan.errors),
            plan,
            disk: Some(disk),
            card: None,
            hosts: Vec::new(),
            crash: None,
            checked: CheckReport::default(),
            still: 0,
            dies_one_in: None,
            dies_in: None,
            wanted: None,
            wanted_answer: None,
            report: Report::default(),
        }
    }

    fn play(mut self) -> Result<Report, Failure> {
        self.format()?;
        while self.sent < self.steps {
            match self.life() {
                Ok(()) => self.die()?,
                Err(Stop::Died) => {}
                Err(Stop::Failed(failure)) => return Err(failure),
            }
        }
        // Whatever happened last, one look more.
        self.dies_one_in = None;
        match self.begin().and_then(|()| self.inspect(true)) {
            Ok(()) => {}
            Err(Stop::Died) => return Err(Failure::new("the card died and nobody killed it")),
            Err(Stop::Failed(failure)) => return Err(failure),
        }
        self.collect();
        self.collect_disk();
        Ok(self.report)
    }

    fn format(&mut self) -> Result<(), Failure> {
        let Some(disk) = &mut self.disk else { return Ok(()) };
        let mut uuid = [0; 16];
        self.rng.fill(&mut uuid);
        let mut drive = SimDrive::new(disk, self.trace.clock().clone(), None);
        let superblock = ob_files_card::format(&mut drive, &self.plan.format, uuid);
        let superblock = superblock.map_err(|error| Failure::new(format!("not formatted: {error}")))?;
        let geometry = superblock.geometry;
        let shape = Shape {
            block_len: u64::from(geometry.block_len),
            segment_len: geometry.segment_len,
            segments: u64::from(geometry.data_segments),
            log_live_max: u64::from((geometry.log_sections - 3) / 2) * u64::from(geometry.section_len) / 4
                * 3,
        };
        self.model = Model::new(shape, self.plan.errors);
        Ok(())
    }

    /// One life of the card, up to where it shall die.
    fn life(&mut self) -> Result<(), Stop> {
        self.begin()?;
        // Sooner or later, or not before it is told to.
        self.dies_one_in = match self.rng.below(4) {
            0 => None,
            1 => Some(300),
            2 => Some(3_000),
            _ => Some(20_000),
        };
        self.inspect(true)?;
        let errors = self.plan.errors && self.rng.one_in(2);
        if let (true, Some(card)) = (errors, &mut self.card) {
            self.report.count("lives with device errors", 1);
            card.service.device().change_plan(|plan| plan::add_errors(plan, &mut self.rng));
        }
        for _ in 0..1 + self.rng.below(4) {
            let most = *self.rng.choose(&[10, 100, 400]).unwrap_or(&100);
            let requests = 1 + self.rng.below(most);
            self.work(requests)?;
            if self.model.frozen {
                self.report.count("read-only lives", 1);
                return Ok(());
            }
            if self.rng.one_in(3) {
                return Ok(());
            }
            self.pause(errors)?;
            if self.model.frozen {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Lets everything come to rest and looks at it; now and then a host dies first.
    fn pause(&mut self, errors: bool) -> Result<(), Stop> {
        let mut orphans = Vec::new();
        if self.rng.one_in(4) {
            orphans = self.host_dies()?;
        }
        self.drain()?;
        for asked in &orphans {
            self.model.orphaned(asked);
        }
        // Whoever was told that nothing can be changed any more may be dead.
        self.model.frozen |= self.card.as_ref().is_some_and(|card| card.service.files().is_frozen());
        if self.model.frozen {
            return Ok(());
        }
        if let (true, Some(card)) = (errors, &mut self.card) {
            card.service.device().change_plan(plan::remove_errors);
        }
        self.inspect(false)?;
        if let (true, Some(card)) = (errors, &mut self.card) {
            card.service.device().change_plan(|plan| plan::add_errors(plan, &mut self.rng));
        }
        Ok(())
    }

    /// A host's process dies: what it asked for is not answered, and may happen all the same. Another one comes.
    fn host_dies(&mut self) -> Result<Vec<Asked>, Stop> {
        self.report.count("host deaths", 1);
        let index = self.rng.index(self.hosts.len());
        // What is in its ring already, it has seen.
        self.take_answers(index, usize::MAX)?;
        let group = self.hosts[index].group;
        if let Some(card) = &mut self.card {
            card.close(group);
        }
        let orphans = std::mem::take(&mut self.hosts[index].waiting).into_values();
        let orphans: Vec<Asked> = orphans.map(|waiting| waiting.asked).collect();
        self.trace.note("host dies", &[index as u64, orphans.len() as u64]);
        self.hosts[index] = self.open_host()?;
        self.greet(index)?;
        Ok(orphans)
    }

    /// The card starts: the device is checked and mounted, and hosts attach.
    fn begin(&mut self) -> Result<(), Stop> {
        let service = loop {
            if let Some(service) = self.mount()? {
                break service;
            }
        };
        self.card = Some(Card::new(service));
        if let Some(crash) = self.crash.take() {
            self.model.crashed(crash);
        }
        self.report.count("lives", 1);
        self.hosts.clear();
        self.still = 0;
        for index in 0..self.plan.hosts {
            let host = self.open_host()?;
            self.hosts.push(host);
            self.greet(index)?;
        }
        Ok(())
    }

    /// Checks and mounts; none if the card died over it.
    fn mount(&mut self) -> Result<Option<FilesService<SimDisk>>, Failure> {
        let Some(mut disk) = self.disk.take() else { return Err(Failure::new("there is no disk to mount")) };
        disk.change_plan(plan::remove_errors);
        let clock = self.trace.clock().clone();
        let checked =
            ob_files_card::check(&mut SimDrive::new(&mut disk, clock.clone(), None), &mut |_, _| {});
        self.checked = checked.map_err(|error| Failure::new(format!("not checked: {error}")))?;
        if !self.checked.findings.is_empty() || !self.checked.superblocks.is_empty() {
            return Err(Failure::new(format!("a check found {:?}", self.checked)));
        }
        let left = self.rng.one_in(6).then(|| self.rng.below(16) as u32);
        let errors = self.plan.errors && self.rng.one_in(3);
        if errors {
            disk.change_plan(|plan| plan::add_errors(plan, &mut self.rng));
        }
        let mounted = ob_files_card::mount(&mut SimDrive::new(&mut disk, clock, left), &self.plan.options);
        match mounted {
            Ok(files) => {
                disk.change_plan(plan::remove_errors);
                Ok(Some(FilesService::new(files, disk)))
            }
            Err(MountError::Device(DeviceError::Io)) if errors => {
                self.report.count("mounts failed", 1);
                self.disk = Some(disk);
                self.lose();
                Ok(None)
            }
            Err(MountError::Device(DeviceError::Gone)) if left.is_some() => {
                self.report.count("deaths while mounting", 1);
                self.disk = Some(disk);
                self.lose();
                Ok(None)
            }
            Err(error) => Err(Failure::new(format!("not mounted: {error}"))),
        }
    }

    fn open_host(&mut self) -> Result<Host, Failure> {
        let capacity = |rng: &mut Rng| (32 << 10) << rng.below(4);
        let (request, response) = (capacity(&mut self.rng), capacity(&mut self.rng));
        let rings = Rings::new(request, response).map_err(|error| Failure::new(error.to_string()))?;
        let Some(card) = &mut self.card else { return Err(Failure::new("there is no card")) };
        let group = card.open(&rings)?;
        Ok(Host::new(group, &rings))
    }

    /// The first request of a group.
    fn greet(&mut self, index: usize) -> Result<(), Stop> {
        if self.rng.one_in(4) {
            let refusals = &[ob_wire_link::files::FileError::Unsupported];
            let early = generate::plain(Operation::Space, What::Hostile { refusals });
            self.call(index, early)?;
        }
        let hello =
            RequestHeader { offset: u64::from(VERSION), ..header(Operation::Hello, ob_core::NodeId(0)) };
        let draft = Draft { wire: Wire::of(&hello, &[]), intent: Intent::Other(What::Nothing) };
        let answer = self.call(index, draft)?;
        let Some(info) = CardInfo::decode(&answer.more).filter(|_| answer.status.is_ok()) else {
            return Err(Failure::new(format!("HELLO was answered with {answer:?}")).into());
        };
        self.hosts[index].transfer_max = info.transfer_max;
        Ok(())
    }

    /// Hosts send requests at once.
    fn work(&mut self, requests: u64) -> Result<(), Stop> {
        let until = self.sent + requests;
        let mut tries = 0;
        while self.sent < until && tries < 50 * requests && !self.model.frozen {
            tries += 1;
            self.step(true)?;
        }
        Ok(())
    }

    /// Waits until nothing is on its way any more.
    fn drain(&mut self) -> Result<(), Stop> {
        while !self.is_quiet() {
            self.step(false)?;
        }
        Ok(())
    }

    fn is_quiet(&self) -> bool {
        let waiting = self.hosts.iter().any(|host| !host.waiting.is_empty());
        !waiting && self.card.as_ref().is_some_and(|card| card.service.is_idle())
    }

    /// Sends a request and waits for its answer, while nobody else sends any.
    fn call(&mut self, index: usize, draft: Draft) -> Result<Answer, Stop> {
        let mut draft = draft;
        let id = loop {
            match self.send(index, draft)? {
                Ok(id) => break id,
                Err(back) => draft = back,
            }
            self.step(false)?;
        };
        (self.wanted, self.wanted_answer) = (Some((index, id)), None);
        loop {
            if let Some(answer) = self.wanted_answer.take() {
                return Ok(answer);
            }
            self.step(false)?;
        }
    }

    /// Puts a request into a host's ring, and tells the model; gives it back if there is no room.
    fn send(&mut self, index: usize, draft: Draft) -> Result<Result<u64, Draft>, Failure> {
        let Draft { mut wire, intent } = draft;
        let host = &mut self.hosts[index];
        let short = wire.inline.len() < ob_wire_link::files::REQUEST_LEN;
        let pushed = if short && host.waiting.contains_key(&0) { None } else { host.push(&mut wire)? };
        let Some(id) = pushed else { return Ok(Err(Draft { wire, intent })) };
        let asked = match intent {
            Intent::Read { key, offset, len } => self.model.ask_read(key, offset, len),
            Intent::Write { key, offset, len, durable } => self.model.ask_write(key, offset, len, durable),
            Intent::Resize { key, size } => self.model.ask_resize(key, size),
            Intent::Zero { key, offset, len } => self.model.ask_zero(key, offset, len),
            Intent::Name(op) => {
                let asked = self.model.ask_name(&op);
                asked.ok_or_else(|| Failure::new("a request about names was sent too early"))?
            }
            Intent::Other(what) => self.model.ask(what),
        };
        let (name, [first, second, third, fourth]) = asked.what.in_short();
        self.trace.note(name, &[index as u64, id, first, second, third, fourth]);
        let what = asked.what.clone();
        host.waiting.insert(id, Waiting { asked, since: self.trace.clock().now() });
        self.maybe_die_soon(&what, 30);
        Ok(Ok(id))
    }

    /// Lets somebody take a turn: a host, or the card. Time goes on, to the disk's next event if nothing else moves.
    fn step(&mut self, sending: bool) -> Result<(), Stop> {
        self.dies_in = self.dies_in.map(|turns| turns.saturating_sub(1));
        if self.dies_in == Some(0) || self.dies_one_in.is_some_and(|chance| self.rng.one_in(chance)) {
            self.die()?;
            return Err(Stop::Died);
        }
        let clock = self.trace.clock().clone();
        clock.advance_to(clock.now() + self.rng.skewed(Duration::ZERO..Duration::from_micros(3)));
        let moved = if self.rng.one_in(2) {
            match &mut self.card {
                Some(card) => card.turn(&clock)?,
                None => false,
            }
        } else {
            let index = self.rng.index(self.hosts.len());
            self.host_turn(index, sending)?
        };
        if moved {
            self.still = 0;
            return Ok(());
        }
        self.still += 1;
        let due = self.card.as_mut().and_then(|card| card.service.device().next_due());
        if let Some(due) = due.filter(|_| self.still > 2 * self.hosts.len() as u32) {
            clock.advance_to(due);
        }
        self.judge_standstill()
    }

    fn judge_standstill(&self) -> Result<(), Stop> {
        let oldest =
            self.hosts.iter().flat_map(|host| host.waiting.values()).min_by_key(|waiting| waiting.since);
        let Some(oldest) = oldest else {
            if self.still <= STANDSTILL_TURNS || self.is_quiet() {
                return Ok(());
            }
            return Err(Failure::new("every request is answered, and the card does not come to rest").into());
        };
        let age = self.trace.clock().now().since(oldest.since);
        if self.still > STANDSTILL_TURNS || age > ANSWER_WITHIN {
            let waiting: Vec<_> =
                self.hosts.iter().flat_map(|host| host.waiting.values()).map(|one| &one.asked.what).collect();
            let text = format!("no answer for {age:?}, nothing moves; on their way: {waiting:?}");
            return Err(Failure::new(text).into());
        }
        Ok(())
    }

    fn host_turn(&mut self, index: usize, sending: bool) -> Result<bool, Failure> {
        let most = 1 + self.rng.index(4);
        let mut moved = self.take_answers(index, most)? > 0;
        if let (true, Some(card)) = (sending, &mut self.card) {
            card.chains.turn(&mut self.rng, &self.model, self.plan.span)?;
        }
        if sending && self.hosts[index].waiting.len() < self.plan.window {
            let host = &self.hosts[index];
            let limits = Limits {
                transfer_max: host.transfer_max,
                write_max: host.write_max(),
                inline_max: host.inline_max(),
            };
            let (rng, model, plan) = (&mut self.rng, &self.model, &self.plan);
            let draft = Generator { rng, model, plan, limits }.draw();
            if let Some(draft) = draft {
                match self.send(index, draft)? {
                    Ok(_) => {
                        self.sent += 1;
                        moved = true;
                    }
                    Err(_) => self.report.count("rings full", 1),
                }
            }
        }
        Ok(moved)
    }

    /// Takes answers out of a host's ring, and has them judged; how many.
    fn take_answers(&mut self, index: usize, most: usize) -> Result<usize, Failure> {
        let mut taken = 0;
        while taken < most
            && let Some((id, answer)) = self.hosts[index].receive()?
        {
            taken += 1;
            let Some(waiting) = self.hosts[index].waiting.remove(&id) else {
                return Err(Failure::new(format!(
                    "host {index} got an answer to {id}, for which it does not wait"
                )));
            };
            let status = answer.status.map_or_else(ob_wire_link::files::FileError::code, |()| 0);
            self.trace.note("answer", &[index as u64, id, u64::from(status), u64::from(answer.length)]);
            self.model.answer(&waiting.asked, &answer)?;
            self.count(&waiting.asked.what, &answer);
            if self.wanted == Some((index, id)) {
                (self.wanted, self.wanted_answer) = (None, Some(answer));
            }
        }
        Ok(taken)
    }

    /// What is on its way, or was just answered, is what a death can do most harm to.
    fn maybe_die_soon(&mut self, what: &What, within: u64) {
        let changes = matches!(what, What::Name { .. } | What::Resize { .. } | What::Zero { .. });
        if changes
            && self.dies_one_in.is_some()
            && self.dies_in.is_none()
            && self.rng.one_in(self.plan.last_one_in)
        {
            self.dies_in = Some(1 + self.rng.below(within));
        }
    }

    fn count(&mut self, what: &What, answer: &Answer) {
        if answer.status.is_ok() {
            self.maybe_die_soon(what, 80);
        }
        if let Err(error) = answer.status {
            self.report.count(error.name().unwrap_or("unknown errors"), 1);
            return;
        }
        self.report.count(what.in_short().0, 1);
    }

    /// The card dies, alone or with the power.
    fn die(&mut self) -> Result<(), Failure> {
        // What was delivered before, the hosts have seen.
        for index in 0..self.hosts.len() {
            self.take_answers(index, usize::MAX)?;
        }
        self.collect();
        self.hosts.clear();
        (self.wanted, self.wanted_answer, self.dies_in) = (None, None, None);
        if let Some(card) = self.card.take() {
            self.disk = Some(card.into_disk());
        }
        self.lose();
        Ok(())
    }

    fn lose(&mut self) {
        let crash = if self.rng.one_in(2) { Crash::Process } else { Crash::Power };
        let Some(disk) = &mut self.disk else { return };
        match crash {
            Crash::Process => disk.lose_process(),
            Crash::Power => disk.lose_power(),
        }
        self.report.count(if crash == Crash::Power { "powers lost" } else { "processes lost" }, 1);
        self.crash = self.crash.max(Some(crash));
    }

    fn collect(&mut self) {
        let Some(card) = &mut self.card else { return };
        let counts = card.service.counts();
        self.report.count("frames", counts.frames);
        self.report.count("unaligned pieces", counts.unaligned);
        self.report.count("device flushes", counts.device_flushes);
        self.report.count("times the log was cleaned", card.cleaned);
        for (what, times) in card.chains.counts() {
            self.report.count(what, times);
        }
    }

    fn collect_disk(&mut self) {
        let Some(card) = &mut self.card else { return };
        let stats = card.service.device().stats();
        for (what, times) in [
            ("operations refused as busy", stats.busy),
            ("reads failed", stats.read_errors),
            ("writes failed", stats.write_errors),
            ("flushes failed", stats.flush_errors),
            ("slow operations", stats.slow),
            ("writes cut by a death", stats.writes_cut),
            ("blocks lost with the power", stats.blocks_lost),
            ("blocks kept without it", stats.blocks_kept),
        ] {
            self.report.count(what, times);
        }
    }
}
