//! Features: what a host sets, and reads back (Base §5.15, §5.27).

use std::collections::BTreeMap;

use ob_core::Instant;
use ob_wire_nvme::feature::{
    FeatureId, FeatureSelect, GetFeatures, HostBehavior, QueueCounts, SetFeatures, Timestamp, feature_id,
    host_id_len, reservation_mask,
};
use ob_wire_nvme::identify::async_event;
use ob_wire_nvme::{NamespaceId, Status};
use zerocopy::{FromBytes, IntoBytes};

use super::connect::keep_alive_of;
use super::controller::{Controller, Role};
use super::{Control, Request, Verdict, reserve};

const INVALID: Status = Status::INVALID_FIELD.with_do_not_retry();

/// What the host of one controller has set.
#[derive(Debug)]
pub(super) struct Features {
    pub(super) write_cache: bool,
    pub(super) async_event_configuration: u32,
    /// Reservation notifications that are *not* told, by NSID.
    pub(super) reservation_masks: BTreeMap<u32, u32>,
    /// What was set, when, and whether a host did.
    timestamp: (u64, Instant, bool),
    behavior: HostBehavior,
    /// Features that change nothing here but can be read back.
    remembered: BTreeMap<u8, u32>,
}

impl Features {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            write_cache: true,
            async_event_configuration: 0,
            reservation_masks: BTreeMap::new(),
            timestamp: (0, now, false),
            behavior: HostBehavior::default(),
            remembered: BTreeMap::new(),
        }
    }

    fn timestamp(&self, now: Instant) -> Timestamp {
        let (set_to, at, by_host) = self.timestamp;
        let elapsed = u64::try_from(now.since(at).as_millis()).unwrap_or(u64::MAX);
        // Bits 3:1 say where the time is from: 1 is a host.
        Timestamp::new(set_to.wrapping_add(elapsed), u8::from(by_host) << 1)
    }
}

/// Whether a controller of this role has the feature.
fn is_known(role: Role, feature: FeatureId) -> bool {
    match feature {
        FeatureId::AsyncEvents | FeatureId::KeepAliveTimer | FeatureId::HostIdentifier => true,
        FeatureId::Arbitration
        | FeatureId::PowerManagement
        | FeatureId::TemperatureThreshold
        | FeatureId::ErrorRecovery
        | FeatureId::VolatileWriteCache
        | FeatureId::NumberOfQueues
        | FeatureId::WriteAtomicity
        | FeatureId::Timestamp
        | FeatureId::HostBehavior
        | FeatureId::ReservationMask
        | FeatureId::ReservationPersistence => role != Role::Discovery,
        _ => false,
    }
}

/// Get Features.
pub(super) fn get(control: &Control, request: &Request<'_>) -> Result<Verdict, Status> {
    let wanted = GetFeatures::parse(request.command)?;
    let feature = feature_id(wanted.feature)?;
    let controller = control.controller(request.queue.controller).ok_or(INVALID)?;
    // ONCS says that there is nothing but the current values.
    if wanted.select != FeatureSelect::Current || !is_known(controller.role, feature) {
        return Err(INVALID);
    }
    let features = &controller.features;
    let value = match feature {
        FeatureId::VolatileWriteCache => u32::from(features.write_cache),
        FeatureId::NumberOfQueues => {
            let count = controller.queues_granted;
            QueueCounts { submission: count, completion: count }.bits()
        }
        FeatureId::AsyncEvents => features.async_event_configuration,
        FeatureId::KeepAliveTimer => {
            let timeout = controller.keep_alive.map_or(0, |timeout| timeout.as_millis());
            u32::try_from(timeout).unwrap_or(u32::MAX)
        }
        FeatureId::Timestamp => return data(features.timestamp(request.now).as_bytes(), request),
        FeatureId::HostBehavior => return data(features.behavior.as_bytes(), request),
        FeatureId::HostIdentifier => {
            // Over fabrics a host's id has 128 bits (Base §5.27.1.25).
            if host_id_len(wanted.dword11) != controller.host_id.len() {
                return Err(INVALID);
            }
            return data(&controller.host_id, request);
        }
        FeatureId::ReservationMask => {
            namespace_of(control, controller, wanted.namespace)?;
            features.reservation_masks.get(&wanted.namespace.0).copied().unwrap_or(0)
        }
        FeatureId::ReservationPersistence => {
            return Ok(reserve::persistence(namespace_of(control, controller, wanted.namespace)?));
        }
        _ => features.remembered.get(&wanted.feature).copied().unwrap_or(0),
    };
    Ok(Verdict::value(u64::from(value)))
}

fn data(bytes: &[u8], request: &Request<'_>) -> Result<Verdict, Status> {
    if (request.transfer_len as usize) < bytes.len() {
        return Err(Status::INVALID_SGL_LENGTH.with_do_not_retry());
    }
    Ok(Verdict::Data { bytes: bytes.to_vec(), result: 0 })
}

fn subsystem_of<'a>(control: &'a Control, controller: &Controller) -> Result<&'a super::Subsystem, Status> {
    let Role::Io(subsystem) = controller.role else { return Err(INVALID) };
    control.subsystem(subsystem).ok_or(INVALID)
}

