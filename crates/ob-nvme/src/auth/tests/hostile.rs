//! Peers that do not keep to the protocol.

use super::*;
use ob_wire_nvme::auth::{Challenge, Failure, Message, Negotiate, Offer, Success1};

/// Bytes of a message that nobody reads: reserved ones, and places of lists behind their ends.
fn unread(message: usize) -> Vec<usize> {
    match message {
        0 => [vec![2, 3, 9], (13..42).collect(), (43..72).collect()].concat(),
        1 => vec![2, 3, 7],
        2 => vec![2, 3, 7, 9],
        3 => [vec![2, 3, 7], (9..16).collect()].concat(),
        _ => [vec![2, 3], (6..16).collect()].concat(),
    }
}

/// Changes one byte of one message, and returns how that ends.
fn tampered(setting: &Setting, message: usize, byte: usize, mask: u8) -> Outcome {
    let (mut host, mut target) = setting.sides();
    carry(&mut host, &mut target, |at, bytes| {
        if at == message {
            bytes[byte] ^= mask;
        }
    })
}

#[test]
fn no_byte_of_any_message_can_be_changed() {
    let setting = Setting::small(true);
    for (message, bytes) in messages(&setting).iter().enumerate() {
        for byte in 0..bytes.len() {
            for mask in [0x80, 0xFF] {
                let outcome = tampered(&setting, message, byte, mask);
                if unread(message).contains(&byte) {
                    assert!(outcome.is_success(), "byte {byte} of message {message}: {outcome:?}");
                } else {
                    assert!(!outcome.authenticated, "byte {byte} of message {message}: {outcome:?}");
                    // Only the last message is lost on the host: it has its proof by then.
                    assert!(outcome.host.is_err() || message == 4, "byte {byte} of message {message}");
                }
            }
        }
    }
}

#[test]
fn no_byte_of_a_public_value_can_be_changed() {
    let setting = Setting::new(&only(HashId::Sha256, GroupId::Ffdhe2048), true);
    let messages = messages(&setting);
    for message in [1, 2] {
        let len = messages[message].len();
        for byte in (len - 256..len).step_by(5) {
            let outcome = tampered(&setting, message, byte, 0x01);
            assert!(outcome.host.is_err() && !outcome.authenticated, "byte {byte} of message {message}");
        }
    }
}

#[test]
fn messages_that_are_cut_off_are_refused() {
    let setting = Setting::new(&only(HashId::Sha256, GroupId::Ffdhe2048), true);
    for (message, bytes) in messages(&setting).iter().enumerate() {
        let step = if bytes.len() > 100 { 13 } else { 1 };
        for len in (0..bytes.len()).step_by(step) {
            let (mut host, mut target) = setting.sides();
            let outcome = carry(&mut host, &mut target, |at, bytes| {
                if at == message {
                    bytes.truncate(len);
                }
            });
            assert!(!outcome.authenticated, "message {message} of {len} bytes");
            assert!(outcome.host.is_err() || message == 4, "message {message} of {len} bytes");
        }
    }
}

#[test]
fn what_follows_a_message_does_no_harm() {
    let (mut host, mut target) = Setting::small(true).sides();
    assert!(carry(&mut host, &mut target, |_, bytes| bytes.resize(4096, 0)).is_success());
}

/// Inner lengths that reach beyond the transfer, up to their largest (CVE-2026-90230, CVE-2026-64319).
#[test]
fn inner_lengths_beyond_the_transfer_are_refused() {
    let setting = Setting::small(true);
    // Message, offset and the values to put there: NAPD, HALEN, DHLEN; HL and DHVLEN of challenge and reply; HL.
    let cases: [(usize, usize, &[u8]); 9] = [
        (0, 7, &[2, 255]),
        (0, 10, &[31, 255]),
        (0, 11, &[31, 255]),
        (1, 6, &[33, 255]),
        (1, 11, &[1, 255]),
        (2, 6, &[33, 64, 255]),
        (2, 10, &[1, 255]),
        (2, 11, &[1, 255]),
        (3, 6, &[33, 255]),
    ];
    for (message, offset, values) in cases {
        for value in values {
            let (mut host, mut target) = setting.sides();
            let outcome = carry(&mut host, &mut target, |at, bytes| {
                if at == message {
                    bytes[offset] = *value;
                }
            });
            assert!(
                outcome.host.is_err() && !outcome.authenticated,
                "{value} at {offset} of message {message}"
            );
        }
    }
}

