//! The outward shape of crates: names of folders, the words with which they introduce themselves, tests, programs, and what they are built with.

use super::Violation;
use super::snapshot::Snapshot;

const MODULE_DOC_LINES_MIN: usize = 3;

/// Finds packages whose folder is called otherwise.
#[must_use]
pub fn check_folders(snapshot: &Snapshot) -> Vec<Violation> {
    let mut violations = Vec::new();
    for package in &snapshot.packages {
        let folder = package.folder.rsplit('/').next().unwrap_or_default();
        if folder != package.name {
            let message = format!("the crate is called `{}`, so its folder must be too", package.name);
            violations.push(Violation::of(&package.manifest(), message));
        }
    }
    violations
}

/// Finds libraries that do not say what they are.
#[must_use]
pub fn check_module_docs(snapshot: &Snapshot) -> Vec<Violation> {
    let mut violations = Vec::new();
    for path in snapshot.packages.iter().filter_map(|package| package.library.as_deref()) {
        let text = snapshot.texts.get(path).map_or("", String::as_str);
        let lines = text.lines().take_while(|line| line.starts_with("//!")).count();
        if lines < MODULE_DOC_LINES_MIN {
            let message = format!(
                "begins with {lines} line(s) of module doc (`//!`), wants {MODULE_DOC_LINES_MIN} or more: what the crate \
                 is, and a small picture of what flows through it"
            );
            violations.push(Violation::at(path, 1, message));
        }
    }
    violations
}

/// Finds files of tests that nobody runs: where a crate lists its test targets itself, a file is one of them, or a module of the
/// one that the others share.
#[must_use]
pub fn check_tests(snapshot: &Snapshot) -> Vec<Violation> {
    let mut violations = Vec::new();
    for package in &snapshot.packages {
        let manifest = snapshot.texts.get(&package.manifest()).map_or("", String::as_str);
        if !manifest.lines().any(|line| line == "autotests = false") {
            continue;
        }
        let folder = format!("{}/tests/", package.folder);
        let shared = snapshot.texts.get(&format!("{folder}all.rs")).map_or("", String::as_str);
        for path in snapshot.texts.keys() {
            let Some(name) = path.strip_prefix(&folder) else { continue };
            let is_target = manifest.lines().any(|line| line == format!("path = \"tests/{name}\""));
            let module = name.strip_suffix(".rs").filter(|module| !module.contains('/'));
            let is_module =
                module.is_some_and(|module| shared.lines().any(|line| line == format!("mod {module};")));
            let is_root = module.is_some() || name.ends_with("/main.rs");
            if is_root && !is_target && !is_module {
                let message = format!("nobody runs it: say `mod` in {folder}all.rs, or make it a [[test]]");
                violations.push(Violation::of(path, message));
            }
        }
    }
    violations
}

/// Finds crates that would bring bugs that can be chosen into what people build: the feature is for tests alone.
#[must_use]
pub fn check_plants(snapshot: &Snapshot) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in snapshot.texts_ending_in("Cargo.toml") {
        let mut section = "";
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.starts_with('[') {
                section = line;
            }
            let is_its_own = path == "crates/ob-plant/Cargo.toml" && section == "[features]";
            let is_named = !line.starts_with('#') && line.contains("planted-bugs");
            if is_named && section != "[dev-dependencies]" && !is_its_own {
                let message = format!("`planted-bugs` below {section}: only [dev-dependencies] may have it");
                violations.push(Violation::at(path, index + 1, message));
            }
        }
    }
    violations
}

/// Finds programs beside the one that people run, and the chores.
#[must_use]
pub fn check_programs(snapshot: &Snapshot) -> Vec<Violation> {
    let others = snapshot.packages.iter().filter(|package| !PROGRAMS.contains(&package.name.as_str()));
    let found = others.filter(|package| !package.programs.is_empty()).map(|package| {
        Violation::of(&package.manifest(), "a program: there is one, and this is a part of it".to_owned())
    });
    found.collect()
}

const PROGRAMS: &[&str] = &["outboard", "xtask"];

