//! The NVMe scenario over many seeds: passes, unless a bug is planted in the target (`OB_PLANT`, see
//! `crates/ob-nvme/src/plant.rs`).

use ob_scenarios::nvme::NvmeScenario;
use ob_sim::{check_determinism, run_seeds};

const SEEDS: u64 = 24;
const SEEDS_FOR_A_BUG: u64 = 100;
const STEPS: u64 = 1500;

fn seeds() -> u64 {
    if ob_plant::is_any_chosen() { SEEDS_FOR_A_BUG } else { SEEDS }
}

/// What has to happen, or nothing was shown.
const HAPPENS: &[&str] = &[
    "answered",
    "refused",
    "lost",
    "resets",
    "cuts",
    "cuts of one way",
    "connections refused",
    "connections that found no memory",
    "connections reset",
    "connections timed out",
    "operations stuck",
    "operations without space",
    "operations slow",
    "hosts killed",
    "cards killed",
    "power lost",
    "hosts paused",
    "card paused",
    "brief pauses",
    "hosts gone for ever",
    "hosts cut off for ever",
];

#[test]
fn blocks_keep_their_promises() {
    let report = match run_seeds(&mut NvmeScenario, 0..seeds(), STEPS, |_| {}) {
        Ok(report) => report,
        Err(failed) => panic!("{failed}"),
    };
    for what in HAPPENS {
        assert!(report.get(what) > 0, "nothing was {what}: {report:?}");
    }
}

/// A seed in which a cut holds up a Keep Alive shortly before the card stops: both together take longer than a host waits, and each alone does not.
#[test]
fn what_a_cut_held_up_is_not_the_fault_of_a_brief_stop() {
    if let Err(failed) = run_seeds(&mut NvmeScenario, 18316..18317, STEPS, |_| {}) {
        panic!("{failed}");
    }
}

#[test]
fn a_seed_does_the_same_twice() {
    if let Err(failed) = check_determinism(&mut NvmeScenario, 3, 500) {
        panic!("{failed}");
    }
}

/// The only host that waits for something is turned away time and again, each time with another of its queues.
#[test]
fn bad_luck_is_no_standstill() {
    let report = run_seeds(&mut NvmeScenario, 12_895..12_896, STEPS, |_| {}).unwrap();
    assert_eq!(report.get("bad luck ended"), 1);
}
