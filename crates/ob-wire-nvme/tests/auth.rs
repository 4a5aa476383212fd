//! Messages of in-band authentication: their bytes, and bytes that are none.

// A test that cannot go on should say so loudly.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use ob_wire_nvme::auth::{
    Challenge, Failure, FailureReason, GroupId, HashId, MESSAGE_LEN_MAX, Message, MessageError, Negotiate,
    Offer, Reply, Success1, Success2, transaction_of,
};
use proptest::prelude::*;

fn head(auth_type: u8, auth_id: u8, rest: &[u8]) -> Vec<u8> {
    [&[auth_type, auth_id, 0, 0, 0x34, 0x12], rest].concat()
}

fn check(message: &Message<'_>, bytes: &[u8]) {
    assert_eq!(message.to_bytes(), bytes);
    assert_eq!(Message::parse(bytes).as_ref(), Ok(message));
    assert_eq!(message.transaction(), 0x1234);
    assert_eq!(transaction_of(bytes), Some(0x1234));
}

/// What the Linux host sends first: three hashes, six groups, the groups 30 bytes behind the hashes.
#[test]
fn negotiate_as_the_kernel_sends_it() {
    let mut bytes = head(0x00, 0x00, &[0, 1, 1, 0, 3, 6, 1, 2, 3]);
    bytes.resize(8 + 34, 0);
    bytes.extend([0, 1, 2, 3, 4, 5]);
    bytes.resize(8 + 64, 0);
    let offer = Offer { hashes: HashId::ALL.to_vec(), groups: GroupId::ALL.to_vec() };
    check(
        &Message::Negotiate(Negotiate { transaction: 0x1234, secure_channel: 0, offer: Some(offer) }),
        &bytes,
    );
}

#[test]
fn negotiate_finds_its_protocol_among_others_and_skips_unknown_ids() {
    let mut bytes = head(0x00, 0x00, &[2, 3]);
    bytes.extend([0xEE; 64]);
    let mut descriptor = vec![1, 0, 3, 2, 9, 2, 0xFF];
    descriptor.resize(34, 0);
    descriptor.extend([7, 5]);
    descriptor.resize(64, 0);
    bytes.extend(&descriptor);
    bytes.extend([0xEE; 64]);
    let offer = Some(Offer { hashes: vec![HashId::Sha384], groups: vec![GroupId::Ffdhe8192] });
    let expected = Negotiate { transaction: 0x1234, secure_channel: 2, offer };
    assert_eq!(Message::parse(&bytes), Ok(Message::Negotiate(expected)));
    let none = Negotiate { transaction: 0x1234, secure_channel: 2, offer: None };
    bytes[7] = 1;
    assert_eq!(Message::parse(&bytes), Ok(Message::Negotiate(none)));
    bytes[7] = 4;
    assert_eq!(Message::parse(&bytes), Err(MessageError::Truncated { needed: 264, len: 200 }));
}

#[test]
fn a_descriptor_has_room_for_thirty() {
    for at in [10, 11] {
        let mut bytes = head(0x00, 0x00, &[0, 1, 1]);
        bytes.resize(72, 0);
        bytes[at] = 30;
        assert!(Message::parse(&bytes).is_ok());
        bytes[at] = 31;
        assert_eq!(Message::parse(&bytes), Err(MessageError::TooManyIds(31)));
    }
}

