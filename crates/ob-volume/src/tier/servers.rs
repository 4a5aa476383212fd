//! Chunk servers: a channel each, who they are, and what they are asked by `CALL`.
//!
//! ```text
//!   Down ─ due ─▶ Connecting ─ up ─▶ Greeting ─ HELLO answered ─▶ Ready ─ silent ─┐
//!     ▲ gone, refused │                │ not as it should be ─────────────▶ Closing
//!     └───────────────┴────────────────┴──────────────────────────────────────┴──── gone, from any
//! ```
//!
//! A server that is ready is asked every second whether it is there (`PING`). One that does not say so, or does not answer other calls,
//! is closed: whoever waits for it gets to know, and what is made next goes to others.

use std::net::SocketAddr;
use std::time::Duration;

use ob_core::{ChunkId, ChunkName, Instant, SegmentName, ServerId};
use ob_format::volume::ChunkKind;
use ob_format::volume::metadata::Text;
use ob_split::wire::{
    Channel, ChannelId, ChannelIs, ChannelState, ChannelWhat, Completion, CompletionStatus, HEADER_LEN,
    Handle,
};

use super::areas::{LookFor, RecordFor};
use super::core::TierCore;
use super::opening::Made;
use super::ports::MAIN;
use super::seal::Copied;
use super::space::Sweep;
use super::{PortNumber, ServerTrouble, TierAction, TierError, TierNews};
use crate::plans::{COPY_FETCH_STEP, Copy, HOST_HANDLES, PostedPlan};
use crate::wire::{
    Answer, CreateState, HelloPayload, Refusal, Reply, ReplyMessage, Request, RequestMessage, VERSION,
    WelcomePayload,
};

/// How long after it was gone a server is connected to again.
const RECONNECT: Duration = Duration::from_millis(500);
/// How long one that has failed, or was full, comes last; one that fails again and again, up to [`AVOIDED_MOST`].
pub(super) const AVOIDED: Duration = Duration::from_secs(10);
const AVOIDED_MOST: Duration = Duration::from_secs(320);
/// How often a server is asked whether it is there.
const PING_EVERY: Duration = Duration::from_secs(1);
/// How long it may take to say so.
const PING_WITHIN: Duration = Duration::from_secs(3);
/// How many calls one behind the other may have no answer.
const SILENT_CALLS_MAX: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerState {
    /// No port is open.
    Unused,
    Down {
        again: Instant,
    },
    Connecting,
    Greeting,
    Ready,
    Closing,
}

/// A chunk server.
#[derive(Debug)]
pub(super) struct ServerCore {
    pub(super) address: SocketAddr,
    pub(super) state: ServerState,
    pub(super) id: Option<ServerId>,
    pub(super) domain: Option<Text<32>>,
    pub(super) free: u64,
    /// Bytes of its device.
    pub(super) capacity: u64,
    pub(super) full_until: Option<Instant>,
    pub(super) failed_until: Option<Instant>,
    /// How often it has failed since it last did what it was asked to.
    failures: u32,
    /// The greatest number of a connection that is known of it.
    session: u64,
    /// When it was asked whether it is there, as long as it has not said so.
    pinged: Option<Instant>,
    ping_at: Instant,
    /// Calls without an answer, one behind the other.
    silent_calls: u32,
    /// Since when it is not there.
    pub(super) away_since: Option<Instant>,
    /// Why it cannot be used, if it has said so.
    pub(super) trouble: Option<ServerTrouble>,
    /// What it has told of what it has.
    pub(super) sweep: Sweep,
    /// Chunks' records name it, and it has not been found at any address yet. (With no id: nobody; another such may have its place.)
    pub(super) is_unplaced: bool,
}

impl ServerCore {
    pub(super) fn new(address: SocketAddr) -> Self {
        Self {
            address,
            state: ServerState::Unused,
            id: None,
            domain: None,
            free: 0,
            capacity: 0,
            full_until: None,
            failed_until: None,
            failures: 0,
            session: 0,
            pinged: None,
            ping_at: Instant::default(),
            silent_calls: 0,
            away_since: None,
            trouble: None,
            sweep: Sweep::default(),
            is_unplaced: false,
        }
    }

    /// It has not done what it was asked to.
    pub(super) fn fail(&mut self, now: Instant) {
        let avoided = AVOIDED.saturating_mul(1 << self.failures.min(5)).min(AVOIDED_MOST);
        self.failures += 1;
        self.failed_until = Some(now + avoided);
    }

