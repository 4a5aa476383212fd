//! The control part, command by command, as the specification has it.

// A test that finds no value where one must be has failed, and a panic says so.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod admin;
mod authenticate;
mod connect;
mod event;
mod hostile;
mod log;
mod reservation;
mod reserve;
mod saved_document;

use std::time::Duration;

use ob_core::Instant;
use ob_wire_nvme::command::AdminOpcode;
use ob_wire_nvme::fabrics::{
    Connect, ConnectError, ConnectParties, ControllerConfiguration, Property, PropertyAccess,
};
use ob_wire_nvme::feature::SetFeatures;
use ob_wire_nvme::identify::{Cns, Identify};
use ob_wire_nvme::log::GetLogPage;
use ob_wire_nvme::text::Nqn;
use ob_wire_nvme::{CommandId, ControllerId, DataPointer, NamespaceId, QueueId, Status, SubmissionEntry};
use zerocopy::IntoBytes;

use super::*;

const PORT: PortKey = PortKey(1);
const SECOND_PORT: PortKey = PortKey(2);
const DISCOVERY_PORT: PortKey = PortKey(9);
const LARGE: u32 = 128 << 10;

fn subsystem_nqn() -> Nqn {
    Nqn::new("nqn.2026-01.example:disks").unwrap()
}

fn host_nqn(host: u8) -> Nqn {
    Nqn::new(&format!("nqn.2026-01.example:host{host}")).unwrap()
}

fn seconds(count: u64) -> Instant {
    Instant::from_nanoseconds(count * 1_000_000_000)
}

fn address(service: u16) -> TransportAddress {
    TransportAddress { family: AddressFamily::Ipv4, address: "127.0.0.1".to_owned(), service }
}

fn namespace(backend: u32) -> NamespaceSpec {
    NamespaceSpec {
        nsid: None,
        backing: BackendId(backend).into(),
        blocks: 1000 + u64::from(backend),
        block_len: 4096,
        uuid: [backend as u8 + 1; 16],
        nguid: [backend as u8 + 101; 16],
        volatile_cache: true,
        deallocated_reads_zero: true,
        deallocate_len: 4096,
        ana_group: 1,
        read_only: false,
    }
}

/// A target with one subsystem of two namespaces, two ports and one port for discovery alone.
struct Stage {
    control: Control,
    subsystem: SubsystemKey,
    now: Instant,
}

impl Stage {
    fn new() -> Self {
        Self::with(ControlConfig::default(), SubsystemSpec::open(subsystem_nqn(), "0001"))
    }

    fn with(config: ControlConfig, spec: SubsystemSpec) -> Self {
        let mut control = Control::new(config).with_random(|bytes| bytes.fill(7));
        let subsystem = control.add_subsystem(spec).unwrap();
        for (port, service, discovery_only) in
            [(PORT, 4420, false), (SECOND_PORT, 4421, false), (DISCOVERY_PORT, 8009, true)]
        {
            control.add_port(PortSpec { port, address: address(service), discovery_only }).unwrap();
        }
        for backend in 0..2 {
            control.add_namespace(subsystem, &namespace(backend)).unwrap();
        }
        while control.events().is_some() {}
        Self { control, subsystem, now: seconds(1) }
    }

    fn try_connect(&mut self, connect: Connect, parties: &ConnectParties) -> Result<Connected, ConnectError> {
        let data = DataPointer::InCapsule { offset: 0, len: 1024 };
        let entry = connect.encode(CommandId(1), data);
        self.control.connect(self.now, PORT, &entry, parties.encode().as_bytes())
    }

    /// A controller of a host, not yet enabled.
    fn connect(&mut self, host: u8) -> Connected {
        self.try_connect(admin_connect(), &parties(host)).unwrap()
    }

    /// A controller of a host that is ready.
    fn ready(&mut self, host: u8) -> Connected {
        let connected = self.connect(host);
        self.enable(connected.identity);
        connected
    }

    /// A ready discovery controller.
    fn discovery(&mut self, host: u8) -> QueueIdentity {
        let parties = ConnectParties { subsystem: Nqn::discovery(), ..parties(host) };
        let identity = self.try_connect(admin_connect(), &parties).unwrap().identity;
        self.enable(identity);
        identity
    }

