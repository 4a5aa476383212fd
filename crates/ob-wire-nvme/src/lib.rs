//! What an NVMe/TCP target and an initiator say to each other, byte by byte.
//!
//! ```text
//!   stream ──▶ pdu ──┬─▶ command ──┬─▶ fabrics ──▶ auth        (Connect, properties, who is who)
//!   of bytes         │   64 bytes  ├─▶ identify, log, feature  (admin queue)
//!                    │             ├─▶ io                      (I/O queues, reservations)
//!                    │             └─▶ pushdown                (I/O queues, storage functions: a vendor's commands)
//!                    └─▶ completion, 16 bytes ──▶ status
//! ```
//!
//! Two kinds of types. *Layouts* have exactly the bytes of a table in a specification: any bytes are a layout, so reading
//! one cannot fail, and each field's offset is asserted at compile time. *Values* (what a `parse` returns) hold
//! only what is legal; behind a `parse` nothing is checked again. Nothing here does I/O, keeps state or panics.
//!
//! Sections are those of NVM Express Base 2.0 ("Base"), NVM Command Set 1.0 ("NVM") and NVMe over TCP Transport 1.0
//! ("TCP").

#![forbid(unsafe_code)]

#[macro_use]
mod layout;

pub mod auth;
pub mod command;
pub mod fabrics;
pub mod feature;
pub mod id;
pub mod identify;
pub mod io;
pub mod log;
pub mod pdu;
pub mod pushdown;
pub mod status;
pub mod text;

#[cfg(test)]
mod command_tests;
#[cfg(test)]
mod fabrics_tests;
#[cfg(test)]
mod feature_tests;
#[cfg(test)]
mod testing;

pub use command::{CompletionEntry, DataPointer, SubmissionEntry};
pub use id::{CommandId, ControllerId, NamespaceId, QueueId, TransferTag};
pub use layout::UnknownCode;
pub use status::Status;
