//! The way to the host over a group of rings.
//!
//! ```text
//!   Director ── RingPort ──▶ Hub ──▶ RingService ──▶ CardSender ─▶ response ring ─▶ host
//!        ▲                    │           │
//!        └────────────────────┘◀──────────┴──── Batch ◀─────────── request ring ◀── host
//! ```
//!
//! Both ends live in one thread, and neither calls the other: the link calls the service when there are messages or room, and
//! the director looks into the hub in its turn. What the director leaves there for the host is announced
//! ([`CardService::waiting`]), so that the loop around both can have it sent at once.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use ob_core::{AttachmentId, Instant};
use ob_ring::{Batch, CardSender, CardService, GroupKey, Message, ReserveError};
use ob_wire_link::ring::Shape;
use ob_wire_link::stream::{FRAGMENT_LEN, FromCard, HEADER_LEN};

use crate::host::{HostEvent, HostFrame, HostPort};

/// Bytes of frames that wait for room in the ring.
const OUTBOX_LEN_MAX: usize = 4 * FRAGMENT_LEN;
/// How payloads are aligned in the ring.
const ALIGNMENT: u32 = 8;

/// The director's end.
pub struct RingPort {
    hub: Rc<RefCell<Hub>>,
}

/// The link's end.
pub struct RingService {
    hub: Rc<RefCell<Hub>>,
}

#[derive(Default)]
struct Hub {
    service: u32,
    group: Option<GroupKey>,
    /// The group is to be closed, and nothing of it is wanted.
    is_closing: bool,
    events: VecDeque<Arrival>,
    /// Frames for the ring, one behind the other.
    outbox: VecDeque<u8>,
    /// Bytes of the payload of each.
    lengths: VecDeque<usize>,
    /// Anything has happened that the director has not seen.
    news: bool,
}

enum Arrival {
    Opened,
    Batch(Batch),
    Closed,
}

/// Both ends of the way to the host's half of a service.
pub fn pair(service: u32) -> (RingPort, RingService) {
    let hub = Rc::new(RefCell::new(Hub { service, ..Hub::default() }));
    (RingPort { hub: Rc::clone(&hub) }, RingService { hub })
}

impl HostFrame for Message {
    fn inline(&self) -> &[u8] {
        &self.inline
    }

    fn payload(&self) -> &[u8] {
        self.payload.as_deref().unwrap_or_default()
    }
}

impl HostPort for RingPort {
    type Frame = Message;

    fn has_room(&self, payload_len: usize) -> bool {
        self.hub.borrow().outbox.len() + HEADER_LEN + payload_len <= OUTBOX_LEN_MAX
    }

    fn send(&mut self, frame: &FromCard<'_>) {
        let (inline, payload) = frame.encode();
        let mut hub = self.hub.borrow_mut();
        if hub.group.is_none() || hub.is_closing {
            return;
        }
        hub.outbox.extend(&inline);
        hub.outbox.extend(payload.bytes());
        hub.lengths.push_back(payload.bytes().len());
    }

    fn poll(&mut self) -> Option<HostEvent<Message>> {
        let mut hub = self.hub.borrow_mut();
        hub.news = false;
        loop {
            let event = match hub.events.front_mut()? {
                Arrival::Batch(batch) => batch.take_next().map(HostEvent::Frame),
                Arrival::Opened => {
                    hub.events.pop_front();
                    return Some(HostEvent::Arrived);
                }
                Arrival::Closed => {
                    hub.events.pop_front();
                    return Some(HostEvent::Gone);
                }
            };
            match event {
                Some(event) => return Some(event),
                None => drop(hub.events.pop_front()),
            }
        }
    }

    fn close(&mut self, why: &str) {
        let mut hub = self.hub.borrow_mut();
        tracing::warn!("the host of service {} is sent away: {why}", hub.service);
        (hub.is_closing, hub.news) = (true, true);
        hub.forget();
    }
}

impl Hub {
    fn forget(&mut self) {
        self.outbox.clear();
        self.lengths.clear();
        self.events.retain(|event| !matches!(event, Arrival::Batch(_)));
    }

    /// Takes the next bytes of the frames, which are there.
    fn take_out(&mut self, into: &mut [u8]) {
        let (front, back) = self.outbox.as_slices();
        let from_front = into.len().min(front.len());
        let (first, second) = into.split_at_mut(from_front);
        first.copy_from_slice(&front[..from_front]);
        second.copy_from_slice(&back[..second.len()]);
        self.outbox.drain(..into.len());
    }

    /// Moves frames into the ring, as far as there is room.
    fn deliver(&mut self, responses: &mut CardSender) {
        while let Some(len) = self.lengths.front().copied() {
            let payload = (len > 0).then_some((len as u32, ALIGNMENT));
            let mut reservation = match responses.reserve(Shape { inline_len: HEADER_LEN as u16, payload }) {
                Ok(reservation) => reservation,
                Err(ReserveError::Full) => return,
                Err(ReserveError::TooLarge { limit }) => {
                    tracing::warn!(
                        "rings of messages of {limit} bytes are too small for service {}",
                        self.service
                    );
                    self.is_closing = true;
                    return self.forget();
                }
            };
            let mut inline = [0; HEADER_LEN];
            self.take_out(&mut inline);
            if let Some(into) = &mut reservation.payload {
                self.take_out(&mut into[..len]);
            }
            self.lengths.pop_front();
            responses.commit(reservation, &inline, len as u32);
        }
    }
}

impl CardService for RingService {
    fn open(&mut self, key: GroupKey, service: u32) -> Result<(), String> {
        let mut hub = self.hub.borrow_mut();
        if service != hub.service {
            return Err(format!("this service has number {}, not {service}", hub.service));
        }
        if hub.group.is_some() {
            return Err("another host has this service".to_owned());
        }
        (hub.group, hub.is_closing, hub.news) = (Some(key), false, true);
        hub.events.push_back(Arrival::Opened);
        Ok(())
    }

    fn requests(&mut self, key: GroupKey, batch: Batch, responses: &mut CardSender) {
        let mut hub = self.hub.borrow_mut();
        if hub.group == Some(key) && !hub.is_closing {
            hub.events.push_back(Arrival::Batch(batch));
            hub.news = true;
            hub.deliver(responses);
        }
    }

    fn responses(&mut self, key: GroupKey, responses: &mut CardSender) {
        let mut hub = self.hub.borrow_mut();
        if hub.group != Some(key) {
            return;
        }
        hub.deliver(responses);
        if hub.is_closing {
            responses.refuse();
        }
    }

    fn closed(&mut self, key: GroupKey) {
        let mut hub = self.hub.borrow_mut();
        if hub.group == Some(key) {
            hub.group = None;
            hub.forget();
            hub.events.push_back(Arrival::Closed);
            hub.news = true;
        }
    }

    fn channel(&mut self, _attachment: AttachmentId, _message: &[u8]) {}

    fn waiting(&self, groups: &mut Vec<GroupKey>) {
        let hub = self.hub.borrow();
        groups.extend(hub.group.filter(|_| hub.is_closing || !hub.lengths.is_empty()));
    }

    fn next_due(&self) -> Option<Instant> {
        // The director has to look at what came. Whether it waits for room it knows itself.
        let hub = self.hub.borrow();
        (hub.news || !hub.events.is_empty()).then(Instant::default)
    }
}
