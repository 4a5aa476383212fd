//! The host of a tier: `TierCore` behind a port, driven as `outboard host` drives it.
//!
//! A round takes all events of the port, twice, and all answers of the store, before it looks at a header (I2); then it does what the tier
//! wants. When nothing has moved it registers to be rung for, looks once more, and is not turned until a bell shows something new or it is
//! time.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use ob_core::{Incarnation, Instant, ServerId};
use ob_sim::{Failure, Report, Trace};
use ob_split::host::{HostEnds, Port, PortError, PortEvent, PortOptions, PostError, Ticket};
use ob_split::wire::{Completion, HeaderEntry};
use ob_volume::metadata::{Keys, MetadataStore};
use ob_volume::plans::{PostedPlan, definitions};
use ob_volume::press::Presser;
use ob_volume::tier::{
    AdminAnswer, AdminError, AdminRequest, PortNumber, Press, SEGMENT_BLOCKS, ServerStatus,
    Ticket as AdminTicket, TierAction, TierConfig, TierCore, TierError, TierEvent, TierNews, TierStatus,
};

use super::CHUNK_LEN;
use super::boot::DriftClock;
use super::link::{Ends, HostEnd};
use super::points::{Deed, Points};
use super::sockets::Spoken;
use super::store::StoreEnd;
use super::watch::{Owners, Watch};

/// Messages of the port that are taken before its answers go out.
const EVENTS_A_ROUND: usize = 2048;
const PORT: PortNumber = PortNumber(0);

/// Why a host's port is over.
#[derive(Debug)]
pub(super) struct Over(pub(super) String);

impl From<PortError> for Over {
    fn from(error: PortError) -> Self {
        Self(error.to_string())
    }
}

impl From<PostError> for Over {
    fn from(error: PostError) -> Self {
        Self(error.to_string())
    }
}

impl From<TierError> for Over {
    fn from(error: TierError) -> Self {
        Self(error.to_string())
    }
}

/// Whether something was done.
enum Done {
    Yes,
    NoRoom,
}

/// An operator's answer.
pub(super) type Told = (AdminTicket, Result<AdminAnswer, AdminError>);

/// What is seen of all hosts.
#[derive(Clone, Default)]
pub(super) struct Seen {
    pub(super) owners: Owners,
    pub(super) points: Rc<RefCell<Points>>,
    pub(super) spoken: Spoken,
}

/// One life of the host.
pub(super) struct Host {
    end: HostEnd,
    port: Port<Ends>,
    tier: TierCore,
    store: StoreEnd,
    /// What leases are counted on: all that the tier hears of time.
    clock: DriftClock,
    /// What the port, or the store, had no room for.
    waiting: VecDeque<TierAction>,
    headers: Vec<HeaderEntry>,
    /// What a server has told, out of the card's area.
    brought: Vec<u8>,
    /// Commands that the tier may have, and has room for once the port is open.
    commands_most: usize,
    commands_max: usize,
    /// What the bells showed when it went to sleep.
    asleep: Option<Ticket>,
    trace: Trace,
    watch: Watch,
    seen: Seen,
    keys: Keys,
    /// What has happened to it where it came by.
    struck: Option<Deed>,
    /// What the operator is told.
    told: Vec<Told>,
    presser: Presser,
    /// Chunks sealed, replicas made.
    sealed: u64,
    resolved: u64,
    repaired: u64,
    mended: u64,
    dropped: u64,
}

impl Host {
    pub(super) fn new(
        config: TierConfig,
        end: HostEnd,
        incarnation: Incarnation,
        (store, clock): (StoreEnd, DriftClock),
        (trace, seen): (&Trace, Seen),
    ) -> Result<Self, Failure> {
        let failed =
            |error: &dyn std::fmt::Display| Failure::new(format!("the host does not begin: {error}"));
        let watch =
            Watch::new(&config, (store.clone(), clock), (Rc::clone(&seen.owners), Rc::clone(&seen.spoken)));
        let commands_most = config.commands_max;
        let keys = config.keys.clone();
        let tier = TierCore::new(config).map_err(|error| failed(&error))?;
        let options = PortOptions { incarnation, ..PortOptions::default() };
        let port = Port::open(end.ends(), &options).map_err(|error| failed(&error))?;
        Ok(Self {
            end,
            port,
            tier,
            store,
            clock,
            waiting: VecDeque::new(),
            headers: Vec::new(),
            brought: Vec::new(),
            commands_most,
            commands_max: 0,
            asleep: None,
            trace: trace.clone(),
            watch,
            seen,
            keys,
            struck: None,
            told: Vec::new(),
            presser: Presser::default(),
            sealed: 0,
            resolved: 0,
            repaired: 0,
            mended: 0,
            dropped: 0,
        })
    }

