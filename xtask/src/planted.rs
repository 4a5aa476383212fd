//! `cargo xtask planted`: bugs put in on purpose, which the tests must find.
//!
//! A test that has never failed proves little. A crate can break itself in the ways that its tests exist to find (`ob-plant`),
//! where it is built for tests; the variable `OB_PLANT` names the one bug to break it with. A name that the crate does not
//! know must change nothing, so that a misspelled plant shows up here as one that was not found.

mod harnesses;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Deserialize;

use crate::outcome::Outcome;
use crate::repository::Repository;
use crate::{command, loom, program};

pub use harnesses::HARNESSES;

const PLANT_VARIABLE: &str = "OB_PLANT";

/// A name that no crate knows: nothing is planted, and tests look for as long as they look for a bug.
const NO_PLANT: &str = "nothing";

/// The package whose tests run more seeds when they look for a bug. Those must pass too, or a failure among them would be taken for a
/// bug that was found.
const LOOKS_LONGER: &str = "ob-scenarios";

/// One test target and the bugs that it must find.
#[derive(Debug)]
pub struct Harness {
    /// The package whose code is broken.
    pub package: &'static str,
    /// Its test target, or a module of the one that most of its tests share.
    pub test: &'static str,
    /// How the target is built.
    pub build: Build,
    /// The values of `OB_PLANT`.
    pub plants: &'static [&'static str],
}

/// How a test target is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    /// With loom's atomics.
    Loom,
    /// As `cargo test` does.
    Plain,
}

/// Put bugs in on purpose, and require that the tests find them.
///
/// The test programs are those of `cargo test --workspace`. Each must pass while no bug is chosen; then it runs once a bug,
/// with `OB_PLANT` naming the bug, and must fail. What a run said is kept below `target/planted/`.
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
    let chosen = match arguments.plant.as_deref() {
        Some(plant) => Chosen::Named(plant),
        None => Chosen::All,
    };
    try_plants(repository, chosen, Sound::Shown)
}

/// Of so many harnesses one is tried in CI, others with the next commit.
const HARNESSES_A_TRIAL: usize = 4;

/// Runs one plant of a share of the harnesses, others with each commit, in programs that are known to pass without one, since the steps
/// `test` and `loom` have run them; but for those that look longer for a bug.
///
/// # Errors
/// As [`run`].
pub fn run_in_ci(repository: &Repository) -> Result<Outcome> {
    try_plants(repository, Chosen::Some(number_of_commit(repository)), Sound::Known)
}

/// A number that is the same whenever a commit is tried, and another for the next one. Without git it is always the same.
fn number_of_commit(repository: &Repository) -> usize {
    let hash = command::capture(&mut command::program(repository, "git", &["rev-parse", "HEAD"]));
    let hash = hash.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    hash.get(..8).and_then(|digits| usize::from_str_radix(digits, 16).ok()).unwrap_or(0)
}

/// Which plants are tried.
#[derive(Clone, Copy)]
enum Chosen<'a> {
    All,
    Named(&'a str),
    /// One of some harnesses, by this number.
    Some(usize),
}

impl Chosen<'_> {
    /// Of the harness at this place of the list.
    fn of<'h>(&self, at: usize, harness: &'h Harness) -> Vec<&'h str> {
        match *self {
            Self::All => harness.plants.to_vec(),
            Self::Named(name) => harness.plants.iter().copied().filter(|plant| *plant == name).collect(),
            Self::Some(number) if at % HARNESSES_A_TRIAL == number % HARNESSES_A_TRIAL => {
                let at = (number / HARNESSES_A_TRIAL).checked_rem(harness.plants.len());
                at.and_then(|at| harness.plants.get(at)).copied().into_iter().collect()
            }
            Self::Some(_) => Vec::new(),
        }
    }
}

/// That a test program passes without a plant. Where its tests fail anyway, every plant would look found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sound {
    /// It has just been run.
    Known,
    /// It is run here.
    Shown,
}

fn try_plants(repository: &Repository, chosen: Chosen<'_>, sound: Sound) -> Result<Outcome> {
    if let Chosen::Named(plant) = chosen
        && !HARNESSES.iter().any(|harness| harness.plants.contains(&plant))
    {
        let known: Vec<&str> = HARNESSES.iter().flat_map(|harness| harness.plants).copied().collect();
        bail!("no plant is called `{plant}`; there are: {}", known.join(", "));
    }
    let tried = HARNESSES.iter().enumerate().map(|(at, harness)| (harness, chosen.of(at, harness)));
    let (harnesses, plants): (Vec<&Harness>, Vec<Vec<&str>>) =
        tried.filter(|(_, plants)| !plants.is_empty()).unzip();
    let programs = build(repository, &harnesses)?;
    let mut trials = Vec::new();
    for ((harness, program), plants) in harnesses.iter().zip(&programs).zip(plants) {
        if sound == Sound::Shown || harness.package == LOOKS_LONGER {
            trials.push(Trial { harness, program, plant: None });
        }
        trials.extend(plants.into_iter().map(|plant| Trial { harness, program, plant: Some(plant) }));
    }
    // Side by side, since most of these tests use one processor.
    let results = command::side_by_side(&trials, |trial| trial.run(repository))?;
    let wrong: Vec<String> = results.into_iter().flatten().collect();
    if !wrong.is_empty() {
        bail!("not as it should be:\n{}", wrong.join("\n"));
    }
    Ok(Outcome::Done)
}

