//! How a queue comes to be, step by step.
//!
//! ```text
//!   admin: Connect ─▶ Authenticate? ─▶ Capabilities ─▶ Enable ─▶ AwaitReady ─▶ Identify ─▶ Limits ─▶ Queues ─▶ Events
//!   I/O:   Connect ─▶ Authenticate?
//! ```

use std::time::Duration;

use ob_core::Instant;
use ob_wire_nvme::fabrics::{
    AuthenticationTransfer, Capabilities, Connect, ConnectParties, ConnectResult, ControllerConfiguration,
    ControllerStatus, Property, PropertyAccess,
};
use ob_wire_nvme::feature::{FeatureId, QueueCounts, SetFeatures};
use ob_wire_nvme::identify::{Cns, CommandSetController, Controller, IDENTIFY_LEN, Identify, async_event};
use ob_wire_nvme::io::RANGES_MAX;
use ob_wire_nvme::text::unpadded;
use ob_wire_nvme::{CommandId, ControllerId, DataPointer, NamespaceId, QueueId, SubmissionEntry};
use zerocopy::{FromBytes, IntoBytes};

use super::{ADMIN_ENTRIES, Event, Facts, Link, Purpose, Session, Stage};
use crate::auth::{HostAuthenticator, HostConfig, HostStep};
use crate::initiator::connection::{Completion, Connection, DEPTH_MAX, Data, Submission};
use crate::initiator::error::{Cause, Error, ProtocolError};
use crate::initiator::payload::Payload;

/// How long to wait before a controller is asked again whether it is ready.
const READY_PAUSE: Duration = Duration::from_millis(20);
/// Placeholder: the connection gives identifiers.
const COMMAND: CommandId = CommandId(0);
/// The events that are told to the user.
const EVENTS: u32 = async_event::NAMESPACES | async_event::ANA | async_event::DISCOVERY;

/// Where a queue is on its way.
pub(super) enum Step {
    Connect,
    Authenticate(Box<HostAuthenticator>),
    Capabilities,
    Enable,
    AwaitReady,
    Identify,
    Limits,
    Queues,
    Events,
}

fn setup(error: Error) -> Cause {
    Cause::Setup(Box::new(error))
}

impl Session {
    /// Asks the next question of each queue that is being set up.
    pub(super) fn set_up(&mut self, now: Instant) -> Result<(), Cause> {
        if !matches!(self.stage, Stage::Starting { .. }) {
            return Ok(());
        }
        for index in 0..self.links.len() {
            let Some(link) = self.links.get(index) else { continue };
            let is_open = link.connection.as_ref().is_some_and(Connection::is_open);
            let is_due = link.ask_at.is_none_or(|at| at <= now);
            let Some(step) = link.step.as_ref().filter(|_| is_open && is_due && !link.is_asked) else {
                continue;
            };
            let (entry, data) = self.question(link, step)?;
            let may_be_short = matches!(step, Step::Authenticate(_));
            let submission = Submission { key: Purpose::Setup, entry, data, may_be_short, is_patient: false };
            let Some(link) = self.links.get_mut(index) else { continue };
            link.ask_at = None;
            link.is_asked =
                link.connection.as_mut().is_some_and(|connection| connection.submit(now, submission).is_ok());
        }
        self.finish_set_up(now);
        Ok(())
    }

    fn finish_set_up(&mut self, now: Instant) {
        if self.links.iter().any(|link| link.step.is_some()) {
            return;
        }
        let Some(facts) = &self.facts else { return };
        let queues = facts.queues;
        if self.links.len() == 1 && queues > 0 {
            (1..=queues).for_each(|queue| self.open(queue));
            return;
        }
        self.stage = Stage::Ready;
        self.was_ready = true;
        self.associations += 1;
        self.attempts = 0;
        self.lost_at = None;
        self.tell(Event::Connected);
        self.begin_background(now);
    }

