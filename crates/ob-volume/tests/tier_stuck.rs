//! What must not wait for ever, nor for long: seals, checkpoints, trims and writes that something stands in the way of.

use std::time::Duration;

use ob_core::{BlockLen, VolumeId};
use ob_format::volume::ChunkKind;
use ob_volume::tier::{Placement, TierConfig};
use ob_wire_nvme::Status;
use ob_wire_nvme::command::IoOpcode;

use crate::tier_failover::heal;
use crate::tier_model::{both, read_all, seeds, send_any};
use crate::tier_rig::{Dice, Rig, config, volume};

const VOLUME: VolumeId = VolumeId(1);
const FULL: Status = Status::CAPACITY_EXCEEDED.with_do_not_retry();

fn one_volume() -> TierConfig {
    config(vec![volume(1, BlockLen::Large, 3000)], 3)
}

fn write(rig: &mut Rig, start: u64, blocks: u32) -> Status {
    let handle = rig.send(IoOpcode::Write, VOLUME, start, blocks);
    rig.finish();
    rig.status_of(handle).unwrap()
}

fn rest(rig: &mut Rig, time: Duration) {
    for _ in 0..time.as_millis() / 50 {
        rig.pass(Duration::from_millis(50));
        rig.settle();
    }
}

/// C4: what one member alone has, was never acknowledged, and cannot be read there, is done without.
#[test]
fn a_tail_that_nobody_gives_does_not_keep_a_chunk_from_its_seal() {
    let mut rig = Rig::new(one_volume(), 1);
    rig.open();
    assert_eq!(write(&mut rig, 0, 16), Status::SUCCESS);
    let replica = rig.servers[0].chunks.values_mut().next().unwrap();
    let end = replica.end();
    replica.records.insert(end, vec![7; 128]);
    replica.rotten.insert(end);
    rig.kill(2);
    rest(&mut rig, Duration::from_secs(20));
    assert_eq!(rig.tier.status().chunks_sealed, 1, "{:?}", rig.tier.status());
    rig.revive(2);
    heal(&mut rig);
    assert_eq!(write(&mut rig, 0, 16), Status::SUCCESS);
    rig.check_log(&[0, 1, 2]);
}

/// And so is it by an owner that does not know how far the chunk was acknowledged, if another member does.
#[test]
fn a_tail_that_nobody_gives_does_not_keep_the_next_life_from_its_segment() {
    let mut rig = Rig::new(one_volume(), 1);
    rig.open();
    assert_eq!(write(&mut rig, 0, 16), Status::SUCCESS);
    rig.die();
    let replica = rig.servers[0].chunks.values_mut().next().unwrap();
    let end = replica.end();
    replica.records.insert(end, vec![7; 128]);
    replica.rotten.insert(end);
    let read = rig.send(IoOpcode::Read, VOLUME, 0, 16);
    rest(&mut rig, Duration::from_secs(15));
    assert_eq!(rig.status_of(read), Some(Status::SUCCESS), "{:?}", rig.tier.status());
    rig.check_log(&[0, 1, 2]);
}

/// A checkpoint that lost a member is begun anew soon, though nothing more is written.
#[test]
fn a_checkpoint_that_was_given_up_is_begun_anew() {
    let mut rig = Rig::new(TierConfig { checkpoint_blocks: 64, ..one_volume() }, 1);
    rig.open();
    rig.holds_index = true;
    for start in 0..10 {
        assert_eq!(write(&mut rig, start * 16, 16), Status::SUCCESS);
    }
    rest(&mut rig, Duration::from_secs(1));
    let has_index =
        |rig: &Rig| rig.servers[0].chunks.values().any(|replica| replica.kind == ChunkKind::Index);
    assert!(has_index(&rig), "a checkpoint is under way");
    rig.kill(0);
    rig.holds_index = false;
    rest(&mut rig, Duration::from_secs(3));
    rig.revive(0);
    rest(&mut rig, Duration::from_secs(20));
    let status = rig.tier.status();
    assert!(status.checkpoints_given_up > 0, "{status:?}");
    assert!(status.checkpoints > 0, "{status:?}");
    rig.check_log(&[0, 1, 2]);
}

