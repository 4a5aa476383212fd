//! What was expected: the table in `expectations.toml`, read and checked.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

const OWN: &str = include_str!("expectations.toml");

/// Everything that was expected.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// What benchmarks measure, in the order of the document.
    #[serde(rename = "part")]
    pub parts: Vec<Part>,
    /// What no benchmark measures.
    pub elsewhere: Vec<Elsewhere>,
}

/// What one benchmark measures.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Its heading.
    pub title: String,
    /// The benchmark's name on the command line.
    pub bench: String,
    /// Where its figures are discussed, below `docs`.
    pub document: String,
    /// How long a full run takes, about.
    pub minutes: u32,
    /// The figures, in the order of the document.
    #[serde(rename = "figure")]
    pub figures: Vec<Figure>,
    /// Why figures are missed, by a name that figures know.
    #[serde(default)]
    pub reasons: BTreeMap<String, String>,
}

/// One figure.
#[derive(Debug, Deserialize)]
#[serde(try_from = "FigureLine")]
pub struct Figure {
    /// What it is, in words.
    pub what: String,
    /// Where it is in a report.
    pub key: Key,
    /// What was expected; if nothing was, the figure is only told.
    pub expected: Option<Bound>,
    /// What is written behind its numbers.
    pub unit: String,
    /// What it cannot be measured without.
    pub needs: Option<Peer>,
    /// The name of the reason that is given when it is missed.
    pub why: Option<String>,
}

/// Where a figure is in a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    /// Among the ratios.
    Ratio(String),
    /// A case, and which of its figures.
    Case(String, String),
}

/// Somebody else's program that a benchmark measures against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Peer {
    /// SPDK's target.
    Spdk,
    /// What `cargo xtask peers` builds.
    Peers,
    /// RocksDB, which it builds where it is installed.
    Rocksdb,
}

/// A number, and on which side of it a figure has to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    side: Side,
    number: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    AtLeast,
    AtMost,
    Above,
    Below,
}

/// What was expected and no benchmark measures.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Elsewhere {
    /// What it is, in words.
    pub what: String,
    /// What was expected, in words.
    pub expected: String,
    /// The test or campaign that holds it.
    pub command: String,
    /// Where CI does not run it: the commit at which it was last run to its end, and found nothing, or several.
    pub clean_at: Option<String>,
}

/// A figure as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FigureLine {
    what: String,
    ratio: Option<String>,
    case: Option<String>,
    of: Option<String>,
    expected: Option<String>,
    #[serde(default)]
    unit: String,
    needs: Option<Peer>,
    why: Option<String>,
}

impl Table {
    /// The table of this repository.
    ///
    /// # Errors
    /// When it has mistakes.
    pub fn own() -> Result<Self> {
        Self::parse(OWN).context("xtask/src/results/expectations.toml has a mistake")
    }

    fn parse(text: &str) -> Result<Self> {
        let table: Self = toml::from_str(text)?;
        for part in &table.parts {
            let named = part.figures.iter().filter_map(|figure| figure.why.as_ref());
            if let Some(name) = named.clone().find(|name| !part.reasons.contains_key(*name)) {
                bail!("`{}` has no reason `{name}`", part.bench);
            }
            if let Some(name) = part.reasons.keys().find(|name| !named.clone().any(|other| other == *name)) {
                bail!("nothing of `{}` has the reason `{name}`", part.bench);
            }
        }
        Ok(table)
    }
}

impl TryFrom<FigureLine> for Figure {
    type Error = String;

    fn try_from(line: FigureLine) -> Result<Self, String> {
        let key = match (line.ratio, line.case, line.of) {
            (Some(ratio), None, None) => Key::Ratio(ratio),
            (None, Some(case), Some(of)) => Key::Case(case, of),
            _ => return Err(format!("`{}` needs a `ratio`, or a `case` and an `of`", line.what)),
        };
        let expected = line.expected.as_deref().map(Bound::parse).transpose()?;
        if expected.is_none() && line.why.is_some() {
            return Err(format!("`{}` cannot be missed, and says why it is", line.what));
        }
        let FigureLine { what, unit, needs, why, .. } = line;
        Ok(Self { what, key, expected, unit, needs, why })
    }
}

