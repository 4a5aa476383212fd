//! `[volumes]` and `[chunkserver]`.

use std::net::SocketAddr;
use std::time::Duration;

use toml::de::DeValue;

use super::super::{ChunkServerSection, VolumesConfig};
use super::{
    DEVICE_SIZE, MEMORY, Parsed, Problem, Reader, SpannedKey, SpannedValue, address, byte_size, count, list,
    nqn, reachable_address, secret, time_span, truth,
};

pub(super) const VOLUMES_KEYS: &[&str] = &[
    "enabled",
    "ports",
    "nqn",
    "hosts",
    "key",
    "controller_key",
    "servers",
    "replicas",
    "replicas_min",
    "hold",
    "card_memory",
];
pub(super) const CHUNKSERVER_KEYS: &[&str] = &["listen", "size", "memory"];

/// Keys that the documents tell of and that do nothing yet: who sets one is not to believe that it does.
const VOLUMES_LATER: &[&str] = &[
    "placement",
    "metadata",
    "metadata_history",
    "pool",
    "lease",
    "clock_drift",
    "index_memory",
    "append_timeout",
    "lost_after",
    "rebuild_rate",
    "compact_rate",
    "busy_above",
    "compact_share",
    "compact_writes",
];
const CHUNKSERVER_LATER: &[&str] = &["allow", "domain", "reserve"];

/// Members that a chunk can have.
const REPLICAS_MAX: usize = 4;
const SERVERS_MAX: usize = 16;
const CARD_MEMORY: (u64, u64) = (16 << 20, 16 << 30);
/// Linux gives a command up after 30 s.
const HOLD: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(29));

impl Reader<'_> {
    pub(super) fn volumes(
        &mut self,
        volumes: &mut VolumesConfig,
        key: &SpannedKey<'_>,
        value: &SpannedValue<'_>,
    ) {
        let replicas = |value: &DeValue<'_>| count(value, REPLICAS_MAX);
        let secret = |value: &DeValue<'_>| secret(value).map(Some);
        match key.get_ref().as_ref() {
            "enabled" => self.set("volumes", key, value, &mut volumes.enabled, truth),
            "ports" => self.set("volumes", key, value, &mut volumes.ports, ports),
            "nqn" => self.set("volumes", key, value, &mut volumes.nqn, nqn),
            "hosts" => self.set("volumes", key, value, &mut volumes.hosts, |value| list(value, nqn)),
            "key" => self.set("volumes", key, value, &mut volumes.key, secret),
            "controller_key" => self.set("volumes", key, value, &mut volumes.controller_key, secret),
            "servers" => self.set("volumes", key, value, &mut volumes.servers, servers),
            "replicas" => self.set("volumes", key, value, &mut volumes.replicas, replicas),
            "replicas_min" => self.set("volumes", key, value, &mut volumes.replicas_min, replicas),
            "hold" => self.set("volumes", key, value, &mut volumes.hold, |value| time_span(value, HOLD)),
            "card_memory" => {
                let memory = |value: &DeValue<'_>| byte_size(value, CARD_MEMORY);
                self.set("volumes", key, value, &mut volumes.card_memory, memory);
            }
            name if VOLUMES_LATER.contains(&name) => self.later("volumes", key),
            _ => self.unknown("volumes", key),
        }
    }

    pub(super) fn chunkserver(
        &mut self,
        section: &mut ChunkServerSection,
        key: &SpannedKey<'_>,
        value: &SpannedValue<'_>,
    ) {
        let memory = |value: &DeValue<'_>| byte_size(value, MEMORY);
        let size = |value: &DeValue<'_>| byte_size(value, DEVICE_SIZE);
        match key.get_ref().as_ref() {
            "listen" => self.set("chunkserver", key, value, &mut section.listen, address),
            "size" => self.set("chunkserver", key, value, &mut section.size, size),
            "memory" => self.set("chunkserver", key, value, &mut section.memory, memory),
            name if CHUNKSERVER_LATER.contains(&name) => self.later("chunkserver", key),
            _ => self.unknown("chunkserver", key),
        }
    }

    fn later(&mut self, section: &str, key: &SpannedKey<'_>) {
        let message = format!("`{}` in [{section}] does nothing in this version", key.get_ref());
        let hint = "leave the line out: volumes are a preview, which docs/volumes.md tells of";
        self.report(key.span(), Problem::new(message, hint));
    }
}

fn ports(value: &DeValue<'_>) -> Parsed<Vec<SocketAddr>> {
    let ports = list(value, address)?;
    match ports.len() {
        1 => Ok(ports),
        0 => Err(Problem::new("volumes are served nowhere", "such as ports = [\"127.0.0.1:4421\"]")),
        _ => Err(Problem::new("there is one port in this version", "leave one address in the list")),
    }
}

fn servers(value: &DeValue<'_>) -> Parsed<Vec<SocketAddr>> {
    let servers = list(value, reachable_address)?;
    if servers.is_empty() || servers.len() > SERVERS_MAX {
        let hint = format!("there can be from 1 to {SERVERS_MAX}, such as [\"127.0.0.1:4440\"]");
        return Err(Problem::new("these are no chunk servers", hint));
    }
    let twice = servers
        .iter()
        .enumerate()
        .find(|(index, one)| servers.iter().take(*index).any(|other| other == *one));
    if let Some((_, one)) = twice {
        return Err(Problem::new(format!("{one} is there twice"), "a chunk server has each record once"));
    }
    Ok(servers)
}
