//! Files of the card's, by name.

use ob_files_card::{MetadataOp, Op};
use ob_format::files::ROOT;
use ob_nvme::target::control::SubsystemSpec;
use ob_wire_link::files::FileError;
use ob_wire_nvme::Status;
use ob_wire_nvme::pushdown::{Description, Function};
use ob_wire_nvme::text::Nqn;
use zerocopy::FromBytes;

use crate::lab::support::{HOST, Wish, namespace, pattern};
use crate::lab::{COPY, DONE, Lab, OBEY, READ, end, header, script, seen, sum};

const UNKNOWN: Status = Status::PUSHDOWN_UNKNOWN.with_do_not_retry();
const RANGE: Status = Status::PUSHDOWN_RANGE.with_do_not_retry();
const INVALID: Status = Status::INVALID_FIELD.with_do_not_retry();
const CHANGED: Status = Status::PUSHDOWN_CHANGED.with_do_not_retry();
const OTHERS: &str = "nqn.2026-01.example:others";

#[test]
fn only_files_of_the_folder_can_be_opened() {
    let mut lab = Lab::new();
    lab.folder("shared");
    lab.folder("shared/inner");
    lab.folder("shared2");
    for path in ["shared/file", "shared/inner/file", "secret", "shared2/file"] {
        lab.file(path, path.as_bytes());
    }
    let io = lab.host(HOST, 9).io;
    for name in ["file", "inner/file", "/file"] {
        assert!(lab.number(io, Function::Open, name.as_bytes()).is_ok(), "{name}");
    }
    let wrong = [
        "../secret",
        "/../secret",
        "inner/../../secret",
        "..",
        ".",
        "/",
        "inner",
        "inner/",
        "none",
        "2/file",
        "file/",
        "file/x",
        "./file/../../secret",
        "shared/file",
        "\0",
        "fil",
        "file\0",
    ];
    for name in wrong.iter().filter(|name| **name != "file/") {
        assert_eq!(lab.number(io, Function::Open, name.as_bytes()), Err(UNKNOWN), "{name}");
    }
    assert_eq!(lab.number(io, Function::Open, b""), Err(INVALID));
    assert_eq!(lab.number(io, Function::Open, &[b'x'; 1025]), Err(INVALID));
    assert_eq!(lab.number(io, Function::Open, &[b'x'; 1024]), Err(UNKNOWN));
    assert_eq!(lab.functions.counts().files, 3);
    lab.check_rest();
}

#[test]
fn hosts_of_other_subsystems_open_nothing() {
    let mut lab = Lab::new();
    lab.folder("shared");
    lab.file("shared/file", b"something");
    let control = lab.rig.target.control_mut();
    let others = control.add_subsystem(SubsystemSpec::open(Nqn::new(OTHERS).unwrap(), "SN2")).unwrap();
    control.add_namespace(others, &namespace(1, 9)).unwrap();
    let wish = Wish { subsystem: OTHERS, host_id: [4; 16], ..Wish::default() };
    let io = lab.host_as(&wish).io;
    assert_eq!(lab.number(io, Function::Open, b"file"), Err(UNKNOWN));
    assert_eq!(lab.number(io, Function::Open, b"shared/file"), Err(UNKNOWN));
    let told = lab.call(io, Function::Describe, &[], 64).unwrap().1;
    assert_eq!(Description::read_from_bytes(&told).unwrap().flags.get(), 0);
}

#[test]
fn a_file_is_read_up_to_its_end_and_while_it_is_there() {
    let mut lab = Lab::new();
    lab.folder("shared");
    let content = pattern(3, 10_000);
    let node = lab.file("shared/file", &content);
    // Bytes that were in the last block before.
    lab.local(Op::Resize { file: node, size: 9_000 });
    let io = lab.host(HOST, 9).io;
    let program = lab.load(io, "obey", OBEY).unwrap();
    let file = lab.number(io, Function::Open, b"file").unwrap();
    let copy = script(&[[COPY, 0, 0, 0]]);
    for (offset, len) in [(0, 16 << 10), (100, 3), (8_192, 4096), (8_999, 10), (5_000, 4_000)] {
        let answer = lab.request(io, &header(program, (0, offset, len)), &[(file, 0)], &copy).unwrap();
        let expected = &content[offset as usize..(offset as usize + len as usize).min(9_000)];
        assert_eq!(seen(&answer.1), (expected.len() as u64, sum(expected)), "{offset} {len}");
    }
    for (offset, len) in [(9_000, 1), (9_500, 100), (1 << 40, 4096), (u64::MAX - 5000, 4096)] {
        let answer = lab.request(io, &header(program, (0, offset, len)), &[(file, 0)], &copy).unwrap();
        assert_eq!(seen(&answer.1), (0, 0), "{offset} {len}: nothing is behind the end");
    }
    for (offset, len) in [(u64::MAX - 10, 5), (0, 0)] {
        let answer = lab.request(io, &header(program, (0, offset, len)), &[(file, 0)], &copy);
        assert_eq!(end(answer).0, RANGE, "{offset} {len}");
    }
    assert_eq!(
        end(lab.request(io, &header(program, (0, 0, 8)), &[(file, 1)], &copy)).0,
        CHANGED,
        "no version"
    );
    assert_eq!(lab.map(io, (file, 2), 512, &[(0, 0, 512)]), Err(INVALID), "it has no map to be replaced");
    // Removed: it is unknown, and another of its name is another file.
    lab.local(Op::Metadata(MetadataOp::Remove { base: ROOT, path: b"shared/file".to_vec(), only: None }));
    assert_eq!(end(lab.request(io, &header(program, (0, 0, 8)), &[(file, 0)], &copy)).0, UNKNOWN);
    lab.file("shared/file", b"other bytes");
    assert_eq!(end(lab.request(io, &header(program, (0, 0, 8)), &[(file, 0)], &copy)).0, UNKNOWN);
    let file = lab.number(io, Function::Open, b"file").unwrap();
    let answer = lab.request(io, &header(program, (0, 0, 64)), &[(file, 0)], &copy).unwrap();
    assert_eq!(answer.1[2048..][..12], *b"other bytes\0");
    lab.check_rest();
}

