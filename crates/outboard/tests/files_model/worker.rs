//! One application: threads that share a session and some groups, each with files of its own and stripes of a file that
//! all share, beside a model of everything they wrote.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ob_files_host::{
    Endpoint, Error, File, Group, GroupOptions, OpenOptions, RingSizes, Session, SessionOptions,
};

/// How long a worker waits for a card that is away.
const PATIENCE: Duration = Duration::from_secs(60);
/// The largest file of a worker's own.
const FILE_MAX: usize = 12 << 20;
/// The largest single operation.
const OPERATION_MAX: usize = 8 << 20;
/// Stripes end in the middle of blocks, so that neighbours change the same blocks at the same time.
const STRIPE: u64 = 10_007;
const STRIPES_EACH: u64 = 12;
/// What a thread says every few rounds.
pub(crate) const PROGRESS: &str = "rounds done";
const PROGRESS_EVERY: u64 = 20;
/// The file that everybody writes to.
const SHARED: &str = "/shared";

/// What one worker process does.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) endpoint: Endpoint,
    pub(crate) seed: u64,
    pub(crate) threads: u64,
    /// This worker's number, and how many there are.
    pub(crate) worker: u64,
    pub(crate) workers: u64,
    pub(crate) rounds: u64,
}

/// Small, fast and seeded.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// Small sizes most of the time, large ones now and then.
    fn size(&mut self, most: usize) -> usize {
        let bits = self.below(u64::from(most.ilog2()) + 1);
        1 + self.below(1 << bits) as usize % most
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}

/// Runs all threads of a worker, and checks everything at the end.
pub(crate) fn work(plan: &Plan) {
    let options = SessionOptions::new(plan.endpoint.clone()).patience(PATIENCE);
    let session = open_session(&options);
    // Two groups, one of them with rings so small that they are full all the time; threads share them.
    let small = GroupOptions::default()
        .outstanding(16)
        .small(RingSizes::both(64 << 10))
        .bulk(RingSizes::both(512 << 10));
    let groups = [GroupOptions::default(), small].map(|options| insist(|_| session.group(options.clone())));
    std::thread::scope(|scope| {
        for thread in 0..plan.threads {
            let (session, group) = (&session, &groups[(thread % 2) as usize]);
            scope.spawn(move || Worker::new(plan, thread, session, group).run());
        }
    });
}

/// The card may be killed before this worker knows it.
fn open_session(options: &SessionOptions) -> Session {
    let started = Instant::now();
    loop {
        match Session::open(options.clone()) {
            Ok(session) => return session,
            Err(error) if started.elapsed() > PATIENCE => panic!("no card: {error}"),
            Err(_) => std::thread::yield_now(),
        }
    }
}

struct Worker<'a> {
    session: &'a Session,
    group: &'a Group,
    dice: Dice,
    rounds: u64,
    directory: String,
    files: BTreeMap<String, Mine>,
    named: u64,
    shared: File,
    /// Which stripes are ours, and what we wrote there.
    stripes: BTreeMap<u64, Vec<u8>>,
}

/// A file of our own, and what must be in it.
struct Mine {
    file: File,
    bytes: Vec<u8>,
}

/// Repeats an operation that the death of the card may have swallowed.
fn insist<T>(mut attempt: impl FnMut(bool) -> Result<T, Error>) -> T {
    let mut again = false;
    loop {
        match attempt(again) {
            Ok(value) => return value,
            Err(Error::CardGone | Error::Detached) => again = true,
            Err(error) => panic!("{error}"),
        }
    }
}

/// What a repeated operation finds that had happened after all.
fn unless_done(again: bool, done: &Error, result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(error) if again && std::mem::discriminant(&error) == std::mem::discriminant(done) => Ok(()),
        result => result,
    }
}

