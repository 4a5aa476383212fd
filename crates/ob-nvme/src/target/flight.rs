//! Commands on their way, each in a slot that is used again.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use ob_core::{Instant, Token};
use ob_memory::Slice;
use ob_wire_nvme::{CommandId, Status, SubmissionEntry};

use super::connection::ConnectionKey;
use super::control::{ControllerKey, NamespaceKey};
use super::foreign::Foreign;
use super::io::{Io, IoKind};
use super::shares::Lease;

/// A command on its way. A key of an earlier use of a slot finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FlightKey {
    index: u32,
    generation: u32,
}

impl FlightKey {
    pub(super) fn token(self) -> Token {
        Token(u64::from(self.generation) << 32 | u64::from(self.index))
    }

    pub(super) fn slot(self) -> usize {
        self.index as usize
    }

    pub(super) fn from_token(token: Token) -> Self {
        Self { index: token.0 as u32, generation: (token.0 >> 32) as u32 }
    }
}

/// What a command is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// A buffer.
    Buffer,
    /// The data that an R2T asked for, since then.
    Data(Instant),
    /// The other half of a fused pair.
    Partner,
    /// Others on the same range of a device.
    Range,
    /// Room on a device.
    Queued,
    /// A device.
    Device,
    /// A service.
    Service,
    /// A device or a service, and nobody waits for the answer: its connection is gone.
    Orphan,
}

/// What a command is.
pub(super) enum Work {
    /// Fabrics, admin or reservations: answered at once when its data is there.
    Control(SubmissionEntry),
    /// Something that devices do.
    Io(Io),
    /// Something that a service does.
    Foreign(Foreign),
}

impl Work {
    /// What it does to a namespace, if it is a command of the NVM command set.
    pub(super) fn io(&self) -> Option<&Io> {
        match self {
            Self::Io(io) => Some(io),
            Self::Foreign(foreign) => foreign.io.as_ref(),
            Self::Control(_) => None,
        }
    }
}

/// One command.
pub(super) struct Flight {
    pub(super) connection: ConnectionKey,
    /// Whose it is; a Connect is nobody's yet.
    pub(super) controller: Option<ControllerKey>,
    pub(super) command: CommandId,
    pub(super) state: State,
    pub(super) work: Work,
    /// Bytes of data that are moved over the network.
    pub(super) transfer_len: u32,
    /// How far a solicited transfer has come.
    pub(super) received: u32,
    /// What it failed with while its data was still coming.
    pub(super) failed: Option<Status>,
    /// The host's data, or what is read for it.
    pub(super) data: Option<Slice>,
    /// What a comparison reads.
    pub(super) other: Option<Slice>,
    /// What says that `data` is held; a comparison's is for `other` too.
    pub(super) lease: Option<Lease>,
    /// The command of a service that this is a read for; such a read is no command of its own.
    pub(super) owner: Option<FlightKey>,
    /// How many came before it; [`Flights::insert`] says.
    pub(super) number: u64,
}

impl Flight {
    /// One that has nothing yet.
    pub(super) fn new(
        connection: ConnectionKey,
        controller: Option<ControllerKey>,
        command: CommandId,
        work: Work,
    ) -> Self {
        Self {
            connection,
            controller,
            command,
            state: State::Buffer,
            work,
            transfer_len: 0,
            received: 0,
            failed: None,
            data: None,
            other: None,
            lease: None,
            owner: None,
            number: 0,
        }
    }
}

impl Flight {
    /// Bytes of the longest buffer that it waits for.
    pub(super) fn buffer_len(&self) -> usize {
        match (&self.work, self.state) {
            (Work::Foreign(foreign), State::Service) => foreign.wanted_len(),
            _ => self.transfer_len as usize,
        }
    }

    /// Whether the buffer that it waits for is one of those that comparisons have.
    pub(super) fn is_compare(&self) -> bool {
        matches!(&self.work, Work::Io(io) if io.kind == IoKind::Compare)
    }
}

/// All of them.
#[derive(Default)]
pub(super) struct Flights {
    /// Those at the end that have no command are given back, so that who looks at all of them looks at no more than there are.
    slots: Vec<Slot>,
    /// Slots without a command, the first of them first; one that was given back since may be in here still.
    free: BinaryHeap<Reverse<u32>>,
    /// How many there are.
    count: usize,
    /// How many there were, ever.
    inserted: u64,
    /// Controllers that were shut down and may have commands under way.
    awaited: BTreeSet<ControllerKey>,
    /// Whether one of those may have none any more. A look goes over all commands, so it is taken only then.
    is_look_due: bool,
    /// Controllers of hosts that were preempted, whose commands an answer waits for.
    drained: BTreeSet<ControllerKey>,
    /// Whether a command of one of those has ended since they were last looked at.
    has_drained: bool,
}

