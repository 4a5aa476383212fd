//! Any bytes as a program and the data that it reads: refused for each hook, or interpreted and compiled with the same outcome,
//! and within what the verifier has said of it.

#![no_main]

use std::cell::RefCell;

use ob_ebpf::campaign::{Campaign, Plan};

/// Bytes of an instruction.
const SLOT_LEN: usize = 8;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    // The first byte says how many instructions there are.
    let Some((&slots, bytes)) = input.split_first() else { return };
    let (program, data) = bytes.split_at((usize::from(slots) * SLOT_LEN).min(bytes.len()));
    thread_local! {
        static CAMPAIGN: RefCell<Campaign> = RefCell::new(Campaign::new(Plan { runs: 2, ..Plan::default() }));
    }
    let found = CAMPAIGN.with_borrow_mut(|campaign| campaign.run_bytes(program, data));
    assert!(found.is_none(), "{}", found.map(|found| found.to_string()).unwrap_or_default());
});
