//! A host: a real core, threads that push requests and one that takes responses, asleep when there is nothing to do.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ob_core::{Incarnation, Instant, RegionId};
use ob_link::{GroupSizes, HostCore, HostEvent, OpenedGroup};
use ob_memory::Region;
use ob_ring::{CardBell, Outgoing, PushError, ReceiveError, SleepTicket};
use ob_wire_link::frame::Frame;

use super::card::DEAD_AFTER;
use super::ledger::{Hop, Ledger, Life, Name};
use super::wire::{Assembler, WireId};
use crate::Failure;

/// Producers of a group; its consumer comes after them.
const PRODUCERS: usize = 3;
/// Threads of a group.
const ROLES: usize = PRODUCERS + 1;
/// A group whose payloads are in its messages, and one whose payloads go by bulk.
const GROUPS: usize = 2;
/// Threads of a host.
pub(super) const THREADS: usize = GROUPS * ROLES;
const RING: u32 = 4096;
/// Messages that a producer has before it at most, so that a run ends some time after fate is done.
const WORK_MAX: u64 = 100;
/// Where in a region bulk begins.
pub(super) const RINGS_LEN: u64 = 4096 + 2 * RING as u64;

/// The numbers of the two services.
const RING_SERVICE: u32 = 1;
pub(super) const BULK_SERVICE: u32 = 2;
/// Places of each producer in each area, and their length: a place is used again when the answer that was there is taken.
const SLOTS: u64 = 4;
pub(super) const SLOT_LEN: u64 = 1024;
const AREA: u64 = (SLOTS * SLOT_LEN * PRODUCERS as u64).next_multiple_of(4096);

/// Where the payload of a message lies, in the host's area and then in the card's.
pub(super) fn slot_of(name: &Name) -> u64 {
    let producer = name.producer % PRODUCERS as u64;
    (producer * SLOTS + name.number % SLOTS) * SLOT_LEN
}

/// The doorbell: rung by threads, sent by the core.
#[derive(Default)]
struct Doorbell(AtomicBool);

impl CardBell for Doorbell {
    fn ring(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What a thread is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Try,
    Register,
    LastTry(SleepTicket),
    Asleep(SleepTicket),
    /// Nothing left to do until there is a new group.
    Parked,
}

/// One life of a host process.
pub(super) struct Host {
    incarnation: Incarnation,
    kind: &'static str,
    doorbell: Arc<Doorbell>,
    ledger: Rc<RefCell<Ledger>>,
    session: Option<Session>,
    /// The connection of an attachment that this host has ended: its socket is to be closed.
    hung_up: Option<WireId>,
}

/// One attachment, from the first `HELLO` to its end.
struct Session {
    core: HostCore,
    wire: Option<WireId>,
    assembler: Assembler,
    /// When the connection broke.
    cut_at: Option<Instant>,
    life: Option<Life>,
    groups: [Option<OpenedGroup>; GROUPS],
    /// Which request asked for the group that goes by bulk.
    bulk_request: u32,
    grants: BTreeMap<RegionId, Region>,
    threads: [Step; THREADS],
    quota: [u64; THREADS],
    /// A place came free that a producer may wait for.
    freed: bool,
}

impl Host {
    pub(super) fn new(incarnation: Incarnation, kind: &'static str, ledger: Rc<RefCell<Ledger>>) -> Self {
        Self { incarnation, kind, doorbell: Arc::default(), ledger, session: None, hung_up: None }
    }

    /// The attachment that lives, if any.
    pub(super) fn life(&self) -> Option<Life> {
        self.session.as_ref().and_then(|session| session.life)
    }

    /// Whether this host has no connection and wants one.
    pub(super) fn wants_connection(&self) -> bool {
        self.session.as_ref().is_none_or(|session| session.wire.is_none())
    }

    /// Gives every producer so many more messages to send.
    pub(super) fn add_work(&mut self, messages: u64) {
        let Some(session) = &mut self.session else { return };
        session.quota.iter_mut().for_each(|quota| *quota = (*quota + messages).min(WORK_MAX));
        for step in session.threads.iter_mut().filter(|step| **step == Step::Parked) {
            *step = Step::Try;
        }
    }

    /// There is a connection: says `HELLO`.
    pub(super) fn connected(&mut self, wire: WireId, quota: u64) {
        match &mut self.session {
            Some(session) => {
                session.core.reconnect();
                (session.wire, session.assembler) = (Some(wire), Assembler::default());
            }
            None => {
                self.doorbell = Arc::default();
                let core = HostCore::new(self.kind, self.incarnation, 0, self.doorbell.clone());
                self.session = Some(Session {
                    core,
                    wire: Some(wire),
                    assembler: Assembler::default(),
                    cut_at: None,
                    life: None,
                    groups: [None, None],
                    bulk_request: 0,
                    grants: BTreeMap::new(),
                    threads: [Step::Try; THREADS],
                    quota: [quota; THREADS],
                    freed: false,
                });
            }
        }
    }

