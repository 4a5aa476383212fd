//! Replicas of servers that no record names: they may be all that is left, and go only when they are not needed.

use std::time::Duration;

use ob_core::{BlockLen, ChunkName, Sequence, ServerId, Units, VolumeId};
use ob_format::volume::metadata::ChunkState;
use ob_format::volume::{Encoding, Record, RecordHeader, RecordKind};
use ob_volume::metadata::{MetadataValue, Name};
use ob_volume::plans::{VolumePlan, id};
use ob_volume::tier::{RebuildStatus, Trouble};
use ob_wire_nvme::Status;
use ob_wire_nvme::command::IoOpcode;

use crate::tier_failover::heal;
use crate::tier_rig::{Rig, config, volume};
use crate::tier_servers::ReplicaIs;

const VOLUME: VolumeId = VolumeId(1);

fn rig(servers: u16, lost_after: Duration) -> Rig {
    let mut config = config(vec![volume(1, BlockLen::Large, 3000)], servers);
    config.lost_after = lost_after;
    let mut rig = Rig::new(config, 1);
    rig.open();
    rig
}

fn write(rig: &mut Rig, start: u64, blocks: u32) {
    let handle = rig.send(IoOpcode::Write, VOLUME, start, blocks);
    rig.finish();
    assert_eq!(rig.status_of(handle), Some(Status::SUCCESS));
}

fn rest(rig: &mut Rig, time: Duration) {
    for _ in 0..time.as_millis() / 50 {
        rig.pass(Duration::from_millis(50));
        rig.settle();
    }
}

/// Whether blocks are read, within the time that commands are held.
fn reads(rig: &mut Rig, start: u64, blocks: u32) -> Status {
    let handle = rig.send(IoOpcode::Read, VOLUME, start, blocks);
    rig.finish();
    rig.status_of(handle).unwrap()
}

/// What the store says of chunks that are sealed, and who is named.
fn sealed(rig: &mut Rig) -> Vec<(ChunkName, Vec<u64>)> {
    let mut names: Vec<ChunkName> =
        rig.servers.iter().flat_map(|server| server.chunks.keys().copied()).collect();
    names.sort_unstable();
    names.dedup();
    let mut found = Vec::new();
    for name in names {
        let Some(MetadataValue::Chunk(chunk)) = rig.stored(Name::Chunk(name)) else { continue };
        if chunk.state == ChunkState::Sealed {
            let of = |id: &ServerId| id.0 - 100;
            found.push((name, chunk.members.servers().iter().map(of).collect()));
        }
    }
    found
}

/// A chunk that is sealed without a server which has all of it.
fn with_a_stray(servers: u16, lost_after: Duration) -> (Rig, ChunkName, usize) {
    let mut rig = rig(servers, lost_after);
    for record in 0..3 {
        write(&mut rig, record * 8, 8);
    }
    let has: Vec<usize> =
        (0..usize::from(servers)).filter(|server| !rig.servers[*server].chunks.is_empty()).collect();
    let stray = has[1];
    rig.kill(stray);
    rest(&mut rig, Duration::from_secs(2));
    let (name, members) = sealed(&mut rig).remove(0);
    assert_eq!(members.len(), 2, "it is sealed without one");
    (rig, name, stray)
}

/// R4: one that no record names is there when all that are named are gone for good; then it is named.
#[test]
fn a_replica_that_nobody_names_may_be_the_last() {
    let (mut rig, name, stray) = with_a_stray(3, Duration::from_secs(2));
    let others: Vec<usize> = (0..3).filter(|server| *server != stray).collect();
    // It returns when one of the others is away: it is not discarded, and not needed either.
    rig.kill(others[0]);
    rig.servers[stray].fails_to_create = true;
    rig.revive(stray);
    rest(&mut rig, Duration::from_millis(100));
    rig.kill(others[1]);
    assert!(rig.servers[stray].chunks.contains_key(&name), "R4");
    rest(&mut rig, Duration::from_secs(20));
    let (_, members) = sealed(&mut rig).remove(0);
    assert!(members.contains(&(stray as u64)), "{members:?} {:?}", rig.tier.status());
    assert_eq!(
        rig.servers[stray].chunks[&name].is,
        ReplicaIs::Sealed(rig.servers[stray].chunks[&name].end())
    );
    assert_eq!(reads(&mut rig, 0, 24), Status::SUCCESS);
    rig.servers[stray].fails_to_create = false;
    others.iter().for_each(|server| rig.revive(*server));
    heal(&mut rig);
    rig.check_log(&[0, 1, 2]);
}

