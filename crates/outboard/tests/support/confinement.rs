//! A bound on a process' memory that the kernel keeps.
//!
//! Everywhere: on what it may have mapped for itself (`RLIMIT_DATA`), which anyone can set. Where `OUTBOARD_TEST_CGROUP` names a
//! folder of the cgroup file system in which groups may be made, and which has the memory controller: on what it really
//! uses as well, its share of the page cache included. No group is made unasked: the one that a test runs in belongs to whoever
//! runs the tests.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

const FOLDER_VARIABLE: &str = "OUTBOARD_TEST_CGROUP";

/// A bound for a program that is started behind [`Confinement::script`].
pub(crate) struct Confinement {
    bytes_max: u64,
    group: Option<PathBuf>,
}

impl Confinement {
    pub(crate) fn new(bytes_max: u64) -> Self {
        let group = std::env::var_os(FOLDER_VARIABLE).map(|folder| make_group(Path::new(&folder), bytes_max));
        if group.is_none() {
            ob_plant::not_tested(format_args!(
                "no cgroup bounds the host, because {FOLDER_VARIABLE} is not set; RLIMIT_DATA does"
            ));
        }
        Self { bytes_max, group }
    }

    /// What a shell does to itself before it becomes the program.
    pub(crate) fn script(&self) -> String {
        let limit = format!("ulimit -d {}", self.bytes_max >> 10);
        match &self.group {
            None => limit,
            Some(group) => format!("{limit} && echo $$ > '{}/cgroup.procs'", group.display()),
        }
    }
}

impl Drop for Confinement {
    fn drop(&mut self) {
        if let Some(group) = &self.group {
            // Empty, because whoever was in it has ended. Where it is not, a test has failed already.
            let _ = std::fs::remove_dir(group);
        }
    }
}

fn make_group(folder: &Path, bytes_max: u64) -> PathBuf {
    static GROUPS: AtomicU32 = AtomicU32::new(0);
    let number = GROUPS.fetch_add(1, Ordering::Relaxed);
    let group = folder.join(format!("outboard-test-{}-{number}", std::process::id()));
    std::fs::create_dir(&group).unwrap();
    // The second version of cgroups, then the first.
    let limits = ["memory.max", "memory.limit_in_bytes"].map(|name| group.join(name));
    let limit = limits.iter().find(|limit| limit.exists()).unwrap();
    std::fs::write(limit, bytes_max.to_string()).unwrap();
    group
}

/// The most memory that a process has had in its life, in bytes.
pub(crate) fn memory_peak(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}
