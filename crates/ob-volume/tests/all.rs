//! The tests of this crate that can share a process: one program is linked much faster than one for each file.

// A test that cannot go on should say where.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod card_encodings;
mod card_maintenance;
mod chunk_bounds;
mod chunk_crash;
mod chunk_directory;
mod chunk_hostile;
mod chunk_lives;
mod chunk_mending;
mod chunk_requests;
mod chunk_rot;
mod metadata_crash;
mod metadata_etcd;
mod metadata_model;
mod support;
mod tier_admin;
mod tier_commands;
mod tier_dice;
mod tier_failover;
mod tier_faults;
mod tier_leaving;
mod tier_lives;
mod tier_log;
mod tier_looks;
mod tier_model;
mod tier_pair;
mod tier_ports;
mod tier_rig;
mod tier_rot;
mod tier_servers;
mod tier_space;
mod tier_space_rig;
mod tier_store;
mod tier_strays;
mod tier_stuck;
mod tier_troubles;
