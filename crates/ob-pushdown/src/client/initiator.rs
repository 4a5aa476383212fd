//! Our own initiator carries commands.

use ob_nvme::initiator::{Data, Error, Initiator, RawCommand};
use ob_wire_nvme::CommandId;

use super::transport::{Command, CommandAnswer, CommandData, Transport, TransportError};

impl From<CommandData> for Data {
    fn from(data: CommandData) -> Self {
        match data {
            CommandData::None => Self::None,
            CommandData::Send(bytes) => Self::ToController(bytes.into()),
            CommandData::Receive(len) => Self::ToHost(len),
            CommandData::Exchange(bytes, len) => Self::Both(bytes.into(), len),
        }
    }
}

impl Transport for Initiator {
    async fn execute(&self, command: Command) -> Result<CommandAnswer, TransportError> {
        let Command { function, namespace, data } = command;
        let entry = function.encode(CommandId(0), namespace);
        match self.io(RawCommand { entry, data: data.into(), is_idempotent: true }).await {
            Ok(answer) => Ok(CommandAnswer { result: answer.result, data: answer.data }),
            Err(Error::Command { status, result }) => Err(TransportError::Status { status, result }),
            Err(error) => Err(TransportError::Broken(error.to_string())),
        }
    }

    fn transfer_max(&self) -> usize {
        self.facts().map_or(4096, |facts| facts.transfer_max as usize)
    }

    fn exchange_max(&self) -> Option<usize> {
        self.facts().map(|facts| facts.capsule_data_max as usize)
    }
}
