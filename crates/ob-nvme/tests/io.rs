//! Commands against a target with a disk in memory, byte by byte.

// A test that cannot go on should say where.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::support;

use ob_core::{DeviceError, DeviceOp};
use ob_nvme::target::TargetConfig;
use ob_nvme::target::control::NamespaceSpec;
use ob_wire_nvme::command::{Fuse, IoOpcode};
use ob_wire_nvme::io::{BlockCommand, BlockRange, DatasetManagement};
use ob_wire_nvme::pdu::{DataAlignment, Digests, IcRequest, Pdu};
use ob_wire_nvme::{CommandId, DataPointer, NamespaceId, Status, SubmissionEntry};
use support::{BLOCK, BLOCKS, Client, Rig, Wish, control, namespace, pattern};
use zerocopy::IntoBytes;

const DIGESTS: [Digests; 4] = [
    Digests::NONE,
    Digests { header: true, data: false },
    Digests { header: false, data: true },
    Digests::BOTH,
];

#[test]
fn writes_and_reads_with_every_combination_of_digests_and_flow_control() {
    for digests in DIGESTS {
        for no_flow_control in [false, true] {
            let mut rig = Rig::new();
            let (_, io) = rig.queues(digests, no_flow_control);
            let small = pattern(1, 8 * BLOCK);
            assert_eq!(rig.write(io, 8, &small).status(), Status::SUCCESS);
            assert_eq!(rig.read(io, 8, 8), small);
            let large = pattern(2, 128 << 10);
            assert_eq!(rig.write_solicited(io, 100, &large, 128 << 10).status(), Status::SUCCESS);
            assert_eq!(rig.write_solicited(io, 1000, &large, 40_000).status(), Status::SUCCESS);
            assert_eq!(rig.read(io, 100, 256), large);
            assert_eq!(rig.read(io, 1000, 256), large);
            assert_eq!(rig.disk.bytes[8 * BLOCK..16 * BLOCK], small);
            assert_eq!(rig.target.counts().in_flight, 0);
        }
    }
}

#[test]
fn success_is_said_by_the_data_only_where_the_host_gave_flow_control_up() {
    for no_flow_control in [false, true] {
        let mut rig = Rig::new();
        let (_, io) = rig.queues(Digests::NONE, no_flow_control);
        rig.submit_read(io, 0, 1);
        let messages = rig.messages(io);
        assert_eq!(messages.len(), if no_flow_control { 1 } else { 2 });
        let Pdu::Data(transfer) = messages[0].pdu else { panic!("not data") };
        assert_eq!(transfer.is_success, no_flow_control);
    }
}

#[test]
fn the_queue_head_goes_round_and_says_nothing_without_flow_control() {
    let mut rig = Rig::new();
    let (_, controller) = rig.admin(Digests::NONE);
    let io = rig.io_queue(Digests::NONE, controller, 1, false);
    // Connect was the first of 32 entries.
    let heads: Vec<u16> = (0..33).map(|_| rig.simple(io, IoOpcode::Flush, 0, 1).queue_head.get()).collect();
    assert_eq!((heads[0], heads[29], heads[30], heads[32]), (2, 31, 0, 2));
    let other = rig.io_queue(Digests::NONE, controller, 2, true);
    assert_eq!(rig.simple(other, IoOpcode::Flush, 0, 1).queue_head.get(), 0xFFFF);
}

#[test]
fn data_lies_where_the_host_wants_it() {
    for (alignment, digests) in [(31, Digests::NONE), (17, Digests::BOTH), (1, Digests::BOTH)] {
        let mut rig = Rig::new();
        let (_, controller) = rig.admin(Digests::NONE);
        let io = rig.client();
        let alignment = DataAlignment::new(alignment).unwrap();
        rig.send(io, &IcRequest { alignment, digests, r2t_max: 1 }.encode());
        rig.next(io).unwrap();
        rig.state(io).framing.digests = digests;
        let wish = Wish { controller, ..Wish::default() };
        assert_eq!(rig.connect_as(io, 1, &wish).status(), Status::SUCCESS);
        rig.disk.bytes[..BLOCK].fill(0xAB);
        rig.submit_read(io, 0, 1);
        let data = rig.next(io).unwrap();
        assert_eq!(data.layout.data_at % alignment.bytes(), 0);
        assert_eq!(data.data, [0xAB; BLOCK]);
    }
}