struct Slot {
    generation: u32,
    flight: Option<Flight>,
}

impl Flights {
    pub(super) fn insert(&mut self, mut flight: Flight) -> FlightKey {
        flight.number = self.inserted;
        self.inserted += 1;
        self.count += 1;
        // Of one slot or another, this comes again after four thousand million commands.
        let generation = self.inserted as u32;
        while let Some(Reverse(index)) = self.free.pop() {
            if let Some(slot) = self.slots.get_mut(index as usize).filter(|slot| slot.flight.is_none()) {
                *slot = Slot { generation, flight: Some(flight) };
                return FlightKey { index, generation };
            }
        }
        // Bounded: a connection has no more commands than its queue, connections are counted, those that are gone
        // leave what devices and services have taken, and every read for a service has a buffer.
        let index = self.slots.len() as u32;
        self.slots.push(Slot { generation, flight: Some(flight) });
        FlightKey { index, generation }
    }

    pub(super) fn get_mut(&mut self, key: FlightKey) -> Option<&mut Flight> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation == key.generation { slot.flight.as_mut() } else { None }
    }

    pub(super) fn get(&self, key: FlightKey) -> Option<&Flight> {
        let slot = self.slots.get(key.index as usize)?;
        if slot.generation == key.generation { slot.flight.as_ref() } else { None }
    }

    pub(super) fn remove(&mut self, key: FlightKey) -> Option<Flight> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation != key.generation {
            return None;
        }
        let flight = slot.flight.take()?;
        self.free.push(Reverse(key.index));
        self.count -= 1;
        while self.slots.pop_if(|slot| slot.flight.is_none()).is_some() {}
        if let Some(controller) = flight.controller
            && !matches!(flight.work, Work::Control(_))
        {
            self.look_again_at(controller);
            self.has_drained |= self.drained.contains(&controller);
        }
        Some(flight)
    }

    /// How many have come so far: a moment in their order.
    pub(super) fn inserted(&self) -> u64 {
        self.inserted
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Where a command of one of these controllers may still do something, and how many came before the first that does. Those that
    /// wait for data or a buffer are asked again before they begin, and half a pair does nothing until its other half was let in.
    pub(super) fn drain(
        &mut self,
        controllers: BTreeSet<ControllerKey>,
    ) -> BTreeMap<(ControllerKey, NamespaceKey), u64> {
        let mut busy = BTreeMap::new();
        if !controllers.is_empty() {
            for flight in self.under_way(|controller| controllers.contains(&controller)) {
                if let (Some(controller), Some(io)) = (flight.controller, flight.work.io()) {
                    let first = busy.entry((controller, io.namespace)).or_insert(flight.number);
                    *first = flight.number.min(*first);
                }
            }
        }
        self.drained = controllers;
        busy
    }

    /// Whether another look at those that are drained may find less, and is to be taken now.
    pub(super) fn have_drained(&mut self) -> bool {
        std::mem::take(&mut self.has_drained)
    }

    /// Has [`Flights::awaited`] tell of this controller until it is forgotten there.
    pub(super) fn await_end_of(&mut self, controller: ControllerKey) {
        self.awaited.insert(controller);
        self.is_look_due = true;
    }

    /// Something of this controller is over, a command or what else it may be awaited for.
    pub(super) fn look_again_at(&mut self, controller: ControllerKey) {
        self.is_look_due |= self.awaited.contains(&controller);
    }

    /// Of the controllers that are awaited, those that no command of an I/O queue may do anything for any more, and the
    /// others; likewise. Nothing if none has ended since the last look.
    pub(super) fn awaited(&mut self) -> Option<(BTreeSet<ControllerKey>, BTreeSet<ControllerKey>)> {
        if !std::mem::take(&mut self.is_look_due) || self.awaited.is_empty() {
            return None;
        }
        let commands = self.under_way(|controller| self.awaited.contains(&controller));
        let io = commands.filter(|flight| !matches!(flight.work, Work::Control(_)));
        let busy: BTreeSet<_> = io.filter_map(|flight| flight.controller).collect();
        Some((self.awaited.difference(&busy).copied().collect(), busy))
    }

    /// Nobody waits for this controller any more.
    pub(super) fn forget_awaited(&mut self, controller: ControllerKey) {
        self.awaited.remove(&controller);
    }

    fn under_way(&self, is_meant: impl Fn(ControllerKey) -> bool) -> impl Iterator<Item = &Flight> {
        self.slots.iter().filter_map(|slot| slot.flight.as_ref()).filter(move |flight| {
            flight.controller.is_some_and(&is_meant)
                && match flight.state {
                    State::Data(_) | State::Buffer => false,
                    State::Partner => self.is_pair_whole(flight),
                    _ => true,
                }
        })
    }

    /// Whether the other half of a pair is there with its data, so that the pair may begin or has begun.
    fn is_pair_whole(&self, half: &Flight) -> bool {
        let partner = half.work.io().and_then(|io| io.partner).and_then(|partner| self.get(partner));
        partner.is_some_and(|partner| !matches!(partner.state, State::Data(_) | State::Buffer))
    }

    pub(super) fn orphans(&self) -> usize {
        let flights = self.slots.iter().filter_map(|slot| slot.flight.as_ref());
        flights.filter(|flight| flight.state == State::Orphan).count()
    }

    /// How many services have.
    pub(super) fn in_service(&self) -> usize {
        let flights = self.slots.iter().filter_map(|slot| slot.flight.as_ref());
        let is_foreign = |flight: &&Flight| matches!(flight.work, Work::Foreign(_));
        flights
            .filter(is_foreign)
            .filter(|flight| matches!(flight.state, State::Service | State::Orphan))
            .count()
    }

    /// The reads that commands of a connection have had services make.
    pub(super) fn reads_of(&self, connection: ConnectionKey) -> Vec<FlightKey> {
        let slots = self.slots.iter().enumerate();
        let reads = slots.filter(|(_, slot)| {
            let flight = slot.flight.as_ref();
            flight.is_some_and(|flight| flight.owner.is_some() && flight.connection == connection)
        });
        reads.map(|(index, slot)| FlightKey { index: index as u32, generation: slot.generation }).collect()
    }

    /// Where the first command is, from a place on, that is on a device or on its way there and is one of those that are meant;
    /// and how many places were looked at.
    pub(super) fn first_on_devices(
        &self,
        from: usize,
        is_meant: impl Fn(FlightKey, &Io) -> bool,
    ) -> (Option<usize>, usize) {
        let mut slots = self.slots.iter().enumerate().skip(from);
        let found = slots.position(|(index, slot)| {
            let key = FlightKey { index: index as u32, generation: slot.generation };
            slot.flight.as_ref().is_some_and(|flight| match (&flight.work, flight.state) {
                (Work::Io(io), State::Queued | State::Device | State::Orphan) => is_meant(key, io),
                _ => false,
            })
        });
        let looks = found.map_or(self.slots.len().saturating_sub(from), |found| found + 1);
        (found.map(|found| from + found), looks)
    }
}

