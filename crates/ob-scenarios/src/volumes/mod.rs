//! `outboard sim volumes`: clients share a disk that one to three tiers keep on chunk servers, while servers, connections and the metadata store fail.
//!
//! ```text
//!   Session ── SimNet ──▶ TargetDriver ▸ VolumeFront ▸ SplitCard ══ rings over SimDma ══ Port ▸ TierCore ── SimMetadata
//!   (client 1, 2, 3)                                       │
//!      │                                                SimNet
//!      │                                                   ▼
//!      │                                 ChunkServer ▸ CardFiles ▸ SimDisk   (3 to 5)
//!      └── every request and outcome ──▶ a history of a register a block
//! ```
//!
//! All between client and disk is what ships. What clients saw must be explained by blocks that do one thing at a time, the reads of the
//! end included, when everything is mended; then replicas are compared, past the software (`end`).
//!
//! A seed says who takes part and what goes wrong how often (`plan`), `fate` has it happen.

mod audit;
mod boot;
mod card;
mod client;
mod embedded;
mod end;
mod fate;
mod host;
mod judge;
mod link;
mod operator;
mod plan;
mod points;
mod rot;
mod server;
mod sockets;
mod store;
mod tier;
mod watch;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use ob_core::{Clock, Instant, PoolId, VolumeId};
use ob_format::volume::metadata::{Text, Volume, VolumeState};
use ob_nvme::initiator::Error;
use ob_sim::{Failure, Network, NodeId, Progress, Report, Rng, Scenario, Trace};
use ob_volume::card::SEGMENT_BLOCKS;
use ob_volume::metadata::Keys;
use ob_volume::tier::TierConfig;
use ob_wire_nvme::NamespaceId;

use client::{Client, Op};
use fate::Wounds;
use host::Seen;
use judge::History;
use operator::Operator;
use plan::Plan;
use points::Points;
use rot::Rot;
use server::Server;
use store::{SimMetadata, StoreEnd};
use tier::Tier;

/// In a block's number: it is of the second disk.
const SECOND: u64 = 1 << 40;
const SECOND_NAME: &str = "disk1";
const PORT: u16 = 4421;
const CHUNK_PORT: u16 = 4440;
const NQN: &str = "nqn.2026-11.io.outboard:sim-volumes";
const POOL: PoolId = PoolId(*b"a pool in a tale");
const VOLUME: VolumeId = VolumeId(1);
/// Bytes of the shortest chunks that there can be: of a record and their header.
const CHUNK_LEN: u32 = 128 << 10;
/// What stands before the servers among nodes: the first tier's card, by its two ways to the network.
const FIRST_SERVER: usize = 2;
/// How long nobody may be answered while somebody waits.
const STILL_MAX: Duration = Duration::from_secs(180);
/// How far time goes on at once at most: there is more to be asked, until there is not.
const STRIDE: Duration = Duration::from_millis(5);

fn server_node(place: usize) -> NodeId {
    NodeId(FIRST_SERVER + place)
}

/// A tier's card, as clients know it. The others stand behind all else.
fn target_node(plan: &Plan, tier: usize) -> NodeId {
    let others = FIRST_SERVER + plan.servers + plan.clients;
    NodeId(if tier == 0 { 0 } else { others + 2 * (tier - 1) })
}

/// The same, as servers know it.
fn channels_node(plan: &Plan, tier: usize) -> NodeId {
    NodeId(target_node(plan, tier).0 + 1)
}

/// All nodes.
const fn nodes(plan: &Plan) -> usize {
    FIRST_SERVER + plan.servers + plan.clients + 2 * (plan.tiers - 1)
}

fn client_node(plan: &Plan, number: usize) -> NodeId {
    NodeId(FIRST_SERVER + plan.servers + number)
}

/// A disk of tiers and their chunk servers.
#[derive(Clone, Debug, Default)]
pub struct VolumesScenario;

