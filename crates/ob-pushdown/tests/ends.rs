//! What ends chains from outside: files, maps, namespaces, reservations, hosts, time.

use std::time::Duration;

use ob_nvme::target::TargetConfig;
use ob_wire_nvme::io::{
    Abort, PersistChange, ReservationAcquire, ReservationAcquireAction, ReservationRegister,
    ReservationRegisterAction, ReservationType,
};
use ob_wire_nvme::pushdown::Function;
use ob_wire_nvme::{CommandId, DataPointer, NamespaceId, QueueId, Status};

use crate::lab::support::{HOST, namespace};
use crate::lab::{DONE, Host, Lab, OBEY, READ, end, header, script};

const CHANGED: Status = Status::PUSHDOWN_CHANGED.with_do_not_retry();
const UNKNOWN: Status = Status::PUSHDOWN_UNKNOWN.with_do_not_retry();
const OTHER: &str = "nqn.2014-08.org.nvmexpress:uuid:99999999-2222-3333-4444-555555555555";

/// A chain of two reads, of the first file and of the second, that waits for its first; its files.
fn begun() -> (Lab, Host, CommandId, [(u64, u64); 2]) {
    let mut lab = Lab::new();
    let host = lab.host(HOST, 9);
    let program = lab.load(host.io, "obey", OBEY).unwrap();
    let files = [0, 4096].map(|place| (lab.map(host.io, (0, 1), 4096, &[(0, place, 4096)]).unwrap(), 1));
    lab.rig.disk.is_held = true;
    let orders = script(&[[READ, 1, 0, 512], [DONE, 0, 0, 0]]);
    let command = lab.begin_request(host.io, &header(program, (0, 0, 512)), &files, &orders);
    lab.run();
    assert_eq!((lab.rig.disk.queue.len(), lab.functions.counts().running), (1, 1));
    (lab, host, command, files)
}

/// Lets one read go, and everything else happen.
fn let_one_go(lab: &mut Lab) {
    lab.rig.complete(0);
    lab.run();
}

#[test]
fn a_chain_that_nothing_happens_to_is_answered() {
    let (mut lab, host, command, _) = begun();
    let_one_go(&mut lab);
    let_one_go(&mut lab);
    assert_eq!(lab.answer(host.io, command).unwrap().unwrap().0, 2);
    lab.check_rest();
}

/// Whether a file was read already or not, and whether it will be: a chain that names it ends.
#[test]
fn closing_or_mapping_a_file_ends_the_chains_that_name_it() {
    for reads_before in 0..2 {
        for which in 0..2 {
            for is_closed in [true, false] {
                let (mut lab, host, command, files) = begun();
                for _ in 0..reads_before {
                    let_one_go(&mut lab);
                }
                let (file, _) = files[which];
                if is_closed {
                    let extents = lab.functions.counts().extents;
                    assert_eq!(lab.number(host.io, Function::Close(file), &[]), Ok(0));
                    assert!(lab.functions.counts().extents < extents, "the chain keeps none of them");
                } else {
                    assert_eq!(lab.map(host.io, (file, 2), 4096, &[(0, 8192, 4096)]), Ok(file));
                }
                lab.rig.release_disk();
                let (status, _, detail) = end(lab.answer(host.io, command).unwrap());
                let what = format!("{reads_before} {which} {is_closed}");
                assert_eq!((status, detail), (CHANGED, which as u32), "{what}");
                assert_eq!(lab.functions.counts().changed, 1);
                lab.check_rest();
            }
        }
    }
}

#[test]
fn another_namespace_of_the_same_number_is_not_read() {
    for reads_before in 0..2 {
        let (mut lab, host, command, _) = begun();
        for _ in 0..reads_before {
            let_one_go(&mut lab);
        }
        let subsystem = lab.rig.subsystem;
        let reads = lab.rig.disk.log.len();
        lab.rig.target.control_mut().remove_namespace(subsystem, 1).unwrap();
        lab.rig.target.control_mut().add_namespace(subsystem, &namespace(1, 8)).unwrap();
        lab.rig.release_disk();
        let answer = lab.answer(host.io, command).unwrap();
        if reads_before == 1 {
            assert!(answer.is_ok(), "its last read was admitted before");
        } else {
            assert_eq!(end(answer).0, CHANGED);
        }
        assert_eq!(lab.rig.disk.log.len(), reads + 1, "what was on the device, and nothing more");
        lab.check_rest();
    }
}

