//! Our own initiator carries commands.

use ob_nvme::initiator::{Data, Error, Initiator, RawCommand};
use ob_wire_nvme::CommandId;

use super::transport::{Command, CommandAnswer, CommandData, Transport, TransportError};

impl Transport for Initiator {
    async fn execute(&self, command: Command) -> Result<CommandAnswer, TransportError> {
        let Command { function, namespace, data } = command;
        let entry = function.encode(CommandId(0), namespace);
        let data = match data {
            CommandData::None => Data::None,
            CommandData::Send(bytes) => Data::ToController(bytes.into()),
            CommandData::Receive(len) => Data::ToHost(len),
            CommandData::Exchange(bytes, len) => Data::Both(bytes.into(), len),
        };
        match self.io(RawCommand { entry, data, is_idempotent: true }).await {
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
