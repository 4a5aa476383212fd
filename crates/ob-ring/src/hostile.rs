//! A host that means harm, as a program of bytes: [`run`] plays it against the card's two ends.
//!
//! Two groups share one link. One behaves, and must exchange its messages to the end whatever happens beside it.
//! The other is attacked: its memory changes between any two transfers of the card. Beside the card runs a second
//! reading of `docs/wire/ring.md` ([`check`]), written apart from the real one; what the card believes, refuses and
//! hands on must agree with it.
//!
//! A harness fails by panicking: that is what fuzzers and property tests look for.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ob_core::{Dma, DmaCompletion, DmaCounts, DmaOp, Refused, RegionId, Token};
use ob_memory::{Pool, Region};
use ob_wire_link::group::{GroupSizes, GroupSpec};
use ob_wire_link::ring::{Header, RingSpec, Shape, control};

use crate::{
    BULK_MAX, Batch, Bulk, BulkRefusal, CardBell, CardReceiver, CardSender, Closed, HostReceiver, HostSender,
    LocalDma, Outgoing, PushError, Received, Reservation, ReserveError, RingError,
};

#[path = "hostile_check.rs"]
pub mod check;
#[cfg(all(test, not(loom)))]
#[path = "hostile_tests.rs"]
mod tests;

use check::{Fetched, PointersOracle};

/// Bytes of a script that are played; more would only take longer.
const SCRIPT_MAX: usize = 4096;
/// Transfers that one call of the card may submit: its writes in flight, bulk with a bound before each, and a few words.
const TRANSFERS_A_CALL_MAX: usize = 96;
const TRANSFER_MAX: u32 = 3000;
const REQUEST_CAPACITY: u32 = 4096;
const RESPONSE_CAPACITY: u32 = 8192;
const AREA: u64 = 8192;

const GOOD: u64 = 0;
const ATTACKED: u64 = 8;
const RESPONSE: u64 = 4;
/// The low bits of bulk's tokens, and the bits that tell whose a transfer is.
const BULK: u64 = 3;
const OWNER: u64 = 12;

/// Plays one script. Panics if the card does anything it must not.
pub fn run(input: &[u8]) {
    let mut script = Script { bytes: &input[..input.len().min(SCRIPT_MAX)] };
    let mut world = World::new(2 + usize::from(script.byte() % 64));
    while !script.bytes.is_empty() {
        world.act(&mut script);
    }
    world.finish();
}

/// Numbers out of the input; zeros when it is used up.
struct Script<'a> {
    bytes: &'a [u8],
}

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.bytes.split_first().unwrap_or((&0, &[]));
        self.bytes = rest;
        *first
    }

    fn word(&mut self) -> u64 {
        (0..8).fold(0, |word, _| word << 8 | u64::from(self.byte()))
    }

    /// A value near `now`, at a limit, or anything.
    fn value(&mut self, now: u64) -> u64 {
        let unit = u64::from(self.byte()) * 8;
        match self.byte() % 12 {
            0 => now.wrapping_add(8),
            1 => now.wrapping_sub(8),
            2 => now.wrapping_add(unit),
            3 => now.wrapping_add(u64::from(REQUEST_CAPACITY)),
            4 => now.wrapping_add(u64::from(REQUEST_CAPACITY) + 8),
            5 => now ^ 1 << (unit / 8 % 64),
            6 => u64::MAX,
            7 => u64::MAX - 7,
            8 => now.wrapping_add(4),
            9 => unit,
            10 => 0,
            _ => self.word(),
        }
    }
}

/// A host that never wakes anybody: cards in this harness do not sleep.
struct NoBell;

impl CardBell for NoBell {
    fn ring(&self) {}
}

/// A write of the attacker, due after some transfers of the card.
struct Planned {
    transfers: u8,
    offset: usize,
    value: u64,
}

/// The link, with the attacker between its transfers.
struct HostileDma {
    inner: LocalDma,
    region: Region,
    planned: Vec<Planned>,
    /// Transfers submitted in the call under way.
    transfers: usize,
    /// Completions to be polled.
    waiting: usize,
    /// The attacked group's response ring.
    response: RingSpec,
    /// Bytes of responses submitted to it.
    responded: u64,
}

impl HostileDma {
    /// The attacker writes now what is due now.
    fn attack(&mut self) {
        let region = &self.region;
        self.planned.retain_mut(|planned| {
            if planned.transfers == 0 {
                region.store(planned.offset, planned.value, Ordering::Relaxed);
                return false;
            }
            planned.transfers -= 1;
            true
        });
    }
}

