//! Trees in BPF-KV's format, from a shell: made of lines, and asked over a card's file, a mounted one or a local one.
//!
//! ```text
//!   lines ── make ──▶ local file ── files put, or cp to a mount ──▶ get, range, aggregate ── BTree ─┬─ requests ──▶ a card
//!                                                                                                  └─ ordinary reads
//! ```

mod ask;
mod command;
mod make;
mod place;
mod values;

pub use command::BtreeCommand;
pub(super) use command::run;
