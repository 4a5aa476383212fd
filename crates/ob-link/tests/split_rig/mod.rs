//! Both halves of a service that splits messages: what it would do with the link and with devices, and nothing of what it is for.
//!
//! ```text
//!   client ── header, payload ──▶ card: Splitter                                  host: Planner
//!                                   payload ─▶ pool, under a handle
//!                                   "header, handle" ─────── response ring ─────▶ looks at the header only
//!                                   ◀─────────────────────── request ring ─────── a plan: [ check, write, write, show, answer ]
//!                                   steps, on the same bytes:  payload ─┬▶ device 0 ─┐
//!                                                                       ├▶ device 1 ─┼▶ answer
//!                                                                       └▶ the area ─┘
//!   client ◀───────── status ────── once
//!                                   "handle is done" ─────── response ring ─────▶ gives the area's place to another
//! ```

#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub)] // A test stops at the first surprise.

use std::collections::{BTreeMap, VecDeque};

use ob_core::{AttachmentId, Device, DeviceOp, Instant, Token};
use ob_io::MemoryDevice;
use ob_link::{CardService, GroupKey, GroupSizes};
use ob_memory::{Pool, Shared};
use ob_ring::{
    Batch, Bulk, BulkDone, BulkRefusal, CardSender, HostAreas, HostReceiver, HostSender, Outgoing,
};

pub const SPLITS: u32 = 1;
pub const BLOCK: usize = 512;
pub const PAYLOAD_MAX: usize = 64 << 10;
/// Payloads that the card keeps at once.
pub const PAYLOADS: usize = 8;
/// Bytes of a payload that the host may look at.
pub const SHOWN: usize = BLOCK;
pub const DEVICE_LEN: usize = 8 << 20;
pub const SIZES: GroupSizes =
    GroupSizes { request: 64 << 10, response: 64 << 10, card_area: (PAYLOADS * SHOWN) as u64, host_area: 0 };

const HEADER: u64 = 1;
const PLAN: u64 = 2;
const DONE: u64 = 3;
/// Numbers of a message before its steps, and numbers of a step.
const FRONT: usize = 2;
const STEP: usize = 3;
/// Steps of a plan: those of all payloads fit a device's queue.
pub const STEPS_MAX: usize = 8;

fn encode(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn decode(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap())).collect()
}

/// Any change of any byte changes it.
pub fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(7, |sum: u64, byte| sum.wrapping_mul(0x100_0000_01b3) ^ u64::from(*byte))
}

/// What a client sends: a header, which has the sum of what follows, and the payload.
#[derive(Clone, Debug)]
pub struct ClientMessage {
    pub id: u64,
    pub sum: u64,
    pub payload: Vec<u8>,
}

impl ClientMessage {
    pub fn new(id: u64, blocks: usize) -> Self {
        let payload: Vec<u8> = (0..blocks * BLOCK).map(|at| (at as u64 * 31 + id * 7) as u8).collect();
        Self { id, sum: sum(&payload), payload }
    }
}

/// What the host wants done with a payload. Each is begun when those before it are, and the answer is given when they are over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The payload has this sum.
    Check { sum: u64 },
    /// All of it is written there.
    Write { device: u64, offset: u64 },
    /// The host gets its first bytes, at this place of the card's area.
    Show { at: u64 },
    /// The client is told that all went well: the last step, and no other.
    Answer,
}

impl Step {
    fn words(self) -> [u64; STEP] {
        match self {
            Self::Check { sum } => [0, sum, 0],
            Self::Write { device, offset } => [1, device, offset],
            Self::Show { at } => [2, at, 0],
            Self::Answer => [3, 0, 0],
        }
    }

    fn of(words: &[u64]) -> Option<Self> {
        Some(match *words {
            [0, sum, 0] => Self::Check { sum },
            [1, device, offset] if device < 2 => Self::Write { device, offset },
            [2, at, 0] => Self::Show { at },
            [3, 0, 0] => Self::Answer,
            _ => return None,
        })
    }
}

