//! The hash functions by their number, and HMAC on each.

use hmac::{EagerHash, Hmac, KeyInit, Mac};
use ob_wire_nvme::auth::HashId;
use sha2::{Digest, Sha256, Sha384, Sha512};
use subtle::ConstantTimeEq;

/// H(bytes).
pub(super) fn hash(hash: HashId, bytes: &[u8]) -> Vec<u8> {
    match hash {
        HashId::Sha256 => Sha256::digest(bytes).to_vec(),
        HashId::Sha384 => Sha384::digest(bytes).to_vec(),
        HashId::Sha512 => Sha512::digest(bytes).to_vec(),
    }
}

/// HMAC(key, all parts one behind the other).
pub(super) fn hmac(hash: HashId, key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    match hash {
        HashId::Sha256 => hmac_of::<Sha256>(key, parts),
        HashId::Sha384 => hmac_of::<Sha384>(key, parts),
        HashId::Sha512 => hmac_of::<Sha512>(key, parts),
    }
}

/// Whether two responses are the same, in a time that does not tell how much of them is.
pub(super) fn equal(one: &[u8], other: &[u8]) -> bool {
    one.ct_eq(other).into()
}

fn hmac_of<Function: EagerHash>(key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    #[expect(clippy::expect_used, reason = "HMAC is defined for keys of every length")]
    let mut mac = <Hmac<Function> as KeyInit>::new_from_slice(key).expect("a key of any length");
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().to_vec()
}
