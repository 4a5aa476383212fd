//! Several tiers of one pool: each with a card of its own, over one store and the same chunk servers.

use std::time::Duration;

use ob_core::{BlockLen, SegmentId, SegmentName, VolumeId};
use ob_format::volume::metadata::{Segment, SegmentState};
use ob_volume::metadata::{MetadataValue, Name};
use ob_volume::tier::TierConfig;
use ob_wire_nvme::Status;
use ob_wire_nvme::command::IoOpcode;
use ob_wire_nvme::io::BlockCommand;

use crate::tier_model::seeds;
use crate::tier_rig::{Dice, Message, Rig, config, volume};

const VOLUME: VolumeId = VolumeId(1);
const BLOCKS: u64 = 3000;

impl Message {
    /// What it makes of a block, if anything.
    pub(crate) fn written(&self, id: VolumeId, block: u64) -> Option<u64> {
        let other = BlockCommand::parse(&self.entry).unwrap();
        let is_there = other.namespace.0 == id.0 as u32 && (other.start..other.end()).contains(&block);
        match IoOpcode::try_from(self.entry.opcode) {
            Ok(IoOpcode::Write) if is_there => Some(self.values[(block - other.start) as usize]),
            Ok(IoOpcode::WriteZeroes) if is_there => Some(0),
            _ => None,
        }
    }
}

/// Tiers, and which of them has what they share in its hands.
pub(crate) struct Tiers {
    pub(crate) rigs: Vec<Rig>,
    holder: usize,
}

impl Tiers {
    pub(crate) fn new(config: &TierConfig, count: usize, seed: u64) -> Self {
        let rig = |number: usize| {
            let mut rig = Rig::new(config.clone(), seed * 8 + number as u64);
            (rig.number, rig.is_shared) = (number as u64 + 1, true);
            rig
        };
        Self { rigs: (0..count).map(rig).collect(), holder: 0 }
    }

    /// One of the tiers, with what all of them share.
    pub(crate) fn with(&mut self, of: usize) -> &mut Rig {
        if of != self.holder {
            let (least, most) = (of.min(self.holder), of.max(self.holder));
            let (low, high) = self.rigs.split_at_mut(most);
            share(&mut low[least], &mut high[0]);
            self.holder = of;
        }
        &mut self.rigs[of]
    }

    pub(crate) fn open(&mut self) {
        for number in 0..self.rigs.len() {
            self.with(number).open();
        }
    }

    /// A client of one tier sends a command. Reads of the others may see it, and it what the others write.
    pub(crate) fn send(&mut self, by: usize, opcode: IoOpcode, start: u64, blocks: u32) -> u32 {
        let handle = self.with(by).send(opcode, VOLUME, start, blocks);
        for other in (0..self.rigs.len()).filter(|other| *other != by) {
            let (least, most) = (other.min(by), other.max(by));
            let (low, high) = self.rigs.split_at_mut(most);
            let (own, theirs) = if by == least {
                (&mut low[least].messages, &mut high[0].messages)
            } else {
                (&mut high[0].messages, &mut low[least].messages)
            };
            let message = own.get_mut(&handle).unwrap();
            for their in theirs.values_mut() {
                see(message, their, start);
                let command = BlockCommand::parse(&their.entry).unwrap();
                see(their, message, command.start);
            }
        }
        handle
    }

    /// One thing that is under way anywhere happens.
    pub(crate) fn step(&mut self, dice: &mut Dice) -> bool {
        let first = dice.below(self.rigs.len() as u64) as usize;
        let count = self.rigs.len();
        let by = (0..count).find(|number| self.with((first + number) % count).step());
        if let Some(number) = by {
            self.decide_taken((first + number) % count);
        }
        by.is_some()
    }

    /// What the owner before has sealed, and did not hear that it is sealed, counts as soon as the one after it answers.
    fn decide_taken(&mut self, by: usize) {
        let rig = self.with(by);
        if rig.undecided.values().all(Vec::is_empty) {
            return;
        }
        let status = rig.tier.status();
        for segment in status.segments {
            let Some(epoch) = segment.epoch else { continue };
            let chunks = rig.undecided.keys().copied().filter(|chunk| chunk.segment_name() == segment.name);
            for chunk in chunks.collect::<Vec<_>>() {
                if let Some(MetadataValue::Chunk(record)) = rig.stored(Name::Chunk(chunk))
                    && record.epoch < epoch
                {
                    rig.decide_sealed(chunk);
                }
            }
        }
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        for number in 0..self.rigs.len() {
            self.with(number).pass(time);
        }
    }

    pub(crate) fn settle(&mut self, dice: &mut Dice) {
        while self.step(dice) {}
    }

