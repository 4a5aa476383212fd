//! Messages that have come and are not answered, and memory that the host was granted, by handle.

use std::collections::VecDeque;
use std::time::Duration;

use ob_core::Instant;
use ob_memory::{Shared, Slice};

use super::channel::ChannelKey;
use super::coverage::Coverage;
use super::front::{Arrived, FrontKey};
use crate::plant::{Bug, is_planted};
use crate::wire::{Descriptor, HEADER_LEN, Handle, HeaderEntry};

/// Handles with the highest bit are the host's own numbers.
const GENERATION_MAX: u16 = 0x7fff;

/// Whose a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The front's, which is told how it is answered.
    Front(FrontKey),
    /// A peer's, which has connected here and is answered there.
    Peer(ChannelKey),
    /// It is no message, but memory that the host was granted: so many bytes, of which those are there that were written.
    Host(u32),
}

/// A host is told at once of what is one in so many of all messages, or more: waiting for that many makes all of them later by as small a
/// part of the time that they take anyway, however long that is.
const SHARE: usize = 4;

/// A message.
pub(super) struct Held {
    pub(super) owner: Owner,
    since: Instant,
    from: u32,
    pub(super) header: [u8; HEADER_LEN],
    pub(super) payload: Option<Shared>,
    pub(super) payload_len: u32,
    /// Where the answer goes; it is there until it is given.
    pub(super) answer: Option<Slice>,
    pub(super) answer_len: u32,
    /// Bytes of the answer that plans have written.
    pub(super) written: Coverage,
    /// Plans of it that are under way: one, or none.
    pub(super) plans: u32,
    pub(super) was_sent: bool,
    was_parked: bool,
    /// Its peer has given it up.
    pub(super) is_gone: bool,
    /// Its answer is decided, and waits for its completion to be delivered.
    pub(super) is_answered: bool,
    /// The host of now has been told of it.
    is_told: bool,
}

struct Place {
    generation: u16,
    held: Option<Held>,
    /// Empty, and kept for the next that comes here.
    written: Coverage,
}

/// All of them.
pub(super) struct Messages {
    places: Vec<Place>,
    free: Vec<u16>,
    /// Not told to the host yet, in their order: those that were parked first.
    untold: VecDeque<Handle>,
    /// Those that were told last.
    told: Vec<Handle>,
    /// Those that were passed over just now.
    busy: Vec<Handle>,
    handles_max: usize,
}

fn handle(index: u16, generation: u16) -> Handle {
    Handle(u32::from(generation) << 16 | u32::from(index))
}

