//! Payload memory and connections are shared: whoever holds all that it can get leaves the others theirs.

// Tests may panic; what they test may not.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::net::IpAddr;

use ob_nvme::auth::{HostAuthenticator, HostConfig, HostStep, Policy, Secret, SecretSize};
use ob_nvme::target::TargetConfig;
use ob_nvme::target::control::{BackendId, HostPolicy, HostSecrets, HostSpec, NamespaceSpec, SubsystemSpec};
use ob_wire_nvme::auth::{GroupId, HashId};
use ob_wire_nvme::command::{Fuse, IoOpcode};
use ob_wire_nvme::fabrics::AuthenticationTransfer;
use ob_wire_nvme::pdu::{Digests, Pdu};
use ob_wire_nvme::text::Nqn;
use ob_wire_nvme::{CommandId, ControllerId, DataPointer, Status};
use support::*;

const PROVED: &str = "nqn.2026-01.example:proved";

fn address(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

/// A host with one I/O queue; `host` makes it another one than the others.
fn connect(rig: &mut Rig, host: u8, subsystem: &'static str) -> Client {
    let wish =
        |controller| Wish { entries: 128, host_id: [host; 16], controller, subsystem, ..Wish::default() };
    let admin = rig.open(Digests::NONE);
    let response = rig.connect_as(admin, 0, &wish(ControllerId::DYNAMIC));
    assert_eq!(response.status(), Status::SUCCESS);
    if subsystem == PROVED {
        authenticate(rig, admin);
    }
    rig.enable(admin);
    let io = rig.open(Digests::NONE);
    let response = rig.connect_as(io, 1, &wish(ControllerId(response.result() as u16)));
    assert_eq!(response.status(), Status::SUCCESS);
    if subsystem == PROVED {
        authenticate(rig, io);
    }
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

fn authenticate(rig: &mut Rig, client: Client) {
    let config = HostConfig {
        host: Nqn::new(HOST).unwrap(),
        subsystem: Nqn::new(PROVED).unwrap(),
        host_secret: secret(),
        controller_secret: None,
        policy: Policy { hashes: vec![HashId::Sha256], groups: vec![GroupId::Null] },
    };
    let mut host = HostAuthenticator::new(config, 5);
    loop {
        match host.step() {
            HostStep::Send(message) => {
                let message = message.to_vec();
                let len = message.len() as u32;
                let command = rig.command_id(client);
                let data = DataPointer::InCapsule { offset: 0, len };
                let entry = AuthenticationTransfer { to_host: false, len }.encode(command, data);
                rig.submit(client, &entry, &message);
                assert_eq!(rig.response(client).status(), Status::SUCCESS);
                host.sent();
            }
            HostStep::Receive { allocation_len: len } => {
                let command = rig.command_id(client);
                let data = DataPointer::Transport { len };
                let entry = AuthenticationTransfer { to_host: true, len }.encode(command, data);
                rig.submit(client, &entry, &[]);
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

#[test]
fn a_host_that_proved_its_name_has_a_share_of_its_own_whatever_its_address() {
    let (mut control, open) = control();
    let secrets = Some(HostSecrets { host: secret(), controller: None });
    let hosts = HostPolicy::Listed(vec![HostSpec { nqn: Nqn::new(HOST).unwrap(), secrets }]);
    let spec = SubsystemSpec { hosts, ..SubsystemSpec::open(Nqn::new(PROVED).unwrap(), "SN2") };
    let subsystem = control.add_subsystem(spec).unwrap();
    let namespace = NamespaceSpec {
        nsid: Some(1),
        backend: BackendId(0),
        blocks: BLOCKS,
        block_len: BLOCK as u32,
        uuid: [8; 16],
        nguid: [0; 16],
        volatile_cache: true,
        deallocated_reads_zero: false,
        ana_group: 1,
        read_only: false,
    };
    control.add_namespace(subsystem, &namespace).unwrap();
    let config = TargetConfig { transfer_memory: 1 << 20, ..TargetConfig::default() };
    let mut rig = Rig::with_control(config, control.with_random(|bytes| bytes.fill(3)), open);
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