impl Scenario for VolumesScenario {
    fn name(&self) -> &'static str {
        "volumes"
    }

    fn run(&mut self, seed: u64, steps: u64, trace: &mut Trace) -> Result<Report, Failure> {
        Run::new(seed, trace.clone())?.play(steps)
    }

    /// One history in a hundred may be too long to be judged.
    fn judge(&self, totals: &Report) -> Result<(), Failure> {
        let (judged, unjudged) = (totals.get("histories judged"), totals.get("histories too long"));
        if unjudged * 100 > judged + unjudged {
            let text = format!("{unjudged} histories of {} were too long to be judged", judged + unjudged);
            return Err(Failure::new(text));
        }
        Ok(())
    }
}

struct Run {
    plan: Plan,
    rng: Rng,
    trace: Trace,
    network: Network,
    store: Rc<RefCell<SimMetadata>>,
    servers: Vec<Server>,
    tiers: Vec<Tier>,
    clients: Vec<Client>,
    history: History,
    wounds: Wounds,
    rot: Rot,
    seen: Seen,
    operator: Option<Operator>,
    issued: u64,
    /// Of clients and hosts.
    lives: u64,
    progress: Progress,
    stride: Duration,
    report: Report,
}

impl Run {
    fn new(seed: u64, trace: Trace) -> Result<Self, Failure> {
        let rng = Rng::new(seed);
        let mut plan = Plan::draw(&mut rng.fork("plan"));
        plan.draw_tiers(&mut rng.fork("tiers"));
        if std::env::var_os("DEBUG_PLAN").is_some() {
            let seen_armed = Points::draw(&mut rng.fork("points"), plan.tiers > 1).armed_for_debug();
            eprintln!(
                "PLAN {seed} {:?}",
                (
                    plan.tiers,
                    plan.clients,
                    plan.servers,
                    plan.replicas,
                    plan.replicas_min,
                    plan.is_embedded,
                    plan.has_operator,
                    plan.placement,
                    (
                        plan.is_copied,
                        plan.pace,
                        plan.has_trims,
                        plan.block_len,
                        &plan.leases,
                        plan.lost_after,
                        &seen_armed
                    )
                )
            );
        }
        let network = Network::new(plan.net.clone(), rng.fork("net"), trace.clone());
        let store = SimMetadata::new(plan.store.clone(), rng.fork("store"), trace.clone(), plan.is_embedded)?;
        let seen = Seen::default();
        *seen.points.borrow_mut() = Points::draw(&mut rng.fork("points"), plan.tiers > 1);
        let (mut servers, places) = (Vec::new(), sockets::Places::default());
        for place in 0..plan.servers {
            let mut server = Server::new(place, &plan, &rng, &trace, Rc::clone(&places))?;
            server.begin(&plan, &network, trace.clock())?;
            servers.push(server);
        }
        let store = Rc::new(RefCell::new(store));
        let tier = |number: usize| {
            let rng = if number == 0 { rng.fork("tier") } else { rng.fork_numbered("tier", number as u64) };
            let end = StoreEnd { store: Rc::clone(&store), caller: number };
            Tier::new(number, &plan, end, rng, (trace.clone(), seen.clone()))
        };
        let tiers = (0..plan.tiers).map(tier).collect();
        let progress = Progress::new(trace.clock().clone(), STILL_MAX);
        let mut run = Self {
            rng: rng.fork("run"),
            wounds: Wounds::new(&plan),
            rot: Rot::default(),
            seen,
            operator: plan.has_operator.then(|| Operator::new(&plan, rng.fork("operator"))),
            store,
            network,
            servers,
            tiers,
            clients: Vec::new(),
            history: History::default(),
            issued: 0,
            lives: 0,
            progress,
            stride: STRIDE,
            report: Report::default(),
            plan,
            trace,
        };
        run.revive()?;
        for number in 0..run.plan.clients {
            let rng = run.life_rng("client");
            let tier = number % run.plan.tiers;
            let client = Client::new((number, tier), &run.plan, &run.network, rng, run.now())?;
            run.clients.push(client);
        }
        Ok(run)
    }

