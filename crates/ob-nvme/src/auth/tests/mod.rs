//! Both roles against each other, against recorded bytes, and against everything that is wrong.

mod exchange;
mod golden;
mod hostile;
mod random;

use super::*;
use ob_wire_nvme::text::Nqn;

const ROOM: u32 = 4096;

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

fn secret(seed: u64) -> Secret {
    Secret::generate(SecretSize::Bytes32, Some(HashId::Sha256), &mut noise(seed))
}

fn only(hash: HashId, group: GroupId) -> Policy {
    Policy { hashes: vec![hash], groups: vec![group] }
}

fn host_nqn() -> Nqn {
    Nqn::new("nqn.2014-08.org.nvmexpress:uuid:0d1f6c1c-7f3a-4a55-9a70-2f4b3c9b6a11").unwrap()
}

fn subsystem_nqn() -> Nqn {
    Nqn::new("nqn.2024-01.io.outboard:golden").unwrap()
}

/// What both sides are told. Tests change one side of it.
#[derive(Clone)]
struct Setting {
    host: HostConfig,
    target: TargetConfig,
}

impl Setting {
    fn new(policy: &Policy, both_ways: bool) -> Self {
        let controller_secret = both_ways.then(|| secret(2));
        let host = HostConfig {
            host: host_nqn(),
            subsystem: subsystem_nqn(),
            host_secret: secret(1),
            controller_secret: controller_secret.clone(),
            policy: policy.clone(),
        };
        let target = TargetConfig {
            host: host_nqn(),
            subsystem: subsystem_nqn(),
            host_secret: secret(1),
            controller_secret,
            policy: policy.clone(),
        };
        Self { host, target }
    }

    fn small(both_ways: bool) -> Self {
        Self::new(&only(HashId::Sha256, GroupId::Null), both_ways)
    }

    fn sides(&self) -> (HostAuthenticator, TargetAuthenticator) {
        (HostAuthenticator::new(self.host.clone(), 0x1234), TargetAuthenticator::new(self.target.clone()))
    }
}

/// How an exchange ended on both sides.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    host: Result<(), HostFailure>,
    target: Progress,
    authenticated: bool,
}

impl Outcome {
    fn is_success(&self) -> bool {
        self.host.is_ok() && self.target == Progress::Done && self.authenticated
    }
}

/// Carries messages to and fro until the host is through; `wire` may change each on its way, by its number.
fn carry(
    host: &mut HostAuthenticator,
    target: &mut TargetAuthenticator,
    mut wire: impl FnMut(usize, &mut Vec<u8>),
) -> Outcome {
    let (mut host_noise, mut target_noise) = (noise(3), noise(4));
    let mut progress = Progress::Continue;
    for at in 0.. {
        assert!(at < 8, "an exchange has at most six messages");
        match host.step() {
            HostStep::Send(message) => {
                let mut message = message.to_vec();
                wire(at, &mut message);
                progress = target.send(&message);
                host.sent();
            }
            HostStep::Receive { allocation_len } => {
                let mut answer = target.receive(allocation_len, &mut target_noise).unwrap();
                progress = answer.progress;
                wire(at, &mut answer.message);
                host.received(&answer.message, &mut host_noise);
            }
            HostStep::Done => {
                return Outcome { host: Ok(()), target: progress, authenticated: target.is_authenticated() };
            }
            HostStep::Failed(failure) => {
                let authenticated = target.is_authenticated();
                return Outcome { host: Err(failure), target: progress, authenticated };
            }
        }
    }
    unreachable!()
}

fn run(setting: &Setting) -> Outcome {
    let (mut host, mut target) = setting.sides();
    carry(&mut host, &mut target, |_, _| {})
}

/// Every message of a good exchange.
fn messages(setting: &Setting) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    let (mut host, mut target) = setting.sides();
    let outcome = carry(&mut host, &mut target, |_, message| messages.push(message.clone()));
    assert!(outcome.is_success());
    messages
}

/// Brings both sides as far as `messages_len` messages lead.
fn advanced(setting: &Setting, messages_len: usize) -> (HostAuthenticator, TargetAuthenticator) {
    let (mut host, mut target) = setting.sides();
    advance(&mut host, &mut target, messages_len);
    (host, target)
}

fn advance(host: &mut HostAuthenticator, target: &mut TargetAuthenticator, messages_len: usize) {
    let (mut host_noise, mut target_noise) = (noise(3), noise(4));
    for _ in 0..messages_len {
        match host.step() {
            HostStep::Send(message) => {
                target.send(message);
                host.sent();
            }
            HostStep::Receive { allocation_len } => {
                let answer = target.receive(allocation_len, &mut target_noise).unwrap();
                host.received(&answer.message, &mut host_noise);
            }
            end => panic!("the exchange is over: {end:?}"),
        }
    }
}
