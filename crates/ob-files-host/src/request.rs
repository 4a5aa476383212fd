//! What a group has out: operations, the ids of their requests, and what answers make of them.

use ob_core::{NodeId, NodeKind};
use ob_ring::{Claimed, Outgoing, PushError};
use ob_wire_link::files::{NodeInfo, ResponseHeader, SpaceInfo};

use crate::buffer::Buffer;
use crate::control::Control;
use crate::deliver::{Deliver, Finished};
use crate::error::{Error, Result};
use crate::lane::{CONTROL_LANE, Limits};
use crate::transfer::Transfer;

/// The id of a request: the slot of its operation, its place among the operation's parts, and how often the slot was used
/// before. An answer that comes late, or twice, or from a card that makes ids up, finds no operation by it.
///
/// ```text
///   63                    24 23   20 19            0
///   │ generation             │ place │ slot        │
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestId(u64);

const SLOT_BITS: u32 = 20;
const PLACE_BITS: u32 = 4;

impl RequestId {
    pub(crate) fn new(slot: u32, generation: u64) -> Self {
        Self(generation << (SLOT_BITS + PLACE_BITS) | u64::from(slot) & ((1 << SLOT_BITS) - 1))
    }

    pub(crate) fn from_wire(id: u64) -> Self {
        Self(id)
    }

    /// The id of the request at this place.
    pub(crate) fn at(self, place: usize) -> u64 {
        self.0 | (place as u64 & ((1 << PLACE_BITS) - 1)) << SLOT_BITS
    }

    pub(crate) fn slot(self) -> u32 {
        (self.0 & ((1 << SLOT_BITS) - 1)) as u32
    }

    pub(crate) fn place(self) -> usize {
        (self.0 >> SLOT_BITS & ((1 << PLACE_BITS) - 1)) as usize
    }

    /// As many bits of the slot's generation as an id has.
    pub(crate) fn generation(self) -> u64 {
        self.0 >> (SLOT_BITS + PLACE_BITS)
    }
}

/// What an operation found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Nothing,
    Count(usize),
    Node(NodeInfo),
    Space(SpaceInfo),
    Entries(Vec<DirectoryEntry>),
    Page(DirectoryPage),
}

/// A name in a directory, and what it stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// The name: any bytes but `/` and 0.
    pub name: Vec<u8>,
    /// The file or directory.
    pub node: NodeId,
    /// Which of the two.
    pub kind: NodeKind,
    /// Bytes of a file; entries of a directory.
    pub size: u64,
}

impl DirectoryEntry {
    /// The name for people; bytes that are no UTF-8 are replaced.
    #[must_use]
    pub fn name_text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.name)
    }
}

/// Some of a directory's entries, in the byte order of their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectoryPage {
    /// The entries.
    pub entries: Vec<DirectoryEntry>,
    /// Whether there are more behind the last one.
    pub more: bool,
}

/// The bytes that came with an answer.
pub(crate) trait Source {
    fn len(&self) -> usize;

    /// Copies bytes from `offset` on; how many there were.
    fn copy(&self, offset: usize, into: &mut [u8]) -> usize;
}

impl Source for Claimed<'_> {
    fn len(&self) -> usize {
        self.payload_len()
    }

    #[inline]
    fn copy(&self, offset: usize, into: &mut [u8]) -> usize {
        self.payload(offset, into)
    }
}

/// What came of sending.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sending {
    /// Nothing is left to be sent before an answer comes.
    Done,
    /// The ring is full, and something is left.
    Full,
    /// The ring is over.
    Closed,
    /// It can never be sent.
    Failed(Error),
}

/// What an answer means for its operation.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Other answers are due.
    Waiting,
    /// There is more to send.
    Send,
    /// That was the last one.
    Done(Result<Value>),
    /// Nobody asked.
    Stray,
}

/// What an operation does.
pub(crate) enum Work {
    Transfer(Transfer),
    Control(Box<Control>),
}

/// Something that the application asked for, with everything that belongs to it.
pub(crate) struct Operation {
    pub(crate) work: Work,
    pub(crate) buffer: Buffer,
    pub(crate) deliver: Deliver,
    /// The group's queue has a note to go on with it.
    pub(crate) queued: bool,
}

impl Operation {
    pub(crate) fn transfer(transfer: Transfer, buffer: Buffer, deliver: Deliver) -> Self {
        Self { work: Work::Transfer(transfer), buffer, deliver, queued: false }
    }

    pub(crate) fn control(control: Control, deliver: Deliver) -> Self {
        Self { work: Work::Control(Box::new(control)), buffer: Buffer::Empty, deliver, queued: false }
    }

    pub(crate) fn lane(&self) -> usize {
        match &self.work {
            Work::Transfer(transfer) => transfer.lane(),
            Work::Control(_) => CONTROL_LANE,
        }
    }

    /// Whether answers are due.
    pub(crate) fn is_out(&self) -> bool {
        match &self.work {
            Work::Transfer(transfer) => transfer.is_out(),
            Work::Control(control) => control.is_out(),
        }
    }

    /// It is done, so.
    pub(crate) fn into_finished(self, result: Result<Value>) -> Finished {
        Finished { result, buffer: self.buffer, deliver: self.deliver }
    }

    /// Sends what can be sent now.
    pub(crate) fn send(
        &mut self,
        id: RequestId,
        limits: Limits,
        push: impl FnMut(Outgoing<'_>) -> std::result::Result<(), PushError>,
    ) -> Sending {
        match &mut self.work {
            Work::Transfer(transfer) => transfer.send(id, limits, &self.buffer, push),
            Work::Control(control) => control.send(id, limits, push),
        }
    }

    /// Takes an answer.
    pub(crate) fn answer(
        &mut self,
        place: usize,
        response: &ResponseHeader,
        rest: &[u8],
        source: &impl Source,
    ) -> Step {
        match &mut self.work {
            Work::Transfer(transfer) => transfer.answer(place, response, source, &mut self.buffer),
            Work::Control(control) => control.answer(place, response, rest, source),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_hold_slot_place_and_generation_apart() {
        for (slot, place, generation) in [(0, 0, 0), (1, 2, 3), (0xf_ffff, 15, (1 << 40) - 1)] {
            let id = RequestId::from_wire(RequestId::new(slot, generation).at(place));
            assert_eq!((id.slot(), id.place(), id.generation()), (slot, place, generation));
        }
    }
}
