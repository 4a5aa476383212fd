//! Connect and what belongs to it: refusals with their exact status, properties, keep-alive, the end.

use ob_wire_nvme::fabrics::Disconnect;

use super::*;

const DNR: Status = Status::CONNECT_INVALID_PARAMETERS.with_do_not_retry();
const IN_DATA: u32 = 1 << 16;

fn invalid(result: u32) -> ConnectError {
    ConnectError { status: DNR, result }
}

#[test]
fn a_controller_is_made_enabled_and_ended() {
    let mut stage = Stage::new();
    let connected = stage.connect(1);
    assert_eq!(connected.result, u32::from(connected.cntlid.0));
    assert!(connected.superseded.is_empty() && !connected.authentication_required);
    let queue = connected.identity;
    // MQES 127, CQR, TO, the NVM command set.
    let capabilities = value_of(&stage.property(queue, Property::Capabilities));
    assert_eq!(capabilities & 0xFFFF, 127);
    assert_eq!(capabilities >> 16 & 1, 1);
    assert_eq!(capabilities >> 37 & 0xFF, 1);
    assert_eq!(value_of(&stage.property(queue, Property::Version)), 0x0001_0400);
    assert_eq!(value_of(&stage.property(queue, Property::Status)), 0);
    let refused_yet = stage.identify(queue, Cns::Controller, 0);
    assert_eq!(status_of(&refused_yet), Status::COMMAND_SEQUENCE_ERROR);
    stage.enable(queue);
    assert_eq!(value_of(&stage.property(queue, Property::Status)), 1);
    let page = bytes_of(stage.identify(queue, Cns::Controller, 0));
    assert_eq!(u16::from_le_bytes([page[78], page[79]]), connected.cntlid.0);
    let io = stage.io_queue(1, connected.cntlid, 1);
    assert_eq!(stage.control.disconnected(queue), [io]);
    assert_eq!(stage.control.controllers(), 0);
    assert_eq!(stage.identify(queue, Cns::Controller, 0), refused(Status::COMMAND_SEQUENCE_ERROR));
}

#[test]
fn refusals_name_the_field() {
    let mut stage = Stage::new();
    let unknown = ConnectParties { subsystem: host_nqn(9), ..parties(1) };
    assert_eq!(stage.try_connect(admin_connect(), &unknown), Err(invalid(256 | IN_DATA)));
    let fixed = ConnectParties { controller: ControllerId(1), ..parties(1) };
    assert_eq!(stage.try_connect(admin_connect(), &fixed), Err(invalid(16 | IN_DATA)));
    let any_static = ConnectParties { controller: ControllerId(0xFFFE), ..parties(1) };
    assert_eq!(stage.try_connect(admin_connect(), &any_static), Err(invalid(16 | IN_DATA)));
    let deep = Connect { queue_entries: 129, ..admin_connect() };
    assert_eq!(stage.try_connect(deep, &parties(1)), Err(invalid(44)));
    let shallow = Connect { queue_entries: 1, ..admin_connect() };
    assert_eq!(stage.try_connect(shallow, &parties(1)), Err(invalid(44)));
    let patient = Connect { keep_alive_ms: u32::MAX, ..admin_connect() };
    assert_eq!(stage.try_connect(patient, &parties(1)), Err(invalid(48)));

    let mut format = admin_connect().encode(CommandId(1), DataPointer::InCapsule { offset: 0, len: 1024 });
    format.dword10 = 1.into();
    let data = parties(1).encode();
    let error = stage.control.connect(stage.now, PORT, &format, data.as_bytes()).unwrap_err();
    assert_eq!(error.status, Status::CONNECT_INCOMPATIBLE_FORMAT.with_do_not_retry());

    let entry = admin_connect().encode(CommandId(1), DataPointer::InCapsule { offset: 0, len: 1024 });
    for (at, expected) in [(256, invalid(256 | IN_DATA)), (512, invalid(512 | IN_DATA))] {
        let mut bytes = data.as_bytes().to_vec();
        bytes[at..at + 256].fill(b'x');
        assert_eq!(stage.control.connect(stage.now, PORT, &entry, &bytes), Err(expected));
    }
    let short = stage.control.connect(stage.now, PORT, &entry, &data.as_bytes()[..1023]);
    assert_eq!(short.unwrap_err().status.without_flags(), Status::INVALID_SGL_LENGTH);
    let on_discovery = stage.control.connect(stage.now, DISCOVERY_PORT, &entry, data.as_bytes());
    assert_eq!(on_discovery, Err(invalid(256 | IN_DATA)));
    let nowhere = stage.control.connect(stage.now, PortKey(77), &entry, data.as_bytes());
    assert_eq!(nowhere, Err(invalid(256 | IN_DATA)));
    assert_eq!(stage.control.controllers(), 0);
}

