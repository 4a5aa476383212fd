//! Both halves of a store that posts transactions: what it would do with the link, and nothing of what it would store.
//!
//! ```text
//!   card: Poster                                             host: Store
//!   part ── bulk ──▶ a free place of the card's area
//!        └─ over, well ──▶ "part p of n lies at x" ────────▶ copies it out, gives x back some time
//!        └─ failed ──────▶ the part itself, in the ring ───▶ takes it from there
//!   ◀─────────────────────── "n is stored" ───────────────── once a number, in order
//! ```

#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub)] // A test stops at the first surprise.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ob_core::AttachmentId;
use ob_link::{CardService, GroupKey, GroupSizes};
use ob_memory::{Pool, Source};
use ob_ring::{BULK_MAX, Batch, Bulk, BulkDone, CardSender, HostAreas, HostReceiver, HostSender, Outgoing};
use ob_wire_link::ring::Shape;

use crate::common::Dice;

/// The service that posts, and one that answers at once.
pub const POSTS: u32 = 1;
pub const PINGS: u32 = 2;

/// Bytes of one place in staging.
pub const CHUNK: usize = 256 << 10;
const PLACES: u64 = 32;
pub const SIZES: GroupSizes =
    GroupSizes { request: 64 << 10, response: 1 << 20, card_area: PLACES * CHUNK as u64, host_area: 0 };

const START: u64 = 0;
const PLACED: u64 = 1;
const CARRIED: u64 = 2;
const FREE: u64 = 3;
const STORED: u64 = 4;

/// Messages are five numbers: a kind, and what goes with it.
type Words = [u64; 5];
const WORDS_LEN: usize = 40;

fn encode(words: Words) -> [u8; WORDS_LEN] {
    let mut bytes = [0; WORDS_LEN];
    for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn decode(bytes: &[u8]) -> Words {
    let mut words = [0; 5];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(chunk.try_into().unwrap());
    }
    words
}

/// What makes the card begin.
pub fn start() -> [u8; WORDS_LEN] {
    encode([START, 0, 0, 0, 0])
}

/// The bytes of a part: anybody can tell whether they are the right ones.
fn fill(number: u64, part: u64, bytes: &mut [u8]) {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ part.wrapping_mul(0xd1b5_4a32_d192_ed03);
    for chunk in bytes.chunks_mut(8) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
}

/// What another thread may know of the card's half.
#[derive(Default)]
pub struct Progress {
    pub acknowledged: AtomicU64,
    pub stop: AtomicBool,
}

#[derive(Clone, Copy)]
struct Part {
    number: u64,
    part: u64,
    size: u64,
    place: u64,
    len: usize,
}

impl Part {
    fn words(&self, kind: u64) -> [u8; WORDS_LEN] {
        encode([kind, self.number, self.part, self.size, self.place])
    }
}

/// The card's half.
pub struct Poster {
    sizes: Vec<usize>,
    /// The next part to be posted.
    next: (u64, u64),
    started: bool,
    posts: Option<GroupKey>,
    free: VecDeque<u64>,
    pool: Pool,
    under_way: BTreeMap<u64, Part>,
    tag: u64,
    /// Transferred, and not announced yet.
    announce: VecDeque<Part>,
    /// Failed, and not sent by the control path yet.
    carry: VecDeque<(Part, Source)>,
    /// Transactions that the host has stored.
    pub acknowledged: u64,
    /// Parts that crossed the link by bulk, and parts that went by the control path.
    pub transferred: u64,
    pub by_control: u64,
    /// How many transactions were under way at once.
    pub ahead_max: u64,
    pub progress: Arc<Progress>,
}

impl Poster {
    pub fn new(sizes: &[usize]) -> Self {
        Self {
            sizes: sizes.to_vec(),
            next: (0, 0),
            started: false,
            posts: None,
            free: (0..PLACES).collect(),
            pool: Pool::new(CHUNK, BULK_MAX),
            under_way: BTreeMap::new(),
            tag: 0,
            announce: VecDeque::new(),
            carry: VecDeque::new(),
            acknowledged: 0,
            transferred: 0,
            by_control: 0,
            ahead_max: 0,
            progress: Arc::default(),
        }
    }

    pub fn is_done(&self) -> bool {
        self.acknowledged == self.sizes.len() as u64
    }

    fn pump(&mut self, responses: &mut CardSender) {
        while let Some(part) = self.announce.front() {
            if responses.push(&part.words(PLACED)).is_err() {
                break;
            }
            self.announce.pop_front();
        }
        while let Some((part, bytes)) = self.carry.front() {
            let shape = Shape { inline_len: WORDS_LEN as u16, payload: Some((part.len as u32, 8)) };
            let Ok(mut place) = responses.reserve(shape) else { break };
            place.payload.as_mut().unwrap().copy_from_slice(bytes);
            responses.commit(place, &part.words(CARRIED), part.len as u32);
            self.free.push_back(part.place);
            self.by_control += 1;
            self.carry.pop_front();
        }
        while self.started && responses.transfer_room() > 0 && self.post(responses) {}
    }

