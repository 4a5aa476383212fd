//! The scenario of storage functions over many seeds: passes, unless a bug is planted in them (`OB_PLANT`, see
//! `crates/ob-pushdown/src/plant.rs`). `OB_SEEDS=1000` runs more of them, `OB_SEED` repeats one.

use std::ops::Range;

use ob_scenarios::pushdown::PushdownScenario;
use ob_sim::{check_determinism, run_seeds};

const SEEDS: u64 = 24;
const SEEDS_FOR_A_BUG: u64 = 150;
const STEPS: u64 = 1000;

fn seeds() -> Range<u64> {
    let given = |name| std::env::var(name).ok().and_then(|number| number.parse().ok());
    let seeds = if ob_plant::is_any_chosen() { SEEDS_FOR_A_BUG } else { SEEDS };
    given("OB_SEED").map_or(0..given("OB_SEEDS").unwrap_or(seeds), |seed| seed..seed + 1)
}

/// What has to happen, or nothing was shown.
const HAPPENS: &[&str] = &[
    "answered",
    "changed",
    "detours",
    "unmapped",
    "mapped files judged",
    "several files judged",
    "files moved",
    "files written in place",
    "files moved under a lease",
    "files opened anew",
    "files opened in vain",
    "writers that broke a lease",
    "writers that waited for a keeper",
    "writers that did not wait any longer",
    "keepers started",
    "keepers left",
    "keepers killed",
    "sessions ended",
    "sessions ended in between",
    "requests given up",
    "late answers judged",
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
    "cards killed",
    "pauses",
];

#[test]
fn chains_find_what_was_there() {
    let report = match run_seeds(&mut PushdownScenario, seeds(), STEPS, |_| {}) {
        Ok(report) => report,
        Err(failed) => panic!("{failed}"),
    };
    println!("{report:?}");
    // Of one seed, or a few, nothing need be expected.
    if std::env::var_os("OB_SEED").is_some() {
        return;
    }
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