/// A plan in the words of the ring.
pub fn plan(handle: u64, steps: &[Step]) -> Vec<u8> {
    let words: Vec<u64> =
        [PLAN, handle].into_iter().chain(steps.iter().flat_map(|step| step.words())).collect();
    encode(&words)
}

/// A plan as the card believes it: a handle, and a few steps of which the last one, and no other, answers.
fn planned(words: &[u64]) -> Option<(u64, VecDeque<Step>)> {
    let (&[PLAN, handle], steps) = words.split_first_chunk::<FRONT>()? else { return None };
    let steps: VecDeque<Step> = steps.chunks(STEP).map(Step::of).collect::<Option<_>>()?;
    let answers = steps.iter().position(|step| *step == Step::Answer)?;
    (answers + 1 == steps.len() && steps.len() <= STEPS_MAX).then_some((handle, steps))
}

/// A message that is on the card.
struct Flight {
    id: u64,
    /// Steps that are under way read it too.
    payload: Shared,
    is_planned: bool,
    /// Steps that were not begun.
    steps: VecDeque<Step>,
    /// Steps under way, on devices and on the way to the host.
    writes: usize,
    shows: usize,
    has_failed: bool,
}

/// The card's half.
pub struct Splitter {
    /// What clients have sent and the card has not read: there is no memory for it, or no host.
    pub inbox: VecDeque<ClientMessage>,
    pub pool: Pool,
    pub devices: [MemoryDevice; 2],
    /// A device of which nothing is heard.
    pub held: Option<usize>,
    key: Option<GroupKey>,
    flights: BTreeMap<u64, Flight>,
    next_handle: u64,
    /// Messages for the host, and payloads whose beginning it is to see, that wait for the link.
    say: VecDeque<Vec<u8>>,
    shows: VecDeque<(u64, u64)>,
    /// What clients were told, in the order in which they were.
    pub answers: Vec<(u64, bool)>,
    pub plans: usize,
    /// The steps that were begun, and where the payload lay.
    pub begun: Vec<(u64, Step, usize)>,
    /// How many steps of a message were under way at once, by its id.
    pub at_once: BTreeMap<u64, usize>,
}

impl Splitter {
    pub fn new(messages: &[ClientMessage]) -> Self {
        Self {
            inbox: messages.to_vec().into(),
            pool: Pool::new(PAYLOAD_MAX, PAYLOADS),
            devices: [DEVICE_LEN, DEVICE_LEN].map(|len| MemoryDevice::new(len, BLOCK as u32)),
            held: None,
            key: None,
            flights: BTreeMap::new(),
            next_handle: 100,
            say: VecDeque::new(),
            shows: VecDeque::new(),
            answers: Vec::new(),
            plans: 0,
            begun: Vec::new(),
            at_once: BTreeMap::new(),
        }
    }

    /// Reads what clients have sent, as far as there is memory: the payload into the card's, the header for the host.
    fn admit(&mut self) -> bool {
        let mut moved = false;
        while self.key.is_some() && !self.inbox.is_empty() {
            let Some(mut payload) = self.pool.take() else { break };
            let message = self.inbox.pop_front().unwrap();
            payload.truncate(message.payload.len());
            payload.copy_from_slice(&message.payload);
            let handle = self.next_handle;
            self.next_handle += 1;
            self.say.push_back(encode(&[HEADER, handle, message.id, message.sum, payload.len() as u64]));
            let flight = Flight {
                id: message.id,
                payload: payload.share(),
                is_planned: false,
                steps: VecDeque::new(),
                writes: 0,
                shows: 0,
                has_failed: false,
            };
            self.flights.insert(handle, flight);
            moved = true;
        }
        moved
    }