#[test]
fn only_listed_hosts_connect() {
    let hosts = HostPolicy::Listed(vec![HostSpec { nqn: host_nqn(1), secrets: None }]);
    let spec = SubsystemSpec { hosts, ..SubsystemSpec::open(subsystem_nqn(), "1") };
    let mut stage = Stage::with(ControlConfig::default(), spec);
    let error = stage.try_connect(admin_connect(), &parties(2)).unwrap_err();
    assert_eq!(error.status, Status::CONNECT_INVALID_HOST.with_do_not_retry());
    stage.connect(1);
    assert_eq!(stage.control.controllers(), 1);
}

#[test]
fn io_queues_belong_to_their_host_and_come_in_order() {
    let mut stage = Stage::new();
    let connected = stage.connect(1);
    let connect = Connect { queue: QueueId(1), queue_entries: 128, ..admin_connect() };
    let mine = ConnectParties { controller: connected.cntlid, ..parties(1) };
    // What may be otherwise in a moment is to be tried again: Linux gives a controller up for good that says it is not.
    let sequence = ConnectError::other(Status::COMMAND_SEQUENCE_ERROR);
    let gone = ConnectError { status: Status::CONNECT_INVALID_PARAMETERS, result: 16 | IN_DATA };
    assert_eq!(stage.try_connect(connect, &mine), Err(sequence), "before CC.EN");
    stage.enable(connected.identity);
    let queue = stage.try_connect(Connect { no_flow_control: true, ..connect }, &mine).unwrap();
    assert_eq!(queue.sq_size, 128);
    assert!(queue.flow_control_off);
    // A host may be faster than the end of its old connection.
    let again = stage.try_connect(connect, &mine).unwrap();
    assert_eq!((again.identity, again.replaces_connection), (queue.identity, true));
    let elsewhere = Path { peer: [10, 0, 0, 2].into(), ..Path::from(PORT) };
    let entry = connect.encode(CommandId(1), DataPointer::InCapsule { offset: 0, len: 1024 });
    let taken = stage.control.connect(stage.now, elsewhere, &entry, mine.encode().as_bytes());
    assert_eq!(taken, Err(sequence), "in use by another path");
    let theirs = ConnectParties { controller: connected.cntlid, ..parties(2) };
    assert_eq!(stage.try_connect(connect, &theirs), Err(gone));
    let other_id = ConnectParties { host_id: [9; 16], ..mine.clone() };
    assert_eq!(stage.try_connect(connect, &other_id), Err(invalid(IN_DATA)));
    let unknown = ConnectParties { controller: ControllerId(99), ..mine.clone() };
    assert_eq!(stage.try_connect(connect, &unknown), Err(gone));
    let beyond = Connect { queue: QueueId(17), ..connect };
    assert_eq!(stage.try_connect(beyond, &mine), Err(invalid(42)));
    // The queue that ended can be connected again.
    assert!(stage.control.disconnected(queue.identity).is_empty());
    let after = stage.try_connect(connect, &mine).unwrap();
    assert_eq!((after.identity, after.replaces_connection), (queue.identity, false));
}

