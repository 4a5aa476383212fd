//! The six workloads of YCSB: RocksDB writes, and what is read is read by requests or by ordinary reads.

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
    /// Bytes of a table, of what RocksDB keeps in memory, and of the first level that is not level 0.
    table_len: u64,
    buffer_len: u64,
    level_len: u64,
    rounds: u64,
    time: Duration,
}

const FULL: Plan = Plan {
    keys: 100_000,
    table_len: 1 << 20,
    buffer_len: 4 << 20,
    level_len: 4 << 20,
    rounds: 5,
    time: Duration::from_millis(500),
};
const QUICK: Plan = Plan {
    keys: 2_000,
    table_len: 128 << 10,
    buffer_len: 128 << 10,
    level_len: 256 << 10,
    rounds: 1,
    time: Duration::from_millis(20),
};

/// YCSB's own: ten fields of a hundred bytes.
const VALUE_LEN: usize = 1000;
/// The longest range that is asked for.
const SCAN_MAX: u64 = 100;
/// So much of the data is kept by the client, and indexes.
const CACHED_ONE_IN: u64 = 10;
/// The namespace has room for the database so many times, for what RocksDB has rewritten and somebody still reads.
const ROOM: u64 = 4;

/// Operations of a hundred; what is left are reads.
struct Workload {
    name: &'static str,
    distribution: Distribution,
    updates: u64,
    inserts: u64,
    scans: u64,
    /// Reads of a value that is written anew then.
    modifications: u64,
}

const fn workload(name: &'static str, distribution: Distribution) -> Workload {
    Workload { name, distribution, updates: 0, inserts: 0, scans: 0, modifications: 0 }
}

/// As YCSB defines them, and C with all keys alike.
const WORKLOADS: &[Workload] = &[
    Workload { updates: 50, ..workload("a", Distribution::Zipfian) },
    Workload { updates: 5, ..workload("b", Distribution::Zipfian) },
    workload("c", Distribution::Zipfian),
    workload("c", Distribution::Uniform),
    Workload { inserts: 5, ..workload("d", Distribution::Latest) },
    Workload { scans: 95, inserts: 5, ..workload("e", Distribution::Zipfian) },
    Workload { modifications: 50, ..workload("f", Distribution::Zipfian) },
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Read,
    Update,
    Insert,
    Scan,
    Modify,
}

impl Workload {
    fn title(&self) -> String {
        format!("ycsb_{}.{}", self.name, self.distribution.name())
    }

    /// The operation of a number from 0 to 99.
    fn operation(&self, mut percent: u64) -> Operation {
        for (share, operation) in [
            (self.updates, Operation::Update),
            (self.inserts, Operation::Insert),
            (self.scans, Operation::Scan),
            (self.modifications, Operation::Modify),
        ] {
            if percent < share {
                return operation;
            }
            percent -= share;
        }
        Operation::Read
    }
}

/// Measures all of it, near and far.
pub(super) fn measure(arrangement: &Arrangement<'_>, program: &Path) -> Result<Vec<Case>, BenchFailure> {
    let plan = if arrangement.setting.quick { &QUICK } else { &FULL };
    arrangement.setting.progress.inc_length(plan.rounds * WORKLOADS.len() as u64 * (3 + 2));
    arrangement.setting.progress.set_message("ycsb: RocksDB writes");
    let path = arrangement.place.join("ycsb");
    let sizes = [format!("buffer={}", plan.buffer_len), format!("level={}", plan.level_len)];
    let options = options(plan.table_len, &sizes.each_ref().map(String::as_str));
    let mut store = Store {
        writer: Writer::start(program, &path, &options)?,
        records: Records::new((VALUE_LEN, VALUE_LEN)),
    };
    store.writer.fill(&mut store.records, 0..plan.keys)?;
    store.writer.settle(0)?;
    store.writer.rest()?;
    let field = Field { plan, arrangement, path: &path, len: tables_len(&path)? };
    let target = arrangement.start(&Backend::Memory(namespace_len(ROOM * field.len)))?;
    let mut cases = Vec::new();
    for (delay, connection) in [(Duration::ZERO, ".loopback"), (DELAY, ".delay")] {
        let polled = connect(&target, delay, &Payload::default(), false)?;
        cases.extend(field.measure(&mut store, &Link::begin(&polled, target.pid())?, connection)?);
    }
    Ok(cases)
}

/// RocksDB, and what it should have.
struct Store {
    writer: Writer,
    records: Records,
}

/// What is measured over each connection.
struct Field<'run> {
    plan: &'run Plan,
    arrangement: &'run Arrangement<'run>,
    path: &'run Path,
    /// Bytes of the database when it was filled.
    len: u64,
}

