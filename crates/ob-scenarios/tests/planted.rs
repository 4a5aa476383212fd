//! The files scenario over many seeds: passes, unless a bug is planted in the card's files (`OB_PLANT`, see
//! `crates/ob-files-card/src/plant.rs`).

use ob_scenarios::files::FilesScenario;
use ob_sim::run_seeds;

/// The rarest bug shows in one seed of fifty.
const SEEDS: u64 = if cfg!(feature = "planted-bugs") { 400 } else { 40 };
const STEPS: u64 = 1000;

#[test]
fn files_keep_their_promises() {
    if let Err(failed) = run_seeds(&mut FilesScenario, 0..SEEDS, STEPS, |_| {}) {
        panic!("{failed}");
    }
}
