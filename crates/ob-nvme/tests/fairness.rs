//! Payload memory and connections are shared: whoever holds all that it can get leaves the others theirs.

// Tests may panic; what they test may not.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::support;

use std::net::IpAddr;

use ob_nvme::auth::{HostAuthenticator, HostConfig, HostStep, Policy, Secret, SecretSize};
use ob_nvme::target::TargetConfig;
use ob_nvme::target::control::{HostPolicy, HostSecrets, HostSpec, SubsystemSpec};
use ob_wire_nvme::auth::{GroupId, HashId};
use ob_wire_nvme::command::{Fuse, IoOpcode};
use ob_wire_nvme::fabrics::AuthenticationTransfer;
use ob_wire_nvme::io::{BlockCommand, BlockRange, DatasetManagement};
use ob_wire_nvme::pdu::{Digests, Pdu};
use ob_wire_nvme::text::Nqn;
use ob_wire_nvme::{CommandId, ControllerId, DataPointer, NamespaceId, Status};
use support::*;
use zerocopy::IntoBytes;

const PROVED: &str = "nqn.2026-01.example:proved";

fn address(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

/// A host with one I/O queue; `host` makes it another one than the others.
fn connect(rig: &mut Rig, host: u8, subsystem: &'static str) -> Client {
    let io = connect_unproved(rig, host, subsystem);
    if subsystem == PROVED {
        authenticate(rig, io, GroupId::Null);
    }
    io
}

/// The same for one who has proved nothing on its I/O queue.
fn connect_unproved(rig: &mut Rig, host: u8, subsystem: &'static str) -> Client {
    let wish =
        |controller| Wish { entries: 128, host_id: [host; 16], controller, subsystem, ..Wish::default() };
    let admin = rig.open(Digests::NONE);
    let response = rig.connect_as(admin, 0, &wish(ControllerId::DYNAMIC));
    assert_eq!(response.status(), Status::SUCCESS);
    if subsystem == PROVED {
        authenticate(rig, admin, GroupId::Null);
    }
    rig.enable(admin);
    let io = rig.open(Digests::NONE);
    let response = rig.connect_as(io, 1, &wish(ControllerId(response.result() as u16)));
    assert_eq!(response.status(), Status::SUCCESS);
    io
}

/// Takes all that the target gives: data that it asks for never comes, and data that it sends is never taken.
fn hold_all(rig: &mut Rig, client: Client) {
    rig.state(client).is_deaf = true;
    let pointer = DataPointer::Transport { len: 256 * BLOCK as u32 };
    let entry = rig.entry(client, IoOpcode::Compare, 0, 256, pointer);
    rig.submit(client, &entry, &[]);
    for blocks in [256, 256, 32, 8, 1] {
        for _ in 0..12 {
            rig.submit_read(client, 0, blocks);
            let pointer = DataPointer::Transport { len: blocks * BLOCK as u32 };
            let entry = rig.entry(client, IoOpcode::Write, 0, blocks, pointer);
            rig.submit(client, &entry, &[]);
        }
    }
    // A capsule whose data stops in the middle.
    let data = pattern(1, 8192);
    let pointer = DataPointer::InCapsule { offset: 0, len: 8192 };
    let entry = rig.entry(client, IoOpcode::Write, 0, 16, pointer);
    let bytes = rig.capsule(client, &entry, &data);
    rig.send(client, &bytes[..5000]);
}

/// All kinds of commands, each of which must be done when everything that can happen without the hostile ones has.
fn work(rig: &mut Rig, client: Client) {
    for round in 0..20 {
        let data = pattern(round, 256 * BLOCK);
        assert_eq!(rig.write_solicited(client, 1024, &data, 50_000).status(), Status::SUCCESS);
        assert_eq!(rig.read(client, 1024, 256), data);
        for blocks in [1, 8, 16] {
            let data = pattern(round + 100, blocks * BLOCK);
            assert_eq!(rig.write(client, 2048, &data).status(), Status::SUCCESS);
            assert_eq!(rig.read(client, 2048, blocks as u32), data);
            rig.write_fused(client, 2048, &data, IoOpcode::Compare, Fuse::None);
            assert_eq!(rig.response(client).status(), Status::SUCCESS);
        }
    }
}

#[test]
fn a_hostile_address_leaves_others_their_share() {
    let mut rig = Rig::with(TargetConfig { capsule_buffers: 16, ..TargetConfig::default() });
    rig.peer = address(66);
    let hostile: Vec<Client> = (0..40).map(|host| connect(&mut rig, 100 + host, NQN)).collect();
    rig.peer = address(7);
    let before = connect(&mut rig, 1, NQN);
    for client in hostile {
        hold_all(&mut rig, client);
    }
    assert!(rig.target.counts().waiting_for_buffer > 1000, "they want more than they get");
    assert!(rig.target.counts().held_up > 0, "of buffers for capsules too");
    work(&mut rig, before);
    let after = connect(&mut rig, 2, NQN);
    work(&mut rig, after);
}

#[test]
fn many_hostile_addresses_leave_others_their_share() {
    let mut rig =
        Rig::with(TargetConfig { capsule_buffers: 32, compares_max: 64, ..TargetConfig::default() });
    let hostile: Vec<Client> = (0..48)
        .map(|host| {
            rig.peer = address(60 + host / 4);
            connect(&mut rig, 100 + host, NQN)
        })
        .collect();
    for client in hostile {
        hold_all(&mut rig, client);
    }
    rig.peer = address(7);
    let honest = connect(&mut rig, 1, NQN);
    work(&mut rig, honest);
}

#[test]
fn hostile_connections_leave_others_of_their_address_a_share() {
    let mut rig =
        Rig::with(TargetConfig { capsule_buffers: 256, compares_max: 256, ..TargetConfig::default() });
    for host in 0..20 {
        let client = connect(&mut rig, 100 + host, NQN);
        hold_all(&mut rig, client);
    }
    let honest = connect(&mut rig, 1, NQN);
    work(&mut rig, honest);
}

fn secret() -> Secret {
    Secret::generate(SecretSize::Bytes32, None, &mut |bytes: &mut [u8]| bytes.fill(1))
}

fn authenticator(group: GroupId) -> HostAuthenticator {
    let config = HostConfig {
        host: Nqn::new(HOST).unwrap(),
        subsystem: Nqn::new(PROVED).unwrap(),
        host_secret: secret(),
        controller_secret: None,
        policy: Policy { hashes: vec![HashId::Sha256], groups: vec![group] },
    };
    HostAuthenticator::new(config, 5)
}

/// The bytes of an Authentication Send.
fn authentication_send(rig: &mut Rig, client: Client, message: &[u8]) -> Vec<u8> {
    let len = message.len() as u32;
    let command = rig.command_id(client);
    let data = DataPointer::InCapsule { offset: 0, len };
    let entry = AuthenticationTransfer { to_host: false, len }.encode(command, data);
    rig.capsule(client, &entry, message)
}

/// The bytes of an Authentication Receive.
fn authentication_receive(rig: &mut Rig, client: Client, len: u32) -> Vec<u8> {
    let command = rig.command_id(client);
    let entry = AuthenticationTransfer { to_host: true, len }.encode(command, DataPointer::Transport { len });
    rig.capsule(client, &entry, &[])
}

fn authenticate(rig: &mut Rig, client: Client, group: GroupId) {
    let mut host = authenticator(group);
    loop {
        match host.step() {
            HostStep::Send(message) => {
                let message = message.to_vec();
                let bytes = authentication_send(rig, client, &message);
                rig.send(client, &bytes);
                assert_eq!(rig.response(client).status(), Status::SUCCESS);
                host.sent();
            }
            HostStep::Receive { allocation_len: len } => {
                let bytes = authentication_receive(rig, client, len);
                rig.send(client, &bytes);
                let message = rig.next(client).expect("a message");
                assert!(matches!(message.pdu, Pdu::Data(_)));
                assert_eq!(rig.response(client).status(), Status::SUCCESS);
                host.received(&message.data, &mut |bytes: &mut [u8]| bytes.fill(9));
            }
            HostStep::Done => return,
            HostStep::Failed(reason) => panic!("{reason:?}"),
        }
    }
}

/// A target with a second subsystem, whose host has to prove its name.
fn rig_with_secrets(config: TargetConfig) -> Rig {
    let (mut control, open) = control();
    let secrets = Some(HostSecrets { host: secret(), controller: None });
    let hosts = HostPolicy::Listed(vec![HostSpec { nqn: Nqn::new(HOST).unwrap(), secrets }]);
    let spec = SubsystemSpec { hosts, ..SubsystemSpec::open(Nqn::new(PROVED).unwrap(), "SN2") };
    let subsystem = control.add_subsystem(spec).unwrap();
    control.add_namespace(subsystem, &namespace(1, 8)).unwrap();
    Rig::with_control(config, control.with_random(|bytes| bytes.fill(3)), open)
}

#[test]
fn a_host_that_proved_its_name_has_a_share_of_its_own_whatever_its_address() {
    let config = TargetConfig { transfer_memory: 1 << 20, ..TargetConfig::default() };
    let mut rig = rig_with_secrets(config);
    for host in 0..4 {
        let client = connect(&mut rig, 100 + host, NQN);
        hold_all(&mut rig, client);
    }
    let nameless = connect(&mut rig, 1, NQN);
    rig.submit_read(nameless, 0, 256);
    assert!(rig.next(nameless).is_none(), "its address has its share");
    let proved = connect(&mut rig, 2, PROVED);
    assert_eq!(rig.read(proved, 0, 256).len(), 256 * BLOCK);
}

/// Names of hosts and numbers of controllers are no secrets: whoever knows them can have such a connection.
#[test]
fn an_io_queue_gets_what_payload_needs_with_its_proof() {
    let config = TargetConfig::default();
    let mut rig = rig_with_secrets(config.clone());
    let io = connect_unproved(&mut rig, 1, PROVED);
    assert_eq!(rig.places(io), [0, config.control_receive_len]);
    authenticate(&mut rig, io, GroupId::Null);
    assert_eq!(rig.places(io), [0, config.receive_len]);
    assert_eq!(rig.read(io, 0, 8).len(), 8 * BLOCK);
}

#[test]
fn what_a_connection_held_is_free_when_it_ends() {
    let mut rig = Rig::with(TargetConfig { transfer_memory: 1 << 20, ..TargetConfig::default() });
    for round in 0..50 {
        let client = connect(&mut rig, 1, NQN);
        rig.disk.is_held = round % 2 == 0;
        hold_all(&mut rig, client);
        rig.hang_up(client);
        rig.release_disk();
        assert_eq!(rig.target.counts().in_flight, 0);
    }
    let honest = connect(&mut rig, 2, NQN);
    let commands: Vec<CommandId> = (0..2).map(|_| rig.submit_read(honest, 0, 256)).collect();
    assert_eq!(rig.messages(honest).len(), 2 * commands.len());
}

/// Opens connections that say nothing, or no more than it takes to be open, or have the discovery service, as anybody may.
fn crowd(rig: &mut Rig, count: usize) {
    for number in 0..count {
        if number % 3 == 0 {
            rig.client();
            continue;
        }
        let client = rig.open(Digests::NONE);
        if number % 3 == 1 {
            let wish = Wish { subsystem: "nqn.2014-08.org.nvmexpress.discovery", ..Wish::default() };
            assert_eq!(rig.connect_as(client, 0, &wish).status(), Status::SUCCESS);
        }
    }
}

#[test]
fn connections_that_anybody_could_have_keep_nobody_out() {
    const MAX: usize = 64;
    let mut rig = Rig::with(TargetConfig { connections_max: MAX, ..TargetConfig::default() });
    let established = connect(&mut rig, 1, NQN);
    rig.peer = address(66);
    crowd(&mut rig, MAX);
    assert_eq!(rig.target.counts().connections, MAX as u64);
    // A host that comes now, and takes its time, with more hostile connections after each of its own.
    rig.peer = address(7);
    let slow = rig.open(Digests::NONE);
    rig.peer = address(66);
    crowd(&mut rig, 4 * MAX);
    rig.peer = address(7);
    let response = rig.connect_as(slow, 0, &Wish { host_id: [2; 16], ..Wish::default() });
    assert_eq!(response.status(), Status::SUCCESS, "it was let in, and not closed for those who came later");
    for last in 70..80 {
        rig.peer = address(last);
        crowd(&mut rig, MAX);
        // A host of the same address has a chance too: who came first goes first.
        let neighbour = connect(&mut rig, last, NQN);
        work(&mut rig, neighbour);
    }
    work(&mut rig, established);
    assert!(!rig.state(slow).is_closed);
    assert_eq!(rig.target.counts().connections, MAX as u64);
}

#[test]
fn queues_are_not_closed_for_connections_that_come_later() {
    let mut rig = Rig::with(TargetConfig { connections_max: 8, ..TargetConfig::default() });
    let hosts = [1, 2, 3, 4].map(|host| connect(&mut rig, host, NQN));
    rig.peer = address(66);
    for _ in 0..20 {
        let late = rig.client();
        assert!(rig.state(late).is_closed, "there is no room, and nobody makes any");
    }
    assert_eq!(rig.target.counts().refused, 20);
    for host in hosts {
        work(&mut rig, host);
    }
}

/// A connection whose host has to prove its name.
fn unproved(rig: &mut Rig, host: u8) -> Client {
    let client = rig.open(Digests::NONE);
    let wish = Wish { host_id: [host; 16], subsystem: PROVED, ..Wish::default() };
    assert_eq!(rig.connect_as(client, 0, &wish).status(), Status::SUCCESS);
    client
}

/// Says all that it takes to have the target compute; nothing is delivered yet.
fn demand(rig: &mut Rig, client: Client) {
    let mut authenticator = authenticator(GroupId::Ffdhe2048);
    let HostStep::Send(message) = authenticator.step() else { panic!("Negotiate") };
    let negotiate = authentication_send(rig, client, message);
    authenticator.sent();
    let HostStep::Receive { allocation_len } = authenticator.step() else { panic!("Challenge") };
    let receive = authentication_receive(rig, client, allocation_len);
    rig.state(client).outbox.extend(negotiate.iter().chain(&receive));
}

/// What a driver does in a turn; which of the clients got their challenges.
fn turn(rig: &mut Rig, clients: &[Client]) -> Vec<Client> {
    for client in 0..rig.clients.len() {
        rig.deliver_some(Client(client), usize::MAX);
    }
    rig.settle();
    let is_challenged = |rig: &mut Rig, client| {
        rig.messages(client).iter().any(|message| matches!(message.pdu, Pdu::Data(_)))
    };
    clients.iter().copied().filter(|client| is_challenged(rig, *client)).collect()
}

#[test]
fn authentications_compute_one_at_a_time_and_nobody_else_waits_for_more_than_that() {
    let mut rig = rig_with_secrets(TargetConfig::default());
    let established = connect(&mut rig, 1, NQN);
    rig.peer = address(66);
    let mut clients: Vec<Client> = (0..8).map(|host| unproved(&mut rig, 100 + host)).collect();
    rig.peer = address(3);
    let honest = unproved(&mut rig, 2);
    clients.push(honest);
    clients.iter().for_each(|client| demand(&mut rig, *client));
    // Who asks again before it was answered gets no more by it.
    let impatient = clients[0];
    let again = authentication_receive(&mut rig, impatient, 4096);
    rig.state(impatient).outbox.extend(again);
    let command = rig.command_id(established);
    let entry = BlockCommand::new(NamespaceId(1), 0, 1).encode(
        IoOpcode::Read,
        command,
        DataPointer::Transport { len: BLOCK as u32 },
    );
    let read = rig.capsule(established, &entry, &[]);
    rig.state(established).outbox.extend(read);

    let mut order = Vec::new();
    // One goes away with its computation still to come.
    let gone = clients[5];
    for round in 0..20 {
        let proofs = rig.target.counts().proofs;
        let challenged = turn(&mut rig, &clients);
        assert!(rig.target.counts().proofs <= proofs + 1 && challenged.len() <= 1, "{challenged:?}");
        order.extend(challenged);
        if round == 0 {
            assert_eq!(
                rig.messages(established).len(),
                2,
                "its read is answered before anything is computed"
            );
            assert_eq!(rig.target.counts().waiting_for_proof, 8);
            assert!(rig.target.can_go_on());
            rig.hang_up_quietly(gone);
            assert_eq!(rig.target.counts().waiting_for_proof, 7, "it waits no more");
        }
    }
    assert_eq!(order[1], honest, "networks take turns: {order:?}");
    assert_eq!(order.len(), 8, "all but the one that went away");
    assert_eq!((rig.target.counts().proofs, rig.target.can_go_on()), (8, false));
    assert_eq!(rig.target.counts().failed, 1, "the one who asked twice was told so");
}

#[test]
fn whoever_waits_its_turn_is_authenticated_in_the_end() {
    let mut rig = rig_with_secrets(TargetConfig::default());
    let client = unproved(&mut rig, 1);
    authenticate(&mut rig, client, GroupId::Ffdhe2048);
    assert_eq!(rig.target.counts().proofs, 2, "for the challenge, and for the reply");
    rig.enable(client);
}

/// Has a client give space back in one command, with its ranges in the capsule.
fn deallocate(rig: &mut Rig, client: Client, block: u64, blocks: u32) -> CommandId {
    let range = BlockRange { start: block, blocks }.encode();
    let command = rig.command_id(client);
    let pointer = DataPointer::InCapsule { offset: 0, len: range.as_bytes().len() as u32 };
    let entry = DatasetManagement {
        namespace: NamespaceId(1),
        ranges: 1,
        deallocate: true,
        integral_write: false,
        integral_read: false,
    }
    .encode(command, pointer);
    rig.submit(client, &entry, range.as_bytes());
    command
}

/// Completes what the disk has, one operation after the other; which command of which client was answered when.
fn answers(rig: &mut Rig, clients: &[Client]) -> Vec<(CommandId, usize)> {
    let mut answered = Vec::new();
    for done in 1.. {
        if rig.disk.queue.is_empty() {
            return answered;
        }
        rig.complete(0);
        rig.run();
        for client in clients {
            let messages = rig.messages(*client);
            answered.extend(messages.iter().map(|message| match &message.pdu {
                Pdu::Response(entry) => (entry.command(), done),
                other => panic!("{other:?}"),
            }));
        }
    }
    answered
}

#[test]
fn long_commands_of_a_host_are_answered_one_after_the_other_and_hosts_take_turns() {
    const PARTS: usize = 8;
    let config = TargetConfig { zeroes_at_once: 8 * BLOCK as u64, ..TargetConfig::default() };
    let mut rig = Rig::with(config);
    let one = connect(&mut rig, 1, NQN);
    rig.peer = address(7);
    let other = connect(&mut rig, 2, NQN);
    let blocks = 8 * PARTS as u32;
    rig.disk.is_held = true;
    let burst: Vec<CommandId> = (0..3).map(|index| deallocate(&mut rig, one, index * 64, blocks)).collect();
    let in_order = [(burst[0], PARTS), (burst[1], 2 * PARTS), (burst[2], 3 * PARTS)];
    assert_eq!(answers(&mut rig, &[one]), in_order, "alone");
    let burst: Vec<CommandId> = (0..3).map(|index| deallocate(&mut rig, one, index * 64, blocks)).collect();
    let entry = rig.entry(other, IoOpcode::WriteZeroes, 512, blocks, DataPointer::None);
    rig.submit(other, &entry, &[]);
    let answered = answers(&mut rig, &[one, other]);
    let order: Vec<CommandId> = answered.iter().map(|(command, _)| *command).collect();
    assert_eq!(order, [burst[0], entry.command(), burst[1], burst[2]]);
    assert!(answered[1].1 <= 2 * PARTS + 1, "every other operation was the other host's: {answered:?}");
}

/// Linux sends their ranges in the capsule, and more of them than a connection may have buffers for capsules.
#[test]
fn long_commands_do_not_keep_the_buffers_of_capsules() {
    let mut rig = Rig::with(TargetConfig { capsule_buffers: 16, ..TargetConfig::default() });
    let client = connect(&mut rig, 1, NQN);
    rig.disk.is_held = true;
    for index in 0..40 {
        deallocate(&mut rig, client, index, 1);
    }
    rig.write_fused(client, 100, &pattern(1, BLOCK), IoOpcode::Write, Fuse::None);
    let counts = rig.target.counts();
    assert_eq!((counts.held_up, counts.hold_ups_for_buffer, counts.in_flight), (0, 0, 41));
    rig.release_disk();
    assert_eq!(rig.messages(client).len(), 41);
}

/// The data that its first half waits for lies behind it, and behind capsules that may have to wait for a buffer.
#[test]
fn half_a_pair_that_waits_does_not_keep_the_buffer_of_its_capsule() {
    let mut rig = Rig::with(TargetConfig { capsule_buffers: 2, ..TargetConfig::default() });
    let client = connect(&mut rig, 1, NQN);
    let data = pattern(1, BLOCK);
    let pointer = DataPointer::Transport { len: BLOCK as u32 };
    let first = rig.entry(client, IoOpcode::Compare, 0, 1, pointer).with_fuse(Fuse::First);
    rig.submit(client, &first, &[]);
    let wanted = rig.solicitation(client);
    rig.write_fused(client, 0, &data, IoOpcode::Write, Fuse::Second);
    assert_eq!(rig.write(client, 8, &data).status(), Status::SUCCESS, "its capsule has a buffer");
    rig.send_wanted(client, &wanted, &[0; BLOCK], BLOCK);
    assert_eq!(rig.messages(client).len(), 2);
    assert_eq!(rig.disk.bytes[..BLOCK], data);
}

#[test]
fn a_pair_that_waits_costs_others_nothing() {
    let mut rig = Rig::new();
    let client = connect(&mut rig, 1, NQN);
    rig.disk.is_held = true;
    for block in 0..100 {
        rig.submit_read(client, 1000 + block, 1);
    }
    rig.submit_read(client, 0, 1);
    let data = pattern(0, BLOCK);
    rig.write_fused(client, 0, &data, IoOpcode::Compare, Fuse::First);
    rig.write_fused(client, 0, &data, IoOpcode::Write, Fuse::Second);
    assert_eq!((rig.target.counts().waiting_for_range, rig.disk.queue.len()), (1, 101));
    let looks = rig.target.counts().pair_looks;
    for _ in 0..1000 {
        rig.target.pump(rig.now);
    }
    let looks = rig.target.counts().pair_looks - looks;
    assert!(looks <= 1000, "{looks} commands were looked at for a pair that waits for one");
    rig.release_disk();
    assert_eq!((rig.target.counts().waiting_for_range, rig.target.counts().in_flight), (0, 0));
}

#[test]
fn an_account_that_has_its_share_is_not_asked_for_by_each_of_its_connections() {
    const HOSTILE: u64 = 100;
    let mut rig = Rig::new();
    rig.peer = address(66);
    for host in 0..HOSTILE {
        let client = connect(&mut rig, 100 + host as u8, NQN);
        hold_all(&mut rig, client);
    }
    rig.peer = address(7);
    let honest = connect(&mut rig, 1, NQN);
    rig.read(honest, 0, 1);
    let refusals = rig.target.counts().buffer_refusals;
    rig.read(honest, 0, 1);
    let refusals = rig.target.counts().buffer_refusals - refusals;
    // One read gives its buffer back in two steps, and each of them is looked at once.
    assert!(refusals < HOSTILE, "{refusals} of {HOSTILE} connections were asked");
}