#[test]
fn fewer_queues_than_exist_can_be_granted_but_not_afterwards() {
    let mut stage = Stage::new();
    let connected = stage.ready(1);
    let granted = value_of(&stage.set_feature(connected.identity, 0x07, 0x0003_0001));
    assert_eq!(granted, 0x0001_0001);
    let many = value_of(&stage.set_feature(connected.identity, 0x07, 0x00FE_00FE));
    assert_eq!(many, 0x000F_000F);
    assert_eq!(stage.set_feature(connected.identity, 0x07, 0xFFFF), refused(Status::INVALID_FIELD));
    assert_eq!(value_of(&stage.set_feature(connected.identity, 0x07, 0)), 0);
    stage.io_queue(1, connected.cntlid, 1);
    let connect = Connect { queue: QueueId(2), ..admin_connect() };
    let mine = ConnectParties { controller: connected.cntlid, ..parties(1) };
    assert_eq!(stage.try_connect(connect, &mine), Err(invalid(42)));
    let late = stage.set_feature(connected.identity, 0x07, 0x0003_0003);
    assert_eq!(late, refused(Status::COMMAND_SEQUENCE_ERROR));
}

#[test]
fn a_host_that_comes_back_replaces_itself_on_the_same_path_alone() {
    let mut stage = Stage::new();
    let first = stage.connect(1);
    let other_host = stage.connect(2);
    let entry = admin_connect().encode(CommandId(1), DataPointer::InCapsule { offset: 0, len: 1024 });
    let data = parties(1).encode();
    let other_port = stage.control.connect(stage.now, SECOND_PORT, &entry, data.as_bytes()).unwrap();
    assert!(other_port.superseded.is_empty());
    // Another address of the host is another path: a host that multipaths has both.
    let path = Path { peer: [10, 0, 0, 2].into(), ..Path::from(PORT) };
    let other_path = stage.control.connect(stage.now, path, &entry, data.as_bytes()).unwrap();
    assert!(other_path.superseded.is_empty());
    let again = stage.connect(1);
    assert_eq!(again.superseded, [first.identity.controller]);
    assert_ne!(again.identity.controller, first.identity.controller);
    assert_ne!(again.cntlid, first.cntlid, "a CNTLID is not used again at once");
    assert_eq!(stage.control.controllers(), 4);
    assert!(stage.control.namespace(first.identity.controller, 1).is_err());
    assert!(stage.control.namespace(other_host.identity.controller, 1).is_ok());
    // Discovery replaces nobody.
    stage.discovery(1);
    stage.discovery(1);
    assert_eq!(stage.control.controllers(), 6);
}

#[test]
fn cntlids_stay_in_their_range_and_run_out() {
    let spec = SubsystemSpec {
        controller_first: 0x100,
        controller_last: 0x102,
        ..SubsystemSpec::open(subsystem_nqn(), "1")
    };
    let mut stage = Stage::with(ControlConfig::default(), spec);
    let ids: Vec<_> = (1..=3).map(|host| stage.connect(host).cntlid.0).collect();
    assert_eq!(ids, [0x102, 0x100, 0x101], "going round, from somewhere");
    let busy = ConnectError::other(Status::CONNECT_CONTROLLER_BUSY);
    assert_eq!(stage.try_connect(admin_connect(), &parties(4)), Err(busy));
    let again = stage.connect(2);
    assert_eq!(again.cntlid.0, 0x100, "the one that it replaces is free again");
}

