//! Identify (Base §5.17): what the controller and its namespaces are.

use std::sync::atomic::Ordering;

use ob_wire_nvme::fabrics::Version;
use ob_wire_nvme::identify::{
    Cns, CommandSet, CommandSetCombinations, CommandSetController, CommandSetNamespace, Controller as Page,
    ControllerDescription, ControllerKind, ControllerList, IDENTIFY_LEN, Identify, NamespaceDescription,
    NamespaceIds, NamespaceList, ana_capability, async_event, command_support, deallocation, log_support,
    multipath, namespace_feature, reservation_support, write_cache,
};
use ob_wire_nvme::text::Nqn;
use ob_wire_nvme::{ControllerId, NamespaceId, Status};
use zerocopy::IntoBytes;

use super::async_event::HELD_MAX;
use super::connect::KEEP_ALIVE_UNIT_MS;
use super::controller::{Controller, ERROR_ENTRIES, Role};
use super::subsystem::{Namespace, Subsystem};
use super::{ANSWER_SHIFT, Control, ControlConfig, Request, Verdict};

/// What this target does with data: ONCS.
const COMMANDS: u16 = command_support::COMPARE
    | command_support::DATASET_MANAGEMENT
    | command_support::WRITE_ZEROES
    | command_support::RESERVATIONS
    | command_support::TIMESTAMP
    | command_support::VERIFY;

pub(super) fn command(control: &Control, request: &Request<'_>) -> Result<Verdict, Status> {
    if (request.transfer_len as usize) < IDENTIFY_LEN {
        return Err(Status::INVALID_SGL_LENGTH.with_do_not_retry());
    }
    let invalid = Status::INVALID_FIELD.with_do_not_retry();
    let identify = Identify::parse(request.command);
    let controller = control.controller(request.queue.controller).ok_or(invalid)?;
    let bytes = match controller.role {
        Role::Discovery if identify.cns()? == Cns::Controller => {
            discovery_controller(control, controller).as_bytes().to_vec()
        }
        Role::Discovery => return Err(invalid),
        Role::Io(key) => {
            let subsystem = control.subsystem(key).ok_or(invalid)?;
            View { control, controller, subsystem, role: controller.role }.page(&identify)?
        }
    };
    Ok(Verdict::Data { bytes, result: 0 })
}

/// What one I/O controller sees.
struct View<'a> {
    control: &'a Control,
    controller: &'a Controller,
    subsystem: &'a Subsystem,
    role: Role,
}

impl View<'_> {
    fn page(&self, identify: &Identify) -> Result<Vec<u8>, Status> {
        let is_nvm = identify.command_set == CommandSet::Nvm.code();
        let nsid = identify.namespace.0;
        let invalid = Status::INVALID_FIELD.with_do_not_retry();
        let bytes = match identify.cns()? {
            Cns::Namespace | Cns::AllocatedNamespace => {
                let found = self.namespace_or_nothing(nsid)?;
                found.map_or(vec![0; IDENTIFY_LEN], |found| describe(found).namespace().as_bytes().to_vec())
            }
            Cns::Controller => self.controller_page().as_bytes().to_vec(),
            Cns::ActiveNamespaces | Cns::AllocatedNamespaces => self.namespaces(nsid)?,
            Cns::CommandSetActiveNamespaces if is_nvm => self.namespaces(nsid)?,
            Cns::NamespaceIds => ids(self.namespace(nsid)?),
            Cns::CommandSetNamespace if is_nvm => {
                self.namespace_or_nothing(nsid)?;
                CommandSetNamespace::default().as_bytes().to_vec()
            }
            Cns::CommandSetController if is_nvm => CommandSetController {
                write_zeroes_max: self.control.config.write_zeroes_shift,
                // All three or none (NVM §3.2.3.1). A command that names more is served all the same.
                deallocate_ranges_max: u8::MAX,
                deallocate_range_blocks_max: self.control.config.deallocate_blocks_max.into(),
                deallocate_blocks_max: u64::from(self.control.config.deallocate_blocks_max).into(),
                ..CommandSetController::default()
            }
            .as_bytes()
            .to_vec(),
            Cns::IndependentNamespace => describe(self.namespace(nsid)?).independent().as_bytes().to_vec(),
            Cns::NamespaceControllers => {
                self.namespace(nsid)?;
                self.controllers(identify.controller)
            }
            Cns::Controllers => self.controllers(identify.controller),
            Cns::CommandSets => CommandSetCombinations::nvm().as_bytes().to_vec(),
            _ => return Err(invalid),
        };
        Ok(bytes)
    }

    /// A namespace that is there.
    fn namespace(&self, nsid: u32) -> Result<&Namespace, Status> {
        self.subsystem.namespace(nsid).ok_or(Status::INVALID_NAMESPACE.with_do_not_retry())
    }

    /// A namespace, or nothing where one could be: that is answered with zeroes (NVM §4.1.5.1).
    fn namespace_or_nothing(&self, nsid: u32) -> Result<Option<&Namespace>, Status> {
        if nsid == 0 || nsid > self.control.config.namespaces_max {
            return Err(Status::INVALID_NAMESPACE.with_do_not_retry());
        }
        Ok(self.subsystem.namespace(nsid))
    }

    fn namespaces(&self, after: u32) -> Result<Vec<u8>, Status> {
        let ids = self.subsystem.namespaces().map(|namespace| NamespaceId(namespace.nsid));
        Ok(NamespaceList::new(NamespaceId(after), ids)?.as_bytes().to_vec())
    }

    fn controllers(&self, from: ControllerId) -> Vec<u8> {
        let all = self.control.controllers.iter().flatten();
        let mut ids: Vec<_> =
            all.filter(|other| other.role == self.role).map(|controller| controller.cntlid).collect();
        ids.sort_unstable();
        ControllerList::new(from, ids).as_bytes().to_vec()
    }

    fn controller_page(&self) -> Page {
        let config = &self.control.config;
        let spec = &self.subsystem.spec;
        let mut page = Page::new(&ControllerDescription {
            kind: ControllerKind::Io,
            multipath: multipath::PORTS | multipath::CONTROLLERS | multipath::ANA,
            async_events: async_event::NAMESPACES | async_event::ANA,
            namespaces_max: config.namespaces_max,
            commands: COMMANDS,
            has_compare_and_write: true,
            // Whatever its namespaces are now: Linux reads this when it connects, and never flushes one that comes later if there
            // was no cache then.
            write_cache: write_cache::FLUSH_ALL_REFUSED | write_cache::PRESENT,
            log_attributes: log_support::EFFECTS | log_support::EXTENDED,
            ana_groups: config.ana_groups_max,
            transfer_max: self.control.transfer_shift,
            serial: &spec.serial,
            model: &spec.model,
            firmware: &spec.firmware,
            ..base(config, self.controller.cntlid, &spec.nqn)
        });
        page.ana_transition_seconds =
            u8::try_from(config.ana_transition_time.as_secs()).unwrap_or(u8::MAX).max(1);
        page.ana_capabilities |= ana_capability::GROUP_FIXED;
        page
    }
}

