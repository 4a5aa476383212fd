//! Tests, files and planted bugs that the list of invariants names are there: a document that says what would notice must not rot.

use std::collections::BTreeSet;

use super::Violation;
use super::snapshot::Snapshot;
use crate::planted::HARNESSES;

/// The document.
pub const DOCUMENT: &str = "docs/invariants.md";

/// Finds names in the document that lead nowhere.
#[must_use]
pub fn check(snapshot: &Snapshot) -> Vec<Violation> {
    let Some(text) = snapshot.texts.get(DOCUMENT) else { return Vec::new() };
    let plants: BTreeSet<&str> = HARNESSES.iter().flat_map(|harness| harness.plants).copied().collect();
    let mut violations = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let mut complain = |message: String| violations.push(Violation::at(DOCUMENT, index + 1, message));
        for name in in_backticks(line) {
            if let Some(missing) = missing_file_or_test(snapshot, name) {
                complain(missing);
            }
        }
        for plant in plants_of(line).filter(|plant| !plants.contains(plant)) {
            complain(format!("no bug `{plant}` is planted (HARNESSES in xtask/src/planted.rs)"));
        }
    }
    violations
}

fn in_backticks(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The names behind "Plant" or "Plants", to the end of the sentence or of the cell.
fn plants_of(line: &str) -> impl Iterator<Item = &str> {
    line.split("Plant").skip(1).flat_map(|rest| {
        let end = rest.find(['.', '|', ';', ':', '(']).unwrap_or(rest.len());
        // What has a space in it is a command.
        in_backticks(rest.get(..end).unwrap_or_default()).filter(|name| !name.contains(' '))
    })
}

/// What is missing of `some/file.rs`, `some/file.rs::test` or `some/file.rs::{tests, of, it}`.
fn missing_file_or_test(snapshot: &Snapshot, name: &str) -> Option<String> {
    let (path, tests) = name.split_once("::").unwrap_or((name, ""));
    let is_path = path.contains('/') && !path.contains([' ', '*', '{', '}']) && !path.starts_with(['/', '.']);
    if !is_path {
        return None;
    }
    let path = match path.split('/').next() {
        Some("xtask" | "fuzz" | "docs" | "crates" | "examples" | "target") => path.to_owned(),
        _ => format!("crates/{path}"),
    };
    if path.starts_with("target/") {
        return None;
    }
    if !snapshot.paths.contains(path.trim_end_matches('/')) {
        return Some(format!("there is no {path}"));
    }
    let text = snapshot.texts.get(&path).map(String::as_str).unwrap_or_default();
    let tests = tests.trim_start_matches('{').trim_end_matches('}');
    let is_missing = |test: &&str| !test.is_empty() && !text.contains(&format!("fn {test}("));
    let missing = tests.split(',').map(str::trim).find(is_missing)?;
    Some(format!("there is no `{missing}` in {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(document: &str) -> usize {
        let test = "#[test]\nfn one_is_one() {}\n#[test]\nfn two_are_two() {}\n";
        let texts =
            [(DOCUMENT, document), ("crates/ob-kv/tests/model.rs", test), ("xtask/tests/tidy.rs", test)];
        check(&Snapshot::of(&texts)).len()
    }

    #[test]
    fn names_that_lead_nowhere_are_found() {
        for document in [
            "`ob-kv/tests/model.rs::three_are_three`",
            "`ob-kv/tests/model.rs::{one_is_one, three_are_three}`",
            "`ob-kv/tests/model.rs::one_is`",
            "`ob-kv/tests/gone.rs`",
            "`xtask/tests/gone.rs::one_is_one`",
            "Plants `flush-keeps`, `no-such-bug`.",
        ] {
            assert_eq!(found(document), 1, "{document}");
        }
    }

    #[test]
    fn names_that_lead_somewhere_and_other_words_pass() {
        for document in [
            "`ob-kv/tests/model.rs::one_is_one`, `ob-kv/tests/model.rs::{one_is_one, two_are_two}`",
            "`xtask/tests/tidy.rs::one_is_one` and `ob-kv/tests`",
            "`CardLoop::turn`, `a / b`, `/proc/self`, `Frame`",
            "Plants `flush-keeps`, `table-kept`. Fuzz `kv_log`",
            "Plants are put in by `cargo xtask planted`",
        ] {
            assert_eq!(found(document), 0, "{document}");
        }
    }
}
