//! Reads, losses of power and faults against a model that knows what each block may hold.

use std::collections::BTreeMap;
use std::time::Duration;

use ob_memory::Pool;

use super::*;
use crate::{PerMillion, SimClock};

const BLOCK: usize = 512;
const BLOCKS: u64 = 24;

/// What each block may hold: the bytes known to be durable, and everything written over them since.
struct Model {
    blocks: BTreeMap<u64, Possible>,
}

#[derive(Clone, Default)]
struct Possible {
    durable: u8,
    /// Written since, oldest submission first: mark, submission, completion (by the clock of the test's steps).
    later: Vec<(u8, u64, Option<u64>)>,
}

impl Possible {
    /// Whether the block may hold this after a loss of power.
    fn allows(&self, mark: u8) -> bool {
        self.durable == mark || self.later.iter().any(|(later, _, _)| *later == mark)
    }

    /// Of the writes completed before `step`, only those that no other one wholly followed may be the last.
    fn flushed(&mut self, step: u64) {
        let completed = |end: &Option<u64>| end.is_some_and(|end| end < step);
        let last_start =
            self.later.iter().filter(|(_, _, end)| completed(end)).map(|(_, start, _)| *start).max();
        let Some(last_start) = last_start else { return };
        // A write that ended before the last one began is gone for good, and so is what was durable.
        self.later.retain(|(_, _, end)| end.is_none_or(|end| end >= last_start));
        let newest = self.later.iter().rev().find(|(_, _, end)| completed(end)).map(|(mark, _, _)| *mark);
        self.durable = newest.unwrap_or(self.durable);
    }
}

struct Rig {
    disk: SimDisk,
    clock: SimClock,
    pool: Pool,
    rng: Rng,
    model: Model,
    step: u64,
    mark: u8,
    /// Block numbers of writes, step of flushes, by token.
    writes: BTreeMap<u64, (u64, u8, bool)>,
    flushes: BTreeMap<u64, u64>,
}

impl Rig {
    fn new(seed: u64, plan: DiskPlan) -> Self {
        let clock = SimClock::new();
        let rng = Rng::new(seed);
        let plan = DiskPlan { capacity: BLOCKS * BLOCK as u64, ..plan };
        let disk = SimDisk::new(plan, rng.fork("disk"), Trace::new(clock.clone()));
        let model = Model { blocks: (0..BLOCKS).map(|block| (block, Possible::default())).collect() };
        let (writes, flushes) = (BTreeMap::new(), BTreeMap::new());
        Self { disk, clock, pool: Pool::new(4096, 256), rng, model, step: 0, mark: 0, writes, flushes }
    }

    fn slice(&self, blocks: usize, byte: u8) -> ob_memory::Slice {
        let mut slice = self.pool.take().unwrap().split_to(blocks * BLOCK);
        slice.fill(byte);
        slice
    }

    fn submit_something(&mut self) {
        self.step += 1;
        let (block, token) = (self.rng.below(BLOCKS), self.step);
        if self.rng.one_in(6) {
            if self.disk.submit(Token(token), DeviceOp::Flush).is_ok() {
                self.flushes.insert(token, self.step);
            }
            return;
        }
        self.mark = self.mark % 250 + 1;
        let durable = self.rng.one_in(8);
        let from = self.slice(1, self.mark).into();
        let op = DeviceOp::Write { offset: block * BLOCK as u64, from, durable };
        if self.disk.submit(Token(token), op).is_ok() {
            self.writes.insert(token, (block, self.mark, durable));
            let possible = self.model.blocks.get_mut(&block).unwrap();
            possible.later.push((self.mark, self.step, None));
        }
    }

    fn poll_all(&mut self) {
        while let Some(done) = self.disk.poll() {
            self.step += 1;
            let ok = done.result.is_ok();
            if let Some((block, mark, durable)) = self.writes.remove(&done.token.0) {
                let possible = self.model.blocks.get_mut(&block).unwrap();
                let write = possible.later.iter_mut().find(|(later, _, _)| *later == mark);
                if let (Some(write), true) = (write, ok) {
                    write.2 = Some(self.step);
                    // As if a flush of this write alone had come back.
                    if durable {
                        let start = write.1;
                        possible.later.retain(|(_, _, end)| end.is_none_or(|end| end >= start));
                        possible.durable = mark;
                    }
                }
            } else if let Some(step) = self.flushes.remove(&done.token.0)
                && ok
            {
                self.model.blocks.values_mut().for_each(|possible| possible.flushed(step));
            }
        }
    }

