//! Storage functions, as a client uses them from a shell: loaded into a target, listed, taken out, run once.
//!
//! ```text
//!   outboard pushdown load, ls, rm, run ── Session ── Carrier ─┬─ our initiator ── TCP ──▶ a card
//!                                                              └─ --device: the kernel's ──▶ the same
//! ```

mod carrier;
mod command;
mod error;
mod mounted;

pub use command::PushdownCommand;
pub(crate) use command::run;
pub use error::PushdownError;
