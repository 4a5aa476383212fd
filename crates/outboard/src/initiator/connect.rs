//! From what was typed to an association.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use ob_nvme::auth::{Policy, Secret};
use ob_nvme::initiator::{Initiator, Options, Secrets, random_host_id};
use ob_wire_nvme::NamespaceId;
use ob_wire_nvme::pdu::Digests;
use ob_wire_nvme::text::Nqn;

use super::command::{HostOptions, SubsystemOptions};
use super::error::InitiatorError;
use crate::config::NvmeConfig;

const SECRET_VARIABLE: &str = "OUTBOARD_DHCHAP_SECRET";
const CONTROLLER_SECRET_VARIABLE: &str = "OUTBOARD_DHCHAP_CTRL_SECRET";

/// A host's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostId(pub [u8; 16]);

impl HostId {
    /// Reads a UUID, with its dashes or without.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        const WRONG: &str = "a host's id is a UUID: 32 hexadecimal digits, with dashes or without";
        let digits: String = text.chars().filter(|character| *character != '-').collect();
        if digits.len() != 32 || !digits.chars().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(WRONG);
        }
        let id = u128::from_str_radix(&digits, 16).map_err(|_| WRONG)?;
        // Targets take zeros for no id at all (Base §5.27.1.25).
        if id == 0 { Err("a host's id is not all zeros") } else { Ok(Self(id.to_be_bytes())) }
    }
}

/// Where a secret is. What everybody on the machine can read in a list of processes should be a file's name.
#[derive(Clone, PartialEq, Eq)]
pub enum SecretSource {
    /// Here.
    Text(String),
    /// In a file.
    File(PathBuf),
}

impl SecretSource {
    /// What was typed; whether it is a secret is seen later, so that a wrong one is not shown in a message.
    pub fn parse(text: &str) -> Result<Self, std::convert::Infallible> {
        Ok(match text.strip_prefix('@') {
            Some(path) => Self::File(PathBuf::from(path)),
            None => Self::Text(text.to_owned()),
        })
    }

    fn read(&self, origin: &str) -> Result<Secret, InitiatorError> {
        let (text, origin) = match self {
            Self::Text(text) => (text.clone(), origin.to_owned()),
            Self::File(path) => {
                let text = std::fs::read_to_string(path);
                (text.map_err(InitiatorError::local("read", path, None))?, path.display().to_string())
            }
        };
        text.trim().parse().map_err(|source| InitiatorError::Secret { origin, source })
    }
}

impl fmt::Debug for SecretSource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => formatter.write_str("Text(…)"),
            Self::File(path) => formatter.debug_tuple("File").field(path).finish(),
        }
    }
}

/// An option, or else the variable of the environment.
fn secret(
    option: Option<&SecretSource>,
    name: &str,
    variable: &str,
) -> Result<Option<Secret>, InitiatorError> {
    if let Some(source) = option {
        return source.read(name).map(Some);
    }
    match std::env::var(variable) {
        Ok(text) if !text.is_empty() => {
            let Ok(source) = SecretSource::parse(&text);
            source.read(variable).map(Some)
        }
        _ => Ok(None),
    }
}

/// Who asks.
pub(super) struct Host {
    id: [u8; 16],
    options: HostOptions,
    secrets: Option<Secrets>,
}

/// What survives the loss of a connection in the middle of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Losses {
    /// All of it: the target is waited for, and what was not answered is sent again.
    Mended,
    /// Nothing: what a flush promises would not hold for writes that an earlier life of the target answered.
    Final,
}

impl Host {
    pub(super) fn new(options: &HostOptions) -> Result<Self, InitiatorError> {
        let host = secret(options.dhchap_secret.as_ref(), "--dhchap-secret", SECRET_VARIABLE)?;
        let controller =
            secret(options.dhchap_ctrl_secret.as_ref(), "--dhchap-ctrl-secret", CONTROLLER_SECRET_VARIABLE)?;
        let secrets = match (host, controller) {
            (Some(host), controller) => Some(Secrets { host, controller, policy: Policy::everything() }),
            (None, None) => None,
            (None, Some(_)) => {
                return Err(InitiatorError::Request {
                    problem: "--dhchap-ctrl-secret alone proves nothing: the host goes first".to_owned(),
                    hint: "give --dhchap-secret too",
                });
            }
        };
        let id = options.hostid.map_or_else(random_host_id, |id| id.0);
        Ok(Self { id, options: options.clone(), secrets })
    }

    /// How this host uses a subsystem.
    pub(super) fn target(&self, address: SocketAddr, subsystem: &Nqn) -> Result<Target, InitiatorError> {
        let timeout = self.options.timeout.0;
        let options = Options::new(address, subsystem.as_str(), self.id).map_err(|error| {
            InitiatorError::Request { problem: error.to_string(), hint: "--nqn takes the subsystem's name" }
        })?;
        let host = self.options.hostnqn.clone().unwrap_or_else(|| options.host.clone());
        let options = Options {
            host,
            digests: Digests { header: self.options.header_digest, data: self.options.data_digest },
            connect_timeout: timeout,
            command_timeout: timeout,
            queues: 0,
            secrets: self.secrets.clone(),
            ..options
        };
        Ok(Target { address, subsystem: subsystem.clone(), options })
    }
}

