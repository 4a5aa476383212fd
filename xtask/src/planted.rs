//! `cargo xtask planted`: bugs put in on purpose, which the tests must find.
//!
//! A test that has never failed proves little. Behind the feature `planted-bugs` a crate can break itself in the ways
//! that its tests exist to find; the variable `OB_PLANT` names the one bug to break it with. A name that the
//! crate does not know must change nothing, so that a misspelled plant shows up here as one that was not found.

use std::fs;
use std::process::{Command, Output};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::outcome::Outcome;
use crate::repository::Repository;
use crate::{command, loom};

/// The test targets that must find bugs, and the bugs.
///
/// To add a plant: break the code where `OB_PLANT` has its name, then add the name here.
pub const HARNESSES: &[Harness] = &[
    Harness {
        package: "ob-ring",
        test: "loom",
        build: Build::Loom,
        plants: &[
            "dropped-fence",
            "relaxed-publish",
            "head-before-read",
            "lost-doorbell",
            "lost-bell",
            "tail-before-data",
        ],
    },
    Harness {
        package: "ob-table",
        test: "loom",
        build: Build::Loom,
        plants: &[
            "move-forgets",
            "move-unchecked",
            "floor-unchecked",
            "no-second-look",
            "moved-unseen",
            "torn-read",
            "not-at-once",
            "cleared-between",
        ],
    },
    Harness {
        package: "ob-table",
        test: "model",
        build: Build::Plain,
        plants: &["eviction-forgets", "plain-store", "stale-replaces", "removed-stays", "cleared-unseen"],
    },
    Harness {
        package: "ob-sim",
        test: "planted",
        build: Build::Plain,
        plants: &["head-before-read", "lost-doorbell", "lost-bell", "tail-before-data"],
    },
    Harness {
        package: "ob-scenarios",
        test: "planted",
        build: Build::Plain,
        plants: &[
            "skip-zeroing",
            "reuse-before-durable",
            "answer-before-log",
            "size-not-logged",
            "rename-in-two-frames",
            "unlocked-edges",
            "ghost-ignored",
            "cleaner-forgets",
            "flush-skipped",
            "tail-kept",
        ],
    },
    Harness {
        package: "ob-nvme",
        test: "model",
        build: Build::Plain,
        plants: &[
            "orphans-forgotten",
            "fua-ignored",
            "zeroes-not-forced",
            "reads-not-forced",
            "flush-at-once",
            "compare-always-equal",
            "pair-writes-anyway",
        ],
    },
    Harness {
        package: "ob-scenarios",
        test: "nvme",
        build: Build::Plain,
        plants: &["orphans-forgotten", "fua-ignored", "flush-at-once"],
    },
    Harness {
        package: "ob-director",
        test: "order",
        build: Build::Plain,
        plants: &[
            "invalidate-after-forward",
            "forward-past-read",
            "fallback-alone",
            "served-unadmitted",
            "unchecked-read",
            "admitted-at-submission",
            "read-unseen",
        ],
    },
    Harness {
        package: "ob-director",
        test: "random",
        build: Build::Plain,
        plants: &["forward-past-read", "fallback-alone", "admitted-at-submission", "unchecked-read"],
    },
    Harness { package: "ob-director", test: "lives", build: Build::Plain, plants: &["table-kept"] },
    Harness { package: "ob-nvme", test: "io", build: Build::Plain, plants: &["pair-unlocked"] },
    Harness { package: "ob-nvme", test: "hostile", build: Build::Plain, plants: &["offset-unchecked"] },
    Harness { package: "ob-nvme", test: "associations", build: Build::Plain, plants: &["admitted-for-ever"] },
    Harness { package: "ob-files-card", test: "data", build: Build::Plain, plants: &["hole-reused-early"] },
    Harness {
        package: "ob-kv",
        test: "model",
        build: Build::Plain,
        plants: &[
            "answer-before-durable",
            "read-before-durable",
            "compaction-drops-live",
            "compaction-copies-old",
            "earlier-address-wins",
            "part-removed-early",
            "settled-with-gaps",
            "life-written-ahead",
            "unlocked-change",
            "removed-not-logged",
            "attests-locked",
            "attests-unsettled",
            "durable-early",
            "recovered-not-flushed",
        ],
    },
    Harness { package: "ob-kv", test: "damage", build: Build::Plain, plants: &["damage-is-the-end"] },
    Harness { package: "ob-kv", test: "space", build: Build::Plain, plants: &["reserve-given-away"] },
];

const FEATURE: &str = "planted-bugs";
const PLANT_VARIABLE: &str = "OB_PLANT";

/// One test target and the bugs that it must find.
#[derive(Debug)]
pub struct Harness {
    /// The package whose code is broken.
    pub package: &'static str,
    /// Its test target.
    pub test: &'static str,
    /// How the target is built.
    pub build: Build,
    /// The values of `OB_PLANT`.
    pub plants: &'static [&'static str],
}

/// How a test target is built.
#[derive(Clone, Copy, Debug)]
pub enum Build {
    /// With loom's atomics.
    Loom,
    /// As `cargo test` does.
    Plain,
}