    fn now(&self) -> Instant {
        self.trace.clock().now()
    }

    fn life_rng(&mut self, of: &str) -> Rng {
        self.lives += 1;
        self.rng.fork_numbered(of, self.lives)
    }

    fn play(mut self, steps: u64) -> Result<Report, Failure> {
        while self.issued < steps {
            self.issue();
            self.disturb()?;
            self.turn()?;
        }
        self.finish()?;
        self.count();
        Ok(self.report)
    }

    /// Lets everybody do what can be done, and time go on to when something is due. Fails if nobody gets on.
    fn turn(&mut self) -> Result<(), Failure> {
        if self.clients.iter().all(|client| client.ops.is_empty()) {
            self.progress.made();
        }
        let Self { progress, clients, servers, tiers, .. } = self;
        progress.check(|| describe(clients, servers, tiers))?;
        self.revive()?;
        self.network.advance();
        let now = self.now();
        self.tiers.iter_mut().for_each(|tier| tier.advance(now));
        self.turn_servers(now)?;
        (0..self.tiers.len()).try_for_each(|tier| self.turn_tier(tier, now))?;
        self.turn_clients(now)?;
        self.turn_operator(now)?;
        let at = self.next_due().unwrap_or(now + Duration::from_millis(1)).max(now);
        // A little beyond, so that time goes on whatever is due now; and never far, since there is more to be asked.
        self.trace.clock().advance_to(at.min(now + self.stride) + Duration::from_nanos(1));
        Ok(())
    }

    fn turn_servers(&mut self, now: Instant) -> Result<(), Failure> {
        let mut struck = Vec::new();
        for (place, server) in self.servers.iter_mut().enumerate() {
            let node = server_node(place);
            let is_due = self.network.has_events(node) || server.is_due(now);
            if is_due && !self.wounds.is_paused(node, now) {
                struck
                    .extend(server.turn(now, &mut self.seen.points.borrow_mut())?.map(|deed| (place, deed)));
            }
        }
        struck.into_iter().for_each(|(place, deed)| self.strike_server(place, deed));
        Ok(())
    }

    fn turn_tier(&mut self, number: usize, now: Instant) -> Result<(), Failure> {
        let has_events = self.has_events(number);
        if !self.wounds.is_paused(target_node(&self.plan, number), now) {
            self.tiers[number].turn_card(now, has_events)?;
        }
        if !self.wounds.is_host_paused(number, now) {
            if let Some(deed) = self.tiers[number].turn_host(now)? {
                self.strike_tier(number, deed)?;
            }
            if self.store.borrow_mut().take_power_lost() {
                self.lose_store_power(number);
            }
        }
        Ok(())
    }

    /// Whether the network has something for a tier's card.
    fn has_events(&self, tier: usize) -> bool {
        let nodes = [target_node(&self.plan, tier), channels_node(&self.plan, tier)];
        nodes.into_iter().any(|node| self.network.has_events(node))
    }

    /// One of the tiers.
    fn any_tier(&mut self) -> usize {
        if self.tiers.len() > 1 { self.rng.index(self.tiers.len()) } else { 0 }
    }

    /// The operator hears what he is told, and asks for something else now and then.
    fn turn_operator(&mut self, now: Instant) -> Result<(), Failure> {
        let Self { operator: Some(operator), tiers, history, plan, .. } = self else { return Ok(()) };
        for tier in tiers.iter_mut().filter_map(Tier::host_mut) {
            for (ticket, answer) in tier.take_told() {
                operator.hear(now, ticket, &answer, history)?;
            }
        }
        operator.look_after(|tier| tiers.get(tier).and_then(Tier::life), history);
        let tier = operator.whom(plan.tiers, plan.operator_one_in);
        let Some((tier, number)) = tier.and_then(|number| Some((tiers.get_mut(number)?, number))) else {
            return Ok(());
        };
        let Some(life) = tier.life() else { return Ok(()) };
        let (ticket, request) = operator.ask(now, number, life)?;
        let asked = tier.host_mut().map(|host| host.administer(now, ticket, request));
        asked.unwrap_or(Ok(())).map_err(|over| Failure::new(format!("an operator is not heard: {}", over.0)))
    }

