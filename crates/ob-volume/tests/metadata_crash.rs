//! A store on a device that loses its power at any write, fails, is too small, or rots.

use std::time::Duration;

use ob_core::{Device, DeviceError, DeviceOp, Instant, Revision, Token};
use ob_volume::metadata::{
    Change, Expect, Key, MetadataAnswer, MetadataError, MetadataOp, MetadataStore, RedbError, RedbStore,
    Standing, Transaction, Value,
};
use proptest::prelude::*;

use crate::support::{CrashDisk, SharedDisk, TestDisk};

const CAPACITY: u64 = 2 << 20;
/// Transactions of a life.
const COMMITS: u64 = 8;

fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

fn value(number: u64) -> Value {
    // Long enough that a few of them are several pages.
    Value::new(&number.to_le_bytes().repeat(60)).unwrap()
}

fn number_of(value: &Value) -> u64 {
    u64::from_le_bytes(*value.bytes().first_chunk().unwrap())
}

/// A store and its client: puts `/a` and `/b` to the same number each time, and a key of that number.
struct Rig {
    disk: CrashDisk,
    store: Option<RedbStore<CrashDisk>>,
    /// The last number whose commit was answered, and the last that was submitted.
    answered: u64,
    submitted: u64,
    /// The last revision that was answered.
    revision: Revision,
}

impl Rig {
    fn new(seed: u64, block_len: u32) -> Self {
        let disk = CrashDisk::new(seed, block_len, CAPACITY);
        let store = Some(RedbStore::create(disk.clone()).unwrap());
        let mut rig = Self { disk, store, answered: 0, submitted: 0, revision: Revision(0) };
        rig.life();
        rig
    }

    fn store(&mut self) -> &mut RedbStore<CrashDisk> {
        self.store.as_mut().unwrap()
    }

    /// Lets the disk go on until there is an answer; none, if the power goes.
    fn wait(&mut self) -> Option<Result<MetadataAnswer, MetadataError>> {
        loop {
            if let Some(completion) = self.store().poll() {
                return Some(completion.result);
            }
            if self.disk.is_off() {
                return None;
            }
            self.disk.pass();
        }
    }

    fn ask(&mut self, op: MetadataOp) -> Option<MetadataAnswer> {
        self.store().submit(Token(1), op).unwrap();
        self.wait().map(|result| result.unwrap())
    }

    fn get(&mut self, text: &str) -> Option<Option<(Value, Revision)>> {
        match self.ask(MetadataOp::Get { key: key(text) })? {
            MetadataAnswer::Value(value) => Some(value),
            other => panic!("{other:?}"),
        }
    }

    fn transaction(&mut self, number: u64, known: Option<Revision>) -> Transaction {
        let expect = known.map_or(Expect::Absent, Expect::At);
        let own = key(&format!("/n/{number:04}"));
        let put = |key: Key| Change::Put { key, value: value(number), session: None };
        Transaction {
            compare: vec![(key("/a"), expect), (key("/b"), expect), (own.clone(), Expect::Absent)],
            change: vec![put(key("/a")), put(key("/b")), put(own)],
        }
    }

    /// Opens it, and commits, until the power goes.
    fn life(&mut self) -> Option<()> {
        let mut known = self.get("/a")?.map(|(_, revision)| revision);
        let MetadataAnswer::Session(session) = self.ask(MetadataOp::Grant { ttl: Duration::from_secs(9) })?
        else {
            panic!("no session");
        };
        let owned = Transaction {
            compare: vec![(key("/owned"), Expect::Absent)],
            change: vec![Change::Put { key: key("/owned"), value: value(0), session: Some(session) }],
        };
        assert!(matches!(self.ask(MetadataOp::Commit(owned))?, MetadataAnswer::Committed(_)));
        for _ in 0..COMMITS {
            let number = self.submitted + 1;
            let transaction = self.transaction(number, known);
            self.submitted = number;
            match self.ask(MetadataOp::Commit(transaction))? {
                MetadataAnswer::Committed(revision) => {
                    assert!(revision > self.revision, "{revision} does not grow");
                    (self.answered, self.revision, known) = (number, revision, Some(revision));
                }
                other => panic!("{other:?}"),
            }
        }
        Some(())
    }

