//! Volumes: disks that any NVMe/TCP initiator uses, kept compressed and three times on chunk servers.
//!
//! ```text
//!   initiator ─▶ card: payload stays ══ 64-byte command ══▶ host: where blocks lie, leases ◀──▶ metadata: MetadataStore
//!                  │ the same records three times
//!                  ▼ wire: Request, Reply
//!            chunk servers: append-only chunks
//! ```
//!
//! So far this crate has what the parts say to each other: [`wire`], the chunk protocol, and [`metadata`], what several machines
//! agree on. What it will be is in `docs/volumes.md`.

#![forbid(unsafe_code)]

pub mod metadata;
pub mod wire;
