//! Transfers as long as a target says that it takes, up to 1 MiB, beside short ones.

// A test that cannot go on should say where.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::support;

use std::net::IpAddr;

use ob_nvme::target::{TRANSFER_LEN_MIN, TargetConfig};
use ob_wire_nvme::command::{Fuse, IoOpcode};
use ob_wire_nvme::identify::{Cns, Identify};
use ob_wire_nvme::log::{GetLogPage, LogPage};
use ob_wire_nvme::pdu::{DataTransfer, Digests, Pdu};
use ob_wire_nvme::{DataPointer, NamespaceId, Status};
use support::{BLOCK, BLOCKS, Client, Rig, Wish, pattern};

const MIB: usize = 1 << 20;

fn wide() -> TargetConfig {
    TargetConfig { transfer_len_max: MIB, ..TargetConfig::default() }
}

/// MDTS, as the controller says it.
fn transfer_shift(rig: &mut Rig, admin: Client) -> u8 {
    let entry = Identify::new(Cns::Controller, NamespaceId::NONE).encode(rig.command_id(admin));
    rig.submit(admin, &entry, &[]);
    let page = rig.next(admin).unwrap().data;
    assert_eq!(rig.response(admin).status(), Status::SUCCESS);
    page[77]
}

#[test]
fn a_target_takes_transfers_as_long_as_it_says_and_no_longer() {
    let said = [(0, 5), (TRANSFER_LEN_MIN, 5), (512 << 10, 7), (MIB - 1, 7), (MIB, 8), (MIB + 4096, 8)];
    for (transfer_len_max, shift) in said {
        let mut rig = Rig::with(TargetConfig { transfer_len_max, ..TargetConfig::default() });
        let (admin, io) = rig.queues(Digests::BOTH, true);
        assert_eq!(transfer_shift(&mut rig, admin), shift, "{transfer_len_max}");
        let len = 4096 << shift;
        let data = pattern(shift, len);
        // All of it in one PDU, in some, and in many.
        for (round, piece) in [len, 200_000.min(len), 4096].into_iter().enumerate() {
            let at = 512 * round as u64;
            assert_eq!(rig.write_solicited(io, at, &data, piece).status(), Status::SUCCESS);
            assert_eq!(rig.read(io, at, (len / BLOCK) as u32), data);
            assert_eq!(rig.disk.bytes[at as usize * BLOCK..][..len], data);
        }
        let too_much = (len / BLOCK) as u32 + 1;
        for opcode in [IoOpcode::Read, IoOpcode::Write, IoOpcode::Compare] {
            let pointer = DataPointer::Transport { len: too_much * BLOCK as u32 };
            let entry = rig.entry(io, opcode, 0, too_much, pointer);
            rig.submit(io, &entry, &[]);
            assert!(rig.response(io).status().is(Status::INVALID_FIELD), "{opcode:?}");
        }
        // A comparison may be as long, and Verify longer: it has no transfer.
        let pointer = DataPointer::Transport { len: len as u32 };
        let entry = rig.entry(io, IoOpcode::Compare, 1024, (len / BLOCK) as u32, pointer);
        rig.submit(io, &entry, &[]);
        let wanted = rig.solicitation(io);
        rig.send_wanted(io, &wanted, &data, len);
        assert_eq!(rig.response(io).status(), Status::SUCCESS);
        assert_eq!(rig.simple(io, IoOpcode::Verify, 0, BLOCKS as u32).status(), Status::SUCCESS);
        assert_eq!((rig.target.counts().in_flight, rig.target.memory_used()), (0, 0));
    }
}

/// What is no I/O lies in memory that nobody is lent, and is no longer than it was.
#[test]
fn a_log_is_no_longer_because_transfers_are() {
    let mut rig = Rig::with(wide());
    let (admin, _) = rig.queues(Digests::NONE, true);
    for (len, is_given) in [(TRANSFER_LEN_MIN, true), (TRANSFER_LEN_MIN + 4, false)] {
        let log = GetLogPage {
            page: LogPage::Smart.code(),
            specific: 0,
            retain_event: true,
            specific_id: 0,
            offset: 0,
            len: len as u64,
            command_set: 0,
            namespace: NamespaceId::ALL,
        };
        let entry = log.encode(rig.command_id(admin));
        rig.submit(admin, &entry, &[]);
        match rig.next(admin).unwrap().pdu {
            Pdu::Data(transfer) => assert!(is_given && transfer.len as usize == len),
            Pdu::Response(response) => {
                assert!(!is_given && response.status().is(Status::INVALID_FIELD), "{response:?}");
            }
            other => panic!("{other:?}"),
        }
        rig.messages(admin);
    }
}

