//! What lies on chunk servers when nobody runs any more, past all software but the files': each sealed chunk as often as it should be there, all
//! of them alike, and of records that are what they say.

use std::collections::BTreeMap;

use ob_core::{ChunkName, Epoch, NodeId, SegmentId, SegmentName, Sequence, ServerId, Token, Units, VolumeId};
use ob_files_card::{FilesOptions, FilesService, LocalFiles, MetadataOp as FilesOp, Op, Outcome};
use ob_format::files::ROOT;
use ob_format::volume::metadata::{Chunk, ChunkState};
use ob_format::volume::{RECORDS_START, Record, RecordKind};
use ob_memory::Pool;
use ob_ring::CardService;
use ob_sim::{Failure, SimClock, SimDisk};
use ob_volume::metadata::{Key, MetadataAnswer, MetadataOp, MetadataValue, Name};
use ob_volume::wire::check_records;

use super::plan::SEGMENTS;
use super::tier::Tier;
use super::{CHUNK_LEN, Run, keys};
use crate::files::SimDrive;

/// Turns of the files until a request is answered.
const TURNS_MAX: usize = 100_000;

impl Run {
    /// All chunks that the store names, with their records there.
    pub(super) fn chunks(&self) -> Result<Vec<(ChunkName, Chunk)>, Failure> {
        let keys = keys()?;
        let mut chunks = Vec::new();
        for segment in self.segment_names() {
            let prefix = keys.chunks(segment);
            let mut after: Option<Key> = None;
            loop {
                let op = MetadataOp::List { prefix: prefix.clone(), after, most: u32::MAX };
                let answer = self.store.borrow_mut().look(op);
                let Ok(MetadataAnswer::Values { entries, has_more }) = answer else {
                    return Err(Failure::new(format!("the store does not list chunks: {answer:?}")));
                };
                for entry in &entries {
                    let Some(name @ Name::Chunk(of)) = keys.parse(&entry.key) else { continue };
                    match MetadataValue::decode(&name, entry.value.bytes()) {
                        Ok(MetadataValue::Chunk(chunk)) => chunks.push((of, chunk)),
                        other => return Err(Failure::new(format!("{of:?} has no record: {other:?}"))),
                    }
                }
                after = entries.last().map(|entry| entry.key.clone());
                if !has_more {
                    break;
                }
            }
        }
        Ok(chunks)
    }

    /// Segments that there can be.
    fn segment_names(&self) -> impl Iterator<Item = SegmentName> + use<> {
        let volumes = 1..=u64::from(self.plan.volumes());
        volumes.flat_map(|volume| {
            (0..SEGMENTS as u32)
                .map(move |segment| SegmentName { volume: VolumeId(volume), segment: SegmentId(segment) })
        })
    }

    /// Segments that the store has, and their epochs.
    pub(super) fn segments(&self) -> Vec<(SegmentName, Epoch)> {
        let Ok(keys) = keys() else { return Vec::new() };
        let found = self.segment_names().filter_map(|name| {
            let key = keys.key(Name::Segment(name));
            let answer = self.store.borrow_mut().look(MetadataOp::Get { key });
            let Ok(MetadataAnswer::Value(Some((value, _)))) = answer else { return None };
            match MetadataValue::decode(&Name::Segment(name), value.bytes()) {
                Ok(MetadataValue::Segment(segment)) => Some((name, segment.epoch)),
                _ => None,
            }
        });
        found.collect()
    }

    /// Members of a chunk that are somewhere. One whose disk was lost stays named until another has its replica.
    fn members_there(&self, chunk: &Chunk) -> Vec<ServerId> {
        let is_there = |member: &ServerId| self.servers.iter().any(|of| of.known_id() == Some(*member));
        chunk.members.servers().iter().copied().filter(is_there).collect()
    }

    /// Whether a chunk has fewer replicas than it should.
    pub(super) fn is_short(&self, chunk: &Chunk) -> bool {
        let wanted = usize::from(self.plan.replicas).min(self.servers.len());
        is_compared(chunk) && self.members_there(chunk).len() < wanted
    }

