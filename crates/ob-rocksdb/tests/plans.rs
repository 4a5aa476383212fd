//! Plans: where they begin, what they leave out, and what may be handed in for their steps.

use ob_rocksdb::{
    CacheOptions, Database, Entrance, Error, FilterSays, Finding, Found, GetPlan, Options, Sequence,
};

use crate::support::block_on;
use crate::support::golden::golden;
use crate::support::memory::MemoryFiles;

type Memory = Database<MemoryFiles>;
type Plan = GetPlan<<MemoryFiles as ob_rocksdb::Files>::File>;

fn opened(name: &str, cache: CacheOptions) -> Memory {
    let (files, _) = golden(name);
    block_on(Database::open(files, Options { cache, ..Options::default() })).unwrap()
}

/// Keys that the golden databases have.
fn keys() -> impl Iterator<Item = Vec<u8>> {
    (0..25_u8).map(|index| {
        let padding = char::from(b'a' + index % 26).to_string();
        format!("k{index:05}{}", padding.repeat([0, 1, 4, 11][usize::from(index % 4)])).into_bytes()
    })
}

fn plans(database: &Memory) -> Vec<Plan> {
    let view = database.view();
    let families = ["default", "sum", "text", "last"].map(|name| view.family(name).unwrap());
    let plan = |key: Vec<u8>| {
        families
            .iter()
            .map(move |version| version.plan_get(database.cache(), &key, Sequence::MAX).unwrap())
            .collect::<Vec<_>>()
    };
    keys().flat_map(plan).collect()
}

fn entrances(database: &Memory) -> Vec<(Entrance, FilterSays)> {
    plans(database).iter().flat_map(GetPlan::steps).map(|step| (step.from, step.filter)).collect()
}

fn read_everything(database: &Memory) {
    for plan in plans(database) {
        block_on(plan.execute_ordinary(database.reader())).unwrap();
    }
}

#[test]
fn a_plan_begins_where_memory_ends() {
    let plenty = CacheOptions::default();
    let database = opened("bloom", plenty);
    let cold = entrances(&database);
    assert!(cold.len() > 20, "{}", cold.len());
    assert!(cold.iter().all(|step| *step == (Entrance::Footer, FilterSays::NotLookedAt)), "{cold:?}");
    read_everything(&database);
    assert_eq!(entrances(&database), [], "everything is in memory");

    let nothing = CacheOptions { len_max: 0, pin_indexes: false };
    let database = opened("bloom", nothing);
    read_everything(&database);
    let forgetful = entrances(&database);
    let is_index = |step: &(Entrance, FilterSays)| {
        matches!(step, (Entrance::Index { levels: 1, .. }, FilterSays::NotLookedAt))
    };
    assert!(
        !forgetful.is_empty() && forgetful.iter().filter(|step| is_index(step)).count() > 20,
        "{forgetful:?}"
    );

    let pinned = CacheOptions { len_max: 0, pin_indexes: true };
    let database = opened("partitioned", pinned);
    read_everything(&database);
    let from_data = entrances(&database);
    let is_data = |step: &(Entrance, FilterSays)| matches!(step.0, Entrance::Data { .. });
    assert!(from_data.iter().any(is_data), "{from_data:?}");
    // Partitions are pinned as they are used: what is left of an index is of tables that a filter kept out.
    let is_partition = |step: &(Entrance, FilterSays)| matches!(step.0, Entrance::Index { .. });
    assert!(from_data.iter().all(|step| is_data(step) || is_partition(step) || step.0 == Entrance::Footer));
    let stats = database.cache().stats();
    assert!(stats.pinned_len > 0 && stats.len == 0, "{stats:?}");
}

#[test]
fn findings_may_end_where_the_lookup_does_and_not_before() {
    let database = opened("zstd", CacheOptions::default());
    // Blocks are kept here, so that the plans are the same each time.
    let other = opened("zstd", CacheOptions::default());
    let (mut early, mut refused) = (0, 0);
    for family in ["default", "sum", "text", "last"] {
        let version = database.view().family(family).unwrap();
        for key in keys() {
            let plan = || version.plan_get(database.cache(), &key, Sequence::MAX).unwrap();
            let find = |step: &ob_rocksdb::Step<_>| {
                block_on(other.reader().find(&step.file, &key, Sequence::MAX)).unwrap()
            };
            let all: Vec<Finding> = plan().steps().map(find).collect();
            let expected = block_on(plan().execute_ordinary(other.reader())).unwrap();
            let resolved = |count: usize| plan().resolve(all[..count].iter().cloned());
            let enough = (0..=all.len()).find(|count| resolved(*count).is_ok()).unwrap();
            assert_eq!(resolved(enough).unwrap(), expected);
            assert_eq!(resolved(all.len()).unwrap(), expected);
            early += usize::from(enough < all.len());
            if enough > 0 {
                assert!(matches!(resolved(enough - 1), Err(Error::Outcome(_))));
                refused += 1;
            }
        }
    }
    assert!(early > 5 && refused > 20, "{early} early, {refused} refused");
}

#[test]
fn more_findings_than_steps_are_refused() {
    let database = opened("bloom", CacheOptions::default());
    let version = database.view().family("default").unwrap();
    let plan = || version.plan_get(database.cache(), b"k00003dddddddddddZ", Sequence::MAX).unwrap();
    let steps = plan().steps().count();
    assert!(steps > 0);
    let nothing = |count| vec![Finding::default(); count];
    assert_eq!(plan().resolve(nothing(steps)), Ok(Found::Absent));
    assert!(matches!(plan().resolve(nothing(steps + 1)), Err(Error::Outcome(_))));
}

#[test]
fn some_lookups_are_sampled() {
    let (files, _) = golden("bloom");
    let sampled = |sample_one_in| {
        let options = Options { sample_one_in, ..Options::default() };
        let database = block_on(Database::open(files.clone(), options)).unwrap();
        (0..1000).filter(|_| database.is_sampled()).count()
    };
    assert_eq!([sampled(100), sampled(1), sampled(0)], [10, 1000, 0]);
}

/// Whoever reads may do so on any thread: this has only to compile.
#[test]
fn futures_can_be_sent() {
    fn is_send<T: Send>(future: T) -> T {
        future
    }
    let database = opened("bloom", CacheOptions::default());
    block_on(is_send(database.catch_up())).unwrap();
    block_on(is_send(database.get("default", b"k00000", None, None))).unwrap();
    let mut iterator = block_on(is_send(database.iterate("default", ob_rocksdb::Scan::default()))).unwrap();
    block_on(is_send(iterator.seek_to_first())).unwrap();
    block_on(is_send(iterator.next())).unwrap();
    block_on(is_send(iterator.prev())).unwrap();
    assert!(iterator.current().is_some());
    for plan in plans(&database) {
        block_on(is_send(plan.execute_ordinary(database.reader()))).unwrap();
    }
}