    fn turn_clients(&mut self, now: Instant) -> Result<(), Failure> {
        for number in 0..self.clients.len() {
            let node = client_node(&self.plan, number);
            let client = &mut self.clients[number];
            let is_due = self.network.has_events(node) || client.next_due().is_some_and(|due| due <= now);
            if !is_due || self.wounds.is_paused(node, now) {
                continue;
            }
            if client.turn(now, &self.plan, &mut self.history)? > 0 {
                self.progress.made();
            }
            if let Some(error) = client.over() {
                let may_pass = match error {
                    Error::Unreachable(_) | Error::NotConnected(_) => true,
                    Error::Refused { status, .. } => !status.do_not_retry(),
                    _ => false,
                };
                if !may_pass {
                    return Err(Failure::new(format!("client {number} gave up: {error}")));
                }
                self.report.count("clients turned away", 1);
                self.renew_client(number)?;
            }
        }
        Ok(())
    }

    /// A client's next life. It takes a while to begin.
    fn renew_client(&mut self, number: usize) -> Result<(), Failure> {
        let tier = self.any_tier();
        self.move_client(number, tier)
    }

    /// The same, at this tier.
    fn move_client(&mut self, number: usize, tier: usize) -> Result<(), Failure> {
        let now = self.now();
        let rng = self.life_rng("client");
        let has_moved = self.clients[number].tier != tier;
        self.report.count("clients moved", u64::from(has_moved));
        self.clients[number].begin_anew(tier, &self.plan, &self.network, rng, now, &mut self.history)?;
        let begin = self.rng.skewed(Duration::from_millis(1)..Duration::from_millis(100));
        self.wounds.pause(client_node(&self.plan, number), now + begin);
        Ok(())
    }

    fn next_due(&mut self) -> Option<Instant> {
        let now = self.now();
        let mut due = [self.network.next_due(), self.wounds.next_due(now)].into_iter().flatten().min();
        let mut add = |other: Option<Instant>| due = due.into_iter().chain(other).min();
        for (place, server) in self.servers.iter_mut().enumerate() {
            let node = server_node(place);
            add(server.back_at());
            if self.wounds.is_paused(node, now) {
                continue;
            }
            add(server.next_due());
            add((server.has_more() || self.network.has_events(node)).then_some(now));
        }
        for (number, tier) in self.tiers.iter().enumerate() {
            let nodes = [target_node(&self.plan, number), channels_node(&self.plan, number)];
            if !self.wounds.is_paused(nodes[0], now) {
                let has_events = nodes.into_iter().any(|node| self.network.has_events(node));
                add(tier.card_due(now, has_events));
            }
            if !self.wounds.is_host_paused(number, now) {
                add(tier.host_due(now));
            }
        }
        for (number, client) in self.clients.iter().enumerate() {
            let node = client_node(&self.plan, number);
            if !self.wounds.is_paused(node, now) {
                add(client.next_due());
                add(self.network.has_events(node).then_some(now));
            }
        }
        due
    }

    /// Some client asks for something.
    fn issue(&mut self) {
        let number = self.rng.index(self.clients.len());
        if self.clients[number].ops.len() >= self.plan.window || !self.rng.one_in(self.plan.pace) {
            return;
        }
        let sort = self.plan.sort(&mut self.rng);
        let at = self.rng.below(self.plan.blocks);
        let most = self.plan.request_blocks.min(self.plan.blocks - at);
        let blocks = 1 + self.rng.below(most);
        let disk = if self.operator.is_some() && self.rng.one_in(3) { SECOND } else { 0 };
        self.ask(number, sort, disk | at, blocks);
    }