    /// The command that a step consists of.
    fn question(&self, link: &Link, step: &Step) -> Result<(SubmissionEntry, Data), Cause> {
        let property = |property, value| (PropertyAccess { property, value }.encode(COMMAND), Data::None);
        let identify = |structure| {
            let entry = Identify::new(structure, NamespaceId::NONE).encode(COMMAND);
            (entry, Data::ToHost(IDENTIFY_LEN as u32))
        };
        let feature = |feature: FeatureId, dword11| {
            let (dword12, dword13) = (0, 0);
            let namespace = NamespaceId::NONE;
            let set = SetFeatures {
                feature: feature.code(),
                is_saved: false,
                dword11,
                dword12,
                dword13,
                namespace,
            };
            (set.encode(COMMAND), Data::None)
        };
        Ok(match step {
            Step::Connect => self.connect_command(link),
            Step::Authenticate(authenticator) => authentication_command(authenticator)?,
            Step::Capabilities => property(Property::Capabilities, None),
            Step::Enable => property(Property::Configuration, Some(u64::from(self.configuration.0))),
            Step::AwaitReady => property(Property::Status, None),
            Step::Identify => identify(Cns::Controller),
            Step::Limits => identify(Cns::CommandSetController),
            Step::Queues => {
                let count = self.options.queues.max(1);
                let counts = QueueCounts { submission: count, completion: count };
                feature(FeatureId::NumberOfQueues, counts.bits())
            }
            Step::Events => {
                let events = self.facts.as_ref().map_or(0, |facts| facts.async_events);
                feature(FeatureId::AsyncEvents, events)
            }
        })
    }

    fn connect_command(&self, link: &Link) -> (SubmissionEntry, Data) {
        let is_admin = link.queue == 0;
        let facts = self.facts.as_ref().filter(|_| !is_admin);
        let entries = facts.map_or(ADMIN_ENTRIES, |facts| facts.depth.saturating_add(1));
        let keep_alive = u32::try_from(self.options.keep_alive.as_millis()).unwrap_or(u32::MAX);
        let parties = ConnectParties {
            host_id: self.options.host_id,
            controller: facts.map_or(ControllerId::DYNAMIC, |facts| facts.controller),
            subsystem: self.options.subsystem.clone(),
            host: self.options.host.clone(),
        };
        let connect = Connect {
            queue: QueueId(link.queue),
            queue_entries: u32::from(entries),
            // Slots bound what is under way; the target need not say how far it has read.
            no_flow_control: !is_admin,
            keep_alive_ms: if is_admin { keep_alive } else { 0 },
        };
        let payload = Payload::from(parties.encode().as_bytes());
        let len = payload.len() as u32;
        let entry = connect.encode(COMMAND, DataPointer::InCapsule { offset: 0, len });
        (entry, Data::ToController(payload))
    }

    /// A step was answered; the next one follows.
    pub(super) fn setup_completed(
        &mut self,
        now: Instant,
        index: usize,
        completion: &Completion<Purpose>,
    ) -> Result<(), Cause> {
        let Some(link) = self.links.get_mut(index) else { return Ok(()) };
        let is_admin = link.queue == 0;
        link.is_asked = false;
        let Some(step) = link.step.take() else { return Ok(()) };
        let is_optional = matches!(step, Step::Limits | Step::Events);
        if !completion.status.is_success() && !is_optional {
            return Err(setup(match step {
                Step::Connect => Error::Refused {
                    subsystem: self.options.subsystem.clone(),
                    // The controller let this host in: an I/O queue is refused when the controller is gone meanwhile,
                    // for instance with the target's process, and the next association has another.
                    status: if is_admin { completion.status } else { completion.status.without_flags() },
                    result: completion.result as u32,
                },
                _ => Error::Command { status: completion.status, result: completion.result },
            }));
        }
        let next = match step {
            Step::Connect => self.connected(is_admin, completion.result)?,
            Step::Authenticate(authenticator) => self.authenticate(is_admin, authenticator, completion)?,
            Step::Capabilities => Some(self.take_capabilities(completion.result)),
            Step::Enable => Some(Step::AwaitReady),
            Step::AwaitReady => {
                let status = ControllerStatus::from_bits(completion.result as u32);
                if status.is_fatal {
                    return Err(setup(Error::Unsuitable("it reports a fatal state")));
                }
                if !status.is_ready
                    && let Some(link) = self.links.get_mut(index)
                {
                    link.ask_at = Some(now + READY_PAUSE);
                }
                Some(if status.is_ready { Step::Identify } else { Step::AwaitReady })
            }
            Step::Identify => Some(self.take_identity(&completion.data)?),
            Step::Limits => Some(self.take_limits(completion)),
            Step::Queues => Some(self.take_queues(completion.result)?),
            Step::Events => {
                if let Some(facts) = self.facts.as_mut().filter(|_| !completion.status.is_success()) {
                    facts.async_events = 0;
                }
                None
            }
        };
        self.advance(index, next);
        Ok(())
    }

