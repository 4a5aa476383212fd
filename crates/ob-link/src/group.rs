//! One group at the card: its two rings and what they belong to.

use ob_core::{Dma, DmaCompletion, Doorbell, GroupId, RegionId, Token};
use ob_memory::ArenaSpan;
use ob_ring::{Armed, CardReceiver, CardSender, CardService, GroupKey, Received, RingError};
use ob_wire_link::ring::RingSpec;

/// Why a card does not open a group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupRefusal {
    /// The capacity cannot be.
    #[error("{0}")]
    Capacity(String),
    /// The budget of memory or groups is used up.
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

/// Tokens of a group: its id, then which ring and which transfer.
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
}

impl CardGroup {
    pub(crate) fn new(id: GroupId, region_len: u64, request: RingSpec, response: RingSpec) -> Self {
        let base = u64::from(id.0) << TOKEN_BITS;
        Self {
            id,
            region: request.region,
            region_len,
            receiver: CardReceiver::new(request, Token(base)),
            sender: CardSender::new(response, Token(base | TOKEN_SENDER)),
            arming: false,
        }
    }

    /// The memory that requests are fetched into, and the memory that responses are sent from.
    pub(crate) fn arenas(&self) -> [ArenaSpan; 2] {
        [self.receiver.arena(), self.sender.arena()]
    }

    /// Which group a completion belongs to.
    pub(crate) fn of_token(token: Token) -> GroupId {
        GroupId((token.0 >> TOKEN_BITS) as u32)
    }

    /// Takes a finished transfer; `true` if it brought requests.
    pub(crate) fn complete<D: Dma + Doorbell>(
        &mut self,
        key: GroupKey,
        completion: DmaCompletion,
        dma: &mut D,
        service: &mut dyn CardService,
    ) -> Result<bool, RingError> {
        let mut worked = false;
        if completion.token.0 & TOKEN_SENDER != 0 {
            self.sender.complete(completion)?;
        } else if let Received::Batch(batch) = self.receiver.complete(dma, completion)? {
            service.requests(key, batch, &mut self.sender);
            self.arming = false;
            worked = true;
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
        service.responses(key, &mut self.sender);
        let before = self.sender.sent();
        self.sender.step(dma)?;
        Ok(self.sender.sent() != before)
    }

    pub(crate) fn arm<D: Dma + Doorbell>(&mut self, dma: &mut D) -> Result<Armed, RingError> {
        self.arming = true;
        let receiver = self.receiver.arm(dma)?;
        self.sender.step(dma)?;
        self.ring_bells(dma)?;
        Ok(if receiver == Armed::Yes { self.sender.arm() } else { Armed::NotYet })
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
