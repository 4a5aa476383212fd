//! `outboard nvme discover` and `outboard nvme list`: what there is.

use std::net::{IpAddr, SocketAddr};

use ob_nvme::initiator::{self, Namespace, block_on};
use ob_wire_nvme::log::{DiscoveryEntry, DiscoverySubtype, requirement};
use ob_wire_nvme::text::Nqn;
use serde::Serialize;

use super::command::{DiscoverOptions, ListOptions};
use super::connect::{Host, Losses, Target, resolve};
use super::error::InitiatorError;
use crate::config::NvmeConfig;
use crate::nvme::{hex, uuid_text};
use crate::terminal::{BAD, FAINT, HEADING, bytes, say, styled, table, warn};

/// One entry of a discovery log.
#[derive(Serialize)]
struct Discovered {
    subsystem: String,
    #[serde(rename = "type")]
    kind: &'static str,
    transport: &'static str,
    address_family: &'static str,
    address: String,
    service: u16,
    port_id: u16,
    controller_id: u16,
    admin_queue_entries: u16,
    secure_channel: &'static str,
    may_disable_flow_control: bool,
    flags: u16,
}

impl From<&DiscoveryEntry> for Discovered {
    fn from(entry: &DiscoveryEntry) -> Self {
        Self {
            subsystem: entry.subsystem.to_string(),
            kind: match entry.subtype {
                DiscoverySubtype::Referral => "referral",
                DiscoverySubtype::Nvm => "nvm",
                DiscoverySubtype::Current => "discovery",
            },
            transport: "tcp",
            address_family: match entry.family {
                ob_wire_nvme::log::AddressFamily::Ipv4 => "ipv4",
                ob_wire_nvme::log::AddressFamily::Ipv6 => "ipv6",
            },
            address: entry.address.clone(),
            service: entry.service,
            port_id: entry.port,
            controller_id: entry.controller.0,
            admin_queue_entries: entry.admin_queue,
            secure_channel: match entry.requirements & 3 {
                requirement::SECURE_REQUIRED => "required",
                requirement::SECURE_NOT_REQUIRED => "not required",
                _ => "not specified",
            },
            may_disable_flow_control: entry.requirements & requirement::NO_FLOW_CONTROL != 0,
            flags: entry.flags,
        }
    }
}

pub(super) fn discover(options: &DiscoverOptions) -> Result<(), InitiatorError> {
    let address = resolve(options.address.as_deref(), NvmeConfig::default().discovery)?;
    let entries = entries_at(&Host::new(&options.host)?, address)?;
    if options.json {
        let shown: Vec<Discovered> = entries.iter().map(Discovered::from).collect();
        say(&serde_json::to_string_pretty(&shown).map_err(std::io::Error::from)?)?;
        return Ok(());
    }
    let row = |entry: &DiscoveryEntry| {
        let Discovered { subsystem, kind, address, service, port_id, .. } = entry.into();
        vec![subsystem, kind.to_owned(), place(&address, service), port_id.to_string()]
    };
    let rows: Vec<Vec<String>> = entries.iter().map(row).collect();
    say(&table(&["subsystem", "type", "address", "port id"], &rows))?;
    let connect = entries.iter().filter(|entry| entry.subtype == DiscoverySubtype::Nvm).map(|entry| {
        let ip = reachable(entry, address).map_or_else(|| entry.address.clone(), |at| at.ip().to_string());
        format!("  nvme connect -t tcp -a {ip} -s {} -n {}", entry.service, entry.subsystem)
    });
    let connect: Vec<String> = connect.collect();
    if connect.is_empty() {
        say("\nNo subsystem is served to this host; a target may list hosts by name, see --hostnqn.")?;
    } else {
        say(&format!("\n{}\n{}", styled(FAINT, "To connect, as root:"), connect.join("\n")))?;
    }
    Ok(())
}

fn entries_at(host: &Host, address: SocketAddr) -> Result<Vec<DiscoveryEntry>, InitiatorError> {
    let subsystem = Nqn::discovery();
    let target = host.target(address, &subsystem)?;
    block_on(initiator::discover(&target.options))
        .map_err(|error| InitiatorError::connecting(address, &subsystem, error))
}

