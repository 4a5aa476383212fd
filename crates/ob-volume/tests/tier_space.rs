//! Space: checkpoints, compaction and garbage, over a card and servers in memory. What the servers have is replayed from the head by the
//! rig itself, and must be what blocks are.

use std::time::Duration;

use ob_core::{BlockLen, VolumeId};
use ob_volume::tier::{Fullness, TierConfig};
use ob_wire_nvme::Status;
use ob_wire_nvme::command::IoOpcode;

use crate::tier_failover::heal;
use crate::tier_model::{both, read_all, seeds, send_any};
use crate::tier_rig::{Dice, Rig, config, volume};

const FULL: Status = Status::CAPACITY_EXCEEDED.with_do_not_retry();

/// Everything is due soon.
fn busy(config: TierConfig) -> TierConfig {
    TierConfig {
        checkpoint_blocks: 64,
        checkpoint_dead: 256 << 10,
        checkpoint_chunks: 8,
        compact_rate: 1 << 30,
        ..config
    }
}

/// Time goes by, and what is due is done.
fn rest(rig: &mut Rig, time: Duration) {
    let steps = time.as_millis() / 250;
    for _ in 0..steps {
        rig.pass(Duration::from_millis(250));
        rig.settle();
    }
}

fn run_busy(seed: u64, commands: usize, unknown: u64, has_whims: bool) -> Rig {
    let mut config = busy(both());
    if seed.is_multiple_of(2) {
        config.slots_max = 6;
    }
    let mut rig = Rig::new(config, seed);
    rig.unknown = unknown;
    rig.has_whims = has_whims;
    if seed.is_multiple_of(3) {
        rig.servers.iter_mut().for_each(|server| server.list_most = Some(3));
    }
    let mut dice = Dice::new(seed + 1_000_000);
    rig.open();
    let mut left = commands;
    while left > 0 {
        match dice.below(3) {
            0 if rig.messages.len() < 24 => {
                send_any(&mut rig, &mut dice);
                left -= 1;
            }
            _ if !rig.step() || dice.below(50) == 0 => rig.pass(Duration::from_millis(1 + dice.below(80))),
            _ => {}
        }
        // Whoever takes the segments now finds what was acknowledged.
        if dice.below(200) == 0 && rig.undecided.values().all(Vec::is_empty) {
            rig.check_log(&[0, 1, 2, 3]);
        }
    }
    rig.finish();
    rig
}

/// I5, I6, I7, G1, G2, G3: with checkpoints, moves and deletions all the time, blocks are what they should be, and whoever replays finds
/// them so at any time.
#[test]
fn whoever_replays_finds_what_blocks_are() {
    let (mut checkpoints, mut moves, mut deleted) = (0, 0, 0);
    for seed in 2000..2000 + seeds() {
        let mut rig = run_busy(seed, 300, u64::MAX, false);
        assert!(rig.answered.iter().all(|answered| answered.status == Status::SUCCESS), "seed {seed}");
        rest(&mut rig, Duration::from_secs(5));
        read_all(&mut rig);
        rig.check_log(&[0, 1, 2, 3]);
        let status = rig.tier.status();
        assert_eq!((status.commands, status.plans, status.mistakes), (0, 0, 0), "seed {seed}");
        checkpoints += status.checkpoints;
        moves += status.moves;
        deleted += status.chunks_deleted;
    }
    assert!(checkpoints > 40 && moves > 40 && deleted > 40, "{checkpoints} {moves} {deleted}");
}

/// M1: a store that does not answer delays all of it.
#[test]
fn a_store_that_answers_late_changes_nothing() {
    for seed in 2100..2100 + seeds() {
        let mut rig = run_busy(seed, 120, 4, false);
        rest(&mut rig, Duration::from_secs(3));
        read_all(&mut rig);
        rig.check_log(&[0, 1, 2, 3]);
        assert_eq!(rig.tier.status().segments_lost, 0, "seed {seed}");
    }
}

