//! The reactor: io_uring, sockets, devices, clocks, doorbells.
//!
//! ```text
//!   services ─▶ Device, Net, Clock (ob-core)
//!                  ▲
//!   ┌──────────────┴───────────────────────────────────────────┐
//!   │ FileDevice  MemoryDevice  TcpNet  Monotonic               │   drivers
//!   │      └────────────┬──────────────────────┘                │
//!   │             Handle ─▶ Reactor::turn ◀─ IdlePolicy          │   one thread, one ring
//!   └───────────────────┬──────────────────────────────────────┘
//!                   io_uring        doorbell: futex words shared with the other half
//! ```
//!
//! A half's main loop asks its [`IdlePolicy`] whether to spin or sleep, calls [`Reactor::turn`], hands the
//! [`Event`]s to whoever they belong to, and polls its devices. Nothing here blocks except that one call.
//!
//! [`TcpNet`] asks its sockets for bytes when there are any. To have the kernel receive by itself, into buffers that lie
//! ready, was tried: it gains a call, costs a copy and was no faster (`docs/bench/nvme.md`).
//!
//! ```
//! use std::time::Duration;
//! use ob_io::{Config, Decision, Event, IdlePolicy, Reactor, SPIN_DEFAULT, Wait, available_cores};
//!
//! let mut reactor = Reactor::new(&Config::default())?;
//! let handle = reactor.handle();
//! let mut policy = IdlePolicy::new(SPIN_DEFAULT, available_cores(), 1);
//! let timer = handle.set_timer(handle.now() + Duration::from_millis(1))?;
//! let mut events = Vec::with_capacity(Config::default().events_max());
//! loop {
//!     let wait = match policy.decide(handle.now(), handle.next_timer()) {
//!         Decision::Spin => Wait::Poll,
//!         Decision::Sleep { until } => Wait::Until(until),
//!     };
//!     if reactor.turn(wait, &mut events) > 0 {
//!         policy.on_event(handle.now());
//!     }
//!     if events.drain(..).any(|event| event == Event::Timer(timer)) {
//!         break;
//!     }
//! }
//! # Ok::<(), ob_io::ReactorError>(())
//! ```
//!
//! This is one of the few homes of `unsafe`: the ring shares memory with the kernel, which keeps to no lifetime.
//! The rule that makes it safe is that an operation owns its [`ob_memory::Slice`] until the kernel has answered.

pub mod doorbell;

mod clock;
mod device;
mod direct;
mod idle;
mod reactor;
mod tcp;
mod timers;
mod waker;

pub use clock::{BootClock, MonotonicClock};
pub use device::{FileDevice, FileDeviceOptions, MemoryDevice, OpenError, Resize, ResizeOutcome, Space};
pub use direct::{DirectFile, DirectOp};
pub use idle::{Decision, IdlePolicy, SPIN_DEFAULT, available_cores};
pub use reactor::{Config, Event, Handle, Interest, Reactor, ReactorError, Readiness, Wait, WatchId};
pub use tcp::{TcpNet, end_when_silent};
pub use timers::TimerId;
pub use waker::Waker;
