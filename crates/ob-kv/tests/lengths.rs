//! Files of parts are made longer ahead of what is written to them, and what that saves at the card's device.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, VecDeque};

use ob_core::{Device, DeviceCompletion, DeviceInfo, DeviceOp, NodeId, Refused, Token};
use ob_files_card::{CardFiles, Drive, FilesOptions, FormatOptions, MetadataOp, Op, Outcome};
use ob_format::kv::part_name;
use ob_kv::resp::Request;
use ob_kv::store::{Config, Durability, LogCompletion, LogOp, Recovery, Session, Store};
use ob_memory::Pool;
use ob_wire_link::files::ROOT;

const BLOCK: u64 = 4096;
const SEGMENT: u64 = 1 << 20;
const CAPACITY: u64 = 96 << 20;

/// A disk that does at once what it is told, and counts it.
struct Disk {
    bytes: Vec<u8>,
    done: VecDeque<DeviceCompletion>,
    /// Reads are not counted, nor is what the card does to have clean segments.
    counted: u64,
}

impl Device for Disk {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { capacity: CAPACITY, block_len: BLOCK as u32, volatile_cache: true }
    }

    fn submit(&mut self, token: Token, mut op: DeviceOp) -> Result<(), Refused<DeviceOp>> {
        match &mut op {
            DeviceOp::Read { offset, into } => {
                let (start, len) = (*offset as usize, into.len());
                into.copy_from_slice(&self.bytes[start..start + len]);
            }
            DeviceOp::Write { offset, from, .. } => {
                self.bytes[*offset as usize..][..from.len()].copy_from_slice(from);
                self.counted += 1;
            }
            DeviceOp::Flush => self.counted += 1,
            DeviceOp::WriteZeroes { offset, len } | DeviceOp::Discard { offset, len } => {
                self.bytes[*offset as usize..][..*len as usize].fill(0);
            }
        }
        self.done.push_back(DeviceCompletion { token, op, result: Ok(()) });
        Ok(())
    }

    fn poll(&mut self) -> Option<DeviceCompletion> {
        self.done.pop_front()
    }
}

impl Drive for Disk {
    fn device(&mut self) -> &mut dyn Device {
        self
    }

    fn wait(&mut self) {}
}

/// A store whose log is in files of a card.
struct Bench {
    disk: Disk,
    files: CardFiles,
    parts: BTreeMap<u64, NodeId>,
    store: Store,
    session: Session,
    stamp: u64,
    /// Operations of the store, by their names.
    asked: Vec<&'static str>,
}

fn config(part_step: u64) -> Config {
    let durability = Durability::Always;
    Config { durability, part_len: 16 << 20, part_step, memory_len: 0, ..Config::default() }
}

impl Bench {
    fn new(part_step: u64) -> Self {
        let mut disk = Disk { bytes: vec![0; CAPACITY as usize], done: VecDeque::new(), counted: 0 };
        let format = FormatOptions { segment_len: Some(SEGMENT), ..Default::default() };
        ob_files_card::format(&mut disk, &format, *b"a uuid for tests").unwrap();
        // Enough clean segments that no flush is made for want of them.
        let options = FilesOptions { clean_len: 64 << 20, ..Default::default() };
        let mut files = ob_files_card::mount(&mut disk, &options).unwrap();
        while files.poll(&mut disk) || !files.is_idle() {}
        let store = Store::create(config(part_step));
        let session = store.open(1);
        Self { disk, files, parts: BTreeMap::new(), store, session, stamp: 0, asked: Vec::new() }
    }

    /// Does an operation of the store with the card's files.
    fn perform(&mut self, op: &LogOp) -> LogCompletion {
        let path = |part: &u64| part_name(*part).into_bytes();
        let (name, request) = match op {
            LogOp::Create { part, .. } => {
                let open = MetadataOp::Open { base: ROOT, path: path(part), create: true, exclusive: true };
                ("create", Op::Metadata(open))
            }
            LogOp::Lengthen { part, len, .. } => {
                ("lengthen", Op::Resize { file: self.parts[part], size: *len })
            }
            LogOp::Write { part, offset, bytes, is_durable, .. } => {
                let mut from = Pool::new(bytes.len(), 1).take().unwrap();
                from.truncate(bytes.len());
                from.copy_from_slice(bytes);
                let file = self.parts[part];
                ("write", Op::Write { file, offset: *offset, from, durable: *is_durable })
            }
            LogOp::Read { part, offset, len, .. } => {
                let into = Pool::new(len + 2 * BLOCK as usize, 1).take().unwrap();
                let file = self.parts[part];
                ("read", Op::Read { file, offset: *offset, len: *len as u32, into })
            }
            LogOp::Flush { .. } => ("flush", Op::Flush),
            LogOp::Remove { .. } => panic!("nothing is outdated"),
        };
        self.asked.push(name);
        self.files.submit(Token(7), request);
        let completion = loop {
            match self.files.next_completion() {
                Some(completion) => break completion,
                None => assert!(self.files.poll(&mut self.disk), "{op:?} is never answered"),
            }
        };
        let bytes = match (op, completion.result.unwrap()) {
            (LogOp::Create { part, .. }, Outcome::Node(info)) => {
                self.parts.insert(*part, info.id);
                Vec::new()
            }
            (LogOp::Read { .. }, Outcome::Read { len, .. }) => {
                completion.buffer.unwrap()[..len as usize].to_vec()
            }
            _ => Vec::new(),
        };
        LogCompletion { token: op.token(), result: Ok(bytes) }
    }

