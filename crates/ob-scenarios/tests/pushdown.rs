//! The scenario of storage functions over many seeds: passes, unless a bug is planted in them (`OB_PLANT`, see
//! `crates/ob-pushdown/src/plant.rs`).

use ob_scenarios::pushdown::PushdownScenario;
use ob_sim::{check_determinism, run_seeds};

const SEEDS: u64 = 24;
const SEEDS_FOR_A_BUG: u64 = 150;
const STEPS: u64 = 1000;

fn seeds() -> u64 {
    if ob_plant::is_any_chosen() { SEEDS_FOR_A_BUG } else { SEEDS }
}

/// What has to happen, or nothing was shown.
const HAPPENS: &[&str] = &[
    "answered",
    "changed",
    "detours",
    "mapped files judged",
    "several files judged",
    "files moved",
    "files written in place",
    "files created anew",
    "files renamed over",
    "requests that ended as changed",
    "requests of hosts that were gone",
    "chains that ended before their map",
    "chains whose map was withdrawn",
    "requests rightly refused",
    "answers that found no query",
    "programs replaced",
    "programs unloaded",
    "commands aborted",
    "waits for buffers",
    "resets",
    "cuts",
    "hosts killed",
    "pauses",
];

#[test]
fn chains_find_what_was_there() {
    let report = match run_seeds(&mut PushdownScenario, 0..seeds(), STEPS, |_| {}) {
        Ok(report) => report,
        Err(failed) => panic!("{failed}"),
    };
    for what in HAPPENS {
        assert!(report.get(what) > 0, "nothing was {what}: {report:?}");
    }
}

#[test]
fn a_seed_does_the_same_twice() {
    if let Err(failed) = check_determinism(&mut PushdownScenario, 3, 300) {
        panic!("{failed}");
    }
}
