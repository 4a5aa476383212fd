//! `cargo xtask sim`: some seeds of every scenario of the simulator, the same each time.
//!
//! Whether a change can land must not depend on luck: a failure here is the fault of the change. Seeds that nobody has run are
//! for campaigns: `outboard sim NAME --seeds COMMIT+N`.

use std::process::Command;

use anyhow::{Context, Result};

use crate::outcome::Outcome;
use crate::repository::Repository;
use crate::{command, program};

/// The help's first line.
pub const ABOUT: &str = "Run some seeds of every scenario of the simulator, the same each time";

/// The whole help.
pub const LONG_ABOUT: &str = "\
Run some seeds of every scenario of the simulator, the same each time.

The seeds are others than those of the scenarios' tests, and take about a minute. The program is the one that `cargo test --workspace`
has built. Seeds that nobody has run yet are for campaigns: `outboard sim NAME --seeds COMMIT+N --keep-going`.";

/// Scenarios, and how many seeds of each take some ten seconds of a processor.
pub const CAMPAIGNS: &[(&str, u64)] = &[
    ("ring", 800),
    ("link", 250),
    ("files", 100),
    ("nvme", 100),
    ("kv", 100),
    ("pushdown", 20),
    ("volumes", 60),
];

/// The first seed: beyond those that the scenarios' tests run.
const FIRST: u64 = 1_000_000;

/// Runs some seeds of every scenario.
///
/// # Errors
/// When a seed fails: its scenario has then said which, and how to repeat it.
pub fn run(repository: &Repository) -> Result<Outcome> {
    let outboard = program::of_the_tests(repository)?;
    for &(name, count) in CAMPAIGNS {
        let seeds = format!("{FIRST}+{count}");
        let mut campaign = Command::new(&outboard);
        campaign.args(["sim", name, "--keep-going", "--jobs", "2", "--seeds", &seeds]);
        command::run(campaign.current_dir(repository.root()))
            .with_context(|| format!("`{name}` fails with some of the seeds {seeds}"))?;
    }
    Ok(Outcome::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_has_its_campaign() {
        let repository = Repository::here().unwrap();
        let source = repository.root().join("crates/outboard/src/sim/mod.rs");
        let source = std::fs::read_to_string(source).unwrap();
        let names: Vec<&str> = source
            .lines()
            .filter_map(|line| line.trim().strip_prefix("name: \"")?.strip_suffix("\","))
            .collect();
        assert_eq!(CAMPAIGNS.iter().map(|(name, _)| *name).collect::<Vec<_>>(), names);
    }
}