impl Harness {
    /// The target that has its tests.
    fn target(&self, repository: &Repository) -> String {
        let all = repository.root().join("crates").join(self.package).join("tests/all.rs");
        let declared = format!("mod {};", self.test);
        let is_shared = fs::read_to_string(all).is_ok_and(|text| text.lines().any(|line| line == declared));
        if is_shared { format!("{}-tests", self.package) } else { self.test.to_owned() }
    }
}

/// A test program, and the folder that cargo would run it in.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Program {
    executable: PathBuf,
    folder: PathBuf,
    /// The tests in it that are meant; all where there are none.
    tests: Vec<String>,
}

impl Program {
    /// The same program, of which only the tests of a module are meant.
    fn of_module(mut self, module: &str) -> Result<Self> {
        let listed = command::capture(Command::new(&self.executable).args(["--list", "--format", "terse"]))?;
        self.tests = tests_of(&String::from_utf8_lossy(&listed.stdout), module);
        if self.tests.is_empty() {
            bail!("{} has no test of the module `{module}`", self.executable.display());
        }
        Ok(self)
    }
}

/// The names of a module's tests in a test program's list.
fn tests_of(list: &str, module: &str) -> Vec<String> {
    let names = list.lines().filter_map(|line| line.strip_suffix(": test"));
    let is_meant = |name: &&str| name.strip_prefix(module).is_some_and(|rest| rest.starts_with("::"));
    names.filter(is_meant).map(str::to_owned).collect()
}

/// Builds all harnesses, and gives each one's program. Built before anything runs, so that code which does not compile is not
/// taken for a bug that was found.
///
/// Those of a kind are built with one command: with one for each, the feature would be on in other combinations each time, and
/// the same crates be compiled again and again.
fn build(repository: &Repository, harnesses: &[&Harness]) -> Result<Vec<Program>> {
    let mut built = BTreeMap::new();
    for kind in [Build::Loom, Build::Plain] {
        let of_kind: Vec<&Harness> = harnesses.iter().copied().filter(|one| one.build == kind).collect();
        if !of_kind.is_empty() {
            built.extend(build_together(repository, kind, &of_kind)?);
        }
    }
    let program = |harness: &&Harness| {
        let named = (harness.package.to_owned(), harness.target(repository));
        let program = built.get(&named).cloned().with_context(|| format!("{named:?} was not built"))?;
        if named.1 == harness.test { Ok(program) } else { program.of_module(harness.test) }
    };
    harnesses.iter().map(program).collect()
}

fn build_together(repository: &Repository, kind: Build, harnesses: &[&Harness]) -> Result<Programs> {
    let packages: BTreeSet<&str> = harnesses.iter().map(|harness| harness.package).collect();
    let tests: BTreeSet<String> = harnesses.iter().map(|harness| harness.target(repository)).collect();
    let mut command = match kind {
        Build::Loom => loom::test_command(repository),
        // The whole workspace, or else libraries of others would have other features than `cargo test --workspace` has left
        // them with. What is built is still only what the test targets need.
        Build::Plain => command::cargo(repository, &["test", "--workspace"]),
    };
    match kind {
        Build::Loom => command.args(packages.iter().flat_map(|package| ["--package", package])),
        Build::Plain => command.args(program::TESTS_OF_ALL_FEATURES.iter().flat_map(|test| ["--test", test])),
    };
    command.args(tests.iter().flat_map(|test| ["--test", test.as_str()]));
    command.args(["--no-run", "--message-format", "json-render-diagnostics"]);
    println!("$ {}", command::shown(&command));
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("`{}` ended with {}", command::shown(&command), output.status);
    }
    Ok(programs(&String::from_utf8_lossy(&output.stdout)))
}

/// Test programs by package and target.
type Programs = BTreeMap<(String, String), Program>;

/// The test programs that cargo says it has made. A folder is called like its package.
fn programs(messages: &str) -> Programs {
    #[derive(Deserialize)]
    struct Message {
        manifest_path: PathBuf,
        target: Target,
        executable: PathBuf,
    }
    #[derive(Deserialize)]
    struct Target {
        name: String,
    }
    // Messages of other kinds have no executable.
    let artifacts = messages.lines().filter_map(|line| serde_json::from_str::<Message>(line).ok());
    let named = artifacts.filter_map(|artifact| {
        let folder = artifact.manifest_path.parent()?.to_owned();
        let package = folder.file_name()?.to_str()?.to_owned();
        Some((
            (package, artifact.target.name),
            Program { executable: artifact.executable, folder, tests: Vec::new() },
        ))
    });
    named.collect()
}

/// One run of a test program.
struct Trial<'a> {
    harness: &'a Harness,
    program: &'a Program,
    plant: Option<&'a str>,
}

