//! The reservation state by itself: the table of the specification, transitions, the saved form.

use ob_wire_nvme::io::ReservationRegisterAction as Action;
use ob_wire_nvme::log::ReservationNotificationKind as Kind;
use proptest::prelude::*;

use super::super::reservation::Outcome;
use super::*;

const HOLDER: [u8; 16] = [1; 16];
const REGISTRANT: [u8; 16] = [2; 16];
const STRANGER: [u8; 16] = [3; 16];

const CONFLICT: Status = Status::RESERVATION_CONFLICT.with_do_not_retry();
const INVALID: Status = Status::INVALID_FIELD.with_do_not_retry();

fn register(state: &mut ReservationState, host: [u8; 16], key: u64) -> Result<Outcome, Status> {
    state.register(&host, Action::Register, false, (0, key), None)
}

/// Held by `HOLDER` with key 1; `REGISTRANT` has registered key 2.
fn held(kind: ReservationType) -> ReservationState {
    let mut state = ReservationState::default();
    register(&mut state, HOLDER, 1).unwrap();
    register(&mut state, REGISTRANT, 2).unwrap();
    state.acquire(&HOLDER, 1, kind).unwrap();
    state
}

/// Base figure "Command Behavior in the Presence of a Reservation": which of read and write each may, by type.
#[test]
fn the_table_of_the_specification() {
    use ReservationType::{
        ExclusiveAccess, ExclusiveAccessAll, ExclusiveAccessRegistrants, WriteExclusive, WriteExclusiveAll,
        WriteExclusiveRegistrants,
    };
    // Read and write of the holder, of another registrant, of a stranger.
    let table = [
        (WriteExclusive, [(true, true), (true, false), (true, false)]),
        (ExclusiveAccess, [(true, true), (false, false), (false, false)]),
        (WriteExclusiveRegistrants, [(true, true), (true, true), (true, false)]),
        (ExclusiveAccessRegistrants, [(true, true), (true, true), (false, false)]),
        (WriteExclusiveAll, [(true, true), (true, true), (true, false)]),
        (ExclusiveAccessAll, [(true, true), (true, true), (false, false)]),
    ];
    for (kind, rows) in table {
        let state = held(kind);
        for (host, (read, write)) in [HOLDER, REGISTRANT, STRANGER].iter().zip(rows) {
            assert_eq!(state.admits(host, Access::Read), read, "{kind:?} {host:?} reads");
            assert_eq!(state.admits(host, Access::Write), write, "{kind:?} {host:?} writes");
            assert_eq!(state.admits(host, Access::Flush), write, "{kind:?} {host:?} flushes");
        }
    }
    let mut free = ReservationState::default();
    register(&mut free, HOLDER, 1).unwrap();
    assert!(free.admits(&STRANGER, Access::Write), "a registration alone forbids nothing");
}

#[test]
fn registering_twice_needs_the_same_key() {
    let mut state = ReservationState::default();
    assert_eq!(register(&mut state, HOLDER, 0), Err(INVALID));
    register(&mut state, HOLDER, 1).unwrap();
    assert_eq!(state.generation(), 1);
    register(&mut state, HOLDER, 1).unwrap();
    assert_eq!(register(&mut state, HOLDER, 2), Err(CONFLICT));
    assert_eq!(state.registrants().len(), 1);
}

#[test]
fn replacing_a_key_needs_the_old_one_or_to_ignore_it() {
    let mut state = ReservationState::default();
    let mut replace = |current, new, ignore| {
        let outcome = state.register(&HOLDER, Action::Replace, ignore, (current, new), None);
        outcome.map(|_| state.registrants()[0].key)
    };
    assert_eq!(replace(0, 5, false), Err(CONFLICT), "not registered");
    assert_eq!(replace(0, 5, true), Ok(5), "registered by it");
    assert_eq!(replace(4, 6, false), Err(CONFLICT));
    assert_eq!(replace(5, 6, false), Ok(6));
    assert_eq!(replace(4, 7, true), Ok(7));
    assert_eq!(replace(7, 0, false), Err(INVALID), "0 is no key");
}

