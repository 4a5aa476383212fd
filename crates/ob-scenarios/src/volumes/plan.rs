//! What a seed chooses: who takes part, how everything is sized, how network, disks and store behave, and what goes wrong how often.
//!
//! Most faults are absent from most seeds, and frequent in some: where everything happens at once, nobody gets far enough to meet what only
//! one of them shows.

use std::time::Duration;

use ob_core::BlockLen;
use ob_format::volume::metadata::Class;
use ob_nvme::target::TargetConfig;
use ob_sim::{DiskPlan, NetPlan, PerMillion, Rng};
use ob_split::card::PortConfig;
use ob_volume::card::Patience;
use ob_volume::plans::PAYLOAD_MAX;
use ob_volume::tier::{Placement, SEGMENT_BLOCKS};

use super::store::StorePlan;

/// Most tiers.
pub(super) const TIERS_MAX: usize = 3;
/// Segments of the disk.
pub(super) const SEGMENTS: u64 = 2;

/// The shortest lease that there can be.
const LEASE: Duration = Duration::from_secs(2);
/// Bytes of a disk that is soon full.
const CAPACITY_SMALL: u64 = 4 << 20;
/// Blocks of the longest request, but for seeds that are about long ones.
const REQUEST_BLOCKS_MAX: u32 = 24;

/// What holds for a whole run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) clients: usize,
    pub(super) tiers: usize,
    /// How wrong clocks may run, in millionths, and how wrong each tier's does.
    pub(super) drift_ppm: u32,
    pub(super) clocks: Vec<i64>,
    /// How long each tier's lease is.
    pub(super) leases: Vec<Duration>,
    /// Whether the second tier runs on a copy of the first one's data directory.
    pub(super) is_copied: bool,
    /// Whether the store is in the host's process, on a disk of its machine.
    pub(super) is_embedded: bool,
    /// Where payloads are made what is stored.
    pub(super) placement: Placement,
    /// Whether there is a second disk, and an operator who changes it.
    pub(super) has_operator: bool,
    /// One turn in so many he asks for something.
    pub(super) operator_one_in: u64,
    /// One turn in so many somebody asks for something: stories of leases want seconds.
    pub(super) pace: u64,
    pub(super) servers: usize,
    /// Whether there is so much room that nothing is ever full.
    pub(super) is_roomy: bool,
    /// Racks that the servers stand in.
    pub(super) domains: usize,
    pub(super) replicas: u8,
    pub(super) replicas_min: u8,
    pub(super) block_len: BlockLen,
    pub(super) class: Class,
    /// Blocks that clients use, half of them at the end of the first segment.
    pub(super) blocks: u64,
    pub(super) net: NetPlan,
    pub(super) disks: Vec<DiskPlan>,
    pub(super) files_segment_len: u64,
    pub(super) server_buffers: usize,
    pub(super) store: StorePlan,
    pub(super) target: TargetConfig,
    pub(super) port: PortConfig,
    pub(super) ring_len: u32,
    pub(super) engine_depth: u16,
    pub(super) patience: Patience,
    pub(super) hold: Duration,
    pub(super) lost_after: Duration,
    pub(super) slots: u16,
    pub(super) commands: usize,
    /// I/O queues of a client, commands of each, how many of its requests are under way, and how long each may take.
    pub(super) queues: u16,
    pub(super) depth: u16,
    pub(super) window: usize,
    pub(super) command_timeout: Duration,
    pub(super) request_blocks: u64,
    /// Whether blocks are emptied, too.
    pub(super) has_trims: bool,
    sorts: [u64; SORTS.len()],
    /// One turn in so many has a fault.
    pub(super) fault_one_in: u64,
    faults: [u64; FAULTS.len()],
}

/// Sorts of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Read,
    Write,
    Zero,
    Discard,
    Flush,
}

