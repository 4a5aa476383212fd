//! Commands that use an NVMe/TCP target from outside, ours or any other: for machines without Linux' own initiator, and
//! for looking at a target without it.
//!
//! ```text
//!   outboard nvme discover, list, id, read, write ── Target ── ob_nvme::initiator ── TCP ──▶ a card, or any target
//! ```

mod command;
mod connect;
mod discovery;
mod error;
mod identity;
mod local;
mod transfer;

pub(crate) use command::run;
pub use command::{NvmeCommand, SubsystemOptions};
pub(crate) use connect::connect;
pub use error::InitiatorError;
