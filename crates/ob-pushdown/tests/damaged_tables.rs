//! Tables of RocksDB's without checksums, with bytes that are wrong: what the program finds in them is what the reader finds.
//!
//! `OB_SEEDS=10000 cargo test -p ob-pushdown damaged_tables` damages more of them; `OB_SEED` repeats one.

use ob_nvme::initiator::block_on;
use ob_pushdown::client::Session;
use ob_pushdown::rocksdb::{Lookups, Path};
use ob_rocksdb::footer::FOOTER_LEN_MAX;
use ob_rocksdb::{Database, Options};
use ob_sim::Rng;
use ob_wire_nvme::{NamespaceId, Status};

use crate::lab::remote::Remote;
use crate::rocksdb::peer::Lookup;
use crate::rocksdb::peer::golden::golden;
use crate::rocksdb::peer::memory::MemoryFiles;
use crate::rocksdb::{NO_CACHE, Named, card};

/// Databases that are damaged where nothing else is said.
const SEEDS: u64 = 150;
/// Lookups in each.
const LOOKUPS: usize = 25;

/// Nobody checks the blocks of a table whose footer says so: up to version 5 its checksum stands alone there.
fn without_checksums(files: &MemoryFiles) -> MemoryFiles {
    let mut unchecked = files.clone();
    for name in tables(files) {
        unchecked = unchecked.with(&name, |bytes| {
            let at = bytes.len() - FOOTER_LEN_MAX;
            assert_eq!(bytes[at], 4, "XXH3");
            bytes[at] = 0;
        });
    }
    unchecked
}

fn tables(files: &MemoryFiles) -> Vec<String> {
    files.files.keys().filter(|name| name.ends_with(".sst")).cloned().collect()
}

/// Some bytes of some tables become others. Blocks of data and of the index stand first, what a table says of itself last.
fn damage(files: &MemoryFiles, random: &mut Rng) -> MemoryFiles {
    let (mut damaged, tables) = (files.clone(), tables(files));
    for _ in 0..1 + random.below(6) {
        let table = &tables[random.below(tables.len() as u64) as usize];
        damaged = damaged.with(table, |bytes| {
            let at = random.below((bytes.len() - FOOTER_LEN_MAX) as u64) as usize;
            bytes[at] = match random.below(4) {
                0 => random.below(256) as u8,
                1 => bytes[at].wrapping_add(1),
                2 => bytes[at].wrapping_sub(1),
                _ => bytes[at] ^ (1 << random.below(8)),
            };
        });
    }
    damaged
}

/// What came of lookups: answers of the card, those that had no answer by it, and those that nobody answers.
#[derive(Debug, Default)]
struct Tally {
    pushed: u32,
    ordinary: u32,
    nobody: u32,
}

async fn compare(
    session: &Session<Remote>,
    files: &MemoryFiles,
    asked: &[Lookup],
    tally: &mut Tally,
    seed: u64,
) {
    let options = Options { cache: NO_CACHE, sample_one_in: 0, attempts_max: 1, ..Options::default() };
    let named = Named { here: files.clone(), session };
    let Ok(database) = Database::open(named, options.clone()).await else { return };
    // Asked by reads alone, of files that nobody has looked into.
    let Ok(reader) = Database::open(files.clone(), options).await else { return };
    let lookups = Lookups::new(session);
    for Lookup { family, snapshot, key } in asked {
        let ordinary = reader.get(family, key, *snapshot, None).await;
        match lookups.get(&database, family, key, *snapshot, None).await {
            Ok((value, Path::Pushed)) => {
                tally.pushed += 1;
                assert_eq!(ordinary.ok(), Some(value), "OB_SEED={seed}: {key:?} at {snapshot:?} of {family}");
            }
            Ok((value, _)) => {
                tally.ordinary += 1;
                assert_eq!(ordinary.ok(), Some(value), "OB_SEED={seed}: {key:?}");
            }
            // A request is made of what all tables say of themselves; reads may end before they come upon what is damaged.
            Err(_) => tally.nobody += 1,
        }
    }
}

#[test]
fn the_program_finds_in_damaged_blocks_what_the_reader_finds() {
    let (files, answers) = golden("plain");
    let files = without_checksums(&files);
    let lookups = || answers.iter().filter_map(|line| Some(Lookup::parse(line)?.0));
    let given = |name: &str| std::env::var(name).ok().map(|number| number.parse::<u64>().unwrap());
    let seeds = given("OB_SEED").map_or(0..given("OB_SEEDS").unwrap_or(SEEDS), |seed| seed..seed + 1);
    let runs = seeds.end - seeds.start;
    let mut tally = Tally::default();
    block_on(async {
        let session = Session::begin(card(&files), NamespaceId(1)).await.unwrap();
        for seed in seeds {
            let mut random = Rng::new(seed);
            let damaged = damage(&files, &mut random);
            for name in tables(&damaged) {
                session.transport().put(&name, &damaged.files[&name]);
            }
            let first = random.below(lookups().count() as u64) as usize;
            let asked: Vec<Lookup> = lookups().cycle().skip(first).step_by(7).take(LOOKUPS).collect();
            compare(&session, &damaged, &asked, &mut tally, seed).await;
        }
        // No check of the runtime has stopped it, and it has ended by itself.
        let failures = std::mem::take(&mut *session.transport().failures.lock().unwrap());
        let wrong =
            [Status::PUSHDOWN_FAULT, Status::PUSHDOWN_FUEL, Status::PUSHDOWN_READS, Status::PUSHDOWN_TIME];
        assert!(!failures.iter().any(|failure| wrong.iter().any(|wrong| wrong.is(*failure))), "{failures:?}");
        let given_up = failures.iter().filter(|failure| Status::PUSHDOWN_PROGRAM.is(**failure)).count();
        println!("{runs} databases: {tally:?}, {given_up} given up");
        assert!(runs < SEEDS || (tally.pushed > 1000 && given_up > 20), "{tally:?}, {given_up} given up");
        let listed = session.list().await.unwrap();
        assert!(listed.iter().all(|program| program.faults == 0), "{listed:?}");
    });
}