    /// Posts the next part, if there is one, a place for it and a buffer.
    fn post(&mut self, responses: &mut CardSender) -> bool {
        let (number, part) = self.next;
        let Some(size) = self.sizes.get(number as usize).copied() else { return false };
        if self.free.is_empty() {
            return false;
        }
        let Some(mut block) = self.pool.take() else { return false };
        let place = self.free.pop_front().unwrap();
        let begin = part as usize * CHUNK;
        let len = CHUNK.min(size - begin);
        let mut from = block.split_to(len);
        fill(number, part, &mut from);
        let tag = self.tag;
        self.tag += 1;
        responses.transfer(tag, Bulk::Write { from: from.into(), at: place * CHUNK as u64 }).unwrap();
        self.under_way.insert(tag, Part { number, part, size: size as u64, place, len });
        self.next = if begin + len == size { (number + 1, 0) } else { (number, part + 1) };
        self.ahead_max = self.ahead_max.max(number + 1 - self.acknowledged);
        true
    }

    fn hear(&mut self, words: Words) {
        match words {
            [START, ..] => self.started = true,
            [FREE, place, ..] => {
                assert!(!self.free.contains(&place), "a place is given back once");
                self.free.push_back(place);
            }
            [STORED, number, ..] => {
                assert_eq!(number, self.acknowledged, "acknowledged once each, in order");
                self.acknowledged += 1;
                self.progress.acknowledged.store(self.acknowledged, Ordering::Release);
            }
            other => panic!("{other:?}"),
        }
    }
}

impl CardService for Poster {
    fn open(&mut self, key: GroupKey, service: u32) -> Result<(), String> {
        if service == POSTS {
            self.posts = Some(key);
        }
        Ok(())
    }

    fn requests(&mut self, key: GroupKey, batch: Batch, responses: &mut CardSender) {
        for message in batch.iter() {
            if self.posts == Some(key) {
                self.hear(decode(message.inline));
            } else {
                responses.push(message.inline).unwrap();
            }
        }
    }

    fn responses(&mut self, key: GroupKey, responses: &mut CardSender) {
        if self.posts == Some(key) {
            self.pump(responses);
        }
    }

    fn transferred(&mut self, _: GroupKey, done: BulkDone, _: &mut CardSender) {
        let part = self.under_way.remove(&done.tag).expect("each transfer is over once");
        let Bulk::Write { from, at } = done.bulk else { panic!("nothing is read here") };
        assert_eq!((at, from.len()), (part.place * CHUNK as u64, part.len));
        match done.result {
            Ok(()) => {
                self.transferred += 1;
                self.announce.push_back(part);
            }
            Err(_) => self.carry.push_back((part, from)),
        }
    }

    fn closed(&mut self, _: GroupKey) {}

    fn channel(&mut self, _: AttachmentId, _: &[u8]) {}
}

/// The host's half.
pub struct Store {
    dice: Dice,
    /// The next number to be stored.
    pub next: u64,
    /// Parts of transactions that are not whole: how many bytes are here, and how many there will be.
    partial: BTreeMap<u64, (BTreeMap<u64, Vec<u8>>, u64)>,
    /// Places to be given back, and messages that wait for room.
    places: Vec<u64>,
    out: VecDeque<Words>,
    last_returned: Option<u64>,
    pub returned_out_of_order: u64,
}

impl Store {
    pub fn new(dice: Dice) -> Self {
        Self {
            dice,
            next: 0,
            partial: BTreeMap::new(),
            places: Vec::new(),
            out: VecDeque::new(),
            last_returned: None,
            returned_out_of_order: 0,
        }
    }

    /// Takes what has come and says what there is to say. `false` if nothing moved.
    pub fn turn(&mut self, sender: &HostSender, receiver: &HostReceiver, areas: &HostAreas) -> bool {
        let mut moved = false;
        while let Some(message) = receiver.receive().unwrap() {
            let mut inline = [0; WORDS_LEN];
            message.inline(&mut inline);
            let [kind, number, part, size, place] = decode(&inline);
            let len = CHUNK.min(size as usize - part as usize * CHUNK);
            let mut bytes = vec![0; len];
            match kind {
                PLACED => {
                    areas.copy_out(place * CHUNK as u64, &mut bytes).unwrap();
                    self.places.push(place);
                }
                CARRIED => assert_eq!(message.payload(0, &mut bytes), len),
                other => panic!("{other}"),
            }
            drop(message);
            self.take(number, part, size, bytes);
            moved = true;
        }
        // Some places are kept for a while, so that they come back in any order; all of them when nothing comes.
        while self.places.len() > if moved { 6 } else { 0 } {
            let index = self.dice.below(self.places.len() as u64) as usize;
            let place = self.places.swap_remove(index);
            self.returned_out_of_order += u64::from(self.last_returned.is_some_and(|last| place < last));
            self.last_returned = Some(place);
            self.out.push_back([FREE, place, 0, 0, 0]);
        }
        while let Some(words) = self.out.front() {
            if sender.push(Outgoing { inline: &encode(*words), payload: None }).is_err() {
                break;
            }
            self.out.pop_front();
            moved = true;
        }
        moved
    }

    fn take(&mut self, number: u64, part: u64, size: u64, bytes: Vec<u8>) {
        assert!(number >= self.next, "nothing comes for what is stored");
        let mut expected = vec![0; bytes.len()];
        fill(number, part, &mut expected);
        assert!(bytes == expected, "part {part} of transaction {number} has other bytes");
        let (parts, _) = self.partial.entry(number).or_insert_with(|| (BTreeMap::new(), size));
        assert!(parts.insert(part, bytes).is_none(), "each part comes once");
        while let Some((parts, size)) = self.partial.get(&self.next) {
            let here: usize = parts.values().map(Vec::len).sum();
            if here as u64 != *size {
                return;
            }
            self.partial.remove(&self.next);
            self.out.push_back([STORED, self.next, 0, 0, 0]);
            self.next += 1;
        }
    }
}
