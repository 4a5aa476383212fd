//! The key-value scenario over some seeds: passes, unless a bug is planted in it (`OB_PLANT`). `outboard sim kv` runs as many as one
//! likes.

use ob_scenarios::kv::KvScenario;
use ob_sim::{Scenario, check_determinism, run_seeds};

/// The rarest bug shows in one seed of some hundred.
const SEEDS: u64 = 80;
const SEEDS_FOR_A_BUG: u64 = 400;
const STEPS: u64 = 150;

fn seeds() -> u64 {
    if ob_plant::is_any_chosen() { SEEDS_FOR_A_BUG } else { SEEDS }
}

/// What has to happen, or nothing was shown.
const HAPPENS: &[&str] = &[
    "answered",
    "lost",
    "not done",
    "answered by the card",
    "answered without a host",
    "forwarded to the host",
    "near their expiry",
    "not what the table meant",
    "fallen back behind another",
    "admitted on a write",
    "attested",
    "evicted",
    "refused as outdated",
    "told by the host",
    "parts removed",
    "records moved",
    "keys expired",
    "cleared",
    "requests behind others",
    "host deaths",
    "card deaths",
    "losses of power",
    "losses of the card's power",
    "links cut",
    "stores kept",
    "stores overtaken",
    "stores lost",
    "numbers written",
    "numbers written at once",
    "numbers lost",
    "resets",
    "clients paused",
    "card paused",
    "host paused",
    "clients cut off",
    "connections refused",
    "connections that found no memory",
    "hosts gone for ever",
    "clients cut off for ever",
    "programs loaded",
    "programs taken out",
    "requests that programs left",
    "GETs that programs answered",
    "outdated by other programs",
];

#[test]
fn histories_are_linearizable_while_halves_die() {
    let seeds = std::env::var("OB_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or_else(seeds);
    let report = match run_seeds(&mut KvScenario, 0..seeds, STEPS, |_| {}) {
        Ok(report) => report,
        Err(failed) => panic!("{failed}"),
    };
    // Some bugs keep a thing from happening. That is not how they are to be found: then only histories count.
    if std::env::var_os("OB_PLANT").is_some() {
        return;
    }
    println!("{report:?}");
    for what in HAPPENS {
        assert!(report.get(what) > 0, "{what} did not happen: {report:?}");
    }
    KvScenario.judge(&report).unwrap();
}

/// Seeds in which nothing was wrong but what the scenario took for standing still: long replies that come from far through a small window, and a
/// host that has no room for more while a device is slow.
#[test]
fn what_is_slow_does_not_stand_still() {
    for seed in [7302, 8117, 20_411] {
        if let Err(failed) = run_seeds(&mut KvScenario, seed..seed + 1, STEPS, |_| {}) {
            panic!("{failed}");
        }
    }
}

#[test]
fn a_seed_does_the_same_twice() {
    if let Err(failed) = check_determinism(&mut KvScenario, 3, 100) {
        panic!("{failed}");
    }
}
