//! Sessions above a kernel, whose controller stays when they go: what they close, and what those leave behind that are killed.

use std::sync::Arc;
use std::time::Duration;

use ob_nvme::initiator::block_on;
use ob_pushdown::client::{File, FileMap, MapExtent, MapSource, Program, Query, Read, Session};
use ob_pushdown::target::{FunctionCounts, FunctionLimits};
use ob_wire_nvme::pushdown::{Function, Run};
use ob_wire_nvme::{NamespaceId, Status};

use crate::lab::remote::Remote;
use crate::lab::support::{Client, HOST};
use crate::lab::{DONE, Lab, OBEY, body, end, header, script};

const LIMIT: Status = Status::PUSHDOWN_LIMIT.with_do_not_retry();
const UNKNOWN: Status = Status::PUSHDOWN_UNKNOWN.with_do_not_retry();
/// More than there may be, of each kind, by what each of them has.
const SESSIONS: u64 = 3000;
const EXTENTS: u64 = 100;
const NAME: &str = "file";

/// A file that nobody writes.
struct Fixed(Arc<FileMap>);

impl Fixed {
    fn source() -> Arc<dyn MapSource> {
        let extents =
            (0..EXTENTS).map(|at| MapExtent { at: at * 512, offset: at * 1024, len: 512 }).collect();
        let map = FileMap { namespace: NamespaceId(1), version: 1, identity: 7, len: EXTENTS * 512, extents };
        Arc::new(Self(Arc::new(map)))
    }
}

impl MapSource for Fixed {
    fn current(&self) -> Option<Arc<FileMap>> {
        Some(Arc::clone(&self.0))
    }
}

/// A process above the kernel.
struct Process<'card> {
    session: Session<&'card Remote>,
    query: Query,
    _files: [File; 2],
    _program: Program,
}

impl<'card> Process<'card> {
    fn begin(card: &'card Remote) -> Self {
        let session = block_on(Session::begin(card, NamespaceId(1))).unwrap();
        let program = session.program("obey", Some(OBEY.to_vec()));
        let files = [session.named(NAME), session.mapped(Fixed::source())];
        let query = session.query(&program, &files).unwrap();
        Self { session, query, _files: files, _program: program }
    }

    /// Asks, by a plan.
    fn ask(&self) {
        let first = Read { file: 1, offset: 0, len: 512 };
        let answer = block_on(self.session.ask(&self.query, first, &[], 64)).unwrap();
        assert_eq!(answer.reads, 1);
    }
}

fn card() -> Remote {
    Remote::start(vec![(NAME.to_owned(), vec![5; 4096])])
}

/// What there is: files, extents, plans.
fn kept(counts: FunctionCounts) -> (u64, u64, u64) {
    (counts.files, counts.extents, counts.plans)
}

#[test]
fn sessions_that_end_leave_nothing_behind() {
    let card = card();
    for round in 0..SESSIONS {
        let process = Process::begin(&card);
        process.ask();
        if round == 0 {
            assert_eq!(kept(card.counts()), (2, EXTENTS, 1));
        }
        block_on(process.session.end());
        assert!(round % 100 > 0 || kept(card.counts()) == (0, 0, 0), "{:?}", card.counts());
        if round % 500 == 0 {
            // Who goes on has it all opened anew; and what was dropped before is told as well.
            process.ask();
            assert_eq!(kept(card.counts()), (2, EXTENTS, 1));
            let Process { session, .. } = process;
            block_on(session.end());
            block_on(session.end());
        }
    }
    let counts = card.counts();
    assert_eq!((kept(counts), counts.displaced), ((0, 0, 0), 0), "{counts:?}");
    assert!(!card.failures.lock().unwrap().contains(&LIMIT));
}

