//! Tests of storage functions.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod ends;
mod fair;
mod lab;
mod limits;
mod many_files;
mod maps;
mod named;
mod pairs;
mod reads;
mod rocksdb;
