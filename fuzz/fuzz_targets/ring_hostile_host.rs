//! A hostile host against the card's ends of a group; the input is the host's script.

#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| ob_ring::hostile::run(script));
