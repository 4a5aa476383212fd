//! `docs/results.md`, from findings.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::expected::{Bound, Elsewhere, Figure, Part};
use super::facts::Facts;
use super::report::{Finding, Spread};

/// A part, and what is known of each of its figures.
#[derive(Debug)]
pub struct Chapter<'table> {
    /// The part.
    pub part: &'table Part,
    /// As many as it has figures, in their order.
    pub findings: Vec<Finding>,
}

/// How what was measured stands to what was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// In every run, or only by the median.
    Reached {
        always: bool,
    },
    Missed {
        always: bool,
    },
    /// Nothing was expected, or nothing measured.
    Open,
}

impl Verdict {
    fn of(expected: Option<Bound>, finding: &Finding) -> Self {
        let (Some(bound), Finding::Measured(spread)) = (expected, finding) else { return Self::Open };
        let is_same_everywhere = bound.holds(spread.from) == bound.holds(spread.to);
        if bound.holds(spread.median) {
            Self::Reached { always: is_same_everywhere }
        } else {
            Self::Missed { always: is_same_everywhere }
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Reached { always: true } => "reached",
            Self::Reached { always: false } => "reached, not in every run",
            Self::Missed { always: true } => "**missed**",
            Self::Missed { always: false } => "**missed**, not in every run",
            Self::Open => "",
        }
    }
}

