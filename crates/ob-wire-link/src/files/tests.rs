//! Golden bytes, round trips, and bytes that nobody meant.

use std::num::NonZeroU16;

use proptest::prelude::*;

use super::*;

const EXAMPLE_REQUEST: RequestHeader = RequestHeader {
    id: 0x0102_0304_0506_0708,
    operation: Operation::Rename as u16,
    flags: flag::NO_REPLACE,
    length: 0x1112_1314,
    node: NodeId(0x2122_2324_2526_2728),
    offset: 0x3132_3334_3536_3738,
    node_more: NodeId(0x4142_4344_4546_4748),
};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn headers_have_these_bytes() {
    let bytes = EXAMPLE_REQUEST.encode();
    assert_eq!(
        hex(&bytes),
        "08070605040302010800010014131211282726252423222138373635343332314847464544434241"
    );
    let response = ResponseHeader { id: 5, status: Err(FileError::Busy), length: 0x0a0b_0c0d, value: 0x77 };
    assert_eq!(hex(&response.encode()), "05000000000000000e0000000d0c0b0a7700000000000000");
    assert_eq!(hex(&ResponseHeader::done(1).encode()), format!("01{}", "00".repeat(23)));
    assert_eq!(ResponseHeader::failed(5, FileError::Io).encode()[8], 11);
}

#[test]
fn information_has_these_bytes() {
    let card = CardInfo {
        version: VERSION,
        block_len: 4096,
        transfer_max: 1 << 20,
        segment_len: 1 << 20,
        epoch: 9,
        uuid: *b"0123456789abcdef",
        file_len_max: 0x000f_ffff_fff0_0000,
    };
    let expected = "010000000010000000001000000000000000100000000000090000000000000030313233343536373839\
                    6162636465660000f0ffffff0f00";
    assert_eq!(hex(&card.encode()), expected);
    assert_eq!(CardInfo::decode(&card.encode()), Some(card));
    let node = NodeInfo {
        id: NodeId(7),
        kind: NodeKind::File,
        size: 70_000,
        allocated: 1 << 17,
        parent: Some(ROOT),
    };
    let expected = "07000000000000000200000000000000701101000000000000000200000000000100000000000000";
    assert_eq!(hex(&node.encode()), expected);
    let root = NodeInfo { id: ROOT, kind: NodeKind::Directory, size: 2, allocated: 0, parent: None };
    assert_eq!(root.encode()[32..], [0; 8]);
    assert_eq!(NodeInfo::decode(&root.encode()), Some(root));
    let space = SpaceInfo { total: 1, free: 2, files: 3, directories: 4, log_total: 5, log_live: 6 };
    let expected: String = (1..=6).map(|number| format!("{number:02x}{}", "00".repeat(7))).collect();
    assert_eq!(hex(&space.encode()), expected);
}

#[test]
fn entries_have_these_bytes() {
    let mut bytes = Vec::new();
    let first = Entry { id: NodeId(2), kind: NodeKind::Directory, size: 3, name: b"a" };
    let second = Entry { id: NodeId(5), kind: NodeKind::File, size: 0x1234, name: b"b.data.8" };
    push_entry(&mut bytes, &first);
    assert_eq!(bytes.len(), entry_len(1));
    push_entry(&mut bytes, &second);
    let expected = [
        "0200000000000000030000000000000001010000000000006100000000000000",
        "050000000000000034120000000000000208000000000000622e646174612e38",
    ];
    assert_eq!(hex(&bytes), expected.concat());
    assert_eq!(Entries::new(&bytes).collect::<Result<Vec<_>, _>>(), Ok(vec![first, second]));
}

#[test]
fn what_is_too_short_is_no_message() {
    assert_eq!(RequestHeader::decode(&EXAMPLE_REQUEST.encode()[1..]), None);
    assert_eq!(ResponseHeader::decode(&ResponseHeader::done(1).encode()[1..]), None);
    assert_eq!(SpaceInfo::decode(&[0; SPACE_INFO_LEN + 1]), None);
    let mut reserved = ResponseHeader::done(1).encode();
    reserved[10] = 1;
    assert_eq!(ResponseHeader::decode(&reserved), None);
}

#[test]
fn information_that_cannot_be_is_refused() {
    let card = CardInfo {
        version: 1,
        block_len: 512,
        transfer_max: 1,
        segment_len: 4096,
        epoch: 0,
        uuid: [0; 16],
        file_len_max: 0,
    };
    assert!(CardInfo::decode(&card.encode()).is_some());
    for wrong in [
        CardInfo { block_len: 513, ..card },
        CardInfo { block_len: 0, ..card },
        CardInfo { transfer_max: 0, ..card },
        CardInfo { segment_len: 0, ..card },
        CardInfo { file_len_max: u64::MAX, ..card },
    ] {
        assert_eq!(CardInfo::decode(&wrong.encode()), None, "{wrong:?}");
    }
    let node = NodeInfo { id: ROOT, kind: NodeKind::Directory, size: 0, allocated: 0, parent: None };
    for (at, value) in [(0, 0), (8, 3), (9, 1), (12, 1)] {
        let mut bytes = node.encode();
        bytes[at] = value;
        assert_eq!(NodeInfo::decode(&bytes), None, "byte {at}");
    }
}

