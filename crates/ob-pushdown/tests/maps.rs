//! Maps that cannot be, and reads of those that can.

use std::time::Duration;

use ob_pushdown::target::FunctionLimits;
use ob_wire_nvme::Status;
use ob_wire_nvme::pushdown::{Function, MapHeader, Piece, RequestHeader};
use proptest::prelude::*;
use zerocopy::IntoBytes;

use crate::lab::support::{BLOCK, BLOCKS, HOST, pattern};
use crate::lab::{COPY, DONE, Lab, OBEY, READ, end, header, map_bytes, script, seen, sum, word};

const BYTES: u64 = BLOCKS * BLOCK as u64;
const INVALID: Status = Status::INVALID_FIELD.with_do_not_retry();
const UNKNOWN: Status = Status::PUSHDOWN_UNKNOWN.with_do_not_retry();
const CHANGED: Status = Status::PUSHDOWN_CHANGED.with_do_not_retry();
const RANGE: Status = Status::PUSHDOWN_RANGE.with_do_not_retry();

/// Its version, its length and its extents.
type WrongMap = (u64, u64, &'static [(u64, u64, u64)]);

#[test]
fn maps_that_cannot_be_are_refused_and_the_one_before_stays() {
    let mut lab = Lab::new();
    let io = lab.host(HOST, 9).io;
    lab.rig.disk.bytes[..1024].copy_from_slice(&pattern(1, 1024));
    let program = lab.load(io, "obey", OBEY).unwrap();
    let file = lab.map(io, (0, 5), 1024, &[(0, 0, 1024)]).unwrap();
    const HUGE: u64 = u64::MAX - 511;
    let wrong: &[WrongMap] = &[
        (0, 1024, &[(0, 0, 1024)]),                       // no version
        (5, 1024, &[(0, 0, 1024)]),                       // the same one
        (4, 1024, &[(0, 0, 1024)]),                       // an older one
        (6, 2048, &[(0, 0, 1024), (512, 4096, 1024)]),    // overlaps in the file
        (6, 2048, &[(0, 0, 1024), (1024, 512, 1024)]),    // overlaps in the namespace
        (6, 2048, &[(1024, 0, 512), (0, 4096, 512)]),     // does not ascend
        (6, 1024, &[(0, 0, 0)]),                          // empty
        (6, 1024, &[(0, 100, 512)]),                      // is not aligned there
        (6, 1024, &[(100, 0, 512)]),                      // nor here
        (6, 1024, &[(0, 0, 100)]),                        // nor in length
        (6, 1024, &[(1024, 0, 512)]),                     // begins at the end
        (6, 1024, &[(0, BYTES, 512)]),                    // behind the namespace
        (6, 4096, &[(0, BYTES - 512, 1024)]),             // passes its end
        (6, u64::MAX, &[(0, HUGE, 512)]),                 // wraps there
        (6, u64::MAX, &[(0, 512, HUGE)]),                 // is longer than everything
        (6, u64::MAX, &[(HUGE, 512, 1024)]),              // wraps here
        (6, u64::MAX, &[(0, 0, 512), (512, HUGE, 1024)]), // wraps to what is the file's
    ];
    for (version, len, extents) in wrong {
        assert_eq!(lab.map(io, (file, *version), *len, extents), Err(INVALID), "{version} {len} {extents:?}");
    }
    for (version, len, extents) in wrong.iter().filter(|(version, ..)| *version == 6) {
        assert_eq!(lab.map(io, (0, *version), *len, extents), Err(INVALID), "{len} {extents:?}");
    }
    assert_eq!(lab.map(io, (file + 1, 6), 512, &[(0, 0, 512)]), Err(UNKNOWN));
    let answer = lab.request(io, &header(program, (0, 0, 1024)), &[(file, 5)], &script(&[[DONE, 0, 0, 0]]));
    assert_eq!(seen(&answer.unwrap().1), (1024, sum(&pattern(1, 1024))));
    assert_eq!(lab.functions.counts().files, 1);
    lab.check_rest();
}

#[test]
fn what_says_other_lengths_than_it_has_is_refused() {
    let mut lab = Lab::new();
    let io = lab.host(HOST, 9).io;
    let good = map_bytes((0, 1), 512, &[(0, 0, 512)]);
    let with = |header: MapHeader| [header.as_bytes(), &good[40..]].concat();
    let fine = MapHeader { version: 1.into(), len: 512.into(), extents: 1.into(), ..MapHeader::default() };
    let wrong = [
        with(MapHeader { extents: 2.into(), ..fine }),
        with(MapHeader { extents: 0.into(), ..fine }),
        with(MapHeader { reserved: 1.into(), ..fine }),
        good[..good.len() - 1].to_vec(),
        good[..39].to_vec(),
        [&good[..], &[0]].concat(),
    ];
    for bytes in wrong {
        assert_eq!(lab.upload(io, Function::Map, &bytes), Err(INVALID), "{bytes:?}");
    }
    assert!(lab.upload(io, Function::Map, &good).is_ok());
    // Of a namespace that there is not, or of none.
    for nsid in [0, 2, u32::MAX] {
        let token = lab.token();
        let function = Function::Map(Piece { token, offset: 0, whole: good.len() as u32 });
        let command = lab.send(io, nsid, function, &good, 0);
        let (status, _) = lab.answer(io, command).unwrap().unwrap_err();
        assert!(!status.is_success() && lab.functions.counts().files == 1);
    }
}

#[test]
fn a_read_goes_over_extents_of_one_block_each() {
    let mut lab = Lab::new();
    let io = lab.host(HOST, 9).io;
    let program = lab.load(io, "obey", OBEY).unwrap();
    let len = 128 << 10;
    let file = pattern(9, len);
    // From the last block to the first, with a block between each two.
    let places: Vec<u64> = (0..256).map(|block| (511 - 2 * block) * 512).collect();
    let extents: Vec<(u64, u64, u64)> =
        places.iter().enumerate().map(|(at, place)| (at as u64 * 512, *place, 512)).collect();
    for (at, place) in places.iter().enumerate() {
        lab.rig.disk.bytes[*place as usize..][..512].copy_from_slice(&file[at * 512..][..512]);
    }
    let number = lab.map(io, (0, 1), len as u64, &extents).unwrap();
    let all = RequestHeader { read_len_max: (len as u32).into(), ..header(program, (0, 0, len as u32)) };
    let answer = lab.request(io, &all, &[(number, 1)], &script(&[[COPY, 0, 0, 0]])).unwrap();
    assert_eq!((answer.0, seen(&answer.1)), (1, (len as u64, sum(&file))), "one read, whatever it takes");
    assert_eq!(answer.1[2048..], file[..2048]);
    // Any part of it.
    for (offset, part) in [(511, 2), (1, 1), (700, 5000), (130_000, 1072)] {
        let answer =
            lab.request(io, &header(program, (0, offset, part)), &[(number, 1)], &script(&[[COPY, 0, 0, 0]]));
        let expected = &file[offset as usize..][..part as usize];
        let scratch = answer.unwrap().1;
        assert_eq!(seen(&scratch), (u64::from(part), sum(expected)), "{offset} {part}");
        let copied = expected.len().min(2048);
        assert_eq!(scratch[2048..][..copied], expected[..copied]);
    }
    // The most that there is, from within a block, has no room.
    let unaligned = RequestHeader { first_offset: 0.into(), ..all };
    let late = script(&[[READ, 0, 8, len as u64 - 8], [DONE, 0, 0, 0]]);
    assert_eq!(lab.request(io, &unaligned, &[(number, 1)], &late).unwrap().0, 2, "as many blocks");
    lab.check_rest();
}

#[test]
fn holes_and_ends_are_not_read() {
    let mut lab = Lab::new();
    let io = lab.host(HOST, 9).io;
    let program = lab.load(io, "obey", OBEY).unwrap();
    lab.rig.disk.bytes[..8192].fill(3);
    // A hole from 512 to 1024; the file ends within its last block.
    let file = lab.map(io, (0, 1), 1836, &[(0, 0, 512), (1024, 4096, 1024)]).unwrap();
    let done = script(&[[DONE, 0, 0, 0]]);
    let mut ask =
        |offset: u64, len: u32| lab.request(io, &header(program, (0, offset, len)), &[(file, 1)], &done);
    for (offset, len) in [(0, 513), (511, 2), (512, 1), (1023, 2), (u64::MAX, 1)] {
        let (status, _, detail) = end(ask(offset, len));
        assert_eq!((status, detail), (RANGE, 0), "{offset} {len}");
    }
    assert_eq!(
        seen(&ask(1024, 4096).unwrap().1),
        (812, sum(&[3; 812])),
        "nothing behind the file's end is seen"
    );
    assert_eq!(seen(&ask(1835, 512).unwrap().1), (1, 3));
    for (offset, len) in [(1836, 1), (4096, 1), (u64::MAX - 1, 1)] {
        assert_eq!(seen(&ask(offset, len).unwrap().1), (0, 0), "{offset} {len}: nothing is behind the end");
    }
    // A file that says that it ends where numbers do.
    let endless = lab.map(io, (0, 1), u64::MAX, &[(0, 0, 512)]).unwrap();
    for (offset, len) in [(u64::MAX - 100, 50), (u64::MAX - 100, 101), (u64::MAX - 600, 50), (u64::MAX, 16)] {
        let answer = lab.request(io, &header(program, (0, offset, len)), &[(endless, 1)], &done);
        assert_eq!(end(answer), (RANGE, 0, 0), "{offset} {len}");
    }
    lab.check_rest();
}

#[test]
fn a_file_has_the_version_that_it_was_given_last() {
    let mut lab = Lab::new();
    let io = lab.host(HOST, 9).io;
    let program = lab.load(io, "obey", OBEY).unwrap();
    let file = lab.map(io, (0, 1), 512, &[(0, 0, 512)]).unwrap();
    let done = script(&[[DONE, 0, 0, 0]]);
    let first = header(program, (0, 0, 512));
    let plan = lab.number(io, Function::Prepare, &crate::lab::body(&first, &[(file, 1)], &done)).unwrap();
    assert_eq!(lab.map(io, (file, 9), 512, &[(0, 512, 512)]), Ok(file));
    for version in [0, 1, 2, 8, 10, u64::MAX] {
        assert_eq!(end(lab.request(io, &first, &[(file, version)], &done)).0, CHANGED, "{version}");
        let prepared =
            lab.number(io, Function::Prepare, &crate::lab::body(&first, &[(file, version)], &done));
        assert_eq!(prepared, Err(CHANGED), "{version}");
    }
    assert!(lab.request(io, &first, &[(file, 9)], &done).is_ok());
    let files = [(file, 9), (file, 9), (file, 1)];
    assert_eq!(end(lab.request(io, &first, &files, &done)), (CHANGED, 0, 2), "which of them");
    let body = crate::lab::body(&first, &files, &done);
    assert_eq!(end(lab.call(io, Function::Prepare, &body, 0)), (CHANGED, 0, 2));
    let run = ob_wire_nvme::pushdown::Run::new(plan, None, &[]).unwrap();
    assert_eq!(end(lab.call(io, Function::Run(run), &[], 4096)), (UNKNOWN, 0, 0), "its map has ended");
    assert_eq!(lab.number(io, Function::Close(file), &[]), Ok(0));
    assert_eq!(end(lab.request(io, &first, &[(file, 9)], &done)).0, UNKNOWN);
    assert_eq!(lab.number(io, Function::Close(file), &[]), Err(UNKNOWN));
    assert_eq!(lab.functions.counts().files, 0);
}

#[test]
fn extents_of_maps_that_ended_are_not_kept_for_plans() {
    let limits = FunctionLimits { extents_max: 8, ..FunctionLimits::default() };
    let mut lab = Lab::with(Default::default(), limits);
    let io = lab.host(HOST, 9).io;
    let program = lab.load(io, "obey", OBEY).unwrap();
    let extents: Vec<_> = (0..8).map(|at| (at * 512, at * 1024, 512)).collect();
    let done = script(&[[DONE, 0, 0, 0]]);
    let first = header(program, (0, 0, 512));
    for _ in 0..20 {
        let file = lab.map(io, (0, 1), 4096, &extents).unwrap();
        for version in [1, 2] {
            let body = crate::lab::body(&first, &[(file, version)], &done);
            lab.number(io, Function::Prepare, &body).unwrap();
            assert_eq!(lab.map(io, (file, version + 1), 4096, &extents), Ok(file));
            assert_eq!(lab.functions.counts().extents, 8, "of the map that is there, and of no other");
        }
        let body = crate::lab::body(&first, &[(file, 3)], &done);
        lab.number(io, Function::Prepare, &body).unwrap();
        assert_eq!(lab.number(io, Function::Close(file), &[]), Ok(0));
        assert_eq!(lab.functions.counts().extents, 0, "plans keep none");
    }
    assert_eq!((lab.functions.counts().files, lab.functions.counts().plans), (0, 60));
    lab.check_rest();
}

#[test]
fn pieces_and_limits_of_maps() {
    let limits = FunctionLimits { open_max: 3, extents_max: 8, ..FunctionLimits::default() };
    let mut lab = Lab::with(Default::default(), limits);
    let io = lab.host(HOST, 9).io;
    let extents = |count: u64| (0..count).map(|at| (at * 512, at * 1024, 512)).collect::<Vec<_>>();
    let limit = Status::PUSHDOWN_LIMIT.with_do_not_retry();
    let file = lab.map(io, (0, 1), 1 << 20, &extents(5)).unwrap();
    assert_eq!(lab.map(io, (0, 1), 1 << 20, &extents(4)), Err(limit));
    assert!(lab.map(io, (file, 2), 1 << 20, &extents(8)).is_ok(), "what it had counts no more");
    assert_eq!(lab.map(io, (file, 3), 1 << 20, &extents(9)), Err(limit));
    assert!(lab.map(io, (file, 3), 1 << 20, &extents(1)).is_ok());
    assert!(lab.map(io, (0, 1), 512, &[]).is_ok() && lab.map(io, (0, 1), 512, &[]).is_ok());
    assert_eq!(lab.map(io, (0, 1), 512, &[]), Err(limit));
    assert!(lab.map(io, (file, 4), 512, &[]).is_ok(), "it is no more than before");
    // Half a map is no file; two halves are one.
    assert_eq!(lab.number(io, Function::Close(file), &[]), Ok(0));
    let bytes = map_bytes((0, 1), 1 << 20, &extents(3));
    let (front, back) = bytes.split_at(50);
    let piece = |token, offset| Function::Map(Piece { token, offset, whole: bytes.len() as u32 });
    assert_eq!(lab.number(io, piece(1000, 50), back), Err(INVALID), "it begins with its beginning");
    assert_eq!(lab.number(io, piece(1000, 0), front), Ok(0));
    assert_eq!(lab.number(io, piece(1000, 49), back), Err(INVALID));
    assert_eq!(lab.number(io, piece(1000, 50), back), Err(INVALID), "that has ended it");
    assert_eq!(lab.number(io, piece(1000, 0), front), Ok(0));
    let other = lab.number(io, piece(1000, 50), back).unwrap();
    assert!(other != 0);
    // Too many at once, one that is too long, and one that says nothing.
    for token in 0..4 {
        assert_eq!(lab.number(io, piece(2000 + token, 0), front), Ok(0));
    }
    assert_eq!(lab.number(io, piece(2004, 0), front), Err(limit));
    let long = Function::Map(Piece { token: 2000, offset: 0, whole: u32::MAX });
    assert_eq!(lab.number(io, long, front), Err(INVALID));
    assert_eq!(lab.number(io, piece(2000, 0), front), Ok(0));
    // Those of which nothing comes make room.
    lab.rig.now = lab.rig.now + Duration::from_secs(6);
    assert_eq!(lab.number(io, piece(2004, 0), front), Err(limit));
    assert_eq!(lab.number(io, piece(2001, 0), front), Ok(0), "it is begun anew");
    lab.rig.now = lab.rig.now + Duration::from_secs(4);
    for token in 2004..2007 {
        assert_eq!(lab.number(io, piece(token, 0), front), Ok(0));
    }
    assert_eq!(lab.number(io, piece(2007, 0), front), Err(limit), "one of those before has time left");
    assert_eq!(lab.number(io, piece(2002, 50), back), Err(INVALID), "it is over");
    lab.number(io, Function::Close(other), &[]).unwrap();
    assert!(lab.number(io, piece(2001, 50), back).unwrap() != 0);
}

/// What is refused because of a version counts as changed; what no version can be named of, or is not there, does not.
#[test]
fn versions_that_do_not_match_are_counted() {
    let mut lab = Lab::new();
    lab.folder("shared");
    lab.file("shared/file", &[1; 600]);
    let io = lab.host(HOST, 9).io;
    let program = lab.load(io, "obey", OBEY).unwrap();
    let mapped = lab.map(io, (0, 3), 512, &[(0, 0, 512)]).unwrap();
    let named = lab.number(io, Function::Open, b"file").unwrap();
    let mut ask = |file| {
        let answer = lab.request(io, &header(program, (0, 0, 512)), &[file], &script(&[[COPY, 0, 0, 0]]));
        let counts = lab.functions.counts();
        (answer.is_ok(), counts.changed, counts.answered, counts.failed)
    };
    assert_eq!(ask((mapped, 3)), (true, 0, 1, 0));
    assert_eq!(ask((mapped, 2)), (false, 1, 1, 1));
    assert_eq!(ask((mapped, 4)), (false, 2, 1, 2));
    assert_eq!(ask((named, 1)), (false, 2, 1, 3), "there are no versions to change");
    assert_eq!(ask((named + 1, 0)), (false, 2, 1, 4), "there is no such file");
    assert_eq!(ask((named, 0)), (true, 2, 2, 4));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever a map says, a read finds the bytes that it says, or is refused.
    #[test]
    fn reads_find_what_the_map_says(
        pieces in prop::collection::vec((0_u64..3, 1_u64..4), 1..12),
        short in 0_u64..512,
        reads in prop::collection::vec((0_u64..20_000, 1_u32..4096), 1..8),
    ) {
        let mut lab = Lab::new();
        let io = lab.host(HOST, 9).io;
        let program = lab.load(io, "obey", OBEY).unwrap();
        let len = lab.rig.disk.bytes.len();
        lab.rig.disk.bytes.copy_from_slice(&pattern(4, len));
        let (mut at, mut place, mut extents) = (0, 64 * 512, Vec::new());
        let mut content: Vec<Option<u8>> = Vec::new();
        for (hole, blocks) in pieces {
            content.resize(content.len() + hole as usize * 512, None);
            at += hole * 512;
            place -= (blocks + 1) * 512;
            extents.push((at, place, blocks * 512));
            let bytes = &lab.rig.disk.bytes[place as usize..][..blocks as usize * 512];
            content.extend(bytes.iter().map(|byte| Some(*byte)));
            at += blocks * 512;
        }
        content.truncate(content.len() - short as usize);
        let file = lab.map(io, (0, 1), content.len() as u64, &extents).unwrap();
        for (offset, len) in reads {
            let answer = lab.request(io, &header(program, (0, offset, len)), &[(file, 1)], &script(&[[COPY, 0, 0, 0]]));
            let to = (offset as usize + len as usize).min(content.len());
            let expected: Option<Vec<u8>> =
                content.get(offset as usize..to).filter(|part| !part.is_empty()).and_then(|part| part.iter().copied().collect());
            // A hole in the block where it ends is as good as one within.
            match (answer, expected) {
                (Ok((_, scratch)), Some(bytes)) => {
                    prop_assert_eq!(seen(&scratch), (bytes.len() as u64, sum(&bytes)));
                    let copied = bytes.len().min(2048);
                    prop_assert_eq!(&scratch[2048..2048 + copied], &bytes[..copied]);
                    prop_assert_eq!(word(&scratch, 0), 1);
                }
                (Ok((_, scratch)), None) if offset as usize >= content.len() => {
                    prop_assert_eq!(seen(&scratch), (0, 0));
                }
                (Err((status, _)), None) if (offset as usize) < content.len() => prop_assert_eq!(status, RANGE),
                (answer, expected) => prop_assert!(false, "{:?} {:?}", answer, expected),
            }
        }
        lab.check_rest();
    }
}
