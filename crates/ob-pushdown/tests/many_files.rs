//! As many files as a request may have, of both kinds, in one chain.

use ob_nvme::target::TargetConfig;
use ob_pushdown::target::FunctionLimits;
use ob_wire_nvme::Status;
use ob_wire_nvme::pushdown::{FILES_MAX, Function, RequestHeader, Run};

use crate::lab::support::{Client, HOST, pattern};
use crate::lab::{DONE, Lab, OBEY, READ, body, end, header, script, seen, sum, word};

const INVALID: Status = Status::INVALID_FIELD.with_do_not_retry();
const UNKNOWN: Status = Status::PUSHDOWN_UNKNOWN.with_do_not_retry();
const RANGE: Status = Status::PUSHDOWN_RANGE.with_do_not_retry();
const OTHER: &str = "nqn.2014-08.org.nvmexpress:uuid:99999999-2222-3333-4444-555555555555";
/// Blocks of a file by map, each of which lies elsewhere.
const PIECES: u64 = 4;
const MAPPED_LEN: usize = 3 * 512 + 100;
/// Bytes of a file by name: more than the card's files have in one piece.
const NAMED_LEN: usize = 5000;

/// A file, as a request names it, and what it holds.
struct Known {
    number: u64,
    version: u64,
    bytes: Vec<u8>,
}

/// A file by map. Its blocks lie backwards, and between those of others.
fn mapped(lab: &mut Lab, io: Client, index: u64) -> Known {
    let bytes = pattern(index as u8, MAPPED_LEN);
    let place = |piece: u64| ((PIECES - 1 - piece) * FILES_MAX as u64 + index) * 512;
    let extents: Vec<_> = (0..PIECES).map(|piece| (piece * 512, place(piece), 512)).collect();
    for (piece, part) in (0..).zip(bytes.chunks(512)) {
        lab.rig.disk.bytes[place(piece) as usize..][..part.len()].copy_from_slice(part);
    }
    let version = index + 1;
    let number = lab.map(io, (0, version), MAPPED_LEN as u64, &extents).unwrap();
    Known { number, version, bytes }
}

fn named(lab: &mut Lab, io: Client, index: u64) -> Known {
    let bytes = pattern(index as u8, NAMED_LEN);
    lab.file(&format!("shared/{index}"), &bytes);
    let number = lab.number(io, Function::Open, index.to_string().as_bytes()).unwrap();
    Known { number, version: 0, bytes }
}

/// Every second by map, the others by name.
fn files(lab: &mut Lab, io: Client) -> Vec<Known> {
    lab.folder("shared");
    let one = |index| if index % 2 == 0 { mapped(lab, io, index) } else { named(lab, io, index) };
    (0..FILES_MAX as u64).map(one).collect()
}

fn refs(files: &[Known]) -> Vec<(u64, u64)> {
    files.iter().map(|file| (file.number, file.version)).collect()
}

/// The file that a chain reads as its n-th, and where: in an order of its own, and over the ends of what lies together.
fn step(files: &[Known], n: usize) -> (usize, usize, usize) {
    let file = (n * 27 + 5) % FILES_MAX;
    let from = 300 + n;
    (file, from, files[file].bytes.len() - from - 11)
}

#[test]
fn a_chain_goes_through_as_many_files_as_a_request_may_have() {
    // No time goes by here, and with it comes what may be spent.
    let programs = ob_programs::Limits { share: 100_000, ..Default::default() };
    let limits = FunctionLimits { programs, ..FunctionLimits::default() };
    let mut lab = Lab::with(TargetConfig::default(), limits);
    let io = lab.host(HOST, 9).io;
    let program = lab.load(io, "obey", OBEY).unwrap();
    let files = files(&mut lab, io);
    let refs = refs(&files);
    let (file, from, len) = step(&files, 0);
    let first = header(program, (file as u16, from as u64, len as u32));
    // Each chain goes one file further than the one before, and says what it found there.
    for last in 0..FILES_MAX {
        let reads = (1..=last).map(|n| {
            let (file, from, len) = step(&files, n);
            [READ, file as u64, from as u64, len as u64]
        });
        let orders = script(&reads.chain([[DONE, 0, 0, 0]]).collect::<Vec<_>>());
        let (file, from, len) = step(&files, last);
        let expected = (len as u64, sum(&files[file].bytes[from..][..len]));
        let (reads, scratch) = lab.request(io, &first, &refs, &orders).unwrap();
        assert_eq!((reads, word(&scratch, 0)), (last as u64 + 1, last as u64 + 1));
        assert_eq!(seen(&scratch), expected, "read {last}, of file {file}");
        if last + 1 == FILES_MAX {
            let plan = lab.number(io, Function::Prepare, &body(&first, &refs, &orders)).unwrap();
            let run = Function::Run(Run::new(plan, None, &[]).unwrap());
            let (reads, scratch) = lab.call(io, run, &[], 4096).unwrap();
            assert_eq!((reads, seen(&scratch)), (FILES_MAX as u64, expected), "the same by a plan");
        }
    }
    lab.check_rest();
}

