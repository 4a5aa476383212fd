//! A tree to ask: by requests where the card answers them, by ordinary reads where it does not.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::node::{BadNode, ENTRIES_MAX, Followed, NODE_LEN, Node, VALUE_LEN};
use super::ordinary::Pages;
use crate::client::{Answer, Detour, File, PushError, Query, Read, Session, Transport, lock};
use crate::plant::{Bug, is_planted};

const GET: &[u8] = include_bytes!("../../../../examples/programs/bpfkv_get.o");
const SCAN: &[u8] = include_bytes!("../../../../examples/programs/bpfkv_scan.o");

/// Bytes of the scratch of `bpfkv_get`: the key, whether it is there, where, and the value.
const GET_LEN: usize = 24 + VALUE_LEN;
/// Words of the scratch of `bpfkv_scan` before its leaf.
const SCAN_WORDS: usize = 16;
/// Where its entries begin, how long they are, and how many there can be.
const FOUND_AT: usize = 8 * SCAN_WORDS + NODE_LEN;
const FOUND_LEN: usize = 8 + VALUE_LEN;
const FOUND_MAX: u64 = 46;
/// Levels that a tree can have: each has at least twice as many nodes as the one above.
const LEVELS_MAX: usize = 64;
/// Nodes that are kept at most: 32 MiB of them, the first four levels of a tree whose nodes are full.
const KEPT_MAX: usize = 64 << 10;
/// What both programs return of a node that cannot be one.
const CORRUPT: u32 = 1;
/// How often a question of several requests begins anew because the file became another one meanwhile.
const ATTEMPTS_MAX: usize = 8;
/// Reads of an aggregate over one request.
const AGGREGATE_READS: u16 = 1024;

/// How a tree is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BTreeOptions {
    /// So many levels from the root on are kept here, as long as the file has the version that they were read from. Files by name do not say
    /// which version they have: of those nothing is kept. A level that does not fit into 65,536 nodes with those above it is not kept.
    pub cached_levels: usize,
    /// The card is not asked at all: what it is measured against.
    pub only_ordinary: bool,
}

/// Who answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// The card.
    Pushed,
    /// Ordinary reads.
    Ordinary,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BTreeError {
    /// The file is no tree.
    #[error("the file is no B+tree of BPF-KV's format, or is damaged: {0}")]
    Bad(#[from] BadNode),
    /// It ends where it should not.
    #[error("the file is no B+tree of BPF-KV's format, or is damaged: it ends within a node or a value")]
    Short,
    /// The ordinary path does not answer either.
    #[error("{0}")]
    Read(String),
    /// Another file takes its name, again and again: ask when that has come to rest, or for less at once.
    #[error(
        "the file was replaced {0} times while it was asked; ask again when it stays, or for fewer keys at once"
    )]
    Replaced(usize),
    /// The card cannot be asked.
    #[error(transparent)]
    Push(PushError),
}

/// What a tree was asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreCounts {
    /// What the card has answered.
    pub pushed: u64,
    /// What ordinary reads have.
    pub ordinary: u64,
    /// Ordinary reads.
    pub reads: u64,
    /// Reads that the card has made for its answers.
    pub card_reads: u64,
}

/// Which numbers count for an [`Aggregate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Where in a value the number of eight bytes is, up to 56.
    pub field: usize,
    /// The least that counts.
    pub low: u64,
    /// The greatest that counts.
    pub high: u64,
}

/// What came of the numbers of a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Aggregate {
    /// How many there are.
    pub count: u64,
    /// Their sum, modulo 2⁶⁴.
    pub sum: u64,
    /// The least, if there is one.
    pub least: Option<u64>,
    /// The greatest, if there is one.
    pub greatest: Option<u64>,
}

