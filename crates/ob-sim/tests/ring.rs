//! The ring scenario: one seed is one story, and the stories reach what they are meant to reach.

use std::collections::BTreeSet;

use ob_sim::ring::RingScenario;
use ob_sim::{check_determinism, run_seeds};

#[test]
fn one_seed_is_one_story_and_two_seeds_are_two() {
    let hashes: BTreeSet<u64> =
        (0..20).map(|seed| check_determinism(&mut RingScenario, seed, 1000).unwrap().hash).collect();
    assert_eq!(hashes.len(), 20);
}

#[test]
fn a_story_is_long_enough_to_reach_everything() {
    let mut events = 0;
    let report = run_seeds(&mut RingScenario, 0..100, 3000, |passed| events += passed.events).unwrap();
    assert!(events > 100_000);
    for what in [
        "bells",
        "card deaths",
        "card sleeps",
        "claims held",
        "dma busy",
        "dma overtaken",
        "dma reads before writes",
        "dma torn reads",
        "dma torn words",
        "dma torn writes",
        "doorbells",
        "events of an earlier life",
        "host deaths",
        "host sleeps",
        "host wake-ups",
        "lives ended in order",
        "messages",
        "regions reused",
    ] {
        assert!(report.get(what) >= 5, "{what}: {}", report.get(what));
    }
}
