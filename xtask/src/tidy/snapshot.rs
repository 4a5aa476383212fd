//! What the checks look at: the checkout's texts, the names of its files, and its packages.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::command;
use crate::repository::Repository;

/// The exceptions to the length rules.
pub const RATCHET: &str = "xtask/ratchet.toml";

/// A checkout at one moment. All paths are relative to its root, with `/` between their parts.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The texts that checks read: Rust, Markdown, manifests and the ratchet.
    pub texts: BTreeMap<String, String>,
    /// Every file and folder; the root is the empty path.
    pub paths: BTreeSet<String>,
    /// The workspace's packages.
    pub packages: Vec<Package>,
    /// What others wrote and the workspace is built with, each with its licence as the manifest says it.
    pub licences: Vec<(String, String)>,
}

/// A package of the workspace.
#[derive(Clone, Debug, Default)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// The folder of its manifest.
    pub folder: String,
    /// What it depends on, in the workspace or not.
    pub dependencies: Vec<Dependency>,
    /// The root file of its library, if it has one.
    pub library: Option<String>,
    /// The root files of its programs.
    pub programs: Vec<String>,
}

impl Package {
    /// Where its dependencies are written.
    #[must_use]
    pub fn manifest(&self) -> String {
        format!("{}/Cargo.toml", self.folder)
    }

    /// The files with which its library and its programs begin.
    pub fn roots(&self) -> impl Iterator<Item = &str> {
        self.library.iter().chain(&self.programs).map(String::as_str)
    }
}

/// One line of a manifest's dependencies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dependency {
    /// The package that is depended on.
    pub name: String,
    /// Only tests, examples and benches see it.
    pub is_for_development: bool,
}

impl Snapshot {
    /// Reads the checkout.
    ///
    /// # Errors
    /// When a file or cargo's description of the workspace cannot be read.
    pub fn take(repository: &Repository) -> Result<Self> {
        let (packages, licences) = packages(repository)?;
        let mut snapshot = Self { packages, licences, ..Self::default() };
        snapshot.paths.insert(String::new());
        snapshot.walk(repository.root(), "")?;
        Ok(snapshot)
    }

    /// The Rust sources, with their paths.
    pub fn rust_sources(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts_ending_in(".rs")
    }

    /// The texts whose path ends so.
    pub fn texts_ending_in(&self, ending: &'static str) -> impl Iterator<Item = (&str, &str)> {
        let texts = self.texts.iter().filter(move |(path, _)| path.ends_with(ending));
        texts.map(|(path, text)| (path.as_str(), text.as_str()))
    }

    fn walk(&mut self, folder: &Path, relative: &str) -> Result<()> {
        // Cargo marks its target folders, whatever they are called.
        if folder.join("CACHEDIR.TAG").exists() {
            return Ok(());
        }
        let entries = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
        for entry in entries {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else {
                bail!("{}: a file's name is not text", folder.display());
            };
            let path = if relative.is_empty() { name.clone() } else { format!("{relative}/{name}") };
            self.paths.insert(path.clone());
            // Links are not followed: what they lead to is seen where it is, or is not ours.
            let kind = entry.file_type()?;
            if kind.is_dir() && name != ".git" {
                self.walk(&entry.path(), &path)?;
            } else if kind.is_file() && (is_read(&name) || path == RATCHET) {
                let text = fs::read_to_string(entry.path()).with_context(|| format!("cannot read {path}"))?;
                self.texts.insert(path, text);
            }
        }
        Ok(())
    }
}

// The part of `cargo metadata`'s answer that we need.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<MetadataPackage>,
    workspace_members: Vec<String>,
}

#[derive(Deserialize)]
struct MetadataPackage {
    id: String,
    name: String,
    license: Option<String>,
    manifest_path: String,
    dependencies: Vec<MetadataDependency>,
    targets: Vec<MetadataTarget>,
}

#[derive(Deserialize)]
struct MetadataDependency {
    name: String,
    kind: Option<String>,
}

#[derive(Deserialize)]
struct MetadataTarget {
    kind: Vec<String>,
    src_path: String,
}

type Packages = (Vec<Package>, Vec<(String, String)>);

