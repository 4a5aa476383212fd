//! Identify, features, Abort.

use ob_wire_nvme::feature::GetFeatures;
use ob_wire_nvme::io::Abort;

use super::*;

pub(super) fn get(stage: &mut Stage, queue: QueueIdentity, feature: u8, dword11: u32, nsid: u32) -> Verdict {
    let select = ob_wire_nvme::feature::FeatureSelect::Current;
    let entry = GetFeatures { feature, select, dword11, namespace: NamespaceId(nsid) }.encode(CommandId(9));
    stage.command(queue, &entry, &[])
}

/// What the Linux host insists on before it goes on.
#[test]
fn the_controller_says_what_hosts_insist_on() {
    let mut stage = Stage::new();
    let connected = stage.ready(1);
    let page = bytes_of(stage.identify(connected.identity, Cns::Controller, 0));
    assert_eq!(page.len(), 4096);
    assert_eq!(&page[4..8], b"0001");
    assert_eq!(page[76], 0b1011, "CMIC");
    assert_eq!(page[77], 5, "MDTS");
    assert_eq!(u16::from_le_bytes([page[78], page[79]]), connected.cntlid.0);
    assert_eq!(word(&page, 80), 0x0001_0400, "VER is the property's");
    assert_eq!(word(&page, 92), 1 << 8 | 1 << 11, "OAES");
    assert_eq!(page[111], 1, "CNTRLTYPE");
    assert_eq!(page[259], 3, "AERL");
    assert_eq!(u16::from_le_bytes([page[320], page[321]]), 10, "KAS");
    assert_eq!((page[512], page[513]), (0x66, 0x44));
    let (namespaces, namespaces_max) = (word(&page, 516), word(&page, 540));
    assert!(namespaces_max != 0 && namespaces_max <= namespaces, "MNAN");
    assert!(word(&page, 344) >= word(&page, 348) && word(&page, 348) > 0, "ANAGRPMAX and NANAGRPID");
    assert_ne!(page[342], 0, "ANATT");
    // The whole ANA log has to fit into one transfer, or the host does without.
    assert!(16 + word(&page, 348) * 32 + namespaces_max * 4 <= LARGE);
    assert_eq!(u16::from_le_bytes([page[520], page[521]]), 0xED, "ONCS");
    assert_eq!(page[522] & 1, 1, "FUSES");
    assert_eq!(page[525], 0b101, "VWC");
    assert_eq!(&page[526..530], [0; 4], "AWUN, AWUPF: one block");
    assert_ne!(word(&page, 536) & 3, 0, "SGLS");
    assert_eq!(&page[768..768 + 25], b"nqn.2026-01.example:disks");
    assert_eq!(word(&page, 1792), (64 + 8192) / 16, "IOCCSZ");
    assert_eq!(word(&page, 1796), 1, "IORCSZ");
    assert_eq!(&page[1800..1802], [0; 2], "ICDOFF");
}

#[test]
fn a_discovery_controller_says_that_it_is_one() {
    let mut stage = Stage::new();
    let queue = stage.discovery(1);
    let page = bytes_of(stage.identify(queue, Cns::Controller, 0));
    assert_eq!(page[111], 2);
    assert_eq!(word(&page, 92), 1 << 31);
    assert_eq!(&page[768..768 + 36], b"nqn.2014-08.org.nvmexpress.discovery");
    assert_eq!(stage.identify(queue, Cns::ActiveNamespaces, 0), refused(Status::INVALID_FIELD));
    let connect = Connect { queue: QueueId(1), ..admin_connect() };
    let parties = ConnectParties { subsystem: Nqn::discovery(), controller: ControllerId(1), ..parties(1) };
    assert_eq!(stage.try_connect(connect, &parties), Err(ConnectError::in_command(42)), "no I/O queues");
    let read = SubmissionEntry::new(0x80, CommandId(1), NamespaceId(1));
    assert_eq!(stage.command(queue, &read, &[]), refused(Status::INVALID_OPCODE));
}