impl Field<'_> {
    fn measure(
        &self,
        store: &mut Store,
        link: &Link<'_>,
        connection: &str,
    ) -> Result<Vec<Case>, BenchFailure> {
        let shelf = Shelf::new(link, self.path.to_owned(), namespace_len(ROOM * self.len));
        let cached = Cached::Data((self.len / CACHED_ONE_IN) as usize);
        let mut readers = Vec::new();
        for way in [Way::Reads, Way::Pushed, Way::Here] {
            if way != Way::Here || connection == ".loopback" {
                readers.push((way, Reader::open(way, cached, link, &shelf)?));
            }
        }
        let mut cases = Vec::new();
        for workload in WORKLOADS {
            for (_, reader) in &readers {
                warm(workload, store, reader)?;
            }
            let mut turns: Vec<usize> = (0..readers.len()).collect();
            let rounds = by_turns(self.plan.rounds, &mut turns, |turn, round| {
                // What others have left undone is theirs, and nobody keeps what is not in the database any more.
                store.writer.rest()?;
                readers.iter().try_for_each(|(_, reader)| reader.catch_up())?;
                let Some((way, reader)) = readers.get(*turn) else { return Ok(None) };
                let name = way.name(&workload.title(), connection);
                self.arrangement.show(&name, || {
                    let mut conversation = Conversation::new(workload, store, reader, round);
                    let (writer, before) = (conversation.store.writer.pid(), reader.counts());
                    let mut case = link.round(&name, Some(writer), self.plan.time, || {
                        conversation.operate().map_err(|error| format!("{name}: {error}").into())
                    })?;
                    reader.tell_counts(before, &mut case);
                    Ok(case)
                })
            })?;
            cases.extend(rounds.into_iter().filter_map(median));
        }
        Ok(cases)
    }
}

/// Fills the cache with what a workload reads most. What is loaded and mapped once is not measured.
fn warm(workload: &Workload, store: &Store, reader: &Reader<'_>) -> Result<(), BenchFailure> {
    reader.catch_up()?;
    let count = store.records.count();
    let mut keys = Keys::new(workload.distribution, count, Rng::new(u64::MAX));
    (0..count / 20).try_for_each(|_| reader.get_ordinary(keys.next()).map(drop))?;
    (0..count / 100).try_for_each(|_| reader.get(keys.next()).map(drop))
}

/// What a client does in a turn.
struct Conversation<'run, 'reader> {
    workload: &'run Workload,
    store: &'run mut Store,
    reader: &'run Reader<'reader>,
    keys: Keys,
    /// Whether something was written that the reader has not seen.
    is_behind: bool,
}

impl<'run, 'reader> Conversation<'run, 'reader> {
    fn new(
        workload: &'run Workload,
        store: &'run mut Store,
        reader: &'run Reader<'reader>,
        round: u64,
    ) -> Self {
        let keys = Keys::new(workload.distribution, store.records.count(), Rng::new(round));
        Self { workload, store, reader, keys, is_behind: false }
    }

    /// One operation, whose answer is checked. What was written before is seen by every read.
    fn operate(&mut self) -> Result<(), BenchFailure> {
        let operation = self.workload.operation(self.keys.percent());
        let number = match operation {
            Operation::Insert => self.store.records.count(),
            _ => self.keys.next(),
        };
        match operation {
            Operation::Read => self.read(number),
            Operation::Scan => self.scan(number),
            Operation::Update | Operation::Insert => self.write(number),
            Operation::Modify => {
                self.read(number)?;
                self.write(number)
            }
        }
    }

    fn write(&mut self, number: u32) -> Result<(), BenchFailure> {
        let Store { writer, records } = &mut *self.store;
        writer.put(records, number)?;
        self.keys.grow(records.count());
        self.is_behind = true;
        Ok(())
    }

    fn catch_up(&mut self) -> Result<(), BenchFailure> {
        if std::mem::take(&mut self.is_behind) { self.reader.catch_up() } else { Ok(()) }
    }

    fn read(&mut self, number: u32) -> Result<(), BenchFailure> {
        self.catch_up()?;
        let value = self.reader.get(number)?;
        let is_right = value.is_some_and(|value| self.store.records.is_right(number, &value));
        if is_right { Ok(()) } else { Err(format!("a wrong value of key {number}").into()) }
    }

    fn scan(&mut self, from: u32) -> Result<(), BenchFailure> {
        self.catch_up()?;
        let count = 1 + self.keys.below(SCAN_MAX) as usize;
        let found = self.reader.scan(from, count)?;
        if self.store.records.is_range(from, count, &found) {
            Ok(())
        } else {
            Err(format!("a wrong range of {count} from key {from} on").into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_do_what_ycsb_says() {
        let share = |workload: &Workload, operation| {
            (0..100).filter(|percent| workload.operation(*percent) == operation).count()
        };
        let of = |name| WORKLOADS.iter().find(|workload| workload.name == name).unwrap();
        for (name, operation, expected) in [
            ("a", Operation::Read, 50),
            ("a", Operation::Update, 50),
            ("b", Operation::Read, 95),
            ("b", Operation::Update, 5),
            ("c", Operation::Read, 100),
            ("d", Operation::Read, 95),
            ("d", Operation::Insert, 5),
            ("e", Operation::Scan, 95),
            ("e", Operation::Insert, 5),
            ("f", Operation::Read, 50),
            ("f", Operation::Modify, 50),
        ] {
            assert_eq!(share(of(name), operation), expected, "{name}: {operation:?}");
        }
        assert_eq!(of("d").distribution, Distribution::Latest);
    }
}
