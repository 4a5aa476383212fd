//! Golden bytes of fabrics commands and properties.

use proptest::prelude::*;
use zerocopy::IntoBytes;

use crate::command::{DataPointer, SubmissionEntry};
use crate::fabrics::*;
use crate::id::{CommandId, ControllerId, QueueId};
use crate::status::Status;
use crate::testing::{assert_bytes, sparse};
use crate::text::*;

const IN_CAPSULE: DataPointer = DataPointer::InCapsule { offset: 0, len: 1024 };
/// SGL of 1024 bytes in the capsule.
const IN_CAPSULE_BYTES: &[u8] = &[0, 0, 0, 0, 0, 0, 0, 0, 0x00, 0x04, 0, 0, 0, 0, 0, 0x01];

#[test]
fn connect() {
    let connect =
        Connect { queue: QueueId(2), queue_entries: 128, no_flow_control: true, keep_alive_ms: 15_000 };
    let entry = connect.encode(CommandId(0x1234), IN_CAPSULE);
    let expected = sparse(
        64,
        &[
            (0, &[0x7F, 0x40, 0x34, 0x12, 0x01]),
            (24, IN_CAPSULE_BYTES),
            (42, &[0x02, 0x00, 0x7F, 0x00, 0x04]),
            (48, &[0x98, 0x3A]),
        ],
    );
    assert_bytes(entry.as_bytes(), &expected);
    assert_eq!(Connect::parse(&entry), Ok(connect));
}

#[test]
fn connects_that_cannot_be() {
    let connect = Connect { queue: QueueId(0), queue_entries: 32, no_flow_control: false, keep_alive_ms: 0 };
    let entry = connect.encode(CommandId(0), IN_CAPSULE);
    let format = SubmissionEntry { dword10: 1.into(), ..entry };
    let error = Connect::parse(&format).unwrap_err();
    assert_eq!((error.status, error.result), (Status::CONNECT_INCOMPATIBLE_FORMAT.with_do_not_retry(), 0));
    let size = SubmissionEntry { dword11: 0.into(), ..entry };
    let error = Connect::parse(&size).unwrap_err();
    assert_eq!((error.status, error.result), (Status::CONNECT_INVALID_PARAMETERS.with_do_not_retry(), 44));
    let most = SubmissionEntry { dword11: 0xFFFF.into(), ..entry };
    assert_eq!(Connect::parse(&most).unwrap().queue_entries, 65536);
}

#[test]
fn connect_data() {
    let parties = ConnectParties {
        host_id: [0xA5; 16],
        controller: ControllerId::DYNAMIC,
        subsystem: Nqn::new("nqn.a").unwrap(),
        host: Nqn::new("nqn.host").unwrap(),
    };
    let expected =
        sparse(1024, &[(0, &[0xA5; 16]), (16, &[0xFF, 0xFF]), (256, b"nqn.a"), (512, b"nqn.host")]);
    assert_bytes(parties.encode().as_bytes(), &expected);
    assert_eq!(ConnectParties::parse(&expected), Ok(parties));
    for len in [0, 1, 1023, 1025] {
        let error = ConnectParties::parse(&vec![0; len]).unwrap_err();
        assert!(error.status.is(Status::INVALID_SGL_LENGTH), "{len} bytes");
    }
    for (offset, result) in [(256, 0x0001_0100), (512, 0x0001_0200)] {
        for (name, what) in [([0; 256], "empty"), ([b'n'; 256], "without an end"), ([0xFF; 256], "not UTF-8")]
        {
            if (offset, what) == (512, "empty") {
                continue;
            }
            let mut bytes = expected.clone();
            bytes[offset..offset + 256].copy_from_slice(&name);
            let error = ConnectParties::parse(&bytes).unwrap_err();
            assert!(error.status.is(Status::CONNECT_INVALID_PARAMETERS), "{what}");
            assert_eq!(error.result, result, "{what}");
        }
    }
}

#[test]
fn a_host_without_a_name_goes_by_its_number() {
    let host_id = std::array::from_fn(|index| index as u8 * 0x11);
    let bytes = sparse(1024, &[(0, &host_id), (16, &[0xFF, 0xFF]), (256, b"nqn.a")]);
    let parties = ConnectParties::parse(&bytes).unwrap();
    let name = "nqn.2014-08.org.nvmexpress:uuid:00112233-4455-6677-8899-aabbccddeeff";
    assert_eq!((parties.host.as_str(), parties.host_id), (name, host_id));
}

