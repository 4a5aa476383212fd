//! A store beside a model of what it promises: a list of keys, looked through from the beginning each time.

use std::time::Duration;

use ob_core::{Instant, Refused, Revision, SessionId, Token};
use ob_volume::metadata::{
    Change, Expect, Key, KeyValue, MemoryStore, MetadataAnswer, MetadataCompletion, MetadataError,
    MetadataOp, MetadataStore, RedbStore, TRANSACTION_MAX, Transaction, Value,
};
use proptest::prelude::*;

use crate::metadata_etcd::Etcd;
use crate::support::SharedDisk;

/// What happens.
#[derive(Clone, Debug)]
enum Event {
    Get(usize),
    List {
        prefix: usize,
        after: Option<usize>,
        most: u32,
    },
    /// Changes of keys; whether each is compared with what is there, and whether something else is expected.
    Commit {
        changes: Vec<(usize, Option<u8>, Option<usize>)>,
        expectation: Expectation,
    },
    Grant(u64),
    Renew(usize),
    Revoke(usize),
    Time(u64),
    Reopen,
}

#[derive(Clone, Copy, Debug)]
enum Expectation {
    Right,
    Wrong(usize),
    /// Comparisons are left out.
    Missing,
}

const KEYS: &[&str] = &["/a", "/a/1", "/a/2", "/a/20", "/b", "/b/1"];

fn key(number: usize) -> Key {
    Key::new(KEYS[number % KEYS.len()]).unwrap()
}

fn value(byte: u8) -> Value {
    Value::new(&[byte; 3]).unwrap()
}

/// Whatever keeps to the contract: the store, and how it is told the time.
trait Subject: MetadataStore {
    fn set_time(&mut self, now: Instant);

    /// Nanoseconds that one of the model's is for it.
    fn scale(&self) -> u32 {
        1
    }

    /// Ends as its process would, and begins again; whether there is anything that could.
    fn reopen(&mut self) -> bool {
        false
    }
}

impl Subject for MemoryStore {
    fn set_time(&mut self, now: Instant) {
        self.set_time(now);
    }
}

/// A store on a disk that does everything at once.
struct OnDisk {
    store: RedbStore<SharedDisk>,
    disk: SharedDisk,
}

impl OnDisk {
    fn new() -> Self {
        let disk = SharedDisk::new(2 << 20);
        let mut store = RedbStore::create(disk.clone()).unwrap();
        assert_eq!(store.poll(), None, "it is being made until it was polled");
        Self { store, disk }
    }
}

impl MetadataStore for OnDisk {
    fn submit(&mut self, token: Token, op: MetadataOp) -> Result<(), Refused<MetadataOp>> {
        self.store.submit(token, op)
    }

    fn poll(&mut self) -> Option<MetadataCompletion> {
        self.store.poll()
    }

    fn next_due(&self) -> Option<Instant> {
        self.store.next_due()
    }
}

impl Subject for OnDisk {
    fn set_time(&mut self, now: Instant) {
        self.store.set_time(now);
    }

    fn reopen(&mut self) -> bool {
        self.store = RedbStore::open(self.disk.clone()).unwrap();
        true
    }
}

/// A nanosecond of the model is a second there, where leases are of whole ones.
impl Subject for Etcd {
    fn set_time(&mut self, now: Instant) {
        self.gateway.set_time(now.nanoseconds());
    }

    fn scale(&self) -> u32 {
        1_000_000_000
    }
}

#[derive(Default)]
struct Model {
    now: u64,
    held: Vec<(Key, Value, Revision, Option<SessionId>)>,
    /// With their length and end.
    sessions: Vec<(SessionId, u64, u64)>,
    granted: Vec<SessionId>,
    revisions: Vec<Revision>,
}

impl Model {
    fn find(&self, key: &Key) -> Option<&(Key, Value, Revision, Option<SessionId>)> {
        self.held.iter().find(|(held, ..)| held == key)
    }

    fn page(&self, prefix: &Key, after: Option<&Key>, most: u32) -> MetadataAnswer {
        let is_meant = |key: &Key| key.as_str().starts_with(prefix.as_str()) && Some(key) > after;
        let held = self.held.iter().filter(|(key, ..)| is_meant(key)).cloned();
        let mut entries: Vec<KeyValue> =
            held.map(|(key, value, revision, _)| KeyValue { key, value, revision }).collect();
        entries.sort_by(|left, right| left.key.cmp(&right.key));
        let has_more = entries.len() > most as usize;
        entries.truncate(most as usize);
        MetadataAnswer::Values { entries, has_more }
    }

    fn has(&self, session: SessionId) -> bool {
        self.sessions.iter().any(|(id, ..)| *id == session)
    }

