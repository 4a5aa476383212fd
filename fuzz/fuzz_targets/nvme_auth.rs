//! DH-HMAC-CHAP against strangers: whoever does not know a secret, but has heard an exchange of those who do, may say
//! anything in any order to a controller or to a host, and begin anew. Neither ever takes the stranger for the other.

#![no_main]

use std::cell::RefCell;
use std::collections::BTreeMap;

use ob_nvme::auth::{
    GroupId, HashId, HostAuthenticator, HostConfig, HostStep, Policy, Progress, Secret, SecretSize,
    TargetAuthenticator, TargetConfig,
};
use ob_wire_nvme::auth::Message;
use ob_wire_nvme::text::Nqn;

const ROOM: u32 = 4096;
const TRANSACTION: u16 = 0x1234;
/// An exponentiation takes most of a millisecond here.
const STEPS_MAX: usize = 60;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let mut script = Script(input);
    let setting = Setting::from_bits(script.number());
    let heard = heard(setting);
    if script.number() % 2 == 0 {
        strangers_to_a_target(setting, &heard, &mut script);
    } else {
        strangers_to_a_host(setting, &heard, &mut script);
    }
});

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Setting {
    both_ways: bool,
    hash: u8,
    has_group: bool,
}

impl Setting {
    fn from_bits(bits: u8) -> Self {
        // The group is costly, and what is checked around it matters more here than what it computes.
        Self { both_ways: bits & 1 != 0, hash: bits >> 1 & 3, has_group: bits >> 3 == 7 }
    }

    fn policy(self) -> Policy {
        let hashes = vec![[HashId::Sha256, HashId::Sha384, HashId::Sha512][usize::from(self.hash) % 3]];
        let group = if self.has_group { GroupId::Ffdhe2048 } else { GroupId::Null };
        Policy { hashes, groups: vec![group] }
    }

    fn host(self, host_secret: u64) -> HostAuthenticator {
        let config = HostConfig {
            host: name("nqn.2014-08.org.nvmexpress:uuid:0d1f6c1c-7f3a-4a55-9a70-2f4b3c9b6a11"),
            subsystem: name("nqn.2024-01.io.outboard:fuzz"),
            host_secret: secret(host_secret),
            controller_secret: self.both_ways.then(|| secret(2)),
            policy: self.policy(),
        };
        HostAuthenticator::new(config, TRANSACTION)
    }

    fn target(self, controller_secret: u64) -> TargetAuthenticator {
        TargetAuthenticator::new(TargetConfig {
            host: name("nqn.2014-08.org.nvmexpress:uuid:0d1f6c1c-7f3a-4a55-9a70-2f4b3c9b6a11"),
            subsystem: name("nqn.2024-01.io.outboard:fuzz"),
            host_secret: secret(1),
            controller_secret: self.both_ways.then(|| secret(controller_secret)),
            policy: self.policy(),
        })
    }
}

fn name(text: &str) -> Nqn {
    Nqn::new(text).expect("a name")
}

fn secret(seed: u64) -> Secret {
    Secret::generate(SecretSize::Bytes32, Some(HashId::Sha256), &mut noise(seed))
}

/// Not random at all, so that a failure can be had again.
fn noise(seed: u64) -> impl FnMut(&mut [u8]) {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    move |bytes: &mut [u8]| {
        for byte in bytes {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte = state.to_le_bytes()[3];
        }
    }
}

/// The messages of an exchange that went well; that it does is what makes the rest worth checking.
fn heard(setting: Setting) -> Vec<Vec<u8>> {
    thread_local! {
        static HEARD: RefCell<BTreeMap<Setting, Vec<Vec<u8>>>> = const { RefCell::new(BTreeMap::new()) };
    }
    HEARD.with_borrow_mut(|known| known.entry(setting).or_insert_with(|| exchange(setting)).clone())
}

