//! A controller: one association of one host with one subsystem, or with the discovery service.
//!
//! ```text
//!   Connect ─▶ disabled ── CC.EN=1 ──▶ ready ── CC.SHN ──▶ shutting down ── its I/O is over ──▶ shut down ─┐
//!                 ▲                      │                       │                                         ├─▶ lingers ─▶ closed
//!                 └────── CC.EN=0 ───────┴───────────────────────┴─────────────────────────────────────────┘
//! ```

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use ob_core::Instant;
use ob_wire_nvme::fabrics::{
    ControllerConfiguration, ControllerStatus, ShutdownNotification, ShutdownStatus,
};
use ob_wire_nvme::text::Nqn;
use ob_wire_nvme::{CommandId, ControllerId, QueueId, Status};

use crate::auth::TargetAuthenticator;
use crate::plant::{self, Bug};

use super::async_event::AsyncEvents;
use super::feature::Features;
use super::reserve::ReservationNotice;
use super::spec::{ControllerKey, Path, SubsystemKey};
use super::{CloseReason, ControlConfig, QueueIdentity};

/// What a controller is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The discovery service.
    Discovery,
    /// A subsystem's namespaces.
    Io(SubsystemKey),
}

/// How a queue's host proves who it is.
pub(super) struct Authentication {
    pub(super) authenticator: TargetAuthenticator,
    /// Without a proof by then, the queue ends, and with an admin queue its controller. `None` once it has proved itself.
    pub(super) until: Option<Instant>,
}

/// A queue pair of a controller.
pub(super) struct Queue {
    /// See [`QueueIdentity::attempt`].
    attempt: u64,
    /// `None` where nothing is to be proved.
    pub(super) authentication: Option<Box<Authentication>>,
}

impl Queue {
    /// Whether the host is who it says it is, as far as anybody asked.
    pub(super) fn is_authentic(&self) -> bool {
        self.authentication.as_ref().is_none_or(|proof| proof.authenticator.is_authenticated())
    }

    /// By when its host has to have proved itself, if it has still to.
    fn unproved_until(&self) -> Option<Instant> {
        self.authentication.as_ref()?.until
    }
}

/// A controller.
pub(super) struct Controller {
    pub(super) key: ControllerKey,
    pub(super) cntlid: ControllerId,
    pub(super) role: Role,
    pub(super) path: Path,
    pub(super) host: Nqn,
    pub(super) host_id: [u8; 16],
    /// KATO; `None` where the host asked for none.
    pub(super) keep_alive: Option<Duration>,
    /// How long it may be silent where the host asked for no keep-alive: a discovery controller ends after a while
    /// (Base §3.1.2.3.2), any other does not.
    idle_max: Option<Duration>,
    heard: Instant,
    /// After a reset or shutdown: when the association ends.
    lingers_until: Option<(Instant, CloseReason)>,
    pub(super) configuration: ControllerConfiguration,
    pub(super) status: ControllerStatus,
    /// By queue id; the admin queue is the first.
    queues: Vec<Option<Queue>>,
    /// Connections that want to be I/O queues, and have not proved whose they are. Anybody can have one, so none of them is in
    /// anybody's way.
    unproved: Vec<(QueueId, Queue)>,
    attempts: u64,
    /// I/O queues that Set Features granted.
    pub(super) queues_granted: u16,
    pub(super) features: Features,
    pub(super) async_events: AsyncEvents,
    pub(super) changed_namespaces: BTreeSet<u32>,
    pub(super) reservation_notices: VecDeque<ReservationNotice>,
    pub(super) reservation_notice_count: u64,
    pub(super) errors: ErrorLog,
}

/// What is fixed about a controller when it is made.
pub(super) struct Birth {
    pub(super) key: ControllerKey,
    pub(super) cntlid: ControllerId,
    pub(super) role: Role,
    pub(super) path: Path,
    pub(super) host: Nqn,
    pub(super) host_id: [u8; 16],
    pub(super) authentication: Option<Box<Authentication>>,
}

impl Controller {
    pub(super) fn new(
        birth: Birth,
        keep_alive: Option<Duration>,
        now: Instant,
        config: &ControlConfig,
    ) -> Self {
        let is_discovery = birth.role == Role::Discovery;
        Self {
            key: birth.key,
            cntlid: birth.cntlid,
            role: birth.role,
            path: birth.path,
            host: birth.host,
            host_id: birth.host_id,
            keep_alive,
            idle_max: is_discovery.then_some(config.discovery_idle),
            heard: now,
            lingers_until: None,
            configuration: ControllerConfiguration::default(),
            status: ControllerStatus {
                is_ready: false,
                is_fatal: false,
                shutdown: ShutdownStatus::Running,
                subsystem_was_reset: false,
            },
            queues: vec![Some(Queue { attempt: 0, authentication: birth.authentication })],
            unproved: Vec::new(),
            attempts: 0,
            queues_granted: if is_discovery { 0 } else { config.queues_max },
            features: Features::new(now),
            async_events: AsyncEvents::default(),
            changed_namespaces: BTreeSet::new(),
            reservation_notices: VecDeque::new(),
            reservation_notice_count: 0,
            errors: ErrorLog::default(),
        }
    }

