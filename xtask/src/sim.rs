//! The step `sim` of `cargo xtask ci`: the simulator's scenarios, with seeds that are drawn from the commit.
//!
//! The scenarios' tests run the same seeds for ever, so that a failure there is the fault of a change. Here every commit brings
//! seeds that nobody has run, and a failure may be of long standing; it can be repeated all the same, by its number.

use anyhow::{Context, Result, bail};

use crate::command;
use crate::outcome::Outcome;
use crate::repository::Repository;

/// Scenarios, and how many seeds of each take some ten seconds.
pub const CAMPAIGNS: &[(&str, u64)] =
    &[("ring", 800), ("link", 250), ("files", 100), ("nvme", 100), ("kv", 40)];

/// Runs some seeds of every scenario.
///
/// # Errors
/// When a seed fails: its scenario has then said which, and how to repeat it.
pub fn run(repository: &Repository) -> Result<Outcome> {
    let Some(commit) = commit(repository)? else {
        return Ok(Outcome::Skipped("there is no commit to draw seeds from".to_owned()));
    };
    for &(name, count) in CAMPAIGNS {
        let seeds = format!("{commit}+{count}");
        let arguments = ["run", "--quiet", "--package", "outboard", "--", "sim", name, "--keep-going"];
        let mut campaign = command::cargo(repository, &arguments);
        command::run(campaign.args(["--jobs", "2", "--seeds", &seeds]))
            .with_context(|| format!("`{name}` fails with some seeds of commit {commit}"))?;
    }
    Ok(Outcome::Done)
}

/// The name of the commit that is checked out, if there is one.
fn commit(repository: &Repository) -> Result<Option<String>> {
    let Ok(output) = command::capture(&mut command::program(repository, "git", &["rev-parse", "HEAD"]))
    else {
        return Ok(None);
    };
    if !output.status.success() {
        return Ok(None);
    }
    let commit = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if commit.len() != 40 {
        bail!("`git rev-parse HEAD` says `{commit}`, which is no commit");
    }
    Ok(Some(commit))
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