fn packages(repository: &Repository) -> Result<Packages> {
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let arguments = ["metadata", "--locked", "--format-version", "1", "--filter-platform", &platform];
    let output = command::capture(&mut command::cargo(repository, &arguments))?;
    if !output.status.success() {
        bail!("`cargo metadata` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    packages_from(&output.stdout, repository.root())
}

fn packages_from(metadata: &[u8], root: &Path) -> Result<Packages> {
    let metadata: Metadata =
        serde_json::from_slice(metadata).context("`cargo metadata` answered something new")?;
    let (ours, others): (Vec<_>, Vec<_>) =
        metadata.packages.into_iter().partition(|package| metadata.workspace_members.contains(&package.id));
    let ours = ours.into_iter().map(|package| package.into_package(root)).collect::<Result<_>>()?;
    Ok((
        ours,
        others.into_iter().map(|package| (package.name, package.license.unwrap_or_default())).collect(),
    ))
}

impl MetadataPackage {
    fn into_package(self, root: &Path) -> Result<Package> {
        let relative = |path: &str| -> Result<String> {
            let inside = Path::new(path).strip_prefix(root);
            let inside = inside.with_context(|| format!("{path} is not in {}", root.display()))?;
            Ok(inside.to_string_lossy().into_owned())
        };
        let manifest = relative(&self.manifest_path)?;
        let folder =
            manifest.strip_suffix("Cargo.toml").unwrap_or(&manifest).trim_end_matches('/').to_owned();
        let dependency = |dependency: MetadataDependency| Dependency {
            name: dependency.name,
            is_for_development: dependency.kind.as_deref() == Some("dev"),
        };
        let mut package = Package {
            name: self.name,
            folder,
            dependencies: self.dependencies.into_iter().map(dependency).collect(),
            ..Package::default()
        };
        for target in &self.targets {
            if target.kind.iter().any(|kind| kind.ends_with("lib") || kind == "proc-macro") {
                package.library = Some(relative(&target.src_path)?);
            } else if target.kind.iter().any(|kind| kind == "bin") {
                package.programs.push(relative(&target.src_path)?);
            }
        }
        Ok(package)
    }
}

#[cfg(test)]
impl Snapshot {
    /// A checkout that holds these texts and no packages, for the tests of the checks.
    pub(crate) fn of(texts: &[(&str, &str)]) -> Self {
        let mut snapshot = Self::default();
        for (path, text) in texts {
            snapshot.texts.insert((*path).to_owned(), (*text).to_owned());
            snapshot
                .paths
                .extend(Path::new(path).ancestors().map(|path| path.to_string_lossy().into_owned()));
        }
        snapshot
    }
}

fn is_read(name: &str) -> bool {
    name.ends_with(".rs") || name.ends_with(".md") || name == "Cargo.toml"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_becomes_packages() {
        let metadata = br#"{"workspace_members": ["ours"], "packages": [{
            "id": "theirs", "name": "other", "license": "MIT", "manifest_path": "/elsewhere/Cargo.toml",
            "dependencies": [], "targets": []}, {
            "id": "ours", "name": "ob-kv", "license": null, "manifest_path": "/checkout/crates/ob-kv/Cargo.toml",
            "dependencies": [{"name": "ob-core", "kind": null}, {"name": "ob-sim", "kind": "dev"}],
            "targets": [{"kind": ["cdylib", "rlib"], "src_path": "/checkout/crates/ob-kv/src/lib.rs"},
                        {"kind": ["test"], "src_path": "/checkout/crates/ob-kv/tests/model.rs"},
                        {"kind": ["bin"], "src_path": "/checkout/crates/ob-kv/src/main.rs"}]}]}"#;
        let (packages, licences) = packages_from(metadata, Path::new("/checkout")).unwrap();
        assert_eq!(licences, [("other".to_owned(), "MIT".to_owned())]);
        let [package] = &packages[..] else { panic!("{packages:?}") };
        assert_eq!((package.name.as_str(), package.folder.as_str()), ("ob-kv", "crates/ob-kv"));
        assert_eq!(
            package.dependencies[0],
            Dependency { name: "ob-core".to_owned(), is_for_development: false }
        );
        assert_eq!(
            package.dependencies[1],
            Dependency { name: "ob-sim".to_owned(), is_for_development: true }
        );
        let roots: Vec<&str> = package.roots().collect();
        assert_eq!(roots, ["crates/ob-kv/src/lib.rs", "crates/ob-kv/src/main.rs"]);
    }
}
