//! Tenants beside each other: nobody waits for all that another has, and nobody has more of a core than its share.

use std::time::Duration;

use ob_nvme::driver::ForeignService;
use ob_pushdown::target::FunctionLimits;
use ob_wire_nvme::Status;
use ob_wire_nvme::pushdown::{Function, Piece, RequestHeader};

use crate::lab::support::{Client, HOST};
use crate::lab::{AGAIN, DONE, Host, Lab, OBEY, READ, header, map_bytes, script, word};

const OTHER: &str = "nqn.2014-08.org.nvmexpress:uuid:99999999-2222-3333-4444-555555555555";
/// Requests of the one who has many, and reads of each.
const MANY: usize = 100;
const READS: u16 = 64;

#[test]
fn one_request_does_not_wait_for_all_of_another_tenant() {
    let mut lab = Lab::with(
        Default::default(),
        FunctionLimits {
            programs: ob_programs::Limits { share: 100_000, ..Default::default() },
            ..FunctionLimits::default()
        },
    );
    let (greedy, modest) = (lab.host(HOST, 9).io, lab.host(OTHER, 8).io);
    let programs = [greedy, modest].map(|io| lab.load(io, "obey", OBEY).unwrap());
    let files = [greedy, modest].map(|io| lab.map(io, (0, 1), 512, &[(0, 0, 512)]).unwrap());
    lab.rig.disk.is_held = true;
    let many = RequestHeader {
        reads_max: READS.into(),
        read_len_max: 512.into(),
        ..header(programs[0], (0, 0, 512))
    };
    for _ in 0..MANY {
        lab.begin_request(greedy, &many, &[(files[0], 1)], &script(&[[AGAIN, 0, 0, 0]]));
    }
    lab.run();
    let orders = script(&[[READ, 0, 0, 512], [READ, 0, 0, 512], [DONE, 0, 0, 0]]);
    let one = lab.begin_request(modest, &header(programs[1], (0, 0, 512)), &[(files[1], 1)], &orders);
    lab.run();
    assert_eq!(lab.functions.counts().running, MANY as u64 + 1);
    lab.rig.disk.is_held = false;
    lab.rig.settle();
    // Whose read is over first is called first; then each tenant in turn.
    let mut answered_after = None;
    for _ in 0..100_000 {
        lab.rig.settle();
        let did = lab.functions.turn(lab.rig.now, &mut lab.rig.target);
        lab.rig.settle();
        if !lab.rig.state(modest).inbox.is_empty() {
            answered_after = Some(lab.functions.counts().reads);
            break;
        }
        assert!(did, "nothing goes on");
    }
    let reads = answered_after.expect("it is answered");
    let all = MANY as u64 * u64::from(READS);
    assert!(reads < MANY as u64 + 3 * 64, "answered after {reads} reads, of {all}");
    assert!(lab.answer(modest, one).unwrap().is_ok());
    lab.check_rest();
}

