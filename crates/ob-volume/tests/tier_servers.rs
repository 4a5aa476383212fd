//! Chunk servers in memory, as a tier sees them: they append, stop, fill, seal, die and return, refuse and hang.

use std::collections::{BTreeMap, BTreeSet};

use ob_core::{BlockLen, ChunkName, Epoch, Incarnation, Lba, PoolId, SegmentName, ServerId, Units, VolumeId};
use ob_format::volume::metadata::{Class, Text, Volume, VolumeState};
use ob_format::volume::{ChunkKind, Entry, Record};
use ob_volume::plans::{COPY_BYTES_MAX, Copy};
use ob_volume::wire::{
    Answer, ChunkLine, CreateState, End, EndState, HelloPayload, Refusal, ReplicaState, Reply, ReplyMessage,
    Request, RequestMessage, VERSION, WelcomePayload, encode_chunks,
};
use ob_wire_nvme::NamespaceId;

pub(crate) const START: Units = Units(64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplicaIs {
    Open,
    Stopped,
    Filling,
    Sealed(Units),
}

/// What a server has of a chunk.
#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) is: ReplicaIs,
    pub(crate) kind: ChunkKind,
    pub(crate) epoch: Epoch,
    /// How long it may become.
    pub(crate) length: Units,
    pub(crate) records: BTreeMap<Units, Vec<u8>>,
    /// Those that cannot be read any more; the server knows the sum of what was appended all the same.
    pub(crate) rotten: BTreeSet<Units>,
    /// What it knows of its end.
    pub(crate) known: EndState,
    /// Its server has looked what there is: it ends where the first one cannot be read.
    pub(crate) is_scanned: bool,
    /// In which epoch it was sealed.
    pub(crate) sealed_by: u32,
}

impl Replica {
    /// Where the records that follow each other end.
    pub(crate) fn end(&self) -> Units {
        self.records.iter().fold(
            START,
            |end, (at, bytes)| {
                if *at == end { Units(end.0 + bytes.len() as u32 / 64) } else { end }
            },
        )
    }

    /// Where the first record is that its server knows to be broken; or where they end.
    fn sound_end(&self) -> Units {
        let end = self.end();
        if self.is_scanned { self.rotten.range(..end).next().copied().unwrap_or(end) } else { end }
    }

    /// Bytes that are its own: of one that is not sealed all that it may become.
    fn taken(&self) -> u64 {
        match self.is {
            ReplicaIs::Sealed(length) => length.bytes(),
            _ => self.length.bytes(),
        }
    }

    /// What lies before a unit.
    fn content_crc(&self, length: Units) -> u32 {
        let below =
            self.records.range(..length).filter(|(at, bytes)| at.0 + bytes.len() as u32 / 64 <= length.0);
        below.fold(0, |crc, (_, bytes)| crc32c::crc32c_append(crc, bytes))
    }

    pub(crate) fn rot(&mut self) {
        self.rotten = self.records.keys().copied().collect();
    }

    /// What it tells of its records from one place on.
    fn list(&self, from: Units, to: Units, most: u32) -> (Units, Vec<Entry>) {
        let mut entries = Vec::new();
        for (at, bytes) in self.records.range(from..to) {
            let Ok(record) = Record::decode(bytes) else { break };
            let of: Vec<Entry> = ob_format::volume::entries_of(&record).collect();
            if !entries.is_empty() && entries.len() + of.len() > most as usize {
                return (*at, entries);
            }
            entries.extend(of);
        }
        (to, entries)
    }

    pub(crate) fn cut(&mut self, length: Units) {
        self.records.retain(|at, _| *at < length);
    }

    fn told(&self) -> End {
        let end = self.sound_end();
        let state = match self.is_scanned {
            true if end < self.end() => EndState::Damaged,
            true => EndState::Clean,
            false => self.known,
        };
        End { end, everywhere: START, state, content_crc: self.content_crc(end) }
    }

    fn seal(&mut self, length: Units, crc: u32, by: u32) -> Result<(), Refusal> {
        match self.is {
            ReplicaIs::Open => return Err(Refusal::Bad),
            ReplicaIs::Sealed(at) if at != length && self.sealed_by >= by => return Err(Refusal::Conflict),
            _ => {}
        }
        if self.sound_end() < length {
            self.is = ReplicaIs::Filling;
            return Err(Refusal::Gap { end: self.sound_end() });
        }
        if self.content_crc(length) != crc {
            return Err(Refusal::Conflict);
        }
        self.cut(length);
        (self.is, self.sealed_by, self.known) = (ReplicaIs::Sealed(length), by, EndState::Known);
        Ok(())
    }
}