    /// Begins all steps of a plan that need not wait, and ends it if it is over.
    fn go_on(&mut self, handle: u64) {
        while let Some(flight) = self.flights.get_mut(&handle) {
            let is_quiet = flight.writes + flight.shows == 0;
            if flight.has_failed {
                if is_quiet {
                    self.finish(handle, false);
                }
                return;
            }
            let Some(step) = flight.steps.pop_front_if(|step| is_quiet || *step != Step::Answer) else {
                return;
            };
            self.begun.push((flight.id, step, flight.payload.as_ptr().addr()));
            match step {
                Step::Check { sum: expected } => flight.has_failed = sum(&flight.payload) != expected,
                Step::Write { device, offset } => {
                    flight.writes += 1;
                    let op = DeviceOp::Write { offset, from: flight.payload.clone().into(), durable: false };
                    // There is room for more operations than there are steps.
                    self.devices[device as usize].submit(Token(handle), op).unwrap();
                }
                Step::Show { at } => {
                    flight.shows += 1;
                    self.shows.push_back((handle, at));
                }
                Step::Answer => return self.finish(handle, true),
            }
            let at_once = self.at_once.entry(flight.id).or_default();
            *at_once = (*at_once).max(flight.writes + flight.shows);
        }
    }

    /// The one answer to a client, and to the host the news of it. The payload's memory is free.
    fn finish(&mut self, handle: u64, went_well: bool) {
        let Some(flight) = self.flights.remove(&handle) else { return };
        self.answers.push((flight.id, went_well));
        if self.key.is_some() {
            self.say.push_back(encode(&[DONE, handle, u64::from(went_well)]));
        }
    }

    /// What a device gives back.
    fn take_written(&mut self) -> bool {
        let mut moved = false;
        for at in 0..self.devices.len() {
            while self.held != Some(at)
                && let Some(completion) = self.devices[at].poll()
            {
                moved = true;
                let handle = completion.token.0;
                let flight = self.flights.get_mut(&handle).expect("who has steps on a device is awaited");
                flight.writes -= 1;
                flight.has_failed |= completion.result.is_err();
                self.go_on(handle);
            }
        }
        moved
    }

    /// The host was shown the beginning of a payload, or will not be.
    fn shown(&mut self, handle: u64, went_well: bool) {
        if let Some(flight) = self.flights.get_mut(&handle) {
            flight.shows -= 1;
            flight.has_failed |= !went_well;
            self.go_on(handle);
        }
    }

    fn pump(&mut self, responses: &mut CardSender) {
        while let Some(words) = self.say.front() {
            if responses.push(words).is_err() {
                break;
            }
            self.say.pop_front();
        }
        while responses.transfer_room() > 0
            && let Some((handle, at)) = self.shows.pop_front()
        {
            let Some(flight) = self.flights.get(&handle) else { continue };
            let beginning = flight.payload.part(0..SHOWN.min(flight.payload.len())).unwrap();
            let Err(refused) = responses.transfer(handle, Bulk::Write { from: beginning.into(), at }) else {
                continue;
            };
            match refused.reason {
                BulkRefusal::Full | BulkRefusal::Overlapping => return self.shows.push_front((handle, at)),
                BulkRefusal::OutOfArea | BulkRefusal::TooLarge { .. } => self.shown(handle, false),
            }
        }
    }
}

impl CardService for Splitter {
    fn open(&mut self, key: GroupKey, _service: u32) -> Result<(), String> {
        self.key = Some(key);
        Ok(())
    }

    fn requests(&mut self, _: GroupKey, batch: Batch, responses: &mut CardSender) {
        for message in batch.iter() {
            let found = planned(&decode(message.inline));
            let flight = found.as_ref().and_then(|(handle, _)| self.flights.get_mut(handle));
            let (Some((handle, steps)), Some(flight)) = (found, flight.filter(|flight| !flight.is_planned))
            else {
                return responses.refuse();
            };
            (flight.is_planned, flight.steps) = (true, steps);
            self.plans += 1;
            self.go_on(handle);
        }
        self.pump(responses);
    }

    fn responses(&mut self, _: GroupKey, responses: &mut CardSender) {
        self.pump(responses);
    }

    fn transferred(&mut self, _: GroupKey, done: BulkDone, responses: &mut CardSender) {
        self.shown(done.tag, done.result.is_ok());
        self.pump(responses);
    }

