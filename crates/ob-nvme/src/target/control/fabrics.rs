//! Fabrics commands after Connect: properties, authentication, the end of a queue (Base §6).

use ob_wire_nvme::command::FabricsKind;
use ob_wire_nvme::fabrics::{
    AuthenticationTransfer, Capabilities, ControllerConfiguration, Disconnect, Property, PropertyAccess,
    ShutdownNotification, ShutdownStatus, Version,
};
use ob_wire_nvme::{QueueId, Status};

use crate::auth::Progress;

use super::async_event::Event;
use super::connect;
use super::controller::{Controller, Role};
use super::{CloseReason, Control, ControlConfig, ControlEvent, QueueIdentity, Request, Verdict};

/// CAP.TO: enabling takes no time at all, but hosts multiply and add with this.
const READY_TIMEOUT_500MS: u8 = 20;

pub(super) fn command(control: &mut Control, request: &Request<'_>) -> Verdict {
    let is_admin = request.queue.queue == QueueId::ADMIN;
    match FabricsKind::try_from(request.command.fabrics_kind()) {
        Ok(FabricsKind::PropertyGet) if is_admin => property_get(control, request).into(),
        Ok(FabricsKind::PropertySet) if is_admin => property_set(control, request).into(),
        Ok(FabricsKind::PropertyGet | FabricsKind::PropertySet) => {
            Verdict::refused(Status::INVALID_QUEUE_TYPE)
        }
        // A queue is connected once.
        Ok(FabricsKind::Connect) => Verdict::refused(Status::COMMAND_SEQUENCE_ERROR),
        Ok(FabricsKind::Disconnect) if is_admin => Verdict::refused(Status::INVALID_QUEUE_TYPE),
        Ok(FabricsKind::Disconnect) => match Disconnect::parse(request.command) {
            Ok(Disconnect) => Verdict::CloseAfter { result: 0, status: Status::SUCCESS },
            Err(status) => Verdict::Done { result: 0, status },
        },
        Ok(FabricsKind::AuthenticationSend | FabricsKind::AuthenticationReceive) => {
            authenticate(control, request).into()
        }
        Err(_) => Verdict::refused(Status::INVALID_OPCODE),
    }
}

/// Authentication Send and Receive, on the queue that they are about.
fn authenticate(control: &mut Control, request: &Request<'_>) -> Result<Verdict, Status> {
    let transfer = AuthenticationTransfer::parse(request.command)?;
    let key = request.queue.controller;
    // The source of randomness is lent out while the controller is borrowed.
    let mut random = control.random.take();
    let answered = answer_authentication(control, request, transfer, random.as_mut());
    control.random = random;
    let (verdict, progress) = answered?;
    let status = Status::SUCCESS;
    match progress {
        Progress::Continue => Ok(verdict),
        Progress::Done => {
            if request.queue.queue == QueueId::ADMIN {
                for earlier in connect::earlier_lives(control, key) {
                    control.close_controller(earlier, CloseReason::Superseded);
                }
            } else if let Some(controller) = control.controller_mut(key) {
                let replaced = controller.proved(request.queue);
                // Nothing that was said here counted until now: it could have been anybody's word.
                controller.heard(request.now, request.queue);
                let reason = CloseReason::Superseded;
                let event = replaced.map(|queue| ControlEvent::CloseQueue { queue, reason });
                control.events.extend(event);
            }
            Ok(verdict)
        }
        Progress::Failed(reason) => {
            tracing::warn!(?reason, queue = ?request.queue, "a host failed to authenticate");
            Ok(match verdict {
                // The host still has to get the message that says why, so its queue ends a little later.
                Verdict::Data { .. } => {
                    let queue = request.queue;
                    let reason = CloseReason::NotAuthentic;
                    control.events.push_back(ControlEvent::CloseQueue { queue, reason });
                    verdict
                }
                _ => Verdict::CloseAfter { result: 0, status },
            })
        }
    }
}

fn answer_authentication(
    control: &mut Control,
    request: &Request<'_>,
    transfer: AuthenticationTransfer,
    random: Option<&mut super::Random>,
) -> Result<(Verdict, Progress), Status> {
    let refused = Status::INVALID_FIELD.with_do_not_retry();
    let controller = control.controller_mut(request.queue.controller).ok_or(refused)?;
    // A queue that has nothing to prove has no such commands.
    let unknown = Status::INVALID_OPCODE.with_do_not_retry();
    let queue = controller.queue_mut(request.queue).ok_or(unknown)?;
    let proof = queue.authentication.as_mut().ok_or(unknown)?;
    let answered = if transfer.to_host {
        if transfer.len > request.transfer_len {
            return Err(Status::INVALID_SGL_LENGTH.with_do_not_retry());
        }
        let Some(random) = random else {
            tracing::error!("no randomness was given: hosts cannot authenticate");
            return Err(Status::INTERNAL_ERROR);
        };
        let answer = proof.authenticator.receive(transfer.len, random).map_err(|_| refused)?;
        (Verdict::Data { bytes: answer.message, result: 0 }, answer.progress)
    } else {
        let message = request.data.get(..transfer.len as usize);
        let message = message.ok_or(Status::INVALID_SGL_LENGTH.with_do_not_retry())?;
        (Verdict::SUCCESS, proof.authenticator.send(message))
    };
    if answered.1 == Progress::Done {
        proof.until = None;
    }
    Ok(answered)
}

