//! How long an association lives: what keeps it, what replaces one of its queues, and how a host takes its leave.

// A test that cannot go on should say where.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::support;

use std::time::Duration;

use ob_nvme::target::{Answer, ForeignEvent, ForeignOpcode, TargetConfig};
use ob_wire_nvme::command::{Fuse, IoOpcode};
use ob_wire_nvme::fabrics::{
    ControllerConfiguration, Property, PropertyAccess, ShutdownNotification, ShutdownStatus,
};
use ob_wire_nvme::io::{
    PersistChange, ReservationAcquire, ReservationAcquireAction, ReservationRegister,
    ReservationRegisterAction, ReservationType,
};
use ob_wire_nvme::pdu::Digests;
use ob_wire_nvme::{CommandId, ControllerId, DataPointer, NamespaceId, Status, SubmissionEntry};

use support::{BLOCK, Client, Rig, Wish};

const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// A host that promises to be heard of every five seconds.
fn prompt_host() -> Wish {
    Wish { keep_alive_ms: KEEP_ALIVE.as_millis() as u32, host_id: [77; 16], ..Wish::default() }
}

/// Admin and I/O queue of such a host, and its CNTLID.
fn prompt_queues(rig: &mut Rig) -> (Client, Client, ControllerId) {
    queues_of(rig, &prompt_host())
}

fn queues_of(rig: &mut Rig, host: &Wish) -> (Client, Client, ControllerId) {
    let (admin, controller) = rig.admin_as(Digests::NONE, host);
    let io = rig.open(Digests::NONE);
    let wish = Wish { controller, ..*host };
    assert_eq!(rig.connect_as(io, 1, &wish).status(), Status::SUCCESS);
    (admin, io, controller)
}

/// A first registration with the namespace.
fn registration(persist: PersistChange) -> ReservationRegister {
    ReservationRegister { action: ReservationRegisterAction::Register, ignore_key: false, persist }
}

/// Has the host of a queue hold the namespace for itself.
fn reserve(rig: &mut Rig, io: Client) {
    let key = 1_u64.to_le_bytes();
    let data = DataPointer::InCapsule { offset: 0, len: 16 };
    let register = registration(PersistChange::Keep);
    let acquire = ReservationAcquire {
        action: ReservationAcquireAction::Acquire,
        ignore_key: false,
        kind: ReservationType::ExclusiveAccess,
    };
    let entries = [
        (register.encode(rig.command_id(io), NamespaceId(1), data), [[0; 8], key]),
        (acquire.encode(rig.command_id(io), NamespaceId(1), data), [key, [0; 8]]),
    ];
    for (entry, keys) in entries {
        rig.submit(io, &entry, &keys.concat());
        assert_eq!(rig.response(io).status(), Status::SUCCESS);
    }
}

#[test]
fn commands_that_are_refused_keep_an_association_alive() {
    let mut rig = Rig::new();
    let (_, holder) = rig.queues(Digests::NONE, false);
    reserve(&mut rig, holder);
    let (_, standby, _) = prompt_queues(&mut rig);
    // A host that sees its commands answered need not send any Keep Alive (TBKAS), whatever the answers are.
    let seconds = 3 * KEEP_ALIVE.as_secs();
    let refusals: [(&str, u64, Status); 2] = [
        ("reserved", 0, Status::RESERVATION_CONFLICT),
        ("beyond", support::BLOCKS, Status::LBA_OUT_OF_RANGE),
    ];
    for (what, block, expected) in refusals {
        for _ in 0..seconds {
            rig.advance(Duration::from_secs(1));
            rig.submit_read(standby, block, 1);
            assert!(!rig.state(standby).is_closed, "the association ended over commands that were {what}");
            assert!(rig.response(standby).status().is(expected), "{what}");
        }
    }
    for _ in 0..seconds {
        rig.advance(Duration::from_secs(1));
        let unknown = SubmissionEntry::new(0x7E, CommandId(9), NamespaceId(1));
        rig.submit(standby, &unknown, &[]);
        assert!(rig.response(standby).status().is(Status::INVALID_OPCODE));
    }
    // And a host of which nothing is heard is still given up.
    rig.advance(2 * KEEP_ALIVE - Duration::from_millis(1));
    assert!(!rig.state(standby).is_closed, "hosts are promised twice what they asked for");
    rig.advance(Duration::from_millis(1));
    assert!(rig.state(standby).is_closed);
}

