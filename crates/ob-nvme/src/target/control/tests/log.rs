//! Log pages: what they say, and where they end.

use ob_wire_nvme::log::parse_ana_log;

use super::*;

const IO_LOGS: [(u8, u64); 8] =
    [(0, 1024), (1, 64 * 64), (2, 512), (3, 512), (4, 4096), (5, 4096), (0x0C, 16 + 32 + 8), (0x80, 64)];

/// CVE-2026-64320: an offset far behind the log, and one that wraps with the length; of every log, discovery's too, which
/// anybody may read.
#[test]
fn offsets_end_where_the_log_ends() {
    let mut stage = Stage::new();
    let io = stage.ready(1).identity;
    let discovery = stage.discovery(1);
    let logs = IO_LOGS.map(|(page, len)| (io, page, len)).into_iter();
    let discovery_logs = [(0, 1024), (1, 64 * 64), (2, 512), (0x70, 1024 * 4)];
    for (queue, page, len) in logs.chain(discovery_logs.map(|(page, len)| (discovery, page, len))) {
        let mut read = |offset: u64, wanted: u64| {
            let entry = log_page(page, offset, wanted).encode(CommandId(1));
            stage.command(queue, &entry, &[])
        };
        let whole = bytes_of(read(0, len));
        assert_eq!(bytes_of(read(len - 4, 4)), whole[whole.len() - 4..], "log {page:#x}");
        assert_eq!(bytes_of(read(len, 8)), [0; 8], "log {page:#x}");
        let beyond = bytes_of(read(4, len));
        assert_eq!(beyond[..whole.len() - 4], whole[4..]);
        assert_eq!(beyond[whole.len() - 4..], [0; 4]);
        for offset in [len + 4, 1 << 32, 1 << 63, u64::MAX - 3, u64::MAX - 7, u64::MAX - 1023, 2, len + 1] {
            assert_eq!(read(offset, 4), refused(Status::INVALID_FIELD), "log {page:#x} at {offset:#x}");
        }
        assert_eq!(read(0, u64::from(LARGE) + 4), refused(Status::INVALID_FIELD), "more than MDTS");
        assert_eq!(bytes_of(read(0, u64::from(LARGE))).len(), LARGE as usize);
    }
}

#[test]
fn a_length_beyond_the_transfer_is_refused() {
    let mut stage = Stage::new();
    let queue = stage.ready(1).identity;
    let entry = log_page(2, 0, 512).encode(CommandId(1));
    let verdict = stage.control.command(stage.now, queue, &entry, &[], 511);
    assert_eq!(verdict, refused(Status::INVALID_SGL_LENGTH));
    // NUMD at its largest is 16 GiB.
    let mut entry = entry;
    entry.dword10 = (entry.dword10.get() | 0xFFFF_0000).into();
    entry.dword11 = 0xFFFF.into();
    let verdict = stage.control.command(stage.now, queue, &entry, &[], u32::MAX);
    assert_eq!(verdict, refused(Status::INVALID_FIELD));
}

#[test]
fn logs_that_are_not_there_are_invalid_and_the_first_log_tells_which_are() {
    let mut stage = Stage::new();
    let io = stage.ready(1).identity;
    let discovery = stage.discovery(1);
    for queue in [io, discovery] {
        let supported = bytes_of(stage.log(queue, 0, 1024, true));
        for page in 0..=u8::MAX {
            let verdict = stage.log(queue, page, 64, true);
            if word(&supported, usize::from(page) * 4) & 1 == 1 {
                bytes_of(verdict);
            } else {
                assert_eq!(verdict, refused(Status::INVALID_LOG_PAGE), "log {page:#x}");
            }
        }
    }
}

