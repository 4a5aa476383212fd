//! Power that goes at any write of a chunk server: what was answered is there, and what is told of ends is right.
//!
//! A script of requests runs once, and the writes of its disk are counted; then it runs again and again, and the power goes with the
//! first, the second, and so on. The disk is the simulator's: writes that were under way are there by blocks, or not at all, and what
//! was not flushed may be.

use ob_core::{BlockLen, ChunkName, Epoch, Lba, Sequence, Units};
use ob_format::volume::{ChunkKind, Encoding, RECORDS_START, Record, RecordHeader, RecordKind};
use ob_sim::Rng;
use ob_volume::chunk::ServerState;
use ob_volume::wire::{CreateState, EndState, Refusal, ReplicaState, Reply, Request};

use super::support::{Client, CrashDisk, Rig, chunk, config, epoch, result, units};

const CAPACITY: u64 = 12 << 20;
const LENGTH: Units = Units(2048);
const CHUNKS: u32 = 4;
const STEPS: u32 = 40;

/// What was asked, and what was answered, of one chunk.
#[derive(Clone, Debug, Default)]
struct Known {
    /// Asked for, and answered.
    making: bool,
    made: bool,
    is_filling: bool,
    /// All records that were sent, and how many bytes of them are durable as was told.
    sent: Vec<u8>,
    durable: usize,
    stopping: bool,
    stopped: bool,
    sealing: Option<(Units, u32)>,
    sealed: Option<(Units, u32)>,
    deleting: bool,
    deleted: bool,
}

struct Script {
    rig: Rig<CrashDisk>,
    client: Client,
    rng: Rng,
    known: Vec<Known>,
    /// The epoch that was told last, and the highest that was sent.
    epoch: u32,
    epoch_sent: u32,
    count: u64,
}

fn end_of(bytes: &[u8]) -> Units {
    Units(RECORDS_START.0 + units(bytes).0)
}

fn new_rig(seed: u64, block_len: u32) -> Rig<CrashDisk> {
    let mut rig = Rig::formatted(CrashDisk::new(seed, block_len, CAPACITY), config());
    rig.run();
    assert_eq!(rig.server.facts().state, ServerState::Serving);
    rig
}

impl Script {
    fn new(seed: u64, block_len: u32, cut_at: Option<u32>) -> Self {
        let mut rig = new_rig(seed, block_len);
        let client = rig.greet(0, 1);
        rig.disk.count(cut_at);
        let known = vec![Known::default(); CHUNKS as usize];
        Self { rig, client, rng: Rng::new(seed).fork("script"), known, epoch: 0, epoch_sent: 1, count: 0 }
    }

    fn name(index: usize) -> ChunkName {
        chunk(index as u32 + 1)
    }

    fn now(&self) -> Epoch {
        epoch(self.epoch_sent)
    }

    /// Runs until nothing is left to do or the power is gone; whether it is.
    fn run(&mut self) -> bool {
        for _ in 0..STEPS {
            self.step();
            if self.rig.disk_is_off() {
                return true;
            }
        }
        false
    }

    fn step(&mut self) {
        let index = self.rng.index(self.known.len());
        let known = self.known[index].clone();
        let roll = self.rng.below(100);
        if !known.made || known.deleted {
            // Numbers are used once, but for those that are filled.
            if !known.deleted { self.create(index) } else { self.fence() }
        } else if let Some(sealed) = known.sealed {
            match roll {
                0..10 => self.delete(index),
                10..30 => self.fence(),
                30..60 => self.seal(index, sealed),
                _ => self.repair(index),
            }
        } else if known.stopped || known.is_filling {
            match roll {
                0..60 => self.add(index, true),
                60..90 => {
                    let some = self.some_prefix(index);
                    self.seal(index, some);
                }
                90..95 => self.delete(index),
                _ => self.fence(),
            }
        } else {
            match roll {
                0..80 => self.add(index, false),
                80..92 => self.stop(index),
                _ => self.fence(),
            }
        }
    }

    /// What a request without a payload brings; nothing if the power went.
    fn ask(&mut self, request: Request) -> Option<Result<Reply, Refusal>> {
        let tag = self.rig.send(self.client, request, &[]);
        self.rig.run();
        let told = self.rig.take(self.client, tag).map(|told| result(told.0));
        assert!(told.is_some() || self.rig.disk_is_off(), "{request:?} is not answered");
        if told.is_some() {
            self.epoch = self.epoch_sent;
        }
        told
    }

    fn create(&mut self, index: usize) {
        let is_filling = index % 2 == 1;
        let state = if is_filling { CreateState::Filling } else { CreateState::Open };
        let request = Request::Create {
            chunk: Self::name(index),
            epoch: self.now(),
            length: LENGTH,
            block_len: BlockLen::Small,
            state,
            kind: ChunkKind::Data,
            may_use_reserve: false,
        };
        let known = &mut self.known[index];
        (known.making, known.is_filling) = (true, is_filling);
        if let Some(told) = self.ask(request) {
            assert!(matches!(told, Ok(Reply::Create { .. })), "{told:?}");
            self.known[index].made = true;
        }
    }