#[test]
fn a_command_whose_id_is_in_use_is_a_sign_of_life() {
    let mut rig = Rig::new();
    let (_, io, _) = prompt_queues(&mut rig);
    rig.disk.is_held = true;
    let command = rig.write_fused(io, 0, &[1; BLOCK], IoOpcode::Write, Fuse::None);
    for _ in 0..3 * KEEP_ALIVE.as_secs() {
        rig.advance(Duration::from_secs(1));
        rig.submit(io, &SubmissionEntry::new(IoOpcode::Flush.code(), command, NamespaceId(1)), &[]);
        assert!(!rig.state(io).is_closed);
        assert!(rig.response(io).status().is(Status::COMMAND_ID_CONFLICT));
    }
}

#[test]
fn answers_are_signs_of_life_too() {
    // A host that sees answers may send no Keep Alive for them (TBKAS, as Linux had it for long), and nothing else either.
    let opcode = ForeignOpcode::new(0xC0, 0).unwrap();
    let mut rig = Rig::with(TargetConfig { foreign: vec![opcode], ..TargetConfig::default() });
    let (_, io, _) = prompt_queues(&mut rig);
    rig.disk.is_held = true;
    let mut served = Vec::new();
    for block in 0..4 {
        rig.write_fused(io, block, &[1; BLOCK], IoOpcode::Write, Fuse::None);
        let command = rig.command_id(io);
        rig.submit(io, &SubmissionEntry::new(0xC0, command, NamespaceId(1)), &[]);
        let Some(ForeignEvent::Command(command)) = rig.target.next_foreign() else { panic!("no command") };
        served.push(command.key);
    }
    let pause = KEEP_ALIVE + KEEP_ALIVE / 2;
    for _ in 0..4 {
        rig.advance(pause);
        rig.complete(0);
        rig.run();
        assert_eq!(rig.response(io).status(), Status::SUCCESS, "of a device");
    }
    for key in served {
        rig.advance(pause);
        rig.target.foreign_done(key, Ok(Answer::Nothing), 0);
        rig.run();
        assert_eq!(rig.response(io).status(), Status::SUCCESS, "of a service");
    }
    rig.advance(2 * KEEP_ALIVE);
    assert!(rig.state(io).is_closed, "and now nothing is heard");
}

/// Sends the Connect of a queue from a new connection.
fn connect_queue_again(rig: &mut Rig, controller: ControllerId) -> Client {
    let again = rig.open(Digests::NONE);
    rig.submit_connect(again, 1, &Wish { controller, ..prompt_host() });
    again
}

#[test]
fn a_queue_that_is_connected_again_waits_for_the_end_of_its_old_connection() {
    let mut rig = Rig::new();
    let (admin, io, controller) = prompt_queues(&mut rig);
    rig.disk.is_held = true;
    // The old connection is held up: its host takes no answers, and its end could not be read.
    rig.state(io).is_deaf = true;
    rig.write_fused(io, 10, &[1; BLOCK], IoOpcode::Write, Fuse::None);
    let again = connect_queue_again(&mut rig, controller);
    assert!(rig.state(io).is_closed, "the old connection is closed");
    assert!(!rig.state(admin).is_closed, "the association goes on");
    assert!(rig.messages(again).is_empty(), "a write of the old one is on the device");
    assert_eq!(rig.target.counts().connects_delayed, 1);
    rig.complete(0);
    rig.run();
    assert_eq!(rig.response(again).status(), Status::SUCCESS);
    rig.write_fused(again, 10, &[2; BLOCK], IoOpcode::Write, Fuse::None);
    rig.release_disk();
    assert_eq!(rig.response(again).status(), Status::SUCCESS);
    assert_eq!(rig.disk.bytes[10 * BLOCK], 2);
    // The queue is one like others: it ends once, and can be connected once more.
    rig.hang_up(again);
    let third = connect_queue_again(&mut rig, controller);
    assert_eq!(rig.response(third).status(), Status::SUCCESS);
    assert_eq!((rig.target.counts().in_flight, rig.target.counts().orphans), (0, 0));
}