    /// Until all that was sent is answered.
    pub(crate) fn finish(&mut self, dice: &mut Dice) {
        for _ in 0..10_000 {
            self.settle(dice);
            if self.rigs.iter().all(|rig| rig.messages.is_empty()) {
                return;
            }
            self.pass(Duration::from_millis(20));
        }
        for rig in &self.rigs {
            eprintln!("{:#?}", rig.tier.status());
        }
        panic!("not all is answered");
    }

    pub(crate) fn status(&mut self, by: usize, opcode: IoOpcode, start: u64, blocks: u32) -> Status {
        let mut dice = Dice::new(7);
        let handle = self.send(by, opcode, start, blocks);
        self.finish(&mut dice);
        self.rigs[by].status_of(handle).unwrap()
    }

    /// Everything is read through each of them, and the log says the same.
    pub(crate) fn read_all(&mut self, seed: u64) {
        for by in 0..self.rigs.len() {
            // Who was robbed says so for a while.
            let is_read = (0..20).any(|_| {
                self.pass(Duration::from_millis(200));
                self.status(by, IoOpcode::Read, 0, BLOCKS as u32) == Status::SUCCESS
            });
            assert!(is_read, "seed {seed}");
            let rig = self.with(by);
            let read = rig.answered.last().unwrap().read.clone();
            assert_eq!(read, rig.model[&VOLUME], "seed {seed}, tier {by}");
        }
        self.with(0).check_log(&[0, 1, 2, 3]);
    }

    pub(crate) fn segment(&mut self, segment: u32) -> Segment {
        let name = Name::Segment(SegmentName { volume: VOLUME, segment: SegmentId(segment) });
        let Some(MetadataValue::Segment(segment)) = self.with(0).stored(name) else { panic!("no segment") };
        segment
    }
}

/// What two have of what there is once.
fn share(from: &mut Rig, to: &mut Rig) {
    use std::mem::swap;
    swap(&mut from.store, &mut to.store);
    swap(&mut from.servers, &mut to.servers);
    swap(&mut from.model, &mut to.model);
    swap(&mut from.undecided, &mut to.undecided);
    swap(&mut from.told, &mut to.told);
    swap(&mut from.superseded, &mut to.superseded);
    swap(&mut from.written, &mut to.written);
    swap(&mut from.asked, &mut to.asked);
    swap(&mut from.next_value, &mut to.next_value);
}

/// A read may see what another command writes.
fn see(read: &mut Message, other: &Message, start: u64) {
    for (place, may_be) in read.may_be.iter_mut().enumerate() {
        may_be.extend(other.written(VOLUME, start + place as u64));
    }
}

pub(crate) fn shared() -> TierConfig {
    config(vec![volume(1, BlockLen::Large, BLOCKS)], 4)
}

/// A segment goes to whoever's client asks for it, and back, and each has what the other has written.
#[test]
fn a_segment_follows_its_clients() {
    let mut tiers = Tiers::new(&shared(), 2, 1);
    tiers.open();
    for round in 0..6 {
        let (by, began) = (round % 2, tiers.rigs[0].now);
        assert_eq!(tiers.status(by, IoOpcode::Write, round as u64 * 4, 16), Status::SUCCESS);
        assert_eq!(tiers.status(by, IoOpcode::Read, 0, 64), Status::SUCCESS);
        let rig = tiers.with(by);
        let (read, now) = (rig.answered.last().unwrap().read.clone(), rig.now);
        assert_eq!(read, rig.model[&VOLUME][..64]);
        // Seen with a renewal, when it had it for a second; nobody's lease is waited for.
        assert!(now.since(began) < Duration::from_secs(3), "{:?}", now.since(began));
    }
    let released: u64 = tiers.rigs.iter().map(|rig| rig.tier.status().segments_released).sum();
    assert!(released >= 5, "{released}");
    // Numbers of chunks that were not used are given back.
    assert!(tiers.segment(0).chunk_next.0 < 1100, "{:?}", tiers.segment(0));
    tiers.read_all(1);
}

/// One that nobody asks for stays where it is; and whoever does not ask any more takes its wish back.
#[test]
fn nobody_takes_what_he_does_not_need() {
    let mut tiers = Tiers::new(&shared(), 2, 1);
    let mut dice = Dice::new(3);
    tiers.open();
    assert_eq!(tiers.status(0, IoOpcode::Write, 0, 16), Status::SUCCESS);
    for _ in 0..400 {
        tiers.settle(&mut dice);
        tiers.pass(Duration::from_millis(50));
    }
    let (first, second) = (tiers.rigs[0].tier.status(), tiers.rigs[1].tier.status());
    assert_eq!((first.segments_released, first.segments.len()), (0, 1));
    assert_eq!(second.segments.len(), 0, "{second:?}");
    assert_eq!(tiers.segment(0).epoch.number(), 1);
}

