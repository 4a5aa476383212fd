//! Diffie-Hellman in the groups of RFC 7919, in constant time.
//!
//! Each of their primes is safe (half of it, rounded down, is prime too), so besides 1 and p - 1 every value generates a
//! group too large to search, and checking for those two is all the checking that a peer's value needs (RFC 7919 §5.1).

use std::sync::OnceLock;

use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd, Resize};
use ob_wire_nvme::auth::GroupId;
use zeroize::Zeroizing;

use super::Fill;

/// The first 8064 bits of Euler's number: what every prime of RFC 7919 is made of (its appendix A).
const EULER: &str = "adf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce249b3ef97d2fe363630c75d8\
     f681b202aec4617ad3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3b557135e7f57c935984f0c70e0e68b77\
     e2a689daf3efe8721df158a136ade73530acca4f483a797abc0ab182b324fb61d108a94bb2c8e3fbb96adab760d7f468\
     1d4f42a3de394df4ae56ede76372bb190b07a7c8ee0a6d709e02fce1cdf7e2ecc03404cd28342f619172fe9ce98583ff\
     8e4f1232eef28183c3fe3b1b4c6fad733bb5fcbc2ec22005c58ef1837d1683b2c6f34a26c1b2effa886b4238611fcfdc\
     de355b3b6519035bbc34f4def99c023861b46fc9d6e6c9077ad91d2691f7f7ee598cb0fac186d91caefe130985139270\
     b4130c93bc437944f4fd4452e2d74dd364f2e21e71f54bff5cae82ab9c9df69ee86d2bc522363a0dabc521979b0deada\
     1dbf9a42d5c4484e0abcd06bfa53ddef3c1b20ee3fd59d7c25e41d2b669e1ef16e6f52c3164df4fb7930e9e4e58857b6\
     ac7d5f42d69f6d187763cf1d5503400487f55ba57e31cc7a7135c886efb4318aed6a1e012d9e6832a907600a918130c4\
     6dc778f971ad0038092999a333cb8b7a1a1db93d7140003c2a4ecea9f98d0acc0a8291cdcec97dcf8ec9b55a7f88a46b\
     4db5a851f44182e1c68a007e5e0dd9020bfd64b645036c7a4e677d2c38532a3a23ba4442caf53ea63bb454329b7624c8\
     917bdd64b1c0fd4cb38e8c334c701c3acdad0657fccfec719b1f5c3e4e46041f388147fb4cfdb477a52471f7a9a96910\
     b855322edb6340d8a00ef092350511e30abec1fff9e3a26e7fb29f8c183023c3587e38da0077d9b4763e4e4b94b2bbc1\
     94c6651e77caf992eeaac0232a281bf6b3a739c1226116820ae8db5847a67cbef9c9091b462d538cd72b03746ae77f5e\
     62292c311562a846505dc82db854338ae49f5235c95b91178ccf2dd5cacef403ec9d1810c6272b045b3b71f9dc6b80d6\
     3fdd4a8e9adb1e6962a69526d43161c1a41d570d7938dad4a40e329ccff46aaa36ad004cf600c8381e425a31d951ae64\
     fdb23fcec9509d43687feb69edd1cc5e0b8cc3bdf64b10ef86b63142a3ab8829555b2f747c932665cb2c0f1cc01bd702\
     29388839d2af05e454504ac78b7582822846c0ba35c35f5c59160cc046fd8251541fc68c9c86b022bb7099876a460e74\
     51a8a93109703fee1c217e6c3826e52c51aa691e0e423cfc99e9e31650c1217b624816cdad9a95f9d5b8019488d9c0a0\
     a1fe3075a577e23183f81d4a3f2fa4571efc8ce0ba8a4fe8b6855dfe72b0a66eded2fbabfbe58a30fafabe1c5d71a87e\
     2f741ef8c1fe86fea6bbfde530677f0d97d11d49f7a8443d0822e506a9f4614e011e2a94838ff88cd68c8bb7c51eef6d";

