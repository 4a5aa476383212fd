//! What no honest host sends, and what a slow or silent one does not send.

// A test that cannot go on should say where.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::support;

use std::time::Duration;

use ob_nvme::target::TargetConfig;
use ob_wire_nvme::command::{AdminOpcode, Fuse, IoOpcode};
use ob_wire_nvme::fabrics::{Property, PropertyAccess};
use ob_wire_nvme::pdu::{
    DataAlignment, DataTransfer, Digests, FatalStatus, IcRequest, Pdu, ReadyToTransfer, digest,
};
use ob_wire_nvme::{CommandId, DataPointer, NamespaceId, Status, SubmissionEntry, TransferTag};
use support::{BLOCK, Client, Rig, Wish, pattern};

const LEN: u32 = 16 << 10;

/// A rig with a write whose data was asked for.
fn soliciting(digests: Digests) -> (Rig, Client, ReadyToTransfer) {
    let mut rig = Rig::new();
    let (_, io) = rig.queues(digests, false);
    let entry = rig.entry(io, IoOpcode::Write, 0, LEN / 512, DataPointer::Transport { len: LEN });
    rig.submit(io, &entry, &[]);
    let wanted = rig.solicitation(io);
    (rig, io, wanted)
}

fn transfer(wanted: &ReadyToTransfer, offset: u32, len: u32) -> DataTransfer {
    DataTransfer {
        command: wanted.command,
        tag: wanted.tag,
        offset,
        len,
        is_last: offset.wrapping_add(len) == LEN,
        is_success: false,
    }
}

fn send(rig: &mut Rig, io: Client, transfer: &DataTransfer) {
    let bytes = rig.data_pdu(io, transfer, &vec![0xEE; transfer.len as usize]);
    rig.send(io, &bytes);
}

fn assert_given_up(rig: &mut Rig, client: Client, expected: FatalStatus, what: &str) {
    let reason = rig.termination(client);
    assert_eq!(reason.known_status(), Some(expected), "{what}");
    // Whatever it says now, nobody listens, and nothing of it is left when it is gone.
    rig.send(client, &[0xFF; 1000]);
    assert!(rig.messages(client).is_empty(), "{what}");
    rig.hang_up(client);
    let counts = rig.target.counts();
    assert_eq!((counts.in_flight, counts.waiting_for_buffer), (0, 0), "{what}");
    assert!(rig.disk.bytes.iter().all(|byte| *byte == 0), "{what}: nothing was written");
}

/// CVE-2023-6356, CVE-2023-6535, CVE-2023-6536, CVE-2026-23112: a host's word for where its data goes.
#[test]
fn data_that_was_not_asked_for_ends_the_connection() {
    type Change = fn(&mut DataTransfer);
    let cases: [(&str, FatalStatus, Change); 8] = [
        ("longer than asked for", FatalStatus::OutOfRange, |t| t.len = LEN + 4),
        ("beyond the end", FatalStatus::OutOfRange, |t| (t.offset, t.len) = (LEN, 4)),
        ("a hole", FatalStatus::OutOfRange, |t| (t.offset, t.len) = (512, 512)),
        ("far beyond", FatalStatus::OutOfRange, |t| (t.offset, t.len) = (u32::MAX - 512, 512)),
        ("an offset that wraps", FatalStatus::OutOfRange, |t| (t.offset, t.len) = (u32::MAX, 512)),
        ("an unknown tag", FatalStatus::InvalidHeader, |t| t.tag = TransferTag(t.tag.0 ^ 1)),
        ("an older use of the tag", FatalStatus::InvalidHeader, |t| t.tag = TransferTag(t.tag.0 ^ 0x100)),
        ("another command", FatalStatus::InvalidHeader, |t| t.command = CommandId(t.command.0 + 1)),
    ];
    for digests in [Digests::NONE, Digests::BOTH] {
        for (what, expected, change) in cases {
            let (mut rig, io, wanted) = soliciting(digests);
            let mut wrong = transfer(&wanted, 0, LEN);
            change(&mut wrong);
            send(&mut rig, io, &wrong);
            assert_given_up(&mut rig, io, expected, what);
        }
    }
}

/// CVE-2023-6536, CVE-2026-23112: data that overlaps, or more of it than was asked for.
#[test]
fn data_twice_or_too_much_or_too_little_ends_the_connection() {
    type Second = fn(&ReadyToTransfer) -> DataTransfer;
    let cases: [(&str, FatalStatus, Second); 4] = [
        ("the same again", FatalStatus::OutOfRange, |wanted| transfer(wanted, 0, LEN / 2)),
        ("overlapping", FatalStatus::OutOfRange, |wanted| transfer(wanted, LEN / 2 - 512, 512)),
        ("more than is left", FatalStatus::OutOfRange, |wanted| transfer(wanted, LEN / 2, LEN / 2 + 512)),
        ("the last, too early", FatalStatus::InvalidHeader, |wanted| DataTransfer {
            is_last: true,
            ..transfer(wanted, LEN / 2, 512)
        }),
    ];
    for (what, expected, second) in cases {
        let (mut rig, io, wanted) = soliciting(Digests::NONE);
        send(&mut rig, io, &transfer(&wanted, 0, LEN / 2));
        send(&mut rig, io, &second(&wanted));
        assert_given_up(&mut rig, io, expected, what);
    }
    // A tag is good once.
    let (mut rig, io, wanted) = soliciting(Digests::NONE);
    rig.send_wanted(io, &wanted, &vec![0; LEN as usize], LEN as usize);
    assert_eq!(rig.response(io).status(), Status::SUCCESS);
    send(&mut rig, io, &transfer(&wanted, 0, LEN));
    assert_given_up(&mut rig, io, FatalStatus::InvalidHeader, "a tag that is used up");
}