#[test]
fn what_killed_processes_leave_behind_makes_room() {
    let card = card();
    let (busy, idle) = (Process::begin(&card), Process::begin(&card));
    idle.ask();
    for round in 0..SESSIONS {
        busy.ask();
        let process = Process::begin(&card);
        process.ask();
        // To find the program, to open both files, to prepare and to run: nothing was refused.
        assert_eq!(process.session.counts().commands, 6, "round {round}");
        // Killed: dropped, it tells nobody anything.
        drop(process);
        card.wait(Duration::from_millis(50));
    }
    assert_eq!(busy.session.counts().renewed, 0, "what is used stays");
    assert_eq!(idle.session.counts().renewed, 0);
    idle.ask();
    assert!(idle.session.counts().renewed > 0, "what is not has made room, and is opened anew");
    let counts = card.counts();
    assert!(counts.displaced > SESSIONS && counts.files <= 4096 && counts.plans <= 256, "{counts:?}");
    assert!(counts.extents <= 1 << 18, "{counts:?}");
    assert!(!card.failures.lock().unwrap().contains(&LIMIT));
}

const DONE_ORDERS: [[u64; 4]; 1] = [[DONE, 0, 0, 0]];

fn with(limits: FunctionLimits) -> (Lab, Client, u64) {
    let mut lab = Lab::with(Default::default(), limits);
    let io = lab.host(HOST, 9).io;
    // A clock that has just begun knows of nothing that was long ago.
    lab.rig.advance(Duration::from_secs(100));
    let program = lab.load(io, "obey", OBEY).unwrap();
    (lab, io, program)
}

/// A file of so many extents.
fn map(lab: &mut Lab, io: Client, (file, version): (u64, u64), extents: u64) -> Result<u64, Status> {
    let extents: Vec<_> = (0..extents).map(|at| (at * 512, at * 1024, 512)).collect();
    lab.map(io, (file, version), 1 << 20, &extents)
}

/// What comes of a request over a file.
fn ask(lab: &mut Lab, io: Client, program: u64, file: u64) -> Result<(), Status> {
    let answer = lab.request(io, &header(program, (0, 0, 512)), &[(file, 1)], &script(&DONE_ORDERS));
    answer.map(drop).map_err(|failed| end(Err(failed)).0)
}

#[test]
fn the_file_that_was_used_least_recently_makes_room_and_only_after_a_while() {
    let (mut lab, io, program) = with(FunctionLimits { open_max: 3, ..FunctionLimits::default() });
    let files = [(); 3].map(|()| map(&mut lab, io, (0, 1), 1).unwrap());
    lab.rig.advance(Duration::from_secs(5));
    assert_eq!(ask(&mut lab, io, program, files[0]), Ok(()));
    lab.rig.advance(Duration::from_millis(4900));
    assert_eq!(map(&mut lab, io, (0, 1), 1), Err(LIMIT), "a request may still want them");
    lab.rig.advance(Duration::from_millis(100));
    let newer = [(); 2].map(|()| map(&mut lab, io, (0, 1), 1).unwrap());
    assert_eq!(map(&mut lab, io, (0, 1), 1), Err(LIMIT), "the first one was used since");
    for (file, expected) in
        files.iter().zip([Ok(()), Err(UNKNOWN), Err(UNKNOWN)]).chain(newer.iter().zip([Ok(()); 2]))
    {
        assert_eq!(ask(&mut lab, io, program, *file), expected);
    }
    // By name it is the same.
    lab.folder("shared");
    lab.file("shared/file", &[1; 512]);
    assert_eq!(lab.number(io, Function::Open, b"file"), Err(LIMIT));
    lab.rig.advance(Duration::from_secs(10));
    assert!(lab.number(io, Function::Open, b"file").is_ok());
    assert_eq!(ask(&mut lab, io, program, files[0]), Err(UNKNOWN), "it was asked for before the others");
    assert_eq!((lab.functions.counts().files, lab.functions.counts().displaced), (3, 3));
    lab.check_rest();
}