impl Aggregate {
    /// Takes some more numbers: how many, their sum, the least and the greatest of them.
    fn join(&mut self, count: u64, sum: u64, least: u64, greatest: u64) {
        self.count += count;
        self.sum = self.sum.wrapping_add(sum);
        self.least = Some(self.least.map_or(least, |known| known.min(least)));
        self.greatest = Some(self.greatest.map_or(greatest, |known| known.max(greatest)));
    }

    /// Takes what a request says.
    fn add(&mut self, scratch: &[u8]) -> Result<(), BTreeError> {
        let count = word(scratch, 6)?;
        if count > 0 {
            self.join(count, word(scratch, 7)?, word(scratch, 8)?, word(scratch, 9)?);
        }
        Ok(())
    }
}

/// Nodes of the upper levels, by where they are, and the version of the file that has them there.
#[derive(Default)]
struct Cache {
    version: Option<u64>,
    nodes: BTreeMap<u64, Node>,
}

/// What has kept the card from answering a question; nothing where it was not asked.
struct Obstacle(Option<PushError>);

impl Obstacle {
    /// What it means that ordinary reads do not answer the question either. Where the card has come upon what is no tree, that is what matters.
    fn explain(&self, error: BTreeError) -> BTreeError {
        match (error, &self.0) {
            (BTreeError::Read(_), Some(PushError::Detour(Detour::Program(CORRUPT)))) => BadNode::Card.into(),
            (error, _) => error,
        }
    }
}

/// A question that may be several requests.
struct Asked {
    /// Which file it began with, by [`File::incarnation`].
    incarnation: Option<u64>,
    /// Whether it is several by now.
    is_several: bool,
}

/// A tree.
pub struct BTree<'session, T, P> {
    session: &'session Session<T>,
    pages: P,
    options: BTreeOptions,
    file: File,
    cached: Mutex<Arc<Cache>>,
    get: Query,
    range: Query,
    aggregate: Query,
    pushed: AtomicU64,
    ordinary: AtomicU64,
    reads: AtomicU64,
    card_reads: AtomicU64,
    /// Why the card did not answer, the last time that it did not.
    obstacle: Mutex<Option<PushError>>,
}

impl Cache {
    /// Follows a key through the levels that are kept here: where to go on.
    fn follow(&self, key: u64) -> Result<Followed, BTreeError> {
        let mut place = 0;
        for _ in 0..LEVELS_MAX {
            let Some(node) = self.nodes.get(&place) else { return Ok(Followed::Child(place)) };
            match node.follow(place, key)? {
                Followed::Child(next) => place = next,
                other => return Ok(other),
            }
        }
        Err(BadNode::Circle.into())
    }
}

impl<'session, T: Transport, P: Pages> BTree<'session, T, P> {
    /// A tree in a file that the card reads as `file`, and that is read here by `pages`.
    ///
    /// # Errors
    ///
    /// When its upper levels are to be kept here and cannot be read.
    pub async fn open(
        session: &'session Session<T>,
        file: File,
        pages: P,
        options: BTreeOptions,
    ) -> Result<Self, BTreeError> {
        let files = [file.clone()];
        let query = |name: &str, object: &[u8]| {
            session.query(&session.program(name, Some(object.to_vec())), &files).map_err(BTreeError::Push)
        };
        let tree = Self {
            file,
            get: query("bpfkv_get", GET)?.with_read_len_max(NODE_LEN as u32),
            range: query("bpfkv_scan/range", SCAN)?.with_read_len_max((ENTRIES_MAX * VALUE_LEN) as u32),
            aggregate: query("bpfkv_scan/aggregate", SCAN)?
                .with_read_len_max((ENTRIES_MAX * VALUE_LEN) as u32)
                .with_reads_max(AGGREGATE_READS),
            session,
            pages,
            options,
            cached: Mutex::default(),
            pushed: AtomicU64::new(0),
            ordinary: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            card_reads: AtomicU64::new(0),
            obstacle: Mutex::new(None),
        };
        tree.cache().await?;
        Ok(tree)
    }

