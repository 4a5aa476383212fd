//! Random commands over all encodings against an array: the card's half of a port with the dialect of volumes, a host that keeps an
//! index, and chunk servers in memory, of which some give bytes that are not what was stored.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ob_core::{
    AttachmentId, BlockLen, ChunkId, ChunkName, Dma, Epoch, GroupId, Incarnation, Instant, Lba, RegionId,
    SegmentId, Sequence, Token, Units, VolumeId,
};
use ob_format::volume::{Encoding, Record, RecordKind};
use ob_memory::{Pool, Region, Slice};
use ob_ring::{
    CardBell, CardReceiver, CardSender, CardService, Closed, GroupKey, HostAreas, HostReceiver, HostSender,
    LocalDma, Outgoing, Received,
};
use ob_split::card::{Arrived, Front, FrontAnswer, FrontKey, PortConfig, RetainedCounts, SplitCard};
use ob_split::engine::{Effort, SoftEngine};
use ob_split::wire::{
    CardMessage, Channel, ChannelId, ChannelWhat, Completion, CompletionStatus, Entry, FromCard, HEADER_LEN,
    Handle, Hello, MessageBuilder, SPLIT_SERVICE, Set, SetWhat, Slot, kind,
};
use ob_volume::card::{Patience, VolumeDialect};
use ob_volume::plans::{
    CardPress, GivenPiece, PAYLOAD_MAX, PostedPlan, RUNS_MAX, Run, TAKE_BASE, TAKE_SLOT_LEN, definitions,
    piece_blocks,
};
use ob_volume::wire::{Answer, MAGIC, Reply, ReplyMessage, Request, RequestMessage, check_records};
use ob_wire_link::group::{GroupSizes, GroupSpec};
use ob_wire_nvme::command::{DataPointer, IoOpcode};
use ob_wire_nvme::io::BlockCommand;
use ob_wire_nvme::{CommandId, NamespaceId, Status};
use zerocopy::IntoBytes;

#[path = "../../ob-split/tests/card_rig/net.rs"]
#[allow(dead_code, unreachable_pub, reason = "other tests use other parts of it")]
mod net;

use net::TestNet;

pub(crate) const NAME: ChunkName =
    ChunkName { volume: VolumeId(1), segment: SegmentId(0), chunk: ChunkId(2) };
pub(crate) const SLOT: Slot = Slot(3);
const BLOCKS: usize = 2048;
const RESPONSES: u64 = 4;

pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }

    /// Bytes of one kind or another: zeros, text, noise, and text with noise in it.
    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let (kind, seed) = (self.below(4), self.below(200) as u8);
        let text = |at: usize| b"the same words again and again "[(at + usize::from(seed)) % 31];
        (0..len)
            .map(|at| match kind {
                0 => seed & 1,
                1 => text(at),
                2 => self.below(256) as u8,
                _ if at / 100 % 3 == 0 => self.below(256) as u8,
                _ => text(at),
            })
            .collect()
    }
}

#[derive(Default)]
pub(crate) struct Bell(AtomicBool);