#[test]
fn a_queue_that_is_connected_in_the_round_of_its_reset_is_a_new_one() {
    let mut rig = Rig::new();
    let (admin, io, controller) = prompt_queues(&mut rig);
    rig.disk.is_held = true;
    rig.write_fused(io, 10, &[1; BLOCK], IoOpcode::Write, Fuse::None);
    let again = rig.open(Digests::NONE);
    // All of this comes before the target does anything else.
    for value in [0, enabled().0] {
        let entry = configuration(value).encode(rig.command_id(admin));
        let bytes = rig.capsule(admin, &entry, &[]);
        rig.deliver_only(admin, &bytes);
    }
    let mut bytes = rig.connect_capsule(again, 1, &Wish { controller, ..prompt_host() });
    let pointer = DataPointer::InCapsule { offset: 0, len: BLOCK as u32 };
    let entry = rig.entry(again, IoOpcode::Write, 10, 1, pointer);
    bytes.extend(rig.capsule(again, &entry, &[2; BLOCK]));
    rig.deliver_only(again, &bytes);
    rig.run();
    assert!(rig.state(io).is_finished && !rig.state(again).is_finished, "the old connection ends");
    assert_eq!(rig.response(again).status(), Status::SUCCESS, "Connect");
    assert_eq!(rig.disk.queue.len(), 1, "the new write waits for the old one");
    assert!(rig.messages(again).is_empty());
    rig.release_disk();
    assert_eq!(rig.response(again).status(), Status::SUCCESS);
    assert_eq!(rig.disk.bytes[10 * BLOCK], 2);
    assert_eq!(rig.write(again, 11, &[3; BLOCK]).status(), Status::SUCCESS, "the queue goes on");
}

#[test]
fn a_queue_is_taken_over_only_from_where_its_controller_is() {
    let mut rig = Rig::new();
    let (_, io, controller) = prompt_queues(&mut rig);
    rig.peer = [10, 0, 0, 3].into();
    let stranger = connect_queue_again(&mut rig, controller);
    assert!(rig.response(stranger).status().is(Status::COMMAND_SEQUENCE_ERROR));
    assert!(!rig.state(io).is_closed);
    assert_eq!(rig.write(io, 1, &[1; BLOCK]).status(), Status::SUCCESS);
}

/// CC of a controller that serves.
fn enabled() -> ControllerConfiguration {
    ControllerConfiguration::enabled(ControllerConfiguration::COMMAND_SET_NVM)
}

fn configuration(value: u32) -> PropertyAccess {
    PropertyAccess { property: Property::Configuration, value: Some(u64::from(value)) }
}

/// Writes CC.
fn configure(rig: &mut Rig, admin: Client, value: ControllerConfiguration) {
    let entry = configuration(value.0).encode(rig.command_id(admin));
    rig.submit(admin, &entry, &[]);
    assert_eq!(rig.response(admin).status(), Status::SUCCESS);
}

/// CC with a notice of shutdown.
fn shut_down(rig: &mut Rig, admin: Client, notice: ShutdownNotification) {
    configure(rig, admin, enabled().with_shutdown(notice));
}

/// CSTS.SHST.
fn shutdown_status(rig: &mut Rig, admin: Client) -> u64 {
    let access = PropertyAccess { property: Property::Status, value: None };
    let entry = access.encode(rig.command_id(admin));
    rig.submit(admin, &entry, &[]);
    let answer = rig.response(admin);
    assert_eq!(answer.status(), Status::SUCCESS);
    answer.result() >> 2 & 0b11
}

#[test]
fn a_shutdown_is_complete_when_the_controllers_commands_are() {
    for notice in [ShutdownNotification::Normal, ShutdownNotification::Abrupt] {
        let mut rig = Rig::new();
        let (admin, io, controller) = prompt_queues(&mut rig);
        rig.disk.is_held = true;
        rig.write_fused(io, 10, &[1; BLOCK], IoOpcode::Write, Fuse::None);
        let solicited = rig.entry(io, IoOpcode::Write, 20, 1, DataPointer::Transport { len: BLOCK as u32 });
        rig.submit(io, &solicited, &[]);
        let wanted = rig.solicitation(io);
        shut_down(&mut rig, admin, notice);
        assert_eq!(shutdown_status(&mut rig, admin), ShutdownStatus::Occurring as u64, "{notice:?}");
        // Nothing begins any more.
        rig.submit_read(io, 0, 1);
        assert!(rig.response(io).status().is(Status::COMMAND_SEQUENCE_ERROR));
        let late = rig.open(Digests::NONE);
        let second = rig.connect_as(late, 2, &Wish { controller, ..prompt_host() });
        assert!(second.status().is(Status::COMMAND_SEQUENCE_ERROR));
        rig.release_disk();
        assert_eq!(rig.response(io).status(), Status::SUCCESS, "what had begun is finished and answered");
        assert_eq!(shutdown_status(&mut rig, admin), ShutdownStatus::Complete as u64, "{notice:?}");
        rig.send_wanted(io, &wanted, &[2; BLOCK], BLOCK);
        assert!(rig.response(io).status().is(Status::COMMAND_SEQUENCE_ERROR));
        assert_eq!((rig.disk.bytes[10 * BLOCK], rig.disk.bytes[20 * BLOCK]), (1, 0));
    }
}

