//! `outboard sim kv`: clients use a store that is cut between card and host, while both of them die.
//!
//! ```text
//!   clients ── SimNet ──▶ director, engine, table ── stream ──▶ store          either half dies, or both with their power;
//!      │                        │                                 │            the log flushes, compacts, is recovered
//!      │                        └──▶ FilesService, SimDisk ◀──────┘
//!      ▼
//!   history: what each was told, and when ──▶ is it linearizable? (one [`stretch`] after the other)
//! ```
//!
//! Everything is what ships, but for the network, the disk, the clock, and the rings, in whose place frames are passed on in
//! their order, late. A third of the cards have programs for the store's GET, and to another third they are given and taken from while
//! requests are under way: nobody may notice. In most runs answers are durable (`always`), so nothing that a client was told may be gone, whatever dies. In some
//! they are not, and only what loses nothing even then happens: a card dies, a link breaks. In the rest of them, of which
//! `losses` tells, everything happens, and what is lost must be an end of what was written.
//!
//! In the end the host is gone for good in some runs, or a client is: everybody else must still be answered, if only with "try again".

mod card;
mod client;
mod fickle;
mod host;
mod losses;
mod plan;
mod port;
mod programs;
mod stretch;

use std::time::Duration;

use ob_core::{Clock, Instant, Now};
use ob_files_card::{FormatOptions, LocalFiles};
use ob_kv::store::{Config, Durability, Store};
use ob_offload::Reason;
use ob_sim::history::Command;
use ob_sim::{
    Death, DiskPlan, Failure, Network, NodeId, PerMillion, Progress, Report, Rng, Scenario, SimDisk, Trace,
};

use crate::files::SimDrive;
use card::Card;
use client::{Client, History};
use host::Host;
use plan::{Fault, Plan};
use programs::Programs;
use stretch::{LOST_MAX, Stretch};

const CARD: NodeId = NodeId(0);
const PORT: u16 = 6379;
const CLIENTS: u32 = 4;
/// How long no client may be answered while one waits. Clients give up after a second, and everything that dies is back within
/// milliseconds.
const STILL_MAX: Duration = Duration::from_secs(60);
/// Later than any run.
const NEVER: Duration = Duration::from_secs(1_000_000);
/// The world begins some time after 1970.
const EPOCH_MS: u64 = 1_000_000_000;
/// How far the host's clock is before the card's at most.
const HOST_AHEAD_MS: u64 = 200;

/// Milliseconds since 1970, in a world whose clock begins at 0.
fn unix_ms(now: Instant) -> u64 {
    EPOCH_MS + now.nanoseconds() / 1_000_000
}

/// A store that is cut between card and host.
#[derive(Clone, Debug, Default)]
pub struct KvScenario;

impl Scenario for KvScenario {
    fn name(&self) -> &'static str {
        "kv"
    }

    fn run(&mut self, seed: u64, steps: u64, trace: &mut Trace) -> Result<Report, Failure> {
        Run::new(seed, trace.clone())?.play(steps)
    }

    /// What is not judged may hide anything: few stretches may be so, of few seeds two.
    fn judge(&self, totals: &Report) -> Result<(), Failure> {
        let (judged, not_judged) = (totals.get("stretches judged"), totals.get("stretches not judged"));
        if not_judged <= (judged / 50).max(2) {
            return Ok(());
        }
        Err(Failure::new(format!("{not_judged} stretches were not judged, and {judged} were")))
    }
}

/// What may happen in a run, and what is promised then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Answers are durable, and everything happens.
    Durable,
    /// They are not, and what happens must not lose anything.
    Lossless,
    /// They are not, and everything happens.
    Losses,
}

