//! Plans that the host's layer `Split` posts of its own, and how those of its users are posted; and what the card puts into what is sent.

use super::header::HEADER_LEN;
use super::plan::{ENTRY_LEN_MIN, PlanId};

/// Plans of this layer's own have numbers from here on; those of its users are below.
pub const OWN_PLANS: u8 = 252;
/// A message with a payload to one channel: `slot` is the channel; behind the entry a place and the header.
pub const SEND: PlanId = PlanId(252);
/// A header to one channel.
pub const SEND_HEADER: PlanId = PlanId(253);
/// Compresses memory into other memory: `argument` is the effort; behind the entry a place, the other's handle, and 4 reserved bytes.
pub const COMPRESS: PlanId = PlanId(254);
/// Sums memory: behind the entry a place, the sum of what lies before, and 4 reserved bytes.
pub const CHECKSUM: PlanId = PlanId(255);

/// Bytes of a place: where in the memory that the handle names, and how many.
pub const PLACE_LEN: usize = 8;
/// Bytes of the entries.
pub(crate) const SEND_LEN: u8 = ENTRY_LEN_MIN + (PLACE_LEN + HEADER_LEN) as u8;
pub(crate) const SEND_HEADER_LEN: u8 = ENTRY_LEN_MIN + HEADER_LEN as u8;
pub(crate) const TASK_LEN: u8 = ENTRY_LEN_MIN + PLACE_LEN as u8 + 8;

/// Bytes of the channels that a user's plan sends to: four of 2 bytes, 0 behind the last.
pub const PEERS_LEN: usize = 8;
/// Bytes of an entry of a user's plan: `argument` is the effort, `slot` what the message is answered with if not with bytes, and behind
/// the entry there are the channels and the header.
pub const USER_LEN: u8 = ENTRY_LEN_MIN + (PEERS_LEN + HEADER_LEN) as u8;

/// In `flags` of what a user's plan sends: the payload is a block of LZ4.
pub const PACKED: u16 = 1 << 15;
/// What a port answers by itself to a message whose payload is longer than its `payload_max`.
pub const OVERSIZE: u16 = u16::MAX;
