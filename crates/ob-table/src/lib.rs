//! The card's cache table (DDS §6): which keys the card can answer, and with what.
mod batch;
mod config;
mod displace;
mod memory;
mod overflow;
mod placement;
pub mod plant;
mod state;
mod sync;
mod table;
mod words;
mod writer;

pub use batch::BATCH_MAX;
pub use config::{ConfigError, TableConfig, WhenFull};
pub use table::Table;
pub use words::{Hit, ITEM_BYTES_MAX, Item, KEY_BYTES_MAX, Key, Stamp, WordError};
pub use writer::{Counts, Refused, TableWriter};
