//! Golden bytes of I/O commands, reservations and events.

use proptest::prelude::*;
use zerocopy::IntoBytes;

use super::*;
use crate::id::{ControllerId, QueueId};
use crate::testing::{assert_bytes, sparse};

const DATA: DataPointer = DataPointer::Transport { len: 0x2000 };
const DATA_BYTES: &[u8] = &[0x00, 0x20, 0, 0, 0, 0, 0, 0x5A];

#[test]
fn block_commands() {
    let write = BlockCommand {
        namespace: NamespaceId(1),
        start: 0x0807_0605_0403_0201,
        blocks: 0x10,
        force_unit_access: true,
        limited_retry: false,
        deallocate: false,
        protection: 0b1001,
    };
    let entry = write.encode(IoOpcode::Write, CommandId(2), DATA);
    let expected = sparse(
        64,
        &[
            (0, &[0x01, 0x40, 2, 0, 1]),
            (32, DATA_BYTES),
            (40, &[1, 2, 3, 4, 5, 6, 7, 8, 0x0F, 0x00, 0x00, 0x64]),
        ],
    );
    assert_bytes(entry.as_bytes(), &expected);
    assert_eq!(BlockCommand::parse(&entry), Ok(write));
    let zeroes = BlockCommand { deallocate: true, ..BlockCommand::new(NamespaceId(1), 0, 65536) };
    let entry = zeroes.encode(IoOpcode::WriteZeroes, CommandId(3), DataPointer::None);
    assert_eq!(entry.dword12.get(), 0x0200_FFFF);
    assert_eq!(BlockCommand::parse(&entry), Ok(zeroes));
}

#[test]
fn blocks_do_not_wrap() {
    let entry = BlockCommand::new(NamespaceId(1), u64::MAX, 1).encode(IoOpcode::Read, CommandId(0), DATA);
    assert_eq!(BlockCommand::parse(&entry), Err(Status::LBA_OUT_OF_RANGE.with_do_not_retry()));
    let entry = BlockCommand::new(NamespaceId(1), u64::MAX - 1, 1).encode(IoOpcode::Read, CommandId(0), DATA);
    assert_eq!(BlockCommand::parse(&entry).unwrap().end(), u64::MAX);
}

#[test]
fn dataset_management() {
    let management = DatasetManagement {
        namespace: NamespaceId(1),
        ranges: 2,
        deallocate: true,
        integral_write: false,
        integral_read: true,
    };
    let entry = management.encode(CommandId(2), DATA);
    let expected = sparse(64, &[(0, &[0x09, 0x40, 2, 0, 1]), (32, DATA_BYTES), (40, &[1, 0, 0, 0, 5])]);
    assert_bytes(entry.as_bytes(), &expected);
    assert_eq!(DatasetManagement::parse(&entry), management);
    let ranges = [BlockRange { start: 0x0102, blocks: 3 }, BlockRange { start: u64::MAX, blocks: 0 }];
    let data = sparse(4096, &[(4, &[3]), (8, &[2, 1]), (24, &[0xFF; 8])]);
    assert_eq!([0, 1].map(|index| BlockRange::parse(&data, index)), ranges.map(Some));
    let encoded: Vec<u8> = ranges.iter().flat_map(|range| range.encode().as_bytes().to_vec()).collect();
    assert_bytes(&encoded, &data[..management.data_len()]);
    for (len, index) in [(31, 1), (15, 0), (0, 0), (4096, 256), (4096, usize::MAX)] {
        assert_eq!(BlockRange::parse(&data[..len], index), None);
    }
    let most = SubmissionEntry { dword10: 0xFFFF_FFFF.into(), ..entry };
    assert_eq!(DatasetManagement::parse(&most).ranges, RANGES_MAX);
}

#[test]
fn reservation_register() {
    let register = ReservationRegister {
        action: ReservationRegisterAction::Replace,
        ignore_key: true,
        persist: PersistChange::Set,
    };
    let entry = register.encode(CommandId(1), NamespaceId(2), DATA);
    let expected = sparse(64, &[(0, &[0x0D, 0x40, 1, 0, 2]), (32, DATA_BYTES), (40, &[0x0A, 0, 0, 0xC0])]);
    assert_bytes(entry.as_bytes(), &expected);
    assert_eq!(ReservationRegister::parse(&entry), Ok(register));
    let with =
        |dword10: u32| ReservationRegister::parse(&SubmissionEntry { dword10: dword10.into(), ..entry });
    let invalid = Err(Status::INVALID_FIELD.with_do_not_retry());
    assert_eq!(with(3), invalid, "RREGA");
    assert_eq!(with(0x4000_0000), invalid, "CPTPL");
    let keys = ReservationKeys { current: 0x0102.into(), other: 0x0304.into() };
    assert_bytes(keys.as_bytes(), &sparse(16, &[(0, &[2, 1]), (8, &[4, 3])]));
    assert_eq!(ReservationKeys::parse(keys.as_bytes()), Ok(keys));
    assert_eq!(ReservationKeys::parse(&[0; 15]), Err(Status::INVALID_SGL_LENGTH.with_do_not_retry()));
    assert_eq!(ReservationKeys::parse_current(keys.as_bytes()), Ok(0x0102));
    assert!(ReservationKeys::parse_current(&[0; 7]).is_err());
}

