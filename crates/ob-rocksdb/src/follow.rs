//! Follows a directory that somebody writes: manifest, logs, tables.
//!
//! The writer appends to its logs, then writes tables, then says so in the manifest, and only then removes what it does not need any
//! more. So a reader goes the other way: it reads the manifest, lists and opens what the manifest needs, and looks at the manifest
//! again; if that has not changed, nothing that was needed was removed before it was opened. What was opened stays what it was when it is
//! removed, but for logs that are recycled: another log is written over them. Where there may be such, the manifest is looked at once more
//! when they were read.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::cache::BlockCache;
use crate::error::{Damage, Error, ParseError, Unsupported};
use crate::files::{Files, ReadError};
use crate::keys::Sequence;
use crate::log::{self, BLOCK_LEN, End, Position, Stop};
use crate::manifest;
use crate::memory::{ChunkBuilder, Memory};
use crate::options_file;
use crate::properties::check_comparator;
use crate::reader::TableFile;
use crate::state::{FamilyState, State};
use crate::version::{Version, View};
use crate::write_batch;

// What is read of a log at once; as much as a record takes, if it takes more.
const WINDOW_LEN: usize = 1 << 20;
// Manifests count their records by no number.
const MANIFEST_NUMBER: u32 = 0;
// A record of a manifest has all tables of a column family at most, in a hundred bytes or two each.
const MANIFEST_RECORD_LEN_MAX: usize = 64 << 20;
// Zeros behind a log's records, in a file that was made larger before they are written: RocksDB makes it a little larger than the
// memory that the log stands for. They are read once.
const ZEROS_LEN_MAX: u64 = 1 << 30;
// A frame that looks cut off is looked behind so far.
const BEHIND_LEN: usize = 2 * BLOCK_LEN as usize;

/// A log that is being read.
#[derive(Clone, Debug)]
struct Tail<H> {
    name: String,
    file: H,
    number: u32,
    position: Position,
    // Up to here, from where its records ended when it was read last, there were zeros. Whoever writes on begins at the first of them.
    zeros_end: u64,
    // Bytes that a record may take.
    record_len_max: usize,
}

impl<H: Clone + Send + Sync> Tail<H> {
    const fn new(name: String, file: H, number: u32, record_len_max: usize) -> Self {
        let position = Position { offset: 0, is_recycled: false };
        Self { name, file, number, position, zeros_end: 0, record_len_max }
    }

    fn error(&self, offset: u64, error: impl Into<ParseError>) -> Error {
        Error::at(&self.name, offset, error.into())
    }

    /// Whether the file may be another log by now, which is written over this one: this one's last records were not seen then.
    const fn may_be_another(&self) -> bool {
        // Of one whose first frame is another's already nothing was read.
        self.position.is_recycled || self.position.offset == 0
    }

    /// Reads what has been appended, and hands on its records. Says how the log ends.
    async fn read<F: Files<File = H>>(
        &mut self,
        files: &F,
        take: &mut (dyn FnMut(&[u8]) -> Result<(), ParseError> + Send),
    ) -> Result<End, Error> {
        let len = files.len(&self.file).await?;
        let mut window = WINDOW_LEN;
        loop {
            let left = len.saturating_sub(self.position.offset);
            if left == 0 {
                return Ok(End::Clean);
            }
            let size = usize::try_from(left).map_or(window, |left| left.min(window));
            let is_whole = size as u64 == left;
            let bytes = files.read(&self.file, self.position.offset, size).await?;
            let start = self.position;
            let scan = log::scan(&bytes, start, self.number);
            let scan = scan.map_err(|error| self.error(error.offset, error.error))?;
            for (offset, record) in &scan.records {
                take(record).map_err(|error| self.error(*offset, error))?;
            }
            self.position = scan.position;
            let stop = usize::try_from(scan.stop_offset - start.offset).unwrap_or(bytes.len());
            let behind = bytes.get(stop..).unwrap_or_default();
            let goes_on = match scan.stop {
                Stop::Bytes => !is_whole,
                Stop::Older => !is_whole && behind.len() < BEHIND_LEN,
                Stop::Zeros if is_whole => false,
                Stop::Zeros => match self.behind_zeros(files, start.offset + size as u64, len).await? {
                    None => false,
                    // These zeros were read before what is behind them: the writer may have gone on in between.
                    Some(next) if !self.are_zeros(files, scan.stop_offset, next).await? => {
                        (window, self.zeros_end) = (WINDOW_LEN, 0);
                        continue;
                    }
                    Some(next) if scan.end == End::Clean => {
                        // They are the rest of a block, or whole ones.
                        let block = next - next % BLOCK_LEN;
                        if block < scan.stop_offset && self.position.is_recycled {
                            return Ok(End::Torn);
                        }
                        if block < scan.stop_offset {
                            return Err(
                                self.error(scan.stop_offset, Damage::Malformed("a frame has no kind"))
                            );
                        }
                        self.position.offset = block;
                        true
                    }
                    Some(_) => true,
                },
            };
            if !goes_on {
                let stop = Position { offset: scan.stop_offset, ..self.position };
                if scan.end == End::Torn && log::has_whole_frame(behind, stop, self.number) {
                    let damage = Damage::Malformed("a frame is damaged, and others follow");
                    return Err(self.error(stop.offset, damage));
                }
                return Ok(scan.end);
            }
            window = if self.position == start { self.larger(window, left)? } else { WINDOW_LEN };
        }
    }

