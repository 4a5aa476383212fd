//! Ports of a tier: each has cards' memory, slots, channels and an order of its own; leases, segments and their index are all of theirs.
//!
//! ```text
//!   commands by port 0 ─┐                  ┌─▶ plans of port 0, in which all that is of no command is done too
//!                       ├─▶ one TierCore ──┤
//!   commands by port 1 ─┘   index, overlaps└─▶ plans of port 1: its own chunks, over its own channels
//! ```
//!
//! A chunk is written to by one port, as one writer gives places there; every port reads it. Chunk servers are asked by the first port for
//! all that is no command's; the others greet them when that has, and let go of them when it does. One port that is over ends all: what
//! its ring still had nobody knows (I2).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ob_core::{Instant, ServerId};
use ob_split::wire::{Channel, ChannelIs, ChannelState, ChannelWhat, Completion, Handle, Slot, Welcome};

use super::core::TierCore;
use super::given::{Placement, TakeSlots};
use super::plant::{Bug, is_planted};
use super::servers::{CallFor, Outcome, ServerCore, channel_of};
use super::slots::{ChunkPlace, Slots};
use super::{PortNumber, TierAction, TierError};
use crate::plans::{HOST_HANDLES, PostedPlan, RUNS_MAX};
use crate::wire::{Answer, HelloPayload, Refusal, Reply, Request, VERSION};

/// The port that is opened first, and by which all is done that is of no command.
pub(super) const MAIN: PortNumber = PortNumber(0);
/// How long after it was gone a server is connected to again.
const RECONNECT: Duration = Duration::from_millis(500);

/// A port that is open.
#[derive(Debug)]
pub(super) struct OpenPort {
    pub(super) welcome: Welcome,
    /// Plans under way.
    pub(super) plans: u32,
    /// Most runs of a plan: no more than its card has memory for at once, as far as that has shown.
    pub(super) runs_max: usize,
    /// Of the card's engine, as it was told last.
    pub(super) load: u8,
    pub(super) slots: Slots,
    /// Room for payloads, where the host takes them.
    pub(super) takes: TakeSlots,
    /// Requests to servers, which go before commands.
    pub(super) calls: VecDeque<PostedPlan>,
    /// Commands that could go on if another plan could be under way.
    held_up: VecDeque<Handle>,
    /// Its messages, by their handles: as which commands they are known here.
    pub(super) messages: BTreeMap<u32, Handle>,
    /// Of ports but the first: servers, by their places.
    links: BTreeMap<usize, Link>,
}

/// A channel of a port but the first to a server that the first has greeted.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    state: LinkState,
    /// The greatest number of a connection that is known of it.
    session: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LinkState {
    /// The first port does not have the server, so nobody knows who it is.
    #[default]
    Unused,
    Down {
        again: Instant,
    },
    Connecting,
    Greeting,
    Ready,
    Closing,
}

impl OpenPort {
    pub(super) fn new(welcome: Welcome, slots_max: u16, placement: Placement) -> Self {
        Self {
            welcome,
            plans: 0,
            runs_max: RUNS_MAX,
            load: 0,
            slots: Slots::new(slots_max),
            takes: TakeSlots::new(placement),
            calls: VecDeque::new(),
            held_up: VecDeque::new(),
            messages: BTreeMap::new(),
            links: BTreeMap::new(),
        }
    }

    const fn has_room(&self) -> bool {
        self.plans < self.welcome.plans_max
    }

    fn link(&mut self, place: usize) -> &mut Link {
        self.links.entry(place).or_default()
    }
}

/// All that are open.
pub(super) type Ports = BTreeMap<PortNumber, OpenPort>;

/// A chunk's slots are set anew when they are next needed, at all ports.
pub(super) fn retire_chunk(ports: &mut Ports, chunk: ChunkPlace) {
    ports.values_mut().for_each(|port| port.slots.retire_chunk(chunk));
}

/// Whether plans under way name a chunk, at any port.
pub(super) fn is_chunk_named(ports: &Ports, chunk: ChunkPlace) -> bool {
    ports.values().any(|port| port.slots.is_named(chunk))
}

impl TierCore {
    /// Whether the first port is open.
    pub(super) fn is_connected(&self) -> bool {
        self.ports.contains_key(&MAIN)
    }

