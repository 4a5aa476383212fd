//! The tests of this crate that can share a process: one program is linked much faster than one for each file.

// A test that cannot go on should say where.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;
mod counts;
mod follow;
mod granting;
mod link_suite;
mod lives;
mod one_turn;
mod pair;
mod split;
mod split_rig;
mod strangers;
mod transactions;
mod transactions_rig;
mod turns;
