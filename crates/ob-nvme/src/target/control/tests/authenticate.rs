//! Hosts with secrets: nothing but fabrics commands until they have proved who they are, queue by queue.

use ob_wire_nvme::auth::{GroupId, HashId};
use ob_wire_nvme::fabrics::AuthenticationTransfer;

use super::*;
use crate::auth::{HostAuthenticator, HostConfig, HostStep, Policy, Secret, SecretSize};

fn secret(fill: u8) -> Secret {
    Secret::generate(SecretSize::Bytes32, None, &mut |bytes: &mut [u8]| bytes.fill(fill))
}

fn policy() -> Policy {
    Policy { hashes: vec![HashId::Sha256], groups: vec![GroupId::Null] }
}

fn stage() -> Stage {
    let secrets = HostSecrets { host: secret(1), controller: Some(secret(2)) };
    let hosts = HostPolicy::Listed(vec![HostSpec { nqn: host_nqn(1), secrets: Some(secrets) }]);
    let spec = SubsystemSpec { hosts, ..SubsystemSpec::open(subsystem_nqn(), "1") };
    let config = ControlConfig { authentication_policy: policy(), ..ControlConfig::default() };
    Stage::with(config, spec)
}

fn host(host_secret: Secret) -> HostAuthenticator {
    let config = HostConfig {
        host: host_nqn(1),
        subsystem: subsystem_nqn(),
        host_secret,
        controller_secret: Some(secret(2)),
        policy: policy(),
    };
    HostAuthenticator::new(config, 5)
}

/// Runs an authentication to its end; whether the host is content.
fn authenticate(stage: &mut Stage, queue: QueueIdentity, mut host: HostAuthenticator) -> bool {
    loop {
        match host.step() {
            HostStep::Send(message) => {
                let transfer = AuthenticationTransfer { to_host: false, len: message.len() as u32 };
                let data = DataPointer::InCapsule { offset: 0, len: transfer.len };
                let entry = transfer.encode(CommandId(1), data);
                let message = message.to_vec();
                assert_eq!(status_of(&stage.command(queue, &entry, &message)), Status::SUCCESS);
                host.sent();
            }
            HostStep::Receive { allocation_len } => {
                let transfer = AuthenticationTransfer { to_host: true, len: allocation_len };
                let data = DataPointer::Transport { len: allocation_len };
                let message = bytes_of(stage.command(queue, &transfer.encode(CommandId(1), data), &[]));
                host.received(&message, &mut |bytes: &mut [u8]| bytes.fill(9));
            }
            HostStep::Done => return true,
            HostStep::Failed(_) => return false,
        }
    }
}

#[test]
fn a_host_proves_itself_on_every_queue() {
    let mut stage = stage();
    let connected = stage.connect(1);
    assert!(connected.authentication_required);
    assert_eq!(connected.result, u32::from(connected.cntlid.0) | 1 << 17);
    let admin = connected.identity;
    stage.enable(admin);
    let refusal = refused(Status::AUTHENTICATION_REQUIRED);
    assert_eq!(stage.identify(admin, Cns::Controller, 0), refusal);
    let connect = Connect { queue: QueueId(1), ..admin_connect() };
    let mine = ConnectParties { controller: connected.cntlid, ..parties(1) };
    assert!(stage.try_connect(connect, &mine).is_err(), "no I/O queue before");
    assert!(authenticate(&mut stage, admin, host(secret(1))));
    bytes_of(stage.identify(admin, Cns::Controller, 0));
    let io = stage.try_connect(connect, &mine).unwrap();
    assert!(io.authentication_required);
    let namespace = stage.control.namespace(admin.controller, 1).unwrap();
    let status = stage.control.admit(io.identity, namespace, Access::Read);
    assert_eq!(status, Err(Status::AUTHENTICATION_REQUIRED.with_do_not_retry()));
    assert!(authenticate(&mut stage, io.identity, host(secret(1))));
    let namespace = stage.control.namespace(admin.controller, 1).unwrap();
    assert_eq!(stage.control.admit(io.identity, namespace, Access::Read), Ok(()));
    // Whoever comes for a queue that is there has not proved anything yet, and replaces nobody; it may try again.
    let taken = ConnectError::other(Status::COMMAND_SEQUENCE_ERROR);
    assert_eq!(stage.try_connect(connect, &mine), Err(taken));
    stage.control.disconnected(io.identity);
    assert!(stage.try_connect(connect, &mine).is_ok());
}

#[test]
fn a_wrong_secret_ends_the_queue() {
    let mut stage = stage();
    let admin = stage.connect(1).identity;
    stage.enable(admin);
    assert!(!authenticate(&mut stage, admin, host(secret(3))));
    let closed = ControlEvent::CloseQueue { queue: admin, reason: CloseReason::NotAuthentic };
    assert!(stage.events().contains(&closed));
    assert_eq!(stage.identify(admin, Cns::Controller, 0), refused(Status::AUTHENTICATION_REQUIRED));
}

