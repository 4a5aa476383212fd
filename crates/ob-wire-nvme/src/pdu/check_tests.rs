//! The extremes of HLEN, PLEN, PDO and the flags, for every type and both receivers.

use std::ops::RangeInclusive;

use super::*;

const HEADER_LEN_OFFSET: u32 = 2;
const DATA_AT_OFFSET: u32 = 3;
const TOTAL_LEN_OFFSET: u32 = 4;
const CAPSULE_DATA_MAX: u32 = 8192;
const DATA_MAX: u32 = 65536;

fn rules(role: Role, digests: Digests, alignment: u8) -> ReceiveRules {
    let alignment = DataAlignment::new(alignment).unwrap();
    ReceiveRules { role, digests, alignment, capsule_data_max: CAPSULE_DATA_MAX, data_max: DATA_MAX }
}

fn header(kind: PduType, flags: u8, header_len: u8, data_at: u8, total_len: u32) -> CommonHeader {
    CommonHeader { kind: kind.code(), flags, header_len, data_at, total_len: total_len.into() }
}

/// Type, HLEN, the PLENs without data that are taken (if any), and whether there may be data: as the tables say.
const TYPES: &[(PduType, u8, Option<RangeInclusive<u32>>, bool)] = &[
    (PduType::IcReq, 128, Some(128..=128), false),
    (PduType::IcResp, 128, Some(128..=128), false),
    (PduType::H2cTermReq, 24, Some(24..=152), false),
    (PduType::C2hTermReq, 24, Some(24..=152), false),
    (PduType::Command, 72, Some(72..=72), true),
    (PduType::Response, 24, Some(24..=24), false),
    (PduType::H2cData, 24, None, true),
    (PduType::C2hData, 24, None, true),
    (PduType::R2t, 24, Some(24..=24), false),
];

#[test]
fn each_type_has_its_receiver() {
    for kind in 0..=u8::MAX {
        for (role, kinds) in [(Role::Target, [0, 2, 4, 6, 255]), (Role::Initiator, [1, 3, 5, 7, 9])] {
            let header = CommonHeader { kind, flags: 0, header_len: 0, data_at: 0, total_len: 0.into() };
            let expected = if kinds.contains(&kind) && kind != 255 { HEADER_LEN_OFFSET } else { 0 };
            assert_eq!(
                header.check(&rules(role, Digests::NONE, 0)),
                Err(PduError::invalid(expected)),
                "type {kind} at the {role:?}"
            );
        }
    }
}

#[test]
fn each_type_has_one_header_length() {
    for (kind, good, ..) in TYPES {
        for header_len in (0..=u8::MAX).filter(|len| len != good) {
            for total_len in [0, 8, 24, 72, 128, u32::MAX] {
                let result = header(*kind, 0, header_len, header_len, total_len).check(&rules(
                    kind.receiver(),
                    Digests::NONE,
                    0,
                ));
                assert_eq!(
                    result,
                    Err(PduError::invalid(HEADER_LEN_OFFSET)),
                    "{kind:?} with HLEN {header_len}"
                );
            }
        }
    }
}

#[test]
fn lengths_without_data() {
    for (kind, header_len, lengths, may_have_data) in TYPES {
        for total_len in (0..400).chain([4096, u32::MAX - 1, u32::MAX]) {
            // PDO 0 says that there is no data, so a length that would need some is wrong.
            let result =
                header(*kind, 0, *header_len, 0, total_len).check(&rules(kind.receiver(), Digests::NONE, 0));
            if lengths.as_ref().is_some_and(|lengths| lengths.contains(&total_len)) {
                let layout = result.unwrap();
                assert_eq!(layout.total_len, total_len as usize);
                assert_eq!(layout.data_end(), total_len as usize);
            } else {
                let field = if *may_have_data { DATA_AT_OFFSET } else { TOTAL_LEN_OFFSET };
                assert_eq!(result, Err(PduError::invalid(field)), "{kind:?} with PLEN {total_len}");
            }
        }
    }
}

#[test]
fn digests_make_headers_longer() {
    for (kind, header_len, ..) in TYPES.iter().filter(|(kind, ..)| kind.has_digests()) {
        let rules = rules(kind.receiver(), Digests::BOTH, 0);
        let is_data = matches!(kind, PduType::H2cData | PduType::C2hData);
        let (data_at, len, flags) =
            if is_data { (*header_len + 4, 512 + 4, 3) } else { (0, 0, flag::HEADER_DIGEST) };
        let total_len = u32::from(*header_len) + 4 + len;
        let layout = header(*kind, flags, *header_len, data_at, total_len).check(&rules).unwrap();
        assert_eq!(layout.head_len(), usize::from(*header_len) + 4);
        assert_eq!(layout.has_data_digest, is_data);
        // The flag that was agreed on is missing.
        let result = header(*kind, flags & !1, *header_len, data_at, total_len).check(&rules);
        assert_eq!(result, Err(PduError::invalid(1)), "{kind:?} without HDGSTF");
        // The digest is not within the length.
        let short = header(*kind, flags, *header_len, data_at, total_len - len - 4).check(&rules);
        assert!(short.is_err(), "{kind:?} without room for its digest");
        // A flag that was not agreed on.
        let none = ReceiveRules { digests: Digests::NONE, ..rules };
        assert_eq!(header(*kind, 1, *header_len, data_at, total_len).check(&none), Err(PduError::invalid(1)));
    }
}

