//! `cargo xtask planted`: bugs put in on purpose, which the tests must find.
//!
//! A test that has never failed proves little. A crate can break itself in the ways that its tests exist to find (`ob-plant`),
//! where it is built for tests; the variable `OB_PLANT` names the one bug to break it with. A name that the crate does not
//! know must change nothing, so that a misspelled plant shows up here as one that was not found.

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
    Harness { package: "ob-ring", test: "bulk", build: Build::Plain, plants: &["message-before-bulk"] },
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
        package: "ob-ebpf",
        test: "number",
        build: Build::Plain,
        plants: &[
            "bound-off-by-one",
            "upper-half-kept",
            "join-forgets-bits",
            "carry-forgotten",
            "zero-divisor-forgotten",
            "end-excluded",
            "widened-too-little",
        ],
    },
    Harness {
        package: "ob-ebpf",
        test: "campaign",
        build: Build::Plain,
        plants: &[
            "range-off-by-one",
            "halves-compared",
            "merge-keeps-one",
            "stale-spill",
            "relation-kept",
            "frames-not-shifted",
            "null-check-spreads",
            "wrapped-bound",
            "check-tells-too-much",
            "smudge-forgotten",
            "answer-kept",
            "edge-for-less",
            "helper-left-out",
        ],
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
            "change-uncounted",
            "version-while-changing",
        ],
    },
    Harness {
        package: "ob-scenarios",
        test: "kv",
        build: Build::Plain,
        plants: &[
            "unchecked-read",
            "forward-past-read",
            "stale-replaces",
            "flush-keeps",
            "answer-before-durable",
            "settled-with-gaps",
            "unlocked-change",
            "clock-unmeasured",
            "no-margin",
            "partly-answered",
            "not-revisited",
            "life-unmarked",
            "answers-kept",
            "unchecked-program",
        ],
    },
    Harness {
        package: "ob-kv",
        test: "revisit",
        build: Build::Plain,
        plants: &["not-revisited", "gap-left", "life-unmarked", "recovered-not-flushed", "durable-early"],
    },
    Harness {
        package: "ob-rocksdb",
        test: "agree",
        build: Build::Plain,
        plants: &[
            "range-tombstones-ignored",
            "first-table-ends",
            "snapshot-ignored",
            "logs-ignored",
            "merge-base-forgotten",
            "filter-hash-of-today",
        ],
    },
    Harness { package: "ob-files-card", test: "durable", build: Build::Plain, plants: &["flush-assumed"] },
    Harness {
        package: "ob-files-card",
        test: "earlier_builds",
        build: Build::Plain,
        plants: &["node-fields-swapped"],
    },
    Harness {
        package: "ob-kv",
        test: "earlier_builds",
        build: Build::Plain,
        plants: &["record-fields-swapped"],
    },
    Harness {
        package: "ob-nvme",
        test: "earlier_builds",
        build: Build::Plain,
        plants: &["registrant-fields-swapped"],
    },
    Harness { package: "ob-offload", test: "programmed", build: Build::Plain, plants: &["outdated-check"] },
    Harness { package: "ob-kv", test: "files_heard", build: Build::Plain, plants: &["file-unheard"] },
    Harness { package: "ob-kv", test: "clock_told", build: Build::Plain, plants: &["clock-untold"] },
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
        plants: &["orphans-forgotten", "orphans-kept", "fua-ignored", "flush-at-once"],
    },
    Harness {
        package: "ob-scenarios",
        test: "pushdown",
        build: Build::Plain,
        plants: &[
            "chain-versions-ignored",
            "chain-last-look-skipped",
            "withdrawn-map-read",
            "map-version-unchecked",
            "scratch-not-cleared",
            "files-of-anybody",
            "after-check-skipped",
            "map-before-lease",
            "leaves-waiting",
        ],
    },
    Harness {
        package: "ob-pushdown",
        test: "named",
        build: Build::Plain,
        plants: &["chain-versions-ignored", "chain-last-look-skipped"],
    },
    Harness {
        package: "ob-pushdown",
        test: "ends",
        build: Build::Plain,
        plants: &["withdrawn-map-read", "files-of-anybody"],
    },
    Harness { package: "ob-pushdown", test: "maps", build: Build::Plain, plants: &["map-version-unchecked"] },
    Harness {
        package: "ob-pushdown",
        test: "rocksdb",
        build: Build::Plain,
        plants: &["pushed-tombstones-forgotten", "pushed-snapshot-forgotten"],
    },
    Harness { package: "ob-pushdown", test: "keeper", build: Build::Plain, plants: &["map-not-withdrawn"] },
    Harness { package: "ob-pushdown", test: "fair", build: Build::Plain, plants: &["share-forgotten"] },
    Harness {
        package: "ob-pushdown",
        test: "many_files",
        build: Build::Plain,
        plants: &["files-of-anybody"],
    },
    Harness { package: "ob-pushdown", test: "reads", build: Build::Plain, plants: &["scratch-not-cleared"] },
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
            "write-cut",
            "read-unseen",
            "partly-answered",
            "standing-kept",
        ],
    },
    Harness {
        package: "ob-director",
        test: "random",
        build: Build::Plain,
        plants: &["forward-past-read", "fallback-alone", "admitted-at-submission", "unchecked-read"],
    },
    Harness {
        package: "ob-director",
        test: "lives",
        build: Build::Plain,
        plants: &["table-kept", "stamps-reused", "earlier-life-kept", "undecoded-ignored"],
    },
    Harness {
        package: "ob-director",
        test: "connections",
        build: Build::Plain,
        plants: &["turns-ignored", "passed-by", "never-clogged", "rest-unread", "resume-unheard"],
    },
    Harness {
        package: "ob-split",
        test: "card_faults",
        build: Build::Plain,
        plants: &["sent-given-up", "queue-late", "answer-uncovered"],
    },
    Harness { package: "ob-split", test: "card", build: Build::Plain, plants: &["decode-unretried"] },
    Harness { package: "ob-link", test: "strangers", build: Build::Plain, plants: &["anybody-attaches"] },
    Harness { package: "ob-link", test: "follow", build: Build::Plain, plants: &["part-not-followed"] },
    Harness {
        package: "ob-link",
        test: "one_turn",
        build: Build::Plain,
        plants: &["room-unasked", "end-unsaid"],
    },
    // These two want root and loop devices.
    Harness {
        package: "ob-passthrough",
        test: "mounted",
        build: Build::Plain,
        plants: &["partition-forgotten", "joined-apart"],
    },
    Harness {
        package: "ob-passthrough",
        test: "plain_files",
        build: Build::Plain,
        plants: &["unwritten-taken", "not-synced"],
    },
    Harness {
        package: "ob-passthrough",
        test: "leases",
        build: Build::Plain,
        plants: &["released-before-version", "no-grace"],
    },
    Harness { package: "ob-nvme", test: "io", build: Build::Plain, plants: &["pair-unlocked"] },
    Harness { package: "ob-nvme", test: "hostile", build: Build::Plain, plants: &["offset-unchecked"] },
    Harness {
        package: "ob-nvme",
        test: "lifetime",
        build: Build::Plain,
        plants: &[
            "replaced-not-awaited",
            "reset-heard-late",
            "shutdown-at-once",
            "refused-unheard",
            "answers-unheard",
            "lingering-watched",
            "orphans-forgotten",
        ],
    },
    Harness { package: "ob-nvme", test: "associations", build: Build::Plain, plants: &["admitted-for-ever"] },
    Harness {
        package: "ob-nvme",
        test: "foreign_model",
        build: Build::Plain,
        plants: &["chains-pass-ranges", "service-forgotten", "orphans-forgotten"],
    },
    Harness {
        package: "ob-nvme",
        test: "foreign",
        build: Build::Plain,
        plants: &["admitted-for-ever", "chains-pass-ranges", "service-forgotten"],
    },
    Harness { package: "ob-files-card", test: "data", build: Build::Plain, plants: &["hole-reused-early"] },
    Harness {
        package: "ob-volume",
        test: "chunk_requests",
        build: Build::Plain,
        plants: &[
            "ack-before-durable",
            "append-unfenced",
            "seal-unfenced",
            "delete-unfenced",
            "read-unfenced",
            "old-connection-heard",
        ],
    },
    Harness {
        package: "ob-volume",
        test: "chunk_lives",
        build: Build::Plain,
        plants: &["fence-forgotten", "fill-wipes"],
    },
    Harness {
        package: "ob-volume",
        test: "chunk_rot",
        build: Build::Plain,
        plants: &["header-rot-removes", "left-alone-forgotten", "found-unflushed"],
    },
    Harness {
        package: "ob-volume",
        test: "chunk_bounds",
        build: Build::Plain,
        plants: &["ledger-believed-early"],
    },
    Harness {
        package: "ob-volume",
        test: "chunk_directory",
        build: Build::Plain,
        plants: &["directory-uncompared"],
    },
    Harness {
        package: "ob-volume",
        test: "chunk_crash",
        build: Build::Plain,
        plants: &["ack-before-durable", "fence-forgotten"],
    },
    Harness {
        package: "ob-volume",
        test: "card_encodings",
        build: Build::Plain,
        plants: &["decode-unretried"],
    },
    Harness {
        package: "ob-volume",
        test: "tier_model",
        build: Build::Plain,
        plants: &["overlaps-race", "chunk-unregistered", "piece-forgotten"],
    },
    Harness {
        package: "ob-volume",
        test: "tier_failover",
        build: Build::Plain,
        plants: &[
            "ack-two-of-three",
            "ack-before-record",
            "record-before-copy",
            "return-untruncated",
            "prefix-ignored",
        ],
    },
    Harness {
        package: "ob-volume",
        test: "tier_troubles",
        build: Build::Plain,
        plants: &["doubt-ignored", "seal-shortest", "chunk-number-reused"],
    },
    Harness { package: "ob-volume", test: "tier_commands", build: Build::Plain, plants: &["parked-again"] },
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
            "stamp-in-two-groups",
            "attests-locked",
            "attests-unsettled",
            "durable-early",
            "recovered-not-flushed",
        ],
    },
    Harness { package: "ob-kv", test: "damage", build: Build::Plain, plants: &["damage-is-the-end"] },
    Harness { package: "ob-kv", test: "space", build: Build::Plain, plants: &["reserve-given-away"] },
    Harness {
        package: "ob-kv",
        test: "rounds",
        build: Build::Plain,
        plants: &["removals-unbounded", "rounds-left-out", "copies-scattered"],
    },
];

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
    try_plants(repository, arguments.plant.as_deref(), Sound::Shown)
}