    /// What it was asked.
    #[must_use]
    pub fn counts(&self) -> StoreCounts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        StoreCounts {
            pushed: read(&self.pushed),
            ordinary: read(&self.ordinary),
            reads: read(&self.reads),
            card_reads: read(&self.card_reads),
        }
    }

    /// Why the card did not answer, the last time that it was asked and did not.
    #[must_use]
    pub fn last_obstacle(&self) -> Option<PushError> {
        lock(&self.obstacle).clone()
    }

    /// How it is read here.
    pub const fn pages(&self) -> &P {
        &self.pages
    }

    /// Nodes that are kept here.
    #[must_use]
    pub fn cached_nodes(&self) -> usize {
        self.known_cache().nodes.len()
    }

    fn known_cache(&self) -> Arc<Cache> {
        Arc::clone(&lock(&self.cached))
    }

    /// The upper levels of the file as it is now; nothing while it changes.
    async fn cache(&self) -> Result<Arc<Cache>, BTreeError> {
        if self.options.cached_levels == 0 || !self.file.has_versions() {
            return Ok(Arc::default());
        }
        let (known, version) = (self.known_cache(), self.file.version());
        if known.version == version && version.is_some() {
            return Ok(known);
        }
        // A file that was not mapped yet says which version it has once it is.
        let Some(version) = version.or_else(|| self.session.version_to_be(&self.file)) else {
            return Ok(Arc::default());
        };
        let read = self.upper_levels().await;
        if self.file.version() != Some(version) {
            // Of a file that changes meanwhile nothing is known, errors included.
            return Ok(Arc::default());
        }
        let cache = Arc::new(Cache { version: Some(version), nodes: read? });
        *lock(&self.cached) = Arc::clone(&cache);
        Ok(cache)
    }

    /// Whether an answer that began with these nodes is of the file that they are of.
    fn is_current(&self, cache: &Cache) -> bool {
        cache.version.is_none() || self.file.version() == cache.version
    }

    async fn upper_levels(&self) -> Result<BTreeMap<u64, Node>, BTreeError> {
        let (mut level, mut nodes) = (vec![0], BTreeMap::new());
        for _ in 0..self.options.cached_levels.min(LEVELS_MAX) {
            if level.is_empty() || nodes.len() + level.len() > KEPT_MAX {
                break;
            }
            let mut below = Vec::new();
            for place in level {
                let node = self.read_node(place).await?;
                if !node.is_leaf()? {
                    for entry in 0..node.entries()?.len() {
                        let child = node.child(place, entry)?;
                        // Nodes of a level follow each other. Pointers that all led to one node would have it read again and again.
                        if below.last().is_some_and(|before| *before >= child) {
                            return Err(BadNode::Pointer.into());
                        }
                        below.push(child);
                    }
                }
                nodes.insert(place, node);
            }
            level = below;
        }
        Ok(nodes)
    }

    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, BTreeError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let bytes = self.pages.read(offset, len).await.map_err(BTreeError::Read)?;
        if bytes.len() == len { Ok(bytes) } else { Err(BTreeError::Short) }
    }

    async fn read_node(&self, place: u64) -> Result<Node, BTreeError> {
        Ok(*Node::parse(&self.read(place, NODE_LEN).await?)?)
    }

    /// The value of a key, and who found it.
    ///
    /// # Errors
    ///
    /// When it is not known whether there is one.
    pub async fn get(&self, key: u64) -> Result<(Option<[u8; VALUE_LEN]>, Path), BTreeError> {
        for _ in 0..ATTEMPTS_MAX {
            let mut asked = self.begin().await;
            let said = self.get_once(key).await;
            asked.is_several = self.pages.are_requests() && !matches!(said, Ok((_, Path::Pushed)));
            if self.is_of_one_file(&asked, said.is_err()) {
                let (value, path) = said?;
                return Ok((value, self.count(path)));
            }
        }
        Err(BTreeError::Replaced(ATTEMPTS_MAX))
    }

    async fn get_once(&self, key: u64) -> Result<(Option<[u8; VALUE_LEN]>, Path), BTreeError> {
        let cache = self.cache().await?;
        let said = self.get_from(&cache, key).await;
        if self.is_current(&cache) {
            return said;
        }
        // The file has changed since its upper levels were read: what was followed leads anywhere in it, to what looks like damage too.
        self.get_from(&Cache::default(), key).await
    }

    /// Begins with a question that may be several requests.
    async fn begin(&self) -> Asked {
        let is_asked = !self.options.only_ordinary || self.pages.are_requests();
        let incarnation = if is_asked { self.session.incarnation_to_be(&self.file).await } else { None };
        Asked { incarnation, is_several: false }
    }

    /// Whether all requests of a question saw the same file. Without a file to begin with, an error is one whatever came of it.
    fn is_of_one_file(&self, asked: &Asked, has_failed: bool) -> bool {
        match asked.incarnation {
            _ if !asked.is_several || is_planted(Bug::RangesMixed) => true,
            None => has_failed,
            begun => self.file.incarnation() == begun,
        }
    }

    async fn get_from(&self, cache: &Cache, key: u64) -> Result<(Option<[u8; VALUE_LEN]>, Path), BTreeError> {
        let place = match cache.follow(key)? {
            Followed::Child(place) => place,
            Followed::Absent => return Ok((None, Path::Ordinary)),
            Followed::Value(place) => return Ok((Some(self.value_at(place).await?), Path::Ordinary)),
        };
        let first = Read { file: 0, offset: place, len: NODE_LEN as u32 };
        let obstacle = match self.ask(&self.get, first, &key.to_le_bytes(), GET_LEN).await? {
            Ok(scratch) => return Ok((found(&scratch)?, Path::Pushed)),
            Err(obstacle) => obstacle,
        };
        let value = self.get_ordinary(key, place).await.map_err(|error| obstacle.explain(error))?;
        Ok((value, Path::Ordinary))
    }

    /// What the card says; or what keeps it from answering, if the ordinary path is to.
    async fn ask(
        &self,
        query: &Query,
        first: Read,
        input: &[u8],
        wanted: usize,
    ) -> Result<Result<Vec<u8>, Obstacle>, BTreeError> {
        if self.options.only_ordinary {
            return Ok(Err(Obstacle(None)));
        }
        match self.session.ask(query, first, input, wanted as u32).await {
            Ok(Answer { scratch, reads }) => {
                self.card_reads.fetch_add(u64::from(reads), Ordering::Relaxed);
                Ok(Ok(scratch))
            }
            Err(obstacle) if obstacle.has_ordinary_path() => {
                *lock(&self.obstacle) = Some(obstacle.clone());
                Ok(Err(Obstacle(Some(obstacle))))
            }
            Err(error) => Err(BTreeError::Push(error)),
        }
    }

    fn count(&self, path: Path) -> Path {
        match path {
            Path::Pushed => self.pushed.fetch_add(1, Ordering::Relaxed),
            Path::Ordinary => self.ordinary.fetch_add(1, Ordering::Relaxed),
        };
        path
    }

    async fn get_ordinary(&self, key: u64, from: u64) -> Result<Option<[u8; VALUE_LEN]>, BTreeError> {
        let mut place = from;
        for _ in 0..LEVELS_MAX {
            match self.read_node(place).await?.follow(place, key)? {
                Followed::Child(next) => place = next,
                Followed::Absent => return Ok(None),
                Followed::Value(value) => return self.value_at(value).await.map(Some),
            }
        }
        Err(BadNode::Circle.into())
    }

    async fn value_at(&self, place: u64) -> Result<[u8; VALUE_LEN], BTreeError> {
        self.read(place, VALUE_LEN).await?.try_into().map_err(|_| BTreeError::Short)
    }

    /// The values of several keys, which are asked for all at once.
    ///
    /// # Errors
    ///
    /// As [`BTree::get`].
    pub async fn multi_get(&self, keys: &[u64]) -> Result<Vec<Option<[u8; VALUE_LEN]>>, BTreeError> {
        let asked: Vec<_> = keys.iter().map(|key| self.get(*key)).collect();
        let answers = crate::client::join_all(asked).await;
        answers.into_iter().map(|answer| answer.map(|(value, _)| value)).collect()
    }

    /// The first so many keys of a range, both ends included, with their values.
    ///
    /// # Errors
    ///
    /// As [`BTree::get`].
    pub async fn range(
        &self,
        from: u64,
        to: u64,
        limit: usize,
    ) -> Result<Vec<(u64, [u8; VALUE_LEN])>, BTreeError> {
        for _ in 0..ATTEMPTS_MAX {
            let mut asked = self.begin().await;
            let said = self.range_once(&mut asked, (from, to), limit).await;
            if self.is_of_one_file(&asked, said.is_err()) {
                return said;
            }
        }
        if !self.file.has_versions() {
            return Err(BTreeError::Replaced(ATTEMPTS_MAX));
        }
        let push = |all: &mut Vec<_>, key, value| all.push((key, value));
        let said = self.range_ordinary(from, to, limit, push).await?;
        self.count(Path::Ordinary);
        Ok(said)
    }

    /// The same, as far as it is found before the file is seen to be another one.
    async fn range_once(
        &self,
        asked: &mut Asked,
        (mut from, to): (u64, u64),
        limit: usize,
    ) -> Result<Vec<(u64, [u8; VALUE_LEN])>, BTreeError> {
        let mut all = Vec::new();
        while all.len() < limit && from <= to && self.is_of_one_file(asked, false) {
            let left = ((limit - all.len()) as u64).min(FOUND_MAX);
            let (found, resume) = match self.range_pushed(from, to, left).await? {
                Ok(found) => found,
                Err(obstacle) => {
                    // Each read may be a request.
                    asked.is_several |= self.pages.are_requests();
                    let push = |rest: &mut Vec<_>, key, value| rest.push((key, value));
                    let rest = self.range_ordinary(from, to, limit - all.len(), push).await;
                    all.extend(rest.map_err(|error| obstacle.explain(error))?);
                    self.count(Path::Ordinary);
                    return Ok(all);
                }
            };
            self.count(Path::Pushed);
            all.extend(found);
            let Some(resume) = resume else { break };
            from = resume;
            // What follows is another request, if anything does.
            asked.is_several |= all.len() < limit && from <= to;
        }
        Ok(all)
    }

    /// What one request brings, and where the next one begins; or what keeps the card from answering it.
    async fn range_pushed(
        &self,
        from: u64,
        to: u64,
        limit: u64,
    ) -> Result<Result<Found, Obstacle>, BTreeError> {
        let input = [from, to, limit].map(u64::to_le_bytes).concat();
        let wanted = FOUND_AT + FOUND_LEN * limit as usize;
        let scratch = match self.scan(&self.range, from, &input, wanted).await? {
            Ok(scratch) => scratch,
            Err(obstacle) => return Ok(Err(obstacle)),
        };
        let count = word(&scratch, 6)?.min(limit) as usize;
        let mut found = Vec::with_capacity(count);
        for entry in scratch.get(FOUND_AT..).unwrap_or_default().chunks_exact(FOUND_LEN).take(count) {
            let (key, value) = entry.split_at(8);
            let value = value.try_into().map_err(|_| BTreeError::Short)?;
            found.push((word(key, 0)?, value));
        }
        let resume = resume(&scratch, from)?;
        Ok(Ok((found, resume)))
    }

    async fn scan(
        &self,
        query: &Query,
        from: u64,
        input: &[u8],
        wanted: usize,
    ) -> Result<Result<Vec<u8>, Obstacle>, BTreeError> {
        let cache = self.cache().await?;
        let place = match cache.follow(from) {
            Ok(Followed::Child(place)) => place,
            // The leaf is here, or there is none below the first key, or nodes are damaged: from the root on that is found again.
            Ok(Followed::Absent | Followed::Value(_)) | Err(_) => 0,
        };
        let from_node = |offset| Read { file: 0, offset, len: NODE_LEN as u32 };
        let said = self.ask(query, from_node(place), input, wanted).await;
        if self.is_current(&cache) {
            return said;
        }
        self.ask(query, from_node(0), input, wanted).await
    }

    /// The leaf where a range begins, and where it is.
    async fn leaf_of(&self, cache: &Cache, key: u64) -> Result<(u64, Node), BTreeError> {
        let mut place = 0;
        for _ in 0..LEVELS_MAX {
            let node = match cache.nodes.get(&place) {
                Some(node) => *node,
                None => self.read_node(place).await?,
            };
            // All entries count, as they do for the program.
            let keys = node.entries()?;
            if node.is_leaf()? {
                return Ok((place, node));
            }
            let at = keys.partition_point(|have| have.get() <= key).saturating_sub(1);
            place = node.child(place, at)?;
        }
        Err(BadNode::Circle.into())
    }

    /// What becomes of the first so many keys of a range and their values, one after the other.
    async fn range_ordinary<S: Default + Send>(
        &self,
        from: u64,
        to: u64,
        limit: usize,
        take: impl Fn(&mut S, u64, [u8; VALUE_LEN]) + Send + Sync,
    ) -> Result<S, BTreeError> {
        let walk = async |cache: &Cache| {
            let mut all = S::default();
            self.walk(cache, (from, to), limit, &mut |key, value| take(&mut all, key, value)).await?;
            Ok(all)
        };
        let cache = self.cache().await?;
        let said = walk(&cache).await;
        if self.is_current(&cache) {
            return said;
        }
        // It was another file's leaf where it began, maybe.
        walk(&Cache::default()).await
    }

    /// Hands the first so many keys of a range on, leaf by leaf: nothing of what was handed on is kept here.
    async fn walk(
        &self,
        cache: &Cache,
        (from, to): (u64, u64),
        limit: usize,
        take: &mut (dyn FnMut(u64, [u8; VALUE_LEN]) + Send),
    ) -> Result<(), BTreeError> {
        let (mut place, mut leaf) = self.leaf_of(cache, from).await?;
        let mut left = limit;
        loop {
            let keys = leaf.entries()?;
            let mut entry = keys.partition_point(|key| key.get() < from);
            while let Some(key) = keys.get(entry) {
                if key.get() > to || left == 0 {
                    return Ok(());
                }
                // Values that lie side by side are read at once.
                let first = leaf.value(place, entry)?;
                let follows = |run: &usize| {
                    let next = entry + run;
                    keys.get(next).is_some_and(|key| key.get() <= to)
                        && leaf.value(place, next) == Ok(first + (*run * VALUE_LEN) as u64)
                };
                let run = 1 + (1..left.min(ENTRIES_MAX)).take_while(follows).count();
                let bytes = self.read(first, run * VALUE_LEN).await?;
                for (key, value) in keys.iter().skip(entry).zip(bytes.chunks_exact(VALUE_LEN)) {
                    take(key.get(), value.try_into().map_err(|_| BTreeError::Short)?);
                }
                (entry, left) = (entry + run, left - run);
            }
            let Some(next) = leaf.next()? else { return Ok(()) };
            let last = keys.last().map(|key| key.get());
            (place, leaf) = (next, self.read_node(next).await?);
            let first = leaf.entries()?.first().map(|key| key.get());
            if !leaf.is_leaf()? {
                return Err(BadNode::Leaf.into());
            }
            // Links that lead back would never end.
            if first <= last {
                return Err(BadNode::Circle.into());
            }
        }
    }

    /// What comes of the numbers of a range, both ends included.
    ///
    /// # Errors
    ///
    /// As [`BTree::get`].
    pub async fn aggregate(&self, from: u64, to: u64, filter: Filter) -> Result<Aggregate, BTreeError> {
        for _ in 0..ATTEMPTS_MAX {
            let mut asked = self.begin().await;
            let said = self.aggregate_once(&mut asked, (from, to), filter).await;
            if self.is_of_one_file(&asked, said.is_err()) {
                return said;
            }
        }
        if !self.file.has_versions() {
            return Err(BTreeError::Replaced(ATTEMPTS_MAX));
        }
        let said = self.aggregate_ordinary((from, to), filter).await?;
        self.count(Path::Ordinary);
        Ok(said)
    }

    async fn aggregate_once(
        &self,
        asked: &mut Asked,
        (from, to): (u64, u64),
        filter: Filter,
    ) -> Result<Aggregate, BTreeError> {
        let field = filter.field.min(VALUE_LEN - 8);
        let mut found = Aggregate::default();
        let mut first = from;
        let obstacle = loop {
            let reads = u64::from(AGGREGATE_READS);
            let input =
                [first, to, reads, field as u64, filter.low, filter.high].map(u64::to_le_bytes).concat();
            let scratch = match self.scan(&self.aggregate, first, &input, 8 * SCAN_WORDS).await? {
                Ok(scratch) => scratch,
                Err(obstacle) => break obstacle,
            };
            self.count(Path::Pushed);
            found.add(&scratch)?;
            let Some(next) = resume(&scratch, first)? else { return Ok(found) };
            first = next;
            asked.is_several = true;
            if !self.is_of_one_file(asked, false) {
                return Ok(found);
            }
        };
        // Each read may be a request.
        asked.is_several |= self.pages.are_requests();
        let rest = self.aggregate_ordinary((first, to), filter).await;
        let rest = rest.map_err(|error| obstacle.explain(error))?;
        self.count(Path::Ordinary);
        if let (Some(least), Some(greatest)) = (rest.least, rest.greatest) {
            found.join(rest.count, rest.sum, least, greatest);
        }
        Ok(found)
    }

    async fn aggregate_ordinary(
        &self,
        (from, to): (u64, u64),
        filter: Filter,
    ) -> Result<Aggregate, BTreeError> {
        let field = filter.field.min(VALUE_LEN - 8);
        let fold = |found: &mut Aggregate, _, value: [u8; VALUE_LEN]| {
            let bytes = value.get(field..).and_then(|rest| rest.first_chunk::<8>()).copied();
            let number = u64::from_le_bytes(bytes.unwrap_or_default());
            if (filter.low..=filter.high).contains(&number) {
                found.join(1, number, number, number);
            }
        };
        self.range_ordinary(from, to, usize::MAX, fold).await
    }
}

/// Keys and values, and the key from which on there is more.
type Found = (Vec<(u64, [u8; VALUE_LEN])>, Option<u64>);

/// A number of eight bytes, by its place.
fn word(bytes: &[u8], at: usize) -> Result<u64, BTreeError> {
    let bytes = bytes.get(8 * at..).and_then(|rest| rest.first_chunk::<8>());
    bytes.map(|bytes| u64::from_le_bytes(*bytes)).ok_or(BTreeError::Short)
}

/// Where a scan goes on. Each request gets further than the one before: links that lead back would never end.
fn resume(scratch: &[u8], from: u64) -> Result<Option<u64>, BTreeError> {
    if word(scratch, 10)? == 0 {
        return Ok(None);
    }
    let next = word(scratch, 11)?;
    if next > from { Ok(Some(next)) } else { Err(BadNode::Circle.into()) }
}

/// What `bpfkv_get` says.
fn found(scratch: &[u8]) -> Result<Option<[u8; VALUE_LEN]>, BTreeError> {
    if word(scratch, 1)? == 0 {
        return Ok(None);
    }
    let value = scratch.get(24..GET_LEN).and_then(|value| value.try_into().ok());
    value.map(Some).ok_or(BTreeError::Short)
}