#[test]
fn a_namespace_that_is_gone_has_no_chains() {
    let (mut lab, host, command, files) = begun();
    let subsystem = lab.rig.subsystem;
    lab.rig.target.control_mut().remove_namespace(subsystem, 1).unwrap();
    lab.rig.release_disk();
    assert_eq!(end(lab.answer(host.io, command).unwrap()).0, CHANGED);
    // With no namespace named the command itself is admitted.
    let program = {
        let command = lab.send(host.io, 0, Function::Find, b"obey", 0);
        lab.answer(host.io, command).unwrap().unwrap().0
    };
    let body = crate::lab::body(&header(program, (0, 0, 512)), &files, &[]);
    let command = lab.send(host.io, 0, Function::Request(8), &body, 0);
    assert_eq!(end(lab.answer(host.io, command).unwrap()).0, CHANGED);
    lab.check_rest();
}

fn reserve(lab: &mut Lab, host: Host) {
    let pointer = DataPointer::InCapsule { offset: 0, len: 16 };
    let register = ReservationRegister {
        action: ReservationRegisterAction::Register,
        ignore_key: false,
        persist: PersistChange::Keep,
    };
    let acquire = ReservationAcquire {
        action: ReservationAcquireAction::Acquire,
        ignore_key: false,
        kind: ReservationType::ExclusiveAccess,
    };
    for (which, keys) in [(0, [0, 5_u64]), (1, [5, 0])] {
        let command = lab.rig.command_id(host.io);
        let entry = if which == 0 {
            register.encode(command, NamespaceId(1), pointer)
        } else {
            acquire.encode(command, NamespaceId(1), pointer)
        };
        lab.rig.submit(host.io, &entry, &keys.map(u64::to_le_bytes).concat());
        assert!(lab.answer(host.io, command).unwrap().is_ok());
    }
}

#[test]
fn who_may_not_read_a_namespace_has_no_chains_there() {
    let (mut lab, host, command, files) = begun();
    let other = lab.host(OTHER, 8);
    reserve(&mut lab, other);
    lab.rig.release_disk();
    let (status, reads, _) = end(lab.answer(host.io, command).unwrap());
    let conflict = Status::RESERVATION_CONFLICT;
    assert!(status.is(conflict) && reads == 1, "{status} after {reads}");
    // Nor may the command name it; and without naming it, its maps are of it.
    let body = crate::lab::body(&header(1, (0, 0, 512)), &files, &[]);
    let refused = lab.call(host.io, Function::Request(8), &body, 0).unwrap_err();
    assert!(refused.0.is(conflict), "{refused:?}");
    let find = lab.send(host.io, 0, Function::Find, b"obey", 0);
    let program = lab.answer(host.io, find).unwrap().unwrap().0;
    let body = crate::lab::body(&header(program, (0, 0, 512)), &files, &[]);
    let command = lab.send(host.io, 0, Function::Request(8), &body, 0);
    assert!(end(lab.answer(host.io, command).unwrap()).0.is(conflict));
    lab.check_rest();
}

#[test]
fn what_is_aborted_or_left_is_forgotten() {
    // Aborted: answered at once, though its read is under way.
    let (mut lab, host, command, _) = begun();
    let abort = lab.rig.command_id(host.admin);
    let entry = Abort { queue: QueueId(1), command }.encode(abort);
    lab.rig.submit(host.admin, &entry, &[]);
    let (status, ..) = end(lab.answer(host.io, command).unwrap());
    assert!(status.is(Status::ABORT_REQUESTED), "{status}");
    assert_eq!(lab.functions.counts().running, 0);
    lab.rig.release_disk();
    lab.check_rest();

    // Left: the controller takes all that it had with it.
    let (mut lab, host, _, files) = begun();
    let body = crate::lab::body(&header(1, (0, 0, 512)), &files, &[]);
    assert!(lab.number(host.io, Function::Prepare, &body).is_err());
    lab.rig.hang_up(host.io);
    lab.rig.hang_up(host.admin);
    lab.run();
    assert_eq!(lab.functions.counts().running, 0);
    lab.rig.release_disk();
    lab.run();
    let counts = lab.functions.counts();
    assert_eq!((counts.files, counts.plans, counts.gone), (0, 0, 1), "{counts:?}");
    assert_eq!(lab.rig.target.memory_used(), 0);
    // Its programs stay with the host; its numbers do not, even if it knows them.
    let host = lab.host(HOST, 9);
    assert!(lab.number(host.io, Function::Find, b"obey").is_ok());
    let other = lab.host(OTHER, 8);
    assert_eq!(lab.number(other.io, Function::Find, b"obey"), Err(UNKNOWN));
    let program = lab.load(other.io, "obey", OBEY).unwrap();
    for who in [host, other] {
        let program =
            if who.io == host.io { lab.number(host.io, Function::Find, b"obey").unwrap() } else { program };
        for file in files {
            let answer = lab.request(who.io, &header(program, (0, 0, 512)), &[file], &[]);
            assert_eq!(end(answer).0, UNKNOWN);
        }
    }
}

