//! Golden bytes of every PDU, written down from the tables of the specification, and round trips.

use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::id::{CommandId, QueueId, TransferTag};
use crate::status::Status;
use crate::testing::{assert_bytes, sparse};

fn rules(role: Role, digests: Digests) -> ReceiveRules {
    ReceiveRules { role, digests, alignment: DataAlignment::DWORD, capsule_data_max: 8192, data_max: 1 << 20 }
}

fn framing(role: Role, digests: Digests) -> Framing {
    Framing { role, digests, alignment: DataAlignment::DWORD }
}

fn content(bytes: &[u8], rules: &ReceiveRules) -> (Layout, Pdu) {
    match receive(bytes, rules) {
        Ok(Progress::Header(layout, pdu)) => (layout, pdu),
        other => panic!("no header in {bytes:02x?}: {other:?}"),
    }
}

#[test]
fn ic_request() {
    let alignment = DataAlignment::new(7).unwrap();
    let request = IcRequest { alignment, digests: Digests::BOTH, r2t_max: 16 };
    let expected = sparse(
        128,
        &[
            (0, &[0x00, 0x00, 0x80, 0x00, 0x80, 0x00, 0x00, 0x00]),
            (10, &[0x07, 0x03, 0x0F, 0x00, 0x00, 0x00]),
        ],
    );
    assert_bytes(&request.encode(), &expected);
    assert_eq!(content(&expected, &rules(Role::Target, Digests::NONE)).1, Pdu::IcRequest(request));
}

#[test]
fn ic_request_that_cannot_be() {
    let good = IcRequest { alignment: DataAlignment::DWORD, digests: Digests::NONE, r2t_max: 1 }.encode();
    let with = |offset: usize, value: u8| {
        let mut bytes = good.to_vec();
        bytes[offset] = value;
        receive(&bytes, &rules(Role::Target, Digests::NONE))
    };
    assert_eq!(with(8, 1), Err(PduError::unsupported(8)), "PFV");
    assert_eq!(with(9, 1), Err(PduError::unsupported(8)), "PFV");
    assert_eq!(with(10, 32), Err(PduError::invalid(10)), "HPDA");
    assert!(with(10, 31).is_ok());
    assert!(with(11, 0xFF).is_ok(), "the other bits of DGST are reserved");
    assert!(with(127, 0xFF).is_ok(), "reserved");
    let most = sparse(128, &[(0, &good[..8]), (12, &[0xFF; 4])]);
    let Pdu::IcRequest(request) = content(&most, &rules(Role::Target, Digests::NONE)).1 else { panic!() };
    assert_eq!(request.r2t_max, u32::MAX, "the largest MAXR2T does not wrap to none");
}

#[test]
fn ic_response() {
    let alignment = DataAlignment::new(31).unwrap();
    let digests = Digests { header: false, data: true };
    let response = IcResponse { alignment, digests, data_max: 0x0002_0000 };
    let expected = sparse(
        128,
        &[
            (0, &[0x01, 0x00, 0x80, 0x00, 0x80, 0x00, 0x00, 0x00]),
            (10, &[0x1F, 0x02, 0x00, 0x00, 0x02, 0x00]),
        ],
    );
    assert_bytes(&response.encode(), &expected);
    assert_eq!(content(&expected, &rules(Role::Initiator, Digests::NONE)).1, Pdu::IcResponse(response));
    for (data_max, is_good) in [(0, false), (4092, false), (4096, true), (4098, false), (0xFFFF_FFFC, true)] {
        let bytes = IcResponse { data_max, ..response }.encode();
        let result = receive(&bytes, &rules(Role::Initiator, Digests::NONE));
        assert_eq!(result.err(), (!is_good).then_some(PduError::invalid(12)), "MAXH2CDATA {data_max}");
    }
}

