//! One group with both of its halves, for the tests in this folder.

#![allow(dead_code)] // Each test program uses a part of it.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ob_core::{Dma, DmaCompletion, RegionId, Token};
use ob_memory::Region;
use ob_ring::{
    Armed, Batch, CardBell, CardReceiver, CardSender, Closed, HostReceiver, HostSender, LocalDma, Message,
    MessageRef, Outgoing, PushError, Received,
};
use ob_wire_link::ring::{RingSpec, Shape};

pub(crate) const REGION: RegionId = RegionId(0);
const REQUEST: u64 = 0;
const RESPONSE: u64 = 4;

/// How long a wake-up may take before it counts as lost. Miri's clock is virtual and runs fast.
const PATIENCE: Duration = Duration::from_secs(if cfg!(miri) { 100_000 } else { 30 });

/// A count that threads sleep on, as they would with a futex.
#[derive(Default)]
pub(crate) struct Signal {
    count: Mutex<u64>,
    changed: Condvar,
}

impl Signal {
    pub(crate) fn raise(&self) {
        *self.lock() += 1;
        self.changed.notify_all();
    }

    pub(crate) fn count(&self) -> u64 {
        *self.lock()
    }

    /// A thread that failed has left the count as good as it was.
    fn lock(&self) -> MutexGuard<'_, u64> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps while `asleep` holds; it is asked again whenever the signal is raised.
    pub(crate) fn wait_while(&self, who: &str, asleep: impl Fn(u64) -> bool) {
        let waited = self.changed.wait_timeout_while(self.lock(), PATIENCE, |count| asleep(*count));
        let timed_out = waited.unwrap_or_else(PoisonError::into_inner).1.timed_out();
        assert!(!timed_out, "the {who} was not woken");
    }
}

impl CardBell for Signal {
    fn ring(&self) {
        self.raise();
    }
}

/// A group in memory, and what its halves are woken with.
pub(crate) struct Group {
    pub(crate) region: Region,
    pub(crate) request: RingSpec,
    pub(crate) response: RingSpec,
    pub(crate) closed: Closed,
    pub(crate) doorbell: Arc<Signal>,
    pub(crate) host_bell: Arc<Signal>,
}

impl Group {
    pub(crate) fn new(request: u32, response: u32, transfer_max: u32) -> Self {
        let (request, response, len) = RingSpec::group(REGION, request, response, transfer_max).unwrap();
        Self {
            region: Region::on_heap(len as usize),
            request,
            response,
            closed: Closed::default(),
            doorbell: Arc::default(),
            host_bell: Arc::default(),
        }
    }

    pub(crate) fn sender(&self) -> HostSender {
        HostSender::new(self.region.clone(), self.request, self.closed.clone(), self.doorbell.clone())
    }

    pub(crate) fn receiver(&self) -> HostReceiver {
        HostReceiver::new(self.region.clone(), self.response, self.closed.clone(), self.doorbell.clone())
    }

    pub(crate) fn card(&self, depth: usize, transfer_max: u32) -> Card {
        let mut dma = LocalDma::new(depth, transfer_max as usize);
        dma.register(REGION, self.region.clone());
        Card {
            dma,
            receiver: CardReceiver::new(self.request, Token(REQUEST)),
            sender: CardSender::new(self.response, Token(RESPONSE)),
            host_bell: self.host_bell.clone(),
        }
    }
}

/// The card's half.
pub(crate) struct Card {
    pub(crate) dma: LocalDma,
    pub(crate) receiver: CardReceiver,
    pub(crate) sender: CardSender,
    host_bell: Arc<Signal>,
}

impl Card {
    /// Handles the oldest completion, if there is one.
    pub(crate) fn complete_one(&mut self) -> Option<Received> {
        let completion = self.dma.poll()?;
        let received = self.complete(completion);
        self.ring();
        Some(received)
    }

    fn complete(&mut self, completion: DmaCompletion) -> Received {
        if completion.token.0 & !3 == REQUEST {
            self.receiver.complete(&mut self.dma, completion).unwrap()
        } else {
            self.sender.complete(completion).unwrap();
            Received::Nothing
        }
    }

    /// Handles every completion; the requests that came.
    pub(crate) fn drain(&mut self) -> Vec<Batch> {
        let mut batches = Vec::new();
        while let Some(received) = self.complete_one() {
            if let Received::Batch(batch) = received {
                batches.push(batch);
            }
        }
        batches
    }

    pub(crate) fn ring(&mut self) {
        for bell in [self.receiver.bell_due(), self.sender.bell_due()].into_iter().flatten() {
            self.dma.bump_bell(bell).unwrap();
            self.host_bell.raise();
        }
    }

