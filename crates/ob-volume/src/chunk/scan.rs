//! How far a chunk goes, as its bytes tell.

use ob_core::{ChunkName, NodeId, Units};
use ob_format::volume::{ChunkKind, Encoding, Entry, RECORD_HEADER_LEN, Record, RecordHeader, entries_of};
use ob_wire_link::files::FileError;

use super::jobs::{Io, Reader};
use crate::wire::EndState;

/// Bytes behind the end that are searched: no batch is longer.
const BEHIND_LEN: u64 = 1 << 20;
/// Zeros that a torn record has and an LZ4 block has not.
const TORN_LEN: usize = 512;

/// Which bytes are meant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) name: ChunkName,
    pub(super) kind: ChunkKind,
    pub(super) file: NodeId,
    /// Where the chunk's file ends.
    pub(super) limit: Units,
}

/// How far a chunk goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) end: Units,
    pub(super) everywhere: Units,
    pub(super) content_crc: u32,
    pub(super) state: EndState,
    /// The bytes before the end in its device block, if only zeros were found behind it.
    pub(super) tail: Option<Vec<u8>>,
}

impl Place {
    fn is_here(&self, header: &RecordHeader, at: Units) -> bool {
        header.chunk == self.name
            && header.offset == at
            && header.kind.chunk_kind() == self.kind
            && header.end() <= self.limit
    }

    /// The header of the record at a place, if there is one that can be.
    pub(super) async fn header(
        &self,
        reader: &mut Reader<'_>,
        at: Units,
    ) -> Result<Option<RecordHeader>, FileError> {
        Ok(self.header_in(reader.at(at.bytes(), RECORD_HEADER_LEN).await?, at))
    }

    /// The same, in these bytes.
    pub(super) fn header_in(&self, bytes: &[u8], at: Units) -> Option<RecordHeader> {
        RecordHeader::decode(bytes).ok().filter(|header| self.is_here(header, at))
    }
}

/// Follows valid records from where so much is known already, and judges what lies behind the last one.
pub(super) async fn scan(io: &Io, place: Place, known: Found) -> Found {
    let mut reader = Reader::new(io, place.file);
    let mut found = known;
    let unreadable = loop {
        if found.end >= place.limit {
            break false;
        }
        let header = match place.header(&mut reader, found.end).await {
            Ok(Some(header)) => header,
            Ok(None) => break false,
            Err(_) => break true,
        };
        let Ok(bytes) = reader.at(found.end.bytes(), header.len()).await else { break true };
        if Record::decode(bytes).is_err() {
            break false;
        }
        found.content_crc = crc32c::crc32c_append(found.content_crc, bytes);
        found.everywhere = found.everywhere.max(header.everywhere().unwrap_or_default());
        found.end = header.end();
    };
    found.tail = None;
    found.state = if unreadable {
        EndState::Damaged
    } else {
        judge(&place, &mut reader, &mut found).await.unwrap_or(EndState::Damaged)
    };
    found
}

