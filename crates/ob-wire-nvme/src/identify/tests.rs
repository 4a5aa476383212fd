//! Golden bytes of Identify's structures.

use proptest::prelude::*;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::*;
use crate::fabrics::Version;
use crate::testing::{assert_bytes, sparse};
use crate::text::Nqn;

#[test]
fn identify_command() {
    let identify = Identify {
        structure: 0x06,
        controller: ControllerId(0x0102),
        specific: 0x0304,
        command_set: 0x02,
        namespace: NamespaceId(5),
    };
    let entry = identify.encode(CommandId(0x0908));
    let expected = sparse(
        64,
        &[
            (0, &[0x06, 0x40, 0x08, 0x09, 0x05]),
            (32, &[0x00, 0x10, 0, 0, 0, 0, 0, 0x5A]),
            (40, &[0x06, 0x00, 0x02, 0x01, 0x04, 0x03, 0x00, 0x02]),
        ],
    );
    assert_bytes(entry.as_bytes(), &expected);
    assert_eq!(Identify::parse(&entry), identify);
    assert_eq!(identify.cns(), Ok(Cns::CommandSetController));
    assert!(Identify { structure: 0x09, ..identify }.cns().unwrap_err().is(Status::INVALID_FIELD));
}

fn io_controller() -> Controller {
    Controller::new(&ControllerDescription {
        kind: ControllerKind::Io,
        controller: ControllerId(0x0201),
        version: Version::V1_4,
        subsystem: &Nqn::new("nqn.sub").unwrap(),
        serial: "SERIAL",
        model: "MODEL",
        firmware: "1.0",
        multipath: multipath::CONTROLLERS | multipath::ANA,
        transfer_max: 5,
        async_events: async_event::NAMESPACES | async_event::ANA,
        async_event_limit: 4,
        keep_alive_100ms: 10,
        commands_max: 128,
        namespaces_max: 1024,
        commands: command_support::COMPARE
            | command_support::DATASET_MANAGEMENT
            | command_support::WRITE_ZEROES,
        has_compare_and_write: true,
        write_cache: write_cache::PRESENT | write_cache::FLUSH_ALL,
        capsule_data_max: 8192,
        error_log_entries: 16,
        log_attributes: log_support::EFFECTS | log_support::EXTENDED,
        ana_groups: 32,
    })
}

#[test]
fn controller() {
    let expected = sparse(
        4096,
        &[
            (4, b"SERIAL              "),
            (24, b"MODEL                                   "),
            (64, b"1.0     "),
            (76, &[0x0A, 0x05, 0x01, 0x02, 0x00, 0x04, 0x01, 0x00]),
            (92, &[0x00, 0x09, 0x00, 0x00]),
            (96, &[0x41]),
            (111, &[0x01]),
            (258, &[0x03, 0x03, 0x03, 0x06, 0x0F]),
            (320, &[0x0A]),
            (342, &[0x0A, 0x1F, 0x20, 0, 0, 0, 0x20]),
            (512, &[0x66, 0x44, 0x80, 0x00, 0x00, 0x04, 0x00, 0x00, 0x0D, 0x00, 0x01, 0x00, 0x00, 0x07]),
            (536, &[0x01, 0x00, 0x30, 0x00, 0x00, 0x04]),
            (768, b"nqn.sub"),
            (1792, &[0x04, 0x02, 0x00, 0x00, 0x01]),
            (1803, &[0x01, 0x01]),
        ],
    );
    assert_bytes(io_controller().as_bytes(), &expected);
    assert_eq!(io_controller().capsule_data_max(), 8192);
    assert_eq!(io_controller().transfer_bytes_max(), Some(131_072));
}

#[test]
fn what_linux_insists_on() {
    let controller = io_controller();
    assert!(controller.keep_alive_100ms.get() != 0);
    assert!(controller.command_capsule.get() >= 4 && controller.response_capsule.get() >= 1);
    assert_eq!(controller.capsule_data_offset.get(), 0);
    assert!(controller.sgls.get() & 3 != 0);
    assert!(controller.namespaces_max.get() != 0 && controller.namespaces_max <= controller.namespaces);
    assert!(controller.multipath & multipath::CONTROLLERS != 0);
}

