use std::time::{Duration, Instant};

use ob_wire_nvme::pushdown::EXTENTS_MAX;
use proptest::collection::vec;
use proptest::prelude::*;
use zerocopy::IntoBytes;

use super::*;

const ROOM: Room = Room { nsid: 1, namespace: NamespaceKey(1), block_len: 512, blocks: 1 << 40 };
/// Bytes of the longest piece that a target takes.
const TRANSFER: usize = 128 << 10;

fn bytes_of(len: u64, extents: &[(u64, u64, u64)]) -> Vec<u8> {
    let count = extents.len() as u32;
    let header =
        MapHeader { version: 1.into(), len: len.into(), extents: count.into(), ..MapHeader::default() };
    let extents = extents.iter().map(|(at, offset, len)| Extent {
        at: (*at).into(),
        offset: (*offset).into(),
        len: (*len).into(),
    });
    [header.as_bytes(), extents.collect::<Vec<_>>().as_bytes()].concat()
}

/// What comes of a map in pieces of these lengths, again and again.
fn checked(room: Room, bytes: &[u8], lens: &[usize]) -> Result<(u64, usize), BadMap> {
    let mut check = MapCheck::new(room);
    let mut left = bytes;
    for len in lens.iter().cycle() {
        if left.is_empty() {
            break;
        }
        let (piece, rest) = left.split_at((*len).min(left.len()));
        check.take(room, piece)?;
        left = rest;
    }
    let (file, map) = check.finish()?;
    Ok((file, map.extents()))
}

/// The same in the simplest way.
fn is_good(len: u64, extents: &[(u64, u64, u64)]) -> bool {
    let block = u64::from(ROOM.block_len);
    let is_one = |(at, offset, size): &(u64, u64, u64)| {
        let parts = [*at, *offset, *size];
        parts.iter().all(|part| part.is_multiple_of(block))
            && *size > 0
            && *at < len
            && at.checked_add(*size).is_some()
            && offset.checked_add(*size).is_some_and(|end| end <= ROOM.blocks * block)
    };
    let apart = |one: (u64, u64), other: (u64, u64)| one.0 + one.1 <= other.0 || other.0 + other.1 <= one.0;
    extents.iter().all(is_one)
        && extents.windows(2).all(|two| two[0].0 + two[0].2 <= two[1].0)
        && extents.iter().enumerate().all(|(index, one)| {
            extents[..index].iter().all(|other| apart((one.1, one.2), (other.1, other.2)))
        })
}

/// So many extents, one block each, in an order that sorting has work with.
fn scattered(count: usize) -> Vec<(u64, u64, u64)> {
    let place = |at: u64| at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
    let mut seen = std::collections::BTreeSet::new();
    let places = (0..).map(place).filter(|place| seen.insert(*place)).take(count).collect::<Vec<_>>();
    (0..).zip(places).map(|(at, place)| (at * 512, place * 512, 512)).collect()
}

proptest! {
    /// However a map is cut into pieces, and whatever is in it, it is taken if it can be.
    #[test]
    fn pieces_say_what_the_whole_says(
        mut extents in vec((0_u64..3, 0_u64..60, 1_u64..4), 0..20),
        wrong in proptest::option::of((0_usize..20, 0_usize..3, any::<u64>())),
        lens in vec(1_usize..100, 1..5),
        is_spread in any::<bool>(),
    ) {
        let mut end = 0;
        for (index, (at, offset, len)) in (0_u64..).zip(&mut extents) {
            // Two of three have their own place.
            *offset = (if is_spread { index * 70 } else { 0 } + *offset) * 512;
            (*at, *len) = (end + *at * 512, *len * 512);
            end = *at + *len;
        }
        if let Some((index, part, value)) = wrong
            && let Some(extent) = extents.get_mut(index)
        {
            *[&mut extent.0, &mut extent.1, &mut extent.2][part] = value;
        }
        let bytes = bytes_of(end, &extents);
        let expected = if is_good(end, &extents) { Ok((0, extents.len())) } else { Err(BadMap) };
        prop_assert_eq!(checked(ROOM, &bytes, &lens), expected);
        prop_assert_eq!(checked(ROOM, &bytes, &[bytes.len()]), expected);
    }
}

#[test]
fn an_overlap_is_found_between_any_two_pieces() {
    let good = scattered(300);
    for lens in [&[TRANSFER][..], &[24], &[40, 24 * 7], &[1000, 100]] {
        assert_eq!(checked(ROOM, &bytes_of(1 << 40, &good), lens), Ok((0, 300)));
        for (one, other) in [(0, 299), (0, 1), (298, 299), (17, 203), (203, 17)] {
            let mut bad = good.clone();
            bad[one].1 = bad[other].1;
            assert_eq!(checked(ROOM, &bytes_of(1 << 40, &bad), lens), Err(BadMap), "{one} {other}");
        }
    }
}

#[test]
fn what_is_not_whole_or_elsewhere_is_no_map() {
    let bytes = bytes_of(1024, &[(0, 0, 512), (512, 1024, 512)]);
    assert_eq!(checked(ROOM, &bytes, &[7]), Ok((0, 2)));
    for len in 0..bytes.len() {
        assert_eq!(checked(ROOM, &bytes[..len], &[50]), Err(BadMap), "{len}");
    }
    assert_eq!(checked(ROOM, &[&bytes[..], &bytes[40..64]].concat(), &[50]), Err(BadMap), "one too many");
    // Another namespace half way, or one that has become too short.
    for (room, expected) in [
        (ROOM, true),
        (Room { nsid: 2, ..ROOM }, false),
        (Room { namespace: NamespaceKey(2), ..ROOM }, false),
        (Room { block_len: 4096, ..ROOM }, false),
        (Room { blocks: 3, ..ROOM }, true),
        (Room { blocks: 2, ..ROOM }, false),
    ] {
        let mut check = MapCheck::new(ROOM);
        check.take(ROOM, &bytes[..60]).unwrap();
        let ended = check.take(room, &bytes[60..]).and_then(|_| check.finish());
        assert_eq!(ended.is_ok(), expected, "{room:?}");
    }
}

/// `cargo test --release -p ob-pushdown the_longest_map -- --ignored --nocapture` tells what it costs, at best of several times.
#[test]
#[ignore = "a measurement"]
fn the_longest_map_costs() {
    let bytes = bytes_of(1 << 40, &scattered(EXTENTS_MAX));
    for len in [bytes.len(), TRANSFER, 24] {
        let mut best = vec![Duration::MAX; bytes.len().div_ceil(len) + 1];
        for _ in 0..20 {
            let mut check = MapCheck::new(ROOM);
            let mut least = best.iter_mut();
            let mut note = |begun: Instant| {
                let least = least.next().unwrap();
                *least = begun.elapsed().min(*least);
            };
            for piece in bytes.chunks(len) {
                let begun = Instant::now();
                check.take(ROOM, piece).unwrap();
                note(begun);
            }
            let begun = Instant::now();
            check.finish().unwrap();
            note(begun);
        }
        let (sum, longest) = (best.iter().sum::<Duration>(), best.iter().max().unwrap());
        println!(
            "pieces of {len}: {sum:?} in all, {longest:?} the longest, {:?} the end",
            best[best.len() - 1]
        );
    }
}
