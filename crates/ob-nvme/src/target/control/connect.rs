//! Connect: how queues and controllers come to be (Base §6.3).

use std::time::Duration;

use ob_core::Instant;
use ob_wire_nvme::fabrics::{Connect, ConnectError, ConnectParties, ConnectResult};
use ob_wire_nvme::{ControllerId, QueueId, Status, SubmissionEntry};

use crate::auth::{TargetAuthenticator, TargetConfig};

use super::controller::{Authentication, Birth, Controller, Queue, Role};
use super::spec::{ControllerKey, Path};
use super::{Connected, Control, QueueIdentity, SLOT_BITS};

/// KAS in milliseconds: the unit that keep-alive timeouts are rounded up to.
pub(super) const KEEP_ALIVE_UNIT_MS: u32 = 1000;

pub(super) fn connect(
    control: &mut Control,
    now: Instant,
    path: Path,
    command: &SubmissionEntry,
    data: &[u8],
) -> Result<Connected, ConnectError> {
    let port = path.port;
    let connect = Connect::parse(command)?;
    let parties = ConnectParties::parse(data)?;
    let port_spec = control.ports.iter().find(|spec| spec.port == port).ok_or(ConnectError::subsystem())?;
    let role = if parties.subsystem.is_discovery() {
        Role::Discovery
    } else if port_spec.discovery_only {
        return Err(ConnectError::subsystem());
    } else {
        let named = control.subsystem_named(&parties.subsystem);
        let is_here = |key: &_| control.subsystem(*key).is_some_and(|subsystem| subsystem.is_on(port));
        Role::Io(named.filter(is_here).ok_or(ConnectError::subsystem())?)
    };
    let authentication = authentication_of(control, now, role, &parties)?;
    if connect.queue_entries > u32::from(control.config.queue_depth_max) {
        return Err(ConnectError::queue_size());
    }
    let asked = Asked { now, path, role, authentication, connect, parties };
    if connect.queue == QueueId::ADMIN {
        begin_controller(control, asked)
    } else {
        begin_queue(control, asked)
    }
}

/// Rounds a timeout up to the controller's unit; 0 is none.
pub(super) fn keep_alive_of(timeout_ms: u32) -> Option<Duration> {
    let units = timeout_ms.div_ceil(KEEP_ALIVE_UNIT_MS);
    (units > 0).then(|| Duration::from_secs(u64::from(units) * u64::from(KEEP_ALIVE_UNIT_MS) / 1000))
}

/// A Connect, as far as it could be judged without its queue.
struct Asked {
    now: Instant,
    path: Path,
    role: Role,
    authentication: Option<Box<Authentication>>,
    connect: Connect,
    parties: ConnectParties,
}

/// Whether the host may connect at all, and how it has to prove who it is.
fn authentication_of(
    control: &Control,
    now: Instant,
    role: Role,
    parties: &ConnectParties,
) -> Result<Option<Box<Authentication>>, ConnectError> {
    let Role::Io(subsystem) = role else { return Ok(None) };
    let subsystem = control.subsystem(subsystem).ok_or(ConnectError::subsystem())?;
    let Some(secrets) = subsystem.admits(&parties.host) else {
        let status = Status::CONNECT_INVALID_HOST.with_do_not_retry();
        return Err(ConnectError { status, result: ConnectError::host().result });
    };
    let Some(secrets) = secrets else { return Ok(None) };
    let authenticator = TargetAuthenticator::new(TargetConfig {
        host: parties.host.clone(),
        subsystem: parties.subsystem.clone(),
        host_secret: secrets.host.clone(),
        controller_secret: secrets.controller.clone(),
        policy: control.config.authentication_policy.clone(),
    });
    let until = Some(now + control.config.authentication_timeout);
    Ok(Some(Box::new(Authentication { authenticator, until })))
}

/// The admin queue's Connect makes a controller.
fn begin_controller(control: &mut Control, asked: Asked) -> Result<Connected, ConnectError> {
    // Controllers are dynamic here (FCATT bit 0): a host that names one wants something else.
    if asked.parties.controller != ControllerId::DYNAMIC {
        return Err(ConnectError::controller());
    }
    let keep_alive = keep_alive_of(asked.connect.keep_alive_ms);
    if keep_alive.is_some_and(|timeout| timeout > control.config.keep_alive_max) {
        return Err(ConnectError::in_command(48));
    }
    let must_authenticate = asked.authentication.is_some();
    let superseded = if !must_authenticate {
        superseded(control, &asked)
    } else {
        // Whoever has not proved anything replaces nobody; see `earlier_lives`.
        Vec::new()
    };
    for controller in &superseded {
        control.remove_controller(*controller);
    }
    let busy = ConnectError::other(Status::CONNECT_CONTROLLER_BUSY);
    let slot = free_slot(control).ok_or(busy)?;
    let cntlid = free_cntlid(control, asked.role).ok_or(busy)?;
    control.controllers_made += 1;
    let key = ControllerKey(control.controllers_made << SLOT_BITS | slot as u64);
    let birth = Birth {
        key,
        cntlid,
        role: asked.role,
        path: asked.path,
        host: asked.parties.host,
        host_id: asked.parties.host_id,
        authentication: asked.authentication,
    };
    let controller = Box::new(Controller::new(birth, keep_alive, asked.now, &control.config));
    control.wake_at(controller.due_at());
    if let Some(place) = control.controllers.get_mut(slot) {
        *place = Some(controller);
    }
    let identity = QueueIdentity::admin(key);
    Ok(connected(identity, cntlid, &asked.connect, must_authenticate, superseded))
}

