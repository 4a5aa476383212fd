//! What a target knows of one connection.

use std::collections::VecDeque;
use std::sync::Arc;

use ob_core::{ConnectionId, Instant};
use ob_memory::{Shared, Slice};
use ob_wire_nvme::pdu::{DataTransfer, ReadyToTransfer, digest};
use ob_wire_nvme::{CommandId, CompletionEntry, QueueId, Status, TransferTag};

use super::control::{Path, QueueIdentity};
use super::flight::FlightKey;
use super::shares::{Holder, Lease};
use super::stream::{Output, Stream};

/// A connection of a [`super::Target`]. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionKey {
    pub(super) index: u32,
    pub(super) generation: u32,
}

/// What holds a connection's bytes up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stall {
    /// A buffer for a capsule's data is wanted.
    CapsuleBuffer,
    /// The host has as many commands under way as it may.
    QueueFull,
    /// The host does not take its answers.
    Unsent,
    /// Its Connect waits for what an earlier association of the host left behind.
    Connecting,
}

/// The first half of a fused pair, as the last command that came.
#[derive(Clone, Copy, Debug)]
pub(super) enum FirstHalf {
    /// It waits for its second, since then.
    Waiting(FlightKey, Instant),
    /// It was refused, and its second will be too.
    Refused,
}

/// The queue that a connection became with its Connect.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queue {
    pub(super) identity: QueueIdentity,
    /// Entries.
    pub(super) size: u16,
    /// Entries taken from it, modulo its size.
    pub(super) head: u16,
    pub(super) flow_control_off: bool,
    /// It is for I/O, and who has it has proved what it had to.
    pub(super) may_transfer: bool,
}

pub(super) struct Connection {
    pub(super) net: ConnectionId,
    pub(super) path: Path,
    pub(super) stream: Stream,
    pub(super) output: Output,
    pub(super) queue: Option<Queue>,
    /// Bytes that were received and are held up.
    pub(super) held: Vec<u8>,
    pub(super) stall: Option<Stall>,
    /// Commands that were taken and not answered: their ids, and in the same order where they are. Asynchronous event
    /// requests are nowhere.
    pub(super) ids: Vec<u16>,
    pub(super) flights: Vec<Option<FlightKey>>,
    /// Solicited transfers under way. A tag is a place in this list and how often the place was used.
    pub(super) transfers: Vec<Transfer>,
    /// Commands that wait for a buffer.
    pub(super) waiting: VecDeque<FlightKey>,
    /// The first half of a fused pair whose second has not come.
    pub(super) fused: Option<FirstHalf>,
    /// Who holds the buffers that its commands and its output have.
    pub(super) holder: Arc<Holder>,
    pub(super) accepted: Instant,
    /// Which one it is of all that were accepted.
    pub(super) number: u64,
    /// Since when a PDU is incomplete.
    pub(super) within_since: Option<Instant>,
    /// Since when the peer takes nothing of the output.
    pub(super) unsent_since: Option<Instant>,
    /// What the peer owes to take.
    pub(super) drain: Option<Drain>,
    /// Since when nothing is read any more because the connection is given up; what is left is to say so.
    pub(super) closing: Option<Instant>,
    pub(super) is_dirty: bool,
    pub(super) is_hungry: bool,
    /// Its Connect is good and not yet answered.
    pub(super) is_connecting: bool,
    /// Bytes of answers that are made, and wait for something before they are sent.
    pub(super) owed: usize,
}

/// Output that has to be taken before a time is up: all that there was when it began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drain {
    pub(super) since: Instant,
    left: usize,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Transfer {
    uses: u8,
    flight: Option<FlightKey>,
}

