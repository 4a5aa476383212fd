//! A lost association stays lost: what it left on devices is over before anybody can tell the difference.

// A test that cannot go on should say where.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::support;

use std::time::Duration;

use ob_wire_nvme::command::{Fuse, IoOpcode};
use ob_wire_nvme::fabrics::{Connect, Disconnect};
use ob_wire_nvme::io::{
    PersistChange, ReservationAcquire, ReservationAcquireAction, ReservationRegister,
    ReservationRegisterAction, ReservationReport, ReservationType,
};
use ob_wire_nvme::pdu::{DataTransfer, Digests, Pdu};
use ob_wire_nvme::{CommandId, DataPointer, NamespaceId, QueueId, Status, SubmissionEntry};
use support::{BLOCK, Client, Rig, Wish};

/// Sends a Connect for an admin queue and does not wait for the answer.
fn begin_connect(rig: &mut Rig, client: Client) {
    use ob_wire_nvme::fabrics::ConnectParties;
    use ob_wire_nvme::text::Nqn;
    use zerocopy::IntoBytes;
    let command = rig.command_id(client);
    let entry = Connect { queue: QueueId(0), queue_entries: 32, no_flow_control: false, keep_alive_ms: 0 }
        .encode(command, DataPointer::InCapsule { offset: 0, len: 1024 });
    let parties = ConnectParties {
        host_id: Wish::default().host_id,
        controller: Wish::default().controller,
        subsystem: Nqn::new(support::NQN).unwrap(),
        host: Nqn::new(support::HOST).unwrap(),
    };
    rig.submit(client, &entry, parties.encode().as_bytes());
}

#[test]
fn a_delayed_write_never_lands_on_a_newer_one() {
    // The connection breaks while a write is on the device; the host comes back and writes anew.
    let mut rig = Rig::new();
    let (admin, io) = rig.queues(Digests::NONE, false);
    rig.disk.is_held = true;
    rig.write_fused(io, 10, &[1; 2 * BLOCK], IoOpcode::Write, Fuse::None);
    rig.hang_up(io);
    rig.hang_up(admin);
    assert_eq!(rig.target.counts().orphans, 1);
    let (_, io) = rig.queues(Digests::NONE, false);
    rig.write_fused(io, 11, &[2; BLOCK], IoOpcode::Write, Fuse::None);
    rig.submit_read(io, 10, 1);
    rig.write_fused(io, 12, &[3; BLOCK], IoOpcode::Write, Fuse::None);
    assert_eq!(rig.disk.queue.len(), 2, "the delayed write, and the one beside it");
    assert_eq!(rig.target.counts().waiting_for_range, 2);
    rig.complete(1);
    rig.run();
    assert_eq!(rig.messages(io).len(), 1, "only who does not overlap is answered");
    rig.complete(0);
    rig.run();
    assert_eq!(rig.disk.queue.len(), 2);
    rig.release_disk();
    assert_eq!(rig.disk.bytes[10 * BLOCK], 1);
    assert_eq!(rig.disk.bytes[11 * BLOCK], 2, "the newer write is what stays");
    assert_eq!((rig.target.counts().orphans, rig.target.counts().in_flight), (0, 0));
    let read = rig.messages(io).into_iter().find(|message| matches!(message.pdu, Pdu::Data(_)));
    assert_eq!(read.unwrap().data, [1; BLOCK]);
}

#[test]
fn a_connect_that_replaces_an_association_waits_for_its_writes() {
    let mut rig = Rig::new();
    let (admin, io) = rig.queues(Digests::NONE, false);
    rig.disk.is_held = true;
    rig.write_fused(io, 10, &[1; BLOCK], IoOpcode::Write, Fuse::None);
    rig.submit_read(io, 20, 1);
    // The host lost its machine, not its connections; it comes again.
    let again = rig.open(Digests::NONE);
    begin_connect(&mut rig, again);
    assert!(rig.state(admin).is_closed && rig.state(io).is_closed, "the old association is closed");
    assert!(rig.messages(again).is_empty(), "the new one waits");
    assert_eq!(rig.target.counts().connects_delayed, 1);
    rig.complete(0);
    rig.run();
    assert_eq!(rig.response(again).status(), Status::SUCCESS, "reads of the old one are not waited for");
    assert!(rig.messages(io).is_empty(), "nothing is answered to the old one");
    rig.release_disk();
    assert_eq!(rig.target.counts().in_flight, 0);
}

