//! The link between the halves of a tier, for one life of a port: the card's attachment over a simulated engine, and the host's ends of the
//! rings.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ob_core::{
    AttachmentId, Bell, Dma, DmaCompletion, DmaCounts, DmaError, DmaOp, Doorbell, Incarnation, Instant,
    Refused, RegionId, Token,
};
use ob_link::{CardAttachment, CardDma, CardEngine, CardEvent, Identity, LinkKind, Wake};
use ob_memory::Region;
use ob_ring::{Armed, CardBell, CardService, Closed, GroupKey, HostAreas, HostReceiver, HostSender};
use ob_sim::{DmaPlan, Failure, Rng, SimClock, SimDma, Trace};
use ob_split::host::RingEnds;
use ob_split::ledger::SLOT_LEN;
use ob_split::wire::SPLIT_SERVICE;
use ob_wire_link::group::GroupSizes;

/// Bytes of both areas: a few slots, which is fewer than is asked for at a time.
pub(super) const AREA: u64 = 4 * SLOT_LEN;

/// How long the card takes to hear a bell.
const HEARD_WITHIN: std::ops::Range<Duration> = Duration::from_nanos(100)..Duration::from_micros(20);
/// Rounds of the link's loop in one turn of the card.
const ROUNDS_MAX: usize = 8;

/// Nobody sleeps in a simulation.
pub(super) type Ends = RingEnds<NoSleep>;

/// The host's thread does not sleep: the scenario does not turn it.
pub(super) struct NoSleep;

impl ob_split::host::Sleeper for NoSleep {
    fn sleep(&self, _: &[(&std::sync::atomic::AtomicU64, u32)], _: Option<Duration>) {}
}

/// An engine that both the attachment and the scenario reach: host memory changes in its own time.
#[derive(Clone)]
struct SharedDma(Rc<RefCell<SimDma>>);

impl Dma for SharedDma {
    fn largest_transfer(&self) -> usize {
        self.0.borrow().largest_transfer()
    }

    fn submit(&mut self, token: Token, op: DmaOp) -> Result<(), Refused<DmaOp>> {
        self.0.borrow_mut().submit(token, op)
    }

    fn poll(&mut self) -> Option<DmaCompletion> {
        self.0.borrow_mut().poll()
    }

    fn next_due(&self) -> Option<Instant> {
        self.0.borrow().next_due()
    }

    fn counts(&self) -> DmaCounts {
        self.0.borrow().counts()
    }
}

impl Doorbell for SharedDma {
    fn ring(&mut self, bell: Bell) -> Result<(), DmaError> {
        self.0.borrow_mut().ring(bell)
    }
}

impl CardEngine for SharedDma {
    fn register(&mut self, id: RegionId, region: Region) {
        self.0.borrow_mut().register(id, region);
    }

    fn unregister(&mut self, id: RegionId) {
        self.0.borrow_mut().unregister(id);
    }

    fn shut_down(&mut self) {
        self.0.borrow_mut().fail();
    }

    fn is_waiting(&self) -> bool {
        !self.0.borrow().is_idle()
    }

    fn next_wake(&mut self, now: Instant) -> Option<Wake> {
        self.0.borrow_mut().next_wake(now)
    }
}

/// The card's doorbell.
#[derive(Default)]
struct CardDoorbell(AtomicBool);

