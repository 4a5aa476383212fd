//! Byte streams between nodes, with everything that happens to them short of corruption.
//!
//! ```text
//!   node A                         the network                          node B
//!   SimNet ── send ──▶ outgoing: Syn, Bytes, Ack, End ──▶ arrived ──▶ receive ── SimNet
//!             short      │ one after the other, each late as it likes      short
//!             when the   │ cut or dead machine: tried again, then given up
//!             window is  │ reset: both ends closed
//!             full       ▼
//!                     Network: cut, heal, kill, revive, advance
//! ```
//!
//! A stream stays in order and whole, as over TCP: lost and reordered packets show as delay.

mod endpoint;
mod plan;
mod state;

use std::cell::RefCell;
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;

use ob_core::{ConnectionId, Instant, ListenerId, Net, NetError, NetEvent, NetListenError, Received, Sent};

use crate::{Death, NodeId, Rng, Trace};
pub use plan::{NetPlan, NetStats};
use state::State;

/// The whole network: for whoever runs a simulation. Clones are the same network.
#[derive(Clone)]
pub struct Network {
    state: Rc<RefCell<State>>,
}

impl Network {
    /// A network that behaves as planned, in the time of the trace's clock.
    pub fn new(plan: NetPlan, rng: Rng, trace: Trace) -> Self {
        Self { state: Rc::new(RefCell::new(State::new(plan, rng, trace))) }
    }

    /// The address of a port of a node.
    pub fn address(node: NodeId, port: u16) -> SocketAddr {
        let [high, low] = (node.0 as u16).to_be_bytes();
        SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, high, low)), port)
    }

    /// A node's way to the network, for its present life. A node that was killed needs a new one in its next.
    pub fn attach(&self, node: NodeId) -> SimNet {
        let life = self.state.borrow_mut().attach(node);
        SimNet { network: self.clone(), node, life }
    }

    /// Lets nothing through from one node to another (and not the other way).
    pub fn cut(&self, from: NodeId, to: NodeId) {
        self.state.borrow_mut().cut(from, to);
    }

    /// Lets nothing through between two nodes.
    pub fn cut_both(&self, one: NodeId, other: NodeId) {
        self.cut(one, other);
        self.cut(other, one);
    }

    /// Ends a cut. What was held up is tried again before long.
    pub fn heal(&self, from: NodeId, to: NodeId) {
        self.state.borrow_mut().heal(from, to);
    }

    /// Ends every cut.
    pub fn heal_all(&self) {
        self.state.borrow_mut().heal_all();
    }

    /// A node dies. Of a process, peers are told by resets; of a machine, they find out when they send.
    pub fn kill(&self, node: NodeId, how: Death) {
        self.state.borrow_mut().kill(node, how);
    }

    /// Resets every connection between two nodes, as something in between might.
    pub fn reset_between(&self, one: NodeId, other: NodeId) {
        self.state.borrow_mut().reset_between(one, other);
    }

    /// Changes how the network behaves from now on.
    pub fn change_plan(&self, change: impl FnOnce(&mut NetPlan)) {
        let mut state = self.state.borrow_mut();
        state.catch_up();
        change(&mut state.plan);
    }

    /// Does everything that is due by now.
    pub fn advance(&self) {
        self.state.borrow_mut().catch_up();
    }

    /// When something is due next.
    pub fn next_due(&self) -> Option<Instant> {
        self.state.borrow().next_due()
    }

    /// Whether a node has events to poll.
    pub fn has_events(&self, node: NodeId) -> bool {
        self.state.borrow().has_events(node)
    }

    /// What happened so far.
    pub fn stats(&self) -> NetStats {
        self.state.borrow().stats
    }
}

/// One node's way to the network, for one life of the node.
pub struct SimNet {
    network: Network,
    node: NodeId,
    life: u64,
}

impl SimNet {
    /// When the network does something next that may concern this node; now, if an event waits.
    pub fn next_due(&self) -> Option<Instant> {
        let state = self.network.state.borrow();
        if state.has_events(self.node) { Some(state.now()) } else { state.next_due() }
    }

    /// The network, if this life of the node still lasts.
    fn with<T>(&self, over: T, act: impl FnOnce(&mut State, NodeId) -> T) -> T {
        let mut state = self.network.state.borrow_mut();
        state.catch_up();
        if state.is_life(self.node, self.life) { act(&mut state, self.node) } else { over }
    }
}

impl Net for SimNet {
    fn listen(&mut self, address: SocketAddr) -> Result<ListenerId, NetListenError> {
        let gone = NetListenError::Unavailable(address, "this life of the node is over".into());
        self.with(Err(gone), |state, node| state.listen(node, address))
    }

    fn listener_address(&self, listener: ListenerId) -> Option<SocketAddr> {
        self.with(None, |state, node| state.listener_address(node, listener))
    }

    fn connect(&mut self, address: SocketAddr) -> Result<ConnectionId, NetError> {
        self.with(Err(NetError::Unreachable), |state, node| state.connect(node, address))
    }

    fn receive(&mut self, connection: ConnectionId, into: &mut [u8]) -> Result<Received, NetError> {
        self.receive_vectored(connection, &mut [IoSliceMut::new(into)])
    }

    fn receive_vectored(
        &mut self,
        connection: ConnectionId,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<Received, NetError> {
        self.with(Err(NetError::Unknown), |state, node| state.receive(node, connection, into))
    }

    fn send(&mut self, connection: ConnectionId, bytes: &[u8]) -> Result<Sent, NetError> {
        self.send_vectored(connection, &[IoSlice::new(bytes)])
    }

    fn send_vectored(&mut self, connection: ConnectionId, slices: &[IoSlice<'_>]) -> Result<Sent, NetError> {
        self.with(Err(NetError::Unknown), |state, node| state.send(node, connection, slices))
    }

    fn finish(&mut self, connection: ConnectionId) -> Result<(), NetError> {
        self.with(Err(NetError::Unknown), |state, node| state.finish(node, connection))
    }

    fn close(&mut self, connection: ConnectionId) {
        self.with((), |state, node| state.close(node, connection));
    }

    fn poll(&mut self) -> Option<NetEvent> {
        self.with(None, State::poll)
    }
}

#[cfg(test)]
mod tests;
