//! What the target says, byte by byte.

use std::ops::Range;

use ob_wire_nvme::pdu::{
    DIGEST_LEN, DataAlignment, DataDigest, DataTransfer, Digests, Framing, HEADER_MAX, IcResponse, Pdu,
    Progress, ReadyToTransfer, ReceiveRules, Role, TERMINATION_DATA_MAX, receive,
};
use ob_wire_nvme::{CommandId, CompletionEntry, Status};

use super::{Completion, Connection, Phase, find, place};
use crate::initiator::error::{Cause, ProtocolError};

/// The header of what was wrong, to be quoted.
type Wrong = (Cause, Vec<u8>);

/// Bytes that were received and not yet understood.
pub(super) struct Input {
    pub(super) buffer: Vec<u8>,
    filled: Range<usize>,
    /// Data that is being received.
    pub(super) direct: Option<Direct>,
}

/// Data on its way into a command's buffer. While there is some, no other byte waits in front of it.
pub(super) struct Direct {
    pub(super) index: u16,
    pub(super) at: usize,
    pub(super) left: usize,
    command: CommandId,
    digest: Option<DataDigest>,
    is_last: bool,
    is_success: bool,
}

impl Input {
    pub(super) fn new(len: usize) -> Self {
        // A header, its padding and its digest have to fit, whatever the caller thinks.
        Self { buffer: vec![0; len.max(4 * HEADER_MAX)], filled: 0..0, direct: None }
    }

    /// Where bytes can be received; what waits is moved to the begin first.
    pub(super) fn space(&mut self) -> Range<usize> {
        let len = self.filled.len();
        if self.filled.start > 0 {
            self.buffer.copy_within(self.filled.clone(), 0);
        }
        self.filled = 0..len;
        len..self.buffer.len()
    }

    fn waiting(&self) -> &[u8] {
        self.buffer.get(self.filled.clone()).unwrap_or_default()
    }

    fn consume(&mut self, count: usize) {
        self.filled.start = (self.filled.start + count).min(self.filled.end);
    }
}

impl<K> Connection<K> {
    /// Takes bytes that were received: first into the command's buffer, then into ours.
    pub(super) fn take(&mut self, count: usize) -> Result<(), Wrong> {
        if self.ended().is_some() {
            return Ok(());
        }
        let mut count = count;
        if let Some(direct) = &mut self.input.direct {
            let len = count.min(direct.left);
            if let (Some(digest), Some(active)) = (&mut direct.digest, find(&mut self.slots, direct.command))
            {
                digest.update(active.incoming.get(direct.at..direct.at + len).unwrap_or_default());
            }
            direct.at += len;
            direct.left -= len;
            count -= len;
        }
        let end = self.input.filled.end + count;
        self.input.filled.end = end.min(self.input.buffer.len());
        loop {
            let goes_on = if self.input.direct.is_some() {
                self.take_data().map_err(|error| (error.into(), Vec::new()))?
            } else {
                self.take_header()?
            };
            if !goes_on {
                return Ok(());
            }
        }
    }

    /// Copies data that lies in our buffer; at its end, checks the digest. Whether it went on.
    fn take_data(&mut self) -> Result<bool, ProtocolError> {
        let Some(direct) = &mut self.input.direct else { return Ok(true) };
        let waiting = self.input.buffer.get(self.input.filled.clone()).unwrap_or_default();
        if direct.left > 0 {
            let Some(bytes) = waiting.get(..direct.left.min(waiting.len())).filter(|bytes| !bytes.is_empty())
            else {
                return Ok(false);
            };
            let active = find(&mut self.slots, direct.command);
            let into = active.and_then(|active| active.incoming.get_mut(direct.at..direct.at + bytes.len()));
            into.ok_or(ProtocolError::UnexpectedData)?.copy_from_slice(bytes);
            if let Some(digest) = &mut direct.digest {
                digest.update(bytes);
            }
            let len = bytes.len();
            direct.at += len;
            direct.left -= len;
            self.input.consume(len);
            return Ok(true);
        }
        if let Some(digest) = direct.digest {
            let Some(received) = waiting.get(..DIGEST_LEN) else { return Ok(false) };
            if !digest.matches(received) {
                return Err(ProtocolError::DataDigest);
            }
            self.input.consume(DIGEST_LEN);
        }
        self.finish_data()?;
        Ok(true)
    }

    fn finish_data(&mut self) -> Result<(), ProtocolError> {
        let Some(direct) = self.input.direct.take() else { return Ok(()) };
        let Some(active) = find(&mut self.slots, direct.command) else {
            return Err(ProtocolError::UnknownCommand(direct.command.0));
        };
        active.received = direct.at;
        active.has_last |= direct.is_last;
        if direct.is_success {
            self.complete(direct.command, Status::SUCCESS, 0)?;
        }
        Ok(())
    }