#[derive(Default)]
pub(crate) struct Server {
    pub(crate) is_down: bool,
    pub(crate) is_full: bool,
    /// Bytes of its device, and those that are kept for maintenance; 0: as many as anybody could want.
    pub(crate) capacity: u64,
    pub(crate) reserve: u64,
    /// Entries that it tells at a time at most, if that is fewer than asked for.
    pub(crate) list_most: Option<u32>,
    /// It says that its device could not, whenever it is to make a chunk.
    pub(crate) fails_to_create: bool,
    /// Who it says that it is, if not who it was at first.
    pub(crate) number: Option<u64>,
    /// It answers nothing.
    pub(crate) hangs: bool,
    /// What it says instead of a welcome.
    pub(crate) refuses: Option<Refusal>,
    /// Chunks that were deleted there.
    pub(crate) deleted: usize,
    /// Times that it was greeted with.
    pub(crate) sessions: Vec<u64>,
    pub(crate) chunks: BTreeMap<ChunkName, Replica>,
    /// The highest epoch that it has heard.
    pub(crate) epochs: BTreeMap<SegmentName, Epoch>,
    /// Whose it is, since somebody greeted it.
    pub(crate) pool: Option<PoolId>,
    /// How often it was asked for lists.
    pub(crate) lists: usize,
    /// It tells lists that lack their last entry.
    pub(crate) forgets: bool,
    /// It tells lists in which a record has blocks that no segment has.
    pub(crate) invents: bool,
    /// How often it says that it is busy when it is to delete something.
    pub(crate) busy_deletes: usize,
    /// It does not take what is to be written over a record.
    pub(crate) cannot_mend: bool,
    /// Records that were.
    pub(crate) mended: usize,
    /// How often it was asked whether records are whole.
    pub(crate) checks: usize,
    /// Of chunks that are sealed: pairs of records that have a block in common which cannot be read.
    pub(crate) shares: BTreeSet<(ChunkName, Units, Units)>,
    /// What it was sent of these.
    pub(crate) halves: BTreeSet<(ChunkName, Units)>,
    pub(crate) forgets_halves: bool,
    /// How often it says that its device could not write over a record.
    pub(crate) medium_mends: usize,
}

impl Server {
    /// The reply to a request; none of one that hangs.
    pub(crate) fn serve(&mut self, place: usize, request: &RequestMessage, sent: &[u8]) -> Option<Vec<u8>> {
        if self.hangs {
            return None;
        }
        let mut payload = Vec::new();
        let answer = match self.done(place, &request.request, sent, &mut payload) {
            Ok(reply) => Answer::Good(reply),
            Err(refusal) => Answer::Refused { kind: request.request.kind().code(), refusal },
        };
        let message = ReplyMessage { tag: request.tag, payload_len: payload.len() as u32, answer };
        let mut reply = message.encode().unwrap().to_vec();
        reply.extend_from_slice(&payload);
        Some(reply)
    }

    pub(crate) fn used(&self) -> u64 {
        self.chunks.values().map(Replica::taken).sum()
    }

    fn free(&self) -> u64 {
        if self.capacity == 0 { 1 << 40 } else { self.capacity.saturating_sub(self.used()) }
    }

    fn done(
        &mut self,
        place: usize,
        request: &Request,
        sent: &[u8],
        payload: &mut Vec<u8>,
    ) -> Result<Reply, Refusal> {
        let free = self.free();
        if let Some((segment, epoch)) = request.fence() {
            let known = self.epochs.entry(segment).or_insert(epoch);
            if *known > epoch {
                return Err(Refusal::Stale { known: known.number().into() });
            }
            *known = epoch;
        }
        match *request {
            Request::Hello { session, .. } => {
                let hello = HelloPayload::decode(sent).map_err(|_| Refusal::Bad)?;
                if *self.pool.get_or_insert(hello.pool) != hello.pool {
                    return Err(Refusal::WrongPool);
                }
                self.welcome(place, session, free, payload)
            }
            Request::Ping => Ok(Reply::Ping { load: 0, free, used: self.used() }),
            Request::Create { .. } if self.fails_to_create => Err(Refusal::Medium),
            Request::Create { .. } if self.is_full => Err(Refusal::Full { free: 0 }),
            Request::Create { chunk, epoch, length, state, kind, may_use_reserve, .. } => {
                let kept = if may_use_reserve { 0 } else { self.reserve };
                if free < length.bytes() + kept {
                    return Err(Refusal::Full { free });
                }
                let is = if state == CreateState::Open { ReplicaIs::Open } else { ReplicaIs::Filling };
                if self.chunks.contains_key(&chunk) {
                    return Err(Refusal::Exists);
                }
                let (records, rotten, known) = (BTreeMap::new(), BTreeSet::new(), EndState::Known);
                let (is_scanned, sealed_by) = (false, 0);
                let replica =
                    Replica { is, kind, epoch, length, records, rotten, known, is_scanned, sealed_by };
                self.chunks.insert(chunk, replica);
                Ok(Reply::Create { free: self.free() })
            }
            Request::Stop { chunk, .. } => {
                let replica = self.chunks.get_mut(&chunk).ok_or(Refusal::NoChunk)?;
                if replica.is == ReplicaIs::Open {
                    replica.is = ReplicaIs::Stopped;
                }
                Ok(Reply::Stop(replica.told()))
            }
            Request::Fence { .. } => Ok(Reply::Fence),
            Request::Seal { chunk, epoch, length, content_crc } => {
                let replica = self.chunks.get_mut(&chunk).ok_or(Refusal::NoChunk)?;
                replica.seal(length, content_crc, epoch.number()).map(|()| Reply::Seal)
            }
            Request::Delete { .. } if self.busy_deletes > 0 => {
                self.busy_deletes -= 1;
                Err(Refusal::Busy)
            }
            Request::Delete { chunk, .. } => {
                self.deleted += usize::from(self.chunks.remove(&chunk).is_some());
                Ok(Reply::Delete)
            }
            _ => self.tell(request, payload),
        }
    }