#[test]
fn namespaces_are_described_or_zero_or_invalid() {
    let mut stage = Stage::new();
    let queue = stage.ready(1).identity;
    let page = bytes_of(stage.identify(queue, Cns::Namespace, 2));
    assert_eq!((long(&page, 0), long(&page, 8)), (1001, 1001));
    assert_eq!(page[30], 1, "NMIC");
    assert_eq!(page[31], 0xFF, "RESCAP");
    assert_eq!(page[33], 0b1001, "DLFEAT");
    assert_eq!(word(&page, 92), 1, "ANAGRPID");
    assert_eq!(page[104..120], [102; 16], "NGUID");
    assert_eq!(page[130], 12, "LBADS");
    assert!(bytes_of(stage.identify(queue, Cns::Namespace, 3)).iter().all(|byte| *byte == 0));
    for nsid in [0, 1025, u32::MAX - 1, u32::MAX] {
        assert_eq!(stage.identify(queue, Cns::Namespace, nsid), refused(Status::INVALID_NAMESPACE));
    }
    let ids = bytes_of(stage.identify(queue, Cns::NamespaceIds, 1));
    assert_eq!(&ids[..4], [2, 16, 0, 0]);
    assert_eq!(ids[4..20], [101; 16]);
    assert_eq!(&ids[20..24], [3, 16, 0, 0]);
    assert_eq!(ids[24..40], [1; 16]);
    assert_eq!(&ids[40..46], [4, 1, 0, 0, 0, 0]);
    assert_eq!(stage.identify(queue, Cns::NamespaceIds, 3), refused(Status::INVALID_NAMESPACE));
    let independent = bytes_of(stage.identify(queue, Cns::IndependentNamespace, 1));
    assert_eq!(independent[14], 1, "NSTAT: ready");
    stage.control.set_read_only(stage.subsystem, 1, true).unwrap();
    assert_eq!(bytes_of(stage.identify(queue, Cns::Namespace, 1))[99], 1, "NSATTR");
}

#[test]
fn what_space_is_given_back_by_is_told_apart_from_what_is_best_written() {
    let mut stage = Stage::new();
    let queue = stage.ready(1).identity;
    let spec = NamespaceSpec { deallocate_len: 1 << 20, ..namespace(7) };
    let segments = stage.control.add_namespace(stage.subsystem, &spec).unwrap();
    let spec = NamespaceSpec { deallocate_len: 8 << 20, block_len: 512, ..namespace(8) };
    let small_blocks = stage.control.add_namespace(stage.subsystem, &spec).unwrap();
    // NSFEAT; NPWG, NPWA, NPDG, NPDA and NOWS, each less one.
    for (nsid, features, expected) in [
        (1, 0, [0, 0, 0, 0, 0]),
        (segments, 0x10, [0, 0, 255, 255, 0]),
        (small_blocks, 0x10, [0, 0, 16383, 16383, 0]),
    ] {
        let page = bytes_of(stage.identify(queue, Cns::Namespace, nsid));
        let told = [64, 66, 68, 70, 72].map(|at| u16::from_le_bytes([page[at], page[at + 1]]));
        assert_eq!((page[24], told), (features, expected), "namespace {nsid}");
    }
}

#[test]
fn a_namespace_that_takes_space_as_it_is_written_says_how_much() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    let mut stage = Stage::new();
    let queue = stage.ready(1).identity;
    let described = |stage: &mut Stage, nsid: u32| {
        let page = bytes_of(stage.identify(queue, Cns::Namespace, nsid));
        (page[24], long(&page, 0), long(&page, 8), long(&page, 16))
    };
    assert_eq!(described(&mut stage, 1), (0, 1000, 1000, 1000), "NSFEAT, NSZE, NCAP, NUSE");
    let taken = Arc::new(AtomicU64::new(0));
    stage.control.count_taken(stage.subsystem, 1, Arc::clone(&taken)).unwrap();
    for (bytes, blocks) in [(0, 0), (1, 1), (4096, 1), (64 << 10, 16), (1000 << 12, 1000), (1 << 40, 1000)] {
        taken.store(bytes, Ordering::Relaxed);
        assert_eq!(described(&mut stage, 1), (1, 1000, 1000, blocks), "{bytes} bytes");
    }
    assert_eq!(described(&mut stage, 2), (0, 1001, 1001, 1001), "the other one is as it was");
    let unknown = stage.control.count_taken(stage.subsystem, 3, taken);
    assert_eq!(unknown, Err(AdminError::UnknownNamespace(3)));
}

