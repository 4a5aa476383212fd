//! `[volumes]` and `[chunkserver]`: disks that are kept three times, and who keeps them.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ob_nvme::auth::Secret;
use ob_wire_nvme::text::Nqn;
use serde::Serialize;

use super::nvme::{as_text, as_texts};
use super::{
    ByteSize, ConfigSource, FilesConfig, FilesDevice, LogConfig, ReactorConfig, SegmentSize, SubsystemConfig,
    TimeSpan,
};

/// The subsystem's name where nothing else is said.
const NQN_DEFAULT: &str = "nqn.2026-11.io.outboard:volumes";
/// The port of the first chunk server where nothing else is said; others of `up` follow it.
const CHUNK_PORT: u16 = 4440;
/// The device of a chunk server, in its data directory.
const CHUNK_DEVICE: &str = "chunks.img";

/// How volumes are served.
#[derive(Clone, Debug, Serialize)]
pub struct VolumesConfig {
    /// Whether they are. A section `[volumes]` switches them on.
    pub enabled: bool,
    /// Where they are served: one address in this version; port 0 takes any that is free.
    pub ports: Vec<SocketAddr>,
    /// The subsystem's name.
    #[serde(serialize_with = "as_text")]
    pub nqn: Nqn,
    /// Names of the hosts that may connect; none listed means every host.
    #[serde(serialize_with = "as_texts")]
    pub hosts: Vec<Nqn>,
    /// What those hosts have to prove that they know.
    #[serde(skip_serializing)]
    pub key: Option<Secret>,
    /// What the card proves that it knows, to hosts that ask.
    #[serde(skip_serializing)]
    pub controller_key: Option<Secret>,
    /// Where the chunk servers are. `up` starts one for each.
    pub servers: Vec<SocketAddr>,
    /// Chunk servers that have each record of a new volume.
    pub replicas: usize,
    /// With fewer that answer, no chunk is opened.
    pub replicas_min: usize,
    /// How long the card holds a command that nobody can answer yet.
    pub hold: TimeSpan,
    /// Memory of the card for records under way, replies, and payloads that are retained.
    pub card_memory: ByteSize,
}

impl VolumesConfig {
    /// The subsystem, as NVMe/TCP knows those of `[nvme]`.
    pub(crate) fn subsystem(&self) -> SubsystemConfig {
        SubsystemConfig {
            nqn: self.nqn.clone(),
            hosts: self.hosts.clone(),
            key: self.key.clone(),
            controller_key: self.controller_key.clone(),
            section: "volumes".to_owned(),
            ..SubsystemConfig::numbered(1)
        }
    }

    /// Where they are served.
    pub(crate) fn port(&self) -> SocketAddr {
        self.ports.first().copied().unwrap_or_else(port_default)
    }
}

impl Default for VolumesConfig {
    fn default() -> Self {
        let server = |number| SocketAddr::from((Ipv4Addr::LOCALHOST, CHUNK_PORT + number));
        Self {
            enabled: false,
            ports: vec![port_default()],
            // The default is a legal name; were it none, discovery's would be refused at start.
            nqn: Nqn::new(NQN_DEFAULT).unwrap_or_else(|_| Nqn::discovery()),
            hosts: Vec::new(),
            key: None,
            controller_key: None,
            servers: (0..3).map(server).collect(),
            replicas: 3,
            replicas_min: 2,
            hold: TimeSpan(Duration::from_secs(20)),
            card_memory: ByteSize(128 << 20),
        }
    }
}

fn port_default() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 4421))
}

/// `[chunkserver]`: how chunks are kept.
#[derive(Clone, Debug, Serialize)]
pub struct ChunkServerSection {
    /// Where it listens; port 0 takes any that is free. `up` gives each of its own another one.
    pub listen: SocketAddr,
    /// How large its device is made, if that is not there yet.
    pub size: ByteSize,
    /// Memory for appends and reads.
    pub memory: ByteSize,
}

impl Default for ChunkServerSection {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, CHUNK_PORT)),
            size: ByteSize(16 << 30),
            memory: ByteSize(64 << 20),
        }
    }
}

/// What a chunk server needs of the configuration, its paths ready for use.
#[derive(Clone, Debug)]
pub struct ChunkServerConfig {
    /// Its own directory.
    pub directory: PathBuf,
    /// Its device.
    pub files: FilesConfig,
    /// Where it listens.
    pub listen: SocketAddr,
    /// Memory for appends and reads.
    pub memory: ByteSize,
    /// Threads that may poll on the same cores, its own among them: on one machine there are other servers, and a card.
    pub pollers: usize,
    /// How its reactor waits.
    pub reactor: ReactorConfig,
    /// What is logged.
    pub log: LogConfig,
    /// Where the values came from, for errors that show only when they are used.
    pub source: ConfigSource,
}

impl super::Config {
    /// A chunk server's part. Its data directory is its own, and no other process' of Outboard.
    #[must_use]
    pub fn chunk_server(&self, listen: Option<SocketAddr>) -> ChunkServerConfig {
        let ChunkServerSection { size, memory, .. } = self.chunkserver;
        let device = FilesDevice::Path(self.data.join(CHUNK_DEVICE));
        ChunkServerConfig {
            directory: self.data.clone(),
            files: FilesConfig { device, size, segment: SegmentSize::Auto },
            listen: listen.unwrap_or(self.chunkserver.listen),
            memory,
            pollers: self.volumes.servers.len() + 1,
            reactor: self.reactor.clone(),
            log: self.log.clone(),
            source: self.source.clone(),
        }
    }
}