/// CVE-2023-6535: a tag means something on its own connection alone, and only while its command waits for data.
#[test]
fn a_tag_of_another_connection_or_of_no_request_ends_the_connection() {
    let mut rig = Rig::new();
    let (_, controller) = rig.admin(Digests::NONE);
    let [one, two] = [1, 2].map(|queue| rig.io_queue(Digests::NONE, controller, queue, false));
    let entry = rig.entry(one, IoOpcode::Write, 0, LEN / 512, DataPointer::Transport { len: LEN });
    rig.submit(one, &entry, &[]);
    let wanted = rig.solicitation(one);
    send(&mut rig, two, &transfer(&wanted, 0, LEN));
    let reason = rig.termination(two);
    assert_eq!(reason.known_status(), Some(FatalStatus::InvalidHeader));
    // The owner of the tag is not disturbed.
    rig.send_wanted(one, &wanted, &vec![0; LEN as usize], LEN as usize);
    assert_eq!(rig.response(one).status(), Status::SUCCESS);
    // Data for a command that is on the device already, and that nobody asked any data of.
    let mut rig = Rig::new();
    let (_, io) = rig.queues(Digests::NONE, false);
    rig.disk.is_held = true;
    let command = rig.write_fused(io, 0, &[0; BLOCK], IoOpcode::Write, Fuse::None);
    let wanted = ReadyToTransfer { command, tag: TransferTag(0), offset: 0, len: LEN };
    send(&mut rig, io, &transfer(&wanted, 0, 512));
    let reason = rig.termination(io);
    assert_eq!(reason.known_status(), Some(FatalStatus::InvalidHeader));
    rig.release_disk();
    assert_eq!(rig.target.counts().in_flight, 0);
}

/// CVE-2023-6356: data PDUs without data.
#[test]
fn data_pdus_without_data_complete_nothing() {
    for is_last in [false, true] {
        let (mut rig, io, wanted) = soliciting(Digests::NONE);
        for _ in 0..3 {
            send(&mut rig, io, &DataTransfer { is_last, ..transfer(&wanted, 0, 0) });
        }
        let said = rig.messages(io);
        assert!(!said.iter().any(|message| matches!(message.pdu, Pdu::Response(_))), "{said:?}");
        assert!(rig.disk.log.is_empty());
        rig.hang_up(io);
        assert_eq!((rig.target.counts().in_flight, rig.target.memory_used()), (0, 0));
    }
}

#[test]
fn a_data_pdu_longer_than_the_limit_ends_the_connection() {
    let (mut rig, io, wanted) = soliciting(Digests::NONE);
    send(&mut rig, io, &transfer(&wanted, 0, (128 << 10) + 4));
    assert_given_up(&mut rig, io, FatalStatus::LimitExceeded, "beyond MAXH2CDATA");
}

/// CVE-2026-64534: on a data PDU that is not the last, and on a command that fails anyway.
#[test]
fn a_wrong_data_digest_fails_the_command_and_nothing_else() {
    for wrong_piece in 0..4 {
        let (mut rig, io, wanted) = soliciting(Digests::BOTH);
        for piece in 0..4 {
            let data = vec![0xEE; LEN as usize / 4];
            let mut bytes = rig.data_pdu(io, &transfer(&wanted, piece * LEN / 4, LEN / 4), &data);
            if piece == wrong_piece {
                *bytes.last_mut().unwrap() ^= 1;
            }
            assert!(rig.messages(io).is_empty(), "the answer comes after the data");
            rig.send(io, &bytes);
        }
        assert_eq!(rig.response(io).status(), Status::TRANSIENT_TRANSPORT_ERROR, "piece {wrong_piece}");
        assert!(rig.disk.log.is_empty());
        assert_eq!(rig.read(io, 0, 1), [0; BLOCK], "the connection goes on");
        assert_eq!(rig.target.counts().digest_errors, 1);
    }
    // In a capsule, of a command that would succeed and of one that fails anyway.
    for (block, expected) in [(0, Status::TRANSIENT_TRANSPORT_ERROR), (u64::MAX, Status::LBA_OUT_OF_RANGE)] {
        let mut rig = Rig::new();
        let (_, io) = rig.queues(Digests::BOTH, false);
        let entry = rig.entry(io, IoOpcode::Write, block, 1, DataPointer::InCapsule { offset: 0, len: 512 });
        let mut bytes = rig.capsule(io, &entry, &[0xEE; BLOCK]);
        *bytes.last_mut().unwrap() ^= 1;
        rig.send(io, &bytes);
        assert!(rig.response(io).status().is(expected));
        assert_eq!(rig.read(io, 0, 1), [0; BLOCK]);
        assert_eq!(rig.target.counts().in_flight, 0);
    }
}