#[test]
fn command_capsule() {
    let entry = SubmissionEntry::read_from_bytes(&(0..64).collect::<Vec<u8>>()).unwrap();
    let mut expected = vec![0x04, 0x00, 0x48, 0x00, 0x48, 0x00, 0x00, 0x00];
    expected.extend(0..64);
    let bare = framing(Role::Initiator, Digests::NONE);
    assert_bytes(&bare.command(&entry, 0), &expected);
    assert_eq!(content(&expected, &rules(Role::Target, Digests::NONE)).1, Pdu::Command(entry));
    // With 4096 bytes of data: PDO 72, PLEN 4168.
    expected[3..6].copy_from_slice(&[0x48, 0x48, 0x10]);
    assert_bytes(&bare.command(&entry, 4096), &expected);
    let (layout, _) = content(&expected, &rules(Role::Target, Digests::NONE));
    assert_eq!((layout.data_at, layout.data_len, layout.total_len), (72, 4096, 4168));
}

#[test]
fn response_capsule() {
    let entry = CompletionEntry::new(
        CommandId(0x1122),
        QueueId(3),
        0x0405,
        Status::INVALID_FIELD,
        0x0807_0605_0403_0201,
    );
    let expected = [
        0x05, 0x00, 0x18, 0x00, 0x18, 0x00, 0x00, 0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x05,
        0x04, 0x03, 0x00, 0x22, 0x11, 0x04, 0x00,
    ];
    assert_bytes(&framing(Role::Target, Digests::NONE).response(&entry), &expected);
    assert_eq!(content(&expected, &rules(Role::Initiator, Digests::NONE)).1, Pdu::Response(entry));
}

fn transfer() -> DataTransfer {
    DataTransfer {
        command: CommandId(0x0102),
        tag: TransferTag(0x0304),
        offset: 0x0001_0000,
        len: 0x1000,
        is_last: true,
        is_success: false,
    }
}

#[test]
fn data_both_ways() {
    let to_controller = [
        0x06, 0x04, 0x18, 0x18, 0x18, 0x10, 0x00, 0x00, 0x02, 0x01, 0x04, 0x03, 0x00, 0x00, 0x01, 0x00, 0x00,
        0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    ];
    assert_bytes(&framing(Role::Initiator, Digests::NONE).data(&transfer()), &to_controller);
    let (layout, pdu) = content(&to_controller, &rules(Role::Target, Digests::NONE));
    assert_eq!((layout.data_at, layout.data_len, pdu), (24, 4096, Pdu::Data(transfer())));
    // C2HData with LAST_PDU and SUCCESS.
    let mut to_host = to_controller;
    to_host[..2].copy_from_slice(&[0x07, 0x0C]);
    let success = DataTransfer { is_success: true, ..transfer() };
    assert_bytes(&framing(Role::Target, Digests::NONE).data(&success), &to_host);
    assert_eq!(content(&to_host, &rules(Role::Initiator, Digests::NONE)).1, Pdu::Data(success));
}

#[test]
fn data_that_does_not_fit_its_pdu() {
    let good = framing(Role::Initiator, Digests::NONE).data(&transfer()).to_vec();
    let with = |offset: usize, values: &[u8]| {
        let mut bytes = good.clone();
        bytes[offset..offset + values.len()].copy_from_slice(values);
        receive(&bytes, &rules(Role::Target, Digests::NONE))
    };
    assert_eq!(with(16, &[0x01]), Err(PduError::invalid(16)), "DATAL is more than the PDU brings");
    assert_eq!(with(17, &[0x0F]), Err(PduError::invalid(16)), "DATAL is less");
    assert_eq!(with(12, &[0x00, 0xF0, 0xFF, 0xFF]), Err(PduError::out_of_range(12)), "the end is 2^32");
    assert!(with(12, &[0xFC, 0xEF, 0xFF, 0xFF]).is_ok());
}

