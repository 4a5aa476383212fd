//! What single commands are told, and cards that lie.

use std::time::Duration;

use ob_core::{BlockLen, Epoch, SegmentId, SegmentName, VolumeId};
use ob_format::volume::metadata::{ChunkState, Class, SegmentState, Volume};
use ob_split::wire::{Broken, ChannelId, ChannelState, CompletionStatus, Handle, HeaderEntry, Slot};
use ob_volume::metadata::{MetadataAnswer, MetadataCompletion, MetadataValue, Name};
use ob_volume::plans::{PostedPlan, id};
use ob_volume::tier::{PortNumber, TierAction, TierConfigError, TierCore, TierError, TierEvent};
use ob_wire_nvme::command::IoOpcode;
use ob_wire_nvme::io::BlockCommand;
use ob_wire_nvme::{CommandId, DataPointer, NamespaceId, Status, SubmissionEntry};

use crate::tier_rig::{PORT, Rig, channel_is, config, done, header_of, volume};

const VOLUME: VolumeId = VolumeId(1);
const SEGMENT: SegmentName = SegmentName { volume: VOLUME, segment: SegmentId(0) };
const BLOCKS: u64 = 3000;

fn closed() -> Rig {
    Rig::new(config(vec![volume(1, BlockLen::Large, BLOCKS)], 3), 1)
}