#[test]
fn cntlids_begin_where_chance_has_it() {
    let first_of_a_life = |chance: u16, (first, last): (u16, u16)| {
        let mut control = Control::new(ControlConfig::default())
            .with_random(move |bytes| bytes.copy_from_slice(&chance.to_le_bytes()));
        let open = SubsystemSpec::open(subsystem_nqn(), "1");
        let spec = SubsystemSpec { controller_first: first, controller_last: last, ..open };
        let subsystem = control.add_subsystem(spec).unwrap();
        control.add_port(PortSpec { port: PORT, address: address(4420), discovery_only: false }).unwrap();
        let mut stage = Stage { control, subsystem, now: seconds(1) };
        stage.connect(1).cntlid.0
    };
    let all = (1, 0xFFEF);
    assert_eq!([0, 1, 999].map(|chance| first_of_a_life(chance, all)), [1, 2, 1000]);
    assert_eq!([0xFFEE, 0xFFEF].map(|chance| first_of_a_life(chance, all)), [0xFFEF, 1]);
    assert_eq!([0, 7].map(|chance| first_of_a_life(chance, (0, 0))), [0, 0]);
    assert_eq!([2, 3].map(|chance| first_of_a_life(chance, (0x100, 0x102))), [0x102, 0x100]);
}

#[test]
fn controllers_are_bounded() {
    let config = ControlConfig { controllers_max: 2, ..ControlConfig::default() };
    let mut stage = Stage::with(config, SubsystemSpec::open(subsystem_nqn(), "1"));
    let first = stage.connect(1);
    stage.discovery(2);
    let busy = ConnectError::other(Status::CONNECT_CONTROLLER_BUSY);
    assert_eq!(stage.try_connect(admin_connect(), &parties(3)), Err(busy));
    stage.control.disconnected(first.identity);
    let next = stage.connect(3);
    assert_ne!(next.identity.controller, first.identity.controller, "keys are never used twice");
}

#[test]
fn a_silent_host_is_given_up_and_any_command_keeps_it() {
    let mut stage = Stage::new();
    let keep = stage.ready(1).identity;
    let silent = stage.ready(2).identity;
    let endless = Connect { keep_alive_ms: 0, ..admin_connect() };
    stage.try_connect(endless, &parties(3)).unwrap();
    assert_eq!(stage.control.next_due(), Some(seconds(11)), "twice what it asked for");
    stage.now = seconds(5);
    let entry = SubmissionEntry::new(AdminOpcode::KeepAlive.code(), CommandId(1), NamespaceId::NONE);
    assert_eq!(stage.command(keep, &entry, &[]), Verdict::SUCCESS);
    stage.control.tick(seconds(10));
    assert!(stage.events().is_empty());
    stage.control.tick(seconds(11));
    let closed = ControlEvent::CloseController {
        controller: silent.controller,
        queues: vec![QueueId::ADMIN],
        reason: CloseReason::KeepAliveExpired,
    };
    assert_eq!(stage.events(), [closed]);
    stage.control.heard(seconds(12), keep);
    stage.control.tick(seconds(21));
    assert!(stage.events().is_empty());
    stage.control.tick(seconds(22));
    assert_eq!(stage.events().len(), 1);
    assert_eq!(stage.control.controllers(), 1);
    assert_eq!(stage.control.next_due(), None);
}

#[test]
fn keep_alive_is_rounded_up_and_can_be_changed() {
    let mut stage = Stage::new();
    let queue = stage.ready(1).identity;
    let get = |stage: &mut Stage| {
        let mut entry = set_features(0x0F, 0, 0).encode(CommandId(1));
        entry.opcode = AdminOpcode::GetFeatures.code();
        value_of(&stage.command(queue, &entry, &[]))
    };
    assert_eq!(get(&mut stage), 5000);
    assert_eq!(stage.set_feature(queue, 0x0F, 1001), Verdict::SUCCESS);
    assert_eq!(get(&mut stage), 2000);
    assert_eq!(stage.set_feature(queue, 0x0F, u32::MAX), refused(Status::INVALID_KEEP_ALIVE));
    stage.control.tick(seconds(4));
    assert!(stage.events().is_empty());
    stage.control.tick(seconds(5));
    assert_eq!(stage.events().len(), 1);
}

