//! Hosts that die at any moment, and what their next lives make of what they find.

use std::time::Duration;

use ob_core::{BlockLen, LockId, VolumeId};
use ob_format::volume::metadata::{Segment, SegmentState};
use ob_volume::metadata::{
    Change, Expect, Key, Keys, MetadataAnswer, MetadataOp, MetadataStore, MetadataValue, Name, Transaction,
};
use ob_wire_nvme::Status;
use ob_wire_nvme::command::IoOpcode;

use crate::tier_failover::heal;
use crate::tier_model::{both, read_all, seeds, send_any};
use crate::tier_rig::{Dice, Rig, config, volume};

const VOLUME: VolumeId = VolumeId(1);

/// Random commands, over hosts that die now and then, and chunk servers that do.
fn run(seed: u64, commands: usize, servers_die: bool) -> Rig {
    println!("seed {seed}");
    let mut config = both();
    config.lost_after = Duration::from_secs(2);
    if seed.is_multiple_of(2) {
        config.slots_max = 6;
    }
    let mut rig = Rig::new(config, seed);
    rig.unknown = if seed.is_multiple_of(3) { 6 } else { u64::MAX };
    let mut dice = Dice::new(seed + 9_000_000);
    rig.open();
    let mut left = commands;
    while left > 0 {
        if dice.below(150) == 0 {
            rig.die();
        } else if servers_die && dice.below(80) == 0 {
            let server = dice.below(rig.servers.len() as u64) as usize;
            let well = rig.servers.iter().filter(|server| !server.is_down).count();
            if rig.servers[server].is_down {
                rig.revive(server);
            } else if well > 2 {
                rig.kill(server);
            }
        } else if dice.below(3) == 0 && rig.messages.len() < 24 {
            send_any(&mut rig, &mut dice);
            left -= 1;
        } else if !rig.step() || dice.below(50) == 0 {
            rig.pass(Duration::from_millis(1 + dice.below(300)));
        }
    }
    rig
}

fn finish(rig: &mut Rig, seed: u64) {
    for server in 0..rig.servers.len() {
        rig.revive(server);
    }
    rig.finish();
    heal(rig);
    read_all(rig);
    // What was found out by replaying is what was known before.
    rig.die();
    read_all(rig);
    heal(rig);
    rig.check_log(&[0, 1, 2, 3]);
    for answered in &rig.answered {
        let is_legal = [Status::SUCCESS, Status::NAMESPACE_NOT_READY].contains(&answered.status);
        assert!(is_legal, "seed {seed}: {}", answered.status);
    }
    let status = rig.tier.status();
    assert_eq!((status.commands, status.mistakes), (0, 0), "seed {seed}");
}

#[test]
fn what_was_acknowledged_is_there_in_the_next_life() {
    for seed in 0..seeds() {
        let mut rig = run(seed, 250, false);
        finish(&mut rig, seed);
    }
}

#[test]
fn hosts_and_servers_that_die_lose_nothing() {
    for seed in 1000..1000 + seeds() * 2 {
        let mut rig = run(seed, 250, true);
        finish(&mut rig, seed);
    }
}

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

fn key(name: Name) -> Key {
    Keys::new("default").unwrap().key(name)
}

/// Somebody else changes the segment's record.
fn change_segment(rig: &mut Rig, change: impl Fn(Segment) -> Segment) {
    let name = Name::Segment(ob_core::SegmentName { volume: VOLUME, segment: ob_core::SegmentId(0) });
    rig.store.submit(ob_core::Token(1 << 60), MetadataOp::Get { key: key(name) }).unwrap();
    let Ok(MetadataAnswer::Value(Some((value, revision)))) = rig.store.poll().unwrap().result else {
        panic!()
    };
    let Ok(MetadataValue::Segment(segment)) = MetadataValue::decode(&name, value.bytes()) else { panic!() };
    let value = MetadataValue::Segment(change(segment)).encode().unwrap();
    let (compare, change) =
        (vec![(key(name), Expect::At(revision))], vec![Change::Put { key: key(name), value, session: None }]);
    rig.store.submit(ob_core::Token(1 << 61), MetadataOp::Commit(Transaction { compare, change })).unwrap();
    rig.store.poll().unwrap().result.unwrap();
}

/// How long a read takes of a segment whose record was changed before the host's next life.
fn time_to_read(change: impl Fn(Segment) -> Segment) -> Duration {
    let mut rig = rig();
    assert_eq!(status(&mut rig, IoOpcode::Write, 0, 1), Status::SUCCESS);
    rig.settle();
    change_segment(&mut rig, change);
    rig.die();
    let began = rig.now;
    assert_eq!(status(&mut rig, IoOpcode::Read, 0, 1), Status::SUCCESS);
    assert_eq!(status(&mut rig, IoOpcode::Write, 0, 1), Status::SUCCESS);
    let name = Name::Segment(ob_core::SegmentName { volume: VOLUME, segment: ob_core::SegmentId(0) });
    let Some(MetadataValue::Segment(segment)) = rig.stored(name) else { panic!() };
    assert_eq!(
        (segment.state, segment.wait_ms),
        (SegmentState::Owned, 3000),
        "when its wait is over it says so"
    );
    rig.now.since(began)
}

