//! Storage functions, by a real card: with our initiator, over files by name and over a namespace by maps.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used)] // A test stops at the first thing that is not as it should be.

use crate::support;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use ob_nvme::initiator::{Initiator, Namespace, Options, block_on};
use ob_pushdown::btree::{
    Aggregate, BTree, BTreeOptions, BulkLoad, Filter, NODE_LEN, NamespacePages, Pages, Path, Shape, VALUE_LEN,
};
use ob_pushdown::client::{
    Command, CommandAnswer, Detour, FileMap, Hold, MapExtent, MapSource, OnEnd, PushError, Read, Session,
    Transport, TransportError, name_by_content,
};
use ob_pushdown::kernel::MapKeeper;
use ob_wire_nvme::pushdown::Function;
use ob_wire_nvme::{NamespaceId, Status};
use support::kv::wait_until;
use support::{Place, Program, number_after};

const NQN: &str = "nqn.2026-11.io.outboard:card";
const GET: &[u8] = include_bytes!("../../../examples/programs/bpfkv_get.o");
const COUNT: &[u8] = include_bytes!("../../../examples/programs/count_lines.o");
/// Bytes of the scratch of `bpfkv_get`: key, whether it is there, where, and the value.
const ANSWER: u32 = 24 + VALUE_LEN as u32;
const KEYS: u64 = 5000;
pub(crate) const CONFIG: &str = "[nvme]\nlisten = \"127.0.0.1:0\"\ndiscovery = \"127.0.0.1:0\"\ndevice = \"memory\"\nsize = \"64MiB\"\n[status]\nlisten = \"127.0.0.1:0\"\n";

pub(crate) struct Card {
    pub(crate) place: Place,
    _program: Program,
    pub(crate) address: String,
}

impl Card {
    pub(crate) fn start(place: Place) -> Self {
        let mut program = place.start(&["card"]);
        let line = program.wait_for("The card is ready");
        let address = format!("127.0.0.1:{}", number_after(&line, "nvme on 127.0.0.1:"));
        Self { place, _program: program, address }
    }