impl CardBell for CardDoorbell {
    fn ring(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The host's end of a port's group.
pub(super) struct HostEnd {
    pub(super) sender: HostSender,
    pub(super) receiver: HostReceiver,
    pub(super) closed: Closed,
    areas: HostAreas,
}

impl HostEnd {
    pub(super) fn ends(&self) -> Ends {
        RingEnds::new(self.sender.clone(), self.receiver.clone(), Some(self.areas.clone()), NoSleep)
    }
}

/// The card's end of it.
pub(super) struct CardEnd {
    attachment: CardAttachment<SimClock>,
    dma: SharedDma,
    bell: Arc<CardDoorbell>,
    /// When the card hears that the host has rung.
    heard_at: Option<Instant>,
    rng: Rng,
    events: Vec<CardEvent>,
    groups: Vec<GroupKey>,
}

/// Attaches a host to the card, and opens the group of its port.
pub(super) fn attach(
    service: &mut dyn CardService,
    attachment: AttachmentId,
    incarnations: [Incarnation; 2],
    (ring_len, (card_area, host_area)): (u32, (u64, u64)),
    mut rng: Rng,
    trace: &Trace,
) -> Result<(CardEnd, HostEnd), Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::new(format!("a host is not attached: {error}"));
    let plan = DmaPlan { depth: 64, ..DmaPlan::default() };
    let dma = SharedDma(Rc::new(RefCell::new(SimDma::new(plan, rng.fork("dma"), trace.clone()))));
    let identity = Identity {
        attachment,
        secret: rng.word() | 1,
        card_incarnation: incarnations[0],
        host_incarnation: incarnations[1],
        name: "tier".to_owned(),
        kind: LinkKind::Model,
        card_pollers: 1,
        host_pollers: 0,
    };
    let mut attachment = CardAttachment::new(identity, CardDma::own(Box::new(dma.clone())));
    let sizes = GroupSizes { request: ring_len, response: ring_len, card_area, host_area };
    let spec = attachment.plan_group(sizes).map_err(|error| failed(&error))?;
    let region = Region::on_heap(spec.region_len as usize);
    let opened = attachment.open_group(1, SPLIT_SERVICE, &spec, Some(region.clone()), service);
    opened.map_err(|error| failed(&error))?;
    let (closed, bell) = (Closed::default(), Arc::<CardDoorbell>::default());
    let host = HostEnd {
        sender: HostSender::new(region.clone(), spec.request, closed.clone(), bell.clone()),
        receiver: HostReceiver::new(region.clone(), spec.response, closed.clone(), bell.clone()),
        areas: HostAreas::new(region, &spec, closed.clone()).ok_or_else(|| failed(&"no areas"))?,
        closed,
    };
    let (events, groups) = (Vec::new(), Vec::new());
    Ok((CardEnd { attachment, dma, bell, heard_at: None, rng, events, groups }, host))
}

impl CardEnd {
    /// Does to host memory what is due by now, before anybody looks at it.
    pub(super) fn advance(&self, now: Instant) {
        self.dma.0.borrow_mut().advance(now);
    }

    /// The link's part of a turn of the card; whether anything moved.
    pub(super) fn turn(&mut self, now: Instant, service: &mut dyn CardService) -> Result<bool, Failure> {
        self.hear(now);
        let mut worked = false;
        for _ in 0..ROUNDS_MAX {
            if !self.attachment.poll(service, &mut self.events) {
                break;
            }
            worked = true;
        }
        self.attachment.take_wakes(now).for_each(drop);
        self.check()?;
        Ok(worked)
    }

    /// Sends what has come to the service from within the card.
    pub(super) fn follow(&mut self, service: &mut dyn CardService) -> Result<bool, Failure> {
        service.waiting(&mut self.groups);
        let mut worked = false;
        for key in self.groups.drain(..) {
            worked |= self.attachment.deliver(key.group, service, &mut self.events);
        }
        self.check()?;
        Ok(worked)
    }

    /// Gets the rings ready for the card to sleep; whether it may.
    pub(super) fn rest(&mut self, service: &mut dyn CardService) -> Result<bool, Failure> {
        let armed = self.attachment.arm(service, &mut self.events);
        self.check()?;
        Ok(armed == Armed::Yes || self.attachment.is_waiting())
    }

    fn hear(&mut self, now: Instant) {
        self.listen(now);
        if self.heard_at.is_some_and(|at| at <= now) {
            self.heard_at = None;
            self.attachment.wake();
        }
        if let Ok(out) = self.attachment.outgoing() {
            // Frames are for the host's agent, which nothing depends on here.
            out.clear();
        }
    }

    /// The host may have rung: the card hears it a little later.
    pub(super) fn listen(&mut self, now: Instant) {
        if self.bell.0.swap(false, Ordering::Relaxed) {
            let at = now + self.rng.skewed(HEARD_WITHIN);
            self.heard_at = Some(self.heard_at.map_or(at, |before| before.min(at)));
        }
    }

    /// No group is closed but by who has it.
    fn check(&mut self) -> Result<(), Failure> {
        match self.events.pop() {
            Some(event) => Err(Failure::new(format!("the card says of its host's group: {event:?}"))),
            None => Ok(()),
        }
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        [self.attachment.next_due(), self.heard_at].into_iter().flatten().min()
    }

    /// The host is gone, or the link.
    pub(super) fn end(mut self, service: &mut dyn CardService) {
        self.attachment.shut_down(service);
    }
}
