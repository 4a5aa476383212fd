//! Why a history is not linearizable, for people.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use super::search::{Outcome, Search};
use super::{Limits, OperationOf, Specification, Verdict};

/// A part of a history that no order explains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The shortest beginning of the part that fails, by place in the history: what was called by the time that
    /// `culprit` returned.
    pub operations: Vec<usize>,
    /// The operation whose reply cannot be explained together with those before it.
    pub culprit: usize,
    /// The longest order that explains a part of `operations`.
    pub order: Vec<usize>,
    timeline: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.timeline)
    }
}

/// Searches one part, and when there is no order, the instant up to which there was one.
pub(super) fn check_part<S: Specification>(
    specification: &S,
    history: &[OperationOf<S>],
    part: Vec<usize>,
    limits: Limits,
) -> Verdict {
    let search = |until: u64| {
        let mut steps_left = limits.steps_max;
        let outcome = Search::new(specification, history, &part, until).run(&mut steps_left);
        (outcome, limits.steps_max - steps_left)
    };
    let mut order = match search(u64::MAX) {
        (Outcome::Found, _) => return Verdict::Linearizable,
        (Outcome::GaveUp, steps) => return Verdict::GaveUp { steps },
        (Outcome::Impossible(order), _) => order,
    };
    let mut returns: Vec<(u64, usize)> = part
        .iter()
        .filter_map(|index| history[*index].returned.as_ref().map(|end| (end.at, *index)))
        .collect();
    returns.sort_unstable();
    // Beginnings of a linearizable history are linearizable, so the first that fails can be found by halving. Most often it
    // is the one that ends with the first reply which the longest order leaves out.
    let guess = returns.iter().position(|(_, index)| !order.contains(index)).map_or(1, |place| place + 1);
    let mut guesses = [guess, guess - 1].into_iter();
    let (mut passes, mut fails) = (0, returns.len());
    while passes + 1 < fails {
        let is_between = |guess: &usize| passes < *guess && *guess < fails;
        let middle = guesses.next().filter(is_between).unwrap_or(passes.midpoint(fails));
        match search(returns[middle - 1].0) {
            (Outcome::Impossible(shorter), _) => (fails, order) = (middle, shorter),
            // What was not found out is not claimed.
            (Outcome::Found | Outcome::GaveUp, _) => passes = middle,
        }
    }
    let Some((until, culprit)) = fails.checked_sub(1).and_then(|last| returns.get(last).copied()) else {
        // Without a reply there is nothing to contradict, so this is a specification that forbids to begin.
        return Verdict::GaveUp { steps: 0 };
    };
    let mut operations = part;
    operations.retain(|index| history[*index].called <= until);
    let timeline = timeline::<S>(history, &operations, &order, culprit, until);
    Verdict::Violated(Box::new(Violation { operations, culprit, order, timeline }))
}

/// Operations that are shown of each client, the last ones.
const SHOWN_MAX: usize = 6;

/// Characters that the time takes.
const WIDTH: u64 = 32;

fn timeline<S: Specification>(
    history: &[OperationOf<S>],
    operations: &[usize],
    order: &[usize],
    culprit: usize,
    until: u64,
) -> String {
    let mut clients: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for index in operations {
        clients.entry(history[*index].client).or_default().push(*index);
    }
    let mut shown: BTreeMap<u32, Vec<usize>> = clients.clone();
    for indices in shown.values_mut() {
        indices.sort_by_key(|index| history[*index].called);
        let hidden = indices.len().saturating_sub(SHOWN_MAX);
        indices.retain({
            let mut place = 0;
            move |index| {
                place += 1;
                place > hidden || *index == culprit
            }
        });
    }
    let from = shown.values().flatten().map(|index| history[*index].called).min().unwrap_or(0);
    let mut text = format!(
        "not linearizable: no order explains what {} operations saw by {until} ns, and one explains all before it\n",
        operations.len()
    );
    for (client, indices) in &shown {
        let hidden = clients.get(client).map_or(0, Vec::len) - indices.len();
        let earlier = if hidden == 0 { String::new() } else { format!(" ({hidden} earlier ones not shown)") };
        let _ = writeln!(text, "client {client}{earlier}");
        for index in indices {
            let _ = writeln!(text, "{}", line::<S>(&history[*index], from, until, *index == culprit));
        }
    }
    let last = &order[order.len().saturating_sub(SHOWN_MAX)..];
    let commands: Vec<String> = last.iter().map(|index| history[*index].command.to_string()).collect();
    let _ = write!(
        text,
        "the longest order found has {} of them, and ends: {}",
        order.len(),
        commands.join("; ")
    );
    text
}

fn line<S: Specification>(operation: &OperationOf<S>, from: u64, until: u64, is_culprit: bool) -> String {
    let column = |at: u64| {
        let span = u128::from(until.saturating_sub(from).max(1));
        (u128::from(at.min(until).saturating_sub(from)) * u128::from(WIDTH - 1) / span) as usize
    };
    let end = operation.returned.as_ref().filter(|end| end.at <= until);
    let (start, stop) = (column(operation.called), column(end.map_or(u64::MAX, |end| end.at)));
    let mut bar = String::new();
    for place in 0..WIDTH as usize {
        bar.push(match place {
            _ if place < start || place > stop => ' ',
            _ if place == stop && end.is_none() => '>',
            _ if place == start || place == stop => '|',
            _ => '-',
        });
    }
    let mark = if is_culprit { "  <== not explained" } else { "" };
    match end {
        Some(end) => format!(
            "  [{bar}] {} -> {}  ({}..{} ns){mark}",
            operation.command, end.reply, operation.called, end.at
        ),
        None => {
            format!("  [{bar}] {} -> no reply by then  ({}.. ns){mark}", operation.command, operation.called)
        }
    }
}