/// What is added to the digits of Euler's number so that the result is prime (RFC 7919 appendix A.1 to A.5).
const fn offset(group: GroupId) -> u32 {
    match group {
        GroupId::Null => 0,
        GroupId::Ffdhe2048 => 560_316,
        GroupId::Ffdhe3072 => 2_625_351,
        GroupId::Ffdhe4096 => 5_736_041,
        GroupId::Ffdhe6144 => 15_705_020,
        GroupId::Ffdhe8192 => 10_965_728,
    }
}

/// Bytes of a private value. RFC 7919 §5.2 wants at least 225, 275, 325, 375 and 400 bits; an exponent as long as the
/// prime would be no safer, and would hold up everybody else on this thread for up to twenty times as long.
const fn private_size(group: GroupId) -> usize {
    match group {
        GroupId::Null => 0,
        GroupId::Ffdhe2048 => 32,
        GroupId::Ffdhe3072 => 40,
        GroupId::Ffdhe4096 | GroupId::Ffdhe6144 => 48,
        GroupId::Ffdhe8192 => 56,
    }
}

/// What two sides share after an exchange: as long as the prime, zeros in front included.
pub(super) type Shared = Zeroizing<Box<[u8]>>;

/// A private value of ours and what the peer gets to see of it. In the null group both are empty.
pub(super) struct KeyPair {
    group: GroupId,
    private: Zeroizing<Vec<u8>>,
    public: Vec<u8>,
}

impl KeyPair {
    pub(super) fn generate(group: GroupId, random: Fill<'_>) -> Self {
        let mut private = Zeroizing::new(vec![0; private_size(group)]);
        random(&mut private);
        // The highest bit keeps even a broken source of randomness from a value as small as 0.
        if let Some(first) = private.first_mut() {
            *first |= 0x80;
        }
        let public = match parameters(group) {
            Some(parameters) => {
                let two = BoxedUint::from(2u8).resize(parameters.bits_precision());
                power(two, &private, parameters).to_vec()
            }
            None => Vec::new(),
        };
        Self { group, private, public }
    }

    /// What the peer gets.
    pub(super) fn public(&self) -> &[u8] {
        &self.public
    }

    /// What this and the peer's value make together. `Ok(None)` is right for the null group only.
    pub(super) fn share(&self, peer: &[u8]) -> Result<Option<Shared>, BadPublicValue> {
        if peer.len() != self.group.size() {
            return Err(BadPublicValue);
        }
        let Some(parameters) = parameters(self.group) else { return Ok(None) };
        let bits = parameters.bits_precision();
        let peer = BoxedUint::from_be_slice(peer, bits).map_err(|_| BadPublicValue)?;
        let one = BoxedUint::from(1u8).resize(bits);
        let last = parameters.modulus().as_ref().wrapping_sub(&one);
        // What the peer sent is no secret, so how long these comparisons take tells nothing.
        if peer <= one || peer >= last {
            return Err(BadPublicValue);
        }
        Ok(Some(power(peer, &self.private, parameters)))
    }
}

/// A peer's public value that is no number of the group, or one of the few that would give the secret away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadPublicValue;

fn power(base: BoxedUint, private: &[u8], parameters: &BoxedMontyParams) -> Shared {
    let bits = u32::try_from(8 * private.len()).unwrap_or(u32::MAX);
    let exponent = Zeroizing::new(BoxedUint::from_be_slice_truncated(private, bits));
    let power =
        Zeroizing::new(BoxedMontyForm::new(base, parameters).pow_bounded_exp(&exponent, bits).retrieve());
    Zeroizing::new(power.to_be_bytes())
}

/// The prime and what Montgomery's multiplication needs of it, computed once; none for the null group.
fn parameters(group: GroupId) -> Option<&'static BoxedMontyParams> {
    static CACHE: [OnceLock<Option<BoxedMontyParams>>; 6] = [const { OnceLock::new() }; 6];
    let place = CACHE.get(usize::from(group.code()))?;
    place
        .get_or_init(|| {
            let prime = prime(group);
            let bits = u32::try_from(8 * prime.len()).ok()?;
            let modulus = BoxedUint::from_be_slice(&prime, bits).ok()?;
            Some(BoxedMontyParams::new_vartime(Option::from(Odd::new(modulus))?))
        })
        .as_ref()
}