    /// It has done something that others have failed at.
    pub(super) fn do_well(&mut self) {
        (self.failures, self.failed_until) = (0, None);
    }

    pub(super) fn is_ready(&self) -> bool {
        self.state == ServerState::Ready
    }

    fn is_due(&self, now: Instant) -> bool {
        self.next_due().is_some_and(|due| due <= now)
    }

    /// Whether it fails at what others do, again and again.
    pub(super) const fn fails(&self) -> bool {
        self.failures > 1
    }

    /// Whether it has done all that it was asked to.
    pub(super) const fn is_sound(&self) -> bool {
        self.failures == 0
    }

    fn next_due(&self) -> Option<Instant> {
        match (self.state, self.pinged) {
            (ServerState::Down { again }, _) => Some(again),
            (ServerState::Ready, None) => Some(self.ping_at),
            (ServerState::Ready, Some(since)) => Some(since + PING_WITHIN),
            _ => None,
        }
    }

    pub(super) fn is_full(&self, now: Instant) -> bool {
        self.full_until.is_some_and(|until| now < until)
    }

    /// Whether it is to come last: it has failed of late, or does not say that it is there.
    pub(super) fn has_failed(&self, now: Instant) -> bool {
        self.failed_until.is_some_and(|until| now < until)
            || self.pinged.is_some_and(|since| now.since(since) >= PING_EVERY)
    }
}

/// What is asked of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallFor {
    Hello,
    /// That of another port than the first.
    Greet,
    Ping,
    Create {
        segment: SegmentName,
        chunk: ChunkId,
    },
    /// What nobody names is to go. Whatever becomes of that, nobody asks again.
    Delete,
    Stop(Errand),
    Seal(Errand),
    /// A copy, from one server to another.
    Copy(Errand),
    /// A record that has rotted is written over.
    Mend(u64),
    /// A chunk that is to be filled.
    CreateFilling(Errand),
    /// A replica that does not fit is to go before it is made anew.
    DeleteReplica(Errand),
    /// What a server has of a sealed chunk is to be looked at.
    Check(Errand),
    /// A member that was sealed at a shorter length is to be filled.
    Reopen(Errand),
    /// A segment's epoch.
    Fence(Errand),
    /// What the store calls dead is to go.
    DeleteDead(Errand, ChunkId),
    /// What is told at length.
    Look(LookFor),
    /// A record of the index.
    Record(RecordFor),
    /// A move, whose blocks this keeps.
    Move(Handle),
}

/// For which chunk something is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Errand {
    pub(super) segment: SegmentName,
    /// Among the segment's.
    pub(super) place: usize,
    /// Answers to an earlier one are not heard.
    pub(super) attempt: u64,
    /// To make a replica anew, not to seal the chunk.
    pub(super) is_repair: bool,
}

#[derive(Debug)]
pub(super) struct Call {
    pub(super) port: PortNumber,
    pub(super) server: usize,
    pub(super) of: CallFor,
}

/// How a call ended.
pub(super) enum Outcome {
    /// With a reply.
    Answered(Answer),
    /// Without one, or with what is none.
    Failed,
}

impl Outcome {
    /// The later epoch in which somebody else has the segment, if so.
    pub(super) const fn stale(&self) -> Option<u64> {
        match self {
            Self::Answered(Answer::Refused { refusal: Refusal::Stale { known }, .. }) => Some(*known),
            _ => None,
        }
    }
}

/// Channels have the numbers of servers, from 1 on.
pub(super) const fn channel_of(server: usize) -> ChannelId {
    ChannelId(server as u16 + 1)
}

impl TierCore {
    /// A port is open: every server is connected to.
    pub(super) fn connect_servers(&mut self, now: Instant) {
        for server in self.servers.iter_mut().filter(|server| !server.is_unplaced) {
            server.state = ServerState::Down { again: now };
            (server.pinged, server.silent_calls) = (None, 0);
        }
        self.servers_due(now);
    }

    /// The port is closed, and all channels with it.
    pub(super) fn forget_channels(&mut self) {
        for server in &mut self.servers {
            server.state = ServerState::Unused;
        }
        self.calls.clear();
    }

