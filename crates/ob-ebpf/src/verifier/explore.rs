//! Follows the ways through a function until nothing new comes of it.

use std::collections::BTreeMap;

use crate::isa::Register;
use crate::verifier::Verifier;
use crate::verifier::branch::Outcomes;
use crate::verifier::flow::Meeting;
use crate::verifier::refusal::{PATH_MAX, Refused, Why, instruction_text};
use crate::verifier::state::State;
use crate::verifier::step::Next;
use crate::verifier::value::Value;

/// States that are kept apart where ways meet; more are joined.
const APART_MAX: usize = 6;
/// What a function leaves is kept apart by what it returns, if that is one of so many constants: then its caller, which looks
/// at that, knows what was written.
const EXITS_MAX: usize = 4;
/// Rounds of a loop that are followed one by one, as long as something counts them: in a short loop all that goes along with the
/// counter is known then. Those of longer loops are joined.
const ROUNDS_MAX: usize = 40;
/// How often the state of a loop is only joined with what comes; then it is widened.
const JOINS: usize = 2;
/// How often what is widened stops at the program's own constants.
const WIDENINGS: usize = 12;
/// Slots of all states that are kept at once, some hundred bytes each: a short program can have as many ways as instructions, each with
/// eight full frames.
const KEPT_MAX: usize = 1 << 18;

/// What a step takes besides the slots that it goes through, in slots that take as long.
const STEP_WORK: usize = 8;

/// A branch on the way to a state, and the one before it.
type Trail = Option<u32>;

/// The function that is being verified.
#[derive(Default)]
struct Exploring {
    /// States that were followed, at places where ways meet.
    followed: BTreeMap<usize, Followed>,
    /// States to follow, by their instructions.
    waiting: BTreeMap<usize, Vec<(Box<State>, Trail)>>,
    /// Branches, each with whether it was taken, and the one before it.
    trails: Vec<(usize, bool, Trail)>,
    exits: Vec<State>,
}

#[derive(Default)]
struct Followed {
    states: Vec<State>,
    /// How often the state of a loop has changed.
    changes: usize,
}

impl Followed {
    fn size(&self) -> usize {
        self.states.iter().map(State::size).sum()
    }

    /// Keeps a state; when there are too many, joins the two that are most alike. What is to be followed: one or two.
    fn keep(&mut self, state: Box<State>, floor: u32) -> [Option<Box<State>>; 2] {
        self.states.push(State::clone(&state));
        if self.states.len() <= APART_MAX {
            return [Some(state), None];
        }
        let last = self.states.len() - 1;
        let pairs = (1..=last).flat_map(|right| (0..right).map(move |left| (left, right)));
        let likeness = |(left, right): &(usize, usize)| {
            let pair = self.states.get(*left).zip(self.states.get(*right));
            pair.map_or(i32::MIN, |(left, right)| left.likeness(right))
        };
        let Some((left, right)) = pairs.max_by_key(likeness) else { return [Some(state), None] };
        let (second, first) = (self.states.remove(right), self.states.remove(left));
        let joined = Box::new(first.merge(&second, None, floor));
        self.states.push(State::clone(&joined));
        [Some(joined), (right != last).then_some(state)]
    }
}

impl Exploring {
    /// The function returns.
    fn leave(&mut self, exit: State) {
        let returns = |state: &State| match state.get(Register::R0) {
            Value::Number(scalar) => scalar.number.as_constant(),
            _ => None,
        };
        let own = returns(&exit);
        let is_full = self.exits.len() == EXITS_MAX;
        let same = self.exits.iter().position(|before| returns(before) == own);
        match same.or(is_full.then_some(0)).and_then(|at| self.exits.get_mut(at)) {
            Some(before) => *before = before.merge(&exit, None, 0),
            None => self.exits.push(exit),
        }
    }
}

