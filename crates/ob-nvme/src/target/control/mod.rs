//! What a target knows besides data: subsystems, namespaces, hosts, controllers.
//!
//! ```text
//!   Connect ──────────▶ connect ──▶ Controller ──▶ disconnected
//!   admin, fabrics,  ─▶ command ──▶ Verdict          │
//!   reservations                                     ├─▶ events: answers to held requests, controllers to close,
//!   administrator ────▶ add_…, remove_…, set_… ──────┘           reservations to save
//!   reads and writes ─▶ heard, namespace, admit, count_io
//! ```
//!
//! Pure and synchronous: nothing here waits, and no payload passes through. Whatever takes time (draining a superseded
//! association, saving reservations) is asked of the caller, in [`Connected`], [`Verdict`] and [`ControlEvent`].

use std::collections::{BTreeSet, VecDeque};

use ob_core::Instant;
use ob_wire_nvme::command::{FABRICS_OPCODE, FabricsKind};
use ob_wire_nvme::fabrics::{ConnectError, ShutdownStatus};
use ob_wire_nvme::text::Nqn;
use ob_wire_nvme::{CommandId, ControllerId, QueueId, Status, SubmissionEntry};

mod admin;
mod administration;
mod ana;
mod async_event;
mod connect;
mod controller;
mod discovery;
mod fabrics;
mod feature;
mod identify;
mod log;
mod reservation;
mod reserve;
mod spec;
mod subsystem;
#[cfg(test)]
mod tests;

pub use ob_wire_nvme::io::ReservationType;
pub use ob_wire_nvme::log::{AddressFamily, AnaState};
pub use reservation::{REGISTRANTS_MAX, RegisteredHost, ReservationState};
pub use spec::{
    AdminError, BackendId, Backing, ControlConfig, ControllerKey, HostPolicy, HostSecrets, HostSpec,
    NamespaceKey, NamespaceSpec, Path, PortKey, PortSpec, SubsystemKey, SubsystemSpec, TransportAddress,
};
pub use subsystem::Namespace;

use controller::{Controller, Role};
use subsystem::Subsystem;

/// Who speaks: fixed when a queue's Connect succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueIdentity {
    /// The controller.
    pub controller: ControllerKey,
    /// Which of its queues.
    pub queue: QueueId,
    /// Which of those who want to be this queue, where its host has to prove who it is; otherwise 0.
    pub attempt: u64,
}

impl QueueIdentity {
    /// The admin queue of a controller, which nobody else can want to be.
    pub const fn admin(controller: ControllerKey) -> Self {
        Self { controller, queue: QueueId::ADMIN, attempt: 0 }
    }
}

/// A Connect that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connected {
    /// What the connection is from now on.
    pub identity: QueueIdentity,
    /// CNTLID.
    pub cntlid: ControllerId,
    /// Entries of the queue; a host never has as many commands in flight.
    pub sq_size: u16,
    /// SQHD stays FFFFh in every completion of this queue, Connect's own too.
    pub flow_control_off: bool,
    /// The host has to authenticate before this queue serves anything but fabrics commands.
    pub authentication_required: bool,
    /// DW0 of the completion.
    pub result: u32,
    /// Live associations of the same host with the same subsystem through the same port, which this one replaces. Their
    /// connections are to be closed and their device operations done before the Connect is answered: a host that comes
    /// back must never see an earlier write of its own land later.
    pub superseded: Vec<ControllerKey>,
    /// The same queue had a connection until now, which this one replaces: it is to be closed, and what it left on devices
    /// done, before the Connect is answered.
    pub replaces_connection: bool,
}

/// What becomes of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Answer this.
    Done {
        /// DW0 and DW1.
        result: u64,
        /// The status.
        status: Status,
    },
    /// Send these bytes, never more than the command has room for, and then success.
    Data {
        /// What to send.
        bytes: Vec<u8>,
        /// DW0 and DW1.
        result: u64,
    },
    /// The same, when this version of a namespace's reservations is saved: who hears of it acts on it, as whoever changed them
    /// does, and after a loss of power it must still be so.
    DataAfter {
        /// What to send.
        bytes: Vec<u8>,
        /// Which namespace.
        namespace: NamespaceKey,
        /// Wait until this version is saved.
        version: u64,
    },
    /// An Asynchronous Event Request: [`ControlEvent::CompleteAsync`] answers it, or nothing does.
    Held,
    /// Answer this, then close the connection.
    CloseAfter {
        /// DW0 and DW1.
        result: u64,
        /// The status.
        status: Status,
    },
    /// Reservations changed. Answer this when those of [`Control::reservations`] that are to be are saved, and no command of
    /// `drain` on the namespace is in flight: a host that was preempted with abort must not change data after the answer.
    DoneAfter {
        /// Which namespace.
        namespace: NamespaceKey,
        /// Wait until these versions are saved; none where nothing is to survive a loss of power.
        saved: Vec<(NamespaceKey, u64)>,
        /// Wait until these controllers have nothing in flight on the namespace of what they have now.
        drain: Vec<ControllerKey>,
        /// DW0 and DW1.
        result: u64,
        /// The status.
        status: Status,
    },
}

