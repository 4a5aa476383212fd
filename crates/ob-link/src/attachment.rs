//! One host at the card: a pure core that takes frames and finished transfers and gives frames and transfers.

use ob_core::{AttachmentId, Clock, Dma, DmaCounts, GroupId, Incarnation, Instant, RegionId};
use ob_memory::{ArenaSpan, Region};
use ob_ring::{Armed, CardService, GroupKey, RingError};
use ob_wire_link::frame::{CHANNEL_MAX, Frame, GroupOpened, LinkKind, Resume, Welcome};
use ob_wire_link::group::{GroupSizes, GroupSpec};

use crate::card_dma::{CardDma, Wake};
use crate::group::{CardGroup, GroupClosedReason, GroupRefusal};
use crate::plant::{Bug, is_planted};
use crate::sequencer::Sequencer;
use crate::{FrameDma, ProtocolError};

/// Groups that one host may have open.
const GROUPS_MAX: usize = 64;
/// Bytes of frames that may wait for a host that does not read them: transfers, and what is sent again after a cut.
const OUT_MAX: usize = 16 << 20;
/// As many, where transfers are no frames and a host asks on and does not read the answers. (Of what is sent already, some is still there.)
const PONGS_MAX: usize = 2 << 20;

/// What a frame asks of the driver.
#[derive(Debug, PartialEq, Eq)]
pub enum CardEvent {
    /// To open a group: the driver makes the region and calls [`CardAttachment::open_group`], or refuses.
    OpenGroup {
        /// Comes back in the answer.
        request: u32,
        /// What the group is for.
        service: u32,
        /// Bytes asked for.
        sizes: GroupSizes,
    },
    /// A group was closed, and its memory goes with the next poll.
    GroupClosed {
        /// Which.
        group: GroupId,
        /// Bytes it had.
        region_len: u64,
        /// Why.
        reason: GroupClosedReason,
    },
    /// The host leaves.
    Goodbye,
}

/// What finished transfers were.
#[derive(Clone, Copy, Default)]
struct Taken {
    /// There were some.
    any: bool,
    /// They brought something: requests, or bulk.
    brought: bool,
}

/// Who a host is, for status and for resuming.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The attachment.
    pub attachment: AttachmentId,
    /// To be shown when resuming.
    pub secret: u64,
    /// The card's life.
    pub card_incarnation: Incarnation,
    /// The host's life.
    pub host_incarnation: Incarnation,
    /// The host's name.
    pub name: String,
    /// The kind of link.
    pub kind: LinkKind,
    /// Threads of the card that poll.
    pub card_pollers: u16,
    /// Threads of the host that poll.
    pub host_pollers: u16,
}

/// The core of one attachment.
pub struct CardAttachment<C> {
    identity: Identity,
    dma: CardDma<C>,
    sequencer: Sequencer,
    groups: Vec<CardGroup>,
    /// Groups that were closed since the last poll. Their memory stays until the driver has heard of it.
    closed: Vec<CardGroup>,
    next_group: u32,
    /// Which group is stepped first in the next turn: where the link takes only so much in one turn, everybody is first
    /// at times.
    first_group: usize,
    /// Frames to be sent.
    out: Vec<u8>,
    /// Whether there is a connection to send them on.
    connected: bool,
    /// The host rang.
    rung: bool,
    proof: Proof,
}

/// Whether the host has shown that it lives, since there was last a reason to doubt it.
#[derive(Clone, Copy, Default)]
struct Proof {
    /// How often it was asked: the nonce of the last `PING`.
    asked: u64,
    /// The nonce of the last one that it answered.
    answered: u64,
    is_missing: bool,
    /// There was another reason to doubt it since that `PING`, so that the answer to it is not enough.
    is_late: bool,
    /// The service was told that it is missing.
    is_told: bool,
}

