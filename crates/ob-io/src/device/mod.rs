//! Devices: a file or raw disk, memory, and any of them with faults.
//!
//! ```text
//!   FileDevice    ─▶ reactor ─▶ io_uring ─▶ O_DIRECT file or disk
//!   MemoryDevice  ─▶ bytes of this process
//!   FaultyDevice  ─▶ errors, torn writes, delays, crashes ─▶ any other device
//! ```

mod faulty;
mod file;
mod memory;
mod open;

pub use faulty::{Delay, Fault, FaultPlan, FaultyDevice, OpKind, Scripted};
pub use file::{FileDevice, FileDeviceOptions};
pub use memory::MemoryDevice;
pub use open::{OpenError, Space};