    /// Begins another life, whose power goes with a change if that is said.
    fn open(&mut self, cut_at: Option<u32>) {
        self.disk.count(cut_at);
        self.store = Some(RedbStore::open(self.disk.clone()).unwrap());
    }

    /// The power goes, and comes back.
    fn lose_power(&mut self) {
        self.store = None;
        self.disk.lose_power();
    }

    /// What was answered is there, and what was not is there whole or not at all.
    fn judge(&mut self) {
        let (a, b) = (self.get("/a").unwrap(), self.get("/b").unwrap());
        let number = a.as_ref().map_or(0, |(value, _)| number_of(value));
        assert_eq!(a, b, "a commit is whole");
        assert!(self.answered <= number && number <= self.submitted, "{number} of {}", self.answered);
        let prefix = key("/n/");
        let MetadataAnswer::Values { entries, has_more } =
            self.ask(MetadataOp::List { prefix, after: None, most: 1000 }).unwrap()
        else {
            panic!("no list");
        };
        let found: Vec<u64> = entries.iter().map(|entry| number_of(&entry.value)).collect();
        assert_eq!((found, has_more), ((1..=number).collect(), false));
        assert_eq!(self.get("/owned").unwrap(), None, "its session is over");
        (self.answered, self.submitted) = (number, number);
    }
}

fn every_write(block_len: u32) {
    let mut rig = Rig::new(1, block_len);
    rig.open(None);
    rig.life().unwrap();
    let changes = rig.disk.changes();
    assert!(changes > COMMITS as u32 * 2, "{changes}");
    for cut_at in 1..=changes {
        let mut rig = Rig::new(u64::from(cut_at), block_len);
        rig.open(Some(cut_at));
        assert_eq!(rig.life(), None, "the power goes at {cut_at} of {changes}");
        rig.lose_power();
        // And once more, while it opens.
        rig.open(Some(1 + cut_at % 5));
        while !rig.disk.is_off() {
            assert_eq!(rig.store().poll(), None);
            if !rig.disk.is_off() && *rig.store().standing() == Standing::Open {
                break;
            }
            rig.disk.pass();
        }
        rig.lose_power();
        rig.open(None);
        rig.judge();
        rig.life().unwrap();
        rig.judge_within();
    }
}

impl Rig {
    /// What its own life has put.
    fn judge_within(&mut self) {
        let number = self.get("/a").unwrap().map_or(0, |(value, _)| number_of(&value));
        assert_eq!((number, number), (self.answered, self.submitted));
        assert!(self.get("/owned").unwrap().is_some());
    }
}

#[test]
fn power_goes_at_any_write_of_a_store_on_blocks_of_512_bytes() {
    every_write(512);
}

#[test]
fn power_goes_at_any_write_of_a_store_on_blocks_of_4096_bytes() {
    every_write(4096);
}

fn ask(store: &mut RedbStore<SharedDisk>, op: MetadataOp) -> Result<MetadataAnswer, MetadataError> {
    store.submit(Token(1), op).unwrap();
    store.poll().unwrap().result
}

fn put(text: &str, bytes: &[u8]) -> MetadataOp {
    let (key, value) = (key(text), Value::new(bytes).unwrap());
    let change = vec![Change::Put { key: key.clone(), value, session: None }];
    MetadataOp::Commit(Transaction { compare: vec![(key, Expect::Absent)], change })
}

fn page(store: &mut RedbStore<SharedDisk>) -> Result<MetadataAnswer, MetadataError> {
    ask(store, MetadataOp::List { prefix: key("/"), after: None, most: 1024 })
}

#[test]
fn a_device_that_is_too_small_is_told_with_what_it_needs() {
    let Err(RedbError::TooSmall { needed, capacity }) = RedbStore::create(SharedDisk::new(1 << 20)).map(drop)
    else {
        panic!("a mebibyte is too small");
    };
    assert_eq!(capacity, 1 << 20);
    let mut store = RedbStore::create(SharedDisk::new(needed as usize)).unwrap();
    assert_eq!(page(&mut store).map(drop), Ok(()));
    assert!(RedbStore::create(SharedDisk::new(4096)).is_err());
}

