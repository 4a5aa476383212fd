//! Files that are no B+tree, or were one: the card and ordinary reads say the same of them.

use std::cell::Cell;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use ob_nvme::initiator::block_on;
use ob_pushdown::btree::{
    Aggregate, BTree, BTreeError, BTreeOptions, BadNode, BulkLoad, Filter, NODE_LEN, Pages, Shape, VALUE_LEN,
};
use ob_pushdown::client::{Command, CommandAnswer, FileMap, MapSource, Session, Transport, TransportError};
use ob_wire_nvme::{NamespaceId, Status};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::lab::remote::Remote;

const KEYS: u64 = 200;
const MARK: u64 = 1 << 63;
const ALL: Filter = Filter { field: 0, low: 0, high: u64::MAX };
/// Nodes of the tree.
const NODES: u64 = 1 + 2 + 8 + 40;

/// What is read here, if anything can be.
struct Here(Option<Vec<u8>>);

/// A file that has a version, so that levels of it are kept.
struct Versioned;

impl MapSource for Versioned {
    fn current(&self) -> Option<Arc<FileMap>> {
        let (namespace, extents) = (NamespaceId(1), Vec::new());
        Some(Arc::new(FileMap { namespace, version: 1, identity: 1, len: 0, extents }))
    }
}

thread_local! {
    /// Reads of this test.
    static READS: Cell<u64> = const { Cell::new(0) };
}