#[test]
fn a_file_that_a_request_has_makes_no_room() {
    let (mut lab, io, program) = with(FunctionLimits { open_max: 1, ..FunctionLimits::default() });
    let file = map(&mut lab, io, (0, 1), 1).unwrap();
    lab.rig.disk.is_held = true;
    let header = header(program, (0, 0, 512));
    let command = lab.begin_request(io, &header, &[(file, 1)], &script(&DONE_ORDERS));
    lab.run();
    // It has taken too long by now, and that is seen later in the turn in which somebody wants room.
    lab.rig.now = lab.rig.now + Duration::from_millis(10_500);
    assert_eq!(map(&mut lab, io, (0, 1), 1), Err(LIMIT));
    let (status, ..) = end(lab.answer(io, command).unwrap());
    assert_eq!(status, Status::PUSHDOWN_TIME.with_do_not_retry());
    lab.rig.release_disk();
    assert_eq!(map(&mut lab, io, (0, 1), 1), Err(LIMIT), "it was in use a moment ago");
    lab.rig.advance(Duration::from_secs(10));
    assert!(map(&mut lab, io, (0, 1), 1).is_ok());
    lab.check_rest();
}

#[test]
fn extents_make_room_for_others_and_never_for_those_of_their_own_file() {
    let (mut lab, io, program) = with(FunctionLimits { extents_max: 8, ..FunctionLimits::default() });
    let one = map(&mut lab, io, (0, 1), 4).unwrap();
    let other = map(&mut lab, io, (0, 1), 4).unwrap();
    assert_eq!(map(&mut lab, io, (one, 2), 6), Err(LIMIT));
    lab.rig.advance(Duration::from_secs(10));
    assert_eq!(map(&mut lab, io, (one, 2), 6), Ok(one));
    assert_eq!(ask(&mut lab, io, program, other), Err(UNKNOWN));
    assert_eq!(lab.functions.counts().extents, 6);
    lab.rig.advance(Duration::from_secs(10));
    // More than there may be, whoever makes room.
    assert_eq!(map(&mut lab, io, (one, 3), 9), Err(LIMIT));
    assert_eq!(lab.functions.counts().extents, 6, "what it had before stays");
    assert_eq!(map(&mut lab, io, (one, 3), 8), Ok(one));
    lab.check_rest();
}

#[test]
fn the_plan_that_was_run_least_recently_makes_room() {
    let (mut lab, io, program) = with(FunctionLimits { plans_max: 2, ..FunctionLimits::default() });
    let file = map(&mut lab, io, (0, 1), 1).unwrap();
    let request = body(&header(program, (0, 0, 512)), &[(file, 1)], &script(&DONE_ORDERS));
    let plans = [(); 2].map(|()| lab.number(io, Function::Prepare, &request).unwrap());
    lab.rig.advance(Duration::from_secs(9));
    let run = |lab: &mut Lab, plan| {
        let answer = lab.call(io, Function::Run(Run::new(plan, None, &[]).unwrap()), &[], 8);
        answer.map(drop).map_err(|failed| end(Err(failed)).0)
    };
    assert_eq!(run(&mut lab, plans[0]), Ok(()));
    assert_eq!(lab.number(io, Function::Prepare, &request), Err(LIMIT));
    lab.rig.advance(Duration::from_secs(1));
    let newer = lab.number(io, Function::Prepare, &request).unwrap();
    assert_eq!(lab.number(io, Function::Prepare, &request), Err(LIMIT));
    assert_eq!(run(&mut lab, plans[1]), Err(UNKNOWN));
    assert_eq!((run(&mut lab, plans[0]), run(&mut lab, newer)), (Ok(()), Ok(())));
    // What cannot be prepared displaces nothing.
    lab.rig.advance(Duration::from_secs(20));
    let wrong = body(&header(program, (0, 0, 512)), &[(file + 100, 1)], &script(&DONE_ORDERS));
    assert_eq!(lab.number(io, Function::Prepare, &wrong), Err(UNKNOWN));
    assert_eq!((lab.functions.counts().plans, lab.functions.counts().displaced), (2, 1));
    lab.check_rest();
}
