//! Which flows are the director's (DDS §5.1).
//!
//! ```text
//!   a connection ─┬─ to another address ─────────────────────▶ never enters the card's process
//!                 └─ to one of these ─┬─ matched ────────────▶ predicate, card or host
//!                                     └─ not, or excluded ───▶ host, all of it
//! ```

use std::net::SocketAddr;
use std::ops::RangeInclusive;

use ob_core::AddressRange;

/// What flows are carried by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// One connection: the five things that tell it from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// What it is carried by.
    pub protocol: Protocol,
    /// Where it comes from.
    pub client: SocketAddr,
    /// Where it goes to. With sockets of the kernel that is where somebody listens, which may be any address of the machine.
    pub local: SocketAddr,
}

/// Flows that have something in common. What is not given can be anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowPattern {
    /// What they are carried by.
    pub protocol: Option<Protocol>,
    /// Where they come from.
    pub client: Option<AddressRange>,
    /// The client's ports.
    pub client_ports: Option<RangeInclusive<u16>>,
    /// Where they go to.
    pub local: Option<AddressRange>,
    /// The ports there.
    pub local_ports: Option<RangeInclusive<u16>>,
}

impl FlowPattern {
    /// Whether a flow is one of them.
    pub fn matches(&self, flow: &Flow) -> bool {
        let is_from = |range: &Option<AddressRange>, address: SocketAddr| {
            range.as_ref().is_none_or(|range| range.contains(address.ip()))
        };
        let has_port = |ports: &Option<RangeInclusive<u16>>, address: SocketAddr| {
            ports.as_ref().is_none_or(|ports| ports.contains(&address.port()))
        };
        self.protocol.is_none_or(|protocol| protocol == flow.protocol)
            && is_from(&self.client, flow.client)
            && has_port(&self.client_ports, flow.client)
            && is_from(&self.local, flow.local)
            && has_port(&self.local_ports, flow.local)
    }
}

/// The application signature: where clients connect to, and for which of their connections the card looks for answers.
///
/// Sockets of the kernel decide the first: nobody else's bytes enter the card's process. The requests of a connection that
/// comes to these addresses and does not match all go to the host; they are still cut and looked at, because what they change
/// has to be invalidated. Userspace TCP, or rules in a card's hardware, would match packets against the same signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    listens: Vec<SocketAddr>,
    /// One of these has to match.
    matched: Vec<FlowPattern>,
    /// And none of these.
    excluded: Vec<FlowPattern>,
}

impl Signature {
    /// All flows to these addresses.
    pub fn new(listens: impl IntoIterator<Item = SocketAddr>) -> Self {
        let matched = vec![FlowPattern::default()];
        Self { listens: listens.into_iter().collect(), matched, excluded: Vec::new() }
    }

    /// Of those, only the flows that one of these patterns matches.
    #[must_use]
    pub fn only(mut self, matched: impl IntoIterator<Item = FlowPattern>) -> Self {
        self.matched = matched.into_iter().collect();
        self
    }

    /// And none that one of these patterns matches.
    #[must_use]
    pub fn without(mut self, excluded: impl IntoIterator<Item = FlowPattern>) -> Self {
        self.excluded.extend(excluded);
        self
    }

    /// The addresses.
    pub fn listens(&self) -> &[SocketAddr] {
        &self.listens
    }

    /// Whether the card looks for answers to the requests of a flow that comes to one of the addresses.
    pub fn matches(&self, flow: &Flow) -> bool {
        let is_one = |patterns: &[FlowPattern]| patterns.iter().any(|pattern| pattern.matches(flow));
        is_one(&self.matched) && !is_one(&self.excluded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(client: &str, local: &str) -> Flow {
        let (client, local) = (client.parse().unwrap(), local.parse().unwrap());
        Flow { protocol: Protocol::Tcp, client, local }
    }

    fn range(address: &str, prefix_bits: u32) -> Option<AddressRange> {
        Some(AddressRange { address: address.parse().unwrap(), prefix_bits })
    }

    #[test]
    fn a_pattern_asks_only_for_what_it_says() {
        let subject = flow("10.1.2.3:5000", "10.0.0.1:6379");
        let any = FlowPattern::default();
        assert!(any.matches(&subject));
        let all = FlowPattern {
            protocol: Some(Protocol::Tcp),
            client: range("10.1.0.0", 16),
            client_ports: Some(5000..=5000),
            local: range("10.0.0.1", 32),
            local_ports: Some(6000..=7000),
        };
        assert!(all.matches(&subject));
        let others = [
            FlowPattern { protocol: Some(Protocol::Udp), ..any.clone() },
            FlowPattern { client: range("10.2.0.0", 16), ..all.clone() },
            FlowPattern { client: range("fd00::", 8), ..all.clone() },
            FlowPattern { client_ports: Some(5001..=9000), ..all.clone() },
            FlowPattern { local: range("10.0.0.2", 32), ..all.clone() },
            FlowPattern { local_ports: Some(1..=6378), ..all },
        ];
        assert!(others.iter().all(|pattern| !pattern.matches(&subject)));
    }

    #[test]
    fn what_is_excluded_is_not_matched() {
        let listens = ["10.0.0.1:6379".parse().unwrap()];
        let here = FlowPattern { client: range("10.0.0.0", 8), ..FlowPattern::default() };
        let writers = FlowPattern { client_ports: Some(7000..=7000), ..FlowPattern::default() };
        let signature = Signature::new(listens).only([here]).without([writers]);
        assert!(signature.matches(&flow("10.1.2.3:5000", "10.0.0.1:6379")));
        assert!(!signature.matches(&flow("10.1.2.3:7000", "10.0.0.1:6379")));
        assert!(!signature.matches(&flow("192.0.2.1:5000", "10.0.0.1:6379")));
        assert!(Signature::new(listens).matches(&flow("192.0.2.1:5000", "10.0.0.1:6379")));
        assert!(!Signature::new(listens).only([]).matches(&flow("10.1.2.3:5000", "10.0.0.1:6379")));
    }
}
