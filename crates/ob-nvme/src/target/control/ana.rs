//! Asymmetric namespace access: which path leads where (Base §8.1).

use std::collections::BTreeMap;

use ob_wire_nvme::log::{AnaGroup, AnaState, ana_log};
use ob_wire_nvme::{NamespaceId, Status};

use super::spec::PortKey;
use super::subsystem::Subsystem;

/// Whether an I/O command may go this way. None of these forbids a retry: another path may work.
pub(super) fn admit(state: AnaState) -> Result<(), Status> {
    match state {
        AnaState::Optimized | AnaState::NonOptimized => Ok(()),
        AnaState::Inaccessible => Err(Status::ANA_INACCESSIBLE),
        AnaState::PersistentLoss => Err(Status::ANA_PERSISTENT_LOSS),
        AnaState::Change => Err(Status::ANA_TRANSITION),
    }
}

/// The log as it is seen through a port: groups that have namespaces.
pub(super) fn log(subsystem: &Subsystem, port: PortKey, groups_only: bool) -> Vec<u8> {
    let mut members: BTreeMap<u32, Vec<NamespaceId>> = BTreeMap::new();
    for namespace in subsystem.namespaces() {
        members.entry(namespace.ana_group).or_default().push(NamespaceId(namespace.nsid));
    }
    let groups: Vec<_> = members
        .into_iter()
        .map(|(group, namespaces)| AnaGroup {
            group,
            changes: subsystem.ana_changes(group),
            state: subsystem.ana_state(port, group),
            namespaces,
        })
        .collect();
    ana_log(subsystem.ana_change_count, &groups, groups_only)
}
