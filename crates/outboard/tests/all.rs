//! The tests of this crate that can share a process: one program is linked much faster than one for each file.

// A test that cannot go on should say where.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod bench;
mod btree_command;
mod command_line;
mod files_command;
mod files_model;
mod idle;
mod kv;
mod listing1;
mod namespace;
mod namespace_file;
mod nvme_command;
mod process;
mod pushdown;
mod rocksdb;
mod rocksdb_command;
mod subsystems;
mod support;
mod up;
mod volume_command;
mod volume_requests;
mod volumes;
mod volumes_ports;
mod volumes_tiers;
mod your_own_program;
