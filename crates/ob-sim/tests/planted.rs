//! The ring scenario over many seeds: passes, unless a bug is planted in the ring (`OB_PLANT`, see
//! `crates/ob-ring/src/plant.rs`).

use ob_sim::ring::RingScenario;
use ob_sim::run_seeds;

const SEEDS: u64 = 500;
const STEPS: u64 = 3000;

#[test]
fn the_ring_keeps_its_promises() {
    if let Err(failed) = run_seeds(&mut RingScenario, 0..SEEDS, STEPS, |_| {}) {
        panic!("{failed}");
    }
}
