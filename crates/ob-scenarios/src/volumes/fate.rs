//! What happens to servers, connections, disks, the store and clients while requests are under way.

use std::time::Duration;

use ob_core::Instant;
use ob_sim::{Death, Failure, NodeId, PerMillion};

use super::plan::{Fault, Plan};
use super::points::Deed;
use super::{Run, channels_node, client_node, nodes, server_node, target_node};

/// Nothing more goes wrong when nobody has got on for so long, or it would not be the services' fault.
const FAULTS_UNTIL: Duration = Duration::from_secs(40);

/// What is wrong now, and until when.
pub(super) struct Wounds {
    /// Until when each node does nothing, by its number.
    paused_until: Vec<Instant>,
    /// Until when each host does.
    hosts_paused_until: Vec<Instant>,
    /// When cuts are healed, and disks that are slow are not.
    heal_at: Option<Instant>,
    slow_until: Option<(usize, Instant)>,
}

impl Wounds {
    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            paused_until: vec![Instant::default(); nodes(plan)],
            hosts_paused_until: vec![Instant::default(); plan.tiers],
            heal_at: None,
            slow_until: None,
        }
    }

    pub(super) fn pause(&mut self, node: NodeId, until: Instant) {
        if let Some(paused) = self.paused_until.get_mut(node.0) {
            *paused = until;
        }
    }

    pub(super) fn is_paused(&self, node: NodeId, now: Instant) -> bool {
        self.paused_until.get(node.0).is_some_and(|until| now < *until)
    }

    pub(super) fn is_host_paused(&self, tier: usize, now: Instant) -> bool {
        self.hosts_paused_until.get(tier).is_some_and(|until| now < *until)
    }

    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        let paused = self.paused_until.iter().chain(&self.hosts_paused_until);
        let paused = paused.copied().filter(|until| *until > now).min();
        [paused, self.heal_at, self.slow_until.map(|(_, until)| until)].into_iter().flatten().min()
    }
}

impl Run {
    /// Now and then something goes wrong, and what went wrong before is over.
    pub(super) fn disturb(&mut self) -> Result<(), Failure> {
        self.heal();
        self.heal_unneeded()?;
        if !self.rng.one_in(self.plan.fault_one_in) || self.progress.still() > FAULTS_UNTIL {
            return Ok(());
        }
        let server = self.rng.index(self.servers.len());
        let client = self.rng.index(self.clients.len());
        match self.plan.fault(&mut self.rng) {
            Some(Fault::ServerDies) => self.kill_server(server, Death::Process),
            Some(Fault::ServerPower) => self.kill_server(server, Death::Power),
            Some(Fault::TwoServers) => {
                self.kill_server(server, Death::Power);
                self.kill_server((server + 1) % self.servers.len(), Death::Process);
            }
            Some(Fault::Reset) => {
                self.report.count("resets", 1);
                let tier = self.any_tier();
                self.network.reset_between(channels_node(&self.plan, tier), server_node(server));
            }
            Some(Fault::Cut) => {
                let way = self.rng.below(4);
                let tier = self.any_tier();
                let lasts = self.rng.skewed(Duration::from_millis(1)..Duration::from_secs(8));
                self.cut((tier, server), way, lasts);
            }
            Some(Fault::Slow) => self.slow_down(server),
            Some(Fault::Pause) => self.pause_somebody(),
            Some(Fault::ClientDies) => self.kill_client(client)?,
            Some(Fault::ClientReset) => {
                self.report.count("client resets", 1);
                let target = target_node(&self.plan, self.clients[client].tier);
                self.network.reset_between(client_node(&self.plan, client), target);
            }
            Some(Fault::Rot) => self.spoil()?,
            Some(Fault::DiskLost) => self.lose_disk()?,
            Some(fault) => self.disturb_tier(fault)?,
            None => {}
        }
        Ok(())
    }

    /// Now and then something goes wrong with a tier, or with the store.
    fn disturb_tier(&mut self, fault: Fault) -> Result<(), Failure> {
        match fault {
            Fault::StoreSilent => {
                self.report.count("store silent", 1);
                let pause = self.rng.skewed(Duration::from_millis(10)..Duration::from_secs(4));
                let until = self.now() + pause;
                // Every other time one of several is cut off alone.
                let of = (self.tiers.len() > 1 && self.rng.one_in(2)).then(|| self.any_tier());
                self.store.borrow_mut().be_silent(until, of);
            }
            Fault::SessionEnds => {
                let has_ended = self.store.borrow_mut().end_a_session();
                self.report.count("sessions ended", u64::from(has_ended));
            }
            Fault::HostDies => {
                let back_at = self.now() + self.rng.skewed(Duration::from_micros(10)..Duration::from_secs(5));
                let tier = self.any_tier();
                let is_lost = self.tiers[tier].lose_host(back_at);
                self.report.count("hosts lost", u64::from(is_lost));
            }
            Fault::CardDies => self.kill_card(),
            Fault::Disowned => {
                let tier = self.any_tier();
                self.disown(tier)?;
            }
            Fault::Asleep => {
                let tier = self.any_tier();
                let until = self.now() + self.rng.duration(Duration::from_secs(2)..Duration::from_secs(9));
                self.pause_tier(tier, until);
            }
            Fault::StoreSlow => {
                self.report.count("store slow", 1);
                let by = self.rng.duration(Duration::from_millis(100)..Duration::from_millis(1500));
                let until = self.now() + self.rng.duration(Duration::from_secs(1)..Duration::from_secs(8));
                self.store.borrow_mut().be_slow(by, until);
            }
            Fault::StorePower => {
                let after = self.rng.below(200);
                self.store.borrow_mut().cut_power(after);
            }
            Fault::HostLeaves => {
                let away = self.rng.skewed(Duration::from_micros(10)..Duration::from_secs(5));
                let (tier, now) = (self.any_tier(), self.now());
                let is_told = self.tiers[tier].send_host_away(now, away)?;
                self.report.count("hosts sent away", u64::from(is_told));
            }
            _ => {}
        }
        Ok(())
    }