/// Finds dependencies that nobody may pass on as this project is passed on.
#[must_use]
pub fn check_licences(snapshot: &Snapshot) -> Vec<Violation> {
    let is_refused = |(_, licence): &&(String, String)| !is_free(licence);
    let found = snapshot.licences.iter().filter(is_refused).map(|(name, licence)| {
        Violation::of(
            "Cargo.lock",
            format!("`{name}` is licensed `{licence}`: MIT, Apache, BSD or as free is wanted"),
        )
    });
    found.collect()
}

const FREE: &[&str] = &[
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Whether one of the choices is free in each of its parts. Old manifests have `/` for `OR`.
fn is_free(licence: &str) -> bool {
    let licence = licence.replace('/', " OR ");
    licence.split(" AND ").all(|part| {
        part.trim_matches(['(', ')'])
            .split(" OR ")
            .any(|choice| FREE.contains(&choice.trim_matches(['(', ')', ' '])))
    })
}

/// Finds test targets that a chore names and no crate has.
#[must_use]
pub fn check_named_targets(snapshot: &Snapshot) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in snapshot.texts_ending_in(".rs").filter(|(path, _)| path.starts_with("xtask/src/")) {
        for (index, line) in text.lines().enumerate() {
            let named = line.split_once(NAMED_TARGET).and_then(|(_, rest)| rest.split('"').next());
            if let Some(name) = named.filter(|name| !has_test_target(snapshot, name)) {
                violations.push(Violation::at(
                    path,
                    index + 1,
                    format!("no crate has a test target `{name}`"),
                ));
            }
        }
    }
    violations
}

// In two pieces, or this very line would name one.
const NAMED_TARGET: &str = concat!("\"--test\"", ", \"");

fn has_test_target(snapshot: &Snapshot, name: &str) -> bool {
    snapshot.packages.iter().any(|package| {
        let manifest = snapshot.texts.get(&package.manifest()).map_or("", String::as_str);
        let is_listed = manifest.lines().any(|line| line == format!("name = \"{name}\""));
        let folder = format!("{}/tests/{name}", package.folder);
        let is_found =
            [".rs", "/main.rs"].iter().any(|end| snapshot.texts.contains_key(&format!("{folder}{end}")));
        is_listed || (is_found && !manifest.contains("autotests = false"))
    })
}

#[cfg(test)]
mod tests {
    use super::super::snapshot::Package;
    use super::*;

    fn snapshot(folder: &str, library: &str) -> Snapshot {
        let mut snapshot = Snapshot::of(&[("crates/ob-kv/src/lib.rs", library)]);
        snapshot.packages.push(Package {
            name: "ob-kv".to_owned(),
            folder: folder.to_owned(),
            library: Some("crates/ob-kv/src/lib.rs".to_owned()),
            ..Package::default()
        });
        snapshot
    }

    #[test]
    fn a_folder_with_another_name_is_found() {
        assert_eq!(check_folders(&snapshot("crates/ob-kv", "")), []);
        assert_eq!(check_folders(&snapshot("crates/kv", ""))[0].path, "crates/kv/Cargo.toml");
        assert_eq!(check_folders(&snapshot("", "")).len(), 1, "the root is not a crate's folder");
    }

    #[test]
    fn a_second_program_is_found() {
        let mut snapshot = snapshot("crates/ob-kv", "");
        assert_eq!(check_programs(&snapshot), []);
        snapshot.packages[0].programs.push("crates/ob-kv/src/main.rs".to_owned());
        assert_eq!(check_programs(&snapshot)[0].path, "crates/ob-kv/Cargo.toml");
        snapshot.packages[0].name = "outboard".to_owned();
        assert_eq!(check_programs(&snapshot), []);
    }

    #[test]
    fn what_is_not_free_is_found() {
        let licences = |licence: &str| {
            let licences = vec![("other".to_owned(), licence.to_owned())];
            check_licences(&Snapshot { licences, ..Snapshot::default() }).len()
        };
        for free in [
            "MIT",
            "GPL-3.0 OR MIT",
            "Apache-2.0 / MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "MIT AND BSD-3-Clause",
        ] {
            assert_eq!(licences(free), 0, "{free}");
        }
        for other in ["", "GPL-2.0-only", "MIT AND GPL-3.0", "(MIT OR Apache-2.0) AND LGPL-2.1"] {
            assert_eq!(licences(other), 1, "{other}");
        }
    }

