//! Exchanges of two sides that keep to the protocol, with secrets and policies that fit or do not.

use super::*;

const REFUSED: Result<(), HostFailure> =
    Err(HostFailure::Refused { explanation: FailureReason::AuthenticationFailed as u8 });

#[test]
fn every_hash_and_group_both_ways_and_one_way() {
    for hash in HashId::ALL {
        for group in GroupId::ALL {
            for both_ways in [false, true] {
                let setting = Setting::new(&only(*hash, *group), both_ways);
                let messages = messages(&setting);
                assert_eq!(messages.len(), if both_ways { 5 } else { 4 }, "{hash:?} {group:?}");
            }
        }
    }
}

#[test]
fn the_targets_preference_decides() {
    let setting = Setting::new(&Policy::default(), true);
    let challenge = &messages(&setting)[1];
    assert_eq!(challenge[8..10], [HashId::Sha512.code(), GroupId::Ffdhe3072.code()]);
    let mut setting = setting;
    setting.target.policy = Policy {
        hashes: vec![HashId::Sha384, HashId::Sha512],
        groups: vec![GroupId::Null, GroupId::Ffdhe3072],
    };
    let challenge = &messages(&setting)[1];
    assert_eq!(challenge[8..10], [HashId::Sha384.code(), GroupId::Null.code()]);
}

#[test]
fn a_host_that_offers_everything_is_not_given_the_largest() {
    let everything = Policy::everything();
    for group in GroupId::ALL {
        assert!(everything.groups.contains(group));
    }
    assert_eq!(everything.groups.last(), Some(&GroupId::Null));
    let mut setting = Setting::new(&Policy::default(), false);
    setting.host.policy = everything;
    assert_eq!(messages(&setting)[1][9], GroupId::Ffdhe3072.code());
    setting.host.policy.groups = vec![GroupId::Ffdhe8192];
    let refused = HostFailure::Refused { explanation: FailureReason::GroupNotUsable.code() };
    assert_eq!(run(&setting).host, Err(refused));
}

#[test]
fn a_host_with_another_secret_is_refused() {
    for group in [GroupId::Null, GroupId::Ffdhe2048] {
        let mut setting = Setting::new(&only(HashId::Sha384, group), true);
        setting.host.host_secret = secret(9);
        let outcome = run(&setting);
        assert_eq!(outcome.host, REFUSED);
        assert_eq!(outcome.target, Progress::Failed(FailureReason::AuthenticationFailed));
        assert!(!outcome.authenticated);
    }
}

#[test]
fn a_controller_with_another_secret_is_not_trusted() {
    for group in [GroupId::Null, GroupId::Ffdhe2048] {
        let mut setting = Setting::new(&only(HashId::Sha384, group), true);
        setting.target.controller_secret = Some(secret(9));
        let outcome = run(&setting);
        assert_eq!(outcome.host, Err(HostFailure::NotProven));
        assert_eq!(outcome.target, Progress::Failed(FailureReason::AuthenticationFailed));
        assert!(!outcome.authenticated, "a host that has turned away is not let in");
    }
}

#[test]
fn a_controller_without_a_secret_refuses_to_prove_itself() {
    let mut setting = Setting::small(true);
    setting.target.controller_secret = None;
    assert_eq!(run(&setting).host, REFUSED);
}

#[test]
fn a_host_need_not_ask() {
    let mut setting = Setting::small(true);
    setting.host.controller_secret = None;
    assert!(run(&setting).is_success());
}

#[test]
fn names_are_part_of_the_proof() {
    let other = Nqn::new("nqn.2024-01.io.outboard:other").unwrap();
    for transform in [None, Some(HashId::Sha512)] {
        let plain = Secret::generate(SecretSize::Bytes64, transform, &mut noise(5));
        let mut setting = Setting::small(false);
        setting.host.host_secret = plain.clone();
        setting.target.host_secret = plain;
        assert!(run(&setting).is_success());
        let mut of_host = setting.clone();
        of_host.host.host = other.clone();
        assert_eq!(run(&of_host).host, REFUSED);
        setting.host.subsystem = other.clone();
        assert_eq!(run(&setting).host, REFUSED);
    }
}