/// The same, of a host that has died meanwhile and knows of nobody but those that are named.
#[test]
fn the_next_host_finds_who_is_not_named() {
    let (mut rig, name, stray) = with_a_stray(3, Duration::from_secs(2));
    (0..3).filter(|server| *server != stray).for_each(|server| rig.kill(server));
    rig.settle();
    rig.die();
    rig.revive(stray);
    let read = rig.send(IoOpcode::Read, VOLUME, 0, 24);
    for _ in 0..60 {
        rest(&mut rig, Duration::from_secs(1));
        if rig.tier.status().segments.iter().all(|segment| segment.epoch.is_some()) {
            break;
        }
    }
    assert!(rig.servers[stray].chunks.contains_key(&name));
    let _ = rig.status_of(read);
    assert_eq!(reads(&mut rig, 0, 24), Status::SUCCESS, "{:?}", rig.tier.status());
}

/// R4: what a server has already is not copied elsewhere, though the host that has sealed the chunk without it is gone.
#[test]
fn who_has_it_already_is_taken_in_before_it_is_copied() {
    let (mut rig, name, stray) = with_a_stray(4, Duration::from_secs(300));
    rig.die();
    rig.revive(stray);
    rig.posted.clear();
    heal(&mut rig);
    let (_, mut members) = sealed(&mut rig).into_iter().find(|(of, _)| *of == name).unwrap();
    members.sort_unstable();
    assert!(members.contains(&(stray as u64)), "{members:?} without {stray}");
    let copies = rig.posted.iter().filter(|plan| plan.plan == id::COPY).filter(|plan| {
        let Ok(VolumePlan::Copy(copy)) = VolumePlan::decode(&plan.entry()) else { panic!("{plan:?}") };
        copy.chunk == name
    });
    assert_eq!(copies.count(), 0, "nothing of it was copied");
    rig.check_log(&[0, 1, 2, 3]);
}

/// R4: and when all are there, it goes.
#[test]
fn what_is_not_needed_is_discarded() {
    let (mut rig, name, stray) = with_a_stray(4, Duration::from_secs(2));
    heal(&mut rig);
    rest(&mut rig, Duration::from_secs(4));
    let (_, members) = sealed(&mut rig).into_iter().find(|(of, _)| *of == name).unwrap();
    assert!(!members.contains(&(stray as u64)) && members.len() == 3);
    rig.revive(stray);
    rest(&mut rig, Duration::from_secs(3));
    assert!(!rig.servers[stray].chunks.contains_key(&name), "{:?}", rig.tier.status());
    rig.check_log(&[0, 1, 2, 3]);
}

/// Puts a record behind the others of one server, which was under way and which nobody has acknowledged.
fn write_alone(rig: &mut Rig, server: usize) -> (ChunkName, Units) {
    let (name, replica) = rig.servers[server].chunks.iter_mut().next().unwrap();
    let offset = replica.end();
    let last = Record::decode(replica.records.values().last().unwrap()).unwrap().header;
    let payload = vec![0; 4096];
    let header = RecordHeader {
        chunk: *name,
        offset,
        sequence: Sequence(last.sequence.0 + 1),
        version: Sequence(last.sequence.0 + 1),
        lba: ob_core::Lba(900),
        blocks: 1,
        stored: payload.len() as u32,
        payload_crc: crc32c::crc32c(&payload),
        kind: RecordKind::Write,
        encoding: Encoding::None,
        behind: None,
    };
    let mut bytes = Vec::new();
    Record { header, payload: &payload }.encode_into(&mut bytes).unwrap();
    replica.records.insert(offset, bytes);
    (*name, offset)
}

