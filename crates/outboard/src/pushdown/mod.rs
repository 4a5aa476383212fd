//! Storage functions, as a client uses them from a shell: loaded into a target, listed, taken out, run once.
//!
//! ```text
//!   outboard pushdown load, ls, rm, run ── Session ── our initiator ── TCP ──▶ a card
//! ```

mod command;

pub(crate) use command::run;
pub use command::{PushdownCommand, PushdownError};