#[test]
fn data_behind_a_gap_in_its_capsule_is_moved_to_where_devices_want_it() {
    let mut rig = Rig::new();
    let (_, io) = rig.queues(Digests::NONE, false);
    rig.disk.is_held = true;
    let pointer = DataPointer::InCapsule { offset: 12, len: BLOCK as u32 };
    let entry = rig.entry(io, IoOpcode::Write, 5, 1, pointer);
    let data: Vec<u8> = [9; 12].into_iter().chain([7; BLOCK]).chain([8; 4]).collect();
    rig.submit(io, &entry, &data);
    let Some((_, DeviceOp::Write { from, .. })) = rig.disk.queue.front() else { panic!("no write") };
    assert_eq!((from.as_ptr() as usize % 4096, from.len()), (0, BLOCK));
    rig.release_disk();
    assert_eq!(rig.response(io).status(), Status::SUCCESS);
    assert_eq!(rig.disk.bytes[5 * BLOCK..6 * BLOCK], [7; BLOCK]);
}

#[test]
fn every_byte_may_arrive_alone() {
    for digests in [Digests::NONE, Digests::BOTH] {
        let mut rig = Rig::new();
        let (_, io) = rig.queues(digests, false);
        let data = pattern(3, 2 * BLOCK);
        let pointer = DataPointer::InCapsule { offset: 0, len: data.len() as u32 };
        let write = rig.entry(io, IoOpcode::Write, 5, 2, pointer);
        let capsule = rig.capsule(io, &write, &data);
        capsule.iter().for_each(|byte| rig.send(io, &[*byte]));
        assert_eq!(rig.response(io).status(), Status::SUCCESS);
        assert_eq!(rig.read(io, 5, 2), data);
    }
}

#[test]
fn ranges_beyond_the_namespace_and_transfers_beyond_the_limit_are_refused() {
    let mut rig = Rig::new();
    let (_, io) = rig.queues(Digests::NONE, false);
    let out_of_range = Status::LBA_OUT_OF_RANGE;
    for opcode in [IoOpcode::WriteZeroes, IoOpcode::Verify] {
        for (block, blocks) in
            [(BLOCKS, 1), (BLOCKS - 1, 2), (u64::MAX, 1), (u64::MAX - 1, 65536), (0, 65536)]
        {
            assert!(rig.simple(io, opcode, block, blocks).status().is(out_of_range), "{opcode:?} {block}");
        }
    }
    for (block, blocks, named, expected) in [
        (BLOCKS, 1, 512, out_of_range),
        (u64::MAX, 1, 512, out_of_range),
        (0, 257, 257 * 512, Status::INVALID_FIELD),
        (0, 2, 512, Status::INVALID_SGL_LENGTH),
        (0, 1, 0, Status::INVALID_SGL_LENGTH),
    ] {
        for opcode in [IoOpcode::Read, IoOpcode::Write, IoOpcode::Compare] {
            let pointer = if named == 0 { DataPointer::None } else { DataPointer::Transport { len: named } };
            let entry = rig.entry(io, opcode, block, blocks, pointer);
            rig.submit(io, &entry, &[]);
            assert!(rig.response(io).status().is(expected), "{opcode:?} {block} {blocks} {named}");
        }
    }
    let mut entry = rig.entry(io, IoOpcode::Read, 0, 1, DataPointer::Transport { len: 512 });
    entry.namespace = 2.into();
    rig.submit(io, &entry, &[]);
    assert!(rig.response(io).status().is(Status::INVALID_NAMESPACE));
    let entry = SubmissionEntry::new(0x81, CommandId(900), NamespaceId(1));
    rig.submit(io, &entry, &[]);
    assert!(rig.response(io).status().is(Status::INVALID_OPCODE));
    assert!(rig.disk.log.is_empty(), "nothing reached the device");
}

#[test]
fn write_zeroes_gives_space_back_where_that_leaves_zeros() {
    let (mut control, subsystem) = control();
    let namespace = NamespaceSpec { deallocated_reads_zero: true, ..namespace(2, 8) };
    control.add_namespace(subsystem, &namespace).unwrap();
    let mut rig = Rig::with_control(TargetConfig::default(), control, subsystem);
    let (_, io) = rig.queues(Digests::NONE, false);
    let mut zero = |nsid: u32, deallocate: bool, force_unit_access: bool| {
        let command = rig.command_id(io);
        let zeroes =
            BlockCommand { deallocate, force_unit_access, ..BlockCommand::new(NamespaceId(nsid), 8, 8) };
        rig.submit(io, &zeroes.encode(IoOpcode::WriteZeroes, command, DataPointer::None), &[]);
        assert_eq!(rig.response(io).status(), Status::SUCCESS);
        rig.disk.failures.push_back(DeviceError::Unsupported);
        std::mem::take(&mut rig.disk.log)
    };
    // Nothing fails before the first; from then on the first operation of each does.
    assert_eq!(zero(2, true, false), ["discard"]);
    assert_eq!(zero(2, true, false), ["zeroes"], "the device cannot discard");
    assert_eq!(zero(2, true, true), ["zeroes", "flush"]);
}