#[test]
fn a_host_cannot_use_what_another_has() {
    let (mut lab, host, command, files) = begun();
    let same = lab.host(HOST, 10);
    let other = lab.host(OTHER, 8);
    lab.rig.release_disk();
    assert!(lab.answer(host.io, command).unwrap().is_ok());
    let program = lab.number(host.io, Function::Find, b"obey").unwrap();
    let body = |program| crate::lab::body(&header(program, (0, 0, 512)), &files, &script(&[[DONE, 0, 0, 0]]));
    let plan = lab.number(host.io, Function::Prepare, &body(program)).unwrap();
    for who in [same, other] {
        let theirs = lab.load(who.io, "obey", OBEY).unwrap();
        assert_eq!(lab.number(who.io, Function::Prepare, &body(theirs)), Err(UNKNOWN), "its files");
        assert_eq!(end(lab.call(who.io, Function::Request(4096), &body(theirs), 0)).0, UNKNOWN);
        assert_eq!(lab.number(who.io, Function::Prepare, &body(program)), Err(UNKNOWN), "its program");
        let run = ob_wire_nvme::pushdown::Run::new(plan, None, &[]).unwrap();
        assert_eq!(end(lab.call(who.io, Function::Run(run), &[], 8)).0, UNKNOWN, "its plan");
        let (file, _) = files[0];
        for function in [Function::Close(file), Function::Forget(plan), Function::Unload(program)] {
            assert_eq!(lab.number(who.io, function, &[]), Err(UNKNOWN), "{function:?}");
        }
        assert_eq!(lab.map(who.io, (file, 9), 512, &[(0, 0, 512)]), Err(UNKNOWN));
    }
    // The same host by another connection has replaced the program; the other host has not.
    let run = ob_wire_nvme::pushdown::Run::new(plan, None, &[]).unwrap();
    assert_eq!(end(lab.call(host.io, Function::Run(run), &[], 8)).0, UNKNOWN);
    assert!(lab.number(host.io, Function::Find, b"obey").is_ok());
    lab.check_rest();
}

#[test]
fn a_program_that_is_replaced_ends_as_it_would_have() {
    let (mut lab, host, command, _) = begun();
    lab.load(host.io, "obey", OBEY).unwrap();
    let program = lab.number(host.io, Function::Find, b"obey/obey").unwrap();
    assert_eq!(lab.number(host.io, Function::Unload(program), &[]), Ok(0));
    assert_eq!(lab.number(host.io, Function::Find, b"obey"), Err(UNKNOWN));
    assert_eq!(lab.call(host.io, Function::List(0), &[], 4096).unwrap().0, 0);
    lab.rig.release_disk();
    assert_eq!(lab.answer(host.io, command).unwrap().unwrap().0, 2);
    lab.check_rest();
}

#[test]
fn what_takes_too_long_is_ended() {
    let (mut lab, host, command, _) = begun();
    lab.rig.advance(Duration::from_secs(9));
    assert!(lab.answer(host.io, command).is_none());
    lab.rig.advance(Duration::from_secs(2));
    let (status, reads, _) = end(lab.answer(host.io, command).unwrap());
    assert_eq!((status, reads), (Status::PUSHDOWN_TIME.with_do_not_retry(), 1));
    lab.rig.release_disk();
    lab.check_rest();
}

#[test]
fn chains_wait_for_what_they_are_lent_in_turn() {
    let config = TargetConfig {
        transfer_memory: 256 << 10,
        connection_transfer_max: 32 << 10,
        capsule_buffers: 4,
        ..TargetConfig::default()
    };
    let mut lab = Lab::with(config, Default::default());
    let host = lab.host(HOST, 9);
    let program = lab.load(host.io, "obey", OBEY).unwrap();
    let file = lab.map(host.io, (0, 1), 4096, &[(0, 0, 4096)]).unwrap();
    lab.rig.disk.is_held = true;
    let orders = script(&[[READ, 0, 0, 512], [DONE, 0, 0, 0]]);
    let begin =
        |lab: &mut Lab| lab.begin_request(host.io, &header(program, (0, 0, 512)), &[(file, 1)], &orders);
    let commands: Vec<CommandId> = (0..20).map(|_| begin(&mut lab)).collect();
    lab.run();
    assert!(lab.rig.disk.queue.len() < 20 && lab.rig.target.counts().waits_for_buffer > 0);
    lab.rig.release_disk();
    for command in commands {
        assert_eq!(lab.answer(host.io, command).unwrap().unwrap().0, 2);
    }
    lab.check_rest();
    // Who is gone waits for nothing.
    lab.rig.disk.is_held = true;
    for _ in 0..20 {
        begin(&mut lab);
    }
    lab.run();
    lab.rig.hang_up(host.io);
    lab.rig.release_disk();
    lab.run();
    assert_eq!((lab.functions.counts().running, lab.rig.target.memory_used()), (0, 0));
}
