//! The service behind real rings: groups with both of their halves in one process, and no link in between.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ob_core::{AttachmentId, Dma, GroupId, Instant, NodeId, RegionId, Token};
use ob_files_card::FilesService;
use ob_memory::{ArenaSpan, Region};
use ob_ring::{
    CardBell, CardReceiver, CardSender, CardService, Closed, GroupKey, HostReceiver, HostSender, LocalDma,
    Outgoing, PushError, Received,
};
use ob_wire_link::files::{
    FILES_SERVICE, FileError, NodeInfo, Operation, RequestHeader, ResponseHeader, VERSION,
};
use ob_wire_link::ring::RingSpec;

use super::MemoryDevice;

const REGION: RegionId = RegionId(0);
const REQUEST: u64 = 0;
const RESPONSE: u64 = 4;

/// What a host rings when it has made room that the card waits for.
#[derive(Default)]
struct Doorbell(AtomicBool);

impl CardBell for Doorbell {
    fn ring(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One group, both halves.
pub(crate) struct RingGroup {
    pub(crate) key: GroupKey,
    pub(crate) host_sender: HostSender,
    pub(crate) host_receiver: HostReceiver,
    dma: LocalDma,
    bell: Arc<Doorbell>,
    receiver: CardReceiver,
    sender: CardSender,
    next_id: u64,
    /// Whether the host takes responses out of the ring.
    pub(crate) reads: bool,
    /// Responses that it takes in one turn at most.
    pub(crate) takes_max: usize,
    pub(crate) responses: Vec<Response>,
}

/// A response as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) header: ResponseHeader,
    pub(crate) more: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

impl Response {
    pub(crate) fn node(&self) -> NodeInfo {
        assert_eq!(self.header.status, Ok(()));
        NodeInfo::decode(&self.more).unwrap()
    }

    pub(crate) fn error(&self) -> Option<FileError> {
        self.header.status.err()
    }
}

/// A request as it goes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    pub(crate) header: RequestHeader,
    pub(crate) more: Vec<u8>,
    pub(crate) payload: Option<(Vec<u8>, u32)>,
}

impl Request {
    pub(crate) fn new(operation: Operation) -> Self {
        let header = RequestHeader { operation: operation.code(), ..RequestHeader::default() };
        Self { header, ..Self::default() }
    }

    pub(crate) fn node(mut self, node: NodeId) -> Self {
        self.header.node = node;
        self
    }

    pub(crate) fn flags(mut self, flags: u16) -> Self {
        self.header.flags = flags;
        self
    }

    pub(crate) fn offset(mut self, offset: u64) -> Self {
        self.header.offset = offset;
        self
    }

    pub(crate) fn length(mut self, length: u32) -> Self {
        self.header.length = length;
        self
    }

    pub(crate) fn more(mut self, more: &[u8]) -> Self {
        self.more = more.to_vec();
        self
    }

    /// The bytes of a write, aligned to `align` in the ring.
    pub(crate) fn payload(mut self, bytes: &[u8], align: u32) -> Self {
        self.header.length = bytes.len() as u32;
        self.payload = Some((bytes.to_vec(), align));
        self
    }

    pub(crate) fn inline(&self) -> Vec<u8> {
        [&self.header.encode()[..], &self.more].concat()
    }
}

impl RingGroup {
    fn new(key: GroupKey, request: u32, response: u32) -> Self {
        let transfer_max = 2 << 20;
        let (request, response, len) = RingSpec::group(REGION, request, response, transfer_max).unwrap();
        let region = Region::on_heap(len as usize);
        let (closed, bell) = (Closed::default(), Arc::<Doorbell>::default());
        let mut dma = LocalDma::new(64, transfer_max as usize);
        dma.register(REGION, region.clone());
        Self {
            key,
            host_sender: HostSender::new(region.clone(), request, closed.clone(), bell.clone()),
            host_receiver: HostReceiver::new(region, response, closed, bell.clone()),
            dma,
            bell,
            receiver: CardReceiver::new(request, Token(REQUEST)),
            sender: CardSender::new(response, Token(RESPONSE)),
            next_id: 1,
            reads: true,
            takes_max: usize::MAX,
            responses: Vec::new(),
        }
    }

    /// Puts bytes into the request ring as they are.
    pub(crate) fn push_raw(&self, inline: &[u8], payload: Option<(&[u8], u32)>) -> Result<(), PushError> {
        let pieces = payload.map(|(bytes, align)| ([bytes], align));
        let payload = pieces.as_ref().map(|(pieces, align)| (&pieces[..], *align));
        self.host_sender.push(Outgoing { inline, payload })
    }

