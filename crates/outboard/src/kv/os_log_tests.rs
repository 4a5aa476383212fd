#![allow(clippy::unwrap_used, clippy::expect_used)] // A test stops at the first thing that is not as it should be.

use std::process::Command;
use std::time::{Duration, Instant as SystemInstant};

use ob_core::Clock;
use ob_io::{Config as ReactorConfig, MonotonicClock};
use ob_kv::resp::Request;
use ob_kv::store::{Config, Durability, Recovery, Session, Space as LogSpace, Store};
use tempfile::TempDir;

use super::*;
use crate::kv::now;

const PART_LEN: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

struct Bench {
    reactor: Reactor,
    log: OsLog,
}

impl Bench {
    fn new(directory: &Path) -> Self {
        Self::with(directory, &ReactorConfig::default())
    }

    fn with(directory: &Path, sizes: &ReactorConfig) -> Self {
        let reactor = Reactor::new(sizes).unwrap();
        let log = OsLog::open(&reactor.handle(), directory).unwrap();
        Self { reactor, log }
    }

    /// Waits a moment for the files.
    fn turn(&mut self) {
        self.reactor
            .turn(Wait::Until(Some(MonotonicClock.now() + Duration::from_millis(1))), &mut Vec::new());
        self.log.poll();
    }

    /// What becomes of operations, by their tokens.
    fn run(&mut self, ops: impl IntoIterator<Item = LogOp>) -> BTreeMap<u64, Result<Vec<u8>, LogFailure>> {
        let mut missing = 0;
        for op in ops {
            self.log.submit(op);
            missing += 1;
        }
        let (mut done, deadline) = (BTreeMap::new(), SystemInstant::now() + PATIENCE);
        while done.len() < missing {
            assert!(SystemInstant::now() < deadline, "{} of {missing} are done", done.len());
            while let Some(LogCompletion { token, result }) = self.log.next_done() {
                assert!(done.insert(token.0, result).is_none(), "{token:?} is done twice");
            }
            self.turn();
        }
        done
    }
}

fn create(token: u64, part: u64) -> LogOp {
    LogOp::Create { token: Token(token), part, len: PART_LEN }
}

fn write(token: u64, offset: u64, bytes: Vec<u8>) -> LogOp {
    LogOp::Write {
        token: Token(token),
        part: 0,
        offset,
        bytes: bytes.into(),
        is_durable: token.is_multiple_of(2),
    }
}

fn read(token: u64, part: u64, offset: u64, len: usize) -> LogOp {
    LogOp::Read { token: Token(token), part, offset, len }
}

#[test]
fn operations_are_done_once_however_many_there_are() {
    let directory = TempDir::new().unwrap();
    let mut bench = Bench::new(directory.path());
    bench.run([create(1, 0)])[&1].as_ref().unwrap();
    // More, and longer, than there is memory for at once.
    let block = |number: u64| vec![number as u8; 20_480];
    let writes = (0..51).map(|number| write(number + 1, number * 20_480, block(number)));
    assert!(bench.run(writes).values().all(Result::is_ok));
    assert!(bench.run([LogOp::Flush { token: Token(1) }])[&1].is_ok());
    let done = bench.run((0..2000).map(|number| read(number + 1, 0, (number % 51) * 20_480 + 7, 100)));
    for (token, result) in &done {
        assert_eq!(result.as_ref().unwrap(), &vec![((token - 1) % 51) as u8; 100]);
    }
    let long = bench.run((0..100).map(|number| read(number + 1, 0, 4096, 51 * 20_480 - 4096)));
    let all: Vec<u8> = (0..51).flat_map(block).skip(4096).collect();
    assert!(long.values().all(|result| *result.as_ref().unwrap() == all));
}