impl Verdict {
    const SUCCESS: Self = Self::Done { result: 0, status: Status::SUCCESS };

    /// A failure that would happen again.
    fn refused(status: Status) -> Self {
        Self::Done { result: 0, status: status.with_do_not_retry() }
    }

    /// Success with a value.
    fn value(result: u64) -> Self {
        Self::Done { result, status: Status::SUCCESS }
    }
}

impl From<Result<Self, Status>> for Verdict {
    fn from(result: Result<Self, Status>) -> Self {
        result.unwrap_or_else(|status| Self::Done { result: 0, status })
    }
}

/// What an I/O command does to a namespace, as far as access control goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read, Compare, Verify.
    Read,
    /// Write, Write Zeroes, Dataset Management.
    Write,
    /// Flush: a write for reservations, though it writes nothing new.
    Flush,
}

/// What an I/O command did, for the health log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoCount {
    /// A read or a compare of so many bytes.
    Read(u64),
    /// A write of so many bytes.
    Write(u64),
    /// Any other.
    Other,
}

/// Why a connection or a controller has to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The host said nothing for longer than it had promised.
    KeepAliveExpired,
    /// The host cleared CC.EN: I/O queues end at once, the association a while later.
    Reset,
    /// The host shut the controller down, a while ago.
    Shutdown,
    /// The same host, authenticated by now, has a newer association.
    Superseded,
    /// A host tried to authenticate and failed, or did not try in time.
    NotAuthentic,
}

/// What happens outside of a command's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlEvent {
    /// Answer an Asynchronous Event Request that was [`Verdict::Held`].
    CompleteAsync {
        /// The admin queue it came on.
        queue: QueueIdentity,
        /// Its CID.
        command: CommandId,
        /// DW0.
        result: u32,
        /// The status.
        status: Status,
    },
    /// Close this queue's connection.
    CloseQueue {
        /// Which.
        queue: QueueIdentity,
        /// Why.
        reason: CloseReason,
    },
    /// Close all connections of this controller, which is no more.
    CloseController {
        /// Which.
        controller: ControllerKey,
        /// Its queues at that time.
        queues: Vec<QueueId>,
        /// Why.
        reason: CloseReason,
    },
    /// A host has shut its controller down: [`Control::shutdown_over`] is to be called when none of its commands is under
    /// way any more.
    ShuttingDown {
        /// Which.
        controller: ControllerKey,
    },
    /// A namespace's reservations changed and want to be saved: see [`Control::reservations`].
    ReservationsChanged {
        /// Which subsystem.
        subsystem: SubsystemKey,
        /// Which namespace.
        namespace: NamespaceKey,
        /// Its NSID.
        nsid: u32,
    },
}

/// Where randomness comes from: fills the bytes with what nobody can guess.
type Random = Box<dyn FnMut(&mut [u8]) + Send>;

/// Everything a target knows besides data. See the module.
pub struct Control {
    config: ControlConfig,
    ports: Vec<PortSpec>,
    subsystems: Vec<Subsystem>,
    /// By slot; the slot is in the lowest bits of a [`ControllerKey`].
    controllers: Vec<Option<Box<Controller>>>,
    /// Those that ended and have something left on devices, with their hosts. See [`Control::forget_ended`].
    ended: Vec<(ControllerKey, Role, [u8; 16])>,
    controllers_made: u64,
    namespaces_made: u64,
    /// GENCTR: how often what discovery tells has changed.
    discovery_generation: u64,
    /// The CNTLID that was given to the last discovery controller.
    discovery_cntlid: u16,
    events: VecDeque<ControlEvent>,
    random: Option<Random>,
    /// Opcodes of I/O queues that a service answers.
    foreign_opcodes: Vec<u8>,
    /// MDTS of controllers of subsystems: a transfer has at most `4096 << this` bytes.
    transfer_shift: u8,
    /// No timer of any controller fires before this.
    due: Option<Instant>,
}