impl<C: Clock> CardAttachment<C> {
    /// A new attachment; its `WELCOME` is the first frame to be sent.
    pub fn new(identity: Identity, dma: CardDma<C>) -> Self {
        let mut attachment = Self {
            identity,
            dma,
            sequencer: Sequencer::default(),
            groups: Vec::new(),
            closed: Vec::new(),
            next_group: 1,
            first_group: 0,
            out: Vec::new(),
            connected: true,
            rung: false,
            proof: Proof::default(),
        };
        attachment.welcome(false);
        attachment
    }

    /// Who is attached.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// What the link has carried.
    pub fn counts(&self) -> DmaCounts {
        self.dma.counts()
    }

    /// Open groups.
    pub fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// Bytes of the regions of all groups.
    pub fn region_bytes(&self) -> u64 {
        self.groups.iter().map(|group| group.region_len).sum()
    }

    /// The memory of a group that devices fill and empty, for registration with them.
    pub fn arenas(&self, group: GroupId) -> Option<[ArenaSpan; 2]> {
        self.groups.iter().find(|open| open.id == group).map(CardGroup::arenas)
    }

    /// Takes a frame of the host.
    pub fn handle(
        &mut self,
        frame: &Frame<'_>,
        service: &mut dyn CardService,
    ) -> Result<Option<CardEvent>, ProtocolError> {
        if frame.is_sequenced() {
            self.sequencer.arrived();
            if let Some(count) = self.sequencer.took() {
                Frame::Ack { count }.encode(&mut self.out);
            }
        }
        if self.sequencer.is_overrun() {
            return Err(ProtocolError::Overflow);
        }
        match *frame {
            Frame::OpenGroup { request, service, sizes } => {
                return Ok(Some(CardEvent::OpenGroup { request, service, sizes }));
            }
            Frame::CloseGroup { group } => {
                return Ok(self.close_group(group, GroupClosedReason::Asked, "", service));
            }
            Frame::Channel(message) => service.channel(self.identity.attachment, message),
            Frame::Ack { count } => self.sequencer.acknowledge(count).map_err(|_| ProtocolError::Count)?,
            Frame::Doorbell => self.wake(),
            Frame::Ping { .. } if self.out.len() > PONGS_MAX && self.identity.kind != LinkKind::Tcp => {
                return Err(ProtocolError::Overflow);
            }
            Frame::Ping { nonce } => Frame::Pong { nonce }.encode(&mut self.out),
            Frame::Pong { nonce } => self.hear_answer(nonce),
            Frame::Goodbye { .. } => return Ok(Some(CardEvent::Goodbye)),
            Frame::DmaDone { tag, status, bytes } => {
                let frames = self.dma.frames().ok_or(ProtocolError::Unexpected)?;
                frames.answered(tag, status, bytes)?;
            }
            _ => return Err(ProtocolError::Unexpected),
        }
        Ok(None)
    }

    /// Whether one more group may be opened, and what it would be.
    pub fn plan_group(&self, sizes: GroupSizes) -> Result<GroupSpec, GroupRefusal> {
        if self.next_group == u32::MAX {
            return Err(GroupRefusal::Budget(
                "this attachment has used up its numbers; attach afresh".to_owned(),
            ));
        }
        if self.groups.len() >= GROUPS_MAX {
            return Err(GroupRefusal::Budget(format!("a host may have {GROUPS_MAX} groups at most")));
        }
        let transfer_max = u32::try_from(self.dma.largest_transfer()).unwrap_or(u32::MAX);
        GroupSpec::new(RegionId(self.next_group), sizes, transfer_max)
            .map_err(|error| GroupRefusal::Capacity(error.to_string()))
    }

    /// Opens a group in a region that the driver has made (on `tcp` the host makes it), and tells the host.
    pub fn open_group(
        &mut self,
        request: u32,
        service_number: u32,
        spec: &GroupSpec,
        region: Option<Region>,
        service: &mut dyn CardService,
    ) -> Result<GroupId, GroupRefusal> {
        let group = GroupId(self.next_group);
        let key = GroupKey { attachment: self.identity.attachment, group };
        // Before the service knows of it, which would have to be told that there is none.
        let opened = CardGroup::new(group, spec)?;
        service.open(key, service_number).map_err(GroupRefusal::Service)?;
        self.next_group += 1;
        self.dma.register(spec.region(), region);
        self.groups.push(opened);
        self.send_sequenced(&Frame::GroupOpened(GroupOpened {
            request,
            group,
            region: spec.region(),
            sizes: spec.sizes(),
            service: service_number,
            region_len: spec.region_len,
        }));
        Ok(group)
    }

