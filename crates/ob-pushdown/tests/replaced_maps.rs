//! Trees in a file of the client's own file system that lies elsewhere, with other content, by the next request of one question: the answer is of
//! one version.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ob_nvme::initiator::block_on;
use ob_pushdown::btree::{BTree, BTreeOptions, BulkLoad, Filter, Pages, Shape, VALUE_LEN};
use ob_pushdown::client::{
    Command, CommandAnswer, FileMap, MapExtent, MapSource, Session, Transport, TransportError,
};
use ob_wire_nvme::NamespaceId;

use crate::lab::remote::Remote;

/// Two versions have room beside each other in the namespace of the lab.
const KEYS: u64 = 2000;
const VERSIONS: Filter = Filter { field: 8, low: 0, high: u64::MAX };

/// The file as its file system has it.
struct OnDisk {
    /// Its version and its bytes.
    now: Mutex<(u64, Vec<u8>)>,
    /// Bytes of the half of the namespace in which every other version lies.
    half: u64,
}

impl OnDisk {
    fn version(&self) -> u64 {
        self.now.lock().unwrap().0
    }
}

impl MapSource for OnDisk {
    fn current(&self) -> Option<Arc<FileMap>> {
        let now = self.now.lock().unwrap();
        let (version, len) = (now.0, now.1.len() as u64);
        let extents =
            vec![MapExtent { at: 0, offset: version % 2 * self.half, len: len.next_multiple_of(512) }];
        Some(Arc::new(FileMap { namespace: NamespaceId(1), version, identity: 1, len, extents }))
    }
}

impl Pages for OnDisk {
    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, String> {
        let now = self.now.lock().unwrap();
        let rest = now.1.get(offset as usize..).unwrap_or_default();
        Ok(rest[..len.min(rest.len())].to_vec())
    }
}

/// A card before whose next commands the file becomes another.
struct Moving {
    card: Remote,
    file: Arc<OnDisk>,
    /// Commands until then.
    left: AtomicU64,
}

impl Moving {
    fn move_on(&self) {
        let version = self.file.version() + 1;
        let bytes = tree(version);
        self.card.write_disk(version % 2 * self.file.half, &bytes);
        *self.file.now.lock().unwrap() = (version, bytes);
    }
}

impl Transport for Moving {
    async fn execute(&self, command: Command) -> Result<CommandAnswer, TransportError> {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.move_on();
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

/// Asks while the file moves before each command of the question in turn; how many there were. Answers say which versions they are of.
fn moved_before_each(ask: &impl AsyncFn(&BTree<'_, Moving, Arc<OnDisk>>) -> Vec<u64>) -> u64 {
    let half = tree(1).len().max(tree(2).len()).next_multiple_of(4096) as u64;
    let file = Arc::new(OnDisk { now: Mutex::new((0, Vec::new())), half });
    let card = Moving { card: Remote::start(Vec::new()), file: Arc::clone(&file), left: AtomicU64::new(0) };
    card.move_on();
    block_on(async {
        let session = Session::begin(card, NamespaceId(1)).await.unwrap();
        let mapped = session.mapped(file.clone());
        let tree = BTree::open(&session, mapped, file.clone(), BTreeOptions::default()).await.unwrap();
        ask(&tree).await;
        for commands in 1.. {
            let before = file.version();
            session.transport().left.store(commands, Ordering::Relaxed);
            let versions = ask(&tree).await;
            let now = file.version();
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

#[test]
fn a_range_of_several_requests_is_of_one_version() {
    let commands = moved_before_each(&async |tree| {
        let found = tree.range(10, u64::MAX, 120).await.unwrap();
        assert_eq!(found.iter().map(|(key, _)| *key).collect::<Vec<_>>(), (10..130).collect::<Vec<_>>());
        found.iter().map(|(_, value)| u64::from_le_bytes(value[8..16].try_into().unwrap())).collect()
    });
    assert!(commands >= 3, "{commands} commands");
}

#[test]
fn an_aggregate_of_several_requests_is_of_one_version() {
    let commands = moved_before_each(&async |tree| {
        let found = tree.aggregate(0, KEYS, VERSIONS).await.unwrap();
        assert_eq!((found.count, found.sum), (KEYS, KEYS * found.least.unwrap()), "{found:?}");
        vec![found.least.unwrap(), found.greatest.unwrap()]
    });
    assert!(commands >= 2, "{commands} commands");
}