    pub(super) fn servers_due(&mut self, now: Instant) {
        for place in 0..self.servers.len() {
            let Some(server) = self.servers.get_mut(place).filter(|server| server.is_due(now)) else {
                continue;
            };
            match (server.state, server.pinged) {
                (ServerState::Down { .. }, _) => {
                    server.state = ServerState::Connecting;
                    let (what, address) = (ChannelWhat::Connect, Some(server.address));
                    let channel = Channel { channel: channel_of(place), what, address };
                    self.actions.push_back(TierAction::Channel { port: MAIN, channel });
                }
                (ServerState::Ready, None) => {
                    (server.pinged, server.ping_at) = (Some(now), now + PING_EVERY);
                    self.call(place, CallFor::Ping, Request::Ping, &[]);
                }
                (ServerState::Ready, Some(_)) => self.give_server_up(now, place),
                _ => {}
            }
        }
    }

    /// It does not answer: whoever waits for it is told, and it is connected to anew.
    fn give_server_up(&mut self, now: Instant, place: usize) {
        if let Some(server) = self.servers.get_mut(place) {
            server.fail(now);
            self.counts.servers_silent += 1;
        }
        self.close_channel(place);
    }

    pub(super) fn servers_next_due(&self) -> Option<Instant> {
        self.servers.iter().filter_map(ServerCore::next_due).min()
    }

    /// How a channel is.
    pub(super) fn channel_is(&mut self, now: Instant, is: ChannelIs) -> Result<(), TierError> {
        let wrong = TierError::Channel(is.channel.0);
        let place = usize::from(is.channel.0).checked_sub(1).ok_or(wrong)?;
        let server = self.servers.get_mut(place).ok_or(wrong)?;
        match (is.state, server.state) {
            // It is over already.
            (ChannelState::Gone, ServerState::Down { .. }) => {}
            (_, ServerState::Unused | ServerState::Down { .. }) => return Err(wrong),
            (ChannelState::Up, ServerState::Connecting) => {
                server.state = ServerState::Greeting;
                self.greet(place);
            }
            (ChannelState::Gone | ChannelState::Refused, _) => {
                server.state = ServerState::Down { again: now + RECONNECT };
                (server.pinged, server.silent_calls) = (None, 0);
                server.away_since.get_or_insert(now);
                self.repair_at.get_or_insert(now);
                self.counts.channels_lost += 1;
                self.unlink_server(place);
                self.server_gone(now, place);
            }
            _ => return Err(wrong),
        }
        Ok(())
    }

    /// Chunks that were written to it are not any more: what is written next goes to others.
    fn server_gone(&mut self, now: Instant, place: usize) {
        let open = self.segments.iter().flat_map(|(name, segment)| {
            let chunks = segment.chunks.iter().enumerate();
            let open = chunks.filter(|(_, chunk)| chunk.is_open() && chunk.members.contains(&place));
            open.map(|(open, _)| (*name, open))
        });
        for (name, open) in open.collect::<Vec<_>>() {
            self.close_chunk(now, name, open);
        }
    }

    fn greet(&mut self, place: usize) {
        let (tier, gate, _) = self.identity();
        // It grows with each connection. A server that knows a later one says which, and is greeted by one above.
        let Some(server) = self.servers.get_mut(place) else { return };
        let Some(session) = server.session.max(gate.0).checked_add(1) else {
            // There is none above it: it was another tier that has used this one's name, or a server that does not tell the truth.
            return self.refuse_server(place, ServerTrouble::Session);
        };
        server.session = session;
        let request = Request::Hello { port: 0, tier, session };
        let server = server.id;
        let Some(pool) = self.pool else { return self.close_channel(place) };
        let hello = HelloPayload { pool, version_least: VERSION, version_most: VERSION, server };
        match hello.encode() {
            Ok(payload) => self.call(place, CallFor::Hello, request, &payload),
            Err(_) => self.close_channel(place),
        }
    }

    /// A chunk that nobody names is to go from a server that has made it, or may have: it comes behind the request to make it.
    pub(super) fn delete(&mut self, place: usize, chunk: ChunkName, epoch: ob_core::Epoch) {
        if self.servers.get(place).is_some_and(ServerCore::is_ready) {
            self.call(place, CallFor::Delete, Request::Delete { chunk, epoch }, &[]);
        }
    }