    pub(super) fn lost(&mut self, wire: WireId, now: Instant) {
        let Some(session) = self.session.as_mut().filter(|session| session.wire == Some(wire)) else {
            return;
        };
        session.wire = None;
        if self.kind == "tcp" && session.life.is_some() {
            session.core.disconnected();
            session.cut_at.get_or_insert(now);
        } else {
            self.end();
        }
    }

    /// Gives the attachment up if its card was away too long. When to look again.
    pub(super) fn patience(&mut self, now: Instant) -> Option<Instant> {
        let end = self.session.as_ref()?.cut_at? + DEAD_AFTER;
        if now >= end {
            self.end();
            return None;
        }
        Some(end)
    }

    pub(super) fn grant(&mut self, id: RegionId, region: Region) {
        if let Some(session) = &mut self.session {
            session.grants.insert(id, region);
        }
    }

    pub(super) fn bytes(&mut self, wire: WireId, bytes: &[u8]) -> Result<(), Failure> {
        let Some(session) = self.session.as_mut().filter(|session| session.wire == Some(wire)) else {
            return Ok(());
        };
        session.assembler.push(bytes);
        while let Some(session) = &mut self.session {
            let Some(bytes) = session.assembler.next()? else { break };
            let frame = Frame::decode(&bytes).map_err(|error| Failure::new(error.to_string()))?;
            let region = match &frame {
                Frame::GroupOpened(opened) => session.grants.remove(&opened.region),
                _ => None,
            };
            let event = session.core.handle(&frame, region);
            let event = event.map_err(|error| Failure::new(format!("a host on {frame:?}: {error}")))?;
            if let Some(event) = event {
                self.note(event)?;
            }
        }
        self.wake_sleepers();
        Ok(())
    }

    fn note(&mut self, event: HostEvent) -> Result<(), Failure> {
        let Some(session) = &mut self.session else { return Ok(()) };
        match event {
            HostEvent::Attached(welcome) => {
                session.cut_at = None;
                session.life = Some(Life { card: welcome.card_incarnation, attachment: welcome.attachment });
                if !welcome.resumed {
                    let sizes = GroupSizes::rings(RING, RING);
                    session.core.request_group(RING_SERVICE, sizes);
                    let sizes = GroupSizes { card_area: AREA, host_area: AREA, ..sizes };
                    session.bulk_request = session.core.request_group(BULK_SERVICE, sizes).unwrap_or(0);
                }
            }
            HostEvent::GroupOpened(group) => {
                let index = usize::from(group.request == session.bulk_request);
                session.groups[index] = Some(*group);
            }
            HostEvent::Channel(message) => {
                let life = session.life.ok_or_else(|| Failure::new("a message before WELCOME"))?;
                self.ledger.borrow_mut().arrived(life, Hop::ChannelToHost, &message, &[]);
                session.core.took_message();
            }
            HostEvent::Refused { .. } | HostEvent::Goodbye { .. } => self.end(),
            HostEvent::GroupRefused { refusal, .. } => return Err(Failure::new(refusal.to_string())),
            HostEvent::GroupWithoutMemory { .. } => return Err(Failure::new("a group came without memory")),
            HostEvent::GroupClosed { text, .. } => return Err(Failure::new(format!("group closed: {text}"))),
        }
        Ok(())
    }

    fn end(&mut self) {
        if let Some(mut session) = self.session.take() {
            session.core.close_all();
            self.hung_up = session.wire;
        }
    }

    /// The connection that this host has left since it was asked last.
    pub(super) fn take_hung_up(&mut self) -> Option<WireId> {
        self.hung_up.take()
    }

    /// A bell rang: whoever sleeps on a bell that shows something new is awake.
    pub(super) fn wake_sleepers(&mut self) {
        let Some(session) = &mut self.session else { return };
        session.core.take_bells().for_each(drop);
        for (thread, step) in session.threads.iter_mut().enumerate() {
            let Some(group) = &session.groups[thread / ROLES] else { continue };
            let is_producer = thread % ROLES < PRODUCERS;
            let bell = if is_producer { group.sender.bell_now() } else { group.receiver.bell_now() };
            if matches!(step, Step::Asleep(ticket) if ticket.bell != bell) {
                *step = Step::Try;
            }
        }
    }

    /// Sends a message on the channel.
    pub(super) fn speak(&mut self) {
        let Some(session) = &mut self.session else { return };
        let Some(life) = session.life else { return };
        let mut ledger = self.ledger.borrow_mut();
        let name = ledger.next(life, Hop::ChannelToCard, 0);
        if session.core.send(&name.encode()) {
            ledger.sent(name, Hop::ChannelToCard);
        }
    }

