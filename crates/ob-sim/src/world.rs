//! The scheduler: what happens next, and to which life of which node.
//!
//! ```text
//!   schedule(node, at, event) ──▶ (time, number) ──▶ next_event(): clock moves, event comes out
//!                                                     │
//!        kill(node) ── its events of that life ───────┴──▶ dropped, and traced
//! ```

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Duration;

use ob_core::{Clock, Incarnation, Instant};

use crate::{SimClock, Trace};

/// One process of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub usize);

/// How a node dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// The process alone: its memory is lost; the kernel resets its connections, and its disks stay powered.
    Process,
    /// The machine: nobody is told, and what its disks had not flushed may be lost.
    Power,
}

/// One life of one process: what an event is addressed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Which process.
    pub node: NodeId,
    /// Which life of it.
    pub incarnation: Incarnation,
}

/// A queue of events in virtual time, and the lives of the nodes they are for.
///
/// Events come out by time, and among those of one time in the order they were scheduled.
pub struct World<Event> {
    trace: Trace,
    queue: BinaryHeap<Scheduled<Event>>,
    scheduled: u64,
    nodes: Vec<Node>,
    dropped: u64,
}

struct Node {
    incarnation: Incarnation,
    alive: bool,
}

struct Scheduled<Event> {
    at: Instant,
    number: u64,
    to: Address,
    event: Event,
}

impl<Event> World<Event> {
    /// A world without nodes, in the time of the trace's clock.
    pub fn new(trace: Trace) -> Self {
        Self { trace, queue: BinaryHeap::new(), scheduled: 0, nodes: Vec::new(), dropped: 0 }
    }

    /// The clock.
    pub fn clock(&self) -> &SimClock {
        self.trace.clock()
    }

    /// The time now.
    pub fn now(&self) -> Instant {
        self.trace.clock().now()
    }

    /// Adds a node in its first life.
    pub fn add_node(&mut self) -> NodeId {
        self.nodes.push(Node { incarnation: Incarnation(1), alive: true });
        NodeId(self.nodes.len() - 1)
    }

    /// The present (or, of a dead node, the last) life.
    pub fn address(&self, node: NodeId) -> Address {
        Address { node, incarnation: self.nodes[node.0].incarnation }
    }

    /// Whether the node lives.
    pub fn is_alive(&self, node: NodeId) -> bool {
        self.nodes[node.0].alive
    }

    /// Ends a node's life: none of the events addressed to it will reach anyone.
    pub fn kill(&mut self, node: NodeId) {
        self.trace.note("kill", &[node.0 as u64, self.nodes[node.0].incarnation.0]);
        self.nodes[node.0].alive = false;
    }

    /// Begins a node's next life; ends the present one if it has not ended.
    pub fn revive(&mut self, node: NodeId) -> Incarnation {
        let life = &mut self.nodes[node.0];
        life.incarnation = Incarnation(life.incarnation.0 + 1);
        life.alive = true;
        self.trace.note("revive", &[node.0 as u64, life.incarnation.0]);
        life.incarnation
    }

    /// Schedules an event for a node's present life. A time that is past already means now.
    pub fn schedule(&mut self, node: NodeId, at: Instant, event: Event) {
        self.schedule_to(self.address(node), at, event);
    }

    /// Schedules an event for a node's present life.
    pub fn schedule_in(&mut self, node: NodeId, delay: Duration, event: Event) {
        self.schedule(node, self.now() + delay, event);
    }

    /// Schedules an event for one life of a node, which may be over.
    pub fn schedule_to(&mut self, to: Address, at: Instant, event: Event) {
        let at = at.max(self.now());
        self.queue.push(Scheduled { at, number: self.scheduled, to, event });
        self.scheduled += 1;
    }

    /// Moves the clock to the next event that reaches a living node, and takes it.
    pub fn next_event(&mut self) -> Option<(NodeId, Event)> {
        self.next_event_until(Instant::from_nanoseconds(u64::MAX))
    }

    /// As [`World::next_event`], but no event later than `limit`; then the clock stands at `limit`.
    pub fn next_event_until(&mut self, limit: Instant) -> Option<(NodeId, Event)> {
        while self.queue.peek().is_some_and(|next| next.at <= limit) {
            let Some(Scheduled { at, to, event, .. }) = self.queue.pop() else { break };
            self.clock().advance_to(at);
            if self.is_alive(to.node) && self.address(to.node) == to {
                return Some((to.node, event));
            }
            self.dropped += 1;
            self.trace.note("event of an earlier life", &[to.node.0 as u64, to.incarnation.0]);
        }
        if limit.nanoseconds() != u64::MAX {
            self.clock().advance_to(limit);
        }
        None
    }

    /// When the next event is due, to whichever life.
    pub fn next_due(&self) -> Option<Instant> {
        self.queue.peek().map(|next| next.at)
    }

    /// How many events were dropped because the life they were for was over.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

// The heap gives its greatest out first, so the earliest event is the greatest.
impl<Event> Ord for Scheduled<Event> {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl<Event> PartialOrd for Scheduled<Event> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<Event> PartialEq for Scheduled<Event> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl<Event> Eq for Scheduled<Event> {}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanoseconds: u64) -> Instant {
        Instant::from_nanoseconds(nanoseconds)
    }

    #[test]
    fn events_come_by_time_then_in_the_order_they_were_scheduled() {
        let mut world = World::new(Trace::new(SimClock::new()));
        let node = world.add_node();
        for (time, name) in [(5, "late"), (1, "first"), (1, "second"), (3, "middle")] {
            world.schedule(node, at(time), name);
        }
        let names: Vec<_> = std::iter::from_fn(|| world.next_event().map(|(_, name)| name)).collect();
        assert_eq!(names, ["first", "second", "middle", "late"]);
        assert_eq!(world.now(), at(5));
        world.schedule(node, at(2), "past");
        assert_eq!((world.next_event(), world.now()), (Some((node, "past")), at(5)));
    }

    #[test]
    fn an_event_for_an_earlier_life_reaches_nobody() {
        let mut world = World::new(Trace::new(SimClock::new()));
        let node = world.add_node();
        world.schedule(node, at(5), "old");
        world.kill(node);
        world.schedule(node, at(6), "to the dead");
        assert_eq!(world.revive(node), Incarnation(2));
        world.schedule(node, at(7), "new");
        assert_eq!(world.next_event(), Some((node, "new")));
        assert_eq!((world.next_event(), world.dropped()), (None, 2));
    }

    #[test]
    fn time_stops_at_the_limit() {
        let mut world = World::new(Trace::new(SimClock::new()));
        let node = world.add_node();
        world.schedule(node, at(9), ());
        assert_eq!((world.next_event_until(at(4)), world.now()), (None, at(4)));
        assert_eq!(world.next_event_until(at(9)), Some((node, ())));
    }
}
