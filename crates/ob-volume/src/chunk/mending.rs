//! A record that is written over what is broken at its place.
//!
//! ```text
//!   record ─▶ it is this place's ─┬─▶ blocks of its own ───────────────────────────────────▶ written
//!                                 └─▶ its first and last: read ────────────────────────────▶ written
//!                                      └ they cannot be read: kept, with what came before ─▶ written when nothing is missing,
//!                                                                                            until then the record beside it is wanted
//! ```
//!
//! What a place is for the directory says. Where there is none (it has rotted, or could not be made because a block was not to be read), the
//! headers before it do, from the chunk's start on; one that cannot be read, or has rotted, is wanted first (R8).
//!
//! Records do not end where blocks do. What cannot be read now may be there again later, and may be the last there is of the record
//! beside: so nothing is written over it but what was sent, and by whoever has it.

use ob_core::{ChunkName, Units};
use ob_format::volume::{DirectorySummary, RECORD_HEADER_LEN, RECORDS_START, Record, entries_of};
use ob_memory::Slice;
use ob_wire_link::files::FileError;

use super::directory::{self, fitting};
use super::jobs::{Io, Reader};
use super::scan::Place;
use super::server::ChunkServer;
use super::steps::{Finding, refusal_of};
use crate::plant::{Bug, is_planted};
use crate::wire::Refusal;

/// Blocks that are kept at a time, of all chunks.
const KEPT_MAX: usize = 64;

/// A block that cannot be read, as far as it was sent.
pub(super) struct Kept {
    /// Where it begins in the file.
    at: u64,
    bytes: Vec<u8>,
    /// Which of its units were sent.
    has: Vec<bool>,
}

/// Those of a chunk.
#[derive(Default)]
pub(super) struct Patches(Vec<Kept>);

impl Kept {
    fn new(at: u64, block_len: usize, length: Units) -> Self {
        let units = block_len as u64 / u64::from(Units::LEN);
        // Behind the chunk's end there is nothing.
        let is_behind = |unit: u64| at + unit * u64::from(Units::LEN) >= length.bytes();
        let has = (0..units).map(|unit| is_behind(unit) || is_planted(Bug::BlockGuessed)).collect();
        Self { at, bytes: vec![0; block_len], has }
    }

    fn put(&mut self, start: u64, record: &[u8]) {
        overlay(&mut self.bytes, self.at, start, record);
        let end = start + record.len() as u64;
        for (unit, has) in self.has.iter_mut().enumerate() {
            let at = self.at + unit as u64 * u64::from(Units::LEN);
            *has |= start <= at && at < end;
        }
    }

    /// The first unit of the chunk that is missing.
    fn missing(&self) -> Option<Units> {
        let first = self.has.iter().position(|has| !has)?;
        Some(Units((self.at / u64::from(Units::LEN)) as u32 + first as u32))
    }
}

impl Patches {
    /// The first unit of the block in which a place lies that was not sent.
    fn first_missing(&self, at: Units, block_len: u64) -> Units {
        let start = at.bytes() - at.bytes() % block_len;
        let kept = self.0.iter().find(|kept| kept.at == start);
        kept.and_then(Kept::missing).unwrap_or(Units((start / u64::from(Units::LEN)) as u32))
    }

    /// The first bytes of the record at a place, if they were sent.
    fn header(&self, at: Units) -> Option<&[u8]> {
        let from_of = |kept: &Kept| at.bytes().checked_sub(kept.at).map(|from| from as usize);
        let is_in = |kept: &&Kept| from_of(kept).is_some_and(|from| from < kept.bytes.len());
        let kept = self.0.iter().find(is_in)?;
        let from = from_of(kept)?;
        let was_sent = kept.has.get(from / Units::LEN as usize).copied().unwrap_or(false);
        kept.bytes.get(from..from + RECORD_HEADER_LEN).filter(|_| was_sent)
    }
}

