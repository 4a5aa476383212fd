//! Golden bytes of log pages, and windows into them.

use proptest::prelude::*;
use zerocopy::IntoBytes;

use super::*;
use crate::id::{ControllerId, QueueId};
use crate::testing::{assert_bytes, sparse};
use crate::text::Nqn;

fn get() -> GetLogPage {
    GetLogPage {
        page: 0x70,
        specific: 0x0A,
        retain_event: true,
        specific_id: 0x0102,
        offset: 0x0000_0005_0000_0400,
        len: 0x0008_0004,
        command_set: 0,
        namespace: NamespaceId::ALL,
    }
}

#[test]
fn get_log_page() {
    let entry = get().encode(CommandId(1));
    // 80004h bytes are 20001h dwords: NUMDL 0000h and NUMDU 0002h, counted from zero.
    let expected = sparse(
        64,
        &[
            (0, &[0x02, 0x40, 0x01, 0x00, 0xFF, 0xFF, 0xFF, 0xFF]),
            (32, &[0x04, 0x00, 0x08, 0x00, 0, 0, 0, 0x5A]),
            (40, &[0x70, 0x8A, 0x00, 0x00, 0x02, 0x00, 0x02, 0x01]),
            (48, &[0x00, 0x04, 0x00, 0x00, 0x05, 0x00, 0x00, 0x00]),
        ],
    );
    assert_bytes(entry.as_bytes(), &expected);
    assert_eq!(GetLogPage::parse(&entry), Ok(get()));
    assert_eq!(get().log_page(), Ok(LogPage::Discovery));
    assert!(GetLogPage { page: 0x33, ..get() }.log_page().unwrap_err().is(Status::INVALID_LOG_PAGE));
}

#[test]
fn offsets_that_cannot_be() {
    let with = |low: u32, high: u32, dword14: u32| {
        let entry = SubmissionEntry {
            dword12: low.into(),
            dword13: high.into(),
            dword14: dword14.into(),
            ..get().encode(CommandId(0))
        };
        GetLogPage::parse(&entry).map(|get| get.offset)
    };
    let invalid = Err(Status::INVALID_FIELD.with_do_not_retry());
    assert_eq!(with(2, 0, 0), invalid, "no multiple of four");
    assert_eq!(with(0xFFFF_FFFC, 0xFFFF_FFFF, 0), invalid, "the end wraps");
    assert_eq!(with(0, 0, 1 << 23), invalid, "an index is no offset");
    assert_eq!(
        with(0xFFF0_0000, 0xFFFF_FFFF, 0),
        Ok(0xFFFF_FFFF_FFF0_0000),
        "huge, and refused by the window"
    );
}

#[test]
fn windows() {
    let window = |offset: u64, len: u64, log_len: usize| GetLogPage { offset, len, ..get() }.window(log_len);
    assert_eq!(window(0, 4, 1024), Ok(0..4));
    assert_eq!(window(1020, 8, 1024), Ok(1020..1024));
    assert_eq!(window(1024, 8, 1024), Ok(1024..1024));
    assert_eq!(window(1028, 4, 1024), Err(Status::INVALID_FIELD.with_do_not_retry()));
    assert_eq!(window(0, 1 << 34, 16), Ok(0..16));
    assert_eq!(window(u64::MAX - 3, 3, 16), Err(Status::INVALID_FIELD.with_do_not_retry()));
    assert_eq!(window(0, 4, 0), Ok(0..0));
}

#[test]
fn supported_logs_and_effects() {
    let logs =
        SupportedLogs::new(&[LogPage::SupportedLogs, LogPage::Smart, LogPage::ReservationNotification]);
    assert_bytes(logs.as_bytes(), &sparse(1024, &[(0, &[1]), (8, &[1]), (0x200, &[1])]));
    let effects = CommandEffects::default()
        .with_admin(0x7F, effect::SUPPORTED | effect::CONTROLLER_CHANGES)
        .with_io(0x01, effect::SUPPORTED | effect::DATA_CHANGES);
    assert_bytes(effects.as_bytes(), &sparse(4096, &[(0x1FC, &[0x11]), (1028, &[0x03])]));
}

