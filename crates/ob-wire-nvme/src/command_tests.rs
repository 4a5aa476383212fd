//! Golden bytes of queue entries, SGLs and status fields.

use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

use crate::command::*;
use crate::id::{CommandId, NamespaceId, QueueId};
use crate::status::Status;
use crate::testing::sparse;

#[test]
fn submission_entry() {
    let entry = SubmissionEntry {
        dword2: 0x0B0A_0908.into(),
        dword3: 0x0F0E_0D0C.into(),
        metadata: 0x1716_1514_1312_1110.into(),
        dword10: 0x2B2A_2928.into(),
        dword11: 0x2F2E_2D2C.into(),
        dword12: 0x3332_3130.into(),
        dword13: 0x3736_3534.into(),
        dword14: 0x3B3A_3938.into(),
        dword15: 0x3F3E_3D3C.into(),
        ..SubmissionEntry::new(0x01, CommandId(0x0302), NamespaceId(0x0706_0504))
    }
    .with_data(DataPointer::Transport { len: 0x2322_2120 })
    .with_fuse(Fuse::Second);
    let mut expected: Vec<u8> = (0..64).collect();
    expected[0] = 0x01;
    expected[1] = 0x42;
    expected[24..40].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0x20, 0x21, 0x22, 0x23, 0, 0, 0, 0x5A]);
    assert_eq!(entry.as_bytes(), expected);
    assert_eq!(SubmissionEntry::read_from_bytes(&expected).unwrap(), entry);
    assert_eq!(entry.dwords10_11(), 0x2F2E_2D2C_2B2A_2928);
    assert_eq!(entry.dwords12_13(), 0x3736_3534_3332_3130);
    assert_eq!(entry.fuse(), Ok(Fuse::Second));
}

#[test]
fn completion_entry() {
    let status = Status::from_field(0x6285 << 1);
    let entry =
        CompletionEntry::new(CommandId(0x0D0C), QueueId(0x0B0A), 0x0908, status, 0x0706_0504_0302_0100);
    // SC 85h, SCT 2, M, DNR: 6285h, shifted by the phase tag.
    let expected = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0x0A, 0x0B, 0x0C, 0x0D, 0x0A, 0xC5];
    assert_eq!(entry.as_bytes(), expected);
    assert_eq!(entry.status(), status);
    assert_eq!(entry.result(), 0x0706_0504_0302_0100);
}

#[test]
fn in_capsule_data() {
    let entry = SubmissionEntry::new(0x01, CommandId(1), NamespaceId(1));
    let entry = entry.with_data(DataPointer::InCapsule { offset: 0x10, len: 0x1000 });
    assert_eq!(entry.sgl.as_bytes(), sparse(16, &[(0, &[0x10]), (9, &[0x10]), (15, &[0x01])]));
    assert_eq!(entry.data_pointer(0x1010), Ok(DataPointer::InCapsule { offset: 0x10, len: 0x1000 }));
    assert_eq!(entry.data_pointer(0x100F), Err(Status::INVALID_SGL_LENGTH.with_do_not_retry()));
    assert_eq!(entry.data_pointer(0x0F), Err(Status::INVALID_SGL_OFFSET.with_do_not_retry()));
    let with = |address: u64, length: u32, identifier: u8| SubmissionEntry {
        sgl: SglDescriptor { address: address.into(), length: length.into(), reserved: [0; 3], identifier },
        ..entry
    };
    let most = u32::MAX;
    assert_eq!(with(u64::MAX, most, 0x01).data_pointer(most).unwrap_err().code(), 0x16, "no wrap");
    assert_eq!(with(1, most, 0x01).data_pointer(most).unwrap_err().code(), 0x0F, "no wrap");
    assert_eq!(with(0, 0, 0x01).data_pointer(0), Ok(DataPointer::None));
    assert_eq!(with(0, 0, 0x5A).data_pointer(0), Ok(DataPointer::None));
    assert_eq!(with(7, most, 0x5A).data_pointer(0), Ok(DataPointer::Transport { len: most }));
    for identifier in (0..=u8::MAX).filter(|identifier| ![0x01, 0x5A].contains(identifier)) {
        let result = with(0, 512, identifier).data_pointer(512);
        assert_eq!(result, Err(Status::INVALID_SGL_TYPE.with_do_not_retry()), "{identifier:#x}");
    }
    for psdt in [0x00, 0x80, 0xC0] {
        let entry = SubmissionEntry { flags: psdt, ..entry };
        assert_eq!(
            entry.data_pointer(8192),
            Err(Status::INVALID_FIELD.with_do_not_retry()),
            "PSDT {psdt:#x}"
        );
    }
}

