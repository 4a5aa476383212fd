//! Where the repository is, and where its build products go.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

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
}
