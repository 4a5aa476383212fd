//! Identify (Base §5.17, NVM §4.1.5): what a controller and its namespaces are.
//!
//! ```text
//!   CNS 01 controller ── 06 its I/O command set ── 02 active namespaces ──▶ for each: 03 ids, 08 and 00 and 05 what it is
//! ```

mod controller;
mod list;
mod namespace;

#[cfg(test)]
mod tests;

use crate::command::{AdminOpcode, DataPointer, SubmissionEntry};
use crate::id::{CommandId, ControllerId, NamespaceId};
use crate::status::Status;

pub use controller::{
    CommandSetController, Controller, ControllerDescription, ControllerKind, PowerState, ana_capability,
    async_event, attribute, command_support, log_support, multipath, sgl_support, write_cache,
};
pub use list::{
    CommandSetCombinations, ControllerList, IdDescriptorError, IdDescriptorHeader, NamespaceIds,
    NamespaceList,
};
pub use namespace::{
    BlockFormat, CommandSetNamespace, Geometry, IndependentNamespace, Namespace, NamespaceDescription,
    deallocation, namespace_feature, reservation_support,
};

/// Bytes of every answer to Identify.
pub const IDENTIFY_LEN: usize = 4096;

codes! {
    /// CNS: which structure is asked for (Base §5.17.1).
    Cns: u8, "CNS value" {
        /// A namespace, of the NVM command set.
        Namespace = 0x00,
        /// The controller.
        Controller = 0x01,
        /// Active namespaces.
        ActiveNamespaces = 0x02,
        /// A namespace's ids.
        NamespaceIds = 0x03,
        /// NVM sets.
        NvmSets = 0x04,
        /// A namespace, of the command set in CSI.
        CommandSetNamespace = 0x05,
        /// The controller, of the command set in CSI.
        CommandSetController = 0x06,
        /// Active namespaces of the command set in CSI.
        CommandSetActiveNamespaces = 0x07,
        /// A namespace, whatever its command set.
        IndependentNamespace = 0x08,
        /// Allocated namespaces.
        AllocatedNamespaces = 0x10,
        /// An allocated namespace.
        AllocatedNamespace = 0x11,
        /// Controllers that a namespace is attached to.
        NamespaceControllers = 0x12,
        /// Controllers of the subsystem.
        Controllers = 0x13,
        /// Primary controller capabilities.
        PrimaryController = 0x14,
        /// Secondary controllers.
        SecondaryControllers = 0x15,
        /// Namespace granularities.
        Granularities = 0x16,
        /// UUIDs of vendors.
        Uuids = 0x17,
        /// I/O command sets that go together.
        CommandSets = 0x1C,
    }

    /// CSI: I/O command sets (Base §5.17.1).
    CommandSet: u8, "I/O command set" {
        /// Blocks.
        Nvm = 0,
        /// Keys and values.
        KeyValue = 1,
        /// Zones.
        Zoned = 2,
    }
}

/// The fields of an Identify. CNS and CSI are left as they came: which of them there are is the controller's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identify {
    /// CNS, see [`Cns`].
    pub structure: u8,
    /// CNTID.
    pub controller: ControllerId,
    /// CNSSID.
    pub specific: u16,
    /// CSI, see [`CommandSet`].
    pub command_set: u8,
    /// NSID.
    pub namespace: NamespaceId,
}

impl Identify {
    /// Of a structure and a namespace, or [`NamespaceId::NONE`].
    #[must_use]
    pub const fn new(structure: Cns, namespace: NamespaceId) -> Self {
        Self {
            structure: structure.code(),
            controller: ControllerId(0),
            specific: 0,
            command_set: 0,
            namespace,
        }
    }

    /// Reads the entry.
    #[must_use]
    pub fn parse(entry: &SubmissionEntry) -> Self {
        let (dword10, dword11) = (entry.dword10.get(), entry.dword11.get());
        Self {
            structure: dword10 as u8,
            controller: ControllerId((dword10 >> 16) as u16),
            specific: dword11 as u16,
            command_set: (dword11 >> 24) as u8,
            namespace: entry.namespace(),
        }
    }

    /// The entry. The answer has [`IDENTIFY_LEN`] bytes.
    #[must_use]
    pub fn encode(&self, command: CommandId) -> SubmissionEntry {
        SubmissionEntry {
            dword10: (u32::from(self.structure) | u32::from(self.controller.0) << 16).into(),
            dword11: (u32::from(self.specific) | u32::from(self.command_set) << 24).into(),
            ..SubmissionEntry::new(AdminOpcode::Identify.code(), command, self.namespace)
        }
        .with_data(DataPointer::Transport { len: IDENTIFY_LEN as u32 })
    }

    /// The structure, if it is a known one: an invalid field otherwise.
    pub fn cns(&self) -> Result<Cns, Status> {
        Cns::try_from(self.structure).map_err(|_| Status::INVALID_FIELD.with_do_not_retry())
    }
}
