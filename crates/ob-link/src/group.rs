//! One group at the card: its two rings and what they belong to.

use ob_core::{Dma, DmaCompletion, Doorbell, GroupId, RegionId, Token};
use ob_memory::ArenaSpan;
use ob_ring::{Armed, CardReceiver, CardSender, CardService, GroupKey, Received, RingError};
use ob_wire_link::group::GroupSpec;

use crate::plant::{Bug, is_planted};

/// Why a card does not open a group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupRefusal {
    /// The capacity cannot be.
    #[error("{0}")]
    Capacity(String),
    /// The budget of memory or groups is used up, or the card's system has no more memory.
    #[error("{0}")]
    Budget(String),
    /// There is no such service, or it takes no more groups.
    #[error("{0}")]
    Service(String),
}

impl GroupRefusal {
    pub(crate) fn code(&self) -> u32 {
        match self {
            Self::Capacity(_) => 1,
            Self::Budget(_) => 2,
            Self::Service(_) => 3,
        }
    }

    pub(crate) fn from_code(code: u32, text: &str) -> Self {
        match code {
            1 => Self::Capacity(text.to_owned()),
            2 => Self::Budget(text.to_owned()),
            _ => Self::Service(text.to_owned()),
        }
    }
}

/// Why a group is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupClosedReason {
    /// The host asked for it.
    Asked = 1,
    /// The ring was corrupt.
    Corrupt = 2,
    /// The service ended it.
    Service = 3,
}

impl GroupClosedReason {
    pub(crate) fn from_code(code: u32) -> Self {
        match code {
            1 => Self::Asked,
            2 => Self::Corrupt,
            _ => Self::Service,
        }
    }
}

/// Tokens of a group: its id, then which ring and which transfer. (Bulk has its number above the id.)
const TOKEN_BITS: u32 = 3;
const TOKEN_SENDER: u64 = 4;

pub(crate) struct CardGroup {
    pub(crate) id: GroupId,
    pub(crate) region: RegionId,
    pub(crate) region_len: u64,
    receiver: CardReceiver,
    sender: CardSender,
    /// The card wants to sleep: from now on the request ring is only read on the way there, until it has something.
    /// (Read as usual, it would always have a transfer under way when it is asked to get ready.)
    arming: bool,
    /// A transfer has ended since the service found no room for a response: it is to try again before the card sleeps.
    room_came: bool,
}

impl CardGroup {
    /// The card's side of a group. Its memory is as large as the host wants the rings to be: a card that the system refuses it
    /// refuses the host.
    pub(crate) fn new(id: GroupId, spec: &GroupSpec) -> Result<Self, GroupRefusal> {
        let base = u64::from(id.0) << TOKEN_BITS;
        let refused = || GroupRefusal::Budget("the card gets no memory for rings of this size".to_owned());
        Ok(Self {
            id,
            region: spec.region(),
            region_len: spec.region_len,
            receiver: CardReceiver::of_group(spec, Token(base)).ok_or_else(refused)?,
            sender: CardSender::of_group(spec, Token(base | TOKEN_SENDER)).ok_or_else(refused)?,
            arming: false,
            room_came: false,
        })
    }

    /// The memory that requests are fetched into, and the memory that responses are sent from.
    pub(crate) fn arenas(&self) -> [ArenaSpan; 2] {
        [self.receiver.arena(), self.sender.arena()]
    }

    /// Which group a completion belongs to.
    pub(crate) fn of_token(token: Token) -> GroupId {
        GroupId((token.0 >> TOKEN_BITS) as u32)
    }

    /// Takes a finished transfer; `true` if it brought requests, or was bulk. What a look has found is fetched at once, and what
    /// the service answers at once is sent: a look itself waits for the next [`CardGroup::step`], so that producers have the
    /// pointers to themselves for a while.
    pub(crate) fn complete<D: Dma + Doorbell>(
        &mut self,
        key: GroupKey,
        completion: DmaCompletion,
        dma: &mut D,
        service: &mut dyn CardService,
    ) -> Result<bool, RingError> {
        let mut worked = false;
        if completion.token.0 & TOKEN_SENDER != 0 {
            self.room_came |= self.sender.wants_room() && !is_planted(Bug::RoomUnasked);
            if let Some(done) = self.sender.complete(completion)? {
                service.transferred(key, done, &mut self.sender);
                worked = true;
            }
        } else if let Received::Batch(batch) = self.receiver.complete(dma, completion)? {
            service.requests(key, batch, &mut self.sender);
            self.arming = false;
            worked = true;
            if self.sender.has_ready() {
                self.sender.step(dma)?;
            }
        } else if self.receiver.has_settled() {
            self.receiver.step(dma)?;
        }
        self.ring_bells(dma)?;
        Ok(worked)
    }