    fn play(&mut self, rounds: u64) {
        for _ in 0..rounds {
            self.submit_something();
            if self.rng.one_in(3) {
                let step = self.rng.skewed(Duration::from_micros(1)..Duration::from_micros(400));
                self.clock.advance_to(self.clock.now() + step);
                self.poll_all();
            }
        }
    }

    /// The blocks that hold what they may not.
    fn wrong_blocks(&self) -> Vec<(u64, u8)> {
        let image = self.disk.image();
        let held = |block: u64| image.block(block).map_or(0, |bytes| bytes[0]);
        let wrong = |(block, possible): (&u64, &Possible)| {
            (!possible.allows(held(*block))).then(|| (*block, held(*block)))
        };
        self.model.blocks.iter().filter_map(wrong).collect()
    }

    fn run_one(&mut self, op: DeviceOp) -> DeviceCompletion {
        self.disk.submit(Token(u64::MAX), op).unwrap();
        loop {
            if let Some(done) = self.disk.poll() {
                return done;
            }
            self.clock.advance_to(self.disk.next_due().unwrap());
        }
    }
}

#[test]
fn what_a_loss_of_power_leaves_is_what_the_contract_allows() {
    let (mut lost, mut kept, mut cut) = (0, 0, 0);
    for seed in 0..400 {
        let busy = if seed % 2 == 0 { PerMillion::NEVER } else { PerMillion::percent(10) };
        let mut rig = Rig::new(seed, DiskPlan { depth: 16, busy, ..DiskPlan::default() });
        rig.play(20 + seed % 100);
        rig.disk.lose_power();
        assert_eq!(rig.wrong_blocks(), [], "seed {seed}");
        let stats = rig.disk.stats();
        (lost, kept, cut) = (lost + stats.blocks_lost, kept + stats.blocks_kept, cut + stats.writes_cut);
    }
    assert!(lost > 500 && kept > 500 && cut > 500, "{lost} lost, {kept} kept, {cut} cut");
}

#[test]
fn the_model_finds_a_disk_whose_flush_lies() {
    let plan = DiskPlan { flush_lies: PerMillion::ALWAYS, ..DiskPlan::default() };
    let found = (0..100).filter(|seed| {
        let mut rig = Rig::new(*seed, plan.clone());
        rig.play(100);
        rig.disk.lose_power();
        !rig.wrong_blocks().is_empty()
    });
    assert!(found.count() > 50);
}

#[test]
fn the_model_finds_a_bit_flipped_at_rest_and_a_write_that_went_elsewhere() {
    let mut rig = Rig::new(1, DiskPlan::default());
    rig.play(300);
    rig.disk.lose_power();
    assert_eq!(rig.wrong_blocks(), []);
    let before = rig.disk.image();
    rig.disk.rot(1);
    let after = rig.disk.image();
    let differ = (0..BLOCKS).filter(|block| before.block(*block) != after.block(*block)).count();
    assert_eq!((differ, rig.disk.stats().bits_flipped), (1, 1));
    let chosen = (0..BLOCKS).rev().find(|block| after.block(*block).is_some()).unwrap();
    assert!(rig.disk.rot_where(|block, _| (block == chosen).then_some(7)));
    assert!(!rig.disk.rot_where(|_, _| None), "there is none");
    let at = |image: &DiskImage| image.block(chosen).map(|bytes| (bytes[6], bytes[7], bytes[8])).unwrap();
    let (was, is) = (at(&after), at(&rig.disk.image()));
    assert_eq!((was.0, was.2, (was.1 ^ is.1).count_ones()), (is.0, is.2, 1));
    let found = (0..50).filter(|seed| {
        let mut rig =
            Rig::new(*seed, DiskPlan { misdirected: PerMillion::percent(20), ..DiskPlan::default() });
        rig.play(200);
        rig.disk.lose_power();
        !rig.wrong_blocks().is_empty() && rig.disk.stats().misdirected > 0
    });
    assert!(found.count() > 25);
}

