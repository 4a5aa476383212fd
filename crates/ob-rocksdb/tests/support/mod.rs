//! RocksDB itself as a peer, and a reader that is asked what the peer was asked.

#![allow(dead_code, reason = "each program of tests uses a part")]

mod conversation;
pub(crate) mod golden;
pub(crate) mod memory;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use conversation::{Conversation, bytes, family, hex, snapshot};
use ob_rocksdb::{
    BlockCache, CacheOptions, Database, Error, Files, Finding, Found, GetPlan, LocalDirectory, LocalFile,
    Options, Reader, Scan, Sequence, Step,
};
use tempfile::TempDir;

pub(crate) use conversation::{Lookup, said};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// The peer's program, compiled once; nothing, said loudly, where RocksDB is not installed.
pub(crate) fn program() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<(TempDir, PathBuf)>> = OnceLock::new();
    let compiled = PROGRAM.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let header = "#include <rocksdb/db.h>\nint main() {}\n";
        let probe = directory.path().join("probe.cc");
        std::fs::write(&probe, header).unwrap();
        let compile = |source: &Path, program: &Path| {
            let mut command = Command::new("g++");
            command.args(["-std=c++17", "-O1", "-Wall"]).arg(source).arg("-o").arg(program).arg("-lrocksdb");
            command.output()
        };
        match compile(&probe, &directory.path().join("probe")) {
            Ok(output) if output.status.success() => {}
            _ => return None,
        }
        let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../ob-rocksdb/tests/peer/peer.cc"));
        let program = directory.path().join("peer");
        let output = compile(source, &program).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some((directory, program))
    });
    if compiled.is_none() {
        ob_plant::not_tested("there is no g++ or no RocksDB (Debian: g++, librocksdb-dev)");
    }
    compiled.as_ref().map(|(_, program)| program.as_path())
}

/// A database that RocksDB has open.
pub(crate) struct Peer {
    directory: TempDir,
    conversation: Conversation,
}

impl Peer {
    pub(crate) fn start(seed: u64, options: &str) -> Option<Self> {
        let program = program()?;
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new(program);
        command.arg(directory.path().join("db")).arg(seed.to_string()).args(options.split_whitespace());
        let conversation = Conversation::begin(&mut command).unwrap();
        Some(Self { directory, conversation })
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("db")
    }

    pub(crate) fn tell(&mut self, command: &str) -> Vec<String> {
        self.conversation.tell(command)
    }

    /// Ends the process as a crash does: nothing is closed.
    pub(crate) fn kill(self) -> TempDir {
        let Self { directory, conversation } = self;
        drop(conversation);
        directory
    }
}

pub(crate) type Local = Database<LocalDirectory>;

pub(crate) fn open(path: &Path, options: Options) -> Local {
    block_on(Database::open(LocalDirectory::new(path), options)).unwrap()
}

/// Asks the reader what the peer was asked, and compares. Says how many questions it were.
pub(crate) fn compare(database: &Local, lines: &[String]) -> usize {
    for line in lines {
        let (question, answer) = match line.strip_prefix("get ") {
            Some(question) => {
                let words: Vec<&str> = question.split(' ').collect();
                compare_plans(database, &words);
                (words[..3].join(" "), words[3..].join(" "))
            }
            None => (line.split(' ').take(7).collect::<Vec<_>>().join(" "), line.clone()),
        };
        assert_eq!(answered(database, line).unwrap(), answer, "{question}");
    }
    lines.len()
}

/// What the reader says to a question, in the words of the peer.
pub(crate) fn answered<F: Files>(database: &Database<F>, line: &str) -> Result<String, Error> {
    let words: Vec<&str> = line.split(' ').collect();
    match words[0] {
        "get" => {
            let Lookup { family, snapshot, key } = Lookup::new(&words[1..]);
            Ok(said(block_on(database.get(&family, &key, snapshot, None))?))
        }
        "scan" => block_on(scanned(database, &words)),
        other => panic!("the peer said {other:?}"),
    }
}

async fn scanned<F: Files>(database: &Database<F>, words: &[&str]) -> Result<String, Error> {
    let bound = |word: &str| (word != "none").then(|| bytes(word));
    let scan =
        Scan { snapshot: snapshot(words[2]), lower: bound(words[3]), upper: bound(words[4]), operator: None };
    let mut said: Vec<String> = words[..5].iter().map(|word| (*word).to_owned()).collect();
    let mut iterator = database.iterate(&family(words[1]), scan).await?;
    let mut rest = words[5..].iter();
    while let Some(verb) = rest.next() {
        said.push((*verb).to_owned());
        match *verb {
            "first" => iterator.seek_to_first().await?,
            "last" => iterator.seek_to_last().await?,
            "next" => iterator.next().await?,
            "prev" => iterator.prev().await?,
            "seek" | "before" => {
                let from = rest.next().unwrap();
                said.push((*from).to_owned());
                match *verb {
                    "seek" => iterator.seek(&bytes(from)).await?,
                    _ => iterator.seek_for_prev(&bytes(from)).await?,
                }
            }
            other => panic!("the peer went {other:?}"),
        }
        // What the peer saw there.
        if *rest.next().unwrap() != "end" {
            rest.next();
        }
        match iterator.current() {
            None => said.push("end".to_owned()),
            Some((key, value)) => said.extend([hex(key), hex(value)]),
        }
    }
    Ok(said.join(" "))
}

/// The same answer comes from somebody who does the steps of a plan elsewhere, and from the cache alone once it has everything.
fn compare_plans(database: &Local, words: &[&str]) {
    let Lookup { family, snapshot, key } = Lookup::new(words);
    let expected = words[3..].join(" ");
    let about = || format!("{family} at {snapshot:?}: {}", String::from_utf8_lossy(&key));
    let version = database.view().family(&family).unwrap();
    let plan = || version.plan_get(database.cache(), &key, snapshot.unwrap_or(Sequence::MAX)).unwrap();
    let value = |found: Found| said(version.value(&key, found, None).unwrap());
    let pushed = plan();
    let findings = pushed_down(database, &pushed);
    assert_eq!(value(pushed.resolve(findings).unwrap()), expected, "{} pushed down", about());
    assert_eq!(value(block_on(plan().execute_ordinary(database.reader())).unwrap()), expected, "{}", about());
    if let Some(found) = plan().answer() {
        assert_eq!(value(found.clone()), expected, "{} cached", about());
    }
}

/// What somebody else would find for the steps of a plan, who knows nothing of this cache.
fn pushed_down(database: &Local, plan: &GetPlan<LocalFile>) -> Vec<Finding> {
    let cache = BlockCache::new(CacheOptions::default());
    let reader = Reader { files: database.reader().files, cache: &cache };
    let find = |step: &Step<LocalFile>| {
        let finding = block_on(reader.find(&step.file, plan.key(), plan.snapshot())).unwrap();
        assert_eq!(
            step.covering.unwrap_or(finding.covering),
            finding.covering,
            "a step knows the tombstones"
        );
        finding
    };
    plan.steps().map(find).collect()
}

/// A value as text.
pub(crate) fn value_of(database: &Local, family: &str, key: &str) -> Option<String> {
    let value = block_on(database.get(family, key.as_bytes(), None, None)).unwrap();
    value.map(|value| String::from_utf8(value).unwrap())
}