/// What the bytes behind the end say of it (docs/volumes-safety.md, "Is a prefix enough?").
async fn judge(place: &Place, reader: &mut Reader<'_>, found: &mut Found) -> Result<EndState, FileError> {
    let block_len = reader.block_len() as u64;
    let (at, limit) = (found.end.bytes(), place.limit.bytes());
    let search_end = limit.min(at.saturating_add(BEHIND_LEN));
    let (mut is_all_zero, mut was_everywhere) = (true, false);
    // Headers that follow the last valid record one behind the other are those of records, and what lies between them is a client's,
    // which may look like a header. Where the next one is missing, every unit has to be looked at.
    let (mut unit, mut is_chain) = (found.end, true);
    while unit.bytes() < search_end {
        let bytes = reader.at(unit.bytes(), Units::LEN as usize).await?;
        is_all_zero &= is_zero(bytes);
        let header = RecordHeader::decode(bytes)
            .ok()
            .filter(|header| header.chunk == place.name && header.offset == unit);
        let behind = header.as_ref().filter(|_| unit > found.end);
        if let Some(everywhere) = behind.and_then(RecordHeader::everywhere) {
            was_everywhere |= everywhere > found.end;
            found.everywhere = found.everywhere.max(everywhere);
        }
        is_chain &= header.is_some();
        unit = header.filter(|_| is_chain).map_or(Units(unit.0 + 1), |header| header.end());
    }
    if was_everywhere {
        return Ok(EndState::Damaged);
    }
    if is_all_zero {
        let begin = at - at % block_len;
        found.tail = Some(reader.at(begin, (at - begin) as usize).await?.to_vec());
        return Ok(EndState::Clean);
    }
    let block_end = (at - at % block_len + block_len).min(limit);
    if is_zero(reader.at(at, (block_end - at) as usize).await?) {
        return Ok(EndState::Clean);
    }
    let Some(header) = place.header(reader, found.end).await? else { return Ok(EndState::Damaged) };
    if header.encoding != Encoding::Lz4 {
        return Ok(EndState::Doubtful);
    }
    let bytes = reader.at(at, header.len()).await?;
    // Blocks are written whole, so one that was not written is all zeros.
    let first = ((block_len - at % block_len) as usize).min(bytes.len());
    let (front, rest) = bytes.split_at(first);
    let mut parts = std::iter::once(front).chain(rest.chunks(block_len as usize));
    let is_torn = parts.any(|part| part.len() >= TORN_LEN && is_zero(part));
    Ok(if is_torn { EndState::Clean } else { EndState::Doubtful })
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// The CRC32C of the records up to a length.
pub(super) async fn content_crc(io: &Io, file: NodeId, from: Units, length: Units) -> Result<u32, FileError> {
    let mut reader = Reader::new(io, file);
    let (mut at, end, mut crc) = (from.bytes(), length.bytes(), 0);
    while at < end {
        let want = (end - at).min(64 << 10) as usize;
        let bytes = reader.at(at, want).await?;
        if bytes.len() < want {
            return Err(FileError::Invalid);
        }
        crc = crc32c::crc32c_append(crc, bytes);
        at += want as u64;
    }
    Ok(crc)
}

/// Bytes of records that are looked at for one answer.
const CHECKED_LEN: u64 = 4 << 20;

/// Up to where records follow each other that are whole, from one on, as far as it is looked for one answer.
///
/// # Errors
///
/// When the first one cannot be read.
pub(super) async fn whole_records(io: &Io, place: Place, from: Units) -> Result<Units, FileError> {
    let mut reader = Reader::new(io, place.file);
    let mut at = from;
    while at < place.limit && at.bytes() - from.bytes() < CHECKED_LEN {
        match whole_record(&mut reader, &place, at).await {
            Ok(Some(end)) => at = end,
            Err(error) if at == from => return Err(error),
            Ok(None) | Err(_) => break,
        }
    }
    Ok(at)
}

/// Where the record ends that begins here, if it is whole.
async fn whole_record(reader: &mut Reader<'_>, place: &Place, at: Units) -> Result<Option<Units>, FileError> {
    let Some(header) = place.header(reader, at).await? else { return Ok(None) };
    let bytes = reader.at(at.bytes(), header.len()).await?;
    Ok(Record::decode(bytes).ok().map(|_| header.end()))
}

/// Whether the headers of records that were sent are those that are there.
pub(super) async fn are_there(
    io: &Io,
    file: NodeId,
    offset: Units,
    records: &[u8],
) -> Result<bool, FileError> {
    let mut reader = Reader::new(io, file);
    let (mut at, mut rest) = (offset.bytes(), records);
    while let Ok(header) = RecordHeader::decode(rest) {
        let there = reader.at(at, RECORD_HEADER_LEN).await?;
        if rest.get(..RECORD_HEADER_LEN) != Some(there) {
            return Ok(false);
        }
        at += header.len() as u64;
        rest = rest.get(header.len()..).unwrap_or_default();
    }
    Ok(true)
}

/// The records that begin in a range, as a list says them, and where to go on: [`Units`] beyond all if nothing is left.
///
/// # Errors
///
/// `None` if a record is broken that is needed.
pub(super) async fn list(
    io: &Io,
    place: Place,
    (from, to): (Units, Units),
    most: usize,
) -> Result<(Vec<Entry>, Units), Option<FileError>> {
    let mut reader = Reader::new(io, place.file);
    let (mut entries, mut at) = (Vec::new(), from);
    while at < to {
        let header = place.header(&mut reader, at).await.map_err(Some)?.ok_or(None)?;
        let before = entries.len();
        // Of a trim the ranges are its payload; of others the header is enough, and a broken payload is for who reads it.
        let payload = if header.encoding == Encoding::None && header.stored > 0 && is_trim(&header) {
            let bytes = reader.at(at.bytes(), header.len()).await.map_err(Some)?;
            Record::decode(bytes).map_err(|_| None)?.payload
        } else {
            &[]
        };
        entries.extend(entries_of(&Record { header, payload }));
        if entries.len() > most && before > 0 {
            entries.truncate(before);
            break;
        }
        at = header.end();
        if entries.len() >= most {
            break;
        }
    }
    Ok((entries, if at < to { at } else { Units(u32::MAX) }))
}

fn is_trim(header: &RecordHeader) -> bool {
    header.kind == ob_format::volume::RecordKind::Trim
}