/// What both kinds of controllers have in common.
fn base<'a>(
    config: &ControlConfig,
    controller: ControllerId,
    subsystem: &'a Nqn,
) -> ControllerDescription<'a> {
    ControllerDescription {
        kind: ControllerKind::Discovery,
        controller,
        version: Version::V1_4,
        subsystem,
        serial: "discovery",
        model: "Outboard discovery",
        firmware: env!("CARGO_PKG_VERSION"),
        multipath: 0,
        transfer_max: ANSWER_SHIFT,
        async_events: async_event::DISCOVERY,
        async_event_limit: HELD_MAX as u8,
        keep_alive_100ms: (KEEP_ALIVE_UNIT_MS / 100) as u16,
        commands_max: config.queue_depth_max,
        namespaces_max: 0,
        commands: 0,
        has_compare_and_write: false,
        write_cache: 0,
        capsule_data_max: config.in_capsule_len,
        error_log_entries: ERROR_ENTRIES as u8,
        log_attributes: log_support::EXTENDED,
        ana_groups: 0,
    }
}

fn discovery_controller(control: &Control, controller: &Controller) -> Page {
    Page::new(&base(&control.config, controller.cntlid, &Nqn::discovery()))
}

fn describe(namespace: &Namespace) -> NamespaceDescription {
    // Where deallocated blocks may read as anything, Write Zeroes cannot deallocate (NVM §3.3.8, DEAC).
    let deallocation = match namespace.deallocated_reads_zero {
        true => deallocation::READS_ZEROS | deallocation::WRITE_ZEROES,
        false => 0,
    };
    let taken = namespace.taken.as_ref().map(|taken| taken.load(Ordering::Relaxed));
    let taken = taken.map(|bytes| bytes.div_ceil(u64::from(namespace.block_len)));
    let deallocate_blocks = (namespace.deallocate_len / namespace.block_len.max(1)).max(1);
    let thin = if taken.is_some() { namespace_feature::THIN } else { 0 };
    let optimal = if deallocate_blocks > 1 { namespace_feature::OPTIMAL } else { 0 };
    NamespaceDescription {
        blocks: namespace.blocks,
        // Space is taken in larger units than blocks, so that the last of them may reach beyond the end.
        used: taken.map_or(namespace.blocks, |taken| taken.min(namespace.blocks)),
        // 512 or 4096 and nothing else: its shift is small.
        block_shift: namespace.block_len.trailing_zeros() as u8,
        features: thin | optimal,
        is_shared: true,
        reservations: reservation_support::PERSIST
            | reservation_support::ALL_TYPES
            | reservation_support::IGNORE_KEY_1_3,
        deallocation,
        ana_group: namespace.ana_group,
        is_write_protected: namespace.read_only,
        nguid: namespace.nguid,
        eui64: [0; 8],
        // Any block is as good to write as any other.
        write_blocks: 1,
        deallocate_blocks,
    }
}

fn ids(namespace: &Namespace) -> Vec<u8> {
    let ids = NamespaceIds {
        eui64: None,
        nguid: (namespace.nguid != [0; 16]).then_some(namespace.nguid),
        uuid: Some(namespace.uuid),
        command_set: Some(CommandSet::Nvm.code()),
    };
    ids.encode().to_vec()
}
