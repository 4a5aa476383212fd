//! `outboard sim ring`: host threads and a card pass messages through a group until one of them dies, again and
//! again.
//!
//! ```text
//!   producers ──push──▶ request ring ──SimDma──▶ card: echoes, holds, answers late
//!   consumers ◀─take─── response ring ◀─SimDma───┘
//!        └── sleep, bell ── ◀──── wake-ups, delayed ────▶ ── doorbell, sleep ──┘
//! ```
//!
//! Within one life of a group every message pushed is received once, in its producer's order, and so is its
//! response; nothing of an earlier life appears; and as long as work is outstanding something will happen: when
//! everybody sleeps and nothing is on its way, a wake-up was lost.
//!
//! A push is one step here. What can happen within it is loom's to explore. A claim of a response is held while
//! others go on.

mod card;
mod content;
mod host;
mod ledger;

use std::sync::atomic::Ordering;
use std::time::Duration;

use ob_core::{Incarnation, Instant, RegionId};
use ob_memory::Region;
use ob_ring::{PushError, ReceiveError, RingError};
use ob_wire_link::ring::{DATA_START, RingSpec, control};

use crate::{DmaPlan, Failure, NodeId, PerMillion, Report, Rng, Scenario, SimDma, Trace, World};
use card::{Card, CardPlan, Next, Trouble};
use host::{Host, Side, Step, read_response};
use ledger::Ledger;

const REGION: RegionId = RegionId(0);
/// Threads that hold a claim while others go on, one within the other.
const HOLDERS_MAX: u32 = 3;
/// Steps that a run may take to come to rest after its last.
const REST_STEPS_MAX: u64 = 200_000;

/// The ring between host threads and a card.
#[derive(Clone, Debug, Default)]
pub struct RingScenario;

impl Scenario for RingScenario {
    fn name(&self) -> &'static str {
        "ring"
    }

    fn run(&mut self, seed: u64, steps: u64, trace: &mut Trace) -> Result<Report, Failure> {
        Run::new(seed, steps, trace.clone()).play()
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A host thread takes its next step.
    Thread(usize),
    /// A bell wakes those who sleep on it.
    Bell(Side),
    /// The host learns that the card is gone.
    CardGone,
    /// The card's reactor has a timer due.
    CardTurn,
    /// The card's doorbell rang.
    Doorbell,
    /// The two meet (again).
    Attach,
}

/// The node that lives through everything and brings the two together.
struct Run {
    steps: u64,
    taken: u64,
    trace: Trace,
    world: World<Event>,
    rng: Rng,
    matchmaker: NodeId,
    host_node: NodeId,
    card_node: NodeId,
    life: Incarnation,
    region: Option<Region>,
    host: Option<Host>,
    card: Option<Card>,
    ledger: Ledger,
    specs: Option<(RingSpec, RingSpec)>,
    /// How likely one of the two dies at a step.
    death: PerMillion,
    holders: u32,
    report: Report,
}

impl Run {
    fn new(seed: u64, steps: u64, trace: Trace) -> Self {
        let mut world = World::new(trace.clone());
        let [matchmaker, host_node, card_node] = [(); 3].map(|()| world.add_node());
        Self {
            steps,
            taken: 0,
            trace,
            world,
            rng: Rng::new(seed),
            matchmaker,
            host_node,
            card_node,
            life: Incarnation(0),
            region: None,
            host: None,
            card: None,
            ledger: Ledger::new(Incarnation(0), 0),
            specs: None,
            death: PerMillion::NEVER,
            holders: 0,
            report: Report::default(),
        }
    }

    fn play(mut self) -> Result<Report, Failure> {
        self.world.schedule_in(self.matchmaker, Duration::ZERO, Event::Attach);
        loop {
            while self.one_event()? {}
            // Nothing is left to happen.
            self.check_rest()?;
            self.report.count("lives ended in order", 1);
            if self.is_closing() {
                break;
            }
            self.part();
            self.world.schedule_in(self.matchmaker, Duration::from_micros(1), Event::Attach);
        }
        self.report.count("events of an earlier life", self.world.dropped());
        self.report.count("lives", self.life.0);
        Ok(self.report)
    }

