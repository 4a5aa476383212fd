//! `LOOK`: what a chunk server tells at length goes into memory of the host, once it was verified.

use ob_core::{Units, layout};
use ob_format::volume::{ENTRY_LEN, RECORD_UNITS_MAX, STORED_MAX, TRIM_RANGES_MAX};
use ob_split::wire::{ChannelId, HEADER_LEN, Handle, PlanEntry, Register, Slot, Step};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::{ANSWER, ArgumentsError, PostedPlan, id, scratch};
use crate::wire::{Request, RequestMessage};

/// Bytes of the arguments.
pub(super) const LOOK_LEN: usize = 80;
/// Bytes that one `LOOK` brings at most: a slot of an area has room for them.
pub const LOOK_BYTES_MAX: u32 = STORED_MAX;
/// The step of `LOOK` that asks the server, as completions count them.
pub const LOOK_FETCH_STEP: u32 = 1;
/// Most entries, or chunks, that are asked for at once: more have no room.
pub const LOOK_ENTRIES_MAX: u32 = (LOOK_BYTES_MAX - CRC_LEN) / ENTRY_LEN as u32;
/// What lists end with.
const CRC_LEN: u32 = 4;

layout!(LookBody, LOOK_LEN, { header: [u8; HEADER_LEN], at: U64, room: U32, reserved: U32 });

/// A `READ`, `LIST` or `CHUNKS` whose answer goes to the host: of a read the payload of the record that it begins with, decoded; of
/// lists all that comes, with their checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Who is asked.
    pub channel: ChannelId,
    /// What.
    pub request: Request,
    /// Where in the card's area it goes.
    pub at: u64,
    /// How many bytes have room there.
    pub room: u32,
}

impl Look {
    /// Bytes that the server's reply has at most.
    #[must_use]
    pub const fn reply_len_max(&self) -> u32 {
        match self.request {
            Request::Read { len, .. } => len,
            _ => self.room,
        }
    }

    /// Whether it reads a record.
    #[must_use]
    pub const fn is_read(&self) -> bool {
        matches!(self.request, Request::Read { .. })
    }

    /// What an entry says; nothing if it has another length.
    pub(super) fn decode(entry: &PlanEntry<'_>) -> Option<Result<Self, &'static str>> {
        let body = LookBody::ref_from_bytes(entry.arguments).ok()?;
        if entry.argument != 0 || body.reserved.get() != 0 {
            return Some(Err("a look that is counted"));
        }
        Some(Self::of(entry.slot, body))
    }

    fn of(slot: Slot, body: &LookBody) -> Result<Self, &'static str> {
        let message = RequestMessage::decode(&body.header).map_err(|_| "no request of chunk servers")?;
        if message.payload_len != 0 || message.tag != 0 {
            return Err("a request with a tag, or a payload");
        }
        let (request, room, at) = (message.request, body.room.get(), body.at.get());
        let needed = match request {
            Request::Read { len, .. } if len <= RECORD_UNITS_MAX.0 * Units::LEN => Some(1),
            // The first record is told with all its ranges, whatever the most.
            Request::List { most, .. } => needed(most.max(TRIM_RANGES_MAX as u32)),
            Request::Chunks { most, .. } => needed(most),
            _ => None,
        };
        let has_room = needed.is_some_and(|needed| needed <= room) && room <= LOOK_BYTES_MAX;
        if !has_room || at.checked_add(room.into()).is_none() {
            return Err("something to look at that has no room");
        }
        Ok(Self { channel: ChannelId(slot.0), request, at, room })
    }
}

const fn needed(entries: u32) -> Option<u32> {
    match entries.checked_mul(ENTRY_LEN as u32) {
        Some(bytes) => bytes.checked_add(CRC_LEN),
        None => None,
    }
}

/// Of what was fetched goes on what was verified.
pub(super) fn steps() -> Vec<Step> {
    let from = scratch();
    let into = Register::new(3).unwrap_or(ANSWER);
    vec![Step::Fetch { into: from }, Step::Decode { from, into }, Step::ToHost { from: into }]
}

/// Names, places and lengths of the arguments' fields.
#[cfg(test)]
pub(super) const FIELDS: &[(&str, usize, usize)] = LookBody::FIELDS;

impl PostedPlan {
    /// What a chunk server tells at length, for the host. The handle is the host's own, from [`HOST_HANDLES`](super::HOST_HANDLES) on.
    ///
    /// # Errors
    ///
    /// When no card would take it.
    pub fn look(handle: Handle, look: &Look) -> Result<Self, ArgumentsError> {
        let message = RequestMessage { tag: 0, payload_len: 0, request: look.request };
        let illegal = ArgumentsError::Illegal { plan: id::LOOK, what: "no request of chunk servers" };
        let header = message.encode().map_err(|_| illegal)?;
        let body = LookBody { header, at: look.at.into(), room: look.room.into(), reserved: 0.into() };
        let (slot, arguments) = (Slot(look.channel.0), body.as_bytes().to_vec());
        Self { plan: id::LOOK, argument: 0, slot, handle, arguments }.checked()
    }
}
