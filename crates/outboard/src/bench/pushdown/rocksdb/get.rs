//! Lookups in a database that does not change, of four levels that all have to be asked.

use std::path::Path;
use std::time::Duration;

use ob_nvme::initiator::Payload;
use ob_sim::Rng;

use super::reader::{Cached, Reader, Way};
use super::records::Records;
use super::shelf::Shelf;
use super::writer::Writer;
use super::{namespace_len, options, tables_len};
use crate::bench::kv::keys::{Distribution, Keys};
use crate::bench::nvme::target::Backend;
use crate::bench::pushdown::link::{Link, median};
use crate::bench::pushdown::{Arrangement, DELAY, connect};
use crate::bench::turns::by_turns;
use crate::bench::{BenchFailure, Case};

struct Plan {
    keys: u32,
    /// Bytes of a table.
    table_len: u64,
    rounds: u64,
    time: Duration,
}

const FULL: Plan = Plan { keys: 160_000, table_len: 1 << 20, rounds: 7, time: Duration::from_millis(500) };
const QUICK: Plan = Plan { keys: 4_000, table_len: 256 << 10, rounds: 1, time: Duration::from_millis(20) };

/// The shortest and the longest value.
const VALUE_LENS: (usize, usize) = (100, 1000);
/// Each level with the share of the keys that have a newer value there, as one in so many: most keys are found in the last of four
/// levels, after a block of each one above it was in vain.
const LEVELS: [(u32, u64); 4] = [(3, 1), (2, 20), (1, 100), (0, 200)];
/// So much of the data is kept by the client in `cached`.
const CACHED_ONE_IN: u64 = 10;

/// Measures all of it: in memory near and far, and with indexes kept on a disk as well.
pub(super) fn measure(arrangement: &Arrangement<'_>, program: &Path) -> Result<Vec<Case>, BenchFailure> {
    let plan = if arrangement.setting.quick { &QUICK } else { &FULL };
    arrangement.setting.progress.inc_length(plan.rounds * (3 * 2 * 2 + 1 + 2));
    arrangement.setting.progress.set_message("rocksdb_get: RocksDB writes");
    let path = arrangement.place.join("get");
    let records = write(plan, program, &path)?;
    let len = tables_len(&path)?;
    let field = Field { plan, arrangement, records: &records, path: &path, len };
    let mut cases = Vec::new();
    {
        let target = arrangement.start(&Backend::Memory(namespace_len(len)))?;
        for (delay, connection) in [(Duration::ZERO, ".loopback"), (DELAY, ".delay")] {
            let polled = connect(&target, delay, &Payload::default(), false)?;
            cases.extend(field.measure(&Link::begin(&polled, target.pid())?, connection)?);
        }
    }
    let disk = Backend::File(arrangement.place.join("get-disk"), namespace_len(len));
    let target = arrangement.start(&disk)?;
    let polled = connect(&target, Duration::ZERO, &Payload::default(), false)?;
    cases.extend(field.measure(&Link::begin(&polled, target.pid())?, ".disk.loopback")?);
    Ok(cases)
}

/// Has RocksDB write the database, level by level.
fn write(plan: &Plan, program: &Path, path: &Path) -> Result<Records, BenchFailure> {
    let mut records = Records::new(VALUE_LENS);
    // It compacts only what it is told to.
    let mut writer = Writer::start(program, path, &options(plan.table_len, &["auto=0", "buffer=16777216"]))?;
    let mut rng = Rng::new(11);
    for (level, one_in) in LEVELS {
        let chosen: Vec<u32> = (0..plan.keys).filter(|_| rng.one_in(one_in)).collect();
        writer.fill(&mut records, chosen)?;
        writer.settle(level)?;
    }
    Ok(records)
}

/// What is measured over each connection.
struct Field<'run> {
    plan: &'run Plan,
    arrangement: &'run Arrangement<'run>,
    records: &'run Records,
    path: &'run Path,
    /// Bytes of the database.
    len: u64,
}

struct Contender<'run> {
    name: String,
    reader: Reader<'run>,
}

impl Field<'_> {
    fn measure(&self, link: &Link<'_>, connection: &str) -> Result<Vec<Case>, BenchFailure> {
        let shelf = Shelf::new(link, self.path.to_owned(), namespace_len(self.len));
        let is_disk = connection.starts_with(".disk");
        let mut contenders = Vec::new();
        for (question, cached) in [
            ("rocksdb_get_uncached", Cached::Nothing),
            ("rocksdb_get", Cached::Indexes),
            ("rocksdb_get_cached", Cached::Data((self.len / CACHED_ONE_IN) as usize)),
        ] {
            if is_disk && cached != Cached::Indexes {
                continue;
            }
            for way in [Way::Reads, Way::Pushed, Way::Here] {
                if way == Way::Here && (cached != Cached::Indexes || connection != ".loopback") {
                    continue;
                }
                let reader = Reader::open(way, cached, link, &shelf)?;
                self.warm(&reader, cached)?;
                contenders.push(Contender { name: way.name(question, connection), reader });
            }
        }
        let rounds = by_turns(self.plan.rounds, &mut contenders, |contender, round| {
            self.arrangement.show(&contender.name, || self.round(link, contender, round))
        })?;
        Ok(rounds.into_iter().filter_map(median).collect())
    }

    fn ask(&self, contender: &Contender<'_>, number: u32) -> Result<(), BenchFailure> {
        let value = contender.reader.get(number)?;
        if value.is_some_and(|value| self.records.is_right(number, &value)) {
            Ok(())
        } else {
            Err(format!("{}: a wrong value of key {number}", contender.name).into())
        }
    }

    fn keys(&self, seed: u64) -> Keys {
        Keys::new(Distribution::Uniform, self.records.count(), Rng::new(seed))
    }

    /// What is loaded, mapped, prepared and kept once is not measured.
    fn warm(&self, reader: &Reader<'_>, cached: Cached) -> Result<(), BenchFailure> {
        let mut keys = self.keys(u64::MAX);
        let ordinary = if matches!(cached, Cached::Data(_)) { self.records.count() / 20 } else { 0 };
        (0..ordinary).try_for_each(|_| reader.get_ordinary(keys.next()).map(drop))?;
        (0..self.records.count() / 100).try_for_each(|_| reader.get(keys.next()).map(drop))
    }

    fn round(&self, link: &Link<'_>, contender: &Contender<'_>, round: u64) -> Result<Case, BenchFailure> {
        let mut keys = self.keys(round);
        let before = contender.reader.counts();
        let mut case =
            link.round(&contender.name, None, self.plan.time, || self.ask(contender, keys.next()))?;
        contender.reader.tell_counts(before, &mut case);
        Ok(case)
    }
}