#[test]
fn a_tenant_has_its_share_of_a_core() {
    let share = 10;
    let mut lab = Lab::with(
        Default::default(),
        FunctionLimits {
            programs: ob_programs::Limits { share, ..Default::default() },
            ..FunctionLimits::default()
        },
    );
    let (io, other) = (lab.host(HOST, 9).io, lab.host(OTHER, 8).io);
    let [program, others] = [io, other].map(|io| lab.load(io, "obey", OBEY).unwrap());
    let [file, theirs] = [io, other].map(|io| lab.map(io, (0, 1), 16 << 10, &[(0, 0, 16 << 10)]).unwrap());
    let endless = RequestHeader { reads_max: 1024.into(), ..header(program, (0, 0, 16 << 10)) };
    for _ in 0..20 {
        lab.begin_request(io, &endless, &[(file, 1)], &script(&[[AGAIN, 0, 0, 0]]));
    }
    lab.run();
    for _ in 0..10 {
        lab.run();
        assert_eq!(lab.functions.counts().over_share, 1, "it is one wait, however often it is asked");
    }
    let begin = lab.rig.now;
    let mut waited = 0;
    while lab.rig.now < begin + Duration::from_millis(500) {
        let due = lab.functions.next_due().expect("it goes on by itself");
        let step = due.since(lab.rig.now).max(Duration::from_micros(10));
        lab.rig.advance(step);
        lab.run();
        // Another tenant is served meanwhile.
        if waited % 50 == 0 {
            let answer = lab.request(other, &header(others, (0, 0, 8)), &[(theirs, 1)], &[]);
            assert!(answer.is_ok());
        }
        waited += 1;
    }
    let listed = lab.call(other, Function::List(0), &[], 192).unwrap().1;
    let few = word(&listed, 19);
    let listed = lab.call(io, Function::List(0), &[], 192).unwrap().1;
    let spent = word(&listed, 19);
    // A thousandth of a core is a million of fuel a second; what may be saved up, and one call that is begun with the last of it.
    let allowed = 500 * 1000 * u64::from(share) + 20 * 1000 * u64::from(share) + 200_000;
    assert!(spent > allowed / 2 && spent <= allowed, "{spent} of {allowed}; the other {few}");
    let waits = lab.functions.counts().over_share;
    assert!(waits > 1 && waits <= waited + 1, "{waits} in {waited} steps");
}

/// Fuel of all the programs that a host has.
fn fuel(lab: &mut Lab, io: Client) -> u64 {
    word(&lab.call(io, Function::List(0), &[], 192).unwrap().1, 19)
}

/// A host that comes anew all the time, whether it leaves its program behind or takes it along.
#[test]
fn a_tenant_that_connects_anew_has_no_more() {
    for takes_out in [false, true] {
        let (share, rounds) = (10, 100);
        let programs = ob_programs::Limits { share, ..Default::default() };
        let limits = FunctionLimits { programs, ..FunctionLimits::default() };
        let mut lab = Lab::with(Default::default(), limits);
        let mut spent = 0;
        for round in 0..rounds {
            let Host { io, admin, .. } = lab.host(HOST, 9);
            let program = match lab.number(io, Function::Find, b"obey") {
                Ok(program) => program,
                Err(_) => lab.load(io, "obey", OBEY).unwrap(),
            };
            let before = fuel(&mut lab, io);
            let file = lab.map(io, (0, 1), 16 << 10, &[(0, 0, 16 << 10)]).unwrap();
            let endless = RequestHeader { reads_max: 1024.into(), ..header(program, (0, 0, 16 << 10)) };
            for _ in 0..20 {
                lab.begin_request(io, &endless, &[(file, 1)], &script(&[[AGAIN, 0, 0, 0]]));
            }
            lab.run();
            spent += fuel(&mut lab, io) - before;
            if takes_out {
                assert_eq!(lab.number(io, Function::Unload(program), &[]), Ok(0));
            }
            lab.rig.hang_up(io);
            lab.rig.hang_up(admin);
            lab.run();
            assert_eq!((lab.functions.counts().running, lab.functions.counts().files), (0, 0));
            // Somebody else may come in between, who has all of his own.
            let other = lab.host(OTHER, 8);
            let theirs = lab.load(other.io, "obey", OBEY).unwrap();
            let mapped = lab.map(other.io, (0, 1), 512, &[(0, 0, 512)]).unwrap();
            let answer = lab.request(other.io, &header(theirs, (0, 0, 8)), &[(mapped, 1)], &[]);
            assert!(answer.is_ok(), "round {round}");
            lab.rig.hang_up(other.io);
            lab.rig.hang_up(other.admin);
            lab.rig.advance(Duration::from_millis(1));
        }
        let allowed = (rounds + 20) * 1000 * u64::from(share) + 200_000;
        assert!(spent > allowed / 2 && spent <= allowed, "{spent} of {allowed}, takes out: {takes_out}");
        lab.check_rest();
    }
}

