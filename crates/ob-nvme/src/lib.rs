//! NVMe over TCP: the target that a stock kernel connects to, and an initiator.
//!
//! ```text
//!   bytes ─▶ Stream ─▶ command ─┬─▶ Control   fabrics, admin, reservations      ─▶ answer ─▶ Stream ─▶ bytes
//!  (driver)  (PDUs)             ├─▶ Io ─▶ DeviceOp ─▶ (driver) ─▶ DeviceCompletion ─▶ answer
//!                               └─▶ ForeignCommand ─▶ (service) ─▶ foreign_done ─▶ answer
//! ```
//!
//! Everything is a state machine: bytes, completions and the time go in, bytes and device operations come out. Sockets
//! and devices are the driver's, through [`ob_core::Net`] and [`driver::Store`], so the whole target runs unchanged on
//! sockets and in the simulator.

#![forbid(unsafe_code)]

pub mod auth;
pub mod driver;
pub mod initiator;
mod plant;
pub mod target;
