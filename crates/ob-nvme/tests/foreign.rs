//! Commands that a service behind the target answers: chains of reads, and namespaces whose payload stays in card memory.

// A test that cannot go on should say where.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::chains;
use crate::support;

use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;

use chains::{CHAIN, Chains, NODE, node};
use ob_core::DeviceOp;
use ob_memory::Shared;
use ob_nvme::target::control::{AnaState, Backing, NamespaceSpec, PortKey};
use ob_nvme::target::{
    Answer, ForeignCommand, ForeignEvent, ForeignKey, ForeignOpcode, LendError, Loan, Target, TargetConfig,
};
use ob_wire_nvme::command::{Fuse, IoOpcode};
use ob_wire_nvme::io::{
    BlockCommand, PersistChange, ReservationAcquire, ReservationAcquireAction, ReservationRegister,
    ReservationRegisterAction, ReservationType,
};
use ob_wire_nvme::pdu::{Digests, Pdu};
use ob_wire_nvme::{CommandId, DataPointer, NamespaceId, Status, SubmissionEntry};
use support::{BLOCK, BLOCKS, Client, Rig, Wish, namespace, pattern};

/// A command of a service that brings data.
const SEND: u8 = 0xC1;
/// Data goes both ways.
const EXCHANGE: u8 = 0xC3;
/// One without data.
pub(crate) const BARE: u8 = 0xC0;
/// The namespace of a service.
const VOLUME: u32 = 2;

pub(crate) fn config() -> TargetConfig {
    let foreign = [
        Some(chains::opcode()),
        ForeignOpcode::new(SEND, 64 << 10),
        ForeignOpcode::new(BARE, 0),
        ForeignOpcode::new(EXCHANGE, 4096),
    ];
    TargetConfig { foreign: foreign.into_iter().flatten().collect(), ..TargetConfig::default() }
}

pub(crate) fn rig() -> Rig {
    rig_with(config())
}

pub(crate) fn rig_with(config: TargetConfig) -> Rig {
    let mut rig = Rig::with(config);
    let spec = NamespaceSpec { backing: Backing::Foreign, ..namespace(VOLUME, 8) };
    rig.target.control_mut().add_namespace(rig.subsystem, &spec).unwrap();
    rig.run();
    rig
}

/// The I/O queue of a host beside the usual one.
fn other_host(rig: &mut Rig) -> Client {
    let wish = Wish { host_id: [3; 16], ..Wish::default() };
    let (_, controller) = rig.admin_as(Digests::NONE, &wish);
    let io = rig.open(Digests::NONE);
    assert_eq!(rig.connect_as(io, 1, &Wish { controller, ..wish }).status(), Status::SUCCESS);
    io
}

fn register(rig: &mut Rig, io: Client, nsid: u32, key: u64) {
    let (action, persist) = (ReservationRegisterAction::Register, PersistChange::Keep);
    let register = ReservationRegister { action, ignore_key: false, persist };
    let command = rig.command_id(io);
    let entry = register.encode(command, NamespaceId(nsid), DataPointer::InCapsule { offset: 0, len: 16 });
    rig.submit(io, &entry, &[[0; 8], key.to_le_bytes()].concat());
    assert_eq!(rig.response(io).status(), Status::SUCCESS);
}

fn acquire(
    rig: &mut Rig,
    io: Client,
    nsid: u32,
    action: ReservationAcquireAction,
    kind: ReservationType,
    keys: [u64; 2],
) {
    let command = rig.command_id(io);
    let acquire = ReservationAcquire { action, ignore_key: false, kind };
    let entry = acquire.encode(command, NamespaceId(nsid), DataPointer::InCapsule { offset: 0, len: 16 });
    rig.submit(io, &entry, &keys.map(u64::to_le_bytes).concat());
}

pub(crate) fn vendor(
    rig: &mut Rig,
    client: Client,
    opcode: u8,
    nsid: u32,
    data: DataPointer,
) -> SubmissionEntry {
    let command = rig.command_id(client);
    SubmissionEntry::new(opcode, command, NamespaceId(nsid)).with_data(data)
}

pub(crate) fn submit_chain(rig: &mut Rig, client: Client, first: u64) -> CommandId {
    let mut entry = vendor(rig, client, CHAIN, 1, DataPointer::Transport { len: 8 });
    entry.dword10 = (first as u32).into();
    entry.dword11 = ((first >> 32) as u32).into();
    rig.submit(client, &entry, &[]);
    entry.command()
}

/// Lets target and service do what they can.
pub(crate) fn run(rig: &mut Rig, chains: &mut Chains) {
    loop {
        rig.run();
        if !chains.turn(&mut rig.target) {
            return;
        }
    }
}

pub(crate) fn next_command(rig: &mut Rig) -> ForeignCommand {
    match rig.target.next_foreign() {
        Some(ForeignEvent::Command(command)) => command,
        other => panic!("not a command: {other:?}"),
    }
}

