//! `outboard sim link`: hosts attached to a card over links that are cut, while either end dies and comes back.
//!
//! ```text
//!   host 0 (tcp)    ──frames, transfers as frames──┐
//!   host 1 (model)  ──frames──┐                    ├──▶ card: attachments, rings, a service that echoes
//!                             ├─ shared memory ────┤
//!   host 2 (engine) ──frames──┘                    │    engine: all the freedom of the contract, and bulk that fails
//!        fate: cuts connections, kills and revives hosts and card, and stops them for a while
//! ```
//!
//! Each host has two groups: one with payloads in its messages, one whose payloads go by bulk through both areas.
//!
//! The cores are the real ones: attachments, sequenced frames, transfers over frames, the modelled engine, the rings.
//! Within one attachment every message arrives once and in its sender's order, through the rings and on the channel,
//! however often a `tcp` connection is cut; nothing of an earlier attachment or life shows up; and when fate is
//! done, everything that was sent in the attachments that live arrives. In some runs its last deed is that one host is gone, or
//! cut off, for ever: that attachment must be over at both ends, and the other be none the worse.

mod card;
mod engine;
mod host;
mod ledger;
mod plan;
mod service;
mod wire;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use ob_core::{Incarnation, Instant};

use crate::{Failure, NodeId, Report, Rng, Scenario, Trace, World};
use card::{Card, Effect, Rest};
use host::{Host, THREADS};
use ledger::{Hop, Ledger};
use plan::{Deed, Plan};
use wire::{Way, WireId, Wires};

/// The kind of link of each host.
const KINDS: [&str; 3] = ["tcp", "model", "engine"];
const HOSTS: usize = KINDS.len();
/// Steps that a run may take to come to rest after its last.
const REST_STEPS_MAX: u64 = 300_000;

/// The link between hosts and a card.
#[derive(Clone, Debug, Default)]
pub struct LinkScenario;

impl Scenario for LinkScenario {
    fn name(&self) -> &'static str {
        "link"
    }

    fn run(&mut self, seed: u64, steps: u64, trace: &mut Trace) -> Result<Report, Failure> {
        Run::new(seed, steps, trace.clone()).play()
    }
}

#[derive(Clone, Debug)]
enum Event {
    /// The card has something to do.
    CardTurn,
    /// A thread of a host takes its next step.
    Thread(usize, usize),
    /// A host looks whether it has waited long enough for its card.
    Patience(usize),
    /// A host tries to connect.
    Connect(usize),
    /// The card hears of a new connection.
    Accept(WireId, usize),
    /// Bytes arrive.
    Bytes(WireId, Vec<u8>),
    /// An end learns that its connection is gone.
    Lost(WireId),
    /// A bell is heard in a host.
    Bell(usize),
    /// Somebody says something on the channel: a host, or the card.
    Speak(Option<usize>),
    /// Fate does something bad.
    Fate,
    /// A dead node comes back: a host, or the card.
    Revive(Option<usize>),
}

struct Run {
    plan: Plan,
    steps: u64,
    taken: u64,
    trace: Trace,
    world: World<Event>,
    rng: Rng,
    fate: NodeId,
    card_node: NodeId,
    host_nodes: [NodeId; HOSTS],
    card: Option<Card>,
    hosts: [Option<Host>; HOSTS],
    wires: Wires,
    ledger: Rc<RefCell<Ledger>>,
    /// When the card's next turn is scheduled, so that it is not scheduled over and over.
    card_turn_at: Option<Instant>,
    /// A host that never comes back.
    absent: Option<usize>,
    report: Report,
}

const SOON: std::ops::Range<Duration> = Duration::from_nanos(50)..Duration::from_micros(20);
const LATER: std::ops::Range<Duration> = Duration::from_micros(10)..Duration::from_millis(3);

impl Run {
    fn new(seed: u64, steps: u64, trace: Trace) -> Self {
        let mut world = World::new(trace.clone());
        let rng = Rng::new(seed);
        let plan = Plan::draw(&mut rng.fork("plan"));
        let [fate, card_node] = [(); 2].map(|()| world.add_node());
        let host_nodes = [(); HOSTS].map(|()| world.add_node());
        Self {
            steps,
            taken: 0,
            trace,
            world,
            rng,
            fate,
            card_node,
            host_nodes,
            card: None,
            hosts: [const { None }; HOSTS],
            wires: Wires::new(plan.delay.clone()),
            plan,
            ledger: Rc::default(),
            card_turn_at: None,
            absent: None,
            report: Report::default(),
        }
    }