#[test]
fn what_has_no_room_is_not_done_and_what_is_there_stays() {
    let disk = SharedDisk::new(2 << 20);
    let mut store = RedbStore::create(disk.clone()).unwrap();
    let full = (0..).find(|number| {
        let result = ask(&mut store, put(&format!("/{number:06}"), &[7; 4096]));
        match result {
            Ok(MetadataAnswer::Committed(_)) => false,
            // Surely not done.
            Err(MetadataError::Unreachable) => true,
            other => panic!("{other:?}"),
        }
    });
    let full: usize = full.unwrap();
    assert!(full > 50, "{full}");
    assert_eq!(*store.standing(), Standing::Open);
    let Ok(MetadataAnswer::Values { entries, .. }) = page(&mut store) else {
        panic!("{:?}", store.standing())
    };
    assert_eq!(entries.len(), full);
    // So it is in the next life.
    drop(store);
    let mut store = RedbStore::open(disk.clone()).unwrap();
    assert_eq!(ask(&mut store, put("/more", &[7; 4096])), Err(MetadataError::Unreachable));
    // What is taken away makes room.
    let entry = &entries[..30];
    let transaction = Transaction {
        compare: entry.iter().map(|entry| (entry.key.clone(), Expect::At(entry.revision))).collect(),
        change: entry.iter().map(|entry| Change::Delete { key: entry.key.clone() }).collect(),
    };
    assert!(matches!(ask(&mut store, MetadataOp::Commit(transaction)), Ok(MetadataAnswer::Committed(_))));
    for number in 0..20 {
        let result = ask(&mut store, put(&format!("/again/{number}"), &[8; 4096]));
        assert!(matches!(result, Ok(MetadataAnswer::Committed(_))), "{number}: {result:?}");
    }
}

#[test]
fn after_an_error_of_the_device_nobody_knows_and_it_opens_anew() {
    let disk = SharedDisk::new(2 << 20);
    let mut store = RedbStore::create(disk.clone()).unwrap();
    let Ok(MetadataAnswer::Session(session)) =
        ask(&mut store, MetadataOp::Grant { ttl: Duration::from_secs(1) })
    else {
        panic!("no session");
    };
    ask(&mut store, put("/first", b"1")).unwrap();
    for is_flush in [false, true] {
        disk.fail(move |op| {
            let is_meant = matches!(op, DeviceOp::Flush) == is_flush && !matches!(op, DeviceOp::Read { .. });
            is_meant.then_some(DeviceError::Io)
        });
        assert_eq!(ask(&mut store, put("/second", b"2")), Err(MetadataError::Unknown));
        assert_eq!(*store.standing(), Standing::Broken(RedbError::Device(DeviceError::Io)));
        disk.heal();
        store.set_time(store.next_due().unwrap());
        assert_eq!(*store.standing(), Standing::Open);
        let Ok(MetadataAnswer::Values { entries, .. }) = page(&mut store) else {
            panic!("{:?}", store.standing())
        };
        assert!(entries.iter().any(|entry| entry.key == key("/first")));
    }
    assert_eq!(ask(&mut store, MetadataOp::Renew { session }), Err(MetadataError::NoSession));
}