const SORTS: [(Sort, u64); 5] =
    [(Sort::Read, 10), (Sort::Write, 14), (Sort::Zero, 2), (Sort::Discard, 1), (Sort::Flush, 1)];

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A chunk server's process dies, and begins anew.
    ServerDies,
    /// Its machine loses power.
    ServerPower,
    /// Two of them at once.
    TwoServers,
    /// A connection is reset.
    Reset,
    /// Nothing gets through to a server for a while, or one way.
    Cut,
    /// A server's disk is very slow for a while.
    Slow,
    /// A server, or the card, does nothing for a while.
    Pause,
    /// The metadata store is not reached for a while.
    StoreSilent,
    /// It ends a session that was renewed.
    SessionEnds,
    /// A client dies, and with it what it has asked for; or its connections break.
    ClientDies,
    ClientReset,
    /// Bits of a record, or of a directory, flip.
    Rot,
    /// A server's disk is lost.
    DiskLost,
    /// The host's process dies, or its link is cut; the next one takes its segments from the store.
    HostDies,
    /// The card dies.
    CardDies,
    /// The host's process ends, and gives back what it has.
    HostLeaves,
    /// A tier's session ends just after it was renewed, and it hears nothing of the store; others are asked for what it has.
    Disowned,
    /// A tier's machine stands still, longer than a lease; its clock does not.
    Asleep,
    /// The store's answers take long for a while.
    StoreSlow,
    /// The machine that the store is on loses power, where that is the host's.
    StorePower,
}

/// What only happens where there are several tiers, or a store on a tier's machine.
const OF_SOME: [Fault; 5] =
    [Fault::HostLeaves, Fault::Disowned, Fault::Asleep, Fault::StoreSlow, Fault::StorePower];

const FAULTS: [Fault; 20] = [
    Fault::ServerDies,
    Fault::ServerPower,
    Fault::TwoServers,
    Fault::Reset,
    Fault::Cut,
    Fault::Slow,
    Fault::Pause,
    Fault::StoreSilent,
    Fault::SessionEnds,
    Fault::ClientDies,
    Fault::ClientReset,
    Fault::Rot,
    Fault::HostDies,
    Fault::CardDies,
    Fault::DiskLost,
    Fault::HostLeaves,
    Fault::Disowned,
    Fault::Asleep,
    Fault::StoreSlow,
    Fault::StorePower,
];

