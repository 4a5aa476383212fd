//! What the card serves on sockets of its own, beside the link: a list, and the loop around it.
//!
//! ```text
//!   ┌─▶ CardLoop::turn ──▶ events to the parts ──▶ each part's turn ──▶ CardLoop::follow ─┐
//!   │   link, files,    nvme? kv? volumes? split?   sockets, devices     files, link       │
//!   │   sleep                                                                              │
//!   └──────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A new service with sockets is a [`CardPart`], a field of [`Parts`], a line in each of its two lists, and what the status is to say
//! of it.

use ob_core::{Clock, Instant};
use ob_io::{Event, MonotonicClock};
use ob_link::Turn;

use super::{Card, ServiceEndpoint};
use crate::kv::KvCard;
use crate::nvme::NvmeService;
use crate::split::SplitPort;
use crate::volumes::VolumesCard;

/// A service that has sockets, and maybe devices, of its own on the card's reactor.
pub(crate) trait CardPart {
    /// Takes an event of the reactor; whether it was one of its own.
    fn handle(&mut self, event: &Event) -> bool;

    /// Does what there is to do; whether there was anything. What it leaves for the card's files and for hosts goes on its way
    /// behind it.
    fn turn(&mut self, now: Instant) -> bool;

    /// When the next turn is due, if nothing happens before. What only this part knows of, and no event tells, must be told here:
    /// the card sleeps over the rest.
    fn next_due(&self) -> Option<Instant>;

    /// Whether nothing that it has taken is on its way.
    fn is_idle(&self) -> bool;

    /// Where clients reach it.
    fn endpoints(&self) -> Vec<ServiceEndpoint>;
}

/// All of them.
pub(super) struct Parts {
    /// NVMe/TCP.
    pub(super) nvme: NvmeService,
    /// The key-value store, if clients reach it through this half.
    pub(super) kv: Option<KvCard>,
    /// Volumes, if they are served.
    pub(super) volumes: Option<VolumesCard>,
    /// The port of an application that splits messages, if one may have it.
    pub(super) split: Option<SplitPort>,
}

impl Parts {
    fn all(&self) -> impl Iterator<Item = &dyn CardPart> {
        let kv = self.kv.as_ref().map(|kv| kv as &dyn CardPart);
        let volumes = self.volumes.as_ref().map(|volumes| volumes as &dyn CardPart);
        let split = self.split.as_ref().map(|split| split as &dyn CardPart);
        std::iter::once(&self.nvme as &dyn CardPart).chain(kv).chain(volumes).chain(split)
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut dyn CardPart> {
        let kv = self.kv.as_mut().map(|kv| kv as &mut dyn CardPart);
        let volumes = self.volumes.as_mut().map(|volumes| volumes as &mut dyn CardPart);
        let split = self.split.as_mut().map(|split| split as &mut dyn CardPart);
        std::iter::once(&mut self.nvme as &mut dyn CardPart).chain(kv).chain(volumes).chain(split)
    }

    /// One turn of the card and of everything on it. Sleeps until something happens or is due, but not beyond `until`. Events that are
    /// nobody's are left in `events`.
    pub(super) fn turn(&mut self, card: &mut Card, until: Option<Instant>, events: &mut Vec<Event>) -> Turn {
        let due = self.all().filter_map(CardPart::next_due).chain(until).min();
        let turn = card.turn(due, events);
        events.retain(|event| !self.all_mut().any(|part| part.handle(event)));
        let now = MonotonicClock.now();
        let mut worked = false;
        for part in self.all_mut() {
            worked |= part.turn(now);
        }
        if let Some((host, messages)) = self.volumes.as_mut().and_then(VolumesCard::next_message) {
            // What it has no room for it is told in a later turn.
            while messages.front().is_some_and(|message| card.link.send(host, message)) {
                messages.pop_front();
            }
        }
        if worked {
            card.worked(now);
        }
        card.follow(now);
        turn
    }

    /// Whether nothing that any of them has taken is on its way.
    pub(super) fn is_idle(&self) -> bool {
        self.all().all(CardPart::is_idle)
    }

    /// Where clients reach them.
    pub(super) fn endpoints(&self) -> Vec<ServiceEndpoint> {
        self.all().flat_map(CardPart::endpoints).collect()
    }
}
