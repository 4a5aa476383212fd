//! What programs ask for, and what they are told and shown.

use std::time::Duration;

use ob_nvme::target::TargetConfig;
use ob_programs::Limits;
use ob_pushdown::target::FunctionLimits;
use ob_wire_nvme::Status;
use ob_wire_nvme::pushdown::{Function, RequestHeader, Run};

use crate::lab::support::{HOST, pattern};
use crate::lab::{
    AGAIN, COPY, DONE, FAULT, FOLDER, LOOP, Lab, OBEY, READ, RETURN, body, end, header, script, seen, word,
};

const RANGE: Status = Status::PUSHDOWN_RANGE.with_do_not_retry();
const INVALID: Status = Status::INVALID_FIELD.with_do_not_retry();
const UNKNOWN: Status = Status::PUSHDOWN_UNKNOWN.with_do_not_retry();

/// A lab with a program, and two files of 16 KiB.
fn lab() -> (Lab, crate::lab::support::Client, u64, [(u64, u64); 2]) {
    let mut lab = Lab::new();
    let io = lab.host(HOST, 9).io;
    let len = 64 << 10;
    lab.rig.disk.bytes[..len].copy_from_slice(&pattern(5, len));
    let program = lab.load(io, "obey", OBEY).unwrap();
    let files =
        [0, 16 << 10].map(|place| (lab.map(io, (0, 1), 16 << 10, &[(0, place, 16 << 10)]).unwrap(), 1));
    (lab, io, program, files)
}

#[test]
fn reads_that_may_not_be_end_a_chain() {
    let (mut lab, io, program, files) = lab();
    let first = header(program, (1, 0, 512));
    let wrong = [
        ([READ, 2, 0, 512], 2),
        ([READ, u64::MAX, 0, 512], u32::MAX),
        ([READ, 1 << 32, 0, 512], 0),
        ([READ, 0, 0, 0], 0),
        ([READ, 0, 0, (16 << 10) + 1], 0),
        ([READ, 0, 0, u64::MAX], 0),
        ([READ, 1, u64::MAX, 2], 1),
    ];
    for (order, detail) in wrong {
        let answer = lab.request(io, &first, &files, &script(&[order, [DONE, 0, 0, 0]]));
        assert_eq!(end(answer), (RANGE, 1, detail), "{order:?}");
    }
    // Behind the end there is nothing, and the program is told so.
    for order in [[READ, 1, u64::MAX - 10, 5], [READ, 1, u64::MAX - 1000, 1000], [READ, 1, 16 << 10, 1]] {
        let answer = lab.request(io, &first, &files, &script(&[order, [DONE, 0, 0, 0]])).unwrap();
        assert_eq!((answer.0, seen(&answer.1)), (2, (0, 0)), "{order:?}");
    }
    // The same of the first read; a file that there is not is seen before.
    for (file, offset, len) in [(0, 0, 0), (0, 0, (16 << 10) + 1), (1, u64::MAX, u32::MAX)] {
        let answer = lab.request(io, &header(program, (file, offset, len)), &files, &[]);
        assert_eq!(end(answer), (RANGE, 0, u32::from(file)), "{file} {offset} {len}");
    }
    assert_eq!(end(lab.request(io, &header(program, (2, 0, 512)), &files, &[])).0, INVALID);
    assert_eq!(end(lab.request(io, &first, &[], &[])).0, INVALID);
    assert_eq!(end(lab.request(io, &first, &[files[0]; 65], &[])).0, INVALID);
    assert!(lab.request(io, &header(program, (63, 0, 8)), &[files[0]; 64], &[]).is_ok());
    for (read_len_max, reads_max) in [((128 << 10) + 1, 0), (u32::MAX, 0), (0, 1025), (0, u16::MAX)] {
        let header =
            RequestHeader { read_len_max: read_len_max.into(), reads_max: reads_max.into(), ..first };
        assert_eq!(end(lab.request(io, &header, &files, &[])).0, INVALID, "{read_len_max} {reads_max}");
    }
    lab.check_rest();
}

