//! Chunk servers in memory, as a tier sees them: they append, stop, fill, seal, die and return, refuse and hang.

use std::collections::{BTreeMap, BTreeSet};

use ob_core::{ChunkName, Incarnation, ServerId, Units};
use ob_format::volume::metadata::Text;
use ob_volume::plans::{COPY_BYTES_MAX, Copy};
use ob_volume::wire::{
    Answer, CreateState, End, EndState, Refusal, Reply, ReplyMessage, Request, RequestMessage, VERSION,
    WelcomePayload,
};

use crate::tier_rig::POOL;

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
    pub(crate) records: BTreeMap<Units, Vec<u8>>,
    /// Those that cannot be read any more; the server knows the sum of what was appended all the same.
    pub(crate) rotten: BTreeSet<Units>,
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

    /// What lies before a unit.
    fn content_crc(&self, length: Units) -> u32 {
        let below =
            self.records.range(..length).filter(|(at, bytes)| at.0 + bytes.len() as u32 / 64 <= length.0);
        below.fold(0, |crc, (_, bytes)| crc32c::crc32c_append(crc, bytes))
    }

    pub(crate) fn rot(&mut self) {
        self.rotten = self.records.keys().copied().collect();
    }

    pub(crate) fn cut(&mut self, length: Units) {
        self.records.retain(|at, _| *at < length);
    }

    fn told(&self) -> End {
        let end = self.end();
        End { end, everywhere: START, state: EndState::Known, content_crc: self.content_crc(end) }
    }

    fn seal(&mut self, length: Units, crc: u32) -> Result<(), Refusal> {
        match self.is {
            ReplicaIs::Open => return Err(Refusal::Bad),
            ReplicaIs::Sealed(at) if at != length => return Err(Refusal::Conflict),
            _ => {}
        }
        if self.end() < length {
            return Err(Refusal::Gap { end: self.end() });
        }
        if self.content_crc(length) != crc {
            return Err(Refusal::Conflict);
        }
        self.cut(length);
        self.is = ReplicaIs::Sealed(length);
        Ok(())
    }
}

#[derive(Default)]
pub(crate) struct Server {
    pub(crate) is_down: bool,
    pub(crate) is_full: bool,
    /// It says that its device could not, whenever it is to make a chunk.
    pub(crate) fails_to_create: bool,
    /// It answers nothing.
    pub(crate) hangs: bool,
    /// What it says instead of a welcome.
    pub(crate) refuses: Option<Refusal>,
    /// Chunks that were deleted there.
    pub(crate) deleted: usize,
    /// Times that it was greeted with.
    pub(crate) sessions: Vec<u64>,
    pub(crate) chunks: BTreeMap<ChunkName, Replica>,
}

impl Server {
    /// The reply to a request; none of one that hangs.
    pub(crate) fn serve(&mut self, place: usize, request: &RequestMessage) -> Option<Vec<u8>> {
        if self.hangs {
            return None;
        }
        let mut payload = Vec::new();
        let answer = match self.done(place, &request.request, &mut payload) {
            Ok(reply) => Answer::Good(reply),
            Err(refusal) => Answer::Refused { kind: request.request.kind().code(), refusal },
        };
        let message = ReplyMessage { tag: request.tag, payload_len: payload.len() as u32, answer };
        let mut reply = message.encode().unwrap().to_vec();
        reply.extend_from_slice(&payload);
        Some(reply)
    }

    fn done(&mut self, place: usize, request: &Request, payload: &mut Vec<u8>) -> Result<Reply, Refusal> {
        let free = 1 << 40;
        match *request {
            Request::Hello { session, .. } => {
                self.sessions.push(session);
                if let Some(refusal) = self.refuses {
                    return Err(refusal);
                }
                let welcome = WelcomePayload {
                    pool: Some(POOL),
                    version: VERSION,
                    block_len: 4096,
                    capacity: free,
                    free,
                    requests_max: 256,
                    window_len: 4 << 20,
                    domain: Text::new(&format!("machine{place}")).unwrap(),
                };
                payload.extend_from_slice(&welcome.encode().unwrap());
                Ok(Reply::Hello { server: ServerId(place as u64 + 100), incarnation: Incarnation(1) })
            }
            Request::Ping => Ok(Reply::Ping { load: 0, free, used: 0 }),
            Request::Create { .. } if self.fails_to_create => Err(Refusal::Medium),
            Request::Create { .. } if self.is_full => Err(Refusal::Full { free: 0 }),
            Request::Create { chunk, state, .. } => {
                let is = if state == CreateState::Open { ReplicaIs::Open } else { ReplicaIs::Filling };
                if self.chunks.contains_key(&chunk) {
                    return Err(Refusal::Exists);
                }
                self.chunks.insert(chunk, Replica { is, records: BTreeMap::new(), rotten: BTreeSet::new() });
                Ok(Reply::Create { free })
            }
            Request::Stop { chunk, .. } => {
                let replica = self.chunks.get_mut(&chunk).ok_or(Refusal::NoChunk)?;
                if replica.is == ReplicaIs::Open {
                    replica.is = ReplicaIs::Stopped;
                }
                Ok(Reply::Stop(replica.told()))
            }
            Request::Seal { chunk, length, content_crc, .. } => {
                let replica = self.chunks.get_mut(&chunk).ok_or(Refusal::NoChunk)?;
                replica.seal(length, content_crc).map(|()| Reply::Seal)
            }
            Request::Delete { chunk, .. } => {
                self.deleted += usize::from(self.chunks.remove(&chunk).is_some());
                Ok(Reply::Delete)
            }
            other => panic!("{other:?}"),
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
        }
        given
    }

    /// Fills a chunk with them.
    pub(crate) fn fill(&mut self, copy: &Copy, records: Vec<(Units, Vec<u8>)>) -> Result<Units, Refusal> {
        let replica = self.chunks.get_mut(&copy.chunk).ok_or(Refusal::NoChunk)?;
        match replica.is {
            ReplicaIs::Open => return Err(Refusal::Bad),
            ReplicaIs::Sealed(_) => return Err(Refusal::Stopped),
            ReplicaIs::Stopped | ReplicaIs::Filling => {}
        }
        if copy.at > replica.end() {
            return Err(Refusal::Gap { end: replica.end() });
        }
        replica.records.extend(records);
        Ok(replica.end())
    }
}