    /// One step of one thread. `false` if it has nothing to do until it is woken.
    pub(super) fn thread(&mut self, thread: usize) -> Result<bool, Failure> {
        let Some(session) = &mut self.session else { return Ok(false) };
        let (Some(group), Some(life)) = (&session.groups[thread / ROLES], session.life) else {
            return Ok(false);
        };
        let is_producer = thread % ROLES < PRODUCERS;
        let mut attempt = |otherwise: Step| {
            if is_producer {
                produce(group, life, thread, &mut session.quota[thread], &self.ledger, otherwise)
            } else {
                let step = consume(group, life, &self.ledger, otherwise)?;
                session.freed |= step == Step::Try && group.areas.is_some();
                Ok(step)
            }
        };
        let step = match session.threads[thread] {
            Step::Try => attempt(Step::Register)?,
            Step::Register if is_producer => Step::LastTry(group.sender.register_sleeper()),
            Step::Register => Step::LastTry(group.receiver.register_sleeper()),
            Step::LastTry(ticket) => attempt(Step::Asleep(ticket))?,
            same => same,
        };
        let bell = if is_producer { group.sender.bell_now() } else { group.receiver.bell_now() };
        // The futex compares before it sleeps.
        let step = if matches!(step, Step::Asleep(ticket) if ticket.bell != bell) { Step::Try } else { step };
        session.threads[thread] = step;
        Ok(!matches!(step, Step::Asleep(_) | Step::Parked))
    }

    /// Whether a place came free: producers that waited for one go on.
    pub(super) fn take_freed(&mut self) -> bool {
        let Some(session) = &mut self.session else { return false };
        let freed = std::mem::take(&mut session.freed);
        if freed {
            session
                .threads
                .iter_mut()
                .filter(|step| **step == Step::Parked)
                .for_each(|step| *step = Step::Try);
        }
        freed
    }

    /// What is to be sent, with the doorbell if a thread rang it.
    pub(super) fn outgoing(&mut self) -> Option<(WireId, &mut Vec<u8>)> {
        let rung = self.doorbell.0.swap(false, Ordering::Relaxed);
        let session = self.session.as_mut()?;
        if rung {
            session.core.ring_card();
        }
        let wire = session.wire?;
        Some((wire, session.core.outgoing()))
    }

    pub(super) fn describe(&self) -> String {
        match &self.session {
            None => "no attachment".to_owned(),
            Some(session) => {
                format!("{:?}, threads {:?}, wire {:?}", session.life, session.threads, session.wire)
            }
        }
    }
}

fn produce(
    group: &OpenedGroup,
    life: Life,
    thread: usize,
    quota: &mut u64,
    ledger: &RefCell<Ledger>,
    otherwise: Step,
) -> Result<Step, Failure> {
    if *quota == 0 {
        return Ok(Step::Parked);
    }
    let mut ledger = ledger.borrow_mut();
    let name = ledger.next(life, Hop::Request, thread as u64);
    let payload = name.payload();
    let pieces = [&payload[..]];
    let inline = name.encode();
    let mut message = Outgoing { inline: &inline, payload: Some((&pieces, 512)) };
    if let Some(areas) = &group.areas {
        if name.number >= ledger.arrived_from(life, Hop::Response, name.producer) + SLOTS {
            return Ok(Step::Parked);
        }
        if areas.copy_in(slot_of(&name), &payload).is_err() {
            return Ok(Step::Parked);
        }
        message.payload = None;
    }
    match group.sender.push(message) {
        Ok(()) => {
            ledger.sent(name, Hop::Request);
            // Its response is on its way from now on.
            ledger.sent(name, Hop::Response);
            *quota -= 1;
            Ok(Step::Try)
        }
        Err(PushError::Retry) => Ok(otherwise),
        Err(PushError::Closed) => Ok(Step::Parked),
        Err(error) => Err(Failure::new(error.to_string())),
    }
}

fn consume(
    group: &OpenedGroup,
    life: Life,
    ledger: &RefCell<Ledger>,
    otherwise: Step,
) -> Result<Step, Failure> {
    match group.receiver.receive() {
        Ok(Some(response)) => {
            let (mut inline, mut payload) = ([0; Name::LEN], vec![0; response.payload_len()]);
            let len = response.inline(&mut inline);
            response.payload(0, &mut payload);
            response.check().map_err(|error| Failure::new(error.to_string()))?;
            if let (Some(areas), Some(name)) = (&group.areas, Name::decode(&inline[..len])) {
                payload.resize(name.payload().len(), 0);
                if areas.copy_out(slot_of(&name), &mut payload).is_err() {
                    return Ok(Step::Parked);
                }
            }
            ledger.borrow_mut().arrived(life, Hop::Response, &inline[..len], &payload);
            Ok(Step::Try)
        }
        Ok(None) => Ok(otherwise),
        Err(ReceiveError::Closed) => Ok(Step::Parked),
        Err(error) => Err(Failure::new(error.to_string())),
    }
}
