//! A campaign that is small enough for every run of the tests: programs from a fixed range of seeds, none of which may do what it may not.
//!
//! With a bug planted in verifier or compiler it has to fail (`cargo xtask planted`); `examples/campaign.rs` goes on where this ends.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use ob_ebpf::campaign::{Campaign, Plan, Tally};
use ob_ebpf::hooks;
use ob_ebpf::world::Region;

/// Programs that are tried.
const SEEDS: u64 = 30_000;

/// Tries them on two threads, as every machine has.
fn tally() -> Tally {
    let halves = [0, 1].map(|half| {
        std::thread::spawn(move || {
            let plan = Plan { compiled_share: 4, states_share: 1, runs: 3 };
            let mut campaign = Campaign::new(plan);
            for seed in (half..SEEDS).step_by(2) {
                if let Some(found) = campaign.run(seed) {
                    panic!("{found}");
                }
            }
            campaign.tally
        })
    });
    let mut tally = Tally::default();
    for half in halves {
        match half.join() {
            Ok(counted) => tally.add(&counted),
            Err(what) => std::panic::resume_unwind(what),
        }
    }
    tally
}

#[test]
fn no_accepted_program_does_what_it_may_not() {
    let tally = tally();
    println!("{tally}");
    let share = |part: u64| part as f64 / tally.generated as f64;
    assert!(share(tally.accepted) > 0.25, "too few are accepted to tell much: {tally}");
    assert!(share(tally.shapeless) < 0.05, "{tally}");
    assert!(tally.compiled > 2000, "{tally}");
    for reason in [
        "uninitialised",
        "not a pointer",
        "not a number",
        "may be null",
        "pointer arithmetic",
        "pointer comparison",
        "pointer stored",
        "pointer returned",
        "stack uninitialised",
        "stack pointer",
        "stack bounds",
        "stack offset",
        "read-only",
        "context",
        "region unclear",
        "call unclear",
        "no helper",
        "helper region",
        "unproven",
        "too complex",
    ] {
        assert!(tally.refused.contains_key(reason), "nothing was refused because of: {reason}\n{tally}");
    }
    for world in hooks::ALL.iter().map(|world| world.name).chain(["campaign", "raw"]) {
        assert!(tally.worlds.contains_key(world), "no program was accepted for: {world}\n{tally}");
    }
    assert!(tally.strict > 100, "{tally}");
    for outcome in ["result", "out of fuel", "out of bounds", "misaligned", "range too long"] {
        assert!(tally.outcomes.contains_key(outcome), "no call ended with: {outcome}\n{tally}");
    }
    for region in
        [Region::Data, Region::Scratch, Region::Stack, Region::ReadOnly, Region::PerCall, Region::TableValue]
    {
        for is_checked in [true, false] {
            assert!(tally.accesses.contains_key(&("access", region, is_checked)), "{region:?}\n{tally}");
        }
        assert!(tally.accesses.contains_key(&("range", region, false)), "{region:?}\n{tally}");
    }
    assert!(tally.accesses.contains_key(&("access", Region::Context, false)), "{tally}");
}
