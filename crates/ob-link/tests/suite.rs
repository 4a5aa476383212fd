//! The link's suite on one machine. (`namespaces.rs` runs it once more across two.)

mod common;
mod link_suite;
