//! The reactor: io_uring, sockets, devices, clocks, doorbells.
//!
//! ```text
//!   services ─▶ Device, Net, Clock (ob-core)
//!                  ▲
//!   ┌──────────────┴───────────────────────────────────────────┐
//!   │ FileDevice  MemoryDevice  FaultyDevice  TcpNet  Monotonic │   drivers
//!   │      └────────────┬──────────────────────┘                │
//!   │             Handle ─▶ Reactor::turn ◀─ IdlePolicy          │   one thread, one ring
//!   └───────────────────┬──────────────────────────────────────┘
//!                   io_uring        doorbell: futex words shared with the other half
//! ```
//!
//! A half's main loop asks its [`IdlePolicy`] whether to spin or sleep, calls [`Reactor::turn`], hands the
//! [`Event`]s to whoever they belong to, and polls its devices. Nothing here blocks except that one call.
//!
//! This is one of the few homes of `unsafe`: the ring shares memory with the kernel, which keeps to no lifetime.
//! The rule that makes it safe is that an operation owns its [`ob_memory::Slice`] until the kernel has answered.

pub mod doorbell;

mod clock;
mod device;
mod idle;
mod reactor;
mod tcp;
mod timers;
mod waker;

pub use clock::MonotonicClock;
pub use device::{
    Delay, Fault, FaultPlan, FaultyDevice, FileDevice, FileDeviceOptions, MemoryDevice, OpKind, OpenError, Scripted,
    Space,
};
pub use idle::{Decision, IdlePolicy, SPIN_DEFAULT, available_cores};
pub use reactor::{Config, Event, Handle, Interest, Reactor, ReactorError, Readiness, Wait, WatchId};
pub use tcp::TcpNet;
pub use timers::TimerId;
pub use waker::Waker;
