//! What an administrator changes while hosts are connected; each change raises the events that hosts wait for.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use ob_wire_nvme::log::AnaState;
use ob_wire_nvme::text::Nqn;

use super::Control;
use super::async_event::Event;
use super::controller::{Controller, Role};
use super::reservation::ReservationState;
use super::spec::{AdminError, NamespaceKey, NamespaceSpec, PortKey, PortSpec, SubsystemKey, SubsystemSpec};
use super::subsystem::{Namespace, Subsystem};

impl Control {
    /// Adds a subsystem. Discovery offers it on its ports.
    pub fn add_subsystem(&mut self, spec: SubsystemSpec) -> Result<SubsystemKey, AdminError> {
        if spec.nqn.is_discovery() || self.subsystem_named(&spec.nqn).is_some() {
            return Err(AdminError::SubsystemExists(spec.nqn));
        }
        let (first, last) = (spec.controller_first, spec.controller_last);
        if first > last || last >= 0xFFF0 {
            return Err(AdminError::ControllerRange { first, last });
        }
        check_text("serial number", &spec.serial, 20)?;
        check_text("model", &spec.model, 40)?;
        check_text("firmware", &spec.firmware, 8)?;
        let index = u32::try_from(self.subsystems.len()).map_err(|_| AdminError::UnknownSubsystem)?;
        let mut start = [0; 2];
        if let Some(random) = &mut self.random {
            random(&mut start);
        }
        let start = u16::from_le_bytes(start);
        self.subsystems.push(Subsystem::new(spec, self.config.ana_groups_max, start));
        self.discovery_changed();
        Ok(SubsystemKey(index))
    }

    /// Adds a port: an address that hosts may connect to.
    pub fn add_port(&mut self, spec: PortSpec) -> Result<(), AdminError> {
        if self.ports.iter().any(|port| port.port == spec.port) {
            return Err(AdminError::PortExists(spec.port.0));
        }
        check_text("address", &spec.address.address, 256)?;
        self.ports.push(spec);
        self.discovery_changed();
        Ok(())
    }

    /// Adds a namespace; returns its NSID.
    pub fn add_namespace(&mut self, key: SubsystemKey, spec: &NamespaceSpec) -> Result<u32, AdminError> {
        let max = self.config.namespaces_max;
        let groups = self.config.ana_groups_max;
        check_geometry(spec, groups)?;
        if self.is_id_taken(spec) {
            return Err(AdminError::DuplicateId);
        }
        let namespace = NamespaceKey(self.namespaces_made + 1);
        let subsystem = self.subsystem_mut(key).ok_or(AdminError::UnknownSubsystem)?;
        let nsid = match spec.nsid {
            None => subsystem.free_nsid(max).ok_or(AdminError::NamespacesFull)?,
            Some(nsid) if nsid == 0 || nsid > max || subsystem.namespace(nsid).is_some() => {
                return Err(AdminError::BadNamespaceId { nsid, max });
            }
            Some(nsid) => nsid,
        };
        subsystem.insert(Namespace {
            key: namespace,
            nsid,
            backing: spec.backing,
            blocks: spec.blocks,
            block_len: spec.block_len,
            uuid: spec.uuid,
            nguid: spec.nguid,
            volatile_cache: spec.volatile_cache,
            deallocated_reads_zero: spec.deallocated_reads_zero,
            deallocate_len: spec.deallocate_len,
            ana_group: spec.ana_group,
            read_only: spec.read_only,
            taken: None,
            reservations: ReservationState::default(),
            saving: None,
        });
        self.namespaces_made += 1;
        self.namespace_changed(key, nsid);
        Ok(nsid)
    }

    /// Says which opcodes of I/O queues a service answers, so that the log of effects lists them.
    pub(in crate::target) fn set_foreign_opcodes(&mut self, opcodes: Vec<u8>) {
        self.foreign_opcodes = opcodes;
    }

    /// Says how long transfers are at most: `4096 << shift` bytes (MDTS).
    pub(in crate::target) fn set_transfer_shift(&mut self, shift: u8) {
        self.transfer_shift = shift;
    }

    /// Says that a namespace takes space as it is written (THINP), and where the bytes are counted that it has taken (NUSE).
    pub fn count_taken(
        &mut self,
        key: SubsystemKey,
        nsid: u32,
        taken: Arc<AtomicU64>,
    ) -> Result<(), AdminError> {
        let subsystem = self.subsystem_mut(key).ok_or(AdminError::UnknownSubsystem)?;
        let namespace = subsystem.namespace_mut(nsid).ok_or(AdminError::UnknownNamespace(nsid))?;
        namespace.taken = Some(taken);
        Ok(())
    }

    /// Removes a namespace. Commands in flight finish; later ones find no namespace.
    pub fn remove_namespace(&mut self, key: SubsystemKey, nsid: u32) -> Result<NamespaceKey, AdminError> {
        let subsystem = self.subsystem_mut(key).ok_or(AdminError::UnknownSubsystem)?;
        let removed = subsystem.remove(nsid).ok_or(AdminError::UnknownNamespace(nsid))?;
        self.namespace_changed(key, nsid);
        Ok(removed.key)
    }

    /// Changes a namespace's size.
    pub fn resize_namespace(&mut self, key: SubsystemKey, nsid: u32, blocks: u64) -> Result<(), AdminError> {
        let namespace = self.namespace_for_change(key, nsid)?;
        check_blocks(blocks, namespace.block_len)?;
        if namespace.blocks != blocks {
            namespace.blocks = blocks;
            self.namespace_changed(key, nsid);
        }
        Ok(())
    }

