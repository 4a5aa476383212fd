//! What a seed chooses: the device, how it behaves, and how the card is run.

use std::time::Duration;

use ob_files_card::{FilesOptions, FormatOptions};
use ob_sim::{DiskPlan, PerMillion, Rng};

/// Bytes of a section of the log: the least, so that it is cleaned all the time.
const SECTION_LEN: u32 = 32 << 10;

/// What holds for a whole run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) disk: DiskPlan,
    pub(super) format: FormatOptions,
    pub(super) segment_len: u64,
    pub(super) options: FilesOptions,
    pub(super) hosts: usize,
    /// Requests of one host on their way at once.
    pub(super) window: usize,
    /// Requests about names on their way at once.
    pub(super) names_at_once: usize,
    /// Whether the device fails in some lives.
    pub(super) errors: bool,
    /// Bytes that files are spread over.
    pub(super) span: u64,
    /// One request in so many is one that cannot be.
    pub(super) hostile_one_in: u64,
    /// One change in so many is the last that the card sees.
    pub(super) last_one_in: u64,
    /// How often each kind of request is drawn, by [`Sort`].
    pub(super) weights: [u64; SORTS.len()],
    /// Names there are; few, so that they meet, or so many that the log cannot hold all of them.
    pub(super) names: u64,
}

/// Sorts of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Write,
    Read,
    Resize,
    Zero,
    Flush,
    Create,
    MakeDirectory,
    Remove,
    Rename,
    List,
    Look,
    Space,
}

/// All sorts, and how often they are drawn unless the seed prefers some.
const SORTS: [(Sort, u64); 12] = [
    (Sort::Write, 30),
    (Sort::Read, 25),
    (Sort::Resize, 7),
    (Sort::Zero, 7),
    (Sort::Flush, 5),
    (Sort::Create, 10),
    (Sort::MakeDirectory, 3),
    (Sort::Remove, 6),
    (Sort::Rename, 5),
    (Sort::List, 3),
    (Sort::Look, 4),
    (Sort::Space, 1),
];

impl Plan {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        let block_len: u32 = if rng.one_in(2) { 512 } else { 4096 };
        let segment_len = 4096u64 << rng.below(5);
        // A small device is full soon, and everything is used again all the time.
        let segments = match segment_len {
            _ if rng.one_in(2) => rng.range(8..24),
            4096 => rng.range(60..400),
            8192 | 16384 => rng.range(40..200),
            _ => rng.range(16..80),
        };
        let names = if rng.one_in(10) { 400 } else { 8 };
        let log_sections = rng.range(8..17);
        // The log begins at 128 KiB, and data at a whole segment behind it.
        let log_end = (128 << 10) + log_sections * u64::from(SECTION_LEN);
        let capacity = log_end.next_multiple_of(segment_len) + segments * segment_len;
        Self {
            disk: disk_plan(rng, block_len, capacity),
            format: FormatOptions {
                segment_len: Some(segment_len),
                section_len: Some(SECTION_LEN),
                log_len: Some(log_sections * u64::from(SECTION_LEN)),
            },
            segment_len,
            options: options(rng, segment_len),
            hosts: rng.range(1..5) as usize,
            window: rng.range(1..13) as usize,
            names_at_once: rng.range(1..4) as usize,
            errors: rng.one_in(8),
            span: segment_len * (segments / rng.range(1..9)).max(2),
            hostile_one_in: rng.range(10..60),
            last_one_in: *rng.choose(&[10, 40, 200]).unwrap_or(&40),
            weights: weights(rng, names > 8),
            names,
        }
    }
}

/// Which sorts a seed prefers. With many names it makes so many files that the log is full.
fn weights(rng: &mut Rng, many_names: bool) -> [u64; SORTS.len()] {
    SORTS.map(|(sort, weight)| match sort {
        Sort::Create if many_names => 20 * weight,
        Sort::Rename if many_names => 8 * weight,
        _ => weight * *rng.choose(&[1, 1, 1, 3, 0]).unwrap_or(&1),
    })
}

impl Plan {
    /// What the next request is about.
    pub(super) fn sort(&self, rng: &mut Rng) -> Sort {
        let mut drawn = rng.below(self.weights.iter().sum::<u64>().max(1));
        for ((sort, _), weight) in SORTS.iter().zip(self.weights) {
            if drawn < weight {
                return *sort;
            }
            drawn -= weight;
        }
        Sort::Space
    }
}

fn disk_plan(rng: &mut Rng, block_len: u32, capacity: u64) -> DiskPlan {
    let latency_us_max = *rng.choose(&[3, 20, 200]).unwrap_or(&20);
    DiskPlan {
        capacity,
        block_len,
        volatile_cache: !rng.one_in(8),
        depth: *rng.choose(&[2, 8, 64]).unwrap_or(&8),
        latency: Duration::from_micros(1)..Duration::from_micros(latency_us_max),
        busy: if rng.one_in(3) { PerMillion::percent(20) } else { PerMillion::NEVER },
        slow: if rng.one_in(2) { PerMillion::percent(5) } else { PerMillion::NEVER },
        slow_factor: *rng.choose(&[10, 100, 1000]).unwrap_or(&10),
        ..DiskPlan::default()
    }
}

/// Makes the disk fail now and then, in one of its ways.
pub(super) fn add_errors(plan: &mut DiskPlan, rng: &mut Rng) {
    let often = PerMillion(*rng.choose(&[300, 3_000, 30_000]).unwrap_or(&3_000));
    match rng.below(4) {
        0 => plan.read_error = often,
        1 => plan.write_error = often,
        2 => plan.flush_error = often,
        _ => (plan.read_error, plan.write_error) = (often, often),
    }
}

/// Makes it well again.
pub(super) fn remove_errors(plan: &mut DiskPlan) {
    (plan.read_error, plan.write_error, plan.flush_error) =
        (PerMillion::NEVER, PerMillion::NEVER, PerMillion::NEVER);
}

fn options(rng: &mut Rng, segment_len: u64) -> FilesOptions {
    FilesOptions {
        requests_max: *rng.choose(&[2, 8, 64]).unwrap_or(&8),
        bounce_buffers: *rng.choose(&[2, 3, 16]).unwrap_or(&3),
        bounce_len: *rng.choose(&[4096, 16 << 10, 64 << 10]).unwrap_or(&4096),
        clean_len: segment_len * rng.range(1..40),
        transfer_max: *rng.choose(&[4096, 32 << 10, 1 << 20]).unwrap_or(&(1 << 20)),
        copy_everything: rng.one_in(10),
    }
}
