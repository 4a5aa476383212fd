//! A B+tree on the mount, of which a writer makes version after version: over the one before, in place or cut off, or in another file.
//!
//! Every version is kept in memory. What requests answer is what ordinary reads of one such copy answer, of a version that was there during the
//! request; and what ordinary reads of the mount answer, where nobody wrote meanwhile.

use std::collections::{BTreeSet, VecDeque};
use std::error::Error;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use ob_nvme::initiator::block_on;
use ob_passthrough::System;
use ob_passthrough::lease::LeaseKeeper;
use ob_pushdown::btree::{
    Aggregate, BTree, BTreeError, BTreeOptions, BulkLoad, Filter, Pages, Shape, VALUE_LEN,
};
use ob_pushdown::kernel::{KernelTransport, MapKeeper, MountedFile};

use super::{Card, Draw, Plan, unload_now_and_then};

const FILES: usize = 2;
/// Keys of versions are apart: by so much, and by which one it is.
const STRIDE: u64 = 7;
/// Versions of a file that are kept for those who look back.
const KEPT: usize = 8;
/// Bytes that are written before all others.
const LAST_LEN: usize = 16 << 10;
/// Files that take the blocks of others.
const FILLERS: u64 = 6;

/// A version.
struct Tree {
    version: u64,
    keys: u64,
    fanout: usize,
    bytes: Vec<u8>,
}

impl Tree {
    /// Not more leaves, and values of leaves, than one request may read.
    fn make(version: u64, draw: &mut Draw) -> Self {
        let fanout = 3 + draw.below(9) as usize;
        Self::of_shape(version, fanout as u64 * (100 + draw.below(370)), fanout)
    }

    fn of_shape(version: u64, keys: u64, fanout: usize) -> Self {
        let shape = Shape::new(keys, fanout).unwrap();
        let value = |number: u64| {
            let mut value = [version as u8; VALUE_LEN];
            let words = [version, number, (number * 2_654_435_761 + version) % 1000];
            for (to, word) in value.chunks_exact_mut(8).zip(words) {
                to.copy_from_slice(&word.to_le_bytes());
            }
            value
        };
        let mut bytes = Vec::new();
        BulkLoad::new(shape, |number| STRIDE * number + version % STRIDE, value).write(&mut bytes).unwrap();
        Self { version, keys, fanout, bytes }
    }
}

impl Pages for Tree {
    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, String> {
        let rest = self.bytes.get(offset as usize..).unwrap_or_default();
        Ok(rest[..len.min(rest.len())].to_vec())
    }
}

/// A file from when it is made until nobody has it open any more, whatever its name is.
struct Life {
    state: Mutex<State>,
}

struct State {
    /// The newest is last.
    trees: VecDeque<Arc<Tree>>,
    /// Versions that were let go of.
    forgotten: usize,
    /// Whether the last one is being written.
    is_written: bool,
}

/// What a file was at one moment.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Moment {
    /// The number of the newest version that was written, and closed.
    closed: usize,
    is_written: bool,
}

impl Life {
    /// A file that is being written.
    fn new(tree: Tree) -> Arc<Self> {
        let trees = VecDeque::from([Arc::new(tree)]);
        Arc::new(Self { state: Mutex::new(State { trees, forgotten: 0, is_written: true }) })
    }

    fn begin(&self, tree: Tree) {
        let mut state = self.state.lock().unwrap();
        state.trees.push_back(Arc::new(tree));
        state.is_written = true;
        if state.trees.len() > KEPT {
            state.trees.pop_front();
            state.forgotten += 1;
        }
    }

    fn close(&self) {
        self.state.lock().unwrap().is_written = false;
    }

    fn newest(&self) -> Arc<Tree> {
        self.state.lock().unwrap().trees.back().unwrap().clone()
    }

    fn now(&self) -> Moment {
        let state = self.state.lock().unwrap();
        let newest = state.forgotten + state.trees.len() - 1;
        Moment { closed: newest.saturating_sub(usize::from(state.is_written)), is_written: state.is_written }
    }

    /// All that it was since a moment; nothing if that is too long ago.
    fn since(&self, moment: Moment) -> Option<Vec<Arc<Tree>>> {
        let state = self.state.lock().unwrap();
        let first = moment.closed.checked_sub(state.forgotten)?;
        Some(state.trees.iter().skip(first).cloned().collect())
    }
}

#[derive(Default)]
struct Counts {
    changes: AtomicU64,
    /// Answers of the card, each of one request, that were compared.
    pushed: AtomicU64,
    /// Other answers that were compared.
    ordinary: AtomicU64,
    /// Ordinary reads while somebody wrote, which may see anything.
    torn: AtomicU64,
    /// Comparisons with ordinary reads of the mount.
    mounted: AtomicU64,
}