    /// Whether the run should come to an end.
    fn is_closing(&self) -> bool {
        self.taken >= self.steps
    }

    fn one_event(&mut self) -> Result<bool, Failure> {
        let Some((_, event)) = self.world.next_event() else { return Ok(false) };
        self.taken += 1;
        if self.taken > self.steps + REST_STEPS_MAX {
            return Err(Failure::new(format!("never comes to rest; {}", self.describe())));
        }
        if let Some(card) = &mut self.card {
            card.dma.advance(self.world.now());
        }
        match event {
            Event::Attach => self.attach()?,
            Event::Thread(thread) => self.thread(thread)?,
            Event::Bell(side) => self.wake(side),
            Event::CardGone => self.card_gone(),
            Event::CardTurn => self.card_turn(false)?,
            Event::Doorbell => self.card_turn(true)?,
        }
        self.maybe_die();
        Ok(true)
    }

    /// Makes a new group for the next life of both halves.
    fn attach(&mut self) -> Result<(), Failure> {
        self.life = Incarnation(self.life.0 + 1);
        for node in [self.host_node, self.card_node] {
            if !self.world.is_alive(node) {
                self.world.revive(node);
            }
        }
        let mut rng = self.rng.fork_numbered("life", self.life.0);
        let capacity = |rng: &mut Rng| 4096 << rng.below(3);
        let (request, response) = (capacity(&mut rng), capacity(&mut rng));
        let transfer_max = *rng.choose(&[1024, 2048, 4096, 1 << 20]).unwrap_or(&4096);
        let group = RingSpec::group(REGION, request, response, transfer_max);
        let (request, response, len) = group.map_err(|error| Failure::new(error.to_string()))?;
        let region = self.fresh_region(len as usize, &mut rng);
        self.trace.note("attach", &[self.life.0, request.capacity().into(), response.capacity().into()]);
        let producers = rng.range(1..5) as usize;
        let consumers = rng.range(1..4) as usize;
        let most = *rng.choose(&[5, 50, 300]).unwrap_or(&5);
        let quota = if self.is_closing() { 0 } else { rng.below(most) + 1 };
        let host = Host::new(&region, (request, response), vec![quota; producers], consumers);
        let dma_plan = dma_plan(&mut rng, transfer_max as usize);
        let mut dma = SimDma::new(dma_plan, rng.fork("dma"), self.trace.clone());
        dma.register(REGION, region.clone());
        let plan = card_plan(&mut rng);
        let clock = self.world.clock().clone();
        self.card = Some(Card::new(dma, (request, response), plan, rng.fork("card"), clock));
        self.ledger = Ledger::new(self.life, producers);
        self.death = if rng.one_in(2) { PerMillion(300) } else { PerMillion::NEVER };
        self.specs = Some((request, response));
        for thread in 0..host.threads.len() {
            self.world.schedule_in(self.host_node, self.rng.skewed(THREAD_PAUSE), Event::Thread(thread));
        }
        (self.host, self.region) = (Some(host), Some(region));
        self.world.schedule_in(self.card_node, Duration::ZERO, Event::CardTurn);
        Ok(())
    }

    /// Memory for a group: fresh, or what a host left behind that is certainly dead, with its old messages in it.
    fn fresh_region(&mut self, len: usize, rng: &mut Rng) -> Region {
        let left = self.region.take().filter(|left| left.len() == len && self.holders == 0 && rng.one_in(2));
        let Some(left) = left else { return Region::on_heap(len) };
        self.report.count("regions reused", 1);
        (0..DATA_START).step_by(8).for_each(|offset| left.store(offset, 0, Ordering::Relaxed));
        left
    }

    /// Both halves give the group up, in order.
    fn part(&mut self) {
        self.trace.note("part", &[self.life.0]);
        self.collect_stats();
        (self.host, self.card) = (None, None);
        // Whatever was meant for the old group must not reach the new one.
        for node in [self.host_node, self.card_node] {
            self.world.kill(node);
        }
    }

