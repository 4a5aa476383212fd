//! What comes in pieces.

use ob_core::Instant;
use ob_wire_nvme::pushdown::Piece;

/// An upload that is under way.
struct Upload {
    kind: Kind,
    token: u32,
    whole: usize,
    bytes: Vec<u8>,
    /// When it is given up, if nothing comes before.
    until: Instant,
}

/// Of how many bytes, and of how many uploads, and until when the next piece has to come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) len_max: usize,
    pub(super) uploads_max: usize,
    pub(super) until: Instant,
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
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Gives up those to which nothing came for too long: who began them is not waited for, and others need their room.
    pub(super) fn expire(&mut self, now: Instant) {
        self.0.retain(|upload| upload.until > now);
    }

    /// Takes a piece.
    pub(super) fn take(&mut self, kind: Kind, piece: Piece, bytes: &[u8], bounds: Bounds) -> Progress {
        let Bounds { len_max, uploads_max, until } = bounds;
        let Piece { token, offset, whole } = piece;
        let (offset, whole) = (offset as usize, whole as usize);
        if offset == 0 {
            self.0.retain(|upload| upload.token != token);
            if whole == 0 || whole > len_max {
                return Progress::Misplaced;
            }
            if self.0.len() >= uploads_max {
                return Progress::TooMany;
            }
            self.0.push(Upload { kind, token, whole, bytes: Vec::new(), until });
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
        upload.until = until;
        if end < whole {
            return Progress::More;
        }
        Progress::Whole(self.0.swap_remove(at).bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn piece(token: u32, offset: u32, whole: u32) -> Piece {
        Piece { token, offset, whole }
    }

    fn at(second: u64) -> Instant {
        Instant::default() + Duration::from_secs(second)
    }

    fn bounds(until: u64) -> Bounds {
        Bounds { len_max: 8, uploads_max: 2, until: at(until) }
    }

    #[test]
    fn an_upload_to_which_nothing_comes_is_given_up() {
        let mut uploads = Uploads::default();
        let mut take = |token, offset, until| {
            uploads.expire(at(until - 10));
            uploads.take(Kind::Object, piece(token, offset, 4), b"a", bounds(until))
        };
        assert_eq!(take(1, 0, 10), Progress::More);
        assert_eq!(take(2, 0, 12), Progress::More);
        assert_eq!(take(1, 1, 19), Progress::More, "it has longer now");
        assert_eq!(take(3, 0, 21), Progress::TooMany, "both are under way");
        assert_eq!(take(3, 0, 22), Progress::More, "nothing came to the second one for ten seconds");
        assert_eq!(take(2, 1, 23), Progress::Misplaced, "which is over");
        assert_eq!(take(1, 2, 24), Progress::More);
        uploads.expire(at(23));
        assert!(!uploads.is_empty());
        uploads.expire(at(24));
        assert!(uploads.is_empty());
    }

    #[test]
    fn pieces_come_in_order_and_end_where_they_said() {
        let mut uploads = Uploads::default();
        let mut take = |piece, bytes: &[u8]| uploads.take(Kind::Map, piece, bytes, bounds(10));
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
            assert_eq!(uploads.take(Kind::Object, piece(token, 0, 2), b"a", bounds(10)), Progress::More);
        }
        assert_eq!(uploads.take(Kind::Object, piece(2, 0, 2), b"a", bounds(10)), Progress::TooMany);
        assert_eq!(
            uploads.take(Kind::Object, piece(1, 0, 2), b"a", bounds(10)),
            Progress::More,
            "begun anew"
        );
        assert_eq!(uploads.take(Kind::Map, piece(1, 1, 2), b"a", bounds(10)), Progress::Misplaced);
    }
}