#[test]
fn fewer_bytes_are_given_where_the_part_ends() {
    let directory = TempDir::new().unwrap();
    let mut bench = Bench::new(directory.path());
    bench.run([create(1, 0)]);
    let done = bench.run([read(1, 0, PART_LEN - 5000, 9000), read(2, 0, PART_LEN, 10), read(3, 1, 0, 10)]);
    assert_eq!((done[&1].as_ref().unwrap().len(), done[&2].as_ref().unwrap().len()), (5000, 0));
    assert_eq!(done[&3], Err(LogFailure::Device), "there is no such part");
    assert!(bench.run([LogOp::Remove { token: Token(1), part: 0 }])[&1].is_ok());
    assert!(bench.run([LogOp::Remove { token: Token(1), part: 0 }])[&1].is_ok(), "it is gone");
    assert_eq!(bench.run([write(1, 0, vec![0; 4096])])[&1], Err(LogFailure::Device));
}

#[test]
fn a_part_that_there_is_no_place_for_is_made_when_there_is_one() {
    let directory = TempDir::new().unwrap();
    let mut bench =
        Bench::with(directory.path(), &ReactorConfig { devices_max: 2, ..ReactorConfig::default() });
    let create = |part| create(1, part);
    for part in 0..2 {
        assert!(bench.run([create(part)])[&1].is_ok());
    }
    for _ in 0..2 {
        assert_eq!(bench.run([create(2)])[&1], Err(LogFailure::Space));
    }
    assert!(bench.run([LogOp::Remove { token: Token(1), part: 0 }])[&1].is_ok());
    let deadline = SystemInstant::now() + PATIENCE;
    while bench.run([create(2)])[&1].is_err() {
        assert!(SystemInstant::now() < deadline, "the place of a part that is gone is another's");
    }
}

#[test]
fn what_others_may_give_back_is_no_failure_of_the_device() {
    let directory = TempDir::new().unwrap();
    let mut bench = Bench::new(directory.path());
    for (errno, failure) in [
        (Errno::MFILE, LogFailure::Space),
        (Errno::NFILE, LogFailure::Space),
        (Errno::IO, LogFailure::Device),
    ] {
        let error = OpenError::System { what: "open", path: directory.path().to_owned(), errno };
        assert_eq!(bench.log.create_failure(0, &error), failure);
        assert_eq!(super::failure(&errno.into()), failure);
    }
}

#[test]
fn whoever_waits_for_an_operation_gets_what_is_done_at_once_too() {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let directory = TempDir::new().unwrap();
        let Bench { mut reactor, mut log } = Bench::new(directory.path());
        let ops = [
            LogOp::Flush { token: Token(1) },
            create(2, 0),
            read(3, 0, PART_LEN, 0),
            read(4, 7, 0, 10),
            read(5, 0, 0, 10),
        ];
        tell.send(ops.map(|op| log.run(&mut reactor, op))).unwrap();
    });
    let done = told.recv_timeout(PATIENCE).expect("it waits for what is done");
    let results = done.map(|done| (done.token.0, done.result.map(|bytes| bytes.len())));
    assert_eq!(results, [(1, Ok(0)), (2, Ok(0)), (3, Ok(0)), (4, Err(LogFailure::Device)), (5, Ok(10))]);
}

/// A store on such files, and its one client.
struct Served {
    bench: Bench,
    store: Store,
    session: Session,
    stamp: u64,
}

impl Served {
    fn open(directory: &Path) -> Result<Self, ob_kv::store::RecoveryError> {
        let mut bench = Bench::new(directory);
        let config =
            Config { durability: Durability::Always, part_len: PART_LEN, memory_len: 0, ..Config::default() };
        let mut recovery = Recovery::new(config, bench.log.parts())?;
        while let Some(op) = recovery.next_op() {
            let (token, result) = bench.run([op]).pop_first().unwrap();
            recovery.completed(LogCompletion { token: Token(token), result })?;
        }
        let store = recovery.finish().ok().unwrap();
        Ok(Self { session: store.open(1), bench, store, stamp: 1 << 32 })
    }