/// CVE-2026-72130: a byte of room for a message.
#[test]
fn an_allocation_that_is_too_small_changes_nothing() {
    let setting = Setting::new(&only(HashId::Sha512, GroupId::Ffdhe2048), true);
    let messages = messages(&setting);
    for at in [1, 3] {
        let needed = messages[at].len();
        for room in [0, 1, 7, 8, 15, 16, needed - 1] {
            let (mut host, mut target) = advanced(&setting, at);
            let mut unused = |_: &mut [u8]| panic!("nothing is drawn, and so nothing computed");
            let room = u32::try_from(room).unwrap();
            assert_eq!(target.receive(room, &mut unused), Err(AllocationTooSmall { needed }));
            assert!(carry(&mut host, &mut target, |_, _| {}).is_success());
        }
        let (_, mut target) = advanced(&setting, at);
        let exact = target.receive(u32::try_from(needed).unwrap(), &mut noise(4)).unwrap();
        assert_eq!(exact.message.len(), needed);
    }
    // A refusal too waits for the room it needs.
    let (_, mut target) = setting.sides();
    target.send(&[]);
    for room in 0..8 {
        assert_eq!(target.receive(room, &mut noise(1)), Err(AllocationTooSmall { needed: 8 }));
    }
    let refusal = target.receive(8, &mut noise(1)).unwrap();
    assert_eq!(refusal.message, [0, 0xF1, 0, 0, 0, 0, 1, 6]);
    assert_eq!(refusal.progress, Progress::Failed(FailureReason::IncorrectPayload));
}

#[test]
fn negotiation_begins_anew_in_every_state() {
    for both_ways in [false, true] {
        let setting = Setting::small(both_ways);
        for at in 0..=messages(&setting).len() {
            let (_, mut target) = advanced(&setting, at);
            let mut host = HostAuthenticator::new(setting.host.clone(), 0x4321);
            assert!(carry(&mut host, &mut target, |_, _| {}).is_success(), "after {at} messages");
        }
    }
}

/// CVE-2024-50215: what belonged to the group before is gone when a negotiation begins anew with another.
#[test]
fn negotiation_begins_anew_with_another_group_and_hash() {
    let large = only(HashId::Sha512, GroupId::Ffdhe2048);
    let small = only(HashId::Sha256, GroupId::Null);
    for (first, second) in [(&large, &small), (&small, &large)] {
        for at in 0..=5 {
            let mut setting = Setting::new(first, true);
            setting.target.policy = Policy::default();
            let (_, mut target) = advanced(&setting, at);
            let config = HostConfig { policy: second.clone(), ..setting.host.clone() };
            let mut host = HostAuthenticator::new(config, 0x4321);
            assert!(carry(&mut host, &mut target, |_, _| {}).is_success(), "after {at} messages");
        }
    }
}

/// Every challenge costs an exponentiation, so a host that only ever begins is stopped, wherever it leaves off.
#[test]
fn negotiation_does_not_begin_anew_for_ever() {
    let setting = Setting::small(true);
    for left_off_after in 1..=4 {
        let mut target = TargetAuthenticator::new(setting.target.clone());
        for _ in 0..8 {
            let mut host = HostAuthenticator::new(setting.host.clone(), 0x1234);
            advance(&mut host, &mut target, left_off_after);
            assert!(!matches!(host.step(), HostStep::Failed(_)));
        }
        let host = HostAuthenticator::new(setting.host.clone(), 0x1234);
        let HostStep::Send(negotiate) = host.step() else { panic!("a host begins") };
        assert_eq!(target.send(negotiate), Progress::Continue);
        let answer = target.receive(ROOM, &mut noise(1)).unwrap();
        assert_eq!(answer.progress, Progress::Failed(FailureReason::IncorrectMessage));
    }
}

/// Every message in every state where it has no place.
#[test]
fn messages_out_of_order_are_refused() {
    let setting = Setting::small(true);
    let messages = messages(&setting);
    let order = messages.len();
    for at in 0..=order {
        for (number, message) in messages.iter().enumerate() {
            if number == 0 || (number == at && number % 2 == 0) {
                continue;
            }
            let (_, mut target) = advanced(&setting, at);
            assert_eq!(target.send(message), Progress::Continue, "message {number} after {at}");
            assert!(!target.is_authenticated());
            let answer = target.receive(ROOM, &mut noise(1)).unwrap();
            assert_eq!(answer.progress, Progress::Failed(FailureReason::IncorrectMessage));
            assert_eq!(answer.message, [0, 0xF1, 0, 0, 0x34, 0x12, 1, 7]);
        }
    }
}