impl Counts {
    /// Whether enough was compared, and enough has changed, to say something.
    fn is_enough(&self) -> bool {
        let is_at_least = |count: &AtomicU64, least: u64| count.load(Ordering::Relaxed) >= least;
        is_at_least(&self.changes, 10) && is_at_least(&self.pushed, 60) && is_at_least(&self.mounted, 30)
    }
}

struct Setting {
    folder: PathBuf,
    /// What the files' names stand for. Names change under the lock.
    lives: Vec<Mutex<Option<Arc<Life>>>>,
    stop: AtomicBool,
    counts: Counts,
}

impl Setting {
    fn path(&self, number: usize) -> PathBuf {
        self.folder.join(format!("tree{number}"))
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Has another file by this name, and writes it.
    fn make(&self, number: usize, tree: Tree, draw: &mut Draw) -> std::io::Result<()> {
        let life = Life::new(tree);
        let file = {
            let mut named = self.lives[number].lock().unwrap();
            *named = Some(life.clone());
            File::create(self.path(number))?
        };
        put(&file, &life, draw)
    }
}

/// Writes the newest version. Its end, which chains come to last, is first on the device: whoever is underway meets it.
fn put(file: &File, life: &Life, draw: &mut Draw) -> std::io::Result<()> {
    let tree = life.newest();
    let last = tree.bytes.len() - tree.bytes.len().min(LAST_LEN);
    file.write_all_at(&tree.bytes[last..], last as u64)?;
    file.sync_data()?;
    file.write_all_at(&tree.bytes[..last], 0)?;
    file.set_len(tree.bytes.len() as u64)?;
    // Now and then it is left to the file system when it goes to the device, and where.
    if draw.below(3) > 0 {
        file.sync_all()?;
    }
    life.close();
    Ok(())
}

/// Takes blocks that others have freed, and frees some.
fn refill(setting: &Setting, draw: &mut Draw) -> std::io::Result<()> {
    let path = setting.folder.join(format!("filler{}", draw.below(FILLERS)));
    let _ = fs::remove_file(&path);
    let file = File::create(&path)?;
    file.write_all_at(&vec![0xa5; 4096 * (1 + draw.below(100) as usize)], 0)?;
    file.sync_all()
}

/// Changes files, each time another and in another way.
fn write(setting: &Setting, seed: u64) -> std::io::Result<()> {
    let mut draw = Draw(seed);
    while !setting.is_over() {
        let version = FILES as u64 + 1 + setting.counts.changes.fetch_add(1, Ordering::Relaxed);
        let number = draw.below(FILES as u64) as usize;
        let (path, mut tree) = (setting.path(number), Tree::make(version, &mut draw));
        let life = setting.lives[number].lock().unwrap().clone().unwrap();
        match draw.below(6) {
            // Over the one before, of the same shape or of another; who has a lease on it gives it back first.
            way @ 0..3 => {
                if way > 0 {
                    let before = life.newest();
                    tree = Tree::of_shape(version, before.keys, before.fanout);
                }
                life.begin(tree);
                put(&OpenOptions::new().write(true).open(&path)?, &life, &mut draw)?;
            }
            // Cut off, so that its blocks become free.
            3 => {
                life.begin(tree);
                let file = OpenOptions::new().write(true).truncate(true).open(&path)?;
                refill(setting, &mut draw)?;
                put(&file, &life, &mut draw)?;
            }
            // Another file takes its name.
            4 => {
                let (life, new) = (Life::new(tree), setting.folder.join("new"));
                put(&File::create(&new)?, &life, &mut draw)?;
                let mut named = setting.lives[number].lock().unwrap();
                fs::rename(&new, &path)?;
                *named = Some(life);
            }
            // Removed, and another one is made.
            _ => {
                {
                    let mut named = setting.lives[number].lock().unwrap();
                    fs::remove_file(&path)?;
                    *named = None;
                }
                refill(setting, &mut draw)?;
                setting.make(number, tree, &mut draw)?;
            }
        }
        thread::sleep(Duration::from_millis(draw.below(200)));
    }
    Ok(())
}

#[derive(Debug)]
enum Question {
    Get(u64),
    Range(u64, u64, usize),
    Aggregate(u64, u64, Filter),
}

#[derive(PartialEq, Eq)]
enum Said {
    Value(Option<[u8; VALUE_LEN]>),
    Values(Vec<(u64, [u8; VALUE_LEN])>),
    Aggregate(Aggregate),
}

/// Of a value the version that it is of, and its number there.
impl fmt::Display for Said {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word =
            |value: &[u8], at: usize| u64::from_le_bytes(value[8 * at..8 * at + 8].try_into().unwrap());
        let told = |value: &[u8]| format!("value {} of version {}", word(value, 1), word(value, 0));
        match self {
            Self::Value(None) => write!(to, "no value"),
            Self::Value(Some(value)) => write!(to, "{}", told(value)),
            Self::Values(values) => {
                let few: Vec<String> =
                    values.iter().take(3).map(|(key, value)| format!("{key}: {}", told(value))).collect();
                let versions: BTreeSet<u64> = values.iter().map(|(_, value)| word(value, 0)).collect();
                write!(to, "{} values of {versions:?} ({} …)", values.len(), few.join(", "))
            }
            Self::Aggregate(aggregate) => write!(to, "{aggregate:?}"),
        }
    }
}

