//! Single troubles of servers, of the store and of cards, and what commands are told then.

use std::time::Duration;

use ob_core::{BlockLen, Units, VolumeId};
use ob_split::wire::{CompletionStatus, Handle};
use ob_volume::metadata::{Change, Expect, MetadataOp, MetadataStore, MetadataValue, Name, Transaction};
use ob_volume::plans::id;
use ob_volume::tier::{ServerTrouble, TierConfigError, TierCore, TierEvent, TierNews};
use ob_volume::wire::Refusal;
use ob_wire_nvme::Status;
use ob_wire_nvme::command::IoOpcode;

use crate::tier_failover::heal;
use crate::tier_rig::{PORT, Rig, config, done, volume};
use crate::tier_servers::Replica;

const VOLUME: VolumeId = VolumeId(1);
const BLOCKS: u64 = 3000;

fn rig_of(servers: u16) -> Rig {
    let mut rig = Rig::new(config(vec![volume(1, BlockLen::Large, BLOCKS)], servers), 1);
    rig.open();
    rig.settle();
    rig
}

fn status(rig: &mut Rig, opcode: IoOpcode, start: u64, blocks: u32) -> Status {
    let handle = rig.send(opcode, VOLUME, start, blocks);
    rig.finish();
    rig.status_of(handle).unwrap()
}

/// Time goes by in steps, and what is due is done.
fn pass(rig: &mut Rig, seconds: u32) {
    for _ in 0..seconds * 20 {
        rig.pass(Duration::from_millis(50));
        rig.settle();
    }
}

#[test]
fn a_server_that_cannot_make_chunks_is_left_out_and_leaks_nothing() {
    let mut rig = rig_of(3);
    rig.servers[2].fails_to_create = true;
    let began = rig.now;
    assert_eq!(status(&mut rig, IoOpcode::Write, 0, 1), Status::SUCCESS);
    let took = rig.now.since(began);
    assert!(took > Duration::from_secs(4) && took < Duration::from_secs(8), "{took:?}");
    // What the others had made of chunks that were never written to is gone again.
    assert!(rig.servers[0].deleted > 1 && rig.servers[0].chunks.len() == 1, "{}", rig.servers[0].deleted);
    // It is waited for once, not for each chunk.
    for block in 0..8 {
        let began = rig.now;
        assert_eq!(status(&mut rig, IoOpcode::Write, 1024 + block * 16, 16), Status::SUCCESS);
        assert!(rig.now.since(began) < Duration::from_secs(2), "{:?}", rig.now.since(began));
    }
    assert!(rig.tier.status().servers[2].has_failed);
    rig.servers[2].fails_to_create = false;
    heal(&mut rig);
    rig.check_log(&[0, 1, 2]);
}

#[test]
fn a_read_that_not_all_members_have_answered_is_tried_again() {
    let mut rig = rig_of(3);
    assert_eq!(status(&mut rig, IoOpcode::Write, 0, 1), Status::SUCCESS);
    for server in [1, 2] {
        rig.servers[server].chunks.values_mut().for_each(Replica::rot);
    }
    // Two have rotted, and the third says nothing for a while.
    rig.servers[0].hangs = true;
    let read = rig.send(IoOpcode::Read, VOLUME, 0, 1);
    rig.settle();
    rig.pass(Duration::from_millis(150));
    rig.settle();
    assert_eq!(rig.status_of(read), None);
    rig.servers[0].hangs = false;
    rig.finish();
    assert_eq!(rig.status_of(read), Some(Status::SUCCESS));
    // It is not there at all: nobody knows that the block is lost.
    rig.kill(0);
    rig.settle();
    assert_eq!(status(&mut rig, IoOpcode::Read, 0, 1), Status::NAMESPACE_NOT_READY);
    // It is there again, and what was set without it is set anew.
    rig.revive(0);
    pass(&mut rig, 1);
    assert_eq!(status(&mut rig, IoOpcode::Read, 0, 1), Status::SUCCESS);
    // What had rotted of the two is mended by now.
    rig.servers.iter_mut().flat_map(|server| server.chunks.values_mut()).for_each(Replica::rot);
    let lost = Status::UNRECOVERED_READ_ERROR.with_do_not_retry();
    assert_eq!(status(&mut rig, IoOpcode::Read, 0, 1), lost);
    // Of several records it is found out which.
    assert_eq!(status(&mut rig, IoOpcode::Write, 2, 1), Status::SUCCESS);
    assert_eq!(status(&mut rig, IoOpcode::Read, 0, 4), lost);
}

