//! Trees in a file of the card's whose name becomes another file's between two requests of one question: the answer is of one of both.

use std::sync::atomic::{AtomicU64, Ordering};

use ob_nvme::initiator::block_on;
use ob_pushdown::btree::{BTree, BTreeOptions, BulkLoad, Filter, NamedPages, Shape, VALUE_LEN};
use ob_pushdown::client::{Command, CommandAnswer, Session, Transport, TransportError};
use ob_wire_nvme::NamespaceId;

use crate::lab::remote::Remote;

const KEYS: u64 = 2000;
const NAME: &str = "tree";
const VERSIONS: Filter = Filter { field: 8, low: 0, high: u64::MAX };

/// A card that replaces the file before a command.
struct Replacing {
    card: Remote,
    /// Commands until then.
    left: AtomicU64,
    version: AtomicU64,
}

impl Transport for Replacing {
    async fn execute(&self, command: Command) -> Result<CommandAnswer, TransportError> {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            let version = self.version.fetch_add(1, Ordering::Relaxed) + 1;
            self.card.replace(NAME, &tree(version));
        }
        self.card.execute(command).await
    }

    fn transfer_max(&self) -> usize {
        self.card.transfer_max()
    }

    fn exchange_max(&self) -> Option<usize> {
        self.card.exchange_max()
    }

    fn can_wait_twice(&self) -> bool {
        self.card.can_wait_twice()
    }
}

/// The same keys in each version, in nodes of another size than in the one before, with values that say which version it is.
fn tree(version: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let value = |number: u64| {
        let mut value = [0; VALUE_LEN];
        value[..8].copy_from_slice(&number.to_le_bytes());
        value[8..16].copy_from_slice(&version.to_le_bytes());
        value
    };
    let fanout = if version.is_multiple_of(2) { 3 } else { 4 };
    BulkLoad::new(Shape::new(KEYS, fanout).unwrap(), |number| number, value).write(&mut bytes).unwrap();
    bytes
}

/// Asks while the file is replaced before each command of the question in turn; how many there were. Answers say which versions they are of.
fn replaced_before_each(
    options: BTreeOptions,
    ask: &impl AsyncFn(&BTree<'_, Replacing, NamedPages<'_, Replacing>>) -> Vec<u64>,
) -> u64 {
    let card = Remote::start(vec![(NAME.to_owned(), tree(1))]);
    let card = Replacing { card, left: AtomicU64::new(0), version: AtomicU64::new(1) };
    block_on(async {
        let session = Session::begin(card, NamespaceId(1)).await.unwrap();
        let file = session.named(NAME);
        let pages = NamedPages::new(&session, &file).unwrap();
        let tree = BTree::open(&session, file, pages, options).await.unwrap();
        let card = session.transport();
        ask(&tree).await;
        for commands in 1.. {
            let before = card.version.load(Ordering::Relaxed);
            card.left.store(commands, Ordering::Relaxed);
            let versions = ask(&tree).await;
            let now = card.version.load(Ordering::Relaxed);
            let first = versions.first().copied().unwrap();
            assert!(versions.iter().all(|version| *version == first), "before {commands}: {versions:?}");
            assert!((before..=now).contains(&first), "{first} of {before} and {now}");
            if now == before {
                return commands - 1;
            }
        }
        unreachable!("a question has an end")
    })
}

fn version(value: &[u8; VALUE_LEN]) -> u64 {
    u64::from_le_bytes(value[8..16].try_into().unwrap())
}

async fn range(tree: &BTree<'_, Replacing, NamedPages<'_, Replacing>>, from: u64, limit: usize) -> Vec<u64> {
    let found = tree.range(from, u64::MAX, limit).await.unwrap();
    let keys: Vec<u64> = found.iter().map(|(key, _)| *key).collect();
    assert_eq!(keys, (from..from + limit as u64).collect::<Vec<_>>());
    found.iter().map(|(_, value)| version(value)).collect()
}

#[test]
fn a_range_of_several_requests_is_of_one_file() {
    let commands = replaced_before_each(BTreeOptions::default(), &async |tree| range(tree, 700, 150).await);
    assert!(commands >= 4, "{commands} commands");
}

#[test]
fn an_aggregate_of_several_requests_is_of_one_file() {
    let commands = replaced_before_each(BTreeOptions::default(), &async |tree| {
        let found = tree.aggregate(0, KEYS, VERSIONS).await.unwrap();
        assert_eq!((found.count, found.sum), (KEYS, KEYS * found.least.unwrap()), "{found:?}");
        vec![found.least.unwrap(), found.greatest.unwrap()]
    });
    assert!(commands >= 2, "{commands} commands");
}

#[test]
fn what_is_read_request_by_request_is_of_one_file() {
    let options = BTreeOptions { only_ordinary: true, ..BTreeOptions::default() };
    let commands = replaced_before_each(options, &async |tree| range(tree, 900, 20).await);
    assert!(commands >= 10, "{commands} commands");
    let commands =
        replaced_before_each(options, &async |tree| vec![version(&tree.get(1234).await.unwrap().0.unwrap())]);
    assert!(commands >= 4, "{commands} commands");
}
