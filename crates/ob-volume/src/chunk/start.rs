//! Starting: who the server is, what it must not forget, and which chunks it has.

use std::collections::BTreeMap;

use ob_core::{
    ChunkId, ChunkName, Epoch, Incarnation, NodeId, NodeKind, PoolId, SegmentId, SegmentName, ServerId,
    Units, VolumeId,
};
use ob_files_card::{MetadataOp, Outcome};
use ob_format::files::ROOT;
use ob_format::volume::{
    CHUNK_HEADER_LEN, ChunkHeader, LayoutError, LedgerError, LedgerFact, RECORD_HEADER_LEN, RECORDS_START,
    RecordHeader, ServerFile, long_digits, parse_long, parse_short, read_ledger, short_digits,
};
use ob_wire_link::files::{Entries, FileError, SpaceInfo};

use super::chunk::Chunk;
use super::jobs::{Io, Reader};
use super::ledger::{self, LedgerFile};
use super::scan::{self, Found, Place};
use crate::plant::{Bug, is_planted};
use crate::wire::{EndState, ReplicaState};

/// Where everything of a server lies.
const DIRECTORY: &str = "chunks";
const SERVER_PATH: &str = "chunks/server";
/// Bytes of a list of names.
const LIST_LEN: u32 = 64 << 10;

/// Why a server cannot serve what its files have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The files did not do what they were asked.
    #[error("the files of the chunk server: {0}")]
    Files(#[from] FileError),
    /// It cannot be read who the server is.
    #[error(
        "/chunks/server does not say who the server is: {0}; remove all data of this server, and let it join anew"
    )]
    Server(LayoutError),
    /// What it must not forget cannot be written.
    #[error("the ledger of the chunk server cannot be written: {0}")]
    LedgerUnwritten(FileError),
    /// It cannot be read whom it has to refuse.
    #[error("{0}; remove all data of this server, and let it join anew")]
    Ledger(#[from] LedgerError),
}

/// What a server has.
pub(super) struct Started {
    pub(super) server: ServerFile,
    pub(super) ledger: LedgerFile,
    pub(super) segments: BTreeMap<SegmentName, Epoch>,
    pub(super) chunks: BTreeMap<ChunkName, Chunk>,
    pub(super) space: SpaceInfo,
}

/// What the ledger says, the last of each.
#[derive(Default)]
struct Facts {
    segments: BTreeMap<SegmentName, Epoch>,
    chunks: BTreeMap<ChunkName, LedgerFact>,
    number: u64,
}

/// Where a chunk's file lies.
pub(super) fn chunk_path(name: ChunkName) -> String {
    let (volume, segment) = (long_digits(name.volume.0), short_digits(name.segment.0));
    format!("{DIRECTORY}/{volume}/{segment}/{}", short_digits(name.chunk.0))
}

/// Looks what there is, and makes it fit to be served.
pub(super) async fn start(io: Io, fresh: ServerId) -> Result<Started, StartError> {
    io.make_directory(DIRECTORY).await?;
    let (server, facts) = identify(&io, fresh).await?;
    let mut chunks = BTreeMap::new();
    let root = io.node(MetadataOp::Stat { base: ROOT, path: DIRECTORY.into() }).await?;
    for (volume, node) in directories(&io, root.id, parse_long).await? {
        for (segment, node) in directories(&io, node, parse_short).await? {
            let segment = SegmentName { volume: VolumeId(volume), segment: SegmentId(segment) };
            segment_chunks(&io, (segment, node), server.pool, &facts, &mut chunks).await?;
        }
    }
    // What an earlier life has written and not made durable may be told from now on.
    io.flush().await?;
    let counting = facts_of(&facts.segments, &chunks);
    let ledger = ledger::rewrite(io.clone(), server.server, facts.number + 1, counting).await?;
    if server.incarnation == Incarnation(1) {
        write_server(&io, &server).await?;
    }
    let Outcome::Space(space) = io.metadata(MetadataOp::Space).await? else {
        return Err(FileError::Invalid.into());
    };
    Ok(Started { server, ledger, segments: facts.segments, chunks, space })
}