#[test]
fn health_counts_what_was_done() {
    let mut stage = Stage::new();
    let (admin, io) = stage.with_queue(1);
    let controller = admin.controller;
    for _ in 0..3 {
        stage.control.count_io(controller, IoCount::Read(512_000));
    }
    stage.control.count_io(controller, IoCount::Write(512));
    stage.control.count_io(controller, IoCount::Other);
    stage.control.record_error(io, CommandId(77), Status::UNRECOVERED_READ_ERROR, 2, 1234);
    stage.control.record_error(io, CommandId(78), Status::COMPARE_FAILURE, 1, 0);
    let log = bytes_of(stage.log(admin, 2, 512, false));
    assert_eq!(log[3], 100, "spare");
    assert_eq!([long(&log, 32), long(&log, 48), long(&log, 64), long(&log, 80)], [3, 1, 3, 1]);
    assert_eq!([long(&log, 160), long(&log, 176)], [1, 2], "media errors, all errors");
    let errors = bytes_of(stage.log(admin, 1, 4096, false));
    assert_eq!([long(&errors, 0), long(&errors, 64), long(&errors, 128)], [2, 1, 0], "newest first");
    assert_eq!(errors[64 + 8..64 + 12], [1, 0, 77, 0]);
    assert_eq!((long(&errors, 64 + 16), word(&errors, 64 + 24)), (1234, 2));
    let mut one = log_page(2, 0, 512);
    one.namespace = NamespaceId(1);
    assert_eq!(stage.command(admin, &one.encode(CommandId(1)), &[]), refused(Status::INVALID_FIELD));
}

#[test]
fn the_error_log_is_bounded() {
    let mut stage = Stage::new();
    let (admin, io) = stage.with_queue(1);
    for command in 0..200 {
        stage.control.record_error(io, CommandId(command), Status::WRITE_FAULT, 1, 0);
    }
    let errors = bytes_of(stage.log(admin, 1, 4096, false));
    assert_eq!([long(&errors, 0), long(&errors, 63 * 64)], [200, 137]);
}

#[test]
fn effects_tell_what_writes() {
    let mut stage = Stage::new();
    let queue = stage.ready(1).identity;
    let log = bytes_of(stage.log(queue, 5, 4096, false));
    assert_eq!(word(&log, 6 * 4), 1, "Identify");
    assert_eq!(word(&log, 0x80 * 4), 0, "Format");
    assert_eq!([word(&log, 1024 + 4), word(&log, 1024 + 8)], [3, 1], "Write and Read");
    assert!((0x80..0x100).all(|opcode| word(&log, 1024 + opcode * 4) == 0), "nothing of a vendor's");
    stage.control.set_foreign_opcodes(vec![0xC2]);
    let log = bytes_of(stage.log(queue, 5, 4096, false));
    assert_eq!([word(&log, 1024 + 0xC1 * 4), word(&log, 1024 + 0xC2 * 4)], [0, 1], "what a service answers");
}

#[test]
fn the_ana_log_has_a_state_for_each_port() {
    let mut stage = Stage::new();
    let queue = stage.ready(1).identity;
    let spec = NamespaceSpec { ana_group: 3, ..namespace(4) };
    stage.control.add_namespace(stage.subsystem, &spec).unwrap();
    stage.control.set_ana_state(stage.subsystem, PORT, 3, AnaState::Inaccessible).unwrap();
    stage.control.set_ana_state(stage.subsystem, SECOND_PORT, 1, AnaState::NonOptimized).unwrap();
    let (changes, groups) = parse_ana_log(&bytes_of(stage.log(queue, 0x0C, 4096, false))).unwrap();
    assert_eq!(changes, 5, "three namespaces, two states");
    let seen: Vec<_> =
        groups.iter().map(|group| (group.group, group.state, group.namespaces.len())).collect();
    assert_eq!(seen, [(1, AnaState::Optimized, 2), (3, AnaState::Inaccessible, 1)]);
    let groups_only = GetLogPage { specific: 1, ..log_page(0x0C, 0, 4096) }.encode(CommandId(1));
    let (_, groups) = parse_ana_log(&bytes_of(stage.command(queue, &groups_only, &[]))).unwrap();
    assert!(groups.iter().all(|group| group.namespaces.is_empty()));
    assert_eq!(
        stage.control.set_ana_state(stage.subsystem, PORT, 0, AnaState::Change),
        Err(AdminError::BadAnaGroup { group: 0, max: 32 })
    );
}

