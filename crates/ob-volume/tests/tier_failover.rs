//! Servers that die, return, hang and refuse, under random commands.

use std::time::Duration;

use ob_core::BlockLen;
use ob_volume::tier::SegmentStatus;
use ob_wire_nvme::Status;
use ob_wire_nvme::command::IoOpcode;

use crate::tier_model::{both, read_all, seeds, send_any};
use crate::tier_rig::{Dice, Rig, volume};

/// Until nothing is unresolved, and all chunks have the replicas that they should.
pub(crate) fn heal(rig: &mut Rig) {
    // A server that has failed again and again is left alone for minutes.
    for _ in 0..10_000 {
        rig.settle();
        let status = rig.tier.status();
        let is_healed = |segment: &SegmentStatus| {
            segment.unresolved == 0 && segment.closing == 0 && segment.degraded == 0
        };
        if status.segments.iter().all(is_healed) {
            return;
        }
        rig.pass(Duration::from_millis(50));
    }
    for (number, server) in rig.servers.iter().enumerate() {
        for (name, replica) in &server.chunks {
            eprintln!("{number} has {name:?}: {:?} to {:?}", replica.is, replica.end());
        }
    }
    panic!("{:#?}", rig.tier.status());
}

/// One server more dies, hangs, or is well again; two at least are well.
fn befall(rig: &mut Rig, dice: &mut Dice) {
    let server = dice.below(rig.servers.len() as u64) as usize;
    let is_ill = |rig: &Rig, server: usize| rig.servers[server].is_down || rig.servers[server].hangs;
    if is_ill(rig, server) {
        rig.revive(server);
        rig.servers[server].hangs = false;
        return;
    }
    let well = (0..rig.servers.len()).filter(|other| !is_ill(rig, *other)).count();
    if well <= 2 {
        return;
    }
    match dice.below(4) {
        0 => rig.servers[server].hangs = true,
        1 => rig.servers[server].fails_to_create ^= true,
        _ => rig.kill(server),
    }
}

fn run(seed: u64, commands: usize) -> Rig {
    let mut config = both();
    config.lost_after = Duration::from_secs(2);
    if seed.is_multiple_of(2) {
        config.slots_max = 6;
    }
    let mut rig = Rig::new(config, seed);
    rig.unknown = if seed.is_multiple_of(3) { 6 } else { u64::MAX };
    let mut dice = Dice::new(seed + 5_000_000);
    rig.open();
    let mut left = commands;
    while left > 0 {
        if dice.below(60) == 0 {
            befall(&mut rig, &mut dice);
        } else if dice.below(3) == 0 && rig.messages.len() < 24 {
            send_any(&mut rig, &mut dice);
            left -= 1;
        } else if !rig.step() || dice.below(50) == 0 {
            rig.pass(Duration::from_millis(1 + dice.below(300)));
        }
    }
    rig
}

/// Whatever befalls servers: reads give what was acknowledged, what is acknowledged is where the store says, and in the end all
/// replicas are there and alike.
#[test]
fn servers_that_die_hang_and_return_lose_nothing() {
    let (mut sealed, mut repaired) = (0, 0);
    for seed in 0..seeds() * 2 {
        let mut rig = run(seed, 250);
        for server in 0..rig.servers.len() {
            rig.revive(server);
            rig.servers[server].hangs = false;
            rig.servers[server].fails_to_create = false;
        }
        rig.finish();
        heal(&mut rig);
        read_all(&mut rig);
        rig.check_log(&[0, 1, 2, 3]);
        for answered in &rig.answered {
            let is_legal = [Status::SUCCESS, Status::NAMESPACE_NOT_READY].contains(&answered.status);
            assert!(is_legal, "seed {seed}: {}", answered.status);
        }
        let status = rig.tier.status();
        assert_eq!((status.commands, status.mistakes), (0, 0), "seed {seed}");
        sealed += status.chunks_sealed;
        repaired += status.replicas_made;
    }
    assert!(sealed > 100 && repaired > 20, "{sealed} sealed, {repaired} repaired");
}

/// A server dies under writes: they go on at once, and none is refused.
#[test]
fn writes_go_on_when_a_server_dies() {
    for seed in 0..seeds() {
        let mut config = both();
        config.lost_after = Duration::from_secs(2);
        let mut rig = Rig::new(config, seed);
        let mut dice = Dice::new(seed + 77);
        rig.open();
        for round in 0..3 {
            for _ in 0..20 {
                send_any(&mut rig, &mut dice);
                for _ in 0..dice.below(4) {
                    rig.step();
                }
            }
            rig.kill(round);
            let began = rig.now;
            for _ in 0..10 {
                send_any(&mut rig, &mut dice);
            }
            rig.finish();
            assert!(rig.answered.iter().all(|answered| answered.status == Status::SUCCESS), "seed {seed}");
            let took = rig.now.since(began);
            assert!(took < Duration::from_secs(3), "seed {seed}: {took:?}");
            rig.revive(round);
            heal(&mut rig);
        }
        read_all(&mut rig);
        rig.check_log(&[0, 1, 2, 3]);
    }
}

/// A server that is away for longer gets a successor, and what it has is discarded when it returns.
#[test]
fn replicas_are_made_anew_elsewhere() {
    let (id, of) = volume(1, BlockLen::Large, 3000);
    let mut config = crate::tier_rig::config(vec![(id, of)], 4);
    config.lost_after = Duration::from_secs(2);
    let mut rig = Rig::new(config, 5);
    rig.open();
    for block in 0..60 {
        rig.send(IoOpcode::Write, id, block * 3, 8);
    }
    rig.finish();
    heal(&mut rig);
    let of_its = rig.servers[1].chunks.len() as u64;
    assert!(of_its > 3, "several are sealed before it dies: {of_its}");
    rig.kill(1);
    rig.send(IoOpcode::Write, id, 0, 1);
    rig.finish();
    assert!(rig.tier.status().segments.iter().any(|segment| segment.degraded > 0), "it is missed at once");
    heal(&mut rig);
    rig.check_log(&[0, 2, 3]);
    // Each of these is three times there again, those that were sealed before as well.
    assert!(rig.tier.status().replicas_made >= of_its - 1, "{} of {of_its}", rig.tier.status().replicas_made);
    let (before, has) = (rig.servers[1].deleted, rig.servers[1].chunks.len());
    assert!(has > 0);
    rig.revive(1);
    for _ in 0..200 {
        rig.pass(Duration::from_millis(50));
        rig.settle();
    }
    // It is nobody's member any more of what was sealed without it.
    assert!(rig.servers[1].deleted > before, "{} of {has}", rig.servers[1].deleted);
    rig.check_log(&[0, 1, 2, 3]);
}