/// Has a command lent a buffer, which there is.
pub(crate) fn lend(rig: &mut Rig, key: ForeignKey, len: usize) -> Loan {
    rig.target.lend(key, &[len]).unwrap();
    match rig.target.next_foreign() {
        Some(ForeignEvent::Lent { key: lent, loans: [Some(loan), None, None, None] }) if lent == key => loan,
        other => panic!("not lent: {other:?}"),
    }
}

pub(crate) fn expect_ended(rig: &mut Rig, key: ForeignKey) {
    match rig.target.next_foreign() {
        Some(ForeignEvent::Ended(ended)) => assert_eq!(ended, key),
        other => panic!("not an end: {other:?}"),
    }
}

/// A response, or data and a response, to a chain: the sum and how many reads there were.
fn chain_answer(rig: &mut Rig, client: Client) -> (CommandId, u64, u64) {
    let message = rig.next(client).expect("data");
    let Pdu::Data(transfer) = message.pdu else { panic!("not data: {:?}", message.pdu) };
    assert_eq!((message.data.len(), transfer.is_success), (8, false), "the number of reads has to be said");
    let response = rig.response(client);
    assert_eq!((response.status(), response.command()), (Status::SUCCESS, transfer.command));
    (transfer.command, u64::from_le_bytes(message.data.try_into().unwrap()), response.result())
}

pub(crate) fn put_list(rig: &mut Rig, offsets: &[u64], value: u64) {
    for (index, offset) in offsets.iter().enumerate() {
        let next = offsets.get(index + 1).copied().unwrap_or(0);
        rig.disk.bytes[*offset as usize..][..NODE].copy_from_slice(&node(next, value + index as u64));
    }
}

fn write_volume(rig: &mut Rig, client: Client, block: u64, data: &[u8]) -> CommandId {
    let command = rig.command_id(client);
    let pointer = DataPointer::InCapsule { offset: 0, len: data.len() as u32 };
    let blocks = (data.len() / BLOCK) as u32;
    let entry =
        BlockCommand::new(NamespaceId(VOLUME), block, blocks).encode(IoOpcode::Write, command, pointer);
    rig.submit(client, &entry, data);
    command
}

fn read_volume(rig: &mut Rig, client: Client, block: u64, blocks: u32) -> CommandId {
    let command = rig.command_id(client);
    let pointer = DataPointer::Transport { len: blocks * BLOCK as u32 };
    let entry =
        BlockCommand::new(NamespaceId(VOLUME), block, blocks).encode(IoOpcode::Read, command, pointer);
    rig.submit(client, &entry, &[]);
    command
}

#[test]
fn seven_dependent_reads_are_one_command_and_nothing_is_copied() {
    let mut rig = rig();
    let (_admin, io) = rig.queues(Digests::NONE, true);
    let offsets: Vec<u64> = (0..7).map(|step| 4096 + step * 7919 % 512 * BLOCK as u64).collect();
    put_list(&mut rig, &offsets, 1000);
    let mut chains = Chains::new();
    rig.disk.is_held = true;
    let command = submit_chain(&mut rig, io, offsets[0]);
    let mut read_at = Vec::new();
    for offset in &offsets {
        run(&mut rig, &mut chains);
        let [(_, DeviceOp::Read { offset: at, into })] = rig.disk.queue.make_contiguous() else {
            panic!("one read at a time")
        };
        assert_eq!((*at, into.len()), (*offset, NODE));
        read_at.push(into.as_ptr().addr());
        rig.complete(0);
    }
    rig.state(io).is_deaf = true;
    run(&mut rig, &mut chains);
    assert_eq!(chains.seen_at, read_at, "the program looked at the device's own buffers");
    let key = rig.state(io).key.unwrap();
    let mut slices = [IoSlice::new(&[]); 4];
    let count = rig.target.transmit(key, &mut slices);
    let scratch = slices[..count].iter().find(|slice| slice.len() == 8).expect("the answer");
    let arenas = rig.target.arenas();
    let lies_in =
        |address: usize| arenas.iter().any(|arena| (arena.base..arena.base + arena.len).contains(&address));
    assert!(lies_in(scratch.as_ptr().addr()), "it is sent from the buffer that was lent");
    rig.listen_again(io);
    assert_eq!(chain_answer(&mut rig, io), (command, (1000..1007).sum(), 7));
    rig.disk.is_held = false;
    let ordinary: u64 = offsets
        .iter()
        .map(|offset| u64::from_le_bytes(rig.read(io, offset / BLOCK as u64, 1)[8..16].try_into().unwrap()))
        .sum();
    assert_eq!(ordinary, (1000..1007).sum());
    assert_eq!((rig.target.memory_used(), rig.target.counts().in_flight), (0, 0));
    assert_eq!((rig.target.counts().foreign, rig.target.counts().foreign_reads), (1, 7));
    assert!(!rig.target.can_go_on() && chains.is_idle());
}

