//! Devices: a file or raw disk, and memory.
//!
//! ```text
//!   FileDevice    ─▶ reactor ─▶ io_uring ─▶ O_DIRECT file or disk
//!   MemoryDevice  ─▶ bytes of this process
//! ```

mod file;
mod memory;
mod open;

pub use file::{FileDevice, FileDeviceOptions, Resize, ResizeOutcome};
pub use memory::MemoryDevice;
pub use open::{OpenError, Space};