    fn play(mut self) -> Result<Report, Failure> {
        self.card_begins();
        (0..HOSTS).for_each(|host| self.host_begins(host));
        self.world.schedule_in(self.fate, Duration::from_millis(1), Event::Fate);
        while self.one_event()? {}
        self.last_work()?;
        while self.one_event()? {}
        self.check_rest()?;
        for (what, hop) in [
            ("requests", Hop::Request),
            ("responses", Hop::Response),
            ("channel messages to the card", Hop::ChannelToCard),
            ("channel messages to hosts", Hop::ChannelToHost),
        ] {
            let arrivals = self.ledger.borrow().arrivals(hop);
            self.report.count(what, arrivals);
        }
        let ledger = self.ledger.borrow();
        for (what, count) in [
            ("bulk transfers", ledger.transfers),
            ("bulk transfers that failed", ledger.failed_transfers),
            ("writes overtaken by another region", ledger.overtaken),
        ] {
            self.report.count(what, count);
        }
        drop(ledger);
        self.report.count("events of an earlier life", self.world.dropped());
        Ok(self.report)
    }

    fn is_closing(&self) -> bool {
        self.taken >= self.steps
    }

    fn one_event(&mut self) -> Result<bool, Failure> {
        let Some((node, event)) = self.world.next_event() else { return Ok(false) };
        self.taken += 1;
        self.card.iter().for_each(|card| card.advance(self.world.now()));
        if self.taken > self.steps + REST_STEPS_MAX {
            return Err(Failure::new(format!("never comes to rest; {}", self.describe())));
        }
        match event {
            Event::CardTurn => self.card_turn()?,
            Event::Thread(host, thread) => self.thread(host, thread)?,
            Event::Patience(host) => self.patience(host),
            Event::Connect(host) => self.connect(host),
            Event::Accept(wire, host) => self.accept(wire, host)?,
            Event::Bytes(wire, bytes) => self.bytes(node, wire, &bytes)?,
            Event::Lost(wire) => self.lost(node, wire)?,
            Event::Bell(host) => self.bell(host),
            Event::Speak(who) => self.speak(who)?,
            Event::Fate => self.fate(),
            Event::Revive(None) => self.card_begins(),
            Event::Revive(Some(host)) if self.absent == Some(host) => {}
            Event::Revive(Some(host)) => self.host_begins(host),
        }
        match self.ledger.borrow_mut().take_wrong() {
            Some(failure) => Err(failure),
            None => Ok(true),
        }
    }

    fn card_begins(&mut self) {
        let incarnation = if self.card.is_none() && self.world.is_alive(self.card_node) {
            Incarnation(1)
        } else {
            self.world.revive(self.card_node)
        };
        let rng = self.rng.fork_numbered("card", incarnation.0);
        let clock = self.world.clock().clone();
        let trace = self.trace.clone();
        self.card = Some(Card::new(incarnation, clock, trace, rng, Rc::clone(&self.ledger)));
        self.card_turn_at = None;
        self.speak_later(None);
    }

    fn host_begins(&mut self, host: usize) {
        let node = self.host_nodes[host];
        let first = self.hosts[host].is_none() && self.world.is_alive(node);
        let incarnation = if first { Incarnation(1) } else { self.world.revive(node) };
        self.hosts[host] = Some(Host::new(incarnation, KINDS[host], Rc::clone(&self.ledger)));
        let delay = self.rng.skewed(SOON);
        self.world.schedule_in(node, delay, Event::Connect(host));
        self.speak_later(Some(host));
    }

    fn connect(&mut self, host: usize) {
        let node = self.host_nodes[host];
        let wanted = self.hosts[host].as_ref().is_some_and(Host::wants_connection);
        if !wanted || self.absent == Some(host) {
            return;
        }
        if !self.world.is_alive(self.card_node) {
            let delay = self.rng.skewed(LATER);
            self.world.schedule_in(node, delay, Event::Connect(host));
            return;
        }
        let wire = self.wires.connect(host, self.world.now());
        self.report.count("connections", 1);
        self.trace.note("connect", &[host as u64, wire.0]);
        self.world.schedule_in(self.card_node, Duration::ZERO, Event::Accept(wire, host));
        let quota = if self.is_closing() { 0 } else { self.rng.range(1..self.plan.quota_max) };
        if let Some(host) = &mut self.hosts[host] {
            host.connected(wire, quota);
        }
        self.after_host(host);
    }