/// A trim that finds no room at all is told so at once.
#[test]
fn a_trim_without_any_room_is_refused_at_once() {
    let mut rig = Rig::new(one_volume(), 1);
    for server in &mut rig.servers {
        (server.capacity, server.reserve) = (12 * (128 << 10), 4 * (128 << 10));
    }
    rig.open();
    let refused = (0..30).position(|start| write(&mut rig, start * 16, 16) == FULL);
    assert!(refused.is_some());
    for server in &mut rig.servers {
        server.capacity = server.used();
    }
    let began = rig.now;
    let trim = rig.send(IoOpcode::WriteZeroes, VOLUME, 0, 16);
    rig.finish();
    assert_eq!(rig.status_of(trim), Some(FULL));
    assert!(rig.now.since(began) < Duration::from_secs(3), "{:?}", rig.now.since(began));
}

/// Writes that wait for room at the host are not kept waiting by those that were answered while they waited there.
#[test]
fn room_for_payloads_goes_to_who_is_still_there() {
    let mut rig = Rig::new(TierConfig { placement: Placement::Host, ..one_volume() }, 1);
    rig.open();
    assert_eq!(write(&mut rig, 0, 1), Status::SUCCESS);
    (0..3).for_each(|server| rig.kill(server));
    rig.settle();
    let send = |rig: &mut Rig| -> Vec<u32> {
        (0..400).map(|block| rig.send(IoOpcode::Write, VOLUME, block, 1)).collect()
    };
    let first = send(&mut rig);
    rig.finish();
    assert!(first.iter().any(|handle| rig.status_of(*handle) == Some(Status::NAMESPACE_NOT_READY)));
    (0..3).for_each(|server| rig.revive(server));
    rest(&mut rig, Duration::from_secs(10));
    let began = rig.now;
    let second = send(&mut rig);
    rig.finish();
    assert!(second.iter().all(|handle| rig.status_of(*handle) == Some(Status::SUCCESS)));
    assert!(rig.now.since(began) < Duration::from_secs(3), "{:?}", rig.now.since(began));
}

/// I4: long before an epoch has no more sequences the next one begins.
#[test]
fn an_epoch_ends_in_time() {
    for seed in 0..seeds() {
        let mut rig = Rig::new(TierConfig { epoch_changes: 30, ..both() }, seed);
        let mut dice = Dice::new(seed + 3_000_000);
        rig.open();
        let mut left = 250;
        while left > 0 {
            if dice.below(3) == 0 && rig.messages.len() < 24 {
                send_any(&mut rig, &mut dice);
                left -= 1;
            } else if !rig.step() || dice.below(50) == 0 {
                rig.pass(Duration::from_millis(1 + dice.below(300)));
            }
        }
        rig.finish();
        rest(&mut rig, Duration::from_secs(3));
        heal(&mut rig);
        read_all(&mut rig);
        rig.check_log(&[0, 1, 2, 3]);
        let is_legal = |status| [Status::SUCCESS, Status::NAMESPACE_NOT_READY].contains(&status);
        assert!(rig.answered.iter().all(|answered| is_legal(answered.status)), "seed {seed}");
        let status = rig.tier.status();
        assert!(status.segments.iter().any(|segment| segment.epoch > ob_core::Epoch::new(1)), "{status:?}");
        assert_eq!((status.commands, status.mistakes, status.segments_lost), (0, 0, 0), "seed {seed}");
    }
}

/// I9: what a chunk of an earlier life has was agreed on and listed; who comes back while the store is slow to say so does not change it.
#[test]
fn what_was_listed_is_what_is_sealed() {
    for seed in 0..seeds() * 8 {
        let mut rig = Rig::new(TierConfig { lost_after: Duration::from_secs(2), ..both() }, seed);
        let mut dice = Dice::new(seed + 4_000_000);
        rig.open();
        for _ in 0..60 {
            if rig.messages.len() < 24 {
                send_any(&mut rig, &mut dice);
            }
            for _ in 0..dice.below(6) {
                rig.step();
            }
        }
        let away = dice.below(4) as usize;
        rig.servers[away].is_down = true;
        rig.die();
        rig.unknown = 2;
        for _ in 0..dice.below(120) {
            if !rig.step() {
                rig.pass(Duration::from_millis(10));
            }
        }
        rig.revive(away);
        for _ in 0..dice.below(120) {
            if !rig.step() {
                rig.pass(Duration::from_millis(10));
            }
        }
        rig.unknown = u64::MAX;
        rig.finish();
        heal(&mut rig);
        read_all(&mut rig);
        rig.die();
        read_all(&mut rig);
        heal(&mut rig);
        rig.check_log(&[0, 1, 2, 3]);
    }
}
