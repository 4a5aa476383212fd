//! The discovery service: which subsystems a host may connect to, and where (Base §3.1.2.3, §5.16.1.23).

use ob_wire_nvme::ControllerId;
use ob_wire_nvme::log::{DiscoveryEntry, DiscoveryHeader, DiscoverySubtype, discovery_flag, requirement};
use ob_wire_nvme::text::Nqn;
use zerocopy::IntoBytes;

use super::Control;
use super::controller::Controller;
use super::spec::{PortKey, TransportAddress};

/// The log as one host sees it: an entry for each subsystem that lets it in, on each of its ports, and one for this
/// service where the host has reached it.
pub(super) fn log(control: &Control, controller: &Controller) -> Vec<u8> {
    let mut entries = Vec::new();
    for subsystem in &control.subsystems {
        if subsystem.admits(&controller.host).is_none() {
            continue;
        }
        for port in control.ports.iter().filter(|port| !port.discovery_only && subsystem.is_on(port.port)) {
            let address = port.address.seen_at(controller.path.local);
            entries.push(entry(control, port.port, &address, &subsystem.spec.nqn, DiscoverySubtype::Nvm));
        }
    }
    entries.extend(this_service(control, controller));
    let header = DiscoveryHeader::new(control.discovery_generation, entries.len() as u64);
    let mut log = header.as_bytes().to_vec();
    for entry in entries {
        log.extend_from_slice(entry.encode().as_bytes());
    }
    log
}

/// Hosts take a service that does not say so for one that must not be stayed connected to (EPCSD), and then never hear
/// of changes.
fn this_service(control: &Control, controller: &Controller) -> Option<DiscoveryEntry> {
    let port = control.ports.iter().find(|port| port.port == controller.path.port)?;
    let address = port.address.seen_at(controller.path.local);
    // Other ports tell the same, but are not in the log as such; and nvme-discoverd passes over entries that say so (DUPRETINFO),
    // this one included.
    Some(entry(control, port.port, &address, &Nqn::discovery(), DiscoverySubtype::Current))
}

fn entry(
    control: &Control,
    port: PortKey,
    address: &TransportAddress,
    nqn: &Nqn,
    subtype: DiscoverySubtype,
) -> DiscoveryEntry {
    DiscoveryEntry {
        family: address.family,
        subtype,
        // "Not required" would be as true, but older nvme-cli calls the two together unrecognized.
        requirements: requirement::SECURE_NOT_SPECIFIED | requirement::NO_FLOW_CONTROL,
        port: port.0,
        controller: ControllerId::DYNAMIC,
        admin_queue: control.config.queue_depth_max.min(32),
        flags: if subtype == DiscoverySubtype::Current { discovery_flag::PERSISTENT } else { 0 },
        address: address.address.clone(),
        service: address.service,
        subsystem: nqn.clone(),
    }
}