    /// Ends all servers, and looks what they have.
    pub(super) fn audit(&mut self) -> Result<(), Failure> {
        let chunks = self.chunks()?;
        for (name, chunk) in &chunks {
            let members = chunk.members.servers();
            let mut hosts = self.tiers.iter().filter_map(Tier::host);
            let has_room = self.plan.is_roomy || hosts.all(|host| host.has_room_beside(members));
            if self.is_short(chunk) && has_room {
                return Err(Failure::new(format!("{name:?} has only {members:?}")));
            }
        }
        let ids: Vec<Option<ServerId>> = self.servers.iter().map(super::server::Server::id).collect();
        let mut files = BTreeMap::new();
        for (server, id) in self.servers.iter_mut().zip(ids) {
            let disk = server.end(&self.network);
            if let (Some(id), Some(disk)) = (id, disk) {
                files.insert(id, Files::mount(disk, self.trace.clock())?);
            }
        }
        let (mut live, mut spoilt) = (Live::default(), Vec::new());
        for (name, chunk) in &chunks {
            if chunk.state == ChunkState::Open {
                // What lies there is not compared, since nobody has agreed on its end; but it may be newer.
                for member in chunk.members.servers() {
                    let all = Units::of_bytes(CHUNK_LEN);
                    let bytes = files.get_mut(member).and_then(|files| files.read(*name, all));
                    live.note(*name, all, &bytes.unwrap_or_default());
                }
            }
            if !is_compared(chunk) {
                continue;
            }
            self.report.count("chunks compared", 1);
            let mut is_anywhere = false;
            for member in self.members_there(chunk) {
                let of = format!("{name:?} of {member:?}");
                let bytes = files.get_mut(&member).and_then(|files| files.read(*name, chunk.length));
                let bytes = bytes.ok_or_else(|| Failure::new(format!("{of} is not there")))?;
                let checked = check(*name, chunk, &bytes);
                if checked.is_err() && self.rot.has_spoilt(*name, member) {
                    spoilt.push((*name, of, bytes));
                    continue;
                }
                checked.map_err(|what| Failure::new(format!("{of}: {what}")))?;
                live.note(*name, chunk.length, &bytes);
                is_anywhere = true;
            }
            if !is_anywhere {
                return Err(Failure::new(format!("nobody has all of {name:?}")));
            }
        }
        self.report.count("replicas with rot that nobody reads", spoilt.len() as u64);
        for (name, of, bytes) in &spoilt {
            // Trims may be in chunks that are gone.
            if self.plan.has_trims || self.plan.has_operator {
                continue;
            }
            let wrong = live.of(*name).find(|offset| !is_whole(*name, *offset, bytes));
            if let Some(offset) = wrong {
                return Err(Failure::new(format!("{of} has rotted at {offset:?}, where a block lies")));
            }
        }
        Ok(())
    }
}

/// Whether a chunk is to be the same everywhere. What nobody has written to is nothing that could be lost.
fn is_compared(chunk: &Chunk) -> bool {
    chunk.state == ChunkState::Sealed && chunk.length > RECORDS_START
}

/// Where blocks lie, by the records of all chunks that are sealed: the last that was written of each.
#[derive(Default)]
struct Live {
    latest: BTreeMap<(SegmentName, u32), (Sequence, ChunkName, Units)>,
}

impl Live {
    fn note(&mut self, name: ChunkName, end: Units, bytes: &[u8]) {
        let mut at = RECORDS_START;
        while let Some(Ok(record)) = bytes.get(at.bytes() as usize..).map(Record::decode) {
            let header = record.header;
            if at >= end
                || header.offset != at
                || header.chunk != name
                || !matches!(header.kind, RecordKind::Write | RecordKind::Move)
            {
                break;
            }
            for lba in header.lba.0..header.lba.0.saturating_add(header.blocks) {
                let place = (header.sequence, name, at);
                let latest = self.latest.entry((name.segment_name(), lba)).or_insert(place);
                *latest = (*latest).max(place);
            }
            at = Units(at.0 + header.units().0);
        }
    }

    /// Records of a chunk in which blocks lie.
    fn of(&self, name: ChunkName) -> impl Iterator<Item = Units> + '_ {
        self.latest.values().filter(move |(_, of, _)| *of == name).map(|(_, _, offset)| *offset)
    }
}

