//! `outboard nvme id`: what a controller says of itself and of a namespace, in words.

use ob_nvme::initiator::{Data, Error, Initiator, RawCommand, block_on};
use ob_wire_nvme::fabrics::{Capabilities, Property, PropertyAccess, Version};
use ob_wire_nvme::feature::{FeatureId, QueueCounts, SetFeatures};
use ob_wire_nvme::identify::{
    Controller, ControllerKind, Namespace, NamespaceIds, ana_capability, async_event, attribute,
    command_support, deallocation, log_support, multipath, namespace_feature, reservation_support,
    sgl_support, write_cache,
};
use ob_wire_nvme::text::unpadded;
use ob_wire_nvme::{CommandId, NamespaceId, SubmissionEntry};
use serde::Serialize;

use super::command::IdOptions;
use super::connect::{Losses, Target};
use super::error::InitiatorError;
use crate::nvme::{hex, uuid_text};
use crate::terminal::{HEADING, bytes, say, styled};

/// What a controller says of itself.
#[derive(Serialize)]
struct ControllerIdentity {
    subsystem: String,
    serial: String,
    model: String,
    firmware: String,
    version: String,
    #[serde(rename = "type")]
    kind: String,
    controller_id: u16,
    vendor: u16,
    subsystem_vendor: u16,
    oui: String,
    transfer_bytes_max: Option<u64>,
    io_queues: Option<u16>,
    queue_entries_max: u32,
    commands_max: u16,
    in_capsule_bytes: u32,
    capsule_data_offset: u32,
    sgl_descriptors: u8,
    sgls: Vec<&'static str>,
    submission_entry_bytes: u32,
    completion_entry_bytes: u32,
    namespace_id_max: u32,
    namespaces_max: u32,
    capacity_bytes: String,
    unallocated_bytes: String,
    multipath: Vec<&'static str>,
    ana: Option<AnaIdentity>,
    commands: Vec<&'static str>,
    fused_compare_and_write: bool,
    volatile_write_cache: bool,
    flush_of_all_namespaces: &'static str,
    atomic_write_blocks: u32,
    atomic_write_power_fail_blocks: u32,
    atomic_compare_and_write_blocks: u32,
    write_protection: u8,
    async_events: Vec<&'static str>,
    async_event_requests: u32,
    aborts: u32,
    attributes: Vec<&'static str>,
    keep_alive_ms: u32,
    command_retry_delays_ms: [u32; 3],
    error_log_entries: u32,
    logs: Vec<&'static str>,
    admin_commands: u16,
    firmware_slots: u8,
    firmware_slot_1_read_only: bool,
    power_states: u32,
    warning_temperature_kelvin: u16,
    critical_temperature_kelvin: u16,
    sanitize: u32,
    domain: u16,
    fabrics_disconnect: bool,
    dynamic_controllers: bool,
}

/// Asymmetric namespace access.
#[derive(Serialize)]
struct AnaIdentity {
    groups: u32,
    group_max: u32,
    transition_seconds: u8,
    states: Vec<&'static str>,
    group_is_fixed: bool,
}

/// What a controller says of a namespace.
#[derive(Serialize)]
struct NamespaceIdentity {
    nsid: u32,
    size: Option<u64>,
    blocks: u64,
    capacity_blocks: u64,
    used_blocks: u64,
    block_len: Option<u32>,
    formats: u32,
    uuid: Option<String>,
    nguid: Option<String>,
    eui64: Option<String>,
    command_set: Option<u8>,
    features: Vec<&'static str>,
    is_shared: bool,
    is_write_protected: bool,
    reservations: Vec<&'static str>,
    deallocated_reads_zeros: bool,
    write_zeroes_may_deallocate: bool,
    ana_group: u32,
    atomic_write_blocks: u32,
    atomic_write_power_fail_blocks: u32,
    atomic_compare_and_write_blocks: u32,
    optimal_write_blocks: Option<u32>,
    write_granularity_blocks: Option<u32>,
    deallocate_granularity_blocks: Option<u32>,
    capacity_bytes: String,
    protection: u8,
}

/// All that is shown.
#[derive(Serialize)]
struct Identity {
    controller: ControllerIdentity,
    namespace: Option<NamespaceIdentity>,
}

