//! How commands of a service end before it has answered them: by Abort, and with their controller.

// A test that cannot go on should say where.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::chains::Chains;
use crate::foreign::{BARE, next_command, put_list, rig, run, submit_chain, vendor};
use crate::support::{Rig, Wish};

use ob_wire_nvme::io::Abort;
use ob_wire_nvme::pdu::Digests;
use ob_wire_nvme::{CommandId, DataPointer, QueueId, Status};

#[test]
fn a_service_hears_that_a_host_gives_a_command_up() {
    let mut rig = rig();
    let (admin, io) = rig.queues(Digests::NONE, false);
    put_list(&mut rig, &[0, 512], 1);
    rig.disk.is_held = true;
    let mut chains = Chains::new();
    let chain = submit_chain(&mut rig, io, 0);
    run(&mut rig, &mut chains);
    let abort = |rig: &mut Rig, command: CommandId| {
        let entry = Abort { queue: QueueId(1), command }.encode(rig.command_id(admin));
        rig.submit(admin, &entry, &[]);
        assert_eq!(rig.response(admin).result(), Abort::NOT_ABORTED, "its own answer follows");
    };
    // One that is nobody's is no event; and one that is aborted twice is one.
    abort(&mut rig, CommandId(chain.0 ^ 0x55));
    assert!(rig.target.next_foreign().is_none());
    abort(&mut rig, chain);
    abort(&mut rig, chain);
    run(&mut rig, &mut chains);
    let response = rig.response(io);
    assert_eq!((response.command(), response.status()), (chain, Status::ABORT_REQUESTED));
    assert!(chains.is_idle() && chains.refused == 1);
    rig.release_disk();
    run(&mut rig, &mut chains);
    assert_eq!((rig.target.counts().in_flight, rig.target.memory_used()), (0, 0));
}

#[test]
fn a_command_that_was_given_up_before_a_service_had_it_is_not_handed_out() {
    let mut rig = rig();
    let (admin, io) = rig.queues(Digests::NONE, false);
    let entry = vendor(&mut rig, io, BARE, 1, DataPointer::None);
    rig.submit(io, &entry, &[]);
    let abort = Abort { queue: QueueId(1), command: entry.command() }.encode(rig.command_id(admin));
    rig.submit(admin, &abort, &[]);
    assert!(rig.target.next_foreign().is_none());
    rig.run();
    assert!(rig.response(io).status().is(Status::ABORT_REQUESTED));
    assert_eq!(rig.target.counts().in_flight, 0);
}

#[test]
fn a_service_hears_of_the_end_of_controllers_that_it_knows_and_of_no_others() {
    let mut rig = rig();
    let (admin, io) = rig.queues(Digests::NONE, false);
    let (other, _) = rig.admin_as(Digests::NONE, &Wish { host_id: [7; 16], ..Wish::default() });
    put_list(&mut rig, &[0], 1);
    let mut chains = Chains::new();
    submit_chain(&mut rig, io, 0);
    run(&mut rig, &mut chains);
    assert_eq!(chains.answered, 1);
    // An I/O queue can come back.
    rig.hang_up(io);
    run(&mut rig, &mut chains);
    assert_eq!(chains.controllers_ended, 0);
    rig.hang_up(other);
    rig.hang_up(admin);
    run(&mut rig, &mut chains);
    assert_eq!(chains.controllers_ended, 1);
    assert!(!rig.target.can_go_on());
}

#[test]
fn the_end_of_a_command_that_was_answered_meanwhile_is_not_told() {
    let mut rig = rig();
    let (_admin, io) = rig.queues(Digests::NONE, false);
    let entry = vendor(&mut rig, io, BARE, 1, DataPointer::None);
    rig.submit(io, &entry, &[]);
    let key = next_command(&mut rig).key;
    rig.hang_up(io);
    rig.target.foreign_done(key, Err(Status::INTERNAL_ERROR), 0);
    assert!(rig.target.next_foreign().is_none());
    rig.run();
    assert!(!rig.target.can_go_on());
}
