//! The card: real attachments over three kinds of engine.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use ob_core::{AttachmentId, Incarnation, Instant, RegionId};
use ob_link::{CardAttachment, CardDma, CardEvent, Costs, FrameDma, Identity, LinkKind, ModelDma};
use ob_memory::Region;
use ob_ring::{Armed, LocalDma};
use ob_wire_link::frame::{Frame, Hello, RefusedCode};

use super::engine::SharedDma;
use super::ledger::{Hop, Ledger, Life};
use super::service::Echo;
use super::wire::{Assembler, WireId};
use crate::{Failure, Rng, SimClock, Trace};

/// How long a host may be away.
pub(super) const DEAD_AFTER: Duration = Duration::from_millis(20);

/// What goes out on a wire, and bells to be heard by a host.
pub(super) enum Effect {
    Send(WireId, Vec<u8>),
    /// Nobody is at the other end any more.
    Hang(WireId),
    /// Sleepers of a host's memory are woken.
    Bell(usize),
    /// Memory for a host, ahead of the frame that grants it.
    Grant(usize, RegionId, Region),
}

/// One life of the card.
pub(super) struct Card {
    incarnation: Incarnation,
    clock: SimClock,
    trace: Trace,
    rng: Rng,
    strangers: BTreeMap<WireId, (usize, Assembler)>,
    hosts: Vec<Attached>,
    next_attachment: u64,
    service: Echo,
}

struct Attached {
    core: CardAttachment<SimClock>,
    /// The engine, where it is the card's own.
    engine: Option<SharedDma>,
    host: usize,
    wire: Option<WireId>,
    assembler: Assembler,
    away_since: Option<Instant>,
    over: bool,
}

/// What a turn came to.
pub(super) enum Rest {
    /// There is more to do at once.
    Again,
    /// Asleep, but not beyond this instant.
    Until(Option<Instant>),
}

impl Card {
    pub(super) fn new(
        incarnation: Incarnation,
        clock: SimClock,
        trace: Trace,
        rng: Rng,
        ledger: Rc<RefCell<Ledger>>,
    ) -> Self {
        let service = Echo::new(incarnation, ledger);
        Self {
            incarnation,
            clock,
            trace,
            rng,
            strangers: BTreeMap::new(),
            hosts: Vec::new(),
            next_attachment: 1,
            service,
        }
    }

    /// Does to the memory of hosts what is due by now.
    pub(super) fn advance(&self, now: Instant) {
        self.hosts.iter().filter_map(|host| host.engine.as_ref()).for_each(|engine| engine.advance(now));
    }

    /// The card dies: its engines stop in the midst of what they do.
    pub(super) fn die(&self) {
        self.hosts.iter().filter_map(|host| host.engine.as_ref()).for_each(SharedDma::fail);
    }

    /// Attachments that live, and their hosts.
    pub(super) fn lives(&self) -> Vec<(Life, usize)> {
        let life =
            |host: &Attached| Life { card: self.incarnation, attachment: host.core.identity().attachment };
        self.hosts.iter().map(|host| (life(host), host.host)).collect()
    }

    pub(super) fn accept(&mut self, wire: WireId, host: usize) {
        self.strangers.insert(wire, (host, Assembler::default()));
    }

    pub(super) fn bytes(&mut self, wire: WireId, bytes: &[u8]) {
        if let Some((_, assembler)) = self.strangers.get_mut(&wire) {
            assembler.push(bytes);
        }
        for host in self.hosts.iter_mut().filter(|host| host.wire == Some(wire)) {
            host.assembler.push(bytes);
        }
    }

    pub(super) fn lost(&mut self, wire: WireId, now: Instant) {
        self.strangers.remove(&wire);
        for host in self.hosts.iter_mut().filter(|host| host.wire == Some(wire)) {
            host.wire = None;
            if host.core.identity().kind == LinkKind::Tcp {
                host.core.disconnected();
                host.away_since = Some(now);
            } else {
                host.over = true;
            }
        }
    }

    /// Sends a channel message to one of the hosts.
    pub(super) fn speak(&mut self) {
        let index = self.rng.index(self.hosts.len().max(1));
        let Some(host) = self.hosts.get_mut(index) else { return };
        let life = Life { card: self.incarnation, attachment: host.core.identity().attachment };
        let mut ledger = self.service.ledger().borrow_mut();
        let name = ledger.next(life, Hop::ChannelToHost, 0);
        if host.core.send(&name.encode()) {
            ledger.sent(name, Hop::ChannelToHost);
        }
    }

    /// Everything there is to do now; then rings are made ready and the card sleeps, as the real loop does.
    pub(super) fn turn(&mut self, now: Instant, effects: &mut Vec<Effect>) -> Result<Rest, Failure> {
        self.meet(effects)?;
        let mut worked = false;
        for index in 0..self.hosts.len() {
            worked |= self.serve(index, now, effects)?;
        }
        self.bury(now, effects);
        if worked {
            return Ok(Rest::Again);
        }
        let mut ready = true;
        let mut due = None;
        for index in 0..self.hosts.len() {
            let mut events = Vec::new();
            let host = &mut self.hosts[index];
            let armed = host.core.arm(&mut self.service, &mut events);
            ready &= armed == Armed::Yes || host.core.is_waiting();
            self.act(index, events, effects)?;
            self.flush(index, now, effects);
            let host = &self.hosts[index];
            let away = host.away_since.map(|since| since + DEAD_AFTER);
            due = [due, host.core.next_due(), away].into_iter().flatten().min();
        }
        Ok(if ready { Rest::Until(due) } else { Rest::Again })
    }