/// R5: what one server alone had more was sealed with it, and it is lost: what was acknowledged is on the others, which do not fit the
/// record, and is read from there, and moved to where it is named.
#[test]
fn what_no_member_gives_is_asked_of_others() {
    let mut rig = rig(4, Duration::from_secs(2));
    for record in 0..3 {
        write(&mut rig, record * 8, 8);
    }
    let has: Vec<usize> = (0..4).filter(|server| !rig.servers[*server].chunks.is_empty()).collect();
    rig.kill(has[0]);
    rig.kill(has[1]);
    rig.die();
    let (name, _) = write_alone(&mut rig, has[2]);
    rest(&mut rig, Duration::from_secs(10));
    let (_, members) = sealed(&mut rig).into_iter().find(|(of, _)| *of == name).unwrap();
    assert!(members.contains(&(has[2] as u64)), "{members:?}");
    // What was made of it elsewhere meanwhile is lost as well.
    for server in 0..4 {
        if server != has[0] && server != has[1] {
            rig.kill(server);
            rig.servers[server].chunks.remove(&name);
        }
    }
    rig.revive(has[0]);
    rig.revive(has[1]);
    rest(&mut rig, Duration::from_secs(1));
    assert_eq!(reads(&mut rig, 0, 24), Status::SUCCESS, "R5: {:?}", rig.tier.status());
    rest(&mut rig, Duration::from_secs(60));
    let status = rig.tier.status();
    assert!(status.moves >= 3, "it is moved to where it is named: {status:?}");
}

/// G4: a server that is there and does not delete what is dead is asked again, and not only when it is swept.
#[test]
fn who_does_not_delete_is_asked_again() {
    let mut config = config(vec![volume(1, BlockLen::Large, 3000)], 3);
    config.checkpoint_blocks = 64;
    let mut rig = Rig::new(config, 1);
    rig.open();
    for server in &mut rig.servers {
        server.busy_deletes = 2;
    }
    for round in 0..120 {
        write(&mut rig, round % 3 * 16, 16);
    }
    rest(&mut rig, Duration::from_secs(30));
    let status = rig.tier.status();
    assert!(status.chunks_deleted > 5 && rig.servers.iter().all(|server| server.busy_deletes == 0));
    for (number, server) in rig.servers.iter().enumerate() {
        assert!(server.chunks.len() <= status.segments[0].chunks, "{number} has {}", server.chunks.len());
    }
    assert_eq!(status.strays_deleted, 0, "nothing was left to be swept");
}

/// One member tells of what no segment has: the others are asked.
#[test]
fn a_list_that_cannot_be_is_asked_of_another() {
    for liar in 0..3 {
        let mut rig = rig(3, Duration::from_secs(300));
        for record in 0..30 {
            write(&mut rig, record * 8, 8);
        }
        rig.servers[liar].invents = true;
        rig.die();
        assert_eq!(reads(&mut rig, 0, 240), Status::SUCCESS, "{liar}: {:?}", rig.tier.status());
    }
    // If all tell it, it is so.
    let mut rig = rig(3, Duration::from_secs(300));
    for record in 0..30 {
        write(&mut rig, record * 8, 8);
    }
    rig.servers.iter_mut().for_each(|server| server.invents = true);
    rig.die();
    assert_eq!(reads(&mut rig, 0, 8), Status::NAMESPACE_NOT_READY);
    assert_eq!(rig.tier.status().segments[0].trouble, Some(Trouble::Impossible));
}

/// Who is away may tell it as it is.
#[test]
fn a_list_that_cannot_be_is_not_believed_before_all_members_have_told_it() {
    let mut rig = rig(3, Duration::from_secs(300));
    for record in 0..30 {
        write(&mut rig, record * 8, 8);
    }
    rest(&mut rig, Duration::from_secs(70));
    rig.kill(2);
    rig.servers[0].invents = true;
    rig.servers[1].invents = true;
    rig.die();
    let read = rig.send(IoOpcode::Read, VOLUME, 0, 8);
    rest(&mut rig, Duration::from_secs(8));
    assert_eq!(rig.tier.status().segments[0].trouble, None, "the third was not heard");
    rig.revive(2);
    rig.finish();
    assert_eq!(rig.status_of(read), Some(Status::SUCCESS), "{:?}", rig.tier.status());
    // What all have told is asked again, some time later.
    rig.servers[2].invents = true;
    rig.die();
    assert_eq!(reads(&mut rig, 0, 8), Status::NAMESPACE_NOT_READY);
    rig.servers[2].invents = false;
    rest(&mut rig, Duration::from_secs(70));
    assert_eq!(reads(&mut rig, 0, 8), Status::SUCCESS, "{:?}", rig.tier.status());
}

/// The first record of a chunk.
fn first_record(rig: &Rig, server: usize, name: ChunkName) -> Units {
    *rig.servers[server].chunks[&name].records.keys().next().unwrap()
}

