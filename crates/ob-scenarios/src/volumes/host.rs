//! The host of a tier: `TierCore` behind a port, driven as `outboard host` drives it.
//!
//! A round takes all events of the port, twice, and all answers of the store, before it looks at a header (I2); then it does what the tier
//! wants. When nothing has moved it registers to be rung for, looks once more, and is not turned until a bell shows something new or it is
//! time.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use ob_core::{GateId, Incarnation, Instant, ServerId};
use ob_sim::{Failure, Report, Trace};
use ob_split::host::{HostEnds, Port, PortError, PortEvent, PortOptions, PostError, Ticket};
use ob_split::wire::{Completion, HeaderEntry, Welcome};
use ob_volume::card::SEGMENT_BLOCKS;
use ob_volume::metadata::{Keys, MetadataStore};
use ob_volume::plans::{PostedPlan, definitions};
use ob_volume::press::Presser;
use ob_volume::tier::{
    AdminAnswer, AdminError, AdminRequest, PortNumber, Press, ServerStatus, Ticket as AdminTicket,
    TierAction, TierConfig, TierCore, TierError, TierEvent, TierNews, TierStatus,
};

use super::CHUNK_LEN;
use super::boot::DriftClock;
use super::link::{Ends, HostEnd};
use super::points::{Deed, Points};
use super::store::StoreEnd;
use super::watch::{Owners, Watch};

/// Messages of the port that are taken before its answers go out.
const EVENTS_A_ROUND: usize = 2048;
const MAIN: PortNumber = PortNumber(0);

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
}

/// A port of the host.
struct Seat {
    number: PortNumber,
    port: Port<Ends>,
    commands_max: usize,
}