/// CVE-2026-64534: a command fails while its data is coming, and then the data's digest is wrong too.
#[test]
fn a_wrong_data_digest_on_a_command_that_failed_meanwhile_is_answered_once() {
    for wrong_piece in 0..2 {
        let (mut rig, io, wanted) = soliciting(Digests::BOTH);
        for piece in 0..2 {
            let data = vec![0xEE; LEN as usize / 2];
            let mut bytes = rig.data_pdu(io, &transfer(&wanted, piece * LEN / 2, LEN / 2), &data);
            if piece == wrong_piece {
                *bytes.last_mut().unwrap() ^= 1;
            }
            rig.send(io, &bytes);
            assert_eq!(rig.target.counts().in_flight, 1 - u64::from(piece));
            if piece == 0 {
                let subsystem = rig.subsystem;
                rig.target.control_mut().remove_namespace(subsystem, 1).unwrap();
                rig.run();
            }
        }
        assert!(!rig.response(io).status().is_success());
        assert!(rig.messages(io).is_empty() && rig.disk.log.is_empty());
        assert_eq!(rig.target.memory_used(), 0);
    }
}

#[test]
fn a_wrong_header_digest_ends_the_connection() {
    let mut rig = Rig::new();
    let (_, io) = rig.queues(Digests::BOTH, false);
    let entry = rig.entry(io, IoOpcode::Flush, 0, 1, DataPointer::None);
    let mut bytes = rig.capsule(io, &entry, &[]);
    bytes[20] ^= 1;
    rig.send(io, &bytes);
    assert_given_up(&mut rig, io, FatalStatus::HeaderDigest, "a flipped bit in a header");
}

/// CVE-2026-46135: the connection is gone before anybody could answer, whatever of an ICReq has come.
#[test]
fn an_icreq_followed_by_the_end_at_once_leaves_nothing() {
    let request =
        IcRequest { alignment: DataAlignment::DWORD, digests: Digests::BOTH, r2t_max: 1 }.encode().to_vec();
    let mut rig = Rig::new();
    for len in 1..=request.len() {
        for takes_answer in [false, true] {
            let client = rig.client();
            rig.state(client).outbox.extend(&request[..len]);
            assert_eq!(rig.deliver_some(client, usize::MAX), len);
            if takes_answer {
                rig.take_some(client, 7);
            }
            let key = rig.state(client).key.take().unwrap();
            rig.target.ended(rig.now, key);
            rig.settle();
            assert_eq!((rig.target.counts().connections, rig.state(client).is_closed), (0, true));
        }
    }
}

/// CVE-2026-89969: above all after digests were agreed on, which a second ICReq would change.
#[test]
fn a_second_icreq_ends_the_connection_in_every_state() {
    for digests in [Digests::NONE, Digests::BOTH] {
        for state in 0..3 {
            let mut rig = Rig::new();
            let client = match state {
                0 => rig.open(digests),
                1 => rig.admin(digests).0,
                _ => rig.queues(digests, true).1,
            };
            let request = IcRequest { alignment: DataAlignment::DWORD, digests, r2t_max: 1 };
            rig.send(client, &request.encode());
            let reason = rig.termination(client);
            assert_eq!(reason.known_status(), Some(FatalStatus::Sequence));
            rig.advance(Duration::from_secs(3));
            assert!(rig.state(client).is_closed, "a peer that does not close is closed");
        }
    }
    // One that closes at once.
    let mut rig = Rig::new();
    let client = rig.open(Digests::BOTH);
    rig.hang_up(client);
    assert_eq!(rig.target.counts().connections, 0);
}

#[test]
fn nothing_is_served_before_icreq_and_connect() {
    let mut rig = Rig::new();
    let client = rig.client();
    let entry = SubmissionEntry::new(IoOpcode::Read.code(), CommandId(1), NamespaceId(1));
    rig.submit(client, &entry, &[]);
    assert_given_up(&mut rig, client, FatalStatus::Sequence, "a command before ICReq");
    let client = rig.client();
    let wanted = ReadyToTransfer { command: CommandId(1), tag: TransferTag(1), offset: 0, len: LEN };
    send(&mut rig, client, &transfer(&wanted, 0, 512));
    assert_given_up(&mut rig, client, FatalStatus::Sequence, "data before ICReq");
    let client = rig.open(Digests::NONE);
    for opcode in [0x00, 0x01, 0x02, 0x06, 0x0C, 0x18] {
        let entry = SubmissionEntry::new(opcode, CommandId(7), NamespaceId(1))
            .with_data(DataPointer::Transport { len: 4096 });
        rig.submit(client, &entry, &[]);
        assert!(rig.response(client).status().is(Status::COMMAND_SEQUENCE_ERROR), "{opcode:#x}");
    }
    // A Connect twice.
    assert_eq!(rig.connect_as(client, 0, &Wish::default()).status(), Status::SUCCESS);
    assert!(!rig.connect_as(client, 0, &Wish::default()).status().is_success());
    // An I/O queue of a controller that is not enabled.
    let (_, io) = {
        let admin = rig.open(Digests::NONE);
        let controller =
            rig.connect_as(admin, 0, &Wish { host_id: [3; 16], ..Wish::default() }).result() as u16;
        let io = rig.open(Digests::NONE);
        let wish =
            Wish { controller: ob_wire_nvme::ControllerId(controller), host_id: [3; 16], ..Wish::default() };
        (admin, (io, rig.connect_as(io, 1, &wish)))
    };
    assert!(io.1.status().is(Status::COMMAND_SEQUENCE_ERROR), "a queue before CC.EN");
    rig.submit_read(io.0, 0, 1);
    assert!(rig.response(io.0).status().is(Status::COMMAND_SEQUENCE_ERROR));
    assert!(rig.disk.log.is_empty());
}