fn place(address: &str, service: u16) -> String {
    if address.contains(':') { format!("[{address}]:{service}") } else { format!("{address}:{service}") }
}

/// Where an entry's subsystem is. A target that listens on every address may say so, which is the address where it
/// was asked.
fn reachable(entry: &DiscoveryEntry, asked: SocketAddr) -> Option<SocketAddr> {
    let ip: IpAddr = entry.address.parse().ok()?;
    Some(SocketAddr::new(if ip.is_unspecified() { asked.ip() } else { ip }, entry.service))
}

/// One namespace.
#[derive(Serialize)]
struct Listed {
    subsystem: String,
    address: SocketAddr,
    nsid: u32,
    size: u64,
    used: u64,
    block_len: u32,
    blocks: u64,
    uuid: Option<String>,
    nguid: Option<String>,
    eui64: Option<String>,
}

impl Listed {
    fn new(target: &Target, namespace: &Namespace) -> Self {
        let ids = namespace.ids();
        Self {
            subsystem: target.subsystem.to_string(),
            address: target.address,
            nsid: namespace.id().0,
            size: namespace.len(),
            used: namespace.used() * u64::from(namespace.block_len()),
            block_len: namespace.block_len(),
            blocks: namespace.blocks(),
            uuid: ids.uuid.map(|id| uuid_text(&id)),
            nguid: ids.nguid.map(|id| hex(&id)),
            eui64: ids.eui64.map(|id| hex(&id)),
        }
    }

    /// The best of its ids; the others are in the JSON.
    fn id(&self) -> String {
        let ids = [("uuid", &self.uuid), ("nguid", &self.nguid), ("eui64", &self.eui64)];
        let first = ids.iter().find_map(|(kind, id)| Some(format!("{kind}:{}", id.as_ref()?)));
        first.unwrap_or_else(|| "-".to_owned())
    }
}

pub(super) fn list(options: &ListOptions) -> Result<(), InitiatorError> {
    let defaults = NvmeConfig::default();
    let host = Host::new(&options.host)?;
    let subsystems = match &options.nqn {
        Some(nqn) => vec![vec![host.target(resolve(options.address.as_deref(), defaults.listen)?, nqn)?]],
        None => found(&host, resolve(options.address.as_deref(), defaults.discovery)?)?,
    };
    let mut listed = Vec::new();
    let mut failed = false;
    for places in &subsystems {
        match namespaces(places) {
            Ok(Some((_, namespaces))) if options.json => listed.extend(namespaces),
            Ok(Some((target, namespaces))) => say(&show(target, &namespaces))?,
            Ok(None) => {}
            // With one there is nothing else to go on with.
            Err(error) if subsystems.len() == 1 => return Err(error),
            Err(error) => {
                failed = true;
                warn(&format!("{} {error}", styled(BAD, "error:")));
            }
        }
    }
    if options.json {
        say(&serde_json::to_string_pretty(&listed).map_err(std::io::Error::from)?)?;
    } else if subsystems.is_empty() {
        say("No subsystem is served to this host; a target may list hosts by name, see --hostnqn.")?;
    }
    if failed { Err(InitiatorError::Told) } else { Ok(()) }
}

/// The subsystems that a discovery service tells of, and all the places where each of them is.
fn found(host: &Host, address: SocketAddr) -> Result<Vec<Vec<Target>>, InitiatorError> {
    let mut subsystems: Vec<Vec<Target>> = Vec::new();
    for entry in entries_at(host, address)? {
        let Some(place) = reachable(&entry, address) else { continue };
        if entry.subtype != DiscoverySubtype::Nvm {
            continue;
        }
        let target = host.target(place, &entry.subsystem)?;
        let is_same = |places: &&mut Vec<Target>| places.iter().any(|one| one.subsystem == entry.subsystem);
        match subsystems.iter_mut().find(is_same) {
            Some(places) => places.push(target),
            None => subsystems.push(vec![target]),
        }
    }
    Ok(subsystems)
}