    /// Tells the host that its group is not opened.
    pub fn refuse_group(&mut self, request: u32, refusal: &GroupRefusal) {
        let text = refusal.to_string();
        self.send_sequenced(&Frame::GroupRefused { request, code: refusal.code(), text: &text });
    }

    /// Sends a message on the ordered channel. `false` if the host is behind with reading.
    pub fn send(&mut self, message: &[u8]) -> bool {
        let accepted = message.len() <= CHANNEL_MAX && self.sequencer.has_room();
        if accepted {
            self.send_sequenced(&Frame::Channel(message));
        }
        accepted
    }

    /// Moves everything on: finished transfers, new transfers, responses. `true` if requests or responses moved.
    /// Groups that turned out corrupt are closed and reported.
    pub fn poll(&mut self, service: &mut dyn CardService, events: &mut Vec<CardEvent>) -> bool {
        self.closed.clear();
        self.tell_proof(service);
        let worked = self.take_completions(service, events).brought;
        if std::mem::take(&mut self.rung) {
            // Only now: a ring whose last look before sleeping was answered before the host rang has learnt of that
            // answer just above, and would sleep through the bell if it had been woken earlier.
            self.groups.iter_mut().for_each(CardGroup::wake);
        }
        worked | self.step_groups(service, events)
    }

    fn step_groups(&mut self, service: &mut dyn CardService, events: &mut Vec<CardEvent>) -> bool {
        let mut worked = false;
        let (mut index, mut left) = (self.first_group, self.groups.len());
        self.first_group = if self.first_group + 1 < left { self.first_group + 1 } else { 0 };
        while left > 0 {
            left -= 1;
            index = if index < self.groups.len() { index } else { 0 };
            let Some(group) = self.groups.get_mut(index) else { break };
            let id = group.id;
            let key = GroupKey { attachment: self.identity.attachment, group: id };
            match group.step(key, &mut self.dma, service) {
                Ok(moved) => {
                    worked |= moved;
                    index += 1;
                }
                Err(error) => events.extend(self.close_corrupt(id, error, service)),
            }
        }
        // A link that completes what it is given at once has brought something by now: requests, or who sleeps.
        worked | self.take_completions(service, events).brought
    }

    /// Sends what the service has for one group, without a look at the others. `true` if there was anything to do: then rings that
    /// were ready for sleep may not be so any more.
    pub fn deliver(
        &mut self,
        group: GroupId,
        service: &mut dyn CardService,
        events: &mut Vec<CardEvent>,
    ) -> bool {
        self.tell_proof(service);
        let Ok(index) = self.groups.binary_search_by_key(&group, |group| group.id) else { return false };
        let key = GroupKey { attachment: self.identity.attachment, group };
        let submitted = match self.groups[index].deliver(key, &mut self.dma, service) {
            Ok(submitted) => submitted,
            Err(error) => {
                events.extend(self.close_corrupt(group, error, service));
                true
            }
        };
        let taken = self.take_completions(service, events);
        // A transfer whose end was to wake the card has ended here, perhaps, and wakes nobody.
        submitted | (taken.any && !is_planted(Bug::EndUnsaid))
    }

    /// Gives finished transfers to their groups.
    fn take_completions(&mut self, service: &mut dyn CardService, events: &mut Vec<CardEvent>) -> Taken {
        let mut taken = Taken::default();
        while let Some(completion) = self.dma.poll() {
            taken.any = true;
            let id = CardGroup::of_token(completion.token);
            let key = GroupKey { attachment: self.identity.attachment, group: id };
            // Transfers of a group that was closed meanwhile have nobody to go to.
            let Ok(index) = self.groups.binary_search_by_key(&id, |group| group.id) else { continue };
            match self.groups[index].complete(key, completion, &mut self.dma, service) {
                Ok(brought) => taken.brought |= brought,
                Err(error) => events.extend(self.close_corrupt(id, error, service)),
            }
        }
        taken
    }

