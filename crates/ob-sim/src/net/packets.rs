//! Datagrams: lost, doubled and reordered.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

use ob_core::{Clock, Instant};

use super::NetStats;
use crate::{NodeId, PerMillion, Rng, Trace};

/// How datagrams fare.
#[derive(Clone, Debug)]
pub struct PacketPlan {
    /// How long one travels; those of different delay overtake each other.
    pub latency: Range<Duration>,
    /// How often one is lost.
    pub loss: PerMillion,
    /// How often one arrives twice.
    pub double: PerMillion,
    /// The most bytes of one; longer ones are lost.
    pub len_max: usize,
}

impl Default for PacketPlan {
    fn default() -> Self {
        Self {
            latency: Duration::from_micros(20)..Duration::from_millis(5),
            loss: PerMillion::percent(5),
            double: PerMillion::percent(2),
            len_max: 1500,
        }
    }
}

/// A network of datagrams between nodes.
pub struct SimPackets {
    plan: PacketPlan,
    rng: Rng,
    trace: Trace,
    on_the_way: BTreeMap<(Instant, u64), Packet>,
    arrived: BTreeMap<NodeId, VecDeque<Packet>>,
    cuts: BTreeSet<(NodeId, NodeId)>,
    newest: BTreeMap<(NodeId, NodeId), u64>,
    sent: u64,
    stats: NetStats,
}

struct Packet {
    from: NodeId,
    to: NodeId,
    number: u64,
    bytes: Vec<u8>,
}

impl SimPackets {
    /// A network that behaves as planned, in the time of the trace's clock.
    pub fn new(plan: PacketPlan, rng: Rng, trace: Trace) -> Self {
        Self {
            plan,
            rng,
            trace,
            on_the_way: BTreeMap::new(),
            arrived: BTreeMap::new(),
            cuts: BTreeSet::new(),
            newest: BTreeMap::new(),
            sent: 0,
            stats: NetStats::default(),
        }
    }

    /// Sends a datagram. Nobody is told what becomes of it.
    pub fn send(&mut self, from: NodeId, to: NodeId, bytes: &[u8]) {
        self.sent += 1;
        let number = self.sent;
        self.trace.note("packet", &[from.0 as u64, to.0 as u64, number, bytes.len() as u64]);
        let lost = bytes.len() > self.plan.len_max || self.cuts.contains(&(from, to));
        if lost || self.rng.chance(self.plan.loss) {
            self.stats.packets_lost += 1;
            return;
        }
        let doubled = self.rng.chance(self.plan.double);
        self.stats.packets_doubled += u64::from(doubled);
        for copy in 0..=u64::from(doubled) {
            let at = self.trace.clock().now() + self.rng.skewed(self.plan.latency.clone());
            let packet = Packet { from, to, number, bytes: bytes.to_vec() };
            self.on_the_way.insert((at, number * 2 + copy), packet);
        }
    }

    /// The next datagram that has arrived at a node, and who sent it.
    pub fn poll(&mut self, node: NodeId) -> Option<(NodeId, Vec<u8>)> {
        self.catch_up();
        let packet = self.arrived.get_mut(&node)?.pop_front()?;
        Some((packet.from, packet.bytes))
    }

    fn catch_up(&mut self) {
        let now = self.trace.clock().now();
        while let Some(entry) = self.on_the_way.first_entry()
            && entry.key().0 <= now
        {
            let packet = entry.remove();
            let newest = self.newest.entry((packet.from, packet.to)).or_default();
            self.stats.packets_overtaking += u64::from(packet.number < *newest);
            *newest = packet.number.max(*newest);
            self.stats.bytes += packet.bytes.len() as u64;
            self.arrived.entry(packet.to).or_default().push_back(packet);
        }
    }

    /// When the next datagram arrives.
    pub fn next_due(&self) -> Option<Instant> {
        self.on_the_way.first_key_value().map(|((at, _), _)| *at)
    }

    /// Loses everything that is sent from one node to another from now on.
    pub fn cut(&mut self, from: NodeId, to: NodeId) {
        self.cuts.insert((from, to));
    }

    /// Ends a cut.
    pub fn heal(&mut self, from: NodeId, to: NodeId) {
        self.cuts.remove(&(from, to));
    }

    /// A node died: what had arrived and what is on its way to it is gone.
    pub fn kill(&mut self, node: NodeId) {
        self.arrived.remove(&node);
        self.on_the_way.retain(|_, packet| packet.to != node);
    }

    /// What happened so far.
    pub fn stats(&self) -> NetStats {
        self.stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SimClock;

    #[test]
    fn datagrams_are_lost_doubled_and_reordered_but_never_changed() {
        let clock = SimClock::new();
        let mut net = SimPackets::new(PacketPlan::default(), Rng::new(1), Trace::new(clock.clone()));
        let (one, other) = (NodeId(0), NodeId(1));
        let mut got = Vec::new();
        for number in 0..2000u32 {
            net.send(one, other, &number.to_le_bytes());
            clock.advance_to(clock.now() + Duration::from_micros(30));
            while let Some((from, bytes)) = net.poll(other) {
                assert_eq!(from, one);
                got.push(u32::from_le_bytes(bytes.try_into().unwrap()));
            }
        }
        assert!(got.iter().all(|number| *number < 2000));
        let distinct: BTreeSet<u32> = got.iter().copied().collect();
        let stats = net.stats();
        assert!(distinct.len() < 1990 && distinct.len() > 1700 && got.len() > distinct.len(), "{stats:?}");
        assert!(stats.packets_lost > 50 && stats.packets_doubled > 10 && stats.packets_overtaking > 100);
        net.send(one, other, &[0; 1501]);
        assert_eq!(net.stats().packets_lost, stats.packets_lost + 1);
        net.cut(one, other);
        net.send(one, other, &[1]);
        net.kill(other);
        assert!(net.next_due().is_none() && net.poll(other).is_none());
    }
}