/// L3, L5, L12: whoever is not known to be over is waited for, as long as the record says.
#[test]
fn who_may_still_answer_is_waited_for() {
    let soon = Duration::from_millis(500);
    assert!(time_to_read(|segment| segment) < soon, "a tier need not wait for itself");
    assert!(time_to_read(|segment| Segment { state: SegmentState::Released, wait_ms: 0, ..segment }) < soon);
    let other =
        |wait_ms| move |segment| Segment { lock: LockId([9; 16]), lease_ms: wait_ms, wait_ms, ..segment };
    for wait_ms in [3000, 7000] {
        let took = time_to_read(other(wait_ms));
        assert!(took >= Duration::from_millis(u64::from(wait_ms) * 101 / 100), "{took:?}");
    }
    let taken = time_to_read(|segment| Segment { state: SegmentState::Taken, wait_ms: 4000, ..segment });
    assert!(taken >= Duration::from_millis(4040), "{taken:?}");
}

/// L1: what the answer to a renewal takes is lost.
#[test]
fn a_lease_counts_from_before_it_was_asked_for() {
    let mut rig = rig();
    rig.is_store_silent = true;
    while !rig.ops.iter().any(|(_, op)| matches!(op, MetadataOp::Renew { .. })) {
        rig.settle();
        rig.pass(Duration::from_millis(50));
    }
    rig.pass(Duration::from_millis(1500));
    rig.is_store_silent = false;
    rig.settle();
    let left = rig.tier.status().lease_left;
    assert!(left > Duration::ZERO && left <= Duration::from_millis(2970 - 1500), "{left:?}");
    // The card's gate is open for no longer.
    assert!(rig.open_until.unwrap() <= rig.now + left);
}

/// L6: an owner that lives keeps what it has.
#[test]
fn an_owner_that_lives_is_not_robbed() {
    let mut rig = rig();
    assert_eq!(status(&mut rig, IoOpcode::Write, 0, 1), Status::SUCCESS);
    // Another tier has the segment, by a session that goes on.
    rig.store.submit(ob_core::Token(1 << 59), MetadataOp::Grant { ttl: Duration::from_secs(5) }).unwrap();
    let Ok(MetadataAnswer::Session(session)) = rig.store.poll().unwrap().result else { panic!() };
    let other = ob_core::TierId(77);
    let Some(MetadataValue::Tier(of)) = rig.stored(Name::Tier(ob_core::TierId(1))) else { panic!() };
    let tier = ob_format::volume::metadata::Tier { session, ..of };
    let value = MetadataValue::Tier(tier).encode().unwrap();
    let (compare, change) = (
        vec![(key(Name::Tier(other)), Expect::Absent)],
        vec![Change::Put { key: key(Name::Tier(other)), value, session: Some(session) }],
    );
    rig.store.submit(ob_core::Token(1 << 61), MetadataOp::Commit(Transaction { compare, change })).unwrap();
    let Ok(MetadataAnswer::Committed(revision)) = rig.store.poll().unwrap().result else { panic!() };
    change_segment(&mut rig, |segment| Segment { owner: other, session_revision: revision, ..segment });
    rig.die();
    let began = rig.now;
    let read = rig.send(IoOpcode::Read, VOLUME, 0, 1);
    rig.finish();
    assert_eq!(rig.status_of(read), Some(Status::SUCCESS));
    let took = rig.now.since(began);
    // Its session ends after five seconds; then its lease of three is waited for.
    assert!(took >= Duration::from_millis(8000), "{took:?}");
}

/// C4: of a chunk whose owner is gone nobody knows how far it was acknowledged.
#[test]
fn an_end_that_cannot_be_judged_waits_for_another_member() {
    use ob_volume::wire::EndState;
    for (known, waits) in [
        (EndState::Known, false),
        (EndState::Clean, false),
        (EndState::Doubtful, true),
        (EndState::Damaged, true),
    ] {
        let mut rig = rig();
        assert_eq!(status(&mut rig, IoOpcode::Write, 0, 4), Status::SUCCESS);
        rig.kill(1);
        rig.kill(2);
        rig.servers[0].chunks.values_mut().for_each(|replica| replica.known = known);
        rig.die();
        let read = rig.send(IoOpcode::Read, VOLUME, 0, 4);
        for _ in 0..100 {
            rig.settle();
            rig.pass(Duration::from_millis(50));
        }
        assert_eq!(rig.status_of(read).is_none(), waits, "{known:?}");
        rig.revive(1);
        rig.finish();
        if waits {
            let verdict = rig.status_of(read).unwrap();
            let may_be = [Status::SUCCESS, Status::NAMESPACE_NOT_READY];
            assert!(may_be.contains(&verdict), "{known:?}: {verdict}");
        }
        rig.revive(2);
        heal(&mut rig);
        assert_eq!(status(&mut rig, IoOpcode::Read, 0, 4), Status::SUCCESS, "{known:?}");
        rig.check_log(&[0, 1, 2]);
    }
}

