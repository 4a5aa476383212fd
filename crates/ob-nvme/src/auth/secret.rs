//! Secrets as people pass them around: `DHHC-1:hh:base64:` (Base §8.13.5.8).

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ob_wire_nvme::auth::HashId;
use ob_wire_nvme::text::Nqn;
use zeroize::Zeroizing;

use super::{Fill, digest};

const PREFIX: &str = "DHHC-1";
/// What the key of one host or subsystem is derived with, behind its name.
const TRANSFORM_LABEL: &[u8] = b"NVMe-over-Fabrics";

/// How long a secret is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretSize {
    /// 256 bits.
    Bytes32,
    /// 384 bits.
    Bytes48,
    /// 512 bits.
    Bytes64,
}

impl SecretSize {
    const ALL: [Self; 3] = [Self::Bytes32, Self::Bytes48, Self::Bytes64];

    /// The number of bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Bytes32 => 32,
            Self::Bytes48 => 48,
            Self::Bytes64 => 64,
        }
    }
}

/// Why a text is no secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// Not four parts with colons between them, or not ours.
    #[error("a DH-HMAC-CHAP secret looks like \"DHHC-1:hh:base64:\", the colon at the end included")]
    Form,
    /// The second part is none of 00, 01, 02, 03.
    #[error(
        "the second part of a DH-HMAC-CHAP secret must be 00, 01 (SHA-256), 02 (SHA-384) or 03 (SHA-512)"
    )]
    Hash,
    /// The third part cannot be decoded.
    #[error("the third part of a DH-HMAC-CHAP secret must be base64")]
    Base64,
    /// Neither 32, 48 nor 64 bytes, not counting the checksum.
    #[error("a DH-HMAC-CHAP secret must have 32, 48 or 64 bytes and a checksum of 4; this has {0} bytes")]
    Size(usize),
    /// The checksum is of other bytes.
    #[error("the checksum of the DH-HMAC-CHAP secret does not fit: a character of it must be wrong")]
    Checksum,
}

/// A secret that a host or a controller proves to know. Its memory is cleared when it is dropped, and it prints as
/// itself only on demand, by [`Secret::to_text`].
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    /// The hash by which a name goes into the key; without one the secret is the key.
    transform: Option<HashId>,
    bytes: Zeroizing<Vec<u8>>,
}

impl Secret {
    /// A new one. With `transform` every host's and subsystem's key is another, though the secret be the same.
    pub fn generate(size: SecretSize, transform: Option<HashId>, random: Fill<'_>) -> Self {
        let mut bytes = Zeroizing::new(vec![0; size.bytes()]);
        random(&mut bytes);
        Self { transform, bytes }
    }

    /// The text that [`Secret::from_str`] reads: to be shown to nobody but its owner.
    #[must_use]
    pub fn to_text(&self) -> Zeroizing<String> {
        let checksum = crc32fast::hash(&self.bytes).to_le_bytes();
        let raw = Zeroizing::new([&self.bytes[..], &checksum[..]].concat());
        let base64 = Zeroizing::new(STANDARD.encode(&raw[..]));
        Zeroizing::new(format!(
            "{PREFIX}:{:02x}:{}:",
            self.transform.map_or(0, HashId::code),
            base64.as_str()
        ))
    }

    /// The key with which `name` proves itself.
    pub(super) fn key_for(&self, name: &Nqn) -> Zeroizing<Vec<u8>> {
        match self.transform {
            Some(hash) => {
                Zeroizing::new(digest::hmac(hash, &self.bytes, &[name.as_str().as_bytes(), TRANSFORM_LABEL]))
            }
            None => self.bytes.clone(),
        }
    }
}

impl FromStr for Secret {
    type Err = SecretError;