    pub(super) fn check_port(&self, port: PortNumber) -> Result<(), TierError> {
        if self.ports.contains_key(&port) { Ok(()) } else { Err(TierError::Port(port)) }
    }

    pub(super) fn port_opened(
        &mut self,
        now: Instant,
        port: PortNumber,
        welcome: Welcome,
    ) -> Result<(), TierError> {
        let main = self.ports.get(&MAIN).map(|main| main.welcome);
        let is_fitting = match main {
            // One gate for all of them, so that they end together.
            Some(main) => {
                port != MAIN
                    && port.0 < self.config.ports
                    && (main.tier, main.gate) == (welcome.tier, welcome.gate)
            }
            None => port == MAIN && self.tier.is_none_or(|tier| tier == welcome.tier),
        };
        if !is_fitting || self.ports.contains_key(&port) {
            return Err(TierError::Port(port));
        }
        let open = OpenPort::new(welcome, self.config.slots_max, self.config.placement);
        self.ports.insert(port, open);
        if port != MAIN {
            self.connect_links(now, port);
            return Ok(());
        }
        self.tier = Some(welcome.tier);
        // Before that nobody knows whose they are.
        if self.pool.is_some() {
            self.connect_servers(now);
        }
        self.begin_session();
        Ok(())
    }

    /// A bug has the others go on when a port is over.
    pub(super) fn is_lost_alone(&mut self, port: PortNumber) -> bool {
        if port == MAIN || !is_planted(Bug::PortLostAlone) {
            return false;
        }
        let Some(lost) = self.ports.remove(&port) else { return false };
        for handle in lost.messages.into_values() {
            self.change_over(handle);
            if let Some(command) = self.commands.remove(&handle.0) {
                self.holds.remove(&(command.held_until, handle.0));
            }
        }
        self.calls.retain(|_, call| call.port != port);
        true
    }

    /// As which command a message of a port is known; or the handle of the host's own, if it is that port's.
    pub(super) fn known_as(&self, port: PortNumber, handle: Handle) -> Option<Handle> {
        if handle.0 >= HOST_HANDLES {
            return self.calls.get(&handle.0).filter(|call| call.port == port).map(|_| handle);
        }
        self.ports.get(&port)?.messages.get(&handle.0).copied()
    }

    /// A number that no command has.
    pub(super) fn free_handle(&mut self) -> Handle {
        loop {
            self.last_command = self.last_command.wrapping_add(1) % HOST_HANDLES;
            if !self.commands.contains_key(&self.last_command) {
                return Handle(self.last_command);
            }
        }
    }

    /// The port of a command.
    pub(super) fn port_of(&mut self, handle: Handle) -> Option<&mut OpenPort> {
        let port = self.commands.get(&handle.0)?.port;
        self.ports.get_mut(&port)
    }

    /// How busy the card's engine is, of 255, as a port was told last: what comes now is compressed the less for it.
    pub fn set_load(&mut self, port: PortNumber, load: u8) {
        if let Some(port) = self.ports.get_mut(&port) {
            port.load = load;
        }
    }

    /// Commands of a port that it has: of each it takes no more than [`TierConfig::commands_max`](super::TierConfig::commands_max).
    #[must_use]
    pub fn commands_of(&self, port: PortNumber) -> usize {
        let early = self.early.iter().filter(|(_, of, _)| *of == port).count();
        self.ports.get(&port).map_or(0, |port| port.messages.len()) + early
    }

    /// Plans are posted as long as there may be more under way: requests to servers first, which others wait for.
    pub(super) fn run(&mut self, now: Instant) {
        loop {
            self.post_calls();
            let Some(handle) = self.next_ready() else { break };
            self.advance(now, handle);
        }
    }

    fn post_calls(&mut self) {
        for (number, port) in &mut self.ports {
            while port.has_room()
                && let Some(plan) = port.calls.pop_front()
            {
                port.plans += 1;
                self.actions.push_back(TierAction::Post { port: *number, plan });
            }
        }
    }

    /// The next command that may go on: its port may have another plan under way.
    fn next_ready(&mut self) -> Option<Handle> {
        let mut with_room = self.ports.values_mut().filter(|port| port.has_room());
        if let Some(handle) = with_room.find_map(|port| port.held_up.pop_front()) {
            return Some(handle);
        }
        while self.ports.values().any(OpenPort::has_room) {
            let handle = self.ready.pop_front()?;
            match self.port_of(handle) {
                Some(port) if !port.has_room() => port.held_up.push_back(handle),
                _ => return Some(handle),
            }
        }
        None
    }