impl<'a> Worker<'a> {
    fn new(plan: &Plan, thread: u64, session: &'a Session, group: &'a Group) -> Self {
        let number = plan.worker * plan.threads + thread;
        let everybody = plan.workers * plan.threads;
        let directory = format!("/worker-{number}");
        insist(|again| {
            let made = session.make_directory(directory.as_str()).wait().map(|_| ());
            unless_done(again, &Error::Exists, made)
        });
        let shared = insist(|_| group.open(SHARED, OpenOptions::new().create(true)).wait());
        Self {
            session,
            group,
            dice: Dice::new(plan.seed ^ (number << 20)),
            rounds: plan.rounds,
            directory,
            files: BTreeMap::new(),
            named: 0,
            shared,
            stripes: (0..STRIPES_EACH).map(|index| (index * everybody + number, Vec::new())).collect(),
        }
    }

    fn run(mut self) {
        for round in 0..self.rounds {
            if round % PROGRESS_EVERY == 0 {
                println!("{round} {PROGRESS}");
            }
            match self.dice.below(16) {
                0 => self.create(),
                1..=4 => self.write(),
                5..=8 => self.read(),
                9 => self.resize(),
                10 => self.rename(),
                11 => self.remove(),
                12 | 13 => self.write_stripe(),
                14 => self.read_stripes(),
                _ => insist(|_| self.group.flush().wait()),
            }
        }
        self.check();
    }

    fn new_name(&mut self) -> String {
        self.named += 1;
        format!("{}/file {} \u{1f5ce}", self.directory, self.named)
    }

    fn any_file(&mut self) -> Option<String> {
        let index = self.dice.below(self.files.len() as u64) as usize;
        self.files.keys().nth(index).cloned()
    }

    fn create(&mut self) {
        if self.files.len() >= 4 {
            return self.remove();
        }
        let name = self.new_name();
        let file = insist(|again| {
            let options = OpenOptions::new().create(true).create_new(!again);
            self.group.open(name.as_str(), options).wait()
        });
        self.files.insert(name, Mine { file, bytes: Vec::new() });
    }

    fn write(&mut self) {
        let Some(name) = self.any_file() else { return self.create() };
        let len = self.dice.size(OPERATION_MAX);
        let offset = self.dice.below((FILE_MAX - len) as u64);
        let bytes = self.dice.bytes(len);
        let pieces = self.dice.below(3);
        let durable = self.dice.below(8) == 0;
        let Some(mine) = self.files.get_mut(&name) else { return };
        let end = offset as usize + len;
        if mine.bytes.len() < end {
            mine.bytes.resize(end, 0);
        }
        mine.bytes[offset as usize..end].copy_from_slice(&bytes);
        let file = &mine.file;
        let written = insist(|_| match pieces {
            0 => {
                let pieces: Vec<Vec<u8>> = bytes.chunks(len.div_ceil(3)).map(<[u8]>::to_vec).collect();
                file.write_at(pieces, offset).wait().0
            }
            _ if durable => file.write_durable_at(bytes.clone(), offset).wait().0,
            _ => file.write_at(bytes.clone(), offset).wait().0,
        });
        assert_eq!(written, len);
    }

    fn read(&mut self) {
        let Some(name) = self.any_file() else { return self.create() };
        let len = self.dice.size(OPERATION_MAX);
        let offset = self.dice.below(FILE_MAX as u64) as usize;
        let pieces = self.dice.below(3) == 0;
        let mine = &self.files[&name];
        let expected = &mine.bytes[offset.min(mine.bytes.len())..(offset + len).min(mine.bytes.len())];
        let found = insist(|_| {
            if pieces {
                let buffers = vec![vec![0xee; len / 2], vec![0xee; len - len / 2]];
                let (read, buffers) = mine.file.read_at(buffers, offset as u64).wait();
                read.map(|read| buffers.concat()[..read].to_vec())
            } else {
                let (read, mut buffer) = mine.file.read_at(vec![0xee; len], offset as u64).wait();
                read.map(|read| {
                    buffer.truncate(read);
                    buffer
                })
            }
        });
        same(&found, expected, &format!("{name} at {offset}"));
    }

