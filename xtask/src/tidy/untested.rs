//! A test that passes and has tested nothing says so where it is heard.
//!
//! What a test prints that passes, the test harness keeps to itself; so such a test calls `ob_plant::not_tested`, and this check finds
//! those that print.

use proc_macro2::{TokenStream, TokenTree};

use super::Violation;
use super::snapshot::Snapshot;

/// What the harness does not let through.
const PRINTS: &[&str] = &["print", "println", "eprint", "eprintln"];

/// What tests say that do not test.
const WORDS: &[&str] = &["skipped", "not tested", "not run"];

/// Finds where a test prints that it does not test. (Chores print it too, and are no tests.)
#[must_use]
pub fn check(snapshot: &Snapshot) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in snapshot.rust_sources().filter(|(path, _)| path.starts_with("crates/")) {
        // A file that is not even tokens is reported by the check of lengths.
        let Ok(tokens) = text.parse::<TokenStream>() else { continue };
        let mut lines = Vec::new();
        find(tokens, &mut lines);
        violations.extend(lines.into_iter().map(|line| {
            let message =
                "printed, nobody hears of a test that tests nothing: say it with `ob_plant::not_tested`";
            Violation::at(path, line, message.to_owned())
        }));
    }
    violations
}

fn find(tokens: TokenStream, lines: &mut Vec<usize>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for (index, token) in tokens.iter().enumerate() {
        let TokenTree::Group(group) = token else { continue };
        let before = index.checked_sub(2).and_then(|start| tokens.get(start..index));
        if let Some([TokenTree::Ident(name), TokenTree::Punct(mark)]) = before
            && mark.as_char() == '!'
            && PRINTS.contains(&name.to_string().as_str())
            && says_so(group.stream())
        {
            lines.push(name.span().start().line);
        }
        find(group.stream(), lines);
    }
}

/// Whether what is printed begins with such words.
fn says_so(arguments: TokenStream) -> bool {
    let Some(TokenTree::Literal(text)) = arguments.into_iter().next() else { return false };
    let text = text.to_string().to_lowercase();
    WORDS.iter().any(|word| text.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<Option<usize>> {
        check(&Snapshot::of(&[(path, text)])).iter().map(|found| found.line).collect()
    }

    #[test]
    fn what_the_harness_would_keep_to_itself_is_found() {
        for text in [
            "fn f() {\n    println!(\"not run: nobody is root\");\n}",
            "fn f() {\n    eprintln!(\n        \"!!! NOT TESTED: {why} !!!\"\n    );\n}",
            "#[cfg(test)]\nmod tests { fn f() { if a { std::eprint!(\"SKIPPED\") } } }",
        ] {
            assert_eq!(found("crates/ob-io/tests/a.rs", text), [Some(2)], "{text}");
            assert_eq!(found("crates/ob-io/src/a.rs", text), [Some(2)], "{text}");
        }
    }

    #[test]
    fn what_is_heard_and_other_words_pass() {
        let heard = "fn f() { ob_plant::not_tested(\"not run by root\"); println!(\"{} tested\", 3) }\n// println!(\"SKIPPED\")";
        assert_eq!(found("crates/ob-io/tests/a.rs", heard), []);
        assert_eq!(found("xtask/src/outcome.rs", "fn f() { println!(\"SKIPPED {verb}\") }"), []);
    }
}