/// The names of the bits that are set.
fn named<T: Copy + std::ops::BitAnd<Output = T> + PartialEq + Default>(
    bits: T,
    names: &[(T, &'static str)],
) -> Vec<&'static str> {
    names.iter().filter(|(bit, _)| bits & *bit != T::default()).map(|(_, name)| *name).collect()
}

impl ControllerIdentity {
    fn new(identity: &Controller, capabilities: Capabilities, io_queues: Option<u16>) -> Self {
        let version = Version::from_bits(identity.version.get());
        let unit = 1_u64 << capabilities.page_shift_min;
        let sqes = u32::from(identity.submission_entry & 0xF);
        let cqes = u32::from(identity.completion_entry & 0xF);
        let from_zero = |count: u16| u32::from(count) + 1;
        let delays = [identity.retry_delay1, identity.retry_delay2, identity.retry_delay3];
        Self {
            subsystem: unpadded(&identity.subsystem),
            serial: unpadded(&identity.serial),
            model: unpadded(&identity.model),
            firmware: unpadded(&identity.firmware),
            version: format!("{}.{}.{}", version.major, version.minor, version.tertiary),
            kind: kind_name(identity.kind),
            controller_id: identity.controller_id.get(),
            vendor: identity.vendor.get(),
            subsystem_vendor: identity.subsystem_vendor.get(),
            oui: hex(&[identity.oui[2], identity.oui[1], identity.oui[0]]),
            transfer_bytes_max: identity.transfer_bytes_max().map(|bytes| bytes.saturating_mul(unit)),
            io_queues,
            queue_entries_max: capabilities.queue_entries_max,
            commands_max: identity.commands_max.get(),
            in_capsule_bytes: identity.capsule_data_max(),
            capsule_data_offset: u32::from(identity.capsule_data_offset.get()) * 16,
            sgl_descriptors: identity.sgl_descriptors,
            sgls: named(identity.sgls.get(), SGLS),
            submission_entry_bytes: if sqes == 0 { 0 } else { 1 << sqes },
            completion_entry_bytes: if cqes == 0 { 0 } else { 1 << cqes },
            namespace_id_max: identity.namespaces.get(),
            namespaces_max: identity.namespaces_max.get(),
            // Larger than a JSON number can be read exactly.
            capacity_bytes: identity.capacity_total.get().to_string(),
            unallocated_bytes: identity.capacity_unallocated.get().to_string(),
            multipath: named(identity.multipath, MULTIPATH),
            ana: (identity.multipath & multipath::ANA != 0).then(|| AnaIdentity::new(identity)),
            commands: named(identity.commands.get(), COMMANDS),
            fused_compare_and_write: identity.fused.get() & 1 != 0,
            volatile_write_cache: identity.write_cache & write_cache::PRESENT != 0,
            flush_of_all_namespaces: match identity.write_cache & write_cache::FLUSH_ALL {
                write_cache::FLUSH_ALL => "supported",
                write_cache::FLUSH_ALL_REFUSED => "refused",
                _ => "not said",
            },
            atomic_write_blocks: from_zero(identity.atomic_write.get()),
            atomic_write_power_fail_blocks: from_zero(identity.atomic_write_power_fail.get()),
            atomic_compare_and_write_blocks: from_zero(identity.atomic_compare_and_write.get()),
            write_protection: identity.write_protection,
            async_events: named(identity.async_events.get(), ASYNC_EVENTS),
            async_event_requests: u32::from(identity.async_event_limit) + 1,
            aborts: u32::from(identity.abort_limit) + 1,
            attributes: named(identity.attributes.get(), ATTRIBUTES),
            keep_alive_ms: u32::from(identity.keep_alive_100ms.get()) * 100,
            command_retry_delays_ms: delays.map(|delay| u32::from(delay.get()) * 100),
            error_log_entries: u32::from(identity.error_log_entries) + 1,
            logs: named(identity.log_attributes, LOGS),
            admin_commands: identity.admin_commands.get(),
            firmware_slots: identity.firmware_updates >> 1 & 7,
            firmware_slot_1_read_only: identity.firmware_updates & 1 != 0,
            power_states: u32::from(identity.power_states) + 1,
            warning_temperature_kelvin: identity.warning_temperature.get(),
            critical_temperature_kelvin: identity.critical_temperature.get(),
            sanitize: identity.sanitize.get(),
            domain: identity.domain.get(),
            fabrics_disconnect: identity.fabrics_commands.get() & 1 != 0,
            dynamic_controllers: identity.fabrics_attributes & 1 == 0,
        }
    }
}

fn kind_name(code: u8) -> String {
    match ControllerKind::try_from(code) {
        Ok(ControllerKind::Io) => "io".to_owned(),
        Ok(ControllerKind::Discovery) => "discovery".to_owned(),
        Ok(ControllerKind::Administrative) => "administrative".to_owned(),
        Err(_) => format!("unknown ({code})"),
    }
}

const SGLS: &[(u32, &str)] = &[
    (sgl_support::ANY, "any alignment"),
    (1 << 1, "dword alignment"),
    (1 << 2, "keyed"),
    (sgl_support::OFFSET, "offset in capsule"),
    (sgl_support::TRANSPORT, "transport"),
];
const MULTIPATH: &[(u8, &str)] = &[
    (multipath::PORTS, "several ports"),
    (multipath::CONTROLLERS, "several controllers"),
    (1 << 2, "virtual function"),
    (multipath::ANA, "ana"),
];
const COMMANDS: &[(u16, &str)] = &[
    (command_support::COMPARE, "compare"),
    (command_support::WRITE_UNCORRECTABLE, "write uncorrectable"),
    (command_support::DATASET_MANAGEMENT, "dataset management"),
    (command_support::WRITE_ZEROES, "write zeroes"),
    (command_support::SAVE, "save features"),
    (command_support::RESERVATIONS, "reservations"),
    (command_support::TIMESTAMP, "timestamp"),
    (command_support::VERIFY, "verify"),
    (command_support::COPY, "copy"),
];
const ASYNC_EVENTS: &[(u32, &str)] = &[
    (async_event::NAMESPACES, "namespaces"),
    (async_event::FIRMWARE, "firmware"),
    (async_event::ANA, "ana"),
    (async_event::DISCOVERY, "discovery"),
];
const ATTRIBUTES: &[(u32, &str)] = &[
    (attribute::HOST_ID_128, "host ids of 128 bits"),
    (attribute::TRAFFIC_KEEPS_ALIVE, "traffic keeps alive"),
];
const LOGS: &[(u8, &str)] = &[
    (log_support::SMART_NAMESPACE, "health of a namespace"),
    (log_support::EFFECTS, "commands and effects"),
    (log_support::EXTENDED, "offsets"),
    (log_support::SUPPORTED_LOGS, "supported logs"),
];
const ANA_STATES: &[(u8, &str)] = &[
    (ana_capability::OPTIMIZED, "optimized"),
    (ana_capability::NON_OPTIMIZED, "non-optimized"),
    (ana_capability::INACCESSIBLE, "inaccessible"),
    (ana_capability::PERSISTENT_LOSS, "persistent loss"),
    (ana_capability::CHANGE, "change"),
];
const NAMESPACE_FEATURES: &[(u8, &str)] = &[
    (namespace_feature::THIN, "thin"),
    (namespace_feature::ATOMIC, "atomic sizes of its own"),
    (namespace_feature::DEALLOCATED_ERROR, "deallocated blocks can be an error"),
    (namespace_feature::IDS_NOT_REUSED, "ids never used again"),
    (namespace_feature::OPTIMAL, "optimal sizes"),
];
const RESERVATIONS: &[(u8, &str)] = &[
    (reservation_support::PERSIST, "persistent"),
    (1 << 1, "write exclusive"),
    (1 << 2, "exclusive access"),
    (1 << 3, "write exclusive, registrants only"),
    (1 << 4, "exclusive access, registrants only"),
    (1 << 5, "write exclusive, all registrants"),
    (1 << 6, "exclusive access, all registrants"),
];

impl AnaIdentity {
    fn new(identity: &Controller) -> Self {
        Self {
            groups: identity.ana_groups.get(),
            group_max: identity.ana_group_max.get(),
            transition_seconds: identity.ana_transition_seconds,
            states: named(identity.ana_capabilities, ANA_STATES),
            group_is_fixed: identity.ana_capabilities & ana_capability::GROUP_FIXED != 0,
        }
    }
}

impl NamespaceIdentity {
    fn new(nsid: u32, namespace: &Namespace, ids: NamespaceIds) -> Self {
        let geometry = namespace.geometry();
        let is_set = |id: &[u8]| id.iter().any(|byte| *byte != 0);
        let has = |feature: u8| namespace.features & feature != 0;
        let from_zero = |count: u16| u32::from(count) + 1;
        let optimal = |count: u16| has(namespace_feature::OPTIMAL).then_some(from_zero(count));
        // The structure has these two as well; zeros mean none.
        let nguid = ids.nguid.or(Some(namespace.nguid).filter(|id| is_set(id)));
        let eui64 = ids.eui64.or(Some(namespace.eui64).filter(|id| is_set(id)));
        Self {
            nsid,
            size: geometry.map(|geometry| geometry.bytes()),
            blocks: namespace.blocks.get(),
            capacity_blocks: namespace.capacity.get(),
            used_blocks: namespace.used.get(),
            block_len: geometry.map(|geometry| geometry.block_len()),
            formats: u32::from(namespace.formats) + 1,
            uuid: ids.uuid.map(|id| uuid_text(&id)),
            nguid: nguid.map(|id| hex(&id)),
            eui64: eui64.map(|id| hex(&id)),
            command_set: ids.command_set,
            features: named(namespace.features, NAMESPACE_FEATURES),
            is_shared: namespace.sharing & 1 != 0,
            is_write_protected: namespace.attributes & 1 != 0,
            reservations: named(namespace.reservations, RESERVATIONS),
            deallocated_reads_zeros: namespace.deallocation & 7 == deallocation::READS_ZEROS,
            write_zeroes_may_deallocate: namespace.deallocation & deallocation::WRITE_ZEROES != 0,
            ana_group: namespace.ana_group.get(),
            atomic_write_blocks: from_zero(namespace.atomic_write.get()),
            atomic_write_power_fail_blocks: from_zero(namespace.atomic_write_power_fail.get()),
            atomic_compare_and_write_blocks: from_zero(namespace.atomic_compare_and_write.get()),
            optimal_write_blocks: optimal(namespace.optimal_write.get()),
            write_granularity_blocks: optimal(namespace.write_granularity.get()),
            deallocate_granularity_blocks: optimal(namespace.deallocate_granularity.get()),
            capacity_bytes: namespace.capacity_bytes.get().to_string(),
            protection: namespace.protection,
        }
    }
}

pub(super) fn identify(options: &IdOptions) -> Result<(), InitiatorError> {
    let target = Target::named(&options.subsystem)?;
    let identity = block_on(ask(&target, options.nsid))?;
    if options.json {
        say(&serde_json::to_string_pretty(&identity).map_err(std::io::Error::from)?)?;
        return Ok(());
    }
    say(&show_controller(&identity.controller))?;
    if let Some(namespace) = &identity.namespace {
        say(&format!("\n{}", show_namespace(namespace)))?;
    }
    Ok(())
}

async fn ask(target: &Target, nsid: Option<u32>) -> Result<Identity, InitiatorError> {
    let initiator = target.connect(0, Losses::Mended).await?;
    let failed = || InitiatorError::failed(format!("learn what {} is", target.subsystem));
    let controller = controller(&initiator).await.map_err(failed())?;
    let namespace = match nsid {
        None => None,
        Some(nsid) => {
            let described = initiator.describe(NamespaceId(nsid)).await.map_err(|error| match error {
                Error::NoSuchNamespace(nsid) => target.no_namespace(nsid),
                other => failed()(other),
            });
            let (layout, ids) = described?;
            Some(NamespaceIdentity::new(nsid, &layout, ids))
        }
    };
    initiator.disconnect().await;
    Ok(Identity { controller, namespace })
}

async fn controller(initiator: &Initiator) -> Result<ControllerIdentity, Error> {
    let identity = initiator.controller().await?;
    let property = PropertyAccess { property: Property::Capabilities, value: None };
    let capabilities = Capabilities::from_bits(value(initiator, property.encode(CommandId(0))).await?);
    // As many as there are is what a controller without I/O queues grants to one that asks for all.
    let all = QueueCounts { submission: u16::MAX, completion: u16::MAX };
    let request = SetFeatures {
        feature: FeatureId::NumberOfQueues.code(),
        is_saved: false,
        dword11: all.bits(),
        dword12: 0,
        dword13: 0,
        namespace: NamespaceId::NONE,
    };
    let queues = match value(initiator, request.encode(CommandId(0))).await {
        Ok(granted) => QueueCounts::parse(granted as u32).ok(),
        // Discovery controllers have none.
        Err(Error::Command { .. }) => None,
        Err(error) => return Err(error),
    };
    let queues = queues.map(|counts| counts.submission.min(counts.completion));
    Ok(ControllerIdentity::new(&identity, capabilities, queues))
}

async fn value(initiator: &Initiator, entry: SubmissionEntry) -> Result<u64, Error> {
    let command = RawCommand { entry, data: Data::None, is_idempotent: true };
    Ok(initiator.admin(command).await?.result)
}

fn lines(title: &str, rows: &[(&str, String)]) -> String {
    let mut text = styled(HEADING, title);
    for (name, value) in rows {
        text.push_str(&format!("\n  {name:<18} {value}"));
    }
    text
}

fn or_none(names: &[&str]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn yes_no(is: bool) -> String {
    if is { "yes" } else { "no" }.to_owned()
}

fn show_controller(one: &ControllerIdentity) -> String {
    let no_limit = || "no limit".to_owned();
    let ana = one
        .ana
        .as_ref()
        .map_or_else(|| "no".to_owned(), |ana| format!("{} groups, {}", ana.groups, or_none(&ana.states)));
    let queues = one.io_queues.map_or_else(|| "none".to_owned(), |queues| queues.to_string());
    let cache = match one.volatile_write_cache {
        true => format!("yes; a flush of all namespaces is {}", one.flush_of_all_namespaces),
        false => "no".to_owned(),
    };
    let atomic = format!(
        "{} when power fails, {} otherwise, {} for compare-and-write",
        blocks(one.atomic_write_power_fail_blocks),
        blocks(one.atomic_write_blocks),
        blocks(one.atomic_compare_and_write_blocks)
    );
    lines(
        &format!("controller {} of {}", one.controller_id, one.subsystem),
        &[
            ("serial", one.serial.clone()),
            ("model", one.model.clone()),
            ("firmware", one.firmware.clone()),
            ("type", format!("{}, NVMe {}", one.kind, one.version)),
            ("largest transfer", one.transfer_bytes_max.map_or_else(no_limit, bytes)),
            ("in-capsule data", bytes(u64::from(one.in_capsule_bytes))),
            ("I/O queues", format!("{queues}, of {} entries each", one.queue_entries_max)),
            ("namespaces", format!("up to {}", one.namespaces_max.max(one.namespace_id_max))),
            ("multipath", or_none(&one.multipath)),
            ("ANA", ana),
            ("commands", or_none(&one.commands)),
            ("compare-and-write", yes_no(one.fused_compare_and_write)),
            ("write cache", cache),
            ("atomic", atomic),
            ("events", format!("{}; {} at once", or_none(&one.async_events), one.async_event_requests)),
            ("keep alive", format!("in steps of {} ms", one.keep_alive_ms)),
            ("error log", format!("{} entries", one.error_log_entries)),
            ("logs", or_none(&one.logs)),
        ],
    )
}

fn blocks(count: u32) -> String {
    crate::terminal::counted(u64::from(count), "block", "blocks")
}

fn show_namespace(one: &NamespaceIdentity) -> String {
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let size = match (one.size, one.block_len) {
        (Some(size), Some(len)) => format!("{} ({} blocks of {len} bytes)", bytes(size), one.blocks),
        _ => format!("{} blocks of a format that cannot be used here", one.blocks),
    };
    let discard = match (one.deallocated_reads_zeros, one.write_zeroes_may_deallocate) {
        (true, true) => "reads zeros; write zeroes may deallocate",
        (true, false) => "reads zeros",
        (false, true) => "reads anything; write zeroes may deallocate",
        (false, false) => "reads anything",
    };
    lines(
        &format!("namespace {}", one.nsid),
        &[
            ("size", size),
            ("used", format!("{} blocks", one.used_blocks)),
            ("UUID", or_dash(&one.uuid)),
            ("NGUID", or_dash(&one.nguid)),
            ("EUI64", or_dash(&one.eui64)),
            ("shared", yes_no(one.is_shared)),
            ("write protected", yes_no(one.is_write_protected)),
            ("ANA group", one.ana_group.to_string()),
            ("reservations", or_none(&one.reservations)),
            ("deallocated", discard.to_owned()),
            ("features", or_none(&one.features)),
        ],
    )
}
