//! Dependencies point upwards only.
//!
//! ```text
//!   memory ◀── words and bytes ◀── mechanisms ◀── services ◀── scenarios ◀── the binary
//! ```
//!
//! Within a block the order of the list is the order of dependence, so the whole rule is one sentence: a crate
//! depends only on crates that stand before it in [`BLOCKS`]. Three rules more keep the halves and the drivers apart.

use super::Violation;
use super::snapshot::{Dependency, Package, Snapshot};

/// The workspace's crates, in order. A new crate is added here, at the place that ARCHITECTURE.md gives it.
pub const BLOCKS: &[Block] = &[
    Block { name: "memory", crates: &["ob-plant", "ob-memory"] },
    Block {
        name: "words and bytes",
        crates: &["ob-core", "ob-wire-link", "ob-wire-nvme", "ob-wire-rados", "ob-format"],
    },
    Block {
        name: "mechanisms",
        crates: &[
            "ob-ring",
            "ob-table",
            "ob-ebpf",
            "outboard-program",
            "ob-programs",
            "ob-io",
            "ob-passthrough",
            "ob-link",
            SIMULATOR,
        ],
    },
    Block {
        name: SERVICES,
        crates: &[
            "ob-files-card",
            "ob-files-host",
            "liboutboard",
            "ob-nvme",
            "ob-offload",
            "ob-director",
            "ob-kv",
            "ob-pages",
            "ob-rocksdb",
            "ob-pushdown",
            "ob-split",
            "ob-volume",
            "ob-object",
        ],
    },
    Block { name: "scenarios", crates: &["ob-scenarios"] },
    Block { name: "the binary", crates: &["outboard"] },
];

const SERVICES: &str = "services";
const SIMULATOR: &str = "ob-sim";

// The simulator implements the same traits as the real drivers and links against them: for a service it is one of them,
// except in tests.
const DRIVERS: &[&str] = &["ob-io", "ob-passthrough", "ob-link", SIMULATOR];

// Services that use drivers all the same: which, and the reason. The simulator is a driver that no application needs.
const WITH_DRIVERS: &[(&str, &[&str], &str)] = &[
    (
        "ob-files-host",
        &["ob-io", "ob-link"],
        "it is what an application links, so it brings its driver along",
    ),
    ("liboutboard", &["ob-io", "ob-link"], "it is the same library for programs in C"),
    ("ob-pushdown", &["ob-passthrough"], "it has the driver of clients above a stock kernel"),
];

// Pairs that the order alone would allow.
const FORBIDDEN: &[(&str, &str, &str)] = &[
    ("ob-files-host", "ob-files-card", "an application must not link the card's half"),
    ("liboutboard", "ob-files-card", "an application must not link the card's half"),
];

/// Crates of one level.
#[derive(Debug)]
pub struct Block {
    /// The level's name in the design.
    pub name: &'static str,
    /// Its crates, each of which may depend on those before it.
    pub crates: &'static [&'static str],
}

#[derive(Clone, Copy)]
struct Place {
    block: &'static str,
    rank: usize,
}

fn place_of(name: &str) -> Option<Place> {
    let all = BLOCKS.iter().flat_map(|block| block.crates.iter().map(|member| (block.name, *member)));
    all.enumerate().find(|(_, (_, member))| *member == name).map(|(rank, (block, _))| Place { block, rank })
}

/// Finds dependencies that point the wrong way, and crates that have no place.
#[must_use]
pub fn check(snapshot: &Snapshot) -> Vec<Violation> {
    let is_member = |name: &str| snapshot.packages.iter().any(|package| package.name == name);
    let mut violations = Vec::new();
    for package in snapshot.packages.iter().filter(|package| !is_exempt(package)) {
        let Some(place) = place_of(&package.name) else {
            let message =
                format!("`{}` has no place in the layers: add it to BLOCKS in {}", package.name, file!());
            violations.push(Violation::of(&package.manifest(), message));
            continue;
        };
        for dependency in package.dependencies.iter().filter(|dependency| is_member(&dependency.name)) {
            if let Some(reason) = objection(package, place, dependency) {
                let message = format!("`{}` may not depend on `{}`: {reason}", package.name, dependency.name);
                violations.push(Violation::of(&package.manifest(), message));
            }
        }
    }
    violations
}

/// Tools and examples stand outside of the product and may use all of it.
fn is_exempt(package: &Package) -> bool {
    package.name == "xtask" || package.folder.starts_with("examples/")
}

