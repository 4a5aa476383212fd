//! Long reads that the card answers: sent from where they were read, and copied first.
//!
//! ```text
//!   device ─▶ buffer ───────────────────────▶ socket      zero-copy
//!   device ─▶ buffer ─▶ copy, with the head ─▶ socket      copy
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use super::Plan;
use crate::bench::cores::Layout;
use crate::bench::remote::{Contender, RemoteHostKind, Wanted};
use crate::bench::talk::{Pace, case};
use crate::bench::turns::by_turns;
use crate::bench::{BenchFailure, Case, Setting};

/// How long reads are, and what that is called; ratios are named after it.
const LENGTHS: [(&str, usize); 2] = [("4k", 4 << 10), ("64k", 64 << 10)];
/// Requests that a connection has out.
const PACE: Pace = Pace::Closed(4);
const WAYS: [(&str, bool); 2] = [("zero-copy", false), ("copy", true)];

/// How many steps the progress takes.
pub(super) fn steps(plan: &Plan) -> u64 {
    (LENGTHS.len() * WAYS.len()) as u64 * plan.rounds
}

pub(super) fn measure(
    plan: &Plan,
    setting: &Setting<'_>,
    place: &Path,
    layout: Layout,
) -> Result<Vec<Case>, BenchFailure> {
    let mut contenders = Vec::new();
    for (name, copies) in WAYS {
        let wanted = Wanted { kind: RemoteHostKind::Offloaded, bytes: plan.file_len, copies };
        contenders.push((name, Contender::start(wanted, &place.join(name), layout)?));
    }
    let mut cases = Vec::new();
    for (length, len) in LENGTHS {
        let rounds = by_turns(plan.rounds, &mut contenders, |(name, contender), round| {
            setting.progress.inc(1);
            setting.progress.set_message(format!("{name}.{length}"));
            contender.read(len, plan.file_len, PACE, round, plan.span).map(Some)
        })?;
        let names = contenders.iter().map(|(name, _)| format!("{name}.{length}"));
        cases.extend(names.zip(rounds).filter_map(|(name, rounds)| case(&name, PACE, rounds)));
    }
    Ok(cases)
}

/// Without copies against with them.
pub(super) fn ratios(cases: &[Case]) -> BTreeMap<String, f64> {
    let mut ratios = BTreeMap::new();
    for (length, _) in LENGTHS {
        let find =
            |(name, _): (&str, bool)| cases.iter().find(|case| case.case == format!("{name}.{length}"));
        let (Some(zero), Some(copied)) = (find(WAYS[0]), find(WAYS[1])) else { continue };
        let mut add = |what: &str, of: fn(&Case) -> Option<f64>| {
            if let (Some(zero), Some(copied)) = (of(zero), of(copied)) {
                ratios.insert(format!("{what}_vs_copy.{length}"), zero / copied);
            }
        };
        add("card_cpu", |case| case.cpu.card_cpu_us);
        add("machine_cpu", |case| case.cpu.machine_cpu_us);
        add("p50", |case| Some(case.p50_us));
    }
    ratios
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{CpuPerOperation, Latencies};

    #[test]
    fn ratios_are_of_the_same_length() {
        let case = |name: &str, card: f64, p50_us| {
            let cpu = CpuPerOperation { card_cpu_us: Some(card), ..CpuPerOperation::default() };
            Case { p50_us, ..Case::new(name, 1.0, &Latencies::new(), cpu) }
        };
        let cases =
            [case("zero-copy.64k", 6.0, 30.0), case("copy.64k", 8.0, 40.0), case("copy.4k", 2.0, 10.0)];
        let expected = [("card_cpu_vs_copy.64k", 0.75), ("p50_vs_copy.64k", 0.75)];
        let expected = expected.into_iter().map(|(name, ratio)| (name.to_owned(), ratio)).collect();
        assert_eq!(ratios(&cases), expected);
    }
}