    fn welcome(
        &mut self,
        place: usize,
        session: u64,
        free: u64,
        payload: &mut Vec<u8>,
    ) -> Result<Reply, Refusal> {
        self.sessions.push(session);
        if let Some(refusal) = self.refuses {
            return Err(refusal);
        }
        let welcome = WelcomePayload {
            pool: self.pool,
            version: VERSION,
            block_len: 4096,
            capacity: if self.capacity == 0 { free } else { self.capacity },
            free,
            requests_max: 256,
            window_len: 4 << 20,
            domain: Text::new(&format!("machine{place}")).unwrap(),
        };
        payload.extend_from_slice(&welcome.encode().unwrap());
        let server = ServerId(self.number.unwrap_or(place as u64 + 100));
        Ok(Reply::Hello { server, incarnation: Incarnation(1) })
    }

    /// What is asked at length.
    fn tell(&mut self, request: &Request, payload: &mut Vec<u8>) -> Result<Reply, Refusal> {
        match *request {
            Request::List { chunk, from, to, most, .. } => {
                let replica = self.chunks.get(&chunk).ok_or(Refusal::NoChunk)?;
                let most = self.list_most.unwrap_or(most).min(most);
                let (next, mut entries) = replica.list(from, to, most);
                self.lists += 1;
                if self.forgets {
                    entries.pop();
                }
                if let Some(first) = entries.first_mut().filter(|_| self.invents) {
                    first.lba = Lba(1 << 24);
                }
                payload.extend_from_slice(&ob_volume::wire::encode_entries(&entries).unwrap());
                Ok(Reply::List { next })
            }
            Request::Check { chunk, offset, .. } => {
                let replica = self.chunks.get(&chunk).ok_or(Refusal::NoChunk)?;
                let ReplicaIs::Sealed(length) = replica.is else { return Err(Refusal::Bad) };
                assert!(offset < length);
                self.checks += 1;
                if replica.rotten.contains(&offset) {
                    return Err(Refusal::Damaged);
                }
                // Some records for one answer.
                let next = replica.records.range(offset..length).nth(7).map_or(length, |(at, _)| *at);
                let rotten = replica.rotten.range(offset..next).next().copied();
                Ok(Reply::Check { sound: rotten.unwrap_or(next) })
            }
            Request::Chunks { after, most, .. } => {
                let most = self.list_most.unwrap_or(most).min(most) as usize;
                let behind = self.chunks.iter().filter(|(name, _)| **name > after);
                let lines = behind.map(|(name, replica)| ChunkLine {
                    chunk: *name,
                    epoch: replica.epoch,
                    state: match replica.is {
                        ReplicaIs::Open => ReplicaState::Open,
                        ReplicaIs::Stopped => ReplicaState::Stopped,
                        ReplicaIs::Filling => ReplicaState::Filling,
                        ReplicaIs::Sealed(_) => ReplicaState::Sealed,
                    },
                    kind: replica.kind,
                    end: replica.end(),
                    allocated_kib: 1,
                });
                let lines: Vec<ChunkLine> = lines.collect();
                let has_more = lines.len() > most;
                payload.extend_from_slice(&encode_chunks(&lines[..lines.len().min(most)]).unwrap());
                Ok(Reply::Chunks { has_more })
            }
            Request::Read { chunk, offset, len, .. } => {
                let replica = self.chunks.get(&chunk).ok_or(Refusal::NoChunk)?;
                let bytes: Vec<u8> =
                    replica.records.range(offset..).flat_map(|(_, bytes)| bytes.clone()).collect();
                payload.extend_from_slice(&bytes[..bytes.len().min(len as usize)]);
                Ok(Reply::Read)
            }
            ref other => panic!("{other:?}"),
        }
    }