    fn accept(&mut self, wire: WireId, host: usize) -> Result<(), Failure> {
        if let Some(card) = &mut self.card {
            card.accept(wire, host);
        }
        self.card_turn()
    }

    fn bytes(&mut self, node: NodeId, wire: WireId, bytes: &[u8]) -> Result<(), Failure> {
        if !self.wires.is_whole(wire) {
            return Ok(());
        }
        self.trace.note("bytes", &[node.0 as u64, wire.0, bytes.len() as u64]);
        if node == self.card_node {
            if let Some(card) = &mut self.card {
                card.bytes(wire, bytes);
            }
            return self.card_turn();
        }
        for host in 0..HOSTS {
            if node == self.host_nodes[host]
                && let Some(receiver) = &mut self.hosts[host]
            {
                receiver.bytes(wire, bytes)?;
                self.reconnect_later(host);
                self.after_host(host);
            }
        }
        Ok(())
    }

    fn lost(&mut self, node: NodeId, wire: WireId) -> Result<(), Failure> {
        let now = self.world.now();
        if node == self.card_node {
            if let Some(card) = &mut self.card {
                card.lost(wire, now);
            }
            return self.card_turn();
        }
        for host in 0..HOSTS {
            if node == self.host_nodes[host]
                && let Some(loser) = &mut self.hosts[host]
            {
                loser.lost(wire, now);
                self.reconnect_later(host);
                self.patience(host);
            }
        }
        Ok(())
    }

    /// A host that has ended its attachment closes its socket, as the real one does. Otherwise a card that was stopped meanwhile would take
    /// a host back that waits for nothing there, and nobody would ever end that.
    fn hang_up(&mut self, host: usize) {
        if let Some(wire) = self.hosts[host].as_mut().and_then(Host::take_hung_up) {
            self.report.count("hosts hung up", 1);
            self.cut(wire);
        }
    }

    fn reconnect_later(&mut self, host: usize) {
        self.hang_up(host);
        if self.hosts[host].as_ref().is_some_and(Host::wants_connection) {
            let delay = self.rng.skewed(LATER);
            self.world.schedule_in(self.host_nodes[host], delay, Event::Connect(host));
        }
    }

    fn patience(&mut self, host: usize) {
        let now = self.world.now();
        let again = self.hosts[host].as_mut().and_then(|host| host.patience(now));
        self.reconnect_later(host);
        if let Some(again) = again {
            self.world.schedule(self.host_nodes[host], again, Event::Patience(host));
        }
    }

    fn thread(&mut self, host: usize, thread: usize) -> Result<(), Failure> {
        let Some(actor) = &mut self.hosts[host] else { return Ok(()) };
        let goes_on = actor.thread(thread)?;
        self.trace.note("thread", &[host as u64, thread as u64, u64::from(goes_on)]);
        if goes_on {
            let delay = self.rng.skewed(SOON);
            self.world.schedule_in(self.host_nodes[host], delay, Event::Thread(host, thread));
        } else {
            self.report.count("host threads fell asleep", 1);
        }
        if self.hosts[host].as_mut().is_some_and(Host::take_freed) {
            self.after_host(host);
        }
        self.send_from(host);
        Ok(())
    }

    fn bell(&mut self, host: usize) {
        if let Some(actor) = &mut self.hosts[host] {
            actor.wake_sleepers();
        }
        self.after_host(host);
    }

    /// Threads may have been woken, or have a group at last; and there may be something to send.
    fn after_host(&mut self, host: usize) {
        for thread in 0..THREADS {
            let delay = self.rng.skewed(SOON);
            self.world.schedule_in(self.host_nodes[host], delay, Event::Thread(host, thread));
        }
        self.send_from(host);
    }

    fn send_from(&mut self, host: usize) {
        let now = self.world.now();
        let Some((wire, out)) = self.hosts[host].as_mut().and_then(Host::outgoing) else { return };
        for (at, bytes) in self.wires.send(wire, Way::ToCard, out, now, &mut self.rng) {
            self.world.schedule(self.card_node, at, Event::Bytes(wire, bytes));
        }
    }

