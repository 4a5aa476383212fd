//! What an initiator is told.

use std::net::SocketAddr;
use std::time::Duration;

use ob_wire_nvme::pdu::Digests;
use ob_wire_nvme::text::{Nqn, NqnError};

use super::driver::fill_random;
use crate::auth::{Policy, Secret};

/// Where to connect to, as whom, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The target's address.
    pub address: SocketAddr,
    /// The subsystem; [`Nqn::discovery`] for the discovery service.
    pub subsystem: Nqn,
    /// The host's name.
    pub host: Nqn,
    /// The host's number. One host has one name and one number: targets tell hosts apart by both.
    pub host_id: [u8; 16],
    /// Digests over headers and data, which the target has to agree to.
    pub digests: Digests,
    /// I/O queues, each a connection of its own; the target may allow fewer.
    pub queues: u16,
    /// Commands under way in each I/O queue; the target may allow fewer.
    pub depth: u16,
    /// Most bytes of one command; the target may allow fewer. Larger reads and writes are split.
    pub transfer_max: u32,
    /// How long the target waits for a sign of life before it gives the host up, and the other way round. Zero for
    /// ever.
    pub keep_alive: Duration,
    /// How long it may take to connect.
    pub connect_timeout: Duration,
    /// How long a command may take; then the association is given up and begun anew.
    pub command_timeout: Duration,
    /// How long a disconnect may take.
    pub disconnect_timeout: Duration,
    /// What follows when the association is lost.
    pub reconnect: Reconnect,
    /// What becomes of commands then.
    pub retry: RetryPolicy,
    /// With these, in-band authentication is possible.
    pub secrets: Option<Secrets>,
}

/// How a lost association is restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reconnect {
    /// Before the first attempt; each further one waits twice as long.
    pub delay_first: Duration,
    /// The longest wait.
    pub delay_max: Duration,
    /// After this time without an association all commands fail. Zero: the first loss is the last.
    pub give_up_after: Duration,
}

/// Which commands are sent again when it is not known whether they were executed, or when the controller says that
/// they may be.
///
/// To read, to write the same bytes and to flush twice does no harm, unless somebody else writes in between: hosts
/// that share a namespace and do not agree on who writes when should set `repeat` to false. Reservations and vendors'
/// commands do not give the same the second time; they are repeated only on demand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Whether idempotent commands are repeated.
    pub repeat: bool,
    /// Whether the others are, too.
    pub repeat_all: bool,
    /// How often a command is sent at most.
    pub attempts_max: u32,
    /// How long a command waits that the controller refused for the moment.
    pub delay: Duration,
}

/// What is known for authentication.
#[derive(Clone, Debug)]
pub struct Secrets {
    /// What this host proves to know.
    pub host: Secret,
    /// What the controller has to prove; without one, nothing.
    pub controller: Option<Secret>,
    /// Hashes and groups.
    pub policy: Policy,
}

impl Default for Reconnect {
    fn default() -> Self {
        Self {
            delay_first: Duration::from_millis(100),
            delay_max: Duration::from_secs(10),
            give_up_after: Duration::from_secs(600),
        }
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { repeat: true, repeat_all: false, attempts_max: 16, delay: Duration::from_millis(100) }
    }
}

impl RetryPolicy {
    /// Nothing is repeated.
    #[must_use]
    pub fn never() -> Self {
        Self { repeat: false, ..Self::default() }
    }
}

/// An id for a host that has none: no other host has the same, and neither has this one next time. A random UUID.
#[must_use]
pub fn random_host_id() -> [u8; 16] {
    let mut id = [0; 16];
    fill_random(&mut id);
    id[6] = id[6] & 0x0F | 0x40;
    id[8] = id[8] & 0x3F | 0x80;
    id
}

impl Options {
    /// The usual, for a subsystem at an address. The host's name follows from its number.
    pub fn new(address: SocketAddr, subsystem: &str, host_id: [u8; 16]) -> Result<Self, NqnError> {
        Ok(Self {
            address,
            subsystem: Nqn::new(subsystem)?,
            host: Nqn::of_host_id(&host_id),
            host_id,
            digests: Digests::NONE,
            queues: 1,
            depth: 64,
            transfer_max: 1 << 20,
            keep_alive: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(10),
            command_timeout: Duration::from_secs(30),
            disconnect_timeout: Duration::from_secs(5),
            reconnect: Reconnect::default(),
            retry: RetryPolicy::default(),
            secrets: None,
        })
    }

    /// The same for the discovery service at that address.
    #[must_use]
    pub fn for_discovery(&self) -> Self {
        Self { subsystem: Nqn::discovery(), queues: 0, keep_alive: Duration::ZERO, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_name_is_its_number() {
        let id = std::array::from_fn(|index| index as u8 * 16 + index as u8);
        let options = Options::new(([127, 0, 0, 1], 4420).into(), "nqn.2026-01.example:one", id).unwrap();
        let name = "nqn.2014-08.org.nvmexpress:uuid:00112233-4455-6677-8899-aabbccddeeff";
        assert_eq!(options.host.as_str(), name);
    }

    #[test]
    fn drawn_ids_are_random_uuids() {
        let [one, two] = [random_host_id(), random_host_id()];
        assert_ne!(one, two);
        assert_eq!((one[6] >> 4, two[8] >> 6), (4, 2), "version and variant");
    }
}
