//! Tests, files and planted bugs that the list of invariants names are there, and every planted bug is told of: a document that says
//! what would notice must not rot.

use std::collections::BTreeSet;

use super::Violation;
use super::snapshot::Snapshot;
use crate::planted::HARNESSES;

/// The list of invariants.
pub const DOCUMENT: &str = "docs/invariants.md";
/// Where each planted bug is told of, and below which heading.
pub const PLANTS_DOCUMENT: &str = "docs/testing.md";
const PLANTS_HEADING: &str = "## Planted bugs";

/// Finds names in the document that lead nowhere.
#[must_use]
pub fn check(snapshot: &Snapshot) -> Vec<Violation> {
    let Some(text) = snapshot.texts.get(DOCUMENT) else { return Vec::new() };
    let plants = planted();
    let mut violations = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let mut complain = |message: String| violations.push(Violation::at(DOCUMENT, index + 1, message));
        for name in in_backticks(line) {
            if let Some(missing) = missing_file_or_test(snapshot, name) {
                complain(missing);
            }
        }
        for plant in plants_of(line).filter(|plant| !plants.contains(plant)) {
            complain(not_planted(plant));
        }
    }
    violations
}

/// Finds planted bugs that nothing is said of or that show no invariant's test, and bugs that are told of and never planted.
#[must_use]
pub fn check_plants(snapshot: &Snapshot) -> Vec<Violation> {
    let Some(text) = snapshot.texts.get(PLANTS_DOCUMENT) else { return Vec::new() };
    let mut untold = planted();
    let mut violations = Vec::new();
    let behind_heading = text.lines().enumerate().skip_while(|(_, line)| *line != PLANTS_HEADING).skip(1);
    for (index, line) in behind_heading.take_while(|(_, line)| !line.starts_with("## ")) {
        for name in in_backticks(line).filter(|name| is_plant_name(name)) {
            untold.remove(name);
            if !planted().contains(name) {
                violations.push(Violation::at(PLANTS_DOCUMENT, index + 1, not_planted(name)));
            }
        }
    }
    violations.extend(untold.iter().map(|plant| {
        let message = format!(
            "`{plant}` (HARNESSES in xtask/src/planted/harnesses.rs) is not told of below \"{PLANTS_HEADING}\""
        );
        Violation::of(PLANTS_DOCUMENT, message)
    }));
    if let Some(invariants) = snapshot.texts.get(DOCUMENT) {
        let named: BTreeSet<&str> = invariants.lines().flat_map(in_backticks).collect();
        let unnamed = planted().into_iter().filter(|plant| !named.contains(plant));
        violations.extend(
            unnamed.map(|plant| Violation::of(DOCUMENT, format!("no row names the plant `{plant}`"))),
        );
    }
    violations
}

fn planted() -> BTreeSet<&'static str> {
    HARNESSES.iter().flat_map(|harness| harness.plants).copied().collect()
}

fn not_planted(name: &str) -> String {
    format!("no bug `{name}` is planted (HARNESSES in xtask/src/planted/harnesses.rs)")
}

/// Whether it looks like the name of a bug, and not of a crate.
fn is_plant_name(name: &str) -> bool {
    let is_of_words =
        name.split('-').all(|word| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase()));
    is_of_words && name.contains('-') && !name.starts_with("ob-")
}