    /// Understands the next header, if it is there. Whether it was.
    fn take_header(&mut self) -> Result<bool, Wrong> {
        let waiting = self.input.waiting();
        if waiting.is_empty() {
            return Ok(false);
        }
        let digests = match &self.phase {
            Phase::Open { framing, .. } => framing.digests,
            Phase::Opening | Phase::Ended(_) => Digests::NONE,
        };
        let rules = ReceiveRules {
            role: Role::Initiator,
            digests,
            alignment: DataAlignment::DWORD,
            capsule_data_max: 0,
            // The command's own buffer is the limit.
            data_max: u32::MAX,
        };
        let wrong = |error: ProtocolError| (Cause::from(error), waiting.to_vec());
        let (layout, pdu) = match receive(waiting, &rules).map_err(|error| wrong(error.into()))? {
            Progress::Need(_) => return Ok(false),
            Progress::Header(layout, pdu) => (layout, pdu),
        };
        // The padding before the data counts as header. A terminate request may be cut short by the connection's end.
        let head_len = if let Pdu::Data(_) = pdu { layout.data_at } else { layout.head_len() };
        if waiting.len() < head_len {
            return Ok(false);
        }
        if let Pdu::Termination(termination) = pdu {
            return Err((Cause::Terminated(termination), Vec::new()));
        }
        // As much as a terminate request quotes; most PDUs are right and need none of it.
        let mut header = [0; TERMINATION_DATA_MAX];
        let quoted = head_len.min(header.len());
        header.iter_mut().zip(waiting.iter().take(quoted)).for_each(|(to, byte)| *to = *byte);
        self.input.consume(head_len);
        let quote = |error: ProtocolError| (error.into(), header.iter().copied().take(quoted).collect());
        self.understand(&pdu, digests.data).map_err(quote)?;
        Ok(true)
    }

    fn understand(&mut self, pdu: &Pdu, has_data_digest: bool) -> Result<(), ProtocolError> {
        match (&self.phase, pdu) {
            (Phase::Opening, Pdu::IcResponse(response)) => self.open(response),
            (Phase::Open { .. }, Pdu::Response(entry)) => self.response(entry),
            (Phase::Open { .. }, Pdu::Data(transfer)) => self.data(transfer, has_data_digest),
            (Phase::Open { framing, data_max }, Pdu::ReadyToTransfer(wanted)) => {
                let (framing, data_max) = (*framing, *data_max);
                self.ready_to_transfer(wanted, &framing, data_max)
            }
            _ => Err(ProtocolError::Sequence),
        }
    }

    fn open(&mut self, response: &IcResponse) -> Result<(), ProtocolError> {
        if response.digests != self.config.digests {
            return Err(ProtocolError::Digests);
        }
        let framing =
            Framing { role: Role::Initiator, digests: response.digests, alignment: response.alignment };
        self.phase = Phase::Open { framing, data_max: response.data_max };
        Ok(())
    }

    fn response(&mut self, entry: &CompletionEntry) -> Result<(), ProtocolError> {
        self.complete(entry.command(), entry.status(), entry.result())
    }

    fn data(&mut self, transfer: &DataTransfer, has_digest: bool) -> Result<(), ProtocolError> {
        let command = transfer.command;
        let index = place(&self.slots, command).ok_or(ProtocolError::UnknownCommand(command.0))?;
        let active = find(&mut self.slots, command).ok_or(ProtocolError::UnknownCommand(command.0))?;
        let (at, left) = (transfer.offset as usize, transfer.len as usize);
        let fits = at.checked_add(left).is_some_and(|end| end <= active.incoming.len());
        if at != active.received || !fits || active.has_last {
            return Err(ProtocolError::UnexpectedData);
        }
        self.input.direct = Some(Direct {
            index,
            at,
            left,
            command,
            digest: has_digest.then(DataDigest::new),
            is_last: transfer.is_last,
            is_success: transfer.is_success,
        });
        Ok(())
    }

    fn ready_to_transfer(
        &mut self,
        wanted: &ReadyToTransfer,
        framing: &Framing,
        data_max: u32,
    ) -> Result<(), ProtocolError> {
        let command = wanted.command;
        let active = find(&mut self.slots, command).ok_or(ProtocolError::UnknownCommand(command.0))?;
        if active.is_transferring {
            return Err(ProtocolError::TransferLimit);
        }
        let (offset, len) = (wanted.offset as usize, wanted.len as usize);
        let end = offset.checked_add(len).filter(|end| *end <= active.outgoing.len());
        let end = end.filter(|_| offset == active.requested).ok_or(ProtocolError::UnexpectedTransfer)?;
        active.requested = end;
        active.is_transferring = true;
        let mut at = offset;
        while at < end {
            let next = end.min(at.saturating_add(data_max as usize));
            let transfer = DataTransfer {
                command,
                tag: wanted.tag,
                offset: at as u32,
                len: (next - at) as u32,
                is_last: next == end,
                is_success: false,
            };
            self.output.push_header(framing.data(&transfer));
            let ends = (next == end).then_some(command);
            self.output.push_payload(active.outgoing.part(at..next), framing.digests.data, ends);
            at = next;
        }
        Ok(())
    }

    fn complete(&mut self, command: CommandId, status: Status, result: u64) -> Result<(), ProtocolError> {
        let unknown = ProtocolError::UnknownCommand(command.0);
        let index = place(&self.slots, command).ok_or(unknown)?;
        let slot = self.slots.get_mut(usize::from(index)).ok_or(unknown)?;
        // A command that is answered wrongly stays, so that its owner hears of the connection's end.
        let is_whole = slot.active.as_ref().is_some_and(|active| {
            active.received == active.incoming.len()
                && active.requested == active.outgoing.len()
                && !active.is_transferring
                || active.may_be_short
        });
        if status.is_success() && !is_whole {
            return Err(ProtocolError::MissingData);
        }
        let mut active = slot.active.take().ok_or(unknown)?;
        self.free.push(index);
        active.incoming.truncate(active.received);
        let data = if status.is_success() { active.incoming } else { Vec::new() };
        self.completions.push_back(Completion { key: active.key, status, result, data });
        Ok(())
    }
}