#[test]
fn a_connection_that_ends_while_its_connect_waits_leaves_nothing() {
    let mut rig = Rig::new();
    let (_, io) = rig.queues(Digests::NONE, false);
    rig.disk.is_held = true;
    rig.write_fused(io, 10, &[1; BLOCK], IoOpcode::Write, Fuse::None);
    let again = rig.open(Digests::NONE);
    begin_connect(&mut rig, again);
    rig.hang_up(again);
    rig.release_disk();
    assert_eq!((rig.target.counts().connections, rig.target.counts().in_flight), (0, 0));
    rig.queues(Digests::NONE, false);
}

#[test]
fn a_connection_that_is_given_up_while_its_connect_waits_hears_nothing_more() {
    let mut rig = Rig::new();
    let (_, io) = rig.queues(Digests::NONE, false);
    rig.disk.is_held = true;
    rig.write_fused(io, 10, &[1; BLOCK], IoOpcode::Write, Fuse::None);
    let again = rig.open(Digests::NONE);
    begin_connect(&mut rig, again);
    rig.send(again, &[0xFF; 8]);
    rig.termination(again);
    rig.release_disk();
    assert!(rig.messages(again).is_empty(), "a terminate request is the last that is said");
}

#[test]
fn another_host_is_not_disturbed_and_waits_only_where_it_overlaps() {
    let mut rig = Rig::new();
    let (admin, io) = rig.queues(Digests::NONE, false);
    let other = Wish { host_id: [77; 16], ..Wish::default() };
    let (_, controller) = rig.admin_as(Digests::NONE, &other);
    let other_io = rig.open(Digests::NONE);
    assert_eq!(rig.connect_as(other_io, 1, &Wish { controller, ..other }).status(), Status::SUCCESS);
    rig.disk.is_held = true;
    rig.write_fused(io, 10, &[1; BLOCK], IoOpcode::Write, Fuse::None);
    rig.hang_up(admin);
    assert!(rig.state(io).is_closed, "the I/O queues end with the admin queue");
    rig.write_fused(other_io, 10, &[2; BLOCK], IoOpcode::Write, Fuse::None);
    rig.write_fused(other_io, 11, &[2; BLOCK], IoOpcode::Write, Fuse::None);
    assert_eq!(rig.disk.queue.len(), 2);
    rig.release_disk();
    assert_eq!(rig.disk.bytes[10 * BLOCK], 2);
    assert_eq!(rig.messages(other_io).len(), 2);
}

#[test]
fn commands_that_have_not_reached_a_device_end_with_their_connection() {
    let mut rig = Rig::new();
    let (_, io) = rig.queues(Digests::NONE, false);
    let entry = rig.entry(io, IoOpcode::Write, 0, 256, DataPointer::Transport { len: 128 << 10 });
    rig.submit(io, &entry, &[]);
    let wanted = rig.solicitation(io);
    let part = DataTransfer {
        command: wanted.command,
        tag: wanted.tag,
        offset: 0,
        len: 1000,
        is_last: false,
        is_success: false,
    };
    let bytes = rig.data_pdu(io, &part, &[1; 1000]);
    rig.send(io, &bytes);
    rig.write_fused(io, 3, &[0; BLOCK], IoOpcode::Compare, Fuse::First);
    assert_eq!(rig.target.counts().in_flight, 2);
    rig.hang_up(io);
    assert_eq!((rig.target.counts().in_flight, rig.disk.log.len()), (0, 0));
}