fn property_get(control: &Control, request: &Request<'_>) -> Result<Verdict, Status> {
    let access = PropertyAccess::parse(request.command)?;
    let invalid = Status::INVALID_FIELD.with_do_not_retry();
    let controller = control.controller(request.queue.controller).ok_or(invalid)?;
    let value = match access.property {
        Property::Capabilities => capabilities(&control.config).bits(),
        Property::Version => u64::from(Version::V1_4.bits()),
        Property::Configuration => u64::from(controller.configuration.0),
        Property::Status => u64::from(controller.status.bits()),
        Property::SubsystemReset => 0,
        Property::ReadyTimeouts => return Err(invalid),
    };
    Ok(Verdict::value(value))
}

fn capabilities(config: &ControlConfig) -> Capabilities {
    Capabilities {
        queue_entries_max: u32::from(config.queue_depth_max),
        contiguous_queues: true,
        timeout_500ms: READY_TIMEOUT_500MS,
        subsystem_reset: false,
        command_sets: Capabilities::COMMAND_SET_NVM,
        page_shift_min: 0,
        page_shift_max: 0,
        ready_modes: 0,
    }
}

fn property_set(control: &mut Control, request: &Request<'_>) -> Result<Verdict, Status> {
    let access = PropertyAccess::parse(request.command)?;
    let invalid = Status::INVALID_FIELD.with_do_not_retry();
    let (Property::Configuration, Some(value)) = (access.property, access.value) else { return Err(invalid) };
    let wanted = ControllerConfiguration(value as u32);
    let linger = request.now + control.config.association_linger;
    let key = request.queue.controller;
    let controller = control.controller_mut(key).ok_or(invalid)?;
    let before = controller.configuration;
    controller.configuration = wanted;
    if before.is_enabled() && !wanted.is_enabled() {
        reset(control, request);
        control.wake_at(Some(linger));
        return Ok(Verdict::SUCCESS);
    }
    if !before.is_enabled() && wanted.is_enabled() {
        enable(controller, wanted);
        // Its host's silence counts again.
        let due_at = controller.due_at();
        control.wake_at(due_at);
    }
    let controller = control.controller_mut(key).ok_or(invalid)?;
    // By what it says and what has become of it, not by its edge: a notice that stands is one.
    let is_running = controller.status.shutdown == ShutdownStatus::Running;
    if wanted.shutdown() != ShutdownNotification::None && is_running {
        controller.status.shutdown = ShutdownStatus::Occurring;
        controller.linger(Some((linger, CloseReason::Shutdown)));
        control.wake_at(Some(linger));
        control.events.push_back(ControlEvent::ShuttingDown { controller: key });
    }
    Ok(Verdict::SUCCESS)
}

/// CC.EN went to 1.
fn enable(controller: &mut Controller, wanted: ControllerConfiguration) {
    // I/O queue entry sizes mean nothing to a discovery controller, and some hosts leave them 0 there.
    let sizes_fit = controller.role == Role::Discovery
        || (wanted.submission_entry_shift() == 6 && wanted.completion_entry_shift() == 4);
    let is_understood = wanted.page_shift() == 0 && wanted.arbitration() == 0 && wanted.command_set() == 0;
    if sizes_fit && is_understood {
        controller.status.is_ready = true;
        controller.status.is_fatal = false;
        controller.status.shutdown = ShutdownStatus::Running;
        controller.linger(None);
        // Notices outlast a reset; that the host was to hear of them does not.
        if !controller.reservation_notices.is_empty() {
            controller.raise(Event::ReservationNotice);
        }
    } else {
        controller.status.is_fatal = true;
    }
}

/// CC.EN went to 0: I/O queues end, held requests are answered, features are what they were at first. The host still
/// reads CSTS on the admin queue, so that one stays for a while (Base §3.3.1: at least two minutes).
fn reset(control: &mut Control, request: &Request<'_>) {
    let until = request.now + control.config.association_linger;
    let key = request.queue.controller;
    let Some(controller) = control.controller_mut(key) else { return };
    controller.reset(request.now, until);
    let aborted = controller.async_events.abort_all();
    let ended: Vec<_> =
        controller.queues().into_iter().filter(|queue| queue.queue != QueueId::ADMIN).collect();
    for queue in &ended {
        controller.end_queue(*queue);
    }
    for command in aborted {
        let queue = QueueIdentity::admin(key);
        let status = Status::ABORTED_SQ_DELETION;
        control.events.push_back(ControlEvent::CompleteAsync { queue, command, result: 0, status });
    }
    for queue in ended {
        control.events.push_back(ControlEvent::CloseQueue { queue, reason: CloseReason::Reset });
    }
}
