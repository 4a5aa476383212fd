//! The two rings that DDS §8.5 measures the progress ring against. For comparison only: `outboard bench ring` runs
//! them, nothing else does.
//!
//! - [`lock`]: host threads take a lock for each message; the card's end is the progress ring's own, so that only
//!   the way host threads agree differs.
//! - [`farm`]: a flag a message, as in FaRM: the card polls the next message's flag by DMA and clears it by DMA.

pub mod farm;
pub mod lock;