#[test]
fn a_pair_that_loses_its_connection_gives_its_range_back() {
    for completed_before in 0..2 {
        let mut rig = Rig::new();
        let (_, controller) = rig.admin(Digests::NONE);
        let [one, two] = [1, 2].map(|queue| rig.io_queue(Digests::NONE, controller, queue, false));
        rig.disk.is_held = true;
        rig.write_fused(one, 3, &[0; BLOCK], IoOpcode::Compare, Fuse::First);
        rig.write_fused(one, 3, &[2; BLOCK], IoOpcode::Write, Fuse::Second);
        for _ in 0..completed_before {
            rig.complete(0);
            rig.run();
        }
        rig.hang_up(one);
        rig.write_fused(two, 3, &[4; BLOCK], IoOpcode::Write, Fuse::None);
        rig.release_disk();
        assert_eq!(rig.response(two).status(), Status::SUCCESS);
        assert_eq!((rig.disk.bytes[3 * BLOCK], rig.target.counts().in_flight), (4, 0));
    }
}

#[test]
fn a_namespace_that_goes_or_shrinks_takes_the_commands_that_wait_with_it() {
    for removes in [true, false] {
        let mut rig = Rig::new();
        let (_, io) = rig.queues(Digests::NONE, false);
        let entry = rig.entry(io, IoOpcode::Write, 100, 2, DataPointer::Transport { len: 1024 });
        rig.submit(io, &entry, &[]);
        let wanted = rig.solicitation(io);
        let subsystem = rig.subsystem;
        if removes {
            rig.target.control_mut().remove_namespace(subsystem, 1).unwrap();
        } else {
            rig.target.control_mut().resize_namespace(subsystem, 1, 101).unwrap();
        }
        rig.run();
        rig.send_wanted(io, &wanted, &[1; 1024], 1024);
        let expected = if removes { Status::INVALID_NAMESPACE } else { Status::LBA_OUT_OF_RANGE };
        assert!(rig.response(io).status().is(expected));
        assert!(rig.disk.log.is_empty());
    }
}

#[test]
fn asynchronous_events_are_answered_when_something_changes() {
    let mut rig = Rig::new();
    let (admin, _) = rig.admin(Digests::NONE);
    let request = SubmissionEntry::new(0x0C, CommandId(500), NamespaceId(0));
    rig.submit(admin, &request, &[]);
    assert!(rig.messages(admin).is_empty());
    // A host that uses the id again has given the first one up: one event has one answer.
    rig.submit(admin, &request, &[]);
    assert!(rig.messages(admin).is_empty());
    let mut enable = SubmissionEntry::new(0x09, CommandId(501), NamespaceId(0));
    enable.dword10 = 0x0B.into();
    enable.dword11 = 0x100.into();
    rig.submit(admin, &enable, &[]);
    assert_eq!(rig.response(admin).status(), Status::SUCCESS);
    let subsystem = rig.subsystem;
    rig.target.control_mut().resize_namespace(subsystem, 1, 100).unwrap();
    rig.run();
    let event = rig.response(admin);
    assert_eq!((event.command(), event.status()), (CommandId(500), Status::SUCCESS));
    assert_eq!(event.dword0.get() & 0xFF, 0x02, "a notice");
    assert!(rig.messages(admin).is_empty());
}

#[test]
fn disconnect_is_answered_and_then_the_connection_ends() {
    let mut rig = Rig::new();
    let (admin, io) = rig.queues(Digests::NONE, false);
    let command = rig.command_id(io);
    rig.submit(io, &Disconnect.encode(command), &[]);
    assert_eq!(rig.response(io).status(), Status::SUCCESS);
    assert!(rig.state(io).is_finished && !rig.state(admin).is_closed);
    rig.advance(Duration::from_secs(3));
    assert!(rig.state(io).is_closed);
}

fn register(rig: &mut Rig, io: Client, key: u64, persist: PersistChange) {
    let register =
        ReservationRegister { action: ReservationRegisterAction::Register, ignore_key: false, persist };
    let command = rig.command_id(io);
    let entry = register.encode(command, NamespaceId(1), DataPointer::InCapsule { offset: 0, len: 16 });
    rig.submit(io, &entry, &[[0; 8], key.to_le_bytes()].concat());
}