/// What a ledger must have that is written anew.
pub(super) fn facts_of(
    segments: &BTreeMap<SegmentName, Epoch>,
    chunks: &BTreeMap<ChunkName, Chunk>,
) -> Vec<LedgerFact> {
    let epochs =
        segments.iter().map(|(segment, epoch)| LedgerFact::Epoch { segment: *segment, epoch: *epoch });
    let states = chunks.iter().filter_map(|(name, chunk)| chunk_fact(*name, chunk));
    epochs.chain(states).collect()
}

/// What the ledger says of a chunk.
pub(super) fn chunk_fact(name: ChunkName, chunk: &Chunk) -> Option<LedgerFact> {
    let (epoch, content_crc) = (chunk.by, chunk.content_crc);
    if let Some(left_alone) = &chunk.left_alone {
        // It may be readable in another life, and then it is what it was.
        return left_alone.fact.filter(|_| !is_planted(Bug::LeftAloneForgotten));
    }
    match chunk.state {
        ReplicaState::Open => None,
        ReplicaState::Stopped => Some(LedgerFact::Stopped { chunk: name, epoch }),
        ReplicaState::Sealed => {
            Some(LedgerFact::Sealed { chunk: name, epoch, length: chunk.end, content_crc })
        }
        ReplicaState::Filling => Some(LedgerFact::Filling { chunk: name, epoch, length: chunk.length }),
    }
}

/// Who the server is in this life, which is durable unless it is its first one; and what the ledger says.
async fn identify(io: &Io, fresh: ServerId) -> Result<(ServerFile, Facts), StartError> {
    let bytes = match io.open(SERVER_PATH).await {
        // The file may have been made in a life that ended before it was written.
        Ok(node) if node.size > 0 => Some(read_all(io, node.id, node.size.min(4096)).await?),
        Ok(_) | Err(FileError::NotFound) => None,
        Err(error) => return Err(error.into()),
    };
    let ledger = match io.open(ledger::PATH).await {
        Ok(node) => Some(read_all(io, node.id, node.size).await?),
        Err(FileError::NotFound) => None,
        Err(error) => return Err(error.into()),
    };
    let Some(bytes) = bytes else {
        // A ledger alone is one of a first life that got no further, or the server's file is lost.
        let entries = ledger.map_or(Ok(Vec::new()), |bytes| read_ledger(&bytes))?;
        if entries.len() > 1 {
            return Err(StartError::Server(LayoutError::Missing));
        }
        let server = ServerFile { server: fresh, incarnation: Incarnation(1), pool: None };
        return Ok((server, Facts::default()));
    };
    let mut server = ServerFile::decode(&bytes).map_err(StartError::Server)?;
    let entries = read_ledger(&ledger.unwrap_or_default())?;
    let mut facts = Facts::default();
    for entry in entries {
        if entry.server != server.server {
            return Err(LedgerError::Beginning(LayoutError::Illegal("another server wrote it")).into());
        }
        facts.number = entry.number;
        facts.take(entry.fact);
    }
    server.incarnation = Incarnation(server.incarnation.0.max(1) + 1);
    write_server(io, &server).await?;
    Ok((server, facts))
}

impl Facts {
    fn take(&mut self, fact: LedgerFact) {
        match fact {
            LedgerFact::Begin => {}
            LedgerFact::Epoch { segment, epoch } => {
                let known = self.segments.entry(segment).or_insert(epoch);
                *known = epoch.max(*known);
            }
            LedgerFact::Stopped { chunk, .. }
            | LedgerFact::Sealed { chunk, .. }
            | LedgerFact::Filling { chunk, .. } => {
                self.chunks.insert(chunk, fact);
            }
            LedgerFact::Gone { segment } => {
                self.segments.remove(&segment);
            }
        }
    }
}