/// A chunk server at a known address is another than before: the one that was there is missed, and its replicas made anew.
#[test]
fn another_server_at_a_known_address_takes_its_place() {
    let mut rig = Rig::new(
        {
            let mut config = config(vec![volume(1, BlockLen::Large, 3000)], 3);
            config.lost_after = Duration::from_secs(2);
            config
        },
        1,
    );
    rig.open();
    for block in 0..30 {
        assert_eq!(status(&mut rig, IoOpcode::Write, block * 20, 16), Status::SUCCESS);
    }
    rig.kill(1);
    rig.servers[1].chunks.clear();
    rig.servers[1].number = Some(900);
    rig.settle();
    rig.revive(1);
    for block in 0..30 {
        assert_eq!(status(&mut rig, IoOpcode::Write, block * 20, 16), Status::SUCCESS);
    }
    heal(&mut rig);
    assert!(rig.servers[1].chunks.len() > 3, "{}", rig.servers[1].chunks.len());
    rig.die();
    assert_eq!(status(&mut rig, IoOpcode::Read, 0, 600), Status::SUCCESS);
}

/// A segment that somebody else has had in between is taken again, and what was under way is sent back (I8).
#[test]
fn a_segment_that_was_robbed_is_taken_again() {
    let mut rig = rig();
    assert_eq!(status(&mut rig, IoOpcode::Write, 0, 16), Status::SUCCESS);
    change_segment(&mut rig, |segment| Segment {
        epoch: segment.epoch.next().unwrap(),
        state: SegmentState::Released,
        wait_ms: 0,
        ..segment
    });
    // The next chunk's commit finds it out.
    let writes: Vec<u32> = (1..4).map(|block| rig.send(IoOpcode::Write, VOLUME, block * 16, 16)).collect();
    rig.finish();
    for write in writes {
        let may_be = [Status::SUCCESS, Status::NAMESPACE_NOT_READY];
        assert!(may_be.contains(&rig.status_of(write).unwrap()));
    }
    for _ in 0..60 {
        rig.pass(Duration::from_millis(50));
        rig.settle();
    }
    assert_eq!(status(&mut rig, IoOpcode::Read, 0, 64), Status::SUCCESS);
    assert_eq!(status(&mut rig, IoOpcode::Write, 0, 16), Status::SUCCESS);
    let segments = rig.tier.status();
    assert_eq!((segments.segments_lost, segments.segments_taken), (1, 1));
    assert_eq!(segments.segments[0].epoch, ob_core::Epoch::new(3));
    heal(&mut rig);
    rig.check_log(&[0, 1, 2]);
}

/// A server is replaced while the store has not agreed on a seal: whoever is at its address then has nothing of the chunk, and is not
/// named (C5).
#[test]
fn who_comes_instead_of_a_member_is_not_taken_for_it() {
    for settled in 0..40 {
        let mut config = config(vec![volume(1, BlockLen::Large, 3000)], 4);
        config.lost_after = Duration::from_secs(2);
        let mut rig = Rig::new(config, settled);
        rig.open();
        assert_eq!(status(&mut rig, IoOpcode::Write, 0, 16), Status::SUCCESS);
        rig.settle();
        rig.is_store_silent = true;
        let name = *rig.servers.iter().find_map(|server| server.chunks.keys().next()).unwrap();
        let members: Vec<usize> =
            (0..4).filter(|server| rig.servers[*server].chunks.contains_key(&name)).collect();
        rig.kill(members[0]);
        for _ in 0..settled {
            rig.step();
        }
        rig.kill(members[1]);
        rig.servers[members[1]].chunks.clear();
        rig.servers[members[1]].number = Some(900);
        rig.revive(members[1]);
        for _ in 0..30 {
            rig.pass(Duration::from_millis(50));
            rig.settle();
        }
        rig.is_store_silent = false;
        rig.revive(members[0]);
        heal(&mut rig);
        // Who was replaced is missed, and nobody has its name.
        for _ in 0..100 {
            rig.pass(Duration::from_millis(50));
            rig.settle();
        }
        heal(&mut rig);
        rig.check_log(&[0, 1, 2, 3]);
        assert_eq!(status(&mut rig, IoOpcode::Read, 0, 16), Status::SUCCESS);
    }
}