fn in_backticks(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The names behind "Plants", "Plants:" or "with plants", or one of these with "plant", to the end of the sentence or of the cell.
fn plants_of(line: &str) -> impl Iterator<Item = &str> {
    let behind = |word| line.match_indices(word).filter_map(move |(at, word)| line.get(at + word.len()..));
    behind("Plant").chain(behind("with plant")).flat_map(|rest| {
        let rest = rest.strip_prefix('s').unwrap_or(rest);
        let rest = rest.strip_prefix(':').unwrap_or(rest);
        let end = rest.find(['.', '|', ';', ':', '(']).unwrap_or(rest.len());
        // What has a space in it is a command, what has a slash a path.
        in_backticks(rest.get(..end).unwrap_or_default()).filter(|name| !name.contains([' ', '/']))
    })
}

/// What is missing of `some/file.rs`, `some/file.rs::test` or `some/file.rs::{tests, of, it}`.
fn missing_file_or_test(snapshot: &Snapshot, name: &str) -> Option<String> {
    let (path, tests) = name.split_once("::").unwrap_or((name, ""));
    let is_path = path.contains('/') && !path.contains([' ', '*']) && !path.starts_with(['/', '.']);
    if !is_path {
        return None;
    }
    if path.contains(['{', '}']) {
        return Some(format!("{path} is several paths in one, which nothing looks for: write each out"));
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
    let is_missing = |test: &&str| !test.is_empty() && !is_run(text, test);
    let missing = tests.split(',').map(str::trim).find(is_missing)?;
    Some(format!("there is no test `{missing}` in {path}"))
}

/// Whether a function of a file is run as a test: `#[test]` stands above it, or its name in the list of a macro that makes tests.
fn is_run(text: &str, test: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let definition = format!("fn {test}(");
    let is_attributed = |(index, _): (usize, &&str)| {
        let above = lines.get(..index).unwrap_or_default().iter().rev();
        let mut head = above.take_while(|line| line.starts_with("#[") || line.starts_with("//"));
        head.any(|line| *line == "#[test]")
    };
    let mut definitions = lines.iter().enumerate().filter(|(_, line)| line.contains(&definition));
    definitions.any(is_attributed) || listed_tests(text).any(|listed| listed == test)
}

/// The names that a file hands to macros of its own which make a test of each: a name a line.
fn listed_tests(text: &str) -> impl Iterator<Item = &str> {
    let calls = text.lines().filter(|line| line.ends_with("! {"));
    let makes_tests = move |call: &&str| {
        let name = call.trim_end_matches("! {");
        lines_of(text, &format!("macro_rules! {name} {{")).any(|line| line.contains("#[test]"))
    };
    calls.filter(makes_tests).flat_map(move |call| lines_of(text, call)).map(str::trim)
}

/// The lines between one that opens and the next that closes.
fn lines_of<'a>(text: &'a str, opening: &str) -> impl Iterator<Item = &'a str> {
    let behind = text.lines().skip_while(move |line| *line != opening).skip(1);
    behind.take_while(|line| *line != "}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(document: &str) -> usize {
        let test = concat!(
            "#[test]\nfn one_is_one() {}\n",
            "    /// In a macro of others.\n    #[test]\n    // Why.\n    #[cfg(unix)]\n    fn two_are_two(n in 0..2) {}\n",
            "fn a_helper() {}\n",
            "macro_rules! in_each_way {\n    ($($name:ident)*) => { $(#[test] fn $name() {})* };\n}\n\n",
            "macro_rules! helpers {\n    ($($name:ident)*) => { $(fn $name() {})* };\n}\n\n",
            "in_each_way! {\n    a_listed_one\n}\n\nhelpers! {\n    a_listed_helper\n}\n",
        );
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
            "`ob-kv/tests/model.rs::a_helper`",
            "`ob-kv/tests/model.rs::a_listed_helper`",
            "`ob-kv/tests/gone.rs`",
            "`xtask/tests/gone.rs::one_is_one`",
            "`ob-kv/tests/{model,gone}.rs`",
            "`ob-kv/tests/{model,gone}.rs::one_is_one`",
            "Plants `flush-keeps`, `no-such-bug`.",
            "Plants: `flush-keeps`, `no-such-bug` |",
            "Plant: `no-such-bug`",
            "`ob-kv/tests/model.rs`, with plants `flush-keeps`, `no-such-bug`; else",
            "with plant `no-such-bug`.",
        ] {
            assert_eq!(found(document), 1, "{document}");
        }
    }

    #[test]
    fn names_that_lead_somewhere_and_other_words_pass() {
        for document in [
            "`ob-kv/tests/model.rs::one_is_one`, `ob-kv/tests/model.rs::{one_is_one, two_are_two}`",
            "`ob-kv/tests/model.rs::a_listed_one`",
            "`xtask/tests/tidy.rs::one_is_one` and `ob-kv/tests`",
            "`CardLoop::turn`, `a / b`, `/proc/self`, `Frame`",
            "Plants `flush-keeps`, `table-kept`. Fuzz `kv_log`",
            "Plants: `flush-keeps`. With plants `kv_log` is not meant, nor with `planted`",
            "with plants `flush-keeps`, `table-kept`, `ob-kv/tests/model.rs`",
            "Plants are put in by `cargo xtask planted`",
        ] {
            assert_eq!(found(document), 0, "{document}");
        }
    }
    #[test]
    fn bugs_that_are_untold_or_made_up_are_found() {
        let rows: String =
            planted().iter().map(|plant| format!("| `{plant}` | what goes wrong |\n")).collect();
        let whole =
            format!("`made-up`\n\n{PLANTS_HEADING}\n\n`ob-kv`, `OB_PLANT`\n{rows}\n## Else\n\n`made-up`\n");
        let found = |text: &str| check_plants(&Snapshot::of(&[(PLANTS_DOCUMENT, text)])).len();
        assert_eq!(found(&whole), 0);
        assert_eq!(found(&whole.replace("`flush-keeps`", "")), 1);
        assert_eq!(found(&whole.replace("`flush-keeps`", "`flush-keeps`, `made-up`")), 1);
        assert_eq!(found(&whole.replace(PLANTS_HEADING, "## Bugs")), planted().len());
        let unnamed = rows.replace("`flush-keeps`", "");
        for (invariants, missing) in [(&rows, 0), (&unnamed, 1)] {
            let texts = [(PLANTS_DOCUMENT, whole.as_str()), (DOCUMENT, invariants)];
            assert_eq!(check_plants(&Snapshot::of(&texts)).len(), missing);
        }
    }
}