#[test]
fn programs_that_do_not_end_well_are_told_so() {
    let (mut lab, io, program, files) = lab();
    let first = header(program, (0, 0, 512));
    let status = |status: Status| status.with_do_not_retry();
    let returned = lab.request(io, &first, &files, &script(&[[RETURN, 0x5_0000_004D, 0, 0]]));
    assert_eq!(end(returned), (status(Status::PUSHDOWN_PROGRAM), 1, 0x4D));
    let again = lab.request(io, &first, &files, &script(&[[AGAIN, 0, 0, 0]]));
    assert_eq!(end(again), (status(Status::PUSHDOWN_READS), 64, 0));
    let few = RequestHeader { reads_max: 3.into(), ..first };
    let again = lab.request(io, &few, &files, &script(&[[AGAIN, 0, 0, 0]]));
    assert_eq!(end(again), (status(Status::PUSHDOWN_READS), 3, 0));
    let reads = script(&[[READ, 0, 0, 8], [READ, 1, 8, 8], [DONE, 0, 0, 0]]);
    assert_eq!(lab.request(io, &few, &files, &reads).unwrap().0, 3, "as many as it may");
    let forever = lab.request(io, &first, &files, &script(&[[LOOP, 0, 0, 0]]));
    assert_eq!(end(forever), (status(Status::PUSHDOWN_FUEL), 1, 0));
    let (found, reads, at) = end(lab.request(io, &first, &files, &script(&[[FAULT, 512, 0, 0]])));
    assert_eq!((found, reads), (status(Status::PUSHDOWN_FAULT), 1));
    assert!(at > 0, "the instruction");
    let fine = lab.request(io, &first, &files, &script(&[[FAULT, 511, 0, 0]]));
    assert_eq!(end(fine).0, RANGE, "nothing is wrong with that, but that it asks for a read of nothing then");
    let within = lab.request(io, &first, &files, &script(&[[FAULT, u64::MAX, 0, 0]]));
    assert_eq!(end(within).0, status(Status::PUSHDOWN_FAULT));
    lab.check_rest();
}

#[test]
fn all_calls_together_have_so_much_fuel() {
    let limits = FunctionLimits::default();
    let fuel = u64::from(limits.programs.call_fuel) * 64;
    let (mut lab, io, program, files) = lab();
    // Each call looks at 16 KiB, again and again: so many reads would cost more than there is.
    let header = RequestHeader { reads_max: 1024.into(), ..header(program, (0, 0, 16 << 10)) };
    let (status, reads, _) = end(lab.request(io, &header, &files, &script(&[[AGAIN, 0, 0, 0]])));
    let listed = lab.call(io, Function::List(0), &[], 192).unwrap().1;
    let spent = word(&listed, 19);
    if status == Status::PUSHDOWN_FUEL.with_do_not_retry() {
        assert!(reads > 1 && spent <= fuel, "{reads} reads, {spent} of {fuel}");
    } else {
        assert_eq!((status, reads), (Status::PUSHDOWN_READS.with_do_not_retry(), 1024));
        assert!(spent <= fuel, "{spent} of {fuel}");
    }
}

