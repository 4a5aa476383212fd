//! An address, or a range of them by prefix: `10.0.0.7`, `10.0.0.0/24`.

use std::fmt;
use std::net::IpAddr;

use serde::{Serialize, Serializer};

/// All addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix_bits: u32,
}

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
        Some(Self { address, prefix_bits })
    }

    /// Whether the address is one of them. An IPv4 address that arrives in IPv6's clothes counts as IPv4.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let (own, other) = (self.address.to_canonical(), address.to_canonical());
        if own.is_ipv4() != other.is_ipv4() || own.is_ipv4() != self.address.is_ipv4() {
            return false;
        }
        let shift = address_bits(own) - self.prefix_bits;
        let difference = number(own) ^ number(other);
        difference.checked_shr(shift).unwrap_or(0) == 0
    }
}

fn address_bits(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

impl fmt::Display for Network {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.address)?;
        if self.prefix_bits < address_bits(self.address) {
            write!(formatter, "/{}", self.prefix_bits)?;
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
        Network::parse(network).unwrap().contains(address.parse().unwrap())
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