#[test]
fn lines_do_not_grow_with_commands_that_were_answered() {
    let mut config = config(vec![volume(1, BlockLen::Large, BLOCKS)], 3);
    (config.commands_max, config.hold) = (8, Duration::from_millis(200));
    let mut rig = Rig::new(config, 1);
    rig.servers[1].is_down = true;
    rig.servers[2].is_down = true;
    rig.open();
    for _ in 0..100 {
        for block in 0..8 {
            rig.send(IoOpcode::Write, VOLUME, block, 1);
        }
        rig.finish();
    }
    assert!(rig.answered.iter().all(|answered| answered.status == Status::NAMESPACE_NOT_READY));
    assert!(rig.tier.status().lined_up <= 16, "{}", rig.tier.status().lined_up);
}

#[test]
fn a_server_that_is_silent_is_given_up_and_avoided() {
    let mut rig = rig_of(4);
    rig.servers[1].hangs = true;
    pass(&mut rig, 6);
    let server = rig.tier.status().servers[1];
    assert!(rig.tier.status().servers_silent > 0 && !server.is_ready);
    let began = rig.now;
    assert_eq!(status(&mut rig, IoOpcode::Write, 0, 1), Status::SUCCESS);
    assert!(rig.now.since(began) < Duration::from_secs(1), "three others are there");
    rig.servers[1].hangs = false;
    pass(&mut rig, 2);
    assert!(rig.tier.status().servers[1].is_ready);
}

#[test]
fn numbers_of_connections_are_each_servers_own() {
    let mut rig = Rig::new(config(vec![volume(1, BlockLen::Large, BLOCKS)], 3), 1);
    rig.servers[0].refuses = Some(Refusal::Stale { known: u64::MAX });
    rig.open();
    pass(&mut rig, 3);
    let trouble = |rig: &Rig| rig.tier.status().servers[0].trouble;
    assert_eq!(trouble(&rig), Some(ServerTrouble::Session));
    rig.kill(1);
    pass(&mut rig, 1);
    rig.revive(1);
    pass(&mut rig, 2);
    let sessions = &rig.servers[1].sessions;
    assert!(sessions.len() == 2 && sessions[1] == sessions[0] + 1, "{sessions:?}");
    assert_eq!(status(&mut rig, IoOpcode::Write, 0, 1), Status::SUCCESS, "two are enough in the end");
}

#[test]
fn servers_that_cannot_be_used_are_told_of_once() {
    for (refusal, trouble) in [
        (Refusal::WrongPool, ServerTrouble::WrongPool),
        (Refusal::WrongServer { server: ob_core::ServerId(9) }, ServerTrouble::WrongServer),
        (Refusal::Version { least: 2, most: 3 }, ServerTrouble::Version),
        (Refusal::Bad, ServerTrouble::Other),
    ] {
        let mut rig = Rig::new(config(vec![volume(1, BlockLen::Large, BLOCKS)], 3), 1);
        rig.servers[0].refuses = Some(refusal);
        rig.open();
        pass(&mut rig, 5);
        assert!(rig.servers[0].sessions.len() > 3, "it is asked again");
        let address = rig.tier.status().servers[0].address;
        let told = rig.news.iter().filter(|news| **news == TierNews::ServerRefused { address, trouble });
        assert_eq!((told.count(), rig.tier.status().servers[0].trouble), (1, Some(trouble)));
        rig.servers[0].refuses = None;
        pass(&mut rig, 1);
        assert_eq!(rig.tier.status().servers[0].trouble, None);
    }
}

