//! The card's files as the binary sees them: the device that they lie on, and the commands that use them.
//!
//! ```text
//!   outboard card ─── device::mount ──▶ FilesService ◀── rings ── ob_files_host::Session ◀── outboard files ls, put, …
//!                         │
//!                         ▼
//!                      device  ◀── device::check ── outboard files check (no card may run)
//! ```

mod check;
mod command;
mod device;
mod error;
mod get;
mod names;
mod put;
mod remote;

pub use command::FilesCommand;
pub use device::{CardDevice, FilesDeviceError, Formatted};
pub(crate) use device::{
    DeviceOf, DeviceWanted, Mounted, flush_device, machine_memory, mount, open_patiently, put_in_place,
    put_or_replace, unfinished_path,
};
pub use error::FilesError;
pub(crate) use remote::{transfer_bar, unfinished_name};

pub(crate) use command::run;