/// CVE-2025-21927, whose like a target has too: HLEN, PDO and PLEN are believed only as far as they can be true.
#[test]
fn lengths_and_offsets_at_their_extremes_end_the_connection() {
    // HLEN, PDO and PLEN of a capsule with data, each at values that cannot be.
    type Change = fn(&mut Vec<u8>);
    let cases: [(&str, Change); 12] = [
        ("HLEN 0", |bytes| bytes[2] = 0),
        ("HLEN 71", |bytes| bytes[2] = 71),
        ("HLEN 255", |bytes| bytes[2] = 255),
        ("PDO 0", |bytes| bytes[3] = 0),
        ("PDO before the header's end", |bytes| bytes[3] = 68),
        ("PDO not aligned", |bytes| bytes[3] = 73),
        ("PDO 255", |bytes| bytes[3] = 255),
        ("PLEN 0", |bytes| bytes[4..8].fill(0)),
        ("PLEN 7", |bytes| bytes[4..8].copy_from_slice(&7u32.to_le_bytes())),
        ("PLEN less than the header", |bytes| bytes[4..8].copy_from_slice(&71u32.to_le_bytes())),
        ("PLEN beyond the capsule", |bytes| bytes[4..8].copy_from_slice(&(72 + 8196u32).to_le_bytes())),
        ("PLEN at its largest", |bytes| bytes[4..8].fill(0xFF)),
    ];
    for (what, change) in cases {
        let mut rig = Rig::new();
        let (_, io) = rig.queues(Digests::NONE, false);
        let entry = rig.entry(io, IoOpcode::Write, 0, 1, DataPointer::InCapsule { offset: 0, len: 512 });
        let mut bytes = rig.capsule(io, &entry, &[0xEE; BLOCK]);
        change(&mut bytes);
        rig.send(io, &bytes);
        assert_given_up(&mut rig, io, FatalStatus::InvalidHeader, what);
    }
    // Every type, known and unknown, in every state, with lengths at their extremes: nothing panics or is written.
    for kind in (0..=0x0A).chain([0x7F, 0xFF]) {
        for header_len in [0, 8, 24, 72, 128, 255] {
            for total_len in [0, 8, 24, 72, 128, 136, 8192, u32::MAX] {
                for state in 0..5 {
                    let mut rig = Rig::with(small());
                    let client = match state {
                        0 => rig.client(),
                        1 => rig.open(Digests::NONE),
                        2 => rig.open(Digests::BOTH),
                        3 => rig.queues(Digests::NONE, false).1,
                        _ => rig.queues(Digests::BOTH, false).1,
                    };
                    for data_at in [0, header_len, 76, 255] {
                        let mut bytes = vec![0xFF; 264];
                        bytes[..4].copy_from_slice(&[kind, 3, header_len, data_at]);
                        bytes[4..8].copy_from_slice(&total_len.to_le_bytes());
                        // A digest that is right, so that it is not all that is wrong.
                        let head = usize::from(header_len).clamp(8, 200);
                        let good = digest(&bytes[..head]);
                        bytes[head..head + 4].copy_from_slice(&good);
                        rig.send(client, &bytes);
                    }
                    rig.hang_up(client);
                    assert!(rig.disk.log.is_empty());
                    assert_eq!(rig.target.memory_used(), 0);
                }
            }
        }
    }
}

/// Little memory, so that many targets can be made.
fn small() -> TargetConfig {
    TargetConfig {
        transfer_memory: 1 << 20,
        capsule_buffers: 4,
        compares_max: 1,
        receive_len: 16 << 10,
        ..TargetConfig::default()
    }
}

