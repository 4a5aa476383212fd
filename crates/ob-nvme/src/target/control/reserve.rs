//! Reservation commands, and what hosts are told of reservations (Base §7.2 to §7.5, §8.19).

use ob_wire_nvme::command::IoOpcode;
use ob_wire_nvme::io::{
    PersistChange, Registrant, ReservationAcquire, ReservationAcquireAction, ReservationKeys,
    ReservationRegister, ReservationRelease, ReservationReleaseAction, ReservationReport, ReservationStatus,
};
use ob_wire_nvme::log::{ReservationNotification, ReservationNotificationKind};
use ob_wire_nvme::{ControllerId, NamespaceId, Status};
use zerocopy::IntoBytes;

use super::async_event::Event;
use super::controller::{Controller, Role};
use super::reservation::{Outcome, ReservationState};
use super::spec::{ControllerKey, SubsystemKey};
use super::{ANSWER_SHIFT, Control, ControlEvent, Namespace, Request, Verdict, ana};

/// Notifications that wait for a host at most; the oldest are lost first.
const NOTICES_MAX: usize = 255;

/// Something that a host is told.
#[derive(Debug)]
pub(super) struct ReservationNotice {
    count: u64,
    kind: ReservationNotificationKind,
    nsid: u32,
}

/// A command on an I/O queue that is neither a fabrics command nor for the I/O path.
pub(super) fn command(control: &mut Control, request: &Request<'_>) -> Verdict {
    match IoOpcode::try_from(request.command.opcode) {
        Ok(IoOpcode::ReservationReport) => report(control, request).into(),
        Ok(
            opcode @ (IoOpcode::ReservationRegister
            | IoOpcode::ReservationAcquire
            | IoOpcode::ReservationRelease),
        ) => change(control, request, opcode).into(),
        _ => Verdict::refused(Status::INVALID_OPCODE),
    }
}

/// Where a command wants to change something.
struct Place {
    subsystem: SubsystemKey,
    nsid: u32,
    host_id: [u8; 16],
}

fn place(control: &Control, request: &Request<'_>) -> Result<Place, Status> {
    let invalid = Status::INVALID_NAMESPACE.with_do_not_retry();
    let key = request.queue.controller;
    let namespace = control.namespace(key, request.command.namespace().0)?;
    let controller = control.controller(key).ok_or(invalid)?;
    let Role::Io(subsystem) = controller.role else { return Err(invalid) };
    let found = control.subsystem(subsystem).ok_or(invalid)?;
    ana::admit(found.ana_state(controller.path.port, namespace.ana_group))?;
    Ok(Place { subsystem, nsid: namespace.nsid, host_id: controller.host_id })
}

fn report(control: &Control, request: &Request<'_>) -> Result<Verdict, Status> {
    let place = place(control, request)?;
    let wanted = ReservationReport::parse(request.command);
    // Over fabrics host identifiers have 128 bits, and the short form has no room for them (Base §7.5).
    if !wanted.is_extended {
        return Err(Status::HOST_ID_INCONSISTENT.with_do_not_retry());
    }
    if wanted.len > u64::from(request.transfer_len) {
        return Err(Status::INVALID_SGL_LENGTH.with_do_not_retry());
    }
    if wanted.len > 4096_u64 << ANSWER_SHIFT {
        return Err(Status::INVALID_FIELD.with_do_not_retry());
    }
    let namespace = control.namespace(request.queue.controller, place.nsid)?;
    let state = &namespace.reservations;
    let registrants = state.registrants().iter().map(|registrant| Registrant {
        controller: ControllerId::DYNAMIC,
        is_holder: state.is_holder(&registrant.host_id),
        key: registrant.key,
        host_id: registrant.host_id,
    });
    let status = ReservationStatus {
        generation: state.generation(),
        kind: state.kind(),
        is_persistent: state.persists(),
        registrants: registrants.collect(),
    };
    let mut bytes = status.encode(true);
    bytes.resize(wanted.len as usize, 0);
    Ok(match namespace.saving {
        Some(version) => Verdict::DataAfter { bytes, namespace: namespace.key, version },
        None => Verdict::Data { bytes, result: 0 },
    })
}