/// What an earlier life was late with is awaited before the next one reads.
#[test]
fn nothing_of_an_earlier_life_is_on_its_way_when_the_next_one_reads() {
    let disk = SharedDisk::new(2 << 20);
    let mut store = RedbStore::create(disk.clone()).unwrap();
    ask(&mut store, put("/first", b"1")).unwrap();
    let mut writes = 0;
    disk.fail(move |op| {
        writes += u32::from(matches!(op, DeviceOp::Write { .. }));
        (writes == 1).then_some(DeviceError::Io)
    });
    // All but the first write of the batch are late.
    let mut seen = 0;
    disk.hold(move |op| {
        seen += u32::from(matches!(op, DeviceOp::Write { .. }));
        seen > 1 && matches!(op, DeviceOp::Write { .. })
    });
    store.submit(Token(1), put("/second", &[2; 4096])).unwrap();
    assert_eq!(store.poll().unwrap().result, Err(MetadataError::Unknown));
    assert_eq!(store.next_due(), None, "the device wakes whoever waits for it");
    store.set_time(Instant::from_nanoseconds(5_000_000_000));
    assert!(matches!(store.standing(), Standing::Broken(_)), "{:?}", store.standing());
    disk.heal();
    disk.release();
    store.set_time(Instant::from_nanoseconds(60_000_000_000));
    assert_eq!(*store.standing(), Standing::Open);
}

#[test]
fn what_is_no_store_is_not_opened() {
    let standing = |disk: &SharedDisk| {
        let mut store = RedbStore::open(disk.clone()).unwrap();
        let result = page(&mut store);
        assert_eq!(result, Err(MetadataError::Damaged));
        store.standing().clone()
    };
    let disk = SharedDisk::new(2 << 20);
    assert!(matches!(standing(&disk), Standing::Failed(RedbError::Damaged(_))));
    drop(RedbStore::create(disk.clone()).unwrap());
    // It was never written: creating it is over when it answers.
    assert!(matches!(standing(&disk), Standing::Failed(RedbError::Damaged(_))));
    let mut store = RedbStore::create(disk.clone()).unwrap();
    page(&mut store).unwrap();
    assert_eq!(disk.info().block_len, 4096);
    let mut next = RedbStore::open(disk.clone()).unwrap();
    assert_eq!(page(&mut next).map(drop), Ok(()));
    disk.clear(0, 4096);
    assert!(matches!(standing(&disk), Standing::Failed(RedbError::Damaged(_))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    /// Whatever rots is found, or did not count: a store never goes back, and never panics.
    #[test]
    fn rot_is_found_or_does_not_matter(
        commits in 1..30u64,
        flips in proptest::collection::vec((0.0..1.0f64, proptest::bool::weighted(0.3)), 1..6),
        is_early in any::<bool>(),
    ) {
        let disk = SharedDisk::new(2 << 20);
        let mut store = RedbStore::create(disk.clone()).unwrap();
        for number in 0..commits {
            ask(&mut store, put(&format!("/{number}"), &number.to_le_bytes().repeat(number as usize * 9 + 1))).unwrap();
        }
        let before = page(&mut store);
        drop(store);
        for (place, is_wiped) in flips {
            // Most of what counts lies in front.
            let within = if is_early { 64.0 * 4096.0 } else { f64::from(2 << 20) };
            let at = (place * within) as usize;
            if is_wiped { disk.clear(at / 4096 * 4096, 4096) } else { disk.flip(at) }
        }
        let mut store = RedbStore::open(disk.clone()).unwrap();
        match page(&mut store) {
            Err(error) => prop_assert_eq!(error, MetadataError::Damaged),
            found => prop_assert_eq!(found, before),
        }
    }

    /// Nor by what was never a store.
    #[test]
    fn garbage_behind_a_head_that_is_right_is_refused(seed in any::<u64>(), from in 0..40usize, pages in 1..40usize) {
        let disk = SharedDisk::new(2 << 20);
        let mut store = RedbStore::create(disk.clone()).unwrap();
        for number in 0..10 {
            ask(&mut store, put(&format!("/{number}"), &[number; 500])).unwrap();
        }
        let before = page(&mut store);
        drop(store);
        let mut state = seed | 1;
        for at in (4096 + from * 4096..4096 + (from + pages) * 4096).step_by(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            if state & 3 == 0 {
                disk.flip(at + (state >> 8) as usize % 8);
            }
        }
        let mut store = RedbStore::open(disk.clone()).unwrap();
        match page(&mut store) {
            Err(error) => prop_assert_eq!(error, MetadataError::Damaged),
            found => prop_assert_eq!(found, before),
        }
    }
}
