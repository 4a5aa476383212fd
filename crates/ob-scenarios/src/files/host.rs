//! A host process: its ends of the rings, and the requests that it waits for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ob_core::{Instant, NodeId, RegionId};
use ob_memory::Region;
use ob_ring::{CardBell, Closed, HostReceiver, HostSender, Outgoing, PushError};
use ob_sim::Failure;
use ob_wire_link::files::{Operation, REQUEST_LEN, RequestHeader, ResponseHeader};
use ob_wire_link::ring::{RingSpec, RingSpecError};

use super::model::{Answer, Asked};

/// The card's doorbell: it looks in its next turn whether it rang.
#[derive(Debug, Default)]
pub(super) struct Doorbell(AtomicBool);

impl CardBell for Doorbell {
    fn ring(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Doorbell {
    /// Whether it rang since the last call.
    pub(super) fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

/// A request as it goes into the ring.
#[derive(Clone, Debug, Default)]
pub(super) struct Wire {
    pub(super) inline: Vec<u8>,
    /// Bytes and their alignment.
    pub(super) payload: Option<(Vec<u8>, u32)>,
}

impl Wire {
    /// A request of a header and what comes behind it.
    pub(super) fn of(header: &RequestHeader, rest: &[u8]) -> Self {
        Self { inline: [&header.encode()[..], rest].concat(), payload: None }
    }

    /// Gives the request its id, which stands first.
    fn set_id(&mut self, id: u64) {
        if let Some(place) = self.inline.get_mut(..8) {
            place.copy_from_slice(&id.to_le_bytes());
        }
    }
}

/// A header of an operation on a node.
pub(super) fn header(operation: Operation, node: NodeId) -> RequestHeader {
    RequestHeader { operation: operation.code(), node, ..RequestHeader::default() }
}

/// A request that waits for its answer.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) asked: Asked,
    pub(super) since: Instant,
}

/// One host and its group.
pub(super) struct Host {
    /// The group at the card.
    pub(super) group: usize,
    sender: HostSender,
    receiver: HostReceiver,
    next_id: u64,
    pub(super) waiting: BTreeMap<u64, Waiting>,
    /// From the card's greeting; 0 before it.
    pub(super) transfer_max: u32,
}

/// Memory and rings of a group.
pub(super) struct Rings {
    pub(super) region: Region,
    pub(super) specs: (RingSpec, RingSpec),
    pub(super) doorbell: Arc<Doorbell>,
}

impl Rings {
    pub(super) fn new(request: u32, response: u32) -> Result<Self, RingSpecError> {
        let (request, response, len) = RingSpec::group(RegionId(0), request, response, 1 << 20)?;
        let (region, doorbell) = (Region::on_heap(len as usize), Arc::default());
        Ok(Self { region, specs: (request, response), doorbell })
    }
}

impl Host {
    pub(super) fn new(group: usize, rings: &Rings) -> Self {
        let (closed, bell) = (Closed::default(), Arc::clone(&rings.doorbell));
        let (request, response) = rings.specs;
        Self {
            group,
            sender: HostSender::new(rings.region.clone(), request, closed.clone(), bell.clone()),
            receiver: HostReceiver::new(rings.region.clone(), response, closed, bell),
            next_id: 1,
            waiting: BTreeMap::new(),
            transfer_max: 0,
        }
    }

    /// Most bytes that one write can carry through this host's ring.
    pub(super) fn write_max(&self) -> u32 {
        let fits = self.sender.message_max().saturating_sub(REQUEST_LEN as u32 + 64 + 4096);
        self.transfer_max.min(fits)
    }

    /// Most bytes of an inline part.
    pub(super) fn inline_max(&self) -> usize {
        self.sender.message_max() as usize - 64
    }

    /// Puts a request into the ring; its id, or none if there is no room now.
    pub(super) fn push(&mut self, wire: &mut Wire) -> Result<Option<u64>, Failure> {
        // A message too short for an id is answered with 0.
        let id = if wire.inline.len() < REQUEST_LEN { 0 } else { self.next_id };
        wire.set_id(id);
        let pieces: [&[u8]; 1] = [wire.payload.as_ref().map_or(&[][..], |(bytes, _)| bytes)];
        let payload = wire.payload.as_ref().map(|(_, align)| (&pieces[..], *align));
        match self.sender.push(Outgoing { inline: &wire.inline, payload }) {
            Ok(()) => {
                self.next_id += 1;
                Ok(Some(id))
            }
            Err(PushError::Retry) => Ok(None),
            Err(error) => Err(Failure::new(format!("a host cannot push: {error}"))),
        }
    }

    /// The next answer in the ring: the request that it is for, and what it says.
    pub(super) fn receive(&mut self) -> Result<Option<(u64, Answer)>, Failure> {
        let claimed = match self.receiver.receive() {
            Ok(Some(claimed)) => claimed,
            Ok(None) => return Ok(None),
            Err(error) => return Err(Failure::new(format!("a host cannot receive: {error}"))),
        };
        let mut inline = vec![0; claimed.inline_len()];
        claimed.inline(&mut inline);
        let mut payload = vec![0; claimed.payload_len()];
        claimed.payload(0, &mut payload);
        claimed.check().map_err(|error| Failure::new(format!("a host cannot receive: {error}")))?;
        let Some((header, more)) = ResponseHeader::decode(&inline) else {
            return Err(Failure::new(format!("an answer that cannot be: {inline:?}")));
        };
        let answer = Answer {
            status: header.status,
            length: header.length,
            value: header.value,
            more: more.to_vec(),
            payload,
        };
        Ok(Some((header.id, answer)))
    }
}