    /// The whole records that a copy finds here.
    pub(crate) fn give(&self, copy: &Copy) -> Vec<(Units, Vec<u8>)> {
        let Some(replica) = self.chunks.get(&copy.chunk) else { return Vec::new() };
        let (mut at, mut given) = (copy.at, Vec::new());
        while let Some(bytes) = replica.records.get(&at) {
            let end = Units(at.0 + bytes.len() as u32 / 64);
            if replica.rotten.contains(&at) || end > copy.end || (end.0 - copy.at.0) * 64 > COPY_BYTES_MAX {
                break;
            }
            given.push((at, bytes.clone()));
            at = end;
            if copy.is_mend {
                break;
            }
        }
        given
    }

    /// Writes a record over what has rotted.
    pub(crate) fn mend(&mut self, copy: &Copy, records: &[(Units, Vec<u8>)]) -> Result<(), Refusal> {
        let replica = self.chunks.get_mut(&copy.chunk).ok_or(Refusal::NoChunk)?;
        assert!(matches!(replica.is, ReplicaIs::Sealed(_)), "an open chunk is sealed before");
        let [(at, bytes)] = records else { panic!("a mend is of one record") };
        if self.cannot_mend || replica.records.get(at) != Some(bytes) {
            return Err(Refusal::Conflict);
        }
        if self.medium_mends > 0 {
            self.medium_mends -= 1;
            return Err(Refusal::Medium);
        }
        if self.forgets_halves {
            self.halves.clear();
        }
        // Whoever is sent the second of two has both.
        self.halves.insert((copy.chunk, *at));
        let halves = &self.halves;
        self.shares.retain(|(chunk, one, two)| [one, two].iter().any(|of| !halves.contains(&(*chunk, **of))));
        let pairs = self.shares.iter().filter(|(chunk, ..)| *chunk == copy.chunk);
        let others = pairs.filter_map(|(_, one, two)| match *at {
            at if at == *one => Some(*two),
            at if at == *two => Some(*one),
            _ => None,
        });
        if let Some(other) = others.filter(|other| !halves.contains(&(copy.chunk, *other))).min() {
            return Err(Refusal::Beside { at: other });
        }
        let is_shared = |of: &Units| {
            self.shares.iter().any(|(chunk, one, two)| *chunk == copy.chunk && (one == of || two == of))
        };
        let whole: Vec<Units> = replica.rotten.iter().copied().filter(|of| !is_shared(of)).collect();
        for of in whole.iter().filter(|of| *of == at || halves.contains(&(copy.chunk, **of))) {
            replica.rotten.remove(of);
        }
        self.mended += 1;
        Ok(())
    }

    /// Fills a chunk with them.
    pub(crate) fn fill(&mut self, copy: &Copy, records: Vec<(Units, Vec<u8>)>) -> Result<Units, Refusal> {
        let replica = self.chunks.get_mut(&copy.chunk).ok_or(Refusal::NoChunk)?;
        match replica.is {
            ReplicaIs::Open => return Err(Refusal::Bad),
            ReplicaIs::Sealed(_) => return Err(Refusal::Stopped),
            ReplicaIs::Stopped | ReplicaIs::Filling => {}
        }
        if copy.at > replica.sound_end() {
            return Err(Refusal::Gap { end: replica.sound_end() });
        }
        for (at, bytes) in records {
            replica.rotten.remove(&at);
            replica.records.insert(at, bytes);
        }
        Ok(replica.sound_end())
    }
}

pub(crate) fn volume(id: u64, block_len: BlockLen, blocks: u64) -> (VolumeId, Volume) {
    let volume = Volume {
        state: VolumeState::Serving,
        class: Class::Plain,
        replicas: 3,
        replicas_min: 2,
        uuid: [id as u8; 16],
        size: blocks * u64::from(block_len.bytes()),
        cut_from: None,
        segment_len: 1024 * u64::from(block_len.bytes()),
        chunk_len: 128 << 10,
        block_len,
        namespace: NamespaceId(id as u32),
        generation: 1,
        name: Text::new(&format!("disk{id}")).unwrap(),
    };
    (VolumeId(id), volume)
}
