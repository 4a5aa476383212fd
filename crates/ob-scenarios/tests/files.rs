//! The files scenario: one seed is one story, and the stories reach what they are meant to reach.

use std::collections::BTreeSet;

use ob_scenarios::files::FilesScenario;
use ob_sim::{check_determinism, run_seeds};

#[test]
fn one_seed_is_one_story_and_two_seeds_are_two() {
    let hashes: BTreeSet<u64> =
        (0..10).map(|seed| check_determinism(&mut FilesScenario, seed, 400).unwrap().hash).collect();
    assert_eq!(hashes.len(), 10);
}

#[test]
fn stories_are_clean_and_reach_everything() {
    let report = run_seeds(&mut FilesScenario, 0..60, 800, |_| {}).unwrap();
    for what in [
        "BAD_NAME",
        "EXISTS",
        "INVALID",
        "IS_A_DIRECTORY",
        "NOT_A_DIRECTORY",
        "NOT_EMPTY",
        "NOT_FOUND",
        "NO_SPACE",
        "TOO_LARGE",
        "UNSUPPORTED",
        "WITHIN_ITSELF",
        "create",
        "blocks lost with the power",
        "deaths while mounting",
        "durable write",
        "flush",
        "host deaths",
        "inspections",
        "lives with device errors",
        "powers lost",
        "processes lost",
        "read",
        "reads of one version",
        "reads without a version",
        "remove",
        "rename",
        "resize",
        "rings full",
        "slow operations",
        "times the log was cleaned",
        "unaligned pieces",
        "write",
        "writes cut by a death",
        "zero",
    ] {
        assert!(report.get(what) >= 5, "{what}: {}", report.get(what));
    }
}
