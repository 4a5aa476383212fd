//! Tiers that end and give back what they have, leases that are over, and a tier on a copy of another's data directory.

use std::time::Duration;

use ob_core::{BlockLen, Revision, TierId, VolumeId};
use ob_format::volume::metadata::SegmentState;
use ob_volume::metadata::{MetadataOp, Name};
use ob_volume::tier::TierEvent;
use ob_wire_nvme::Status;
use ob_wire_nvme::command::IoOpcode;

use crate::tier_pair::{Tiers, shared};
use crate::tier_rig::{Dice, Rig, config, volume};

const VOLUME: VolumeId = VolumeId(1);

fn rig() -> Rig {
    let mut rig = Rig::new(config(vec![volume(1, BlockLen::Large, 3000)], 3), 1);
    rig.open();
    rig.settle();
    rig
}

fn status(rig: &mut Rig, opcode: IoOpcode, start: u64, blocks: u32) -> Status {
    let handle = rig.send(opcode, VOLUME, start, blocks);
    rig.finish();
    rig.status_of(handle).unwrap()
}

#[test]
fn a_tier_that_leaves_is_not_waited_for_and_answers_nothing_more() {
    let mut tiers = Tiers::new(&shared(), 2, 1);
    let mut dice = Dice::new(3);
    tiers.open();
    assert_eq!(tiers.status(0, IoOpcode::Write, 0, 4), Status::SUCCESS);
    assert_eq!(tiers.status(0, IoOpcode::Write, 1024, 4), Status::SUCCESS);
    // What is under way is finished first.
    let last = tiers.send(0, IoOpcode::Write, 4, 4);
    tiers.with(0).tell(TierEvent::Leave);
    assert!(!tiers.rigs[0].tier.has_left());
    tiers.settle(&mut dice);
    assert!(tiers.rigs[0].tier.has_left());
    assert_eq!(tiers.rigs[0].status_of(last), Some(Status::SUCCESS));
    assert_eq!(tiers.rigs[0].tier.status().lease_left, Duration::ZERO);
    for segment in 0..2 {
        assert_eq!(tiers.segment(segment).state, SegmentState::Released);
    }
    assert!(tiers.with(0).stored(Name::Tier(TierId(1))).is_none());
    let began = tiers.rigs[1].now;
    assert_eq!(tiers.status(1, IoOpcode::Read, 0, 64), Status::SUCCESS);
    let took = tiers.rigs[1].now.since(began);
    assert!(took < Duration::from_secs(1), "{took:?}");
    let late = tiers.send(0, IoOpcode::Read, 0, 1);
    for _ in 0..40 {
        tiers.settle(&mut dice);
        tiers.pass(Duration::from_millis(50));
    }
    assert_eq!(tiers.rigs[0].status_of(late), None);
}

/// L12: a wait that is not over is the next one's.
#[test]
fn what_is_waited_for_is_left_as_it_is() {
    let mut tiers = Tiers::new(&shared(), 2, 1);
    let mut dice = Dice::new(3);
    tiers.open();
    assert_eq!(tiers.status(0, IoOpcode::Write, 0, 16), Status::SUCCESS);
    tiers.rigs[0].is_store_silent = true;
    tiers.send(1, IoOpcode::Read, 0, 1);
    while tiers.segment(0).state != SegmentState::Taken {
        tiers.settle(&mut dice);
        tiers.pass(Duration::from_millis(50));
    }
    tiers.with(1).tell(TierEvent::Leave);
    tiers.settle(&mut dice);
    assert!(tiers.rigs[1].tier.has_left());
    assert_eq!(tiers.segment(0).state, SegmentState::Taken);
    assert!(tiers.with(1).stored(Name::Tier(TierId(2))).is_none());
}

/// A store that does not answer is waited for as long as a lease lasts, and nothing is answered after that.
#[test]
fn a_tier_leaves_though_the_store_is_silent() {
    let mut rig = rig();
    assert_eq!(status(&mut rig, IoOpcode::Write, 0, 16), Status::SUCCESS);
    rig.is_store_silent = true;
    rig.tell(TierEvent::Leave);
    for _ in 0..70 {
        rig.settle();
        rig.pass(Duration::from_millis(50));
    }
    assert!(!rig.tier.has_left(), "nobody has heard of it");
    assert_eq!(rig.tier.status().lease_left, Duration::ZERO);
    assert!(rig.ops.iter().any(|(_, op)| matches!(op, MetadataOp::Revoke { .. })));
    rig.is_store_silent = false;
    rig.settle();
    assert!(rig.tier.has_left());
}

/// The segment that nobody has asked for is given back for one that somebody asks for.
#[test]
fn an_idle_segment_makes_room_for_another() {
    let mut config = config(vec![volume(1, BlockLen::Large, 3000)], 3);
    // A page, and as much to replay it.
    config.index_memory = 20_000;
    let mut rig = Rig::new(config, 1);
    rig.open();
    for round in 0..4 {
        let (this, other) = (round % 2 * 1024, (round + 1) % 2 * 1024);
        assert_eq!(status(&mut rig, IoOpcode::Write, this, 16), Status::SUCCESS, "round {round}");
        assert_eq!(status(&mut rig, IoOpcode::Write, other, 16), Status::NAMESPACE_NOT_READY, "it is in use");
        for _ in 0..220 {
            rig.settle();
            rig.pass(Duration::from_millis(50));
        }
    }
    assert_eq!(rig.tier.status().segments_released, 3);
    assert_eq!(status(&mut rig, IoOpcode::Read, 1024, 16), Status::SUCCESS);
}

