//! Volumes: disks that any NVMe/TCP initiator uses, kept compressed and three times on chunk servers.
//!
//! ```text
//!   initiator ─▶ card: payload stays ══ 64-byte command ══▶ host: where blocks lie, leases ◀──▶ metadata: MetadataStore
//!                  │ the same records three times
//!                  ▼ wire: Request, Reply
//!            chunk servers: append-only chunks
//! ```
//!
//! [`wire`] is the chunk protocol, [`chunk`] the server that speaks it, [`tier`] decides, [`plans`] is what that asks of the card, [`card`]
//! what the card makes of it, [`press`] what a host makes of payloads that it is to see, and [`metadata`] what several machines agree on. What the rest will be is in `docs/volumes.md`.

#![forbid(unsafe_code)]

pub mod card;
pub mod chunk;
pub mod effort;
pub mod metadata;
pub mod plans;
mod plant;
pub mod press;
pub mod tier;
pub mod wire;