    fn turn(&mut self) {
        self.store.tick(now());
        if self.store.wants_measure() {
            self.store.measured(self.bench.log.left());
        }
        while let Some(op) = self.store.next_op() {
            self.bench.log.submit(op);
        }
        self.bench.turn();
        while let Some(done) = self.bench.log.next_done() {
            self.store.completed(done);
        }
    }

    fn ask(&mut self, line: &str) -> String {
        self.stamp += 1;
        let request = Request::of_line(line.as_bytes()).unwrap();
        self.store.apply(now(), self.stamp, 1, &mut self.session, &request);
        let deadline = SystemInstant::now() + PATIENCE;
        loop {
            self.turn();
            if let Some(answer) = self.store.next_answer() {
                return String::from_utf8(answer.bytes).unwrap();
            }
            assert!(SystemInstant::now() < deadline, "no answer to {line:.20}");
        }
    }

    fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        let deadline = SystemInstant::now() + PATIENCE;
        while !is_so(self) {
            self.turn();
            assert!(SystemInstant::now() < deadline, "never: {what}");
        }
    }

    /// Sets keys of 100,000 bytes from a number on until one is refused; gives its number.
    fn fill(&mut self, from: usize) -> usize {
        let value = "v".repeat(100_000);
        for number in from..from + 1000 {
            let reply = self.ask(&format!("set key{number} {value}"));
            if reply != "+OK\r\n" {
                assert!(reply.starts_with("-OOM "), "{reply}");
                return number;
            }
        }
        panic!("it never fills");
    }
}

#[test]
fn a_part_that_was_cut_off_or_never_had_a_length_is_written_again() {
    let directory = TempDir::new().unwrap();
    let mut served = Served::open(directory.path()).unwrap();
    for number in 0..15 {
        assert_eq!(served.ask(&format!("set key{number} {}", "v".repeat(100_000))), "+OK\r\n");
    }
    drop(served);
    let path = |part| directory.path().join(part_name(part));
    let cut = |part, len| {
        let file = std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(path(part));
        file.unwrap().set_len(len).unwrap();
    };
    // The next part, which its maker did not finish; and the last one, of which a person has cut off the end.
    cut(2, 0);
    cut(1, 2 * 106_496);
    let mut served = Served::open(directory.path()).unwrap();
    let keys = served.store.stats().keys;
    assert!((9..14).contains(&keys), "{keys}");
    for number in 20..50 {
        assert_eq!(served.ask(&format!("set key{number} {}", "w".repeat(100_000))), "+OK\r\n");
    }
    drop(served);
    let served = Served::open(directory.path()).unwrap();
    assert_eq!(served.store.stats().keys, keys + 30);
}

/// The directory of a small file system, in a process that was started for it.
const SMALL: &str = "OB_SMALL_FILE_SYSTEM";
const SMALL_LEN_MIB: u64 = 24;

#[test]
fn a_file_system_that_is_full_stops_nothing_for_good() {
    let name = "a_file_system_that_is_full_stops_nothing_for_good";
    on_small_file_system(name, &format!("size={SMALL_LEN_MIB}m"), fill_and_go_on);
}

#[test]
fn a_file_system_without_a_place_for_another_file_stops_nothing_for_good() {
    let name = "a_file_system_without_a_place_for_another_file_stops_nothing_for_good";
    on_small_file_system(name, &format!("size={SMALL_LEN_MIB}m,nr_inodes=20"), take_all_files);
}

#[test]
fn a_file_system_without_a_size_is_not_full() {
    on_small_file_system("a_file_system_without_a_size_is_not_full", "size=0", |directory| {
        let mut served = Served::open(&directory.join("kv")).unwrap();
        assert_eq!((served.bench.log.left(), served.ask("set k v")), (None, "+OK\r\n".to_owned()));
    });
}

