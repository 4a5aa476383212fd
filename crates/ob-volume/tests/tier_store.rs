//! A metadata store that was exchanged, or brought back from a copy: what chunk servers have is left alone.

use std::time::Duration;

use ob_core::{BlockLen, PoolId, SegmentId, SegmentName, VolumeId};
use ob_format::volume::RECORDS_START;
use ob_format::volume::metadata::{Segment, SegmentState};
use ob_volume::metadata::{MemoryStore, MetadataValue, Name};
use ob_volume::tier::{ServerTrouble, TierNews, Trouble};
use ob_wire_nvme::Status;
use ob_wire_nvme::command::IoOpcode;

use crate::tier_failover::heal;
use crate::tier_rig::{POOL, Rig, config, volume};
use crate::tier_servers::{Replica, ReplicaIs};

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

fn rest(rig: &mut Rig, time: Duration) {
    for _ in 0..time.as_millis() / 50 {
        rig.pass(Duration::from_millis(50));
        rig.settle();
    }
}

fn segment(rig: &mut Rig) -> Segment {
    let name = Name::Segment(SegmentName { volume: VOLUME, segment: SegmentId(0) });
    let Some(MetadataValue::Segment(segment)) = rig.stored(name) else { panic!("no segment") };
    segment
}

/// What all servers have that was never sealed, and has records.
fn open_replicas(rig: &Rig) -> usize {
    let is_open =
        |replica: &&Replica| !matches!(replica.is, ReplicaIs::Sealed(_)) && replica.end() > RECORDS_START;
    rig.servers.iter().map(|server| server.chunks.values().filter(is_open).count()).sum()
}

/// What all servers have that is sealed.
fn replicas(rig: &Rig) -> Vec<usize> {
    let is_sealed = |replica: &&Replica| matches!(replica.is, ReplicaIs::Sealed(_));
    rig.servers.iter().map(|server| server.chunks.values().filter(is_sealed).count()).collect()
}

fn trouble(rig: &Rig) -> Option<Trouble> {
    rig.tier.status().segments.iter().find_map(|segment| segment.trouble)
}

/// What the store says is what counts, whatever the tier would have called a new pool.
#[test]
fn a_pool_is_called_what_the_store_says() {
    let mut rig = rig();
    assert_eq!(status(&mut rig, IoOpcode::Write, 0, 16), Status::SUCCESS);
    rig.config.pool = PoolId([9; 16]);
    rig.die();
    assert_eq!(status(&mut rig, IoOpcode::Read, 0, 16), Status::SUCCESS);
    let Some(MetadataValue::Pool(pool)) = rig.stored(Name::Pool) else { panic!("no pool") };
    assert_eq!(pool.pool, POOL);
    assert!(rig.servers.iter().all(|server| server.pool == Some(POOL)));
}

/// Chunk servers of another pool have nothing to do with an empty store: they refuse, and keep what they have.
#[test]
fn servers_refuse_a_store_that_was_exchanged() {
    let mut rig = rig();
    for start in 0..20 {
        assert_eq!(status(&mut rig, IoOpcode::Write, start * 16, 16), Status::SUCCESS);
    }
    heal(&mut rig);
    let before = replicas(&rig);
    let store = std::mem::replace(&mut rig.store, MemoryStore::new());
    rig.config.pool = PoolId([9; 16]);
    rig.die();
    let write = rig.send(IoOpcode::Write, VOLUME, 0, 16);
    rest(&mut rig, Duration::from_secs(15));
    assert_eq!(rig.status_of(write), None);
    assert_eq!(replicas(&rig), before);
    let is_refused =
        |news: &TierNews| matches!(news, TierNews::ServerRefused { trouble: ServerTrouble::WrongPool, .. });
    assert_eq!(rig.news.iter().filter(|news| is_refused(news)).count(), 3);
    // The right one again.
    rig.store = store;
    rig.config.pool = PoolId([10; 16]);
    rig.die();
    rig.finish();
    heal(&mut rig);
    rig.check_log(&[0, 1, 2]);
}

