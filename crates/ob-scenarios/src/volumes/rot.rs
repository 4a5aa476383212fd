//! What disks lose at rest, and the ledger that leaves a good copy of each record.
//!
//! Of each chunk at most one server's replica is spoilt, and of that only records that another member has; a disk is lost only when of all
//! chunks somebody else is named who was not spoilt: whatever is lost, what was acknowledged is there.

use std::collections::BTreeMap;
use std::time::Duration;

use ob_core::{ChunkName, ServerId};
use ob_format::volume::metadata::{Chunk, ChunkState};
use ob_format::volume::{RECORD_HEADER_LEN, RecordHeader};
use ob_sim::{Failure, SimDisk};
use ob_volume::metadata::{MetadataAnswer, MetadataOp, MetadataValue, Name};

use super::Run;

/// Records that rot at a time.
const BITS_MAX: usize = 6;
/// What the directory of a chunk begins with.
const DIRECTORY: &[u8] = b"OBCD";

/// Which replicas may be spoilt.
#[derive(Default)]
pub(super) struct Rot {
    spoilt: BTreeMap<ChunkName, ServerId>,
    /// Blocks that cannot be read: at which place, and of which chunk.
    unreadable: Vec<(usize, u64, ChunkName)>,
}

impl Rot {
    /// Whether this server's replica may have other bytes than it should.
    pub(super) fn has_spoilt(&self, chunk: ChunkName, server: ServerId) -> bool {
        self.spoilt.get(&chunk) == Some(&server)
    }

    /// Whether any may.
    pub(super) fn is_any(&self) -> bool {
        !self.spoilt.is_empty()
    }
}

type Header = [u8; RECORD_HEADER_LEN];

/// Visits the headers of a chunk's records in a block.
fn headers_of(name: ChunkName, block: &[u8]) -> impl Iterator<Item = (usize, Header)> + use<'_> {
    let units = block.as_chunks::<RECORD_HEADER_LEN>().0.iter().enumerate();
    let of =
        units.filter(move |(_, unit)| RecordHeader::decode(*unit).is_ok_and(|header| header.chunk == name));
    of.map(|(at, unit)| (at * RECORD_HEADER_LEN, *unit))
}

/// All of them that a disk has.
fn headers_on(disk: &mut SimDisk, name: ChunkName) -> Vec<Header> {
    let mut found = Vec::new();
    disk.rot_where(|_, block| {
        found.extend(headers_of(name, block).map(|(_, header)| header));
        None
    });
    found.sort_unstable();
    found.dedup();
    found
}

/// Where a record begins.
fn offset_of(header: &Header) -> u32 {
    RecordHeader::decode(header).map_or(0, |header| header.offset.0)
}

impl Run {
    /// A bit flips somewhere, or a block cannot be read any more.
    pub(super) fn spoil(&mut self) -> Result<(), Failure> {
        match self.rng.below(4) {
            // A replica may lose both: a directory cannot be made anew of what cannot be read (R8).
            0 => {
                self.spoil_directory();
                Ok(())
            }
            1 => self.break_blocks(),
            _ => self.spoil_record(),
        }
    }

    /// In a directory, which can be made anew from what it is of.
    fn spoil_directory(&mut self) {
        let (server, into) = (self.rng.index(self.servers.len()), self.rng.word());
        let Some(disk) = self.servers[server].disk() else { return };
        let pick = |block: &[u8]| block.starts_with(DIRECTORY).then(|| (into % block.len() as u64) as usize);
        if disk.rot_where(|_, block| pick(block)) {
            self.report.count("directories rotted", 1);
        }
    }

    /// A chunk, and which of its members may be spoilt.
    fn draw_victim(&mut self) -> Result<Option<(ChunkName, Chunk, ServerId)>, Failure> {
        let all = self.chunks()?;
        let mut there = all.into_iter().filter(|(_, chunk)| chunk.state != ChunkState::Dead);
        let count = there.clone().count();
        let Some((name, chunk)) = there.nth(self.rng.index(count)) else { return Ok(None) };
        let members = chunk.members.servers();
        let drawn = members[self.rng.index(members.len())];
        let victim = self.rot.spoilt.get(&name).copied().unwrap_or(drawn);
        Ok(Some((name, chunk, victim)))
    }

    /// Blocks in which records begin, of a chunk that is sealed or open, at one of its members. The record that ends in such a block is another's,
    /// too.
    fn break_blocks(&mut self) -> Result<(), Failure> {
        let Some((name, chunk, victim)) = self.draw_victim()? else { return Ok(()) };
        let spare = self.spare_headers(name, chunk.members.servers(), victim);
        let mut has = self.disk_of(victim).map(|disk| headers_on(disk, name)).unwrap_or_default();
        has.sort_by_key(offset_of);
        let before = |header: &Header| has.iter().take_while(|of| *of != header).last();
        let count = 1 + self.rng.index(3);
        let is_victim = |server: &super::server::Server| server.known_id() == Some(victim);
        let Some(place) = self.servers.iter().position(is_victim) else { return Ok(()) };
        for _ in 0..count {
            let Some(disk) = self.servers[place].disk() else { return Ok(()) };
            let broken = disk.break_where(|_, block| {
                let mut first = None;
                let are_spare = headers_of(name, block).all(|(_, header)| {
                    first.get_or_insert(header);
                    spare.contains(&header)
                });
                // What begins nowhere here is looked for where it begins.
                let is_spare = |header: Header| before(&header).is_none_or(|before| spare.contains(before));
                are_spare && first.is_some_and(is_spare)
            });
            if let Some(block) = broken {
                self.rot.spoilt.insert(name, victim);
                self.rot.unreadable.push((place, block, name));
                self.report.count("blocks unreadable", 1);
            }
        }
        Ok(())
    }

