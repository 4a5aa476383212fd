//! Of what, where and how was measured: kept beside the reports, so that a document can be made of them later.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::command;
use crate::repository::Repository;

/// The file's name.
pub const FILE: &str = "facts.json";

/// What the program is made of; changes elsewhere do not change what is measured.
const SOURCES: &[&str] = &["crates", "Cargo.toml", "Cargo.lock", ".cargo"];

/// What is known of the reports in a folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Facts {
    /// The commit that was checked out.
    pub commit: String,
    /// Whether sources of the program had changes that are in no commit.
    pub is_changed: bool,
    /// The program, if it was not built for this.
    pub program: Option<PathBuf>,
    /// The day on which it was begun.
    pub day: String,
    /// The machine.
    pub machine: Machine,
    /// Whether benchmarks did only enough to see that they work.
    pub quick: bool,
    /// How often each is run.
    pub runs: u32,
    /// SPDK's folder.
    pub spdk: Option<PathBuf>,
    /// The folder of what is measured against, and of RocksDB.
    pub peers: Option<PathBuf>,
    /// Seconds that each benchmark has taken, run by run, by the report's name.
    pub seconds: BTreeMap<String, f64>,
}

/// What figures depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// How many cores.
    pub cores: usize,
    /// What they are called.
    pub processor: String,
    /// Whether it is a virtual machine.
    pub is_virtual: bool,
    /// Memory, in GiB.
    pub memory_gib: u64,
    /// The kernel's version.
    pub kernel: String,
    /// What benchmarks put their files on.
    pub disk: String,
}

impl Facts {
    /// The commit, and whether it is all that was measured.
    ///
    /// # Errors
    /// When git does not answer.
    pub fn commit(repository: &Repository) -> Result<(String, bool)> {
        let output = command::capture(&mut git(repository, &["rev-parse", "HEAD"]))?;
        if !output.status.success() {
            bail!(
                "git does not say which commit this is: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        let commit = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let is_changed = differs(repository, &commit);
        Ok((commit, is_changed))
    }

    /// Reads them, if the folder has some.
    ///
    /// # Errors
    /// When there are some, and they cannot be read.
    pub fn read(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(FILE);
        if !path.exists() {
            return Ok(None);
        }
        let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let facts = serde_json::from_slice(&text);
        facts.map(Some).with_context(|| format!("{} is not what this verb has written", path.display()))
    }

    /// Writes them beside the reports.
    ///
    /// # Errors
    /// When that fails.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join(FILE);
        let text = serde_json::to_string_pretty(self)? + "\n";
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Looks whether what is measured now may stand beside what was measured then.
    ///
    /// # Errors
    /// When it may not, because this differs.
    pub fn require_the_same(&self, now: &Self, is_source_changed: bool) -> Result<()> {
        let differences = [
            (is_source_changed, "of other sources: check out their commit"),
            (self.program != now.program, "of another program: give the same --outboard"),
            (self.machine != now.machine, "of another machine, or of another disk of this one"),
            (self.quick != now.quick, "of other lengths: give --quick to both or to neither"),
            (self.spdk != now.spdk, "with another --spdk: give the same"),
            (self.peers != now.peers, "with other --peers: give the same"),
        ];
        match differences.into_iter().find(|(differs, _)| *differs) {
            Some((_, how)) => bail!(
                "the reports that are there (commit {}, {}) are {how}, or begin anew elsewhere",
                self.commit,
                self.day
            ),
            None => Ok(()),
        }
    }

    /// Whether the sources of the program are others now than when this was measured.
    #[must_use]
    pub fn is_source_changed(&self, repository: &Repository) -> bool {
        // Nothing is known of changes that no commit has.
        self.program.is_none() && (self.is_changed || differs(repository, &self.commit))
    }
}

/// Today, as people of all places write it.
///
/// # Errors
/// When nobody says.
pub fn today() -> Result<String> {
    let output = command::capture(std::process::Command::new("date").args(["-u", "+%Y-%m-%d"]))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn git(repository: &Repository, arguments: &[&str]) -> std::process::Command {
    command::program(repository, "git", arguments)
}

fn differs(repository: &Repository, commit: &str) -> bool {
    let arguments = [&["diff", "--quiet", commit, "--"][..], SOURCES].concat();
    !command::succeeds(&mut git(repository, &arguments))
}

impl Machine {
    /// This one, with files in that folder.
    ///
    /// # Errors
    /// When the kernel does not say what it says everywhere.
    pub fn here(folder: &Path) -> Result<Self> {
        let read = |path: &str| fs::read_to_string(path).with_context(|| format!("cannot read {path}"));
        let processors = read("/proc/cpuinfo")?;
        let field = |name: &str| {
            let line = processors.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.split_once(':')).map_or("", |(_, value)| value.trim())
        };
        let memory = read("/proc/meminfo")?;
        let kibibytes = memory
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        Ok(Self {
            cores: std::thread::available_parallelism()?.get(),
            processor: field("model name").to_owned(),
            is_virtual: field("flags").split(' ').any(|flag| flag == "hypervisor"),
            memory_gib: kibibytes.context("/proc/meminfo does not say how much there is")? >> 20,
            kernel: read("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            disk: disk(&read("/proc/self/mountinfo")?, &std::path::absolute(folder)?),
        })
    }
}

/// The file system that a path is on, and what that is on.
fn disk(mounts: &str, path: &Path) -> String {
    // proc_pid_mountinfo(5): ID PARENT MAJOR:MINOR ROOT POINT OPTIONS ... - TYPE SOURCE OPTIONS
    let mounts = mounts.lines().filter_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let point = Path::new(place.split(' ').nth(4)?);
        let (kind, source) = kind.split_once(' ')?;
        Some((point, kind, source.split(' ').next()?))
    });
    // Of two at the same place the later one hides the other.
    let nearest = mounts
        .filter(|(point, ..)| path.starts_with(point))
        .max_by_key(|(point, ..)| point.components().count());
    nearest.map_or_else(|| "unknown".to_owned(), |(_, kind, source)| format!("{kind} on {source}"))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::results) fn sample() -> Facts {
        let machine = Machine {
            cores: 2,
            processor: "Some Processor".to_owned(),
            is_virtual: true,
            memory_gib: 23,
            kernel: "6.1.0".to_owned(),
            disk: "ext4 on /dev/vda".to_owned(),
        };
        Facts {
            commit: "0123456789abcdef".to_owned(),
            is_changed: false,
            program: None,
            day: "2026-01-02".to_owned(),
            machine,
            quick: false,
            runs: 3,
            spdk: None,
            peers: Some(PathBuf::from("/somewhere/peers")),
            seconds: BTreeMap::from([("ring.1".to_owned(), 60.0), ("ring.2".to_owned(), 90.0)]),
        }
    }