/// Two tiers that begin at the same time agree on one pool and one volume.
#[test]
fn tiers_that_begin_at_once_agree() {
    for seed in 0..10 {
        let mut tiers = crate::tier_pair::Tiers::new(&crate::tier_pair::shared(), 3, seed);
        let mut dice = crate::tier_rig::Dice::new(seed + 90);
        for (number, rig) in tiers.rigs.iter_mut().enumerate() {
            let mut config = rig.config.clone();
            config.pool = PoolId([20 + number as u8; 16]);
            for (_, volume) in &mut config.volumes {
                volume.uuid = [number as u8 + 1; 16];
            }
            rig.tier = ob_volume::tier::TierCore::new(config.clone()).unwrap();
            rig.config = config;
            rig.accepts_volumes = true;
        }
        tiers.open();
        tiers.settle(&mut dice);
        tiers.pass(Duration::from_secs(1));
        tiers.settle(&mut dice);
        for rig in &tiers.rigs {
            assert_eq!(rig.tier.status().trouble, None, "seed {seed}");
            assert!(rig.tier.status().is_open, "seed {seed}");
        }
        let served: Vec<_> = tiers.rigs.iter().map(|rig| rig.volumes[&VOLUME].uuid).collect();
        assert!(served.iter().all(|uuid| *uuid == served[0]), "seed {seed}: {served:?}");
        tiers.read_all(seed);
    }
}

/// A copy of the store from before: servers know of a later epoch, or have records that it never heard of. Nothing goes, and nothing of the
/// segment is answered.
#[test]
fn a_store_that_was_brought_back_is_not_believed() {
    for lives in 0..3 {
        let mut rig = rig();
        assert_eq!(status(&mut rig, IoOpcode::Write, 0, 16), Status::SUCCESS);
        rest(&mut rig, Duration::from_secs(1));
        let copy = rig.store.clone();
        for start in 1..20 {
            assert_eq!(status(&mut rig, IoOpcode::Write, start * 16, 16), Status::SUCCESS);
        }
        for _ in 0..lives {
            rig.die();
            assert_eq!(status(&mut rig, IoOpcode::Write, 320, 16), Status::SUCCESS);
        }
        heal(&mut rig);
        let before = replicas(&rig);
        assert!(before[0] > 3, "{before:?}");
        let store = std::mem::replace(&mut rig.store, copy);
        rig.die();
        rest(&mut rig, Duration::from_secs(20));
        assert_eq!(trouble(&rig), Some(Trouble::StoreBehind), "after {lives} lives");
        let read = rig.send(IoOpcode::Read, VOLUME, 0, 16);
        rig.finish();
        assert_eq!(rig.status_of(read), Some(Status::NAMESPACE_NOT_READY));
        // In the next lives, too, which know nothing of what this one has found.
        for life in 0..3 {
            rig.die();
            rest(&mut rig, Duration::from_secs(15));
            assert_eq!(trouble(&rig), Some(Trouble::StoreBehind), "after {lives} lives, in life {life}");
            assert_eq!(segment(&mut rig).state, SegmentState::Behind);
        }
        for (now, before) in replicas(&rig).iter().zip(&before) {
            assert!(now >= before, "{now} replicas of {before}");
        }
        // The last one again: with it everything is as it was. (Who has raised epochs meanwhile goes on above them.)
        let name = SegmentName { volume: VOLUME, segment: SegmentId(0) };
        for server in &mut rig.servers {
            server.epochs.remove(&name);
        }
        rig.store = store;
        rig.die();
        assert_eq!(status(&mut rig, IoOpcode::Read, 0, 256), Status::SUCCESS);
    }
}

/// What was written since the copy lies in a chunk that was never sealed. If an owner since then has begun it, its number tells; and if the
/// owner of the time of the copy has, it is left where it is.
#[test]
fn what_was_never_sealed_is_not_deleted_for_a_store_that_was_brought_back() {
    for has_another_life in [false, true] {
        let mut rig = rig();
        assert_eq!(status(&mut rig, IoOpcode::Write, 0, 16), Status::SUCCESS);
        // Its first chunk is sealed, and the next one is not made yet.
        for _ in 0..1300 {
            rig.pass(Duration::from_millis(50));
            rig.settle();
        }
        let copy = rig.store.clone();
        if has_another_life {
            rig.die();
        }
        assert_eq!(status(&mut rig, IoOpcode::Write, 16, 16), Status::SUCCESS);
        rig.settle();
        assert_eq!(open_replicas(&rig), 3);
        rig.store = copy;
        rig.die();
        for _ in 0..3 {
            rest(&mut rig, Duration::from_secs(20));
            assert_eq!(trouble(&rig), has_another_life.then_some(Trouble::StoreBehind), "{has_another_life}");
            assert!(open_replicas(&rig) >= 3, "{has_another_life}");
            rig.die();
        }
    }
}