/// Who sends a long payload is not received from until it is all there.
#[test]
fn a_long_payload_is_received_in_parts() {
    let mut rig = Rig::with(wide());
    let (_, io) = rig.queues(Digests::NONE, true);
    let data = pattern(3, MIB);
    let pointer = DataPointer::Transport { len: MIB as u32 };
    let entry = rig.entry(io, IoOpcode::Write, 0, (MIB / BLOCK) as u32, pointer);
    rig.submit(io, &entry, &[]);
    let wanted = rig.solicitation(io);
    let all = DataTransfer {
        command: wanted.command,
        tag: wanted.tag,
        offset: 0,
        len: MIB as u32,
        is_last: true,
        is_success: false,
    };
    let bytes = rig.data_pdu(io, &all, &data);
    let (first, rest) = bytes.split_at(1000);
    rig.send(io, first);
    assert_eq!(rig.places(io), [TRANSFER_LEN_MIN, 0], "behind that is payload, too");
    let (middle, last) = rest.split_at(rest.len() - 5000);
    rig.send(io, middle);
    assert_eq!(rig.places(io)[0], 5000);
    assert!(rig.places(io)[1] > 0, "the next header may come behind it");
    rig.send(io, last);
    assert_eq!(rig.response(io).status(), Status::SUCCESS);
    assert_eq!(rig.disk.bytes[..MIB], data);
}

/// Takes all that the target gives, of every length, and gives nothing back.
fn hold_all(rig: &mut Rig, client: Client) {
    rig.state(client).is_deaf = true;
    for blocks in [2048, 256, 2048, 32, 8, 1, 2048] {
        for _ in 0..8 {
            rig.submit_read(client, 0, blocks);
            let pointer = DataPointer::Transport { len: blocks * BLOCK as u32 };
            let entry = rig.entry(client, IoOpcode::Write, 0, blocks, pointer);
            rig.submit(client, &entry, &[]);
        }
    }
}

fn connect(rig: &mut Rig, host: u8) -> Client {
    let wish = Wish { entries: 128, host_id: [host; 16], ..Wish::default() };
    let (_, controller) = rig.admin_as(Digests::NONE, &wish);
    let io = rig.open(Digests::NONE);
    assert_eq!(rig.connect_as(io, 1, &Wish { controller, ..wish }).status(), Status::SUCCESS);
    io
}

#[test]
fn hostile_addresses_leave_others_long_buffers_and_short_ones() {
    let mut rig = Rig::with(wide());
    for host in 0..24 {
        // Six addresses.
        rig.peer = IpAddr::from([10, 0, 0, 60 + host / 4]);
        let client = connect(&mut rig, 100 + host);
        hold_all(&mut rig, client);
    }
    assert!(rig.target.counts().waiting_for_buffer > 1000, "they want more than they get");
    rig.peer = IpAddr::from([10, 0, 0, 7]);
    let honest = connect(&mut rig, 1);
    for round in 0..10 {
        for blocks in [2048, 256, 32, 8, 1] {
            let data = pattern(round, blocks * BLOCK);
            assert_eq!(rig.write_solicited(honest, 1024, &data, 100_000).status(), Status::SUCCESS);
            assert_eq!(rig.read(honest, 1024, blocks as u32), data);
        }
        let data = pattern(round + 100, 8 * BLOCK);
        rig.write_fused(honest, 100, &data, IoOpcode::Write, Fuse::None);
        assert_eq!(rig.response(honest).status(), Status::SUCCESS);
    }
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

/// A command has one buffer, for which it waits with none: whatever is short, and however it is shared, all come to their ends.
#[test]
fn commands_of_all_lengths_wait_for_buffers_and_none_for_ever() {
    const COMMANDS: usize = 40;
    for seed in 0..6 {
        let mut dice = Dice(seed);
        // Four of the longest, and as few of the others.
        let mut rig = Rig::with(TargetConfig { transfer_memory: MIB, transfers_max: 2, ..wide() });
        let (_, controller) = rig.admin(Digests::NONE);
        let clients: Vec<Client> = (1..=4)
            .map(|queue| {
                let io = rig.open(Digests::NONE);
                let wish = Wish { controller, entries: 128, ..Wish::default() };
                assert_eq!(rig.connect_as(io, queue, &wish).status(), Status::SUCCESS);
                io
            })
            .collect();
        rig.disk.is_held = true;
        for client in &clients {
            for _ in 0..COMMANDS {
                let blocks = [1, 8, 32, 256, 2048][dice.below(5)];
                if dice.below(2) == 0 {
                    rig.submit_read(*client, 0, blocks);
                } else {
                    let pointer = DataPointer::Transport { len: blocks * BLOCK as u32 };
                    let entry = rig.entry(*client, IoOpcode::Write, 0, blocks, pointer);
                    rig.submit(*client, &entry, &[]);
                }
            }
        }
        assert!(rig.target.counts().waiting_for_buffer > 100);
        let mut answered = [0; 4];
        loop {
            let mut did = false;
            for (client, answered) in clients.iter().zip(&mut answered) {
                for message in rig.messages(*client) {
                    did = true;
                    match message.pdu {
                        Pdu::ReadyToTransfer(wanted) => {
                            let data = pattern(1, wanted.len as usize);
                            rig.send_wanted(*client, &wanted, &data, 300_000);
                        }
                        Pdu::Response(response) => {
                            assert_eq!(response.status(), Status::SUCCESS);
                            *answered += 1;
                        }
                        Pdu::Data(_) => {}
                        other => panic!("{other:?}"),
                    }
                }
            }
            if !rig.disk.queue.is_empty() {
                did = true;
                let index = dice.below(rig.disk.queue.len());
                rig.complete(index);
                rig.run();
            }
            if !did {
                break;
            }
        }
        assert_eq!(answered, [COMMANDS; 4], "seed {seed}: {:?}", rig.target.counts());
        assert_eq!((rig.target.counts().in_flight, rig.target.memory_used()), (0, 0));
    }
}
