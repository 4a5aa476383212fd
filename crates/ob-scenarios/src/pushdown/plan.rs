//! What a seed chooses.

use std::time::Duration;

use ob_files_card::{FilesOptions, FormatOptions};
use ob_nvme::target::TargetConfig;
use ob_sim::{DiskPlan, NetPlan, PerMillion, Rng};

use super::keepers::Keepers;
use super::leased::Leasing;
use super::node::NODE;

/// Bytes of a section of the log of the card's files.
const SECTION_LEN: u32 = 32 << 10;

/// What holds for a whole run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) hosts: usize,
    /// Files of the card, and files of each host.
    pub(super) names: usize,
    pub(super) files: usize,
    /// Blocks of the namespace that each host has.
    pub(super) region: u64,
    pub(super) net: NetPlan,
    /// The namespace's disk, and that of the card's files.
    pub(super) disk: DiskPlan,
    pub(super) files_disk: DiskPlan,
    pub(super) format: FormatOptions,
    pub(super) options: FilesOptions,
    pub(super) target: TargetConfig,
    pub(super) queues: u16,
    pub(super) depth: u16,
    /// How often an initiator tries.
    pub(super) attempts_max: u32,
    /// Whether commands go both ways.
    pub(super) exchanges: bool,
    /// Tasks of one host at once.
    pub(super) window: usize,
    /// Whether sessions have keepers of maps, how slow those are, and how often somebody else has his turn in the middle of a request.
    pub(super) keepers: Keepers,
    pub(super) keeper_one_in: u64,
    pub(super) seam_one_in: u64,
    /// The leases of the hosts' kernels.
    pub(super) leasing: Leasing,
    /// One request in so many is given up.
    pub(super) abandon_one_in: u64,
    /// How often the card's files are changed: one turn in so many.
    pub(super) change_one_in: u64,
    pub(super) sorts: [u64; SORTS.len()],
    /// One turn in so many has a fault.
    pub(super) fault_one_in: u64,
    pub(super) faults: [u64; FAULTS.len()],
}

/// What a host does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Ask,
    Rewrite,
    Withdraw,
    Administer,
    Nonsense,
    Abort,
    ChangeKeeper,
    EndSession,
}

const SORTS: [(Sort, u64); 8] = [
    (Sort::Ask, 30),
    (Sort::Rewrite, 10),
    (Sort::Withdraw, 4),
    (Sort::Administer, 1),
    (Sort::Nonsense, 1),
    (Sort::Abort, 2),
    (Sort::ChangeKeeper, 2),
    (Sort::EndSession, 1),
];

/// What happens to hosts and their connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Reset,
    Cut,
    HostDies,
    Pause,
    CardDies,
}

const FAULTS: [Fault; 5] = [Fault::Reset, Fault::Cut, Fault::HostDies, Fault::Pause, Fault::CardDies];

fn pick<T: Copy>(rng: &mut Rng, items: &[T]) -> T {
    items[rng.index(items.len())]
}

