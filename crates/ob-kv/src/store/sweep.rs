//! Going through the records of a part, piece by piece.

use ob_format::kv::{GROUP_HEADER_LEN, GroupHeader, Record};

/// Where to go on, and how many bytes to read there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) address: u64,
    pub(crate) len: usize,
}

/// A group that was written whole is not what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Damaged;

/// Visits the records of the groups that are whole in the bytes, which were read at an address where a group begins. `end` is
/// where the part's groups end, and `len` how many bytes to read in general.
pub(crate) fn visit(
    bytes: &[u8],
    address: u64,
    end: u64,
    len: usize,
    mut visit: impl FnMut(u64, &Record<'_>),
) -> Result<Piece, Damaged> {
    let mut piece = Piece { address, len };
    while piece.address < end {
        let rest = bytes.get((piece.address - address) as usize..).unwrap_or_default();
        match GroupHeader::decode(rest) {
            Ok(header) if header.length <= rest.len() => {
                for (at, place) in header.records(rest).map_err(|_| Damaged)? {
                    visit(piece.address + at as u64, &place.of(rest.get(at..).unwrap_or_default()));
                }
                piece.address += header.length as u64;
            }
            // Only its begin is there: next time it is the first, and as much is read as it is long.
            Ok(header) if header.length > len || piece.address > address => {
                piece.len = len.max(header.length);
                break;
            }
            Err(_) if piece.address > address && rest.len() < GROUP_HEADER_LEN => break,
            Ok(_) | Err(_) => return Err(Damaged),
        }
    }
    Ok(piece)
}

#[cfg(test)]
mod tests {
    use ob_format::kv::{GroupWriter, Origin};

    use super::*;

    fn group(keys: &[&[u8]], value_len: usize, address: u64) -> Vec<u8> {
        let mut group = GroupWriter::default();
        for key in keys {
            group.push(&Record { key, value: Some(&vec![0; value_len]), stamp: 1, expires: None }).unwrap();
        }
        group.finish(Origin { store: [0; 16], life: 1, part_len: 1 << 20 }, address)
    }

    #[test]
    fn every_record_is_visited_once_whatever_the_pieces() {
        let mut part = group(&[b"a", b"b"], 10, 0);
        part.extend(group(&[b"c"], 20_000, part.len() as u64));
        part.extend(group(&[b"d"], 10, part.len() as u64));
        for len in [4096, 8192, 12_288, 28_672, 1 << 20] {
            let (mut piece, mut seen) = (Piece { address: 0, len }, Vec::new());
            while piece.address < part.len() as u64 {
                let start = piece.address as usize;
                let bytes = &part[start..(start + piece.len).min(part.len())];
                piece = visit(bytes, piece.address, part.len() as u64, len, |_, record| {
                    seen.push(record.key.to_vec());
                })
                .unwrap();
            }
            assert_eq!(seen, [b"a", b"b", b"c", b"d"], "{len}");
        }
        part[4096] ^= 1;
        assert_eq!(visit(&part, 0, part.len() as u64, 4096, |_, _| ()), Err(Damaged));
        assert_eq!(visit(&[], 0, 4096, 4096, |_, _| ()), Err(Damaged));
    }
}