#[test]
fn receiving_out_of_turn_is_refused() {
    let setting = Setting::small(true);
    for at in [0, 2, 4, 5] {
        let (_, mut target) = advanced(&setting, at);
        let answer = target.receive(ROOM, &mut noise(1)).unwrap();
        assert_eq!(answer.progress, Progress::Failed(FailureReason::IncorrectMessage), "after {at} messages");
        assert!(!target.is_authenticated());
        // Asked again, it says the same again, and nothing helps any more.
        assert_eq!(target.receive(ROOM, &mut noise(1)).unwrap(), answer);
        assert_eq!(target.send(&messages(&setting)[0]), answer.progress);
    }
}

#[test]
fn a_host_that_gives_up_is_let_go() {
    let setting = Setting::small(true);
    for at in 0..=5 {
        let (_, mut target) = advanced(&setting, at);
        let failure = Failure::new(0x1234, FailureReason::HashNotUsable);
        let progress = target.send(&Message::Failure2(failure).to_bytes());
        assert_eq!(progress, Progress::Failed(FailureReason::HashNotUsable));
        assert!(!target.is_authenticated());
    }
    let (_, mut target) = advanced(&setting, 4);
    let unknown = Message::Failure2(Failure { transaction: 0, explanation: 0xEE }).to_bytes();
    assert_eq!(target.send(&unknown), Progress::Failed(FailureReason::AuthenticationFailed));
}

fn refusal_of(negotiate: Negotiate) -> FailureReason {
    let mut target = TargetAuthenticator::new(Setting::small(false).target);
    assert_eq!(target.send(&Message::Negotiate(negotiate).to_bytes()), Progress::Continue);
    let answer = target.receive(ROOM, &mut noise(1)).unwrap();
    let Progress::Failed(reason) = answer.progress else { panic!("{answer:?}") };
    assert_eq!(answer.message, Message::Failure1(Failure::new(7, reason)).to_bytes());
    reason
}

#[test]
fn secure_channels_and_other_protocols_are_refused() {
    let offer = Some(Offer { hashes: vec![HashId::Sha256], groups: vec![GroupId::Null] });
    for secure_channel in 1..=255 {
        let negotiate = Negotiate { transaction: 7, secure_channel, offer: offer.clone() };
        assert_eq!(refusal_of(negotiate), FailureReason::ConcatenationMismatch);
    }
    let none = Negotiate { transaction: 7, secure_channel: 0, offer: None };
    assert_eq!(refusal_of(none), FailureReason::ProtocolNotUsable);
}

#[test]
fn a_challenge_without_a_sequence_number_is_refused() {
    let setting = Setting::small(true);
    let (mut host, mut target) = setting.sides();
    let outcome = carry(&mut host, &mut target, |at, bytes| {
        if at == 2 {
            bytes[12..16].fill(0);
        }
    });
    assert_eq!(outcome.target, Progress::Failed(FailureReason::IncorrectPayload));
}

/// Where a host that has said Negotiate gets this instead of a challenge, how does it end?
fn host_after(setting: &Setting, answer: &[u8]) -> HostAuthenticator {
    let mut host = HostAuthenticator::new(setting.host.clone(), 0x1234);
    host.sent();
    host.received(answer, &mut noise(3));
    host
}

#[test]
fn a_host_keeps_to_what_it_offered() {
    let setting = Setting::new(&only(HashId::Sha256, GroupId::Ffdhe2048), false);
    let answer = |hash: HashId, group: GroupId| {
        let (challenge, public) = (vec![1; hash.size()], vec![1; group.size()]);
        let challenge = Challenge {
            transaction: 0x1234,
            hash,
            group,
            sequence: 1,
            challenge: &challenge,
            public: &public,
        };
        Message::Challenge(challenge).to_bytes()
    };
    let cases = [
        (answer(HashId::Sha512, GroupId::Ffdhe2048), FailureReason::HashNotUsable),
        (answer(HashId::Sha256, GroupId::Null), FailureReason::GroupNotUsable),
        (answer(HashId::Sha256, GroupId::Ffdhe8192), FailureReason::GroupNotUsable),
        (vec![], FailureReason::IncorrectPayload),
        (vec![1, 9, 0, 0, 0x34, 0x12], FailureReason::IncorrectMessage),
    ];
    for (bytes, reason) in cases {
        let mut host = host_after(&setting, &bytes);
        let failure2 = Message::Failure2(Failure::new(0x1234, reason)).to_bytes();
        assert_eq!(host.step(), HostStep::Send(&failure2));
        host.sent();
        assert_eq!(host.step(), HostStep::Failed(HostFailure::Broken(reason)));
        host.received(&messages(&setting)[1], &mut noise(3));
        host.sent();
        assert_eq!(
            host.step(),
            HostStep::Failed(HostFailure::Broken(reason)),
            "what has failed stays failed"
        );
    }
}

