//! The tests of this crate that can share a process: one program is linked much faster than one for each file.

// A test that cannot go on should say where.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod clock_set;
mod clock_told;
mod cold;
mod commands;
mod damage;
mod earlier_builds;
mod files_heard;
mod lengths;
mod model;
mod revisit;
mod rounds;
mod scan;
mod space;
mod support;
