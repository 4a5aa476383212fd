//! What is done with a chunk in many steps.

use ob_core::{ChunkName, NodeId, Units};
use ob_format::volume::{ChunkHeader, Entry, RECORDS_START, ServerFile};
use ob_memory::Slice;
use ob_wire_link::files::{FileError, NodeInfo};

use super::directory::directory_path;
use super::jobs::Io;
use super::ledger::LedgerFile;
use super::mending::Patches;
use super::scan::{self, Found, Place};
use super::start::{StartError, Started, chunk_path, write_server};
use crate::plant::{Bug, is_planted};
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
    /// Whether the directory was made.
    Directory(Result<bool, FileError>),
    Listed {
        result: Result<(Vec<Entry>, Units), Option<FileError>>,
        is_by_directory: bool,
    },
    Repaired(Result<(), Refusal>, Patches),
    /// Up to where records are whole.
    Checked(Result<Units, Refusal>),
}

/// What was wrong with the files, as a tier is told.
pub(super) fn refusal_of(error: FileError, free: u64) -> Refusal {
    match error {
        FileError::NotFound => Refusal::NoChunk,
        FileError::NoSpace => Refusal::Full { free },
        FileError::Busy => Refusal::Busy,
        FileError::Exists => Refusal::Exists,
        _ => Refusal::Medium,
    }
}

/// Makes a chunk's file, of which nobody knows before its header is durable.
pub(super) async fn create(io: Io, header: ChunkHeader, join: Option<ServerFile>) -> Finding {
    let mut made = Made::default();
    let result = make(&io, &header, join, &mut made).await;
    if result.is_err() && made.file {
        // What is left of it is removed by the next start, if not now. What was there before is not touched.
        let _ = io.remove(&chunk_path(header.name)).await;
    }
    Finding::Created { joined: made.joined, result }
}

/// How far a chunk's making has come.
#[derive(Default)]
struct Made {
    joined: bool,
    file: bool,
}

/// How often directories are made that others remove meanwhile, because nothing is in them.
const DIRECTORIES_AGAIN: usize = 4;

async fn make(
    io: &Io,
    header: &ChunkHeader,
    join: Option<ServerFile>,
    made: &mut Made,
) -> Result<(NodeId, Option<Vec<u8>>), FileError> {
    let bytes = header.encode().map_err(|_| FileError::Invalid)?;
    if let Some(server) = join {
        write_server(io, &server).await?;
        made.joined = true;
    }
    let path = chunk_path(header.name);
    let mut again = 0..DIRECTORIES_AGAIN;
    let node = loop {
        match make_file(io, &path).await {
            Err(FileError::NotFound) if again.next().is_some() => {}
            made => break made?,
        }
    };
    made.file = true;
    // Whole blocks, so that no append changes the size.
    io.resize(node.id, header.length.bytes().next_multiple_of(io.block_len as u64)).await?;
    let mut block = bytes.to_vec();
    block.resize(RECORDS_START.bytes() as usize, 0);
    io.write_block(node.id, 0, &block).await?;
    let tail = block.get(block.len() - block.len() % io.block_len..).unwrap_or_default().to_vec();
    Ok((node.id, Some(tail)))
}

async fn make_file(io: &Io, path: &str) -> Result<NodeInfo, FileError> {
    for directory in directories_of(path) {
        io.make_directory(directory).await?;
    }
    io.create(path).await
}

/// The directories of a chunk's file below that of all, the outer one first.
fn directories_of(path: &str) -> impl DoubleEndedIterator<Item = &str> {
    path.match_indices('/').skip(1).filter_map(|(at, _)| path.get(..at)).collect::<Vec<_>>().into_iter()
}

/// Removes a chunk, and the directories that nothing else is in.
pub(super) async fn delete(io: Io, name: ChunkName) -> Finding {
    let path = chunk_path(name);
    let removed = async {
        // The chunk goes last: who asks for it once more removes the rest.
        io.remove(&directory_path(name)).await?;
        io.remove(&path).await?;
        for directory in directories_of(&path).rev() {
            io.remove_empty(directory).await?;
        }
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
    let end = known.end;
    let mut found = scan::scan(&io, place, known.clone()).await;
    // What a write has left there that failed need not be durable yet, and is told from now on.
    if found.end > end && !is_planted(Bug::FoundUnflushed) && io.flush().await.is_err() {
        found = known;
    }
    Finding::Scanned(found)
}

/// Sums up a chunk to a length.
pub(super) async fn sum(io: Io, file: NodeId, length: Units) -> Finding {
    Finding::Summed(scan::content_crc(&io, file, RECORDS_START, length).await)
}

/// Looks at the records of a sealed chunk.
pub(super) async fn check(io: Io, place: Place, from: Units) -> Finding {
    Finding::Checked(match scan::whole_records(&io, place, from).await {
        Ok(sound) if sound > from => Ok(sound),
        Ok(_) => Err(Refusal::Damaged),
        Err(error) => Err(refusal_of(error, 0)),
    })
}

/// Cuts a sealed chunk's file, at the end of a block: the last one can be written whole, whatever can be read of it.
pub(super) async fn cut(io: Io, file: NodeId, length: Units) -> Finding {
    Finding::Cut(io.resize(file, length.bytes().next_multiple_of(io.block_len as u64)).await)
}