impl CardBell for Bell {
    fn ring(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[derive(Default)]
pub(crate) struct Commands {
    inbox: VecDeque<Arrived>,
    answers: HashMap<u64, Option<Vec<u8>>>,
}

impl Front for Commands {
    fn next(&mut self, _: Instant) -> Option<Arrived> {
        self.inbox.pop_front()
    }

    fn answer(&mut self, key: FrontKey, answer: FrontAnswer) {
        let bytes = match answer {
            FrontAnswer::Data(slice) => Some(slice.to_vec()),
            FrontAnswer::Shared(shared) => Some(shared.to_vec()),
            FrontAnswer::Status(0) => None,
            other => panic!("{other:?}"),
        };
        assert!(self.answers.insert(key.0, bytes).is_none(), "answered once");
    }

    fn gone(&mut self) -> Option<FrontKey> {
        None
    }
}

/// What a chunk server does with a record that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// A byte is another.
    Flipped,
    /// A block of LZ4 that cannot be decoded, or decodes to something else in length, with checksums that fit.
    Hostile,
    /// It says nothing.
    Mute,
}

/// The host's view of a block: where its record lies.
type Place = (Units, Units);

/// Bytes of both areas: three of the longest payloads.
const AREA: u64 = TAKE_BASE + 3 * PAYLOAD_MAX as u64;
/// The slot of the second.
const TAKEN: Slot = Slot((PAYLOAD_MAX as u64 / TAKE_SLOT_LEN) as u16);

pub(crate) struct Rig {
    pub(crate) card: SplitCard<TestNet, Commands, VolumeDialect, SoftEngine>,
    key: GroupKey,
    dma: LocalDma,
    receiver: CardReceiver,
    sender: CardSender,
    host_sender: HostSender,
    host_receiver: HostReceiver,
    bell: Arc<Bell>,
    builder: MessageBuilder,
    credit: u32,
    now: Instant,
    payloads: Pool,
    /// Handles of messages, in their order.
    headers: VecDeque<Handle>,
    /// Pieces of plans that are over.
    done: BTreeMap<u32, Vec<(CompletionStatus, Units, Units, u8)>>,
    /// The last completion of each handle.
    pub(crate) last: BTreeMap<u32, Completion>,
    /// All servers have the same.
    pub(crate) chunks: BTreeMap<ChunkName, Vec<u8>>,
    /// What is said to what is no append and no read: the reply, and what comes with it.
    pub(crate) script: VecDeque<(Answer, Vec<u8>)>,
    pub(crate) asked: Vec<Request>,
    /// What came with the last of these.
    pub(crate) sent: Vec<u8>,
    pub(crate) areas: HostAreas,
    pub(crate) faults: [Fault; 3],
    pub(crate) dice: Dice,
    next: u64,
    encoded: [usize; 2],
    given_plans: usize,
    /// Runs that the card has had memory for at once, and how often it had not.
    runs_max: usize,
    refused: usize,
    pressed_plans: usize,
    block_len: BlockLen,
    disk: Vec<u8>,
    index: Vec<Option<Place>>,
}

impl Rig {
    /// A port that retains nothing: servers are asked for all that is read.
    pub(crate) fn new(seed: u64, block_len: BlockLen) -> Self {
        Self::with(seed, block_len, false)
    }

    pub(crate) fn with(seed: u64, block_len: BlockLen, retains: bool) -> Self {
        let config = PortConfig {
            memory: vec![(4 << 10, 64), (72 << 10, 40)],
            // Not for all that is written: what is retained comes and goes.
            records: 6,
            retains,
            plans_max: 64,
            handles_max: 64,
            ..PortConfig::default()
        };
        let (net, dialect) = (TestNet::default(), VolumeDialect::new(Patience::default()));
        let card = SplitCard::new(config, net, Commands::default(), dialect, SoftEngine::new(4));
        let sizes = GroupSizes { request: 64 << 10, response: 64 << 10, card_area: AREA, host_area: AREA };
        let spec = GroupSpec::new(RegionId(0), sizes, 2 << 20).unwrap();
        let region = Region::on_heap(spec.region_len as usize);
        let mut dma = LocalDma::new(1024, 2 << 20);
        dma.register(RegionId(0), region.clone());
        let (closed, bell) = (Closed::default(), Arc::<Bell>::default());
        let mut rig = Self {
            card,
            key: GroupKey { attachment: AttachmentId(1), group: GroupId(1) },
            dma,
            receiver: CardReceiver::of_group(&spec, Token(0)).unwrap(),
            sender: CardSender::of_group(&spec, Token(RESPONSES)).unwrap(),
            host_sender: HostSender::new(region.clone(), spec.request, closed.clone(), bell.clone()),
            host_receiver: HostReceiver::new(region.clone(), spec.response, closed.clone(), bell.clone()),
            bell,
            builder: MessageBuilder::default(),
            credit: 64,
            now: Instant::from_nanoseconds(1_000_000_000),
            payloads: Pool::new(1 << 20, 16),
            headers: VecDeque::new(),
            done: BTreeMap::new(),
            last: BTreeMap::new(),
            chunks: BTreeMap::from([(NAME, vec![0; 64 << 20])]),
            script: VecDeque::new(),
            asked: Vec::new(),
            sent: Vec::new(),
            areas: HostAreas::new(region, &spec, closed).unwrap(),
            faults: [Fault::None; 3],
            dice: Dice(seed),
            next: 1,
            encoded: [0; 2],
            given_plans: 0,
            runs_max: RUNS_MAX,
            refused: 0,
            pressed_plans: 0,
            block_len,
            disk: vec![0; BLOCKS * block_len.bytes() as usize],
            index: vec![None; BLOCKS],
        };
        rig.begin();
        rig
    }