#[test]
fn a_card_with_whims_spoils_no_checkpoint() {
    for seed in 2200..2200 + seeds() {
        let mut rig = run_busy(seed, 200, u64::MAX, true);
        rig.has_whims = false;
        rest(&mut rig, Duration::from_secs(3));
        read_all(&mut rig);
        rig.check_log(&[0, 1, 2, 3]);
    }
}

/// Hosts die at any moment, and servers now and then: the next life begins with the head, finds everything that was acknowledged, and goes
/// on where the last one stopped.
#[test]
fn lives_begin_with_the_head() {
    let mut loaded = 0;
    for seed in 2400..2400 + seeds() {
        println!("seed {seed}");
        let mut config = busy(both());
        config.lost_after = Duration::from_secs(2);
        if seed.is_multiple_of(2) {
            config.slots_max = 6;
        }
        let mut rig = Rig::new(config, seed);
        rig.unknown = if seed.is_multiple_of(3) { 6 } else { u64::MAX };
        let mut dice = Dice::new(seed + 9_000_000);
        rig.open();
        let mut left = 250;
        while left > 0 {
            let server = dice.below(4) as usize;
            let well = rig.servers.iter().filter(|server| !server.is_down).count();
            match dice.below(160) {
                0 => rig.die(),
                1 if rig.servers[server].is_down => rig.revive(server),
                1 if well > 3 => rig.kill(server),
                2..60 if rig.messages.len() < 24 => {
                    send_any(&mut rig, &mut dice);
                    left -= 1;
                }
                _ if !rig.step() || dice.below(50) == 0 => {
                    rig.pass(Duration::from_millis(1 + dice.below(200)));
                }
                _ => {}
            }
        }
        (0..4).for_each(|server| rig.revive(server));
        rig.finish();
        heal(&mut rig);
        read_all(&mut rig);
        rig.die();
        read_all(&mut rig);
        loaded += rig.tier.status().heads_loaded;
        heal(&mut rig);
        rest(&mut rig, Duration::from_secs(30));
        rig.check_log(&[0, 1, 2, 3]);
        check_nothing_left(&mut rig, seed);
        read_all(&mut rig);
        for answered in &rig.answered {
            let is_legal = [Status::SUCCESS, Status::NAMESPACE_NOT_READY].contains(&answered.status);
            assert!(is_legal, "seed {seed}: {}", answered.status);
        }
        let status = rig.tier.status();
        assert_eq!((status.commands, status.mistakes, status.segments_lost), (0, 0, 0), "seed {seed}");
    }
    assert!(loaded > 10, "{loaded} heads were loaded");
}

/// Servers die in the middle of it and return: nothing is lost, and in the end nothing is left over (G4).
#[test]
fn servers_that_die_and_return_keep_nothing_that_nobody_names() {
    let mut swept = 0;
    for seed in 2300..2300 + seeds() {
        let mut rig = Rig::new(busy(both()), seed);
        let mut dice = Dice::new(seed + 1_000_000);
        rig.open();
        for step in 0..1200 {
            match dice.below(40) {
                0 => {
                    let server = dice.below(4) as usize;
                    let down = rig.servers.iter().filter(|server| server.is_down).count();
                    if rig.servers[server].is_down {
                        rig.revive(server);
                    } else if down == 0 {
                        rig.kill(server);
                    }
                }
                1..12 if rig.messages.len() < 24 => send_any(&mut rig, &mut dice),
                _ if !rig.step() || step % 40 == 0 => rig.pass(Duration::from_millis(1 + dice.below(100))),
                _ => {}
            }
        }
        (0..4).for_each(|server| rig.revive(server));
        rig.finish();
        rest(&mut rig, Duration::from_secs(30));
        read_all(&mut rig);
        rig.check_log(&[0, 1, 2, 3]);
        check_nothing_left(&mut rig, seed);
        swept += rig.tier.status().strays_deleted;
    }
    assert!(swept > 0, "some had something left");
}

