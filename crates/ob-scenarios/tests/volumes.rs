//! The volumes scenario over many seeds: passes, unless a bug is planted (`OB_PLANT`, see `crates/ob-volume/src/plant.rs`, that of its tier,
//! and `crates/ob-split/src/plant.rs`).

use std::ops::Range;

use ob_scenarios::volumes::VolumesScenario;
use ob_sim::{Report, Scenario, check_determinism, run_seed};

const SEEDS: u64 = 46;
/// Most of the bugs that it is held to show within ten.
const SEEDS_FOR_A_BUG: u64 = 300;
const STEPS: u64 = 200;

/// `OUTBOARD_VOLUMES_SEEDS` has others, `FROM..TO`, for campaigns, which go on behind failures if `OUTBOARD_VOLUMES_KEEP_GOING` is there.
fn seeds() -> Range<u64> {
    let named = std::env::var("OUTBOARD_VOLUMES_SEEDS").ok();
    let range = named.as_deref().and_then(|range| range.split_once(".."));
    if let Some((Ok(from), Ok(to))) = range.map(|(from, to)| (from.parse(), to.parse())) {
        return from..to;
    }
    0..if ob_plant::is_any_chosen() { SEEDS_FOR_A_BUG } else { SEEDS }
}

/// What has to happen, or nothing was shown.
const HAPPENS: &[&str] = &[
    "answered",
    "bits of open chunks",
    "bits rotted",
    "blocks unreadable",
    "cards lost",
    "chunks broken",
    "chunks compared",
    "chunks sealed",
    "client resets",
    "clients moved",
    "clients killed",
    "connections refused",
    "connections reset",
    "cuts",
    "directories rotted",
    "disks lost",
    "disks slow",
    "done late",
    "hosts lost",
    "long requests",
    "lost",
    "pauses",
    "records mended",
    "records resolved",
    "refused",
    "replicas made",
    "segments handed over",
    "segments taken",
    "servers killed",
    "servers without power",
    "sessions lost",
    "store operations unknown",
    "store silent",
];

/// Whether a campaign goes on behind what fails.
fn goes_on() -> bool {
    std::env::var_os("OUTBOARD_VOLUMES_KEEP_GOING").is_some()
}

/// Plays seeds, and says of each that fails why.
fn play(seeds: Range<u64>) -> Report {
    let mut report = Report::default();
    let mut failures = Vec::new();
    for seed in seeds {
        match run_seed(&mut VolumesScenario, seed, STEPS) {
            Ok(passed) => report.merge(&passed.report),
            Err(failed) if goes_on() => {
                eprintln!("{failed}");
                failures.push(seed);
            }
            Err(failed) => panic!("{failed}"),
        }
    }
    assert!(failures.is_empty(), "these seeds fail: {failures:?}");
    report
}

#[test]
fn blocks_are_what_was_written_last() {
    let report = play(seeds());
    VolumesScenario.judge(&report).unwrap();
    for what in HAPPENS {
        assert!(report.get(what) > 0, "nothing was {what}: {report:?}");
    }
}

#[test]
fn a_seed_does_the_same_twice() {
    // The second one's store is in a file.
    for seed in [3, 2002] {
        if let Err(failed) = check_determinism(&mut VolumesScenario, seed, 100) {
            panic!("{failed}");
        }
    }
}

/// Stories that showed mistakes.
#[test]
fn what_was_found_stays_mended() {
    // A session ended while replicas were looked for, and nobody looked again.
    // A disk was lost, and all was held to be at rest because others than the one in its place were full: 1120.
    for seed in [1069, 1120, 1397, 1460] {
        play(seed..seed + 1);
    }
}