fn change(control: &mut Control, request: &Request<'_>, opcode: IoOpcode) -> Result<Verdict, Status> {
    let place = place(control, request)?;
    // A host without an id cannot be told from another one.
    if place.host_id == [0; 16] {
        return Err(Status::HOST_ID_INCONSISTENT.with_do_not_retry());
    }
    let invalid = Status::INVALID_NAMESPACE.with_do_not_retry();
    let namespace = control.subsystem_mut(place.subsystem).and_then(|found| found.namespace_mut(place.nsid));
    let state = &mut namespace.ok_or(invalid)?.reservations;
    let persisted = state.persists();
    let (outcome, aborts) = match opcode {
        IoOpcode::ReservationRegister => (register(state, request, &place.host_id)?, false),
        IoOpcode::ReservationAcquire => acquire(state, request, &place.host_id)?,
        _ => (release(state, request, &place.host_id)?, false),
    };
    Ok(conclude(control, &place, &outcome, persisted, aborts))
}

fn register(
    state: &mut ReservationState,
    request: &Request<'_>,
    host_id: &[u8; 16],
) -> Result<Outcome, Status> {
    let wanted = ReservationRegister::parse(request.command)?;
    let keys = ReservationKeys::parse(request.data)?;
    let persists = match wanted.persist {
        PersistChange::Keep => None,
        PersistChange::Clear => Some(false),
        PersistChange::Set => Some(true),
    };
    let keys = (keys.current.get(), keys.other.get());
    state.register(host_id, wanted.action, wanted.ignore_key, keys, persists)
}

/// Says, too, whether commands of preempted hosts are to be aborted.
fn acquire(
    state: &mut ReservationState,
    request: &Request<'_>,
    host_id: &[u8; 16],
) -> Result<(Outcome, bool), Status> {
    let wanted = ReservationAcquire::parse(request.command)?;
    let keys = ReservationKeys::parse(request.data)?;
    if wanted.ignore_key {
        return Err(Status::INVALID_FIELD.with_do_not_retry());
    }
    let (current, other) = (keys.current.get(), keys.other.get());
    match wanted.action {
        ReservationAcquireAction::Acquire => Ok((state.acquire(host_id, current, wanted.kind)?, false)),
        ReservationAcquireAction::Preempt => {
            Ok((state.preempt(host_id, current, other, wanted.kind)?, false))
        }
        ReservationAcquireAction::PreemptAndAbort => {
            Ok((state.preempt(host_id, current, other, wanted.kind)?, true))
        }
    }
}

fn release(
    state: &mut ReservationState,
    request: &Request<'_>,
    host_id: &[u8; 16],
) -> Result<Outcome, Status> {
    let wanted = ReservationRelease::parse(request.command)?;
    let key = ReservationKeys::parse_current(request.data)?;
    if wanted.ignore_key {
        return Err(Status::INVALID_FIELD.with_do_not_retry());
    }
    match wanted.action {
        ReservationReleaseAction::Release => state.release(host_id, key, wanted.kind),
        ReservationReleaseAction::Clear => state.clear(host_id, key),
    }
}

/// Get Features 83h. Like a report, it tells what is saved.
pub(super) fn persistence(namespace: &Namespace) -> Verdict {
    let result = u64::from(namespace.reservations.persists());
    match namespace.saving {
        Some(version) => Verdict::DoneAfter {
            namespace: namespace.key,
            saved: vec![(namespace.key, version)],
            drain: Vec::new(),
            result,
            status: Status::SUCCESS,
        },
        None => Verdict::value(result),
    }
}

/// Set Features 83h: whether registrations and the reservation survive a loss of power.
pub(super) fn set_persistence(
    control: &mut Control,
    request: &Request<'_>,
    namespace: NamespaceId,
    persists: bool,
) -> Result<Verdict, Status> {
    let invalid = Status::INVALID_NAMESPACE.with_do_not_retry();
    let controller = control.controller(request.queue.controller).ok_or(invalid)?;
    let Role::Io(key) = controller.role else { return Err(invalid) };
    let host_id = controller.host_id;
    let subsystem = control.subsystem_mut(key).ok_or(invalid)?;
    let nsids: Vec<u32> = if namespace == NamespaceId::ALL {
        subsystem.namespaces().map(|namespace| namespace.nsid).collect()
    } else {
        vec![subsystem.namespace(namespace.0).ok_or(invalid)?.nsid]
    };
    let mut verdict = Verdict::SUCCESS;
    for nsid in nsids {
        let Some(state) = control
            .subsystem_mut(key)
            .and_then(|subsystem| subsystem.namespace_mut(nsid))
            .map(|namespace| &mut namespace.reservations)
        else {
            continue;
        };
        let persisted = state.persists();
        let outcome = state.set_persists(persists);
        let place = Place { subsystem: key, nsid, host_id };
        verdict = both(verdict, conclude(control, &place, &outcome, persisted, false));
    }
    Ok(verdict)
}