#[test]
fn challenge_and_reply() {
    let (c1, c2, public, response) = ([0xC1; 32], [0xC2; 48], [0xDD; 256], [0xAA; 48]);
    let challenge = Challenge {
        transaction: 0x1234,
        hash: HashId::Sha256,
        group: GroupId::Ffdhe2048,
        sequence: 0x0403_0201,
        challenge: &c1,
        public: &public,
    };
    let fields = head(0x01, 0x01, &[32, 0, 1, 1, 0, 1, 1, 2, 3, 4]);
    check(&Message::Challenge(challenge), &[&fields[..], &c1, &public].concat());
    let reply = Reply {
        transaction: 0x1234,
        response: &response,
        challenge: Some((0x0403_0201, &c2)),
        public: &public,
    };
    let fields = head(0x01, 0x02, &[48, 0, 1, 0, 0, 1, 1, 2, 3, 4]);
    check(&Message::Reply(reply), &[&fields[..], &response, &c2, &public].concat());
    let one_way = Reply { challenge: None, public: &[], ..reply };
    let fields = head(0x01, 0x02, &[48, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    check(&Message::Reply(one_way), &[&fields[..], &response, &[0; 48]].concat());
}

#[test]
fn verdicts() {
    let response = [0xBB; 64];
    let success = Success1 { transaction: 0x1234, hash_len: 64, response: Some(&response) };
    let fields = head(0x01, 0x03, &[64, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    check(&Message::Success1(success), &[&fields[..], &response].concat());
    let fields = head(0x01, 0x03, &[64, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let one_way = Success1 { response: None, ..success };
    check(&Message::Success1(one_way), &[&fields[..], &[0; 64]].concat());
    // Some controllers leave out the response's place when there is none.
    assert_eq!(Message::parse(&fields), Ok(Message::Success1(one_way)));
    check(&Message::Success2(Success2 { transaction: 0x1234 }), &head(0x01, 0x04, &[0; 10]));
    let failure = Failure::new(0x1234, FailureReason::HashNotUsable);
    check(&Message::Failure1(failure), &head(0x00, 0xF1, &[1, 4]));
    check(&Message::Failure2(failure), &head(0x00, 0xF0, &[1, 4]));
    assert_eq!(failure.reason(), Some(FailureReason::HashNotUsable));
    assert_eq!(Failure { transaction: 0, explanation: 0x77 }.reason(), None);
}

#[test]
fn what_is_wrong_has_a_reason() {
    let reason = |bytes: &[u8]| Message::parse(bytes).unwrap_err().reason();
    assert_eq!(reason(&[]), FailureReason::IncorrectPayload);
    assert_eq!(reason(&head(0x00, 0xF1, &[1])), FailureReason::IncorrectPayload);
    assert_eq!(reason(&head(0x01, 0x00, &[0; 300])), FailureReason::IncorrectMessage);
    assert_eq!(reason(&head(0x02, 0x01, &[0; 300])), FailureReason::IncorrectMessage);
    let challenge = |fields: [u8; 6]| head(0x01, 0x01, &[&fields[..], &[0; 2000]].concat());
    assert!(Message::parse(&challenge([32, 0, 1, 0, 0, 0])).is_ok());
    assert_eq!(reason(&challenge([32, 0, 0, 0, 0, 0])), FailureReason::HashNotUsable);
    assert_eq!(reason(&challenge([48, 0, 1, 0, 0, 0])), FailureReason::HashNotUsable);
    assert_eq!(reason(&challenge([32, 0, 1, 6, 0, 0])), FailureReason::GroupNotUsable);
    assert_eq!(reason(&challenge([32, 0, 1, 0, 4, 0])), FailureReason::GroupNotUsable);
    assert_eq!(reason(&challenge([32, 0, 1, 1, 0, 0])), FailureReason::GroupNotUsable);
    for auth_id in [0x02, 0x03] {
        let mut flag = head(0x01, auth_id, &[0; 10]);
        flag[8] = 2;
        assert_eq!(Message::parse(&flag), Err(MessageError::Flag(2)));
        assert_eq!(reason(&flag), FailureReason::IncorrectPayload);
    }
}

#[test]
fn the_longest_message_is_as_long_as_it_says() {
    let (hash, public) = ([1; 64], [2; 1024]);
    let reply = Reply { transaction: 0, response: &hash, challenge: Some((1, &hash)), public: &public };
    assert_eq!(Message::Reply(reply).to_bytes().len(), MESSAGE_LEN_MAX);
}

proptest! {
    /// Whatever can be read is a prefix of the bytes, and reads the same again.
    #[test]
    fn no_bytes_are_a_panic(
        kind in prop_oneof![Just((0u8, 0u8)), Just((0, 0xF0)), (0u8..3, 0u8..6)],
        rest in proptest::collection::vec(any::<u8>(), 0..1400),
        small in any::<bool>(),
    ) {
        let mut bytes = head(kind.0, kind.1, &rest);
        if small {
            // Small lengths and flags reach further in than random ones.
            for byte in bytes.iter_mut().skip(6).take(6) { *byte &= 0x21; }
        }
        if let Ok(message) = Message::parse(&bytes) {
            let again = message.to_bytes();
            prop_assert_eq!(Message::parse(&again), Ok(message));
        }
    }
}
