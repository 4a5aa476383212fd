//! Listeners, and the peers that connect to them.

use std::collections::VecDeque;
use std::net::SocketAddr;

use ob_core::{Arrival, Incarnation, ListenerId};

use super::channel::{ChannelKey, Leaving};
use super::dialect::Dialect;
use super::front::{Arrived, Front, FrontKey};
use super::messages::Owner;
use super::outbox::Bytes;
use super::port::Port;
use crate::engine::Engines;
use crate::plant::{Bug, is_planted};
use crate::wire::{ChannelId, ChannelIs, ChannelState, HEADER_LEN};

/// Where a network listens, whoever wants it.
struct Place {
    listener: ListenerId,
    asked: SocketAddr,
    port: u16,
    channel: Option<ChannelId>,
}

/// Listeners of the host, and what the network has of them: that goes on when the host's end.
#[derive(Default)]
pub(super) struct Listeners {
    wanted: VecDeque<(ChannelId, SocketAddr)>,
    places: Vec<Place>,
    /// Numbers of those that were refused, until the host uses or closes them.
    over: Vec<ChannelId>,
}

/// Places where a network listens that no host wants any more, at most; then hosts listen where they did, or not at all.
const PLACES_MAX: usize = 64;

impl Listeners {
    /// The next that the network is asked for.
    pub(super) fn next_wanted(&mut self) -> Option<(ChannelId, SocketAddr)> {
        self.wanted.pop_front()
    }

    pub(super) fn has_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// How many the host has.
    pub(super) fn len(&self) -> usize {
        let listening = self.places.iter().filter(|place| place.channel.is_some()).count();
        self.wanted.len() + self.over.len() + listening
    }

    pub(super) fn has(&self, channel: ChannelId) -> bool {
        self.wanted.iter().any(|(wanted, _)| *wanted == channel)
            || self.places.iter().any(|place| place.channel == Some(channel))
    }

    /// Where the network listens at an address for nobody, and at which port.
    pub(super) fn idle(&self, address: SocketAddr) -> Option<(ListenerId, u16)> {
        let place = self.places.iter().find(|place| place.channel.is_none() && place.asked == address)?;
        Some((place.listener, place.port))
    }

    fn has_room(&self) -> bool {
        self.places.len() < PLACES_MAX
    }

    fn begin(&mut self, channel: ChannelId, asked: SocketAddr, (listener, port): (ListenerId, u16)) {
        self.places.retain(|place| place.listener != listener);
        self.places.push(Place { listener, asked, port, channel: Some(channel) });
    }

    fn end_one(&mut self, channel: ChannelId) {
        self.wanted.retain(|(wanted, _)| *wanted != channel);
        for place in self.places.iter_mut().filter(|place| place.channel == Some(channel)) {
            place.channel = None;
        }
    }

    /// Whether it was refused: its number is free then.
    pub(super) fn forget(&mut self, channel: ChannelId) -> bool {
        let count = self.over.len();
        self.over.retain(|over| *over != channel);
        self.over.len() < count
    }

    /// The host is gone.
    pub(super) fn end(&mut self) {
        self.over.clear();
        self.wanted.clear();
        self.places.iter_mut().for_each(|place| place.channel = None);
    }

    fn channel_of(&self, listener: ListenerId) -> Option<ChannelId> {
        self.places.iter().find(|place| place.listener == listener)?.channel
    }
}

impl<F: Front, D: Dialect, E: Engines> Port<F, D, E> {
    /// The host wants to listen. `None` if it may not by that number.
    pub(super) fn listen(&mut self, channel: ChannelId, address: SocketAddr) -> Option<()> {
        self.listeners.forget(channel);
        let count = self.wires.count_of_host() + self.listeners.len();
        // The number of a channel that is over can be used again.
        let is_free = match self.wires.key_of(channel) {
            Some(_) => self.wires.is_over(channel),
            None => count < self.config.channels_max.into(),
        };
        if !is_free || self.listeners.has(channel) {
            return None;
        }
        self.wires.forget(channel);
        self.listeners.wanted.push_back((channel, address));
        Some(())
    }

    /// What has become of a listener: where the network listens for it, if it does.
    pub(super) fn listens(
        &mut self,
        channel: ChannelId,
        asked: SocketAddr,
        found: Option<(ListenerId, u16)>,
    ) {
        match found {
            Some(found) => {
                self.listeners.begin(channel, asked, found);
                self.tell(channel, ChannelState::Listening, found.1, ChannelId(0));
            }
            None => {
                self.listeners.over.push(channel);
                self.tell(channel, ChannelState::Refused, 0, ChannelId(0));
            }
        }
    }

