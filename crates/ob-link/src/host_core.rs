//! The host's end of one attachment: a pure core that takes frames and gives frames.

use std::collections::BTreeMap;
use std::sync::Arc;

use ob_core::{AttachmentId, Bell, DmaAddress, GroupId, Incarnation, RegionId};
use ob_memory::Region;
use ob_ring::{CardBell, Closed, HostAreas, HostReceiver, HostSender};
use ob_wire_link::frame::{CHANNEL_MAX, Frame, GroupOpened, Hello, LinkKind, Resume, VERSION, Welcome};
use ob_wire_link::group::{GroupSizes, GroupSpec};
use ob_wire_link::ring::{RingSpec, control};

use crate::ProtocolError;
use crate::frame_dma::Agent;
use crate::group::{GroupClosedReason, GroupRefusal};
use crate::sequencer::Sequencer;

/// What the card told.
pub enum HostEvent {
    /// The card accepted this host, or accepted it back.
    Attached(Welcome),
    /// The card does not want this host, for a reason that people can read.
    Refused {
        /// Which reason.
        code: u32,
        /// The card's text.
        text: String,
    },
    /// A group that was asked for is open.
    GroupOpened(Box<OpenedGroup>),
    /// A group that was asked for is not opened.
    GroupRefused {
        /// From the question.
        request: u32,
        /// Why.
        refusal: GroupRefusal,
    },
    /// A group was opened, and this process has no descriptor or memory for it; it is closed again.
    GroupWithoutMemory {
        /// From the question.
        request: u32,
    },
    /// A group is over.
    GroupClosed {
        /// Which.
        group: GroupId,
        /// Why.
        reason: GroupClosedReason,
        /// The card's text.
        text: String,
    },
    /// A message of the ordered channel.
    Channel(Vec<u8>),
    /// The card leaves.
    Goodbye {
        /// The card's text.
        text: String,
    },
}

/// The two rings of an open group, its areas, and when they are over.
pub struct OpenedGroup {
    /// From the question.
    pub request: u32,
    /// The group's id.
    pub id: GroupId,
    /// Puts requests in.
    pub sender: HostSender,
    /// Takes responses out.
    pub receiver: HostReceiver,
    /// For bulk, if the group was asked for with areas.
    pub areas: Option<HostAreas>,
    /// Set when the group is over.
    pub closed: Closed,
}

struct Group {
    region: Region,
    region_id: RegionId,
    closed: Closed,
    specs: [RingSpec; 2],
}

/// The core.
pub struct HostCore {
    hello: Hello,
    welcome: Option<Welcome>,
    sequencer: Sequencer,
    agent: Agent,
    groups: BTreeMap<GroupId, Group>,
    card: Arc<dyn CardBell>,
    next_request: u32,
    /// What was asked for and is not answered yet: service and sizes.
    asked: BTreeMap<u32, (u32, GroupSizes)>,
    out: Vec<u8>,
    /// Whether the card listens: from the first connection on, but after a cut only once it has welcomed us back.
    connected: bool,
}

impl HostCore {
    /// A host that says `HELLO`. Its rings wake the card with `card`.
    pub fn new(name: &str, incarnation: Incarnation, pollers: u16, card: Arc<dyn CardBell>) -> Self {
        let hello = Hello {
            version: VERSION,
            pollers,
            host_incarnation: incarnation,
            resume: None,
            name: name.to_owned(),
        };
        let mut out = Vec::new();
        Frame::Hello(hello.clone()).encode(&mut out);
        Self {
            hello,
            welcome: None,
            sequencer: Sequencer::default(),
            agent: Agent::new(),
            groups: BTreeMap::new(),
            card,
            next_request: 1,
            asked: BTreeMap::new(),
            out,
            connected: true,
        }
    }

    /// What the card said when it accepted this host.
    pub fn welcome(&self) -> Option<&Welcome> {
        self.welcome.as_ref()
    }

    /// The attachment, once there is one.
    pub fn attachment(&self) -> Option<AttachmentId> {
        self.welcome.as_ref().map(|welcome| welcome.attachment)
    }

