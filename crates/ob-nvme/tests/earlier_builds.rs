//! Reservations that earlier builds kept: every later one takes them up, keeps hosts out by them, and goes on from there.
//!
//! Made once, with the build that first wrote their version, and never again:
//!
//! ```sh
//! cargo test -p ob-nvme earlier_builds::make -- --ignored
//! ```

// A test that cannot go on should say where.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::support;

use std::path::Path;

use ob_nvme::target::control::{Access, RegisteredHost, ReservationState, ReservationType};
use ob_sim::Dump;
use ob_wire_nvme::io::{
    PersistChange, ReservationAcquire, ReservationAcquireAction, ReservationRegister,
    ReservationRegisterAction,
};
use ob_wire_nvme::pdu::Digests;
use ob_wire_nvme::{DataPointer, NamespaceId, Status};
use support::{Client, Rig, Wish};

/// What is kept, by the version of the format that it is of.
const DUMPS: [(&str, &str); 1] = [("reservations-v1.txt", include_str!("earlier/reservations-v1.txt"))];
/// The one that today's build makes.
const NEWEST: &str = "reservations-v1.txt";
const HOSTS: [(u8, u64); 2] = [(5, 0x0102_0304_0506_0708), (6, 9)];

/// The pieces of a dump: who holds, of which type.
const HELD: [(&str, Option<ReservationType>); 3] = [
    ("nobody", None),
    ("second", Some(ReservationType::WriteExclusive)),
    ("all", Some(ReservationType::ExclusiveAccessAll)),
];

/// Queues of two hosts, and what is answered when a change is kept.
struct Stage {
    rig: Rig,
    queues: [Client; 2],
}

impl Stage {
    fn new() -> Self {
        let mut rig = Rig::new();
        let queues = HOSTS.map(|(host, _)| {
            let wish = Wish { host_id: [host; 16], ..Wish::default() };
            let (_, controller) = rig.admin_as(Digests::NONE, &wish);
            let io = rig.open(Digests::NONE);
            assert_eq!(rig.connect_as(io, 1, &Wish { controller, ..wish }).status(), Status::SUCCESS);
            io
        });
        Self { rig, queues }
    }

    /// What is to be kept now.
    fn kept(&self) -> Vec<u8> {
        self.rig.target.control().reservations(self.rig.subsystem, 1).unwrap().encode()
    }

    /// Does what a command needs that it is answered, and gives its status.
    fn status(&mut self, io: Client) -> Status {
        while let Some(changed) = self.rig.target.next_reservations_changed() {
            self.rig.target.reservations_saved(changed.namespace, u64::MAX);
        }
        self.rig.run();
        self.rig.response(io).status()
    }

    fn register(&mut self, host: usize, current: u64, key: u64) -> Status {
        let io = self.queues[host];
        let action = match current {
            0 => ReservationRegisterAction::Register,
            _ => ReservationRegisterAction::Replace,
        };
        let register = ReservationRegister { action, ignore_key: false, persist: PersistChange::Set };
        let data = DataPointer::InCapsule { offset: 0, len: 16 };
        let entry = register.encode(self.rig.command_id(io), NamespaceId(1), data);
        self.rig.submit(io, &entry, &[current.to_le_bytes(), key.to_le_bytes()].concat());
        self.status(io)
    }

    fn acquire(&mut self, host: usize, key: u64, kind: ReservationType) -> Status {
        let io = self.queues[host];
        let acquire =
            ReservationAcquire { action: ReservationAcquireAction::Acquire, ignore_key: false, kind };
        let data = DataPointer::InCapsule { offset: 0, len: 16 };
        let entry = acquire.encode(self.rig.command_id(io), NamespaceId(1), data);
        self.rig.submit(io, &entry, &[key.to_le_bytes(), [0; 8]].concat());
        self.status(io)
    }
}

/// What today's build keeps of this.
fn written(kind: Option<ReservationType>) -> Vec<u8> {
    let mut stage = Stage::new();
    for (index, (_, key)) in HOSTS.into_iter().enumerate() {
        assert_eq!(stage.register(index, 0, key), Status::SUCCESS);
    }
    if let Some(kind) = kind {
        assert_eq!(stage.acquire(1, HOSTS[1].1, kind), Status::SUCCESS);
    }
    stage.kept()
}

fn assert_says(bytes: &[u8], kind: Option<ReservationType>, what: &str) -> ReservationState {
    let state = ReservationState::decode(bytes).expect(what);
    let hosts = HOSTS.map(|(host, key)| RegisteredHost { host_id: [host; 16], key });
    assert_eq!((state.registrants(), state.kind(), state.persists()), (&hosts[..], kind, true), "{what}");
    let holders = HOSTS.map(|(host, _)| state.is_holder(&[host; 16]));
    let expected = match kind {
        None => [false, false],
        Some(ReservationType::ExclusiveAccessAll) => [true, true],
        Some(_) => [false, true],
    };
    assert_eq!(holders, expected, "{what}");
    assert_eq!(state.admits(&[9; 16], Access::Write), kind.is_none(), "{what}");
    assert_eq!((state.generation(), state.version() > 0), (2, true), "{what}");
    state
}

#[test]
fn reservations_of_earlier_builds_are_taken_up_kept_and_changed() {
    for (name, text) in DUMPS {
        let dump = Dump::parse(text).unwrap();
        let mut pieces: Vec<_> = HELD.iter().map(|(piece, _)| *piece).collect();
        pieces.sort_unstable();
        assert!(dump.pieces().map(|(piece, _)| piece).eq(pieces), "{name} has what it should, and no more");
        for (piece, kind) in HELD {
            let what = format!("{name}: {piece}");
            let state = assert_says(dump.piece(piece).unwrap(), kind, &what);
            let version = state.version();
            let mut stage = Stage::new();
            let subsystem = stage.rig.subsystem;
            stage.rig.target.control_mut().restore_reservations(subsystem, 1, state).unwrap();
            // A host goes on with the key that it had, and with no other.
            assert!(stage.register(0, 77, 8).is(Status::RESERVATION_CONFLICT), "{what}");
            assert_eq!(stage.register(0, HOSTS[0].1, 8), Status::SUCCESS, "{what}");
            let kept = ReservationState::decode(&stage.kept()).unwrap();
            assert_eq!((kept.registrants()[0].key, kept.kind()), (8, kind), "{what}");
            assert!(kept.version() > version, "{what}");
        }
    }
}

#[test]
fn what_makes_the_dumps_still_does() {
    for (piece, kind) in HELD {
        assert_says(&written(kind), kind, piece);
    }
}

#[test]
#[ignore = "writes the dump of a new version, once"]
fn make() {
    let dump = HELD.iter().fold(Dump::default(), |dump, (piece, kind)| dump.with(piece, &written(*kind)));
    let comment = "Reservations as they are kept, format version 1: tests/earlier_builds.rs says what they are.\n\
                   Never made again: a later version gets a file of its own.";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/earlier").join(NEWEST);
    let is_empty = std::fs::read(&path).is_ok_and(|bytes| bytes.is_empty());
    assert!(is_empty || !path.exists(), "{} is there, and stays as it is", path.display());
    std::fs::write(path, dump.to_text(comment)).unwrap();
}
