//! Buffers that stay with whoever serves a command after its answer: who waits for one goes on when it comes back.

// A test that cannot go on should say where.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::support;

use ob_core::{DeviceCompletion, DeviceOp};
use ob_memory::Source;
use ob_nvme::target::TargetConfig;
use ob_wire_nvme::command::IoOpcode;
use ob_wire_nvme::pdu::Digests;
use ob_wire_nvme::{DataPointer, Status};
use support::{BLOCK, Client, Rig, pattern};

/// Answers the write that the disk has, and keeps its buffer.
fn complete_and_retain(rig: &mut Rig) -> Source {
    let (token, op) = rig.disk.queue.pop_front().expect("a write on the device");
    let DeviceOp::Write { offset, mut from, durable } = op else { panic!("not a write: {op:?}") };
    let nothing = from.split_to(0);
    let op = DeviceOp::Write { offset, from: nothing, durable };
    rig.target.completed(DeviceCompletion { token, op, result: Ok(()) });
    rig.run();
    from
}

fn submit_solicited(rig: &mut Rig, client: Client, len: usize) {
    let pointer = DataPointer::Transport { len: len as u32 };
    let entry = rig.entry(client, IoOpcode::Write, 0, (len / BLOCK) as u32, pointer);
    rig.submit(client, &entry, &[]);
}

#[test]
fn a_write_that_waits_for_a_buffer_goes_on_when_a_retained_one_comes_back() {
    const LEN: usize = 128 << 10;
    let mut rig = Rig::with(TargetConfig { transfer_memory: 1 << 20, ..TargetConfig::default() });
    let (_admin, io) = rig.queues(Digests::NONE, false);
    rig.disk.is_held = true;
    let data = pattern(1, LEN);
    let mut retained = Vec::new();
    loop {
        submit_solicited(&mut rig, io, LEN);
        let Some(message) = rig.next(io) else { break };
        let ob_wire_nvme::pdu::Pdu::ReadyToTransfer(wanted) = message.pdu else { panic!("{message:?}") };
        rig.send_wanted(io, &wanted, &data, LEN);
        retained.push(complete_and_retain(&mut rig));
        assert_eq!(rig.response(io).status(), Status::SUCCESS);
    }
    assert_eq!((retained.len(), rig.target.counts().waiting_for_buffer), (4, 1), "all large ones are out");
    assert!(!rig.target.can_go_on());
    assert!(retained.iter().all(|slice| **slice == data), "what is retained is nobody else's");
    retained.pop();
    assert!(rig.target.can_go_on(), "somebody waits for what came back");
    rig.run();
    let wanted = rig.solicitation(io);
    rig.send_wanted(io, &wanted, &data, LEN);
    rig.release_disk();
    assert_eq!(rig.response(io).status(), Status::SUCCESS);
    assert_eq!(rig.target.counts().waiting_for_buffer, 0);
}

#[test]
fn a_connection_that_is_held_up_for_a_capsule_goes_on_when_a_retained_buffer_comes_back() {
    let mut rig = Rig::with(TargetConfig { capsule_buffers: 2, ..TargetConfig::default() });
    let (_admin, io) = rig.queues(Digests::NONE, false);
    rig.disk.is_held = true;
    let mut retained = Vec::new();
    for block in 0..2 {
        rig.write_fused(io, block, &pattern(1, BLOCK), IoOpcode::Write, ob_wire_nvme::command::Fuse::None);
        retained.push(complete_and_retain(&mut rig));
        assert_eq!(rig.response(io).status(), Status::SUCCESS);
    }
    rig.write_fused(io, 2, &pattern(2, BLOCK), IoOpcode::Write, ob_wire_nvme::command::Fuse::None);
    assert_eq!(rig.target.counts().held_up, 1);
    assert!(!rig.target.can_go_on());
    drop(retained);
    assert!(rig.target.can_go_on());
    rig.release_disk();
    assert_eq!(rig.response(io).status(), Status::SUCCESS);
}