impl Plan {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        let servers = pick(rng, &[3, 4, 5, 4]);
        let replicas: u8 = pick(rng, &[3, 3, 3, 2]);
        let block_len = pick(rng, &[BlockLen::Large, BlockLen::Large, BlockLen::Small]);
        let blocks = pick(rng, &[8, 16, 32, 4]);
        let hold = Duration::from_millis(pick(rng, &[4000, 10_000, 1500]));
        // A sixth of the pools is soon full: ledgers take two megabytes.
        let is_roomy = !rng.one_in(6);
        let capacity = if is_roomy { 24 << 20 } else { CAPACITY_SMALL };
        let disks = (0..servers).map(|_| disk(rng, capacity)).collect();
        let slots = pick(rng, &[64, 8, 3]);
        // Where blocks are emptied, too, histories are judged by a search, which wants them to be simple.
        let has_trims = rng.one_in(3);
        Self {
            clients: pick(rng, &[2, 1, 3]),
            tiers: 1,
            drift_ppm: 10_000,
            clocks: vec![0; TIERS_MAX],
            leases: vec![LEASE; TIERS_MAX],
            is_copied: false,
            is_embedded: false,
            placement: Placement::Split,
            has_operator: false,
            operator_one_in: 1000,
            pace: 4,
            servers,
            is_roomy,
            domains: pick(rng, &[servers, servers, 2]),
            replicas,
            replicas_min: if replicas == 2 { pick(rng, &[1, 2]) } else { pick(rng, &[2, 2, 1, 3]) },
            block_len,
            class: pick(rng, &[Class::Plain, Class::Fast, Class::Standard, Class::Dense]),
            blocks,
            net: net(rng),
            disks,
            files_segment_len: 16 << 10,
            server_buffers: pick(rng, &[16, 4]),
            store: store(rng),
            target: target(rng),
            port: port(rng, slots),
            ring_len: pick(rng, &[64 << 10, 16 << 10]),
            engine_depth: pick(rng, &[8, 2]),
            patience: Patience {
                append: Duration::from_millis(pick(rng, &[1000, 200])),
                read: Duration::from_millis(pick(rng, &[200, 50])),
                call: Duration::from_millis(pick(rng, &[5000, 1000])),
            },
            hold,
            lost_after: Duration::from_millis(pick(rng, &[3000, 30_000, 500])),
            slots,
            commands: pick(rng, &[64, 16, 4]),
            queues: pick(rng, &[1, 2]),
            depth: pick(rng, &[8, 3, 32]),
            window: if has_trims { pick(rng, &[2, 1, 3]) } else { pick(rng, &[4, 1, 12]) },
            command_timeout: Duration::from_millis(pick(rng, &[30_000, 30_000, 5000, 500])),
            request_blocks: pick(rng, &[4, 1, u64::from(REQUEST_BLOCKS_MAX)]),
            has_trims,
            sorts: SORTS.map(|(sort, weight)| {
                let is_drawn = has_trims || !matches!(sort, Sort::Zero | Sort::Discard);
                u64::from(is_drawn) * weight * pick(rng, &[1, 1, 1, 3])
            }),
            fault_one_in: pick(rng, &[2000, 800, 6000]),
            faults: FAULTS.map(|fault| draw_weight(rng, fault)),
        }
    }

    /// How many tiers there are, and how well they know the time. With one there is nobody to disagree with.
    pub(super) fn draw_tiers(&mut self, rng: &mut Rng) {
        self.tiers = pick(rng, &[1, 2, 1, 3]);
        if self.tiers > 1 {
            self.clients = self.clients.max(2);
            self.drift_ppm = pick(rng, &[10_000, 200_000]);
            let most = i64::from(self.drift_ppm);
            // Mostly as wrong as they may be: what is less shows less.
            self.clocks = (0..TIERS_MAX).map(|_| pick(rng, &[most, -most, 0, -most])).collect();
            self.set_weight(Fault::HostLeaves, pick(rng, &[0, 1, 3]));
            self.set_weight(Fault::Disowned, pick(rng, &[0, 2, 6]));
            self.set_weight(Fault::Asleep, pick(rng, &[0, 0, 2]));
            self.set_weight(Fault::StoreSlow, pick(rng, &[0, 0, 2]));
            let longer = [LEASE, LEASE * 2, LEASE * 3];
            self.leases = (0..TIERS_MAX).map(|_| LEASE).collect();
            if rng.one_in(2) {
                self.leases = (0..TIERS_MAX).map(|_| pick(rng, &longer)).collect();
            }
            self.is_copied = rng.one_in(8);
            self.pace = pick(rng, &[4, 4, 30, 120]);
            if self.pace > 4 {
                // Time goes on further with each turn.
                self.fault_one_in = pick(rng, &[300, 1000]);
            }
        } else if rng.one_in(4) {
            self.is_embedded = true;
            self.set_weight(Fault::StorePower, pick(rng, &[0, 2, 6]));
        }
        self.placement = pick(rng, &[Placement::Split, Placement::Split, Placement::Split, Placement::Host]);
        self.has_operator = rng.one_in(5);
        self.operator_one_in = pick(rng, &[300, 1000, 3000]);
    }

    /// In some seeds, requests as long as there are (of small blocks: as many blocks), over as many blocks: of many records, and in many chunks.
    pub(super) fn draw_long(&mut self, rng: &mut Rng) {
        let has_room = self.disks.iter().all(|disk| disk.capacity > CAPACITY_SMALL);
        if !rng.one_in(12) || !has_room {
            return;
        }
        let longest = u64::from(PAYLOAD_MAX / BlockLen::Large.bytes());
        (self.blocks, self.request_blocks) = (longest + 8, longest);
        self.window = self.window.min(3);
        self.target.transfer_len_max = PAYLOAD_MAX as usize;
        self.target.compares_max = 1;
        // What is so long takes its time, and whoever has it to make durable has more of that.
        self.net.window = 64 << 10;
        self.net.latency = Duration::from_micros(5)..Duration::from_micros(500);
        self.patience = Patience::default();
        // Nobody reads so many blocks again and again to find what has rotted.
        self.set_weight(Fault::Rot, 0);
    }

    /// Whether requests are as long as there are.
    pub(super) fn has_long(&self) -> bool {
        self.request_blocks > u64::from(REQUEST_BLOCKS_MAX)
    }

    fn set_weight(&mut self, of: Fault, weight: u64) {
        if let Some(at) = FAULTS.iter().position(|fault| *fault == of) {
            self.faults[at] = weight;
        }
    }

    /// Volumes that clients use. Their namespaces have their numbers.
    pub(super) fn volumes(&self) -> u32 {
        1 + u32::from(self.has_operator)
    }

    /// Bytes of the card's area of a port, and of the host's.
    pub(super) fn area_lens(&self) -> (u64, u64) {
        let (card, host) = self.placement.area_lens();
        (card.max(super::link::AREA), host.max(super::link::AREA))
    }

    /// Blocks of the disk.
    pub(super) fn disk_blocks(&self) -> u64 {
        SEGMENTS * SEGMENT_BLOCKS
    }

    /// The first block that clients use.
    pub(super) fn first_block(&self) -> u64 {
        SEGMENT_BLOCKS - self.blocks / 2
    }

    /// What the next request is.
    pub(super) fn sort(&self, rng: &mut Rng) -> Sort {
        weighted(rng, &self.sorts).map_or(Sort::Flush, |index| SORTS[index].0)
    }

    /// What goes wrong now, if anything.
    pub(super) fn fault(&self, rng: &mut Rng) -> Option<Fault> {
        weighted(rng, &self.faults).map(|index| FAULTS[index])
    }
}