#[test]
fn lists_begin_behind_what_is_given() {
    let mut stage = Stage::new();
    let connected = stage.ready(1);
    let other = stage.ready(2);
    let queue = connected.identity;
    for structure in [Cns::ActiveNamespaces, Cns::AllocatedNamespaces, Cns::CommandSetActiveNamespaces] {
        let list = bytes_of(stage.identify(queue, structure, 0));
        assert_eq!([word(&list, 0), word(&list, 4), word(&list, 8)], [1, 2, 0]);
        let list = bytes_of(stage.identify(queue, structure, 1));
        assert_eq!([word(&list, 0), word(&list, 4)], [2, 0]);
        assert_eq!(stage.identify(queue, structure, u32::MAX), refused(Status::INVALID_NAMESPACE));
        assert_eq!(stage.identify(queue, structure, u32::MAX - 1), refused(Status::INVALID_NAMESPACE));
    }
    let list = bytes_of(stage.identify(queue, Cns::Controllers, 0));
    let ids = [2, connected.cntlid.0, other.cntlid.0];
    assert_eq!(list[..6], ids.map(u16::to_le_bytes).concat());
}

#[test]
fn structures_that_are_not_there_are_invalid_fields() {
    let mut stage = Stage::new();
    let queue = stage.ready(1).identity;
    for cns in 0..=u8::MAX {
        let identify = Identify { structure: cns, ..Identify::new(Cns::Namespace, NamespaceId(1)) };
        let verdict = stage.command(queue, &identify.encode(CommandId(1)), &[]);
        let is_known = [0, 1, 2, 3, 5, 6, 7, 8, 0x10, 0x11, 0x12, 0x13, 0x1C].contains(&cns);
        if is_known {
            assert_eq!(bytes_of(verdict).len(), 4096, "CNS {cns:#x}");
        } else {
            assert_eq!(verdict, refused(Status::INVALID_FIELD), "CNS {cns:#x}");
        }
    }
    let zoned = Identify { command_set: 2, ..Identify::new(Cns::CommandSetController, NamespaceId(0)) };
    let verdict = stage.command(queue, &zoned.encode(CommandId(1)), &[]);
    assert_eq!(verdict, refused(Status::INVALID_FIELD));
    let entry = Identify::new(Cns::Controller, NamespaceId(0)).encode(CommandId(1));
    let short = stage.control.command(stage.now, queue, &entry, &[], 4095);
    assert_eq!(short, refused(Status::INVALID_SGL_LENGTH));
}

#[test]
fn features_that_are_not_there_are_invalid_fields() {
    let mut stage = Stage::new();
    let queue = stage.ready(1).identity;
    let discovery = stage.discovery(2);
    for feature in 0..=u8::MAX {
        let nsid = if feature >= 0x82 { 1 } else { 0 };
        let is_io = [1, 2, 4, 5, 6, 7, 0xA, 0xB, 0xE, 0xF, 0x16, 0x81, 0x82, 0x83].contains(&feature);
        let verdict = get(&mut stage, queue, feature, 1, nsid);
        assert_eq!(verdict == refused(Status::INVALID_FIELD), !is_io, "feature {feature:#x}: {verdict:?}");
        let is_discovery = [0xB, 0xF, 0x81].contains(&feature);
        let verdict = get(&mut stage, discovery, feature, 1, 0);
        assert_eq!(verdict == refused(Status::INVALID_FIELD), !is_discovery, "feature {feature:#x}");
        if !is_io {
            assert_eq!(stage.set_feature(queue, feature, 0), refused(Status::INVALID_FIELD));
        }
    }
    let saved = SetFeatures { is_saved: true, ..set_features(0x0B, 0, 0) }.encode(CommandId(1));
    assert_eq!(stage.command(queue, &saved, &[]), refused(Status::FEATURE_NOT_SAVEABLE));
}

#[test]
fn the_write_cache_can_be_switched_off() {
    let mut stage = Stage::new();
    let queue = stage.ready(1).identity;
    assert!(stage.control.volatile_cache_enabled(queue.controller));
    assert_eq!(value_of(&get(&mut stage, queue, 6, 0, 0)), 1);
    assert_eq!(stage.set_feature(queue, 6, 0), Verdict::SUCCESS);
    assert!(!stage.control.volatile_cache_enabled(queue.controller));
    assert_eq!(value_of(&get(&mut stage, queue, 6, 0, 0)), 0);
}

