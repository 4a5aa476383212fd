//! Unfinished business: macros and marks that mean "not done yet".
//!
//! What is missing belongs in an issue or in the docs, where a reader of the code's surface sees it.

use super::Violation;
use super::snapshot::Snapshot;

// Cut in two, so that this file does not break its own rule.
const WORDS: &[&str] = &[
    concat!("to", "do!"),
    concat!("unimple", "mented!"),
    concat!("d", "bg!"),
    concat!("FIX", "ME"),
    concat!("X", "XX"),
];

/// Finds the words in code and comments alike.
#[must_use]
pub fn check(snapshot: &Snapshot) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in snapshot.rust_sources() {
        for (index, line) in text.lines().enumerate() {
            for word in WORDS.iter().filter(|word| contains_word(line, word)) {
                let message =
                    format!("`{word}` is unfinished business: finish it, or write it where readers look");
                violations.push(Violation::at(path, index + 1, message));
            }
        }
    }
    violations
}

/// Whether the word occurs on its own and not as a part of a longer one.
fn contains_word(line: &str, word: &str) -> bool {
    let is_part = |character: char| character.is_alphanumeric() || character == '_';
    line.match_indices(word).any(|(start, _)| {
        !line[..start].ends_with(is_part) && !line[start + word.len()..].starts_with(is_part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_found_in_code_and_in_comments() {
        for word in WORDS {
            let text = format!("fn one() {{\n    {word}();\n}}\n// {word} later\n");
            let lines: Vec<_> =
                check(&Snapshot::of(&[("a.rs", &text)])).iter().map(|found| found.line).collect();
            assert_eq!(lines, [Some(2), Some(4)], "{word}");
        }
    }

    #[test]
    fn parts_of_longer_words_and_other_files_pass() {
        let longer: String = WORDS.iter().map(|word| format!("a{word} {word}a\n")).collect();
        assert_eq!(check(&Snapshot::of(&[("a.rs", &longer), ("a.md", WORDS[3])])), []);
    }
}