impl Dma for HostileDma {
    fn largest_transfer(&self) -> usize {
        self.inner.largest_transfer()
    }

    fn submit(&mut self, token: Token, op: DmaOp) -> Result<(), Refused<DmaOp>> {
        self.transfers += 1;
        assert!(self.transfers <= TRANSFERS_A_CALL_MAX, "one call of the card goes on and on");
        let data = match &op {
            _ if token.0 & BULK == BULK => 0,
            DmaOp::Write { from, .. } if token.0 & !3 == ATTACKED + RESPONSE => from.len() as u64,
            // The end of the ring is passed with one word, outside of the ring's own words.
            DmaOp::WriteWord { to, value } if token.0 & !3 == ATTACKED + RESPONSE => {
                let is_data = (self.response.at(0)..).contains(&to.offset);
                let header = Header::decode(*value, u64::MAX).ok().filter(|_| is_data);
                header.map_or(0, |header| u64::from(header.span()))
            }
            _ => 0,
        };
        self.inner.submit(token, op)?;
        self.responded += data;
        self.waiting += 1;
        self.attack();
        Ok(())
    }

    fn poll(&mut self) -> Option<DmaCompletion> {
        let completion = self.inner.poll()?;
        self.waiting -= 1;
        Some(completion)
    }

    fn counts(&self) -> DmaCounts {
        self.inner.counts()
    }
}

/// Memory and description of one group.
struct Memory {
    region: Region,
    group: GroupSpec,
    request: RingSpec,
    response: RingSpec,
}

impl Memory {
    fn new(id: RegionId) -> Self {
        let sizes = GroupSizes {
            request: REQUEST_CAPACITY,
            response: RESPONSE_CAPACITY,
            card_area: AREA,
            host_area: AREA,
        };
        let group = GroupSpec::new(id, sizes, TRANSFER_MAX);
        let Ok(group) = group else { panic!("the harness asks for a legal group") };
        let region = Region::on_heap(group.region_len as usize);
        Self { region, group, request: group.request, response: group.response }
    }
}

/// Both groups, and the card.
struct World {
    dma: HostileDma,
    good: Good,
    attacked: Attacked,
}

impl World {
    fn new(depth: usize) -> Self {
        let (good, attacked) = (Memory::new(RegionId(0)), Memory::new(RegionId(1)));
        let mut inner = LocalDma::new(depth, TRANSFER_MAX as usize);
        inner.register(RegionId(0), good.region.clone());
        inner.register(RegionId(1), attacked.region.clone());
        let region = attacked.region.clone();
        let response = attacked.response;
        let (planned, transfers, waiting, responded) = (Vec::new(), 0, 0, 0);
        let dma = HostileDma { inner, region, planned, transfers, waiting, response, responded };
        Self { dma, good: Good::new(good), attacked: Attacked::new(attacked) }
    }

    fn act(&mut self, script: &mut Script<'_>) {
        self.dma.transfers = 0;
        let dma = &mut self.dma;
        match script.byte() % 16 {
            0 => self.attacked.push(script),
            1 | 2 => self.attacked.step_receiver(dma),
            3 => self.attacked.step_sender(dma),
            4..=6 => self.complete(),
            7 => self.attacked.arm(dma),
            8 => self.attacked.wake(),
            9 => self.attacked.reserve(script),
            10 => self.attacked.commit(script),
            11 => self.attacked.take_responses(),
            12 => self.attacked.corrupt_word(script, dma),
            13 => self.attacked.corrupt_message(script, dma),
            14 => match script.byte() {
                byte if byte >= 200 => self.attacked.transfer(script),
                byte => self.attacked.drop_held(byte),
            },
            _ if script.byte() == 255 => dma.inner.unregister(RegionId(1)),
            _ => {
                self.good.push();
                self.good.turn(dma);
            }
        }
    }

    /// Hands the oldest completion to its owner.
    fn complete(&mut self) {
        self.dma.attack();
        let Some(completion) = self.dma.poll() else { return };
        self.dma.transfers = 0;
        match completion.token.0 & OWNER {
            GOOD => self.good.complete_request(&mut self.dma, completion),
            token if token == GOOD + RESPONSE => self.good.complete_response(completion),
            ATTACKED => self.attacked.complete_request(&mut self.dma, completion),
            _ => self.attacked.complete_response(&self.dma, completion),
        }
    }