impl Connection {
    pub(super) fn new(net: ConnectionId, path: Path, holder: Arc<Holder>, now: Instant, number: u64) -> Self {
        Self {
            net,
            path,
            stream: Stream::new(),
            output: Output::default(),
            queue: None,
            held: Vec::new(),
            stall: None,
            ids: Vec::new(),
            flights: Vec::new(),
            transfers: Vec::new(),
            waiting: VecDeque::new(),
            fused: None,
            holder,
            accepted: now,
            number,
            within_since: None,
            unsent_since: None,
            drain: None,
            closing: None,
            is_dirty: false,
            is_hungry: false,
            is_connecting: false,
            owed: 0,
        }
    }

    /// Bytes of answers, besides payload, that it takes to have them: those that wait count like those that are not taken.
    pub(super) fn unsent(&self) -> usize {
        self.output.unsent() + self.owed
    }

    /// Whether it is an I/O queue, and its host's. Others need little, and those who have proved nothing get no more.
    pub(super) fn may_transfer(&self) -> bool {
        self.queue.is_some_and(|queue| queue.may_transfer)
    }

    /// It is an I/O queue, and known to be its host's from now on.
    pub(super) fn begin_transfers(&mut self, capsule_data_max: u32) {
        if let Some(queue) = &mut self.queue {
            queue.may_transfer = true;
            self.stream.set_capsule_data_max(capsule_data_max);
        }
    }

    /// Whether a command of this id is under way.
    pub(super) fn has_command(&self, command: CommandId) -> bool {
        self.ids.contains(&command.0)
    }

    /// The command of this id, unless it is one of control, which has none.
    pub(super) fn flight_of(&self, command: CommandId) -> Option<FlightKey> {
        let position = self.ids.iter().position(|id| *id == command.0)?;
        self.flights.get(position).copied().flatten()
    }

    pub(super) fn add_command(&mut self, command: CommandId, flight: Option<FlightKey>) {
        self.ids.push(command.0);
        self.flights.push(flight);
    }

    pub(super) fn remove_command(&mut self, command: CommandId) {
        if let Some(position) = self.ids.iter().position(|id| *id == command.0) {
            self.ids.swap_remove(position);
            self.flights.swap_remove(position);
        }
    }

    /// The commands whose data was asked for.
    pub(super) fn soliciting(&self) -> impl Iterator<Item = FlightKey> {
        self.transfers.iter().filter_map(|transfer| transfer.flight)
    }

    /// Whether one more solicited transfer may be under way.
    pub(super) fn has_room_for_transfer(&self, transfers_max: usize) -> bool {
        self.transfers.len() < transfers_max.min(256)
            || self.transfers.iter().any(|transfer| transfer.flight.is_none())
    }

    /// A tag for a solicited transfer, if one more may be under way.
    pub(super) fn begin_transfer(&mut self, flight: FlightKey, transfers_max: usize) -> Option<TransferTag> {
        let free = self.transfers.iter().position(|transfer| transfer.flight.is_none());
        let index = match free {
            Some(index) => index,
            None if self.transfers.len() < transfers_max.min(256) => {
                self.transfers.push(Transfer::default());
                self.transfers.len() - 1
            }
            None => return None,
        };
        let transfer = self.transfers.get_mut(index)?;
        transfer.uses = transfer.uses.wrapping_add(1);
        transfer.flight = Some(flight);
        Some(TransferTag(u16::from(transfer.uses) << 8 | index as u16))
    }

    /// The command that a tag was made for, if it still waits for data.
    pub(super) fn transfer(&self, tag: TransferTag) -> Option<FlightKey> {
        let transfer = self.transfers.get(usize::from(tag.0 & 0xFF))?;
        if u16::from(transfer.uses) == tag.0 >> 8 { transfer.flight } else { None }
    }

    pub(super) fn end_transfer(&mut self, flight: FlightKey) {
        for transfer in self.transfers.iter_mut().filter(|transfer| transfer.flight == Some(flight)) {
            transfer.flight = None;
        }
    }

    /// Keeps account of what the peer takes of the output, after it took so many bytes.
    pub(super) fn taken(&mut self, now: Instant, count: usize) {
        let left = self.output.len();
        if left == 0 {
            (self.unsent_since, self.drain) = (None, None);
            return;
        }
        if count > 0 || self.unsent_since.is_none() {
            self.unsent_since = Some(now);
        }
        match &mut self.drain {
            Some(drain) if drain.left > count => drain.left -= count,
            _ => self.drain = Some(Drain { since: now, left }),
        }
    }