impl Verifier<'_> {
    /// Verifies a function with what it may find; what it leaves, if it ever returns: any of these.
    pub(super) fn function(&mut self, variant: usize, entry: State) -> Result<Vec<State>, Box<Refused>> {
        let function = self.variants.get(variant).map_or(0, |variant| variant.function);
        let begin = self.program.functions().get(function).map_or(0, |function| function.begin);
        let mut exploring = Exploring::default();
        self.arrive(&mut exploring, begin, Box::new(entry), None);
        // Ways are followed from above: so an inner loop has settled before what is behind it is looked at.
        while let Some(mut first) = exploring.waiting.first_entry() {
            let at = *first.key();
            let Some((state, trail)) = first.get_mut().pop() else {
                first.remove();
                continue;
            };
            self.kept -= state.size();
            self.follow(&mut exploring, at, state, trail)?;
        }
        self.kept -= exploring.followed.values().map(Followed::size).sum::<usize>();
        Ok(exploring.exits)
    }

    /// Follows one way to the next place where ways meet, or part.
    fn follow(
        &mut self,
        exploring: &mut Exploring,
        mut at: usize,
        mut state: Box<State>,
        trail: Trail,
    ) -> Result<(), Box<Refused>> {
        loop {
            self.steps += 1;
            self.spend(STEP_WORK);
            if let Some(why) = self.beyond_limits() {
                return Err(self.refusal(exploring, at, why, &state, trail));
            }
            #[cfg(feature = "campaign")]
            self.record(at, &state);
            let next = match self.step(at, &mut state) {
                Ok(next) => next,
                Err(why) => {
                    let inner = self.refused.take();
                    return Err(inner.unwrap_or_else(|| self.refusal(exploring, at, why, &state, trail)));
                }
            };
            match next {
                Next::Never => return Ok(()),
                Next::Exit => {
                    self.spend(state.size());
                    exploring.leave(*state);
                    return Ok(());
                }
                Next::Returned(exits) => {
                    for exit in exits {
                        self.spend(exit.size());
                        let mut state = state.clone();
                        Self::returned(&mut state, exit);
                        self.arrive(exploring, at + 1, state, trail);
                    }
                    return Ok(());
                }
                Next::Either(target, outcomes) => {
                    self.part(exploring, (at, target), state, *outcomes, trail);
                    return Ok(());
                }
                Next::At(target) => {
                    self.arrive(exploring, target, state, trail);
                    return Ok(());
                }
                Next::Behind => {
                    at += 1;
                    if self.flow.meeting(at) != Meeting::No {
                        self.arrive(exploring, at, state, trail);
                        return Ok(());
                    }
                }
            }
        }
    }

    /// What there is too much of, if there is.
    fn beyond_limits(&self) -> Option<Why> {
        if self.steps > self.options.steps_max {
            return Some(Why::TooComplex(self.options.steps_max));
        }
        if self.work > self.options.work_max {
            return Some(Why::TooMuchToCompare(self.options.work_max));
        }
        (self.kept > KEPT_MAX).then_some(Why::TooManyWays(KEPT_MAX))
    }

    /// A way parts at a branch.
    fn part(
        &mut self,
        exploring: &mut Exploring,
        (at, target): (usize, usize),
        mut state: Box<State>,
        [taken, behind]: Outcomes,
        trail: Trail,
    ) {
        let mut step_on = |to, is_taken, state| {
            exploring.trails.push((at, is_taken, trail));
            let trail = u32::try_from(exploring.trails.len() - 1).ok();
            self.arrive(exploring, to, state, trail);
        };
        if let Some(learnt) = taken {
            let Some(behind) = behind else {
                learnt.tell(&mut state);
                return step_on(target, true, state);
            };
            let mut taken = state.clone();
            learnt.tell(&mut taken);
            step_on(target, true, taken);
            behind.tell(&mut state);
            step_on(at + 1, false, state);
        } else if let Some(learnt) = behind {
            learnt.tell(&mut state);
            step_on(at + 1, false, state);
        }
    }

    /// A state comes to an instruction: it is followed, unless one was that contains it.
    fn arrive(&mut self, exploring: &mut Exploring, at: usize, mut state: Box<State>, trail: Trail) {
        let meeting = self.flow.meeting(at);
        state.keep_only(self.flow.live(at));
        // Its frames are gone through, and copied when they are changed first.
        self.spend(state.size());
        if meeting != Meeting::No {
            state.forget_sums();
            let followed = exploring.followed.entry(at).or_default();
            let known = followed.size();
            self.spend(known);
            if followed.states.iter().any(|known| state.is_within(known)) {
                return;
            }
            let floor = self.program.data_len_min();
            self.kept -= known;
            if meeting == Meeting::Join {
                if followed.states.len() == APART_MAX {
                    // Each is compared with each.
                    self.spend(APART_MAX * (known + state.size()));
                }
                let kept = followed.keep(state, floor);
                self.kept += followed.size() + kept.iter().flatten().map(|state| state.size()).sum::<usize>();
                let waiting = exploring.waiting.entry(at).or_default();
                waiting.extend(kept.into_iter().flatten().map(|state| (state, trail)));
                return;
            }
            let is_next = followed.changes == 0
                && followed.states.len() < ROUNDS_MAX
                && followed.states.last().is_some_and(|known| state.counts_on_from(known));
            // All that waits here is one of these.
            let rounds = if is_next { followed.states.len() } else { 0 };
            let before =
                followed.states.drain(rounds..).reduce(|left, right| left.merge(&right, None, floor));
            if let Some(before) = before {
                self.spend(known);
                followed.changes += 1;
                let thresholds: Option<&[u64]> = match followed.changes {
                    ..=JOINS => None,
                    changes if changes <= JOINS + WIDENINGS => Some(&self.thresholds),
                    _ => Some(&[]),
                };
                *state = before.merge(&state, thresholds, floor);
                // What waits is contained in what follows now.
                let waited = exploring.waiting.remove(&at).unwrap_or_default();
                self.kept -= waited.iter().map(|(state, _)| state.size()).sum::<usize>();
            }
            followed.states.push(State::clone(&state));
            self.kept += followed.size();
        }
        self.kept += state.size();
        exploring.waiting.entry(at).or_default().push((state, trail));
    }

    fn refusal(
        &self,
        exploring: &Exploring,
        at: usize,
        why: Why,
        state: &State,
        mut trail: Trail,
    ) -> Box<Refused> {
        if !self.is_read {
            let (path, registers, calls) = (Vec::new(), Vec::new(), Vec::new());
            return Box::new(Refused {
                at,
                instruction: String::new(),
                line: None,
                why,
                path,
                registers,
                calls,
            });
        }
        let mut path = Vec::new();
        while let Some((at, is_taken, before)) = trail.and_then(|at| exploring.trails.get(at as usize)) {
            if path.len() == PATH_MAX {
                break;
            }
            path.push((*at, *is_taken));
            trail = *before;
        }
        path.reverse();
        let named = |(at, variant): &(usize, usize)| {
            let function = self
                .variants
                .get(*variant)
                .and_then(|variant| self.program.functions().get(variant.function));
            (*at, function.map_or_else(String::new, |function| function.name.clone()))
        };
        let registers = Register::all().map(|register| (register, state.get(register)));
        let registers = registers.filter(|(_, value)| *value != Value::Uninitialised);
        Box::new(Refused {
            at,
            instruction: instruction_text(self.program, at),
            line: self.program.line(at).cloned(),
            why,
            path,
            registers: registers.map(|(register, value)| (register, value.to_string())).collect(),
            calls: self.calls.iter().rev().map(named).collect(),
        })
    }
}
