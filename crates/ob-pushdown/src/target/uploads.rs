//! What comes in pieces.

use ob_core::Instant;
use ob_wire_nvme::pushdown::Piece;

use super::map_check::{MapCheck, Room};

/// An upload that is under way.
struct Upload {
    content: Content,
    token: u32,
    whole: usize,
    /// Bytes that have come.
    taken: usize,
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
    Map(Room),
}

/// What has come of it.
pub(super) enum Content {
    Object(Vec<u8>),
    Map(Box<MapCheck>),
}

/// What came of a piece.
pub(super) enum Progress {
    /// There is more to come.
    More,
    /// That is all.
    Whole(Content),
    /// It does not go there, or cannot be.
    Misplaced,
    /// Too many uploads are under way.
    TooMany,
}

impl Content {
    fn new(kind: Kind) -> Self {
        match kind {
            Kind::Object => Self::Object(Vec::new()),
            Kind::Map(room) => Self::Map(Box::new(MapCheck::new(room))),
        }
    }

    /// Takes what comes next; whether it can be. What was announced is believed as it comes, and not before.
    fn take(&mut self, kind: Kind, bytes: &[u8]) -> bool {
        match (self, kind) {
            (Self::Object(content), Kind::Object) => {
                content.extend_from_slice(bytes);
                true
            }
            (Self::Map(check), Kind::Map(room)) => check.take(room, bytes).is_ok(),
            _ => false,
        }
    }
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
            self.0.push(Upload { content: Content::new(kind), token, whole, taken: 0, until });
        }
        let Some(at) = self.0.iter().position(|upload| upload.token == token) else {
            return Progress::Misplaced;
        };
        let Some(upload) = self.0.get_mut(at) else { return Progress::Misplaced };
        let end = upload.taken + bytes.len();
        let is_next = upload.taken == offset && upload.whole == whole && end <= whole && !bytes.is_empty();
        if !is_next || !upload.content.take(kind, bytes) {
            self.0.swap_remove(at);
            return Progress::Misplaced;
        }
        (upload.taken, upload.until) = (end, until);
        if end < whole {
            return Progress::More;
        }
        Progress::Whole(self.0.swap_remove(at).content)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ob_nvme::target::control::NamespaceKey;

    use super::*;

    /// What is left of a [`Progress`] to compare.
    #[derive(Debug, PartialEq, Eq)]
    enum Told {
        More,
        Whole(Vec<u8>),
        Misplaced,
        TooMany,
    }

    impl Uploads {
        fn told(&mut self, kind: Kind, piece: Piece, bytes: &[u8], bounds: Bounds) -> Told {
            match self.take(kind, piece, bytes, bounds) {
                Progress::More => Told::More,
                Progress::Whole(Content::Object(bytes)) => Told::Whole(bytes),
                Progress::Whole(Content::Map(_)) => Told::Whole(Vec::new()),
                Progress::Misplaced => Told::Misplaced,
                Progress::TooMany => Told::TooMany,
            }
        }
    }

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
            uploads.told(Kind::Object, piece(token, offset, 4), b"a", bounds(until))
        };
        assert_eq!(take(1, 0, 10), Told::More);
        assert_eq!(take(2, 0, 12), Told::More);
        assert_eq!(take(1, 1, 19), Told::More, "it has longer now");
        assert_eq!(take(3, 0, 21), Told::TooMany, "both are under way");
        assert_eq!(take(3, 0, 22), Told::More, "nothing came to the second one for ten seconds");
        assert_eq!(take(2, 1, 23), Told::Misplaced, "which is over");
        assert_eq!(take(1, 2, 24), Told::More);
        uploads.expire(at(23));
        assert!(!uploads.is_empty());
        uploads.expire(at(24));
        assert!(uploads.is_empty());
    }

    #[test]
    fn pieces_come_in_order_and_end_where_they_said() {
        let mut uploads = Uploads::default();
        let mut take = |piece, bytes: &[u8]| uploads.told(Kind::Object, piece, bytes, bounds(10));
        assert_eq!(take(piece(1, 0, 5), b"ab"), Told::More);
        assert_eq!(take(piece(2, 0, 3), b"xyz"), Told::Whole(b"xyz".to_vec()), "others go on beside it");
        assert_eq!(take(piece(1, 2, 5), b"cde"), Told::Whole(b"abcde".to_vec()));
        assert_eq!(take(piece(1, 2, 5), b"cde"), Told::Misplaced, "it is over");
        for wrong in [piece(1, 1, 5), piece(1, 3, 5), piece(1, 2, 6)] {
            assert_eq!(take(piece(1, 0, 5), b"ab"), Told::More);
            assert_eq!(take(wrong, b"c"), Told::Misplaced);
            assert_eq!(take(piece(1, 2, 5), b"cde"), Told::Misplaced, "it has ended with that");
        }
        assert_eq!(take(piece(1, 0, 5), b"abcdef"), Told::Misplaced, "more than it said");
        assert_eq!(take(piece(1, 0, 9), b"a"), Told::Misplaced, "longer than may be");
        assert_eq!(take(piece(1, 0, 0), b""), Told::Misplaced);
        assert_eq!(take(piece(1, 0, 2), b""), Told::Misplaced, "a piece brings something");
    }

    #[test]
    fn uploads_are_few_and_of_one_kind() {
        let room = Room { nsid: 1, namespace: NamespaceKey(1), block_len: 512, blocks: 1 };
        let mut uploads = Uploads::default();
        for token in 0..2 {
            assert_eq!(uploads.told(Kind::Object, piece(token, 0, 2), b"a", bounds(10)), Told::More);
        }
        assert_eq!(uploads.told(Kind::Object, piece(2, 0, 2), b"a", bounds(10)), Told::TooMany);
        assert_eq!(uploads.told(Kind::Object, piece(1, 0, 2), b"a", bounds(10)), Told::More, "begun anew");
        assert_eq!(uploads.told(Kind::Map(room), piece(1, 1, 2), b"a", bounds(10)), Told::Misplaced);
    }
}
