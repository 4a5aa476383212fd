//! A key-value store that Redis clients use, cut between card and host (DDS §9.2).

#![forbid(unsafe_code)]

pub mod resp;