/// An answer to a command that is none of I/O has at most `4096 << this` bytes, whatever MDTS says: there is no longer one, and it
/// lies in memory that nobody is lent. It is MDTS of discovery, which has no other commands.
const ANSWER_SHIFT: u8 = 5;

/// Bits of a [`ControllerKey`] that hold the slot.
const SLOT_BITS: u32 = 16;

impl Control {
    /// A target that serves nothing yet.
    #[must_use]
    pub fn new(mut config: ControlConfig) -> Self {
        config.queues_max = config.queues_max.clamp(1, 0xFFFE);
        config.queue_depth_max = config.queue_depth_max.max(2);
        config.controllers_max = config.controllers_max.clamp(1, 1 << SLOT_BITS);
        config.namespaces_max = config.namespaces_max.clamp(1, 1024);
        config.ana_groups_max = config.ana_groups_max.clamp(1, 128);
        Self {
            config,
            ports: Vec::new(),
            subsystems: Vec::new(),
            controllers: Vec::new(),
            ended: Vec::new(),
            controllers_made: 0,
            namespaces_made: 0,
            discovery_generation: 1,
            discovery_cntlid: 0,
            events: VecDeque::new(),
            random: None,
            foreign_opcodes: Vec::new(),
            transfer_shift: ANSWER_SHIFT,
            due: None,
        }
    }

    /// Gives randomness, before any subsystem is added: for challenges, without which no host with secrets can
    /// authenticate, and for where CNTLIDs begin.
    #[must_use]
    pub fn with_random(mut self, random: impl FnMut(&mut [u8]) + Send + 'static) -> Self {
        self.random = Some(Box::new(random));
        self
    }

    /// The limits.
    #[must_use]
    pub fn config(&self) -> &ControlConfig {
        &self.config
    }

    /// A Connect came as the first command on a connection that uses `path`. `data` is what it brought along, 1024 bytes.
    pub fn connect(
        &mut self,
        now: Instant,
        path: impl Into<Path>,
        command: &SubmissionEntry,
        data: &[u8],
    ) -> Result<Connected, ConnectError> {
        connect::connect(self, now, path.into(), command, data)
    }

    /// A connection ended. With the admin queue ends its controller; what is returned are the connections that have to be
    /// closed with it.
    pub fn disconnected(&mut self, queue: QueueIdentity) -> Vec<QueueIdentity> {
        if queue.queue == QueueId::ADMIN {
            let others = self.remove_controller(queue.controller);
            return others.into_iter().filter(|other| *other != queue).collect();
        }
        if let Some(controller) = self.controller_mut(queue.controller) {
            controller.end_queue(queue);
        }
        Vec::new()
    }

    /// A fabrics or admin command on an admin queue; a fabrics or reservation command on an I/O queue. `data` is what the
    /// host sent, `transfer_len` the bytes that its SGL names, in either direction.
    pub fn command(
        &mut self,
        now: Instant,
        queue: QueueIdentity,
        command: &SubmissionEntry,
        data: &[u8],
        transfer_len: u32,
    ) -> Verdict {
        let Some(controller) = self.controller_mut(queue.controller) else {
            return Verdict::refused(Status::COMMAND_SEQUENCE_ERROR);
        };
        controller.heard(now, queue);
        let request = Request { now, queue, command, data, transfer_len };
        if command.opcode == FABRICS_OPCODE {
            return fabrics::command(self, &request);
        }
        if let Err(status) = controller.may_command(queue) {
            return Verdict::Done { result: 0, status };
        }
        if queue.queue == QueueId::ADMIN {
            admin::command(self, &request)
        } else {
            reserve::command(self, &request)
        }
    }

    /// The namespace that a controller means by an NSID.
    pub fn namespace(&self, controller: ControllerKey, nsid: u32) -> Result<&Namespace, Status> {
        let invalid = Status::INVALID_NAMESPACE.with_do_not_retry();
        let controller = self.controller(controller).ok_or(invalid)?;
        let Role::Io(subsystem) = controller.role else { return Err(invalid) };
        self.subsystem(subsystem).and_then(|subsystem| subsystem.namespace(nsid)).ok_or(invalid)
    }

    /// Whether an I/O command may go on: the controller is enabled, the host authentic, the path accessible, and no
    /// reservation of others in the way.
    pub fn admit(&self, queue: QueueIdentity, namespace: &Namespace, access: Access) -> Result<(), Status> {
        let gone = Status::COMMAND_SEQUENCE_ERROR.with_do_not_retry();
        let controller = self.controller(queue.controller).ok_or(gone)?;
        controller.may_command(queue)?;
        let Role::Io(subsystem) = controller.role else { return Err(gone) };
        let subsystem = self.subsystem(subsystem).ok_or(gone)?;
        ana::admit(subsystem.ana_state(controller.path.port, namespace.ana_group))?;
        if access == Access::Write && namespace.read_only {
            return Err(Status::NAMESPACE_WRITE_PROTECTED.with_do_not_retry());
        }
        if namespace.reservations.admits(&controller.host_id, access) {
            Ok(())
        } else {
            Err(Status::RESERVATION_CONFLICT.with_do_not_retry())
        }
    }

