//! `[nvme]`: the subsystems and namespaces that NVMe/TCP initiators reach.
//!
//! One subsystem is described in `[nvme]` itself; several have a `[[nvme.subsystem]]` each.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use ob_nvme::auth::Secret;
use ob_wire_nvme::text::Nqn;
use serde::{Serialize, Serializer};

use super::{ByteSize, FilesDevice, files};

/// The device where nothing else is said, in the data directory.
pub(super) const DEVICE_DEFAULT: &str = "card/nvme.img";
/// The keys of `[nvme]` that describe a single subsystem.
pub(super) const ONE_SUBSYSTEM: &[&str] =
    &["nqn", "device", "size", "hosts", "key", "controller_key", "folder"];
/// The section of one of several subsystems; a dot and its number follow where they are told apart.
pub(super) const SECTION: &str = "nvme.subsystem";
/// A file of this size takes as much of the disk as was written to it.
const SIZE_DEFAULT: ByteSize = ByteSize(16 << 30);
/// The subsystem's name where nothing else is said.
const NQN_DEFAULT: &str = "nqn.2026-11.io.outboard:card";
/// The folder whose files storage functions may name, where there is one subsystem and nothing else is said.
const FOLDER_DEFAULT: &str = "/pushdown";

/// Why keys of a subsystem cannot be as they are.
pub(crate) const KEY_WITHOUT_HOSTS: &str = "`key` belongs to hosts, and none is listed";
pub(crate) const CONTROLLER_KEY_ALONE: &str =
    "`controller_key` is for hosts that authenticate themselves, and there is no `key` for them";
/// Why threads of subsystems cannot be as they are.
pub(crate) const TWO_THREADS: &str = "subsystems that share an address share a thread, and these name two";

/// What stands before the path of a file in the card's own file system.
pub(super) const CARD_FILE: &str = "file:";

/// What initiators reach, and who of them may.
#[derive(Clone, Debug, Serialize)]
pub struct NvmeConfig {
    /// Where the subsystem is served; port 0 takes any that is free.
    pub listen: SocketAddr,
    /// Where discovery is served besides.
    pub discovery: SocketAddr,
    /// The only subsystem, unless some have sections of their own.
    #[serde(flatten)]
    pub single: SubsystemConfig,
    /// Reactor threads that serve subsystems, the card's own among them.
    pub threads: usize,
    /// Whether hosts may bring storage functions.
    pub functions: bool,
    /// Subsystems, if they have sections of their own.
    #[serde(rename = "subsystem", skip_serializing_if = "Vec::is_empty")]
    pub subsystems: Vec<SubsystemConfig>,
}

/// `[[nvme.subsystem]]`, or what `[nvme]` says of the only one.
#[derive(Clone, Debug, Serialize)]
pub struct SubsystemConfig {
    /// Its name.
    #[serde(serialize_with = "as_text")]
    pub nqn: Nqn,
    /// Where it is served, if not where the others are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    /// The thread that serves it, counted from 1, unless that is left to the card.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<usize>,
    /// What its first namespace lies on.
    pub device: NamespaceDevice,
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
    /// The folder of the card's files whose files its hosts may name in storage functions; none of them, if it is empty.
    pub folder: String,
    /// The section that it is described in, as [`super::ConfigSource::line_to_change`] knows it.
    #[serde(skip)]
    pub section: String,
}

impl SubsystemConfig {
    /// What holds for the subsystem with this number, counted from 1, until it says something else. Neither its name nor
    /// its device may stay like this.
    pub(super) fn numbered(number: usize) -> Self {
        Self {
            nqn: Nqn::discovery(),
            listen: None,
            thread: None,
            device: NamespaceDevice::Device(FilesDevice::Path(PathBuf::new())),
            size: SIZE_DEFAULT,
            hosts: Vec::new(),
            key: None,
            controller_key: None,
            folder: String::new(),
            section: format!("{SECTION}.{number}"),
        }
    }

    /// What is wrong with its keys: they are for hosts that are named, and the card's is for hosts that have one.
    pub(crate) fn keys_fault(&self) -> Option<&'static str> {
        match (&self.key, &self.controller_key) {
            (None, Some(_)) => Some(CONTROLLER_KEY_ALONE),
            (Some(_), _) if self.hosts.is_empty() => Some(KEY_WITHOUT_HOSTS),
            _ => None,
        }
    }
}

impl NvmeConfig {
    /// All subsystems: those that have sections, or the one that `[nvme]` describes itself.
    #[must_use]
    pub fn all_subsystems(&self) -> Vec<SubsystemConfig> {
        if !self.subsystems.is_empty() {
            return self.subsystems.clone();
        }
        vec![self.single.clone()]
    }