    fn card_turn(&mut self) -> Result<(), Failure> {
        let now = self.world.now();
        let Some(card) = &mut self.card else { return Ok(()) };
        let mut effects = Vec::new();
        let rest = card.turn(now, &mut effects)?;
        let hosts: Vec<(WireId, usize)> = (0..HOSTS)
            .flat_map(|host| self.wires.of_host(host).into_iter().map(move |wire| (wire, host)))
            .collect();
        for effect in effects {
            match effect {
                Effect::Send(wire, mut out) => {
                    let Some((_, host)) = hosts.iter().find(|(known, _)| *known == wire) else { continue };
                    for (at, bytes) in self.wires.send(wire, Way::ToHost, &mut out, now, &mut self.rng) {
                        self.world.schedule(self.host_nodes[*host], at, Event::Bytes(wire, bytes));
                    }
                }
                Effect::Hang(wire) => self.cut(wire),
                Effect::Bell(host) => {
                    let delay = self.rng.skewed(SOON);
                    self.world.schedule_in(self.host_nodes[host], delay, Event::Bell(host));
                }
                Effect::Grant(host, id, region) => {
                    if let Some(host) = &mut self.hosts[host] {
                        host.grant(id, region);
                    }
                }
            }
        }
        let at = match rest {
            Rest::Again => Some(now + self.rng.skewed(SOON)),
            Rest::Until(due) => due,
        };
        self.report.count(if matches!(rest, Rest::Again) { "card turns" } else { "card sleeps" }, 1);
        if let Some(at) = at.filter(|at| self.card_turn_at.is_none_or(|known| known <= now || *at < known)) {
            self.card_turn_at = Some(at);
            self.world.schedule(self.card_node, at, Event::CardTurn);
        }
        Ok(())
    }

    fn speak_later(&mut self, who: Option<usize>) {
        let node = who.map_or(self.card_node, |host| self.host_nodes[host]);
        let delay = self.rng.skewed(LATER);
        self.world.schedule_in(node, delay, Event::Speak(who));
    }

    fn speak(&mut self, who: Option<usize>) -> Result<(), Failure> {
        if !self.is_closing() {
            self.speak_later(who);
        }
        match who {
            None => {
                if let Some(card) = &mut self.card {
                    card.speak();
                }
                self.card_turn()
            }
            Some(host) => {
                if let Some(actor) = &mut self.hosts[host] {
                    actor.speak();
                    if !self.is_closing() && self.rng.one_in(4) {
                        let more = self.rng.range(1..20);
                        if let Some(actor) = &mut self.hosts[host] {
                            actor.add_work(more);
                        }
                    }
                }
                self.after_host(host);
                Ok(())
            }
        }
    }

    fn fate(&mut self) {
        if self.is_closing() {
            return self.leave_for_ever();
        }
        let delay = self.rng.skewed(self.plan.between_deeds.clone());
        self.world.schedule_in(self.fate, delay, Event::Fate);
        match self.plan.deed(&mut self.rng) {
            None => {}
            Some(Deed::KillCard) => self.kill_card(),
            Some(Deed::Pause) => self.pause(),
            Some(Deed::KillHost) => {
                let host = self.rng.index(HOSTS);
                self.kill_host(host);
            }
            Some(Deed::Cut) => {
                let wires = self.wires.all();
                if let Some(wire) = self.rng.choose(&wires).copied() {
                    self.report.count("cuts", 1);
                    self.cut(wire);
                }
            }
        }
    }

    /// The card or a host does nothing for a while, and then goes on as if nothing had been.
    fn pause(&mut self) {
        let host = self.rng.index(HOSTS + 1);
        let node = self.host_nodes.get(host).copied().unwrap_or(self.card_node);
        self.report.count(if node == self.card_node { "card paused" } else { "hosts paused" }, 1);
        let until = self.world.now() + self.rng.skewed(self.plan.between_deeds.clone());
        self.world.pause(node, until);
    }

    /// The last deed: a host is gone, or cut off, and does not come back.
    fn leave_for_ever(&mut self) {
        let host = self.rng.index(HOSTS);
        match self.rng.below(4) {
            0 => {
                self.report.count("hosts gone for ever", 1);
                self.kill_host(host);
            }
            1 => {
                self.report.count("hosts cut off for ever", 1);
                self.wires.of_host(host).into_iter().for_each(|wire| self.cut(wire));
            }
            _ => return,
        }
        self.absent = Some(host);
    }

    /// Cuts a connection; each end learns of it in its own time.
    fn cut(&mut self, wire: WireId) {
        let host = (0..HOSTS).find(|host| self.wires.of_host(*host).contains(&wire));
        if !self.wires.cut(wire) {
            return;
        }
        self.trace.note("cut", &[wire.0]);
        let ends = [Some(self.card_node), host.map(|host| self.host_nodes[host])];
        for node in ends.into_iter().flatten() {
            let delay = self.rng.skewed(LATER);
            self.world.schedule_in(node, delay, Event::Lost(wire));
        }
    }