    fn collect_stats(&mut self) {
        let Some(card) = &self.card else { return };
        let stats = card.dma.stats();
        for (what, times) in [
            ("dma busy", stats.busy),
            ("dma torn reads", stats.torn_reads),
            ("dma torn words", stats.torn_words),
            ("dma torn writes", stats.torn_writes),
            ("dma reads before writes", stats.reads_before_writes),
            ("dma overtaken", stats.overtaken),
            ("bells", stats.bells),
            ("messages", self.ledger.pushed_in_all()),
        ] {
            self.report.count(what, times);
        }
    }

    fn maybe_die(&mut self) {
        if self.host.is_none() || self.card.is_none() || self.is_closing() || !self.rng.chance(self.death) {
            return;
        }
        if self.rng.one_in(2) { self.host_dies() } else { self.card_dies() }
    }

    fn host_dies(&mut self) {
        self.report.count("host deaths", 1);
        self.world.kill(self.host_node);
        self.host = None;
        if let Some(card) = &mut self.card {
            card.dma.fail();
        }
        // The card notices sooner or later; until then it goes on.
        let delay = self.rng.skewed(Duration::ZERO..Duration::from_micros(50));
        self.world.schedule_in(self.card_node, delay, Event::Doorbell);
    }

    fn card_dies(&mut self) {
        self.report.count("card deaths", 1);
        self.collect_stats();
        self.world.kill(self.card_node);
        if let Some(mut card) = self.card.take() {
            card.dma.fail();
        }
        self.region = None;
        let delay = self.rng.skewed(Duration::ZERO..Duration::from_micros(50));
        self.world.schedule_in(self.host_node, delay, Event::CardGone);
    }

    fn card_gone(&mut self) {
        let Some(host) = &mut self.host else { return };
        host.closed.close();
        for side in [Side::Request, Side::Response] {
            self.wake(side);
        }
    }

    fn wake(&mut self, side: Side) {
        let Some(host) = &mut self.host else { return };
        let woken = host.wake(side);
        self.trace.note("bell", &[side as u64, woken.len() as u64]);
        self.report.count("host wake-ups", woken.len() as u64);
        for thread in woken {
            self.pause(thread);
        }
    }

    fn pause(&mut self, thread: usize) {
        let pause = self.rng.skewed(THREAD_PAUSE);
        self.world.schedule_in(self.host_node, pause, Event::Thread(thread));
    }

    fn thread(&mut self, thread: usize) -> Result<(), Failure> {
        let Some(host) = &mut self.host else { return Ok(()) };
        let side = host.side(thread);
        let step = match host.threads[thread] {
            Step::Ready => self.look(thread, side, Step::Register)?,
            Step::Register => Step::LastLook { ticket: host.register(side) },
            Step::LastLook { ticket } => self.look(thread, side, Step::Sleep { ticket })?,
            Step::Sleep { ticket } => host.sleep(thread, ticket),
            asleep_or_ended => asleep_or_ended,
        };
        let Some(host) = &mut self.host else { return Ok(()) };
        // While this thread held a claim its life may have ended and another begun.
        let Some(slot) = host.threads.get_mut(thread) else { return Ok(()) };
        *slot = step;
        self.trace.note("thread", &[thread as u64, step_number(step)]);
        match step {
            Step::Ended => self.maybe_all_ended(),
            Step::Asleep { .. } => self.report.count("host sleeps", 1),
            _ => self.pause(thread),
        }
        self.hear_doorbell();
        Ok(())
    }

    /// Tries to push or to take; the thread's next step, `otherwise` if it could not.
    fn look(&mut self, thread: usize, side: Side, otherwise: Step) -> Result<Step, Failure> {
        match side {
            Side::Request => self.produce(thread, otherwise),
            Side::Response => self.consume(otherwise),
        }
    }