/// Maps are checked a piece at a time: others have their turn in between, however many pieces have come.
#[test]
fn maps_are_checked_in_several_turns_and_charged() {
    let mut lab = Lab::new();
    let io = lab.host(HOST, 9).io;
    let program = lab.load(io, "obey", OBEY).unwrap();
    let file = lab.map(io, (0, 1), 512, &[(0, 0, 512)]).unwrap();
    // Holes of a file can be long, and extents need not be many for the check to cost what it costs.
    let wrong = vec![(0, 0, 512); 5000];
    let bytes = map_bytes((0, 1), 1 << 40, &wrong);
    let pieces: Vec<_> = (0..12)
        .map(|token| {
            let piece = Piece { token: 500 + token, offset: 0, whole: bytes.len() as u32 };
            lab.send(io, 1, Function::Map(piece), &bytes, 0)
        })
        .collect();
    lab.rig.run();
    let mut turns = 0;
    while lab.functions.turn(lab.rig.now, &mut lab.rig.target) {
        turns += 1;
        lab.rig.run();
    }
    assert!(turns >= pieces.len(), "{turns} turns for {} long pieces", pieces.len());
    for piece in pieces {
        assert_eq!(lab.answer(io, piece).unwrap().unwrap_err().0, Status::INVALID_FIELD.with_do_not_retry());
    }
    // The host has used its share for a while.
    let header = header(program, (0, 0, 512));
    let asked = lab.begin_request(io, &header, &[(file, 1)], &script(&[[DONE, 0, 0, 0]]));
    assert!(lab.answer(io, asked).is_none(), "it has to wait");
    assert_eq!(lab.functions.counts().over_share, 1);
    lab.rig.advance(Duration::from_millis(50));
    assert!(lab.answer(io, asked).unwrap().is_ok());
    lab.check_rest();
}

/// With its last piece all of a map is put in order once more, which is as much work as the longest piece is, and more.
#[test]
fn the_end_of_a_map_is_charged_and_ends_the_turn() {
    let mut lab = Lab::new();
    let io = lab.host(HOST, 9).io;
    let program = lab.load(io, "obey", OBEY).unwrap();
    let file = lab.map(io, (0, 1), 512, &[(0, 0, 512)]).unwrap();
    // Four maps that want one extent more. They lie beyond the namespace, which is seen at their end.
    let extents: Vec<_> = (0..21_000).map(|at| (at * 512, at * 1024, 512)).collect();
    let bytes = map_bytes((0, 1), 1 << 40, &extents);
    let (front, last) = bytes.split_at(bytes.len() - 24);
    let piece = |token, offset| Function::Map(Piece { token, offset, whole: bytes.len() as u32 });
    for token in 500..504 {
        for (offset, part) in (0..).step_by(126 << 10).zip(front.chunks(126 << 10)) {
            assert_eq!(lab.number(io, piece(token, offset), part), Ok(0));
        }
    }
    // Once that is paid for, a request is answered.
    let header = header(program, (0, 0, 512));
    let begin = |lab: &mut Lab| lab.begin_request(io, &header, &[(file, 1)], &script(&[[DONE, 0, 0, 0]]));
    let asked = begin(&mut lab);
    while lab.answer(io, asked).is_none() {
        lab.rig.advance(Duration::from_millis(10));
    }
    let pieces: Vec<_> =
        (500..504).map(|token| lab.send(io, 1, piece(token, front.len() as u32), last, 0)).collect();
    lab.rig.run();
    let mut turns = 0;
    while lab.functions.turn(lab.rig.now, &mut lab.rig.target) {
        turns += 1;
        lab.rig.run();
    }
    assert!(turns >= pieces.len(), "{turns} turns for the ends of {} long maps", pieces.len());
    for piece in pieces {
        assert_eq!(lab.answer(io, piece).unwrap().unwrap_err().0, Status::INVALID_FIELD.with_do_not_retry());
    }
    // Four extents came, and 84,000 were looked at: more than can be saved up.
    let waited = lab.functions.counts().over_share;
    let asked = begin(&mut lab);
    assert!(lab.answer(io, asked).is_none(), "it has to wait");
    assert_eq!(lab.functions.counts().over_share, waited + 1);
    while lab.answer(io, asked).is_none() {
        lab.rig.advance(Duration::from_millis(10));
    }
    lab.check_rest();
}