/// Writes down who the server is: one block, which is written whole or not at all.
pub(super) async fn write_server(io: &Io, server: &ServerFile) -> Result<(), FileError> {
    let bytes = server.encode().map_err(|_| FileError::Invalid)?;
    let node = match io.open(SERVER_PATH).await {
        Err(FileError::NotFound) => io.create(SERVER_PATH).await?,
        found => found?,
    };
    io.write_block(node.id, 0, &bytes).await
}

/// All of a short file.
pub(super) async fn read_all(io: &Io, file: NodeId, len: u64) -> Result<Vec<u8>, FileError> {
    let mut reader = Reader::new(io, file);
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < len {
        let at = bytes.len() as u64;
        let piece = reader.at(at, (len - at).min(64 << 10) as usize).await?;
        if piece.is_empty() {
            break;
        }
        bytes.extend_from_slice(piece);
    }
    Ok(bytes)
}

/// The directories in a directory whose names are numbers.
async fn directories<N: Copy>(
    io: &Io,
    directory: NodeId,
    parse: fn(&str) -> Option<N>,
) -> Result<Vec<(N, NodeId)>, FileError> {
    numbers(io, directory, NodeKind::Directory, parse).await
}

async fn numbers<N: Copy>(
    io: &Io,
    directory: NodeId,
    kind: NodeKind,
    parse: fn(&str) -> Option<N>,
) -> Result<Vec<(N, NodeId)>, FileError> {
    let (mut found, mut after) = (Vec::new(), Vec::new());
    loop {
        let op = MetadataOp::List { directory, after: after.clone(), most: LIST_LEN };
        let Outcome::Entries { bytes, more } = io.metadata(op).await? else { return Err(FileError::Invalid) };
        for entry in Entries::new(&bytes) {
            let entry = entry.map_err(|_| FileError::Invalid)?;
            after = entry.name.to_vec();
            let number = std::str::from_utf8(entry.name).ok().and_then(parse);
            found.extend(number.filter(|_| entry.kind == kind).map(|number| (number, entry.id)));
        }
        if !more {
            return Ok(found);
        }
    }
}

async fn segment_chunks(
    io: &Io,
    (segment, directory): (SegmentName, NodeId),
    pool: Option<PoolId>,
    facts: &Facts,
    chunks: &mut BTreeMap<ChunkName, Chunk>,
) -> Result<(), FileError> {
    for (number, node) in numbers(io, directory, NodeKind::File, parse_short).await? {
        let name = ChunkName::new(segment, ChunkId(number));
        let fact = facts.chunks.get(&name);
        let chunk = match look_at_file(io, name, node, pool, fact).await {
            Seen::Chunk(chunk) => *chunk,
            Seen::LeftAlone(why) => {
                tracing::warn!(?name, why, "a chunk cannot be served, and is left alone");
                Chunk::left_alone(node, fact.copied())
            }
            Seen::NeverTold => {
                io.remove(&chunk_path(name)).await?;
                continue;
            }
        };
        chunks.insert(name, chunk);
    }
    Ok(())
}