    /// Commands that wait for another plan, in all lines of ports.
    pub(super) fn held_up(&self) -> usize {
        self.ports.values().map(|port| port.held_up.len()).sum()
    }

    /// A request of the first port's.
    pub(super) fn post_call(&mut self, plan: PostedPlan) {
        if let Some(main) = self.ports.get_mut(&MAIN) {
            main.calls.push_back(plan);
        }
    }

    pub(super) fn unpin_main(&mut self, slot: Slot) {
        if let Some(main) = self.ports.get_mut(&MAIN) {
            main.slots.unpin(slot);
        }
    }

    /// Whether a server answers at a port.
    pub(super) fn is_ready_at(&self, port: PortNumber, place: usize) -> bool {
        let is_ready = self.servers.get(place).is_some_and(ServerCore::is_ready);
        let is_linked = || {
            let link = self.ports.get(&port).and_then(|port| port.links.get(&place));
            link.is_some_and(|link| link.state == LinkState::Ready)
        };
        is_ready && (port == MAIN || is_linked())
    }

    /// The first port has greeted a server: the others do.
    pub(super) fn link_server(&mut self, now: Instant, place: usize) {
        for port in self.ports.iter_mut().filter(|(number, _)| **number != MAIN).map(|(_, port)| port) {
            let link = port.link(place);
            if link.state == LinkState::Unused {
                link.state = LinkState::Down { again: now };
            }
        }
        self.links_due(now);
    }

    fn connect_links(&mut self, now: Instant, port: PortNumber) {
        let ready: Vec<usize> =
            (0..self.servers.len()).filter(|place| self.is_ready_at(MAIN, *place)).collect();
        let Some(port) = self.ports.get_mut(&port) else { return };
        for place in ready {
            port.link(place).state = LinkState::Down { again: now };
        }
        self.links_due(now);
    }

    /// The first port does not have a server any more, or it is another.
    pub(super) fn unlink_server(&mut self, place: usize) {
        for (number, port) in &mut self.ports {
            let Some(link) = port.links.get_mut(&place) else { continue };
            link.state = match link.state {
                LinkState::Unused | LinkState::Down { .. } => LinkState::Unused,
                LinkState::Closing => continue,
                LinkState::Connecting | LinkState::Greeting | LinkState::Ready => {
                    let channel =
                        Channel { channel: channel_of(place), what: ChannelWhat::Close, address: None };
                    self.actions.push_back(TierAction::Channel { port: *number, channel });
                    LinkState::Closing
                }
            };
        }
    }

    pub(super) fn links_next_due(&self) -> Option<Instant> {
        let links = self.ports.values().flat_map(|port| port.links.values());
        let due = links.filter_map(|link| match link.state {
            LinkState::Down { again } => Some(again),
            _ => None,
        });
        due.min()
    }

    pub(super) fn links_due(&mut self, now: Instant) {
        for (number, port) in &mut self.ports {
            for (place, link) in &mut port.links {
                let Some(server) = self.servers.get(*place) else { continue };
                if !matches!(link.state, LinkState::Down { again } if again <= now) {
                    continue;
                }
                link.state = LinkState::Connecting;
                let (what, address) = (ChannelWhat::Connect, Some(server.address));
                let channel = Channel { channel: channel_of(*place), what, address };
                self.actions.push_back(TierAction::Channel { port: *number, channel });
            }
        }
    }