    fn record(&mut self, name: ChunkName, offset: Units) -> Vec<u8> {
        let blocks = self.rng.range(1..9) as u32;
        let encoding = if self.rng.one_in(2) { Encoding::Lz4 } else { Encoding::None };
        let mut payload = vec![0; blocks as usize * 512];
        self.rng.fill(&mut payload);
        self.count += 1;
        let sequence = Sequence::new(Epoch::FIRST, self.count).unwrap();
        let header = RecordHeader {
            chunk: name,
            offset,
            sequence,
            version: sequence,
            lba: Lba(self.count as u32),
            blocks,
            stored: payload.len() as u32,
            payload_crc: crc32c::crc32c(&payload),
            kind: RecordKind::Write,
            encoding,
            behind: None,
        };
        let mut bytes = Vec::new();
        Record { header, payload: &payload }.encode_into(&mut bytes).unwrap();
        bytes
    }

    /// Sends some messages of records, one behind the other, which are answered in their order.
    fn add(&mut self, index: usize, is_fill: bool) {
        let (name, mut tags) = (Self::name(index), Vec::new());
        for _ in 0..self.rng.range(1..4) {
            let offset = end_of(&self.known[index].sent);
            let mut bytes = self.record(name, offset);
            let next = Units(offset.0 + units(&bytes).0);
            bytes.extend(self.record(name, next));
            if offset.0 + units(&bytes).0 > LENGTH.0 {
                break;
            }
            let of = self.now();
            let request = if is_fill {
                Request::Fill { chunk: name, epoch: of, offset }
            } else {
                Request::Append { chunk: name, epoch: of, offset }
            };
            tags.push((self.rig.send(self.client, request, &bytes), bytes.len()));
            self.known[index].sent.extend(bytes);
            if self.rng.one_in(2) {
                self.rig.step();
            }
        }
        self.rig.run();
        for (tag, len) in tags {
            let Some((told, _)) = self.rig.take(self.client, tag) else {
                assert!(self.rig.disk_is_off());
                return;
            };
            assert!(result(told).is_ok(), "{told:?}");
            self.known[index].durable += len;
            self.epoch = self.epoch_sent;
        }
    }

    fn stop(&mut self, index: usize) {
        self.known[index].stopping = true;
        let request = Request::Stop { chunk: Self::name(index), epoch: self.now() };
        if let Some(told) = self.ask(request) {
            let Ok(Reply::Stop(end)) = told else { panic!("{told:?}") };
            assert_eq!(end.end, end_of(&self.known[index].sent));
            self.known[index].stopped = true;
        }
    }

    /// A length at which a record ends, and the sum up to there.
    fn some_prefix(&mut self, index: usize) -> (Units, u32) {
        let sent = &self.known[index].sent;
        let mut ends = vec![0];
        while let Ok(header) = RecordHeader::decode(&sent[*ends.last().unwrap()..]) {
            ends.push(ends.last().unwrap() + header.len());
        }
        let len = *self.rng.choose(&ends).unwrap();
        (end_of(&sent[..len]), crc32c::crc32c(&sent[..len]))
    }

    fn seal(&mut self, index: usize, (length, content_crc): (Units, u32)) {
        self.known[index].sealing = Some((length, content_crc));
        let request = Request::Seal { chunk: Self::name(index), epoch: self.now(), length, content_crc };
        if let Some(told) = self.ask(request) {
            assert_eq!(told, Ok(Reply::Seal));
            let known = &mut self.known[index];
            known.sealed = Some((length, content_crc));
            let len = (length.0 - RECORDS_START.0) as usize * 64;
            known.sent.truncate(len);
            known.durable = len;
        }
    }

    fn delete(&mut self, index: usize) {
        self.known[index].deleting = true;
        let request = Request::Delete { chunk: Self::name(index), epoch: self.now() };
        if let Some(told) = self.ask(request) {
            assert_eq!(told, Ok(Reply::Delete));
            self.known[index].deleted = true;
        }
    }

    fn fence(&mut self) {
        if self.epoch == 0 {
            return;
        }
        self.epoch_sent += 1;
        let request = Request::Fence { segment: Self::name(0).segment_name(), epoch: self.now() };
        if let Some(told) = self.ask(request) {
            assert_eq!(told, Ok(Reply::Fence));
        }
    }

    /// The same record once more.
    fn repair(&mut self, index: usize) {
        let sent = self.known[index].sent.clone();
        let Ok(header) = RecordHeader::decode(&sent) else { return };
        let request = Request::Repair { chunk: Self::name(index), epoch: self.now(), offset: RECORDS_START };
        let tag = self.rig.send(self.client, request, &sent[..header.len()]);
        self.rig.run();
        if let Some((told, _)) = self.rig.take(self.client, tag) {
            assert_eq!(result(told), Ok(Reply::Repair));
        }
    }