    /// Whether the host was asked who it is on this queue, and has proved it.
    pub(super) fn has_proved(&self, queue: QueueIdentity) -> bool {
        let proof = self.queue(queue).and_then(|queue| queue.authentication.as_ref());
        proof.is_some_and(|proof| proof.authenticator.is_authenticated())
    }

    /// Any command of the host shows that it lives, and any answer to it; those of somebody who may be another show nothing.
    pub(super) fn heard(&mut self, now: Instant, queue: QueueIdentity) {
        if self.holds(queue) {
            self.heard = self.heard.max(now);
        }
    }

    /// When this controller ends if nothing more is heard, and why.
    pub(super) fn ends_at(&self) -> Option<(Instant, CloseReason)> {
        // A host that has reset its controller or shut it down need not be heard of any more.
        let is_watched = self.lingers_until.is_none() || plant::is_planted(Bug::LingeringWatched);
        let silence_max = self.silence_max().filter(|_| is_watched);
        let silent = silence_max.map(|timeout| (self.heard + timeout, CloseReason::KeepAliveExpired));
        // Of an I/O queue nobody but itself has to bear it: whoever knows names could connect one.
        let unproved = self.admin().and_then(Queue::unproved_until);
        let unproved = unproved.map(|until| (until, CloseReason::NotAuthentic));
        [silent, self.lingers_until, unproved].into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    /// When time next ends it, or one of its queues.
    pub(super) fn due_at(&self) -> Option<Instant> {
        let unproved = self.unproved.iter().filter_map(|(_, queue)| queue.unproved_until());
        unproved.chain(self.ends_at().map(|(at, _)| at)).min()
    }

    /// Ends the I/O queues on which nobody has proved anything in time; which they were.
    pub(super) fn end_unproved(&mut self, now: Instant) -> Vec<QueueIdentity> {
        let controller = self.key;
        let is_late =
            |(_, queue): &mut (QueueId, Queue)| queue.unproved_until().is_some_and(|until| until <= now);
        let ended = self.unproved.extract_if(.., is_late);
        ended.map(|(queue, ended)| QueueIdentity { controller, queue, attempt: ended.attempt }).collect()
    }

    /// How long the host may be silent. Any command and any answer counts (TBKAS), and hosts look once a timeout whether there was one, so
    /// that up to two may pass between what they send.
    fn silence_max(&self) -> Option<Duration> {
        self.keep_alive.map(|timeout| timeout * 2).or(self.idle_max)
    }

    /// Whether its host has left it.
    pub(super) const fn lingers(&self) -> bool {
        self.lingers_until.is_some()
    }

    pub(super) fn linger(&mut self, until: Option<(Instant, CloseReason)>) {
        self.lingers_until = until;
    }

    /// CC.EN went to 0: what a reset forgets, and how long the association stays. A notice of shutdown that came with it, or
    /// before, is among what is forgotten.
    pub(super) fn reset(&mut self, now: Instant, until: Instant) {
        self.configuration = self.configuration.with_shutdown(ShutdownNotification::None);
        self.status = ControllerStatus {
            is_ready: false,
            is_fatal: false,
            shutdown: ShutdownStatus::Running,
            subsystem_was_reset: false,
        };
        self.features = Features::new(now);
        self.changed_namespaces.clear();
        self.linger(Some((until, CloseReason::Reset)));
    }

    /// Whether a command that is no fabrics command may run.
    pub(super) fn may_command(&self, queue: QueueIdentity) -> Result<(), Status> {
        let gone = Status::COMMAND_SEQUENCE_ERROR.with_do_not_retry();
        let is_admin = queue.queue == QueueId::ADMIN;
        let queue = self.queue(queue).ok_or(gone)?;
        if !queue.is_authentic() {
            return Err(Status::AUTHENTICATION_REQUIRED.with_do_not_retry());
        }
        // The admin queue goes on after a shutdown: the host asks there whether it is complete.
        let is_served = if is_admin { self.status.is_ready } else { self.may_begin() };
        if is_served { Ok(()) } else { Err(gone) }
    }

    /// Whether I/O may begin: the controller is enabled, and its host has not shut it down.
    pub(super) fn may_begin(&self) -> bool {
        self.status.is_ready && self.status.shutdown == ShutdownStatus::Running
    }

    /// Its I/O is over, if its host has shut it down.
    pub(super) fn shutdown_over(&mut self) {
        if self.status.shutdown == ShutdownStatus::Occurring {
            self.status.shutdown = ShutdownStatus::Complete;
        }
    }

    /// The admin queue.
    pub(super) fn admin(&self) -> Option<&Queue> {
        self.queues.first()?.as_ref()
    }

    pub(super) fn queue(&self, queue: QueueIdentity) -> Option<&Queue> {
        let held = self.held(queue.queue).filter(|held| held.attempt == queue.attempt);
        let is_meant =
            |(id, unproved): &&(QueueId, Queue)| *id == queue.queue && unproved.attempt == queue.attempt;
        held.or_else(|| self.unproved.iter().find(is_meant).map(|(_, unproved)| unproved))
    }

    pub(super) fn queue_mut(&mut self, queue: QueueIdentity) -> Option<&mut Queue> {
        let Self { queues, unproved, .. } = self;
        let held = queues.get_mut(usize::from(queue.queue.0)).and_then(Option::as_mut);
        let held = held.filter(|held| held.attempt == queue.attempt);
        let is_meant =
            |(id, unproved): &&mut (QueueId, Queue)| *id == queue.queue && unproved.attempt == queue.attempt;
        held.or_else(|| unproved.iter_mut().find(is_meant).map(|(_, unproved)| unproved))
    }

    /// The queue with this id, if one has it.
    pub(super) fn held(&self, queue: QueueId) -> Option<&Queue> {
        self.queues.get(usize::from(queue.0))?.as_ref()
    }

    /// Whether it is a queue of the controller, and not only wants to be one.
    fn holds(&self, queue: QueueIdentity) -> bool {
        self.held(queue.queue).is_some_and(|held| held.attempt == queue.attempt)
    }

    /// The caller has checked that the id is granted. A queue that has it already is replaced: see
    /// [`Connected::replaces_connection`](super::Connected::replaces_connection). One that has something to prove gets the id with
    /// its proof, and waits for that beside whoever else wants it.
    pub(super) fn begin_queue(
        &mut self,
        queue: QueueId,
        authentication: Option<Box<Authentication>>,
    ) -> QueueIdentity {
        let controller = self.key;
        if authentication.is_none() {
            self.put(queue, Queue { attempt: 0, authentication });
            return QueueIdentity { controller, queue, attempt: 0 };
        }
        self.attempts += 1;
        let attempt = self.attempts;
        self.unproved.push((queue, Queue { attempt, authentication }));
        QueueIdentity { controller, queue, attempt }
    }

    /// Gives a queue its id, now that it has proved whose it is; which of the queues that wanted it has to end. The last that
    /// was connected stays: whatever the host connected before, it has given up, however late the proof of it comes.
    pub(super) fn proved(&mut self, queue: QueueIdentity) -> Option<QueueIdentity> {
        let at = self.unproved.iter().position(|(_, unproved)| unproved.attempt == queue.attempt)?;
        let (id, proved) = self.unproved.swap_remove(at);
        let before = self.held(id).map(|held| held.attempt);
        if before.is_some_and(|before| before > queue.attempt) {
            return Some(queue);
        }
        self.put(id, proved);
        before.map(|attempt| QueueIdentity { attempt, ..queue })
    }

    fn put(&mut self, queue: QueueId, pair: Queue) {
        let index = usize::from(queue.0);
        if self.queues.len() <= index {
            self.queues.resize_with(index + 1, || None);
        }
        if let Some(slot) = self.queues.get_mut(index) {
            *slot = Some(pair);
        }
    }

    pub(super) fn end_queue(&mut self, queue: QueueIdentity) {
        self.unproved.retain(|(_, unproved)| unproved.attempt != queue.attempt);
        let slot = self.queues.get_mut(usize::from(queue.queue.0));
        if let Some(slot) = slot
            && slot.as_ref().is_some_and(|held| held.attempt == queue.attempt)
        {
            *slot = None;
        }
    }

    /// The queues that exist, admin first, and those that want to be some.
    pub(super) fn queues(&self) -> Vec<QueueIdentity> {
        let controller = self.key;
        let held = (0_u16..).map(QueueId).zip(&self.queues);
        let held = held.filter_map(|(queue, held)| Some((queue, held.as_ref()?.attempt)));
        let unproved = self.unproved.iter().map(|(queue, unproved)| (*queue, unproved.attempt));
        held.chain(unproved).map(|(queue, attempt)| QueueIdentity { controller, queue, attempt }).collect()
    }

    /// Whether I/O queues exist.
    pub(super) fn has_io_queues(&self) -> bool {
        self.queues.iter().skip(1).any(Option::is_some)
    }
}

/// Entries that the error log keeps: ELPE plus one.
pub(super) const ERROR_ENTRIES: usize = 64;

/// The error log (Base §5.16.1.2), newest first.
#[derive(Debug, Default)]
pub(super) struct ErrorLog {
    pub(super) entries: VecDeque<ErrorRecord>,
    count: u64,
}

/// An entry of it.
#[derive(Debug)]
pub(super) struct ErrorRecord {
    pub(super) count: u64,
    pub(super) queue: QueueId,
    pub(super) command: CommandId,
    pub(super) status: Status,
    pub(super) nsid: u32,
    pub(super) lba: u64,
}

impl ErrorLog {
    pub(super) fn record(&mut self, queue: QueueId, command: CommandId, status: Status, nsid: u32, lba: u64) {
        self.count = self.count.saturating_add(1);
        self.entries.truncate(ERROR_ENTRIES - 1);
        self.entries.push_front(ErrorRecord { count: self.count, queue, command, status, nsid, lba });
    }
}