    /// Gets every ring ready for the card to sleep.
    pub fn arm(&mut self, service: &mut dyn CardService, events: &mut Vec<CardEvent>) -> Armed {
        self.tell_proof(service);
        if self.arm_groups(service, events) == Armed::Yes {
            return Armed::Yes;
        }
        // The look that must follow the ticket may be complete already; what it brought is served first.
        let taken = self.take_completions(service, events);
        if taken.brought { Armed::NotYet } else { self.arm_groups(service, events) }
    }

    fn arm_groups(&mut self, service: &mut dyn CardService, events: &mut Vec<CardEvent>) -> Armed {
        let mut all = if self.rung { Armed::NotYet } else { Armed::Yes };
        let mut index = 0;
        while index < self.groups.len() {
            match self.groups[index].arm(&mut self.dma) {
                Ok(armed) => {
                    all = if armed == Armed::Yes { all } else { Armed::NotYet };
                    index += 1;
                }
                Err(error) => {
                    let id = self.groups[index].id;
                    events.extend(self.close_corrupt(id, error, service));
                }
            }
        }
        all
    }

    /// Whether transfers are under way whose completion will wake the card: an answer of the agent, or
    /// [`CardAttachment::next_due`].
    pub fn is_waiting(&self) -> bool {
        self.dma.is_waiting()
    }

    /// The host rang: every ring is looked at again, with the next [`CardAttachment::poll`].
    pub fn wake(&mut self) {
        self.rung = true;
    }

    /// Bells to be heard now, on links where the card reaches the sleepers itself.
    pub fn take_wakes(&mut self, now: Instant) -> impl Iterator<Item = Wake> {
        self.dma.take_wakes(now)
    }

    /// When something falls due that no descriptor announces.
    pub fn next_due(&self) -> Option<Instant> {
        self.dma.next_due()
    }

    /// Frames to be sent, in order; the driver removes what it has sent. Fails if the host never reads them.
    pub fn outgoing(&mut self) -> Result<&mut Vec<u8>, ProtocolError> {
        if self.connected {
            self.dma.frames().into_iter().for_each(|frames: &mut FrameDma| frames.take_frames(&mut self.out));
        }
        if self.out.len() > OUT_MAX { Err(ProtocolError::Overflow) } else { Ok(&mut self.out) }
    }

    /// The connection broke (`tcp` only): what was on its way is sent again after [`CardAttachment::resume`].
    pub fn disconnected(&mut self) {
        self.connected = false;
        self.out.clear();
        self.proof.is_missing = true;
    }

    /// Another host attaches, which may be the next life of this one. On one machine the kernel tells when a process ends,
    /// before another one can take its place; a connection may stay for long after its host has died. So what this host
    /// asked for waits until it has answered a question that was asked after this. (Without a group it has asked for nothing; it is
    /// asked all the same, so that its end is noticed.)
    ///
    /// There is one question at a time. Were each attachment a question of its own, then who attaches again and again would keep a
    /// host from ever having answered the last one.
    pub fn doubt(&mut self) {
        if self.identity.kind != LinkKind::Tcp || !self.connected {
            return;
        }
        if self.proof.is_missing {
            self.proof.is_late = true;
        } else {
            self.ask();
        }
    }

    /// The nonce of the question that the host has not answered, if there is one on its way.
    pub fn asked(&self) -> Option<u64> {
        (self.connected && self.proof.is_missing).then_some(self.proof.asked)
    }

    /// The nonce of the last question that it answered; 0 if there is none.
    pub fn answered(&self) -> u64 {
        self.proof.answered
    }

    fn ask(&mut self) {
        self.proof.asked += 1;
        (self.proof.is_late, self.proof.is_missing) = (false, true);
        Frame::Ping { nonce: self.proof.asked }.encode(&mut self.out);
    }