    /// Wakes up, and steps until both ends would let their reactor sleep; the requests that came.
    pub(crate) fn run_until_armed(&mut self) -> Vec<Batch> {
        let mut batches = Vec::new();
        self.receiver.wake();
        self.sender.wake();
        for _ in 0..10_000 {
            self.receiver.step(&mut self.dma).unwrap();
            self.sender.step(&mut self.dma).unwrap();
            self.ring();
            let came = self.drain();
            let quiet = came.is_empty();
            batches.extend(came);
            let armed = (self.receiver.arm(&mut self.dma).unwrap(), self.sender.arm());
            batches.extend(self.drain());
            if quiet && armed == (Armed::Yes, Armed::Yes) {
                return batches;
            }
        }
        panic!("the card never comes to rest");
    }
}

/// A message as a test knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) inline: Vec<u8>,
    pub(crate) payload: Option<(Vec<u8>, u32)>,
}

impl Content {
    pub(crate) fn shape(&self) -> Shape {
        let inline_len = u16::try_from(self.inline.len()).unwrap();
        let payload =
            self.payload.as_ref().map(|(bytes, align)| (u32::try_from(bytes.len()).unwrap(), *align));
        Shape { inline_len, payload }
    }

    pub(crate) fn push(&self, sender: &HostSender) -> Result<(), PushError> {
        let Some((bytes, align)) = &self.payload else {
            return sender.push(Outgoing { inline: &self.inline, payload: None });
        };
        // In pieces, one of them empty: they end up side by side.
        let (front, back) = bytes.split_at(bytes.len() / 3);
        let pieces: [&[u8]; 3] = [front, &[], back];
        sender.push(Outgoing { inline: &self.inline, payload: Some((&pieces, *align)) })
    }

    /// Checks a request that the card looks at in place.
    pub(crate) fn check_ref(&self, message: MessageRef<'_>) {
        assert_eq!(message.inline, self.inline);
        assert_eq!(message.payload, self.payload.as_ref().map(|(bytes, _)| bytes.as_slice()));
    }

    /// Checks a request that the card took out, and where its payload lies.
    pub(crate) fn check_message(&self, message: &Message) {
        assert_eq!(&*message.inline, self.inline.as_slice());
        let bytes = message.payload.as_deref();
        assert_eq!(bytes, self.payload.as_ref().map(|(bytes, _)| bytes.as_slice()));
        if let (Some(payload), Some((_, align))) = (&message.payload, &self.payload) {
            check_alignment(payload, *align);
        }
    }

    /// Checks a response that a host thread claimed.
    pub(crate) fn check_claimed(&self, claimed: &ob_ring::Claimed<'_>) {
        let mut inline = vec![0xee; self.inline.len() + 3];
        assert_eq!(claimed.inline_len(), self.inline.len());
        assert_eq!(claimed.inline(&mut inline), self.inline.len());
        assert_eq!(inline[..self.inline.len()], self.inline);
        let expected = self.payload.as_ref().map_or(&[][..], |(bytes, _)| bytes);
        assert_eq!(claimed.payload_len(), expected.len());
        let (mut bytes, cut) = (vec![0xee; expected.len()], expected.len() / 2);
        assert_eq!(claimed.payload(0, &mut bytes[..cut]), cut);
        assert_eq!(claimed.payload(cut, &mut bytes[cut..]), expected.len() - cut);
        assert_eq!(bytes, expected);
        assert_eq!(claimed.payload(expected.len(), &mut [0]), 0);
    }
}

/// A payload is aligned in its arena and, because arenas lie on pages, in memory.
pub(crate) fn check_alignment(payload: &ob_memory::Slice, align: u32) {
    assert!(payload.start().is_multiple_of(align as usize), "{payload:?} is not aligned to {align}");
    assert!(payload.is_empty() || payload.as_ptr().addr().is_multiple_of(align as usize));
}

/// Bytes that differ from one message to the next and from one offset to the next.
pub(crate) fn filler(seed: u64, len: usize) -> Vec<u8> {
    let byte = |index: usize| (seed.wrapping_mul(0x9e37_79b9).wrapping_add(index as u64 * 31) >> 3) as u8;
    // Miri takes its time for each byte that is computed, and none for those that are copied.
    let period = if cfg!(miri) { 61 } else { len.max(1) };
    let mut bytes = (0..period).map(byte).collect::<Vec<_>>().repeat(len.div_ceil(period));
    bytes.truncate(len);
    bytes
}

/// A small generator, so that a test is the same every time.
#[derive(Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit.max(1)
    }
}