    /// Whether the network is to be asked for another listener.
    pub(super) fn may_listen(&self) -> bool {
        self.wires.has_intake() && self.listeners.has_room()
    }

    pub(super) fn end_listener(&mut self, channel: ChannelId, state: ChannelState) {
        self.listeners.end_one(channel);
        self.tell(channel, state, 0, ChannelId(0));
    }

    /// Somebody has connected: by what it is known, unless nobody listens, or there are as many as may be.
    pub(super) fn arrived(&mut self, arrival: &Arrival) -> Option<ChannelKey> {
        let listener = self.listeners.channel_of(arrival.listener)?;
        let key = self.wires.accept(self.now, arrival.peer, arrival.connection)?;
        self.tell(key.channel, ChannelState::Accepted, arrival.peer.port(), listener);
        Some(key)
    }

    fn tell(&mut self, channel: ChannelId, state: ChannelState, port: u16, listener: ChannelId) {
        self.outbox.channels.push_back(ChannelIs {
            channel,
            state,
            port,
            listener,
            incarnation: Incarnation(0),
        });
    }

    /// The next message of a peer that has connected here.
    pub(super) fn next_request(&mut self) -> Option<(Owner, Arrived)> {
        let found = self.wires.next_request().or_else(|| {
            // Short ones have come with those before them.
            self.open_held_up();
            self.wires.next_request()
        });
        let (key, header, payload) = found?;
        let arrived = Arrived {
            key: FrontKey(0),
            from: key.channel.0.into(),
            since: self.now,
            header: header.encode(),
            payload,
            answer: None,
        };
        Some((Owner::Peer(key), arrived))
    }

    /// Answers such a peer, if it is there.
    pub(super) fn answer_peer(
        &mut self,
        key: ChannelKey,
        asked: &[u8; HEADER_LEN],
        status: u16,
        with: Option<Bytes>,
    ) {
        // What was taken has a header.
        let Ok(asked) = crate::wire::Header::decode(asked, self.dialect.magic()) else { return };
        let (status, payload) = match with {
            Some(Bytes::Shared(shared)) => (0, Some(shared)),
            Some(Bytes::Own(slice)) => (0, Some(slice.share())),
            None => (status, None),
        };
        self.wires.answer(self.now, key, &asked, status, payload);
    }

    /// Goes on with peers that were held up and are not any more.
    pub(super) fn open_held_up(&mut self) {
        while let Some(key) = self.wires.next_opened(self.now) {
            self.take_input(key);
        }
    }

    /// The peer of a channel is gone, or as good as gone. The host is told what it has said before it is told of that.
    pub(super) fn part(&mut self, key: ChannelKey, state: ChannelState) {
        if self.is_heard(key) {
            self.end_channel(key.channel, state);
            return;
        }
        // What may still come of it is not of a peer that is there, or of one that keeps to nothing.
        self.wires.stop(key);
        if !self.leaving.contains(&key) {
            self.leaving.push(key);
        }
    }

    /// Whether something is to be done about a peer that leaves.
    pub(super) fn is_to_leave(&self, key: ChannelKey) -> bool {
        let waits = matches!(self.wires.leaving(key), Some(Leaving::Listens { is_told: true }));
        !waits && self.is_heard(key)
    }

    /// Whether the host was told all that a peer has said.
    fn is_heard(&self, key: ChannelKey) -> bool {
        !self.messages.has_untold_of(key) || is_planted(Bug::GoneBeforeHeard)
    }

    /// Channels whose peers are gone end when the host was told all that they have said; and of those that have only ended their side, when
    /// they have all that is to be said to them.
    pub(super) fn end_left(&mut self) -> bool {
        let mut moved = false;
        let mut leaving = std::mem::take(&mut self.leaving);
        leaving.retain(|key| {
            if !self.is_to_leave(*key) {
                return true;
            }
            moved = true;
            match self.wires.leaving(*key) {
                Some(Leaving::Listens { .. }) => {
                    self.wires.told_of_end(*key);
                    self.tell(key.channel, ChannelState::Ended, 0, ChannelId(0));
                    return true;
                }
                Some(Leaving::Now) => self.end_channel(key.channel, ChannelState::Gone),
                None => {}
            }
            false
        });
        self.leaving = leaving;
        moved
    }
}
