//! Splitting messages (SmartDS §4): of each message the header goes to host memory and the payload stays in card memory, and
//! what becomes of the payload the host says by plans.
//!
//! ```text
//!   peer ──▶ header, payload ─▶ card ══ HEADERS ══▶ host: looks at headers
//!                                │  ◀══ PLANS ═════ (compress, send to three, merge their answers, answer)
//!                                └════ DONE ══════▶
//! ```
//!
//! [`wire`] has the bytes between the halves, [`card`] the card's half, [`host`] the host's, [`engine`] what computes on card memory, and
//! [`ledger`] the places of areas. What it is all for is in `docs/split.md`.

#![forbid(unsafe_code)]

pub mod card;
pub mod engine;
pub mod host;
pub mod ledger;
mod plant;
pub mod wire;