#[test]
fn write_zeroes_writes_zeros_unless_told_otherwise() {
    let mut rig = Rig::new();
    let (_, io) = rig.queues(Digests::NONE, false);
    let command = rig.command_id(io);
    // This namespace does not say that deallocated blocks read as zeros.
    let zeroes = BlockCommand { deallocate: true, ..BlockCommand::new(NamespaceId(1), 8, 8) };
    rig.submit(io, &zeroes.encode(IoOpcode::WriteZeroes, command, DataPointer::None), &[]);
    assert_eq!(rig.response(io).status(), Status::SUCCESS);
    assert_eq!(rig.simple(io, IoOpcode::WriteZeroes, 0, 8).status(), Status::SUCCESS);
    assert_eq!(rig.disk.log, ["zeroes", "zeroes"]);
}

#[test]
fn flush_fua_zeroes_and_verify_become_what_devices_do() {
    let mut rig = Rig::new();
    let (_, io) = rig.queues(Digests::NONE, false);
    rig.disk.bytes.fill(1);
    assert_eq!(rig.simple(io, IoOpcode::Flush, 0, 1).status(), Status::SUCCESS);
    assert_eq!(rig.simple(io, IoOpcode::WriteZeroes, 10, 3000).status(), Status::SUCCESS);
    assert!(rig.disk.bytes[10 * BLOCK..3010 * BLOCK].iter().all(|byte| *byte == 0));
    assert_eq!(rig.simple(io, IoOpcode::Verify, 0, 600).status(), Status::SUCCESS);
    assert_eq!(rig.disk.log, ["flush", "zeroes", "read", "read", "read"]);
    rig.disk.log.clear();
    let force = |mut entry: SubmissionEntry| {
        entry.dword12 = (entry.dword12.get() | 1 << 30).into();
        entry
    };
    let write = rig.entry(io, IoOpcode::Write, 0, 1, DataPointer::InCapsule { offset: 0, len: 512 });
    rig.submit(io, &force(write), &[7; 512]);
    let zeroes = rig.entry(io, IoOpcode::WriteZeroes, 1, 1, DataPointer::None);
    rig.submit(io, &force(zeroes), &[]);
    let read = rig.entry(io, IoOpcode::Read, 0, 1, DataPointer::Transport { len: 512 });
    rig.submit(io, &force(read), &[]);
    assert_eq!(rig.disk.log, ["durable write", "zeroes", "flush", "read", "flush"]);
    assert_eq!(rig.messages(io).len(), 4);
    rig.disk.log.clear();
    let verify = rig.entry(io, IoOpcode::Verify, 0, 300, DataPointer::None);
    rig.submit(io, &force(verify), &[]);
    assert_eq!(rig.disk.log, ["read", "read", "flush"]);
    rig.disk.log.clear();
    for (byte, expected) in [(7, Status::SUCCESS), (8, Status::COMPARE_FAILURE)] {
        let compare = rig.entry(io, IoOpcode::Compare, 0, 1, DataPointer::InCapsule { offset: 0, len: 512 });
        rig.messages(io);
        rig.submit(io, &force(compare), &[byte; 512]);
        assert!(rig.response(io).status().is(expected));
    }
    assert_eq!(rig.disk.log, ["read", "flush", "read", "flush"]);
}