    fn produce(&mut self, thread: usize, otherwise: Step) -> Result<Step, Failure> {
        let closing = self.is_closing();
        let Some(host) = &mut self.host else { return Ok(Step::Ended) };
        if host.quota[thread] == 0 || closing {
            host.quota[thread] = 0;
            return Ok(Step::Ended);
        }
        let name = self.ledger.next_name(thread);
        match host.push(name) {
            Ok(()) => {
                host.quota[thread] -= 1;
                self.ledger.pushed(thread);
                self.trace.note("push", &[thread as u64, name.number]);
                Ok(Step::Ready)
            }
            Err(PushError::Retry) => Ok(otherwise),
            Err(PushError::Closed) => Ok(Step::Ended),
            Err(error) => Err(Failure::new(error.to_string())),
        }
    }

    fn consume(&mut self, otherwise: Step) -> Result<Step, Failure> {
        let Some(host) = &self.host else { return Ok(Step::Ended) };
        let (receiver, message_max, life) = (host.receiver.clone(), host.message_max, self.life);
        let claimed = match receiver.receive() {
            Ok(Some(claimed)) => claimed,
            Ok(None) => return Ok(otherwise),
            Err(ReceiveError::Closed) => return Ok(Step::Ended),
            Err(error) => return Err(Failure::new(error.to_string())),
        };
        let Some((response, whole)) = read_response(&claimed, message_max) else {
            return Err(Failure::new("a host thread took a response without a name"));
        };
        self.trace.note("take", &[response.number, response.name.producer, response.name.number]);
        self.ledger.taken(response, whole).map_err(|violation| Failure::new(violation.to_string()))?;
        if self.holders < HOLDERS_MAX && self.rng.one_in(10) {
            self.hold()?;
        }
        drop(claimed);
        // A thread of an earlier life has nothing more to do; what it just settled was the old group's.
        Ok(if life == self.life { Step::Ready } else { Step::Asleep { ticket: 0 } })
    }

    /// Lets the others go on while this thread holds a claim.
    fn hold(&mut self) -> Result<(), Failure> {
        self.report.count("claims held", 1);
        self.holders += 1;
        let life = self.life;
        for _ in 0..self.rng.below(40) {
            if self.life != life || self.host.is_none() || !self.one_event()? {
                break;
            }
        }
        self.holders -= 1;
        Ok(())
    }

    fn maybe_all_ended(&mut self) {
        let ended = self.host.as_ref().is_some_and(Host::has_ended);
        if ended && self.card.is_none() {
            self.host = None;
            self.world.kill(self.host_node);
            self.world.schedule_in(self.matchmaker, Duration::from_micros(5), Event::Attach);
        }
    }

    fn hear_doorbell(&mut self) {
        if self.host.as_ref().is_some_and(|host| host.doorbell.take()) && self.card.is_some() {
            self.report.count("doorbells", 1);
            let delay = self.rng.skewed(Duration::ZERO..Duration::from_micros(20));
            self.world.schedule_in(self.card_node, delay, Event::Doorbell);
        }
    }

    fn card_turn(&mut self, doorbell: bool) -> Result<(), Failure> {
        let now = self.world.now();
        let Some(card) = &mut self.card else { return Ok(()) };
        if !doorbell {
            // Only the latest timer counts: an old one must not wake a card that sleeps.
            if card.wake_at.is_some_and(|at| at != now) {
                return Ok(());
            }
            card.wake_at = None;
        }
        let next = match card.turn(doorbell, &mut self.ledger) {
            Ok(next) => next,
            Err(Trouble::Ring(RingError::Dma(ob_core::DmaError::LinkDown))) if self.host.is_none() => {
                self.card_lets_go();
                return Ok(());
            }
            Err(trouble) => return Err(trouble.into()),
        };
        self.trace.note("card", &[u64::from(doorbell), matches!(next, Next::Doorbell).into()]);
        for (at, bell) in card.dma.take_bells() {
            let Some((request, _)) = self.specs else { break };
            let is_request = bell.address.offset == request.word(control::BELL);
            let side = if is_request { Side::Request } else { Side::Response };
            let delay = self.rng.skewed(Duration::ZERO..Duration::from_micros(20));
            self.world.schedule(self.host_node, at + delay, Event::Bell(side));
        }
        self.card_waits(next);
        Ok(())
    }