#[test]
fn one_file_more_is_refused_and_one_number_more_is_no_file() {
    let mut lab = Lab::new();
    let io = lab.host(HOST, 9).io;
    let program = lab.load(io, "obey", OBEY).unwrap();
    let mut refs = refs(&files(&mut lab, io));
    let first = header(program, (0, 0, 512));
    for (file, is_there) in [(63, true), (64, false), (65_535, false), (1 << 32, false), (u64::MAX, false)] {
        let orders = script(&[[READ, file, 0, 512], [DONE, 0, 0, 0]]);
        let answer = lab.request(io, &first, &refs, &orders);
        if is_there {
            assert_eq!(answer.unwrap().0, 2);
        } else {
            let (status, reads, _) = end(answer);
            assert_eq!((status, reads), (RANGE, 1), "{file}");
        }
    }
    let beyond = RequestHeader { first: 64.into(), ..first };
    assert_eq!(end(lab.request(io, &beyond, &refs, &[])).1, 0);
    // One more, whether it is another or one of them once more.
    let more = lab.map(io, (0, 1), 512, &[(0, 1 << 20, 512)]).unwrap();
    for one in [(more, 1), refs[0]] {
        refs.push(one);
        let request = body(&first, &refs, &[]);
        assert_eq!(end(lab.request(io, &first, &refs, &[])), (INVALID, 0, 0));
        assert_eq!(lab.number(io, Function::Prepare, &request), Err(INVALID));
        // A query is answered when it has come; what became of it, its answer says.
        assert_eq!(lab.number(io, Function::Query(7), &request), Ok(0));
        assert_eq!(end(lab.call(io, Function::Answer(7), &[], 4096)), (INVALID, 0, 0));
        refs.pop();
    }
    assert!(lab.request(io, &first, &refs, &script(&[[DONE, 0, 0, 0]])).is_ok());
    lab.check_rest();
}

/// One of 64 that is another's: nothing at all is read, of whichever kind it is, and whoever the other is.
#[test]
fn one_file_of_anothers_among_many_is_out_of_reach() {
    let mut lab = Lab::new();
    let io = lab.host(HOST, 9).io;
    let program = lab.load(io, "obey", OBEY).unwrap();
    let files = files(&mut lab, io);
    // Another host, and another controller of the same host.
    for other in [lab.host(OTHER, 8).io, lab.host(HOST, 7).io] {
        let by_map = (lab.map(other, (0, 1), 512, &[(0, 0, 512)]).unwrap(), 1);
        let by_name = (lab.number(other, Function::Open, b"1").unwrap(), 0);
        for theirs in [by_map, by_name] {
            for place in [0, 31, 63] {
                let mut refs = refs(&files);
                refs[place] = theirs;
                let before = lab.rig.disk.log.len();
                let answer =
                    lab.request(io, &header(program, (1, 0, 512)), &refs, &script(&[[DONE, 0, 0, 0]]));
                assert_eq!(end(answer), (UNKNOWN, 0, 0), "{theirs:?} at {place}");
                assert_eq!(lab.rig.disk.log.len(), before);
            }
        }
        // Nor can one be closed or mapped anew.
        assert_eq!(lab.number(io, Function::Close(by_map.0), &[]), Err(UNKNOWN));
        assert_eq!(lab.map(io, (by_map.0, 2), 512, &[(0, 512, 512)]), Err(UNKNOWN));
    }
    lab.check_rest();
}
