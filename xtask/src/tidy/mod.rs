//! `cargo xtask tidy`: the rules of the house, checked.
//!
//! ```text
//!   checkout ── Snapshot::take ──▶ Snapshot ──▶ each check ──▶ violations, with file and line
//! ```
//!
//! A check is a function of a [`Snapshot`] held in memory, so that its tests can plant a violation without touching a disk.

pub mod crates;
pub mod host_memory;
pub mod layering;
pub mod lengths;
pub mod links;
pub mod named;
pub mod pure;
pub mod snapshot;
pub mod unsafe_code;
pub mod untested;
pub mod words;

use std::fmt;
use std::fmt::Write as _;

use anyhow::{Result, bail};

use crate::outcome::Outcome;
use crate::repository::Repository;
use snapshot::Snapshot;

/// One line of help.
pub const ABOUT: &str =
    "Check the rules of the house: layering, unsafe, purity, host memory, lengths, links, words";

/// Every check, in the order in which they run.
pub const CHECKS: &[Check] = &[
    Check {
        name: "layering",
        rule: "a crate depends only on crates that stand before it (BLOCKS in xtask/src/tidy/layering.rs)",
        run: layering::check,
    },
    Check { name: "folders", rule: "a crate's folder has the crate's name", run: crates::check_folders },
    Check {
        name: "module-docs",
        rule: "each lib.rs begins with a module doc of three lines or more",
        run: crates::check_module_docs,
    },
    Check { name: "tests", rule: "each file of tests is run", run: crates::check_tests },
    Check {
        name: "test-targets",
        rule: "test targets that a chore names are there",
        run: crates::check_named_targets,
    },
    Check { name: "plants", rule: "only tests have bugs that can be chosen", run: crates::check_plants },
    Check { name: "programs", rule: "there is one program, and the chores", run: crates::check_programs },
    Check {
        name: "licences",
        rule: "what others wrote is licensed MIT, Apache, BSD or as freely",
        run: crates::check_licences,
    },
    Check {
        name: "forbid-unsafe",
        rule: "`#![forbid(unsafe_code)]` everywhere but in the homes of unsafe",
        run: unsafe_code::check_forbidden,
    },
    Check {
        name: "safety-comments",
        rule: "each use of unsafe says `// SAFETY:`, each unsafe fn has a `# Safety` section",
        run: unsafe_code::check_comments,
    },
    Check {
        name: "lengths",
        rule: "files to 800 lines, functions to 70; xtask/ratchet.toml lists exceptions, which only shrink",
        run: lengths::check,
    },
    Check {
        name: "pure",
        rule: "cores open no socket or file, read no clock, start no thread; drivers are listed",
        run: pure::check,
    },
    Check {
        name: "host-memory",
        rule: "what runs on the card reaches a host's memory through a `Dma` only",
        run: host_memory::check,
    },
    Check {
        name: "homes-checked",
        rule: "each home of unsafe is checked with loom or Miri, or says why not",
        run: unsafe_code::check_homes,
    },
    Check { name: "words", rule: "no unfinished business in Rust sources", run: words::check },
    Check {
        name: "glossary",
        rule: "no other words for what has one (GLOSSARY in xtask/src/tidy/words.rs)",
        run: words::check_glossary,
    },
    Check {
        name: "untested",
        rule: "a test that tests nothing says so by `ob_plant::not_tested`, not by printing",
        run: untested::check,
    },
    Check {
        name: "links",
        rule: "links in Markdown, and paths in ARCHITECTURE.md, lead somewhere",
        run: links::check,
    },
    Check {
        name: "contents",
        rule: "docs/README.md lists each document below docs/",
        run: links::check_contents,
    },
    Check {
        name: "named",
        rule: "tests, files and planted bugs that docs/invariants.md names are there",
        run: named::check,
    },
    Check {
        name: "plants-told",
        rule: "docs/testing.md tells of every planted bug, and of no other; docs/invariants.md names each",
        run: named::check_plants,
    },
];

/// A rule, and the function that finds where it is broken.
#[derive(Debug)]
pub struct Check {
    /// What stands in front of each violation.
    pub name: &'static str,
    /// The rule, for the help text.
    pub rule: &'static str,
    /// Finds the violations.
    pub run: fn(&Snapshot) -> Vec<Violation>,
}

/// A place where a rule is broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The file, relative to the root.
    pub path: String,
    /// The line, where there is one that matters.
    pub line: Option<usize>,
    /// What is wrong, and what to do.
    pub message: String,
}

impl Violation {
    /// A violation at one line.
    #[must_use]
    pub fn at(path: &str, line: usize, message: String) -> Self {
        Self { path: path.to_owned(), line: Some(line), message }
    }

    /// A violation of a whole file.
    #[must_use]
    pub fn of(path: &str, message: String) -> Self {
        Self { path: path.to_owned(), line: None, message }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(formatter, "{}:{line}: {}", self.path, self.message),
            None => write!(formatter, "{}: {}", self.path, self.message),
        }
    }
}

/// The whole help: the list of rules.
#[must_use]
pub fn long_about() -> String {
    let mut text = format!("{ABOUT}.\n\nThe same checks run in `cargo test --workspace`. The rules:\n");
    for check in CHECKS {
        // Writing to a string cannot fail.
        let _ = write!(text, "\n  {:<16} {}", check.name, check.rule);
    }
    text
}

/// Every violation in the snapshot, each with the name of its check.
#[must_use]
pub fn violations(snapshot: &Snapshot) -> Vec<(&'static str, Violation)> {
    let named =
        |check: &'static Check| (check.run)(snapshot).into_iter().map(|violation| (check.name, violation));
    CHECKS.iter().flat_map(named).collect()
}

/// Checks the checkout and prints the violations.
///
/// # Errors
/// When there are violations, or the checkout cannot be read.
pub fn run(repository: &Repository) -> Result<Outcome> {
    let snapshot = Snapshot::take(repository)?;
    let violations = violations(&snapshot);
    for (check, violation) in &violations {
        println!("{violation} [{check}]");
    }
    if !violations.is_empty() {
        bail!("tidy found {} violation(s)", violations.len());
    }
    println!("tidy: {} checks over {} files, nothing found", CHECKS.len(), snapshot.texts.len());
    Ok(Outcome::Done)
}
