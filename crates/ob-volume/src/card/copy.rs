//! What goes from one chunk server to another: whole records, each of which was looked at (R1).

use ob_core::Units;
use ob_format::volume::{RECORD_HEADER_LEN, Record, RecordHeader};
use ob_split::card::{Encoding, Judgement, Part, Parts};
use ob_split::wire::{ChannelId, Header};

use super::dialect::answer_of;
use crate::plans::Copy;
use crate::plant::{Bug, is_planted};
use crate::wire::{Answer, Refusal, Reply};

/// What was fetched of a copy goes on as far as its records are whole.
pub(super) fn accept_copy(
    copy: &Copy,
    reply: Option<(ChannelId, &Header)>,
    payload: &[u8],
    parts: &mut Parts,
) -> Judgement {
    let Some((_, header)) = reply else { return Judgement::Bad };
    match answer_of(header) {
        Some((Answer::Good(Reply::Read), _)) => {}
        Some((Answer::Refused { refusal, .. }, _)) => return judge_refusal(refusal),
        Some((Answer::Good(_), _)) | None => return Judgement::Next,
    }
    let whole = whole_records(copy, payload);
    let part = Part {
        from: 0,
        stored: whole,
        encoding: Encoding::Plain,
        decoded: whole,
        skip: 0,
        take: whole,
        into: 0,
    };
    if whole > 0 && parts.push(part) { Judgement::Good } else { Judgement::Bad }
}

/// Who cannot read what it should have has nothing that is good there; whoever says anything else may have it.
pub(super) const fn judge_refusal(refusal: Refusal) -> Judgement {
    match refusal {
        Refusal::Medium | Refusal::Damaged | Refusal::NoChunk => Judgement::Bad,
        _ => Judgement::Next,
    }
}

/// Bytes of the records in front that are whole, lie where they should, and whose sums are right; of a mend, of the first one alone.
fn whole_records(copy: &Copy, bytes: &[u8]) -> u32 {
    let mut whole = 0;
    while let Some(rest) = bytes.get(whole..).filter(|rest| rest.len() >= RECORD_HEADER_LEN) {
        let Ok(header) = RecordHeader::decode(rest) else { break };
        let at = Units(copy.at.0 + whole as u32 / Units::LEN);
        let end = at.0.saturating_add(header.units().0);
        let is_it = header.chunk == copy.chunk && header.offset == at && end <= copy.end.0;
        let Some(record) = rest.get(..header.len()).filter(|_| is_it) else { break };
        if Record::decode(record).is_err() && !is_planted(Bug::CopyUnverified) {
            break;
        }
        whole += header.len();
        if copy.is_mend {
            break;
        }
    }
    whole as u32
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test stops at the first thing that is not as it should be.
mod tests {
    use ob_core::{ChunkId, ChunkName, Epoch, Lba, SegmentId, Sequence, VolumeId};
    use ob_format::volume::{Encoding, RecordKind};

    use super::*;

    const CHUNK: ChunkName = ChunkName { volume: VolumeId(1), segment: SegmentId(2), chunk: ChunkId(3) };

    fn record(chunk: ChunkName, offset: u32, payload: &[u8]) -> Vec<u8> {
        let header = RecordHeader {
            chunk,
            offset: Units(offset),
            sequence: Sequence::new(Epoch::FIRST, 1).unwrap(),
            version: Sequence::new(Epoch::FIRST, 1).unwrap(),
            lba: Lba(0),
            blocks: 1,
            stored: payload.len() as u32,
            payload_crc: crc32c::crc32c(payload),
            kind: RecordKind::Write,
            encoding: Encoding::None,
            behind: None,
        };
        let mut bytes = Vec::new();
        Record { header, payload }.encode_into(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn whole_records_go_on_and_nothing_behind_what_is_wrong() {
        let (from, to, epoch) = (ChannelId(1), ChannelId(2), Epoch::FIRST);
        let copy = Copy { from, to, chunk: CHUNK, epoch, at: Units(64), end: Units(64 + 27), is_mend: false };
        let (one, two) = (record(CHUNK, 64, &[7; 512]), record(CHUNK, 73, &[8; 512]));
        let all = [one.clone(), two.clone(), record(CHUNK, 82, &[9; 512])].concat();
        assert_eq!(whole_records(&copy, &all), 27 * 64);
        assert_eq!(whole_records(&copy, &all[..all.len() - 1]), 18 * 64, "the last one is not whole");
        let shorter = Copy { end: Units(64 + 26), ..copy };
        assert_eq!(whole_records(&shorter, &all), 18 * 64, "one is behind the end");
        let mend = Copy { is_mend: true, ..copy };
        assert_eq!(whole_records(&mend, &all), 9 * 64, "a mend is of one record");
        let rotten = |at: usize| {
            let mut bytes = all.clone();
            bytes[at] ^= 1;
            whole_records(&copy, &bytes)
        };
        assert_eq!((rotten(100), rotten(9 * 64), rotten(9 * 64 + 70)), (0, 9 * 64, 9 * 64), "R1");
        let other = ChunkName { chunk: ChunkId(4), ..CHUNK };
        assert_eq!(whole_records(&copy, &record(other, 64, &[7; 512])), 0, "of another chunk");
        assert_eq!(whole_records(&copy, &record(CHUNK, 65, &[7; 512])), 0, "of another place");
        assert_eq!(whole_records(&copy, &[]), 0);
    }
}
