//! The key-value scenario over some seeds; `outboard sim kv` runs as many as one likes.

use ob_scenarios::kv::KvScenario;
use ob_sim::{check_determinism, run_seeds};

const SEEDS: u64 = 60;
const STEPS: u64 = 150;

#[test]
fn histories_are_linearizable_while_halves_die() {
    let report = match run_seeds(&mut KvScenario, 0..SEEDS, STEPS, |_| {}) {
        Ok(report) => report,
        Err(failed) => panic!("{failed}"),
    };
    // Without these nothing was shown.
    for what in [
        "answered",
        "lost",
        "not done",
        "answered by the card",
        "forwarded to the host",
        "host deaths",
        "card deaths",
        "losses of power",
        "resets",
    ] {
        assert!(report.get(what) > 0, "{what} did not happen: {report:?}");
    }
    assert!(report.get("not judged") * 20 <= SEEDS, "too many histories were not judged: {report:?}");
}

#[test]
fn a_seed_does_the_same_twice() {
    if let Err(failed) = check_determinism(&mut KvScenario, 3, 100) {
        panic!("{failed}");
    }
}