/// An answer that waits for what either of two waits for.
fn both(one: Verdict, other: Verdict) -> Verdict {
    match (one, other) {
        (
            Verdict::DoneAfter { saved: mut all, .. },
            Verdict::DoneAfter { namespace, saved, drain, result, status },
        ) => {
            all.extend(saved);
            Verdict::DoneAfter { namespace, saved: all, drain, result, status }
        }
        (waits @ Verdict::DoneAfter { .. }, _) => waits,
        (_, other) => other,
    }
}

/// Tells whoever has to know, and says what the answer waits for.
fn conclude(
    control: &mut Control,
    place: &Place,
    outcome: &Outcome,
    persisted: bool,
    aborts: bool,
) -> Verdict {
    let found = control.subsystem(place.subsystem).and_then(|found| found.namespace(place.nsid));
    // What changed nothing may repeat what is not saved yet, and its answer would promise the same.
    let Some(namespace) = found.filter(|found| outcome.changed || found.reservations.persists()) else {
        return Verdict::SUCCESS;
    };
    let (key, version) = (namespace.key, namespace.reservations.version());
    // A change away from persistence has to be saved like any other.
    let is_saved = persisted || namespace.reservations.persists();
    notify(control, place, outcome);
    if is_saved {
        let found = control.subsystem_mut(place.subsystem).and_then(|found| found.namespace_mut(place.nsid));
        if let Some(namespace) = found {
            namespace.saving = Some(version);
        }
        control.events.push_back(ControlEvent::ReservationsChanged {
            subsystem: place.subsystem,
            namespace: key,
            nsid: place.nsid,
        });
    }
    let drain =
        if aborts { controllers_of(control, place.subsystem, &outcome.preempted) } else { Vec::new() };
    if !is_saved && drain.is_empty() {
        return Verdict::SUCCESS;
    }
    Verdict::DoneAfter {
        namespace: key,
        saved: is_saved.then_some((key, version)).into_iter().collect(),
        drain,
        result: 0,
        status: Status::SUCCESS,
    }
}

/// The controllers of hosts, those included that ended while a device may still be writing for them.
fn controllers_of(control: &Control, subsystem: SubsystemKey, hosts: &[[u8; 16]]) -> Vec<ControllerKey> {
    let live = control.controllers.iter().flatten().map(|found| (found.key, found.role, found.host_id));
    let all = live.chain(control.ended.iter().copied());
    let theirs = all.filter(|(_, role, host)| *role == Role::Io(subsystem) && hosts.contains(host));
    theirs.map(|(key, _, _)| key).collect()
}

/// Tells hosts at once, though what they are told of may not be saved yet: a notification says that something happened, and not how it is
/// now. Who wants to know asks for a report, which waits for the save. And what a host does because of it is judged by what holds then,
/// after a loss of power too.
fn notify(control: &mut Control, place: &Place, outcome: &Outcome) {
    if outcome.notices.is_empty() {
        return;
    }
    let mut told = Vec::new();
    for controller in control.controllers.iter_mut().flatten() {
        if controller.role != Role::Io(place.subsystem) {
            continue;
        }
        let own = controller.host_id;
        for (_, kind) in outcome.notices.iter().filter(|(host_id, _)| *host_id == own) {
            if controller.note(*kind, place.nsid) {
                told.push(controller.key);
            }
        }
    }
    for key in told {
        control.deliver(key);
    }
}

impl Controller {
    /// Puts a notification into the log, unless the host does not want to know.
    fn note(&mut self, kind: ReservationNotificationKind, nsid: u32) -> bool {
        let mask = self.features.reservation_masks.get(&nsid).copied().unwrap_or(0);
        if mask & 1 << kind.code() != 0 {
            return false;
        }
        self.reservation_notice_count = self.reservation_notice_count.wrapping_add(1);
        if self.reservation_notices.len() >= NOTICES_MAX {
            self.reservation_notices.pop_front();
        }
        let count = self.reservation_notice_count;
        self.reservation_notices.push_back(ReservationNotice { count, kind, nsid });
        self.raise(Event::ReservationNotice);
        true
    }
}

/// Log 80h: the oldest notification, and how many wait behind it.
pub(super) fn notification(controller: &Controller) -> Vec<u8> {
    let page = controller.reservation_notices.front().map_or(ReservationNotification::default(), |notice| {
        let waiting = controller.reservation_notices.len().saturating_sub(1).min(254);
        let nsid = NamespaceId(notice.nsid);
        ReservationNotification::new(notice.count, notice.kind, u8::try_from(waiting).unwrap_or(254), nsid)
    });
    page.as_bytes().to_vec()
}