    /// Submits what can be submitted; `true` if responses went out. Those that wait for the link do not keep the card awake:
    /// whatever they wait for wakes it.
    pub(crate) fn step<D: Dma + Doorbell>(
        &mut self,
        key: GroupKey,
        dma: &mut D,
        service: &mut dyn CardService,
    ) -> Result<bool, RingError> {
        if self.arming {
            self.receiver.arm(dma)?;
        } else {
            self.receiver.step(dma)?;
        }
        let before = self.sender.sent();
        self.deliver(key, dma, service)?;
        Ok(self.sender.sent() != before)
    }

    /// Submits what the service has for this group, and looks for no requests; `true` if anything was submitted.
    pub(crate) fn deliver<D: Dma + Doorbell>(
        &mut self,
        key: GroupKey,
        dma: &mut D,
        service: &mut dyn CardService,
    ) -> Result<bool, RingError> {
        self.room_came = false;
        service.responses(key, &mut self.sender);
        self.sender.step(dma)
    }

    pub(crate) fn arm<D: Dma + Doorbell>(&mut self, dma: &mut D) -> Result<Armed, RingError> {
        self.arming = true;
        let receiver = self.receiver.arm(dma)?;
        self.sender.step(dma)?;
        self.ring_bells(dma)?;
        Ok(if receiver == Armed::Yes && !self.room_came { self.sender.arm() } else { Armed::NotYet })
    }

    /// The connection was cut and is back.
    pub(crate) fn link_restored(&mut self) {
        self.wake();
        self.receiver.link_restored();
        self.sender.link_restored();
    }

    pub(crate) fn wake(&mut self) {
        self.arming = false;
        self.receiver.wake();
        self.sender.wake();
    }

    fn ring_bells<D: Doorbell>(&mut self, dma: &mut D) -> Result<(), RingError> {
        for bell in [self.receiver.bell_due(), self.sender.bell_due()].into_iter().flatten() {
            dma.ring(bell)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ob_core::{AttachmentId, Bell, DmaCounts, DmaError, DmaOp, Refused, RefusedReason};
    use ob_memory::Region;
    use ob_ring::{Batch, LocalDma};
    use ob_wire_link::group::GroupSizes;

    use super::*;

    /// A link that takes nothing while it is busy.
    struct Link {
        inner: LocalDma,
        is_busy: bool,
    }

    impl Dma for Link {
        fn largest_transfer(&self) -> usize {
            self.inner.largest_transfer()
        }

        fn submit(&mut self, token: Token, op: DmaOp) -> Result<(), Refused<DmaOp>> {
            if self.is_busy {
                return Err(Refused { op, reason: RefusedReason::Busy });
            }
            self.inner.submit(token, op)
        }

        fn poll(&mut self) -> Option<DmaCompletion> {
            self.inner.poll()
        }

        fn counts(&self) -> DmaCounts {
            self.inner.counts()
        }
    }

    impl Doorbell for Link {
        fn ring(&mut self, _: Bell) -> Result<(), DmaError> {
            Ok(())
        }
    }

    /// Has one response to deliver.
    struct Once(bool);

    impl CardService for Once {
        fn open(&mut self, _: GroupKey, _: u32) -> Result<(), String> {
            Ok(())
        }

        fn requests(&mut self, _: GroupKey, _: Batch, _: &mut CardSender) {}

        fn responses(&mut self, _: GroupKey, responses: &mut CardSender) {
            if std::mem::take(&mut self.0) {
                responses.push(b"done").unwrap();
            }
        }

        fn closed(&mut self, _: GroupKey) {}

        fn channel(&mut self, _: AttachmentId, _: &[u8]) {}
    }

    #[test]
    fn a_response_that_waits_for_the_link_does_not_keep_the_card_awake() {
        let spec = GroupSpec::new(RegionId(1), GroupSizes::rings(4096, 4096), 1 << 20).unwrap();
        let mut inner = LocalDma::new(8, 1 << 20);
        inner.register(RegionId(1), Region::on_heap(spec.region_len as usize));
        let mut link = Link { inner, is_busy: true };
        let mut group = CardGroup::new(GroupId(1), &spec).unwrap();
        let key = GroupKey { attachment: AttachmentId(1), group: GroupId(1) };
        let mut service = Once(true);
        for _ in 0..3 {
            assert_eq!(group.step(key, &mut link, &mut service), Ok(false), "nothing moves");
        }
        link.is_busy = false;
        assert_eq!(group.step(key, &mut link, &mut service), Ok(true));
        assert_eq!(group.step(key, &mut link, &mut service), Ok(false));
    }
}
