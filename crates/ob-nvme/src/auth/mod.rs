//! In-band authentication: DH-HMAC-CHAP, for both roles (Base §8.13).
//!
//! ```text
//!   Authentication Send ──▶ TargetAuthenticator::send                  HostAuthenticator::step ──▶ Send, Receive,
//!   Authentication      ──▶ TargetAuthenticator::receive ──▶ bytes               ▲                 Done, Failed
//!   Receive                                                           sent, received ◀── the controller's answers
//! ```
//!
//! Pure state machines, one to a queue. Randomness comes in from the caller, who also watches the time: a transaction
//! that does not end must end with its connection. The secrets of both sides stand in a [`Secret`] each; which
//! hash functions and groups may be used, and in what order of preference, is a [`Policy`].
//!
//! Not spoken: secure channel concatenation (a TLS key out of the exchange). A host that asks for it is refused.

mod digest;
mod group;
mod host;
mod proof;
mod secret;
mod target;
#[cfg(test)]
mod tests;

pub use host::{HostAuthenticator, HostConfig, HostFailure, HostStep};
pub use ob_wire_nvme::auth::{FailureReason, GroupId, HashId};
pub use secret::{Secret, SecretError, SecretSize};
pub use target::{AllocationTooSmall, Answer, Progress, TargetAuthenticator, TargetConfig};

/// A source of randomness: fills the bytes with what nobody can guess.
pub type Fill<'source> = &'source mut dyn FnMut(&mut [u8]);

/// What may be used, the preferred first. A target takes the first of its own list that the host offers too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Hash functions.
    pub hashes: Vec<HashId>,
    /// Groups.
    pub groups: Vec<GroupId>,
}

impl Default for Policy {
    /// All that a target can afford before it knows who asks: an exponentiation takes a core about 0.5 ms with 2048
    /// bits, 1.4 ms with 3072 and 2.9 ms with 4096, but 15 ms with 6144 and 35 ms with 8192, and everybody else on the
    /// thread waits for it. 3072 bits are as strong as a cipher of 128. No group at all comes last.
    fn default() -> Self {
        use GroupId::{Ffdhe2048, Ffdhe3072, Ffdhe4096, Null};
        Self {
            hashes: vec![HashId::Sha512, HashId::Sha384, HashId::Sha256],
            groups: vec![Ffdhe3072, Ffdhe4096, Ffdhe2048, Null],
        }
    }
}

impl Policy {
    /// All there is: right for a host, which pays only for itself.
    #[must_use]
    pub fn everything() -> Self {
        let mut policy = Self::default();
        let large = [GroupId::Ffdhe6144, GroupId::Ffdhe8192];
        policy.groups.splice(3..3, large);
        policy
    }
}

/// Sequence numbers begin anywhere and count up; 0 is none of them (Base §8.13.5.2).
#[derive(Clone, Copy, Debug, Default)]
struct Sequence(Option<u32>);

impl Sequence {
    fn next(&mut self, random: Fill<'_>) -> u32 {
        let next = match self.0 {
            Some(last) => last.wrapping_add(1),
            None => {
                let mut bytes = [0; 4];
                random(&mut bytes);
                u32::from_le_bytes(bytes)
            }
        };
        let next = next.max(1);
        self.0 = Some(next);
        next
    }
}

/// A challenge of as many bytes as the hash has.
fn challenge(hash: HashId, random: Fill<'_>) -> Vec<u8> {
    let mut bytes = vec![0; hash.size()];
    random(&mut bytes);
    bytes
}