fn rig() -> Rig {
    let mut rig = closed();
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
fn a_write_is_compressed_as_its_volume_and_the_load_say() {
    let (name, disk) = volume(1, BlockLen::Large, BLOCKS);
    let mut rig = Rig::new(config(vec![(name, Volume { class: Class::Standard, ..disk })], 3), 1);
    rig.open();
    rig.settle();
    for (start, load, effort) in [(0, 0, 2), (16, 255, 1)] {
        rig.tier.set_load(PORT, load);
        assert_eq!(status(&mut rig, IoOpcode::Write, start, 16), Status::SUCCESS);
        let plans = rig.posted.iter().rev();
        let efforts = plans.filter(|plan| plan.plan == id::WRITE).map(|plan| plan.argument);
        assert_eq!(efforts.take(1).collect::<Vec<_>>(), [effort]);
    }
}

#[test]
fn a_written_block_is_read_again_and_the_store_knows_where() {
    let mut rig = rig();
    assert_eq!(status(&mut rig, IoOpcode::Write, 5, 3), Status::SUCCESS);
    assert_eq!(status(&mut rig, IoOpcode::Read, 0, 16), Status::SUCCESS);
    assert_eq!(rig.answered.last().unwrap().read[4..9], [0, 1, 2, 3, 0]);
    let Some(MetadataValue::Segment(segment)) = rig.stored(Name::Segment(SEGMENT)) else {
        panic!("no segment")
    };
    assert_eq!(
        (segment.state, segment.epoch, segment.chunk_next.0),
        (SegmentState::Owned, Epoch::FIRST, 1025)
    );
    let name = ob_core::ChunkName::new(SEGMENT, ob_core::ChunkId(1));
    let Some(MetadataValue::Chunk(chunk)) = rig.stored(Name::Chunk(name)) else { panic!("no chunk") };
    assert_eq!((chunk.state, chunk.members.servers().len()), (ChunkState::Open, 3));
    let plans: Vec<_> = rig.posted.iter().map(|plan| plan.plan).filter(|plan| *plan != id::CALL).collect();
    assert_eq!(plans, [id::WRITE_RAW, id::READ]);
    let status = rig.tier.status();
    assert_eq!((status.segments.len(), status.segments[0].mapped, status.segments[0].written), (1, 3, 3));
}

#[test]
fn what_cannot_be_is_answered_as_the_document_says() {
    let mut rig = rig();
    let out = Status::LBA_OUT_OF_RANGE.with_do_not_retry();
    assert_eq!(status(&mut rig, IoOpcode::Write, BLOCKS - 1, 2), out);
    assert_eq!(status(&mut rig, IoOpcode::Read, BLOCKS, 1), out);
    assert_eq!(status(&mut rig, IoOpcode::WriteZeroes, u64::MAX - 70_000, 1), out);
    assert_eq!(status(&mut rig, IoOpcode::Read, BLOCKS - 1, 1), Status::SUCCESS);
    let invalid = Status::INVALID_OPCODE.with_do_not_retry();
    for opcode in [IoOpcode::Compare, IoOpcode::Verify, IoOpcode::ReservationRegister, IoOpcode::Copy] {
        assert_eq!(status(&mut rig, opcode, 0, 1), invalid, "{opcode:?}");
    }
    assert_eq!(status(&mut rig, IoOpcode::Flush, 0, 1), Status::SUCCESS);
    assert_eq!(status(&mut rig, IoOpcode::DatasetManagement, 0, 1), Status::SUCCESS);
    let command = |namespace, opcode: IoOpcode| -> SubmissionEntry {
        BlockCommand::new(NamespaceId(namespace), 0, 1).encode(opcode, CommandId(1), DataPointer::None)
    };
    let fused = command(1, IoOpcode::Read).with_fuse(ob_wire_nvme::command::Fuse::First);
    let ask = |rig: &mut Rig, entry: SubmissionEntry, length: u32| {
        let handle = rig.send_entry(entry, length);
        rig.finish();
        rig.status_of(handle).unwrap()
    };
    assert_eq!(ask(&mut rig, fused, 0), invalid);
    let unknown = Status::INVALID_NAMESPACE.with_do_not_retry();
    assert_eq!(ask(&mut rig, command(7, IoOpcode::Read), 0), unknown);
    assert_eq!(ask(&mut rig, command(7, IoOpcode::Flush), 0), unknown);
    assert_eq!(ask(&mut rig, command(u32::MAX, IoOpcode::Flush), 0), Status::SUCCESS);
    assert_eq!(ask(&mut rig, command(1, IoOpcode::Write), 512), Status::INTERNAL_ERROR, "another length");
}

#[test]
fn a_command_that_crosses_segments_and_chunks_is_answered_once() {
    let mut rig = rig();
    // More than two chunks have room for, over a boundary.
    assert_eq!(status(&mut rig, IoOpcode::Write, 1000, 100), Status::SUCCESS);
    let plans: Vec<_> = rig.posted.iter().map(|plan| plan.plan).filter(|plan| *plan != id::CALL).collect();
    assert!(
        plans.len() > 3 && plans[..plans.len() - 1].iter().all(|plan| *plan == id::WRITE_RAW_PART),
        "{plans:?}"
    );
    assert_eq!(plans.last(), Some(&id::ANSWER));
    assert_eq!(status(&mut rig, IoOpcode::Read, 990, 120), Status::SUCCESS);
    assert_eq!(rig.posted.last().unwrap().plan, id::READ, "runs of several segments are one plan");
    assert_eq!(status(&mut rig, IoOpcode::WriteZeroes, 1020, 10), Status::SUCCESS);
    assert_eq!(status(&mut rig, IoOpcode::Read, 1000, 100), Status::SUCCESS);
    rig.check_log(&[0, 1, 2]);
    assert!(rig.tier.status().chunks_opened >= 4);
}

#[test]
fn a_read_of_many_runs_takes_several_plans() {
    let mut rig = rig();
    for block in 0..300 {
        assert_eq!(status(&mut rig, IoOpcode::Write, block * 2, 1), Status::SUCCESS);
    }
    rig.posted.clear();
    assert_eq!(status(&mut rig, IoOpcode::Read, 0, 600), Status::SUCCESS);
    let plans: Vec<_> = rig.posted.iter().map(|plan| plan.plan).collect();
    assert_eq!(plans, [id::READ_PART, id::READ_PART, id::READ_PART, id::ANSWER_READ]);
}

#[test]
fn what_nobody_has_written_takes_no_record_to_trim() {
    let mut rig = rig();
    assert_eq!(status(&mut rig, IoOpcode::WriteZeroes, 0, BLOCKS as u32), Status::SUCCESS);
    assert_eq!(rig.tier.status().chunks_opened, 0);
}

#[test]
fn commands_wait_for_servers_and_no_longer_than_they_may() {
    let mut rig = closed();
    rig.servers[1].is_down = true;
    rig.servers[2].is_down = true;
    rig.open();
    rig.settle();
    let handle = rig.send(IoOpcode::Write, VOLUME, 0, 1);
    for _ in 0..25 {
        rig.settle();
        rig.pass(Duration::from_secs(1));
    }
    rig.settle();
    assert_eq!(rig.status_of(handle), Some(Status::NAMESPACE_NOT_READY));
    // A second one is enough in the end: the document says two at least.
    let handle = rig.send(IoOpcode::Write, VOLUME, 0, 1);
    rig.servers[1].is_down = false;
    for _ in 0..10 {
        rig.settle();
        rig.pass(Duration::from_millis(600));
    }
    rig.settle();
    assert_eq!(rig.status_of(handle), Some(Status::SUCCESS));
}

#[test]
fn a_full_pool_is_said_to_be_full() {
    let mut rig = rig();
    rig.servers.iter_mut().for_each(|server| server.is_full = true);
    let full = Status::CAPACITY_EXCEEDED.with_do_not_retry();
    assert_eq!(status(&mut rig, IoOpcode::Write, 0, 1), full);
    assert_eq!(status(&mut rig, IoOpcode::Read, 0, 1), Status::SUCCESS);
    rig.servers.iter_mut().for_each(|server| server.is_full = false);
    rig.pass(Duration::from_secs(1));
    rig.settle();
    // A server that was full is asked again.
    for _ in 0..12 {
        rig.pass(Duration::from_secs(1));
        rig.settle();
    }
    assert_eq!(status(&mut rig, IoOpcode::Write, 0, 1), Status::SUCCESS);
}

#[test]
fn nothing_is_answered_without_the_lease() {
    let mut rig = rig();
    assert_eq!(status(&mut rig, IoOpcode::Write, 0, 1), Status::SUCCESS);
    rig.is_store_silent = true;
    rig.pass(Duration::from_millis(2980));
    rig.posted.clear();
    let read = rig.send(IoOpcode::Read, VOLUME, 0, 1);
    let flush = rig.send(IoOpcode::Flush, VOLUME, 0, 1);
    rig.settle();
    assert_eq!((rig.posted.len(), rig.tier.status().is_open), (0, false));
    rig.is_store_silent = false;
    // The session is over meanwhile: another is made, and the segment kept, because nobody has taken it.
    rig.pass(Duration::from_secs(1));
    rig.finish();
    assert_eq!((rig.status_of(read), rig.status_of(flush)), (Some(Status::SUCCESS), Some(Status::SUCCESS)));
    assert_eq!(rig.tier.status().sessions_lost, 1);
    assert_eq!(status(&mut rig, IoOpcode::Write, 1, 1), Status::SUCCESS);
}

#[test]
fn what_another_life_has_written_is_replayed() {
    let mut rig = rig();
    assert_eq!(status(&mut rig, IoOpcode::Write, 0, 8), Status::SUCCESS);
    assert_eq!(status(&mut rig, IoOpcode::Write, 4, 2), Status::SUCCESS);
    assert_eq!(status(&mut rig, IoOpcode::WriteZeroes, 6, 1), Status::SUCCESS);
    let before = rig.tier.status().segments[0];
    rig.die();
    assert_eq!(status(&mut rig, IoOpcode::Read, 0, 8), Status::SUCCESS);
    let after = rig.tier.status().segments[0];
    assert_eq!(after.epoch, before.epoch.and_then(ob_core::Epoch::next));
    assert_eq!((after.mapped, after.written, after.chunks), (before.mapped, before.written, 1));
    assert_eq!(rig.tier.status().segments_taken, 1);
    assert_eq!(status(&mut rig, IoOpcode::Read, 1024, 1), Status::SUCCESS, "another was not written");
}

/// Who tells less than the chunk's record says is not believed: another member is asked.
#[test]
fn a_list_that_lacks_something_is_asked_of_another() {
    let mut rig = rig();
    for block in 0..30 {
        assert_eq!(status(&mut rig, IoOpcode::Write, block * 20, 16), Status::SUCCESS);
    }
    rig.servers[0].forgets = true;
    rig.die();
    assert_eq!(status(&mut rig, IoOpcode::Read, 0, 600), Status::SUCCESS);
    assert!(rig.servers[0].lists > 0, "it was asked");
}

#[test]
fn a_port_that_opens_anew_takes_its_segments_anew() {
    let mut rig = rig();
    assert_eq!(status(&mut rig, IoOpcode::Write, 0, 4), Status::SUCCESS);
    rig.send(IoOpcode::Write, VOLUME, 1030, 1);
    while !rig.posted.iter().any(|plan| plan.plan == id::WRITE_RAW && plan.handle.0 == 2) {
        assert!(rig.step());
    }
    rig.close();
    rig.messages.clear();
    assert_eq!(rig.tier.status().commands, 0);
    rig.open();
    rig.settle();
    assert_eq!(status(&mut rig, IoOpcode::Read, 0, 4), Status::SUCCESS);
    assert_eq!(status(&mut rig, IoOpcode::Write, 2, 4), Status::SUCCESS);
    assert_eq!(status(&mut rig, IoOpcode::Read, 1030, 1), Status::SUCCESS);
}

#[test]
fn what_was_sent_by_another_life_is_sent_back() {
    let mut rig = rig();
    let write =
        BlockCommand::new(NamespaceId(1), 0, 1).encode(IoOpcode::Write, CommandId(1), DataPointer::None);
    let header = header_of(&write, 99, 4096);
    let descriptor = ob_split::wire::Descriptor { was_parked: true, was_sent: true, ..header.descriptor() };
    let header = HeaderEntry::new(*header.bytes(), descriptor);
    rig.tier.handle(rig.now, TierEvent::Header { port: PORT, header }).unwrap();
    let Some(TierAction::Post { plan, .. }) = rig.tier.next_action() else { panic!("no answer") };
    assert_eq!(plan, PostedPlan::answer(Handle(99), Status::NAMESPACE_NOT_READY, false));
}

/// Events that cannot be, each with its error; none of them changes what follows.
#[test]
fn cards_that_lie_are_found_out() {
    let mut rig = rig();
    assert_eq!(status(&mut rig, IoOpcode::Write, 0, 20), Status::SUCCESS);
    let now = rig.now;
    let read =
        BlockCommand::new(NamespaceId(1), 0, 1).encode(IoOpcode::Read, CommandId(1), DataPointer::None);
    let welcome = rig.welcome();
    let header = |handle| TierEvent::Header { port: PORT, header: header_of(&read, handle, 0) };
    let over = |handle, status| TierEvent::Done {
        port: PORT,
        completion: done(Handle(handle), status),
        reply: None,
    };
    let good = CompletionStatus::Good;
    let other = PortNumber(1);
    let channel = |number, state| TierEvent::Channel { port: PORT, is: channel_is(number, state) };
    let broken = |slot| TierEvent::Broken {
        port: PORT,
        broken: Broken { slot: Slot(slot), channel: ChannelId(1), offset: ob_core::Units(64) },
    };
    let answer = MetadataCompletion { token: ob_core::Token(9999), result: Ok(MetadataAnswer::Renewed) };
    let cases = [
        (header(1 << 31), TierError::Handle(Handle(1 << 31))),
        (over(77, good), TierError::NotPosted(Handle(77))),
        (over(1 << 31, good), TierError::NotPosted(Handle(1 << 31))),
        (channel(0, ChannelState::Up), TierError::Channel(0)),
        (channel(1, ChannelState::Up), TierError::Channel(1)),
        (channel(9, ChannelState::Gone), TierError::Channel(9)),
        (broken(4096), TierError::Slot(Slot(4096))),
        (TierEvent::Metadata(answer), TierError::Metadata(ob_core::Token(9999))),
        (TierEvent::PortOpened { port: PORT, welcome }, TierError::Port(PORT)),
        (TierEvent::PortClosed { port: other }, TierError::Port(other)),
    ];
    for (event, error) in cases {
        assert_eq!(rig.tier.handle(now, event), Err(error));
    }
    rig.tier.handle(now, broken(4000)).unwrap();
    assert_eq!(status(&mut rig, IoOpcode::Write, 0, 20), Status::SUCCESS, "it goes on");
}

/// Completions of a write of two pieces that cannot be.
#[test]
fn records_that_cannot_lie_there_are_refused() {
    let lies = [
        (0, 1025, false, "no record lies there"),
        (64, 1, false, "no record lies there"),
        (64, 1026, false, "no record lies there"),
        (2000, 1025, false, "no record lies there"),
        (64, 1025, false, "a write has more pieces"),
    ];
    for (offset, units, has_more, what) in lies {
        let mut rig = rig();
        let handle = rig.send(IoOpcode::Write, VOLUME, 0, 17);
        while rig.posted.last().is_none_or(|plan| plan.handle.0 != handle) {
            assert!(rig.step());
        }
        let mut completion = done(Handle(handle), CompletionStatus::Good);
        (completion.offset, completion.units, completion.has_more) = (offset, units, has_more);
        let event = TierEvent::Done { port: PORT, completion, reply: None };
        let error = TierError::Completion { handle: Handle(handle), what };
        assert_eq!(rig.tier.handle(rig.now, event), Err(error), "{offset} {units}");
    }
}

#[test]
fn more_commands_than_were_granted_are_too_many() {
    let mut config = config(vec![volume(1, BlockLen::Large, BLOCKS)], 3);
    config.commands_max = 4;
    let mut rig = Rig::new(config, 1);
    rig.open();
    for _ in 0..4 {
        rig.send(IoOpcode::Read, VOLUME, 0, 1);
    }
    let read =
        BlockCommand::new(NamespaceId(1), 0, 1).encode(IoOpcode::Read, CommandId(1), DataPointer::None);
    let event = TierEvent::Header { port: PORT, header: header_of(&read, 50, 0) };
    assert_eq!(rig.tier.handle(rig.now, event), Err(TierError::Commands(4)));
    rig.finish();
}

#[test]
fn an_index_without_memory_refuses_writes_and_nothing_else() {
    let mut config = config(vec![volume(1, BlockLen::Large, BLOCKS)], 3);
    // A page, and as much to replay it.
    config.index_memory = 20_000;
    let mut rig = Rig::new(config, 1);
    rig.open();
    assert_eq!(status(&mut rig, IoOpcode::Write, 0, 1), Status::SUCCESS);
    assert_eq!(status(&mut rig, IoOpcode::Write, 1024, 1), Status::NAMESPACE_NOT_READY);
    assert_eq!(status(&mut rig, IoOpcode::Read, 1024, 1), Status::SUCCESS);
    assert_eq!(rig.tier.status().index_full, 1);
}

#[test]
fn what_was_written_has_room_to_be_replayed() {
    let mut config = config(vec![volume(1, BlockLen::Large, BLOCKS)], 3);
    config.index_memory = 20_000;
    let mut rig = Rig::new(config, 1);
    rig.open();
    assert_eq!(status(&mut rig, IoOpcode::Write, 0, 1), Status::SUCCESS);
    rig.die();
    assert_eq!(status(&mut rig, IoOpcode::Read, 0, 1), Status::SUCCESS);
    // With less there would have been room for the index, and none for what stands beside it.
    rig.config.index_memory = 12_000;
    rig.die();
    assert_eq!(status(&mut rig, IoOpcode::Read, 0, 1), Status::NAMESPACE_NOT_READY);
    assert_eq!(rig.tier.status().index_reserved, 0);
}

#[test]
fn tiers_that_cannot_be_are_refused() {
    let (id, one) = volume(1, BlockLen::Large, BLOCKS);
    let refused = |volumes| TierCore::new(config(volumes, 3)).err();
    assert_eq!(refused(vec![(id, one)]), None);
    let short = Volume { chunk_len: 64 << 10, ..one };
    assert_eq!(refused(vec![(id, short)]), Some(TierConfigError::ChunkLen(id)));
    let broken = Volume { size: 5, ..one };
    assert!(matches!(refused(vec![(id, broken)]), Some(TierConfigError::Volume { .. })));
    assert_eq!(refused(vec![(id, one), (VolumeId(2), one)]), Some(TierConfigError::Twice(VolumeId(2))));
    let mut other = config(vec![(id, one)], 3);
    other.lease = Duration::from_secs(1);
    assert_eq!(TierCore::new(other).err(), Some(TierConfigError::Range("the lease")));
}