    /// What to read at once where no record ends in so many bytes.
    fn larger(&self, window: usize, left: u64) -> Result<usize, Error> {
        // Frames take a little beside the record's bytes.
        let largest =
            (self.record_len_max.saturating_add(self.record_len_max / 1024)).saturating_add(WINDOW_LEN);
        if window < largest {
            return Ok(window.saturating_mul(2).min(largest));
        }
        let len_max = self.record_len_max as u64;
        Err(self
            .error(self.position.offset, Damage::TooLarge { what: "a record of a log", len: left, len_max }))
    }

    /// Whether there is nothing else between two places, now.
    async fn are_zeros<F: Files<File = H>>(&self, files: &F, mut at: u64, end: u64) -> Result<bool, Error> {
        while at < end {
            let size = usize::try_from(end - at).map_or(WINDOW_LEN, |left| left.min(WINDOW_LEN));
            let bytes = files.read(&self.file, at, size).await?;
            if bytes.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            at += size as u64;
        }
        Ok(true)
    }

    /// Where something else stands behind zeros, if anything does. They are counted from where the log's records end, and not kept.
    async fn behind_zeros<F: Files<File = H>>(
        &mut self,
        files: &F,
        from: u64,
        len: u64,
    ) -> Result<Option<u64>, Error> {
        let mut at = from.max(self.zeros_end);
        while at < len {
            if at - self.position.offset > ZEROS_LEN_MAX {
                let zeros = len - self.position.offset;
                let what = "zeros behind the records of a log";
                let damage = Damage::TooLarge { what, len: zeros, len_max: ZEROS_LEN_MAX };
                return Err(self.error(self.position.offset, damage));
            }
            let size = usize::try_from(len - at).map_or(WINDOW_LEN, |left| left.min(WINDOW_LEN));
            let bytes = files.read(&self.file, at, size).await?;
            if let Some(zeros) = bytes.iter().position(|byte| *byte != 0) {
                return Ok(Some(at + zeros as u64));
            }
            at += size as u64;
            self.zeros_end = at;
        }
        Ok(None)
    }
}

/// The manifest that is being read, and by what it is known again: a database that is made anew may have one of the same name.
#[derive(Debug)]
struct Manifest<H> {
    tail: Tail<H>,
    number: u64,
    // What IDENTITY has, which no two databases share, if there is such a file.
    identity: Option<Vec<u8>>,
    // The first bytes of the manifest.
    beginning: Vec<u8>,
}

// So many bytes of a manifest are compared. The first tables and their keys are among them, if there are any.
const BEGINNING_LEN: u64 = 4096;
// IDENTITY is a number in hexadecimal digits.
const IDENTITY_LEN_MAX: u64 = 256;

/// The first bytes of a file.
async fn first_bytes<F: Files>(files: &F, file: &F::File, len_max: u64) -> Result<Vec<u8>, ReadError> {
    let len = files.len(file).await?.min(len_max);
    files.read(file, 0, usize::try_from(len).unwrap_or(0)).await
}

