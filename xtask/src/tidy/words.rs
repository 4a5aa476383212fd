//! Words that do not belong here: marks of unfinished business, and other words for what has one already.
//!
//! What is missing belongs in an issue or in the docs, where a reader of the code's surface sees it. What the words mean is in
//! ARCHITECTURE.md; whether each is used for what it means, no list can tell, but one can tell words that stand for none of them.

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

/// Words for what the glossary has another word for; what is said instead; and parts of paths where they mean something else.
const GLOSSARY: &[(&str, &str, &[&str])] = &[
    // A program is what the card verifies and runs.
    (concat!("this ", "program"), "this build, process or half", &["bpf", "program"]),
    (concat!("the program ", "`outboard`"), "the binary", &[]),
    (concat!("what the program ", "does"), "this build, or the binary", &[]),
    (concat!("log of the ", "program"), "what a half logs", &[]),
    (concat!("life of the ", "program"), "life of a half", &[]),
    (concat!("byte", "code"), "program", &[]),
    (concat!("dae", "mon"), "card, host or half", &[]),
    (concat!("ring ", "buffer"), "ring", &[]),
    (concat!("hash ", "table"), "table", &[]),
    (concat!("i", "node"), "file or directory", &[]),
];

/// Finds unfinished business, in code and comments alike.
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

/// Finds words that are not of the glossary, in sources and documents.
#[must_use]
pub fn check_glossary(snapshot: &Snapshot) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in snapshot.rust_sources().chain(snapshot.texts_ending_in(".md")) {
        for (index, line) in text.to_lowercase().lines().enumerate() {
            for (word, instead, elsewhere) in GLOSSARY {
                if contains_word(line, word) && !elsewhere.iter().any(|part| path.contains(part)) {
                    let message = format!("`{word}` is no word of ARCHITECTURE.md's: {instead}");
                    violations.push(Violation::at(path, index + 1, message));
                }
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
    fn other_words_for_what_has_one_are_found() {
        for (word, ..) in GLOSSARY {
            let text = format!("// Once.\n// A {} here.\n", word.to_uppercase());
            for path in ["crates/ob-kv/src/lib.rs", "docs/kv.md"] {
                let lines: Vec<_> =
                    check_glossary(&Snapshot::of(&[(path, &text)])).iter().map(|found| found.line).collect();
                assert_eq!(lines, [Some(2)], "{word} in {path}");
            }
        }
        let (word, _, elsewhere) = GLOSSARY[0];
        assert_eq!(
            check_glossary(&Snapshot::of(&[("crates/ob-ebpf/src/elf.rs", word)])),
            [],
            "{elsewhere:?}"
        );
        assert_eq!(check_glossary(&Snapshot::of(&[("a.rs", &format!("{word}s an{word}"))])), []);
    }

    #[test]
    fn parts_of_longer_words_and_other_files_pass() {
        let longer: String = WORDS.iter().map(|word| format!("a{word} {word}a\n")).collect();
        assert_eq!(check(&Snapshot::of(&[("a.rs", &longer), ("a.md", WORDS[3])])), []);
    }
}
