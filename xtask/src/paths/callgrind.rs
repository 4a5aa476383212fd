//! What callgrind has written down: <https://valgrind.org/docs/manual/cl-format.html>.

use std::collections::{BTreeMap, HashMap};

/// A function whose calls are the turns of a half's loop.
const TURN: &str = "Reactor::turn";
/// Functions whose calls are allocations.
const ALLOCATING: [&str; 4] = ["malloc", "calloc", "realloc", "aligned_alloc"];

/// What functions cost.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Profile {
    functions: BTreeMap<String, FunctionCost>,
}

/// What one function costs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct FunctionCost {
    /// Instructions of its own, and of what the compiler has put into it.
    pub(super) own: f64,
    /// With those of what it calls. (Of one that calls itself, too many.)
    pub(super) whole: f64,
    /// How often it was called.
    pub(super) calls: f64,
}

impl FunctionCost {
    fn map(self, other: Self, change: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            own: change(self.own, other.own),
            whole: change(self.whole, other.whole),
            calls: change(self.calls, other.calls),
        }
    }
}

impl Profile {
    /// Reads what callgrind has written. Lines that it does not know say nothing of costs.
    pub(super) fn parse(text: &str) -> Self {
        let mut profile = Self::default();
        let mut names = HashMap::new();
        let (mut function, mut called) = (String::new(), String::new());
        let mut is_inclusive = false;
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("fn=") {
                function = resolve(name, &mut names);
            } else if let Some(name) = line.strip_prefix("cfn=") {
                called = resolve(name, &mut names);
            } else if let Some(counts) = line.strip_prefix("calls=") {
                let count = counts.split(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0.0);
                profile.function(&called).calls += count;
                is_inclusive = true;
            } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
                let cost = line.split(' ').nth(1).and_then(|cost| cost.parse::<f64>().ok()).unwrap_or(0.0);
                if std::mem::take(&mut is_inclusive) {
                    profile.function(&called).whole += cost;
                } else {
                    profile.function(&function).own += cost;
                }
            }
        }
        profile
    }

    fn function(&mut self, name: &str) -> &mut FunctionCost {
        self.functions.entry(name.to_owned()).or_default()
    }

    /// What is in this one and not in the other.
    pub(super) fn without(mut self, other: &Self) -> Self {
        for (name, cost) in &other.functions {
            let place = self.function(name);
            *place = place.map(*cost, |more, less| more - less);
        }
        self
    }

    pub(super) fn divided_by(mut self, requests: f64) -> Self {
        for cost in self.functions.values_mut() {
            *cost = cost.map(*cost, |cost, _| cost / requests);
        }
        self
    }

    pub(super) fn instructions(&self) -> f64 {
        self.functions.values().map(|cost| cost.own).sum()
    }

    pub(super) fn turns(&self) -> f64 {
        self.calls_of(|name| name.ends_with(TURN))
    }

    pub(super) fn allocations(&self) -> f64 {
        self.calls_of(|name| ALLOCATING.contains(&name))
    }

    fn calls_of(&self, is_one: impl Fn(&str) -> bool) -> f64 {
        self.functions.iter().filter(|(name, _)| is_one(name)).map(|(_, cost)| cost.calls).sum()
    }

    /// The functions that cost most, by their own instructions.
    pub(super) fn most(&self, count: usize) -> impl Iterator<Item = (&str, FunctionCost)> {
        let mut functions: Vec<(&str, FunctionCost)> =
            self.functions.iter().map(|(name, cost)| (name.as_str(), *cost)).collect();
        functions.sort_by(|(_, one), (_, other)| other.own.total_cmp(&one.own));
        functions.into_iter().take(count)
    }
}

/// A name, or the number that it was given where it was first named. What tells one turn of a recursion from the next is left out.
fn resolve(name: &str, names: &mut HashMap<String, String>) -> String {
    let (number, text) = match name.split_once(' ') {
        Some((number, text)) => (number, Some(text)),
        None => (name, None),
    };
    match text {
        Some(text) => {
            let text = text.split('\'').next().unwrap_or(text).to_owned();
            names.insert(number.to_owned(), text.clone());
            text
        }
        None => names.get(number).cloned().unwrap_or_else(|| number.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
version: 1
events: Ir

fl=(1) card.rs
fn=(1) serve
16 400
cfi=(2) reactor.rs
cfn=(2) ob_io::reactor::Reactor::turn
calls=3 50
16 900
+2 7
cfn=(3) malloc
calls=2 5
* 80

fn=(2)
50 900
fn=(3)
1 80
totals: 1387
";

    #[test]
    fn costs_are_a_functions_own_and_calls_are_counted() {
        let profile = Profile::parse(TEXT);
        assert_eq!((profile.instructions(), profile.turns(), profile.allocations()), (1387.0, 3.0, 2.0));
        let most: Vec<_> = profile.most(2).collect();
        let turn = FunctionCost { own: 900.0, whole: 900.0, calls: 3.0 };
        let serve = FunctionCost { own: 407.0, whole: 0.0, calls: 0.0 };
        assert_eq!(most, [("ob_io::reactor::Reactor::turn", turn), ("serve", serve)]);
    }

    #[test]
    fn what_both_have_falls_out() {
        let more = Profile::parse(&TEXT.replace("16 400", "16 500").replace("calls=3", "calls=5"));
        let difference = more.without(&Profile::parse(TEXT)).divided_by(2.0);
        assert_eq!(
            (difference.instructions(), difference.turns(), difference.allocations()),
            (50.0, 1.0, 0.0)
        );
    }
}
