//! `[volumes]` and `[chunkserver]`.

use std::net::SocketAddr;
use std::time::Duration;

use ob_volume::tier::{PORTS_MAX, Placement};
use toml::de::DeValue;

use super::super::volumes::EMBEDDED;
use super::super::{ByteRate, ChunkServerSection, MetadataPlace, Share, VolumesConfig};
use super::{
    DEVICE_SIZE, MEMORY, Parsed, Problem, Reader, SpannedKey, SpannedValue, address, byte_size, count, list,
    named, nqn, reachable_address, secret, time_span, truth,
};

pub(super) const VOLUMES_KEYS: &[&str] = &[
    "enabled",
    "ports",
    "nqn",
    "hosts",
    "key",
    "controller_key",
    "servers",
    "metadata",
    "metadata_history",
    "replicas",
    "replicas_min",
    "hold",
    "card_memory",
    "placement",
    "lease",
    "index_memory",
    "lost_after",
    "rebuild_rate",
    "compact_rate",
    "compact_share",
    "compact_writes",
];
pub(super) const CHUNKSERVER_KEYS: &[&str] = &["listen", "size", "memory"];

/// Keys that the documents tell of and that do nothing yet: who sets one is not to believe that it does.
const VOLUMES_LATER: &[&str] = &["pool", "clock_drift", "append_timeout", "busy_above"];
const CHUNKSERVER_LATER: &[&str] = &["allow", "domain", "reserve"];

/// Members that a chunk can have.
const REPLICAS_MAX: usize = 4;
const SERVERS_MAX: usize = 16;
const ENDPOINTS_MAX: usize = 9;
const CARD_MEMORY: (u64, u64) = (16 << 20, 16 << 30);
/// Linux gives a command up after 30 s.
const HOLD: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(29));
const LEASE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));
/// Below that of a segment with its replay nothing could be written.
const INDEX_MEMORY: (u64, u64) = (256 << 20, 1 << 40);
/// A server that is restarted is away for longer than a moment.
const LOST_AFTER: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(30 * 24 * 3600));
const RATE: (u64, u64) = (1 << 20, 1 << 40);
/// Blocks of a chunk of small ones.
const COMPACT_WRITES_MAX: usize = 1 << 20;

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
            "metadata" => self.set("volumes", key, value, &mut volumes.metadata, metadata),
            "metadata_history" => self.set("volumes", key, value, &mut volumes.metadata_history, truth),
            "replicas" => self.set("volumes", key, value, &mut volumes.replicas, replicas),
            "replicas_min" => self.set("volumes", key, value, &mut volumes.replicas_min, replicas),
            "placement" => self.set("volumes", key, value, &mut volumes.placement, |value| {
                named(value, "placement", Placement::NAMES)
            }),
            "lease" => self.set("volumes", key, value, &mut volumes.lease, |value| time_span(value, LEASE)),
            "index_memory" => {
                let memory = |value: &DeValue<'_>| byte_size(value, INDEX_MEMORY);
                self.set("volumes", key, value, &mut volumes.index_memory, memory);
            }
            "lost_after" => {
                let span = |value: &DeValue<'_>| time_span(value, LOST_AFTER);
                self.set("volumes", key, value, &mut volumes.lost_after, span);
            }
            "rebuild_rate" => self.set("volumes", key, value, &mut volumes.rebuild_rate, rate),
            "compact_rate" => self.set("volumes", key, value, &mut volumes.compact_rate, rate),
            "compact_share" => self.set("volumes", key, value, &mut volumes.compact_share, share),
            "compact_writes" => {
                let blocks = |value: &DeValue<'_>| count(value, COMPACT_WRITES_MAX);
                self.set("volumes", key, value, &mut volumes.compact_writes, blocks);
            }
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
        let hint = "leave the line out: docs/volumes.md tells what there is of volumes";
        self.report(key.span(), Problem::new(message, hint));
    }
}

