//! Writes, one after the other, of which each way is looked at alone.

use std::net::SocketAddr;

use ob_nvme::initiator::{Data, Payload};
use ob_wire_nvme::command::IoOpcode;

use super::client::{Client, Shape, block_command};
use crate::bench::BenchFailure;
use crate::bench::paths::Pace;

/// How data goes to the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bench) enum Carriage {
    /// With the command.
    InCapsule,
    /// When the target asks for it.
    Solicited,
}

/// Writes the same bytes to the beginning of the namespace, again and again, each write after the last one's answer.
pub(in crate::bench) fn write_one_by_one(
    address: SocketAddr,
    carriage: Carriage,
    bytes: &Payload,
    pace: &Pace,
) -> Result<(), BenchFailure> {
    let shape = Shape { connections: 1, digests: false };
    let mut client = Client::connect(address, shape, 1, bytes)?;
    if carriage == Carriage::Solicited {
        client.expect_to_be_asked();
    }
    pace.warmed_up(|_| client.write(bytes))
}

impl Client {
    fn write(&mut self, bytes: &Payload) -> Result<(), BenchFailure> {
        let entry = block_command(IoOpcode::Write, 0, bytes.len(), self.block_len());
        let queue = self.first_queue()?;
        queue.call(entry, Data::ToController(bytes.clone())).map(|_| ())
    }
}