    /// Another life, after the power went, and in some stories went again while the server began.
    fn lose_power(&mut self, again: Option<u32>) {
        let disk = self.rig.disk.clone();
        disk.lose_power();
        if let Some(cut_at) = again {
            let mut rig = Rig::start(disk.clone(), config());
            disk.count(Some(cut_at));
            rig.run();
            drop(rig);
            disk.lose_power();
        }
        self.rig = Rig::start(disk, config());
        self.rig.run();
        assert_eq!(self.rig.server.facts().state, ServerState::Serving);
        self.client = self.rig.greet(0, 1);
    }

    fn judge(&mut self) {
        if self.epoch > 1 {
            let below = epoch(self.epoch - 1);
            let told = self.rig.get(self.client, Request::Stat { chunk: Self::name(0), epoch: below });
            let Err(Refusal::Stale { known }) = told else { panic!("{told:?} below {}", self.epoch) };
            assert!((u64::from(self.epoch)..=u64::from(self.epoch_sent)).contains(&known));
        }
        if self.epoch == 0 {
            // Perhaps it is of no pool yet.
            return;
        }
        for index in 0..self.known.len() {
            self.judge_chunk(index);
        }
    }

    fn judge_chunk(&mut self, index: usize) {
        let (name, known) = (Self::name(index), self.known[index].clone());
        let told = self.rig.get(self.client, Request::Stat { chunk: name, epoch: self.now() });
        let (end, state) = match told {
            Ok(Reply::Stat { end, state }) => (end, state),
            Err(Refusal::NoChunk) => {
                return assert!(!known.made || known.deleting, "chunk {index} is lost: {known:?}");
            }
            other => panic!("chunk {index}: {other:?}"),
        };
        assert!(known.making && !known.deleted, "chunk {index} is there again");
        let is_sealed = state == ReplicaState::Sealed;
        match (known.sealed, known.sealing) {
            (Some((length, content_crc)), _) => {
                assert_eq!((state, end.end, end.content_crc), (ReplicaState::Sealed, length, content_crc));
            }
            (None, Some((length, content_crc))) if is_sealed => {
                assert_eq!((end.end, end.content_crc), (length, content_crc));
            }
            _ => {
                assert!(!is_sealed && end.end >= end_of(&known.sent[..known.durable]), "{end:?} {known:?}");
                let may_be = match state {
                    ReplicaState::Stopped => known.stopping,
                    ReplicaState::Open => !known.stopped && !known.is_filling,
                    _ => known.is_filling,
                };
                assert!(may_be, "chunk {index} is {state:?}: {known:?}");
                let is_under_way = known.durable < known.sent.len();
                let is_right = match end.state {
                    EndState::Clean => true,
                    EndState::Doubtful => is_under_way,
                    EndState::Known | EndState::Damaged => false,
                };
                assert!(is_right, "chunk {index}: {end:?} of {known:?}");
            }
        }
        let len = (end.end.0 - RECORDS_START.0) as usize * 64;
        assert!(len <= known.sent.len());
        assert_eq!(end.content_crc, crc32c::crc32c(&known.sent[..len]));
        let request = Request::Read {
            chunk: name,
            epoch: self.now(),
            offset: RECORDS_START,
            len: (len as u32).max(64),
        };
        let (told, bytes) = self.rig.ask(self.client, request, &[]);
        assert!(result(told).is_ok());
        assert!(len == 0 || bytes[..len] == known.sent[..len], "chunk {index} has other bytes");
        self.go_on(index, end.end, state);
    }

    /// What is there can be gone on with: records are added at the end that was told.
    fn go_on(&mut self, index: usize, end: Units, state: ReplicaState) {
        let (name, of) = (Self::name(index), self.now());
        let request = match state {
            ReplicaState::Sealed => return,
            ReplicaState::Open => Request::Append { chunk: name, epoch: of, offset: end },
            _ => Request::Fill { chunk: name, epoch: of, offset: end },
        };
        // What was under way comes again as it was (C8).
        let len = (end.0 - RECORDS_START.0) as usize * 64;
        let rest = self.known[index].sent[len..].to_vec();
        let record = if rest.is_empty() { self.record(name, end) } else { rest };
        if end.0 + units(&record).0 > LENGTH.0 {
            return;
        }
        let (told, _) = self.rig.ask(self.client, request, &record);
        assert!(result(told).is_ok(), "{told:?}");
        let (after, _) = self.rig.stat(self.client, name, of);
        assert_eq!(after.end, Units(end.0 + units(&record).0));
    }
}

fn every_write(seed: u64, block_len: u32) {
    let mut whole = Script::new(seed, block_len, None);
    assert!(!whole.run());
    let changes = whole.rig.disk.changes();
    whole.lose_power(None);
    whole.judge();
    assert!(changes > 30, "{changes} writes");
    for cut_at in 1..=changes {
        let mut script = Script::new(seed, block_len, Some(cut_at));
        if !script.run() {
            continue;
        }
        let again = (cut_at % 3 == 0).then_some(1 + cut_at / 3 % 8);
        script.lose_power(again);
        script.judge();
    }
}

#[test]
fn power_goes_at_any_write_on_blocks_of_512_bytes() {
    (0..2).for_each(|seed| every_write(seed, 512));
}

#[test]
fn power_goes_at_any_write_on_blocks_of_4096_bytes() {
    (10..12).for_each(|seed| every_write(seed, 4096));
}
