//! Which flows are the director's (DDS §5.1).

use std::net::{IpAddr, SocketAddr};

/// The application signature: connections to these addresses are looked at, and nobody else's bytes enter the card's
/// process. Ports that are to avoid the detour are simply not among them.
///
/// With sockets of the kernel that is all there is to it. Userspace TCP, or rules in a card's hardware, would match packets
/// against the same signature.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    listens: Vec<SocketAddr>,
}

impl Signature {
    /// The flows to these addresses.
    pub fn new(listens: impl IntoIterator<Item = SocketAddr>) -> Self {
        Self { listens: listens.into_iter().collect() }
    }

    /// The addresses.
    pub fn listens(&self) -> &[SocketAddr] {
        &self.listens
    }

    /// Whether a connection that arrived at this address is one of them.
    pub fn matches(&self, local: SocketAddr) -> bool {
        self.listens.iter().any(|listen| {
            let is_any = match listen.ip() {
                IpAddr::V4(ip) => ip.is_unspecified(),
                IpAddr::V6(ip) => ip.is_unspecified(),
            };
            listen.port() == local.port() && (is_any || listen.ip() == local.ip())
        })
    }
}
