//! The progress ring of DDS §4.1: messages between many threads of the host and one thread of the card, through
//! memory that only the host touches directly.
//!
//! ```text
//!      host threads (many)                                   the card (single)
//!   ┌───────────────────────┐     ┌── request ring ──┐     ┌──────────────────────┐
//!   │ HostSender::push      │ ──▶ │ progress tail    │ ──▶ │ CardReceiver → Batch │ ──▶ service
//!   └───────────────────────┘     │ head     data    │ DMA └──────────────────────┘
//!   ┌───────────────────────┐     ┌── response ring ─┐     ┌──────────────────────┐
//!   │ HostReceiver::receive │ ◀── │ progress head    │ ◀── │ CardSender::reserve, │ ◀── service
//!   └───────────────────────┘     │ tail     data    │ DMA │ commit, step         │
//!                                 └──────────────────┘     └──────────────────────┘
//! ```
//!
//! The protocol, its memory layout and what each side may believe are in `docs/wire/ring.md`. Both rings are one
//! mechanism seen from two sides: the many side *claims* and *settles* (`many.rs`), the single side reads
//! progress and claim in one ordered transfer and moves its *bound* (`single.rs`).
//!
//! The card's half is a state machine over [`ob_core::Dma`]: `step` submits the next transfer, `complete` takes a
//! finished one. It runs unchanged on shared memory, on a modelled PCIe, over TCP, in the simulator and under
//! loom. [`LocalDma`] is the `Dma` of a card that can reach the host's memory by itself.
//!
//! Beside the rings a group may have *areas* for bulk: [`CardSender::transfer`] moves bytes between them and card memory,
//! in order with the messages that name them, in any order of completion; the host copies with [`HostAreas`].
//!
//! [`baseline`] holds the two rings the paper measures against.
//!
//! All raw memory is behind [`ob_memory::Region`], so that this crate needs no `unsafe`.

#![forbid(unsafe_code)]

pub mod baseline;
mod batch;
mod bulk;
mod card_receive;
mod card_send;
mod host_areas;
mod host_receive;
mod host_send;
#[cfg(any(test, feature = "testing"))]
pub mod hostile;
mod local_dma;
mod many;
pub mod plant;
mod service;
mod single;

pub use batch::{Batch, Message, MessageRef};
pub use bulk::{BULK_MAX, Bulk, BulkDone, BulkRefusal, RefusedBulk};
pub use card_receive::{CardReceiver, Received};
pub use card_send::{CardSender, Reservation, ReserveError};
pub use host_areas::{AreaError, HostAreas};
pub use host_receive::{Claimed, HostReceiver, ReceiveError};
pub use host_send::{HostSender, Outgoing, PushError};
pub use local_dma::{LocalDma, UNPOLLED_BYTES_MAX};
pub use many::{CardBell, Closed, SleepTicket};
pub use service::{CardService, GroupKey};
pub use single::Armed;

use ob_core::DmaError;
use ob_wire_link::ring::MessageError;

/// Why the card gave a ring up. Every one of these closes the group and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// The pointers cannot be.
    #[error("progress {progress}, claim {claim} and bound {bound} cannot be")]
    Pointers {
        /// As read.
        progress: u64,
        /// As read.
        claim: u64,
        /// The card's own.
        bound: u64,
    },
    /// A message cannot be.
    #[error("the message at position {position} cannot be: {error}")]
    Message {
        /// Where in the ring.
        position: u64,
        /// What is wrong with it.
        error: MessageError,
    },
    /// A transfer failed.
    #[error("a transfer failed: {0}")]
    Dma(#[from] DmaError),
    /// The ring was given up before.
    #[error("the ring is closed")]
    Closed,
    /// The service behind the ring will have nothing to do with what the host has said.
    #[error("the service has refused what it was told")]
    Refused,
}