    /// Whether an I/O command may go on that no namespace has to do with: the controller is enabled and the host authentic.
    pub fn admit_queue(&self, queue: QueueIdentity) -> Result<(), Status> {
        let gone = Status::COMMAND_SEQUENCE_ERROR.with_do_not_retry();
        self.controller(queue.controller).ok_or(gone)?.may_command(queue)
    }

    /// A command came on a queue, whatever becomes of it, or one is answered: the host lives, or need not say so.
    pub fn heard(&mut self, now: Instant, queue: QueueIdentity) {
        if let Some(controller) = self.controller_mut(queue.controller) {
            controller.heard(now, queue);
        }
    }

    /// An I/O command goes on: the health log grows.
    pub fn count_io(&mut self, controller: ControllerKey, count: IoCount) {
        let Some(controller) = self.controller_mut(controller) else { return };
        let Role::Io(subsystem) = controller.role else { return };
        if let Some(subsystem) = self.subsystem_mut(subsystem) {
            subsystem.health.count(count);
        }
    }

    /// Nothing of a controller that its host shut down is under way any more, and nothing begins: CSTS says so.
    pub fn shutdown_over(&mut self, controller: ControllerKey) {
        if let Some(controller) = self.controller_mut(controller) {
            controller.shutdown_over();
        }
    }

    /// Whether a controller is there whose host has shut it down, and which [`Control::shutdown_over`] is still to hear of.
    pub fn is_shutting_down(&self, controller: ControllerKey) -> bool {
        let controller = self.controller(controller);
        controller.is_some_and(|controller| controller.status.shutdown == ShutdownStatus::Occurring)
    }

    /// An I/O command failed in a way that the error log should tell of.
    pub fn record_error(
        &mut self,
        queue: QueueIdentity,
        command: CommandId,
        status: Status,
        nsid: u32,
        lba: u64,
    ) {
        let Some(controller) = self.controller_mut(queue.controller) else { return };
        controller.errors.record(queue.queue, command, status, nsid, lba);
        let Role::Io(subsystem) = controller.role else { return };
        if let Some(subsystem) = self.subsystem_mut(subsystem) {
            subsystem.health.count_error(status);
        }
    }

    /// Whether completed writes of this controller may be lost until a flush: the host can switch the cache off (feature
    /// 06h), and then every write has to be durable.
    #[must_use]
    pub fn volatile_cache_enabled(&self, controller: ControllerKey) -> bool {
        self.controller(controller).is_some_and(|controller| controller.features.write_cache)
    }

    /// The host that a controller is of, as it called itself or has proved; nothing of one that is gone.
    #[must_use]
    pub fn host(&self, controller: ControllerKey) -> Option<&Nqn> {
        self.controller(controller).map(|controller| &controller.host)
    }

    /// The subsystem that a controller is of; nothing of one that is gone, or of the discovery service.
    #[must_use]
    pub fn subsystem_of(&self, controller: ControllerKey) -> Option<SubsystemKey> {
        match self.controller(controller)?.role {
            Role::Io(subsystem) => Some(subsystem),
            Role::Discovery => None,
        }
    }

    /// The host of a queue, if it has authenticated itself there.
    pub(super) fn proved_host(&self, queue: QueueIdentity) -> Option<&Nqn> {
        let controller = self.controller(queue.controller)?;
        controller.has_proved(queue).then_some(&controller.host)
    }

    /// Whether anybody could have this queue: it is the discovery service's, or its host has still to prove who it is.
    pub(super) fn is_anybodys(&self, queue: QueueIdentity) -> bool {
        self.controller(queue.controller).is_none_or(|controller| {
            let is_authentic = controller.queue(queue).is_some_and(controller::Queue::is_authentic);
            controller.role == Role::Discovery || !is_authentic
        })
    }