#[cfg(test)]
mod tests {
    use ob_wire_nvme::NamespaceId;

    use super::*;

    fn flight() -> Flight {
        let connection = ConnectionKey { index: 0, generation: 1 };
        Flight::new(
            connection,
            None,
            CommandId(1),
            Work::Control(SubmissionEntry::new(0, CommandId(1), NamespaceId(0))),
        )
    }

    #[test]
    fn slots_are_given_back_and_keys_never_come_again() {
        // Their numbers are about to need more bits than a key has.
        let mut flights = Flights { inserted: u64::from(u32::MAX) - 300, ..Flights::default() };
        let mut known = BTreeSet::new();
        for round in 0..5 {
            let keys: Vec<FlightKey> = (0..100).map(|_| flights.insert(flight())).collect();
            assert!(keys.iter().all(|key| known.insert(*key)), "round {round}");
            assert_eq!((flights.len(), flights.slots.len()), (100, 100));
            // The last one keeps those before it, which are used first.
            let (last, others) = keys.split_last().unwrap();
            assert!(others.iter().all(|key| flights.remove(*key).is_some()));
            assert_eq!((flights.len(), flights.slots.len()), (1, 100));
            let again = flights.insert(flight());
            assert!(again.index == 0 && known.insert(again));
            assert!(flights.remove(*last).is_some());
            assert_eq!((flights.len(), flights.slots.len()), (1, 1));
            assert!(flights.remove(again).is_some() && flights.get(again).is_none());
            assert_eq!((flights.len(), flights.slots.len()), (0, 0));
        }
    }
}
