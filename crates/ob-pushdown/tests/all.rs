//! Tests of storage functions.

#![forbid(unsafe_code)]