/// How often something goes wrong.
fn draw_weight(rng: &mut Rng, fault: Fault) -> u64 {
    if OF_SOME.contains(&fault) {
        // Where there is nobody else nobody is given anything, and nobody takes it.
        return 0;
    }
    // Most of what rots nobody reads any more.
    let often = if fault == Fault::Rot { 4 } else { 1 };
    often * pick(rng, &[0, 0, 1, 3])
}

pub(super) fn pick<T: Copy>(rng: &mut Rng, items: &[T]) -> T {
    items[rng.index(items.len())]
}

/// An index, each as likely as its weight; none, if all are 0.
fn weighted(rng: &mut Rng, weights: &[u64]) -> Option<usize> {
    let mut drawn = rng.below(weights.iter().sum());
    weights.iter().position(|weight| {
        let is_it = drawn < *weight;
        drawn = drawn.saturating_sub(*weight);
        is_it
    })
}

fn net(rng: &mut Rng) -> NetPlan {
    let most_us = pick(rng, &[500, 100, 5_000]);
    NetPlan {
        latency: Duration::from_micros(5)..Duration::from_micros(most_us),
        window: pick(rng, &[64 << 10, 64 << 10, 8 << 10]),
        short: PerMillion::percent(pick(rng, &[30, 0, 80])),
        reset: PerMillion(pick(rng, &[0, 0, 0, 100, 500])),
        refuse: PerMillion(pick(rng, &[0, 0, 100_000])),
        exhausted: PerMillion(pick(rng, &[0, 0, 50_000])),
        retry: Duration::from_millis(pick(rng, &[200, 20])),
        timeout: Duration::from_secs(pick(rng, &[10, 2])),
        ..NetPlan::default()
    }
}

fn disk(rng: &mut Rng, capacity: u64) -> DiskPlan {
    DiskPlan {
        capacity,
        block_len: 4096,
        depth: pick(rng, &[32, 4]),
        busy: PerMillion::percent(pick(rng, &[0, 5])),
        slow: PerMillion(pick(rng, &[0, 0, 2000])),
        slow_factor: 1000,
        ..DiskPlan::default()
    }
}

fn store(rng: &mut Rng) -> StorePlan {
    let most_us = pick(rng, &[2_000, 200, 20_000]);
    StorePlan {
        latency: Duration::from_micros(20)..Duration::from_micros(most_us),
        unreachable: PerMillion::percent(pick(rng, &[0, 0, 5, 20])),
        unknown: PerMillion::percent(pick(rng, &[0, 0, 5, 20])),
        busy: PerMillion::percent(pick(rng, &[0, 10])),
    }
}

/// Little of something, so that running out of it is part of the run; or as much as people have.
fn target(rng: &mut Rng) -> TargetConfig {
    TargetConfig {
        connections_max: 64,
        capsule_buffers: pick(rng, &[64, 4]),
        transfer_memory: pick(rng, &[1 << 20, 512 << 10]),
        connection_transfer_max: pick(rng, &[512 << 10, 256 << 10]),
        transfers_max: pick(rng, &[16, 2]),
        ..TargetConfig::default()
    }
}

fn port(rng: &mut Rng, slots: u16) -> PortConfig {
    let mut retained = rng.fork("retained");
    let handles_max = pick(rng, &[64, 8]);
    PortConfig {
        handles_max,
        gather: Duration::from_micros(if handles_max > 8 { 100 } else { 0 }),
        plans_max: pick(rng, &[64, 12]),
        channels_max: 16,
        slots_max: slots,
        // A read may be of as many records as it has blocks, and must have memory for all of them at once.
        memory: vec![(4 << 10, pick(rng, &[32, 8])), (72 << 10, REQUEST_BLOCKS_MAX + pick(rng, &[16, 0]))],
        heads: REQUEST_BLOCKS_MAX + pick(rng, &[40, 0]),
        requests_max: pick(rng, &[256, 4]),
        window_len: pick(rng, &[4 << 20, 128 << 10]),
        // Where nothing is retained, all that is read comes from servers, with what has become of it there.
        records: pick(&mut retained, &[4, 16, 64]),
        retains: retained.one_in(2),
        ..PortConfig::default()
    }
}
