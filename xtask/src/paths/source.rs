//! Whose lines instructions are of: functions as they are written, wherever the compiler has put them.

use std::collections::BTreeMap;
use std::fs;

use super::callgrind::{LineCost, Lines, OURS};
use crate::repository::Repository;

/// Costs by file of this repository and function.
pub(super) type Written = BTreeMap<(String, String), LineCost>;

/// Gives each line's costs to the function that it is written in.
pub(super) fn by_function(repository: &Repository, lines: &Lines) -> Written {
    let mut written = Written::new();
    let mut functions: BTreeMap<&str, Vec<Option<String>>> = BTreeMap::new();
    for ((file, line), cost) in lines {
        let Some(file) = file.find(OURS).map(|start| &file[start..]) else { continue };
        let of_file = functions.entry(file).or_insert_with(|| {
            let text = fs::read_to_string(repository.root().join(file)).unwrap_or_default();
            functions_of(&text)
        });
        let function = (*line as usize).checked_sub(1).and_then(|index| of_file.get(index)?.clone());
        if let Some(function) = function {
            let place = written.entry((file.to_owned(), function)).or_default();
            place.instructions += cost.instructions;
            place.locked += cost.locked;
        }
    }
    written
}

/// The function that each line is part of: the one that was begun last. (Code is formatted here, so a function begins a line.)
fn functions_of(text: &str) -> Vec<Option<String>> {
    let mut current = None;
    let mut functions = Vec::new();
    for line in text.lines() {
        if let Some(name) = begun(line) {
            current = Some(name.to_owned());
        }
        functions.push(current.clone());
    }
    functions
}

/// The name of the function that this line begins.
fn begun(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace();
    let before = ["pub", "pub(crate)", "pub(super)", "const", "async", "unsafe", "extern", "\"C\""];
    let first = words.by_ref().find(|word| !before.contains(word))?;
    let name = if first == "fn" { words.next()? } else { return None };
    name.split(['(', '<']).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
//! fn in words
impl Loop {
    pub(crate) fn turn<S: Service>(&mut self) {
        self.work();
    }

    const fn work(self) {}
}
";

    #[test]
    fn a_line_is_of_the_function_that_was_begun_last() {
        let of_line = functions_of(TEXT);
        let of_line: Vec<Option<&str>> = of_line.iter().map(Option::as_deref).collect();
        let (turn, work) = (Some("turn"), Some("work"));
        assert_eq!(of_line, [None, None, turn, turn, turn, turn, work, work]);
    }

    #[test]
    fn only_lines_of_this_repository_count() {
        let repository = Repository::here().unwrap();
        let file = "crates/ob-core/src/id_map.rs";
        let text = fs::read_to_string(repository.root().join(file)).unwrap();
        let line = 1 + text.lines().position(|line| begun(line).is_some()).unwrap() as u32;
        let cost = |instructions| LineCost { instructions, locked: 1.0 };
        let lines = Lines::from([
            ((format!("/elsewhere/{file}"), line), cost(5.0)),
            (("/rustc/library/core/src/cmp.rs".to_owned(), line), cost(7.0)),
            ((file.to_owned(), 1_000_000), cost(9.0)),
        ]);
        let written = by_function(&repository, &lines);
        assert_eq!(written.values().copied().collect::<Vec<_>>(), [cost(5.0)]);
    }
}