/// Runs a test in a process of its own, with the directory of a file system that is mounted for it.
fn on_small_file_system(name: &str, options: &str, test: impl FnOnce(&Path)) {
    if let Some(directory) = std::env::var_os(SMALL) {
        return test(Path::new(&directory));
    }
    // A file system of its own needs a name space of its own, which not every machine grants.
    let can_mount =
        Command::new("unshare").args(["-rm", "true"]).status().is_ok_and(|status| status.success());
    if !can_mount {
        ob_plant::not_tested("this machine lets nobody mount a file system");
        return;
    }
    let directory = TempDir::new().unwrap();
    let script = format!("mount -t tmpfs -o {options} none \"${SMALL}\" && exec \"$0\" \"$@\"");
    let status = Command::new("unshare")
        .args(["-rm", "sh", "-c", &script])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &format!("kv::os_log::tests::{name}"), "--nocapture"])
        .env(SMALL, directory.path())
        .status();
    assert!(status.unwrap().success());
}

fn take_all_files(directory: &Path) {
    let mut served = Served::open(&directory.join("kv")).unwrap();
    assert_eq!(served.ask("set before v"), "+OK\r\n");
    let other = |number: usize| directory.join(format!("other{number}"));
    let taken = (0..100).take_while(|number| std::fs::write(other(*number), "").is_ok()).count();
    assert!((1..100).contains(&taken), "{taken}");
    let mut number = 0;
    while served.store.space() != LogSpace::Refused {
        assert!(number < 100 && served.store.failure().is_none(), "{number}: {:?}", served.store.failure());
        served.stamp += 1;
        let line = format!("set key{number} {}", "v".repeat(100_000));
        let request = Request::of_line(line.as_bytes()).unwrap();
        served.store.apply(now(), served.stamp, 1, &mut served.session, &request);
        served.turn();
        number += 1;
    }
    std::fs::remove_file(other(0)).unwrap();
    let mut answers = 0;
    served.until("everything is written after all", |served| {
        while let Some(answer) = served.store.next_answer() {
            assert_eq!(answer.bytes, b"+OK\r\n");
            answers += 1;
        }
        answers == number
    });
    drop(served);
    let served = Served::open(&directory.join("kv")).unwrap();
    assert_eq!(served.store.stats().keys, number + 1);
}

fn fill_and_go_on(directory: &Path) {
    let mut served = Served::open(&directory.join("kv")).unwrap();
    let end = served.fill(0);
    assert!(end > 150, "{end} keys of 100,000 bytes are few for {SMALL_LEN_MIB} MiB");
    assert_eq!(served.ask("strlen key7"), ":100000\r\n");
    for number in 0..end / 2 {
        assert_eq!(served.ask(&format!("del key{number}")), ":1\r\n");
    }
    served.until("compaction makes room", |served| served.store.space() != LogSpace::Full);
    let end = served.fill(end);
    // Somebody else takes the rest, and gives it back.
    let other = directory.join("other");
    let _ = std::fs::write(&other, vec![1; (SMALL_LEN_MIB as usize) << 20]);
    served.stamp += 1;
    let request = Request::of_line(format!("del key{}", end - 1).as_bytes()).unwrap();
    served.store.apply(now(), served.stamp, 1, &mut served.session, &request);
    served.until("the device refuses it", |served| served.store.space() == LogSpace::Refused);
    assert!(served.store.next_answer().is_none() && served.store.failure().is_none());
    std::fs::remove_file(&other).unwrap();
    let mut answer = None;
    served.until("it is written after all", |served| {
        answer = answer.take().or_else(|| served.store.next_answer());
        answer.is_some()
    });
    assert_eq!(answer.unwrap().bytes, b":1\r\n");
    let keys = served.store.stats().keys;
    drop(served);
    let mut served = Served::open(&directory.join("kv")).unwrap();
    assert_eq!(served.store.stats().keys, keys);
    assert_eq!(served.ask(&format!("strlen key{}", end - 2)), ":100000\r\n");
}
