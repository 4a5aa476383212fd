//! Commands one at a time, on a connection that is polled: the fastest that a client can be, for ordinary reads and for requests alike.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ob_nvme::initiator::Data;
use ob_pushdown::btree::Pages;
use ob_pushdown::client::{Command, CommandAnswer, Transport, TransportError};
use ob_wire_nvme::command::IoOpcode;
use ob_wire_nvme::{CommandId, NamespaceId, SubmissionEntry};

use crate::bench::nvme::client::{Client, block_command};

/// The namespace that is read.
pub(super) const NAMESPACE: NamespaceId = NamespaceId(1);

/// A connection.
pub(super) struct Polled {
    client: Mutex<Client>,
    block_len: u64,
    /// What a way there and back takes longer than it does.
    delay: Duration,
    tally: Tally,
}

/// What went over the network.
#[derive(Default)]
pub(super) struct Tally {
    round_trips: AtomicU64,
    bytes: AtomicU64,
}

impl Polled {
    pub(super) fn new(client: Client, delay: Duration) -> Self {
        let block_len = client.block_len();
        Self { client: Mutex::new(client), block_len, delay, tally: Tally::default() }
    }

    /// Ways there and back, and bytes of data, so far.
    pub(super) fn spent(&self) -> (u64, u64) {
        (self.tally.round_trips.load(Ordering::Relaxed), self.tally.bytes.load(Ordering::Relaxed))
    }

    fn ask(&self, entry: SubmissionEntry, data: Data) -> Result<CommandAnswer, TransportError> {
        let broken = |error: crate::bench::BenchFailure| TransportError::Broken(error.to_string());
        let sent = match &data {
            Data::ToController(payload) | Data::Both(payload, _) => payload.len(),
            _ => 0,
        };
        let completion = {
            let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
            client.first_queue().and_then(|queue| queue.ask(entry, data)).map_err(broken)?
        };
        self.tally.round_trips.fetch_add(1, Ordering::Relaxed);
        self.tally.bytes.fetch_add((sent + completion.data.len()) as u64, Ordering::Relaxed);
        if !self.delay.is_zero() {
            // The client has nothing else to do, and a timer would be later than this.
            let until = Instant::now() + self.delay;
            while Instant::now() < until {
                std::hint::spin_loop();
            }
        }
        if completion.status.is_success() {
            Ok(CommandAnswer { result: completion.result, data: completion.data })
        } else {
            Err(TransportError::Status { status: completion.status, result: completion.result })
        }
    }
}

impl Transport for Polled {
    async fn execute(&self, command: Command) -> Result<CommandAnswer, TransportError> {
        let Command { function, namespace, data } = command;
        self.ask(function.encode(CommandId(0), namespace), data.into())
    }

    fn transfer_max(&self) -> usize {
        64 << 10
    }

    fn exchange_max(&self) -> Option<usize> {
        Some(8192)
    }

    fn can_wait_twice(&self) -> bool {
        false
    }
}

/// Ordinary reads of a file that begins where the namespace begins.
pub(super) struct PolledPages<'run>(pub(super) &'run Polled);

impl Pages for PolledPages<'_> {
    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, String> {
        let block = self.0.block_len;
        let (first, end) = (offset / block * block, (offset + len as u64).next_multiple_of(block));
        let entry = block_command(IoOpcode::Read, first, (end - first) as usize, block);
        let answer =
            self.0.ask(entry, Data::ToHost((end - first) as u32)).map_err(|error| error.to_string())?;
        let lead = (offset - first) as usize;
        answer.data.get(lead..lead + len).map(<[u8]>::to_vec).ok_or_else(|| "a read was cut off".to_owned())
    }
}