    /// What has lasted long enough is over.
    fn heal(&mut self) {
        let now = self.now();
        if self.wounds.heal_at.take_if(|at| *at <= now).is_some() {
            self.network.heal_all();
        }
        if let Some((server, _)) = self.wounds.slow_until.take_if(|(_, until)| *until <= now) {
            self.set_slow(server, 0);
        }
    }

    /// Who is dead begins anew when it is time.
    pub(super) fn revive(&mut self) -> Result<(), Failure> {
        let now = self.now();
        for server in &mut self.servers {
            if server.back_at().is_some_and(|at| at <= now) {
                server.begin(&self.plan, &self.network, self.trace.clock())?;
            }
        }
        // To mount takes time.
        let now = self.now();
        let Self { tiers, plan, network, .. } = self;
        tiers.iter_mut().try_for_each(|tier| tier.revive(now, plan, network))
    }

    fn kill_server(&mut self, server: usize, how: Death) {
        let pause = self.rng.skewed(Duration::from_millis(1)..Duration::from_secs(10));
        let back_at = self.now() + pause;
        if self.servers[server].die(how, &self.network, back_at) {
            self.trace.note("server dies", &[server as u64, how as u64, pause.as_nanos() as u64]);
            self.report
                .count(if how == Death::Power { "servers without power" } else { "servers killed" }, 1);
            self.wounds.pause(server_node(server), Instant::default());
        }
    }

    fn kill_card(&mut self) {
        let how = if self.rng.one_in(2) { Death::Process } else { Death::Power };
        let back_at = self.now() + self.rng.skewed(Duration::from_millis(1)..Duration::from_secs(5));
        let tier = self.any_tier();
        if self.tiers[tier].lose_card(how, &self.network, back_at) {
            self.report.count("cards lost", 1);
            self.wounds.pause(target_node(&self.plan, tier), Instant::default());
        }
    }

    fn kill_client(&mut self, number: usize) -> Result<(), Failure> {
        self.report.count("clients killed", 1);
        let how = if self.rng.one_in(2) { Death::Process } else { Death::Power };
        self.trace.note("client dies", &[number as u64, how as u64]);
        self.network.kill(client_node(&self.plan, number), how);
        self.renew_client(number)
    }

    /// Nothing gets through between a tier and a server for a while, or one way.
    fn cut(&mut self, (tier, server): (usize, usize), way: u64, lasts: Duration) {
        if self.wounds.heal_at.is_some() {
            return;
        }
        let (node, channels) = (server_node(server), channels_node(&self.plan, tier));
        if way != 1 {
            self.network.cut(channels, node);
        }
        if way != 2 {
            self.network.cut(node, channels);
        }
        self.report.count("cuts", 1);
        self.wounds.heal_at = Some(self.now() + lasts);
    }

    fn slow_down(&mut self, server: usize) {
        if self.wounds.slow_until.is_none() {
            self.report.count("disks slow", 1);
            self.trace.note("disk slow", &[server as u64]);
            self.set_slow(server, 100_000);
            let lasts = self.rng.skewed(Duration::from_millis(10)..Duration::from_secs(5));
            self.wounds.slow_until = Some((server, self.now() + lasts));
        }
    }

    fn set_slow(&mut self, server: usize, often: u32) {
        if let Some(disk) = self.servers[server].disk() {
            disk.change_plan(|plan| plan.slow = PerMillion(often));
        }
    }