#[test]
fn more_chains_than_there_are_buffers_all_come_to_their_end() {
    // One small block and a few longer ones for everybody.
    let mut rig = rig_with(TargetConfig { transfer_memory: 1 << 10, ..config() });
    let lists: Vec<Vec<u64>> = (0..8)
        .map(|list: u64| (0..7).map(|step| ((list * 7 + step) * 37 % 500 + 8) * BLOCK as u64).collect())
        .collect();
    for (list, offsets) in lists.iter().enumerate() {
        put_list(&mut rig, offsets, 100 * list as u64);
    }
    let (_admin, controller) = rig.admin(Digests::NONE);
    let ios = [1, 2, 3].map(|queue| rig.io_queue(Digests::NONE, controller, queue, false));
    let mut chains = Chains::new();
    rig.disk.is_held = true;
    let mut expected: BTreeMap<(usize, CommandId), u64> = BTreeMap::new();
    for round in 0..24_u64 {
        for (index, io) in ios.iter().enumerate() {
            let list = (round + index as u64) % 8;
            let command = submit_chain(&mut rig, *io, lists[list as usize][0]);
            expected.insert((index, command), 700 * list + 21);
        }
        // Ordinary writes go on beside them.
        rig.write_fused(ios[0], 4000 + round % 8, &pattern(1, BLOCK), IoOpcode::Write, Fuse::None);
        run(&mut rig, &mut chains);
    }
    assert!(rig.target.counts().buffers_exhausted > 0, "there are not enough");
    rig.disk.is_held = false;
    run(&mut rig, &mut chains);
    let mut writes = 0;
    for (index, io) in ios.iter().enumerate() {
        while let Some(message) = rig.next(*io) {
            let Pdu::Data(transfer) = message.pdu else {
                writes += 1;
                continue;
            };
            let sum = u64::from_le_bytes(message.data.try_into().unwrap());
            assert_eq!(expected.remove(&(index, transfer.command)), Some(sum), "answered once, and right");
            assert_eq!(rig.response(*io).result(), 7);
        }
    }
    assert_eq!((expected.len(), writes, chains.answered), (0, 24, 72));
    assert_eq!((rig.target.memory_used(), rig.target.counts().in_flight), (0, 0));
}

#[test]
fn data_comes_whole_and_answers_carry_a_number() {
    for (len, is_solicited) in [(512, false), (8192, false), (512, true), (64 << 10, true)] {
        let mut rig = rig();
        let (_admin, io) = rig.queues(Digests::BOTH, false);
        let data = pattern(3, len);
        let pointer = match is_solicited {
            true => DataPointer::Transport { len: len as u32 },
            false => DataPointer::InCapsule { offset: 0, len: len as u32 },
        };
        let entry = vendor(&mut rig, io, SEND, 0, pointer);
        rig.submit(io, &entry, if is_solicited { &[] } else { &data });
        if is_solicited {
            assert!(rig.target.next_foreign().is_none(), "its data is not there");
            let wanted = rig.solicitation(io);
            rig.send_wanted(io, &wanted, &data, 5000);
        }
        assert!(rig.target.can_go_on());
        let command = next_command(&mut rig);
        assert_eq!(command.data.as_deref(), Some(&data[..]));
        assert_eq!((command.entry.opcode, command.namespace, command.answer_len_max), (SEND, None, 0));
        assert!(!rig.target.can_go_on(), "the service has it");
        assert_eq!(rig.target.counts().in_service, 1);
        rig.target.foreign_done(command.key, Ok(Answer::Nothing), 0x1234_5678_9abc_def0);
        assert!(rig.target.can_go_on(), "there is something to send");
        drop(command.data);
        rig.run();
        let response = rig.response(io);
        assert_eq!((response.command(), response.status()), (entry.command(), Status::SUCCESS));
        assert_eq!(response.result(), 0x1234_5678_9abc_def0);
        // It is over: nothing more can be said of it.
        rig.target.foreign_done(command.key, Err(Status::INTERNAL_ERROR), 0);
        assert_eq!(rig.target.lend(command.key, &[512]), Err(LendError::Gone));
        rig.run();
        assert!(rig.next(io).is_none());
        assert_eq!((rig.target.memory_used(), rig.target.counts().in_flight), (0, 0));
        assert!(!rig.target.can_go_on());
    }
}

