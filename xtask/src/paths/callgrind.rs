//! What callgrind has written down: <https://valgrind.org/docs/manual/cl-format.html>.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A function whose calls are the turns of a half's loop.
const TURN: &str = "Reactor::turn";
/// What paths of this repository's code have in them.
pub(super) const OURS: &str = "crates/";
/// Functions whose calls are allocations.
const ALLOCATING: [&str; 4] = ["malloc", "calloc", "realloc", "aligned_alloc"];

/// Costs by file and line of ours.
pub(super) type Lines = BTreeMap<(String, u32), LineCost>;

/// What a line of ours costs, and with it what the compiler has put behind it out of other libraries.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct LineCost {
    pub(super) instructions: f64,
    /// Those among them that have a cache line to themselves: read-modify-writes.
    pub(super) locked: f64,
}

/// What functions cost.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Profile {
    functions: BTreeMap<String, FunctionCost>,
    lines: Lines,
    locked: f64,
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
    /// Reads what callgrind has written, with addresses, and with positions as they are (`--dump-instr=yes --compress-pos=no`).
    /// At the addresses in `locked` the program has instructions that lock. Lines of the text that it does not know say nothing of costs.
    pub(super) fn parse(text: &str, program: &str, locked: &BTreeSet<u64>) -> Self {
        let mut profile = Self::default();
        let (mut names, mut files, mut objects) = (HashMap::new(), HashMap::new(), HashMap::new());
        let (mut function, mut called, mut file) = (String::new(), String::new(), String::new());
        let (mut is_inclusive, mut is_program) = (false, false);
        let mut written_at = None;
        for line in text.lines() {
            let (key, value) = line.split_once('=').unwrap_or(("", line));
            match key {
                "ob" => is_program = resolve(value, &mut objects) == program,
                "fn" => (function, written_at) = (resolve(value, &mut names), None),
                "fl" | "fi" | "fe" => file = resolve(value, &mut files),
                "cfn" => called = resolve(value, &mut names),
                // What is called may be named here for the first time.
                "cfl" | "cfi" => drop(resolve(value, &mut files)),
                "cob" => drop(resolve(value, &mut objects)),
                "calls" => {
                    let count = value.split(' ').next().and_then(|count| count.parse().ok());
                    profile.function(&called).calls += count.unwrap_or(0.0);
                    is_inclusive = true;
                }
                _ => {
                    let Some((address, position, cost)) = costs(line) else { continue };
                    if std::mem::take(&mut is_inclusive) {
                        profile.function(&called).whole += cost;
                        continue;
                    }
                    profile.function(&function).own += cost;
                    if file.contains(OURS) {
                        written_at = Some((file.clone(), position));
                    }
                    let locks = if is_program && locked.contains(&address) { cost } else { 0.0 };
                    profile.locked += locks;
                    if let Some(place) = &written_at {
                        let of_line = profile.lines.entry(place.clone()).or_default();
                        of_line.instructions += cost;
                        of_line.locked += locks;
                    }
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
        for (position, cost) in &other.lines {
            let place = self.lines.entry(position.clone()).or_default();
            place.instructions -= cost.instructions;
            place.locked -= cost.locked;
        }
        self.locked -= other.locked;
        self
    }

    pub(super) fn divided_by(mut self, requests: f64) -> Self {
        for cost in self.functions.values_mut() {
            *cost = cost.map(*cost, |cost, _| cost / requests);
        }
        for cost in self.lines.values_mut() {
            cost.instructions /= requests;
            cost.locked /= requests;
        }
        self.locked /= requests;
        self
    }

    pub(super) fn lines(&self) -> &Lines {
        &self.lines
    }

    pub(super) fn instructions(&self) -> f64 {
        self.functions.values().map(|cost| cost.own).sum()
    }

    /// Read-modify-writes of the program's own code.
    pub(super) fn locked(&self) -> f64 {
        self.locked
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

/// An instruction's address, its line, and what it costs.
fn costs(line: &str) -> Option<(u64, u32, f64)> {
    let mut words = line.split(' ');
    let address = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    Some((address, words.next()?.parse().ok()?, words.next()?.parse().ok()?))
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
positions: instr line
events: Ir

ob=(1) /bin/outboard
fl=(1) crates/outboard/card.rs
fn=(1) serve
0x10 16 400
cfi=(2) crates/ob-io/reactor.rs
cfn=(2) ob_io::reactor::Reactor::turn
calls=3 0x40 50
0x12 16 900
fi=(3) core/atomic.rs
0x14 18 7
fe=(1)
cob=(2) /lib/libc.so.6
cfn=(3) malloc
calls=2 0x14 5
0x16 16 80

fl=(2)
fn=(2)
0x40 50 900
ob=(2)
fl=(4) ???
fn=(3)
0x14 0 80
totals: 1387
";

    fn parsed(text: &str) -> Profile {
        Profile::parse(text, "/bin/outboard", &BTreeSet::from([0x14]))
    }

    #[test]
    fn costs_are_a_functions_own_and_calls_are_counted() {
        let profile = parsed(TEXT);
        assert_eq!((profile.instructions(), profile.turns(), profile.allocations()), (1387.0, 3.0, 2.0));
        let most: Vec<_> = profile.most(2).collect();
        let turn = FunctionCost { own: 900.0, whole: 900.0, calls: 3.0 };
        let serve = FunctionCost { own: 407.0, whole: 0.0, calls: 0.0 };
        assert_eq!(most, [("ob_io::reactor::Reactor::turn", turn), ("serve", serve)]);
    }

    #[test]
    fn what_comes_out_of_a_library_counts_for_the_line_before_it_and_only_the_program_locks() {
        let profile = parsed(TEXT);
        let line = |file: &str, line| profile.lines().get(&(file.to_owned(), line)).copied();
        let of_loop = LineCost { instructions: 407.0, locked: 7.0 };
        assert_eq!(line("crates/outboard/card.rs", 16), Some(of_loop));
        let of_reactor = LineCost { instructions: 900.0, locked: 0.0 };
        assert_eq!(line("crates/ob-io/reactor.rs", 50), Some(of_reactor));
        assert_eq!((profile.lines().len(), profile.locked()), (2, 7.0));
    }

    #[test]
    fn what_both_have_falls_out() {
        let more = parsed(&TEXT.replace("0x10 16 400", "0x10 16 500").replace("calls=3", "calls=5"));
        let difference = more.without(&parsed(TEXT)).divided_by(2.0);
        assert_eq!(
            (difference.instructions(), difference.turns(), difference.allocations()),
            (50.0, 1.0, 0.0)
        );
        assert_eq!(difference.locked(), 0.0);
    }
}