impl Plan {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        let hosts = pick(rng, &[3, 3, 2]);
        let region = 600;
        let mut net = NetPlan::draw(rng);
        // Chains are about what happens on the card; a long way only makes fewer of them.
        if net.latency.end > Duration::from_millis(10) {
            net.latency = Duration::from_micros(20)..Duration::from_millis(1);
        }
        let block_len = pick(rng, &[512, 4096]);
        let segment_len = pick(rng, &[4096, 8192, 16384]);
        let log_sections = 12;
        let log_end = (128 << 10) + log_sections * u64::from(SECTION_LEN);
        let capacity = u64::next_multiple_of(log_end, segment_len) + 256 * 4096;
        Self {
            hosts,
            names: pick(rng, &[3, 4, 2, 1]),
            files: pick(rng, &[3, 1]),
            region,
            net,
            disk: disk(rng, NODE as u32, hosts as u64 * region * NODE),
            files_disk: disk(rng, block_len, capacity),
            format: FormatOptions {
                segment_len: Some(segment_len),
                section_len: Some(SECTION_LEN),
                log_len: Some(log_sections * u64::from(SECTION_LEN)),
            },
            options: FilesOptions {
                requests_max: pick(rng, &[64, 4]),
                bounce_buffers: 4,
                clean_len: 64 << 10,
                ..FilesOptions::default()
            },
            target: target(rng),
            queues: pick(rng, &[2, 1, 4]),
            depth: pick(rng, &[16, 8, 32]),
            attempts_max: pick(rng, &[5, 1]),
            exchanges: rng.one_in(2),
            window: pick(rng, &[4, 2, 8]),
            keepers: pick(rng, &[Keepers::Never, Keepers::Always, Keepers::Sometimes, Keepers::Sometimes]),
            keeper_one_in: pick(rng, &[1, 2, 8, 30]),
            seam_one_in: pick(rng, &[4, 30, u64::MAX]),
            leasing: Leasing {
                grace: Duration::from_micros(pick(rng, &[0, 3000, 2_000_000, 2_000_000])),
                can_be_remapped: rng.one_in(2),
                pause: Duration::from_micros(pick(rng, &[0, 1, 500, 5000])),
            },
            abandon_one_in: pick(rng, &[4, 20, u64::MAX]),
            change_one_in: pick(rng, &[5, 40, 300]),
            sorts: SORTS.map(
                |(sort, weight)| if sort == Sort::Ask { weight } else { weight * pick(rng, &[1, 1, 3, 0]) },
            ),
            fault_one_in: pick(rng, &[600, 600, 200, 3000]),
            // A card that dies takes everything along; where it does so all the time, nothing else is seen.
            faults: FAULTS.map(|fault| match fault {
                Fault::CardDies => pick(rng, &[1, 0, 0, 0]),
                _ => pick(rng, &[4, 4, 12, 0]),
            }),
        }
    }

    pub(super) fn sort(&self, rng: &mut Rng) -> Sort {
        weighted(rng, &self.sorts).map_or(Sort::Ask, |index| SORTS[index].0)
    }

    pub(super) fn fault(&self, rng: &mut Rng) -> Option<Fault> {
        weighted(rng, &self.faults).map(|index| FAULTS[index])
    }
}

/// An index, each as likely as its weight; none, if all are 0.
fn weighted(rng: &mut Rng, weights: &[u64]) -> Option<usize> {
    let sum = weights.iter().sum();
    if sum == 0 {
        return None;
    }
    let mut drawn = rng.below(sum);
    weights.iter().position(|weight| {
        let is_it = drawn < *weight;
        drawn = drawn.saturating_sub(*weight);
        is_it
    })
}

fn disk(rng: &mut Rng, block_len: u32, capacity: u64) -> DiskPlan {
    let latency_us_max = pick(rng, &[20, 200, 2000]);
    DiskPlan {
        capacity,
        block_len,
        depth: pick(rng, &[8, 2, 64]),
        latency: Duration::from_micros(1)..Duration::from_micros(latency_us_max),
        busy: PerMillion::percent(pick(rng, &[0, 20])),
        slow: PerMillion::percent(pick(rng, &[0, 5])),
        slow_factor: pick(rng, &[10, 100]),
        ..DiskPlan::default()
    }
}

/// Little of everything in some seeds, so that requests wait for what they are lent.
fn target(rng: &mut Rng) -> TargetConfig {
    let ample = TargetConfig::default();
    let little = |rng: &mut Rng, little: usize, ample: usize| if rng.one_in(3) { ample } else { little };
    TargetConfig {
        capsule_buffers: little(rng, 8, 64),
        transfer_memory: little(rng, 256 << 10, 4 << 20),
        connection_transfer_max: little(rng, 32 << 10, ample.connection_transfer_max),
        transfers_max: little(rng, 2, ample.transfers_max),
        unsent_max: little(rng, 4096, ample.unsent_max),
        receive_len: little(rng, 8 << 10, 32 << 10),
        foreign: ob_pushdown::target::opcodes(),
        ..ample
    }
}
