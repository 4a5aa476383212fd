//! Memory that is handed around: between services, devices, sockets and DMA, and between the two halves.
//!
//! ```text
//!   Pool  ──take──▶ Slice ─┐                      the card's own memory:
//!   Mirror ─take──▶ Slice ─┼─▶ device, socket, DMA   one owner a byte, no copy,
//!                     │    └──drop──▶ back home       no allocation after start-up
//!                   share
//!                     └──▶ Shared, Shared, …           many readers, nobody writes any more
//!
//!   Region: memory that the *other* half can write at any moment; reached by 8-byte words
//!           and by copies, never by reference.
//! ```
//!
//! [`Slice`] is how a buffer travels: whoever holds it is the only one who can touch its bytes, so an operation
//! in flight (a device read, a transfer) takes the slice along and gives it back with its completion. That makes
//! zero-copy I/O safe in crates that forbid `unsafe`. What is complete and wanted in several places becomes a [`Shared`]; an operation
//! that only reads takes a [`Source`], which is either.
//!
//! This crate stands below `ob-core` because the traits there pass slices around. It is one of the few homes of
//! `unsafe`; Miri runs over all of it, and under `cfg(loom)` a [`Region`] records every access so that loom can
//! explore the rings built on it.

mod arena;
mod mirror;
mod pool;
#[cfg(not(loom))]
mod region;
#[cfg(loom)]
#[path = "region_loom.rs"]
mod region;
mod shared;
mod source;

pub use arena::{ArenaSpan, Slice};
pub use mirror::Mirror;
pub use pool::Pool;
pub use region::Region;
pub use shared::Shared;
pub use source::Source;

/// The size and alignment that registered memory is laid out in: one page, which is also at least the block of
/// any device that can be opened with `O_DIRECT`.
pub const PAGE: usize = 4096;

/// A full fence between earlier stores and later loads of this thread.
///
/// Sleeping and waking across the link is the one place that needs it: each side stores its own word, fences,
/// then loads the other side's.
pub fn full_fence() {
    #[cfg(not(loom))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    #[cfg(loom)]
    loom::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// An acquire fence, which loom knows of.
pub fn acquire_fence() {
    #[cfg(not(loom))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
    #[cfg(loom)]
    loom::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
}

/// A release fence, which loom knows of.
pub fn release_fence() {
    #[cfg(not(loom))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
    #[cfg(loom)]
    loom::sync::atomic::fence(std::sync::atomic::Ordering::Release);
}

/// A full fence directly after an atomic read-modify-write.
///
/// On x86 a locked instruction already is one, and a second costs as much as the whole push of a small message,
/// so there only the compiler is held back.
pub fn full_fence_after_rmw() {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    full_fence();
}