/// CVE-2025-57275: more registrants than there is room for.
#[test]
fn registrants_are_bounded() {
    let mut state = ReservationState::default();
    for host in 0..REGISTRANTS_MAX {
        register(&mut state, [host as u8 + 1; 16], 1).unwrap();
    }
    let before = state.clone();
    assert_eq!(register(&mut state, [200; 16], 1), Err(Status::INSUFFICIENT_CAPACITY));
    let replace = state.register(&[200; 16], Action::Replace, true, (0, 1), None);
    assert_eq!(replace, Err(Status::INSUFFICIENT_CAPACITY));
    assert_eq!(state, before);
    state.register(&[1; 16], Action::Unregister, false, (1, 0), None).unwrap();
    register(&mut state, [200; 16], 1).unwrap();
}

#[test]
fn unregistering_the_holder_releases() {
    for kind in ReservationType::ALL {
        let mut state = held(*kind);
        let wrong = state.register(&HOLDER, Action::Unregister, false, (9, 0), None);
        assert_eq!(wrong, Err(CONFLICT));
        let stranger = state.register(&STRANGER, Action::Unregister, true, (1, 0), None);
        assert_eq!(stranger, Err(CONFLICT));
        let outcome = state.register(&HOLDER, Action::Unregister, false, (1, 0), None).unwrap();
        match kind {
            ReservationType::WriteExclusiveAll | ReservationType::ExclusiveAccessAll => {
                assert_eq!(state.kind(), Some(*kind), "the other one holds it still");
                assert!(outcome.notices.is_empty());
                state.register(&REGISTRANT, Action::Unregister, false, (2, 0), None).unwrap();
            }
            ReservationType::WriteExclusiveRegistrants | ReservationType::ExclusiveAccessRegistrants => {
                assert_eq!(outcome.notices, [(REGISTRANT, Kind::ReservationReleased)]);
            }
            _ => assert!(outcome.notices.is_empty()),
        }
        assert_eq!(state.kind(), None);
    }
}

#[test]
fn acquiring_needs_registration_key_and_nobody_before() {
    for kind in ReservationType::ALL {
        let mut state = held(*kind);
        let before = state.clone();
        assert_eq!(state.acquire(&STRANGER, 1, *kind), Err(CONFLICT));
        assert_eq!(state.acquire(&HOLDER, 2, *kind), Err(CONFLICT), "another's key");
        assert_eq!(state.acquire(&HOLDER, 1, *kind), Ok(Outcome::default()), "once more");
        let is_all = matches!(kind, ReservationType::WriteExclusiveAll | ReservationType::ExclusiveAccessAll);
        assert_eq!(state.acquire(&REGISTRANT, 2, *kind).is_ok(), is_all);
        let other = ReservationType::ALL.iter().find(|other| *other != kind).unwrap();
        assert_eq!(state.acquire(&HOLDER, 1, *other), Err(CONFLICT), "of another type");
        assert_eq!(state, before);
    }
}

#[test]
fn releasing_needs_the_type_and_tells_registrants_who_gain() {
    for kind in ReservationType::ALL {
        let mut state = held(*kind);
        let generation = state.generation();
        let other = ReservationType::ALL.iter().find(|other| *other != kind);
        assert_eq!(state.release(&HOLDER, 1, other.copied()), Err(INVALID));
        assert_eq!(state.release(&STRANGER, 1, Some(*kind)), Err(CONFLICT));
        assert_eq!(state.release(&HOLDER, 7, Some(*kind)), Err(CONFLICT));
        let outcome = state.release(&HOLDER, 1, Some(*kind)).unwrap();
        let is_told = !matches!(kind, ReservationType::WriteExclusive | ReservationType::ExclusiveAccess);
        assert_eq!(outcome.notices.len(), usize::from(is_told), "{kind:?}");
        assert_eq!(state.kind(), None);
        assert_eq!(state.registrants().len(), 2);
        assert_eq!(state.generation(), generation, "no registration changed");
        assert_eq!(state.release(&HOLDER, 1, Some(*kind)), Ok(Outcome::default()), "nothing to release");
    }
    let mut state = held(ReservationType::WriteExclusive);
    let outcome = state.release(&REGISTRANT, 2, Some(ReservationType::WriteExclusive));
    assert_eq!(outcome, Ok(Outcome::default()), "whoever does not hold releases nothing");
    assert!(state.is_holder(&HOLDER));
}