    fn advance(&mut self, index: usize, next: Option<Step>) {
        let capsule_data_max = self.facts.as_ref().map(|facts| facts.capsule_data_max);
        let Some(link) = self.links.get_mut(index) else { return };
        if let (None, Some(len), Some(connection)) = (&next, capsule_data_max, &mut link.connection)
            && link.queue != 0
        {
            connection.set_capsule_data_max(len);
        }
        link.step = next;
    }

    fn connected(&mut self, is_admin: bool, result: u64) -> Result<Option<Step>, Cause> {
        let result = ConnectResult::from_bits(result as u32);
        if is_admin {
            // What was known of an earlier association counts only for comparison, see `take_identity`.
            self.capabilities = None;
            self.controller = result.controller;
        } else if result.controller != self.controller {
            return Err(ProtocolError::Controller.into());
        }
        if result.must_secure_channel {
            return Err(setup(Error::Unsuitable("it demands a secure channel, which is not supported")));
        }
        if !result.must_authenticate {
            return Ok(is_admin.then_some(Step::Capabilities));
        }
        let secrets = self.options.secrets.clone().ok_or(setup(Error::AuthenticationRequired))?;
        self.next_transaction = self.next_transaction.wrapping_add(1);
        let config = HostConfig {
            host: self.options.host.clone(),
            subsystem: self.options.subsystem.clone(),
            host_secret: secrets.host,
            controller_secret: secrets.controller,
            policy: secrets.policy,
        };
        let authenticator = HostAuthenticator::new(config, self.next_transaction);
        Ok(Some(Step::Authenticate(Box::new(authenticator))))
    }

    fn authenticate(
        &mut self,
        is_admin: bool,
        mut authenticator: Box<HostAuthenticator>,
        completion: &Completion<Purpose>,
    ) -> Result<Option<Step>, Cause> {
        match authenticator.step() {
            HostStep::Receive { .. } => authenticator.received(&completion.data, &mut *self.random),
            HostStep::Send(_) => authenticator.sent(),
            HostStep::Done | HostStep::Failed(_) => {}
        }
        match authenticator.step() {
            HostStep::Done => Ok(is_admin.then_some(Step::Capabilities)),
            HostStep::Failed(failure) => Err(setup(Error::Authentication(failure))),
            HostStep::Send(_) | HostStep::Receive { .. } => Ok(Some(Step::Authenticate(authenticator))),
        }
    }

    fn take_capabilities(&mut self, bits: u64) -> Step {
        let capabilities = Capabilities::from_bits(bits);
        let sets = capabilities.command_sets;
        let command_set = match sets {
            _ if sets & Capabilities::COMMAND_SET_NVM != 0 => ControllerConfiguration::COMMAND_SET_NVM,
            _ if sets & Capabilities::COMMAND_SET_BY_ID != 0 => ControllerConfiguration::COMMAND_SET_ALL,
            _ if sets & Capabilities::COMMAND_SET_NONE != 0 => ControllerConfiguration::COMMAND_SET_NONE,
            _ => ControllerConfiguration::COMMAND_SET_NVM,
        };
        self.configuration = ControllerConfiguration::enabled(command_set);
        self.capabilities = Some(capabilities);
        Step::Enable
    }