    /// Puts a request into the ring; its id.
    pub(crate) fn push(&mut self, mut request: Request) -> Result<u64, PushError> {
        request.header.id = self.next_id;
        let payload = request.payload.as_ref().map(|(bytes, align)| (&bytes[..], *align));
        self.push_raw(&request.inline(), payload)?;
        self.next_id += 1;
        Ok(request.header.id)
    }

    /// The card's memory that requests are fetched into, and that responses are sent from.
    pub(crate) fn arenas(&self) -> [ArenaSpan; 2] {
        [self.receiver.arena(), self.sender.arena()]
    }

    /// One turn of the card for this group; `true` if something moved.
    fn turn(&mut self, service: &mut FilesService<MemoryDevice>) -> bool {
        if self.bell.0.swap(false, Ordering::Relaxed) {
            self.receiver.wake();
            self.sender.wake();
        }
        self.receiver.step(&mut self.dma).unwrap();
        service.responses(self.key, &mut self.sender);
        let mut moved = self.sender.has_ready();
        self.sender.step(&mut self.dma).unwrap();
        while let Some(completion) = self.dma.poll() {
            if completion.token.0 & RESPONSE != 0 {
                self.sender.complete(completion).unwrap();
            } else if let Received::Batch(batch) = self.receiver.complete(&mut self.dma, completion).unwrap()
            {
                moved = true;
                service.requests(self.key, batch, &mut self.sender);
            }
        }
        if self.reads {
            let before = self.responses.len();
            self.receive();
            moved |= self.responses.len() > before;
        }
        moved
    }

    /// Takes what is in the response ring.
    fn receive(&mut self) {
        for _ in 0..self.takes_max {
            let Some(claimed) = self.host_receiver.receive().unwrap() else { break };
            let (mut inline, mut payload) = (vec![0; claimed.inline_len()], vec![0; claimed.payload_len()]);
            claimed.inline(&mut inline);
            claimed.payload(0, &mut payload);
            let (header, more) = ResponseHeader::decode(&inline).unwrap();
            self.responses.push(Response { header, more: more.to_vec(), payload });
        }
    }

    /// Takes the response with this id out of those that came.
    pub(crate) fn take(&mut self, id: u64) -> Option<Response> {
        let index = self.responses.iter().position(|response| response.header.id == id)?;
        Some(self.responses.remove(index))
    }
}

/// A card with some groups.
pub(crate) struct House {
    pub(crate) service: FilesService<MemoryDevice>,
    pub(crate) groups: Vec<RingGroup>,
    next_group: u32,
}

impl House {
    pub(crate) fn new(service: FilesService<MemoryDevice>) -> Self {
        Self { service, groups: Vec::new(), next_group: 0 }
    }

    /// A group that has not said hello; its index.
    pub(crate) fn open(&mut self, request: u32, response: u32) -> usize {
        self.open_for(AttachmentId(7), request, response)
    }

    /// The same, of this host.
    pub(crate) fn open_for(&mut self, attachment: AttachmentId, request: u32, response: u32) -> usize {
        let key = GroupKey { attachment, group: GroupId(self.next_group) };
        self.next_group += 1;
        self.service.open(key, FILES_SERVICE).unwrap();
        self.groups.push(RingGroup::new(key, request, response));
        self.groups.len() - 1
    }

    /// A group that has.
    pub(crate) fn greeted(&mut self, request: u32, response: u32) -> usize {
        let group = self.open(request, response);
        let hello = Request::new(Operation::Hello).offset(u64::from(VERSION));
        assert_eq!(self.call(group, hello).header.status, Ok(()));
        group
    }

    /// Closes a group, whatever is in flight.
    pub(crate) fn close(&mut self, group: usize) {
        let group = self.groups.remove(group);
        self.service.closed(group.key);
    }

    /// One turn of the card; `true` if something moved.
    pub(crate) fn turn(&mut self) -> bool {
        let mut moved = self.service.poll(Instant::default());
        for group in &mut self.groups {
            moved |= group.turn(&mut self.service);
        }
        moved
    }

    /// Turns until nothing moves any more.
    pub(crate) fn settle(&mut self) {
        let mut quiet = 0;
        for _ in 0..100_000 {
            quiet = if self.turn() { 0 } else { quiet + 1 };
            if quiet > 8 {
                return;
            }
        }
        panic!("the card never comes to rest");
    }

    pub(crate) fn push(&mut self, group: usize, request: Request) -> u64 {
        self.groups[group].push(request).unwrap()
    }

    /// One request, and the response to it.
    pub(crate) fn call(&mut self, group: usize, request: Request) -> Response {
        let id = self.push(group, request);
        self.settle();
        self.groups[group].take(id).expect("every request is answered")
    }
}