    fn card_waits(&mut self, next: Next) {
        let now = self.world.now();
        let Some(card) = &mut self.card else { return };
        let at = match next {
            Next::Soon => now + self.rng.skewed(Duration::from_nanos(50)..Duration::from_micros(2)),
            Next::At(at) => at.max(now),
            Next::Doorbell => {
                self.report.count("card sleeps", 1);
                card.wake_at = Some(Instant::from_nanoseconds(u64::MAX));
                return;
            }
        };
        card.wake_at = Some(at);
        self.world.schedule(self.card_node, at, Event::CardTurn);
    }

    /// The host is dead, and the card has seen it.
    fn card_lets_go(&mut self) {
        self.trace.note("card lets go", &[self.life.0]);
        self.collect_stats();
        self.card = None;
        self.world.kill(self.card_node);
        self.world.schedule_in(self.matchmaker, Duration::from_micros(5), Event::Attach);
    }

    /// Nothing can happen any more: then nothing may be left to do.
    fn check_rest(&mut self) -> Result<(), Failure> {
        let Some(host) = &self.host else {
            return Err(Failure::new(format!("the halves never met again; {}", self.describe())));
        };
        let (unreceived, untaken) = self.ledger.outstanding();
        let unpushed: u64 = host.quota.iter().sum();
        if unpushed + unreceived + untaken > 0 {
            let text = format!(
                "nothing can happen any more (a wake-up was lost), but {unpushed} messages are to be pushed, \
                 {unreceived} received and {untaken} responses taken; {}",
                self.describe()
            );
            return Err(Failure::new(text));
        }
        self.collect_stats_once_at_end();
        Ok(())
    }

    fn collect_stats_once_at_end(&mut self) {
        if self.is_closing() {
            self.collect_stats();
        }
    }

    fn describe(&self) -> String {
        let card = self.card.as_ref().map_or_else(|| "no card".to_owned(), Card::describe);
        let threads = self.host.as_ref().map_or(&[][..], |host| &host.threads);
        format!("life {}, {card}; host threads: {threads:?}", self.life.0)
    }
}

/// How long a host thread does something else between two steps.
const THREAD_PAUSE: std::ops::Range<Duration> = Duration::from_nanos(20)..Duration::from_micros(30);

fn step_number(step: Step) -> u64 {
    match step {
        Step::Ready => 0,
        Step::Register => 1,
        Step::LastLook { .. } => 2,
        Step::Sleep { .. } => 3,
        Step::Asleep { .. } => 4,
        Step::Ended => 5,
    }
}

fn dma_plan(rng: &mut Rng, largest_transfer: usize) -> DmaPlan {
    let latency_max = [Duration::from_nanos(300), Duration::from_micros(5), Duration::from_micros(50)];
    DmaPlan {
        depth: *rng.choose(&[4, 16, 256]).unwrap_or(&16),
        largest_transfer,
        latency: Duration::from_nanos(50)..*rng.choose(&latency_max).unwrap_or(&latency_max[1]),
        bell_latency: Duration::ZERO..Duration::from_micros(20),
        busy: *rng.choose(&[PerMillion::NEVER, PerMillion::percent(10)]).unwrap_or(&PerMillion::NEVER),
        pieces: PerMillion::percent(50),
        ..DmaPlan::default()
    }
}

fn card_plan(rng: &mut Rng) -> CardPlan {
    CardPlan {
        looks_anew: *rng.choose(&[PerMillion::NEVER, PerMillion::percent(20)]).unwrap_or(&PerMillion::NEVER),
        held_max: *rng
            .choose(&[Duration::from_nanos(1), Duration::from_micros(5), Duration::from_micros(80)])
            .unwrap_or(&Duration::from_micros(5)),
        leaves_completions: *rng
            .choose(&[PerMillion::NEVER, PerMillion::percent(50)])
            .unwrap_or(&PerMillion::NEVER),
        looks_max: *rng.choose(&[1, 2, 10]).unwrap_or(&2),
    }
}