/// What a file with a chunk's name is.
enum Seen {
    Chunk(Box<Chunk>),
    /// Something is there that cannot be served. It may be all that is left of what was acknowledged: nobody but its owner knows.
    LeftAlone(&'static str),
    /// Its making was not over when the server ended, so that nobody was told of it.
    NeverTold,
}

async fn look_at_file(
    io: &Io,
    name: ChunkName,
    file: NodeId,
    pool: Option<PoolId>,
    fact: Option<&LedgerFact>,
) -> Seen {
    let Ok(info) = io.node(MetadataOp::Stat { base: file, path: Vec::new() }).await else {
        return Seen::LeftAlone("its length cannot be read");
    };
    let header = {
        let mut reader = Reader::of_little(io, file);
        reader.at(0, CHUNK_HEADER_LEN).await.map(ChunkHeader::decode)
    };
    let header = match header {
        Err(_) => return Seen::LeftAlone("its header cannot be read"),
        Ok(Err(LayoutError::Version(_))) => return Seen::LeftAlone("it is of another version"),
        Ok(Err(_)) if is_planted(Bug::HeaderRotRemoves) => return Seen::NeverTold,
        Ok(Err(_)) => return unmade_or_broken(io, name, file, info.size, fact).await,
        Ok(Ok(header)) => header,
    };
    if header.name != name {
        return Seen::LeftAlone("its header is of another chunk");
    }
    if pool != Some(header.pool) {
        return Seen::LeftAlone("it is of another pool");
    }
    look_at(io, &header, file, info.size, fact).await
}

/// What a file is that does not begin like a chunk. A header is a write of one block, so there is nothing of one that was not made.
async fn unmade_or_broken(
    io: &Io,
    name: ChunkName,
    file: NodeId,
    size: u64,
    fact: Option<&LedgerFact>,
) -> Seen {
    const BROKEN: Seen = Seen::LeftAlone("its header is broken");
    if matches!(fact, Some(LedgerFact::Stopped { .. } | LedgerFact::Sealed { .. })) {
        return BROKEN;
    }
    let mut reader = Reader::of_little(io, file);
    let start = RECORDS_START.bytes() as usize;
    match reader.at(0, start).await {
        Ok(block) if block.iter().all(|byte| *byte == 0) => {}
        _ => return BROKEN,
    }
    if size <= start as u64 {
        return Seen::NeverTold;
    }
    match reader.at(start as u64, RECORD_HEADER_LEN).await.map(RecordHeader::decode) {
        Ok(Ok(record)) if record.chunk == name => BROKEN,
        Ok(_) => Seen::NeverTold,
        Err(_) => BROKEN,
    }
}

/// How far a chunk goes that is there.
async fn look_at(io: &Io, header: &ChunkHeader, file: NodeId, size: u64, fact: Option<&LedgerFact>) -> Seen {
    let state = match fact {
        Some(LedgerFact::Stopped { .. }) => ReplicaState::Stopped,
        Some(LedgerFact::Sealed { .. }) => ReplicaState::Sealed,
        Some(LedgerFact::Filling { .. }) => ReplicaState::Filling,
        _ => ReplicaState::Open,
    };
    let mut chunk = Chunk::new(header.epoch, header.kind, header.block_len, header.length, state);
    (chunk.file, chunk.is_here) = (file, true);
    chunk.tail = None;
    match fact {
        Some(LedgerFact::Sealed { length, content_crc, epoch, .. }) => {
            (chunk.end, chunk.content_crc, chunk.by) = (*length, *content_crc, *epoch);
            if size < length.bytes() {
                return Seen::LeftAlone("it is shorter than it was sealed");
            }
            if size > length.bytes() {
                // What lies behind was to be cut, and is seen by nobody.
                chunk.is_to_be_cut = io.resize(file, length.bytes()).await.is_err();
            }
            return Seen::Chunk(Box::new(chunk));
        }
        Some(LedgerFact::Stopped { epoch, .. } | LedgerFact::Filling { epoch, .. }) => chunk.by = *epoch,
        _ => {}
    }
    let limit = u32::try_from(size / u64::from(Units::LEN)).unwrap_or(u32::MAX);
    let limit = header.length.min(Units(limit)).max(RECORDS_START);
    let place = Place { name: header.name, kind: header.kind, file, limit };
    let found = scan::scan(io, place, Found::nothing()).await;
    chunk.found(found);
    Seen::Chunk(Box::new(chunk))
}

impl Found {
    /// Nothing is known yet.
    pub(super) fn nothing() -> Self {
        Self {
            end: RECORDS_START,
            everywhere: RECORDS_START,
            content_crc: 0,
            state: EndState::Clean,
            tail: None,
        }
    }
}

impl Chunk {
    /// It goes so far.
    pub(super) fn found(&mut self, found: Found) {
        let Found { end, everywhere, content_crc, state, tail } = found;
        (self.end, self.everywhere, self.content_crc) = (end, everywhere, content_crc);
        (self.end_state, self.tail) = (state, tail);
    }
}
