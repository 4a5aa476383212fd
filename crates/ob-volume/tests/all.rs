//! The tests of this crate that can share a process: one program is linked much faster than one for each file.

// A test that cannot go on should say where.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod card_encodings;
mod chunk_bounds;
mod chunk_crash;
mod chunk_directory;
mod chunk_hostile;
mod chunk_lives;
mod chunk_requests;
mod chunk_rot;
mod support;
mod tier_commands;
mod tier_failover;
mod tier_faults;
mod tier_log;
mod tier_model;
mod tier_rig;
mod tier_servers;
mod tier_troubles;