    pub(super) fn create(&mut self, place: usize, request: Request, segment: SegmentName, chunk: ChunkId) {
        self.call(place, CallFor::Create { segment, chunk }, request, &[]);
    }

    pub(super) fn call(&mut self, server: usize, of: CallFor, request: Request, payload: &[u8]) {
        self.call_at(MAIN, server, of, request, payload);
    }

    pub(super) fn call_at(
        &mut self,
        port: PortNumber,
        server: usize,
        of: CallFor,
        request: Request,
        payload: &[u8],
    ) {
        let handle = self.free_call_handle();
        // The port puts in a tag of its own.
        let message = RequestMessage { tag: 0, payload_len: payload.len() as u32, request };
        let header = message.encode();
        let plan = header.ok().and_then(|header: [u8; HEADER_LEN]| {
            PostedPlan::call(handle, channel_of(server), &header, payload).ok()
        });
        let Some(plan) = plan else { return self.close_channel(server) };
        self.calls.insert(handle.0, Call { port, server, of });
        if let Some(port) = self.ports.get_mut(&port) {
            port.calls.push_back(plan);
        }
    }

    pub(super) fn free_call_handle(&mut self) -> Handle {
        loop {
            self.last_call = self.last_call.wrapping_add(1) % HOST_HANDLES;
            let handle = HOST_HANDLES + self.last_call;
            if !self.calls.contains_key(&handle) {
                return Handle(handle);
            }
        }
    }

    fn close_channel(&mut self, place: usize) {
        let Some(server) = self.servers.get_mut(place) else { return };
        server.state = ServerState::Closing;
        self.unlink_server(place);
        let channel = Channel { channel: channel_of(place), what: ChannelWhat::Close, address: None };
        self.actions.push_back(TierAction::Channel { port: MAIN, channel });
    }

    /// A call is over.
    pub(super) fn call_over(
        &mut self,
        now: Instant,
        completion: &Completion,
        reply: Option<&[u8]>,
    ) -> Result<(), TierError> {
        let handle = completion.handle;
        let call = self.calls.remove(&handle.0).ok_or(TierError::NotPosted(handle))?;
        if completion.has_more {
            return Err(TierError::Completion { handle, what: "a call has one piece" });
        }
        match call.of {
            CallFor::Look(of) => return self.look_over(now, call.server, of, completion, reply),
            CallFor::Record(_) | CallFor::Move(_) if reply.is_some() => {
                return Err(TierError::Completion { handle, what: "it brings no reply" });
            }
            CallFor::Record(record) => return self.record_over(now, record, completion),
            CallFor::Move(keeper) => return self.move_over(now, keeper, completion),
            _ => {}
        }
        let split = reply.and_then(|reply| reply.split_at_checked(HEADER_LEN));
        let (outcome, payload) = match split.map(|(header, payload)| (ReplyMessage::decode(header), payload))
        {
            Some((Ok(message), payload)) if message.payload_len as usize == payload.len() => {
                (Outcome::Answered(message.answer), payload)
            }
            Some(_) => (Outcome::Failed, &[][..]),
            None if completion.status == CompletionStatus::Good => {
                return Err(TierError::Completion { handle, what: "a call that went well has a reply" });
            }
            None => (Outcome::Failed, &[][..]),
        };
        // Of a copy nobody knows here who has been silent; and a port's own channel says nothing of the first one's.
        if !matches!(call.of, CallFor::Copy(_) | CallFor::Mend(_) | CallFor::Greet) {
            self.note_silence(now, call.server, &outcome);
        }
        match call.of {
            CallFor::Hello => self.greeted(now, call.server, &outcome, payload),
            CallFor::Greet => self.greeted_at(now, call.port, call.server, &outcome),
            CallFor::Ping => self.pinged(call.server, &outcome),
            CallFor::Create { segment, chunk } => self.created(now, call.server, &outcome, segment, chunk),
            CallFor::Delete => {}
            CallFor::Copy(errand) => self.copy_over(now, errand, &outcome, completion),
            CallFor::Mend(attempt) => self.mend_over(now, attempt, &outcome, completion),
            CallFor::Stop(errand) if errand.is_repair => self.replica_stopped(now, errand, &outcome),
            CallFor::Stop(errand) => self.member_stopped(now, errand, call.server, &outcome),
            CallFor::Seal(errand) if errand.is_repair => self.replica_sealed(now, errand, &outcome),
            CallFor::Seal(errand) => self.member_sealed(now, errand, call.server, &outcome),
            CallFor::CreateFilling(errand) => self.replica_made(now, errand, &outcome),
            CallFor::DeleteReplica(errand) => self.replica_deleted(now, errand, &outcome),
            CallFor::Check(errand) => self.replica_checked(now, errand, call.server, &outcome),
            CallFor::Reopen(errand) => self.member_reopened(now, errand, call.server, &outcome),
            CallFor::Fence(errand) => self.fenced(now, errand, call.server, &outcome),
            CallFor::DeleteDead(errand, chunk) => {
                self.dead_deleted(now, (errand, chunk), call.server, &outcome);
            }
            CallFor::Look(_) | CallFor::Record(_) | CallFor::Move(_) => {}
        }
        Ok(())
    }