    fn from_str(text: &str) -> Result<Self, SecretError> {
        let mut parts = text.trim().split(':');
        let (Some(PREFIX), Some(hash), Some(base64), Some(""), None) =
            (parts.next(), parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(SecretError::Form);
        };
        let transform = match hash {
            "00" => None,
            "01" => Some(HashId::Sha256),
            "02" => Some(HashId::Sha384),
            "03" => Some(HashId::Sha512),
            _ => return Err(SecretError::Hash),
        };
        let raw = Zeroizing::new(STANDARD.decode(base64).map_err(|_| SecretError::Base64)?);
        let (bytes, checksum) = raw.split_last_chunk::<4>().ok_or(SecretError::Size(raw.len()))?;
        if !SecretSize::ALL.iter().any(|size| size.bytes() == bytes.len()) {
            return Err(SecretError::Size(raw.len()));
        }
        if crc32fast::hash(bytes).to_le_bytes() != *checksum {
            return Err(SecretError::Checksum);
        }
        Ok(Self { transform, bytes: Zeroizing::new(bytes.to_vec()) })
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Secret").field("transform", &self.transform).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    const PLAIN: &str = "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";

    /// The texts and the key were computed by another program from the specification.
    #[test]
    fn texts_of_others_are_read() {
        let name = Nqn::new("nqn.2014-08.org.nvmexpress:uuid:0d1f6c1c-7f3a-4a55-9a70-2f4b3c9b6a11").unwrap();
        let plain: Secret = PLAIN.parse().unwrap();
        assert_eq!(plain.key_for(&name).to_vec(), (1..=32).collect::<Vec<u8>>());
        let text = "DHHC-1:02:AgUICw4RFBcaHSAjJiksLzI1ODs+QURHSk1QU1ZZXF9iZWhrbnF0d3p9gIOGiYyPvWbcaQ==:";
        let transformed: Secret = text.parse().unwrap();
        assert_eq!(
            hex(&transformed.key_for(&name)),
            "7bbe5212d11fd04ccf19fa57a88d0b577aab14ca7aec57d979363cca64e83edbfcaa7d5c2405118182ca34fdb4647329"
        );
        assert_eq!(*transformed.to_text(), text);
    }

    /// As `nvme gen-dhchap-key` printed them (nvme-cli 2.3); its `check-dhchap-key` finds ours valid likewise.
    #[test]
    fn texts_of_nvme_cli_are_read() {
        let texts = [
            (None, "DHHC-1:00:ThpClQWd++hZPxotmHaOuOzv6oRp4LiVfWbnU0jGt7OV7laH:"),
            (Some(HashId::Sha256), "DHHC-1:01:Cl4b0whufnWaoPL+VcYuFeXGXe9zIlzcOsP5n+EubnFA2A05:"),
            (
                Some(HashId::Sha384),
                "DHHC-1:02:w8OnviOhTO7ojFzJNup7CNxw7Hw+CDQCE5YQxft7rz6+22OFAgST3/lkYhMNpi0AhZNYRQ==:",
            ),
            (
                Some(HashId::Sha512),
                "DHHC-1:03:2wRmZU0O7G+R5I+SZ01YSBI55ykkcc9YkpJTIYtpWVwTRuAXhsIfsEpodrlKvp5dmcEfiF72Q1mRqeAJMrDD/\
                 EvNCEI=:",
            ),
        ];
        for (transform, text) in texts {
            let secret: Secret = text.parse().unwrap();
            assert_eq!(secret.transform, transform);
            assert_eq!(*secret.to_text(), text);
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let refused = |text: &str| text.parse::<Secret>().unwrap_err();
        for form in
            ["", ":", "DHHC-1", "DHHC-1:00:AAAA", "DHHC-2:00:AAAA:", "DHHC-1:00:AAAA::", "dhhc-1:00:AAAA:"]
        {
            assert_eq!(refused(form), SecretError::Form, "{form}");
        }
        for hash in ["DHHC-1:04:AAAA:", "DHHC-1:0:AAAA:", "DHHC-1:001:AAAA:", "DHHC-1:é:AAAA:"] {
            assert_eq!(refused(hash), SecretError::Hash, "{hash}");
        }
        assert_eq!(refused("DHHC-1:00:AAA:"), SecretError::Base64);
        assert_eq!(refused("DHHC-1:00:AAAA:"), SecretError::Size(3));
        assert_eq!(refused("DHHC-1:00:AAAAAAAA:"), SecretError::Size(6));
        assert_eq!(refused(&PLAIN.replace("AQID", "AQIE")), SecretError::Checksum);
    }

    #[test]
    fn a_secret_does_not_print_itself() {
        let secret: Secret = PLAIN.parse().unwrap();
        assert_eq!(format!("{secret:?}"), "Secret { transform: None, .. }");
    }

    proptest! {
        #[test]
        fn what_is_generated_is_read_again(size in 0usize..3, transform in 0usize..4, seed: u8) {
            let transform = transform.checked_sub(1).map(|at| HashId::ALL[at]);
            let secret = Secret::generate(SecretSize::ALL[size], transform, &mut |bytes| {
                for (at, byte) in (0u8..).zip(bytes) { *byte = seed.wrapping_mul(31).wrapping_add(at); }
            });
            prop_assert_eq!(secret.to_text().parse::<Secret>(), Ok(secret));
        }

        #[test]
        fn no_text_is_a_panic(text in ".{0,120}") {
            let _ = text.parse::<Secret>();
        }
    }
}