    fn take_identity(&mut self, data: &[u8]) -> Result<Step, Cause> {
        let broken = || setup(Error::Unsuitable("its identity has the wrong length"));
        let identity = Controller::ref_from_bytes(data).map_err(|_| broken())?;
        if identity.controller_id.get() != self.controller.0 {
            return Err(ProtocolError::Controller.into());
        }
        let is_discovery = self.options.subsystem.is_discovery();
        if !is_discovery {
            check_for_io(identity).map_err(|lack| setup(Error::Unsuitable(lack)))?;
        }
        let capabilities = self.capabilities;
        let entries = capabilities.map_or(2, |capabilities| capabilities.queue_entries_max);
        let page_shift = capabilities.map_or(0, |capabilities| capabilities.page_shift_min);
        let commands_max = match identity.commands_max.get() {
            0 => u16::MAX,
            most => most,
        };
        let depth = self.options.depth.min(u16::try_from(entries - 1).unwrap_or(u16::MAX));
        let transfer_max =
            identity.transfer_bytes_max().map_or(u64::MAX, |bytes| bytes.saturating_mul(1 << page_shift));
        let transfer_max = u32::try_from(transfer_max).unwrap_or(u32::MAX).min(self.options.transfer_max);
        let transfer_max = transfer_max.max(4096);
        let facts = Facts {
            controller: self.controller,
            serial: unpadded(&identity.serial),
            model: unpadded(&identity.model),
            firmware: unpadded(&identity.firmware),
            subsystem: unpadded(&identity.subsystem),
            queues: if is_discovery { 0 } else { self.options.queues },
            depth: depth.min(commands_max).clamp(1, DEPTH_MAX),
            transfer_max,
            capsule_data_max: identity.capsule_data_max(),
            commands: identity.commands.get(),
            async_events: identity.async_events.get() & EVENTS,
            write_zeroes_max: u64::from(transfer_max),
            deallocate_ranges_max: RANGES_MAX as u16,
            deallocate_blocks_max: u32::MAX,
        };
        if let Some(before) = self.facts.as_ref().filter(|_| self.was_ready) {
            let is_same = before.serial == facts.serial && before.subsystem == facts.subsystem;
            if !is_same {
                return Err(setup(Error::TargetChanged));
            }
        }
        self.facts = Some(facts);
        Ok(if is_discovery { Step::Events } else { Step::Limits })
    }

    /// The limits of the NVM command set; a controller that does not tell them has those of MDTS.
    fn take_limits(&mut self, completion: &Completion<Purpose>) -> Step {
        let limits = CommandSetController::ref_from_bytes(&completion.data).ok();
        let page_shift = self.capabilities.map_or(0, |capabilities| capabilities.page_shift_min);
        if let (Some(limits), Some(facts)) = (limits, &mut self.facts) {
            facts.write_zeroes_max = match limits.write_zeroes_max {
                0 => 0,
                shift => 4096_u64.checked_shl(u32::from(shift) + u32::from(page_shift)).unwrap_or(0),
            };
            if limits.deallocate_ranges_max != 0 {
                facts.deallocate_ranges_max = u16::from(limits.deallocate_ranges_max);
            }
            if limits.deallocate_range_blocks_max.get() != 0 {
                facts.deallocate_blocks_max = limits.deallocate_range_blocks_max.get();
            }
        }
        if self.options.queues == 0 { Step::Events } else { Step::Queues }
    }

    fn take_queues(&mut self, result: u64) -> Result<Step, Cause> {
        let counts = QueueCounts::parse(result as u32);
        let counts = counts.map_err(|_| setup(Error::Unsuitable("it has no I/O queues")))?;
        if let Some(facts) = &mut self.facts {
            facts.queues = self.options.queues.min(counts.submission).min(counts.completion);
        }
        Ok(Step::Events)
    }
}

/// What an I/O controller must have.
fn check_for_io(identity: &Controller) -> Result<(), &'static str> {
    if identity.command_capsule.get() < 4 || identity.response_capsule.get() < 1 {
        return Err("its capsules are too small for a command");
    }
    if identity.capsule_data_offset.get() != 0 {
        return Err("it wants data in a capsule behind a gap");
    }
    Ok(())
}

fn authentication_command(authenticator: &HostAuthenticator) -> Result<(SubmissionEntry, Data), Cause> {
    match authenticator.step() {
        HostStep::Send(message) => {
            let len = u32::try_from(message.len()).unwrap_or(u32::MAX);
            let transfer = AuthenticationTransfer { to_host: false, len };
            let entry = transfer.encode(COMMAND, DataPointer::InCapsule { offset: 0, len });
            Ok((entry, Data::ToController(message.into())))
        }
        HostStep::Receive { allocation_len: len } => {
            let transfer = AuthenticationTransfer { to_host: true, len };
            Ok((transfer.encode(COMMAND, DataPointer::Transport { len }), Data::ToHost(len)))
        }
        HostStep::Failed(failure) => Err(setup(Error::Authentication(failure))),
        HostStep::Done => Err(setup(Error::Authentication(crate::auth::HostFailure::OutOfTurn))),
    }
}