/// Runs all plants, in programs that are known to pass without one, since the steps `test` and `loom` have run them; but for those
/// that look longer for a bug.
///
/// # Errors
/// As [`run`].
pub fn run_in_ci(repository: &Repository) -> Result<Outcome> {
    try_plants(repository, None, Sound::Known)
}

/// That a test program passes without a plant. Where its tests fail anyway, every plant would look found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sound {
    /// It has just been run.
    Known,
    /// It is run here.
    Shown,
}

fn try_plants(repository: &Repository, chosen: Option<&str>, sound: Sound) -> Result<Outcome> {
    if let Some(plant) = chosen
        && !HARNESSES.iter().any(|harness| harness.plants.contains(&plant))
    {
        let known: Vec<&str> = HARNESSES.iter().flat_map(|harness| harness.plants).copied().collect();
        bail!("no plant is called `{plant}`; there are: {}", known.join(", "));
    }
    let is_chosen = |plant: &str| chosen.is_none_or(|chosen| chosen == plant);
    let harnesses: Vec<&Harness> =
        HARNESSES.iter().filter(|harness| harness.plants.iter().any(|plant| is_chosen(plant))).collect();
    let programs = build(repository, &harnesses)?;
    let mut trials = Vec::new();
    for (harness, program) in harnesses.iter().zip(&programs) {
        if sound == Sound::Shown || harness.package == LOOKS_LONGER {
            trials.push(Trial { harness, program, plant: None });
        }
        let plants = harness.plants.iter().copied().filter(|plant| is_chosen(plant));
        trials.extend(plants.map(|plant| Trial { harness, program, plant: Some(plant) }));
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
    if kind == Build::Loom {
        command.args(packages.iter().flat_map(|package| ["--package", package]));
    }
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