    /// Counts a command that is taken from the queue.
    pub(super) fn advance_head(&mut self) {
        if let Some(queue) = &mut self.queue {
            queue.head = if queue.head + 1 >= queue.size { 0 } else { queue.head + 1 };
        }
    }

    /// Puts a response into the output.
    pub(super) fn respond(&mut self, command: CommandId, status: Status, result: u64) {
        let (queue, head) = match &self.queue {
            // Without flow control the field says nothing (Base §3.3.3.2, SQHD).
            Some(queue) if queue.flow_control_off => (queue.identity.queue, u16::MAX),
            Some(queue) => (queue.identity.queue, queue.head),
            None => (QueueId::ADMIN, 0),
        };
        let entry = CompletionEntry::new(command, queue, head, status, result);
        let bytes = self.stream.framing().response(&entry);
        self.output.push(&bytes);
    }

    /// Puts data and, unless the data says it all, a response into the output.
    pub(super) fn respond_with_data(&mut self, command: CommandId, data: Data, result: u64) {
        let is_success = result == 0 && self.queue.as_ref().is_some_and(|queue| queue.flow_control_off);
        let bytes = data.bytes();
        let framing = self.stream.framing();
        let header = framing.data(&DataTransfer {
            command,
            tag: TransferTag(0),
            offset: 0,
            len: bytes.len() as u32,
            is_last: true,
            is_success,
        });
        let data_digest = framing.digests.data.then(|| digest(bytes));
        self.output.push(&header);
        match data {
            Data::Slice(slice, lease) => self.output.push_payload(slice, lease),
            Data::Shared(shared) => self.output.push_shared(shared),
            Data::Owned(bytes) => self.output.push_owned(bytes),
        }
        if let Some(data_digest) = data_digest {
            self.output.push(&data_digest);
        }
        if !is_success {
            self.respond(command, Status::SUCCESS, result);
        }
    }

    /// Asks for a command's data, all of it at once.
    pub(super) fn solicit(&mut self, command: CommandId, tag: TransferTag, len: u32) {
        let wanted = ReadyToTransfer { command, tag, offset: 0, len };
        let bytes = self.stream.framing().ready_to_transfer(&wanted);
        self.output.push(&bytes);
    }
}

/// What a command gives back.
pub(super) enum Data {
    Slice(Slice, Option<Lease>),
    Shared(Shared),
    Owned(Vec<u8>),
}

impl Data {
    pub(super) fn len(&self) -> usize {
        self.bytes().len()
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Slice(slice, _) => slice,
            Self::Shared(shared) => shared,
            Self::Owned(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::shares::Shares;
    use super::*;

    #[test]
    fn a_connection_that_says_nothing_is_small() {
        assert!(size_of::<Connection>() <= 768, "{} bytes", size_of::<Connection>());
    }

    #[test]
    fn a_tag_of_an_earlier_use_finds_nothing() {
        let holder = Shares::new(|_| 1).connection_from([10, 0, 0, 1].into());
        let mut connection = Connection::new(
            ConnectionId(1),
            Path::from(super::super::control::PortKey(1)),
            holder,
            Instant::default(),
            1,
        );
        let flight = FlightKey::from_token(ob_core::Token(5));
        let tags: Vec<TransferTag> = (0..3)
            .map(|_| {
                let tag = connection.begin_transfer(flight, 1).expect("there is room");
                assert!(connection.begin_transfer(flight, 1).is_none());
                assert_eq!(connection.transfer(tag), Some(flight));
                connection.end_transfer(flight);
                tag
            })
            .collect();
        assert!(tags.iter().all(|tag| connection.transfer(*tag).is_none()));
        assert!(tags[0] != tags[1] && tags[1] != tags[2]);
    }
}
