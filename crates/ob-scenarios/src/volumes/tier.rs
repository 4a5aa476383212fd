//! A tier, over all lives of its halves: a card, and a host behind it as long as both live and the link is whole.
//!
//! ```text
//!   host dies, or the link is cut:  the card keeps what its clients have asked for; the next host knows what the store says, and takes its
//!                                   segments from there
//!   card dies:                      what clients have asked for is gone with their connections; the host begins anew, too
//! ```

use std::time::Duration;

use ob_core::{Incarnation, Instant};
use ob_sim::{Death, Failure, Network, NodeId, Report, Rng, Trace};

use super::boot::DriftClock;
use super::card::Card;
use super::host::{Host, Seen};
use super::plan::Plan;
use super::points::Deed;
use super::store::StoreEnd;
use super::{channels_node, target_node, tier_config};

/// How long a host may take to give back what it has: a lease, by its own clock, and a while for the store.
const LEAVES_WITHIN: Duration = Duration::from_secs(4);

pub(super) struct Tier {
    /// None while it is dead.
    card: Option<Card>,
    host: Option<Host>,
    card_back_at: Instant,
    host_back_at: Instant,
    card_lives: u64,
    host_lives: u64,
    number: usize,
    /// The card, by its two ways to the network.
    nodes: [NodeId; 2],
    clock: DriftClock,
    store: StoreEnd,
    rng: Rng,
    trace: Trace,
    seen: Seen,
    /// Until when a host gives back what it has, and how long it is away then.
    leaving: Option<(Instant, Duration)>,
    /// What hosts did that are dead.
    past: Report,
}

impl Tier {
    /// One whose halves are about to begin.
    pub(super) fn new(
        number: usize,
        plan: &Plan,
        store: StoreEnd,
        rng: Rng,
        (trace, seen): (Trace, Seen),
    ) -> Self {
        let gains = plan.clocks.get(number).copied().unwrap_or_default();
        Self {
            number,
            nodes: [target_node(plan, number), channels_node(plan, number)],
            clock: DriftClock::new(gains, number as u64 * 1_000_000_007),
            card: None,
            host: None,
            card_back_at: Instant::default(),
            host_back_at: Instant::default(),
            card_lives: 0,
            host_lives: 0,
            store,
            rng,
            trace,
            seen,
            leaving: None,
            past: Report::default(),
        }
    }

    pub(super) fn host(&self) -> Option<&Host> {
        self.host.as_ref()
    }

    pub(super) fn host_mut(&mut self) -> Option<&mut Host> {
        self.host.as_mut()
    }

    /// Which life of the host this is, while it lives.
    pub(super) fn life(&self) -> Option<u64> {
        self.host.as_ref().map(|_| self.host_lives)
    }

    pub(super) fn card(&self) -> Option<&Card> {
        self.card.as_ref()
    }

    /// Halves that are dead begin anew when it is time.
    pub(super) fn revive(&mut self, now: Instant, plan: &Plan, network: &Network) -> Result<(), Failure> {
        if self.card.is_none() && self.card_back_at <= now {
            self.card_lives += 1;
            self.trace.note("card begins", &[self.card_lives]);
            let life = Incarnation(self.card_lives);
            self.card = Some(Card::new(plan, (self.number, self.clock), network, life)?);
        }
        if let (Some(card), None, true) = (&mut self.card, &self.host, self.host_back_at <= now) {
            self.host_lives += 1;
            self.trace.note("host begins", &[self.host_lives]);
            let life = Incarnation(self.host_lives);
            let rng = self.rng.fork_numbered("host", self.host_lives);
            let end = card.attach(life, (plan.ring_len, plan.area_lens()), &rng, &self.trace)?;
            let ends = (self.store.clone(), self.clock);
            let config = tier_config(plan, self.number)?;
            self.host = Some(Host::new(config, end, life, ends, (&self.trace, self.seen.clone()))?);
        }
        Ok(())
    }

