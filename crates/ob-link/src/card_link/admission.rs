//! Who may attach: a decision from facts, without a socket.

use std::net::IpAddr;

use super::CardLinkConfig;
use crate::plant::{Bug, is_planted};

/// What the kernel says of who has connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// A process of this machine, by the user that it had when it connected.
    User(u32),
    /// Another machine, or this one over TCP; `None` where the kernel did not say which.
    Address(Option<IpAddr>),
}

/// Whether the configuration lets this caller attach, to a card that runs as `own_user`. Over a Unix socket that is the card's own user,
/// root, and those listed; over TCP the addresses listed, and where none is, loopback.
pub(super) fn may_attach(caller: Caller, own_user: u32, config: &CardLinkConfig) -> Result<(), String> {
    if is_planted(Bug::AnybodyAttaches) {
        return Ok(());
    }
    match caller {
        Caller::User(user) if user == own_user || user == 0 || config.allow_users.contains(&user) => Ok(()),
        Caller::User(user) => Err(format!("user {user} is not allowed")),
        Caller::Address(None) => Err("its address is not known".to_owned()),
        Caller::Address(Some(address)) => {
            // An IPv4 address that arrives in IPv6's clothes is that IPv4 address.
            let address = address.to_canonical();
            let allowed = match config.allow_addresses.as_slice() {
                [] => address.is_loopback(),
                ranges => ranges.iter().any(|range| range.contains(address)),
            };
            if allowed { Ok(()) } else { Err(format!("address {address} is not allowed")) }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)] // A test stops at the first thing that is not as it should be.

    use std::time::Duration;

    use ob_core::{AddressRange, Incarnation};

    use super::*;

    pub(in crate::card_link) fn config(
        allow_users: &[u32],
        allow_addresses: &[(&str, u32)],
    ) -> CardLinkConfig {
        let range = |(address, prefix_bits): &(&str, u32)| AddressRange {
            address: address.parse().unwrap(),
            prefix_bits: *prefix_bits,
        };
        CardLinkConfig {
            incarnation: Incarnation(1),
            listen: Vec::new(),
            costs: None,
            pollers: 1,
            dead_after: Duration::from_secs(1),
            memory_max: 0,
            host_memory_max: 0,
            hosts_max: 1,
            allow_users: allow_users.to_vec(),
            allow_addresses: allow_addresses.iter().map(range).collect(),
        }
    }

    #[test]
    fn its_own_user_root_and_those_listed_attach_and_nobody_else() {
        for (user, own, listed, allowed) in [
            (1000, 1000, &[][..], true),
            (0, 1000, &[][..], true),
            (1001, 1000, &[][..], false),
            (1001, 1000, &[1001][..], true),
            (1002, 1000, &[1001][..], false),
            (1000, 1000, &[1001][..], true),
            (1000, 0, &[][..], false),
            (u32::MAX, 1000, &[][..], false),
        ] {
            // What is said of addresses says nothing of users.
            let config = config(listed, &[("0.0.0.0", 0), ("::", 0)]);
            let said = may_attach(Caller::User(user), own, &config);
            assert_eq!(said.is_ok(), allowed, "user {user}, card {own}, listed {listed:?}: {said:?}");
            assert!(said.err().is_none_or(|reason| reason.contains(&user.to_string())));
        }
    }

    #[test]
    fn loopback_attaches_or_those_listed_and_nobody_else() {
        let none: &[(&str, u32)] = &[];
        let range: &[(&str, u32)] = &[("10.1.0.0", 16)];
        let both: &[(&str, u32)] = &[("10.1.0.0", 16), ("fd00:1::", 32)];
        let clothed: &[(&str, u32)] = &[("::ffff:10.1.0.0", 112)];
        for (address, listed, allowed) in [
            ("127.0.0.1", none, true),
            ("127.200.3.4", none, true),
            ("::1", none, true),
            ("::ffff:127.0.0.1", none, true),
            ("10.1.2.3", none, false),
            ("0.0.0.0", none, false),
            ("::ffff:10.1.2.3", none, false),
            ("fe80::1", none, false),
            ("10.1.2.3", range, true),
            ("::ffff:10.1.2.3", range, true),
            ("10.2.2.3", range, false),
            // A list says all of it: loopback is not on this one.
            ("127.0.0.1", range, false),
            ("::1", range, false),
            ("fd00:1::7", both, true),
            ("fd00:2::7", both, false),
            ("10.1.2.3", clothed, false),
        ] {
            // What is said of users says nothing of addresses.
            let said = may_attach(Caller::Address(Some(address.parse().unwrap())), 0, &config(&[0], listed));
            assert_eq!(said.is_ok(), allowed, "{address} with {listed:?}: {said:?}");
        }
        let everybody = config(&[], &[("0.0.0.0", 0), ("::", 0)]);
        assert!(may_attach(Caller::Address(None), 0, &everybody).is_err());
    }
}
