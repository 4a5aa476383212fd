//! Asynchronous events: what a host asked to be told, once until it has looked (Base §5.2).
//!
//! ```text
//!   raise ──▶ pending ── a request is held, not masked ──▶ answered, masked ── log read without RAE ──▶ quiet
//! ```

use std::collections::VecDeque;

use ob_wire_nvme::identify::async_event;
use ob_wire_nvme::io::AsyncEvent;
use ob_wire_nvme::{CommandId, QueueId, Status};

use super::controller::Controller;
use super::spec::ControllerKey;
use super::{Control, ControlEvent, QueueIdentity};

/// Requests that a controller holds at most: AERL plus one.
pub(super) const HELD_MAX: usize = 4;

/// The events that this target knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A namespace came, went or changed.
    NamespaceChanged,
    /// An ANA state changed.
    AnaChanged,
    /// What discovery tells changed.
    DiscoveryChanged,
    /// A reservation notification is in its log.
    ReservationNotice,
}

impl Event {
    const ALL: [Self; 4] =
        [Self::NamespaceChanged, Self::AnaChanged, Self::DiscoveryChanged, Self::ReservationNotice];

    const fn told(self) -> AsyncEvent {
        match self {
            Self::NamespaceChanged => AsyncEvent::NAMESPACES_CHANGED,
            Self::AnaChanged => AsyncEvent::ANA_CHANGED,
            Self::DiscoveryChanged => AsyncEvent::DISCOVERY_CHANGED,
            Self::ReservationNotice => AsyncEvent::RESERVATION,
        }
    }

    /// The bit of feature 0Bh that asks for it; reservations have a mask of their own.
    const fn enabled_by(self) -> Option<u32> {
        match self {
            Self::NamespaceChanged => Some(async_event::NAMESPACES),
            Self::AnaChanged => Some(async_event::ANA),
            Self::DiscoveryChanged => Some(async_event::DISCOVERY),
            Self::ReservationNotice => None,
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A controller's events.
#[derive(Debug, Default)]
pub(super) struct AsyncEvents {
    held: VecDeque<CommandId>,
    /// Happened, not yet told.
    pending: u8,
    /// Told, and the log not yet read.
    masked: u8,
}

impl AsyncEvents {
    /// Keeps a request; `false` if there are too many.
    pub(super) fn hold(&mut self, command: CommandId) -> bool {
        if self.held.len() >= HELD_MAX {
            return false;
        }
        self.held.push_back(command);
        true
    }

    /// Gives a held request back, if there is such.
    pub(super) fn release(&mut self, command: CommandId) -> bool {
        let before = self.held.len();
        self.held.retain(|held| *held != command);
        self.held.len() < before
    }

    /// Forgets everything; returns the requests that were held.
    pub(super) fn abort_all(&mut self) -> Vec<CommandId> {
        self.pending = 0;
        self.masked = 0;
        self.held.drain(..).collect()
    }

    /// The host has read the log that tells about the event.
    pub(super) fn clear(&mut self, event: Event) {
        self.pending &= !event.bit();
        self.masked &= !event.bit();
    }

    /// The next event to tell, with the request that it answers.
    fn next(&mut self) -> Option<(CommandId, Event)> {
        let ready = self.pending & !self.masked;
        let event = Event::ALL.into_iter().find(|event| ready & event.bit() != 0)?;
        let command = self.held.pop_front()?;
        self.pending &= !event.bit();
        self.masked |= event.bit();
        Some((command, event))
    }
}

impl Controller {
    /// Something happened; the host hears of it if it asked.
    pub(super) fn raise(&mut self, event: Event) {
        let is_wanted =
            event.enabled_by().is_none_or(|bit| self.features.async_event_configuration & bit != 0);
        if is_wanted {
            self.async_events.pending |= event.bit();
        }
    }
}

impl Control {
    /// Drops a held request without an answer; whether there was one.
    pub(in crate::target) fn forget_event_request(
        &mut self,
        queue: QueueIdentity,
        command: CommandId,
    ) -> bool {
        queue.queue == QueueId::ADMIN
            && self
                .controller_mut(queue.controller)
                .is_some_and(|controller| controller.async_events.release(command))
    }

    /// Answers held requests of a controller as far as there are events.
    pub(super) fn deliver(&mut self, key: ControllerKey) {
        while let Some((command, event)) =
            self.controller_mut(key).and_then(|found| found.async_events.next())
        {
            let queue = QueueIdentity::admin(key);
            let (result, status) = (event.told().bits() as u32, Status::SUCCESS);
            self.events.push_back(ControlEvent::CompleteAsync { queue, command, result, status });
        }
    }

    /// Raises an event on every controller that `applies` to, and answers what can be answered.
    pub(super) fn raise_where(&mut self, event: Event, applies: impl Fn(&mut Controller) -> bool) {
        let mut told = Vec::new();
        for controller in self.controllers.iter_mut().flatten() {
            if applies(controller) {
                controller.raise(event);
                told.push(controller.key);
            }
        }
        for key in told {
            self.deliver(key);
        }
    }
}