    fn hear_answer(&mut self, nonce: u64) {
        if self.asked() != Some(nonce) {
            return;
        }
        self.proof.answered = nonce;
        if self.proof.is_late {
            self.ask();
        } else {
            self.proof.is_missing = false;
        }
    }

    fn tell_proof(&mut self, service: &mut dyn CardService) {
        let is_suspended = self.proof.is_missing && !self.groups.is_empty();
        if self.proof.is_told != is_suspended {
            self.proof.is_told = is_suspended;
            service.suspended(self.identity.attachment, is_suspended);
        }
    }

    /// Whether a host may go on with this attachment.
    pub fn may_resume(&self, resume: &Resume) -> bool {
        resume.attachment == self.identity.attachment
            && resume.secret == self.identity.secret
            && self.identity.secret != 0
            && resume.card_incarnation == self.identity.card_incarnation
            && self.identity.kind == LinkKind::Tcp
            && self.sequencer.may_resume(resume.received)
    }

    /// The host is back: welcomes it, sends again what it lacks, and repeats unanswered transfers.
    pub fn resume(&mut self, received: u64) -> Result<(), ProtocolError> {
        self.out.clear();
        self.connected = true;
        self.welcome(true);
        let again = self.sequencer.resume(received).map_err(|_| ProtocolError::Count)?;
        for frame in again {
            self.out.extend_from_slice(frame);
        }
        if let Some(frames) = self.dma.frames() {
            frames.replay();
        }
        // What it said to come back may be older than the next life of it that came meanwhile.
        self.ask();
        // Doorbells and bells may have been lost with the connection.
        self.groups.iter_mut().for_each(CardGroup::link_restored);
        self.wake();
        Ok(())
    }

    /// The end: transfers fail, groups are closed.
    pub fn shut_down(&mut self, service: &mut dyn CardService) {
        self.dma.shut_down();
        for group in self.groups.drain(..) {
            service.closed(GroupKey { attachment: self.identity.attachment, group: group.id });
        }
        // Nothing is left that the service would have to remember.
        self.proof.is_missing = false;
        self.tell_proof(service);
        self.out.clear();
    }

    /// Tells the host that the card leaves it.
    pub fn say_goodbye(&mut self, code: u32, text: &str) {
        Frame::Goodbye { code, text }.encode(&mut self.out);
    }

    fn welcome(&mut self, resumed: bool) {
        let welcome = Frame::Welcome(Welcome {
            pollers: self.identity.card_pollers,
            resumed,
            card_incarnation: self.identity.card_incarnation,
            attachment: self.identity.attachment,
            resume_secret: self.identity.secret,
            received: self.sequencer.received(),
            transfer_max: self.dma.largest_transfer() as u64,
            kind: self.identity.kind,
        });
        welcome.encode(&mut self.out);
    }

    /// Answers to what the host asked are always kept; a host that asks on without acknowledging them is dropped.
    fn send_sequenced(&mut self, frame: &Frame<'_>) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        if self.connected {
            self.out.extend_from_slice(&bytes);
        }
        self.sequencer.keep(bytes);
    }

    fn close_corrupt(
        &mut self,
        group: GroupId,
        error: RingError,
        service: &mut dyn CardService,
    ) -> Option<CardEvent> {
        let text = error.to_string();
        tracing::warn!(attachment = self.identity.attachment.0, group = group.0, "group closed: {text}");
        self.close_group(group, GroupClosedReason::Corrupt, &text, service)
    }

    fn close_group(
        &mut self,
        group: GroupId,
        reason: GroupClosedReason,
        text: &str,
        service: &mut dyn CardService,
    ) -> Option<CardEvent> {
        let index = self.groups.binary_search_by_key(&group, |group| group.id).ok()?;
        let closed = self.groups.remove(index);
        self.dma.unregister(closed.region);
        service.closed(GroupKey { attachment: self.identity.attachment, group });
        self.send_sequenced(&Frame::GroupClosed { group, reason: reason as u32, text });
        let region_len = closed.region_len;
        self.closed.push(closed);
        Some(CardEvent::GroupClosed { group, region_len, reason })
    }
}