    /// Sets a key and waits until that is durable; operations of the device that this took.
    fn set(&mut self, value_len: usize) -> u64 {
        let before = self.disk.counted;
        self.stamp += 1;
        let value = "v".repeat(value_len);
        let request = format!("*3\r\n$3\r\nSET\r\n$8\r\n{:08}\r\n${value_len}\r\n{value}\r\n", self.stamp);
        self.store.apply(0, self.stamp, 1, &mut self.session, &Request::new(request.as_bytes()));
        if self.store.wants_measure() {
            self.store.measured(None);
        }
        while let Some(op) = self.store.next_op() {
            let done = self.perform(&op);
            self.store.completed(done);
        }
        let answer = self.store.next_answer().expect("it is durable, so it is answered");
        assert!(answer.bytes.starts_with(b"+OK"), "{:?}", String::from_utf8_lossy(&answer.bytes));
        self.disk.counted - before
    }

    /// The store as another process would find it.
    fn recover(&mut self, part_step: u64) -> Store {
        let mut sizes = Vec::new();
        for (part, node) in self.parts.clone() {
            self.files.submit(Token(8), Op::Metadata(MetadataOp::Stat { base: node, path: Vec::new() }));
            while self.files.poll(&mut self.disk) {}
            let Ok(Outcome::Node(info)) = self.files.next_completion().unwrap().result else { panic!() };
            sizes.push((part, info.size));
        }
        let mut recovery = Recovery::new(config(part_step), sizes).unwrap();
        while let Some(op) = recovery.next_op() {
            let done = self.perform(&op);
            recovery.completed(done).unwrap();
        }
        recovery.finish().unwrap_or_else(|_| panic!("everything was read"))
    }
}

/// Operations of the device for each of so many groups, all of one block.
fn costs(part_step: u64, groups: u64) -> BTreeMap<u64, u64> {
    let mut bench = Bench::new(part_step);
    let mut costs = BTreeMap::new();
    // The first one makes the part and begins the store's life.
    bench.set(100);
    for _ in 1..groups {
        *costs.entry(bench.set(100)).or_default() += 1;
    }
    costs
}

#[test]
fn a_group_is_one_operation_of_the_device_and_not_three() {
    let groups = 3 * SEGMENT / BLOCK;
    // Bytes, frame and flush, each time; now and then the card's own log is cleaned beside that.
    let grown = costs(0, groups);
    assert!(grown.keys().all(|cost| *cost >= 3), "{grown:?}");
    assert!(grown[&3] >= groups / 10 * 9, "{grown:?}");
    // The bytes. The first group of a segment has a frame to be written and flushed, too, and one of them goes with a frame by
    // which the file becomes longer.
    let lengthened = costs(4 << 20, groups);
    assert_eq!(lengthened, [(1, groups - 3), (3, 1), (4, 1)].into());
}

#[test]
fn files_grow_by_steps_that_are_asked_for_before_they_are_needed() {
    let step = 64 << 10;
    let mut bench = Bench::new(step);
    bench.set(100);
    assert_eq!(bench.asked, ["create", "lengthen", "write"]);
    bench.asked.clear();
    for _ in 0..64 {
        bench.set(100);
    }
    let asked = |what: &str| bench.asked.iter().filter(|name| **name == what).count();
    assert_eq!((asked("write"), asked("lengthen"), asked("create")), (64, 4, 0));
    // A group that is longer than a step has its place, too.
    bench.asked.clear();
    bench.set(300_000);
    assert_eq!(bench.asked, ["lengthen", "write"]);
}

#[test]
fn what_is_recovered_goes_on_with_the_files_as_long_as_they_are() {
    let step = 1 << 20;
    let mut bench = Bench::new(step);
    for _ in 0..5 {
        bench.set(100);
    }
    let mut store = bench.recover(step);
    assert_eq!(store.stats().keys, 5);
    store.mark_life();
    bench.session = store.open(1);
    bench.store = store;
    bench.asked.clear();
    bench.set(100);
    assert!(!bench.asked.contains(&"lengthen"), "the file has that length: {:?}", bench.asked);
    // A store that never makes files longer leaves the length as it is, and finds everything.
    let store = bench.recover(0);
    assert_eq!(store.stats().keys, 6);
}