    /// A command about the card's files.
    pub(crate) fn files(&self, arguments: &[&str]) {
        let place = ["--config", "outboard.toml", "--data", "data"];
        self.run(&[&["files"], arguments, &place].concat());
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> String {
        let output = self.place.output(arguments);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {told}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn pushdown(&self, arguments: &[&str]) -> String {
        self.run(&[&["pushdown"], arguments, &["--address", &self.address]].concat())
    }

    pub(crate) fn refused(&self, arguments: &[&str]) -> String {
        let output = self.place.output(&[&["pushdown"], arguments, &["--address", &self.address]].concat());
        assert!(!output.status.success(), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    pub(crate) fn connect(&self, host: u8) -> Initiator {
        let options = Options::new(self.address.parse().unwrap(), NQN, [host; 16]).unwrap();
        block_on(Initiator::connect(options)).unwrap()
    }
}

fn key(number: u64) -> u64 {
    7 + 3 * number
}

fn value(number: u64, tag: u8) -> [u8; VALUE_LEN] {
    let mut value = [tag; VALUE_LEN];
    value[..8].copy_from_slice(&number.to_le_bytes());
    value
}

/// A tree of five levels.
fn tree(tag: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    let shape = Shape::new(KEYS, 6).unwrap();
    assert_eq!(shape.levels(), 5);
    BulkLoad::new(shape, key, |number| value(number, tag)).write(&mut bytes).unwrap();
    bytes
}

/// What the tree has for a key, by the card.
async fn get<T: Transport>(
    session: &Session<T>,
    query: &ob_pushdown::client::Query,
    key: u64,
) -> Result<Option<[u8; VALUE_LEN]>, PushError> {
    let first = Read { file: 0, offset: 0, len: NODE_LEN as u32 };
    let answer = session.ask(query, first, &key.to_le_bytes(), ANSWER).await?;
    assert_eq!(answer.scratch.len(), ANSWER as usize);
    assert_eq!(answer.scratch[..8], key.to_le_bytes());
    let is_found = answer.scratch[8] != 0;
    assert_eq!(answer.reads, if is_found { 6 } else { answer.reads });
    Ok(is_found.then(|| answer.scratch[24..].try_into().unwrap()))
}

fn put(card: &Card, bytes: &[u8], name: &str) {
    let local: PathBuf = card.place.path().join("tree.local");
    std::fs::write(&local, bytes).unwrap();
    card.files(&["put", local.to_str().unwrap(), &format!("/pushdown/{name}")]);
}

#[test]
fn a_tree_of_the_cards_files_is_looked_up_by_name() {
    let card = Card::start(Place::with_config(CONFIG));
    card.files(&["mkdir", "/pushdown"]);
    put(&card, &tree(1), "tree");
    let initiator = card.connect(1);
    block_on(async {
        let session = Session::begin(initiator, NamespaceId(1)).await.unwrap();
        let program = session.program("bpfkv_get", Some(GET.to_vec()));
        let query = session.query(&program, &[session.named("tree")]).unwrap();
        for number in (0..KEYS).step_by(97) {
            let found = get(&session, &query, key(number)).await.unwrap();
            assert_eq!(found, Some(value(number, 1)));
            assert_eq!(get(&session, &query, key(number) + 1).await.unwrap(), None);
        }
        let counts = session.counts();
        assert_eq!((counts.detours, counts.renewed), (0, 0));
        // A handful to begin with, then one command for each chain.
        assert!(counts.commands <= counts.pushed + 8, "{counts:?}");
        let missing = session.query(&program, &[session.named("nothing")]).unwrap();
        let refused = get(&session, &missing, 1).await;
        assert_eq!(refused, Err(PushError::NoSuchFile("nothing".to_owned())));
        let outside = session.query(&program, &[session.named("../kv")]).unwrap();
        assert!(get(&session, &outside, 1).await.is_err());
        // Another tree takes its name: the file that is open is gone, and the one of that name is found instead.
        put(&card, &tree(2), "tree");
        assert_eq!(get(&session, &query, key(1)).await.unwrap(), Some(value(1, 2)));
    });
}

/// A file in a namespace, in pieces that lie apart and in another order.
struct Scattered {
    map: Mutex<Option<Arc<FileMap>>>,
}

impl MapSource for Scattered {
    fn current(&self) -> Option<Arc<FileMap>> {
        self.map.lock().unwrap().clone()
    }
}

/// Writes a file in pieces of four blocks, so that nodes of a tree are all over, and reads of values cross from one to the next.
async fn scatter(namespace: &Namespace, bytes: &[u8]) -> Vec<MapExtent> {
    let piece = 4 * namespace.block_len() as usize;
    let count = bytes.len().div_ceil(piece) as u64;
    let mut extents = Vec::new();
    for (number, part) in (0..).zip(bytes.chunks(piece)) {
        let place = (number * 7919 % count) * 2 + 1;
        let mut part = part.to_vec();
        part.resize(piece, 0);
        namespace.write(place * 4, part).await.unwrap();
        let (at, offset) = (number * piece as u64, place * piece as u64);
        extents.push(MapExtent { at, offset, len: piece as u64 });
    }
    extents
}

#[test]
fn a_tree_in_a_namespace_is_looked_up_by_its_map() {
    let card = Card::start(Place::with_config(CONFIG));
    let initiator = card.connect(1);
    block_on(async {
        let namespace = initiator.namespace(NamespaceId(1)).await.unwrap();
        let bytes = tree(3);
        let extents = scatter(&namespace, &bytes).await;
        let map = |version| FileMap {
            namespace: NamespaceId(1),
            version,
            identity: 12,
            len: bytes.len() as u64,
            extents: extents.clone(),
        };
        let source = Arc::new(Scattered { map: Mutex::new(Some(Arc::new(map(1)))) });
        let session = Session::begin(initiator.clone(), NamespaceId(1)).await.unwrap();
        let program = session.program("bpfkv_get/bpfkv_get", Some(GET.to_vec()));
        let query = session.query(&program, &[session.mapped(source.clone())]).unwrap();
        for number in (0..KEYS).step_by(83) {
            assert_eq!(get(&session, &query, key(number)).await.unwrap(), Some(value(number, 3)));
        }
        // Another version is sent before the next request; without one, nothing is.
        *source.map.lock().unwrap() = Some(Arc::new(map(2)));
        assert_eq!(get(&session, &query, key(9)).await.unwrap(), Some(value(9, 3)));
        *source.map.lock().unwrap() = None;
        assert_eq!(get(&session, &query, key(9)).await, Err(PushError::Detour(Detour::Unmapped)));
        *source.map.lock().unwrap() = Some(Arc::new(map(3)));
        assert_eq!(get(&session, &query, key(10)).await.unwrap(), Some(value(10, 3)));
        let counts = session.counts();
        assert_eq!((counts.changed, counts.unmapped, counts.discarded), (0, 1, 0));
        // Another host has neither the program nor the files, whatever numbers it says.
        let other = Session::begin(card.connect(2), NamespaceId(1)).await.unwrap();
        assert_eq!(other.list().await.unwrap(), []);
        assert_eq!(session.list().await.unwrap().len(), 1);
    });
}

#[test]
fn programs_are_loaded_listed_run_and_taken_out_from_a_shell() {
    let card = Card::start(Place::with_config(CONFIG));
    card.files(&["mkdir", "/pushdown"]);
    put(&card, &tree(5), "tree");
    assert!(card.pushdown(&["ls"]).contains("no programs there"));
    let object = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/programs/bpfkv_get.o");
    assert!(card.pushdown(&["load", object]).contains("bpfkv_get/bpfkv_get"));
    let run = ["run", "bpfkv_get", "--file", "tree", "--length", "512", "--u64", "10", "--answer", "88"];
    let told = card.pushdown(&run);
    assert!(told.starts_with("6 reads, 88 bytes\n0000  0a 00 00 00 00 00 00 00 01"), "{told}");
    let json: serde_json::Value =
        serde_json::from_str(&card.pushdown(&[&run[..], &["--json"]].concat())).unwrap();
    assert_eq!(json["reads"], 6);
    assert_eq!(json["scratch"].as_str().unwrap().len(), 176);
    let listed: serde_json::Value = serde_json::from_str(&card.pushdown(&["ls", "--json"])).unwrap();
    assert_eq!(listed[0]["calls"], 12);
    let told = card.refused(&["run", "bpfkv_get", "--file", "no-such", "--length", "512"]);
    assert!(
        told.contains("no file `no-such`") && told.contains("hint: names are below the folder"),
        "{told}"
    );
    let told = card.refused(&[&run[..], &["--reads", "5"]].concat());
    assert!(
        told.contains("all the reads that it may") && told.contains("hint: --reads allows more"),
        "{told}"
    );
    let text = card.place.path().join("text.o");
    std::fs::write(&text, "no object").unwrap();
    let told = card.refused(&["load", text.to_str().unwrap()]);
    assert!(told.contains("the card refuses the object"), "{told}");
    assert!(card.pushdown(&["rm", "bpfkv_get"]).contains("no programs there"));
    let told = card.refused(&run);
    assert!(
        told.contains("does not keep the program") && told.contains("hint: `outboard pushdown ls`"),
        "{told}"
    );
}

/// What can be said without a kernel that has connected something; `cargo xtask kernel pushdown` has one.
#[test]
fn a_device_of_the_kernels_is_asked_for_in_words_that_help() {
    let place = Place::with_config(CONFIG);
    let refused = |arguments: &[&str]| {
        let output = place.output(&[&["pushdown"], arguments].concat());
        assert!(!output.status.success(), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    for (device, problem, hint) in [
        ("/dev/no-such-device", "this machine has no device /dev/no-such-device", "`nvme connect` makes one"),
        ("nvme4711n4711", "this machine has no device nvme4711n4711", "`ls /dev/nvme*n*` shows"),
        (
            "/dev/null",
            "/dev/null is no NVMe namespace",
            "such as /dev/nvme0n1, also for files of its partitions",
        ),
        ("nvme0n1p1", "nvme0n1p1 is no NVMe namespace", "a whole namespace is meant"),
    ] {
        let told = refused(&["ls", "--device", device]);
        assert!(told.contains(problem) && told.contains(hint), "{told}");
    }
    for other in ["--address=127.0.0.1:1", "--nsid=2", "--hostnqn=nqn.2026-01.example:x", "--timeout=1s"] {
        let told = refused(&["ls", "--device", "/dev/null", other]);
        assert!(told.contains("cannot be used with"), "{told}");
    }
    let told = refused(&["run", "count_lines", "--mounted", "/mnt/file", "--length", "512"]);
    assert!(told.contains("--device"), "{told}");
    let told = refused(&["run", "count_lines", "--length", "512"]);
    assert!(told.contains("--file") && told.contains("required"), "{told}");
}

/// A program that asks for one read after the other, to the end of the file and no further.
#[test]
fn a_whole_file_is_read_through_by_one_request() {
    let card = Card::start(Place::with_config(CONFIG));
    card.files(&["mkdir", "/pushdown"]);
    let text: String = (0..20_000).map(|number| format!("{number}\n")).collect();
    put(&card, text.as_bytes(), "text");
    block_on(async {
        let session = Session::begin(card.connect(1), NamespaceId(1)).await.unwrap();
        let program = session.program("count_lines", Some(COUNT.to_vec()));
        let query = session.query(&program, &[session.named("text")]).unwrap().with_reads_max(100);
        for len in [1000, 2048, 4096] {
            let first = Read { file: 0, offset: 0, len };
            let answer = session.ask(&query, first, &1_000_000_u64.to_le_bytes(), 40).await;
            let reads = text.len().div_ceil(len as usize) as u32 + 1;
            if reads > 100 {
                assert_eq!(answer, Err(PushError::Detour(Detour::Reads)));
                continue;
            }
            let answer = answer.unwrap();
            let word = |at: usize| u64::from_le_bytes(answer.scratch[8 * at..8 * at + 8].try_into().unwrap());
            assert_eq!((word(1), word(2), word(4)), (20_000, 5, text.len() as u64));
            assert_eq!(answer.reads, reads);
        }
    });
}

/// The same questions by requests, with levels kept here or not, and by ordinary reads alone.
#[test]
fn a_tree_answers_the_same_whoever_is_asked() {
    let card = Card::start(Place::with_config(CONFIG));
    let initiator = card.connect(1);
    block_on(async {
        let namespace = initiator.namespace(NamespaceId(1)).await.unwrap();
        let bytes = tree(4);
        let extents = scatter(&namespace, &bytes).await;
        let map =
            FileMap { namespace: NamespaceId(1), version: 1, identity: 1, len: bytes.len() as u64, extents };
        let source = Arc::new(Scattered { map: Mutex::new(Some(Arc::new(map))) });
        let session = Session::begin(initiator.clone(), NamespaceId(1)).await.unwrap();
        let open = |options: BTreeOptions| {
            let pages = NamespacePages::new(namespace.clone(), source.clone());
            BTree::open(&session, session.mapped(source.clone()), pages, options)
        };
        let pushed = open(BTreeOptions::default()).await.unwrap();
        let cached = open(BTreeOptions { cached_levels: 3, ..BTreeOptions::default() }).await.unwrap();
        let whole = open(BTreeOptions { cached_levels: 9, ..BTreeOptions::default() }).await.unwrap();
        let ordinary = open(BTreeOptions { only_ordinary: true, ..BTreeOptions::default() }).await.unwrap();
        assert_eq!((pushed.cached_nodes(), cached.cached_nodes()), (0, 1 + 4 + 24));
        for asked in [0, 6, 7, 8, 9, 10, 3000, key(KEYS - 1), key(KEYS), u64::MAX] {
            let (expected, path) = ordinary.get(asked).await.unwrap();
            assert_eq!(path, Path::Ordinary);
            assert_eq!(
                expected.is_some(),
                asked >= 7 && (asked - 7) % 3 == 0 && asked < key(KEYS),
                "{asked}"
            );
            assert_eq!(pushed.get(asked).await.unwrap(), (expected, Path::Pushed));
            for tree in [&cached, &whole] {
                assert_eq!(tree.get(asked).await.unwrap().0, expected);
            }
        }
        let keys: Vec<u64> = (0..100).map(|number| key(number * 47)).collect();
        assert_eq!(pushed.multi_get(&keys).await.unwrap(), ordinary.multi_get(&keys).await.unwrap());
        for (from, to, limit) in [
            (0, 100, 1000),
            (50, 49, 9),
            (7, 7, 1),
            (1000, 1500, 46),
            (1000, 1500, 47),
            (0, u64::MAX, 300),
            (14_900, u64::MAX, 500),
        ] {
            let expected = ordinary.range(from, to, limit).await.unwrap();
            for tree in [&pushed, &cached, &whole] {
                assert_eq!(tree.range(from, to, limit).await.unwrap(), expected, "{from} to {to}, {limit}");
            }
        }
        assert_eq!(ordinary.range(0, u64::MAX, usize::MAX).await.unwrap().len() as u64, KEYS);
        for (from, to) in [(0, u64::MAX), (8, 8), (100, 2000), (u64::MAX, 0)] {
            let filter = Filter { field: 0, low: 50, high: 400 };
            let expected = ordinary.aggregate(from, to, filter).await.unwrap();
            assert_eq!(pushed.aggregate(from, to, filter).await.unwrap(), expected);
            assert_eq!(cached.aggregate(from, to, filter).await.unwrap(), expected);
        }
        let filter = Filter { field: 0, low: 0, high: u64::MAX };
        let all = pushed.aggregate(0, u64::MAX, filter).await.unwrap();
        let sum = KEYS * (KEYS - 1) / 2;
        assert_eq!(all, Aggregate { count: KEYS, sum, least: Some(0), greatest: Some(KEYS - 1) });
        assert_eq!(pushed.counts().ordinary + pushed.counts().reads, 0, "the card has answered all of it");
    });
}

/// A tree of so many keys, in a namespace.
async fn placed(namespace: &Namespace, keys: u64, tag: u8, version: u64) -> Arc<FileMap> {
    let mut bytes = Vec::new();
    let load = BulkLoad::new(Shape::new(keys, 6).unwrap(), key, |number| value(number, tag));
    load.write(&mut bytes).unwrap();
    let extents = scatter(namespace, &bytes).await;
    let (len, namespace) = (bytes.len() as u64, NamespaceId(1));
    Arc::new(FileMap { namespace, version, identity: 1, len, extents })
}

#[test]
fn a_cold_card_answers_many_at_once_and_trees_of_any_size() {
    let card = Card::start(Place::with_config(CONFIG));
    let initiator = card.connect(1);
    block_on(async {
        let namespace = initiator.namespace(NamespaceId(1)).await.unwrap();
        let session = Session::begin(initiator.clone(), NamespaceId(1)).await.unwrap();
        for keys in (1..=9).chain([60]) {
            let map = placed(&namespace, keys, 7, 1).await;
            let source = Arc::new(Scattered { map: Mutex::new(Some(map)) });
            let pages = NamespacePages::new(namespace.clone(), source.clone());
            let file = session.mapped(source.clone());
            let tree = BTree::open(&session, file, pages, BTreeOptions::default()).await.unwrap();
            let asked: Vec<u64> = (0..60).map(key).collect();
            let expected: Vec<_> = (0..60).map(|number| (number < keys).then(|| value(number, 7))).collect();
            assert_eq!(tree.multi_get(&asked).await.unwrap(), expected, "{keys} keys");
            assert_eq!(tree.counts().pushed, 60, "{keys} keys: {:?}", tree.last_obstacle());
        }
        // The program was loaded once.
        let loaded = session.list().await.unwrap();
        assert_eq!(loaded.len(), 1, "{loaded:?}");
        assert_eq!(loaded[0].faults, 0);
    });
}

#[test]
fn levels_that_are_kept_are_those_of_the_file_as_it_is() {
    let card = Card::start(Place::with_config(CONFIG));
    let initiator = card.connect(1);
    block_on(async {
        let namespace = initiator.namespace(NamespaceId(1)).await.unwrap();
        let session = Session::begin(initiator.clone(), NamespaceId(1)).await.unwrap();
        let source = Arc::new(Scattered { map: Mutex::new(Some(placed(&namespace, KEYS, 1, 1).await)) });
        let pages = NamespacePages::new(namespace.clone(), source.clone());
        let options = BTreeOptions { cached_levels: 3, ..BTreeOptions::default() };
        let tree = BTree::open(&session, session.mapped(source.clone()), pages, options).await.unwrap();
        assert!(tree.cached_nodes() > 0);
        assert_eq!(tree.get(key(4000)).await.unwrap(), (Some(value(4000, 1)), Path::Pushed));
        // Fewer keys: the nodes below the first levels lie elsewhere.
        for (version, keys) in [(2, 40), (3, 700), (4, 3)] {
            *source.map.lock().unwrap() = None;
            let map = placed(&namespace, keys, version as u8, version).await;
            *source.map.lock().unwrap() = Some(map);
            for number in 0..keys + 10 {
                let expected = (number < keys).then(|| value(number, version as u8));
                assert_eq!(tree.get(key(number)).await.unwrap().0, expected, "{keys} keys, {number}");
            }
            let all = tree.range(0, u64::MAX, usize::MAX).await.unwrap();
            assert_eq!(all.len() as u64, keys);
        }
        assert!(tree.counts().pushed > 700, "{:?}", tree.counts());
    });
}

/// A file that is held by those who read it.
struct Held {
    map: Mutex<Arc<FileMap>>,
    holds: Arc<()>,
}

impl MapSource for Held {
    fn current(&self) -> Option<Arc<FileMap>> {
        Some(self.map.lock().unwrap().clone())
    }

    fn hold(&self, version: u64) -> Option<Hold> {
        (self.version() == Some(version)).then(|| Hold::new(self.holds.clone()))
    }
}

/// Ordinary reads of a namespace hold the file, and are not believed if it moves all the same while they are under way.
#[test]
fn ordinary_reads_of_a_file_that_moves_meanwhile_are_not_believed() {
    let card = Card::start(Place::with_config(CONFIG));
    let initiator = card.connect(1);
    block_on(async {
        let namespace = initiator.namespace(NamespaceId(1)).await.unwrap();
        let map = placed(&namespace, 40, 1, 1).await;
        let (len, holds) = (map.len as usize, Arc::new(()));
        assert!(map.extents.len() > 1);
        let source = Arc::new(Held { map: Mutex::new(map.clone()), holds: holds.clone() });
        let pages = NamespacePages::new(namespace.clone(), source.clone());
        let whole = pages.read(0, len).await.unwrap();
        assert_eq!((whole.len(), Arc::strong_count(&holds)), (len, 2), "nobody holds it any more");
        let mut read = Box::pin(pages.read(0, len));
        let mut context = Context::from_waker(Waker::noop());
        assert!(read.as_mut().poll(&mut context).is_pending(), "its first part is under way");
        assert_eq!(Arc::strong_count(&holds), 3, "it is held");
        *source.map.lock().unwrap() = Arc::new(FileMap { version: 2, ..(*map).clone() });
        assert_eq!(read.await, Err("the file changes".to_owned()));
        assert_eq!(Arc::strong_count(&holds), 2);
        assert_eq!(pages.read(0, len).await, Ok(whole), "it may be read again");
    });
}

/// A map that takes as long to be made as the test wants, and that knows in which threads it was.
struct Slow {
    made: Mutex<Option<Arc<FileMap>>>,
    to_make: Mutex<FileMap>,
    makers: Mutex<Vec<std::thread::ThreadId>>,
    /// Who makes one in another thread than the test's waits for this.
    gate: Mutex<()>,
    test: std::thread::ThreadId,
    /// Who is to hear that a map ends.
    told: Mutex<Option<OnEnd>>,
}

impl MapSource for Slow {
    fn current(&self) -> Option<Arc<FileMap>> {
        let known = self.made.lock().unwrap().clone();
        known.or_else(|| {
            let maker = std::thread::current().id();
            self.makers.lock().unwrap().push(maker);
            let _passed = (maker != self.test).then(|| self.gate.lock().unwrap());
            let map = Arc::new(self.to_make.lock().unwrap().clone());
            *self.made.lock().unwrap() = Some(map.clone());
            Some(map)
        })
    }

    fn version(&self) -> Option<u64> {
        self.made.lock().unwrap().as_ref().map(|map| map.version)
    }

    fn on_end(&self, told: OnEnd) {
        *self.told.lock().unwrap() = Some(told);
    }
}

impl Slow {
    fn new(map: FileMap) -> Arc<Self> {
        let (made, makers, gate, told) = Default::default();
        Arc::new(Self {
            made,
            to_make: Mutex::new(map),
            makers,
            gate,
            test: std::thread::current().id(),
            told,
        })
    }

    fn map(&self) -> FileMap {
        self.to_make.lock().unwrap().clone()
    }

    /// From now on it is another file.
    fn becomes(&self, map: FileMap) {
        *self.to_make.lock().unwrap() = map;
        *self.made.lock().unwrap() = None;
    }
}

/// Asks until the card answers.
fn get_at_last<T: Transport>(
    session: &Session<T>,
    query: &ob_pushdown::client::Query,
    number: u64,
) -> Option<[u8; VALUE_LEN]> {
    let until = std::time::Instant::now() + Duration::from_secs(20);
    loop {
        match block_on(get(session, query, key(number))) {
            Ok(found) => return found,
            Err(error) => assert_eq!(error, PushError::Detour(Detour::Unmapped)),
        }
        assert!(std::time::Instant::now() < until, "nobody makes a map");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// A transport whose target has forgotten what it was told of files.
struct Forgetful {
    initiator: Initiator,
    forgets: AtomicBool,
    /// It does not even answer.
    is_silent: AtomicBool,
    /// Commands that it did not answer.
    ignored: AtomicU64,
    closed: AtomicU64,
}

impl Forgetful {
    fn new(initiator: Initiator) -> Self {
        let (forgets, is_silent, ignored, closed) = Default::default();
        Self { initiator, forgets, is_silent, ignored, closed }
    }
}

impl Transport for Forgetful {
    async fn execute(&self, command: Command) -> Result<CommandAnswer, TransportError> {
        if self.is_silent.load(Ordering::Relaxed) {
            self.ignored.fetch_add(1, Ordering::Relaxed);
            std::future::pending::<()>().await;
        }
        if matches!(command.function, Function::Map(_)) && self.forgets.swap(false, Ordering::Relaxed) {
            let status = Status::PUSHDOWN_UNKNOWN.with_do_not_retry();
            return Err(TransportError::Status { status, result: 0 });
        }
        self.closed.fetch_add(u64::from(matches!(command.function, Function::Close(_))), Ordering::Relaxed);
        self.initiator.execute(command).await
    }

    fn transfer_max(&self) -> usize {
        self.initiator.transfer_max()
    }

    fn exchange_max(&self) -> Option<usize> {
        self.initiator.exchange_max()
    }
}

#[test]
fn maps_that_the_target_has_lost_are_sent_as_new_ones() {
    let card = Card::start(Place::with_config(CONFIG));
    let initiator = card.connect(1);
    let namespace = block_on(initiator.namespace(NamespaceId(1))).unwrap();
    let transport = Forgetful::new(initiator);
    let session = Arc::new(block_on(Session::begin(transport, NamespaceId(1))).unwrap());
    let map = |tag, version| (*block_on(placed(&namespace, KEYS, tag, version))).clone();
    let source = Slow::new(map(1, 1));
    let program = session.program("bpfkv_get", Some(GET.to_vec()));
    let query = session.query(&program, &[session.mapped(source.clone())]).unwrap();
    for version in 1..6 {
        let keeper = (version % 2 == 0).then(|| MapKeeper::start(&session).unwrap());
        assert_eq!(get_at_last(&session, &query, 4000), Some(value(4000, version as u8)));
        drop(keeper);
        session.transport().forgets.store(true, Ordering::Relaxed);
        source.becomes(map(version as u8 + 1, version + 1));
    }
    assert_eq!(session.counts().changed, 0);
}

#[test]
fn a_map_that_ends_is_withdrawn_before_anybody_writes() {
    let card = Card::start(Place::with_config(CONFIG));
    let initiator = card.connect(1);
    let namespace = block_on(initiator.namespace(NamespaceId(1))).unwrap();
    let transport = Forgetful::new(initiator);
    let session = Arc::new(block_on(Session::begin(transport, NamespaceId(1))).unwrap());
    let map = |tag, version| (*block_on(placed(&namespace, KEYS, tag, version))).clone();
    let source = Slow::new(map(1, 1));
    let program = session.program("bpfkv_get", Some(GET.to_vec()));
    let query = session.query(&program, &[session.mapped(source.clone())]).unwrap();
    let held = || {
        let (guard, gone) = std::sync::mpsc::channel::<()>();
        (Hold::new(guard), gone)
    };
    let told = source.told.lock().unwrap().clone().unwrap();
    assert_eq!(get_at_last(&session, &query, 7), Some(value(7, 1)));
    // Nobody keeps maps: who wants to write does not wait for what a later request will do.
    let (hold, gone) = held();
    source.becomes(map(2, 2));
    told(hold);
    assert_eq!(gone.recv_timeout(Duration::ZERO), Err(RecvTimeoutError::Disconnected));
    assert_eq!(session.transport().closed.load(Ordering::Relaxed), 0);
    let keeper = MapKeeper::start(&session).unwrap();
    assert_eq!(get_at_last(&session, &query, 7), Some(value(7, 2)));
    // Now somebody does, and it is withdrawn. (That it is before anybody writes is for `ob-pushdown/tests/keeper.rs` to say: this keeper may
    // still be about to end what it did last, and who comes then does not wait.)
    let closed = session.transport().closed.load(Ordering::Relaxed);
    let (hold, gone) = held();
    source.becomes(map(3, 3));
    told(hold);
    assert_eq!(gone.recv_timeout(Duration::from_secs(10)), Err(RecvTimeoutError::Disconnected));
    wait_until("it is withdrawn", || session.transport().closed.load(Ordering::Relaxed) == closed + 1);
    assert_eq!(get_at_last(&session, &query, 7), Some(value(7, 3)));
    // There is one keeper at a time, and there may be another one after it.
    let another = MapKeeper::start(&session).err().unwrap();
    assert_eq!(another.kind(), std::io::ErrorKind::AlreadyExists);
    drop(keeper);
    let keeper = MapKeeper::start(&session).unwrap();
    source.becomes(map(4, 4));
    let mapped = block_on(get(&session, &query, key(7)));
    assert_eq!(
        mapped,
        Err(PushError::Detour(Detour::Unmapped)),
        "the first one's end is not the second one's"
    );
    assert_eq!(get_at_last(&session, &query, 7), Some(value(7, 4)));
    // A target that says nothing keeps neither it from leaving, nor anybody from writing.
    let other = Slow::new(source.map());
    let other_query = session.query(&program, &[session.mapped(other.clone())]).unwrap();
    assert_eq!(get_at_last(&session, &other_query, 7), Some(value(7, 4)));
    session.transport().is_silent.store(true, Ordering::Relaxed);
    let (hold, gone) = held();
    told(hold);
    wait_until("the target is told", || session.transport().ignored.load(Ordering::Relaxed) == 1);
    let (other_hold, other_gone) = held();
    let other_told = other.told.lock().unwrap().clone().unwrap();
    other_told(other_hold);
    drop(keeper);
    for gone in [&gone, &other_gone] {
        assert_eq!(gone.try_recv(), Err(TryRecvError::Disconnected));
    }
}

#[test]
fn maps_are_made_off_the_way_of_requests() {
    let card = Card::start(Place::with_config(CONFIG));
    let initiator = card.connect(1);
    let namespace = block_on(initiator.namespace(NamespaceId(1))).unwrap();
    let session = Arc::new(block_on(Session::begin(initiator.clone(), NamespaceId(1))).unwrap());
    let keeper = MapKeeper::start(&session).unwrap();
    let map = |keys, tag, version| (*block_on(placed(&namespace, keys, tag, version))).clone();
    let source = Slow::new(map(KEYS, 1, 1));
    let program = session.program("bpfkv_get", Some(GET.to_vec()));
    let file = session.mapped(source.clone());
    let query = session.query(&program, std::slice::from_ref(&file)).unwrap();
    for version in 1..4 {
        // However long it takes, no request waits for it. (The keeper may be about to look once more for a request of the round before.)
        let closed = source.gate.lock().unwrap();
        if version > 1 {
            source.becomes(map(KEYS, version as u8, version));
        }
        for _ in 0..3 {
            let found = block_on(get(&session, &query, key(4000)));
            assert_eq!(found, Err(PushError::Detour(Detour::Unmapped)), "version {version}");
        }
        drop(closed);
        assert_eq!(get_at_last(&session, &query, 4000), Some(value(4000, version as u8)));
    }
    let makers = source.makers.lock().unwrap().clone();
    assert_eq!(makers.len(), 3, "each map was made once");
    assert!(!makers.contains(&std::thread::current().id()), "a request has made a map");
    assert_eq!(session.counts().changed, 0);
    // Without a keeper they are made where they are needed; and whoever opens a file makes them before.
    drop(keeper);
    source.becomes(map(KEYS, 4, 4));
    block_on(session.open(std::slice::from_ref(&file))).unwrap();
    assert_eq!(block_on(get(&session, &query, key(4000))).unwrap(), Some(value(4000, 4)));
    assert_eq!(source.makers.lock().unwrap().last(), Some(&std::thread::current().id()));
}

#[test]
fn another_object_of_the_same_name_is_not_asked() {
    let card = Card::start(Place::with_config(CONFIG));
    let initiator = card.connect(1);
    block_on(async {
        let namespace = initiator.namespace(NamespaceId(1)).await.unwrap();
        let session = Session::begin(initiator.clone(), NamespaceId(1)).await.unwrap();
        // Older versions, as many as there may be.
        session.load("bpfkv_get", COUNT).await.unwrap();
        for number in 0..15 {
            session.load(&format!("bpfkv_get.{number:016x}"), COUNT).await.unwrap();
        }
        let source = Arc::new(Scattered { map: Mutex::new(Some(placed(&namespace, KEYS, 1, 1).await)) });
        let pages = NamespacePages::new(namespace.clone(), source.clone());
        let options = BTreeOptions::default();
        let tree = BTree::open(&session, session.mapped(source), pages, options).await.unwrap();
        assert_eq!(tree.get(key(4000)).await.unwrap(), (Some(value(4000, 1)), Path::Pushed));
        let mut left: Vec<String> = session.list().await.unwrap().into_iter().map(|one| one.object).collect();
        left.sort();
        assert_eq!(
            left,
            ["bpfkv_get".to_owned(), name_by_content("bpfkv_get", GET)],
            "older versions made room"
        );
    });
}
