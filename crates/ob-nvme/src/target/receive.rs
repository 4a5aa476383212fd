//! From bytes to commands.

use ob_core::{ConnectionAction, Instant};
use ob_wire_nvme::command::IoOpcode;
use ob_wire_nvme::pdu::{DataTransfer, Layout, Pdu, PduError, Role};
use ob_wire_nvme::{QueueId, Status, SubmissionEntry};

use super::buffers::Loan;
use super::connection::{ConnectionKey, Stall};
use super::stream::{Payload, Peek, Purpose, Sink};
use super::{PAYLOAD_LEN_A_RECEIVE, RECEIVE_LEN_IN_TRANSFER, Target};
use crate::plant::{self, Bug};

/// Byte offsets in the header of H2CData, to be named in a terminate request.
const AT_FLAGS: u32 = 1;
const AT_COMMAND: u32 = 8;
const AT_TAG: u32 = 10;
const AT_OFFSET: u32 = 12;
const AT_LENGTH: u32 = 16;

/// What came with a command's capsule.
pub(super) enum CapsuleData {
    /// Nothing.
    None,
    /// Data.
    Loan(Loan),
    /// Data that the command has to fail for.
    Unusable(Status),
}

impl Target {
    /// Where the next bytes of a connection go: the rest of a payload that is being received (maybe empty), and what comes
    /// behind it. `None` while the connection is held up: read on after [`ConnectionAction::Resume`].
    pub fn receive_into(&mut self, key: ConnectionKey) -> Option<[&mut [u8]; 2]> {
        let slot = self.slots.get_mut(key.index as usize)?;
        let connection = slot.connection.as_deref_mut().filter(|_| slot.generation == key.generation)?;
        if connection.closing.is_some() {
            return Some([&mut [], &mut self.scratch]);
        }
        if connection.stall.is_some() {
            return None;
        }
        // Data that was asked for should not come here, where it has to be copied.
        let len = if connection.soliciting().next().is_some() { RECEIVE_LEN_IN_TRANSFER } else { usize::MAX };
        let most =
            if connection.may_transfer() { self.scratch.len() } else { self.config.control_receive_len };
        let len = len.min(most).min(self.scratch.len());
        let direct = connection.stream.direct().unwrap_or_default();
        if direct.len() > PAYLOAD_LEN_A_RECEIVE {
            // What comes behind that is payload, too.
            return Some([direct.get_mut(..PAYLOAD_LEN_A_RECEIVE)?, &mut []]);
        }
        Some([direct, self.scratch.get_mut(..len)?])
    }

    /// So many bytes were received into what [`Target::receive_into`] gave.
    pub fn received(&mut self, now: Instant, key: ConnectionKey, count: usize) {
        self.latest = now;
        self.counts.bytes_received += count as u64;
        let Some(connection) = self.connection_mut(key) else { return };
        if connection.closing.is_some() {
            return;
        }
        let filled = connection.stream.direct().map_or(0, |direct| direct.len()).min(count);
        connection.stream.filled(filled);
        let scratch = std::mem::take(&mut self.scratch);
        let mut input = scratch.get(..count - filled).unwrap_or_default();
        self.consume(now, key, &mut input);
        if !input.is_empty()
            && let Some(connection) = self.connection_mut(key)
            && connection.stall.is_some()
        {
            connection.held.extend_from_slice(input);
        }
        self.scratch = scratch;
    }

    /// Goes on with a connection that was held up.
    pub(super) fn resume(&mut self, now: Instant, key: ConnectionKey) {
        let Some(connection) = self.connection_mut(key) else { return };
        if connection.stall.take().is_none() {
            return;
        }
        let mut held = std::mem::take(&mut connection.held);
        let mut input = held.as_slice();
        self.consume(now, key, &mut input);
        let left = input.len();
        let Some(connection) = self.connection_mut(key) else { return };
        if connection.stall.is_some() {
            held.drain(..held.len() - left);
            connection.held = held;
        } else if connection.closing.is_none() {
            let net = connection.net;
            self.actions.push_back(ConnectionAction::Resume(net));
        }
    }