/// The document. Without facts nothing was measured.
#[must_use]
pub fn write(chapters: &[Chapter<'_>], elsewhere: &[Elsewhere], facts: Option<&Facts>) -> String {
    let mut text = head(facts);
    text += &summary(chapters);
    for chapter in chapters {
        text += &chapter.text(facts);
    }
    text += &misses(chapters);
    text += &held_elsewhere(elsewhere);
    text
}

fn head(facts: Option<&Facts>) -> String {
    let mut text = "# What was expected, and what is measured\n\n\
        Every figure that was expected of a part before it was built, and what benchmarks measure of it. Made by `cargo xtask results`; \
        what is expected is in [`expectations.toml`](../xtask/src/results/expectations.toml), and what the figures mean in the document that each part names.\n\n"
        .to_owned();
    let Some(facts) = facts else {
        return text + "**Nothing has been measured for this document yet.**\n\n";
    };
    if facts.quick {
        text += "**This is from a quick run, which shows that the benchmarks work: its figures are not to be trusted.**\n\n";
    }
    let machine = &facts.machine;
    let kind = if machine.is_virtual { "virtual machine" } else { "machine" };
    let changed = if facts.is_changed { ", with changes that are in no commit" } else { "" };
    let program = match &facts.program {
        Some(program) => {
            format!(" The program was given, and may be of another commit: `{}`.", program.display())
        }
        None => String::new(),
    };
    let given = |is_given: bool| if is_given { "with" } else { "without" };
    let _ = write!(
        text,
        "Measured on {} at commit `{}`{changed}.{program} A {kind} with {} cores ({}), {} GiB of memory, Linux {}; files on {}. \
         {} SPDK, {} the peers of programs. {} in each run a contender and \
         what it is compared with take turns. Ratios count; figures with a unit are those of this machine.\n\n",
        facts.day,
        facts.commit,
        machine.cores,
        machine.processor,
        machine.memory_gib,
        machine.kernel,
        machine.disk,
        if facts.spdk.is_some() { "With" } else { "Without" },
        given(facts.peers.is_some()),
        runs(facts.runs),
    );
    text
}

fn runs(count: u32) -> String {
    match count {
        1 => "Each benchmark was run once;".to_owned(),
        _ => format!("Shown is the median of {count} runs, and the least and the most of them;"),
    }
}

fn summary(chapters: &[Chapter<'_>]) -> String {
    let mut text =
        "| part | expected | reached | missed | not measured |\n|---|---|---|---|---|\n".to_owned();
    for chapter in chapters {
        let expected = || chapter.rows().filter(|(figure, _)| figure.expected.is_some());
        let count = |is_it: fn(Verdict) -> bool| {
            expected().filter(|(figure, finding)| is_it(Verdict::of(figure.expected, finding))).count()
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            chapter.part.title,
            expected().count(),
            count(|verdict| matches!(verdict, Verdict::Reached { .. })),
            count(|verdict| matches!(verdict, Verdict::Missed { .. })),
            count(|verdict| verdict == Verdict::Open),
        );
    }
    text + "\n"
}

impl Chapter<'_> {
    fn rows(&self) -> impl Iterator<Item = (&Figure, &Finding)> {
        self.part.figures.iter().zip(&self.findings)
    }

    fn text(&self, facts: Option<&Facts>) -> String {
        let Part { title, bench, document, .. } = self.part;
        let mut text = format!(
            "## {title}\n\n[What is measured, and how]({document}). To repeat a run: `{}`{}.\n\n\
             | figure | name | expected | measured (from, to) | |\n|---|---|---|---|---|\n",
            repeating(self.part),
            took(bench, facts),
        );
        for (figure, finding) in self.rows() {
            let expected =
                figure.expected.map_or_else(|| "–".to_owned(), |bound| with_unit(bound.to_string(), figure));
            let measured = match finding {
                Finding::Measured(spread) => measured(*spread, figure),
                Finding::NotMeasured(why) => format!("not measured: {why}"),
            };
            let verdict = Verdict::of(figure.expected, finding).words();
            let _ = writeln!(
                text,
                "| {} | `{}` | {expected} | {measured} | {verdict} |",
                figure.what, figure.key
            );
        }
        text + "\n"
    }
}

fn repeating(part: &Part) -> String {
    let bench = &part.bench;
    let (before, peers) = match bench.as_str() {
        "nvme" => ("SPDK_DIR=FOLDER ", ""),
        "bpf" | "pushdown" => ("", " --peers FOLDER"),
        _ => ("", ""),
    };
    format!("{before}cargo run --release -- bench {bench}{peers} --json {bench}.json")
}

/// How long runs of a benchmark took.
fn took(bench: &str, facts: Option<&Facts>) -> String {
    let is_of_bench = |name: &str| name.rsplit_once('.').is_some_and(|(other, _)| other == bench);
    let seconds = facts.iter().flat_map(|facts| &facts.seconds).filter(|(name, _)| is_of_bench(name));
    match Spread::of(seconds.map(|(_, seconds)| *seconds).collect()) {
        Some(spread) => format!(", {:.0} s", spread.median),
        None => String::new(),
    }
}

fn measured(spread: Spread, figure: &Figure) -> String {
    let median = with_unit(number(spread.median), figure);
    if spread.from == spread.to {
        median
    } else {
        format!("{median} ({}, {})", number(spread.from), number(spread.to))
    }
}

fn with_unit(text: String, figure: &Figure) -> String {
    if figure.unit.is_empty() { text } else { format!("{text} {}", figure.unit) }
}

/// Three digits are all that these measurements can promise, and of what is hardly there a reader wants to see more.
fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        nothing if nothing < 0.0001 => "less than 0.0001".to_owned(),
        tiny if tiny < 0.1 => format!("{value:.4}"),
        small if small < 10.0 => format!("{value:.2}"),
        middle if middle < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// Why figures were missed; those with the same reason together.
fn misses(chapters: &[Chapter<'_>]) -> String {
    let mut text = "## Misses\n\n".to_owned();
    let mut is_any = false;
    for chapter in chapters {
        let mut by_reason: BTreeMap<Option<&str>, Vec<String>> = BTreeMap::new();
        for (figure, finding) in chapter.rows() {
            if let (Verdict::Missed { .. }, Finding::Measured(spread), Some(bound)) =
                (Verdict::of(figure.expected, finding), finding, figure.expected)
            {
                let line = format!("`{}` ({}, expected {bound})", figure.key, number(spread.median));
                by_reason.entry(figure.why.as_deref()).or_default().push(line);
            }
        }
        for (reason, missed) in by_reason {
            is_any = true;
            let why = reason.and_then(|name| chapter.part.reasons.get(name));
            let why = why.map_or("Nobody has shown why yet.", |why| why.trim());
            let _ = writeln!(text, "- **{}**: {}. {why}", chapter.part.title, missed.join(", "));
        }
    }
    if !is_any {
        text += "None of what was measured.\n";
    }
    text + "\n"
}

fn held_elsewhere(elsewhere: &[Elsewhere]) -> String {
    let mut text = "## What no benchmark measures\n\n\
        Tests hold these, or campaigns. CI runs the tests; of a campaign the last column names the commit at which it was last \
        run to its end and found nothing, or several where it was run in parts, with what was run at each.\n\n\
        | what | expected | command | clean at |\n|---|---|---|---|\n"
        .to_owned();
    for Elsewhere { what, expected, command, clean_at } in elsewhere {
        let clean_at = clean_at.as_deref().unwrap_or_default();
        let _ = writeln!(text, "| {what} | {expected} | `{command}` | {clean_at} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::expected::Table;
    use crate::results::facts::tests::sample;
    use crate::results::report::find;
    use crate::results::report::tests::{FULL, report};

    const TABLE: &str = r#"
        [[part]]
        title = "Rings"
        bench = "ring"
        document = "bench/ring.md"
        minutes = 3
        [[part.figure]]
        what = "good"
        ratio = "r"
        expected = "at least 2"
        [[part.figure]]
        what = "bad"
        case = "a b"
        of = "p50_us"
        expected = "below 4"
        unit = "µs"
        why = "slow"
        [[part.figure]]
        what = "told"
        case = "other"
        of = "p50_us"
        [[part.figure]]
        what = "foreign"
        ratio = "spdk"
        expected = "at least 1"
        needs = "spdk"
        [part.reasons]
        slow = "It is slow."
        [[elsewhere]]
        what = "seeds"
        expected = "many"
        command = "cargo xtask sim"
        clean_at = "0123abc"
    "#;

    fn document(reports: &[crate::results::report::Report], facts: Option<&Facts>) -> String {
        let table: Table = toml::from_str(TABLE).unwrap();
        let chapter = |part| {
            let of = |part: &Part| {
                part.figures.iter().map(|figure| find(figure, reports, FULL).unwrap()).collect()
            };
            Chapter { part, findings: of(part) }
        };
        let chapters: Vec<_> = table.parts.iter().map(chapter).collect();
        write(&chapters, &table.elsewhere, facts)
    }

    #[test]
    fn each_figure_has_its_row() {
        let text =
            document(&[report("2.5", "6.0"), report("1.9", "5.0"), report("2.1", "3.0")], Some(&sample()));
        for line in [
            "| Rings | 3 | 1 | 1 | 1 |",
            "| good | `r` | at least 2 | 2.10 (1.90, 2.50) | reached, not in every run |",
            "| bad | `a b: p50_us` | below 4 µs | 5.00 µs (3.00, 6.00) | **missed**, not in every run |",
            "| told | `other: p50_us` | – | 9.00 |  |",
            "| foreign | `spdk` | at least 1 | not measured: needs SPDK (`--spdk`) |  |",
            "- **Rings**: `a b: p50_us` (5.00, expected below 4). It is slow.",
            "| seeds | many | `cargo xtask sim` | 0123abc |",
        ] {
            assert!(text.lines().any(|other| other == line), "no line `{line}` in\n{text}");
        }
        assert!(
            text.contains("commit `0123456789abcdef`.") && text.contains("2 cores (Some Processor)"),
            "{text}"
        );
        assert!(
            text.contains("Linux 6.1.0; files on ext4 on /dev/vda. Without SPDK, with the peers"),
            "{text}"
        );
        assert!(text.contains("bench ring --json ring.json`, 75 s."), "{text}");
        assert!(!text.contains("not to be trusted"), "{text}");
    }

    #[test]
    fn a_quick_run_and_none_at_all_say_so() {
        let text = document(&[], None);
        assert!(
            text.contains("Nothing has been measured") && text.contains("| Rings | 3 | 0 | 0 | 3 |"),
            "{text}"
        );
        assert!(text.contains("None of what was measured."), "{text}");
        let text =
            document(&[report("2", "3.0")], Some(&Facts { quick: true, is_changed: true, ..sample() }));
        assert!(
            text.contains("not to be trusted") && text.contains("changes that are in no commit"),
            "{text}"
        );
    }

    #[test]
    fn a_verdict_is_that_of_the_median() {
        let verdict = |from, median, to| {
            let table: Table = toml::from_str(TABLE).unwrap();
            Verdict::of(table.parts[0].figures[0].expected, &Finding::Measured(Spread { median, from, to }))
        };
        assert_eq!(verdict(2.0, 2.0, 2.0), Verdict::Reached { always: true });
        assert_eq!(verdict(1.0, 2.0, 3.0), Verdict::Reached { always: false });
        assert_eq!(verdict(1.0, 1.9, 3.0), Verdict::Missed { always: false });
        assert_eq!(verdict(1.0, 1.5, 1.9), Verdict::Missed { always: true });
    }

    #[test]
    fn numbers_have_the_digits_that_count() {
        for (value, expected) in [
            (0.0, "0"),
            (0.000_01, "less than 0.0001"),
            (0.0094, "0.0094"),
            (-6.1, "-6.10"),
            (0.333, "0.33"),
            (31.04, "31.0"),
            (373_912.4, "373912"),
        ] {
            assert_eq!(number(value), expected);
        }
    }
}