#[test]
fn a_discovery_controller_keeps_the_time_that_its_host_asked_for() {
    let mut stage = Stage::new();
    let queue = stage.discovery(1);
    assert_eq!(stage.control.next_due(), Some(seconds(11)));
    assert_eq!(stage.set_feature(queue, 0x0F, 0), Verdict::SUCCESS);
    let mut entry = set_features(0x0F, 0, 0).encode(CommandId(1));
    entry.opcode = AdminOpcode::GetFeatures.code();
    assert_eq!(value_of(&stage.command(queue, &entry, &[])), 0, "what it set, and not what it gets");
    stage.control.tick(seconds(120));
    assert_eq!(stage.control.controllers(), 1);
    stage.control.tick(seconds(121));
    assert_eq!(stage.control.controllers(), 0);
}

#[test]
fn silence_after_a_reset_or_a_shutdown_ends_nothing_early() {
    let enabled = ControllerConfiguration::enabled(ControllerConfiguration::COMMAND_SET_NVM);
    let shutdown = enabled.with_shutdown(ob_wire_nvme::fabrics::ShutdownNotification::Normal);
    for configuration in [ControllerConfiguration(0), shutdown] {
        let mut stage = Stage::new();
        let queue = stage.ready(1).identity;
        stage.set_property(queue, Property::Configuration, configuration.0);
        stage.control.tick(seconds(120));
        assert_eq!(stage.control.controllers(), 1, "{configuration:?}");
        stage.control.tick(seconds(121));
        assert_eq!(stage.control.controllers(), 0, "{configuration:?}");
    }
    // Enabled anew, and silent from then on.
    let mut stage = Stage::new();
    let queue = stage.ready(1).identity;
    stage.set_property(queue, Property::Configuration, 0);
    stage.control.tick(seconds(60));
    assert_eq!(stage.control.next_due(), Some(seconds(121)));
    stage.now = seconds(60);
    stage.enable(queue);
    assert_eq!(stage.control.next_due(), Some(seconds(70)));
    stage.control.tick(seconds(70));
    assert_eq!(stage.control.controllers(), 0);
}

#[test]
fn a_discovery_controller_without_keep_alive_ends_after_two_minutes() {
    let mut stage = Stage::new();
    let parties = ConnectParties { subsystem: Nqn::discovery(), ..parties(1) };
    let connect = Connect { keep_alive_ms: 0, ..admin_connect() };
    stage.try_connect(connect, &parties).unwrap();
    assert_eq!(stage.control.next_due(), Some(seconds(121)));
    stage.control.tick(seconds(121));
    assert_eq!(stage.control.controllers(), 0);
}

#[test]
fn a_reset_ends_io_queues_and_keeps_the_admin_queue_for_a_while() {
    let mut stage = Stage::new();
    let connect = Connect { keep_alive_ms: 0, ..admin_connect() };
    let admin = stage.try_connect(connect, &parties(1)).unwrap();
    stage.enable(admin.identity);
    let io = stage.io_queue(1, admin.cntlid, 1);
    assert_eq!(stage.hold(admin.identity, 7), Verdict::Held);
    assert_eq!(stage.set_property(admin.identity, Property::Configuration, 0), Verdict::SUCCESS);
    let aborted = ControlEvent::CompleteAsync {
        queue: admin.identity,
        command: CommandId(7),
        result: 0,
        status: Status::ABORTED_SQ_DELETION,
    };
    let closed = ControlEvent::CloseQueue { queue: io, reason: CloseReason::Reset };
    assert_eq!(stage.events(), [aborted, closed]);
    assert_eq!(value_of(&stage.property(admin.identity, Property::Status)), 0);
    let namespace = stage.control.namespace(admin.identity.controller, 1).unwrap();
    assert!(stage.control.admit(io, namespace, Access::Read).is_err());
    stage.control.tick(seconds(121));
    let closed = ControlEvent::CloseController {
        controller: admin.identity.controller,
        queues: vec![QueueId::ADMIN],
        reason: CloseReason::Reset,
    };
    assert_eq!(stage.events(), [closed]);
}