impl Pages for Here {
    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, String> {
        READS.set(READS.get() + 1);
        // Others have their turn before it is read.
        let mut is_asked = false;
        poll_fn(|context| {
            if std::mem::replace(&mut is_asked, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
        let bytes = self.0.as_ref().ok_or("the file is not here")?;
        let begin = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        Ok(bytes[begin..begin.saturating_add(len).min(bytes.len())].to_vec())
    }
}

fn key(number: u64) -> u64 {
    10 + 3 * number
}

fn tree() -> Vec<u8> {
    let shape = Shape::new(KEYS, 5).unwrap();
    assert_eq!((shape.nodes(), shape.levels()), (NODES, 4));
    let mut bytes = Vec::new();
    let value = |number: u64| {
        let mut value = [7; VALUE_LEN];
        value[..8].copy_from_slice(&number.to_le_bytes());
        value
    };
    BulkLoad::new(shape, key, value).write(&mut bytes).unwrap();
    bytes
}

/// Everything that can be asked, once.
#[derive(Clone, Copy, Debug)]
enum Question {
    Get(u64),
    Range(u64, u64, usize),
    Aggregate(u64, u64),
}

#[derive(Debug, PartialEq, Eq)]
enum Said {
    Value(Option<[u8; VALUE_LEN]>),
    Range(Vec<(u64, [u8; VALUE_LEN])>),
    Aggregate(Aggregate),
}

async fn ask<T: Transport>(tree: &BTree<'_, T, Here>, question: Question) -> Result<Said, BTreeError> {
    Ok(match question {
        Question::Get(key) => Said::Value(tree.get(key).await?.0),
        Question::Range(from, to, limit) => Said::Range(tree.range(from, to, limit).await?),
        Question::Aggregate(from, to) => Said::Aggregate(tree.aggregate(from, to, ALL).await?),
    })
}

type Answer = Result<Said, BTreeError>;

/// A card with a file.
fn card(file: &[u8]) -> Session<Remote> {
    let remote = Remote::start(vec![("tree".to_owned(), file.to_vec())]);
    block_on(Session::begin(remote, NamespaceId(1))).unwrap()
}

/// What the card says alone, and what ordinary reads do alone.
fn both(session: &Session<Remote>, file: &[u8], questions: &[Question]) -> Vec<(Answer, Answer)> {
    block_on(async {
        let open = |here, options| BTree::open(session, session.named("tree"), Here(here), options);
        let card = open(None, BTreeOptions::default()).await.unwrap();
        let options = BTreeOptions { only_ordinary: true, ..BTreeOptions::default() };
        let ordinary = open(Some(file.to_vec()), options).await.unwrap();
        let mut said = Vec::new();
        for question in questions {
            said.push((ask(&card, *question).await, ask(&ordinary, *question).await));
        }
        assert_eq!((card.counts().ordinary, ordinary.counts().pushed), (0, 0));
        said
    })
}

#[test]
fn what_is_no_tree_is_never_one_without_the_key() {
    let text = "It was a dark and stormy night; the rain fell in torrents.\n".repeat(100);
    let questions = [0, 1, 4711, u64::MAX].map(Question::Get).into_iter().chain([
        Question::Range(0, u64::MAX, 10),
        Question::Range(u64::MAX, u64::MAX, 10),
        Question::Aggregate(0, u64::MAX),
    ]);
    let questions: Vec<Question> = questions.collect();
    for file in [text.as_bytes(), &[0; 4096], &[0xFF; 4096]] {
        for ((card, ordinary), question) in both(&card(file), file, &questions).into_iter().zip(&questions) {
            assert_eq!(card, Err(BTreeError::Bad(BadNode::Card)), "{question:?}");
            assert!(matches!(ordinary, Err(BTreeError::Bad(_))), "{question:?}: {ordinary:?}");
        }
    }
    let told = BTreeError::Bad(BadNode::Card).to_string();
    assert!(told.contains("no B+tree of BPF-KV's format, or is damaged"), "{told}");
}

/// A card that can be had to give the next command up.
struct Tired {
    card: Remote,
    is_tired: AtomicBool,
}

impl Transport for Tired {
    async fn execute(&self, command: Command) -> Result<CommandAnswer, TransportError> {
        if self.is_tired.swap(false, Ordering::Relaxed) {
            return Err(TransportError::Status { status: Status::PUSHDOWN_FUEL, result: 0 });
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

/// Runs what wakes itself while the card is waited for, which takes a thread's only token of that.
fn run<F: Future>(future: F) -> F::Output {
    let (mut future, mut context) = (std::pin::pin!(future), Context::from_waker(Waker::noop()));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
    }
}

/// A question whose ordinary reads fail has failed for that, whatever the card comes upon meanwhile, when it is asked another.
#[test]
fn damage_of_one_question_is_not_that_of_another() {
    let mut file = tree();
    // The first leaf.
    put(&mut file, 11, 1, 7);
    let card = Remote::start(vec![("tree".to_owned(), file)]);
    run(async {
        let tired = Tired { card, is_tired: AtomicBool::new(false) };
        let session = Session::begin(tired, NamespaceId(1)).await.unwrap();
        let file = session.named("tree");
        let tree = BTree::open(&session, file, Here(None), BTreeOptions::default()).await.unwrap();
        let (sound, damaged) = (key(KEYS - 1), key(0));
        assert!(tree.get(sound).await.is_ok());
        assert_eq!(tree.get(damaged).await, Err(BTreeError::Bad(BadNode::Card)));
        session.transport().is_tired.store(true, Ordering::Relaxed);
        let said = tree.multi_get(&[sound, damaged]).await;
        assert_eq!(said, Err(BTreeError::Read("the file is not here".to_owned())));
        session.transport().is_tired.store(true, Ordering::Relaxed);
        let said = tree.multi_get(&[damaged, sound]).await;
        assert_eq!(
            said,
            Err(BTreeError::Read("the file is not here".to_owned())),
            "and the other way around"
        );
        assert_eq!(tree.multi_get(&[sound, damaged]).await, Err(BTreeError::Bad(BadNode::Card)));
    });
}

/// Puts a word into a node.
fn put(file: &mut [u8], node: u64, word: usize, value: u64) {
    let at = node as usize * NODE_LEN + 8 * word;
    file[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn word(file: &[u8], node: u64, word: usize) -> u64 {
    let at = node as usize * NODE_LEN + 8 * word;
    u64::from_le_bytes(file[at..at + 8].try_into().unwrap())
}

/// Leaves that lead around in a circle: ranges end, and no key comes twice.
#[test]
fn leaves_in_a_circle_end_a_scan() {
    // The last leaf, and one in the middle, lead back: to the first, to themselves, and to the one before.
    for (from, to) in [(NODES - 1, 11), (NODES - 1, NODES - 1), (20, 11), (20, 20), (20, 19), (11, 11)] {
        let mut file = tree();
        put(&mut file, from, 0, to * NODE_LEN as u64);
        let questions = [
            Question::Range(0, u64::MAX, usize::MAX),
            Question::Range(key(5 * (from - 11)), u64::MAX, 47),
            Question::Aggregate(0, u64::MAX),
            Question::Aggregate(key(5 * (from - 11)), u64::MAX),
        ];
        for ((card, ordinary), question) in both(&card(&file), &file, &questions).into_iter().zip(&questions)
        {
            assert_eq!(card, Err(BTreeError::Bad(BadNode::Card)), "{from} to {to}, {question:?}");
            assert_eq!(ordinary, Err(BTreeError::Bad(BadNode::Circle)), "{from} to {to}, {question:?}");
        }
        // What lies before the circle is there.
        let before = [Question::Range(0, key(5 * (from - 11)), 40), Question::Get(key(KEYS - 1))];
        for (card, ordinary) in both(&card(&file), &file, &before) {
            assert!(card.is_ok() && card == ordinary, "{card:?}, {ordinary:?}");
        }
    }
}

/// What ordinary reads say of a file, with so many levels of it kept.
async fn kept(
    session: &Session<Remote>,
    file: &[u8],
    cached_levels: usize,
    questions: &[Question],
) -> Result<Vec<Answer>, BTreeError> {
    let options = BTreeOptions { cached_levels, only_ordinary: true };
    let pages = Here(Some(file.to_vec()));
    let tree = BTree::open(session, session.mapped(Arc::new(Versioned)), pages, options).await?;
    let mut said = Vec::new();
    for question in questions {
        said.push(ask(&tree, *question).await);
    }
    Ok(said)
}

/// Pointers that all lead to the same nodes have nobody read them again and again, however many levels are to be kept.
#[test]
fn levels_that_are_kept_are_read_once() {
    let session = card(&[]);
    let mut file = vec![0; 8 * NODE_LEN];
    for node in 0..8 {
        put(&mut file, node, 1, u64::from(node == 7));
        for entry in 0..31 {
            put(&mut file, node, 2 + entry, entry as u64 + 1);
            put(&mut file, node, 33 + entry, MARK | ((node + 1) * NODE_LEN as u64));
        }
    }
    let before = READS.get();
    for cached_levels in [2, 7, usize::MAX] {
        let opened = block_on(kept(&session, &file, cached_levels, &[]));
        assert_eq!(opened.err(), Some(BTreeError::Bad(BadNode::Pointer)));
    }
    assert!(READS.get() - before <= 24, "{} reads of 8 nodes", READS.get() - before);

    // A second parent of the same children.
    let mut file = tree();
    assert_eq!((word(&file, 1, 33), word(&file, 2, 33)), (MARK | (3 * 512), MARK | (8 * 512)));
    put(&mut file, 2, 33, MARK | (7 * 512));
    let asked = [Question::Get(key(0)), Question::Get(key(KEYS - 1))];
    assert_eq!(block_on(kept(&session, &file, 2, &asked)).err(), Some(BTreeError::Bad(BadNode::Pointer)));
    let said = block_on(kept(&session, &tree(), 2, &asked)).unwrap();
    assert!(said.iter().all(|said| matches!(said, Ok(Said::Value(Some(_))))), "{said:?}");
}

/// A tree whose upper levels are too many nodes to keep them all.
#[test]
fn a_level_that_is_too_large_is_not_kept() {
    let session = card(&[]);
    let shape = Shape::new(100_000, 2).unwrap();
    let mut bytes = Vec::new();
    BulkLoad::new(shape.clone(), key, |_| [7; VALUE_LEN]).write(&mut bytes).unwrap();
    let options = BTreeOptions { cached_levels: usize::MAX, only_ordinary: true };
    block_on(async {
        let file = session.mapped(Arc::new(Versioned));
        let tree = BTree::open(&session, file, Here(Some(bytes)), options).await.unwrap();
        let nodes = tree.cached_nodes();
        assert!(nodes > 30_000 && nodes <= 64 << 10, "{nodes} of {} nodes are kept", shape.nodes());
        assert_eq!(tree.get(key(99_999)).await.unwrap().0, Some([7; VALUE_LEN]));
    });
}

/// A number that is nearly right, or anything.
fn near(right: u64) -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        any::<u64>(),
        (0u32..64).prop_map(move |bit| right ^ (1 << bit)),
        (0u64..70).prop_map(move |steps| MARK | (steps * 512)),
        (0u64..9).prop_map(move |steps| right.wrapping_add(steps * 64).wrapping_sub(256)),
        (0u64..KEYS).prop_map(key),
        0..2u64,
    ]
}

/// A word of a node, and what it becomes. Upper nodes are on everybody's way.
fn change() -> impl Strategy<Value = (u64, usize, u64)> {
    let whole = tree();
    (prop_oneof![0..11u64, 0..NODES], prop_oneof![Just(1usize), 0..8usize, 33..39usize, 0..64usize])
        .prop_flat_map(move |(node, at)| (Just(node), Just(at), near(word(&whole, node, at))))
}

#[test]
fn a_damaged_tree_is_the_same_to_card_and_reader() {
    let session = card(&tree());
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let (wrong, right) = (Cell::new(0), Cell::new(0));
    let cases = (vec(change(), 1..4), vec(0..KEYS, 6), 1usize..30);
    runner
        .run(&cases, |(changes, asked, limit)| {
            let mut file = tree();
            for (node, at, value) in &changes {
                put(&mut file, *node, *at, *value);
            }
            session.transport().put("tree", &file);
            let mut questions = Vec::new();
            for number in asked {
                questions.push(Question::Get(key(number)));
                questions.push(Question::Get(key(number) + 1));
                questions.push(Question::Range(key(number) - 1, key(number) + 100, limit));
            }
            questions.extend([Question::Get(0), Question::Get(u64::MAX)]);
            questions.extend([Question::Aggregate(0, u64::MAX), Question::Aggregate(50, 90)]);
            for ((card, ordinary), question) in both(&session, &file, &questions).into_iter().zip(&questions)
            {
                match (&card, &ordinary) {
                    (Ok(card), Ok(ordinary)) => prop_assert_eq!(card, ordinary, "{:?}", question),
                    (Err(_), Err(_)) => wrong.update(|wrong| wrong + 1),
                    _ => prop_assert!(false, "{:?}: card {:?}, reads {:?}", question, card, ordinary),
                }
                right.update(|right| right + u32::from(card.is_ok()));
            }
            // With levels kept, damage is seen that is on nobody's way. What is answered is the same.
            for cached_levels in [1, 2, 7] {
                let before = READS.get();
                let Ok(said) = block_on(kept(&session, &file, cached_levels, &questions)) else {
                    let (reads, nodes) = (READS.get() - before, (file.len() / NODE_LEN) as u64);
                    prop_assert!(reads <= cached_levels as u64 * nodes, "{} reads", reads);
                    continue;
                };
                let plain = block_on(kept(&session, &file, 0, &questions)).unwrap();
                for ((kept, plain), question) in said.into_iter().zip(plain).zip(&questions) {
                    prop_assert!(
                        kept == plain || (kept.is_err() && plain.is_err()),
                        "{question:?}: {kept:?}, {plain:?}"
                    );
                }
            }
            Ok(())
        })
        .unwrap();
    assert!(wrong.get() > 500 && right.get() > 500, "{wrong:?} questions had no answer, {right:?} had one");
}
