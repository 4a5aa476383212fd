//! Any bytes as a file request, its answer, a path or a list: refused, or the same after a round trip.

#![no_main]

use ob_wire_link::files::{
    Entries, NodeInfo, Operation, RequestHeader, ResponseHeader, CardInfo, SpaceInfo, entry_len,
    path_names, push_entry, rename_paths,
};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    check_request(bytes);
    check_response(bytes);
    check_path(bytes);
    check_entries(bytes);
});

fn check_request(bytes: &[u8]) {
    let Some((header, rest)) = RequestHeader::decode(bytes) else { return };
    assert_eq!([&header.encode()[..], rest].concat(), bytes);
    match Operation::from_code(header.operation) {
        Some(Operation::Rename) => {
            let Ok((from, to)) = rename_paths(&header, rest) else { return };
            assert_eq!([from, to].concat(), rest);
            check_path(from);
            check_path(to);
        }
        Some(operation) => {
            assert_eq!(operation.code(), header.operation);
            check_path(rest);
        }
        None => {}
    }
}

fn check_response(bytes: &[u8]) {
    let Some((header, rest)) = ResponseHeader::decode(bytes) else { return };
    assert_eq!([&header.encode()[..], rest].concat(), bytes);
    if let Some(info) = CardInfo::decode(rest) {
        assert_eq!(info.encode(), rest);
    }
    if let Some(info) = NodeInfo::decode(rest) {
        assert_eq!(info.encode(), rest);
    }
    if let Some(info) = SpaceInfo::decode(rest) {
        assert_eq!(info.encode(), rest);
    }
}

fn check_path(path: &[u8]) {
    let Ok(names) = path_names(path) else { return };
    let names: Vec<_> = names.collect();
    assert_eq!(names.join(&b'/'), path);
    assert!(names.iter().all(|name| !name.is_empty() && !name.contains(&b'/')));
}

fn check_entries(bytes: &[u8]) {
    let (mut again, mut length) = (Vec::new(), 0);
    for entry in Entries::new(bytes).map_while(Result::ok) {
        push_entry(&mut again, &entry);
        length += entry_len(entry.name.len());
    }
    assert_eq!(again, bytes[..length]);
}