/// Puts as much of a record into a block as lies in it.
fn overlay(block: &mut [u8], at: u64, start: u64, record: &[u8]) {
    let from = start.saturating_sub(at) as usize;
    let skip = at.saturating_sub(start) as usize;
    let (Some(into), Some(bytes)) = (block.get_mut(from..), record.get(skip..)) else { return };
    let len = into.len().min(bytes.len());
    if let (Some(into), Some(bytes)) = (into.get_mut(..len), bytes.get(..len)) {
        into.copy_from_slice(bytes);
    }
}

/// Writes a record over what lies at its place: over the one that has the same header, or over anything if the directory says that
/// this record belongs there.
pub(super) async fn repair(
    io: Io,
    place: Place,
    summary: DirectorySummary,
    (offset, record): (Units, Slice),
    mut kept: Patches,
) -> Finding {
    let result = async {
        check_place(&io, place, &summary, (offset, &record), &kept).await?;
        write_own(&io, place, offset, &record).await?;
        write_shared(&io, place, &summary, (offset, &record), &mut kept).await
    };
    let result = result.await;
    Finding::Repaired(result, kept)
}

/// Whose header lies at a place.
#[derive(PartialEq, Eq)]
enum IsThere {
    This,
    Another,
    Nothing,
}

/// Whether the record is the one that lies there, or is to.
async fn check_place(
    io: &Io,
    place: Place,
    summary: &DirectorySummary,
    (offset, record): (Units, &[u8]),
    kept: &Patches,
) -> Result<(), Refusal> {
    let there = {
        let mut reader = Reader::of_little(io, place.file);
        let header = reader.at(offset.bytes(), RECORD_HEADER_LEN).await;
        header.map(|header| match record.starts_with(header) && !header.is_empty() {
            true => IsThere::This,
            false if place.header_in(header, offset).is_some() => IsThere::Another,
            false => IsThere::Nothing,
        })
    };
    if there == Ok(IsThere::This) {
        return Ok(());
    }
    let bytes = directory::read(io, place.name).await.unwrap_or_default();
    let decoded = Record::decode(record).map_err(|_| Refusal::Bad)?;
    let is_of = fitting(&bytes, summary).map(|directory| {
        let there = directory.entries().filter(|entry| entry.offset == offset);
        there.eq(entries_of(&decoded))
    });
    match (is_of, there) {
        (Some(true), _) => Ok(()),
        (None, Ok(IsThere::Nothing) | Err(FileError::Io)) if !is_planted(Bug::HeadersForgotten) => {
            if decoded.header.end() > summary.length {
                return Err(Refusal::Conflict);
            }
            check_headers(io, place, kept, offset).await
        }
        (None, Err(error)) => Err(refusal_of(error, 0)),
        _ => Err(Refusal::Conflict),
    }
}

/// The same, as the headers before the place say.
async fn check_headers(io: &Io, place: Place, kept: &Patches, offset: Units) -> Result<(), Refusal> {
    match follow(io, place, kept, offset).await {
        Followed::Begins => Ok(()),
        Followed::Within(_) => Err(Refusal::Conflict),
        Followed::Rotten(at) => Err(Refusal::Beside { at }),
        Followed::Unreadable(at) => {
            // Whoever asks goes on in the order of places: what comes first in the block is wanted first.
            let first = kept.first_missing(at, io.block_len as u64).min(at);
            Err(Refusal::Beside { at: follow(io, place, kept, first).await.begin_of(first) })
        }
    }
}

/// How far headers lead that follow each other, on the way to a unit.
enum Followed {
    /// A record begins there.
    Begins,
    /// It is one of those behind the first of this record.
    Within(Units),
    /// Not as far: the header there is none any more.
    Rotten(Units),
    /// The one there cannot be read, and was not sent.
    Unreadable(Units),
}

impl Followed {
    /// Where the record begins that has the unit, or the first one of which nobody can say how long it is.
    const fn begin_of(&self, unit: Units) -> Units {
        match self {
            Self::Begins => unit,
            Self::Within(at) | Self::Rotten(at) | Self::Unreadable(at) => *at,
        }
    }
}