    /// Takes PDUs out of `input` until it is used up, or something holds them up.
    fn consume(&mut self, now: Instant, key: ConnectionKey, input: &mut &[u8]) {
        loop {
            let Some(connection) = self.connection_mut(key).filter(|connection| connection.closing.is_none())
            else {
                *input = &[];
                return;
            };
            if connection.stream.is_in_body() {
                let Some(payload) = connection.stream.feed(input) else { break };
                connection.within_since = None;
                self.payload(now, key, payload);
                continue;
            }
            match connection.stream.peek(input) {
                Ok(Peek::Partial) => break,
                Ok(Peek::Header(layout, pdu)) => match self.header(now, key, layout, pdu, input) {
                    Ok(true) => {}
                    // Time that the connection is held up by us is not the peer's.
                    Ok(false) => return,
                    Err(error) => return self.give_up(now, key, error, input),
                },
                Err(error) => return self.give_up(now, key, error, input),
            }
        }
        let Some(connection) = self.connection_mut(key) else { return };
        if connection.stream.is_within_pdu() {
            connection.within_since.get_or_insert(now);
            self.arm(now);
        }
    }

    /// Decides what becomes of a PDU by its header. `false` when it has to wait.
    fn header(
        &mut self,
        now: Instant,
        key: ConnectionKey,
        layout: Layout,
        pdu: Pdu,
        input: &mut &[u8],
    ) -> Result<bool, PduError> {
        let Some(connection) = self.connection_mut(key) else { return Ok(false) };
        match pdu {
            Pdu::IcRequest(request) => {
                let response = connection.stream.open(&request)?;
                connection.stream.take_header(&layout, input);
                connection.within_since = None;
                connection.output.push(&response.encode());
                self.touch(key);
                Ok(true)
            }
            Pdu::Termination(reason) => {
                tracing::debug!(?reason, "a host gave its connection up");
                self.end(now, key);
                Ok(false)
            }
            _ if !connection.stream.is_open() => Err(PduError::sequence()),
            Pdu::Command(entry) => Ok(self.command_header(now, key, layout, &entry, input)),
            Pdu::Data(transfer) => self.data_header(key, layout, &transfer, input),
            // What only a host receives is refused by its type already.
            Pdu::IcResponse(_) | Pdu::Response(_) | Pdu::ReadyToTransfer(_) => Err(PduError::sequence()),
        }
    }

    fn command_header(
        &mut self,
        now: Instant,
        key: ConnectionKey,
        layout: Layout,
        entry: &SubmissionEntry,
        input: &mut &[u8],
    ) -> bool {
        if let Some(stall) = self.find_stall(key) {
            self.hold_up(key, stall);
            return false;
        }
        let Some(connection) = self.connection(key) else { return false };
        if layout.data_len == 0 {
            if let Some(connection) = self.connection_mut(key) {
                connection.stream.take_header(&layout, input);
                connection.within_since = None;
            }
            self.command(now, key, entry, CapsuleData::None, 0);
            return true;
        }
        let is_compare = entry.opcode == IoOpcode::Compare.code()
            && connection.queue.as_ref().is_some_and(|queue| queue.identity.queue != QueueId::ADMIN);
        let sink = if is_compare {
            // A half of a fused pair may wait long for the other: it must not hold what every capsule needs.
            let block = self.buffers.for_compare(&connection.holder, layout.data_len);
            block.map_or((Sink::Nowhere, None), |block| (Sink::Slice(block.slice, 0), block.lease))
        } else {
            match self.buffers.for_capsule(&connection.holder, layout.data_len) {
                Some(block) => (Sink::Slice(block.slice, 0), block.lease),
                None => {
                    self.hold_up(key, Stall::CapsuleBuffer);
                    return false;
                }
            }
        };
        if let Some(connection) = self.connection_mut(key) {
            connection.stream.begin(layout, input, Purpose::Capsule(*entry), sink);
        }
        true
    }

    /// Why no further command can be taken from a connection now.
    fn find_stall(&self, key: ConnectionKey) -> Option<Stall> {
        let connection = self.connection(key)?;
        // An entry of a queue is free as soon as it is taken, so a host may have more commands under way than its queue has
        // entries: as many as MAXCMD says.
        let queue_len = connection.queue.as_ref().map_or(1, |queue| match queue.identity.queue {
            QueueId::ADMIN => usize::from(queue.size),
            _ => usize::from(self.control.config().queue_depth_max),
        });
        if connection.is_connecting {
            Some(Stall::Connecting)
        } else if connection.ids.len() >= queue_len {
            Some(Stall::QueueFull)
        } else if connection.unsent() >= self.unsent_max(connection) {
            Some(Stall::Unsent)
        } else {
            None
        }
    }