#[test]
fn names_have_a_limit() {
    let longest = "n".repeat(223);
    assert_eq!(Nqn::parse(&Nqn::new(&longest).unwrap().to_field()).unwrap().as_str(), longest);
    assert_eq!(Nqn::new(&"n".repeat(224)), Err(NqnError::TooLong));
    let mut field = [b'n'; 256];
    field[255] = 0;
    assert_eq!(Nqn::parse(&field), Err(NqnError::TooLong));
    assert_eq!(Nqn::new("nqn.\x1b[2J"), Err(NqnError::NotText), "control characters would reach a terminal");
    assert!(Nqn::new(DISCOVERY_NQN).unwrap().is_discovery());
}

#[test]
fn connect_results() {
    let result = ConnectResult {
        controller: ControllerId(0x0102),
        must_authenticate: true,
        must_secure_channel: false,
    };
    assert_eq!(result.bits(), 0x0002_0102);
    assert_eq!(ConnectResult::from_bits(0x0002_0102), result);
    assert_eq!(ConnectError::queue().result, 42);
    assert_eq!(ConnectError::controller().result, 0x0001_0010);
}

#[test]
fn property_commands() {
    let get = PropertyAccess { property: Property::Capabilities, value: None };
    let expected = sparse(64, &[(0, &[0x7F, 0x40, 0x09, 0x00, 0x04]), (40, &[0x01])]);
    assert_bytes(get.encode(CommandId(9)).as_bytes(), &expected);
    assert_eq!(PropertyAccess::parse(&get.encode(CommandId(9))), Ok(get));
    let set = PropertyAccess { property: Property::Configuration, value: Some(0x0046_0001) };
    let expected =
        sparse(64, &[(0, &[0x7F, 0x40, 0x0A, 0x00, 0x00]), (44, &[0x14]), (48, &[0x01, 0x00, 0x46, 0x00])]);
    assert_bytes(set.encode(CommandId(10)).as_bytes(), &expected);
    assert_eq!(PropertyAccess::parse(&set.encode(CommandId(10))), Ok(set));
}

#[test]
fn properties_that_are_not_there() {
    let invalid = Err(Status::INVALID_FIELD.with_do_not_retry());
    let access = |attributes: u32, offset: u32| {
        let entry = PropertyAccess { property: Property::Version, value: None }.encode(CommandId(0));
        PropertyAccess::parse(&SubmissionEntry {
            dword10: attributes.into(),
            dword11: offset.into(),
            ..entry
        })
    };
    assert!(access(0, 0x08).is_ok() && access(1, 0x00).is_ok() && access(0, 0x68).is_ok());
    assert_eq!(access(0, 0x00), invalid, "CAP has eight bytes");
    assert_eq!(access(1, 0x14), invalid, "CC has four");
    assert_eq!(access(2, 0x14), invalid, "no such size");
    for offset in [0x04, 0x0C, 0x10, 0x15, 0x18, 0x24, 0x1000, u32::MAX] {
        assert_eq!(access(0, offset), invalid, "{offset:#x}");
        assert_eq!(access(1, offset), invalid, "{offset:#x}");
    }
}

#[test]
fn property_values() {
    let capabilities = Capabilities {
        queue_entries_max: 128,
        contiguous_queues: true,
        timeout_500ms: 15,
        subsystem_reset: false,
        command_sets: Capabilities::COMMAND_SET_NVM,
        page_shift_min: 0,
        page_shift_max: 4,
        ready_modes: 1,
    };
    // MQES 7Fh, CQR bit 16, TO 0Fh << 24, CSS bit 37, MPSMAX 4 << 52, CRMS 1 << 59.
    assert_eq!(capabilities.bits(), 0x0840_0020_0F01_007F);
    assert_eq!(Capabilities::from_bits(0x0840_0020_0F01_007F), capabilities);
    assert_eq!(Capabilities::from_bits(0xFFFF).queue_entries_max, 65536);
    assert_eq!(Version { major: 1, minor: 4, tertiary: 0 }.bits(), 0x0001_0400);
    assert_eq!(Version::from_bits(0x0002_0001), Version { major: 2, minor: 0, tertiary: 1 });
    // What Linux writes: EN, IOSQES 6, IOCQES 4.
    let configuration = ControllerConfiguration(0x0046_0001);
    assert_eq!(ControllerConfiguration::enabled(ControllerConfiguration::COMMAND_SET_NVM), configuration);
    assert_eq!((configuration.submission_entry_shift(), configuration.completion_entry_shift()), (6, 4));
    assert!(configuration.is_enabled() && configuration.shutdown() == ShutdownNotification::None);
    assert_eq!(configuration.with_shutdown(ShutdownNotification::Normal).0, 0x0046_4001);
    assert_eq!(ControllerConfiguration(0x0046_8001).shutdown(), ShutdownNotification::Abrupt);
    let configuration = ControllerConfiguration(0x0100_0E60 | 1 << 11);
    assert_eq!(
        (configuration.command_set(), configuration.page_shift(), configuration.arbitration()),
        (6, 12, 1)
    );
    assert!(configuration.ready_independent_of_media());
    let status = ControllerStatus {
        is_ready: true,
        is_fatal: false,
        shutdown: ShutdownStatus::Complete,
        subsystem_was_reset: true,
    };
    assert_eq!(status.bits(), 0b1_1001);
    assert_eq!(ControllerStatus::from_bits(0b1_1001), status);
}

