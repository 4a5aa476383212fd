//! Cores are pure: what they are told comes in, and what they want goes out. They open no socket and no file, read no clock and
//! start no thread by way of the standard library.
//!
//! The order of dependence keeps our own drivers away from them; the standard library it cannot. This check reads tokens, so that
//! comments and texts may speak of all of it.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::Violation;
use super::layering::BLOCKS;
use super::snapshot::Snapshot;

/// Blocks of crates that are pure.
const PURE: &[&str] = &["words and bytes", "services"];

/// Cores among the mechanisms, whose other crates and files are drivers.
const CORES: &[&str] = &[
    "crates/ob-ring/src/",
    "crates/ob-table/src/",
    "crates/ob-link/src/attachment.rs",
    "crates/ob-link/src/card_dma.rs",
    "crates/ob-link/src/frame_dma.rs",
    "crates/ob-link/src/group.rs",
    "crates/ob-link/src/host_core.rs",
    "crates/ob-link/src/model.rs",
    "crates/ob-link/src/sequencer.rs",
];

/// Crates and files of pure blocks that are not, each with the reason.
const DRIVERS: &[(&str, &str)] = &[
    ("crates/ob-files-host/", "it is what an application links, so it brings its driver along"),
    ("crates/liboutboard/", "it is the same library for programs in C"),
    ("crates/ob-nvme/src/initiator/driver.rs", "it is the initiator's driver"),
    (
        "crates/ob-nvme/src/initiator/executor.rs",
        "it is how programs without an executor wait for the initiator",
    ),
    ("crates/ob-pushdown/src/kernel/", "it is the driver of clients above a stock kernel"),
    ("crates/ob-rocksdb/src/local.rs", "it is the driver that reads a local directory"),
];

/// Words that mean a clock or a socket wherever they stand. (`SocketAddr` is a word of our own protocols.)
const WORDS: &[&str] =
    &["SystemTime", "TcpStream", "TcpListener", "UdpSocket", "UnixStream", "UnixListener", "UnixDatagram"];

/// Modules of the standard library.
const MODULES: &[&str] = &["fs", "thread", "process"];

/// Finds where a pure crate does by itself what it should be told, or ask for.
#[must_use]
pub fn check(snapshot: &Snapshot) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in snapshot.rust_sources().filter(|(path, _)| is_pure(path)) {
        // A file that is not even tokens is reported by the check of lengths.
        let Ok(tokens) = text.parse::<TokenStream>() else { continue };
        let mut words = Vec::new();
        flatten(tokens, &mut words);
        for (line, what) in found_in(&words) {
            let message = format!(
                "`{what}` in a pure core: let it be told or ask for it by a trait; a driver is added to DRIVERS in {}, with its reason",
                file!()
            );
            violations.push(Violation::at(path, line, message));
        }
    }
    violations
}

fn is_pure(path: &str) -> bool {
    let in_pure = BLOCKS
        .iter()
        .filter(|block| PURE.contains(&block.name))
        .any(|block| block.crates.iter().any(|name| path.starts_with(&format!("crates/{name}/src/"))));
    let is_core = in_pure || CORES.iter().any(|core| path.starts_with(core));
    let is_test = path.contains("/tests/") || path.ends_with("tests.rs");
    is_core && !is_test && !DRIVERS.iter().any(|(driver, _)| path.starts_with(driver))
}

/// The tokens in their order, with their lines, but for what only tests see.
pub(super) fn flatten(tokens: TokenStream, words: &mut Vec<(String, usize)>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut index = 0;
    while let Some(token) = tokens.get(index) {
        index += 1;
        let line = token.span().start().line;
        match token {
            TokenTree::Punct(mark) if mark.as_char() == '#' && is_for_tests(tokens.get(index)) => {
                // What the attribute stands before ends with its braces, or with a semicolon.
                let ends = |token: &TokenTree| match token {
                    TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
                    TokenTree::Punct(mark) => mark.as_char() == ';',
                    _ => false,
                };
                let rest = tokens.get(index..).unwrap_or_default();
                index += rest.iter().position(ends).map_or(rest.len(), |end| end + 1);
            }
            TokenTree::Group(group) => {
                words.push(("{".to_owned(), line));
                flatten(group.stream(), words);
                words.push(("}".to_owned(), line));
            }
            other => words.push((other.to_string(), line)),
        }
    }
}

