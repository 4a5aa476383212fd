//! What becomes of requests: answered, repeated, failed; and how a session ends.

use std::time::Duration;

use ob_core::Instant;
use ob_wire_nvme::fabrics::{
    ControllerStatus, Property, PropertyAccess, ShutdownNotification, ShutdownStatus,
};
use ob_wire_nvme::status::StatusKind;
use ob_wire_nvme::{CommandId, Status, SubmissionEntry};

use super::{Action, Answer, Event, Purpose, Queue, RequestId, Session, Stage};
use crate::initiator::connection::{Completion, Connection, Data, Submission};
use crate::initiator::error::{Cause, Error, ProtocolError};

/// Between two questions whether a controller is shut down.
const SHUTDOWN_PAUSE: Duration = Duration::from_millis(5);

impl Session {
    /// A request was answered: it is over, or sent again later.
    pub(super) fn answered(&mut self, now: Instant, id: RequestId, completion: Completion<Purpose>) {
        let Some(held) = self.requests.get(&id) else { return };
        let status = completion.status;
        if !status.is_success() && may_be_repeated(status) && self.repeats(held.attempts, &held.request) {
            self.delayed.push((now + self.options.retry.delay, id));
            return;
        }
        let held = self.requests.remove(&id);
        if let Some(held) = held.filter(|held| status.is_success() && held.request.queue == Queue::Admin) {
            self.learn(&held.request, &completion.data);
        }
        let outcome = if status.is_success() {
            let association = self.associations;
            Ok(Answer { association, result: completion.result, data: completion.data })
        } else {
            Err(Error::Command { status, result: completion.result })
        };
        self.outcomes.push_back((id, outcome));
    }

    fn repeats(&self, attempts: u32, request: &super::Request) -> bool {
        let policy = &self.options.retry;
        let is_allowed = if request.is_idempotent { policy.repeat } else { policy.repeat_all };
        is_allowed && attempts < policy.attempts_max && !matches!(self.stage, Stage::Closing { .. })
    }

    /// The association is over. The next one begins later, if ever.
    pub(super) fn lose(&mut self, now: Instant, cause: &Cause) {
        let mut lost = Vec::new();
        for link in std::mem::take(&mut self.links) {
            let farewell = link.connection.as_ref().map(Connection::farewell).unwrap_or_default();
            self.actions.push_back(Action::Close { key: link.key, farewell });
            lost.extend(link.connection.into_iter().flat_map(Connection::lost));
        }
        self.keep_alive_at = None;
        self.is_keep_alive_out = false;
        self.unverified.clear();
        self.is_verifying = false;
        (self.verify_at, self.verify_failures) = (None, 0);
        let mut lost: Vec<RequestId> = lost
            .into_iter()
            .filter_map(|purpose| if let Purpose::Request(id) = purpose { Some(id) } else { None })
            .collect();
        // The newest goes to the front first, so that the oldest stands there at last.
        lost.sort_unstable_by(|left, right| right.cmp(left));
        for id in lost {
            let Some(held) = self.requests.get(&id) else { continue };
            match held.request.queue {
                _ if !self.repeats(held.attempts, &held.request) => {
                    self.requests.remove(&id);
                    self.outcomes.push_back((id, Err(Error::Lost(cause.clone()))));
                }
                Queue::Admin => self.waiting_admin.push_front(id),
                Queue::Io => self.waiting_io.push_front(id),
            }
        }
        if self.is_ready() {
            self.tell(Event::Disconnected(cause.clone()));
            self.attempts = 0;
        }
        let lost_at = *self.lost_at.get_or_insert(now);
        let patience = self.options.reconnect.give_up_after;
        match &self.stage {
            Stage::Over(_) => {}
            Stage::Closing { .. } => self.finish(Error::Closed),
            _ if !self.was_ready => self.finish(first_error(cause)),
            _ if is_final(cause) => self.finish(first_error(cause)),
            _ if now.since(lost_at) >= patience => self.finish(Error::GaveUp(cause.clone())),
            _ => {
                let until = now + self.back_off();
                self.stage = Stage::Waiting { until };
            }
        }
    }

    fn back_off(&mut self) -> Duration {
        let reconnect = &self.options.reconnect;
        let factor = 1_u32.checked_shl(self.attempts).unwrap_or(u32::MAX);
        self.attempts = self.attempts.saturating_add(1).min(31);
        reconnect.delay_first.saturating_mul(factor).min(reconnect.delay_max)
    }

    /// The session is over: everything that waits fails.
    pub(super) fn finish(&mut self, error: Error) {
        for link in self.links.drain(..) {
            self.actions.push_back(Action::Close { key: link.key, farewell: Vec::new() });
        }
        self.waiting_admin.clear();
        self.waiting_io.clear();
        self.delayed.clear();
        (self.keep_alive_at, self.verify_at) = (None, None);
        let mut ids: Vec<RequestId> = self.requests.drain().map(|(id, _)| id).collect();
        ids.sort_unstable();
        self.outcomes.extend(ids.into_iter().map(|id| (id, Err(error.clone()))));
        self.stage = Stage::Over(error);
    }

