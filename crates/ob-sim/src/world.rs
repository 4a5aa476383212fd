//! The scheduler: what happens next, and to which life of which node.
//!
//! ```text
//!   schedule(node, at, event) ──▶ (time, number) ──▶ next_event(): clock moves, event comes out
//!                                                     │
//!        kill(node) ── its events of that life ───────┼──▶ dropped, and traced
//!        pause(node, until) ── what is for it ────────┴──▶ kept, and given out in its order when it goes on
//! ```

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
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
    /// What was kept for nodes that were paused, and go on now.
    released: VecDeque<Scheduled<Event>>,
    /// What is kept for those that are paused.
    kept: Vec<Scheduled<Event>>,
    dropped: u64,
}

struct Node {
    incarnation: Incarnation,
    alive: bool,
    paused_until: Option<Instant>,
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
        Self {
            trace,
            queue: BinaryHeap::new(),
            scheduled: 0,
            nodes: Vec::new(),
            released: VecDeque::new(),
            kept: Vec::new(),
            dropped: 0,
        }
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
        self.nodes.push(Node { incarnation: Incarnation(1), alive: true, paused_until: None });
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
        (life.alive, life.paused_until) = (true, None);
        self.trace.note("revive", &[node.0 as u64, life.incarnation.0]);
        life.incarnation
    }

    /// Stops a node until then, as a debugger does, or whoever moves a virtual machine: what happens meanwhile waits for it.
    pub fn pause(&mut self, node: NodeId, until: Instant) {
        self.trace.note("pause", &[node.0 as u64, until.nanoseconds()]);
        let life = &mut self.nodes[node.0];
        life.paused_until = life.paused_until.max(Some(until));
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
        while let Some(next) = self.take_next(limit) {
            self.clock().advance_to(next.at);
            let Address { node, incarnation } = next.to;
            if !self.is_alive(node) || self.address(node) != next.to {
                self.dropped += 1;
                self.trace.note("event of an earlier life", &[node.0 as u64, incarnation.0]);
            } else if self.nodes[node.0].paused_until.is_some() {
                self.kept.push(next);
            } else {
                return Some((node, next.event));
            }
        }
        if limit.nanoseconds() != u64::MAX {
            self.clock().advance_to(limit);
        }
        None
    }

    /// The first of what is due by `limit`, for whomever.
    fn take_next(&mut self, limit: Instant) -> Option<Scheduled<Event>> {
        let goes_on = self.nodes.iter().filter_map(|node| node.paused_until).min();
        let scheduled = self.queue.peek().map(|next| next.at);
        if let Some(at) = goes_on.filter(|at| *at <= limit && scheduled.is_none_or(|next| *at <= next)) {
            self.go_on(at);
        }
        if self.released.is_empty() && scheduled.is_none_or(|next| next > limit) {
            return None;
        }
        self.released.pop_front().or_else(|| self.queue.pop())
    }

    /// Releases what was kept for the nodes that go on now.
    fn go_on(&mut self, at: Instant) {
        self.clock().advance_to(at);
        for node in self.nodes.iter_mut().filter(|node| node.paused_until.is_some_and(|until| until <= at)) {
            node.paused_until = None;
        }
        let nodes = &self.nodes;
        let is_free = |kept: &mut Scheduled<Event>| nodes[kept.to.node.0].paused_until.is_none();
        self.released.extend(self.kept.extract_if(.., is_free));
    }

    /// When the next event is due, to whichever life.
    pub fn next_due(&self) -> Option<Instant> {
        let goes_on = self.nodes.iter().filter_map(|node| node.paused_until).min();
        if self.released.is_empty() {
            [self.queue.peek().map(|next| next.at), goes_on].into_iter().flatten().min()
        } else {
            Some(self.now())
        }
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
    fn what_is_for_a_paused_node_waits_in_its_order() {
        let mut world = World::new(Trace::new(SimClock::new()));
        let [paused, other] = [(); 2].map(|()| world.add_node());
        for (node, time, name) in [(paused, 20, "as it goes on"), (paused, 3, "first"), (paused, 5, "second")]
        {
            world.schedule(node, at(time), name);
        }
        world.schedule(other, at(9), "meanwhile");
        world.schedule(other, at(21), "after");
        world.pause(paused, at(20));
        world.pause(paused, at(10));
        assert_eq!((world.next_event(), world.now()), (Some((other, "meanwhile")), at(9)));
        assert_eq!(world.next_due(), Some(at(20)));
        assert_eq!((world.next_event(), world.now()), (Some((paused, "first")), at(20)));
        assert_eq!(world.next_event(), Some((paused, "second")));
        assert_eq!(world.next_event(), Some((paused, "as it goes on")));
        assert_eq!((world.next_event(), world.now()), (Some((other, "after")), at(21)));
        world.schedule(paused, at(30), "to the dead");
        world.pause(paused, at(40));
        assert_eq!((world.next_event_until(at(35)), world.now()), (None, at(35)));
        world.revive(paused);
        world.schedule(paused, at(36), "alive");
        assert_eq!((world.next_event(), world.now()), (Some((paused, "alive")), at(36)));
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