#[test]
fn nothing_of_others_is_in_a_scratch() {
    let (mut lab, io, program, files) = lab();
    let other = lab.host("nqn.2014-08.org.nvmexpress:uuid:99999999-2222-3333-4444-555555555555", 8).io;
    let theirs = lab.load(other, "obey", OBEY).unwrap();
    let file = lab.map(other, (0, 1), 512, &[(0, 60 << 10, 512)]).unwrap();
    for round in 0..8 {
        // One leaves as much as it can behind; the other has its own and zeros.
        let dirty = RequestHeader { read_len_max: 0.into(), ..header(program, (0, 0, 4096)) };
        let copied = lab.request(io, &dirty, &files, &script(&[[COPY, 0, 0, 0]])).unwrap().1;
        assert_eq!(copied[2048..], pattern(5, 64 << 10)[..2048]);
        let scratch = script(&[[DONE, 0, 0, 0]]);
        let clean = lab.request(other, &header(theirs, (0, 0, 8)), &[(file, 1)], &scratch).unwrap().1;
        assert_eq!(clean.len(), 4096);
        assert_eq!(seen(&clean).0, 8, "its data is no more than it asked for");
        assert!(clean[32..].iter().all(|byte| *byte == 0), "round {round}: {:?}", &clean[..64]);
        // By a plan, whose scratch another run has filled.
        let prepared = body(&header(theirs, (0, 0, 8)), &[(file, 1)], &[7; 4]);
        let plan = lab.number(other, Function::Prepare, &prepared).unwrap();
        let run = |input: &[u8]| Function::Run(Run::new(plan, None, input).unwrap());
        // The first eight bytes count calls: beyond the last order the program gives up.
        assert_eq!(end(lab.call(other, run(&[0xFF; 20]), &[], 4096)).2, 99);
        assert_eq!(end(lab.call(other, run(&[]), &[], 4096)).2, 99, "the plan's own scratch: 7, 7, 7, 7");
        let clean = lab.call(other, run(&[0; 8]), &[], 4096).unwrap().1;
        assert!(clean[32..].iter().all(|byte| *byte == 0));
        assert_eq!(lab.number(other, Function::Forget(plan), &[]), Ok(0));
        assert_eq!(end(lab.call(other, run(&[]), &[], 4096)).0, UNKNOWN);
    }
    lab.check_rest();
}

#[test]
fn an_answer_is_as_long_as_the_client_has_room() {
    let (mut lab, io, program, files) = lab();
    let body = body(&header(program, (0, 0, 512)), &files, &script(&[[DONE, 0, 0, 0]]));
    let plan = lab.number(io, Function::Prepare, &body).unwrap();
    for len in [4, 24, 512, 4096, 8192] {
        let run = Function::Run(Run::new(plan, None, &[]).unwrap());
        let (reads, scratch) = lab.call(io, run, &[], len).unwrap();
        assert_eq!((reads, scratch.len()), (1, len.min(4096) as usize));
        let command = lab.send(io, 1, Function::Request(len), &body, 0);
        let (_, scratch) = lab.answer(io, command).unwrap().unwrap();
        assert_eq!(scratch.len(), len.min(4096) as usize);
    }
    lab.check_rest();
}