impl Trial<'_> {
    /// What is wrong with it, if something is.
    fn run(&self, repository: &Repository) -> Result<Option<String>> {
        let Harness { package, test, build, .. } = self.harness;
        let mut command = Command::new(&self.program.executable);
        command.current_dir(&self.program.folder);
        if !self.program.tests.is_empty() {
            command.arg("--exact").args(&self.program.tests);
        }
        if *build == Build::Loom {
            loom::bound(&mut command);
        }
        command.env(PLANT_VARIABLE, self.plant.unwrap_or(NO_PLANT));
        let start = Instant::now();
        let output = match self.plant {
            None => command::capture(&mut command)?,
            // One test that fails is enough. The others would go on for as long as they take to find nothing; so would
            // the one that failed stay silent about why, unless nothing is kept from the output.
            Some(_) => {
                command.arg("--nocapture");
                command::capture_until(&mut command, |line| failed_test(line).is_some())?
            }
        };
        let seconds = start.elapsed().as_secs_f64();
        // Kept, not shown: a log with `test result: FAILED` in it reads like a run that failed.
        let log = keep_log(repository, self.harness, self.plant.unwrap_or(NO_PLANT), &output)?;
        let (line, is_right) = match (self.plant, finding(&output)) {
            (Some(plant), Some(tests)) => (format!("`{plant}` was found by {tests}"), true),
            (Some(plant), None) => (format!("`{plant}` was NOT found"), false),
            (None, None) => ("passes without a bug".to_owned(), true),
            (None, Some(tests)) => (format!("FAILS without a bug: {tests}"), false),
        };
        let line = format!("planted: {package} {test}: {line}, {seconds:.1} s ({log})");
        println!("{line}");
        Ok((!is_right).then_some(line))
    }
}

/// The tests that failed, if the run failed.
fn finding(output: &Output) -> Option<String> {
    if output.status.success() {
        return None;
    }
    let stdout = String::from_utf8_lossy(&output.stdout);
    let failed: Vec<&str> = stdout.lines().filter_map(failed_test).collect();
    // A test can also abort the whole program, and then there is no such line.
    Some(if failed.is_empty() { format!("{}", output.status) } else { failed.join(", ") })
}

fn failed_test(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
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
    fn programs_are_found_in_what_cargo_says() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","manifest_path":"/r/crates/ob-kv/Cargo.toml","#,
            r#""target":{"kind":["lib"],"name":"ob_kv"},"executable":null}"#,
            "\n",
            r#"{"reason":"compiler-artifact","manifest_path":"/r/crates/ob-kv/Cargo.toml","#,
            r#""target":{"kind":["test"],"name":"model"},"executable":"/r/target/debug/deps/model-1"}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
        );
        let found = programs(messages);
        let program = Program {
            executable: "/r/target/debug/deps/model-1".into(),
            folder: "/r/crates/ob-kv".into(),
            tests: Vec::new(),
        };
        assert_eq!(found, Programs::from([(("ob-kv".to_owned(), "model".to_owned()), program)]));
    }

    #[test]
    fn a_module_is_not_taken_for_one_whose_name_ends_like_its_own() {
        let list = "foreign_model::a: test\nmodel::b: test\nmodel::deeper::c: test\nmodel_of::d: test\nmodel::e: bench\n";
        assert_eq!(tests_of(list, "model"), ["model::b", "model::deeper::c"]);
    }

    #[test]
    fn ci_tries_some_bugs_and_comes_round_to_all() {
        for (at, harness) in HARNESSES.iter().enumerate() {
            let numbers = 0..harness.plants.len() * HARNESSES_A_TRIAL;
            let tried: BTreeSet<&str> =
                numbers.flat_map(|number| Chosen::Some(number).of(at, harness)).collect();
            assert_eq!(tried, harness.plants.iter().copied().collect());
        }
        for number in [0, 1, 2, 3, usize::MAX] {
            let tried = |(at, harness): (usize, &Harness)| Chosen::Some(number).of(at, harness).len();
            let count: usize = HARNESSES.iter().enumerate().map(tried).sum();
            assert!(count.abs_diff(HARNESSES.len() / HARNESSES_A_TRIAL) <= 1, "{count} with {number}");
        }
        let none = Harness { package: "xtask", test: "itself", build: Build::Plain, plants: &[] };
        assert!(Chosen::Some(4).of(0, &none).is_empty());
    }

    #[test]
    fn a_trial_tells_a_bug_that_was_found_from_one_that_was_not() {
        let repository = Repository::here().unwrap();
        let harness = Harness { package: "xtask", test: "itself", build: Build::Plain, plants: &[] };
        // One program fails whatever is planted, the other never does.
        let folder = repository.root();
        let program =
            |name: &str| Program { executable: name.into(), folder: folder.to_owned(), tests: vec![] };
        let (always, never) = (program("false"), program("true"));
        let is_right =
            |program, plant| Trial { harness: &harness, program, plant }.run(&repository).unwrap().is_none();
        assert!(is_right(&always, Some("a-bug")) && is_right(&never, None));
        assert!(!is_right(&never, Some("a-bug")) && !is_right(&always, None));
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
