//! `[nvme]`: the namespace that NVMe/TCP initiators reach.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use ob_nvme::auth::Secret;
use ob_wire_nvme::text::Nqn;
use serde::{Serialize, Serializer};

use super::{ByteSize, FilesDevice};

/// The device where nothing else is said, in the data directory.
pub(super) const DEVICE_DEFAULT: &str = "card/nvme.img";
/// A file of this size takes as much of the disk as was written to it.
const SIZE_DEFAULT: ByteSize = ByteSize(16 << 30);
/// The subsystem's name where nothing else is said.
const NQN_DEFAULT: &str = "nqn.2026-11.io.outboard:card";

/// What initiators reach, and who of them may.
#[derive(Clone, Debug, Serialize)]
pub struct NvmeConfig {
    /// Where the subsystem is served; port 0 takes any that is free.
    pub listen: SocketAddr,
    /// Where discovery is served besides.
    pub discovery: SocketAddr,
    /// The subsystem's name.
    #[serde(serialize_with = "as_text")]
    pub nqn: Nqn,
    /// What the namespace lies on.
    pub device: FilesDevice,
    /// How large a file or memory is made that is not there yet.
    pub size: ByteSize,
    /// Names of the hosts that may connect; none listed means every host.
    #[serde(serialize_with = "as_texts")]
    pub hosts: Vec<Nqn>,
    /// What those hosts have to prove that they know.
    #[serde(skip_serializing)]
    pub key: Option<Secret>,
    /// What the card proves that it knows, to hosts that ask.
    #[serde(skip_serializing)]
    pub controller_key: Option<Secret>,
}

impl Default for NvmeConfig {
    fn default() -> Self {
        let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Self {
            listen: local(4420),
            discovery: local(8009),
            nqn: nqn_default(),
            device: FilesDevice::Path(PathBuf::from(DEVICE_DEFAULT)),
            size: SIZE_DEFAULT,
            hosts: Vec::new(),
            key: None,
            controller_key: None,
        }
    }
}

/// The default is a legal name; were it none, discovery's, which no subsystem may have, would be refused at start.
fn nqn_default() -> Nqn {
    Nqn::new(NQN_DEFAULT).unwrap_or_else(|_| Nqn::discovery())
}

fn as_text<S: Serializer>(nqn: &Nqn, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(nqn.as_str())
}

fn as_texts<S: Serializer>(names: &[Nqn], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(names.iter().map(Nqn::as_str))
}