    /// Allows or refuses writes.
    pub fn set_read_only(&mut self, key: SubsystemKey, nsid: u32, read_only: bool) -> Result<(), AdminError> {
        let namespace = self.namespace_for_change(key, nsid)?;
        if namespace.read_only != read_only {
            namespace.read_only = read_only;
            self.namespace_changed(key, nsid);
        }
        Ok(())
    }

    /// Sets how an ANA group is reached through a port. Optimized is what every group is at first.
    pub fn set_ana_state(
        &mut self,
        key: SubsystemKey,
        port: PortKey,
        group: u32,
        state: AnaState,
    ) -> Result<(), AdminError> {
        let max = self.config.ana_groups_max;
        if group == 0 || group > max {
            return Err(AdminError::BadAnaGroup { group, max });
        }
        if !self.ports.iter().any(|spec| spec.port == port) {
            return Err(AdminError::UnknownPort(port.0));
        }
        let subsystem = self.subsystem_mut(key).ok_or(AdminError::UnknownSubsystem)?;
        if subsystem.set_ana_state(port, group, state) {
            let applies = |controller: &mut Controller| {
                controller.role == Role::Io(key) && controller.path.port == port
            };
            self.raise_where(Event::AnaChanged, applies);
        }
        Ok(())
    }

    /// A namespace's reservations, to be saved with [`ReservationState::encode`].
    pub fn reservations(&self, key: SubsystemKey, nsid: u32) -> Result<&ReservationState, AdminError> {
        let subsystem = self.subsystem(key).ok_or(AdminError::UnknownSubsystem)?;
        let namespace = subsystem.namespace(nsid).ok_or(AdminError::UnknownNamespace(nsid))?;
        Ok(&namespace.reservations)
    }

    /// Gives a namespace the reservations that were saved in an earlier life. What was not to survive a loss of power is
    /// not in what [`ReservationState::decode`] returns.
    pub fn restore_reservations(
        &mut self,
        key: SubsystemKey,
        nsid: u32,
        state: ReservationState,
    ) -> Result<(), AdminError> {
        self.namespace_for_change(key, nsid)?.reservations = state;
        Ok(())
    }

    /// A namespace's reservations are saved, up to this version.
    pub(in crate::target) fn reservations_saved(&mut self, namespace: NamespaceKey, version: u64) {
        let subsystems = self.subsystems.iter_mut();
        let found = subsystems.filter_map(|subsystem| subsystem.namespace_with_key(namespace)).next();
        if let Some(found) = found.filter(|found| found.saving.is_some_and(|saving| saving <= version)) {
            found.saving = None;
        }
    }

    /// The namespaces of a subsystem, ascending by NSID.
    pub fn namespaces(&self, key: SubsystemKey) -> impl Iterator<Item = &Namespace> {
        self.subsystem(key).into_iter().flat_map(Subsystem::namespaces)
    }

    /// The subsystems, with their names.
    pub fn subsystems(&self) -> impl Iterator<Item = (SubsystemKey, &Nqn)> {
        (0..).map(SubsystemKey).zip(self.subsystems.iter().map(|subsystem| &subsystem.spec.nqn))
    }

    /// How many controllers there are.
    #[must_use]
    pub fn controllers(&self) -> usize {
        self.controllers.iter().flatten().count()
    }

    /// How many controllers a subsystem has: hosts, as often as they are connected.
    #[must_use]
    pub fn controllers_of(&self, key: SubsystemKey) -> usize {
        let all = self.controllers.iter().flatten();
        let of = all.filter(|controller| matches!(controller.role, Role::Io(of) if of == key));
        of.filter(|controller| !controller.lingers()).count()
    }

    fn namespace_for_change(&mut self, key: SubsystemKey, nsid: u32) -> Result<&mut Namespace, AdminError> {
        let subsystem = self.subsystem_mut(key).ok_or(AdminError::UnknownSubsystem)?;
        subsystem.namespace_mut(nsid).ok_or(AdminError::UnknownNamespace(nsid))
    }

    fn is_id_taken(&self, spec: &NamespaceSpec) -> bool {
        self.subsystems.iter().flat_map(Subsystem::namespaces).any(|namespace| {
            namespace.uuid == spec.uuid || (spec.nguid != [0; 16] && namespace.nguid == spec.nguid)
        })
    }

    fn namespace_changed(&mut self, key: SubsystemKey, nsid: u32) {
        let applies = |controller: &mut Controller| {
            if controller.role != Role::Io(key) {
                return false;
            }
            controller.changed_namespaces.insert(nsid);
            true
        };
        self.raise_where(Event::NamespaceChanged, applies);
    }

    fn discovery_changed(&mut self) {
        self.discovery_generation = self.discovery_generation.wrapping_add(1);
        self.raise_where(Event::DiscoveryChanged, |controller| controller.role == Role::Discovery);
    }
}

fn check_text(what: &'static str, text: &str, max: usize) -> Result<(), AdminError> {
    let is_fine =
        !text.is_empty() && text.len() <= max && text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if is_fine { Ok(()) } else { Err(AdminError::BadText(what)) }
}

fn check_geometry(spec: &NamespaceSpec, groups: u32) -> Result<(), AdminError> {
    if spec.block_len != 512 && spec.block_len != 4096 {
        return Err(AdminError::BadBlockLen(spec.block_len));
    }
    if spec.ana_group == 0 || spec.ana_group > groups {
        return Err(AdminError::BadAnaGroup { group: spec.ana_group, max: groups });
    }
    check_blocks(spec.blocks, spec.block_len)
}

fn check_blocks(blocks: u64, block_len: u32) -> Result<(), AdminError> {
    let bytes = blocks.checked_mul(u64::from(block_len)).filter(|bytes| *bytes > 0 && *bytes < 1 << 63);
    bytes.map(|_| ()).ok_or(AdminError::BadBlocks(blocks))
}
