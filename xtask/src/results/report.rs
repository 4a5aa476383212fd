//! Reports of benchmarks, and what several of them say of a figure.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;

use super::expected::{Figure, Key, Peer};

/// What `outboard bench NAME --json FILE` wrote.
#[derive(Debug)]
pub struct Report {
    path: PathBuf,
    figures: Figures,
}

#[derive(Debug, Deserialize)]
struct Figures {
    bench: String,
    cases: Vec<BTreeMap<String, Value>>,
    // A ratio that could not be computed is null.
    ratios: BTreeMap<String, Option<f64>>,
}

impl Report {
    /// Reads the report of a benchmark.
    ///
    /// # Errors
    /// When it cannot be read, is no report, or is that of another benchmark.
    pub fn read(path: &Path, bench: &str) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(path, &text, bench)
    }

    fn parse(path: &Path, text: &str, bench: &str) -> Result<Self> {
        let figures: Figures = serde_json::from_str(text).with_context(|| {
            format!("{} is no report of a benchmark; remove it to have it measured again", path.display())
        })?;
        if figures.bench != bench {
            bail!("{} is a report of `{}` and not of `{bench}`", path.display(), figures.bench);
        }
        Ok(Self { path: path.to_owned(), figures })
    }

    /// A figure, if it is there and is a number.
    fn figure(&self, key: &Key) -> Option<f64> {
        match key {
            Key::Ratio(name) => self.figures.ratios.get(name).copied().flatten(),
            Key::Case(name, of) => {
                let is_it = |case: &&BTreeMap<String, Value>| {
                    case.get("case").and_then(Value::as_str) == Some(name.as_str())
                };
                self.figures.cases.iter().find(is_it)?.get(of)?.as_f64()
            }
        }
    }
}

/// How reports came about.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances {
    /// Whether benchmarks did only enough to see that they work, and leave figures out.
    pub is_quick: bool,
    /// Whether SPDK was there.
    pub has_spdk: bool,
    /// Whether the peers of programs were there.
    pub has_peers: bool,
    /// Whether RocksDB was among them.
    pub has_rocksdb: bool,
}

impl Circumstances {
    fn has(self, peer: Peer) -> bool {
        match peer {
            Peer::Spdk => self.has_spdk,
            Peer::Peers => self.has_peers,
            Peer::Rocksdb => self.has_rocksdb,
        }
    }
}

/// What is known of a figure.
#[derive(Clone, Debug, PartialEq)]
pub enum Finding {
    /// It was measured.
    Measured(Spread),
    /// It was not, for this reason.
    NotMeasured(String),
}

/// What several runs say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The middle one; of an even number, what lies between the middle two.
    pub median: f64,
    /// The least.
    pub from: f64,
    /// The most.
    pub to: f64,
}

impl Spread {
    /// That of some figures, if there are any.
    #[must_use]
    pub fn of(mut figures: Vec<f64>) -> Option<Self> {
        figures.sort_by(f64::total_cmp);
        let (from, to) = (*figures.first()?, *figures.last()?);
        let (low, high) = (figures.get((figures.len() - 1) / 2)?, figures.get(figures.len() / 2)?);
        Some(Self { median: f64::midpoint(*low, *high), from, to })
    }
}

