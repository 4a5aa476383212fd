//! The stream between director and host in virtual time: in order, late as it likes, and gone with either half.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use ob_core::{Clock, Instant};
use ob_director::{HostEvent, HostFrame, HostPort};
use ob_sim::{Rng, SimClock};
use ob_wire_link::stream::{FromCard, FromHost, HEADER_LEN};

/// Frames that a ring holds: few, so that it is full all the time, in some runs very few.
const ROOMS: [usize; 4] = [12, 12, 3, 40];

/// A frame on its way.
pub(super) struct SimFrame {
    pub(super) inline: [u8; HEADER_LEN],
    pub(super) payload: Vec<u8>,
}

impl HostFrame for SimFrame {
    fn inline(&self) -> &[u8] {
        &self.inline
    }

    fn payload(&self) -> &[u8] {
        &self.payload
    }
}

/// One way of the stream.
#[derive(Default)]
struct Way {
    frames: VecDeque<(Instant, SimFrame)>,
    last_due: Instant,
}

impl Way {
    fn push(&mut self, now: Instant, rng: &mut Rng, frame: SimFrame) {
        let due = now + rng.skewed(Duration::from_nanos(100)..Duration::from_micros(500));
        self.last_due = self.last_due.max(due);
        self.frames.push_back((self.last_due, frame));
    }

    fn pop(&mut self, now: Instant) -> Option<SimFrame> {
        self.frames.pop_front_if(|(due, _)| *due <= now).map(|(_, frame)| frame)
    }

    fn next_due(&self) -> Option<Instant> {
        self.frames.front().map(|(due, _)| *due)
    }
}

/// Both ways, for one life of the card.
pub(super) struct Wire {
    clock: SimClock,
    rng: Rng,
    room: usize,
    to_host: Way,
    to_card: Way,
    is_open: bool,
    /// What the director has not been told: that a host came, or went.
    changes: VecDeque<bool>,
    /// Why the director has sent a host away.
    pub(super) refused: Option<String>,
}

pub(super) type SharedWire = Rc<RefCell<Wire>>;

impl Wire {
    pub(super) fn new(clock: SimClock, mut rng: Rng) -> SharedWire {
        let room = *rng.choose(&ROOMS).unwrap_or(&12);
        let (to_host, to_card) = (Way::default(), Way::default());
        let changes = VecDeque::new();
        Rc::new(RefCell::new(Self {
            clock,
            rng,
            room,
            to_host,
            to_card,
            is_open: false,
            changes,
            refused: None,
        }))
    }

    /// A host opens its group.
    pub(super) fn open(&mut self) {
        self.is_open = true;
        self.changes.push_back(true);
    }

    /// The host is gone.
    pub(super) fn close(&mut self) {
        if std::mem::take(&mut self.is_open) {
            self.to_host.frames.clear();
            self.to_card.frames.clear();
            self.changes.push_back(false);
        }
    }

    /// Says something to the card; `false` if there is no room.
    pub(super) fn say(&mut self, frame: &FromHost<'_>) -> bool {
        if self.to_card.frames.len() >= self.room {
            return false;
        }
        let (inline, payload) = frame.encode();
        let frame = SimFrame { inline, payload: payload.bytes().to_vec() };
        self.to_card.push(self.clock.now(), &mut self.rng, frame);
        true
    }

    /// What the card has said next.
    pub(super) fn hear(&mut self) -> Option<SimFrame> {
        self.to_host.pop(self.clock.now())
    }

    /// What is on its way, for people.
    pub(super) fn describe(&self) -> String {
        let (to_host, to_card) = (self.to_host.frames.len(), self.to_card.frames.len());
        let state = if self.is_open { "open" } else { "closed" };
        format!(
            "the stream is {state} with {to_host} frames to the host and {to_card} to the card, of {} each",
            self.room
        )
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        if !self.changes.is_empty() {
            return Some(self.clock.now());
        }
        [self.to_host.next_due(), self.to_card.next_due()].into_iter().flatten().min()
    }
}

/// The director's end.
pub(super) struct SimPort(pub(super) SharedWire);

impl HostPort for SimPort {
    type Frame = SimFrame;

    fn has_room(&self, _payload_len: usize) -> bool {
        let wire = self.0.borrow();
        wire.to_host.frames.len() < wire.room
    }

    fn send(&mut self, frame: &FromCard<'_>) {
        let mut wire = self.0.borrow_mut();
        let Wire { clock, rng, to_host, is_open, .. } = &mut *wire;
        if *is_open {
            let (inline, payload) = frame.encode();
            to_host.push(clock.now(), rng, SimFrame { inline, payload: payload.bytes().to_vec() });
        }
    }

    fn poll(&mut self) -> Option<HostEvent<SimFrame>> {
        let mut wire = self.0.borrow_mut();
        match wire.changes.pop_front() {
            Some(true) => return Some(HostEvent::Arrived),
            Some(false) => return Some(HostEvent::Gone),
            None => {}
        }
        let now = wire.clock.now();
        wire.to_card.pop(now).map(HostEvent::Frame)
    }

    fn close(&mut self, why: &str) {
        self.0.borrow_mut().refused = Some(why.to_owned());
    }
}