#[test]
fn data_pointers_that_lie_fail_their_command() {
    let mut rig = Rig::new();
    let (_, io) = rig.queues(Digests::NONE, false);
    type Change = fn(&mut SubmissionEntry);
    let cases: [(&str, Change); 8] = [
        ("more than came", |entry| entry.sgl.length = 1024.into()),
        ("a length at its largest", |entry| entry.sgl.length = u32::MAX.into()),
        ("an offset behind the data", |entry| entry.sgl.address = 513.into()),
        ("an offset at the end", |entry| entry.sgl.address = 512.into()),
        ("an offset at its largest", |entry| entry.sgl.address = u64::MAX.into()),
        ("an address in host memory", |entry| entry.sgl.identifier = 0),
        ("a segment", |entry| entry.sgl.identifier = 0x20),
        ("PRPs", |entry| entry.flags &= 0x3F),
    ];
    for (what, change) in cases {
        let pointer = DataPointer::InCapsule { offset: 0, len: 512 };
        let mut entry = rig.entry(io, IoOpcode::Write, 0, 1, pointer);
        change(&mut entry);
        rig.submit(io, &entry, &[0xEE; BLOCK]);
        assert!(!rig.response(io).status().is_success(), "{what}");
    }
    // A read with data in its capsule.
    let entry = rig.entry(io, IoOpcode::Read, 0, 1, DataPointer::InCapsule { offset: 0, len: 512 });
    rig.submit(io, &entry, &[0xEE; BLOCK]);
    assert!(rig.response(io).status().is(Status::INVALID_SGL_TYPE));
    // A part of what came is fine.
    let entry = rig.entry(io, IoOpcode::Write, 9, 1, DataPointer::InCapsule { offset: 512, len: 512 });
    let data = pattern(4, 1536);
    rig.submit(io, &entry, &data);
    assert_eq!(rig.response(io).status(), Status::SUCCESS);
    assert_eq!(rig.disk.bytes[9 * BLOCK..10 * BLOCK], data[512..1024]);
    assert!(rig.disk.bytes[..9 * BLOCK].iter().all(|byte| *byte == 0));
}

#[test]
fn a_command_id_in_use_is_a_conflict() {
    let mut rig = Rig::new();
    let (_, io) = rig.queues(Digests::NONE, false);
    rig.disk.is_held = true;
    let entry = rig.entry(io, IoOpcode::Write, 0, 1, DataPointer::InCapsule { offset: 0, len: 512 });
    rig.submit(io, &entry, &[1; BLOCK]);
    rig.submit(io, &entry, &[2; BLOCK]);
    let conflict = rig.response(io);
    assert!(conflict.status().is(Status::COMMAND_ID_CONFLICT));
    rig.release_disk();
    assert_eq!(rig.response(io).status(), Status::SUCCESS);
    assert_eq!((rig.disk.bytes[0], rig.disk.log.len()), (1, 1));
    rig.submit(io, &entry, &[3; BLOCK]);
    assert_eq!(rig.response(io).status(), Status::SUCCESS, "the id is free again");
}

#[test]
fn the_id_of_a_held_event_request_may_be_used_again_and_nothing_else_ends_with_it() {
    let mut rig = Rig::new();
    let (admin, _) = rig.queues(Digests::NONE, false);
    let request = |command| {
        SubmissionEntry::new(AdminOpcode::AsyncEventRequest.code(), CommandId(command), NamespaceId::NONE)
    };
    for command in 100..104 {
        rig.submit(admin, &request(command), &[]);
    }
    let configuration = PropertyAccess { property: Property::Configuration, value: None };
    rig.submit(admin, &configuration.encode(CommandId(103)), &[]);
    let answer = rig.response(admin);
    assert_eq!((answer.status(), answer.command()), (Status::SUCCESS, CommandId(103)));
    // Its place is free again, and the others are held as before.
    rig.submit(admin, &request(104), &[]);
    assert!(rig.messages(admin).is_empty());
    rig.submit(admin, &request(105), &[]);
    let answer = rig.response(admin);
    assert!(answer.status().is(Status::ASYNC_EVENT_LIMIT_EXCEEDED), "{answer:?}");
    rig.hang_up(admin);
}

#[test]
fn what_is_aborted_is_answered_once_and_before_the_abort() {
    let mut rig = Rig::new();
    let (admin, _) = rig.queues(Digests::NONE, false);
    let entry = |opcode: AdminOpcode, command| {
        SubmissionEntry::new(opcode.code(), CommandId(command), NamespaceId::NONE)
    };
    rig.submit(admin, &entry(AdminOpcode::AsyncEventRequest, 100), &[]);
    let mut abort = entry(AdminOpcode::Abort, 101);
    abort.dword10 = (100 << 16_u32).into();
    rig.submit(admin, &abort, &[]);
    let answers = [rig.response(admin), rig.response(admin)];
    assert_eq!(answers.map(|answer| answer.command()), [CommandId(100), CommandId(101)]);
    assert!(answers[0].status().is(Status::ABORT_REQUESTED) && answers[1].status().is_success());
    assert_eq!(answers[1].result() & 1, 0, "it was aborted");
    assert!(rig.messages(admin).is_empty());
}

#[test]
fn more_commands_than_a_host_may_have_under_way_wait() {
    let mut rig = Rig::new();
    let (_, io) = rig.queues(Digests::NONE, false);
    rig.disk.is_held = true;
    for index in 0..200 {
        rig.submit_read(io, index, 1);
    }
    let counts = rig.target.counts();
    assert_eq!((counts.in_flight, counts.held_up, rig.disk.queue.len()), (128, 1, 128), "MAXCMD");
    assert!(counts.hold_ups_for_queue > 0, "{counts:?}");
    assert_eq!((counts.hold_ups_for_buffer, counts.hold_ups_for_unsent, counts.buffers_exhausted), (0, 0, 0));
    rig.release_disk();
    assert_eq!(rig.messages(io).len(), 2 * 200, "data and a response each");
}

