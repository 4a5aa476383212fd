//! A key-value store that Redis clients use, cut between card and host (DDS §9.2).
//!
//! ```text
//!   client ─▶ resp: Cutter, Request ─▶ command: what it reads and changes ─┬─▶ the card's own answer
//!                                                                          └─▶ store (host): Store::apply
//!   store:  index (where each key lies) ─▶ log (an open group, groups in memory, parts) ─▶ LogOp ─▶ files of the card
//!                                                                               Answer ─▶ resp: Replies ─▶ client
//! ```
//!
//! Both halves know requests by one table, [`command`]: the card decides by it which keys to invalidate before it forwards a
//! request, and the store which keys to lock before it applies one. The log's layout is in `docs/format/kv-log.md`, the
//! order that keeps reads of both halves right in `docs/linearizable-offload.md`.

#![forbid(unsafe_code)]

pub mod card;
pub mod command;
pub mod host;
mod plant;
pub mod resp;
pub mod store;

/// Milliseconds before its expiry from which on a key is the host's affair, and the most by which a reply of the host may be made later,
/// by its clock, than what the card was told of it. `examples/programs/kv_get.c` has it as `EXPIRY_MARGIN`.
pub const EXPIRY_MARGIN_MS: u64 = 100;

/// What both halves have to have in common, as they tell each other when they meet.
fn terms(needs_password: bool) -> u32 {
    u32::from(needs_password)
}