struct Run {
    mode: Mode,
    plan: Plan,
    heal_at: Option<Instant>,
    /// Until when the card, the host and each client do nothing.
    card_paused_until: Instant,
    host_paused_until: Instant,
    clients_paused_until: Vec<Instant>,
    rng: Rng,
    trace: Trace,
    network: Network,
    config: Config,
    /// Here while the card is dead.
    disk: Option<SimDisk>,
    card: Option<Card>,
    card_back_at: Instant,
    host: Option<Host>,
    host_back_at: Instant,
    /// A host that has lost its link, and does not know who has its place meanwhile.
    away: Option<Host>,
    /// Nobody takes its place.
    is_alone: bool,
    /// What the host's clock says, and how far it is before the card's now.
    host_ms: u64,
    host_ahead_ms: u64,
    has_stepped: bool,
    /// What hosts that died had asked of the card, until that is over.
    orphans: Vec<LocalFiles>,
    lives: u64,
    programs: Programs,
    clients: Vec<Client>,
    history: History,
    /// Where that part of it begins that is not judged yet.
    stretch: Stretch,
    /// What clients were told when the run got on last.
    told: u64,
    progress: Progress,
    report: Report,
}

impl Run {
    fn new(seed: u64, trace: Trace) -> Result<Self, Failure> {
        let mut rng = Rng::new(seed);
        let mode = match rng.below(8) {
            0 => Mode::Lossless,
            1 | 2 => Mode::Losses,
            _ => Mode::Durable,
        };
        let plan = Plan::draw(&mut rng.fork("plan"), mode != Mode::Lossless);
        let network = Network::new(plan.net.clone(), rng.fork("net"), trace.clone());
        let disk = format_disk(&mut rng, &trace)?;
        let config = draw_config(&mut rng, mode);
        let clock = trace.clock().clone();
        let clients = (0..CLIENTS).map(|number| {
            let rng = rng.fork_numbered("client", number.into());
            Client::new(number, &network, clock.clone(), rng, &plan)
        });
        let programs = Programs::new(rng.fork("programs"));
        Ok(Self {
            clients: clients.collect(),
            mode,
            plan,
            heal_at: None,
            card_paused_until: Instant::default(),
            host_paused_until: Instant::default(),
            clients_paused_until: vec![Instant::default(); CLIENTS as usize],
            host_ms: 0,
            host_ahead_ms: rng.below(HOST_AHEAD_MS),
            has_stepped: false,
            is_alone: mode == Mode::Lossless,
            rng: rng.fork("run"),
            trace,
            network,
            config,
            disk: Some(disk),
            card: None,
            card_back_at: Instant::default(),
            host: None,
            host_back_at: Instant::default(),
            away: None,
            orphans: Vec::new(),
            lives: 0,
            programs,
            history: History::new(),
            stretch: Stretch::default(),
            told: 0,
            progress: Progress::new(clock, STILL_MAX),
            report: Report::default(),
        })
    }

    fn now(&self) -> Instant {
        self.trace.clock().now()
    }

    fn play(mut self, steps: u64) -> Result<Report, Failure> {
        if self.mode == Mode::Losses {
            return self.play_losses(steps);
        }
        let mut asked = 0;
        let mut stretch_end = self.plan.stretch;
        while asked < steps {
            if asked >= stretch_end || self.lost_in_stretch() >= LOST_MAX {
                self.end_stretch()?;
                stretch_end = asked + self.plan.stretch;
            }
            let number = self.rng.index(self.clients.len());
            if self.clients[number].issue(&mut self.history) {
                asked += 1;
                self.trace.note("ask", &[number as u64, self.history.len() as u64]);
            }
            self.disturb();
            self.turn()?;
        }
        self.mend_network();
        self.settle()?;
        // What everybody finds in the end belongs to the history too.
        for client in &mut self.clients {
            client.look(&mut self.history);
        }
        self.settle()?;
        self.leave_for_ever()?;
        self.judge()
    }

    /// Lets everything come to an end, with both halves alive.
    fn settle(&mut self) -> Result<(), Failure> {
        let is_settled = |client: &Client| client.is_idle() && client.next_due().is_none();
        // Nobody asks for a host that does not serve when all clients are at rest.
        let mut coming = Progress::new(self.trace.clock().clone(), STILL_MAX);
        loop {
            let is_whole = self.card.is_some() && self.host.as_ref().is_some_and(Host::serves);
            let is_at_rest = self.clients.iter().all(is_settled);
            if is_whole && is_at_rest {
                return Ok(());
            }
            if !is_at_rest {
                coming.made();
            }
            let host = self.host.as_ref();
            coming.check(|| {
                format!("the host {}", host.map_or_else(|| "is away".to_owned(), Host::describe))
            })?;
            self.turn()?;
        }
    }