    fn end(&mut self, session: SessionId) {
        self.sessions.retain(|(id, ..)| *id != session);
        self.held.retain(|(.., owner)| *owner != Some(session));
    }

    fn session(&self, number: usize) -> SessionId {
        let count = self.granted.len().max(1);
        self.granted.get(number % count).copied().unwrap_or(SessionId(999))
    }

    fn transaction(
        &self,
        changes: &[(usize, Option<u8>, Option<usize>)],
        expectation: Expectation,
    ) -> Transaction {
        let mut transaction = Transaction::default();
        for (number, byte, session) in changes {
            let key = key(*number);
            if !matches!(expectation, Expectation::Missing) {
                let expect =
                    self.find(&key).map_or(Expect::Absent, |(_, _, revision, _)| Expect::At(*revision));
                transaction.compare.push((key.clone(), expect));
            }
            transaction.change.push(match byte {
                Some(byte) => {
                    let session = session.map(|number| self.session(number));
                    Change::Put { key, value: value(*byte), session }
                }
                None => Change::Delete { key },
            });
        }
        if let Expectation::Wrong(which) = expectation {
            let count = transaction.compare.len().max(1);
            if let Some((_, expect)) = transaction.compare.get_mut(which % count) {
                *expect = match expect {
                    Expect::Absent => Expect::At(Revision(1)),
                    Expect::At(revision) if which % 2 == 0 => Expect::At(Revision(revision.0 + 1)),
                    Expect::At(_) => Expect::Absent,
                };
            }
        }
        transaction
    }

    /// Compares what a commit was answered with what it should be, and does it.
    fn commit(
        &mut self,
        transaction: &Transaction,
        found: &Result<MetadataAnswer, MetadataError>,
    ) -> Result<(), String> {
        let keys: Vec<&Key> = transaction.change.iter().map(Change::key).collect();
        let is_twice = keys.iter().enumerate().any(|(at, key)| keys[..at].contains(key));
        let is_uncompared =
            keys.iter().any(|key| !transaction.compare.iter().any(|(compared, _)| compared == *key));
        let unmet = transaction.compare.iter().position(|(key, expect)| {
            self.find(key).map(|(_, _, revision, _)| *revision)
                != match expect {
                    Expect::Absent => None,
                    Expect::At(revision) => Some(*revision),
                }
        });
        let is_over = transaction.change.iter().any(
            |change| matches!(change, Change::Put { session: Some(session), .. } if !self.has(*session)),
        );
        match found {
            Err(MetadataError::Malformed) if is_twice || is_uncompared => Ok(()),
            Ok(MetadataAnswer::Unmet(at)) if Some(*at) == unmet && !is_twice && !is_uncompared => Ok(()),
            Err(MetadataError::NoSession) if is_over && unmet.is_none() => Ok(()),
            Ok(MetadataAnswer::Committed(revision))
                if !(is_twice || is_uncompared || is_over) && unmet.is_none() =>
            {
                // To delete what is not there may be no change.
                let is_change = |change: &Change| {
                    matches!(change, Change::Put { .. }) || self.find(change.key()).is_some()
                };
                let has_changed = transaction.change.iter().any(is_change);
                if self.revisions.iter().any(|last| last > revision || (has_changed && last == revision)) {
                    return Err(format!("{revision} does not grow"));
                }
                self.revisions.push(*revision);
                for change in &transaction.change {
                    self.held.retain(|(key, ..)| key != change.key());
                    if let Change::Put { key, value, session } = change {
                        self.held.push((key.clone(), value.clone(), *revision, *session));
                    }
                }
                Ok(())
            }
            other => Err(format!("{transaction:?}: {other:?}")),
        }
    }
}

fn ask(store: &mut impl Subject, op: MetadataOp) -> Result<MetadataAnswer, MetadataError> {
    store.submit(Token(7), op).unwrap();
    let completion = store.poll().unwrap();
    assert_eq!(completion.token, Token(7));
    assert_eq!(store.poll(), None);
    completion.result
}

