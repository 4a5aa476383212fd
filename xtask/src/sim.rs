//! The step `sim` of `cargo xtask ci`: some seeds of every scenario of the simulator, the same each time.
//!
//! Whether a change can land must not depend on luck: a failure here is the fault of the change. Seeds that nobody has run are
//! for campaigns: `outboard sim NAME --seeds COMMIT+N`.

use anyhow::{Context, Result};

use crate::command;
use crate::outcome::Outcome;
use crate::repository::Repository;

/// Scenarios, and how many seeds of each take some ten seconds of a processor.
pub const CAMPAIGNS: &[(&str, u64)] =
    &[("ring", 800), ("link", 250), ("files", 100), ("nvme", 100), ("kv", 100)];

/// The first seed: beyond those that the scenarios' tests run.
const FIRST: u64 = 1_000_000;

/// Runs some seeds of every scenario.
///
/// # Errors
/// When a seed fails: its scenario has then said which, and how to repeat it.
pub fn run(repository: &Repository) -> Result<Outcome> {
    for &(name, count) in CAMPAIGNS {
        let seeds = format!("{FIRST}+{count}");
        let arguments = ["run", "--quiet", "--package", "outboard", "--", "sim", name, "--keep-going"];
        let mut campaign = command::cargo(repository, &arguments);
        command::run(campaign.args(["--jobs", "2", "--seeds", &seeds]))
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