/// What the host sends is in the capsule, and how much it gets, the service knows; never more than the opcode allows.
#[test]
fn data_goes_both_ways_in_one_command() {
    for (sent, answered) in [(512, 512), (40, 4096), (4096, 8), (100, 0), (100, 5000)] {
        let mut rig = rig();
        let (_admin, io) = rig.queues(Digests::BOTH, false);
        let data = pattern(5, sent);
        let entry = vendor(&mut rig, io, EXCHANGE, 0, DataPointer::InCapsule { offset: 0, len: sent as u32 });
        rig.submit(io, &entry, &data);
        let command = next_command(&mut rig);
        assert_eq!((command.data.as_deref(), command.answer_len_max), (Some(&data[..]), 4096));
        drop(command.data);
        let answer = match answered {
            0 => Answer::Nothing,
            len => {
                rig.target.lend(command.key, &[len]).unwrap();
                let Some(ForeignEvent::Lent { loans: [Some(mut loan), ..], .. }) = rig.target.next_foreign()
                else {
                    panic!("nothing was lent")
                };
                loan.copy_from_slice(&pattern(6, len));
                Answer::Loan(loan)
            }
        };
        rig.target.foreign_done(command.key, Ok(answer), 7);
        rig.run();
        if answered > 0 {
            let message = rig.next(io).expect("data");
            assert!(matches!(message.pdu, Pdu::Data(_)));
            assert_eq!(message.data, pattern(6, answered)[..answered.min(4096)]);
        }
        let response = rig.response(io);
        assert_eq!((response.status(), response.result()), (Status::SUCCESS, 7));
        assert_eq!((rig.target.memory_used(), rig.target.counts().in_flight), (0, 0));
    }
    // By data PDUs it cannot be asked for: nobody could say which of both ways they are for.
    let mut rig = rig();
    let (_admin, io) = rig.queues(Digests::NONE, false);
    for (pointer, status) in [
        (DataPointer::Transport { len: 512 }, Status::INVALID_SGL_TYPE),
        (DataPointer::Transport { len: 8192 }, Status::INVALID_FIELD),
    ] {
        let entry = vendor(&mut rig, io, EXCHANGE, 0, pointer);
        rig.submit(io, &entry, &[]);
        rig.run();
        assert!(rig.response(io).status().is(status), "{pointer:?}");
    }
}

#[test]
fn only_what_is_listed_is_handed_out() {
    assert!(ForeignOpcode::new(0x7F, 0).is_none() && ForeignOpcode::new(0x01, 512).is_none());
    assert!(ForeignOpcode::new(0xC1, (128 << 10) + 1).is_none());
    let mut rig = rig();
    let (_admin, io) = rig.queues(Digests::NONE, false);
    let too_long = DataPointer::Transport { len: (64 << 10) + 4 };
    let capsule = DataPointer::InCapsule { offset: 0, len: 512 };
    let unknown_namespace = Status::INVALID_NAMESPACE;
    for (opcode, nsid, pointer, fuse, status) in [
        (0xC4, 1, DataPointer::None, Fuse::None, Status::INVALID_OPCODE),
        (0x81, 1, DataPointer::None, Fuse::None, Status::INVALID_OPCODE),
        (SEND, 0, too_long, Fuse::None, Status::INVALID_FIELD),
        (CHAIN, 1, capsule, Fuse::None, Status::INVALID_SGL_TYPE),
        (BARE, 7, DataPointer::None, Fuse::None, unknown_namespace),
        (BARE, u32::MAX, DataPointer::None, Fuse::None, unknown_namespace),
        (BARE, 0, DataPointer::None, Fuse::First, Status::INVALID_FIELD),
        (BARE, 0, DataPointer::None, Fuse::Second, Status::ABORTED_MISSING_FUSED),
    ] {
        let entry = vendor(&mut rig, io, opcode, nsid, pointer).with_fuse(fuse);
        let data = if pointer == capsule { vec![0; 512] } else { Vec::new() };
        rig.submit(io, &entry, &data);
        let found = rig.response(io).status();
        assert!(found.is(status), "{opcode:#x} {nsid} {pointer:?}: {found:?}");
        assert!(rig.target.next_foreign().is_none());
    }
    let entry = vendor(&mut rig, io, BARE, 0, DataPointer::None);
    rig.submit(io, &entry, &[]);
    assert_eq!(next_command(&mut rig).entry, entry);
    assert_eq!(rig.target.memory_used(), 0);
}

#[test]
fn a_second_half_that_is_a_services_takes_the_first_along() {
    let mut rig = rig();
    let (_admin, io) = rig.queues(Digests::NONE, false);
    let first = rig.write_fused(io, 0, &pattern(0, BLOCK), IoOpcode::Compare, Fuse::First);
    let second = vendor(&mut rig, io, BARE, 1, DataPointer::None).with_fuse(Fuse::Second);
    rig.submit(io, &second, &[]);
    let mut answers: Vec<(CommandId, bool)> = (0..2)
        .map(|_| rig.response(io))
        .map(|response| (response.command(), response.status().is_success()))
        .collect();
    answers.sort_unstable();
    assert_eq!(answers, [(first, false), (second.command(), false)]);
    assert!(rig.target.next_foreign().is_none());
}

