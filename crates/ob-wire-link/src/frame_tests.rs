use super::*;
use proptest::prelude::*;

const SIZES: GroupSizes =
    GroupSizes { request: 4096, response: 8192, card_area: 1 << 21, host_area: 1 << 40 };

fn bytes_of(frame: &Frame<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    bytes
}

fn samples() -> Vec<Frame<'static>> {
    let resume = Resume {
        attachment: AttachmentId(7),
        secret: u64::MAX,
        received: 3,
        card_incarnation: Incarnation(9),
    };
    let hello = |resume| Hello {
        version: VERSION,
        pollers: 1,
        host_incarnation: Incarnation(2),
        resume,
        name: "höst".into(),
    };
    let region = RegionId(3);
    vec![
        Frame::Hello(hello(None)),
        Frame::Hello(hello(Some(resume))),
        Frame::Welcome(Welcome {
            pollers: 1,
            resumed: true,
            card_incarnation: Incarnation(9),
            attachment: AttachmentId(7),
            resume_secret: 1,
            received: 2,
            transfer_max: 2 << 20,
            kind: LinkKind::Tcp,
        }),
        Frame::Refused { code: RefusedCode::Version as u32, text: "no" },
        Frame::OpenGroup { request: 1, service: 2, sizes: SIZES },
        Frame::GroupOpened(GroupOpened {
            request: 1,
            group: GroupId(1),
            region,
            sizes: SIZES,
            service: 2,
            region_len: 16384,
        }),
        Frame::GroupRefused { request: 1, code: 2, text: "budget" },
        Frame::CloseGroup { group: GroupId(4) },
        Frame::GroupClosed { group: GroupId(4), reason: 2, text: "" },
        Frame::Channel(b"small"),
        Frame::Ack { count: 77 },
        Frame::Doorbell,
        Frame::Ping { nonce: 1 },
        Frame::Pong { nonce: 2 },
        Frame::Goodbye { code: 1, text: "bye" },
        Frame::DmaRead { tag: 1, region, offset: 64, len: 512 },
        Frame::DmaWrite { tag: 2, region, offset: 64, bytes: &[1, 2, 3] },
        Frame::DmaReadWords { tag: 3, region, offset: 64, stride: 64, count: 3 },
        Frame::DmaWriteWord { tag: 4, region, offset: 64, value: u64::MAX },
        Frame::RingBell { region, offset: 384 },
        Frame::DmaDone { tag: 3, status: 0, bytes: &[0; 24] },
    ]
}

#[test]
fn every_frame_survives_a_round_trip() {
    let mut kinds = std::collections::BTreeSet::new();
    for frame in samples() {
        let bytes = bytes_of(&frame);
        assert_eq!(Frame::length(&bytes, FRAME_MAX), Ok(Some(bytes.len())));
        assert_eq!(Frame::decode(&bytes).as_ref(), Ok(&frame));
        kinds.insert(bytes[4]);
    }
    let all: std::collections::BTreeSet<u8> = kind::ALL.iter().map(|(_, value)| *value).collect();
    assert_eq!(kinds, all, "a sample of every type");
}

#[test]
fn golden_bytes() {
    assert_eq!(bytes_of(&Frame::Doorbell), [8, 0, 0, 0, 11, 0, 0, 0]);
    let word = Frame::DmaWriteWord { tag: 1, region: RegionId(2), offset: 256, value: 0x0102_0304_0506_0708 };
    let golden = [
        40, 0, 0, 0, 19, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 8,
        7, 6, 5, 4, 3, 2, 1,
    ];
    assert_eq!(bytes_of(&word), golden);
}

#[test]
fn every_truncation_and_extension_is_refused() {
    for frame in samples() {
        let bytes = bytes_of(&frame);
        for cut in 0..bytes.len() {
            assert!(Frame::decode(&bytes[..cut]).is_err(), "{frame:?} cut to {cut}");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(Frame::decode(&longer).is_err(), "{frame:?} with a byte more");
    }
}

#[test]
fn a_later_version_is_recognised_whatever_follows() {
    let mut bytes = bytes_of(&samples()[0]);
    bytes[16] = 2;
    let Ok(Frame::Hello(hello)) = Frame::decode(&bytes) else { panic!("not a hello") };
    assert_eq!(hello.version, 2);
    bytes[8] = b'X';
    assert_eq!(Frame::decode(&bytes), Err(FrameError::Magic));
}

#[test]
fn long_texts_are_cut_at_a_character() {
    let text = "ü".repeat(TEXT_MAX);
    let bytes = bytes_of(&Frame::Goodbye { code: 1, text: &text });
    let Ok(Frame::Goodbye { text: cut, .. }) = Frame::decode(&bytes) else { panic!("not a goodbye") };
    assert_eq!(cut.len(), TEXT_MAX);
}

proptest! {
    #[test]
    fn any_bytes_decode_to_themselves_or_not_at_all(mut bytes in prop::collection::vec(any::<u8>(), 8..200), kind in 0u8..24) {
        let len = bytes.len() as u32;
        bytes[..4].copy_from_slice(&len.to_le_bytes());
        bytes[4] = kind;
        bytes[5..8].fill(0);
        if let Ok(frame) = Frame::decode(&bytes) {
            let again = bytes_of(&frame);
            prop_assert_eq!(Frame::decode(&again), Ok(frame.clone()));
        }
    }

    #[test]
    fn a_flipped_byte_never_panics(index in 0usize..21, at in 0usize..80, value: u8) {
        let frames = samples();
        let mut bytes = bytes_of(&frames[index]);
        let at = at % bytes.len();
        bytes[at] = value;
        let _ = Frame::length(&bytes, FRAME_MAX);
        let _ = Frame::decode(&bytes);
    }
}