    /// Whether the answer to a command takes a computation of milliseconds, which those who wait for theirs would feel.
    pub(super) fn computes(&self, queue: QueueIdentity, command: &SubmissionEntry) -> bool {
        let kind = FabricsKind::try_from(command.fabrics_kind());
        let to_host = match kind {
            Ok(FabricsKind::AuthenticationSend) => false,
            Ok(FabricsKind::AuthenticationReceive) => true,
            _ => return false,
        };
        let queue = self.controller(queue.controller).and_then(|controller| controller.queue(queue));
        let proof = queue.and_then(|queue| queue.authentication.as_ref());
        command.opcode == FABRICS_OPCODE && proof.is_some_and(|proof| proof.authenticator.computes(to_host))
    }

    /// What happened, oldest first; asked after every call until there is nothing more.
    pub fn events(&mut self) -> Option<ControlEvent> {
        self.events.pop_front()
    }

    /// Time went by: ends controllers whose hosts are silent, and queues whose hosts have proved nothing.
    pub fn tick(&mut self, now: Instant) {
        if self.due.is_none_or(|due| now < due) {
            return;
        }
        let ended: Vec<_> = self
            .controllers
            .iter()
            .flatten()
            .filter_map(|controller| {
                let (at, reason) = controller.ends_at()?;
                (at <= now).then_some((controller.key, reason))
            })
            .collect();
        for (controller, reason) in ended {
            self.close_controller(controller, reason);
        }
        for controller in self.controllers.iter_mut().flatten() {
            let reason = CloseReason::NotAuthentic;
            for queue in controller.end_unproved(now) {
                self.events.push_back(ControlEvent::CloseQueue { queue, reason });
            }
        }
        self.due = self.controllers.iter().flatten().filter_map(|controller| controller.due_at()).min();
    }

    /// When [`Control::tick`] has something to do, or a little before.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.due
    }

    /// How many controllers there are, and of how many hosts.
    pub fn population(&self) -> (usize, usize) {
        let controllers = || self.controllers.iter().flatten();
        let hosts: BTreeSet<_> =
            controllers().map(|controller| (&controller.host, &controller.host_id)).collect();
        (controllers().count(), hosts.len())
    }

    /// How many namespaces there are, of all subsystems.
    pub fn namespace_count(&self) -> usize {
        self.subsystems.iter().map(|subsystem| subsystem.namespaces().count()).sum()
    }

    fn wake_at(&mut self, at: Option<Instant>) {
        let Some(at) = at else { return };
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    fn controller(&self, key: ControllerKey) -> Option<&Controller> {
        let controller = self.controllers.get(slot_of(key))?.as_deref()?;
        (controller.key == key).then_some(controller)
    }

    fn controller_mut(&mut self, key: ControllerKey) -> Option<&mut Controller> {
        let controller = self.controllers.get_mut(slot_of(key))?.as_deref_mut()?;
        (controller.key == key).then_some(controller)
    }

    fn subsystem(&self, key: SubsystemKey) -> Option<&Subsystem> {
        self.subsystems.get(key.0 as usize)
    }

    fn subsystem_mut(&mut self, key: SubsystemKey) -> Option<&mut Subsystem> {
        self.subsystems.get_mut(key.0 as usize)
    }

    fn subsystem_named(&self, nqn: &Nqn) -> Option<SubsystemKey> {
        let index = self.subsystems.iter().position(|subsystem| subsystem.spec.nqn == *nqn)?;
        u32::try_from(index).ok().map(SubsystemKey)
    }

    /// Nothing of a controller that has ended is on a device any more. Until it is said, who preempts its host waits.
    pub(super) fn forget_ended(&mut self, controller: ControllerKey) {
        self.ended.retain(|(ended, ..)| *ended != controller);
    }

    /// Forgets a controller; returns its queues.
    fn remove_controller(&mut self, key: ControllerKey) -> Vec<QueueIdentity> {
        if self.controller(key).is_none() {
            return Vec::new();
        }
        let removed = self.controllers.get_mut(slot_of(key)).and_then(Option::take);
        let Some(removed) = removed else { return Vec::new() };
        if removed.role != Role::Discovery {
            self.ended.push((key, removed.role, removed.host_id));
        }
        removed.queues()
    }

    fn close_controller(&mut self, key: ControllerKey, reason: CloseReason) {
        let queues: Vec<_> = self.remove_controller(key).into_iter().map(|queue| queue.queue).collect();
        if !queues.is_empty() {
            self.events.push_back(ControlEvent::CloseController { controller: key, queues, reason });
        }
    }
}

/// A command with its surroundings.
struct Request<'a> {
    now: Instant,
    queue: QueueIdentity,
    command: &'a SubmissionEntry,
    data: &'a [u8],
    transfer_len: u32,
}

fn slot_of(key: ControllerKey) -> usize {
    (key.0 & ((1 << SLOT_BITS) - 1)) as usize
}
