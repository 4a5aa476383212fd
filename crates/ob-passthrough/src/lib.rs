//! What a client of pushdown needs of a stock Linux kernel, 6.1 or later, whose files lie on a mounted NVMe/TCP namespace.
//!
//! ```text
//!   a file ──▶ lease::LeaseKeeper ──▶ Lease           nobody writes it, or we hear of it before he may
//!     │                                 │ is_held, before and after
//!     └─────▶ extents::Extents          ▼
//!              where its bytes lie ──▶ nvme::{RingPassthrough, IoctlPassthrough} ──▶ /dev/ngXnY ──▶ the card
//! ```
//!
//! A kernel without changes has no versions of extents (BPF-oF §4.2.1 adds them). In their place stands a read lease: while it is
//! held nobody has the file open for writing, so its extents stay; a writer's `open` waits until the holder has let go. The order
//! is always the same: open, lease, map ([`extents::Extents::of`] writes back first), submit, look at the lease again, and look
//! at the map again where [`extents::Extents::can_be_remapped`] says so. What leases do not cover, and what is done about it, is
//! in `docs/leases.md`.
//!
//! This is a home of `unsafe`: commands carry addresses of buffers, which are owned by the operation until the kernel has
//! answered, and leases are calls that only libc has.

pub mod extents;
pub mod lease;
pub mod nvme;

mod plant;
mod system;

pub use system::System;
