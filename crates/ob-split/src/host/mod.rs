//! The host's half: what was split off messages is looked at here, and what becomes of the rest is said.
//!
//! ```text
//!   who decides ── entries ──▶ Port ─ Outbox ─ messages ─▶ HostEnds ══ request ring ══▶ card
//!              ◀── events ───   └──── Inbox ◀─ messages ──    │    ◀══ response ring ══
//!                             believes what was asked for     ├─ RingEnds: a group of the link
//!                                                             └─ QueueEnds: one process, tests
//! ```
//!
//! [`Port`] is the lower layer, which a service such as a tier of volumes uses: it has entries of [`wire`](crate::wire) in and out.
//! [`Split`] is the paper's API (SmartDS, Table 2) above it: memory, channels, and an event for each thing that is posted.

mod channels;
#[cfg(test)]
mod doc_tests;
mod ends;
mod events;
mod handles;
mod memory;
mod outbox;
mod port;
mod queues;
mod split;

pub use ends::{HostEnds, RingEnds, Sleeper, Taken, Ticket};
pub use events::{CardTask, Completion, Event, Incoming, NoMemory, SplitError, SplitFailure};
pub use memory::{CardMemory, CardRange, HostMemory};
pub use port::{Port, PortError, PortEvent, PortOptions, PostError};
pub use queues::{QueueCard, QueueEnds, QueueSizes, queues};
pub use split::{Split, arguments, place};

pub use crate::wire::{CHECKSUM, COMPRESS, OWN_PLANS, SEND, SEND_HEADER};