async fn read_identity<F: Files>(files: &F) -> Result<Option<Vec<u8>>, ReadError> {
    match files.open("IDENTITY").await {
        Ok(file) => first_bytes(files, &file, IDENTITY_LEN_MAX).await.map(Some),
        Err(ReadError::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

impl<H: Clone + Send + Sync> Manifest<H> {
    async fn open<F: Files<File = H>>(files: &F, name: &str, number: u64) -> Result<Self, ReadError> {
        // RocksDB writes IDENTITY before the first manifest. Read before and after the manifest, it is that of the manifest's database.
        let identity = read_identity(files).await?;
        let file = files.open(name).await?;
        let beginning = first_bytes(files, &file, BEGINNING_LEN).await?;
        let tail = Tail::new(name.to_owned(), file, MANIFEST_NUMBER, MANIFEST_RECORD_LEN_MAX);
        Ok(Self { tail, number, identity, beginning })
    }

    /// Whether the file that has the name now is the one that was opened, as far as it was read.
    async fn is_same_file<F: Files<File = H>>(&self, files: &F) -> Result<bool, ReadError> {
        let file = files.open(&self.tail.name).await?;
        if files.len(&file).await? < self.tail.position.offset.max(self.beginning.len() as u64) {
            return Ok(false);
        }
        Ok(files.read(&file, 0, self.beginning.len()).await? == self.beginning)
    }
}

/// What a follower knows. Wherever following is given up, the next attempt goes on from there.
#[derive(Debug)]
pub(crate) struct Follower<H> {
    manifest: Option<Manifest<H>>,
    state: State,
    logs: BTreeMap<u64, Tail<H>>,
    memory: BTreeMap<u32, Memory>,
    last_sequence: Sequence,
    tables: HashMap<u64, Arc<TableFile<H>>>,
    // The tables that were shown last, by their ids.
    shown: HashMap<u64, Arc<TableFile<H>>>,
    options: (u64, BTreeMap<String, String>),
}

/// What may be taken of a directory into memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) logs_len_max: usize,
    pub(crate) manifest_len_max: usize,
}

/// Why an attempt came to nothing.
pub(crate) enum Obstacle {
    /// Something was gone, or not there yet: try again.
    Vanished(String),
    /// It will not get better.
    Failed(Error),
}

impl From<Error> for Obstacle {
    fn from(error: Error) -> Self {
        match error {
            Error::Read(error) => error.into(),
            other => Self::Failed(other),
        }
    }
}

impl From<ReadError> for Obstacle {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::NotFound(file) => Self::Vanished(file),
            other => Self::Failed(other.into()),
        }
    }
}

impl<H> Default for Follower<H> {
    fn default() -> Self {
        Self {
            manifest: None,
            state: State::default(),
            logs: BTreeMap::new(),
            memory: BTreeMap::new(),
            last_sequence: Sequence(0),
            tables: HashMap::new(),
            shown: HashMap::new(),
            options: (0, BTreeMap::new()),
        }
    }
}

