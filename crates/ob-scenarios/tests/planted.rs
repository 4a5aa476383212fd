//! The files scenario over many seeds: passes, unless a bug is planted in the card's files (`OB_PLANT`, see
//! `crates/ob-files-card/src/plant.rs`).

use ob_scenarios::files::FilesScenario;
use ob_sim::run_seeds;

const SEEDS: u64 = 150;
const STEPS: u64 = 1000;

#[test]
fn files_keep_their_promises() {
    if let Err(failed) = run_seeds(&mut FilesScenario, 0..SEEDS, STEPS, |_| {}) {
        panic!("{failed}");
    }
}
