//! What is done with a chunk in many steps.

use ob_core::{ChunkName, NodeId, Units};
use ob_format::volume::{ChunkHeader, Entry, RECORD_HEADER_LEN, RECORDS_START, ServerFile};
use ob_memory::Slice;
use ob_wire_link::files::FileError;

use super::jobs::{Io, Reader};
use super::ledger::LedgerFile;
use super::scan::{self, Found, Place};
use super::start::{StartError, Started, chunk_path, write_server};
use crate::wire::Refusal;

/// What a job has found.
pub(super) enum Finding {
    Started(Box<Result<Started, StartError>>),
    Ledger(Result<LedgerFile, FileError>),
    /// Whether it was made, and whether who the server is was written with it.
    Created {
        joined: bool,
        result: Result<(NodeId, Option<Vec<u8>>), FileError>,
    },
    Deleted(Result<(), FileError>),
    Compared(Result<bool, FileError>),
    Scanned(Found),
    /// The CRC32C of the records up to the length.
    Summed(Result<u32, FileError>),
    Cut(Result<(), FileError>),
    Listed(Result<(Vec<Entry>, Units), Option<FileError>>),
    Repaired(Result<(), Refusal>),
}

/// What was wrong with the files, as a tier is told.
pub(super) fn refusal_of(error: FileError, free: u64) -> Refusal {
    match error {
        FileError::NotFound => Refusal::NoChunk,
        FileError::NoSpace => Refusal::Full { free },
        FileError::Busy => Refusal::Busy,
        _ => Refusal::Medium,
    }
}

/// Makes a chunk's file, of which nobody knows before its header is durable.
pub(super) async fn create(io: Io, header: ChunkHeader, join: Option<ServerFile>) -> Finding {
    let mut joined = false;
    let result = make(&io, &header, join, &mut joined).await;
    if result.is_err() {
        // What is left of it is removed by the next start, if not now.
        let _ = io.remove(&chunk_path(header.name)).await;
    }
    Finding::Created { joined, result }
}

async fn make(
    io: &Io,
    header: &ChunkHeader,
    join: Option<ServerFile>,
    joined: &mut bool,
) -> Result<(NodeId, Option<Vec<u8>>), FileError> {
    let bytes = header.encode().map_err(|_| FileError::Invalid)?;
    if let Some(server) = join {
        write_server(io, &server).await?;
        *joined = true;
    }
    let path = chunk_path(header.name);
    for (at, _) in path.match_indices('/').skip(1) {
        io.make_directory(path.get(..at).unwrap_or_default()).await?;
    }
    let node = io.create(&path).await?;
    // Whole blocks, so that no append changes the size.
    io.resize(node.id, header.length.bytes().next_multiple_of(io.block_len as u64)).await?;
    let mut block = bytes.to_vec();
    block.resize(RECORDS_START.bytes() as usize, 0);
    io.write_block(node.id, 0, &block).await?;
    let tail = block.get(block.len() - block.len() % io.block_len..).unwrap_or_default().to_vec();
    Ok((node.id, Some(tail)))
}

/// Removes a chunk.
pub(super) async fn delete(io: Io, name: ChunkName) -> Finding {
    let path = chunk_path(name);
    let removed = async {
        io.remove(&path).await?;
        io.remove(&format!("{path}.dir")).await?;
        io.flush().await
    };
    Finding::Deleted(removed.await)
}

/// Compares records that were sent with what is there.
pub(super) async fn compare(io: Io, file: NodeId, offset: Units, records: Slice) -> Finding {
    Finding::Compared(scan::are_there(&io, file, offset, &records).await)
}

/// Looks how far a chunk goes behind what is known.
pub(super) async fn look_behind(io: Io, place: Place, known: Found) -> Finding {
    Finding::Scanned(scan::scan(&io, place, known).await)
}

/// Sums up a chunk to a length.
pub(super) async fn sum(io: Io, file: NodeId, length: Units) -> Finding {
    Finding::Summed(scan::content_crc(&io, file, RECORDS_START, length).await)
}

/// Cuts a sealed chunk's file.
pub(super) async fn cut(io: Io, file: NodeId, length: Units) -> Finding {
    Finding::Cut(io.resize(file, length.bytes()).await)
}

/// Lists records.
pub(super) async fn list(io: Io, place: Place, range: (Units, Units), most: usize) -> Finding {
    Finding::Listed(scan::list(&io, place, range, most).await)
}

/// Writes a record over the one that has the same header, whose payload is broken or not.
pub(super) async fn repair(io: Io, file: NodeId, offset: Units, record: Slice) -> Finding {
    let header_there = async {
        let mut reader = Reader::new(&io, file);
        reader.at(offset.bytes(), RECORD_HEADER_LEN).await.map(<[u8]>::to_vec)
    };
    let there = match header_there.await {
        Ok(there) => there,
        Err(error) => return Finding::Repaired(Err(refusal_of(error, 0))),
    };
    if record.get(..RECORD_HEADER_LEN) != Some(&there[..]) {
        return Finding::Repaired(Err(Refusal::Conflict));
    }
    let written = io.write(file, offset.bytes(), record).await;
    Finding::Repaired(written.map_err(|error| refusal_of(error, 0)))
}