/// Of the past everything goes that was past ten minutes ago, and no more.
#[test]
fn the_stores_history_is_forgotten_in_time() {
    for keeps_history in [false, true] {
        let mut config = config(vec![volume(1, BlockLen::Large, 3000)], 3);
        config.keeps_history = keeps_history;
        let mut rig = Rig::new(config, 1);
        rig.open();
        rig.settle();
        let (mut revisions, mut forgotten) = (Vec::new(), Vec::new());
        for round in 0..4000 {
            if round % 200 == 0 {
                // Chunks that are sealed for standing still are changes of the store.
                rig.send(IoOpcode::Write, VOLUME, round / 200 * 16, 16);
            }
            revisions.push((rig.now, latest(&mut rig)));
            loop {
                for (_, op) in &rig.ops {
                    if let MetadataOp::Forget { before } = op {
                        forgotten.push((rig.now, *before));
                    }
                }
                if !rig.step() {
                    break;
                }
            }
            rig.pass(Duration::from_millis(500));
        }
        forgotten.dedup();
        assert_eq!(forgotten.len() >= 2, !keeps_history, "{forgotten:?}");
        for (at, before) in forgotten {
            let known = revisions.iter().find(|(_, revision)| *revision >= before).unwrap().0;
            assert!(
                at.since(known) >= Duration::from_secs(590),
                "{before:?} was known for {:?}",
                at.since(known)
            );
        }
    }
}

/// The revision of the last change of the tier's keys.
fn latest(rig: &mut Rig) -> Revision {
    use ob_volume::metadata::{Key, LIST_MAX, MetadataAnswer, MetadataStore};
    let list = MetadataOp::List { prefix: Key::new("/").unwrap(), after: None, most: LIST_MAX };
    rig.store.submit(ob_core::Token(1 << 60), list).unwrap();
    let Ok(MetadataAnswer::Values { entries, .. }) = rig.store.poll().unwrap().result else { panic!() };
    entries.iter().map(|entry| entry.revision).max().unwrap()
}

/// L2: without a lease no block is looked up, mapped or not, and no flush is answered.
#[test]
fn nothing_is_looked_up_without_a_lease() {
    let mut rig = rig();
    assert_eq!(status(&mut rig, IoOpcode::Write, 0, 16), Status::SUCCESS);
    rig.is_store_silent = true;
    for _ in 0..80 {
        rig.settle();
        rig.pass(Duration::from_millis(50));
    }
    assert!(!rig.tier.status().is_open);
    let sent = [
        rig.send(IoOpcode::Read, VOLUME, 0, 4),
        rig.send(IoOpcode::Read, VOLUME, 100, 4),
        rig.send(IoOpcode::Flush, VOLUME, 0, 1),
        rig.send(IoOpcode::Write, VOLUME, 4, 4),
    ];
    rig.settle();
    for handle in sent {
        assert!(rig.posted.iter().all(|plan| plan.handle.0 != handle), "{handle} goes on without a lease");
    }
    rig.is_store_silent = false;
    rig.finish();
    assert!(sent.into_iter().all(|handle| rig.status_of(handle) == Some(Status::SUCCESS)));
}

/// L8, L10: time that has passed has passed, whether the machine slept or the thread stood still before it took the headers that came.
#[test]
fn a_command_is_judged_by_the_time_at_which_it_was_taken() {
    for gone in [Duration::from_secs(4), Duration::from_secs(3600)] {
        let mut rig = rig();
        assert_eq!(status(&mut rig, IoOpcode::Write, 0, 16), Status::SUCCESS);
        rig.now = rig.now + gone;
        let read = rig.send(IoOpcode::Read, VOLUME, 0, 4);
        assert!(rig.posted.iter().all(|plan| plan.handle.0 != read), "after {gone:?} there is no lease");
        rig.finish();
        assert_eq!(rig.status_of(read), Some(Status::SUCCESS));
    }
}

/// L11: a machine was cloned, with its data directory. The second has the first one's name, and not its lock: it is a tier like any other.
#[test]
fn a_tier_on_a_copy_of_anothers_directory_waits_for_it() {
    let mut tiers = Tiers::new(&shared(), 2, 1);
    let mut dice = Dice::new(3);
    (tiers.rigs[1].number, tiers.rigs[1].is_copy) = (1, true);
    tiers.with(0).open();
    tiers.settle(&mut dice);
    assert_eq!(tiers.status(0, IoOpcode::Write, 0, 16), Status::SUCCESS);
    tiers.with(1).open();
    for _ in 0..100 {
        tiers.settle(&mut dice);
        tiers.pass(Duration::from_millis(50));
    }
    assert!(tiers.rigs[0].tier.status().is_open, "its session goes on");
    assert!(!tiers.rigs[1].tier.status().is_open, "there is one of that name");
    // Now it is cut off, and goes on answering as long as its lease lasts.
    tiers.rigs[0].is_store_silent = true;
    let until = tiers.rigs[0].open_until.unwrap();
    assert_eq!(tiers.status(1, IoOpcode::Read, 0, 16), Status::SUCCESS);
    assert!(tiers.rigs[1].now >= until, "the first one could still answer");
}