    pub(super) fn status(&self) -> TierStatus {
        self.tier.status()
    }

    /// Whether a server that is none of these has room for one more chunk.
    pub(super) fn has_room_beside(&self, members: &[ServerId]) -> bool {
        let is_other = |server: &ServerStatus| server.server.is_some_and(|id| !members.contains(&id));
        let has_room = |server: &ServerStatus| !server.is_full && server.free >= u64::from(CHUNK_LEN);
        self.tier.status().servers.iter().any(|server| is_other(server) && has_room(server))
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        let Some(ticket) = self.asleep else { return true };
        let has_rung = self.end.receiver.bell_now() != ticket.responses
            || ticket.room.is_some_and(|bell| self.end.sender.bell_now() != bell);
        has_rung || self.next_due().is_some_and(|due| due <= now)
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        let tier = self.tier.next_due().map(|due| self.clock.when(due));
        [tier, self.store.next_due()].into_iter().flatten().min()
    }

    /// What it has done.
    pub(super) fn count(&self, report: &mut Report) {
        let status = self.tier.status();
        for (what, times) in [
            ("chunks sealed", self.sealed),
            ("records resolved", self.resolved),
            ("replicas made", self.repaired),
            ("records mended", self.mended),
            ("replicas dropped", self.dropped),
            ("segments taken", status.segments_taken),
            ("segments handed over", status.segments_released),
            ("segments lost", status.segments_lost),
            ("chunks opened", status.chunks_opened),
            ("chunks broken", status.chunks_broken),
            ("sessions lost", status.sessions_lost),
            ("bad members", status.bad_members),
            ("reads again", status.reads_again),
            ("servers silent", status.servers_silent),
            ("answers withheld", status.withheld),
            ("mistakes", status.mistakes),
        ] {
            report.count(what, times);
        }
    }

    /// It is to end, and gives back what it has.
    pub(super) fn leave(&mut self, now: Instant) -> Result<(), Over> {
        self.asleep = None;
        Ok(self.tier.handle(self.clock.shows(now), TierEvent::Leave)?)
    }

    /// An operator asks.
    pub(super) fn administer(
        &mut self,
        now: Instant,
        ticket: AdminTicket,
        request: AdminRequest,
    ) -> Result<(), Over> {
        self.asleep = None;
        Ok(self.tier.handle(self.clock.shows(now), TierEvent::Administer { ticket, request })?)
    }

    pub(super) fn take_told(&mut self) -> Vec<Told> {
        std::mem::take(&mut self.told)
    }

    pub(super) fn has_left(&self) -> bool {
        self.tier.has_left()
    }

    /// Its process ends.
    pub(super) fn die(self) {
        self.end.closed.close();
        self.watch.end();
        self.store.lose();
    }

    /// What has happened to it, if it has come by where something does.
    pub(super) fn take_struck(&mut self) -> Option<Deed> {
        self.struck.take()
    }

    /// One turn of its thread, up to where it would sleep.
    pub(super) fn turn(&mut self, now: Instant) -> Result<(), Over> {
        self.asleep = None;
        if self.round(now)? || self.struck.is_some() {
            return Ok(());
        }
        let ticket = self.port.register();
        // Once more, now that whoever brings something rings.
        if !self.round(now)? {
            self.asleep = Some(ticket);
        }
        Ok(())
    }