    fn begin(&mut self) {
        self.card.open(self.key, SPLIT_SERVICE).unwrap();
        self.say(kind::HELLO, &Hello { slots: 0, incarnation: Incarnation(1), gate: None });
        for definition in definitions().unwrap() {
            self.builder.define(&definition);
            let bytes = self.builder.finish(0, self.credit).to_vec();
            self.push(&bytes);
        }
        self.run();
        for port in 1..=3u16 {
            let address = Some(([127, 0, 0, 1], port).into());
            self.say(
                kind::CHANNEL,
                &Channel { channel: ChannelId(port), what: ChannelWhat::Connect, address },
            );
        }
        self.run();
        self.set(SLOT, NAME, SetWhat::Append);
    }

    /// A slot is set to a chunk, which is made if it is not there.
    pub(crate) fn set(&mut self, slot: Slot, chunk: ChunkName, what: SetWhat) {
        self.chunks.entry(chunk).or_insert_with(|| vec![0; 8 << 20]);
        let channels = [ChannelId(1), ChannelId(2), ChannelId(3), ChannelId(0)];
        let (offset, length, epoch) = (Units(64), Units(1 << 17), Epoch::new(1));
        self.say(kind::SET, &Set { slot, what, epoch, chunk, channels, members: 3, offset, length });
        self.run();
    }

    fn push(&self, bytes: &[u8]) {
        self.host_sender.push(Outgoing { inline: bytes, payload: None }).unwrap();
    }

    fn say<E: Entry>(&mut self, kind: u8, entry: &E) {
        self.builder.begin(kind);
        assert!(self.builder.push(entry));
        let bytes = self.builder.finish(0, self.credit).to_vec();
        self.push(&bytes);
    }

    pub(crate) fn post(&mut self, plan: &PostedPlan) {
        self.builder.begin(kind::PLANS);
        assert!(self.builder.push_plan(&plan.entry()));
        let bytes = self.builder.finish(0, self.credit).to_vec();
        self.push(&bytes);
    }

    fn turn(&mut self) -> bool {
        let mut worked = self.card.poll(self.now);
        if self.bell.0.swap(false, Ordering::Relaxed) {
            self.receiver.wake();
            self.sender.wake();
        }
        for _ in 0..4 {
            self.receiver.step(&mut self.dma).unwrap();
            self.card.responses(self.key, &mut self.sender);
            self.sender.step(&mut self.dma).unwrap();
            while let Some(completion) = self.dma.poll() {
                if completion.token.0 & RESPONSES != 0 {
                    if let Some(done) = self.sender.complete(completion).unwrap() {
                        self.card.transferred(self.key, done, &mut self.sender);
                    }
                } else if let Received::Batch(batch) =
                    self.receiver.complete(&mut self.dma, completion).unwrap()
                {
                    self.card.requests(self.key, batch, &mut self.sender);
                }
            }
        }
        let host = self.host_receiver.clone();
        while let Some(claimed) = host.receive().unwrap() {
            let mut bytes = vec![0; claimed.inline_len()];
            claimed.inline(&mut bytes);
            drop(claimed);
            worked = true;
            self.hear(&bytes);
        }
        self.serve() || worked
    }

    fn hear(&mut self, bytes: &[u8]) {
        match FromCard::decode(bytes).unwrap().message {
            CardMessage::Headers(headers) => {
                self.headers.extend(headers.iter().map(|header| header.descriptor().handle));
            }
            CardMessage::Done(all) => {
                for done in all.iter() {
                    let of = done.completion;
                    let piece = (of.status, Units(of.offset), Units(of.units.into()), of.bad_members);
                    self.done.entry(of.handle.0).or_default().push(piece);
                    self.last.insert(of.handle.0, of);
                }
            }
            CardMessage::Broken(broken) => panic!("{:?}", broken.iter().next()),
            _ => {}
        }
    }