    /// A copy is over: who has done what was asked of it, and who has not.
    fn copy_over(&mut self, now: Instant, errand: Errand, outcome: &Outcome, completion: &Completion) {
        let copied = match outcome {
            Outcome::Answered(Answer::Good(Reply::Fill { durable })) => Copied::To(*durable),
            // It has failed where it was to be fetched; the step is told.
            Outcome::Failed if completion.word == COPY_FETCH_STEP => {
                Copied::NotGiven { is_bad: completion.status == CompletionStatus::NotVerified }
            }
            Outcome::Answered(_) | Outcome::Failed => Copied::NotTaken,
        };
        if errand.is_repair {
            self.replica_filled(now, errand, copied);
        } else {
            self.member_filled(now, errand, copied);
        }
    }

    /// Units of a chunk go from one server to another, over the card alone.
    pub(super) fn copy(
        &mut self,
        errand: Errand,
        (from, to): (usize, usize),
        chunk: ChunkName,
        epoch: ob_core::Epoch,
        at: ob_core::Units,
        end: ob_core::Units,
    ) {
        let (from, is_mend) = (channel_of(from), false);
        let copy = Copy { from, to: channel_of(to), chunk, epoch, at, end, is_mend };
        self.post_copy(to, CallFor::Copy(errand), &copy);
    }

    pub(super) fn post_copy(&mut self, to: usize, of: CallFor, copy: &Copy) {
        let handle = self.free_call_handle();
        let Ok(plan) = PostedPlan::copy(handle, copy) else {
            self.counts.mistakes += 1;
            return;
        };
        self.calls.insert(handle.0, Call { port: MAIN, server: to, of });
        self.post_call(plan);
    }

    /// A server that answers nothing is as good as gone, though its connection stands.
    fn note_silence(&mut self, now: Instant, place: usize, outcome: &Outcome) {
        let Some(server) = self.servers.get_mut(place).filter(|server| server.is_ready()) else { return };
        server.silent_calls = match outcome {
            Outcome::Answered(_) => 0,
            Outcome::Failed => server.silent_calls + 1,
        };
        if server.silent_calls >= SILENT_CALLS_MAX {
            self.give_server_up(now, place);
        }
    }

    fn pinged(&mut self, place: usize, outcome: &Outcome) {
        let Some(server) = self.servers.get_mut(place) else { return };
        if let Outcome::Answered(answer) = outcome {
            server.pinged = None;
            if let Answer::Good(Reply::Ping { free, .. }) = answer {
                server.free = *free;
            }
        }
    }

    /// A server says that it cannot be used, or says what cannot be. It is asked again, and told of once.
    fn refuse_server(&mut self, place: usize, trouble: ServerTrouble) {
        let Some(server) = self.servers.get_mut(place) else { return };
        if server.trouble.replace(trouble) != Some(trouble) {
            let news = TierNews::ServerRefused { address: server.address, trouble };
            self.actions.push_back(TierAction::Report(news));
        }
        self.close_channel(place);
    }