/// Each change of a good list, by offset and new byte, makes its second entry one that cannot be.
#[test]
fn entries_that_cannot_be_are_refused() {
    let mut good = Vec::new();
    for (id, name) in [(2, b"a"), (3, b"b")] {
        push_entry(&mut good, &Entry { id: NodeId(id), kind: NodeKind::File, size: 0, name });
    }
    let second = entry_len(1);
    let refused = |bytes: &[u8]| {
        let results: Vec<_> = Entries::new(bytes).collect();
        assert_eq!(results.len(), 2, "nothing comes after an error");
        assert_eq!(results[1].unwrap_err().offset, second);
    };
    let changes = [
        (0, 0),     // no such node
        (16, 0),    // no such kind
        (17, 0),    // no name
        (17, 9),    // a name that is cut off
        (18, 1),    // reserved
        (24, b'/'), // no such name
        (24, b'a'), // twice the same name
        (25, 1),    // filling
    ];
    for (at, value) in changes {
        let mut bytes = good.clone();
        bytes[second + at] = value;
        refused(&bytes);
    }
    refused(&good[..second + ENTRY_LEN - 1]);
    refused(&good[..good.len() - 1]);
    assert_eq!(Entries::new(&[]).count(), 0);
}

#[test]
#[should_panic(expected = "legal names")]
fn a_name_that_cannot_be_is_not_listed() {
    push_entry(&mut Vec::new(), &Entry { id: ROOT, kind: NodeKind::File, size: 0, name: b"a/b" });
}

#[test]
fn numbers_and_operations_are_one_to_one() {
    let known: Vec<_> = (0..=u16::MAX).filter_map(Operation::from_code).collect();
    assert_eq!(known, Operation::ALL);
    assert!(known.iter().all(|operation| Operation::from_code(operation.code()) == Some(*operation)));
}

#[test]
fn every_status_but_zero_is_an_error() {
    assert_eq!(FileError::from_code(0), None);
    for code in 1..=u16::MAX {
        let error = FileError::from_code(code).unwrap();
        assert_eq!(error.code(), code);
        let known = error.name().is_some();
        assert_eq!(known, FileError::ALL.contains(&error));
        assert_eq!(!known, error == FileError::Other(NonZeroU16::new(code).unwrap()));
    }
}

#[test]
fn paths_are_names_with_slashes_between() {
    let names = |path: &'static [u8]| path_names(path).map(Iterator::collect::<Vec<_>>);
    assert_eq!(names(b""), Ok(vec![]));
    assert_eq!(names(b"a"), Ok(vec![&b"a"[..]]));
    assert_eq!(names(b"a/..b/c d"), Ok(vec![&b"a"[..], b"..b", b"c d"]));
    for wrong in [&b"/"[..], b"/a", b"a/", b"a//b", b".", b"a/..", b"./a", b"a\0b"] {
        assert_eq!(names(wrong), Err(FileError::BadName), "{wrong:?}");
    }
    let component = "x".repeat(NAME_LEN_MAX);
    let long = [component.as_str(); 16].join("/");
    assert_eq!(long.len(), PATH_LEN_MAX - 1);
    assert_eq!(path_names(long.as_bytes()).map(Iterator::count), Ok(16));
    assert_eq!(path_names(format!("{long}/x").as_bytes()).err(), Some(FileError::BadName));
    assert_eq!(path_names(format!("{component}x").as_bytes()).err(), Some(FileError::BadName));
}

#[test]
fn a_rename_has_two_paths() {
    let header = |length| RequestHeader { length, ..EXAMPLE_REQUEST };
    assert_eq!(rename_paths(&header(3), b"a/bc"), Ok((&b"a/b"[..], &b"c"[..])));
    assert_eq!(rename_paths(&header(4), b"a/bc"), Ok((&b"a/bc"[..], &b""[..])));
    assert_eq!(rename_paths(&header(5), b"a/bc"), Err(FileError::Invalid));
    assert_eq!(rename_paths(&header(u32::MAX), b"a/bc"), Err(FileError::Invalid));
}

fn node_kind() -> impl Strategy<Value = NodeKind> {
    prop_oneof![Just(NodeKind::Directory), Just(NodeKind::File)]
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    let byte = any::<u8>().prop_filter("no part of a name", |byte| *byte != 0 && *byte != b'/');
    proptest::collection::vec(byte, 1..=NAME_LEN_MAX)
        .prop_filter("the way to another directory", |name| name != b"." && name != b"..")
}