#[test]
fn what_cannot_be_agreed_on_is_explained() {
    let refusal = |change: fn(&mut Setting)| {
        let mut setting = Setting::new(&Policy::default(), false);
        change(&mut setting);
        let outcome = run(&setting);
        let Progress::Failed(reason) = outcome.target else { panic!("{outcome:?}") };
        assert_eq!(outcome.host, Err(HostFailure::Refused { explanation: reason.code() }));
        reason
    };
    let hash = refusal(|setting| {
        setting.host.policy.hashes = vec![HashId::Sha256];
        setting.target.policy.hashes = vec![HashId::Sha384];
    });
    assert_eq!(hash, FailureReason::HashNotUsable);
    let group = refusal(|setting| {
        setting.host.policy.groups = vec![GroupId::Null];
        setting.target.policy.groups = vec![GroupId::Ffdhe2048];
    });
    assert_eq!(group, FailureReason::GroupNotUsable);
    assert_eq!(refusal(|setting| setting.host.policy.hashes.clear()), FailureReason::HashNotUsable);
    assert_eq!(refusal(|setting| setting.target.policy.groups.clear()), FailureReason::GroupNotUsable);
}

#[test]
fn a_host_proves_itself_again() {
    for both_ways in [false, true] {
        let setting = Setting::small(both_ways);
        let (mut host, mut target) = setting.sides();
        assert!(carry(&mut host, &mut target, |_, _| {}).is_success());
        // Without a limit on good transactions: more than a host could begin in vain.
        for transaction in 0..20 {
            let mut again = HostAuthenticator::new(setting.host.clone(), transaction);
            let outcome = carry(&mut again, &mut target, |at, _| assert!(at < 5));
            assert!(outcome.is_success());
            assert!(target.is_done());
        }
        let mut wrong = setting.host.clone();
        wrong.host_secret = secret(9);
        let outcome = carry(&mut HostAuthenticator::new(wrong, 7), &mut target, |_, _| {});
        assert_eq!(outcome.host, REFUSED);
        assert!(!target.is_authenticated());
        let late = carry(&mut HostAuthenticator::new(setting.host, 8), &mut target, |_, _| {});
        assert_eq!(late.host, REFUSED, "what has failed stays failed");
    }
}

#[test]
fn a_host_stays_in_while_it_proves_itself_again() {
    let setting = Setting::small(true);
    let (mut host, mut target) = setting.sides();
    assert!(carry(&mut host, &mut target, |_, _| {}).is_success());
    let again = HostAuthenticator::new(setting.host, 5);
    let HostStep::Send(negotiate) = again.step() else { panic!("a host begins") };
    assert_eq!(target.send(negotiate), Progress::Continue);
    assert!(target.is_authenticated() && !target.is_done());
}

#[test]
fn nobody_is_in_before_the_end() {
    for both_ways in [false, true] {
        let setting = Setting::small(both_ways);
        let last = messages(&setting).len();
        for at in 0..last {
            let (host, target) = advanced(&setting, at);
            assert!(
                !host.is_done() && !target.is_authenticated() && !target.is_done(),
                "after {at} messages"
            );
        }
        let (host, target) = advanced(&setting, last);
        assert!(host.is_done() && target.is_done());
    }
}

#[test]
fn an_old_reply_does_not_help() {
    let setting = Setting::small(false);
    let old = messages(&setting);
    let mut target = TargetAuthenticator::new(setting.target.clone());
    let mut other_noise = noise(77);
    assert_eq!(target.send(&old[0]), Progress::Continue);
    target.receive(ROOM, &mut other_noise).unwrap();
    assert_eq!(target.send(&old[2]), Progress::Continue);
    let answer = target.receive(ROOM, &mut other_noise).unwrap();
    assert_eq!(answer.progress, Progress::Failed(FailureReason::AuthenticationFailed));
}

#[test]
fn sequence_numbers_count_up_and_pass_over_zero() {
    let mut sequence = Sequence::default();
    assert_eq!(sequence.next(&mut |bytes| bytes.fill(0xFF)), u32::MAX);
    assert_eq!(sequence.next(&mut |_| panic!("only the first is drawn")), 1);
    assert_eq!(sequence.next(&mut |_| panic!("only the first is drawn")), 2);
    assert_eq!(Sequence::default().next(&mut |bytes| bytes.fill(0)), 1);
}