    /// Chunk servers take and give. All have the same bytes; what one gives may be something else.
    fn serve(&mut self) -> bool {
        let mut worked = false;
        let is_there = self.card.net().pipes.len() == 3;
        for port in (1..=3u16).filter(|_| is_there) {
            for (header, payload) in self.card.net_mut().heard(port) {
                worked = true;
                let request = RequestMessage::decode(&header.encode()).unwrap();
                let (reply, bytes) = match request.request {
                    Request::Append { chunk, offset, .. } => {
                        let end = check_records(chunk, offset, &payload).unwrap();
                        let at = offset.bytes() as usize;
                        self.chunks.get_mut(&chunk).unwrap()[at..at + payload.len()]
                            .copy_from_slice(&payload);
                        let record = Record::decode(&payload).unwrap().header;
                        self.encoded[usize::from(record.encoding == Encoding::Lz4)] += 1;
                        (Reply::Append { durable: end, free: 1 << 40 }, Vec::new())
                    }
                    Request::Read { chunk, offset, len, .. } if self.script.is_empty() => {
                        let at = offset.bytes() as usize;
                        let bytes = self.chunks[&chunk][at..at + len as usize].to_vec();
                        match self.given(usize::from(port) - 1, bytes) {
                            Some(bytes) => (Reply::Read, bytes),
                            None => continue,
                        }
                    }
                    other => {
                        self.asked.push(other);
                        self.sent = payload;
                        let (answer, bytes) = self.script.pop_front().unwrap();
                        self.reply(port, header.tag, answer, &bytes);
                        continue;
                    }
                };
                self.reply(port, header.tag, Answer::Good(reply), &bytes);
            }
        }
        worked
    }

    fn reply(&mut self, port: u16, tag: u64, answer: Answer, bytes: &[u8]) {
        let reply = ReplyMessage { tag, payload_len: bytes.len() as u32, answer }.encode().unwrap();
        self.card.net_mut().say(port, &[&reply[..], bytes].concat());
    }

    /// What a server gives in place of a record.
    fn given(&mut self, server: usize, mut bytes: Vec<u8>) -> Option<Vec<u8>> {
        match self.faults[server] {
            Fault::None => {}
            Fault::Mute => return None,
            Fault::Flipped => {
                let at = self.dice.below(bytes.len());
                bytes[at] ^= 1 << self.dice.below(8);
            }
            Fault::Hostile => {
                let record = Record::decode(&bytes).unwrap();
                let mut header = record.header;
                assert_eq!(header.kind, RecordKind::Write);
                let payload: Vec<u8> = match self.dice.below(3) {
                    // Matches of what was never there, lengths without end, and what ends too early.
                    0 => (0..record.payload.len()).map(|_| self.dice.below(256) as u8).collect(),
                    1 => vec![0xFF; record.payload.len()],
                    _ => record.payload.iter().rev().copied().collect(),
                };
                header.encoding = Encoding::Lz4;
                header.payload_crc = crc32c::crc32c(&payload);
                let mut hostile = Vec::new();
                if (Record { header, payload: &payload }).encode_into(&mut hostile).is_ok() {
                    hostile.resize(bytes.len(), 0);
                    return Some(hostile);
                }
                bytes[70] ^= 1;
            }
        }
        Some(bytes)
    }

    pub(crate) fn run(&mut self) {
        let mut idle = 0;
        for _ in 0..20_000 {
            idle = if self.turn() { 0 } else { idle + 1 };
            if idle > 3 {
                return;
            }
        }
        panic!("the port never comes to rest");
    }