/// Random commands through two or three tiers, over a store that loses answers.
#[test]
fn tiers_that_share_segments_do_what_they_do_to_an_array() {
    let mut released = 0;
    for seed in 0..seeds() {
        println!("seed {seed}");
        let count = 2 + seed as usize % 2;
        let mut tiers = Tiers::new(&shared(), count, seed);
        let mut dice = Dice::new(seed + 40_000);
        for rig in &mut tiers.rigs {
            rig.unknown = if seed.is_multiple_of(3) { u64::MAX } else { 6 };
        }
        tiers.open();
        let mut left = 200;
        while left > 0 {
            if dice.below(6) == 0 {
                let by = dice.below(count as u64) as usize;
                if tiers.rigs[by].messages.len() < 12 {
                    send_any(&mut tiers, by, &mut dice);
                    left -= 1;
                }
            } else if !tiers.step(&mut dice) || dice.below(20) == 0 {
                tiers.pass(Duration::from_millis(1 + dice.below(200)));
            }
        }
        tiers.finish(&mut dice);
        tiers.read_all(seed);
        for rig in &tiers.rigs {
            for answered in &rig.answered {
                let is_legal = [Status::SUCCESS, Status::NAMESPACE_NOT_READY].contains(&answered.status);
                assert!(is_legal, "seed {seed}: {}", answered.status);
            }
            let status = rig.tier.status();
            assert_eq!((status.commands, status.mistakes), (0, 0), "seed {seed}");
            released += status.segments_released;
        }
    }
    assert!(released > 50, "{released} times a segment was handed over");
}

/// One tier is cut off from the store: the other takes what it has when its session is over, and its lease; what it then says is heard by
/// nobody, and when it is back it has what the other has written.
#[test]
fn a_tier_that_is_cut_off_is_waited_for_and_not_heard() {
    for seed in 0..seeds() {
        println!("seed {seed}");
        let mut tiers = Tiers::new(&shared(), 2, seed);
        let mut dice = Dice::new(seed + 70_000);
        tiers.open();
        for round in 0..3 {
            let cut = (seed as usize + round) % 2;
            for _ in 0..200 {
                if dice.below(6) == 0 {
                    let by = dice.below(2) as usize;
                    if tiers.rigs[by].messages.len() < 12 {
                        send_any(&mut tiers, by, &mut dice);
                    }
                } else if !tiers.step(&mut dice) || dice.below(10) == 0 {
                    tiers.pass(Duration::from_millis(1 + dice.below(100)));
                }
                tiers.rigs[cut].is_store_silent = true;
            }
            for _ in 0..dice.below(100) {
                tiers.settle(&mut dice);
                tiers.pass(Duration::from_millis(100));
                let by = dice.below(2) as usize;
                if tiers.rigs[by].messages.len() < 12 {
                    send_any(&mut tiers, by, &mut dice);
                }
            }
            tiers.rigs[cut].is_store_silent = false;
        }
        tiers.finish(&mut dice);
        tiers.read_all(seed);
        let lost: u64 = tiers.rigs.iter().map(|rig| rig.tier.status().sessions_lost).sum();
        println!("seed {seed}: {lost} sessions lost");
    }
}

/// An owner that goes away while nobody asks for what it has: the tier that looks for that takes it.
#[test]
fn what_nobody_owns_is_found() {
    let mut tiers = Tiers::new(&shared(), 2, 1);
    let mut dice = Dice::new(3);
    tiers.open();
    assert_eq!(tiers.status(1, IoOpcode::Write, 0, 16), Status::SUCCESS);
    tiers.rigs[1].is_store_silent = true;
    for _ in 0..800 {
        tiers.settle(&mut dice);
        tiers.pass(Duration::from_millis(50));
    }
    let segment = tiers.segment(0);
    assert_eq!((segment.owner, segment.state), (ob_core::TierId(1), SegmentState::Owned));
    assert_eq!(tiers.rigs[0].tier.status().segments_taken, 1);
}

/// A command somewhere, most of them where others are too.
fn send_any(tiers: &mut Tiers, by: usize, dice: &mut Dice) {
    let around = [0, 1010, 2030, BLOCKS - 40][dice.below(4) as usize];
    let start = (around + dice.below(32)).min(BLOCKS - 1);
    let most = [1, 8, 40][dice.below(3) as usize];
    let blocks = (1 + dice.below(most)).min(BLOCKS - start) as u32;
    let opcode = match dice.below(12) {
        0..5 => IoOpcode::Write,
        5 => IoOpcode::WriteZeroes,
        _ => IoOpcode::Read,
    };
    tiers.send(by, opcode, start, blocks);
}
