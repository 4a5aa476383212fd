//! What a benchmark found out.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::{CpuPerOperation, Latencies};
use crate::terminal::{HEADING, styled, table};

/// The figures of one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The benchmark's name.
    pub bench: String,
    /// Baselines and contenders.
    pub cases: Vec<Case>,
    /// What counts: contender by baseline, by name.
    pub ratios: BTreeMap<String, f64>,
}

/// The figures of one case.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Case {
    /// Its name.
    pub case: String,
    /// Throughput.
    pub ops_per_s: f64,
    /// The latency that half of the operations do not exceed.
    pub p50_us: f64,
    /// The latency that 99 of 100 do not exceed.
    pub p99_us: f64,
    /// The latency that 999 of 1000 do not exceed.
    pub p999_us: f64,
    /// Who worked how much for each operation.
    #[serde(flatten)]
    pub cpu: CpuPerOperation,
    /// Further figures, by name.
    #[serde(flatten)]
    pub extra: BTreeMap<String, f64>,
}

impl Case {
    /// A case from what was measured: so many operations in so many seconds.
    #[must_use]
    pub fn new(case: &str, seconds: f64, latencies: &Latencies, cpu: CpuPerOperation) -> Self {
        Self {
            case: case.to_owned(),
            ops_per_s: latencies.count() as f64 / seconds,
            p50_us: latencies.quantile_us(0.5),
            p99_us: latencies.quantile_us(0.99),
            p999_us: latencies.quantile_us(0.999),
            cpu,
            extra: BTreeMap::new(),
        }
    }
}

impl Report {
    /// As JSON, for scripts.
    pub fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self).map(|text| text + "\n")
    }

    /// As tables, for people.
    #[must_use]
    pub fn table(&self) -> String {
        let extra: BTreeSet<&str> =
            self.cases.iter().flat_map(|case| case.extra.keys().map(String::as_str)).collect();
        let mut heading = vec![
            "case",
            "ops/s",
            "p50 µs",
            "p99 µs",
            "p99.9 µs",
            "client cpu µs",
            "card cpu µs",
            "host cpu µs",
            "machine cpu µs",
        ];
        heading.extend(&extra);
        let rows: Vec<_> = self.cases.iter().map(|case| row(case, &extra)).collect();
        let mut text = format!("{}\n{}", styled(HEADING, &self.bench), table(&heading, &rows));
        if !self.ratios.is_empty() {
            let rows: Vec<_> =
                self.ratios.iter().map(|(name, ratio)| vec![name.clone(), small_figure(*ratio)]).collect();
            text += "\n\n";
            text += &table(&["ratio", "value"], &rows);
        }
        text
    }
}

fn row(case: &Case, extra: &BTreeSet<&str>) -> Vec<String> {
    let measured = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), figure);
    let mut cells = vec![case.case.clone()];
    cells.extend([case.ops_per_s, case.p50_us, case.p99_us, case.p999_us].map(figure));
    let CpuPerOperation { client_cpu_us, card_cpu_us, host_cpu_us, machine_cpu_us } = case.cpu;
    cells.extend([client_cpu_us, card_cpu_us, host_cpu_us, machine_cpu_us].map(measured));
    cells.extend(extra.iter().map(|name| measured(case.extra.get(*name).copied())));
    cells
}

/// A ratio that is hardly there is what a reader wants to see more of.
fn small_figure(ratio: f64) -> String {
    if ratio.abs() < 0.1 { format!("{ratio:.4}") } else { format!("{ratio:.2}") }
}

/// Three digits are all that these measurements can promise.
fn figure(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Two cases, one without a host.
    pub(in crate::bench) fn sample() -> Report {
        let case = |name: &str, ops_per_s: f64| Case {
            case: name.to_owned(),
            ops_per_s,
            p50_us: 4.0,
            p99_us: 12.5,
            p999_us: 250.0,
            cpu: CpuPerOperation {
                client_cpu_us: Some(1.0),
                card_cpu_us: Some(2.5),
                host_cpu_us: None,
                machine_cpu_us: Some(4.0),
            },
            extra: BTreeMap::from([("dma_reads".to_owned(), 1.5)]),
        };
        Report {
            bench: "sample".to_owned(),
            cases: vec![case("lock", 1000.0), case("progress", 3000.0)],
            ratios: BTreeMap::from([("progress_by_lock".to_owned(), 3.0)]),
        }
    }

    #[test]
    fn the_json_has_the_form_that_scripts_know() {
        let value: serde_json::Value = serde_json::from_str(&sample().json().unwrap()).unwrap();
        let expected = serde_json::json!({
            "case": "lock", "ops_per_s": 1000.0, "p50_us": 4.0, "p99_us": 12.5, "p999_us": 250.0,
            "client_cpu_us": 1.0, "card_cpu_us": 2.5, "host_cpu_us": null, "machine_cpu_us": 4.0,
            "dma_reads": 1.5,
        });
        assert_eq!(value["cases"][0], expected);
        assert_eq!(value["ratios"]["progress_by_lock"], 3.0);
    }

    #[test]
    fn the_table_shows_every_figure() {
        let text = anstream::adapter::strip_str(&sample().table()).to_string();
        let line = text.lines().find(|line| line.contains("progress")).unwrap();
        let cells: Vec<_> = line.split_whitespace().collect();
        assert_eq!(cells, ["progress", "3000", "4.00", "12.5", "250", "1.00", "2.50", "-", "4.00", "1.50"]);
        assert!(text.contains("progress_by_lock  3.00"), "{text}");
    }
}