    fn kill_card(&mut self) {
        if !self.world.is_alive(self.card_node) {
            return;
        }
        self.report.count("card deaths", 1);
        self.world.kill(self.card_node);
        if let Some(card) = self.card.take() {
            card.die();
        }
        for wire in self.wires.all() {
            self.cut(wire);
        }
        let delay = self.rng.skewed(self.plan.between_deeds.clone());
        self.world.schedule_in(self.fate, delay, Event::Revive(None));
    }

    fn kill_host(&mut self, host: usize) {
        if !self.world.is_alive(self.host_nodes[host]) {
            return;
        }
        self.report.count("host deaths", 1);
        self.world.kill(self.host_nodes[host]);
        self.hosts[host] = None;
        for wire in self.wires.of_host(host) {
            self.cut(wire);
        }
        let delay = self.rng.skewed(self.plan.between_deeds.clone());
        self.world.schedule_in(self.fate, delay, Event::Revive(Some(host)));
    }

    /// Fate is done, and everything has come to rest: one last round of work for everybody.
    fn last_work(&mut self) -> Result<(), Failure> {
        self.check_rest()?;
        for host in 0..HOSTS {
            if let Some(actor) = &mut self.hosts[host] {
                actor.add_work(5);
                actor.speak();
            }
            self.after_host(host);
        }
        Ok(())
    }

    /// Nothing is left to happen: both halves must agree on who is attached, and nothing may be missing.
    fn check_rest(&self) -> Result<(), Failure> {
        let lives = self.card.as_ref().map(Card::lives).unwrap_or_default();
        for (index, host) in self.hosts.iter().enumerate() {
            let life = host.as_ref().and_then(Host::life);
            let known = lives.iter().any(|(known, of)| Some(*known) == life && *of == index);
            if self.absent == Some(index) {
                if life.is_some() || lives.iter().any(|(_, of)| *of == index) {
                    let text = format!("host {index} is gone for ever and attached; {}", self.describe());
                    return Err(Failure::new(text));
                }
                continue;
            }
            if !known {
                let text = format!("everything rests, but host {index} is not attached; {}", self.describe());
                return Err(Failure::new(text));
            }
        }
        for (life, _) in lives {
            let rest = self.ledger.borrow().check_rest(life);
            rest.map_err(|failure| Failure::new(format!("{failure}; {}", self.describe())))?;
        }
        Ok(())
    }

    fn describe(&self) -> String {
        let hosts = self.hosts.iter().map(|host| host.as_ref().map_or("dead".to_owned(), Host::describe));
        let hosts: Vec<String> = hosts.collect();
        format!("hosts: {}", hosts.join(" / "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{check_determinism, run_seed};

    #[test]
    fn many_seeds_find_nothing_wrong_and_every_fault_happens() {
        let mut all = Report::default();
        for seed in 0..40 {
            let passed =
                run_seed(&mut LinkScenario, seed, 12_000).unwrap_or_else(|failed| panic!("{failed}"));
            all.merge(&passed.report);
        }
        for what in [
            "cuts",
            "card deaths",
            "host deaths",
            "card paused",
            "hosts paused",
            "hosts gone for ever",
            "hosts cut off for ever",
            "requests",
            "responses",
            "channel messages to the card",
            "channel messages to hosts",
            "events of an earlier life",
            "host threads fell asleep",
            "hosts hung up",
            "card sleeps",
            "bulk transfers",
            "bulk transfers that failed",
            "writes overtaken by another region",
        ] {
            assert!(all.get(what) > 0, "{what} never happened");
        }
    }

    /// In each of these the card is stopped for so long that a host gives it up while it connects anew.
    #[test]
    fn a_host_that_gives_up_is_not_taken_back() {
        for seed in [5573, 10043, 11429] {
            let passed = run_seed(&mut LinkScenario, seed, 5_000).unwrap_or_else(|failed| panic!("{failed}"));
            assert!(passed.report.get("hosts hung up") > 0, "seed {seed}");
        }
    }

    #[test]
    fn one_seed_gives_one_trace() {
        check_determinism(&mut LinkScenario, 7, 3_000).unwrap_or_else(|failed| panic!("{failed}"));
    }
}