fn is_for_tests(attribute: Option<&TokenTree>) -> bool {
    matches!(attribute, Some(TokenTree::Group(group)) if group.stream().to_string().replace(' ', "") == "cfg(test)")
}

fn found_in(words: &[(String, usize)]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let is = |index: usize, word: &str| words.get(index).is_some_and(|(found, _)| found == word);
    for (index, (word, line)) in words.iter().enumerate() {
        let is_path = is(index + 1, ":") && is(index + 2, ":");
        if WORDS.contains(&word.as_str()) {
            found.push((*line, word.clone()));
        } else if word == "Instant" && is_path && is(index + 3, "now") {
            found.push((*line, "Instant::now".to_owned()));
        } else if word == "std" && is_path {
            let named = if is(index + 3, "{") { group_at(words, index + 3) } else { vec![index + 3] };
            for module in MODULES {
                if named.iter().any(|index| is(*index, module)) {
                    found.push((*line, format!("std::{module}")));
                }
            }
        }
    }
    found
}

/// The places in a group of imports where one of them begins.
fn group_at(words: &[(String, usize)], start: usize) -> Vec<usize> {
    let (mut depth, mut places) = (0, Vec::new());
    for (index, (word, _)) in words.iter().enumerate().skip(start) {
        match word.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            break;
        }
        if depth == 1 && matches!(word.as_str(), "{" | ",") {
            places.push(index + 1);
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::Repository;

    fn found(path: &str, text: &str) -> Vec<Option<usize>> {
        check(&Snapshot::of(&[(path, text)])).iter().map(|found| found.line).collect()
    }

    #[test]
    fn what_a_core_may_not_do_is_found() {
        for text in [
            "fn f() { let now = std::time::Instant::now(); }",
            "use std::time::Instant;\nfn f() -> Instant { Instant::now() }",
            "use std::time::SystemTime;",
            "use std::net::{SocketAddr, TcpStream};",
            "fn f() { std::thread::yield_now() }",
            "use std::{collections::BTreeMap, fs};",
            "use std::{io::{self, Read}, thread::spawn};",
            "fn f() { std::process::exit(1) }",
            "#[cfg(test)]\nmod tests { use std::fs; }\nuse std::fs;",
            "macro_rules! now { () => { Instant::now() } }",
        ] {
            assert_eq!(found("crates/ob-kv/src/store/log.rs", text).len(), 1, "{text}");
            assert_eq!(found("crates/ob-format/src/kv.rs", text).len(), 1, "{text}");
            assert_eq!(found("crates/ob-link/src/host_core.rs", text).len(), 1, "{text}");
        }
    }

    #[test]
    fn cores_are_where_they_are_looked_for() {
        let root = Repository::here().unwrap().root().to_owned();
        for core in CORES {
            assert!(root.join(core).exists(), "{core}");
        }
    }

    #[test]
    fn tests_drivers_words_and_other_crates_pass() {
        let clock = "fn f() { let now = std::time::Instant::now(); std::fs::read(\"a\"); }";
        for path in [
            "crates/ob-io/src/clock.rs",
            "crates/ob-link/src/host_link.rs",
            "crates/ob-kv/tests/model.rs",
            "crates/ob-kv/src/store/tests.rs",
            "crates/ob-kv/src/host/tests/more.rs",
            "crates/ob-nvme/src/initiator/driver.rs",
            "crates/ob-files-host/src/session.rs",
            "xtask/src/main.rs",
        ] {
            assert_eq!(found(path, clock), [], "{path}");
        }
        for text in [
            "use ob_core::Instant;\nuse std::net::SocketAddr;\nfn f(now: Instant) { now.now() }",
            "// std::fs and SystemTime\nconst TEXT: &str = \"std::thread\";",
            "#[cfg(test)]\nmod tests { fn f() { std::thread::spawn(g); } }",
            "#[cfg(test)]\nuse std::fs;\nfn fs() {}",
            "use std::{collections::{BTreeMap, fs}, fmt};",
        ] {
            assert_eq!(found("crates/ob-kv/src/store/log.rs", text), [], "{text}");
        }
    }
}