impl<H: Clone + Send + Sync + 'static> Follower<H> {
    /// Goes to where the directory is now.
    pub(crate) async fn follow<F: Files<File = H>>(
        &mut self,
        files: &F,
        bounds: Bounds,
    ) -> Result<View<H>, Obstacle> {
        self.read_manifest(files, bounds.manifest_len_max).await?;
        let listed = files.list().await?;
        self.open_logs(files, &listed, bounds.logs_len_max).await?;
        self.read_options(files, &listed).await?;
        self.open_tables(files).await?;
        if self.read_manifest(files, bounds.manifest_len_max).await? {
            return Err(Obstacle::Vanished("what the manifest had before".to_owned()));
        }
        let read = self.read_logs(files, bounds.logs_len_max).await;
        let is_doubtful = match &read {
            Ok(()) => self.logs.values().any(Tail::may_be_another),
            Err(Obstacle::Failed(_)) => true,
            Err(Obstacle::Vanished(_)) => false,
        };
        // A log that nobody needs any more may be written over while it is read. The manifest says before that it is not needed.
        if is_doubtful && self.read_manifest(files, bounds.manifest_len_max).await? {
            return Err(Obstacle::Vanished("a log that another is written over".to_owned()));
        }
        read.map(|()| self.view())
    }

    /// Reads new records of the manifest, or all of a new one; says whether there were any.
    async fn read_manifest<F: Files<File = H>>(
        &mut self,
        files: &F,
        len_max: usize,
    ) -> Result<bool, Obstacle> {
        let (name, number) = read_current(files).await?;
        let is_known = match &self.manifest {
            Some(manifest) if manifest.tail.name == name => manifest.is_same_file(files).await?,
            _ => false,
        };
        if !is_known {
            let opened = Manifest::open(files, &name, number).await?;
            // Manifests of one database are counted upwards. Nobody knows whose logs and tables these are if the last was given up half-way.
            let is_next = |last: &Manifest<H>| last.number < number && last.identity == opened.identity;
            if !self.manifest.as_ref().is_some_and(is_next) {
                self.start_over();
            }
            (self.state, self.manifest) = (State::default(), Some(opened));
        }
        let Some(mut manifest) = self.manifest.take() else { return Ok(false) };
        let state = &mut self.state;
        let before = manifest.tail.position;
        let mut take = |record: &[u8]| {
            state.take(manifest::parse(record)?)?;
            let (what, len) = ("what the manifest has", state.bytes());
            let damage = Damage::TooLarge { what, len: len as u64, len_max: len_max as u64 };
            if len <= len_max { Ok(()) } else { Err(damage.into()) }
        };
        manifest.tail.read(files, &mut take).await?;
        let changed = !is_known || manifest.tail.position != before;
        if read_identity(files).await? != manifest.identity {
            self.start_over();
            return Err(Obstacle::Vanished("the database that was here".to_owned()));
        }
        self.manifest = Some(manifest);
        Ok(changed)
    }

    /// Forgets what was read: it was another database's.
    fn start_over(&mut self) {
        *self = Self { shown: std::mem::take(&mut self.shown), ..Self::default() };
    }

    async fn open_logs<F: Files<File = H>>(
        &mut self,
        files: &F,
        listed: &[(String, u64)],
        record_len_max: usize,
    ) -> Result<(), Obstacle> {
        let first = self.state.first_log();
        self.logs.retain(|number, _| *number >= first);
        for (log, name) in logs_from(listed, first) {
            if let Entry::Vacant(vacant) = self.logs.entry(log) {
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "frames have the lower half of the number"
                )]
                let number = log as u32;
                vacant.insert(Tail::new(name.to_owned(), files.open(name).await?, number, record_len_max));
            }
        }
        for (log, synced) in self.state.logs.range(first..) {
            let tail = match self.logs.get(log) {
                Some(tail) => tail,
                // One to which nothing was written may be gone.
                None if *synced == 0 => continue,
                None => return Err(Obstacle::Vanished(format!("{log:06}.log"))),
            };
            if files.len(&tail.file).await? < *synced {
                let damage = Damage::Malformed("a log is shorter than what the manifest says was synced");
                return Err(tail.error(*synced, damage).into());
            }
        }
        Ok(())
    }

    async fn read_options<F: Files<File = H>>(
        &mut self,
        files: &F,
        listed: &[(String, u64)],
    ) -> Result<(), Obstacle> {
        let numbers =
            listed.iter().filter_map(|(name, _)| Some((number(name.strip_prefix("OPTIONS-")?)?, name)));
        let Some((newest, name)) = numbers.max().filter(|(newest, _)| *newest > self.options.0) else {
            return Ok(());
        };
        let file = files.open(name).await?;
        let len = files.len(&file).await?;
        // A line or two for each option of each column family.
        let len = usize::try_from(len).ok().filter(|len| *len <= 64 << 20);
        let too_large = || Error::at(name, 0, Damage::Malformed("an OPTIONS file is too large").into());
        let text = files.read(&file, 0, len.ok_or_else(too_large)?).await?;
        let text = String::from_utf8_lossy(&text);
        // A directory that was copied has its logs beside it, whatever it says: RocksDB always has one that it writes to, be it empty. One
        // that nobody needs any more may have been left here before the logs went elsewhere.
        if let Some(directory) = options_file::log_directory(&text)
            && logs_from(listed, self.state.first_log()).next().is_none()
        {
            return Err(Error::at(name, 0, Unsupported::OtherLogs(directory).into()).into());
        }
        self.options = (newest, options_file::merge_operators(&text));
        Ok(())
    }

    async fn open_tables<F: Files<File = H>>(&mut self, files: &F) -> Result<(), Obstacle> {
        let mut tables = HashMap::new();
        for family in self.state.families.values() {
            for (number, (_, facts)) in &family.tables {
                let known = self.tables.get(number).filter(|known| known.facts == **facts);
                let table = match known {
                    Some(table) => table.clone(),
                    None => {
                        let name = format!("{number:06}.sst");
                        let file = files.open(&name).await?;
                        Arc::new(TableFile::new((**facts).clone(), name, file)?)
                    }
                };
                tables.insert(*number, table);
            }
        }
        self.tables = tables;
        Ok(())
    }

    async fn read_logs<F: Files<File = H>>(&mut self, files: &F, len_max: usize) -> Result<(), Obstacle> {
        let needed: BTreeMap<u32, u64> =
            self.state.families.iter().map(|(id, family)| (*id, family.log_number)).collect();
        // Kept apart until all logs were read: where each was read up to and what it had belong together.
        let (mut memory, mut logs) = (self.memory.clone(), self.logs.clone());
        memory.retain(|id, _| needed.contains_key(id));
        for (id, first) in &needed {
            memory.entry(*id).or_default().forget_before(*first);
        }
        let mut len = memory.values().map(Memory::bytes).sum::<usize>();
        let newest = logs.last_key_value().map(|(log, _)| *log);
        let max_family = self.state.max_family;
        let mut last_sequence = self.last_sequence.max(self.state.last_sequence);
        for (log, tail) in &mut logs {
            let mut builders: BTreeMap<u32, ChunkBuilder> = BTreeMap::new();
            let mut is_early = false;
            let mut take = |record: &[u8]| {
                write_batch::for_each(record, |write| {
                    last_sequence = last_sequence.max(write.sequence);
                    is_early |= write.family > max_family;
                    if needed.get(&write.family).is_some_and(|first| log >= first) {
                        let builder = builders.entry(write.family).or_default();
                        let before = builder.bytes();
                        builder.push(&write);
                        len += builder.bytes() - before;
                    }
                    let what = "what write-ahead logs have";
                    let too_large = Damage::TooLarge { what, len: len as u64, len_max: len_max as u64 };
                    if len <= len_max { Ok(()) } else { Err(too_large.into()) }
                })
            };
            let end = tail.read(files, &mut take).await?;
            if is_early {
                // The manifest has the column family by now: it is written before the first entry is.
                return Err(Obstacle::Vanished("a column family that is new".to_owned()));
            }
            if end == End::Torn && Some(*log) != newest && !tail.position.is_recycled {
                let damage = Damage::Malformed("a log ends within a record, and others follow");
                return Err(tail.error(tail.position.offset, damage).into());
            }
            for (id, builder) in builders {
                memory.entry(id).or_default().add(*log, builder);
            }
        }
        (self.memory, self.logs, self.last_sequence) = (memory, logs, last_sequence);
        Ok(())
    }

    fn view(&self) -> View<H> {
        let mut families = BTreeMap::new();
        for (id, family) in &self.state.families {
            let comparator = family.comparator.as_deref().map_or(Ok(()), check_comparator);
            let version = comparator.map(|()| {
                let operator = self.options.1.get(&family.name).cloned();
                let memory = self.memory.get(id).cloned().unwrap_or_default();
                Arc::new(Version::new(family.name.clone(), *id, operator, memory, self.levels(family)))
            });
            families.insert(family.name.clone(), version);
        }
        View { families, last_sequence: self.last_sequence }
    }

    fn levels(&self, family: &FamilyState) -> Vec<Vec<Arc<TableFile<H>>>> {
        let mut levels: Vec<Vec<Arc<TableFile<H>>>> = Vec::new();
        for (number, (level, _)) in &family.tables {
            let level = *level as usize;
            if levels.len() <= level {
                levels.resize_with(level + 1, Vec::new);
            }
            levels[level].extend(self.tables.get(number).cloned());
        }
        for (level, files) in levels.iter_mut().enumerate() {
            if level > 0 {
                files
                    .sort_by(|left, right| crate::keys::compare(&left.facts.smallest, &right.facts.smallest));
                continue;
            }
            // Since 7.9 tables of level 0 are in the order of their epochs, before in that of their entries.
            let has_epochs = files.iter().all(|file| file.facts.epoch > 0);
            files.sort_by_key(|file| {
                let facts = &file.facts;
                let epoch = if has_epochs { facts.epoch } else { 0 };
                (epoch, facts.largest_sequence, facts.smallest_sequence, facts.number)
            });
            files.reverse();
        }
        levels
    }

    /// Lets the cache forget tables that were shown before and are not any more.
    pub(crate) fn forget_tables(&mut self, cache: &BlockCache) {
        let now: HashMap<u64, _> = self.tables.values().map(|table| (table.id(), table.clone())).collect();
        self.shown.iter().filter(|(id, _)| !now.contains_key(id)).for_each(|(_, table)| table.forget(cache));
        self.shown = now;
    }
}

/// Which manifest is the current one: its name and number.
async fn read_current<F: Files>(files: &F) -> Result<(String, u64), Obstacle> {
    let current = files.open("CURRENT").await?;
    let name = first_bytes(files, &current, 4096).await?;
    let name = std::str::from_utf8(&name).ok().and_then(|text| text.strip_suffix('\n'));
    let named = name.and_then(|name| Some((name.to_owned(), number(name.strip_prefix("MANIFEST-")?)?)));
    let wrong = || Error::at("CURRENT", 0, Damage::Malformed("it does not name a manifest").into());
    named.ok_or_else(|| Obstacle::Failed(wrong()))
}

/// The logs of a directory from one on, by their numbers.
fn logs_from(listed: &[(String, u64)], first: u64) -> impl Iterator<Item = (u64, &str)> {
    let numbered =
        listed.iter().filter_map(|(name, _)| Some((number(name.strip_suffix(".log")?)?, name.as_str())));
    numbered.filter(move |(log, _)| *log >= first)
}

fn number(digits: &str) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok())?
}
