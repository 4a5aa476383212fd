//! Values that are right by themselves and cannot be together: a card would refuse them when it starts.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use super::{Config, LinkKind, Mistake, NamespaceDevice, SubsystemConfig, nvme, shown_section};

/// Where the text sets each value, by section and key.
pub(super) type Spans = BTreeMap<String, Range<usize>>;

/// All that contradicts something else.
pub(super) fn check(config: &Config, spans: &Spans) -> Vec<Mistake> {
    let subsystems = config.nvme.all_subsystems();
    let mut mistakes: Vec<Mistake> =
        subsystems.iter().flat_map(|subsystem| check_keys(subsystem, spans)).collect();
    mistakes.extend(check_volumes(config, spans));
    mistakes.extend(check_split(config, spans));
    mistakes.extend(check_threads(config, &subsystems, spans));
    mistakes.extend(check_addresses(config, &subsystems, spans));
    mistakes
}

fn mistake(spans: &Spans, section: &str, key: &str, message: String, hint: String) -> Option<Mistake> {
    // What the text does not set is a default, and those go together.
    let span = spans.get(&format!("{section}.{key}"))?.clone();
    Some(Mistake { span, message, hint: Some(hint) })
}

/// Keys are for hosts that are named.
fn check_keys(subsystem: &SubsystemConfig, spans: &Spans) -> Option<Mistake> {
    let (what, key, hint) = match subsystem.keys_fault()? {
        nvme::KEY_WITHOUT_HOSTS => {
            (nvme::KEY_WITHOUT_HOSTS, "key", "name them in the same section: hosts = [\"nqn.…\"]")
        }
        other => (
            other,
            "controller_key",
            "set `key` in the same section to what those hosts have; `nvme gen-dhchap-key` makes one",
        ),
    };
    mistake(spans, &subsystem.section, key, what.to_owned(), hint.to_owned())
}

/// Volumes have hosts as subsystems have, and no more replicas than there are servers.
fn check_volumes(config: &Config, spans: &Spans) -> Vec<Mistake> {
    let volumes = &config.volumes;
    let mut mistakes: Vec<Mistake> = check_keys(&volumes.subsystem(), spans).into_iter().collect();
    let servers = volumes.servers.len();
    // Whichever of them the text sets is the one to change.
    let at = |first: &str, second: &str, message: &str, hint: String| {
        let at = |key| mistake(spans, "volumes", key, message.to_owned(), hint.clone());
        at(first).or_else(|| at(second))
    };
    if volumes.replicas > servers {
        let hint = format!("`replicas` is {}, and `servers` names {servers}", volumes.replicas);
        mistakes.extend(at("replicas", "servers", "each replica is on a chunk server of its own", hint));
    }
    let has_any_port = config.link.kind == LinkKind::Tcp && config.link.listen.port() == 0;
    if volumes.enabled && volumes.ports.len() > 1 && has_any_port {
        let hint = "say where the card listens: links of ports have the numbers behind that".to_owned();
        let message = "several ports of volumes cannot be found behind a link that listens anywhere";
        mistakes.extend(
            mistake(spans, "link", "listen", message.to_owned(), hint.clone())
                .or_else(|| mistake(spans, "volumes", "ports", message.to_owned(), hint)),
        );
    }
    if volumes.replicas_min > volumes.replicas {
        let hint = format!("`replicas` is {}: set `replicas_min` to that, or less", volumes.replicas);
        mistakes.extend(at("replicas_min", "replicas", "no chunk would ever have so many members", hint));
    }
    mistakes
}

/// A card has one port, which is of volumes or an application's.
fn check_split(config: &Config, spans: &Spans) -> Option<Mistake> {
    if !config.split.enabled || !config.volumes.enabled {
        return None;
    }
    let message = "the card has one port of split messages, and [volumes] has it";
    let hint = "leave out one of the sections [split] and [volumes], or set `enabled = false` there";
    let sections = [("split", "enabled"), ("split", "magic"), ("split", "memory"), ("volumes", "enabled")];
    let at = |(section, key)| mistake(spans, section, key, message.to_owned(), hint.to_owned());
    sections.into_iter().find_map(at)
}