/// One life of the host.
pub(super) struct Host {
    /// Of all ports; and those that are open.
    ends: Vec<HostEnd>,
    seats: Vec<Seat>,
    incarnation: Incarnation,
    tier: TierCore,
    store: StoreEnd,
    /// What leases are counted on: all that the tier hears of time.
    clock: DriftClock,
    /// What the port, or the store, had no room for.
    waiting: VecDeque<TierAction>,
    headers: Vec<(PortNumber, HeaderEntry)>,
    /// What a server has told, out of the card's area.
    brought: Vec<u8>,
    /// Commands that the tier may have of a port.
    commands_most: usize,
    /// What the bells of the ports that are open showed when it went to sleep.
    asleep: Option<Vec<Ticket>>,
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
        ends: Vec<HostEnd>,
        incarnation: Incarnation,
        (store, clock): (StoreEnd, DriftClock),
        (trace, seen): (&Trace, Seen),
    ) -> Result<Self, Failure> {
        let failed =
            |error: &dyn std::fmt::Display| Failure::new(format!("the host does not begin: {error}"));
        let (commands_most, watch) = (config.commands_max, Watch::new(&config, Rc::clone(&seen.owners)));
        let keys = config.keys.clone();
        let tier = TierCore::new(config).map_err(|error| failed(&error))?;
        let mut host = Self {
            ends,
            seats: Vec::new(),
            incarnation,
            tier,
            store,
            clock,
            waiting: VecDeque::new(),
            headers: Vec::new(),
            brought: Vec::new(),
            commands_most,
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
        };
        host.open(MAIN, None).map_err(|over| failed(&over.0))?;
        Ok(host)
    }

    /// Opens a port: by the gate that the first one was given, if it is another.
    fn open(&mut self, number: PortNumber, gate: Option<GateId>) -> Result<(), Over> {
        let options = PortOptions { incarnation: self.incarnation, gate, ..PortOptions::default() };
        let end = &self.ends[number.0 as usize];
        let port = Port::open(end.ends(), &options)?;
        self.seats.push(Seat { number, port, commands_max: 0 });
        Ok(())
    }

    fn seat(&mut self, number: PortNumber) -> Result<&mut Seat, Over> {
        let seat = self.seats.iter_mut().find(|seat| seat.number == number);
        seat.ok_or_else(|| Over("a port that is not open".to_owned()))
    }

    /// The link of a port is cut.
    pub(super) fn lose_port(&mut self, number: usize) {
        self.ends[number].closed.close();
        self.asleep = None;
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
        let Some(tickets) = &self.asleep else { return true };
        let has_rung = self.ends.iter().zip(tickets).any(|(end, ticket)| {
            end.receiver.bell_now() != ticket.responses
                || ticket.room.is_some_and(|bell| end.sender.bell_now() != bell)
        });
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
        self.ends.iter().for_each(|end| end.closed.close());
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
        let tickets = self.seats.iter_mut().map(|seat| seat.port.register()).collect();
        // Once more, now that whoever brings something rings.
        if !self.round(now)? {
            self.asleep = Some(tickets);
        }
        Ok(())
    }

    fn round(&mut self, now: Instant) -> Result<bool, Over> {
        let now = self.clock.shows(now);
        let mut moved = false;
        // Twice: what came while the first look went on is older than the headers that it has found (I2).
        for _ in 0..2 {
            for place in 0..self.seats.len() {
                moved |= self.take_events(now, place)?;
            }
        }
        moved |= self.take_answers(now)?;
        for seat in &self.seats {
            self.tier.set_load(seat.number, seat.port.load());
        }
        for (port, header) in std::mem::take(&mut self.headers) {
            self.watch.asked(port, &header, SEGMENT_BLOCKS);
            self.tier.handle(now, TierEvent::Header { port, header })?;
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
        for seat in &mut self.seats {
            seat.port.flush()?;
        }
        Ok(moved)
    }

    fn take_events(&mut self, now: Instant, place: usize) -> Result<bool, Over> {
        let mut moved = false;
        for _ in 0..EVENTS_A_ROUND {
            let seat = &mut self.seats[place];
            let port = seat.number;
            let Some(event) = seat.port.next_event()? else { break };
            moved = true;
            match event {
                PortEvent::Welcome(welcome) => self.welcome(now, place, welcome)?,
                PortEvent::Refused(code) => return Err(Over(format!("refused: {code:?}"))),
                PortEvent::Header(header) => self.headers.push((port, header)),
                PortEvent::Done(done) => {
                    let (completion, reply) = (done.completion, done.reply);
                    let words = [completion.handle.0.into(), completion.status as u64];
                    self.trace.note("tier done", &words);
                    match self.tier.brought(&completion) {
                        None => self.tier.handle(now, TierEvent::Done { port, completion, reply })?,
                        Some(at) => self.bring(now, place, completion, at)?,
                    }
                }
                PortEvent::Channel(is) => {
                    self.trace.note("tier channel", &[is.channel.0.into(), is.state as u64]);
                    self.tier.handle(now, TierEvent::Channel { port, is })?;
                }
                PortEvent::Broken(broken) => {
                    self.trace.note("tier broken", &[broken.slot.0.into(), broken.channel.0.into()]);
                    self.tier.handle(now, TierEvent::Broken { port, broken })?;
                }
                PortEvent::Noted(noted) => {
                    self.tier.handle(now, TierEvent::Noted { port, number: noted.number })?;
                }
                PortEvent::Memory(_) => {}
            }
        }
        Ok(moved)
    }

    /// A port is open. Behind the first one the others are opened, by its gate.
    fn welcome(&mut self, now: Instant, place: usize, welcome: Welcome) -> Result<(), Over> {
        let most = self.commands_most;
        let seat = &mut self.seats[place];
        for definition in definitions().map_err(|error| Over(error.to_string()))? {
            seat.port.define(&definition)?;
        }
        seat.commands_max = most.min(welcome.handles_max as usize);
        let port = seat.number;
        self.tier.handle(now, TierEvent::PortOpened { port, welcome })?;
        if port == MAIN {
            for number in 1..self.ends.len() as u32 {
                self.open(PortNumber(number), Some(welcome.gate))?;
            }
        }
        Ok(())
    }

    /// What a server has told lies in the card's area.
    fn bring(
        &mut self,
        now: Instant,
        place: usize,
        completion: Completion,
        (at, len): (u64, usize),
    ) -> Result<(), Over> {
        self.brought.resize(len, 0);
        let seat = &self.seats[place];
        seat.port.ends().copy_out(at, &mut self.brought).map_err(|error| Over(error.to_string()))?;
        let reply = Some(&self.brought[..]);
        Ok(self.tier.handle(now, TierEvent::Done { port: seat.number, completion, reply })?)
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
        let mut epochs = None;
        while let Some(action) = self.tier.next_action() {
            let action = match action {
                TierAction::Press { port, press } => {
                    TierAction::Post { port, plan: self.press(port, &press)? }
                }
                other => other,
            };
            let segments = epochs.get_or_insert_with(|| self.tier.status().segments);
            let of = |name| segments.iter().find(|segment| segment.name == name)?.epoch;
            self.watch.look(now, &action, of)?;
            self.waiting.push_back(action);
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
            TierAction::Post { port, plan } => {
                let words = [plan.handle.0.into(), u64::from(plan.plan.0), plan.slot.0.into()];
                self.trace.note("tier posts", &words);
                self.seat(*port)?.port.post(&plan.entry())
            }
            // It has become a plan.
            TierAction::Press { .. } => return Ok(Done::Yes),
            TierAction::Set { port, set } => self.seat(*port)?.port.set(set),
            TierAction::Channel { port, channel } => self.seat(*port)?.port.channel(channel),
            TierAction::Gate { port, gate } => self.seat(*port)?.port.gate(gate),
            TierAction::Upload { port, at, bytes } => {
                self.seat(*port)?.port.ends().copy_in(*at, bytes).map_err(|error| Over(error.to_string()))?;
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
    fn press(&mut self, port: PortNumber, press: &Press) -> Result<PostedPlan, Over> {
        let seat = self.seats.iter().find(|seat| seat.number == port);
        let ends = seat.ok_or_else(|| Over("a port that is not open".to_owned()))?.port.ends();
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
        for seat in &mut self.seats {
            let taken = self.tier.commands_of(seat.number) + seat.port.granted() as usize;
            let free = seat.commands_max.saturating_sub(taken);
            // A few at a time would be a message each.
            if free > seat.commands_max / 4 {
                seat.port.grant(u32::try_from(free).unwrap_or(u32::MAX))?;
            }
        }
        Ok(())
    }
}