#[test]
fn a_chain_is_admitted_anew_at_each_step() {
    type Change = fn(&mut Rig);
    let changes: [(Change, Status); 3] = [
        (
            |rig| {
                rig.target.control_mut().remove_namespace(rig.subsystem, 1).unwrap();
            },
            Status::INVALID_NAMESPACE,
        ),
        (
            |rig| {
                let (subsystem, state) = (rig.subsystem, AnaState::Inaccessible);
                rig.target.control_mut().set_ana_state(subsystem, PortKey(1), 1, state).unwrap();
            },
            Status::ANA_INACCESSIBLE,
        ),
        (
            |rig| rig.target.control_mut().resize_namespace(rig.subsystem, 1, 4).unwrap(),
            Status::LBA_OUT_OF_RANGE,
        ),
    ];
    for (change, status) in changes {
        let mut rig = rig();
        let (_admin, io) = rig.queues(Digests::NONE, false);
        put_list(&mut rig, &[0, 10 * BLOCK as u64, 20 * BLOCK as u64], 1);
        let mut chains = Chains::new();
        rig.disk.is_held = true;
        submit_chain(&mut rig, io, 0);
        run(&mut rig, &mut chains);
        change(&mut rig);
        rig.complete(0);
        run(&mut rig, &mut chains);
        assert!(rig.disk.queue.is_empty(), "the second read is not made");
        let found = rig.response(io).status();
        assert!(found.is(status), "{found:?}");
        assert_eq!((chains.refused, rig.target.memory_used()), (1, 0));
    }
}

#[test]
fn what_changed_while_something_waited_stops_it() {
    let mut rig = rig();
    let (_admin, lost) = rig.queues(Digests::NONE, false);
    let io = other_host(&mut rig);
    let mut chains = Chains::new();
    rig.disk.is_held = true;
    rig.write_fused(lost, 8, &node(0, 77), IoOpcode::Write, Fuse::None);
    rig.hang_up(lost);
    // A read that waits for a range, and a command whose data has not come.
    submit_chain(&mut rig, io, 8 * BLOCK as u64);
    run(&mut rig, &mut chains);
    let entry = vendor(&mut rig, io, SEND, 1, DataPointer::Transport { len: 512 });
    rig.submit(io, &entry, &[]);
    let wanted = rig.solicitation(io);
    let (subsystem, state) = (rig.subsystem, AnaState::Inaccessible);
    rig.target.control_mut().set_ana_state(subsystem, PortKey(1), 1, state).unwrap();
    rig.complete(0);
    run(&mut rig, &mut chains);
    assert!(rig.disk.queue.is_empty(), "the read was not made");
    assert!(rig.response(io).status().is(Status::ANA_INACCESSIBLE));
    rig.send_wanted(io, &wanted, &[0; 512], 512);
    assert!(rig.target.next_foreign().is_none());
    assert!(rig.response(io).status().is(Status::ANA_INACCESSIBLE));
    assert_eq!((rig.target.memory_used(), rig.target.counts().in_flight), (0, 0));
}

#[test]
fn reservations_hold_for_services_too() {
    let mut rig = rig();
    let (_admin, one) = rig.queues(Digests::NONE, false);
    let two = other_host(&mut rig);
    for nsid in [1, VOLUME] {
        for (io, key) in [(one, 1), (two, 2)] {
            register(&mut rig, io, nsid, key);
        }
    }
    // A chain that has begun goes no further when the namespace becomes somebody else's.
    let mut chains = Chains::new();
    put_list(&mut rig, &[0, 512], 1);
    rig.disk.is_held = true;
    submit_chain(&mut rig, two, 0);
    run(&mut rig, &mut chains);
    let kind = ReservationType::ExclusiveAccess;
    acquire(&mut rig, one, 1, ReservationAcquireAction::Acquire, kind, [1, 0]);
    assert_eq!(rig.response(one).status(), Status::SUCCESS);
    rig.complete(0);
    run(&mut rig, &mut chains);
    assert!(rig.response(two).status().is(Status::RESERVATION_CONFLICT));
    // A write of a host that is preempted with abort is over before that is answered.
    let kind = ReservationType::WriteExclusive;
    acquire(&mut rig, two, VOLUME, ReservationAcquireAction::Acquire, kind, [2, 0]);
    assert_eq!(rig.response(two).status(), Status::SUCCESS);
    write_volume(&mut rig, two, 0, &pattern(1, BLOCK));
    let write = next_command(&mut rig);
    acquire(&mut rig, one, VOLUME, ReservationAcquireAction::PreemptAndAbort, kind, [1, 2]);
    assert!(rig.next(one).is_none());
    rig.target.foreign_done(write.key, Ok(Answer::Nothing), 0);
    rig.run();
    assert_eq!((rig.response(one).status(), rig.response(two).status()), (Status::SUCCESS, Status::SUCCESS));
    write_volume(&mut rig, two, 0, &pattern(1, BLOCK));
    assert!(rig.target.next_foreign().is_none());
}