/// The namespaces of a subsystem, as the first of its places that answers tells them.
fn namespaces(places: &[Target]) -> Result<Option<(&Target, Vec<Listed>)>, InitiatorError> {
    let mut unreachable = None;
    for target in places {
        match block_on(namespaces_at(target)) {
            Ok(namespaces) => return Ok(Some((target, namespaces))),
            Err(error @ InitiatorError::Unreachable { .. }) => unreachable = unreachable.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    unreachable.map_or(Ok(None), Err)
}

async fn namespaces_at(target: &Target) -> Result<Vec<Listed>, InitiatorError> {
    let initiator = target.connect(0, Losses::Mended).await?;
    let namespaces = initiator.namespaces().await;
    let action = format!("list the namespaces of {}", target.subsystem);
    let namespaces = namespaces.map_err(InitiatorError::failed(action))?;
    let listed = namespaces.iter().map(|namespace| Listed::new(target, namespace)).collect();
    initiator.disconnect().await;
    Ok(listed)
}

fn show(target: &Target, namespaces: &[Listed]) -> String {
    let title = format!("{} at {}", styled(HEADING, target.subsystem.as_str()), target.address);
    if namespaces.is_empty() {
        return format!("{title}\n  no namespaces");
    }
    let row = |one: &Listed| {
        vec![one.nsid.to_string(), bytes(one.size), bytes(one.used), one.block_len.to_string(), one.id()]
    };
    let rows: Vec<Vec<String>> = namespaces.iter().map(row).collect();
    format!("{title}\n{}", table(&["nsid", "size", "used", "block", "id"], &rows))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddrV4};

    use ob_wire_nvme::ControllerId;
    use ob_wire_nvme::log::AddressFamily;
    use rustix::net::{AddressFamily as SocketFamily, SocketType};

    use super::super::command::HostOptions;
    use super::*;
    use crate::config::TimeSpan;

    #[test]
    fn a_target_that_listens_everywhere_is_where_it_was_asked() {
        let entry = |address: &str| DiscoveryEntry {
            family: AddressFamily::Ipv4,
            subtype: DiscoverySubtype::Nvm,
            requirements: 0,
            port: 1,
            controller: ControllerId::DYNAMIC,
            admin_queue: 32,
            flags: 0,
            address: address.to_owned(),
            service: 4420,
            subsystem: Nqn::discovery(),
        };
        let asked = SocketAddr::from(([192, 0, 2, 7], 8009));
        let at = |address| reachable(&entry(address), asked).map(|place| place.to_string());
        assert_eq!(at("192.0.2.9").as_deref(), Some("192.0.2.9:4420"));
        assert_eq!(at("0.0.0.0").as_deref(), Some("192.0.2.7:4420"));
        assert_eq!(at("::").as_deref(), Some("192.0.2.7:4420"));
        assert_eq!(at("example"), None, "a name is not looked up on a stranger's word");
    }
    #[test]
    fn every_place_of_a_subsystem_is_tried_and_the_first_is_named() {
        // Bound and never listening: these ports refuse connections, and nobody else is given them meanwhile.
        let closed = [(); 2].map(|()| {
            let socket = rustix::net::socket(SocketFamily::INET, SocketType::STREAM, None).unwrap();
            rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
            socket
        });
        let options = HostOptions {
            hostnqn: None,
            hostid: None,
            dhchap_secret: None,
            dhchap_ctrl_secret: None,
            header_digest: false,
            data_digest: false,
            timeout: TimeSpan(std::time::Duration::from_secs(60)),
        };
        let host = Host::new(&options).unwrap();
        let name = Nqn::new("nqn.2026-11.example:one").unwrap();
        let places = closed.each_ref().map(|socket| {
            let address = SocketAddrV4::try_from(rustix::net::getsockname(socket).unwrap()).unwrap();
            host.target(address.into(), &name).unwrap()
        });
        let first = places[0].address;
        let tried = namespaces(&places);
        assert!(matches!(tried, Err(InitiatorError::Unreachable { address, .. }) if address == first));
        assert!(matches!(namespaces(&[]), Ok(None)));
    }
}