#[test]
fn hostile_controllers_do_not_overflow() {
    let mut controller = Controller::read_from_bytes(&[0xFF; 4096]).unwrap();
    assert_eq!(controller.capsule_data_max(), u32::MAX);
    assert_eq!(controller.transfer_bytes_max(), Some(u64::MAX));
    controller.transfer_max = 0;
    assert_eq!(controller.transfer_bytes_max(), None);
    controller.transfer_max = 52;
    assert_eq!(controller.transfer_bytes_max(), Some(u64::MAX), "4096 << 52 is no number any more");
    controller.command_capsule = 0.into();
    assert_eq!(controller.capsule_data_max(), 0);
}

#[test]
fn discovery_controllers_have_no_io() {
    let subsystem = Nqn::discovery();
    let controller = Controller::new(&ControllerDescription {
        kind: ControllerKind::Discovery,
        controller: ControllerId(1),
        version: Version::V1_4,
        subsystem: &subsystem,
        serial: "",
        model: "",
        firmware: "",
        multipath: 0,
        transfer_max: 0,
        async_events: async_event::DISCOVERY,
        async_event_limit: 1,
        keep_alive_100ms: 10,
        commands_max: 32,
        namespaces_max: 0,
        commands: 0,
        has_compare_and_write: false,
        write_cache: 0,
        capsule_data_max: 0,
        error_log_entries: 1,
        log_attributes: log_support::EXTENDED,
        ana_groups: 0,
    });
    assert_eq!((controller.kind, controller.submission_entry, controller.command_capsule.get()), (2, 0, 0));
    assert_eq!(controller.async_events.as_bytes(), [0, 0, 0, 0x80]);
    assert_eq!(&controller.subsystem[..37], b"nqn.2014-08.org.nvmexpress.discovery\0");
}

fn description() -> NamespaceDescription {
    NamespaceDescription {
        blocks: 0x0102_0304_0506,
        used: 0x10,
        block_shift: 12,
        features: namespace_feature::OPTIMAL | namespace_feature::IDS_NOT_REUSED,
        is_shared: true,
        reservations: reservation_support::ALL_TYPES | reservation_support::PERSIST,
        deallocation: deallocation::READS_ZEROS | deallocation::WRITE_ZEROES,
        ana_group: 7,
        is_write_protected: true,
        nguid: *b"0123456789abcdef",
        eui64: *b"ABCDEFGH",
        write_blocks: 8,
        deallocate_blocks: 0x1235,
    }
}

#[test]
fn namespace() {
    let blocks = [0x06, 0x05, 0x04, 0x03, 0x02, 0x01, 0x00, 0x00];
    let expected = sparse(
        4096,
        &[
            (0, &blocks),
            (8, &blocks),
            (16, &[0x10]),
            (24, &[0x18]),
            (30, &[0x01, 0x7F]),
            (33, &[0x09]),
            // The blocks times 4096.
            (49, &[0x60, 0x50, 0x40, 0x30, 0x20, 0x10]),
            (64, &[7, 0, 7, 0, 0x34, 0x12, 0x34, 0x12, 7, 0]),
            (92, &[7]),
            (99, &[1]),
            (104, b"0123456789abcdef"),
            (120, b"ABCDEFGH"),
            (130, &[12]),
        ],
    );
    assert_bytes(description().namespace().as_bytes(), &expected);
    let geometry = description().namespace().geometry().unwrap();
    assert_eq!((geometry.blocks, geometry.block_len()), (0x0102_0304_0506, 4096));
    assert_eq!(geometry.bytes(), 0x0010_2030_4050_6000);
    assert!(description().namespace().zeroes_can_deallocate());
    let without = NamespaceDescription { deallocation: deallocation::READS_ZEROS, ..description() };
    assert!(!without.namespace().zeroes_can_deallocate());
}

