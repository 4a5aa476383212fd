//! Reads and writes of 4 KiB have the target allocate nothing, from bytes to bytes; and what the device read is what is sent. Alone in its
//! process: it counts what the allocator does.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test stops at the first thing that is not as it should be.

#[path = "../../ob-io/tests/counting/mod.rs"]
mod counting;
mod support;

use std::io::IoSlice;

use counting::allocations;
use ob_nvme::target::TargetConfig;
use ob_wire_nvme::DataPointer;
use ob_wire_nvme::command::IoOpcode;
use ob_wire_nvme::pdu::{DataTransfer, Digests};
use support::{BLOCK, Client, Rig, pattern};

const BLOCKS: u32 = 8;
const LEN: usize = BLOCKS as usize * BLOCK;
const WARM: u64 = 100;
const ROUNDS: u64 = 1000;

/// Puts one command into a client's stream, and nothing follows from it yet.
fn put(rig: &mut Rig, client: Client, opcode: IoOpcode, data: &[u8]) {
    let pointer = match opcode {
        IoOpcode::Read => DataPointer::Transport { len: LEN as u32 },
        _ => DataPointer::InCapsule { offset: 0, len: LEN as u32 },
    };
    let entry = rig.entry(client, opcode, 16, BLOCKS, pointer);
    let bytes = rig.capsule(client, &entry, data);
    rig.state(client).outbox.extend(bytes);
}

#[test]
fn reads_and_writes_allocate_nothing() {
    let mut rig = Rig::new();
    let (_admin, client) = rig.queues(Digests::default(), true);
    let data = pattern(3, LEN);
    let mut counted = 0;
    for round in 0..WARM + ROUNDS {
        for opcode in [IoOpcode::Write, IoOpcode::Read] {
            put(&mut rig, client, opcode, if opcode == IoOpcode::Write { &data } else { &[] });
            let before = allocations();
            rig.run();
            if round >= WARM {
                counted += allocations() - before;
            }
            let answer = &mut rig.state(client).inbox;
            assert!(answer.len() > if opcode == IoOpcode::Read { LEN } else { 0 }, "it is answered");
            answer.clear();
            rig.disk.log.clear();
        }
    }
    assert_eq!(counted, 0, "in {} commands", 2 * ROUNDS);
}

/// The longest transfers that a target can be told to take: of a write all data is asked for, and comes in several PDUs.
#[test]
fn long_reads_and_writes_allocate_nothing() {
    const LONG: usize = 1 << 20;
    let mut rig = Rig::with(TargetConfig { transfer_len_max: LONG, ..TargetConfig::default() });
    let (_admin, client) = rig.queues(Digests::default(), true);
    let (data, blocks) = (pattern(5, LONG), (LONG / BLOCK) as u32);
    let mut counted = 0;
    for round in 0..40 {
        let pointer = DataPointer::Transport { len: LONG as u32 };
        for opcode in [IoOpcode::Write, IoOpcode::Read] {
            let entry = rig.entry(client, opcode, 16, blocks, pointer);
            let bytes = rig.capsule(client, &entry, &[]);
            rig.state(client).outbox.extend(bytes);
            let allocated = run(&mut rig);
            counted += if round < 20 { 0 } else { allocated };
            if opcode == IoOpcode::Write {
                let wanted = rig.solicitation(client);
                for (part, bytes) in data.chunks(LONG / 2).enumerate() {
                    let transfer = DataTransfer {
                        command: wanted.command,
                        tag: wanted.tag,
                        offset: (part * LONG / 2) as u32,
                        len: bytes.len() as u32,
                        is_last: part == 1,
                        is_success: false,
                    };
                    let pdu = rig.data_pdu(client, &transfer, bytes);
                    rig.state(client).outbox.extend(pdu);
                }
                let allocated = run(&mut rig);
                counted += if round < 20 { 0 } else { allocated };
            }
            let answer = &mut rig.state(client).inbox;
            assert!(answer.len() > if opcode == IoOpcode::Read { LONG } else { 0 }, "it is answered");
            answer.clear();
            rig.disk.log.clear();
        }
    }
    assert_eq!(rig.disk.bytes[16 * BLOCK..][..LONG], data);
    assert_eq!(counted, 0);
}

/// Does what there is to do; how often memory was allocated.
fn run(rig: &mut Rig) -> u64 {
    let before = allocations();
    rig.run();
    allocations() - before
}

#[test]
fn what_the_device_read_is_what_is_sent() {
    let mut rig = Rig::new();
    let (_admin, client) = rig.queues(Digests::default(), true);
    rig.state(client).is_deaf = true;
    put(&mut rig, client, IoOpcode::Read, &[]);
    rig.run();
    let key = rig.state(client).key.unwrap();
    let mut slices = [IoSlice::new(&[]); 4];
    let count = rig.target.transmit(key, &mut slices);
    let sent = slices[..count].iter().find(|slice| slice.len() == LEN).expect("the data are one slice");
    assert_eq!(sent.as_ptr().addr(), rig.disk.read_into.start, "they were copied");
}
