//! Random commands and bytes: whoever does not know the secret does not get in, and nothing panics.

use super::*;
use proptest::prelude::*;

/// What a host without the secret may do to a controller, or a controller without one to a host.
#[derive(Clone, Debug)]
enum Act {
    /// A message of an exchange that somebody who knows the secrets once had, changed here and there.
    Old(usize, Vec<(usize, u8)>),
    /// The message that a peer with another secret would send now.
    Fitting,
    /// Any bytes.
    Bytes(Vec<u8>),
    /// Authentication Receive, or its end.
    Receive(u32),
    /// A peer with another secret begins anew.
    Restart,
}

fn act() -> impl Strategy<Value = Act> {
    let changes = proptest::collection::vec((0usize..400, any::<u8>()), 0..3);
    prop_oneof![
        3 => (0usize..5, changes).prop_map(|(message, changes)| Act::Old(message, changes)),
        4 => Just(Act::Fitting),
        1 => proptest::collection::vec(any::<u8>(), 0..120).prop_map(Act::Bytes),
        3 => prop_oneof![Just(ROOM), 0u32..100].prop_map(Act::Receive),
        1 => Just(Act::Restart),
    ]
}

fn changed(message: &[u8], changes: &[(usize, u8)]) -> Vec<u8> {
    let mut message = message.to_vec();
    for (at, mask) in changes {
        if let Some(byte) = message.get_mut(*at) {
            *byte ^= mask;
        }
    }
    message
}

proptest! {
    #[test]
    fn a_stranger_is_never_let_in(acts in proptest::collection::vec(act(), 1..40), both_ways: bool) {
        let setting = Setting::small(both_ways);
        let old = messages(&setting);
        let mut stranger_config = setting.host.clone();
        stranger_config.host_secret = secret(9);
        let stranger = || HostAuthenticator::new(stranger_config.clone(), 0x1234);
        let (mut host, mut target) = (stranger(), TargetAuthenticator::new(setting.target.clone()));
        // Another seed than in the exchange that the stranger has seen: a challenge is never used twice.
        let (mut host_noise, mut target_noise) = (noise(50), noise(51));
        let mut failed = None;
        for act in acts {
            let progress = match act {
                Act::Old(message, changes) => {
                    target.send(&changed(old.get(message).unwrap_or(&old[0]), &changes))
                }
                Act::Bytes(bytes) => target.send(&bytes),
                Act::Fitting => {
                    let HostStep::Send(message) = host.step() else { continue };
                    let progress = target.send(message);
                    host.sent();
                    progress
                }
                Act::Receive(room) => {
                    let Ok(answer) = target.receive(room, &mut target_noise) else { continue };
                    prop_assert!(answer.message.len() <= usize::try_from(room).unwrap());
                    if let HostStep::Receive { .. } = host.step() {
                        host.received(&answer.message, &mut host_noise);
                    }
                    answer.progress
                }
                Act::Restart => {
                    host = stranger();
                    continue;
                }
            };
            prop_assert_ne!(progress, Progress::Done);
            prop_assert!(!target.is_authenticated() && !target.is_done());
            prop_assert!(failed.is_none_or(|failed| failed == progress), "what has failed stays failed");
            failed = matches!(progress, Progress::Failed(_)).then_some(progress);
        }
    }

    #[test]
    fn a_stranger_is_never_trusted(acts in proptest::collection::vec(act(), 1..40)) {
        let setting = Setting::small(true);
        let old = messages(&setting);
        let mut stranger_config = setting.target.clone();
        stranger_config.controller_secret = Some(secret(9));
        let mut stranger = TargetAuthenticator::new(stranger_config.clone());
        let mut host = HostAuthenticator::new(setting.host.clone(), 0x1234);
        let (mut host_noise, mut target_noise) = (noise(50), noise(51));
        for act in acts {
            if let HostStep::Send(message) = host.step() {
                stranger.send(message);
                host.sent();
            }
            match act {
                Act::Old(message, changes) => host.received(&changed(&old[message], &changes), &mut host_noise),
                Act::Bytes(bytes) => host.received(&bytes, &mut host_noise),
                Act::Fitting | Act::Receive(_) => {
                    let answer = stranger.receive(ROOM, &mut target_noise).unwrap();
                    host.received(&answer.message, &mut host_noise);
                }
                Act::Restart => {
                    stranger = TargetAuthenticator::new(stranger_config.clone());
                    host = HostAuthenticator::new(setting.host.clone(), 0x1234);
                }
            }
            prop_assert!(!host.is_done());
        }
    }
}