#[test]
fn a_reset_controller_can_be_enabled_again() {
    let mut stage = Stage::new();
    let connect = Connect { keep_alive_ms: 0, ..admin_connect() };
    let admin = stage.try_connect(connect, &parties(1)).unwrap();
    stage.enable(admin.identity);
    stage.set_property(admin.identity, Property::Configuration, 0);
    stage.enable(admin.identity);
    stage.control.tick(seconds(1000));
    assert!(stage.events().is_empty());
    assert_eq!(value_of(&stage.property(admin.identity, Property::Status)), 1);
}

#[test]
fn a_shutdown_goes_on_until_io_is_over_and_the_association_lingers() {
    let mut stage = Stage::new();
    let connect = Connect { keep_alive_ms: 0, ..admin_connect() };
    let queue = stage.try_connect(connect, &parties(1)).unwrap().identity;
    stage.enable(queue);
    let enabled = ControllerConfiguration::enabled(0);
    let shutdown = enabled.with_shutdown(ob_wire_nvme::fabrics::ShutdownNotification::Normal);
    stage.set_property(queue, Property::Configuration, shutdown.0);
    assert_eq!(stage.events(), [ControlEvent::ShuttingDown { controller: queue.controller }]);
    assert_eq!(value_of(&stage.property(queue, Property::Status)), 0b0101);
    stage.control.shutdown_over(queue.controller);
    assert_eq!(value_of(&stage.property(queue, Property::Status)), 0b1001);
    assert!(
        matches!(stage.identify(queue, Cns::Controller, 0), Verdict::Data { .. }),
        "admin commands go on"
    );
    assert_eq!(stage.control.next_due(), Some(seconds(121)));
    stage.control.tick(seconds(121));
    assert_eq!(stage.control.controllers(), 0);
}

#[test]
fn a_configuration_that_is_not_understood_is_fatal() {
    let mut stage = Stage::new();
    let enabled = ControllerConfiguration::enabled(0).0;
    // Pages of 8 KiB, weighted arbitration, another command set, entries of 128 bytes.
    for wrong in [enabled | 1 << 7, enabled | 1 << 11, enabled | 6 << 4, enabled + (1 << 16)] {
        let queue = stage.connect(1).identity;
        stage.set_property(queue, Property::Configuration, wrong);
        assert_eq!(value_of(&stage.property(queue, Property::Status)), 0b10, "{wrong:#x}");
        assert_eq!(stage.identify(queue, Cns::Controller, 0), refused(Status::COMMAND_SEQUENCE_ERROR));
    }
}

#[test]
fn fabrics_commands_know_their_queues() {
    let mut stage = Stage::new();
    let (admin, io) = stage.with_queue(1);
    let disconnect = Disconnect.encode(CommandId(1));
    assert_eq!(stage.command(admin, &disconnect, &[]), refused(Status::INVALID_QUEUE_TYPE));
    let close = Verdict::CloseAfter { result: 0, status: Status::SUCCESS };
    assert_eq!(stage.command(io, &disconnect, &[]), close);
    assert_eq!(stage.property(io, Property::Version), refused(Status::INVALID_QUEUE_TYPE));
    assert_eq!(stage.property(admin, Property::ReadyTimeouts), refused(Status::INVALID_FIELD));
    assert_eq!(stage.set_property(admin, Property::Version, 1), refused(Status::INVALID_FIELD));
    let connect = admin_connect().encode(CommandId(1), DataPointer::InCapsule { offset: 0, len: 1024 });
    assert_eq!(stage.command(admin, &connect, &[0; 1024]), refused(Status::COMMAND_SEQUENCE_ERROR));
    let unknown = SubmissionEntry::new(0x7F, CommandId(1), NamespaceId(0x33));
    assert_eq!(stage.command(admin, &unknown, &[]), refused(Status::INVALID_OPCODE));
}