impl Question {
    fn draw(tree: &Tree, draw: &mut Draw) -> Self {
        let key = STRIDE * draw.below(tree.keys + 5) + tree.version % STRIDE;
        let other = draw.below(STRIDE * (tree.keys + 5));
        let filter = Filter { field: 16, low: draw.below(500), high: 500 + draw.below(500) };
        match draw.below(10) {
            0..3 => Self::Get(key),
            3 => Self::Get(other),
            4 => Self::Range(key, u64::MAX, 1 + draw.below(150) as usize),
            5 => Self::Range(key.min(other), key.max(other), 1 + draw.below(150) as usize),
            6 | 7 => Self::Aggregate(key.min(other), key.max(other), filter),
            _ => Self::Aggregate(0, u64::MAX, filter),
        }
    }

    fn ask<P: Pages>(&self, tree: &BTree<'_, KernelTransport, P>) -> Result<Said, BTreeError> {
        Ok(match *self {
            Self::Get(key) => Said::Value(block_on(tree.get(key))?.0),
            Self::Range(from, to, limit) => Said::Values(block_on(tree.range(from, to, limit))?),
            Self::Aggregate(from, to, filter) => Said::Aggregate(block_on(tree.aggregate(from, to, filter))?),
        })
    }

    /// The same by ordinary reads alone.
    fn ask_ordinary(&self, card: &Card, pages: impl Pages) -> Result<Said, BTreeError> {
        let options = BTreeOptions { only_ordinary: true, ..BTreeOptions::default() };
        self.ask(&block_on(BTree::open(&card.session, card.session.named("none"), pages, options))?)
    }
}

/// Asks, and compares.
fn read(setting: &Setting, card: &Card, seed: u64) -> Result<u64, String> {
    let (system, keeper) = (System::default(), Arc::new(LeaseKeeper::start().unwrap()));
    let (mut draw, mut asked) = (Draw(seed), 0);
    while !setting.is_over() {
        let number = draw.below(FILES as u64) as usize;
        let (life, file) = {
            let named = setting.lives[number].lock().unwrap();
            let Some(life) = named.clone() else { continue };
            let place = (card.namespace, card.device.as_str());
            let opened = MountedFile::open(&setting.path(number), place, &system, &keeper);
            let opened = opened.map_err(|error| error.to_string())?;
            // Some writers wait for requests, and some have none of it.
            let is_patient = draw.below(4) == 0;
            (life, Arc::new(if is_patient { opened } else { opened.with_grace(Duration::ZERO) }))
        };
        let mapped = card.session.mapped(file.clone());
        // A tree that keeps levels looks behind each answer, too.
        let cached_levels = if draw.below(8) == 0 { 2 } else { 0 };
        let options = BTreeOptions { cached_levels, ..BTreeOptions::default() };
        let tree = BTree::open(&card.session, mapped, file.clone(), options);
        let tree = block_on(tree).map_err(|error| error.to_string())?;
        for _ in 0..draw.below(30) {
            let question = Question::draw(&life.newest(), &mut draw);
            compare(setting, card, &life, (&tree, &file), &question)
                .map_err(|wrong| format!("tree {number}: {question:?}: {wrong}"))?;
            asked += 1;
        }
    }
    Ok(asked)
}

