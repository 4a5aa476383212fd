//! What a response is computed from (Base §8.13.5.3 and §8.13.5.4).
//!
//! ```text
//!   KS = H(g^xy)            Ca = HMAC(KS, C)        (without a group: Ca = C)
//!
//!   R1 = HMAC(host's key,       Ca1 | S1 | T_ID | SC_C | "HostHost"   | host's NQN       | 0 | subsystem's NQN)
//!   R2 = HMAC(controller's key, Ca2 | S2 | T_ID | SC_C | "Controller" | subsystem's NQN  | 0 | host's NQN)
//! ```
//!
//! Numbers are little-endian, and the names without a zero at their end.

use ob_wire_nvme::auth::HashId;
use ob_wire_nvme::text::Nqn;
use zeroize::Zeroizing;

use super::digest;
use super::group::Shared;
use super::secret::Secret;

/// SC_C as it goes into a response: secure channel concatenation is never agreed on.
const NO_SECURE_CHANNEL: u8 = 0;

/// What both responses of a transaction have in common.
pub(super) struct Proof<'transaction> {
    pub(super) hash: HashId,
    pub(super) transaction: u16,
    pub(super) host: &'transaction Nqn,
    pub(super) subsystem: &'transaction Nqn,
    pub(super) shared: Option<&'transaction Shared>,
}

impl Proof<'_> {
    /// R1: the host's response to C1.
    pub(super) fn host(&self, secret: &Secret, sequence: u32, challenge: &[u8]) -> Vec<u8> {
        self.response(secret, b"HostHost", [self.host, self.subsystem], sequence, challenge)
    }

    /// R2: the controller's response to C2.
    pub(super) fn controller(&self, secret: &Secret, sequence: u32, challenge: &[u8]) -> Vec<u8> {
        self.response(secret, b"Controller", [self.subsystem, self.host], sequence, challenge)
    }

    fn response(
        &self,
        secret: &Secret,
        role: &[u8],
        names: [&Nqn; 2],
        sequence: u32,
        challenge: &[u8],
    ) -> Vec<u8> {
        let [own, other] = names;
        let parts: [&[u8]; 8] = [
            &self.augmented(challenge),
            &sequence.to_le_bytes(),
            &self.transaction.to_le_bytes(),
            &[NO_SECURE_CHANNEL],
            role,
            own.as_str().as_bytes(),
            &[0],
            other.as_str().as_bytes(),
        ];
        digest::hmac(self.hash, &secret.key_for(own), &parts)
    }

    fn augmented(&self, challenge: &[u8]) -> Vec<u8> {
        match self.shared {
            Some(shared) => {
                let session_key = Zeroizing::new(digest::hash(self.hash, shared));
                digest::hmac(self.hash, &session_key, &[challenge])
            }
            None => challenge.to_vec(),
        }
    }
}
