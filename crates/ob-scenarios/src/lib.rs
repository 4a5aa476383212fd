//! Simulated stories of the services: each runs a service as it ships, in virtual time, beside a model of what it
//! promises.
//!
//! ```text
//!   seed ──▶ plan ──▶ hosts ── rings ──▶ service ──▶ SimDisk     (ob-sim: time, faults, losses of power)
//!                       │                                 │
//!                       └── every request and answer ──▶ model ◀── what is there after a crash
//! ```
//!
//! Scenarios use services and the simulator, so they stand below both.

#![forbid(unsafe_code)]

pub mod files;
pub mod kv;
pub mod nvme;
pub mod pushdown;
pub mod volumes;