#[test]
fn units_of_deallocation_end_where_their_fields_do_and_apply_only_where_it_is_said() {
    let told = |deallocate_blocks: u32, features: u8| {
        let described = NamespaceDescription { deallocate_blocks, features, ..description() }.namespace();
        (described.deallocate_granularity.get(), described.deallocate_alignment.get())
    };
    let optimal = namespace_feature::OPTIMAL;
    for (blocks, expected) in [(0, 0), (1, 0), (2, 1), (1 << 16, 0xFFFF), (u32::MAX, 0xFFFF)] {
        assert_eq!(told(blocks, optimal), (expected, expected), "{blocks}");
    }
    assert_eq!(told(16, 0), (0, 0));
}

#[test]
fn independent_namespace() {
    let expected = sparse(4096, &[(0, &[0x08, 0x01, 0x7F]), (4, &[7]), (8, &[1]), (14, &[1])]);
    assert_bytes(description().independent().as_bytes(), &expected);
}

#[test]
fn command_set_structures_begin_with_nothing() {
    let mut controller = CommandSetController::new_zeroed();
    controller.deallocate_ranges_max = 1;
    controller.deallocate_range_blocks_max = 2.into();
    controller.deallocate_blocks_max = 3.into();
    assert_bytes(controller.as_bytes(), &sparse(4096, &[(3, &[1]), (4, &[2]), (8, &[3])]));
    let mut namespace = CommandSetNamespace::new_zeroed();
    namespace.storage_tag_mask = 1.into();
    namespace.extended_formats[63] = 2.into();
    assert_bytes(namespace.as_bytes(), &sparse(4096, &[(0, &[1]), (264, &[2])]));
    assert_bytes(CommandSetCombinations::nvm().as_bytes(), &sparse(4096, &[(0, &[1])]));
    let power = PowerState { power_max: 0x0102.into(), exit_latency_us: 9.into(), ..PowerState::default() };
    assert_bytes(power.as_bytes(), &sparse(32, &[(0, &[2, 1]), (8, &[9])]));
}

#[test]
fn geometry_of_hostile_namespaces() {
    let good = description().namespace();
    let with = |change: &dyn Fn(&mut Namespace)| {
        let mut namespace = good;
        change(&mut namespace);
        namespace.geometry()
    };
    assert_eq!(Namespace::new_zeroed().geometry(), None, "not there");
    assert_eq!(with(&|namespace| namespace.blocks = 0.into()), None);
    assert_eq!(with(&|namespace| namespace.blocks = u64::MAX.into()), None, "bytes would wrap");
    assert!(with(&|namespace| namespace.blocks = (u64::MAX >> 12).into()).is_some());
    assert_eq!(with(&|namespace| namespace.format = 1), None, "a format that is not there");
    assert_eq!(with(&|namespace| namespace.block_formats[0].metadata = 8.into()), None);
    for shift in [0, 8, 17, 63, 255] {
        assert_eq!(with(&|namespace| namespace.block_formats[0].block_shift = shift), None, "2^{shift}");
    }
    let last = with(&|namespace| {
        namespace.formats = 63;
        namespace.format = 0b0110_1111;
        namespace.block_formats[63].block_shift = 9;
    });
    assert_eq!(last.map(|geometry| geometry.block_len()), Some(512));
}

#[test]
fn namespace_lists() {
    let all = [1, 2, 5, 1000].map(NamespaceId);
    let list = NamespaceList::new(NamespaceId(1), all).unwrap();
    assert_bytes(list.as_bytes(), &sparse(4096, &[(0, &[2]), (4, &[5]), (8, &[0xE8, 0x03])]));
    assert_eq!(list.iter().map(|id| id.0).collect::<Vec<_>>(), [2, 5, 1000]);
    for after in [u32::MAX, u32::MAX - 1] {
        let error = NamespaceList::new(NamespaceId(after), all).unwrap_err();
        assert!(error.is(Status::INVALID_NAMESPACE), "{after:#x}");
    }
    let full = NamespaceList::new(NamespaceId::NONE, (1..=2000).map(NamespaceId)).unwrap();
    assert!(full.is_full() && !list.is_full());
    assert_eq!(full.iter().last(), Some(NamespaceId(1024)));
}