#[test]
fn the_death_of_a_process_loses_nothing_that_was_complete() {
    for seed in 0..50 {
        let mut rig = Rig::new(seed, DiskPlan::default());
        let from = rig.slice(2, 7).into();
        rig.run_one(DeviceOp::Write { offset: 0, from, durable: false }).result.unwrap();
        let from = rig.slice(8, 9).into();
        rig.disk
            .submit(Token(1), DeviceOp::Write { offset: 2 * BLOCK as u64, from, durable: false })
            .unwrap();
        rig.disk.lose_process();
        assert!(rig.disk.poll().is_none());
        let into = rig.slice(8, 0xee);
        let done = rig.run_one(DeviceOp::Read { offset: 0, into });
        let DeviceOp::Read { into, .. } = done.op else { panic!("a read") };
        assert!(into[..2 * BLOCK].iter().all(|byte| *byte == 7));
        for block in into[2 * BLOCK..].chunks(BLOCK) {
            assert!(
                block.iter().all(|byte| *byte == block[0]) && [0, 9].contains(&block[0]),
                "torn in a block"
            );
        }
    }
}

#[test]
fn a_payload_that_goes_to_two_disks_is_cut_on_each_by_itself() {
    let mut cut = 0;
    for seed in 0..50 {
        let mut rig = Rig::new(seed, DiskPlan::default());
        let plan = DiskPlan { capacity: BLOCKS * BLOCK as u64, ..DiskPlan::default() };
        let other = Rng::new(seed).fork("other disk");
        let mut other = SimDisk::new(plan, other, Trace::new(rig.clock.clone()));
        let payload = rig.slice(8, 9).share();
        for disk in [&mut rig.disk, &mut other] {
            let op = DeviceOp::Write { offset: 0, from: payload.clone().into(), durable: true };
            disk.submit(Token(1), op).unwrap();
        }
        drop(payload);
        let now = rig.clock.now();
        rig.clock.advance_to(now + rig.disk.next_due().unwrap().since(now) / 2);
        rig.disk.lose_power();
        let image = rig.disk.image();
        let marks = (0..8).map(|block| image.block(block).map_or(0, |bytes| bytes[0]));
        let written = marks.filter(|mark| *mark == 9).count();
        cut += u32::from(written > 0 && written < 8);
        assert!((0..8).all(|block| image.block(block).is_none_or(|bytes| {
            bytes.iter().all(|byte| *byte == bytes[0]) && [0, 9].contains(&bytes[0])
        })));
        // The one that has lost its power has given the payload up; the other one has it still.
        rig.clock.advance_to(rig.clock.now() + Duration::from_secs(1));
        let done = other.poll().unwrap();
        assert_eq!((done.result, rig.pool.blocks_out()), (Ok(()), 1));
        other.lose_power();
        let image = other.image();
        assert!((0..8).all(|block| image.block(block).unwrap().iter().all(|byte| *byte == 9)));
        drop(done);
        assert_eq!(rig.pool.blocks_out(), 0);
    }
    assert!(cut > 5, "{cut} were cut in the middle");
}

#[test]
fn what_a_dead_process_left_is_made_durable_by_the_next_ones_flush() {
    for seed in 0..20 {
        let mut rig = Rig::new(seed, DiskPlan::default());
        let from = rig.slice(4, 9).into();
        rig.disk.submit(Token(1), DeviceOp::Write { offset: 0, from, durable: false }).unwrap();
        rig.disk.lose_process();
        let into = rig.slice(4, 0xee);
        let DeviceOp::Read { into, .. } = rig.run_one(DeviceOp::Read { offset: 0, into }).op else {
            panic!("a read")
        };
        rig.run_one(DeviceOp::Flush).result.unwrap();
        rig.disk.lose_power();
        let image = rig.disk.image();
        for (block, seen) in into.chunks(BLOCK).enumerate() {
            assert_eq!(image.block(block as u64).map_or(0, |bytes| bytes[0]), seen[0]);
        }
    }
}

#[test]
fn a_disk_without_a_volatile_cache_loses_nothing_that_was_complete() {
    let mut rig = Rig::new(3, DiskPlan { volatile_cache: false, ..DiskPlan::default() });
    let from = rig.slice(4, 5).into();
    rig.run_one(DeviceOp::Write { offset: 0, from, durable: false }).result.unwrap();
    rig.run_one(DeviceOp::WriteZeroes { offset: 0, len: BLOCK as u64 }).result.unwrap();
    rig.disk.lose_power();
    let image = rig.disk.image();
    assert_eq!([image.block(0).unwrap()[0], image.block(3).unwrap()[0]], [0, 5]);
    assert_eq!(rig.disk.stats().blocks_lost, 0);
}

