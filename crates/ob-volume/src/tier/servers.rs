//! Chunk servers: a channel each, who they are, and what they are asked by `CALL`.
//!
//! ```text
//!   Down ─ due ─▶ Connecting ─ up ─▶ Greeting ─ HELLO answered ─▶ Ready
//!     ▲ gone, refused │                │ not as it should be ─▶ Closing
//!     └───────────────┴────────────────┴───────────────────────────┴──── gone, from any
//! ```

use std::net::SocketAddr;
use std::time::Duration;

use ob_core::{ChunkId, ChunkName, Instant, SegmentName, ServerId};
use ob_format::volume::ChunkKind;
use ob_format::volume::metadata::Text;
use ob_split::wire::{
    Channel, ChannelId, ChannelIs, ChannelState, ChannelWhat, Completion, CompletionStatus, HEADER_LEN,
    Handle,
};

use super::core::TierCore;
use super::{PortNumber, TierAction, TierError};
use crate::plans::{HOST_HANDLES, PostedPlan};
use crate::wire::{
    Answer, CreateState, HelloPayload, Refusal, Reply, ReplyMessage, Request, RequestMessage, VERSION,
    WelcomePayload,
};

/// How long after it was gone a server is connected to again.
const RECONNECT: Duration = Duration::from_millis(500);
/// How long one that has failed, or was full, comes last.
pub(super) const AVOIDED: Duration = Duration::from_secs(10);

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
    pub(super) full_until: Option<Instant>,
    pub(super) failed_until: Option<Instant>,
}

impl ServerCore {
    pub(super) const fn new(address: SocketAddr) -> Self {
        let state = ServerState::Unused;
        Self { address, state, id: None, domain: None, free: 0, full_until: None, failed_until: None }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.state == ServerState::Ready
    }

    pub(super) fn is_full(&self, now: Instant) -> bool {
        self.full_until.is_some_and(|until| now < until)
    }

    pub(super) fn has_failed(&self, now: Instant) -> bool {
        self.failed_until.is_some_and(|until| now < until)
    }
}

/// What is asked of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallFor {
    Hello,
    Create { segment: SegmentName, chunk: ChunkId },
}

#[derive(Debug)]
pub(super) struct Call {
    pub(super) server: usize,
    pub(super) of: CallFor,
}

/// How a call ended.
enum Outcome {
    /// With a reply.
    Answered(Answer),
    /// Without one, or with what is none.
    Failed,
}

/// Channels have the numbers of servers, from 1 on.
pub(super) const fn channel_of(server: usize) -> ChannelId {
    ChannelId(server as u16 + 1)
}

impl TierCore {
    /// A port is open: every server is connected to.
    pub(super) fn connect_servers(&mut self, now: Instant) {
        for server in &mut self.servers {
            server.state = ServerState::Down { again: now };
        }
        self.servers_due(now);
    }

    /// The port is closed, and all channels with it.
    pub(super) fn forget_channels(&mut self) {
        for server in &mut self.servers {
            server.state = ServerState::Unused;
        }
        self.calls.clear();
        self.calls_waiting.clear();
    }

    pub(super) fn servers_due(&mut self, now: Instant) {
        for (place, server) in self.servers.iter_mut().enumerate() {
            let ServerState::Down { again } = server.state else { continue };
            if again <= now {
                server.state = ServerState::Connecting;
                let (what, address) = (ChannelWhat::Connect, Some(server.address));
                let channel = Channel { channel: channel_of(place), what, address };
                self.actions.push_back(TierAction::Channel { port: PortNumber(0), channel });
            }
        }
    }