#[test]
fn long_ranges_are_done_in_parts_one_at_a_time_and_not_to_the_end_of_what_is_gone() {
    let mut rig = Rig::with(TargetConfig { zeroes_at_once: 16 * BLOCK as u64, ..TargetConfig::default() });
    let (_, io) = rig.queues(Digests::NONE, false);
    rig.disk.bytes.fill(1);
    let dataset = |rig: &mut Rig, ranges: &[(u64, u32)]| {
        let data: Vec<u8> = ranges
            .iter()
            .flat_map(|(start, blocks)| {
                BlockRange { start: *start, blocks: *blocks }.encode().as_bytes().to_vec()
            })
            .collect();
        let command = rig.command_id(io);
        let dataset = DatasetManagement {
            namespace: NamespaceId(1),
            ranges: ranges.len(),
            deallocate: true,
            integral_write: false,
            integral_read: false,
        };
        let len = data.len() as u32;
        rig.submit(io, &dataset.encode(command, DataPointer::InCapsule { offset: 0, len }), &data);
    };
    // Parts end at multiples of sixteen blocks.
    dataset(&mut rig, &[(8, 40), (100, 4), (200, 0), (0, 1)]);
    assert_eq!(rig.response(io).status(), Status::SUCCESS);
    assert_eq!(rig.disk.log, ["discard"; 3 + 1 + 1]);
    let zeros = |rig: &Rig| rig.disk.bytes.chunks(BLOCK).filter(|block| block[0] == 0).count();
    assert_eq!(zeros(&rig), 40 + 4 + 1);
    rig.disk.log.clear();
    rig.disk.is_held = true;
    dataset(&mut rig, &[(0, 160)]);
    let entry = rig.entry(io, IoOpcode::WriteZeroes, 160, 160, DataPointer::None);
    rig.submit(io, &entry, &[]);
    rig.submit_read(io, 1000, 1);
    let held = |rig: &Rig| rig.disk.queue.iter().map(|(_, op)| op.extent().unwrap().1).collect::<Vec<_>>();
    assert_eq!(held(&rig), [16 * BLOCK as u64, BLOCK as u64], "the read does not wait behind the zeros");
    rig.complete(1);
    rig.complete(0);
    rig.run();
    assert_eq!((rig.messages(io).len(), held(&rig)), (2, vec![16 * BLOCK as u64]));
    // The namespace goes: neither command has another part.
    let namespace = rig.target.control_mut().remove_namespace(rig.subsystem, 1);
    assert!(namespace.is_ok());
    rig.release_disk();
    assert!(rig.response(io).status().is(Status::INVALID_NAMESPACE));
    assert!(rig.response(io).status().is(Status::INVALID_NAMESPACE));
    assert!(rig.disk.log.len() <= 4, "{:?}", rig.disk.log);
    assert_eq!(rig.target.counts().in_flight, 0);
}

#[test]
fn data_is_asked_for_as_soon_as_other_data_has_come() {
    let mut rig = Rig::with(TargetConfig { transfers_max: 1, ..TargetConfig::default() });
    let (_, io) = rig.queues(Digests::NONE, false);
    rig.disk.is_held = true;
    for block in [0, 1] {
        let entry = rig.entry(io, IoOpcode::Write, block, 1, DataPointer::Transport { len: 512 });
        rig.submit(io, &entry, &[]);
    }
    let first = rig.solicitation(io);
    assert!(rig.messages(io).is_empty(), "one at a time");
    rig.send_wanted(io, &first, &[1; BLOCK], BLOCK);
    // The device has the first, and its buffer, for as long as it likes.
    let second = rig.solicitation(io);
    rig.send_wanted(io, &second, &[2; BLOCK], BLOCK);
    rig.release_disk();
    assert_eq!(rig.messages(io).len(), 2);
}

#[test]
fn the_second_of_a_pair_whose_first_was_refused_fails_with_it() {
    let mut rig = Rig::new();
    let (_, io) = rig.queues(Digests::NONE, false);
    for (block, first, second) in [
        (BLOCKS, Status::LBA_OUT_OF_RANGE, Status::ABORTED_FAILED_FUSED),
        (1, Status::COMPARE_FAILURE, Status::ABORTED_FAILED_FUSED),
    ] {
        rig.write_fused(io, block, &[1; BLOCK], IoOpcode::Compare, Fuse::First);
        rig.write_fused(io, block, &[2; BLOCK], IoOpcode::Write, Fuse::Second);
        let statuses = [rig.response(io).status(), rig.response(io).status()];
        assert!(statuses.iter().any(|status| status.is(first)), "{statuses:?}");
        assert!(statuses.iter().any(|status| status.is(second)), "{statuses:?}");
    }
    // A command between them, of whatever kind, and there is no first any more.
    for between in [IoOpcode::Flush, IoOpcode::ReservationReport] {
        rig.write_fused(io, BLOCKS, &[1; BLOCK], IoOpcode::Compare, Fuse::First);
        assert!(rig.response(io).status().is(Status::LBA_OUT_OF_RANGE));
        let entry = rig.entry(io, between, 0, 1, DataPointer::None);
        rig.submit(io, &entry, &[]);
        assert_eq!(rig.messages(io).len(), 1);
        rig.write_fused(io, 0, &[2; BLOCK], IoOpcode::Write, Fuse::Second);
        assert!(rig.response(io).status().is(Status::ABORTED_MISSING_FUSED), "{between:?}");
    }
}