/// A chain reads a file of the card's, then waits for the namespace; the file changes meanwhile, and is not read again.
#[test]
fn a_file_that_changed_since_it_was_read_ends_a_chain() {
    for what in 0..4 {
        let mut lab = Lab::new();
        lab.folder("shared");
        let node = lab.file("shared/file", &[1; 600]);
        let io = lab.host(HOST, 9).io;
        let program = lab.load(io, "obey", OBEY).unwrap();
        let named = lab.number(io, Function::Open, b"file").unwrap();
        let mapped = lab.map(io, (0, 1), 512, &[(0, 0, 512)]).unwrap();
        lab.rig.disk.is_held = true;
        let orders = script(&[[READ, 1, 0, 512], [DONE, 0, 0, 0]]);
        let command =
            lab.begin_request(io, &header(program, (0, 0, 512)), &[(named, 0), (mapped, 1)], &orders);
        lab.run();
        assert_eq!(lab.rig.disk.queue.len(), 1, "it is at its second read");
        match what {
            0 => {}
            1 => drop(lab.local(Op::Resize { file: node, size: 599 })),
            2 => drop(lab.file("shared/file", &[2; 600])),
            _ => {
                let remove = MetadataOp::Remove { base: ROOT, path: b"shared/file".to_vec(), only: None };
                lab.local(Op::Metadata(remove));
            }
        }
        lab.rig.release_disk();
        let answer = lab.answer(io, command).unwrap();
        if what == 0 {
            assert_eq!(answer.unwrap().0, 2);
        } else {
            assert_eq!(end(answer), (CHANGED, 2, 0), "{what}");
        }
        lab.check_rest();
    }
}

/// Fills the card's files, but for what is free of its last segment.
fn fill(lab: &mut Lab) {
    let file = lab.file("filler", &[]);
    let (mut offset, mut len) = (0, 64 << 10);
    while len >= 4096 {
        let write = lab.write_op(file, offset, &vec![9; len]);
        lab.begin_local(write);
        match lab.local_done().expect("it is done") {
            Ok(_) => offset += len as u64,
            Err(error) => {
                assert_eq!(error, FileError::NoSpace);
                len /= 2;
            }
        }
    }
    lab.local(Op::Flush);
    assert_eq!(lab.files.files().space_info().free, 0);
}

/// In the middle of a chain's read its file is removed, cut off, or another takes its name: nobody gets its segments before the read is over,
/// and the chain ends.
#[test]
fn segments_that_a_chain_reads_are_not_used_before_it_has_ended() {
    const LEN: usize = 40 << 10;
    for what in 0..3 {
        let mut lab = Lab::new();
        lab.folder("shared");
        let old = lab.file("shared/file", &[1; LEN]);
        let new = lab.file("new", &[]);
        fill(&mut lab);
        let io = lab.host(HOST, 9).io;
        let program = lab.load(io, "obey", OBEY).unwrap();
        let file = (lab.number(io, Function::Open, b"file").unwrap(), 0);
        // The first read, by which the file is pinned, then one that the device keeps.
        let orders = script(&[[READ, 0, 0, 16 << 10], [READ, 0, 16 << 10, 16 << 10], [DONE, 0, 0, 0]]);
        let command = lab.begin_request(io, &header(program, (0, 0, 512)), &[file], &orders);
        while lab.functions.counts().reads < 2 {
            lab.rig.run();
            assert!(lab.step());
            lab.files.device().is_held = lab.functions.counts().reads >= 1;
        }
        for _ in 0..100 {
            lab.step();
        }
        assert!(!lab.files.device().held.is_empty(), "a read is at the device");
        let change = match what {
            0 => Op::Metadata(MetadataOp::Remove { base: ROOT, path: b"shared/file".to_vec(), only: None }),
            1 => Op::Resize { file: old, size: 0 },
            _ => Op::Metadata(MetadataOp::Rename {
                base: ROOT,
                path: b"new".to_vec(),
                to_base: ROOT,
                to_path: b"shared/file".to_vec(),
                replace: true,
            }),
        };
        if what == 1 {
            // What is read is not cut off before it is read.
            lab.begin_local(change);
            assert!(lab.local_done().is_none());
            lab.files.device().release();
            assert_eq!(end(lab.answer(io, command).unwrap()), (CHANGED, 2, 0));
            assert!(lab.local_done().expect("it is cut off").is_ok());
            continue;
        }
        lab.local(change);
        lab.local(Op::Flush);
        assert_eq!(lab.files.files().space_info().free, LEN as u64, "to a user they are free");
        let write = lab.write_op(new, 0, &[2; LEN]);
        lab.begin_local(write);
        assert!(lab.local_done().is_none(), "{what}: they are used while they are read");
        assert!(lab.answer(io, command).is_none(), "it reads");
        lab.files.device().release();
        assert_eq!(end(lab.answer(io, command).unwrap()), (CHANGED, 2, 0), "{what}");
        assert!(lab.local_done().expect("they are free now").is_ok());
        lab.check_rest();
    }
}