#[test]
fn a_host_refuses_public_values_that_give_its_secret_away() {
    let setting = Setting::new(&only(HashId::Sha256, GroupId::Ffdhe2048), false);
    for fill in [0x00, 0xFF] {
        let (challenge, public) = ([1; 32], [fill; 256]);
        let (hash, group) = (HashId::Sha256, GroupId::Ffdhe2048);
        let challenge = Challenge {
            transaction: 0x1234,
            hash,
            group,
            sequence: 1,
            challenge: &challenge,
            public: &public,
        };
        let mut host = host_after(&setting, &Message::Challenge(challenge).to_bytes());
        host.sent();
        assert_eq!(host.step(), HostStep::Failed(HostFailure::Broken(FailureReason::IncorrectPayload)));
    }
}

#[test]
fn a_host_wants_the_proof_that_it_asked_for_and_no_other() {
    let success = |setting: &Setting, response: Option<&[u8]>| {
        let (mut host, _) = advanced(setting, 3);
        let success = Success1 { transaction: 0x1234, hash_len: 32, response };
        host.received(&Message::Success1(success).to_bytes(), &mut noise(3));
        host.sent();
        match host.step() {
            HostStep::Failed(failure) => failure,
            step => panic!("{step:?}"),
        }
    };
    let asked = Setting::small(true);
    assert_eq!(success(&asked, None), HostFailure::NotProven);
    assert_eq!(success(&asked, Some(&[0; 32])), HostFailure::NotProven);
    let unasked = Setting::small(false);
    let broken = HostFailure::Broken(FailureReason::IncorrectPayload);
    assert_eq!(success(&unasked, Some(&[0; 32])), broken);
}

/// A controller that sends the host's own challenge back to it, to have it answered.
#[test]
fn a_reflected_response_proves_nothing() {
    let mut setting = Setting::small(true);
    // The worst case: both sides know one and the same secret, and nothing is derived from names.
    let shared = Secret::generate(SecretSize::Bytes32, None, &mut noise(5));
    setting.host.host_secret = shared.clone();
    setting.host.controller_secret = Some(shared);
    let (host, _) = advanced(&setting, 2);
    let HostStep::Send(reply) = host.step() else { panic!("it is the host's turn") };
    let (response, own_challenge) = (reply[16..48].to_vec(), reply[48..80].to_vec());
    let sequence = u32::from_le_bytes(reply[12..16].try_into().unwrap());
    // A second connection of the same host is challenged with what it asked on the first.
    let challenge = Challenge {
        transaction: 0x1234,
        hash: HashId::Sha256,
        group: GroupId::Null,
        sequence,
        challenge: &own_challenge,
        public: &[],
    };
    let second = host_after(&setting, &Message::Challenge(challenge).to_bytes());
    let HostStep::Send(reflected) = second.step() else { panic!("it is the host's turn") };
    for answer in [&response[..], &reflected[16..48]] {
        let (mut first, _) = advanced(&setting, 3);
        let success = Success1 { transaction: 0x1234, hash_len: 32, response: Some(answer) };
        first.received(&Message::Success1(success).to_bytes(), &mut noise(3));
        first.sent();
        assert_eq!(first.step(), HostStep::Failed(HostFailure::NotProven));
    }
}

#[test]
fn a_host_that_is_driven_out_of_turn_fails() {
    let setting = Setting::small(true);
    let out_of_turn = HostStep::Failed(HostFailure::OutOfTurn);
    for at in 0..=5 {
        let (mut host, _) = advanced(&setting, at);
        if let HostStep::Receive { .. } = host.step() {
            host.sent();
        } else {
            host.received(&messages(&setting)[1], &mut noise(3));
        }
        assert_eq!(host.step(), out_of_turn, "after {at} messages");
    }
    let (mut done, _) = advanced(&setting, 5);
    done.sent();
    assert_eq!(done.step(), out_of_turn);
}

#[test]
fn a_hash_length_that_was_not_agreed_on_is_refused() {
    let (mut host, _) = advanced(&Setting::small(false), 3);
    let success = Success1 { transaction: 0x1234, hash_len: 48, response: None };
    host.received(&Message::Success1(success).to_bytes(), &mut noise(3));
    host.sent();
    assert_eq!(host.step(), HostStep::Failed(HostFailure::Broken(FailureReason::IncorrectPayload)));
}

#[test]
fn a_refusal_cannot_be_talked_away() {
    let setting = Setting::small(true);
    let (_, mut target) = setting.sides();
    assert_eq!(target.send(&[]), Progress::Continue);
    for message in messages(&setting) {
        assert_eq!(target.send(&message), Progress::Continue);
    }
    let answer = target.receive(ROOM, &mut noise(1)).unwrap();
    assert_eq!(answer.progress, Progress::Failed(FailureReason::IncorrectPayload));
}