    pub(super) fn servers_next_due(&self) -> Option<Instant> {
        let due = self.servers.iter().filter_map(|server| match server.state {
            ServerState::Down { again } => Some(again),
            _ => None,
        });
        due.min()
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
                self.counts.channels_lost += 1;
            }
            _ => return Err(wrong),
        }
        Ok(())
    }

    fn greet(&mut self, place: usize) {
        let (tier, gate, _) = self.identity();
        // It grows with each connection. A server that knows a later one says which, and is greeted by one above.
        self.hello_session = self.hello_session.max(gate.0).saturating_add(1);
        let request = Request::Hello { port: 0, tier, session: self.hello_session };
        let server = self.servers.get(place).and_then(|server| server.id);
        let hello =
            HelloPayload { pool: self.config.pool, version_least: VERSION, version_most: VERSION, server };
        match hello.encode() {
            Ok(payload) => self.call(place, CallFor::Hello, request, &payload),
            Err(_) => self.close_channel(place),
        }
    }

    pub(super) fn create(&mut self, place: usize, request: Request, segment: SegmentName, chunk: ChunkId) {
        self.call(place, CallFor::Create { segment, chunk }, request, &[]);
    }

    fn call(&mut self, server: usize, of: CallFor, request: Request, payload: &[u8]) {
        let handle = self.free_call_handle();
        // The port puts in a tag of its own.
        let message = RequestMessage { tag: 0, payload_len: payload.len() as u32, request };
        let header = message.encode();
        let plan = header.ok().and_then(|header: [u8; HEADER_LEN]| {
            PostedPlan::call(handle, channel_of(server), &header, payload).ok()
        });
        let Some(plan) = plan else { return self.close_channel(server) };
        self.calls.insert(handle.0, Call { server, of });
        self.calls_waiting.push_back(plan);
    }

    fn free_call_handle(&mut self) -> Handle {
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
        let channel = Channel { channel: channel_of(place), what: ChannelWhat::Close, address: None };
        self.actions.push_back(TierAction::Channel { port: PortNumber(0), channel });
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
        match call.of {
            CallFor::Hello => self.greeted(now, call.server, &outcome, payload),
            CallFor::Create { segment, chunk } => self.created(now, call.server, &outcome, segment, chunk),
        }
        Ok(())
    }

    fn greeted(&mut self, now: Instant, place: usize, outcome: &Outcome, payload: &[u8]) {
        let pool = self.config.pool;
        let others: Vec<ServerId> = self
            .servers
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != place)
            .filter_map(|(_, other)| other.id)
            .collect();
        let Some(server) = self.servers.get_mut(place).filter(|server| server.state == ServerState::Greeting)
        else {
            return;
        };
        let good = match outcome {
            Outcome::Answered(Answer::Good(Reply::Hello { server: id, .. })) if !others.contains(id) => {
                let welcome = WelcomePayload::decode(payload).ok();
                let is_ours = |welcome: &WelcomePayload| {
                    welcome.version == VERSION && welcome.pool.is_none_or(|of| of == pool)
                };
                let is_same = server.id.is_none_or(|known| known == *id);
                welcome.filter(is_ours).filter(|_| is_same).map(|welcome| (*id, welcome))
            }
            Outcome::Answered(Answer::Refused { refusal: Refusal::Stale { known }, .. }) => {
                self.hello_session = self.hello_session.max(*known);
                None
            }
            _ => None,
        };
        let Some((id, welcome)) = good else { return self.close_channel(place) };
        server.state = ServerState::Ready;
        (server.id, server.domain, server.free) = (Some(id), Some(welcome.domain), welcome.free);
        (server.full_until, server.failed_until) = (None, None);
        self.ready.extend(self.memberless.drain(..));
        self.continue_all_openings(now);
    }

    fn created(
        &mut self,
        now: Instant,
        place: usize,
        outcome: &Outcome,
        segment: SegmentName,
        chunk: ChunkId,
    ) {
        let is_good = match outcome {
            Outcome::Answered(Answer::Good(Reply::Create { free })) => {
                if let Some(server) = self.servers.get_mut(place) {
                    server.free = *free;
                }
                true
            }
            Outcome::Answered(Answer::Refused { refusal: Refusal::Full { free }, .. }) => {
                if let Some(server) = self.servers.get_mut(place) {
                    (server.free, server.full_until) = (*free, Some(now + AVOIDED));
                }
                false
            }
            _ => {
                if let Some(server) = self.servers.get_mut(place) {
                    server.failed_until = Some(now + AVOIDED);
                }
                false
            }
        };
        self.chunk_created(now, segment, chunk, is_good);
    }
}

/// The request that makes a chunk.
pub(super) fn create_request(
    chunk: ChunkName,
    epoch: ob_core::Epoch,
    length: ob_core::Units,
    block_len: ob_core::BlockLen,
) -> Request {
    let (state, kind) = (CreateState::Open, ChunkKind::Data);
    Request::Create { chunk, epoch, length, block_len, state, kind, may_use_reserve: false }
}