#[test]
fn reserved_flags_are_not_looked_at() {
    for kind in [PduType::IcReq, PduType::IcResp, PduType::H2cTermReq, PduType::C2hTermReq] {
        let len = kind.header_len();
        let result =
            header(kind, 0xFF, len as u8, 0xFF, len as u32).check(&rules(kind.receiver(), Digests::BOTH, 0));
        assert!(!result.unwrap().has_header_digest, "{kind:?} never has digests");
    }
    for kind in [PduType::Command, PduType::Response, PduType::R2t] {
        let len = kind.header_len();
        let result =
            header(kind, 0xFE, len as u8, 0xFF, len as u32).check(&rules(kind.receiver(), Digests::NONE, 0));
        assert_eq!(result.unwrap().data_len, 0, "{kind:?} without data");
    }
}

#[test]
fn every_data_offset_of_every_alignment() {
    for kind in [PduType::Command, PduType::H2cData, PduType::C2hData] {
        for digests in [Digests::NONE, Digests::BOTH] {
            for alignment in 0..=ALIGNMENT_MAX {
                for data_at in 0..=u8::MAX {
                    one_data_offset(kind, digests, alignment, data_at);
                }
            }
        }
    }
}

fn one_data_offset(kind: PduType, digests: Digests, alignment: u8, data_at: u8) {
    let digest_len = if digests.header { 4 } else { 0 };
    let head = kind.header_len() as u32 + digest_len;
    let flags = digests.bits();
    let rules = rules(kind.receiver(), digests, alignment);
    let check = |total: u32| header(kind, flags, kind.header_len() as u8, data_at, total).check(&rules);
    let start = u32::from(data_at);
    let fits = start >= head && start.is_multiple_of((u32::from(alignment) + 1) * 4);
    for data_len in [1, 2, 511, 4096] {
        let result = check(start.max(head) + data_len + digest_len);
        if fits {
            let layout = result.unwrap();
            assert_eq!((layout.data_at as u32, layout.data_len as u32), (start, data_len));
        } else {
            assert_eq!(
                result,
                Err(PduError::invalid(DATA_AT_OFFSET)),
                "{kind:?}, {alignment}, PDO {data_at}"
            );
        }
    }
    if fits && start + digest_len != head {
        let nothing = check(start + digest_len);
        assert_eq!(nothing, Err(PduError::invalid(TOTAL_LEN_OFFSET)), "PLEN ends where the data would begin");
    }
}

#[test]
fn data_has_limits() {
    for (kind, limit, beyond) in [
        (PduType::Command, CAPSULE_DATA_MAX, PduError::invalid(TOTAL_LEN_OFFSET)),
        (PduType::H2cData, DATA_MAX, PduError::limit(TOTAL_LEN_OFFSET)),
        (PduType::C2hData, DATA_MAX, PduError::out_of_range(TOTAL_LEN_OFFSET)),
    ] {
        let len = kind.header_len() as u8;
        let check =
            |total: u32| header(kind, 0, len, len, total).check(&rules(kind.receiver(), Digests::NONE, 0));
        assert_eq!(check(u32::from(len) + limit).unwrap().data_len, limit as usize);
        assert_eq!(check(u32::from(len) + limit + 1), Err(beyond));
        assert_eq!(check(u32::MAX), Err(beyond));
    }
}

#[test]
fn success_comes_with_the_last_data() {
    let check =
        |flags| header(PduType::C2hData, flags, 24, 24, 28).check(&rules(Role::Initiator, Digests::NONE, 0));
    assert_eq!(check(flag::SUCCESS), Err(PduError::invalid(1)));
    assert!(check(flag::SUCCESS | flag::LAST).unwrap().is_success());
    assert!(!check(flag::LAST).unwrap().is_success());
}

#[test]
fn nothing_that_is_accepted_reaches_beyond_its_end() {
    let lengths =
        [0, 1, 7, 8, 24, 27, 28, 29, 71, 72, 76, 77, 80, 127, 128, 129, 152, 153, 255, 256, 8264, u32::MAX];
    for kind in PduType::ALL {
        for flags in 0..16 {
            for digests in [Digests::NONE, Digests::BOTH, Digests { header: true, data: false }] {
                for data_at in 0..=u8::MAX {
                    for total_len in lengths {
                        let header = header(*kind, flags, kind.header_len() as u8, data_at, total_len);
                        let Ok(layout) = header.check(&rules(kind.receiver(), digests, 0)) else { continue };
                        let behind = if layout.has_data_digest { 4 } else { 0 };
                        assert_eq!(layout.total_len, total_len as usize);
                        assert_eq!(layout.data_end() + behind, layout.total_len, "{layout:?}");
                        assert!(layout.data_at >= layout.head_len(), "{layout:?}");
                    }
                }
            }
        }
    }
}
