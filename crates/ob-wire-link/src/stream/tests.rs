//! Frames there and back, golden bytes, and what is no frame.

use proptest::prelude::*;

use super::*;

const CONNECTION: ConnectionId = ConnectionId(0x0102);

fn from_card() -> Vec<FromCard<'static>> {
    let request = Fragment { connection: CONNECTION, stamp: 9, length: 5, offset: 0, bytes: b"*1\r\n$" };
    vec![
        FromCard::Begin { stamp: 7 },
        FromCard::Opened { connection: CONNECTION, address: SocketAddr::from(([127, 0, 0, 1], 6379)) },
        FromCard::Opened { connection: CONNECTION, address: SocketAddr::from(([1; 8], 1)) },
        FromCard::Request(request),
        FromCard::Request(Fragment { stamp: 0, length: 6, ..request }),
        FromCard::Request(Fragment { offset: 1 << 20, length: (1 << 20) + 5, ..request }),
        FromCard::Closed { connection: CONNECTION },
        FromCard::Credit { connection: CONNECTION, length: 77 },
        FromCard::Named { count: 3 },
    ]
}

fn from_host(entries: &[u8]) -> Vec<FromHost<'_>> {
    let reply = Fragment { connection: CONNECTION, stamp: 9, length: 5, offset: 0, bytes: b"+OK\r\n" };
    vec![
        FromHost::Meet { stamp: 0, recovered: Recovered { store: [3; 16], end: 4096 }, terms: 5 },
        FromHost::Reply(reply),
        FromHost::Reply(Fragment { length: 9, offset: 4, ..reply }),
        FromHost::Standing { connection: CONNECTION, stamp: 9, word: 3 },
        FromHost::Close { connection: CONNECTION, stamp: 9 },
        FromHost::Attest { stamp: 12, entries: Entries::new(entries) },
        FromHost::File { name: 8, node: NodeId(44) },
        FromHost::FileGone { name: 8 },
        FromHost::Settled { address: 1 << 40 },
        FromHost::Clock { stamp: 9, unix_ms: 1_700_000_000_000 },
    ]
}

#[test]
fn frames_come_back_as_they_went() {
    for frame in from_card() {
        let (header, payload) = frame.encode();
        assert_eq!(FromCard::decode(&header, payload.bytes()), Ok(frame));
        let meant = FromHost::decode(&header, payload.bytes());
        assert!(meant.is_err(), "{frame:?} was taken for {meant:?}");
    }
    let mut entries = Vec::new();
    assert!(push_entry(&mut entries, b"key", &[1; 24]));
    assert!(push_entry(&mut entries, b"k", b""));
    for frame in from_host(&entries) {
        let (header, payload) = frame.encode();
        assert_eq!(FromHost::decode(&header, payload.bytes()), Ok(frame));
        let meant = FromCard::decode(&header, payload.bytes());
        assert!(meant.is_err(), "{frame:?} was taken for {meant:?}");
    }
    let all: Vec<_> = Entries::new(&entries).collect();
    assert_eq!(all, [(&b"key"[..], &[1; 24][..]), (b"k", b"")]);
}

#[test]
fn golden_bytes() {
    let request =
        Fragment { connection: CONNECTION, stamp: 9, length: 0x1_0005, offset: 0x1_0000, bytes: b"12345" };
    let (header, payload) = FromCard::Request(request).encode();
    #[rustfmt::skip]
    assert_eq!(header, [
        3, 0, 0, 0,  0, 0, 1, 0,  2, 1, 0, 0, 0, 0, 0, 0,  9, 0, 0, 0, 0, 0, 0, 0,  5, 0, 1, 0,  0, 0, 0, 0,
    ]);
    assert_eq!(payload.bytes(), b"12345");
    let opened =
        FromCard::Opened { connection: CONNECTION, address: SocketAddr::from(([127, 0, 0, 1], 0x0102)) };
    let expected = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1, 2, 1];
    assert_eq!(opened.encode().1.bytes(), expected);
}

#[test]
fn what_cannot_be_is_refused() {
    let request = Fragment { connection: CONNECTION, stamp: 9, length: 5, offset: 0, bytes: b"12345" };
    let refused = |fragment: Fragment<'_>| {
        let (header, payload) = FromCard::Request(fragment).encode();
        FromCard::decode(&header, payload.bytes()).is_err()
    };
    assert!(!refused(request));
    assert!(refused(Fragment { connection: ConnectionId(0), ..request }), "no connection");
    assert!(refused(Fragment { stamp: 0, ..request }), "a last fragment without a stamp");
    assert!(refused(Fragment { length: 6, ..request }), "a stamp before the last fragment");
    assert!(refused(Fragment { length: 4, ..request }), "bytes behind the end");
    assert!(refused(Fragment { offset: u32::MAX, ..request }), "an offset behind the end");
    assert!(refused(Fragment { stamp: STAMP_END, ..request }), "a stamp that is none");
    assert!(refused(Fragment { length: 0, bytes: b"", ..request }), "no bytes");
    let long = vec![0; FRAGMENT_LEN + 1];
    assert!(refused(Fragment { length: long.len() as u32, bytes: &long, ..request }), "too many bytes");
    let (mut header, _) = FromCard::Begin { stamp: 7 }.encode();
    header[28] = 3;
    assert_eq!(FromCard::decode(&header, &[]), Err(StreamError::Version(3)));
    header[2] = 1;
    assert!(matches!(FromCard::decode(&header, &[]), Err(StreamError::Field { field: "reserved", .. })));
    assert!(matches!(FromCard::decode(&header[1..], &[]), Err(StreamError::Length { .. })));
    let meeting = |stamp: u64| {
        let meet = FromHost::Meet { stamp, recovered: Recovered { store: [1; 16], end: 0 }, terms: 0 };
        let (header, payload) = meet.encode();
        FromHost::decode(&header, payload.bytes()).map(|_| ())
    };
    assert_eq!(meeting(SEEN_END - 1), Ok(()));
    for stamp in [SEEN_END, STAMP_END - 2, STAMP_END - 1] {
        let refused = StreamError::Field { kind: kind::MEET, field: "stamp", value: stamp };
        assert_eq!(meeting(stamp), Err(refused), "so many requests there never were");
    }
}

#[test]
fn entries_that_are_too_long_are_not_put() {
    let mut entries = Vec::new();
    assert!(!push_entry(&mut entries, b"", b"item"));
    assert!(!push_entry(&mut entries, &[0; 256], b""));
    assert!(!push_entry(&mut entries, b"key", &[0; 256]));
    assert_eq!(entries.len(), 0);
    while push_entry(&mut entries, &[1; 200], &[2; 24]) {}
    assert!(entries.len() <= FRAGMENT_LEN && entries.len() > FRAGMENT_LEN - 226);
}

proptest! {
    #[test]
    fn any_bytes_are_taken(inline in proptest::collection::vec(any::<u8>(), 0..40), payload in proptest::collection::vec(any::<u8>(), 0..64), kind in 0_u16..32) {
        let mut inline = inline;
        if let Some(bytes) = inline.get_mut(..2) {
            bytes.copy_from_slice(&kind.to_le_bytes());
        }
        let _ = FromCard::decode(&inline, &payload);
        if let Ok(FromHost::Attest { entries, .. }) = FromHost::decode(&inline, &payload) {
            let bytes: usize = entries.map(|(key, item)| ENTRY_LEN + key.len() + item.len()).sum();
            prop_assert!(bytes <= payload.len());
        }
    }
}