fn namespace_of<'a>(
    control: &'a Control,
    controller: &Controller,
    namespace: NamespaceId,
) -> Result<&'a super::Namespace, Status> {
    // A feature of a namespace cannot be read for all of them at once.
    if namespace == NamespaceId::ALL {
        return Err(INVALID);
    }
    let invalid = Status::INVALID_NAMESPACE.with_do_not_retry();
    subsystem_of(control, controller)?.namespace(namespace.0).ok_or(invalid)
}

/// Set Features.
pub(super) fn set(control: &mut Control, request: &Request<'_>) -> Result<Verdict, Status> {
    let wanted = SetFeatures::parse(request.command);
    let feature = feature_id(wanted.feature)?;
    let key = request.queue.controller;
    let controller = control.controller(key).ok_or(INVALID)?;
    if !is_known(controller.role, feature) {
        return Err(INVALID);
    }
    if wanted.is_saved {
        return Err(Status::FEATURE_NOT_SAVEABLE.with_do_not_retry());
    }
    match feature {
        // The id came with Connect and stays (Base §5.27.1.25).
        FeatureId::HostIdentifier => Err(Status::COMMAND_SEQUENCE_ERROR.with_do_not_retry()),
        FeatureId::ReservationMask => set_reservation_mask(control, request, &wanted),
        FeatureId::ReservationPersistence => {
            let persists = wanted.dword11 & 1 != 0;
            reserve::set_persistence(control, request, wanted.namespace, persists)
        }
        FeatureId::KeepAliveTimer => set_keep_alive(control, request, wanted.dword11),
        _ => set_on_controller(control, request, feature, &wanted),
    }
}

/// Features that concern the controller alone.
fn set_on_controller(
    control: &mut Control,
    request: &Request<'_>,
    feature: FeatureId,
    wanted: &SetFeatures,
) -> Result<Verdict, Status> {
    let queues_max = control.config.queues_max;
    let controller = control.controller_mut(request.queue.controller).ok_or(INVALID)?;
    let features = &mut controller.features;
    match feature {
        FeatureId::VolatileWriteCache => features.write_cache = wanted.dword11 & 1 != 0,
        FeatureId::NumberOfQueues => {
            let counts = QueueCounts::parse(wanted.dword11)?;
            if controller.has_io_queues() {
                return Err(Status::COMMAND_SEQUENCE_ERROR.with_do_not_retry());
            }
            let granted = counts.submission.min(counts.completion).min(queues_max);
            controller.queues_granted = granted;
            let answer = QueueCounts { submission: granted, completion: granted };
            return Ok(Verdict::value(u64::from(answer.bits())));
        }
        FeatureId::AsyncEvents => {
            // Critical warnings (7:0) never come, and may be asked for. Other notices than ours may not.
            let ours = match controller.role {
                Role::Discovery => async_event::DISCOVERY,
                Role::Io(_) => async_event::NAMESPACES | async_event::ANA | 0xFF,
            };
            if wanted.dword11 & !ours != 0 {
                return Err(INVALID);
            }
            features.async_event_configuration = wanted.dword11;
        }
        FeatureId::Timestamp => {
            let (timestamp, _) = Timestamp::read_from_prefix(request.data)
                .map_err(|_| Status::INVALID_SGL_LENGTH.with_do_not_retry())?;
            features.timestamp = (timestamp.milliseconds(), request.now, true);
        }
        FeatureId::HostBehavior => {
            let (behavior, _) = HostBehavior::read_from_prefix(request.data)
                .map_err(|_| Status::INVALID_SGL_LENGTH.with_do_not_retry())?;
            features.behavior = behavior;
        }
        // There is one power state.
        FeatureId::PowerManagement if wanted.dword11 & 0x1F != 0 => return Err(INVALID),
        _ => {
            features.remembered.insert(wanted.feature, wanted.dword11);
        }
    }
    Ok(Verdict::SUCCESS)
}

fn set_keep_alive(control: &mut Control, request: &Request<'_>, timeout_ms: u32) -> Result<Verdict, Status> {
    let keep_alive = keep_alive_of(timeout_ms);
    if keep_alive.is_some_and(|timeout| timeout > control.config.keep_alive_max) {
        return Err(Status::INVALID_KEEP_ALIVE.with_do_not_retry());
    }
    let controller = control.controller_mut(request.queue.controller).ok_or(INVALID)?;
    controller.keep_alive = keep_alive;
    let due_at = controller.due_at();
    control.wake_at(due_at);
    Ok(Verdict::SUCCESS)
}

fn set_reservation_mask(
    control: &mut Control,
    request: &Request<'_>,
    wanted: &SetFeatures,
) -> Result<Verdict, Status> {
    let mask = wanted.dword11 & reservation_mask::ALL;
    let controller = control.controller(request.queue.controller).ok_or(INVALID)?;
    let nsids: Vec<u32> = if wanted.namespace == NamespaceId::ALL {
        subsystem_of(control, controller)?.namespaces().map(|namespace| namespace.nsid).collect()
    } else {
        vec![namespace_of(control, controller, wanted.namespace)?.nsid]
    };
    let controller = control.controller_mut(request.queue.controller).ok_or(INVALID)?;
    controller.features.reservation_masks.extend(nsids.into_iter().map(|nsid| (nsid, mask)));
    Ok(Verdict::SUCCESS)
}