#[test]
fn what_is_said_of_an_earlier_session_ends_no_later_one() {
    let mut rig = rig_of(3);
    assert_eq!(status(&mut rig, IoOpcode::Write, 0, 1), Status::SUCCESS);
    // A renewal is on its way while the port is closed and opened, which sends another; then the session ends.
    let renewal = |rig: &Rig| rig.ops.iter().position(|(_, op)| matches!(op, MetadataOp::Renew { .. }));
    rig.pass(Duration::from_millis(1100));
    assert!(rig.note_gate(), "the gate is prepared first");
    let at = renewal(&rig).unwrap();
    let late = rig.ops.remove(at);
    rig.close();
    rig.open();
    while renewal(&rig).is_none() {
        assert!(rig.step());
    }
    rig.pass(Duration::from_secs(5));
    pass(&mut rig, 1);
    assert_eq!(rig.tier.status().sessions_lost, 1);
    rig.ops.push(late);
    rig.settle();
    pass(&mut rig, 1);
    assert_eq!(rig.tier.status().sessions_lost, 1);
    assert_eq!(status(&mut rig, IoOpcode::Read, 0, 1), Status::SUCCESS);
}

#[test]
fn a_volume_that_is_another_by_now_is_read_anew_and_not_without_a_pause() {
    let mut rig = rig_of(3);
    // The volume is another's to change, and is another now.
    let Some(MetadataValue::Volume(of)) = rig.stored(Name::Volume(VOLUME)) else { panic!() };
    let key = ob_volume::metadata::Keys::new("default").unwrap().key(Name::Volume(VOLUME));
    let get = MetadataOp::Get { key: key.clone() };
    rig.store.submit(ob_core::Token(1 << 60), get).unwrap();
    let Ok(ob_volume::metadata::MetadataAnswer::Value(Some((_, revision)))) =
        rig.store.poll().unwrap().result
    else {
        panic!()
    };
    let changed = ob_format::volume::metadata::Volume { generation: 2, ..of };
    rig.volumes.insert(VOLUME, changed);
    let value = MetadataValue::Volume(changed).encode().unwrap();
    let change = vec![Change::Put { key: key.clone(), value, session: None }];
    let commit = MetadataOp::Commit(Transaction { compare: vec![(key, Expect::At(revision))], change });
    rig.store.submit(ob_core::Token(1 << 61), commit).unwrap();
    rig.store.poll().unwrap().result.unwrap();
    let handle = rig.send(IoOpcode::Write, VOLUME, 0, 1);
    let steps = (0..1000).take_while(|_| rig.step()).count();
    assert!(steps < 100, "{steps} steps, and no time has passed");
    // S1: it is not taken by what the volume was, and by what it is.
    assert_eq!(rig.status_of(handle), None);
    rig.finish();
    assert_eq!(rig.status_of(handle), Some(Status::SUCCESS));
}

#[test]
fn a_tier_that_holds_nothing_is_refused() {
    let mut config = config(vec![volume(1, BlockLen::Large, BLOCKS)], 3);
    config.hold = Duration::ZERO;
    assert_eq!(TierCore::new(config).err(), Some(TierConfigError::Range("how long commands are held")));
}

