//! Any bytes as a script of a forged device: its checksums are right, and what its records say need not be. It is refused, by
//! check and mount alike, or holds together: a walk over all names ends, reads stay within the device, and it can be used.

#![no_main]

#[path = "../../crates/ob-files-card/tests/support/mod.rs"]
mod support;

libfuzzer_sys::fuzz_target!(|script: &[u8]| {
    support::forged::judge(&support::forged::image_of(script));
});