#[test]
fn ready_to_transfer() {
    let wanted =
        ReadyToTransfer { command: CommandId(9), tag: TransferTag(0xFFFF), offset: 0x2000, len: 0x1000 };
    let expected = [
        0x09, 0x00, 0x18, 0x00, 0x18, 0x00, 0x00, 0x00, 0x09, 0x00, 0xFF, 0xFF, 0x00, 0x20, 0x00, 0x00, 0x00,
        0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    ];
    assert_bytes(&framing(Role::Target, Digests::NONE).ready_to_transfer(&wanted), &expected);
    let initiator = rules(Role::Initiator, Digests::NONE);
    assert_eq!(content(&expected, &initiator).1, Pdu::ReadyToTransfer(wanted));
    let nothing =
        framing(Role::Target, Digests::NONE).ready_to_transfer(&ReadyToTransfer { len: 0, ..wanted });
    assert_eq!(receive(&nothing, &initiator), Err(PduError::invalid(16)));
    let beyond = ReadyToTransfer { offset: u32::MAX, len: 1, ..wanted };
    let beyond = framing(Role::Target, Digests::NONE).ready_to_transfer(&beyond);
    assert_eq!(receive(&beyond, &initiator), Err(PduError::out_of_range(12)));
}

#[test]
fn termination_quotes_at_most_128_bytes() {
    let error = PduError::invalid(0x0A0B_0C0D);
    let mut expected =
        vec![0x03, 0x00, 0x18, 0x00, 0x98, 0x00, 0x00, 0x00, 0x01, 0x00, 0x0D, 0x0C, 0x0B, 0x0A];
    expected.extend([0; 10]);
    expected.extend([0xEE; 128]);
    assert_bytes(&error.encode(Role::Target, &[0xEE; 500]), &expected);
    let (layout, pdu) = content(&expected, &rules(Role::Initiator, Digests::BOTH));
    assert_eq!((layout.data_at, layout.data_len), (24, 128));
    let Pdu::Termination(termination) = pdu else { panic!() };
    assert_eq!(
        (termination.known_status(), termination.info),
        (Some(FatalStatus::InvalidHeader), 0x0A0B_0C0D)
    );
    // From a host, quoting nothing: type 02h, PLEN 24.
    let short = PduError::sequence().encode(Role::Initiator, &[]);
    assert_bytes(&short, &sparse(24, &[(0, &[0x02, 0x00, 0x18, 0x00, 0x18]), (8, &[0x02])]));
}

#[test]
fn digests_are_crc32c_in_little_endian() {
    // RFC 3720, B.4: 32 zeros, 32 ones, and 0 to 31.
    assert_eq!(digest(&[0; 32]), [0xAA, 0x36, 0x91, 0x8A]);
    assert_eq!(digest(&[0xFF; 32]), [0x43, 0xAB, 0xA8, 0x62]);
    let rising: Vec<u8> = (0..32).collect();
    let mut pieces = DataDigest::new();
    pieces.update(&rising[..7]);
    pieces.update(&rising[7..]);
    assert_eq!(pieces.finish(), [0x4E, 0x79, 0xDD, 0x46]);
    assert!(pieces.matches(&[0x4E, 0x79, 0xDD, 0x46]));
    assert!(!pieces.matches(&[0x4E, 0x79, 0xDD]) && !pieces.matches(&[0; 4]));
}

#[test]
fn a_wrong_header_digest_is_told_from_a_right_one() {
    let bytes = framing(Role::Target, Digests::BOTH).response(&CompletionEntry::default());
    assert_eq!(bytes.len(), 28);
    assert_eq!(bytes[1], flag::HEADER_DIGEST, "there is no data to digest");
    let initiator = rules(Role::Initiator, Digests::BOTH);
    assert!(matches!(receive(&bytes, &initiator), Ok(Progress::Header(..))));
    assert_eq!(receive(&bytes[..27], &initiator), Ok(Progress::Need(28)));
    let mut wrong = bytes.to_vec();
    wrong[24..].copy_from_slice(&[1, 2, 3, 4]);
    let error = PduError { status: FatalStatus::HeaderDigest, info: 0x0403_0201 };
    assert_eq!(receive(&wrong, &initiator), Err(error));
}

