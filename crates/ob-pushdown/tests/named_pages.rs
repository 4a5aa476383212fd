//! Files of the card's, read in the ordinary way.

use ob_nvme::initiator::block_on;
use ob_pushdown::btree::{NamedPages, Pages};
use ob_pushdown::client::{PushError, Session};
use ob_wire_nvme::NamespaceId;

use crate::lab::remote::{Nobody, Remote};

const LEN: usize = 200_001;

fn content() -> Vec<u8> {
    (0..LEN).map(|at| (at * 31 + at / 251) as u8).collect()
}

#[test]
fn a_file_is_brought_piece_by_piece_up_to_its_end() {
    let content = content();
    let card = Remote::start(vec![("file".to_owned(), content.clone()), ("empty".to_owned(), Vec::new())]);
    block_on(async {
        let session = Session::begin(card, NamespaceId(1)).await.unwrap();
        let pages = NamedPages::new(&session, &session.named("file")).unwrap();
        for len in [
            0,
            1,
            64,
            511,
            512,
            513,
            1984,
            4087,
            4088,
            4089,
            10_000,
            32 * 4088,
            32 * 4088 + 1,
            150_000,
            LEN + 5000,
        ] {
            for offset in [0, 1, 512, 5000, LEN - 4088, LEN - 512, LEN - 1, LEN, LEN + 1, LEN + 10_000] {
                let expected = content.get(offset..).unwrap_or_default();
                let expected = &expected[..len.min(expected.len())];
                let read = pages.read(offset as u64, len).await.unwrap();
                assert!(read == expected, "{len} bytes at {offset}: {} came", read.len());
            }
        }
        assert!(pages.read(u64::MAX - 5, 10).await.is_err());
        let empty = NamedPages::new(&session, &session.named("empty")).unwrap();
        assert_eq!(empty.read(0, 5000).await, Ok(Vec::new()));
        assert_eq!(empty.last_obstacle(), None);
        // Two plans, for reads of nodes and of more: a command a piece, else.
        let before = session.counts();
        for _ in 0..50 {
            pages.read(512, 512).await.unwrap();
            pages.read(0, 1984).await.unwrap();
        }
        let counts = session.counts();
        assert_eq!(counts.commands - before.commands, 100);
        assert_eq!(counts.pushed - before.pushed, 100);
    });
}

#[test]
fn why_nothing_is_brought_is_told() {
    block_on(async {
        let session = Session::begin(Nobody, NamespaceId(1)).await.unwrap();
        let pages = NamedPages::new(&session, &session.named("file")).unwrap();
        let told = pages.read(0, 512).await.unwrap_err();
        assert!(told.contains("the target has no storage functions"), "{told}");
        let session = Session::begin(Remote::start(Vec::new()), NamespaceId(1)).await.unwrap();
        let pages = NamedPages::new(&session, &session.named("nothing")).unwrap();
        assert!(pages.read(0, 512).await.is_err());
        assert_eq!(pages.last_obstacle(), Some(PushError::NoSuchFile("nothing".to_owned())));
    });
}
