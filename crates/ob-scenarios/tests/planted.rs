//! The files scenario over many seeds: passes, unless a bug is planted in the card's files (`OB_PLANT`, see
//! `crates/ob-files-card/src/plant.rs`).

use ob_scenarios::files::FilesScenario;
use ob_sim::run_seeds;

/// The rarest bug shows in one seed of fifty.
const SEEDS: u64 = 40;
const SEEDS_FOR_A_BUG: u64 = 400;
const STEPS: u64 = 1000;

fn seeds() -> u64 {
    if ob_plant::is_any_chosen() { SEEDS_FOR_A_BUG } else { SEEDS }
}

#[test]
fn files_keep_their_promises() {
    if let Err(failed) = run_seeds(&mut FilesScenario, 0..seeds(), STEPS, |_| {}) {
        panic!("{failed}");
    }
}