    /// A command has come: its key, and by what the host knows it.
    fn command(&mut self, opcode: IoOpcode, start: usize, blocks: usize) -> (u64, Handle) {
        let key = self.next;
        self.next += 1;
        let block = self.block_len.bytes() as usize;
        let take = |rig: &Self, is_wanted: bool| -> Option<Slice> {
            is_wanted.then(|| {
                let mut slice = rig.payloads.take().unwrap();
                slice.truncate(blocks * block);
                slice
            })
        };
        let (mut payload, mut answer) =
            (take(self, opcode == IoOpcode::Write), take(self, opcode == IoOpcode::Read));
        if let Some(payload) = &mut payload {
            payload.copy_from_slice(&self.disk[start * block..(start + blocks) * block]);
        }
        // What was there before is not to be seen.
        answer.iter_mut().for_each(|answer| answer.fill(0xA5));
        let command = BlockCommand::new(NamespaceId(1), start as u64, blocks as u32);
        let entry = command.encode(opcode, CommandId(9), DataPointer::None);
        let mut header = [0; HEADER_LEN];
        header.copy_from_slice(entry.as_bytes());
        self.card.front_mut().inbox.push_back(Arrived {
            key: FrontKey(key),
            from: 1,
            since: self.now,
            header,
            payload,
            answer,
        });
        self.credit += 1;
        self.run();
        (key, self.headers.pop_front().unwrap())
    }

    /// Writes blocks that shrink; they are given back.
    pub(crate) fn put(&mut self, start: usize, blocks: usize, effort: u8) -> Vec<u8> {
        let block = self.block_len.bytes() as usize;
        let bytes: Vec<u8> = (0..blocks * block).map(|at| (at / 100) as u8).collect();
        self.disk[start * block..][..bytes.len()].copy_from_slice(&bytes);
        let (key, handle) = self.command(IoOpcode::Write, start, blocks);
        let sequence = Sequence::new(Epoch::new(1).unwrap(), key << 10).unwrap();
        self.post(&PostedPlan::write(handle, SLOT, effort, sequence, None).unwrap());
        self.run();
        assert_eq!(self.card.front_mut().answers.remove(&key), Some(None));
        let pieces = self.done.remove(&handle.0).unwrap();
        for block in start..start + blocks {
            let (_, offset, units, _) = pieces[(block - start) / piece_blocks(self.block_len) as usize];
            self.index[block] = Some((offset, units));
        }
        bytes
    }

    /// Where a block lies.
    pub(crate) fn place_of(&self, block: usize) -> (Units, Units) {
        self.index[block].unwrap()
    }

    fn write(&mut self) {
        let block = self.block_len.bytes() as usize;
        let blocks = 1 + self.dice.below([4, 40, (1 << 20) / block][self.dice.0 as usize % 3].min(BLOCKS));
        let start = self.dice.below(BLOCKS - blocks + 1);
        let bytes = self.dice.bytes(blocks * block);
        self.disk[start * block..][..bytes.len()].copy_from_slice(&bytes);
        let (key, handle) = self.command(IoOpcode::Write, start, blocks);
        let effort = self.dice.below(5) as u8;
        let sequence = Sequence::new(Epoch::new(1).unwrap(), key << 10).unwrap();
        // The host may make of it what is stored.
        if self.dice.below(3) == 0 {
            self.give(handle, effort, sequence, &bytes);
        } else {
            self.post(&PostedPlan::write(handle, SLOT, effort, sequence, None).unwrap());
        }
        self.run();
        assert_eq!(self.card.front_mut().answers.remove(&key), Some(None));
        let each = piece_blocks(self.block_len) as usize;
        let pieces = self.done.remove(&handle.0).unwrap();
        assert_eq!(pieces.len(), blocks.div_ceil(each));
        for (at, (status, offset, units, _)) in pieces.into_iter().enumerate() {
            assert_eq!(status, CompletionStatus::Good);
            for block in start + at * each..(start + (at + 1) * each).min(start + blocks) {
                self.index[block] = Some((offset, units));
            }
        }
    }