#[test]
fn preempting_the_holder_takes_the_reservation() {
    let mut state = held(ReservationType::WriteExclusive);
    register(&mut state, STRANGER, 3).unwrap();
    let generation = state.generation();
    assert_eq!(state.preempt(&REGISTRANT, 9, 1, ReservationType::ExclusiveAccess), Err(CONFLICT));
    assert_eq!(state.preempt(&REGISTRANT, 2, 0, ReservationType::ExclusiveAccess), Err(INVALID));
    assert_eq!(state.preempt(&REGISTRANT, 2, 77, ReservationType::ExclusiveAccess), Err(CONFLICT));
    let outcome = state.preempt(&REGISTRANT, 2, 1, ReservationType::ExclusiveAccess).unwrap();
    assert_eq!(outcome.preempted, [HOLDER]);
    assert_eq!(
        outcome.notices,
        [(HOLDER, Kind::RegistrationPreempted), (STRANGER, Kind::ReservationReleased)]
    );
    assert!(state.is_holder(&REGISTRANT) && !state.is_holder(&HOLDER));
    assert_eq!(state.kind(), Some(ReservationType::ExclusiveAccess));
    assert_eq!(state.generation(), generation + 1);
}

#[test]
fn preempting_a_registrant_leaves_the_holder() {
    let mut state = held(ReservationType::WriteExclusiveRegistrants);
    let outcome = state.preempt(&HOLDER, 1, 2, ReservationType::ExclusiveAccess).unwrap();
    assert_eq!(outcome.preempted, [REGISTRANT]);
    assert_eq!(state.kind(), Some(ReservationType::WriteExclusiveRegistrants), "RTYPE is of no meaning");
    assert!(state.is_holder(&HOLDER));
}

#[test]
fn a_holder_preempts_itself_to_change_the_type() {
    let mut state = held(ReservationType::WriteExclusive);
    let outcome = state.preempt(&HOLDER, 1, 1, ReservationType::ExclusiveAccess).unwrap();
    assert!(outcome.preempted.is_empty());
    assert_eq!(outcome.notices, [(REGISTRANT, Kind::ReservationReleased)]);
    assert_eq!(state.kind(), Some(ReservationType::ExclusiveAccess));
    assert!(state.is_holder(&HOLDER));
}

#[test]
fn preempting_all_registrants_with_key_zero_removes_everybody_else() {
    let mut state = held(ReservationType::WriteExclusiveAll);
    register(&mut state, STRANGER, 3).unwrap();
    let outcome = state.preempt(&REGISTRANT, 2, 3, ReservationType::WriteExclusive).unwrap();
    assert_eq!(outcome.preempted, [STRANGER]);
    assert_eq!(state.kind(), Some(ReservationType::WriteExclusiveAll));
    let outcome = state.preempt(&REGISTRANT, 2, 0, ReservationType::WriteExclusive).unwrap();
    assert_eq!(outcome.preempted, [HOLDER]);
    assert_eq!(state.kind(), Some(ReservationType::WriteExclusive));
    assert_eq!(state.registrants().len(), 1);
}