    /// A tier's session ends, of which it hears nothing for a while. Somebody asks it for something, and somebody asks another.
    fn disown(&mut self, tier: usize) -> Result<(), Failure> {
        if self.tiers.len() < 2 || self.store.borrow().is_disowning() {
            return Ok(());
        }
        self.report.count("tiers disowned", 1);
        let silent = self.rng.duration(Duration::from_secs(1)..Duration::from_secs(8));
        if self.rng.one_in(2) {
            // It may believe in what it hears late.
            let by = self.rng.duration(Duration::from_millis(100)..Duration::from_millis(1500));
            let until = self.now() + Duration::from_secs(3);
            self.store.borrow_mut().be_slow(by, until);
        }
        self.store.borrow_mut().disown(tier, silent);
        let armed = match self.rng.below(4) {
            // Whoever takes what it had does not live to see its wait over: its next life, or a third tier, waits on.
            0 => {
                let away = self.rng.duration(Duration::from_millis(1)..Duration::from_millis(200));
                Some(("commit: taken", Deed::HostDies(away), false))
            }
            // It stands still when servers have heard of it, and chunks still take records.
            1 => {
                let pause = self.rng.duration(Duration::from_millis(200)..Duration::from_secs(3));
                Some(("call: stop", Deed::Pauses(pause), true))
            }
            // A server begins anew that has heard of it.
            2 => Some(("server: seal", Deed::Dies(Death::Power, Duration::ZERO), false)),
            _ => None,
        };
        if let Some((point, deed, is_before)) = armed {
            self.seen.points.borrow_mut().arm(point, deed, is_before);
        }
        if self.rng.one_in(2) {
            // What it has sent arrives when others have been there.
            let server = self.rng.index(self.servers.len());
            let lasts = self.rng.duration(Duration::from_secs(1)..Duration::from_secs(7));
            self.cut((tier, server), 2, lasts);
        }
        if !self.clients.iter().any(|client| client.tier == tier) {
            self.move_client(0, tier)?;
        }
        if self.clients.iter().all(|client| client.tier == tier) {
            self.move_client(1, (tier + 1) % self.tiers.len())?;
        }
        Ok(())
    }

    /// The machine of a host that has the store in its process has lost power.
    pub(super) fn lose_store_power(&mut self, tier: usize) {
        self.report.count("stores without power", 1);
        self.trace.note("store without power", &[tier as u64]);
        let away = self.rng.skewed(Duration::from_millis(1)..Duration::from_secs(5));
        let now = self.now();
        self.tiers[tier].lose_host(now + away);
    }

    /// Both halves of a tier stand still.
    fn pause_tier(&mut self, tier: usize, until: Instant) {
        self.trace.note("asleep", &[tier as u64, until.nanoseconds()]);
        self.report.count("tiers asleep", 1);
        self.wounds.pause(target_node(&self.plan, tier), until);
        if let Some(paused) = self.wounds.hosts_paused_until.get_mut(tier) {
            *paused = until;
        }
    }

    /// What happens to a tier whose host came by a point.
    pub(super) fn strike_tier(&mut self, tier: usize, deed: Deed) -> Result<(), Failure> {
        let now = self.now();
        match deed {
            Deed::HostDies(away) => {
                self.tiers[tier].lose_host(now + away);
            }
            Deed::Dies(how, away) => {
                if self.tiers[tier].lose_card(how, &self.network, now + away) {
                    self.wounds.pause(target_node(&self.plan, tier), Instant::default());
                }
            }
            Deed::Pauses(until) => {
                if let Some(paused) = self.wounds.hosts_paused_until.get_mut(tier) {
                    *paused = now + until;
                }
            }
            Deed::Disowned(_) => self.disown(tier)?,
        }
        Ok(())
    }

    /// What happens to a server that came by one.
    pub(super) fn strike_server(&mut self, server: usize, deed: Deed) {
        match deed {
            Deed::Dies(how, _) => self.kill_server(server, how),
            Deed::HostDies(_) => self.kill_server(server, Death::Process),
            Deed::Pauses(until) | Deed::Disowned(until) => {
                let until = self.now() + until;
                self.wounds.pause(server_node(server), until);
            }
        }
    }

    /// A server, the card, the host or a client does nothing for a while.
    fn pause_somebody(&mut self) {
        let node = self.rng.index(nodes(&self.plan));
        let until = self.now() + self.rng.skewed(Duration::from_millis(1)..Duration::from_secs(4));
        self.trace.note("pause", &[node as u64, until.nanoseconds()]);
        self.report.count("pauses", 1);
        // A card has two nodes, its host none.
        let host = (0..self.tiers.len()).find(|tier| channels_node(&self.plan, *tier).0 == node);
        match host.and_then(|tier| self.wounds.hosts_paused_until.get_mut(tier)) {
            Some(paused) => *paused = until,
            None => self.wounds.pause(NodeId(node), until),
        }
    }

    /// Nothing is wrong any more, and nothing goes wrong.
    pub(super) fn mend(&mut self) {
        self.network.heal_all();
        self.network.change_plan(|plan| {
            (plan.reset, plan.refuse, plan.exhausted) =
                (PerMillion::NEVER, PerMillion::NEVER, PerMillion::NEVER);
        });
        let now = self.now();
        for server in &mut self.servers {
            server.set_back_at(now);
            if let Some(disk) = server.disk() {
                disk.change_plan(|plan| (plan.slow, plan.stuck) = (PerMillion::NEVER, PerMillion::NEVER));
                disk.unstick();
            }
        }
        self.wounds = Wounds::new(&self.plan);
        self.tiers.iter_mut().for_each(|tier| tier.hurry(now));
        self.store.borrow_mut().mend();
        self.seen.points.borrow_mut().disarm();
        if std::mem::take(&mut self.plan.is_copied) {
            // The copy is given a name of its own.
            self.tiers[1].lose_card(Death::Process, &self.network, now);
        }
    }
}
