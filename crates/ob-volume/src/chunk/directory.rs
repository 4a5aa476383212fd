//! The directory of a sealed chunk: made from its records, and read instead of them (`docs/format/volume.md`, "The directory").
//!
//! Nothing depends on it: what does not fit the chunk, or is not there, is made anew or done without.

use ob_core::{ChunkName, NodeId, Units};
use ob_format::volume::{
    DIRECTORY_HEADER_LEN, Directory, DirectorySummary, ENTRY_LEN, Entry, RECORDS_START, encode_directory,
};
use ob_wire_link::files::FileError;

use super::jobs::Io;
use super::scan::{self, Place};
use super::start::{chunk_path, read_all};
use super::steps::Finding;
use crate::plant::{Bug, is_planted};

/// Entries of the longest directory. Longer ones are left out: a server would need much memory for them at once.
const ENTRIES_MAX: usize = 1 << 18;

/// What a server knows of a chunk's directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum DirectoryState {
    /// Nothing: it is looked at when it is needed.
    #[default]
    Unknown,
    /// It is to be made.
    Wanted,
    /// It is there.
    Made,
    /// There is no room for it, or a record is broken that it needs.
    LeftOut,
}

/// Bytes that the directory of a chunk of this length has at most. A unit of records has eight entries and fewer: ranges of a trim.
pub(super) fn len_most(length: Units) -> u64 {
    let entries = (length.0 as usize).saturating_mul(8).min(ENTRIES_MAX);
    (DIRECTORY_HEADER_LEN + entries * ENTRY_LEN) as u64
}

/// Where it lies.
pub(super) fn directory_path(name: ChunkName) -> String {
    format!("{}.dir", chunk_path(name))
}

/// Makes it from the chunk's records.
pub(super) async fn make(io: Io, place: Place, summary: DirectorySummary) -> Finding {
    Finding::Directory(write(&io, place, &summary).await)
}

async fn write(io: &Io, place: Place, summary: &DirectorySummary) -> Result<bool, FileError> {
    let path = directory_path(place.name);
    // One that does not fit takes room for nothing.
    io.remove(&path).await?;
    let listed = scan::list(io, place, (RECORDS_START, summary.length), ENTRIES_MAX).await;
    let entries = match listed {
        Ok((entries, Units(u32::MAX))) => entries,
        Ok(_) | Err(None) => return Ok(false),
        Err(Some(error)) => return Err(error),
    };
    let bytes = encode_directory(summary, &entries).map_err(|_| FileError::Invalid)?;
    let file = io.create(&path).await?.id;
    let written = write_file(io, file, &bytes).await;
    if written.is_err() {
        let _ = io.remove(&path).await;
    }
    written.map(|()| true)
}

async fn write_file(io: &Io, file: NodeId, bytes: &[u8]) -> Result<(), FileError> {
    for (index, piece) in bytes.chunks(io.piece_len()).enumerate() {
        io.write_block(file, (index * io.piece_len()) as u64, piece).await?;
    }
    io.resize(file, bytes.len() as u64).await
}

/// The bytes of a chunk's directory, if there is one that is not too long.
pub(super) async fn read(io: &Io, name: ChunkName) -> Option<Vec<u8>> {
    let info = io.open(&directory_path(name)).await.ok()?;
    let most = DIRECTORY_HEADER_LEN + ENTRIES_MAX * ENTRY_LEN;
    if info.size > most as u64 {
        return None;
    }
    read_all(io, info.id, info.size).await.ok()
}

/// The directory that these bytes are, if it is the one of this chunk as it was sealed.
pub(super) fn fitting<'a>(bytes: &'a [u8], summary: &DirectorySummary) -> Option<Directory<'a>> {
    let directory = Directory::decode(bytes).ok()?;
    (directory.summary == *summary || is_planted(Bug::DirectoryUncompared)).then_some(directory)
}

/// Lists records: of a sealed chunk by its directory, if that fits, and else by the records themselves.
pub(super) async fn list(
    io: Io,
    place: Place,
    summary: Option<DirectorySummary>,
    range: (Units, Units),
    most: usize,
) -> Finding {
    if let Some(summary) = summary {
        let bytes = read(&io, place.name).await.unwrap_or_default();
        if let Some(directory) = fitting(&bytes, &summary) {
            let result = list_of(&directory, range, most).ok_or(None);
            return Finding::Listed { result, is_by_directory: true };
        }
    }
    Finding::Listed { result: scan::list(&io, place, range, most).await, is_by_directory: false }
}

/// As [`scan::list`] does it; nothing if no record begins where it is to.
fn list_of(
    directory: &Directory<'_>,
    (from, to): (Units, Units),
    most: usize,
) -> Option<(Vec<Entry>, Units)> {
    let is_meant = |entry: &Entry| from <= entry.offset && entry.offset < to;
    let mut entries = directory.entries().filter(is_meant).peekable();
    if from < to && entries.peek().is_none_or(|entry| entry.offset != from) {
        return None;
    }
    let mut listed: Vec<Entry> = Vec::new();
    while let Some(first) = entries.next() {
        let before = listed.len();
        listed.push(first);
        while let Some(range) = entries.next_if(|entry| entry.offset == first.offset) {
            listed.push(range);
        }
        if listed.len() > most && before > 0 {
            listed.truncate(before);
            return Some((listed, first.offset));
        }
        if listed.len() >= most {
            let at = first.end();
            return Some((listed, if at < to { at } else { Units(u32::MAX) }));
        }
    }
    Some((listed, Units(u32::MAX)))
}