    fn meet(&mut self, effects: &mut Vec<Effect>) -> Result<(), Failure> {
        let wires: Vec<WireId> = self.strangers.keys().copied().collect();
        for wire in wires {
            let Some((host, assembler)) = self.strangers.get_mut(&wire) else { continue };
            let Some(bytes) = assembler.next()? else { continue };
            let Ok(Frame::Hello(hello)) = Frame::decode(&bytes) else {
                return Err(Failure::new("a host's first frame is no HELLO"));
            };
            let host = *host;
            let rest = self.strangers.remove(&wire).map(|(_, assembler)| assembler).unwrap_or_default();
            self.greet(wire, host, &hello, rest, effects)?;
        }
        Ok(())
    }

    fn greet(
        &mut self,
        wire: WireId,
        host: usize,
        hello: &Hello,
        assembler: Assembler,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Failure> {
        let Some(resume) = hello.resume else {
            self.attach(wire, host, hello, assembler);
            return Ok(());
        };
        let known = self.hosts.iter_mut().find(|host| !host.over && host.core.may_resume(&resume));
        let Some(known) = known else {
            let mut refusal = Vec::new();
            let code = RefusedCode::NoSuchAttachment as u32;
            Frame::Refused { code, text: "that attachment is over" }.encode(&mut refusal);
            effects.push(Effect::Send(wire, refusal));
            return Ok(());
        };
        known.core.disconnected();
        effects.extend(known.wire.replace(wire).map(Effect::Hang));
        (known.assembler, known.away_since) = (assembler, None);
        known.core.resume(resume.received).map_err(|error| Failure::new(format!("resuming: {error}")))
    }

    fn attach(&mut self, wire: WireId, host: usize, hello: &Hello, assembler: Assembler) {
        // The host's name tells which kind of link it has.
        let attachment = AttachmentId(self.next_attachment);
        let mut engine = None;
        let (kind, dma) = match hello.name.as_str() {
            "tcp" => (LinkKind::Tcp, CardDma::frame(FrameDma::new(64))),
            "model" => {
                let local = LocalDma::new(64, 1 << 20);
                (LinkKind::Model, CardDma::model(ModelDma::new(local, self.clock.clone(), Costs::PCIE4, 64)))
            }
            _ => {
                let rng = self.rng.fork_numbered("engine", attachment.0);
                let own = SharedDma::new(rng, self.trace.clone());
                engine = Some(own.clone());
                self.service.expect_failures(attachment);
                (LinkKind::Model, CardDma::own(Box::new(own)))
            }
        };
        let identity = Identity {
            attachment,
            secret: self.rng.word() | 1,
            card_incarnation: self.incarnation,
            host_incarnation: hello.host_incarnation,
            name: hello.name.clone(),
            kind,
            card_pollers: 1,
            host_pollers: 0,
        };
        self.next_attachment += 1;
        let core = CardAttachment::new(identity, dma);
        let wire = Some(wire);
        self.hosts.push(Attached { core, engine, host, wire, assembler, away_since: None, over: false });
    }

    fn serve(&mut self, index: usize, now: Instant, effects: &mut Vec<Effect>) -> Result<bool, Failure> {
        let mut events = Vec::new();
        let mut worked = false;
        while let Some(bytes) = self.hosts[index].assembler.next()? {
            let frame = Frame::decode(&bytes).map_err(|error| Failure::new(error.to_string()))?;
            worked |= !matches!(frame, Frame::DmaDone { .. });
            let handled = self.hosts[index].core.handle(&frame, &mut self.service);
            events.extend(handled.map_err(|error| Failure::new(format!("the card on {frame:?}: {error}")))?);
            self.act(index, std::mem::take(&mut events), effects)?;
        }
        worked |= self.hosts[index].core.poll(&mut self.service, &mut events);
        self.act(index, events, effects)?;
        self.flush(index, now, effects);
        Ok(worked)
    }

    fn act(
        &mut self,
        index: usize,
        events: Vec<CardEvent>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Failure> {
        for event in events {
            let host = &mut self.hosts[index];
            match event {
                CardEvent::OpenGroup { request, service, sizes } => {
                    let plan = host.core.plan_group(sizes);
                    let plan = plan.map_err(|error| Failure::new(error.to_string()))?;
                    let local = host.core.identity().kind != LinkKind::Tcp;
                    let region = local.then(|| Region::on_heap(plan.region_len as usize));
                    effects
                        .extend(region.clone().map(|region| Effect::Grant(host.host, plan.region(), region)));
                    let opened = host.core.open_group(request, service, &plan, region, &mut self.service);
                    opened.map_err(|error| Failure::new(error.to_string()))?;
                }
                CardEvent::GroupClosed { group, .. } => {
                    return Err(Failure::new(format!("the card closed {group}, which nobody asked for")));
                }
                CardEvent::Goodbye => host.over = true,
            }
        }
        Ok(())
    }

    fn flush(&mut self, index: usize, now: Instant, effects: &mut Vec<Effect>) {
        let host = &mut self.hosts[index];
        let rung = host.core.take_wakes(now).count();
        if rung > 0 {
            effects.push(Effect::Bell(host.host));
        }
        if let (Some(wire), Ok(out)) = (host.wire, host.core.outgoing())
            && !out.is_empty()
        {
            effects.push(Effect::Send(wire, std::mem::take(out)));
        }
    }

    fn bury(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        for host in &mut self.hosts {
            host.over |= host.away_since.is_some_and(|since| now.since(since) >= DEAD_AFTER);
            if host.over {
                host.core.shut_down(&mut self.service);
                let overtaken = host.engine.as_ref().map_or(0, SharedDma::writes_overtaken);
                self.service.ledger().borrow_mut().overtaken += overtaken;
                effects.extend(host.wire.take().map(Effect::Hang));
            }
        }
        self.hosts.retain(|host| !host.over);
    }
}