/// Does what happens to both, and says where they differ.
fn step(store: &mut impl Subject, model: &mut Model, event: &Event) -> Result<(), String> {
    let differs = |found: &dyn std::fmt::Debug| Err(format!("{event:?}: {found:?}"));
    match event {
        Event::Get(number) => {
            let found = ask(store, MetadataOp::Get { key: key(*number) });
            let expected =
                model.find(&key(*number)).map(|(_, value, revision, _)| (value.clone(), *revision));
            if found != Ok(MetadataAnswer::Value(expected)) { differs(&found) } else { Ok(()) }
        }
        Event::List { prefix, after, most } => {
            let (prefix, after) = (key(*prefix), after.map(key));
            let found =
                ask(store, MetadataOp::List { prefix: prefix.clone(), after: after.clone(), most: *most });
            let expected = model.page(&prefix, after.as_ref(), *most);
            if found == Ok(expected) { Ok(()) } else { differs(&found) }
        }
        Event::Commit { changes, expectation } => {
            let transaction = model.transaction(changes, *expectation);
            let found = ask(store, MetadataOp::Commit(transaction.clone()));
            model.commit(&transaction, &found)
        }
        Event::Grant(ttl) => {
            let length = Duration::from_nanos(*ttl) * store.scale();
            match ask(store, MetadataOp::Grant { ttl: length }) {
                Ok(MetadataAnswer::Session(session)) if !model.granted.contains(&session) => {
                    model.granted.push(session);
                    model.sessions.push((session, *ttl, model.now + ttl));
                    Ok(())
                }
                other => differs(&other),
            }
        }
        Event::Renew(number) => {
            let (session, now) = (model.session(*number), model.now);
            let found = ask(store, MetadataOp::Renew { session });
            let known = model.sessions.iter_mut().find(|(id, ..)| *id == session);
            let expected = known.map_or(Err(MetadataError::NoSession), |(_, ttl, end)| {
                *end = now + *ttl;
                Ok(MetadataAnswer::Renewed)
            });
            if found != expected { differs(&found) } else { Ok(()) }
        }
        Event::Revoke(number) => {
            let session = model.session(*number);
            let found = ask(store, MetadataOp::Revoke { session });
            let expected =
                if model.has(session) { Ok(MetadataAnswer::Revoked) } else { Err(MetadataError::NoSession) };
            model.end(session);
            if found != expected { differs(&found) } else { Ok(()) }
        }
        Event::Time(by) => {
            model.now += by;
            store.set_time(Instant::from_nanoseconds(model.now));
            let over: Vec<SessionId> =
                model.sessions.iter().filter(|(.., end)| *end <= model.now).map(|(id, ..)| *id).collect();
            over.into_iter().for_each(|session| model.end(session));
            let due = model.sessions.iter().map(|(.., end)| Instant::from_nanoseconds(*end)).min();
            if store.next_due() != due { differs(&store.next_due()) } else { Ok(()) }
        }
        Event::Reopen => {
            if store.reopen() {
                for (session, ..) in std::mem::take(&mut model.sessions) {
                    model.end(session);
                }
                store.set_time(Instant::from_nanoseconds(model.now));
            }
            Ok(())
        }
    }
}

fn run(store: &mut impl Subject, events: &[Event]) -> Result<(), String> {
    let mut model = Model::default();
    events.iter().try_for_each(|event| step(store, &mut model, event))?;
    // What is there at the end, whatever was asked for.
    (0..KEYS.len()).try_for_each(|number| step(store, &mut model, &Event::Get(number)))
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let keys = || 0..KEYS.len();
    let change = (keys(), proptest::option::weighted(0.8, any::<u8>()), proptest::option::of(0..4usize));
    let expectation = prop_oneof![
        8 => Just(Expectation::Right),
        2 => (0..8usize).prop_map(Expectation::Wrong),
        1 => Just(Expectation::Missing),
    ];
    let commit = (proptest::collection::vec(change, 0..4), expectation)
        .prop_map(|(changes, expectation)| Event::Commit { changes, expectation });
    let event = prop_oneof![
        2 => keys().prop_map(Event::Get),
        2 => (keys(), proptest::option::of(keys()), 0..4u32)
            .prop_map(|(prefix, after, most)| Event::List { prefix, after, most }),
        6 => commit,
        2 => (1..50u64).prop_map(Event::Grant),
        1 => (0..4usize).prop_map(Event::Renew),
        1 => (0..4usize).prop_map(Event::Revoke),
        2 => (0..30u64).prop_map(Event::Time),
        1 => Just(Event::Reopen),
    ];
    proptest::collection::vec(event, 1..60)
}

proptest! {
    #[test]
    fn the_store_does_as_the_model(events in events()) {
        let outcome = run(&mut MemoryStore::new(), &events);
        prop_assert_eq!(outcome, Ok(()));
    }
}

