//! One TCP connection, a queue, as the host sees it.
//!
//! ```text
//!   submit ─▶ slot ─▶ CapsuleCmd ───────────────────▶ transmit ─▶ bytes
//!              │  ▲      H2CData ◀── R2T ──┐
//!              │  └─ C2HData ──────────────┤ received ◀── receive_into ◀── bytes
//!              └──▶ next_completion ◀──────┘ CapsuleResp, or the last C2HData with SUCCESS
//!
//!   Opening ── ICResp ──▶ Open ── anything that cannot be ──▶ Ended
//! ```
//!
//! The target is taken as hostile. A command has a slot, and its identifier carries how often the slot was used, so
//! that a second answer finds nothing. Data comes in order and without gaps, as every target sends it, and goes straight
//! into the buffer that was made when the command was submitted: nothing that arrives makes anything grow.

mod input;
mod output;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io::IoSlice;
use std::time::Duration;

use ob_core::Instant;
use ob_wire_nvme::command::FABRICS_OPCODE;
use ob_wire_nvme::pdu::{ADMIN_CAPSULE_DATA_MAX, DataAlignment, Digests, Framing, IcRequest, PduError, Role};
use ob_wire_nvme::{CommandId, DataPointer, Status, SubmissionEntry};

use super::error::{Cause, ProtocolError};
use super::payload::Payload;
use input::Input;
use output::Output;

/// Bits of a command identifier that name the slot; the rest counts its uses.
const SLOT_BITS: u32 = 10;
/// Most commands that one connection has under way. One less than the bits allow: `FFFFh` names no command.
pub const DEPTH_MAX: u16 = (1 << SLOT_BITS) - 1;

/// What a connection is made with.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionConfig {
    /// Digests to ask for; the target has to agree.
    pub digests: Digests,
    /// Commands under way at most, 1 to [`DEPTH_MAX`].
    pub depth: u16,
    /// Bytes that are received at once, besides data that goes to its own buffer.
    pub receive_len: usize,
    /// How long a command may take.
    pub command_timeout: Duration,
}

/// The data of a command.
#[derive(Clone, Debug, Default)]
pub enum Data {
    /// None.
    #[default]
    None,
    /// Sent along, or when the controller asks for it.
    ToController(Payload),
    /// So many bytes are expected.
    ToHost(u32),
    /// These go along in the capsule, where they have to fit, and so many bytes are expected.
    Both(Payload, u32),
}

impl Data {
    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::ToController(payload) => payload.len(),
            Self::ToHost(len) => *len as usize,
            Self::Both(payload, len) => payload.len().max(*len as usize),
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A command to be sent. Its identifier and data pointer are filled in.
#[derive(Clone, Debug)]
pub struct Submission<K> {
    /// Comes back with the completion.
    pub key: K,
    /// The command.
    pub entry: SubmissionEntry,
    /// Its data.
    pub data: Data,
    /// Whether the controller may succeed with less data than was offered.
    pub may_be_short: bool,
    /// Whether the command may take for ever, as an Asynchronous Event Request does.
    pub is_patient: bool,
}

/// A command that was answered.
#[derive(Debug, PartialEq, Eq)]
pub struct Completion<K> {
    /// From the submission.
    pub key: K,
    /// How it ended.
    pub status: Status,
    /// DW0 and DW1.
    pub result: u64,
    /// What the controller sent.
    pub data: Vec<u8>,
}

enum Phase {
    Opening,
    Open { framing: Framing, data_max: u32 },
    Ended(Cause),
}

/// A command under way.
struct Active<K> {
    key: K,
    due: Option<Instant>,
    may_be_short: bool,
    /// As long as was asked for; filled up to `received`.
    incoming: Vec<u8>,
    received: usize,
    has_last: bool,
    /// Asked for up to `requested`; empty when the capsule brought it.
    outgoing: Payload,
    requested: usize,
    /// Whether data that was asked for is not yet sent.
    is_transferring: bool,
}

struct Slot<K> {
    uses: u16,
    active: Option<Active<K>>,
}

/// One connection.
pub struct Connection<K> {
    config: ConnectionConfig,
    capsule_data_max: u32,
    phase: Phase,
    slots: Vec<Slot<K>>,
    free: Vec<u16>,
    input: Input,
    output: Output,
    completions: VecDeque<Completion<K>>,
    next_check: Instant,
}

impl<K> Connection<K> {
    /// A connection whose ICReq waits to be sent.
    #[must_use]
    pub fn new(config: ConnectionConfig, now: Instant) -> Self {
        let depth = config.depth.clamp(1, DEPTH_MAX);
        let request = IcRequest { alignment: DataAlignment::DWORD, digests: config.digests, r2t_max: 1 };
        let mut output = Output::default();
        output.push_header(request.encode());
        Self {
            config,
            capsule_data_max: ADMIN_CAPSULE_DATA_MAX,
            phase: Phase::Opening,
            slots: (0..depth).map(|_| Slot { uses: 0, active: None }).collect(),
            free: (0..depth).rev().collect(),
            input: Input::new(config.receive_len),
            output,
            completions: VecDeque::new(),
            next_check: now + config.command_timeout,
        }
    }