#[test]
fn ana_states_decide_over_commands() {
    let mut stage = Stage::new();
    let (_, io) = stage.with_queue(1);
    let cases = [
        (AnaState::NonOptimized, Ok(())),
        (AnaState::Inaccessible, Err(Status::ANA_INACCESSIBLE)),
        (AnaState::PersistentLoss, Err(Status::ANA_PERSISTENT_LOSS)),
        (AnaState::Change, Err(Status::ANA_TRANSITION)),
        (AnaState::Optimized, Ok(())),
    ];
    for (state, expected) in cases {
        stage.control.set_ana_state(stage.subsystem, PORT, 1, state).unwrap();
        let namespace = stage.control.namespace(io.controller, 1).unwrap();
        for access in [Access::Read, Access::Write, Access::Flush] {
            assert_eq!(stage.control.admit(io, namespace, access), expected);
        }
    }
}

#[test]
fn discovery_tells_each_host_what_it_may_reach() {
    let mut stage = Stage::new();
    let hosts = HostPolicy::Listed(vec![HostSpec { nqn: host_nqn(2), secrets: None }]);
    let closed = SubsystemSpec { hosts, ..SubsystemSpec::open(host_nqn(77), "2") };
    stage.control.add_subsystem(closed).unwrap();
    let count = |stage: &mut Stage, host: u8| {
        let queue = stage.discovery(host);
        let log = bytes_of(stage.log(queue, 0x70, 1024 * 8, false));
        let count = long(&log, 8) as usize;
        let entry = |index: usize| log[1024 * (index + 1)..1024 * (index + 2)].to_vec();
        (0..count).map(entry).collect::<Vec<_>>()
    };
    let stranger = count(&mut stage, 1);
    assert_eq!(stranger.len(), 3, "two ports and the service itself");
    assert_eq!(count(&mut stage, 2).len(), 5);
    let first = &stranger[0];
    assert_eq!(first[..4], [3, 1, 2, 0b100], "TCP, IPv4, subsystem, no flow control");
    assert_eq!(first[4..10], [1, 0, 0xFF, 0xFF, 32, 0], "port, any controller, admin queue");
    assert_eq!(&first[32..37], b"4420 ");
    assert_eq!(&first[256..256 + 25], b"nqn.2026-01.example:disks");
    assert_eq!(&first[512..522], b"127.0.0.1 ");
    assert_eq!(stranger[2][2], 3, "this service");
}

#[test]
fn discovery_names_itself_where_it_was_reached() {
    let any = TransportAddress::of([0, 0, 0, 0].into(), 4444);
    let own_entries = |stage: &mut Stage, path: Path| {
        let entry = admin_connect().encode(CommandId(1), DataPointer::InCapsule { offset: 0, len: 1024 });
        let parties = ConnectParties { subsystem: Nqn::discovery(), ..parties(1) }.encode();
        let queue = stage.control.connect(stage.now, path, &entry, parties.as_bytes()).unwrap().identity;
        stage.enable(queue);
        let log = bytes_of(stage.log(queue, 0x70, 1024 * 8, false));
        let entries =
            (1..=long(&log, 8) as usize).map(|index| log[1024 * index..1024 * (index + 1)].to_vec());
        entries.filter(|entry| entry[2] == 3).collect::<Vec<_>>()
    };
    let mut stage = Stage::new();
    let spec = PortSpec { port: PortKey(6), address: any.clone(), discovery_only: false };
    stage.control.add_port(spec).unwrap();
    let reached = Path { local: Some([192, 0, 2, 7].into()), ..Path::from(PortKey(6)) };
    for (path, service, address) in [
        (Path::from(DISCOVERY_PORT), &b"8009 "[..], &b"127.0.0.1 "[..]),
        (Path::from(PORT), b"4420 ", b"127.0.0.1 "),
        (reached, b"4444 ", b"192.0.2.7 "),
    ] {
        let own = own_entries(&mut stage, path);
        let [own] = &own[..] else { panic!("{} entries", own.len()) };
        assert_eq!((&own[32..37], &own[512..522]), (service, address));
        assert_eq!(own[4..6], path.port.0.to_le_bytes(), "its port");
        assert_eq!(&own[256..256 + 37], b"nqn.2014-08.org.nvmexpress.discovery\0");
        assert_eq!(own[10..12], [0b10, 0], "hosts may stay, and nothing that makes them pass over it");
    }
}