    fn hold_up(&mut self, key: ConnectionKey, stall: Stall) {
        self.counts.count_hold_up(stall);
        let is_exhausted = stall == Stall::CapsuleBuffer && self.buffers.capsules_are_scarce();
        self.counts.buffers_exhausted += u64::from(is_exhausted);
        let Some(connection) = self.connection_mut(key) else { return };
        connection.stall = Some(stall);
        connection.within_since = None;
        if stall == Stall::CapsuleBuffer {
            self.starving.push_back(key);
        }
    }

    fn data_header(
        &mut self,
        key: ConnectionKey,
        layout: Layout,
        transfer: &DataTransfer,
        input: &mut &[u8],
    ) -> Result<bool, PduError> {
        let flight_key = self
            .connection(key)
            .and_then(|connection| connection.transfer(transfer.tag))
            .ok_or(PduError::invalid(AT_TAG))?;
        let flight = self.flights.get_mut(flight_key).ok_or(PduError::invalid(AT_TAG))?;
        if flight.command != transfer.command {
            return Err(PduError::invalid(AT_COMMAND));
        }
        // Data comes in order: nothing twice, nothing left out.
        if transfer.offset != flight.received && !plant::is_planted(Bug::OffsetUnchecked) {
            return Err(PduError::out_of_range(AT_OFFSET));
        }
        let left = flight.transfer_len - flight.received;
        if transfer.len > left {
            return Err(PduError::out_of_range(AT_LENGTH));
        }
        if transfer.is_last && transfer.len < left {
            return Err(PduError::invalid(AT_FLAGS));
        }
        let sink = match flight.data.take() {
            Some(slice) => Sink::Slice(slice, transfer.offset as usize),
            None => Sink::Nowhere,
        };
        let purpose = Purpose::Transfer { flight: flight_key, len: transfer.len };
        if let Some(connection) = self.connection_mut(key) {
            connection.stream.begin(layout, input, purpose, (sink, None));
        }
        Ok(true)
    }

    fn payload(&mut self, now: Instant, key: ConnectionKey, payload: Payload) {
        self.counts.digest_errors += u64::from(!payload.is_sound);
        match payload.purpose {
            Purpose::Capsule(entry) => {
                let data = match payload.slice.zip(payload.lease) {
                    None => CapsuleData::Unusable(Status::COMMAND_INTERRUPTED),
                    Some(_) if !payload.is_sound => CapsuleData::Unusable(Status::TRANSIENT_TRANSPORT_ERROR),
                    Some((slice, lease)) => CapsuleData::Loan(Loan { slice, lease: Some(lease) }),
                };
                let len = payload.len as u32;
                self.command(now, key, &entry, data, len);
            }
            Purpose::Transfer { flight: flight_key, len } => {
                let Some(flight) = self.flights.get_mut(flight_key) else { return };
                flight.data = payload.slice;
                flight.received += len;
                if !payload.is_sound {
                    flight.failed = Some(Status::TRANSIENT_TRANSPORT_ERROR);
                }
                if flight.received == flight.transfer_len {
                    if let Some(connection) = self.connection_mut(key) {
                        connection.end_transfer(flight_key);
                        // One more may be asked for, and no buffer has to come back for that.
                        if connection.is_hungry {
                            self.fed_at = None;
                        }
                    }
                    self.data_ready(now, flight_key);
                }
            }
        }
    }

    /// Tells a peer why its connection is given up, and gives it up.
    fn give_up(&mut self, now: Instant, key: ConnectionKey, error: PduError, input: &mut &[u8]) {
        self.counts.protocol_errors += 1;
        let Some(connection) = self.connection_mut(key) else { return };
        tracing::debug!(%error, "a connection is given up");
        let bytes = error.encode(Role::Target, connection.stream.quote(input));
        connection.output.push(&bytes);
        *input = &[];
        self.close_gently(now, key);
    }
}
