//! Splitting messages (SmartDS §4): of each message the header goes to host memory and the payload stays in card memory, and
//! what becomes of the payload the host says by plans.
//!
//! ```text
//!   peer ──▶ header, payload ─▶ card ══ HEADERS ══▶ host: looks at headers
//!                                │  ◀══ PLANS ═════ (compress, send to three, merge their answers, answer)
//!                                └════ DONE ══════▶
//! ```
//!
//! So far this crate has the bytes of it: [`wire`]. What it will be is in `docs/split.md`.

#![forbid(unsafe_code)]

pub mod wire;