    fn enable(&mut self, queue: QueueIdentity) {
        let value = ControllerConfiguration::enabled(ControllerConfiguration::COMMAND_SET_NVM).0;
        assert_eq!(self.set_property(queue, Property::Configuration, value), Verdict::SUCCESS);
    }

    fn io_queue(&mut self, host: u8, controller: ControllerId, queue: u16) -> QueueIdentity {
        let connect = Connect { queue: QueueId(queue), ..admin_connect() };
        let parties = ConnectParties { controller, ..parties(host) };
        self.try_connect(connect, &parties).unwrap().identity
    }

    /// A ready controller of a host with one I/O queue: admin and I/O.
    fn with_queue(&mut self, host: u8) -> (QueueIdentity, QueueIdentity) {
        let connected = self.ready(host);
        let io = self.io_queue(host, connected.cntlid, 1);
        (connected.identity, io)
    }

    fn command(&mut self, queue: QueueIdentity, entry: &SubmissionEntry, data: &[u8]) -> Verdict {
        self.control.command(self.now, queue, entry, data, LARGE)
    }

    fn set_property(&mut self, queue: QueueIdentity, property: Property, value: u32) -> Verdict {
        let access = PropertyAccess { property, value: Some(u64::from(value)) };
        self.command(queue, &access.encode(CommandId(2)), &[])
    }

    fn property(&mut self, queue: QueueIdentity, property: Property) -> Verdict {
        let access = PropertyAccess { property, value: None };
        self.command(queue, &access.encode(CommandId(2)), &[])
    }

    fn identify(&mut self, queue: QueueIdentity, structure: Cns, nsid: u32) -> Verdict {
        let entry = Identify::new(structure, NamespaceId(nsid)).encode(CommandId(3));
        self.command(queue, &entry, &[])
    }

    fn log(&mut self, queue: QueueIdentity, page: u8, len: u64, retain_event: bool) -> Verdict {
        let wanted = GetLogPage { retain_event, ..log_page(page, 0, len) };
        self.command(queue, &wanted.encode(CommandId(4)), &[])
    }

    fn set_feature(&mut self, queue: QueueIdentity, feature: u8, dword11: u32) -> Verdict {
        let entry = set_features(feature, dword11, 0).encode(CommandId(5));
        self.command(queue, &entry, &[])
    }

    fn hold(&mut self, queue: QueueIdentity, command: u16) -> Verdict {
        let opcode = AdminOpcode::AsyncEventRequest.code();
        let entry = SubmissionEntry::new(opcode, CommandId(command), NamespaceId::NONE);
        self.command(queue, &entry, &[])
    }

    fn events(&mut self) -> Vec<ControlEvent> {
        std::iter::from_fn(|| self.control.events()).collect()
    }
}

fn admin_connect() -> Connect {
    Connect { queue: QueueId::ADMIN, queue_entries: 32, no_flow_control: false, keep_alive_ms: 5000 }
}

fn parties(host: u8) -> ConnectParties {
    ConnectParties {
        host_id: [host; 16],
        controller: ControllerId::DYNAMIC,
        subsystem: subsystem_nqn(),
        host: host_nqn(host),
    }
}

fn log_page(page: u8, offset: u64, len: u64) -> GetLogPage {
    GetLogPage {
        page,
        specific: 0,
        retain_event: false,
        specific_id: 0,
        offset,
        len,
        command_set: 0,
        namespace: NamespaceId::ALL,
    }
}

fn set_features(feature: u8, dword11: u32, nsid: u32) -> SetFeatures {
    let namespace = NamespaceId(nsid);
    SetFeatures { feature, is_saved: false, dword11, dword12: 0, dword13: 0, namespace }
}

#[track_caller]
fn bytes_of(verdict: Verdict) -> Vec<u8> {
    let Verdict::Data { bytes, .. } = verdict else { panic!("{verdict:?} has no data") };
    bytes
}

#[track_caller]
fn value_of(verdict: &Verdict) -> u64 {
    let Verdict::Done { result, status: Status::SUCCESS } = verdict else {
        panic!("{verdict:?} has no value")
    };
    *result
}