fn acquire(rig: &mut Rig, io: Client, action: ReservationAcquireAction, keys: [u64; 2]) {
    let acquire = ReservationAcquire { action, ignore_key: false, kind: ReservationType::WriteExclusive };
    let command = rig.command_id(io);
    let entry = acquire.encode(command, NamespaceId(1), DataPointer::InCapsule { offset: 0, len: 16 });
    rig.submit(io, &entry, &keys.map(u64::to_le_bytes).concat());
}

/// I/O queues of two hosts that have registered the keys 1 and 2.
fn two_registered_hosts(rig: &mut Rig) -> [Client; 2] {
    let (_, one) = rig.queues(Digests::NONE, false);
    let other = Wish { host_id: [77; 16], ..Wish::default() };
    let (_, controller) = rig.admin_as(Digests::NONE, &other);
    let two = rig.open(Digests::NONE);
    assert_eq!(rig.connect_as(two, 1, &Wish { controller, ..other }).status(), Status::SUCCESS);
    for (io, key) in [(one, 1), (two, 2)] {
        register(rig, io, key, PersistChange::Keep);
        assert_eq!(rig.response(io).status(), Status::SUCCESS);
    }
    [one, two]
}

#[test]
fn a_host_that_is_preempted_with_abort_is_done_before_the_answer() {
    let mut rig = Rig::new();
    let [one, two] = two_registered_hosts(&mut rig);
    acquire(&mut rig, two, ReservationAcquireAction::Acquire, [2, 0]);
    assert_eq!(rig.response(two).status(), Status::SUCCESS);
    rig.disk.is_held = true;
    rig.write_fused(two, 10, &[2; BLOCK], IoOpcode::Write, Fuse::None);
    let solicited = rig.entry(two, IoOpcode::Write, 20, 1, DataPointer::Transport { len: 512 });
    rig.submit(two, &solicited, &[]);
    let wanted = rig.solicitation(two);
    acquire(&mut rig, one, ReservationAcquireAction::PreemptAndAbort, [1, 2]);
    assert!(rig.messages(one).is_empty(), "a write of the other is on the device");
    rig.release_disk();
    assert_eq!(rig.response(one).status(), Status::SUCCESS);
    rig.messages(two);
    rig.send_wanted(two, &wanted, &[2; BLOCK], BLOCK);
    assert!(rig.response(two).status().is(Status::RESERVATION_CONFLICT), "what had not begun never does");
    assert_eq!((rig.disk.bytes[10 * BLOCK], rig.disk.bytes[20 * BLOCK]), (2, 0));
}

#[test]
fn what_a_host_that_is_gone_left_on_a_device_is_done_before_its_preemption_is_answered() {
    let mut rig = Rig::new();
    let (_, one) = rig.queues(Digests::NONE, false);
    let other = Wish { host_id: [77; 16], ..Wish::default() };
    let (admin, controller) = rig.admin_as(Digests::NONE, &other);
    let queues = [1, 2].map(|queue| {
        let io = rig.open(Digests::NONE);
        assert_eq!(rig.connect_as(io, queue, &Wish { controller, ..other }).status(), Status::SUCCESS);
        io
    });
    for (io, key) in [(one, 1), (queues[0], 2)] {
        register(&mut rig, io, key, PersistChange::Keep);
        assert_eq!(rig.response(io).status(), Status::SUCCESS);
    }
    acquire(&mut rig, queues[0], ReservationAcquireAction::Acquire, [2, 0]);
    assert_eq!(rig.response(queues[0]).status(), Status::SUCCESS);
    rig.disk.is_held = true;
    // Only the last of its connections has something there.
    rig.write_fused(queues[1], 10, &[2; BLOCK], IoOpcode::Write, Fuse::None);
    rig.hang_up(admin);
    acquire(&mut rig, one, ReservationAcquireAction::PreemptAndAbort, [1, 2]);
    assert!(rig.messages(one).is_empty(), "a write of the other is on the device");
    rig.release_disk();
    assert_eq!(rig.response(one).status(), Status::SUCCESS);
}

