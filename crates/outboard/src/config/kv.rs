//! `[kv]`: the store that Redis clients use.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};

use serde::Serialize;

use super::{ByteSize, Network};

/// How the key-value store is run.
#[derive(Clone, Debug, Serialize)]
pub struct KvConfig {
    /// Whether there is one.
    pub enabled: bool,
    /// Where it listens; port 0 takes any that is free.
    pub listen: SocketAddr,
    /// Which half does the work.
    pub placement: Placement,
    /// When what was written is safe.
    pub durability: Durability,
    /// Memory of the host for its index and the newest records.
    pub memory: ByteSize,
    /// Memory of the card for its table.
    pub table: ByteSize,
    /// Bytes of a part of its log. No value is longer, and space is given back a part at a time.
    pub part: ByteSize,
    /// Whose requests the card may answer.
    pub offload_clients: Vec<Network>,
    /// But not if they come from these ports.
    pub offload_excluded_ports: Vec<u16>,
    /// What clients have to say with `AUTH`.
    #[serde(skip_serializing)]
    pub password: Option<Password>,
}

impl Default for KvConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 6379)),
            placement: Placement::Card,
            durability: Durability::Everysec,
            memory: ByteSize(256 << 20),
            table: ByteSize(64 << 20),
            part: ByteSize(128 << 20),
            offload_clients: ["0.0.0.0/0", "::/0"].into_iter().filter_map(Network::parse).collect(),
            offload_excluded_ports: Vec::new(),
            password: None,
        }
    }
}

/// Which half does a service's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// The card, as much as it can.
    Card,
    /// The host, all of it.
    Host,
}

impl Placement {
    /// All of them, as they are written.
    pub const NAMES: &'static [(&'static str, Self)] = &[("card", Self::Card), ("host", Self::Host)];
}

/// When a write that was answered survives whatever happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// When it was answered.
    Always,
    /// A second later.
    Everysec,
    /// Some time later.
    No,
}

impl Durability {
    /// All of them, as they are written.
    pub const NAMES: &'static [(&'static str, Self)] =
        &[("always", Self::Always), ("everysec", Self::Everysec), ("no", Self::No)];
}

/// A password, which is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(pub String);

impl fmt::Debug for Password {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Password(…)")
    }
}