#[test]
fn more_changes_than_fit_are_all() {
    let exactly = NamespaceList::changed((1..=1024).map(NamespaceId));
    assert_eq!(exactly.iter().last(), Some(NamespaceId(1024)));
    let more = NamespaceList::changed((1..=1025).map(NamespaceId));
    assert_bytes(more.as_bytes(), &sparse(4096, &[(0, &[0xFF; 4])]));
}

#[test]
fn controller_lists() {
    let list = ControllerList::new(ControllerId(2), [1, 2, 0x0304].map(ControllerId));
    assert_bytes(list.as_bytes(), &sparse(4096, &[(0, &[2, 0, 2, 0, 4, 3])]));
    let hostile = ControllerList::read_from_bytes(&[0xFF; 4096]).unwrap();
    assert_eq!(hostile.iter().count(), 2047);
}

#[test]
fn namespace_ids() {
    let ids =
        NamespaceIds { eui64: Some([1; 8]), nguid: Some([2; 16]), uuid: Some([3; 16]), command_set: Some(0) };
    let expected = sparse(
        4096,
        &[
            (0, &[0x01, 0x08, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]),
            (12, &[0x02, 0x10, 0, 0]),
            (16, &[2; 16]),
            (32, &[0x03, 0x10, 0, 0]),
            (36, &[3; 16]),
            (52, &[0x04, 0x01, 0, 0, 0]),
        ],
    );
    assert_bytes(&ids.encode(), &expected);
    assert_eq!(NamespaceIds::parse(&expected), Ok(ids));
}

#[test]
fn hostile_ids() {
    assert_eq!(NamespaceIds::parse(&[]), Ok(NamespaceIds::default()));
    assert_eq!(NamespaceIds::parse(&[3, 16, 0, 0, 1]), Err(IdDescriptorError::Length));
    assert_eq!(NamespaceIds::parse(&[3, 1, 0, 0, 1]), Err(IdDescriptorError::Kind { kind: 3, len: 1 }));
    assert_eq!(
        NamespaceIds::parse(&[9, 1, 0, 0, 1]),
        Ok(NamespaceIds::default()),
        "an unknown kind is skipped"
    );
    let twice = [4, 1, 0, 0, 7, 4, 1, 0, 0, 8];
    assert_eq!(NamespaceIds::parse(&twice).unwrap().command_set, Some(7));
}

proptest! {
    #[test]
    fn ids_come_back(
        eui64 in any::<Option<[u8; 8]>>(), nguid in any::<Option<[u8; 16]>>(), uuid in any::<Option<[u8; 16]>>(),
        command_set in any::<Option<u8>>(),
    ) {
        let ids = NamespaceIds { eui64, nguid, uuid, command_set };
        prop_assert_eq!(NamespaceIds::parse(&ids.encode()), Ok(ids));
    }

    #[test]
    fn any_ids_are_refused_or_make_sense(bytes in prop::collection::vec(0..20_u8, 0..100)) {
        if let Ok(ids) = NamespaceIds::parse(&bytes) {
            prop_assert_eq!(NamespaceIds::parse(&ids.encode()), Ok(ids));
        }
    }

    #[test]
    fn geometry_never_wraps(blocks in any::<u64>(), block_shift in any::<u8>(), format in any::<u8>()) {
        let mut namespace = Namespace { blocks: blocks.into(), format, formats: 63, ..Namespace::default() };
        for format in &mut namespace.block_formats {
            format.block_shift = block_shift;
        }
        if let Some(geometry) = namespace.geometry() {
            prop_assert_eq!(geometry.bytes() / u64::from(geometry.block_len()), blocks);
        }
    }
}