    fn round(&mut self, now: Instant) -> Result<bool, Over> {
        let now = self.clock.shows(now);
        let mut moved = false;
        // Twice: what came while the first look went on is older than the headers that it has found (I2).
        for _ in 0..2 {
            moved |= self.take_events(now)?;
        }
        moved |= self.take_answers(now)?;
        self.tier.set_load(PORT, self.port.load());
        for header in std::mem::take(&mut self.headers) {
            self.watch.asked(&header, SEGMENT_BLOCKS);
            self.tier.handle(now, TierEvent::Header { port: PORT, header })?;
        }
        if self.tier.next_due().is_some_and(|due| due <= now) {
            self.tier.handle(now, TierEvent::Tick)?;
            moved = true;
        }
        moved |= self.perform(now)?;
        if self.struck.is_some_and(|deed| matches!(deed, Deed::HostDies(_))) {
            // What it has put into its ring may not have been told.
            return Ok(moved);
        }
        self.grant()?;
        self.port.flush()?;
        Ok(moved)
    }

    fn take_events(&mut self, now: Instant) -> Result<bool, Over> {
        let mut moved = false;
        for _ in 0..EVENTS_A_ROUND {
            let Some(event) = self.port.next_event()? else { break };
            moved = true;
            match event {
                PortEvent::Welcome(welcome) => {
                    for definition in definitions().map_err(|error| Over(error.to_string()))? {
                        self.port.define(&definition)?;
                    }
                    self.commands_max = self.commands_most.min(welcome.handles_max as usize);
                    self.tier.handle(now, TierEvent::PortOpened { port: PORT, welcome })?;
                }
                PortEvent::Refused(code) => return Err(Over(format!("refused: {code:?}"))),
                PortEvent::Header(header) => self.headers.push(header),
                PortEvent::Done(done) => {
                    let (completion, reply) = (done.completion, done.reply);
                    let words = [completion.handle.0.into(), completion.status as u64];
                    self.trace.note("tier done", &words);
                    match self.tier.brought(&completion) {
                        None => self.tier.handle(now, TierEvent::Done { port: PORT, completion, reply })?,
                        Some(place) => self.bring(now, completion, place)?,
                    }
                }
                PortEvent::Channel(is) => {
                    self.trace.note("tier channel", &[is.channel.0.into(), is.state as u64]);
                    self.tier.handle(now, TierEvent::Channel { port: PORT, is })?;
                }
                PortEvent::Broken(broken) => {
                    self.trace.note("tier broken", &[broken.slot.0.into(), broken.channel.0.into()]);
                    self.tier.handle(now, TierEvent::Broken { port: PORT, broken })?;
                }
                PortEvent::Noted(noted) => {
                    self.tier.handle(now, TierEvent::Noted { port: PORT, number: noted.number })?;
                }
                PortEvent::Memory(_) => {}
            }
        }
        Ok(moved)
    }

    /// What a server has told lies in the card's area.
    fn bring(&mut self, now: Instant, completion: Completion, (at, len): (u64, usize)) -> Result<(), Over> {
        self.brought.resize(len, 0);
        self.port.ends().copy_out(at, &mut self.brought).map_err(|error| Over(error.to_string()))?;
        let reply = Some(&self.brought[..]);
        Ok(self.tier.handle(now, TierEvent::Done { port: PORT, completion, reply })?)
    }

    fn take_answers(&mut self, now: Instant) -> Result<bool, Over> {
        let mut moved = false;
        loop {
            let Some(completion) = self.store.poll() else { return Ok(moved) };
            moved = true;
            self.watch.hear(&completion);
            self.tier.handle(now, TierEvent::Metadata(completion))?;
        }
    }

