//! Tests of storage functions.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod damaged_tables;
mod damaged_trees;
mod ends;
mod fair;
mod keeper;
mod kept_levels;
mod lab;
mod left_behind;
mod limits;
mod many_files;
mod maps;
mod named;
mod named_pages;
mod pairs;
mod reads;
mod replaced_maps;
mod replaced_trees;
mod rocksdb;