#[test]
fn room_that_a_record_did_not_take_others_have() {
    let mut rig = rig_of(3);
    assert_eq!(status(&mut rig, IoOpcode::Write, 100, 1), Status::SUCCESS);
    let posted = |rig: &Rig| rig.posted.iter().filter(|plan| plan.plan == id::WRITE_RAW).count();
    // The chunk has 2048 units, of which 64 and 65 are taken; these take 1025 and 833 of the rest, and leave too few for another.
    rig.send(IoOpcode::Write, VOLUME, 0, 16);
    let shrunk = rig.send(IoOpcode::Write, VOLUME, 20, 13);
    while posted(&rig) < 3 {
        assert!(rig.step());
    }
    assert_eq!(rig.tier.status().chunks_opened, 1);
    // It was compressed: so much less is taken.
    let mut completion = done(Handle(shrunk), CompletionStatus::Good);
    (completion.offset, completion.units) = (129, 100);
    rig.tier.handle(rig.now, TierEvent::Done { port: PORT, completion, reply: None }).unwrap();
    rig.messages.remove(&shrunk);
    rig.running.retain(|running| running.plan.handle.0 != shrunk);
    rig.send(IoOpcode::Write, VOLUME, 40, 1);
    assert_eq!(posted(&rig), 4, "it has room in the chunk");
    assert_eq!(rig.tier.status().segments[0].closing, 0);
}

/// What was given up may count: a trim that comes behind it is not forgotten because nothing is there yet.
#[test]
fn a_trim_behind_a_write_that_was_given_up_is_logged() {
    let mut rig = rig_of(3);
    assert_eq!(status(&mut rig, IoOpcode::Write, 100, 1), Status::SUCCESS);
    let write = rig.send(IoOpcode::Write, VOLUME, 0, 1);
    while !rig.running.iter().any(|running| running.plan.handle.0 == write && running.placed.is_some()) {
        assert!(rig.step());
    }
    // Its initiator gives it up: it is on all members, and the card says that it was given up.
    let at = rig.running.iter().position(|running| running.plan.handle.0 == write).unwrap();
    let placed = rig.running.remove(at).placed.unwrap()[0];
    rig.slots.values_mut().for_each(|slot| slot.is_stopped = true);
    let completion = ob_split::wire::Completion { status: CompletionStatus::GivenUp, ..placed };
    rig.complete(&[completion], None);
    let trim = rig.send(IoOpcode::WriteZeroes, VOLUME, 0, 4);
    rig.finish();
    assert_eq!(rig.status_of(write), Some(Status::ABORT_REQUESTED));
    assert_eq!(rig.status_of(trim), Some(Status::SUCCESS));
    heal(&mut rig);
    assert_eq!(status(&mut rig, IoOpcode::Read, 0, 4), Status::SUCCESS);
    assert_eq!(rig.model[&VOLUME][0], 0);
    rig.check_log(&[0, 1, 2]);
}

/// A member that has lost what was acknowledged is no ground to seal on (C4).
#[test]
fn a_chunk_is_not_sealed_below_what_was_acknowledged() {
    let mut rig = rig_of(3);
    for block in 0..4 {
        assert_eq!(status(&mut rig, IoOpcode::Write, block, 1), Status::SUCCESS);
    }
    rig.kill(0);
    rig.kill(1);
    for replica in rig.servers[2].chunks.values_mut() {
        replica.cut(Units(129));
    }
    pass(&mut rig, 8);
    let segment = rig.tier.status().segments[0];
    assert_eq!((segment.closing, segment.waiting), (1, 1), "it waits for another");
    rig.revive(0);
    rig.revive(1);
    heal(&mut rig);
    rig.check_log(&[0, 1, 2]);
    assert_eq!(status(&mut rig, IoOpcode::Read, 0, 4), Status::SUCCESS);
}

/// One member has lost the end of what was acknowledged, which the other one has (C4).
#[test]
fn a_chunk_is_sealed_where_its_longest_member_ends() {
    let mut rig = rig_of(3);
    for block in 0..4 {
        assert_eq!(status(&mut rig, IoOpcode::Write, block, 1), Status::SUCCESS);
    }
    for replica in rig.servers[2].chunks.values_mut() {
        replica.cut(Units(129));
    }
    rig.kill(0);
    pass(&mut rig, 3);
    rig.revive(0);
    heal(&mut rig);
    rig.check_log(&[0, 1, 2]);
    assert_eq!(status(&mut rig, IoOpcode::Read, 0, 4), Status::SUCCESS);
}