#[test]
fn only_an_authentic_host_replaces_its_earlier_life() {
    let mut stage = stage();
    let first = stage.connect(1);
    assert!(authenticate(&mut stage, first.identity, host(secret(1))));
    let impostor = stage.connect(1);
    assert!(impostor.superseded.is_empty());
    assert_eq!(stage.control.controllers(), 2);
    assert!(stage.events().is_empty());
    assert!(authenticate(&mut stage, impostor.identity, host(secret(1))));
    let closed = ControlEvent::CloseController {
        controller: first.identity.controller,
        queues: vec![QueueId::ADMIN],
        reason: CloseReason::Superseded,
    };
    assert_eq!(stage.events(), [closed]);
}

#[test]
fn who_does_not_authenticate_in_time_is_closed() {
    let mut stage = stage();
    let connect = Connect { keep_alive_ms: 0, ..admin_connect() };
    stage.try_connect(connect, &parties(1)).unwrap();
    assert_eq!(stage.control.next_due(), Some(seconds(31)));
    stage.control.tick(seconds(31));
    assert!(matches!(
        stage.events()[..],
        [ControlEvent::CloseController { reason: CloseReason::NotAuthentic, .. }]
    ));
}

#[test]
fn a_queue_that_does_not_authenticate_in_time_ends_alone() {
    let mut stage = stage();
    let connect = Connect { keep_alive_ms: 0, ..admin_connect() };
    let admin = stage.try_connect(connect, &parties(1)).unwrap();
    stage.enable(admin.identity);
    assert!(authenticate(&mut stage, admin.identity, host(secret(1))));
    assert_eq!(
        stage.control.next_due(),
        Some(seconds(31)),
        "it has proved itself, which nobody has looked at yet"
    );
    stage.control.tick(seconds(31));
    assert_eq!((stage.events(), stage.control.next_due()), (vec![], None));
    // Who knows the names of host and controller gets this far, and no farther.
    stage.now = seconds(40);
    let mine = ConnectParties { controller: admin.cntlid, ..parties(1) };
    let impostor = stage.try_connect(Connect { queue: QueueId(2), ..connect }, &mine).unwrap().identity;
    assert_eq!(stage.control.next_due(), Some(seconds(70)));
    stage.control.tick(seconds(70));
    let closed = ControlEvent::CloseQueue { queue: impostor, reason: CloseReason::NotAuthentic };
    assert_eq!(stage.events(), [closed]);
    assert_eq!((stage.control.controllers(), stage.control.next_due()), (1, None));
    bytes_of(stage.identify(admin.identity, Cns::Controller, 0));
    assert!(stage.try_connect(Connect { queue: QueueId(2), ..connect }, &mine).is_ok(), "the queue is free");
}

/// A ready controller of the host that has proved itself on its admin queue, and how its I/O queues connect.
fn proved(stage: &mut Stage) -> (Connected, Connect, ConnectParties) {
    let admin = stage.connect(1);
    stage.enable(admin.identity);
    assert!(authenticate(stage, admin.identity, host(secret(1))));
    let connect = Connect { queue: QueueId(1), ..admin_connect() };
    let mine = ConnectParties { controller: admin.cntlid, ..parties(1) };
    (admin, connect, mine)
}

fn may_read(stage: &Stage, queue: QueueIdentity) -> bool {
    let namespace = stage.control.namespace(queue.controller, 1).unwrap();
    stage.control.admit(queue, namespace, Access::Read).is_ok()
}

/// Names of hosts and numbers of controllers are no secrets.
#[test]
fn strangers_keep_no_host_from_its_queues() {
    let mut stage = stage();
    let (admin, connect, mine) = proved(&mut stage);
    let before = stage.try_connect(connect, &mine).unwrap().identity;
    let host_queue = stage.try_connect(connect, &mine).expect("nobody has proved to be it").identity;
    let after = stage.try_connect(connect, &mine).expect("nor by now").identity;
    assert!(!authenticate(&mut stage, before, host(secret(3))));
    assert!(authenticate(&mut stage, host_queue, host(secret(1))));
    let closed = ControlEvent::CloseQueue { queue: before, reason: CloseReason::NotAuthentic };
    assert_eq!(stage.events(), [closed]);
    stage.control.disconnected(before);
    assert!(may_read(&stage, host_queue) && !may_read(&stage, before) && !may_read(&stage, after));
    // One that proves nothing ends with its time, and the queue stays whose it is.
    stage.now = seconds(8);
    bytes_of(stage.identify(admin.identity, Cns::Controller, 0));
    stage.control.heard(seconds(31), admin.identity);
    stage.control.tick(seconds(31));
    let closed = ControlEvent::CloseQueue { queue: after, reason: CloseReason::NotAuthentic };
    assert_eq!(stage.events(), [closed]);
    stage.control.disconnected(after);
    assert!(may_read(&stage, host_queue));
    let features = stage.set_feature(admin.identity, 7, 0);
    assert_eq!(status_of(&features), Status::COMMAND_SEQUENCE_ERROR, "it has an I/O queue");
    stage.control.disconnected(host_queue);
    assert!(stage.try_connect(connect, &mine).is_ok());
    let features = stage.set_feature(admin.identity, 7, 0);
    assert_eq!(status_of(&features), Status::SUCCESS, "one that anybody can have is none");
}