#[test]
fn dataset_management_discards_each_range_and_checks_it() {
    let mut rig = Rig::new();
    let (_, io) = rig.queues(Digests::NONE, false);
    rig.disk.bytes.fill(1);
    let mut discard = |ranges: &[(u64, u32)], named: usize, deallocate: bool, solicited: bool| {
        let mut data: Vec<u8> = ranges
            .iter()
            .flat_map(|(start, blocks)| {
                BlockRange { start: *start, blocks: *blocks }.encode().as_bytes().to_vec()
            })
            .collect();
        data.resize(named, 0xFF);
        let command = rig.command_id(io);
        let dataset = DatasetManagement {
            namespace: NamespaceId(1),
            ranges: ranges.len(),
            deallocate,
            integral_write: false,
            integral_read: false,
        };
        let len = named as u32;
        if solicited {
            rig.submit(io, &dataset.encode(command, DataPointer::Transport { len }), &[]);
            let wanted = rig.solicitation(io);
            rig.send_wanted(io, &wanted, &data, 4096);
        } else {
            rig.submit(io, &dataset.encode(command, DataPointer::InCapsule { offset: 0, len }), &data);
        }
        (rig.response(io).status().without_flags(), std::mem::take(&mut rig.disk.log).len())
    };
    assert_eq!(discard(&[(0, 8), (5, 0), (100, 16)], 48, true, false), (Status::SUCCESS, 2));
    // Linux names room for 256 ranges, whatever their number.
    assert_eq!(discard(&[(200, 8)], 4096, true, false), (Status::SUCCESS, 1));
    assert_eq!(discard(&[(300, 8)], 4096, true, true), (Status::SUCCESS, 1));
    assert_eq!(discard(&[(400, 8)], 16, false, false), (Status::SUCCESS, 0));
    assert_eq!(discard(&[(0, 1), (BLOCKS, 1)], 32, true, false), (Status::LBA_OUT_OF_RANGE, 1));
    assert_eq!(discard(&[(u64::MAX, u32::MAX)], 16, true, false), (Status::LBA_OUT_OF_RANGE, 0));
    assert_eq!(discard(&[(0, 1), (1, 1)], 16, true, false), (Status::INVALID_SGL_LENGTH, 0));
    for (block, expected) in [(7, 0), (8, 1), (115, 0), (200, 0), (307, 0), (400, 1)] {
        assert_eq!(rig.disk.bytes[block * BLOCK], expected, "block {block}");
    }
}

#[test]
fn errors_of_the_device_are_told_as_what_they_are() {
    for (error, read, write) in [
        (DeviceError::Io, Status::UNRECOVERED_READ_ERROR, Status::WRITE_FAULT),
        (DeviceError::NoSpace, Status::CAPACITY_EXCEEDED, Status::CAPACITY_EXCEEDED),
        (DeviceError::Gone, Status::INTERNAL_PATH_ERROR, Status::INTERNAL_PATH_ERROR),
        (DeviceError::OutOfRange, Status::LBA_OUT_OF_RANGE, Status::LBA_OUT_OF_RANGE),
    ] {
        let mut rig = Rig::new();
        let (_, io) = rig.queues(Digests::NONE, true);
        rig.disk.failures.extend([error; 4]);
        rig.submit_read(io, 0, 1);
        assert!(rig.response(io).status().is(read));
        assert!(rig.write(io, 0, &[1; BLOCK]).status().is(write));
        assert!(rig.write_solicited(io, 0, &[1; 64 * BLOCK], 9999).status().is(write));
        assert!(rig.simple(io, IoOpcode::Flush, 0, 1).status().is(write));
        assert_eq!(rig.read(io, 0, 1), [0; BLOCK]);
        assert_eq!((rig.target.counts().failed, rig.target.counts().in_flight), (4, 0));
    }
}

fn compare(rig: &mut Rig, io: Client, block: u64, data: &[u8], solicited: bool) -> Status {
    if solicited {
        let pointer = DataPointer::Transport { len: data.len() as u32 };
        let entry = rig.entry(io, IoOpcode::Compare, block, (data.len() / BLOCK) as u32, pointer);
        rig.submit(io, &entry, &[]);
        let wanted = rig.solicitation(io);
        rig.send_wanted(io, &wanted, data, 1000);
    } else {
        rig.write_fused(io, block, data, IoOpcode::Compare, Fuse::None);
    }
    rig.response(io).status().without_flags()
}