    /// How a channel of another port than the first is.
    pub(super) fn link_is(&mut self, now: Instant, port: PortNumber, is: ChannelIs) -> Result<(), TierError> {
        let wrong = TierError::Channel(is.channel.0);
        let place = usize::from(is.channel.0).checked_sub(1).ok_or(wrong)?;
        let is_wanted = self.servers.get(place).ok_or(wrong)?.is_ready();
        let of = self.ports.get_mut(&port).ok_or(wrong)?;
        let link = of.links.get_mut(&place).ok_or(wrong)?;
        match (is.state, link.state) {
            // It is over already.
            (ChannelState::Gone, LinkState::Unused | LinkState::Down { .. }) => {}
            (_, LinkState::Unused | LinkState::Down { .. }) => return Err(wrong),
            (ChannelState::Up, LinkState::Connecting) => {
                link.state = LinkState::Greeting;
                self.greet_at(port, place);
            }
            // It was closed meanwhile.
            (ChannelState::Up, LinkState::Closing) => {}
            (ChannelState::Gone | ChannelState::Refused, _) => {
                let down = LinkState::Down { again: now + RECONNECT };
                link.state = if is_wanted { down } else { LinkState::Unused };
                self.counts.channels_lost += 1;
                self.close_chunks_at(now, port, place);
            }
            _ => return Err(wrong),
        }
        Ok(())
    }

    /// A port has lost a server: what it writes next goes to other chunks.
    fn close_chunks_at(&mut self, now: Instant, port: PortNumber, place: usize) {
        let open = self.segments.iter().flat_map(|(name, segment)| {
            let chunks = segment.chunks.iter().enumerate();
            let its = chunks.filter(|(_, chunk)| chunk.is_open() && chunk.port == port);
            its.filter(|(_, chunk)| chunk.members.contains(&place)).map(|(open, _)| (*name, open))
        });
        for (name, open) in open.collect::<Vec<_>>() {
            self.close_chunk(now, name, open);
        }
    }

    fn greet_at(&mut self, port: PortNumber, place: usize) {
        let (tier, gate, _) = self.identity();
        let (Some(id), Some(pool)) = (self.servers.get(place).and_then(|server| server.id), self.pool) else {
            return self.close_link(port, place);
        };
        let Some(link) = self.ports.get_mut(&port).map(|port| port.link(place)) else { return };
        let Some(session) = link.session.max(gate.0).checked_add(1) else {
            return self.close_link(port, place);
        };
        link.session = session;
        let request = Request::Hello { port: port.0, tier, session };
        let hello = HelloPayload { pool, version_least: VERSION, version_most: VERSION, server: Some(id) };
        match hello.encode() {
            Ok(payload) => self.call_at(port, place, CallFor::Greet, request, &payload),
            Err(_) => self.close_link(port, place),
        }
    }

    /// A server has answered another port's greeting: it is the one that the first port knows, or nobody.
    pub(super) fn greeted_at(&mut self, now: Instant, port: PortNumber, place: usize, outcome: &Outcome) {
        let known: Option<ServerId> = self.servers.get(place).and_then(|server| server.id);
        let Some(link) = self.ports.get_mut(&port).and_then(|port| port.links.get_mut(&place)) else {
            return;
        };
        if link.state != LinkState::Greeting {
            return;
        }
        match outcome {
            Outcome::Answered(Answer::Good(Reply::Hello { server, .. })) if Some(*server) == known => {
                link.state = LinkState::Ready;
                self.ready.extend(self.memberless.drain(..));
                return self.continue_all_openings(now);
            }
            Outcome::Answered(Answer::Refused { refusal: Refusal::Stale { known }, .. }) => {
                link.session = link.session.max(*known);
            }
            Outcome::Answered(_) | Outcome::Failed => {}
        }
        self.close_link(port, place);
    }

    fn close_link(&mut self, port: PortNumber, place: usize) {
        let Some(link) = self.ports.get_mut(&port).map(|port| port.link(place)) else { return };
        link.state = LinkState::Closing;
        let channel = Channel { channel: channel_of(place), what: ChannelWhat::Close, address: None };
        self.actions.push_back(TierAction::Channel { port, channel });
    }

    /// A piece of a plan is over. Whoever is told that it cannot be knows it by its handle at the port.
    pub(super) fn done(
        &mut self,
        now: Instant,
        port: PortNumber,
        completion: &Completion,
        reply: Option<&[u8]>,
    ) -> Result<(), TierError> {
        let handle = completion.handle;
        let known = self.known_as(port, handle).ok_or(TierError::NotPosted(handle))?;
        let completion = Completion { handle: known, ..*completion };
        self.piece_over(now, port, &completion, reply).map_err(|error| match error {
            TierError::NotPosted(_) => TierError::NotPosted(handle),
            TierError::Completion { what, .. } => TierError::Completion { handle, what },
            error => error,
        })
    }
}