    /// Where there is nothing of a chunk any more, another's records may lie: their blocks can be read.
    pub(super) fn heal_unneeded(&mut self) -> Result<(), Failure> {
        if self.rot.unreadable.is_empty() {
            return Ok(());
        }
        let keys = super::keys()?;
        let Self { rot, servers, store, .. } = self;
        rot.unreadable.retain(|(place, block, name)| {
            let op = MetadataOp::Get { key: keys.key(Name::Chunk(*name)) };
            let Ok(MetadataAnswer::Value(value)) = store.borrow_mut().look(op) else { return true };
            let value = value.map(|(value, _)| MetadataValue::decode(&Name::Chunk(*name), value.bytes()));
            let is_there =
                matches!(value, Some(Ok(MetadataValue::Chunk(of))) if of.state != ChunkState::Dead);
            if !is_there && let Some(disk) = servers.get_mut(*place).and_then(super::server::Server::disk) {
                disk.heal_block(*block);
            }
            is_there
        });
        Ok(())
    }

    /// In a record of a chunk, sealed or open, at one of its members.
    fn spoil_record(&mut self) -> Result<(), Failure> {
        let Some((name, chunk, victim)) = self.draw_victim()? else { return Ok(()) };
        let members = chunk.members.servers();
        let mut spare = self.spare_headers(name, members, victim);
        for _ in 0..BITS_MAX.min(spare.len()) {
            // The last one more often than others, since blocks lie there.
            let at = if self.rng.one_in(2) { spare.len() - 1 } else { self.rng.index(spare.len()) };
            let header = spare.remove(at);
            if self.flip(name, victim, header) {
                self.rot.spoilt.insert(name, victim);
                self.report.count("bits of open chunks", u64::from(chunk.state == ChunkState::Open));
            }
        }
        Ok(())
    }

    /// A bit of a record, in its header or behind it in its block.
    fn flip(&mut self, name: ChunkName, victim: ServerId, header: Header) -> bool {
        let into = self.rng.word();
        let Some(disk) = self.disk_of(victim) else { return false };
        let has_rotted = disk.rot_where(|_, block| {
            let (start, _) = headers_of(name, block).find(|(_, of)| *of == header)?;
            Some(start + (into % (block.len() - start) as u64) as usize)
        });
        self.report.count("bits rotted", u64::from(has_rotted));
        has_rotted
    }

    fn disk_of(&mut self, id: ServerId) -> Option<&mut SimDisk> {
        self.servers.iter_mut().find(|server| server.known_id() == Some(id))?.disk()
    }

    /// Records that a server has, and another member too, in their order.
    fn spare_headers(&mut self, name: ChunkName, members: &[ServerId], victim: ServerId) -> Vec<Header> {
        let mut has = self.disk_of(victim).map(|disk| headers_on(disk, name)).unwrap_or_default();
        let mut others: Vec<Header> = Vec::new();
        for member in members.iter().filter(|member| **member != victim) {
            if let Some(disk) = self.disk_of(*member) {
                others.extend(headers_on(disk, name));
            }
        }
        has.retain(|header| others.contains(header));
        has.sort_by_key(offset_of);
        has
    }

    /// A server's disk is gone with all that it had; it begins anew as another one, at its address.
    pub(super) fn lose_disk(&mut self) -> Result<(), Failure> {
        let place = self.rng.index(self.servers.len());
        let Some(lost) = self.servers[place].known_id() else { return Ok(()) };
        let others: Vec<ServerId> = self.servers.iter().filter_map(super::server::Server::known_id).collect();
        let is_spare = |(name, chunk): &(ChunkName, Chunk)| {
            let mut members = chunk.members.servers().iter();
            members.any(|member| {
                *member != lost && others.contains(member) && !self.rot.has_spoilt(*name, *member)
            })
        };
        let chunks = self.chunks()?;
        if !chunks.iter().filter(|(_, chunk)| chunk.state != ChunkState::Dead).all(is_spare) {
            return Ok(());
        }
        let back_at = self.now() + self.rng.skewed(Duration::from_millis(1)..Duration::from_secs(10));
        let rng = self.life_rng("disk");
        self.servers[place].lose_disk(&self.plan, &rng, &self.trace, &self.network, back_at)?;
        self.trace.note("disk lost", &[place as u64]);
        self.report.count("disks lost", 1);
        Ok(())
    }
}