    /// Data that a command's capsule may carry, other than a fabrics command's: what Identify said.
    pub fn set_capsule_data_max(&mut self, len: u32) {
        self.capsule_data_max = len;
    }

    /// Whether commands can be submitted.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open { .. })
    }

    /// Why the connection ended.
    #[must_use]
    pub fn ended(&self) -> Option<&Cause> {
        match &self.phase {
            Phase::Ended(cause) => Some(cause),
            Phase::Opening | Phase::Open { .. } => None,
        }
    }

    /// Commands under way.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Commands that can be submitted at once.
    #[must_use]
    pub fn room(&self) -> usize {
        if self.is_open() { self.free.len() } else { 0 }
    }

    /// Sends a command, or hands it back when there is no room.
    pub fn submit(&mut self, now: Instant, submission: Submission<K>) -> Result<(), Submission<K>> {
        let Phase::Open { framing, .. } = self.phase else { return Err(submission) };
        let Some(index) = self.free.pop() else { return Err(submission) };
        let Submission { key, entry, data, may_be_short, is_patient } = submission;
        let Some(slot) = self.slots.get_mut(usize::from(index)) else {
            // The list of free slots names only slots that exist.
            return Err(Submission { key, entry, data, may_be_short, is_patient });
        };
        slot.uses = slot.uses.wrapping_add(1);
        let command = command_id(index, slot.uses);
        let mut entry = SubmissionEntry { command_id: command.0.into(), ..entry };
        let in_capsule_max = match entry.opcode {
            FABRICS_OPCODE => ADMIN_CAPSULE_DATA_MAX,
            _ => self.capsule_data_max,
        };
        let mut active = Active {
            key,
            due: (!is_patient).then(|| now + self.config.command_timeout),
            may_be_short,
            incoming: Vec::new(),
            received: 0,
            has_last: false,
            outgoing: Payload::default(),
            requested: 0,
            is_transferring: false,
        };
        let mut capsule = Payload::default();
        match data {
            Data::ToHost(len) if len > 0 => {
                entry = entry.with_data(DataPointer::Transport { len });
                active.incoming = vec![0; len as usize];
            }
            Data::ToController(payload) if !payload.is_empty() => {
                // A payload that does not fit into the field is refused long before it comes here.
                let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
                if len <= in_capsule_max {
                    entry = entry.with_data(DataPointer::InCapsule { offset: 0, len });
                    capsule = payload;
                } else {
                    entry = entry.with_data(DataPointer::Transport { len });
                    active.outgoing = payload;
                }
            }
            Data::Both(payload, expected) => {
                let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
                entry = entry.with_data(DataPointer::InCapsule { offset: 0, len });
                (capsule, active.incoming) = (payload, vec![0; expected as usize]);
            }
            Data::None | Data::ToHost(_) | Data::ToController(_) => {}
        }
        self.output.push_header(framing.command(&entry, capsule.len() as u32));
        self.output.push_payload(capsule, framing.digests.data, None);
        slot.active = Some(active);
        Ok(())
    }

