//! A model of what a disk may hold after a crash, and the faulty device held against it.

#![allow(clippy::unwrap_used)] // A test stops at the first thing that is not as it should be.

use super::*;
use crate::MemoryDevice;
use ob_memory::Slice;

const BLOCK: u32 = 512;
const BLOCKS: u64 = 32;

/// What one block may hold: tags, oldest first. A block is filled with its tag, so a torn block shows.
#[derive(Clone, Debug)]
struct Allowed {
    tags: Vec<u64>,
    /// Up to here writes certainly took effect; what comes after may have.
    certain: usize,
    /// How many older tags were ruled out: the place of a tag in the block's whole history is this plus its index.
    ruled_out: usize,
    busy: bool,
}

impl Allowed {
    fn holds(tag: u64) -> Self {
        Self { tags: vec![tag], certain: 0, ruled_out: 0, busy: false }
    }

    /// Only `tag` is left.
    fn settle(&mut self, tag: u64) {
        self.ruled_out += self.tags.len();
        self.tags = vec![tag];
        self.certain = 0;
    }

    /// Place of the newest tag that certainly took effect.
    fn certain_place(&self) -> usize {
        self.ruled_out + self.certain
    }

    /// What came before `place` is history.
    fn flushed(&mut self, place: usize) {
        let over = place.saturating_sub(self.ruled_out);
        self.tags.drain(..over);
        self.certain -= over;
        self.ruled_out += over;
    }

    fn wrote(&mut self, tag: u64, certain: bool) {
        self.tags.push(tag);
        if certain {
            self.certain = self.tags.len() - 1;
        }
    }
}

#[derive(Clone)]
enum Intent {
    Read,
    /// Which tag, and whether it must have taken effect on success.
    Write {
        tag: u64,
        certain: bool,
        durable: bool,
    },
    /// What was certain of each block at submission, as a place in its history.
    Flush(Vec<usize>),
}

/// Runs random operations with crashes and checks every byte that is read.
struct Checker<D: Device> {
    device: FaultyDevice<D>,
    pool: Pool,
    random: Random,
    blocks: Vec<Allowed>,
    in_flight: HashMap<u64, (u64, u64, Intent)>,
    next: u64,
}

fn filled(mut slice: Slice, tag: u64, blocks: u64) -> Slice {
    drop(slice.split_off((blocks * u64::from(BLOCK)) as usize));
    slice.chunks_mut(8).for_each(|word| word.copy_from_slice(&tag.to_le_bytes()));
    slice
}

/// The tag of a block, if all of it is one write's.
fn tag_of(block: &[u8]) -> Option<u64> {
    let tag = u64::from_le_bytes(block[..8].try_into().ok()?);
    block.chunks(8).all(|word| word == tag.to_le_bytes()).then_some(tag)
}

impl<D: Device> Checker<D> {
    fn new(device: FaultyDevice<D>, seed: u64) -> Self {
        Self {
            device,
            pool: Pool::new(8 * BLOCK as usize, 64),
            random: Random::new(seed ^ 0x5eed),
            blocks: vec![Allowed::holds(0); BLOCKS as usize],
            in_flight: HashMap::new(),
            next: 1,
        }
    }

    fn submit(&mut self) {
        let len = 1 + self.random.below(8);
        let first = self.random.below(BLOCKS - len + 1);
        let kind = self.random.below(12);
        let range = first as usize..(first + len) as usize;
        if kind < 10 && self.blocks[range.clone()].iter().any(|block| block.busy) {
            return;
        }
        let tag = self.next;
        self.next += 1;
        let (offset, bytes) = (first * u64::from(BLOCK), len * u64::from(BLOCK));
        let slice = || filled(self.pool.take().unwrap(), tag, len);
        let (op, intent) = match kind {
            0..3 => (DeviceOp::Read { offset, into: slice() }, Intent::Read),
            3..7 => {
                let durable = kind == 3;
                let op = DeviceOp::Write { offset, from: slice(), durable };
                (op, Intent::Write { tag, certain: true, durable })
            }
            7 => {
                let intent = Intent::Write { tag: 0, certain: true, durable: false };
                (DeviceOp::WriteZeroes { offset, len: bytes }, intent)
            }
            8 => {
                let intent = Intent::Write { tag: 0, certain: false, durable: false };
                (DeviceOp::Discard { offset, len: bytes }, intent)
            }
            _ => {
                let certain = self.blocks.iter().map(Allowed::certain_place).collect();
                (DeviceOp::Flush, Intent::Flush(certain))
            }
        };
        if self.device.submit(Token(tag), op).is_ok() {
            if !matches!(intent, Intent::Flush(_)) {
                self.blocks[range].iter_mut().for_each(|block| block.busy = true);
            }
            self.in_flight.insert(tag, (first, len, intent));
        }
    }