#[test]
fn compare_tells_equal_from_different() {
    let mut rig = Rig::new();
    let (_, io) = rig.queues(Digests::BOTH, false);
    let data = pattern(9, 16 * BLOCK);
    rig.write(io, 30, &data);
    let mut other = data.clone();
    other[16 * BLOCK - 1] ^= 1;
    for solicited in [false, true] {
        assert_eq!(compare(&mut rig, io, 30, &data, solicited), Status::SUCCESS);
        assert_eq!(compare(&mut rig, io, 30, &other, solicited), Status::COMPARE_FAILURE);
    }
    // With the buffers of comparisons used up, a host that has sent its data is told to come again.
    let mut rig = Rig::with(TargetConfig { compares_max: 1, ..TargetConfig::default() });
    let (_, io) = rig.queues(Digests::NONE, false);
    rig.disk.is_held = true;
    rig.write_fused(io, 0, &[0; BLOCK], IoOpcode::Compare, Fuse::None);
    rig.write_fused(io, 0, &[0; BLOCK], IoOpcode::Compare, Fuse::None);
    assert_eq!(rig.response(io).status(), Status::COMMAND_INTERRUPTED);
    rig.release_disk();
    assert_eq!(rig.response(io).status(), Status::SUCCESS);
    assert_eq!(compare(&mut rig, io, 0, &[0; BLOCK], false), Status::SUCCESS);
    // Those whose data is asked for are asked later.
    rig.disk.is_held = true;
    rig.write_fused(io, 0, &[0; BLOCK], IoOpcode::Compare, Fuse::None);
    let pointer = DataPointer::Transport { len: BLOCK as u32 };
    let entry = rig.entry(io, IoOpcode::Compare, 0, 1, pointer);
    rig.submit(io, &entry, &[]);
    assert!(rig.next(io).is_none());
    rig.release_disk();
    assert_eq!(rig.response(io).status(), Status::SUCCESS);
    let wanted = rig.solicitation(io);
    rig.send_wanted(io, &wanted, &[0; BLOCK], BLOCK);
    assert_eq!(rig.response(io).status(), Status::SUCCESS);
}

#[test]
fn a_fused_pair_writes_only_what_compares() {
    let mut rig = Rig::new();
    let (_, io) = rig.queues(Digests::NONE, false);
    let mut pair = |old: u8, new: u8| {
        rig.write_fused(io, 3, &[old; BLOCK], IoOpcode::Compare, Fuse::First);
        rig.write_fused(io, 3, &[new; BLOCK], IoOpcode::Write, Fuse::Second);
        let statuses = [rig.response(io), rig.response(io)].map(|entry| entry.status().without_flags());
        (statuses, rig.disk.bytes[3 * BLOCK])
    };
    assert_eq!(pair(0, 5), ([Status::SUCCESS; 2], 5));
    let failed = [Status::ABORTED_FAILED_FUSED, Status::COMPARE_FAILURE];
    let (statuses, byte) = pair(0, 6);
    assert!(failed.iter().all(|status| statuses.contains(status)), "{statuses:?}");
    assert_eq!(byte, 5);
    assert_eq!(pair(5, 7), ([Status::SUCCESS; 2], 7));
}

#[test]
fn halves_of_pairs_that_do_not_belong_together_fail() {
    let mut rig = Rig::new();
    let (_, io) = rig.queues(Digests::NONE, false);
    let missing = Status::ABORTED_MISSING_FUSED;
    rig.write_fused(io, 3, &[1; BLOCK], IoOpcode::Write, Fuse::Second);
    assert_eq!(rig.response(io).status(), missing);
    rig.write_fused(io, 3, &[1; BLOCK], IoOpcode::Write, Fuse::First);
    assert!(rig.response(io).status().is(Status::INVALID_FIELD));
    // Something else comes after a first half.
    rig.write_fused(io, 3, &[0; BLOCK], IoOpcode::Compare, Fuse::First);
    assert!(rig.messages(io).is_empty());
    assert_eq!(rig.simple(io, IoOpcode::Flush, 0, 1).status(), missing);
    assert_eq!(rig.response(io).status(), Status::SUCCESS);
    // Another range.
    rig.write_fused(io, 3, &[0; BLOCK], IoOpcode::Compare, Fuse::First);
    rig.write_fused(io, 4, &[9; BLOCK], IoOpcode::Write, Fuse::Second);
    assert_eq!(rig.response(io).status(), Status::ABORTED_FAILED_FUSED);
    assert!(rig.response(io).status().is(Status::INVALID_FIELD));
    // A first half whose data was asked for is answered when the data is there.
    let entry = rig.entry(io, IoOpcode::Compare, 3, 1, DataPointer::Transport { len: 512 });
    rig.submit(io, &entry.with_fuse(Fuse::First), &[]);
    let wanted = rig.solicitation(io);
    assert_eq!(rig.simple(io, IoOpcode::Flush, 0, 1).status(), Status::SUCCESS);
    assert!(rig.messages(io).is_empty());
    rig.send_wanted(io, &wanted, &[0; BLOCK], BLOCK);
    assert_eq!(rig.response(io).status(), missing);
    assert_eq!((rig.disk.bytes[3 * BLOCK], rig.disk.bytes[4 * BLOCK]), (0, 0));
    assert_eq!(rig.target.counts().in_flight, 0);
}