/// What reports of one benchmark say of a figure.
///
/// # Errors
/// When a report does not have it though nothing was missing: the table or the benchmark is wrong.
pub fn find(figure: &Figure, reports: &[Report], circumstances: Circumstances) -> Result<Finding> {
    if reports.is_empty() {
        return Ok(Finding::NotMeasured("not in this run".to_owned()));
    }
    if let Some(peer) = figure.needs.filter(|peer| !circumstances.has(*peer)) {
        return Ok(Finding::NotMeasured(format!("needs {peer}")));
    }
    let mut figures = Vec::with_capacity(reports.len());
    for report in reports {
        match report.figure(&figure.key) {
            Some(value) => figures.push(value),
            None if circumstances.is_quick => {
                return Ok(Finding::NotMeasured("not in a quick run".to_owned()));
            }
            None => bail!(
                "{} has no figure `{}`; either the benchmark could not measure it, or it has another name in \
                 xtask/src/results/expectations.toml",
                report.path.display(),
                figure.key
            ),
        }
    }
    Ok(Finding::Measured(Spread::of(figures).context("there is no report")?))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::results) const FULL: Circumstances =
        Circumstances { is_quick: false, has_spdk: false, has_peers: true, has_rocksdb: false };

    /// A report of `ring` in which a ratio `r` and the median of the case `a b` have these values.
    pub(in crate::results) fn report(ratio: &str, p50_us: &str) -> Report {
        let text = format!(
            r#"{{"bench": "ring", "cases": [{{"case": "other", "p50_us": 9.0}},
                {{"case": "a b", "p50_us": {p50_us}, "card_cpu_us": null}}], "ratios": {{"r": {ratio}, "nan": null}}}}"#
        );
        Report::parse(Path::new("ring.1.json"), &text, "ring").unwrap()
    }

    fn figure(key: Key, needs: Option<Peer>) -> Figure {
        Figure { what: String::new(), key, expected: None, unit: String::new(), needs, why: None }
    }

    fn ratio(name: &str) -> Figure {
        figure(Key::Ratio(name.to_owned()), None)
    }

    fn case(name: &str, of: &str) -> Figure {
        figure(Key::Case(name.to_owned(), of.to_owned()), None)
    }

    #[test]
    fn the_median_is_between_the_ends() {
        let spread = |figures: &[f64]| Spread::of(figures.to_vec());
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[2.0]), Some(Spread { median: 2.0, from: 2.0, to: 2.0 }));
        assert_eq!(spread(&[9.0, 1.0, 2.0]), Some(Spread { median: 2.0, from: 1.0, to: 9.0 }));
        assert_eq!(spread(&[9.0, 1.0, 2.0, 4.0]), Some(Spread { median: 3.0, from: 1.0, to: 9.0 }));
        assert_eq!(spread(&[-1.0, -8.0, 1.0]), Some(Spread { median: -1.0, from: -8.0, to: 1.0 }));
    }

    #[test]
    fn ratios_and_cases_are_found_in_every_report() {
        let reports = [report("1.5", "4.0"), report("2.5", "5.0"), report("3", "7.0")];
        let spread = |figure| find(&figure, &reports, FULL).unwrap();
        assert_eq!(spread(ratio("r")), Finding::Measured(Spread { median: 2.5, from: 1.5, to: 3.0 }));
        assert_eq!(
            spread(case("a b", "p50_us")),
            Finding::Measured(Spread { median: 5.0, from: 4.0, to: 7.0 })
        );
    }

    #[test]
    fn a_figure_that_is_absent_is_an_error_that_names_it() {
        let reports = [report("1.5", "4.0")];
        for absent in [
            ratio("other"),
            ratio("nan"),
            case("none", "p50_us"),
            case("a b", "p99_us"),
            case("a b", "card_cpu_us"),
        ] {
            let error = find(&absent, &reports, FULL).unwrap_err().to_string();
            assert!(error.contains(&format!("has no figure `{}`", absent.key)), "{error}");
            let quick = Circumstances { is_quick: true, ..FULL };
            let finding = find(&absent, &reports, quick).unwrap();
            assert_eq!(finding, Finding::NotMeasured("not in a quick run".to_owned()));
        }
        // One run that lacks it is enough.
        let reports = [report("1.5", "4.0"), report("null", "4.0")];
        assert!(find(&ratio("r"), &reports, FULL).is_err());
    }

    #[test]
    fn what_needs_somebody_who_is_not_there_is_not_measured() {
        let reports = [report("1.5", "4.0")];
        let needing = |peer| figure(Key::Ratio("r".to_owned()), Some(peer));
        let finding = find(&needing(Peer::Spdk), &reports, FULL).unwrap();
        assert_eq!(finding, Finding::NotMeasured("needs SPDK (`--spdk`)".to_owned()));
        assert!(matches!(find(&needing(Peer::Rocksdb), &reports, FULL).unwrap(), Finding::NotMeasured(_)));
        assert!(matches!(find(&needing(Peer::Peers), &reports, FULL).unwrap(), Finding::Measured(_)));
        // Who was there, and was not measured, is missed.
        let absent = figure(Key::Ratio("other".to_owned()), Some(Peer::Peers));
        assert!(find(&absent, &reports, FULL).is_err());
        assert_eq!(find(&ratio("r"), &[], FULL).unwrap(), Finding::NotMeasured("not in this run".to_owned()));
    }

    #[test]
    fn what_is_no_report_of_the_benchmark_is_refused() {
        let path = Path::new("there/is/no.json");
        for (text, complaint) in [
            ("{", "is no report of a benchmark"),
            ("{}", "is no report of a benchmark"),
            (r#"{"bench": "kv", "cases": [], "ratios": {"r": "many"}}"#, "is no report of a benchmark"),
            (r#"{"bench": "kv", "cases": [], "ratios": {}}"#, "is a report of `kv` and not of `ring`"),
        ] {
            let error = format!("{:#}", Report::parse(path, text, "ring").unwrap_err());
            assert!(error.contains(complaint), "{text}: {error}");
        }
        assert!(Report::read(path, "ring").unwrap_err().to_string().contains("cannot read"));
    }
}