fn objection(package: &Package, place: Place, dependency: &Dependency) -> Option<String> {
    let target = dependency.name.as_str();
    // A crate's tests may ask for more of its own features.
    if dependency.is_for_development && (target == SIMULATOR || target == package.name) {
        return None;
    }
    // A test may need both ends of something; what people link may not.
    let forbidden = FORBIDDEN.iter().find(|(from, to, _)| (*from, *to) == (&package.name, target));
    if let Some((.., reason)) = forbidden.filter(|_| !dependency.is_for_development) {
        return Some((*reason).to_owned());
    }
    // A member without a place: it may be exempt itself, and product code must not use such.
    let Some(target_place) = place_of(target) else {
        return Some(format!("`{target}` has no place in the layers"));
    };
    let brings_it =
        WITH_DRIVERS.iter().any(|(name, drivers, _)| *name == package.name && drivers.contains(&target));
    if place.block == SERVICES && DRIVERS.contains(&target) && !brings_it {
        return Some("services know the traits of ob-core, not the drivers".to_owned());
    }
    if target_place.rank >= place.rank {
        return Some(if target_place.block == place.block {
            format!("within {} it does not stand before it", place.block)
        } else {
            format!("{} stand below {}", target_place.block, place.block)
        });
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, normal: &[&str], development: &[&str]) -> Package {
        let named = |names: &[&str], is_for_development| -> Vec<Dependency> {
            names.iter().map(|name| Dependency { name: (*name).to_owned(), is_for_development }).collect()
        };
        Package {
            name: name.to_owned(),
            folder: format!("crates/{name}"),
            dependencies: [named(normal, false), named(development, true)].concat(),
            ..Package::default()
        }
    }

    // All known crates exist, but only the one under test depends on anything.
    fn messages(package: Package) -> Vec<String> {
        let mut packages: Vec<Package> =
            BLOCKS.iter().flat_map(|block| block.crates).map(|name| self::package(name, &[], &[])).collect();
        packages.retain(|other| other.name != package.name);
        packages.push(package);
        check(&Snapshot { packages, ..Snapshot::default() }).into_iter().map(|found| found.message).collect()
    }

    #[test]
    fn dependencies_that_point_upwards_pass() {
        for fine in [
            package("ob-memory", &["serde"], &["proptest"]),
            package("ob-core", &["ob-memory"], &[]),
            package("ob-link", &["ob-ring", "ob-io"], &[]),
            package("ob-kv", &["ob-ring", "ob-offload"], &["ob-sim"]),
            package("ob-memory", &[], &["ob-sim"]),
            package("ob-ebpf", &[], &["ob-ebpf"]),
            package("ob-files-host", &["ob-io", "ob-link"], &["ob-files-card"]),
            package("liboutboard", &["ob-files-host", "ob-link"], &["ob-io"]),
            package("ob-pushdown", &["ob-nvme", "ob-passthrough"], &["ob-sim"]),
            package("outboard", &["ob-io", "ob-link", "ob-sim", "ob-kv"], &[]),
            package("xtask", &["outboard"], &[]),
        ] {
            let name = fine.name.clone();
            assert_eq!(messages(fine), Vec::<String>::new(), "{name}");
        }
    }

    #[test]
    fn each_kind_of_wrong_dependency_is_found() {
        for (wrong, reason) in [
            (package("ob-core", &["ob-ring"], &[]), "mechanisms stand below words and bytes"),
            (package("ob-ring", &["ob-io"], &[]), "within mechanisms it does not stand before it"),
            (package("ob-nvme", &["ob-kv"], &[]), "within services it does not stand before it"),
            (package("ob-nvme", &["ob-io"], &[]), "not the drivers"),
            (package("ob-nvme", &[], &["ob-link"]), "not the drivers"),
            (package("ob-nvme", &["ob-sim"], &[]), "not the drivers"),
            (package("ob-files-host", &["ob-files-card"], &[]), "must not link the card's half"),
            (package("liboutboard", &["ob-files-card"], &[]), "must not link the card's half"),
            (package("ob-files-host", &["ob-sim"], &[]), "not the drivers"),
            (package("ob-rocksdb", &["ob-passthrough"], &[]), "not the drivers"),
            (package("ob-pushdown", &["ob-io"], &[]), "not the drivers"),
            (package("ob-pushdown", &["ob-sim"], &[]), "not the drivers"),
            (package("ob-ring", &["ob-sim"], &[]), "within mechanisms it does not stand before it"),
        ] {
            let name = wrong.name.clone();
            let found = messages(wrong);
            assert_eq!(found.len(), 1, "{name}: {found:?}");
            assert!(found[0].contains(reason), "{name}: {found:?}");
        }
    }

    #[test]
    fn a_crate_without_a_place_is_told_where_to_get_one() {
        let found = messages(package("ob-surprise", &[], &[]));
        assert_eq!(
            found,
            ["`ob-surprise` has no place in the layers: add it to BLOCKS in xtask/src/tidy/layering.rs"]
        );
    }

    #[test]
    fn product_code_does_not_use_tools() {
        let packages = vec![package("ob-core", &["xtask"], &[]), package("xtask", &[], &[])];
        assert_eq!(check(&Snapshot { packages, ..Snapshot::default() }).len(), 1);
    }
}