impl Bound {
    fn parse(text: &str) -> Result<Self, String> {
        let parsed = text.rsplit_once(' ').and_then(|(side, number)| {
            let side = Side::ALL.into_iter().find(|other| other.words() == side)?;
            Some(Self { side, number: number.parse().ok()? })
        });
        parsed.ok_or_else(|| format!("`{text}` is not `at least`, `at most`, `above` or `below` a number"))
    }

    /// Whether a figure is as expected.
    #[must_use]
    pub fn holds(self, figure: f64) -> bool {
        match self.side {
            Side::AtLeast => figure >= self.number,
            Side::AtMost => figure <= self.number,
            Side::Above => figure > self.number,
            Side::Below => figure < self.number,
        }
    }
}

impl Side {
    const ALL: [Self; 4] = [Self::AtLeast, Self::AtMost, Self::Above, Self::Below];

    fn words(self) -> &'static str {
        match self {
            Self::AtLeast => "at least",
            Self::AtMost => "at most",
            Self::Above => "above",
            Self::Below => "below",
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.side.words(), self.number)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ratio(name) => formatter.write_str(name),
            Self::Case(case, of) => write!(formatter, "{case}: {of}"),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Spdk => "SPDK (`--spdk`)",
            Self::Peers => "the programs of `cargo xtask peers` (`--peers`)",
            Self::Rocksdb => "RocksDB, by `cargo xtask peers` (`--peers`)",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::Repository;

    fn one(figure: &str) -> Result<Table> {
        let part = "elsewhere = []\n[[part]]\ntitle = 't'\nbench = 'b'\ndocument = 'd'\nminutes = 1\n";
        Table::parse(&format!("{part}[[part.figure]]\nwhat = 'w'\n{figure}"))
    }

    #[test]
    fn a_bound_has_a_direction() {
        for (text, below, at, above) in [
            ("at least 2", false, true, true),
            ("at most 2", true, true, false),
            ("above 2", false, false, true),
            ("below 2", true, false, false),
        ] {
            let bound = Bound::parse(text).unwrap();
            assert_eq!([1.9, 2.0, 2.1].map(|figure| bound.holds(figure)), [below, at, above], "{text}");
            assert!(!bound.holds(f64::NAN), "{text}");
            assert_eq!(bound.to_string(), text);
        }
        for text in ["2", "at least", "about 2", "at least two", ""] {
            assert!(Bound::parse(text).unwrap_err().contains("is not `at least`"), "{text}");
        }
    }

    #[test]
    fn mistakes_in_the_table_are_told() {
        assert!(one("ratio = 'r'\nexpected = 'at least 1'").is_ok());
        for (figure, complaint) in [
            ("case = 'c'", "needs a `ratio`"),
            ("ratio = 'r'\nof = 'p50_us'", "needs a `ratio`"),
            ("ratio = 'r'\nwhy = 'x'", "cannot be missed"),
            ("ratio = 'r'\nexpected = 'at least 1'\nwhy = 'x'", "has no reason `x`"),
            ("ratio = 'r'\n[part.reasons]\nx = 'y'", "nothing of `b` has the reason `x`"),
            ("ratio = 'r'\nneeds = 'luck'", "unknown variant `luck`"),
            ("ratio = 'r'\nexpect = 'at least 1'", "unknown field `expect`"),
        ] {
            let error = format!("{:#}", one(figure).unwrap_err());
            assert!(error.contains(complaint), "{figure}: {error}");
        }
    }

    #[test]
    fn the_own_table_names_every_benchmark_and_each_figure_once() {
        let table = Table::own().unwrap();
        let root = Repository::here().unwrap().root().to_owned();
        let source = std::fs::read_to_string(root.join("crates/outboard/src/bench/mod.rs")).unwrap();
        let list = source.split_once("BENCHES: &[&dyn Bench] = &[").unwrap().1.split_once("];").unwrap().0;
        let mut benches: Vec<&str> = list
            .lines()
            .filter_map(|line| Some(line.trim().strip_prefix('&')?.split_once("::")?.0))
            .collect();
        let mut parts: Vec<&str> = table.parts.iter().map(|part| part.bench.as_str()).collect();
        benches.sort_unstable();
        parts.sort_unstable();
        assert_eq!(parts, benches);
        for part in &table.parts {
            assert!(root.join("docs").join(&part.document).is_file(), "{}", part.document);
            let keys: std::collections::BTreeSet<String> =
                part.figures.iter().map(|figure| figure.key.to_string()).collect();
            assert_eq!(keys.len(), part.figures.len(), "{} has a figure twice", part.bench);
        }
    }
}