    /// Takes a frame of the card. `region` is the memory that came along with it, if any came and could be mapped.
    pub fn handle(
        &mut self,
        frame: &Frame<'_>,
        region: Option<Region>,
    ) -> Result<Option<HostEvent>, ProtocolError> {
        if frame.is_sequenced() {
            self.sequencer.arrived();
            if !matches!(frame, Frame::Channel(_)) {
                self.took_frame();
            }
        }
        match *frame {
            Frame::Welcome(welcome) => return self.welcomed(welcome).map(Some),
            Frame::Refused { code, text } => {
                return Ok(Some(HostEvent::Refused { code, text: text.to_owned() }));
            }
            _ if self.welcome.is_none() => return Err(ProtocolError::Unexpected),
            Frame::GroupOpened(opened) => return self.opened(opened, region).map(Some),
            Frame::GroupRefused { request, code, text } => {
                self.asked.remove(&request).ok_or(ProtocolError::Unexpected)?;
                let refusal = GroupRefusal::from_code(code, text);
                return Ok(Some(HostEvent::GroupRefused { request, refusal }));
            }
            Frame::GroupClosed { group, reason, text } => {
                self.forget_group(group);
                let reason = GroupClosedReason::from_code(reason);
                return Ok(Some(HostEvent::GroupClosed { group, reason, text: text.to_owned() }));
            }
            Frame::Channel(message) => return Ok(Some(HostEvent::Channel(message.to_owned()))),
            Frame::Ack { count } => self.sequencer.acknowledge(count).map_err(|_| ProtocolError::Count)?,
            Frame::Ping { nonce } => Frame::Pong { nonce }.encode(&mut self.out),
            Frame::Pong { .. } => {}
            Frame::Goodbye { text, .. } => return Ok(Some(HostEvent::Goodbye { text: text.to_owned() })),
            _ => {
                if self.kind() != Some(LinkKind::Tcp) || !self.agent.execute(frame, &mut self.out) {
                    return Err(ProtocolError::Unexpected);
                }
            }
        }
        Ok(None)
    }

    /// Asks for a group; the number that the answer will carry. `None` if the card is behind with answering.
    pub fn request_group(&mut self, service: u32, sizes: GroupSizes) -> Option<u32> {
        let request = self.next_request;
        let frame = Frame::OpenGroup { request, service, sizes };
        self.send_sequenced(&frame).then(|| {
            self.next_request = self.next_request.wrapping_add(1);
            self.asked.insert(request, (service, sizes));
            request
        })
    }

    /// Gives a group up. That is said even to a card that is behind with reading: the card would keep the group's
    /// memory otherwise, and there are never more of these than groups.
    pub fn close_group(&mut self, group: GroupId) -> bool {
        let known = self.groups.contains_key(&group);
        if known {
            self.keep_sequenced(&Frame::CloseGroup { group });
        }
        known
    }

    /// Sends a message on the ordered channel. `false` if the card is behind with reading, or it is too long.
    pub fn send(&mut self, message: &[u8]) -> bool {
        message.len() <= CHANNEL_MAX && self.send_sequenced(&Frame::Channel(message))
    }

    /// The application has taken a channel message that a [`HostEvent::Channel`] brought. Until then the card may send
    /// only so many more.
    pub fn took_message(&mut self) {
        self.took_frame();
    }

    fn took_frame(&mut self) {
        if let Some(count) = self.sequencer.took()
            && self.connected
        {
            Frame::Ack { count }.encode(&mut self.out);
        }
    }

    /// Rings the card: on `tcp`, where the doorbell is a frame among others.
    pub fn ring_card(&mut self) {
        if self.connected {
            Frame::Doorbell.encode(&mut self.out);
        }
    }