fn rate(value: &DeValue<'_>) -> Parsed<ByteRate> {
    let hint = "such as \"64MiB/s\"";
    let DeValue::String(text) = value else {
        return Err(Problem::new("expected bytes a second", hint));
    };
    let rate = ByteRate::parse(text).map_err(|error| {
        Problem::new(format!("\"{text}\" is not a number of bytes a second: {error}"), hint)
    })?;
    if rate.0 < RATE.0 || rate.0 > RATE.1 {
        let range = format!("it can be from {} to {}", ByteRate(RATE.0), ByteRate(RATE.1));
        return Err(Problem::new(format!("{text} is out of range"), range));
    }
    Ok(rate)
}

/// A part of a whole, such as 0.5.
fn share(value: &DeValue<'_>) -> Parsed<Share> {
    let number = match value {
        DeValue::Float(float) => float.as_str().parse::<f64>().ok(),
        DeValue::Integer(integer) => integer.as_str().parse::<f64>().ok(),
        _ => None,
    };
    let thousandths = number.map(|number| (number * 1000.0).round());
    let within = thousandths.filter(|share| (1.0..=1000.0).contains(share));
    within.map(|share| Share(share as u32)).ok_or_else(|| {
        Problem::new("this is no share that is compacted", "it can be from 0.001 to 1.0, such as 0.5")
    })
}

fn ports(value: &DeValue<'_>) -> Parsed<Vec<SocketAddr>> {
    let ports = list(value, address)?;
    let is_again = |(index, one): &(usize, &SocketAddr)| {
        one.port() != 0 && ports.iter().take(*index).any(|other| other == *one)
    };
    if let Some((_, twice)) = ports.iter().enumerate().find(is_again) {
        return Err(Problem::new(format!("{twice} is there twice"), "each port has an address of its own"));
    }
    match ports.len() {
        0 => Err(Problem::new("volumes are served nowhere", "such as ports = [\"127.0.0.1:4421\"]")),
        count if count > PORTS_MAX as usize => {
            let hint = format!("leave {PORTS_MAX} of them: each is a thread, and takes its share of memory");
            Err(Problem::new(format!("{count} ports are too many"), hint))
        }
        _ => Ok(ports),
    }
}

/// `"embedded"`, or where etcd's gateway is.
fn metadata(value: &DeValue<'_>) -> Parsed<MetadataPlace> {
    if let DeValue::String(text) = value {
        if text == EMBEDDED {
            return Ok(MetadataPlace::Embedded);
        }
        let hint =
            "\"embedded\" for a file of the host's, or a list such as [\"http://10.0.0.1:2379\"] for etcd";
        return Err(Problem::new(format!("metadata cannot be in `{text}`"), hint));
    }
    let endpoints = list(value, endpoint)?;
    let twice = endpoints
        .iter()
        .enumerate()
        .find(|(index, one)| endpoints.iter().take(*index).any(|other| other == *one));
    match (endpoints.len(), twice) {
        (1..=ENDPOINTS_MAX, None) => Ok(MetadataPlace::Etcd(endpoints)),
        (_, Some((_, one))) => Err(Problem::new(format!("http://{one} is there twice"), "once is enough")),
        _ => {
            let hint = format!("there can be from 1 to {ENDPOINTS_MAX}, such as [\"http://10.0.0.1:2379\"]");
            Err(Problem::new("these are no endpoints of etcd", hint))
        }
    }
}

fn endpoint(value: &DeValue<'_>) -> Parsed<SocketAddr> {
    let hint = "such as \"http://10.0.0.1:2379\": an address and a port, where etcd listens for clients";
    let DeValue::String(text) = value else { return Err(Problem::new("expected an endpoint of etcd", hint)) };
    if text.starts_with("https://") {
        return Err(Problem::new(
            "etcd is reached without TLS in this version",
            "let etcd listen at an http:// address, on a network that nobody else reaches",
        ));
    }
    let address = text.strip_prefix("http://").map(|rest| rest.strip_suffix('/').unwrap_or(rest));
    let address =
        address.and_then(|address| address.parse::<SocketAddr>().ok()).filter(|address| address.port() != 0);
    address.ok_or_else(|| Problem::new(format!("`{text}` is no endpoint of etcd"), hint))
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
