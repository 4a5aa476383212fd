//! The network's one owner of state.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ob_core::{Clock, ConnectionId, Instant, ListenerId, NetError, NetEvent, NetListenError, Received, Sent};

use super::endpoint::{Endpoint, Phase, Segment};
use super::{NetPlan, NetStats, Network};
use crate::{Death, NodeId, Rng, Trace};

/// How many times as long somebody tries to connect whom nobody answers, as one whose bytes do not get through: longer than programs wait that
/// have a patience of their own.
const CONNECT_TIMEOUTS: u32 = 8;
/// First of the ports that are given out where none is asked for.
const EPHEMERAL: u16 = 32768;

pub(super) struct State {
    pub(super) stats: NetStats,
    pub(super) plan: NetPlan,
    rng: Rng,
    trace: Trace,
    nodes: BTreeMap<NodeId, Node>,
    endpoints: BTreeMap<ConnectionId, Endpoint>,
    listeners: BTreeMap<(NodeId, u16), ListenerId>,
    cuts: BTreeSet<(NodeId, NodeId)>,
    /// When the first outgoing segment of an end is due.
    due: BTreeSet<(Instant, ConnectionId)>,
    /// Resets on their way to an end.
    resets: BTreeSet<(Instant, ConnectionId)>,
    /// Nothing is due before this, or at all: every call asks, and most ask for nothing.
    quiet_until: Option<Instant>,
    next_connection: u64,
    next_listener: u32,
}

#[derive(Default)]
struct Node {
    life: u64,
    alive: bool,
    /// Whether its machine runs and answers, if only to say that nobody is there.
    powered: bool,
    events: VecDeque<NetEvent>,
}

impl State {
    pub(super) fn new(plan: NetPlan, rng: Rng, trace: Trace) -> Self {
        Self {
            stats: NetStats::default(),
            plan,
            rng,
            trace,
            nodes: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            listeners: BTreeMap::new(),
            cuts: BTreeSet::new(),
            due: BTreeSet::new(),
            resets: BTreeSet::new(),
            quiet_until: None,
            next_connection: 1,
            next_listener: 1,
        }
    }

    pub(super) fn now(&self) -> Instant {
        self.trace.clock().now()
    }

    pub(super) fn attach(&mut self, node: NodeId) -> u64 {
        self.kill(node, Death::Process);
        let node = self.nodes.entry(node).or_default();
        node.life += 1;
        (node.alive, node.powered) = (true, true);
        node.life
    }

    pub(super) fn is_life(&self, node: NodeId, life: u64) -> bool {
        self.nodes.get(&node).is_some_and(|node| node.alive && node.life == life)
    }

