//! Golden bytes of features.

use zerocopy::IntoBytes;

use crate::command::SubmissionEntry;
use crate::feature::*;
use crate::id::{CommandId, NamespaceId};
use crate::status::Status;
use crate::testing::{assert_bytes, sparse};

#[test]
fn get_features() {
    let get = GetFeatures {
        feature: 0x81,
        select: FeatureSelect::Supported,
        dword11: 1,
        namespace: NamespaceId::ALL,
    };
    let entry = get.encode(CommandId(3));
    let expected = sparse(
        64,
        &[(0, &[0x0A, 0x40, 3, 0, 0xFF, 0xFF, 0xFF, 0xFF]), (39, &[0x5A]), (40, &[0x81, 0x03, 0, 0, 1])],
    );
    assert_bytes(entry.as_bytes(), &expected);
    assert_eq!(GetFeatures::parse(&entry), Ok(get));
    for select in 4..8_u32 {
        let entry = SubmissionEntry { dword10: (select << 8).into(), ..entry };
        assert_eq!(GetFeatures::parse(&entry), Err(Status::INVALID_FIELD.with_do_not_retry()));
    }
}

#[test]
fn set_features() {
    let set = SetFeatures {
        feature: 0x07,
        is_saved: true,
        dword11: 0x0003_0003,
        dword12: 1,
        dword13: 2,
        namespace: NamespaceId::NONE,
    };
    let entry = set.encode(CommandId(4));
    let expected = sparse(
        64,
        &[(0, &[0x09, 0x40, 4]), (39, &[0x5A]), (40, &[0x07, 0, 0, 0x80, 3, 0, 3, 0, 1, 0, 0, 0, 2])],
    );
    assert_bytes(entry.as_bytes(), &expected);
    assert_eq!(SetFeatures::parse(&entry), set);
    assert_eq!(feature_id(0x07), Ok(FeatureId::NumberOfQueues));
    assert_eq!(feature_id(0x00), Err(Status::INVALID_FIELD.with_do_not_retry()));
}

#[test]
fn numbers_of_queues() {
    let counts = QueueCounts::parse(0x0007_0003).unwrap();
    assert_eq!((counts.submission, counts.completion), (4, 8));
    assert_eq!(counts.bits(), 0x0007_0003);
    for dword in [0xFFFF, 0xFFFF_0000, u32::MAX] {
        assert_eq!(QueueCounts::parse(dword), Err(Status::INVALID_FIELD.with_do_not_retry()), "{dword:#x}");
    }
    assert_eq!(QueueCounts::parse(0xFFFE_FFFE).unwrap().bits(), 0xFFFE_FFFE);
    assert_eq!(QueueCounts { submission: 0, completion: 0 }.bits(), 0);
}

#[test]
fn data_of_features() {
    let timestamp = Timestamp::new(0x0605_0403_0201, 0x02);
    assert_eq!(timestamp.as_bytes(), [1, 2, 3, 4, 5, 6, 2, 0]);
    assert_eq!(timestamp.milliseconds(), 0x0605_0403_0201);
    let behavior = HostBehavior { advanced_retry: 1, extended_formats: 1, ..HostBehavior::default() };
    assert_bytes(behavior.as_bytes(), &sparse(512, &[(0, &[1]), (2, &[1])]));
    assert_eq!((host_id_len(0), host_id_len(1), host_id_len(2)), (8, 16, 8));
    assert_eq!(reservation_mask::ALL, 0x0E);
}