#[test]
fn a_shutdown_waits_for_what_a_lost_queue_left_on_a_device() {
    let mut rig = Rig::new();
    let (admin, io, _) = prompt_queues(&mut rig);
    rig.disk.is_held = true;
    rig.write_fused(io, 10, &[1; BLOCK], IoOpcode::Write, Fuse::None);
    rig.hang_up(io);
    shut_down(&mut rig, admin, ShutdownNotification::Normal);
    assert_eq!(shutdown_status(&mut rig, admin), ShutdownStatus::Occurring as u64);
    rig.release_disk();
    assert_eq!(shutdown_status(&mut rig, admin), ShutdownStatus::Complete as u64);
}

#[test]
fn a_controller_that_was_shut_down_serves_again_when_it_is_enabled_anew() {
    let mut rig = Rig::new();
    let (admin, _, controller) = prompt_queues(&mut rig);
    shut_down(&mut rig, admin, ShutdownNotification::Normal);
    assert_eq!(shutdown_status(&mut rig, admin), ShutdownStatus::Complete as u64);
    // Nothing has to be heard of a host that took its leave.
    rig.advance(3 * KEEP_ALIVE);
    assert!(!rig.state(admin).is_closed);
    configure(&mut rig, admin, ControllerConfiguration(0));
    rig.enable(admin);
    assert_eq!(shutdown_status(&mut rig, admin), ShutdownStatus::Running as u64);
    let io = connect_queue_again(&mut rig, controller);
    assert_eq!(rig.response(io).status(), Status::SUCCESS);
    assert_eq!(rig.write(io, 1, &[1; BLOCK]).status(), Status::SUCCESS);
    rig.advance(2 * KEEP_ALIVE);
    assert!(rig.state(io).is_closed && rig.state(admin).is_closed, "now its silence counts again");
}

#[test]
fn a_notice_of_shutdown_counts_by_what_it_says_and_not_by_its_edge() {
    let mut rig = Rig::new();
    let (admin, ..) = prompt_queues(&mut rig);
    let notice = ShutdownNotification::Normal;
    shut_down(&mut rig, admin, notice);
    assert_eq!(shutdown_status(&mut rig, admin), ShutdownStatus::Complete as u64);
    // A reset that leaves the notice standing is a reset: the controller is neither shut down nor told to be.
    configure(&mut rig, admin, ControllerConfiguration(0).with_shutdown(notice));
    assert_eq!(shutdown_status(&mut rig, admin), ShutdownStatus::Running as u64);
    shut_down(&mut rig, admin, notice);
    assert_eq!(shutdown_status(&mut rig, admin), ShutdownStatus::Complete as u64);
    // The notice taken back does not undo the shutdown: only a reset does.
    configure(&mut rig, admin, enabled());
    assert_eq!(shutdown_status(&mut rig, admin), ShutdownStatus::Complete as u64);
}

#[test]
fn shutdowns_that_hang_cost_others_nothing() {
    const HOSTS: u8 = 8;
    let mut rig = Rig::new();
    let (_, bystander, _) = queues_of(&mut rig, &Wish { host_id: [100; 16], ..Wish::default() });
    rig.disk.is_held = true;
    let mut admins = Vec::new();
    for host in 1..=HOSTS {
        let (admin, io, _) = queues_of(&mut rig, &Wish { host_id: [host; 16], ..Wish::default() });
        rig.write_fused(io, u64::from(host), &[1; BLOCK], IoOpcode::Write, Fuse::None);
        shut_down(&mut rig, admin, ShutdownNotification::Normal);
        admins.push(admin);
    }
    let looks = rig.target.counts().awaited_looks;
    assert!(looks <= u64::from(HOSTS), "{looks} looks at all commands for {HOSTS} shutdowns");
    for _ in 0..50 {
        rig.write_fused(bystander, 50, &[1; BLOCK], IoOpcode::Write, Fuse::None);
        rig.complete(usize::from(HOSTS));
        rig.run();
        assert_eq!(rig.response(bystander).status(), Status::SUCCESS);
    }
    reserve(&mut rig, bystander);
    assert_eq!(rig.target.counts().awaited_looks, looks, "commands of others end no shutdown");
    for _ in 0..HOSTS {
        rig.complete(0);
        rig.run();
    }
    for admin in admins {
        assert_eq!(shutdown_status(&mut rig, admin), ShutdownStatus::Complete as u64);
    }
    let looks = rig.target.counts().awaited_looks - looks;
    assert!(looks <= u64::from(HOSTS), "{looks} looks for {HOSTS} commands that ended");
}

