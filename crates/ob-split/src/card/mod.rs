//! The card's half of a port.
//!
//! ```text
//!   Front ─ Arrived ─▶ messages, by handle ══ HEADERS ══▶ host
//!                          │                  ◀═ PLANS ══
//!                          ▼
//!                      plans under way ─ Task ─▶ Engines
//!                          │    ▲ Dialect: where to, which header, is the reply good
//!                          ▼    │
//!                      channels ◀──────────────▶ peers
//!                          │
//!                          └ DONE ═══════════════════════▶ host, and then the answer ─▶ Front
//! ```

mod bulk;
mod call;
mod channel;
mod compute;
mod config;
mod coverage;
mod dialect;
mod flight;
mod front;
mod gate;
mod granted;
mod listen;
mod memory;
mod messages;
mod outbox;
mod peers;
mod port;
mod post;
mod records;
mod retained;
#[cfg(test)]
mod retained_tests;
mod run;
mod service;
mod slots;
mod split_dialect;

pub use call::{CALL_LEN, Call};
pub use channel::ChannelKey;
pub use config::{IntakeConfig, PortConfig};
pub use dialect::{
    Area, BEFORE_MAX, Channels, Dialect, Encoding, Found, Judgement, KEPT_BEFORE_MAX, Message, Moved, Name,
    Outcome, PARTS_MAX, PIECE_LEN, PIECES_MAX, Part, Parts, Pieces, Place, Posted, Reject, Told, Words,
    ZEROS_MAX,
};
pub use front::{Arrived, Front, FrontAnswer, FrontKey, NoFront};
pub use gate::SharedGate;
pub use port::Hostile;
pub use records::{RECORD_BLOCK_LEN, RetainedCounts};
pub use service::{PortCounts, SplitCard};
pub use split_dialect::SplitDialect;
