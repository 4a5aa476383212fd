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