    /// The host is gone, or a client cut off, and nothing brings them back. Whoever is left asks for every key and is told something
    /// before its patience ends: what the card knows, or to try again.
    fn leave_for_ever(&mut self) -> Result<(), Failure> {
        let absent = match self.rng.below(4) {
            0 => return Ok(()),
            1 => {
                let number = self.rng.index(self.clients.len());
                self.report.count("clients cut off for ever", 1);
                self.cut_some_way(number);
                Some(number)
            }
            _ => {
                self.report.count("hosts gone for ever", 1);
                // Where answers are not durable, they are in a host that lives.
                if self.mode == Mode::Durable {
                    self.kill_host();
                } else {
                    self.cut_link();
                }
                self.host_back_at = self.now() + NEVER;
                None
            }
        };
        let out_of_patience = self.clients.iter().map(|client| client.out_of_patience).collect::<Vec<_>>();
        for client in &mut self.clients {
            client.look(&mut self.history);
        }
        let is_present = |number: usize| absent != Some(number);
        let is_idle = |(number, client): (usize, &Client)| client.is_idle() || !is_present(number);
        while !self.clients.iter().enumerate().all(is_idle) {
            self.turn()?;
        }
        for (number, client) in self.clients.iter().enumerate().filter(|(number, _)| is_present(*number)) {
            if client.out_of_patience != out_of_patience[number] {
                let host = if absent.is_none() { "a host" } else { "another client" };
                let text = format!("client {number} is told nothing, since {host} is gone for ever");
                return Err(Failure::new(text));
            }
        }
        Ok(())
    }

    /// Fails if a client waits, and none has been told anything for long.
    fn check_progress(&mut self) -> Result<(), Failure> {
        let told = self.clients.iter().map(|client| client.answered).sum();
        let is_at_rest = self.clients.iter().all(|client| client.is_idle() && client.next_due().is_none());
        if told != self.told || is_at_rest {
            self.told = told;
            self.progress.made();
        }
        let Self { progress, host, card, clients, orphans, .. } = self;
        progress.check(|| {
            let host = host.as_ref().map_or_else(|| "is away".to_owned(), Host::describe);
            let card = card.as_mut().map_or_else(|| "dead".to_owned(), Card::describe);
            let (waiting, orphans) = (clients.iter().filter(|client| !client.is_idle()).count(), orphans.len());
            format!("{waiting} clients wait; the host {host}; the card: {card}; {orphans} hosts before have something under way")
        })
    }

    fn judge(mut self) -> Result<Report, Failure> {
        self.collect()?;
        let (answered, lost) =
            self.clients.iter().fold((0, 0), |sum, client| (sum.0 + client.answered, sum.1 + client.lost));
        self.report.count("answered", answered);
        self.report.count("lost", lost);
        let net = self.network.stats();
        self.report.count("connections refused", net.refused);
        self.report.count("connections that found no memory", net.exhausted);
        self.report.count("connections timed out", net.timeouts);
        let not_done = self.clients.iter().map(|client| client.not_done.len() as u64).sum();
        self.report.count("not done", not_done);
        let cleared = self
            .history
            .iter()
            .filter(|operation| matches!(operation.command, Command::Clear) && operation.returned.is_some());
        self.report.count("cleared", cleared.count() as u64);
        self.judge_stretch()?;
        Ok(self.report)
    }

    /// Counts what the halves have done that are there in the end.
    fn collect(&mut self) -> Result<(), Failure> {
        for host in [self.host.take(), self.away.take()].iter().flatten() {
            self.count_host(host);
        }
        if let Some(card) = self.card.take() {
            self.count_card(&card);
        }
        programs::judge(&self.report)
    }

