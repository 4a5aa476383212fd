//! Admin commands (Base §5).

use ob_wire_nvme::command::AdminOpcode;
use ob_wire_nvme::io::Abort;
use ob_wire_nvme::{QueueId, Status};

use super::controller::Role;
use super::{Control, ControlEvent, QueueIdentity, Request, Verdict, feature, identify, log};

pub(super) fn command(control: &mut Control, request: &Request<'_>) -> Verdict {
    let Some(role) = control.controller(request.queue.controller).map(|controller| controller.role) else {
        return Verdict::refused(Status::COMMAND_SEQUENCE_ERROR);
    };
    match AdminOpcode::try_from(request.command.opcode) {
        Ok(AdminOpcode::Identify) => identify::command(control, request).into(),
        Ok(AdminOpcode::GetLogPage) => log::command(control, request).into(),
        Ok(AdminOpcode::GetFeatures) => feature::get(control, request).into(),
        Ok(AdminOpcode::SetFeatures) => feature::set(control, request).into(),
        Ok(AdminOpcode::AsyncEventRequest) => hold(control, request),
        Ok(AdminOpcode::KeepAlive) => Verdict::SUCCESS,
        Ok(AdminOpcode::Abort) if role != Role::Discovery => abort(control, request),
        _ => Verdict::refused(Status::INVALID_OPCODE),
    }
}

/// Asynchronous Event Request (Base §5.2): kept until there is something to tell.
fn hold(control: &mut Control, request: &Request<'_>) -> Verdict {
    let key = request.queue.controller;
    let Some(controller) = control.controller_mut(key) else {
        return Verdict::refused(Status::COMMAND_SEQUENCE_ERROR);
    };
    if !controller.async_events.hold(request.command.command()) {
        return Verdict::refused(Status::ASYNC_EVENT_LIMIT_EXCEEDED);
    }
    control.deliver(key);
    Verdict::Held
}

/// Abort (Base §5.1). Held requests are given back. What a device is doing is not taken back from it: bit 0 of the
/// result says that the command was not aborted, and its own answer follows.
fn abort(control: &mut Control, request: &Request<'_>) -> Verdict {
    let Abort { queue, command } = Abort::parse(request.command);
    let key = request.queue.controller;
    let Some(controller) = control.controller_mut(key) else { return Verdict::value(Abort::NOT_ABORTED) };
    if queue != QueueId::ADMIN || !controller.async_events.release(command) {
        return Verdict::value(Abort::NOT_ABORTED);
    }
    control.events.push_back(ControlEvent::CompleteAsync {
        queue: QueueIdentity::admin(key),
        command,
        result: 0,
        status: Status::ABORT_REQUESTED,
    });
    Verdict::value(0)
}
