//! The way to the host over real rings, both halves of them in one process.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails where something is missing")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ob_core::{AttachmentId, ConnectionId, Dma, GroupId, RegionId, Token};
use ob_director::ring::{RingPort, RingService, pair};
use ob_director::{HostEvent, HostFrame, HostPort};
use ob_memory::Region;
use ob_ring::{
    CardBell, CardReceiver, CardSender, CardService, Closed, GroupKey, HostReceiver, HostSender, LocalDma,
    Outgoing, Received, RingError,
};
use ob_wire_link::ring::RingSpec;
use ob_wire_link::stream::{FRAGMENT_LEN, Fragment, FromCard, FromHost, KV_SERVICE, Recovered};

const REGION: RegionId = RegionId(0);
const RESPONSE: u64 = 4;
const KEY: GroupKey = GroupKey { attachment: AttachmentId(1), group: GroupId(1) };

#[derive(Default)]
struct Doorbell(AtomicBool);

impl CardBell for Doorbell {
    fn ring(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct House {
    port: RingPort,
    service: RingService,
    dma: LocalDma,
    bell: Arc<Doorbell>,
    receiver: CardReceiver,
    sender: CardSender,
    host_sender: HostSender,
    host_receiver: HostReceiver,
}

impl House {
    fn new() -> Self {
        let (port, mut service) = pair(KV_SERVICE);
        service.open(KEY, KV_SERVICE).unwrap();
        let (request, response, len) = RingSpec::group(REGION, 1 << 18, 1 << 18, 2 << 20).unwrap();
        let region = Region::on_heap(len as usize);
        let (closed, bell) = (Closed::default(), Arc::<Doorbell>::default());
        let mut dma = LocalDma::new(64, 2 << 20);
        dma.register(REGION, region.clone());
        Self {
            port,
            service,
            dma,
            receiver: CardReceiver::new(request, Token(0)),
            sender: CardSender::new(response, Token(RESPONSE)),
            host_sender: HostSender::new(region.clone(), request, closed.clone(), bell.clone()),
            host_receiver: HostReceiver::new(region, response, closed, bell.clone()),
            bell,
        }
    }

    fn turn(&mut self) -> Result<(), RingError> {
        for _ in 0..8 {
            if self.bell.0.swap(false, Ordering::Relaxed) {
                self.receiver.wake();
                self.sender.wake();
            }
            self.receiver.step(&mut self.dma)?;
            self.service.responses(KEY, &mut self.sender);
            self.sender.step(&mut self.dma)?;
            while let Some(completion) = self.dma.poll() {
                if completion.token.0 & RESPONSE != 0 {
                    self.sender.complete(completion)?;
                } else if let Received::Batch(batch) = self.receiver.complete(&mut self.dma, completion)? {
                    self.service.requests(KEY, batch, &mut self.sender);
                }
            }
        }
        Ok(())
    }

    fn say(&self, frame: &FromHost<'_>) {
        let (inline, payload) = frame.encode();
        let pieces = [payload.bytes()];
        let payload = (!payload.bytes().is_empty()).then_some((&pieces[..], 8));
        self.host_sender.push(Outgoing { inline: &inline, payload }).unwrap();
    }

    fn hear(&mut self) -> Option<(Vec<u8>, Vec<u8>)> {
        let claimed = self.host_receiver.receive().unwrap()?;
        let (mut inline, mut payload) = (vec![0; claimed.inline_len()], vec![0; claimed.payload_len()]);
        claimed.inline(&mut inline);
        claimed.payload(0, &mut payload);
        Some((inline, payload))
    }
}

fn request(stamp: u64, bytes: &[u8]) -> FromCard<'_> {
    let length = bytes.len() as u32;
    FromCard::Request(Fragment { connection: ConnectionId(5), stamp, length, offset: 0, bytes })
}

#[test]
fn frames_go_both_ways_in_order_and_a_full_ring_pushes_back() {
    let mut house = House::new();
    assert!(matches!(house.port.poll(), Some(HostEvent::Arrived)));
    let frames = [
        FromHost::Meet { stamp: 3, recovered: Recovered { store: [1; 16], end: 9 }, terms: 7 },
        FromHost::FileGone { name: 4 },
    ];
    frames.iter().for_each(|frame| house.say(frame));
    house.turn().unwrap();
    for expected in &frames {
        let Some(HostEvent::Frame(frame)) = house.port.poll() else { panic!("a frame is missing") };
        assert_eq!(FromHost::decode(frame.inline(), frame.payload()).as_ref(), Ok(expected));
    }
    assert!(house.port.poll().is_none());
    // Many rings' worth: what finds no room waits, first in the ring, then in the port, then with who sends.
    let bytes = vec![7; FRAGMENT_LEN];
    let (mut sent, mut heard, mut refused) = (0, 0, 0);
    while heard < 40 {
        if sent < 40 && house.port.has_room(bytes.len()) {
            sent += 1;
            house.port.send(&request(sent, &bytes[..bytes.len() - sent as usize]));
            continue;
        }
        refused += u64::from(sent < 40);
        house.turn().unwrap();
        assert!(house.port.has_room(bytes.len()), "who waits for room sees that there is some");
        assert_eq!(house.service.next_due(), None, "and nobody else has anything to do");
        while let Some((inline, payload)) = house.hear() {
            heard += 1;
            let frame = FromCard::decode(&inline, &payload).unwrap();
            assert_eq!(frame, request(heard, &bytes[..bytes.len() - heard as usize]));
        }
        assert!(house.port.poll().is_none());
    }
    assert!(refused > 0);
}

#[test]
fn one_host_at_a_time_and_who_is_sent_away_is_closed() {
    let mut house = House::new();
    let other = GroupKey { group: GroupId(2), ..KEY };
    assert!(house.service.open(other, KV_SERVICE).unwrap_err().contains("another host"));
    assert!(house.service.open(other, 99).is_err());
    assert!(matches!(house.port.poll(), Some(HostEvent::Arrived)));
    house.say(&FromHost::FileGone { name: 4 });
    house.turn().unwrap();
    house.port.send(&FromCard::Begin { stamp: 1 });
    house.port.close("it says what cannot be");
    assert_eq!(house.turn(), Err(RingError::Refused), "the link hears that the group is to be closed");
    house.service.closed(KEY);
    assert!(matches!(house.port.poll(), Some(HostEvent::Gone)), "and nothing that was said before");
    house.service.open(other, KV_SERVICE).unwrap();
    assert!(matches!(house.port.poll(), Some(HostEvent::Arrived)));
}