    fn count_card(&mut self, card: &Card) {
        let director = card.driver.director();
        let (counts, engine, table) =
            (director.counts(), director.engine().counts(), director.engine().writer().counts());
        self.report.count("answered by the card", counts.card);
        self.report.count("forwarded to the host", counts.host.total());
        self.report.count("near their expiry", counts.host.of(Reason::NearExpiry));
        self.report.count("not what the table meant", counts.host.of(Reason::Mismatch));
        self.report.count("fallen back behind another", counts.host.of(Reason::Behind));
        self.report.count("admitted on a write", engine.offered);
        self.report.count("attested", engine.attested);
        self.report.count("evicted", table.evicted);
        self.report.count("refused as outdated", table.refused_stale);
        programs::count(&card.programs.counts(), &mut self.report);
    }

    /// Lets everybody do what can be done, and time go on to when something is due.
    fn turn(&mut self) -> Result<(), Failure> {
        self.check_progress()?;
        self.begin_lives()?;
        self.move_host_clock();
        let mut has_more = false;
        let now = self.now();
        let (is_card_paused, is_host_paused) = (now < self.card_paused_until, now < self.host_paused_until);
        if let Some(card) = &mut self.card {
            self.programs.disturb(&card.programs, &mut self.report)?;
            let is_served = self.host.as_ref().is_some_and(Host::serves);
            let before = card.driver.director().counts().card;
            has_more |= !is_card_paused && card.turn();
            if !is_served {
                let alone = card.driver.director().counts().card - before;
                self.report.count("answered without a host", alone);
            }
            if let Some(host) = self.host.as_mut().filter(|_| !is_host_paused) {
                host.turn(card, Now { instant: now, unix_ms: self.host_ms })?;
                has_more |= host.has_more();
            }
            for files in &mut self.orphans {
                while files.poll().is_some() {}
            }
            self.orphans.retain(LocalFiles::has_requests);
        }
        let paused = self.clients_paused_until.iter().map(|until| now < *until);
        for (number, (client, is_paused)) in self.clients.iter_mut().zip(paused).enumerate() {
            if !is_paused {
                client.turn(&mut self.history)?;
                has_more |= self.network.has_events(NodeId(1 + number));
            }
        }
        has_more |= !is_card_paused && self.network.has_events(CARD);
        self.pass_time(has_more);
        Ok(())
    }

    /// Time goes on to when something is due.
    fn pass_time(&mut self, has_more: bool) {
        let now = self.now();
        let clients = self.clients_paused_until.iter().copied();
        let ends = clients.chain([self.card_paused_until, self.host_paused_until]);
        // What is due to somebody who is stopped is due all the time. So is, while a device is slow, what the host has no room for, and a host
        // that waits for what its last life left there. Faults come by turns, and are to strike then too: so time goes on by less.
        let waits_for_device = self.host.as_ref().map_or(!self.orphans.is_empty(), Host::is_full);
        let least = match (ends.max() > Some(now), waits_for_device) {
            (true, _) => Duration::from_micros(200),
            (false, true) => Duration::from_nanos(500),
            (false, false) => Duration::from_nanos(50),
        };
        if has_more {
            // Even those who always have something to do take some time.
            let work = least + Duration::from_nanos(self.rng.below(1950));
            return self.trace.clock().advance_to(now + work);
        }
        let halves = match (&mut self.card, &self.host) {
            (None, _) => Some(self.card_back_at),
            (Some(card), None) => [card.next_due(), Some(self.host_back_at)].into_iter().flatten().min(),
            (Some(card), Some(_)) => card.next_due(),
        };
        let store = self.host.as_ref().and_then(Host::next_due);
        let clients = self.clients.iter().filter_map(Client::next_due).min();
        let due = [self.network.next_due(), halves, store, clients, self.heal_at].into_iter().flatten().min();
        let at = due.unwrap_or(now + Duration::from_millis(1)).max(now);
        self.trace.clock().advance_to(at.min(now + Duration::from_millis(2)) + least);
    }

    /// The host's clock jumps, and is set back, and does not go back for it.
    fn move_host_clock(&mut self) {
        if self.rng.one_in(self.plan.clock_steps_one_in) {
            self.has_stepped = !self.has_stepped;
        }
        let step = if self.has_stepped { self.plan.clock_step_ms } else { 0 };
        self.host_ms = self.host_ms.max(unix_ms(self.now()) + self.host_ahead_ms + step);
    }