#[test]
fn what_a_preempted_host_begins_later_holds_nobody_up() {
    let mut rig = Rig::new();
    let [one, two] = two_registered_hosts(&mut rig);
    rig.disk.is_held = true;
    rig.write_fused(two, 10, &[2; BLOCK], IoOpcode::Write, Fuse::None);
    acquire(&mut rig, one, ReservationAcquireAction::Acquire, [1, 0]);
    assert_eq!(rig.response(one).status(), Status::SUCCESS);
    acquire(&mut rig, one, ReservationAcquireAction::PreemptAndAbort, [1, 2]);
    // Reads are everybody's.
    rig.submit_read(two, 20, 1);
    assert_eq!(rig.disk.queue.len(), 2);
    assert!(rig.messages(one).is_empty(), "a write of the other is on the device");
    rig.complete(0);
    rig.run();
    assert_eq!(rig.response(one).status(), Status::SUCCESS, "with a read of the other on the device");
}

#[test]
fn preemptions_that_hang_cost_others_nothing() {
    const TIMES: u64 = 8;
    let mut rig = Rig::new();
    let [one, two] = two_registered_hosts(&mut rig);
    acquire(&mut rig, one, ReservationAcquireAction::Acquire, [1, 0]);
    assert_eq!(rig.response(one).status(), Status::SUCCESS);
    rig.disk.is_held = true;
    rig.submit_read(two, 10, 1);
    for time in 0..TIMES {
        if time > 0 {
            register(&mut rig, two, 2, PersistChange::Keep);
            assert_eq!(rig.response(two).status(), Status::SUCCESS);
        }
        acquire(&mut rig, one, ReservationAcquireAction::PreemptAndAbort, [1, 2]);
    }
    let looks = rig.target.counts().awaited_looks;
    assert!(looks <= TIMES, "{looks} looks at all commands for {TIMES} preemptions");
    for _ in 0..50 {
        rig.write_fused(one, 50, &[1; BLOCK], IoOpcode::Write, Fuse::None);
        rig.complete(1);
        rig.run();
        assert_eq!(rig.response(one).status(), Status::SUCCESS);
        assert!(rig.messages(one).is_empty(), "a command of the other is on the device");
    }
    assert_eq!(rig.target.counts().awaited_looks, looks, "commands of others end no preemption");
    rig.complete(0);
    rig.run();
    for _ in 0..TIMES {
        assert_eq!(rig.response(one).status(), Status::SUCCESS);
    }
    assert_eq!(rig.target.counts().awaited_looks, looks + 1, "one look for all of them");
}

#[test]
fn half_a_pair_of_a_host_that_is_preempted_holds_nobody_up() {
    let mut rig = Rig::new();
    let [one, two] = two_registered_hosts(&mut rig);
    acquire(&mut rig, two, ReservationAcquireAction::Acquire, [2, 0]);
    assert_eq!(rig.response(two).status(), Status::SUCCESS);
    rig.write_fused(two, 10, &[0; BLOCK], IoOpcode::Compare, Fuse::First);
    acquire(&mut rig, one, ReservationAcquireAction::PreemptAndAbort, [1, 2]);
    assert_eq!(rig.response(one).status(), Status::SUCCESS, "the other half may never come");
    rig.write_fused(two, 10, &[2; BLOCK], IoOpcode::Write, Fuse::Second);
    let answers = rig.messages(two);
    assert_eq!(answers.len(), 2);
    for answer in answers {
        let Pdu::Response(entry) = answer.pdu else { panic!("not a response") };
        assert!(!entry.status().is_success(), "and when it comes it is too late");
    }
    assert_eq!(rig.disk.bytes[10 * BLOCK], 0);
}

#[test]
fn reservations_that_are_to_persist_are_answered_when_they_are_saved() {
    let mut rig = Rig::new();
    let (_, io) = rig.queues(Digests::NONE, false);
    register(&mut rig, io, 1, PersistChange::Set);
    let report = ReservationReport { len: 4096, is_extended: true }.encode(CommandId(99), NamespaceId(1));
    rig.submit(io, &report, &[]);
    assert!(rig.messages(io).is_empty(), "nobody hears of it before");
    let changed = rig.target.next_reservations_changed().expect("something to save");
    let version = rig.target.control().reservations(changed.subsystem, changed.nsid).unwrap().version();
    rig.target.reservations_saved(changed.namespace, version - 1);
    rig.run();
    assert!(rig.messages(io).is_empty(), "an older version is not enough");
    rig.target.reservations_saved(changed.namespace, version);
    rig.run();
    assert_eq!(rig.response(io).status(), Status::SUCCESS);
    let told = rig.messages(io);
    assert!(matches!(told[0].pdu, Pdu::Data(_)) && told[0].data.len() == 4096, "{told:?}");
}

