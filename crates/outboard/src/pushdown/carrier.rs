//! Who carries commands: a connection of our own, or the one that this machine's kernel has.

use std::path::Path;

use ob_nvme::initiator::Initiator;
use ob_passthrough::System;
use ob_passthrough::nvme::FindError;
use ob_pushdown::client::{Command, CommandAnswer, Detour, PushError, Session, Transport, TransportError};
use ob_pushdown::kernel::{KernelTransport, KernelTransportError};
use ob_wire_nvme::text::Nqn;
use ob_wire_nvme::{NamespaceId, Status};

use super::command::TargetOptions;
use super::error::PushdownError;
use crate::initiator::connect;

/// Where nvme-cli keeps this machine's name.
const HOST_NAME_FILE: &str = "/etc/nvme/hostnqn";

/// One of these.
pub(super) enum Carrier {
    /// Ours.
    Initiator(Initiator),
    /// The kernel's, to the namespace that it calls so.
    Kernel { transport: Box<KernelTransport>, device: String },
    /// No card is asked: a target without storage functions, so that all is left to the ordinary path.
    Nobody,
}

impl Transport for Carrier {
    async fn execute(&self, command: Command) -> Result<CommandAnswer, TransportError> {
        match self {
            Self::Initiator(initiator) => Transport::execute(initiator, command).await,
            Self::Kernel { transport, .. } => transport.execute(command).await,
            Self::Nobody => Err(TransportError::Status { status: Status::INVALID_OPCODE, result: 0 }),
        }
    }

    fn transfer_max(&self) -> usize {
        match self {
            Self::Initiator(initiator) => initiator.transfer_max(),
            Self::Kernel { transport, .. } => transport.transfer_max(),
            Self::Nobody => 0,
        }
    }

    fn exchange_max(&self) -> Option<usize> {
        match self {
            Self::Initiator(initiator) => initiator.exchange_max(),
            Self::Kernel { transport, .. } => transport.exchange_max(),
            Self::Nobody => None,
        }
    }

    fn can_wait_twice(&self) -> bool {
        match self {
            Self::Initiator(initiator) => initiator.can_wait_twice(),
            Self::Kernel { transport, .. } => transport.can_wait_twice(),
            Self::Nobody => true,
        }
    }
}

/// Does something with a session, and ends it: a kernel's connection outlives this process, and so would what the target keeps for it.
pub(super) async fn within<R>(
    session: Session<Carrier>,
    work: impl AsyncFnOnce(&Session<Carrier>) -> Result<R, PushdownError>,
) -> Result<R, PushdownError> {
    let done = work(&session).await;
    session.end().await;
    done
}

/// A session with the target that was meant, which has storage functions.
pub(super) async fn begin(options: &TargetOptions) -> Result<Session<Carrier>, PushdownError> {
    let session = match &options.device {
        Some(path) => begin_device(path).await?,
        None => {
            let mut subsystem = options.subsystem.clone();
            subsystem.host.hostnqn = subsystem.host.hostnqn.or_else(host_name);
            let carrier = Carrier::Initiator(connect(&subsystem, 1).await?);
            Session::begin(carrier, NamespaceId(options.nsid)).await?
        }
    };
    if session.description().is_none() {
        return Err(PushError::Detour(Detour::Unsupported).into());
    }
    Ok(session)
}

/// A session over a connection of the kernel's. Without storage functions at its other end all is left to the ordinary path.
pub(super) async fn begin_device(path: &Path) -> Result<Session<Carrier>, PushdownError> {
    let (transport, device) = open_device(path)?;
    let namespace = transport.namespace();
    Ok(Session::begin(Carrier::Kernel { transport: Box::new(transport), device }, namespace).await?)
}

/// A session with nobody.
pub(super) async fn begin_alone() -> Result<Session<Carrier>, PushdownError> {
    Ok(Session::begin(Carrier::Nobody, NamespaceId(1)).await?)
}

/// This machine, by the name that its kernel uses too if it has one: programs are a host's.
fn host_name() -> Option<Nqn> {
    let written = std::fs::read_to_string(HOST_NAME_FILE).ok().and_then(|text| Nqn::new(text.trim()).ok());
    written.or_else(|| {
        let name = rustix::system::uname();
        let node = name.nodename().to_string_lossy().to_lowercase();
        Nqn::new(&format!("nqn.2026-11.io.outboard:host.{node}")).ok()
    })
}

/// The namespace that somebody calls so, by a name of its device or the kernel's own for it.
fn open_device(path: &Path) -> Result<(KernelTransport, String), PushdownError> {
    let missing = || PushdownError::Request {
        problem: format!("this machine has no device {}", path.display()),
        hint: "`ls /dev/nvme*n*` shows those that there are; `nvme connect` makes one".into(),
    };
    let is_path = path.components().count() > 1;
    // Links such as those in /dev/disk/by-id are followed.
    let found = if is_path { path.canonicalize().map_err(|_| missing())? } else { path.to_owned() };
    let name = found.file_name().unwrap_or_default().to_string_lossy().into_owned();
    match KernelTransport::open(&System::default(), &name) {
        Ok(transport) => Ok((transport, name)),
        Err(KernelTransportError::Find(FindError::NoNamespace { .. })) => Err(PushdownError::Request {
            problem: format!("{} is no NVMe namespace", path.display()),
            hint: "a whole namespace is meant, such as /dev/nvme0n1, also for files of its partitions".into(),
        }),
        Err(KernelTransportError::Find(FindError::Read { source, .. }))
            if source.kind() == std::io::ErrorKind::NotFound =>
        {
            Err(missing())
        }
        Err(error) => Err(PushdownError::Device(Box::new(error))),
    }
}