#[test]
fn a_comparison_goes_with_a_write_and_with_nothing_else() {
    for opcode in [IoOpcode::WriteZeroes, IoOpcode::Flush, IoOpcode::Verify, IoOpcode::Read] {
        let mut rig = Rig::new();
        let (_, io) = rig.queues(Digests::NONE, false);
        rig.disk.bytes.fill(7);
        rig.write_fused(io, 3, &[7; BLOCK], IoOpcode::Compare, Fuse::First);
        let pointer = match opcode {
            IoOpcode::Read => DataPointer::Transport { len: BLOCK as u32 },
            _ => DataPointer::None,
        };
        let entry = rig.entry(io, opcode, 3, 1, pointer).with_fuse(Fuse::Second);
        rig.submit(io, &entry, &[]);
        assert_eq!(rig.response(io).status(), Status::ABORTED_FAILED_FUSED, "{opcode:?}");
        assert!(rig.response(io).status().is(Status::INVALID_FIELD), "{opcode:?}");
        assert_eq!((rig.target.counts().in_flight, rig.target.memory_used()), (0, 0));
        assert!(rig.disk.bytes[3 * BLOCK] == 7 && rig.disk.log.is_empty(), "{:?}", rig.disk.log);
    }
}

#[test]
fn zeros_behind_a_pair_are_written() {
    let mut rig = Rig::new();
    let (_, controller) = rig.admin(Digests::NONE);
    let [one, two] = [1, 2].map(|queue| rig.io_queue(Digests::NONE, controller, queue, false));
    rig.disk.is_held = true;
    rig.write_fused(one, 3, &[0; BLOCK], IoOpcode::Compare, Fuse::First);
    rig.write_fused(one, 3, &[2; BLOCK], IoOpcode::Write, Fuse::Second);
    let entry = rig.entry(two, IoOpcode::WriteZeroes, 3, 1, DataPointer::None);
    rig.submit(two, &entry, &[]);
    rig.release_disk();
    assert_eq!(rig.response(two).status(), Status::SUCCESS);
    assert_eq!(rig.disk.bytes[3 * BLOCK], 0, "{:?}", rig.disk.log);
}

/// The parts in which a device is asked for zeros, in blocks, when this many bytes may be done at once and space is given
/// back in such units.
fn zero_parts(at_once: u64, deallocate_len: u32, block: u64, blocks: u32) -> Vec<(u64, u64)> {
    let (mut control, subsystem) = support::control();
    control.remove_namespace(subsystem, 1).unwrap();
    control.add_namespace(subsystem, &NamespaceSpec { deallocate_len, ..support::namespace(1, 7) }).unwrap();
    let config = TargetConfig { zeroes_at_once: at_once, ..TargetConfig::default() };
    let mut rig = Rig::with_control(config, control, subsystem);
    let (_, io) = rig.queues(Digests::NONE, false);
    rig.disk.bytes.fill(7);
    rig.disk.is_held = true;
    let entry = rig.entry(io, IoOpcode::WriteZeroes, block, blocks, DataPointer::None);
    rig.submit(io, &entry, &[]);
    let mut parts = Vec::new();
    while let Some((_, op)) = rig.disk.queue.front() {
        let (offset, len) = op.extent().unwrap();
        parts.push((offset / BLOCK as u64, len / BLOCK as u64));
        assert!(rig.messages(io).is_empty(), "not before the last");
        rig.complete(0);
        rig.settle();
    }
    rig.run();
    assert_eq!(rig.response(io).status(), Status::SUCCESS);
    let is_zero =
        |block: u64| rig.disk.bytes[block as usize * BLOCK..][..BLOCK].iter().all(|byte| *byte == 0);
    let end = block + u64::from(blocks);
    assert!((block..end).all(is_zero) && !is_zero(block - 1) && !is_zero(end));
    parts
}

#[test]
fn large_zeros_are_written_in_parts_that_end_where_units_do() {
    let block = BLOCK as u64;
    assert_eq!(zero_parts(8 * block, 0, 5, 20), [(5, 3), (8, 8), (16, 8), (24, 1)]);
    // What may be done at once is no multiple of the unit: the parts are.
    assert_eq!(zero_parts(8 * block, 3 * 512, 5, 20), [(5, 1), (6, 6), (12, 6), (18, 6), (24, 1)]);
    // A unit that is no whole blocks counts for nothing.
    assert_eq!(zero_parts(8 * block, 3 * 512 + 1, 5, 20), [(5, 3), (8, 8), (16, 8), (24, 1)]);
    // It is less than a unit: a unit at once.
    assert_eq!(zero_parts(2 * block, 6 * 512, 5, 20), [(5, 1), (6, 6), (12, 6), (18, 6), (24, 1)]);
}