#[test]
fn error_entry() {
    let status = Status::LBA_OUT_OF_RANGE.with_do_not_retry();
    let entry = ErrorEntry::new(0x0201, QueueId(3), CommandId(4), NamespaceId(5), status);
    let expected =
        sparse(64, &[(0, &[0x01, 0x02]), (8, &[3, 0, 4, 0, 0x00, 0x81, 0xFF, 0xFF]), (24, &[5]), (29, &[3])]);
    assert_bytes(entry.as_bytes(), &expected);
}

#[test]
fn smart() {
    let mut smart = SmartLog::healthy();
    smart.critical_warning = critical_warning::READ_ONLY;
    smart.units_read = SmartLog::units(512_001).into();
    smart.units_written = 3.into();
    smart.reads = 4.into();
    smart.writes = u128::MAX.into();
    smart.error_entries = 5.into();
    smart.sensors[7] = 6.into();
    smart.thermal[3] = 7.into();
    let expected = sparse(
        512,
        &[
            (0, &[0x08, 0x2C, 0x01, 100, 10]),
            (32, &[2]),
            (48, &[3]),
            (64, &[4]),
            (80, &[0xFF; 16]),
            (176, &[5]),
            (214, &[6]),
            (228, &[7]),
        ],
    );
    assert_bytes(smart.as_bytes(), &expected);
}

#[test]
fn firmware_and_reservation_notification() {
    assert_bytes(FirmwareSlots::new("0.1").as_bytes(), &sparse(512, &[(0, &[1]), (8, b"0.1     ")]));
    let kind = ReservationNotificationKind::ReservationReleased;
    let notification = ReservationNotification::new(9, kind, 1, NamespaceId(0x0304));
    assert_bytes(notification.as_bytes(), &sparse(64, &[(0, &[9]), (8, &[2, 1]), (12, &[4, 3])]));
}

fn groups() -> Vec<AnaGroup> {
    vec![
        AnaGroup {
            group: 1,
            changes: 2,
            state: AnaState::Optimized,
            namespaces: vec![NamespaceId(1), NamespaceId(3)],
        },
        AnaGroup { group: 7, changes: 9, state: AnaState::Change, namespaces: vec![] },
    ]
}

#[test]
fn ana() {
    let expected = sparse(
        16 + 32 + 8 + 32,
        &[
            (0, &[0x0A, 0, 0, 0, 0, 0, 0, 0, 2]),
            (16, &[1, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0x01]),
            (48, &[1, 0, 0, 0, 3]),
            (56, &[7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0x0F]),
        ],
    );
    assert_bytes(&ana_log(10, &groups(), false), &expected);
    assert_eq!(parse_ana_log(&expected), Ok((10, groups())));
    assert_eq!(ana_log(10, &groups(), true).len(), 16 + 32 + 32);
    for len in 0..expected.len() {
        assert_eq!(parse_ana_log(&expected[..len]), Err(AnaLogError::Length), "{len} bytes");
    }
    let mut hostile = expected.clone();
    hostile[20..24].copy_from_slice(&[0xFF; 4]);
    assert_eq!(parse_ana_log(&hostile), Err(AnaLogError::Length), "four billion namespaces");
    let mut state = expected;
    state[32] = 5;
    assert_eq!(parse_ana_log(&state), Err(AnaLogError::Group { group: 1, state: 5 }));
}

fn entry() -> DiscoveryEntry {
    DiscoveryEntry {
        family: AddressFamily::Ipv4,
        subtype: DiscoverySubtype::Nvm,
        requirements: requirement::SECURE_NOT_REQUIRED | requirement::NO_FLOW_CONTROL,
        port: 0x0102,
        controller: ControllerId::DYNAMIC,
        admin_queue: 32,
        flags: discovery_flag::PERSISTENT,
        address: "192.0.2.1".to_owned(),
        service: 4420,
        subsystem: Nqn::new("nqn.sub").unwrap(),
    }
}

