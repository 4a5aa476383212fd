//! An address, or a range of them by prefix: `10.0.0.7`, `10.0.0.0/24`.

use std::fmt;
use std::net::IpAddr;

use ob_link::{AddressRange, address_bits};
use serde::{Serialize, Serializer};

/// A range of addresses, as the configuration writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network(pub AddressRange);

impl Network {
    /// Reads an address, or an address, a slash, and how many of its bits count.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let prefix_bits = match prefix {
            Some(prefix) => prefix.parse().ok().filter(|bits| *bits <= address_bits(address))?,
            None => address_bits(address),
        };
        Some(Self(AddressRange { address, prefix_bits }))
    }
}

impl fmt::Display for Network {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.0.address)?;
        if self.0.prefix_bits < address_bits(self.0.address) {
            write!(formatter, "/{}", self.0.prefix_bits)?;
        }
        Ok(())
    }
}

impl Serialize for Network {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contains(network: &str, address: &str) -> bool {
        Network::parse(network).unwrap().0.contains(address.parse().unwrap())
    }

    #[test]
    fn a_range_contains_what_shares_its_prefix() {
        assert!(contains("10.0.0.7", "10.0.0.7"));
        assert!(!contains("10.0.0.7", "10.0.0.8"));
        assert!(contains("10.0.0.0/24", "10.0.0.255"));
        assert!(!contains("10.0.0.0/24", "10.0.1.0"));
        assert!(contains("0.0.0.0/0", "203.0.113.9"));
        assert!(contains("10.0.0.0/8", "::ffff:10.1.2.3"));
        assert!(contains("fd00::/8", "fd12::1"));
        assert!(contains("::/0", "fd12::1"));
        assert!(!contains("::/0", "10.0.0.1"));
    }

    #[test]
    fn what_is_no_range_is_refused() {
        for text in ["", "10.0.0", "10.0.0.0/33", "10.0.0.0/", "fd00::/129", "card.example"] {
            assert_eq!(Network::parse(text), None, "{text}");
        }
    }
}
