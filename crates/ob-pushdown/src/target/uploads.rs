//! What comes in pieces.

use ob_wire_nvme::pushdown::Piece;

/// An upload that is under way.
struct Upload {
    kind: Kind,
    token: u32,
    whole: usize,
    bytes: Vec<u8>,
}

/// What is uploaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Object,
    Map,
}

/// What came of a piece.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// There is more to come.
    More,
    /// That is all.
    Whole(Vec<u8>),
    /// It does not go there.
    Misplaced,
    /// Too many uploads are under way.
    TooMany,
}

/// Uploads of a client.
#[derive(Default)]
pub(super) struct Uploads(Vec<Upload>);

impl Uploads {
    /// Takes a piece of something that may have so many bytes.
    pub(super) fn take(
        &mut self,
        kind: Kind,
        piece: Piece,
        bytes: &[u8],
        max: usize,
        uploads: usize,
    ) -> Progress {
        let Piece { token, offset, whole } = piece;
        let (offset, whole) = (offset as usize, whole as usize);
        if offset == 0 {
            self.0.retain(|upload| upload.token != token);
            if whole == 0 || whole > max {
                return Progress::Misplaced;
            }
            if self.0.len() >= uploads {
                return Progress::TooMany;
            }
            self.0.push(Upload { kind, token, whole, bytes: Vec::new() });
        }
        let Some(at) = self.0.iter().position(|upload| upload.token == token) else {
            return Progress::Misplaced;
        };
        let Some(upload) = self.0.get_mut(at) else { return Progress::Misplaced };
        let end = upload.bytes.len() + bytes.len();
        if upload.kind != kind
            || upload.bytes.len() != offset
            || upload.whole != whole
            || end > whole
            || bytes.is_empty()
        {
            self.0.swap_remove(at);
            return Progress::Misplaced;
        }
        // What was announced is believed as it comes, and not before.
        upload.bytes.extend_from_slice(bytes);
        if end < whole {
            return Progress::More;
        }
        Progress::Whole(self.0.swap_remove(at).bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(token: u32, offset: u32, whole: u32) -> Piece {
        Piece { token, offset, whole }
    }

    #[test]
    fn pieces_come_in_order_and_end_where_they_said() {
        let mut uploads = Uploads::default();
        let mut take = |piece, bytes: &[u8]| uploads.take(Kind::Map, piece, bytes, 8, 2);
        assert_eq!(take(piece(1, 0, 5), b"ab"), Progress::More);
        assert_eq!(take(piece(2, 0, 3), b"xyz"), Progress::Whole(b"xyz".to_vec()), "others go on beside it");
        assert_eq!(take(piece(1, 2, 5), b"cde"), Progress::Whole(b"abcde".to_vec()));
        assert_eq!(take(piece(1, 2, 5), b"cde"), Progress::Misplaced, "it is over");
        for wrong in [piece(1, 1, 5), piece(1, 3, 5), piece(1, 2, 6)] {
            assert_eq!(take(piece(1, 0, 5), b"ab"), Progress::More);
            assert_eq!(take(wrong, b"c"), Progress::Misplaced);
            assert_eq!(take(piece(1, 2, 5), b"cde"), Progress::Misplaced, "it has ended with that");
        }
        assert_eq!(take(piece(1, 0, 5), b"abcdef"), Progress::Misplaced, "more than it said");
        assert_eq!(take(piece(1, 0, 9), b"a"), Progress::Misplaced, "longer than may be");
        assert_eq!(take(piece(1, 0, 0), b""), Progress::Misplaced);
        assert_eq!(take(piece(1, 0, 2), b""), Progress::Misplaced, "a piece brings something");
    }

    #[test]
    fn uploads_are_few_and_of_one_kind() {
        let mut uploads = Uploads::default();
        for token in 0..2 {
            assert_eq!(uploads.take(Kind::Object, piece(token, 0, 2), b"a", 8, 2), Progress::More);
        }
        assert_eq!(uploads.take(Kind::Object, piece(2, 0, 2), b"a", 8, 2), Progress::TooMany);
        assert_eq!(uploads.take(Kind::Object, piece(1, 0, 2), b"a", 8, 2), Progress::More, "begun anew");
        assert_eq!(uploads.take(Kind::Map, piece(1, 1, 2), b"a", 8, 2), Progress::Misplaced);
    }
}