fn exchange(setting: Setting) -> Vec<Vec<u8>> {
    let (mut host, mut target) = (setting.host(1), setting.target(2));
    let (mut host_noise, mut target_noise) = (noise(3), noise(4));
    let mut messages = Vec::new();
    loop {
        match host.step() {
            HostStep::Send(message) => {
                messages.push(message.to_vec());
                target.send(message);
                host.sent();
            }
            HostStep::Receive { allocation_len } => {
                let answer = target.receive(allocation_len, &mut target_noise).expect("there is room");
                host.received(&answer.message, &mut host_noise);
                messages.push(answer.message);
            }
            HostStep::Done => break,
            HostStep::Failed(failure) => panic!("those who know their secrets fail: {failure}"),
        }
    }
    assert!(target.is_done() && host.is_done());
    messages
}

fn strangers_to_a_target(setting: Setting, heard: &[Vec<u8>], script: &mut Script<'_>) {
    // Another seed than in the exchange that was heard: a challenge is never used twice.
    let (mut target, mut target_noise) = (setting.target(2), noise(51));
    let (mut stranger, mut stranger_noise) = (setting.host(9), noise(50));
    let mut failed = None;
    for _ in 0..STEPS_MAX {
        if script.0.is_empty() {
            return;
        }
        let progress = match script.number() % 8 {
            0 | 1 => target.send(&script.changed(heard)),
            2 => target.send(&script.message()),
            3 | 4 => {
                let HostStep::Send(message) = stranger.step() else { continue };
                let progress = target.send(message);
                stranger.sent();
                progress
            }
            5 | 6 => {
                let room = if script.number() % 4 == 0 { u32::from(script.number()) } else { ROOM };
                let Ok(answer) = target.receive(room, &mut target_noise) else { continue };
                assert!(answer.message.len() <= room as usize);
                if let HostStep::Receive { .. } = stranger.step() {
                    stranger.received(&answer.message, &mut stranger_noise);
                }
                answer.progress
            }
            _ => {
                stranger = setting.host(9);
                continue;
            }
        };
        assert_ne!(progress, Progress::Done);
        assert!(!target.is_authenticated() && !target.is_done());
        assert!(failed.is_none_or(|failed| failed == progress), "what has failed stays failed");
        failed = matches!(progress, Progress::Failed(_)).then_some(progress);
    }
}

fn strangers_to_a_host(setting: Setting, heard: &[Vec<u8>], script: &mut Script<'_>) {
    // A host that asks for no proof gets none.
    let setting = Setting { both_ways: true, ..setting };
    let (mut host, mut host_noise) = (setting.host(1), noise(50));
    let (mut stranger, mut stranger_noise) = (setting.target(9), noise(51));
    for _ in 0..STEPS_MAX {
        if script.0.is_empty() {
            return;
        }
        match script.number() % 8 {
            0 | 1 => host.received(&script.changed(heard), &mut host_noise),
            2 => host.received(&script.message(), &mut host_noise),
            3..=5 => match host.step() {
                HostStep::Send(message) => {
                    stranger.send(message);
                    host.sent();
                }
                HostStep::Receive { allocation_len } => {
                    let Ok(answer) = stranger.receive(allocation_len, &mut stranger_noise) else { continue };
                    host.received(&answer.message, &mut host_noise);
                }
                HostStep::Done => panic!("a stranger is trusted"),
                HostStep::Failed(_) => host = setting.host(1),
            },
            6 => host.sent(),
            _ => (host, stranger) = (setting.host(1), setting.target(9)),
        }
        assert!(!host.is_done(), "a stranger is trusted");
    }
}

/// What is left of the input.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn number(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// A message as it lies there.
    fn message(&mut self) -> Vec<u8> {
        let len = usize::from(self.number());
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        if let Ok(message) = Message::parse(taken) {
            // What is understood is understood the same once more.
            let bytes = message.to_bytes();
            assert_eq!(Message::parse(&bytes).as_ref(), Ok(&message));
        }
        taken.to_vec()
    }

    /// A message that was heard, with bytes changed, cut off or put behind.
    fn changed(&mut self, heard: &[Vec<u8>]) -> Vec<u8> {
        let mut message = heard[usize::from(self.number()) % heard.len()].clone();
        for _ in 0..self.number() % 4 {
            let (at, mask) = (usize::from(self.number()), self.number());
            if let Some(byte) = message.get_mut(at) {
                *byte ^= mask;
            }
        }
        match self.number() {
            0 => message.truncate(usize::from(self.number())),
            1 => message.resize(message.len() + usize::from(self.number()), 0),
            _ => {}
        }
        message
    }
}
