//! What the two halves of a port say to each other, and how messages of peers begin (`docs/wire/split.md`).
//!
//! ```text
//!   peers          Header (64 bytes), payload                                     header
//!   host ─▶ card   FromHost: HELLO, PLANS, DEFINE, CHANNEL, SET, GATE, MEMORY     message, with Definitions of plan
//!   card ─▶ host   FromCard: WELCOME, HEADERS, DONE, CHANNEL_IS, BROKEN, …        message
//! ```
//!
//! Both halves distrust the other: `decode` takes any bytes, and what it returns holds only legal values. What depends on what
//! was said before (is there such a handle, slot, channel; was so much granted) is left to who receives it; but plans are known
//! by their definitions, which say how long they are.

mod control;
mod entries;
mod header;
mod message;
mod own;
mod plan;

#[cfg(test)]
mod doc_tests;
#[cfg(test)]
mod tests;

pub use control::{
    ACCEPTED_FROM, Broken, Channel, ChannelId, ChannelIs, ChannelState, ChannelWhat, Gate, MEMBERS_MAX,
    Memory, Noted, Set, SetWhat,
};
pub use entries::{
    Completion, CompletionStatus, DESCRIPTOR_AT, Descriptor, Engine, Handle, HeaderEntry, Hello, OF_HOST,
    RefusedCode, Slot, Welcome,
};
pub use header::{COMMON_LEN, HEADER_LEN, Header, HeaderError, REPLY};
pub use message::{
    CardMessage, Done, DoneEntries, ENGINES_MAX, Entries, Entry, FromCard, FromHost, HostMessage, INLINE_MAX,
    MESSAGE_LEN, MessageBuilder, MessageError, PlanEntries, PlanEntry, REPLY_PAYLOAD_MAX, kind,
};
pub use own::{
    CHECKSUM, COMPRESS, OVERSIZE, OWN_PLANS, PACKED, PEERS_LEN, PLACE_LEN, SEND, SEND_HEADER, USER_LEN,
};
pub(crate) use own::{SEND_HEADER_LEN, SEND_LEN, TASK_LEN};
pub use plan::{
    Answers, Definition, Definitions, ENTRY_LEN_MIN, Otherwise, Plan, PlanError, PlanId, Register, STEP_LEN,
    STEPS_MAX, Step,
};

pub use ob_wire_link::SPLIT_SERVICE;

/// Version of all of it.
pub const VERSION: u16 = 1;