    fn perform(&mut self, now: Instant) -> Result<bool, Over> {
        let mut moved = false;
        let mut known = None;
        while let Some(action) = self.tier.next_action() {
            let action = match action {
                TierAction::Press { port, press } => TierAction::Post { port, plan: self.press(&press)? },
                other => other,
            };
            let status = known.get_or_insert_with(|| self.tier.status());
            let of = |name| status.segments.iter().find(|segment| segment.name == name)?.epoch;
            self.watch.look(now, &action, of)?;
            self.waiting.push_back(action);
        }
        if let Some(status) = known {
            self.watch.note(&status);
        }
        while let Some(action) = self.waiting.pop_front() {
            let point = self.seen.points.borrow_mut().of(&action, &self.keys);
            let armed = point.and_then(|point| self.seen.points.borrow_mut().come(point));
            if let Some(armed) = &armed {
                self.trace.note(point.unwrap_or_default(), &[u64::from(armed.is_before)]);
                self.struck = Some(armed.deed);
            }
            if armed.is_some_and(|armed| armed.is_before) {
                self.waiting.push_front(action);
                break;
            }
            match self.do_one(&action)? {
                _ if self.struck.is_some() => return Ok(true),
                Done::Yes => moved = true,
                Done::NoRoom => {
                    self.waiting.push_front(action);
                    break;
                }
            }
        }
        Ok(moved)
    }

    fn do_one(&mut self, action: &TierAction) -> Result<Done, Over> {
        let posted = match action {
            TierAction::Post { plan, .. } => {
                let words = [plan.handle.0.into(), u64::from(plan.plan.0), plan.slot.0.into()];
                self.trace.note("tier posts", &words);
                self.port.post(&plan.entry())
            }
            // It has become a plan.
            TierAction::Press { .. } => return Ok(Done::Yes),
            TierAction::Set { set, .. } => self.port.set(set),
            TierAction::Channel { channel, .. } => self.port.channel(channel),
            TierAction::Gate { gate, .. } => self.port.gate(gate),
            TierAction::Upload { at, bytes, .. } => {
                self.port.ends().copy_in(*at, bytes).map_err(|error| Over(error.to_string()))?;
                Ok(())
            }
            TierAction::Metadata(token, op) => {
                let is_taken = self.store.submit(*token, op.clone()).is_ok();
                return Ok(if is_taken { Done::Yes } else { Done::NoRoom });
            }
            TierAction::Report(news) => {
                self.hear(news);
                Ok(())
            }
            TierAction::Serve(volumes) => {
                for (id, _) in volumes {
                    self.trace.note("serves", &[id.0]);
                }
                Ok(())
            }
            TierAction::Tell { ticket, answer } => {
                self.told.push((*ticket, answer.clone()));
                Ok(())
            }
        };
        match posted {
            Ok(()) => Ok(Done::Yes),
            Err(PostError::Full) => Ok(Done::NoRoom),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes of a payload what is stored, where that is the host's part.
    fn press(&mut self, press: &Press) -> Result<PostedPlan, Over> {
        let ends = self.port.ends();
        let plan =
            self.presser.press(press, |at, into| ends.copy_out(at, into), |at, from| ends.copy_in(at, from));
        plan.map_err(|error| Over(error.to_string()))
    }

    fn hear(&mut self, news: &TierNews) {
        match news {
            TierNews::Sealed { chunk, length, members, resolved } => {
                self.sealed += 1;
                self.resolved += *resolved as u64;
                let words = [chunk.segment.0.into(), chunk.chunk.0.into(), length.0.into(), *members as u64];
                self.trace.note("sealed", &words);
            }
            TierNews::Repaired { chunk, members } => {
                self.repaired += 1;
                let words = [chunk.segment.0.into(), chunk.chunk.0.into(), *members as u64];
                self.trace.note("repaired", &words);
            }
            TierNews::Mended { chunk, at } => {
                self.mended += 1;
                self.trace.note("mended", &[chunk.segment.0.into(), chunk.chunk.0.into(), at.0.into()]);
            }
            TierNews::Dropped { chunk, members } => {
                self.dropped += 1;
                let words = [chunk.segment.0.into(), chunk.chunk.0.into(), *members as u64];
                self.trace.note("dropped", &words);
            }
            TierNews::ServerRefused { address, trouble } => {
                self.trace.note("server refused", &[address.port().into(), *trouble as u64]);
            }
        }
    }

    fn grant(&mut self) -> Result<(), Over> {
        let taken = self.tier.commands() + self.port.granted() as usize;
        let free = self.commands_max.saturating_sub(taken);
        // A few at a time would be a message each.
        if free > self.commands_max / 4 {
            self.port.grant(u32::try_from(free).unwrap_or(u32::MAX))?;
        }
        Ok(())
    }
}
