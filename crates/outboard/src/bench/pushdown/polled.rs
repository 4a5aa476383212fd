//! Commands one at a time, on a connection that is polled: the fastest that a client can be, for ordinary reads and for requests alike.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ob_nvme::initiator::{Completion, Data, Payload};
use ob_pushdown::btree::Pages;
use ob_pushdown::client::{Command, CommandAnswer, Transport, TransportError};
use ob_wire_nvme::command::IoOpcode;
use ob_wire_nvme::{CommandId, NamespaceId, SubmissionEntry};

use super::DEPTH;
use crate::bench::BenchFailure;
use crate::bench::nvme::client::{Client, Queue, block_command};

/// The namespace that is read.
pub(super) const NAMESPACE: NamespaceId = NamespaceId(1);

/// Bytes of a command that writes.
const WRITE_LEN: usize = 64 << 10;

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
        let sent = sent(&data);
        let completion = self.with_queue(|queue| queue.ask(entry, data))?;
        self.account(sent + completion.data.len());
        answer(completion)
    }

    /// Commands that are on their way at once: one way there and back.
    fn ask_all(&self, commands: Vec<(SubmissionEntry, Data)>) -> Result<Vec<Vec<u8>>, TransportError> {
        let sent: usize = commands.iter().map(|(_, data)| sent(data)).sum();
        let completions = self.with_queue(|queue| queue.ask_all(commands))?;
        self.account(sent + completions.iter().map(|completion| completion.data.len()).sum::<usize>());
        completions.into_iter().map(|completion| answer(completion).map(|answer| answer.data)).collect()
    }

    fn with_queue<T>(
        &self,
        ask: impl FnOnce(&mut Queue) -> Result<T, BenchFailure>,
    ) -> Result<T, TransportError> {
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        client.first_queue().and_then(ask).map_err(|error| TransportError::Broken(error.to_string()))
    }

    /// Counts a way there and back, and makes it as long as it is to be.
    fn account(&self, bytes: usize) {
        self.tally.round_trips.fetch_add(1, Ordering::Relaxed);
        self.tally.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        if !self.delay.is_zero() {
            // The client has nothing else to do, and a timer would be later than this.
            let until = Instant::now() + self.delay;
            while Instant::now() < until {
                std::hint::spin_loop();
            }
        }
    }

    /// Reads what lies at these places of the namespace, each an offset and a length, in as many blocks as they touch.
    pub(super) fn read(&self, places: &[(u64, usize)]) -> Result<Vec<u8>, TransportError> {
        let block = self.block_len;
        let whole = |(offset, len): (u64, usize)| {
            let first = offset / block * block;
            (first, ((offset + len as u64).next_multiple_of(block) - first) as usize)
        };
        let commands = places.iter().map(|place| {
            let (first, len) = whole(*place);
            (block_command(IoOpcode::Read, first, len, block), Data::ToHost(len as u32))
        });
        let mut bytes = Vec::new();
        for (data, place) in self.ask_all(commands.collect())?.into_iter().zip(places) {
            let lead = (place.0 - whole(*place).0) as usize;
            let wanted = data.get(lead..lead + place.1);
            bytes.extend_from_slice(
                wanted.ok_or_else(|| TransportError::Broken("a read was cut off".to_owned()))?,
            );
        }
        Ok(bytes)
    }

    /// Writes to a place of the namespace that begins with a block, as whole blocks.
    pub(super) fn write(&self, offset: u64, bytes: &Payload) -> Result<(), TransportError> {
        let starts: Vec<usize> = (0..bytes.len()).step_by(WRITE_LEN).collect();
        for starts in starts.chunks(DEPTH) {
            let commands = starts.iter().map(|start| {
                let part = bytes.part(*start..start + WRITE_LEN);
                let at = offset + *start as u64;
                (block_command(IoOpcode::Write, at, part.len(), self.block_len), Data::ToController(part))
            });
            self.ask_all(commands.collect())?;
        }
        Ok(())
    }
}

fn sent(data: &Data) -> usize {
    match data {
        Data::ToController(payload) | Data::Both(payload, _) => payload.len(),
        _ => 0,
    }
}

fn answer(completion: Completion<usize>) -> Result<CommandAnswer, TransportError> {
    let Completion { status, result, data, .. } = completion;
    if status.is_success() {
        Ok(CommandAnswer { result, data })
    } else {
        Err(TransportError::Status { status, result })
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
        self.0.read(&[(offset, len)]).map_err(|error| error.to_string())
    }
}
