//! The card's main loop: poll while there is work, then get every ring ready, then sleep in the kernel.
//!
//! ```text
//!        ┌──────────────── something moved ────────────────┐
//!        ▼                                                 │
//!      Poll ── nothing for `spin` ──▶ arm rings ──▶ Poll once more ── nothing ──▶ Sleep
//!        ▲                                                                          │
//!        └──────────────── doorbell, frame, timer, waker ───────────────────────────┘
//! ```
//!
//! Who has sockets of its own on the card serves them behind a turn, and [`CardLoop::follow`] takes what that has left for the
//! service and the hosts further: requests and answers of rings do not wait for the next turn, and nothing of it is slept
//! over.

use std::time::Duration;

use ob_core::{Clock, Instant};
use ob_io::{Decision, Event, IdlePolicy, MonotonicClock, Reactor, Wait, available_cores};
use ob_ring::{Armed, CardService, GroupKey};

use crate::card_link::CardLink;
use crate::plant::{Bug, is_planted};

/// What a turn of the loop did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Requests, responses or hosts moved.
    Worked,
    /// Nothing moved; the loop polls on.
    Idle,
    /// The loop slept in the kernel, and woke.
    Slept,
}

/// A reactor that drives a link and the service behind it.
pub struct CardLoop<S> {
    /// The reactor, for the service's own devices and sockets.
    pub reactor: Reactor,
    /// The hosts.
    pub link: CardLink,
    /// What they ask of the card.
    pub service: S,
    policy: IdlePolicy,
    events: Vec<Event>,
    waiting: Vec<GroupKey>,
    armed: bool,
}

impl<S: CardService> CardLoop<S> {
    /// A loop that polls for `spin` after the last event before it sleeps.
    pub fn new(reactor: Reactor, link: CardLink, service: S, spin: Duration) -> Self {
        let policy = IdlePolicy::new(spin, available_cores(), link.pollers());
        let (events, waiting) = (Vec::with_capacity(256), Vec::new());
        Self { reactor, link, service, policy, events, waiting, armed: false }
    }

    /// Something happened that is not the link's or the service's: the loop polls on for a while.
    pub fn worked(&mut self, now: Instant) {
        self.policy.on_event(now);
        self.armed = false;
    }

    /// Moves on what has come to the service from within the card since [`CardLoop::turn`], and sends what hosts are to have of it.
    pub fn follow(&mut self, now: Instant) {
        let mut moved = self.service.next_due().is_some_and(|due| due <= now) && self.service.poll(now);
        if !is_planted(Bug::PartNotFollowed) {
            self.service.waiting(&mut self.waiting);
        }
        for key in self.waiting.drain(..) {
            moved |= self.link.deliver(now, key, &mut self.service);
        }
        if moved {
            // Whoever asked has an answer perhaps, and the rings are not as they were when they were got ready.
            self.policy.on_event(now);
            self.armed = false;
        }
    }

    /// One turn. Sleeps until something happens, but not beyond `until`. Events that are not the link's are appended
    /// to `others`.
    pub fn turn(&mut self, until: Option<Instant>, others: &mut Vec<Event>) -> Turn {
        let now = MonotonicClock.now();
        let due = [self.link.next_due(), self.service.next_due(), until, self.reactor.handle().next_timer()];
        let due = due.into_iter().flatten().min();
        let (wait, slept) = match self.policy.decide(now, due) {
            Decision::Sleep { until } if self.armed => (Wait::Until(until), true),
            _ => (Wait::Poll, false),
        };
        self.events.clear();
        self.reactor.turn(wait, &mut self.events);
        // Also of a turn that did not sleep, because something was due: a transfer that was to wake the card ends in it, and the rings
        // that waited for it are not ready.
        self.armed = false;
        let now = if slept { MonotonicClock.now() } else { now };
        for event in self.events.drain(..) {
            if !self.link.handle(&event) {
                others.push(event);
            }
        }
        let served = self.service.poll(now);
        if self.link.poll(now, &mut self.service) || served || !others.is_empty() {
            self.policy.on_event(now);
            self.policy.set_pollers(self.link.pollers());
            self.armed = false;
            return Turn::Worked;
        }
        if matches!(self.policy.decide(now, due), Decision::Sleep { .. }) {
            self.armed = self.link.arm(now, &mut self.service) == Armed::Yes;
        }
        if slept { Turn::Slept } else { Turn::Idle }
    }
}