/// C6: what a server says that it has is one thing, and what lies on its device another.
#[test]
fn a_replica_that_returns_is_looked_at() {
    let (mut rig, name, stray) = with_a_stray(3, Duration::from_secs(300));
    let at = first_record(&rig, stray, name);
    rig.servers[stray].chunks.get_mut(&name).unwrap().rotten.insert(at);
    let before = rig.servers[stray].deleted;
    rig.revive(stray);
    rest(&mut rig, Duration::from_secs(10));
    let (_, members) = sealed(&mut rig).into_iter().find(|(of, _)| *of == name).unwrap();
    assert_eq!(members.len(), 3);
    assert!(rig.servers[stray].chunks[&name].rotten.is_empty(), "C6");
    assert_eq!(rig.servers[stray].deleted, before + 1, "it is made anew");
    assert!(rig.servers.iter().all(|server| server.checks > 0), "R7: members were looked at before");
    rig.check_log(&[0, 1, 2]);
}

/// R7: what is broken and may not go yet, since a member is away, keeps nobody else from having a replica.
#[test]
fn a_broken_replica_is_not_waited_for() {
    let (mut rig, name, stray) = with_a_stray(4, Duration::from_secs(3000));
    let members: Vec<usize> =
        sealed(&mut rig).remove(0).1.into_iter().map(|member| member as usize).collect();
    let at = first_record(&rig, stray, name);
    rig.servers[stray].chunks.get_mut(&name).unwrap().rotten.insert(at);
    let before = rig.servers[stray].deleted;
    rig.kill(members[1]);
    rig.revive(stray);
    rest(&mut rig, Duration::from_secs(60));
    let (_, named) = sealed(&mut rig).into_iter().find(|(of, _)| *of == name).unwrap();
    let other = (0..4).find(|server| *server != stray && !members.contains(server)).unwrap();
    assert!(named.contains(&(other as u64)), "R7: {named:?} {:?}", rig.tier.status());
    assert_eq!(rig.servers[stray].deleted, before, "it may have what the one that is away alone has");
    rig.revive(members[1]);
    rest(&mut rig, Duration::from_secs(20));
    assert!(!rig.servers[stray].chunks.contains_key(&name), "R4");
    rig.check_log(&[0, 1, 2, 3]);
}

/// R7: what is broken is made anew where it is, when nobody else has room.
#[test]
fn a_broken_replica_is_made_anew_where_there_is_nowhere_else() {
    let (mut rig, name, stray) = with_a_stray(4, Duration::from_secs(3000));
    let members: Vec<usize> =
        sealed(&mut rig).remove(0).1.into_iter().map(|member| member as usize).collect();
    let other = (0..4).find(|server| *server != stray && !members.contains(server)).unwrap();
    let at = first_record(&rig, stray, name);
    rig.servers[stray].chunks.get_mut(&name).unwrap().rotten.insert(at);
    rig.kill(other);
    // A member is away when the stray is looked at, which is set aside.
    rig.kill(members[1]);
    rig.revive(stray);
    rest(&mut rig, Duration::from_secs(10));
    assert!(!rig.servers[stray].chunks[&name].rotten.is_empty(), "R7");
    rig.revive(members[1]);
    rest(&mut rig, Duration::from_secs(30));
    let (_, named) = sealed(&mut rig).into_iter().find(|(of, _)| *of == name).unwrap();
    assert!(named.contains(&(stray as u64)), "R7: {named:?} {:?}", rig.tier.status());
    assert!(rig.servers[stray].chunks[&name].rotten.is_empty());
    assert!(
        rig.servers.iter().filter(|server| server.checks > 0).count() == 3,
        "R7: members were looked at before"
    );
    rig.check_log(&[0, 1, 2]);
}

/// R7: what has rotted at all members may be whole where it does not fit.
#[test]
fn what_does_not_fit_stays_until_members_were_looked_at() {
    let (mut rig, name, stray) = with_a_stray(3, Duration::from_secs(300));
    let at = first_record(&rig, stray, name);
    for (number, server) in rig.servers.iter_mut().enumerate() {
        let replica = server.chunks.get_mut(&name).unwrap();
        if number == stray {
            // An earlier life has sealed it at another length.
            let last = *replica.records.keys().last().unwrap();
            replica.cut(last);
            (replica.is, replica.sealed_by) = (ReplicaIs::Sealed(last), u32::MAX);
        } else {
            replica.rotten.insert(at);
        }
    }
    rig.revive(stray);
    rest(&mut rig, Duration::from_secs(60));
    assert_eq!(reads(&mut rig, 0, 24), Status::SUCCESS, "R7: {:?}", rig.tier.status());
    let (_, members) = sealed(&mut rig).into_iter().find(|(of, _)| *of == name).unwrap();
    assert_eq!(members.len(), 3, "{:?}", rig.tier.status());
    let rotten = rig.servers.iter().map(|server| server.chunks[&name].rotten.len()).sum::<usize>();
    assert_eq!(rotten, 0);
    rig.check_log(&[0, 1, 2]);
}