/// A subsystem, and how it is used.
pub(super) struct Target {
    pub(super) address: SocketAddr,
    pub(super) subsystem: Nqn,
    pub(super) options: Options,
}

impl Target {
    /// The one that was typed, or the one of a card that was told nothing.
    pub(super) fn named(options: &SubsystemOptions) -> Result<Self, InitiatorError> {
        let defaults = NvmeConfig::default();
        let address = resolve(options.address.as_deref(), defaults.listen)?;
        let subsystem = options.nqn.as_ref().unwrap_or(&defaults.single.nqn);
        Host::new(&options.host)?.target(address, subsystem)
    }

    pub(super) fn no_namespace(&self, nsid: NamespaceId) -> InitiatorError {
        InitiatorError::NoSuchNamespace { address: self.address, subsystem: self.subsystem.clone(), nsid }
    }

    /// Connects, with so many I/O queues; none are needed to ask questions.
    pub(super) async fn connect(&self, queues: u16, losses: Losses) -> Result<Initiator, InitiatorError> {
        let mut options = Options { queues, ..self.options.clone() };
        options.reconnect.give_up_after = match losses {
            Losses::Mended => options.connect_timeout,
            Losses::Final => Duration::ZERO,
        };
        let connected = Initiator::connect(options).await;
        connected.map_err(|error| InitiatorError::connecting(self.address, &self.subsystem, error))
    }
}

/// Connects to what was typed, for other commands about targets. Losses are mended.
pub(crate) async fn connect(options: &SubsystemOptions, queues: u16) -> Result<Initiator, InitiatorError> {
    Target::named(options)?.connect(queues, Losses::Mended).await
}

/// How long an address of a name that has several may take to answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(3);

/// An address as people write it: `HOST:PORT`, or the host alone. Of a name with several, the first that answers.
pub(super) fn resolve(text: Option<&str>, default: SocketAddr) -> Result<SocketAddr, InitiatorError> {
    let Some(text) = text else { return Ok(default) };
    let unresolved = |source| InitiatorError::Address { text: text.to_owned(), source };
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(SocketAddr::new(address, default.port()));
    }
    let found = match text.rsplit_once(':') {
        Some(_) => text.to_socket_addrs(),
        None => (text, default.port()).to_socket_addrs(),
    };
    let found: Vec<SocketAddr> = found.map_err(unresolved)?.collect();
    first_that_answers(&found).ok_or_else(|| unresolved(io::Error::other("the name has no address")))
}

/// The first if none does: whoever connects to it says why not.
fn first_that_answers(addresses: &[SocketAddr]) -> Option<SocketAddr> {
    let answers = |address: &&SocketAddr| TcpStream::connect_timeout(address, ANSWERS_WITHIN).is_ok();
    let first = addresses.first();
    let is_only = addresses.iter().all(|address| Some(address) == first);
    let chosen = if is_only { first } else { addresses.iter().find(answers).or(first) };
    chosen.copied()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn ids_are_uuids() {
        let id = HostId(std::array::from_fn(|index| index as u8 * 0x11));
        assert_eq!(HostId::parse("00112233-4455-6677-8899-aabbccddeeff"), Ok(id));
        assert_eq!(HostId::parse("00112233445566778899AABBCCDDEEFF"), Ok(id));
        for wrong in ["", "7", "00112233-4455-6677-8899-aabbccddeef", "+0112233445566778899aabbccddeeff"] {
            assert!(HostId::parse(wrong).is_err(), "{wrong}");
        }
        assert!(HostId::parse(&"0".repeat(32)).is_err());
    }

    #[test]
    fn addresses_are_taken_as_people_write_them() {
        let default = SocketAddr::from(([127, 0, 0, 1], 4420));
        let resolved = |text| resolve(Some(text), default).map(|address| address.to_string()).ok();
        assert_eq!(resolve(None, default).ok(), Some(default));
        assert_eq!(resolved("192.0.2.7:8009").as_deref(), Some("192.0.2.7:8009"));
        assert_eq!(resolved("192.0.2.7").as_deref(), Some("192.0.2.7:4420"));
        assert_eq!(resolved("::1").as_deref(), Some("[::1]:4420"));
        assert_eq!(resolved("[::1]:7").as_deref(), Some("[::1]:7"));
        for wrong in ["", "192.0.2.7:", "192.0.2.7:port", ":4420:"] {
            assert_eq!(resolved(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn of_several_addresses_the_first_is_taken_that_answers() {
        let listens = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let answering = listens.local_addr().unwrap();
        let refusing = {
            let closed = TcpListener::bind(("127.0.0.1", 0)).unwrap();
            closed.local_addr().unwrap()
        };
        assert_eq!(first_that_answers(&[refusing, answering]), Some(answering));
        assert_eq!(first_that_answers(&[answering, refusing]), Some(answering));
        assert_eq!(first_that_answers(&[refusing]), Some(refusing));
        assert_eq!(first_that_answers(&[]), None);
    }

    #[test]
    fn secrets_do_not_show() {
        let Ok(source) = SecretSource::parse("DHHC-1:00:hidden:");
        let wrong = source.read("--dhchap-secret").unwrap_err();
        assert!(!format!("{source:?} {wrong} {wrong:?}").contains("hidden"));
        let Ok(file) = SecretSource::parse("@/no/such/file");
        assert!(matches!(file.read("x"), Err(InitiatorError::Local { .. })));
    }
}
