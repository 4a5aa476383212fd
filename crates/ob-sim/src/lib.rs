//! The same traits as the drivers, in virtual time, with faults; and the scenarios that use them.
//!
//! ```text
//!   seed ──▶ Rng ──┬──▶ SimNet               ob_core::Net       delays, resets, cuts, deaths
//!                  ├──▶ SimDisk              ob_core::Device    lost caches, torn writes, errors, rot
//!                  ├──▶ SimDma               ob_core::Dma       everything the contract leaves open
//!                  └──▶ scenario ◀── World: events by virtual time, lives of nodes
//!                          │
//!                          └──▶ Trace: one seed, one hash;  a failure names the command that repeats it
//! ```
//!
//! [`history`] judges what clients saw of a store, simulated or real: whether it is linearizable. [`Block`] judges what was found on a
//! device. [`Dump`] keeps what an earlier build wrote.
//!
//! One thread, no real time, no real I/O: a run depends on its seed and on the program alone. The parts that are
//! simulated are the ones that ship; they are stepped, not modelled (after quinn's and TigerBeetle's manner).
//!
//! A driver here does exactly what its trait's documentation promises and, where that leaves a choice, takes all of
//! them in turn. So a protocol that relies on more than the contract fails here before it fails on somebody's
//! hardware.

#![forbid(unsafe_code)]

mod block;
mod clock;
mod disk;
mod dma;
mod dump;
pub mod history;
pub mod link;
mod net;
mod progress;
pub mod ring;
mod rng;
mod scenario;
mod trace;
mod world;

pub use block::Block;
pub use clock::SimClock;
pub use disk::{Discarding, DiskImage, DiskPlan, DiskStats, SimDisk};
pub use dma::{DmaPlan, DmaStats, SimDma};
pub use dump::{Dump, DumpError};
pub use net::{NetPlan, NetStats, Network, SimNet};
pub use progress::Progress;
pub use rng::{PerMillion, Rng};
pub use scenario::{
    Failed, Failure, Passed, Report, Scenario, check_determinism, run_seed, run_seeds, run_traced,
};
pub use trace::Trace;
pub use world::{Address, Death, NodeId, World};