    /// The host is gone, or the link between the halves; `false` if it is so already.
    pub(super) fn lose_host(&mut self, back_at: Instant) -> bool {
        let Some(host) = self.host.take() else { return false };
        self.trace.note("host is gone", &[self.host_lives]);
        self.leaving = None;
        host.count(&mut self.past);
        host.die();
        if let Some(card) = &mut self.card {
            card.detach();
        }
        self.host_back_at = back_at;
        true
    }

    /// The host is asked to end, which takes it a while; `false` if there is none, or it was asked before.
    pub(super) fn send_host_away(&mut self, now: Instant, away: Duration) -> Result<bool, Failure> {
        let (Some(host), None) = (&mut self.host, self.leaving) else { return Ok(false) };
        self.trace.note("host leaves", &[self.host_lives]);
        host.leave(now).map_err(|over| Failure::new(format!("the host cannot leave: {}", over.0)))?;
        self.leaving = Some((now + LEAVES_WITHIN, away));
        Ok(true)
    }

    /// The card dies, and with it the port of the host; `false` if it is dead already.
    pub(super) fn lose_card(&mut self, how: Death, network: &Network, back_at: Instant) -> bool {
        if self.card.is_none() {
            return false;
        }
        self.lose_host(back_at);
        self.trace.note("card dies", &[self.card_lives, how as u64]);
        self.card = None;
        self.nodes.into_iter().for_each(|node| network.kill(node, how));
        self.card_back_at = back_at;
        true
    }

    /// Does to host memory what is due.
    pub(super) fn advance(&mut self, now: Instant) {
        if let Some(card) = &mut self.card {
            card.advance(now);
        }
    }

    pub(super) fn turn_card(&mut self, now: Instant, has_events: bool) -> Result<(), Failure> {
        match &mut self.card {
            Some(card) if has_events || card.is_due(now) => card.turn(now),
            _ => Ok(()),
        }
    }

    /// One turn of the host; what has happened to it where it came by.
    pub(super) fn turn_host(&mut self, now: Instant) -> Result<Option<Deed>, Failure> {
        let is_over = self.leaving.is_some_and(|(until, _)| until <= now);
        let Some(host) = self.host.as_mut().filter(|host| is_over || host.is_due(now)) else {
            return Ok(None);
        };
        host.turn(now).map_err(|over| Failure::new(format!("the host's port is over: {}", over.0)))?;
        let (has_left, struck) = (host.has_left(), host.take_struck());
        // It may have rung.
        self.advance(now);
        if let Some((until, away)) = self.leaving
            && (has_left || until <= now)
        {
            self.past.count("hosts that have left", u64::from(has_left));
            self.lose_host(now + away);
        }
        Ok(struck)
    }

    pub(super) fn card_due(&self, now: Instant, has_events: bool) -> Option<Instant> {
        match &self.card {
            None => Some(self.card_back_at),
            Some(card) if has_events || card.has_more() => Some(now),
            Some(card) => card.next_due(),
        }
    }

    pub(super) fn host_due(&self, now: Instant) -> Option<Instant> {
        match &self.host {
            None => self.card.as_ref().map(|_| self.host_back_at),
            Some(host) if host.is_due(now) => Some(now),
            Some(host) => host.next_due().into_iter().chain(self.leaving.map(|(until, _)| until)).min(),
        }
    }

    /// Who is dead is to be back by then.
    pub(super) fn hurry(&mut self, at: Instant) {
        (self.card_back_at, self.host_back_at) = (self.card_back_at.min(at), self.host_back_at.min(at));
        if let Some((_, away)) = &mut self.leaving {
            *away = Duration::ZERO;
        }
    }

    /// What all hosts did.
    pub(super) fn count(&self, report: &mut Report) {
        report.merge(&self.past);
        if let Some(host) = &self.host {
            host.count(report);
        }
        report.count("lives of the card", self.card_lives);
        report.count("lives of the host", self.host_lives);
    }

    pub(super) fn describe(&self) -> String {
        let card = self.card.as_ref().map_or_else(|| "the card is dead".to_owned(), Card::describe);
        let host = self
            .host
            .as_ref()
            .map_or_else(|| "the host is dead".to_owned(), |host| format!("{:#?}", host.status()));
        format!("{card}\n  tier {}: {host}", self.number)
    }
}
