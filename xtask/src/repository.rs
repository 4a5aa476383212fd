//! Where the repository is, and where its build products go.

use std::env;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::command;

/// The checkout that this xtask belongs to.
#[derive(Clone, Debug)]
pub struct Repository {
    root: PathBuf,
}

impl Repository {
    /// The checkout that cargo runs us from.
    ///
    /// # Errors
    /// When xtask's folder has no parent.
    pub fn here() -> Result<Self> {
        // Cargo sets the variable at run time too: a binary that was built in another checkout (a shared target
        // folder) must look at the checkout where it was called.
        let manifest_folder = env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = manifest_folder.parent().context("xtask's folder has no parent")?;
        Ok(Self { root: root.to_owned() })
    }

    /// The folder that holds the workspace's `Cargo.toml`.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A folder for build products of its own kind, below cargo's target folder.
    ///
    /// Builds with other flags get a folder each: in a shared one they would throw out each other's products,
    /// and every `cargo xtask ci` would build everything anew.
    #[must_use]
    pub fn target_folder(&self, kind: &str) -> PathBuf {
        let base = env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
        self.root.join(base).join(kind)
    }

    /// For how long nothing below these paths has changed, counted back from the newest commit. `None` where files differ from that commit, and
    /// where there is no history to look at.
    #[must_use]
    pub fn unchanged_for(&self, paths: &[&str]) -> Option<Duration> {
        let git = |arguments: &[&str]| {
            let mut command = command::program(self, "git", arguments);
            let output = command::capture(command.arg("--").args(paths)).ok()?;
            output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        // In a history that was cut off, its first commit would look like the last change.
        let is_whole =
            command::capture(&mut command::program(self, "git", &["rev-parse", "--is-shallow-repository"]));
        if String::from_utf8_lossy(&is_whole.ok()?.stdout).trim() != "false" {
            return None;
        }
        if !git(&["status", "--porcelain"])?.is_empty() {
            return None;
        }
        let changed: u64 = git(&["log", "-1", "--format=%ct", "HEAD"])?.parse().ok()?;
        let newest = command::capture(&mut command::program(self, "git", &["log", "-1", "--format=%ct"]));
        let newest: u64 = String::from_utf8_lossy(&newest.ok()?.stdout).trim().parse().ok()?;
        Some(Duration::from_secs(newest.saturating_sub(changed)))
    }
}