/// Whether the record at a place is what it says.
fn is_whole(name: ChunkName, offset: Units, bytes: &[u8]) -> bool {
    let record = bytes.get(offset.bytes() as usize..).map(Record::decode);
    record.is_some_and(|record| {
        record.is_ok_and(|record| record.header.chunk == name && record.header.offset == offset)
    })
}

/// A chunk's records are what the store says of them, and so the same everywhere. (Its header tells how long the file was made, which is
/// another number where a replica was made anew.)
fn check(name: ChunkName, chunk: &Chunk, bytes: &[u8]) -> Result<(), String> {
    let records = bytes.get(RECORDS_START.bytes() as usize..).unwrap_or_default();
    if crc32c(records) != chunk.content_crc {
        return Err("its bytes are not those of its record".to_owned());
    }
    match check_records(name, RECORDS_START, records) {
        Ok(end) if end == chunk.length => Ok(()),
        Ok(end) => Err(format!("its records end at {end:?}, and not at {:?}", chunk.length)),
        Err(error) => Err(error.to_string()),
    }
}

fn crc32c(bytes: &[u8]) -> u32 {
    bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(
            crc ^ u32::from(*byte),
            |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0x82F6_3B78 } else { crc >> 1 },
        )
    }) ^ !0
}

/// The files of a server that has ended.
struct Files {
    service: FilesService<SimDisk>,
    local: LocalFiles,
    pool: Pool,
    clock: SimClock,
}

impl Files {
    fn mount(mut disk: SimDisk, clock: &SimClock) -> Result<Self, Failure> {
        let options = FilesOptions { clean_len: 1 << 20, ..FilesOptions::default() };
        let mounted = ob_files_card::mount(&mut SimDrive::new(&mut disk, clock.clone(), None), &options);
        let mounted = mounted.map_err(|error| Failure::new(format!("a disk cannot be mounted: {error}")))?;
        let service = FilesService::new(mounted, disk);
        let local = service.local();
        Ok(Self { service, local, pool: Pool::new(CHUNK_LEN as usize + 4096, 1), clock: clock.clone() })
    }

    /// So much of a chunk's file.
    fn read(&mut self, name: ChunkName, length: Units) -> Option<Vec<u8>> {
        let ChunkName { volume, segment, chunk } = name;
        let path = format!("chunks/{:016x}/{:08x}/{:08x}", volume.0, segment.0, chunk.0);
        let stat = FilesOp::Stat { base: ROOT, path: path.into_bytes() };
        let Outcome::Node(node) = self.ask(Op::Metadata(stat))?.0 else { return None };
        let len = u32::try_from(length.bytes()).ok().filter(|len| u64::from(*len) <= node.size)?;
        if let Some(bytes) = self.read_part(node.id, 0, len) {
            return Some(bytes);
        }
        // Of a block that cannot be read nothing is there.
        let parts = (0..len).step_by(4096).map(|at| {
            let part = (len - at).min(4096);
            self.read_part(node.id, at, part).unwrap_or_else(|| vec![0; part as usize])
        });
        Some(parts.collect::<Vec<_>>().concat())
    }

    fn read_part(&mut self, file: NodeId, at: u32, len: u32) -> Option<Vec<u8>> {
        let into = self.pool.take()?;
        let (outcome, buffer) = self.ask(Op::Read { file, offset: at.into(), len, into })?;
        let is_whole = matches!(outcome, Outcome::Read { len: read, .. } if read == len);
        buffer?.get(..len as usize).filter(|_| is_whole).map(<[u8]>::to_vec)
    }

    fn ask(&mut self, op: Op) -> Option<(Outcome, Option<ob_memory::Slice>)> {
        self.local.submit(Token(1), op).ok()?;
        for _ in 0..TURNS_MAX {
            use ob_core::{Clock, Device};
            self.service.poll(self.clock.now());
            if let Some(completion) = self.local.poll() {
                return Some((completion.result.ok()?, completion.buffer));
            }
            if let Some(due) = self.service.device().next_due() {
                self.clock.advance_to(due);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_one_of_records() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
    }
}