#[test]
fn reads_for_a_service_are_checked() {
    let mut rig = rig();
    let (_admin, io) = rig.queues(Digests::NONE, false);
    let entry = vendor(&mut rig, io, BARE, 0, DataPointer::None);
    rig.submit(io, &entry, &[]);
    let key = next_command(&mut rig).key;
    let end = BLOCKS * BLOCK as u64;
    for (nsid, offset, len, status) in [
        (1, 0, 0, Status::INVALID_FIELD),
        (1, 256, 512, Status::INVALID_FIELD),
        (1, 0, 513, Status::INVALID_FIELD),
        (1, end, 512, Status::LBA_OUT_OF_RANGE),
        (1, end - 512, 1024, Status::LBA_OUT_OF_RANGE),
        (1, u64::MAX - 511, 512, Status::LBA_OUT_OF_RANGE),
        (VOLUME, 0, 512, Status::INVALID_NAMESPACE),
        (0, 0, 512, Status::INVALID_NAMESPACE),
        (u32::MAX, 0, 512, Status::INVALID_NAMESPACE),
    ] {
        let loan = lend(&mut rig, key, len);
        let refused = rig.target.foreign_read(key, nsid, offset, loan).unwrap_err();
        let found = refused.status;
        assert!(found.is(status), "{nsid} {offset} {len}: {found:?}");
        assert_eq!(refused.into.len(), len);
    }
    // Parts of one buffer are filled by reads of their own, side by side, and are one again.
    rig.disk.bytes[..BLOCK].fill(1);
    rig.disk.bytes[8 * BLOCK..10 * BLOCK].fill(2);
    let mut front = lend(&mut rig, key, 3 * BLOCK);
    let back = front.split_off(BLOCK).unwrap();
    rig.target.foreign_read(key, 1, 0, front).unwrap();
    rig.target.foreign_read(key, 1, 8 * BLOCK as u64, back).unwrap();
    rig.run();
    let mut parts = BTreeMap::new();
    while let Some(ForeignEvent::Read { offset, result, .. }) = rig.target.next_foreign() {
        parts.insert(offset, result.unwrap());
    }
    let (_, front) = parts.pop_first().unwrap();
    let whole = front.join(parts.pop_first().unwrap().1).unwrap();
    assert_eq!(whole[..], [vec![1; BLOCK], vec![2; 2 * BLOCK]].concat());
    drop(whole);
    rig.target.foreign_done(key, Ok(Answer::Nothing), 0);
    assert_eq!(rig.target.memory_used(), 0);
}

#[test]
fn a_chain_waits_for_what_a_lost_connection_left_on_its_range() {
    let mut rig = rig();
    let (_admin, first) = rig.queues(Digests::NONE, false);
    let io = other_host(&mut rig);
    let mut chains = Chains::new();
    rig.disk.is_held = true;
    rig.write_fused(first, 8, &node(0, 77), IoOpcode::Write, Fuse::None);
    rig.hang_up(first);
    submit_chain(&mut rig, io, 8 * BLOCK as u64);
    run(&mut rig, &mut chains);
    assert_eq!(
        (rig.disk.queue.len(), rig.target.counts().waiting_for_range),
        (1, 1),
        "only the write is there"
    );
    rig.complete(0);
    run(&mut rig, &mut chains);
    rig.complete(0);
    run(&mut rig, &mut chains);
    assert_eq!(chain_answer(&mut rig, io).1, 77);
}

#[test]
fn who_is_cut_off_hears_nothing_and_leaves_nothing() {
    let mut rig = rig();
    let (_admin, io) = rig.queues(Digests::NONE, false);
    put_list(&mut rig, &[0, 512, 1024], 1);
    rig.disk.is_held = true;
    // One on a device, one whose read was not submitted, one that the service was not even told of.
    rig.disk.depth = 1;
    let mut chains = Chains::new();
    submit_chain(&mut rig, io, 0);
    submit_chain(&mut rig, io, 512);
    run(&mut rig, &mut chains);
    submit_chain(&mut rig, io, 1024);
    assert_eq!(rig.target.counts().in_flight, 5, "three commands and two reads");
    rig.hang_up(io);
    assert!(rig.target.can_go_on());
    run(&mut rig, &mut chains);
    assert_eq!((chains.ended, chains.is_idle()), (2, true));
    assert_eq!((rig.target.counts().in_flight, rig.disk.queue.len()), (1, 1), "what the device has");
    rig.release_disk();
    run(&mut rig, &mut chains);
    assert_eq!((rig.target.counts().in_flight, rig.target.memory_used()), (0, 0));
    assert!(!rig.target.can_go_on());
}