/// Put bugs in on purpose, and require that the tests find them.
///
/// For each test target: build it with the feature `planted-bugs`, require that it passes while no bug is chosen, then
/// run it once a bug with `OB_PLANT` naming the bug, and require that it fails. What a failing run said is
/// kept below `target/planted/`.
#[derive(Args)]
pub struct Arguments {
    /// Only this bug.
    #[arg(value_name = "BUG")]
    plant: Option<String>,
}

/// Runs one plant, or all.
///
/// # Errors
/// When a target does not build, fails with no bug chosen, or does not find a bug.
pub fn run(repository: &Repository, arguments: &Arguments) -> Result<Outcome> {
    let chosen = arguments.plant.as_deref();
    if let Some(plant) = chosen
        && !HARNESSES.iter().any(|harness| harness.plants.contains(&plant))
    {
        let known: Vec<&str> = HARNESSES.iter().flat_map(|harness| harness.plants).copied().collect();
        bail!("no plant is called `{plant}`; there are: {}", known.join(", "));
    }
    let is_chosen = |plant: &str| chosen.is_none_or(|chosen| chosen == plant);
    for harness in HARNESSES {
        let plants: Vec<&str> = harness.plants.iter().copied().filter(|plant| is_chosen(plant)).collect();
        if !plants.is_empty() {
            harness.run(repository, &plants)?;
        }
    }
    Ok(Outcome::Done)
}

/// Runs all plants.
///
/// # Errors
/// As [`run`].
pub fn run_all(repository: &Repository) -> Result<Outcome> {
    run(repository, &Arguments { plant: None })
}

impl Harness {
    fn run(&self, repository: &Repository, plants: &[&str]) -> Result<()> {
        // Built first, so that code which does not compile is not taken for a bug that was found.
        command::run(&mut self.command(repository, &["--no-run"]))?;
        // Without a plant it must pass: where tests fail anyway, every plant would look found.
        command::run(&mut self.command(repository, &[]))?;
        let mut missed = Vec::new();
        for plant in plants {
            let output = command::capture(self.command(repository, &[]).env(PLANT_VARIABLE, plant))?;
            // Kept, not shown: a log with `test result: FAILED` in it reads like a run that failed.
            let log = keep_log(repository, self, plant, &output)?;
            match finding(&output) {
                Some(tests) => println!("planted: `{plant}` was found by {tests} ({log})"),
                None => {
                    println!("planted: `{plant}` was NOT found ({log})");
                    missed.push(*plant);
                }
            }
        }
        if !missed.is_empty() {
            bail!(
                "{} test `{}` passes with these bugs planted: {}",
                self.package,
                self.test,
                missed.join(", ")
            );
        }
        Ok(())
    }

    fn command(&self, repository: &Repository, options: &[&str]) -> Command {
        let options: Vec<&str> = [&["--features", FEATURE], options].concat();
        let mut command = match self.build {
            Build::Loom => loom::test_command(repository, self.package, self.test, &options),
            Build::Plain => {
                let mut command =
                    command::cargo(repository, &["test", "--package", self.package, "--test", self.test]);
                command.args(&options);
                command
            }
        };
        command.env_remove(PLANT_VARIABLE);
        command
    }
}

/// The tests that failed, if the run failed.
fn finding(output: &Output) -> Option<String> {
    if output.status.success() {
        return None;
    }
    let stdout = String::from_utf8_lossy(&output.stdout);
    let failed_test = |line: &str| line.strip_prefix("test ")?.strip_suffix(" ... FAILED").map(str::to_owned);
    let failed: Vec<String> = stdout.lines().filter_map(failed_test).collect();
    // A test can also abort the whole program, and then there is no such line.
    Some(if failed.is_empty() { format!("{}", output.status) } else { failed.join(", ") })
}

/// Writes what the run said, and gives the file's place relative to the root where it can.
fn keep_log(repository: &Repository, harness: &Harness, plant: &str, output: &Output) -> Result<String> {
    let folder = repository.target_folder("planted");
    let path = folder.join(format!("{}-{}-{plant}.log", harness.package, harness.test));
    fs::create_dir_all(&folder)
        .and_then(|()| fs::write(&path, [output.stdout.as_slice(), &output.stderr].concat()))
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path.strip_prefix(repository.root()).unwrap_or(&path).display().to_string())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn output_of(script: &str) -> Output {
        command::capture(Command::new("bash").args(["-c", script])).unwrap()
    }

    #[test]
    fn only_a_failing_run_is_a_finding() {
        assert_eq!(finding(&output_of("echo 'test sleeps ... ok'")), None);
        assert_eq!(finding(&output_of("echo 'test sleeps ... FAILED'; exit 101")).as_deref(), Some("sleeps"));
        assert!(finding(&output_of("kill -ABRT $$")).unwrap().contains("signal"));
    }

    #[test]
    fn plants_are_unique_in_their_tests_because_logs_are_named_after_them() {
        let names: Vec<(&str, &str, &str)> = HARNESSES
            .iter()
            .flat_map(|harness| harness.plants.iter().map(|plant| (harness.package, harness.test, *plant)))
            .collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
    }
}