    pub(super) fn has_events(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|node| !node.events.is_empty())
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        let first = |queue: &BTreeSet<(Instant, ConnectionId)>| queue.first().map(|(at, _)| *at);
        [first(&self.due), first(&self.resets)].into_iter().flatten().min()
    }

    pub(super) fn cut(&mut self, from: NodeId, to: NodeId) {
        self.catch_up();
        self.trace.note("cut", &[from.0 as u64, to.0 as u64]);
        self.cuts.insert((from, to));
    }

    pub(super) fn heal(&mut self, from: NodeId, to: NodeId) {
        self.catch_up();
        self.trace.note("heal", &[from.0 as u64, to.0 as u64]);
        self.cuts.remove(&(from, to));
    }

    pub(super) fn heal_all(&mut self) {
        self.catch_up();
        self.trace.note("heal all", &[]);
        self.cuts.clear();
    }

    pub(super) fn kill(&mut self, node: NodeId, how: Death) {
        self.catch_up();
        let Some(life) = self.nodes.get_mut(&node).filter(|life| life.alive) else { return };
        (life.alive, life.powered) = (false, how == Death::Process);
        life.events.clear();
        self.trace.note("net kill", &[node.0 as u64, how as u64]);
        self.listeners.retain(|(at, _), _| *at != node);
        let ends: Vec<ConnectionId> = self.ends(|end| end.node == node);
        for id in ends {
            let peer = self.remove(id).and_then(|end| end.peer);
            match (peer, how) {
                (Some(peer), Death::Process) => self.send_reset(node, peer),
                (Some(peer), Death::Power) => self.leave_connecting(peer),
                (None, _) => {}
            }
        }
    }

    pub(super) fn reset_between(&mut self, one: NodeId, other: NodeId) {
        self.catch_up();
        let between = [(one, other), (other, one)];
        for id in self.ends(|end| between.contains(&(end.node, end.peer_node))) {
            self.break_end(id, NetError::Reset);
        }
    }

    fn ends(&self, which: impl Fn(&Endpoint) -> bool) -> Vec<ConnectionId> {
        self.endpoints.iter().filter(|(_, end)| which(end)).map(|(id, _)| *id).collect()
    }

    pub(super) fn listen(&mut self, node: NodeId, address: SocketAddr) -> Result<ListenerId, NetListenError> {
        if node_of(address.ip(), node) != Some(node) {
            return Err(NetListenError::Unavailable(address, "not an address of this node".into()));
        }
        let mut port = address.port();
        if port == 0 {
            let free = |port: &u16| !self.listeners.contains_key(&(node, *port));
            port = (EPHEMERAL..u16::MAX).find(free).unwrap_or(EPHEMERAL);
        }
        if self.listeners.contains_key(&(node, port)) {
            return Err(NetListenError::InUse(address));
        }
        let id = ListenerId(self.next_listener);
        self.next_listener += 1;
        self.listeners.insert((node, port), id);
        Ok(id)
    }

    pub(super) fn listener_address(&self, node: NodeId, listener: ListenerId) -> Option<SocketAddr> {
        let found = self.listeners.iter().find(|((at, _), id)| *at == node && **id == listener);
        found.map(|((at, port), _)| Network::address(*at, *port))
    }

    pub(super) fn connect(&mut self, node: NodeId, address: SocketAddr) -> Result<ConnectionId, NetError> {
        let target = node_of(address.ip(), node).filter(|target| self.nodes.contains_key(target));
        let target = target.ok_or(NetError::Unreachable)?;
        if self.rng.chance(self.plan.exhausted) {
            self.stats.exhausted += 1;
            return Err(NetError::Exhausted);
        }
        let id = self.add(Endpoint::new(node, target, None, Phase::Connecting));
        self.trace.note("connect", &[id.0, node.0 as u64, target.0 as u64, address.port().into()]);
        self.push(id, Segment::Syn(address.port()));
        Ok(id)
    }

    fn add(&mut self, end: Endpoint) -> ConnectionId {
        let id = ConnectionId(self.next_connection);
        self.next_connection += 1;
        self.endpoints.insert(id, end);
        id
    }

    fn remove(&mut self, id: ConnectionId) -> Option<Endpoint> {
        self.due.retain(|(_, due)| *due != id);
        self.resets.retain(|(_, due)| *due != id);
        self.endpoints.remove(&id)
    }

    /// The program's end of this id; an error if it is broken, or not the program's.
    fn end(&mut self, node: NodeId, id: ConnectionId) -> Result<&mut Endpoint, NetError> {
        let end = self.endpoints.get_mut(&id).filter(|end| end.node == node).ok_or(NetError::Unknown)?;
        match end.phase {
            Phase::Broken(error) => Err(error),
            Phase::Closing => Err(NetError::Unknown),
            Phase::Connecting | Phase::Open => Ok(end),
        }
    }

    pub(super) fn receive(
        &mut self,
        node: NodeId,
        id: ConnectionId,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<Received, NetError> {
        let (short, cut) = (self.rng.chance(self.plan.short), self.rng.word());
        let asked = into.iter().map(|slice| slice.len()).sum();
        let end = self.end(node, id)?;
        let most = end.arrived.len().min(asked);
        if asked == 0 {
            return Ok(Received::Bytes(0));
        }
        if most == 0 {
            if end.arrived.is_empty() && end.end_arrived {
                return Ok(Received::End);
            }
            end.wants_read = true;
            return Ok(Received::Nothing);
        }
        let len = if short { 1 + (cut % most as u64) as usize } else { most };
        let mut left = len;
        for slice in into {
            let part = left.min(slice.len());
            end.take(&mut slice[..part]);
            left -= part;
        }
        self.stats.short_receives += u64::from(len < most);
        self.trace.note("receive", &[id.0, len as u64]);
        self.push(id, Segment::Ack(len));
        Ok(Received::Bytes(len))
    }

    pub(super) fn send(
        &mut self,
        node: NodeId,
        id: ConnectionId,
        slices: &[IoSlice<'_>],
    ) -> Result<Sent, NetError> {
        let (short, cut, window) = (self.rng.chance(self.plan.short), self.rng.word(), self.plan.window);
        let end = self.end(node, id)?;
        if end.finished {
            return Err(NetError::Unknown);
        }
        let offered = slices.iter().map(|slice| slice.len()).sum();
        let room = if end.phase == Phase::Open { window.saturating_sub(end.unacknowledged) } else { 0 };
        let most = room.min(offered);
        let len = if short && most > 0 { 1 + (cut % most as u64) as usize } else { most };
        if len < offered {
            end.wants_write = true;
            self.stats.short_sends += 1;
        }
        if len > 0 {
            let end = self.end(node, id)?;
            end.unacknowledged += len;
            let has_room = end.unacknowledged < window;
            self.trace.note("send", &[id.0, len as u64]);
            self.push(id, Segment::Bytes(first_bytes(slices, len)));
            // A send cut short for no reason is told of its room at once.
            if has_room && len < offered {
                self.tell_writable(id);
            }
        }
        Ok(Sent(len))
    }

    pub(super) fn finish(&mut self, node: NodeId, id: ConnectionId) -> Result<(), NetError> {
        let end = self.end(node, id)?;
        if !end.finished {
            end.finished = true;
            self.push(id, Segment::End);
        }
        Ok(())
    }

    pub(super) fn close(&mut self, node: NodeId, id: ConnectionId) {
        if let Some(node) = self.nodes.get_mut(&node) {
            node.events.retain(|event| connection_of(event) != Some(id));
        }
        let Some(end) = self.endpoints.get_mut(&id).filter(|end| end.node == node) else { return };
        self.trace.note("close", &[id.0]);
        let unread = !end.arrived.is_empty();
        if end.phase != Phase::Open || unread {
            let peer = self.remove(id).and_then(|end| end.peer);
            peer.into_iter().for_each(|peer| self.send_reset(node, peer));
            return;
        }
        end.phase = Phase::Closing;
        if !end.finished {
            end.finished = true;
            self.push(id, Segment::End);
        }
        self.reap(id);
    }

    pub(super) fn poll(&mut self, node: NodeId) -> Option<NetEvent> {
        let event = self.nodes.get_mut(&node)?.events.pop_front()?;
        if let NetEvent::Closed { connection, .. } = event {
            self.remove(connection);
        }
        Some(event)
    }

    /// Puts a segment on the line.
    fn push(&mut self, id: ConnectionId, segment: Segment) {
        let now = self.now();
        let latency = self.rng.skewed(self.plan.latency.clone());
        let Some(end) = self.endpoints.get_mut(&id) else { return };
        let len = if let Segment::Bytes(bytes) = &segment { bytes.len() as u64 } else { 0 };
        let sending = Duration::from_nanos(len * 1_000_000_000 / self.plan.bandwidth.max(1));
        end.line_free = end.line_free.max(now) + sending;
        let last = end.outgoing.back().map_or(now, |(at, _)| *at);
        let at = last.max(end.line_free + latency);
        end.outgoing.push_back((at, segment));
        if end.outgoing.len() == 1 {
            self.due.insert((at, id));
            self.expect_by(at);
        }
    }

    fn expect_by(&mut self, at: Instant) {
        self.quiet_until = Some(self.quiet_until.map_or(at, |until| until.min(at)));
    }

    fn send_reset(&mut self, from: NodeId, to: ConnectionId) {
        let Some(end) = self.endpoints.get(&to) else { return };
        // A reset is sent once; where it does not get through the peer finds out when it sends.
        if !self.cuts.contains(&(from, end.node)) {
            let at = self.now() + self.rng.skewed(self.plan.latency.clone());
            self.resets.insert((at, to));
            self.expect_by(at);
        } else {
            self.leave_connecting(to);
        }
    }

    /// Whoever was to be told that it is connected, and never will be, gives up after a while: it has nothing to send, by which it would find
    /// out.
    fn leave_connecting(&mut self, id: ConnectionId) {
        if self.endpoints.get(&id).is_some_and(|end| end.phase == Phase::Connecting) {
            let at = self.now() + self.plan.timeout * CONNECT_TIMEOUTS;
            self.resets.insert((at, id));
            self.expect_by(at);
        }
    }

    pub(super) fn catch_up(&mut self) {
        let now = self.now();
        if self.quiet_until.is_none_or(|until| now < until) {
            return;
        }
        while let Some(next) = self.next_due().filter(|next| *next <= now) {
            match self.resets.first().copied() {
                Some((at, id)) if at == next => {
                    self.resets.remove(&(at, id));
                    self.break_end(id, NetError::Reset);
                }
                _ => {
                    if let Some((at, id)) = self.due.pop_first() {
                        self.deliver(at, id);
                    }
                }
            }
        }
        self.quiet_until = self.next_due();
    }

    /// The first outgoing segment of an end arrives, or is held up.
    fn deliver(&mut self, at: Instant, id: ConnectionId) {
        let Some(end) = self.endpoints.get_mut(&id) else { return };
        let there = self.nodes.get(&end.peer_node).is_some_and(|node| node.powered);
        if self.cuts.contains(&(end.node, end.peer_node)) || !there {
            let since = *end.held_up_since.get_or_insert(at);
            self.stats.held_up += 1;
            if at.since(since) >= self.plan.timeout {
                self.stats.timeouts += 1;
                self.break_end(id, NetError::TimedOut);
            } else if let Some(first) = end.outgoing.front_mut() {
                first.0 = at + self.plan.retry;
                self.due.insert((first.0, id));
            }
            return;
        }
        end.held_up_since = None;
        let Some((_, segment)) = end.outgoing.pop_front() else { return };
        if let Some((next, _)) = end.outgoing.front_mut() {
            *next = at.max(*next);
            self.due.insert((*next, id));
        }
        let (from, to, peer) = (end.node, end.peer_node, end.peer);
        if self.rng.chance(self.plan.reset) {
            self.reset_on_the_way(id, peer);
            return;
        }
        self.arrive(id, from, to, peer, segment);
        self.reap(id);
    }

    fn reset_on_the_way(&mut self, id: ConnectionId, peer: Option<ConnectionId>) {
        self.trace.note("reset on the way", &[id.0]);
        for end in [Some(id), peer].into_iter().flatten() {
            self.break_end(end, NetError::Reset);
        }
    }

    fn arrive(
        &mut self,
        id: ConnectionId,
        from: NodeId,
        to: NodeId,
        peer: Option<ConnectionId>,
        segment: Segment,
    ) {
        if let Segment::Syn(port) = segment {
            return self.arrive_syn(id, from, to, port);
        }
        let alive = peer.and_then(|peer| Some((peer, self.endpoints.get_mut(&peer)?)));
        let Some((peer, end)) = alive.filter(|(_, end)| !matches!(end.phase, Phase::Broken(_))) else {
            // Nobody knows this connection there, and bytes for nobody are answered so.
            if matches!(segment, Segment::Bytes(_)) {
                self.send_reset(to, id);
            }
            return;
        };
        let closing = end.phase == Phase::Closing;
        match segment {
            Segment::Syn(_) => {}
            Segment::Accept(accepting) => {
                (end.peer, end.phase) = (Some(accepting), Phase::Open);
                self.stats.connected += 1;
                self.tell(to, NetEvent::Connected(peer));
                self.tell_writable(peer);
            }
            Segment::Bytes(_) if closing => self.send_reset(to, id),
            Segment::Bytes(bytes) => {
                self.stats.bytes += bytes.len() as u64;
                end.arrived.extend(bytes);
                self.tell_readable(peer);
            }
            Segment::Ack(len) => {
                end.unacknowledged -= len;
                self.tell_writable(peer);
            }
            Segment::End => {
                end.end_arrived = true;
                self.tell_readable(peer);
            }
        }
        if self.rng.chance(self.plan.spurious) && !closing {
            self.tell(to, NetEvent::Readable(peer));
        }
    }

    fn arrive_syn(&mut self, id: ConnectionId, from: NodeId, to: NodeId, port: u16) {
        let listener = self.listeners.get(&(to, port)).copied();
        let Some(listener) = listener.filter(|_| !self.rng.chance(self.plan.refuse)) else {
            self.stats.refused += 1;
            return self.send_reset(to, id);
        };
        let accepting = self.add(Endpoint::new(to, from, Some(id), Phase::Open));
        if let Some(end) = self.endpoints.get_mut(&id) {
            end.peer = Some(accepting);
        }
        self.trace.note("accept", &[id.0, accepting.0]);
        let peer = Network::address(from, EPHEMERAL);
        self.tell(to, NetEvent::Accepted { listener, connection: accepting, peer });
        self.push(accepting, Segment::Accept(accepting));
    }

    fn tell(&mut self, node: NodeId, event: NetEvent) {
        if let Some(node) = self.nodes.get_mut(&node).filter(|node| node.alive) {
            node.events.push_back(event);
        }
    }

    fn tell_readable(&mut self, id: ConnectionId) {
        let Some(end) = self.endpoints.get_mut(&id) else { return };
        if end.phase == Phase::Open && std::mem::take(&mut end.wants_read) {
            let node = end.node;
            self.tell(node, NetEvent::Readable(id));
        }
    }

    fn tell_writable(&mut self, id: ConnectionId) {
        let Some(end) = self.endpoints.get_mut(&id) else { return };
        if end.phase == Phase::Open && std::mem::take(&mut end.wants_write) {
            let node = end.node;
            self.tell(node, NetEvent::Writable(id));
        }
    }

    /// Ends a connection at one end; its program is told unless it has closed it.
    fn break_end(&mut self, id: ConnectionId, error: NetError) {
        let Some(end) = self.endpoints.get_mut(&id) else { return };
        let (node, was) = (end.node, end.phase);
        match was {
            Phase::Broken(_) => return,
            Phase::Closing => {
                self.remove(id);
                return;
            }
            Phase::Connecting | Phase::Open => {}
        }
        let peer = end.peer;
        let refused = was == Phase::Connecting && error == NetError::Reset;
        let error = if refused { NetError::Refused } else { error };
        end.phase = Phase::Broken(error);
        end.outgoing.clear();
        self.stats.resets += u64::from(error == NetError::Reset);
        self.due.retain(|(_, due)| *due != id);
        self.trace.note("broken", &[id.0, error as u64]);
        if error == NetError::TimedOut {
            peer.into_iter().for_each(|peer| self.leave_connecting(peer));
        }
        self.tell(node, NetEvent::Closed { connection: id, error });
    }

    /// Forgets an end that its program closed, once all it sent has arrived.
    fn reap(&mut self, id: ConnectionId) {
        let over = |end: &Endpoint| end.phase == Phase::Closing && end.outgoing.is_empty();
        if self.endpoints.get(&id).is_some_and(over) {
            self.remove(id);
        }
    }
}

/// Which node an address means to a node that uses it.
fn node_of(ip: IpAddr, user: NodeId) -> Option<NodeId> {
    match ip {
        ip if ip.is_loopback() || ip.is_unspecified() => Some(user),
        IpAddr::V4(ip) => match ip.octets() {
            [10, 0, high, low] => Some(NodeId(usize::from(u16::from_be_bytes([high, low])))),
            _ => None,
        },
        IpAddr::V6(_) => None,
    }
}

fn connection_of(event: &NetEvent) -> Option<ConnectionId> {
    match event {
        NetEvent::Accepted { connection, .. } | NetEvent::Closed { connection, .. } => Some(*connection),
        NetEvent::Connected(id) | NetEvent::Readable(id) | NetEvent::Writable(id) => Some(*id),
    }
}

/// The first `len` bytes of what is offered.
fn first_bytes(slices: &[IoSlice<'_>], len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len);
    for slice in slices {
        let part = slice.len().min(len - bytes.len());
        bytes.extend_from_slice(&slice[..part]);
    }
    bytes
}