#[test]
fn a_service_that_never_answers_holds_its_own_commands_only() {
    let mut rig = rig();
    let (_admin, io) = rig.queues(Digests::NONE, false);
    let mut kept = Vec::new();
    for _ in 0..20 {
        let entry = vendor(&mut rig, io, SEND, 1, DataPointer::InCapsule { offset: 0, len: 512 });
        rig.submit(io, &entry, &pattern(1, 512));
        kept.push(next_command(&mut rig));
    }
    assert_eq!(rig.write(io, 3, &pattern(5, BLOCK)).status(), Status::SUCCESS);
    assert_eq!(rig.read(io, 3, 1), pattern(5, BLOCK));
    rig.hang_up(io);
    // The next life of the same host is not kept waiting either: nothing of these changes a namespace.
    let (_admin, io) = rig.queues(Digests::NONE, false);
    assert_eq!(rig.read(io, 3, 1), pattern(5, BLOCK));
    assert_eq!(rig.target.counts().in_service, 20);
    for command in &kept {
        expect_ended(&mut rig, command.key);
        rig.target.foreign_done(command.key, Ok(Answer::Nothing), 1);
    }
    drop(kept);
    rig.run();
    assert_eq!((rig.target.counts().in_flight, rig.target.memory_used()), (0, 0));
    assert!(rig.next(io).is_none());
}

/// The middle tier in small: payload stays on the card and goes to three peers, and the host decides later.
#[derive(Default)]
struct Volume {
    blocks: BTreeMap<u64, Shared>,
    peers: [VecDeque<Shared>; 3],
    /// What the host was told of, and has not answered.
    host: VecDeque<ForeignCommand>,
    ended: usize,
}

impl Volume {
    fn take(&mut self, target: &mut Target) {
        while let Some(event) = target.next_foreign() {
            match event {
                ForeignEvent::Command(command) => self.host.push_back(command),
                ForeignEvent::Ended(_) => self.ended += 1,
                other => panic!("{other:?}"),
            }
        }
    }

    fn answer(&mut self, target: &mut Target) {
        let Some(mut command) = self.host.pop_front() else { return };
        let key = command.key;
        let block = command.offset / BLOCK as u64;
        let answer = match command.data.take() {
            Some(data) => {
                let payload = data.into_slice().share();
                for peer in &mut self.peers {
                    peer.push_back(payload.clone());
                }
                for (index, start) in (0..payload.len()).step_by(BLOCK).enumerate() {
                    self.blocks.insert(block + index as u64, payload.part(start..start + BLOCK).unwrap());
                }
                Answer::Nothing
            }
            None if command.answer_len_max > 0 => Answer::Shared(self.blocks[&block].clone()),
            None => Answer::Nothing,
        };
        target.foreign_done(key, Ok(answer), 0);
    }
}

#[test]
fn a_services_namespace_keeps_payload_in_card_memory_and_sends_it_to_three() {
    let mut rig = rig();
    let (_admin, io) = rig.queues(Digests::NONE, true);
    let mut volume = Volume::default();
    let data = pattern(9, 4 * BLOCK);
    let write = write_volume(&mut rig, io, 16, &data);
    volume.take(&mut rig.target);
    let command = volume.host.front().unwrap();
    assert_eq!((command.offset, command.len, command.entry.command()), (16 * 512, 4 * 512, write));
    assert_eq!(command.entry.dwords10_11(), 16, "the host sees the header as it came");
    let arrived_at = command.data.as_ref().unwrap().as_ptr();
    rig.run();
    assert!(rig.next(io).is_none(), "nobody has answered");
    volume.answer(&mut rig.target);
    rig.run();
    assert_eq!((rig.response(io).command(), rig.disk.log.len()), (write, 0));
    for peer in &volume.peers {
        assert_eq!((peer[0].as_ptr(), &peer[0][..]), (arrived_at, &data[..]), "one copy for all of them");
    }
    // Reads are answered from the same memory, while peers still send it.
    for block in 0..4 {
        rig.state(io).is_deaf = true;
        let read = read_volume(&mut rig, io, 16 + block, 1);
        volume.take(&mut rig.target);
        volume.answer(&mut rig.target);
        rig.run();
        let key = rig.state(io).key.unwrap();
        let mut slices = [IoSlice::new(&[]); 4];
        let count = rig.target.transmit(key, &mut slices);
        let from = arrived_at.wrapping_add(block as usize * BLOCK);
        assert!(slices[..count].iter().any(|slice| slice.as_ptr() == from), "sent from where it is");
        rig.listen_again(io);
        let message = rig.next(io).unwrap();
        let Pdu::Data(transfer) = message.pdu else { panic!("{message:?}") };
        assert_eq!((transfer.command, transfer.is_success), (read, true));
        assert_eq!(message.data, data[block as usize * BLOCK..][..BLOCK]);
    }
    let used = rig.target.memory_used();
    volume.peers = Default::default();
    assert_eq!((rig.target.memory_used(), used > 0), (used, true), "the volume has it");
    volume.blocks.clear();
    assert_eq!((rig.target.memory_used(), rig.target.counts().in_flight), (0, 0));
}