impl Messages {
    pub(super) fn new(handles_max: u32) -> Self {
        let handles_max = (handles_max as usize).min(usize::from(u16::MAX));
        let (untold, told) = (VecDeque::with_capacity(handles_max), Vec::with_capacity(64));
        let (places, free) = (Vec::with_capacity(handles_max), Vec::with_capacity(handles_max));
        Self { places, free, untold, told, busy: Vec::new(), handles_max }
    }

    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty() || self.places.len() < self.handles_max
    }

    /// Keeps a message, if there is room.
    pub(super) fn insert(&mut self, owner: Owner, arrived: Arrived) -> Option<Handle> {
        let handle = self.keep(owner, arrived)?;
        self.untold.push_back(handle);
        Some(handle)
    }

    /// Grants the host so many bytes of memory, if there is room.
    pub(super) fn grant(&mut self, now: Instant, len: u32) -> Option<Handle> {
        let header = [0; HEADER_LEN];
        let nothing = Arrived { key: FrontKey(0), from: 0, since: now, header, payload: None, answer: None };
        let handle = self.keep(Owner::Host(len), nothing)?;
        self.get_mut(handle)?.is_told = true;
        Some(handle)
    }

    fn keep(&mut self, owner: Owner, arrived: Arrived) -> Option<Handle> {
        let index = self.free.pop().or_else(|| {
            let is_within = self.places.len() < self.handles_max;
            is_within.then(|| {
                self.places.push(Place { generation: 1, held: None, written: Coverage::default() });
                (self.places.len() - 1) as u16
            })
        })?;
        let place = self.places.get_mut(usize::from(index))?;
        let len_of = |slice: &Option<Slice>| slice.as_ref().map_or(0, |slice| slice.len() as u32);
        place.held = Some(Held {
            owner,
            since: arrived.since,
            from: arrived.from,
            header: arrived.header,
            payload_len: len_of(&arrived.payload),
            answer_len: len_of(&arrived.answer),
            payload: arrived.payload.map(Slice::share),
            answer: arrived.answer,
            written: std::mem::take(&mut place.written),
            plans: 0,
            was_sent: false,
            was_parked: false,
            is_gone: false,
            is_answered: false,
            is_told: false,
        });
        Some(handle(index, place.generation))
    }

    pub(super) fn get_mut(&mut self, handle: Handle) -> Option<&mut Held> {
        let place = self.places.get_mut(usize::from(handle.0 as u16))?;
        let is_same = u32::from(place.generation) == handle.0 >> 16;
        place.held.as_mut().filter(|_| is_same)
    }

    /// The message of a handle, if its host was told of it and it is not answered: what a plan may be about.
    pub(super) fn of_plan(&mut self, handle: Handle) -> Option<&mut Held> {
        self.get_mut(handle).filter(|held| held.is_told && !held.is_answered)
    }

    /// Lets one go that is answered: its handle finds nothing from now on.
    pub(super) fn remove(&mut self, handle: Handle) -> Option<Held> {
        self.get_mut(handle)?;
        let index = handle.0 as u16;
        let place = self.places.get_mut(usize::from(index))?;
        let mut held = place.held.take();
        if let Some(held) = &mut held {
            held.written.clear();
            place.written = std::mem::take(&mut held.written);
        }
        // 0 is no generation, so that no handle is 0; and none of the card's has the highest bit.
        place.generation = if place.generation < GENERATION_MAX { place.generation + 1 } else { 1 };
        self.free.push(index);
        held
    }

    /// The front's message with this key.
    pub(super) fn find(&mut self, key: FrontKey) -> Option<&mut Held> {
        let owner = Owner::Front(key);
        self.places.iter_mut().filter_map(|place| place.held.as_mut()).find(|held| held.owner == owner)
    }

    /// Whether the host has yet to be told of a message of this peer.
    pub(super) fn has_untold_of(&self, key: ChannelKey) -> bool {
        let held = |handle: &Handle| self.places.get(usize::from(handle.0 as u16))?.held.as_ref();
        let owner = Owner::Peer(key);
        self.untold.iter().any(|handle| held(handle).is_some_and(|held| held.owner == owner))
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// The host is gone: what the front has given is parked, and offered to the next. What the host was granted is granted no more, and
    /// peers that have connected here hear by the end of their connections that nobody answers.
    pub(super) fn park(&mut self) {
        for index in 0..self.places.len() as u32 {
            let Some(place) = self.places.get(index as usize) else { break };
            let is_parked = place.held.as_ref().is_none_or(|held| matches!(held.owner, Owner::Front(_)));
            if !is_parked {
                self.remove(handle(index as u16, place.generation));
            }
        }
        self.untold.clear();
        for (index, place) in self.places.iter_mut().enumerate() {
            if let Some(held) = &mut place.held {
                held.was_parked |= held.is_told;
                (held.is_told, held.is_answered) = (false, false);
                held.written.clear();
                if held.was_parked && is_planted(Bug::ParkedForgotten) {
                    continue;
                }
                self.untold.push_back(handle(index as u16, place.generation));
            }
        }
    }

    /// There is no host: lets those go that their peers have given up, or that have been here for so long, to whoever answers them;
    /// when it is to be looked again. Those that plans of a host that was there still have wait.
    pub(super) fn leave(
        &mut self,
        now: Instant,
        hold: Duration,
        mut answer: impl FnMut(Owner),
    ) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        for index in 0..self.places.len() as u32 {
            let Some(place) = self.places.get(index as usize) else { break };
            let Some(held) = place.held.as_ref().filter(|held| held.plans == 0) else { continue };
            let (due, handle) = (held.since + hold, handle(index as u16, place.generation));
            if !held.is_gone && now < due {
                next = next.into_iter().chain([due]).min();
            } else if let Some(held) = self.remove(handle) {
                answer(held.owner);
            }
        }
        let places = &self.places;
        self.untold.retain(|handle| {
            let place = places.get(usize::from(handle.0 as u16));
            place.is_some_and(|place| place.held.is_some() && u32::from(place.generation) == handle.0 >> 16)
        });
        next
    }

    /// Tells the host of messages, as long as `tell` has room; how many were told. Those that plans of an earlier host still have wait.
    pub(super) fn tell(&mut self, mut tell: impl FnMut(&HeaderEntry) -> bool) -> usize {
        let Self { places, untold, told, busy, .. } = self;
        told.clear();
        while let Some(handle) = untold.front().copied() {
            let place = places.get_mut(usize::from(handle.0 as u16));
            let same = place.filter(|place| u32::from(place.generation) == handle.0 >> 16);
            match same.and_then(|place| place.held.as_mut()) {
                // It was answered meanwhile.
                None => {}
                Some(held) if held.plans > 0 => busy.push(handle),
                Some(held) => {
                    if !tell(&held.entry(handle)) {
                        break;
                    }
                    held.is_told = true;
                    told.push(handle);
                }
            }
            untold.pop_front();
        }
        while let Some(handle) = busy.pop() {
            untold.push_front(handle);
        }
        told.len()
    }

    /// The host could not be told after all: those of the last [`Messages::tell`] are the first again.
    pub(super) fn untell(&mut self) {
        while let Some(handle) = self.told.pop() {
            if let Some(held) = self.get_mut(handle) {
                held.is_told = false;
            }
            self.untold.push_front(handle);
        }
    }

    /// Whether there is one of which the host can be told now.
    pub(super) fn has_untold(&self) -> bool {
        let held = |handle: &Handle| self.places.get(usize::from(handle.0 as u16))?.held.as_ref();
        self.untold.iter().any(|handle| held(handle).is_some_and(|held| held.plans == 0))
    }

    /// When the host is to be told of those of which it was not, if there are any: of a few, while many are under way, when the first of them
    /// has waited for so long.
    pub(super) fn tell_at(&self, gather: Duration) -> Option<Instant> {
        let first = self.untold.front()?;
        let place = self.places.get(usize::from(first.0 as u16));
        let held = place.and_then(|place| place.held.as_ref());
        let are_few = self.untold.len() * SHARE < self.len();
        Some(held.filter(|_| are_few).map_or(Instant::default(), |held| held.since + gather))
    }

    pub(super) fn untold(&self) -> usize {
        self.untold.len()
    }
}