    /// A payload goes to the host, which compresses it and gives it back.
    fn give(&mut self, handle: Handle, effort: u8, sequence: Sequence, bytes: &[u8]) {
        self.post(&PostedPlan::take(handle, TAKEN, 0, bytes.len() as u32).unwrap());
        self.run();
        assert_eq!(self.done.remove(&handle.0).unwrap()[0].0, CompletionStatus::Good);
        let mut taken = vec![0; bytes.len()];
        self.areas.copy_out(TAKE_BASE + u64::from(PAYLOAD_MAX), &mut taken).unwrap();
        assert!(taken == bytes, "what is taken is the payload");
        if effort > 0 && self.dice.below(2) == 0 {
            return self.press(handle, effort, sequence, &taken);
        }
        let (mut engine, mut packed, mut at) = (SoftEngine::new(1), vec![0; 64 << 10], TAKE_BASE);
        let mut pieces = Vec::new();
        for piece in taken.chunks(64 << 10) {
            let effort = Effort::new(effort).filter(|effort| effort.number() > 0);
            let len = effort.and_then(|effort| engine.compress(effort, piece, &mut packed).ok());
            let stored = len.map_or(piece, |len| &packed[..len as usize]);
            self.areas.copy_in(at, stored).unwrap();
            pieces.push(GivenPiece {
                at,
                stored: stored.len() as u32,
                is_lz4: len.is_some(),
                is_back: false,
            });
            at += stored.len() as u64;
        }
        self.given_plans += 1;
        self.post(&PostedPlan::given(handle, SLOT, sequence, None, &pieces).unwrap());
    }

    /// The host has the card compress it, piece by piece, and gives that back.
    fn press(&mut self, handle: Handle, effort: u8, sequence: Sequence, taken: &[u8]) {
        let longest = u64::from(PAYLOAD_MAX);
        let (plain, packed) = (TAKE_BASE + longest, TAKE_BASE + 2 * longest);
        let (mut engine, mut expected, mut at) = (SoftEngine::new(1), vec![0; 64 << 10], 0);
        let mut pieces = Vec::new();
        for piece in taken.chunks(64 << 10) {
            let length = piece.len() as u32;
            self.post(
                &PostedPlan::press(handle, &CardPress { effort, at: plain + at, into: packed + at, length })
                    .unwrap(),
            );
            self.run();
            let (status, offset, ..) = self.done.remove(&handle.0).unwrap()[0];
            let of_library = engine.compress(Effort::new(effort).unwrap(), piece, &mut expected);
            pieces.push(match of_library {
                Ok(stored) => {
                    assert_eq!((status, offset), (CompletionStatus::Good, Units(stored)));
                    let mut brought = vec![0; stored as usize];
                    self.areas.copy_out(packed + at, &mut brought).unwrap();
                    assert!(brought == expected[..stored as usize], "what the card has made is in its area");
                    GivenPiece { at: packed + at, stored, is_lz4: true, is_back: true }
                }
                Err(_) => {
                    assert_eq!((status, offset), (CompletionStatus::Engine, Units(0)), "it does not shrink");
                    GivenPiece { at: plain + at, stored: length, is_lz4: false, is_back: true }
                }
            });
            at += u64::from(length);
        }
        self.pressed_plans += 1;
        self.post(&PostedPlan::given(handle, SLOT, sequence, None, &pieces).unwrap());
    }

    fn read(&mut self) {
        let block = self.block_len.bytes() as usize;
        let is_slow = self.faults.contains(&Fault::Mute);
        // Whoever says nothing is waited for, with each of them.
        let most = if is_slow || self.dice.below(2) == 0 { 200 } else { (1 << 20) / block };
        let blocks = 1 + self.dice.below(most);
        let start = self.dice.below(BLOCKS - blocks + 1);
        self.read_blocks(start, blocks);
    }

