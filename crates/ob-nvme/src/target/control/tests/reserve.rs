//! Reservation commands on queues, and what hosts are told.

use ob_wire_nvme::io::{
    PersistChange, ReservationAcquire, ReservationAcquireAction, ReservationKeys, ReservationRegister,
    ReservationRegisterAction, ReservationRelease, ReservationReleaseAction, ReservationReport,
    ReservationStatus,
};

use super::*;

const ONE: NamespaceId = NamespaceId(1);
const KEYS: DataPointer = DataPointer::InCapsule { offset: 0, len: 16 };

fn keys(current: u64, other: u64) -> Vec<u8> {
    ReservationKeys { current: current.into(), other: other.into() }.as_bytes().to_vec()
}

fn register(stage: &mut Stage, queue: QueueIdentity, key: u64, persist: PersistChange) -> Verdict {
    let action = ReservationRegisterAction::Register;
    let entry = ReservationRegister { action, ignore_key: false, persist }.encode(CommandId(1), ONE, KEYS);
    stage.command(queue, &entry, &keys(0, key))
}

fn acquire(
    stage: &mut Stage,
    queue: QueueIdentity,
    action: ReservationAcquireAction,
    (key, other): (u64, u64),
    kind: ReservationType,
) -> Verdict {
    let entry = ReservationAcquire { action, ignore_key: false, kind }.encode(CommandId(1), ONE, KEYS);
    stage.command(queue, &entry, &keys(key, other))
}

fn report(stage: &mut Stage, queue: QueueIdentity) -> ReservationStatus {
    let entry = ReservationReport { len: 4096, is_extended: true }.encode(CommandId(1), ONE);
    ReservationStatus::parse(&bytes_of(stage.command(queue, &entry, &[])), true).unwrap()
}

fn may(stage: &Stage, queue: QueueIdentity, access: Access) -> bool {
    let namespace = stage.control.namespace(queue.controller, 1).unwrap();
    stage.control.admit(queue, namespace, access).is_ok()
}

#[test]
fn a_reservation_keeps_other_hosts_out() {
    let mut stage = Stage::new();
    let (_, first) = stage.with_queue(1);
    let (_, second) = stage.with_queue(2);
    assert_eq!(register(&mut stage, first, 11, PersistChange::Keep), Verdict::SUCCESS);
    let kind = ReservationType::WriteExclusive;
    let action = ReservationAcquireAction::Acquire;
    assert_eq!(acquire(&mut stage, first, action, (11, 0), kind), Verdict::SUCCESS);
    assert!(may(&stage, first, Access::Write) && may(&stage, second, Access::Read));
    assert!(!may(&stage, second, Access::Write));
    let other = stage.control.namespace(second.controller, 2).unwrap();
    assert_eq!(stage.control.admit(second, other, Access::Write), Ok(()), "another namespace");
    let conflict = acquire(&mut stage, second, action, (11, 0), kind);
    assert_eq!(conflict, refused(Status::RESERVATION_CONFLICT));
    let seen = report(&mut stage, second);
    assert_eq!((seen.kind, seen.generation, seen.is_persistent), (Some(kind), 1, false));
    let [holder] = seen.registrants[..] else { panic!("{seen:?}") };
    assert_eq!((holder.key, holder.is_holder, holder.host_id), (11, true, [1; 16]));
    assert!(stage.events().is_empty(), "nothing is to be saved");
    // The host's next association still holds it.
    let (_, again) = stage.with_queue(1);
    assert!(may(&stage, again, Access::Write));
}