#[test]
fn reservation_acquire_and_release() {
    let acquire = ReservationAcquire {
        action: ReservationAcquireAction::PreemptAndAbort,
        ignore_key: false,
        kind: ReservationType::ExclusiveAccessAll,
    };
    let entry = acquire.encode(CommandId(1), NamespaceId(2), DATA);
    assert_eq!((entry.opcode, entry.dword10.get()), (0x11, 0x0602));
    assert_eq!(ReservationAcquire::parse(&entry), Ok(acquire));
    for kind in [0_u32, 7, 255] {
        let entry = SubmissionEntry { dword10: (kind << 8).into(), ..entry };
        assert!(ReservationAcquire::parse(&entry).is_err(), "RTYPE {kind}");
    }
    let release = ReservationRelease {
        action: ReservationReleaseAction::Release,
        ignore_key: false,
        kind: Some(ReservationType::WriteExclusive),
    };
    let entry = release.encode(CommandId(1), NamespaceId(2), DATA);
    assert_eq!((entry.opcode, entry.dword10.get()), (0x15, 0x0100));
    assert_eq!(ReservationRelease::parse(&entry), Ok(release));
    let clear = SubmissionEntry { dword10: 0x0901.into(), ..entry };
    let parsed = ReservationRelease::parse(&clear).unwrap();
    assert_eq!(
        (parsed.action, parsed.kind),
        (ReservationReleaseAction::Clear, None),
        "RTYPE is not looked at"
    );
    assert!(ReservationRelease::parse(&SubmissionEntry { dword10: 0x0102.into(), ..entry }).is_err());
}

#[test]
fn reservation_report() {
    let report = ReservationReport { len: 4096, is_extended: true };
    let entry = report.encode(CommandId(1), NamespaceId(2));
    assert_eq!((entry.opcode, entry.dword10.get(), entry.dword11.get()), (0x0E, 1023, 1));
    assert_eq!(ReservationReport::parse(&entry), report);
    let most = SubmissionEntry { dword10: u32::MAX.into(), ..entry };
    assert_eq!(ReservationReport::parse(&most).len, 1 << 34);
    let host_id = *b"0123456789abcdef";
    let registrant = Registrant { controller: ControllerId(0x0102), is_holder: true, key: 0x0304, host_id };
    let status = ReservationStatus {
        generation: 5,
        kind: Some(ReservationType::WriteExclusiveRegistrants),
        is_persistent: true,
        registrants: vec![registrant],
    };
    let short = sparse(
        48,
        &[(0, &[5, 0, 0, 0, 3, 1, 0, 0, 0, 1]), (24, &[2, 1, 1]), (32, b"01234567"), (40, &[4, 3])],
    );
    assert_bytes(&status.encode(false), &short);
    let long =
        sparse(128, &[(0, &[5, 0, 0, 0, 3, 1, 0, 0, 0, 1]), (64, &[2, 1, 1]), (72, &[4, 3]), (80, &host_id)]);
    assert_bytes(&status.encode(true), &long);
    assert_eq!(ReservationStatus::parse(&long, true), Ok(status.clone()));
    let cut = ReservationStatus::parse(&short, false).unwrap();
    assert_eq!(&cut.registrants[0].host_id, b"01234567\0\0\0\0\0\0\0\0");
    for len in 0..128 {
        let parsed = ReservationStatus::parse(&long[..len], true);
        assert_eq!(parsed.is_ok(), len >= 24, "{len} bytes");
        assert!(parsed.is_err() || parsed.unwrap().registrants.is_empty(), "{len} bytes");
    }
    let mut hostile = long;
    hostile[5..7].fill(0xFF);
    assert_eq!(ReservationStatus::parse(&hostile, true).unwrap().registrants.len(), 1);
}

#[test]
fn events_and_abort() {
    assert_eq!(AsyncEvent::NAMESPACES_CHANGED.bits(), 0x0004_0002);
    assert_eq!(AsyncEvent::ANA_CHANGED.bits(), 0x000C_0302);
    assert_eq!(AsyncEvent::DISCOVERY_CHANGED.bits(), 0x0070_F002);
    assert_eq!(AsyncEvent::RESERVATION.bits(), 0x0080_0006);
    let specific = AsyncEvent { specific: 9, ..AsyncEvent::RESERVATION };
    assert_eq!(AsyncEvent::from_bits(0x0000_0009_0080_0006), specific);
    let abort = Abort { queue: QueueId(0x0102), command: CommandId(0x0304) };
    let entry = abort.encode(CommandId(1));
    assert_eq!((entry.opcode, entry.dword10.get()), (0x08, 0x0304_0102));
    assert_eq!(Abort::parse(&entry), abort);
}

proptest! {
    #[test]
    fn block_commands_come_back(
        start in 0..u64::MAX - 65536, blocks in 1..=65536_u32, flags in any::<[bool; 3]>(), protection in 0..16_u8,
    ) {
        let [force_unit_access, limited_retry, deallocate] = flags;
        let namespace = NamespaceId(blocks);
        let command =
            BlockCommand { namespace, start, blocks, force_unit_access, limited_retry, deallocate, protection };
        prop_assert_eq!(BlockCommand::parse(&command.encode(IoOpcode::Read, CommandId(7), DATA)), Ok(command));
    }

    #[test]
    fn any_entry_is_refused_or_stays_within(bytes in any::<[u8; 64]>(), data in prop::collection::vec(any::<u8>(), 0..5000)) {
        let entry = SubmissionEntry::read_from_bytes(&bytes).unwrap();
        if let Ok(command) = BlockCommand::parse(&entry) {
            prop_assert_eq!(command.end() - command.start, u64::from(command.blocks));
        }
        let management = DatasetManagement::parse(&entry);
        let ranges = (0..management.ranges).map_while(|index| BlockRange::parse(&data, index));
        prop_assert_eq!(ranges.count(), management.ranges.min(data.len() / 16));
        for is_extended in [false, true] {
            if let Ok(status) = ReservationStatus::parse(&data, is_extended) {
                let size = if is_extended { 64 } else { 24 };
                prop_assert!(status.registrants.len() * size <= data.len());
            }
        }
    }
}