    fn begin_lives(&mut self) -> Result<(), Failure> {
        let now = self.now();
        if self.heal_at.take_if(|at| *at <= now).is_some() {
            self.network.heal_all();
        }
        if self.card.is_none() && self.card_back_at <= now {
            let Some(disk) = self.disk.take() else { return Err(Failure::new("there is no disk")) };
            self.lives += 1;
            let (clock, rng) = (self.trace.clock().clone(), self.rng.fork_numbered("card", self.lives));
            self.card = Some(Card::new(
                disk,
                &self.network,
                clock,
                rng,
                self.plan.card_margin_ms(),
                self.programs.slot()?,
            )?);
        }
        // A host is not served before what the one before it had asked for is over.
        if self.host.is_none() && self.host_back_at <= now && self.orphans.is_empty() {
            self.lives += 1;
            self.host = match self.away.take() {
                Some(host) if self.is_alone || self.rng.one_in(2) => Some(host),
                away => {
                    self.away = away;
                    let mut rng = self.rng.fork_numbered("host", self.lives);
                    let mut config = self.config.clone();
                    rng.fill(&mut config.name);
                    Some(Host::new(config, rng))
                }
            };
        }
        Ok(())
    }

    fn disturb(&mut self) {
        if !self.rng.one_in(self.plan.fault_one_in) {
            return;
        }
        let number = self.rng.index(self.clients.len());
        match self.plan.fault(&mut self.rng) {
            None => {}
            Some(Fault::Reset) => {
                self.report.count("resets", 1);
                self.network.reset_between(NodeId(1 + number), CARD);
            }
            Some(Fault::CutClient) => self.cut_client(number),
            Some(Fault::CardDies) => self.kill_card(Death::Process),
            Some(Fault::LinkCut) => self.cut_link(),
            Some(Fault::HostDies) => self.kill_host(),
            Some(Fault::CardPowerFails) => self.kill_card(Death::Power),
            Some(Fault::PowerFails) => self.lose_power(),
            Some(Fault::ClientPaused) => {
                self.report.count("clients paused", 1);
                self.clients_paused_until[number] = self.end_of_pause();
            }
            Some(Fault::CardPaused) => {
                self.report.count("card paused", 1);
                self.card_paused_until = self.end_of_pause();
            }
            Some(Fault::HostPaused) => {
                self.report.count("host paused", 1);
                self.host_paused_until = self.end_of_pause();
            }
        }
    }

    /// Somebody does nothing for a while, and then goes on as if nothing had been.
    fn end_of_pause(&mut self) -> Instant {
        self.now() + self.rng.skewed(Duration::from_micros(10)..Duration::from_secs(3))
    }

    /// Nothing gets through between a client and the card, one way or both, for a while.
    fn cut_client(&mut self, number: usize) {
        if self.heal_at.is_some() {
            return;
        }
        self.report.count("clients cut off", 1);
        self.cut_some_way(number);
        self.heal_at = Some(self.now() + Duration::from_millis(self.rng.range(1..2000)));
    }

    fn cut_some_way(&mut self, number: usize) {
        let node = NodeId(1 + number);
        match self.rng.below(3) {
            0 => self.network.cut(node, CARD),
            1 => self.network.cut(CARD, node),
            _ => self.network.cut_both(node, CARD),
        }
    }

    /// Clients reach the card again, and nothing on the way resets or refuses anything.
    fn mend_network(&mut self) {
        self.heal_at = None;
        (self.card_paused_until, self.host_paused_until) = (Instant::default(), Instant::default());
        self.clients_paused_until.fill(Instant::default());
        self.network.heal_all();
        self.network.change_plan(|plan| {
            (plan.reset, plan.refuse, plan.exhausted) =
                (PerMillion::NEVER, PerMillion::NEVER, PerMillion::NEVER);
        });
    }

    /// The network is again as the seed has drawn it.
    fn break_network(&mut self) {
        let drawn = &self.plan.net;
        self.network.change_plan(|plan| {
            (plan.reset, plan.refuse, plan.exhausted) = (drawn.reset, drawn.refuse, drawn.exhausted);
        });
    }