    #[test]
    fn bugs_that_people_could_have_are_found() {
        let plant = "ob-plant = { workspace = true, features = [\"planted-bugs\"] }";
        let right = format!("[dependencies]\nob-plant.workspace = true\n\n[dev-dependencies]\n{plant}\n");
        let wrong = format!("[dev-dependencies]\n\n[dependencies]\n{plant}\n");
        let forwarded = "[features]\nmore = [\"ob-plant/planted-bugs\"]\n";
        let snapshot = Snapshot::of(&[
            ("crates/ob-kv/Cargo.toml", &right),
            ("crates/ob-nvme/Cargo.toml", &wrong),
            ("crates/ob-plant/Cargo.toml", "[features]\n# A remark.\nplanted-bugs = []\n"),
            ("crates/outboard/Cargo.toml", forwarded),
        ]);
        let found: Vec<String> = check_plants(&snapshot).into_iter().map(|found| found.path).collect();
        assert_eq!(found, ["crates/ob-nvme/Cargo.toml", "crates/outboard/Cargo.toml"]);
    }

    #[test]
    fn a_test_that_nobody_runs_is_found() {
        let manifest = "[package]\nautotests = false\n[[test]]\npath = \"tests/all.rs\"\n[[test]]\npath = \"tests/alone/main.rs\"\n";
        let mut snapshot = Snapshot::of(&[
            ("crates/ob-kv/Cargo.toml", manifest),
            ("crates/ob-kv/tests/all.rs", "mod model;\nmod support;\n"),
            ("crates/ob-kv/tests/model.rs", ""),
            ("crates/ob-kv/tests/support/mod.rs", ""),
            ("crates/ob-kv/tests/alone/main.rs", ""),
            ("crates/ob-kv/tests/forgotten.rs", ""),
            ("crates/ob-kv/tests/lost/main.rs", ""),
        ]);
        let (name, folder) = ("ob-kv".to_owned(), "crates/ob-kv".to_owned());
        snapshot.packages.push(Package { name, folder, ..Package::default() });
        let found: Vec<String> = check_tests(&snapshot).into_iter().map(|found| found.path).collect();
        assert_eq!(found, ["crates/ob-kv/tests/forgotten.rs", "crates/ob-kv/tests/lost/main.rs"]);
        snapshot.texts.insert("crates/ob-kv/Cargo.toml".to_owned(), "[package]\n".to_owned());
        assert_eq!(check_tests(&snapshot), [], "cargo finds them itself");
    }

    #[test]
    fn a_chore_that_names_no_target_is_found() {
        let chores = "[\"test\", \"--test\", \"ob-kv-tests\"]\n[\"--test\", \"model\"]\n[\"--test\", \"loom\"]\n[\"--test\", test]\n";
        let mut snapshot = Snapshot::of(&[
            ("crates/ob-kv/Cargo.toml", "autotests = false\n[[test]]\nname = \"ob-kv-tests\"\n"),
            ("crates/ob-kv/tests/model.rs", ""),
            ("crates/ob-ring/Cargo.toml", ""),
            ("crates/ob-ring/tests/loom.rs", ""),
            ("xtask/src/chores.rs", chores),
        ]);
        for name in ["ob-kv", "ob-ring"] {
            let (name, folder) = (name.to_owned(), format!("crates/{name}"));
            snapshot.packages.push(Package { name, folder, ..Package::default() });
        }
        let [found] = &check_named_targets(&snapshot)[..] else { panic!("one is wrong") };
        assert_eq!(
            (found.path.as_str(), found.line),
            ("xtask/src/chores.rs", Some(2)),
            "a module is no target"
        );
    }

    #[test]
    fn a_short_or_late_module_doc_is_found() {
        assert_eq!(check_module_docs(&snapshot("crates/ob-kv", "//! One.\n//!\n//! Three.\n")), []);
        for library in ["//! One.\n//! Two.\n", "\n//! One.\n//! Two.\n//! Three.\n", ""] {
            assert_eq!(check_module_docs(&snapshot("crates/ob-kv", library)).len(), 1, "{library:?}");
        }
    }
}