    /// A number for where each subsystem is served: 0 where `listen` says, and one for each address of their own that is
    /// another. Those that name the same address have the same number.
    pub(crate) fn address_numbers(&self, subsystems: &[SubsystemConfig]) -> Vec<usize> {
        let mut known: Vec<SocketAddr> = Vec::new();
        let number = |subsystem: &SubsystemConfig| {
            // Port 0 is another one each time.
            let own = subsystem.listen.filter(|own| *own != self.listen || own.port() == 0)?;
            let shared = known.iter().position(|other| *other == own && own.port() != 0);
            let index = shared.unwrap_or_else(|| {
                known.push(own);
                known.len() - 1
            });
            Some(index + 1)
        };
        subsystems.iter().map(number).map(Option::unwrap_or_default).collect()
    }

    /// The thread of each subsystem, counted from 0; or which one names another than those that it shares an address with.
    /// They share a thread because a connection belongs to one before anybody knows which subsystem it is for.
    pub(crate) fn threads_of(&self, subsystems: &[SubsystemConfig]) -> Result<Vec<usize>, usize> {
        let numbers = self.address_numbers(subsystems);
        let mut groups: Vec<(usize, Option<usize>)> = Vec::new();
        for (index, (subsystem, number)) in subsystems.iter().zip(&numbers).enumerate() {
            match groups.iter_mut().find(|(known, _)| known == number) {
                None => groups.push((*number, subsystem.thread)),
                Some((_, Some(one))) if subsystem.thread.is_some_and(|other| other != *one) => {
                    return Err(index);
                }
                Some((_, thread)) => *thread = thread.or(subsystem.thread),
            }
        }
        let count = self.threads.max(1);
        let of = |number: &usize| {
            let index = groups.iter().position(|(known, _)| known == number).unwrap_or(0);
            let named = groups.get(index).and_then(|(_, thread)| *thread);
            // Named threads count from 1; the others take turns.
            named.map_or(index % count, |thread| thread.saturating_sub(1).min(count - 1))
        };
        Ok(numbers.iter().map(of).collect())
    }

    /// How many threads serve something, the card's own included, whatever it serves: more are not started.
    #[must_use]
    pub fn threads_in_use(&self) -> usize {
        let mut threads = self.threads_of(&self.all_subsystems()).unwrap_or_default();
        threads.push(0);
        threads.sort_unstable();
        threads.dedup();
        threads.len()
    }

    /// The same with the paths of devices below a directory.
    pub(super) fn below(&self, data: &Path) -> Self {
        let below = |subsystem: &SubsystemConfig| SubsystemConfig {
            device: subsystem.device.below(data),
            ..subsystem.clone()
        };
        Self {
            single: below(&self.single),
            subsystems: self.subsystems.iter().map(below).collect(),
            ..self.clone()
        }
    }
}

impl Default for NvmeConfig {
    fn default() -> Self {
        let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Self {
            listen: local(4420),
            discovery: local(8009),
            single: SubsystemConfig {
                nqn: nqn_default(),
                device: NamespaceDevice::Device(FilesDevice::Path(PathBuf::from(DEVICE_DEFAULT))),
                folder: FOLDER_DEFAULT.to_owned(),
                section: "nvme".to_owned(),
                ..SubsystemConfig::numbered(1)
            },
            threads: 1,
            functions: true,
            subsystems: Vec::new(),
        }
    }
}

/// What a namespace lies on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamespaceDevice {
    /// A device, a file of this machine, or memory.
    Device(FilesDevice),
    /// A file of the card's own file system: its path, without the slash in front.
    CardFile(String),
}

impl NamespaceDevice {
    /// What somebody has written; none if it begins like a file of the card and is none.
    #[must_use]
    pub fn parse(written: &Path) -> Option<Self> {
        let text = written.to_str().unwrap_or_default();
        if let Some(path) = text.strip_prefix(CARD_FILE) {
            let path = path.strip_prefix('/').filter(|path| !path.is_empty());
            return path.map(|path| Self::CardFile(path.to_owned()));
        }
        Some(Self::Device(match text {
            files::MEMORY => FilesDevice::Memory,
            _ => FilesDevice::Path(written.to_owned()),
        }))
    }

    /// The same, with a path of this machine ready for use.
    #[must_use]
    pub fn below(&self, data: &Path) -> Self {
        match self {
            Self::Device(device) => Self::Device(device.below(data)),
            Self::CardFile(path) => Self::CardFile(path.clone()),
        }
    }
}

impl fmt::Display for NamespaceDevice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(device) => device.fmt(formatter),
            Self::CardFile(path) => write!(formatter, "{CARD_FILE}/{path}"),
        }
    }
}

impl Serialize for NamespaceDevice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The default is a legal name; were it none, discovery's, which no subsystem may have, would be refused at start.
fn nqn_default() -> Nqn {
    Nqn::new(NQN_DEFAULT).unwrap_or_else(|_| Nqn::discovery())
}

pub(super) fn as_text<S: Serializer>(nqn: &Nqn, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(nqn.as_str())
}

pub(super) fn as_texts<S: Serializer>(names: &[Nqn], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(names.iter().map(Nqn::as_str))
}