/// An entry is free again when its command is taken: a host with a small queue may have many writes under way, and the data
/// of the first of them behind the last.
#[test]
fn a_small_queue_does_not_stop_the_data_of_what_was_taken_from_it() {
    let mut rig = Rig::new();
    let (_, controller) = rig.admin(Digests::NONE);
    let io = rig.open(Digests::NONE);
    let wish = Wish { controller, entries: 4, ..Wish::default() };
    assert_eq!(rig.connect_as(io, 1, &wish).status(), Status::SUCCESS);
    let pointer = DataPointer::Transport { len: BLOCK as u32 };
    let wanted: Vec<_> = (0..8)
        .map(|block| {
            let entry = rig.entry(io, IoOpcode::Write, block, 1, pointer);
            rig.submit(io, &entry, &[]);
            rig.solicitation(io)
        })
        .collect();
    for (index, wanted) in wanted.iter().enumerate() {
        rig.send_wanted(io, wanted, &[index as u8 + 1; BLOCK], BLOCK);
        assert_eq!(rig.response(io).status(), Status::SUCCESS);
    }
    assert_eq!(rig.disk.bytes[7 * BLOCK], 8);
}

#[test]
fn a_host_that_does_not_take_its_answers_is_read_no_more_and_closed_in_the_end() {
    let mut rig = Rig::with(TargetConfig { unsent_max: 1024, ..small() });
    let (_, io) = rig.queues(Digests::NONE, false);
    rig.state(io).is_deaf = true;
    for _ in 0..1000 {
        let entry = rig.entry(io, IoOpcode::Flush, 0, 1, DataPointer::None);
        rig.submit(io, &entry, &[]);
    }
    let flushes = rig.target.counts().flushes;
    assert!((40..80).contains(&flushes), "{flushes} answers wait");
    assert!(rig.target.counts().hold_ups_for_unsent > 0);
    rig.listen_again(io);
    assert_eq!(rig.messages(io).len(), 1000, "none is lost");
    rig.state(io).is_deaf = true;
    for _ in 0..1000 {
        rig.submit_read(io, 0, 16);
    }
    rig.advance(Duration::from_secs(29));
    assert!(!rig.state(io).is_closed);
    rig.advance(Duration::from_secs(2));
    assert!(rig.state(io).is_closed);
    assert_eq!((rig.target.counts().timeouts, rig.target.counts().in_flight), (1, 0));
}

/// Who has proved nothing gets little: what it makes the target keep for it is bounded far below what an I/O queue may have.
#[test]
fn a_peer_that_is_no_queue_has_little_memory_kept_for_it() {
    let config = TargetConfig::default();
    assert!(config.control_unsent_max * 8 <= config.unsent_max);
    assert!(config.control_receive_len * 8 <= config.receive_len);
    let mut rig = Rig::with(config.clone());
    let (admin, io) = rig.queues(Digests::NONE, false);
    let stranger = rig.open(Digests::NONE);
    for (client, most) in [
        (stranger, config.control_receive_len),
        (admin, config.control_receive_len),
        (io, config.receive_len),
    ] {
        assert_eq!(rig.places(client), [0, most], "{client:?} may send so much before it is looked at");
    }
    for client in [stranger, admin] {
        rig.state(client).is_deaf = true;
        let property = PropertyAccess { property: Property::Capabilities, value: None };
        let command = rig.command_id(client);
        let capsule = rig.capsule(client, &property.encode(command), &[]);
        let flood = capsule.repeat(20_000);
        rig.send(client, &flood);
        let taken = flood.len() - rig.state(client).outbox.len();
        // What is kept are answers, and bytes that came in the same receive as the command that was one too many.
        let answers = config.control_unsent_max.div_ceil(24);
        let most = answers * capsule.len() + config.control_receive_len;
        assert!((most / 2..=most).contains(&taken), "{taken} bytes were taken, {most} may be");
        rig.state(client).outbox.clear();
        rig.state(client).is_deaf = false;
        let held = rig.take_some(client, usize::MAX);
        assert!(held < config.control_unsent_max + 24, "{held} bytes of answers were kept");
    }
}

#[test]
fn a_host_that_takes_its_answers_byte_by_byte_is_closed_and_a_slow_one_is_not() {
    for (piece, is_closed) in [(1, true), (200 << 10, false)] {
        let mut rig = Rig::with(small());
        let (_, io) = rig.queues(Digests::NONE, false);
        rig.state(io).is_deaf = true;
        for _ in 0..4 {
            rig.submit_read(io, 0, 256);
        }
        assert!(rig.target.memory_used() > 0);
        for _ in 0..30 {
            rig.advance(Duration::from_secs(10));
            if rig.take_some(io, piece) > 0 && !is_closed {
                // There is always more to be taken.
                rig.submit_read(io, 0, 256);
            }
            rig.settle();
        }
        assert_eq!(rig.state(io).is_closed, is_closed, "{piece} bytes every ten seconds");
        if is_closed {
            assert_eq!((rig.target.counts().timeouts, rig.target.memory_used()), (1, 0));
        }
    }
}