/// Linux reads VWC when it connects, and flushes no namespace that comes later where it was not set.
#[test]
fn there_is_a_write_cache_whatever_namespaces_there_are() {
    let mut stage = Stage::new();
    for nsid in [1, 2] {
        stage.control.remove_namespace(stage.subsystem, nsid).unwrap();
    }
    let without_namespaces = stage.ready(1).identity;
    let memory = NamespaceSpec { volatile_cache: false, ..namespace(7) };
    stage.control.add_namespace(stage.subsystem, &memory).unwrap();
    let with_memory = stage.ready(2).identity;
    for queue in [without_namespaces, with_memory] {
        assert_eq!(bytes_of(stage.identify(queue, Cns::Controller, 0))[525], 0b101);
        assert_eq!(value_of(&get(&mut stage, queue, 6, 0, 0)), 1);
        assert_eq!(stage.set_feature(queue, 6, 0), Verdict::SUCCESS);
        assert_eq!(value_of(&get(&mut stage, queue, 6, 0, 0)), 0);
    }
}

#[test]
fn hosts_are_told_how_much_to_deallocate_at_once() {
    let mut stage = Stage::new();
    let queue = stage.ready(1).identity;
    let page = bytes_of(stage.identify(queue, Cns::CommandSetController, 0));
    assert_eq!(page[1], 13, "WZSL");
    assert_eq!((page[3], word(&page, 4), long(&page, 8)), (255, 128 << 10, 128 << 10), "DMRL, DMRSL, DMSL");
}

#[test]
fn the_timestamp_goes_on_from_where_it_was_set() {
    let mut stage = Stage::new();
    let queue = stage.ready(1).identity;
    let entry = set_features(0x0E, 0, 0).encode(CommandId(1));
    assert_eq!(stage.command(queue, &entry, &[1, 0, 0, 0, 0, 0]), refused(Status::INVALID_SGL_LENGTH));
    assert_eq!(stage.command(queue, &entry, &1_000_000_u64.to_le_bytes()), Verdict::SUCCESS);
    stage.now = seconds(3);
    let bytes = bytes_of(get(&mut stage, queue, 0x0E, 0, 0));
    assert_eq!(long(&bytes, 0), 1_002_000 | 0b10 << 48);
}

#[test]
fn host_identity_and_behaviour_are_data() {
    let mut stage = Stage::new();
    let queue = stage.ready(5).identity;
    assert_eq!(bytes_of(get(&mut stage, queue, 0x81, 1, 0)), [5; 16]);
    assert_eq!(get(&mut stage, queue, 0x81, 0, 0), refused(Status::INVALID_FIELD), "64 bits");
    assert_eq!(stage.set_feature(queue, 0x81, 1), refused(Status::COMMAND_SEQUENCE_ERROR));
    let mut behavior = [0; 512];
    behavior[0] = 1;
    let entry = set_features(0x16, 0, 0).encode(CommandId(1));
    assert_eq!(stage.command(queue, &entry, &behavior), Verdict::SUCCESS);
    assert_eq!(bytes_of(get(&mut stage, queue, 0x16, 0, 0)), behavior);
    assert_eq!(stage.command(queue, &entry, &behavior[..511]), refused(Status::INVALID_SGL_LENGTH));
}

#[test]
fn abort_gives_held_requests_back_and_nothing_else() {
    let mut stage = Stage::new();
    let (admin, io) = stage.with_queue(1);
    assert_eq!(stage.hold(admin, 40), Verdict::Held);
    let mut abort = |queue: QueueIdentity, command: u16| {
        let abort = Abort { queue: queue.queue, command: CommandId(command) };
        value_of(&stage.command(admin, &abort.encode(CommandId(1)), &[]))
    };
    assert_eq!(abort(io, 40), 1);
    assert_eq!(abort(admin, 41), 1);
    assert_eq!(abort(admin, 40), 0);
    assert_eq!(abort(admin, 40), 1);
    let aborted = ControlEvent::CompleteAsync {
        queue: admin,
        command: CommandId(40),
        result: 0,
        status: Status::ABORT_REQUESTED,
    };
    assert_eq!(stage.events(), [aborted]);
}

#[test]
fn commands_that_fabrics_do_not_have_are_invalid() {
    let mut stage = Stage::new();
    let (admin, io) = stage.with_queue(1);
    for opcode in [0x00, 0x01, 0x04, 0x05, 0x0D, 0x10, 0x11, 0x15, 0x80, 0x84, 0xC0] {
        let entry = SubmissionEntry::new(opcode, CommandId(1), NamespaceId(1));
        assert_eq!(stage.command(admin, &entry, &[]), refused(Status::INVALID_OPCODE));
    }
    let identify = Identify::new(Cns::Controller, NamespaceId::NONE).encode(CommandId(1));
    assert_eq!(stage.command(io, &identify, &[]), refused(Status::INVALID_OPCODE));
}
