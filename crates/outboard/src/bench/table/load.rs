//! Readers and a writer on one map.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::contenders::{Contender, KeyBytes, key_of, mix};
use super::{BenchFailure, Case};
use crate::bench::{CpuMeter, CpuPerOperation, Latencies};

/// Keys of a batch.
pub(super) const BATCH: usize = 16;

/// Lookups between two that are timed: asking for the time costs about as much as one.
const TIMED_EVERY: u64 = 64;

/// The writer replaces so many items, then sleeps for that long: some hundred thousand a second.
const UPDATES: u64 = 16;
const UPDATE_PAUSE: Duration = Duration::from_micros(100);

/// What a map has to bear.
pub(super) struct Load {
    pub(super) items: u64,
    pub(super) readers: usize,
    pub(super) is_batched: bool,
    pub(super) time: Duration,
}

/// What came of it.
pub(super) struct Measured {
    lookups: u64,
    found: u64,
    updates: u64,
    seconds: f64,
    latencies: Latencies,
    cpu: CpuPerOperation,
}

impl Measured {
    pub(super) fn rate(&self) -> f64 {
        self.lookups as f64 / self.seconds
    }

    pub(super) fn case(&self, name: &str) -> Case {
        let mut case = Case::new(name, self.seconds, &self.latencies, self.cpu);
        // Only some lookups are timed, so the histogram's count is not their number.
        case.ops_per_s = self.rate();
        case.extra.insert("found".to_owned(), self.found as f64 / self.lookups.max(1) as f64);
        case.extra.insert("updates_per_s".to_owned(), self.updates as f64 / self.seconds);
        case
    }
}

/// Lets readers and a writer at the map for a time.
pub(super) fn measure<C: Contender>(contender: &C, load: &Load) -> Result<Measured, BenchFailure> {
    let (stop, go) = (AtomicBool::new(false), Barrier::new(load.readers + 2));
    let updates = AtomicU64::new(0);
    let meter = CpuMeter::start(None, None)?;
    let (seconds, read) = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..load.readers as u64)
            .map(|seed| {
                let (stop, go) = (&stop, &go);
                scope.spawn(move || {
                    go.wait();
                    read(contender, load, seed, stop)
                })
            })
            .collect();
        scope.spawn(|| {
            go.wait();
            updates.store(update(contender, load, &stop), Ordering::Relaxed);
        });
        go.wait();
        let started = Instant::now();
        std::thread::sleep(load.time);
        stop.store(true, Ordering::Relaxed);
        let read: Vec<_> = readers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        (started.elapsed().as_secs_f64(), read)
    });
    let (mut lookups, mut found, mut latencies) = (0, 0, Latencies::new());
    for reader in read {
        let (looked_up, hits, timed) = reader.map_err(|_| "a reader panicked")?;
        lookups += looked_up;
        found += hits;
        latencies.merge(&timed);
    }
    let cpu = meter.finish(lookups)?;
    Ok(Measured { lookups, found, updates: updates.into_inner(), seconds, latencies, cpu })
}

fn read<C: Contender>(contender: &C, load: &Load, seed: u64, stop: &AtomicBool) -> (u64, u64, Latencies) {
    let (mut lookups, mut found, mut latencies) = (0, 0, Latencies::new());
    let mut random = mix(seed);
    let mut next_key = || -> KeyBytes {
        random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        key_of(((u128::from(mix(random)) * u128::from(load.items)) >> 64) as u64)
    };
    while !stop.load(Ordering::Relaxed) {
        if load.is_batched {
            for _ in 0..TIMED_EVERY / BATCH as u64 {
                let keys: [KeyBytes; BATCH] = std::array::from_fn(|_| next_key());
                found += contender.lookup_batch(&keys) as u64;
            }
            let keys: [KeyBytes; BATCH] = std::array::from_fn(|_| next_key());
            let started = Instant::now();
            found += contender.lookup_batch(&keys) as u64;
            latencies.record(started.elapsed());
            lookups += TIMED_EVERY + BATCH as u64;
        } else {
            for _ in 0..TIMED_EVERY {
                found += u64::from(contender.lookup(&next_key()).is_some());
            }
            let key = next_key();
            let started = Instant::now();
            found += u64::from(contender.lookup(&key).is_some());
            latencies.record(started.elapsed());
            lookups += TIMED_EVERY + 1;
        }
    }
    (lookups, found, latencies)
}

fn update<C: Contender>(contender: &C, load: &Load, stop: &AtomicBool) -> u64 {
    let mut update = contender.updater();
    let mut updates = 0u64;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..UPDATES {
            update(mix(updates) % load.items);
            updates += 1;
        }
        std::thread::sleep(UPDATE_PAUSE);
    }
    updates
}