    /// Where received bytes go: into the one first, then into the other.
    pub fn receive_into(&mut self) -> [&mut [u8]; 2] {
        let scratch = self.input.space();
        let direct = self.input.direct.as_ref().and_then(|data| {
            let active = self.slots.get_mut(usize::from(data.index))?.active.as_mut()?;
            active.incoming.get_mut(data.at..data.at + data.left)
        });
        [direct.unwrap_or_default(), self.input.buffer.get_mut(scratch).unwrap_or_default()]
    }

    /// So many bytes were put there.
    pub fn received(&mut self, count: usize) {
        if let Err((error, wrong)) = self.take(count) {
            self.give_up(error, &wrong);
        }
    }

    /// Fills `into` with what is to be sent; says how many of them.
    pub fn transmit<'output>(&'output self, into: &mut [IoSlice<'output>]) -> usize {
        self.output.transmit(into)
    }

    /// Whether there is anything to send.
    #[must_use]
    pub fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// So many bytes were sent.
    pub fn sent(&mut self, count: usize) {
        let slots = &mut self.slots;
        self.output.sent(count, |command| {
            if let Some(active) = find(slots, command) {
                active.is_transferring = false;
            }
        });
    }

    /// The last words of a connection that ended: a terminate request, after a protocol error.
    #[must_use]
    pub fn farewell(&self) -> Vec<u8> {
        if self.ended().is_some() { self.output.to_bytes() } else { Vec::new() }
    }

    /// The next command that was answered.
    pub fn next_completion(&mut self) -> Option<Completion<K>> {
        self.completions.pop_front()
    }

    /// The connection is no more, for a reason that only the driver knows.
    pub fn end(&mut self, cause: Cause) {
        if self.ended().is_none() {
            self.phase = Phase::Ended(cause);
            self.output = Output::default();
        }
    }

    /// Looks for commands that take too long.
    pub fn tick(&mut self, now: Instant) {
        if now < self.next_check {
            return;
        }
        self.next_check = now + self.config.command_timeout / 8;
        let is_late = |slot: &Slot<K>| {
            slot.active.as_ref().is_some_and(|active| active.due.is_some_and(|due| due <= now))
        };
        if self.slots.iter().any(is_late) {
            self.end(Cause::CommandTimeout);
        }
    }

    /// When [`Connection::tick`] is due, if anything is under way.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        (self.in_flight() > 0 && self.ended().is_none()).then_some(self.next_check)
    }

    /// The keys of the commands that were never answered.
    pub fn lost(self) -> impl Iterator<Item = K> {
        self.slots.into_iter().filter_map(|slot| slot.active).map(|active| active.key)
    }

    fn give_up(&mut self, cause: Cause, wrong: &[u8]) {
        if self.ended().is_some() {
            return;
        }
        match &cause {
            Cause::Protocol(error) => {
                self.output.farewell(error.pdu_error().encode(Role::Initiator, wrong));
            }
            _ => self.output = Output::default(),
        }
        self.phase = Phase::Ended(cause);
    }
}

impl ProtocolError {
    /// What the target is told.
    fn pdu_error(self) -> PduError {
        const AT_COMMAND: u32 = 8;
        const AT_OFFSET: u32 = 12;
        match self {
            Self::Pdu(error) => error,
            Self::Sequence | Self::Controller | Self::DataDigest | Self::MissingData => PduError::sequence(),
            Self::Digests => PduError::unsupported(11),
            Self::UnknownCommand(_) => PduError::invalid(AT_COMMAND),
            Self::UnexpectedData | Self::UnexpectedTransfer => PduError::out_of_range(AT_OFFSET),
            Self::TransferLimit => PduError::limit(AT_COMMAND),
        }
    }
}

fn command_id(index: u16, uses: u16) -> CommandId {
    CommandId(index | uses << SLOT_BITS)
}

/// The slot's number, if the command is the one that has the slot now.
fn place<K>(slots: &[Slot<K>], command: CommandId) -> Option<u16> {
    let index = command.0 & ((1 << SLOT_BITS) - 1);
    let slot = slots.get(usize::from(index))?;
    (slot.active.is_some() && command_id(index, slot.uses) == command).then_some(index)
}

fn find<K>(slots: &mut [Slot<K>], command: CommandId) -> Option<&mut Active<K>> {
    let index = place(slots, command)?;
    slots.get_mut(usize::from(index))?.active.as_mut()
}