proptest! {
    #[test]
    fn headers_come_back_as_they_went(
        numbers in any::<[u64; 4]>(),
        shorts in any::<[u16; 2]>(),
        length in any::<u32>(),
        rest in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let [id, node, offset, node_more] = numbers;
        let [operation, flags] = shorts;
        let (node, node_more) = (NodeId(node), NodeId(node_more));
        let request = RequestHeader { id, operation, flags, length, node, offset, node_more };
        let bytes = [&request.encode()[..], &rest].concat();
        prop_assert_eq!(RequestHeader::decode(&bytes), Some((request, &rest[..])));
        let status = FileError::from_code(flags).map_or(Ok(()), Err);
        let response = ResponseHeader { id, status, length, value: offset };
        let bytes = [&response.encode()[..], &rest].concat();
        prop_assert_eq!(ResponseHeader::decode(&bytes), Some((response, &rest[..])));
    }

    #[test]
    fn information_comes_back_as_it_went(
        numbers in any::<[u64; 6]>(),
        kind in node_kind(),
        uuid in any::<[u8; 16]>(),
        powers in [0..32u32, 0..32u32],
    ) {
        let [id, size, allocated, parent, log_total, log_live] = numbers;
        let node = NodeInfo {
            id: NodeId(id.max(1)),
            kind,
            size,
            allocated,
            parent: (parent % 2 == 1).then_some(NodeId(parent)),
        };
        prop_assert_eq!(NodeInfo::decode(&node.encode()), Some(node));
        let space =
            SpaceInfo { total: id, free: size, files: allocated, directories: parent, log_total, log_live };
        prop_assert_eq!(SpaceInfo::decode(&space.encode()), Some(space));
        let card = CardInfo {
            version: id as u32,
            block_len: 1 << powers[0],
            transfer_max: (size as u32).max(1),
            segment_len: 1 << powers[1],
            epoch: allocated,
            uuid,
            file_len_max: parent / 2,
        };
        prop_assert_eq!(CardInfo::decode(&card.encode()), Some(card));
    }

    #[test]
    fn lists_come_back_as_they_went(
        nodes in proptest::collection::btree_map(name(), (1..=u64::MAX, node_kind(), any::<u64>()), 0..20),
    ) {
        let of_node = |(name, (id, kind, size)): (&'_ Vec<u8>, &(u64, NodeKind, u64))| {
            (name.clone(), NodeId(*id), *kind, *size)
        };
        let listed: Vec<_> = nodes.iter().map(of_node).collect();
        let mut bytes = Vec::new();
        for (name, id, kind, size) in &listed {
            push_entry(&mut bytes, &Entry { id: *id, kind: *kind, size: *size, name });
        }
        prop_assert_eq!(bytes.len(), listed.iter().map(|(name, ..)| entry_len(name.len())).sum::<usize>());
        let read: Result<Vec<_>, _> =
            Entries::new(&bytes).map(|entry| entry.map(|it| (it.name.to_vec(), it.id, it.kind, it.size))).collect();
        prop_assert_eq!(read, Ok(listed));
    }

    #[test]
    fn paths_come_apart_as_they_were_joined(names in proptest::collection::vec(name(), 0..12)) {
        let path = names.join(&b'/');
        let found: Vec<_> = path_names(&path).unwrap().map(<[u8]>::to_vec).collect();
        prop_assert_eq!(found, names);
    }

    #[test]
    fn any_bytes_are_refused_or_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Some((header, rest)) = RequestHeader::decode(&bytes) {
            prop_assert_eq!([&header.encode()[..], rest].concat(), bytes.clone());
            let _ = rename_paths(&header, rest);
        }
        if let Some((header, rest)) = ResponseHeader::decode(&bytes) {
            prop_assert_eq!([&header.encode()[..], rest].concat(), bytes.clone());
        }
        if let Ok(names) = path_names(&bytes) {
            prop_assert_eq!(names.collect::<Vec<_>>().join(&b'/'), bytes.clone());
        }
        prop_assert!(Entries::new(&bytes).count() <= bytes.len() / ENTRY_LEN + 1);
    }

    /// Small bytes, of which lists, information and paths are made.
    #[test]
    fn likely_bytes_are_refused_or_read(bytes in proptest::collection::vec(0..4u8, 0..200)) {
        let mut again = Vec::new();
        let mut valid = 0;
        for entry in Entries::new(&bytes).map_while(Result::ok) {
            push_entry(&mut again, &entry);
            valid += entry_len(entry.name.len());
        }
        prop_assert_eq!(&again[..], &bytes[..valid]);
        let prefix = |len: usize| bytes.get(..len).unwrap_or_default();
        if let Some(info) = NodeInfo::decode(prefix(NODE_INFO_LEN)) {
            prop_assert_eq!(&info.encode()[..], prefix(NODE_INFO_LEN));
        }
        if let Some(info) = CardInfo::decode(prefix(CARD_INFO_LEN)) {
            prop_assert_eq!(&info.encode()[..], prefix(CARD_INFO_LEN));
        }
    }
}