/// The group's prime: 64 bits of ones, as many digits of Euler's number as there is room for plus the offset less 1,
/// and 64 bits of ones.
fn prime(group: GroupId) -> Vec<u8> {
    let Some(middle) = group.size().checked_sub(16) else { return Vec::new() };
    let mut prime = vec![0xFF; 8];
    let digits = EULER.as_bytes().chunks_exact(2).take(middle);
    prime.extend(digits.map(|pair| digit(pair.first()) << 4 | digit(pair.last())));
    let mut carry = offset(group) - 1;
    for byte in prime.iter_mut().rev() {
        carry += u32::from(*byte);
        *byte = carry.to_le_bytes()[0];
        carry >>= 8;
    }
    prime.extend([0xFF; 8]);
    prime
}

fn digit(character: Option<&u8>) -> u8 {
    let value = character.and_then(|byte| char::from(*byte).to_digit(16)).unwrap_or(0);
    value.to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use super::super::digest;
    use super::*;
    use ob_wire_nvme::auth::HashId;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The hashes are of primes that were computed by the formula of RFC 7919 elsewhere, and that OpenSSL's keys fit.
    #[test]
    fn primes_are_those_of_the_rfc() {
        let expected = [
            (GroupId::Ffdhe2048, "9cd3b7f336872f46c09428d1bbc19877a4d440512cda8d1c1cf0cd6e33698966"),
            (GroupId::Ffdhe3072, "0eaf67db3a839156d5013494a5318a772b5697d270d721f37f092efc69ea5a17"),
            (GroupId::Ffdhe4096, "4648414224ac881b3d0dc59b466f96d06a558278776807797ecf1f66ff397b3e"),
            (GroupId::Ffdhe6144, "227ac9066b3ddd9e193670cda2388fa884f65ba0cf98b742d1fe77a6687c79c7"),
            (GroupId::Ffdhe8192, "770b14efaf6f049929c523113b3fa99a8d11dab1b18af3609590122075d19833"),
        ];
        for (group, hash) in expected {
            let prime = prime(group);
            assert_eq!(prime.len(), group.size());
            assert_eq!(hex(&digest::hash(HashId::Sha256, &prime)), hash, "{group:?}");
        }
        assert_eq!(prime(GroupId::Null), Vec::<u8>::new());
    }

    #[test]
    fn both_sides_share_the_same() {
        for group in GroupId::ALL {
            let host = KeyPair::generate(*group, &mut |bytes| bytes.fill(0x35));
            let controller = KeyPair::generate(*group, &mut |bytes| bytes.fill(0x7A));
            assert_eq!(host.public().len(), group.size());
            let shared = host.share(controller.public()).unwrap();
            assert_eq!(shared, controller.share(host.public()).unwrap());
            assert_eq!(shared.map_or(0, |shared| shared.len()), group.size());
        }
    }

    #[test]
    fn a_private_value_of_zeros_is_mended() {
        let pair = KeyPair::generate(GroupId::Ffdhe2048, &mut |bytes| bytes.fill(0));
        let mut one = vec![0; 256];
        one[255] = 1;
        assert_ne!(pair.public(), one);
    }

    #[test]
    fn values_that_give_the_secret_away_are_refused() {
        let group = GroupId::Ffdhe2048;
        let pair = KeyPair::generate(group, &mut |bytes| bytes.fill(0x35));
        let prime = prime(group);
        let number = |value: u8| {
            let mut bytes = vec![0; 256];
            bytes[255] = value;
            bytes
        };
        // The prime is odd: subtracting 1 or 2, or adding 1 to what is all ones, touches the last byte or carries.
        let mut less_one = prime.clone();
        less_one[255] -= 1;
        let mut less_two = prime.clone();
        less_two[255] -= 2;
        for bad in [
            number(0),
            number(1),
            less_one,
            prime.clone(),
            vec![0xFF; 256],
            vec![2; 255],
            vec![2; 257],
            vec![],
        ] {
            assert_eq!(pair.share(&bad).err(), Some(BadPublicValue), "{bad:?}");
        }
        assert!(pair.share(&number(2)).is_ok());
        assert!(pair.share(&less_two).is_ok());
        let null = KeyPair::generate(GroupId::Null, &mut |_| {});
        assert_eq!(null.share(&[2]).err(), Some(BadPublicValue));
        assert_eq!(null.share(&[]).unwrap(), None);
    }
}
