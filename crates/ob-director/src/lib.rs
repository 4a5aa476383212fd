//! The traffic director (DDS §5): splits clients' connections between the card and the host.
//!
//! ```text
//!              ┌────────────────────────── Director ──────────────────────────┐
//!   Net ─────▶ │ input ─▶ cut, predicate ─┬─ Card ─▶ Engine ─▶ Files           │
//!    ▲         │                          └─ Host ─▶ invalidate, stamp ─▶ HostPort ──▶ host
//!    └──────── │ output ◀─ replies in order ◀─── pending ◀────────────────── HostPort ◀── host
//!              └──────────────────────────────────────────────────────────────┘
//! ```
//!
//! [`Director`] is the core: it has no socket, no clock and no ring. [`DirectorDriver`] drives it over a [`ob_core::Net`], and
//! [`ring`] joins it to a group of rings. What makes the answers of both halves one order is `docs/linearizable-offload.md`, and
//! what is said to the host is `docs/wire/stream.md`.

#![forbid(unsafe_code)]

mod clock;
mod connection;
mod counts;
mod director;
mod driver;
mod host;
mod input;
mod output;
mod plant;
mod process;
pub mod ring;
mod signature;
mod stream;
mod time;

pub use connection::ConnectionKey;
pub use counts::DirectorCounts;
pub use director::{Director, DirectorConfig};
pub use driver::{DirectorDriver, Turn};
pub use host::{HostEvent, HostFrame, HostPort};
pub use ob_core::Now;
pub use signature::{Flow, FlowPattern, Protocol, Signature};