#[test]
fn directions_are_in_the_opcode() {
    let direction =
        |opcode: u8, kind: u32| SubmissionEntry::new(opcode, CommandId(0), NamespaceId(kind)).direction();
    assert_eq!(direction(IoOpcode::Flush.code(), 1), DataDirection::None);
    assert_eq!(direction(IoOpcode::Write.code(), 1), DataDirection::ToController);
    assert_eq!(direction(IoOpcode::Read.code(), 1), DataDirection::ToHost);
    assert_eq!(direction(IoOpcode::Compare.code(), 1), DataDirection::ToController);
    assert_eq!(direction(IoOpcode::WriteZeroes.code(), 1), DataDirection::None);
    assert_eq!(direction(AdminOpcode::Identify.code(), 0), DataDirection::ToHost);
    assert_eq!(direction(FABRICS_OPCODE, 0x01), DataDirection::ToController, "Connect");
    assert_eq!(direction(FABRICS_OPCODE, 0x06), DataDirection::ToHost, "Authentication Receive");
    assert_eq!(direction(FABRICS_OPCODE, 0x04), DataDirection::None, "Property Get");
}

#[test]
fn fuse_three_is_reserved() {
    let entry = SubmissionEntry { flags: 0x43, ..SubmissionEntry::default() };
    assert_eq!(entry.fuse(), Err(Status::INVALID_FIELD.with_do_not_retry()));
}

#[test]
fn codes_are_those_of_the_tables() {
    assert_eq!(AdminOpcode::try_from(0x18), Ok(AdminOpcode::KeepAlive));
    assert_eq!(IoOpcode::try_from(0x15), Ok(IoOpcode::ReservationRelease));
    assert_eq!(FabricsKind::try_from(0x08), Ok(FabricsKind::Disconnect));
    assert_eq!(AdminOpcode::try_from(0x03).unwrap_err().to_string(), "0x3 is no admin opcode");
    let known = (0..=u8::MAX).filter(|code| AdminOpcode::try_from(*code).is_ok()).count();
    assert_eq!(known, AdminOpcode::ALL.len());
}

#[test]
fn status_fields() {
    // As Linux writes them: type and code, DNR 4000h.
    for (status, bits) in [
        (Status::SUCCESS, 0x0000),
        (Status::INVALID_OPCODE.with_do_not_retry(), 0x4001),
        (Status::RESERVATION_CONFLICT, 0x0083),
        (Status::INVALID_LOG_PAGE, 0x0109),
        (Status::CONNECT_INVALID_PARAMETERS, 0x0182),
        (Status::AUTHENTICATION_REQUIRED, 0x0191),
        (Status::COMPARE_FAILURE, 0x0285),
        (Status::UNRECOVERED_READ_ERROR, 0x0281),
        (Status::ANA_INACCESSIBLE, 0x0302),
        (Status::HOST_PATHING_ERROR, 0x0370),
    ] {
        assert_eq!(status.bits(), bits, "{status}");
        assert_eq!(status.to_field(), bits << 1, "{status}");
        assert_eq!(Status::from_field(bits << 1 | 1), status, "the phase tag is no part of it");
    }
    let status = Status::INVALID_FIELD.with_do_not_retry();
    assert_eq!(status.to_string(), "invalid field in command (0/02h), do not retry");
    assert!(status.is(Status::INVALID_FIELD) && status != Status::INVALID_FIELD && !status.is_success());
    assert_eq!(Status::new(7, 0xB0).to_string(), "unknown status (7/b0h)");
}

#[test]
fn no_status_has_two_names() {
    for (index, (status, text)) in Status::NAMED.iter().enumerate() {
        assert_eq!(status.text(), Some(*text), "another name stands before");
        assert!(Status::NAMED.iter().skip(index + 1).all(|(other, _)| other != status), "{text}");
    }
}

proptest! {
    #[test]
    fn any_status_keeps_its_parts(field in any::<u16>()) {
        let status = Status::from_field(field);
        prop_assert_eq!(status.to_field(), field & !1);
        let again = Status::new(status.kind(), status.code());
        let again = if status.do_not_retry() { again.with_do_not_retry() } else { again };
        // CRD and More, which nobody here asks for, are kept as they came.
        prop_assert_eq!(again.bits(), status.bits() & !0x3800);
    }

    #[test]
    fn data_pointers_come_back(len in 1..=u32::MAX, offset in any::<u32>(), is_inside in any::<bool>()) {
        let offset = offset.min(u32::MAX - len);
        let data = if is_inside { DataPointer::InCapsule { offset, len } } else { DataPointer::Transport { len } };
        let entry = SubmissionEntry::new(0x01, CommandId(0), NamespaceId(1)).with_data(data);
        prop_assert_eq!(entry.data_pointer(u32::MAX), Ok(data));
    }
}