#[test]
fn a_plan_says_what_a_request_does_not() {
    let (mut lab, io, program, files) = lab();
    let orders = script(&[[AGAIN, 0, 0, 0]]);
    let planned =
        RequestHeader { reads_max: 5.into(), read_len_max: 1024.into(), ..header(program, (1, 512, 1024)) };
    let plan = lab.number(io, Function::Prepare, &body(&planned, &files, &orders)).unwrap();
    let of_plan = RequestHeader { plan: plan.into(), ..RequestHeader::default() };
    let reads = |answer| end(answer).1;
    let again = Status::PUSHDOWN_READS.with_do_not_retry();
    assert_eq!(end(lab.request(io, &of_plan, &[], &[])), (again, 5, 0));
    let fewer = RequestHeader { reads_max: 2.into(), ..of_plan };
    assert_eq!(reads(lab.request(io, &fewer, &[], &[])), 2, "a request has its own bounds before the plan's");
    let longer = RequestHeader { first_len: 2048.into(), ..of_plan };
    assert_eq!(end(lab.request(io, &longer, &[], &[])).0, RANGE);
    let longer = RequestHeader { read_len_max: 2048.into(), ..longer };
    assert_eq!(end(lab.request(io, &longer, &[], &[])), (again, 5, 0));
    // Its first read, with its file and offset; another, with its own.
    let copy = script(&[[COPY, 0, 0, 0]]);
    let all = pattern(5, 64 << 10);
    let scratch = lab.request(io, &of_plan, &[], &copy).unwrap().1;
    assert_eq!(scratch[2048..][..1024], all[(16 << 10) + 512..][..1024]);
    let elsewhere =
        RequestHeader { first_len: 8.into(), first_offset: 4096.into(), first: 0.into(), ..of_plan };
    assert_eq!(lab.request(io, &elsewhere, &[], &copy).unwrap().1[2048..][..8], all[4096..][..8]);
    let nowhere = RequestHeader { first_len: 8.into(), first: 2.into(), ..of_plan };
    assert_eq!(end(lab.request(io, &nowhere, &[], &copy)), (RANGE, 0, 2));
    let run = Run::new(plan, Some(1024), &[]).unwrap();
    assert_eq!(end(lab.call(io, Function::Run(run), &[], 64)), (again, 5, 0));
    // Beside a plan there is nothing to be said of programs and files; and a plan is not made of a plan.
    let both = RequestHeader { program: program.into(), ..of_plan };
    assert_eq!(end(lab.request(io, &both, &[], &[])).0, INVALID);
    assert_eq!(end(lab.request(io, &of_plan, &files, &[])).0, INVALID);
    assert_eq!(lab.number(io, Function::Prepare, &body(&of_plan, &[], &[])), Err(INVALID));
    lab.check_rest();
}

/// What the device has read is what the program sees, where it lies: nothing is copied in between.
#[test]
fn a_program_sees_the_memory_that_the_device_has_read_into() {
    // Who has no share of a core waits with what was read.
    let limits =
        FunctionLimits { programs: Limits { share: 0, ..Limits::default() }, ..FunctionLimits::default() };
    let mut lab = Lab::with(TargetConfig::default(), limits);
    lab.folder(FOLDER);
    lab.file(&format!("{FOLDER}/file"), &[3; 8192]);
    let io = lab.host(HOST, 9).io;
    let program = lab.load(io, "obey", OBEY).unwrap();
    let mapped = (lab.map(io, (0, 1), 8192, &[(0, 4096, 4096), (4096, 512, 2048)]).unwrap(), 1);
    let named = (lab.number(io, Function::Open, b"file").unwrap(), 0);
    // Within an extent, and by name; where the read begins in its block; bytes; and those of whole blocks.
    for (file, offset, len, blocks) in
        [(mapped, 0, 512, 512), (mapped, 700, 600, 1024), (named, 4096, 2048, 2048), (named, 513, 100, 512)]
    {
        let command =
            lab.begin_request(io, &header(program, (0, offset, len)), &[file], &script(&[[DONE, 0, 0, 0]]));
        lab.run();
        let read_into = if file == mapped {
            lab.rig.disk.read_into.clone()
        } else {
            lab.files.device().read_into.clone()
        };
        assert_eq!(read_into.len(), blocks);
        let begin = read_into.start + offset as usize % 512;
        assert_eq!(lab.functions.views().first(), Some(&(begin..begin + len as usize)), "{offset}, {len}");
        lab.rig.advance(Duration::from_secs(11));
        assert_eq!(end(lab.answer(io, command).unwrap()).0, Status::PUSHDOWN_TIME.with_do_not_retry());
    }
    // Over two extents: the device has put the second part behind the first.
    let command =
        lab.begin_request(io, &header(program, (0, 3584, 1024)), &[mapped], &script(&[[DONE, 0, 0, 0]]));
    lab.run();
    let second = lab.rig.disk.read_into.clone();
    assert_eq!(second.len(), 512);
    assert_eq!(lab.functions.views().first(), Some(&(second.start - 512..second.end)));
    lab.rig.advance(Duration::from_secs(11));
    assert!(lab.answer(io, command).unwrap().is_err());
    lab.check_rest();
}
