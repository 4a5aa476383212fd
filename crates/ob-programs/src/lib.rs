//! The programs that a card has.
//!
//! ```text
//!   object ─▶ Library::load, in the Workshop ─▶ loader ─▶ verifier ─▶ compiler ─▶ Object ─▶ whoever runs it
//!                │ limits of the tenant                                              Meter: its share of a core
//!                └─▶ LoadRefusal: what is wrong, in words for its author
//! ```
//!
//! Programs are others': what one of them costs, in memory, in time to compile and in time to run, is its tenant's and nobody else's.
//! `docs/programs.md` says what is allowed.

#![forbid(unsafe_code)]

mod library;
mod limits;
mod meter;
mod object;
mod workshop;

pub use library::Library;
pub use limits::Limits;
pub use meter::Meter;
pub use object::{Entry, LoadRefusal, Object, Tally};
pub use workshop::{Workshop, WorkshopError};
