//! What goes on besides the user's requests: keep-alive and asynchronous events.

use ob_core::Instant;
use ob_wire_nvme::command::AdminOpcode;
use ob_wire_nvme::identify::{Cns, IDENTIFY_LEN, Identify, NamespaceIds, NamespaceList};
use ob_wire_nvme::io::{AsyncEvent, AsyncEventKind, notice};
use ob_wire_nvme::log::{GetLogPage, LogPage};
use ob_wire_nvme::{CommandId, NamespaceId, SubmissionEntry};
use zerocopy::FromBytes;

use super::loss::may_be_repeated;
use super::{Event, Purpose, Request, RequestId, Session};
use crate::initiator::connection::{Completion, Data, Submission};
use crate::initiator::error::Cause;

/// Bytes that are read of an event's log.
const EVENT_LOG_LEN: u32 = 4096;
/// How often in a row a controller may put off telling what a namespace is, before requests for it fail.
const VERIFY_FAILURES_MAX: u32 = 64;

impl Session {
    /// Begins what runs for as long as the association does.
    pub(super) fn begin_background(&mut self, now: Instant) {
        if !self.options.keep_alive.is_zero() {
            self.keep_alive_at = Some(now + self.options.keep_alive / 2);
        }
        if self.facts.as_ref().is_some_and(|facts| facts.async_events != 0) {
            self.ask_for_event(now);
        }
        self.unverified = self.namespaces.keys().copied().collect();
        self.verify(now);
    }

    /// Keeps the controller alive, and the other way round.
    pub(super) fn background(&mut self, now: Instant) {
        if self.is_ready() {
            self.verify(now);
        }
        if self.keep_alive_at.is_none_or(|at| now < at) {
            return;
        }
        if self.is_keep_alive_out {
            // The last one is half a timeout old and has no answer.
            self.lose(now, &Cause::CommandTimeout);
            return;
        }
        self.keep_alive_at = Some(now + self.options.keep_alive / 2);
        let entry = SubmissionEntry::new(AdminOpcode::KeepAlive.code(), CommandId(0), NamespaceId::NONE);
        self.is_keep_alive_out = self.send_own(now, Purpose::KeepAlive, entry, Data::None);
    }

    /// The next one goes out half a timeout after this one did: counted from the answer, the way there and back would be added
    /// to what the controller hears nothing.
    pub(super) fn keep_alive_answered(&mut self) {
        self.is_keep_alive_out = false;
    }

    fn ask_for_event(&mut self, now: Instant) {
        let opcode = AdminOpcode::AsyncEventRequest.code();
        let entry = SubmissionEntry::new(opcode, CommandId(0), NamespaceId::NONE);
        self.send_own(now, Purpose::AsyncEvent, entry, Data::None);
    }

    /// An event: its log is read, which clears it; then it is told, and the next one is asked for.
    pub(super) fn event_came(&mut self, now: Instant, completion: &Completion<Purpose>) {
        if !completion.status.is_success() {
            // The controller takes no such requests, for whatever reason: there are no events then.
            return;
        }
        let event = AsyncEvent::from_bits(completion.result);
        let entry = GetLogPage {
            page: event.log_page,
            specific: 0,
            retain_event: false,
            specific_id: 0,
            offset: 0,
            len: u64::from(EVENT_LOG_LEN),
            command_set: 0,
            namespace: NamespaceId::ALL,
        }
        .encode(CommandId(0));
        self.send_own(now, Purpose::EventLog(event), entry, Data::ToHost(EVENT_LOG_LEN));
    }

    pub(super) fn event_log_came(
        &mut self,
        now: Instant,
        event: AsyncEvent,
        completion: &Completion<Purpose>,
    ) {
        let is_notice = event.kind == AsyncEventKind::Notice.code();
        let event = match event.information {
            notice::NAMESPACES if is_notice => {
                let list = NamespaceList::ref_from_bytes(&completion.data)
                    .ok()
                    .filter(|_| event.log_page == LogPage::ChangedNamespaces.code());
                let changed = list.map_or(vec![NamespaceId::ALL], |list| list.iter().collect());
                let concerned =
                    |id: &NamespaceId| changed.contains(id) || changed.contains(&NamespaceId::ALL);
                let concerned: Vec<_> = self.namespaces.keys().copied().filter(concerned).collect();
                self.unverified.retain(|id| !concerned.contains(id));
                self.unverified.extend(concerned);
                self.verify(now);
                Event::NamespacesChanged(changed)
            }
            notice::ANA if is_notice => Event::AccessChanged,
            notice::DISCOVERY if is_notice => Event::DiscoveryChanged,
            _ => Event::Other(event),
        };
        self.tell(event);
        self.ask_for_event(now);
    }

    /// Asks for the ids of the next namespace that may have become another.
    fn verify(&mut self, now: Instant) {
        if self.verify_at.is_some_and(|at| now < at) {
            return;
        }
        self.verify_at = None;
        let Some(id) = self.unverified.front().copied().filter(|_| !self.is_verifying) else { return };
        let entry = Identify::new(Cns::NamespaceIds, id).encode(CommandId(0));
        self.is_verifying = self.send_own(now, Purpose::Verify(id), entry, Data::ToHost(IDENTIFY_LEN as u32));
        if self.is_verifying {
            self.unverified.pop_front();
        }
    }

    pub(super) fn verified(&mut self, now: Instant, id: NamespaceId, completion: &Completion<Purpose>) {
        self.is_verifying = false;
        if may_be_repeated(completion.status) && self.verify_failures < VERIFY_FAILURES_MAX {
            // That says nothing of the namespace. Requests for it wait meanwhile, and are not failed for being another's.
            self.verify_failures += 1;
            self.verify_at = Some(now + self.options.retry.delay);
            self.unverified.push_front(id);
            return;
        }
        self.verify_failures = 0;
        // One that is not there any more has no ids, which no request expects.
        self.namespaces.insert(id, NamespaceIds::parse(&completion.data).unwrap_or_default());
        self.verify(now);
    }

    /// Keeps in mind what a namespace is, when the user has asked.
    pub(super) fn learn(&mut self, request: &Request, data: &[u8]) {
        let identify = Identify::parse(&request.entry);
        let is_ids = identify.structure == Cns::NamespaceIds.code();
        if is_ids
            && request.entry.opcode == AdminOpcode::Identify.code()
            && let Ok(ids) = NamespaceIds::parse(data)
        {
            self.namespaces.insert(identify.namespace, ids);
        }
    }

    /// The number of a request's namespace, if it is another namespace's by now.
    pub(super) fn changed_namespace(&self, id: RequestId) -> Option<NamespaceId> {
        let request = &self.requests.get(&id)?.request;
        let expected = request.expects.as_ref()?;
        let number = request.entry.namespace();
        let is_same = self.namespaces.get(&number).is_none_or(|ids| ids == expected);
        (!is_same).then_some(number)
    }

    /// Sends a command of the session's own on the admin queue; whether there was room.
    fn send_own(&mut self, now: Instant, key: Purpose, entry: SubmissionEntry, data: Data) -> bool {
        let is_patient = key == Purpose::AsyncEvent;
        let submission = Submission { key, entry, data, may_be_short: true, is_patient };
        let admin = self.links.first_mut().and_then(|link| link.connection.as_mut());
        admin.is_some_and(|admin| admin.submit(now, submission).is_ok())
    }
}