    /// The good group, and only it, must come to an end.
    fn finish(&mut self) {
        while !self.attacked.held.is_empty() {
            self.attacked.drop_held(0);
        }
        self.good.push();
        for _ in 0..1000 {
            if self.good.is_done() {
                return;
            }
            self.dma.transfers = 0;
            self.good.turn(&mut self.dma);
            while self.dma.waiting > 0 {
                self.complete();
            }
        }
        panic!("the good group came to a halt");
    }
}

/// The group that behaves: numbers go to the card and come back.
struct Good {
    host: (HostSender, HostReceiver),
    card: (CardReceiver, CardSender),
    pushed: u64,
    answers: VecDeque<u64>,
    answered: u64,
    received: u64,
}

impl Good {
    fn new(memory: Memory) -> Self {
        let Memory { region, request, response, .. } = memory;
        let bell: Arc<dyn CardBell> = Arc::new(NoBell);
        let sender = HostSender::new(region.clone(), request, Closed::default(), Arc::clone(&bell));
        let receiver = HostReceiver::new(region, response, Closed::default(), bell);
        let card =
            (CardReceiver::new(request, Token(GOOD)), CardSender::new(response, Token(GOOD + RESPONSE)));
        Self { host: (sender, receiver), card, pushed: 0, answers: VecDeque::new(), answered: 0, received: 0 }
    }

    fn is_done(&self) -> bool {
        self.received == self.pushed
    }

