//! Looks for programs that the verifier accepts and that do what they may not.
//!
//! ```text
//!   seed ─▶ setting: a hook, options
//!        ─▶ generate: a program that is nearly right ─▶ mutate ─▶ verifier ─┬─▶ refused: counted by reason
//!                                                                           └─▶ accepted ─▶ oracle: runs, on inputs at the edges
//!   violation ─▶ shrink ─▶ the same violation in fewer instructions                              │ interpreter: no violation
//!                                                                                                │ states: what is known holds
//!                                                                                                └ compiled code: the same outcome
//! ```
//!
//! A program that is made of anything at all is refused at its first instructions, and tells nothing. These are made of what parsers are
//! made of, with bounds that are right, or wrong by one.

mod bytes;
mod generate;
mod idioms;
mod input;
mod mutate;
mod oracle;
mod places;
mod random;
mod setting;
mod shrink;
mod tally;
mod ways;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use generate::Draft;
use input::{Input, Machines};
pub use oracle::{Breach, Found};
use random::Random;
use setting::Setting;
pub use tally::Tally;

use crate::program::Program;
use crate::text::{Listing, disassemble};
use crate::verifier::{self, Accepted, Options, States};

/// Of so many accepted programs one is verified again.
const VERDICTS_SHARE: u64 = 16;

/// How to look.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Of so many accepted programs one is compiled; none if it is 0.
    pub compiled_share: u64,
    /// Of so many programs one has its states compared with what is known of them; none if it is 0.
    pub states_share: u64,
    /// Calls of each accepted program.
    pub runs: usize,
}

impl Default for Plan {
    fn default() -> Self {
        Self { compiled_share: 50, states_share: 4, runs: 3 }
    }
}

/// Tries one program after another, and counts.
pub struct Campaign {
    plan: Plan,
    machines: Machines,
    states: States,
    /// What was seen.
    pub tally: Tally,
}

impl Campaign {
    /// One that has tried nothing yet.
    #[must_use]
    pub fn new(plan: Plan) -> Self {
        Self { plan, machines: Machines::new(), states: States::default(), tally: Tally::default() }
    }

    /// The program of a seed.
    #[must_use]
    pub fn program(seed: u64) -> Option<Arc<Program>> {
        Draft::of_seed(seed).program()
    }

    /// Tries the program of a seed; what it did that it may not, in as few instructions as show it.
    pub fn run(&mut self, seed: u64) -> Option<Box<Found>> {
        let draft = Draft::of_seed(seed);
        self.tally.generated += 1;
        let Some(program) = draft.program() else {
            self.tally.shapeless += 1;
            return None;
        };
        let setting = draft.setting;
        let tried = catch_unwind(AssertUnwindSafe(|| self.run_program(seed, setting, &program)));
        let (input, breach) = match tried {
            Ok(breach) => *breach?,
            Err(_) => (Input::new(&mut Random::new(!seed), &program, setting.world, 0), Breach::Panicked),
        };
        let (program, breach) =
            shrink::shrink(&mut self.machines, self.plan, (draft, program), &input, breach);
        let listing = Listing { has_lines: false, has_data: true };
        Some(Box::new(Found {
            seed,
            breach,
            world: setting.world.name,
            is_strict: setting.options.is_strict,
            text: disassemble(&program, listing),
            input: input.to_string(),
        }))
    }

    fn run_program(
        &mut self,
        seed: u64,
        setting: Setting,
        program: &Arc<Program>,
    ) -> Option<Box<(Input, Breach)>> {
        let Setting { world, options } = setting;
        let has_states = self.plan.states_share > 0 && seed.is_multiple_of(self.plan.states_share);
        let verdict = match has_states {
            true => verifier::verify_recorded(program, world, options, &mut self.states),
            false => verifier::verify_briefly(program, world, options),
        };
        let accepted = match verdict {
            Ok(accepted) => accepted,
            Err(refused) => {
                self.tally.note_refused(&refused.why);
                return None;
            }
        };
        self.tally.note_accepted(&accepted, options.is_strict);
        let share = self.plan.compiled_share;
        let is_compiled = share > 0 && self.tally.accepted.is_multiple_of(share);
        if self.tally.accepted.is_multiple_of(VERDICTS_SHARE) && !is_said_again(setting, program, &accepted) {
            let input = Input::new(&mut Random::new(seed), program, world, 0);
            return Some(Box::new((input, Breach::Verdicts)));
        }
        let mut random = Random::new(!seed);
        let inputs: Vec<Input> =
            (0..self.plan.runs).map(|number| Input::new(&mut random, program, world, number)).collect();
        for input in &inputs {
            self.tally.runs += 1;
            let states = has_states.then_some(&self.states);
            let outcome = oracle::interpret(&mut self.machines, &accepted.verified, states, input);
            match outcome {
                Ok(outcome) => self.tally.note_outcome(outcome),
                Err(breach) => return Some(Box::new((*input, breach))),
            }
        }
        if is_compiled {
            self.tally.compiled += 1;
            if let Err((input, breach)) = oracle::compiled(&mut self.machines, &accepted.verified, &inputs) {
                return Some(Box::new((input, breach)));
            }
        }
        None
    }
}

/// Whether a program gets the same verdict again; and is accepted where no check may be left if there is none.
fn is_said_again(setting: Setting, program: &Arc<Program>, accepted: &Accepted) -> bool {
    let Setting { world, options } = setting;
    let again = verifier::verify_briefly(program, world, options);
    let is_same = again.is_ok_and(|again| {
        again.verified.variants() == accepted.verified.variants() && again.checks == accepted.checks
    });
    let strict = verifier::verify_briefly(program, world, Options { is_strict: true, ..options });
    is_same && strict.is_ok() == accepted.checks.is_empty()
}
