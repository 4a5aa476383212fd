//! The tests of this crate that can share a process: one program is linked much faster than one for each file.

// A test that cannot go on should say where.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod associations;
mod chains;
mod earlier_builds;
mod fairness;
mod foreign;
mod foreign_ends;
mod foreign_loans;
mod foreign_model;
mod host;
mod hostile;
mod initiator;
mod io;
mod lifetime;
mod long;
mod loopback;
mod model;
mod peer;
mod pieces;
mod retained;
mod support;
mod turn;
