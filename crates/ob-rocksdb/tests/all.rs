//! The tests of this crate that can share a process: one program is linked much faster than one for each file. Those that bugs are
//! planted for are in `agree`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod damage;
mod endless;
mod live;
mod out_of_order;
mod plans;
mod recycled;
mod support;
mod vanish;
mod version_6;
