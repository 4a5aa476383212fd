//! Ranges of addresses: who may attach over `tcp`, and whose requests the card may answer.

use std::net::IpAddr;

/// All addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    /// One of them.
    pub address: IpAddr,
    /// How many of its first bits count.
    pub prefix_bits: u32,
}

impl AddressRange {
    /// Whether the address is one of them. An IPv4 address that arrives in IPv6's clothes counts as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        let (own, other) = (self.address.to_canonical(), address.to_canonical());
        if own.is_ipv4() != other.is_ipv4() || own.is_ipv4() != self.address.is_ipv4() {
            return false;
        }
        let shift = address_bits(own).saturating_sub(self.prefix_bits);
        let difference = number(own) ^ number(other);
        difference.checked_shr(shift).unwrap_or(0) == 0
    }
}

/// Bits of an address of this family.
pub fn address_bits(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}