/// However many segments are taken one behind the other: what those miss that were taken first is made meanwhile.
#[test]
fn segments_that_are_taken_do_not_keep_copies_waiting() {
    const SEGMENTS: u64 = 40;
    let mut config = config(vec![volume(1, BlockLen::Large, SEGMENTS * 1024)], 4);
    config.lost_after = Duration::from_millis(100);
    let mut rig = Rig::new(config, 1);
    rig.open();
    for segment in 0..SEGMENTS {
        write(&mut rig, segment * 1024, 8);
    }
    rest(&mut rig, Duration::from_secs(70));
    rig.servers.iter_mut().for_each(|server| server.list_most = Some(4));
    let gone = rig.servers.iter().position(|server| server.chunks.len() > 9).unwrap();
    rig.kill(gone);
    rig.die();
    rest(&mut rig, Duration::from_secs(1));
    // How many were taken when the first replica was made. Nothing goes on for so long that servers could tell what they have between two.
    let mut taken = 0;
    for segment in 0..SEGMENTS {
        rig.send(IoOpcode::Read, VOLUME, segment * 1024, 8);
        let mut steps = 0;
        while rig.tier.status().segments_taken <= segment || steps < 8 {
            rig.step();
            rig.pass(Duration::from_millis(4));
            steps += 1;
            let status = rig.tier.status();
            if status.replicas_made == 0 {
                taken = status.segments_taken;
            }
        }
    }
    assert!(taken < SEGMENTS - 5, "{taken} were taken before: {:?}", rig.tier.status());
    heal(&mut rig);
    rig.check_log(&[0, 1, 2, 3]);
}

/// Whoever asks hears how far it is, and how fast it goes.
#[test]
fn what_is_missing_is_told_until_it_is_there() {
    let mut config = config(vec![volume(1, BlockLen::Large, 3000)], 4);
    (config.lost_after, config.rebuild_rate) = (Duration::from_secs(1), 100_000);
    let mut rig = Rig::new(config, 1);
    rig.open();
    for record in 0..30 {
        write(&mut rig, record * 8, 8);
    }
    rest(&mut rig, Duration::from_secs(70));
    assert_eq!(rig.tier.status().rebuild, RebuildStatus::default());
    let gone = rig.servers.iter().position(|server| server.chunks.len() > 5).unwrap();
    let bytes: u64 = rig.servers[gone].chunks.values().map(|replica| replica.end().bytes() - 4096).sum();
    rig.kill(gone);
    rest(&mut rig, Duration::from_secs(4));
    let first = rig.tier.status().rebuild;
    assert!(first.done > 0 && first.left > 0 && (60_000..140_000).contains(&first.rate), "{first:?}");
    assert!(
        (bytes - bytes / 10..bytes + bytes / 10).contains(&(first.done + first.left)),
        "{first:?} of {bytes}"
    );
    rest(&mut rig, Duration::from_secs(2));
    let next = rig.tier.status().rebuild;
    assert!(next.done > first.done && next.left < first.left, "{next:?}");
    rest(&mut rig, Duration::from_secs(60));
    assert_eq!(rig.tier.status().rebuild.left, 0, "{:?}", rig.tier.status());
    rig.revive(gone);
    rest(&mut rig, Duration::from_secs(60));
    assert_eq!(rig.tier.status().rebuild, RebuildStatus::default());
}

/// A server that has no room for a replica is full, and has not failed.
#[test]
fn who_has_no_room_for_a_replica_is_full() {
    let (mut rig, _, stray) = with_a_stray(4, Duration::from_secs(2));
    let other = (0..4).find(|server| rig.servers[*server].chunks.is_empty()).unwrap();
    assert_ne!(other, stray);
    rig.servers[other].is_full = true;
    rest(&mut rig, Duration::from_secs(6));
    let of = rig.tier.status().servers[other];
    assert!(of.is_full && !of.has_failed, "{of:?}");
    rig.servers[other].is_full = false;
    rest(&mut rig, Duration::from_secs(30));
    heal(&mut rig);
    assert!(!rig.servers[other].chunks.is_empty());
}