#[test]
fn without_a_reservation_preempting_removes_registrations() {
    let mut state = ReservationState::default();
    register(&mut state, HOLDER, 1).unwrap();
    register(&mut state, REGISTRANT, 2).unwrap();
    let outcome = state.preempt(&HOLDER, 1, 2, ReservationType::WriteExclusive).unwrap();
    assert_eq!(outcome.preempted, [REGISTRANT]);
    assert_eq!(state.kind(), None);
    assert_eq!(state.preempt(&HOLDER, 1, 2, ReservationType::WriteExclusive), Err(CONFLICT));
}

#[test]
fn clearing_removes_everything() {
    let mut state = held(ReservationType::ExclusiveAccess);
    assert_eq!(state.clear(&STRANGER, 1), Err(CONFLICT));
    let outcome = state.clear(&REGISTRANT, 2).unwrap();
    assert_eq!(outcome.notices, [(HOLDER, Kind::ReservationPreempted)]);
    assert!(state.registrants().is_empty());
    assert_eq!(state.kind(), None);
}

#[test]
fn only_what_is_to_survive_is_restored() {
    for kind in ReservationType::ALL {
        let mut state = held(*kind);
        let lost = ReservationState::decode(&state.encode()).unwrap();
        assert!(lost.registrants().is_empty() && lost.kind().is_none());
        assert_eq!(lost.version(), state.version());
        state.set_persists(true);
        let restored = ReservationState::decode(&state.encode()).unwrap();
        assert_eq!(restored.registrants(), state.registrants());
        assert_eq!((restored.kind(), restored.persists()), (Some(*kind), true));
        assert_eq!((restored.version(), restored.generation()), (state.version(), state.generation()));
        for host in state.registrants() {
            assert_eq!(restored.is_holder(&host.host_id), state.is_holder(&host.host_id), "{kind:?}");
        }
    }
}

#[test]
fn a_saved_state_that_is_damaged_is_refused() {
    let mut state = held(ReservationType::WriteExclusive);
    state.set_persists(true);
    let bytes = state.encode();
    for index in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[index] ^= 1;
        assert!(ReservationState::decode(&damaged).is_err(), "byte {index}");
        assert!(ReservationState::decode(&bytes[..index]).is_err());
    }
}

proptest! {
    #[test]
    fn decoding_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = ReservationState::decode(&bytes);
        let mut framed = b"OBRS\x01\0\0\0".to_vec();
        framed.extend_from_slice(&bytes);
        let digest = ob_wire_nvme::pdu::digest(&framed);
        framed.extend_from_slice(&digest);
        if let Ok(state) = ReservationState::decode(&framed) {
            prop_assert!(state.registrants().len() <= REGISTRANTS_MAX);
        }
    }

    /// Whatever hosts do: a reservation has a holder that is registered, and what is saved comes back.
    #[test]
    fn a_reservation_always_has_a_registered_holder(
        steps in proptest::collection::vec((0_u8..6, 1_u8..5, 0_u64..4, 0_u64..4, 0_usize..6), 1..60)
    ) {
        let mut state = ReservationState::default();
        for (step, host, key, other, kind) in steps {
            let host = [host; 16];
            let kind = ReservationType::ALL[kind];
            let _ = match step {
                0 => register(&mut state, host, key),
                1 => state.register(&host, Action::Unregister, other == 0, (key, 0), Some(true)),
                2 => state.acquire(&host, key, kind),
                3 => state.preempt(&host, key, other, kind),
                4 => state.release(&host, key, Some(kind)),
                _ => state.register(&host, Action::Replace, key == 0, (key, other), None),
            };
            if state.kind().is_some() {
                let holders = state.registrants().iter().filter(|found| state.is_holder(&found.host_id));
                prop_assert!(holders.count() > 0);
            }
            prop_assert!(state.registrants().iter().all(|found| found.key != 0));
            let restored = ReservationState::decode(&state.encode()).unwrap();
            if state.persists() {
                prop_assert_eq!(restored.registrants(), state.registrants());
                prop_assert_eq!(restored.kind(), state.kind());
                for host in 1..5 {
                    prop_assert_eq!(restored.is_holder(&[host; 16]), state.is_holder(&[host; 16]));
                }
            }
        }
    }
}