#[track_caller]
fn status_of(verdict: &Verdict) -> Status {
    match verdict {
        Verdict::Done { status, .. }
        | Verdict::DoneAfter { status, .. }
        | Verdict::CloseAfter { status, .. } => status.without_flags(),
        Verdict::Data { .. } | Verdict::DataAfter { .. } => Status::SUCCESS,
        Verdict::Held => panic!("held"),
    }
}

const fn refused(status: Status) -> Verdict {
    Verdict::Done { result: 0, status: status.with_do_not_retry() }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

#[test]
fn administration_refuses_what_hosts_would_not_accept() {
    let mut stage = Stage::new();
    let subsystem = stage.subsystem;
    let control = &mut stage.control;
    let spec = SubsystemSpec::open(subsystem_nqn(), "2");
    assert_eq!(control.add_subsystem(spec.clone()), Err(AdminError::SubsystemExists(subsystem_nqn())));
    let other = SubsystemSpec { nqn: host_nqn(1), controller_first: 9, controller_last: 8, ..spec };
    assert_eq!(control.add_subsystem(other.clone()), Err(AdminError::ControllerRange { first: 9, last: 8 }));
    let other = SubsystemSpec { controller_first: 1, controller_last: 2, serial: "é".to_owned(), ..other };
    assert_eq!(control.add_subsystem(other), Err(AdminError::BadText("serial number")));
    assert_eq!(control.add_namespace(subsystem, &namespace(0)), Err(AdminError::DuplicateId));
    let odd = NamespaceSpec { block_len: 1024, ..namespace(5) };
    assert_eq!(control.add_namespace(subsystem, &odd), Err(AdminError::BadBlockLen(1024)));
    let huge = NamespaceSpec { blocks: u64::MAX, ..namespace(5) };
    assert_eq!(control.add_namespace(subsystem, &huge), Err(AdminError::BadBlocks(u64::MAX)));
    let taken = NamespaceSpec { nsid: Some(2), ..namespace(5) };
    assert_eq!(
        control.add_namespace(subsystem, &taken),
        Err(AdminError::BadNamespaceId { nsid: 2, max: 1024 })
    );
    let group = NamespaceSpec { ana_group: 33, ..namespace(5) };
    assert_eq!(control.add_namespace(subsystem, &group), Err(AdminError::BadAnaGroup { group: 33, max: 32 }));
    assert_eq!(control.remove_namespace(subsystem, 3), Err(AdminError::UnknownNamespace(3)));
}

/// A host that has not heard of a removal yet would write on whatever has the id now.
#[test]
fn namespace_ids_return_as_late_as_can_be_and_keys_never() {
    let config = ControlConfig { namespaces_max: 4, ..ControlConfig::default() };
    let mut stage = Stage::with(config, SubsystemSpec::open(subsystem_nqn(), "0001"));
    let (control, subsystem) = (&mut stage.control, stage.subsystem);
    let first = control.remove_namespace(subsystem, 1).unwrap();
    assert_eq!(control.add_namespace(subsystem, &namespace(7)), Ok(3));
    control.remove_namespace(subsystem, 3).unwrap();
    control.remove_namespace(subsystem, 2).unwrap();
    assert_eq!(
        control.add_namespace(subsystem, &namespace(8)),
        Ok(4),
        "those that nobody has had come first"
    );
    let again = [9, 10, 11].map(|number| control.add_namespace(subsystem, &namespace(number)).unwrap());
    assert_eq!(again, [1, 3, 2], "then those that were given up first");
    assert_eq!(control.add_namespace(subsystem, &namespace(12)), Err(AdminError::NamespacesFull));
    assert_ne!(control.remove_namespace(subsystem, 1).unwrap(), first);
    // Who asks for one gets it.
    let asked = NamespaceSpec { nsid: Some(1), ..namespace(13) };
    assert_eq!(control.add_namespace(subsystem, &asked), Ok(1));
    assert_eq!(control.add_namespace(subsystem, &namespace(14)), Err(AdminError::NamespacesFull));
}