#[test]
fn data_lies_where_the_other_side_wants_it() {
    for (code, digests, command_at, data_at) in [
        (0, Digests::NONE, 72, 24),
        (0, Digests::BOTH, 76, 28),
        (1, Digests::BOTH, 80, 32),
        (17, Digests::BOTH, 144, 72),
        (31, Digests::NONE, 128, 128),
    ] {
        let alignment = DataAlignment::new(code).unwrap();
        let framing = Framing { role: Role::Initiator, digests, alignment };
        let command = framing.command(&SubmissionEntry::default(), 512);
        assert_eq!((command.len(), command[3]), (command_at, command_at as u8));
        let data = framing.data(&transfer());
        assert_eq!((data.len(), data[3]), (data_at, data_at as u8));
        let rules = ReceiveRules { alignment, ..rules(Role::Target, digests) };
        assert_eq!(content(&command, &rules).0.data_len, 512);
        assert_eq!(content(&data, &rules).0.data_end(), data_at + 4096);
    }
}

#[test]
fn nothing_is_said_before_enough_is_there() {
    let target = rules(Role::Target, Digests::BOTH);
    let bytes = framing(Role::Initiator, Digests::BOTH).command(&SubmissionEntry::default(), 0);
    for len in 0..bytes.len() {
        let need = if len < 8 { 8 } else { 76 };
        assert_eq!(receive(&bytes[..len], &target), Ok(Progress::Need(need)), "{len} bytes");
    }
}

fn any_digests() -> impl Strategy<Value = Digests> {
    (any::<bool>(), any::<bool>()).prop_map(|(header, data)| Digests { header, data })
}

fn any_alignment() -> impl Strategy<Value = DataAlignment> {
    (0..=ALIGNMENT_MAX).prop_map(|code| DataAlignment::new(code).unwrap())
}

proptest! {
    #[test]
    fn what_is_framed_is_received(
        digests in any_digests(), alignment in any_alignment(), entry in any::<[u8; 64]>(), capsule in 0..8192_u32,
        command in any::<u16>(), tag in any::<u16>(), offset in 0..1_u32 << 31, len in 1..1_u32 << 20,
        is_last in any::<bool>(), is_success in any::<bool>(),
    ) {
        let (command, tag) = (CommandId(command), TransferTag(tag));
        let to_target = Framing { role: Role::Initiator, digests, alignment };
        let to_host = Framing { role: Role::Target, digests, alignment };
        let target = ReceiveRules { alignment, ..rules(Role::Target, digests) };
        let initiator = ReceiveRules { alignment, ..rules(Role::Initiator, digests) };

        let entry = SubmissionEntry::read_from_bytes(&entry).unwrap();
        let bytes = to_target.command(&entry, capsule);
        let (layout, pdu) = content(&bytes, &target);
        prop_assert_eq!(pdu, Pdu::Command(entry));
        prop_assert_eq!(layout.data_len, capsule as usize);
        prop_assert_eq!(bytes.len() + layout.data_len + if layout.has_data_digest { 4 } else { 0 }, layout.total_len);

        let completion = CompletionEntry::read_from_bytes(&entry.as_bytes()[..16]).unwrap();
        prop_assert_eq!(content(&to_host.response(&completion), &initiator).1, Pdu::Response(completion));

        let mut data = DataTransfer { command, tag, offset, len, is_last, is_success: false };
        prop_assert_eq!(content(&to_target.data(&data), &target).1, Pdu::Data(data));
        data.is_success = is_last && is_success;
        prop_assert_eq!(content(&to_host.data(&data), &initiator).1, Pdu::Data(data));

        let wanted = ReadyToTransfer { command, tag, offset, len };
        prop_assert_eq!(content(&to_host.ready_to_transfer(&wanted), &initiator).1, Pdu::ReadyToTransfer(wanted));
    }

    #[test]
    fn any_bytes_are_refused_or_make_sense(
        bytes in prop::collection::vec(any::<u8>(), 0..200), digests in any_digests(), is_target in any::<bool>(),
    ) {
        let role = if is_target { Role::Target } else { Role::Initiator };
        if let Ok(Progress::Need(len)) = receive(&bytes, &rules(role, digests)) {
            prop_assert!(len > bytes.len() && len <= HEADER_MAX);
        }
    }
}