    /// Asks for blocks, counted from the first of a disk that clients use.
    fn ask(&mut self, number: usize, sort: plan::Sort, at: u64, blocks: u64) {
        self.issued += 1;
        let (now, id) = (self.now(), self.issued);
        let op = Op::new(sort, id, self.plan.first_block() + at, blocks, now);
        self.trace.note("asks", &op.words(id, number));
        self.clients[number].ask(now, id, op, &self.plan);
    }

    fn count(&mut self) {
        let net = self.network.stats();
        let mut counts = vec![
            ("requests", self.issued),
            ("connections refused", net.refused),
            ("connections reset", net.resets),
            ("connections timed out", net.timeouts),
            ("operations in histories", self.history.len() as u64),
        ];
        {
            let store = self.store.borrow();
            counts.extend([("store operations unknown", store.unknowns), ("done late", store.late)]);
        }
        for client in &self.clients {
            let of = client.outcomes;
            counts.extend([("answered", of.answered), ("refused", of.refused), ("lost", of.lost)]);
            counts.push(("without space", of.full));
        }
        counts.into_iter().for_each(|(what, times)| self.report.count(what, times));
        for tier in &self.tiers {
            tier.count(&mut self.report);
        }
        self.seen.points.borrow().count(&mut self.report);
        if let Some(operator) = &self.operator {
            self.report.merge(operator.report());
        }
    }
}

fn tier_config(plan: &Plan, number: usize) -> Result<TierConfig, Failure> {
    let no_text = || Failure::new("a name is no text");
    let disk = |number: u32, name: &str| -> Result<Volume, Failure> {
        Ok(Volume {
            state: VolumeState::Serving,
            class: plan.class,
            replicas: plan.replicas,
            replicas_min: plan.replicas_min,
            uuid: [4 + number as u8; 16],
            size: plan.disk_blocks() * u64::from(plan.block_len.bytes()),
            cut_from: None,
            segment_len: SEGMENT_BLOCKS * u64::from(plan.block_len.bytes()),
            chunk_len: CHUNK_LEN,
            block_len: plan.block_len,
            namespace: NamespaceId(number),
            generation: 1,
            name: Text::new(name).ok_or_else(no_text)?,
        })
    };
    let mut volumes = vec![(VOLUME, disk(1, "disk0")?)];
    if plan.has_operator {
        volumes.push((VolumeId(2), disk(2, SECOND_NAME)?));
    }
    let keys = keys()?;
    let servers = (0..plan.servers).map(|place| Network::address(server_node(place), CHUNK_PORT)).collect();
    let addresses = Text::new("10.0.0.0:4421").ok_or_else(no_text)?;
    Ok(TierConfig {
        lease: plan.leases.get(number).copied().unwrap_or(Duration::from_secs(2)),
        drift_ppm: plan.drift_ppm,
        hold: plan.hold,
        lost_after: plan.lost_after,
        rebuild_rate: 4 << 20,
        commands_max: plan.commands,
        slots_max: plan.slots,
        placement: plan.placement,
        card_area: link::AREA,
        host_area: link::AREA,
        // All of it is due soon.
        checkpoint_blocks: 64,
        checkpoint_dead: 256 << 10,
        checkpoint_chunks: 8,
        ..TierConfig::new(POOL, keys, addresses, servers, volumes)
    })
}

fn keys() -> Result<Keys, Failure> {
    Keys::new("sim").map_err(|_| Failure::new("a pool whose name is none"))
}

/// Who waits for what.
fn describe(clients: &[Client], servers: &[Server], tiers: &[Tier]) -> String {
    let clients: Vec<String> = clients.iter().map(Client::describe).collect();
    let servers: Vec<String> = servers.iter().map(Server::describe).collect();
    let tiers: Vec<String> = tiers.iter().map(Tier::describe).collect();
    format!("{}\n  {}\n  {}", clients.join("\n  "), servers.join("\n  "), tiers.join("\n  "))
}