/// Follows headers from the chunk's start on.
async fn follow(io: &Io, place: Place, kept: &Patches, unit: Units) -> Followed {
    let mut reader = Reader::of_little(io, place.file);
    let mut at = RECORDS_START;
    while at < unit {
        let header = match kept.header(at) {
            Some(bytes) => Ok(place.header_in(bytes, at)),
            None => place.header(&mut reader, at).await,
        };
        match header {
            Ok(Some(header)) if header.end() <= unit => at = header.end(),
            Ok(Some(_)) => return Followed::Within(at),
            Ok(None) => return Followed::Rotten(at),
            Err(_) => return Followed::Unreadable(at),
        }
    }
    Followed::Begins
}

/// Writes the blocks that have nothing but this record. None of them is read.
async fn write_own(io: &Io, place: Place, offset: Units, record: &[u8]) -> Result<(), Refusal> {
    let (block_len, start) = (io.block_len as u64, offset.bytes());
    let end = start + record.len() as u64;
    let (first, end) = (start.next_multiple_of(block_len), end - end % block_len);
    if first >= end {
        return Ok(());
    }
    let mut buffer = io.buffer().await;
    buffer.truncate((end - first) as usize);
    overlay(&mut buffer, first, start, record);
    io.write(place.file, first, buffer).await.map_err(|error| refusal_of(error, 0))
}

/// Writes the first and the last block, which others have a part of.
async fn write_shared(
    io: &Io,
    place: Place,
    summary: &DirectorySummary,
    (offset, record): (Units, &[u8]),
    kept: &mut Patches,
) -> Result<(), Refusal> {
    let (block_len, start) = (io.block_len as u64, offset.bytes());
    let end = start + record.len() as u64;
    let (first, last) = (start - start % block_len, (end - 1) - (end - 1) % block_len);
    let is_shared = |at: &u64| *at < start || at + block_len > end;
    let mut missing = None;
    for at in [Some(first), Some(last).filter(|last| *last != first)].into_iter().flatten().filter(is_shared)
    {
        let there = read_block(io, place, at).await;
        let before = kept.0.iter().position(|kept| kept.at == at).map(|found| kept.0.swap_remove(found));
        let block = match there {
            Ok(mut block) => {
                overlay(&mut block, at, start, record);
                block
            }
            Err(FileError::Io) => {
                let mut block = before.unwrap_or_else(|| Kept::new(at, io.block_len, summary.length));
                block.put(start, record);
                if let Some(unit) = block.missing() {
                    missing = missing.or(Some(unit));
                    kept.0.push(block);
                    continue;
                }
                block.bytes
            }
            Err(error) => return Err(refusal_of(error, 0)),
        };
        // Files end where blocks do.
        io.write_block(place.file, at, &block).await.map_err(|error| refusal_of(error, 0))?;
    }
    let Some(unit) = missing else { return Ok(()) };
    let bytes = directory::read(io, place.name).await.unwrap_or_default();
    let Some(directory) = fitting(&bytes, summary) else {
        if is_planted(Bug::HeadersForgotten) {
            return Err(Refusal::Medium);
        }
        return Err(Refusal::Beside { at: follow(io, place, kept, unit).await.begin_of(unit) });
    };
    let beside = directory.entries().take_while(|entry| entry.offset <= unit).last();
    Err(beside.map_or(Refusal::Medium, |entry| Refusal::Beside { at: entry.offset }))
}

/// A block as it is; of an earlier file that ends within it, with zeros behind.
async fn read_block(io: &Io, place: Place, at: u64) -> Result<Vec<u8>, FileError> {
    let mut reader = Reader::of_little(io, place.file);
    let mut block = reader.at(at, io.block_len).await?.to_vec();
    block.resize(io.block_len, 0);
    Ok(block)
}

impl ChunkServer {
    /// What was kept of a chunk's blocks.
    pub(super) fn take_patches(&mut self, name: ChunkName) -> Patches {
        let is_its = |kept: &mut (ChunkName, Kept)| kept.0 == name;
        Patches(self.patches.extract_if(.., is_its).map(|(_, kept)| kept).collect())
    }

    /// Keeps it: those that something came for last.
    pub(super) fn keep_patches(&mut self, name: ChunkName, patches: Patches) {
        self.patches.extend(patches.0.into_iter().map(|kept| (name, kept)));
        let more = self.patches.len().saturating_sub(KEPT_MAX);
        self.patches.drain(..more);
    }
}