#[test]
fn nobody_comes_between_the_halves_of_a_pair() {
    let mut rig = Rig::new();
    let (_, controller) = rig.admin(Digests::NONE);
    let [one, two] = [1, 2].map(|queue| rig.io_queue(Digests::NONE, controller, queue, false));
    rig.disk.is_held = true;
    // A write is on the range when the pair comes, another comes while the pair compares.
    rig.write_fused(one, 3, &[1; BLOCK], IoOpcode::Write, Fuse::None);
    rig.write_fused(two, 3, &[1; BLOCK], IoOpcode::Compare, Fuse::First);
    rig.write_fused(two, 3, &[2; BLOCK], IoOpcode::Write, Fuse::Second);
    assert_eq!(rig.disk.queue.len(), 1, "the pair waits for the write before it");
    rig.complete(0);
    rig.run();
    rig.write_fused(one, 2, &[3; 2 * BLOCK], IoOpcode::Write, Fuse::None);
    rig.submit_read(one, 3, 1);
    rig.write_fused(one, 4, &[4; BLOCK], IoOpcode::Write, Fuse::None);
    assert_eq!(rig.disk.queue.len(), 2, "the comparison, and the write beside its range");
    assert_eq!(rig.target.counts().waiting_for_range, 2);
    rig.complete(0);
    rig.run();
    let is_pairs_write = |op: &DeviceOp| matches!(op, DeviceOp::Write { from, .. } if from[0] == 2);
    let at = rig.disk.queue.iter().position(|(_, op)| is_pairs_write(op)).expect("the pair's write");
    rig.complete(at);
    rig.run();
    assert_eq!(rig.messages(two).len(), 2);
    let counts = rig.target.counts();
    assert_eq!(
        (counts.waiting_for_range, counts.waits_for_range),
        (0, 3),
        "the pair, the write and the read"
    );
    rig.release_disk();
    assert_eq!(rig.disk.bytes[3 * BLOCK], 3);
}

#[test]
fn a_command_waits_for_a_buffer_and_none_is_lost() {
    let config = TargetConfig {
        transfer_memory: 4 * (128 << 10),
        capsule_buffers: 2,
        transfers_max: 2,
        ..TargetConfig::default()
    };
    let mut rig = Rig::with(config);
    let (_, controller) = rig.admin(Digests::NONE);
    let clients = [1, 2, 3].map(|queue| rig.io_queue(Digests::NONE, controller, queue, false));
    rig.disk.is_held = true;
    for client in clients {
        for index in 0..5 {
            rig.submit_read(client, index * 256, 256);
            rig.write_fused(client, 2000 + index, &[index as u8 + 1; BLOCK], IoOpcode::Write, Fuse::None);
        }
    }
    let counts = rig.target.counts();
    assert!(counts.waiting_for_buffer > 0 && counts.held_up > 0, "{counts:?}");
    assert!(
        counts.waits_for_buffer >= counts.waiting_for_buffer && counts.buffers_exhausted > 0,
        "{counts:?}"
    );
    assert!(counts.hold_ups_for_buffer >= counts.held_up, "{counts:?}");
    assert!((1..=counts.buffer_memory).contains(&counts.buffer_memory_used), "{counts:?}");
    assert_eq!((counts.controllers, counts.hosts), (1, 1), "however many queues it has");
    while !rig.disk.queue.is_empty() {
        rig.complete(rig.disk.queue.len() - 1);
        rig.run();
    }
    for client in clients {
        let responses =
            rig.messages(client).iter().filter(|message| matches!(message.pdu, Pdu::Response(_))).count();
        assert_eq!(responses, 10);
    }
    let counts = rig.target.counts();
    assert_eq!((counts.in_flight, counts.waiting_for_buffer, counts.held_up), (0, 0, 0));
    assert_eq!(counts.buffer_memory_used, 0);
    // Solicited writes, more than may be under way at once, and their data behind capsules that wait.
    let client = clients[0];
    rig.disk.is_held = false;
    let data = pattern(1, 128 << 10);
    for index in 0..6 {
        let pointer = DataPointer::Transport { len: 128 << 10 };
        let entry = rig.entry(client, IoOpcode::Write, index * 256, 256, pointer);
        rig.submit(client, &entry, &[]);
    }
    let mut done = 0;
    while let Some(message) = rig.next(client) {
        match message.pdu {
            Pdu::ReadyToTransfer(wanted) => rig.send_wanted(client, &wanted, &data, 1 << 17),
            Pdu::Response(entry) => {
                assert_eq!(entry.status(), Status::SUCCESS);
                done += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(done, 6);
    assert_eq!(rig.disk.bytes[5 * 256 * BLOCK..6 * 256 * BLOCK], data);
}