proptest! {
    #[test]
    fn the_store_over_a_gateway_does_as_the_model(events in events()) {
        let outcome = run(&mut Etcd::default(), &events);
        prop_assert_eq!(outcome, Ok(()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn the_store_on_a_disk_does_as_the_model_over_its_lives(events in events()) {
        let outcome = run(&mut OnDisk::new(), &events);
        prop_assert_eq!(outcome, Ok(()));
    }
}

/// A store with one mistake.
struct Mistaken {
    store: MemoryStore,
    mistake: Mistake,
}

#[derive(Clone, Copy, Debug)]
enum Mistake {
    ComparisonsForgotten,
    SessionsNeverEnd,
    KeysOutliveSessions,
    PageTooLong,
}

impl MetadataStore for Mistaken {
    fn submit(&mut self, token: Token, op: MetadataOp) -> Result<(), Refused<MetadataOp>> {
        let op = match (self.mistake, op) {
            (Mistake::ComparisonsForgotten, MetadataOp::Commit(mut transaction)) => {
                for (key, expect) in &mut transaction.compare {
                    let held = self.store.submit(Token(0), MetadataOp::Get { key: key.clone() });
                    held.unwrap_or_else(|_| panic!("it is full"));
                    let held = self.store.poll().map(|completion| completion.result);
                    *expect = match held {
                        Some(Ok(MetadataAnswer::Value(Some((_, revision))))) => Expect::At(revision),
                        _ => Expect::Absent,
                    };
                }
                MetadataOp::Commit(transaction)
            }
            (Mistake::KeysOutliveSessions, MetadataOp::Commit(mut transaction)) => {
                for change in &mut transaction.change {
                    if let Change::Put { session, .. } = change {
                        *session = None;
                    }
                }
                MetadataOp::Commit(transaction)
            }
            (Mistake::PageTooLong, MetadataOp::List { prefix, after, most }) => {
                MetadataOp::List { prefix, after, most: most + 1 }
            }
            (_, op) => op,
        };
        self.store.submit(token, op)
    }

    fn poll(&mut self) -> Option<MetadataCompletion> {
        self.store.poll()
    }

    fn next_due(&self) -> Option<Instant> {
        self.store.next_due()
    }
}

impl Subject for Mistaken {
    fn set_time(&mut self, now: Instant) {
        if !matches!(self.mistake, Mistake::SessionsNeverEnd) {
            self.store.set_time(now);
        }
    }
}

#[test]
fn the_model_finds_mistakes() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    for mistake in [
        Mistake::ComparisonsForgotten,
        Mistake::SessionsNeverEnd,
        Mistake::KeysOutliveSessions,
        Mistake::PageTooLong,
    ] {
        let mut runner = TestRunner::deterministic();
        let is_found = (0..200).any(|_| {
            let events = events().new_tree(&mut runner).unwrap().current();
            run(&mut Mistaken { store: MemoryStore::new(), mistake }, &events).is_err()
        });
        assert!(is_found, "{mistake:?}");
    }
}

#[test]
fn more_than_it_takes_is_handed_back() {
    let mut store = MemoryStore::new();
    let op = MetadataOp::Get { key: key(0) };
    let taken = (0..1000).take_while(|number| store.submit(Token(*number), op.clone()).is_ok()).count();
    let refused = store.submit(Token(5000), op.clone()).unwrap_err();
    assert_eq!(refused.op, op);
    let tokens: Vec<u64> = std::iter::from_fn(|| store.poll()).map(|completion| completion.token.0).collect();
    assert_eq!(tokens, (0..taken as u64).collect::<Vec<_>>());
    assert!(store.submit(Token(1), op).is_ok());
}

#[test]
fn a_transaction_that_is_too_large_is_refused() {
    let keys = (0..=TRANSACTION_MAX).map(|number| Key::new(&format!("/{number}")).unwrap());
    let compare: Vec<(Key, Expect)> = keys.map(|key| (key, Expect::Absent)).collect();
    let large = Transaction { compare: compare.clone(), change: Vec::new() };
    assert_eq!(ask(&mut MemoryStore::new(), MetadataOp::Commit(large)), Err(MetadataError::TooLarge));
    let whole = Transaction { compare: compare[1..].to_vec(), change: Vec::new() };
    assert_eq!(
        ask(&mut MemoryStore::new(), MetadataOp::Commit(whole)),
        Ok(MetadataAnswer::Committed(Revision(0)))
    );
}

#[test]
fn a_session_that_is_over_does_not_come_back() {
    let mut store = MemoryStore::new();
    let Ok(MetadataAnswer::Session(session)) =
        ask(&mut store, MetadataOp::Grant { ttl: Duration::from_secs(3) })
    else {
        panic!("no session");
    };
    store.set_time(Instant::from_nanoseconds(2_999_999_999));
    assert_eq!(ask(&mut store, MetadataOp::Renew { session }), Ok(MetadataAnswer::Renewed));
    store.set_time(Instant::from_nanoseconds(5_999_999_998));
    assert_eq!(store.sessions(), 1);
    store.set_time(Instant::from_nanoseconds(5_999_999_999));
    assert_eq!(ask(&mut store, MetadataOp::Renew { session }), Err(MetadataError::NoSession));
    // Nor does time go back.
    store.set_time(Instant::from_nanoseconds(0));
    assert_eq!(ask(&mut store, MetadataOp::Renew { session }), Err(MetadataError::NoSession));
}
