//! The tests of this crate that can share a process: one program is linked much faster than one for each file.

// A test that cannot go on should say where.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod atomic;
mod crash_images;
mod damage;
mod data;
mod durable;
mod earlier_builds;
mod forged;
mod formats;
mod hostile;
mod lives;
mod maps;
mod requests;
mod scale;
mod support;
mod versions;
mod volume;
mod waiting;