    fn resize(&mut self) {
        let Some(name) = self.any_file() else { return self.create() };
        let size = self.dice.below(FILE_MAX as u64);
        let Some(mine) = self.files.get_mut(&name) else { return };
        mine.bytes.resize(size as usize, 0);
        let info = insist(|_| mine.file.resize(size).wait());
        assert_eq!(info.size, size);
    }

    fn rename(&mut self) {
        let Some(name) = self.any_file() else { return self.create() };
        // Onto another file now and then, which it replaces.
        let target = if self.dice.below(2) == 0 { self.any_file() } else { None };
        let target = target.filter(|target| *target != name).unwrap_or_else(|| self.new_name());
        insist(|again| {
            let renamed = self.session.rename(name.as_str(), target.as_str()).wait();
            unless_done(again, &Error::NotFound, renamed)
        });
        if let Some(mine) = self.files.remove(&name) {
            self.files.insert(target, mine);
        }
    }

    fn remove(&mut self) {
        let Some(name) = self.any_file() else { return };
        insist(|again| {
            let removed = self.session.remove_file(name.as_str()).wait();
            unless_done(again, &Error::NotFound, removed)
        });
        let Some(mine) = self.files.remove(&name) else { return };
        let (read, _) = mine.file.read_at(vec![0; 10], 0).wait();
        assert!(
            matches!(read, Err(Error::NotFound | Error::CardGone | Error::Detached)),
            "{name} was removed, and reading it gave {read:?}"
        );
    }

    fn write_stripe(&mut self) {
        let index = self.dice.below(STRIPES_EACH) as usize;
        let Some(stripe) = self.stripes.keys().nth(index).copied() else { return };
        let bytes = self.dice.bytes(STRIPE as usize);
        // In two halves that are out at the same time.
        let middle = self.dice.below(STRIPE) as usize;
        let (start, second) = (stripe * STRIPE, stripe * STRIPE + middle as u64);
        let both = insist(|_| {
            let first = self.shared.write_at(bytes[..middle].to_vec(), start);
            let last = self.shared.write_at(bytes[middle..].to_vec(), second);
            let (first, last) = (first.wait().0, last.wait().0);
            Ok(first? + last?)
        });
        assert_eq!(both, bytes.len());
        self.stripes.insert(stripe, bytes);
    }

    fn read_stripes(&mut self) {
        for (stripe, bytes) in self.stripes.iter().filter(|(_, bytes)| !bytes.is_empty()) {
            let found = insist(|_| {
                let (read, buffer) = self.shared.read_at(vec![0; bytes.len()], stripe * STRIPE).wait();
                read.map(|read| buffer[..read].to_vec())
            });
            same(&found, bytes, &format!("stripe {stripe}"));
        }
    }

    /// Everything is as the model has it, by another way than it was written.
    fn check(mut self) {
        self.read_stripes();
        let listed = insist(|_| self.session.list(self.directory.as_str()).wait());
        let names: Vec<String> = listed
            .iter()
            .map(|entry| format!("{}/{}", self.directory, String::from_utf8_lossy(&entry.name)))
            .collect();
        let mut expected: Vec<&String> = self.files.keys().collect();
        expected.sort_by_key(|name| name.as_bytes());
        assert_eq!(names.iter().collect::<Vec<_>>(), expected);
        for (name, mine) in &self.files {
            let file = insist(|_| self.session.open_file(name.as_str(), OpenOptions::new()).wait());
            let found = insist(|_| {
                let (read, buffer) = file.read_at(vec![0; mine.bytes.len() + 1], 0).wait();
                read.map(|read| buffer[..read].to_vec())
            });
            same(&found, &mine.bytes, name);
        }
    }
}

/// Compares, and says only where the difference is.
fn same(found: &[u8], expected: &[u8], what: &str) {
    if found == expected {
        return;
    }
    let at = found.iter().zip(expected).position(|(found, expected)| found != expected);
    panic!("{what}: {} bytes, expected {}; they differ from byte {at:?} on", found.len(), expected.len());
}
