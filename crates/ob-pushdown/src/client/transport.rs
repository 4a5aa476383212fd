//! Who carries commands.

use ob_wire_nvme::pushdown::Function;
use ob_wire_nvme::{NamespaceId, Status};

/// A command.
#[derive(Clone, Debug)]
pub struct Command {
    /// What it asks for.
    pub function: Function,
    /// The namespace that it names.
    pub namespace: NamespaceId,
    /// Its data.
    pub data: CommandData,
}

/// The data of a command.
#[derive(Clone, Debug)]
pub enum CommandData {
    /// None.
    None,
    /// To the target.
    Send(Vec<u8>),
    /// So much from the target.
    Receive(u32),
    /// Both.
    Exchange(Vec<u8>, u32),
}

/// What a command was answered with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandAnswer {
    /// DW0 and DW1.
    pub result: u64,
    /// What came.
    pub data: Vec<u8>,
}

/// Why a command was not answered well.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// The target said no.
    #[error("the target answered: {status}")]
    Status {
        /// With this status.
        status: Status,
        /// DW0 and DW1.
        result: u64,
    },
    /// No answer came.
    #[error("{0}")]
    Broken(String),
}

/// Carries commands to a target. A command that is carried twice, because a connection was lost, does no harm.
pub trait Transport: Send + Sync {
    /// Executes a command.
    fn execute(&self, command: Command)
    -> impl Future<Output = Result<CommandAnswer, TransportError>> + Send;

    /// Bytes of one transfer.
    fn transfer_max(&self) -> usize;

    /// Bytes that a command that goes both ways may send; none where there are no such commands.
    fn exchange_max(&self) -> Option<usize>;

    /// Whether two commands can wait for their answers at once. Where they cannot, the first of a pair is sent before the other.
    fn can_wait_twice(&self) -> bool {
        true
    }
}

impl<T: Transport> Transport for &T {
    fn execute(
        &self,
        command: Command,
    ) -> impl Future<Output = Result<CommandAnswer, TransportError>> + Send {
        (**self).execute(command)
    }

    fn transfer_max(&self) -> usize {
        (**self).transfer_max()
    }

    fn exchange_max(&self) -> Option<usize> {
        (**self).exchange_max()
    }

    fn can_wait_twice(&self) -> bool {
        (**self).can_wait_twice()
    }
}