#[test]
fn a_pair_whose_data_is_withheld_holds_no_shutdown_up() {
    let mut rig = Rig::new();
    let (admin, io, _) = prompt_queues(&mut rig);
    rig.write_fused(io, 10, &[0; BLOCK], IoOpcode::Compare, Fuse::First);
    let pointer = DataPointer::Transport { len: BLOCK as u32 };
    let second = rig.entry(io, IoOpcode::Write, 10, 1, pointer).with_fuse(Fuse::Second);
    rig.submit(io, &second, &[]);
    let wanted = rig.solicitation(io);
    shut_down(&mut rig, admin, ShutdownNotification::Normal);
    assert_eq!(shutdown_status(&mut rig, admin), ShutdownStatus::Complete as u64);
    rig.send_wanted(io, &wanted, &[2; BLOCK], BLOCK);
    for _ in 0..2 {
        assert!(!rig.response(io).status().is_success(), "neither half is executed any more");
    }
    assert_eq!(rig.disk.bytes[10 * BLOCK], 0);
}

#[test]
fn a_pair_that_has_begun_is_waited_for() {
    let mut rig = Rig::new();
    let (admin, io, _) = prompt_queues(&mut rig);
    rig.disk.is_held = true;
    rig.write_fused(io, 10, &[0; BLOCK], IoOpcode::Compare, Fuse::First);
    rig.write_fused(io, 10, &[2; BLOCK], IoOpcode::Write, Fuse::Second);
    shut_down(&mut rig, admin, ShutdownNotification::Normal);
    for _ in 0..2 {
        assert_eq!(shutdown_status(&mut rig, admin), ShutdownStatus::Occurring as u64);
        rig.complete(0);
        rig.run();
    }
    assert_eq!(shutdown_status(&mut rig, admin), ShutdownStatus::Complete as u64);
    assert_eq!(rig.disk.bytes[10 * BLOCK], 2);
}

#[test]
fn a_shutdown_waits_for_reservations_that_are_being_saved() {
    let mut rig = Rig::new();
    let (admin, io, _) = prompt_queues(&mut rig);
    let data = DataPointer::InCapsule { offset: 0, len: 16 };
    let entry = registration(PersistChange::Set).encode(rig.command_id(io), NamespaceId(1), data);
    rig.submit(io, &entry, &[[0; 8], 1_u64.to_le_bytes()].concat());
    let changed = rig.target.next_reservations_changed().expect("something to save");
    shut_down(&mut rig, admin, ShutdownNotification::Normal);
    assert_eq!(shutdown_status(&mut rig, admin), ShutdownStatus::Occurring as u64);
    rig.target.reservations_saved(changed.namespace, u64::MAX);
    rig.run();
    assert_eq!(rig.response(io).status(), Status::SUCCESS);
    assert_eq!(shutdown_status(&mut rig, admin), ShutdownStatus::Complete as u64);
}

#[test]
fn a_shutdown_waits_no_longer_for_what_a_lost_queue_asked() {
    let mut rig = Rig::new();
    let (admin, io, _) = prompt_queues(&mut rig);
    let data = DataPointer::InCapsule { offset: 0, len: 16 };
    let entry = registration(PersistChange::Set).encode(rig.command_id(io), NamespaceId(1), data);
    rig.submit(io, &entry, &[[0; 8], 1_u64.to_le_bytes()].concat());
    shut_down(&mut rig, admin, ShutdownNotification::Normal);
    assert_eq!(shutdown_status(&mut rig, admin), ShutdownStatus::Occurring as u64);
    rig.hang_up(io);
    assert_eq!(shutdown_status(&mut rig, admin), ShutdownStatus::Complete as u64);
}
