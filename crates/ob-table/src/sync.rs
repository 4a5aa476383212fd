//! The atomics of this crate: the standard ones, or loom's, and how large a bucket is with either.

pub(crate) use std::sync::atomic::Ordering;

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, fence};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, fence};

/// Slots of a bucket: as many as have room for their states in the bucket's first cache line.
#[cfg(not(loom))]
pub(crate) const SLOTS: usize = 5;
/// Words of a key.
#[cfg(not(loom))]
pub(crate) const KEY_WORDS: usize = 4;
/// Words of an item.
#[cfg(not(loom))]
pub(crate) const ITEM_WORDS: usize = 3;
/// How often a reader or an invalidator looks again when the writer moved things meanwhile.
#[cfg(not(loom))]
pub(crate) const ATTEMPTS: usize = 16;

// Loom explores every interleaving: a slot more multiplies the time and adds no new case.
#[cfg(loom)]
pub(crate) const SLOTS: usize = 1;
#[cfg(loom)]
pub(crate) const KEY_WORDS: usize = 1;
#[cfg(loom)]
pub(crate) const ITEM_WORDS: usize = 1;
#[cfg(loom)]
pub(crate) const ATTEMPTS: usize = 2;