    /// Nobody plans any more: whoever waits is told so, but for those whose payload a device reads, which is awaited.
    fn closed(&mut self, _: GroupKey) {
        self.key = None;
        self.say.clear();
        self.shows.clear();
        for handle in self.flights.keys().copied().collect::<Vec<_>>() {
            if let Some(flight) = self.flights.get_mut(&handle) {
                (flight.shows, flight.has_failed) = (0, true);
            }
            self.go_on(handle);
        }
    }

    fn poll(&mut self, _: Instant) -> bool {
        self.take_written() | self.admit()
    }

    fn next_due(&self) -> Option<Instant> {
        self.devices.iter().find_map(Device::next_due)
    }

    fn waiting(&self, groups: &mut Vec<GroupKey>) {
        groups.extend(self.key.filter(|_| !self.say.is_empty() || !self.shows.is_empty()));
    }

    fn channel(&mut self, _: AttachmentId, _: &[u8]) {}
}

/// The host's half: it sees headers, and never a payload but for the beginning of some.
pub struct Planner {
    /// Where a message's payload is to lie on both devices, by its id: the same place twice.
    pub placed: BTreeMap<u64, u64>,
    next_offset: u64,
    /// Free places of the card's area.
    places: Vec<u64>,
    /// Plans that are out: what was asked for, by handle.
    out: BTreeMap<u64, (u64, Option<u64>)>,
    plans: VecDeque<Vec<u8>>,
    /// What it saw of payloads, by the message's id.
    pub seen: BTreeMap<u64, Vec<u8>>,
    pub done: Vec<(u64, bool)>,
    pub headers: usize,
}

impl Planner {
    pub fn new() -> Self {
        Self {
            placed: BTreeMap::new(),
            next_offset: 0,
            places: (0..PAYLOADS as u64).map(|place| place * SHOWN as u64).collect(),
            out: BTreeMap::new(),
            plans: VecDeque::new(),
            seen: BTreeMap::new(),
            done: Vec::new(),
            headers: 0,
        }
    }

    /// Takes what has come and posts plans. `false` if nothing moved.
    pub fn turn(&mut self, sender: &HostSender, receiver: &HostReceiver, areas: &HostAreas) -> bool {
        let mut moved = false;
        while let Some(message) = receiver.receive().unwrap() {
            let mut inline = vec![0; message.inline_len()];
            message.inline(&mut inline);
            assert_eq!(message.payload_len(), 0, "no payload is in a ring");
            drop(message);
            match *decode(&inline) {
                [HEADER, handle, id, sum, len] => self.plan(handle, id, sum, len),
                [DONE, handle, went_well] => self.is_done(handle, went_well == 1, areas),
                ref other => panic!("{other:?}"),
            }
            moved = true;
        }
        while let Some(plan) = self.plans.front() {
            if sender.push(Outgoing { inline: plan, payload: None }).is_err() {
                break;
            }
            self.plans.pop_front();
            moved = true;
        }
        moved
    }

    /// Every third payload is looked at; one whose id divides by 11 is sent where no device is.
    fn plan(&mut self, handle: u64, id: u64, sum: u64, len: u64) {
        self.headers += 1;
        let offset = if id.is_multiple_of(11) { DEVICE_LEN as u64 } else { self.next_offset };
        self.next_offset += len;
        self.placed.insert(id, offset);
        let place = id.is_multiple_of(3).then(|| self.places.pop().unwrap());
        let writes = [0, 1].map(|device| Step::Write { device, offset });
        let shows = place.map(|at| Step::Show { at });
        let steps: Vec<Step> =
            [Step::Check { sum }].into_iter().chain(writes).chain(shows).chain([Step::Answer]).collect();
        self.out.insert(handle, (id, place));
        self.plans.push_back(plan(handle, &steps));
    }

    fn is_done(&mut self, handle: u64, went_well: bool, areas: &HostAreas) {
        let (id, place) = self.out.remove(&handle).expect("each plan is done once");
        if let Some(at) = place {
            let mut bytes = vec![0; SHOWN];
            areas.copy_out(at, &mut bytes).unwrap();
            self.places.push(at);
            if went_well {
                self.seen.insert(id, bytes);
            }
        }
        self.done.push((id, went_well));
    }
}