/// Every chunk that a server has is named by the store.
fn check_nothing_left(rig: &mut Rig, seed: u64) {
    for server in 0..rig.servers.len() {
        let names: Vec<_> = rig.servers[server].chunks.keys().copied().collect();
        for name in names {
            let is_named = rig.stored(ob_volume::metadata::Name::Chunk(name)).is_some();
            assert!(is_named, "seed {seed}: server {server} has {name:?}, which nobody names (G4)");
        }
    }
}

const BLOCKS: u64 = 1024;

fn one_volume() -> TierConfig {
    config(vec![volume(1, BlockLen::Large, BLOCKS)], 3)
}

fn write(rig: &mut Rig, start: u64, blocks: u32) -> u32 {
    rig.send(IoOpcode::Write, VolumeId(1), start, blocks)
}

/// A volume that is overwritten a hundred times has taken no more of its servers than a bound in the end, and at no time.
#[test]
fn a_volume_that_is_overwritten_for_ever_fills_nothing() {
    let mut rig = Rig::new(busy(one_volume()), 1);
    rig.open();
    let mut dice = Dice::new(7);
    let (mut written, mut most) = (0, 0);
    while written < 100 * BLOCKS {
        let start = dice.below(BLOCKS / 16) * 16;
        let blocks = 1 + dice.below(16) as u32;
        write(&mut rig, start, blocks);
        written += u64::from(blocks);
        for _ in 0..12 {
            rig.step();
        }
        if rig.messages.len() > 16 || dice.below(8) == 0 {
            rig.settle();
            rig.pass(Duration::from_millis(40));
        }
        most = most.max(rig.servers[0].used());
    }
    rig.finish();
    rest(&mut rig, Duration::from_secs(10));
    let status = rig.tier.status();
    assert!(rig.answered.iter().all(|answered| answered.status == Status::SUCCESS));
    let bound = 5 * BLOCKS * 4096;
    assert!(most < bound, "{most} bytes of {} at most, {status:?}", BLOCKS * 4096);
    assert!(status.segments[0].chunks < 128, "places are used again: {status:?}");
    rig.check_log(&[0, 1, 2]);
}

/// Reads go on when there is no space, and trims: what they free is there again for writes (G6).
#[test]
fn a_full_pool_refuses_writes_and_a_trim_brings_them_back() {
    for seed in 0..seeds() / 4 {
        let mut rig = Rig::new(busy(one_volume()), seed);
        // Less than the volume, and four chunks for maintenance.
        for server in &mut rig.servers {
            (server.capacity, server.reserve) = (20 * (128 << 10), 4 * (128 << 10));
        }
        rig.open();
        let mut refused = 0;
        for start in 0..BLOCKS / 16 {
            let handle = write(&mut rig, start * 16, 16);
            rig.finish();
            rest(&mut rig, Duration::from_millis(500));
            refused += u32::from(rig.status_of(handle) == Some(FULL));
        }
        assert!(refused > 10, "seed {seed}: {refused} were refused");
        assert_eq!(rig.tier.status().fullness, Fullness::Full);
        let read = rig.send(IoOpcode::Read, VolumeId(1), 0, 64);
        rig.finish();
        assert_eq!(rig.status_of(read), Some(Status::SUCCESS), "reads go on");
        let trim = rig.send(IoOpcode::WriteZeroes, VolumeId(1), 0, 400);
        rig.finish();
        assert_eq!(rig.status_of(trim), Some(Status::SUCCESS), "and trims");
        rest(&mut rig, Duration::from_secs(60));
        let again = write(&mut rig, 0, 16);
        rig.finish();
        assert_eq!(rig.status_of(again), Some(Status::SUCCESS), "seed {seed}: {:?}", rig.tier.status());
        rig.check_log(&[0, 1, 2]);
    }
}