    fn greeted(&mut self, now: Instant, place: usize, outcome: &Outcome, payload: &[u8]) {
        let pool = self.pool;
        let others: Vec<ServerId> = self
            .servers
            .iter()
            .enumerate()
            .filter(|(other, server)| *other != place && server.is_ready())
            .filter_map(|(_, other)| other.id)
            .collect();
        let Some(server) = self.servers.get_mut(place).filter(|server| server.state == ServerState::Greeting)
        else {
            return;
        };
        let good = match outcome {
            Outcome::Answered(Answer::Good(Reply::Hello { server: id, .. })) => {
                let welcome = WelcomePayload::decode(payload).map_err(|_| ServerTrouble::Other);
                welcome.and_then(|welcome| match () {
                    () if others.contains(id) => Err(ServerTrouble::Twice),
                    () if welcome.pool.is_some() && welcome.pool != pool => Err(ServerTrouble::WrongPool),
                    () if welcome.version != VERSION => Err(ServerTrouble::Version),
                    () => Ok((*id, welcome)),
                })
            }
            Outcome::Answered(Answer::Refused { refusal: Refusal::Stale { known }, .. }) => {
                server.session = server.session.max(*known);
                // The next greeting is above it, if there can be such.
                return self.close_channel(place);
            }
            // At its address is another one now: that is greeted for itself.
            Outcome::Answered(Answer::Refused { refusal: Refusal::WrongServer { .. }, .. })
                if server.id.is_some() =>
            {
                self.move_identity_out(now, place);
                return self.refuse_server(place, ServerTrouble::WrongServer);
            }
            Outcome::Answered(Answer::Refused { refusal, .. }) => Err(match refusal {
                Refusal::WrongPool => ServerTrouble::WrongPool,
                Refusal::WrongServer { .. } => ServerTrouble::WrongServer,
                Refusal::Version { .. } => ServerTrouble::Version,
                _ => ServerTrouble::Other,
            }),
            Outcome::Answered(_) => Err(ServerTrouble::Other),
            Outcome::Failed => return self.close_channel(place),
        };
        let (id, welcome) = match good {
            Ok(good) => good,
            Err(trouble) => return self.refuse_server(place, trouble),
        };
        if server.id.is_some_and(|known| known != id) {
            self.move_identity_out(now, place);
        }
        // It may have been somewhere else before.
        let is_it = |(other, server): (usize, &ServerCore)| {
            other != place && !server.is_unplaced && server.id == Some(id)
        };
        if let Some(other) = self.servers.iter().enumerate().position(is_it) {
            self.move_identity_out(now, other);
        }
        self.move_identity_in(now, place, id);
        self.fence_again(place);
        let Some(server) = self.servers.get_mut(place) else { return };
        server.state = ServerState::Ready;
        (server.id, server.domain, server.free) = (Some(id), Some(welcome.domain), welcome.free);
        server.capacity = welcome.capacity;
        (server.pinged, server.ping_at, server.silent_calls) = (None, now + PING_EVERY, 0);
        (server.full_until, server.trouble) = (None, None);
        (server.away_since, server.sweep) = (None, Sweep::default());
        self.link_server(now, place);
        self.server_ready(now, place);
    }

    /// Whoever waits for a server goes on.
    fn server_ready(&mut self, now: Instant, place: usize) {
        self.ready.extend(self.memberless.drain(..));
        self.retry_seals(now);
        self.continue_all_openings(now);
        self.continue_takings(now);
        self.repair_at = Some(now);
        self.repairs_left.clear();
        self.sweep(place);
        self.space_at = Some(now);
    }

    fn created(
        &mut self,
        now: Instant,
        place: usize,
        outcome: &Outcome,
        segment: SegmentName,
        chunk: ChunkId,
    ) {
        let Some(server) = self.servers.get_mut(place) else { return };
        let made = match outcome {
            Outcome::Answered(Answer::Good(Reply::Create { free })) => {
                server.free = *free;
                Made::Yes
            }
            Outcome::Answered(Answer::Refused { refusal: Refusal::Full { free }, .. }) => {
                (server.free, server.full_until) = (*free, Some(now + AVOIDED));
                Made::No
            }
            Outcome::Answered(_) => {
                server.fail(now);
                Made::No
            }
            Outcome::Failed => {
                server.fail(now);
                Made::Perhaps
            }
        };
        self.chunk_created(now, segment, chunk, place, made);
    }
}

/// The request that makes a chunk.
pub(super) fn create_request(
    (chunk, epoch): (ChunkName, ob_core::Epoch),
    length: ob_core::Units,
    block_len: ob_core::BlockLen,
    kind: ChunkKind,
    may_use_reserve: bool,
) -> Request {
    let state = CreateState::Open;
    Request::Create { chunk, epoch, length, block_len, state, kind, may_use_reserve }
}