#[test]
fn discovery() {
    let header = DiscoveryHeader::new(0x0102, 3);
    assert_bytes(header.as_bytes(), &sparse(1024, &[(0, &[2, 1]), (8, &[3])]));
    let mut expected = sparse(
        1024,
        &[(0, &[0x03, 0x01, 0x02, 0x06, 0x02, 0x01, 0xFF, 0xFF, 0x20, 0x00, 0x02, 0x00]), (256, b"nqn.sub")],
    );
    expected[32..64].fill(b' ');
    expected[32..36].copy_from_slice(b"4420");
    expected[512..768].fill(b' ');
    expected[512..521].copy_from_slice(b"192.0.2.1");
    assert_bytes(entry().encode().as_bytes(), &expected);
    assert_eq!(DiscoveryEntry::parse(&entry().encode()), Ok(entry()));
}

#[test]
fn discovery_entries_that_are_of_no_use() {
    let good = entry().encode();
    let rdma = DiscoveryEntryLayout { transport: 1, ..good };
    assert_eq!(DiscoveryEntry::parse(&rdma), Err(DiscoveryEntryError::Transport(1)));
    let service = DiscoveryEntryLayout { service: [b'9'; 32], ..good };
    assert_eq!(DiscoveryEntry::parse(&service), Err(DiscoveryEntryError::Service));
    let family = DiscoveryEntryLayout { family: 4, ..good };
    assert!(matches!(DiscoveryEntry::parse(&family), Err(DiscoveryEntryError::Code(_))));
    let subsystem = DiscoveryEntryLayout { subsystem: [0xFF; 256], ..good };
    assert!(matches!(DiscoveryEntry::parse(&subsystem), Err(DiscoveryEntryError::Subsystem(_))));
    // Linux ends its texts with zeros instead of spaces.
    let mut zeros = good;
    zeros.address = [0; 256];
    zeros.address[..9].copy_from_slice(b"192.0.2.1");
    assert_eq!(DiscoveryEntry::parse(&zeros), Ok(entry()));
}

proptest! {
    #[test]
    fn windows_stay_within(dwords in any::<[u32; 6]>(), log_len in 0..1_usize << 40) {
        let [dword10, dword11, dword12, dword13, dword14, _] = dwords.map(Into::into);
        let entry = SubmissionEntry { dword10, dword11, dword12, dword13, dword14, ..SubmissionEntry::default() };
        if let Ok(window) = GetLogPage::parse(&entry).and_then(|get| get.window(log_len)) {
            prop_assert!(window.start <= window.end && window.end <= log_len);
        }
    }

    #[test]
    fn commands_come_back(
        page in any::<u8>(), specific in 0..0x80_u8, retain_event in any::<bool>(), specific_id in any::<u16>(),
        offset in 0..1_u64 << 61, dwords in 1..1_u64 << 30,
    ) {
        let offset = offset * 4;
        let get = GetLogPage { page, specific, retain_event, specific_id, offset, len: dwords * 4, ..get() };
        prop_assert_eq!(GetLogPage::parse(&get.encode(CommandId(0))), Ok(get));
    }

    #[test]
    fn ana_logs_come_back(
        changes in any::<u64>(), groups in prop::collection::vec((1..=u32::MAX, any::<u64>(), 0..5_usize, prop::collection::vec(any::<u32>(), 0..5)), 0..5),
    ) {
        let groups: Vec<AnaGroup> = groups.into_iter().map(|(group, changes, state, ids)| {
            AnaGroup { group, changes, state: AnaState::ALL[state], namespaces: ids.into_iter().map(NamespaceId).collect() }
        }).collect();
        prop_assert_eq!(parse_ana_log(&ana_log(changes, &groups, false)), Ok((changes, groups)));
    }
}