impl Held {
    /// Bytes of the message's payload, or of the memory.
    pub(super) const fn len(&self) -> u32 {
        if let Owner::Host(len) = self.owner { len } else { self.payload_len }
    }

    fn entry(&self, handle: Handle) -> HeaderEntry {
        let descriptor = Descriptor {
            handle,
            length: self.payload_len,
            front: self.from,
            was_parked: self.was_parked,
            was_sent: self.was_sent && self.was_parked,
        };
        HeaderEntry::new(self.header, descriptor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrived(key: u64) -> (Owner, Arrived) {
        let key = FrontKey(key);
        let (header, since) = ([7; HEADER_LEN], Instant::default());
        (Owner::Front(key), Arrived { key, from: 3, since, header, payload: None, answer: None })
    }

    fn insert(messages: &mut Messages, key: u64) -> Option<Handle> {
        let (owner, arrived) = arrived(key);
        messages.insert(owner, arrived)
    }

    #[test]
    fn a_handle_that_was_given_back_finds_nothing_and_the_bound_holds() {
        let mut messages = Messages::new(2);
        let first = insert(&mut messages, 1).unwrap();
        let second = insert(&mut messages, 2).unwrap();
        assert!(insert(&mut messages, 3).is_none() && !messages.has_room());
        assert!(messages.of_plan(first).is_none(), "nobody was told of it");
        let mut room = 1;
        assert_eq!(messages.tell(|_| std::mem::replace(&mut room, 0) > 0), 1);
        assert!(messages.of_plan(first).is_some() && messages.of_plan(second).is_none());
        messages.untell();
        assert!(messages.of_plan(first).is_none());
        assert_eq!(messages.tell(|_| true), 2);
        assert!(messages.of_plan(first).is_some());
        assert_eq!(messages.remove(first).unwrap().owner, Owner::Front(FrontKey(1)));
        assert!(messages.get_mut(first).is_none() && messages.remove(first).is_none());
        let third = insert(&mut messages, 3).unwrap();
        assert_eq!((third.0 as u16, messages.len()), (first.0 as u16, 2), "the place is used again");
        assert_ne!(third, first);
        assert_ne!(second, third);
    }

    #[test]
    fn what_is_parked_is_offered_again_when_no_plan_has_it() {
        let mut messages = Messages::new(4);
        let handles = [1, 2].map(|key| insert(&mut messages, key).unwrap());
        messages.tell(|_| true);
        let held = messages.get_mut(handles[0]).unwrap();
        (held.plans, held.was_sent) = (1, true);
        messages.park();
        let offered = |messages: &mut Messages| {
            let mut offered = Vec::new();
            messages.tell(|entry| {
                offered.push(entry.descriptor());
                true
            });
            offered.iter().map(|of| (of.handle, of.was_parked, of.was_sent)).collect::<Vec<_>>()
        };
        assert_eq!(offered(&mut messages), [(handles[1], true, false)]);
        assert_eq!(offered(&mut messages), []);
        assert!(!messages.has_untold());
        messages.get_mut(handles[0]).unwrap().plans = 0;
        assert!(messages.has_untold());
        assert_eq!(offered(&mut messages), [(handles[0], true, true)]);
    }

    #[test]
    fn what_is_granted_is_no_message_and_ends_with_its_host() {
        let mut messages = Messages::new(2);
        let memory = messages.grant(Instant::default(), 100).unwrap();
        assert!(!messages.has_untold() && messages.of_plan(memory).is_some());
        insert(&mut messages, 1).unwrap();
        assert!(messages.grant(Instant::default(), 1).is_none(), "both have the same room");
        messages.park();
        assert!(messages.get_mut(memory).is_none());
        assert_eq!((messages.len(), messages.untold()), (1, 1));
        assert_ne!(messages.grant(Instant::default(), 100).unwrap(), memory);
    }
}