#[test]
fn the_first_half_of_a_pair_keeps_comparisons_of_others_waiting_for_a_while_only() {
    let mut rig = Rig::with(small());
    let (_, one) = rig.queues(Digests::NONE, false);
    let other = Wish { host_id: [77; 16], ..Wish::default() };
    let (_, controller) = rig.admin_as(Digests::NONE, &other);
    let two = rig.open(Digests::NONE);
    assert_eq!(rig.connect_as(two, 1, &Wish { controller, ..other }).status(), Status::SUCCESS);
    rig.write_fused(one, 0, &[0; BLOCK], IoOpcode::Compare, Fuse::First);
    assert!(rig.messages(one).is_empty());
    rig.write_fused(two, 0, &[0; BLOCK], IoOpcode::Compare, Fuse::None);
    assert!(rig.response(two).status().is(Status::COMMAND_INTERRUPTED), "there are two buffers");
    rig.advance(Duration::from_secs(6));
    assert!(rig.response(one).status().is(Status::ABORTED_MISSING_FUSED));
    rig.write_fused(two, 0, &[0; BLOCK], IoOpcode::Compare, Fuse::None);
    assert_eq!(rig.response(two).status(), Status::SUCCESS);
    // Who was late is told so, and may try again.
    rig.write_fused(one, 0, &[1; BLOCK], IoOpcode::Write, Fuse::Second);
    assert!(rig.response(one).status().is(Status::ABORTED_MISSING_FUSED));
    rig.write_fused(one, 0, &[0; BLOCK], IoOpcode::Compare, Fuse::First);
    rig.write_fused(one, 0, &[1; BLOCK], IoOpcode::Write, Fuse::Second);
    assert_eq!(rig.messages(one).len(), 2);
    assert_eq!(rig.disk.bytes[0], 1);
}

#[test]
fn silent_and_slow_peers_are_closed_and_idle_ones_are_not() {
    let mut rig = Rig::new();
    let silent = rig.client();
    let no_connect = rig.open(Digests::NONE);
    let half_header = rig.client();
    rig.send(half_header, &[0]);
    let (admin, io) = rig.queues(Digests::NONE, false);
    let (_, half_capsule) = {
        let (admin, controller) = rig.admin_as(Digests::NONE, &Wish { host_id: [4; 16], ..Wish::default() });
        let half = rig.open(Digests::NONE);
        let wish = Wish { controller, host_id: [4; 16], ..Wish::default() };
        assert_eq!(rig.connect_as(half, 1, &wish).status(), Status::SUCCESS);
        let entry = rig.entry(half, IoOpcode::Write, 0, 1, DataPointer::InCapsule { offset: 0, len: 512 });
        let bytes = rig.capsule(half, &entry, &[0xEE; BLOCK]);
        rig.send(half, &bytes[..100]);
        (admin, half)
    };
    let no_data = {
        let entry = rig.entry(io, IoOpcode::Write, 0, 32, DataPointer::Transport { len: LEN });
        rig.submit(io, &entry, &[]);
        io
    };
    rig.advance(Duration::from_secs(4));
    assert_eq!(rig.target.counts().timeouts, 0);
    rig.advance(Duration::from_secs(2));
    assert!(rig.state(silent).is_closed && rig.state(half_header).is_closed);
    assert!(!rig.state(no_connect).is_closed);
    rig.advance(Duration::from_secs(5));
    assert!(rig.state(no_connect).is_closed && !rig.state(half_capsule).is_closed);
    // A byte now and then does not help.
    rig.send(half_capsule, &[0xEE]);
    rig.advance(Duration::from_secs(20));
    assert!(rig.state(half_capsule).is_closed && rig.state(no_data).is_closed);
    rig.advance(Duration::from_secs(60));
    assert!(!rig.state(admin).is_closed, "an association may be idle");
    assert!(rig.disk.log.is_empty());
}

#[test]
fn a_thousand_silent_connections_are_bounded_and_the_others_do_not_notice() {
    let mut rig = Rig::with(TargetConfig { connections_max: 1000, ..TargetConfig::default() });
    let (_, io) = rig.queues(Digests::NONE, false);
    let memory = rig.target.memory();
    let silent: Vec<Client> = (0..1000).map(|_| rig.client()).collect();
    let counts = rig.target.counts();
    assert_eq!((counts.connections, counts.refused), (1000, 2));
    rig.run();
    for (index, client) in silent.iter().enumerate() {
        assert_eq!(rig.state(*client).is_closed, index < 2, "the oldest made room for the last");
    }
    for client in &silent {
        rig.send(*client, &[0, 0]);
    }
    assert_eq!(rig.write(io, 1, &[5; BLOCK]).status(), Status::SUCCESS);
    assert_eq!(rig.read(io, 1, 1), [5; BLOCK]);
    assert_eq!(rig.target.memory(), memory, "silent connections take no payload memory");
    rig.advance(Duration::from_secs(6));
    assert_eq!(rig.target.counts().connections, 2);
    assert!(rig.client().0 > 0 && rig.target.counts().connections == 3, "there is room again");
}