fn add_one(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

/// Asks one question, and says what is wrong with the answer.
fn compare(
    setting: &Setting,
    card: &Card,
    life: &Life,
    (tree, file): (&BTree<'_, KernelTransport, Arc<MountedFile>>, &Arc<MountedFile>),
    question: &Question,
) -> Result<(), String> {
    let (before, begun) = (life.now(), tree.counts());
    let answer = question.ask(tree);
    let (after, done) = (life.now(), tree.counts());
    if let Err(error @ BTreeError::Push(_)) = answer {
        return Err(error.to_string());
    }
    // What fails is not counted, whichever way it went: behind a request that was answered there may be ordinary reads that met a writer.
    let is_one_request = answer.is_ok() && done.pushed == begun.pushed + 1 && done.ordinary == begun.ordinary;
    let is_quiet = before == after && !before.is_written;
    if !is_one_request && !is_quiet {
        add_one(&setting.counts.torn);
        return Ok(());
    }
    let answer = answer.map_err(|error| error.to_string())?;
    let Some(versions) = life.since(before) else {
        add_one(&setting.counts.torn);
        return Ok(());
    };
    add_one(if is_one_request { &setting.counts.pushed } else { &setting.counts.ordinary });
    let mut numbers = Vec::new();
    let is_of = |version: &Arc<Tree>| {
        numbers.push(version.version);
        question.ask_ordinary(card, version.clone()).is_ok_and(|said| said == answer)
    };
    if !versions.iter().any(is_of) {
        return Err(format!("{answer} is of none of the versions that were there: {numbers:?}"));
    }
    let said = question.ask_ordinary(card, file.clone());
    if is_quiet && life.now() == before {
        add_one(&setting.counts.mounted);
        let said = said.map_err(|error| error.to_string())?;
        if said != answer {
            return Err(format!("{answer}, and ordinary reads of the mount say {said}"));
        }
    }
    Ok(())
}

/// Everybody at work, until the time is over and it is enough, or something is wrong: how many questions it were.
fn work(setting: &Setting, card: &Card, plan: &Plan) -> Result<u64, String> {
    let begun = Instant::now();
    thread::scope(|scope| {
        let writer =
            scope.spawn(|| write(setting, plan.seed).map_err(|error| format!("the writer: {error}")));
        let readers: Vec<_> =
            (1..3).map(|reader| scope.spawn(move || read(setting, card, plan.seed ^ reader << 40))).collect();
        scope.spawn(|| unload_now_and_then(&card.other, Duration::from_millis(1800), &setting.stop));
        let goes_on = || match begun.elapsed() {
            // A machine that is busy with others takes longer.
            late if late > plan.time => !setting.counts.is_enough() && late < 6 * plan.time,
            _ => true,
        };
        while goes_on() && !writer.is_finished() && readers.iter().all(|reader| !reader.is_finished()) {
            thread::sleep(Duration::from_millis(100));
        }
        setting.stop.store(true, Ordering::Relaxed);
        let written = writer.join().unwrap();
        let asked: Result<Vec<u64>, String> =
            readers.into_iter().map(|reader| reader.join().unwrap()).collect();
        written.and(asked).map(|asked| asked.iter().sum())
    })
}

/// Everything, and what is wrong.
pub(super) fn run(plan: &Plan) -> Result<(), Box<dyn Error>> {
    let setting = Setting {
        folder: plan.folder.clone(),
        lives: (0..FILES).map(|_| Mutex::new(None)).collect(),
        stop: AtomicBool::new(false),
        counts: Counts::default(),
    };
    let mut draw = Draw(plan.seed);
    for number in 0..FILES {
        setting.make(number, Tree::make(number as u64 + 1, &mut draw), &mut draw)?;
    }
    let card = Card::of(&setting.path(0), plan)?;
    // By ioctl, requests make maps themselves.
    let keeper = card.session.transport().is_ring().then(|| MapKeeper::start(&card.session)).transpose()?;
    let done = work(&setting, &card, plan);
    drop(keeper);
    let session = card.session.counts();
    let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let Counts { changes, pushed, ordinary, torn, mounted } = &setting.counts;
    let [changes, pushed, ordinary, torn, mounted] = [changes, pushed, ordinary, torn, mounted].map(read);
    println!("{session:?}");
    let asked = done?;
    println!(
        "a tree: {asked} questions, {changes} changes; compared: {pushed} pushed, {ordinary} ordinary, {mounted} of them with the mount as well; \
         {torn} read while somebody wrote; changed {}, discarded {}, without a map {}",
        session.changed, session.discarded, session.unmapped
    );
    if !setting.counts.is_enough() || pushed < asked / 8 || session.changed + session.unmapped == 0 {
        return Err("hardly anything was answered by the card, or nothing changed meanwhile".into());
    }
    for number in 0..FILES {
        fs::remove_file(setting.path(number))?;
    }
    for number in 0..FILLERS {
        // There may be fewer.
        let _ = fs::remove_file(setting.folder.join(format!("filler{number}")));
    }
    Ok(())
}
