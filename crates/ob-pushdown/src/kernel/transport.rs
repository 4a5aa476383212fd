//! The kernel's initiator carries commands.

use std::path::PathBuf;

use ob_passthrough::System;
use ob_passthrough::nvme::{
    Command as KernelCommand, Data, FindError, IoctlPassthrough, Namespace, PassthroughError, RingPassthrough,
};
use ob_wire_nvme::{CommandId, NamespaceId};

use crate::client::{Command, CommandAnswer, CommandData, Transport, TransportError};

/// Bytes of one transfer: what every target of ours takes.
const TRANSFER_MAX: usize = 128 << 10;
/// Commands under way at once; those that come then wait in line, in the order in which they came. So the query of a pair is
/// never behind its answer.
const DEPTH: u32 = 128;

/// Commands by way of the kernel.
pub struct KernelTransport {
    namespace: Namespace,
    way: Way,
}

enum Way {
    Ring(RingPassthrough),
    /// One after the other, each in the thread that asks.
    Ioctl(IoctlPassthrough),
}

/// Why the kernel carries no commands.
#[derive(Debug, thiserror::Error)]
pub enum KernelTransportError {
    /// What it is on.
    #[error(transparent)]
    Find(#[from] FindError),
    /// Several ways lead to the namespace.
    #[error(
        "{name} is reached in {paths} ways, and what a card knows of a client is of one of them\n\
         hint: disconnect the others, or set `nvme_core.multipath=N`"
    )]
    SeveralPaths {
        /// The namespace.
        name: String,
        /// How many.
        paths: usize,
    },
    /// The device cannot be used.
    #[error("cannot use {}: {source}\nhint: commands of a vendor's are root's to send (CAP_SYS_ADMIN)", path.display())]
    Open {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: PassthroughError,
    },
}

impl KernelTransport {
    /// The namespace that the kernel has under this name, such as `nvme0n1`, by io_uring where the kernel has it.
    ///
    /// # Errors
    ///
    /// When there is none, or it cannot be used.
    pub fn open(system: &System, name: &str) -> Result<Self, KernelTransportError> {
        let namespace = Namespace::find(system, name)?;
        if namespace.controllers.len() > 1 {
            let (name, paths) = (name.to_owned(), namespace.controllers.len());
            return Err(KernelTransportError::SeveralPaths { name, paths });
        }
        let way = match RingPassthrough::open(&namespace.generic_path, DEPTH) {
            Ok(ring) => Way::Ring(ring),
            // Older kernels, and those that were told so, have none.
            Err(PassthroughError::Unsupported(_)) => Way::Ioctl(ioctl(&namespace)?),
            Err(source) => {
                return Err(KernelTransportError::Open { path: namespace.generic_path, source });
            }
        };
        Ok(Self { namespace, way })
    }

    /// The same by ioctl: a command at a time in each thread.
    ///
    /// # Errors
    ///
    /// The same.
    pub fn by_ioctl(system: &System, name: &str) -> Result<Self, KernelTransportError> {
        let way = |namespace: &Namespace| ioctl(namespace).map(Way::Ioctl);
        let opened = Self::open(system, name)?;
        Ok(Self { way: way(&opened.namespace)?, ..opened })
    }

    /// The namespace.
    #[must_use]
    pub fn namespace(&self) -> NamespaceId {
        NamespaceId(self.namespace.nsid)
    }

    /// Whether commands go by io_uring.
    #[must_use]
    pub fn is_ring(&self) -> bool {
        matches!(self.way, Way::Ring(_))
    }
}

fn ioctl(namespace: &Namespace) -> Result<IoctlPassthrough, KernelTransportError> {
    let path = &namespace.block_path;
    IoctlPassthrough::open(path).map_err(|source| KernelTransportError::Open { path: path.clone(), source })
}

impl Transport for KernelTransport {
    async fn execute(&self, command: Command) -> Result<CommandAnswer, TransportError> {
        let Command { function, namespace, data } = command;
        let entry = function.encode(CommandId(0), namespace);
        let data = match data {
            CommandData::None => Data::None,
            CommandData::Send(bytes) => Data::Out(bytes),
            CommandData::Receive(len) => Data::In(len as usize),
            CommandData::Exchange(..) => {
                return Err(TransportError::Broken("Linux has no commands that go both ways".to_owned()));
            }
        };
        let command = KernelCommand {
            cdw2: entry.dword2.get(),
            cdw3: entry.dword3.get(),
            cdw10_15: [
                entry.dword10.get(),
                entry.dword11.get(),
                entry.dword12.get(),
                entry.dword13.get(),
                entry.dword14.get(),
                entry.dword15.get(),
            ],
            data,
            ..KernelCommand::new(entry.opcode, namespace.0)
        };
        let completed = match &self.way {
            Way::Ring(ring) => ring.submit(command).await,
            Way::Ioctl(ioctl) => ioctl.run(command),
        };
        match completed {
            Ok(completion) => Ok(CommandAnswer { result: completion.result, data: completion.data }),
            Err(PassthroughError::Status { status, result }) => {
                Err(TransportError::Status { status, result })
            }
            Err(error) => Err(TransportError::Broken(error.to_string())),
        }
    }

    fn transfer_max(&self) -> usize {
        TRANSFER_MAX
    }

    fn exchange_max(&self) -> Option<usize> {
        None
    }

    fn can_wait_twice(&self) -> bool {
        self.is_ring()
    }
}