    fn take(&mut self, done: &DeviceCompletion) -> Result<(), String> {
        let Some((first, len, intent)) = self.in_flight.remove(&done.token.0) else {
            return Err(format!("{} was not in flight", done.token));
        };
        let range = first as usize..(first + len) as usize;
        match intent {
            Intent::Flush(certain) => {
                if done.result.is_ok() {
                    for (block, place) in self.blocks.iter_mut().zip(certain) {
                        block.flushed(place);
                    }
                }
            }
            Intent::Write { tag, certain, durable } => {
                for block in &mut self.blocks[range] {
                    block.busy = false;
                    if durable && done.result.is_ok() {
                        block.settle(tag);
                    } else {
                        block.wrote(tag, certain && done.result.is_ok());
                    }
                }
            }
            Intent::Read => {
                for block in &mut self.blocks[range] {
                    block.busy = false;
                }
                if let (Ok(()), DeviceOp::Read { into, .. }) = (done.result, &done.op) {
                    for (number, bytes) in (first..).zip(into.chunks(BLOCK as usize)) {
                        let block = &self.blocks[number as usize];
                        check(number, bytes, &block.tags[block.certain..])?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Crashes, then reads everything back.
    fn crash(&mut self, seed: u64) -> Result<(), String> {
        for (first, len, intent) in self.in_flight.drain().map(|(_, entry)| entry) {
            if let Intent::Write { tag, .. } = intent {
                for block in &mut self.blocks[first as usize..(first + len) as usize] {
                    block.wrote(tag, false);
                }
            }
        }
        if !self.device.crash(seed) {
            return Err("a device in memory recovers at once".into());
        }
        for number in 0..BLOCKS {
            let bytes = loop {
                // Plans with errors hit this read too; it is tried again.
                let into = filled(self.pool.take().unwrap(), u64::MAX, 1);
                let op = DeviceOp::Read { offset: number * u64::from(BLOCK), into };
                self.device.submit(Token(0), op).unwrap();
                let done = std::iter::repeat_with(|| self.device.poll()).flatten().next().unwrap();
                if let (Ok(()), DeviceOp::Read { into, .. }) = (done.result, done.op) {
                    break into;
                }
            };
            let block = &mut self.blocks[number as usize];
            check(number, &bytes, &block.tags)?;
            block.settle(tag_of(&bytes).unwrap());
            block.busy = false;
        }
        Ok(())
    }

    fn run(&mut self, steps: u32) -> Result<(), String> {
        for _ in 0..steps {
            for _ in 0..self.random.below(4) {
                self.submit();
            }
            for _ in 0..self.random.below(6) {
                if let Some(done) = self.device.poll() {
                    self.take(&done)?;
                }
            }
            if self.random.one_in(40) {
                let seed = self.random.next();
                self.crash(seed)?;
            }
        }
        self.crash(1)
    }
}

fn check(number: u64, bytes: &[u8], allowed: &[u64]) -> Result<(), String> {
    match tag_of(bytes) {
        Some(tag) if allowed.contains(&tag) => Ok(()),
        found => Err(format!("block {number} holds {found:?}, and may hold {allowed:?}")),
    }
}

fn memory() -> MemoryDevice {
    MemoryDevice::new((BLOCKS * u64::from(BLOCK)) as usize, BLOCK)
}

fn harsh(seed: u64) -> FaultPlan {
    FaultPlan { error_one_in: 20, torn_one_in: 10, delay: Delay::Polls(5), ..FaultPlan::new(seed) }
}

#[test]
fn flushed_is_there_and_unflushed_is_old_or_new() {
    for seed in 0..60 {
        let plan = if seed % 2 == 0 { FaultPlan::new(seed) } else { harsh(seed) };
        let mut checker = Checker::new(FaultyDevice::new(memory(), plan), seed);
        checker.run(400).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

/// A disk with a bug: it says it wrote a block, now and then, and did not.
struct Forgetful {
    below: MemoryDevice,
    writes: u64,
}

impl Device for Forgetful {
    fn info(&self) -> DeviceInfo {
        self.below.info()
    }

    fn submit(&mut self, token: Token, op: DeviceOp) -> Result<(), Refused<DeviceOp>> {
        let is_write = matches!(op, DeviceOp::Write { .. });
        self.writes += u64::from(is_write);
        if is_write && self.writes.is_multiple_of(50) {
            let DeviceOp::Write { from, .. } = op else { return Ok(()) };
            return self.below.submit(token, DeviceOp::Write { offset: 0, from, durable: false });
        }
        self.below.submit(token, op)
    }

    fn poll(&mut self) -> Option<DeviceCompletion> {
        self.below.poll()
    }
}

/// As `Forgetful`, but the block is simply not written.
struct Silent(MemoryDevice, u64);

impl Device for Silent {
    fn info(&self) -> DeviceInfo {
        self.0.info()
    }

    fn submit(&mut self, token: Token, op: DeviceOp) -> Result<(), Refused<DeviceOp>> {
        self.1 += u64::from(matches!(op, DeviceOp::Write { .. }));
        let forget = self.1 > 0 && self.1.is_multiple_of(100) && matches!(op, DeviceOp::Write { .. });
        self.0.submit(token, if forget { DeviceOp::Flush } else { op })
    }

    fn poll(&mut self) -> Option<DeviceCompletion> {
        self.0.poll()
    }
}

#[test]
fn the_checker_catches_a_flush_that_forgets_a_block() {
    let caught = |seed| {
        let silent = FaultyDevice::new(Silent(memory(), 0), FaultPlan::new(seed));
        Checker::new(silent, seed).run(400).is_err()
    };
    assert!((0..10).filter(|seed| caught(*seed)).count() >= 8, "a forgotten block shows");
    let caught = |seed| {
        let device = FaultyDevice::new(Forgetful { below: memory(), writes: 0 }, FaultPlan::new(seed));
        Checker::new(device, seed).run(400).is_err()
    };
    assert!((0..10).filter(|seed| caught(*seed)).count() >= 8, "a block in the wrong place shows");
}

fn one_block(pool: &Pool, tag: u64) -> Slice {
    filled(pool.take().unwrap(), tag, 1)
}

fn drain<D: Device>(device: &mut FaultyDevice<D>) -> Vec<(u64, Result<(), DeviceError>)> {
    let mut results = Vec::new();
    for _ in 0..100 {
        results.extend(device.poll().map(|done| (done.token.0, done.result)));
    }
    results
}

#[test]
fn a_seed_is_a_whole_story() {
    let story = |seed| {
        let mut checker = Checker::new(FaultyDevice::new(memory(), harsh(seed)), seed);
        checker.run(300).unwrap();
        checker.device.into_below().bytes().to_vec()
    };
    assert_eq!(story(7), story(7));
    assert_ne!(story(7), story(8));
}

#[test]
fn a_script_hits_the_operation_it_means() {
    let pool = Pool::new(BLOCK as usize, 16);
    let mut plan = FaultPlan::new(0);
    let error = Fault::Error(DeviceError::NoSpace);
    plan.script.push(Scripted { kind: Some(OpKind::Write), nth: 1, fault: error });
    plan.script.push(Scripted { kind: None, nth: 3, fault: Fault::Stuck });
    let mut device = FaultyDevice::new(memory(), plan);
    let write = |offset| DeviceOp::Write { offset, from: one_block(&pool, 9), durable: false };
    device.submit(Token(1), write(0)).unwrap();
    device.submit(Token(2), DeviceOp::Flush).unwrap();
    device.submit(Token(3), write(512)).unwrap();
    device.submit(Token(4), write(1024)).unwrap();
    device.submit(Token(5), DeviceOp::Read { offset: 4, into: one_block(&pool, 0) }).unwrap();
    let mut results = drain(&mut device);
    results.sort_by_key(|(token, _)| *token);
    let misaligned = (5, Err(DeviceError::Misaligned));
    assert_eq!(results, [(1, Ok(())), (2, Ok(())), (3, Err(DeviceError::NoSpace)), misaligned]);
    assert!(device.next_due().is_none(), "a stuck operation is not waited for");
    device.release_stuck();
    assert_eq!(drain(&mut device), [(4, Ok(()))]);
}

#[test]
fn a_crash_keeps_what_is_chosen_and_what_is_durable() {
    let pool = Pool::new(8 * BLOCK as usize, 16);
    let mut device = FaultyDevice::new(memory(), FaultPlan::new(0));
    let write = |tag, offset, durable| DeviceOp::Write { offset, from: one_block(&pool, tag), durable };
    device.submit(Token(1), write(1, 0, true)).unwrap();
    device.submit(Token(2), write(2, 512, false)).unwrap();
    drain(&mut device);
    device.submit(Token(3), write(3, 512, false)).unwrap();
    drain(&mut device);
    // In flight at the crash: two blocks, one of which lands.
    let from = filled(pool.take().unwrap(), 4, 2);
    device.submit(Token(4), DeviceOp::Write { offset: 1024, from, durable: true }).unwrap();
    let mut asked = Vec::new();
    let ready = device.crash_choosing(|block, versions| {
        asked.push((block, versions));
        [None, Some(0), Some(0), None][block as usize]
    });
    assert!(ready && !device.is_recovering());
    assert_eq!(asked, [(1, 2), (2, 1), (3, 1)], "nothing is chosen about what is durable");
    assert!(drain(&mut device).is_empty(), "nothing of the life before completes");
    let tags: Vec<_> = device.below().bytes().chunks(512).take(4).map(tag_of).collect();
    assert_eq!(tags, [Some(1), Some(2), Some(4), Some(0)]);
}

#[test]
fn delays_follow_the_clock() {
    struct Hand(std::cell::Cell<u64>);
    impl Clock for Hand {
        fn now(&self) -> Instant {
            Instant::from_nanoseconds(self.0.get())
        }
    }
    let hand = Rc::new(Hand(std::cell::Cell::new(0)));
    let plan = FaultPlan { delay: Delay::Time(std::time::Duration::from_nanos(1000)), ..FaultPlan::new(3) };
    let mut device = FaultyDevice::new(memory(), plan).with_clock(Rc::clone(&hand) as Rc<dyn Clock>);
    for token in 0..20 {
        device.submit(Token(token), DeviceOp::Discard { offset: 0, len: 512 }).unwrap();
    }
    let mut results = Vec::new();
    while let Some(due) = device.next_due() {
        assert!(due >= hand.now() && due.nanoseconds() <= 1000);
        hand.0.set(due.nanoseconds());
        let before = results.len();
        results.extend(std::iter::from_fn(|| device.poll()).map(|done| done.token.0));
        assert!(results.len() > before, "what is due comes");
    }
    assert_eq!(results.len(), 20);
    assert!(!results.is_sorted(), "and not in the order it was submitted");
}

#[test]
fn the_queue_is_bounded() {
    let mut device = FaultyDevice::new(memory(), FaultPlan { stuck_one_in: 1, ..FaultPlan::new(0) });
    let taken = (0..1000).take_while(|token| device.submit(Token(*token), DeviceOp::Flush).is_ok()).count();
    assert_eq!(taken, DEPTH);
    assert!(device.crash(0));
    assert!(device.submit(Token(0), DeviceOp::Flush).is_ok());
}