#[test]
fn what_the_host_is_told_in_a_services_namespace() {
    let mut rig = rig();
    let (_admin, io) = rig.queues(Digests::NONE, false);
    let status = |rig: &mut Rig, entry: SubmissionEntry, data: &[u8]| {
        rig.submit(io, &entry, data);
        rig.response(io).status()
    };
    // Bounds are checked before anybody is asked.
    let command = rig.command_id(io);
    let beyond = BlockCommand::new(NamespaceId(VOLUME), BLOCKS, 1);
    let read = DataPointer::Transport { len: 512 };
    let found = status(&mut rig, beyond.encode(IoOpcode::Read, command, read), &[]);
    assert_eq!(found, Status::LBA_OUT_OF_RANGE.with_do_not_retry());
    // No comparisons yet, alone or in a pair.
    let capsule = DataPointer::InCapsule { offset: 0, len: 512 };
    for fuse in [Fuse::None, Fuse::First] {
        let command = rig.command_id(io);
        let entry = BlockCommand::new(NamespaceId(VOLUME), 0, 1).encode(IoOpcode::Compare, command, capsule);
        let found = status(&mut rig, entry.with_fuse(fuse), &[0; 512]);
        assert_eq!(found, Status::INVALID_OPCODE.with_do_not_retry());
    }
    let command = rig.command_id(io);
    let entry = BlockCommand::new(NamespaceId(VOLUME), 0, 1).encode(IoOpcode::Write, command, capsule);
    let found = status(&mut rig, entry.with_fuse(Fuse::Second), &[0; 512]);
    assert_eq!(found, Status::ABORTED_FAILED_FUSED);
    assert!(rig.target.next_foreign().is_none());
    // Commands without data come out too; a service's error is the host's.
    for opcode in [IoOpcode::Flush, IoOpcode::WriteZeroes, IoOpcode::Verify] {
        let command = rig.command_id(io);
        let entry = BlockCommand::new(NamespaceId(VOLUME), 5, 2).encode(opcode, command, DataPointer::None);
        rig.submit(io, &entry, &[]);
        let command = next_command(&mut rig);
        assert_eq!(command.entry.opcode, opcode.code());
        rig.target.foreign_done(command.key, Err(Status::WRITE_FAULT), 0);
        rig.run();
        assert_eq!(rig.response(io).status(), Status::WRITE_FAULT);
    }
    // A read that is answered with another length fails, and is never short.
    for len in [0, 512, 4096] {
        read_volume(&mut rig, io, 0, 2);
        let command = next_command(&mut rig);
        assert_eq!(command.answer_len_max, 1024);
        let loan = lend(&mut rig, command.key, len);
        rig.target.foreign_done(command.key, Ok(Answer::Loan(loan)), 0);
        rig.run();
        assert_eq!(rig.response(io).status(), Status::INTERNAL_ERROR);
    }
    assert_eq!(rig.target.memory_used(), 0);
}

#[test]
fn a_write_that_a_service_still_has_keeps_its_range() {
    let mut rig = rig();
    let (_admin, io) = rig.queues(Digests::NONE, false);
    write_volume(&mut rig, io, 8, &pattern(1, 2 * BLOCK));
    let write = next_command(&mut rig);
    rig.hang_up(io);
    expect_ended(&mut rig, write.key);
    // Another host reads there: it waits. Beside it nobody does.
    let other = other_host(&mut rig);
    read_volume(&mut rig, other, 9, 1);
    assert!(rig.target.next_foreign().is_none());
    assert_eq!(rig.target.counts().waiting_for_range, 1);
    read_volume(&mut rig, other, 10, 1);
    let beside = next_command(&mut rig);
    assert_eq!(beside.offset, 10 * 512);
    // The same host comes back: its Connect is not answered before its write is over.
    let admin = rig.open(Digests::NONE);
    rig.submit_connect(admin, 0, &Wish::default());
    assert!(rig.next(admin).is_none());
    rig.target.foreign_done(write.key, Ok(Answer::Nothing), 0);
    drop(write.data);
    assert!(rig.target.can_go_on());
    rig.run();
    assert_eq!(rig.response(admin).status(), Status::SUCCESS);
    let ended = rig.target.next_foreign();
    assert!(
        matches!(ended, Some(ForeignEvent::ControllerEnded(controller)) if controller == write.queue.controller)
    );
    assert_eq!(next_command(&mut rig).offset, 9 * 512);
    assert_eq!(rig.target.counts().orphans, 0);
}