    fn lose_power(&mut self) {
        self.report.count("losses of power", 1);
        self.kill_host();
        self.kill_card(Death::Power);
    }

    fn kill_host(&mut self) {
        let Some(host) = self.host.take() else { return };
        self.report.count("host deaths", 1);
        self.trace.note("host dies", &[]);
        self.count_host(&host);
        self.orphans.extend(host.die());
        self.host_back_at = self.now() + Duration::from_micros(self.rng.below(5_000));
    }

    /// The host loses its link. When it is back, another one may have come and gone.
    fn cut_link(&mut self) {
        let Some(mut host) = self.host.take() else { return };
        self.report.count("links cut", 1);
        self.trace.note("link is cut", &[]);
        self.orphans.extend(host.lose_link());
        self.host_back_at = self.now() + Duration::from_micros(self.rng.below(5_000));
        if let Some(forgotten) = self.away.replace(host) {
            self.count_host(&forgotten);
        }
    }

    fn count_host(&mut self, host: &Host) {
        let counts = host.counts;
        self.report.count("stores kept", counts.kept);
        self.report.count("stores overtaken", counts.overtaken);
        self.report.count("stores lost", counts.lost);
        self.report.count("told by the host", host.attested());
        let stats = host.store().map(Store::stats).unwrap_or_default();
        self.report.count("parts removed", stats.parts_removed);
        self.report.count("records moved", stats.records_copied);
        self.report.count("keys expired", stats.keys_expired);
        self.report.count("requests behind others", stats.requests_queued);
    }

    fn kill_card(&mut self, how: Death) {
        let Some(card) = self.card.take() else { return };
        self.report.count("card deaths", 1);
        self.trace.note("card dies", &[]);
        self.count_card(&card);
        self.network.kill(CARD, how);
        if let Some(host) = &mut self.host {
            host.lose_card();
        }
        self.orphans.clear();
        let mut disk = card.into_disk();
        match how {
            Death::Process => disk.lose_process(),
            Death::Power => disk.lose_power(),
        }
        self.disk = Some(disk);
        self.card_back_at = self.now() + Duration::from_micros(self.rng.below(5_000));
    }
}

/// A disk of the seed's choice, with no file on it.
fn format_disk(rng: &mut Rng, trace: &Trace) -> Result<SimDisk, Failure> {
    let slowest = *rng.choose(&[200, 3000, 3000]).unwrap_or(&200);
    let latency = Duration::from_micros(2)..Duration::from_micros(slowest);
    let slow = PerMillion::percent(*rng.choose(&[0, 0, 2]).unwrap_or(&0));
    let behaviour = DiskPlan {
        capacity: 8 << 20,
        block_len: 4096,
        depth: 32,
        latency,
        slow,
        slow_factor: 20,
        ..DiskPlan::default()
    };
    let mut disk = SimDisk::new(behaviour, rng.fork("disk"), trace.clone());
    let clock = trace.clock().clone();
    let options = FormatOptions {
        segment_len: Some(16 << 10),
        section_len: Some(32 << 10),
        log_len: Some(16 * (32 << 10)),
    };
    ob_files_card::format(&mut SimDrive::new(&mut disk, clock, None), &options, [3; 16])
        .map_err(|error| Failure::new(format!("not formatted: {error}")))?;
    Ok(disk)
}

/// A store of the seed's choice.
fn draw_config(rng: &mut Rng, mode: Mode) -> Config {
    let mut name = [0; 16];
    rng.fill(&mut name);
    let weak = *rng.choose(&[Durability::EverySecond, Durability::No]).unwrap_or(&Durability::No);
    Config {
        durability: if mode == Mode::Durable { Durability::Always } else { weak },
        part_len: 64 << 10,
        parts_max: 64,
        group_len: 8 << 10,
        // Little, so that most records are read from the device.
        memory_len: *rng.choose(&[0, 8 << 10, 64 << 10]).unwrap_or(&0),
        writes_max: *rng.choose(&[4, 1, 16]).unwrap_or(&4),
        waiting_max: *rng.choose(&[64, 16]).unwrap_or(&64),
        garbage_percent: 30,
        name,
        ..Config::default()
    }
}
