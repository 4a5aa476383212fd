//! The host's half: threads that push, threads that take, each a few steps at a time.
//!
//! ```text
//!   Ready ── full / empty ──▶ Register ──▶ LastLook ──▶ Sleep ──▶ Asleep
//!     ▲                                       │ room      │ the bell rang since
//!     └───────────────────────────────────────┴───────────┴──────── bell ◀──┘
//! ```
//!
//! Each arrow is an event of its own, so that anything can happen in between, as to a thread that the kernel put
//! aside.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ob_memory::Region;
use ob_ring::{CardBell, Claimed, Closed, HostReceiver, HostSender, Outgoing, PushError};
use ob_wire_link::ring::RingSpec;

use super::content::{Content, Name, RESPONSE_LEN, Response};

/// Counts the rings of the card's doorbell; the run looks after each step of a host thread.
#[derive(Default)]
pub(super) struct CountedDoorbell(AtomicU64);

impl CardBell for CountedDoorbell {
    fn ring(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl CountedDoorbell {
    /// Whether it rang since the last call.
    pub(super) fn take(&self) -> bool {
        self.0.swap(0, Ordering::Relaxed) > 0
    }
}

/// Which of the two rings a thread or a bell belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Request,
    Response,
}

/// What a host thread does next. Tickets are what the bell showed at registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Ready,
    Register,
    LastLook { ticket: u32 },
    Sleep { ticket: u32 },
    Asleep { ticket: u32 },
    Ended,
}

/// Host threads of one life of a group.
pub(super) struct Host {
    pub(super) sender: HostSender,
    pub(super) receiver: HostReceiver,
    pub(super) closed: Closed,
    pub(super) doorbell: Arc<CountedDoorbell>,
    /// Messages that each producer still has to push.
    pub(super) quota: Vec<u64>,
    /// Producers first, then consumers.
    pub(super) threads: Vec<Step>,
    pub(super) message_max: u32,
}

impl Host {
    pub(super) fn new(
        region: &Region,
        (request, response): (RingSpec, RingSpec),
        quota: Vec<u64>,
        consumers: usize,
    ) -> Self {
        let (closed, doorbell) = (Closed::default(), Arc::new(CountedDoorbell::default()));
        let threads = vec![Step::Ready; quota.len() + consumers];
        Self {
            sender: HostSender::new(region.clone(), request, closed.clone(), doorbell.clone()),
            receiver: HostReceiver::new(region.clone(), response, closed.clone(), doorbell.clone()),
            closed,
            doorbell,
            quota,
            threads,
            message_max: request.message_max().min(response.message_max()),
        }
    }

    pub(super) fn side(&self, thread: usize) -> Side {
        if thread < self.quota.len() { Side::Request } else { Side::Response }
    }

    pub(super) fn push(&self, name: Name) -> Result<(), PushError> {
        let content = Content::of(name, self.message_max);
        let Some((bytes, align)) = &content.payload else {
            return self.sender.push(Outgoing { inline: &content.inline, payload: None });
        };
        let (front, back) = bytes.split_at(bytes.len() / 3);
        let pieces: [&[u8]; 2] = [front, back];
        self.sender.push(Outgoing { inline: &content.inline, payload: Some((&pieces, *align)) })
    }

    pub(super) fn register(&self, side: Side) -> u32 {
        match side {
            Side::Request => self.sender.register_sleeper().bell,
            Side::Response => self.receiver.register_sleeper().bell,
        }
    }

    fn bell_now(&self, side: Side) -> u32 {
        match side {
            Side::Request => self.sender.bell_now(),
            Side::Response => self.receiver.bell_now(),
        }
    }

    /// Goes to sleep as a futex does: not at all if the word is another one by now.
    pub(super) fn sleep(&mut self, thread: usize, ticket: u32) -> Step {
        let rang = self.bell_now(self.side(thread)) != ticket || self.closed.is_closed();
        self.threads[thread] = if rang { Step::Ready } else { Step::Asleep { ticket } };
        self.threads[thread]
    }

    /// Wakes all who sleep on a bell; which threads that were.
    pub(super) fn wake(&mut self, side: Side) -> Vec<usize> {
        let sleeps = |thread: &usize| {
            self.side(*thread) == side && matches!(self.threads[*thread], Step::Asleep { .. })
        };
        let woken: Vec<usize> = (0..self.threads.len()).filter(sleeps).collect();
        for thread in &woken {
            self.threads[*thread] = Step::Ready;
        }
        woken
    }

    pub(super) fn has_ended(&self) -> bool {
        self.threads.iter().all(|step| *step == Step::Ended)
    }
}

/// What a response says, and whether its bytes are the ones that belong to it.
pub(super) fn read_response(claimed: &Claimed<'_>, message_max: u32) -> Option<(Response, bool)> {
    let mut inline = [0; RESPONSE_LEN];
    let read = claimed.inline(&mut inline);
    let response = Response::decode(&inline[..read])?;
    let content = Content::of(response.name, message_max);
    let expected = content.payload_bytes().unwrap_or(&[]);
    let mut payload = vec![0; claimed.payload_len()];
    let copied = claimed.payload(0, &mut payload);
    claimed.check().ok()?;
    let whole = claimed.inline_len() == RESPONSE_LEN && copied == expected.len() && payload == expected;
    Some((response, whole))
}