    fn read_blocks(&mut self, start: usize, blocks: usize) {
        let (block, is_slow) = (self.block_len.bytes() as usize, self.faults.contains(&Fault::Mute));
        let mut runs: Vec<Run> = Vec::new();
        let mut at = start;
        while at < start + blocks {
            let place = self.index[at];
            let same = (at..start + blocks).take_while(|block| self.index[*block] == place).count();
            let (lba, count) = (Lba(at as u32), same as u32);
            runs.push(match place {
                None => Run::Zeros { blocks: count },
                Some((place, units)) => Run::Record { slot: SLOT, place, units, lba, blocks: count },
            });
            at += same;
        }
        let (key, handle) = self.command(IoOpcode::Read, start, blocks);
        let (mut rest, mut first) = (&runs[..], 0);
        while !rest.is_empty() {
            let (part, behind) = rest.split_at(rest.len().min(self.runs_max));
            let is_all = part.len() == runs.len();
            self.post(&PostedPlan::read(handle, None, (!is_all).then_some(first), part).unwrap());
            self.run();
            // Then another is asked.
            for _ in 0..if is_slow { 6 } else { 0 } {
                self.now = self.now + Patience::default().read;
                self.run();
            }
            let status = self.done.remove(&handle.0).unwrap()[0].0;
            if status == CompletionStatus::Refused {
                // It never has memory for so many at once.
                assert_eq!(self.last[&handle.0].word, 0, "no step of it was begun");
                (self.runs_max, self.refused) = (part.len() / 2, self.refused + 1);
                continue;
            }
            assert_eq!(status, CompletionStatus::Good);
            first += part.iter().map(Run::blocks).sum::<u32>();
            rest = behind;
            if rest.is_empty() && !is_all {
                self.post(&PostedPlan::answer(handle, Status::SUCCESS, true));
                self.run();
                assert_eq!(self.done.remove(&handle.0).unwrap()[0].0, CompletionStatus::Good);
            }
        }
        let answer = self.card.front_mut().answers.remove(&key).flatten().unwrap();
        let expected = &self.disk[start * block..(start + blocks) * block];
        assert!(answer == expected, "blocks {start} to {}: {runs:?}", start + blocks);
    }
}

fn play(seed: u64, block_len: BlockLen, retains: bool) -> ([usize; 2], RetainedCounts) {
    let mut rig = Rig::with(seed, block_len, retains);
    for step in 0..60 {
        rig.faults = [Fault::None; 3];
        // One member of three is always good.
        for _ in 0..rig.dice.below(3) {
            let server = rig.dice.below(3);
            rig.faults[server] = [Fault::Flipped, Fault::Hostile, Fault::Hostile][rig.dice.below(3)];
        }
        if rig.faults.iter().all(|fault| *fault != Fault::None) {
            rig.faults[1] = Fault::None;
        }
        if step % 20 == 19 {
            rig.faults = [Fault::None, Fault::Mute, Fault::Flipped];
        }
        if rig.dice.below(2) == 0 && step % 20 != 19 {
            rig.write();
        } else {
            rig.read();
        }
    }
    let counts = rig.card.counts();
    assert_eq!((counts.messages, counts.plans, counts.blocks_out), (0, 0, 0));
    assert_eq!(rig.payloads.blocks_out(), 0);
    assert!(rig.given_plans > 0 && rig.pressed_plans > 0);
    // Without it everything is asked for.
    assert_eq!(counts.retained.hits > 0, retains, "{:?}", counts.retained);
    rig.card.forget_retained();
    assert_eq!(rig.card.counts().retained.blocks, 0);
    (rig.encoded, counts.retained)
}

#[test]
fn what_is_read_is_what_was_written_whatever_it_was_encoded_to_and_whoever_lies() {
    let (mut encoded, mut hits, mut misses) = ([0; 2], 0, 0);
    for seed in 0..6 {
        for block_len in [BlockLen::Small, BlockLen::Large] {
            let ([plain, compressed], retained) = play(seed, block_len, seed % 2 == 0);
            encoded = [encoded[0] + plain, encoded[1] + compressed];
            (hits, misses) = (hits + retained.hits, misses + retained.misses);
        }
    }
    assert!(encoded.iter().all(|count| *count > 50), "both encodings are there: {encoded:?}");
    assert!(hits > 100 && misses > 20, "it is found, and it goes: {hits}, {misses}");
}

/// Each block is another record, and there is memory for a hundred of them.
#[test]
fn a_long_read_of_many_records_is_done_in_parts() {
    for block_len in [BlockLen::Small, BlockLen::Large] {
        let mut rig = Rig::with(7, block_len, false);
        for block in 0..240 {
            rig.put(block, 1, (block % 5) as u8);
        }
        rig.read_blocks(0, 250);
        assert_eq!((rig.refused, rig.runs_max), (2, 60), "of 241 runs");
        rig.read_blocks(10, 200);
        assert_eq!(rig.refused, 2, "it is known now");
        assert_eq!(rig.card.counts().blocks_out, 0);
    }
}