/// Another Connect of the same host adds an I/O queue to its controller.
fn begin_queue(control: &mut Control, asked: Asked) -> Result<Connected, ConnectError> {
    let Asked { now, path, role, authentication, connect, parties } = asked;
    let found = control.controllers.iter_mut().flatten().find(|controller| {
        controller.role == role
            && controller.cntlid == parties.controller
            && controller.path.port == path.port
    });
    // It may have ended since its admin queue was connected, with this process even: a host that is told never to come again would
    // give its disks up (Linux removes the controller). A stranger learns nothing about which controllers exist.
    let gone = ConnectError { status: Status::CONNECT_INVALID_PARAMETERS, ..ConnectError::controller() };
    let controller = found.filter(|found| found.host == parties.host).ok_or(gone)?;
    if controller.host_id != parties.host_id {
        return Err(ConnectError::in_data(0));
    }
    if connect.queue.0 > controller.queues_granted {
        return Err(ConnectError::queue());
    }
    // The same of one that was reset or shut down meanwhile.
    let out_of_order = ConnectError::other(Status::COMMAND_SEQUENCE_ERROR);
    // An I/O queue comes after the admin queue's host is known and the controller enabled, and not after its shutdown.
    let is_authentic = controller.admin().is_some_and(Queue::is_authentic);
    if !controller.may_begin() || !is_authentic {
        return Err(out_of_order);
    }
    let must_authenticate = authentication.is_some();
    // A host may be faster than the end of its old connection, or that end may be lost.
    let replaces_connection = controller.held(connect.queue).is_some();
    if replaces_connection && must_authenticate {
        // Whoever has not proved anything replaces nobody; the host may come again.
        return Err(ConnectError::other(Status::COMMAND_SEQUENCE_ERROR));
    }
    if replaces_connection && controller.path != path {
        return Err(out_of_order);
    }
    let identity = controller.begin_queue(connect.queue, authentication);
    controller.heard(now, identity);
    let cntlid = controller.cntlid;
    let due_at = controller.due_at();
    control.wake_at(due_at);
    let connected = connected(identity, cntlid, &connect, must_authenticate, Vec::new());
    Ok(Connected { replaces_connection, ..connected })
}

fn connected(
    identity: QueueIdentity,
    cntlid: ControllerId,
    connect: &Connect,
    must_authenticate: bool,
    superseded: Vec<ControllerKey>,
) -> Connected {
    let result = ConnectResult { controller: cntlid, must_authenticate, must_secure_channel: false };
    Connected {
        identity,
        cntlid,
        // The comparison with the deepest queue made it fit.
        sq_size: u16::try_from(connect.queue_entries).unwrap_or(u16::MAX),
        flow_control_off: connect.no_flow_control,
        authentication_required: must_authenticate,
        result: result.bits(),
        superseded,
        replaces_connection: false,
    }
}

/// The association's earlier lives: same host, same subsystem, same path. A host that uses two of its addresses has two
/// paths, as multipathing wants them. The discovery service has no data that an earlier life could change, and hosts ask
/// it from several programs at once. A host without an id is not known to be the same.
fn superseded(control: &Control, asked: &Asked) -> Vec<ControllerKey> {
    let Asked { path, role, parties, .. } = asked;
    if *role == Role::Discovery || parties.host_id == [0; 16] {
        return Vec::new();
    }
    let same = control.controllers.iter().flatten().filter(|controller| {
        controller.role == *role
            && controller.path == *path
            && controller.host == parties.host
            && controller.host_id == parties.host_id
    });
    same.map(|controller| controller.key).collect()
}

/// The host of a controller has proved who it is: now its earlier associations end.
pub(super) fn earlier_lives(control: &Control, key: ControllerKey) -> Vec<ControllerKey> {
    let Some(newer) = control.controller(key) else { return Vec::new() };
    if newer.host_id == [0; 16] {
        return Vec::new();
    }
    let same = control.controllers.iter().flatten().filter(|controller| {
        controller.key < key
            && controller.role == newer.role
            && controller.path == newer.path
            && controller.host == newer.host
            && controller.host_id == newer.host_id
    });
    same.map(|controller| controller.key).collect()
}

fn free_slot(control: &mut Control) -> Option<usize> {
    if let Some(slot) = control.controllers.iter().position(Option::is_none) {
        return Some(slot);
    }
    if control.controllers.len() >= control.config.controllers_max as usize {
        return None;
    }
    control.controllers.push(None);
    Some(control.controllers.len() - 1)
}

fn free_cntlid(control: &mut Control, role: Role) -> Option<ControllerId> {
    let controllers = &control.controllers;
    let is_used = |candidate: u16| {
        controllers.iter().flatten().any(|other| other.role == role && other.cntlid.0 == candidate)
    };
    match role {
        Role::Io(subsystem) => control.subsystems.get_mut(subsystem.0 as usize)?.next_cntlid(is_used),
        Role::Discovery => {
            let last = control.discovery_cntlid;
            let candidates = (last.saturating_add(1)..ControllerId::RESERVED_FROM.0)
                .chain(1..ControllerId::RESERVED_FROM.0);
            let mut candidates = candidates;
            let found = candidates.find(|candidate| !is_used(*candidate))?;
            control.discovery_cntlid = found;
            Some(ControllerId(found))
        }
    }
}