/// What shares an address shares a thread, and the card's own thread is the one that has the card's files.
fn check_threads(config: &Config, subsystems: &[SubsystemConfig], spans: &Spans) -> Option<Mistake> {
    let threads = match config.nvme.threads_of(subsystems) {
        Ok(threads) => threads,
        Err(index) => {
            let section = &subsystems.get(index)?.section;
            let hint = "name the same thread, or give this one a `listen` of its own";
            return mistake(spans, section, "thread", nvme::TWO_THREADS.to_owned(), hint.to_owned());
        }
    };
    let is_elsewhere = |(subsystem, thread): &(&SubsystemConfig, usize)| {
        *thread != 0 && matches!(subsystem.device, NamespaceDevice::CardFile(_))
    };
    let (subsystem, thread) = subsystems.iter().zip(threads).find(is_elsewhere)?;
    let message = format!(
        "thread {} would serve this, and only the card's own thread reaches the card's files",
        thread + 1
    );
    let hint = "write `thread = 1` in the same section";
    mistake(spans, &subsystem.section, "device", message, hint.to_owned())
}

/// Somewhere that a card listens.
struct Listener<'a> {
    section: &'a str,
    key: &'static str,
    address: SocketAddr,
}

/// Nobody else listens where a card listens.
fn check_addresses(config: &Config, subsystems: &[SubsystemConfig], spans: &Spans) -> Option<Mistake> {
    let mut listeners = Vec::new();
    let mut add = |section, key, address| listeners.push(Listener { section, key, address });
    add("status", "listen", config.status.listen);
    if config.link.kind == LinkKind::Tcp {
        let ports = if config.volumes.enabled { config.volumes.ports.len() } else { 1 };
        // Port 0 is any, of which no host could know those behind it.
        (0..ports).for_each(|number| add("link", "listen", config.link.of_port(number).listen));
    }
    if config.kv.enabled {
        add("kv", "listen", config.kv.listen);
    }
    if config.volumes.enabled {
        config.volumes.ports.iter().for_each(|port| add("volumes", "ports", *port));
    }
    add("nvme", "discovery", config.nvme.discovery);
    let numbers = config.nvme.address_numbers(subsystems);
    for (index, (subsystem, number)) in subsystems.iter().zip(&numbers).enumerate() {
        // Those that share one listen once.
        if numbers.iter().position(|other| other == number) != Some(index) {
            continue;
        }
        match subsystem.listen.filter(|_| *number > 0) {
            Some(own) => add(&subsystem.section, "listen", own),
            None => add("nvme", "listen", config.nvme.listen),
        }
    }
    for (index, one) in listeners.iter().enumerate() {
        for other in listeners.iter().take(index).filter(|other| clash(one.address, other.address)) {
            let told = |at: &Listener<'_>, with: &Listener<'_>| {
                let message = format!(
                    "`{}` of {} is {} already, and nobody else can listen there",
                    with.key,
                    shown_section(with.section),
                    with.address
                );
                let hint = format!("give one of them another port than {}", at.address.port());
                mistake(spans, at.section, at.key, message, hint)
            };
            if let Some(mistake) = told(one, other).or_else(|| told(other, one)) {
                return Some(mistake);
            }
        }
    }
    None
}

/// Whether the kernel would refuse the second of them. Port 0 is another one each time.
fn clash(one: SocketAddr, other: SocketAddr) -> bool {
    let covers = |all: IpAddr, some: IpAddr| match all {
        IpAddr::V4(all) => all.is_unspecified() && some.is_ipv4(),
        // Sockets of IPv6 take connections of IPv4 too.
        IpAddr::V6(all) => all.is_unspecified(),
    };
    let (left, right) = (one.ip(), other.ip());
    let is_same_port = one.port() == other.port() && one.port() != 0;
    is_same_port && (left == right || covers(left, right) || covers(right, left))
}