#[test]
fn hosts_that_come_and_go_while_a_device_hangs_leave_nothing_in_what_waits() {
    let mut rig = Rig::with(small());
    let (admin, io) = rig.queues(Digests::NONE, false);
    rig.disk.is_held = true;
    rig.write_fused(io, 0, &[1; BLOCK], IoOpcode::Write, Fuse::None);
    rig.hang_up(admin);
    for host in 0..200_u8 {
        let wish = Wish { host_id: [host; 16], ..Wish::default() };
        let (admin, controller) = rig.admin_as(Digests::NONE, &wish);
        let io = rig.open(Digests::NONE);
        assert_eq!(rig.connect_as(io, 1, &Wish { controller, ..wish }).status(), Status::SUCCESS);
        for _ in 0..8 {
            rig.submit_read(io, 0, 1);
        }
        rig.write_fused(io, 0, &[0; BLOCK], IoOpcode::Compare, Fuse::First);
        rig.write_fused(io, 0, &[2; BLOCK], IoOpcode::Write, Fuse::Second);
        assert_eq!(rig.target.counts().waiting_for_range, 9);
        rig.hang_up(admin);
        let counts = rig.target.counts();
        assert_eq!((counts.waiting_for_range, counts.in_flight), (0, 1), "{counts:?}");
    }
    rig.release_disk();
    assert_eq!((rig.target.counts().in_flight, rig.target.memory_used()), (0, 0));
    assert_eq!(rig.disk.log, ["write"], "nobody else's command ever ran");
}

#[test]
fn commands_that_no_device_has_taken_go_with_their_host() {
    const DEPTH: usize = 8;
    let mut rig = Rig::with(small());
    rig.disk.is_held = true;
    rig.disk.depth = DEPTH;
    for host in 0..200_u8 {
        let wish = Wish { host_id: [host; 16], ..Wish::default() };
        let (admin, controller) = rig.admin_as(Digests::NONE, &wish);
        let io = rig.open(Digests::NONE);
        assert_eq!(rig.connect_as(io, 1, &Wish { controller, ..wish }).status(), Status::SUCCESS);
        for command in 0..10 {
            let block = u64::from(host) * 20 + command;
            let flush = rig.entry(io, IoOpcode::Flush, 0, 1, DataPointer::None);
            rig.submit(io, &flush, &[]);
            let zeroes = rig.entry(io, IoOpcode::WriteZeroes, block, 1, DataPointer::None);
            rig.submit(io, &zeroes, &[]);
        }
        rig.write_fused(io, 4000, &[1; BLOCK], IoOpcode::Write, Fuse::None);
        let waiting = rig.target.backlog_len();
        rig.hang_up(admin);
        assert!(waiting >= 20 - DEPTH && rig.target.backlog_len() == 0);
        assert!(rig.target.counts().in_flight <= DEPTH as u64, "{:?}", rig.target.counts());
    }
    let taken = rig.disk.queue.len();
    rig.release_disk();
    assert_eq!((rig.target.counts().in_flight, rig.target.memory_used()), (0, 0));
    assert_eq!((taken, rig.disk.log.len()), (DEPTH, DEPTH), "nothing else ever ran");
    assert_eq!(rig.disk.bytes[4000 * BLOCK], 0);
}

#[test]
fn random_bytes_behind_an_honest_begin_leave_nothing_behind() {
    let mut word = 0x2545_F491_4F6C_DD1D_u64;
    let mut next = move || {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word
    };
    for round in 0..300 {
        let mut rig = Rig::with(small());
        let digests = Digests::from_bits(round as u8);
        let (_, io) = rig.queues(digests, round % 2 == 0);
        let entry = rig.entry(io, IoOpcode::Write, 0, 1, DataPointer::Transport { len: 512 });
        let mut bytes = rig.capsule(io, &entry, &[]);
        if next() % 2 == 0 {
            bytes.extend((0..next() % 600).map(|_| next() as u8));
        } else {
            // A good capsule with some bits flipped, and its digest made good again.
            for _ in 0..1 + next() % 3 {
                let at = (next() % 72) as usize;
                bytes[at] ^= 1 << (next() % 8);
            }
            if digests.header {
                let good = digest(&bytes[..72]);
                bytes[72..76].copy_from_slice(&good);
            }
        }
        rig.send(io, &bytes);
        let _ = rig.state(io).inbox.len();
        rig.hang_up(io);
        assert_eq!(rig.target.counts().in_flight, 0);
    }
}

#[test]
fn a_host_that_gives_up_is_let_go() {
    let mut rig = Rig::new();
    let (_, io) = rig.queues(Digests::NONE, false);
    let error = ob_wire_nvme::pdu::PduError::sequence();
    rig.send(io, &error.encode(ob_wire_nvme::pdu::Role::Initiator, &[1, 2, 3]));
    assert!(rig.state(io).is_closed);
    assert!(rig.messages(io).iter().all(|message| !matches!(message.pdu, Pdu::Termination(_))));
}