/// Half of everything is overwritten in a pool that is full: compaction finds the room in the reserve to make room.
#[test]
fn a_pool_full_of_dead_blocks_is_compacted() {
    let mut rig = Rig::new(busy(one_volume()), 3);
    for server in &mut rig.servers {
        (server.capacity, server.reserve) = (24 * (128 << 10), 4 * (128 << 10));
    }
    rig.open();
    // Every other record is overwritten, so that no chunk is free by itself.
    for round in 0..12 {
        for start in 0..20 {
            let handle = write(&mut rig, start * 16 + (round % 2) * 8, 8);
            rig.finish();
            rest(&mut rig, Duration::from_millis(750));
            assert_ne!(rig.status_of(handle), None);
        }
    }
    rest(&mut rig, Duration::from_secs(60));
    let last = write(&mut rig, 0, 16);
    rig.finish();
    assert_eq!(rig.status_of(last), Some(Status::SUCCESS), "{:?}", rig.tier.status());
    assert!(rig.tier.status().moves > 0);
    rig.check_log(&[0, 1, 2]);
}

/// An open chunk that nobody writes to promises space: it is sealed after a minute.
#[test]
fn idle_chunks_are_sealed() {
    let mut rig = Rig::new(one_volume(), 5);
    rig.open();
    write(&mut rig, 0, 1);
    rig.finish();
    rest(&mut rig, Duration::from_secs(58));
    assert_eq!(rig.tier.status().chunks_sealed, 0);
    rest(&mut rig, Duration::from_secs(4));
    assert_eq!(rig.tier.status().chunks_sealed, 1);
    rig.check_log(&[0, 1, 2]);
}

/// I7: while a checkpoint is under way, what its pages mean by a slot is no other chunk.
#[test]
fn a_place_is_no_other_chunks_while_a_checkpoint_is_under_way() {
    let mut rig = Rig::new(TierConfig { checkpoint_blocks: 256, ..busy(one_volume()) }, 9);
    rig.open();
    let write_all = |rig: &mut Rig, from: u64, to: u64| {
        for start in (from..to).step_by(8) {
            write(rig, start, 8);
            rig.settle();
        }
    };
    let checkpoints = |rig: &Rig| rig.tier.status().checkpoints;
    let head_is_past = |rig: &mut Rig| {
        let before = checkpoints(rig);
        while checkpoints(rig) == before {
            write_all(rig, 512, 600);
            rest(rig, Duration::from_secs(2));
        }
    };
    write_all(&mut rig, 0, 64);
    rest(&mut rig, Duration::from_secs(2));
    head_is_past(&mut rig);
    // The next one says where these blocks are, and is slow.
    rig.holds_index = true;
    write_all(&mut rig, 600, 1000);
    rest(&mut rig, Duration::from_secs(3));
    let is_index = |running: &crate::tier_rig::Running| running.plan.plan == ob_volume::plans::id::INDEX;
    assert!(rig.running.iter().any(is_index), "a checkpoint is under way");
    let deleted = rig.tier.status().chunks_deleted;
    write_all(&mut rig, 0, 64);
    rest(&mut rig, Duration::from_secs(3));
    assert!(rig.tier.status().chunks_deleted > deleted, "their chunks have gone meanwhile");
    write_all(&mut rig, 64, 256);
    rest(&mut rig, Duration::from_secs(3));
    rig.holds_index = false;
    let before = checkpoints(&rig);
    // Before another one says it anew.
    while checkpoints(&rig) == before {
        if !rig.step() {
            rig.pass(Duration::from_millis(10));
        }
    }
    rig.check_log(&[0, 1, 2]);
    // From then on they are used again.
    let places = rig.tier.status().segments[0].chunks;
    for _ in 0..6 {
        write_all(&mut rig, 0, 256);
        rest(&mut rig, Duration::from_secs(5));
    }
    assert!(rig.tier.status().segments[0].chunks < places + 30);
    rig.check_log(&[0, 1, 2]);
}