#[test]
fn a_host_is_told_the_address_that_it_reached_where_all_are_listened_on() {
    let any = |address: &str| TransportAddress::of(address.parse().unwrap(), 4420);
    let reached = |address: &str| Some(address.parse().unwrap());
    for (listened, local, told) in [
        ("0.0.0.0", reached("192.0.2.7"), "192.0.2.7"),
        ("::", reached("::ffff:192.0.2.7"), "192.0.2.7"),
        ("::", reached("2001:db8::7"), "2001:db8::7"),
        ("192.0.2.9", reached("192.0.2.7"), "192.0.2.9"),
        ("0.0.0.0", None, "0.0.0.0"),
    ] {
        let seen = any(listened).seen_at(local);
        assert_eq!((seen.address.as_str(), seen.service), (told, 4420));
        assert_eq!(seen.family == AddressFamily::Ipv4, !told.contains(':'));
    }
    let mut stage = Stage::new();
    let port = PortSpec { port: PortKey(6), address: any("0.0.0.0"), discovery_only: false };
    stage.control.add_port(port).unwrap();
    let path = Path { local: reached("192.0.2.7"), ..Path::from(PORT) };
    let entry = admin_connect().encode(CommandId(1), DataPointer::InCapsule { offset: 0, len: 1024 });
    let parties = ConnectParties { subsystem: Nqn::discovery(), ..parties(1) }.encode();
    let queue = stage.control.connect(stage.now, path, &entry, parties.as_bytes()).unwrap().identity;
    stage.enable(queue);
    let log = bytes_of(stage.log(queue, 0x70, 1024 * 8, false));
    let addresses: Vec<&[u8]> =
        (1..=long(&log, 8) as usize).map(|index| &log[1024 * index + 512..1024 * index + 522]).collect();
    assert!(addresses.contains(&&b"192.0.2.7 "[..]), "{addresses:?}");
}

#[test]
fn a_subsystem_is_served_and_told_on_its_ports_alone() {
    let mut stage = Stage::new();
    let elsewhere = PortSpec { port: PortKey(5), address: address(4430), discovery_only: false };
    stage.control.add_port(elsewhere).unwrap();
    let ports = vec![PortKey(5)];
    stage.control.add_subsystem(SubsystemSpec { ports, ..SubsystemSpec::open(host_nqn(77), "2") }).unwrap();
    let queue = stage.discovery(1);
    let log = bytes_of(stage.log(queue, 0x70, 1024 * 8, false));
    let entries = 1..=long(&log, 8) as usize;
    let services: Vec<_> = entries
        .map(|index| &log[1024 * index..1024 * (index + 1)])
        .filter(|entry| entry[256..].starts_with(host_nqn(77).as_str().as_bytes()))
        .map(|entry| entry[32..36].to_vec())
        .collect();
    assert_eq!(services, [b"4430"]);
    let there = ConnectParties { subsystem: host_nqn(77), ..parties(1) };
    assert!(stage.try_connect(admin_connect(), &there).is_err(), "this is another port");
}

#[test]
fn the_generation_changes_with_what_discovery_tells() {
    let mut stage = Stage::new();
    let queue = stage.discovery(1);
    let generation = |stage: &mut Stage| long(&bytes_of(stage.log(queue, 0x70, 1024, true)), 0);
    let before = generation(&mut stage);
    assert_eq!(generation(&mut stage), before);
    stage.control.add_subsystem(SubsystemSpec::open(host_nqn(50), "5")).unwrap();
    assert_eq!(generation(&mut stage), before + 1);
}