#[test]
fn the_next_life_starts_from_the_image() {
    let mut rig = Rig::new(4, DiskPlan::default());
    let from = rig.slice(1, 6).into();
    rig.run_one(DeviceOp::Write { offset: 0, from, durable: true }).result.unwrap();
    let plan = DiskPlan { capacity: BLOCKS * BLOCK as u64, ..DiskPlan::default() };
    rig.disk = SimDisk::from_image(rig.disk.image(), plan, Rng::new(5), Trace::new(rig.clock.clone()));
    let into = rig.slice(1, 0);
    let DeviceOp::Read { into, .. } = rig.run_one(DeviceOp::Read { offset: 0, into }).op else {
        panic!("a read")
    };
    assert!(into.iter().all(|byte| *byte == 6));
}

#[test]
fn every_fault_can_be_reached() {
    let often = PerMillion::percent(10);
    let plan = DiskPlan {
        depth: 8,
        busy: often,
        read_error: often,
        write_error: often,
        flush_error: often,
        slow: often,
        ..DiskPlan::default()
    };
    let mut rig = Rig::new(6, plan);
    for round in 0..500 {
        let op = match round % 3 {
            0 => DeviceOp::Flush,
            1 => DeviceOp::Read { offset: 0, into: rig.slice(2, 0) },
            _ => DeviceOp::Write { offset: 0, from: rig.slice(2, 1).into(), durable: false },
        };
        let _ = rig.disk.submit(Token(round), op);
        rig.clock.advance_to(rig.clock.now() + Duration::from_micros(30));
        while rig.disk.poll().is_some() {}
    }
    let stats = rig.disk.stats();
    let reached = [stats.busy, stats.read_errors, stats.write_errors, stats.flush_errors, stats.slow];
    assert!(reached.iter().all(|count| *count > 5), "{stats:?}");
}

#[test]
fn bad_ranges_full_disks_and_stuck_operations() {
    let (bad_to_read, bad_to_write) = (vec![512..1024, 9000..9001], vec![0..1, 9000..9001]);
    let plan = DiskPlan { bad_to_read, bad_to_write, ..DiskPlan::default() };
    let mut rig = Rig::new(7, plan);
    let read = |rig: &mut Rig, block: u64| {
        let into = rig.slice(1, 0);
        rig.run_one(DeviceOp::Read { offset: block * BLOCK as u64, into }).result
    };
    let write = |rig: &mut Rig, block: u64| {
        let from = rig.slice(1, 1).into();
        rig.run_one(DeviceOp::Write { offset: block * BLOCK as u64, from, durable: false }).result
    };
    assert_eq!([read(&mut rig, 0), read(&mut rig, 1)], [Ok(()), Err(DeviceError::Io)]);
    assert_eq!([write(&mut rig, 0), write(&mut rig, 1)], [Err(DeviceError::Io), Ok(())]);
    rig.disk.change_plan(|plan| *plan = DiskPlan { space: Some(3 * BLOCK as u64), ..DiskPlan::default() });
    let results = [5, 6, 7, 6].map(|block| write(&mut rig, block));
    assert!(results[..3].contains(&Err(DeviceError::NoSpace)), "{results:?}");
    assert_eq!(rig.disk.info().capacity, BLOCKS * BLOCK as u64, "the size stays");
    rig.disk.change_plan(|plan| *plan = DiskPlan { stuck: PerMillion::ALWAYS, ..DiskPlan::default() });
    rig.disk.submit(Token(1), DeviceOp::Flush).unwrap();
    rig.clock.advance_to(rig.clock.now() + Duration::from_secs(3600));
    assert!(rig.disk.poll().is_none() && rig.disk.next_due().is_none());
    rig.disk.unstick();
    assert!(rig.disk.poll().is_some());
    let out = rig.run_one(DeviceOp::Discard { offset: BLOCKS * BLOCK as u64, len: 512 });
    assert_eq!(out.result, Err(DeviceError::OutOfRange));
}