/// What a host is told takes memory from when it is made, and a save may take its time.
#[test]
fn reports_that_wait_for_a_save_are_no_more_than_a_host_may_leave_untaken() {
    const LEN: usize = 128 << 10;
    let mut rig = Rig::new();
    let (_, io) = rig.queues(Digests::NONE, true);
    register(&mut rig, io, 1, PersistChange::Set);
    let (reports, before) = (100, rig.target.counts().control_commands);
    for number in 0..reports {
        let report = ReservationReport { len: LEN as u64, is_extended: true };
        rig.submit(io, &report.encode(CommandId(1000 + number), NamespaceId(1)), &[]);
    }
    assert!(rig.messages(io).is_empty());
    let taken = rig.target.counts().control_commands - before;
    assert!(taken <= 4, "{taken} answers of {LEN} bytes are kept");
    assert_eq!(rig.target.counts().hold_ups_for_unsent, 1);
    let changed = rig.target.next_reservations_changed().expect("something to save");
    rig.target.reservations_saved(changed.namespace, u64::MAX);
    rig.run();
    assert_eq!(rig.response(io).status(), Status::SUCCESS);
    let told = rig.messages(io);
    assert_eq!(told.iter().filter(|message| message.data.len() == LEN).count(), usize::from(reports));
}

#[test]
fn zeros_wait_for_what_a_lost_association_left_and_are_written_then() {
    let mut rig = Rig::new();
    let (admin, io) = rig.queues(Digests::NONE, false);
    rig.disk.is_held = true;
    rig.write_fused(io, 10, &[1; 2 * BLOCK], IoOpcode::Write, Fuse::None);
    rig.hang_up(io);
    rig.hang_up(admin);
    let (_, io) = rig.queues(Digests::NONE, false);
    let entry = rig.entry(io, IoOpcode::WriteZeroes, 10, 2, DataPointer::None);
    rig.submit(io, &entry, &[]);
    assert_eq!(rig.target.counts().waiting_for_range, 1);
    rig.release_disk();
    assert_eq!(rig.response(io).status(), Status::SUCCESS);
    assert_eq!(rig.disk.log, ["write", "zeroes"]);
    assert_eq!(rig.disk.bytes[10 * BLOCK], 0);
}

#[test]
fn a_reservation_that_comes_between_stops_the_write_of_a_pair() {
    for action in [ReservationAcquireAction::Acquire, ReservationAcquireAction::Preempt] {
        let mut rig = Rig::new();
        let [one, two] = two_registered_hosts(&mut rig);
        // The comparison's data is asked for, the write's is in its capsule.
        let compare = rig.entry(two, IoOpcode::Compare, 10, 1, DataPointer::Transport { len: 512 });
        rig.submit(two, &compare.with_fuse(Fuse::First), &[]);
        let wanted = rig.solicitation(two);
        rig.write_fused(two, 10, &[2; BLOCK], IoOpcode::Write, Fuse::Second);
        acquire(&mut rig, one, ReservationAcquireAction::Acquire, [1, 0]);
        assert_eq!(rig.response(one).status(), Status::SUCCESS);
        if action == ReservationAcquireAction::Preempt {
            acquire(&mut rig, one, action, [1, 2]);
            assert_eq!(rig.response(one).status(), Status::SUCCESS);
        }
        rig.send_wanted(two, &wanted, &[0; BLOCK], BLOCK);
        let statuses = [(); 2].map(|()| rig.response(two).status());
        assert!(statuses.iter().any(|status| status.is(Status::RESERVATION_CONFLICT)), "{statuses:?}");
        assert!(statuses.iter().all(|status| !status.is_success()), "{statuses:?}");
        assert_eq!(rig.disk.bytes[10 * BLOCK], 0);
    }
}