    /// Frames to be sent, in order; the driver removes what it has sent.
    pub fn outgoing(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Bells that the card rang through the agent: the driver wakes those who sleep on these words.
    pub fn take_bells(&mut self) -> impl Iterator<Item = (Region, usize)> {
        self.agent.take_bells()
    }

    /// The connection broke (`tcp` only).
    pub fn disconnected(&mut self) {
        self.connected = false;
        self.out.clear();
    }

    /// There is a connection again: says `HELLO`, and which attachment to go on with. Everything else waits for the
    /// answer, which tells what has to be sent again first.
    pub fn reconnect(&mut self) {
        self.out.clear();
        self.connected = false;
        let mut hello = self.hello.clone();
        hello.resume = self.welcome.map(|welcome| Resume {
            attachment: welcome.attachment,
            secret: welcome.resume_secret,
            received: self.sequencer.received(),
            card_incarnation: welcome.card_incarnation,
        });
        Frame::Hello(hello).encode(&mut self.out);
    }

    /// The attachment is over: every group is closed and whoever sleeps on one must be woken.
    pub fn close_all(&mut self) -> Vec<(Region, usize)> {
        let groups: Vec<GroupId> = self.groups.keys().copied().collect();
        for group in groups {
            self.forget_group(group);
        }
        self.agent.take_bells().collect()
    }

    fn kind(&self) -> Option<LinkKind> {
        self.welcome.as_ref().map(|welcome| welcome.kind)
    }

    fn welcomed(&mut self, welcome: Welcome) -> Result<HostEvent, ProtocolError> {
        match self.welcome {
            None if !welcome.resumed => {}
            Some(before)
                if welcome.resumed
                    && before.attachment == welcome.attachment
                    && before.card_incarnation == welcome.card_incarnation
                    && before.kind == welcome.kind =>
            {
                self.connected = true;
                let again = self.sequencer.resume(welcome.received).map_err(|_| ProtocolError::Count)?;
                for frame in again {
                    self.out.extend_from_slice(frame);
                }
                // A doorbell or a bell may have been lost with the connection.
                Frame::Doorbell.encode(&mut self.out);
                self.ring_all();
            }
            _ => return Err(ProtocolError::Unexpected),
        }
        self.welcome = Some(welcome);
        Ok(HostEvent::Attached(welcome))
    }

    fn opened(&mut self, opened: GroupOpened, region: Option<Region>) -> Result<HostEvent, ProtocolError> {
        // Only what was asked for, or less: a card must not make a host take memory as it likes.
        let asked = self.asked.remove(&opened.request).ok_or(ProtocolError::Unexpected)?;
        let (service, sizes) = asked;
        if opened.service != service || !opened.sizes.fits(&sizes) {
            return Err(ProtocolError::Unexpected);
        }
        let transfer_max = self.welcome.as_ref().map_or(0, |welcome| welcome.transfer_max);
        let transfer_max = u32::try_from(transfer_max).unwrap_or(u32::MAX);
        let spec = GroupSpec::new(opened.region, opened.sizes, transfer_max)
            .map_err(|_| ProtocolError::Unexpected)?;
        let len = spec.region_len;
        if len != opened.region_len || self.groups.contains_key(&opened.group) {
            return Err(ProtocolError::Unexpected);
        }
        let region = match (self.kind(), region) {
            (Some(LinkKind::Tcp), None) => Region::try_on_heap(len as usize),
            (Some(LinkKind::Shm | LinkKind::Model), region) => region,
            _ => return Err(ProtocolError::Unexpected),
        };
        let Some(region) = region else {
            // A process that has no descriptor or memory left has no use for the group, and all use for the others.
            self.keep_sequenced(&Frame::CloseGroup { group: opened.group });
            return Ok(HostEvent::GroupWithoutMemory { request: opened.request });
        };
        if (region.len() as u64) < len {
            return Err(ProtocolError::Unexpected);
        }
        self.agent.register(opened.region, region.clone());
        let closed = Closed::default();
        let sender = HostSender::new(region.clone(), spec.request, closed.clone(), Arc::clone(&self.card));
        let receiver =
            HostReceiver::new(region.clone(), spec.response, closed.clone(), Arc::clone(&self.card));
        let areas = HostAreas::new(region.clone(), &spec, closed.clone());
        let specs = [spec.request, spec.response];
        let group = Group { region, region_id: opened.region, closed: closed.clone(), specs };
        self.groups.insert(opened.group, group);
        let opened =
            OpenedGroup { request: opened.request, id: opened.group, sender, receiver, areas, closed };
        Ok(HostEvent::GroupOpened(Box::new(opened)))
    }

    fn forget_group(&mut self, id: GroupId) {
        if let Some(group) = self.groups.remove(&id) {
            group.closed.close();
            self.ring_group(&group);
            self.agent.unregister(group.region_id);
        }
    }

    fn ring_all(&mut self) {
        let groups = std::mem::take(&mut self.groups);
        groups.values().for_each(|group| self.ring_group(group));
        self.groups = groups;
    }

    fn ring_group(&mut self, group: &Group) {
        debug_assert!(!group.region.is_empty());
        for spec in &group.specs {
            let address = DmaAddress { region: group.region_id, offset: spec.word(control::BELL) };
            self.agent.ring(Bell { address });
        }
    }

    fn send_sequenced(&mut self, frame: &Frame<'_>) -> bool {
        if self.welcome.is_none() || !self.sequencer.has_room() {
            return false;
        }
        self.keep_sequenced(frame);
        true
    }

    fn keep_sequenced(&mut self, frame: &Frame<'_>) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        if self.connected {
            self.out.extend_from_slice(&bytes);
        }
        self.sequencer.keep(bytes);
    }
}