    /// Takes no further requests, waits for those that are under way, tells the controller, and is over.
    pub fn shutdown(&mut self, now: Instant) {
        match self.stage {
            Stage::Over(_) | Stage::Closing { .. } => {}
            Stage::Waiting { .. } | Stage::Starting { .. } => self.finish(Error::Closed),
            Stage::Ready => {
                let deadline = now + self.options.disconnect_timeout;
                self.stage = Stage::Closing { deadline, is_told: false, ask_at: None };
                let waiting = self.waiting_admin.drain(..).chain(self.waiting_io.drain(..));
                let waiting: Vec<_> = waiting.chain(self.delayed.drain(..).map(|(_, id)| id)).collect();
                for id in waiting {
                    self.requests.remove(&id);
                    self.outcomes.push_back((id, Err(Error::Closed)));
                }
                self.close(now);
            }
        }
    }

    /// The next step of closing: when the last request is answered, CC.SHN is written.
    pub(super) fn close(&mut self, now: Instant) {
        let Stage::Closing { is_told: false, deadline, .. } = self.stage else { return };
        if !self.requests.is_empty() {
            return;
        }
        let value = self.configuration.with_shutdown(ShutdownNotification::Normal);
        let access = PropertyAccess { property: Property::Configuration, value: Some(u64::from(value.0)) };
        self.stage = Stage::Closing { is_told: true, deadline, ask_at: None };
        self.tell_controller(now, Purpose::Shutdown, access.encode(CommandId(0)));
    }

    /// CC.SHN was written. Most controllers are done by then.
    pub(super) fn shutdown_answered(&mut self, now: Instant, completion: &Completion<Purpose>) {
        match completion.status.is_success() {
            true => self.ask_whether_shut_down(now),
            false => self.finish(Error::Closed),
        }
    }

    /// CSTS was read: it is read again until the controller is done, or the deadline has come.
    pub(super) fn shutdown_status_came(&mut self, now: Instant, completion: &Completion<Purpose>) {
        let status = ControllerStatus::from_bits(completion.result as u32);
        if !completion.status.is_success() || status.shutdown == ShutdownStatus::Complete {
            self.finish(Error::Closed);
            return;
        }
        if let Stage::Closing { ask_at, .. } = &mut self.stage {
            *ask_at = Some(now + SHUTDOWN_PAUSE);
        }
    }

    pub(super) fn ask_whether_shut_down(&mut self, now: Instant) {
        if let Stage::Closing { ask_at, .. } = &mut self.stage {
            *ask_at = None;
        }
        let access = PropertyAccess { property: Property::Status, value: None };
        self.tell_controller(now, Purpose::ShutdownStatus, access.encode(CommandId(0)));
    }

    fn tell_controller(&mut self, now: Instant, key: Purpose, entry: SubmissionEntry) {
        let submission = Submission { key, entry, data: Data::None, may_be_short: false, is_patient: false };
        let admin = self.links.first_mut().and_then(|link| link.connection.as_mut());
        if admin.is_none_or(|admin| admin.submit(now, submission).is_err()) {
            self.finish(Error::Closed);
        }
    }
}

/// Whether the controller says that the command was not executed, and may be later.
pub(super) fn may_be_repeated(status: Status) -> bool {
    const FOR_THE_MOMENT: [Status; 4] = [
        Status::COMMAND_INTERRUPTED,
        Status::TRANSIENT_TRANSPORT_ERROR,
        Status::NAMESPACE_NOT_READY,
        Status::ADMIN_MEDIA_NOT_READY,
    ];
    let is_path = status.kind() == StatusKind::Path.code() && !status.is(Status::ANA_PERSISTENT_LOSS);
    !status.do_not_retry() && (is_path || FOR_THE_MOMENT.iter().any(|other| status.is(*other)))
}

/// What the first attempt says of itself.
fn first_error(cause: &Cause) -> Error {
    match cause {
        Cause::Setup(error) => (**error).clone(),
        Cause::Broken(why) => Error::Unreachable(*why),
        other => Error::NotConnected(other.clone()),
    }
}

/// Whether another attempt would end the same way.
fn is_final(cause: &Cause) -> bool {
    match cause {
        Cause::Setup(error) => match &**error {
            Error::Refused { status, .. } => status.do_not_retry(),
            Error::Authentication(_) | Error::AuthenticationRequired => true,
            Error::TargetChanged | Error::Unsuitable(_) => true,
            _ => false,
        },
        Cause::Protocol(error) => matches!(error, ProtocolError::Digests),
        _ => false,
    }
}