/// A replica that returns has more than the chunk's record says, of what was done anew elsewhere: it is cut (C6).
#[test]
fn a_replica_that_returns_is_cut_to_the_record() {
    let mut rig = rig_of(4);
    assert_eq!(status(&mut rig, IoOpcode::Write, 0, 1), Status::SUCCESS);
    let write = rig.send(IoOpcode::Write, VOLUME, 1, 1);
    while !rig.running.iter().any(|running| running.plan.handle.0 == write && running.placed.is_some()) {
        assert!(rig.step());
    }
    // It is on one of the members alone, which dies.
    let name = *rig.servers.iter().find_map(|server| server.chunks.keys().next()).unwrap();
    let members: Vec<usize> =
        (0..4).filter(|server| rig.servers[*server].chunks.contains_key(&name)).collect();
    let bytes = rig.servers[members[0]].chunks[&name].records.clone();
    rig.kill(members[0]);
    for (number, server) in members.iter().enumerate() {
        let replica = rig.servers[*server].chunks.get_mut(&name).unwrap();
        if number == 0 { replica.records = bytes.clone() } else { replica.cut(Units(129)) }
    }
    for running in &mut rig.running {
        for placed in running.placed.iter_mut().flatten() {
            (placed.status, placed.bad_members) = (CompletionStatus::Broken, 1);
        }
    }
    rig.finish();
    assert_eq!(rig.status_of(write), Some(Status::SUCCESS));
    rig.revive(members[0]);
    heal(&mut rig);
    rig.check_log(&[0, 1, 2, 3]);
    assert_eq!(rig.servers[members[0]].chunks[&name].end(), Units(129));
}

/// A chunk that is to be made behind a seal waits for the store's word on that: nobody looks at it all the time meanwhile.
#[test]
fn a_tier_that_waits_for_the_store_is_not_kept_awake() {
    let mut rig = rig_of(4);
    assert_eq!(status(&mut rig, IoOpcode::Write, 0, 1), Status::SUCCESS);
    rig.is_store_silent = true;
    let member = rig.servers.iter().position(|server| !server.chunks.is_empty()).unwrap();
    rig.kill(member);
    pass(&mut rig, 2);
    let write = rig.send(IoOpcode::Write, VOLUME, 0, 1);
    pass(&mut rig, 1);
    rig.tell(TierEvent::Tick);
    assert!(rig.tier.next_due().unwrap() > rig.now, "it is due when it has nothing to do");
    rig.is_store_silent = false;
    rig.finish();
    assert_eq!(rig.status_of(write), Some(Status::SUCCESS));
}

/// While a segment is being kept for another session, nobody finds the replicas that its chunks miss: they are looked for again.
#[test]
fn replicas_are_made_anew_though_a_session_has_ended() {
    let mut rig = rig_of(3);
    assert_eq!(status(&mut rig, IoOpcode::Write, 0, 1), Status::SUCCESS);
    rig.kill(0);
    pass(&mut rig, 7);
    // Nobody renews, for longer than a session lasts without it.
    rig.is_store_silent = true;
    pass(&mut rig, 4);
    rig.is_store_silent = false;
    let is_kept = |change: &Change| change.key().as_str().contains("/segments/");
    let keeps =
        |op: &MetadataOp| matches!(op, MetadataOp::Commit(commit) if commit.change.iter().any(is_kept));
    while !rig.ops.iter().any(|(_, op)| keeps(op)) {
        if !rig.step() {
            rig.pass(Duration::from_millis(20));
        }
    }
    rig.is_store_silent = true;
    rig.revive(0);
    pass(&mut rig, 2);
    rig.is_store_silent = false;
    pass(&mut rig, 20);
    assert!(
        rig.tier.status().segments.iter().all(|segment| segment.degraded == 0),
        "{:?}",
        rig.tier.status()
    );
}
