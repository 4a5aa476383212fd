//! What a seed chooses: who takes part, how network and disk behave, what the card has of everything, and what happens how often.
//!
//! A seed in which everything happens at once hides what only some faults show: a connection that is reset all the time never gets far
//! enough to run out of buffers. So most faults are absent from most seeds, and frequent in some (swarm testing, Groce et al.).

use std::time::Duration;

use ob_nvme::target::TargetConfig;
use ob_sim::{Discarding, DiskPlan, NetPlan, PerMillion, Rng};

use super::BLOCK;

/// What holds for a whole run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) hosts: usize,
    pub(super) blocks: usize,
    pub(super) net: NetPlan,
    pub(super) disk: DiskPlan,
    pub(super) target: TargetConfig,
    /// I/O queues of a host, and commands of each.
    pub(super) queues: u16,
    pub(super) depth: u16,
    /// Requests of one host on their way at once, and blocks of a request at most.
    pub(super) window: usize,
    pub(super) request_blocks: usize,
    /// One write in so many is forced to the medium.
    pub(super) durable_one_in: u64,
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

/// All sorts, and how often they are drawn unless the seed prefers some.
const SORTS: [(Sort, u64); 5] =
    [(Sort::Read, 12), (Sort::Write, 12), (Sort::Zero, 2), (Sort::Discard, 2), (Sort::Flush, 4)];

/// What happens to those who take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Reset,
    Cut,
    /// Nothing gets through one way.
    CutOneWay,
    HostDies,
    CardDies,
    PowerFails,
    /// A host, or the card, does nothing for a while.
    Pause,
}

/// A way that takes longer is a long one.
const FAR: Duration = Duration::from_millis(10);

const FAULTS: [Fault; 7] = [
    Fault::Reset,
    Fault::Cut,
    Fault::CutOneWay,
    Fault::HostDies,
    Fault::CardDies,
    Fault::PowerFails,
    Fault::Pause,
];

impl Fault {
    /// How often it happens in a run, if at all. Hosts die in every run: what they leave behind on devices is the hardest part.
    fn weight(self, rng: &mut Rng) -> u64 {
        pick(rng, &[1, 1, 3, u64::from(self == Self::HostDies)])
    }
}

impl Plan {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        let blocks = pick(rng, &[64, 64, 16, 200]);
        let net = NetPlan::draw(rng);
        // An association takes a dozen ways there and back: where they are long, faults must leave it the time.
        let is_far = net.latency.end > FAR;
        let fault_one_in = if is_far { 6000 } else { pick(rng, &[400, 400, 150, 2000]) };
        let common = Self {
            hosts: pick(rng, &[3, 3, 2, 4]),
            blocks,
            net,
            disk: disk(rng, blocks),
            target: target(rng),
            queues: pick(rng, &[2, 1, 4]),
            depth: pick(rng, &[8, 3, 32]),
            window: pick(rng, &[6, 1, 16]),
            request_blocks: pick(rng, &[20, 4, 60]).min(blocks),
            durable_one_in: pick(rng, &[4, 2, 20]),
            sorts: SORTS.map(|(_, weight)| weight * pick(rng, &[1, 1, 1, 4, 0])),
            fault_one_in,
            faults: FAULTS.map(|fault| fault.weight(rng)),
        };
        if rng.one_in(4) { common.with_many_left_behind() } else { common }
    }

    /// Hosts leave much behind on devices, and are back before it is done: near ones that die all the time, write the same few blocks and
    /// have slow operations under way.
    fn with_many_left_behind(mut self) -> Self {
        self.net.latency = Duration::from_micros(5)..Duration::from_micros(100);
        self.disk = DiskPlan {
            depth: 32,
            slow: PerMillion::percent(20),
            slow_factor: 5000,
            stuck: PerMillion::NEVER,
            ..self.disk
        };
        Self {
            window: 16,
            request_blocks: self.request_blocks.min(4),
            sorts: SORTS
                .map(|(sort, weight)| if matches!(sort, Sort::Read | Sort::Write) { weight } else { 1 }),
            fault_one_in: 150,
            faults: FAULTS.map(|fault| u64::from(matches!(fault, Fault::HostDies | Fault::Reset))),
            ..self
        }
    }

    /// Whether hosts and card are far from each other.
    pub(super) fn is_far(&self) -> bool {
        self.net.latency.end > FAR
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

fn pick<T: Copy>(rng: &mut Rng, items: &[T]) -> T {
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

fn disk(rng: &mut Rng, blocks: usize) -> DiskPlan {
    let capacity = (blocks * BLOCK) as u64;
    let percent = |rng: &mut Rng, often: &[u32]| PerMillion::percent(pick(rng, often));
    let bad = rng.below(blocks as u64 - 2) * BLOCK as u64;
    DiskPlan {
        capacity,
        volatile_cache: !rng.one_in(8),
        depth: pick(rng, &[6, 6, 1, 32]),
        busy: percent(rng, &[5, 0, 30]),
        read_error: percent(rng, &[1, 0, 3]),
        write_error: percent(rng, &[1, 0, 3]),
        flush_error: percent(rng, &[3, 0, 10]),
        bad_to_write: rng.one_in(8).then_some(bad..bad + 2 * BLOCK as u64).into_iter().collect(),
        // Some operations outlast their host's coming back; some are done and never say so, until the device is reset.
        slow: percent(rng, &[5, 10, 0]),
        slow_factor: pick(rng, &[5000, 5000, 100]),
        stuck: PerMillion(pick(rng, &[0, 0, 2_000])),
        space: rng.one_in(4).then_some(capacity / 4),
        discard: pick(
            &mut rng.fork("discard"),
            &[Discarding::Either, Discarding::Zeroes, Discarding::Unsupported],
        ),
        ..DiskPlan::default()
    }
}

/// Little of something, so that running out of it is part of the run; or as much as people have.
fn target(rng: &mut Rng) -> TargetConfig {
    let ample = TargetConfig::default();
    let little = |rng: &mut Rng, little: usize, ample: usize| if rng.one_in(3) { ample } else { little };
    TargetConfig {
        capsule_buffers: little(rng, 4, 64),
        transfer_memory: little(rng, 256 << 10, 1 << 20),
        connection_transfer_max: little(rng, 32 << 10, ample.connection_transfer_max),
        transfers_max: little(rng, 2, ample.transfers_max),
        unsent_max: little(rng, 4096, ample.unsent_max),
        receive_len: little(rng, 8 << 10, 32 << 10),
        compares_max: 1,
        // Write Zeroes and deallocation take several operations.
        zeroes_at_once: if rng.one_in(3) { ample.zeroes_at_once } else { 4096 },
        ..ample
    }
}