#[test]
fn authentication_commands() {
    let transfer = AuthenticationTransfer { to_host: true, len: 1024 };
    let entry = transfer.encode(CommandId(1), DataPointer::Transport { len: 1024 });
    let mut sgl = IN_CAPSULE_BYTES.to_vec();
    sgl[15] = 0x5A;
    let expected = sparse(
        64,
        &[
            (0, &[0x7F, 0x40, 0x01, 0x00, 0x06]),
            (24, &sgl),
            (40, &[0x00, 0x01, 0x01, 0xE9, 0x00, 0x04, 0x00, 0x00]),
        ],
    );
    assert_bytes(entry.as_bytes(), &expected);
    assert_eq!(AuthenticationTransfer::parse(&entry), Ok(transfer));
    let invalid = Err(Status::INVALID_FIELD.with_do_not_retry());
    let no_bytes = SubmissionEntry { dword11: 0.into(), ..entry };
    assert_eq!(AuthenticationTransfer::parse(&no_bytes), invalid);
    for dword10 in [0xE801_0100_u32, 0xE902_0100, 0xE901_0200] {
        let other = SubmissionEntry { dword10: dword10.into(), ..entry };
        assert_eq!(AuthenticationTransfer::parse(&other), invalid, "{dword10:#x}");
    }
}

#[test]
fn disconnect() {
    let entry = Disconnect.encode(CommandId(0x0201));
    assert_bytes(entry.as_bytes(), &sparse(64, &[(0, &[0x7F, 0x40, 0x01, 0x02, 0x08])]));
    assert_eq!(Disconnect::parse(&entry), Ok(Disconnect));
    let other = SubmissionEntry { dword10: 2.into(), ..entry };
    assert!(Disconnect::parse(&other).unwrap_err().is(Status::CONNECT_INCOMPATIBLE_FORMAT));
}

#[test]
fn padded_text() {
    assert_eq!(&padded::<8>("ab"), b"ab      ");
    assert_eq!(&padded::<4>("abcdef"), b"abcd");
    assert_eq!(&padded::<4>("a\né"), b"a?? ");
    assert_eq!(unpadded(b"ab c  "), "ab c");
    assert_eq!(unpadded(b"ab\0cd"), "ab");
    assert_eq!(unpadded(b"\x1b[2J"), "?[2J");
}

proptest! {
    #[test]
    fn connects_come_back(
        queue in any::<u16>(), queue_entries in 2..=65536_u32, no_flow_control in any::<bool>(),
        keep_alive_ms in any::<u32>(), host_id in any::<[u8; 16]>(), subsystem in "[!-~]{1,223}", host in "[ -~]{1,223}",
    ) {
        let connect = Connect { queue: QueueId(queue), queue_entries, no_flow_control, keep_alive_ms };
        prop_assert_eq!(Connect::parse(&connect.encode(CommandId(1), IN_CAPSULE)), Ok(connect));
        let (subsystem, host) = (Nqn::new(&subsystem).unwrap(), Nqn::new(&host).unwrap());
        let parties = ConnectParties { host_id, controller: ControllerId(queue), subsystem, host };
        prop_assert_eq!(ConnectParties::parse(parties.encode().as_bytes()), Ok(parties));
    }

    #[test]
    fn hostile_connect_data_is_refused_or_makes_sense(bytes in prop::collection::vec(any::<u8>(), 1024)) {
        if let Ok(parties) = ConnectParties::parse(&bytes) {
            prop_assert!(!parties.host.as_str().is_empty() && parties.host.as_str().len() <= NQN_LEN_MAX);
        }
    }

    #[test]
    fn properties_come_back(cap in any::<u64>(), status in 0..32_u32) {
        let capabilities = Capabilities::from_bits(cap);
        prop_assert_eq!(Capabilities::from_bits(capabilities.bits()), capabilities);
        prop_assert_eq!(capabilities.bits() & !0x18FF_1FF0_FF01_FFFF, 0, "only fields that are known");
        prop_assume!(status >> 2 & 3 != 3);
        prop_assert_eq!(ControllerStatus::from_bits(status).bits(), status);
    }
}