#[test]
fn what_persists_is_answered_after_it_is_saved() {
    let mut stage = Stage::new();
    let (_, queue) = stage.with_queue(1);
    let verdict = register(&mut stage, queue, 5, PersistChange::Set);
    let Verdict::DoneAfter { namespace, saved, drain, status: Status::SUCCESS, .. } = verdict else {
        panic!("{verdict:?}")
    };
    assert!(drain.is_empty() && saved == [(namespace, 1)], "{saved:?}");
    let changed = ControlEvent::ReservationsChanged { subsystem: stage.subsystem, namespace, nsid: 1 };
    assert_eq!(stage.events(), [changed]);
    let saved = stage.control.reservations(stage.subsystem, 1).unwrap().encode();

    let mut restarted = Stage::new();
    let state = ReservationState::decode(&saved).unwrap();
    restarted.control.restore_reservations(restarted.subsystem, 1, state).unwrap();
    let (_, queue) = restarted.with_queue(1);
    let seen = report(&mut restarted, queue);
    assert!(seen.is_persistent);
    assert_eq!(seen.registrants[0].key, 5);
    // To persist no more has to be saved, too.
    let verdict = register(&mut restarted, queue, 5, PersistChange::Clear);
    assert_eq!(versions(&verdict), [2], "{verdict:?}");
    let entry = set_features(0x83, 1, 1).encode(CommandId(1));
    let admin = QueueIdentity::admin(queue.controller);
    let verdict = restarted.command(admin, &entry, &[]);
    assert_eq!(versions(&verdict), [3], "{verdict:?}");
}

/// Who reads that another host is fenced acts on it, and after a loss of power it must still be so.
#[test]
fn what_persists_is_told_to_others_after_it_is_saved() {
    let mut stage = Stage::new();
    let (_, first) = stage.with_queue(1);
    let (admin_queue, second) = stage.with_queue(2);
    let entry = ReservationReport { len: 4096, is_extended: true }.encode(CommandId(1), ONE);
    let waits_for = |stage: &mut Stage| {
        let persists = u64::from(stage.control.reservations(stage.subsystem, 1).unwrap().persists());
        let report = match stage.command(second, &entry, &[]) {
            Verdict::DataAfter { namespace, version, .. } => Some((namespace, version)),
            _ => None,
        };
        let (result, status) = (persists, Status::SUCCESS);
        let feature = match report {
            Some((namespace, version)) => {
                let (saved, drain) = (vec![(namespace, version)], Vec::new());
                Verdict::DoneAfter { namespace, saved, drain, result, status }
            }
            None => Verdict::Done { result, status },
        };
        assert_eq!(admin::get(stage, admin_queue, 0x83, 0, 1), feature);
        report
    };
    assert_eq!(waits_for(&mut stage), None);
    let verdict = register(&mut stage, first, 5, PersistChange::Set);
    let Verdict::DoneAfter { namespace, saved, .. } = verdict else { panic!("{verdict:?}") };
    assert_eq!(waits_for(&mut stage), Some(saved[0]));
    let verdict = register(&mut stage, first, 5, PersistChange::Clear);
    let later = versions(&verdict)[0];
    stage.control.reservations_saved(namespace, later - 1);
    assert_eq!(waits_for(&mut stage), Some((namespace, later)), "an older one is not enough");
    stage.control.reservations_saved(namespace, later);
    assert_eq!(waits_for(&mut stage), None);
}

