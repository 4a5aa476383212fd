//! Bytes that were instructions, with some of them changed: what a fuzzer of the target `bpf_verify` does longer.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use ob_ebpf::campaign::{Campaign, Plan};
use ob_ebpf::isa;

/// Programs that are tried, each whole and with some bytes changed.
const SEEDS: u64 = 600;
const CHANGES: u64 = 6;

/// A number that looks random.
fn number(seed: u64) -> u64 {
    let mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 7
}

#[test]
fn no_bytes_make_a_program_that_does_what_it_may_not() {
    let mut campaign = Campaign::new(Plan { runs: 1, ..Plan::default() });
    for seed in 0..SEEDS {
        let Some(program) = Campaign::program(seed) else { continue };
        let whole = isa::encode(program.instructions()).expect("a program has bytes");
        for change in 0..CHANGES {
            let mut bytes = whole.clone();
            for flip in 0..change {
                let random = number(seed * 100 + change * 10 + flip);
                let index = random as usize % bytes.len();
                bytes[index] ^= 1 << (random >> 40 & 7);
            }
            let data: Vec<u8> = (0..seed % 90).map(|at| number(seed + at) as u8).collect();
            if let Some(found) = campaign.run_bytes(&bytes, &data) {
                panic!("{found}");
            }
        }
    }
    let tally = &campaign.tally;
    assert!(tally.accepted > 1000 && tally.compiled == tally.accepted, "{tally}");
    assert!(tally.shapeless > 100, "{tally}");
}