    #[test]
    fn what_differs_is_not_mixed() {
        let then = sample();
        assert!(
            then.require_the_same(&Facts { day: "2026-01-03".to_owned(), runs: 5, ..sample() }, false)
                .is_ok()
        );
        let elsewhere = Machine { cores: 4, ..sample().machine };
        for (now, is_source_changed, complaint) in [
            (sample(), true, "of other sources"),
            (Facts { program: Some(PathBuf::from("a")), ..sample() }, false, "of another program"),
            (Facts { machine: elsewhere, ..sample() }, false, "of another machine"),
            (Facts { quick: true, ..sample() }, false, "of other lengths"),
            (Facts { spdk: Some(PathBuf::from("a")), ..sample() }, false, "another --spdk"),
            (Facts { peers: None, ..sample() }, false, "other --peers"),
        ] {
            let error = then.require_the_same(&now, is_source_changed).unwrap_err().to_string();
            assert!(error.contains(complaint), "{error}");
        }
    }

    #[test]
    fn a_path_is_on_the_innermost_file_system() {
        let mounts = "27 1 254:0 / / rw - ext4 /dev/vda rw,discard\n\
                      28 27 0:25 / /tmp rw shared:1 - tmpfs none rw\n\
                      29 27 0:26 / /tmp/a rw - xfs /dev/vdb rw\n\
                      30 27 0:27 / /tmp/a rw - btrfs /dev/vdc rw\n";
        for (path, expected) in [
            ("/home", "ext4 on /dev/vda"),
            ("/tmp/b", "tmpfs on none"),
            ("/tmp/a/b", "btrfs on /dev/vdc"),
            ("/tmpfile", "ext4 on /dev/vda"),
        ] {
            assert_eq!(disk(mounts, Path::new(path)), expected, "{path}");
        }
        assert_eq!(disk("", Path::new("/")), "unknown");
    }

    #[test]
    fn this_machine_is_known() {
        let machine = Machine::here(Path::new("target")).unwrap();
        assert!(machine.cores > 0 && !machine.kernel.is_empty() && machine.disk != "unknown", "{machine:?}");
    }
}