#[test]
fn of_two_that_prove_to_be_one_queue_the_last_connected_is_it() {
    for order in [[0, 1], [1, 0]] {
        let mut stage = stage();
        let (_, connect, mine) = proved(&mut stage);
        let queues = [(); 2].map(|()| stage.try_connect(connect, &mine).unwrap().identity);
        assert!(authenticate(&mut stage, queues[order[0]], host(secret(1))) && stage.events().is_empty());
        assert!(authenticate(&mut stage, queues[order[1]], host(secret(1))));
        let closed = ControlEvent::CloseQueue { queue: queues[0], reason: CloseReason::Superseded };
        assert_eq!(stage.events(), [closed], "{order:?}");
        stage.control.disconnected(queues[0]);
        assert!(may_read(&stage, queues[1]) && !may_read(&stage, queues[0]), "{order:?}");
    }
}

#[test]
fn strangers_keep_no_association_alive() {
    let mut stage = stage();
    let (admin, connect, mine) = proved(&mut stage);
    // Two timeouts of five seconds from the last word of the host; strangers come and speak until then.
    for second in [5, 10] {
        stage.now = seconds(second);
        let stranger = stage.try_connect(connect, &mine).unwrap().identity;
        stage.control.heard(stage.now, stranger);
        let transfer = AuthenticationTransfer { to_host: true, len: 64 };
        let entry = transfer.encode(CommandId(1), DataPointer::Transport { len: 64 });
        stage.command(stranger, &entry, &[]);
    }
    stage.control.tick(seconds(11));
    let reason = CloseReason::KeepAliveExpired;
    let is_closed = |event: &ControlEvent| {
        matches!(event, ControlEvent::CloseController { controller, reason: why, queues }
            if (*controller, *why, queues.len()) == (admin.identity.controller, reason, 3))
    };
    assert!(stage.events().iter().any(is_closed));
}

/// A host that connects many queues may send nothing else for longer than its timeout.
#[test]
fn a_proof_shows_that_its_host_lives() {
    let mut stage = stage();
    let (_, connect, mine) = proved(&mut stage);
    stage.now = seconds(8);
    let io = stage.try_connect(connect, &mine).unwrap().identity;
    assert!(authenticate(&mut stage, io, host(secret(1))));
    stage.control.tick(seconds(17));
    assert_eq!(stage.events(), []);
    assert_eq!(stage.control.next_due(), Some(seconds(18)), "two timeouts of five seconds after the proof");
    stage.control.tick(seconds(18));
    let reason = CloseReason::KeepAliveExpired;
    let is_closed = |event: &ControlEvent| matches!(event, ControlEvent::CloseController { reason: why, .. } if *why == reason);
    assert!(stage.events().iter().any(is_closed));
}

/// CVE-2026-64319, CVE-2026-72130: lengths of transfers that do not fit, and a byte of room for a message.
#[test]
fn lengths_that_do_not_fit_are_refused() {
    let mut stage = stage();
    let admin = stage.connect(1).identity;
    let transfer = AuthenticationTransfer { to_host: false, len: 100 };
    let entry = transfer.encode(CommandId(1), DataPointer::InCapsule { offset: 0, len: 100 });
    assert_eq!(stage.command(admin, &entry, &[0; 99]), refused(Status::INVALID_SGL_LENGTH));
    let transfer = AuthenticationTransfer { to_host: true, len: 1 };
    let entry = transfer.encode(CommandId(1), DataPointer::Transport { len: 1 });
    assert_eq!(stage.command(admin, &entry, &[]), refused(Status::INVALID_FIELD), "one byte for a message");
    let verdict = stage.control.command(stage.now, admin, &entry, &[], 0);
    assert_eq!(verdict, refused(Status::INVALID_SGL_LENGTH));
    // At their largest: nothing is made that large, and nothing is read beyond what came.
    let transfer = AuthenticationTransfer { to_host: false, len: u32::MAX };
    let entry = transfer.encode(CommandId(1), DataPointer::InCapsule { offset: 0, len: 64 });
    let verdict = stage.control.command(stage.now, admin, &entry, &[0; 64], 64);
    assert!(!status_of(&verdict).is_success());
    let transfer = AuthenticationTransfer { to_host: true, len: u32::MAX };
    let entry = transfer.encode(CommandId(1), DataPointer::Transport { len: u32::MAX });
    match stage.control.command(stage.now, admin, &entry, &[], u32::MAX) {
        Verdict::Data { bytes, .. } => assert!(bytes.len() <= 8192, "{} bytes", bytes.len()),
        verdict => assert!(!status_of(&verdict).is_success()),
    }
}

#[test]
fn a_queue_with_nothing_to_prove_has_no_such_commands() {
    let mut stage = Stage::new();
    let admin = stage.connect(1).identity;
    let transfer = AuthenticationTransfer { to_host: true, len: 64 };
    let entry = transfer.encode(CommandId(1), DataPointer::Transport { len: 64 });
    assert_eq!(stage.command(admin, &entry, &[]), refused(Status::INVALID_OPCODE));
}