    fn push(&mut self) {
        let number = self.pushed.to_le_bytes();
        let payload = [self.pushed as u8; 300];
        let pieces: [&[u8]; 1] = [&payload];
        match self.host.0.push(Outgoing { inline: &number, payload: Some((&pieces, 8)) }) {
            Ok(()) => self.pushed += 1,
            Err(PushError::Retry) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn turn(&mut self, dma: &mut HostileDma) {
        if let Err(error) = self.card.0.step(dma) {
            panic!("the good group is blamed: {error}");
        }
        while let Some(number) = self.answers.front() {
            match self.card.1.push(&number.to_le_bytes()) {
                Ok(()) => _ = self.answers.pop_front(),
                Err(ReserveError::Full) => break,
                Err(error) => panic!("{error}"),
            }
        }
        if let Err(error) = self.card.1.step(dma) {
            panic!("the good group is blamed: {error}");
        }
        self.receive();
    }

    fn receive(&mut self) {
        while let Some(claimed) = self.host.1.receive().unwrap_or_else(|error| panic!("{error}")) {
            let mut number = [0; 8];
            assert_eq!(claimed.inline(&mut number), 8);
            assert_eq!(u64::from_le_bytes(number), self.received, "responses keep their order");
            self.received += 1;
        }
    }

    fn complete_request(&mut self, dma: &mut HostileDma, completion: DmaCompletion) {
        match self.card.0.complete(dma, completion) {
            Ok(Received::Nothing) => {}
            Ok(Received::Batch(batch)) => self.answer(&batch),
            Err(error) => panic!("the good group is blamed: {error}"),
        }
    }

    fn answer(&mut self, batch: &Batch) {
        for message in batch.iter() {
            assert_eq!(message.inline, self.answered.to_le_bytes(), "requests keep their order");
            assert_eq!(message.payload, Some(&[self.answered as u8; 300][..]));
            self.answers.push_back(self.answered);
            self.answered += 1;
        }
    }

    fn complete_response(&mut self, completion: DmaCompletion) {
        if let Err(error) = self.card.1.complete(completion) {
            panic!("the good group is blamed: {error}");
        }
    }
}

/// The group under attack: the card's real ends, and what the specification says they may do.
struct Attacked {
    memory: Memory,
    card: (CardReceiver, CardSender),
    closed: (bool, bool),
    oracle: (PointersOracle, PointersOracle),
    open: Vec<Reservation>,
    held: Vec<(Vec<u8>, ob_memory::Slice)>,
    /// Buffers of bulk, its next tag, and what those that are not over write.
    pool: Pool,
    tag: u64,
    bulk: BTreeMap<u64, (u64, u64)>,
}

impl Attacked {
    fn new(memory: Memory) -> Self {
        let card = (
            CardReceiver::new(memory.request, Token(ATTACKED)),
            CardSender::of_group(&memory.group, Token(ATTACKED + RESPONSE))
                .unwrap_or_else(|| panic!("no memory")),
        );
        let oracle = PointersOracle::default();
        Self {
            memory,
            card,
            closed: (false, false),
            oracle: (oracle, oracle),
            open: vec![],
            held: vec![],
            pool: Pool::new(TRANSFER_MAX as usize, BULK_MAX + 1),
            tag: 0,
            bulk: BTreeMap::new(),
        }
    }

    /// The service transfers what a host made it transfer: any place, in either direction.
    fn transfer(&mut self, script: &mut Script<'_>) {
        let Some(mut block) = self.pool.take() else { panic!("the card keeps buffers of bulk") };
        let buffer = block.split_to(usize::from(script.byte()) * 12 % TRANSFER_MAX as usize);
        let (at, len) = (script.value(AREA - 8), buffer.len() as u64);
        let (bulk, writes) = match script.byte() % 3 {
            0 => (Bulk::Write { from: buffer.into(), at }, (at, len)),
            1 => (Bulk::ReadBack { at, into: buffer }, (0, 0)),
            _ => (Bulk::Read { at, into: buffer }, (0, 0)),
        };
        let apart = |(start, length): &(u64, u64)| {
            *length == 0 || writes.1 == 0 || writes.0 >= start + length || *start >= writes.0 + writes.1
        };
        let inside = at.checked_add(len).is_some_and(|end| end <= AREA);
        let expected = match (inside, self.bulk.len() < BULK_MAX) {
            (false, _) => Err(BulkRefusal::OutOfArea),
            (true, false) => Err(BulkRefusal::Full),
            (true, true) if !self.bulk.values().all(apart) => Err(BulkRefusal::Overlapping),
            (true, true) => Ok(()),
        };
        let taken = self.card.1.transfer(self.tag, bulk).map_err(|refused| refused.reason);
        assert_eq!(taken, expected, "bulk at {at}");
        if taken.is_ok() {
            self.bulk.insert(self.tag, writes);
            self.tag += 1;
        }
    }

    /// Bulk that is over is told once, and closes nothing, however it went.
    fn complete_bulk(&mut self, completion: DmaCompletion) {
        let result = completion.result;
        match self.card.1.complete(completion) {
            Ok(Some(done)) => {
                assert!(!self.closed.1, "a closed ring opened again");
                assert!(self.bulk.remove(&done.tag).is_some(), "told twice");
                assert_eq!(done.result, result);
            }
            Ok(None) => panic!("bulk is not told"),
            Err(error) => assert!(self.closed.1 && error == RingError::Closed, "bulk closed the group"),
        }
    }

    fn ring(&self, number: u8) -> &RingSpec {
        if number.is_multiple_of(2) { &self.memory.request } else { &self.memory.response }
    }

    fn load(&self, spec: &RingSpec, word: usize) -> u64 {
        self.memory.region.load(spec.word(word) as usize, Ordering::Relaxed)
    }

    /// A message, legal or nearly so, put where the (perhaps illegal) claim says.
    fn push(&mut self, script: &mut Script<'_>) {
        let spec = self.memory.request;
        let inline_len = u64::from(script.byte()) * 4;
        let payload_len = u64::from(script.byte());
        let (header, payload, room) = match script.byte() % 8 {
            0..=3 => (inline_len << 32 | 1 << 48, 0, 8 + inline_len),
            how => {
                let offset = 16 + inline_len;
                // One byte into the inline part, one byte out of the span, or as far off as a word can say.
                let (offset, len) = match (how, script.byte() % 4) {
                    (4, _) => (offset, payload_len),
                    (_, 0) => (offset - 1, payload_len),
                    (_, 1) => (offset, (offset + payload_len).next_multiple_of(8) - offset + 1),
                    (_, 2) => (0xffff_ffff, 0xffff_ffff),
                    (_, _) => (0xffff_fff8, payload_len),
                };
                (inline_len << 32 | 2 << 48, offset | len << 32, 16 + inline_len + payload_len)
            }
        };
        let longer = if script.byte() == 77 { u64::from(spec.message_max()) } else { 0 };
        let span = room.next_multiple_of(8) + longer;
        let mut claim = self.load(&spec, control::CLAIM) & !7;
        let skip = if span > spec.to_wrap(claim) { spec.to_wrap(claim) } else { 0 };
        let used = claim.wrapping_sub(self.load(&spec, control::BOUND));
        if used.wrapping_add(span + skip) > u64::from(spec.capacity()) {
            return;
        }
        if skip > 0 {
            self.store_header(&spec, claim, skip | 3 << 48);
            claim = claim.wrapping_add(skip);
        }
        self.memory.region.copy_in(spec.at(claim) as usize, &vec![payload_len as u8; span as usize]);
        self.store_header(&spec, claim, span | header);
        if payload != 0 {
            self.store_header(&spec, claim.wrapping_add(8), payload);
        }
        for word in [control::CLAIM, control::PROGRESS] {
            let offset = spec.word(word) as usize;
            let now = self.memory.region.load(offset, Ordering::Relaxed);
            self.memory.region.store(offset, now.wrapping_add(span + skip), Ordering::Relaxed);
        }
    }

    fn store_header(&self, spec: &RingSpec, position: u64, header: u64) {
        self.memory.region.store(spec.at(position) as usize, header, Ordering::Relaxed);
    }

    /// Takes every response, as legally as the words in memory allow.
    fn take_responses(&mut self) {
        let spec = self.memory.response;
        let bound = self.load(&spec, control::BOUND);
        for word in [control::CLAIM, control::PROGRESS] {
            self.memory.region.store(spec.word(word) as usize, bound, Ordering::Relaxed);
        }
    }

    /// Any word of either control block, now or after some transfers.
    fn corrupt_word(&mut self, script: &mut Script<'_>, dma: &mut HostileDma) {
        const WORDS: [usize; 8] = [
            control::PROGRESS,
            control::CLAIM,
            control::SLEEPERS,
            control::BOUND,
            control::CARD_ASLEEP,
            control::BELL,
            control::PROGRESS,
            control::CLAIM,
        ];
        let (which, transfers) = (script.byte(), script.byte() % 4);
        let spec = *self.ring(which);
        let word = WORDS[usize::from(which / 2) % WORDS.len()];
        let value = script.value(self.load(&spec, word));
        let offset = spec.word(word) as usize;
        dma.planned.push(Planned { transfers, offset, value });
        // A claim alone only makes the card wait: often the two move together.
        if word == control::CLAIM && which >= 128 {
            let offset = spec.word(control::PROGRESS) as usize;
            dma.planned.push(Planned { transfers, offset, value });
        }
        dma.attack();
    }

    /// Any word of either ring's data; most often a header or a payload word near where the card will look.
    fn corrupt_message(&mut self, script: &mut Script<'_>, dma: &mut HostileDma) {
        let (which, transfers, back) = (script.byte(), script.byte() % 4, u64::from(script.byte()) * 8);
        let spec = *self.ring(which);
        let near = self.load(&spec, control::CLAIM).wrapping_sub(back) & !7;
        let offset = spec.at(near) as usize;
        let capacity = u64::from(spec.capacity());
        let value = match script.byte() % 8 {
            0 => script.word(),
            1 => script.value(self.memory.region.load(offset, Ordering::Relaxed)),
            // span, inline length, kind, reserved byte
            2..=5 => {
                let span = [0, 8, 16, 4, capacity / 2, capacity / 2 + 8, capacity, 0xffff_fff8];
                let inline_len = [0, 1, 8, 9, 0xffff, 2040, 100, 16];
                let kind = u64::from(script.byte() % 5) | u64::from(script.byte() == 255) << 8;
                let pick = |byte: u8| usize::from(byte % 8);
                span[pick(script.byte())] | inline_len[pick(script.byte())] << 32 | kind << 48
            }
            // payload offset and length
            _ => {
                let edges = [0, 8, 15, 16, 24, 2048, 0xffff_fff8, 0xffff_ffff];
                edges[usize::from(script.byte() % 8)] | edges[usize::from(script.byte() % 8)] << 32
            }
        };
        dma.planned.push(Planned { transfers, offset, value });
        dma.attack();
    }

    fn step_receiver(&mut self, dma: &mut HostileDma) {
        let outcome = self.card.0.step(dma);
        Self::check_call("step", &outcome, self.closed.0);
    }

    fn step_sender(&mut self, dma: &mut HostileDma) {
        let outcome = self.card.1.step(dma);
        Self::check_call("step", &outcome, self.closed.1);
    }

    fn arm(&mut self, dma: &mut HostileDma) {
        let outcome = self.card.0.arm(dma);
        Self::check_call("arm", &outcome, self.closed.0);
        self.card.1.arm();
        _ = (self.card.0.bell_due(), self.card.1.bell_due());
    }

    /// Neither submitting nor arming looks at what the host wrote; and a ring given up stays so.
    fn check_call<T>(call: &str, outcome: &Result<T, RingError>, closed: bool) {
        match outcome {
            Ok(_) => assert!(!closed, "{call} on a closed ring"),
            Err(error) => assert!(closed && *error == RingError::Closed, "{call}: {error}"),
        }
    }

    fn wake(&mut self) {
        self.card.0.wake();
        self.card.1.wake();
    }

    fn reserve(&mut self, script: &mut Script<'_>) {
        let payload = (u32::from(script.byte()) * 7, 1 << (script.byte() % 13));
        let with_payload = script.byte().is_multiple_of(2);
        let shape = Shape { inline_len: u16::from(script.byte()), payload: with_payload.then_some(payload) };
        self.open.extend(self.card.1.reserve(shape).ok());
    }

    fn commit(&mut self, script: &mut Script<'_>) {
        if !self.open.is_empty() {
            let reservation = self.open.swap_remove(usize::from(script.byte()) % self.open.len());
            self.card.1.commit(reservation, &[9; 300], u32::from(script.byte()) * 8);
        }
    }

    /// What the card holds is its own: no later transfer and no attack changes it.
    fn drop_held(&mut self, index: u8) {
        if !self.held.is_empty() {
            let (bytes, slice) = self.held.swap_remove(usize::from(index) % self.held.len());
            assert_eq!(bytes, *slice, "a message changed after it was checked");
        }
    }

    fn complete_request(&mut self, dma: &mut HostileDma, completion: DmaCompletion) {
        let expected = match (&completion.result, &completion.op) {
            (Err(_), _) => Err(check::Forbidden),
            (Ok(()), DmaOp::ReadWords { words, .. }) => {
                let limit = self.oracle.0.bound.saturating_add(u64::from(self.memory.request.capacity()));
                self.oracle.0.believe([words[0], words[1]], limit).map(|()| None)
            }
            (Ok(()), DmaOp::Read { into, .. }) => {
                let oracle = &self.oracle.0;
                let settled = (oracle.settled - oracle.bound).min(self.memory.request.to_wrap(oracle.bound));
                let fetched = Fetched::new(into.start(), into.to_vec(), settled);
                let limit = u64::from(self.memory.request.message_max());
                fetched.parse(limit).map(|parsed| Some((fetched, parsed)))
            }
            _ => Ok(None),
        };
        let outcome = self.card.0.complete(dma, completion);
        if self.closed.0 {
            assert!(matches!(outcome, Err(RingError::Closed)), "a closed ring opened again");
            return;
        }
        self.closed.0 = outcome.is_err();
        assert_eq!(outcome.is_err(), expected.is_err(), "the card and the document disagree");
        let (Ok(Received::Batch(batch)), Ok(Some((fetched, parsed)))) = (outcome, expected) else { return };
        self.oracle.0.bound += parsed.whole as u64;
        self.take(batch, &fetched, &parsed);
    }

    fn take(&mut self, mut batch: Batch, fetched: &Fetched, parsed: &check::Parsed) {
        let mut parts = Vec::new();
        while let Some(message) = batch.take_next() {
            parts.push(check::Part::of_message(&message));
            self.held.push((message.inline.to_vec(), message.inline));
            self.held.extend(message.payload.map(|payload| (payload.to_vec(), payload)));
        }
        if let Err(complaint) = fetched.check(parsed, &parts) {
            panic!("{complaint}");
        }
    }

    fn complete_response(&mut self, dma: &HostileDma, completion: DmaCompletion) {
        if completion.token.0 & BULK == BULK {
            return self.complete_bulk(completion);
        }
        let expected = match (&completion.result, &completion.op) {
            (Err(_), _) => Err(check::Forbidden),
            (Ok(()), DmaOp::ReadWords { words, .. }) => {
                self.oracle.1.believe([words[0], words[1]], dma.responded)
            }
            _ => Ok(()),
        };
        let outcome = self.card.1.complete(completion);
        if self.closed.1 {
            assert_eq!(outcome.err(), Some(RingError::Closed), "a closed ring opened again");
            return;
        }
        self.closed.1 = outcome.is_err();
        assert_eq!(outcome.is_err(), expected.is_err(), "the card and the document disagree");
    }
}