/// The versions that an answer waits for.
fn versions(verdict: &Verdict) -> Vec<u64> {
    match verdict {
        Verdict::DoneAfter { saved, .. } => saved.iter().map(|(_, version)| *version).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn to_have_all_namespaces_persist_waits_for_each() {
    let mut stage = Stage::new();
    let (admin, _) = stage.with_queue(1);
    let persist = |nsid| set_features(0x83, 1, nsid).encode(CommandId(1));
    let verdict = stage.command(admin, &persist(2), &[]);
    assert_eq!(versions(&verdict).len(), 1, "{verdict:?}");
    // The second does not change any more, and may not be saved yet; it does not speak for the first.
    let verdict = stage.command(admin, &persist(u32::MAX), &[]);
    assert_eq!(versions(&verdict).len(), 2, "{verdict:?}");
    let all = set_features(0x83, 0, u32::MAX).encode(CommandId(1));
    let verdict = stage.command(admin, &all, &[]);
    assert_eq!(versions(&verdict).len(), 2, "{verdict:?}");
}

#[test]
fn preempt_and_abort_waits_for_the_preempted_host() {
    let mut stage = Stage::new();
    let (_, first) = stage.with_queue(1);
    let (second_admin, second) = stage.with_queue(2);
    register(&mut stage, first, 1, PersistChange::Keep);
    register(&mut stage, second, 2, PersistChange::Keep);
    let kind = ReservationType::ExclusiveAccess;
    acquire(&mut stage, second, ReservationAcquireAction::Acquire, (2, 0), kind);
    stage.hold(second_admin, 33);
    let action = ReservationAcquireAction::PreemptAndAbort;
    let verdict = acquire(&mut stage, first, action, (1, 2), kind);
    let Verdict::DoneAfter { saved, drain, status: Status::SUCCESS, .. } = verdict else {
        panic!("{verdict:?}")
    };
    assert!(saved.is_empty());
    assert_eq!(drain, [second.controller]);
    assert!(may(&stage, first, Access::Write) && !may(&stage, second, Access::Read));
    let told = ControlEvent::CompleteAsync {
        queue: second_admin,
        command: CommandId(33),
        result: 0x0080_0006,
        status: Status::SUCCESS,
    };
    assert_eq!(stage.events(), [told]);
    let log = bytes_of(stage.log(second_admin, 0x80, 64, false));
    assert_eq!((long(&log, 0), log[8], log[9], word(&log, 12)), (1, 1, 0, 1));
    let empty = bytes_of(stage.log(second_admin, 0x80, 64, false));
    assert_eq!(empty, [0; 64]);
}

#[test]
fn preempt_and_abort_waits_for_associations_that_were_lost() {
    let mut stage = Stage::new();
    let (_, first) = stage.with_queue(1);
    let (second_admin, second) = stage.with_queue(2);
    register(&mut stage, first, 1, PersistChange::Keep);
    register(&mut stage, second, 2, PersistChange::Keep);
    stage.control.disconnected(second_admin);
    let action = ReservationAcquireAction::PreemptAndAbort;
    let verdict = acquire(&mut stage, first, action, (1, 2), ReservationType::ExclusiveAccess);
    let Verdict::DoneAfter { drain, .. } = verdict else { panic!("{verdict:?}") };
    assert_eq!(drain, [second.controller]);
}

#[test]
fn a_host_hears_after_a_reset_of_notifications_that_it_has_not_read() {
    let mut stage = Stage::new();
    let (_, first) = stage.with_queue(1);
    let (admin, second) = stage.with_queue(2);
    register(&mut stage, first, 1, PersistChange::Keep);
    register(&mut stage, second, 2, PersistChange::Keep);
    let kind = ReservationType::ExclusiveAccess;
    acquire(&mut stage, second, ReservationAcquireAction::Acquire, (2, 0), kind);
    acquire(&mut stage, first, ReservationAcquireAction::Preempt, (1, 2), kind);
    assert_eq!(stage.set_property(admin, Property::Configuration, 0), Verdict::SUCCESS);
    stage.enable(admin);
    stage.events();
    stage.hold(admin, 1);
    assert_eq!(stage.events().len(), 1);
    assert_eq!(long(&bytes_of(stage.log(admin, 0x80, 64, false)), 0), 1);
}

#[test]
fn notifications_wait_in_order_and_can_be_masked() {
    let mut stage = Stage::new();
    let (_, first) = stage.with_queue(1);
    let (admin, second) = stage.with_queue(2);
    let kind = ReservationType::WriteExclusiveRegistrants;
    let release =
        ReservationRelease { action: ReservationReleaseAction::Release, ignore_key: false, kind: Some(kind) };
    let round = |stage: &mut Stage| {
        register(stage, first, 1, PersistChange::Keep);
        register(stage, second, 2, PersistChange::Keep);
        acquire(stage, first, ReservationAcquireAction::Acquire, (1, 0), kind);
        let entry = release.encode(CommandId(1), ONE, DataPointer::InCapsule { offset: 0, len: 8 });
        assert_eq!(stage.command(first, &entry, &1_u64.to_le_bytes()), Verdict::SUCCESS);
    };
    round(&mut stage);
    round(&mut stage);
    stage.hold(admin, 1);
    stage.hold(admin, 2);
    assert_eq!(stage.events().len(), 1, "one event for both");
    let log = bytes_of(stage.log(admin, 0x80, 64, false));
    assert_eq!((long(&log, 0), log[8], log[9]), (1, 2, 1));
    assert_eq!(stage.events().len(), 1, "there is more to read");
    let log = bytes_of(stage.log(admin, 0x80, 64, false));
    assert_eq!((long(&log, 0), log[8], log[9]), (2, 2, 0));
    // RESREL masked on all namespaces.
    let entry = set_features(0x82, 1 << 2, u32::MAX).encode(CommandId(1));
    assert_eq!(stage.command(admin, &entry, &[]), Verdict::SUCCESS);
    round(&mut stage);
    assert_eq!(bytes_of(stage.log(admin, 0x80, 64, false)), [0; 64]);
}

#[test]
fn commands_that_cannot_be_are_refused() {
    let mut stage = Stage::new();
    let (_, queue) = stage.with_queue(1);
    let short = ReservationReport { len: 4096, is_extended: false }.encode(CommandId(1), ONE);
    assert_eq!(stage.command(queue, &short, &[]), refused(Status::HOST_ID_INCONSISTENT));
    let unknown = ReservationReport { len: 4096, is_extended: true }.encode(CommandId(1), NamespaceId(3));
    assert_eq!(stage.command(queue, &unknown, &[]), refused(Status::INVALID_NAMESPACE));
    let report = ReservationReport { len: 4096, is_extended: true }.encode(CommandId(1), ONE);
    let small = stage.control.command(stage.now, queue, &report, &[], 64);
    assert_eq!(small, refused(Status::INVALID_SGL_LENGTH));
    let action = ReservationRegisterAction::Register;
    let persist = PersistChange::Keep;
    let entry = ReservationRegister { action, ignore_key: false, persist }.encode(CommandId(1), ONE, KEYS);
    assert_eq!(stage.command(queue, &entry, &[0; 15]), refused(Status::INVALID_SGL_LENGTH));
    let ignoring = ReservationAcquire {
        action: ReservationAcquireAction::Acquire,
        ignore_key: true,
        kind: ReservationType::WriteExclusive,
    };
    let entry = ignoring.encode(CommandId(1), ONE, KEYS);
    assert_eq!(stage.command(queue, &entry, &keys(1, 0)), refused(Status::INVALID_FIELD));
    let anonymous = ConnectParties { host_id: [0; 16], ..parties(4) };
    let connected = stage.try_connect(admin_connect(), &anonymous).unwrap();
    stage.enable(connected.identity);
    let connect = Connect { queue: QueueId(1), ..admin_connect() };
    let mine = ConnectParties { controller: connected.cntlid, ..anonymous };
    let queue = stage.try_connect(connect, &mine).unwrap().identity;
    let verdict = register(&mut stage, queue, 1, PersistChange::Keep);
    assert_eq!(verdict, refused(Status::HOST_ID_INCONSISTENT));
}

#[test]
fn an_inaccessible_namespace_takes_no_reservation_commands() {
    let mut stage = Stage::new();
    let (_, queue) = stage.with_queue(1);
    stage.control.set_ana_state(stage.subsystem, PORT, 1, AnaState::Inaccessible).unwrap();
    let verdict = register(&mut stage, queue, 1, PersistChange::Keep);
    assert_eq!(verdict, Verdict::Done { result: 0, status: Status::ANA_INACCESSIBLE });
}

#[test]
fn a_read_only_namespace_refuses_writes_and_nothing_else() {
    let mut stage = Stage::new();
    let (_, queue) = stage.with_queue(1);
    stage.control.set_read_only(stage.subsystem, 1, true).unwrap();
    assert!(may(&stage, queue, Access::Read) && may(&stage, queue, Access::Flush));
    let namespace = stage.control.namespace(queue.controller, 1).unwrap();
    let status = stage.control.admit(queue, namespace, Access::Write);
    assert_eq!(status, Err(Status::NAMESPACE_WRITE_PROTECTED.with_do_not_retry()));
}
